"""What a checkout makes durable before it goes on, and what it does about a file that changes at that very moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import MOUNT_NEW, MOUNT_OLD, NEW, OLD, Mounted, Plain, agreed, needs_proc, replaced
from workdir import QuietDisk, Workspace, entries, read

from metasync.checkout.checkout import Checkout
from metasync.local.state import LocalDb
from metasync.local.state_keys import PLAN_KEY, REPLACED

CHANGES = ("rename", "rename_new", "exchange", "link", "unlink", "rmdir", "mkdir", "utime", "chmod", "fchmod")
WRITES = ("write", "open", "symlink", "futime")


class Told(QuietDisk):
    """Tells what is done, in order: `staged`, `changed` (the tree), `synced`."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def syncfs(self, fd: int) -> None:
        self.told.append("synced")

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CHANGES and name not in WRITES:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            super(Told, self).__getattribute__("told").append("staged" if name in WRITES else "changed")
            return found(*args, **kwargs)

        return call


@pytest.fixture
def told(tmp_path: Path) -> Any:
    """What a checkout did, in order: also `ended`, where the local state says that it did."""
    disk = Told()
    with Workspace(tmp_path, disk) as work:
        agreed(work, OLD)
        ours = work.scan_past()
        checkout = Checkout(work.db, work.tree)
        changes = work.changes(ours.tree, entries(NEW))
        work.stage(checkout, changes, checkout.begin(changes), NEW)
        set_value = LocalDb.set_value

        def noting(self: LocalDb, name: str, data: bytes | None) -> None:
            if name == PLAN_KEY.name and data is None:
                disk.told.append("ended")
            set_value(self, name, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalDb, "set_value", noting)
            disk.told = ["staged"]
            checkout.apply()
        yield disk.told


def test_staged_files_are_durable_before_an_old_one_goes(told: list[str]) -> None:
    """Else a power cut leaves an empty new file in the place of the old one."""
    assert told[:2] == ["staged", "synced"]
    assert "changed" in told


def test_placed_files_are_durable_before_the_local_state_says_so(told: list[str]) -> None:
    """Else a power cut leaves the old file under a row that says it was replaced: the next push undoes the change."""
    ended = told.index("ended")
    last = max(i for i, what in enumerate(told[:ended]) if what == "changed")
    assert "synced" in told[last:ended]


@needs_proc
def test_each_file_system_of_the_tree_is_made_durable(tmp_path: Path) -> None:
    synced: list[bool] = []

    class Noting(Mounted):
        def syncfs(self, fd: int) -> None:
            synced.append(self.side(fd))

    with Workspace(tmp_path, Noting()) as work:
        agreed(work, MOUNT_OLD)
        work.check_out(MOUNT_NEW)
    assert sorted(synced[-2:]) == [False, True]


class Meddled(QuietDisk):
    """Calls `meddle` just before a file goes to the replaced ones: the moment after it was looked at."""

    def __init__(self, meddle: Callable[[bytes], None]) -> None:
        self.meddle = meddle

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{new_fd}").endswith("/replaced"):
            self.meddle(old)
        super().rename_new(old, old_fd, new, new_fd)


@needs_proc
@pytest.mark.parametrize("how", ["writes", "replaces", "hides the time"])
def test_a_deletion_does_not_take_a_file_that_changes_at_that_very_moment(tmp_path: Path, how: str) -> None:
    def meddle(name: bytes) -> None:
        at = tmp_path / "d" / "gone"
        was = at.stat()
        if how == "replaces":
            (tmp_path / "save~").write_bytes(b"still needed")
            (tmp_path / "save~").rename(at)
        else:
            at.write_bytes(b"still needed")
        if how == "hides the time":
            os.utime(at, ns=(was.st_atime_ns, was.st_mtime_ns))

    old = {b"d": OLD[b"d"], b"d/gone": b"deleted there"}
    with Workspace(tmp_path, Meddled(meddle)) as work:
        agreed(work, old)
        applied = work.check_out({})
        assert (tmp_path / "d" / "gone").read_bytes() == b"still needed"
        assert {n.path for n in applied.kept} == {b"d", b"d/gone"}
        assert (applied.removed, replaced(work), work.db.records(REPLACED)) == (0, [], [])


