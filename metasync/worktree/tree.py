"""The user's folder by directory handles (architecture.md, D8).

Directories are opened by name from the one above, with O_NOFOLLOW. Paths are bytes, relative to the root, with "/"
between names; the root is b"".
"""

from __future__ import annotations

import errno
import os
import stat as stat_
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from metasync.errors import WorkspaceError, step_after
from metasync.objects.model import SPECIAL, split
from metasync.worktree.disk import COPY_BYTES, CREATE_FLAGS, DIR_FLAGS, READ_FLAGS, WRITE_FLAGS, Disk, dress
from metasync.worktree.names import ANY, STATE_DB, STATE_NAME, Rules

DIRS_OPEN_MAX = 64  # descriptors kept open; the usual limit of a process is 256 on macOS, 1,024 on Linux


class DirTree:
    """A directory and what is below it, each directory opened by name from the one above. `close` it; for one thread.

    `root_fd` is the descriptor of the directory itself, which is the tree's from then on.
    """

    def __init__(self, root: bytes, root_fd: int, disk: Disk) -> None:
        self.root = root
        self.disk = disk
        self.root_fd = root_fd
        self.root_stat = disk.fstat(root_fd)
        self._dirs: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # path -> (descriptor, device)
        self.devices: dict[int, bytes] = {self.root_stat.st_dev: b""}  # device -> a directory on it, of all opened

    def close(self) -> None:
        self.forget()
        if self.root_fd >= 0:
            self.disk.close(self.root_fd)
        self.root_fd = -1

    def dir(self, path: bytes) -> int:
        """A descriptor of the directory at `path`, to be used before the next call and not to be closed.

        OSError: it does not exist (ENOENT), or something on the way is a symlink or no directory (ELOOP, ENOTDIR).
        """
        return self.dir_device(path)[0]

    def dir_device(self, path: bytes) -> tuple[int, int]:
        """As `dir`, with the number of the device it lies on."""
        if not path:
            return self.root_fd, self.root_stat.st_dev
        found = self._dirs.get(path)
        if found is not None:
            self._dirs.move_to_end(path)
            return found
        below = []  # no recursion: a path may have thousands of names
        above, fd = path, -1
        while fd < 0:
            above, name = split(above)
            below.append(name)
            if not above:
                fd = self.root_fd
            elif above in self._dirs:
                self._dirs.move_to_end(above)
                fd = self._dirs[above][0]
        device = -1
        for name in reversed(below):
            above = above + b"/" + name if above else name
            fd, device = self._open_dir(above, name, fd)
        return fd, device

    def _open_dir(self, path: bytes, name: bytes, above: int) -> tuple[int, int]:
        fd = self.disk.open(name, DIR_FLAGS, above)
        try:
            device = self.disk.fstat(fd).st_dev
        except BaseException:
            self.disk.close(fd)
            raise
        while len(self._dirs) >= DIRS_OPEN_MAX:
            self.disk.close(self._dirs.popitem(last=False)[1][0])
        self._dirs[path] = fd, device
        self.devices.setdefault(device, path)
        return fd, device

    def forget(self, path: bytes = b"") -> None:
        """Closes the directories at and below `path`; the next use looks at the disk again."""
        below = path + b"/" if path else b""
        for known in [p for p in self._dirs if p == path or p.startswith(below)]:
            self.disk.close(self._dirs.pop(known)[0])


def holds_workspace(disk: Disk, fd: int) -> bool:
    """Whether a directory is a workspace: one whose `.metasync` holds a local state, or may not be looked into.

    OSError: it cannot be told. Any other file or directory of that name makes no workspace.
    """
    try:
        with disk.opened(STATE_NAME, DIR_FLAGS, fd) as state_fd:
            return disk.look(STATE_DB, state_fd) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    except OSError as e:
        if e.errno == errno.ELOOP:  # a symlink, on some systems
            return False
        raise


