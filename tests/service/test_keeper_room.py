"""A keeper on a disk without room: it tells so, waits, and tries again once there is some."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from keeper_kit import Stage
from workspace_kit import Lab, write

from metasync.checkout.room import no_room
from metasync.service import keeper as room
from metasync.service.room_watch import LOOK_S, RoomWatch
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk


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
