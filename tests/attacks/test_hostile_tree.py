"""Trees that a device of the workspace made up: what they may not do to the folders and machines of the others."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from attack_kit import NO_BLOB, insider, named
from workspace_kit import Lab, tree_of, write

from metasync.checkout.staging import remove
from metasync.errors import DamagedError, UnreadableError, WorkspaceError
from metasync.local import memory
from metasync.objects import walk, walk_large
from metasync.objects.model import DEPTH_MAX, Entry, Kind
from metasync.session import unreadable
from metasync.terminal.text import sync_text
from metasync.workspace import Workspace
from metasync.worktree import merge_walk
from metasync.worktree.disk import Disk


@pytest.fixture
def pair(lab: Lab) -> tuple[Workspace, Workspace]:
    """Two devices at one version; the second one is the attacker's."""
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim", "d/f": b"one"})
    victim.push("first")
    return victim, lab.clone(urls, device="mallory")


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1 << 48, 1 << 60, (1 << 64) - 1])
def test_a_file_larger_than_the_disk_blocks_nothing(pair: tuple[Workspace, Workspace], lab: Lab, size: int) -> None:
    """A version holds a file that claims more bytes than any disk has. All else comes; the file is told, and waits."""
    victim, mallory = pair
    with insider(mallory) as m:
        m.commit(m.tree({b"huge": m.file(b"x", size=size), b"new": m.file(b"sound")}))
    write(victim.directory, {"mine": b"edited"})
    report = victim.pull()
    assert (victim.directory / "new").read_bytes() == b"sound"
    assert [(u.path, f"{size:,} bytes" in u.reason) for u in report.unplaced] == [(b"huge", True)]
    assert [u.path for u in victim.status().unplaced] == [b"huge"]
    pushed = victim.push()
    assert (pushed.changes.added, pushed.changes.deleted) == ((b"mine",), ())
    assert b"huge" in {item.path for item in victim.ls().entries}, "its absence is no deletion"
    urls = lab.urls("a", kind="memory")
    cloned = lab.clone(urls, device="third")
    assert sorted(tree_of(cloned.directory)) == sorted(tree_of(victim.directory))


def test_a_file_that_grows_beyond_the_disk_leaves_the_old_one(pair: tuple[Workspace, Workspace]) -> None:
    """A file that is here is said to have 2^60 bytes now: the bytes that are here stay, and are no change."""
    victim, mallory = pair
    with insider(mallory) as m:
        m.commit(m.tree({b"kept": m.file(b"x", size=1 << 60)}))
    assert [u.path for u in victim.pull().unplaced] == [b"kept"]
    assert (victim.directory / "kept").read_bytes() == b"of the victim"
    assert victim.push().version is None


def test_a_symlink_whose_target_no_disk_takes_blocks_nothing(pair: tuple[Workspace, Workspace], lab: Lab) -> None:
    """Targets may have 65,535 bytes in a version, and 4,095 on Linux. One that is here as a file is replaced by one."""
    victim, mallory = pair
    fits, too_long = (Entry(Kind.SYMLINK, 0, 0, size, b"x" * size) for size in (2000, 60_000))
    with insider(mallory) as m:
        m.commit(m.tree({b"fits": fits, b"long": too_long, b"kept": too_long, b"new": m.file(b"sound")}))
    write(victim.directory, {"mine": b"m"})
    report = victim.pull()
    assert {u.path for u in report.unplaced} == {b"long", b"kept"}
    assert all("target of the symlink" in u.reason for u in report.unplaced)
    assert os.readlink(victim.directory / "fits") == "x" * 2000
    assert (victim.directory / "kept").read_bytes() == b"of the victim"
    pushed = victim.push()
    assert (pushed.changes.added, pushed.changes.modified, pushed.changes.deleted) == ((b"mine",), (), ())
    third = lab.clone(lab.urls("a", kind="memory"), device="third")
    assert sorted(tree_of(third.directory)) == [b"d", b"d/f", b"fits", b"mine", b"new"]
    out = lab.root / "out"
    victim.restore("latest", to=out)
    assert sorted(os.listdir(out)) == ["d", "fits", "mine", "new"]


