"""Is everything there, as often as promised, and unaltered (`metasync check`)."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from metasync.consensus.records.state import ZERO_HASH, Ref
from metasync.errors import MetaSyncError
from metasync.events import Phase, Progress
from metasync.local.state_keys import LOOKS, SHORT_KEY, Look
from metasync.maintenance.holdings import knows_all
from metasync.maintenance.repair import untrue_rows
from metasync.maintenance.repair.left_out_packs import rejoin
from metasync.maintenance.repair.lost_paths import nowhere as paths_nowhere
from metasync.maintenance.repair.mend import Finding
from metasync.maintenance.repair.mend import repair as mended
from metasync.maintenance.repair.needs import Needs
from metasync.maintenance.repair.untrue_rows import UntrueRows
from metasync.members import key_copies
from metasync.reports.checks import CheckProblem, CheckReport, Repaired
from metasync.runtime.sizes import PACKS_ASKED_AT_ONCE
from metasync.session import agreement, evidence, genesis, health, space
from metasync.session.session import Agreed, Session
from metasync.store import deltas
from metasync.store.index import PackId, PackRecord
from metasync.store.moves import Places
from metasync.store.pack_format import Located
from metasync.transfer import late_copies, wrong_copies
from metasync.transfer.verify import CopyState, check_pack

NO_BASE = "has deltas that cannot be opened: no pack has what they are made of"
NO_WAY = "cannot be reached: this device has no way to it"
GIVEN_UP = "only where a change of the backends has given it up"
PIECES = 4  # read on each backend that tells no digests: 4 MiB as a rule
PACKS_READ_AT_ONCE = 4  # each on R backends: 4 x 2 x 4 MiB in memory as a rule


class Verdict(NamedTuple):
    """What the copies of one pack come to. `good`: how many are there or on their way; `waits`: some are still made."""

    problems: tuple[CheckProblem, ...]
    good: int
    waits: bool


def judge(
    pack: bytes, home: Sequence[CopyState], elsewhere: Sequence[CopyState], wanted: int, late: Collection[str]
) -> Verdict:
    """Judges the copies of a pack where it belongs, and elsewhere. `wanted`: how many were promised.

    `late`: backends to which a push has left a copy to be made later; that is no problem while there is another one.
    """
    bad = [c for c in home if c.problem is not None]
    good = len(home) - len(bad) + len(elsewhere)
    given_up = sum(c.is_given_up for c in elsewhere)  # it goes once those where it belongs are there
    excused = good - given_up >= wanted  # a copy that found another place is not missed where it belongs
    waits = bool(late) and good > 0 and not excused
    if waits:
        coming = {c.backend for c in bad if c.missing and c.backend in late}
        bad = [c for c in bad if c.backend not in coming]
        good += len(coming)
    told = (  # nor is one missed that nobody can see from here
        CheckProblem(c.backend, pack, c.problem or "") for c in bad if not (excused and (c.missing or c.no_way))
    )
    return Verdict(tuple(told), good, waits)


@dataclass
class Looked:
    """What the look at packs comes to. `found`: the verdict on each with which something is wrong, and what to mend.

    `sound`: the copies that were found right where they belong, by backend; None: nobody asks for them.
    `untrue`: what does not lie in packs that were read, though it is listed there; None: it is not looked for.
    `noted`: names of the packs of which a copy is noted as bad: all their copies are read. `doubtful`: (name of a pack,
    id of a backend) of copies that were not found right.
    `silent`: of how many copies a backend told nothing, where nobody knew before that it is away.
    """

    read_data: bool
    sound: set[tuple[str, PackId]] | None = None
    untrue: UntrueRows | None = None
    noted: Collection[bytes] = ()
    doubtful: set[tuple[bytes, bytes]] = field(default_factory=set)
    found: dict[PackId, tuple[Verdict, Finding]] = field(default_factory=dict)
    waited_for: list[late_copies.Trail] = field(default_factory=list)
    by: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0

    def at(self, s: Session, agreed: Agreed, packs: Collection[PackRecord]) -> Looked:
        """Looks at the copies of these packs, which `agreed` names."""
        wanted, names = s.transfer.placement.copies, s.names
        ids, reached = {p.name: i for i, p in s.transfer.places.items()}, knows_all(s)
        places, stores = Places(s.config, s.previous), {b.backend_id for b in s.config.backends}
        no_way = {b.backend_id: b.name for b in s.config.backends if b.backend_id not in s.transfer.places}
        all_ids = ids | {name: i for i, name in no_way.items()}

        def counted(c: CopyState, pack: bytes) -> CopyState:
            """A copy that a change of the backends has given up may be deleted once all others are there."""
            backend_id = ids[c.backend]
            if c.problem is not None or backend_id not in stores or c.storage_id in places.ids(backend_id, pack):
                return c
            return c._replace(problem=GIVEN_UP, missing=True, is_given_up=True)

        on_their_way, down = late_copies.load(s.db), frozenset(s.transfer.down)
        listed = agreed.index.inside if self.untrue is not None else lambda _: ()
        seen = chain(
            looked_at(s, [p for p in packs if p.name in self.noted], read_data=True, listed=listed),
            looked_at(s, [p for p in packs if p.name not in self.noted], read_data=self.read_data, listed=listed),
        )
        for n, (record, home, elsewhere) in enumerate(seen, 1):
            copies, there = (*home, *elsewhere), [c for c in elsewhere if c.problem is None]
            self.by.update(c.how for c in (*home, *there))
            self.silent.update(c.backend for c in copies if c.unknown and c.backend not in down)
            self.bytes_read += sum(c.bytes_read for c in copies)
            if self.untrue is not None:
                self.untrue.add(record.id, (i for c in copies for i in c.untrue))
            trail = on_their_way.get(record.id)
            late = {names.get(i, "") for i in trail.missing} if trail is not None else set()
            home, there = ([counted(c, record.name) for c in some] for some in (home, there))
            if self.sound is not None:
                self.sound.update((c.backend, record.id) for c in home if c.problem is None)
            lacks = [no_way[i] for i in s.transfer.placement.primary(record.name) if i in no_way]
            home = [*home, *(CopyState(name, NO_WAY, unknown=True, no_way=True) for name in lacks)]
            self.doubtful.update((record.name, all_ids[c.backend]) for c in (*copies, *home) if c.problem is not None)
            verdict = judge(record.name, home, there, wanted, late)
            if verdict.problems or verdict.good < wanted:
                good = tuple(ids[c.backend] for c in copies if c.problem is None)
                bad = tuple(ids[p.backend] for p in verdict.problems if p.backend in ids)
                is_sure = reached and not any(c.unknown for c in copies)
                by_bytes = any(c.problem is not None and c.how in ("read", "piece") for c in copies)
                self.found[record.id] = verdict, Finding(record, good, bad, is_sure, by_bytes)
            if trail is not None and verdict.waits:
                self.waited_for.append(trail)
            s.listener(Progress("check", n, len(packs), "packs"))
        self._forget_unnamed(s, agreed)
        return self

    def _forget_unnamed(self, s: Session, agreed: Agreed) -> None:
        """Drops packs that the newest index no longer names: these may be gone on purpose."""
        newer = agreement.newer_index(s, agreed.state) if self.found or self.untrue else None
        if newer is not None:
            named = newer[0].packs()
            if self.untrue:
                self.untrue.keep(named.__contains__)
            self.found = {i: found for i, found in self.found.items() if i in named}

    @property
    def problems(self) -> tuple[CheckProblem, ...]:
        told = (problem for verdict, _ in self.found.values() for problem in verdict.problems)
        return tuple(sorted(told, key=lambda p: (p.backend, p.pack)))


def check(s: Session, agreed: Agreed, *, read_data: bool, repair: bool = False) -> CheckReport:
    """Looks at every copy of every pack that the agreed index names, and at the objects beside the logs.

    Without `read_data` sizes are compared, and digests where a store tells them; of the copies on each other backend
    `PIECES` are read in part. With it every copy is read and its SHA-256 compared with its name, and each object that
    the index lists in a pack with its id. `repair` makes whole what is missing or damaged, as far as it can be had, and
    looks at that again.
    """
    joined: Repaired | None = None
    needs: Needs | None = None
    if repair:
        joined, agreed, needs = rejoin(s, agreed)
    s.listener(Phase("check"))
    packs, rows = agreed.index.packs().values(), UntrueRows()
    noted = wrong_copies.bad(s.db).keys() | {f.pack for f in s.transfer.faults if f.altered}
    looked = now = Looked(read_data, untrue=rows if read_data else None, noted=noted).at(s, agreed, packs)
    if read_data:
        untrue_rows.add_deltas(s, agreed, rows)
    repaired, names, untrue = None, s.names, untrue_rows.told(s, agreed, rows)
    if repair and rows:  # what these hid may have been left out, too
        more, agreed, needs = rejoin(s, agreed, rows)
        joined = _both(joined, more)
    nowhere, broken = _missing(s, agreed, rows, needs)
    is_wrong = bool(looked.found or nowhere or broken or rows)
    lacks = bool(nowhere or broken) or (needs is not None and needs.lacks(agreed.index))
    if repair and (is_wrong or lacks):
        findings = [finding for _, finding in looked.found.values()]
        repaired, agreed = mended(s, agreed, findings, lacks, rows, needs)
        left = agreed.index.packs()
        rows.keep(left.__contains__)
        nowhere, broken = _missing(s, agreed, rows)
        repaired = replace(repaired, found=looked.problems, untrue=untrue)
        if not is_wrong and repaired == Repaired():
            repaired = None  # what older versions lack is not here either
        untrue = tuple(one for one in untrue if any(pack[1] == one.pack for pack in rows.packs()))
        again = [f.record for f in findings if f.record.id in left]
        now = Looked(read_data, noted=noted).at(s, agreed, again)
        names_again = {p.name for p in again}
        now.doubtful |= {copy for copy in looked.doubtful if copy[0] not in names_again}
    wanted = s.transfer.placement.copies
    short = sum(verdict.good < wanted for verdict, _ in now.found.values())
    s.db.set(SHORT_KEY, short)
    _renew_notes(s, agreed, now, noted, read_data=read_data)
    _note_look(s)
    standings = {**health.check_places(s, sorted(names.values())), **health.standings(s)}
    keys, seen = key_copies.check(s, agreed.state, standings, read_data=read_data)
    apart, brought = _check_meta(s, agreed, standings, read_data=read_data, repair=repair)
    evidence.note_writes(s.db, s.connections.writes())  # it wrote what was missing there, or tried to
    return CheckReport(
        version=agreed.state.v,
        packs=len(packs),
        copies_checked=looked.by.total(),
        bytes_read=looked.bytes_read,
        by_digest=looked.by["digest"],
        pieces_read=looked.by["piece"],
        problems=now.problems,
        lost=tuple(sorted(f.record.name for _, f in now.found.values() if not f.good)),
        short=short,
        meta_problems=(
            *apart,
            *(CheckProblem("all backends", name, NO_BASE) for _, name in sorted(broken)),
            *(CheckProblem(backend, b"", why) for backend, why in keys),
        ),
        notes=(
            *space.check_ballast(s, standings),
            *filter(None, (evidence.no_writes(s.db, name) for name in sorted(names.values()))),
            *seen,
            *brought,
        ),
        trailing=late_copies.summary(looked.waited_for, names),
        nowhere=nowhere,
        repaired=_both(joined, repaired),
        untrue=untrue,
    )


def _renew_notes(s: Session, agreed: Agreed, now: Looked, noted: Collection[bytes], *, read_data: bool) -> None:
    """Notes which copies are bad, and takes back what was noted of those that were read and are right."""
    named, known = {p.name for p in agreed.index.packs().values()}, wrong_copies.bad(s.db)
    if read_data:  # else a digest would take back what was found by reading
        was_read: Collection[bytes] = named | wrong_copies.load(s.db)
        wrong_copies.drop(s.db, was_read)
    else:
        was_read = noted
        wrong_copies.drop(s.db, {*noted} - {name for name, _ in now.doubtful})
    s.transfer.faults[:] = [f for f in s.transfer.faults if f.pack not in was_read]  # these were met before
    wrong_copies.mended(s.db, {name for name in known if name in was_read or name not in named}, but=now.doubtful)
    wrong_copies.note(s.db, [f.record.name for _, f in now.found.values() if f.good and f.bad])
    note_bad(s, [f for _, f in now.found.values()])


def _missing(
    s: Session, agreed: Agreed, rows: UntrueRows, needs: Needs | None = None
) -> tuple[Sequence[bytes], Mapping[PackId, PackRecord]]:
    """What the index does not give, without untrue rows: paths of the newest version, and packs with deltas that cannot
    be opened. `needs`: what versions need, if that is known: no tree is walked again where nothing of it is missing."""
    there = untrue_rows.true_index(agreed, rows)
    broken = deltas.dangling(there.index)
    if needs is not None and needs.are_there and not broken and not rows:
        return (), broken
    return paths_nowhere(s, there), broken


def _both(joined: Repaired | None, rest: Repaired | None) -> Repaired | None:
    """What came of two steps of a repair."""
    if joined is None or rest is None:
        return joined or rest
    version = rest.version or joined.version
    left_out = (*joined.left_out, *rest.left_out)
    return replace(rest, version=version, waits=joined.waits + rest.waits, left_out=left_out)


def note_bad(s: Session, findings: Sequence[Finding], *, missing: bool = False) -> None:
    """Notes which copies were found wrong by their bytes; `missing`: or missing, for people to be told of them."""
    bad = ((f.record.name, i) for f in findings if f.by_bytes or (missing and f.is_sure) for i in f.bad)
    wrong_copies.note_bad(s.db, bad, s.wall_ns())


def _note_look(s: Session) -> None:
    """Notes that all copies on the backends that answer were seen now."""
    known = {row.backend: row for row in s.db.records(LOOKS)}
    seen = [i for i, place in s.transfer.places.items() if i in s.names and place.name not in s.transfer.down]
    s.db.put_records(LOOKS, [known.get(i, Look(i))._replace(at_ns=s.wall_ns()) for i in seen])


def looked_at(
    s: Session,
    packs: Collection[PackRecord],
    *,
    read_data: bool,
    listed: Callable[[PackRecord], Sequence[Located]] = lambda _: (),
) -> Iterator[tuple[PackRecord, list[CopyState], list[CopyState]]]:
    """Looks at the copies of packs, several at a time: where each belongs, and elsewhere. In no order.

    `listed`: what is looked for in a pack that is read.
    """
    pieces = {} if read_data else _pieces(s, packs)
    running: dict[Future[Any], PackRecord] = {}
    todo = iter(packs)
    while True:
        for record in todo:
            of, rows = pieces.get(record.name), listed(record)
            task = check_pack(s.transfer, record, read_data=read_data, pieces=of, listed=rows)
            running[s.runtime.start(task)] = record
            if len(running) >= (PACKS_READ_AT_ONCE if read_data else PACKS_ASKED_AT_ONCE):
                break
        if not running:
            return
        for future in s.runtime.wait(running):
            record = running.pop(future)
            home, elsewhere = future.result()
            yield record, home, elsewhere


Pieces: TypeAlias = dict[bytes, dict[str, int]]
"""By pack and backend: the number of the segment to read there."""


def _pieces(s: Session, packs: Iterable[PackRecord]) -> Pieces:
    """Some copies on each backend, drawn anew each time, and a segment of each.

    Of all that were seen so far each is among the drawn ones with the same chance (Knuth, volume 2, algorithm R).
    """
    draw = random.Random(s.entropy(16))
    t = s.transfer
    seen, drawn = Counter[str](), dict[str, list[tuple[bytes, int]]]()
    for record in packs:
        for backend_id in t.placement.primary(record.name):
            if record.segments and backend_id in t.places:
                name = t.places[backend_id].name
                some = drawn.setdefault(name, [])
                seen[name] += 1
                at = len(some) if len(some) < PIECES else draw.randrange(seen[name])
                if at < PIECES:
                    some[at : at + 1] = [(record.name, len(record.segments))]
    out: Pieces = {}
    for name, some in sorted(drawn.items()):
        for pack, segments in some:
            out.setdefault(pack, {})[name] = draw.randrange(segments)
    return out


def _check_meta(
    s: Session, agreed: Agreed, standings: Mapping[str, str], *, read_data: bool, repair: bool
) -> tuple[list[CheckProblem], list[str]]:
    """What lies beside the logs on every acceptor, and whether each is the one it should be. -> also notes."""
    problems = [CheckProblem(name, b"", why) for name, why in sorted(standings.items())]
    problems += [CheckProblem("all backends", b"", told) for told in health.check_heads(s, agreed.state)]
    ill = {p.backend for p in problems}
    if repair or not agreed.state.index_rides:
        with contextlib.suppress(MetaSyncError):  # what is not there then is told below
            s.runtime.run(s.group.settle(agreed.state))
    found, brought = health.check_meta(s, beside(agreed), ill, read_data=read_data, mend=repair)
    first, given = genesis.check(s, ill, agreed.state, mend=repair)
    return [*problems, *(CheckProblem(backend, b"", why) for backend, why in (*found, *first))], [*brought, *given]


def beside(agreed: Agreed) -> list[tuple[str, Ref | bytes]]:
    """The objects beside the logs that an agreed state names: what each is, and where it is."""
    named: list[tuple[str, Ref | bytes]] = [("config", agreed.state.config), ("device set", agreed.state.devices)]
    if agreed.state.index.hash != ZERO_HASH:
        roots = [agreed.state.index, *(Ref(*ref) for ref in agreed.root.before)]
        named += [("index", ref) for ref in (roots[-1:] if agreed.state.index_rides else roots)]  # others are in logs
        named += [("index segment", Ref(*item.ref)) for item in agreed.root.apart]
    if agreed.state.retained.hash != ZERO_HASH:
        named.append(("list of what is kept", agreed.state.retained))
    return named
