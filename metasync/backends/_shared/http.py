"""What the providers that speak HTTP share: Retry-After (RFC 9110, 10.2.3), time-outs, and why there was no answer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from metasync.errors import RefusedError, UnreachableError
from metasync.runtime.sizes import LARGE_TIMEOUT_S, SMALL_BYTES_MAX, SMALL_TIMEOUT_S

SILENT_S: Final = 1.0
"""Where a server that asks for fewer requests does not say when to come back."""
MOST_S: Final = 3600.0  # a server that asks for more is asked once an hour
_DATE_CHARS_MAX: Final = 64
_TEXT_CHARS_MAX: Final = 1 << 12  # of an exception


def retry_after_s(said: str | None, date: str | None = None, now: datetime | None = None) -> float | None:
    """The seconds of a Retry-After, which is a number or a date; at most MOST_S. None if it cannot be read.

    A date counts from `date`, the answer's own, because clocks differ by hours; else from `now`, or our clock.
    """
    said = (said or "").strip()
    if re.fullmatch(r"[0-9]{1,10}", said):
        return min(float(said), MOST_S)
    until = _time(said)
    if until is None:
        return None
    began = _time(date or "") or now or datetime.now(UTC)
    return min(max(0.0, (until - began).total_seconds()), MOST_S)


def _time(text: str) -> datetime | None:
    if not text:
        return None
    import email.utils  # 4 ms, and a date is rare

    try:
        at = email.utils.parsedate_to_datetime(text[:_DATE_CHARS_MAX])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


class ProxyError(OSError):
    """No line through a proxy; the text says why."""


PROXY_STEP: Final = "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY in the environment."


def timeout_s(size_bytes: int) -> int:
    """How long a call may take that moves so many bytes."""
    return SMALL_TIMEOUT_S if size_bytes <= SMALL_BYTES_MAX else LARGE_TIMEOUT_S


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether an answer says of itself that it is for people to read. `headers` by their names in small letters."""
    return headers.get("content-type", "").lower().startswith(("text/html", "application/xhtml"))


def authorities(environ: Mapping[str, str], names: Sequence[str]) -> str:
    """The file, or the folder, of certificates that the first of the variables that is set names; "" for none.

    `RefusedError` if it is not there.
    """
    for name in names:
        if path := environ.get(name):
            if not os.path.exists(path):
                raise RefusedError(f"{name} names a file that is not there: {path[:200]}", next_step=f"Check {name}.")
            return path
    return ""


_CAUSES: Final = (  # words of ssl and socket; what they are about, and what is told
    ("certificate is not yet valid", "clock", "it is not valid yet, if this machine's clock is right"),
    ("certificate has expired", "clock", "it has expired, if this machine's clock is right"),
    ("signed certificate", "signer", "it is signed by itself"),
    ("is not valid for", "name", "it is for another name or address"),
    ("CERTIFICATE_VERIFY_FAILED", "signer", "whoever signed it is not known here"),
    ("SSLError", "tls", "it does not speak TLS, or none that is safe"),
    ("gaierror", "network", "its name cannot be resolved"),
    ("Connection refused", "network", "connection refused"),
    ("No route to host", "network", "no connection"),
    ("Network is unreachable", "network", "no connection"),
    ("timed out", "network", "no answer in time"),
)


def no_answer(error: BaseException, attempt: str, steps: Mapping[str, str]) -> UnreachableError:
    """The error of the contract for an exception of ssl or socket.

    `steps`: the next step by its subject: "clock", "signer", "name" (of a certificate), "tls", "network".
    """
    about, words = why(error)
    return UnreachableError(f"{attempt}: {words}", next_step=steps[about])


def why(error: BaseException) -> tuple[str, str]:
    """What an exception of ssl or socket is about (`no_answer`), and why there was no answer, in words."""
    text = f"{type(error).__name__}: {error}"[:_TEXT_CHARS_MAX]
    about, words = next((found[1:] for found in _CAUSES if found[0] in text), ("network", "the connection broke"))
    if about in {"clock", "signer", "name"}:
        words = f"its TLS certificate was not accepted: {words}"
    return about, words
