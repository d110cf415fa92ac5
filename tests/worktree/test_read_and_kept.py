"""What a scan takes in as it was read, and what it leaves as agreed: each of the rules by itself."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from scan_kit import agreed
from workdir import DIR, MTIME_NS, File, QuietDisk, Workspace, digest, entry, ingest, write

from metasync.codec import encode_tags
from metasync.errors import WorkspaceError
from metasync.local.state_keys import JOURNAL_KEY, TREE_KEY, UNPLACED, Unplaced
from metasync.objects.model import Kind
from metasync.worktree import index
from metasync.worktree.ignore_files import store_texts
from metasync.worktree.index import (
    files_with,
    is_packed_dir,
    is_unchanged,
    load_rows,
    pack_entry,
    pack_row,
    row_of,
    store_rows,
    unpack_entry,
)
from metasync.worktree.merge_walk import walk_folder, walk_index
from metasync.worktree.names import IGNORE_NAME as RULES
from metasync.worktree.scan import READS_MAX, Content, scan, store_scan
from metasync.worktree.tree import WorkTree

ROOT = b"\7" * 32


# ---- a file is what was read of it, whole


def test_a_file_of_which_less_was_read_than_it_has_is_busy(work: Workspace) -> None:
    write(work.root, {b"f": b"123"})
    found = work.scan(ingest=lambda fd, st, _: Content(st.st_size - 1, digest(b"12"), b""))
    assert (dict(found.tree), found.busy, found.files_read) == ({}, [b"f"], READS_MAX)


def test_the_bytes_of_another_file_that_stood_there_for_a_moment_are_not_taken(tmp_path: Path) -> None:
    """Also where a rename leaves no trace in a file's times."""

    class Swapping(QuietDisk):
        swapped = False

        def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
            if name == b"f" and not self.swapped:
                self.swapped, name = True, b"other"
            return super().open(name, flags, dir_fd, mode)

    with Workspace(tmp_path, Swapping()) as work:
        write(work.root, {b"f": b"right", b"other": b"wrong"})
        assert work.scan().tree[b"f"].content == digest(b"right")


def test_a_file_that_another_one_replaced_while_it_was_read_is_read_again(tmp_path: Path) -> None:
    """Also where a rename leaves no trace in a file's times."""

    class Lazy(QuietDisk):
        first: os.stat_result | None = None

        def fstat(self, fd: int) -> os.stat_result:
            st = super().fstat(fd)
            if self.first is not None and st.st_ino == self.first.st_ino:
                return self.first
            return st

    disk = Lazy()
    with Workspace(tmp_path, disk) as work:
        write(work.root, {b"f": b"before", b"next": b"after!"})
        disk.first = work.at(b"f").stat()

        def replaced(fd: int, st: os.stat_result, was: object = None) -> Content:
            if work.at(b"next").exists() and st.st_ino == work.at(b"f").stat().st_ino:
                work.at(b"next").rename(work.at(b"f"))
            return ingest(fd, st)

        assert work.scan(ingest=replaced).tree[b"f"].content == digest(b"after!")


def test_a_file_that_cannot_be_read_is_tried_twice_and_told(work: Workspace) -> None:
    write(work.root, {b"f": b"1"})
    tries = []

    def failing(fd: int, st: os.stat_result, was: object = None) -> Content:
        tries.append(st)
        raise OSError(errno.EIO, "broken")

    found = work.scan(ingest=failing)
    assert (found.unreadable, found.busy, len(tries)) == ([(b"f", "broken")], [], 2)


def test_a_symlink_that_a_file_replaced_is_busy(work: Workspace) -> None:
    work.at(b"l").symlink_to("x")
    walked = walk_folder(work.tree, work.db, {})
    work.at(b"l").unlink()
    work.at(b"l").write_bytes(b"1")
    found = scan(walked, ingest)
    assert (found.busy, found.unreadable) == ([b"l"], [])


