"""The scan: what stands in the working tree, and what its absence means."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from workdir import (
    DIR,
    MTIME_NS,
    Dir,
    File,
    FoldingDisk,
    Link,
    QuietDisk,
    Workspace,
    digest,
    entries,
    entry,
    ingest,
    trees,
    write,
)

from metasync.errors import WorkspaceError
from metasync.objects.model import Kind
from metasync.worktree.disk import check_name, check_path
from metasync.worktree.index import load_rows, store_rows
from metasync.worktree.merge_walk import Noted
from metasync.worktree.names import IGNORE_NAME as RULES
from metasync.worktree.names import folds_to_state
from metasync.worktree.scan import READS_MAX, Content, Scan, store_scan
from metasync.worktree.tree import WorkTree

TREE: dict[bytes, Any] = {
    b"a.txt": b"alpha",
    b"d": DIR,
    b"d/b.txt": b"beta",
    b"d/e": DIR,
    b"d/e/c.txt": File(b"gamma", 0o755),
    b"empty": Dir(0o700),
    b"link": Link(b"d/b.txt"),
    b"nothing": b"",
}


@pytest.fixture
def work(tmp_path: Path) -> Any:
    with Workspace(tmp_path) as found:
        yield found


def agreed(work: Workspace, tree: dict[bytes, Any] = TREE) -> Scan:
    """Writes a tree and takes it as agreed, all rows trusted."""
    write(work.root, tree)
    found = work.scan_past()
    work.base = dict(found.tree)
    return found


def never(fd: int, st: os.stat_result, was: object = None) -> Content:
    raise AssertionError("a clean file was read")


# ---- what is there


def test_takes_in_every_kind(work: Workspace) -> None:
    found = agreed(work)
    assert found.tree == entries(TREE)
    assert found.files_read == 4
    assert (found.deleted, found.unreadable, found.busy, found.skipped) == ([], [], [], [])


def test_a_second_scan_reads_nothing(work: Workspace) -> None:
    found = agreed(work)
    again = work.scan(ingest=never)
    assert again.tree == found.tree
    assert (again.put_rows, again.delete_rows, again.files_read) == ({}, [], 0)


def test_names_are_bytes(work: Workspace) -> None:
    tree = {b"\xff\xfe": b"not utf-8", "käse".encode(): b"x", b"new\nline": b"y", b"d": DIR, b"d/\x80": Link(b"\xff")}
    assert agreed(work, tree).tree == entries(tree)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda p: p.write_bytes(b"other"), id="same size"),
        pytest.param(lambda p: p.write_bytes(b"longer than before"), id="longer"),
        pytest.param(lambda p: (p.write_bytes(b"OTHER"), os.utime(p, ns=(0, MTIME_NS))), id="mtime set back"),
        pytest.param(lambda p: (p.unlink(), p.write_bytes(b"OTHER"), os.utime(p, ns=(0, MTIME_NS))), id="new inode"),
    ],
)
def test_finds_every_change(work: Workspace, change: Any) -> None:
    agreed(work)
    at = work.at(b"a.txt")
    change(at)
    found = work.scan()
    got = found.tree[b"a.txt"]
    assert got.content == digest(at.read_bytes())
    assert got.mtime_ns == at.stat().st_mtime_ns
    assert {p for p, e in found.tree.items() if e != work.base[p]} == {b"a.txt"}


def test_finds_modes_links_and_kinds(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").chmod(0o600)
    work.at(b"empty").chmod(0o755)
    work.at(b"link").unlink()
    work.at(b"link").symlink_to("elsewhere")
    work.at(b"nothing").unlink()
    work.at(b"nothing").mkdir()
    work.at(b"d/e/c.txt").unlink()
    work.at(b"d/e").rmdir()
    work.at(b"d/e").write_bytes(b"a file now")
    found = work.scan()
    assert found.tree[b"a.txt"] == entry(File(b"alpha", 0o600))
    assert found.tree[b"empty"] == entry(DIR)
    assert found.tree[b"link"].content == b"elsewhere"
    assert found.tree[b"nothing"].kind is Kind.DIR
    assert found.tree[b"d/e"].content == digest(b"a file now")
    assert found.deleted == [b"d/e/c.txt"]


def test_what_the_disk_cannot_hold_keeps_the_agreed_values(work: Workspace) -> None:
    agreed(work)
    rows = load_rows(work.db)
    for path in (b"a.txt", b"d", b"link"):  # as on FAT: mode and time on the disk are not the agreed ones
        old = rows[path].entry
        odd = old._replace(mode=old.mode and 0o640, mtime_ns=old.mtime_ns and 123, tags=((9, b"t"),))
        rows[path] = rows[path]._replace(entry=odd)
        work.base[path] = odd
    store_rows(work.db, rows.items())
    assert work.scan(ingest=never).tree == work.base

    store_rows(work.db, ((p, r._replace(trusted=False)) for p, r in rows.items()))
    assert work.scan().tree == work.base  # read again, the same content

    os.utime(work.at(b"a.txt"), ns=(0, 10**18))
    got = work.scan().tree[b"a.txt"]
    assert (got.mtime_ns, got.mode, got.tags) == (10**18, 0o640, ((9, b"t"),))
    work.at(b"a.txt").write_bytes(b"new content")
    got = work.scan().tree[b"a.txt"]
    assert (got.content, got.mode, got.tags) == (digest(b"new content"), 0o640, ((9, b"t"),))


def test_a_write_in_the_same_tick_is_found(work: Workspace) -> None:
    """The racy-clean rule: equal stat, other bytes."""

    class StoppedClock(QuietDisk):
        def touch(self, fd: int) -> int:
            return MTIME_NS

    write(work.root, {b"a": b"one"})
    work.tree.disk = StoppedClock()
    now = os.lstat(work.at(b"a"))
    found = work.scan()
    assert not found.put_rows[b"a"].trusted
    with work.at(b"a").open("r+b") as f:
        f.write(b"two")
    os.utime(work.at(b"a"), ns=(0, MTIME_NS))
    rows = load_rows(work.db)
    here = os.lstat(work.at(b"a"))
    rows[b"a"] = rows[b"a"]._replace(ctime_ns=here.st_ctime_ns)  # as if within one tick
    assert here.st_ino == now.st_ino
    store_rows(work.db, rows.items())
    assert work.scan().tree[b"a"].content == digest(b"two")


def test_a_time_in_the_future_is_never_trusted(work: Workspace) -> None:
    write(work.root, {b"a": File(b"one", 0o644, 4 * 10**18)})
    assert not work.scan_past().put_rows[b"a"].trusted
    assert work.scan_past().files_read == 1


def test_a_time_beyond_what_entries_hold_is_the_nearest_that_they_do(work: Workspace) -> None:
    """64 bits of nanoseconds hold the years 1677 to 2262; file systems hold more."""

    class LongYears(QuietDisk):
        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            return self.dated(super().lstat(name, dir_fd))

        def fstat(self, fd: int) -> os.stat_result:
            return self.dated(super().fstat(fd))

        def dated(self, st: os.stat_result) -> os.stat_result:
            ns = -(1 << 65) if stat.S_ISLNK(st.st_mode) else 1 << 65
            return os.stat_result(tuple(st), {"st_mtime_ns": ns, "st_ctime_ns": st.st_ctime_ns})

    work.tree.disk = LongYears()
    found = agreed(work, {b"a": b"one", b"link": Link(b"a")})
    assert [found.tree[p].mtime_ns for p in (b"a", b"link")] == [(1 << 63) - 1, 1 - (1 << 63)]
    rows = load_rows(work.db)
    store_rows(work.db, ((p, r._replace(trusted=True)) for p, r in rows.items()))
    again = work.scan(ingest=never)
    assert (again.tree, again.put_rows) == (found.tree, {})


# ---- what is read while it changes


def test_a_file_that_changes_once_is_read_again(work: Workspace) -> None:
    write(work.root, {b"a": b"one", b"b": b"x"})
    calls = []

    def change_once(fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        calls.append(got.content)
        if len(calls) == 1:
            work.at(b"a").write_bytes(b"changed")
        return got

    found = work.scan(ingest=change_once)
    assert found.tree[b"a"].content == digest(b"changed")
    assert calls == [digest(b"one"), digest(b"changed"), digest(b"x")]


@pytest.mark.parametrize("known", [True, False])
def test_a_busy_file_is_left_and_the_others_go_on(work: Workspace, known: bool) -> None:
    if known:
        agreed(work, {b"a": b"zero"})
        work.at(b"a").write_bytes(b"one")
    else:
        write(work.root, {b"a": b"one"})
    write(work.root, {b"b": b"x"})
    reads = []

    def always(fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        if got.content != digest(b"x"):
            reads.append(1)
            work.at(b"a").write_bytes(b"%d" % len(reads))
        return got

    found = work.scan(ingest=always)
    assert len(reads) == READS_MAX
    assert found.busy == [b"a"]
    assert found.tree.get(b"a") == (entry(b"zero") if known else None)
    assert found.tree[b"b"] == entry(b"x")
    assert found.deleted == []
    assert work.scan().tree[b"a"].content == digest(b"3")  # quiet again


class Growing:
    """Reads files, and appends to `log` after each reading of it. `then`: what else happens to it, in which reading."""

    def __init__(self, work: Workspace, then: Callable[[Path], object] = lambda _: None, at: int = 0) -> None:
        self.log = work.at(b"log")
        self.then = then
        self.at = at
        self.reads = 0

    def __call__(self, fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        self.reads += 1
        with self.log.open("ab") as f:
            f.write(b"line %d\n" % self.reads)
        if self.reads == self.at:
            self.then(self.log)
        return got


@pytest.mark.parametrize("known", [True, False])
def test_a_file_that_grows_is_taken_as_it_was(work: Workspace, known: bool) -> None:
    write(work.root, {b"log": b"line 0\n"})
    if known:
        agreed(work, {b"log": b"line 0\n"})
        work.at(b"log").write_bytes(b"line 0\nline\n")
    begins = work.at(b"log").read_bytes()
    growing = Growing(work)
    found = work.scan(ingest=growing)
    assert growing.reads == READS_MAX + 1
    assert found.busy == []
    taken = begins + b"".join(b"line %d\n" % n for n in range(1, READS_MAX))
    assert found.tree[b"log"].content == digest(taken)
    assert found.tree[b"log"].size == len(taken) < work.at(b"log").stat().st_size
    store_scan(work.db, found)
    assert work.scan().tree[b"log"].content == digest(work.at(b"log").read_bytes())  # the rest comes next


def _first_line(log: Path) -> None:
    with log.open("r+b") as f:
        f.write(b"LINE")


@pytest.mark.parametrize(
    "then",
    [
        _first_line,
        lambda log: os.truncate(log, 3),
        lambda log: log.unlink(),
        lambda log: (log.unlink(), log.write_bytes(b"another file, and a longer one than that\n" * 9)),
        lambda log: log.chmod(0o600),
    ],
    ids=["written over", "shorter", "gone", "another", "mode"],
)
def test_a_file_that_does_not_only_grow_is_busy(work: Workspace, then: Callable[[Path], object]) -> None:
    write(work.root, {b"log": b"line 0\n"})
    found = work.scan(ingest=Growing(work, then, READS_MAX))
    assert found.busy == [b"log"]
    assert b"log" not in found.tree


def test_an_empty_file_that_grows_is_busy(work: Workspace) -> None:
    """Somebody is about to write it: an empty one is no version of it."""
    write(work.root, {b"log": b""})
    log, turns = work.at(b"log"), iter(range(READS_MAX))

    def emptied(fd: int, st: os.stat_result, was: object = None) -> Content:
        os.truncate(log, 0)
        got = ingest(fd, st)
        log.write_bytes(b"line")
        if next(turns) < READS_MAX - 1:
            os.truncate(log, 0)
        return got

    assert work.scan(ingest=emptied).busy == [b"log"]


@pytest.mark.parametrize("becomes", ["nothing", "another file", "a directory", "a symlink", "a fifo"])
def test_a_file_that_is_exchanged_while_it_is_read(work: Workspace, becomes: str) -> None:
    agreed(work, {b"a": b"zero", b"b": b"y"})
    work.at(b"a").write_bytes(b"one!")
    work.at(b"c").write_bytes(b"saved")
    done = []

    def exchange(fd: int, st: os.stat_result, was: object = None) -> Content:
        got = ingest(fd, st)
        if got.content == digest(b"one!") and not done:
            done.append(1)
            at = work.at(b"a")
            if becomes == "another file":
                work.at(b"c").rename(at)
            else:
                at.unlink()
                {"nothing": lambda: 0, "a directory": at.mkdir, "a fifo": lambda: os.mkfifo(at)}.get(
                    becomes, lambda: at.symlink_to("/etc/passwd")
                )()
        return got

    found = work.scan(ingest=exchange)
    if becomes == "another file":
        assert found.tree[b"a"].content == digest(b"saved")
    else:
        assert found.busy == [b"a"]
        assert found.tree[b"a"] == entry(b"zero")
    assert found.tree[b"b"] == entry(b"y")
    assert found.deleted == []


@pytest.mark.parametrize("becomes", ["nothing", "another file", "another size", "a directory", "a symlink", "a fifo"])
def test_a_file_that_is_exchanged_between_the_walk_and_its_reading(work: Workspace, becomes: str) -> None:
    """What the walk saw is not what is read: the stat afterwards tells, and the file is looked at again."""
    agreed(work, {b"a": b"zero", b"b": b"y"})
    work.at(b"a").write_bytes(b"one!")
    work.at(b"c").write_bytes(b"more, saved" if becomes == "another size" else b"two!")
    saved = work.at(b"c").read_bytes()

    class Exchanging(QuietDisk):
        done = False

        def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
            if name == b"a" and not self.done:
                self.done = True
                at = work.at(b"a")
                if becomes.startswith("another"):
                    work.at(b"c").rename(at)
                else:
                    at.unlink()
                    {"nothing": lambda: 0, "a directory": at.mkdir, "a fifo": lambda: os.mkfifo(at)}.get(
                        becomes, lambda: at.symlink_to("/etc/passwd")
                    )()
            return super().open(name, flags, dir_fd, mode)

    work.tree.disk = Exchanging()
    found = work.scan()
    if becomes.startswith("another"):
        assert found.tree[b"a"].content == digest(saved)
    else:
        assert found.busy == [b"a"]
        assert found.unreadable == []
        assert found.tree[b"a"] == entry(b"zero")
    assert found.tree[b"b"] == entry(b"y")
    assert found.deleted == []


# ---- what can't be read


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


# ---- what is absent


def test_deleted_files_and_trees(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").unlink()
    work.at(b"d/e/c.txt").unlink()
    work.at(b"d/e").rmdir()
    work.at(b"empty").rmdir()
    work.at(b"link").unlink()
    found = work.scan()
    gone = [b"a.txt", b"d/e", b"d/e/c.txt", b"empty", b"link"]
    assert found.deleted == gone
    assert found.tree == {p: e for p, e in entries(TREE).items() if p not in gone}
    assert work.scan().deleted == gone  # until the base lets go of them
    work.base = dict(found.tree)
    after = work.scan()
    assert (after.deleted, after.delete_rows) == ([], gone)
    assert work.scan().delete_rows == []


def test_what_was_never_here_is_not_deleted(work: Workspace) -> None:
    agreed(work)
    work.base[b"far"] = entry(DIR)
    work.base[b"far/away"] = entry(b"elsewhere")
    found = work.scan()
    assert found.tree == work.base
    assert found.deleted == []


def test_a_rebuilt_state_deletes_nothing(work: Workspace) -> None:
    agreed(work)
    work.db.delete_rows(load_rows(work.db))
    work.at(b"a.txt").unlink()
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])


def test_a_directory_keeps_standing_for_what_was_never_here(work: Workspace) -> None:
    agreed(work)
    work.base[b"d/e/far"] = entry(b"elsewhere")
    for path in (b"d/e/c.txt", b"d/b.txt"):
        work.at(path).unlink()
    work.at(b"d/e").rmdir()
    work.at(b"d").rmdir()
    found = work.scan()
    assert found.deleted == [b"d/b.txt", b"d/e/c.txt"]
    assert {b"d", b"d/e", b"d/e/far"} <= found.tree.keys()
    work.at(b"d").write_bytes(b"a file in its place")
    found = work.scan()
    assert found.tree[b"d"].kind is Kind.DIR
    assert found.skipped == [Noted(b"d", "stands in the place of a directory, some of which is not here")]


def test_an_unmounted_disk_deletes_nothing(work: Workspace) -> None:
    """The rows below d name another device than the one d lies on now: something was mounted there."""
    agreed(work)
    rows = load_rows(work.db)
    store_rows(work.db, ((p, r._replace(dev=r.dev + 1)) for p, r in rows.items() if p.startswith(b"d/") or p == b"d"))
    for path in (b"d/b.txt", b"d/e/c.txt"):
        work.at(path).unlink()
    work.at(b"d/e").rmdir()
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])
    assert {path for path, _ in found.skipped} == {b"d/b.txt", b"d/e"}


def test_a_renumbered_device_is_the_same_disk(work: Workspace) -> None:
    agreed(work)
    store_rows(work.db, [(p, r._replace(dev=r.dev + 7)) for p, r in load_rows(work.db).items()])
    work.at(b"a.txt").unlink()
    found = work.scan(ingest=never)
    assert found.deleted == [b"a.txt"]
    assert all(row.dev == work.tree.root_stat.st_dev for row in load_rows(work.db).values())


def test_a_copied_workspace_deletes_nothing(work: Workspace) -> None:
    """Half a copy on another disk: device and the root's inode differ from the rows'."""
    agreed(work)
    rows = load_rows(work.db)
    store_rows(work.db, [(p, r._replace(dev=r.dev + 7, ino=r.ino + 10**6)) for p, r in rows.items()])
    work.at(b"a.txt").unlink()
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])


@pytest.mark.parametrize("target", ["elsewhere", "empty", "/"])
def test_a_symlink_in_a_directorys_place_keeps_it(work: Workspace, target: str) -> None:
    agreed(work)
    work.at(b"d").rename(work.root.parent / (work.root.name + "-moved"))
    work.at(b"d").symlink_to(target)
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])
    assert [path for path, _ in found.skipped] == [b"d"]


def test_a_symlink_in_an_empty_directorys_place_is_a_change(work: Workspace) -> None:
    agreed(work)
    work.at(b"empty").rmdir()
    work.at(b"empty").symlink_to("d")
    assert work.scan().tree[b"empty"].kind is Kind.SYMLINK


def test_a_directory_of_ignored_files_is_not_new(work: Workspace) -> None:
    """Removed elsewhere, it stays here for the ignored files in it, and must not come back for everyone."""
    agreed(work)
    write(work.root, {b"build/x/cache.o": b"x", b"full/cache.o": b"x", b"full/real": b"y", b"blank": DIR})
    work.at(RULES).write_bytes(b"*.o")
    found = work.scan()
    assert set(found.tree) - set(TREE) == {b"full", b"full/real", b"blank", RULES}
    assert not {b"build", b"build/x"} & found.put_rows.keys()
    assert found.ignored == [b"build/x/cache.o", b"full/cache.o"]


def test_a_name_shadowed_by_case_is_not_deleted(work: Workspace) -> None:
    agreed(work, {b"readme": b"one", b"README": b"two"})
    work.at(b"readme").unlink()
    work.tree.disk = FoldingDisk()
    found = work.scan()
    assert (found.tree, found.deleted) == (work.base, [])


def test_a_respelled_name_is_a_rename(work: Workspace) -> None:
    agreed(work, {b"readme": b"one"})
    work.at(b"readme").rename(work.at(b"README"))
    work.tree.disk = FoldingDisk()
    found = work.scan()
    assert set(found.tree) == {b"README"}
    assert found.deleted == [b"readme"]


def test_deep_trees_need_few_descriptors(work: Workspace) -> None:
    deep = b"/".join([b"d"] * 300)
    write(work.root, {deep + b"/f": b"deep", deep[:200] + b"x/f": b"beside"})
    found = work.scan()
    assert found.tree[deep + b"/f"] == entry(b"deep")
    assert sum(e.kind is Kind.DIR for e in found.tree.values()) == 300 + 1
    assert len(work.tree._dirs) <= 64


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


# ---- a model: any tree, any edits


@settings(max_examples=examples(60))
@given(trees, trees)
def test_scan_sees_what_is_there(tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any) -> None:
    with Workspace(tmp_path_factory.mktemp("w")) as work:
        agreed(work, first)
        for path in sorted(first, reverse=True):
            if isinstance(first[path], Dir):
                work.at(path).rmdir()
            else:
                work.at(path).unlink()
        write(work.root, second)
        found = work.scan()
        kept = {p for p, _ in found.skipped}  # symlinks in the place of full directories
        if not kept:
            assert found.tree == entries(second)
            assert found.deleted == sorted(set(first) - set(second))
        assert set(found.tree) | set(found.deleted) >= set(first)


def test_a_directory_too_deep_for_any_tree_is_left_out(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work.root, {b"d": DIR, b"d/e": DIR, b"d/e/f": b"1", b"d/g": b"2"})
    monkeypatch.setattr("metasync.worktree.merge_walk.DIR_PATH_BYTES_MAX", 2)
    found = work.scan_past()
    assert set(found.tree) == {b"d", b"d/g"}
    assert Noted(b"d/e", "its path is too long") in found.skipped
