"""What a policy keeps: restic's meaning of its words."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.store import retention
from metasync.store.retention import UNLIMITED, Age, Keep, Stamped, age_of, is_name, kept, parse

UTC = dt.UTC
NOW = dt.datetime(2026, 11, 23, 12, tzinfo=UTC)


def ns(time: dt.datetime) -> int:
    return int(time.timestamp()) * 1_000_000_000


def stamped(*times: str) -> list[Stamped]:
    """Versions 1, 2, ... of these times."""
    return [Stamped(v, ns(dt.datetime.fromisoformat(t).replace(tzinfo=UTC))) for v, t in enumerate(times, 1)]


def which(policy: str, versions: list[Stamped], **names: int) -> list[int]:
    return sorted(kept(parse(policy), versions, names.items(), ns(NOW), UTC))


WEEK = stamped(
    "2026-11-01T10", "2026-11-15T10", "2026-11-20T09", "2026-11-20T10", "2026-11-21T10", "2026-11-22T01",
    "2026-11-22T23", "2026-11-23T08",
)  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "stays"),
    [
        ("", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("last=1", [8]),
        ("last=3", [6, 7, 8]),
        ("last=unlimited", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("daily=2", [7, 8]),
        ("daily=3", [5, 7, 8]),
        ("hourly=2", [7, 8]),
        ("weekly=2", [7, 8]),  # 22 November is a Sunday
        ("weekly=3", [2, 7, 8]),
        ("monthly=1", [8]),
        ("monthly=2", [1, 8]),  # one is left over: the oldest stays
        ("yearly=unlimited", [1, 8]),
        ("within=1d", [7, 8]),
        ("within=33h", [6, 7, 8]),
        ("within=8d", [2, 3, 4, 5, 6, 7, 8]),
        ("within=1m", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("last=1 daily=3", [5, 7, 8]),
        ("tag=a", [8]),
    ],
)
def test_words(policy: str, stays: list[int]) -> None:
    assert which(policy, WEEK) == stays


@pytest.mark.parametrize("number", [-2, -(1 << 31), 1 << 31])
def test_a_number_that_is_none_of_versions_is_refused(number: int) -> None:
    """A slice up to -2 would drop the two oldest versions."""
    for word in retention.COUNTS:
        with pytest.raises(ValueError, match=f"{word}={number}: it is a number from 1 on"):
            Keep(**{word: number})  # type: ignore[arg-type]


def test_versions_with_names_stay() -> None:
    assert which("last=1", WEEK, draft=2, sent=4, gone=99) == [2, 4, 8]


def test_age_is_counted_from_the_newest_version_and_not_from_now() -> None:
    old = stamped("2020-01-01T00", "2020-01-09T00", "2020-01-10T00")
    assert which("within=2d", old) == [2, 3]


def test_a_clock_in_the_future_drops_nothing_by_age() -> None:
    versions = stamped("2026-11-21T00", "2031-01-01T00", "2026-11-22T00")
    assert which("within=2d", versions) == [1, 2, 3]


def test_clocks_that_disagree_take_one_day_once() -> None:
    """Two devices push in turn, one of them a day late: their days are told apart, not counted each time."""
    versions = stamped("2026-11-20T10", "2026-11-22T10", "2026-11-21T10", "2026-11-22T11", "2026-11-21T11")
    assert which("daily=3", versions) == [1, 4, 5]


def test_days_are_those_of_the_zone() -> None:
    versions = stamped("2026-11-22T20", "2026-11-22T22", "2026-11-23T02")
    east = dt.timezone(dt.timedelta(hours=3))
    assert sorted(kept(parse("daily=2"), versions, (), ns(NOW), UTC)) == [2, 3]
    assert sorted(kept(parse("daily=2"), versions, (), ns(NOW), east)) == [1, 3]


def test_times_that_are_no_dates() -> None:
    versions = [Stamped(1, -(1 << 63)), Stamped(2, (1 << 63) - 1), Stamped(3, 0)]
    assert kept(parse("daily=2 within=1y"), versions, (), 0, UTC) >= {3}


def test_a_clock_beyond_all_dates_is_no_day_of_1970() -> None:
    """Its version is the newest by time, and takes a day of its own; version 1 is the one of 1 January 1970."""
    versions = [Stamped(1, ns(dt.datetime(1970, 1, 1, 10, tzinfo=UTC))), Stamped(2, 10**30), Stamped(3, 1)]
    assert kept(parse("daily=2"), versions, (), ns(NOW), UTC) == {1, 2, 3}


def test_of_no_versions_none_stays() -> None:
    assert kept(parse("last=1 within=1d"), [], (), ns(NOW), UTC) == frozenset()


# ---- beside restic's own loop, written as its manual tells it


counts = st.sampled_from([UNLIMITED, 0, 0, 1, 2, 3, 7])
policies = st.builds(
    Keep, last=counts, hourly=counts, daily=counts, weekly=counts, monthly=counts, yearly=counts,
    within=st.none() | st.builds(Age, st.integers(0, 2), st.integers(0, 14), st.integers(0, 40), st.integers(0, 50)),
)  # fmt: skip
times = st.lists(st.integers(ns(dt.datetime(2023, 12, 25, tzinfo=UTC)), ns(NOW)), min_size=1, max_size=40)


def by_the_manual(policy: Keep, versions: list[Stamped]) -> set[int]:
    """Goes through all, the newest first, with a counter and the last value for each rule."""
    rules: list[tuple[int, Callable[[dt.datetime, int], object]]] = [
        (policy.last, lambda _, n: n),
        (policy.hourly, lambda t, _: f"{t:%Y%m%d%H}"),
        (policy.daily, lambda t, _: f"{t:%Y%m%d}"),
        (policy.weekly, lambda t, _: f"{t:%G%V}"),
        (policy.monthly, lambda t, _: f"{t:%Y%m}"),
        (policy.yearly, lambda t, _: f"{t:%Y}"),
    ]
    left = [count for count, _ in rules]
    last: list[object] = [None] * len(rules)
    newest_first = sorted(versions, key=lambda v: (v.time_ns, v.version), reverse=True)
    when = {v.version: dt.datetime.fromtimestamp(v.time_ns // 10**9, UTC).replace(tzinfo=None) for v in versions}
    out = {newest_first[0].version}
    for n, v in enumerate(newest_first):
        if policy.within is not None and when[v.version] > policy.within.before(when[newest_first[0].version]):
            out.add(v.version)
        for at, (_, value_of) in enumerate(rules):
            value = value_of(when[v.version], n)
            if left[at] and (value != last[at] or n == len(newest_first) - 1):
                out.add(v.version)
                last[at], left[at] = value, left[at] - (left[at] > 0)
    return out


@settings(max_examples=300)
@given(policies, times.map(sorted))
def test_the_same_as_the_manual_says(policy: Keep, times: list[int]) -> None:
    versions = [Stamped(v, time) for v, time in enumerate(times, 1)]
    found = kept(policy, versions, (), ns(NOW), UTC)
    assert found == (by_the_manual(policy, versions) if policy else {v.version for v in versions})


@given(policies, times.map(sorted))
def test_what_stays_stays_when_it_is_applied_again(policy: Keep, times: list[int]) -> None:
    versions = [Stamped(v, time) for v, time in enumerate(times, 1)]
    once = kept(policy, versions, (), ns(NOW), UTC)
    assert kept(policy, [v for v in versions if v.version in once], (), ns(NOW), UTC) == once


# ---- ages, words, names


@pytest.mark.parametrize(
    ("age", "time", "before"),
    [
        ("1d", "2026-03-01", "2026-02-28"),
        ("1m", "2026-03-31", "2026-03-03"),  # there is no 31 February: three days more, as Go counts
        ("1y", "2024-02-29", "2023-03-01"),
        ("1y2m3d4h", "2026-05-04T04", "2025-03-01"),
        ("9999y", "2026-05-04", str(dt.datetime.min)),
    ],
)
def test_ages(age: str, time: str, before: str) -> None:
    assert age_of(age).before(dt.datetime.fromisoformat(time)) == dt.datetime.fromisoformat(before)


@given(policies)
def test_a_policy_has_one_text(policy: Keep) -> None:
    assert parse(str(policy)) == policy
    assert (str(Age(years=1, hours=2)), str(Age())) == ("1y2h", "0h")


def test_other_words_follow_an_age() -> None:
    assert parse("within=1d last=2") == parse("last=2 within=1d") == Keep(last=2, within=Age(days=1))


@pytest.mark.parametrize(
    "text",
    ["last", "last=0", "last=-1", "last=x", "minutely=3", "daily=1 daily=2", "within=", "within=3", "within=1d2d",
     "within=2w", "within=1d within=2d", "tag=", "tag=12", "last=99999999999",
     "last=1_0", "last=+5"],
)  # fmt: skip
def test_words_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)


def test_names() -> None:
    assert all(map(is_name, ["draft", "v1.0", "2026-11", "é", "n" * 64]))
    bad = ["", "12", "v12", "latest", "base", "abcdef12", "two words", "@x", "a~1", "a=b", "a,b", "a" * 65, "a\n"]
    assert not any(map(is_name, bad))
    assert tuple(f for f in Keep.__dataclass_fields__ if f not in ("within", "tag")) == retention.COUNTS
