"""One workspace kept in step, turn by turn, on a clock that the test moves: what is pushed and pulled, and when."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from keeper_kit import Stage, version
from workspace_kit import Lab, write

from metasync.local import settings
from metasync.reports.service import WorkspaceState
from metasync.service import keeper as room
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk


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


def test_a_file_that_comes_and_goes_is_sent_never(w: Workspace, stage: Stage) -> None:
    write(w.directory, {"x/tmp": b"for a moment"})
    (w.directory / "x/tmp").unlink()
    stage.settle()
    assert version(w) == 1


def test_a_pause_rests_all_and_its_end_goes_on(w: Workspace, stage: Stage) -> None:
    settings.pause(w.directory / ".metasync" / settings.FILE, None)
    write(w.directory, {"x/3": b"changed"})
    stage.go_on(100.0)
    assert stage.state.doing == "paused"
    assert stage.state.paused_until_s is not None
    settings.resume(w.directory / ".metasync" / settings.FILE)
    stage.settle()
    assert version(w) == 2


def test_a_pause_and_its_end_are_told_at_once(stage: Stage) -> None:
    """Whoever asked for it is shown the state that comes of it, before the keeper's next turn."""
    stage.keeper.pause(None)
    assert (stage.state.doing, stage.state.paused_until_s) == ("paused", math.inf)
    stage.keeper.resume()
    assert (stage.state.doing, stage.state.paused_until_s) == ("looking", None)
    stage.settle()


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


def test_constants() -> None:
    assert room.RESCAN_S >= 3600.0, "at most one walk of everything an hour"


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
