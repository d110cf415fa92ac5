"""The daemon as it is run, with two devices in it: what is written in one folder comes into the other, by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_kit import wait_for
from workspace_kit import Lab, run_process, write

from metasync import daemon
from metasync.service import client
from metasync.service.client import Client

pytestmark = pytest.mark.long  # its pauses are those of the daemon: tens of seconds


@pytest.fixture
def folders(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A laptop and a desktop on three stores, and a daemon's folders of its own. What runs at the end is ended."""
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(lab.root / name.lower()))
    monkeypatch.setenv("METASYNC_DAEMON", "on")
    laptop = lab.init(lab.urls("a", "b", "c"))
    desktop = lab.clone(lab.urls("a", "b", "c"))
    for one in (laptop, desktop):
        one.configure("daemon.quiet", "1s")
        one.configure("daemon.ask", "10s")
        one.configure("notify.desktop", "off")
        one.close()
    yield laptop.directory, desktop.directory
    daemon.stop()


def in_step(found: Client, count: int) -> bool:
    doing = [w.doing for w in found.status().workspaces]
    return doing == ["in step"] * count


def test_two_folders_are_kept_in_step_and_the_commands_work_beside(lab: Lab, folders: tuple[Path, Path]) -> None:
    laptop, desktop = folders
    started = run_process("daemon", "start", str(laptop), cwd=lab.root)
    assert started.code == 0, started
    assert "The daemon runs since" in started.out
    assert run_process("daemon", "add", str(desktop), cwd=lab.root).code == 0
    with client.connected() as found:
        assert found is not None
        wait_for(lambda: in_step(found, 2), "that both are in step")
        write(laptop, {"a.txt": b"one", "deep/b.txt": b"two"})
        both = desktop / "a.txt", desktop / "deep" / "b.txt"
        wait_for(lambda: all(path.exists() for path in both), "the files on the other device")
        (desktop / "a.txt").unlink()
        wait_for(lambda: not (laptop / "a.txt").exists(), "its deletion")
        wait_for(lambda: in_step(found, 2))
    status = run_process("status", cwd=laptop)
    assert "The daemon keeps this folder: " in status.out  # events of what it placed itself may still come in
    write(laptop, {"c.txt": b"three"})
    pushed = run_process("push", "-m", "by hand", "--json", cwd=laptop)
    assert (pushed.code, pushed.json["version"] is None or pushed.json["changes"]["added"] == ["c.txt"]) == (0, True)
    tagged = run_process("tag", "latest", "kept", cwd=laptop)  # it takes the lock itself
    assert tagged.code == 0, tagged
    log = run_process("daemon", "log", cwd=lab.root)
    assert "laptop" in log.out or "docs: pushed version" in log.out
    assert "one" not in log.out.split()


def test_what_was_killed_goes_on_where_it_was(lab: Lab, folders: tuple[Path, Path]) -> None:
    laptop, desktop = folders
    state = daemon.start(laptop)
    with client.connected() as found:
        assert found is not None
        found.add(desktop)
    write(laptop, {f"f{n}": b"x" * n for n in range(200)})
    os.kill(state.pid, signal.SIGKILL)
    wait_for(lambda: daemon._children.pop().wait(), "its end")
    write(laptop, {"later": b"y"})
    daemon.start()
    wait_for(lambda: (desktop / "later").exists() and (desktop / "f199").exists(), "all files on the other device")
    assert sorted(p.name for p in desktop.glob("*conflict*")) == []
