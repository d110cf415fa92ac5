"""Where a provider's secret comes from (the environment, then the system's keyring), and whether a cloud may give it.

Only a cloud's own machine may be asked for credentials: elsewhere the address of that service leads nowhere, and asking
it hangs for a minute, or reaches somebody else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from metasync.errors import RefusedError
from metasync.runtime.addresses import is_loopback as is_loopback

SERVICE = "metasync"
"""What secrets in the keyring are filed under: `keyring set metasync ACCOUNT`."""

_SENDABLE = re.compile(r"[!-~]+")


def secret(account: str, variables: Sequence[str]) -> str | None:
    """The first of the environment's `variables` that is set, else what the keyring has for the account, else None."""
    for name in variables:
        if value := os.environ.get(name):
            return value
    return from_keyring(account)


def is_for(host: str, variable: str, environ: Mapping[str, str]) -> bool:
    """Whether a login of the environment may go to `host` (with a port or not): `variable` names the one it is for.

    Where it is not set the login is for every server that the user names. One named without a port is meant whichever
    port it has.
    """
    named = environ.get(variable, "").strip().lower()
    host = host.lower()
    return not named or named in {host, re.sub(r":[0-9]+$", "", host), host.strip("[]")}


def from_keyring(account: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The secret of an account in the system's keyring; None without one, or with `METASYNC_KEYRING=off`."""
    if _is_off(environ):
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        found = keyring.get_password(SERVICE, account)
    except (keyring.errors.KeyringError, RuntimeError):
        return None
    return found if isinstance(found, str) and found else None


def to_keyring(account: str, text: str) -> bool:
    """Puts a secret into the system's keyring. -> whether it can be read from there again.

    False without a keyring, or with `METASYNC_KEYRING=off`.
    """
    if _is_off(os.environ):
        return False
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return False
    try:
        keyring.set_password(SERVICE, account, text)
        return from_keyring(account, {}) == text
    except (keyring.errors.KeyringError, RuntimeError):
        return False


def drop_from_keyring(account: str) -> None:
    """Removes an account's secret from the system's keyring. What is not there, or cannot be reached, is passed over.

    `METASYNC_KEYRING=off` does not count: the secret was put there.
    """
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return
    with contextlib.suppress(keyring.errors.KeyringError, RuntimeError):
        keyring.delete_password(SERVICE, account)


def _is_off(environ: Mapping[str, str]) -> bool:
    return environ.get("METASYNC_KEYRING", "").lower() == "off"


def sendable(text: str, what: str) -> str:
    """A key or token for the head of a request, without the line's end that files leave behind.

    `RefusedError` for other characters that no such secret has, and that end a header.
    """
    text = text.strip()
    if _SENDABLE.fullmatch(text) is None:
        raise RefusedError(
            f"{what} holds a character that cannot be part of it, such as the end of a line",
            next_step="Copy it again, without quotes, spaces and line ends.",
        )
    return text


def caution(scheme: str, host: str, what: str) -> str:
    """What people should know of a line: "" over TLS or on this machine. `what` begins the sentence."""
    if scheme == "https" or is_loopback(host):
        return ""
    return f"{what} (what is stored is encrypted anyway)"


_DMI = "/sys/class/dmi/id"
# What each cloud has its machines say about themselves; the number of Azure's is the same on all of them.
_SIGNS: dict[str, tuple[str, str]] = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    "gcs": ("product_name", "Google Compute Engine"),
}


def runs_in(cloud: Literal["aws", "azure", "gcs"], folder: str = _DMI) -> bool:
    """Whether this machine says that it is one of the cloud's. It says nothing on systems other than Linux."""
    name, sign = _SIGNS[cloud]
    try:
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(200).strip() == sign
    except OSError:
        return False
