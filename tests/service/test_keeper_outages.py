"""A keeper outlives backends, networks and folders that are away, sleep, clocks that are set, and errors of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from keeper_kit import NAMES, Stage, version
from workspace_kit import Lab, tree_of, write

from metasync.errors import DamagedError, NoQuorumError
from metasync.session import peek
from metasync.workspace import Workspace


def test_a_quorum_that_is_lost_is_waited_for_with_few_attempts_and_told(lab: Lab, w: Workspace, stage: Stage) -> None:
    lab.hurry(0.1, proposing=True)
    for name in NAMES[:2]:
        lab.faults[name].down = True
    write(w.directory, {"x/3": b"changed"})
    stage.keeper._changes.catch_up()
    turns = stage.turns
    stage.go_on(3600.0)
    assert "quorum" in stage.kinds
    assert stage.state.problems[0].blocks
    assert stage.turns - turns < 500
    assert stage.keeper._batch.pauses.failures < 20
    for name in NAMES[:2]:
        lab.faults[name].down = False
    stage.go_on(400.0)
    assert version(w) == 2
    assert stage.kinds == []


def test_one_backend_away_is_told_and_passes(lab: Lab, w: Workspace, stage: Stage) -> None:
    lab.faults["one"].down = True
    for n in range(20):  # a quorum of the others may be there before its refusal is
        write(w.directory, {"x/3": b"changed %d" % n})
        stage.settle()
        assert version(w) == 2 + n
        if "backend" in stage.kinds:
            break
    assert "backend" in stage.kinds
    assert not any(p.blocks for p in stage.state.problems)
    [told] = stage.state.problems
    assert "cannot " not in told.text and "left alone" not in told.text
    lab.faults["one"].down = False
    stage.go_on(300.0)
    assert stage.kinds == [], "it was its turn to be asked"


def test_a_backend_that_is_back_is_told_so_in_minutes_where_watches_make_looks_rare(
    lab: Lab, w: Workspace, stage: Stage
) -> None:
    stage.settle()
    lab.faults["one"].down = True
    for n in range(20):
        write(w.directory, {"x/3": b"changed %d" % n})
        stage.settle()
        if "backend" in stage.kinds:
            break
    stage.polls.begin("two")
    stage.go_on(1000.0)
    assert stage.kinds == ["backend"]
    lab.faults["one"].down = False
    stage.go_on(2 * 300.0)
    assert stage.kinds == []
    stage.go_on(300.0)
    assert stage.keeper._hearing.due - stage.now > 1000.0, "looks are rare again"


def test_a_folder_that_is_away_is_waited_for_and_nothing_is_deleted(
    w: Workspace, stage: Stage, other: Workspace
) -> None:
    away = w.directory.parent / "unmounted"
    w.directory.rename(away)
    w.directory.mkdir()  # its mount point
    stage.go_on(3600.0)
    assert stage.kinds == ["folder"]
    assert stage.state.doing == "stuck"
    w.directory.rmdir()
    away.rename(w.directory)
    write(w.directory, {"x/3": b"changed meanwhile"})
    stage.settle()
    assert stage.kinds == []
    other.pull()
    assert tree_of(other.directory) == tree_of(w.directory)


def test_another_folder_in_its_place_is_opened_anew(w: Workspace, stage: Stage) -> None:
    before = stage.keeper._workspace
    away = w.directory.parent / "away"
    w.directory.rename(away)
    shutil.copytree(away, w.directory, symlinks=True)
    stage.go_on(100.0)
    assert stage.keeper._workspace is not before


def test_local_state_that_was_exchanged_beside_it_is_opened_anew(lab: Lab, w: Workspace, stage: Stage) -> None:
    """It was stuck for ever: what it held open was another file than what its folder has."""
    state = w.directory / ".metasync"
    shutil.copytree(state, w.directory.parent / "backup")
    write(w.directory, {"x/3": b"changed"})
    stage.settle()
    assert version(w) == 2
    state.rename(w.directory.parent / "away")
    (w.directory.parent / "backup").rename(state)
    write(w.directory, {"x/4": b"changed once more"})
    stage.settle()
    assert stage.kinds == []
    there = lab.clone(lab.urls(*NAMES))
    assert tree_of(there.directory) == tree_of(w.directory)


def test_a_version_that_cannot_be_read_is_tried_again_when_others_have_said_something(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stuck for the rest of an hour though `check --repair` elsewhere had brought back what was lost."""
    tries: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        tries.append("")
        raise DamagedError("version 2 cannot be read")

    write(other.directory, {"y/new": b"theirs"})
    other.push()
    with monkeypatch.context() as m:
        m.setattr(Workspace, "push", fail)
        m.setattr(Workspace, "pull", fail)
        write(w.directory, {"x/3": b"changed"})
        stage.keeper.hint()
        stage.go_on(100.0)
        assert (stage.kinds, stage.state.doing) == (["damage"], "stuck")
        assert len(tries) == 2
        stage.go_on(1000.0)
        assert len(tries) == 2, "nothing new: once an hour"
    stage.keeper.hint()
    stage.go_on(400.0)
    assert (stage.kinds, stage.state.doing) == ([], "in step")
    other.pull()
    assert tree_of(other.directory) == tree_of(w.directory)


