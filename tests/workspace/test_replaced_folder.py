"""An open workspace whose folder is moved away, or replaced by another workspace's: no file crosses over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.errors import WorkspaceError
from metasync.workspace import Workspace

Act = Callable[[Workspace], object]
ACTS: dict[str, Act] = {
    "push": lambda w: w.push(),
    "pull": lambda w: w.pull(),
    "sync": lambda w: w.sync(),
    "restore": lambda w: w.restore("latest"),
    "status": lambda w: w.status(),
}


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize("act", ACTS)
def test_by_another_workspace(lab: Lab, act: str) -> None:
    mine = lab.init(lab.urls("a", "b"))
    write(mine.directory, {"letter": b"mine"})
    mine.push()
    theirs = lab.init(lab.urls("c", "d"), device="server", name="work")
    write(theirs.directory, {"secret": b"theirs"})
    theirs.push()
    theirs.close()
    write(theirs.directory, {"secret": b"changed"})
    swap(mine.directory, theirs.directory)
    with pytest.raises(WorkspaceError, match="another took its place"):
        ACTS[act](mine)
    assert {p: n.data for p, n in tree_of(mine.directory).items()} == {b"secret": b"changed"}
    swap(mine.directory, theirs.directory)
    write(mine.directory, {"more": b"mine"})
    assert mine.push().changes.added == (b"more",)
    assert set(tree_of(mine.directory)) == {b"letter", b"more"}


def test_by_another_device_of_it(lab: Lab) -> None:
    """What the other folder lacks was not deleted in this one."""
    one = lab.init(lab.urls("a", "b"))
    write(one.directory, {"old": b"1"})
    one.push()
    other = lab.clone(lab.urls("a", "b"))
    write(one.directory, {"new": b"2"})
    one.push()
    swap(one.directory, other.directory)
    for w in (one, other):
        with pytest.raises(WorkspaceError, match="not the folder that was opened"):
            w.sync()
    assert set(tree_of(one.directory)) == {b"old"}
    with Workspace.open(one.directory) as again:
        again.pull()
    assert set(tree_of(one.directory)) == {b"old", b"new"}


def test_by_nothing(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b"))
    write(w.directory, {"f": b"1"})
    w.push()
    away = w.directory.with_name("away")
    w.directory.rename(away)
    w.directory.mkdir()
    for act in ACTS.values():
        with pytest.raises(WorkspaceError):
            act(w)
    w.directory.rmdir()
    away.rename(w.directory)
    assert w.push().version is None
