"""One process per workspace: the second waits or says who holds it; a dead holder holds nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metasync.errors import WorkspaceError
from metasync.local.lock import WorkspaceLock

HOLDER = """
import sys, time
from metasync.local.lock import WorkspaceLock
lock = WorkspaceLock(sys.argv[1]).acquire("metasync push")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
lock.release()
"""


def holder(state: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLDER, str(state), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_says_who_holds_it(tmp_path: Path) -> None:
    process = holder(tmp_path, 30)
    waited: list[str] = []
    try:
        with pytest.raises(WorkspaceError) as told:
            WorkspaceLock(tmp_path).acquire("metasync pull", wait_s=0.2, waiting=waited.append)
    finally:
        end(process)
    wanted = rf"held by process {process.pid} \(metasync push\) since \d\d:\d\d"
    assert re.search(wanted, told.value.message)
    assert len(waited) == 1
    assert re.fullmatch(wanted, waited[0])
    assert told.value.next_step


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    end(holder(tmp_path, 30))
    assert (tmp_path / "lock.holder").exists()  # killed: its note is still there
    waited: list[str] = []
    with WorkspaceLock(tmp_path).acquire("metasync pull", wait_s=0, waiting=waited.append) as lock:
        assert lock.held
        assert str(os.getpid()) in (tmp_path / "lock.holder").read_text()
    assert waited == []
    assert not lock.held


def test_waits_for_the_holder_to_end(tmp_path: Path) -> None:
    process = holder(tmp_path, 0.3)
    try:
        lock = WorkspaceLock(tmp_path).acquire("metasync pull", wait_s=60)
        lock.release()
        lock.release()
    finally:
        end(process)


def test_is_free_after_release(tmp_path: Path) -> None:
    one, other = WorkspaceLock(tmp_path), WorkspaceLock(tmp_path)
    one.acquire("a")
    with pytest.raises(WorkspaceError, match=r"\(a\)"):
        other.acquire("b", wait_s=0)  # two in one process exclude each other too
    one.release()
    with other.acquire("b", wait_s=0):
        pass
    assert not (tmp_path / "lock.holder").exists()


def test_a_stale_note_accuses_nobody(tmp_path: Path) -> None:
    one, other = WorkspaceLock(tmp_path), WorkspaceLock(tmp_path)
    with one.acquire("a"):
        for note in ("", "{}", "[1]", '{"pid": 4194999, "command": "x", "since": 1}', '{"pid": 1e999}'):
            (tmp_path / "lock.holder").write_text(note)
            with pytest.raises(WorkspaceError, match="held by another process"):
                other.acquire("b", wait_s=0)


def test_without_a_state_directory(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="can't be taken"):
        WorkspaceLock(tmp_path / "gone").acquire("a")
