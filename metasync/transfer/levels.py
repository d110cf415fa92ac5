"""Chooses the compression level of each segment of an upload from the measured speed of the lines. Pure.

A level above the agreed one makes packs smaller, which saves time on a slow line and space on every backend; on a fast
line it would cost time. No level below the agreed one is chosen: a segment is compressed once and kept for years.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from metasync.transfer.estimates import Direction, Estimates

# What one core of a slow machine compresses at each level, bytes of content a second; the highest level first.
SPEEDS: Final = ((9, 50e6), (7, 70e6), (6, 80e6))
SHRINKS: Final = 3.0  # so many bytes of content become one on the line, where compression pays at all
SPARE: Final = 2.0  # a level must be so many times as fast as the lines need it: reading and sealing take time, too
TIMED_BYTES_LEAST: Final = 256 << 10  # of a segment: less says little about how fast it goes here


class Levels:
    """The level for the next segment; `base` is the agreed one. Any thread may ask.

    `lines`: names of the backends that take packs. Each pack goes to `copies` of them. `clock` gives seconds and never
    goes back: a machine that is busy, or slower than `SPEEDS` says, is found to be so by what its segments take.
    """

    def __init__(
        self, base: int, estimates: Estimates, lines: Sequence[str], copies: int, clock: Callable[[], float]
    ) -> None:
        self._base = base
        self._estimates = estimates
        self._lines = lines
        self._copies = max(1, copies)
        self._left_out = 0  # of `SPEEDS`: levels at which the lines waited
        self._clock = clock
        self._lock = threading.Lock()
        self._due_s = self._took_s = 0.0  # of the segments timed: by `SPEEDS`, and in truth

    def level(self) -> int:
        """The highest level that keeps up with all lines together; the agreed one while a line is unknown."""
        rates = [self._estimates.of(name, Direction.UP).bytes_per_s for name in self._lines]
        if not rates or not all(rates):
            return self._base
        with self._lock:
            slower = max(1.0, self._took_s / self._due_s) if self._due_s else 1.0
        needed = slower * SPARE * SHRINKS * sum(rate or 0.0 for rate in rates) / self._copies
        fast = (level for level, speed in SPEEDS[self._left_out :] if speed >= needed)
        return max(self._base, next(fast, self._base))

    def fell_behind(self) -> None:
        """All lines waited for the next pack: the level in use is not chosen again, nor one above it."""
        level = self.level()
        self._left_out = next((n for n, (at, _) in enumerate(SPEEDS, 1) if at == level), self._left_out)

    def timed(self, level: int, size: int, shrink: Callable[[], bytes]) -> bytes:
        """What `shrink` makes of `size` bytes at this level; how long that takes counts for the segments to come."""
        began = self._clock()
        data = shrink()
        speed = dict(SPEEDS).get(level)
        if speed is not None and size >= TIMED_BYTES_LEAST:
            with self._lock:
                self._due_s += size / speed
                self._took_s += self._clock() - began
        return data
