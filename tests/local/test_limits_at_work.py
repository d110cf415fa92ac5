"""Limits and pauses at work: in a runtime, and in a workspace by commands."""

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
from limits_kit import Times, governor
from workspace_kit import Lab, write

from metasync.backends.memory import MemoryBackend
from metasync.errors import BackendError, PausedError, UsageError, WorkspaceError
from metasync.events import Notice, Transferred
from metasync.local import settings as kept
from metasync.local.lock import exclusive
from metasync.local.settings import Governor, Settings
from metasync.runtime.effects import Op, Task, Urgency
from metasync.runtime.tasks import Runtime
from metasync.testing.faults import FaultyBackend
from metasync.workspace import Workspace

MIB = 1 << 20


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
    desk.configure("limit.down", "2M")
    desk = ready.reopen(desk)  # one that is open may have looked at its settings less than LOOK_S ago
    desk.on_event = told.append
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
