"""Requests to Microsoft Graph, over `wire`: with a token of the login's, and what refusals mean.

The token goes to Graph's own server alone. Contents are read, and large ones written, at addresses that Graph gives
out and that need no login (docs of driveItem: content, createUploadSession). Those are asked without it, over TLS only,
and are secrets themselves, so that no message names one. No redirect is followed otherwise.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from metasync.backends._shared.credentials import is_loopback
from metasync.backends._shared.http import PROXY_STEP, SILENT_S, authorities, retry_after_s
from metasync.backends._shared.logins.oauth import endpoint_of
from metasync.backends._shared.urls import server_address
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from metasync.backends._shared.logins import Login
    from metasync.backends._shared.wire import Answer, Reply, Wire

_HOST: Final = "graph.microsoft.com"
ANSWER_BYTES_MAX: Final = 16 << 20  # a page has 1,000 items of some 600 bytes
_CODES_MAX: Final = 8  # an error lies in another one, and that in a third
_CODE_CHARS_MAX: Final = 64
_WIRES_MAX: Final = 8  # servers of contents: one or two for an account, of names that change
_DIGEST_BYTES: Final = 20
_MARK_CHARS_MAX: Final = 64

_AGAIN: Final = "Try again later."
_ADDRESS: Final = "Check the network: it may ask for a login. Unset METASYNC_ONEDRIVE_ENDPOINT, if it is set."
_TLS: Final = "Check this machine's clock, and what inspects TLS in this network."
_FULL: Final = "Empty OneDrive's recycle bin, free some space, or add a backend."
STEPS: Final = {
    **dict.fromkeys(("clock", "signer", "name", "tls"), _TLS),
    "network": "Check the network.",
}
"""What to do where there was no answer, for `no_answer`."""


class Found(NamedTuple):
    """What Graph tells of a file or folder (its driveItem); "" and None where it does not tell.

    size     in bytes; None of a folder
    digest   the quickXorHash
    changed  the eTag, which is another after each write
    """

    item_id: str
    name: str
    size: int | None
    digest: bytes | None
    changed: str
    parent_id: str
    drive_id: str
    is_folder: bool
    is_gone: bool


class Graph:
    """Graph as one login sees it. Thread-safe; its connections are kept until `close`."""

    def __init__(self, login: Login, environ: Mapping[str, str] = os.environ) -> None:
        """`RefusedError` for a stand-in that the environment names and that cannot be asked."""
        endpoint = endpoint_of("onedrive", environ)
        self._base = f"{endpoint}/{_HOST}" if endpoint else f"https://{_HOST}"
        parts = urlsplit(self._base)
        self._server, self._above = f"{parts.scheme}://{parts.netloc}", parts.path
        self._may_be_plain = parts.scheme == "http"  # a stand-in on this machine, whose contents have no TLS
        self._login = login
        self._authorities = authorities(environ, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
        self._wires: dict[str, Wire] = {}
        self._lock = threading.Lock()
        self._closed = False

    def ask(
        self,
        method: str,
        target: str,
        attempt: str,
        body: bytes = b"",
        kind: str = "application/json",
        *,
        passes_403: bool = False,
    ) -> Answer:
        """A request with the login's token, and its whole answer; once more with another token after a 401.

        `target`: path and query. `kind`: the body's. `RefusedError` if Graph does not take the login, or answers
        403 for a login with too few rights; `passes_403`: the caller judges such an answer.
        """
        wire = self._to(self._server)
        token = self._login.token()
        for last in (False, True):
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Accept-Encoding": "identity"}
            if body or method in ("PUT", "POST"):
                headers["Content-Type"] = kind
            answer = wire.ask(method, self._above + target, headers, body, attempt, answer_bytes_max=ANSWER_BYTES_MAX)
            if answer.status == 403 and not passes_403:
                raise refused(answer, attempt, self._login.step)
            if answer.status != 401 or answer.is_page:
                return answer
            if not last:
                token = self._login.renewed(token)
        raise RefusedError(f"{attempt}: OneDrive does not take the login (401)", next_step=self._login.step)

    @contextlib.contextmanager
    def at(
        self, method: str, url: str, attempt: str, headers: Mapping[str, str], body: bytes = b"", *, within_s: int
    ) -> Iterator[Reply]:
        """A request without the token, at an address that Graph gave out. The answer's body is unread."""
        parts = server_address(url.partition("?")[0])
        if parts is None or (
            parts.scheme != "https" and not (self._may_be_plain and is_loopback(parts.hostname or ""))
        ):
            raise not_graph(attempt, "it leads to an address without TLS, or to none")
        server = f"{parts.scheme}://{parts.netloc}"
        target = url[len(server) :]
        sent = {"Accept-Encoding": "identity", **headers}
        with self._to(server).exchange(method, target or "/", sent, body, attempt, within_s=within_s) as reply:
            yield reply

    def next_target(self, link: object, attempt: str) -> str:
        """Path and query of a link to a further page, which leads to Graph's own server or is none of its."""
        text = link if isinstance(link, str) else ""
        if not text.startswith(f"{self._base}/v1.0/") or not (text.isascii() and text.isprintable()) or " " in text:
            raise not_graph(attempt, "a next page that is elsewhere")
        return text[len(self._base) :]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            wires = [*self._wires.values()]
        for wire in wires:
            wire.close()

    def _to(self, server: str) -> Wire:
        from metasync.backends._shared.wire import Wire

        with self._lock:
            assert not self._closed, "the backend was closed"
            wire = self._wires.pop(server, None)
            if wire is None:
                wire = Wire(server, steps=STEPS, authorities=self._authorities)
                others = [name for name in self._wires if name != self._server]
                if len(others) >= _WIRES_MAX:
                    del self._wires[others[0]]  # used least lately; its connections close when nobody uses it any more
            self._wires[server] = wire
            return wire


