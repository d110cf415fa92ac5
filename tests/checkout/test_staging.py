"""Directories that come whole: by one rename, or by the piece; killed at any step; what they inherit."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import LATER_NS, assert_nothing_left, full
from workdir import DIR, Dir, File, Fuse, FusedDisk, Killed, Link, QuietDisk, Workspace, entries, read, write

from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.staging import whole_dirs
from metasync.errors import WorkspaceError
from metasync.worktree.index import load_rows, row_of

NEW: dict[bytes, Any] = {
    b"d": DIR,
    b"d-more": b"sorts between d and what is in it",
    b"d/e": Dir(0o555),
    b"d/e/f": File(b"in a directory that may not be written to", 0o444, LATER_NS),
    b"d/empty": b"",
    b"d/link": Link(b"e/f", LATER_NS),
    b"d/n": b"new",
    b"d/none": Dir(0o700),
    b"top": b"at the top",
}
THEIRS = {b"d/own": b"made here meanwhile", b"d/n": b"the user's n", b"d/e": b"a file in the way"}


class Counting(QuietDisk):
    """Counts the calls that are made for a file."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def open(self, *a: Any) -> int:
        self._count("open")
        return super().open(*a)

    def lstat(self, *a: Any) -> os.stat_result:
        self._count("lstat")
        return super().lstat(*a)

    def fstat(self, *a: Any) -> os.stat_result:
        self._count("fstat")
        return super().fstat(*a)

    def fchmod(self, *a: Any) -> None:
        self._count("fchmod")
        super().fchmod(*a)

    def rename_new(self, *a: Any) -> None:
        self._count("rename_new")
        super().rename_new(*a)


def test_five_calls_a_file(tmp_path: Path) -> None:
    def costs(n: int) -> dict[str, int]:
        disk = Counting()
        tree = {b"d": DIR, b"d/e": DIR} | {b"d/e/%d" % i: b"%d" % i for i in range(n)}
        with Workspace(tmp_path / str(n), disk) as work:
            work.scan_past()
            disk.calls.clear()
            work.check_out(tree)
            assert read(work.root) == full(tree)
            assert work.scan().tree == entries(tree)
        return disk.calls

    few, many = costs(10), costs(110)
    more = {name: many.get(name, 0) - few.get(name, 0) for name in many | few}
    scanned = 100  # by the scans of this test
    assert more["open"] == more["fstat"] == 100
    assert more["lstat"] <= scanned
    assert more.get("fchmod", 0) == more.get("rename_new", 0) == 0


def checked_out(work: Workspace, checkout: Checkout, new: dict[bytes, Any]) -> None:
    ours = work.scan_past()
    changes = work.changes(ours.tree, entries(new))
    work.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}), new)


@pytest.mark.few(1)
@pytest.mark.parametrize("in_the_way", [False, True])
def test_killed_at_every_step_with_something_in_its_place(tmp_path: Path, in_the_way: bool) -> None:
    for step in range(1, 500):
        fuse = Fuse(error=Killed)
        fuse.sticky = True
        case = tmp_path / str(step)
        work = Workspace(case, FusedDisk(fuse), fuse)
        ended = True
        try:
            checkout = Checkout(work.db, work.tree)
            checked_out(work, checkout, NEW)
            if in_the_way:
                write(work.root, {b"d": DIR, **THEIRS})
            fuse.steps, fuse.at = 0, step
            try:
                checkout.apply()
            except (Killed, WorkspaceError, OSError):
                ended = False
            fuse.mend()
        finally:
            work.close()
        with Workspace(case) as work:
            Checkout(work.db, work.tree).recover()
            if work.db.value("base") != b"new":
                checkout = Checkout(work.db, work.tree)
                checkout.abandon()
                continue
            here = read(work.root)
            wanted = full(NEW)
            assert {path: here.get(path) for path in wanted} == wanted, step
            if in_the_way:
                kept = {spec.data for spec in here.values() if isinstance(spec, File)}
                assert set(THEIRS.values()) <= kept, step
            else:
                assert here == wanted, step
            assert_nothing_left(work)
            assert set(load_rows(work.db)) - {b""} == set(NEW), step
        if ended:
            return
    raise AssertionError("it never ended")


class Narrow(QuietDisk):
    """A disk with rules that nobody knew: it takes no name with a colon, and names in capitals for the small ones."""

    def check(self, name: bytes, fd: int) -> None:
        if b":" in name:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
        if name not in (names := {os.fsencode(n) for n in os.listdir(fd)}) and name.lower() in {
            n.lower() for n in names
        }:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self.check(name, dir_fd)
        return super().open(name, flags, dir_fd, mode)

    def mkdir(self, name: bytes, dir_fd: int, mode: int = 0o700) -> None:
        self.check(name, dir_fd)
        super().mkdir(name, dir_fd, mode)

    def symlink(self, target: bytes, name: bytes, dir_fd: int) -> None:
        self.check(name, dir_fd)
        super().symlink(target, name, dir_fd)

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(new, new_fd)
        super().rename_new(old, old_fd, new, new_fd)


