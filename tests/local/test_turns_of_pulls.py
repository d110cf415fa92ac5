"""A long pull lets other operations of its folder go first while its packs stand still."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from turns_kit import SOON_S, Running, pulling, two_devices
from workspace_kit import Lab, tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.checkout.checkout import Checkout
from metasync.events import Notice, Progress
from metasync.local import lock
from metasync.local.lock import GiveWay, Turns, WorkspaceLock
from metasync.workspace import Workspace
from metasync.worktree import merge_walk


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation has had its time for itself when it begins."""
    monkeypatch.setattr(lock, "TURN_S", 0.0)
    monkeypatch.setattr(lock, "LOOK_EVERY_S", 0.0)


class Tap:
    """Holds all but the first packs that are fetched until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.open, self.held = threading.Event(), threading.Event()
        self.free = free
        self.got: list[str] = []
        self.lock = threading.Lock()
        real = FolderBackend.get

        def get(backend: FolderBackend, path: str, **words: Any) -> bytes:
            if "/packs/" in path:
                with self.lock:
                    self.free -= 1
                    is_held = self.free < 0
                if is_held:
                    self.held.set()
                    assert self.open.wait(SOON_S)
                self.got.append(path)
            return real(backend, path, **words)

        monkeypatch.setattr(FolderBackend, "get", get)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("what", "free"), [("pull", 0), ("pull", 1), ("push", 0)])
@pytest.mark.long
def test_what_fetches_much_gives_way_while_its_packs_stand_still(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, what: str, free: int
) -> None:
    w, other, told = pulling(lab, push=what == "push")
    tap = Tap(monkeypatch, free)
    running = Running(getattr(w, what))
    assert tap.held.wait(SOON_S)
    with WorkspaceLock(w.directory / ".metasync").acquire("anything"):
        assert running.is_alive()
        assert not tap.open.is_set(), "it had the lock while the packs stood still"
    tap.open.set()
    assert running.end().version is not None
    other.pull()
    assert tree_of(w.directory) == tree_of(other.directory)
    assert any(f"this {what} goes on after it" in e.text for e in told if isinstance(e, Notice))


@pytest.mark.usefixtures("at_once")
def test_a_pull_that_another_one_has_done_meanwhile_ends_well(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, other, _ = pulling(lab)
    tap = Tap(monkeypatch, free=1)
    running = Running(w.pull)
    assert tap.held.wait(SOON_S)
    second = Running(lab.keep(Workspace.open(w.directory)).pull)
    with WorkspaceLock(w.directory / ".metasync").acquire("anything"):
        tap.open.set()
    second.end()
    running.end()
    assert tree_of(w.directory) == tree_of(other.directory)


def test_a_pull_that_changes_the_folder_gives_way_to_nobody(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w, other, _ = pulling(lab)
    looks: list[bool] = []
    applying = [False]
    monkeypatch.setattr(Turns, "look", lambda _: looks.append(applying[0]))
    apply = Checkout.apply

    def applied(checkout: Checkout, *args: Any) -> Any:
        applying[0] = True
        return apply(checkout, *args)

    monkeypatch.setattr(Checkout, "apply", applied)
    w.pull()
    assert looks
    assert not any(looks)
    assert tree_of(w.directory) == tree_of(other.directory)


def test_a_large_folder_that_is_walked_is_left_to_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pack is sent or fetched then."""
    w, _ = two_devices(lab)
    monkeypatch.setattr(merge_walk, "LOOKED_EVERY", 1)
    write(w.directory, {f"d{n}/f": b"1" for n in range(5)})
    looks: list[None] = []
    monkeypatch.setattr(Turns, "look", lambda _: looks.append(None))
    w.push()
    assert len(looks) >= 5


@pytest.mark.usefixtures("at_once")
def test_what_a_pull_has_fetched_is_taken_up_whoever_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a pull that is stopped again and again would never end."""
    w, other, told = pulling(lab)
    tap = Tap(monkeypatch, free=1)
    tap.open.set()  # nothing is held
    looks: list[str] = []

    def look(turns: Turns) -> None:
        looks.append("")
        if any(e.phase == "download" and e.done for e in told if isinstance(e, Progress)) and turns._wanted():
            raise GiveWay

    wanted = iter([True] * 3)
    monkeypatch.setattr(Turns, "look", look)
    w._work.around.let_in = lambda: w._db.set_value("noted by a test", os.urandom(8))
    w._work.around.waits = lambda: next(wanted, False)
    w.pull()
    assert tree_of(w.directory) == tree_of(other.directory)
    texts = [e.text for e in told if isinstance(e, Notice)]
    assert any("goes first" in t for t in texts)
    assert any(t.startswith("going on with ") for t in texts)
