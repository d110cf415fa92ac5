"""Removes backends: those that answer, those that alone hold something, and those that are dead (`backend remove`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

from metasync.errors import BackendError, UnreachableError, UsageError
from metasync.events import Phase
from metasync.moving import add_backend, strays, wipe
from metasync.moving.rebalance import Mover, Tally, rebalance
from metasync.moving.reconfigure import OnlyThereError, unchanged
from metasync.reports.backends import BackendChange, Moving, RebalanceReport, Share, Wiped
from metasync.session import agreement
from metasync.session.session import Operations
from metasync.sync.operations import changing
from metasync.transfer import wrong_copies

WHAT = "backend remove"


class How(TypedDict, total=False):
    """How a backend is removed: it is `dead`, so that no device asks it any more; `lose`: even if it alone has
    something. `wipe`: all is moved, and what the workspace has on it is deleted."""

    dead: bool
    lose: bool
    wipe: bool


def remove(
    work: Operations, name: str, *, passphrase: str | None = None, dry_run: bool = False, **how: Unpack[How]
) -> BackendChange:
    """Takes a backend out of the agreed ones: see `Workspace.backend_remove`."""
    dead, lose, wiped = how.get("dead", False), how.get("lose", False), how.get("wipe", False)
    if wiped and dead:
        raise UsageError("a backend that is dead cannot be emptied", next_step="Give --dead or --wipe.")
    if wiped:
        return _remove_and_wipe(work, name, passphrase=passphrase, dry_run=dry_run)
    if dead:
        return _remove_dead(work, name, passphrase=passphrase, dry_run=dry_run, lose=lose)
    return _remove(work, name, passphrase=passphrase, dry_run=dry_run)


def _remove(
    work: Operations, name: str, *, passphrase: str | None, dry_run: bool, emptied: bool = False
) -> BackendChange:
    """Removes one that answers. What it holds in place of others, or alone, is moved first."""
    if not dry_run:
        _bring_strays(work, name)
    try:
        with changing(work, WHAT, reopen=True) as s:
            return add_backend.remove(s, name, passphrase=passphrase, dry_run=dry_run, emptied=emptied)
    except OnlyThereError:
        if not dry_run:
            _empty(work, name)
    with changing(work, WHAT, reopen=True) as s:
        if dry_run:
            return add_backend.drain(s, name, dry_run=True)
        return add_backend.remove(s, name, passphrase=passphrase, emptied=emptied)


def _remove_dead(work: Operations, name: str, *, passphrase: str | None, dry_run: bool, lose: bool) -> BackendChange:
    c = work.connections
    ways = {w.name for w in c.ways.values() if name in (w.name, w.name.partition("~")[0])}
    is_over = name not in c.agreed_names and not ways and not dry_run
    if is_over and wipe.give_up(work, name):  # nothing is read there; it was still to be emptied
        with work.session(WHAT) as s:
            return unchanged(s, name, dry_run=False)
    with c.doing_without(ways), changing(work, WHAT, reopen=True) as s:
        return add_backend.remove(s, name, passphrase=passphrase, dry_run=dry_run, dead=True, lose=lose)


def _remove_and_wipe(work: Operations, name: str, *, passphrase: str | None, dry_run: bool) -> BackendChange:
    """Removes a backend, has its data moved, and empties it. May be repeated after it was interrupted."""
    c = work.connections
    with work.session(WHAT) as s:  # another device may have removed it meanwhile
        is_in = agreement.newest(s).config.named(name) is not None
    if dry_run and is_in:
        return _remove(work, name, passphrase=None, dry_run=True)
    if is_in:
        if name not in {way.name for way in c.ways.values()}:
            raise wipe.no_way(name)
        done = _remove(work, name, passphrase=passphrase, dry_run=False, emptied=True)
    else:
        if not dry_run:
            wipe.begin(work, name)
        with work.session(WHAT) as s:
            done = unchanged(s, name, dry_run=dry_run)
        if dry_run:
            return done
    _moved(work, name)
    all_done = [wipe.wipe(work, backend_id) for backend_id in wipe.noted(c, name)]
    return replace(done, moving=Moving(), kept=(), wiped=wipe.together(all_done))


def _empty(work: Operations, name: str) -> None:
    """Has the other backends hold all that is to be kept, while this one is still an agreed one.

    So every device, also one that is cloned meanwhile, has a way to what is to be moved.
    """
    _moved(work, name)
    with changing(work, WHAT, reopen=True) as s:
        add_backend.drain(s, name)
    _moved(work, name)


def rebalance_and_wipe(work: Operations, *, dry_run: bool, read_data: bool) -> RebalanceReport:
    """Moves what is not where it belongs, deletes what is surplus, and goes on with emptying removed backends."""
    report = rebalance(work, dry_run=dry_run, read_data=read_data)
    if dry_run or work.connections.config.prev_config is not None:
        return report
    done = wipe.go_on(work)
    emptied = tuple(Share(name, w.objects, w.bytes) for name, w in done.items() if isinstance(w, Wiped) and w.objects)
    failed = {name: w.why if isinstance(w, Wiped) else w.message for name, w in done.items()}
    return replace(report, emptied=emptied, unemptied=tuple((name, why) for name, why in failed.items() if why))


def _bring_strays(work: Operations, name: str) -> None:
    """Brings what the backend holds in place of others to where it belongs. What cannot be brought now is noted."""
    with work.session(WHAT) as s:
        mover = Mover(s, Tally(), read_data=False)
        entry = mover.base.config.named(name)
        if entry is None:
            return
        try:
            found = strays.listed(s, entry.backend_id, mover.base.index.packs().values())
        except BackendError:  # it is away, and may go all the same, where others have all that it may have
            return
        s.listener(Phase("move"))
        mover.bring_all(found, note=False)
        wrong_copies.note(s.db, (p.name for p in found if p.id not in mover.tally.done))


def _moved(work: Operations, name: str) -> None:
    report = rebalance(work)
    if report.left.packs or report.waiting or report.lost:
        why = "; ".join(f"{n}: {text.removeprefix(f'{n}: ')}" for n, text in report.waiting)
        raise UnreachableError(
            f"what {name} holds could not be moved: {why or 'some packs cannot be had intact from any backend'}",
            next_step=f"Keep {name}, and run again; what was moved stays where it is.",
        )