def test_an_error_of_our_own_is_told_and_ends_nothing(
    w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of the program")

    with monkeypatch.context() as m:
        m.setattr(Workspace, "push", fail)
        write(w.directory, {"x/3": b"changed"})
        stage.keeper._changes.catch_up()
        stage.go_on(100.0)
        assert stage.kinds == ["other"]
        assert "a fault of the program" in stage.state.problems[0].text
    stage.go_on(400.0)
    assert (version(w), stage.kinds) == (2, [])


def test_after_a_sleep_it_looks_at_once_and_watches_anew(w: Workspace, stage: Stage, other: Workspace) -> None:
    stage.keeper.hint()
    stage.go_on(5.0)
    stage.polls.begin("one")
    stage.go_on(10.0)
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    stage.asleep_s += 8 * 3600.0
    stage.go_on(0.1)
    assert (w.directory / "y/new").exists()
    assert stage.polls.backends
    assert stage.polls.watched == frozenset(), "the line may be dead, and nobody says so"
    turns = stage.turns
    stage.go_on(60.0)
    assert stage.turns - turns < 20


class Net:
    """The network as pushes, pulls and looks at one backend find it. `tries`: how many there were while it was down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_down, self.tries = False, 0
        for holder, name in ((Workspace, "push"), (Workspace, "pull"), (peek, "shows_news")):
            monkeypatch.setattr(holder, name, self._through(getattr(holder, name)))

    def _through(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **words: Any) -> Any:
            if self.is_down:
                self.tries += 1
                raise NoQuorumError("no backend answers")
            return real(*args, **words)

        return call


def test_another_network_is_waited_for_with_few_attempts_and_told(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All backends refuse, then come back. Nothing changes here meanwhile."""
    net = Net(monkeypatch)
    stage.keeper.hint()
    stage.go_on(700.0)
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    net.is_down = True
    turns = stage.turns
    stage.go_on(400.0)
    assert stage.kinds == ["quorum"], "each backend was asked in turn, then a quorum"
    stage.go_on(6 * 3600.0)
    assert stage.turns - turns < 600
    assert 10 < net.tries < 6 * 30, "a look and a push each five minutes"
    net.is_down = False
    stage.go_on(400.0)
    assert (w.directory / "y/new").exists()
    assert stage.kinds == []


def test_a_sleep_ends_the_pauses_after_failures(w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(monkeypatch)
    net.is_down = True
    write(w.directory, {"x/3": b"changed"})
    stage.keeper._changes.catch_up()
    stage.go_on(3600.0)
    net.is_down = False
    stage.asleep_s += 60.0
    stage.go_on(1.0)
    assert version(w) == 2


@pytest.mark.parametrize("back_s", [-86_400.0 * 365, 86_400.0 * 365])
def test_a_clock_on_the_wall_that_is_set_changes_nothing(w: Workspace, stage: Stage, back_s: float) -> None:
    stage.keeper._wall = lambda: stage.now + 1e9 + back_s
    turns = stage.turns
    stage.go_on(600.0)
    assert stage.turns - turns < 100
    write(w.directory, {"x/3": b"changed"})
    stage.settle()
    assert version(w) == 2


def test_a_process_that_was_stopped_does_what_is_due_once(lab: Lab, w: Workspace, stage: Stage) -> None:
    """SIGSTOP: all clocks go on, and many looks were missed."""
    before, turns = lab.requests(), stage.turns
    write(w.directory, {"x/3": b"changed"})
    stage.keeper._changes.catch_up()
    stage.now += 8 * 3600.0
    stage.go_on(5.0)
    assert version(w) == 2
    assert stage.turns - turns < 20
    assert lab.requests() - before < 100, "a walk of everything, a push, a look"
