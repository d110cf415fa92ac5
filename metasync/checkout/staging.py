"""Where the files of a checkout are made before they get their names: `.metasync/tmp`.

A change is staged under its number in the plan. A directory that comes anew to the top of the folder is staged whole:
under its number lies the directory with everything inside under its final name, and one rename brings it all. Most
files of a clone come so.

What an interrupted checkout staged is moved to `.metasync/left` when the next one begins, which takes from there what
it finds right (`Leftovers`). The plan in the journal says which file is which.
"""

from __future__ import annotations

import os
import stat as stat_
import struct
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import closing, suppress

from metasync.checkout.plan import LEFT, Change, Plan
from metasync.errors import WorkspaceError
from metasync.objects.model import Entry, Kind, split
from metasync.worktree.disk import APPEND_FLAGS, CREATE_FLAGS, DIR_FLAGS, Disk, write_part
from metasync.worktree.tree import DirTree, WorkTree

TMP = b"tmp"
BLOCK_BYTES = 512  # of `st_blocks`
LEFT_DIR = b"left"  # of what an interrupted checkout staged


def no_fit() -> WorkspaceError:
    """The error for a journal that does not fit its plan."""
    return WorkspaceError(
        "The journal of an unfinished checkout does not fit its plan.",
        next_step="Save what .metasync/tmp holds, it may be yours; move .metasync/state.db away; run again.",
    )


def wrong_size(path: bytes, got: int, wanted: int) -> WorkspaceError:
    """The error for contents that are not as long as the entry says."""
    return WorkspaceError(
        f"{os.fsdecode(path)} was delivered with {got} bytes instead of {wanted}.",
        next_step="Run `metasync check --read-data`: what the backends hold does not fit the version.",
    )


def undelivered(count: int, path: bytes) -> WorkspaceError:
    """The error for files whose contents did not come, this one among them."""
    return WorkspaceError(
        f"{count} files of the checkout were not delivered, {os.fsdecode(path)} among them.",
        next_step="Run again: nothing was changed.",
    )


def may_come_whole(tree: WorkTree) -> bool:
    """Whether entries of `.metasync/tmp` inherit what they would inherit at the top of the folder.

    Not if names have twins: a directory may then take over another spelling of one that is here.
    """
    disk, tmp = tree.disk, tree.state_dir(TMP)
    if tree.rules.has_twins:
        return False
    return disk.fstat(tmp).st_dev == tree.root_stat.st_dev and disk.bequest(tmp) == disk.bequest(tree.root_fd)


def whole_dirs(changes: Sequence[Change], unfit: Container[int]) -> dict[int, list[int]]:
    """New directories at the top of the folder -> the changes inside that come with them, ascending.

    Nothing may have been known inside. `unfit` changes are left out, and fail by themselves.
    """
    tops: dict[bytes, int] = {}
    inside: dict[int, list[int]] = {}
    for i, (path, new, expected) in enumerate(changes):
        name, slash, _ = path.partition(b"/")
        if not slash:
            if new is not None and new.kind is Kind.DIR and expected is None and i not in unfit:
                tops[path] = i
                inside[i] = []
        elif (top := tops.get(name)) is not None:
            if new is None or expected is not None:
                del inside[tops.pop(name)]
            elif i not in unfit:
                inside[top].append(i)
    return inside


