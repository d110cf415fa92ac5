"""What a user sets: what it means, that it is obeyed, that a process which runs obeys it too."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspace_kit import Lab, write

from metasync.backends.memory import MemoryBackend
from metasync.errors import BackendError, PausedError, UsageError, WorkspaceError
from metasync.events import Notice, Transferred
from metasync.local import settings as kept
from metasync.local.lock import exclusive
from metasync.local.settings import FOR_EVER, Governor, Settings
from metasync.runtime.effects import Op, Task, Urgency
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
from metasync.runtime.tasks import Runtime
from metasync.testing.faults import FaultyBackend
from metasync.workspace import Workspace

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


class Times:
    """A clock that is set by hand; noon, on the wall."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return NOON + self.now


NOON = time.mktime((2026, 6, 1, 12, 0, 0, 0, 0, -1))


@pytest.fixture
def times() -> Times:
    return Times()


def governor(tmp_path: Path, times: Times, **more: Any) -> Governor:
    return Governor(tmp_path / "s.json", clock=times, wall=times.wall, **more)


def passed(g: Governor, times: Times, backend: str, sizes: list[int], *, up: bool = True) -> float:
    """How long it takes until all of these have begun."""
    began = times.now
    for size in sizes:
        while (wait := g.ask(backend, up=up, size_bytes=size)) > 0:
            assert wait <= kept.LOOK_S
            times.now += wait
    return times.now - began


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


# --- the runtime under it


def one(op: Op) -> Task:
    return (yield op)


