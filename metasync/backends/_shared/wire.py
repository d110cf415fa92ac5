"""HTTP/1.1 to the server of an object store, over connections that are kept: one request, one bounded answer.

It follows no redirect, repeats no request, keeps no cookie and reads no netrc. What a server may send in answer to one
request, head, chunks and trailers together, is bounded in bytes and in time below the HTTP of Python's own library, so
that no form of an endless answer passes. The standard library alone is used: 0.2 ms of CPU a small request, where
urllib3 takes 0.3 and requests 0.7.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import os
import select
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from metasync.backends._shared.http import no_answer
from metasync.errors import BackendError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

HEAD_BYTES_MAX: Final = 1 << 16  # of an answer; servers' own have 1 KiB
REFUSAL_BYTES_MAX: Final = 1 << 14  # of the body of a refusal; the longest that say anything have 2 KiB
_IDLE_MAX: Final = 32  # as many calls as the runtime ever has under way at one backend
_IDLE_S: Final = 50.0  # servers, and what stands before them, forget a connection after a minute, some silently
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_LINE = "Check the endpoint and the network."
_LINE_OR_PROXY = "Check the endpoint, the network, and the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY."
_CERTIFICATE = "Check the endpoint's name. The certificate of an authority of your own goes into SSL_CERT_FILE."
_AGENT = "metasync"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `headers` by their names in small letters, the last of several alike."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class _Bounded(io.RawIOBase):
    """What a server sends, up to so many bytes and until so late. Beyond, it is as if the connection had broken."""

    def __init__(self, sock: Any, bytes_max: int, until: float) -> None:
        self._sock = sock
        self._left = bytes_max
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if time.monotonic() > self._until:
            raise TimeoutError("timed out")
        if self._left <= 0:
            raise TooLongError
        count: int = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class TooLongError(Exception):
    """A server sends more than any answer of its kind has."""


class _Source:
    """What `http.client` takes for a socket."""

    def __init__(self, raw: _Bounded) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._raw, 1 << 16)


class Reply:
    """An answer whose head was read. `read` may follow, in pieces."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self._response = response

    @property
    def size(self) -> int | None:
        """How long the body is to be; None where the head does not say."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None

    def read(self, most: int) -> bytes:
        """The body, as far as it has `most` bytes."""
        return self._response.read(most)

    def answer(self, most: int = REFUSAL_BYTES_MAX) -> Answer:
        """The whole, with `most` bytes of its body."""
        return Answer(self.status, self.headers, self.read(most))

    @property
    def ended(self) -> bool:
        """Whether the body was read to its end, and the server will take another request on this connection."""
        response = self._response
        if not response.isclosed():
            # What is left of a sound answer is nothing, or the mark of the last chunk.
            response.read(1)
        return response.isclosed() and not response.will_close


class Wire:
    """Requests to one server, from several threads, each over a connection of its own. `close` it."""

    def __init__(self, url: str) -> None:
        """`url`: scheme, host and port of the server. `RefusedError` if the environment's proxy cannot be used."""
        self._parts = urlsplit(url)
        self._proxy = _proxy_for(self._parts)
        self.host = self._parts.netloc
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    @contextlib.contextmanager
    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        attempt: str,
        *,
        answer_bytes_max: int = REFUSAL_BYTES_MAX,
    ) -> Iterator[Reply]:
        """One request, its answer's body unread. `UnreachableError` if there is none, or it breaks off, or has no end.

        `target`: path and query, as they are to be sent. `answer_bytes_max`: what is to be read of the body.
        """
        large_up = len(body) > SMALL_BYTES_MAX
        until = time.monotonic() + LARGE_TIMEOUT_S
        line = self._take(attempt)
        kept = False
        try:
            if line.sock is None:
                line.connect()  # and shakes hands, through a proxy where there is one
            sock = line.sock
            assert sock is not None
            # Silence ends a small request; a large one may be written, and looked at, for as long as a line takes.
            sock.settimeout(LARGE_TIMEOUT_S if large_up else SMALL_TIMEOUT_S)
            broken = self._send(sock, method, target, headers, body)
            # Chunks have heads of their own, never as much as they hold.
            source = _Source(_Bounded(sock, HEAD_BYTES_MAX + REFUSAL_BYTES_MAX + 2 * answer_bytes_max, until))
            response = http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]
            with contextlib.closing(response):
                try:
                    response.begin()
                except (OSError, http.client.HTTPException) as error:
                    raise broken or error from None  # a server may say no, and close, while a body is being sent
                if response.status < 200:  # what such an answer announces would be read as that to the next request
                    raise ConnectionError
                reply = Reply(response)
                yield reply
                kept = broken is None and reply.ended
        except BackendError:
            raise
        except TooLongError:
            raise UnreachableError(
                f"{attempt}: the server sends more than any answer to this has",
                next_step="Check the endpoint: what is there is not the server that is meant, or it is broken.",
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _no_answer(error, attempt, f"{self._parts.hostname}") from error
        finally:
            self._give(line, kept=kept)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, attempt: str,
        *, answer_bytes_max: int = REFUSAL_BYTES_MAX,
    ) -> Answer:  # fmt: skip
        """One request, and its whole answer; a body longer than `answer_bytes_max` is an error of its kind."""
        bounds = {"answer_bytes_max": answer_bytes_max}
        with self.exchange(method, target, headers, body, attempt, **bounds) as reply:
            answer = reply.answer(answer_bytes_max)
            if len(answer.body) == answer_bytes_max and reply.status < 300:
                raise TooLongError
            return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, line in idle:
            line.close()

    def __del__(self) -> None:
        for _, line in self.__dict__.get("_idle", ()):  # of a backend that nobody closed
            line.close()

    def _send(
        self, sock: Any, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> ConnectionError | None:
        """Sends a request; -> the error where the server closed before it was through."""
        head = [f"{method} {self._absolute}{target} HTTP/1.1", f"Host: {self.host}", f"User-Agent: {_AGENT}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in {"PUT", "POST"}:
            head.append(f"Content-Length: {len(body)}")
        if self._absolute and self._proxy is not None:
            head += [f"{name}: {value}" for name, value in self._proxy.headers.items()]
        if any("\r" in line or "\n" in line for line in head):
            raise ValueError("a line end in a header")
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

    @property
    def _absolute(self) -> str:
        """What stands before a target that is sent to a proxy."""
        plain = self._proxy is not None and self._parts.scheme == "http"
        return f"http://{self.host}" if plain else ""

    def _take(self, attempt: str) -> http.client.HTTPConnection:
        if self._process != os.getpid():  # forked: on the old connections each process would hear the other's answers
            self._idle, self._lock, self._process = [], threading.Lock(), os.getpid()
        old: list[http.client.HTTPConnection] = []
        with self._lock:
            assert not self._closed, "the backend was closed"
            while self._idle:
                since, line = self._idle.pop()
                if time.monotonic() - since < _IDLE_S and not _has_word(line):
                    break
                old.append(line)
            else:
                line = self._new(attempt)
        for gone in old:
            gone.close()
        return line

    def _new(self, attempt: str) -> http.client.HTTPConnection:
        proxy, host, port = self._proxy, self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            via = (proxy.host, proxy.port) if proxy is not None else (host, port)
            return http.client.HTTPConnection(*via, timeout=CONNECT_TIMEOUT_S)
        context = _context(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
        if proxy is None:
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=context)
        tunnel = http.client.HTTPSConnection(proxy.host, proxy.port, timeout=CONNECT_TIMEOUT_S, context=context)
        tunnel.set_tunnel(host, port or 443, headers=proxy.headers)
        return tunnel

    def _give(self, line: http.client.HTTPConnection, *, kept: bool) -> None:
        if kept:
            with self._lock:
                if not self._closed and len(self._idle) < _IDLE_MAX:
                    self._idle.append((time.monotonic(), line))
                    return
        line.close()


def _has_word(line: http.client.HTTPConnection) -> bool:
    """Whether a server said something unasked: that it closes, or what would be taken for the next answer."""
    if line.sock is None:
        return True
    if isinstance(line.sock, ssl.SSLSocket) and line.sock.pending():
        return True
    poll = select.poll()
    poll.register(line.sock, select.POLLIN)
    return bool(poll.poll(0))


@functools.lru_cache(maxsize=4)
def _context(file: str, folder: str) -> ssl.SSLContext:
    """What certificates are accepted: the system's, or those that the environment names; 20 ms, so once for all."""
    context = ssl.create_default_context()
    if not file and not folder and not context.cert_store_stats()["x509_ca"]:
        paths = ssl.get_default_verify_paths()
        if paths.cafile is None and paths.capath is None:  # a Python without a system's certificates
            with contextlib.suppress(ImportError):
                import certifi

                context.load_verify_locations(certifi.where())
    return context


@dataclass(frozen=True, slots=True)
class _Proxy:
    """A proxy that speaks HTTP. `headers`: its login, which it alone is shown."""

    host: str
    port: int
    headers: Mapping[str, str]


def _proxy_for(server: SplitResult) -> _Proxy | None:
    """The proxy that the environment names for a server. `RefusedError` if it cannot be used."""
    if not any(os.environ.get(name) for name in _PROXIES):
        return None
    import urllib.request  # 8 ms, and few have a proxy

    found = urllib.request.getproxies()
    text = found.get(server.scheme) or found.get("all") or ""
    if not text or urllib.request.proxy_bypass(server.netloc):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        sound, port = parts.scheme == "http" and bool(parts.hostname), parts.port or 80
    except ValueError:
        sound, port = False, 0
    if not sound:
        raise RefusedError(
            f"the proxy that the environment names for {server.netloc} is not one of the form http://host:port",
            next_step="Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY in the environment.",
        )
    headers = {}
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode('ascii')}"
    return _Proxy(parts.hostname or "", port, headers)


def _no_answer(error: BaseException, attempt: str, host: str) -> BackendError:
    text = str(error)
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        step = "Look for a line end, or what else does not belong there, in the key or the token."
        return RefusedError(f"{attempt}: the request cannot be made", next_step=step)
    proxied = any(os.environ.get(name) for name in _PROXIES)
    line = _LINE_OR_PROXY if proxied else _LINE
    if text.startswith("Tunnel connection failed"):
        why = "the proxy asks for a login" if " 407" in text else "the proxy let nothing through"
        return UnreachableError(f"{attempt}: {why}", next_step=line)
    steps = {
        **dict.fromkeys(("clock", "signer", "name"), _CERTIFICATE),
        **dict.fromkeys(("tls", "proxy", "network"), line),
    }
    return no_answer(error, attempt, steps)
