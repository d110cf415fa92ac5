"""Names, messages and terminals that not every program takes: printed safely, and they arrive as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from workspace_kit import Lab, run_process, tree_of, write

from metasync.workspace import Workspace

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
