"""The daemon's Unix socket: where it is, who may speak there, lines with a bound."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from metasync.errors import FormatError, WorkspaceError
from metasync.local.user_folders import run_folder

FILE: Final = "daemon.sock"
SWITCH: Final = "METASYNC_DAEMON"  # `off`: nobody looks for a daemon
OTHER_FOLDER: Final = "Mend its rights, or set XDG_STATE_HOME and XDG_RUNTIME_DIR to folders that you may write."
PATH_BYTES_MAX: Final = 100  # of an address: 108 on Linux, 104 on macOS, with their ends
READ_BYTES: Final = 64 << 10
LOOK_S: Final = 10.0  # between looks of the daemon at whether its socket is still there
SEND_S: Final = 30.0  # for a peer to take what is sent: it is on this machine, and hangs


def socket_path() -> Path | None:
    """Where the daemon of this user listens; None for a user without a home, or with `METASYNC_DAEMON=off`."""
    folder = run_folder()
    if not folder or os.environ.get(SWITCH, "").lower() == "off":
        return None
    return Path(folder) / FILE


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path as the system takes it. One that is too long is named by its open folder, where that is possible."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    if not os.path.isdir("/proc/self/fd"):
        raise WorkspaceError(
            f"the path of the daemon's socket is too long for this system: {path}",
            next_step="Set XDG_RUNTIME_DIR to a folder of yours with a shorter path.",
        )
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def private_folder(folder: Path) -> None:
    """Makes a folder that is the user's alone. `WorkspaceError` where what stands there is another user's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as e:
        raise WorkspaceError(
            f"the daemon's folder {folder} cannot be made: {e.strerror or e}", next_step=OTHER_FOLDER
        ) from e
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise WorkspaceError(f"the daemon's folder {folder} is not yours", next_step="Remove it, or have it removed.")
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def listen(path: Path) -> socket.socket:
    """A listening socket that its owner alone may connect to. What a daemon that was killed left there is replaced.

    The caller holds the lock of the daemon, so nobody else listens there.
    """
    private_folder(path.parent)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(path) as address:
            listener.bind(address)
        path.chmod(0o600)  # until then its folder keeps others away; a umask would hold for all threads
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


def place_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of what stands at a path; None: nothing does."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(path: Path, timeout_s: float) -> socket.socket | None:
    """A connection to the daemon of this user; None where none answers. `WorkspaceError` if somebody else does."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(timeout_s)
        try:
            with _address(path) as address:
                line.connect(address)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError, PermissionError, TimeoutError):
            line.close()
            return None
        except OSError as e:
            line.close()
            if e.errno == errno.EAGAIN:  # its queue is full: it hangs
                return None
            raise
        if peer_of(line) != os.getuid():
            raise WorkspaceError(
                f"another user listens at {path}", next_step="Remove that file, then start the daemon anew."
            )
    except WorkspaceError:
        line.close()
        raise
    return line


def peer_of(line: socket.socket) -> int:
    """The user id of who is at the other end, as the system tells it; -1 if it tells none."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            _, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            return int(uid)
        if sys.platform == "darwin":  # LOCAL_PEERCRED of SOL_LOCAL gives a struct xucred: version, uid, ...
            _, uid = struct.unpack("II", line.getsockopt(0, 1, 76)[:8])
            return int(uid)
    except (OSError, struct.error):
        pass
    return -1


def is_gone(line: socket.socket) -> bool:
    """Whether the other end has closed the line. What it sent stays to be read."""
    try:
        poll = select.poll()  # `select` takes no descriptor above 1,023
        poll.register(line, select.POLLIN)
        return bool(poll.poll(0)) and line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except (OSError, ValueError):
        return True


class Lines:
    """Lines that come over a socket, each of at most `bytes_max` without its end."""

    def __init__(self, line: socket.socket, bytes_max: int) -> None:
        self._line = line
        self._max = bytes_max
        self._pending = bytearray()
        self._looked = 0  # bytes of `_pending` that hold no end of a line

    def next(self, within_s: float | None) -> bytes | None:
        """The next line; None when the other end closed. `TimeoutError`; `FormatError` for a line that is too long."""
        ends = None if within_s is None else time.monotonic() + within_s
        while (at := self._pending.find(b"\n", self._looked)) < 0:
            self._looked = len(self._pending)
            if self._looked > self._max:
                raise FormatError(f"a line of more than {self._max:,} bytes")
            left_s = None if ends is None else ends - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError("no whole line came")
            self._line.settimeout(left_s)
            data = self._line.recv(READ_BYTES)
            if not data:
                return None
            self._pending += data
        found = bytes(self._pending[:at])
        del self._pending[: at + 1]
        self._looked = 0
        if len(found) > self._max:
            raise FormatError(f"a line of more than {self._max:,} bytes")
        return found
