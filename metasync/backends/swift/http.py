"""Connections to a Swift: swiftclient's, each for one thread at a time, kept for the next call.

Of swiftclient its `HTTPConnection` is used, and not its calls, nor its `Connection`. Those repeat requests by
themselves, read a refusal or a listing of any length into memory, follow a redirect to any host with the token in its
head (requests takes only `Authorization` off), and write answers to a log.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from metasync.backends._shared.http import proxies_for
from metasync.backends.swift.errors import BODY_BYTES_MAX, Answer, broken
from metasync.errors import BackendError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

_IDLE_MAX = 32  # as many calls as the runtime ever has under way at one backend
_IDLE_S = 50.0  # servers, and what stands before them, forget a connection after a minute, and some do so silently
_LOGIN_BYTES_MAX = 4 << 20  # the catalogue of a large cloud has some 100 KB
_READ_BYTES = 1 << 20  # between two looks at the clock
# urllib3 gives the sending of a body of bytes, as a whole, the time-out of the connecting. A file goes out in pieces of
# 16 KiB, and each has this time for itself.
_PIECE_BYTES = 1 << 14


def timeout_s(size_bytes: int) -> int:
    """How long a call may take that moves so many bytes."""
    return SMALL_TIMEOUT_S if size_bytes <= SMALL_BYTES_MAX else LARGE_TIMEOUT_S


class Reply:
    """An answer whose head was read. `read` may follow once."""

    def __init__(self, response: Any, until: float, attempt: str) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers  # by their names in any letters
        self._raw = response.raw
        self._until = until
        self._attempt = attempt
        self.ended = False

    def read(self, most: int) -> bytes:
        """The body, as far as it has `most` bytes."""
        parts: list[bytes] = []
        left = most
        # What has come, and no more is waited for: a server may send a byte a minute. urllib3 1 has no other.
        some = getattr(self._raw, "read1", self._raw.read)
        while left:
            data = some(min(left, _READ_BYTES))
            if not data:
                break
            parts.append(data)
            left -= len(data)
            if left and time.monotonic() > self._until:
                raise UnreachableError(f"{self._attempt}: the answer takes too long", next_step="Check the network.")
        # At its very end a response gives its connection back by itself.
        self.ended = self._raw.read(1) == b""
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def answer(self) -> Answer:
        """The whole, with as much of the body as a refusal of Swift's has."""
        return Answer(self.status, self.headers, self.read(BODY_BYTES_MAX))


class Wires:
    """Requests to any server, over connections that are kept by server."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        import requests
        import swiftclient.client
        import urllib3

        self._swiftclient = swiftclient.client
        self._failures = (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError)
        names = ("OS_CACERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
        self._cacert = next((environ[name] for name in names if environ.get(name)), None)
        if self._cacert and not os.path.exists(self._cacert):
            raise RefusedError(
                f"there is no file {self._cacert} with the certificates to accept",
                next_step="OS_CACERT or REQUESTS_CA_BUNDLE names it.",
            )
        self._idle: dict[str, list[tuple[float, Any]]] = {}  # by server: since when, and the connection
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    @contextlib.contextmanager
    def exchange(
        self,
        method: str,
        base: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        attempt: str,
        *,
        within_s: int = SMALL_TIMEOUT_S,
    ) -> Iterator[Reply]:
        """One request, its answer's body unread. `UnreachableError` if there is none, or if it breaks off."""
        line = self._take(base)
        kept = False
        try:
            line.requests_args["timeout"] = (CONNECT_TIMEOUT_S, within_s)
            until = time.monotonic() + within_s
            data = io.BytesIO(body) if body is not None and len(body) > _PIECE_BYTES else body
            reply = Reply(line.request(method, path, data, headers), until, attempt)
            if reply.status < 200:  # such as 103: what it announces would be read as the answer to another request
                raise ConnectionError
            yield reply
            # A refusal may come before a long body was read, which would then be taken for the next request.
            kept = reply.ended and (reply.status < 400 or data is body)
        except BackendError:
            raise
        except self._failures as error:
            if isinstance(error, ValueError):  # such as requests' InvalidHeader, whose text quotes the header
                raise _unsendable(attempt) from None
            raise broken(error, attempt) from error
        finally:
            self._give(base, line, kept=kept)

    def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """A request of a login, and its whole answer."""
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        attempt = f"cannot log in at {url.removesuffix('/auth/tokens')}"
        with self.exchange(method, f"{scheme}://{host}", slash + path, headers, body, attempt) as reply:
            return Answer(reply.status, dict(_small(reply.headers)), reply.read(_LOGIN_BYTES_MAX))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for lines in idle.values():
            for _, line in lines:
                line.request_session.close()

    def _take(self, base: str) -> Any:
        if self._process != os.getpid():  # forked: on the old connections each process would hear the other's answers
            self._idle, self._lock, self._process = {}, threading.Lock(), os.getpid()
        with self._lock:
            assert not self._closed, "the backend was closed"
            lines = self._idle.get(base, [])
            since, line = lines.pop() if lines else (0.0, None)
            if line is not None and time.monotonic() - since < _IDLE_S:
                return line
            old = [line, *(line for _, line in lines)] if line is not None else []
            lines.clear()  # the one used last is too old, and so are all
        for line in old:
            line.request_session.close()
        line = self._swiftclient.HTTPConnection(base, cacert=self._cacert, default_user_agent="metasync")
        # A redirect is an answer like any other; without a target requests does not even read its body.
        line.requests_args["allow_redirects"] = False
        line.request_session.get_redirect_target = lambda _response: None
        # The environment's proxies are looked up here, once, and not 0.1 ms a request; nor is ~/.netrc read.
        line.requests_args["proxies"] = proxies_for(base)
        line.request_session.trust_env = False
        return line

    def _give(self, base: str, line: Any, *, kept: bool) -> None:
        if kept:
            with self._lock:
                lines = self._idle.setdefault(base, [])
                if not self._closed and len(lines) < _IDLE_MAX:
                    line.resp = None
                    lines.append((time.monotonic(), line))
                    return
        with contextlib.suppress(Exception):  # what is broken already may not close properly
            if line.resp is not None:
                line.resp.close()
        line.request_session.close()


def _small(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name.lower(), value) for name, value in headers.items())


def _unsendable(attempt: str) -> RefusedError:
    return RefusedError(
        f"{attempt}: the request cannot be made",
        next_step="Look for a line end, or what else does not belong there, in the user, the key or the token.",
    )
