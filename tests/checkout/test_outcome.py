"""What a checkout leaves behind: the rows that the next scan goes by, and what waits for room."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import agreed
from workdir import DIR, MTIME_NS, Dir, File, Killed, Link, QuietDisk, Workspace, entries, entry, files_under

from metasync.checkout import checkout as checkout_module
from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.room import LARGE_FILE_BYTES, check_room, is_too_large, margin
from metasync.errors import WorkspaceError
from metasync.local.state_keys import UNPLACED, Unplaced
from metasync.worktree.index import load_rows


def restored(work: Workspace, tree: dict[bytes, Any], before: Any = lambda: None) -> Any:
    """A checkout of this device's own: what it changes is for the next push."""
    ours = work.scan_past()
    checkout = Checkout(work.db, work.tree)
    changes = work.changes(ours.tree, entries(tree))
    work.stage(checkout, changes, checkout.begin(changes, own=True), tree)
    before()
    return checkout.apply()


def test_what_a_restore_takes_away_is_a_deletion(work: Workspace) -> None:
    agreed(work, {b"f": b"1", b"gone": b"2"})
    restored(work, {b"f": b"1"})
    assert work.scan_past().deleted == [b"gone"]


def test_what_a_restore_could_not_replace_is_as_it_was(tmp_path: Path) -> None:
    """Neither deleted nor changed: the next push must not say so."""

    class Refusing(QuietDisk):
        def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with Workspace(tmp_path, Refusing()) as work:
        agreed(work, {b"f": b"1"})
        work.db.put_records(UNPLACED, [Unplaced(b"f", "a reason from before")])
        outcome = restored(work, {b"f": b"2"})
        assert [noted.path for noted in outcome.unplaced] == [b"f"]
        found = work.scan_past()
        assert (found.tree, found.deleted) == (work.base, [])
        assert work.db.unplaced() == {b"f": "a reason from before"}


def test_a_file_in_the_place_of_one_that_cannot_come_is_no_change_and_is_kept(tmp_path: Path) -> None:
    """It must not be pushed over the agreed file, which was never here; when that can come, it is a copy."""

    class Refusing(QuietDisk):
        armed = True

        def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
            if self.armed:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            return super().exchange(one, one_fd, other, other_fd)

    disk = Refusing()
    new = {b"d": DIR, b"d/f": b"agreed"}
    with Workspace(tmp_path, disk) as work:
        agreed(work, {b"d": DIR})
        outcome = work.check_out(new, before_apply=lambda: work.at(b"d/f").write_bytes(b"mine") and None)
        assert [noted.path for noted in outcome.unplaced] == [b"d/f"]
        assert work.scan_past().tree[b"d/f"] == entry(b"agreed")
        disk.armed = False
        checkout = Checkout(work.db, work.tree)
        checkout.begin([Change(b"d/f", entry(b"agreed"), load_rows(work.db).get(b"d/f"))])
        checkout.stage_whole(b"d/f", b"agreed")
        checkout.apply()
        assert work.at(b"d/f").read_bytes() == b"agreed"
        assert b"mine" in files_under(tmp_path)


class Coarse(QuietDisk):
    """Keeps times to two seconds, as FAT does."""

    def futime(self, fd: int, mtime_ns: int) -> None:
        super().futime(fd, mtime_ns - mtime_ns % (2 * 10**9))


def test_a_coarse_time_is_no_change_after_a_run_that_ended(tmp_path: Path) -> None:
    with Workspace(tmp_path, Coarse()) as work:
        agreed(work, {b"d": DIR})
        ours = work.scan_past()
        new = {b"d": DIR, b"d/f": File(b"new", 0o644, MTIME_NS)}
        checkout = Checkout(work.db, work.tree)
        changes = work.changes(ours.tree, entries(new))
        work.stage(checkout, changes, checkout.begin(changes), new)

        def dies() -> None:
            raise Killed

        with pytest.raises(Killed):
            checkout.apply(dies)
        Checkout(work.db, work.tree).recover()
        work.base = entries(new)
        assert work.at(b"d/f").stat().st_mtime_ns != MTIME_NS
        assert work.scan_past().tree == entries(new)


def test_directories_that_the_user_removed_come_again_with_their_modes(work: Workspace) -> None:
    """What nobody else could read stays so; the one above, which is still here, is passed by."""
    old = {b"a": DIR, b"a/b": Dir(0o700), b"a/b/c": Dir(0o700)}
    agreed(work, old)

    def remove() -> None:
        work.at(b"a/b/c").rmdir()
        work.at(b"a/b").rmdir()

    new = {**old, b"a/b/c/f": b"new"}
    assert work.check_out(new, before_apply=remove).unplaced == []
    assert work.at(b"a/b/c/f").read_bytes() == b"new"
    assert [stat.S_IMODE(work.at(path).stat().st_mode) for path in (b"a", b"a/b", b"a/b/c")] == [0o755, 0o700, 0o700]


# ---- room


class Small(QuietDisk):
    free = 32 << 20

    def free_bytes(self, fd: int) -> int:
        return self.free


