"""What is done for the workspace beside other work: data move, what was noticed is made good, copies are read.

A push does that when its own work is done, the daemon while nothing else is to do. Only where something is known to be
displaced, or was noticed missing or damaged, and about once a day for the copies that are read in turn
(`maintenance.scrub`); else a push asks for nothing more. All of it has so many seconds, as `config set upkeep` has it:
what is under way then is left, and a pack is begun only if it would arrive in time by what is known of the line. The
steps are those of `rebalance` and `scrub`, which any number of devices may do at once. Where nothing could be done it
is not tried again for a while.

Whoever has it agreed that all is moved frees the surplus, too, at the end of the same push or of later ones. It is
found by listing the backends: where that takes longer than there is time for, it is given up, and left to `rebalance`.
What a removed backend still has goes the same way, where it is to be emptied and this device has a way to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metasync.errors import CancelledError, MetaSyncError
from metasync.local import settings
from metasync.local.state_keys import MENDING_KEY, READING_KEY, SHORT_KEY, SURPLUS_KEY, UPKEEP_KEY, WIPE_KEY
from metasync.moving import surplus, wipe
from metasync.moving.rebalance import Deadline, Mover, Tally, rebalance
from metasync.reports.backends import Wiped
from metasync.runtime.limits import OFF, UPKEEP, parse_duration
from metasync.session.session import Operations
from metasync.sync.operations import DAY_S, has_upkeep, is_turn_to_read
from metasync.transfer import wrong_copies

BUDGET_S: Final = 2.0
QUIET_FACTOR: Final = 30  # so much longer where nobody waits: 16 MiB take half a minute at 5 Mbit/s
AGAIN_S: Final = 600  # after a time that came to nothing
FREE_TRIES: Final = 8  # that free nothing, before surplus copies are left to `rebalance`


def after_push(work: Operations) -> None:
    """Moves, mends and reads for a while. Failures are no failures of the push: whoever comes next goes on."""
    budget_s = _budget_s(work)
    _keep(work, budget_s, Deadline(budget_s))


def in_quiet(work: Operations, is_wanted: Callable[[], bool]) -> bool:
    """Does the same for longer, until somebody wants something else. -> whether it is to go on soon."""
    budget_s = QUIET_FACTOR * _budget_s(work)
    return _keep(work, budget_s, Deadline(budget_s, is_wanted), is_wanted) and has_upkeep(work.connections)


def mends_at_s(work: Operations) -> int | None:
    """Before when (s since 1970) nothing that was noticed is made good; 0: no such time. None: upkeep is off."""
    return (work.connections.db.get(UPKEEP_KEY) or 0) if _budget_s(work) else None


def _budget_s(work: Operations) -> float:
    said = settings.read(work.settings_path).values.get(UPKEEP)
    return BUDGET_S if said is None else 0.0 if said == OFF else parse_duration(said)


def _keep(work: Operations, budget_s: float, ends: Deadline, is_wanted: Callable[[], bool] = lambda: False) -> bool:
    """-> whether anything came of it, or it was broken off."""
    c, did = work.connections, False
    now_s = c.machine.wall_ns() // 1_000_000_000
    if budget_s and has_upkeep(c) and not 0 <= (c.db.get(UPKEEP_KEY) or 0) - now_s <= AGAIN_S:
        did = _try(_keep_up, work, ends) or is_wanted()
        c.db.set(UPKEEP_KEY, None if did else now_s + AGAIN_S)
    if is_turn_to_read(c) and not is_wanted():
        has_read = not budget_s or (not ends.is_over and _try(_read, work, ends))
        c.db.set(READING_KEY, now_s + (DAY_S if has_read else AGAIN_S))
    return did


def _try(step: Callable[[Operations, Deadline], bool], work: Operations, ends: Deadline) -> bool:
    """-> what a step tells; False where it failed."""
    try:
        return step(work, ends)
    except CancelledError:
        raise
    except MetaSyncError:
        return False


def _read(work: Operations, ends: Deadline) -> bool:
    """-> whether no copy is due to be read any more."""
    from metasync.maintenance.scrub import read_in_turn  # on most days' pushes nothing is due

    return read_in_turn(work, lambda: ends.left_s)


def _keep_up(work: Operations, ends: Deadline) -> bool:
    """-> whether anything came of it."""
    did = False
    if work.connections.config.prev_config is not None:
        tally = Tally()
        report = rebalance(work, tally=tally, ends=ends)
        did = bool(report.version is not None or tally.done)
        if report.version is not None:
            work.connections.db.set(SURPLUS_KEY, FREE_TRIES)
    if work.connections.db.has(SURPLUS_KEY) and not ends.is_over:
        did |= free(work, ends)
    if work.connections.db.has(MENDING_KEY) and not ends.is_over:
        did |= mend(work, ends)
    if work.connections.db.has(WIPE_KEY) and work.connections.config.prev_config is None and not ends.is_over:
        done = wipe.go_on(work, lambda: ends.left_s)
        did |= any(isinstance(w, Wiped) and (w.objects or not w.left) for w in done.values())
    return did


def free(work: Operations, ends: Deadline) -> bool:
    """Deletes what the last trim has given up, as `rebalance` does. -> whether some went, or there is no more."""
    with work.session("rebalance") as s:
        mover = Mover(s, Tally(), read_data=False, ends=ends)
        if s.previous is not None:  # data move again: the next trim notes it anew
            s.db.set(SURPLUS_KEY, None)
            return False
        freed = surplus.free(mover)
        left = (s.db.get(SURPLUS_KEY) or 0) - (not freed.copies)
        s.db.set(SURPLUS_KEY, None if freed.is_all or left <= 0 else left)
    return freed.is_all or bool(freed.copies)


def mend(work: Operations, ends: Deadline) -> bool:
    """Makes good copies that were noticed missing or damaged. -> whether any note could be taken back.

    What nobody has is left to `check --repair`, which names it.
    """
    with work.session("rebalance") as s:
        noted, tally = wrong_copies.load(s.db), Tally()
        mover = Mover(s, tally, read_data=True, ends=ends)
        packs = [p for p in mover.base.index.packs().values() if p.name in noted]
        mover.bring_all(packs, note=False)
        left = {p.name for p in packs} - {name for _, name in tally.done} - tally.lost
        wrong_copies.drop(s.db, noted - left)
        wrong_copies.mended(s.db, noted - left - tally.lost)
        if short := s.db.get(SHORT_KEY) or 0:  # they are among these, with others
            s.db.set(SHORT_KEY, max(short - len(noted - left), min(short, len(left))))
    return len(left) < len(noted)
