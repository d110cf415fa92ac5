"""A keeper in its own thread serves calls, and what it does meanwhile gives way to them."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import pytest
from keeper_kit import version
from workspace_kit import tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.errors import WorkspaceError
from metasync.local import lock
from metasync.service.keeper import Keeper
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk


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
