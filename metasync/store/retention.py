"""Which versions a policy keeps: restic's words for `forget`, with their meaning there. Pure.

    last=N      the N newest versions
    hourly=N    of each of the N newest hours that have a version, the newest one; so daily, weekly (by ISO), monthly
                and yearly. `unlimited` in place of N: of every hour
    within=AGE  all versions that are older than the newest one by less than AGE: 1y5m7d2h
    tag=NAME    versions with this name

A version is kept if any of these keeps it. The newest one always is, and so are versions with a name (`metasync tag`).
While one of the numbers has some left, the oldest version is kept, too: restic does so, and history grows to the length
that was asked for. Versions carry no time zone, so hours and days are those of the device that applies the policy.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, TypeAlias

UNLIMITED: Final = -1
COUNT_MAX: Final = 1 << 31
NAME: Final = re.compile(r"[^\s=,~@\x00-\x1f\x7f][^\s=,~\x00-\x1f\x7f]{0,63}")
"""A version's name. No number, and none of the words that name versions: `is_name`."""
_NO_NAMES: Final = re.compile(r"v?[0-9]+|[0-9a-f]{8,64}|latest|base")
_AGE: Final = re.compile(r"(?:[0-9]{1,6}[ymdh])+")
_UNITS: Final = "ymdh"

Bucket: TypeAlias = Callable[[dt.datetime], tuple[int, ...]]


class Age(NamedTuple):
    """A span of the calendar: years and months have the length that they have where it is counted."""

    years: int = 0
    months: int = 0
    days: int = 0
    hours: int = 0

    def __str__(self) -> str:
        return "".join(f"{n}{unit}" for n, unit in zip(self, _UNITS, strict=True) if n) or "0h"

    def before(self, time: dt.datetime) -> dt.datetime:
        """The time so long before. A day that its month lacks is counted on into the next month, as restic's Go does.

        `datetime.min` where there is none.
        """
        year, month = divmod(time.year * 12 + time.month - 1 - self.years * 12 - self.months, 12)
        try:
            first = time.replace(year=year, month=month + 1, day=1)
            return first + dt.timedelta(days=time.day - 1 - self.days, hours=-self.hours)
        except (ValueError, OverflowError):
            return dt.datetime.min


@dataclass(frozen=True, slots=True)
class Keep:
    """A policy. A number of 0 and an age of None say nothing; one that says nothing at all keeps every version.

    `ValueError` for a number that is none of versions.
    """

    last: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: Age | None = None
    tag: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for word in COUNTS:
            if not UNLIMITED <= getattr(self, word) < COUNT_MAX:
                raise ValueError(f"{word}={getattr(self, word)}: it is a number from 1 on, or {UNLIMITED}, unlimited")

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self)) or self.within is not None

    def __str__(self) -> str:
        """The one text for it that `parse` reads."""
        numbers = ((name, getattr(self, name)) for name in COUNTS)
        words = [f"{name}={'unlimited' if n == UNLIMITED else n}" for name, n in numbers if n]
        words += [f"within={self.within}"] if self.within is not None else []
        return " ".join([*words, *(f"tag={name}" for name in sorted(set(self.tag)))])


COUNTS: Final = ("last", "hourly", "daily", "weekly", "monthly", "yearly")
_BUCKETS: Final[dict[str, Bucket]] = {
    "hourly": lambda t: (t.year, t.month, t.day, t.hour),
    "daily": lambda t: (t.year, t.month, t.day),
    "weekly": lambda t: t.isocalendar()[:2],
    "monthly": lambda t: (t.year, t.month),
    "yearly": lambda t: (t.year,),
}


def is_name(text: str) -> bool:
    """Whether a version may be called so."""
    return NAME.fullmatch(text) is not None and _NO_NAMES.fullmatch(text) is None


def parse(text: str) -> Keep:
    """Reads a policy: words such as `last=5 daily=7`, divided by spaces or commas. `ValueError` says what is wrong."""
    return of_words(word.partition("=")[::2] for word in re.split(r"[\s,]+", text.strip()) if word)


