"""Puts back into the index what kept versions need, the newest index does not name, and an older one does.

One device may agree an index that leaves packs out (`docs/design/collection.md`). The indexes of older versions still
name them. Nobody's word is taken for it: a copy of each pack is read, and each object in it is compared with its id.

A pack whose generation is not fenced is named again: nobody may have deleted it, or will (G3). What fenced ones alone
have, which anybody may delete at any time, is read and stored anew. Rows are named that versions need, and no file of
which a part is nowhere (G4).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from metasync.consensus import ZERO_HASH, Ref, State
from metasync.errors import CANNOT_BE_READ, MetaSyncError, NoQuorumError, UnreadableError, WorkspaceError
from metasync.events import Notice, Phase, Progress
from metasync.local.spill import IdSet
from metasync.maintenance.repair.give_back import name_in_index, store_read, upload_for
from metasync.maintenance.repair.needs import NOT_KNOWN, Needs
from metasync.maintenance.repair.untrue_rows import NO_ROWS, UntrueRows, add_deltas, true_index
from metasync.reports.checks import LeftOut, Repaired
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement, unreadable
from metasync.session.session import Agreed, Session
from metasync.store import deltas
from metasync.store.collection import combined
from metasync.store.index import (
    Index,
    IndexSegment,
    PackId,
    PackRecord,
    pack_objects,
    packed_ids,
    segments_of,
)
from metasync.store.pack_format import Located, pack_id
from metasync.transfer.upload import Upload
from metasync.transfer.verify import CopyState, check_copy, where_not

Beside: TypeAlias = tuple[PackRecord, bytes]
"""A pack that an older index names, and what it has of it (`pack_objects`)."""
READ_AT_ONCE: Final = 4  # packs: 16 MiB in memory as a rule
STORED_TOGETHER: Final = 1024  # objects that are read to be stored anew


def newest(s: Session) -> Agreed:
    """The newest version; without its snapshot, where the index does not name that. `UnreadableError` as ever."""
    try:
        return agreement.newest(s)
    except UnreadableError:
        state = agreement.ask_newest(s)
        try:
            root, index = s.indexes.of_state(state)
            _ = index.segments
        except CANNOT_BE_READ:
            found = None
        else:
            found = Agreed(state, s.config_of(state), s.devices_of(state), root, index, None)
        if found is None:
            raise
        return found


def rejoin(s: Session, agreed: Agreed, untrue: UntrueRows = NO_ROWS) -> tuple[Repaired | None, Agreed, Needs]:
    """Names again what was left out. -> what came of it, None if nothing was to be done; also what is agreed then, and
    what its versions need.

    Costs what the mark of a collection does, and only if something is missing the look at older indexes. `untrue`: what
    counts as not listed.
    """
    found = _Older(s)
    for _ in range(LOST_ROUNDS_MAX):
        there = true_index(agreed, untrue)
        try:
            needs, beside = _look(s, there, found)
            why = needs.why
        except NOT_KNOWN as e:
            needs, beside, why = Needs(s, there), [], e
        if why is not None:  # all else is mended all the same
            s.listener(Notice(f"what older versions need is not known: {why.message}", warning=True))
        again = _again(needs, beside) if needs.lacking and why is None else _Again()
        if not (again.named or again.stored):
            out = Repaired(waits=found.waits) if found.waits and why is None else None
            return out, _loaded(s, agreed), needs
        s.listener(Phase("repair"))
        state, mine = name_in_index(s, agreed.state, _stored(s, agreed, needs, again))
        if mine:
            told = [LeftOut(v, who, packs) for (v, who), packs in found.by(again).items()]
            return Repaired(version=state.v, waits=found.waits, left_out=tuple(told)), s.load(state), needs
        agreed = newest(s)
    raise WorkspaceError(
        f"others were faster {LOST_ROUNDS_MAX} times; what was left out is not in the index yet", next_step="Run again."
    )


def _loaded(s: Session, agreed: Agreed) -> Agreed:
    """The same with its snapshot; the error of a version that cannot be read where that is still in no pack."""
    missing = agreed.snapshot is None and agreed.state.master != ZERO_HASH
    return s.load(agreed.state) if missing else agreed


# ---- what is needed


@dataclass
class _Again:
    """`named`: packs that are named again, with the rows that are. `stored`: ids of what is stored anew, and the packs
    that have it."""

    named: list[Beside] = field(default_factory=list)
    stored: dict[bytes, PackRecord] = field(default_factory=dict)


def _again(needs: Needs, beside: Sequence[Beside]) -> _Again:
    """What is to be named again, and what is to be stored anew, of these packs.

    Also what others are said to have, too: a row of theirs may be false, and what nothing names is deleted.
    """
    index, named, out = needs.index, needs.agreed.index, _Again()
    needed, broken = deltas.with_bases(index, needs.all, IdSet()), needs.broken()
    fence, live, dead = needs.agreed.state.min_gen, named.packs(), named.dead

    def wanted(record: PackRecord) -> Iterator[Located]:
        rows = (o for o in index.inside(record) if o.id in needed and o.id not in broken)
        return (o for o in rows if deltas.is_relied_on(index, record, o, needed))

    for record, _ in beside:
        some = [*wanted(record)]
        if record.generation < fence and record.id not in live:
            out.stored.update((o.id, record) for o in some if o.id not in named)
        elif some and (not (record.id in live or record.id in dead) or any(o.id not in named for o in some)):
            out.named.append((record, pack_objects(some)))
    return out


def _look(s: Session, agreed: Agreed, found: _Older) -> tuple[Needs, list[Beside]]:
    """What kept versions need, and the packs of older indexes that are marked with: none where the index names all."""
    needs = Needs(s, agreed, _with(agreed, beside := found.beside(agreed)))
    if needs.why is not None or not len(needs.missing):
        return needs, beside
    for packs in found.more(agreed):
        if not any(i in needs.missing for _, rows in packs for i in packed_ids(rows)):
            continue
        needs = Needs(s, agreed, _with(agreed, beside := found.beside(agreed)))
        if not len(needs.missing):
            break
    if found.open_deltas(agreed):
        needs = Needs(s, agreed, _with(agreed, beside := found.beside(agreed)))
    return needs, beside


# ---- what older indexes name


class _Older:
    """The packs that older indexes name, the newest does not, and a backend has: over all attempts."""

    def __init__(self, s: Session) -> None:
        self.s = s
        self._rows = UntrueRows()
        self.waits = 0  # packs that a backend which is away may have
        self._unsure: set[PackId] = set()  # those of which a backend told nothing
        self._there: dict[PackId, Beside] = {}
        self._leaver: dict[PackId, State] = {}
        self._seen: set[PackId] = set()
        self._states: Iterator[State] | None = None
        self._above: tuple[State, set[PackId]] | None = None  # the state before in this walk, and its tombstones
        self._segments: set[bytes] = set()

    def beside(self, agreed: Agreed) -> list[Beside]:
        """Those that were found so far, and may stand beside this index."""
        listed = agreed.index.listed

        def fits(record: PackRecord) -> bool:
            return all(listed.record(n)[2:5] == record[2:5] for n in listed.numbers(record.id))

        return [one for one in self._there.values() if fits(one[0])]

    def more(self, agreed: Agreed) -> Iterator[list[Beside]]:
        """Goes on to older indexes, the newest first, as far as they can be had. -> the packs that each one adds."""
        states = self._states = self._states or unreadable.brought(self.s, agreed.state, lambda state: state.index)
        while (state := self._next(states)) is not None:
            try:
                root, index = self.s.indexes.of_state(state)
                segments = index.segments
            except (*CANNOT_BE_READ, NoQuorumError):
                continue  # it went after a collection
            new = self._new(
                agreed,
                index,
                [one for item, one in zip(root.items, segments, strict=True) if item.ref.hash not in self._segments],
            )
            self._segments.update(item.ref.hash for item in root.items)
            above, self._above = self._above, (state, index.dead)
            if new:
                yield self._looked_at(index, new, above[0] if above is not None else state)

    def _next(self, states: Iterator[State]) -> State | None:
        try:
            return next(states, None)
        except MetaSyncError:  # older ones went with lost backends
            return None

    def _new(self, agreed: Agreed, index: Index, segments: Iterable[IndexSegment]) -> list[PackRecord]:
        """The packs of an index of which the newest does not name all that it has, and that were not seen before."""
        live, named = index.packs(), agreed.index.packs()

        def lacks(pack: PackId) -> bool:
            return pack not in named or any(o.id not in agreed.index for o in index.inside(live[pack]))

        dead_above = self._above[1] if self._above is not None else set()
        ids = chain((record.id for one in segments for record in one.packs), dead_above)
        new = [i for i in dict.fromkeys(ids) if i not in self._seen and i in live and lacks(i)]
        self._seen.update(new)
        return [live[i] for i in new]

    def _looked_at(self, index: Index, packs: Sequence[PackRecord], leaver: State) -> list[Beside]:
        """Those of which a backend has a copy, each with the rows of what lies in it."""
        out = list[Beside]()
        for start in range(0, len(packs), READ_AT_ONCE):
            some = [(record, index.inside(record)) for record in packs[start : start + READ_AT_ONCE]]
            gone = where_not(self.s.runtime, ((record, self._is_there(record, rows)) for record, rows in some))
            missing = {record.id for record in gone}
            self.waits += len(missing & self._unsure)
            out += [(r, pack_objects(self._true(r, rows))) for r, rows in some if r.id not in missing]
            self.s.listener(Progress("check", start + len(some), len(packs), "packs"))
        self._there.update((r.id, (r, rows)) for r, rows in out)
        self._leaver.update((r.id, leaver) for r, _ in out)
        return out

    def _is_there(self, record: PackRecord, rows: Sequence[Located]) -> Generator[Any, Any, bool]:
        """-> bool: a copy of a pack was read and is right. Notes what does not lie in it."""
        listed = [*rows]
        for place in self.s.transfer.read_order(record.name):
            copy: CopyState = yield from check_copy(self.s.transfer, place, record, True, None, listed)
            if copy.problem is None:
                self._rows.add(record.id, copy.untrue)
                return True
            if copy.unknown:
                self._unsure.add(record.id)
        return False

    def _true(self, record: PackRecord, rows: Iterable[Located]) -> Iterator[Located]:
        return (o for o in rows if not self._rows.has(record.id, o.id))

    def open_deltas(self, agreed: Agreed) -> bool:
        """Drops deltas of which something else comes than their ids say. -> whether there are such."""
        beside = Index(tuple(segments_of(self.beside(agreed))))
        if not deltas.are_in(beside):
            return False
        rows = UntrueRows()
        add_deltas(self.s, replace(agreed, index=_with(agreed, self.beside(agreed))), rows)
        for pack in [i for i in rows.packs() if i in self._there]:
            for object_id in (o.id for o in beside.inside(self._there[pack][0]) if rows.has(pack, o.id)):
                self._rows.add(pack, [object_id])
            record = self._there[pack][0]
            self._there[pack] = record, pack_objects(self._true(record, beside.inside(record)))
        return bool(rows)

    def by(self, again: _Again) -> dict[tuple[int, str], int]:
        """By version that left them out and its device, how many packs are named again, or stored anew."""
        out: dict[tuple[int, str], int] = {}
        packs = {*(r.id for r, _ in again.named), *(r.id for r in again.stored.values())}
        states = {i: self._leaver[i] for i in packs}
        names = {state.v: unreadable.author(self.s, state) for state in states.values()}
        for state in sorted(states.values(), key=lambda state: state.v):
            key = state.v, names[state.v]
            out[key] = out.get(key, 0) + 1
        return out


# ---- the index that names it again


def _stored(s: Session, agreed: Agreed, needs: Needs, again: _Again) -> Ref:
    """Stores what is to be stored anew, and an index. -> its name."""
    upload: Upload = upload_for(s, agreed)
    ids = list(again.stored)
    for start in range(0, len(ids), STORED_TOGETHER):
        store_read(needs.contents, ids[start : start + STORED_TOGETHER], upload)
    upload.finish()
    anew = _without_dead(agreed, again.named)
    stays = [n for n in range(len(agreed.segments)) if n not in anew]
    left = (one for one in anew.values() if len(one.packs) or one.tombstones)
    fresh = chain(left, segments_of(again.named), upload.index_segments())
    refs = s.indexes.replace(agreed.state, agreed.root, agreed.segments, stays, fresh)
    return refs[-1]


def _with(agreed: Agreed, beside: Sequence[Beside]) -> Index:
    """The index with these packs."""
    if not beside:
        return agreed.index
    anew = _without_dead(agreed, beside)
    return agreed.index.of_segments(
        (*(anew.get(n, one) for n, one in enumerate(agreed.segments)), *segments_of(beside))
    )


def _without_dead(agreed: Agreed, packs: Sequence[Beside]) -> dict[int, IndexSegment]:
    """Of these packs some may be dead in the index. -> the segments, by number, that say anything of those, without it:
    neither that they are dead, nor what lies in them."""
    come = {record.id for record, _ in packs} & agreed.index.dead
    ids, out = {pack_id(i) for i in come}, dict[int, IndexSegment]()
    for n, one in enumerate(agreed.segments if come else ()):
        if come.intersection(one.tombstones) or ids.intersection(one.packs.ids()):
            dead = [pack for pack in one.tombstones if pack not in come]
            out[n] = combined([one], lambda pack: pack not in come, None, dead, one.tags)
    return out
