"""Learns how many calls at once a backend bears, from times that it is told.

Theory of operation. The number grows by a quarter where calls wait for a connection. If a round with more calls moves
less than GAIN times as much a second, it goes back, and growth is not tried again for PATIENCE_ROUNDS. Bytes and calls
are measured together, because latency limits small calls and the line limits large ones.

A server that sends calls away halves the number, once for all calls under way together, and nothing grows for COOL_S.
Additive increase and multiplicative decrease share a server fairly among independent clients (Chiu and Jain, 1989).
Alone they would grow to the bound on every disk, which costs threads and memory and gains nothing.
"""

from __future__ import annotations

from typing import Final

from metasync.runtime.sizes import CALLS_MAX

START: Final = 8  # what an unknown backend gets
LEAST: Final = 2  # below that agreement would wait behind packs
ROUND_S: Final = 0.5
GAIN: Final = 1.05
PATIENCE_ROUNDS: Final = 20
CALL_BYTES: Final = 32 << 10  # what a call counts for besides its bytes
COOL_S: Final = 10.0  # without growth after a throttling
RATE_START: Final = 4_000_000.0  # bytes a second, before anything was measured
RATE_KEEP: Final = 0.7  # of the old estimate, with each round


class Concurrency:
    """One backend's. `size`: how many calls at once to make now. Not for two threads at once."""

    def __init__(self, start: int = START, most: int = CALLS_MAX) -> None:
        self.size = min(start, most)
        self.bytes_per_s = RATE_START
        self._most = most
        self._bound: int | None = None  # the user's
        self._before: tuple[int, float] | None = None  # size and speed before the last growth
        self._rest = 0  # rounds until growth is tried again
        self._cool_until = 0.0
        self._halved_at: float | None = None
        self._round_at = 0.0
        self._skipped = self.size  # calls that were under way when the number changed say nothing of the new one
        self._calls = 0
        self._bytes = 0
        self._short = 0  # calls of this round after which others were waiting

    def bound(self, most: int | None) -> None:
        """The user's own limit; None: none. One connection for packs leaves another one for agreement."""
        if most is not None:
            most = max(most, LEAST)
        if most != self._bound:
            if self._bound is not None:
                self.size = max(self.size, min(START, self._most))  # what was forced on it says nothing of the backend
            self._bound = most
            self._before = None
        if most is not None:
            self.size = min(self.size, most)

    def ended(self, now: float, size_bytes: int, *, waiting: bool) -> None:
        """A call ended well. `waiting`: others wait for a connection."""
        if self._skipped:
            self._skipped -= 1
            self._round_at = now
            return
        self._calls += 1
        self._bytes += size_bytes
        self._short += waiting
        if self._calls >= self.size and now - self._round_at >= ROUND_S:
            self._judge(now)

    def throttled(self, now: float, began: float, retry_after_s: float) -> None:
        """The server sent a call away that began then. Halves, once for all that were under way together."""
        self._cool_until = max(self._cool_until, now + max(COOL_S, retry_after_s))
        if self._halved_at is None or began >= self._halved_at:
            self._halved_at = now
            self._begin(now)
            self._resize(max(min(LEAST, self.size), self.size // 2))

    def _begin(self, now: float) -> None:
        self._round_at, self._calls, self._bytes, self._short = now, 0, 0, 0

    def _resize(self, size: int, before: tuple[int, float] | None = None) -> None:
        self._skipped = self.size
        self.size, self._before = size, before

    def _judge(self, now: float) -> None:
        seconds = now - self._round_at
        speed = (self._bytes + CALL_BYTES * self._calls) / seconds
        if self._bytes:
            self.bytes_per_s = RATE_KEEP * self.bytes_per_s + (1 - RATE_KEEP) * self._bytes / seconds
        crowded = 2 * self._short > self._calls
        self._begin(now)
        if not crowded:
            self._before = None  # it was not short of connections: the speed is not theirs
            return
        if self._before is not None and speed < self._before[1] * GAIN:
            self._resize(self._before[0])
            self._rest = PATIENCE_ROUNDS
            return
        self._before = None
        if self._rest > 0:
            self._rest -= 1
        elif now >= self._cool_until:
            more = min(self.size + max(1, self.size // 4), self._most, self._bound or self._most)
            if more > self.size:
                self._resize(more, (self.size, speed))
