"""What a Swift's refusal means, and what became of a request that got no answer.

No text that a server sent stands in an error: it may echo what it was sent. Only its status, and whether its body
speaks of a quota, are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metasync.backends._shared.http import SILENT_S, retry_after_s
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

BODY_BYTES_MAX = 1 << 12  # of a refusal: Swift's own have some 100 bytes

_AGAIN = "Try again later."
_FULL = "Free some space, have the quota raised, or add a backend."
_RIGHTS = (
    "The user needs the right to read and write this container: a role in the project, or an ACL on the container."
)
_ADDRESS = "Check OS_AUTH_URL, ST_AUTH or OS_STORAGE_URL, and whether the network asks for a login."
_CAUSES = (
    ("certificate is not yet valid", "its TLS certificate is not valid yet, if this machine's clock is right"),
    ("certificate has expired", "its TLS certificate has expired, if this machine's clock is right"),
    ("CERTIFICATE_VERIFY_FAILED", "its TLS certificate was not accepted"),
    ("doesn't match", "its TLS certificate is another host's"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("RECORD_LAYER_FAILURE", "it does not speak TLS"),
    ("SSLError", "TLS with it failed"),
    ("ProxyError", "the proxy does not let it through"),
    ("NameResolutionError", "its name cannot be resolved"),
    ("Connection refused", "connection refused"),
    ("No route to host", "no connection"),
    ("Network is unreachable", "no connection"),
    ("imeout", "no answer in time"),
    ("timed out", "no answer in time"),
)


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
    if status == 401:
        return RefusedError(f"{attempt}: the server refused the credentials (401)", next_step=_RIGHTS)
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


def broken(error: BaseException, attempt: str) -> BackendError:
    """The error of the contract for a request that got no answer, or no whole one."""
    text = f"{type(error).__name__}: {error}"[: 1 << 12]
    cause = next((words for sign, words in _CAUSES if sign in text), "the connection broke")
    step = "Check the address, the network, and the proxy that the environment names."
    if "TLS" in cause:
        step = "Check the address, the clock, and OS_CACERT, which names the file of an authority of your own."
    return UnreachableError(f"{attempt}: {cause}", next_step=step)
