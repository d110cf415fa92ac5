"""What the settings of a device mean: how much it may use, when, over how many connections. Pure.

    limit.up             bytes a second that leave this device, over all backends; with the time of day if wanted
    limit.down           the same for what comes in
    limit.up.NAME        to that backend alone, within what `limit.up` leaves; limit.down.NAME likewise
    limit.connections    calls at once, on each backend; limit.connections.NAME on that one
    limit.requests       requests a minute to each backend, in place of what its provider publishes; limit.requests.NAME
    nice                 how far the command line steps back for other programs, as `nice` has it
    durability           for how many copies of everything a push waits that is not told; all, where fewer are promised
    cache-mb             megabytes of directories, history and agreed records that are kept at most
    base-cache-mb        megabytes of old chunks that are kept at most, to store changes of large files as deltas
    scrub.days           within so many days every copy is read where a store tells no digests; 0: none is
    daemon.quiet         the daemon pushes when nothing changed for so long; 5s
    daemon.delta         or when a push would send so much; 250k
    daemon.longest       or when a change has waited for so long; 30s
    daemon.ask           it asks for news of others about so often while nothing happens; 60s
    daemon.trash         what pulls replaced or deleted here stays in .metasync/replaced for so many days; 0
    special-modes        `on`: set-id and sticky bits of what others pushed are set here too
    notify.*, daemon.*   what the daemon tells and hears: `daemon_keys`

Theory of operation of a rate. A line counts bytes: those that calls have booked, and those that its rate has let pass
since. A call has a place, the end of its bytes among all that are booked, and begins when all but BURST_S's worth of
them has passed. So it waits for its own bytes too, before it sends them: a large put is one request, which is not
slowed down once it is on its way, and the rate holds over any time from the first byte on. An idle line saves up
nothing but the burst. Urgent calls are booked and do not wait, which makes the others wait for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from metasync.errors import UsageError
from metasync.runtime.sizes import CALLS_MAX

BURST_S: Final = 0.05  # what may go at once after a rest: next to nothing of any transfer that lasts
TICK_S: Final = 1e-6  # what rounding leaves of a wait is none
RATE_LEAST: Final = 1 << 10  # below that nothing ends; a pause is what is meant
RATE_MOST: Final = 1 << 40
NICE_MOST: Final = 19
COPIES_MOST: Final = 255  # as many as a workspace can promise
REQUESTS_LEAST: Final = 10  # below that nothing ends
REQUESTS_MOST: Final = 1_000_000
CACHE: Final = "cache-mb"
CACHE_MB_LEAST: Final = 64
BASE_CACHE: Final = "base-cache-mb"
SCRUB_DAYS: Final = "scrub.days"
SCRUB_DAYS_MOST: Final = 3650
QUIET: Final = "daemon.quiet"
DELTA: Final = "daemon.delta"
LONGEST: Final = "daemon.longest"
ASK: Final = "daemon.ask"
TRASH: Final = "daemon.trash"
TRASH_DAYS_MOST: Final = 3650
SPANS: Final = {QUIET: (1.0, 600.0), LONGEST: (1.0, 3600.0), ASK: (10.0, 86_400.0)}  # seconds, least and most
NUMBERS: Final = {
    "nice": (0, NICE_MOST),
    "durability": (1, COPIES_MOST),
    CACHE: (CACHE_MB_LEAST, 1 << 20),
    BASE_CACHE: (0, 1 << 20),
    SCRUB_DAYS: (0, SCRUB_DAYS_MOST),
    TRASH: (0, TRASH_DAYS_MOST),
}
EXAMPLES: Final = {"nice": 4, "durability": 1, CACHE: 512, BASE_CACHE: 2048, SCRUB_DAYS: 90, TRASH: 30}
SPECIAL_MODES: Final = "special-modes"
UPKEEP: Final = "upkeep"
ON, OFF = "on", "off"
WINDOWS_MAX: Final = 48  # of a day: more than that nobody reads
DAY_MINUTES: Final = 24 * 60

_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmg]?)(i?)b?(?:/s|ps)?", re.IGNORECASE)
_WINDOW = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s+(.+)")
_KEY = re.compile(r"limit\.(up|down|connections|requests)(?:\.([a-z0-9][a-z0-9._-]{0,39}))?")
_DURATION = re.compile(r"(?:(\d{1,3})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?")
_SECONDS: Final = (86_400, 3_600, 60, 1)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3}

DAEMON_KEYS: Final = (
    "notify.desktop",
    "notify.webhook",
    "notify.command",
    "notify.after",
    "daemon.broker",
    "daemon.metrics",
)
"""Of what the daemon tells and hears: `daemon_keys` has what they mean, and is loaded where one is set."""

KEYS_STEP: Final = (
    "There are: limit.up, limit.down, limit.connections, limit.requests (each also for one backend: limit.up.NAME), "
    "nice, durability, cache-mb, base-cache-mb, scrub.days, special-modes, upkeep, daemon.quiet, daemon.delta, "
    f"daemon.longest, daemon.ask, daemon.trash, {', '.join(DAEMON_KEYS)}."
)
RATE_STEP: Final = (
    "Write bytes a second such as 500k, 2M or off; with hours before one that holds for a part of the day:"
    ' "9:00-18:00 500k, 2M".'
)


class Window(NamedTuple):
    """A rate for a part of every day, in minutes since midnight; `end` may lie before `start`. None: no limit."""

    start: int
    end: int
    bytes_per_s: float | None

    def holds(self, minute: int) -> bool:
        if self.start <= self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


class Schedule(NamedTuple):
    """The first window that holds counts, and `otherwise` where none does."""

    windows: tuple[Window, ...]
    otherwise: float | None

    def rate(self, minute: int) -> float | None:
        """Bytes a second at this minute of the day; None: no limit."""
        return next((w.bytes_per_s for w in self.windows if w.holds(minute)), self.otherwise)


class Limits(NamedTuple):
    """All that is set, understood. By backend name, "" for what holds for all of them."""

    up: Mapping[str, Schedule]
    down: Mapping[str, Schedule]
    connections: Mapping[str, int]
    nice: int | None
    durability: int | None
    requests: Mapping[str, float] = MappingProxyType({})  # a minute; infinite: as many as one likes


def parse_rate(text: str) -> float | None:
    """Bytes a second of `500k`, `2M`, `1.5 MiB/s` (powers of 1,024, as sizes are shown); None for `off`."""
    plain = text.strip()
    if plain.lower() in ("off", "none", "unlimited"):
        return None
    match = _RATE.fullmatch(plain)
    rate = float(match[1]) * 1024.0 ** _POWERS[match[2].lower()] if match else 0.0
    if not RATE_LEAST <= rate <= RATE_MOST:
        why = "not a rate" if match is None else "too low a rate" if rate < RATE_LEAST else "too high a rate"
        step = f"{RATE_STEP} To stop all transfers: metasync pause." if match and rate < RATE_LEAST else RATE_STEP
        raise UsageError(f"{why}: {text.strip()[:40]!r}", next_step=step)
    return rate


def parse_schedule(text: str) -> Schedule:
    """A rate, or several with hours before them and commas between. `UsageError` for anything else."""
    windows: list[Window] = []
    plain: list[float | None] = []
    for part in text.split(","):
        match = _WINDOW.fullmatch(part.strip())
        if match is None:
            plain.append(parse_rate(part))
        else:
            windows.append(Window(_minute(match[1], match[2]), _minute(match[3], match[4]), parse_rate(match[5])))
    if len(plain) > 1:
        raise UsageError(f"two rates for the same time: {text[:60]!r}", next_step=RATE_STEP)
    if len(windows) > WINDOWS_MAX:
        raise UsageError(f"more than {WINDOWS_MAX} times of day", next_step=RATE_STEP)
    for window in windows:
        if window.start == window.end:
            raise UsageError(
                f"a time of day that ends when it begins: {text[:60]!r}", next_step="For the whole day leave it out."
            )
    return Schedule(tuple(windows), plain[0] if plain else None)


def _minute(hour: str, minute: str) -> int:
    at = int(hour) * 60 + int(minute)
    if int(minute) > 59 or at > DAY_MINUTES:
        raise UsageError(f"not a time of day: {hour}:{minute}", next_step="Times run from 0:00 to 24:00.")
    return at


def _number(key: str, text: str, least: int, most: int) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or not least <= int(text.strip()[:9]) <= most:
        raise UsageError(
            f"{key} is a number from {least} to {most}, not {text[:40]!r}",
            next_step=f"Write, say: metasync config set {key} {EXAMPLES.get(key, 8)}",
        )
    return int(text)


def _requests(key: str, text: str) -> float:
    if text.strip() == OFF:
        return math.inf
    return _number(key, text, REQUESTS_LEAST, REQUESTS_MOST)


def parse_duration(text: str) -> float:
    """Seconds of `90m`, `2h`, `1h30m`, `45s`, `2d`. `UsageError` for another form."""
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = sum(int(n) * unit for n, unit in zip(match.groups("0"), _SECONDS, strict=True)) if match else 0
    if seconds <= 0:
        raise UsageError(f"not a length of time: {text[:40]!r}", next_step="Write 90m, 2h, 1h30m, 45s or 2d, say.")
    return float(seconds)


def parse_size(text: str) -> float:
    """Bytes of `250k` or `2M`, as a rate is written. `UsageError` for another form, and for none."""
    size = parse_rate(text)
    if size is None:
        raise UsageError(f"not a size: {text.strip()[:40]!r}", next_step="Write 250k or 2M, say.")
    return size


def _span(key: str, text: str) -> None:
    least, most = SPANS[key]
    if not least <= parse_duration(text) <= most:
        raise UsageError(f"{key} lasts from {least:g} to {most:g} seconds, not {text.strip()[:40]!r}")


def check_key(key: str) -> None:
    """`UsageError` if there is no such setting."""
    if key not in (*NUMBERS, *SPANS, DELTA, SPECIAL_MODES, UPKEEP, *DAEMON_KEYS) and _KEY.fullmatch(key) is None:
        raise UsageError(f"no setting is called {key[:60]!r}", next_step=KEYS_STEP)


def check(key: str, value: str) -> None:
    """`UsageError` if there is no such setting, or it does not take this value."""
    check_key(key)
    match = _KEY.fullmatch(key)
    if key == SPECIAL_MODES:
        if value.strip() not in (ON, OFF):
            raise UsageError(
                f"{key} is on or off, not {value[:40]!r}", next_step=f"Write: metasync config set {key} on"
            )
    elif key == UPKEEP:
        if value != OFF:
            parse_duration(value)
    elif key in SPANS:
        _span(key, value)
    elif key == DELTA:
        parse_size(value)
    elif key in DAEMON_KEYS:
        from metasync.runtime.daemon_keys import AFTER, CHECKS

        CHECKS[key](value) if key != AFTER else parse_duration(value)
    elif match is None:
        _number(key, value, *NUMBERS[key])
    elif match[1] == "connections":
        _number(key, value, 1, CALLS_MAX)
    elif match[1] == "requests":
        _requests(key, value)
    else:
        parse_schedule(value)


def backend_of(key: str) -> str | None:
    """The backend that a setting is for; None: it is for all."""
    match = _KEY.fullmatch(key)
    return match[2] if match is not None else None


def understood(values: Mapping[str, str]) -> Limits:
    """Settings as they are kept. `UsageError` if one of them is wrong."""
    rates: dict[str, dict[str, Schedule]] = {"up": {}, "down": {}}
    connections: dict[str, int] = {}
    requests: dict[str, float] = {}
    numbers: dict[str, int] = {}
    for key, value in values.items():
        check(key, value)
        match = _KEY.fullmatch(key)
        if key in (SPECIAL_MODES, UPKEEP, DELTA, *SPANS, *DAEMON_KEYS):
            continue
        if match is None:
            numbers[key] = int(value)
        elif match[1] == "connections":
            connections[match[2] or ""] = int(value)
        elif match[1] == "requests":
            requests[match[2] or ""] = _requests(key, value)
        else:
            rates[match[1]][match[2] or ""] = parse_schedule(value)
    return Limits(rates["up"], rates["down"], connections, numbers.get("nice"), numbers.get("durability"), requests)


class Line:
    """One rate in one direction: see the head of this module. `now` never goes back. Not for two threads at once."""

    def __init__(self) -> None:
        self._booked = 0.0
        self._passed = 0.0
        self._at: float | None = None
        self._places: dict[Hashable, tuple[float, int]] = {}  # who waits -> the end of its bytes, and how many

    def wait_s(self, now: float, rate: float | None, who: Hashable, size_bytes: int) -> float:
        """How long `who` must wait before it moves so many bytes, at this rate; it has a place from now on."""
        self._pass(now, rate)
        end, size = self._places.get(who, (self._booked, 0))
        self._shift(end, size_bytes - size)
        end += size_bytes - size
        self._places[who] = (end, size_bytes)
        left_s = 0.0 if rate is None else (end - BURST_S * rate - self._passed) / rate
        return left_s if left_s > TICK_S else 0.0

    def go(self, who: Hashable) -> None:
        """It moves its bytes now."""
        self._places.pop(who, None)

    def leave(self, who: Hashable) -> None:
        """It does not move them after all."""
        end, size = self._places.pop(who, (self._booked, 0))
        self._shift(end, -size)

    def count(self, now: float, rate: float | None, size_bytes: int) -> None:
        """So many bytes were moved without a place; fewer than were booked where negative."""
        self._pass(now, rate)
        self._shift(self._booked if size_bytes > 0 else -math.inf, size_bytes)

    def _shift(self, after: float, size_bytes: int) -> None:
        """Books so many bytes more or fewer at a point. The places after it move with them: one that stood beyond what
        is booked would wait for bytes that nobody moves."""
        self._booked += size_bytes
        for who, (end, size) in self._places.items():
            if end > after:
                self._places[who] = end + size_bytes, size

    def _pass(self, now: float, rate: float | None) -> None:
        if rate is None:
            self._passed = self._booked
        elif self._at is not None:
            self._passed = self._passed + rate * (now - self._at)
        self._passed = min(self._passed, self._booked)
        self._at = now
