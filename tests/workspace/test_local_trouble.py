"""Trouble on this device: damaged local state, files that cannot be read, full disks, and two processes at once."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_input_kit import FILES, says, started
from workspace_kit import Lab, tree_of, unreadable, write

from metasync.errors import MetaSyncError, WorkspaceError
from metasync.session import session
from metasync.workspace import Workspace
from metasync.worktree import scan
from metasync.worktree.disk import Disk


def test_damaged_local_state(lab: Lab) -> None:
    w = started(lab)
    w.close()
    path = w.directory / ".metasync/state.db"
    good = path.read_bytes()
    for data in (b"no database at all" * 500, good[:4096] + os.urandom(len(good) - 4096)):
        for extra in ("-wal", "-shm"):
            Path(f"{path}{extra}").unlink(missing_ok=True)
        path.write_bytes(data)
        with pytest.raises(WorkspaceError) as e, Workspace.open(w.directory) as again:
            again.push()
        says(e.value, "state.db")
    path.write_bytes(good)


@pytest.mark.parametrize("key", ["config", "links", "base", "name", "memory", "newest"])
def test_nonsense_in_the_local_state(lab: Lab, key: str) -> None:
    w = started(lab)
    w.close()
    for value in (b"\x01" + b"\xff" * 40, b"", None):
        with sqlite3.connect(w.directory / ".metasync/state.db") as db:
            db.execute("DELETE FROM kv WHERE key = ?", (key,))
            if value is not None:
                db.execute("INSERT INTO kv VALUES (?, ?)", (key, value))
        db.close()
        if value is None and key in ("memory", "newest"):
            continue
        if (value, key) in ((b"", "memory"), (b"\x01" + b"\xff" * 40, "name"), (b"", "name")):
            continue  # as good as none
        with pytest.raises(MetaSyncError) as e, Workspace.open(w.directory) as again:
            again.push()
        says(e.value, ".metasync")


def test_keys_that_are_gone(lab: Lab) -> None:
    w = started(lab)
    w.close()
    path = w.directory / ".metasync/device.key"
    good = path.read_bytes()
    for data in (b"", good[:50], os.urandom(len(good))):
        path.write_bytes(data)
        with pytest.raises(WorkspaceError) as e:
            Workspace.open(w.directory)
        says(e.value, "keys")
    path.unlink()
    with pytest.raises(WorkspaceError) as e:
        Workspace.open(w.directory)
    says(e.value, "device.key")


@pytest.mark.few(1)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_an_unreadable_file_is_left_out_and_named(lab: Lab, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    w = started(lab)
    with monkeypatch.context() as m:
        unreadable(m, b"secret.txt", code)
        unreadable(m, b"notes.txt", code)
        write(w.directory, {"secret.txt": b"1", "notes.txt": b"changed\n", "other.txt": b"2"})
        r = w.push()
        assert {s.path for s in r.unreadable} == {b"secret.txt", b"notes.txt"}
        assert r.changes.added == (b"other.txt",)
        assert not r.changes.modified
        ran = lab.cli("push")
        assert ran.code == 1
        assert "secret.txt" in ran.out
    c = lab.clone(lab.urls("a", "b", "c"))
    assert (c.directory / "notes.txt").read_bytes() == FILES["notes.txt"]
    assert not (c.directory / "secret.txt").exists()
    r = w.push()
    assert r.changes.added == (b"secret.txt",)
    assert r.changes.modified == (b"notes.txt",)


def test_an_unreadable_directory_keeps_what_was_agreed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = started(lab)
    with monkeypatch.context() as m:
        unreadable(m, b"d")
        write(w.directory, {"other.txt": b"2"})
        r = w.push()
        assert {s.path for s in r.unreadable} == {b"d"}
        assert not r.changes.deleted
    assert set(tree_of(lab.clone(lab.urls("a", "b", "c")).directory)) >= {b"d", b"d/e/f", b"d/photo.bin"}


def test_a_file_that_changes_while_it_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = started(lab)
    write(w.directory, {"busy.log": b"0", "calm.txt": b"calm"})
    real = scan._Scanner.read_file
    reads = 0

    def read(self: Any, path: bytes, *seen: Any) -> Any:
        if path != b"busy.log":
            return real(self, path, *seen)
        ingest = self.ingest

        def writing(fd: int, st: os.stat_result, was: Any) -> Any:
            nonlocal reads
            reads += 1
            got = ingest(fd, st, was)
            (w.directory / "busy.log").write_bytes(b"%d" % reads)
            return got

        self.ingest = writing
        try:
            return real(self, path, *seen)
        finally:
            self.ingest = ingest

    with monkeypatch.context() as m:
        m.setattr(scan._Scanner, "read_file", read)
        r = w.push()
    assert reads == scan.READS_MAX
    assert [s.path for s in r.busy] == [b"busy.log"]
    assert r.changes.added == (b"calm.txt",)
    r = w.push()
    assert r.changes.added == (b"busy.log",)


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    """A file system of 3 MiB for the device `desktop`."""
    place = lab.root / "desktop"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount")

    yield place
    for w in lab.open_workspaces:
        w.close()
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_at_a_pull(lab: Lab, small_disk: Path) -> None:
    """What has no room waits, and is told; the rest comes. It is no change of this device's."""
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    write(w.directory, {"big": os.urandom(3_100_000), "notes.txt": b"new\n"})
    w.push()
    report = c.pull()
    assert [(u.path, "no room" in u.reason) for u in report.unplaced] == [(b"big", True)]
    assert (c.directory / "notes.txt").read_bytes() == b"new\n"
    assert c.push().version is None
    write(w.directory, {"big": b"small now"})
    w.push()
    assert c.pull().unplaced == ()
    assert tree_of(c.directory) == tree_of(w.directory)


