"""Finds stores that lie inside other stores, by their addresses: what takes the outer one takes both.

Folders are compared by their inodes as well. So one is found that a disk which ignores case, or a bind mount, has under
two names. A bind mount of what lies deeper in a store than its top, with the other store in it, is not found so.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

from metasync.backends.api import BackendUrl
from metasync.backends.registry import is_own, server_of
from metasync.errors import UsageError

_CASELESS: Final = frozenset({"box", "dropbox", "onedrive"})
"""Schemes whose folders are the same however their names are capitalised."""

_BUCKETS: Final = frozenset({"azure", "gcs", "s3", "swift"})
"""Schemes whose URLs have a bucket or container where others have user and host."""

_SAID: Final = frozenset({"auth", "endpoint"})
"""Parameters that `server_of` tells."""

_REACHING: Final = frozenset({"profile", "region", "server", "virtual"})
"""Parameters of S3 URLs that say how a bucket is reached, and not which one it is."""


_Inode: TypeAlias = tuple[int, int]
"""Which file system, and which file of it."""


def nested(urls: Mapping[str, BackendUrl], absent: Collection[str] = ()) -> list[tuple[str, str]]:
    """Pairs of names, sorted: the first store lies somewhere below the second.

    Links and dots in the paths of folders are resolved. `absent`: names of stores that do not answer, whose disk is
    not touched: their paths are taken as they are written.
    """
    placed = {name: _place(url, look=name not in absent) for name, url in urls.items() if _tells(url)}
    by_path = {
        (inner, outer)
        for inner, (server, path) in placed.items()
        for outer, (other, above) in placed.items()
        if server == other and len(above) < len(path) and path[: len(above)] == above
    }
    lines = {n: _inodes(url.path) for n, url in urls.items() if url.scheme == "file" and n not in absent}
    tops = {name: line[0] for name, line in lines.items() if line[0] is not None}
    by_inode = {(inner, outer) for inner, line in lines.items() for outer, top in tops.items() if top in line[1:]}
    return sorted(by_path | by_inode)


def refuse_nested(urls: Mapping[str, BackendUrl], new: Collection[str], absent: Collection[str] = ()) -> None:
    """Raises `UsageError` if a new store lies inside another one, or another one inside of it."""
    for inner, outer in nested(urls, absent):
        if inner in new or outer in new:
            raise UsageError(
                f"the backend {inner} ({urls[inner].location}) lies inside the backend {outer} "
                f"({urls[outer].location})",
                next_step="Name a place beside it, best with another provider: what is lost with one must not take "
                "the other along.",
            )


def nested_text(inner: str, outer: str) -> str:
    """What is told where both take part already."""
    return f"{inner} lies inside {outer}: they count as two, and what takes {outer} takes both"


def _tells(url: BackendUrl) -> bool:
    """Whether the path of a URL is that of a folder or a prefix."""
    return url.scheme != "memory" and is_own(url.scheme)


def _inodes(path: str) -> list[_Inode | None]:
    """Of a folder, of the one that it is in, and so on up to the root; None for one that is not there."""
    path = os.path.realpath(path)
    line = [_inode(path)]
    while (above := os.path.dirname(path)) != path:
        path = above
        line.append(_inode(path))
    return line


def _inode(path: str) -> _Inode | None:
    try:
        st = os.stat(path)
    except OSError:
        return None
    return (st.st_dev, st.st_ino) if st.st_ino else None


def _place(url: BackendUrl, *, look: bool) -> tuple[object, tuple[str, ...]]:
    """-> (what has the path: a server, account or bucket; the names on the way down)."""
    path, server = url.path, ""
    if url.scheme == "file":
        path = os.path.realpath(path) if look else os.path.normpath(path)
    else:
        server = server_of(url)
    if url.scheme in _CASELESS:
        path = path.casefold()
    whose = url.host if url.scheme in _BUCKETS else url.host.rpartition("@")[0]
    params = tuple((k, v) for k, v in url.params if k not in _SAID and (url.scheme != "s3" or k not in _REACHING))
    return (url.scheme, server.rstrip("/"), whose, params), tuple(part for part in path.split("/") if part)
