"""One call of Dropbox's own library, with the errors of the contract: a login that is renewed once, nothing repeated.

The library is imported by the first call, which takes 0.2 s, and not when the store is opened: the others are asked
meanwhile. Left to itself it repeats a call that met 429 for ever; here it repeats nothing (providers.md, section 1.3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from metasync.backends._shared.http import SILENT_S
from metasync.backends._shared.session_requests import (
    JSON_BYTES_MAX,
    BoundedSession,
    Login,
    Refusals,
    RenewableError,
    with_token,
)
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError

T = TypeVar("T")

HOSTS: Final = frozenset({"api.dropboxapi.com", "content.dropboxapi.com", "notify.dropboxapi.com"})
_STEPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("clock", "signer", "name"), "Check this machine's clock, and what stands between it and Dropbox."),
    **dict.fromkeys(("tls", "network"), "Check the network. status.dropbox.com says whether Dropbox is up."),
}
_UNREADABLE: Final = (
    AssertionError, AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError
)  # fmt: skip
"""What the library raises of itself for an answer that is none of Dropbox's, or that nobody can read."""

_RENEWABLE: Final = frozenset({"expired_access_token", "invalid_access_token"})
_RIGHTS: Final = "Check the rights of the account in this folder, and those of the app at dropbox.com/developers/apps."
_SAYS: Final = Refusals("Dropbox", _RIGHTS)

_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "no_write_permission": ("the account may not write there", _RIGHTS),
    "access_restricted": ("the team's administrator forbids it", _RIGHTS),
    "restricted_content": ("Dropbox holds this content back", "Ask Dropbox's support why."),
    "operation_suppressed": ("Dropbox does not allow it at this path", "Name another folder in the URL."),
    "team_folder": ("it is a team folder", "Name another folder in the URL."),
    "disallowed_name": ("Dropbox does not take this name", "Name another folder in the URL."),
    "malformed_path": ("Dropbox does not take this path", "Name another folder in the URL."),
    "unsupported_content_type": ("it is no file", "Look what lies there, on dropbox.com."),
    "not_file": ("it is no file", "Look what lies there, on dropbox.com."),
    "upload_traffic_limit_reached": ("the account has uploaded as much as it may", "Ask Dropbox how much that is."),
    "payload_too_large": ("it is too large for one upload", ""),
    "encryption_not_supported": ("the folder is encrypted by Dropbox, and no app can write there", "Name another."),
    "too_many_files": ("it has too many files for one call", ""),
}
"""By the last tag of an error: why, and the next step."""


class ConflictError(RefusedError):
    """Something is in the way of a write. `kind`: "file" and "folder" have the name itself."""

    kind = ""


class Client:
    """Calls of Dropbox's library for one account, from several threads. `close` it."""

    def __init__(self, login: Login, stand_in: str) -> None:
        self._login = login
        self._session = BoundedSession(HOSTS, provider="Dropbox", stand_in=stand_in, steps=_STEPS)
        self._lock = threading.Lock()
        self._made: tuple[str, Any] = ("", None)  # a token, and the library's client for it

    def ask(
        self,
        attempt: str,
        call: Callable[[Any], T],
        *,
        body_bytes_max: int = JSON_BYTES_MAX,
        within_s: int | None = None,
    ) -> T:
        """What `call` makes of the library's client. `attempt` begins the message of an error.

        Besides those of the contract, `ConflictError`. `NotFoundError` is the library's word for a path or a cursor.
        """
        return with_token(
            self._login, "Dropbox", attempt, lambda token: self._ask(token, attempt, call, body_bytes_max, within_s)
        )

    def close(self) -> None:
        self._session.close()

    def _ask(self, token: str, attempt: str, call: Callable[[Any], T], body_bytes_max: int, within_s: int | None) -> T:
        from dropbox import exceptions
        from stone.backends.python_rsrc.stone_validators import ValidationError

        with self._session.bounds(attempt, body_bytes_max=body_bytes_max, within_s=within_s) as bounds:
            try:
                return call(self._client(token))
            # Of what the library says nothing is quoted, nor kept as a cause: it holds what a server sent.
            except exceptions.ApiError as error:
                raise _of_tags(attempt, _tags(error.error)) from None
            except exceptions.AuthError as error:
                _refuse_login(attempt, _tags(error.error), self._login.step)
            except exceptions.RateLimitError as error:
                raise _SAYS.busy(attempt, bounds, _silent_s(error.backoff)) from None
            except exceptions.HttpError:
                raise _SAYS.of_status(attempt, bounds) from None
            except (*_UNREADABLE, OSError, ValidationError):  # OSError: what requests raises
                raise _SAYS.other(attempt, bounds) from None

    def _client(self, token: str) -> Any:
        from dropbox import Dropbox

        with self._lock:
            made = self._made
            if made[0] != token:
                options = {"max_retries_on_error": 0, "max_retries_on_rate_limit": 0, "user_agent": "metasync"}
                made = self._made = token, Dropbox(token, session=self._session, **options)
            return made[1]


def _tags(error: Any) -> list[str]:
    """The tags of a union and of what is in it: path, conflict, file."""
    tags: list[str] = []
    while (tag := getattr(error, "_tag", None)) is not None:
        tags.append(str(tag))
        value = getattr(error, "_value", None)
        error = getattr(value, "reason", value)
    return tags


def _of_tags(attempt: str, tags: list[str]) -> BackendError:
    """The error for the tags of one of Dropbox's."""
    last = tags[-1] if tags else ""
    if last in {"not_found", "not_folder", "reset"}:
        return NotFoundError(f"{attempt}: it is not there")
    if "conflict" in tags:
        error = ConflictError(f"{attempt}: a {last} is in the way", next_step="Look what lies there, on dropbox.com.")
        error.kind = last
        return error
    if last.endswith("insufficient_space"):  # the account's, a team folder's, or a member's
        return FullError(f"{attempt}: the account has no space left", next_step="Free some space, or get more.")
    if last == "too_many_write_operations":
        return BackendError(f"{attempt}: others are writing to this account", retry_after_s=SILENT_S)
    for tag in reversed(tags):
        if tag in _REFUSED:
            why, step = _REFUSED[tag]
            return RefusedError(f"{attempt}: {why}", next_step=step)
    words = last.replace("_", " ")[:60] if last.isascii() and last.replace("_", "").isalpha() else "it does not say why"
    return BackendError(f"{attempt}: Dropbox refuses it: {words}", next_step="Try again later.")


def _refuse_login(attempt: str, tags: list[str], step: str) -> NoReturn:
    tag = tags[0] if tags else ""
    if tag in _RENEWABLE:
        raise RenewableError from None
    if tag == "missing_scope":
        raise RefusedError(
            f"{attempt}: the app that the account is linked by lacks a permission",
            next_step=f"Tick its permissions (docs/howto/link-an-account.md) at dropbox.com/developers/apps. {step}",
        ) from None
    if tag == "user_suspended":
        raise RefusedError(f"{attempt}: Dropbox suspended the account", next_step="Ask Dropbox why.") from None
    raise RefusedError(f"{attempt}: Dropbox does not take the login", next_step=step) from None


def _silent_s(told: object) -> float:
    """For how long Dropbox asks to be left alone in the words of its library, a second where it does not say."""
    return float(told) if isinstance(told, int | float) and told > 0 else SILENT_S
