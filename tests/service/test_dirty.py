"""What events make dirty, what of it is taken, and what comes back when a push fails."""

from __future__ import annotations

import pytest

from metasync.service import dirty as room
from metasync.service.dirty import Dirty
from metasync.worktree.hints import ALL, Hints


def test_names_and_subtrees_are_taken_once() -> None:
    d = Dirty()
    d.name(b"a", b"x")
    d.name(b"", b"y")
    d.tree(b"b")
    assert (len(d), d.changes, d.files) == (3, 3, {b"a/x": None, b"y": None})
    assert d.take() == Hints({b"", b"a"}, {b"b"})
    assert not d
    assert d.files == {}
    d.ended(well=True)
    assert d.take() == Hints()


def test_what_was_taken_stays_until_it_ends_well() -> None:
    d = Dirty()
    d.name(b"a", b"x")
    assert d.take() == Hints({b"a"})
    d.name(b"b", b"x")
    assert d.take() == Hints({b"a", b"b"}), "the second walk of one push sees what the first one saw"
    d.name(b"c", b"x")
    d.ended(well=False)
    assert d.files == {b"a/x": None, b"b/x": None, b"c/x": None}
    assert d.take() == Hints({b"a", b"b", b"c"})
    d.ended(well=True)
    assert not d.take()


def test_what_comes_while_a_push_runs_is_the_next_ones() -> None:
    d = Dirty()
    d.name(b"a", b"x")
    d.take()
    d.name(b"a", b"x")
    d.ended(well=True)
    assert d.take() == Hints({b"a"})


def test_a_subtree_covers_what_is_in_it() -> None:
    d = Dirty()
    d.tree(b"a")
    d.name(b"a/b", b"x")
    d.tree(b"a/c")
    d.name(b"ab", b"x")
    assert d.take() == Hints({b"ab"}, {b"a"})


def test_everything_covers_all() -> None:
    d = Dirty()
    d.name(b"a", b"x")
    d.everything()
    d.name(b"b", b"y")
    assert d.is_all
    assert d.files is None
    assert d.take() == ALL
    d.ended(well=False)
    assert d.take() == ALL


def test_too_many_directories_become_the_subtrees_they_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "DIRS_MAX", 4)
    d = Dirty()
    d.name(b"z", b"x")
    for at in b"12345":
        d.name(b"a/b/" + bytes([at]), b"x")
    assert d.take() == Hints({b"z"}, {b"a/b"})
    d.ended(well=True)
    for at in b"123456":
        d.name(bytes([at]), b"x")
    assert d.take() == ALL


def test_too_many_files_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "FILES_MAX", 2)
    d = Dirty()
    for name in (b"a", b"b", b"a"):
        d.name(b"", name)
    assert d.files is not None
    d.name(b"", b"c")
    assert d.files is None
    d.take()
    assert d.files == {}
    d.ended(well=False)
    assert d.files is None
