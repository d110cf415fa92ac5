"""Which agreed path a listed name stands for, where names of two spellings may be one: each of the rules by itself.

A directory may tell names apart though its file system does not (ext4, NTFS): then nothing is taken for a twin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disks_kit import Mac, OldMac, nfd
from workdir import DIR, QuietDisk, Workspace, entry, write

from metasync.worktree.case import Presence, respelled, twin_here
from metasync.worktree.index import row_of, store_rows
from metasync.worktree.names import Fold, Rules

NFC, NFD = "caf\u00e9".encode(), nfd("caf\u00e9").encode()


class Short(Mac):
    """Finds a file by a second name that it does not list, as Windows does."""

    def found(self, name: bytes, fd: int) -> bytes | None:
        return super().found(b"longer name" if name == b"LONGER~1" else name, fd)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Any]:
    made: list[Workspace] = []

    def make(disk: QuietDisk, tree: dict[bytes, Any], rows: tuple[bytes, ...] = ()) -> Workspace:
        work = Workspace(tmp_path, disk)
        made.append(work)
        work.tree.rules = Rules(fold=Fold.FULL, normalises=True)
        write(work.root, tree)
        st = work.root.stat()
        store_rows(work.db, [(path, row_of(entry(b"1"), st, trusted=False)) for path in rows])
        return work

    yield make
    for work in made:
        work.close()


def listed(work: Workspace, directory: bytes, base: dict[bytes, Any]) -> list[bytes]:
    fd = work.tree.dir(directory)
    return respelled(work.tree, work.db, base, directory, sorted(work.tree.disk.names(fd)), fd)


@pytest.mark.parametrize("directory", [b"", b"d"])
def test_a_name_that_is_that_of_an_agreed_twin_stands_for_the_file_whose_row_is_here(at: Any, directory: bytes) -> None:
    prefix = directory + b"/" if directory else b""
    work = at(Mac(), {**({b"d": DIR} if directory else {}), prefix + b"README": b"1"}, (prefix + b"readme",))
    base = {prefix + name: entry(b"1") for name in (b"README", b"readme")}
    assert b"readme" in listed(work, directory, base)
    assert b"README" not in listed(work, directory, base)


def test_where_a_directory_tells_names_apart_a_name_stands_for_itself(at: Any) -> None:
    """`readme` is gone: its row must not vouch for another file."""
    work = at(QuietDisk(), {b"README": b"1"}, (b"readme",))
    assert b"README" in listed(work, b"", {b"README": entry(b"1"), b"readme": entry(b"1")})
    presence = Presence(work.tree, work.db)
    assert not presence.is_shadowed(b"readme")
    assert not presence.is_shadowed(b"ReadMe")  # never was here


def test_of_twins_that_are_both_listed_each_is_here(at: Any) -> None:
    work = at(QuietDisk(), {b"README": b"1", b"readme": b"2"})
    presence = Presence(work.tree, work.db)
    assert not presence.is_shadowed(b"README")
    assert not presence.is_shadowed(b"readme")
    assert [twin_here(work.tree, name, work.tree.root_fd) for name in (b"README", b"readme")] == [None, None]


def test_a_name_under_which_a_file_of_nobodys_is_found_is_not_here(at: Any) -> None:
    work = at(Mac(), {b"README": b"1"})
    assert Presence(work.tree, work.db).is_shadowed(b"readme")
    assert twin_here(work.tree, b"readme", work.tree.root_fd) == b"README"


def test_what_no_listed_name_explains_is_another_file(at: Any) -> None:
    work = at(Short(), {b"longer name": b"1"})
    assert Presence(work.tree, work.db).is_shadowed(b"LONGER~1")


def test_a_name_that_the_disk_spells_in_its_own_way_is_here(at: Any) -> None:
    work = at(OldMac(), {NFD: b"1"})
    assert not Presence(work.tree, work.db).is_shadowed(NFC)


def test_the_row_that_tells_what_a_listed_name_is_lies_beside_it(at: Any) -> None:
    """One of the same name in the root says nothing of it, nor do those of other names."""
    others = {b"d/%d" % n: b"" for n in range(20)}
    work = at(Mac(), {b"d": DIR, b"d/README": b"1", **others}, (b"README", b"d/readme", *others))
    assert not Presence(work.tree, work.db).is_shadowed(b"d/readme")


class OwnInodes(Mac):
    """Each spelling of a name has an inode of its own, as on FAT by FUSE."""

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        st = super().lstat(name, dir_fd)
        if os.fsdecode(name) in os.listdir(dir_fd):
            return st
        return os.stat_result((st.st_mode, st.st_ino + 1000, *st[2:]))


def test_a_file_that_the_user_respelled_is_renamed_whatever_its_inode(at: Any) -> None:
    work = at(OwnInodes(), {b"readme": b"1"})
    work.base = dict(work.scan_past().tree)
    work.at(b"readme").rename(work.at(b"README"))
    found = work.scan()
    assert (set(found.tree), found.deleted) == ({b"README"}, [b"readme"])
