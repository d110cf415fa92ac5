"""A disk in memory: inodes, descriptors, times of some granularity, names with or without case, and power that fails.

Theory of operation. `Volume` is what lies on the disk and outlives a process; `SimDisk` is a process's way to it (the
system calls of `worktree.disk.Disk`). Changes of names are kept in an order, as a journalling file system keeps them,
and data are written back some time: when the power fails, the latest names that were not synced are undone, as many as
the seed says, and files whose data were not synced have their old bytes, the beginning of the new ones, or zeros.
"""

from __future__ import annotations

import errno
import os
import random
import stat as stat_
import unicodedata
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from metasync.worktree.disk import Disk
from simulation.world import Boot

DEVICE: Final = 7
FREE_BYTES: Final = 1 << 40
COARSE_S: Final = 0.1  # ticks longer than this are not waited for at once
CALL_NS: Final = 1_000  # a system call's time by the file system's clock


class Stat(NamedTuple):
    """The fields of `os.stat_result` that are used."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int


class Node:
    """A file, directory or symlink. `entries`: key -> (name, node); `saved`: its bytes as they were last synced."""

    __slots__ = ("ctime", "data", "entries", "ino", "mode", "mtime", "nlink", "saved")

    def __init__(self, ino: int, mode: int, now: int) -> None:
        self.ino = ino
        self.mode = mode
        self.mtime = self.ctime = now
        self.nlink = 1
        self.data = b""
        self.entries: dict[Any, tuple[bytes, Node]] = {}
        self.saved: bytes | None = None

    @property
    def is_dir(self) -> bool:
        return stat_.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat_.S_ISLNK(self.mode)

    def stat(self) -> os.stat_result:
        size = len(self.data)
        return cast(os.stat_result, Stat(self.mode, self.ino, DEVICE, self.nlink, size, self.mtime, self.ctime))


def _error(code: int, name: bytes) -> OSError:
    return OSError(code, os.strerror(code), name)


def folded(name: bytes) -> str:
    """What a disk that ignores case and normal form compares."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", os.fsdecode(name)).casefold())


class Volume:
    """What lies on one disk. `clock`: nanoseconds since 1970; `tick_ns`: the granularity of times."""

    def __init__(self, clock: Callable[[], int], *, tick_ns: int = 1, folds: bool = False) -> None:
        self.clock = clock
        self.tick_ns = tick_ns
        self.folds = folds
        self.calls = 0
        self._inos = 10
        self.root = self._node(stat_.S_IFDIR | 0o755)
        self.dirty: dict[int, Node] = {}
        self.renames: list[tuple[Node, Any, tuple[bytes, Node] | None]] = []

    def now(self) -> int:
        at = self.clock() + self.calls * CALL_NS
        return at - at % self.tick_ns

    def _node(self, mode: int) -> Node:
        self._inos += 1
        return Node(self._inos, mode, self.now())

    def key(self, name: bytes) -> Any:
        return folded(name) if self.folds else name

    def find(self, above: Node, name: bytes) -> Node:
        found = above.entries.get(self.key(name))
        if found is None:
            raise _error(errno.ENOENT, name)
        return found[1]

    def put(self, above: Node, name: bytes, node: Node | None) -> None:
        """Changes what a name means; of a name that goes, the node."""
        key = self.key(name)
        old = above.entries.get(key)
        self.renames.append((above, key, old))
        if node is None:
            above.entries.pop(key, None)
        else:
            above.entries[key] = (name, node)
        above.mtime = above.ctime = self.now()

    def make(self, above: Node, name: bytes, mode: int) -> Node:
        if name in (b"", b".", b"..") or b"/" in name or len(name) > 255:
            raise _error(errno.EINVAL if len(name) <= 255 else errno.ENAMETOOLONG, name)
        if self.folds:
            try:
                name.decode()
            except UnicodeDecodeError:
                raise _error(errno.EILSEQ, name) from None
        node = self._node(mode)
        self.put(above, name, node)
        if node.is_dir:
            above.nlink += 1
        return node

    def write(self, node: Node, data: bytes) -> None:
        """Gives a file other bytes."""
        if node.ino not in self.dirty:
            node.saved = node.data
            self.dirty[node.ino] = node
        node.data = data
        node.mtime = node.ctime = self.now()

    def sync(self) -> None:
        """All that was done is durable."""
        self.renames.clear()
        for node in self.dirty.values():
            node.saved = None
        self.dirty.clear()

    def lose_power(self, rng: random.Random) -> int:
        """Undoes what was not synced, as far as the seed says. Returns how much was lost."""
        undone = rng.randint(0, len(self.renames)) if self.renames else 0
        for _ in range(undone):
            above, key, old = self.renames.pop()
            if old is None:
                above.entries.pop(key, None)
            else:
                above.entries[key] = old
        torn = 0
        for node in self.dirty.values():
            assert node.saved is not None
            fate = rng.randrange(4)
            if fate == 0:
                node.data = node.saved
            elif fate == 1:
                node.data = node.data[: rng.randint(0, len(node.data))]
            elif fate == 2:
                node.data = bytes(len(node.data))
            torn += fate != 3
        self.sync()
        return undone + torn

    def copy(self) -> Volume:
        """The same disk once more, as an image of it."""
        out = Volume(self.clock, tick_ns=self.tick_ns, folds=self.folds)
        out._inos, out.calls = self._inos, self.calls
        seen: dict[int, Node] = {}

        def copied(node: Node) -> Node:
            if node.ino in seen:
                return seen[node.ino]
            new = Node(node.ino, node.mode, 0)
            seen[node.ino] = new
            new.mtime, new.ctime, new.nlink, new.data = node.mtime, node.ctime, node.nlink, node.data
            new.entries = {k: (name, copied(n)) for k, (name, n) in node.entries.items()}
            return new

        out.root = copied(self.root)
        return out


