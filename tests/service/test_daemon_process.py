"""The daemon as a process: one of a user, ended in order by a signal, and stopped by nothing that a killed one left."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from daemon_kit import HUNG_S, wait_for

from metasync import daemon
from metasync.commands import daemon as commands
from metasync.errors import UsageError, WorkspaceError
from metasync.service import client, install
from metasync.service.wire import sockets
from metasync.service.wire.alone import Alone

KITS = Path(__file__).parents[1] / "kits"
Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("METASYNC_DAEMON", "on")
    monkeypatch.setenv("PYTHONPATH", str(KITS))
    return tmp_path


@pytest.fixture
def run(home: Path) -> Iterator[Run]:
    """Runs a daemon on fake keepers, and waits until it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(**environ: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", "import daemon_kit; daemon_kit.run_fake()"], env={**os.environ, **environ},
            stderr=subprocess.PIPE,
        )  # fmt: skip
        running.append(child)
        with answering(child):
            return child

    yield begin
    for child in running:
        child.kill()
        child.wait()
        if child.stderr is not None:
            child.stderr.close()


def answering(child: subprocess.Popen[bytes]) -> client.Client:
    found: client.Client = wait_for(lambda: client.connect() or child.poll() is not None, "the daemon")
    assert isinstance(found, client.Client), child.communicate()
    return found


def entries(home: Path) -> list[str]:
    text = (home / "xdg_state_home" / "metasync" / "daemon" / "daemon.log").read_text()
    return [json.loads(line)["what"] for line in text.splitlines()]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_it_in_order(run: Run, home: Path, number: signal.Signals) -> None:
    child = run()
    child.send_signal(number)
    assert child.wait(HUNG_S) == 0
    path = sockets.socket_path()
    assert path is not None
    assert not path.exists()
    assert entries(home)[0] == "started"
    assert entries(home)[-1] == "stopped"


def test_a_keeper_that_hangs_does_not_keep_it_alive(run: Run, home: Path) -> None:
    (home / "docs" / ".metasync").mkdir(parents=True)
    (home / "docs" / ".metasync" / "state.db").touch()
    child = run(HANGS="1")
    with answering(child) as line:
        line.add(home / "docs")
        wait_for(lambda: line.status().workspaces[0].doing == "in step")
        line.stop()
    assert child.wait(HUNG_S) == 0
    assert not (sockets.socket_path() or home).exists()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="this system does not tell another process's limits")
