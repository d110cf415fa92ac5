"""How far a command is, as one line: what is done, how fast, for how long and how long on. Pure: times come in.

    upload  43%  1.2 GiB of 2.8 GiB  24.1 MiB/s up  0:51, 1:07 left  (b 12.1 MiB/s, c 12.0 MiB/s)

What is done never gets less: where a phase begins once more, after a merge say, what it does counts on top. Rates are
those of the last RATE_S seconds, of packs alone: the kilobytes that devices agree by say nothing of a line. Time left
goes by what was done in the last LEFT_S seconds: packs end in bursts, and a shorter look would take each for the pace.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from metasync.codec import duration
from metasync.events import Event, Phase, Progress, Transferred
from metasync.terminal.text import phrases

RATE_S: Final = 5.0
LEFT_S: Final = 30.0
LEAST_S: Final = 1.0  # over less than that no rate is worth telling
LEFT_LEAST_S: Final = 3.0  # and no time left
LEFT_MAX_S: Final = 100 * 3600.0  # longer than that is no estimate
NAMES_MAX: Final = 6  # backends in a line, the fastest
TURN: Final = "agree"  # the phase that begins while others still send
LONG_S: Final = 5.0  # an operation that took longer is summed up


class _Rate:
    """Units a second, lately."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._recent: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, size: float) -> None:
        self._recent.append((now, size))
        self._sum += size
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - self._window_s:
            self._sum -= self._recent.popleft()[1]

    def of(self, now: float, since: float) -> float:
        """`since`: when there was nothing before."""
        self._forget(now)
        return self._sum / max(min(now - since, self._window_s), LEAST_S) if self._recent else 0.0


