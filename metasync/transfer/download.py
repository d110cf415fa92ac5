"""Fetches packs from all their holders at once, as `schedule` decides, and verifies them (architecture.md, D7).

Every request is a task of its own, and so is the opening of its answer, so a connection is free before its answer is
unpacked. The thread that called `run` takes all decisions. Answers are verified before they are opened: a whole pack by
its name, a range by its segments' digests. A bad copy is noted as a `Fault`, and another holder is asked. A late answer
is asked for twice; a holder that still owes one at the end is asked last until it comes.

A clone begins its first packs ahead (`begin`). While it reads its trees, most lines are idle, and it will want nearly
all contents of the index. So each backend that is not asked for trees is asked for one piece of a pack, `HOLDER_BYTES`
at most, unless the trees come very soon. A download that wants the pack takes over what is under way (`Download.want`);
if none does, that much was fetched in vain.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from metasync.errors import (
    BackendError,
    DamagedError,
    FormatError,
    MetaSyncError,
    NotFoundError,
    OtherSizeError,
    UnreachableError,
)
from metasync.runtime.effects import Op, Reply, Runner, Task, Urgency, Work
from metasync.store import pack_format
from metasync.store.index import PackRecord
from metasync.store.pack_format import Located
from metasync.store.packs import read_objects, read_segment
from metasync.transfer.copies import Begun, Fault, Transfer, pack_path, read_op, sized
from metasync.transfer.estimates import Direction, timed
from metasync.transfer.schedule import CUT_BYTES_LEAST, Failure, Piece, Schedule, Take

WHOLE_BYTES_MAX: Final = 256 << 10  # a pack this small is fetched whole: one request, and its name verifies all of it
GAP_BYTES_MAX: Final = 64 << 10  # segments nearer than this are fetched with what lies between them
CUT_STEP_BYTES: Final = 256 << 10  # between places where a pack may be cut: fine enough to end together
BESIDE_AFTER_S: Final = 0.03  # lines that answer sooner are not what is waited for
OPENING_WAIT_S: Final = 10.0  # for a last piece that is being delivered, when a download ends early

Deliver: TypeAlias = Callable[[Sequence[tuple[Located, memoryview]]], None]
"""Takes the objects of one segment, from a worker thread. Must copy what it keeps."""


class Lost(NamedTuple):
    """Objects that cannot be had from this pack, and why."""

    record: PackRecord
    objects: list[Located]
    error: MetaSyncError


class _Pack:
    """One pack of which something is wanted."""

    def __init__(self, record: PackRecord, wanted: Iterable[Located]) -> None:
        self.record = record
        self.at = pack_format.offsets(record.segments)
        self.by_segment: dict[int, list[Located]] = {}
        for w in sorted(wanted, key=lambda w: (w.segment, w.offset)):
            self.by_segment.setdefault(w.segment, []).append(w)
        self.problems: list[BackendError | FormatError] = []
        self.named: set[str] = set()  # whose fault was noted

    def numbers(self, piece: Piece) -> list[int]:
        """The segments wanted of a piece."""
        return [i for i in self.by_segment if piece.begin <= self.at[i] and self.at[i + 1] <= piece.end]

    def objects(self, piece: Piece) -> list[Located]:
        return [o for i in self.numbers(piece) for o in self.by_segment[i]]

    def cuts(self, begin: int, end: int) -> tuple[int, ...]:
        """Where wanted segments begin, as far as a part may end there: each part has something that is wanted."""
        out: list[int] = []
        if end - begin >= 2 * CUT_BYTES_LEAST:
            begins = [self.at[i] for i in self.by_segment if begin <= self.at[i] < end]
            for at in begins[1:]:
                if (out[-1] if out else begin) + CUT_STEP_BYTES <= at:
                    out.append(at)
        return tuple(out)


class Download:
    """Fetches objects of packs and delivers each, verified, from worker threads. Used once, from one thread.

    `beside` gets the names of busy backends after `BESIDE_AFTER_S`, and whenever they may have changed.
    """

    def __init__(
        self,
        transfer: Transfer,
        runner: Runner,
        deliver: Deliver,
        urgency: Urgency,
        beside: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        self._transfer = transfer
        self._beside = beside
        self._runner = runner
        self._clock = runner.clock
        self._deliver = deliver
        self._urgency = urgency
        self._places = {p.name: p for p in transfer.places.values()}
        away = {p.name for p in self._places.values() if transfer.away(p)}
        self._schedule = Schedule(lambda name: transfer.estimates.of(name, Direction.DOWN), away=away | transfer.silent)
        self._taking = threading.Lock()  # many small objects: two threads would wait for Python's lock at each of them
        self._packs: list[_Pack] = []
        self._lost: list[Lost] = []
        self._asking: dict[Future[Any], Take] = {}
        self._opening: dict[Future[Any], Take] = {}
        self._begun: set[int] = set()  # numbers of takes that were begun before they were wanted: all of their piece
        self._untimed: set[int] = set()  # those of them that `timed` knows nothing of

    def want(self, record: PackRecord, objects: Iterable[Located]) -> None:
        """These objects of a pack are wanted too. May be called between what `run` yields."""
        t, pack = self._transfer, _Pack(record, objects)
        if not pack.by_segment:
            return
        order = [p.name for p in t.read_order(record.name)]
        if not order:
            self._lost.append(Lost(record, [o for some in pack.by_segment.values() for o in some], self._why(pack)))
            return
        promised = {t.places[i].name for i in t.placement.primary(record.name) if i in t.places}
        homes = tuple(n for n in order if n in promised)
        others = tuple(n for n in order if n not in promised)
        key = len(self._packs)
        self._packs.append(pack)
        here = self._take_over(pack, Piece(key, 0, 0, homes, others))
        for begin, size in ranges(record, (i for i in pack.by_segment if pack.at[i] >= here)):
            begin, end = max(begin, here), begin + size
            self._schedule.add(Piece(key, begin, end, homes, others, pack.cuts(begin, end)))

    def _take_over(self, pack: _Pack, piece: Piece) -> int:
        """Takes over a fetch that was begun before its pack was wanted. -> how many of its first bytes it brings."""
        key = pack.record.generation, pack.record.name
        begun, is_timed = self._transfer.begun.pop(key, None), True
        if begun is None:
            begun, is_timed = self._transfer.held(key), False
        if begun is None or begun.holder not in piece.homes:
            return 0
        piece = piece._replace(end=begun.size)
        if not pack.numbers(piece) or not self._schedule.may_ask(begun.holder):
            return 0
        self._schedule.add(piece)
        now = self._clock()
        take = self._schedule.begun(piece, begun.holder, now if begun.reply.done() else begun.at, now)
        self._begun.add(take.number)
        if not is_timed:
            self._untimed.add(take.number)
        self._asking[begun.reply] = take
        return begun.size

    def run(self) -> Generator[Lost, None, None]:
        """Fetches until all is delivered or lost, and yields what is lost. Delivers nothing after its end.

        After a failure an object may be delivered twice.
        """
        began = self._clock()
        try:
            while True:
                while self._lost:
                    yield self._lost.pop()
                if self._schedule.is_done:
                    return
                while (take := self._schedule.next(self._clock())) is not None:
                    self._asking[self._runner.start(self._ask(take))] = take
                self._wait(self._told_beside(began))
        finally:
            self._leave()

    def _told_beside(self, began: float) -> float | None:
        """Tells `beside` if it is time. -> when it will be, if that is still to come."""
        if self._beside is None:
            return None
        if self._clock() < began + BESIDE_AFTER_S:
            return began + BESIDE_AFTER_S
        self._beside({take.holder for take in self._asking.values()})
        return None

    def _wait(self, until: float | None) -> None:
        """Until something ends, or an answer is late, or to this time."""
        wakes = [at for at in (self._schedule.wake_at(), until) if at is not None]
        pending = [*self._asking, *self._opening]
        assert pending, "nothing is under way, and something is wanted"
        left = max(0.0, min(wakes) - self._clock()) if wakes else None
        for future in self._runner.wait(pending, left):
            if future in self._asking:
                self._answered(self._asking.pop(future), future.result())
            else:
                self._opened(self._opening.pop(future), future.exception())

    def _leave(self) -> None:
        """Waits for deliveries under way, and notes the holders that still owe an answer."""
        silent = self._transfer.silent

        def heard(name: str, future: Future[Any]) -> None:
            silent.discard(name)
            if not future.cancelled() and future.exception() is None:
                error = future.result().error
                if isinstance(error, UnreachableError):
                    self._transfer.down.setdefault(name, error)

        for future, take in self._asking.items():
            silent.add(take.holder)
            future.add_done_callback(partial(heard, take.holder))
        if self._opening:
            self._runner.wait(self._opening, OPENING_WAIT_S, for_all=True)

    def _teach(self, take: Take, reply: Reply) -> None:
        """Has the estimates learn from a call that was made before there were any: in the thread that tells them all
        else."""
        estimates, now = self._transfer.estimates, self._clock()

        def taught() -> Task:
            call = estimates.begin(take.holder, Direction.DOWN, take.piece.size, now - reply.seconds)
            estimates.end(call, len(reply.value), reply.seconds, now)
            yield from ()

        self._runner.start(taught())

    # --- one request

    def _range(self, take: Take) -> tuple[int, int, list[int]]:
        """Offset, length and the wanted segments of what is asked for: the whole pack, or whole segments of it."""
        pack, piece = self._packs[take.piece.key], take.piece
        numbers = pack.numbers(piece)
        if piece.size == pack.record.size or take.number in self._begun:
            return 0, piece.size, numbers
        begin, last = pack.at[numbers[0]], numbers[-1]
        return begin, pack.at[last] + pack.record.segments[last].stored_bytes - begin, numbers

    def _ask(self, take: Take) -> Generator[Any, Any, Reply]:
        """Older storage ids are asked when newer ones lack it."""
        record, place = self._pack(take).record, self._places[take.holder]
        offset, size, _ = self._range(take)
        reply = Reply(error=NotFoundError("no storage"))
        for storage_id in reversed(place.storage_ids):
            path, whole = pack_path(storage_id, record.generation, record.name), size == record.size
            op = read_op(place, path, size, self._urgency, whole=whole, offset=offset)
            reply = yield from _asked(self._transfer, op, size)
            if not isinstance(reply.error, NotFoundError):
                break
        return reply

    def _answered(self, take: Take, reply: Reply) -> None:
        if reply.error is None and take.number in self._untimed:
            self._teach(take, reply)
        if reply.error is not None:
            self._failed(take, reply.error)
        elif self._schedule.answered(take, self._clock(), reply.seconds):
            self._opening[self._runner.start(_work(self._opener(take, reply.value)))] = take

    def _opener(self, take: Take, data: bytes) -> Callable[[], None]:
        """The work on one answer: verify, open, deliver. Runs in a worker."""
        pack, t, deliver = self._pack(take), self._transfer, self._deliver
        start, size, numbers = self._range(take)
        record = pack.record
        whole = size == record.size

        def run() -> None:
            if whole and hashlib.sha256(data).digest() != record.name:
                raise FormatError("is not the pack its name promises")
            view, wrong = memoryview(data), list[DamagedError]()
            for number in numbers:
                segment = record.segments[number]
                stored = view[pack.at[number] - start : pack.at[number] - start + segment.stored_bytes]
                raw = read_segment(record.header, stored, number, segment, t.form, verified=whole)
                right: list[tuple[Located, memoryview]] = []
                with self._taking:
                    try:
                        right.extend(read_objects(raw, pack.by_segment[number], t.check))
                    except DamagedError as e:
                        wrong.append(e)
                    deliver(right)
            if wrong:
                wrong[0].objects = tuple(i for e in wrong for i in e.objects)
                raise wrong[0]

        return run

    def _opened(self, take: Take, error: BaseException | None) -> None:
        if error is None:
            self._schedule.opened(take)
        elif isinstance(error, BackendError | FormatError):
            self._failed(take, error)
        elif isinstance(error, DamagedError):  # no copy can be better: the index is wrong
            pack = self._pack(take)
            self._schedule.forget([take.piece])
            self._schedule.opened(take)
            all_of_it = pack.objects(take.piece)  # what does not say which ones it is about comes from who took them
            wrong = [o for o in all_of_it if o.id in error.objects] if error.objects else all_of_it
            self._lost.append(Lost(pack.record, wrong, error))
        else:
            raise error

    def _failed(self, take: Take, error: BackendError | FormatError) -> None:
        pack, place = self._pack(take), self._places[take.holder]
        pack.problems.append(error)
        failure = Failure.MISSING if isinstance(error, NotFoundError) else Failure.BAD
        if isinstance(error, UnreachableError):
            failure = Failure.AWAY
            self._transfer.down[place.name] = error
        elif take.holder not in pack.named:
            pack.named.add(take.holder)
            if failure is Failure.BAD or place.backend_id in self._promised(pack.record):
                is_missing, is_altered = failure is Failure.MISSING, isinstance(error, FormatError | OtherSizeError)
                fault = Fault(place.name, pack.record.name, error.message, is_missing, is_altered)
                self._transfer.faults.append(fault)
        for piece in self._schedule.failed(take, failure, self._clock()):
            gone = self._packs[piece.key]
            self._lost.append(Lost(gone.record, gone.objects(piece), self._why(gone)))

    def _pack(self, take: Take) -> _Pack:
        return self._packs[take.piece.key]

    def _promised(self, record: PackRecord) -> set[bytes]:
        """Ids of the backends that must hold a copy: not those it was not moved to yet."""
        t = self._transfer
        promised = set(t.placement.primary(record.name))
        return promised & set(t.before.primary(record.name)) if t.before is not None else promised

    def _why(self, pack: _Pack) -> MetaSyncError:
        """`DamagedError` when reachable copies exist no more intact, `UnreachableError` when holders are away."""
        t, name = self._transfer, pack.record.name.hex()[:16]
        away = [n for n, e in sorted(t.down.items()) if isinstance(e, UnreachableError)]
        where = f" ({', '.join(away)} cannot be reached)" if away else ""
        no_damage = all(isinstance(e, UnreachableError | NotFoundError) for e in pack.problems)
        if no_damage and any(i not in t.places for i in t.home(pack.record.name)):
            return UnreachableError(
                f"pack {name} lies on backends that this device has no way to{where}",
                next_step="`metasync backend list` names them; `metasync backend link NAME URL` links one.",
            )
        if no_damage and away:
            return UnreachableError(f"pack {name} cannot be read now{where}", next_step="Try again when they are back.")
        return DamagedError(
            f"pack {name} is intact on no backend that answers{where}",
            next_step="`metasync check --read-data` lists what is damaged, and where.",
        )


def ranges(record: PackRecord, wanted: Iterable[int]) -> list[tuple[int, int]]:
    """What to ask for of a pack: (offset, length) of ranges, the whole pack when that is not much more."""
    numbers = sorted(set(wanted))
    if not numbers:
        return []
    needed = sum(record.segments[i].stored_bytes for i in numbers)
    if record.size <= WHOLE_BYTES_MAX or 2 * needed >= record.size:
        return [(0, record.size)]
    at = pack_format.offsets(record.segments)
    out: list[tuple[int, int]] = []
    for i in numbers:
        end = at[i] + record.segments[i].stored_bytes
        if out and at[i] - sum(out[-1]) <= GAP_BYTES_MAX:
            out[-1] = (out[-1][0], end - out[-1][0])
        else:
            out.append((at[i], end - at[i]))
    return out


def _asked(t: Transfer, op: Op, size: int) -> Generator[Any, Any, Reply]:
    """Asks for `size` bytes of a pack."""
    return (yield from sized(op, (yield from timed(t.estimates, op, size))))


def _work(function: Callable[[], None]) -> Generator[Any, Any, None]:
    yield Work(function)


HOLDER_BYTES: Final = 4 << 20  # of each backend: what a line of 5 MB/s carries while a tree is read
UNCUT_BYTES_MAX: Final = HOLDER_BYTES + (HOLDER_BYTES >> 3)  # a pack of the usual size and its padding is not cut


Chosen: TypeAlias = tuple[PackRecord, str, int]


def choose(packs: Iterable[tuple[PackRecord, Sequence[str]]]) -> list[Chosen]:
    """Chooses one pack for each holder: (pack, holder, how many of its first bytes).

    The largest of the newest packs go first: what was stored last was replaced least.
    """
    out: list[Chosen] = []
    busy: set[str] = set()
    sized = [(record, holders, size) for record, holders in packs if (size := first_bytes(record))]
    for record, holders, size in sorted(sized, key=lambda p: (-p[0].generation, -p[2], p[0].name)):
        free = [name for name in holders if name not in busy]
        if free:
            busy.add(free[0])
            out.append((record, free[0], size))
    return out


def first_bytes(record: PackRecord) -> int:
    """How much of a pack to begin with: all of it, or its first segments; 0 where the first one is too large."""
    if record.size <= UNCUT_BYTES_MAX:
        return record.size
    return max((at for at in pack_format.offsets(record.segments)[1:] if at <= HOLDER_BYTES), default=0)


def begin(
    t: Transfer,
    packs: Iterable[PackRecord],
    start: Callable[[Task], Future[Reply]],
    clock: Callable[[], float],
    busy: Collection[str] = (),
) -> None:
    """Begins to fetch some of these packs into `t.begun`, from backends that are not `busy` and owe no answer."""
    free = {p.name: p for p in t.places.values() if not t.away(p) and len(p.storage_ids) == 1}
    for name in (*busy, *t.silent, *(begun.holder for begun in t.begun.values())):
        free.pop(name, None)
    if not free:
        return
    listed = []
    for record in packs:
        key = record.generation, record.name
        if key not in t.begun and t.held(key) is None:
            homes = [t.places[i].name for i in t.placement.primary(record.name) if i in t.places]
            listed.append((record, [n for n in homes if n in free]))
    for record, holder, size in choose(listed):
        place = free[holder]
        path = pack_path(place.storage_ids[-1], record.generation, record.name)
        op = read_op(place, path, size, Urgency.SOON, whole=size == record.size)
        t.begun[record.generation, record.name] = Begun(holder, size, clock(), start(_asked(t, op, size)))
