"""Conflicts that wait for the user: which there are, and the choice between their sides (`metasync resolve`).

A conflict is open as long as its copy has a tag that says whose sides there are (`merge.copies`). So it is the same on
every device, and what resolves it is a version like any other. A choice is a checkout of this device's own changes:
what loses goes to `.metasync/replaced/`, as everything that a checkout replaces, and is kept there until an agreed
version holds it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.errors import UsageError, WorkspaceError
from metasync.events import Phase
from metasync.history.log import History, is_below
from metasync.history.restore import Here, look, mark_agreed, sources, take_in
from metasync.local.state_keys import CONFLICTS, REPLACED
from metasync.merge.copies import unmarked
from metasync.objects.model import Entry
from metasync.reports.history import Kept, ResolveReport
from metasync.reports.sync import ConflictReport
from metasync.session.session import Session
from metasync.sync import sides
from metasync.sync.fetch import ChangedMeanwhile, deliver
from metasync.sync.pull import ROUNDS_MAX
from metasync.sync.scanned import noted
from metasync.worktree.index import rows_at, store_rows

Keep: TypeAlias = Literal["ours", "theirs", "both"] | bytes
"""Which side is kept: this device's, the other's, both; or the one that stands at this path."""

LATE: Final = "changed here while a conflict was resolved"


def conflicts(s: Session) -> tuple[ConflictReport, ...]:
    """All conflicts whose copy is there, as far as this device has heard of them. Asks nobody."""
    return sides.told(s, s.base(), [c for c in s.db.records(CONFLICTS) if sides.is_there(s, c.copy)])


# ---- the choice


def resolve(s: Session, path: bytes, keep: Keep) -> ResolveReport:
    """Ends the conflict at `path`: of the original with all its copies, or of one copy.

    The side that is kept has the original's path then, and the other sides go; `both`: all stay where they are, and it
    is no conflict any more. The next push tells the others. `UsageError`: there is no conflict, or it must be said by
    path which of several sides is meant.
    """
    named = [c for c in conflicts(s) if path in (c.kept, c.path)]
    items = [c for c in named if c.kept == path] or named
    if not items:
        raise UsageError(f"there is no conflict at {os.fsdecode(path)}", next_step="`metasync conflicts` lists them.")
    original = items[0].path
    winner = None if keep == "both" else _winner(items, keep)
    for _ in range(ROUNDS_MAX):
        try:
            return _resolve_once(s, original, tuple(c.kept for c in items), winner)
        except ChangedMeanwhile:
            continue
    raise WorkspaceError(
        f"{os.fsdecode(original)} changed again and again while the conflict was resolved; nothing was changed",
        next_step="Run again when the programs that write there are quiet.",
    )


def _winner(items: Sequence[ConflictReport], keep: Keep) -> bytes:
    """The path of the side that is kept. `UsageError`: none is meant, or several are."""
    agreed = max((c.sides[0] for c in items), key=lambda side: side.version or 0)
    all_sides = [agreed, *(c.sides[1] for c in items)]
    if isinstance(keep, bytes):
        found = [side for side in all_sides if side.path == keep]
        why = f"{os.fsdecode(keep)} is no side of the conflict at {os.fsdecode(agreed.path)}"
    else:
        found = [side for side in all_sides if side.here == (keep == "ours")]
        which = f"{len(found)} sides" if found else "no side"
        whose = "this device's" if keep == "ours" else "another device's"
        verb = "are" if len(found) > 1 else "is"
        why = f"{which} of the conflict at {os.fsdecode(agreed.path)} {verb} {whose}"
    if len(found) != 1:
        names = ", ".join(f"{os.fsdecode(side.path)} ({side.device or 'unknown device'})" for side in all_sides)
        raise UsageError(why, next_step=f"Name the file to keep with --keep: {names}.")
    return found[0].path


def _resolve_once(s: Session, original: bytes, copies: tuple[bytes, ...], winner: bytes | None) -> ResolveReport:
    history = History(s, ask=False)
    base = s.base()
    here = look(s, base, history)
    if winner is None:
        with s.db.transaction():
            rows = {p: row._replace(entry=unmarked(row.entry)) for p, row in rows_at(s.db, copies).items()}
            store_rows(s.db, rows.items())
            sides.forget_gone(s, copies)
        return ResolveReport(original, None, copies)
    for copy in copies:
        if copy not in here.scan.tree and not take_in(s, here, copy):
            raise WorkspaceError(
                f"{os.fsdecode(copy)} is there, but is not taken in, or cannot be read",
                next_step="`metasync status --verbose` says why. Move or delete it by hand.",
            )
    new: dict[bytes, Entry | None] = {}
    for copy in copies:
        new.update((p, None) for p in here.scan.tree if is_below(p, copy))
    if winner != original:
        new.update((p, None) for p in here.scan.tree if is_below(p, original))
        new.update((original + p[len(winner) :], e) for p, e in here.scan.tree.items() if is_below(p, winner))
        new[original] = unmarked(here.scan.tree[winner])
    new = {p: e for p, e in new.items() if e != here.scan.tree.get(p)}
    applied_before = {r.n for r in s.db.records(REPLACED)}
    applied = _carried_out(history, here, new, base.state.v, copies)
    lost = [r for r in s.db.records(REPLACED) if r.n not in applied_before]
    return ResolveReport(
        path=original,
        kept=winner,
        copies=copies,
        replaced=tuple(Kept(r.path, f".metasync/replaced/{r.n}") for r in lost if not is_below(r.path, winner)),
        conflicts=sides.told(s, base, applied.conflicts),
        skipped=noted(applied.kept) + noted(applied.unplaced),
    )


def _carried_out(
    history: History, here: Here, new: dict[bytes, Entry | None], version: int, copies: tuple[bytes, ...]
) -> Applied:
    """Checks the choice out as changes of this device's own; the bytes are all here."""
    s = history.s
    s.listener(Phase("checkout"))
    changes = [Change(p, e, here.rows.get(p) if p in here.scan.tree else None) for p, e in new.items()]
    mark_agreed(s, changes, here)
    checkout = Checkout(s.db, s.tree)
    wanted = checkout.begin(changes, version=version, own=True, reason=LATE, origin=sides.origin(s))
    try:
        entries = {p: e for p in wanted if (e := new[p]) is not None}
        deliver(s, checkout, entries, sources(here.scan), history.contents)
    except BaseException:
        checkout.abandon()
        raise
    # A record that outlives a crash here does no harm: without its copy it is no conflict.
    return checkout.apply(lambda: sides.forget_gone(s, copies))
