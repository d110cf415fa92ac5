"""Two devices of one workspace, one of them on a disk that treats names as macOS, Windows or FAT do.

What such a disk can hold is there, what it can't is told, stays agreed, and is never taken for deleted or changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disks_kit import Casefold, Fat, Folder, Lowering, Mac, OldMac, OtherDisk, Pair, Windows, nfd
from workdir import DIR, entries, read
from workdir import Workspace as Directory

from metasync.local import spill
from metasync.local.state_keys import UNPLACED, Unplaced
from metasync.sync import first_checkout

Make = Callable[..., Pair]
# `make test` shows most rules on two of these disks, and two rules on all; `make test-long` all on all.
FOLDING = [Mac, OldMac, Casefold, Windows, Fat, Lowering]
KEEPING = [Mac, Casefold, Windows, Fat]  # those that list names as they were given
NFC, NFD = "caf\u00e9".encode(), nfd("caf\u00e9").encode()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Pair] = []

    def make(disk: type[OtherDisk], files: dict[bytes, bytes] | None = None, *, clone: bool = True) -> Pair:
        found = Pair(tmp_path, monkeypatch, disk(), clone=False)
        made.append(found)
        for path, data in (files or {}).items():
            found.linux.write(path, data)
        if files:
            found.at_linux.push()
        if clone:
            found.clone()
        return found

    yield make
    for found in made:
        found.close()


def spelled(folder: Folder, *paths: bytes) -> set[bytes]:
    """Paths as that folder's disk lists them."""
    assert isinstance(folder.disk, OtherDisk)
    return {os.fsencode(folder.disk.stored(os.fsdecode(path))) for path in paths}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_of_twins_one_is_here_and_the_others_are_told(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"README": b"upper", b"readme": b"lower", b"Readme": b"mixed", b"d/plain": b"p"})
    assert set(p.other.tree()) == spelled(p.other, b"README", b"d", b"d/plain")
    assert p.other.tree()[min(spelled(p.other, b"README"))] == b"upper"
    told = p.unplaced()
    assert set(told) == {b"readme", b"Readme"}
    assert all("README, which is here" in why for why in told.values())
    assert not len(p.at_other.status().changes)
    assert p.at_other.push().version is None
    p.linux.write(b"readme", b"lower, changed")  # later changes flow through
    p.there()
    p.other.write(b"README", b"upper, changed by the other")
    p.other.write(b"d/plain", b"p, changed by the other")
    p.back()
    assert p.linux.tree() == {
        b"README": b"upper, changed by the other",
        b"readme": b"lower, changed",
        b"Readme": b"mixed",
        b"d": None,
        b"d/plain": b"p, changed by the other",
    }
    assert set(p.unplaced()) == {b"readme", b"Readme"}
    p.rest()


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_when_the_one_that_is_here_goes_the_next_takes_its_place(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"README": b"upper", b"readme": b"lower", b"Readme": b"mixed"})
    p.linux.remove(b"README")
    report = p.there()
    assert list(p.other.tree().values()) == [b"mixed"]
    assert [s.path for s in report.unplaced] == [b"readme"]
    p.linux.remove(b"Readme")
    assert p.there().unplaced == ()
    assert list(p.other.tree().values()) == [b"lower"]
    assert p.unplaced() == {}
    p.rest()
    assert p.linux.tree() == {b"readme": b"lower"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_the_user_deletes_the_one_that_is_here(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"README": b"upper", b"readme": b"lower"})
    p.other.remove(b"README")
    pushed = p.at_other.push()
    assert (pushed.changes.deleted, pushed.changes.modified, pushed.changes.added) == ((b"README",), (), ())
    p.at_other.pull()
    assert list(p.other.tree().values()) == [b"lower"]
    p.rest()
    assert p.linux.tree() == {b"readme": b"lower"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_the_one_that_is_here_stays_when_a_smaller_twin_comes(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"readme": b"lower"})
    p.linux.write(b"README", b"upper")
    assert [s.path for s in p.there().unplaced] == [b"README"]
    assert list(p.other.tree().values()) == [b"lower"]
    p.rest()
    assert set(p.agreed()) == {b"README", b"readme"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_twins_among_directories_are_not_mixed(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"Docs/a": b"1", b"docs/b": b"2", b"docs/sub/c": b"3", b"docs/a": b"4"})
    assert set(p.other.tree()) == spelled(p.other, b"Docs", b"Docs/a")
    assert set(p.unplaced()) == {b"docs", b"docs/a", b"docs/b", b"docs/sub", b"docs/sub/c"}
    p.linux.write(b"docs/new", b"5")
    p.linux.write(b"Docs/new", b"6")
    p.linux.remove(b"docs/a")
    p.there()
    assert set(p.other.tree()) == spelled(p.other, b"Docs", b"Docs/a", b"Docs/new")
    p.other.write(b"Docs/mine", b"7")
    p.back()
    assert set(p.agreed()) == {
        b"Docs", b"Docs/a", b"Docs/mine", b"Docs/new", b"docs", b"docs/b", b"docs/new", b"docs/sub", b"docs/sub/c",
    }  # fmt: skip
    p.linux.remove(b"Docs")
    p.there()
    assert set(p.other.tree()) == spelled(p.other, b"docs", b"docs/b", b"docs/new", b"docs/sub", b"docs/sub/c")
    assert p.unplaced() == {}
    p.rest()


