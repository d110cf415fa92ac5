"""Where logins are kept: one file each, `logins/PROVIDER-ACCOUNT.json` under the user's configuration.

The file holds JSON and is its owner's alone. Where the system has a keyring the secrets are there, in one entry with
the same JSON, and the file says so. Either is replaced as a whole: the old login or the new one is there at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from metasync.backends._shared.credentials import drop_from_keyring, from_keyring, to_keyring
from metasync.backends._shared.logins.oauth import PROVIDERS, TOKEN_TIMEOUT_S, Client, Provider, Tokens
from metasync.errors import MetaSyncError, RefusedError, UnreachableError, UsageError
from metasync.local.lock import exclusive, private

DEFAULT: Final = "default"
FORMAT: Final = 1
_LABEL: Final = re.compile(r"[a-z0-9._-]{1,40}")
_FILE_BYTES_MAX: Final = 64 << 10
_LOGINS_MAX: Final = 256
_WAIT_S: Final = 3.0 * TOKEN_TIMEOUT_S  # for another process that renews the same login
_KEYRING: Final = "keyring"


@dataclass(frozen=True)
class Grant:
    """What a provider granted to this device. Times are seconds since 1970.

    `previous`: the refresh token before. `renewing_at`: when a renewal was begun that did not come to its end; 0: none.
    `endpoint`: the stand-in that gave it; "": the provider.
    """

    provider: str
    account: str
    client_id: str
    client_secret: str = field(repr=False)
    access: str = field(repr=False)
    refresh: str = field(repr=False)
    ends_at: float
    renew_at: float
    linked_at: float
    previous: str = field(default="", repr=False)
    renewing_at: float = 0.0
    endpoint: str = ""

    @property
    def client(self) -> Client:
        return Client(self.client_id, self.client_secret)

    def renewed(self, tokens: Tokens) -> Grant:
        """The same login with new tokens."""
        return replace(
            self,
            access=tokens.access,
            refresh=tokens.refresh or self.refresh,
            previous=self.refresh if tokens.refresh and tokens.refresh != self.refresh else self.previous,
            ends_at=tokens.ends_at,
            renew_at=tokens.renew_at,
            renewing_at=0.0,
        )


def folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where the files are, which need not be there: below XDG_CONFIG_HOME, else below ~/.config."""
    found = os.environ if environ is None else environ
    above = found.get("XDG_CONFIG_HOME", "")
    top = Path(above) if os.path.isabs(above) else Path(found.get("HOME") or os.path.expanduser("~")) / ".config"
    return top / "metasync" / "logins"


def check_label(label: str) -> str:
    """`UsageError` for what is no label of an account."""
    if _LABEL.fullmatch(label) is None or label.strip(".") == "":
        raise UsageError(
            f"not a label for an account: {label[:40]!r}",
            next_step="Labels have 1 to 40 of the characters a-z 0-9 . _ -, such as work or home.",
        )
    return label


def accounts(provider: str) -> tuple[str, ...]:
    """The labels of the accounts that are linked, sorted."""
    try:
        names = sorted(name for name in os.listdir(folder()) if name.endswith(".json"))[:_LOGINS_MAX]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unreadable(folder(), error) from error
    found = [n.removeprefix(f"{provider}-").removesuffix(".json") for n in names if n.startswith(f"{provider}-")]
    return tuple(label for label in found if _LABEL.fullmatch(label))


