"""Moves packs to where the backends of today want them, and frees what is surplus then (`metasync rebalance`).

Theory of operation (docs/design/moving.md). Three steps, each of which any device may begin, repeat and go on with:

    move    every pack that a mapping which is still read places elsewhere is brought to all its places, and verified
    trim    a version, agreed on top of the newest one, whose config names no earlier mapping any more
    free    copies in storage ids that a trim has given up are deleted, each after all that count were verified

Nothing is deleted before a trim is decided. Devices share the work without a word: each begins at a partition of its
own, and finds what others have brought already.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from metasync.config import Config
from metasync.errors import WorkspaceError
from metasync.events import Phase, Progress
from metasync.maintenance import moved
from metasync.maintenance.holdings import knows_all
from metasync.moving import surplus
from metasync.moving.reconfigure import Wanted, change
from metasync.reports.backends import RebalanceReport, Share
from metasync.runtime.sizes import GIVES_WAY_S, LOST_ROUNDS_MAX, PACKS_ASKED_AT_ONCE
from metasync.session import agreement, space
from metasync.session.session import Agreed, Operations, Session
from metasync.store import moves, placement
from metasync.store.index import PackRecord
from metasync.store.moves import Places
from metasync.sync.operations import changing
from metasync.transfer import late_copies, wrong_copies
from metasync.transfer.copies import Place
from metasync.transfer.estimates import Direction
from metasync.transfer.moving import Brought, bring

MOVED_AT_ONCE_BYTES: Final = 64 << 20  # of packs in memory: with fewer, lines that are all slow wait for each other
PACKS_IN_PASSING: Final = 4  # by a push that ends soon: what is under way then is lost
NOTE_EVERY_S: Final = 1.0  # what was verified and not noted yet is verified again after a kill
PHASE: Final = "move"


class _ChangedError(Exception):
    """Others changed the backends since the packs were verified."""


class Deadline:
    """When a move is to end, whatever is left; without seconds it takes as long as it takes.

    `waits`: whether somebody waits for it, which ends it at once.
    """

    def __init__(self, seconds: float = math.inf, waits: Callable[[], bool] = lambda: False) -> None:
        self._at = time.monotonic() + seconds
        self._waits = waits

    @property
    def left_s(self) -> float:
        return 0.0 if self._waits() else max(0.0, self._at - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0


@dataclass(eq=False)
class Tally:
    """What one run has done so far.

    done       packs whose copies this process has verified, all of them, where `config` wants them
    waiting    backends that a pack could not be brought to, and why
    lost       packs that nobody has
    """

    config: Config | None = None
    done: set[tuple[int, bytes]] = field(default_factory=set)
    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, str] = field(default_factory=dict)
    lost: set[bytes] = field(default_factory=set)

    def begin(self, config: Config) -> None:
        """Goes on under this config: what was verified holds as long as packs belong where they did."""
        was, self.config = self.config, config
        if was is None or (was.backends, was.redundancy, was.mapping) != (
            config.backends, config.redundancy, config.mapping
        ):  # fmt: skip
            self.done.clear()
        self.waiting.clear()


class Mover:
    """Moves the packs of a state, by the config of today."""

    def __init__(self, s: Session, tally: Tally, *, read_data: bool, ends: Deadline | None = None) -> None:
        self.s = s
        self.ends = ends
        self.base: Agreed = agreement.newest(s)
        if s.config.prev_config is not None and s.previous is None:
            raise WorkspaceError(
                "where packs were before the backends changed cannot be read: no backend gives the config of then",
                next_step="Link the other backends, then run again.",
            )
        self.read_data = read_data
        self.places = Places(s.config, s.previous)
        self.names = {b.backend_id: b.name for b in s.config.backends}
        self.knows_all = knows_all(s)
        self.tally = tally
        tally.begin(s.config)

    def displaced(self) -> list[PackRecord]:
        """The packs that may not be where they belong, the partitions in this device's own order."""
        packs = [p for p in self.base.index.packs().values() if self.places.is_displaced(p.name)]
        first = int.from_bytes(self.s.device.device_id, "big") % self.places.now.partitions

        def turn(p: PackRecord) -> tuple[int, bytes]:
            return (self.places.partition(p.name) - first) % self.places.now.partitions, p.name

        return sorted(packs, key=turn)

    def remains(self) -> bool:
        """Whether a displaced pack is not known to be verified, nor lost: the time was over first."""
        return bool(self.unverified(self.base.index.packs().values()))

    def noted(self, packs: Iterable[PackRecord] | None = None) -> moved.Noted:
        """What this device has noted of the packs of the mover's state, or of these."""
        return moved.Noted(
            self.places, self.base.index.packs().values() if packs is None else packs, moved.load(self.s)
        )

    def unverified(self, packs: Collection[PackRecord]) -> list[PackRecord]:
        """Those of all packs of an index that are displaced, and not known to be verified, nor lost."""
        noted, tally, is_doubted = self.noted(packs), self.tally, self.doubted()
        unknown = (p for p in packs if p.id not in tally.done and p.name not in tally.lost)
        displaced = (p for p in unknown if self.places.is_displaced(p.name))
        return [p for p in displaced if p.name not in noted or is_doubted(p.name)]

    def doubted(self) -> Callable[[bytes], bool]:
        """Whether a pack has a copy that this device knows to be wrong, whatever its store tells of it."""
        return wrong_copies.doubted(self.s.db)

    def bring_all(self, packs: Sequence[PackRecord], *, note: bool) -> None:
        """Brings these packs to their places. `note`: they are all of their partitions, to be noted when they are."""
        s, total = self.s, sum(p.size for p in packs)
        left = Counter(self.places.partition(p.name) for p in packs)
        sums = self.noted().sums if note else {}
        whole: dict[int, int] = {}
        done_bytes, last = 0, s.runtime.clock()
        try:
            for record, brought in self._brought(packs):
                done_bytes += record.size
                self._count(record, brought)
                if brought.verified:
                    partition = self.places.partition(record.name)
                    left[partition] -= 1
                    if note and not left[partition]:
                        whole[partition] = sums[partition]
                s.listener(Progress(PHASE, done_bytes, total, "B"))
                if whole and s.runtime.clock() - last >= NOTE_EVERY_S:
                    moved.note(s, whole)
                    whole, last = {}, s.runtime.clock()
        finally:
            if whole:
                moved.note(s, whole)

    def _count(self, record: PackRecord, brought: Brought) -> None:
        for name in brought.sent:
            self.tally.sent[name] += 1
            self.tally.sent_bytes[name] += record.size
        if brought.is_lost:
            self.tally.lost.add(record.name)
        elif brought.verified:
            self.tally.done.add((record.generation, record.name))
        else:
            self.tally.waiting.update(brought.lacking)

    def _brought(self, packs: Iterable[PackRecord]) -> Iterator[tuple[PackRecord, Brought]]:
        """What became of each pack, several at a time, in no order."""
        s, todo, is_doubted = self.s, iter(packs), self.doubted()
        running: dict[Future[Any], PackRecord] = {}
        following: PackRecord | None = next(todo, None)
        at_once = PACKS_ASKED_AT_ONCE if self.ends is None else PACKS_IN_PASSING
        while running or following is not None:
            held = sum(p.size for p in running.values())
            while following is not None and len(running) < at_once:
                if held and held + following.size > MOVED_AT_ONCE_BYTES:
                    break
                if self.ends is not None and not self._arrives(following, held):
                    following = None
                    break
                held += following.size
                wanted, unlinked = self._wanted(following)
                if unlinked:
                    yield following, Brought(unlinked)
                else:
                    # a digest has others deleted only where other copies stay, and none is known to be wrong
                    reads = self.read_data or len(wanted) == 1 or is_doubted(following.name)
                    sources, how = self._sources(following), {"are_all": self.knows_all, "read_data": reads}
                    running[s.runtime.start(bring(s.transfer, following, wanted, sources, **how))] = following
                following = next(todo, None)
            left_s = None if self.ends is None else self.ends.left_s
            for future in s.runtime.wait(running, left_s and min(left_s, GIVES_WAY_S)) if running else ():
                yield running.pop(future), future.result()
            if left_s == 0:  # what is under way ends by itself, or with the process; it is looked for again then
                return

    def _arrives(self, record: PackRecord, before: int) -> bool:
        """Whether a pack would be there in time, behind so many bytes, by what is known of the lines."""
        assert self.ends is not None
        names = [self.names[i] for i in self.places.primary(record.name)]
        rates = [self.s.estimates.of(name, Direction.UP).bytes_per_s for name in names]
        slowest = min((rate for rate in rates if rate), default=math.inf)
        return not self.ends.is_over and (before + record.size) / slowest <= self.ends.left_s

    def _wanted(self, record: PackRecord) -> tuple[list[Place], dict[str, str]]:
        """The places of a pack, with the ids in which a copy counts; and those that this device has no way to."""
        t, out, unlinked = self.s.transfer, [], {}
        for backend_id in self.places.primary(record.name):
            place = t.places.get(backend_id)
            if place is None:
                unlinked[self.names[backend_id]] = "not linked here"
            else:
                out.append(place._replace(storage_ids=self.places.ids(backend_id, record.name)[::-1]))
        return out, unlinked

    def _sources(self, record: PackRecord) -> list[Place]:
        """Where to read a pack: where it was before, each in turn, then anywhere."""
        t = self.s.transfer
        had = [t.places[i] for i in self.places.had(record.name) if i in t.places]
        at = record.name[-1] % len(had) if had else 0
        return list(dict.fromkeys([*had[at:], *had[:at], *t.read_order(record.name)]))


