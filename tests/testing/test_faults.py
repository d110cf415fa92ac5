"""The faults that tests inject are the ones they claim to be, and one seed gives the same ones again."""

from __future__ import annotations

import threading

import pytest

from metasync.backends.api import Backend
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.testing.faults import FAULTS, FaultyBackend, Plan

CALLS = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=99),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "delete": lambda b: b.delete("d/a"),
}


@pytest.fixture
def faulty() -> FaultyBackend:
    backend = FaultyBackend(MemoryBackend())
    backend.put("d/a", b"content")
    backend.put("d/b", b"another")
    return backend


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_down(faulty: FaultyBackend, call: object) -> None:
    assert isinstance(faulty, Backend)
    before = faulty.snapshot()
    faulty.down = True
    with pytest.raises(UnreachableError):
        call(faulty)
    faulty.down = False
    assert faulty.snapshot() == before
    call(faulty)


def test_read_only(faulty: FaultyBackend) -> None:
    faulty.read_only = True
    for kind in ("create", "put", "delete"):
        with pytest.raises(RefusedError):
            CALLS[kind](faulty)
    assert CALLS["get"](faulty) == b"content"


def test_full(faulty: FaultyBackend) -> None:
    faulty.full_over_bytes = 5
    faulty.put("d/small", b"12345")
    for call in (faulty.create, faulty.put):
        with pytest.raises(FullError):
            call("d/large", b"123456")
    faulty.full_over_bytes = None
    faulty.fail_next("full")
    faulty.get("d/a", max_bytes=9)
    with pytest.raises(FullError):
        faulty.put("d/small", b"")


def test_slow() -> None:
    slept: list[float] = []
    backend = FaultyBackend(MemoryBackend(), sleep=slept.append)
    backend.put("a", b"")
    backend.slow_s = 0.25
    backend.get("a", max_bytes=1)
    assert slept == [0.25]


def test_lost_request_and_lost_reply(faulty: FaultyBackend) -> None:
    faulty.fail_next("lost_request", kind="create")
    with pytest.raises(UnreachableError):
        faulty.create("d/new", b"1")
    with pytest.raises(NotFoundError):
        faulty.get("d/new", max_bytes=9)
    faulty.fail_next("lost_reply", kind="create")
    with pytest.raises(UnreachableError):
        faulty.create("d/new", b"2")
    assert faulty.create("d/new", b"3") is False
    assert faulty.get("d/new", max_bytes=9) == b"2"


def test_late(faulty: FaultyBackend) -> None:
    faulty.fail_next("late")
    with pytest.raises(UnreachableError):
        faulty.create("d/new", b"1")
    with pytest.raises(NotFoundError):
        faulty.stat("d/new")
    faulty.land()
    assert faulty.get("d/new", max_bytes=9) == b"1"
    faulty.fail_next("late")
    with pytest.raises(UnreachableError):
        faulty.create("d/newer", b"1")
    assert faulty.create("d/newer", b"2") is True, "the late one may lose"
    for _ in range(9):
        faulty.list("")
    assert faulty.get("d/newer", max_bytes=9) == b"2"


def test_late_lands_with_a_later_call(faulty: FaultyBackend) -> None:
    faulty.fail_next("late", kind="put")
    with pytest.raises(UnreachableError):
        faulty.put("d/a", b"later")
    seen = [faulty.get("d/a", max_bytes=9) for _ in range(9)]
    assert seen[0] == b"content"
    assert seen[-1] == b"later"


def test_duplicate_tells_the_winner_that_it_lost(faulty: FaultyBackend) -> None:
    faulty.fail_next("duplicate", kind="create")
    assert faulty.create("d/new", b"mine") is False
    assert faulty.get("d/new", max_bytes=9) == b"mine"


def test_lying_reads(faulty: FaultyBackend) -> None:
    def get(fault: str) -> bytes:
        faulty.fail_next(fault)
        return faulty.get("d/a", max_bytes=99)

    assert get("swapped") == b"another"
    assert b"content".startswith(get("truncated"))
    garbage, flipped = get("garbage"), get("bit_flip")
    assert garbage != b"content"
    assert len(garbage) == 7
    assert sum(bin(x ^ y).count("1") for x, y in zip(flipped, b"content", strict=True)) == 1
    assert get("html").startswith(b"<!DOCTYPE html>")
    for fault in ("garbage", "html", "truncated", "bit_flip", "swapped"):
        faulty.fail_next(fault)
        assert len(faulty.get("d/a", length=3, max_bytes=3)) <= 3, "no more than was asked for"
    faulty.delete("d/b")
    assert get("swapped") != b"content"
    with pytest.raises(NotFoundError):
        get("absent")
    assert faulty.get("d/a", max_bytes=99) == b"content"