class WorkTree(DirTree):
    """The directory of a workspace. `close` it. For one thread, but for `state_dir` and its descriptors.

    `sets_special`: whether set-id and sticky bits of others' files are set here. `rules`: of its file system
    (`worktree.fs_probe`). `looked`: told now and then how many names a walk looked at.
    `WorkspaceError` if the root or its `.metasync` is not there.
    """

    def __init__(self, root: bytes, disk: Disk | None = None) -> None:
        self.rules: Rules = ANY
        self.sets_special: Callable[[], bool] = lambda: False
        self.looked: Callable[[int], None] = lambda _names: None
        self._state: dict[bytes, int] = {}
        self._trees: list[DirTree] = []
        self._clock_fd = -1
        shown = os.fsdecode(root)
        disk = disk or Disk()
        try:
            super().__init__(root, disk.open_top(root), disk)
            try:
                self._state[b""] = disk.open(STATE_NAME, DIR_FLAGS, self.root_fd)
            except BaseException:
                self.close()
                raise
        except OSError as e:
            raise WorkspaceError(
                f"{shown} can't be used as a workspace: {e.strerror}.",
                next_step="Check that the folder exists (a disk not mounted?) and holds .metasync; "
                "`metasync init` or `metasync clone` makes one.",
            ) from e

    def close(self) -> None:
        for fd in [*self._state.values(), self._clock_fd]:
            if fd >= 0:
                self.disk.close(fd)
        self._state.clear()
        self._clock_fd = -1
        for tree in self._trees:
            tree.close()
        self._trees.clear()
        super().close()

    def __enter__(self) -> WorkTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dir(self, name: bytes = b"") -> int:
        """A descriptor of `.metasync` (b"") or of the directory `name` in it, made if needed. It stays open."""
        fd = self._state.get(name)
        if fd is None:
            above = self._state[b""]
            with suppress(FileExistsError):
                self.disk.mkdir(name, above)
            fd = self._state[name] = self.disk.open(name, DIR_FLAGS, above)
        return fd

    def state_tree(self, name: bytes) -> DirTree:
        """The directories below `name` in `.metasync`, which exists. Closed with this one at the latest."""
        self._trees = [tree for tree in self._trees if tree.root_fd >= 0]
        tree = DirTree(name, self.disk.open(name, DIR_FLAGS, self.state_dir()), self.disk)
        self._trees.append(tree)
        return tree

    def forget_state(self, name: bytes) -> None:
        """Closes the directory `name` of `.metasync`, whose name another will have."""
        fd = self._state.pop(name, None)
        if fd is not None:
            self.disk.close(fd)

    def clock_ns(self) -> int:
        """The time by the file system's own clock: that of a file written now. On a read-only disk nothing has it."""
        if self._clock_fd < 0:
            try:
                self._clock_fd = self.disk.open(b"clock", WRITE_FLAGS, self._state[b""])
            except OSError as e:
                if e.errno != errno.EROFS:
                    raise
                return time.time_ns()
        return self.disk.touch(self._clock_fd)

    def mode_of(self, mode: int, here: int = 0) -> int:
        """The mode that an agreed one becomes at a path whose mode is `here` (0: nothing is there).

        Set-id and sticky bits that are not here come only where the user asked for them: whoever writes to the folder
        must gain no rights on another's machine by that.
        """
        return mode if not mode & SPECIAL & ~here or self.sets_special() else mode & (here | ~SPECIAL)

    def tick_past(self, stamp_ns: int, wait_s: float) -> int:
        """Waits at most about `wait_s` until that clock shows more than `stamp_ns`; -> what it shows."""
        now = self.clock_ns()
        left = wait_s
        while now <= stamp_ns and left > 0:
            self.disk.sleep(0.002)
            left -= 0.002
            now = self.clock_ns()
        return now

    def same_bytes(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        """Whether two files have the same content, or two symlinks the same target."""
        disk = self.disk
        kinds = {stat_.S_IFMT(disk.lstat(one, one_fd).st_mode), stat_.S_IFMT(disk.lstat(other, other_fd).st_mode)}
        if kinds == {stat_.S_IFLNK}:
            return disk.readlink(one, one_fd) == disk.readlink(other, other_fd)
        if kinds != {stat_.S_IFREG}:
            return False
        with disk.opened(one, READ_FLAGS, one_fd) as a, disk.opened(other, READ_FLAGS, other_fd) as b:
            at = 0
            while (piece := disk.read(a, COPY_BYTES, at)) == disk.read(b, COPY_BYTES, at):
                if not piece:
                    return True
                at += len(piece)
        return False

    def copy(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        """Copies a file or symlink to a new name on another file system, with mode and times, durably."""
        disk = self.disk
        st = disk.lstat(old, old_fd)
        if stat_.S_ISLNK(st.st_mode):
            disk.symlink(disk.readlink(old, old_fd), new, new_fd)
            disk.utime(new, new_fd, st.st_mtime_ns)
            return
        with disk.opened(old, READ_FLAGS, old_fd) as source, disk.opened(new, CREATE_FLAGS, new_fd) as target:
            at = 0
            while piece := disk.read(source, COPY_BYTES, at):
                disk.write(target, piece, at)
                at += len(piece)
            dress(disk, target, stat_.S_IMODE(st.st_mode), st.st_mtime_ns)
            disk.fsync(target)


def failed(tree: WorkTree, path: bytes, cause: OSError) -> WorkspaceError:
    """The error for a disk that stops a checkout half-way."""
    return WorkspaceError(
        f"Bringing {os.fsdecode(path) or 'files'} into {os.fsdecode(tree.root)} failed: {cause.strerror or cause}.",
        next_step=step_after(
            cause, "Nothing is lost: when the disk is well again (space, health), run again, and the rest is brought."
        ),
    )
