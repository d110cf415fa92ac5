"""What a large checkout hands to another process (`maker`), and what comes of it."""

from __future__ import annotations

import os
import stat as stat_
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from metasync.checkout.maker import Maker, Told, may_pay
from metasync.checkout.staging import Stage
from metasync.objects.model import Entry

Make: TypeAlias = Callable[[int, memoryview, Callable[[], None]], None]
"""Makes a file here after all: its number, its contents, and what removes the rest of an earlier try."""


class Handed:
    """What one checkout hands over. For one thread at a time.

    `stats`, `awaited`, `parts`: those of the checkout. A file that is made comes to the first and leaves the second.
    """

    def __init__(
        self,
        found: Maker,
        stage: Stage,
        stats: dict[int, os.stat_result],
        awaited: set[int],
        parts: Mapping[int, object],
        make: Make,
    ) -> None:
        self._maker = found
        self._stage = stage
        self._stats = stats
        self._awaited = awaited
        self._parts = parts
        self._make = make

    @classmethod
    def begin(
        cls,
        stage: Stage,
        stats: dict[int, os.stat_result],
        awaited: set[int],
        parts: Mapping[int, object],
        make: Make,
    ) -> Handed | None:
        """Starts a process for these awaited files. None: all are made here."""
        found = Maker.start(stage.tmp) if may_pay(stage.disk, len(awaited)) else None
        return cls(found, stage, stats, awaited, parts, make) if found is not None else None

    def close(self) -> None:
        """Ends the process. What it had not told of may be there in part."""
        self._maker.close()

    def take(self, i: int, entry: Entry, data: bytes | memoryview) -> bool:
        """Hands a file over. False: it is to be made here. Raises what `make` does, of other files."""
        if i not in self._awaited:
            return False
        parent, name = self._stage.place(i)
        job = parent, name, entry.mode & 0o777, self._stage.tree.mode_of(entry.mode), entry.mtime_ns, entry.size
        if self._maker.add(i, job, data):
            return True
        self._hear(self._maker.told())
        return False

    def settle(self) -> None:
        """Waits until all is made that was handed over, by whomever. Raises what `make` does."""
        self._hear(self._maker.told(wait=True))

    def _hear(self, told: Collection[Told]) -> None:
        for i, st, _, _ in told:
            if st is not None:
                self._stats[i] = st
                self._awaited.discard(i)
        for i, st, data, is_lost in told:
            if st is None:
                self._make(i, data, partial(self._remove, i) if is_lost else _nothing)

    def _remove(self, i: int) -> None:
        """Removes what a process that is no more left of a file. What is another's, by its inode, stays.

        A disk may take the name for another file's.
        """
        disk = self._stage.disk
        name, above = self._stage.at(i)
        st = disk.look(name, above)
        if st is None or not stat_.S_ISREG(st.st_mode) or st.st_ino in {one.st_ino for one in self._stats.values()}:
            return
        if all(disk.lstat(*self._stage.at(part)).st_ino != st.st_ino for part in self._parts):
            disk.unlink(*self._stage.at(i))


def _nothing() -> None:
    pass
