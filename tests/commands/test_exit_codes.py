"""The exit codes of the command line, each with what brings it about, and what goes wrong in spite of everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from workspace_kit import Lab, flip, run_cli, tree_of, unreadable, write

import metasync.workspace
from metasync import cli
from metasync.terminal import console
from metasync.workspace import Workspace


def test_0_and_help(ready: Lab) -> None:
    for words in (("--help",), ("--version",), ("push", "--help"), ("backend", "--help"), ("backend", "link", "-h")):
        ran = run_cli(*words)
        assert ran.code == 0
        assert ran.out
    for command in cli.cli.list_commands(click.Context(cli.cli)):
        assert "Example:" in run_cli(command, "--help").out
    assert ready.cli("status").code == 0
    assert ready.cli("push").out.startswith("Nothing to push")


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("push", "--frobnicate"),
        ("--frobnicate",),
        ("push", "too", "many"),
        ("init",),
        ("init", "--name", "x"),
        ("init", "--name", "x", "--backend", "nonsense"),
        ("init", "--name", "x", "--backend", "ftp://x/y"),
        ("init", "--name", "x", "--backend", "file://relative"),
        ("init", "--name", "x", "--backend", "file:///"),
        ("init", "--name", "", "--backend", "file:///tmp/x"),
        ("init", "--name", "a\nb", "--backend", "file:///tmp/x"),
        ("init", "--name", "x", "--backend", "file:///tmp/x?capacity=lots"),
        ("init", "--name", "x", "--backend", "file:///tmp/x?secret=hunter2"),
        ("init", "--name", "x", "--replicas", "0", "--backend", "file:///tmp/x"),
        ("init", "--name", "x", "--replicas", "3", "--backend", "file:///tmp/x"),
        ("init", "--name", "x", "--backend", "file:///tmp/x?role=storage"),
        ("clone",),
        ("log", "-n", "0"),
        ("backend",),
        ("backend", "link", "a"),
        (),
    ],
)
def test_2_for_wrong_usage(lab: Lab, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.root)
    words = tuple(word.replace("/tmp/x", f"{lab.root}/x") for word in words)
    ran = run_cli(*words)
    assert ran.code == 2, ran
    assert "Traceback" not in ran.err
    assert "hunter2" not in ran.out + ran.err
    assert not (lab.root / ".metasync").exists()
    ran = run_cli(*words, "--json")
    assert ran.code == 2
    assert ran.json["exit_code"] == 2
    assert ran.json["error"]["message"]
    assert "hunter2" not in ran.out + ran.err


def test_1_for_no_workspace(lab: Lab) -> None:
    ran = run_cli("-C", str(lab.root), "status")
    assert ran.code == 1
    assert "metasync init" in ran.err
    assert not ran.out
    ran = run_cli("-C", str(lab.root / "not-there"), "push")
    assert ran.code == 1
    assert "not-there" in ran.err


def test_1_for_an_unreadable_file(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ready.root / "laptop", {"secret": b"1", "other": b"2"})
    unreadable(monkeypatch, b"secret")
    ran = ready.cli("push", "--json")
    assert (ran.code, ran.json["exit_code"]) == (1, 1)
    assert ran.json["changes"]["added"] == ["other"]
    assert [s["path"] for s in ran.json["unreadable"]] == ["secret"]
    assert ready.cli("status").code == 1


def test_4_below_the_promised_redundancy(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"), replicas=3)
    w.close()
    lab.lose("c")
    write(w.directory, {"x": b"1"})
    ran = lab.cli("push")
    assert ran.code == 4
    assert "with fewer than 3 copies" in ran.out
    assert "warning: c: " in ran.out
    assert lab.cli("status").code == 4
    assert lab.cli("check").code == 4


def test_0_with_a_warning_where_the_packs_found_another_place(ready: Lab) -> None:
    ready.faults["a"].down = True
    write(ready.root / "laptop", {f"n{i}": os.urandom(200) for i in range(3)})
    ran = ready.cli("push")
    assert ran.code == 0
    assert "warning: a: " in ran.out


def test_5_without_a_quorum(ready: Lab) -> None:
    ready.hurry()
    for name in "ab":
        ready.lose(name)
    write(ready.root / "laptop", {"x": b"1"})
    for command in ("push", "pull", "sync", "status", "check"):
        ran = ready.cli(command)
        assert ran.code == 5, command
        text = ran.out + ran.err
        assert "a: " in text
        assert "b: " in text
        assert str(ready.store("a")) in text
        assert ready.cli(command, "--json").json["exit_code"] == 5
    assert ready.cli("log").code == 0


def test_6_for_a_wrong_passphrase(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_PASSPHRASE", "hunter2")
    ran = run_cli("clone", str(ready.root / "desktop"), "--name", "docs", *ready.words("a", "b", "c"))
    assert ran.code == 6
    assert "wrong passphrase" in ran.err
    assert "hunter2" not in ran.out + ran.err
    assert not (ready.root / "desktop").exists()


def test_7_for_data_that_is_lost(ready: Lab) -> None:
    for name in "abc":
        for pack in ready.objects(name, "packs"):
            flip(pack, at=300)
    assert ready.cli("check").code in (0, 4, 7), "it reads here and there"
    ran = ready.cli("check", "--read-data")
    assert ran.code == 7
    assert "altered" in ran.out
    ran = run_cli("clone", str(ready.root / "desktop"), "--name", "docs", *ready.words("a", "b", "c"))
    assert ran.code == 7
    assert "check" in ran.err


def test_130_when_interrupted(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "push", interrupt)
    ran = ready.cli("push")
    assert ran.code == 130
    assert "safe to run again" in ran.err
    ran = ready.cli("push", "--json")
    assert ran.json["exit_code"] == 130


def test_130_for_a_signal(ready: Lab) -> None:
    write(ready.root / "laptop", {"big": os.urandom(60 << 20)})
    process = subprocess.Popen(
        [sys.executable, "-m", "metasync", "push"],
        cwd=ready.root / "laptop",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    holder = ready.root / "laptop/.metasync/lock.holder"
    deadline = time.monotonic() + 60
    while not holder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    with Workspace.open(ready.root / "laptop") as w:
        w.push()
        assert w.status().changes.added == ()


def interrupted_at(where: str, *words: str, lab: Lab) -> Any:
    """`python -m metasync words...`, with a Ctrl-C at a place that `where` prepares: code that calls `press()`.

    As a module, not as a script: only there does CPython end by the signal what ended by an exit code.
    """
    code = """
