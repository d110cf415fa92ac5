"""The files that a walk has yet to read: the names of a million files in a few megabytes."""

from __future__ import annotations

import os
import stat as stat_
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

HELD_MAX = 20_000  # stats in memory: some 10 MB
PACKED_BYTES_LEAST = 4 << 10  # of names in one directory: compressing fewer costs more than it saves


class _Names(NamedTuple):
    """The names of one directory, ascending, joined by NUL and maybe compressed (`_joined`)."""

    prefix: bytes
    files: bytes
    links: bytes
    total: int
    size_bytes: int


class UnreadHere:
    """The unread names of one directory. `stats`: of its files in order, at most `HELD_MAX`."""

    __slots__ = ("files", "links", "size_bytes", "stats")

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.stats: list[os.stat_result] = []
        self.links: list[bytes] = []
        self.size_bytes = 0

    def add(self, name: bytes, st: os.stat_result) -> None:
        """Takes a name; they come ascending."""
        if stat_.S_ISLNK(st.st_mode):
            self.links.append(name)
            return
        self.files.append(name)
        self.size_bytes += st.st_size
        if len(self.stats) < HELD_MAX:
            self.stats.append(st)


class Unread:
    """Paths of files and symlinks, the first `HELD_MAX` of them with the stats they had; `size_bytes` of the files."""

    def __init__(self) -> None:
        self._held: list[tuple[bytes, bool, os.stat_result | None]] = []
        self._listed: list[_Names] = []

    @property
    def growing(self) -> tuple[list[Any], list[Any]]:
        """Its lists, which may be cut back to earlier lengths."""
        return self._held, self._listed

    @property
    def size_bytes(self) -> int:
        held = sum(st.st_size for _, _, st in self._held if st is not None)
        return held + sum(names.size_bytes for names in self._listed)

    def add(self, prefix: bytes, here: UnreadHere) -> None:
        """Takes the names of one directory, whose paths begin with `prefix`."""
        count = len(here.files) + len(here.links)
        if not self._listed and len(self._held) + count <= HELD_MAX:
            self._held += ((prefix + name, False, st) for name, st in zip(here.files, here.stats, strict=True))
            self._held += ((prefix + name, True, None) for name in here.links)
        elif count:
            names = _joined(here.files), _joined(here.links)
            self._listed.append(_Names(prefix, *names, count, here.size_bytes))

    def __len__(self) -> int:
        return len(self._held) + sum(names.total for names in self._listed)

    def __iter__(self) -> Iterator[tuple[bytes, bool, os.stat_result | None]]:
        """Yields each path, whether it is a symlink, and the stat of a file if it is held.

        Paths ascend; beyond `HELD_MAX` only by directory, files before symlinks.
        """
        yield from sorted(self._held, key=lambda item: item[0])
        for listed in sorted(self._listed):
            yield from ((listed.prefix + name, False, None) for name in _split(listed.files))
            yield from ((listed.prefix + name, True, None) for name in _split(listed.links))


def _joined(some: list[bytes]) -> bytes:
    names = b"\0".join(some)
    return names if len(names) < PACKED_BYTES_LEAST else b"\0" + zlib.compress(names, 1)


def _split(names: bytes) -> Iterator[bytes]:
    if names[:1] == b"\0":
        names = zlib.decompress(names[1:])
    at = 0
    while at < len(names):
        end = names.find(b"\0", at)
        end = end if end >= 0 else len(names)
        yield names[at:end]
        at = end + 1
