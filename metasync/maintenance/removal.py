"""Removes backends: those that answer, those that alone hold something, and those that are dead (`backend remove`)."""

from __future__ import annotations

from metasync.errors import UnreachableError
from metasync.maintenance import add_backend
from metasync.maintenance.rebalance import rebalance
from metasync.maintenance.reconfigure import OnlyThereError
from metasync.reports.backends import BackendChange
from metasync.session.session import Operations
from metasync.sync.operations import changing

WHAT = "backend remove"


def remove(
    work: Operations, name: str, *, passphrase: str | None = None, dry_run: bool = False, dead: bool = False,
    lose: bool = False,
) -> BackendChange:  # fmt: skip
    """Takes a backend out of the agreed ones: see `Workspace.backend_remove`."""
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
            next_step=f"{name} is still in use. Run again; what was moved stays where it is.",
        )
