"""The command line as users and their scripts meet it: options, streams, JSON, passphrases, backends, odd clocks."""

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

import pytest
from transcripts import check_document
from workspace_kit import PASSPHRASE, Lab, run_cli, run_process, tree_of, write

import metasync.workspace
from metasync import cli
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.testing import contract
from metasync.workspace import Workspace


@pytest.mark.long
def test_a_whole_session_in_processes_of_their_own(lab: Lab) -> None:
    laptop, desktop = lab.root / "laptop", lab.root / "desktop"
    write(laptop, {"notes.txt": b"one\n"})
    made = run_process("init", "laptop", "--name", "docs", *lab.words("a", "b", "c"), cwd=lab.root)
    assert made.code == 0, made
    assert "recovery phrase" in made.out.lower()
    assert run_process("push", "-m", "first", cwd=laptop).code == 0
    assert run_process("clone", "desktop", "--name", "docs", *lab.words("b", "c"), cwd=lab.root).code == 0
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
    return ["clone", str(lab.root / "desktop"), "--name", "docs", *lab.words("a", "b", "c")]


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
    ran = run_cli("init", str(lab.root / "laptop"), "--name", "docs", *lab.words("a", "b", "c"))
    assert ran.code == 2
    assert "empty" in ran.err


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
    run_cli(*clone_words(ready)[:4], *ready.words("a", "b"))
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
