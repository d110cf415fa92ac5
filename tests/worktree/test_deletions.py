"""What absence means, rule by rule (architecture.md, D8): each test fails without the line that it is for."""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from workdir import DIR, FoldingDisk, QuietDisk, Workspace, entries, entry, write

from metasync.local.state_keys import NO_ROOM, UNPLACED, Unplaced
from metasync.worktree.index import load_rows, store_rows
from metasync.worktree.names import IGNORE_NAME as RULES
from metasync.worktree.scan import Scan

TREE: dict[bytes, Any] = {
    b"a": b"alpha",
    b"d": DIR,
    b"d/b": b"beta",
    b"d/e": DIR,
    b"d/e/c": b"gamma",
}


@pytest.fixture
def work(tmp_path: Path) -> Any:
    with Workspace(tmp_path) as found:
        write(found.root, TREE)
        found.base = dict(found.scan_past().tree)
        yield found


def without_rows(work: Workspace, *paths: bytes) -> None:
    """These were agreed, and this disk could not take them."""
    work.db.delete_rows(paths)


def copied(work: Workspace, *, to_another_disk: bool) -> None:
    """The folder is a copy: its root has another inode than the rows say, and maybe its disk another number."""
    rows = load_rows(work.db)
    dev = 7 if to_another_disk else 0
    store_rows(work.db, [(p, r._replace(dev=r.dev + dev, ino=r.ino + 10**6)) for p, r in rows.items()])


def gone(work: Workspace, *paths: bytes) -> Scan:
    for path in sorted(paths, reverse=True):
        at = work.at(path)
        at.rmdir() if at.is_dir() and not at.is_symlink() else at.unlink()
    return work.scan()


class Unlisted(QuietDisk):
    """Does not list a directory that has this inode: the user may enter it, and not read it."""

    def __init__(self, ino: int) -> None:
        self.ino = ino

    def names(self, fd: int) -> list[bytes]:
        if os.fstat(fd).st_ino == self.ino:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return super().names(fd)


def test_below_a_directory_that_cannot_be_listed_nothing_is_deleted(work: Workspace) -> None:
    """Not even in a directory that was never here."""
    without_rows(work, b"d/e")
    work.tree.disk = Unlisted(work.at(b"d").stat().st_ino)
    found = gone(work, b"d/e/c", b"d/e")
    assert (found.deleted, found.missing) == ([], [])
    assert found.tree == work.base


def test_below_an_ignored_directory_nothing_is_deleted(work: Workspace) -> None:
    without_rows(work, b"d")
    work.at(RULES).write_bytes(b"/d/\n")
    found = gone(work, b"d/e/c", b"d/e", b"d/b", b"d")
    assert (found.deleted, found.missing) == ([], [])
    assert found.tree.keys() - {RULES} == TREE.keys()


def test_a_file_that_was_here_is_deleted_with_directories_that_could_not_be(work: Workspace) -> None:
    """Its row says that it was here, and on which disk. The directories stay for what was not."""
    without_rows(work, b"d", b"d/e", b"d/b")
    found = gone(work, b"d/e/c", b"d/e", b"d/b", b"d")
    assert found.deleted == [b"d/e/c"]
    assert found.tree.keys() == TREE.keys() - {b"d/e/c"}


@pytest.mark.parametrize("to_another_disk", [False, True])
def test_what_a_copy_of_the_folder_lacks_is_brought_again(work: Workspace, to_another_disk: bool) -> None:
    """Nobody deleted it: the copying left it out, or had not come to it. Its row goes: it speaks of the original."""
    copied(work, to_another_disk=to_another_disk)
    found = gone(work, b"a", b"d/e/c", b"d/e")
    assert (found.deleted, found.missing) == ([], [b"a", b"d/e", b"d/e/c"])
    assert found.tree == work.base
    assert not load_rows(work.db).keys() & {b"a", b"d/e", b"d/e/c"}
    assert any("copy" in note.reason for note in found.skipped)
    again = work.scan()
    assert (again.deleted, again.tree) == ([], work.base)


def test_a_file_in_the_place_of_a_directory_ends_it_in_a_copy_too(work: Workspace) -> None:
    """That the user did: there is something new."""
    copied(work, to_another_disk=False)
    for path in (b"d/e/c", b"d/b"):
        work.at(path).unlink()
    work.at(b"d/e").rmdir()
    work.at(b"d").rmdir()
    work.at(b"d").write_bytes(b"a file now")
    found = work.scan()
    assert found.deleted == [b"d/b", b"d/e", b"d/e/c"]
    assert found.tree == entries({b"a": b"alpha"}) | {b"d": found.tree[b"d"]}


def test_what_has_no_room_here_is_not_deleted_with_its_old_version(work: Workspace) -> None:
    """A newer version of it waits for room. That is agreed, and nobody here has seen it."""
    work.db.put_records(UNPLACED, [Unplaced(b"a", f"{NO_ROOM} for its 7 bytes")])
    found = gone(work, b"a")
    assert (found.deleted, found.missing) == ([], [b"a"])
    assert found.tree == work.base


class Composing(QuietDisk):
    """Finds names in whatever Unicode form, and lists them decomposed, as HFS+ does. Nobody has told the rules so."""

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        for other in os.listdir(dir_fd):
            if unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", os.fsdecode(name)):
                return super().lstat(os.fsencode(other), dir_fd)
        return super().lstat(name, dir_fd)


def test_a_name_that_the_disk_spells_in_another_form_is_not_deleted(work: Workspace) -> None:
    composed, decomposed = "é".encode(), unicodedata.normalize("NFD", "é").encode()
    work.at(composed).write_bytes(b"accent")
    work.base = dict(work.scan_past().tree)
    work.at(composed).rename(work.at(decomposed))
    work.tree.disk = Composing()
    found = work.scan()
    assert found.deleted == []
    assert found.tree[composed] == work.base[composed]


def test_a_name_that_is_listed_no_more_and_found_all_the_same_is_not_deleted(work: Workspace) -> None:
    """It was just made again, or a listing passed it by."""

    class Forgetful(QuietDisk):
        def names(self, fd: int) -> list[bytes]:
            return [name for name in super().names(fd) if name != b"a"]

    work.tree.disk = Forgetful()
    found = work.scan()
    assert (found.deleted, found.tree) == ([], work.base)


def test_a_row_of_what_was_never_agreed_goes_with_its_file(work: Workspace) -> None:
    work.at(b"new").write_bytes(b"not pushed")
    work.scan_past()
    found = gone(work, b"new")
    assert (found.deleted, found.forgotten) == ([], [b"new"])
    assert found.tree == work.base
    assert entry(b"alpha") == found.tree[b"a"]
    assert b"new" not in load_rows(work.db)


class Folding(FoldingDisk):
    """Opens names whatever their case, too."""

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        for other in os.listdir(dir_fd):
            if os.fsencode(other).lower() == name.lower():
                return super().open(os.fsencode(other), flags, dir_fd, mode)
        return super().open(name, flags, dir_fd, mode)


def test_below_a_directory_whose_name_leads_to_another_nothing_is_deleted(work: Workspace) -> None:
    """The disk came to fold case: `d` leads to `D`, and what is not in `D` says nothing of `d`."""
    write(work.root, {b"D": DIR, b"D/x": b"another directory"})
    work.base = dict(work.scan_past().tree)
    without_rows(work, b"d/e")
    for path in (b"d/e/c", b"d/b"):
        work.at(path).unlink()
    work.at(b"d/e").rmdir()
    work.at(b"d").rmdir()
    work.tree.disk = Folding()
    found = work.scan()
    assert (found.deleted, found.tree) == ([], work.base)