def rebalance(
    work: Operations,
    *,
    dry_run: bool = False,
    read_data: bool = False,
    tally: Tally | None = None,
    ends: Deadline | None = None,
) -> RebalanceReport:
    """Moves what is not where it belongs, has that agreed, and deletes what is surplus: see `Workspace.rebalance`.

    The folder's lock is held for the trim alone: pushes go on while data move. With a time when it `ends`, only what
    arrives by then is moved, and surplus copies are left. `tally`: to be counted in.
    """
    tally = tally or Tally()
    version: int | None = None
    for _ in range(LOST_ROUNDS_MAX):
        with work.session("rebalance") as s:
            mover = Mover(s, tally, read_data=read_data, ends=ends)
            if dry_run:
                return _plan(mover)
            if s.previous is None and ends is not None:
                return _report(mover, version)
            if s.previous is None:
                return _report(mover, version, surplus.free(mover))
            _move(mover)
            if tally.waiting or (ends is not None and mover.remains()):
                return _report(mover, None)
        with changing(work, "rebalance", reopen=True) as s, contextlib.suppress(_ChangedError):
            version = _trim(s, mover)
    raise WorkspaceError(
        f"others changed the backends, or pushed, {LOST_ROUNDS_MAX} times while data were moved; what was moved stays "
        "where it is",
        next_step="Run again.",
    )