def test_a_full_disk_while_files_arrive(lab: Lab, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk said that there was room, and there is none. What did not arrive whole waits; nothing of it stays."""
    w = started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    write(w.directory, {"big": os.urandom(1_500_000), "notes.txt": b"new\n"})
    w.push()
    filler = os.urandom(3 << 20)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "mine").write_bytes(filler)
    mine = (small_disk / "mine").read_bytes()
    (small_disk / "mine").write_bytes(mine[:-700_000])
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "free_bytes", lambda _self, _fd: 1 << 40)
        report = c.pull()
    assert b"big" in {u.path for u in report.unplaced}
    assert not (c.directory / "big").exists()
    (small_disk / "mine").unlink()
    c = lab.reopen(c)
    assert c.pull().unplaced == ()
    assert tree_of(c.directory) == tree_of(w.directory)


def test_a_full_disk_at_a_push(lab: Lab, small_disk: Path) -> None:
    started(lab)
    c = lab.clone(lab.urls("a", "b", "c"))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "mine").write_bytes(os.urandom(3 << 20))
    before = tree_of(c.directory)
    for _ in range(2):
        with pytest.raises(WorkspaceError) as e:
            c.push()
        says(e.value, "pace")
    assert tree_of(c.directory) == before
    data = (small_disk / "mine").read_bytes()
    (small_disk / "mine").write_bytes(data[:100_000])
    c = lab.reopen(c)
    c.push()
    assert tree_of(lab.clone(lab.urls("a", "b", "c"), device="third").directory) == tree_of(c.directory)


def test_a_clone_on_a_disk_that_is_too_small(lab: Lab, small_disk: Path) -> None:
    w = started(lab)
    write(w.directory, {"big": os.urandom(4_000_000)})
    w.push()
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "Free some space")
    with pytest.raises(WorkspaceError) as e:
        lab.clone(lab.urls("a", "b", "c"))
    says(e.value, "Free some space")
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(w.directory)


# --- two at once


def test_a_second_process_waits_or_says_who_holds_the_workspace(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from metasync.local.lock import WorkspaceLock

    w = started(lab)
    monkeypatch.setattr(session, "WAIT_S", 0.3)
    with WorkspaceLock(w.directory / ".metasync").acquire("metasync push"):
        with pytest.raises(WorkspaceError) as e:
            w.pull()
        says(e.value, f"process {os.getpid()}", "metasync push", "Run again")
        assert w.status().version == 1
    assert w.pull().version == 1
