"""The process that makes staged files, on a core beside the one of the checkout (`maker`).

It knows nothing but a directory, a piece of memory that it shares with the checkout, and a socket. The memory holds
`SLOTS` slots. A slot is `TABLE_BYTES` for a table, then `DATA_BYTES` for the contents of its files, one by one.
A message of 8 bytes says which slot is filled, and how long its table is. The answer is such a message, about the
outcomes, which stand in the table's place. Tables are `marshal`: both processes are one Python.

The process ends with the socket. It keeps away from Ctrl-C, which the checkout answers by ending it.
"""

from __future__ import annotations

import marshal
import mmap
import os
import signal
import struct
import sys
from contextlib import closing, suppress
from typing import Final, TypeAlias

from metasync.worktree.disk import CREATE_FLAGS, Disk, dress
from metasync.worktree.tree import DirTree

SLOTS: Final = 3  # one is made, one waits, one is being filled
DATA_BYTES: Final = 1 << 20  # some hundred source files: 3 ms of work
TABLE_BYTES: Final = 1 << 18
FILES_MAX: Final = 256  # of a slot: their outcomes are a tenth of the table's room
MESSAGE: Final = struct.Struct("<II")  # the number of a slot, and the bytes of its table

Outcome: TypeAlias = tuple[float, ...]
"""The fields of a made file's `os.stat_result`, as its constructor takes them; () for one that was not made."""


Job: TypeAlias = tuple[bytes, bytes, int, int, int, int]
"""A file to be made: its directory, below the worker's; name; mode it is opened with; mode; mtime in ns; size."""


def slot_at(number: int) -> tuple[int, int]:
    """Where the table and the contents of a slot begin."""
    table = number * (TABLE_BYTES + DATA_BYTES)
    return table, table + TABLE_BYTES


def make(dirs: DirTree, job: Job, data: memoryview) -> Outcome:
    """Makes one file, complete with mode and time. Leaves nothing where that fails: the checkout tries for itself."""
    parent, name, create, mode, mtime_ns, _ = job
    disk = dirs.disk
    try:
        above = dirs.dir(parent)
        fd = disk.open(name, CREATE_FLAGS, above, create)
    except OSError:
        return ()
    try:
        disk.write(fd, data)
        return fields(dress(disk, fd, mode, mtime_ns))
    except OSError:
        with suppress(OSError):
            disk.unlink(name, above)
        return ()
    finally:
        with suppress(OSError):
            disk.close(fd)


def fields(st: os.stat_result) -> Outcome:
    """What a stat says: its ten numbers, and its three times in s and in ns."""
    return (*st[:10], st.st_atime, st.st_mtime, st.st_ctime, st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns)


def serve(channel: int, memory: mmap.mmap, dirs: DirTree) -> None:
    """Fills the slots' tables with outcomes until the socket ends."""
    view = memoryview(memory)
    while message := os.read(channel, MESSAGE.size):
        number, size = MESSAGE.unpack(message)
        table, at = slot_at(number)
        outcomes = []
        for job in marshal.loads(view[table : table + size]):  # noqa: S302 - the checkout wrote it
            data = view[at : at + job[-1]]
            outcomes.append(make(dirs, job, data))
            at += len(data)
        told = marshal.dumps(outcomes)
        view[table : table + len(told)] = told
        os.write(channel, MESSAGE.pack(number, len(told)))


def main() -> None:
    """Serves on the descriptors that the arguments name: socket, memory, directory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, memory, directory = map(int, sys.argv[1:4])
    disk = Disk()
    with suppress(OSError), closing(DirTree(b"", directory, disk)) as dirs:
        serve(channel, mmap.mmap(memory, SLOTS * (TABLE_BYTES + DATA_BYTES)), dirs)
    os._exit(0)  # nothing is to be put away, which takes longer than a slot
