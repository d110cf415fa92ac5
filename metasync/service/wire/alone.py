"""Sees to it that one daemon runs for each user of a machine: by a lock beside its socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from metasync.errors import WorkspaceError
from metasync.service.wire import sockets

LOCK: Final = "daemon.lock"
PID_BYTES_MAX: Final = 20


class Alone:
    """Holds the daemon's lock from its making until `close`. For one thread at a time.

    `WorkspaceError` if another daemon holds it, or its folder cannot be had.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._take()

    def is_so(self) -> bool:
        """Whether it is still the only one. A lock that somebody removed is made again.

        False: another daemon has taken the new one meanwhile. `WorkspaceError`: there is no place for a lock now.
        """
        assert self._fd is not None
        if sockets.place_of(self._folder / LOCK) == _place(self._fd):
            return True
        before = self._fd
        try:
            self._take()
        except RunsAlreadyError:
            return False
        os.close(before)
        return True

    def close(self) -> None:
        """May be repeated. The file stays: it may be the next one's."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> None:
        sockets.private_folder(self._folder)
        try:
            fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise WorkspaceError(
                f"the daemon's lock in {self._folder} cannot be made: {e.strerror or e}", next_step=sockets.OTHER_FOLDER
            ) from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise RunsAlreadyError(holder(self._folder)) from None
        with contextlib.suppress(OSError):  # a full disk: it is nameless then
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d" % os.getpid(), 0)
        self._fd = fd


class RunsAlreadyError(WorkspaceError):
    """Another daemon of this user runs."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(
            f"a daemon of yours runs already{_named(pid)}",
            next_step="Look: metasync daemon status. To end it: metasync daemon stop.",
        )


def holder(folder: Path) -> int | None:
    """The process that holds the lock there, as it noted itself: 0 where it did not. None: nobody holds it."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        noted = os.pread(fd, PID_BYTES_MAX, 0)
        return int(noted) if noted.isdigit() else 0
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(fd)


def check_reachable(path: Path) -> None:
    """For who found nobody at the socket. `WorkspaceError` if a daemon runs all the same, with how to end it."""
    if (pid := holder(path.parent)) is not None:
        raise WorkspaceError(
            f"a daemon of yours runs{_named(pid)}, but does not answer at {path}",
            next_step=f"It makes a removed socket anew within {sockets.LOOK_S:.0f} s: run again. {to_end(pid)}",
        )


def to_end(pid: int | None) -> str:
    """How a daemon is ended that does not answer."""
    return f"To end it: kill {pid}; if that does not help: kill -9 {pid}." if pid else "To end it: end its process."


def _named(pid: int | None) -> str:
    return f" (process {pid})" if pid else ""


def _place(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
