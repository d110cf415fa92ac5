"""A keeper follows rule files that change, come and go, and lists only what they let in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from keeper_kit import Stage, version
from workspace_kit import tree_of, write

from metasync.workspace import Workspace


def test_rules_that_change_are_followed(w: Workspace, stage: Stage) -> None:
    write(w.directory, {".metasyncignore": b"/x/\n*.o\n"})
    stage.settle()
    stage.keeper._changes.catch_up()  # what is watched now has been heard of, and everything looked at
    stage.settle()
    before = version(w)
    write(w.directory, {"x/more": b"ignored", "y/z.o": b"ignored"})
    stage.keeper._changes.catch_up()
    assert len(stage.keeper._changes) == 0
    (w.directory / ".metasyncignore").unlink()
    stage.settle()
    assert version(w) == before + 1
    write(w.directory, {"x/more": b"again"})
    stage.settle()
    assert version(w) == before + 2


def test_rules_that_come_with_their_directory_are_followed(w: Workspace, stage: Stage) -> None:
    write(w.directory.parent, {"away/.metasyncignore": b"*.o\n", "away/a": b"a"})
    (w.directory.parent / "away").rename(w.directory / "came")
    stage.settle()
    stage.keeper._changes.catch_up()  # what is watched now has been heard of, and everything looked at
    stage.settle()
    write(w.directory, {"came/z.o": b"ignored"})
    stage.keeper._changes.catch_up()
    assert len(stage.keeper._changes) == 0


def test_rules_that_went_with_their_directory_hold_for_none_of_its_name(w: Workspace, stage: Stage) -> None:
    write(w.directory, {"x/.metasyncignore": b"*.o\n"})
    stage.settle()
    (w.directory / "x").rename(w.directory.parent / "away")
    stage.settle()
    (w.directory / "x").mkdir()
    stage.settle()
    before = version(w)
    write(w.directory, {"x/z.o": b"a file like any other"})
    stage.settle()
    assert version(w) == before + 1


ALLOWED = {".metasyncignore": b"*\n!*/\n!*.txt\n!.metasyncignore\n", "deep/in/a.txt": b"a", "sub/b.txt": b"b"}


def move_away(top: Path) -> None:
    (top / "deep").rename(top.parent / "outside")


def move_inside(top: Path) -> None:
    (top / "deep").rename(top / "other")


def delete(top: Path) -> None:
    shutil.rmtree(top / "deep")


@pytest.mark.few(1)
@pytest.mark.parametrize("do", [move_away, move_inside, delete])
def test_a_directory_that_goes_is_noticed_where_rules_let_directories_in_and_no_other_names(
    w: Workspace, stage: Stage, do: Callable[[Path], None]
) -> None:
    write(w.directory, ALLOWED)
    stage.settle()
    stage.settle()  # what is watched by the new rules has been looked at
    do(w.directory)
    stage.settle()
    listed = sorted(e.path for e in w.ls(recursive=True).entries if e.path.endswith(b".txt"))
    assert listed == sorted(os.fsencode(p.relative_to(w.directory)) for p in w.directory.rglob("*.txt"))


def test_a_file_that_an_allow_list_leaves_out_makes_nothing_dirty(w: Workspace, stage: Stage) -> None:
    write(w.directory, ALLOWED)
    stage.settle()
    stage.settle()
    write(w.directory, {"deep/in/a.db": b"ignored"})
    stage.keeper._changes.catch_up()
    assert len(stage.keeper._changes) == 0


def test_a_name_that_may_be_of_either_kind_is_dirty_unless_both_are_ignored(w: Workspace, stage: Stage) -> None:
    write(w.directory, {".metasyncignore": b"*\n!*/\n!*.txt\n/gone\n/gone/\n"})
    stage.settle()
    stage.settle()
    changes = stage.keeper._changes
    changes.catch_up()
    changes.name(b"", b"gone", None)
    assert len(changes) == 0
    changes.name(b"", b"deep", False)
    assert len(changes) == 0
    changes.name(b"", b"deep", None)
    assert len(changes) == 1


def test_what_went_while_it_was_ignored_is_brought_when_rules_let_it_in_again(
    w: Workspace, stage: Stage, other: Workspace
) -> None:
    """It was missing in a folder "in step" until another device pushed something."""
    write(w.directory, {".metasyncignore": b"/x/\n"})
    stage.settle()
    other.pull()
    (w.directory / "x/1").unlink()
    stage.settle()
    assert not (w.directory / "x/1").exists()
    (other.directory / ".metasyncignore").unlink()
    other.push()
    stage.keeper.hint()
    stage.settle()
    stage.go_on(60.0)
    assert tree_of(w.directory) == tree_of(other.directory)
    turns = stage.turns
    stage.go_on(600.0)
    assert stage.turns - turns < 100
