"""What several providers read in a URL alike: the prefix of objects, the address of a server, the part of an object."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from metasync.backends.api import BackendUrl
from metasync.errors import UsageError

_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()~+=@,: -]+(/[A-Za-z0-9!_.*'()~+=@,: -]+)*")


def prefix_of(url: BackendUrl, chars_max: int = 512) -> str:
    """The prefix that a URL names: its path without the outer slashes. `UsageError` if objects cannot be called so.

    `chars_max`: object stores take names of 1,024 bytes, and ours have a few hundred below the prefix.
    """
    prefix = url.path.strip("/")
    sound = _PREFIX.fullmatch(prefix) is not None and len(prefix) <= chars_max
    if prefix and (not sound or {".", ".."} & set(prefix.split("/"))):
        raise UsageError(
            f"not a prefix for objects: {prefix[:80]!r}",
            next_step=f"Write {url.scheme}://{url.host}/prefix with a plain prefix.",
        )
    return prefix


def server_address(text: str) -> SplitResult | None:
    """An http or https address taken apart; None if it is none, or has more in it than host, port and path."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    alone = "@" not in parts.netloc and not parts.query and not parts.fragment and re.search(r"[^!-~]", text) is None
    return parts if sound and alone else None


def byte_range(offset: int, length: int | None) -> str:
    """The value of a Range header."""
    return f"bytes={offset}-" if length is None else f"bytes={offset}-{offset + length - 1}"
