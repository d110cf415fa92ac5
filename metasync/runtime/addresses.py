"""Whether an address is this machine's own. Pure."""

from __future__ import annotations

import re


def is_loopback(host: str) -> bool:
    """Whether a server of this name is this machine: nobody reads along on the way. IPv6 in brackets or not."""
    return host in {"localhost", "[::1]", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
