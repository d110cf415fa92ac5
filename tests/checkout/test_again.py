"""A checkout that is carried out again: what it takes for its own, and what it keeps as somebody's."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import MOUNT_NEW, MOUNT_OLD, Linking, Mounted, Plain, agreed, full, needs_proc
from workdir import DIR, Killed, QuietDisk, Workspace, entries, errno_error, files_under, read

from metasync.checkout.checkout import Checkout
from metasync.errors import WorkspaceError

NEW: dict[bytes, Any] = {b"d": DIR, b"d/e": DIR, b"d/e/f": b"new f", b"d/n": b"new n"}


def dies() -> None:
    """The process ends in the closing transaction."""
    raise Killed


def applied(work: Workspace, tree: dict[bytes, Any], before: Any = lambda: None, commit: Any = dies) -> None:
    """A checkout that is staged and applied, and ends before its end."""
    ours = work.scan_past()
    checkout = Checkout(work.db, work.tree)
    changes = work.changes(ours.tree, entries(tree))
    work.stage(checkout, changes, checkout.begin(changes), tree)
    before()
    with pytest.raises(Killed):
        checkout.apply(commit)


def lies_replaced(work: Workspace) -> list[str]:
    return os.listdir(work.root / ".metasync" / "replaced")


def test_directories_that_were_staged_are_nobodys(work: Workspace) -> None:
    """They stay in `tmp` where the user made the same directory first, and what was in them was brought by itself."""
    applied(work, NEW, before=work.at(b"d").mkdir)
    assert os.listdir(work.root / ".metasync" / "tmp")
    Checkout(work.db, work.tree).recover()
    assert read(work.root) == full(NEW)
    assert lies_replaced(work) == []


class Refusing(QuietDisk):
    """Refuses to give anything this name."""

    name = b""
    code = errno.EACCES

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        if new == self.name:
            raise OSError(self.code, os.strerror(self.code))
        super().rename_new(old, old_fd, new, new_fd)


def test_a_staged_file_that_cannot_be_placed_is_nobodys(tmp_path: Path) -> None:
    disk = Refusing()
    disk.name = b"f"
    with Workspace(tmp_path, disk) as work:
        applied(work, {b"f": b"new f"})
        outcome = Checkout(work.db, work.tree).recover()
        assert outcome is not None
        assert [noted.path for noted in outcome.unplaced] == [b"f"]
        assert (read(tmp_path), lies_replaced(work)) == ({}, [])


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EACCES])
def test_a_directory_that_cannot_come_whole_comes_in_parts(tmp_path: Path, code: int) -> None:
    disk = Refusing()
    disk.name, disk.code = b"d", code
    with Workspace(tmp_path, disk) as work:
        assert work.check_out(NEW).unplaced == []
        assert read(tmp_path) == full(NEW)


def test_a_disk_that_fails_as_a_directory_comes_whole_ends_the_checkout(tmp_path: Path) -> None:
    disk = Refusing()
    disk.name, disk.code = b"d", errno.EIO
    with Workspace(tmp_path, disk) as work:
        with pytest.raises(WorkspaceError):
            work.check_out(NEW)
        disk.name = b""
        Checkout(work.db, work.tree).recover()
        assert read(tmp_path) == full(NEW)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EIO])
def test_a_file_that_cannot_be_linked_away_is_moved_away(tmp_path: Path, code: int) -> None:
    """But a disk that fails is no disk without links."""

    class Unlinked(Linking):
        def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            raise OSError(code, os.strerror(code))

    with Workspace(tmp_path, Unlinked()) as work:
        agreed(work, {b"f": b"old f"})
        if code == errno.EIO:
            with pytest.raises(WorkspaceError):
                work.check_out({b"f": b"new f"})
            assert read(tmp_path)[b"f"].data == b"old f"
            return
        work.check_out({b"f": b"new f"})
        assert read(tmp_path)[b"f"].data == b"new f"
        assert files_under(tmp_path / ".metasync" / "replaced") == [b"old f"]


class Busy(Plain):
    """A directory that something is mounted on: it goes nowhere."""

    def rmdir(self, name: bytes, dir_fd: int) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def test_what_could_not_be_cleared_is_not_placed_and_is_told_once(tmp_path: Path) -> None:
    with Workspace(tmp_path, Busy()) as work:
        agreed(work, {b"d": DIR})
        outcome = work.check_out({b"d": b"a file now"})
        assert [noted.path for noted in outcome.unplaced] == [b"d"]
        assert outcome.conflicts == []
        assert work.at(b"d").is_dir()


# ---- another file system than that of `.metasync`


class Sides(Mounted):
    """Dies before a name is given, or fails to copy."""

    dying = False
    failing = False

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        if self.dying and one.startswith(b"~$"):
            raise Killed
        return super().exchange(one, one_fd, other, other_fd)

    def write(self, fd: int, data: Any, offset: int = 0) -> None:
        if self.failing and self.side(fd):
            raise errno_error(errno.EIO)()
        super().write(fd, data, offset)


CHANGED = {**MOUNT_OLD, b"wide/a": b"new a"}


@needs_proc
def test_a_copy_beside_a_file_that_was_given_the_same_bytes_does_not_stay(tmp_path: Path) -> None:
    disk = Sides()
    with Workspace(tmp_path, disk) as work:
        agreed(work, MOUNT_OLD)
        disk.dying = True
        applied(work, CHANGED)
        assert [path for path in read(tmp_path) if b"~$" in path]
        disk.dying = False
        work.at(b"wide/a").write_bytes(b"new a")
        Checkout(work.db, work.tree).recover()
        assert work.at(b"wide/a").read_bytes() == b"new a"
        assert [path for path in read(tmp_path) if b"~$" in path] == []


@needs_proc
def test_what_lies_beside_a_placed_file_is_somebodys_and_is_kept(tmp_path: Path) -> None:
    with Workspace(tmp_path, Sides()) as work:
        agreed(work, MOUNT_OLD)
        applied(work, CHANGED)
        number = lies_replaced(work)[0]
        work.at(b"wide/~$metasync.%s" % number.encode()).write_bytes(b"somebody's")
        Checkout(work.db, work.tree).recover()
        assert b"somebody's" in files_under(tmp_path)
        assert [path for path in read(tmp_path) if b"~$" in path] == []
        assert work.at(b"wide/a").read_bytes() == b"new a"


@needs_proc
def test_a_file_system_that_fails_is_not_one_without_room(tmp_path: Path) -> None:
    disk = Sides()
    with Workspace(tmp_path, disk) as work:
        agreed(work, MOUNT_OLD)
        with pytest.raises(WorkspaceError):
            work.check_out(MOUNT_NEW, before_apply=lambda: setattr(disk, "failing", True))
        disk.failing = False
        Checkout(work.db, work.tree).recover()
        assert read(tmp_path) == full(MOUNT_NEW)
