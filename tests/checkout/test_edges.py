"""Edges of a checkout: pieces that do not fit, names of copies, late writes that come back, rows that are read back."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import LATER_NS, agreed, needs_proc
from workdir import DIR, MTIME_NS, File, Link, QuietDisk, Workspace, digest, entry, files_under, read

from metasync.checkout import checkout as checkout_module
from metasync.checkout.apply import touch
from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.trash import QUIET_NS, settle
from metasync.errors import WorkspaceError
from metasync.local.state_keys import CONFLICTS, REPLACED
from metasync.worktree.index import load_rows
from metasync.worktree.tree import WorkTree


def begun(work: Workspace, data: bytes = b"123456") -> Checkout:
    checkout = Checkout(work.db, work.tree)
    assert checkout.begin([Change(b"f", entry(data), None)]) == [b"f"]
    return checkout


@pytest.mark.parametrize(
    "pieces",
    [[(0, b"12"), (1, b"23"), (4, b"56")], [(0, b"12345")], [(0, b"123"), (4, b"56")], []],
    ids=["a hole and an overlap", "too short", "a hole", "nothing"],
)
def test_pieces_that_do_not_cover_a_file_are_no_file(work: Workspace, pieces: list[tuple[int, bytes]]) -> None:
    checkout = begun(work)
    for offset, data in pieces:
        checkout.stage_part(b"f", offset, data)
    if not pieces:
        checkout.stage_part(b"f", 0, b"")
    with pytest.raises(WorkspaceError, match="was delivered with"):
        checkout.finish(b"f")


def test_a_piece_before_the_beginning_is_refused(work: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="was delivered with"):
        begun(work).stage_part(b"f", -1, b"1")


def test_a_staged_file_that_the_disk_cut_is_no_file(work: Workspace) -> None:
    checkout = begun(work)
    checkout.stage_part(b"f", 0, b"123456")
    os.truncate(work.root / ".metasync" / "tmp" / "0", 5)
    with pytest.raises(WorkspaceError, match="was delivered with 5 bytes"):
        checkout.finish(b"f")


# ---- what is put beside


def edit_late(work: Workspace, old: dict[bytes, Any], new: dict[bytes, Any], data: bytes = b"late") -> Any:
    agreed(work, old)
    return work.check_out(new, before_apply=lambda: work.at(b"edited").write_bytes(data))


def test_a_copy_never_takes_the_name_of_what_comes(work: Workspace) -> None:
    coming = b"edited.conflict-here-20000101"
    applied = edit_late(work, {b"edited": b"old"}, {b"edited": b"new", coming: b"agreed copy"})
    assert [c.copy for c in applied.conflicts] == [coming + b"-2"]
    assert work.at(coming).read_bytes() == b"agreed copy"


def test_the_record_of_an_earlier_copy_stays(work: Workspace) -> None:
    first = edit_late(work, {b"edited": b"old"}, {b"edited": b"new"}, b"late one").conflicts
    kept = {p: File(work.at(p).read_bytes(), 0o644, work.at(p).stat().st_mtime_ns) for p in [first[0].copy]}
    work.base = dict(work.scan_past().tree)
    second = edit_late(work, {}, {**kept, b"edited": b"newer"}, b"late two").conflicts
    assert {r.copy for r in work.db.records(CONFLICTS)} == {c.copy for c in (*first, *second)}
    assert [c.copy for c in second] == [b"edited.conflict-here-20000101-2"]


class Refusing(QuietDisk):
    """Fails to give a file the name of a copy."""

    code = 0
    times = 0

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        if self.times and b".conflict-" in new:
            self.times -= 1
            raise OSError(self.code, os.strerror(self.code))
        super().rename_new(old, old_fd, new, new_fd)


@pytest.mark.parametrize(("code", "copies"), [(errno.EEXIST, 1), (errno.ENAMETOOLONG, 0)])
def test_a_name_of_a_copy_that_cannot_be_had(tmp_path: Path, code: int, copies: int) -> None:
    """One that was taken this very moment: the next one. Another failure: the file stays safe, and on no record."""
    disk = Refusing()
    with Workspace(tmp_path, disk) as work:
        agreed(work, {b"edited": b"old"})
        disk.code, disk.times = code, 1

        def edit() -> None:
            work.at(b"edited").write_bytes(b"late")

        applied = work.check_out({b"edited": b"new"}, before_apply=edit)
        assert len(applied.conflicts) == len(work.db.records(CONFLICTS)) == copies
        assert b"late" in files_under(tmp_path)


@needs_proc
def test_a_file_that_changes_as_it_is_exchanged_becomes_a_copy(tmp_path: Path) -> None:
    class Exchanging(QuietDisk):
        def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
            (tmp_path / "edited").write_bytes(b"my late words")
            return super().exchange(one, one_fd, other, other_fd)

    with Workspace(tmp_path, Exchanging()) as work:
        agreed(work, {b"edited": b"old"})
        applied = work.check_out({b"edited": b"new"})
        assert [c.path for c in applied.conflicts] == [b"edited"]
        assert {b"new", b"my late words"} == {spec.data for spec in read(tmp_path).values()}


# ---- late writes that come back


def settled(work: Workspace) -> Any:
    def hash_file(fd: int) -> bytes:
        return digest(os.read(fd, 1 << 20))

    return settle(work.tree, work.db, work.tree.clock_ns() + 2 * QUIET_NS, lambda *_: False, hash_file, 5)


def late_write(work: Workspace) -> None:
    """A file in a directory is replaced, and written to through a descriptor that was open before."""
    agreed(work, {b"d": DIR, b"d/f": b"old"})
    with work.at(b"d/f").open("r+b") as f:
        work.check_out({b"d": DIR, b"d/f": b"new"})
        f.write(b"late words")


def test_a_late_write_comes_back_beside_its_file(work: Workspace) -> None:
    late_write(work)
    assert [c.copy for c in settled(work)] == [b"d/f.conflict-here-20000101"]


@pytest.mark.parametrize(("code", "copies"), [(errno.EACCES, []), (errno.ENOENT, [b"f.conflict-here-20000101"])])
def test_a_late_write_whose_directory_cannot_be_opened(
    work: Workspace, monkeypatch: pytest.MonkeyPatch, code: int, copies: list[bytes]
) -> None:
    """One that is gone: in the next one up. One that may not be opened now: it waits where it is."""
    late_write(work)
    really = WorkTree.dir

    def refused(tree: WorkTree, path: bytes) -> int:
        if path == b"d":
            raise OSError(code, os.strerror(code))
        return really(tree, path)

    monkeypatch.setattr(WorkTree, "dir", refused)
    assert [c.copy for c in settled(work)] == copies
    assert len(work.db.records(REPLACED)) == 1 - len(copies)


def test_a_late_write_waits_where_not_even_the_root_can_be_opened(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_write(work)

    def gone(tree: WorkTree, path: bytes) -> int:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(WorkTree, "dir", gone)
    assert settled(work) == []


# ---- rows


def test_a_new_directory_that_is_removed_at_once_is_a_deletion(work: Workspace) -> None:
    agreed(work, {b"a": DIR})
    work.check_out({b"a": DIR, b"a/d": DIR})
    work.at(b"a/d").rmdir()
    assert work.scan().deleted == [b"a/d"]


def test_what_is_only_touched_is_counted_and_is_as_agreed(work: Workspace) -> None:
    agreed(work, {b"a": File(b"1", 0o644), b"b": b"2"})
    applied = work.check_out({b"a": File(b"1", 0o600), b"b": b"2"})
    assert applied.written == 1
    assert work.scan().tree == work.base


@pytest.mark.parametrize("ahead_ns", [0, 10**15])
def test_a_file_of_the_future_is_read_again(work: Workspace, ahead_ns: int) -> None:
    """Its time says nothing of writes in the same tick."""
    mtime_ns = work.tree.clock_ns() + ahead_ns if ahead_ns else MTIME_NS
    agreed(work, {b"a": DIR})
    work.check_out({b"a": DIR, b"a/f": File(b"new", 0o644, mtime_ns)})
    assert load_rows(work.db)[b"a/f"].trusted == (ahead_ns == 0)


def test_a_clock_that_does_not_tick_leaves_rows_to_be_read_again(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed(work, {b"a": DIR})
    monkeypatch.setattr(WorkTree, "tick_past", lambda self, stamp, most: MTIME_NS + 1)
    monkeypatch.setattr(work, "scan_past", work.scan)
    work.check_out({b"a": DIR, b"a/f": b"new"})
    assert load_rows(work.db)[b"a/f"].trusted is False


def test_a_disk_that_fails_as_rows_are_read_back_ends_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO is no "not there": the plan stays, and runs again."""

    class Failing(QuietDisk):
        fails = False

        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            if self.fails and name == b"f":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().lstat(name, dir_fd)

    disk, really = Failing(), checkout_module.rows_after

    def failing(*args: Any) -> Any:
        disk.fails = True
        try:
            return really(*args)
        finally:
            disk.fails = False

    with Workspace(tmp_path, disk) as work:
        agreed(work, {b"a": DIR, b"f": b"old"})
        with monkeypatch.context() as patched:
            patched.setattr(checkout_module, "rows_after", failing)
            with pytest.raises(WorkspaceError):
                work.check_out({b"a": DIR, b"f": b"new"})
        assert Checkout(work.db, work.tree).recover() is not None
        work.base = {b"a": entry(DIR), b"f": entry(b"new")}
        assert work.scan().tree == work.base