import os, signal, sys, time
def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # the handler runs before this ends
"""
    write(lab.root / "prepared", {"sitecustomize.py": (code + where).encode()})
    path = os.pathsep.join((str(lab.root / "prepared"), str(Path(metasync.__file__).parent.parent)))
    return subprocess.run(
        [sys.executable, "-m", "metasync", *words],
        cwd=lab.root / "laptop",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )


WHILE_LOADED = """
class Press:
    def find_spec(self, name, *_):
        if name == 'metasync.cli':
            press()
sys.meta_path.insert(0, Press())
"""
IN_COMPILED_TEXT = """
import metasync.workspace
metasync.workspace.Workspace.push = lambda *_, **__: exec('press()', {'press': press})
"""
WHILE_TOLD = """
import metasync.cli, metasync.workspace
def push(*_, **__):
    raise ValueError('broken inside')
metasync.workspace.Workspace.push = push
real = metasync.cli._fail
metasync.cli._fail = lambda *a: (a[3] == 'ValueError' and press(), real(*a))[1]
"""
AFTERWARDS = """
from metasync.terminal import interrupt
end = interrupt.end
interrupt.end = lambda code: (press(), end(code))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("where", [WHILE_LOADED, IN_COMPILED_TEXT, WHILE_TOLD], ids=["loaded", "compiled", "told"])
def test_130_wherever_the_signal_comes(ready: Lab, where: str) -> None:
    ran = interrupted_at(where, "push", "--json", lab=ready)
    assert ran.returncode == 130, ran
    assert b"Traceback" not in ran.stderr
    assert json.loads(ran.stdout)["exit_code"] == 130


