"""One process per workspace: an advisory lock of the operating system on `.metasync/lock`.

The lock dies with its holder. `.metasync/lock.holder` names the holder for people; nothing is decided by it. A process
that waits and presses holds a shared lock on `.metasync/lock.wanted`, so that a long operation can let it go first.

A push that reads and sends for long gives way: it breaks off as a kill could have broken it off, notes what it has read
and stored, and gives the lock back, while packs under way go on. After the others' turn it begins again and finds
nearly all of its work done. A push that proposes does not give way: that is over soon, and must not be left open.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from metasync.errors import WorkspaceError

WAIT_S = 30.0
POLL_S = 0.05  # between looks at a lock that is held
HOLDER_BYTES_MAX = 4096
AFTER_YOU_S = 5.0  # for a process that presses to take a free lock


def private(path: str, flags: int) -> int:
    """An opener for `open`: what it makes is its owner's alone, whatever the umask."""
    return os.open(path, flags, 0o600)


def _lock(path: Path, how: int, flags: int = os.O_CREAT) -> int | None:
    """A descriptor of the file, locked; None where another lock is in the way."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BaseException as e:
        os.close(fd)
        if isinstance(e, BlockingIOError):
            return None
        raise
    return fd


@contextlib.contextmanager
def exclusive(path: Path, wait_s: float) -> Iterator[None]:
    """Holds a file locked against other processes and threads; the file is made if it is missing, and stays.

    `TimeoutError` if others held it for `wait_s`; other `OSError`s if it cannot be locked at all.
    """
    ends = time.monotonic() + wait_s
    while (fd := _lock(path, fcntl.LOCK_EX)) is None:
        if time.monotonic() >= ends:
            raise TimeoutError(f"{path} is locked")
        time.sleep(POLL_S)
    try:
        yield
    finally:
        os.close(fd)


class WorkspaceLock:
    """The lock of the workspace whose `.metasync` is `state_dir`: taken by `acquire`, given back by its block."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._dir = Path(state_dir)
        self._fd: int | None = None
        self._holder = self._dir / "lock.holder"
        self._wanted = self._dir / "lock.wanted"

    def acquire(
        self,
        command: str,
        *,
        wait_s: float = WAIT_S,
        waiting: Callable[[str], None] | None = None,
        presses: bool = True,
        heed: Callable[[], None] = lambda: None,
    ) -> WorkspaceLock:
        """Takes the lock within `wait_s`. A call that must wait calls `waiting(who)` once.

        `command` names this process to others ("metasync push"). `presses`: the holder sees that the lock is wanted; a
        call that does not press lets those that do go first. `heed` is called while it waits, and may raise.
        `WorkspaceError`: the lock is still held, with the holder's name; or `.metasync` is gone or not writable.
        """
        try:
            if not presses:
                self._after_the_others(heed)
            if not self._take():
                if waiting is not None:
                    waiting(self._held_by())
                with contextlib.ExitStack() as until_taken:
                    self._wait(wait_s, until_taken if presses else None, heed)
        except OSError as e:
            raise WorkspaceError(
                f"The lock of the workspace {self._dir.parent} can't be taken: {e.strerror or e}.",
                next_step="Check that .metasync is there and writable.",
            ) from e
        self._say_holder(command)
        return self

    def wanted(self) -> bool:
        """Whether another process waits for the lock, and presses."""
        try:
            fd = _lock(self._wanted, fcntl.LOCK_EX, 0)
        except OSError:  # nobody ever waited here, or the file system has no such locks
            return False
        if fd is not None:
            os.close(fd)
        return fd is None

    def _after_the_others(self, heed: Callable[[], None]) -> None:
        """Waits until the processes that press have the lock: they look for it every `POLL_S`."""
        ends = time.monotonic() + AFTER_YOU_S
        while self.wanted() and time.monotonic() < ends:
            heed()
            time.sleep(POLL_S)

    def _wait(self, wait_s: float, pressing: contextlib.ExitStack | None, heed: Callable[[], None]) -> None:
        ends = time.monotonic() + wait_s
        seen = pressing is None
        while not self._take():
            if not seen and pressing is not None:
                seen = self._press(pressing)
            if time.monotonic() >= ends:
                raise WorkspaceError(
                    f"The workspace {self._dir.parent} is {self._held_by()}; waited {wait_s:.0f} s.",
                    next_step="Run again when that has ended, or end it: it holds the lock only while it runs.",
                )
            heed()
            time.sleep(POLL_S)

    def _press(self, until_taken: contextlib.ExitStack) -> bool:
        """Shows the holder that the lock is wanted; False if the holder looks at this moment: try again."""
        fd = _lock(self._wanted, fcntl.LOCK_SH)
        if fd is not None:
            until_taken.callback(os.close, fd)
        return fd is not None

    def _take(self) -> bool:
        """Asks for the lock, once. The file stays after release: it may be the next holder's by then."""
        self._fd = _lock(self._dir / "lock", fcntl.LOCK_EX)
        return self.held

    def _give_back(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def release(self) -> None:
        """Gives the lock back. May be repeated."""
        if self._fd is not None:
            # Before the lock goes: after that the file is the next holder's.
            self._holder.unlink(missing_ok=True)
            self._give_back()

    @property
    def held(self) -> bool:
        return self._fd is not None

    def __enter__(self) -> WorkspaceLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _say_holder(self, command: str) -> None:
        text = json.dumps({"pid": os.getpid(), "command": command, "since": time.time()})
        beside = self._dir / "lock.holder.new"
        try:
            with open(beside, "w", encoding="utf-8", opener=private) as file:
                file.write(text)
            beside.replace(self._holder)  # a reader sees all of it or the one before
        except OSError as e:
            self._give_back()
            raise WorkspaceError(
                f"Can't write {self._holder}: {e.strerror}.", next_step="Free some space or make .metasync writable."
            ) from e

    def _held_by(self) -> str:
        """The holder of the lock, as a phrase. The note of a process that is gone names nobody."""
        try:
            with self._holder.open("rb") as f:
                note = json.loads(f.read(HOLDER_BYTES_MAX))
            pid, command, since = int(note["pid"]), str(note["command"]), float(note["since"])
            at = time.localtime(since)
            os.kill(pid, 0)
        except PermissionError:
            pass  # another user's process: alive
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return "held by another process"
        today = at[:3] == time.localtime()[:3]
        return f"held by process {pid} ({command}) since {time.strftime('%H:%M' if today else '%Y-%m-%d %H:%M', at)}"


LOOK_EVERY_S: Final = 0.1  # between looks at whether others wait
TURN_S: Final = 0.4  # a push has so long for itself between two others, so that it gets on however many there are
DOUBLINGS_MAX: Final = 12  # of that, after turns that came to nothing: half an hour, in which anything gets on


class GiveWay(Exception):  # noqa: N818  a signal, not an error
    """Others wait. `save` notes what was still under way then; it is called with the lock held again.

    `are_served`: they have had their turn, and something is not as it was before.
    """

    def __init__(self) -> None:
        super().__init__("another operation waits for this folder")
        self.save: Callable[[], None] = lambda: None
        self.are_served = False


class PutOff(Exception):  # noqa: N818  a signal, not an error
    """An operation that was let in has to wait until what let it in has changed the folder. It has done nothing."""

    def __init__(self) -> None:
        super().__init__("the folder is being changed")


class Turns:
    """Tells a push or pull when to give way, for all its turns. For one thread.

    `chunks`: file object -> its blobs, of files that an earlier turn has read. `left`: what a merge that gave way
    leaves to the next turn, and `found` what it has found before; it alone knows what that is. `before_aside` is called
    before others are let go first; each turn sets its own. `answer` answers those for whom nothing need be changed, in
    the middle of a change of the folder; None: there is nobody.
    """

    def __init__(self) -> None:
        self.chunks: dict[bytes, tuple[bytes, ...]] = {}
        self.left: object = None
        self.found: object = None
        self._wanted: Callable[[], bool] = lambda: False
        self._aside: Callable[[GiveWay], bool] = lambda _: False
        self.answer: Callable[[], None] | None = None
        self._clock: Callable[[], float] = lambda: 0.0
        self._next: float | None = None
        self.before_aside: Callable[[], None] = lambda: None
        self._in_vain = 0  # turns one after the other that gave way before they had got on
        self._has_got_on = False  # in this turn

    def begin(
        self,
        wanted: Callable[[], bool],
        clock: Callable[[], float],
        aside: Callable[[GiveWay], bool] = lambda _: False,
        answer: Callable[[], None] | None = None,
    ) -> Turns:
        """Begins the next turn. `wanted`: whether others wait now. `aside`: see `rest`; `answer`: see above."""
        self._wanted, self._clock, self._next = wanted, clock, None
        self._aside, self._has_got_on, self.before_aside, self.answer = aside, False, lambda: None, answer
        return self

    def got_on(self) -> None:
        """Tells that the next turn will not do all of this one again.

        A turn that gives way before that came to nothing, and the next one has twice the time for itself: so it ends,
        however many others come.
        """
        self._has_got_on, self._in_vain = True, 0

    def renew(self) -> None:
        """Gives the turn its time for itself once more."""
        self._next = None

    def look(self) -> None:
        """Raises `GiveWay` when others wait. Called often, where breaking off loses nothing."""
        now = self._clock()
        if self._next is None:
            self._next = now + TURN_S * 2 ** min(self._in_vain, DOUBLINGS_MAX)
        elif now >= self._next:
            self._next = now + LOOK_EVERY_S
            if self._wanted():
                self._in_vain += not self._has_got_on
                raise GiveWay

    def rest(self) -> None:
        """Lets others go first, where they wait, and goes on at this very point. Not for inside a transaction, or while
        anything is under way that needs the folder's lock.

        `aside` lets them go. Where it says that they changed something: `GiveWay`, for what was planned may be untrue.
        """
        try:
            self.look()
        except GiveWay as way:
            if not self.step_aside(way):
                raise

    def step_aside(self, way: GiveWay, *, got_on: bool = False) -> bool:
        """Lets those go first for whom it gave way, and goes on here. False: they changed something."""
        if got_on:
            self.got_on()
        if way.are_served:
            return False
        self.before_aside()
        if not self._aside(way):
            return False
        self._in_vain -= not self._has_got_on
        self._next = self._clock() + LOOK_EVERY_S
        return True
