"""The user's disk: system calls below directory descriptors, with no link followed on the way (architecture.md, D8).

`Disk` has one thin method per system call, so that tests and the simulator can put another disk in its place. `Tree`
is a workspace's directory: its root, its `.metasync`, and descriptors of the directories in between, each opened by
name from the one above with O_NOFOLLOW. Paths are bytes, relative to the root, names joined by "/"; the root is b"".

Needs what Linux and macOS have: calls relative to a descriptor. A rename that never replaces, and an exchange of two
names, are used where the file system knows them; what takes their place elsewhere is said at the method.
"""

from __future__ import annotations

import errno
import os
import re
import stat as stat_
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any

from metasync.errors import WorkspaceError
from metasync.objects.paths import split
from metasync.worktree.names import ANY, ENCODING, STATE_NAME, Rules, folds_to_state

DIRS_OPEN_MAX = 64  # descriptors kept open; the usual limit of a process is 256 on macOS, 1,024 on Linux
COPY_BYTES = 1 << 20
HOLE_BYTES_MIN = 64 << 10  # a smaller one is not worth the calls

_FOLLOW_NOT = os.O_NOFOLLOW | os.O_CLOEXEC
DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | _FOLLOW_NOT
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | _FOLLOW_NOT  # O_NONBLOCK: opening a fifo must not wait for a writer
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FOLLOW_NOT
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | _FOLLOW_NOT
APPEND_FLAGS = os.O_WRONLY | _FOLLOW_NOT  # of a file that is there

_PLAIN = re.compile(rb"\.?[0-9A-Za-z_][ -.0-~]*(?:/\.?[0-9A-Za-z_][ -.0-~]*)*")  # ASCII alone, no name of dots alone


def check_name(name: bytes) -> str:
    """Why `name` must not be made in a working tree; "" when it may. For a single name, not a path."""
    if name in (b"", b".", b".."):
        return "no name for a file"
    if b"/" in name or b"\0" in name:
        return "holds a character no name can hold"
    if folds_to_state(os.fsdecode(name)):
        return "some file systems take it for .metasync"
    return ""


def check_path(path: bytes) -> str:
    """Why `path` must not be made in a working tree; "" when it may."""
    if _PLAIN.fullmatch(path) and b"metasy" not in path.lower():
        return ""  # most paths, at a tenth of the cost of the closer look
    return next(filter(None, map(check_name, path.split(b"/"))), "")


# ---- renames that Python's os does not know


_DARWIN = sys.platform == "darwin"
_NO_REPLACE, _EXCHANGE = (4, 2) if _DARWIN else (1, 2)


