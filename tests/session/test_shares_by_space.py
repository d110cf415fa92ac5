"""Capacities and shares by what is free on each backend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from workspace_kit import PASSPHRASE, Lab

from metasync.backends.api import Space
from metasync.config import DEFAULT_CAPACITY
from metasync.errors import UsageError
from metasync.events import Notice
from metasync.session import space
from metasync.session.open_backend import NewBackend
from metasync.testing.quota import Quota

MIB = 1 << 20
GIB = 1 << 30


def newcomer(name: str) -> NewBackend:
    return NewBackend(name, "file", DEFAULT_CAPACITY, "log", bytes(32), True)


def weighed(
    given: dict[str, int | None], free: dict[str, int | None], by_space: bool | None = None
) -> tuple[dict[str, int | None], str]:
    new = [newcomer(n) if size is None else replace(newcomer(n), capacity_bytes=size) for n, size in given.items()]
    got, why = space.weighed(new, {n: Space(f, None) for n, f in free.items()}, by_space)
    return {b.name: b.weight for b in got}, why


@pytest.mark.parametrize(
    ("given", "free", "weights", "why"),
    [
        (
            {"a": 15 * GIB, "b": None, "c": None},
            {},
            dict.fromkeys("abc", DEFAULT_CAPACITY),
            "equal, for not",
        ),
        ({"a": 15 * GIB, "b": 5 * GIB}, {"a": GIB, "b": GIB}, {"a": None, "b": None}, "by capacity"),
        ({"a": None, "b": None}, {"a": 10 * GIB, "b": 20 * GIB}, {"a": 9 * GIB, "b": 18 * GIB}, "by free space"),
        ({"a": None, "b": None}, {"a": 100 * GIB, "b": 101 * GIB}, dict.fromkeys("ab", DEFAULT_CAPACITY), "equal"),
        ({"a": None, "b": None}, {"a": 10 * GIB, "b": None}, dict.fromkeys("ab", DEFAULT_CAPACITY), "equal"),
        ({"a": GIB, "b": None}, {"a": 100 * GIB, "b": 10 * GIB}, {"a": GIB, "b": 9 * GIB}, "by free space"),
        ({"a": 50 * GIB, "b": None}, {"b": 10 * GIB}, {"a": 50 * GIB, "b": 9 * GIB}, "by free space"),
    ],
)
def test_shares_follow_the_space_where_all_tell_else_they_are_equal(
    given: dict[str, int | None], free: dict[str, int | None], weights: dict[str, int | None], why: str
) -> None:
    got, reason = weighed(given, free)
    assert got == weights
    assert reason.startswith(why)


def test_space_is_taken_or_left_as_the_user_says() -> None:
    nobody: dict[str, int | None] = {"a": None, "b": None}
    assert weighed(nobody, {"a": GIB, "b": GIB}, by_space=True)[1] == "by free space"
    assert weighed(nobody, {"a": GIB, "b": 50 * GIB}, by_space=False)[1] == "equal"
    with pytest.raises(UsageError, match=r"b: how much is free there") as e:
        weighed(nobody, {"a": GIB}, by_space=True)
    assert "capacity=" in e.value.next_step


def test_one_capacity_beside_others_without_does_not_starve_it(lab: Lab) -> None:
    """The others counted as 1 TiB each: a backend with 15 GiB got 2 % of the data."""
    told: list[str] = []
    w = lab.init(
        [lab.url("a", capacity="15GiB"), lab.url("b"), lab.url("c")],
        on_event=lambda e: told.append(e.text) if isinstance(e, Notice) else None,
    )
    states = {b.name: b for b in w.backends()}
    assert [states[n].share for n in "abc"] == [0.6667] * 3
    assert [states[n].limit_bytes for n in "abc"] == [15 * GIB, None, None]
    assert told == ["of all data each backend gets: a 67%, b 67%, c 67% (equal, for not all have a capacity)"]


def test_a_backend_added_with_a_capacity_gets_its_share_among_equal_ones(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    told: list[str] = []
    w.on_event = lambda e: told.append(e.text) if isinstance(e, Notice) else None
    w.backend_add(lab.url("d", capacity="15GiB"))
    assert told[0] == "of all data each backend gets: a 50%, b 50%, c 50%, d 50%"
    states = {b.name: b for b in w.backends()}
    assert (states["d"].share, states["d"].limit_bytes) == (0.5, 15 * GIB)
    for name in "ab":
        w.backend_set(name, capacity_bytes=5 * GIB)
        assert {b.share for b in w.backends()} == {0.5}
    w.backend_set("c", capacity_bytes=5 * GIB)
    weights = {b.name: (b.capacity_bytes, b.limit_bytes) for b in w.backends()}
    assert weights == {**dict.fromkeys("abc", (5 * GIB, 5 * GIB)), "d": (15 * GIB, 15 * GIB)}, "now all have one"


def test_a_backend_without_a_capacity_among_weighted_ones(lab: Lab) -> None:
    """Its space where it tells, else their mean; it has no limit by that."""
    w = lab.init([lab.url("a", capacity="2GiB"), lab.url("b", capacity="4GiB")])
    lab.quotas["c"] = Quota(10 * GIB)
    lab.quotas["d"] = Quota(10 * GIB)
    lab.silent.add("d")
    w.backend_add(lab.url("c"))
    w.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    states = {b.name: b for b in w.backends()}
    assert (states["c"].capacity_bytes, states["c"].limit_bytes) == (9 * GIB, None)
    assert (states["d"].capacity_bytes, states["d"].limit_bytes) == (5 * GIB, None)


def test_a_workspace_by_space(lab: Lab) -> None:
    urls = lab.urls("a", "b", "c")
    w = lab.init([*urls[:2], urls[2] + "&capacity=1GiB"], by_space=True)
    states = {b.name: b for b in w.backends()}
    assert (states["c"].capacity_bytes, states["c"].limit_bytes) == (GIB, GIB)
    assert all(b.capacity_bytes != DEFAULT_CAPACITY and b.capacity_bytes % MIB == 0 for b in states.values())
    assert (states["a"].limit_bytes, states["b"].limit_bytes) == (None, None), "others may make room there"
