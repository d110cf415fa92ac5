"""Is everything there, as often as promised, and unaltered (`metasync check`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from metasync.consensus.records.state import ZERO_HASH, Ref
from metasync.events import Phase, Progress
from metasync.members import key_copies
from metasync.reports.backends import CheckProblem, CheckReport
from metasync.runtime.effects import Task
from metasync.runtime.sizes import PACKS_ASKED_AT_ONCE
from metasync.session import health, space
from metasync.session.session import Agreed, Session
from metasync.store.index import PackRecord
from metasync.transfer import late_copies
from metasync.transfer.verify import check_pack

PIECES = 4  # read on each backend that tells no digests: 4 MiB as a rule
PACKS_READ_AT_ONCE = 4  # each on R backends: 4 x 2 x 4 MiB in memory as a rule


def check(s: Session, agreed: Agreed, *, read_data: bool) -> CheckReport:
    """Looks at every copy of every pack that the agreed index names, and at the objects beside the logs.

    Without `read_data` sizes are compared, and digests where a store tells them; of the copies on each other backend
    `PIECES` are read in part. With it every copy is read and its SHA-256 compared with its name.
    """
    s.listener(Phase("check"))
    packs = sorted(agreed.index.packs().values(), key=lambda p: (p.generation, p.name))
    problems: list[CheckProblem] = []
    lost: list[bytes] = []
    pieces = {} if read_data else _pieces(s, packs)
    looked: Counter[str] = Counter()
    short = bytes_read = 0
    todo = iter(packs)
    on_their_way = late_copies.load(s.db)
    waited_for: list[late_copies.Trail] = []
    running: dict[Future[Any], PackRecord] = {}
    done_packs = 0
    while True:
        for record in todo:
            running[s.runtime.start(_task(s, record, pieces, read_data))] = record
            if len(running) >= (PACKS_READ_AT_ONCE if read_data else PACKS_ASKED_AT_ONCE):
                break
        if not running:
            break
        for future in s.runtime.wait(running):
            record = running.pop(future)
            home, elsewhere = future.result()
            looked.update(c.how for c in (*home, *elsewhere))
            bytes_read += sum(c.bytes_read for c in (*home, *elsewhere))
            bad = [c for c in home if c.problem is not None]
            good = len(home) - len(bad) + len(elsewhere)
            excused = good >= s.transfer.placement.copies
            trail = on_their_way.get((record.generation, record.name))
            if trail is not None and good and not excused:
                late = {s.names.get(i) for i in trail.missing} & {c.backend for c in bad if c.missing}
                bad = [c for c in bad if c.backend not in late]
                waited_for.append(trail)
                good += len(late)
            problems += [
                CheckProblem(c.backend, record.name, c.problem or "")
                for c in bad
                if not (excused and c.missing)  # a copy that found another place is not missed here
            ]
            short += good < s.transfer.placement.copies
            if not good:
                lost.append(record.name)
            done_packs += 1
            s.listener(Progress("check", done_packs, len(packs), "packs"))
    standings = {**health.check_places(s, sorted(s.names.values())), **health.standings(s)}
    keys, seen = key_copies.check(s, agreed.state, standings, read_data=read_data)
    beside, brought = _check_meta(s, agreed, standings, read_data=read_data)
    return CheckReport(
        version=agreed.state.v,
        packs=len(packs),
        copies_checked=looked.total(),
        bytes_read=bytes_read,
        by_digest=looked["digest"],
        pieces_read=looked["piece"],
        problems=tuple(sorted(problems, key=lambda p: (p.backend, p.pack))),
        lost=tuple(sorted(lost)),
        short=short,
        meta_problems=(
            *beside,
            *(CheckProblem(backend, b"", why) for backend, why in keys),
        ),
        notes=(*space.check_ballast(s, standings), *seen, *brought),
        trailing=late_copies.summary(waited_for, s.names),
    )


Pieces: TypeAlias = dict[bytes, dict[str, int]]
"""By pack and backend: the number of the segment to read there."""


def _task(s: Session, record: PackRecord, pieces: Pieces, read_data: bool) -> Task:
    return check_pack(s.transfer, record, read_data=read_data, pieces=pieces.get(record.name))


def _pieces(s: Session, packs: Sequence[PackRecord]) -> Pieces:
    """Some copies on each backend, drawn anew each time, and a segment of each."""
    draw = random.Random(s.entropy(16))
    t = s.transfer
    homes: dict[str, list[PackRecord]] = {}
    for record in packs:
        for backend_id in t.placement.primary(record.name):
            if record.segments and backend_id in t.places:
                homes.setdefault(t.places[backend_id].name, []).append(record)
    out: Pieces = {}
    for name, records in sorted(homes.items()):
        for record in draw.sample(records, min(PIECES, len(records))):
            out.setdefault(record.name, {})[name] = draw.randrange(len(record.segments))
    return out


def _check_meta(
    s: Session, agreed: Agreed, standings: Mapping[str, str], *, read_data: bool
) -> tuple[list[CheckProblem], list[str]]:
    """The index, config and device set on every acceptor, and whether each is the one it should be. -> also notes."""
    problems = [CheckProblem(name, b"", why) for name, why in sorted(standings.items())]
    problems += [CheckProblem("all backends", b"", told) for told in health.check_heads(s, agreed.state)]
    named: list[tuple[str, Ref | bytes]] = [("config", agreed.state.config), ("device set", agreed.state.devices)]
    if agreed.state.index.hash != ZERO_HASH:
        named.append(("index", agreed.state.index))
        named += [("index segment", Ref(*item.ref)) for item in agreed.root.items]
    found, brought = health.check_meta(s, named, {p.backend for p in problems}, read_data=read_data)
    return [*problems, *(CheckProblem(backend, b"", why) for backend, why in found)], brought