def test_130_after_the_report(ready: Lab) -> None:
    ran = interrupted_at(AFTERWARDS, "status", "--json", lab=ready)
    assert ran.returncode == 130, ran
    assert b"Traceback" not in ran.stderr
    assert json.loads(ran.stdout)["command"] == "status"


def test_a_signal_that_is_ignored_stays_ignored(ready: Lab) -> None:
    where = "signal.signal(signal.SIGINT, signal.SIG_IGN); press(); " + AFTERWARDS
    assert interrupted_at(where, "status", lab=ready).returncode == 0


def test_the_worst_code_wins() -> None:
    assert console.worst([]) == 0
    assert console.worst([0, 4, 3]) == 3
    assert console.worst([1, 3, 4]) == 1
    assert console.worst([6, 1]) == 6
    assert console.worst([7, 6]) == 7
    assert console.worst([7, 5]) == 5


def test_an_error_of_our_own(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken inside")

    monkeypatch.setattr(Workspace, "push", fail)
    ran = ready.cli("push")
    assert ran.code == 1
    assert "broken inside" in ran.err
    assert "Traceback" not in ran.err
    ran = ready.cli("push", "--json")
    assert (ran.code, ran.json["error"]["kind"]) == (1, "RuntimeError")
    assert "Traceback" in ready.cli("push", "-v").err


def test_a_traceback_only_when_asked_for(ready: Lab) -> None:
    (ready.root / "laptop/.metasync/device.key").unlink()
    assert "Traceback" not in ready.cli("push").err
    assert "Traceback" in ready.cli("push", "--verbose").err


def test_paths_that_no_system_takes(lab: Lab) -> None:
    for words in (("-C", "x" * 300, "status"), ("init", "x" * 300, "--name", "x", *lab.words("a"))):
        ran = run_cli(*words)
        assert ran.code in (1, 2)
        assert "File name too long" in ran.err
        assert "own" not in ran.err
        assert "Traceback" not in ran.err


def test_a_current_directory_that_is_gone(ready: Lab) -> None:
    gone = ready.root / "gone"
    gone.mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); from metasync.cli import main; main(['status'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=gone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_stores_at_odd_paths(lab: Lab) -> None:
    urls = [f"file://{lab.root}/my st\u00f6re/{name}" for name in ("a b", "c%2520d", "\u00fc+&=")]
    words = [word for url in urls for word in ("--backend", url)]
    assert run_cli("init", str(lab.root / "laptop"), "--name", "my d\u00f6cs", *words).code == 0
    write(lab.root / "laptop", {"x": b"1"})
    assert lab.cli("push").code == 0
    ran = run_cli("clone", str(lab.root / "desk top"), "--name", "my d\u00f6cs", *words)
    assert ran.code == 0
    assert tree_of(lab.root / "desk top") == tree_of(lab.root / "laptop")
    assert {p.name for p in (lab.root / "my st\u00f6re").iterdir()} == {"a b", "c%20d", "\u00fc+&="}


def test_looking_while_a_push_runs(ready: Lab) -> None:
    write(ready.root / "laptop", {f"f{i}": os.urandom(200_000) for i in range(30)})
    pushing = subprocess.Popen([sys.executable, "-m", "metasync", "push", "-q"], cwd=ready.root / "laptop")
    try:
        while pushing.poll() is None:
            for command in ("status", "log", "check"):
                ran = ready.cli(command)
                assert ran.code == 0, ran
    finally:
        pushing.wait(timeout=60)
    assert pushing.returncode == 0
    assert ready.cli("status").out.startswith("In step with version 2 (")
