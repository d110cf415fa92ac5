"""The command line as users and their scripts meet it: exit codes, streams, JSON, passphrases, odd names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from transcripts import check_document
from workspace_kit import PASSPHRASE, Lab, flip, run_cli, run_process, tree_of, unreadable, write

import metasync.workspace
from metasync import cli
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.terminal import console
from metasync.testing import contract
from metasync.workspace import Workspace


@pytest.fixture
def ready(lab: Lab) -> Lab:
    """A workspace on three folders, with one push."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"notes.txt": b"one\ntwo\n", "d/x": os.urandom(3000)})
    w.push("first")
    w.close()
    return lab


def backends(lab: Lab, *names: str) -> list[str]:
    return lab.words(*(names or ("a", "b", "c")))


@pytest.mark.long
def test_a_whole_session_in_processes_of_their_own(lab: Lab) -> None:
    laptop, desktop = lab.root / "laptop", lab.root / "desktop"
    write(laptop, {"notes.txt": b"one\n"})
    made = run_process("init", "laptop", "--name", "docs", *backends(lab), cwd=lab.root)
    assert made.code == 0, made
    assert "recovery phrase" in made.out.lower()
    assert run_process("push", "-m", "first", cwd=laptop).code == 0
    assert run_process("clone", "desktop", "--name", "docs", *backends(lab, "b", "c"), cwd=lab.root).code == 0
    assert tree_of(desktop) == tree_of(laptop)
    write(desktop, {"notes.txt": b"two\n"})
    assert run_process("sync", cwd=desktop).code == 0
    write(laptop, {"notes.txt": b"three\n"})
    ran = run_process("push", cwd=laptop)
    assert ran.code == 3, ran
    assert (laptop / "notes.txt").read_bytes() == b"two\n"
    assert [p.read_bytes() for p in laptop.glob("notes.conflict-*.txt")] == [b"three\n"]
    log = run_process("log", "--json", cwd=laptop)
    assert [v["message"] for v in log.json["versions"]][-1] == "first"
    for said in (made, ran, log):
        assert "\x1b" not in said.out
        assert PASSPHRASE not in said.out + said.err


# --- exit codes


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
    ran = run_cli("clone", str(ready.root / "desktop"), "--name", "docs", *backends(ready))
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
    ran = run_cli("clone", str(ready.root / "desktop"), "--name", "docs", *backends(ready))
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


# --- options that all commands take


def test_json_is_one_document_on_stdout(ready: Lab) -> None:
    for words in (("status",), ("push",), ("pull",), ("sync",), ("log",), ("check",), ("backend", "list")):
        ran = ready.cli(*words, "--json")
        assert ran.json["command"] == " ".join(words)
        assert ran.json["exit_code"] == ran.code == 0
        assert ran.json == json.loads(run_cli("--json", "-C", str(ready.root / "laptop"), *words).out) or words
    ran = run_cli("--json", "-C", str(ready.root), "status")
    assert ran.json["error"]["kind"] == "WorkspaceError"
    assert ran.json["command"] == "status"
    assert ran.json["error"]["next_step"]


def test_the_command_in_json_is_no_option_of_another(ready: Lab) -> None:
    ran = run_cli("-C", str(ready.root), "--json", "backend", "list")
    assert ran.json["command"] == "backend list"


