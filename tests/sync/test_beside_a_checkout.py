"""What waits in the program of a pull is answered while that changes the folder, if it needs nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workdir import Killed
from workspace_kit import Lab, tree_of, write

from metasync.checkout import checkout
from metasync.errors import WorkspaceError
from metasync.local import lock
from metasync.local.lock import PutOff, WorkspaceLock
from metasync.local.state_keys import INODES_KEY
from metasync.reports.sync import PushReport
from metasync.session.folder import BASE_KEY
from metasync.sync import no_change
from metasync.workspace import Workspace

HERE = {"d/kept": b"kept", "d/edited": b"old", "d/gone": b"gone", "gone/f": b"f"}
THERE = {"d/edited": b"theirs", "d/added": b"added", "whole/1": b"1", "whole/deep/2": b"2", "whole2/3": b"3"}


class Beside:
    """A pull in slices of one change, with somebody who waits all the time: `let_in` is called for them."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkout, "SLICE_CHANGES", 1)
        self.w = lab.init(lab.urls("a", "b", "c"))
        write(self.w.directory, HERE)
        self.w.push()
        self.other = lab.clone(lab.urls("a", "b", "c"))
        self.w.pull()  # knows both devices
        write(self.other.directory, THERE)
        for gone in ("d/gone", "gone/f"):
            (self.other.directory / gone).unlink()
        (self.other.directory / "gone").rmdir()
        self.other.push()
        self.lets = 0

    def pull(self, let_in: Callable[[], None]) -> None:
        around, base = self.w._work.around, self.w._db.need(BASE_KEY)

        def let() -> None:
            if not around.applying:  # others are let go before it
                return
            assert self.w._db.need(BASE_KEY) == base
            assert self.w._db.has(INODES_KEY)
            self.lets += 1
            let_in()

        around.waits, around.let_in = (lambda: True), let
        try:
            self.w.pull()
        finally:
            around.waits, around.let_in = (lambda: False), (lambda: None)


@pytest.fixture
def beside(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Beside:
    return Beside(lab, monkeypatch)


def end(beside: Beside) -> None:
    """Both folders are alike, and neither device has anything to push."""
    assert tree_of(beside.w.directory) == tree_of(beside.other.directory)
    assert beside.w.push().version is None
    assert beside.w.check(read_data=True).problems == ()


def test_a_push_that_has_nothing_to_push_is_answered(beside: Beside) -> None:
    answers: list[PushReport] = []
    beside.pull(lambda: answers.append(beside.w.push()))
    assert len(answers) >= 7
    assert all(a.version is None and not a.changes.added and a.pulled is None for a in answers)
    end(beside)


def test_a_push_of_an_edit_waits_and_pushes_the_edit_alone(beside: Beside) -> None:
    answers: list[str] = []

    def let_in() -> None:
        if beside.lets == 5:
            write(beside.w.directory, {"d/kept": b"mine"})
        try:
            beside.w.push()
        except PutOff:
            answers.append("put off")
        else:
            answers.append("nothing")

    beside.pull(let_in)
    assert answers == ["nothing"] * 4 + ["put off"] * (len(answers) - 4)
    assert len(answers) == 7
    pushed = beside.w.push()
    assert (pushed.changes.added, pushed.changes.modified, pushed.changes.deleted) == ((), (b"d/kept",), ())
    beside.other.pull()
    end(beside)


@pytest.mark.parametrize(
    "do",
    [
        lambda w: w.pull(),
        lambda w: w.sync(),
        lambda w: w.push(dry_run=True),
        lambda w: w.push(durability=1),
        lambda w: w.restore("1", ["d/gone"]),
        lambda w: w.tag("1", "first"),
        lambda w: w.gc(),
    ],
    ids=["pull", "sync", "dry-run", "durability", "restore", "tag", "gc"],
)
def test_what_may_change_something_waits(beside: Beside, do: Callable[[Workspace], Any]) -> None:
    def let_in() -> None:
        with pytest.raises(PutOff):
            do(beside.w)

    beside.pull(let_in)
    assert beside.lets >= 7
    end(beside)


def test_what_only_reads_is_answered(beside: Beside) -> None:
    versions: list[int] = []
    beside.pull(lambda: versions.append(beside.w.log()[0].version))
    assert set(versions) == {beside.other.log()[0].version}
    end(beside)


def test_the_first_version_is_left_to_the_pull_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that was let in on a device of an empty workspace brought all of it, before and in the change."""
    monkeypatch.setattr(checkout, "SLICE_CHANGES", 1)
    monkeypatch.setattr(lock, "TURN_S", 0.0)
    monkeypatch.setattr(lock, "LOOK_EVERY_S", 0.0)
    w = lab.init(lab.urls("a", "b", "c"))
    other = lab.clone(lab.urls("a", "b", "c"))
    other.push()
    w.pull()  # knows both devices
    w.push()
    write(other.directory, HERE | THERE)
    assert other.push().version is not None
    answers: list[tuple[bool, PushReport]] = []
    around = w._work.around
    begun = [0]  # turns of others before the change of the folder: few, or there would be no end

    def waits() -> bool:
        return w._db.has(INODES_KEY) or begun[0] < 3

    def let_in() -> None:
        begun[0] += not around.applying
        around.waits = lambda: False
        answers.append((around.applying, w.push()))
        around.waits = waits

    around.waits, around.let_in = waits, let_in
    pulled = w.pull()
    around.waits, around.let_in = (lambda: False), (lambda: None)
    assert {applying for applying, _ in answers} == {False, True}
    assert all(a.version is None and a.pulled is None for _, a in answers)
    assert pulled.changes.added
    assert tree_of(w.directory) == tree_of(other.directory)
    assert w.push().version is None


def test_a_file_beside_the_first_version_is_pushed_by_who_is_let_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    other = lab.clone(lab.urls("a", "b", "c"))
    other.push()
    w.pull()
    w.push()
    write(other.directory, HERE)
    other.push()
    write(w.directory, {"mine": b"mine"})
    with w._work.session("push") as s:
        assert no_change.push_let_in(s) is None
    assert w.push().changes.added == (b"mine",)
    other.pull()
    assert tree_of(w.directory) == tree_of(other.directory)


def test_another_process_is_not_let_in(beside: Beside) -> None:
    """It would have to finish the checkout first."""

    def let_in() -> None:
        with pytest.raises(WorkspaceError, match="is held by process"):
            WorkspaceLock(beside.w.directory / ".metasync").acquire("anything", wait_s=0)

    beside.pull(let_in)
    assert beside.lets >= 7
    end(beside)


def test_nobody_is_let_in_where_the_folder_was_not_as_agreed(beside: Beside) -> None:
    write(beside.w.directory, {"mine": b"mine"})
    beside.pull(lambda: None)
    assert beside.lets == 0
    assert beside.w.push().changes.added == (b"mine",)


@pytest.mark.parametrize("at", range(1, 8))
def test_killed_after_an_answer_it_goes_on_when_it_is_opened_again(beside: Beside, lab: Lab, at: int) -> None:
    def let_in() -> None:
        assert beside.w.push().version is None
        if beside.lets == at:
            raise Killed

    with pytest.raises(Killed):
        beside.pull(let_in)
    directory: Path = beside.w.directory
    beside.w.close()
    beside.w = lab.keep(Workspace.open(directory))
    pushed = beside.w.push()
    assert (pushed.version, pushed.changes.added, pushed.changes.deleted) == (None, (), ())
    beside.w.pull()
    end(beside)