@needs_proc
def test_a_file_that_changed_while_it_was_deleted_and_whose_name_is_taken_again_is_a_copy(tmp_path: Path) -> None:
    at = tmp_path / "gone"

    class Twice(Meddled):
        def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            super().rename_new(old, old_fd, new, new_fd)
            if not at.exists():
                at.write_bytes(b"a newer one")

    with Workspace(tmp_path, Twice(lambda _: at.write_bytes(b"still needed") and None)) as work:
        agreed(work, {b"gone": b"deleted there"})
        applied = work.check_out({})
        assert [c.path for c in applied.conflicts] == [b"gone"]
        found = {spec.data for path, spec in read(tmp_path).items()}
        assert found == {b"a newer one", b"still needed"}


@needs_proc
def test_a_replacement_without_exchange_does_not_take_a_file_that_changes_at_that_very_moment(tmp_path: Path) -> None:
    """The old file is linked to its place, and looked at there."""
    at = tmp_path / "edited"

    class Linked(Plain):
        links = True

        def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            at.write_bytes(b"my late words")
            super().link(old, old_fd, new, new_fd)

    with Workspace(tmp_path, Linked()) as work:
        agreed(work, {b"edited": b"old edited"})
        applied = work.check_out({b"edited": b"new edited"})
        assert [c.path for c in applied.conflicts] == [b"edited"]
        found = {spec.data for path, spec in read(tmp_path).items()}
        assert found == {b"new edited", b"my late words"}


@needs_proc
def test_a_file_that_changes_while_it_is_copied_away_stays(tmp_path: Path) -> None:
    """On another file system than `.metasync` what goes is copied; an edit between the copy and its end is seen."""

    class Copied(Mounted):
        seen = 0
        armed = False

        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            if name == b"gone" and self.side(dir_fd) and self.armed:
                self.seen += 1
                if self.seen == 3:  # looked at, about to be copied, copied
                    (tmp_path / "wide" / "gone").write_bytes(b"still needed")
            return super().lstat(name, dir_fd)

    disk = Copied()
    with Workspace(tmp_path, disk) as work:
        agreed(work, MOUNT_OLD)
        left = {path: spec for path, spec in MOUNT_OLD.items() if path != b"wide/gone"}
        applied = work.check_out(left, before_apply=lambda: setattr(disk, "armed", True))
        assert (tmp_path / "wide" / "gone").read_bytes() == b"still needed"
        assert [(n.path, n.reason) for n in applied.kept] == [(b"wide/gone", "changes while it is copied")]


@needs_proc
@pytest.mark.parametrize(
    ("path", "copies"), [(b"wide/a", 2), (b"wide/gone", 1)], ids=["brought, and the old one taken away", "taken away"]
)
def test_a_copy_to_another_file_system_is_durable_before_its_original_goes(
    tmp_path: Path, path: bytes, copies: int
) -> None:
    told: list[str] = []

    class Noting(Mounted):
        def fsync(self, fd: int) -> None:
            told.append("flushed")

        def unlink(self, name: bytes, dir_fd: int) -> None:
            super().unlink(name, dir_fd)  # of what is not there: nothing goes
            told.append("gone")

    with Workspace(tmp_path, Noting()) as work:
        agreed(work, MOUNT_OLD)
        new = {p: spec for p, spec in MOUNT_OLD.items() if p != path}
        if path in MOUNT_NEW:
            new[path] = MOUNT_NEW[path]
        work.check_out(new, before_apply=told.clear)
    assert told == ["flushed"] * copies + ["gone"] * copies
