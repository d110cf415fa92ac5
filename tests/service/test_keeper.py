"""One workspace kept in step, turn by turn, on a clock that the test moves."""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import Lab, flip, tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.checkout.room import no_room
from metasync.errors import GuardError, NoQuorumError, WorkspaceError
from metasync.local import lock, settings
from metasync.local.settings import Settings
from metasync.merge import guard
from metasync.moving import upkeep
from metasync.reports.service import WorkspaceState
from metasync.service import keeper as room
from metasync.service import quiet
from metasync.service.keeper import Keeper
from metasync.service.room_watch import LOOK_S, RoomWatch
from metasync.service.telling.due import Told, due
from metasync.session import peek
from metasync.session.peek import Watchable
from metasync.transfer import wrong_copies
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk

NAMES = ("one", "two", "three")
TURNS_MAX = 3000
FILES = {f"{a}/{b}": f"{a}{b}".encode() for a in "xyz" for b in "0123456789"}


class Polls:
    """Long polls that a test answers: they watch what they are told to, and say what the test says."""

    def __init__(self, _way: Any, told: Callable[[str], None], covers: Callable[[bool], None]) -> None:
        self.told, self.covers = told, covers
        self.backends: tuple[str, ...] = ()
        self.watched: frozenset[str] = frozenset()

    def follow(self, backends: Sequence[Watchable]) -> None:
        self.backends = tuple(one.name for one in backends)

    def begin(self, *names: str) -> None:
        """Watches of these backends work, and no others; "": all that is to be watched."""
        self.watched = frozenset(names)
        self.covers(bool(names))

    def end(self) -> None:
        self.backends = ()
        self.begin()


class Stage:
    """A keeper, and the clock it goes by."""

    def __init__(self, directory: Path) -> None:
        self.now = 1000.0
        self.asleep_s = 0.0
        self.states: list[WorkspaceState] = []
        self.published = 0
        self.turns = 0
        self.keeper = Keeper(
            directory, settings=Settings(), tell=self.states.append, clock=lambda: self.now,
            boot=lambda: self.now + self.asleep_s, wall=lambda: self.now + 1e9 + self.asleep_s, draw=lambda: 0.5,
            long_polls=self._make_polls,
        )  # fmt: skip
        self.keeper.published = self._publish

    def _make_polls(self, *words: Any) -> Any:
        self.polls = Polls(*words)
        return self.polls

    def _publish(self) -> None:
        self.published += 1

    def go_on(self, seconds: float) -> None:
        """Hears of what has happened, and lets so much time pass."""
        if self.keeper._changes._watch is not None:
            self.keeper._changes.catch_up()
        end = self.now + seconds
        while True:
            wake_at = self.keeper.turn()
            self.turns += 1
            assert self.turns < TURNS_MAX, "a busy loop"
            if wake_at >= end:
                self.now = end
                return
            self.now = max(self.now, wake_at)

    def settle(self) -> None:
        """Lets time pass until it is in step."""
        self.go_on(1.0)
        self.go_on(40.0)
        k = self.keeper
        assert self.state.doing == "in step", (self.state, k._batch, k._changes._dirty.__dict__)

    @property
    def state(self) -> WorkspaceState:
        return self.keeper.state()

    @property
    def kinds(self) -> list[str]:
        return [p.kind for p in self.state.problems]


@pytest.fixture
def stages() -> Iterator[Callable[[Path], Stage]]:
    made: list[Stage] = []

    def make(directory: Path) -> Stage:
        made.append(Stage(directory))
        return made[-1]

    yield make
    for stage in made:
        stage.keeper._close()


@pytest.fixture
def w(lab: Lab) -> Workspace:
    made = lab.init(lab.urls(*NAMES))
    write(made.directory, FILES)
    made.push()
    return made


@pytest.fixture
def stage(w: Workspace, stages: Callable[[Path], Stage]) -> Stage:
    made = stages(w.directory)
    made.settle()
    return made


@pytest.fixture
def other(lab: Lab, w: Workspace) -> Workspace:
    return lab.clone(lab.urls(*NAMES))


