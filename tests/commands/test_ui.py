"""`metasync ui`: what it prints, how it opens the browser, how it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import Lab

from metasync.commands import ui
from metasync.errors import UsageError, WorkspaceError

HUNG_S = 60
URL = "http://127.0.0.1:1234/#secret"


def test_the_address_stands_in_no_argument_and_in_a_file_of_the_user_alone(tmp_path: Path) -> None:
    """Every user of a machine can list the arguments of processes; a browser is given what it is to open in one."""
    opened: list[str] = []
    ui.opened(URL, tmp_path, opened.append)
    (argument,) = opened
    assert "secret" not in argument
    path = Path(argument.removeprefix("file://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"url={URL}" in path.read_text()
    with pytest.raises(FileExistsError):  # what somebody put there is not written to
        ui.opened(URL, tmp_path, opened.append)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    with pytest.raises(UsageError) as e:
        ui.refuse_missing()
    assert (e.value.message, e.value.next_step) == ("the page needs uvicorn", "pip install 'metasync[ui]'")


@pytest.mark.parametrize("env", [{}, {"DISPLAY": ""}, {"TERM": "xterm"}])
def test_no_browser_is_opened_in_the_terminal(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert not ui.has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert ui.has_screen()


def test_a_daemon_that_does_not_answer_is_told_and_done_without(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> None:
        raise WorkspaceError("the daemon does not answer")

    monkeypatch.setattr("metasync.service.client.connect", connect)
    monkeypatch.setattr("metasync.dashboard.server.FIRST_PAGE_S", 0.0)
    with lab.init(lab.urls("a", "b")) as w:
        done = lab.cli("ui", "--no-browser", cwd=w.directory.name)
    assert (done.code, done.err) == (0, "warning: the page works without the daemon: the daemon does not answer\n")
    assert done.out.endswith("The page has ended.\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_the_address_and_ends_with_a_signal(lab: Lab, end: signal.Signals) -> None:
    with lab.init(lab.urls("a", "b")) as w:
        folder = w.directory
    process = begun("ui", str(folder))
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("The page: http://127.0.0.1:")
    process.send_signal(end)
    rest, err = process.communicate(timeout=HUNG_S)
    assert (process.returncode, err) == (0, "")
    assert rest.endswith("The page has ended.\n")


def test_as_json_and_quiet_it_prints_the_address_alone(lab: Lab) -> None:
    with lab.init(lab.urls("a", "b")) as w:
        folder = w.directory
    for word in ("--json", "--quiet"):
        process = begun("ui", str(folder), word)
        assert process.stdout is not None
        first = "".join(process.stdout.readline() for _ in range(5 if word == "--json" else 1))
        process.send_signal(signal.SIGTERM)
        rest, err = process.communicate(timeout=HUNG_S)
        assert (process.returncode, rest, err) == (0, "", "")
        url = json.loads(first)["url"] if word == "--json" else first
        assert url.startswith("http://127.0.0.1:")


def test_a_port_that_is_taken_is_told_in_words(lab: Lab) -> None:
    import socket

    with lab.init(lab.urls("a", "b")) as w, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = lab.cli("ui", "--no-browser", "--port", str(taken.getsockname()[1]), cwd=w.directory.name)
    assert done.code == 2
    assert "cannot be served on port" in done.err


def begun(*words: str) -> subprocess.Popen[str]:
    env: dict[str, Any] = {**os.environ, "METASYNC_DAEMON": "off"}
    return subprocess.Popen(
        [sys.executable, "-m", "metasync", *words, "--no-browser"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