def test_a_file_that_is_changed_between_its_placing_and_its_row_is_a_change(tmp_path: Path) -> None:
    """In place, by another of the same size, with another mode, or gone: the next scan sees what the user did."""

    def written(at: Path) -> None:
        at.write_bytes(b"NEW")

    def replaced(at: Path) -> None:
        at.with_name("x").write_bytes(b"NEW")
        at.with_name("x").rename(at)

    def chmod(at: Path) -> None:
        at.chmod(0o600)

    for number, do in enumerate((written, replaced, chmod, Path.unlink)):
        with Workspace(tmp_path / str(number), After(do)) as work:
            agreed(work, {b"a": DIR})
            work.check_out({b"a": DIR, b"a/f": b"new", b"a/l": Link(b"f")})
            found = work.scan_past()
            if do is Path.unlink:
                assert found.deleted == [b"a/f"]
            else:
                assert found.tree[b"a/f"] != work.base[b"a/f"], do
            assert found.tree[b"a/l"] == work.base[b"a/l"]


class After(QuietDisk):
    """Does something to a file as soon as it has its name."""

    def __init__(self, do: Callable[[Path], Any]) -> None:
        self.do = do

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        super().rename_new(old, old_fd, new, new_fd)
        if new == b"f":
            self.do(Path(os.readlink(f"/proc/self/fd/{new_fd}")) / "f")