@pytest.mark.parametrize(
    "more",
    [
        {b"d/a:b": b"1"},
        {b"d/A": b"1", b"d/a": b"2"},
        {b"d/A": b"1", b"d/a": Link(b"A")},
        {b"d/L": Link(b"A"), b"d/l": b"1"},
        {b"d/x:y": DIR, b"d/x:y/z": b"1"},
        {b"d/E": DIR, b"d/E/f": b"1", b"d/e": DIR, b"d/e/f": b"2"},
    ],
)
def test_names_that_this_disk_does_not_take_harm_no_other(tmp_path: Path, more: dict[bytes, Any]) -> None:
    tree = {b"d": DIR, b"d/fine": b"fine", **more}
    with Workspace(tmp_path, Narrow()) as work:
        applied = work.check_out(tree)
        here = read(work.root)
        left = {n.path for n in applied.unplaced}
        assert left
        assert b"d/fine" not in left
        for path, spec in full(tree).items():
            assert path in left or here[path] == spec
        assert set(here) <= set(tree)
        assert_nothing_left(work)


def test_a_big_file_whose_name_is_taken_keeps_its_bytes_apart(tmp_path: Path) -> None:
    tree = {b"d": DIR, b"d/A": b"1" * 10, b"d/a": b"2" * 10}
    with Workspace(tmp_path, Narrow()) as work:
        checkout = Checkout(work.db, work.tree)
        ours = work.scan_past()
        changes = work.changes(ours.tree, entries(tree))
        checkout.begin(changes)
        for path, data in ((b"d/A", b"1" * 10), (b"d/a", b"2" * 10)):
            checkout.stage_part(path, 5, data[5:])
            checkout.stage_part(path, 0, data[:5])
        for path in (b"d/A", b"d/a"):
            checkout.finish(path)
        applied = checkout.apply()
        assert [n.path for n in applied.unplaced] == [b"d/a"]
        assert read(work.root)[b"d/A"] == File(b"1" * 10)


def test_a_default_acl_or_group_of_the_folder_is_not_passed_by(tmp_path: Path) -> None:
    """Where `.metasync` would pass on something else than the folder, directories are made in their place."""

    class Other(QuietDisk):
        asked = 0

        def bequest(self, fd: int) -> tuple[int | None, bytes]:
            self.asked += 1
            return None, b"%d" % self.asked

    disk = Other()
    with Workspace(tmp_path, disk) as work:
        checkout = Checkout(work.db, work.tree)
        checked_out(work, checkout, NEW)
        assert disk.asked == 2
        assert not any((work.root / ".metasync/tmp").glob("*/*"))
        checkout.apply()
        assert read(work.root) == full(NEW)


def test_what_comes_whole() -> None:
    tree = entries({b"a": DIR, b"a-b": b"1", b"a/x": b"1", b"a/y": DIR, b"a/y/z": b"2", b"b": DIR, b"b/x": b"3"})
    changes = [Change(path, tree[path], None) for path in sorted(tree)]
    number = {change.path: i for i, change in enumerate(changes)}
    assert whole_dirs(changes, ()) == {
        number[b"a"]: [number[p] for p in (b"a/x", b"a/y", b"a/y/z")],
        number[b"b"]: [number[b"b/x"]],
    }
    assert whole_dirs(changes, {number[b"b"], number[b"a/x"]}) == {number[b"a"]: [number[b"a/y"], number[b"a/y/z"]]}
    gone = [c._replace(new=None) if c.path == b"a/y/z" else c for c in changes]
    assert list(whole_dirs(gone, ())) == [number[b"b"]]
    was = row_of(tree[b"a"], os.stat("."), trusted=True)
    for path in (b"a", b"a/y", b"a/y/z"):  # something was known there: that is looked at by itself
        known = [c._replace(expected=was) if c.path == path else c for c in changes]
        assert list(whole_dirs(known, ())) == [number[b"b"]], path


def test_a_write_between_its_making_and_its_row_is_seen(tmp_path: Path) -> None:
    """The row of a file that came whole is the stat from before it appeared: what is written after that differs."""

    class Late(QuietDisk):
        armed = False

        def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            super().rename_new(old, old_fd, new, new_fd)
            if self.armed and new == b"d":
                st = os.lstat(work.at(b"d/n"))
                work.at(b"d/n").write_bytes(b"NEW")
                os.utime(work.at(b"d/n"), ns=(st.st_mtime_ns, st.st_mtime_ns))  # as a program may

    disk = Late()
    with Workspace(tmp_path, disk) as work:
        checkout = Checkout(work.db, work.tree)
        checked_out(work, checkout, NEW)
        disk.armed = True
        checkout.apply()
        work.base = entries(NEW)
        assert work.scan().tree[b"d/n"].content != entries(NEW)[b"d/n"].content


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed there")
def test_nothing_stays_open_of_a_checkout_that_broke_off(tmp_path: Path) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    Workspace(tmp_path / "first").close()
    before = held()
    with Workspace(tmp_path / "case") as work:
        checked_out(work, Checkout(work.db, work.tree), NEW)
        during = held()
    assert before == held() < during
