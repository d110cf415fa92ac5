"""Restores into place: nothing unsaved is lost, a killed one is finished or undone, other devices get exactly that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_kit import Crashed, Fate, mortal_clients
from effort import few_and_many
from workspace_kit import Lab, Node, tree_of, unreadable, write

from metasync.checkout.plan import CHANGED_MEANWHILE, Plan, decode_plan, encode_plan
from metasync.errors import DamagedError, NoQuorumError, UsageError, WorkspaceError
from metasync.history import conflicts as conflicting
from metasync.history import restore as restoring
from metasync.local.state_keys import CONFLICTS, RESTORED_KEY, RESTORED_ON_KEY, Conflict
from metasync.objects.model import Entry, Kind
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk
from metasync.worktree.scan import Scan

BIG = os.urandom(300_000)


@pytest.fixture
def past(lab: Lab) -> Workspace:
    """Two versions that differ in every way."""
    w = lab.init(lab.urls("a", "b", "c"))
    top = w.directory
    write(
        top,
        {"same": b"same", "edited.txt": b"old\n", "gone": b"gone\n", "d/in/deep": b"deep\n", "big": BIG, "mode": b"m"},
    )
    write(
        top, {"kind": b"a file", "kind2/x": b"x of a directory", "ro/f": b"in a read-only directory", "empty-file": b""}
    )
    (top / "link").symlink_to("same")
    (top / "empty").mkdir()
    (top / "ro").chmod(0o555)
    w.push("one")
    (top / "ro").chmod(0o755)
    write(top, {"edited.txt": b"new and longer\n", "big": BIG[:200_000] + b"!", "added/a": b"a", "ro/f": b"other"})
    (top / "gone").unlink()
    (top / "empty-file").unlink()
    shutil.rmtree(top / "d")
    (top / "empty").rmdir()
    (top / "mode").chmod(0o600)
    (top / "kind").unlink()
    write(top, {"kind/y": b"y"})
    shutil.rmtree(top / "kind2")
    write(top, {"kind2": b"a file now"})
    (top / "link").unlink()
    (top / "link").symlink_to("edited.txt")
    w.push("two")
    return w


def wanted(w: Workspace, lab: Lab, version: str) -> dict[bytes, Node]:
    """The tree of a version, by way of a new directory."""
    out = lab.root / f"wanted-{version}-{len(list(lab.root.iterdir()))}"
    report = w.restore(version, to=out)
    assert not report.failed
    return tree_of(out)


def unlocked(path: Path) -> Path:
    path.parent.chmod(0o755)
    return path


def kept(w: Workspace) -> set[bytes]:
    """The contents of all files in the folder and in `.metasync/replaced`."""
    files = [p for p in w.directory.rglob("*") if p.is_file() and not p.is_symlink()]
    return {p.read_bytes() for p in files if ".metasync" not in p.parts or "replaced" in p.parts}


# --- into place


def test_there_and_back(lab: Lab, past: Workspace) -> None:
    one, two = wanted(past, lab, "1"), wanted(past, lab, "2")
    assert one != two
    assert tree_of(past.directory) == two
    base = past.status().version
    r = past.restore("1")
    assert tree_of(past.directory) == one
    assert (r.version, r.conflicts, r.failed, r.to) == (1, (), (), None)
    assert past.status().version == base, "the base stays"
    assert set(past.status().changes.deleted) >= {b"added/a", b"kind/y"}
    r = past.restore("latest")
    assert tree_of(past.directory) == two, "what a restore brought goes again"
    assert len(past.status().changes) == 0
    assert len(past.restore("latest").changes) == 0
    assert past.push().version is None


def test_other_devices_get_exactly_that(lab: Lab, past: Workspace) -> None:
    c = lab.clone(lab.urls("a", "b", "c"))
    one, two = wanted(past, lab, "1"), tree_of(past.directory)
    past.restore("1")
    before = sum(count.take().up_bytes for count in lab.counts.values())
    assert past.push("back").version == 4
    before = sum(count.take().up_bytes for count in lab.counts.values())
    assert before < 120_000, "no content is sent again"
    c.pull()
    assert tree_of(c.directory) == tree_of(past.directory) == one
    c.restore("2")
    assert tree_of(c.directory) == two
    c.push("forth")
    past.pull()
    assert tree_of(past.directory) == two
    for x in (past, c):
        assert len(x.status().changes) == 0
        assert x.conflicts() == ()
    assert [i.message for i in past.log()] == ["forth", "back", "two", "one"]


def test_single_paths(lab: Lab, past: Workspace) -> None:
    one, two = wanted(past, lab, "1"), tree_of(past.directory)
    r = past.restore("1", ["edited.txt", "d/in", "added"])
    assert r.changes.modified == (b"edited.txt",)
    assert r.changes.deleted == (b"added/a",)
    assert r.changes.added == (b"d/in/deep",)
    now = tree_of(past.directory)
    touched = {b"edited.txt", b"d", b"d/in", b"d/in/deep"}
    assert {p: now[p] for p in touched} == {p: one[p] for p in touched}
    rest = {p: n for p, n in two.items() if p not in touched and not p.startswith(b"added")}
    assert {p: n for p, n in now.items() if p not in touched} == rest
    with pytest.raises(UsageError, match="has nothing at nowhere"):
        past.restore("1", ["nowhere"])
    assert tree_of(past.directory) == now


def test_no_delete_and_dry_run(lab: Lab, past: Workspace) -> None:
    two = tree_of(past.directory)
    r = past.restore("1", dry_run=True)
    assert tree_of(past.directory) == two
    assert b"added/a" in r.changes.deleted
    assert b"gone" in r.changes.added
    past.restore("1", ["added", "edited.txt"], delete=False)
    assert (past.directory / "added/a").read_bytes() == b"a"
    assert (past.directory / "edited.txt").read_bytes() == b"old\n"
    past.restore("1", ["added"])
    assert not (past.directory / "added").exists()


def test_unsaved_files_are_kept(lab: Lab, past: Workspace) -> None:
    top = past.directory
    unsaved = {
        "edited.txt": b"not pushed\n",  # changed since the base, and in the way
        "gone": b"untracked where a file comes back\n",
        "d": b"untracked where a directory comes back\n",
        "same": b"changed, and the version has another\n",
        "added/a": b"changed, and the version lacks it\n",
        "added/untracked": b"nobody knows it\n",
        "kind/mine": b"in a directory in whose place a file comes\n",
        "free": b"in nobody's way\n",
    }
    write(top, unsaved)
    would = past.restore("1", dry_run=True)
    assert set(would.unsaved) == {b"edited.txt", b"gone", b"d", b"same", b"kind"}
    r = past.restore("1")
    assert {c.path for c in r.conflicts} == set(would.unsaved)
    assert set(unsaved.values()) <= kept(past)
    one = wanted(past, lab, "1")
    now = tree_of(top)
    assert {p: now[p] for p in one} == one
    copies = {c.path: c.kept for c in r.conflicts}
    assert now[copies[b"edited.txt"]].data == unsaved["edited.txt"]
    assert copies[b"edited.txt"] == b"edited.conflict-laptop-20261122.txt"
    assert now[copies[b"kind"] + b"/mine"].data == unsaved["kind/mine"]
    assert now[b"added/a"].data == unsaved["added/a"]
    assert now[b"added/untracked"].data == unsaved["added/untracked"]
    assert {c.kept for c in past.conflicts()} == set(copies.values())
    assert {c.kept for c in past.status().conflicts} == set(copies.values())
    past.push()
    c = lab.clone(lab.urls("a", "b", "c"))
    assert tree_of(c.directory) == tree_of(top)


def test_ignored_files_in_the_way_are_kept(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x/y": b"1", "z": b"z"})
    w.push()
    shutil.rmtree(w.directory / "x")
    w.push()
    write(w.directory, {".DS_Store": b"ignored at the root", "~$x": b"ignored"})
    (w.directory / "x").mkdir()
    write(w.directory, {"x/Thumbs.db": b"ignored inside"})
    w.restore("1")
    assert (w.directory / "x/y").read_bytes() == b"1"
    r = w.restore("2")
    assert not (w.directory / "x/y").exists()
    assert (w.directory / "x/Thumbs.db").read_bytes() == b"ignored inside"
    assert [s.path for s in r.skipped] == [b"x"]


def test_what_a_version_holds_makes_no_conflict_copy(lab: Lab, past: Workspace) -> None:
    past.restore("1")
    write(past.directory, {"same": (past.directory / "edited.txt").read_bytes()})
    r = past.restore("2")
    assert r.conflicts == ()
    assert past.conflicts() == ()
    assert b"old\n" in kept(past), "in .metasync/replaced"


def test_a_copy_of_an_agreed_file_is_untracked_and_stays(past: Workspace) -> None:
    shutil.copy(past.directory / "same", past.directory / "copy-of-same")
    past.restore("1")
    past.restore("latest")
    assert (past.directory / "copy-of-same").exists()


def test_what_was_changed_after_a_restore_is_not_taken_away(past: Workspace) -> None:
    past.restore("1")
    write(past.directory, {"gone": b"edited after it came back"})
    past.restore("latest")
    assert (past.directory / "gone").read_bytes() == b"edited after it came back"
    assert not (past.directory / "d").exists()


def test_only_mode_or_time_differs(past: Workspace) -> None:
    path = past.directory / "same"
    inode, then = path.stat().st_ino, path.stat().st_mtime_ns
    path.chmod(0o640)
    os.utime(path, ns=(1, 5 * 10**17))
    r = past.restore("base")
    assert r.changes.modified == (b"same",)
    assert (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_mode & 0o777) == (inode, then, 0o644)
    assert r.conflicts == ()


def test_bytes_that_are_here_are_not_fetched(lab: Lab, past: Workspace) -> None:
    (past.directory / "moved").mkdir()
    shutil.copy(past.directory / "big", past.directory / "moved/elsewhere")
    (past.directory / "big").unlink()
    for count in lab.counts.values():
        count.take()
    past.restore("latest", ["big"])
    assert (past.directory / "big").read_bytes() == BIG[:200_000] + b"!"
    assert sum(count.take().down_bytes for count in lab.counts.values()) < 60_000


def test_a_source_that_changes_while_it_is_copied(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan saw other bytes there; what is copied is checked, and the agreed bytes are fetched."""
    top = past.directory
    data = os.urandom(1_500_000)  # of several chunks: no piece counts before all are there
    write(top, {"big": data})
    past.push()
    (top / "big").rename(top / "source")
    real, calls = restoring.deliver, []

    def late(*args: object, **kwargs: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            with (top / "source").open("r+b") as f:
                f.seek(1_200_000)
                f.write(b"written this very moment")
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(restoring, "deliver", late)
    past.restore("latest", ["big"])
    assert (top / "big").read_bytes() == data
    assert b"written this very moment" in (top / "source").read_bytes()
    assert len(calls) == 1


def test_a_file_that_is_saved_while_it_is_replaced(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    real = restoring.deliver

    def late(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)  # type: ignore[arg-type]
        write(past.directory, {"edited.txt": b"saved at the last moment"})

    monkeypatch.setattr(restoring, "deliver", late)
    r = past.restore("1")
    assert [c.path for c in r.conflicts] == [b"edited.txt"]
    assert b"saved at the last moment" in kept(past)


def test_a_full_disk_is_found_out_before(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree_of(past.directory)
    monkeypatch.setattr(Disk, "free_bytes", lambda self, fd: 10_000)
    with pytest.raises(WorkspaceError, match="are free"):
        past.restore("1")
    assert tree_of(past.directory) == before
    monkeypatch.undo()


def test_what_the_disk_cannot_take_is_told_and_is_no_change(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Disk.exchange

    def refuse(self: Disk, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        if other == b"edited.txt":
            raise OSError(1, "not permitted", other)
        return real(self, one, one_fd, other, other_fd)

    monkeypatch.setattr(Disk, "exchange", refuse)
    r = past.restore("1", ["edited.txt", "gone"])
    assert [(f.path, f.cause) for f in r.failed] == [(b"edited.txt", "disk")]
    assert (past.directory / "edited.txt").read_bytes() == b"new and longer\n"
    assert (past.directory / "gone").exists()
    assert past.status().changes.modified == (), "what is not here must not be pushed"
    with past._session("test") as s:
        assert s.db.unplaced() == {}


# --- damage, absence


@pytest.mark.parametrize("how", ["missing", "altered"])
def test_damage_changes_nothing_here(lab: Lab, past: Workspace, how: str) -> None:
    write(past.directory, {"mine": b"m"})
    before = tree_of(past.directory)
    for name in "abc":
        for pack in lab.objects(name, "packs"):
            pack.unlink() if how == "missing" else pack.write_bytes(bytes(pack.stat().st_size))
    with pytest.raises(DamagedError):
        past.restore("1")
    assert tree_of(past.directory) == before
    assert not any((past.directory / ".metasync/tmp").iterdir())
    assert past.restore("base", ["mode"]).failed == ()


def test_holders_that_are_away_change_nothing_here(lab: Lab, past: Workspace) -> None:
    lab.hurry()
    before = tree_of(past.directory)
    for name in "abc":
        lab.faults[name].down = True
    with pytest.raises(NoQuorumError):
        past.restore("1")
    assert tree_of(past.directory) == before
    r = past.restore("1", ["mode", "empty"])  # all that is needed is here
    assert r.changes.modified == (b"mode",)
    lab.faults["a"].down = lab.faults["b"].down = False
    past.restore("1")
    assert (past.directory / "gone").exists()


def test_one_backend_away_is_no_hindrance(lab: Lab, past: Workspace) -> None:
    lab.faults["b"].down = True
    past.restore("1")
    assert (past.directory / "big").read_bytes() == BIG


def test_unreadable_files_here_are_told(past: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    write(past.directory, {"edited.txt": b"cannot be read"})
    unreadable(monkeypatch, b"edited.txt")
    r = past.restore("1", ["edited.txt"])
    monkeypatch.undo()
    assert [u.path for u in r.unreadable] == [b"edited.txt"]
    assert b"cannot be read" in kept(past)


# --- crashes


def every_call(
    lab: Lab,
    past: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Workspace], object],
    check: Callable[[Workspace], bool],
    stride: int,
) -> dict[bool, int]:
    """Kills `act` at every `stride`th call on the disk and the local state; `check` after the next command.

    Returns how often it was finished then, and how often undone.
    """
    past.close()
    outcomes = {True: 0, False: 0}
    with mortal_clients(monkeypatch) as here:
        for k in range(1, 2000, stride):
            place = lab.root / "victim"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(past.directory, place, symlinks=True)
            here.fate = fate = Fate()
            w = Workspace.open(place)
            fate.live()
            fate.dies_at = k
            try:
                act(w)
            except (Crashed, Exception):
                assert fate.dead, "it failed without being killed"
            died = fate.dead
            here.fate = None
            fate.live()
            w.close()
            with Workspace.open(place) as again:
                again.pull()
                outcomes[check(again)] += 1
            if not died:
                assert k > 40
                return outcomes
    raise AssertionError("it never ended")


@few_and_many("stride", 9, 1)
@pytest.mark.long
def test_killed_at_every_call(lab: Lab, past: Workspace, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    one = wanted(past, lab, "1")
    write(
        past.directory,
        {"edited.txt": b"unsaved\n", "d": b"unsaved file\n", "kind/mine": b"unsaved inside\n", "free": b"f\n"},
    )
    unsaved = {b"unsaved\n", b"unsaved file\n", b"unsaved inside\n", b"f\n"}
    before = tree_of(past.directory)
    assert unsaved <= {n.data for n in before.values()}

    def check(w: Workspace) -> bool:
        now = tree_of(w.directory)
        assert unsaved <= {n.data for n in now.values()}
        assert not any((w.directory / ".metasync/tmp").iterdir())
        if now == before:
            assert w.conflicts() == ()
            return False
        assert {p: now.get(p) for p in one} == one
        assert len(w.conflicts()) == 3
        assert b"added/a" in w.status().changes.deleted, "the next push takes the deletions too"
        return True

    outcomes = every_call(lab, past, monkeypatch, lambda w: w.restore("1"), check, stride)
    assert outcomes[True] > 30 // stride
    assert outcomes[False] > 10 // stride


def test_the_journal_says_whose_changes_they_are() -> None:
    plan = Plan((), {"k": None}, 3, 9, (1, 2))
    assert decode_plan(encode_plan(plan)) == plan
    assert (plan.own, plan.reason) == (False, CHANGED_MEANWHILE)
    own = Plan((), {}, 3, 9, (1, 2), own=True, reason="why")
    assert decode_plan(encode_plan(own)) == own


def test_a_path_of_thousands_of_names(past: Workspace) -> None:
    """Longer than 16 bits can count: what a restore notes of it fits."""
    long = b"/".join([b"name"] * 20_000)
    with past._session("test") as s:
        base = s.base()
        entry = Entry(Kind.DIR, 0o755, 0, 0, b"")
        here = restoring.Here(Scan(), {}, {}, {})
        s.db.set(RESTORED_KEY, restoring._now_restored(here, {long: entry}))
        s.db.set(RESTORED_ON_KEY, base.state.master)
        assert restoring._restored(s, base) == {long: b""}
        s.db.put_records(CONFLICTS, [Conflict(long, long, "why", 1)])
        assert conflicting.conflicts(s) == (), "it is not there"


# --- ignore rules


def test_ignored_files_are_no_difference_and_no_harm(lab: Lab) -> None:
    """Rules of the folder: what is ignored is not compared, not taken away, and kept where it is in the way."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"build/out": b"agreed once", "local.key": b"agreed", "src": b"1"})
    w.push("one")
    write(w.directory, {".metasyncignore": b"build/\n*.key\n", "src": b"2"})
    w.push("two")
    write(w.directory, {"build/new": b"ignored", "x.key": b"ignored too", "local.key": b"edited, ignored"})
    assert w.diff().changes == ()
    assert [c.path for c in w.diff("1").changes] == [b".metasyncignore", b"src"]
    r = w.restore("1", ["local.key", "src", "build"])
    assert (w.directory / "src").read_bytes() == b"1"
    assert {b"ignored", b"ignored too", b"edited, ignored"} <= kept(w)
    assert (w.directory / "local.key").read_bytes() in (b"agreed", b"edited, ignored")
    w.restore("0")
    assert (w.directory / "build/new").exists()
    assert (w.directory / "build/out").exists(), "its going could not be pushed"
    assert not (w.directory / "src").exists()
    assert b"edited, ignored" in kept(w)
    assert r.failed == ()


def test_an_edit_of_an_ignored_file_is_not_replaced(lab: Lab) -> None:
    """Pushed, edited and scanned, then ignored: its row tells of bytes that no version holds."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"notes.key": b"first", "x": b"x"})
    w.push("one")
    write(w.directory, {"notes.key": b"second"})
    w.push("two")
    write(w.directory, {"notes.key": b"unsaved"})
    w.restore("latest", ["x"])  # scans, and stores what it saw
    write(w.directory, {".metasyncignore": b"*.key\n"})
    w.push("three")
    r = w.restore("1", ["notes.key"])
    assert (w.directory / "notes.key").read_bytes() == b"first"
    assert [c.path for c in r.conflicts] == [b"notes.key"]
    assert (w.directory / "notes.conflict-laptop-20261122.key").read_bytes() == b"unsaved"
    assert [s.path for s in r.skipped] == [b"notes.key"]
    assert w.push().version is None, "it is ignored"
    assert w.restore("2", ["notes.key"]).conflicts == ()
    assert (w.directory / "notes.key").read_bytes() == b"second", "looked at, though it is ignored"
    (w.directory / "notes.key").unlink()
    w.restore("1", ["notes.key"])
    for keep, text in (("ours", b"unsaved"), ("theirs", b"first")):
        assert [c.kept for c in w.conflicts()] == [b"notes.conflict-laptop-20261122.key"], "ignored like its original"
        w.resolve("notes.key", keep)  # type: ignore[arg-type]
        assert (w.directory / "notes.key").read_bytes() == text
        assert w.conflicts() == ()
        assert {b"first", b"unsaved"} <= kept(w)
        write(w.directory, {"notes.key": b"unsaved"})
        assert w.restore("1", ["notes.key"]).conflicts


def test_what_is_missing_is_brought_again(lab: Lab) -> None:
    """A copy of the folder that lacks a file: nobody deleted it, and a restore brings it."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"one": b"1", "two": b"2"})
    w.push()
    w.close()
    shutil.copytree(w.directory, lab.root / "copy")
    (lab.root / "copy/two").unlink()
    with Workspace.open(lab.root / "copy") as x:
        x.restore("base")
        assert (x.directory / "two").read_bytes() == b"2"
        assert x.push().version is None
