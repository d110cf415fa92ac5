"""Requests to one WebDAV server, by `requests`: kept connections, one attempt, bounded answers, no redirect followed.

What the library would read from its surroundings by itself at every request is read once, here: proxies and the
certificates to trust. It reads no netrc of its own, and retries nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final

from metasync.backends._shared.http import proxies_for
from metasync.backends.webdav.login import Showing
from metasync.errors import RefusedError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

_CONNECTIONS_MAX: Final = 32  # kept; beyond that they are closed after use
_PIECE_BYTES: Final = 1 << 18
_DRAINED_BYTES_MAX: Final = 1 << 16  # of an answer nobody wants, so that its connection can be kept
_READ_FIRST_BYTES_MAX: Final = 1 << 14  # so much of a request every server reads before it refuses it
_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


class NoAnswerError(Exception):
    """There was no answer, or not all of it; `__cause__` is what the library raised."""


class Answer:
    """The head of an answer, and its body as far as it is asked for. Leaving its block gives the connection back."""

    def __init__(self, response: Any, failures: tuple[type[BaseException], ...], until: float, sent_bytes: int) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._failures = failures
        self._until = until
        # What a server refused without having read it would be taken for the next request.
        self._is_in_order = self.status < 400 or sent_bytes <= _READ_FIRST_BYTES_MAX

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raw = self._response.raw
        kept = self._is_in_order and (kind is None or issubclass(kind, Exception))  # such as that it is not there
        if kept and not raw.closed and 0 <= (raw.length_remaining or 0) <= _DRAINED_BYTES_MAX and self._drained():
            raw.release_conn()
            return
        raw.close()
        raw.release_conn()

    @property
    def size(self) -> int | None:
        """How many bytes its body has, as the head says."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    @property
    def is_page(self) -> bool:
        """Whether it says of itself that it is HTML."""
        return self.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml"))

    @property
    def ends_for_sure(self) -> bool:
        """Whether a body that was cut short would be noticed."""
        return self.size is not None or "chunked" in self.headers.get("Transfer-Encoding", "").lower()

    def pieces(self) -> Iterator[bytes]:
        """The body. `NoAnswerError` if it breaks off or takes too long."""
        while piece := self._next():
            yield piece

    def _next(self) -> bytes:
        """What came of the body since; b"" at its end. No more is waited for: a server may send a byte a minute."""
        raw = self._response.raw
        read = getattr(raw, "read1", raw.read)  # urllib3 1 has no other
        try:
            piece: bytes = read(_PIECE_BYTES, decode_content=False)
            if time.monotonic() > self._until:
                raise TimeoutError
        except self._failures as error:
            self._is_in_order = False
            raise NoAnswerError from error
        return piece

    def _drained(self) -> bool:
        """Whether the rest of the body could be read. False: it is long, or it broke off."""
        left = _DRAINED_BYTES_MAX
        try:
            while left > 0 and (piece := self._next()):
                left -= len(piece)
        except NoAnswerError:
            return False
        return left > 0


class Connection:
    """Connections to one server, for one login. For several threads."""

    def __init__(self, server: str, showing: Showing) -> None:
        """`server`: scheme, host and port, as in https://host:8443."""
        import requests
        import urllib3
        from requests.adapters import HTTPAdapter

        self._requests = requests
        self._failures: tuple[type[BaseException], ...] = (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            ValueError,  # a head that http.client cannot take apart
        )
        self._server = server
        self._showing = showing
        self._proxies = proxies_for(server)
        self._verify = _certificates()
        # Not a `Session`: it takes a redirect's target apart and reads all of its body even where it does not follow.
        settings: dict[str, Any] = {"pool_connections": 1, "pool_maxsize": _CONNECTIONS_MAX, "max_retries": 0}
        self._new_adapter: Callable[[], Any] = partial(HTTPAdapter, **settings)
        self._adapter, self._process = self._new_adapter(), os.getpid()
        self._cookies = requests.cookies.RequestsCookieJar()
        self._closed = False

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], data: bytes | None, down_bytes_max: int
    ) -> Answer:
        """One request for `target`, an encoded path; a second one only to show the login as the server wants it.

        `NoAnswerError` if there is no answer.
        """
        assert not self._closed, "the backend was closed"
        sent = self._showing.header(method, target)
        answer = self._send(method, target, headers, data, down_bytes_max, sent)
        if answer.status == 401 and self._showing.asked(_values(answer, "WWW-Authenticate"), sent):
            with answer:
                sent = self._showing.header(method, target)
            return self._send(method, target, headers, data, down_bytes_max, sent)
        return answer

    def close(self) -> None:
        self._closed = True
        self._adapter.close()

    def _send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: bytes | None,
        down_bytes_max: int,
        authorization: str | None,
    ) -> Answer:
        if self._process != os.getpid():  # forked: on the old connections each process would hear the other's answers
            self._adapter, self._process = self._new_adapter(), os.getpid()
        large = max(len(data or b""), down_bytes_max) > SMALL_BYTES_MAX
        timeout_s = LARGE_TIMEOUT_S if large else SMALL_TIMEOUT_S
        request = self._requests.PreparedRequest()
        request.method = method
        request.url = self._server + target
        # Made by hand: `prepare` would take the address apart and encode it anew, for half of a small call's time.
        request.headers = self._requests.structures.CaseInsensitiveDict(
            {"User-Agent": "metasync", "Accept": "*/*", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        )
        request.headers.update(headers)
        request.hooks = {"response": []}
        if data is not None:
            request.body = data
            request.headers["Content-Length"] = str(len(data))
        if authorization is not None:
            request.headers["Authorization"] = authorization
        if self._cookies:  # Nextcloud begins a session for each request that brings none
            request.prepare_cookies(self._cookies)
        until = time.monotonic() + timeout_s
        try:
            response = self._adapter.send(
                request,
                stream=True,
                timeout=(CONNECT_TIMEOUT_S, timeout_s),
                verify=self._verify,
                proxies=self._proxies,
            )
        except self._failures as error:
            raise NoAnswerError from error
        if response.status_code < 200:  # such as 103: what it announces would be read as the answer to another request
            response.raw.close()
            raise NoAnswerError
        if response.cookies:
            self._cookies.update(response.cookies)
        return Answer(response, self._failures, until, len(data or b""))


def _certificates() -> str | bool:
    """Where the certificates to trust are; True: those that come with the library."""
    for name in _CA_VARIABLES:
        path = os.environ.get(name)
        if path:
            if not os.path.exists(path):
                raise RefusedError(f"{name} names a file that is not there", next_step=f"Check {name}={path[:200]}")
            return path
    return True


def _values(answer: Answer, name: str) -> list[str]:
    """All lines of a header; `requests` joins them, and a challenge has commas of its own."""
    return list(answer._response.raw.headers.getlist(name))


def cause(error: NoAnswerError) -> BaseException:
    return error.__cause__ or error
