"""Whose turn it is in a folder: a push that reads and sends for long lets other operations go before it.

It breaks off where a kill could have broken it off, notes what it has read and stored, and gives the workspace's lock
back; packs that are under way go on meanwhile. When the others have had their turn it begins again, and finds nearly
all of its work done. It does not do so once it proposes: that is over soon, and must not be left open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LOOK_EVERY_S: Final = 0.25  # how long others wait at most to be seen, while something is read or awaited
TURN_S: Final = 1.0  # what a push has for itself between two of them, so that it gets on however many there are


class GiveWay(Exception):  # noqa: N818  a signal, not an error
    """Others wait. `save`, to be called with the lock held again, notes what was still under way when they came."""

    def __init__(self) -> None:
        super().__init__("another operation waits for this folder")
        self.save: Callable[[], None] = lambda: None


class Turns:
    """Tells a push when it is to give way, for all its turns. From one thread.

    `chunks`: of files that were read in an earlier turn, by their file objects, the blobs; so they need not be again.
    """

    def __init__(self) -> None:
        self.chunks: dict[bytes, tuple[bytes, ...]] = {}
        self._wanted: Callable[[], bool] = lambda: False
        self._clock: Callable[[], float] = lambda: 0.0
        self._next: float | None = None

    def begin(self, wanted: Callable[[], bool], clock: Callable[[], float]) -> Turns:
        """Begins the next turn. `wanted`: whether others wait now."""
        self._wanted, self._clock, self._next = wanted, clock, None
        return self

    def look(self) -> None:
        """`GiveWay` when others wait. To be called often, where breaking off loses nothing."""
        now = self._clock()
        if self._next is None:
            self._next = now + TURN_S
        elif now >= self._next:
            self._next = now + LOOK_EVERY_S
            if self._wanted():
                raise GiveWay
