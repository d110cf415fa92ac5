"""What a keeper does right after a pull, and in the middle of one, turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from keeper_kit import Stage, version
from workspace_kit import tree_of, write

from metasync.checkout import checkout
from metasync.errors import WorkspaceError
from metasync.reports.sync import Changes
from metasync.service.keeper import Keeper
from metasync.sync import no_change
from metasync.workspace import Workspace
from metasync.worktree import merge_walk


def pull_by_hint(stage: Stage) -> None:
    """One turn in which news are brought; all that the watcher has to tell of it is there at its end."""
    stage.keeper.hint()
    stage.now += 2.0
    stage.keeper.turn()


def test_what_a_pull_wrote_is_no_change_that_status_tells(w: Workspace, stage: Stage, other: Workspace) -> None:
    write(other.directory, {"y/new": b"theirs", "new/1": b"1", "x/3": b"changed"})
    other.push()
    pull_by_hint(stage)
    assert (w.directory / "x/3").read_bytes() == b"changed"
    stage.keeper._changes.catch_up()
    assert (stage.state.doing, stage.state.changed, stage.state.changed_bytes) == ("in step", 0, 0)
    assert not stage.keeper._changes
    assert stage.keeper._batch.due(stage.now) is None, "nothing is walked for it later"


def test_what_changed_beside_a_pull_is_told_and_pushed(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit between the last write of the pull and the look at the folder after it."""
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    pulled = Keeper._pulled

    def edited(keeper: Keeper, *args: Any) -> None:
        pulled(keeper, *args)
        write(w.directory, {"y/mine": b"mine"})

    monkeypatch.setattr(Keeper, "_pulled", edited)
    pull_by_hint(stage)
    monkeypatch.setattr(Keeper, "_pulled", pulled)
    assert (w.directory / "y/new").read_bytes() == b"theirs"
    assert (stage.state.doing, stage.state.changed > 0) == ("waiting", True)
    before = version(w)
    stage.go_on(10.0)
    assert version(w) == before + 1


def test_an_edit_during_the_look_after_a_pull_is_pushed(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came when its directory was looked at already: the walk found nothing, and the event is to be heard."""
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    found = no_change.is_as_agreed

    def edited(s: Any) -> bool:
        is_so = found(s)
        write(w.directory, {"y/mine": b"mine"})
        stage.keeper._changes.catch_up()
        return is_so

    monkeypatch.setattr(no_change, "is_as_agreed", edited)
    pull_by_hint(stage)
    monkeypatch.setattr(no_change, "is_as_agreed", found)
    assert (stage.state.doing, stage.state.changed > 0) == ("waiting", True)
    before = version(w)
    stage.go_on(10.0)
    assert version(w) == before + 1


def test_the_look_after_a_pull_is_broken_off_for_a_call(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(other.directory, {"y/new": b"theirs"})
    other.push()
    monkeypatch.setattr(merge_walk, "LOOKED_EVERY", 1)
    call: Future[str] = Future()
    caught_up = stage.keeper._changes.catch_up

    def call_comes() -> None:
        caught_up()
        if stage.keeper._has_pulled is False and (w.directory / "y/new").exists() and not call.done():
            stage.keeper._calls.append((lambda _: "served", call))

    monkeypatch.setattr(stage.keeper._changes, "catch_up", call_comes)
    pull_by_hint(stage)
    assert stage.keeper._changes, "not known to be what the pull wrote: the next push looks"
    stage.keeper.turn()
    assert call.done()
    assert call.result() == "served"
    stage.settle()
    assert stage.state.changed == 0


def test_calls_in_the_middle_of_a_pull_are_answered_then_or_after_it(
    w: Workspace, stage: Stage, other: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "SLICE_CHANGES", 1)
    write(other.directory, {"y/first": b"1"})
    other.push()
    stage.settle()  # it knows the other device
    write(other.directory, {"y/new": b"theirs", "new/1": b"1", "x/3": b"changed"})
    other.push()
    calls: dict[str, Future[Any]] = {name: Future() for name in ("pull", "push", "tag")}
    order: list[str] = []
    done: list[str] = []  # when the folder was changed

    def call(name: str, do: Callable[[Workspace], Any]) -> None:
        calls[name].add_done_callback(lambda _: order.append(name))
        stage.keeper._calls.append((do, calls[name]))

    def came(keeper: Keeper, *args: Any) -> None:
        done.extend(order)
        pulled(keeper, *args)

    def sliced(self: Any, placer: Any) -> Any:
        if not order and not stage.keeper._has_calls():
            call("pull", lambda w: w.pull())
            call("push", lambda w: w.push())
            call("tag", lambda w: w.tag("1", "first"))
        return store(self, placer)

    store, pulled = checkout.Checkout._store_slice, Keeper._pulled
    monkeypatch.setattr(checkout.Checkout, "_store_slice", sliced)
    monkeypatch.setattr(Keeper, "_pulled", came)
    pull_by_hint(stage)
    assert calls["push"].result(timeout=0).version is None
    assert done == ["push"]
    assert stage.keeper._has_calls()
    stage.keeper.turn()
    assert order == ["push", "pull", "tag"]
    assert calls["pull"].result(timeout=0).changes == Changes()
    assert [t.name for t in calls["tag"].result(timeout=0).tags] == ["first"]
    assert tree_of(w.directory) == tree_of(other.directory)


def test_a_call_that_was_put_off_is_refused_where_the_keeper_ends(w: Workspace, stage: Stage) -> None:
    call: Future[Any] = Future()
    assert call.set_running_or_notify_cancel()
    stage.keeper._put_off.append((lambda w: w.pull(), call))
    stage.keeper._refuse_calls(stage.keeper._gone())
    with pytest.raises(WorkspaceError, match="kept no more"):
        call.result(timeout=0)
    assert not stage.keeper._has_calls()
