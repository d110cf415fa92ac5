"""What a scan has found and has yet to read: the names of a million files in a few megabytes."""

from __future__ import annotations

import os
import stat as stat_
import zlib
from collections.abc import Iterator
from typing import NamedTuple

HELD_MAX = 20_000  # stats in memory: some 10 MB. What is known of more files than these lies in a temporary file
PACKED_BYTES_LEAST = 4 << 10  # of names in one directory: of less, each call costs more than it saves


class _Names(NamedTuple):
    """Of one directory, ascending, with a NUL between: no name has one. Compressed where there are many (`_joined`)."""

    prefix: bytes
    files: bytes
    links: bytes


class UnreadHere:
    """The same of one directory. `stats`: of the files, in order, unless they are more than can be held."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.stats: list[os.stat_result] = []
        self.links: list[bytes] = []
        self.size_bytes = 0

    def add(self, path: bytes, st: os.stat_result) -> None:
        if stat_.S_ISLNK(st.st_mode):
            self.links.append(path)
            return
        self.files.append(path)
        self.size_bytes += st.st_size
        if len(self.stats) < HELD_MAX:
            self.stats.append(st)


class Unread:
    """Paths of files and symlinks, the first `HELD_MAX` of them with the stats they had; `size_bytes` of the files."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._count = 0
        self._held: list[tuple[bytes, bool, os.stat_result | None]] = []
        self._listed: list[_Names] = []

    def add(self, prefix: bytes, here: UnreadHere) -> None:
        """Takes paths in one directory, which begin with `prefix`."""
        count = len(here.files) + len(here.links)
        if self._count + count <= HELD_MAX:
            self._held += ((path, False, st) for path, st in zip(here.files, here.stats, strict=True))
            self._held += ((path, True, None) for path in here.links)
        elif count:
            self._listed.append(_Names(prefix, _joined(prefix, here.files), _joined(prefix, here.links)))
        self._count += count
        self.size_bytes += here.size_bytes

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[bytes, bool, os.stat_result | None]]:
        """Each path, whether it is a symlink, and the stat of a file if it is known: ascending while they are few.

        Where they are many those that came later do so directory by directory, files before symlinks.
        """
        yield from sorted(self._held, key=lambda item: item[0])
        for prefix, files, links in sorted(self._listed):
            yield from ((prefix + name, False, None) for name in _split(files))
            yield from ((prefix + name, True, None) for name in _split(links))


def _joined(prefix: bytes, paths: list[bytes]) -> bytes:
    names = b"\0".join(sorted(path[len(prefix) :] for path in paths))
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