def object_of(answer: Answer, attempt: str, *statuses: int) -> dict[str, Any]:
    """The JSON object of an answer with one of these statuses. Else the error of the contract (`refused`)."""
    if answer.status not in statuses:
        raise refused(answer, attempt)
    found = _json(answer)
    if found is None:
        raise not_graph(attempt, f"a {answer.status} of another kind")
    return found


def _json(answer: Answer) -> dict[str, Any] | None:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def codes(answer: Answer) -> frozenset[str]:
    """The words that Graph has for what is wrong, of the error and those that lie in it; none if it is not Graph's."""
    found: set[str] = set()
    error: object = (_json(answer) or {}).get("error")
    for _ in range(_CODES_MAX):
        if not isinstance(error, dict):
            break
        code = error.get("code")
        if isinstance(code, str):
            found.add(code[:_CODE_CHARS_MAX])
        error = error.get("innererror") or error.get("innerError")
    return frozenset(found)


_FULL_CODES: Final = frozenset({"quotaLimitReached", "insufficientStorage"})
_SLOWER_CODES: Final = frozenset({"activityLimitReached", "throttledRequest", "tooManyRequests"})
_LARGE_CODES: Final = frozenset({"maxFileSizeExceeded", "maxStreamSizeExceeded"})
_NONE_CODES: Final = frozenset({"itemNotFound"})


def is_absent(answer: Answer) -> bool:
    """Whether Graph says that there is no such item. A 404 without its word is something else's."""
    return answer.status == 404 and bool(codes(answer) & _NONE_CODES)


def is_taken(answer: Answer) -> bool:
    """Whether Graph says that the name is taken. Other conflicts pass: somebody writes there (`resourceModified`)."""
    return answer.status == 409 and "nameAlreadyExists" in codes(answer)


def refused(answer: Answer, attempt: str, step: str = "Link it anew.") -> BackendError:
    """The error of the contract for an answer that is no success. It quotes no text of the answer, only its code.

    `step`: what mends the login, where the answer may be for want of rights.
    """
    status, said = answer.status, codes(answer)
    word = next((code for code in sorted(said) if code.isascii() and code.isalnum()), "")
    what = f"{attempt}: OneDrive answered {status}{f' ({word})' if word else ''}"
    after_s = retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))
    if status == 407:
        return UnreachableError(f"{attempt}: the proxy asks for a login", next_step=PROXY_STEP)
    if status < 400:
        return not_graph(attempt, f"a {status} where Graph has another answer")
    if is_absent(answer):
        return NotFoundError(f"{attempt}: it is not there")
    if status == 507 or said & _FULL_CODES:
        return FullError(f"{attempt}: no space or quota is left", next_step=_FULL)
    if status in (429, 503, 509) or said & _SLOWER_CODES:
        after_s = SILENT_S if after_s is None else after_s
        return BackendError(f"{what}; it asks for fewer requests", next_step=_AGAIN, retry_after_s=after_s)
    if not said and status in (401, 403, 404):  # what stands between does not speak Graph's language
        return not_graph(attempt, f"a {status} without a reason")
    if status == 404:
        return UnreachableError(what, next_step="Check that the account has a OneDrive: https://onedrive.live.com")
    if status == 403:
        return RefusedError(what, next_step=f"The account may be full or locked. If not: {step}")
    if status == 413 or said & _LARGE_CODES:
        return RefusedError(f"{what}; it is too large for OneDrive")
    if status in (408, 409, 410, 412, 423) or status >= 500:
        return BackendError(what, next_step=_AGAIN, retry_after_s=after_s)
    return BackendError(what, retryable=False)


def not_graph(attempt: str, what: str) -> UnreachableError:
    """`what` answered can't be the server that is meant."""
    return UnreachableError(f"{attempt}: what answered is not OneDrive ({what})", next_step=_ADDRESS)


def rows_in(page: Mapping[str, Any], attempt: str) -> list[Found]:
    """The driveItems of a page, each with some name. `UnreachableError` for what is none: it would be missing."""
    rows = page.get("value")
    if not isinstance(rows, list):
        raise not_graph(attempt, "a page without items")
    found = [found_in(row) for row in rows if isinstance(row, dict) and ("deleted" in row or _has_name(row))]
    if len(found) != len(rows):
        raise not_graph(attempt, "a page with items that are none")
    return [one for one in found if one is not None]


def _has_name(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("name"), str)


def found_in(item: object) -> Found | None:
    """A driveItem; None if it is none."""
    if not isinstance(item, dict):
        return None
    size, file, parent = item.get("size"), item.get("file"), item.get("parentReference")
    is_folder = isinstance(item.get("folder"), dict)
    parent = parent if isinstance(parent, dict) else {}
    if is_folder or type(size) is not int or not 0 <= size < 1 << 63:
        size = None
    return Found(
        item_id=_text(item.get("id")),
        name=_text(item.get("name")),
        size=size,
        digest=_digest(file.get("hashes")) if isinstance(file, dict) else None,
        changed=_text(item.get("eTag"))[:_MARK_CHARS_MAX],
        parent_id=_text(parent.get("id")),
        drive_id=_text(parent.get("driveId")),
        is_folder=is_folder,
        is_gone=isinstance(item.get("deleted"), dict),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 1024 and value.isprintable() else ""


def _digest(hashes: object) -> bytes | None:
    text = hashes.get("quickXorHash") if isinstance(hashes, dict) else None
    if not isinstance(text, str):
        return None
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == _DIGEST_BYTES else None
