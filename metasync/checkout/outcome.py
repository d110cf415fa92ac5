"""What a finished checkout leaves in the local state: rows, read back from the disk, and records."""

from __future__ import annotations

import errno
import os
import stat as stat_
from collections.abc import Iterable, Mapping
from itertools import chain

from metasync.checkout.apply import TICK_WAIT_S, Placer
from metasync.checkout.plan import Plan
from metasync.local.state import State
from metasync.local.state_keys import CONFLICTS, ReplacedFile
from metasync.merge.copies import record_of, sides_of
from metasync.objects.model import Entry, Kind, split
from metasync.worktree.disk import check_path
from metasync.worktree.index import Row, is_unchanged, row_of, same_stat
from metasync.worktree.tree import WorkTree

COARSEST_NS = 2 * 10**9  # what FAT makes of a time


def rows_after(tree: WorkTree, placer: Placer, numbers: Iterable[int]) -> tuple[dict[bytes, Row], list[bytes]]:
    """The rows to put and the paths whose rows to delete, of these changes, by what stands at each path now."""
    plan = placer.plan
    put: dict[bytes, Row] = {}
    delete: list[bytes] = []
    tree.forget()
    stamp = tree.tick_past(tree.clock_ns(), TICK_WAIT_S)
    for i in numbers:
        path, new, expected = plan.changes[i]
        if plan.own and (new is None or i in placer.left):
            continue  # its row says that it was here: so its absence is a deletion, and what was left is as it was
        if new is None:
            delete.append(path)
            continue
        if i in placer.left:
            # What stands there is not to be taken for a change of the user's, unless it is one.
            elsewhere = check_path(path) or i in placer.barred or (i in plan.unfit and expected is None)
            st = None if elsewhere else _look(tree, path, exactly=True)
            if st is not None and (expected is None or same_stat(expected, st)):
                put[path] = row_of(new, st, trusted=True)
            else:
                delete.append(path)
            continue
        if i in placer.whole and (seen := placer.seen[i]) is not None:
            # Nobody could have written to it between its stat and its appearing, which was later by the clock.
            known = max(seen.st_mtime_ns, seen.st_ctime_ns) < placer.appeared_ns
            put[path] = row_of(new, seen, trusted=known)
            continue
        st = _look(tree, path)
        if i in placer.made or i in placer.touched:
            if st is not None:
                # Whether someone wrote while the time was set can't be seen from the time: read it again.
                put[path] = row_of(new, st, trusted=False)
        elif i in placer.seen:
            seen = placer.seen[i]
            if seen is None:
                put[path] = _row_unseen(tree, new, st, placer.inodes[i])
            else:
                trusted = seen.st_mtime_ns < stamp and seen.st_ctime_ns < stamp
                trusted = trusted and st is not None and is_unchanged(seen, st, ctime=True)
                put[path] = row_of(new, seen, trusted=trusted)
    return put, delete


def _look(tree: WorkTree, path: bytes, *, exactly: bool = False) -> os.stat_result | None:
    """The stat at a path; `exactly`: of a name in this spelling."""
    parent, name = split(path)
    try:
        above = tree.dir(parent)
        if exactly and name not in tree.disk.names(above):
            return None
        return tree.disk.lstat(name, above)
    except OSError as e:
        if e.errno == errno.EIO:
            raise
        return None


def _row_unseen(tree: WorkTree, new: Entry, st: os.stat_result | None, inode: int) -> Row:
    """The untrusted row of a file that may have been changed or removed after it was placed.

    A changed file's stat must not pass for the one it was placed with: its mode and time are the user's.
    """
    mode = tree.mode_of(new.mode)
    if st is not None and (st.st_ino, st.st_size) == (inode, new.size):
        as_placed = abs(st.st_mtime_ns - new.mtime_ns) <= COARSEST_NS
        if as_placed:
            # A mode that differs is the user's chmod since. (On a disk without modes it is sent once, and settles.)
            return row_of(new, st, trusted=False)._replace(mode=stat_.S_IFMT(st.st_mode) | mode)
    kind = stat_.S_IFREG if new.kind is Kind.FILE else stat_.S_IFLNK
    return Row(new, tree.root_stat.st_dev, inode, new.size, new.mtime_ns, 0, kind | mode, False)


def note_conflicts(db: State, put: Mapping[bytes, Row], delete: Iterable[bytes]) -> None:
    """Notes the conflicts that copies among the new rows are of, and forgets those that came to their end."""
    tagged = {path: sides_of(row.entry) for path, row in put.items() if row.entry.tags}
    found = {path: sides for path, sides in tagged.items() if sides is not None}
    known = {record.copy for record in db.records(CONFLICTS)}
    db.delete_records(CONFLICTS, [p for p in chain(delete, put) if p in known and p not in found])
    db.put_records(CONFLICTS, (record_of(path, sides) for path, sides in found.items()))


def replaced_files(tree: WorkTree, plan: Plan) -> list[ReplacedFile]:
    """The records of this plan's files in `.metasync/replaced/`."""
    there = set(tree.disk.names(tree.state_dir(b"replaced")))
    return [
        ReplacedFile(n, change.path, change.expected.entry.content if change.expected is not None else b"")
        for n, change in enumerate(plan.changes, plan.replaced_from)
        if b"%d" % n in there
    ]
