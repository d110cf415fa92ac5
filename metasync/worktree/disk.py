"""The user's disk: system calls below directory descriptors, with no link followed on the way (architecture.md, D8).

`Disk` has one thin method per system call, so that tests and the simulator can put another disk in its place. Calls
relative to a descriptor are those of Linux and macOS. A rename that never replaces, and an exchange of two names, are
used if the file system knows them; each method says what takes their place.
"""

from __future__ import annotations

import errno
import os
import re
import stat as stat_
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from metasync.worktree.names import ENCODING, folds_to_state

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
    """Why a single name must not be made in a working tree; "" if it may."""
    if name in (b"", b".", b".."):
        return "no name for a file"
    if b"/" in name or b"\0" in name:
        return "holds a character no name can hold"
    if folds_to_state(os.fsdecode(name)):
        return "some file systems take it for .metasync"
    return ""


def check_path(path: bytes) -> str:
    """Why a path must not be made in a working tree; "" if it may."""
    if _PLAIN.fullmatch(path) and b"metasy" not in path.lower():
        return ""  # most paths, at a tenth of the cost
    return next(filter(None, map(check_name, path.split(b"/"))), "")


# ---- renames that Python's os does not know


_DARWIN = sys.platform == "darwin"
_NO_REPLACE, _EXCHANGE = (4, 2) if _DARWIN else (1, 2)


@cache
def _libc() -> tuple[Any, Any, Callable[[], int]]:
    """The C library's rename with flags, its syncfs, and its errno. Loaded with the first checkout."""
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
    """The system's call, if it has one. Loaded with the first hole."""
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
    """Makes a hole in a file. False: unknown here."""
    fallocate = _fallocate()
    return fallocate is not None and fallocate(fd, _PUNCH_HOLE, offset, size) == 0


def write_part(disk: Disk, fd: int, data: bytes | memoryview, offset: int) -> None:
    """Writes a piece of a file. Zeros alone become a hole, so that a sparse file stays one."""
    if len(data) >= HOLE_BYTES_MIN and not (data[0] or data[-1]) and bytes(data).count(0) == len(data):
        disk.write_zeros(fd, len(data), offset)
    else:
        disk.write(fd, data, offset)


def free_bytes(place: int | Path) -> int:
    """Space left for this user on the file system of a descriptor or path."""
    st = os.statvfs(place)
    return st.f_bavail * st.f_frsize


class Disk:
    """System calls, one each. `dir_fd` is the descriptor of the directory a name is in. All raise OSError."""

    def open_top(self, path: bytes) -> int:
        """Opens a directory by its absolute path, or from the current directory."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        return os.open(name, flags, mode, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    @contextmanager
    def opened(self, name: bytes, flags: int, dir_fd: int) -> Iterator[int]:
        """A descriptor that is closed when the block ends."""
        fd = self.open(name, flags, dir_fd)
        try:
            yield fd
        finally:
            self.close(fd)

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        """Writes all of `data` at `offset`."""
        done = os.pwrite(fd, data, offset)
        while done < len(data):
            rest = memoryview(data)[done:]
            done += os.pwrite(fd, rest, offset + done)

    def write_zeros(self, fd: int, size: int, offset: int) -> None:
        """Makes these bytes zeros, as a hole if the file system has them. Never makes the file shorter."""
        self.write(fd, b"\0", offset + size - 1)  # not ftruncate: others may be writing behind that
        if not _punch(fd, offset, size):
            self.write(fd, bytes(size), offset)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def read_next(self, fd: int, size: int) -> bytes:
        """Reads on from where the last such call ended; b"" at the end."""
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

        A file system without such a rename takes a hard link and an unlink, which are as safe for files. One without
        links, and directories, take a look before a plain rename: a file made at `new` between the two calls is lost.
        Only FAT on a kernel from before 2014 is known for that.
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
        """Swaps two existing names atomically. False: the file system can't."""
        return _rename_with(_EXCHANGE, one, one_fd, other, other_fd)

    def chmod(self, name: bytes, dir_fd: int, mode: int) -> None:
        """Sets the mode of a file or directory; of a symlink: ELOOP."""
        try:
            fd = self.open(name, READ_FLAGS, dir_fd)
        except PermissionError:
            # Not readable, yet its owner may change the mode.
            if os.chmod in os.supports_follow_symlinks:
                os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
                return
            with self.opened(name, getattr(os, "O_PATH", 0) | _FOLLOW_NOT, dir_fd) as fd:
                if stat_.S_ISLNK(os.fstat(fd).st_mode):  # O_PATH opens the link itself
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
                os.chmod(f"/proc/self/fd/{fd}", mode)
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
        """Sets a file's times to the file system's own now; -> that time, in ns."""
        os.utime(fd)
        return os.fstat(fd).st_mtime_ns

    def bequest(self, fd: int) -> tuple[int | None, bytes]:
        """The group and the access control list that a directory passes on to its entries."""
        st = self.fstat(fd)
        try:
            acl = os.getxattr(fd, "system.posix_acl_default")
        except (OSError, AttributeError):  # none, or no such thing here
            acl = b""
        return (st.st_gid if st.st_mode & stat_.S_ISGID else None), acl

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """Makes all writes to the file system of `fd` durable."""
        _, syncfs, last_errno = _libc()
        if syncfs is None:
            os.sync()
        elif syncfs(fd) != 0:
            code = last_errno()
            raise OSError(code, os.strerror(code))

    def free_bytes(self, fd: int) -> int:
        """Space left for this user."""
        return free_bytes(fd)

    def has_inodes(self, fd: int) -> bool:
        """Whether the file system has room for another name, as far as it counts these."""
        st = os.statvfs(fd)
        return st.f_favail > 0 or st.f_files == 0

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def dress(disk: Disk, fd: int, mode: int, mtime_ns: int) -> os.stat_result:
    """Gives a new file its time and, if it has another, its mode; -> its stat."""
    disk.futime(fd, mtime_ns)
    st = disk.fstat(fd)
    if stat_.S_IMODE(st.st_mode) == mode:
        return st
    set_mode(disk, fd, mode)
    return disk.fstat(fd)


def set_mode(disk: Disk, fd: int, mode: int) -> None:
    """Sets the mode of a new file, if the file system keeps modes."""
    try:
        disk.fchmod(fd, mode)
    except OSError as e:
        if e.errno not in NO_MODES:
            raise