def of_words(words: Iterable[tuple[str, str]]) -> Keep:
    """The policy of pairs of a word and its value. `ValueError`."""
    found: dict[str, int] = {}
    within, names = None, set()
    for word, value in words:
        if word == "tag":
            if not is_name(value):
                raise ValueError(f"{value!r} is no name of a version")
            names.add(value)
        elif word in found or (word == "within" and within is not None):
            raise ValueError(f"{word} is given twice")
        elif word == "within":
            within = age_of(value)
        elif word in COUNTS:
            found[word] = _count_of(word, value)
        else:
            raise ValueError(f"{word!r} is none of {', '.join(COUNTS)}, within, tag")
    return Keep(**found, within=within, tag=tuple(sorted(names)))


def _count_of(word: str, value: str) -> int:
    if value == "unlimited":
        return UNLIMITED
    if not re.fullmatch("[0-9]{1,10}", value) or not 0 < int(value) < COUNT_MAX:
        raise ValueError(f"{word}={value}: it is a number from 1 on, or `unlimited`")
    return int(value)


def age_of(text: str) -> Age:
    """Reads an age such as 1y5m7d2h. `ValueError`."""
    if not _AGE.fullmatch(text):
        raise ValueError(f"{text!r} is no age: write years, months, days and hours, such as 1y5m7d2h")
    parts = {unit: int(number) for number, unit in re.findall("([0-9]+)([ymdh])", text)}
    if len(parts) != sum(text.count(unit) for unit in _UNITS):
        raise ValueError(f"{text!r} has a unit twice")
    return Age(*(parts.get(unit, 0) for unit in _UNITS))


class Stamped(NamedTuple):
    """A version and when it was pushed, by the clock of its device (ns since 1970)."""

    version: int
    time_ns: int


def kept(
    policy: Keep,
    versions: Iterable[Stamped],
    named: Iterable[tuple[str, int]],
    now_ns: int,
    zone: dt.tzinfo | None = None,
) -> frozenset[int]:
    """Which of these versions stay. `named`: names and their versions. `zone`: for hours and days; None: local time."""
    in_order = sorted(versions, reverse=True)
    if not policy or not in_order:
        return frozenset(v.version for v in in_order)
    names = dict(named)
    stay = {in_order[0].version, *names.values()}
    stay.update(v.version for v in in_order[: None if policy.last == UNLIMITED else policy.last])
    by_time = sorted(in_order, key=lambda v: (v.time_ns, v.version), reverse=True)
    times = [_local(v.time_ns, zone) for v in by_time]
    for word, bucket in _BUCKETS.items():
        stay |= _newest_of_each(getattr(policy, word), bucket, by_time, times)
    if policy.within is not None:
        past = [t for v, t in zip(by_time, times, strict=True) if v.time_ns <= now_ns]  # a wrong clock drops nothing
        since = policy.within.before(max(past, default=times[-1]))
        stay.update(v.version for v, t in zip(by_time, times, strict=True) if t > since)
    return frozenset(stay & {v.version for v in in_order})


def _newest_of_each(left: int, bucket: Bucket, by_time: Sequence[Stamped], times: Sequence[dt.datetime]) -> set[int]:
    """The newest version of each bucket, the newest buckets first, until `left` are taken; else the oldest one, too."""
    out: set[int] = set()
    last: tuple[int, ...] | None = None
    for at, (version, time) in enumerate(zip(by_time, times, strict=True)):
        if not left:
            break
        here = bucket(time)
        if here != last or at == len(by_time) - 1:
            out.add(version.version)
            last = here
            left -= left > 0
    return out


def _local(time_ns: int, zone: dt.tzinfo | None) -> dt.datetime:
    """The time as clocks on the wall show it. That of a clock that is no date: the nearest there is."""
    try:
        return dt.datetime.fromtimestamp(time_ns // 1_000_000_000, zone).replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return dt.datetime.max.replace(year=9000) if time_ns > 0 else dt.datetime(1970, 1, 1)
