"""Watches a folder: the operating system's events, by watchdog, say which directories are dirty.

Events are a hint and never the truth: a walk finds out what changed. So nothing may be lost between two walks, and
watchdog's own emitter loses two things: the notice that the kernel's queue ran over, and what happens in a new
directory before that is watched. On Linux the events are therefore read here, through watchdog's binding of inotify. A
new directory is watched first, then listed, and then named with all that is in it. After an overflow everything is.
Elsewhere watchdog's observer for the system is used.

`.metasync` is not watched, nor are ignored directories, nor what is inside a workspace of its own. A program that reads
its own writes makes a file in `.metasync/watch` (a cookie, as Watchman has it): events come in order, so whoever has
heard of the cookie has heard of all that came before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from metasync.session.folder import STATE_DIR
from metasync.worktree.disk import Disk
from metasync.worktree.names import STATE_NAME
from metasync.worktree.tree import holds_workspace

BUFFER_BYTES: Final = 256 << 10
HEADER: Final = struct.Struct("iIII")  # wd, mask, cookie, length of the name
LIMIT_FILE: Final = "/proc/sys/fs/inotify/max_user_watches"
COOKIES: Final = "watch"
STOP_S: Final = 10.0


class Short(NamedTuple):
    """Not all directories can be watched. `needed`: watches for this folder; `limit`: of this user, 0: unknown."""

    needed: int
    limit: int


class Hears(Protocol):
    """Hears of events, from the watcher's thread. Paths are relative to the folder, as bytes."""

    def name(self, directory: bytes, name: bytes, is_dir: bool | None) -> None:
        """A name in a directory came, went or changed. `is_dir`: whether it is one, or was; None: it may be either."""

    def tree(self, directory: bytes) -> None:
        """A directory came, or all that is in it may have changed."""

    def everything(self) -> None:
        """Anything may have changed: it was not watched until now, or events were lost."""

    def short_of(self, short: Short | None) -> None:
        """Not all directories can be watched; None: all are."""

    def lost(self) -> None:
        """The folder, or its `.metasync`, is not where it was any more, or its disk is gone."""


class Watching(Protocol):
    """What watches one folder."""

    def start(self) -> None: ...
    def renew(self) -> None:
        """Watches anew what is to be watched: rules or limits have changed."""

    def caught_up(self, timeout_s: float) -> bool:
        """Waits until all events before this call were heard. False: not within that time."""
        ...

    def stop(self) -> None: ...


def watch(directory: Path, hears: Hears, leaves_out: Callable[[bytes], bool]) -> Watching:
    """What watches a folder on this system. `leaves_out`: whether a directory is ignored. OSError: it cannot be."""
    if sys.platform == "linux":
        return InotifyWatch(directory, hears, leaves_out)
    return ObserverWatch(directory, hears)


class _Dir:
    """A watched directory."""

    __slots__ = ("above", "below", "name", "wd")

    def __init__(self, name: bytes, above: _Dir | None) -> None:
        self.name, self.above = name, above
        self.below: dict[bytes, _Dir] = {}
        self.wd = -1

    @property
    def path(self) -> bytes:
        names: list[bytes] = []
        at: _Dir | None = self
        while at is not None and at.above is not None:
            names.append(at.name)
            at = at.above
        return b"/".join(reversed(names))

    def all(self) -> Iterator[_Dir]:
        todo = [self]
        while todo:
            at = todo.pop()
            yield at
            todo += at.below.values()