class _Stretch:
    """How far one phase is, all times it was begun together. `before`: what was done when it began anew."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.unit = ""
        self.done = 0
        self.total: int | None = None
        self.percent: int | None = None
        self.before = 0
        self.lately = _Rate(LEFT_S)

    def add(self, event: Progress, now: float) -> None:
        if self.before + event.done < self.done:  # the same once more: another attempt, on top of what was done
            self.before = self.done
        done = self.before + event.done
        self.lately.add(now, done - self.done)
        self.unit, self.done = event.unit, done
        self.total = None if event.total is None else self.before + event.total
        if self.total:
            self.percent = max(self.percent or 0, min(100, 100 * self.done // self.total))

    @property
    def sends(self) -> bool:
        """Whether bytes are under way, of which it is known how many they are."""
        return self.unit == "B" and self.total is not None and self.done < self.total

    def left_s(self, now: float) -> float | None:
        """How long it takes on; None where nothing says so."""
        if self.total is None or self.done >= self.total or now - self.since < LEFT_LEAST_S:
            return None
        rate = self.lately.of(now, self.since)
        seconds = (self.total - self.done) / rate if rate > 0 else LEFT_MAX_S
        return seconds if seconds < LEFT_MAX_S else None


class Meter:
    """Takes events and gives a line. Not for two threads at once."""

    def __init__(self) -> None:
        self._phase = ""
        self._next = ""
        self._began: float | None = None
        self._stretches: dict[str, _Stretch] = {}
        self._moved = {"up": 0, "down": 0}
        self._rates: dict[tuple[str, str], _Rate] = {}
        self._born: dict[tuple[str, str], float] = {}

    def add(self, event: Event, now: float) -> None:
        if self._began is None:
            self._began = now
        if isinstance(event, Phase):
            self._begin(event.name, now)
        elif isinstance(event, Progress):
            self._begin(event.phase, now)
            self._stretches[event.phase].add(event, now)
            self._settle()
        elif isinstance(event, Transferred) and event.pack:
            self._moved[event.direction] += event.bytes
            key = (event.backend, event.direction)
            self._born.setdefault(key, now - event.seconds)
            self._rates.setdefault(key, _Rate(RATE_S)).add(now, event.bytes)

    def _begin(self, phase: str, now: float) -> None:
        """Goes on with a phase where another came between, and stays with it while it moves bytes.

        A push asks for its turn in the agreement while it sends: that is not what takes the time.
        """
        if phase == self._phase:
            return
        here = self._stretches.get(self._phase)
        self._stretches.setdefault(phase, _Stretch(now))
        self._next = phase if phase == TURN and here is not None and here.sends else ""
        if not self._next:
            self._phase = phase

    def _settle(self) -> None:
        """Goes on to the phase that waits for the end of this one's bytes."""
        if self._next and not self._stretches[self._phase].sends:
            self._phase, self._next = self._next, ""

    def line(self, now: float, columns: int) -> str:
        """At most so many characters; "" while there is nothing to tell. What matters least is left out first."""
        core, amounts, speed, times, backends = self._parts(now)
        shown = ""
        for parts in (
            *((core, amounts, speed, times, f"({', '.join(backends[:n])})") for n in range(len(backends), 0, -1)),
            (core, amounts, speed, times), (core, amounts, times), (core, times), (core,),
        ):  # fmt: skip
            shown = "  ".join(p for p in parts if p)
            if len(shown) <= columns:
                return shown
        return shown[: max(0, columns)]

    def _parts(self, now: float) -> tuple[str, str, str, str, list[str]]:
        here = self._stretches.get(self._phase)
        percent = here.percent if here is not None else None
        core = self._phase + (f"  {percent:>2}%" if percent is not None else "")
        rates = {k: rate for k, r in self._rates.items() if (rate := r.of(now, self._born[k])) > 0}
        speeds = [
            f"{phrases.size(round(total))}/s {way}"
            for way in ("up", "down")
            if (total := sum(r for (_, w), r in rates.items() if w == way))
        ]
        fastest = sorted(((r, name) for (name, _), r in rates.items()), reverse=True)[:NAMES_MAX]
        backends = [f"{name} {phrases.size(round(r))}/s" for r, name in fastest] if len(rates) > 1 else []
        return core, self._amounts(here), ", ".join(speeds), self._times(here, now), backends

    def _amounts(self, here: _Stretch | None) -> str:
        if here is None or not here.unit:
            moved = sum(self._moved.values())
            return f"{phrases.size(moved)} moved" if moved else ""
        if here.unit == "B":
            return phrases.size(here.done) + (f" of {phrases.size(here.total)}" if here.total is not None else "")
        return f"{here.done:,}" + (f" of {here.total:,}" if here.total is not None else "") + f" {here.unit}"

    def _times(self, here: _Stretch | None, now: float) -> str:
        elapsed = now - self._began if self._began is not None else 0.0
        left = here.left_s(now) if here is not None else None
        if elapsed < LEAST_S or not self._phase:
            return ""
        return clock(elapsed) + (f", {clock(left)} left" if left is not None else "")

    def told(self, now: float) -> dict[str, object]:
        """The same as values, for a program: seconds, bytes or units, bytes a second."""
        here = self._stretches.get(self._phase)
        left = here.left_s(now) if here is not None else None
        rates = {k: r.of(now, self._born[k]) for k, r in self._rates.items()}
        return {
            "event": "progress",
            "phase": self._phase,
            "done": here.done if here is not None else 0,
            "total": here.total if here is not None else None,
            "unit": here.unit if here is not None else "",
            "percent": here.percent if here is not None else None,
            "elapsed_s": round(now - self._began, 1) if self._began is not None else 0.0,
            "left_s": round(left, 1) if left is not None else None,
            "up_bytes_s": round(sum(r for (_, way), r in rates.items() if way == "up")),
            "down_bytes_s": round(sum(r for (_, way), r in rates.items() if way == "down")),
        }

    def summary(self, now: float) -> str:
        """How much went how fast, of an operation that took long; else ""."""
        seconds = now - self._began if self._began is not None else 0.0
        if seconds < LONG_S:
            return ""
        words = {"up": "sent", "down": "received"}
        moved = [f"{words[way]} {phrases.size(size)}" for way, size in self._moved.items() if size]
        if not moved:
            return f"Took {duration(seconds)}."
        rate = phrases.size(round(sum(self._moved.values()) / seconds))
        return phrases.sentence(f"{' and '.join(moved)} in {duration(seconds)}, {rate}/s.")


def clock(seconds: float) -> str:
    """`0:08`, `3:20`, `2:05:00`: as wide as the time before, or wider."""
    s = round(seconds)
    minutes = f"{s // 60 % 60:02}" if s >= 3600 else f"{s // 60}"
    return (f"{s // 3600}:" if s >= 3600 else "") + f"{minutes}:{s % 60:02}"