def test_a_symlink_to_the_hash_of_a_file_is_no_file_and_the_other_way_round(work: Workspace) -> None:
    """Content of a file's entry is its hash, that of a symlink its target: of the same bytes they are two things."""
    data = next(data for data in (b"%032d" % n for n in range(1000)) if not set(digest(data)) & {0, ord("/")})
    agreed(work, {b"f": data})
    work.at(b"l").symlink_to(os.fsdecode(digest(data)))
    work.base[b"l"] = work.scan_past().tree[b"l"]
    work.at(b"f").unlink()
    work.at(b"f").symlink_to(os.fsdecode(digest(data)))
    work.at(b"l").unlink()
    work.at(b"l").write_bytes(data)
    kinds = {path: e.kind for path, e in work.scan().tree.items()}
    assert kinds == {b"f": Kind.SYMLINK, b"l": Kind.FILE}


def test_a_time_that_was_set_back_does_not_make_a_row_trusted(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another write in the same tick of the clock would not be seen."""
    write(work.root, {b"f": File(b"1", 0o644, MTIME_NS)})
    now = work.at(b"f").stat().st_ctime_ns
    monkeypatch.setattr(WorkTree, "clock_ns", lambda self: now)
    assert not work.scan().put_rows[b"f"].trusted


@pytest.mark.parametrize("differs", ["st_ino", "st_dev", "st_size", "st_mtime_ns", "st_mode", "st_ctime_ns"])
def test_each_part_of_a_stat_shows_a_change(differs: str) -> None:
    names = ("st_ino", "st_dev", "st_size", "st_mtime_ns", "st_mode", "st_ctime_ns")

    class Stat:
        def __init__(self, **values: int) -> None:
            self.__dict__.update(dict.fromkeys(names, 5) | values)

    one, other = Stat(), Stat(**{differs: 6})
    assert is_unchanged(one, Stat(), ctime=True)  # type: ignore[arg-type]
    assert not is_unchanged(one, other, ctime=True)  # type: ignore[arg-type]
    assert is_unchanged(one, other) is (differs == "st_ctime_ns")  # type: ignore[arg-type]


# ---- what stands in another's place


def test_a_file_of_the_users_where_one_waits_for_room_that_others_deleted_is_new(work: Workspace) -> None:
    work.db.put_records(
        UNPLACED, [Unplaced(b"f", "no room for its 5 bytes"), Unplaced(b"g", "no room for its 5 bytes")]
    )
    work.base = {b"g": entry(b"agreed")}
    write(work.root, {b"f": b"mine", b"g": b"mine"})
    found = work.scan()
    assert found.tree == {b"f": entry(b"mine"), b"g": entry(b"agreed")}
    assert [note.path for note in found.skipped] == [b"g"]


def test_a_symlink_in_the_place_of_a_directory_whose_files_nobody_agreed_is_a_change(work: Workspace) -> None:
    agreed(work, {b"d": DIR})
    write(work.root, {b"d/new": b"never pushed"})
    work.scan_past()
    work.at(b"d/new").unlink()
    work.at(b"d").rmdir()
    work.at(b"d").symlink_to("elsewhere")
    found = work.scan()
    assert (found.tree[b"d"].kind, found.skipped) == (Kind.SYMLINK, [])


def test_the_row_of_a_new_directory_goes_when_only_ignored_files_are_left_in_it(work: Workspace) -> None:
    """Else the directory would come back as one that was here and was deleted."""
    agreed(work, {RULES: b"*.o"})
    write(work.root, {b"build/real": b"1", b"build/x.o": b"2"})
    work.scan_past()
    work.at(b"build/real").unlink()
    found = work.scan_past()
    assert b"build" not in found.tree
    assert set(load_rows(work.db)) == {b"", RULES}


def test_a_directory_that_the_agreed_tree_has_stays_with_nothing_but_ignored_files(work: Workspace) -> None:
    agreed(work, {RULES: b"*.o", b"kept": DIR})
    write(work.root, {b"kept/x.o": b"1", b"new/x.o": b"2", b"also/real": b"3"})
    assert set(work.scan().tree) == {RULES, b"kept", b"also", b"also/real"}


def test_after_a_push_with_an_unknown_end_rows_of_what_is_gone_stay(work: Workspace) -> None:
    """It may have been agreed with them; without a row nobody deleted it."""
    write(work.root, {b"f": b"pushed, perhaps"})
    work.scan_past()
    work.db.set(JOURNAL_KEY, b"a push")
    work.at(b"f").unlink()
    work.scan()
    assert b"f" in load_rows(work.db)
    work.db.set(JOURNAL_KEY, None)
    work.scan()
    assert b"f" not in load_rows(work.db)


def test_why_a_file_is_not_here_is_not_forgotten_for_its_absence(work: Workspace) -> None:
    agreed(work, {b"f": b"1"})
    work.db.put_records(UNPLACED, [Unplaced(b"f", "no room for its 1 bytes")])
    work.at(b"f").unlink()
    assert work.scan().missing == [b"f"]
    assert work.db.unplaced() == {b"f": "no room for its 1 bytes"}


def test_what_the_agreed_tree_was_is_the_same_after_the_scan_has_stored_its_rows(tmp_path: Path) -> None:
    """By the index alone: a new file, a changed one and the folder itself are no part of what was agreed."""
    with Workspace(tmp_path) as work:
        agreed(work, {b"f": b"1"})
        work.db.set(TREE_KEY, ROOT)
    write(tmp_path, {b"f": b"22", b"n": b"3"})
    tmp_path.chmod(0o711)
    with Workspace(tmp_path) as work:
        walked = walk_index(work.tree, work.db, ROOT)
        assert walked is not None
        found = scan(walked, ingest)
        store_scan(work.db, found)
        assert dict(found.base) == {b"f": entry(b"1")}
        assert dict(found.tree) == {b"f": entry(b"22"), b"n": entry(b"3")}
        assert [found.base.get(path) for path in (b"", b"f", b"n")] == [None, entry(b"1"), None]


# ---- the walk


def test_a_copy_of_the_folder_is_not_the_same_disk_under_another_number(work: Workspace) -> None:
    agreed(work, {b"f": b"1"})
    rows = load_rows(work.db)
    store_rows(work.db, [(p, r._replace(dev=r.dev + 7, ino=r.ino + 10**6)) for p, r in rows.items()])
    walked = walk_folder(work.tree, work.db, work.base)
    assert (walked.is_copy, walked.renumbered) == (True, None)


def test_agreed_paths_behind_the_last_row_are_looked_for_too(work: Workspace) -> None:
    agreed(work, {b"f": b"1"})
    work.base |= {b"y": entry(b"2"), b"z": entry(b"3")}
    assert walk_folder(work.tree, work.db, work.base).gone == [b"y", b"z"]


def test_a_name_of_the_root_that_fails_is_an_error(tmp_path: Path) -> None:
    """Else the whole folder would pass for a directory that can't be listed."""

    class Broken(QuietDisk):
        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            if name == b"f":
                raise OSError(errno.EIO, "broken")
            return super().lstat(name, dir_fd)

    with Workspace(tmp_path, Broken()) as work:
        write(work.root, {b"f": b"1"})
        with pytest.raises(OSError, match="broken"):
            walk_folder(work.tree, work.db, {})


def test_a_long_walk_tells_how_far_it_is(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.worktree.merge_walk.LOOKED_EVERY", 3)
    write(work.root, {b"a/%d" % n: b"" for n in range(2)} | {b"b/%d" % n: b"" for n in range(3)})
    told: list[int] = []
    work.tree.looked = told.append
    walk_folder(work.tree, work.db, {})
    assert told == [3, 8]  # .metasync, a, b; and then all


def test_rules_that_are_gone_are_forgotten_though_their_file_had_no_row(work: Workspace) -> None:
    agreed(work, {b"d": DIR, b"d/f": b"1"})
    store_texts(work.db, {b"d": b"*.o"})
    assert walk_folder(work.tree, work.db, work.base).rule_texts() == {}


def test_what_is_gone_is_not_kept_by_another_name_that_it_begins_with(work: Workspace) -> None:
    agreed(work, {b"a": b"1", b"ab": b"2"})
    work.at(b"a").unlink()
    os.mkfifo(work.at(b"a"))
    work.at(b"ab").unlink()
    found = work.scan()
    assert (found.deleted, [note.path for note in found.skipped]) == ([b"ab"], [b"a"])


def unplaced_under_a_directory(work: Workspace, **row: Any) -> None:
    """The agreed file `f` could not be placed, for the user has a directory there: its row has that one's stat."""
    agreed(work, {b"x": b"1"})
    work.base[b"f"] = entry(File(b"agreed", 0o4755))._replace(tags=((1, b"tag"),))
    write(work.root, {b"f/inside": b"the user's"})
    seen = row_of(work.base[b"f"], work.at(b"f").stat(), trusted=True)
    store_rows(work.db, [(b"f", seen._replace(**row))])


def test_an_agreed_file_in_whose_place_a_directory_stands_counts_as_being_here(work: Workspace) -> None:
    unplaced_under_a_directory(work)
    found = work.scan()
    assert (found.tree, found.deleted) == (work.base, [])


@pytest.mark.parametrize("row", [{"mode": stat.S_IFREG | 0o755}, {"mode": stat.S_IFREG | 0o755, "dev": 1}])
def test_a_directory_in_the_place_of_a_file_is_one_of_its_own(work: Workspace, row: dict[str, int]) -> None:
    """With neither the tags of the file nor its set-id bits, on whatever disk."""
    unplaced_under_a_directory(work, **row)
    found = work.scan()
    here = stat.S_IMODE(work.at(b"f").stat().st_mode)
    assert found.tree[b"f"] == entry(DIR)._replace(mode=here)
    assert found.tree[b"f/inside"] == entry(b"the user's")


def test_the_row_of_a_directory_has_the_device_on_which_it_is_now(work: Workspace) -> None:
    agreed(work, {b"d": DIR})
    row = load_rows(work.db)[b"d"]
    store_rows(work.db, [(b"d", row._replace(dev=row.dev + 1))])
    found = work.scan()
    assert found.put_rows[b"d"] == row
    assert found.tree == work.base


# ---- rows


def test_a_damaged_row_is_refused(work: Workspace) -> None:
    agreed(work, {b"f": b"1"})
    good = pack_row(load_rows(work.db)[b"f"])
    tagged = pack_row(load_rows(work.db)[b"f"]._replace(entry=entry(b"1")._replace(tags=((1, b"t"),))))
    no_tags = encode_tags(())
    end = index.CONTENT_AT.start
    empty = good[: end - 4] + len(no_tags).to_bytes(4, "little") + good[end:] + no_tags
    for bad in (b"\0" + good[1:], b"\4" + good[1:], good[:1] + b"\2" + good[2:], good[:-1], tagged[:-6], empty):
        with pytest.raises(WorkspaceError, match="is damaged"):
            index.unpack_row(bad)


def test_an_entry_keeps_its_tags() -> None:
    tagged = entry(b"1")._replace(tags=((1, b"t"),))
    assert unpack_entry(pack_entry(tagged)) == tagged


def test_the_row_of_no_directory_is_that_of_none(work: Workspace) -> None:
    st = work.root.stat()
    row = row_of(entry(DIR), st, trusted=True)
    assert is_packed_dir(pack_row(row), st)
    assert not is_packed_dir(pack_row(row._replace(entry=entry(b"1"))), st)


@pytest.mark.parametrize("page", [2000, 1])
def test_files_are_found_by_content_and_symlinks_are_not(
    work: Workspace, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed(work, {b"d": DIR, b"f": b"1", b"g": b"1", b"h": b"2", b"other": b"3"})
    link = load_rows(work.db)[b"f"]
    link = link._replace(entry=link.entry._replace(kind=Kind.SYMLINK))
    store_rows(work.db, [(b"l", link)])
    monkeypatch.setattr(index, "PAGE_ROWS", page)
    found = sorted(files_with(work.db, {digest(b"1"), digest(b"2")}))
    assert found == sorted([(digest(b"1"), b"f"), (digest(b"1"), b"g"), (digest(b"2"), b"h")])