def version(w: Workspace) -> int:
    return w.log(limit=1)[0].version


def test_it_pushes_what_is_there_when_it_begins(w: Workspace, stages: Callable[[Path], Stage]) -> None:
    write(w.directory, {"new": b"new"})
    stage = stages(w.directory)
    stage.settle()
    assert version(w) == 2
    assert stage.state.version == 2
    assert stage.published == 1


def test_a_change_is_pushed_after_the_quiet_time_and_only_its_directory_is_listed(
    w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(w.directory, {"x/3": b"changed"})
    stage.keeper._changes.catch_up()
    listed: list[int] = []
    names = Disk.names

    def noting(disk: Disk, fd: int) -> list[bytes]:
        listed.append(fd)
        return names(disk, fd)

    monkeypatch.setattr(Disk, "names", noting)
    stage.go_on(4.0)
    assert (version(w), stage.state.doing, stage.state.changed) == (1, "waiting", 1)
    listed.clear()
    stage.go_on(2.0)
    assert version(w) == 2
    assert stage.state.doing == "in step"
    assert len(listed) <= 4, "x, and what lies in .metasync"


def test_a_device_that_pushes_is_heard_of_and_what_it_pushed_is_here(
    w: Workspace, stage: Stage, other: Workspace
) -> None:
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    stage.go_on(200.0)
    assert (w.directory / "y/new").read_bytes() == b"theirs"
    assert stage.state.doing == "in step"
    assert stage.state.pulled_s is not None
    before = version(w)
    stage.go_on(100.0)
    assert version(w) == before, "what the pull wrote is nothing new"


def test_a_hint_has_it_look_at_once(w: Workspace, stage: Stage, other: Workspace) -> None:
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    stage.keeper.hint()
    stage.go_on(2.5)
    assert (w.directory / "y/new").exists()


def test_in_quiet_it_makes_one_request_a_minute(lab: Lab, stage: Stage) -> None:
    stage.go_on(3700.0)
    before = lab.requests()
    stage.go_on(3500.0)
    assert lab.requests() - before <= 60


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


def test_a_file_that_comes_and_goes_is_sent_never(w: Workspace, stage: Stage) -> None:
    write(w.directory, {"x/tmp": b"for a moment"})
    (w.directory / "x/tmp").unlink()
    stage.settle()
    assert version(w) == 1


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


def test_a_full_disk_is_told_and_passes(w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(Workspace, "pull", fail)
        stage.keeper.sync_now()
        stage.go_on(5.0)
        assert stage.kinds == ["disk"]
        assert f"Free some space on the disk of {w.directory}." in stage.state.problems[0].next_step
    stage.go_on(400.0)
    assert stage.kinds == []


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that the folder's disk has left: the last one, for as long as a test says nothing else."""
    told = [1 << 40]
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: told[-1])
    monkeypatch.setattr(room, "free_bytes", lambda *_: told[-1])
    return told


def test_a_file_that_waits_for_room_comes_by_itself_once_there_is_some(
    lab: Lab, w: Workspace, stage: Stage, other: Workspace, free: list[int]
) -> None:
    stage.settle()
    free.append(0)
    write(other.directory, {"large": b"l" * 100_000, "larger": b"r" * 200_000})
    other.push()
    stage.keeper.hint()
    stage.go_on(100.0)
    assert (stage.state.doing, stage.state.why) == ("waiting", "room on this disk")
    (told,) = stage.state.problems
    assert (told.kind, told.text) == ("disk", "large: no room for its 100,000 bytes; so it is with 1 more")
    assert told.next_step.startswith(f"Free some space on the disk of {w.directory}.")
    before, turns = lab.requests(), stage.turns
    stage.go_on(3600.0)
    assert stage.turns - turns < 200
    free.append(90_000)
    stage.go_on(100.0)
    assert not (w.directory / "large").exists()
    assert lab.requests() - before < 100, "looks for news alone"
    free.append(150_000)
    stage.go_on(70.0)
    assert (w.directory / "large").exists()
    assert stage.state.why == "room on this disk"
    free.append(1 << 40)
    stage.go_on(70.0)
    assert (w.directory / "larger").exists()
    assert stage.state.doing == "in step"


def test_a_disk_that_tells_of_room_and_has_none_is_tried_more_and_more_seldom(
    w: Workspace, stage: Stage, other: Workspace, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.settle()
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 0)
    write(other.directory, {"large": b"l" * 100_000})
    other.push()
    tried: list[float] = []
    pull = Workspace.pull
    monkeypatch.setattr(Workspace, "pull", lambda w, **how: (tried.append(stage.now), pull(w, **how))[1])
    stage.keeper.hint()
    stage.go_on(8 * 3600.0)
    assert 6 < len(tried) < 30
    pauses = [b - a for a, b in pairwise(tried)]
    assert pauses[0] < 70.0 < 1000.0 < pauses[-1]
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 1 << 40)
    stage.go_on(3700.0)
    assert stage.state.doing == "in step"


