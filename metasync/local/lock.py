"""One process per workspace: an advisory lock of the operating system on `.metasync/lock`.

The lock dies with its holder, whatever way that ends. Who holds it stands beside it, in `.metasync/lock.holder`, for
people only: nothing is decided by what that file says. Who waits for it holds a shared lock on `.metasync/lock.wanted`,
so that an operation that takes long, and can go on later, may let it go first.

Whose turn it is in a folder: a push that reads and sends for long lets other operations go before it.

It breaks off where a kill could have broken it off, notes what it has read and stored, and gives the workspace's lock
back; packs that are under way go on meanwhile. When the others have had their turn it begins again, and finds nearly
all of its work done. It does not do so once it proposes: that is over soon, and must not be left open.
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
POLL_S = 0.05  # between looks at a lock that is held: short beside any command, cheap beside a wait of seconds
HOLDER_BYTES_MAX = 4096
AFTER_YOU_S = 5.0  # for those who press to take a lock that is free


@contextlib.contextmanager
def exclusive(path: Path, wait_s: float) -> Iterator[None]:
    """Holds a file locked against other processes and threads; it is made if it is not there, and stays.

    `TimeoutError` when it was held by others for `wait_s`; other `OSError`s when it cannot be had at all.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        ends = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as e:
                if time.monotonic() >= ends:
                    raise TimeoutError(f"{path} is locked") from e
            time.sleep(POLL_S)
        yield
    finally:
        os.close(fd)


class WorkspaceLock:
    """The lock of the workspace whose `.metasync` is `state_dir`. Not held until `acquire`; a context manager after."""

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
        """Takes the lock, waiting up to `wait_s`; `waiting(who)` is called once if it must wait.

        `command` tells the others what this process does ("metasync push"). `presses`: the holder is to see that it is
        wanted; without it, those who press go first. `heed` is called while it waits, and may raise. `WorkspaceError`:
        still held, naming by whom; or `.metasync` is gone or not writable.
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
        """Whether somebody waits for the lock, and presses."""
        try:
            fd = os.open(self._wanted, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # a file system that has no such locks
        finally:
            os.close(fd)
        return False

    def _after_the_others(self, heed: Callable[[], None]) -> None:
        """Waits until those who press have the lock: they look for it every `POLL_S`."""
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
                    next_step="Run again when that has ended, or end that process: it holds the lock only "
                    "while it runs.",
                )
            heed()
            time.sleep(POLL_S)

    def _press(self, until_taken: contextlib.ExitStack) -> bool:
        """Lets the holder see that it is wanted; False: it is just looking, so try again."""
        fd = os.open(self._wanted, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        until_taken.callback(os.close, fd)
        return True

    def _take(self) -> bool:
        """Asks for the lock, once. The file stays when the lock goes: it may be the next one's by then."""
        fd = os.open(self._dir / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def _give_back(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def release(self) -> None:
        """Gives the lock back; may be repeated."""
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
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._holder)  # a reader sees all of it or the one before
        except OSError as e:
            self._give_back()
            raise WorkspaceError(
                f"Can't write {self._holder}: {e.strerror}.", next_step="Free some space or make .metasync writable."
            ) from e

    def _held_by(self) -> str:
        """Who holds the lock, as a phrase. A note left by a process that is gone names nobody."""
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


LOOK_EVERY_S: Final = 0.25  # how long others wait at most to be seen, while something is read or awaited
TURN_S: Final = 1.0  # what a push has for itself between two of them, so that it gets on however many there are


class GiveWay(Exception):  # noqa: N818  a signal, not an error
    """Others wait. `save`, to be called with the lock held again, notes what was still under way when they came."""

    def __init__(self) -> None:
        super().__init__("another operation waits for this folder")
        self.save: Callable[[], None] = lambda: None


class Turns:
    """Tells a push when it is to give way, for all its turns. From one thread.

    `chunks`: of files that were read in an earlier turn, by their file objects, the blobs; so they need not be again.
    """

    def __init__(self) -> None:
        self.chunks: dict[bytes, tuple[bytes, ...]] = {}
        self._wanted: Callable[[], bool] = lambda: False
        self._clock: Callable[[], float] = lambda: 0.0
        self._next: float | None = None

    def begin(self, wanted: Callable[[], bool], clock: Callable[[], float]) -> Turns:
        """Begins the next turn. `wanted`: whether others wait now."""
        self._wanted, self._clock, self._next = wanted, clock, None
        return self

    def look(self) -> None:
        """`GiveWay` when others wait. To be called often, where breaking off loses nothing."""
        now = self._clock()
        if self._next is None:
            self._next = now + TURN_S
        elif now >= self._next:
            self._next = now + LOOK_EVERY_S
            if self._wanted():
                raise GiveWay