@cache
def _libc() -> tuple[Any, Any, Callable[[], int]]:
    """The C library's rename with flags and its syncfs, where it has them, and what tells of their errors.

    Loaded with the first checkout: a look at the folder pays nothing for it.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    rename2 = getattr(libc, "renameatx_np" if _DARWIN else "renameat2", None)
    syncfs = getattr(libc, "syncfs", None)
    if rename2 is not None:
        rename2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    if syncfs is not None:
        syncfs.argtypes = [ctypes.c_int]
    return rename2, syncfs, ctypes.get_errno


_PUNCH_HOLE = 2 | 1  # and keeps the size


@cache
def _fallocate() -> Any:
    """The system's call, where it has one; loaded when a hole is first to be made."""
    import ctypes

    found = None if _DARWIN else getattr(ctypes.CDLL(None), "fallocate64", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found


# The file system (EINVAL), the kernel (ENOSYS) or a network protocol (ENOTSUP) does not know the flag.
_UNKNOWN_FLAG = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
# No hard links here: FAT, exFAT, some network and FUSE file systems; EMLINK: too many links to this one.
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
# The same systems keep no modes, and say so of a file that was just made.
NO_MODES = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def _rename_with(flag: int, old: bytes, old_fd: int, new: bytes, new_fd: int) -> bool:
    """Renames with a flag. False: the flag is not known here. Other failures: OSError."""
    rename2, _, last_errno = _libc()
    if rename2 is None:
        return False
    if rename2(old_fd, old, new_fd, new, flag) == 0:
        return True
    code = last_errno()
    if code in _UNKNOWN_FLAG:
        return False
    raise OSError(code, os.strerror(code), new)


def _punch(fd: int, offset: int, size: int) -> bool:
    """Makes a hole in a file. False: that is not known here."""
    fallocate = _fallocate()
    return fallocate is not None and fallocate(fd, _PUNCH_HOLE, offset, size) == 0


def write_part(disk: Disk, fd: int, data: bytes | memoryview, offset: int) -> None:
    """Writes a piece of a file. One of zeros alone becomes a hole, so that a sparse file stays one."""
    if len(data) >= HOLE_BYTES_MIN and not (data[0] or data[-1]) and bytes(data).count(0) == len(data):
        disk.write_zeros(fd, len(data), offset)
    else:
        disk.write(fd, data, offset)


class Disk:
    """System calls, one each. `dir_fd` is the descriptor of the directory a name is in. All raise OSError."""

    def open_top(self, path: bytes) -> int:
        """A directory by its path from the root of all, or from where the process is."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        return os.open(name, flags, mode, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        """Writes all of `data` at `offset`."""
        done = os.pwrite(fd, data, offset)
        while done < len(data):
            rest = memoryview(data)[done:]
            done += os.pwrite(fd, rest, offset + done)

    def write_zeros(self, fd: int, size: int, offset: int) -> None:
        """Makes these bytes zeros; where the file system has holes, one. Never makes the file shorter."""
        self.write(fd, b"\0", offset + size - 1)  # not ftruncate: others may be writing behind that
        if not _punch(fd, offset, size):
            self.write(fd, bytes(size), offset)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def read_next(self, fd: int, size: int) -> bytes:
        """Reads from where the last such call ended; b"" at the end."""
        return os.read(fd, size)

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def look(self, name: bytes, dir_fd: int) -> os.stat_result | None:
        """`lstat`, with None where nothing is."""
        try:
            return self.lstat(name, dir_fd)
        except FileNotFoundError:
            return None

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def names(self, fd: int) -> list[bytes]:
        return [name.encode(*ENCODING) for name in os.listdir(fd)]

    def entries(self, fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """What is in a directory, with what the system tells of each name at no further cost."""
        return os.scandir(fd)

    def mkdir(self, name: bytes, dir_fd: int, mode: int = 0o700) -> None:
        os.mkdir(name, mode, dir_fd=dir_fd)

    def rmdir(self, name: bytes, dir_fd: int) -> None:
        os.rmdir(name, dir_fd=dir_fd)

    def unlink(self, name: bytes, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def symlink(self, target: bytes, name: bytes, dir_fd: int) -> None:
        os.symlink(target, name, dir_fd=dir_fd)

    def readlink(self, name: bytes, dir_fd: int) -> bytes:
        return os.readlink(name, dir_fd=dir_fd)

    def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        """A second name for the same file (of a symlink: for the symlink). Never replaces: EEXIST."""
        os.link(old, new, src_dir_fd=old_fd, dst_dir_fd=new_fd, follow_symlinks=False)

    def rename(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        """Replaces what is at `new`."""
        os.rename(old, new, src_dir_fd=old_fd, dst_dir_fd=new_fd)

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        """Renames only if nothing is at `new`, else EEXIST; atomic.

        Where the file system has no such rename: a hard link and an unlink, which are as safe for files. Where it has
        no links either, and for directories, a look before a plain rename: a file made at `new` in between the two
        calls would be lost there, for which only FAT on a kernel from before 2014 is known.
        """
        if _rename_with(_NO_REPLACE, old, old_fd, new, new_fd):
            return
        if not stat_.S_ISDIR(self.lstat(old, old_fd).st_mode):
            try:
                self.link(old, old_fd, new, new_fd)
            except OSError as e:
                if e.errno not in NO_LINKS:
                    raise
            else:
                self.unlink(old, old_fd)
                return
        try:
            self.lstat(new, new_fd)
        except FileNotFoundError:
            self.rename(old, old_fd, new, new_fd)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        """Swaps what two names mean, atomically; both exist. False: the file system can't."""
        return _rename_with(_EXCHANGE, one, one_fd, other, other_fd)

    def chmod(self, name: bytes, dir_fd: int, mode: int) -> None:
        """Sets the mode of a file or directory; of a symlink that stands there instead: ELOOP."""
        try:
            fd = self.open(name, READ_FLAGS, dir_fd)
        except PermissionError:
            # Not readable, yet its owner may change the mode.
            if os.chmod in os.supports_follow_symlinks:
                os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
                return
            fd = self.open(name, getattr(os, "O_PATH", 0) | _FOLLOW_NOT, dir_fd)
            try:
                if stat_.S_ISLNK(os.fstat(fd).st_mode):  # O_PATH opens the link itself
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
                os.chmod(f"/proc/self/fd/{fd}", mode)
            finally:
                self.close(fd)
            return
        try:
            self.fchmod(fd, mode)
        finally:
            self.close(fd)

    def fchmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def utime(self, name: bytes, dir_fd: int, mtime_ns: int) -> None:
        """Sets both times of a file or symlink, in ns since 1970."""
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)

    def futime(self, fd: int, mtime_ns: int) -> None:
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def touch(self, fd: int) -> int:
        """Sets a file's times to the file system's own now; returns that, in ns."""
        os.utime(fd)
        return os.fstat(fd).st_mtime_ns

    def bequest(self, fd: int) -> tuple[int | None, bytes]:
        """What a directory passes on to what is made in it: a group, an access control list."""
        st = self.fstat(fd)
        try:
            acl = os.getxattr(fd, "system.posix_acl_default")
        except (OSError, AttributeError):  # none, or no such thing here
            acl = b""
        return (st.st_gid if st.st_mode & stat_.S_ISGID else None), acl

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """Makes all that was written to the file system of `fd` durable."""
        _, syncfs, last_errno = _libc()
        if syncfs is None:
            os.sync()
        elif syncfs(fd) != 0:
            code = last_errno()
            raise OSError(code, os.strerror(code))

    def free_bytes(self, fd: int) -> int:
        """Space left for this user."""
        st = os.statvfs(fd)
        return st.f_bavail * st.f_frsize

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def dress(disk: Disk, fd: int, mode: int, mtime_ns: int) -> os.stat_result:
    """Gives a file that was just made its time and, if it has another, its mode; returns its stat."""
    disk.futime(fd, mtime_ns)
    st = disk.fstat(fd)
    if stat_.S_IMODE(st.st_mode) == mode:
        return st
    set_mode(disk, fd, mode)
    return disk.fstat(fd)