class SimDisk(Disk):
    """The system calls of one process on one volume."""

    def __init__(self, volume: Volume, boot: Boot | None = None, root: bytes = b"") -> None:
        self.volume = volume
        self._boot = boot
        self._fds: dict[int, list[Any]] = {}  # descriptor -> [node, where reading goes on]
        self._next = 100

    def _step(self) -> None:
        self.volume.calls += 1
        boot = self._boot
        if boot is not None:
            boot.step()
            if boot.on_call is not None:
                boot.on_call()

    def node(self, fd: int) -> Node:
        try:
            return cast(Node, self._fds[fd][0])
        except KeyError:
            raise _error(errno.EBADF, b"%d" % fd) from None

    def _dir(self, fd: int) -> Node:
        node = self.node(fd)
        if not node.is_dir:
            raise _error(errno.ENOTDIR, b"")
        return node

    def _opened(self, node: Node) -> int:
        self._next += 1
        self._fds[self._next] = [node, 0]
        return self._next

    def open_top(self, path: bytes) -> int:
        self._step()
        return self._opened(self.volume.root)

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        self._step()
        above, v = self._dir(dir_fd), self.volume
        found = above.entries.get(v.key(name))
        if found is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, name)
            return self._opened(v.make(above, name, stat_.S_IFREG | mode))
        node = found[1]
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, name)
        if node.is_link:
            raise _error(errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP, name)
        if flags & os.O_DIRECTORY and not node.is_dir:
            raise _error(errno.ENOTDIR, name)
        if node.is_dir and flags & (os.O_WRONLY | os.O_RDWR):
            raise _error(errno.EISDIR, name)
        return self._opened(node)

    def close(self, fd: int) -> None:
        if self._boot is not None and self._boot.dead:
            return
        self.node(fd)
        del self._fds[fd]

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        self._step()
        node, new = self.node(fd), bytes(data)
        old = node.data.ljust(offset, b"\0")
        self.volume.write(node, old[:offset] + new + old[offset + len(new) :])

    def write_zeros(self, fd: int, size: int, offset: int) -> None:
        self.write(fd, bytes(size), offset)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._step()
        return self.node(fd).data[offset : offset + size]

    def read_next(self, fd: int, size: int) -> bytes:
        self._step()
        node = self.node(fd)
        if node.is_dir:
            raise _error(errno.EISDIR, b"")
        at = self._fds[fd][1]
        piece = node.data[at : at + size]
        self._fds[fd][1] = at + len(piece)
        return piece

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        self._step()
        return self.volume.find(self._dir(dir_fd), name).stat()

    def fstat(self, fd: int) -> os.stat_result:
        self._step()
        return self.node(fd).stat()

    def bequest(self, fd: int) -> tuple[int | None, bytes]:
        self._step()
        return None, b""

    def names(self, fd: int) -> list[bytes]:
        self._step()
        return [name for name, _ in self._dir(fd).entries.values()]

    def mkdir(self, name: bytes, dir_fd: int, mode: int = 0o700) -> None:
        self._step()
        above = self._dir(dir_fd)
        if self.volume.key(name) in above.entries:
            raise _error(errno.EEXIST, name)
        self.volume.make(above, name, stat_.S_IFDIR | mode)

    def rmdir(self, name: bytes, dir_fd: int) -> None:
        self._step()
        above = self._dir(dir_fd)
        node = self.volume.find(above, name)
        if not node.is_dir:
            raise _error(errno.ENOTDIR, name)
        if node.entries:
            raise _error(errno.ENOTEMPTY, name)
        self.volume.put(above, name, None)
        above.nlink -= 1

    def unlink(self, name: bytes, dir_fd: int) -> None:
        self._step()
        above = self._dir(dir_fd)
        node = self.volume.find(above, name)
        if node.is_dir:
            raise _error(errno.EISDIR, name)
        self.volume.put(above, name, None)
        node.nlink -= 1
        node.ctime = self.volume.now()

    def symlink(self, target: bytes, name: bytes, dir_fd: int) -> None:
        self._step()
        above = self._dir(dir_fd)
        if self.volume.key(name) in above.entries:
            raise _error(errno.EEXIST, name)
        self.volume.make(above, name, stat_.S_IFLNK | 0o777).data = target

    def readlink(self, name: bytes, dir_fd: int) -> bytes:
        self._step()
        node = self.volume.find(self._dir(dir_fd), name)
        if not node.is_link:
            raise _error(errno.EINVAL, name)
        return node.data

    def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self._step()
        node, above = self.volume.find(self._dir(old_fd), old), self._dir(new_fd)
        if self.volume.key(new) in above.entries:
            raise _error(errno.EEXIST, new)
        if node.is_dir:
            raise _error(errno.EPERM, old)
        self.volume.put(above, new, node)
        node.nlink += 1
        node.ctime = self.volume.now()

    def rename(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self._step()
        self._rename(old, old_fd, new, new_fd)

    def _rename(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        source, target, v = self._dir(old_fd), self._dir(new_fd), self.volume
        node = v.find(source, old)
        there = target.entries.get(v.key(new))
        same = source is target and v.key(old) == v.key(new)
        if there is not None and not same:
            if there[1] is node:
                return
            if there[1].is_dir != node.is_dir:
                raise _error(errno.EISDIR if there[1].is_dir else errno.ENOTDIR, new)
            if there[1].entries:
                raise _error(errno.ENOTEMPTY, new)
            there[1].nlink -= 1
            there[1].ctime = v.now()
        if not same:
            v.put(source, old, None)
        v.put(target, new, node)
        node.ctime = v.now()

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self._step()
        v = self.volume
        v.find(self._dir(old_fd), old)
        if v.key(new) in self._dir(new_fd).entries:
            raise _error(errno.EEXIST, new)
        self._rename(old, old_fd, new, new_fd)

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        self._step()
        v, a, b = self.volume, self._dir(one_fd), self._dir(other_fd)
        first, second = v.find(a, one), v.find(b, other)
        v.put(a, one, second)
        v.put(b, other, first)
        first.ctime = second.ctime = v.now()
        return True

    def chmod(self, name: bytes, dir_fd: int, mode: int) -> None:
        self._step()
        node = self.volume.find(self._dir(dir_fd), name)
        if node.is_link:
            raise _error(errno.ELOOP, name)
        self._mode(node, mode)

    def fchmod(self, fd: int, mode: int) -> None:
        self._step()
        self._mode(self.node(fd), mode)

    def _mode(self, node: Node, mode: int) -> None:
        node.mode = stat_.S_IFMT(node.mode) | mode
        node.ctime = self.volume.now()

    def utime(self, name: bytes, dir_fd: int, mtime_ns: int) -> None:
        self._step()
        self._time(self.volume.find(self._dir(dir_fd), name), mtime_ns)

    def futime(self, fd: int, mtime_ns: int) -> None:
        self._step()
        self._time(self.node(fd), mtime_ns)

    def _time(self, node: Node, mtime_ns: int) -> None:
        node.mtime = mtime_ns
        node.ctime = self.volume.now()

    def touch(self, fd: int) -> int:
        self._step()
        node = self.node(fd)
        node.mtime = node.ctime = self.volume.now()
        return node.mtime

    def fsync(self, fd: int) -> None:
        self._step()
        node, v = self.node(fd), self.volume
        if node.is_dir:
            v.renames.clear()
        elif v.dirty.pop(node.ino, None) is not None:
            node.saved = None

    def syncfs(self, fd: int) -> None:
        self._step()
        self.volume.sync()

    def free_bytes(self, fd: int) -> int:
        self._step()
        return FREE_BYTES

    def has_inodes(self, fd: int) -> bool:
        return True

    def sleep(self, seconds: float) -> None:
        self._step()
        boot = self._boot
        if boot is None:
            return
        tick = self.volume.tick_ns / 1e9
        due = [False]

        def ring() -> None:
            due[0] = True
            boot.actor.look()

        # A machine may sleep longer than it is asked to: to the next tick at once, where that is near.
        boot.actor.world.at(max(seconds, tick if tick < COARSE_S else 0.0), ring)
        boot.wait(lambda: due[0])