# ---- what stays open, and what was staged before


@needs_proc
@pytest.mark.parametrize("drops", [False, True])
def test_no_round_leaves_more_open_than_the_one_before(work: Workspace, drops: bool) -> None:
    agreed(work, {b"a": DIR})
    tree = {b"d": DIR, b"d/e": DIR, b"d/e/f": b"123456"}
    changes = work.changes(work.base, {p: entry(spec) for p, spec in tree.items()} | work.base)
    held, opened = [], []  # held: a descriptor that is closed with its holder is closed by chance
    for _ in range(4):
        checkout = Checkout(work.db, work.tree)
        checkout.begin(changes)
        checkout.stage_whole(b"d/e/f", b"123456")
        left = checkout.open_left(b"d/e/f")
        if left is not None:
            os.close(left)
        held.append((checkout, checkout._stage, checkout._left))
        if drops:
            checkout.drop_left()
        checkout.pause()
        opened.append(len(os.listdir("/proc/self/fd")))
    assert opened[1] == opened[2] == opened[3]


def test_what_was_not_staged_before_is_not_taken(work: Workspace) -> None:
    assert not begun(work).take_left(b"f", {0: 6})
    first = Checkout(work.db, work.tree)
    first.abandon()
    first.begin([Change(b"g", entry(b"other"), None)])
    first.stage_whole(b"g", b"other")
    first.pause()
    checkout = begun(work)
    assert checkout.has_left
    assert checkout.open_left(b"f") is None
    assert not checkout.take_left(b"f", {0: 6})
    checkout.stage_whole(b"f", b"123456")
    checkout.apply()
    assert read(work.root)[b"f"].data == b"123456"