def set_mode(disk: Disk, fd: int, mode: int) -> None:
    """Sets the mode of a file that was just made, as far as the file system keeps modes."""
    try:
        disk.fchmod(fd, mode)
    except OSError as e:
        if e.errno not in NO_MODES:
            raise


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
        """The same, with the number of the device it lies on."""
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
        """Closes the directories at and below `path`, so that the next use looks at the disk again."""
        below = path + b"/" if path else b""
        for known in [p for p in self._dirs if p == path or p.startswith(below)]:
            self.disk.close(self._dirs.pop(known)[0])


class WorkTree(DirTree):
    """The directory of a workspace. `close` it. For one thread, but for `state_dir` and the descriptors of that.

    `rules`: what its file system makes of names, as far as known (`worktree.fs_probe`).
    `WorkspaceError` when the root or its `.metasync` is not there.
    """

    def __init__(self, root: bytes, disk: Disk | None = None) -> None:
        self.rules: Rules = ANY
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
        """A descriptor of `.metasync` (b"") or of the directory `name` in it, made if needed; stays open."""
        fd = self._state.get(name)
        if fd is None:
            above = self._state[b""]
            with suppress(FileExistsError):
                self.disk.mkdir(name, above)
            fd = self._state[name] = self.disk.open(name, DIR_FLAGS, above)
        return fd

    def state_tree(self, name: bytes) -> DirTree:
        """The directories below `name` in `.metasync`, which is there. Closed with this one at the latest."""
        self._trees = [tree for tree in self._trees if tree.root_fd >= 0]
        tree = DirTree(name, self.disk.open(name, DIR_FLAGS, self.state_dir()), self.disk)
        self._trees.append(tree)
        return tree

    def forget_state(self, name: bytes) -> None:
        """Closes the directory `name` of `.metasync`: another one is to have that name."""
        fd = self._state.pop(name, None)
        if fd is not None:
            self.disk.close(fd)

    def clock_ns(self) -> int:
        """Now, by the file system's own clock: what a file written now would get as its times."""
        if self._clock_fd < 0:
            self._clock_fd = self.disk.open(b"clock", WRITE_FLAGS, self._state[b""])
        return self.disk.touch(self._clock_fd)

    def tick_past(self, stamp_ns: int, wait_s: float) -> int:
        """Waits until that clock shows more than `stamp_ns`, at most about `wait_s`; returns what it shows."""
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
        a = disk.open(one, READ_FLAGS, one_fd)
        try:
            b = disk.open(other, READ_FLAGS, other_fd)
            try:
                at = 0
                while (piece := disk.read(a, COPY_BYTES, at)) == disk.read(b, COPY_BYTES, at):
                    if not piece:
                        return True
                    at += len(piece)
                return False
            finally:
                disk.close(b)
        finally:
            disk.close(a)

    def copy(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        """Copies a file or symlink to a new name on another file system, with mode and times, durably."""
        disk = self.disk
        st = disk.lstat(old, old_fd)
        if stat_.S_ISLNK(st.st_mode):
            disk.symlink(disk.readlink(old, old_fd), new, new_fd)
            disk.utime(new, new_fd, st.st_mtime_ns)
            return
        source = disk.open(old, READ_FLAGS, old_fd)
        try:
            target = disk.open(new, CREATE_FLAGS, new_fd)
            try:
                at = 0
                while piece := disk.read(source, COPY_BYTES, at):
                    disk.write(target, piece, at)
                    at += len(piece)
                dress(disk, target, stat_.S_IMODE(st.st_mode), st.st_mtime_ns)
                disk.fsync(target)
            finally:
                disk.close(target)
        finally:
            disk.close(source)


def failed(tree: WorkTree, path: bytes, cause: OSError) -> WorkspaceError:
    """The error for a disk that stops a checkout half-way."""
    return WorkspaceError(
        f"Bringing {os.fsdecode(path)} into {os.fsdecode(tree.root)} failed: {cause.strerror or cause}.",
        next_step="Nothing is lost: when the disk is well again (space, health), run again, and the rest is brought.",
    )
