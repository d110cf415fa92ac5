"""Has the whole files of a large checkout made on a second core, by a process of its own (`file_maker`).

Theory of operation. Python runs one thread at a time, and five system calls a file take much of its time. So a large
checkout starts one process before it writes its plan. What is delivered is copied to memory that both share. The
process makes the files of one slot after the other, and tells their stats. While all slots are taken the checkout makes
its files itself, so that both are busy.

The process decides nothing. What it could not make, for whatever reason, is still in its slot: the checkout makes it
itself, and meets the same error. A process that ended, or says nothing for `SILENT_S`, is killed. What it had not told
of is nobody's: the checkout removes it, and makes these files itself (`handed`). So a killed process costs time, and so
does one that cannot be started.

Its arguments are numbers of descriptors, and the folders where this Python finds modules. Contents and names go through
the memory alone.
"""

from __future__ import annotations

import marshal
import mmap
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from metasync.checkout.file_maker import DATA_BYTES, FILES_MAX, MESSAGE, SLOTS, TABLE_BYTES, Job, slot_at
from metasync.worktree.disk import Disk

FILES_LEAST: Final = 4000  # it saves 27 ms there, for 40 ms of the other core; at 2,000 nothing can be seen
NAMES_BYTES_MAX: Final = 512  # of a job's names, so that `FILES_MAX` jobs have room in the table
SILENT_S: Final = 60.0  # for 1 MB of files: a disk that takes so long is as slow for the checkout
_PYTHON = re.compile(r"python[0-9.]*t?(\.exe)?")  # another program that holds a Python would begin itself anew

_START = """
import os, sys
sys.path[:] = sys.argv.pop(1).split(os.pathsep)
from metasync.checkout.file_maker import main
main()
"""


def may_pay(disk: Disk, files: int) -> bool:
    """Whether so many files are worth a process of their own, and this machine has a core for it."""
    if files < FILES_LEAST or type(disk) is not Disk or not hasattr(os, "memfd_create"):
        return False
    return len(os.sched_getaffinity(0)) > 1 and not hasattr(sys, "frozen") and is_python(sys.executable)


def is_python(program: str | None) -> bool:
    """Whether this program runs what `-c` says."""
    return bool(program and _PYTHON.fullmatch(Path(program).name))


class Told(NamedTuple):
    """What became of a file that was handed over. `stat`: of the made file, None: it is to be made here.

    `data`: its contents, until the next call of the maker. `is_lost`: whatever stands at its name is nobody's.
    """

    number: int
    stat: os.stat_result | None
    data: memoryview
    is_lost: bool


class Maker:
    """The process, and what it was given. For one thread at a time. `close` it."""

    def __init__(self, channel: socket.socket, memory: mmap.mmap, process: subprocess.Popen[bytes] | None) -> None:
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._process = process
        self._view = memoryview(memory)
        self._free = list(range(SLOTS))
        self._filling: int | None = None
        self._at = 0  # where its contents begin
        self._jobs: list[Job] = []
        self._numbers: list[int] = []
        self._bytes = 0
        self._sent: dict[int, tuple[list[int], list[Job]]] = {}  # slot -> what it holds

    @classmethod
    def start(cls, directory: int) -> Maker | None:
        """Starts a process that makes files below this directory. None: it cannot be started."""
        where = os.pathsep.join(map(str, sys.path))
        size = SLOTS * (TABLE_BYTES + DATA_BYTES)
        with ExitStack() as ours, ExitStack() as theirs, suppress(OSError):
            channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(channel.close)
            theirs.callback(other.close)
            fd = os.memfd_create("metasync")
            theirs.callback(os.close, fd)
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
            passed = (other.fileno(), fd, directory)
            process = subprocess.Popen(  # noqa: S603 - this very Python
                [sys.executable, "-I", "-S", "-c", _START, where, *map(str, passed)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=passed,
            )  # fmt: skip
            ours.pop_all()
            return cls(channel, memory, process)
        return None

    def add(self, i: int, job: Job, data: bytes | memoryview) -> bool:
        """Hands a file over, with its contents. False: it is to be made here.

        It is too large, or the process has enough to do, or is no more.
        """
        size = len(data)
        if size > DATA_BYTES or len(job[0]) + len(job[1]) > NAMES_BYTES_MAX:
            return False
        if self._bytes + size > DATA_BYTES:
            self._send()
        if self._filling is None:
            if self._process is None or not self._free:
                return False
            self._filling = self._free.pop()
            self._at = slot_at(self._filling)[1]
        at = self._at + self._bytes
        self._view[at : at + size] = data
        self._bytes += size
        self._jobs.append(job)
        self._numbers.append(i)
        if len(self._jobs) == FILES_MAX:
            self._send()
        return True

    def _send(self) -> None:
        """Has the slot that is being filled made."""
        if self._filling is None:
            return
        slot, self._filling = self._filling, None
        self._sent[slot] = self._numbers, self._jobs
        packed = marshal.dumps(self._jobs)
        table = slot_at(slot)[0]
        self._view[table : table + len(packed)] = packed
        self._numbers, self._jobs, self._bytes = [], [], 0
        with suppress(OSError):  # then it has ended, as is heard
            self._channel.send(MESSAGE.pack(slot, len(packed)), socket.MSG_NOSIGNAL)

    def told(self, *, wait: bool = False) -> list[Told]:
        """What the process told of since the last call; `wait`: of all that it was given."""
        out: list[Told] = []
        if wait:
            self._send()
        while self._sent and (message := self._heard(wait)) is not None:
            if not message:
                return [*out, *self._lost()]
            slot, size = MESSAGE.unpack(message)
            out += self._outcomes(slot, size)
        return out

    def _heard(self, wait: bool) -> bytes | None:
        """The next message; None: there is none now. b"": there will be none any more."""
        if wait:
            self._poll.poll(SILENT_S * 1000)
        try:
            return self._channel.recv(MESSAGE.size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b"" if wait else None
        except OSError:
            return b""

    def _outcomes(self, slot: int, size: int) -> Iterator[Told]:
        table = slot_at(slot)[0]
        outcomes = marshal.loads(self._view[table : table + size])  # noqa: S302 - our own process wrote it
        for (i, data), fields in zip(self._emptied(slot), outcomes, strict=True):
            yield Told(i, os.stat_result(fields) if fields else None, data, is_lost=False)

    def _emptied(self, slot: int) -> Iterator[tuple[int, memoryview]]:
        """What the slot holds, which is free from then on."""
        numbers, jobs = self._sent.pop(slot)
        self._free.append(slot)
        at = slot_at(slot)[1]
        for i, job in zip(numbers, jobs, strict=True):
            data = self._view[at : at + job[-1]]
            yield i, data
            at += len(data)

    def _lost(self) -> Iterator[Told]:
        """Ends a process that is of no use any more, and gives all that it has not told of."""
        self._send()
        self.close()
        for slot in [*self._sent]:
            for i, data in self._emptied(slot):
                yield Told(i, None, data, is_lost=True)

    def close(self) -> None:
        """Ends the process: nothing is made any more when this returns. May be repeated."""
        self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
