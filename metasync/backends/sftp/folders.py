"""What the SFTP backend asks of a server in more than one request, beside objects: its root, a name, a folder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metasync.backends.names import TEMP_PREFIX
from metasync.backends.sftp import packets as sftp
from metasync.backends.sftp.packets import FSYNC, STATVFS, ProtocolError, Reply, StatusError
from metasync.errors import BackendError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from metasync.backends.sftp.session import Session

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PATH_BYTES_MAX = 4096
_DEPTH_MAX = 64  # of folders that `sweep_folder` goes down


def find_root(session: Session, path: bytes, host: str, *, create: bool) -> tuple[bytes, int | None]:
    """The folder's real path, and what its file system is called."""
    path = path.rstrip(b"/")
    shown = f"{'' if path.startswith(b'/') else '~/'}{os.fsdecode(path)} at {host}"
    made: list[Reply] = []
    if create:
        parts = path.split(b"/")
        steps = (b"/".join(parts[:n]) for n in range(1, len(parts) + 1))
        made = session.ask(*(sftp.mkdir(step) for step in steps if step))  # those that are there say no
    measure = [sftp.statvfs(path)] if STATVFS in session.powers else []
    try:
        found, real, *room = session.ask(sftp.stat_of(path), sftp.realpath(path), *measure)
        if not sftp.attributes_of(found).is_folder:
            raise UnreachableError(f"{shown} is not a folder", next_step="Name a folder in the URL.")
        root = sftp.path_of(real)
        if len(root) > _PATH_BYTES_MAX or _CONTROL.search(os.fsdecode(root)):  # people will read it
            raise ProtocolError("no path where one was due")
        fsid = sftp.room_of(room[0]).fsid if room else None
    except StatusError as error:
        if made and error.code in {*sftp.ABSENT, sftp.FAILURE}:
            raise _not_made(why_not_made(made), shown) from error
        raise root_error(error, shown) from error
    return root.rstrip(b"/") or b"/", fsid


def root_error(error: StatusError, shown: str) -> BackendError:
    """What it means that the root's folder cannot be looked at."""
    if error.code == sftp.PERMISSION_DENIED:
        return RefusedError(f"cannot reach {shown}: {error}", next_step="Check who owns the folders there.")
    if error.code in {*sftp.ABSENT, sftp.FAILURE}:
        return UnreachableError(
            f"the folder {shown} is not there",
            next_step="Is the drive mounted there, and the path right? Only init makes a folder that is missing.",
        )
    return BackendError(f"cannot reach {shown}: {error}")


def why_not_made(made: Sequence[Reply]) -> StatusError:
    """The reason in the answers to `mkdir` of nested folders, the last of which is not there.

    "Failure" says that a folder is there already, or that there is no space.
    """
    codes = map(sftp.status_of, made)
    told = (code for code in codes if code not in {sftp.OK, sftp.FAILURE, sftp.FILE_ALREADY_EXISTS})
    return StatusError(next(told, sftp.FAILURE))


def _not_made(error: StatusError, shown: str) -> BackendError:
    if error.code in sftp.ABSENT:
        return RefusedError(
            f"cannot make {shown}: on the way to it there is a file, or a link that leads nowhere",
            next_step="Name another folder in the URL.",
        )
    return RefusedError(
        f"cannot make {shown}: {error}",
        next_step="Make it there as whoever may, or name a folder in which this login may write.",
    )


def flushing(session: Session, handle: bytes) -> tuple[sftp.Request, ...]:
    """The request that brings a file to the disk, where the server has it."""
    return (sftp.fsync(handle),) if FSYNC in session.powers else ()


def is_taken(session: Session, target: bytes) -> bool:
    """Whether a name is taken. The file is flushed then: its maker may not have done so, and the caller acts on it."""
    seen, opened = session.ask(sftp.lstat(target), sftp.open_to_read(target))
    with contextlib.suppress(StatusError):  # what nobody may read is not acted on either
        handle = sftp.handle_of(opened)
        session.ask(*flushing(session, handle), sftp.close(handle))
    try:
        sftp.attributes_of(seen)
    except StatusError:
        return False
    return True


def remove_temp(session: Session, temp: bytes) -> None:
    """Removes what was written in vain, without waiting for it."""
    session.send(sftp.remove(temp), unwanted=True)
    session.flush()  # there may be no further call


def sweep_folder(session: Session, folder: bytes, depth_left: int = _DEPTH_MAX) -> None:
    """Removes temporary files and empty folders, and the folder itself where it is empty then."""
    entries = list(session.names(folder))
    for name, found in entries:  # links are neither
        place = folder + b"/" + name
        if found.is_folder and depth_left:
            with contextlib.suppress(StatusError):
                sweep_folder(session, place, depth_left - 1)
        elif found.is_file and name.startswith(TEMP_PREFIX.encode()):
            sftp.done(session.ask_one(sftp.remove(place)))
    session.ask_one(sftp.rmdir(folder))  # where it is not empty, that is all right
