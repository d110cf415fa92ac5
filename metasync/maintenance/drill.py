"""Could everything be read and agreed without some backends (`metasync drill --without NAME`)?

The drill does without them: no way to them is open, so what it finds was found on the others. It looks for a copy of
every pack and of what lies beside the logs, and has the others tell the newest version. It changes nothing. Where
something would be lost, the files are named with all backends open again, for their directories may be on those that
the drill did without.

Memory: the index, four packs at a time, and what would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from metasync.consensus import State
from metasync.errors import NoQuorumError, UsageError
from metasync.events import Phase, Progress
from metasync.maintenance.check import beside, looked_at
from metasync.maintenance.repair.lost_paths import gone_files
from metasync.members import key_copies
from metasync.objects.model import ObjectKind
from metasync.reports.backends import Gone
from metasync.reports.checks import CheckProblem, DrillReport
from metasync.session import agreement, genesis, health
from metasync.session.session import Agreed, Operations, Session
from metasync.store.index import Index, PackId, PackRecord


class LostObjects:
    """The objects that only these packs hold."""

    def __init__(self, index: Index, packs: Collection[PackId]) -> None:
        self._index, self._packs = index, packs

    def __contains__(self, object_id: object) -> bool:
        assert isinstance(object_id, bytes)
        return all(record.id in self._packs for record, _ in self._index.find(object_id))


class Looked(NamedTuple):
    """What a look at packs comes to. `lost`: those of which no intact copy was found; `by_copies`: how many packs have
    0, 1, ... copies; `how`: how many copies were judged by `digest`, `piece`, `read` or their size alone (`size`)."""

    lost: list[PackRecord]
    by_copies: tuple[int, ...]
    how: Counter[str]
    bytes_read: int


def drill(work: Operations, without: Sequence[str], *, read_data: bool = False) -> DrillReport:
    """Looks whether all could go on without these backends: see `Workspace.drill`."""
    ways = _ways(work, without)
    with work.connections.doing_without(ways), work.session("drill") as s:
        report, agreed, lost = _look(s, ways, read_data=read_data)
    if not lost:
        return report
    with work.session("drill") as s:
        gone, objects = would_be_lost(s, s.load(agreed.state), lost)
    return replace(report, gone=gone, gone_objects=objects)


def _ways(work: Operations, without: Sequence[str]) -> frozenset[str]:
    """The names of the ways to these backends. `UsageError`: there is none of that name, or all are named."""
    names = work.connections.agreed_names
    removed = {w.name.partition("~")[0]: w.name for w in work.connections.ways.values() if w.name not in names}
    unknown = sorted({*without} - names - removed.keys())
    if unknown or not without:
        told = ", ".join(sorted(names | removed.keys()))
        what = f"no backend of this workspace is called {unknown[0]!r}" if unknown else "no backend was named"
        raise UsageError(what, next_step=f"They are: {told}.")
    if names <= {*without}:
        raise UsageError("no backend would be left", next_step="Name those that may be lost at once.")
    return frozenset(name if name in names else removed[name] for name in without)


def _look(s: Session, without: Collection[str], *, read_data: bool) -> tuple[DrillReport, Agreed, list[PackRecord]]:
    """What the other backends have. -> also the newest version as they show it, and the packs that they lack."""
    s.listener(Phase("check"))
    left = sorted(name for name in s.names.values() if name not in without)
    ill = {**health.check_places(s, left), **{n: why for n, why in health.standings(s).items() if n in left}}
    voting = [e.name for e, _ in s.config.acceptors if e.name in left and e.name not in ill]
    agreed, agrees = _newest(s, len(voting) >= s.config.quorum)
    problems = [CheckProblem(name, b"", why) for name, why in sorted(ill.items())]
    problems += [CheckProblem("", b"", why) for why in _beside_the_logs(s, agreed, left, ill, read_data=read_data)]
    keys = key_copies.lacks(s, agreed.state, [n for n in left if n not in ill]) if agrees else []
    keys = [*keys, *(_lacks_beginning(s, agreed.state, {*ill, *without}) if agrees else ())]
    problems += [CheckProblem("", b"", why) for why in keys]
    looked = look(s, agreed.index.packs().values(), read_data=read_data)
    report = DrillReport(
        version=agreed.state.v,
        fingerprint=agreed.state.fingerprint,
        without=tuple(sorted(name.partition("~")[0] for name in without)),
        voting=len(voting),
        quorum=s.config.quorum,
        agrees=agrees,
        joins=agrees and not keys and not genesis.lacks_eras(s, agreed.state.era, left),
        copies=s.transfer.placement.copies,
        by_copies=looked.by_copies,
        copies_checked=looked.how.total(),
        bytes_read=looked.bytes_read,
        by_digest=looked.how["digest"],
        problems=tuple(problems),
        lost=tuple(p.name for p in looked.lost),
        lost_bytes=sum(p.size for p in looked.lost),
    )
    return report, agreed, looked.lost


def _newest(s: Session, is_quorum: bool) -> tuple[Agreed, bool]:
    """The newest version that can be had, and whether a quorum says that it is the newest one."""
    if is_quorum:
        try:
            return agreement.newest(s), True
        except NoQuorumError:
            pass
    return agreement.newest_seen(s), False


def _lacks_beginning(s: Session, state: State, gone: Collection[str]) -> list[str]:
    """What no backend but those `gone` has of the genesis and the hints, where a new device needs it."""
    first = genesis.look(s, gone)
    if not first.intact:
        return ["the genesis: on no backend that is left"]
    if not genesis.needs_hint(s, state, first) or genesis.look_at_hints(s, gone, state).intact:
        return []
    left = [name for name in s.names.values() if name not in gone]
    if not genesis.leads_on(s, left, state):  # those of the beginning may be among them, and show what came then
        return ["the hint of which backends there are today: on no backend that is left"]
    return []


def _beside_the_logs(
    s: Session, agreed: Agreed, left: Collection[str], ill: Collection[str], *, read_data: bool
) -> list[str]:
    """What no backend that is left has of the config, the device set, the index and the records of eras."""
    named = beside(agreed)
    away = {e.name for e in agreed.config.backends} - {*left}
    seen = health.look_beside(s, named, {*ill, *away}, read_data=read_data)
    wrong = seen.problems + [(c.backend, f"{c.what} is altered") for bad in seen.altered.values() for c in bad]
    out = [
        f"{what}: on no backend that is left" for what, ref in named if getattr(ref, "hash", ref) not in seen.holders
    ]
    return out + _eras(s, agreed.state, [n for n in left if n not in ill]) + [f"{b}: {why}" for b, why in wrong]


def _eras(s: Session, state: State, names: Collection[str]) -> list[str]:
    return [f"the record of era {n}: on no backend that is left" for n in genesis.lacks_eras(s, state.era, names)]


def look(s: Session, packs: Collection[PackRecord], *, read_data: bool) -> Looked:
    """Looks for copies of these packs on the backends that have an open way."""
    lost, counts, how, size = [], Counter[int](), Counter[str](), 0
    for n, (record, home, elsewhere) in enumerate(looked_at(s, packs, read_data=read_data), 1):
        good = [c for c in (*home, *elsewhere) if c.problem is None]
        counts[len(good)] += 1
        lost += [] if good else [record]
        how.update(c.how for c in good)
        size += sum(c.bytes_read for c in (*home, *elsewhere))
        s.listener(Progress("check", n, len(packs), "packs"))
    by_copies = tuple(counts[n] for n in range(max(counts, default=-1) + 1))
    return Looked(sorted(lost, key=lambda p: p.id), by_copies, how, size)


def would_be_lost(s: Session, agreed: Agreed, lost: Sequence[PackRecord]) -> tuple[tuple[Gone, ...], int]:
    """The files, by versions, that these packs alone hold; and how many directories and snapshots they alone hold."""
    gone = LostObjects(agreed.index, {p.id for p in lost})
    kinds = (ObjectKind.DIR, ObjectKind.SNAPSHOT)
    trees = {o.id for p in lost for o in agreed.index.inside(p, blobs=False) if o.kind in kinds and o.id in gone}
    return gone_files(s, agreed, gone), len(trees)