def test_many_files_that_have_no_room_together_block_nothing(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version holds 3,000 files that claim 900 MiB each. All else comes; they are told, counted, and wait."""
    victim, mallory = pair
    with insider(mallory) as m:
        claims = {b"claim%04d" % n: m.file(b"x%d" % n, size=900 << 20) for n in range(3000)}
        m.commit(m.tree({**claims, b"new": m.file(b"sound"), b"kept": m.file(b"newer")}))
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 500 << 20)
    write(victim.directory, {"mine": b"edited"})
    report = victim.pull()
    assert (victim.directory / "new").read_bytes() == b"sound"
    assert (victim.directory / "kept").read_bytes() == b"newer"
    assert {u.path for u in report.unplaced} == claims.keys()
    assert [w for w in report.warnings if w.startswith("3,000 files of 2.6 TiB in all have no room here")]
    assert len(sync_text.unplaced(report.unplaced)) < 50, "the list that people see is bounded"
    pushed = victim.push()
    assert (pushed.changes.added, pushed.changes.deleted) == ((b"mine",), ()), "their absence is no deletion"


def test_files_that_wait_for_room_come_when_there_is_some(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest come first, and a margin stays free. The next pull with room brings the rest."""
    victim, mallory = pair
    files = {"small": b"s" * 1000, "large": b"l" * 300_000, "d/larger": b"L" * 400_000, "kept": b"k" * 500_000}
    write(mallory.directory, files)
    mallory.push()
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 340_000)
    report = victim.pull()
    assert {u.path: u.reason for u in report.unplaced} == {
        b"d/larger": "no room for its 400,000 bytes",
        b"kept": "no room for its 500,000 bytes",
    }
    assert {p for p, node in tree_of(victim.directory).items() if node.kind == "file"} == {
        b"small", b"large", b"kept", b"d/f",
    }  # fmt: skip
    assert (victim.directory / "kept").read_bytes() == b"of the victim"
    assert victim.push().version is None
    monkeypatch.undo()
    assert victim.pull().unplaced == ()
    assert tree_of(victim.directory) == tree_of(mallory.directory)
    assert victim.push().version is None


@pytest.mark.few(1)
@pytest.mark.parametrize("what", ["edit", "delete", "delete all", "copy"])
def test_what_the_user_does_to_an_older_file_whose_newer_one_waits(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The agreed file was never here. So an edit of the older one does not replace it, and a deletion is none."""
    victim, mallory = pair
    write(mallory.directory, {"kept": b"n" * 500_000, "d/f": b"N" * 500_000})
    mallory.push()
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 100_000)
    assert len(victim.pull().unplaced) == 2
    if what == "edit":
        write(victim.directory, {"kept": b"edited by the victim"})
    elif what == "delete":
        (victim.directory / "kept").unlink()
    elif what == "delete all":
        (victim.directory / "d" / "f").unlink()
        (victim.directory / "d").rmdir()
    else:
        os.utime(victim.directory / "kept")
    write(victim.directory, {"other": b"1"})
    for _ in range(2):
        pushed = victim.push()
        assert (pushed.changes.modified, pushed.changes.deleted) == ((), ())
        assert (what in ("edit", "copy")) == ("waits" in "".join(skipped.reason for skipped in pushed.skipped))
        assert len(victim.pull().unplaced) == 2
    monkeypatch.undo()
    conflicts = victim.pull().conflicts
    mallory.pull()
    here = tree_of(victim.directory)
    copies = {path for path in here if b"conflict" in path}
    assert (len(conflicts), len(copies)) == ((1, 1) if what in ("edit", "copy") else (0, 0))
    assert {p: node for p, node in here.items() if p not in copies} == tree_of(mallory.directory)
    for copy in copies:
        assert here[copy].data == (b"edited by the victim" if what == "edit" else b"of the victim")


def test_an_edit_that_meets_what_has_no_room_stops_the_pull_if_its_copy_has_none(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict copy holds bytes that are nowhere else: it comes before all others, and never waits."""
    victim, mallory = pair
    write(mallory.directory, {"kept": b"n" * 50_000, **{f"small{n}": b"%d" % n for n in range(5)}})
    mallory.push()
    write(victim.directory, {"kept": b"v" * 100_000})
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 100_000)
    with pytest.raises(WorkspaceError, match="where 100,000 are free"):
        victim.pull()
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 160_000)
    report = victim.pull()
    assert [c.path for c in report.conflicts] == [b"kept"] and [u.path for u in report.unplaced] == [b"kept"]
    pushed = victim.push()
    assert len(pushed.changes.added) == 1 and not pushed.changes.modified
    monkeypatch.undo()
    victim.pull()
    mallory.pull()
    assert tree_of(victim.directory) == tree_of(mallory.directory)
    assert {b"v" * 100_000, b"n" * 50_000} <= {node.data for node in tree_of(victim.directory).values()}


