"""The part of a checkout that changes the working tree; every step may be repeated after a crash (see `checkout`)."""

from __future__ import annotations

import errno
import os
import stat as stat_
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from metasync.checkout.dirmodes import DirModes, down_to
from metasync.checkout.displace import Displaced, Left
from metasync.checkout.plan import LEFT, Applied, Change, Plan
from metasync.checkout.room import FULL, lacks_inodes, no_room
from metasync.checkout.staging import Stage
from metasync.local.state import State
from metasync.objects.model import Kind, split
from metasync.worktree.case import Presence, twin_here
from metasync.worktree.disk import NO_LINKS, check_path
from metasync.worktree.index import is_unchanged, mtime_of, rows_at, same_file, same_stat
from metasync.worktree.merge_walk import Noted
from metasync.worktree.names import is_spelling
from metasync.worktree.tree import WorkTree, failed


def touch(tree: WorkTree, change: Change, *, again: bool) -> bool:
    """Sets mode and mtime of a file that is what was scanned; `again`: or what an earlier run made of it.

    False: it was deleted or changed since, and the next scan finds that.
    """
    disk = tree.disk
    parent, name = split(change.path)
    above = tree.dir(parent)
    new, expected = change.new, change.expected
    st = disk.look(name, above)
    if new is None or expected is None or st is None:
        return False
    if not same_stat(expected, st) and not (again and _is_half_touched(tree, change, st)):
        return False
    # Only what is to change: a disk without modes (FAT) shows others than were agreed, and can't take them.
    try:
        here = stat_.S_IMODE(st.st_mode)
        if tree.rules.modes and new.mode != expected.entry.mode and here != (mode := tree.mode_of(new.mode, here)):
            disk.chmod(name, above, mode)
        if new.mtime_ns != expected.entry.mtime_ns and st.st_mtime_ns != new.mtime_ns:
            disk.utime(name, above, new.mtime_ns)
    except FileNotFoundError:
        return False  # deleted here this very moment
    return True


def _is_half_touched(tree: WorkTree, change: Change, st: os.stat_result) -> bool:
    """Whether a run ended between two calls here: each value is the old or the new one."""
    new, expected = change.new, change.expected
    if new is None or expected is None:
        return False
    return (
        (st.st_ino, st.st_dev, st.st_size) == (expected.ino, expected.dev, expected.size)
        and mtime_of(st) in (expected.mtime_ns, new.mtime_ns)
        and stat_.S_IFMT(st.st_mode) == stat_.S_IFMT(expected.mode)
        and stat_.S_IMODE(st.st_mode) in (stat_.S_IMODE(expected.mode), tree.mode_of(new.mode, expected.mode))
    )


TICK_WAIT_S = 0.1  # for the file system's clock; rows of a slower one (FAT: 2 s) are untrusted
TRIES_MAX = 3  # against a user who makes and removes a file at the same path

_TEMPORARY = b"~$metasync.%d"  # on another file system than .metasync's; scans ignore such names


