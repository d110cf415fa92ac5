"""When what changed in a folder is pushed, as UDS has it: batched updates cost a fraction of single ones. Pure.

A push is due when nothing changed for `quiet_s`, or what it would send is estimated at `delta_bytes`, or the first
change has waited for `longest_s`. What changes while a push runs gathers for the next one. Only the last state of a
file is sent, so what cancels out is never sent. A file that still grows does not count for the estimate, and waits
`longest_s` for its end: else it would be due again and again, each time with its end to be sent once more.

After a failure pauses grow from PAUSE_FIRST_S to PAUSE_MOST_S, with jitter, so that devices which lost the same backend
do not come back together. The user's word passes by a pause. Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metasync.errors import UsageError
from metasync.runtime.limits import DELTA, LONGEST, QUIET, parse_duration, parse_size

QUIET_S: Final = 5.0
DELTA_BYTES: Final = 250_000
LONGEST_S: Final = 30.0
PAUSE_FIRST_S: Final = 5.0
PAUSE_MOST_S: Final = 300.0
LOOK_S: Final = 1.0  # between looks at the sizes of what changes
EDIT_BYTES: Final = 64 << 10  # a file rewritten in place: what of it differs is not known; some chunks
RATIO_FIRST: Final = 0.7  # of what is stored to what changed, until pushes have shown it
GROWN_LATELY_S: Final = 3.0  # a file that grew within that time grows still


class Batching(NamedTuple):
    """The three settings: see the head of this module."""

    quiet_s: float = QUIET_S
    delta_bytes: float = DELTA_BYTES
    longest_s: float = LONGEST_S

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Batching:
        """As the user set it. What is not understood, by a newer program say, counts as not set."""
        out = cls()
        for key, parse in ((QUIET, parse_duration), (DELTA, parse_size), (LONGEST, parse_duration)):
            try:
                if key in values:
                    out = out._replace(**{_FIELDS[key]: parse(values[key])})
            except UsageError:
                continue
        return out._replace(longest_s=max(out.longest_s, out.quiet_s))


_FIELDS: Final = {QUIET: "quiet_s", DELTA: "delta_bytes", LONGEST: "longest_s"}


class Pauses:
    """Pauses between attempts at something that fails: twice as long each time, and none of them exactly."""

    def __init__(self, draw: Callable[[], float], first_s: float = PAUSE_FIRST_S, most_s: float = PAUSE_MOST_S) -> None:
        """`draw`: a random number from 0 to 1."""
        self._draw, self._first_s, self._most_s = draw, first_s, most_s
        self.failures = 0
        self.until = 0.0

    def failed(self, now: float) -> float:
        """It failed. -> when it is tried again."""
        pause_s = min(self._first_s * 2.0 ** min(self.failures, 60), self._most_s)
        self.failures += 1
        self.until = now + pause_s * (0.75 + self._draw() / 2)
        return self.until

    def passed(self) -> None:
        """It went well, or is to be tried at once."""
        self.failures, self.until = 0, 0.0


@dataclass
class Batch:
    """What gathers for the next push. `pauses`: after pushes that failed."""

    batching: Batching
    pauses: Pauses
    first: float | None = None
    last: float | None = None
    size_bytes: float = 0.0
    ratio: float = RATIO_FIRST
    asked: bool = False
    _sent: float = 0.0

    def changed(self, now: float) -> None:
        """Something changed."""
        self.first = now if self.first is None else self.first
        self.last = now

    def estimated(self, size_bytes: float) -> None:
        """What changed comes to so many bytes, not compressed."""
        self.size_bytes = size_bytes

    def ask(self) -> None:
        """The user wants it pushed now."""
        self.asked = True
        self.pauses.passed()

    @property
    def delta_bytes(self) -> int:
        """The estimate of what a push would send of each copy."""
        return int(self.size_bytes * self.ratio)

    def due(self, now: float) -> float | None:
        """When the push is due; None: nothing is to be pushed."""
        if self.asked:
            return now
        if self.first is None or self.last is None:
            return None
        b = self.batching
        at = now if self.delta_bytes >= b.delta_bytes else min(self.last + b.quiet_s, self.first + b.longest_s)
        return max(at, self.pauses.until)

    def begins(self) -> None:
        """A push begins, with all that changed so far."""
        self._sent = self.size_bytes
        self.first = self.last = None
        self.size_bytes, self.asked = 0.0, False

    def settled(self) -> None:
        """What changed is agreed already."""
        self.first = self.last = None
        self.size_bytes = 0.0

    def ended(self, stored_bytes: int) -> None:
        """It ended well, and so many bytes of packs were stored."""
        self.pauses.passed()
        if self._sent > 0 and stored_bytes > 0:
            seen = min(stored_bytes / self._sent, 1.0)
            self.ratio = max(0.05, 0.75 * self.ratio + 0.25 * seen)

    def failed(self, now: float) -> None:
        """It failed: what it would have pushed waits for the end of a pause."""
        self.changed(now)
        self.pauses.failed(now)


class Seen(NamedTuple):
    """What is known of a changed file: its size, when it last grew, and since when it waits."""

    size: int
    grew: float
    since: float


@dataclass
class Sizes:
    """Sizes of the files that changed since the last push, look by look: what they come to, and which of them grow."""

    seen: dict[bytes, Seen] = field(default_factory=dict)

    def look(self, now: float, files: Iterable[tuple[bytes, int, int | None]]) -> float:
        """Takes the sizes of changed files, (path, bytes now, bytes when last pushed or None), and returns an estimate.

        What still grows is left out of it.
        """
        total = 0.0
        for path, size, pushed in files:
            before = self.seen.get(path)
            known = before.size if before is not None else pushed
            grew = now if known is None or size > known else before.grew if before is not None else -math.inf
            self.seen[path] = Seen(size, grew, before.since if before is not None else now)
            if now - grew <= GROWN_LATELY_S:
                continue
            total += size if pushed is None else abs(size - pushed) or min(size, EDIT_BYTES)
        return total

    def growing(self, now: float, longest_s: float) -> set[bytes]:
        """The files that grew lately and have not waited for so long yet."""
        return {
            path
            for path, seen in self.seen.items()
            if now - seen.grew <= GROWN_LATELY_S and now - seen.since < longest_s
        }

    def forget(self, still: Collection[bytes] = ()) -> None:
        """They were pushed, but for these."""
        self.seen = {path: seen for path, seen in self.seen.items() if path in still}
