"""HTTP/1.1 to one server, over connections that are kept: one request, one bounded answer. All providers' but SFTP's.

It follows no redirect, repeats no request, keeps no cookie and reads no netrc. What a server may send in answer to one
request, head, chunks and trailers together, is bounded in bytes and in time below the HTTP of Python's own library, so
that no form of an endless answer passes. `http.client` alone is used. Requests and urllib3 take answers without an end,
and more CPU: 0.18 ms a small request where this takes 0.05, 5 ms for a GET of 4 MiB where this takes 0.8, and 90 ms to
be imported where this takes 40.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import os
import re
import select
import socket
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from metasync.backends._shared.http import PROXY_STEP, ProxyError, is_page, no_answer
from metasync.errors import BackendError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

if TYPE_CHECKING:
    from metasync.backends._shared.proxies import InnerTls, Proxy

    Line = socket.socket | InnerTls

HEAD_BYTES_MAX: Final = 1 << 16  # of an answer; servers' own have 1 KiB
REFUSAL_BYTES_MAX: Final = 1 << 14  # of the body of a refusal; the longest that say anything have 2 KiB
_REST_BYTES_MAX: Final = 1 << 16  # of a body nobody wants, which is read so that the connection can be kept
_READ_FIRST_BYTES_MAX: Final = 1 << 14  # so much of a request every server reads before it refuses it
_PIECE_BYTES: Final = 1 << 18
_BUFFER_BYTES: Final = 1 << 16
_IDLE_MAX: Final = 32  # as many calls as the runtime ever has under way at one backend
_IDLE_S: Final = 50.0  # servers, and what stands before them, forget a connection after a minute, some silently
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_CERTIFICATE = "Check the endpoint's name. The certificate of an authority of your own goes into SSL_CERT_FILE."
STEPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("clock", "signer", "name"), _CERTIFICATE),
    **dict.fromkeys(("tls", "network"), "Check the endpoint and the network."),
}
"""What to do where an object store gave no answer (`no_answer`)."""
_AGENT = "metasync"
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `headers` by their names in small letters, the last of several alike."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def is_page(self) -> bool:
        """Something for people to read, where a store has an object or nothing."""
        return is_page(self.headers)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class _Bounded(io.RawIOBase):
    """What a server sends, up to so many bytes and until so late. Beyond, it is as if the connection had broken."""

    def __init__(self, sock: Line, until: float) -> None:
        self._sock = sock
        self._until = until
        self.left = HEAD_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if time.monotonic() > self._until:
            raise TimeoutError("timed out")
        if self.left <= 0:
            raise TooLongError
        count: int = self._sock.recv_into(memoryview(buffer)[: self.left])
        self.left -= count
        return count

    def makefile(self, _mode: str) -> io.BufferedReader:
        """For `http.client`, which takes it for a socket."""
        return io.BufferedReader(self, _BUFFER_BYTES)


class TooLongError(Exception):
    """A server sends more than any answer of its kind has."""


class Reply:
    """An answer whose head was read. `read` may follow, in pieces. `headers` as an `Answer` has them."""

    def __init__(self, response: http.client.HTTPResponse, source: _Bounded) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self._response = response
        self._source = source

    @property
    def size(self) -> int | None:
        """How long the body is to be; None where the head does not say."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None

    @property
    def part(self) -> tuple[int, int, int] | None:
        """What part of an object Content-Range says this is: first byte, the one behind the last, the object's size."""
        found = _RANGE.fullmatch(self.headers.get("content-range", ""))
        return (int(found[1]), int(found[2]) + 1, int(found[3])) if found is not None else None

    @property
    def is_page(self) -> bool:
        return is_page(self.headers)

    @property
    def ends_for_sure(self) -> bool:
        """Whether a body that was cut short would be noticed."""
        return self.size is not None or self._response.chunked

    def each(self, name: str) -> list[str]:
        """The values of all headers of a name."""
        return self._response.headers.get_all(name, [])

    def read(self, most: int) -> bytes:
        """The body, as far as it has `most` bytes. `ConnectionError` if it breaks off."""
        response, parts, left = self._response, [], most
        while left:
            count = left if response.length is not None else min(left, _PIECE_BYTES)
            # A chunk's head has never as much as the chunk; what stands behind the last chunk has no body's length.
            self._source.left = 2 * count + HEAD_BYTES_MAX
            data = response.read(count)
            if len(data) < count and response.length:
                raise ConnectionError
            if not data:
                break
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self) -> Iterator[bytes]:
        """The body."""
        return iter(lambda: self.read(_PIECE_BYTES), b"")

    def answer(self, most: int = REFUSAL_BYTES_MAX) -> Answer:
        """The whole, with `most` bytes of its body."""
        return Answer(self.status, self.headers, self.read(most))

    def ends(self) -> bool:
        """Whether the body is at its end or near it, and the server takes another request on this connection."""
        response = self._response
        try:
            if not response.isclosed() and (response.length or 0) <= _REST_BYTES_MAX:
                self.read(_REST_BYTES_MAX)
        except (OSError, http.client.HTTPException, TooLongError):
            return False
        return response.isclosed() and not response.will_close and not response.length


