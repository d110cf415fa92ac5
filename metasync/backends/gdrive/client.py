"""Requests of Google's own library, with the errors of the contract: a login that is renewed once, nothing repeated.

The library builds each request from Google's description of the API, which it carries, and reads the answer. In place
of its transport (`httplib2`, which is not safe for threads) stands a `BoundedSession`: bounded, and to one host.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from metasync.backends._shared.http import MOST_S
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

HOSTS: Final = frozenset({"www.googleapis.com"})
_STEPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("clock", "signer", "name"), "Check this machine's clock, and what stands between it and Google."),
    **dict.fromkeys(("tls", "network"), "Check the network. google.com/appsstatus says whether Google Drive is up."),
}
_BUSY: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded"})
_DAY: Final = frozenset({"dailyLimitExceeded", "dailyLimitExceededUnreg", "quotaExceeded"})
_FULL: Final[Mapping[str, tuple[str, str]]] = {
    "storageQuotaExceeded": ("the account has no space left", "Free some space, empty the bin, or get more."),
    "numChildrenInNonRootLimitExceeded": (
        "the folder holds as many files as Google Drive allows (500,000)",
        "Add another backend, and give this one less of the data: metasync backend set NAME --capacity.",
    ),
}
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "accessNotConfigured": (
        "the app that the account is linked by may not use Google Drive",
        "Enable the Google Drive API for its project, at console.cloud.google.com/apis/library.",
    ),
    "insufficientPermissions": ("the login lacks a permission", "{login}, and leave all boxes ticked."),
    "insufficientFilePermissions": ("the account may not do this with this file", "Check who owns the folder."),
    "appNotAuthorizedToFile": ("the file is another app's", "Link all devices by the same app."),
    "domainPolicy": ("the administrator of the domain forbids it", "Ask the administrator."),
    "cannotDownloadAbusiveFile": ("Google holds this content back", "Ask Google's support why."),
}
_UNREADABLE: Final = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading an answer that is none of Google's ends with."""

STALLS_MAX: Final = 4  # answers to one upload that take nothing more
STEP_BYTES: Final = 256 << 10  # Google keeps what it was sent in such steps, but for the end
_SAYS: Final = Refusals("Google Drive", "Check the rights of the account.")
_TOKEN: ContextVar[str] = ContextVar("token", default="")


