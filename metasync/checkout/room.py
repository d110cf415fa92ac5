"""Which of the files that come have room on the folder's disk. The others wait, unplaced, for a checkout with room.

Room is judged before anything is staged, and `margin` stays free. The smallest files come first, so that as many as can
be are here. Before one of them waits, the chunks that are kept for deltas go (`worktree.bases`). What holds bytes of
the user's that are nowhere else (`needed`) comes before all of these: without room for it there is no checkout. A
restore and a clone need all that they bring, but for single files that are too large.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from metasync.checkout.plan import Applied, Change, Plan
from metasync.errors import WorkspaceError
from metasync.local.state import State
from metasync.local.state_keys import NO_INODES, NO_ROOM
from metasync.runtime.sizes import DISK_MARGIN_BYTES, SMALL_FILE_BYTES
from metasync.worktree.bases import make_room
from metasync.worktree.disk import Disk
from metasync.worktree.tree import WorkTree

LARGE_FILE_BYTES = 1 << 30  # where all is needed, a smaller file that has no room means that the disk is full
MARGIN_SHARE = 16  # one part in so many of what is free stays free, where that is less than `DISK_MARGIN_BYTES`
RESERVE_BYTES = 1 << 20  # given back on a disk that is full all the same: the local state has to be written
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def margin(free: int) -> int:
    """How many of these free bytes are left alone."""
    return min(DISK_MARGIN_BYTES, free // MARGIN_SHARE)


def is_too_large(size: int, free: int) -> bool:
    """Whether a file is left unplaced on a disk with so many bytes left: it has no room there, even alone."""
    return size > free and size >= LARGE_FILE_BYTES


def no_room(size: int, *, is_out: bool = False) -> str:
    """Why a file of so many bytes is unplaced. `is_out`: its disk `lacks_inodes`."""
    return f"{NO_ROOM} for its {size:,} bytes" + (f": the disk has {NO_INODES}" if is_out else "")


def lacks_inodes(disk: Disk, fd: int) -> bool:
    """Whether a file system that is full is so for want of inodes: it has bytes left, and no place for another file."""
    with suppress(OSError):
        # Where inodes are made of free space (XFS), both run out at once: then it is space that is to be freed.
        return not disk.has_inodes(fd) and disk.free_bytes(fd) >= RESERVE_BYTES
    return False


def size_waiting(reason: str) -> int | None:
    """How many bytes a file has that is unplaced for this reason; None where it does not wait for room."""
    number = reason.removeprefix(NO_ROOM).removeprefix(" for its ").partition(" bytes")[0].replace(",", "")
    if not reason.startswith(NO_ROOM):
        return None
    return int(number) if number.isascii() and number.isdecimal() else 0


def free_bytes(tree: WorkTree, db: State, wanted: int = 0) -> int:
    """What the folder's disk has free, after the chunks that are kept for deltas gave what `wanted` lacks."""
    free = tree.disk.free_bytes(tree.state_dir())
    if free < wanted and make_room(tree, db, wanted - free):
        with suppress(OSError):
            tree.disk.syncfs(tree.state_dir())  # some file systems free it then
        free = tree.disk.free_bytes(tree.state_dir())
    return free


def with_room(tree: WorkTree, db: State, write: Callable[[bool], None]) -> None:
    """Writes: `write(False)`; and `write(True)` where the disk is full, whatever it said, and the chunks that are kept
    for deltas gave way."""
    try:
        write(False)
    except OSError as e:
        if e.errno not in FULL or not make_room(tree, db):
            raise
        write(True)


def check_room(tree: WorkTree, db: State, needed: int) -> None:
    """Raises `WorkspaceError` if the folder's disk has less room for new files."""
    free = free_bytes(tree, db, needed) if needed else 0
    if needed > free:
        raise too_little(tree, needed, free)


def too_little(tree: WorkTree, needed: int, free: int) -> WorkspaceError:
    """The error for files that have no room and cannot wait."""
    where = os.fsdecode(tree.root)
    return _of_full_disk(f"The new files need {needed:,} bytes in {where}, where {free:,} are free.")


def full(tree: WorkTree, needed: int) -> WorkspaceError:
    """The error for files that a disk did not take, whatever it said before."""
    if lacks_inodes(tree.disk, tree.state_dir()):
        return _of_full_disk(f"The disk of {os.fsdecode(tree.root)} has {NO_INODES}.", "Delete some files there")
    return _of_full_disk(f"The disk of {os.fsdecode(tree.root)} is full: the new files need {needed:,} bytes in all.")


def _of_full_disk(message: str, step: str = "Free some space") -> WorkspaceError:
    error = WorkspaceError(message, next_step=f"{step} and run again: nothing was changed.")
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # by which a full disk is told from other faults
    return error


def without_room(
    tree: WorkTree,
    db: State,
    staged: Sequence[tuple[int, Change]],
    needed: Collection[bytes] | None,
    staged_before: Callable[[list[Change]], int],
) -> dict[int, str]:
    """The changes that wait for room, by number, with the reason.

    `needed`: the paths that may not wait; None: none may, but for a file that is too large. `staged_before`: the bytes
    on the disk that are there already of these changes. `WorkspaceError`: there is no room for what may not wait.
    """
    costs = {i: new.size + SMALL_FILE_BYTES for i, (_, new, _) in staged if new is not None}
    wanted = sum(costs.values())
    free = free_bytes(tree, db, wanted + DISK_MARGIN_BYTES) if costs else 0
    room = free if needed is None else free - margin(free)
    if wanted <= room:
        return {}
    may_wait: list[tuple[int, int]] = []
    must = 0
    for i, change in staged:
        cost = costs[i] - staged_before([change])
        if (is_too_large(costs[i], free) and cost > free) if needed is None else change.path not in needed:
            may_wait.append((cost, i))
        else:
            must += cost
    room -= must
    if room < 0:
        raise too_little(tree, must, free)
    out: dict[int, str] = {}
    for cost, i in sorted(may_wait):
        if cost <= room:
            room -= cost
        else:
            out[i] = no_room(costs[i] - SMALL_FILE_BYTES)
    return out


def waiting(plan: Plan, applied: Applied) -> tuple[int, int]:
    """How many files wait for room, and their bytes."""
    waiting = {noted.path for noted in applied.unplaced if noted.reason.startswith(NO_ROOM)}
    sizes = [new.size for path, new, _ in plan.changes if new is not None and path in waiting] if waiting else []
    return len(sizes), sum(sizes)
