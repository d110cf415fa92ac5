"""Chunks that are on this device: of files that a checkout is going to replace, and in the base cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from metasync.errors import FormatError, UpgradeError
from metasync.local import settings
from metasync.local.state import State
from metasync.objects import walk
from metasync.objects.model import Chunk, Entry, Kind, split
from metasync.runtime.limits import BASE_CACHE
from metasync.session.folder import STATE_DIR
from metasync.session.session import Session
from metasync.worktree.bases import MB_DEFAULT, BaseCache
from metasync.worktree.disk import READ_FLAGS

SMALL_BYTES_LEAST: Final = 4 << 10  # of a file of one chunk: of a smaller one a delta saves no more than its row takes


def bases_of(s: Session) -> BaseCache:
    """The old chunks that are kept in a folder."""
    kept = settings.read(s.directory / STATE_DIR / settings.FILE).values.get(BASE_CACHE, MB_DEFAULT)
    return BaseCache(s.tree, s.db, s.ids, int(kept) << 20, s.wall_ns)


def known_chunks(db: State, entry: Entry | None) -> Sequence[Chunk]:
    """The chunks of a file, as far as this device knows them without asking; none of what is no file."""
    if entry is None or entry.kind is not Kind.FILE or not entry.size:
        return ()
    if not entry.root:
        return (Chunk(entry.content, entry.size),)
    task = walk.chunks((entry.root,))
    try:
        wanted: Collection[bytes] = next(task)[1]
        while True:
            wanted = task.send(db.get_objects(wanted))[1]
    except StopIteration as stop:
        chunks: Sequence[Chunk] = stop.value[entry.root]
        return chunks
    except (KeyError, FormatError, UpgradeError):
        return ()


class _Place(NamedTuple):
    path: bytes
    offset: int
    size: int


class OldChunks:
    """What a checkout has at hand. `old`: files that it replaces, as the scan saw them. A chunk is checked before it is
    used, for somebody may write to the file. For one thread at a time. `coming_bytes`: of all that it brings, whose
    room on the disk is not for the cache."""

    def __init__(self, s: Session, old: Mapping[bytes, Entry], coming_bytes: int = 0) -> None:
        self._s = s
        self._old = old
        self._places: dict[bytes, _Place] = {}
        self._cache = bases_of(s) if old else None
        if self._cache is not None:
            self._cache.coming_bytes = coming_bytes
        for path, entry in old.items():
            offset = 0
            for chunk in known_chunks(s.db, entry):
                self._places.setdefault(chunk.id, _Place(path, offset, chunk.size))
                offset += chunk.size

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._places or (self._cache is not None and object_id in self._cache)

    def get(self, object_id: bytes) -> bytes | None:
        """A chunk's bytes, which are those of its id; None: it is not here any more."""
        place = self._places.get(object_id)
        data = self._read(place) if place is not None else None
        if data is not None and self._s.ids.blob(data) == object_id:
            return data
        self._places.pop(object_id, None)
        return self._cache.get(object_id) if self._cache is not None else None

    def keep(self, path: bytes, chunk_id: bytes, data: bytes | memoryview) -> None:
        """Keeps a chunk of the new file at a path, if it replaces an old one: it changes, and will again."""
        if self._cache is None:
            return
        self._cache.coming_bytes -= min(len(data), self._cache.coming_bytes)
        if path in self._old and len(data) >= SMALL_BYTES_LEAST:
            self._cache.keep(chunk_id, bytes(data), changes=True)

    def end(self) -> None:
        """All that was wanted is here."""
        if self._cache is not None:
            self._cache.note()

    def _read(self, place: _Place) -> bytes | None:
        parent, name = split(place.path)
        try:
            with self._s.tree.disk.opened(name, READ_FLAGS, self._s.tree.dir(parent)) as fd:
                return self._s.tree.disk.read(fd, place.size, place.offset)
        except OSError:
            return None
