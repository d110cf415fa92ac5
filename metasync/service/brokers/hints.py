"""When a message may bring a look forward: so often, and no more. Pure."""

from __future__ import annotations

from typing import Final

AT_ONCE_MAX: Final = 10  # looks in a row: a person's saves, on several devices
EACH_S: Final = 10.0  # after that a look in so many seconds: 360 an hour, whoever sends


class Bucket:
    """Lets hints pass. A hint that comes too early is not lost: it passes when it may, and one stands for many."""

    def __init__(self, now_s: float) -> None:
        self._room = float(AT_ONCE_MAX)
        self._at = now_s

    def wait_s(self, now_s: float) -> float:
        """For how long the next hint has to wait; 0: it passes, and counts. `now_s` never goes back."""
        self._room = min(float(AT_ONCE_MAX), self._room + (now_s - self._at) / EACH_S)
        self._at = now_s
        if self._room >= 1:
            self._room -= 1
            return 0.0
        return (1 - self._room) * EACH_S