class BrokenOffError(UnreachableError):
    """An answer began, and did not come to its end."""


class Wire:
    """Requests to one server, from several threads, each over a connection of its own. `close` it."""

    def __init__(
        self,
        url: str,
        *,
        steps: Mapping[str, str] = STEPS,
        authorities: str = "",
        may_proxy: bool = True,
        ahead: int = 0,
    ) -> None:
        """`url`: scheme, host and port of the server. `RefusedError` if the environment's proxy cannot be used.

        `steps`: what to do where there is no answer (`no_answer`). `authorities`: a file or folder with the
        certificates to accept; "": the system's. `may_proxy`: whether a proxy of the environment is used. `ahead`: so
        many connections are opened at once, side by side, with the first request or by `dial`.
        """
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        self._server = parts.hostname or "", parts.port or (443 if self._is_secure else 80)
        self.host = parts.netloc
        self._proxy: Proxy | None = None
        # On a Mac the system's settings may name one, too.
        if may_proxy and (sys.platform == "darwin" or any(os.environ.get(name) for name in _PROXIES)):
            from metasync.backends._shared import proxies  # 8 ms, and few have one

            self._proxy = proxies.proxy_for(parts)
        is_told_all = self._proxy is not None and self._proxy.speaks_http and not self._is_secure
        self._told = self._proxy if is_told_all else None
        self._steps = steps
        self._authorities = authorities
        self._idle: list[tuple[float, Line]] = []
        weakref.finalize(self, _close_all, self._idle)  # of a backend that nobody closed
        self._ahead = ahead if self._proxy is None else 0  # a proxy is asked for no line that nobody wants
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """Begins anew in this process, with no connection."""
        self._process = os.getpid()
        self._lock = threading.Condition()
        self._dials = 0  # connections that are being opened ahead
        self._waiting = 0  # requests that wait for one of them
        self._has_dialled = self._ahead == 0
        self._failure: Exception | None = None  # why the last one did not come about
        self._has_come = False  # whether one did: then a failure may be of a server that takes few at once

    @contextlib.contextmanager
    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        attempt: str,
        *,
        within_s: int | None = None,
    ) -> Iterator[Reply]:
        """One request, its answer's body unread. `UnreachableError` if there is none, or it breaks off, or has no end.

        `target`: path and query, as they are to be sent.
        `within_s`: how long it may take, and the server be silent; else silence ends a small request, and a large one
        may be written, and looked at, for as long as a line takes.
        """
        silent_s = within_s or (LARGE_TIMEOUT_S if len(body) > SMALL_BYTES_MAX else SMALL_TIMEOUT_S)
        until = time.monotonic() + (within_s or LARGE_TIMEOUT_S)
        sock: Line | None = None
        reply: Reply | None = None
        kept = False
        try:
            sock = self._take() or self._connect()
            sock.settimeout(silent_s)
            broken = self._send(sock, method, target, headers, body)
            source = _Bounded(sock, until)
            with contextlib.closing(_response(source, method)) as response:
                try:
                    response.begin()
                except (OSError, http.client.HTTPException) as error:
                    raise broken or error from None  # a server may say no, and close, while a body is being sent
                if response.status < 200:  # what such an answer announces would be read as that to the next request
                    raise ConnectionError
                reply = Reply(response, source)
                is_sound = False
                try:
                    yield reply
                    is_sound = True
                except BackendError:  # what the caller makes of the answer, which may be as it should be
                    is_sound = True
                    raise
                finally:
                    # What a server refused without having read it would be taken for the next request.
                    was_read = broken is None and (reply.status < 300 or len(body) <= _READ_FIRST_BYTES_MAX)
                    kept = is_sound and was_read and reply.ends()
        except BackendError:
            raise
        except TooLongError:
            raise UnreachableError(
                f"{attempt}: the server sends more than any answer to this has",
                next_step="Check the endpoint: what is there is not the server that is meant, or it is broken.",
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            failed = self._no_answer(error, attempt)
            if reply is not None:
                failed = BrokenOffError(failed.message, next_step=failed.next_step)
            # Of what cannot be sent the exception holds the text, with what is secret in it.
            raise failed from None if isinstance(error, ProxyError | ValueError) else error
        finally:
            if sock is not None:
                self._give(sock, kept=kept)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, attempt: str,
        *, answer_bytes_max: int = REFUSAL_BYTES_MAX,
    ) -> Answer:  # fmt: skip
        """One request, and its whole answer; a body longer than `answer_bytes_max` is an error of its kind."""
        with self.exchange(method, target, headers, body, attempt) as reply:
            answer = reply.answer(answer_bytes_max)
            if len(answer.body) == answer_bytes_max and reply.status < 300:
                raise TooLongError
            return answer

    def dial(self) -> None:
        """Begins to open the connections that requests soon to come will want, once. A failure is theirs to tell."""
        with self._lock:
            if self._has_dialled or self._closed:
                return
            self._has_dialled, self._dials = True, self._ahead
        for _ in range(self._ahead):
            threading.Thread(target=self._dialled, args=(self._lock,), name="metasync-dial", daemon=True).start()

    def _dialled(self, lock: threading.Condition) -> None:
        """Opens one connection ahead. `lock`: that of the process in which this began."""
        sock: Line | None = None
        failure: Exception | None = None
        try:
            sock = self._connect()
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            failure = error
        with lock:
            self._dials -= 1
            self._failure = failure or self._failure
            self._has_come |= failure is None
            if sock is not None and not self._closed:
                self._idle.append((time.monotonic(), sock))
                sock = None
            lock.notify_all()
        if sock is not None:
            sock.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            _close_all(self._idle)
            self._lock.notify_all()

    def _send(
        self, sock: Line, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> ConnectionError | None:
        """Sends a request; -> the error where the server closed before it was through."""
        above = f"http://{self.host}" if self._told is not None else ""
        head = [f"{method} {above}{target} HTTP/1.1", f"Host: {self.host}", f"User-Agent: {_AGENT}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in {"PUT", "POST"}:
            head.append(f"Content-Length: {len(body)}")
        if self._told is not None:
            head += [f"{name}: {value}" for name, value in self._told.headers.items()]
        if any(value != value.strip() for value in headers.values()) or any("\r" in h or "\n" in h for h in head):
            raise ValueError("a line end in a header, or a space around it")
        data = "\r\n".join(head).encode("latin-1") + b"\r\n\r\n"
        try:
            if len(body) <= SMALL_BYTES_MAX:
                sock.sendall(data + body)  # at once: two packets would wait for each other
            else:
                sock.sendall(data)
                sock.sendall(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            return error
        return None

    def _take(self) -> Line | None:
        """A connection that was kept, or that is being opened ahead; None if there is none, or none fit for use."""
        if self._process != os.getpid():  # forked: on the old connections each process would hear the other's answers
            self._begin()
            _close_all(self._idle)
        self.dial()
        with self._lock:
            assert not self._closed, "the backend was closed"
            found = self._fit()
            has_waited = False
            while found is None and self._dials > self._waiting:
                self._waiting, has_waited = self._waiting + 1, True
                self._lock.wait()
                self._waiting -= 1
                if self._closed:
                    raise ConnectionAbortedError
                found = self._fit()
            if found is None and has_waited and self._failure is not None and not self._has_come:
                raise self._failure  # another try would take as long, and end like this
            return found

    def _fit(self) -> Line | None:
        """Takes an idle connection that is fit for use, and closes others that it meets. The lock is held."""
        while self._idle:
            since, sock = self._idle.pop()
            if time.monotonic() - since < _IDLE_S and not _has_word(sock):
                return sock
            sock.close()
        return None

    def _connect(self) -> Line:
        """A new connection, through the proxy where there is one. `OSError`."""
        if self._proxy is None:
            sock = socket.create_connection(self._server, CONNECT_TIMEOUT_S)
        else:
            sock = self._proxy.dial(*self._server, self._context)
        try:
            if self._proxy is not None and self._proxy.speaks_http and self._is_secure:
                self._tunnel(sock, self._proxy)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._is_secure:
                return sock
            host = self._server[0]
            if not isinstance(sock, ssl.SSLSocket):
                return self._context().wrap_socket(sock, server_hostname=host)
            from metasync.backends._shared.proxies import InnerTls

            return InnerTls(sock, self._context(), host)
        except BaseException:
            sock.close()
            raise

    def _tunnel(self, sock: Line, proxy: Proxy) -> None:
        """Has a proxy lead the connection on to the server. `ProxyError` if it does not."""
        host = "[{}]:{}" if ":" in self._server[0] else "{}:{}"
        place = host.format(*self._server)
        head = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", *(f"{n}: {v}" for n, v in proxy.headers.items())]
        sock.sendall("\r\n".join(head).encode("latin-1") + b"\r\n\r\n")
        with contextlib.closing(_response(_Bounded(sock, time.monotonic() + SMALL_TIMEOUT_S), "CONNECT")) as said:
            said.begin()
            if said.status == 407:
                raise ProxyError("the proxy asks for a login")
            if not 200 <= said.status < 300:
                raise ProxyError("the proxy let nothing through")

    def _context(self) -> ssl.SSLContext:
        return _context(self._authorities, os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))

    def _give(self, sock: Line, *, kept: bool) -> None:
        if kept:
            with self._lock:
                if not self._closed and len(self._idle) < _IDLE_MAX:
                    self._idle.append((time.monotonic(), sock))
                    self._lock.notify()
                    return
        sock.close()

    def _no_answer(self, error: BaseException, attempt: str) -> BackendError:
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            step = "Look for a line end, or what else does not belong there, in the user, the key or the token."
            return RefusedError(f"{attempt}: the request cannot be made", next_step=step)
        if isinstance(error, ProxyError):
            return UnreachableError(f"{attempt}: {error}", next_step=PROXY_STEP)
        return no_answer(error, attempt, self._steps)


def _response(source: _Bounded, method: str) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]


def _close_all(idle: list[tuple[float, Line]]) -> None:
    while idle:
        idle.pop()[1].close()


def _has_word(sock: Line) -> bool:
    """Whether a server said something unasked: that it closes, or what would be taken for the next answer."""
    pending = getattr(sock, "pending", None)  # of TLS: what it read, and nobody asked for yet
    if pending is not None and pending():
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


_context_lock = threading.Lock()  # `lru_cache` has threads that come at once make as many


def _context(authorities: str, file: str, folder: str) -> ssl.SSLContext:
    with _context_lock:
        return _made_context(authorities, file, folder)


@functools.lru_cache(maxsize=4)
def _made_context(authorities: str, file: str, folder: str) -> ssl.SSLContext:
    """What certificates are accepted: those that are named, else the system's; 20 ms, so once for all."""
    if authorities:
        file, folder = ("", authorities) if os.path.isdir(authorities) else (authorities, "")
        try:
            return ssl.create_default_context(cafile=file or None, capath=folder or None)
        except ssl.SSLError:
            raise RefusedError(
                f"there are no certificates in {authorities[:200]}", next_step="It is to hold them as PEM has them."
            ) from None
    context = ssl.create_default_context()
    if not file and not folder and not context.cert_store_stats()["x509_ca"]:
        paths = ssl.get_default_verify_paths()
        if paths.cafile is None and paths.capath is None:  # a Python without a system's certificates
            with contextlib.suppress(ImportError):
                import certifi

                context.load_verify_locations(certifi.where())
    return context
