"""What kept versions need is marked once in a repair, however much hangs on it."""

from __future__ import annotations

import pytest
from test_lost_paths import entry_at, lose_directory, lose_pack, pack_of, told, versions
from test_matching_files import is_sound
from workspace_kit import Lab, write

from metasync.maintenance.repair import give_back, left_out_packs, lost_paths
from metasync.maintenance.repair.needs import Needs


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[Needs]:
    """The marks that were made."""
    made: list[Needs] = []

    class Counted(Needs):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(left_out_packs, "Needs", Counted)
    monkeypatch.setattr(give_back, "Needs", Counted)
    return made


def test_a_repair_with_nothing_to_do_marks_once_and_walks_no_tree_again(
    lab: Lab, marks: list[Needs], monkeypatch: pytest.MonkeyPatch
) -> None:
    w = versions(lab)
    walked: list[object] = []
    plain = lost_paths.gather
    monkeypatch.setattr(lost_paths, "gather", lambda *a: walked.append(a) or plain(*a))  # type: ignore[func-returns-value]
    assert w.check(repair=True).repaired is None
    assert [one.are_there for one in marks] == [True] and not walked
    w.check()
    assert len(marks) == 1 and len(walked) == 1, "nobody else marks"


def test_a_repair_of_what_older_versions_lost_marks_once(lab: Lab, marks: list[Needs]) -> None:
    """Its mark is of the index that still names what is lost."""
    w = versions(lab)
    lose_directory(lab, w, 3, b"old")
    assert told(w.check(repair=True)) == [(b"/", 3, 3), (b"old/", 4, 4)]
    assert len(marks) == 1


def test_what_was_lost_long_ago_and_is_here_again_comes_back_by_one_mark(lab: Lab, marks: list[Needs]) -> None:
    """The index does not name it any more."""
    w = versions(lab)
    lose_pack(lab, pack_of(w, entry_at(w, 3, b"old/x").content))
    assert told(w.check(repair=True)) == [(b"old/x", 3, 4)]
    marks.clear()
    assert w.check(repair=True).repaired is None
    assert [len(one.lacking) for one in marks] == [1]
    marks.clear()
    write(w.directory, {"again": b"old/x 3"})
    report = w.check(repair=True)
    assert report.repaired is not None and report.repaired.stored_bytes > 0
    assert len(marks) == 1 and is_sound(w)
