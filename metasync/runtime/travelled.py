"""What went to and from backends, counted: for reports, so that nobody has to guess what a command cost."""

from __future__ import annotations

import threading

from metasync.events import Travelled


class Counter:
    """Adds up what travels. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sum = self._before = Travelled()

    def begin(self) -> None:
        """What follows belongs to one command."""
        self._before = self._sum

    def add(self, moved: Travelled) -> None:
        with self._lock:
            self._sum += moved

    @property
    def total(self) -> Travelled:
        """Since the command began, or else the process."""
        return self._sum.since(self._before)


COUNTER = Counter()
"""Of this process, and what the daemon moved for it."""
