"""Limits: what the settings mean, how a line keeps a rate, and the governor that goes by them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits_kit import NOON, Times, governor, passed

from metasync.errors import UsageError, WorkspaceError
from metasync.local import settings as kept
from metasync.local.settings import FOR_EVER, Settings
from metasync.runtime.limits import (
    BURST_S,
    TICK_S,
    Line,
    Schedule,
    Window,
    backend_of,
    check,
    parse_duration,
    parse_rate,
    parse_schedule,
    understood,
)

KIB, MIB = 1 << 10, 1 << 20

# --- what it means


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2M", 2 * MIB),
        ("500k", 500 * KIB),
        (" 1.5 MiB/s ", 1.5 * MIB),
        ("1g", 1 << 30),
        ("2000", 2000),
        ("4KBps", 4 * KIB),
        ("off", None),
        ("Unlimited", None),
    ],
)
def test_rates(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "-1M", "0", "1", "1000", "2T", "1e9", "2M 3M", "99999999999G", "½M", "nan"]
)
def test_no_rates(text: str) -> None:
    with pytest.raises(UsageError, match="rate") as e:
        parse_rate(text)
    assert "500k" in e.value.next_step


def test_a_rate_by_the_time_of_day() -> None:
    schedule = parse_schedule("9:00-18:00 500k, 22:30-6:00 off, 2M")
    assert schedule == Schedule((Window(540, 1080, 500 * KIB), Window(1350, 360, None)), 2 * MIB)
    at = {540: 500 * KIB, 1079: 500 * KIB, 1080: 2 * MIB, 1349: 2 * MIB, 1350: None, 1439: None, 0: None, 359: None}
    assert {minute: schedule.rate(minute) for minute in at} == at
    assert schedule.rate(360) == 2 * MIB
    assert parse_schedule("9:00-24:00 1M").rate(100) is None


@pytest.mark.parametrize(
    "text",
    [
        "1M, 2M",
        "9-18 1M",
        "25:00-26:00 1M",
        "9:60-10:00 1M",
        "9:00-9:00 1M",
        "9:00-18:00",
        "9:00-18:00 fast",
        ",",
        "24:01-3:00 1M",
        ",".join(f"{h}:{m:02}-{h}:{m + 1:02} 1M" for h in range(10) for m in range(0, 50, 2)),
    ],
)
def test_no_schedules(text: str) -> None:
    with pytest.raises(UsageError) as e:
        parse_schedule(text)
    assert e.value.next_step


@pytest.mark.parametrize(("text", "s"), [("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("45s", 45), ("2D", 172_800)])
def test_durations(text: str, s: float) -> None:
    assert parse_duration(text) == s


@pytest.mark.parametrize("text", ["", "0m", "2", "h", "30m1h", "1.5h", "-2h", "ever"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="length of time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit.sideways", "1M"),
        ("limit.up.", "1M"),
        ("limit", "1M"),
        ("limit.up.A B", "1M"),
        ("limit.connections", "0"),
        ("limit.requests", "9"),
        ("limit.requests.usb", "1000001"),
        ("limit.requests", "fast"),
        ("limit.connections", "33"),
        ("limit.connections.usb", "4.5"),
        ("limit.connections", "٣"),
        ("nice", "20"),
        ("nice", "-1"),
        ("nice.usb", "3"),
        ("durability", "0"),
        ("durability", "all"),
        ("durability.usb", "1"),
    ],
)
def test_no_settings(key: str, value: str) -> None:
    with pytest.raises(UsageError) as e:
        check(key, value)
    assert e.value.next_step


@pytest.mark.parametrize("key", ["nice", "durability", "limit.connections", "limit.connections.usb"])
def test_the_number_that_is_proposed_is_one_that_somebody_may_want(key: str) -> None:
    with pytest.raises(UsageError) as e:
        check(key, "many")
    proposed = e.value.next_step.rpartition(f"metasync config set {key} ")[2]
    check(key, proposed)
    assert int(proposed) == {"nice": 4, "durability": 1}.get(key, 8)


def test_settings_understood() -> None:
    limits = understood(
        {"limit.up": "2M", "limit.up.usb": "1M", "limit.down.a.b": "off", "limit.connections": "4", "nice": "7"}
    )
    assert understood({"durability": "1"}).durability == 1
    assert limits.up == {"": Schedule((), 2 * MIB), "usb": Schedule((), MIB)}
    assert limits.down == {"a.b": Schedule((), None)}
    assert (limits.connections, limits.nice) == ({"": 4}, 7)
    assert [backend_of(k) for k in ("limit.up", "limit.up.usb", "nice")] == [None, "usb", None]


# --- a line


@given(
    st.floats(1e3, 1e7),
    st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(0, 20)), min_size=1, max_size=30),
    st.data(),
)
def test_a_rate_holds_from_the_first_byte_on(rate: float, calls: list[tuple[int, float]], data: st.DataObject) -> None:
    """Several callers, pauses between: at no time has more gone than the rate allows and the burst."""
    line, now, sent = Line(), 100.0, 0.0
    began = now
    for size, pause in calls:
        who = data.draw(st.sampled_from("ab"))
        now += pause
        while (wait := line.wait_s(now, rate, who, size)) > 0:
            now += wait * data.draw(st.sampled_from([0.3, 1.0, 1.001]))
        line.go(who)
        sent += size
        assert sent <= rate * (now - began + BURST_S + TICK_S) * 1.000001 + 1


def test_a_line_is_used_to_the_full_and_in_turn() -> None:
    line, now = Line(), 0.0
    order = []
    waiting = {"a": [3_000_000] * 4, "b": [1_000_000] * 4}
    while any(waiting.values()):
        waits = {w: line.wait_s(now, 1e6, w, sizes[0]) for w, sizes in waiting.items() if sizes}
        ready = [w for w, s in waits.items() if s <= 0]
        for w in ready:
            line.go(w)
            waiting[w].pop(0)
            order.append(w)
        if not ready:
            now += min(waits.values()) + 1e-9
    assert now == pytest.approx(16 - BURST_S, abs=0.01)
    assert order == ["a", "b"] * 4  # the small ones do not keep the large ones off


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc"), st.integers(1, 10_000)),
        st.tuples(st.just("leave"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("count"), st.just(""), st.integers(-10_000, 10_000)),
        st.tuples(st.just("rest"), st.just(""), st.integers(0, 5)),
    ),
    max_size=30,
)


@given(steps=STEPS, rate=st.sampled_from([1_000.0, 100_000.0]))
def test_whoever_waits_on_a_line_goes_at_last(steps: list[tuple[str, str, int]], rate: float) -> None:
    """Whoever else leaves it, asks for another size or did not move what was booked: a place comes up when all bytes
    that were ever booked could have passed. A push to three backends stood still by this, for good."""
    line, now, most, wanted = Line(), 100.0, 0.0, dict[str, int]()
    for what, who, size in steps:
        if what == "ask":
            most += size
            wanted[who] = size
            if not line.wait_s(now, rate, who, size):
                line.go(wanted.pop(who) and who)
        elif what == "leave":
            line.leave(who)
            wanted.pop(who, None)
        elif what == "count":
            most += max(size, 0)
            line.count(now, rate, size)
        else:
            now += size
    now += most / rate + 1
    assert {who: line.wait_s(now, rate, who, size) for who, size in wanted.items()} == dict.fromkeys(wanted, 0.0)


def test_a_line_forgets_who_leaves_and_counts_who_did_not_wait() -> None:
    line = Line()
    assert line.wait_s(0.0, 1e6, "a", 10_000_000) == pytest.approx(10 - BURST_S)
    assert line.wait_s(0.0, 1e6, "b", 1_000_000) == pytest.approx(11 - BURST_S)
    line.leave("b")
    assert line.wait_s(0.0, 1e6, "a", 2_000_000) == pytest.approx(2 - BURST_S)  # a smaller call took its place
    line.go("a")
    line.count(0.0, 1e6, 4_000_000)
    assert line.wait_s(0.0, 1e6, "c", 1_000_000) == pytest.approx(7 - BURST_S)
    line.count(0.0, 1e6, -4_000_000)
    line.leave("c")
    assert line.wait_s(0.0, 1e6, "c", 1_000_000) == pytest.approx(3 - BURST_S)
    assert line.wait_s(0.0, None, "c", 1_000_000) == 0.0  # the limit is gone: so are its debts
    line.go("c")
    assert line.wait_s(1.0, 1e6, "c", 1_000_000) == pytest.approx(1 - BURST_S)


# --- the file


def test_a_file_keeps_what_was_typed(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert kept.read(path) == Settings()
    for settings in (
        Settings({"limit.up": "9:00-18:00 500k, 2M", "nice": "3"}, 1234.5),
        Settings({}, FOR_EVER),
        Settings({"limit.connections": "1"}),
    ):
        kept.write(path, settings)
        assert kept.read(path) == settings
    assert os.listdir(tmp_path) == ["settings.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"settings": {"limit.up": 5}, "pause": null}',
        '{"settings": {"limit.up": "fast"}, "pause": null}',
        '{"settings": {"nonsense": "5"}, "pause": null}',
        '{"settings": {}, "pause": {"until": "NaN"}}',
        '{"settings": {}, "pause": 5}',
        "[" * 50_000,
        "x" * (1 << 17),
    ],
)
def test_a_damaged_file_is_an_error_with_a_way_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(WorkspaceError, match="damaged") as e:
        kept.read(path)
    assert "Remove the file" in e.value.next_step


# --- the governor


def test_without_settings_nothing_waits(tmp_path: Path, times: Times) -> None:
    g = governor(tmp_path, times)
    assert passed(g, times, "a", [1 << 30] * 5) == 0
    assert g.connections("a") is None


def test_limits_for_all_and_for_one(tmp_path: Path, times: Times) -> None:
    kept.write(
        tmp_path / "s.json",
        Settings({"limit.up": "1M", "limit.up.usb": "256k", "limit.connections": "6", "limit.connections.usb": "2"}),
    )
    g = governor(tmp_path, times)
    assert passed(g, times, "a", [MIB] * 10) == pytest.approx(10 - BURST_S, abs=0.01)
    assert passed(g, times, "usb", [MIB] * 5) == pytest.approx(20 - BURST_S, abs=0.01)
    assert passed(g, times, "a", [1 << 40], up=False) == 0
    assert (g.connections("a"), g.connections("usb")) == (6, 2)
    assert g.requests("a") is None
    g.count("a", up=True, size_bytes=5 * MIB)  # urgent: it does not wait, and the others wait for it
    times.now += 1
    assert passed(g, times, "a", [MIB]) == pytest.approx(5 - BURST_S, abs=0.01)


def test_a_change_holds_within_a_look(tmp_path: Path, times: Times) -> None:
    path = tmp_path / "s.json"
    g = governor(tmp_path, times)
    assert passed(g, times, "a", [MIB] * 100) == 0
    kept.write(path, Settings({"limit.up": "64k"}))
    times.now += kept.LOOK_S
    assert g.ask("a", up=True, size_bytes=64 * MIB) == kept.LOOK_S
    kept.write(path, Settings({"limit.up": "64M"}))
    assert passed(g, times, "a", [64 * MIB]) <= 2 * kept.LOOK_S
    path.write_text("{ damaged")
    assert passed(g, times, "a", [64 * MIB] * 10) == pytest.approx(10, abs=0.3)  # what was known goes on
    path.unlink()
    times.now += kept.LOOK_S
    g.ask("a", up=True, size_bytes=1)
    assert passed(g, times, "a", [64 * MIB] * 10) == 0


def test_the_time_of_day_is_looked_at_while_it_runs(tmp_path: Path, times: Times) -> None:
    kept.write(tmp_path / "s.json", Settings({"limit.down": "11:00-12:01 64k, off"}))
    g = governor(tmp_path, times)
    took = passed(g, times, "a", [16 * MIB] * 4, up=False)
    assert took == pytest.approx(60, abs=1.1)  # until it is 12:01


def test_a_pause_holds_all_but_what_is_told_to_pass(tmp_path: Path, times: Times) -> None:
    said: list[str] = []
    kept.write(tmp_path / "s.json", Settings({}, NOON + 90))
    g = governor(tmp_path, times, on_pause=said.append)
    assert passed(g, times, "a", [1]) == pytest.approx(90, abs=0.01)
    assert said == ["until 2026-06-01 12:01"]
    passing = governor(tmp_path, Times(), now=True, on_pause=said.append)
    assert passing.ask("a", up=True, size_bytes=1) == 0
    kept.write(tmp_path / "s.json", Settings({}, FOR_EVER))
    times.now += 1
    assert g.ask("a", up=False, size_bytes=0) == kept.LOOK_S
    assert said[1:] == ["until it is resumed"]
    times.now += 1e6
    assert g.ask("a", up=False, size_bytes=0) == kept.LOOK_S
    kept.write(tmp_path / "s.json", Settings())
    assert passed(g, times, "a", [1]) <= kept.LOOK_S


def test_a_place_that_nobody_wants_any_more_is_given_back(tmp_path: Path, times: Times) -> None:
    kept.write(tmp_path / "s.json", Settings({"limit.up": "1M"}))
    g = governor(tmp_path, times)
    assert g.ask("a", up=True, size_bytes=64 * MIB) > 0
    g.forget("a", up=True)
    assert passed(g, times, "b", [MIB]) == pytest.approx(1 - BURST_S, abs=0.01)
