"""The proxies that the environment names for a server, for `requests`: looked up once, and checked.

Of one that it cannot use `requests` says no more than that something failed, or quotes its password.
"""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

from metasync.errors import RefusedError

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
