"""Brings the folder, or parts of it, to what an older version had (`metasync restore`); the base stays.

What comes of it are changes of this device's own, for the next push to take. The plan is made here and carried out by
the checkout, journalled as ever. A file that is replaced or goes must be *saved*: it is as the base has it, or its
bytes are in a pack that the agreed index names. What is not saved and stands in the way of something gets the name of
a conflict copy; what is not in the way stays.

What a restore brought and the base does not have so is noted (`restored`): it is saved, and restoring the base takes it
away again.
"""

from __future__ import annotations

import os
import stat as stat_
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.plan import replaceable
from metasync.errors import NoQuorumError, UnreachableError, UsageError, WorkspaceError
from metasync.events import Phase
from metasync.history.diff import nothing_there, top_paths
from metasync.history.log import History, is_below, last_with
from metasync.history.versions import Version, required, resolve
from metasync.local.memory import room_for_tree
from metasync.local.state_keys import RESTORED_KEY, RESTORED_ON_KEY
from metasync.merge.changes import same_bytes
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, split
from metasync.reports.history import NotRestored, RestoreReport
from metasync.session import agreement
from metasync.session.session import Agreed, Session
from metasync.sync import sides
from metasync.sync.fetch import ChangedMeanwhile, deliver
from metasync.sync.pull import ROUNDS_MAX
from metasync.sync.scanned import noted, summary
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.index import Row, is_unchanged, load_rows, mtime_of, row_of
from metasync.worktree.merge_walk import walk_folder
from metasync.worktree.scan import Scan, scan, store_scan

IN_THE_WAY = "unsaved, and in the way of what was restored"


@dataclass
class Here:
    """The folder as a scan found it, with what is known of each path."""

    scan: Scan
    rows: dict[bytes, Row]
    base: Mapping[bytes, Entry]
    restored: Mapping[bytes, bytes]  # path -> content
    held: Sequence[bytes] = ()  # ignored now

    def expected(self, path: bytes, new: Entry | None) -> Row | None:
        """The row of what a checkout may replace at a path."""
        return replaceable(self.rows.get(path), self.scan.tree.get(path), new)


@dataclass
class Plan:
    """What a restore comes to: path -> the entry it shall have, None for nothing.

    `unsaved`: of these paths, those at which something stands that no version holds.
    """

    new: dict[bytes, Entry | None] = field(default_factory=dict)
    unsaved: set[bytes] = field(default_factory=set)
    unchanged: int = 0


def restore(s: Session, version: str, paths: Sequence[bytes], *, delete: bool, dry_run: bool) -> RestoreReport:
    """Restores into place. `UsageError`, `DamagedError`, `NoQuorumError` when what is needed cannot be had now."""
    history = History(s)
    found = resolve(history, required(version))
    tops = top_paths(paths)
    for _ in range(ROUNDS_MAX):
        try:
            return _restore_once(history, found, tops, delete=delete, dry_run=dry_run)
        except ChangedMeanwhile:
            continue
        except UnreachableError as e:
            raise NoQuorumError(f"{found.title} cannot be restored now: {e.message}", next_step=e.next_step) from e
    raise WorkspaceError(
        f"files in {os.fsdecode(s.tree.root)} changed again and again while they were copied; nothing was replaced",
        next_step="Run again when the programs that write there are quiet.",
    )


def undelete(s: Session, path: bytes, *, dry_run: bool) -> RestoreReport:
    """Restores what the newest version that has something at `path` has there.

    `UsageError`: something is there now, or no version that is kept has it. Else as `restore`.
    """
    history = History(s)
    history.whole = True
    name = os.fsdecode(path)
    if _is_here(s, path):
        raise UsageError(
            f"{name or 'the folder'} is not deleted",
            next_step="`metasync restore VERSION PATH` brings back what a version has there.",
        )
    there = last_with(history, path)
    if there is None:
        raise UsageError(
            f"no version that is kept has anything at {name}",
            next_step="`metasync ls -r VERSION` lists a version; `metasync diff A B` says what changed.",
        )
    return restore(s, there.id.hex(), [path], delete=True, dry_run=dry_run)


def _is_here(s: Session, path: bytes) -> bool:
    parent, name = split(path)
    try:
        return not path or s.tree.disk.look(name, s.tree.dir(parent)) is not None
    except OSError:
        return False