class InotifyWatch:
    """Reads inotify. Only its own thread changes what is watched."""

    def __init__(self, directory: Path, hears: Hears, leaves_out: Callable[[bytes], bool]) -> None:
        from watchdog.observers import inotify_c

        self._os: Any = inotify_c
        flags = inotify_c.InotifyConstants
        self._flags: Any = flags
        self._mask = (
            flags.IN_MODIFY | flags.IN_ATTRIB | flags.IN_CREATE | flags.IN_DELETE | flags.IN_MOVED_FROM
            | flags.IN_MOVED_TO | flags.IN_DELETE_SELF | flags.IN_MOVE_SELF
            | flags.IN_ONLYDIR | flags.IN_DONT_FOLLOW | flags.IN_EXCL_UNLINK
        )  # fmt: skip
        self._came = flags.IN_CREATE | flags.IN_MOVED_TO
        self._went = flags.IN_DELETE | flags.IN_MOVED_FROM
        self._lost = flags.IN_DELETE_SELF | flags.IN_MOVE_SELF | flags.IN_UNMOUNT | flags.IN_IGNORED
        self._top = os.fsencode(directory)
        self._hears = hears
        self._leaves_out = leaves_out
        self._root = _Dir(b"", None)
        self._by_wd: dict[int, _Dir] = {}
        self._is_short = self._told_short = False
        self._stopped = False
        self._renew = True
        self._cookies = Path(directory) / STATE_DIR / COOKIES
        self._cookie_wd = -1
        self._heard_cookies: set[bytes] = set()
        self._cookie = threading.Condition()
        self._next_cookie = 0
        self._fd = inotify_c.inotify_init()
        if self._fd < 0:
            raise OSError(errno.EMFILE, "this user watches too many folders (fs.inotify.max_user_instances)")
        os.set_inheritable(self._fd, False)
        os.set_blocking(self._fd, False)
        self._wake_r, self._wake_w = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"watch {directory.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def renew(self) -> None:
        self._renew = True
        self._wake()

    def stop(self) -> None:
        self._stopped = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        if not self._thread.is_alive():
            for fd in (self._fd, self._wake_r, self._wake_w):
                with contextlib.suppress(OSError):
                    os.close(fd)

    def caught_up(self, timeout_s: float) -> bool:
        with self._cookie:
            self._next_cookie += 1
            name = b"%d" % self._next_cookie
        at = self._cookies / os.fsdecode(name)
        try:
            at.touch()
            at.unlink()
        except OSError:
            return False
        with self._cookie:
            heard = self._cookie.wait_for(lambda: name in self._heard_cookies or self._stopped, timeout_s)
            self._heard_cookies.discard(name)
        return heard and not self._stopped

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"!")

    # its own thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake_r, select.POLLIN)
        while not self._stopped:
            if self._renew:
                self._renew = False
                self._cover_all()
            for fd, _ in poll.poll():
                if fd == self._wake_r:
                    os.read(self._wake_r, 4096)
                elif not self._stopped and not self._renew:  # else they wait: what is watched comes first
                    with contextlib.suppress(BlockingIOError):
                        self.take(os.read(self._fd, BUFFER_BYTES))

    def take(self, events: bytes) -> None:
        """Takes what was read of the kernel's events."""
        at = 0
        while at + HEADER.size <= len(events):
            wd, mask, _, length = HEADER.unpack_from(events, at)
            name = events[at + HEADER.size : at + HEADER.size + length].rstrip(b"\0")
            at += HEADER.size + length
            self._take_one(wd, mask, name)

    def _take_one(self, wd: int, mask: int, name: bytes) -> None:
        flags = self._flags
        if mask & flags.IN_Q_OVERFLOW:
            self._cover_all()
            return
        if wd == self._cookie_wd:
            if mask & flags.IN_CREATE:
                self._hear_cookie(name)
            return
        here = self._by_wd.get(wd)
        if here is None:
            return
        if mask & flags.IN_IGNORED:
            self._by_wd.pop(wd)
            here.wd = -1
        if here is self._root and mask & (
            flags.IN_DELETE_SELF | flags.IN_MOVE_SELF | flags.IN_UNMOUNT | flags.IN_IGNORED
        ):
            self._hears.lost()
        elif not name:  # of the directory itself: the one above tells it by its name
            if here is self._root and mask & flags.IN_ATTRIB:
                self._hears.name(b"", b"", True)
        elif here is self._root and name == STATE_NAME:
            if mask & self._went:
                self._hears.lost()
        else:
            if mask & flags.IN_ISDIR:
                self._take_dir(here, name, mask)
            self._hears.name(here.path, name, bool(mask & flags.IN_ISDIR))

    def _take_dir(self, above: _Dir, name: bytes, mask: int) -> None:
        known = above.below.get(name)
        if name == STATE_NAME:  # that of a workspace inside: from now on it is one of its own, or is none any more
            self._cover_from([above])
            self._hears.tree(above.path)
            self._tell_short()
        elif mask & self._went:
            if known is not None:
                self._drop(known)
        elif mask & self._came or known is None or known.wd < 0:  # its rights may have changed: it is looked into again
            if known is not None:
                self._drop(known)
            path = above.path + b"/" + name if above.above is not None else name
            if not self._leaves_out(path) and not self._is_another(above):
                self._cover(above, name)
                self._hears.tree(path)
                self._tell_short()

    def _is_another(self, node: _Dir) -> bool:
        """Whether a directory is a workspace of its own."""
        if node.above is None:
            return False
        disk = Disk()
        with contextlib.suppress(OSError):
            fd = disk.open_top(os.path.join(self._top, node.path))
            try:
                return holds_workspace(disk, fd)
            finally:
                disk.close(fd)
        return False

    def _hear_cookie(self, name: bytes) -> None:
        with self._cookie:
            self._heard_cookies.add(name)
            if len(self._heard_cookies) > 100:  # of waits that were given up
                self._heard_cookies.pop()
            self._cookie.notify_all()

    # what is watched

    def _cover_all(self) -> None:
        """Watches all directories, those that are watched already too, and names everything."""
        self._is_short = False
        with contextlib.suppress(OSError):
            self._cookies.mkdir(exist_ok=True)
        self._cookie_wd = self._add(os.fsencode(self._cookies))
        if not os.path.isdir(self._top):
            self._hears.lost()
            return
        self._cover_from([self._root])
        self._hears.everything()
        self._tell_short()

    def _cover(self, above: _Dir, name: bytes) -> None:
        node = above.below[name] = _Dir(name, above)
        self._cover_from([node])

    def _cover_from(self, todo: list[_Dir]) -> None:
        while todo and not self._stopped:
            node = todo.pop()
            path = node.path
            full = self._top + b"/" + path if path else self._top
            self._set_wd(node, self._add(full))
            try:
                names = _directories(full)
            except OSError:
                names = []
            if STATE_NAME in names and self._is_another(node):
                names = []
            for gone in node.below.keys() - set(names):
                self._drop(node.below[gone])
            for name in names:
                child = path + b"/" + name if path else name
                if name == STATE_NAME or self._leaves_out(child):
                    if name in node.below:
                        self._drop(node.below[name])
                    continue
                todo.append(node.below.setdefault(name, _Dir(name, node)))

    def _add(self, full: bytes) -> int:
        """Watches a directory; -1: it cannot be."""
        if self._is_short:
            return -1
        wd = int(self._os.inotify_add_watch(self._fd, full, self._mask))
        if wd < 0:
            import ctypes

            self._is_short = ctypes.get_errno() == errno.ENOSPC
        return wd

    def _set_wd(self, node: _Dir, wd: int) -> None:
        if node.wd >= 0 and node.wd != wd and self._by_wd.get(node.wd) is node:
            del self._by_wd[node.wd]
        if wd >= 0:
            before = self._by_wd.get(wd)
            if before is not None and before is not node:
                before.wd = -1  # it was moved: the watch came along
            self._by_wd[wd] = node
        node.wd = wd

    def _drop(self, node: _Dir) -> None:
        """Watches a directory no more, nor what is in it."""
        if node.above is not None:
            node.above.below.pop(node.name, None)
        for one in node.all():
            if one.wd >= 0 and self._by_wd.get(one.wd) is one:
                del self._by_wd[one.wd]
                self._os.inotify_rm_watch(self._fd, one.wd)
            one.wd = -1

    def _tell_short(self) -> None:
        if self._is_short != self._told_short:
            self._told_short = self._is_short
            needed = sum(1 for _ in self._root.all())
            self._hears.short_of(Short(needed, _limit()) if self._is_short else None)


