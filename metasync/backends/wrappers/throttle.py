"""Holds a backend's traffic below given rates: bytes up and down, requests, calls at once.

Theory of operation. Each rate keeps one number: when its line is free again. A call starts when all its lines are free,
and books its cost behind what is booked already, so that callers are served in the order they came and nobody looks
twice (the virtual scheduling form of a token bucket: ITU-T I.371, annex A). A line that was idle has saved up at most
BURST_S. What a `get` will cost is known only afterwards: it waits for the line, and books what came. So the rate is
kept over time, and exceeded for a moment by at most the calls at once times their size.

A request of a few hundred bytes must not wait behind sixteen megabytes. Small calls have a line of their own, with
SMALL_SHARE of the rate: one starts when either line is free, and books on the common line, and on their own too where
that let it pass. Large calls wait for the common line only, which the small ones lengthen; so the sum stays within the
rate. Of the calls at once one place is never given to a large call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper

SMALL_BYTES_MAX: Final = 64 << 10  # log entries, births, heads, slots; not packs
SMALL_SHARE: Final = 0.25
BURST_S: Final = 1.0


class _Line:
    """One rate. `free_at`: when the next call may start. Not for two threads at once."""

    def __init__(self, per_s: float, now: float) -> None:
        if not per_s > 0:
            raise ValueError(f"not a rate: {per_s}")
        self._per_s = per_s
        self.free_at = now - BURST_S

    def start(self, now: float) -> float:
        self.free_at = max(self.free_at, now - BURST_S)
        return self.free_at

    def book(self, cost: float) -> None:
        self.free_at += cost / self._per_s


class _Lines:
    """One direction: the common line, and the small calls' own."""

    def __init__(self, per_s: float, now: float) -> None:
        self._common = _Line(per_s, now)
        self._small = _Line(per_s * SMALL_SHARE, now)

    def start(self, now: float, *, small: bool) -> float:
        common, own = self._common.start(now), self._small.start(now)
        return min(common, own) if small else common

    def book(self, cost: int, *, small: bool) -> None:
        passed_by = small and self._small.free_at < self._common.free_at
        self._common.book(cost)
        if passed_by:
            self._small.book(cost)


class _Places:
    """At most `most` calls at once, the last place for small ones only (if there are two or more)."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError("no call could ever be made")
        self._free = most
        self._kept = 1 if most > 1 else 0
        self._changed = threading.Condition()

    def take(self, *, small: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._free > (0 if small else self._kept))
            self._free -= 1

    def give_back(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()


class Throttled(Wrapper):
    """The same store, not faster than `up_bytes_per_s`, `down_bytes_per_s`, `requests_per_s`; None: no bound.

    `calls_max`: so many calls at once. `sleep` is called without a lock held; `clock` and `sleep` belong together.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        up_bytes_per_s: float | None = None,
        down_bytes_per_s: float | None = None,
        requests_per_s: float | None = None,
        calls_max: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        now = clock()
        self._up = None if up_bytes_per_s is None else _Lines(up_bytes_per_s, now)
        self._down = None if down_bytes_per_s is None else _Lines(down_bytes_per_s, now)
        self._requests = None if requests_per_s is None else _Line(requests_per_s, now)
        self._places = None if calls_max is None else _Places(calls_max)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()

    def around(self, call: Call, do: Callable[[], T]) -> T:
        small = max(call.up_bytes, call.down_bytes_max) <= SMALL_BYTES_MAX
        if self._places is not None:  # before the lines: gets that wait for a place have not booked what they will cost
            self._places.take(small=small)
        try:
            wait_s = self._booked(call, small=small)
            if wait_s > 0:
                self._sleep(wait_s)
            value = do()
            if self._down is not None and isinstance(value, bytes):
                with self._lock:
                    self._down.book(len(value), small=small)
            return value
        finally:
            if self._places is not None:
                self._places.give_back()

    def _booked(self, call: Call, *, small: bool) -> float:
        """Books a call on all its lines; how long it must wait."""
        with self._lock:
            now = start = self._clock()
            if self._requests is not None:
                start = max(start, self._requests.start(now))
                self._requests.book(1)
            if self._up is not None and call.up_bytes:
                start = max(start, self._up.start(now, small=small))
                self._up.book(call.up_bytes, small=small)
            if self._down is not None and call.down_bytes_max:
                start = max(start, self._down.start(now, small=small))
            return start - now
