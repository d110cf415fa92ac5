"""Requests to the servers of a Swift, over `wire`, and what its refusals mean.

Of a refusal only its status is read, and whether its body speaks of a quota.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from metasync.backends._shared.http import PROXY_STEP, SILENT_S, authorities, retry_after_s
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.sizes import SMALL_TIMEOUT_S

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Answer, Reply, Wire

_AGAIN = "Try again later."
_FULL = "Free some space, have the quota raised, or add a backend."
_RIGHTS = (
    "The user needs the right to read and write this container: a role in the project, or an ACL on the container."
)
_ADDRESS = "Check OS_AUTH_URL, ST_AUTH or OS_STORAGE_URL, and whether the network asks for a login."
_TLS = "Check the address, the clock, and OS_CACERT, which names the file of an authority of your own."
STEPS = {**dict.fromkeys(("clock", "signer", "name", "tls"), _TLS), "network": "Check the address and the network."}
"""What to do where there was no answer, for `no_answer`."""


def answered(answer: Answer, attempt: str) -> BackendError:
    """The error of the contract for an answer that is no success. A 404 is `NotFoundError`, whatever is not there."""
    status = answer.status
    said = f"{attempt}: the server answered {status}"
    if 300 <= status < 400:
        return not_swift(attempt, f"a {status}, which leads elsewhere")
    if status == 407:
        return UnreachableError(f"{attempt}: the proxy asks for a login", next_step=PROXY_STEP)
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


_LOGIN_BYTES_MAX = 4 << 20  # the catalogue of a large cloud has some 100 KB


def split_server(url: str) -> tuple[str, str]:
    """The server of an address, and what follows."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash + path


class Wires:
    """Requests to the server to log in at, and to the one that has the objects."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._authorities = authorities(environ, ("OS_CACERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
        self._wires: dict[str, Wire] = {}
        self._lock = threading.Lock()
        self._closed = False

    def exchange(
        self, method: str, base: str, path: str, headers: Mapping[str, str], body: bytes | None, attempt: str,
        *, within_s: int = SMALL_TIMEOUT_S,
    ) -> contextlib.AbstractContextManager[Reply]:  # fmt: skip
        """One request, its answer's body unread. `UnreachableError` if there is none, or if it breaks off."""
        sent = {"Accept-Encoding": "identity", **headers}
        return self._to(base).exchange(method, path, sent, body or b"", attempt, within_s=within_s)

    def ask(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """A request of a login, and its whole answer."""
        attempt = f"cannot log in at {url.removesuffix('/auth/tokens')}"
        with self.exchange(method, *split_server(url), headers, body, attempt) as reply:
            return reply.answer(_LOGIN_BYTES_MAX)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            wires = [*self._wires.values()]
        for wire in wires:
            wire.close()

    def _to(self, base: str) -> Wire:
        from metasync.backends._shared.wire import Wire

        with self._lock:
            assert not self._closed, "the backend was closed"
            if base not in self._wires:
                self._wires[base] = Wire(base, steps=STEPS, authorities=self._authorities)
            return self._wires[base]
