"""Deletes copies that a trim has given up, once every copy that counts is verified (consensus.md, rule 6.4).

What lies on a backend is told by listings, which may be old or untrue: a copy that is not listed stays until another
time. What is listed is deleted only if the newest index names the pack, a trim's mapping did not place it there, this
process has verified all its copies that count, and the backend knows of the trim itself: if it is left with others that
do not, these must find what they knew. Packs that no index names are left to the collection of garbage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metasync.errors import NotFoundError
from metasync.local.state_keys import SWEPT_KEY
from metasync.maintenance import sweep
from metasync.reports.backends import Share
from metasync.runtime.effects import Op, Reply, Urgency
from metasync.runtime.sizes import PACKS_ASKED_AT_ONCE
from metasync.session import witnesses
from metasync.store.index import PackId, PackRecord
from metasync.transfer.inventories import Copy

if TYPE_CHECKING:
    from metasync.moving.rebalance import Mover


@dataclass
class Freed:
    """By backend: copies that were deleted, their bytes, and why some may be left. `is_all`: none are known to be."""

    copies: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    is_all: bool = True

    def shares(self) -> tuple[Share, ...]:
        return tuple(Share(name, n, self.bytes[name]) for name, n in sorted(self.copies.items()))


def free(mover: Mover) -> Freed:
    """Deletes what is surplus on the backends of today, as far as they list it. None of them is changed just now.

    Where the mover's time is over, what was not listed, verified or deleted by then is left.
    """
    s, out, ends = mover.s, Freed(), mover.ends
    if s.db.get(SWEPT_KEY) == s.connections.config_hash:
        return out
    found = _where_it_may(mover, _surplus(mover, out), out)
    records = {key: mover.base.index.packs()[key] for key in found}
    mover.bring_all([p for key, p in records.items() if key not in mover.tally.done], note=False)
    out.failed.update(mover.tally.waiting)
    running: dict[Future[Any], PackRecord] = {}
    todo = [p for key, p in records.items() if key in mover.tally.done]
    while todo or running:
        if ends is not None and ends.is_over and todo:
            out.is_all, todo = False, []
        while todo and len(running) < PACKS_ASKED_AT_ONCE:
            record = todo.pop()
            running[s.runtime.start(_delete(found[record.generation, record.name]))] = record
        for future in s.runtime.wait(running):
            record = running.pop(future)
            for name, why in future.result():
                if why:
                    out.failed[name] = why
                else:
                    out.copies[name] += 1
                    out.bytes[name] += record.size
    out.is_all &= not (out.failed or mover.tally.lost or records.keys() - mover.tally.done)
    if out.is_all:
        s.db.set(SWEPT_KEY, s.connections.config_hash)
    return out


def _where_it_may(mover: Mover, found: dict[PackId, list[Copy]], out: Freed) -> dict[PackId, list[Copy]]:
    """Those of these copies that lie where the newest version is known: see `session.witnesses`."""
    refusals = witnesses.refusals(mover.s, mover.base.state) if found else {}
    refused = {
        name: why for name, why in refusals.items() if any(c.backend == name for cs in found.values() for c in cs)
    }
    out.failed.update({name: f"nothing is deleted there yet: {why}" for name, why in refused.items()})
    left = {key: [c for c in copies if c.backend not in refused] for key, copies in found.items()}
    return {key: copies for key, copies in left.items() if copies}


def _delete(copies: list[Copy]) -> Generator[Any, Any, list[tuple[str, str]]]:
    """-> for each copy: its backend, and "" or why it is still there."""
    out = []
    for copy in copies:
        reply: Reply = yield Op(copy.backend, "delete", copy.path, urgency=Urgency.LATER)
        error = reply.error
        out.append((copy.backend, "" if error is None or isinstance(error, NotFoundError) else error.message))
    return out


def _surplus(mover: Mover, out: Freed) -> dict[PackId, list[Copy]]:
    """By pack, the copies that a trim has given up, as the backends list them."""
    s, packs, found = mover.s, mover.base.index.packs(), dict[PackId, list[Copy]]()
    unlinked = [b for b in s.config.backends if b.storage and b.backend_id not in s.names]
    out.failed.update({b.name: "not linked here" for b in unlinked})
    ids = {place.name: backend_id for backend_id, place in s.transfer.places.items()}
    for copy in sweep.listed(s, out.failed):
        if mover.ends is not None and mover.ends.is_over:
            out.is_all = False
            break
        if copy.id in packs and mover.places.is_surplus(ids[copy.backend], copy.storage_id, packs[copy.id]):
            found.setdefault(copy.id, []).append(copy)
    return found