def look(s: Session, base: Agreed, history: History) -> Here:
    """Scans the folder; the rows are stored, for they are true whatever comes of it."""
    s.listener(Phase("scan"))
    base_tree = s.flat(base, history.contents)
    seen = scan(walk_folder(s.tree, s.db, base_tree), s.ingest())
    sides.mark(s, seen)
    store_scan(s.db, seen)
    return Here(seen, load_rows(s.db), base_tree, _restored(s, base), seen.held())


def take_in(s: Session, here: Here, path: bytes) -> bool:
    """Puts what really stands at an ignored path, which the scan did not look at, into the tree. False: that can't be
    told, or it is no file and no link."""
    disk = s.tree.disk
    parent, name = split(path)
    try:
        above = s.tree.dir(parent)
        st = disk.lstat(name, above)
        if stat_.S_ISLNK(st.st_mode):
            target = disk.readlink(name, above)
            entry = Entry(Kind.SYMLINK, 0, mtime_of(st), len(target), target)
        elif stat_.S_ISREG(st.st_mode):
            fd = disk.open(name, READ_FLAGS, above)
            try:
                size, content, root = s.ingest()(fd, st)
            finally:
                disk.close(fd)
            entry = Entry(Kind.FILE, stat_.S_IMODE(st.st_mode), mtime_of(st), size, content, root)
        else:
            return False
        if entry.size != st.st_size or not is_unchanged(st, disk.lstat(name, above), ctime=True):
            raise ChangedMeanwhile
    except FileNotFoundError:
        here.scan.tree.pop(path, None)
        here.rows.pop(path, None)
        return False
    except OSError:
        return False
    here.scan.tree[path] = entry
    here.rows[path] = row_of(entry, st, trusted=False)
    return True


def _restore_once(
    history: History, version: Version, tops: tuple[bytes, ...], *, delete: bool, dry_run: bool
) -> RestoreReport:
    s = history.s
    base = s.base()
    here = look(s, base, history)
    for path in here.held:
        if any(is_below(path, top) for top in tops):
            take_in(s, here, path)
    target = _target(history, version, base, here, tops)
    plan = _plan(history, here, target, tops, delete=delete)
    for path in s.db.unplaced():  # what this disk could not take is tried again
        if target.get(path) is not None and path not in plan.new and any(is_below(path, top) for top in tops):
            plan.new[path] = target[path]
    changes = summary(plan.new, here.scan.tree.get, plan.new.get)
    size = sum(e.size for e in plan.new.values() if e is not None and e.kind is Kind.FILE)
    report = RestoreReport(
        version=version.number,
        snapshot=version.id,
        to=None,
        changes=changes,
        size_written=size,
        unchanged=plan.unchanged,
        unreadable=noted(here.scan.unreadable),
        skipped=noted(here.scan.skipped)
        + noted((p, "ignored, so the next push does not take it") for p in here.held if p in plan.new),
        unsaved=tuple(sorted(plan.unsaved)),
        down=dict(s.down),
        bad_copies=s.bad_copies,
    )
    if dry_run or not plan.new:
        return report
    return _carried_out(history, base, here, plan, report)


def _target(
    history: History, version: Version, base: Agreed, here: Here, tops: tuple[bytes, ...]
) -> Mapping[bytes, Entry]:
    """The version's tree, as far as it is wanted; what is equal to the base's is not read again."""
    if tops == (b"",):
        target = dict(here.base)
        for path, (_, entry) in history.contents.walk(walk.diff(base.tree_root, version.root, room_for_tree)).items():
            if entry is None:
                target.pop(path, None)
            else:
                target[path] = entry
        return target
    target = {}
    for top in tops:
        found = history.find(version.root, top)
        if found.entry is None and top not in here.scan.tree:
            raise nothing_there(history, version, top, found.reached)
        if found.entry is not None:
            target.update(history.subtree(version.root, top))
            above = split(top)[0]
            while above:  # the directories on the way, where they are not here
                entry = history.find(version.root, above).entry
                assert entry is not None
                target[above] = entry._replace(content=b"")
                above = split(above)[0]
    return target


def _plan(
    history: History, here: Here, target: Mapping[bytes, Entry], tops: tuple[bytes, ...], *, delete: bool
) -> Plan:
    plan = Plan()
    for path, new in target.items():
        ours = here.scan.tree.get(path)
        inside = any(is_below(path, top) for top in tops)
        if ours == new or (not inside and ours is not None and ours.kind is Kind.DIR):
            plan.unchanged += inside
            continue
        plan.new[path] = new
        if ours is not None and not same_bytes(ours, new) and not _is_saved(history, here, path, ours):
            plan.unsaved.add(path)
    _plan_deletions(here, target, tops, plan, delete=delete)
    return plan


