"""Makes whole what was found wrong with packs: copies from other copies, and lost objects from this device.

A pack that nobody has any more leaves the index, and what this device has of its objects is stored anew (`give_back`).
A pack is given up only when every backend that holds data has said that it has it not, or not intact; while one is
away, it may come back with it.

Nothing is deleted here, so two devices may repair the same at once: the same bytes are stored under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, NamedTuple

from metasync.errors import FullError, WorkspaceError
from metasync.events import Phase, Progress
from metasync.maintenance.repair.give_back import give_back, name_in_index
from metasync.maintenance.repair.lost_paths import gone_files
from metasync.maintenance.repair.needs import Needs
from metasync.maintenance.repair.untrue_rows import NO_ROWS, UntrueRows
from metasync.reports.checks import Repaired, Unmade
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import space
from metasync.session.session import Agreed, Session
from metasync.store.index import PackId, PackRecord
from metasync.store.moves import Places
from metasync.transfer.copies import Transfer
from metasync.transfer.moving import bring

PACKS_MENDED_AT_ONCE: Final = 4  # each held in memory


class Finding(NamedTuple):
    """A pack with which something is wrong. `good`: ids of the backends that hold it intact, `bad`: those that should
    and do not. `is_sure`: every backend that may hold it has been heard. `by_bytes`: a copy was found wrong by its
    bytes, so what its store tells of it says nothing."""

    record: PackRecord
    good: tuple[bytes, ...]
    bad: tuple[bytes, ...]
    is_sure: bool
    by_bytes: bool = False


def repair(
    s: Session,
    agreed: Agreed,
    found: Sequence[Finding],
    nowhere: bool,
    untrue: UntrueRows = NO_ROWS,
    needs: Needs | None = None,
) -> tuple[Repaired, Agreed]:
    """Makes whole what was found, as far as that can be had. -> also what is agreed then.

    `nowhere`: what the index does not give, and this folder may have: files of the newest version that are in no pack,
    or what deltas are made of. `untrue`: what does not lie in packs that are intact. These leave the index, too.
    `needs`: what versions need, if that is known.
    """
    s.listener(Phase("repair"))
    space.begin_asking(s, agreed.index)()
    made = _mend(s, [f for f in found if f.good and f.bad])
    none = [f for f in found if not f.good or f.record.id in made.altered]
    lost, away = [f.record for f in none], sum(not f.is_sure for f in none)
    out = Repaired(copies=made.copies, copied_bytes=made.size_bytes, waits=away, unmade=made.unmade)
    lost = lost if not away else []
    if not lost and not nowhere and not untrue:
        return out, agreed
    for _ in range(LOST_ROUNDS_MAX):
        given = give_back(s, agreed, lost, are_all_heard=not away, untrue=untrue, are_all=True, needs=needs)
        if given.root is None:
            return out, agreed
        state, mine = name_in_index(s, agreed.state, given.root)
        agreed, needs = s.load(state), None
        if mine:
            files = gone_files(s, agreed, given.gone) if given.gone else ()
            out = replace(out, stored_bytes=given.bytes_stored, version=state.v, gone=files)
            return replace(out, gone_objects=0 if files else len(given.gone) - given.untrue), agreed
        lost = [p for p in lost if p.id in agreed.index.packs()]  # as far as nobody else did it meanwhile
    raise WorkspaceError(
        f"others were faster {LOST_ROUNDS_MAX} times; what is lost is not stored anew yet", next_step="Run again."
    )


# ---- copies from other copies


class _Made(NamedTuple):
    """How many copies were made again, the bytes of them, the packs of which no copy was right after all, and where
    copies could not be made."""

    copies: int = 0
    size_bytes: int = 0
    altered: Set[PackId] = frozenset()
    unmade: tuple[Unmade, ...] = ()


def _mend(s: Session, found: Sequence[Finding]) -> _Made:
    t, copies, copied, altered = s.transfer, 0, 0, set[PackId]()
    lacking: dict[str, list[str]] = {}  # by backend: why a copy is not there, once for each
    places = Places(s.config, s.previous)
    running: dict[Future[Any], Finding] = {}
    todo = iter(found)
    while True:
        for f in todo:
            name, to = f.record.name, [place for i in f.bad if (place := t.places.get(i)) is not None]
            counting = [p._replace(storage_ids=places.ids(p.backend_id, name)[::-1]) for p in to]
            wanted = [p for p in counting if p.storage_ids]  # the config may be another than the one that was checked
            task = bring(t, f.record, wanted, t.read_order(name), are_all=f.is_sure, read_data=f.by_bytes)
            running[s.runtime.start(task)] = f
            if len(running) >= PACKS_MENDED_AT_ONCE:
                break
        if not running:
            return _Made(copies, copied, altered, tuple(_unmade(t, n, why) for n, why in sorted(lacking.items())))
        for future in s.runtime.wait(running):
            f, brought = running.pop(future), future.result()
            copies += len(brought.sent)
            copied += f.record.size * len(brought.sent)
            altered |= {f.record.id} if brought.is_lost else set()
            for name, why in brought.lacking.items() if not brought.is_lost else ():
                lacking.setdefault(name, []).append(why)
            s.listener(Progress("copies", copies, None, "copies"))


def _unmade(t: Transfer, name: str, why: Sequence[str]) -> Unmade:
    """What to tell of a backend on which copies are lacking: its error says the most."""
    error = t.down.get(name)
    text = error.message if error is not None else why[0]
    return Unmade(name, len(why), text.removeprefix(f"{name}: "), isinstance(error, FullError))