def test_what_is_needed_may_take_the_room_that_others_leave_free(tmp_path: Path) -> None:
    with Workspace(tmp_path, Small()) as work:
        size = Small.free - margin(Small.free) // 2
        change = Change(b"f", entry(b"x")._replace(size=size), None)
        checkout = Checkout(work.db, work.tree)
        assert checkout.begin([change]) == []
        checkout.abandon()
        assert checkout.begin([change], needed=None) == [b"f"]


def test_what_is_not_here_for_another_reason_does_not_wait_for_room(tmp_path: Path) -> None:
    class Refusing(QuietDisk):
        def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with Workspace(tmp_path, Refusing()) as work:
        outcome = work.check_out({b"f": b"new"})
        assert [noted.path for noted in outcome.unplaced] == [b"f"]
        assert outcome.without_room == (0, 0)


def test_room_is_asked_for_what_is_needed_alone(tmp_path: Path) -> None:
    with Workspace(tmp_path, Small()) as work:
        check_room(work.tree, work.db, Small.free)
        with pytest.raises(WorkspaceError, match="are free"):
            check_room(work.tree, work.db, Small.free + 1)
        work.tree.disk.free_bytes = None  # type: ignore[method-assign, assignment]  # is not asked
        check_room(work.tree, work.db, 0)


def test_a_large_file_that_has_room_is_not_too_large() -> None:
    assert not is_too_large(LARGE_FILE_BYTES, LARGE_FILE_BYTES)
    assert is_too_large(LARGE_FILE_BYTES + 1, LARGE_FILE_BYTES)
    assert not is_too_large(LARGE_FILE_BYTES - 1, 1)


def test_what_may_not_be_made_and_what_is_here_needs_no_room(tmp_path: Path) -> None:
    """Else a name that no disk takes, or a new time of a large file, would end the checkout for want of room."""
    with Workspace(tmp_path, Small()) as work:
        agreed(work, {b"f": b"old"})
        row = load_rows(work.db)[b"f"]
        large = row._replace(entry=row.entry._replace(size=1 << 40))
        changes = [
            Change(b".metasync/x", entry(b"x")._replace(size=1 << 40), None),
            Change(b"f", large.entry._replace(mtime_ns=1), large),
            Change(b"g", entry(b"x"), None),
        ]
        assert Checkout(work.db, work.tree).begin(changes, needed=None) == [b"g"]


class Quota(QuietDisk):
    """Has no inode for a symlink, and no byte for some files."""

    code = errno.EDQUOT

    def symlink(self, target: bytes, name: bytes, dir_fd: int) -> None:
        raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        if bytes(data) == b"refused":
            raise OSError(self.code, os.strerror(self.code))
        super().write(fd, data, offset)


def test_all_that_is_not_staged_yet_waits_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout_module, "RESERVE_BYTES", 0)
    with Workspace(tmp_path, Quota()) as work:
        checkout = Checkout(work.db, work.tree)
        new = entries({b"a": Link(b"x"), b"b": Link(b"y"), b"f": b"123456"})
        assert checkout.begin([Change(path, new[path], None) for path in sorted(new)]) == []
        outcome = checkout.apply()
        assert [noted.path for noted in outcome.unplaced] == [b"a", b"b", b"f"]
        assert outcome.without_room == (3, 8)
        assert sorted(work.db.unplaced()) == [b"a", b"b", b"f"]


def test_what_waits_for_room_takes_nothing_of_what_was_staged_before(tmp_path: Path) -> None:
    with Workspace(tmp_path, Quota()) as work:
        changes = [Change(b"f", entry(b"123456"), None), Change(b"g", entry(b"refused"), None)]
        before = Checkout(work.db, work.tree)
        before.begin(changes)
        before.stage_whole(b"f", b"123456")
        before.pause()
        checkout = Checkout(work.db, work.tree)
        checkout.begin(changes)
        checkout.stage_whole(b"g", b"refused")
        assert not checkout.take_left(b"f", {0: 6})
        left = checkout.open_left(b"f")  # it lies where it lay
        assert left is not None
        os.close(left)
        assert checkout.apply().without_room == (2, 13)


def test_a_disk_that_fails_is_not_full(tmp_path: Path) -> None:
    disk = Quota()
    disk.code = errno.EIO
    with Workspace(tmp_path, disk) as work:
        checkout = Checkout(work.db, work.tree)
        checkout.begin([Change(b"g", entry(b"refused"), None)])
        with pytest.raises(WorkspaceError):
            checkout.stage_whole(b"g", b"refused")


def test_what_may_not_wait_for_room_needs_none_where_nothing_is_staged_for_it(tmp_path: Path) -> None:
    """A path that no disk takes and a time that is set have no bytes, however large their files are."""
    with Workspace(tmp_path, Small()) as work:
        agreed(work, {b"f": b"old"})
        row = load_rows(work.db)[b"f"]
        large = row._replace(entry=row.entry._replace(size=1 << 40))
        changes = [
            Change(b".metasync/x", entry(b"x")._replace(size=1 << 40), None),
            Change(b"f", large.entry._replace(mtime_ns=1), large),
            Change(b"g", entry(b"x"), None),
        ]
        assert Checkout(work.db, work.tree).begin(changes, needed=(b".metasync/x", b"f", b"g")) == [b"g"]
