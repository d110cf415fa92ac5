"""Pushes and pulls that are told where the folder may have changed read that alone, and agree on the same."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.errors import GuardError, NoQuorumError
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk
from metasync.worktree.hints import ALL, Hints


@pytest.fixture
def w(lab: Lab) -> Workspace:
    made = lab.init(lab.urls("one", "two", "three"))
    write(made.directory, {f"{a}/{b}/{c}": f"{a}{b}{c}".encode() for a in "pqr" for b in "xyz" for c in "12345"})
    made.push()
    made.push()  # what was read in the tick of its writing is trusted now
    return made


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The directories of the folder that are listed."""
    out: list[str] = []
    names = Disk.names

    def noting(disk: Disk, fd: int) -> list[bytes]:
        out.append(os.readlink(f"/proc/self/fd/{fd}").partition("/.metasync")[0])
        return names(disk, fd)

    monkeypatch.setattr(Disk, "names", noting)
    yield out


def below(w: Workspace, listed: list[str]) -> set[str]:
    return {os.path.relpath(path, w.directory) for path in listed if path != str(w.directory)}


def test_a_push_by_hints_lists_the_hinted_directory_alone(w: Workspace, listed: list[str]) -> None:
    write(w.directory, {"q/y/3": b"changed"})
    w._work.around.hints = lambda: Hints({b"q/y"})
    listed.clear()
    report = w.push()
    assert report.changes.modified == (b"q/y/3",)
    assert below(w, listed) == {"q/y"}
    w._work.around.hints = lambda: ALL
    assert w.push().version is None, "nothing else was different"


def test_the_second_push_by_hints_goes_by_the_rows_of_the_first(w: Workspace, listed: list[str]) -> None:
    for at in range(3):
        write(w.directory, {f"p/x/new{at}": b"new", f"p/new{at}/deep": b"new"})
        w._work.around.hints = lambda: Hints({b"p/x", b"p"})
        listed.clear()
        assert len(w.push().changes.added) >= 2
        assert "r" not in {path.partition("/")[0] for path in below(w, listed)}
    w._work.around.hints = lambda: ALL
    assert w.push().version is None


def test_a_pull_by_hints_keeps_what_changed_here(lab: Lab, w: Workspace, listed: list[str]) -> None:
    other = lab.clone(lab.urls("one", "two", "three"))
    write(other.directory, {"r/z/1": b"theirs"})
    other.push()
    write(w.directory, {"q/y/3": b"ours"})
    w._work.around.hints = lambda: Hints({b"q/y"})
    listed.clear()
    w.pull()
    assert not {path for path in below(w, listed) if path.startswith("p")}
    assert (w.directory / "q/y/3").read_bytes() == b"ours"
    assert (w.directory / "r/z/1").read_bytes() == b"theirs"
    w._work.around.hints = lambda: ALL
    assert w.push().changes.modified == (b"q/y/3",)
    other.pull()
    assert tree_of(other.directory) == tree_of(w.directory)


def test_what_a_failed_push_saw_is_seen_again(lab: Lab, w: Workspace) -> None:
    write(w.directory, {"q/y/3": b"changed"})
    w._work.around.hints = lambda: Hints({b"q/y"})
    for name in ("one", "two"):
        lab.faults[name].down = True
    with pytest.raises(NoQuorumError):
        w.push()
    for name in ("one", "two"):
        lab.faults[name].down = False
    assert w.push().version == 2


def test_the_guard_counts_the_files_that_no_hint_names(w: Workspace) -> None:
    for name in "12345":
        (w.directory / "q/y" / name).unlink()
    w._work.around.hints = lambda: Hints({b"q/y"})
    assert w.push().version == 2, "5 of 45"
    for path in [*w.directory.glob("[pq]/*/*"), *w.directory.glob("r/x/*")]:
        path.unlink()
    w._work.around.hints = lambda: Hints({f"{a}/{b}".encode() for a in "pqr" for b in "xyz"})
    with pytest.raises(GuardError):
        w.push()
