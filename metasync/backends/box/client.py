"""One call of Box's own library, with the errors of the contract: a login that is renewed once, nothing repeated.

The library is imported by the first call, which takes 0.2 s. Its own repetitions are switched off. What Box keeps
behind an address of its own for a while (contents, the long poll) is asked for without the login.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from metasync.backends._shared.http import SILENT_S
from metasync.backends._shared.session_requests import (
    JSON_BYTES_MAX,
    BoundedSession,
    Bounds,
    Login,
    Refusals,
    RenewableError,
    with_token,
)
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError

T = TypeVar("T")

HOSTS: Final = frozenset({"api.box.com", "upload.box.com"})
_STEPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("clock", "signer", "name"), "Check this machine's clock, and what stands between it and Box."),
    **dict.fromkeys(("tls", "network"), "Check the network. status.box.com says whether Box is up."),
}
_RIGHTS: Final = "Check the rights of the account in this folder, and the app's scopes in Box's developer console."
_SAYS: Final = Refusals("Box", _RIGHTS)
TAKEN: Final = "item_name_in_use"
_AGAIN: Final = frozenset(
    {"name_temporarily_reserved", "operation_blocked_temporary", "conflict", "session_conflict", "upload_in_progress"}
)
"""Codes of a 409 that say nothing of the name: something else was under way, and a later try finds out."""
_FULL: Final = frozenset({"storage_limit_exceeded"})
_REFUSED: Final[Mapping[str, str]] = {
    "access_denied_insufficient_permissions": "the account or the app may not do this there",
    "insufficient_scope": "the app lacks a scope",
    "forbidden_by_policy": "a policy of the enterprise forbids it",
    "access_denied_item_locked": "the file is locked",
    "file_size_limit_exceeded": "it is larger than the account's plan allows",
    "folder_file_limit_exceeded": "the folder has as many files as Box allows",
}
_UNREADABLE: Final = (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer that is none of Box's ends with."""
_TOKEN: ContextVar[str] = ContextVar("token", default="")


class TakenError(RefusedError):
    """The name is taken. `item`: what Box says of it: its id, type, sha1; {} where it says nothing."""

    def __init__(self, message: str, item: Mapping[str, Any]) -> None:
        super().__init__(message, next_step="Look what lies there, on box.com.")
        self.item = item


class NotReadyError(BackendError):
    """Box has what was sent, or what is asked for, and is still at it. `retry_after_s`: when to ask again."""