def test_a_limit_holds_for_real_and_agreement_does_not_wait_for_it(tmp_path: Path) -> None:
    """Real threads, real time: 6 MiB in pieces at 2 MiB/s, over two backends, with urgent calls between."""
    path = tmp_path / "s.json"
    kept.write(path, Settings({"limit.up": "2M", "limit.down": "64M"}))
    stores = {"a": MemoryBackend(), "b": MemoryBackend()}
    with Runtime(stores) as runtime:
        runtime.govern(Governor(path))
        began, ended = time.monotonic(), []
        data = b"x" * (MIB // 4)
        futures = [runtime.start(one(Op("ab"[n % 2], "put", f"p{n}", data, urgency=Urgency.SOON))) for n in range(24)]
        urgent = runtime.start(one(Op("a", "create", "entry", b"vote")))
        for future in (*futures, urgent):
            future.add_done_callback(ended.append)
        assert [f.result(60).error for f in futures] == [None] * 24
        took = time.monotonic() - began
    assert urgent.result(60).value is True
    assert ended.index(urgent) < len(futures), "it did not wait for all of them"
    assert 6 * MIB / took <= 2 * MIB * 1.15


def test_calls_that_a_limit_holds_do_not_run_out_of_time(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    kept.write(path, Settings({"limit.up": "256k"}))
    with Runtime({"a": MemoryBackend()}) as runtime:
        runtime.govern(Governor(path))
        op = Op("a", "put", "p", b"x" * (MIB // 2), timeout_s=1.5, urgency=Urgency.SOON)
        futures = [runtime.start(one(op)) for _ in range(2)]
        assert [f.result(60).error for f in futures] == [None] * 2


def test_requests_a_minute_for_all_and_for_one(tmp_path: Path, times: Times) -> None:
    kept.write(tmp_path / "s.json", Settings({"limit.requests": "600", "limit.requests.box": "off"}))
    g = governor(tmp_path, times)
    assert (g.requests("a"), g.requests("box")) == (600, math.inf)
    assert governor(tmp_path / "none", times).requests("a") is None


def test_connections_are_bounded_by_the_user(tmp_path: Path) -> None:
    class Store(MemoryBackend):
        def __init__(self) -> None:
            super().__init__()
            self.now = self.most = 0
            self.guard = threading.Lock()

        def put(self, path: str, data: bytes) -> None:
            with self.guard:
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.01)
            with self.guard:
                self.now -= 1

    path, store = tmp_path / "s.json", Store()
    kept.write(path, Settings({"limit.connections": "3"}))
    with Runtime({"a": store}) as runtime:
        runtime.govern(Governor(path))
        futures = [runtime.start(one(Op("a", "put", f"p{n}", b"x", urgency=Urgency.SOON))) for n in range(40)]
        futures += [runtime.start(one(Op("a", "put", f"p{n}", b"x"))) for n in range(40)]
        for future in futures:
            future.result(60)
    assert store.most == 3


def test_one_connection_leaves_another_for_agreement(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    kept.write(path, Settings({"limit.connections": "1"}))
    begun, go = threading.Semaphore(0), threading.Event()

    class Store(MemoryBackend):
        def put(self, path: str, data: bytes) -> None:
            begun.release()
            go.wait(60)

    with Runtime({"a": Store()}) as runtime:
        runtime.govern(Governor(path))
        packs = [runtime.start(one(Op("a", "put", f"p{n}", b"x", urgency=Urgency.SOON))) for n in range(3)]
        assert begun.acquire(timeout=60)
        assert runtime.run(one(Op("a", "create", "vote", b"1"))).value is True
        assert not begun.acquire(timeout=0.1)
        go.set()
        assert [p.result(60).error for p in packs] == [None] * 3


# --- a workspace


@pytest.fixture
def ready(lab: Lab) -> Lab:
    lab.init(lab.urls("a", "b", "c")).close()
    write(lab.root / "laptop", {"x.bin": os.urandom(100_000)})
    return lab


def test_settings_of_a_workspace(ready: Lab) -> None:
    with Workspace.open(ready.root / "laptop") as w:
        assert w.settings().settings == {}
        w.configure("limit.up", " 2M ")
        w.configure("limit.up.a", "1M")
        assert w.configure("nice", "5").settings == {"limit.up": "2M", "limit.up.a": "1M", "nice": "5"}
        for key, value, what in (
            ("limit.up.zz", "1M", "no backend of this workspace"),
            ("limit.up", "soon", "not a rate"),
            ("colour", "red", "no setting is called"),
            ("limit.down", None, "is not set"),
        ):
            with pytest.raises(UsageError, match=what) as e:
                w.configure(key, value)
            assert e.value.next_step
        w.configure("limit.up", None)
    with Workspace.open(ready.root / "laptop") as w:
        assert w.settings().settings == {"limit.up.a": "1M", "nice": "5"}


def test_a_pause_is_said_and_passed_by(ready: Lab) -> None:
    with Workspace.open(ready.root / "laptop") as w:
        assert w.pause(3600).paused.startswith("until ")
        for transfer in (w.push, w.pull, w.sync, w.check, lambda: w.restore("1")):
            with pytest.raises(PausedError, match="paused on this device until") as e:
                transfer()  # type: ignore[operator]
            assert "resume" in e.value.next_step
            assert "--now" in e.value.next_step
        assert w.status().paused.startswith("until ")
        w.device_list()  # no transfer
        with pytest.raises(UsageError, match="no time"):
            w.pause(0)
    with Workspace.open(ready.root / "laptop", now=True) as w:
        assert w.push().version == 1
    with Workspace.open(ready.root / "laptop") as w:
        assert w.resume().paused == ""
        assert w.push().version is None
        w.pause()
        assert w.settings().paused == "until it is resumed"
        w.pause(0.05)
        time.sleep(0.06)
        assert w.settings().paused == ""
        w.push()


def test_settings_that_others_are_writing(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changes them waits for its turn, and says so if that does not come; nothing is changed then."""
    monkeypatch.setattr(kept, "LOCK_WAIT_S", 0.1)
    with Workspace.open(ready.root / "laptop") as w:
        w.configure("nice", "5")
        with exclusive(w._work.settings_path.with_suffix(".lock"), 1.0):
            with pytest.raises(WorkspaceError, match="being changed by another process") as e:
                w.configure("nice", "6")
            assert e.value.next_step
        assert w.settings().settings == {"nice": "5"}
        assert w.configure("nice", "6").settings == {"nice": "6"}


@pytest.mark.long
def test_a_push_that_runs_notices_a_pause_and_a_resume(ready: Lab) -> None:
    """From another process, while this one is pushing."""
    told: list[Any] = []
    folder = ready.root / "laptop"
    write(folder, {f"{n}.bin": os.urandom(1_000_000) for n in range(30)})
    with Workspace.open(folder, on_event=told.append) as w:
        w.configure("limit.up", "1M")
        other = [sys.executable, "-m", "metasync", "-C", str(folder)]
        pause = _started("-C", str(folder), "pause")  # a busy machine may take as long to start it as the push takes
        thread = threading.Thread(target=w.push, daemon=True)
        thread.start()
        _wait_for(lambda: any(type(e).__name__ == "Transferred" and e.bytes > 100_000 for e in told))
        pause.communicate("go on\n", timeout=60)
        assert pause.returncode == 0
        _wait_for(lambda: any(isinstance(e, Notice) and "paused until it is resumed" in e.text for e in told))

        def nothing_more() -> bool:
            """Whether a second passes without a byte; what had begun ends first."""
            sent = sum(e.bytes for e in told if type(e).__name__ == "Transferred")
            time.sleep(1.0)
            return sum(e.bytes for e in told if type(e).__name__ == "Transferred") == sent < 30_000_000

        _wait_for(nothing_more)
        subprocess.run([*other, "config", "unset", "limit.up"], check=True, capture_output=True)
        subprocess.run([*other, "resume"], check=True, capture_output=True)
        thread.join(60)
        assert not thread.is_alive()
        assert w.push().version is None


def _started(*words: str) -> subprocess.Popen[str]:
    """A process that has all it needs for a command, and runs it when it is given a line."""
    code = """if True:
        import sys, metasync.cli, metasync.workspace
        print(flush=True)
        sys.stdin.readline()
        metasync.cli.main(sys.argv[1:])
    """
    made = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "\n"
    return made


def _wait_for(true: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_damaged_file_stops_what_moves_data(ready: Lab) -> None:
    (ready.root / "laptop" / ".metasync" / "settings.json").write_text("?")
    ran = ready.cli("push")
    assert (ran.code, "damaged" in ran.err, "Remove the file" in ran.err) == (1, True, True)
    assert ready.cli("status").code == 1
    assert ready.cli("device", "list").code == 0


def test_the_command_line_steps_back(ready: Lab) -> None:
    with Workspace.open(ready.root / "laptop") as w:
        w.configure("nice", "7")
    code = (
        "import os, sys; from metasync.cli import main; import metasync.workspace as m\n"
        "m.Workspace.status = lambda self: sys.exit(os.nice(0))\n"
        "main()"
    )
    words = [sys.executable, "-c", code, "-C", str(ready.root / "laptop"), "status"]
    base = os.nice(0)
    assert subprocess.run(words, check=False).returncode == max(7, base)


def test_json(ready: Lab) -> None:
    ready.cli("config", "set", "limit.up", "1M")
    document = ready.cli("pause", "2h", "--json").json
    assert document["settings"] == {"limit.up": "1M"}
    assert document["paused"].startswith("until ")
    assert json.loads((ready.root / "laptop/.metasync/settings.json").read_text())["pause"]["until"] < math.inf


def test_a_pull_keeps_to_its_limit_and_a_push_to_its_own(ready: Lab) -> None:
    """A whole workspace over folders: what came down, by the clock, within 15 %."""
    folder = ready.root / "laptop"
    with Workspace.open(folder) as w:
        w.push()
    desk = ready.clone(ready.urls("a", "b", "c"))
    write(folder, {f"{n}.bin": os.urandom(400_000) for n in range(10)})
    with Workspace.open(folder) as w:
        w.configure("limit.up", "8M")
        began = time.monotonic()
        w.push()
        took = time.monotonic() - began
        assert 2 * 4_000_000 / took <= 8 * MIB * 1.15
    told: list[Any] = []
    desk.on_event = told.append
    desk.configure("limit.down", "2M")
    began = time.monotonic()
    desk.pull()
    took = time.monotonic() - began
    came = sum(e.bytes for e in told if isinstance(e, Transferred) and e.pack and e.direction == "down")
    assert came >= 4_000_000
    assert came / took <= 2 * MIB * 1.15


def test_a_server_that_throttles_does_not_count_as_down(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two refusals of a pack cost its backend the rest of the push."""
    real, refused = FaultyBackend.put, []

    def put(self: FaultyBackend, path: str, data: bytes) -> None:
        if "/packs/" in path and len(refused) < 8:
            refused.append(path)
            raise BackendError("slow down", retry_after_s=0.05)
        real(self, path, data)

    monkeypatch.setattr(FaultyBackend, "put", put)
    with Workspace.open(ready.root / "laptop") as w:
        report = w.push()
    assert (report.version, report.down, report.under_replicated, report.elsewhere) == (1, {}, 0, 0)
    assert len(refused) == 8