def test_a_fault_waits_for_a_call_it_can_strike(faulty: FaultyBackend) -> None:
    with pytest.raises(ValueError, match="bit_flip"):
        faulty.fail_next("bit_flip", kind="put")
    faulty.fail_next("bit_flip", times=2)
    faulty.put("d/c", b"1")
    assert faulty.get("d/c", max_bytes=1) != b"1"
    assert faulty.get("d/c", max_bytes=1) != b"1"
    assert faulty.get("d/c", max_bytes=1) == b"1"
    assert faulty.faults == {"bit_flip": 2}


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_wipe_and_roll_back(tmp_path: object, kind: str) -> None:
    backend = FaultyBackend(MemoryBackend() if kind == "memory" else FolderBackend(str(tmp_path)))
    backend.put("d/e/a", b"1")
    backend.put("b", b"1")
    before = backend.snapshot()
    backend.put("b", b"2")
    backend.put("d/c", b"2")
    backend.delete("d/e/a")
    backend.roll_back(before)
    assert backend.snapshot() == before == {"d/e/a": b"1", "b": b"1"}
    backend.wipe()
    assert backend.snapshot() == {}


def _outcomes(plan: Plan, order: list[int]) -> dict[tuple[int, int], str]:
    """What each of twenty calls of a few paths saw, the paths taken in the given order."""
    backend = FaultyBackend(MemoryBackend(), plan, sleep=lambda _: None)
    seen = {}
    for path in order:
        for turn in range(20):
            try:
                backend.put(f"d/{path}", b"some bytes")
                seen[path, turn] = backend.get(f"d/{path}", max_bytes=99).hex()
            except BackendError as error:
                seen[path, turn] = type(error).__name__
    return seen


def test_one_seed_gives_the_same_faults_in_any_order() -> None:
    rates = {"lost_request": 0.1, "bit_flip": 0.2, "garbage": 0.2, "full": 0.1}
    first = _outcomes(Plan(seed=5, rates=rates), [0, 1, 2, 3])
    assert _outcomes(Plan(seed=5, rates=rates), [3, 1, 0, 2]) == first
    assert _outcomes(Plan(seed=6, rates=rates), [0, 1, 2, 3]) != first
    assert len(set(first.values())) > 4


def test_rates_and_paths() -> None:
    plan = Plan(seed=1, rates={"unreachable": 0.25}, paths=lambda path: path.startswith("px/"))
    backend = FaultyBackend(MemoryBackend(), plan)
    failed = 0
    for number in range(1000):
        backend.put(f"packs/{number}", b"")
        try:
            backend.put(f"px/{number}", b"")
        except UnreachableError:
            failed += 1
    assert 200 < failed < 300
    assert backend.faults == {"unreachable": failed}
    assert backend.calls == {"put": 2000}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "hang"])
def test_every_fault_under_threads(fault: str) -> None:
    """Whatever strikes, callers see an error of the contract or a value of its type, and nothing hangs."""
    backend = FaultyBackend(MemoryBackend(), Plan(seed=3, rates={fault: 0.5}), sleep=lambda _: None)
    unexpected: list[BaseException] = []

    def use(worker: int) -> None:
        for number in range(50):
            for call in (
                lambda path=f"d/{number % 7}": backend.create(path, b"x" * worker),
                lambda path=f"d/{number % 7}": backend.put(path, b"x" * worker),
                lambda path=f"d/{number % 7}": backend.get(path, max_bytes=200),
                lambda path=f"d/{number % 7}": backend.stat(path),
                lambda: backend.list("d"),
                lambda path=f"d/{number % 7}": backend.delete(path),
            ):
                try:
                    call()
                except BackendError:
                    continue
                except BaseException as error:
                    unexpected.append(error)
                    return

    workers = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not unexpected
    assert backend.faults[fault] > 0
