"""A `Workspace` that stays open: what rests, what a fork may not do, who proposes after a sleep; several threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from workspace_kit import Lab, write

from metasync.errors import MetaSyncError, WorkspaceError
from metasync.runtime.effects import Sleep, Task, together
from metasync.runtime.threads import Rest, UnderWay
from metasync.session.open_backend import Machine
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")


def pushed(lab: Lab) -> Workspace:
    w = lab.init(lab.urls(*NAMES, kind="memory"))
    write(w.directory, {"f": b"first"})
    w.push()
    return w


def test_what_rests_goes_on_as_the_same_proposer(lab: Lab) -> None:
    w = pushed(lab)
    c = w._connections
    before = c.open()[1].participant.incarnation
    assert c.rest(UnderWay())
    assert c._runtime is None
    assert "metasync-coordinator" not in {t.name for t in threading.enumerate() if t is not threading.main_thread()}
    write(w.directory, {"f": b"after a rest"})
    assert w.push().version == 2
    assert c.open()[1].participant.incarnation == before


def test_nothing_rests_while_an_operation_is_under_way(lab: Lab) -> None:
    w = pushed(lab)
    with w._session("test"):
        done = threading.Event()
        said: list[bool] = []

        def rest() -> None:
            said.append(w._connections.rest(w._work._under_way))
            done.set()

        threading.Thread(target=rest).start()
        assert done.wait(60)
        assert said == [False]
        assert w._connections._runtime is not None


def test_who_slept_or_was_put_back_proposes_as_another(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of the machine may have used this process's next round already."""
    w = pushed(lab)
    c = w._connections
    before = c.open()[1].participant.incarnation
    assert c.open()[1].participant.incarnation == before
    monkeypatch.setattr(Machine, "mark", lambda self: ("another boot",))
    after = c.open()[1].participant.incarnation
    assert after != before
    monkeypatch.setattr(Machine, "place", lambda self, directory: b"p" * 32)
    assert c.open()[1].participant.incarnation != after


def test_a_fork_is_refused_with_a_sentence(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab)
    real = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: real + 1)
        for act in (w.push, w.status, w.log):
            with pytest.raises(WorkspaceError, match="forked"):
                act()
        w.close()
    write(w.directory, {"f": b"in the process that opened it"})
    assert w.push().version == 2


def test_status_and_log_beside_pushes(lab: Lab) -> None:
    w = pushed(lab)
    wrong: list[MetaSyncError] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                assert w.status().newest is not None
                w.log()
            except MetaSyncError as e:
                wrong.append(e)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(8):
            write(w.directory, {"f": b"push %d" % n})
            assert w.push().version == n + 2
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert {b.state for b in w.status().backends} == {"ok"}


def test_the_timer_waits_and_tries_again() -> None:
    happened = threading.Event()
    answers = [False, True]

    def rest() -> bool:
        said = answers.pop(0)
        if said:
            happened.set()
        return said

    timer = Rest(0.01, rest)
    timer.touch()
    timer.touch()
    assert happened.wait(60)
    assert answers == []
    timer.stop()
    timer.touch()
    assert timer._timer is None


def test_no_timer_where_nothing_rests(tmp_path: Path) -> None:
    timer = Rest(None, lambda: True)
    timer.touch()
    assert timer._timer is None


def test_tasks_that_look_at_logs_take_turns(lab: Lab) -> None:
    """Two threads' looks would read one log at once, and each would take in what the other had read."""
    w = pushed(lab)
    runtime, group = w._connections.open()
    order: list[str] = []

    def looks(name: str) -> Task:
        order.append(f"{name} begins")
        yield Sleep(0.02)
        order.append(f"{name} ends")

    def fails() -> Task:
        yield Sleep(0.0)
        raise WorkspaceError("no look")

    alone = group.participant.alone
    with pytest.raises(WorkspaceError):
        runtime.run(alone(fails()))
    runtime.run(together({"a": alone(looks("a")), "b": alone(looks("b"))}))
    assert order in ([*turn("a"), *turn("b")], [*turn("b"), *turn("a")])


def turn(name: str) -> list[str]:
    return [f"{name} begins", f"{name} ends"]
