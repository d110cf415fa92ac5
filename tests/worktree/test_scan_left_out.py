"""What the scan does not take in: what cannot be read, special files, ignored names, and a local state of MetaSync."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scan_kit import TREE, agreed, never
from workdir import DIR, Link, QuietDisk, Workspace, digest, entries, write

from metasync.errors import WorkspaceError
from metasync.worktree.disk import check_name, check_path
from metasync.worktree.merge_walk import Noted
from metasync.worktree.names import IGNORE_NAME as RULES
from metasync.worktree.names import folds_to_state
from metasync.worktree.tree import WorkTree


class Denied(QuietDisk):
    """Opening some names fails."""

    def __init__(self, *names: bytes, code: int = errno.EACCES) -> None:
        self.names_denied = names
        self.code = code

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if name in self.names_denied:
            raise OSError(self.code, os.strerror(self.code), name)
        return super().open(name, flags, dir_fd, mode)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_unreadable_files_keep_the_base(work: Workspace, code: int) -> None:
    agreed(work)
    work.at(b"a.txt").write_bytes(b"secret")
    work.at(b"new").write_bytes(b"secret")
    work.tree.disk = Denied(b"a.txt", b"new", code=code)
    found = work.scan()
    assert found.tree == entries(TREE)
    assert found.unreadable == [Noted(b"a.txt", os.strerror(code)), Noted(b"new", os.strerror(code))]
    assert found.deleted == []


def test_unreadable_directories_keep_all_below(work: Workspace) -> None:
    agreed(work)
    work.tree.disk = Denied(b"d")
    found = work.scan()
    assert found.tree == entries(TREE)
    assert found.unreadable == [Noted(b"d", os.strerror(errno.EACCES))]
    assert found.deleted == []
    work.tree.disk = QuietDisk()
    assert work.scan(ingest=never).tree == entries(TREE)  # the rows were kept


def test_a_directory_that_fails_while_it_is_listed(work: Workspace) -> None:
    agreed(work)

    class Failing(QuietDisk):
        def names(self, fd: int) -> list[bytes]:
            found = super().names(fd)
            if b"b.txt" in found:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return found

    work.tree.disk = Failing()
    found = work.scan()
    assert found.tree == entries(TREE)
    assert found.unreadable == [Noted(b"d", os.strerror(errno.EIO))]


@pytest.mark.parametrize("at", [b"b.txt", b"c.txt", b"e", b"g", b"z"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ELOOP])
def test_a_directory_that_fails_half_way_is_left_as_it_was(work: Workspace, at: bytes, code: int) -> None:
    """All of it or nothing: neither what was seen before it failed counts, nor what is gone."""
    agreed(work, {**TREE, b"d/g": DIR, b"d/g/h": b"h", b"d/z": b"z", b"o": b"o"})
    work.at(b"d/b.txt").unlink()
    work.at(b"d/e/c.txt").write_bytes(b"changed")
    work.at(b"d/e/new").write_bytes(b"new")
    work.at(b"d/g").rename(work.at(b"d/moved"))
    write(work.root, {b"d/b.txt": b"other", b"d/a/b": b"new", b"d/g": b"a file now", b"d/.DS_Store": b""})
    work.at(b"o").write_bytes(b"changed")

    class Failing(QuietDisk):
        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            if name == at:
                raise OSError(code, os.strerror(code))
            return super().lstat(name, dir_fd)

    work.tree.disk = Failing()
    found = work.scan()
    inside = b"d/e" if at == b"c.txt" else b"d"
    assert found.busy == ([inside] if code == errno.ELOOP else [])
    assert found.unreadable == ([] if code == errno.ELOOP else [Noted(inside, os.strerror(code))])
    assert {p: e for p, e in found.tree.items() if p.startswith(inside + b"/")} == {
        p: e for p, e in work.base.items() if p.startswith(inside + b"/")
    }
    assert [p for p in found.deleted if p.startswith(inside + b"/")] == []
    assert [p for p in found.put_rows if p.startswith(inside)] == []
    assert found.tree[b"o"].content == digest(b"changed")
    work.tree.disk = QuietDisk()
    assert work.scan().tree[b"d/e/c.txt"].content == digest(b"changed")


def test_an_unreadable_root_is_an_error(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed(work)

    def fails(fd: int) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(OSError, match="Input/output"):
        work.scan()


def test_a_missing_root(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="can't be used as a workspace"):
        WorkTree(os.fsencode(tmp_path / "gone"))
    with pytest.raises(WorkspaceError, match="can't be used as a workspace"):
        WorkTree(os.fsencode(tmp_path))  # no .metasync


# ---- what is not taken in


def test_special_files_are_named_and_keep_the_base(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").unlink()
    os.mkfifo(work.at(b"a.txt"))
    here = os.getcwd()
    os.chdir(work.root)  # the path of a socket has at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind("sock")
    finally:
        os.chdir(here)
    found = work.scan()
    assert found.tree == entries(TREE)
    assert {path for path, _ in found.skipped} == {b"a.txt", b"sock"}
    assert found.deleted == []


def test_ignored_names(work: Workspace) -> None:
    write(work.root, {b".DS_Store": b"x", b"d/Thumbs.db": b"x", b"~$letter.doc": b"x", b"d/ok~$": b"y", b"Tool": b"z"})
    found = work.scan()
    assert set(found.tree) == {b"d", b"d/ok~$", b"Tool"}
    assert found.skipped == []
    assert found.ignored == [b".DS_Store", b"d/Thumbs.db", b"~$letter.doc"]


def test_newly_ignored_keeps_the_entry(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").write_bytes(b"changed")
    work.at(b"d/e/c.txt").unlink()
    work.at(b"d/e/n.txt").write_bytes(b"new")
    work.at(RULES).write_bytes(b"a.txt\nd/e/\n")
    found = work.scan()
    assert found.tree.pop(RULES).size
    assert found.tree == entries(TREE)
    assert (found.deleted, found.skipped) == ([], [])
    assert (found.held(), found.ignored) == ([b"a.txt", b"d/e/c.txt"], [])


def test_deleted_and_newly_ignored_keeps_the_entry(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").unlink()
    work.at(RULES).write_bytes(b"/a.txt")
    found = work.scan()
    assert found.tree.pop(RULES).size
    assert (found.tree, found.deleted, found.held()) == (entries(TREE), [], [b"a.txt"])


def test_a_workspace_inside_is_left_alone(work: Workspace) -> None:
    agreed(work)
    write(work.root, {b"d/.metasync": DIR, b"d/.metasync/state.db": b""})
    work.at(b"d/b.txt").unlink()
    write(work.root, {b"other/.metasync": DIR, b"other/.metasync/state.db": b"", b"other/x": b"x"})
    found = work.scan()
    assert found.tree == entries(TREE)
    assert found.skipped == [Noted(b"d", "a workspace of its own"), Noted(b"other", "a workspace of its own")]
    assert found.deleted == []


@pytest.mark.parametrize(
    "odd",
    [
        {b".metasync": b"a file"},
        {b".metasync": Link(b"../.metasync")},
        {b".metasync": Link(b"nowhere")},
        {b".metasync": DIR},
        {b".metasync": DIR, b".metasync/device.key": b"of a state that was lost"},
        {b".metasync": DIR, b".metasync/d": DIR, b".metasync/d/state.db": b""},
    ],
    ids=["file", "link to a state", "dangling link", "empty", "without state.db", "state.db deeper"],
)
def test_what_is_called_as_a_state_and_is_none_is_left_out_alone(work: Workspace, odd: dict[bytes, Any]) -> None:
    """All beside it is taken in, a deletion too; it itself is not, nor what is in it."""
    agreed(work)
    work.at(b".metasync/state.db").touch()  # so that the link above leads to a state
    work.at(b"d/b.txt").unlink()
    write(work.root, {b"d/" + name: what for name, what in odd.items()} | {b"d/new": b"new"})
    write(work.root, {b"other": DIR} | {b"other/" + name: what for name, what in odd.items()} | {b"other/x": b"x"})
    found = work.scan()
    assert set(found.tree) == {*TREE, b"d/new", b"other", b"other/x"} - {b"d/b.txt"}
    assert found.deleted == [b"d/b.txt"]
    why = "its name is kept for the state of a workspace"
    assert found.skipped == [Noted(b"d/.metasync", why), Noted(b"other/.metasync", why)]


def test_a_state_that_may_not_be_looked_into_is_one(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed(work)
    write(work.root, {b"d/.metasync": DIR, b"d/new": b"new"})
    inside = os.stat(work.at(b"d/.metasync")).st_ino
    look = QuietDisk.look

    def refused(disk: Any, name: bytes, dir_fd: int) -> Any:
        if os.fstat(dir_fd).st_ino == inside:
            raise PermissionError(errno.EACCES, "Permission denied")
        return look(disk, name, dir_fd)

    monkeypatch.setattr(QuietDisk, "look", refused)
    found = work.scan()
    assert found.tree == entries(TREE)
    assert found.skipped == [Noted(b"d", "a workspace of its own")]


NASTY = [b".MetaSync", b".METASYNC", b".metasync ", b".metasync.", b"METASY~1", b"metasy~12", b".metasync::$DATA"]
NASTY += [name.encode() for name in (".meta\u200csync", "\ufeff.metasync", ".metaſync")]


@pytest.mark.parametrize("name", NASTY)
def test_names_that_fold_to_the_state_are_skipped(work: Workspace, name: bytes) -> None:
    write(work.root, {name: b"evil", b"d/" + name: b"evil", b"ok": b"x"})
    found = work.scan()
    assert set(found.tree) == {b"ok"}  # d holds nothing else
    assert {path for path, _ in found.skipped} == {name, b"d/" + name}
    assert check_name(name)
    assert check_path(b"a/" + name + b"/b")


def test_names_that_may_be() -> None:
    for name in (
        b"metasync",
        b".metasync2",
        b"x.metasync",
        b"METASY~",
        b"\xff",
        "é".encode(),
        b"a b.",
        b".git",
        b"...",
    ):
        assert check_name(name) == ""
        assert check_path(b"d/" + name) == ""
    for name in (b"", b".", b"..", b"a/b", b"a\0b"):
        assert check_name(name)
    for path in (b"", b"/etc", b"a//b", b"a/", b"../a", b"a/../b", b"./a", b"a/.", b"a\0"):
        assert check_path(path)
    assert folds_to_state(".metasync")


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
def test_a_whole_path_is_checked_as_its_names_are(text: str) -> None:
    path = text.encode()
    assert bool(check_path(path)) == any(check_name(name) for name in path.split(b"/"))


def test_a_fifo_does_not_stop_the_scan(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that becomes a fifo between the walk and the reading: opening it must not wait for a writer."""
    agreed(work, {b"a": b"one"})
    work.at(b"a").write_bytes(b"changed")
    listing = os.scandir

    class Disk(QuietDisk):
        def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
            if name == b"a":
                work.at(b"a").unlink()
                os.mkfifo(work.at(b"a"))
            return super().open(name, flags, dir_fd, mode)

    work.tree.disk = Disk()
    assert os.scandir is listing
    found = work.scan()
    assert found.busy == [b"a"]
    assert stat.S_ISFIFO(os.lstat(work.at(b"a")).st_mode)


def test_a_directory_too_deep_for_any_tree_is_left_out(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work.root, {b"d": DIR, b"d/e": DIR, b"d/e/f": b"1", b"d/g": b"2"})
    monkeypatch.setattr("metasync.worktree.merge_walk.DIR_PATH_BYTES_MAX", 2)
    found = work.scan_past()
    assert set(found.tree) == {b"d", b"d/g"}
    assert Noted(b"d/e", "its path is too long") in found.skipped
