"""What is told while a command works: on a terminal in one line, nowhere else at all."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from typing import Any

import pytest
from workspace_kit import Lab, write

from metasync import cli
from metasync.events import Event, Notice, Phase, Progress, Transferred
from metasync.terminal import bar as bars
from metasync.terminal import console
from metasync.terminal.progress import Meter, duration
from metasync.workspace import Workspace

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


def test_rates_are_the_last_seconds_by_backend() -> None:
    events = [(float(n), up(2 * MIB)) for n in range(1, 11)] + [(10.0, up(5 * MIB, "b", 10.0))]
    line = metered((0.0, Phase("upload")), *events, now=10.0)
    assert line == "upload: 25.0 MiB moved in 11 pieces, a 2.4 MiB/s up | b 1.0 MiB/s up"
    assert "b" not in metered((0.0, Phase("upload")), *events, now=15.5).partition(",")[2]
    assert metered((0.0, Phase("upload")), *events, now=30.0) == "upload: 25.0 MiB moved in 11 pieces"


def test_a_first_call_counts_for_as_long_as_it_took() -> None:
    assert "a 1.0 MiB/s up" in metered((4.0, up(4 * MIB, seconds=4.0)), now=4.0)
    assert "a 4.0 MiB/s up" in metered((4.0, up(4 * MIB, seconds=0.001)), now=4.0)  # not four thousand


def test_time_left_by_what_was_done_lately() -> None:
    steps = [(float(n), Progress("download", n * MIB, 60 * MIB, "B")) for n in range(1, 11)]
    line = metered((0.0, Phase("download")), *steps, now=10.0)
    assert line == "download: 10.0 MiB of 60.0 MiB, 42 s left"
    assert metered((0.0, Phase("download")), steps[0], now=0.5) == "download: 1.0 MiB of 60.0 MiB"
    assert metered((0.0, Phase("download")), *steps, now=60.0) == "download: 10.0 MiB of 60.0 MiB"  # it stands still
    done = (11.0, Progress("download", 60 * MIB, 60 * MIB, "B"))
    assert metered((0.0, Phase("download")), *steps, done, now=11.0) == "download: 60.0 MiB of 60.0 MiB"


def test_a_phase_goes_on_where_another_came_between() -> None:
    """While a push sends, it asks for its turn in the agreement: what was done before is not done once more."""
    sent = [(float(n), Progress("upload", n * MIB, 60 * MIB, "B")) for n in range(1, 12)]
    line = metered((0.0, Phase("upload")), *sent[:8], (8.5, Phase("agree")), *sent[8:], now=11.0)
    assert line == metered((0.0, Phase("upload")), *sent, now=11.0) == "upload: 11.0 MiB of 60.0 MiB, 41 s left"
    back = metered((0.0, Phase("upload")), *sent[:8], (8.5, Phase("agree")), (8.6, Phase("upload")), now=8.7)
    assert back.startswith("upload: 8.0 MiB of 60.0 MiB, ")


def test_a_phase_that_came_to_its_end_begins_anew() -> None:
    """As in the next attempt of a push, after a merge."""
    first = [(float(n), Progress("upload", n * MIB, 4 * MIB, "B")) for n in range(1, 5)]
    assert metered(*first, (5.0, Phase("agree")), (6.0, Phase("upload")), now=6.0) == "upload"
    again = (8.0, Progress("upload", 2 * MIB, 60 * MIB, "B"))
    assert metered(*first, (5.0, Phase("agree")), (6.0, Phase("upload")), again, now=8.0).endswith(", 58 s left")
    begun = [(1.0, Progress("upload", 9 * MIB, 60 * MIB, "B")), (9.0, Progress("upload", 1 * MIB, 60 * MIB, "B"))]
    assert metered(*begun, (11.0, Progress("upload", 2 * MIB, 60 * MIB, "B")), now=11.0).endswith(", 58 s left")


def test_bytes_before_the_first_phase() -> None:
    assert metered((1.0, Transferred("a", "down", 50, 0.1)), now=1.0) == "50 B moved, a 50 B/s down"


def test_a_phase_that_has_begun_already_begins_once() -> None:
    packs = [(float(n), Progress("upload", n * MIB, 9 * MIB, "B")) for n in range(1, 4)]
    assert metered((0.0, Phase("scan")), *packs, (3.0, Phase("upload")), now=3.0) == metered(*packs, now=3.0)


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
    assert metered((1.0, Progress("check", 3, 12_000, "packs")), now=1.5) == "check: 3 of 12,000 packs"
    assert metered((1.0, Progress("x", 1, 2, "B")), (2.0, Progress("y", 7, None, "B")), now=2.0) == "y: 7 B"


def test_a_line_is_no_wider_than_the_terminal() -> None:
    events = [(1.0, up(MIB, f"backend-{n}")) for n in range(10)]
    for columns in (0, 1, 3, 10, 60):
        assert len(metered((0.0, Phase("upload")), *events, now=1.0, columns=columns)) <= columns
    assert metered((0.0, Phase("upload")), *events, now=1.0).count("|") == 5


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
    assert re.search(r"upload: .* of 5.7 MiB in \d+ pieces?", shown)
    assert re.search(r"[abc] \d.*/s up", shown)
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


@pytest.mark.parametrize("words", [("--quiet",), ("--json",)])
def test_quiet_and_json_show_no_progress(ready: Lab, words: tuple[str, ...]) -> None:
    assert on_a_terminal(ready, "push", *words)[2] == ""


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