def _move(mover: Mover) -> None:
    """Brings all that is displaced to its places, but for what this device has noted as verified."""
    s, noted, is_doubted = mover.s, mover.noted(), mover.doubted()
    packs = [p for p in mover.displaced() if p.name not in noted or is_doubted(p.name)]
    s.listener(Phase(PHASE))
    room = s.transfer.room
    names = sorted({mover.names[i] for p in packs for i in mover.places.primary(p.name)} & set(s.names.values()))
    for name, told in space.ask(s.runtime.run, [n for n in names if n not in s.transfer.down]).items():
        if told.free_bytes is not None:
            room.told(name, told.free_bytes)
    mover.bring_all(packs, note=True)
    late_copies.note(s.db, (), drop=mover.tally.done)
    if mover.tally.lost:  # or a collection of garbage has dropped them meanwhile
        named = (p.name for p in agreement.newest(s).index.packs().values())
        mover.tally.lost &= {name for name in named if name in mover.tally.lost}


def _trim(s: Session, mover: Mover) -> int | None:
    """Has it agreed that all is moved. -> the version.

    `_ChangedError`: the backends are others by now, or packs were pushed since the others were verified. Who pushed
    them may have had no way to where they belong.
    """
    verified = mover.s.config

    def make(config: Config) -> Config:
        if config != verified:
            raise _ChangedError
        return moves.trimmed(config)

    def check(base: Agreed) -> None:
        if mover.unverified(base.index.packs().values()):
            raise _ChangedError

    return change(s, Wanted("", make, check=check)).version


def _plan(mover: Mover) -> RebalanceReport:
    """What would be moved and freed, by the mappings alone: no backend is asked."""
    names = {**{i: n.partition("~")[0] for i, n in mover.s.former.items()}, **mover.names}
    noted = mover.noted()
    packs = mover.displaced()
    left = [p for p in packs if mover.places.receivers(p.name) and p.name not in noted]
    sent = _shares(left, lambda p: [names.get(i, i.hex()) for i in mover.places.receivers(p.name)])
    freed = _shares(packs, lambda p: [mover.names[i] for i in mover.places.givers(p.name) if i in mover.names])
    state = mover.base.state
    return RebalanceReport(True, None, state.fingerprint, placement.moving(left), sent, freed)


def _shares(packs: Iterable[PackRecord], where: Callable[[PackRecord], Iterable[str]]) -> tuple[Share, ...]:
    copies: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for p in packs:
        for name in where(p):
            copies[name] += 1
            size[name] += p.size
    return tuple(Share(name, n, size[name]) for name, n in sorted(copies.items()))


def _report(mover: Mover, version: int | None, freed: surplus.Freed | None = None) -> RebalanceReport:
    s, noted = mover.s, mover.noted()
    packs = [] if freed is not None else [p for p in mover.displaced() if mover.places.receivers(p.name)]
    done, tally = mover.tally.done, mover.tally
    left = [p for p in packs if (p.generation, p.name) not in done and p.name not in noted]
    return RebalanceReport(
        dry_run=False,
        version=version,
        fingerprint=s.newest_state().fingerprint,
        left=placement.moving(left),
        sent=tuple(Share(name, n, tally.sent_bytes[name]) for name, n in sorted(tally.sent.items())),
        freed=freed.shares() if freed is not None else (),
        waiting=tuple(sorted(tally.waiting.items())),
        lost=tuple(sorted(tally.lost)),
        unfreed=tuple(sorted(freed.failed.items())) if freed is not None else (),
    )
