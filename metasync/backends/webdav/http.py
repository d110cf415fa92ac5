"""Requests to one WebDAV server, by `requests`, and what refusals mean. One attempt each, and no redirect followed.

Proxies and trusted certificates, which the library would read anew for every request, are read once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from metasync.backends._shared.http import SILENT_S, proxies_for, retry_after_s
from metasync.backends.webdav.login import Showing
from metasync.errors import BackendError, FullError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

_QUOTED_CHARS_MAX: Final = 200

_AGAIN: Final = "Try again later."
_ADDRESS: Final = (
    "Check the URL. Nextcloud: webdav://HOST/remote.php/dav/files/NAME/FOLDER; ownCloud: the same;"
    " Koofr: webdav://app.koofr.net/dav/Koofr/FOLDER."
)
_PROXY: Final = "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY in the environment."
STEPS: Final = {
    "clock": "Check this machine's clock first, then the server's certificate.",
    "signer": "Name a file with the certificate of whoever signed it: REQUESTS_CA_BUNDLE=/path/ca.pem.",
    "name": "Check the host in the URL.",
    "tls": "Without TLS the URL begins with webdav+http://.",
    "proxy": _PROXY,
    "network": "Check the URL and the network.",
}
"""What to do where there was no answer, for `no_answer`."""


def refusal(status: int, headers: Mapping[str, str], attempt: str, url: str, login_hint: str) -> BackendError:
    """The error of the contract for a failure other than 404. It never quotes a body, which may echo what was sent.

    `attempt`: "cannot put a/b in webdav://...".
    """
    said = f"{attempt}: the server answered {status}"
    if status == 401:
        return RefusedError(f"{attempt}: the server refused the login (401)", next_step=login_hint)
    if status == 403:
        return RefusedError(
            f"{said}: the login has no right to do this",
            next_step="Give it the right to write there (a shared folder may be read-only), or name another folder.",
        )
    if status < 300:  # 207 to a MOVE or DELETE: done in part
        return BackendError(f"{said}, which confirms nothing", next_step=_AGAIN)
    if status < 400:
        return _redirected(headers, attempt, url)
    if status == 407:
        return UnreachableError(f"{attempt}: the proxy asks for a login (407)", next_step=_PROXY)
    if status in {405, 501}:
        return RefusedError(f"{said}: what is at this address is no WebDAV folder", next_step=_ADDRESS)
    if status in {413, 414}:
        return RefusedError(
            f"{said}: it takes no request of this size",
            next_step="Its administrator can raise the limit (nginx: client_max_body_size, Apache: LimitRequestBody,"
            " PHP: post_max_size); MetaSync sends up to 64 MiB in one request.",
        )
    if status == 423:
        return BackendError(f"{said}: somebody has it locked", next_step=_AGAIN, retry_after_s=_retry_after_s(headers))
    if status == 507:
        return no_room(attempt)
    if status in {429, 503}:
        why = "it is in maintenance" if headers.get("X-Nextcloud-Maintenance-Mode") else "it asks for fewer requests"
        after_s = _retry_after_s(headers)
        return BackendError(f"{said}; {why}", next_step=_AGAIN, retry_after_s=SILENT_S if after_s is None else after_s)
    if status in {408, 409, 412, 425, 499} or status >= 500:
        return BackendError(said, next_step=_AGAIN, retry_after_s=_retry_after_s(headers))
    return BackendError(said, next_step=_ADDRESS, retryable=False)


def not_the_server(attempt: str) -> UnreachableError:
    """For a success that is none: a network's login page comes with status 200, over plain http at least."""
    return UnreachableError(
        f"{attempt}: what answered is not the WebDAV server", next_step=f"Log in to the network, if it asks. {_ADDRESS}"
    )


def no_room(attempt: str) -> FullError:
    return FullError(f"{attempt}: no space or quota is left", next_step="Free some space, or add a backend.")


def no_folder(attempt: str) -> RefusedError:
    """For an address at which there is something, but no folder."""
    return RefusedError(f"{attempt}: what is at this address is no folder, says the server", next_step=_ADDRESS)


def _redirected(headers: Mapping[str, str], attempt: str, url: str) -> BackendError:
    """Never followed: the login would go along. Told, as far as it is an address."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, headers.get("Location", "")))
        host, same = there.hostname or "", (there.hostname or "") == here.hostname
        port = f":{there.port}" if there.port else ""
    except ValueError:
        host, same, port = "", False, ""
    shown = "".join(c if c.isprintable() else "?" for c in f"{host}{port}{there.path if same else ''}")
    shown = shown[:_QUOTED_CHARS_MAX]
    if same and shown:
        return RefusedError(
            f"{attempt}: the address is now {there.scheme}://{shown}, says the server",
            next_step="Give that address if it is the folder's: `metasync backend link NAME webdav://...`."
            " If it is a page to log in at, the URL is not that of a WebDAV folder.",
        )
    return UnreachableError(
        f"{attempt}: it was sent on to another host{f', {shown}' if shown else ''}, which is not followed",
        next_step=f"Log in to the network, if it asks. {_ADDRESS}",
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    return retry_after_s(headers.get("Retry-After"), headers.get("Date"))


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
        kept = kept and not raw.closed and 0 <= (raw.length_remaining or 0) <= _DRAINED_BYTES_MAX and self._drained()
        if not kept:
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
        return iter(self._next, b"")

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
        """Makes one request for `target`, an encoded path; a second one only to show the login. `NoAnswerError`."""
        assert not self._closed, "the backend was closed"
        sent = self._showing.header(method, target)
        answer = self._send(method, target, headers, data, down_bytes_max, sent)
        # All lines of the header; `requests` joins them, and a challenge has commas of its own.
        challenges = answer._response.raw.headers.getlist("WWW-Authenticate") if answer.status == 401 else []
        if answer.status == 401 and self._showing.asked(challenges, sent):
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