@pytest.mark.parametrize("path", [b"d/f", b"f"], ids=["in a directory that comes whole", "alone"])
def test_what_is_delivered_twice_comes_once(work: Workspace, path: bytes) -> None:
    tree = {b"d": DIR, path: b"123456"}
    checkout = Checkout(work.db, work.tree)
    assert checkout.begin([Change(p, entry(spec), None) for p, spec in sorted(tree.items())]) == [path]
    for _ in range(3):
        checkout.stage_whole(path, b"123456")
    applied = checkout.apply()
    assert (applied.conflicts, applied.unplaced) == ([], [])
    assert read(work.root)[path].data == b"123456"
    assert len(read(work.root)) == 2


def test_a_tag_that_is_no_conflicts_makes_no_record(work: Workspace) -> None:
    checkout = Checkout(work.db, work.tree)
    tagged = entry(b"123456")._replace(tags=((77, b"of another program"),))
    checkout.begin([Change(b"f", tagged, None)])
    checkout.stage_whole(b"f", b"123456")
    checkout.apply()
    assert work.db.records(CONFLICTS) == []
    assert load_rows(work.db)[b"f"].entry.tags == tagged.tags


def test_what_lies_there_whole_is_no_file_before_all_of_it_is_known_to_be_right(work: Workspace) -> None:
    """Of a large file that was staged before, two pieces were found right, and the third was not delivered anew."""
    large = entry(b"123456")._replace(root=b"r" * 32)
    first = Checkout(work.db, work.tree)
    first.begin([Change(b"f", large, None)])
    first.stage_part(b"f", 0, b"1234")
    first.stage_part(b"f", 4, b"xx")
    first.pause()
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", large, None)])
    assert checkout.take_left(b"f", {0: 2, 2: 2})
    with pytest.raises(WorkspaceError, match="was delivered with 4 bytes"):
        checkout.finish(b"f")


# ---- what an ended run has half touched


def half_done(at: Path) -> None:
    at.chmod(0o600)


def nothing_done(at: Path) -> None:
    pass


def all_done(at: Path) -> None:
    at.chmod(0o600)
    os.utime(at, ns=(LATER_NS, LATER_NS))


def other_file(at: Path) -> None:
    at.with_name("x").write_bytes(b"old")
    at.with_name("x").rename(at)
    os.utime(at, ns=(MTIME_NS, MTIME_NS))


def other_time(at: Path) -> None:
    os.utime(at, ns=(MTIME_NS + 7, MTIME_NS + 7))


def other_mode(at: Path) -> None:
    at.chmod(0o640)


def other_bytes(at: Path) -> None:
    at.write_bytes(b"old and new")
    os.utime(at, ns=(MTIME_NS, MTIME_NS))


@pytest.mark.parametrize(
    ("since", "touched"),
    [
        (nothing_done, True),
        (half_done, True),
        (all_done, True),
        (other_file, False),
        (other_time, False),
        (other_mode, False),
        (other_bytes, False),
    ],
)
def test_a_file_is_touched_again_only_if_it_is_what_an_ended_run_made_of_it(
    work: Workspace, since: Callable[[Path], None], touched: bool
) -> None:
    agreed(work, {b"f": b"old"})
    row = load_rows(work.db)[b"f"]
    change = Change(b"f", row.entry._replace(mode=0o600, mtime_ns=LATER_NS), row)
    since(work.at(b"f"))
    before = work.at(b"f").stat()
    assert touch(work.tree, change, again=True) is touched
    after = work.at(b"f").stat()
    if touched:
        assert (stat.S_IMODE(after.st_mode), after.st_mtime_ns) == (0o600, LATER_NS)
    else:
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    if since is not nothing_done:  # in a first run it is the user's
        assert not touch(work.tree, change, again=False)


def test_a_directory_that_the_user_made_in_the_place_of_a_file_that_goes_stays(work: Workspace) -> None:
    """Though it is empty."""
    agreed(work, {b"a": DIR, b"f": b"old"})

    def make() -> None:
        work.at(b"f").unlink()
        work.at(b"f").mkdir()

    applied = work.check_out({b"a": DIR}, before_apply=make)
    assert [note.path for note in applied.kept] == [b"f"]
    assert work.at(b"f").is_dir()
