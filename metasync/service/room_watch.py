"""Files that wait for room on the folder's disk: says when there is some, so that they are pulled.

The disk is asked once a minute while files wait. A pull comes when the smallest of them fits beside the margin. Where
it was tried and no room was there after all, as by a quota of which the disk tells nothing, the pauses grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from metasync.runtime.sizes import SMALL_FILE_BYTES
from metasync.service.batch import Pauses

LOOK_S: Final = 60.0
PAUSE_MOST_S: Final = 3600.0


class RoomWatch:
    """`free`: the bytes that the folder's disk has left; `OSError` where it is away. `draw`: a number from 0 to 1."""

    def __init__(self, free: Callable[[], int], draw: Callable[[], float]) -> None:
        self._free = free
        self._pauses = Pauses(draw, LOOK_S, PAUSE_MOST_S)
        self._least: int | None = None  # bytes of the smallest file that waits
        self.at = math.inf  # when the disk is asked next

    def waits(self, now: float, reasons: Collection[str]) -> None:
        """These are the reasons for which agreed files are not here, after a pull or at the beginning."""
        self._least = None
        if reasons:
            from metasync.checkout.room import size_waiting  # which no daemon needs whose files are all here

            sizes = map(size_waiting, reasons)
            self._least = min((size for size in sizes if size is not None), default=None)
        if self._least is None:
            self._pauses.passed()
            self.at = math.inf
        elif self._fits():
            self.at = self._pauses.failed(now)
        else:
            self._pauses.passed()
            self.at = now + LOOK_S

    @property
    def is_needed(self) -> bool:
        """Whether a file waits for room."""
        return self._least is not None

    def has_room(self, now: float) -> bool:
        """Asks the disk, if it is time to. -> whether there is room now for a file that waits."""
        if now < self.at:
            return False
        self.at = now + LOOK_S  # the pull says more
        return self._fits()

    def _fits(self) -> bool:
        from metasync.checkout.room import margin

        try:
            free = self._free()
        except OSError:
            return False
        return self._least is not None and self._least + SMALL_FILE_BYTES <= free - margin(free)
