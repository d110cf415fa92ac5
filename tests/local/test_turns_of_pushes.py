"""A long push lets other operations of its folder go first, and goes on where it was."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest
from turns_kit import SMALL, SOON_S, Clock, Gate, Running, two_devices
from workspace_kit import Lab, tree_of, write

from metasync.events import Event, Notice, Progress
from metasync.local.lock import LOOK_EVERY_S, TURN_S, GiveWay, Turns, WorkspaceLock
from metasync.session.session import Session
from metasync.sync.push import _Push
from metasync.workspace import Workspace


@pytest.mark.long
def test_a_pull_is_not_held_up_by_a_long_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, other = two_devices(lab)
    write(w.directory, {f"f{i:02}": os.urandom(3_000_000) for i in range(25)})
    directory = w.directory
    w.close()
    gate = Gate(monkeypatch, free=14)
    told: list[Event] = []
    pushing = lab.keep(Workspace.open(directory, on_event=told.append))
    push = Running(pushing.push)
    assert gate.full.wait(SOON_S)
    write(other.directory, {"theirs": b"small"})
    theirs = other.push().version
    with Workspace.open(directory) as second:
        report = second.pull()
    assert report.changes.added == (b"theirs",)
    assert (directory / "theirs").read_bytes() == b"small"
    assert push.is_alive()
    assert not gate.open.is_set(), "the pull has ended while the packs of the push stand still"
    gate.open.set()
    pushed = push.end()
    assert (pushed.version, pushed.under_replicated) == ((theirs or 0) + 1, 0)
    texts = [e.text for e in told if isinstance(e, Notice)]
    assert any("goes first" in t for t in texts)
    assert any(t.startswith("going on with ") for t in texts)
    large = sum(sum(p.stat().st_size > SMALL for p in lab.objects(n, "packs")) for n in "abc")
    assert gate.put <= large + 2, "what was under way when it gave way counts"
    other.pull()
    assert tree_of(other.directory) == tree_of(directory)
    assert other.check(read_data=True).problems == ()


@pytest.mark.long
def test_what_was_read_in_one_turn_is_not_read_in_the_next(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = two_devices(lab)
    write(w.directory, {f"f{i:02}": os.urandom(3_000_000) for i in range(25)})
    directory = w.directory
    w.close()
    gate = Gate(monkeypatch, free=14)
    told: list[Event] = []
    push = Running(lab.keep(Workspace.open(directory, on_event=told.append)).push)
    assert gate.full.wait(SOON_S)
    WorkspaceLock(directory / ".metasync").acquire("anything").release()
    gate.open.set()
    assert push.end().version is not None
    begun = [e.total for e in told if isinstance(e, Progress) and e.phase == "upload" and e.done == 0]
    assert begun[0] == 75_000_000
    assert 0 < (begun[1] or 0) < 60_000_000


@pytest.mark.long
def test_what_changes_while_a_push_gives_way_is_pushed_as_it_is_then(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the first turn has read are changed, removed, and replaced by the pull that went first."""
    w, other = two_devices(lab)
    contents = {f"f{i:02}": os.urandom(3_000_000) for i in range(25)}
    write(w.directory, contents)
    directory = w.directory
    w.close()
    gate = Gate(monkeypatch, free=14)
    pushing = lab.keep(Workspace.open(directory))
    push = Running(pushing.push)
    assert gate.full.wait(SOON_S)
    write(other.directory, {"f00": b"theirs"})
    theirs = other.push().version
    with Workspace.open(directory) as second:
        conflicts = second.pull().conflicts
    assert len(conflicts) == 1
    write(directory, {"f01": b"changed"})
    (directory / "f02").unlink()
    gate.open.set()
    assert push.end().version == (theirs or 0) + 1
    other.pull()
    tree = tree_of(other.directory)
    assert tree == tree_of(directory)
    assert (other.directory / "f01").read_bytes() == b"changed"
    assert not (other.directory / "f02").exists()
    both = {(other.directory / "f00").read_bytes(), (other.directory / os.fsdecode(conflicts[0].kept)).read_bytes()}
    assert both == {b"theirs", contents["f00"]}


@pytest.mark.long
def test_a_push_does_not_give_way_to_a_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = two_devices(lab)
    write(w.directory, {f"f{i:02}": os.urandom(3_000_000) for i in range(25)})
    gate = Gate(monkeypatch, free=14)
    told: list[Event] = []
    waits = threading.Event()
    directory = w.directory
    w.close()
    first = lab.keep(Workspace.open(directory, on_event=told.append))
    push = Running(first.push)
    assert gate.full.wait(SOON_S)
    second = lab.keep(Workspace.open(directory, on_event=lambda _: waits.set()))
    later = Running(second.push)
    assert waits.wait(SOON_S)
    time.sleep(TURN_S + 2 * LOOK_EVERY_S)
    gate.open.set()
    assert push.end().version is not None
    assert later.end().version is None, "there was nothing left to push"
    assert not any("goes first" in e.text for e in told if isinstance(e, Notice))


def test_a_push_that_proposes_gives_way_to_nobody() -> None:
    clock = Clock()
    idle = SimpleNamespace(entropy=bytes, db=SimpleNamespace(get=lambda _: None))
    attempts = _Push(cast(Session, idle), "", force=False, least=None, turns=Turns().begin(lambda: True, clock))
    attempts.look()
    clock.now += 2 * TURN_S
    attempts.proposing = True
    attempts.look()
    attempts.proposing = False
    with pytest.raises(GiveWay):
        attempts.look()