@pytest.mark.few
@pytest.mark.parametrize("disk", FOLDING)
@pytest.mark.parametrize("dir_first", [False, True])
def test_twins_of_different_kinds(pair: Make, disk: type[OtherDisk], dir_first: bool) -> None:
    folder, file = (b"A", b"a") if dir_first else (b"a", b"A")
    p = pair(disk, {folder + b"/x": b"in the directory", file: b"the file"})
    here = {folder, folder + b"/x"} if dir_first else {file}
    assert set(p.other.tree()) == spelled(p.other, *here)
    assert set(p.unplaced()) == {folder, folder + b"/x", file} - here
    assert p.at_other.push().version is None
    p.rest()


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_a_change_of_case_by_the_user_is_one_rename(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"a": b"1", b"Docs/x": b"2", b"Docs/y": b"3", b"other": b"4"})
    p.other.rename(b"a", b"A")
    p.other.rename(b"Docs", b"DOCS")
    pushed = p.at_other.push()
    changes = pushed.changes
    assert {(r.was, r.path) for r in changes.renamed} == {(b"a", b"A"), (b"Docs/x", b"DOCS/x"), (b"Docs/y", b"DOCS/y")}
    assert (changes.added, changes.modified, changes.deleted) == ((), (), ())
    p.back()
    assert p.linux.tree() == {b"A": b"1", b"DOCS": None, b"DOCS/x": b"2", b"DOCS/y": b"3", b"other": b"4"}
    p.rest()
    assert p.other.tree() == p.linux.tree()


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_a_change_of_case_elsewhere_is_followed(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"a": b"1", b"Docs/x": b"2", b"Docs/y/z": b"3"})
    p.linux.rename(b"a", b"A")
    p.linux.rename(b"Docs", b"docs")
    p.linux.rename(b"docs/y", b"docs/Y")
    report = p.there()
    assert (report.unplaced, report.conflicts, report.skipped) == ((), (), ())
    assert p.other.tree() == p.linux.tree()
    p.rest()


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_a_directory_follows_though_something_of_nobodys_is_in_it(pair: Make, disk: type[OtherDisk]) -> None:
    """Every folder that was opened on a Mac holds a .DS_Store."""
    p = pair(disk, {b"Docs/x": b"2", b"Docs/y/z": b"3"})
    p.other.write(b"Docs/.DS_Store", b"left")
    p.other.write(b"Docs/y/.DS_Store", b"left too")
    p.linux.rename(b"Docs", b"docs")
    p.linux.rename(b"docs/y", b"docs/Y")
    report = p.there()
    assert (report.unplaced, report.conflicts, report.skipped) == ((), (), ())
    assert p.other.tree() == {**p.linux.tree(), b"docs/.DS_Store": b"left", b"docs/Y/.DS_Store": b"left too"}
    p.rest()
    assert set(p.agreed()) == {b"docs", b"docs/x", b"docs/Y", b"docs/Y/z"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_the_one_that_is_here_is_given_the_other_ones_spelling(pair: Make, disk: type[OtherDisk]) -> None:
    """Both names are agreed: the file stays the one it was, and the other one keeps its own bytes."""
    p = pair(disk, {b"README": b"upper", b"readme": b"lower"})
    p.other.rename(b"README", b"readme")
    assert not len(p.at_other.status().changes)
    assert p.at_other.push().version is None
    p.other.write(b"readme", b"upper, changed")
    pushed = p.at_other.push()
    assert (pushed.changes.modified, pushed.changes.deleted, pushed.changes.added) == ((b"README",), (), ())
    p.rest()
    assert p.linux.tree() == {b"README": b"upper, changed", b"readme": b"lower"}
    p.linux.write(b"README", b"upper, from Linux")
    p.there()
    assert list(p.other.tree().values()) == [b"upper, from Linux"]
    p.rest()


@pytest.mark.few(1)
@pytest.mark.parametrize("disk", [Mac, OldMac, Casefold])
def test_both_spellings_of_an_accent(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {NFC: b"composed", NFD: b"decomposed", b"d" + NFC + b"/x": b"in a directory"})
    assert sorted(filter(None, p.other.tree().values())) == [b"decomposed", b"in a directory"]
    assert set(p.unplaced()) == {NFC}
    p.other.write(b"d" + NFD + b"/x", b"changed by the other spelling")
    p.back()
    assert p.linux.tree() == {
        NFC: b"composed",
        NFD: b"decomposed",
        b"d" + NFC: None,
        b"d" + NFC + b"/x": b"changed by the other spelling",
    }
    p.linux.remove(NFD)
    p.there()
    assert p.unplaced() == {}
    p.rest()
    assert set(p.agreed()) == {NFC, b"d" + NFC, b"d" + NFC + b"/x"}


@pytest.mark.few(1)
@pytest.mark.parametrize("disk", [OldMac, Lowering])
def test_a_disk_that_spells_names_in_its_own_way_renames_nothing(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"R" + NFC: b"1", b"D" + NFC + b"/X" + NFC: b"2"})
    assert b"R" + NFC not in p.other.tree()
    assert p.at_other.push().version is None
    p.other.write(b"D" + NFC + b"/X" + NFC, b"2, changed")
    p.other.write(b"D" + NFC + b"/new", b"3")
    p.back()
    assert p.linux.tree() == {
        b"R" + NFC: b"1",
        b"D" + NFC: None,
        b"D" + NFC + b"/X" + NFC: b"2, changed",
        b"D" + NFC + b"/new": b"3",
    }
    p.other.remove(b"R" + NFC)
    p.linux.write(b"D" + NFC + b"/new", b"3, changed")
    p.at_linux.push()
    p.rest()
    assert set(p.agreed()) == {b"D" + NFC, b"D" + NFC + b"/X" + NFC, b"D" + NFC + b"/new"}
    assert sorted(filter(None, p.other.tree().values())) == [b"2, changed", b"3, changed"]


