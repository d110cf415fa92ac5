"""When to ask for news of other devices, and whom. Pure.

In quiet one backend is asked, the next one each time, about once a minute: one request for the entry after the last one
known of its log. Only if it shows something, a quorum is asked. So a backend that lies or lags hides news until it is
another one's turn. After something happened it is asked sooner; where nothing happens for long, more seldom; always
with jitter, for many devices began with the same event. A hint (a broker, a long poll) has it asked soon. A look that
failed is made again after growing pauses. A quorum is asked without any news once an hour: an era may have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from metasync.service.batch import Pauses

ASK_S: Final = 60.0
SOON_S: Final = (5.0, 10.0, 20.0, 40.0)  # after something happened
LATE_AFTER_S: Final = 3600.0  # without news, and it is asked more seldom
LATE_S: Final = 300.0
HINT_S: Final = 0.05  # after a hint: several come at once
HINTS_EVERY_S: Final = 2.0  # a hint is nobody's word: so many looks it may cause
QUORUM_S: Final = 3600.0
COVERED_S: Final = 3600.0  # where something tells of news by itself (a broker, a long poll), it is asked so seldom
JITTER: Final = 0.2


class Hearing:
    """Says when to look and whom to ask. `draw`: a random number from 0 to 1."""

    def __init__(self, now: float, draw: Callable[[], float], ask_s: float = ASK_S) -> None:
        self._draw, self._ask_s = draw, ask_s
        self._step = len(SOON_S)
        self._turn = int(draw() * 1000)
        self._news_at = now
        self._quorum_at = -QUORUM_S
        self._asked_at = now
        self._hinted = False
        self.is_covered = False
        self.pauses = Pauses(draw)
        self.due = now

    def happened(self, now: float) -> None:
        """This device pushed or pulled: others may answer."""
        self._step, self._news_at = 0, now
        self._plan(now)

    def looked(self, now: float, *, news: bool, quorum: bool) -> None:
        """A look ended well. `quorum`: a quorum was asked."""
        self.pauses.passed()
        self._asked_at, self._hinted = now, False
        if quorum:
            self._quorum_at = now
        if news:
            self._step, self._news_at = 0, now
        else:
            self._step += 1
        self._plan(now)

    def failed(self, now: float) -> None:
        """A look failed."""
        self._asked_at, self._hinted = now, False
        self.due = self.pauses.failed(now)

    def hint(self, now: float) -> None:
        """Somebody says that there is something new."""
        self._hinted = True
        self.due = min(self.due, max(now + HINT_S, self._asked_at + HINTS_EVERY_S, self.pauses.until))

    def ask(self, now: float) -> None:
        """The user wants to know now."""
        self._hinted = True
        self.pauses.passed()
        self.due = now

    def whom(self, now: float, backends: Sequence[str]) -> str | None:
        """The one backend to ask; None: a quorum."""
        if not backends or self._hinted or self.pauses.failures or now - self._quorum_at >= QUORUM_S:
            return None
        self._turn += 1
        return sorted(backends)[self._turn % len(backends)]

    def _plan(self, now: float) -> None:
        if self._step < len(SOON_S):
            wait_s = min(SOON_S[self._step], self._ask_s)
        elif self.is_covered:
            wait_s = max(COVERED_S, self._ask_s)
        elif now - self._news_at >= LATE_AFTER_S:
            wait_s = max(LATE_S, self._ask_s)
        else:
            wait_s = self._ask_s
        self.due = now + wait_s * (1 - JITTER + 2 * JITTER * self._draw())
