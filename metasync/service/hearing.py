"""When to ask for news of other devices, and whom. Pure.

In quiet one backend is asked, the next one each time, about once a minute: one request for the entry after the last one
known of its log. Only if it shows something, a quorum is asked. So a backend that lies or lags hides news until it is
another one's turn. After something happened it is asked sooner, but for a series of own pushes, each of which asks a
quorum; where nothing happens for long, more seldom; always with jitter, for many devices began with the same event. A
look that failed is made again after growing pauses. A quorum is asked without any news once an hour: an era may have
ended.

A hint has somebody asked soon: a watch of a backend, that backend; a broker, a quorum. A hint that comes during a look
is not answered by it. While something tells of news by itself, looks are rare, and go to backends that nothing watches.
While a backend is away each second look goes to it, five minutes apart at most: it is told that it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal

from metasync.errors import MetaSyncError
from metasync.runtime.limits import ASK, parse_duration
from metasync.service.batch import Pauses

ASK_S: Final = 60.0
SOON_S: Final = (5.0, 10.0, 20.0, 40.0)  # after something happened
SERIES_S: Final = 60.0  # pushes that come one after the other so soon ask a quorum often enough
LATE_AFTER_S: Final = 3600.0  # without news, and it is asked more seldom
LATE_S: Final = 300.0
HINT_S: Final = 0.05  # after a hint: several come at once
HINTS_EVERY_S: Final = 1.0  # a hint is nobody's word: so many looks it may cause
QUORUM_S: Final = 3600.0
COVERED_QUORUM_S: Final = 6 * 3600.0
COVERED_S: Final = {"broker": 600.0, "watch": 2400.0}  # between looks, by what tells; a broker knows not all devices
JITTER: Final = 0.2
ANYBODY: Final = ""  # who hints, where it is no watch of a backend

SLEPT_S: Final = 5.0  # that two clocks went apart
Teller = Literal["broker", "watch"]


def interval_s(values: Mapping[str, str]) -> float:
    """How often is asked in quiet, by these settings; by `ASK_S` where they say nothing that can be read."""
    try:
        return parse_duration(values[ASK]) if ASK in values else ASK_S
    except MetaSyncError:
        return ASK_S


class Hearing:
    """Says when to look and whom to ask. `draw`: a random number from 0 to 1."""

    def __init__(self, now: float, draw: Callable[[], float], ask_s: float = ASK_S) -> None:
        self._draw, self._ask_s = draw, ask_s
        self._step = len(SOON_S)
        self._turn = int(draw() * 1000)
        self._news_at = now
        self._quorum_at = -COVERED_QUORUM_S
        self._asked_at = now
        self._pushed_at = -SERIES_S
        self._missed = 0  # looks in a row that no backend answered
        self._hints: set[str] = set()  # who told of news since the last look began
        self._tellers: set[Teller] = set()
        self._away: frozenset[str] = frozenset()
        self.pauses = Pauses(draw)
        self.due = now

    @property
    def is_covered(self) -> bool:
        """Whether something tells of news by itself."""
        return bool(self._tellers)

    def covered(self, now: float, by: Teller, is_so: bool) -> None:
        """A broker or a watch tells of news by itself from now on, or does so no more."""
        if is_so == (by in self._tellers):
            return
        (self._tellers.add if is_so else self._tellers.discard)(by)
        if not self._hints and not self.pauses.failures:
            self._plan(self._asked_at)
            self.due = max(self.due, now)

    def happened(self, now: float) -> None:
        """This device pulled: others are at work."""
        self._step, self._news_at = 0, now
        self._plan(now)

    def pushed(self, now: float) -> None:
        """This device pushed: others may answer. The first push of a series has looks be soon, the others go on."""
        if now - self._pushed_at >= SERIES_S:
            self._step = 0
        self._pushed_at = self._news_at = now
        again_at = self.due
        self._plan(now)
        if self.pauses.failures:
            self.due = min(self.due, again_at)

    def away(self, now: float, names: Collection[str]) -> None:
        """These backends do not answer, as far as is known."""
        if names and not self._away and not self.pauses.failures:
            self.due = min(self.due, now + max(LATE_S, self._ask_s))
        self._away = frozenset(names)

    def looked(self, now: float, *, news: bool, quorum: bool, missed: bool = False) -> None:
        """A look ended. `quorum`: a quorum was asked; `missed`: the one backend that was asked did not answer."""
        self.pauses.passed()
        self._asked_at = now
        self._missed = self._missed + 1 if missed else 0
        if quorum:
            self._quorum_at = now
        if news:
            self._step, self._news_at = 0, now
        else:
            self._step += 1
        self._plan(now)

    def failed(self, now: float) -> None:
        """A look failed."""
        self._asked_at, self._missed = now, 0
        self._hints.clear()  # a quorum is asked next
        self.due = self.pauses.failed(now)

    def hint(self, now: float, by: str = ANYBODY) -> None:
        """Somebody says that there is something new. `by`: the backend whose watch says so."""
        self._hints.add(by)
        self.due = min(self.due, self._hinted_at(now))

    def ask(self, now: float) -> None:
        """The user wants to know now."""
        self._hints.add(ANYBODY)
        self.pauses.passed()
        self.due = now

    def whom(self, now: float, backends: Sequence[str], watched: Collection[str] = ()) -> str | None:
        """Begins a look. -> the one backend to ask; None: a quorum. `watched`: those that something watches."""
        hints, self._hints = self._hints, set()
        quorum_s = COVERED_QUORUM_S if self.is_covered else QUORUM_S
        if not backends or self.pauses.failures or now - self._quorum_at >= quorum_s or not hints <= {*backends}:
            return None
        if self._missed >= len(backends):  # a quorum tells whether there still is one
            return None
        if hints:
            first = min(hints)
            self._hints |= hints - {first}  # each is asked what it knows: what it told of may be this device's own
            return first
        self._turn += 1
        turn, away = self._turn, sorted(self._away & {*backends})
        if away and turn % 2:
            return away[turn // 2 % len(away)]
        if away:
            turn //= 2
        there = {*backends} - {*away} or {*backends}
        silent = there - {*watched} if self.is_covered else ()
        from_these = sorted(silent or there)
        return from_these[turn % len(from_these)]

    def _hinted_at(self, now: float) -> float:
        return max(now + HINT_S, self._asked_at + HINTS_EVERY_S, self.pauses.until)

    def _plan(self, since: float) -> None:
        """Says when the next look is due, after one that ended at that time."""
        if self._hints:
            self.due = self._hinted_at(since)
            return
        if self._step < len(SOON_S) and "watch" not in self._tellers:
            wait_s = min(SOON_S[self._step], self._ask_s)
        elif self._tellers:
            wait_s = max(*(COVERED_S[by] for by in self._tellers), self._ask_s)
        elif since - self._news_at >= LATE_AFTER_S:
            wait_s = max(LATE_S, self._ask_s)
        else:
            wait_s = self._ask_s
        if self._away:
            wait_s = min(wait_s, max(LATE_S, self._ask_s))
        self.due = since + wait_s * (1 - JITTER + 2 * JITTER * self._draw())


class Sleep:
    """Says whether the machine slept since it was asked last: one clock counts that time, and one does not."""

    def __init__(self, awake_s: float, since_boot_s: float) -> None:
        self._asleep_s = since_boot_s - awake_s

    def was(self, awake_s: float, since_boot_s: float) -> bool:
        before, self._asleep_s = self._asleep_s, since_boot_s - awake_s
        return self._asleep_s - before >= SLEPT_S