def test_a_file_that_waited_before_a_restart_comes_too(
    w: Workspace, stages: Callable[[Path], Stage], other: Workspace, free: list[int]
) -> None:
    free.append(0)
    write(other.directory, {"large": b"l" * 100_000})
    other.push()
    w.pull()
    w.close()
    stage = stages(w.directory)
    stage.go_on(100.0)
    assert stage.state.why == "room on this disk"
    free.append(1 << 40)
    stage.go_on(70.0)
    assert (stage.keeper.directory / "large").exists()
    assert stage.kinds == []


def test_a_disk_that_cannot_be_asked_has_no_room_yet() -> None:
    def away() -> int:
        raise OSError(errno.ENODEV, "away")

    watch = RoomWatch(away, lambda: 0.5)
    watch.waits(0.0, [no_room(1000), "its name ends in a dot"])
    assert (watch.is_needed, watch.at) == (True, LOOK_S)
    assert not watch.has_room(LOOK_S)
    watch.waits(0.0, ["its name ends in a dot"])
    assert (watch.is_needed, watch.at) == (False, math.inf)


def test_a_pause_rests_all_and_its_end_goes_on(w: Workspace, stage: Stage) -> None:
    settings.pause(w.directory / ".metasync" / settings.FILE, None)
    write(w.directory, {"x/3": b"changed"})
    stage.go_on(100.0)
    assert stage.state.doing == "paused"
    assert stage.state.paused_until_s is not None
    settings.resume(w.directory / ".metasync" / settings.FILE)
    stage.settle()
    assert version(w) == 2


def test_conflicts_are_told_until_they_are_resolved(w: Workspace, stage: Stage, other: Workspace) -> None:
    write(other.directory, {"x/3": b"\0theirs"})
    other.push()
    write(w.directory, {"x/3": b"\0ours"})
    stage.settle()
    assert stage.kinds == ["conflict"]
    with_copy = [p.name for p in (w.directory / "x").iterdir() if "conflict" in p.name]
    assert len(with_copy) == 1
    (w.directory / "x" / with_copy[0]).unlink()
    stage.settle()
    assert stage.kinds == []


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


def test_growing_files_wait_and_others_do_not(w: Workspace, stage: Stage) -> None:
    with (w.directory / "x/download").open("wb") as file:
        for at in range(20):
            file.write(b"a" * 50_000)
            file.flush()
            if at == 2:
                write(w.directory, {"y/note": b"a note"})
            stage.go_on(1.0)
    assert "download" not in {Path(str(e.path)).name for e in w.ls("latest", "x").entries} if version(w) > 1 else True
    stage.go_on(40.0)
    assert (w.read("x/download"), w.read("y/note")) == (b"a" * 1_000_000, b"a note")
    assert version(w) <= 3


def test_it_tells_at_most_four_times_a_second(w: Workspace, stage: Stage) -> None:
    stage.states.clear()
    for _ in range(100):
        stage.keeper._account.tell()
    assert len(stage.states) <= 1


