"""What must be true of every simulation in the end (simulation.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from metasync.consensus.records.state import ZERO_HASH
from metasync.local.state_keys import EVIDENCE_KEY
from metasync.session.folder import LINKS_KEY
from simulation.db import SimDb
from simulation.disk import folded
from simulation.reach import Library
from simulation.user import Thing, lines_of, replaced_in, tree_of
from simulation.world import Violation

if TYPE_CHECKING:
    from simulation.client import Client, Operation
    from simulation.network import Store
    from simulation.witness import Witness

_CONTENT: Final = ("packs", "meta", "const")


def meaning(path: str) -> str:
    """What an object is, without whose copy of it: its path below the acceptor's or storage's id."""
    return path.split("/", 2)[-1]


def is_content(path: str) -> bool:
    """Whether an object holds something that must not be lost: all but logs, births and what helps to find them."""
    return meaning(path).partition("/")[0] in _CONTENT


def comparable(clients: Sequence[Client]) -> list[dict[bytes, Thing]]:
    """The clients' trees, as far as all their disks can show them.

    Where a disk takes two names for one, the one that it holds may stand there under the other's spelling.
    """
    unplaced = {folded(path) for client in clients for path in client.tables["unplaced"]}

    def shows(path: bytes) -> bool:
        parts = path.split(b"/")
        return all(folded(b"/".join(parts[:n])) not in unplaced for n in range(1, len(parts) + 1))

    return [{p: t for p, t in tree_of(c.volume).items() if not unplaced or shows(p)} for c in clients]


def history(operations: Iterable[Operation], witness: Witness) -> None:
    """Linearizable, in linear time, for versions are totally ordered; and each change at most once."""
    chain, eras, since = witness.chain, [], 0.0
    for ended, at in (*witness.ended, (chain, float("inf"))):
        eras.append((ended, since, at))
        since = at
    where: dict[bytes, int] = {}
    for v, state in enumerate(chain[1:], 1):
        if state.v != v:
            continue  # a number that a new era passed over
        if state.op_id in where:
            raise Violation(f"one change is both version {where[state.op_id]} and {state.v}")
        where[state.op_id] = state.v
    told = [op for op in operations if op.version is not None and op.outcome == "ok"]
    for op in told:
        assert op.version is not None
        chains = [c for c, begun, until in eras if begun <= op.ended and op.began <= until and op.version < len(c)]
        if not chains:
            raise Violation(f"{op.client}: {op.kind} told of version {op.version}, which nobody decided")
        if op.pushed and not any(c[op.version].op_id in op.op_ids for c in chains):
            raise Violation(f"{op.client}: a push says it is version {op.version}, which holds another change")
    for _, begun, until in eras:
        _in_order([op for op in told if begun <= op.began and op.ended < until])


def _in_order(told: Sequence[Operation]) -> None:
    """What ended before another began is not newer; in one era."""
    newest, ended = 0, sorted(told, key=lambda o: o.ended)
    at = 0
    for op in sorted(told, key=lambda o: o.began):
        while at < len(ended) and ended[at].ended < op.began:
            newest = max(newest, ended[at].version or 0)
            at += 1
        version = op.version or 0
        if version < newest or (op.pushed and version == newest):
            raise Violation(
                f"{op.client}: {op.kind} began at {op.began:.3f} and told of version {version}, "
                f"when version {newest} had been told of before"
            )


def never_back(operations: Iterable[Operation], clients: set[str]) -> None:
    """Whatever providers do, no client is told of an older version than it was told of before."""
    newest: dict[str, int] = {}
    for op in operations:
        if op.version is not None and op.outcome == "ok" and op.client in clients:
            if op.version < newest.get(op.client, 0):
                raise Violation(f"{op.client}: {op.kind} went back to version {op.version}")
            newest[op.client] = op.version


def nobody_blamed(clients: Iterable[Client], stores: Mapping[str, Store]) -> None:
    """Nothing is noted against a backend that did nothing wrong, whatever a lying device says of it."""
    honest = {store.identity.hex(): name for name, store in stores.items() if store.liar is None}
    for client in (c for c in clients if not c.gone):
        kept = SimDb(client.tables)
        names = {name: honest.get(link.identity) for name, link in (kept.get(LINKS_KEY) or {}).items()}
        for backend, what, _ in kept.get(EVIDENCE_KEY) or ():
            if names.get(backend):
                raise Violation(f"{client.name} holds it against {names[backend]}, which is honest: {what}")


def nothing_lost(clients: Iterable[Client], stores: Mapping[str, Store], witness: Witness) -> None:
    """All that versions name can be read from the stores, and all that users wrote is somewhere."""
    every = [*clients]
    clients = [c for c in every if not c.gone]
    library = Library(witness.keys, stores, witness.stocks)
    state = witness.newest
    known = library.contents_of(state) if state.master != ZERO_HASH else set()
    for client in clients:
        here = {t.data for t in tree_of(client.volume).values()} | replaced_in(client.volume)
        lost = [data for data in client.user.own if data not in here and data not in known]
        if lost and not library.dropped:
            raise Violation(f"what {client.name}'s user wrote is nowhere: {sorted(lost)[0]!r}")
    skipped = witness.world.counts["skipped"]  # with the lines that were brought there
    if state.master != ZERO_HASH and not library.dropped and not skipped:
        no_line_lost(every, library.newest_of(state))


def no_line_lost(clients: Sequence[Client], newest: set[bytes]) -> None:
    """Every line that a user wrote, and that none took away who saw it, is in the newest version or on a disk.

    In history it is not enough: a merge of two texts that drops the lines of one keeps them there.
    """
    present = [c for c in clients if not c.gone]
    trees = (t.data for c in present for t in tree_of(c.volume).values())
    here = lines_of([*newest, *trees, *(data for c in present for data in replaced_in(c.volume))])
    removed = set[bytes]().union(*(c.user.removed for c in clients))
    for client in present:
        if lost := client.user.lines - removed - here:
            raise Violation(f"a line that {client.name}'s user wrote is in no file any more: {sorted(lost)[0]!r}")
