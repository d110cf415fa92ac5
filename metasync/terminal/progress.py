"""How far a command is, as one line: what is done, how fast each backend is, how long it takes on. Pure: times come in.

Rates are those of the last RATE_S seconds, so that the line says what happens now. Time left is told where the end is
known and something moved lately, and not before there is something to judge by.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from metasync.events import Event, Phase, Progress, Transferred
from metasync.terminal import text as _text

RATE_S: Final = 5.0
LEAST_S: Final = 1.0  # over less than that no rate is worth telling
LEFT_MAX_S: Final = 100 * 3600.0  # longer than that is no estimate
NAMES_MAX: Final = 6  # backends in a line, the fastest


class _Rate:
    """Bytes a second, lately."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, size: float) -> None:
        self._recent.append((now, size))
        self._sum += size

    def of(self, now: float, since: float) -> float:
        """`since`: when there was nothing before."""
        while self._recent and self._recent[0][0] < now - RATE_S:
            self._sum -= self._recent.popleft()[1]
        return self._sum / max(min(now - since, RATE_S), LEAST_S) if self._recent else 0.0


class Meter:
    """Takes events and gives a line. Not for two threads at once."""

    def __init__(self) -> None:
        self._phase = ""
        self._last: Progress | None = None
        self._since = 0.0  # when this phase began
        self._packs = 0
        self._moved = 0
        self._done = _Rate()
        self._before: dict[str, tuple[float, Progress | None, _Rate]] = {}  # phases that others came between
        self._rates: dict[tuple[str, str], _Rate] = {}
        self._born: dict[tuple[str, str], float] = {}

    def add(self, event: Event, now: float) -> None:
        if isinstance(event, Phase):
            if event.name != self._phase:  # packs may have gone before all of the folder was looked at
                self._begin(event.name, now)
        elif isinstance(event, Progress):
            if event.phase != self._phase:
                self._begin(event.phase, now)
            if self._last is not None and event.done < self._last.done:  # the same once more: another attempt
                self._since, self._last, self._done = now, None, _Rate()
            before = self._last.done if self._last is not None else 0
            self._done.add(now, max(0, event.done - before))
            self._last = event
        elif isinstance(event, Transferred):
            self._packs += event.pack
            self._moved += event.bytes
            key = (event.backend, event.direction)
            self._born.setdefault(key, now - event.seconds)
            self._rates.setdefault(key, _Rate()).add(now, event.bytes)

    def _begin(self, phase: str, now: float) -> None:
        """Goes on with a phase where another came between: a push asks for the agreement's turn while it sends."""
        if self._last is not None and self._last.total is not None and self._last.done < self._last.total:
            self._before[self._phase] = self._since, self._last, self._done
        self._since, self._last, self._done = self._before.pop(phase, (now, None, _Rate()))
        self._phase = phase

    def line(self, now: float, columns: int) -> str:
        """At most so many characters; "" while there is nothing to tell."""
        parts = [self._how_far(), self._left(now), self._by_backend(now)]
        text = ", ".join(p for p in parts if p)
        return text if len(text) <= columns else text[: max(0, columns - 3)] + "..."[: max(0, columns)]

    def _how_far(self) -> str:
        p = self._last
        if p is None:
            moved = f"{_text.size(self._moved)} moved" if self._moved else ""
            return ": ".join(t for t in (self._phase, moved) if t) + self._in_packs(moved)
        if p.unit != "B":
            total = "" if p.total is None else f" of {p.total:,}"
            return f"{p.phase}: {p.done:,}{total} {p.unit}"
        total = "" if p.total is None else f" of {_text.size(p.total)}"
        text = f"{p.phase}: {_text.size(p.done)}{total}"
        return text + self._in_packs(text)

    def _in_packs(self, said: str) -> str:
        return f" in {_text.count(self._packs, 'piece')}" if self._packs and said else ""

    def _left(self, now: float) -> str:
        p = self._last
        if p is None or p.total is None or p.done >= p.total or now - self._since < LEAST_S:
            return ""
        rate = self._done.of(now, self._since)
        seconds = (p.total - p.done) / rate if rate > 0 else LEFT_MAX_S
        return f"{duration(seconds)} left" if seconds < LEFT_MAX_S else ""

    def _by_backend(self, now: float) -> str:
        rates = [(r.of(now, self._born[k]), k) for k, r in self._rates.items()]
        fastest = sorted(((r, k) for k, r in ((k, r) for r, k in rates) if r > 0), reverse=True)[:NAMES_MAX]
        told = [f"{name} {_text.size(int(rate))}/s {way}" for rate, (name, way) in fastest]
        return " | ".join(told)


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`."""
    s = max(1, round(seconds))
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60} s"
    return f"{s // 3600} h {s % 3600 // 60} min"