@pytest.mark.parametrize("size", [900 << 20, 1 << 60])
def test_a_mode_of_the_users_does_not_make_room_needed(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The victim has changed the mode of a file that claims more now than there is room for: it waits all the same."""
    victim, mallory = pair
    with insider(mallory) as m:
        m.commit(m.tree({b"kept": m.file(b"x", size=size), b"new": m.file(b"sound")}))
    (victim.directory / "kept").chmod(0o600)
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 500 << 20)
    assert [u.path for u in victim.pull().unplaced] == [b"kept"]
    assert (victim.directory / "new").read_bytes() == b"sound"
    assert (victim.directory / "kept").read_bytes() == b"of the victim"
    victim.push()
    listed = {item.path: item.facts for item in victim.ls().entries}
    assert (listed[b"kept"].size, listed[b"kept"].mode) == (size, 0o600)


def deep(levels: int, leaf: Entry) -> dict[bytes, Entry]:
    out = {b"/".join([b"d"] * n): Entry(Kind.DIR, 0o755, 0, 0, b"") for n in range(1, levels + 1)}
    return {**out, b"/".join([b"d"] * levels) + b"/f": leaf}


def test_deep_directories_with_a_missing_blob_leave_nothing_that_fails(pair: tuple[Workspace, Workspace]) -> None:
    """Directories nested deeply, and a blob that nobody has: all but the blob comes, and later commands work."""
    victim, mallory = pair
    with insider(mallory) as m:
        missing = m.file(b"here")._replace(content=NO_BLOB)
        m.commit(m.tree({**deep(350, m.file(b"leaf")), b"e": missing}))
    for _ in range(2):
        assert [noted.path for noted in victim.pull().unplaced] == [b"e"]
    with insider(mallory) as m:
        m.commit(m.tree({b"e": m.file(b"mended")}))
    victim.pull()
    assert (victim.directory / "e").read_bytes() == b"mended"
    clear(victim.directory, b"d")


def test_directories_nested_deeper_than_any_may_be_are_refused(pair: tuple[Workspace, Workspace]) -> None:
    """A tree of 1,500 levels is refused before the folder is touched, by pull and by clone."""
    victim, mallory = pair
    with insider(mallory) as m:
        below = m.directory()
        for _ in range(1500):
            below = m.directory(named(b"d", Kind.DIR, below, mode=0o755))
        m.commit(below)
    before = tree_of(victim.directory)
    with pytest.raises(DamagedError, match=f"nested deeper than {DEPTH_MAX:,}"):
        victim.pull()
    assert tree_of(victim.directory) == before


def test_own_directories_that_are_too_deep_are_told_and_left_out(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push never writes what others refuse: it says which directory is left out."""
    victim, _ = pair
    assert merge_walk.DEPTH_MAX == DEPTH_MAX
    most = 20
    monkeypatch.setattr(merge_walk, "DEPTH_MAX", most)
    place = os.open(victim.directory, os.O_RDONLY)
    for _ in range(most + 1):
        os.mkdir("deep", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=inner))
        os.close(place)
        place = inner
    os.close(place)
    report = victim.push()
    (skipped,) = report.skipped
    assert (skipped.path.count(b"/"), f"deeper than {most}" in skipped.reason) == (most, True)
    with victim._session("status") as s:
        assert max(p.count(b"/") for p in s.flat(s.base())) == most


def clear(directory: Path, name: bytes) -> None:
    """Removes what pytest's own removal of the temporary folder would be too deep for."""
    above = os.open(directory, os.O_RDONLY)
    remove(Disk(), name, above)
    os.close(above)


