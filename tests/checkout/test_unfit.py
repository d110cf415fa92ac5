"""What a disk cannot take, judged before anything is downloaded; and what a plan may touch on which device."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disks_kit import Mac
from workdir import DIR, Dir, Link, QuietDisk, Workspace, entry

from metasync.checkout.plan import TARGET_BYTES_SURE, Change, Plan, replaceable, unfit
from metasync.errors import WorkspaceError
from metasync.local.state_keys import UNPLACED, Unplaced
from metasync.worktree.index import Row, load_rows, row_of, store_rows
from metasync.worktree.names import Fold, Rules

NOT_HERE = "its directory is not here"


def taken(by: str) -> str:
    return f"this file system takes its name for {by}, which is here"


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Workspace]:
    """A disk on which `a` and `A` are one name."""
    with Workspace(tmp_path, Mac()) as work:
        work.tree.rules = Rules(fold=Fold.FULL, normalises=True)
        yield work


def rows(work: Workspace, tree: dict[bytes, Any]) -> dict[bytes, Row]:
    """The rows of a tree that the user has on the disk."""
    for path, spec in tree.items():
        work.at(path).mkdir(spec.mode) if isinstance(spec, Dir) else work.at(path).write_bytes(spec)
    work.scan_past()
    return load_rows(work.db)


def judged(work: Workspace, *changes: Change) -> dict[bytes, str]:
    ordered = tuple(sorted(changes, key=lambda change: change.path))
    return {ordered[i].path: why for i, why in unfit(work.tree, work.db, ordered).items()}


def test_of_twins_in_a_directory_the_one_that_is_here_stays(mac: Workspace) -> None:
    rows(mac, {b"d": DIR, b"d/Read": b"1"})
    assert judged(mac, Change(b"d/read", entry(b"2"), None)) == {b"d/read": taken("Read")}


def test_a_directory_that_only_gets_another_mode_has_its_names_all_the_same(mac: Workspace) -> None:
    here = rows(mac, {b"d": DIR, b"d/Read": b"1"})
    changes = Change(b"d", entry(Dir(0o700)), here[b"d"]), Change(b"d/read", entry(b"2"), None)
    assert judged(mac, *changes) == {b"d/read": taken("Read")}


def test_a_name_that_goes_makes_room_for_its_twin_whatever_else_had_been_taken_for_it(mac: Workspace) -> None:
    """`readme` was never here: its row has the stat of `README`, which stood in its place."""
    here = rows(mac, {b"README": b"1"})
    store_rows(mac.db, [(b"readme", row_of(entry(b"2"), mac.at(b"README").stat(), trusted=True))])
    changes = Change(b"README", None, here[b"README"]), Change(b"Readme", entry(b"3"), None)
    assert judged(mac, *changes) == {}


def test_of_two_twins_that_come_the_one_whose_name_is_there_has_the_place(mac: Workspace) -> None:
    """What is there under its name is nobody's, and is set aside: the other's place it would not give free."""
    rows(mac, {b"x": b"1"})
    mac.at(b"read").write_bytes(b"the user's, of this moment")
    changes = Change(b"Read", entry(b"2"), None), Change(b"read", entry(b"3"), None)
    assert judged(mac, *changes) == {b"Read": taken("read")}


def test_a_file_of_nobodys_under_a_new_name_is_no_twin_of_it(mac: Workspace) -> None:
    rows(mac, {b"x": b"1"})
    mac.at(b"read").write_bytes(b"the user's, of this moment")
    assert judged(mac, Change(b"read", entry(b"3"), None)) == {}


def test_what_is_in_a_directory_that_cannot_come_cannot_either(mac: Workspace) -> None:
    """By its path it would land in the twin's directory."""
    rows(mac, {b"Docs": DIR, b"Docs/a": b"1"})
    new = {b"docs": entry(DIR), b"docs/sub": entry(DIR), b"docs/sub/f": entry(b"2"), b"docs/f": entry(b"3")}
    told = judged(mac, *(Change(path, e, None) for path, e in new.items()))
    assert told == {b"docs": taken("Docs"), b"docs/sub": NOT_HERE, b"docs/sub/f": NOT_HERE, b"docs/f": NOT_HERE}


