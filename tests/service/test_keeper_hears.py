"""A keeper hears of news from watches and a broker, and asks the backends seldom while they work."""

from __future__ import annotations

from typing import Any

import pytest
from keeper_kit import NAMES, Stage
from workspace_kit import Lab, write

from metasync.service.telling.due import due
from metasync.workspace import Workspace


def test_where_a_watch_tells_of_news_the_backends_are_hardly_asked(lab: Lab, stage: Stage) -> None:
    assert stage.polls.backends == ("one", "three", "two")
    stage.polls.begin("one")
    stage.go_on(7 * 3600.0)
    before = lab.requests()
    stage.go_on(24 * 3600.0)
    assert lab.requests() - before <= 24 * 2.5, "beside 7.5 an hour for the watch itself"


def test_where_a_broker_tells_of_news_the_backends_are_hardly_asked(lab: Lab, stage: Stage) -> None:
    stage.keeper.covered("broker", True)
    stage.go_on(7 * 3600.0)
    before = lab.requests()
    stage.go_on(24 * 3600.0)
    assert lab.requests() - before <= 24 * 10


def test_a_broker_that_is_away_is_told_and_blocks_nothing(stage: Stage) -> None:
    assert stage.state.has_broker is None
    stage.keeper.covered("broker", False, "host:5672: refused")
    stage.go_on(1.0)
    [problem] = stage.state.problems
    assert (problem.key, problem.text, problem.blocks) == ("broker", "the broker is away: host:5672: refused", False)
    assert (stage.state.has_broker, stage.state.doing) == (False, "in step")
    assert due(stage.state.problems, {}, problem.since_s + 1e6).notices == (), "it costs nothing, and waits for nobody"
    stage.keeper.covered("broker", True)
    stage.go_on(1.0)
    assert (stage.state.has_broker, stage.state.problems) == (True, ())


def test_a_broker_that_is_lost_has_the_backends_asked_again(
    w: Workspace, stage: Stage, other: Workspace, lab: Lab
) -> None:
    stage.keeper.covered("broker", True)
    stage.go_on(3800.0)
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    other.close()  # what its push left under way counts before
    before = lab.requests()
    stage.go_on(60.0)
    assert lab.requests() == before, "nobody told of it"
    stage.keeper.covered("broker", False)
    stage.go_on(200.0)
    assert (w.directory / "y/new").exists()


def test_what_a_watch_tells_of_is_asked_of_its_backend_and_pulled_by_a_quorum(
    w: Workspace, stage: Stage, other: Workspace, lab: Lab
) -> None:
    stage.keeper.hint()  # the other device has come
    stage.go_on(5.0)
    stage.polls.begin("two")
    before = [lab.requests(name) for name in NAMES]
    stage.polls.told("two")
    stage.go_on(2.0)
    made = [lab.requests(name) - count for name, count in zip(NAMES, before, strict=True)]
    assert made == [0, 1, 0], "nothing was new: a hint costs one request"
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    stage.polls.told("two")
    stage.go_on(2.0)
    assert (w.directory / "y/new").exists()


def test_a_hint_that_comes_during_a_look_is_not_lost(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look may have read the log before the entry came."""
    stage.polls.begin("two")
    pull = Workspace.pull

    def late(workspace: Workspace, **words: Any) -> Any:
        report = pull(workspace, **words)
        if workspace.directory == w.directory and not (other.directory / "y/new").exists():
            write(other.directory, {"y/new": b"theirs"})
            other.push()
            stage.polls.told("two")
        return report

    monkeypatch.setattr(Workspace, "pull", late)
    stage.keeper.hint()
    stage.go_on(5.0)
    assert (w.directory / "y/new").exists()


def test_a_pause_ends_the_watches_and_its_end_begins_them(w: Workspace, stage: Stage) -> None:
    stage.keeper.pause(None)
    stage.go_on(10.0)
    assert stage.polls.backends == ()
    stage.keeper.resume()
    stage.go_on(10.0)
    assert stage.polls.backends == ("one", "three", "two")
