"""A keeper moves, checks and mends stored data while nothing else is to do, and tells what it could not mend."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from keeper_kit import Stage, version
from workspace_kit import Lab, flip, write

from metasync.moving import upkeep
from metasync.service import quiet
from metasync.service.telling.due import Told, due
from metasync.transfer import wrong_copies
from metasync.workspace import Workspace


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
