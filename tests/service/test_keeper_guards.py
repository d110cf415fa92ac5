"""A keeper asks before it deletes much, at once or slowly, here or for others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from keeper_kit import FILES, Stage, version
from workspace_kit import write

from metasync.errors import GuardError
from metasync.merge import guard
from metasync.workspace import Workspace


def test_a_guard_asks_and_does_what_the_user_allows_once(w: Workspace, stage: Stage) -> None:
    for name in ("x", "y"):
        shutil.rmtree(w.directory / name)
    stage.keeper._changes.catch_up()
    stage.go_on(60.0)
    assert stage.state.doing == "stuck"
    [problem] = stage.state.problems
    assert (problem.kind, problem.asks, problem.blocks) == ("guard", "push", True)
    assert version(w) == 1
    stage.keeper.answer(problem.key, False)
    stage.go_on(600.0)
    assert version(w) == 1
    assert [p.since_s for p in stage.state.problems] == [problem.since_s]
    stage.keeper.answer("another", True)
    stage.go_on(600.0)
    assert version(w) == 1
    stage.keeper.answer(problem.key, True)
    stage.go_on(10.0)
    assert version(w) == 2
    assert stage.state.problems == ()
    shutil.rmtree(w.directory / "z")
    with pytest.raises(GuardError):
        w.push()


def test_files_that_come_back_end_what_a_guard_asks(w: Workspace, stage: Stage) -> None:
    for name in ("x", "y"):
        (w.directory / name).rename(w.directory.parent / name)
    stage.keeper._changes.catch_up()
    stage.go_on(60.0)
    assert stage.kinds == ["guard"]
    for name in ("x", "y"):
        (w.directory.parent / name).rename(w.directory / name)
    stage.keeper._changes.catch_up()
    stage.go_on(400.0)
    assert (version(w), stage.kinds) == (1, [])


NAMED = sorted(FILES)


def delete_slowly(stage: Stage, directory: Path, names: Sequence[str]) -> None:
    """One each minute: each is a push of its own."""
    for name in names:
        (directory / name).unlink()
        stage.go_on(60.0)


def test_a_slow_deletion_is_asked_about_as_one_at_once_and_counts_anew_when_allowed(
    w: Workspace, stage: Stage, stages: Callable[[Path], Stage]
) -> None:
    delete_slowly(stage, w.directory, NAMED[:15])
    assert (stage.state.problems, version(w)) == ((), 16)
    delete_slowly(stage, w.directory, NAMED[15:16])
    [problem] = stage.state.problems
    assert (problem.kind, problem.asks, problem.blocks) == ("guard", "push", True)
    assert "would delete 1 file for all devices, after which 16 of 30 are gone within an hour" in problem.text
    stage.go_on(2 * guard.SPAN_S)
    assert (stage.kinds, version(w)) == (["guard"], 16), "it does not go on by itself when the hour is over"
    stage.keeper._close()
    again = stages(w.directory)
    again.now = stage.now + guard.SPAN_S
    again.go_on(60.0)
    assert (again.kinds, version(w)) == (["guard"], 16), "nor after a restart"
    again.keeper.answer(problem.key, True)
    again.go_on(60.0)
    assert (again.kinds, version(w)) == ([], 17)
    delete_slowly(again, w.directory, NAMED[16:18])
    assert (again.kinds, version(w)) == ([], 19)


def test_what_went_an_hour_ago_counts_no_more(w: Workspace, stage: Stage) -> None:
    delete_slowly(stage, w.directory, NAMED[:14])
    stage.go_on(guard.SPAN_S)
    delete_slowly(stage, w.directory, NAMED[14:20])
    assert (stage.state.problems, version(w)) == ((), 21)


def test_what_went_before_a_restart_counts(w: Workspace, stage: Stage, stages: Callable[[Path], Stage]) -> None:
    delete_slowly(stage, w.directory, NAMED[:15])
    stage.keeper._close()
    again = stages(w.directory)
    again.now = stage.now
    again.settle()
    delete_slowly(again, w.directory, NAMED[15:16])
    assert again.kinds == ["guard"]


def test_files_that_come_stand_for_those_that_went(w: Workspace, stage: Stage) -> None:
    for at, name in enumerate(NAMED):
        (w.directory / name).unlink()
        write(w.directory, {f"{name}-new": b"%d" % at})
        stage.go_on(60.0)
    assert stage.state.problems == ()


def test_after_files_came_back_a_slow_deletion_counts_what_is_gone(w: Workspace, stage: Stage) -> None:
    delete_slowly(stage, w.directory, NAMED[:16])
    assert stage.kinds == ["guard"]
    write(w.directory, {name: FILES[name] for name in NAMED[:16]})
    stage.go_on(600.0)
    assert stage.kinds == []
    delete_slowly(stage, w.directory, NAMED[:15])
    assert stage.kinds == []


def test_a_slow_deletion_by_others_is_asked_about_too(w: Workspace, stage: Stage, other: Workspace) -> None:
    for name in NAMED[:16]:
        (other.directory / name).unlink()
        other.push()
        stage.keeper.hint()
        stage.go_on(60.0)
    [problem] = stage.state.problems
    assert (problem.kind, problem.asks) == ("guard", "pull")
    assert "would delete 1 file here, after which 16 of 30 are gone within an hour" in problem.text
    assert (w.directory / NAMED[15]).exists()
    stage.go_on(2 * guard.SPAN_S)
    assert (w.directory / NAMED[15]).exists()
    stage.keeper.answer(problem.key, True)
    stage.go_on(60.0)
    assert not (w.directory / NAMED[15]).exists()
    assert stage.state.problems == ()


def test_what_somebody_asks_for_is_not_held_against_the_last_hour(w: Workspace, stage: Stage) -> None:
    def ask(do: Callable[[Workspace], Any]) -> Any:
        asked: Future[Any] = Future()
        stage.keeper._calls.append((do, asked))
        stage.go_on(1.0)
        return asked.result(0)

    delete_slowly(stage, w.directory, NAMED[:15])
    (w.directory / NAMED[15]).unlink()
    assert ask(lambda workspace: workspace.push()).version == 17
    delete_slowly(stage, w.directory, NAMED[16:17])
    assert stage.kinds == ["guard"], "it counts all the same"
    assert ask(lambda workspace: workspace.push(force=True)).version == 18
    delete_slowly(stage, w.directory, NAMED[17:19])
    assert stage.kinds == [], "what was forced is wanted"