def test_quiet_prints_nothing_but_errors(ready: Lab) -> None:
    write(ready.root / "laptop", {"x": b"1"})
    ran = ready.cli("push", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = run_cli("-q", "-C", str(ready.root), "push")
    assert ran.code == 1
    assert ran.err


def test_dry_runs_change_nothing(ready: Lab) -> None:
    c = ready.clone(ready.urls("a", "b", "c"))
    write(c.directory, {"x": b"1"})
    c.push()
    c.close()  # what it tells beside has landed
    write(ready.root / "laptop", {"y": b"1"})
    before = tree_of(ready.root / "laptop")
    stored = sorted(p for p in ready.root.rglob("stores/**/*") if p.is_file())
    ran = ready.cli("push", "--dry-run")
    assert ran.code == 0
    assert "+ y" in ran.out
    ran = ready.cli("pull", "--dry-run")
    assert "+ x" in ran.out
    assert tree_of(ready.root / "laptop") == before
    assert sorted(p for p in ready.root.rglob("stores/**/*") if p.is_file()) == stored


def test_c_goes_before_and_after_the_command(ready: Lab) -> None:
    assert run_cli("status", "-C", str(ready.root / "laptop")).code == 0
    assert run_cli("-C", str(ready.root), "status", "-C", "laptop/d").code == 0


# --- passphrases


def clone_words(lab: Lab) -> list[str]:
    return ["clone", str(lab.root / "desktop"), "--name", "docs", *backends(lab)]


def test_the_passphrase_from_a_file(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    path = ready.root / "passphrase"
    monkeypatch.setenv("METASYNC_PASSPHRASE_FILE", str(path))
    ran = run_cli(*clone_words(ready))
    assert ran.code == 2
    assert str(path) in ran.err
    path.write_bytes(b"\xff\xfe")
    assert run_cli(*clone_words(ready)).code == 2
    path.write_text(f"{PASSPHRASE}\n")
    assert run_cli(*clone_words(ready)).code == 0


def test_the_passphrase_from_a_command(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    for command, code in (("exit 3", 2), ("printf ''", 2), (f"echo '{PASSPHRASE}'; exit 1", 2)):
        monkeypatch.setenv("METASYNC_PASSPHRASE_COMMAND", command)
        ran = run_cli(*clone_words(ready))
        assert ran.code == code, command
        assert "METASYNC_PASSPHRASE_COMMAND" in ran.err
        assert PASSPHRASE not in ran.out + ran.err
    monkeypatch.setenv("METASYNC_PASSPHRASE_COMMAND", f"echo '{PASSPHRASE}'")
    assert run_cli(*clone_words(ready)).code == 0


def test_no_passphrase_and_no_terminal(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    ran = run_process(*clone_words(ready), cwd=ready.root)
    assert ran.code == 2
    assert "METASYNC_PASSPHRASE_FILE" in ran.err
    assert ready.cli("push").code == 0  # the device has keys of its own


def test_an_empty_passphrase(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lab.root / "empty"
    path.write_text("\n")
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    monkeypatch.setenv("METASYNC_PASSPHRASE_FILE", str(path))
    ran = run_cli("init", str(lab.root / "laptop"), "--name", "docs", *backends(lab))
    assert ran.code == 2
    assert "empty" in ran.err


# --- odd text

ODD = [
    b"new\nline",
    b"bell\x07",
    b"\x1b[31mred",
    b"caf\xe9-latin1",
    "caf\u00e9".encode(),
    "cafe\u0301".encode(),
    b"a" * 255,
    b"-rf",
    b" spaces ",
    "\u202egpj.exe".encode(),
    b"back\\slash",
    b"'quo\"te",
]


def test_names_are_printed_safely_and_arrive_as_they_are(ready: Lab) -> None:
    top = os.fsencode(ready.root / "laptop")
    for name in ODD:
        with open(os.path.join(top, name), "wb") as f:
            f.write(name)
    ran = ready.cli("push")
    assert ran.code == 0
    listed = [line for line in ran.out.splitlines() if line.startswith("  + ")]
    assert len(listed) == len(ODD)
    assert all(line.isprintable() for line in ran.out.splitlines())
    ready.cli("push", "--json")
    c = ready.clone(ready.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(ready.root / "laptop")


def test_odd_names_in_errors_and_notices(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from metasync.errors import WorkspaceError

    def fail(*_: Any, **__: Any) -> None:
        raise WorkspaceError(f"cannot write {os.fsdecode(b'x' + bytes([0xE9, 0x1B, 10]))}", next_step="Run again.")

    monkeypatch.setattr(Workspace, "push", fail)
    ran = ready.cli("push")
    assert ran.code == 1
    assert "\\xe9\\x1b" in ran.err
    assert "\x1b" not in ran.err
    assert ready.cli("push", "--json").json["error"]["message"].startswith("cannot write x")
    done = subprocess.run(
        [sys.executable, "-m", "metasync", "-C", os.fsencode(ready.root) + b"/\xe9\x1b", "status"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done
    assert b"\x1b" not in done.stderr
    assert b"not in a MetaSync workspace" in done.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize("message", ["", "two\nlines", "\x1b[31mred\x07", "\u00e4\U0001f600", "x" * 5000, "'; drop"])
def test_messages(ready: Lab, message: str) -> None:
    write(ready.root / "laptop", {"x": message.encode() + b"!"})
    assert ready.cli("push", "-m", message).code == 0
    ran = ready.cli("log")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert ready.cli("log", "--json").json["versions"][0]["message"] == message


def test_a_message_that_is_no_text(ready: Lab) -> None:
    write(ready.root / "laptop", {"x": b"!"})
    done = subprocess.run(
        [sys.executable, "-m", "metasync", "push", "-m", b"caf\xe9"],
        cwd=ready.root / "laptop",
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 2), done
    assert b"Traceback" not in done.stderr
    assert ready.cli("log").code == 0


def test_a_message_that_is_too_long(ready: Lab) -> None:
    write(ready.root / "laptop", {"x": b"!"})
    ran = ready.cli("push", "-m", "x" * 70_000)
    assert ran.code == 2
    assert "70,000" in ran.err
    assert ready.cli("push", "-m", "x" * 65_535).code == 0


def test_output_that_nobody_reads(ready: Lab) -> None:
    done = subprocess.run(
        f"{sys.executable} -m metasync status | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ready.root / "laptop",
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


def test_an_ascii_terminal(ready: Lab) -> None:
    write(ready.root / "laptop", {"caf\u00e9": b"1"})
    ran = run_process(
        "push", cwd=ready.root / "laptop", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    )
    assert ran.code == 0, ran
    assert "caf" in ran.out


# --- backends


def test_backends_are_listed_and_linked(ready: Lab) -> None:
    assert len(max(ready.cli("backend", "list").out.splitlines()[2:], key=len)) <= 100
    ran = ready.cli("backend", "list", "-v")
    assert ran.code == 0
    for name in "abc":
        assert str(ready.store(name)) in ran.out
    ran = ready.cli("backend", "link", "a", ready.url("b"))
    assert ran.code == 2
    ran = ready.cli("backend", "link", "a", ready.url("a"))
    assert ran.code == 0
    run_cli(*clone_words(ready)[:4], *backends(ready, "a", "b"))
    ran = ready.cli("backend", "list", cwd="desktop")
    assert "backend link c URL" in ran.out
    ran = ready.cli("backend", "link", "c", ready.url("c"), cwd="desktop")
    assert ran.code == 0
    assert "backend link" not in ready.cli("backend", "list", cwd="desktop").out


@pytest.mark.long
def test_backend_check_in_json_outside_a_workspace(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METASYNC_PASSPHRASE")
    monkeypatch.setattr(contract, "QUICK", replace(contract.QUICK, kills=1))
    stick = lab.root / "my stick"
    stick.mkdir()
    (stick / "mine.txt").write_text("as it was")
    ran = run_cli("backend", "check", "--quick", "--json", f"file://{stick}?role=storage&name=x")
    assert ran.code == 0, ran
    check_document(ran)
    assert ran.json["verdict"] == "holds data only"
    assert ran.json["reasons"] == ["its URL says role=storage"]
    assert ran.json["url"] == f"file://{lab.root}/my%20stick"
    assert ran.json["requests"] > 1000
    assert {c["result"] for c in ran.json["checks"] if c["name"] not in ("digest", "watch")} <= {"passed", "weak"}
    assert [path.name for path in stick.iterdir()] == ["mine.txt"]


def test_backend_check_of_an_unfit_store_exits_with_1(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://unfit-{lab.root.name}"
    open_backend(parse_url(url), create_root=True)
    names = MemoryBackend.list
    monkeypatch.setattr(MemoryBackend, "list", lambda self, path: names(self, path)[::-1])
    ran = run_cli("backend", "check", "--quick", url)
    assert ran.code == 1
    assert "  failed   list " in ran.out
    assert "Verdict: unfit (quick)." in ran.out
    assert "because list: a list is not sorted" in ran.out
    ran = run_cli("backend", "check", "--quick", "--quiet", url)
    assert (ran.code, ran.out, ran.err) == (1, "", "")
    assert run_cli("backend", "check", "--quick", "--json", url).json["exit_code"] == 1


def test_backend_check_without_a_verdict(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(lab.root / "none"))
    url = "s3://bucket/x?endpoint=http://127.0.0.1:9"
    ran = run_cli("backend", "check", url)
    assert ran.code == 1
    assert "no S3 credentials" in ran.err
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    ran = run_cli("backend", "check", url)
    assert ran.code == 5
    assert "connection refused" in ran.err
    assert "hunter2" not in ran.out + ran.err
    (lab.root / "file").write_text("")
    assert run_cli("backend", "check", f"file://{lab.root}/file").code == 5
    assert run_cli("backend", "check", f"{url}&secret=hunter2").code == 2


def test_backend_check_cleans_up_after_ctrl_c(lab: Lab) -> None:
    stick = lab.root / "stick"
    stick.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "metasync", "backend", "check", f"file://{stick}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(stick.glob("*/race/race/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "removing what was stored" in err
    assert "Traceback" not in err
    assert "Verdict" not in out
    assert os.listdir(stick) == []


def test_two_processes_push_at_once(ready: Lab) -> None:
    write(ready.root / "laptop", {f"f{i}": os.urandom(1000) for i in range(20)})
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "metasync", "push"],
            cwd=ready.root / "laptop",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    outs = [p.communicate(timeout=60) for p in running]
    assert [p.returncode for p in running] == [0, 0], outs
    texts = sorted(out.decode() for out, _ in outs)
    assert texts[0].startswith("Nothing to push")
    assert texts[1].startswith("Pushed version 2")


def test_a_dead_holder_holds_nothing(ready: Lab) -> None:
    program = (
        "import os, sys; from metasync.local.lock import WorkspaceLock as L; L(sys.argv[1]).acquire('x'); os._exit(9)"
    )
    state = ready.root / "laptop/.metasync"
    assert subprocess.run([sys.executable, "-c", program, state], check=False).returncode == 9
    assert (state / "lock.holder").exists()
    assert ready.cli("pull").code == 0


def test_importing_metasync_loads_no_sdk() -> None:
    program = (
        "import sys, metasync, metasync.cli\n"
        "print([m for m in ('obstore', 'rich', 'keyring', 'boto3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_modules_the_tests_patch_are_the_real_ones() -> None:
    assert metasync.workspace.Workspace is Workspace
    assert Path(cli.__file__).name == "cli.py"


@pytest.mark.parametrize("command", ["log", "status", "push"])
def test_a_clock_that_nobody_can_read_is_named(ready: Lab, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def far_out() -> Any:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")

    monkeypatch.setattr(time, "time", far_out)
    monkeypatch.setattr(time, "time_ns", far_out)
    ran, told = ready.cli(command), ready.cli(command, "--json")
    monkeypatch.undo()
    assert (ran.code, told.code) == (1, 1)
    assert "clock of this machine" in ran.err and "MetaSync's own" not in ran.err
    assert ran.err.endswith("Set the clock, and run again.\n")
    assert json.loads(told.out)["error"]["kind"] == "WorkspaceError"


def test_a_clock_before_1970_is_named(ready: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (ready.root / "laptop" / "new").write_text("new")
    monkeypatch.setattr(time, "time_ns", lambda: -(10**18))
    ran = ready.cli("push")
    monkeypatch.undo()
    assert (ran.code, ran.err.endswith("Set the clock, and run again.\n")) == (1, True)
    assert "clock of this machine" in ran.err and "MetaSync's own" not in ran.err


def test_an_overflow_of_our_own_beside_a_clock_that_goes_is_told_as_that(
    ready: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OverflowError("int too large to convert")

    monkeypatch.setattr(Workspace, "open", broken)
    assert "an error of MetaSync's own: OverflowError" in ready.cli("log").err
