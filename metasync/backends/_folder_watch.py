"""Waits for changes in a folder of this machine, by inotify, which watchdog binds.

A watch is kept between calls, so that nothing is missed. Only a file system of this machine tells of all that is
written to it: of what others write to a share, or through FUSE, no event comes. Such a folder is asked now and then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from metasync.backends._folder_checks import mount_of
from metasync.backends.api import Change
from metasync.backends.names import TEMP_PREFIX
from metasync.errors import NotFoundError, RefusedError, UnreachableError

_HEADER: Final = struct.Struct("iIII")  # wd, mask, cookie, length of the name
_BUFFER_BYTES: Final = 64 << 10
_READS_MAX: Final = 1000  # for one answer
_WATCHES_MAX: Final = 64  # folders of one store
_FOLDERS_MAX: Final = 4096  # below a watched one
_LOCAL: Final = frozenset({"tmpfs", "ramfs", "btrfs", "zfs", "bcachefs", "overlay"})
"""Kinds of file systems of this machine without a device of their own."""


class Watched:
    """The watches of one store, by folder. Thread-safe."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}
        self._closed = False

    def wait(self, path: str, cursor: str, timeout_s: float, folder: Callable[[], int]) -> Change:
        """See `Watches.watch`. `folder` opens the folder, if a watch begins."""
        with self._lock:
            watch = self._watches.get(path)
            if cursor and (watch is None or not cursor.startswith(f"{watch.mark}.")):
                raise NotFoundError(f"watch {path} in {self._root}: this cursor is too old")
        if cursor and watch is not None:
            return watch.wait(cursor, timeout_s)
        begun = self._begin(path, folder)
        return Change(begun.cursor, True)

    def _begin(self, path: str, folder: Callable[[], int]) -> _Watch:
        fd = folder()
        try:
            _refuse_deaf(self._root, os.fstat(fd).st_dev)
            made = _Watch(f"{path} in {self._root}", fd)
        finally:
            os.close(fd)
        with self._lock:
            before, full = self._watches.pop(path, None), len(self._watches) >= _WATCHES_MAX
            if not full and not self._closed:
                self._watches[path] = made
        if before is not None:
            before.close()
        if full or self._closed:
            made.close()
            raise UnreachableError(f"watch {path} in {self._root}: it is closed, or watches too much")
        return made

    def close(self) -> None:
        """Ends all watches; those that wait end at once."""
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.close()


def _refuse_deaf(root: str, device: int) -> None:
    """Raises `RefusedError` for a folder whose changes by other machines would not be told."""
    if os.major(device) != 0:  # a disk
        return
    mount = mount_of(os.path.realpath(root), device)
    kind = mount.kind if mount is not None else "unknown"
    if kind not in _LOCAL:
        raise RefusedError(f"{root} lies on a file system ({kind}) that tells nothing of what others write")


class _Watch:
    """One inotify: a folder, and those below it. Cursors hold `mark`, and how often it told of changes."""

    def __init__(self, what: str, folder: int) -> None:
        from watchdog.observers import inotify_c

        self._os: Any = inotify_c
        flags = inotify_c.InotifyConstants
        self._flags: Any = flags
        self._mask = (
            flags.IN_CREATE | flags.IN_DELETE | flags.IN_MOVED_FROM | flags.IN_MOVED_TO | flags.IN_DELETE_SELF
            | flags.IN_MOVE_SELF | flags.IN_ONLYDIR
        )  # fmt: skip
        self._what = what
        self.mark = secrets.token_hex(8)
        self._told = 0
        self._using = threading.Lock()  # by one caller at a time; whoever closes waits for the caller to leave
        self._closed = False
        self._paths: dict[int, str] = {}
        self._fd = inotify_c.inotify_init()
        if self._fd < 0:
            raise OSError(errno.EMFILE, "this user watches too many folders (fs.inotify.max_user_instances)")
        os.set_inheritable(self._fd, False)
        os.set_blocking(self._fd, False)
        self._wake_r, self._wake_w = os.pipe()
        try:
            self._top = self._add(os.readlink(f"/proc/self/fd/{folder}"), f"/proc/self/fd/{folder}")
        except BaseException:
            self.close()
            raise

    @property
    def cursor(self) -> str:
        return f"{self.mark}.{self._told}"

    def wait(self, cursor: str, timeout_s: float) -> Change:
        with self._using:
            if cursor != self.cursor:
                return Change(self.cursor, True)
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.register(self._wake_r, select.POLLIN)
            changed = False
            if not self._closed:
                changed = self._read() if poll.poll(timeout_s * 1000) else False
            if self._closed:
                raise UnreachableError(f"watch {self._what}: it was closed")
            self._told += changed
            return Change(self.cursor, changed)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"!")
        with self._using:
            for fd in (self._fd, self._wake_r, self._wake_w):
                with contextlib.suppress(OSError):
                    os.close(fd)
            self._fd = self._wake_r = self._wake_w = -1

    def _read(self) -> bool:
        """Takes the events that are there. -> whether one tells of a change. `UnreachableError`: the folder is gone."""
        changed = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS_MAX):
                changed = self._take(os.read(self._fd, _BUFFER_BYTES)) or changed
        return changed

    def _take(self, events: bytes) -> bool:
        changed, at = False, 0
        while at + _HEADER.size <= len(events):
            wd, mask, _, length = _HEADER.unpack_from(events, at)
            name = os.fsdecode(events[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0"))
            at += _HEADER.size + length
            if wd == self._top and mask & self._gone:
                raise UnreachableError(f"watch {self._what}: it is gone; was the drive unmounted?")
            if mask & self._flags.IN_IGNORED:
                self._paths.pop(wd, None)
            if mask & self._flags.IN_ISDIR and mask & self._came and wd in self._paths:
                below = f"{self._paths[wd]}/{name}"
                self._add(below, below)
            changed = changed or not name.startswith(TEMP_PREFIX)
        return changed

    @property
    def _gone(self) -> int:
        flags = self._flags
        return int(flags.IN_DELETE_SELF | flags.IN_MOVE_SELF | flags.IN_UNMOUNT | flags.IN_IGNORED)

    @property
    def _came(self) -> int:
        return int(self._flags.IN_CREATE | self._flags.IN_MOVED_TO)

    def _add(self, path: str, by: str) -> int:
        """Watches a folder and all below it. `by`: what to open it by. OSError if it cannot be; -1 if it went away."""
        import ctypes

        if len(self._paths) >= _FOLDERS_MAX:
            raise OSError(errno.ENOSPC, "too many folders to watch")
        wd = int(self._os.inotify_add_watch(self._fd, os.fsencode(by), self._mask))
        if wd < 0:
            code = ctypes.get_errno()
            if code in (errno.ENOENT, errno.ENOTDIR) and self._paths:
                return wd
            raise OSError(code, os.strerror(code))
        self._paths[wd] = path
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(by) as found:
            below = [one.name for one in found if one.is_dir(follow_symlinks=False)]
            for name in below:
                self._add(f"{path}/{name}", f"{path}/{name}")
        return wd