class Placer:
    """Carries out one plan by `run`.

    `inodes[i]` is the inode that was staged for change i (0: none): by it a repeated run tells a new file from the old
    one it was exchanged with. `staged[i]` is its stat; without `staged`, an earlier run may have done part of the plan.

    After `run`, by number of the change: `seen` has the placed files, with their stat if it shows that they are still
    what was placed; `touched` those whose mode and time were set; `made` the directories; `left` what could not be
    done, of it `barred` in directories that are not here. `whole`: files that came with a directory that was staged
    whole; `appeared_ns`: a time before that, by the file system's clock.
    """

    def __init__(
        self,
        db: State,
        tree: WorkTree,
        plan: Plan,
        stage: Stage,
        inodes: Sequence[int],
        staged: Mapping[int, os.stat_result] | None = None,
    ) -> None:
        self.db = db
        self.tree = tree
        self.disk = tree.disk
        self.plan = plan
        self.stage = stage
        self.inodes = inodes
        self.again = staged is None
        self.staged = dict(staged or {})
        self.applied = Applied()
        self.seen: dict[int, os.stat_result | None] = {}
        self.touched: set[int] = set()
        self.made: set[int] = set()
        self.whole: set[int] = set()
        self.appeared_ns = 0
        self.left: set[int] = set()
        self.barred: set[int] = set()
        self.modes = DirModes(db, tree)
        self.presence = Presence(tree, db)  # for what goes; no names come meanwhile, but for the user's
        self._barred_dirs: set[bytes] = set()
        self._respelled: dict[bytes, bytes] = {}  # directories that kept what is in them, with their former paths
        self.tmp = tree.state_dir(b"tmp")
        self.goes = {change.path for change in plan.changes if change.new is None}
        self.done: list[int] = []  # since its user emptied it: what is at its end, but for modes of directories
        self.old = Displaced(db, tree, plan, self.applied.conflicts)

    def run(self, went_on: Callable[[], None] = lambda: None) -> Applied:
        """Changes the tree. `WorkspaceError`: the disk failed; the plan can be run again.

        `went_on` is called after each step. Nothing of a path is under way then.
        """
        changes = self.plan.changes
        self.tree.forget()
        for i in range(len(changes) - 1, -1, -1):  # what is in a directory goes before it
            new, expected = changes[i].new, changes[i].expected
            if new is None or (expected is not None and (new.kind is Kind.DIR) != stat_.S_ISDIR(expected.mode)):
                self.attempt(i, self.clear)
                if new is None and i not in self.left:
                    self.done.append(i)
                went_on()
        self.tree.forget()
        if self.stage.whole:
            self.appeared_ns = self.tree.tick_past(self.tree.clock_ns(), TICK_WAIT_S)
        for i in self.stage.whole:
            self.place_whole(i)
            self.done += (n for n in (i, *self.stage.whole[i]) if n in self.made or n in self.seen)
            went_on()
        for i, (_, new, _) in enumerate(changes):
            if new is not None and i not in self.left and i not in self.made and i not in self.seen:
                self.attempt(i, self.make_dir if new.kind is Kind.DIR else self.place)
                if i not in self.left:
                    self.done.append(i)
                went_on()
        self.save_strays()
        self.applied.unplaced += self.modes.set_all()
        self.applied.written = len(self.seen) + len(self.touched) + len(self.made)
        return self.applied

    def attempt(self, i: int, step: Callable[[int, Change], None]) -> None:
        """Does one step on one path. A failure of this path alone is noted, and the others go on."""
        change = self.plan.changes[i]
        parent = split(change.path)[0]
        why = check_path(change.path) or self.plan.unfit.get(i, "")
        if parent in self._barred_dirs:
            self.barred.add(i)  # by its name, a disk with twins may reach another directory
            why = why or "its directory is not here"
        for _ in range(TRIES_MAX):
            if why:
                break
            try:
                step(i, change)
                return
            except Left as e:
                why = str(e)
            except OSError as e:
                if e.errno not in LEFT:
                    raise failed(self.tree, change.path, e) from e
                why = e.strerror or str(e)
                if e.errno in (errno.EACCES, errno.EPERM):
                    helped = self.modes.unlock(parent)
                else:
                    helped = e.errno in (errno.ENOENT, errno.ENOTDIR) and self.restore_dirs(parent)
                if helped:
                    why = ""
        self.left.add(i)
        if change.new is not None and change.new.kind is Kind.DIR:
            self._barred_dirs.add(change.path)
        noted = Noted(change.path, why or "is made and removed again and again")
        (self.applied.kept if change.new is None else self.applied.unplaced).append(noted)

    # ---- directories with all that is in them

    def place_whole(self, top: int) -> None:
        """Gives a directory that was staged whole its name. If that fails, its contents are placed one by one."""
        changes, temp = self.plan.changes, b"%d" % top
        if not self.again or self.disk.look(temp, self.tmp) is not None:
            try:
                self.disk.rename_new(temp, self.tmp, changes[top].path, self.tree.root_fd)
            except OSError as e:
                if e.errno not in LEFT and e.errno != errno.EXDEV:
                    raise failed(self.tree, changes[top].path, e) from e
                return
        self.stage.placed(top)
        for i in (top, *self.stage.whole[top]):
            new = changes[i].new
            assert new is not None
            if new.kind is Kind.DIR:
                self.made.add(i)
                self.modes.wanted[changes[i].path] = self.tree.mode_of(new.mode)
            elif i not in self.stage.apart:
                self.seen[i] = self.staged.get(i)  # none in another run than the one that staged it
                self.whole.add(i)

    # ---- files and symlinks

    def place(self, i: int, change: Change) -> None:
        """Gives the staged file or symlink its name."""
        if change.is_touch:
            if touch(self.tree, change, again=self.again):
                self.touched.add(i)
            return
        parent, name = split(change.path)
        above = self.tree.dir(parent)
        if self.again and self.is_placed(i, change, name, above):
            self.seen[i] = None
            return
        try:
            self.put(i, change, *self.stage.at(i), name, above)
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            self.put_across(i, change, name, above)
        # The user may have been at it in the time between two calls: only what we wrote may count as agreed.
        st, staged = self.disk.look(name, above), self.staged.get(i)
        self.seen[i] = st if st is not None and staged is not None and is_unchanged(staged, st) else None

    def put(self, i: int, change: Change, temp: bytes, temp_fd: int, name: bytes, above: int) -> None:
        """Moves the new file from `temp` to `name`, and the old one away before or in the same moment."""
        disk, expected = self.disk, change.expected
        for _ in range(TRIES_MAX):
            if expected is None:
                try:
                    disk.rename_new(temp, temp_fd, name, above)
                    return
                except FileExistsError:
                    pass
            try:
                st = disk.lstat(name, above) if expected is not None else self.in_the_way(name, above)
                sure = self.old.is_expected(i, expected, st)
                if stat_.S_ISDIR(st.st_mode):
                    # Not exchanged: moving a directory to another one needs rights in it that we may not have.
                    self.old.set_aside(change.path, name, above)
                    self.tree.forget(change.path)
                elif disk.exchange(temp, temp_fd, name, above):
                    self.old.put_old(i, change, temp, temp_fd, sure=sure)
                    return
                elif sure:
                    self.replace(i, change, temp, temp_fd, name, above)
                    return
                else:
                    self.old.set_aside(change.path, name, above)
            except FileNotFoundError:
                pass  # deleted here this very moment: a change wins over a deletion
            expected = None
        raise Left("something else is made there again and again")

    def in_the_way(self, name: bytes, above: int) -> os.stat_result:
        """What stands at a name that should be free."""
        st = self.disk.lstat(name, above)
        if not self.is_listed(name, above):
            raise Left("this file system takes its name for that of another file, which is here")
        return st

    def is_listed(self, name: bytes, above: int) -> bool:
        """Whether a name is listed as it is, and not as one that this file system takes for the same."""
        names = self.disk.names(above)
        return name in names or any(is_spelling(name, here, self.tree.rules) for here in names)

    def save_strays(self) -> None:
        """Keeps the user's files that an ended run exchanged to `tmp` and whose paths can't be reached any more."""
        if not self.again:
            return
        names = self.disk.names(self.tmp)
        here = {int(name) for name in names}
        staged = [i for i in here if i not in self.stage.whole]
        staged += [i for top in self.stage.whole if top in here for i in self.stage.whole[top] if self.inodes[i]]
        for i in staged:
            try:
                name, above = self.stage.at(i)
                st = self.disk.look(name, above)
                if st is not None and st.st_ino != self.inodes[i]:
                    self.old.keep(i, name, above)
            except OSError as e:
                raise failed(self.tree, self.plan.changes[i].path, e) from e

    def replace(self, i: int, change: Change, temp: bytes, temp_fd: int, name: bytes, above: int) -> None:
        """Replaces a file where names can't be exchanged: links the old file, then renames the new one over its name.

        A file that another program renames to `name` between those two calls is lost.
        """
        disk, kept = self.disk, self.old.kept_name(i)
        self.old.free_place(i, change, name, above)
        try:
            disk.link(name, above, kept, self.old.replaced)
        except OSError as e:
            if e.errno not in NO_LINKS and e.errno != errno.EXDEV:
                raise
            self.old.put_away(i, change, name, above)
            disk.rename_new(temp, temp_fd, name, above)
            return
        expected = change.expected
        if expected is None or not same_file(expected, disk.lstat(kept, self.old.replaced)):
            self.old.set_aside(change.path, kept, self.old.replaced)
        disk.rename(temp, temp_fd, name, above)

    def put_across(self, i: int, change: Change, name: bytes, above: int) -> None:
        """Places a file on another file system than `.metasync`, from a copy beside its path."""
        side = self.side_name(i)
        with suppress(FileNotFoundError):
            self.disk.unlink(side + b".part", above)
        try:
            self.tree.copy(*self.stage.at(i), side + b".part", above)
        except OSError as e:
            if e.errno not in FULL:
                raise
            is_out = lacks_inodes(self.disk, above)
            with suppress(FileNotFoundError):
                self.disk.unlink(side + b".part", above)
            raise Left(no_room(change.new.size if change.new is not None else 0, is_out=is_out)) from e
        self.disk.rename(side + b".part", above, side, above)  # over one that an ended run left, the same bytes
        self.staged[i] = self.disk.lstat(side, above)
        self.put(i, change, side, above, name, above)
        self.disk.unlink(*self.stage.at(i))

    def is_placed(self, i: int, change: Change, name: bytes, above: int) -> bool:
        """Whether an earlier run gave the file its name. Puts away what that run left behind."""
        (temp, tmp), side = self.stage.at(i), self.side_name(i)
        staged = self.disk.look(temp, tmp)
        beside = self.disk.look(side, above)
        here = self.disk.look(name, above)
        if beside is not None and (staged is None or not self.tree.same_bytes(temp, tmp, side, above)):
            self.old.put_old(i, change, side, above, sure=True)
        elif staged is None:
            return True
        elif staged.st_ino != self.inodes[i]:
            self.old.put_old(i, change, temp, tmp, sure=True)
            return True
        elif here is None:
            return False
        elif (staged.st_ino, staged.st_dev) == (here.st_ino, here.st_dev):
            pass  # a rename that was made of a link and an unlink
        elif here.st_dev == staged.st_dev or beside or not self.tree.same_bytes(temp, tmp, name, above):
            return False
        with suppress(FileNotFoundError):
            self.disk.unlink(temp, tmp)
        return True

    # ---- what goes

    def clear(self, i: int, change: Change) -> None:
        """Removes what is to be deleted, or is of another kind than what comes."""
        path, new, expected = change
        parent, name = split(path)
        if self.presence.is_shadowed(path):
            return  # gone: what is found is another name's
        try:
            above = self.tree.dir(parent)
            st = self.disk.lstat(name, above)
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return  # gone, or the directory it was in is
            raise
        is_dir = stat_.S_ISDIR(st.st_mode)
        if new is not None and is_dir == (new.kind is Kind.DIR):
            return  # an earlier run has been here
        if is_dir and expected is not None and stat_.S_ISDIR(expected.mode):
            self.remove_dir(path, name, above, stays=new is None)
        elif not is_dir and self.old.is_expected(i, expected, st):
            self.old.put_away(i, change, name, above)
        elif new is None:
            if self.is_listed(name, above):
                raise Left("changed here since: kept")
            return  # the same, on a disk whose rules are not known
        else:
            return  # in the way of what comes: set aside when that is placed
        self.applied.removed += new is None

    def remove_dir(self, path: bytes, name: bytes, above: int, *, stays: bool) -> None:
        self.tree.forget(path)
        try:
            self.disk.rmdir(name, above)
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if stays:
                raise Left("not empty: kept, with what is in it") from e

    def side_name(self, i: int) -> bytes:
        return _TEMPORARY % (self.plan.replaced_from + i)

    # ---- directories

    def make_dir(self, i: int, change: Change) -> None:
        path, new, expected = change
        parent, name = split(path)
        above = self.tree.dir(parent)
        mode = new.mode if new is not None else 0o755
        if self.again and self.disk.look(self.side_name(i), above) is not None:
            self.disk.rename_new(self.side_name(i), above, name, above)  # an ended run was between two spellings
        for _ in range(TRIES_MAX):
            try:
                self.disk.mkdir(name, above, self.tree.mode_of(mode) | 0o700)
                break
            except FileExistsError:
                pass
            if self.respell(i, path, name, above):
                above = self.tree.dir(parent)  # it was closed
                break
            st = self.disk.lstat(name, above) if expected is not None else self.in_the_way(name, above)
            if stat_.S_ISDIR(st.st_mode):
                break
            self.old.set_aside(path, name, above)
        else:
            raise Left("something else is made there again and again")
        self.modes.wanted[path] = self.tree.mode_of(mode, stat_.S_IMODE(self.disk.lstat(name, above).st_mode))
        self.made.add(i)

    def respell(self, i: int, path: bytes, name: bytes, above: int) -> bool:
        """Gives a directory its new spelling if its old one could not go, because something else is in it.

        It takes a third name on the way: some file systems ignore a rename to what they take for the same name.
        """
        old = twin_here(self.tree, name, above)
        if old is None:
            return False
        parent = split(path)[0]
        former = self._respelled.get(parent, parent)
        old_path = former + b"/" + old if former else old
        if old_path not in self.goes or not stat_.S_ISDIR(self.disk.lstat(old, above).st_mode):
            return False
        self.tree.forget()
        above = self.tree.dir(parent)
        self.disk.rename_new(old, above, self.side_name(i), above)
        self.disk.rename_new(self.side_name(i), above, name, above)
        self._respelled[path] = old_path
        below = old_path + b"/"
        self.applied.kept = [n for n in self.applied.kept if n.path != old_path and not n.path.startswith(below)]
        return True

    def restore_dirs(self, directory: bytes) -> bool:
        """Makes directories again that the user removed while new files for them were on the way.

        A file in the place of one is set aside. A symlink stays: it may lead to the directory.
        """
        made = False
        self.tree.forget()  # descriptors of directories that are gone
        for path in down_to(directory)[1:]:
            parent, name = split(path)
            row = rows_at(self.db, [path]).get(path)
            mode = stat_.S_IMODE(row.mode) if row is not None else 0o755
            try:
                above = self.tree.dir(parent)
                st = self.disk.look(name, above)
                if st is not None and stat_.S_ISREG(st.st_mode):
                    self.old.set_aside(path, name, above)
                elif st is not None:
                    continue
                self.disk.mkdir(name, above, mode | 0o700)
            except OSError as e:
                if e.errno in LEFT:
                    return False
                raise failed(self.tree, path, e) from e
            self.modes.wanted.setdefault(path, mode)
            made = True
        return made
