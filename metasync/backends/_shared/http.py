"""What a server says in Retry-After: for how long it wants to be left alone (RFC 9110, 10.2.3).

The proxies that the environment names for a server, for `requests`: looked up once, and checked.

Of one that it cannot use `requests` says no more than that something failed, or quotes its password.
"""

from __future__ import annotations

import importlib.util
import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from metasync.errors import RefusedError

SILENT_S: Final = 1.0
"""Where a server that asks for fewer requests does not say when to come back."""
MOST_S: Final = 3600.0  # a server that asks for more is asked once an hour
_DATE_CHARS_MAX: Final = 64


def retry_after_s(said: str | None, date: str | None = None, now: datetime | None = None) -> float | None:
    """The seconds of a Retry-After: a number, or a date. None where there is none that can be read. Bounded.

    `date`: the answer's own Date, by which a date is counted: the server's clock and ours may differ by hours. `now`
    stands in for ours.
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