@pytest.mark.long
def test_few_directories_that_say_very_many_paths_are_refused(
    pair: tuple[Workspace, Workspace], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve directories say a million paths. Pull and clone refuse them by a sentence, before the folder changes.

    The pull does not go through them for directories that are lost, as none is.
    """
    victim, mallory = pair
    with insider(mallory) as m:
        below = m.directory()
        for _ in range(11):
            below = m.directory(*(named(b"%d" % n, Kind.DIR, below, mode=0o755) for n in range(4)))
        m.commit(below)
    monkeypatch.setattr(walk, "TREE_BYTES_SURE", 1 << 20)
    monkeypatch.setattr(memory, "_free_memory", lambda: 8 << 20)
    monkeypatch.setattr(unreadable, "OPENED_MAX", None)  # a first directory would be compared with it
    before = tree_of(victim.directory)
    with pytest.raises(DamagedError, match="more paths than this device has memory for"):
        victim.pull()
    assert tree_of(victim.directory) == before
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 1 << 20)
    with pytest.raises(WorkspaceError, match="are free"):
        lab.clone(lab.urls("a", kind="memory"), device="third")
    assert tree_of(lab.root / "third") == {}


def test_the_search_for_lost_directories_among_very_many_paths_ends(
    pair: tuple[Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few directories say very many paths, and one of them is nowhere. The pull names as many as it finds soon."""
    victim, mallory = pair
    opened: list[bytes] = []
    compare = walk_large.compare

    def counted(*args: Any, **kwargs: Any) -> Any:
        told = kwargs.pop("opened")
        return compare(*args, **kwargs, opened=lambda path: (opened.append(path), told(path)))

    monkeypatch.setattr(walk_large, "compare", counted)
    monkeypatch.setattr(unreadable, "OPENED_MAX", 100)
    with insider(mallory) as m:
        below = m.directory()
        for _ in range(4):
            below = m.directory(*(named(b"%d" % n, Kind.DIR, below, mode=0o755) for n in range(4)))
        lost = named(b"!lost", Kind.DIR, bytes(range(32)), mode=0o755)
        m.commit(m.directory(lost, *(named(b"%d" % n, Kind.DIR, below, mode=0o755) for n in range(4))))
    with pytest.raises(UnreadableError, match=r"what is in !lost/? is not known"):
        victim.pull()
    assert len(opened) == 101


def test_set_id_and_sticky_bits_come_only_where_they_are_asked_for(pair: tuple[Workspace, Workspace]) -> None:
    """A program comes with set-user-id, a directory with the sticky bit: neither is set here, nor undone for others."""
    victim, mallory = pair
    os.chmod(mallory.directory / "kept", 0o6755)
    os.chmod(mallory.directory / "d", 0o1777)
    write(mallory.directory, {"tool": b"#!", "t/f": b""})
    os.chmod(mallory.directory / "tool", 0o4755)
    os.chmod(mallory.directory / "t", 0o3777)
    mallory.push()
    victim.pull()

    def modes(w: Workspace) -> list[int]:
        return [stat.S_IMODE(os.lstat(w.directory / name).st_mode) for name in ("kept", "d", "tool", "t")]

    assert modes(victim) == [0o755, 0o777, 0o755, 0o777]
    assert victim.push().version is None
    write(victim.directory, {"kept": b"edited here", "t/g": b"new"})
    os.chmod(victim.directory / "d", 0o700)
    assert victim.push().version is not None
    mallory.configure("special-modes", "on")
    mallory.pull()
    assert modes(mallory) == [0o6755, 0o1700, 0o4755, 0o3777], "a push from there has not taken them away"
    os.chmod(mallory.directory / "tool", 0o755)
    mallory.push()
    victim.pull()
    assert victim.status().changes.modified == ()


def test_where_they_are_asked_for_they_come(pair: tuple[Workspace, Workspace]) -> None:
    """`special-modes on` restores them, as a device wrote them."""
    victim, mallory = pair
    victim.configure("special-modes", "on")
    os.chmod(mallory.directory / "kept", 0o4750)
    mallory.push()
    victim.pull()
    assert stat.S_IMODE(os.lstat(victim.directory / "kept").st_mode) == 0o4750
