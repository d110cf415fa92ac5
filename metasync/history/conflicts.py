"""Conflicts that wait for the user: which there are, and the choice between their sides (`metasync resolve`).

A conflict that this device found is recorded in the local state. One that another device found has arrived as a file
beside the original, and is told by its name. A choice is a checkout of this device's own changes: what loses goes to
`.metasync/replaced/`, as everything that a checkout replaces, and is kept there until an agreed version holds it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from typing import Literal, TypeVar

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.errors import UsageError, WorkspaceError
from metasync.events import Phase
from metasync.history.log import NEAR_MAX, History, is_below, version_of
from metasync.history.restore import Here, look, mark_agreed, sources, take_in
from metasync.local.state_keys import BOTH_KEY, CONFLICTS, REPLACED
from metasync.merge.trees import copied_from
from metasync.objects import walk
from metasync.objects.directory import Needs
from metasync.objects.model import Entry, decode_snapshot, split
from metasync.reports.history import ConflictItem, Kept, ResolveReport
from metasync.reports.sync import ConflictReport
from metasync.session.session import Session
from metasync.sync.fetch import ChangedMeanwhile, deliver
from metasync.sync.pull import ROUNDS_MAX
from metasync.sync.scanned import noted
from metasync.worktree.index import load_rows

Keep = Literal["mine", "theirs", "both"]

BY_NAME = "found by its name: another device's conflict, or an earlier one of this device"
LATE = "changed here while a conflict was resolved"

T = TypeVar("T")


def conflicts(s: Session) -> tuple[ConflictItem, ...]:
    """All conflicts whose copy is there: those recorded, and those told by a name in the agreed tree or the last scan.

    Asks nobody: what is not known here about who and when stays open.
    """
    recorded = {c.copy: c for c in s.db.records(CONFLICTS) if _is_there(s, c.copy)}
    out = [ConflictItem(c.path, c.copy, c.reason, True, c.version or None) for c in recorded.values()]
    decided = _decided_both(s)
    agreed = s.flat(s.base())
    for copy in {*agreed, *load_rows(s.db)} - recorded.keys() - decided:
        path = copied_from(copy) if b".conflict." in copy else None
        if path is not None and _is_there(s, copy) and _is_there(s, path):
            out.append(ConflictItem(path, copy, BY_NAME, False))
    known = _Authors(s)
    return tuple(sorted((known.told(item) for item in out), key=lambda item: (item.path, item.copy)))


def _is_there(s: Session, path: bytes) -> bool:
    parent, name = split(path)
    try:
        return s.tree.disk.look(name, s.tree.dir(parent)) is not None
    except OSError:
        return False


class _Authors:
    """Who agreed what, as far as it stands in the local cache."""

    def __init__(self, s: Session) -> None:
        self.s = s
        base = s.base()
        self.names = {c.device_id: c.name for c in base.devices.certificates}
        self.line = list(self._cached_line(base.state.master))

    def _cached_line(self, current: bytes) -> Iterator[tuple[int, bytes, str, int]]:
        for _ in range(NEAR_MAX):
            data = self.s.db.get_object(current)
            if data is None:
                return
            snapshot = decode_snapshot(data)
            device = self.names.get(snapshot.device, snapshot.device.hex()[:8])
            yield version_of(snapshot), snapshot.root, device, snapshot.time_ns
            if not snapshot.parents:
                return
            current = snapshot.parents[0]

    def told(self, item: ConflictItem) -> ConflictItem:
        """With the version it came with and who agreed that."""
        version = item.version if item.recorded else self._came_with(item.copy)
        if version is None:
            return item
        device, time_ns = next(((d, t) for v, _, d, t in self.line if v == version), (None, None))
        return ConflictItem(item.path, item.copy, item.reason, item.recorded, version, device, time_ns)

    def _came_with(self, copy: bytes) -> int | None:
        """The version in which a copy came, walking back to the first one that lacks it."""
        last: int | None = None
        for version, root, _, _ in self.line:
            found = self._cached(walk.find(root, copy))
            if found is None:
                return None
            if found.entry is None:
                return last
            last = version
        return None

    def _cached(self, task: Generator[Needs, Mapping[bytes, bytes], T]) -> T | None:
        """Runs a walk through the local cache alone."""
        try:
            _, ids = next(task)
            while True:
                got = self.s.db.get_objects(ids)
                if len(got) < len(ids):
                    return None
                _, ids = task.send(got)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


# ---- the choice


def resolve(s: Session, path: bytes, keep: Keep) -> ResolveReport:
    """Ends the conflict at `path`, which is the original or a copy.

    `mine`: the copy takes the original's name; `theirs`: the copy goes; `both`: both stay, and it is no conflict any
    more. `UsageError`: there is none, or it must be said which of several copies.
    """
    named = [c for c in conflicts(s) if path in (c.copy, c.path)]
    items = [c for c in named if c.copy == path] or named
    if not items:
        raise UsageError(f"there is no conflict at {os.fsdecode(path)}", next_step="`metasync conflicts` lists them.")
    if keep == "mine" and len(items) > 1:
        raise UsageError(
            f"{os.fsdecode(path)} has {len(items)} conflict copies",
            next_step=f"Name the one to keep: {', '.join(os.fsdecode(c.copy) for c in items)}.",
        )
    copies = tuple(c.copy for c in items)
    original = items[0].path
    if keep == "both":
        with s.db.transaction():
            _forget(s, copies)
            s.db.set(BOTH_KEY, _decided_both(s).union(copies))
        return ResolveReport(original, keep, copies)
    for _ in range(ROUNDS_MAX):
        try:
            return _resolve_once(s, original, copies, keep)
        except ChangedMeanwhile:
            continue
    raise WorkspaceError(
        f"{os.fsdecode(original)} changed again and again while the conflict was resolved; nothing was changed",
        next_step="Run again when the programs that write there are quiet.",
    )


def _resolve_once(s: Session, original: bytes, copies: tuple[bytes, ...], keep: Keep) -> ResolveReport:
    history = History(s, ask=False)
    base = s.base()
    here = look(s, base, history)
    for copy in copies:
        if copy not in here.scan.tree and not take_in(s, here, copy):
            raise WorkspaceError(
                f"{os.fsdecode(copy)} is there, but is not taken in, or cannot be read",
                next_step="`metasync status --verbose` says why. Move or delete it by hand.",
            )
    new: dict[bytes, Entry | None] = {}
    for copy in copies:
        new.update((p, None) for p in here.scan.tree if is_below(p, copy))
        if keep == "mine":
            new.update((p, None) for p in here.scan.tree if is_below(p, original))
            new.update((original + p[len(copy) :], e) for p, e in here.scan.tree.items() if is_below(p, copy))
    new = {p: e for p, e in new.items() if e != here.scan.tree.get(p)}
    applied_before = {r.n for r in s.db.records(REPLACED)}
    applied = _carried_out(history, here, new, base.state.v, copies)
    lost = [r for r in s.db.records(REPLACED) if r.n not in applied_before]
    return ResolveReport(
        path=original,
        keep=keep,
        copies=copies,
        replaced=tuple(
            Kept(r.path, f".metasync/replaced/{r.n}")
            for r in lost
            if keep == "theirs" or not any(is_below(r.path, c) for c in copies)
        ),
        conflicts=tuple(ConflictReport(c.path, c.copy, c.reason) for c in applied.conflicts),
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
    wanted = checkout.begin(changes, version=version, own=True, reason=LATE)
    try:
        entries = {p: e for p in wanted if (e := new[p]) is not None}
        deliver(s, checkout, entries, sources(here.scan), history.contents)
    except BaseException:
        checkout.abandon()
        raise
    # A record that outlives a crash here does no harm: without its copy it is no conflict.
    return checkout.apply(lambda: _forget(s, copies))


def _forget(s: Session, copies: tuple[bytes, ...]) -> None:
    """Drops the records of these copies, and of all whose copy is gone."""
    s.db.delete_records(
        CONFLICTS, [c.copy for c in s.db.records(CONFLICTS) if c.copy in copies or not _is_there(s, c.copy)]
    )


def _decided_both(s: Session) -> frozenset[bytes]:
    """Copies that were to stay, and are still there."""
    return frozenset(copy for copy in s.db.get(BOTH_KEY) or () if _is_there(s, copy))
