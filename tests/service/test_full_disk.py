"""A disk of this device that is full is told as that, wherever it is met; a backend that is full is another thing."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metasync.checkout import room
from metasync.errors import BackendError, FullError, GuardError, MetaSyncError, NoQuorumError, WorkspaceError
from metasync.local import lock, state
from metasync.local.lock import WorkspaceLock
from metasync.local.state import LocalDb
from metasync.local.state_keys import NAME_KEY
from metasync.service.problems import DISK, free_space, of_error
from metasync.session import folder
from metasync.worktree.disk import Disk
from metasync.worktree.tree import WorkTree, failed


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raised(by: Callable[[], object]) -> BaseException:
    with pytest.raises((MetaSyncError, OSError)) as caught:
        by()
    return caught.value


def check_told(error: BaseException) -> None:
    for verb in ("push", "pull", "open"):
        told = of_error(verb, error, 1.0, "/home/a/docs")
        assert (told.key, told.kind, told.blocks) == (DISK, "disk", True)
        assert told.next_step.startswith("Free some space on the disk of /home/a/docs.")


def test_at_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".metasync").mkdir()
    monkeypatch.setattr(lock, "open", full, raising=False)
    check_told(raised(lambda: WorkspaceLock(tmp_path / ".metasync").acquire("push")))


def test_at_the_local_state(tmp_path: Path) -> None:
    with LocalDb.open(tmp_path / "state.db") as db:
        pages = db._db.execute("PRAGMA page_count").fetchone()[0]
        db._db.execute(f"PRAGMA max_page_count = {pages}")
        check_told(raised(lambda: db.set(NAME_KEY, "n" * 100_000)))


@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"])
def test_where_the_local_state_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With no byte free SQLite cannot share its index of the journal, and calls that an I/O error."""

    def no_room(*_: Any) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = name
        raise error

    monkeypatch.setattr(state, "_prepare", no_room)
    error = raised(lambda: LocalDb.open(tmp_path / "state.db"))
    check_told(error)
    assert isinstance(error, MetaSyncError) and "disk is full" in (error.next_step or "")


def test_at_a_checkout(tmp_path: Path) -> None:
    (tmp_path / ".metasync").mkdir()
    with WorkTree(os.fsencode(tmp_path)) as tree:
        check_told(room.too_little(tree, 2, 1))
        check_told(room.full(tree, 2))
        error = failed(tree, b"f", OSError(errno.EDQUOT, "quota"))
        error.__cause__ = OSError(errno.EDQUOT, "quota")
        check_told(error)
        error.__cause__ = OSError(errno.EIO, "broken")
        assert of_error("pull", error, 1.0).kind == "folder"


def test_too_many_open_files_are_no_illness_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / ".metasync").mkdir()
    cause = OSError(errno.EMFILE, "Too many open files")
    with WorkTree(os.fsencode(tmp_path)) as tree:
        checkout = failed(tree, b"", cause)
    assert checkout.message == f"Bringing files into {tmp_path} failed: Too many open files."
    with pytest.raises(WorkspaceError) as push, folder.told("push"):
        raise cause
    for error in (checkout, push.value):
        assert "ulimit -n" in error.next_step
        assert "disk" not in error.next_step


def test_of_a_disk_without_inodes_files_are_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "has_inodes", lambda *_: False)
    (tmp_path / ".metasync").mkdir()
    with WorkTree(os.fsencode(tmp_path)) as tree:
        told = of_error("pull", room.full(tree, 2), 1.0, "/home/a/docs")
        why = room.no_room(2, is_out=room.lacks_inodes(tree.disk, tree.state_dir()))
    assert told.next_step.startswith("Delete some files on the disk of /home/a/docs.")
    assert free_space("/a", why) == "Delete some files on the disk of /a."
    assert free_space("/a", room.no_room(2)) == "Free some space on the disk of /a."


def test_at_a_call_of_the_system() -> None:
    check_told(raised(full))
    assert of_error("push", OSError(errno.EIO, "broken"), 1.0).kind == "other"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FullError("a is full"), "space"),
        (BackendError("a failed"), "backend"),
        (NoQuorumError("a of 3"), "quorum"),
        (WorkspaceError("damaged settings"), "folder"),
        (GuardError("most would go"), "guard"),
    ],
)
def test_what_comes_of_a_full_backend_is_none_of_it(error: MetaSyncError, kind: str) -> None:
    assert of_error("push", error, 1.0).kind == kind
    error.__cause__ = FullError("a is full")
    error.__cause__.__cause__ = OSError(errno.ENOSPC, "on the backend")
    assert of_error("push", error, 1.0).kind == kind


def test_another_fault_of_the_local_state_is_not_taken_for_it() -> None:
    error = WorkspaceError("the local state failed")
    error.__cause__ = sqlite3.DatabaseError("malformed")
    assert of_error("push", error, 1.0).kind == "folder"