class Client:
    """Requests for one account, from several threads. `close` it."""

    def __init__(self, login: Login, stand_in: str) -> None:
        self._login = login
        self._session = BoundedSession(HOSTS, provider="Google Drive", stand_in=stand_in, steps=_STEPS)
        self._lock = threading.Lock()
        self._service: Any = None

    def ask(
        self,
        attempt: str,
        request: Callable[[Any], Any],
        *,
        body_bytes_max: int = JSON_BYTES_MAX,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """What Google answers to the request that the library makes of its `service`. `attempt` begins error messages.

        `NotFoundError` also where a page token is too old. A part of a file behind its end is b"".
        """
        return with_token(
            self._login,
            "Google Drive",
            attempt,
            lambda token: self._ask(token, attempt, request, body_bytes_max, headers or {}),
        )

    def close(self) -> None:
        self._session.close()

    def _ask(
        self,
        token: str,
        attempt: str,
        request: Callable[[Any], Any],
        body_bytes_max: int,
        headers: Mapping[str, str],
    ) -> Any:
        from googleapiclient.errors import Error, HttpError

        mark = _TOKEN.set(token)
        try:
            with self._session.bounds(attempt, body_bytes_max=body_bytes_max) as bounds:
                try:
                    made = request(self._made())
                    made.headers.update(headers)
                    found = _whole(made, attempt)
                # Of what the library says nothing is quoted, nor kept as a cause: it holds what a server sent.
                except HttpError as error:
                    if error.resp.status == 416 and "range" in headers:
                        return b""
                    raise _of_answer(attempt, bounds, error, self._login.step) from None
                except (Error, *_UNREADABLE):
                    raise _SAYS.other(attempt, bounds) from None
                if (isinstance(found, str) and found) or (
                    "range" in headers and bounds.status != 206
                ):  # a text is no JSON
                    raise _SAYS.other(attempt, bounds)
                return found
        finally:
            _TOKEN.reset(mark)

    def _made(self) -> Any:
        """The library's service. Importing it takes 0.2 s: the first request does, and opening a backend does not."""
        with self._lock:
            if self._service is None:
                from googleapiclient.discovery import build_from_document
                from googleapiclient.discovery_cache import get_static_doc

                self._service = build_from_document(get_static_doc("drive", "v3"), http=_Transport(self._session))
            return self._service


def _whole(made: Any, attempt: str) -> Any:
    """The answer to a request. An upload behind its metadata is one part; where Google took less, the rest follows.

    `BackendError`, to be tried again, if `STALLS_MAX` answers one after the other took nothing more.
    """
    if made.resumable is None:
        return made.execute(num_retries=0)
    taken_bytes, stalls = 0, 0
    while stalls < STALLS_MAX:
        _, found = made.next_chunk(num_retries=0)
        if found is not None:
            return found
        is_further = made.resumable_progress >= taken_bytes + STEP_BYTES
        stalls = 0 if is_further else stalls + 1
        taken_bytes = max(taken_bytes, made.resumable_progress)
    raise BackendError(f"{attempt}: Google Drive takes no more of its bytes", next_step="Try again later.")


class _Transport:
    """What the library takes for an `httplib2.Http`."""

    redirect_codes: frozenset[int] = frozenset()  # it follows none
    credentials = None

    def __init__(self, session: BoundedSession) -> None:
        self._session = session

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> tuple[Any, bytes]:
        from httplib2 import Response

        data = body.read() if hasattr(body, "read") else body
        sent = {name: value for name, value in (headers or {}).items() if name.lower() != "accept-encoding"}
        answer = self._session.request(
            method, uri, data=data or b"", headers={**sent, "Authorization": f"Bearer {_TOKEN.get()}"}
        )
        told = {name.lower(): value for name, value in answer.headers.items()}
        return Response({**told, "status": str(answer.status_code)}), answer.content

    def close(self) -> None:
        """The session is the client's."""


def upload(data: bytes, whole_bytes_max: int) -> Any:
    """The bytes of a file for the library: beside its metadata in one request, or behind them in a second one."""
    from googleapiclient.http import MediaIoBaseUpload

    # In one request the library copies the bytes several times to find a boundary. By its chunk size for "all", -1, it
    # names another part than it sends where Google took less than all.
    return MediaIoBaseUpload(
        io.BytesIO(data),
        "application/octet-stream",
        chunksize=max(1, len(data)),
        resumable=len(data) > whole_bytes_max,
    )


def _reason(error: Any) -> str:
    """The first reason that an error of Google's gives, "" for none."""
    try:
        found = json.loads(error.content)["error"]
        reason = found["errors"][0]["reason"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return reason if isinstance(reason, str) else ""


def _of_answer(attempt: str, bounds: Bounds, error: Any, login_step: str) -> BackendError:
    status, reason = int(error.resp.status), _reason(error)
    if status == 401:
        raise RenewableError from None
    if status in {429, 503} or reason in _BUSY:
        return _SAYS.busy(attempt, bounds)
    if reason in _DAY:
        return _SAYS.busy(attempt, bounds, MOST_S)
    if reason in _FULL:
        why, step = _FULL[reason]
        return FullError(f"{attempt}: {why}", next_step=step)
    if "pageToken" in str(getattr(error, "uri", "")) and status in {400, 404, 410}:
        return NotFoundError(f"{attempt}: this mark is too old")
    if status == 404:
        return NotFoundError(f"{attempt}: it is not there")
    if status >= 500:
        return BackendError(f"{attempt}: Google Drive has an error of its own ({status})", next_step="Try again later.")
    if status in {407, 511} or 300 <= status < 400 or (not reason and status != 403):
        return _SAYS.other(attempt, bounds)
    if reason in _REFUSED:
        why, step = _REFUSED[reason]
        return RefusedError(f"{attempt}: {why}", next_step=step.format(login=login_step))
    words = reason[:60] if reason.isascii() and reason.isalnum() else f"{status}"
    return RefusedError(f"{attempt}: Google Drive refuses it ({words})", next_step="Check the rights of the account.")
