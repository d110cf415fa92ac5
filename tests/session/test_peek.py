"""Looks at one backend: what they find, and how little they ask."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from racing_kit import race
from workspace_kit import Lab, write

from metasync.errors import BackendError, NoQuorumError
from metasync.session import peek
from metasync.workspace import Workspace

LOGS = ("a", "b", "c")
BLOCKS = ("dav1", "dav2", "dav3")


def look(w: Workspace, name: str) -> bool | None:
    with w._session("look") as s:
        return peek.shows_news(s, name)


def voters(w: Workspace) -> list[str]:
    with w._session("look") as s:
        return peek.voters(s)


def pushed(w: Workspace, text: bytes) -> None:
    write(w.directory, {"f": text})
    w.push()


def joined(lab: Lab, w: Workspace, names: tuple[str, ...], device: str) -> Workspace:
    """Another device that belongs to the workspace: in block form it is let in by a push of another one."""
    other = lab.clone(lab.urls(*names), device=device)
    with contextlib.suppress(NoQuorumError):
        pushed(other, b"asks to be let in")
    w.push()
    return other


@pytest.fixture
def blocks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return race(lab, monkeypatch, "block")


@pytest.mark.few(1)
@pytest.mark.parametrize("names", [LOGS, BLOCKS], ids=["log", "block"])
def test_a_look_takes_one_request_and_finds_what_another_device_pushed(blocks: Lab, names: tuple[str, ...]) -> None:
    w = blocks.init(blocks.urls(*names))
    pushed(w, b"1")
    other = joined(blocks, w, names, "desktop")
    pushed(other, b"2")
    pushed(w, b"3")
    w.pull()
    assert voters(w) == [*names]
    before = blocks.requests()
    assert [look(w, name) for name in names] == [False] * 3
    assert blocks.requests() - before == 3
    pushed(other, b"4")
    assert any(look(w, name) for name in names)
    w.pull()
    assert [look(w, name) for name in names] == [False] * 3


def test_of_several_devices_each_is_asked_for_and_of_too_many_none(
    blocks: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = blocks.init(blocks.urls(*BLOCKS))
    pushed(w, b"1")
    before = blocks.requests()
    assert look(w, "dav1") is False, "there is nobody else"
    assert blocks.requests() == before
    for n in range(2):
        joined(blocks, w, BLOCKS, f"d{n}")
    w.pull()
    w = blocks.reopen(w)  # so that no call of the pull is still under way
    before = blocks.requests("dav1")
    assert look(w, "dav1") is False
    assert blocks.requests("dav1") - before == 2
    monkeypatch.setattr(peek, "PLACES_MAX", 1)
    assert look(w, "dav1") is None


@pytest.mark.parametrize("names", [LOGS, BLOCKS], ids=["log", "block"])
def test_a_backend_that_does_not_answer_says_nothing(blocks: Lab, names: tuple[str, ...]) -> None:
    w = blocks.init(blocks.urls(*names))
    blocks.clone(blocks.urls(*names)).close()
    pushed(w, b"1")
    blocks.faults[names[0]].down = True
    with pytest.raises(BackendError):
        look(w, names[0])


def test_where_some_vote_in_log_form_these_are_asked(blocks: Lab) -> None:
    w = blocks.init(blocks.urls("a", "dav1", "b"))
    assert voters(w) == ["a", "b"]


def test_backends_are_watched_where_that_can_be_and_others_are_left_out(lab: Lab) -> None:
    w = lab.init([*lab.urls("a", "b"), lab.url("m", kind="memory")])
    found = peek.watchable(w._connections)
    assert [one.name for one in found] == ["a", "b"]
    for one in found:
        folder = lab.store(one.name) / one.path
        assert any(folder.rglob("*")), "its votes lie there"
    way = next(way for way in w._connections.ways.values() if way.name == "a")
    way.link = replace(way.link, url="gone+elsewhere://host/x")  # its provider is not installed any more
    assert [one.name for one in peek.watchable(w._connections)] == ["b"]