def _plan_deletions(
    here: Here, target: Mapping[bytes, Entry], tops: tuple[bytes, ...], plan: Plan, *, delete: bool
) -> None:
    """What the version lacks goes, if the base has it so or a restore brought it, and nothing that stays is inside.

    A directory in the place of which the version has something else moves aside with what stays in it.
    """
    filled: set[bytes] = set()  # directories with something in them that stays
    held = set(here.held)  # ignored now: their going could not be pushed, and the next pull would bring them again
    for path, ours in sorted(here.scan.tree.items(), reverse=True):  # what is in a directory comes before it
        known = same_bytes(here.base.get(path), ours) or here.restored.get(path) == ours.content
        wanted = path not in target and any(is_below(path, top) for top in tops)
        if delete and wanted and known and path not in filled and path not in held and path in here.rows:
            plan.new[path] = None
            continue
        filled.add(split(path)[0])
        new = plan.new.get(path)
        if new is not None and new.kind is not Kind.DIR and ours.kind is Kind.DIR and path in filled:
            plan.unsaved.add(path)


def _is_saved(history: History, here: Here, path: bytes, ours: Entry) -> bool:
    """Whether a version holds the bytes that stand at a path. (A directory holds none itself.)"""
    if ours.kind is Kind.DIR or same_bytes(here.base.get(path), ours) or here.restored.get(path) == ours.content:
        return True
    return ours.kind is Kind.FILE and (not ours.size or (ours.root or ours.content) in history.newest.index)


def _carried_out(history: History, base: Agreed, here: Here, plan: Plan, report: RestoreReport) -> RestoreReport:
    s = history.s
    s.listener(Phase("checkout"))
    gone = set(here.scan.deleted)
    changes = [
        Change(p, e, None if p in gone or p in plan.unsaved else here.expected(p, e)) for p, e in plan.new.items()
    ]
    mark_agreed(s, changes, here)
    checkout = Checkout(s.db, s.tree)
    wanted = checkout.begin(
        changes,
        dict([RESTORED_KEY.entry(_now_restored(here, plan.new)), RESTORED_ON_KEY.entry(base.state.master)]),
        version=base.state.v,
        own=True,
        reason=IN_THE_WAY,
        origin=sides.origin(s),
    )
    try:
        entries = {p: e for p in wanted if (e := plan.new[p]) is not None}
        deliver(s, checkout, entries, sources(here.scan), history.contents, old=here.scan.tree)
    except BaseException:
        checkout.abandon()
        raise
    applied = checkout.apply()
    return RestoreReport(
        version=report.version,
        snapshot=report.snapshot,
        to=None,
        changes=report.changes,
        size_written=report.size_written,
        unchanged=report.unchanged,
        conflicts=sides.told(s, base, applied.conflicts),
        failed=tuple(NotRestored(path, "disk", reason) for path, reason in applied.unplaced),
        unreadable=report.unreadable,
        skipped=report.skipped + noted(applied.kept),
        down=dict(s.down),
        bad_copies=s.bad_copies,
    )


def sources(seen: Scan) -> dict[bytes, bytes]:
    """Where in the folder a content may be found, in what was read before what is only known."""
    found = chain(seen.tree.items(), seen.tree.put.items())
    return {e.content: p for p, e in found if e.kind is Kind.FILE and p not in seen.busy}


def mark_agreed(s: Session, changes: Sequence[Change], here: Here) -> None:
    """Notes of what is about to be replaced that a version holds it, where one does: then it need not be kept."""
    replaced = ((change.path, here.scan.tree.get(change.path)) for change in changes)
    files = ((path, ours) for path, ours in replaced if ours is not None and ours.kind is not Kind.DIR)
    held = (e for p, e in files if same_bytes(here.base.get(p), e) or here.restored.get(p) == e.content)
    agreement.note_agreed(s, (ours.content for ours in held))


# ---- what restores brought


def _restored(s: Session, base: Agreed) -> dict[bytes, bytes]:
    """Path -> content, as far as it was noted on top of this base."""
    return (s.db.get(RESTORED_KEY) or {}) if s.db.get(RESTORED_ON_KEY) == base.state.master else {}


def _now_restored(here: Here, new: Mapping[bytes, Entry | None]) -> dict[bytes, bytes]:
    brought = {p: c for p, c in here.restored.items() if p not in new}
    brought.update((p, e.content) for p, e in new.items() if e is not None and not same_bytes(here.base.get(p), e))
    return brought