def test_it_may_have_as_many_files_open_as_its_user_allows(run: Run) -> None:
    """A workspace takes fifteen: with the 256 of macOS the eighteenth could not be watched."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(256, len(os.listdir("/proc/self/fd")) + 64)  # this process has to start the other one
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        child = run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = daemon.OPEN_MAX if hard == resource.RLIM_INFINITY else min(hard, daemon.OPEN_MAX)
    assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (max(few, most), hard)


def test_a_second_one_says_that_one_runs(run: Run) -> None:
    child = run()
    with pytest.raises(WorkspaceError, match="runs already"):
        daemon.run()
    assert child.poll() is None
    with answering(child) as line:
        assert line.status().pid == child.pid
    assert daemon.start().pid == child.pid  # it is there: nothing is started


def test_what_was_killed_stops_no_other(run: Run, home: Path) -> None:
    killed = run()
    killed.kill()
    killed.wait()
    path = sockets.socket_path()
    assert path is not None
    assert path.exists()
    assert client.connect() is None
    child = run()
    assert daemon.stop()
    assert child.wait(HUNG_S) == 0
    assert not daemon.stop()


def test_one_whose_socket_was_removed_is_there_again(run: Run) -> None:
    child = run(LOOK_S="0.01")
    path = sockets.socket_path()
    assert path is not None
    path.unlink()
    assert daemon.start().pid == child.pid
    assert daemon.stop()
    assert child.wait(HUNG_S) == 0
    assert not path.exists()


def test_one_that_another_one_took_over_from_ends_and_leaves_it_alone(run: Run) -> None:
    child = run(LOOK_S="0.01")
    path = sockets.socket_path()
    assert path is not None

    def take_over() -> Alone | None:
        shutil.rmtree(path.parent, ignore_errors=True)
        with suppress(WorkspaceError):
            return Alone(path.parent)
        return None

    with wait_for(take_over, "the lock") as lock:
        assert child.wait(HUNG_S) == 0
        assert lock.is_so()


def test_one_that_cannot_be_reached_is_named_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    path = sockets.socket_path()
    assert path is not None
    monkeypatch.setattr(daemon, "START_S", 0.0)
    with Alone(path.parent):
        for ask in (daemon.stop, daemon.start, commands._running):
            with pytest.raises(WorkspaceError) as e:
                ask()
            assert f"kill {os.getpid()}" in e.value.next_step
    assert not daemon.stop()


def test_one_that_ends_at_once_is_told_with_its_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "command", lambda: [sys.executable, "-c", "raise SystemExit('no place to sit')"])
    with pytest.raises(WorkspaceError, match="no place to sit"):
        daemon.start()


def test_start_waits_until_it_answers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "command", lambda: [sys.executable, "-c", "import daemon_kit; daemon_kit.run_fake()"])
    state = daemon.start()
    assert os.getsid(state.pid) == state.pid  # its own session: a closed terminal does not end it
    assert daemon.stop()


def test_none_is_to_run_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_DAEMON", "off")
    for what in (daemon.run, daemon.start, daemon.stop):
        with pytest.raises(UsageError):
            what()


# --- as a service


def test_the_unit_runs_this_python_and_nothing_in_it_is_expanded() -> None:
    text = install.unit(["/opt/my python/bin", "-m", "50%", "$HOME", 'a"b\\'], {"XDG_STATE_HOME": "/x y"})
    assert 'ExecStart="/opt/my python/bin" -m "50%%" "$$HOME" "a\\"b\\\\"\n' in text
    assert 'Environment="XDG_STATE_HOME=/x y"\n' in text
    assert "Restart=on-failure" in text


def test_the_agent_is_a_property_list() -> None:
    import plistlib

    found = plistlib.loads(install.agent(["/usr/bin/python3", "-m"], {"A": "b"}, Path("/log")))
    assert found["ProgramArguments"] == ["/usr/bin/python3", "-m"]
    assert found["KeepAlive"] == {"SuccessfulExit": False}


def systemctl(home: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A `systemctl` that notes how it is called."""
    bin_folder, called = home / "bin", home / "called"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {called}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    return called


def test_install_writes_and_starts_a_unit_and_remove_takes_it_away(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    called = systemctl(home, monkeypatch, "exit 0")
    assert not install.is_installed()
    done = install.install(home / "log")
    assert Path(done.path).read_text().startswith("[Unit]")
    assert f"XDG_STATE_HOME={home}/xdg_state_home" in Path(done.path).read_text()
    assert called.read_text().splitlines() == [
        "--user show --property=Version", "--user daemon-reload", "--user enable metasync.service",
        "--user restart metasync.service",
    ]  # fmt: skip
    assert install.is_installed()
    gone = install.uninstall()
    assert gone is not None
    assert not Path(gone.path).exists()
    assert install.uninstall() is None


def test_without_systemd_it_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    systemctl(home, monkeypatch, "exit 1")
    with pytest.raises(WorkspaceError, match="no session") as e:
        install.install(home / "log")
    assert "enable-linger" in e.value.next_step
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(WorkspaceError, match="no systemd") as e:
        install.install(home / "log")
    assert "metasync daemon run" in e.value.next_step
    assert not install.is_installed()


def test_what_systemd_refuses_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    systemctl(home, monkeypatch, 'case "$2" in restart) echo "Unit is masked." >&2; exit 1;; esac')
    with pytest.raises(WorkspaceError, match="Unit is masked"):
        install.install(home / "log")
