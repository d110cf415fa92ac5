"""What a keeper tells of backends that are away, and of those that moved data since."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from metasync.errors import NO_WAY, RevokedError
from metasync.events import Transferred
from metasync.local.state_keys import Conflict
from metasync.reports.service import WorkspaceState
from metasync.service.account import Account
from metasync.service.problems import of_error

AWAY = {"one": "one: cannot connect"}


class Told:
    """An account on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.account = Account(Path("/w"), lambda _: None, lambda: self.now, lambda: self.now)
        for name in ("one", "two"):
            self.account.hear(Transferred(name, "up", 100, 0.1))
        self.account.down(AWAY)
        self.account.set("in step")

    @property
    def state(self) -> WorkspaceState:
        return self.account.state

    def away(self) -> dict[str, tuple[float | None, float]]:
        """Backends that are told to be away: since when by their line, and by their problem."""
        lines = {line.backend: line.since_s for line in self.state.lines if line.away}
        problems = {p.key.removeprefix("backend:"): p.since_s for p in self.state.problems}
        assert lines.keys() == problems.keys()
        return {name: (lines[name], problems[name]) for name in lines}


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_backend_that_moves_data_is_away_no_more_while_the_operation_goes_on(told: Told) -> None:
    assert told.away() == {"one": (1000.0, 1000.0)}
    told.now = 1500.0
    told.account.hear(Transferred("two", "up", 100, 0.1))
    assert told.away() == {"one": (1000.0, 1000.0)}, "another one answered"
    told.account.hear(Transferred("one", "up", 100, 0.1))
    assert told.away() == {}
    told.account.down({})
    told.account.set("in step")
    assert told.away() == {}


def test_one_that_answered_a_part_of_an_operation_alone_is_away_for_as_long_as_before(told: Told) -> None:
    told.now = 1500.0
    told.account.hear(Transferred("one", "down", 100, 0.1))
    told.account.down(AWAY)
    told.account.set("in step")
    assert told.away() == {"one": (1000.0, 1000.0)}


def test_one_that_was_back_for_a_whole_operation_is_away_anew(told: Told) -> None:
    told.account.hear(Transferred("one", "down", 100, 0.1))
    told.account.down({})
    told.now = 1500.0
    told.account.down(AWAY)
    told.account.set("in step")
    assert told.away() == {"one": (1500.0, 1500.0)}


def test_the_command_for_a_conflict_runs_nothing_that_a_file_is_called(tmp_path: Path) -> None:
    """Its name is another device's."""
    name, folder = "a; touch gone $(b) 'c'", tmp_path / "my files"
    folder.mkdir()
    (folder / "copy").touch()
    account = Account(folder, lambda _: None, lambda: 0.0, lambda: 0.0)
    account.conflicts([Conflict(os.fsencode(name), b"copy", "edited", 1)])
    account.set("in step")
    (problem,) = account.state.problems
    command = problem.next_step.removeprefix("Run: ").partition(" (or use")[0]
    assert shlex.split(command) == ["metasync", "-C", str(folder), "resolve", name]


def test_a_backend_that_is_not_linked_here_is_told_with_the_command_that_links_it() -> None:
    account = Account(Path("/my docs"), lambda _: None, lambda: 1.0, lambda: 1.0)
    account.down({"d": NO_WAY, "one": "one: cannot connect"})
    linked, away = account.problems
    assert (linked.text, linked.next_step) == (
        "the backend d is not linked here",
        "Run: metasync -C '/my docs' backend link d URL",
    )
    assert away.next_step.startswith("Nothing, if it is back soon")


def test_what_a_push_and_a_pull_ended_with_alike_is_told_once(told: Told) -> None:
    told.account.down({})
    for verb in ("push", "pull"):
        told.account.failed(verb, of_error(verb, RevokedError("this device was revoked"), 1000.0))
    told.account.set("stuck")
    assert [p.text for p in told.state.problems] == ["this device was revoked"]
    told.account.passed("pull")
    told.account.set("stuck")
    assert [p.text for p in told.state.problems] == ["this device was revoked"], "the other one still stands"
    told.account.passed("push")
    told.account.set("in step")
    assert told.state.problems == ()
