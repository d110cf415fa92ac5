"""What a push has stored so far, noted in the local state: the next push goes on with it, also after a kill.

Notes are written behind, at most one a second or one per `NOTED_BYTES`, each under a key of its own, so that what is
written grows with what is stored. A kill costs what was stored since the last one: it is sent again. They count under
the config, generation and key epoch they were made for, and go when a version is agreed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metasync.codec import Reader, bytes32, u32, u64
from metasync.errors import FormatError, UpgradeError, WorkspaceError
from metasync.local.state import LocalDb
from metasync.store.index import Index, PackRecord, decode_segment, encode_segment, pack_objects, segments_of
from metasync.transfer.late_copies import Trail, decode_trails, encode_trails

COUNT_KEY: Final = "stored notes"  # how many notes there are; each lies under this key and its number
NOTE_EVERY_S: Final = 1.0  # a note costs one sync of the disk
NOTED_BYTES: Final = 64 << 20  # of packs that may have to be sent again where a push is fast
CONTEXT_BYTES: Final = 32 + 8 + 4
NOTES_MAX: Final = 1 << 20
NOTE_BYTES_MAX: Final = 1 << 30  # of one note: what encodes an index segment


class KeptPack(NamedTuple):
    """A pack that an earlier push stored. `trail`: where copies are missing, if not all of them were waited for.

    `objects`: what lies in it, as `pack_objects` has it.
    """

    record: PackRecord
    objects: bytes
    trail: Trail | None


class Notes:
    """One push's notes. From the thread that pushes."""

    def __init__(self, db: LocalDb, config: bytes, generation: int, epoch: int, clock: Callable[[], float]) -> None:
        self._db = db
        self._context = config + u64(generation) + u32(epoch)
        self._clock = clock
        self._last = clock()
        self._waiting: list[KeptPack] = []
        self._bytes = 0

    def load(self, index: Index) -> list[KeptPack]:
        """What an earlier push stored that is of use to this one: `index` does not name it yet."""
        count = _count(self._db)
        found: list[KeptPack] = []
        named = index.packs() if count else {}
        for n in range(count):
            data = self._db.get(f"{COUNT_KEY} {n}") or b""
            if data[:CONTEXT_BYTES] == self._context:
                with contextlib.suppress(FormatError, UpgradeError):  # then these are stored anew
                    found += _decode(data)
        return [k for k in found if (k.record.generation, k.record.name) not in named]

    def add(self, pack: KeptPack) -> None:
        """Notes a stored pack, now or a little later."""
        self._waiting.append(pack)
        self._bytes += pack.record.size
        if self._bytes >= NOTED_BYTES or self._clock() - self._last >= NOTE_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes what is not written yet. Where the disk has no room for it, it is not: then packs are sent anew."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._last = self._clock()
        if not waiting:
            return
        with contextlib.suppress(WorkspaceError), self._db.transaction():
            count = _count(self._db)
            notes = [self._context + note for note in _encode(waiting)]
            for n, note in enumerate(notes, count):
                self._db.set(f"{COUNT_KEY} {n}", note)
            self._db.set(COUNT_KEY, u32(count + len(notes)))


def forget(db: LocalDb) -> None:
    """Drops all notes: what they name is agreed, or will never be."""
    count = _count(db)
    if count:
        with db.transaction():
            for n in range(count):
                db.set(f"{COUNT_KEY} {n}", None)
            db.set(COUNT_KEY, None)


def _count(db: LocalDb) -> int:
    data = db.get(COUNT_KEY) or b""
    return min(int.from_bytes(data, "big"), NOTES_MAX) if len(data) == 4 else 0


def _encode(packs: Sequence[KeptPack]) -> list[bytes]:
    trails = {k.trail.key: k.trail for k in packs if k.trail is not None}
    out = []
    for segment in segments_of((k.record, k.objects) for k in packs):
        keys = [(p.generation, p.name) for p in segment.packs]
        out.append(bytes32(encode_trails([trails[k] for k in keys if k in trails])) + encode_segment(segment))
    return out


def _decode(note: bytes) -> list[KeptPack]:
    r = Reader(note, "packs of an earlier push", CONTEXT_BYTES)
    trails = {t.key: t for t in decode_trails(r.bytes32(NOTE_BYTES_MAX))}
    segment = decode_segment(note[r.pos :])
    return [KeptPack(p, pack_objects(segment.inside(p)), trails.get((p.generation, p.name))) for p in segment.packs]
