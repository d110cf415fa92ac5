"""Chunks of files as they were, kept on this device for deltas to be made of (docs/design/transfer.md).

One file a chunk in `.metasync/bases`, under the chunk's id, compressed where that makes it smaller. Never the only copy
of anything: a chunk is checked against its id before it is used, and one that is damaged, or was cut short by a crash,
is removed. So nothing is synced. The least recently used go first, by their times.

The cache takes room that nothing else wants: a share of what the disk would have free without it, and nothing of the
margin that pulls leave. It gives back what a checkout lacks (`make_room`).

A chunk of a file that was never seen to change is on probation: it is kept while half the room is free, and goes before
the others. Photographs that come and never change thus push nothing out that does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from metasync.local.state import State
from metasync.local.state_keys import BASES_KEY
from metasync.objects.model import ID_BYTES, Ids
from metasync.runtime.sizes import DISK_MARGIN_BYTES
from metasync.worktree.disk import CREATE_FLAGS, READ_FLAGS, Disk
from metasync.worktree.tree import WorkTree

DIR: Final = b"bases"
MB_DEFAULT: Final = 2048
CHUNK_BYTES_MAX: Final = 16 << 20
LEVEL: Final = 1
KEPT_SHARE: Final = 8  # an eighth of the room is freed at a time, so that not every push has to
SAMPLE_BYTES: Final = 4 << 10  # of a chunk: whether they shrink by a sixteenth says whether it is worth the time
SHRINKS_SHARE: Final = 16
UNSHRUNK_BYTES_MAX: Final = 64 << 20  # that never changed: of more that does not shrink most are media, which never do
PLAIN, ZSTD = b"\0", b"\1"
PROBATION_NS: Final = 1  # their time, beside which any other is late
TOGETHER_BYTES: Final = 256 << 10  # of new chunks that a worker compresses at a time
WAITING_BYTES_MAX: Final = 4 << 20  # of those that workers have; then the one who keeps waits for them
FREE_SHARE: Final = 16  # the cache takes no more than this part of what the disk would have free without it


@cache
def _zstd() -> Any:
    return import_module("zstandard")


class BaseCache:
    """The chunks kept in one folder, at most `most_bytes` on the disk; 0: none. Every failure of the disk is a chunk
    that is not there. `keep` and `note` for one thread, the others for any.

    `coming_bytes`: of other files that are about to be written to this disk, whose room is not taken. `work`: has a
    function run by a worker. New chunks are compressed there and written later, with `note` at the latest: a first push
    has very many, and whoever reads its files has no time for them. None: all is done at once.
    """

    def __init__(self, tree: WorkTree, db: State, ids: Ids, most_bytes: int, wall_ns: Callable[[], int]) -> None:
        self._tree = tree
        self._disk: Disk = tree.disk
        self._db = db
        self._ids = ids
        self.most_bytes = most_bytes
        self._wall_ns = wall_ns
        self._lock = threading.Lock()
        self._dir = -1
        self._bytes = 0
        self._unshrunk_left = UNSHRUNK_BYTES_MAX
        self.coming_bytes = 0
        self.work: Callable[[Callable[[], list[bytes]]], Future[list[bytes]]] | None = None
        self._gathered: list[tuple[bytes, bytes]] = []  # new chunks, by their ids
        self._gathered_bytes = 0
        self._waiting: deque[tuple[list[tuple[bytes, bytes]], int, Future[list[bytes]]]] = deque()
        self._waiting_bytes = 0

    def __contains__(self, object_id: object) -> bool:
        try:
            return isinstance(object_id, bytes) and self._disk.look(_name(object_id), self._opened()) is not None
        except OSError:
            return False

    def get(self, object_id: bytes) -> bytes | None:
        """A chunk's bytes, which are those of its id; None: it is not here, or none may be."""
        if not self.most_bytes:
            return None
        name = _name(object_id)
        try:
            above = self._opened()
            with self._disk.opened(name, READ_FLAGS, above) as fd:
                stored = self._disk.read(fd, CHUNK_BYTES_MAX + 1, 0)
            data = _unpacked(stored)
            if data is None or self._ids.blob(data) != object_id:
                self._disk.unlink(name, above)
                return None
            self._disk.utime(name, above, self._wall_ns())
        except OSError:
            return None
        return data

    def keep(self, object_id: bytes, data: bytes, *, changes: bool) -> None:
        """Keeps a chunk, if it is not here and there is room. `changes`: of a file that was seen to change."""
        if not 0 < len(data) <= CHUNK_BYTES_MAX or not self.most_bytes or object_id in self:
            return
        if not changes and self._bytes + len(data) > self.most_bytes // 2:
            return
        if changes or self.work is None:
            self._write(object_id, data, _shrunk([data])[0], changes=changes)
            return
        self._gathered.append((object_id, data))
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= TOGETHER_BYTES:
            some, size = self._gathered, self._gathered_bytes
            self._gathered, self._gathered_bytes = [], 0
            self._waiting.append((some, size, self.work(partial(_shrunk, [data for _, data in some]))))
            self._waiting_bytes += size
            self._settle(WAITING_BYTES_MAX)

    def _settle(self, most_bytes: int) -> None:
        """Writes what workers have compressed; waits until they have so many bytes at most."""
        while self._waiting and (self._waiting_bytes > most_bytes or self._waiting[0][2].done()):
            some, size, compressed = self._waiting.popleft()
            self._waiting_bytes -= size
            for (object_id, data), shrunk in zip(some, compressed.result(), strict=True):
                self._write(object_id, data, shrunk, changes=False)

    def _write(self, object_id: bytes, data: bytes, shrunk: bytes, *, changes: bool) -> None:
        """Writes a chunk as `_shrunk` has it, if there is room."""
        if not changes and not shrunk:
            self._unshrunk_left -= len(data)
            if self._unshrunk_left < 0:
                return
        stored = ZSTD + shrunk if shrunk else PLAIN + data
        try:
            above = self._opened()
            if not self._has_room(above, len(stored), changes=changes):
                return
            with self._disk.opened(_name(object_id), CREATE_FLAGS, above) as fd:
                self._disk.write(fd, stored)
                self._disk.futime(fd, self._wall_ns() if changes else PROBATION_NS)
        except OSError:
            return
        self._bytes += len(stored)

    def _has_room(self, above: int, size: int, *, changes: bool) -> bool:
        """Whether there is room for a chunk of so many bytes, for which others may have gone."""
        room = self._room(above)
        if size > room // KEPT_SHARE or (not changes and self._bytes + size > room // 2):
            return False
        if self._bytes + size > room:
            self.trim(room - room // KEPT_SHARE - size)
        return self._disk.free_bytes(above) - size >= DISK_MARGIN_BYTES + self.coming_bytes

    def _room(self, above: int) -> int:
        """How many bytes it may have now: what it has counts as free."""
        free = self._disk.free_bytes(above) + self._bytes
        return max(0, min(self.most_bytes, free // FREE_SHARE, free - DISK_MARGIN_BYTES - self.coming_bytes))

    def pass_over(self, object_id: bytes) -> None:
        """Another chunk took the place of this one, of which nothing is made any more: it is among the first to go."""
        with suppress(OSError):
            self._disk.utime(_name(object_id), self._opened(), PROBATION_NS)

    def note(self) -> None:
        """Notes how full it is, for the next push. Where it has less room than it had, it gets smaller."""
        self._settle(0)
        some, self._gathered, self._gathered_bytes = self._gathered, [], 0
        for object_id, data in some:
            self._write(object_id, data, _shrunk([data])[0], changes=False)
        if self._dir < 0 and not self._db.get(BASES_KEY):
            return
        try:
            room = self._room(self._opened())
        except OSError:
            return
        if self._bytes > room:
            self.trim(room)
        else:
            self._db.update(BASES_KEY, self._bytes)

    def trim(self, left_bytes: int) -> None:
        """Removes what was used least recently, until it has so many bytes at most."""
        self._bytes = _remove(self._tree, self._db, lambda _: left_bytes)[0]

    def _opened(self) -> int:
        with self._lock:
            if self._dir < 0:
                self._dir = self._tree.state_dir(DIR)
                noted = self._db.get(BASES_KEY)
                self._bytes = sum(f.size for f in _found(self._disk, self._dir)) if noted is None else noted
            return self._dir


class _File(NamedTuple):
    time_ns: int
    size: int
    name: bytes


def make_room(tree: WorkTree, db: State, least_bytes: int | None = None) -> int:
    """Removes chunks of a folder, the least recently used first, until so many bytes are free again; None: all.

    -> how many were freed: fewer where no more is there, or the disk fails.
    """
    return _remove(tree, db, lambda total: total - least_bytes if least_bytes is not None else 0)[1]


def _remove(tree: WorkTree, db: State, left_of: Callable[[int], int]) -> tuple[int, int]:
    """Removes the least recently used until so many bytes are left of them all. -> the bytes left, and removed."""
    disk, removed = tree.disk, 0
    try:
        found = _found(disk, tree.state_dir(DIR)) if disk.look(DIR, tree.state_dir()) is not None else []
    except OSError:
        return db.get(BASES_KEY) or 0, 0
    left = sum(f.size for f in found)
    wanted = left_of(left)
    with suppress(OSError):
        for file in sorted(found):
            if left <= wanted:
                break
            disk.unlink(file.name, tree.state_dir(DIR))
            left, removed = left - file.size, removed + file.size
    db.update(BASES_KEY, left)
    return left, removed


def _found(disk: Disk, above: int) -> list[_File]:
    looked = ((name, disk.look(name, above)) for name in disk.names(above))
    return [_File(st.st_mtime_ns, st.st_size, name) for name, st in looked if st is not None]


def _name(object_id: bytes) -> bytes:
    return object_id[:ID_BYTES].hex().encode()


def _shrunk(chunks: Sequence[bytes]) -> list[bytes]:
    """Chunks compressed, but b"" where a sample of one shrinks too little for it to be worth the time."""
    compressor, out = _zstd().ZstdCompressor(level=LEVEL), list[bytes]()
    for data in chunks:
        sample = data[len(data) // 2 :][:SAMPLE_BYTES]
        shrinks = len(compressor.compress(sample)) < len(sample) - len(sample) // SHRINKS_SHARE
        out.append(compressor.compress(data) if shrinks else b"")
    return out


def _unpacked(stored: bytes) -> bytes | None:
    if stored[:1] == PLAIN:
        return stored[1:]
    if stored[:1] != ZSTD:
        return None
    try:
        if not 0 < _zstd().frame_content_size(stored[1:]) <= CHUNK_BYTES_MAX:
            return None
        data: bytes = _zstd().ZstdDecompressor().decompress(stored[1:])
    except _zstd().ZstdError:
        return None
    return data