class Stage:
    """The staged files of one plan. `whole`: see `whole_dirs`; `apart`: changes of these that are staged alone after
    all. For one thread at a time."""

    def __init__(self, tree: WorkTree, changes: Sequence[Change], whole: Mapping[int, Sequence[int]]) -> None:
        self.changes = changes
        self.tree = tree
        self.disk = tree.disk
        self.tmp = tree.state_dir(TMP)
        self.whole = dict(whole)
        self.apart: set[int] = set()
        self._top = {i: top for top, members in self.whole.items() for i in members}
        self._dirs = tree.state_tree(TMP)
        self._last: tuple[bytes | None, int] = None, -1  # the directory that was asked for last

    def close(self) -> None:
        self._forget(b"")
        self._dirs.close()

    def _forget(self, path: bytes) -> None:
        self._last = None, -1
        self._dirs.forget(path)

    def make_dirs(self) -> None:
        """Makes the directories that are staged whole, empty. One that this disk refuses is not staged whole."""
        for top in list(self.whole):
            try:
                self._make(top, b"%d" % top, self.tmp)
                for i in self.whole[top]:
                    if self._kind(i) is Kind.DIR:
                        self._make(i, *self.at(i))
            except OSError as e:
                if e.errno not in LEFT:
                    raise
                self._give_up(top)

    def _kind(self, i: int) -> Kind:
        new = self.changes[i].new
        assert new is not None
        return new.kind

    def _make(self, i: int, name: bytes, above: int) -> None:
        new = self.changes[i].new
        assert new is not None
        self.disk.mkdir(name, above, self.tree.mode_of(new.mode) | 0o700)

    def _give_up(self, top: int) -> None:
        name = b"%d" % top
        self._forget(name)
        with suppress(FileNotFoundError):
            remove(self.disk, name, self.tmp)
        for i in self.whole.pop(top):
            del self._top[i]

    def at(self, i: int) -> tuple[bytes, int]:
        """The name of a staged file, and a descriptor of the directory it is in, to be used before the next call."""
        parent, name = self.place(i)
        if not parent:
            return name, self.tmp
        if parent != self._last[0]:  # files come in the order of their paths, mostly
            self._last = parent, self._dirs.dir(parent)
        return name, self._last[1]

    def place(self, i: int) -> tuple[bytes, bytes]:
        """The directory of a staged file, below `tmp`, and its name there."""
        top = self._top.get(i)
        if top is None or i in self.apart:
            return b"", b"%d" % i
        parent, name = split(self.changes[i].path)
        return b"%d%b" % (top, parent[len(self.changes[top].path) :]), name

    def create(self, i: int, mode: int = 0o600, *, again: bool = False) -> int:
        """Makes a staged file, `again` in the place of an earlier one; -> a descriptor to write."""
        name, above = self.at(i)
        try:
            if again or above == self.tmp:
                with suppress(FileNotFoundError):
                    self.disk.unlink(name, above)
            return self.disk.open(name, CREATE_FLAGS, above, mode)
        except OSError as e:
            self._set_apart(i, above, e)
            return self.disk.open(b"%d" % i, CREATE_FLAGS, self.tmp, mode)

    def write_part(self, i: int, data: bytes | memoryview, offset: int, *, is_new: bool, again: bool) -> None:
        """Writes a piece of a staged file, which `is_new` with it. `again`: the same piece did not go in before."""
        name, above = self.at(i)
        fd = self.create(i, again=again) if is_new else self.disk.open(name, APPEND_FLAGS, above)
        try:
            write_part(self.disk, fd, data, offset)
        finally:
            self.disk.close(fd)

    def symlink(self, i: int, target: bytes) -> None:
        """Makes a staged symlink."""
        name, above = self.at(i)
        try:
            self.disk.symlink(target, name, above)
        except OSError as e:
            self._set_apart(i, above, e)
            self.disk.symlink(target, b"%d" % i, self.tmp)

    def take(self, i: int, name: bytes, above: int) -> None:
        """Moves a file from elsewhere into its staged place."""
        here = self.at(i)
        try:
            self.disk.rename_new(name, above, *here)
        except OSError as e:
            self._set_apart(i, here[1], e)
            self.disk.rename_new(name, above, b"%d" % i, self.tmp)

    def _set_apart(self, i: int, above: int, error: OSError) -> None:
        """Stages alone what its own directory refuses; the placing reports it.

        EEXIST is a name that this disk takes for another's, though nobody knew.
        """
        if above == self.tmp or error.errno not in LEFT:
            raise error
        self.apart.add(i)

    def drop(self, numbers: Collection[int]) -> None:
        """Leaves out changes that have no room; nothing of them is staged any more."""
        gone = set(numbers)
        for top, members in self.whole.items():
            self.whole[top] = [i for i in members if i not in gone]
        self.apart -= gone
        for i in gone:
            self._top.pop(i, None)

    def placed(self, top: int) -> None:
        """A directory that was staged whole has its name."""
        self._forget(b"%d" % top)

    def encode(self) -> bytes:
        """The bytes for the journal: which directories are whole, and what is apart from them."""
        whole, apart = sorted(self.whole), sorted(self.apart)
        return struct.pack(f"<I{len(whole)}I{len(apart)}I", len(whole), *whole, *apart)

    @classmethod
    def decode(cls, tree: WorkTree, plan: Plan, data: bytes | None) -> Stage:
        """The stage that `encode` wrote of this plan; without bytes (an older version's): all under numbers."""
        wholes: dict[int, list[int]] = {}
        apart: list[int] = []
        if data:
            try:
                numbers = struct.unpack(f"<{len(data) // 4}I", data)
                known = whole_dirs(plan.changes, plan.unfit)
                wholes = {top: known[top] for top in numbers[1 : 1 + numbers[0]]}
                apart = list(numbers[1 + numbers[0] :])
            except (struct.error, KeyError, IndexError) as e:
                raise no_fit() from e
        stage = cls(tree, plan.changes, wholes)
        stage.apart.update(apart)
        return stage


