"""What a provider says of a store's own folder, above all its id: asked for once a day, and kept beside the other ids.

All that is below the folder is asked for by this id. So each answer shows that the folder of this id is there, and a
copy that somebody put at its path is never taken for it. The id is a hint in this sense: one that is over is found
out by the first call, and the folder is looked for by its path then.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

from metasync.backends._shared.native_ids import NativeIds
from metasync.errors import UnreachableError

KEPT_S: Final = 86_400.0
SEEN_S: Final = 2.0  # so long is the folder taken to be there after something in it was seen
_ROW: Final = "."  # its row among the ids


class KeptRoot:
    """A store's own folder as a line of text, whose first word is its id. For several threads."""

    def __init__(self, ids: NativeIds, sound: re.Pattern[str]) -> None:
        """`sound`: what such a line looks like."""
        self._ids = ids
        self._sound = sound
        self._line = ""
        self._pinned = ""  # the id that this object has vouched for: it has no other one any more
        self._seen_at = float("-inf")
        self._lock = threading.Lock()
        self._looking = threading.Lock()

    def get(self, attempt: str, find: Callable[[], str]) -> str:
        """The line: known, kept for less than a day, or what `find` says. `attempt` begins the message of an error.

        `UnreachableError`: the folder that is there now is another one than before.
        """
        with self._lock:
            if not self._line:
                kept = self._kept()
                self._take(attempt, kept or find(), is_new=not kept)
            return self._line

    def keep(self, attempt: str, line: str) -> None:
        """Takes what the provider has just said. Errors as of `get`."""
        with self._lock:
            self._take(attempt, line, is_new=True)
        self.seen()

    def check(self, attempt: str, look: Callable[[], str], *, at: float | None = None) -> None:
        """Looks whether the folder is there, unless it was seen (`is_seen`): one thread for all that want to know.

        What `look` raises passes through.
        """
        with self._looking:
            if not self.is_seen(at):
                self.keep(attempt, look())

    @property
    def known(self) -> str:
        """The line, "" where it was not asked for yet."""
        return self._line

    def pin(self) -> None:
        """Somebody was told which folder it is, and relies on it."""
        self._pinned = _id(self._line) or self._pinned

    def seen(self) -> None:
        """The folder was there a moment ago."""
        self._seen_at = time.monotonic()
        self.pin()

    def is_seen(self, at: float | None = None) -> bool:
        """Whether it was seen shortly before now, or before `at` on the clock of `time.monotonic`."""
        return self._seen_at >= (time.monotonic() if at is None else at) - SEEN_S

    def gone(self) -> None:
        """No folder has this id any more."""
        self._line, self._seen_at = "", float("-inf")
        self._ids.forget(_ROW)

    def _take(self, attempt: str, line: str, *, is_new: bool) -> None:
        if self._pinned and _id(line) != self._pinned:
            raise UnreachableError(
                f"{attempt}: what is there now is another folder than before",
                next_step="Look who replaced it. If it is right, run: metasync backend link NAME URL",
            )
        self._line = line
        if is_new:
            self._ids.note([(_ROW, f"{line} {int(time.time())}")])

    def _kept(self) -> str:
        line, _, said = (self._ids.get(_ROW) or "").rpartition(" ")
        at = float(said) if said.isdigit() and len(said) < 16 else 0.0
        return line if self._sound.fullmatch(line) and 0 <= time.time() - at < KEPT_S else ""


def _id(line: str) -> str:
    return line.partition(" ")[0].lower()  # personal OneDrives show ids in capitals or not
