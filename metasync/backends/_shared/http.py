"""What the providers that speak HTTP share: Retry-After (RFC 9110, 10.2.3), proxies, and why there was no answer."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from metasync.errors import RefusedError, UnreachableError

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


_STEP = "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY in the environment."


def proxies_for(server: str) -> dict[str, str]:
    """By scheme, as `requests` takes them. `RefusedError` if the one for this server cannot be used."""
    import requests.utils

    found: dict[str, str] = requests.utils.get_environ_proxies(server)
    proxy = requests.utils.select_proxy(server, found)
    if proxy:
        _check(proxy, server)
    return found


def _check(proxy: str, server: str) -> None:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        sound = bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.scheme not in {"http", "https", "socks4", "socks4a", "socks5", "socks5h"}:
        raise RefusedError(f"the proxy that the environment names for {server} has no address of one", next_step=_STEP)
    if parts.scheme.startswith("socks") and importlib.util.find_spec("socks") is None:
        raise RefusedError(
            f"the environment names a SOCKS proxy for {server}, which takes the package PySocks",
            next_step=f"Run: pip install PySocks. Or: {_STEP}",
        )


_CAUSES: Final = (  # words of requests, urllib3 and ssl; what they are about, and what is told
    ("certificate is not yet valid", "clock", "it is not valid yet, if this machine's clock is right"),
    ("certificate has expired", "clock", "it has expired, if this machine's clock is right"),
    ("signed certificate", "signer", "it is signed by itself"),
    ("is not valid for", "name", "it is for another name or address"),
    ("doesn't match", "name", "it is for another name or address"),
    ("CERTIFICATE_VERIFY_FAILED", "signer", "whoever signed it is not known here"),
    ("ProxyError", "proxy", "the proxy does not let it through"),
    ("SSLError", "tls", "it does not speak TLS, or none that is safe"),
    ("NameResolutionError", "network", "its name cannot be resolved"),
    ("[Errno -", "network", "its name cannot be resolved"),
    ("Connection refused", "network", "connection refused"),
    ("No route to host", "network", "no connection"),
    ("Network is unreachable", "network", "no connection"),
    ("imeout", "network", "no answer in time"),
    ("timed out", "network", "no answer in time"),
)


def no_answer(error: BaseException, attempt: str, steps: Mapping[str, str]) -> UnreachableError:
    """The error of the contract for an exception of requests, urllib3, ssl or socket.

    `steps`: the next step by its subject: "clock", "signer", "name" (of a certificate), "tls", "proxy", "network".
    """
    text = f"{type(error).__name__}: {error}"[:_TEXT_CHARS_MAX]
    about, words = next((found[1:] for found in _CAUSES if found[0] in text), ("network", "the connection broke"))
    if about in {"clock", "signer", "name"}:
        words = f"its TLS certificate was not accepted: {words}"
    return UnreachableError(f"{attempt}: {words}", next_step=steps[about])
