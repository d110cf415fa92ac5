"""One push's own packs: objects go in, stored packs and an index segment come out (consensus.md, rule 6.2).

An upload lives as long as the push, over all its attempts. Packs of an attempt that lost count for the next one, while
their generation is not fenced and their key epoch is the base's. So do packs of an earlier push of this device that was
never agreed, even after a kill: `Notes` name them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

from metasync.codec import Reader, bytes32, u32, u64
from metasync.errors import FormatError, UpgradeError, WorkspaceError
from metasync.events import Listener, Progress
from metasync.local.lock import LOOK_EVERY_S
from metasync.local.spill import IdSet, Spool
from metasync.local.state import LocalDb
from metasync.local.state_keys import STORED, StoredNote
from metasync.objects.model import ObjectKind
from metasync.runtime.effects import Runner
from metasync.store.balance import Balance
from metasync.store.deltas import have_bases
from metasync.store.index import (
    Index,
    IndexSegment,
    PackRecord,
    decode_segment,
    encode_segment,
    objects_at,
    pack_objects,
    packed_ids,
    segments_of,
)
from metasync.store.pack_format import Delta, deltas_in
from metasync.store.packs import Packer, PackFormat, SealedPack
from metasync.transfer.copies import Stored, Transfer, record_of
from metasync.transfer.estimates import Direction
from metasync.transfer.late_copies import KEPT_BYTES_MAX, Trail, decode_trails, encode_trails, trail_of
from metasync.transfer.levels import Levels

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
    """Notes in the local state of what one push has stored: the next push goes on with it. For the pushing thread.

    Notes are written behind, one a second or one per `NOTED_BYTES`, each as a record of its own. What was stored after
    the last note is sent again after a kill. They count under the config, generation and key epoch they were made for,
    and are dropped when a version is agreed.
    """

    def __init__(self, db: LocalDb, config: bytes, generation: int, epoch: int, clock: Callable[[], float]) -> None:
        self._db = db
        self._context = config + u64(generation) + u32(epoch)
        self._clock = clock
        self._last = clock()
        self._waiting: list[KeptPack] = []
        self._bytes = 0

    def load(self, index: Index) -> list[KeptPack]:
        """Packs that an earlier push stored and `index` does not name."""
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
        """Writes what is not written yet; drops it if the disk is full."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._last = self._clock()
        if not waiting:
            return
        with contextlib.suppress(WorkspaceError), self._db.transaction():
            notes = enumerate(_encode(waiting), self._db.count_records(STORED))
            self._db.put_records(STORED, [StoredNote(n, self._context + note) for n, note in notes])


def forget_notes(db: LocalDb) -> None:
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


LAST_BYTES = 256 << 10  # of packs under way: about a round trip's worth, however long one takes
UNKNOWN_LAST_BYTES = 2 << 20  # on lines of which nothing is known yet: half a second at 4 MB/s
AHEAD_RTTS = 1.5  # round trips before its end: others are kept from agreeing for no longer than it takes to ask them
PAUSE_LEAST_S = 0.01
UPLOADING_BYTES_EACH = 8 << 20  # of sealed packs under way per backend: the next one flows while one is answered
UPLOADING_BYTES_MAX = 48 << 20  # of all of them, each sent to its R backends from the same bytes


class _Sent(NamedTuple):
    """A pack that is on its way: where `Upload._objects` has what lies in it, and how many bytes that is unpacked.

    `data`: the pack's bytes, where it will lack copies.
    """

    future: Future[Any]
    place: slice
    raw_bytes: int
    data: bytes


