"""The line of progress on a terminal, and the only way to print or ask beside it.

One line, drawn over itself a few times a second. It is off the screen while somebody is asked, and notices that come
meanwhile wait for the answer: a question that was wiped or written over is answered wrong.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from metasync.codec import printable
from metasync.events import Event

DRAW_S: Final = 0.1  # between two drawings: faster than that is flicker
TICK_S: Final = 0.5  # without any event
COLUMNS: Final = 80  # of a terminal that does not tell
SPARE: Final = 3  # columns behind the line: where the terminal puts its ^C, which must not begin another line
WAITING_MAX: Final = 1000  # notices kept while somebody is asked

_screen = threading.RLock()  # held by whoever writes on the terminal
_bars: list[Bar] = []
_waiting: list[Callable[[], None]] = []
_questions = 0


class Bar:
    """One line of progress on a terminal, drawn over itself, a few times a second whatever happens."""

    def __init__(self) -> None:
        from metasync.terminal.progress import Meter

        self.meter = Meter()
        self._shown = ""
        self._drawn_at = 0.0
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None
        _bars.append(self)

    def take(self, event: Event) -> None:
        now = time.monotonic()
        with _screen:
            self.meter.add(event, now)
            if self._ended.is_set():
                return
            if now - self._drawn_at >= DRAW_S:
                self._draw(now)
            if self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, name="metasync-progress", daemon=True)
                self._ticker.start()

    def hide(self) -> None:
        """Takes the line off the screen until it is drawn again. The screen is the caller's."""
        self._put("")

    def end(self) -> None:
        with _screen:
            self._ended.set()
            self._put("")

    def _tick(self) -> None:
        """What stands still is seen to."""
        while not self._ended.wait(TICK_S):
            with _screen:
                if not self._ended.is_set():
                    self._draw(time.monotonic())

    def _draw(self, now: float) -> None:
        self._drawn_at = now
        if not _questions:
            self._put(printable(self.meter.line(now, columns() - SPARE)))

    def _put(self, line: str) -> None:
        """Writes the line over the one before: what is longer there is blanked, nothing is cleared that stays."""
        if line != self._shown:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone; what is done goes on
                blank = " " * (len(self._shown) - len(line))
                sys.stderr.write("\r" + line + blank + ("\r" if not line else ""))
                sys.stderr.flush()
            self._shown = line


def columns() -> int:
    """The width of the terminal that stderr is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS


def beside(write: Callable[[], None]) -> None:
    """Prints something while progress is off the screen; once the question is answered, where one is open."""
    with _screen:
        if _questions:
            if len(_waiting) < WAITING_MAX:
                _waiting.append(write)
            return
        for bar in _bars:
            bar.hide()
        write()


@contextlib.contextmanager
def question() -> Iterator[None]:
    """While somebody is asked: no progress, and no notices. What works in the background is not held up."""
    global _questions
    with _screen:
        for bar in _bars:
            bar.hide()
        _questions += 1
    try:
        yield
    finally:
        with _screen:
            _questions -= 1
            while _waiting and not _questions:
                _waiting.pop(0)()


def end_progress() -> None:
    """Takes the line of progress away for good, whoever drew it: the outcome is to be told."""
    while _bars:
        _bars.pop().end()
