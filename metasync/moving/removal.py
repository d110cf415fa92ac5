"""Removes backends: those that answer, those that alone hold something, and those that are dead (`backend remove`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

from metasync.errors import UnreachableError, UsageError
from metasync.moving import add_backend, wipe
from metasync.moving.rebalance import rebalance
from metasync.moving.reconfigure import OnlyThereError, unchanged
from metasync.reports.backends import BackendChange, Moving
from metasync.session.session import Operations
from metasync.sync.operations import changing

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
    dead, lose = how.get("dead", False), how.get("lose", False)
    if how.get("wipe"):
        if dead:
            raise UsageError("a backend that is dead cannot be emptied", next_step="Give --dead or --wipe.")
        return _remove_and_wipe(work, name, passphrase=passphrase, dry_run=dry_run)
    if dead:
        ways = {w.name for w in work.connections.ways.values() if name in (w.name, w.name.partition("~")[0])}
        with work.connections.doing_without(ways), changing(work, WHAT, reopen=True) as s:
            return add_backend.remove(s, name, passphrase=passphrase, dry_run=dry_run, dead=True, lose=lose)
    try:
        with changing(work, WHAT, reopen=True) as s:
            return add_backend.remove(s, name, passphrase=passphrase, dry_run=dry_run)
    except OnlyThereError:
        if not dry_run:
            _empty(work, name)
    with changing(work, WHAT, reopen=True) as s:
        if dry_run:
            return add_backend.drain(s, name, dry_run=True)
        return add_backend.remove(s, name, passphrase=passphrase)


def _remove_and_wipe(work: Operations, name: str, *, passphrase: str | None, dry_run: bool) -> BackendChange:
    """Removes a backend, has its data moved, and empties it. May be repeated after it was interrupted."""
    is_in = name in work.connections.agreed_names
    if dry_run and is_in:
        return remove(work, name, dry_run=True)
    wipe.begin(work.connections, name)
    if is_in:
        done = remove(work, name, passphrase=passphrase)
    else:
        with work.session(WHAT) as s:
            done = unchanged(s, name, dry_run=dry_run)
        if dry_run:
            return done
    _moved(work, name)
    return replace(done, moving=Moving(), kept=(), wiped=wipe.wipe(work, name))


def _empty(work: Operations, name: str) -> None:
    """Has the other backends hold all that is to be kept, while this one is still an agreed one.

    So every device, also one that is cloned meanwhile, has a way to what is to be moved.
    """
    _moved(work, name)
    with changing(work, WHAT, reopen=True) as s:
        add_backend.drain(s, name)
    _moved(work, name)


def _moved(work: Operations, name: str) -> None:
    report = rebalance(work)
    if report.left.packs or report.waiting or report.lost:
        why = "; ".join(f"{n}: {text.removeprefix(f'{n}: ')}" for n, text in report.waiting)
        raise UnreachableError(
            f"what {name} holds could not be moved: {why or 'some packs cannot be had intact from any backend'}",
            next_step=f"Keep {name}, and run again; what was moved stays where it is.",
        )
