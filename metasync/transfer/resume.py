"""What a push has stored so far, noted in the local state: the next push goes on with it, also after a kill.

Notes are written behind, at most one a second or one per `NOTED_BYTES`, each a record of its own, so that what is
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
from metasync.local.state_keys import STORED, StoredNote
from metasync.store.index import Index, PackRecord, decode_segment, encode_segment, pack_objects, segments_of
from metasync.transfer.late_copies import Trail, decode_trails, encode_trails

NOTE_EVERY_S: Final = 1.0  # a note costs one sync of the disk
NOTED_BYTES: Final = 64 << 20  # of packs that may have to be sent again where a push is fast
CONTEXT_BYTES: Final = 32 + 8 + 4
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
        notes = self._db.records(STORED)
        found: list[KeptPack] = []
        named = index.packs() if notes else {}
        for _, data in notes:
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
            notes = enumerate(_encode(waiting), self._db.count_records(STORED))
            self._db.put_records(STORED, [StoredNote(n, self._context + note) for n, note in notes])


def forget(db: LocalDb) -> None:
    """Drops all notes: what they name is agreed, or will never be."""
    if count := db.count_records(STORED):
        db.delete_records(STORED, range(count))


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
