"""What went to and from all backends in this process: for reports, so that nobody has to guess what a command cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Travelled:
    """Calls on backends, and the bytes of the objects that they wrote and read.

    A call may take several HTTP requests. Heads of requests, and names, are not counted.
    """

    requests: int = 0
    up_bytes: int = 0
    down_bytes: int = 0

    def since(self, before: Travelled) -> Travelled:
        return Travelled(
            self.requests - before.requests, self.up_bytes - before.up_bytes, self.down_bytes - before.down_bytes
        )


class Counter:
    """Adds up what travels. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sum = self._before = Travelled()

    def begin(self) -> None:
        """What follows belongs to one command."""
        self._before = self._sum

    def add(self, up: int, down: int) -> None:
        with self._lock:
            s = self._sum
            self._sum = Travelled(s.requests + 1, s.up_bytes + up, s.down_bytes + down)

    @property
    def total(self) -> Travelled:
        """Since the command began, or else the process."""
        return self._sum.since(self._before)


COUNTER = Counter()
"""Of this process."""
