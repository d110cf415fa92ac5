"""Conflicts that wait for the user: which there are, and the choice between their sides (`metasync resolve`).

A conflict is open as long as its copy has a tag that says whose sides there are (`merge.copies`). So it is the same on
every device, and what resolves it is a version like any other. A choice is a checkout of this device's own changes:
what loses goes to `.metasync/replaced/`, as everything that a checkout replaces, and is kept there until an agreed
version holds it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.errors import UsageError, WorkspaceError
from metasync.events import Phase
from metasync.history.log import History, is_below
from metasync.history.restore import Here, look, mark_agreed, sources, take_in
from metasync.local.state_keys import CONFLICTS, REPLACED
from metasync.merge.copies import unmarked
from metasync.objects.model import Entry, Kind
from metasync.reports.history import Keep, Kept, Merged, ResolveReport
from metasync.reports.sync import ConflictReport
from metasync.session.session import Session
from metasync.sync import sides
from metasync.sync.fetch import ChangedMeanwhile, deliver
from metasync.sync.pull import ROUNDS_MAX
from metasync.sync.scanned import noted
from metasync.worktree.index import rows_at, store_rows

NESTED_MAX: Final = 400  # paths of conflicts that are compared with each other; more are resolved one by one
DEFAULT_MODE: Final = 0o644
LATE: Final = "changed here while a conflict was resolved"


def conflicts(s: Session) -> tuple[ConflictReport, ...]:
    """All conflicts whose copy is there, as far as this device has heard of them. Asks nobody."""
    return sides.told(s, s.base(), [c for c in s.db.records(CONFLICTS) if sides.is_there(s, c.copy)])


# ---- the choice


class _Choice(NamedTuple):
    """The conflict at `original` with these copies. `winner`: the path of the side that is kept; None: all are."""

    original: bytes
    copies: tuple[bytes, ...]
    winner: bytes | None
    merged: bytes | None = None

    @property
    def paths(self) -> tuple[bytes, ...]:
        return (self.original, *self.copies)


def resolve(s: Session, paths: Sequence[bytes], keep: Keep) -> tuple[ResolveReport, ...]:
    """Ends the conflicts at these paths, each of an original with all its copies, or of one copy.

    The side that is kept has the original's path then, and the other sides go; `both`: all stay where they are, and it
    is no conflict any more. The next push tells the others. `UsageError`, before anything is changed: there is no
    conflict, or it must be said by path which of several sides is meant.
    """
    choices = _choices(conflicts(s), paths, keep)
    tops = [path for choice in choices for path in choice.paths]
    is_nested = len(tops) > NESTED_MAX or any(a != b and is_below(a, b) for a in tops for b in tops)
    inside_first = sorted(choices, key=lambda c: -c.original.count(b"/"))
    batches = [[c] for c in inside_first] if is_nested else [choices]
    return tuple(sorted((r for batch in batches for r in _resolve(s, batch)), key=lambda r: r.path))


def _choices(waiting: Sequence[ConflictReport], paths: Sequence[bytes], keep: Keep) -> list[_Choice]:
    """What is to be done with each conflict."""
    if isinstance(keep, str) and keep not in ("ours", "theirs", "both"):
        raise UsageError(f"{keep!r} names no side", next_step="Keep ours, theirs or both, or name a file.")
    wanted: dict[bytes, dict[bytes, ConflictReport]] = {}
    for path in paths:
        named = [c for c in waiting if path in (c.kept, c.path)]
        items = [c for c in named if c.kept == path] or named
        if not items:
            raise UsageError(
                f"there is no conflict at {os.fsdecode(path)}", next_step="`metasync conflicts` lists them."
            )
        wanted.setdefault(items[0].path, {}).update((c.kept, c) for c in items)
    out = []
    for original, items_of in sorted(wanted.items()):
        if isinstance(keep, Merged):
            out.append(_Choice(original, tuple(items_of), original, keep.data))
        else:
            winner = None if keep == "both" else _winner([*items_of.values()], keep)
            out.append(_Choice(original, tuple(items_of), winner))
    return out


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


def _resolve(s: Session, choices: Sequence[_Choice]) -> list[ResolveReport]:
    for _ in range(ROUNDS_MAX):
        try:
            return _resolve_once(s, choices)
        except ChangedMeanwhile:
            continue
    raise WorkspaceError(
        f"{os.fsdecode(choices[0].original)} changed again and again while the conflict was resolved; nothing was "
        "changed",
        next_step="Run again when the programs that write there are quiet.",
    )


def _resolve_once(s: Session, choices: Sequence[_Choice]) -> list[ResolveReport]:
    history = History(s, ask=False)
    base = s.base()
    here = look(s, base, history)
    tree = here.scan.tree
    stay = [copy for c in choices if c.winner is None for copy in c.copies]
    with s.db.transaction():
        rows = {p: row._replace(entry=unmarked(row.entry)) for p, row in rows_at(s.db, stay).items()}
        store_rows(s.db, rows.items())
        sides.forget_gone(s, stay)
    chosen = [c for c in choices if c.winner is not None]
    new: dict[bytes, Entry | None] = {}
    texts: dict[bytes, bytes] = {}
    for choice in chosen:
        new.update(_changes(s, here, choice))
        if choice.merged is not None:
            texts[choice.original] = choice.merged
    new = {p: e for p, e in new.items() if e != tree.get(p)}
    if not chosen:
        return [ResolveReport(c.original, None, c.copies) for c in choices]
    applied_before = {r.n for r in s.db.records(REPLACED)}
    copies = [copy for c in chosen for copy in c.copies]
    applied = _carried_out(history, here, new, texts, base.state.v, copies)
    lost = [r for r in s.db.records(REPLACED) if r.n not in applied_before]
    found = sides.told(s, base, applied.conflicts)
    left = noted(applied.kept) + noted(applied.unplaced)

    def of(choice: _Choice, path: bytes) -> bool:
        return any(is_below(path, top) for top in choice.paths)

    return [
        ResolveReport(
            path=c.original,
            kept=c.winner,
            copies=c.copies,
            replaced=tuple(
                Kept(r.path, f".metasync/replaced/{r.n}")
                for r in lost
                if of(c, r.path) and (c.merged is not None or c.winner is None or not is_below(r.path, c.winner))
            ),
            conflicts=tuple(x for x in found if of(c, x.path)),
            skipped=tuple(x for x in left if of(c, x.path)),
            merged=c.merged is not None,
        )
        for c in choices
    ]


def _changes(s: Session, here: Here, choice: _Choice) -> dict[bytes, Entry | None]:
    """What one choice does to the folder."""
    tree, original, winner = here.scan.tree, choice.original, choice.winner
    assert winner is not None
    for copy in choice.copies:
        if copy not in tree and not take_in(s, here, copy):
            raise WorkspaceError(
                f"{os.fsdecode(copy)} is there, but is not taken in, or cannot be read",
                next_step="`metasync status --verbose` says why. Move or delete it by hand.",
            )
    new: dict[bytes, Entry | None] = {}
    for copy in choice.copies:
        new.update((p, None) for p in tree if is_below(p, copy))
    if choice.merged is not None:
        was = tree.get(original) or tree[choice.copies[0]]
        mode = was.mode if was.kind is Kind.FILE else DEFAULT_MODE
        size, content, root = s.ingest().of_bytes(choice.merged)
        new.update((p, None) for p in tree if is_below(p, original))
        new[original] = Entry(Kind.FILE, mode, s.wall_ns(), size, content, root)
    elif winner != original:
        new.update((p, None) for p in tree if is_below(p, original))
        new.update((original + p[len(winner) :], e) for p, e in tree.items() if is_below(p, winner))
        new[original] = unmarked(tree[winner])
    return new


def _carried_out(
    history: History,
    here: Here,
    new: Mapping[bytes, Entry | None],
    texts: Mapping[bytes, bytes],
    version: int,
    copies: Sequence[bytes],
) -> Applied:
    """Checks the choices out as changes of this device's own. The bytes are all here, or in `texts`."""
    s = history.s
    s.listener(Phase("checkout"))
    changes = [Change(p, e, here.rows.get(p) if p in here.scan.tree else None) for p, e in new.items()]
    mark_agreed(s, changes, here)
    checkout = Checkout(s.db, s.tree)
    wanted = checkout.begin(changes, version=version, own=True, reason=LATE, origin=sides.origin(s))
    try:
        for path in texts.keys() & {*wanted}:
            checkout.stage_whole(path, texts[path])
        entries = {p: e for p in wanted if p not in texts and (e := new[p]) is not None}
        deliver(s, checkout, entries, sources(here.scan), history.contents, old=here.scan.tree)
    except BaseException:
        checkout.abandon()
        raise
    # A record that outlives a crash here does no harm: without its copy it is no conflict.
    return checkout.apply(lambda: sides.forget_gone(s, copies))