def test_what_comes_later_into_a_directory_that_could_not_come_cannot_either(mac: Workspace) -> None:
    """`Docs` is a directory that no version has, so that nothing but the note tells it from `docs`."""
    rows(mac, {b"x": b"1"})
    mac.at(b"Docs").mkdir()
    store_rows(mac.db, [(b"docs", row_of(entry(DIR), mac.at(b"Docs").stat(), trusted=True))])
    mac.db.put_records(UNPLACED, [Unplaced(b"docs", taken("Docs"))])
    new = Change(b"docs/f", entry(b"2"), None)
    assert judged(mac, new) == {b"docs/f": NOT_HERE}
    gone = Change(b"docs/g", None, None)
    assert judged(mac, gone) == {}  # nothing comes of it, wherever it leads


# ---- changes and plans


def test_a_directory_is_never_only_touched(work: Workspace) -> None:
    """It is made, and has its mode when all is done; nothing is delivered for it."""
    change = Change(b"d", entry(Dir(0o700)), rows(work, {b"d": DIR})[b"d"])
    assert not change.is_touch
    assert not change.is_staged


def test_only_a_file_of_known_bytes_may_be_replaced(work: Workspace) -> None:
    """The row of any other is of bytes that no version holds: they would be lost."""
    row = rows(work, {b"f": b"here"})[b"f"]
    ours, new = entry(b"ours"), entry(b"new")
    assert replaceable(row, ours, new) is None
    assert replaceable(row, None, new) is None
    assert replaceable(row, ours, None) is None
    assert replaceable(row, entry(b"here"), new) == row
    assert replaceable(row, ours, entry(b"here")) == row
    assert replaceable(None, ours, new) is None


def planned(work: Workspace) -> Plan:
    row = rows(work, {b"f": b"here"})[b"f"]
    changes = (
        Change(b"f", entry(b"new"), row._replace(dev=7)),
        Change(b"mount/f", entry(b"new"), row._replace(dev=8)),
        Change(b"n", entry(b"new"), None),
    )
    return Plan(changes, {}, 1, 0, (7, 99))


def test_after_devices_are_numbered_anew_a_plan_is_of_the_root_with_its_new_number(work: Workspace) -> None:
    """What is on another file system is another device still."""
    plan = planned(work).on_device(17, 99)
    assert plan.root == (17, 99)
    assert [change.expected and change.expected.dev for change in plan.changes] == [17, 8, None]


def test_a_plan_of_another_folder_is_not_renumbered(work: Workspace) -> None:
    """What the scan saw there is nothing that stands here: nothing of this folder may be taken for it."""
    plan = planned(work)
    assert plan.on_device(17, 98) is plan
    assert plan.on_device(7, 99) is plan


def test_on_a_disk_without_links_only_links_are_left_out(work: Workspace) -> None:
    work.tree.rules = Rules(symlinks=False)
    changes = Change(b"d", entry(DIR), None), Change(b"f", entry(b"1"), None), Change(b"l", entry(Link(b"x")), None)
    assert judged(work, *changes) == {b"l": "this file system has no symlinks"}


@pytest.mark.parametrize(("code", "is_left_out"), [(errno.ENAMETOOLONG, True), (errno.EIO, False)])
def test_a_long_target_is_tried_and_a_disk_that_fails_is_none_that_refuses_it(
    tmp_path: Path, code: int, is_left_out: bool
) -> None:
    tried: list[bytes] = []

    class Refusing(QuietDisk):
        def symlink(self, target: bytes, name: bytes, dir_fd: int) -> None:
            tried.append(target)
            raise OSError(code, os.strerror(code))

    with Workspace(tmp_path, Refusing()) as work:
        short = Change(b"short", entry(Link(b"t" * TARGET_BYTES_SURE)), None)
        assert judged(work, short) == {}
        assert tried == []
        long = Change(b"long", entry(Link(b"t" * (TARGET_BYTES_SURE + 1))), None)
        if is_left_out:
            assert "longer than this file system takes" in judged(work, short, long)[b"long"]
        else:
            with pytest.raises(WorkspaceError):
                judged(work, long)
        assert len(tried) == 1


def test_a_name_that_this_disk_cannot_hold_is_left_out_if_it_is_not_here(work: Workspace) -> None:
    here = rows(work, {b"nul": b"1"})
    work.tree.rules = Rules(reserved=True)
    found = judged(work, Change(b"con", entry(b"2"), None), Change(b"nul", entry(b"2"), here[b"nul"]))
    assert found.keys() == {b"con"}