class Place:
    """The place of one login. `read` and `write` may be called by several processes, if they hold `locked`."""

    def __init__(self, provider: Provider, account: str) -> None:
        self.provider = provider
        self.account = check_label(account)
        self.path = folder() / f"{provider.name}-{account}.json"
        self._entry = f"login {provider.name} {account}"

    @property
    def step(self) -> str:
        """What mends this login."""
        return f"Run: {self._command}"

    @property
    def _command(self) -> str:
        """The command that links this account, and no other one of the same provider."""
        alone = self.account == DEFAULT and not self._others()
        return self.provider.command + ("" if alone else f" --account {self.account}")

    def _others(self) -> set[str]:
        with contextlib.suppress(RefusedError):  # a folder that cannot be read: this is for an error's text
            return {*accounts(self.provider.name)} - {self.account}
        return set()

    def named(self, error: MetaSyncError) -> MetaSyncError:
        """An error that was told for the provider, with the command for this account in its next step."""
        if self._command not in error.next_step:
            error.next_step = error.next_step.replace(self.provider.command, self._command)
        return error

    def refused(self, what: str) -> RefusedError:
        """The error of a login that needs to be linked. Its text names the command: warnings show the text alone."""
        return RefusedError(f"{what}; `{self._command}` links it", next_step=self.step)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the login against other processes and threads. `UnreachableError`: others held it for a minute."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with exclusive(self.path.with_suffix(".lock"), _WAIT_S):
                yield
        except TimeoutError:
            raise UnreachableError(
                f"another process has been renewing the login to {self.provider.title} for {_WAIT_S:.0f} s",
                next_step="Run again; if it happens again, end that process.",
            ) from None

    def read(self) -> Grant:
        """`RefusedError` where no account is linked here, or the file is damaged, or the keyring is locked."""
        try:
            with self.path.open("rb") as file:
                data = file.read(_FILE_BYTES_MAX + 1)
                if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    os.fchmod(file.fileno(), 0o600)  # a copy from elsewhere, say: others read the account by it
        except FileNotFoundError:
            raise self.not_linked() from None
        except OSError as error:
            raise _unreadable(self.path, error) from error
        found = _object(data)
        if found.get("kept_in") == _KEYRING:
            secret = from_keyring(self._entry, {})  # whatever the environment says now: the login was put there
            if secret is None:
                raise RefusedError(
                    f"the login to {self.provider.title} is not in the system's keyring, or the keyring is locked;"
                    f" `{self._command}` links it anew",
                    next_step=f"Unlock it, or link the account anew. {self.step}",
                )
            found = _object(secret.encode())
        grant = _decoded(found)
        if grant is None or (grant.provider, grant.account) != (self.provider.name, self.account):
            raise self.refused(f"the login in {self.path} is damaged")
        return grant

    def not_linked(self) -> RefusedError:
        named = "" if self.account == DEFAULT else f" as {self.account}"
        return self.refused(f"no account of {self.provider.title} is linked{named}")

    def write(self, grant: Grant) -> None:
        """Keeps a login in the place of the one before. `OSError` where the file cannot be written."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, **asdict(grant)}, indent=1)
        if self._is_for_keyring() and to_keyring(self._entry, text):
            self._put(json.dumps({"format": FORMAT, "kept_in": _KEYRING}))
        else:
            self._put(text)

    def remove(self) -> None:
        """Forgets the login. What is not there needs no removing."""
        if self._is_in_keyring():
            drop_from_keyring(self._entry)
        self.path.unlink(missing_ok=True)

    def kept_in(self) -> str:
        """Where the login is, for people."""
        return "the system's keyring" if self._is_in_keyring() else str(self.path)

    def _is_in_keyring(self) -> bool:
        try:
            return _object(self.path.read_bytes()[:_FILE_BYTES_MAX]).get("kept_in") == _KEYRING
        except OSError:
            return False

    def _is_for_keyring(self) -> bool:
        """A login stays where it is; a new one goes to the keyring."""
        return self._is_in_keyring() if self.path.exists() else True

    def _put(self, text: str) -> None:
        beside = self.path.with_suffix(".new")  # one at a time: the caller holds the lock
        beside.unlink(missing_ok=True)
        with open(beside, "x", encoding="utf-8", opener=private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        above = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(above)
        finally:
            os.close(above)


def place_of(provider: str, account: str | None) -> Place:
    """The place of a linked account: the one with this label; without a label `default`, else the only one.

    A URL without a label goes on meaning `default` when others are linked later. `RefusedError` where there is none.
    """
    found = accounts(provider)
    known = PROVIDERS[provider]
    if account is None and DEFAULT in found:
        account = DEFAULT
    if account is None and len(found) > 1:
        raise RefusedError(
            f"several accounts of {known.title} are linked: {', '.join(found)}",
            next_step=f"Say in the URL which one: {provider}:/path?account={found[0]}",
        )
    label = account or (found[0] if found else DEFAULT)
    place = Place(known, label)
    if label not in found:
        raise place.not_linked()
    return place


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data) if len(data) <= _FILE_BYTES_MAX else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _decoded(found: Mapping[str, Any]) -> Grant | None:
    """None for what is no login of this format."""
    if found.get("format") != FORMAT or {*found} - {"format"} != {f.name for f in fields(Grant)}:
        return None
    for f in fields(Grant):
        value = found[f.name]
        if f.type == "float" and not (isinstance(value, int | float) and 0 <= value < 1e12):
            return None
        if f.type == "str" and not isinstance(value, str):
            return None
    return Grant(**{name: value for name, value in found.items() if name != "format"})


def _unreadable(path: Path, error: OSError) -> RefusedError:
    return RefusedError(f"the logins in {path} cannot be read: {error.strerror}", next_step="Check its rights.")