def _directories(path: bytes) -> list[bytes]:
    with os.scandir(path) as found:
        return sorted(one.name for one in found if one.is_dir(follow_symlinks=False))


def _limit() -> int:
    try:
        return int(Path(LIMIT_FILE).read_text())
    except (OSError, ValueError):
        return 0


class ObserverWatch:
    """Has watchdog's observer for this system tell of events. It cannot say whether it has caught up."""

    def __init__(self, directory: Path, hears: Hears) -> None:
        from watchdog.observers import Observer

        handler: Any = self  # it has the one method that is called
        self._top = os.fsencode(os.path.realpath(directory))
        self._hears = hears
        self._observer: Any = Observer()
        self._observer.schedule(handler, os.fsdecode(self._top), recursive=True)

    def start(self) -> None:
        self._observer.start()
        self._hears.everything()

    def renew(self) -> None:
        self._hears.everything()

    def caught_up(self, timeout_s: float) -> bool:
        return False

    def stop(self) -> None:
        self._observer.stop()
        self._observer.join(STOP_S)

    def dispatch(self, event: Any) -> None:
        """Takes an event of watchdog's."""
        if event.event_type in ("opened", "closed", "closed_no_write"):
            return
        for full in (event.src_path, getattr(event, "dest_path", "")):
            path = os.path.relpath(os.fsencode(full), self._top) if full else b""
            if not path or path == b"." or path.startswith((b"..", STATE_NAME + b"/")) or path == STATE_NAME:
                continue
            directory, name = os.path.split(path)
            if event.is_directory and event.event_type in ("created", "moved"):
                self._hears.tree(path)
            self._hears.name(directory, name, None)  # of what is gone, or was replaced, not all systems tell