def test_a_listener_that_raises_ends_nothing(w: Workspace, stages: Callable[[Path], Stage]) -> None:
    stage = stages(w.directory)

    def fail(_state: WorkspaceState) -> None:
        raise RuntimeError("a listener's own")

    stage.keeper._account._tell = fail
    stage.settle()


# ---- in its own thread


@pytest.fixture
def running(w: Workspace) -> Iterator[Keeper]:
    made = Keeper(w.directory, settings=Settings(), tell=lambda _state: None)
    made.start()
    yield made
    made.stop()


def test_a_call_runs_in_its_thread_and_what_it_raises_is_raised(w: Workspace, running: Keeper) -> None:
    assert running.call(lambda _: threading.current_thread().name) == running._thread.name
    with pytest.raises(ZeroDivisionError):
        running.call(lambda _: 1 // 0)
    write(w.directory, {"new": b"new"})
    report = running.call(lambda workspace: workspace.push("by a call"))
    assert report.version == 2 or version(w) == 2


def test_a_stopped_keeper_refuses_calls_and_may_be_stopped_again(running: Keeper) -> None:
    running.stop()
    running.stop()
    with pytest.raises(WorkspaceError, match="kept no more"):
        running.call(lambda _: None)
    assert not running._thread.is_alive()


def test_a_call_on_a_folder_that_is_away_is_refused(w: Workspace, running: Keeper) -> None:
    running.call(lambda _: None)
    w.directory.rename(w.directory.parent / "away")
    with pytest.raises(WorkspaceError, match="is not there"):
        running.call(lambda _: None)


def test_a_push_gives_way_to_a_call(w: Workspace, running: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The push looks whether others wait before each chunk; it has had its second at once."""
    running.call(lambda _: None)
    reads, reached, go = Disk.read_next, threading.Event(), threading.Event()
    monkeypatch.setattr(lock, "TURN_S", 0.0)
    monkeypatch.setattr(lock, "LOOK_EVERY_S", 0.0)

    def slow(disk: Disk, fd: int, size: int) -> bytes:
        reached.set()
        assert go.wait(60)
        return reads(disk, fd, size)

    monkeypatch.setattr(Disk, "read_next", slow)
    write(w.directory, {f"new{at}": b"%d" % at for at in range(20)})
    running.sync_now()
    assert reached.wait(60)
    got: list[str] = []
    caller = threading.Thread(target=lambda: got.append(running.call(lambda _: "served")))
    caller.start()
    while not running._has_calls():
        pass
    go.set()
    caller.join(60)
    assert got == ["served"]
    assert running.call(lambda workspace: replace(workspace.push(), down={}).version) in (None, 2)
    assert version(w) == 2


def test_a_pull_gives_way_to_a_call(
    w: Workspace, running: Keeper, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served while the packs that the pull waits for do not come."""
    running.call(lambda _: None)
    write(other.directory, {f"new{at}": os.urandom(300_000) for at in range(8)})
    other.push()
    get, reached, go = FolderBackend.get, threading.Event(), threading.Event()
    monkeypatch.setattr(lock, "TURN_S", 0.0)
    monkeypatch.setattr(lock, "LOOK_EVERY_S", 0.0)

    def slow(backend: FolderBackend, path: str, **words: Any) -> bytes:
        if "/packs/" in path and threading.current_thread() is not threading.main_thread():
            reached.set()
            assert go.wait(60)
        return get(backend, path, **words)

    monkeypatch.setattr(FolderBackend, "get", slow)
    running.hint()
    assert reached.wait(60)
    assert running.call(lambda _: "served") == "served"
    assert not go.is_set()
    go.set()
    running.call(lambda workspace: workspace.pull())
    assert tree_of(w.directory) == tree_of(other.directory)


# --- what is done for the data


@pytest.fixture
def upkeeping(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "BUDGET_S", 20.0)  # ten minutes at a time, never over in a test


def pack_names(lab: Lab, backend: str) -> set[str]:
    return {p.name for p in lab.objects(backend, "packs")}


@pytest.mark.usefixtures("upkeeping")
def test_what_a_change_displaced_is_moved_while_nothing_else_is_to_do(lab: Lab, w: Workspace, stage: Stage) -> None:
    w.set_copies(3)
    assert w.status().moving.packs
    stage.go_on(quiet.EACH_S + 60.0)
    assert not w.status().moving.packs
    assert pack_names(lab, "one") == pack_names(lab, "two") == pack_names(lab, "three")
    with w._session("test") as s:
        assert s.config.prev_config is None, "the trim was agreed"
    assert w.check(read_data=True).problems == () and stage.kinds == []


@pytest.mark.usefixtures("upkeeping")
def test_it_is_not_where_that_is_switched_off(w: Workspace, stage: Stage) -> None:
    w.configure("upkeep", "off")
    w.set_copies(3)
    left = w.status().moving.packs
    stage.go_on(4 * quiet.EACH_S)
    assert w.status().moving.packs == left > 0


@pytest.mark.usefixtures("upkeeping")
def test_while_a_change_waits_to_be_pushed_none_of_it_is_begun(
    w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(upkeep, "_keep_up", lambda *_: begun.append(stage.keeper._is_wanted()) or True)
    w.set_copies(3)
    for at in range(200):
        write(w.directory, {"always": b"%d" % at})
        stage.go_on(3.0)
    assert begun and not any(begun), "only between the pushes"


@pytest.mark.usefixtures("upkeeping")
def test_it_goes_on_as_long_as_something_comes_of_it_and_rests_as_long_as_it_took(
    w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    def some(*_: Any) -> bool:
        begun.append(stage.now)
        stage.now += 20.0
        return len(begun) < 4

    monkeypatch.setattr(upkeep, "_keep_up", some)
    w.set_copies(3)
    stage.go_on(quiet.EACH_S + 400.0)
    assert [round(b - a) for a, b in pairwise(begun)] == [40, 40, 40], "the last one came to nothing: a long rest"


@pytest.mark.usefixtures("upkeeping")
def test_an_error_of_our_own_in_it_is_logged_and_ends_nothing(
    w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upkeep, "_keep_up", lambda *_: 1 // 0)
    w.set_copies(3)
    stage.go_on(quiet.EACH_S + 60.0)
    assert "while data were kept up" in caplog.text
    monkeypatch.undo()
    write(w.directory, {"new": b"1"})
    stage.settle()
    assert stage.kinds == [] and version(w) > 2


@pytest.mark.usefixtures("upkeeping")
def test_it_gives_way_to_a_call(w: Workspace, running: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the copies that it makes do not end."""
    running.call(lambda _: None)
    put, reached, go = FolderBackend.put, threading.Event(), threading.Event()

    def slow(backend: FolderBackend, path: str, data: bytes) -> None:
        if "/packs/" in path:
            reached.set()
            assert go.wait(60)
        put(backend, path, data)

    w.set_copies(3)
    monkeypatch.setattr(FolderBackend, "put", slow)

    def begin(workspace: Workspace) -> None:
        workspace.pull()
        running._quiet.at = 0.0

    running.call(begin)
    assert reached.wait(60)
    assert running.call(lambda _: "served") == "served"
    assert not go.is_set()
    go.set()


def test_constants() -> None:
    assert room.RESCAN_S >= 3600.0, "at most one walk of everything an hour"


def spoil(lab: Lab, w: Workspace) -> str:
    """Alters a copy on a backend, and notes it as a command that met it does. -> the name of the backend."""
    with w._session("test") as s:
        place, pack = next((s.transfer.order(p.name)[0], p) for p in s.base().index.packs().values())
    flip(next(p for p in lab.objects(place.name, "packs") if p.name == pack.name.hex()))
    wrong_copies.note_bad(w._db, [(pack.name, place.backend_id)], 123_000_000_000)
    wrong_copies.note(w._db, [pack.name])
    return place.name


def told_of_copies(stage: Stage, name: str) -> str:
    """The next step of the one problem there is, which is told once."""
    (found,) = stage.state.problems
    assert (found.key, found.kind, found.since_s, found.blocks) == (f"copies:{name}", "damage", 123.0, False)
    assert found.text == f"the backend {name}: a copy is altered or gone there"
    now_s = stage.now + 1e9
    (notice,) = due(stage.state.problems, {}, now_s).notices
    assert due(stage.state.problems, {key: Told(now_s) for key in notice.keys}, now_s).notices == ()
    return found.next_step


@pytest.mark.usefixtures("upkeeping")
def test_a_bad_copy_is_a_problem_until_it_is_made_good(lab: Lab, w: Workspace, stage: Stage) -> None:
    stage.settle()
    name = spoil(lab, w)
    stage.go_on(100.0)
    assert "by itself" in told_of_copies(stage, name) and "within minutes" in told_of_copies(stage, name)
    stage.go_on(quiet.EACH_S)
    assert stage.state.problems == ()
    assert w.check(read_data=True).problems == ()


@pytest.mark.usefixtures("upkeeping")
def test_what_could_not_be_made_good_is_told_with_when_it_is_tried_again(
    lab: Lab, w: Workspace, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.settle()
    name, at_s = spoil(lab, w), int(stage.now + 1e9) + 5000
    monkeypatch.setattr(quiet, "mends_at_s", lambda _: at_s)
    stage.go_on(100.0)
    assert time.strftime("after %H:%M", time.localtime(at_s)) in told_of_copies(stage, name)


def test_what_is_not_made_good_by_itself_is_told_with_the_command(lab: Lab, w: Workspace, stage: Stage) -> None:
    stage.settle()
    w.configure("upkeep", "off")
    name = spoil(lab, w)
    stage.go_on(100.0)
    assert told_of_copies(stage, name) == "Run: metasync check --repair"


@pytest.mark.usefixtures("upkeeping")
def test_where_no_other_copy_is_known_it_is_the_command_as_well(lab: Lab, w: Workspace, stage: Stage) -> None:
    stage.settle()
    name = spoil(lab, w)
    wrong_copies.drop(w._db, wrong_copies.load(w._db))
    stage.go_on(100.0)
    assert told_of_copies(stage, name) == "Run: metasync check --repair"


class Bell:
    """In place of what the keeper's thread waits at: counts how often it would have been woken."""

    def __init__(self, inner: threading.Condition) -> None:
        self.inner, self.rung = inner, 0

    def __enter__(self) -> None:
        self.inner.acquire()

    def __exit__(self, *_: object) -> None:
        self.inner.release()

    def notify_all(self) -> None:
        self.rung += 1


def test_a_change_after_sizes_were_looked_at_has_them_looked_at_again(w: Workspace, stage: Stage) -> None:
    """A file that is made, looked at while it is empty, and written then did not rest when its push was due."""
    stage.settle()
    bell: Any = Bell(stage.keeper._wakes)
    stage.keeper._wakes = bell
    began = version(w)

    def change(data: bytes) -> int:
        """How often a change wakes the keeper."""
        before = bell.rung
        with (w.directory / "new").open("ab") as file:
            file.write(data)
        stage.keeper._changes.catch_up()
        return int(bell.rung - before)

    assert change(b"") >= 1
    stage.keeper.turn()
    assert change(b"x" * 1000) == 1, "its size is known no more"
    assert change(b"x" * 1000) == 0, "a turn comes anyway"
    stage.go_on(0.9)
    assert change(b"x" * 1000) == 0, "and looks at sizes a second after the look before"
    stage.go_on(5.1)
    assert version(w) == began + 1, "it rested when its push was due"


def test_what_wakes_a_keeper_during_its_turn_has_another_turn_come(stage: Stage) -> None:
    stage.settle()
    assert not stage.keeper._is_woken
    stage.keeper.hint()
    assert stage.keeper._is_woken
    stage.keeper.turn()
    assert not stage.keeper._is_woken


def test_too_many_changes_to_look_at_wake_nobody_again(w: Workspace, stage: Stage) -> None:
    stage.settle()
    bell: Any = Bell(stage.keeper._wakes)
    stage.keeper._wakes = bell
    stage.keeper._changes.everything()
    stage.keeper.turn()
    before = bell.rung
    stage.keeper._changes.everything()
    assert bell.rung == before
