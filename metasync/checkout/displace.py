"""Puts away what stands where a checkout brings something: nothing of the user's is lost (architecture.md, D8).

What the scan saw goes to `.metasync/replaced/`; anything else gets the name of a conflict copy. Every step may be
repeated after a crash.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from metasync.checkout.plan import Change, Plan
from metasync.checkout.trash import COPIES_MAX, late_conflict, move_aside
from metasync.local.state import State
from metasync.local.state_keys import Conflict
from metasync.merge.copies import conflict_name
from metasync.worktree.index import Row, is_unchanged, same_file, same_stat
from metasync.worktree.names import key
from metasync.worktree.tree import WorkTree, failed


class Left(Exception):  # noqa: N818  a signal, not an error
    """This change is not carried out, for a reason to be told."""


class Displaced:
    """What the changes of one plan displace; `i` is the number of a change. `conflicts`: takes the copies made."""

    def __init__(self, db: State, tree: WorkTree, plan: Plan, conflicts: list[Conflict]) -> None:
        self.db = db
        self.tree = tree
        self.disk = tree.disk
        self.plan = plan
        self.conflicts = conflicts
        self.replaced = tree.state_dir(b"replaced")
        self.taken = {key(change.path, tree.rules) for change in plan.changes}  # as this disk tells names apart

    def kept_name(self, i: int) -> bytes:
        """The name among the replaced files of what change i displaces."""
        return b"%d" % (self.plan.replaced_from + i)

    def is_expected(self, i: int, expected: Row | None, st: os.stat_result) -> bool:
        """Whether what stands at a path is what the scan saw."""
        if expected is None or same_stat(expected, st):
            return expected is not None
        # An earlier try may have linked it to its place among the replaced, which changed its ctime.
        kept = self.disk.look(self.kept_name(i), self.replaced)
        return kept is not None and (kept.st_ino, kept.st_dev) == (st.st_ino, st.st_dev) and same_file(expected, st)

    def keep(self, i: int, name: bytes, fd: int) -> bool:
        """Moves a file from where it is to its place in `.metasync/replaced/`; False: by a copy, checked already."""
        disk, kept = self.disk, self.kept_name(i)
        try:
            try:
                disk.rename_new(name, fd, kept, self.replaced)
            except FileExistsError:
                here, there = disk.lstat(name, fd), disk.lstat(kept, self.replaced)
                if (here.st_ino, here.st_dev) != (there.st_ino, there.st_dev):
                    raise
                disk.unlink(name, fd)  # two links to the same file, from a run that ended between two calls
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            with suppress(FileNotFoundError):
                disk.unlink(kept, self.replaced)
            st = disk.lstat(name, fd)
            self.tree.copy(name, fd, kept, self.replaced)
            if not is_unchanged(st, disk.lstat(name, fd), ctime=True):
                disk.unlink(kept, self.replaced)
                raise Left("changes while it is copied") from e
            disk.unlink(name, fd)
            return False
        return True

    def free_place(self, i: int, change: Change, name: bytes, fd: int) -> None:
        """Frees the place of a file among the replaced ones: an ended run may have linked that file there."""
        kept = self.kept_name(i)
        there = self.disk.look(kept, self.replaced)
        if there is None:
            return
        here = self.disk.lstat(name, fd)
        if (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev):
            self.disk.unlink(kept, self.replaced)
        else:
            self.set_aside(change.path, kept, self.replaced)

    def put_away(self, i: int, change: Change, name: bytes, above: int) -> None:
        """Moves the file at a path to the replaced ones, unless it turns out to have changed at that very moment."""
        moved = self.keep(i, name, above)
        kept, expected = self.kept_name(i), change.expected
        if not moved or (expected is not None and same_file(expected, self.disk.lstat(kept, self.replaced))):
            return
        try:
            self.disk.rename_new(kept, self.replaced, name, above)
        except FileExistsError:
            self.set_aside(change.path, kept, self.replaced)
        raise Left("changed here since: kept")

    def put_old(self, i: int, change: Change, temp: bytes, temp_fd: int, *, sure: bool) -> None:
        """Puts away what stood at the path and was exchanged to `temp`."""
        try:
            expected, st = change.expected, self.disk.lstat(temp, temp_fd)
            if sure and expected is not None and same_file(expected, st):
                with suppress(Left):  # else it is being written to this very moment
                    self.keep(i, temp, temp_fd)
                    return
            try:
                self.set_aside(change.path, temp, temp_fd)
            except OSError:
                # No name for a copy can be had. Among the replaced files it is safe, and `settle` tries again.
                self.keep(i, temp, temp_fd)
        except OSError as e:
            # Not to be left: what lies at `temp` is the user's. The plan stays, and runs again.
            raise failed(self.tree, change.path, e) from e

    def set_aside(self, path: bytes, name: bytes, fd: int) -> None:
        """Gives what lies at `name` in `fd` the name of a conflict copy of `path`."""
        for n in range(1, COPIES_MAX):
            copy = conflict_name(path, self.plan.origin.label, n)
            if key(copy, self.tree.rules) in self.taken:
                continue
            conflict = late_conflict(path, copy, self.plan.reason, self.plan.version, self.plan.origin)
            if move_aside(self.tree, self.db, name, fd, conflict):
                self.conflicts.append(conflict)
                return
        raise OSError(errno.EEXIST, f"{COPIES_MAX} conflict copies are there already")