ODD = {
    b"what?": "its name has ?",
    b"a:b/in": "the directory a:b: its name has :",
    b"new\nline": "its name has a control character",
    b"dot.": "its name ends in a dot",
    b"sp ": "its name ends in a space",
    b"\xff\xfe": "its name is not UTF-8",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("disk", [Windows, Fat])
def test_names_that_cannot_be_held_stay_agreed(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {**dict.fromkeys(ODD, b"1"), b"plain": b"2"})
    assert p.other.tree() == {b"plain": b"2"}
    told = p.unplaced()
    assert {path: told[path] for path in ODD} == ODD
    before = set(p.agreed())
    for path in ODD:
        p.linux.write(path, b"1, changed")
    p.there()
    p.other.write(b"plain", b"2, changed")
    p.back()
    assert set(p.agreed()) == before
    assert all(p.linux.tree()[path] == b"1, changed" for path in ODD)
    p.linux.rename(b"what?", b"what")
    p.there()
    assert p.other.tree()[b"what"] == b"1, changed"
    assert b"what?" not in p.unplaced()
    p.linux.remove(b"a:b")
    p.there()
    assert set(p.unplaced()) == {b"new\nline", b"dot.", b"sp ", b"\xff\xfe"}
    p.rest()


def test_a_disk_without_modes_and_links(pair: Make) -> None:
    p = pair(Fat, {b"run": b"#!", b"d/secret": b"s", b"target": b"t"})
    (p.linux.root / "run").chmod(0o755)
    (p.linux.root / "d" / "secret").chmod(0o600)
    (p.linux.root / "d").chmod(0o700)
    p.linux.link(b"link", b"target")
    report = p.there()
    assert [(s.path, s.reason) for s in report.unplaced] == [(b"link", "this file system has no symlinks")]
    assert report.skipped == ()
    assert p.other.tree() == {b"run": b"#!", b"d": None, b"d/secret": b"s", b"target": b"t"}
    p.other.write(b"run", b"#!, changed")
    p.other.write(b"d/new", b"n")
    p.back()
    assert (p.linux.root / "run").stat().st_mode & 0o777 == 0o755
    assert (p.linux.root / "d" / "secret").stat().st_mode & 0o777 == 0o600
    assert (p.linux.root / "d").stat().st_mode & 0o777 == 0o700
    assert p.linux.tree()[b"link"] == b"-> target"
    assert p.linux.tree()[b"run"] == b"#!, changed"
    p.rest()
    p.linux.remove(b"link")
    p.linux.write(b"link", b"a file now")
    p.there()
    assert p.unplaced() == {}
    assert p.other.tree()[b"link"] == b"a file now"


def test_what_cannot_be_held_is_not_downloaded_again_and_again(pair: Make) -> None:
    p = pair(Mac, {b"README": os.urandom(300_000), b"readme": os.urandom(300_000)})
    placed: list[bytes] = []
    disk = p.other.disk
    opened = disk.open

    def count(name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT and name not in (b"clock",):
            placed.append(name)
        return opened(name, flags, dir_fd, mode)

    disk.open = count  # type: ignore[method-assign]
    for _ in range(3):
        assert [s.path for s in p.at_other.pull().unplaced] == [b"readme"]
    assert placed == []


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_a_conflict_copy_is_no_twin_of_a_file_that_is_here(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"a": b"1", b"A.CONFLICT-OTHER-20261122": b"a name like that of a copy"})
    p.linux.write(b"a", b"1, by linux")
    p.at_linux.push()
    p.other.write(b"a", b"1, by the other")
    pulled = p.at_other.pull()
    assert [c.kept for c in pulled.conflicts] == [b"a.conflict-other-20261122-2"]
    p.rest()
    assert sorted(filter(None, p.linux.tree().values())) == [
        b"1, by linux",
        b"1, by the other",
        b"a name like that of a copy",
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_a_new_twin_on_each_side(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"x": b"x"})
    p.linux.write(b"name", b"by linux")
    p.other.write(b"Name", b"by the other")
    p.at_linux.push()
    p.at_other.pull()
    mine = min(spelled(p.other, b"Name"))
    if disk is Lowering:  # there it is the same name
        p.rest()
        assert sorted(filter(None, p.linux.tree().values())) == [b"by linux", b"by the other", b"x"]
        return
    assert p.other.tree()[mine] == b"by the other"
    assert set(p.unplaced()) == {b"name"}
    p.rest()
    assert p.linux.tree() == {b"name": b"by linux", b"Name": b"by the other", b"x": b"x"}
    p.other.remove(b"Name")
    p.at_other.push()
    p.rest()
    p.at_other.pull()
    assert p.other.tree() == {b"name": b"by linux", b"x": b"x"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", FOLDING)
def test_a_link_and_a_directory_that_are_one_name_lead_nowhere(
    pair: Make, disk: type[OtherDisk], tmp_path: Path
) -> None:
    """The trick by which checkouts of other tools were led out of their folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    p = pair(disk, {b"a/evil": b"e", b"b": b"x"})
    p.linux.link(b"A", os.fsencode(outside))
    p.linux.write(b"a/sub/evil", b"e")
    p.there()
    assert list(outside.iterdir()) == []
    p.at_other.close()
    p.other.root.rename(tmp_path / "gone")
    p.clone()
    assert list(outside.iterdir()) == []
    p.rest()


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_a_change_of_case_that_is_pulled_before_it_is_pushed(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"a": b"1", b"Docs/x": b"2", b"news": b"old"})
    p.other.rename(b"a", b"A")
    p.other.rename(b"Docs", b"DOCS")
    p.linux.write(b"news", b"new")
    p.at_linux.push()
    p.at_other.pull()
    p.back()
    assert p.linux.tree() == {b"A": b"1", b"DOCS": None, b"DOCS/x": b"2", b"news": b"new"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_a_deletion_that_is_pulled_over_by_a_twin(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"a": b"1"})
    p.linux.write(b"A", b"2")
    p.at_linux.push()
    p.other.remove(b"a")
    assert p.at_other.pull().unplaced == ()
    assert p.other.tree() == {b"A": b"2"}
    pushed = p.at_other.push()
    assert (pushed.changes.deleted, pushed.changes.added, pushed.changes.modified) == ((b"a",), (), ())
    p.rest()
    assert p.linux.tree() == {b"A": b"2"}


@pytest.mark.few(1)
@pytest.mark.parametrize("disk", [Mac, Fat])
def test_a_directory_that_stays_agreed_for_what_was_never_here_takes_no_other_with_it(
    pair: Make, disk: type[OtherDisk]
) -> None:
    p = pair(disk, {b"b/x": b"1", b"b/\xff": b"2"})
    p.other.rename(b"b", b"B")
    p.back()
    assert set(p.agreed()) == {b"B", b"B/x", b"b", b"b/\xff"}
    p.other.remove(b"B/x")
    p.back()
    p.linux.write(b"b/new", b"3")  # lands in no other directory
    p.there()
    assert p.other.tree() == {b"B": None}
    p.linux.remove(b"b")
    p.there()  # empty as it is, B is not what was removed
    assert p.other.tree() == {b"B": None}
    p.rest()
    assert set(p.agreed()) == {b"B"}


@pytest.mark.parametrize("disk", [Mac, Fat])
def test_a_deletion_below_a_directory_that_comes_back_and_has_no_place(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"A/old": b"1", b"a/n": b"2"})
    p.other.remove(b"A")
    p.at_other.pull()
    assert p.other.tree() == {b"a": None, b"a/n": b"2"}
    p.linux.write(b"A/new", b"3")
    p.at_linux.push()
    p.at_other.pull()
    assert set(p.unplaced()) == {b"A", b"A/new"}
    assert p.at_other.push().changes.deleted == (b"A/old",)
    p.rest()
    assert set(p.agreed()) == {b"A", b"A/new", b"a", b"a/n"}


def test_what_waits_for_a_place_and_is_gone_waits_no_longer(pair: Make) -> None:
    p = pair(Mac, {b"a": b"1", b"A": b"2"})
    with p.at_other._session("test") as s:
        s.db.put_records(UNPLACED, [Unplaced(b"ghost", "a copy that could not be made")])
    p.at_other.pull()
    assert set(p.unplaced()) == {b"a"}


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_twins_where_nothing_is_known_of_the_disk(tmp_path: Path, disk: type[OtherDisk]) -> None:
    """A directory that folds case by itself (ext4 has that as an attribute): met at work."""
    tree = {b"Docs": DIR, b"Docs/a": b"1", b"README": b"upper", b"docs": DIR, b"docs/b": b"2", b"readme": b"lower"}
    with Directory(tmp_path / "w", disk()) as work:
        assert not work.tree.rules.has_twins
        applied = work.check_out(tree)
        assert {n.path for n in applied.unplaced} == {b"docs", b"docs/b", b"readme"}
        assert (applied.conflicts, applied.kept) == ([], [])
        assert set(read(work.root)) == {b"Docs", b"Docs/a", b"README"}
        found = work.scan_past()
        assert (found.tree, found.deleted) == (entries(tree), [])
        rest = {p: spec for p, spec in tree.items() if p not in (b"docs", b"docs/b", b"readme")}
        assert work.check_out(rest).kept == []
        assert set(read(work.root)) == {b"Docs", b"Docs/a", b"README"}
        Folder(work.root, work.tree.disk).rename(b"README", b"readme")
        found = work.scan_past()
        assert (found.deleted, set(found.tree)) == ([b"README"], {b"Docs", b"Docs/a", b"readme"})


@pytest.mark.few(2)
@pytest.mark.parametrize("disk", KEEPING)
def test_a_directory_under_the_name_of_its_twin_is_here(pair: Make, disk: type[OtherDisk]) -> None:
    p = pair(disk, {b"A/x": b"1", b"A/y": b"2"})
    p.linux.write(b"a", b"a file")
    p.there()
    p.other.rename(b"A", b"a")
    assert p.at_other.push().version is None
    p.linux.write(b"A/new", b"3")
    p.linux.remove(b"A/y")
    p.there()
    assert set(p.unplaced()) == {b"a"}
    assert p.other.tree() == {b"a": None, b"a/x": b"1", b"a/new": b"3"}
    p.rest()
    assert set(p.agreed()) == {b"A", b"A/x", b"A/new", b"a"}


SCENARIOS = [
    test_of_twins_one_is_here_and_the_others_are_told,
    test_when_the_one_that_is_here_goes_the_next_takes_its_place,
    test_twins_among_directories_are_not_mixed,
]


@pytest.mark.few
@pytest.mark.parametrize("disk", FOLDING)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_where_a_clone_comes_in_parts(
    pair: Make, disk: type[OtherDisk], scenario: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin, or a directory that could not come, may have been in an earlier part."""
    monkeypatch.setattr(spill, "HELD_MAX", 0)
    monkeypatch.setattr(first_checkout, "PART_PATHS", 1)
    scenario(pair, disk)