def sync(tree: WorkTree) -> None:
    """Makes writes durable on all file systems of a checkout."""
    state = tree.state_dir()
    own = tree.disk.fstat(state).st_dev
    tree.disk.syncfs(state)
    for device, path in tree.devices.items():
        if device != own:
            with suppress(FileNotFoundError, NotADirectoryError):  # unmounted meanwhile: synced by that
                tree.disk.syncfs(tree.dir(path))


class Leftovers:
    """The files in `.metasync/left`, which an interrupted checkout staged. Nobody vouches for their bytes."""

    def __init__(self, tree: WorkTree, changes: Sequence[Change], unfit: Container[int]) -> None:
        self.disk = tree.disk
        self._changes = changes
        self._number = {change.path: i for i, change in enumerate(changes)}
        self._top = {i: top for top, members in whole_dirs(changes, unfit).items() for i in members}
        self._dirs = tree.state_tree(LEFT_DIR)

    def close(self) -> None:
        self._dirs.close()

    def bytes_of(self, wanted: Iterable[Change]) -> int:
        """The bytes on the disk that are there already of these."""
        out = 0
        for path, new, _ in wanted:
            if new is not None and (found := self.find(path, new)) is not None:
                st = self.disk.lstat(*found)
                out += min(new.size, getattr(st, "st_blocks", 0) * BLOCK_BYTES)
        return out

    def find(self, path: bytes, entry: Entry) -> tuple[bytes, int] | None:
        """The name and directory of what was staged for this entry at this path; None if nothing was."""
        i = self._number.get(path)
        old = self._changes[i].new if i is not None else None
        if i is None or old is None or (old.content, old.size, old.root) != (entry.content, entry.size, entry.root):
            return None
        places = [(b"", b"%d" % i)]
        if (top := self._top.get(i)) is not None:  # with its directory, unless the disk then was one where none is
            above, name = split(path)
            places.insert(0, (b"%d%b" % (top, above[len(self._changes[top].path) :]), name))
        for parent, name in places:
            with suppress(OSError):
                fd = self._dirs.dir(parent)
                st = self.disk.lstat(name, fd)
                if stat_.S_ISREG(st.st_mode) and (st.st_size == entry.size or (entry.root and st.st_size < entry.size)):
                    return name, fd
        return None


def leave(tree: WorkTree) -> bool:
    """Moves what is staged to `.metasync/left`, in the place of older files. False: nothing is staged."""
    disk, state = tree.disk, tree.state_dir()
    if not disk.names(tree.state_dir(TMP)):
        return False
    drop_left(tree)
    tree.forget_state(TMP)
    disk.rename(TMP, state, LEFT_DIR, state)
    return True


def drop_left(tree: WorkTree) -> None:
    """Removes `.metasync/left`, if it is there."""
    state = tree.state_dir()
    if tree.disk.look(LEFT_DIR, state) is not None:
        remove(tree.disk, LEFT_DIR, state)


def remove_all(disk: Disk, fd: int, names: Iterable[bytes]) -> None:
    """Removes these names of a directory, with what is in them."""
    for name in names:
        remove(disk, name, fd)


def remove(disk: Disk, name: bytes, fd: int) -> None:
    """Removes a file, or a directory with all that is in it."""
    if not stat_.S_ISDIR(disk.lstat(name, fd).st_mode):
        disk.unlink(name, fd)
        return
    with closing(DirTree(name, disk.open(name, DIR_FLAGS, fd), disk)) as inside:  # no recursion: it may be deep
        todo, dirs = [b""], []
        while todo:
            path = todo.pop()
            dirs.append(path)
            here = inside.dir(path)
            for below in disk.names(here):
                if stat_.S_ISDIR(disk.lstat(below, here).st_mode):
                    todo.append(path + b"/" + below if path else below)
                else:
                    disk.unlink(below, here)
        for path in dirs[:0:-1]:  # what is in a directory goes before it
            parent, last = split(path)
            disk.rmdir(last, inside.dir(parent))
    disk.rmdir(name, fd)
