"""When news are asked for, and of whom, on a clock that the test moves."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from metasync.service.hearing import Hearing, Sleep, Teller

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


def looks_after(h: Hearing, now: float, end: float) -> list[float]:
    """When looks are made that find nothing, until an end, after something happened."""
    made = []
    while h.due < end:
        made.append(h.due - now)
        h.whom(h.due, NAMES)
        h.looked(h.due, news=False, quorum=False)
    return made


def test_each_push_of_a_series_has_looks_be_more_seldom() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    made = []
    for at in range(5):
        h.pushed(1000.0 + 31.0 * at)
        made.append(looks_after(h, 1000.0 + 31.0 * at, 1031.0 + 31.0 * at))
    assert made == [[5.0, 15.0], [20.0], [], [], []]
    assert h.due == 1124.0 + 40.0, "and one comes soon where the series is over"


def test_a_push_of_a_series_does_not_put_off_what_is_tried_again() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    for at in range(5):
        h.pushed(1000.0 + 31.0 * at)
        looks_after(h, 1000.0 + 31.0 * at, 1031.0 + 31.0 * at)
    again_at = h.due
    h.failed(1150.0)
    assert h.due < again_at
    again_at = h.due
    h.pushed(1151.0)
    assert h.due == again_at


def test_a_push_that_comes_alone_has_looks_be_soon() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    for at in range(3):
        h.pushed(1000.0 + 60.0 * at)
        assert looks_after(h, 1000.0 + 60.0 * at, 1060.0 + 60.0 * at) == [5.0, 15.0, 35.0]


def test_news_within_a_series_of_pushes_have_looks_be_soon() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    for at in range(5):
        h.pushed(1000.0 + 31.0 * at)
        looks_after(h, 1000.0 + 31.0 * at, 1031.0 + 31.0 * at)
    h.happened(1150.0)
    h.pushed(1155.0)
    assert looks_after(h, 1155.0, 1186.0) == [5.0, 15.0]


def test_news_are_looked_for_again_soon() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.looked(60.0, news=True, quorum=True)
    assert h.due == 65.0


@pytest.mark.parametrize("by", ["broker", "watch"])
def test_a_backend_that_is_away_is_asked_each_second_time_and_sooner_where_looks_are_rare(by: Teller) -> None:
    h, asked = Hearing(0.0, lambda: 0.5), []
    h.looked(0.0, news=False, quorum=True)
    h.covered(0.0, by, True)
    assert h.due >= 600.0
    h.away(1.0, {"two"})
    began = h.due
    for _ in range(8):
        asked.append(h.whom(h.due, NAMES))
        h.looked(h.due, news=False, quorum=False, missed=asked[-1] == "two")
    assert (began, h.due) == (301.0, 301.0 + 8 * 300.0)
    assert asked[::2] == ["two"] * 4 or asked[1::2] == ["two"] * 4
    assert {*NAMES} == {*asked}, "and no other one is left out"
    h.away(h.due, ())
    h.looked(h.due, news=False, quorum=False)
    assert h.due >= 301.0 + 8 * 300.0 + 600.0


def test_a_pause_after_a_failure_is_not_cut_short_by_who_is_away() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.failed(0.0)
    h.due = h.pauses.until = 3600.0
    h.away(1.0, {"two"})
    assert h.due == 3600.0


def test_who_is_away_again_and_again_is_not_put_off() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.covered(0.0, "watch", True)
    for now in range(0, 300, 10):
        h.away(float(now), {"two"})
    assert h.due == 300.0


def test_one_that_is_away_and_is_none_of_those_asked_changes_no_turns() -> None:
    h, other = Hearing(0.0, lambda: 0.5), Hearing(0.0, lambda: 0.5)
    h.away(0.0, {"of another form"})
    for one in (h, other):
        one.looked(0.0, news=False, quorum=True)
    assert [h.whom(1.0, NAMES) for _ in range(6)] == [other.whom(1.0, NAMES) for _ in range(6)]


def test_a_hint_asks_a_quorum_soon_and_many_hints_do_so_once() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.hint(10.0)
    assert h.due == 10.05
    assert h.whom(10.05, NAMES) is None
    h.looked(10.05, news=False, quorum=True)
    for at in range(100):
        h.hint(10.1 + at / 1000)
    assert h.due == 11.05


def test_a_flood_of_hints_is_bounded() -> None:
    h, now, looks = Hearing(0.0, lambda: 0.5), 0.0, 0
    while now < 60.0:
        h.hint(now)
        if h.due <= now:
            looks += 1
            h.looked(now, news=False, quorum=True)
        now += 0.01
    assert looks <= 61


def test_pauses_after_failures_grow_and_hints_do_not_pass_them_by() -> None:
    h = Hearing(0.0, lambda: 0.5)
    assert sum(hours(h, 0.0, 3600.0, fails=True).values()) < 20
    until = h.due
    h.hint(until - 100.0)
    assert h.due == until
    h.ask(until - 99.0)
    assert h.due == until - 99.0


def day(h: Hearing, *watched: str) -> Counter[str | None]:
    """Who is asked in a day where something tells of news."""
    hours(h, h.due, h.due + 7 * 3600.0)
    now, asked = h.due, Counter[str | None]()
    end = now + 24 * 3600.0
    while (now := max(now, h.due)) < end:
        whom = h.whom(now, NAMES, watched)
        asked[whom] += 1
        h.looked(now, news=False, quorum=whom is None)
    return asked


@pytest.mark.parametrize(("by", "most"), [("watch", 48), ("broker", 160)])
def test_where_something_tells_of_news_it_is_hardly_asked(by: Teller, most: int) -> None:
    h = Hearing(0.0, random.Random(4).random)
    h.covered(0.0, by, True)
    assert h.is_covered
    asked = day(h)
    assert 24 <= sum(asked.values()) <= most
    assert asked[None] <= 5, "a quorum"


def test_rare_looks_go_to_backends_that_nothing_watches() -> None:
    h = Hearing(0.0, random.Random(5).random)
    h.covered(0.0, "watch", True)
    asked = day(h, "two")
    assert asked["two"] == 0
    assert asked["one"] > 0
    assert asked["three"] > 0
    assert day(h, *NAMES)["two"] > 0, "where all are watched, a watch that says nothing is looked at all the same"


def test_what_tells_of_news_no_more_has_them_asked_as_if_it_had_never_done_so() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.covered(1.0, "watch", True)
    h.covered(2.0, "broker", True)
    assert h.due == 2400.0
    h.covered(3.0, "watch", False)
    assert h.due == 600.0
    h.covered(300.0, "broker", False)
    assert h.due == 300.0, "nobody was asked for longer than a minute"
    h.covered(301.0, "broker", False)
    assert h.due == 300.0


def test_what_tells_and_tells_no_more_again_and_again_keeps_no_look_from_being_due() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    for at in range(0, 120, 2):
        h.covered(float(at), "broker", True)
        h.covered(at + 1.0, "broker", False)
    assert h.due < 120.0


def test_a_watch_has_its_backend_asked_and_anybody_else_a_quorum() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    h.hint(10.0, "two")
    assert h.whom(10.05, NAMES) == "two"
    h.looked(10.1, news=False, quorum=False)
    h.hint(20.0, "two")
    h.hint(20.0)
    assert h.whom(20.05, NAMES) is None
    h.looked(20.1, news=False, quorum=True)
    h.hint(30.0, "in blocks")
    assert h.whom(30.05, NAMES) is None, "it cannot be asked with one request"


def test_each_backend_that_told_is_asked_in_turn() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    for name in ("two", "one"):
        h.hint(10.0, name)
    asked = []
    for _ in range(2):
        asked.append(h.whom(h.due, NAMES))
        h.looked(h.due, news=False, quorum=False)
    assert asked == ["one", "two"]
    assert h.due > 15.0


def test_a_hint_that_comes_during_a_look_is_not_answered_by_it() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.covered(0.0, "watch", True)
    h.hint(10.0, "two")
    assert h.whom(10.05, NAMES) is None, "the first look asks a quorum"
    h.hint(10.5, "two")
    h.looked(11.0, news=False, quorum=True)
    assert h.due == 12.0
    assert h.whom(12.0, NAMES) == "two"
    h.looked(12.1, news=False, quorum=False)
    assert h.due > 1000.0


def test_a_sleep_is_seen_once_and_clocks_that_drift_are_none() -> None:
    sleep = Sleep(100.0, 1000.0)
    assert not sleep.was(160.0, 1060.0)
    assert sleep.was(161.0, 1061.0 + 3600.0)
    assert not sleep.was(221.0, 1121.0 + 3600.0)
    assert not any(sleep.was(221.0 + n, 4721.0 + n * 1.01) for n in range(600))


def test_where_no_backend_answers_in_turn_a_quorum_is_asked() -> None:
    h = Hearing(0.0, lambda: 0.5)
    h.looked(0.0, news=False, quorum=True)
    asked = []
    for _ in range(4):
        asked.append(h.whom(h.due, NAMES))
        h.looked(h.due, news=False, quorum=asked[-1] is None, missed=asked[-1] is not None)
    assert asked[-1] is None
    assert set(asked[:3]) == set(NAMES)
    assert h.whom(h.due, NAMES) is not None
