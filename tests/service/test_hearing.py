"""When news are asked for, and of whom, on a clock that the test moves."""

from __future__ import annotations

import random
from collections import Counter

from metasync.service.hearing import Hearing

NAMES = ("one", "two", "three")


def hours(h: Hearing, begin: float, end: float, *, fails: bool = False) -> Counter[str | None]:
    """Who is asked between two times, where nothing is new."""
    now, asked = begin, Counter[str | None]()
    while (now := max(now, h.due)) < end:
        whom = h.whom(now, NAMES)
        asked[whom] += 1
        if fails:
            h.failed(now)
        else:
            h.looked(now, news=False, quorum=whom is None)
    return asked


def test_the_first_look_asks_a_quorum_at_once() -> None:
    h = Hearing(100.0, lambda: 0.5)
    assert h.due == 100.0
    assert h.whom(100.0, NAMES) is None


def test_in_quiet_one_backend_is_asked_a_minute_in_turn_and_a_quorum_once_an_hour() -> None:
    h = Hearing(0.0, random.Random(1).random)
    asked = hours(h, 0.0, 3590.0)
    assert asked[None] == 1
    assert 54 <= sum(asked.values()) <= 66
    assert max(asked[name] for name in NAMES) - min(asked[name] for name in NAMES) <= 1


def test_where_nothing_happens_for_long_it_is_asked_more_seldom() -> None:
    h = Hearing(0.0, random.Random(2).random)
    hours(h, 0.0, 4000.0)
    assert sum(hours(h, 4000.0, 4000.0 + 3600.0).values()) <= 16


def test_after_something_happened_it_is_asked_sooner() -> None:
    h = Hearing(0.0, random.Random(3).random)
    hours(h, 0.0, 3000.0)
    h.happened(3000.0)
    assert sum(hours(h, 3000.0, 3090.0).values()) >= 4


def test_news_are_looked_for_again_soon() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.looked(60.0, news=True, quorum=True)
    assert h.due == 65.0


def test_a_hint_asks_a_quorum_soon_and_many_hints_do_so_once() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.hint(10.0)
    assert h.due == 10.05
    assert h.whom(10.05, NAMES) is None
    h.looked(10.05, news=False, quorum=True)
    for at in range(100):
        h.hint(10.1 + at / 1000)
    assert h.due == 12.05


def test_a_flood_of_hints_is_bounded() -> None:
    h, now, looks = Hearing(0.0, lambda: 0.5), 0.0, 0
    while now < 60.0:
        h.hint(now)
        if h.due <= now:
            looks += 1
            h.looked(now, news=False, quorum=True)
        now += 0.01
    assert looks <= 31


def test_pauses_after_failures_grow_and_hints_do_not_pass_them_by() -> None:
    h = Hearing(0.0, lambda: 0.5)
    assert sum(hours(h, 0.0, 3600.0, fails=True).values()) < 20
    until = h.due
    h.hint(until - 100.0)
    assert h.due == until
    h.ask(until - 99.0)
    assert h.due == until - 99.0


def test_where_something_tells_of_news_it_is_hardly_asked() -> None:
    h = Hearing(0.0, random.Random(4).random)
    h.is_covered = True
    hours(h, 0.0, 300.0)
    assert sum(hours(h, 300.0, 3900.0).values()) <= 3
