"""What is told while a command works: on a terminal in one line, nowhere else at all."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workspace_kit import Lab, write

from metasync import cli
from metasync.codec import duration
from metasync.events import Event, Notice, Phase, Progress, Transferred
from metasync.terminal import bar as bars
from metasync.terminal import console
from metasync.terminal.progress import Meter, clock
from metasync.workspace import Workspace
from metasync.worktree import merge_walk

MIB = 1 << 20


def metered(*events: tuple[float, Event], now: float, columns: int = 200) -> str:
    meter = Meter()
    for at, event in events:
        meter.add(event, at)
    return meter.line(now, columns)


def up(size: int, backend: str = "a", seconds: float = 0.5) -> Transferred:
    return Transferred(backend, "up", size, seconds, pack=True)


def test_nothing_and_a_phase() -> None:
    assert metered(now=5.0) == ""
    assert metered((1.0, Phase("scan")), now=1.0) == "scan"
    assert metered((1.0, Notice("hello")), now=1.0) == ""


def test_rates_are_the_last_seconds_in_all_and_by_backend() -> None:
    events = [(float(n), up(2 * MIB)) for n in range(1, 11)] + [(10.0, up(5 * MIB, "b", 10.0))]
    line = metered((0.0, Phase("upload")), *events, now=10.0)
    assert line == "upload  25.0 MiB moved  3.4 MiB/s up  0:10  (a 2.4 MiB/s, b 1.0 MiB/s)"
    assert "b" not in metered((0.0, Phase("upload")), *events, now=15.5).partition("moved")[2]
    assert metered((0.0, Phase("upload")), *events, now=30.0) == "upload  25.0 MiB moved  0:30"


def test_a_first_call_counts_for_as_long_as_it_took() -> None:
    assert "1.0 MiB/s up" in metered((4.0, up(4 * MIB, seconds=4.0)), now=4.0)
    assert "4.0 MiB/s up" in metered((4.0, up(4 * MIB, seconds=0.001)), now=4.0)  # not four thousand


def test_what_devices_agree_by_has_no_rate() -> None:
    """A push of nothing showed `c 50 B/s down | b 50 B/s down`."""
    agreed = [(float(n), Transferred("b", "down", 50, 0.1)) for n in range(5)]
    assert metered((0.0, Phase("agree")), *agreed, now=0.5) == "agree"
    assert metered((0.0, Phase("agree")), *agreed, now=4.0) == "agree  0:04"


def test_percent_rate_elapsed_and_left() -> None:
    steps = [(float(n), Progress("download", n * MIB, 60 * MIB, "B")) for n in range(1, 11)]
    line = metered((0.0, Phase("download")), *steps, now=10.0)
    assert line == "download  16%  10.0 MiB of 60.0 MiB  0:10, 0:50 left"
    assert metered((0.0, Phase("download")), steps[0], now=0.5) == "download   1%  1.0 MiB of 60.0 MiB"
    assert (
        metered((0.0, Phase("download")), *steps, now=70.0) == "download  16%  10.0 MiB of 60.0 MiB  1:10"
    )  # stands still
    done = (11.0, Progress("download", 60 * MIB, 60 * MIB, "B"))
    assert metered((0.0, Phase("download")), *steps, done, now=11.0) == "download  100%  60.0 MiB of 60.0 MiB  0:11"


def test_time_left_holds_though_packs_end_in_bursts() -> None:
    """Eight packs of 16 MiB end at once every six seconds: over the last five seconds that is nothing, or all."""
    meter, told, whole = Meter(), [], 4096 * MIB
    meter.add(Phase("upload"), 0.0)
    for tenth in range(1, 1200):
        now = tenth / 10
        if tenth % 60 == 0:
            for _ in range(8):
                meter.add(Progress("upload", min(whole, (tenth // 60) * 128 * MIB), whole, "B"), now)
        left = meter.told(now)["left_s"]
        if now > 40 and left is not None:
            told.append(now + float(str(left)))
    assert len(told) > 700
    assert max(told) - min(told) < 0.35 * (sum(told) / len(told)), "when it ends changes all the time"
    assert abs(sum(told) / len(told) - 192) < 25


def test_a_phase_goes_on_where_another_came_between() -> None:
    """While a push sends, it asks for its turn in the agreement: what was done before is not done once more."""
    sent = [(float(n), Progress("upload", n * MIB, 60 * MIB, "B")) for n in range(1, 12)]
    line = metered((0.0, Phase("upload")), *sent[:8], (8.5, Phase("agree")), *sent[8:], now=11.0)
    assert line == metered((0.0, Phase("upload")), *sent, now=11.0)
    assert line == "upload  18%  11.0 MiB of 60.0 MiB  0:11, 0:49 left"
    back = metered((0.0, Phase("upload")), *sent[:8], (8.5, Phase("agree")), (8.6, Phase("upload")), now=8.7)
    assert back.startswith("upload  13%  8.0 MiB of 60.0 MiB  ")


def test_the_turn_is_not_what_a_push_that_still_sends_waits_for() -> None:
    """It said `agree` for most of a small push."""
    sent = [(0.1, Progress("upload", 0, 4 * MIB, "B")), (0.2, Phase("agree")), (3.0, up(MIB))]
    assert metered(*sent, now=3.0).startswith("upload   0%  0 B of 4.0 MiB  ")
    part = (4.0, Progress("upload", 2 * MIB, 4 * MIB, "B"))
    assert metered(*sent, part, now=4.0).startswith("upload  50%  ")
    again = (5.0, Phase("agree"))
    assert metered(*sent, part, again, (6.0, Progress("upload", 4 * MIB, 4 * MIB, "B")), now=6.0).startswith("agree")


@given(steps=st.lists(st.tuples(st.sampled_from("su"), st.integers(0, 50), st.integers(1, 100)), max_size=30))
def test_nothing_runs_backwards(steps: list[tuple[str, int, int]]) -> None:
    """Neither bytes nor percent, whatever attempts there are: an attempt after a merge began at 0 B again."""
    meter, before = Meter(), {"s": (0, 0), "u": (0, 0)}
    for n, (phase, done, total) in enumerate(steps):
        meter.add(Progress(phase, min(done, total), total, "B"), float(n))
        told = meter.told(float(n))
        now = (int(str(told["done"])), int(str(told["percent"])))
        assert now >= before[phase]
        assert now[0] <= int(str(told["total"]))
        assert now[1] >= before[phase][1]
        before[phase] = now


def test_what_is_done_in_another_attempt_counts_on_top() -> None:
    first = [(float(n), Progress("upload", n * MIB, 4 * MIB, "B")) for n in range(1, 5)]
    again = (8.0, Progress("upload", 2 * MIB, 60 * MIB, "B"))
    assert metered(*first, (5.0, Phase("agree")), (6.0, Phase("upload")), again, now=8.0).startswith(
        "upload  100%  6.0 MiB of 64.0 MiB  "
    )


def test_bytes_before_the_first_phase() -> None:
    assert metered((1.0, Transferred("a", "down", 50, 0.1, pack=True)), now=1.0) == "50 B moved  50 B/s down"


def test_a_scan_shows_files() -> None:
    assert (
        metered((0.0, Phase("scan")), (0.5, Progress("scan", 12_000, None, "files")), now=0.6) == "scan  12,000 files"
    )


def test_what_took_long_is_summed_up() -> None:
    meter = Meter()
    assert meter.summary(9.0) == ""
    meter.add(Phase("upload"), 0.0)
    assert meter.summary(4.9) == ""
    assert meter.summary(65.0) == "Took 1 min 5 s."
    meter.add(up(100 * MIB), 10.0)
    meter.add(up(100 * MIB, "b"), 20.0)
    assert meter.summary(20.0) == "Sent 200.0 MiB in 20 s, 10.0 MiB/s."
    meter.add(Transferred("b", "down", 50 * MIB, 1.0, pack=True), 21.0)
    assert meter.summary(25.0) == "Sent 200.0 MiB and received 50.0 MiB in 25 s, 10.0 MiB/s."


def test_what_is_kept_of_a_long_push_is_bounded() -> None:
    meter = Meter()
    for n in range(20_000):
        meter.add(up(1), n / 10)
        meter.add(Progress("upload", n, 20_000, "B"), n / 10)
    assert len(meter._rates["a", "up"]._recent) <= 60
    assert len(meter._stretches["upload"].lately._recent) <= 310


def test_an_upload_tells_how_much_of_what_is_read_is_stored(lab: Lab) -> None:
    lab.init(lab.urls("a", "b", "c")).close()
    same = os.urandom(200_000)
    files = {f"{n}.bin": os.urandom(1_500_000) for n in range(8)} | {"same": same, "again": same, "empty": b""}
    write(lab.root / "laptop", files)
    seen: list[Event] = []
    with Workspace.open(lab.root / "laptop", on_event=seen.append) as w:
        w.push()
        told = [e for e in seen if isinstance(e, Progress) and e.phase == "upload"]
        total = sum(map(len, files.values()))
        assert {e.total for e in told} == {total}
        assert [e.done for e in told] == sorted(e.done for e in told)
        assert (told[-1].done, len({e.done for e in told}) > 1) == (total, True)
        seen.clear()
        write(lab.root / "laptop", {"0.bin": files["1.bin"], "new": b"seven b"})
        w.push()
    told = [e for e in seen if isinstance(e, Progress) and e.phase == "upload"]
    assert (told[-1].done, told[-1].total) == (1_500_007, 1_500_007), "read, though most of it is stored already"


def test_another_unit_and_a_phase_that_nobody_announced() -> None:
    assert metered((1.0, Progress("check", 3, 12_000, "packs")), now=1.5) == "check   0%  3 of 12,000 packs"
    assert metered((1.0, Progress("x", 1, 2, "B")), (2.0, Progress("y", 7, None, "B")), now=2.0) == "y  7 B  0:01"


def test_a_line_is_no_wider_than_the_terminal() -> None:
    events = [(1.0, up(MIB, f"backend-{n}")) for n in range(10)]
    for columns in (0, 1, 3, 10, 60):
        assert len(metered((0.0, Phase("upload")), *events, now=1.0, columns=columns)) <= columns
    assert metered((0.0, Phase("upload")), *events, now=1.0).count("backend-") == 6
    events += [(1.0, Progress("upload", 1, 9, "B"))]
    full = metered((0.0, Phase("upload")), *events, now=1.0).split("  ")
    for columns in range(len("upload  11%"), 180):
        shown = metered((0.0, Phase("upload")), *events, now=1.0, columns=columns).split("  ")
        assert shown[:2] == ["upload", "11%"]
        assert all(part in full or part.startswith("(backend-9 ") for part in shown), "a number is cut"


@pytest.mark.parametrize(
    ("s", "text"), [(0.1, "0:00"), (59.4, "0:59"), (61, "1:01"), (3599, "59:59"), (7505, "2:05:05")]
)
def test_clocks(s: float, text: str) -> None:
    assert clock(s) == text


@pytest.mark.parametrize(
    ("s", "text"), [(0.1, "1 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")]
)
def test_durations(s: float, text: str) -> None:
    assert duration(s) == text


# --- the command line


def on_a_terminal(lab: Lab, *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, what the terminal got on stderr)."""
    main, other = pty.openpty()
    command = [sys.executable, "-m", "metasync", "-C", str(lab.root / "laptop"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other, text=True)
    os.close(other)
    shown = b""
    while True:
        try:
            piece = os.read(main, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(main)
    out = process.communicate()[0]
    return process.returncode, out, shown.decode()


@pytest.fixture
def ready(lab: Lab) -> Lab:
    lab.init(lab.urls("a", "b", "c")).close()
    write(lab.root / "laptop", {f"{n}.bin": os.urandom(600_000) for n in range(10)})
    return lab


def test_a_terminal_is_shown_one_line_that_goes_away(ready: Lab) -> None:
    with_limit = ready.cli("config", "set", "limit.up", "8M")
    assert with_limit.code == 0
    code, out, shown = on_a_terminal(ready, "push")
    assert code == 0
    assert "Pushed version 1" in out
    assert "\n" not in shown
    assert re.search(r"upload +\d+%  .* of 5.7 MiB", shown)
    drawn = shown.split("\r")
    assert drawn[-1] == ""
    assert drawn[-2].strip() == ""
    assert max(map(len, drawn)) < 80


def test_an_error_stands_on_a_line_of_its_own(capfd: Any) -> None:
    """It was appended to the line of progress."""
    bar = bars.Bar()
    bar.take(Phase("scan"))
    cli._fail(console.Options(), "push", 1, "X", "it failed")
    assert capfd.readouterr().err == "\rscan\r    \rmetasync: it failed\n"
    bar.take(Phase("upload"))
    assert capfd.readouterr().err == ""


def test_quiet_shows_no_progress(ready: Lab) -> None:
    assert on_a_terminal(ready, "push", "--quiet")[2] == ""


def test_json_tells_a_program_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Lines of JSON on stderr, at most one a second, and nothing else there; not with --quiet."""
    seconds = iter([0.0, 0.5, 1.2, 1.9, 2.4])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(seconds))
    shown = console.Console(console.Options(json=True))
    for n in range(1, 5):
        shown.event(Progress("upload", n * MIB, 8 * MIB, "B"))
    shown.event(Notice("b is away", warning=True))
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert [(line["event"], line.get("done")) for line in lines] == [
        ("progress", 2 * MIB), ("progress", 4 * MIB), ("notice", None),
    ]  # fmt: skip
    assert lines[1] == {
        "event": "progress", "phase": "upload", "done": 4 * MIB, "total": 8 * MIB, "unit": "B", "percent": 50,
        "elapsed_s": 1.9, "left_s": None, "up_bytes_s": 0, "down_bytes_s": 0,
    }  # fmt: skip
    assert lines[2] == {"event": "notice", "warning": True, "text": "b is away"}
    seconds = iter([0.0, 9.0])
    console.Console(console.Options(json=True, quiet=True)).event(Phase("scan"))
    assert capfd.readouterr() == ("", "")


def test_a_scan_of_many_files_tells_their_number(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_walk, "LOOKED_EVERY", 3)
    write(ready.root / "laptop", {f"d{n}/{m}": b"" for n in range(4) for m in range(4)})
    seen: list[Event] = []
    with Workspace.open(ready.root / "laptop", on_event=seen.append) as w:
        w.status()
    told = [e for e in seen if isinstance(e, Progress) and e.phase == "scan"]
    assert [e.done for e in told] == sorted(e.done for e in told)
    assert {(e.total, e.unit) for e in told} == {(None, "files")}
    assert told[-1].done >= 15


def test_no_terminal_no_progress(ready: Lab) -> None:
    ran = ready.cli("push")
    assert (ran.code, ran.err) == (0, "")


def test_what_stands_still_is_drawn_anew_and_nothing_after_the_end(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(bars, "TICK_S", 0.01)
    bar = bars.Bar()
    bar.take(Phase("upload"))
    bar.take(up(MIB))
    ends = time.monotonic() + 60
    err = ""
    while "1.0 MiB moved" not in err and time.monotonic() < ends:
        time.sleep(0.01)
        err += capfd.readouterr().err
    assert "1.0 MiB moved" in err
    with bars.question():
        sys.stderr.write("a notice\n")
        time.sleep(0.05)
        assert capfd.readouterr().err.endswith("\ra notice\n")
    bar.end()
    capfd.readouterr()
    time.sleep(0.05)
    assert capfd.readouterr().err == ""