@dataclass(eq=False)
class Upload:
    """Packs objects and stores the packs while the caller goes on reading.

    `begin` is called once, with the first object; what it returns is called before the first pack is sent. `carried`:
    what `carry` returned after the push before, so that backends of unequal capacities get their shares. `least`: of
    each pack as many copies are waited for (all, if None), `trails` says what is missing then. `noted` is told of each
    stored pack. `look` is called now and then while packs are waited for, and may break that off by what it raises.
    """

    transfer: Transfer
    form: PackFormat
    generation: int
    _: KW_ONLY
    runner: Runner
    listener: Listener
    entropy: Callable[[int], bytes]
    clock: Callable[[], float]
    begin: Callable[[], Callable[[], None]] | None
    carried: bytes = b""
    least: int | None = None
    noted: Callable[[KeptPack], None] = lambda _: None
    look: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.stored: list[Stored] = []
        self.bytes_stored = 0
        self._waiting_bytes = 0  # of objects, as they were added, in packs that are not stored yet
        self._to_read_bytes: int | None = None
        self._told_bytes = 0
        self._read_bytes: Callable[[], int] = lambda: 0
        self.at_hand: dict[bytes, bytes] = {}  # sealed packs that lack copies, as many as memory allows
        self._own = IdSet()
        self._rows: set[Delta] = set()
        self._records: list[tuple[PackRecord, slice]] = []  # and where in `_objects` theirs are, packed
        self._objects = Spool()
        self._resumed: list[KeptPack] = []
        self._kept: dict[bytes, int] = {}  # objects of an earlier push -> which of `_resumed` holds them
        self._used: set[int] = set()
        self._before: Callable[[], None] | None = None
        self._trails: dict[bytes, Trail] = {}
        self._running: deque[_Sent] = deque()
        self._uploading_bytes = 0
        self._changed = threading.Condition()
        self._packer: Packer | None = None
        self._balance: Balance | None = None

    def __contains__(self, object_id: bytes) -> bool:
        """True when this push stores the object, or is about to."""
        if object_id in self._own:
            return True
        if object_id in self._kept:
            self._used.add(self._kept[object_id])
            return True
        return False

    def add(self, kind: ObjectKind, object_id: bytes, data: bytes, delta: Delta | None = None) -> None:
        """Takes an object to be stored. Blocks while too much is under way. With `delta`, `data` is the delta."""
        if object_id in self:
            return
        self._waiting_bytes += len(data)
        if delta is not None:
            self._rows.add(delta)
        if self.begin is not None:
            begin, self.begin = self.begin, None
            self._before = begin()
        if self._packer is None:
            balance = self._balance = self._balance or Balance(self.transfer.placement, self.carried)
            choose, spread = (balance.choose, balance.even_packs) if balance.matters else (None, 1)
            self._packer = Packer(
                self.form,
                self.runner.submit_work,
                self.entropy,
                self._send,
                choose,
                spread,
                self._own,
                self._levels,
            )
        self._packer.add(kind, object_id, data, delta)

    @cached_property
    def _levels(self) -> Levels:
        placement, places = self.transfer.placement, self.transfer.places
        lines = [places[t.backend_id].name for t in placement.targets if t.backend_id in places]
        return Levels(self.form.level, self.transfer.estimates, lines, placement.copies, self.clock)

    def _send(self, pack: SealedPack) -> None:
        before, self._before = self._before, None
        if before is not None:
            before()
        size, targets = len(pack.data), self.transfer.placement.targets
        most = min(UPLOADING_BYTES_MAX, UPLOADING_BYTES_EACH * len(targets))
        if self._records and not self._uploading_bytes:
            self._levels.fell_behind()
        while not self._has_room(size, most):
            self.look()
        self._harvest()
        place = self._objects.put(objects_at(pack.places))
        self._records.append((record_of(pack, self.generation), place))
        raw_bytes = sum(segment.raw_bytes for segment in pack.segments)
        future = self.runner.start(self.transfer.upload(pack, self.generation, least=self.least))
        future.add_done_callback(lambda _f: self._ended(size))
        self._running.append(_Sent(future, place, raw_bytes, pack.data if self.least is not None else b""))

    def _has_room(self, size: int, most: int) -> bool:
        """Counts a pack as under way, once there is room for it; False: not yet."""
        with self._changed:
            if self._uploading_bytes and self._uploading_bytes + size > most:
                self._changed.wait(LOOK_EVERY_S)
            if self._uploading_bytes and self._uploading_bytes + size > most:
                return False
            self._uploading_bytes += size
            return True

    def _ended(self, size: int) -> None:
        with self._changed:
            self._uploading_bytes -= size
            self._changed.notify_all()

    def _harvest(self) -> None:
        """Takes what has ended meanwhile; raises what the storing of a pack raised."""
        for _ in range(len(self._running)):
            sent = self._running.popleft()
            if sent.future.done():
                self._take(sent.future.result(), sent)
            else:
                self._running.append(sent)

    def seal(self) -> None:
        """Has all that was added sent: `index_segments` is complete, though not all of it may be stored yet."""
        packer, self._packer = self._packer, None
        if packer is not None:
            packer.finish()

    def nearly_finish(self) -> None:
        """Waits until about a round trip is left until all that was added is stored, as far as the lines are known."""
        estimates = self.transfer.estimates

        def left_s() -> float:
            if self._uploading_bytes <= LAST_BYTES:
                return 0.0
            left, ahead = estimates.left_s(Direction.UP, self.clock()), AHEAD_RTTS * estimates.latency_s(Direction.UP)
            if left is None:
                return 0.0 if self._uploading_bytes <= UNKNOWN_LAST_BYTES else LOOK_EVERY_S
            return max(left - ahead, 0.0)

        self.finish(but=left_s)

    def finish(self, *, but: Callable[[], float] = lambda: LOOK_EVERY_S) -> None:
        """Waits until all that was added is stored, or `but` says 0.0; raises what storing a pack raised.

        `but` is asked again when a pack was stored, and after as many seconds as it says.
        """
        self.seal()
        while self._running and (pause_s := but()) > 0:
            sent = self._running[0]
            if self.runner.wait([sent.future], min(LOOK_EVERY_S, max(pause_s, PAUSE_LEAST_S))):
                self._running.popleft()
                self._take(sent.future.result(), sent)
            else:
                self.look()

    def _take(self, stored: Stored, sent: _Sent) -> None:
        self._waiting_bytes -= sent.raw_bytes
        self.bytes_stored += stored.record.size
        self.stored.append(stored)
        trail = trail_of(stored, self.transfer) if len(stored.holders) < stored.copies else None
        self.noted(KeptPack(stored.record, self._objects.get(sent.place), trail))
        if trail is not None and self.least is not None:
            self._trails[trail.name] = trail
            if sum(map(len, self.at_hand.values())) + len(sent.data) <= KEPT_BYTES_MAX:
                self.at_hand[trail.name] = sent.data
        self._tell()

    def _tell(self) -> None:
        total = self._to_read_bytes
        done = self.bytes_stored if total is None else min(self._read_bytes() - self._waiting_bytes, total)
        self._told_bytes = max(self._told_bytes, done)  # trees and index wait too, and were never read
        self.listener(Progress("upload", self._told_bytes, total, "B"))

    def reserve(self, objects: int) -> None:
        """About so many more are going to be added: the set of their ids need not grow on the way."""
        self._own.reserve(objects)

    def expect(self, to_read_bytes: int, read_bytes: Callable[[], int]) -> None:
        """Progress counts from here on what was read and is stored, of so many bytes that a scan is going to read.

        `read_bytes` tells how many of them were read. What is read and stored already counts as soon as it is read.
        """
        self._to_read_bytes, self._read_bytes, self._told_bytes = to_read_bytes or None, read_bytes, 0
        if to_read_bytes:
            self._tell()

    def end(self) -> None:
        """Lets go of those that are asked and told. What was stored, and what is said of it, stays."""
        self.begin, self._before, self._read_bytes = None, None, int
        self.noted, self.look = (lambda _: None), (lambda: None)

    def save(self, wait_s: float) -> None:
        """Has noted what a push that failed has stored; waits so long for what is under way."""
        self.runner.wait([sent.future for sent in self._running], wait_s, for_all=True)
        while self._running:
            sent = self._running.popleft()
            future = sent.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._take(future.result(), sent)

    def resume(self, kept: Iterable[KeptPack]) -> tuple[int, int]:
        """Counts packs as stored that an earlier push left behind, those of which this push needs an object.

        Packs that lack copies are left out where all are waited for. Returns how many there are, and their bytes.
        """
        for pack in kept:
            if pack.trail is None or self.least is not None:
                self._kept.update((object_id, len(self._resumed)) for object_id in packed_ids(pack.objects))
                self._resumed.append(pack)
        return len(self._resumed), sum(pack.record.size for pack in self._resumed)

    def trails(self) -> list[Trail]:
        """The packs of `index_segments` that lack copies which nobody waited for."""
        resumed = (self._resumed[n].trail for n in sorted(self._used))
        return [*(t for t in resumed if t is not None), *self._trails.values()]

    def carry(self) -> bytes:
        """How unevenly the backends are loaded now, for `carried` of the next push."""
        return self._balance.carry() if self._balance is not None else self.carried

    def counting(self, min_generation: int, epoch: int) -> bool:
        """True when what it stored, and what it is going to, may be named by a state with this fence and epoch."""
        return self.generation >= min_generation and self.form.epoch == epoch

    def has_bases(self, index: Index) -> bool:
        """Whether all deltas that it took, or found stored, can be opened by this index."""
        kept = (row for pack in self._resumed for row in deltas_in(pack.record.tags))
        return have_bases(index, chain(self._rows, kept))

    def index_segments(self) -> Iterator[IndexSegment]:
        """The index segments of all packs sent so far: one as a rule, none when there are no packs."""
        used = (self._resumed[n] for n in sorted(self._used))
        own = ((record, self._objects.get(place)) for record, place in self._records)
        return segments_of(chain(((kept.record, kept.objects) for kept in used), own))


def known_in(index: Index, upload: Upload) -> Callable[[bytes], bool]:
    """Whether an object need not be stored: the base's index names it, or this push stores it (architecture.md, D4)."""
    return lambda object_id: object_id in upload or object_id in index
