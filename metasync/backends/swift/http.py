"""Connections to a Swift: swiftclient's `HTTPConnection`, each for one thread at a time; and what refusals mean.

Its other classes repeat requests, read answers of any length into memory, follow a redirect to any host with the token
in the head, and write answers to a log. Of a refusal only its status is read, and whether its body speaks of a quota.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from metasync.backends._shared.http import SILENT_S, no_answer, proxies_for, retry_after_s
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.sizes import CONNECT_TIMEOUT_S, LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

BODY_BYTES_MAX = 1 << 12  # of a refusal: Swift's own have some 100 bytes

_AGAIN = "Try again later."
_FULL = "Free some space, have the quota raised, or add a backend."
_RIGHTS = (
    "The user needs the right to read and write this container: a role in the project, or an ACL on the container."
)
_ADDRESS = "Check OS_AUTH_URL, ST_AUTH or OS_STORAGE_URL, and whether the network asks for a login."
_LINE = "Check the address, the network, and the proxy that the environment names."
_TLS = "Check the address, the clock, and OS_CACERT, which names the file of an authority of your own."
STEPS = {**dict.fromkeys(("clock", "signer", "name", "tls"), _TLS), "proxy": _LINE, "network": _LINE}
"""What to do where there was no answer, for `no_answer`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `headers` by their names in small letters; `body` is cut where it is too long to be ours."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def is_page(self) -> bool:
        """Something for people to read, where Swift has an object or nothing. (Its refusals are short pages, too.)"""
        return self.headers.get("content-type", "").startswith("text/html")


def answered(answer: Answer, attempt: str) -> BackendError:
    """The error of the contract for an answer that is no success. A 404 is `NotFoundError`, whatever is not there."""
    status = answer.status
    said = f"{attempt}: the server answered {status}"
    if 300 <= status < 400:
        return not_swift(attempt, f"a {status}, which leads elsewhere")
    if status == 407:
        return UnreachableError(f"{attempt}: the proxy asks for a login", next_step="Check HTTPS_PROXY and HTTP_PROXY.")
    if status == 404:
        return NotFoundError(f"{attempt}: it is not there")
    if status == 403:
        return RefusedError(said, next_step=_RIGHTS)
    if status == 507 or (status == 413 and b"quota" in answer.body.lower()):
        return FullError(f"{attempt}: no space or quota is left ({status})", next_step=_FULL)
    if status == 413:
        return RefusedError(f"{said}; it is too large for this server")
    if status in (429, 498):
        wait_s = _wait_s(answer)
        return BackendError(
            f"{said}; it asks for fewer requests",
            next_step=_AGAIN,
            retry_after_s=SILENT_S if wait_s is None else wait_s,
        )
    if status == 422:
        return BackendError(f"{said}: what arrived is not what was sent", next_step=_AGAIN)
    if status in (408, 409, 499) or status >= 500:
        return BackendError(said, next_step=_AGAIN, retry_after_s=_wait_s(answer))
    if status < 300:
        return not_swift(attempt, f"a {status} where Swift has another answer")
    return BackendError(said, retryable=False)


def _wait_s(answer: Answer) -> float | None:
    return retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))


def not_swift(attempt: str, what: str) -> UnreachableError:
    """`what` answered can't be the server that is meant."""
    return UnreachableError(f"{attempt}: what answered is not the Swift server ({what})", next_step=_ADDRESS)


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


def split_server(url: str) -> tuple[str, str]:
    """The server of an address, and what follows."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


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
                step = "Look for a line end, or what else does not belong there, in the user, the key or the token."
                raise RefusedError(f"{attempt}: the request cannot be made", next_step=step) from None
            raise no_answer(error, attempt, STEPS) from error
        finally:
            self._give(base, line, kept=kept)

    def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """A request of a login, and its whole answer."""
        attempt = f"cannot log in at {url.removesuffix('/auth/tokens')}"
        with self.exchange(method, *split_server(url), headers, body, attempt) as reply:
            small = {name.lower(): value for name, value in reply.headers.items()}
            return Answer(reply.status, small, reply.read(_LOGIN_BYTES_MAX))

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
