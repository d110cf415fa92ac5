"""A `Workspace` that stays open: what rests, what a fork may not do, who proposes after a sleep; several threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from garbage_kit import left_as_garbage
from workspace_kit import Lab, write

from metasync.errors import MetaSyncError, WorkspaceError
from metasync.runtime.effects import Sleep, Task, together
from metasync.runtime.threads import Rest, UnderWay
from metasync.session import write_index
from metasync.session.connections import Connections
from metasync.session.open_backend import Machine
from metasync.session.session import Session
from metasync.session.write_index import AgreedIndexes
from metasync.store.index import IndexSegment
from metasync.sync.packing import Packing
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")


def pushed(lab: Lab) -> Workspace:
    w = lab.init(lab.urls(*NAMES, kind="memory"))
    write(w.directory, {"f": b"first"})
    w.push()
    return w


def test_what_rests_goes_on_as_the_same_proposer(lab: Lab) -> None:
    others = set(threading.enumerate())  # what other tests' workspaces still have is theirs
    w = pushed(lab)
    c = w._connections
    before = c.open()[1].participant.incarnation
    assert "metasync-coordinator" in {t.name for t in set(threading.enumerate()) - others}
    assert c.rest(UnderWay())
    assert c._runtime is None
    assert "metasync-coordinator" not in {t.name for t in set(threading.enumerate()) - others}
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


def test_an_operation_leaves_nothing_large_to_the_garbage_collector(lab: Lab) -> None:
    """What is in a circle stays until it comes by: tens of pushes, each with an index and its packs, were held."""
    w = pushed(lab)
    c = w._connections

    def act() -> None:
        write(w.directory, {"f": b"another", "dir/g": b"new"})
        w.push()
        w.status()

    left = left_as_garbage(act)
    for kind in (Session, AgreedIndexes, Upload, Packing, IndexSegment):
        assert not any(isinstance(o, kind) and belongs_to(c, o) for o in left), kind


def belongs_to(c: Connections, made: object) -> bool:
    """Whether it was made for this workspace: an operation of an earlier test may end in a thread that hangs."""
    match made:
        case Session():
            return made.connections is c
        case AgreedIndexes():
            return made._db is c.db
        case Upload():
            return made.runner is c._runtime
        case Packing():
            return made.s.connections is c
    return True


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The segments of indexes that are decoded from here on."""
    out: list[bytes] = []
    real = write_index.pack_index.decode_segment

    def decode(data: bytes, *keep: Any) -> IndexSegment:
        out.append(data)
        return real(data, *keep)

    monkeypatch.setattr(write_index.pack_index, "decode_segment", decode)
    return out


def test_a_push_decodes_what_the_last_one_added_to_the_index(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = pushed(lab)
    for n in range(4):
        write(w.directory, {"f": b"push %d" % n})
        w.push()
    some = decoded(monkeypatch)
    write(w.directory, {"f": b"one more"})
    w.push()
    assert len(some) == 1
    assert w._connections.rest(UnderWay())
    assert not w._connections.segments, "what rests holds none"
    write(w.directory, {"f": b"after a rest"})
    w.push()
    assert len(some) == 1 + len(w._connections.segments), "all that the index has"
    assert len(some) > 1 + 2


def test_the_index_of_a_long_history_is_not_decoded_by_each_push(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a few megabytes: to decode it each time takes longer than the rest of a push, and more memory."""
    w = pushed(lab)
    for n in range(1, 5):
        write(w.directory, {f"file {n} {i}": b"%d" % i for i in range(50 * (n == 3) + 1)})
        w.push()
    sizes = {digest: one.segment.held_bytes for digest, one in w._connections.segments.items()}
    largest = max(sizes, key=sizes.__getitem__)
    really = IndexSegment.held_bytes.fget
    assert really is not None
    monkeypatch.setattr(IndexSegment, "held_bytes", property(lambda s: really(s) * (4 << 20) // sizes[largest]))
    some = decoded(monkeypatch)
    for n in range(2):
        write(w.directory, {"f": b"a small push %d" % n})
        assert w.push().version == 6 + n
        assert largest in w._connections.segments
    assert len(some) == 2, "what each of them added"


def test_no_more_of_an_index_is_kept_between_operations_than_is_allowed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = pushed(lab)
    write(w.directory, {f"file {n}": b"%d" % n for n in range(80)})
    w.push()
    write(w.directory, {"f": b"a small push"})
    w.push()
    w.log()
    sizes = sorted(one.segment.held_bytes for one in w._connections.segments.values())
    assert len(sizes) == 3
    monkeypatch.setattr(write_index, "KEPT_BYTES_MAX", sizes[0] + sizes[1])
    write(w.directory, {"f": b"another"})
    w.push()
    w.status()
    kept = sorted(one.segment.held_bytes for one in w._connections.segments.values())
    assert sum(kept) <= sizes[0] + sizes[1]
    assert kept
    assert sizes[2] not in kept, "the largest goes first"
    write(w.directory, {"f": b"and another"})
    assert w.push().version == 5
