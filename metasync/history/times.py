"""The dates and times that people write, for `log --since` and `--until` and for versions (`@2026-11-20`).

2026-11-20             that day, in local time
2026-11-20T14:00       that minute; 14:00:30 that second; Z or +02:00 behind it for another zone than the local one
today, yesterday, now
2 days ago             seconds, minutes, hours, days, weeks, months or years; "a" or "an" is one
"""

from __future__ import annotations

import calendar
import datetime as dt
import re

WAYS = "2026-11-20, 2026-11-20T14:00, `today`, `yesterday`, `now`, or `2 days ago` (seconds to years)"
_AGO = re.compile(r"(?P<n>[0-9]{1,6}|an?)\s+(?P<unit>second|minute|hour|day|week|month|year)s?\s+ago")
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{4}-?W[0-9]{2}(-?[1-7])?")
_DAY = dt.timedelta(days=1)


def span(text: str, now: dt.datetime | None = None) -> tuple[int, int]:
    """The first and the last nanosecond since 1970 of what a text names. `ValueError`: it names no time.

    `now`: with its zone, which is the local one; the machine's if it is not given.
    """
    now = now or dt.datetime.now().astimezone()
    word = " ".join(text.lower().split())
    try:
        if word in ("today", "yesterday"):
            return _day(now.date() - (_DAY if word == "yesterday" else dt.timedelta()), now)
        if word == "now":
            return _ns(now), _ns(now)
        if ago := _AGO.fullmatch(word):
            then = _ns(_before(now, 1 if ago["n"].startswith("a") else int(ago["n"]), ago["unit"]))
            return then, then
        if _DATE.fullmatch(text.strip()):
            return _day(dt.date.fromisoformat(text.strip()), now)
        when = dt.datetime.fromisoformat(text.strip())
    except (OverflowError, OSError) as e:
        raise ValueError(str(e)) from e
    first = when.replace(microsecond=0) if when.tzinfo else _local(when.replace(microsecond=0), now)
    return _ns(first), _ns(first) + 10**9 - 1


def _local(when: dt.datetime, now: dt.datetime) -> dt.datetime:
    """A time on local clocks. Those of the machine know about summer; those of `now` are for who gives another."""
    here = dt.datetime.now().astimezone().utcoffset() == now.utcoffset()
    return when.astimezone() if here else when.replace(tzinfo=now.tzinfo)


def _day(day: dt.date, now: dt.datetime) -> tuple[int, int]:
    midnight = dt.datetime.combine(day, dt.time())
    return _ns(_local(midnight, now)), _ns(_local(midnight + _DAY, now)) - 1


def _before(now: dt.datetime, n: int, unit: str) -> dt.datetime:
    if unit in ("month", "year"):
        years, month = divmod(now.year * 12 + now.month - 1 - n * (12 if unit == "year" else 1), 12)
        if years < dt.MINYEAR:
            raise ValueError("before the first year")
        return now.replace(year=years, month=month + 1, day=min(now.day, calendar.monthrange(years, month + 1)[1]))
    return now - dt.timedelta(**{f"{unit}s": n})


def _ns(when: dt.datetime) -> int:
    return int(when.timestamp()) * 10**9 + when.microsecond * 1000