class Client:
    """Calls of Box's library for one account, from several threads. `close` it."""

    def __init__(self, login: Login, stand_in: str) -> None:
        self._login = login
        self._session = BoundedSession(HOSTS, provider="Box", stand_in=stand_in, steps=_STEPS)
        self._beside = BoundedSession(None, provider="Box", stand_in=stand_in, steps=_STEPS)
        self._lock = threading.Lock()
        self._library: Any = None

    def ask(self, attempt: str, call: Callable[[Any], T]) -> T:
        """What `call` makes of the library's client. `attempt` begins the message of an error.

        `call` reads in the answer what is to be read there: what it cannot read is no answer of Box's. Besides the
        errors of the contract, `TakenError`, and `NotReadyError` for a 202.
        """
        return with_token(self._login, "Box", attempt, lambda token: self._ask(token, attempt, call))

    def fetch(
        self,
        attempt: str,
        url: str,
        *,
        body_bytes_max: int = JSON_BYTES_MAX,
        headers: Mapping[str, str] | None = None,
        within_s: int | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, head and body of what lies behind an address that Box gave out. No login is shown."""
        from requests import RequestException

        with self._beside.bounds(attempt, body_bytes_max=body_bytes_max, within_s=within_s) as bounds:
            try:
                answer = self._beside.request("GET", url, headers=dict(headers or {}))
            except (ValueError, RequestException):  # it is no address: requests has several errors for that
                raise _SAYS.other(attempt, bounds) from None
            if answer.status_code in (200, 206, 416):
                return answer.status_code, bounds.headers, answer.content
            if answer.status_code == 404:
                raise NotFoundError(f"{attempt}: it is not there")
            raise _SAYS.of_status(attempt, bounds)

    def close(self) -> None:
        self._session.close()
        self._beside.close()

    def _ask(self, token: str, attempt: str, call: Callable[[Any], T]) -> T:
        from box_sdk_gen import BoxAPIError, BoxSDKError

        mark = _TOKEN.set(token)
        try:
            with self._session.bounds(attempt, body_bytes_max=JSON_BYTES_MAX) as bounds:
                try:
                    found = call(self._made())
                    if bounds.status == 202 and bounds.retry_after_s is not None:
                        raise _not_ready(attempt, bounds)
                    return found
                # Of what the library says nothing is quoted, nor kept as a cause: it holds what a server sent.
                except BoxAPIError as error:
                    raise _of_answer(attempt, bounds, error.response_info) from None
                except (BoxSDKError, *_UNREADABLE):
                    if bounds.status == 202:
                        raise _not_ready(attempt, bounds) from None
                    raise _SAYS.other(attempt, bounds) from None
        finally:
            _TOKEN.reset(mark)

    def _made(self) -> Any:
        with self._lock:
            if self._library is None:
                self._library = _library(self._session)
            return self._library


def _library(session: BoundedSession) -> Any:
    """Box's client over our session; it asks for the token of the call that is being made, and repeats nothing."""
    from box_sdk_gen import Authentication, BoxClient, BoxNetworkClient, NetworkSession, RetryStrategy

    class Shown(Authentication):
        """The library asks for nothing else of a login."""

        def retrieve_token(self, *, network_session: Any = None) -> Any:
            raise NotImplementedError

        refresh_token = revoke_token = retrieve_token

        def retrieve_authorization_header(self, *, network_session: Any = None) -> str:
            return f"Bearer {_TOKEN.get()}"

        def downscope_token(self, scopes: Any, **_: Any) -> Any:
            raise NotImplementedError

    class Never(RetryStrategy):
        def should_retry(self, fetch_options: Any, fetch_response: Any, attempt_number: int) -> bool:
            return False

        def retry_after(self, fetch_options: Any, fetch_response: Any, attempt_number: int) -> float:
            return 0.0

    never: Any = Never  # the library's constructors have no types
    shown: Any = Shown
    network = NetworkSession(network_client=BoxNetworkClient(session), retry_strategy=never())
    return BoxClient(shown(), network_session=network)


def _not_ready(attempt: str, bounds: Bounds) -> NotReadyError:
    after_s = bounds.retry_after_s
    return NotReadyError(
        f"{attempt}: Box is not ready yet",
        retry_after_s=SILENT_S if after_s is None else after_s,
        next_step="Try again later.",
    )


def _of_answer(attempt: str, bounds: Bounds, told: Any) -> BackendError:
    status, code = bounds.status, str(told.code or "")
    if status == 401:
        raise RenewableError from None
    if status == 409 and code == TAKEN:
        return TakenError(f"{attempt}: the name is taken", _conflict(told.context_info))
    if status in {429, 503} or (status == 409 and code in _AGAIN):
        return _SAYS.busy(attempt, bounds)
    if code in _FULL:
        return FullError(f"{attempt}: the account has no space left", next_step="Free some space, or get more.")
    if status == 404:
        return NotFoundError(f"{attempt}: it is not there")
    if code in _REFUSED:
        return RefusedError(f"{attempt}: {_REFUSED[code]}", next_step=_RIGHTS)
    if not code:
        return _SAYS.of_status(attempt, bounds)
    if status >= 500:
        return BackendError(f"{attempt}: Box has an error of its own ({status})", next_step="Try again later.")
    words = code.replace("_", " ")[:60] if code.isascii() and code.replace("_", "").isalnum() else f"{status}"
    return RefusedError(f"{attempt}: Box refuses it: {words}", next_step=_RIGHTS)


def _conflict(context: Any) -> Mapping[str, Any]:
    """What has the name: an object or a list of one, Box says either."""
    found = context.get("conflicts") if isinstance(context, dict) else None
    if isinstance(found, list):
        found = found[0] if found else None
    return found if isinstance(found, dict) else {}
