"""A wait for a quorum is told at once, names who is waited for, and ends with a way out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from threading import Event

import pytest
from workspace_kit import Lab, write

from metasync.errors import NoQuorumError, UnreachableError
from metasync.events import Notice
from metasync.session import agreement, open_backend
from metasync.session.session import LOOK_S
from metasync.workspace import Workspace


def noticed(w: Workspace) -> list[str]:
    texts: list[str] = []
    w.on_event = lambda e: texts.append(e.text) if isinstance(e, Notice) else None
    return texts


def lone(lab: Lab) -> Workspace:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"x": b"1"})
    w.push()
    for name in "bc":
        shutil.move(lab.store(name), lab.root / f"away-{name}")
    return lab.reopen(w)


@pytest.mark.few(1)
@pytest.mark.parametrize("operation", [Workspace.pull, Workspace.push, Workspace.sync, Workspace.status])
def test_who_is_waited_for_is_told_once(lab: Lab, operation: Callable[[Workspace], object]) -> None:
    w = lone(lab)
    write(w.directory, {"x": b"2"})
    lab.hurry(proposing=True)
    texts = noticed(w)
    if operation is Workspace.status:
        error = w.status().error
    else:
        with pytest.raises(NoQuorumError) as e:
            operation(w)
        error = e.value
    assert [t for t in texts if t.startswith("waiting for")] == ["waiting for b, c (answering: a)"]
    assert error is not None
    assert error.exit_code == 5
    assert error.next_step.endswith("if they are lost for good: metasync recover --without b --without c")


def test_it_is_told_while_the_wait_lasts(lab: Lab) -> None:
    """Not at its end: 30 s would have gone by in silence. What is told here ends it."""
    w = lab.init(lab.urls("a", "b", "c"))
    told = Event()

    def hear(event: object) -> None:
        if isinstance(event, Notice) and event.text == "waiting for b, c (answering: a)":
            told.set()
            lab.faults["b"].down = lab.faults["c"].down = False

    w.on_event = hear
    w.pull()  # opens the ways
    lab.faults["b"].down = lab.faults["c"].down = True
    w.pull()
    assert told.is_set()


def test_a_wait_that_is_none_is_not_told(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    shutil.move(lab.store("c"), lab.root / "away-c")
    w = lab.reopen(w)
    texts = noticed(w)
    write(w.directory, {"x": b"1"})
    w.push()
    assert not [t for t in texts if t.startswith("waiting for")]


def test_without_any_answer_recover_is_no_way_out(lab: Lab) -> None:
    """It goes on with what is left: there must be something."""
    w = lone(lab)
    shutil.move(lab.store("a"), lab.root / "away-a")
    w = lab.reopen(w)
    lab.hurry()
    texts = noticed(w)
    with pytest.raises(NoQuorumError) as e:
        w.pull()
    assert texts[0] == "waiting for a, b, c (answering: none)"
    assert "recover" not in e.value.next_step


def test_what_opening_took_is_taken_off_the_wait(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    with w._session("test") as s:
        assert agreement._left_of(s, 30.0) == pytest.approx(30.0 - s.opened_in_s)
        s.opened_in_s = 12.0
        assert agreement._left_of(s, 30.0) == 18.0
        s.opened_in_s = 29.0
        assert agreement._left_of(s, 30.0) == LOOK_S, "who answers at once is heard all the same"
        s.opened_in_s = 0.0
        assert agreement._left_of(s, 0.5) == 0.5


def test_a_backend_that_is_slow_to_open_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    monkeypatch.setattr(open_backend, "SLOW_S", 0.01)
    monkeypatch.setattr(open_backend, "PATIENCE_S", 60.0)
    waits, inner = Event(), open_backend.opened

    def opened(name: str, *args: object, **more: object) -> object:
        if name == "b":
            assert waits.wait(60)
            raise UnreachableError("b: gone")
        return inner(name, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(open_backend, "opened", opened)
    w = lab.reopen(w)
    texts: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, Notice):
            texts.append(event.text)
            if " b " in event.text:  # on a busy machine another one may be slow, too
                waits.set()

    w.on_event = hear
    w.pull()
    assert "waiting for b to open" in texts
