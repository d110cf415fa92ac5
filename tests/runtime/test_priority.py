"""Which call goes next, how many go at once, and what the runtime makes of both."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import order
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import BackendError, UnreachableError
from metasync.events import Transferred
from metasync.runtime import concurrency
from metasync.runtime.concurrency import Concurrency
from metasync.runtime.effects import Gather, Op, Reply, Sleep, Task, Urgency
from metasync.runtime.priority import (
    ADDED_S,
    ALL,
    LARGE,
    SMALL_BYTES_MAX,
    Lane,
    Queue,
    lane_of,
    open_lanes,
    virtual_end,
)
from metasync.runtime.tasks import Runtime

RATE = 1e6
SOON, LATER, NOW = Urgency.SOON, Urgency.LATER, Urgency.NOW


def put(size: int, urgency: Urgency = SOON, path: str = "x", **more: Any) -> Op:
    return Op("m", "put", path, b"x" * size, urgency=urgency, **more)


def get(size: int, urgency: Urgency = SOON, path: str = "x", **more: Any) -> Op:
    return Op("m", "get", path, max_bytes=size, urgency=urgency, **more)


# --- the order


def order_of(calls: list[tuple[float, Op]]) -> list[Op]:
    """All of them waiting at once, in the order in which they are taken."""
    queue = Queue()
    for at, op in calls:
        queue.push(lane_of(op), virtual_end(at, op.urgency, len(op.data), RATE), op)
    out = []
    while len(queue):
        _, lane = queue.heads(ALL)[0]
        out.append(queue.take(lane))
    return out


def test_small_before_large_urgent_before_idle_and_of_equal_ones_the_first() -> None:
    large, middle, small = put(4_000_000), put(1_000_000), put(1000)
    later, now = put(10, LATER), put(3_000_000, NOW)
    again = put(1_000_000, path="again")
    calls = [(0.0, op) for op in (large, later, middle, again, small, now)]
    assert order_of(calls) == [now, small, middle, again, large, later]


arrivals = st.lists(
    st.tuples(st.floats(0, 300), st.integers(0, 64 << 20), st.sampled_from(Urgency)), min_size=1, max_size=60
)


@given(arrivals, st.floats(1e4, 1e8))
def test_no_call_waits_for_ever(calls: list[tuple[float, int, Urgency]], rate: float) -> None:
    """On one connection that never rests: whoever goes first of two arrived before the other's virtual end.

    So a call is passed only by those that came within its own transfer time and its urgency's share after it.
    """
    queue = Queue()
    coming = sorted(enumerate(calls), key=lambda c: (c[1][0], c[0]))
    now, started = 0.0, []
    while coming or len(queue):
        while coming and coming[0][1][0] <= now:
            number, (at, size, urgency) = coming.pop(0)
            queue.push(Lane.UP_LARGE, virtual_end(at, urgency, size, rate), number)
        if not len(queue):
            now = coming[0][1][0]
            continue
        number = queue.take(Lane.UP_LARGE)
        started.append(number)
        now += max(calls[number][1] / rate, 1e-6)
    assert sorted(started) == list(range(len(calls)))
    for place, number in enumerate(started):
        at, size, urgency = calls[number]
        share = ADDED_S[urgency] + (0 if urgency is NOW else size / rate)
        for earlier in started[:place]:
            assert calls[earlier][0] <= at + share


def test_what_was_dropped_is_never_taken() -> None:
    queue = Queue()
    tickets = [queue.push(Lane.UP_SMALL, float(n), n) for n in range(5)]
    assert queue.drop(tickets[0])
    assert queue.drop(tickets[3])
    assert not queue.drop(tickets[3])
    assert len(queue) == 3
    assert [queue.take(Lane.UP_SMALL) for _ in range(3)] == [1, 2, 4]
    assert not queue.drop(tickets[1])
    assert queue.first(Lane.UP_SMALL) is None


@given(st.integers(1, 40), st.data())
def test_connections_are_spared_for_what_is_small_and_urgent(size: int, data: st.DataObject) -> None:
    """Whatever was taken by these rules: one connection is left for the urgent, one more for what is small."""
    running = dict.fromkeys(Lane, 0)
    while True:
        soon = sum(n for lane, n in running.items() if lane is not Lane.NOW)
        lanes = open_lanes(size, sum(running.values()), soon, sum(running[lane] for lane in LARGE))
        if not lanes:
            break
        running[data.draw(st.sampled_from(sorted(lanes)))] += 1
    large, urgent = sum(running[lane] for lane in LARGE), running[Lane.NOW]
    assert sum(running.values()) == size
    assert large <= max(1, size - (2 if size >= 4 else 1))
    assert urgent >= (size > 1)


def test_lanes() -> None:
    assert lane_of(put(1 << 20, NOW)) is Lane.NOW
    assert lane_of(put(SMALL_BYTES_MAX)) is Lane.UP_SMALL
    assert lane_of(put(SMALL_BYTES_MAX + 1)) is Lane.UP_LARGE
    assert lane_of(get(SMALL_BYTES_MAX + 1, LATER)) is Lane.DOWN_LARGE
    assert lane_of(get(1 << 26, length=100)) is Lane.DOWN_SMALL
    assert lane_of(Op("m", "stat", "x", urgency=SOON)) is Lane.DOWN_SMALL


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_benchmark_keeps_its_bars(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert order.main(["--seed", seed]) == 0
    assert "MISSED" not in capsys.readouterr().out


# --- how many at once


def drive(
    g: Concurrency, speed: Callable[[int], float], seconds: float, now: float = 0.0, *, waiting: bool = True
) -> float:
    """Calls of 1 MB, one after the other, on a backend that moves so many bytes a second with so many connections."""
    ends = now + seconds
    while now < ends:
        took = 1e6 / speed(g.size)
        now += took
        g.ended(now, 1_000_000, waiting=waiting)
    return now


def test_it_grows_while_more_calls_move_more() -> None:
    g = Concurrency()
    assert g.size == 8
    drive(g, lambda n: n * 1e6, 60)
    assert g.size == 32
    assert g.bytes_per_s == pytest.approx(32e6, rel=0.1)


def test_it_stays_where_more_calls_bring_nothing() -> None:
    g = Concurrency()
    sizes = set()
    now = 0.0
    for _ in range(30):
        now = drive(g, lambda _n: 10e6, 1, now)
        sizes.add(g.size)
    assert sizes == {8, 10}  # tried, and found to bring nothing
    bent = Concurrency()
    drive(bent, lambda n: min(n, 12) * 1e6, 120)
    assert 12 <= bent.size <= 15


def test_it_does_not_grow_where_nothing_waits() -> None:
    g = Concurrency()
    drive(g, lambda n: n * 1e6, 20, waiting=False)
    assert g.size == 8


def test_it_halves_once_for_what_was_sent_away_together_and_rests() -> None:
    g = Concurrency(16)
    for _ in range(16):
        g.throttled(5.0, 4.0, 1.0)
    assert g.size == 8
    g.throttled(6.0, 5.5, 1.0)
    assert g.size == 4
    now = drive(g, lambda n: n * 1e6, concurrency.COOL_S - 1, 6.0)
    assert g.size == 4
    drive(g, lambda n: n * 1e6, 20, now)
    assert g.size > 4
    for n in range(20):
        g.throttled(1000.0 + n, 999.5 + n, 1.0)
    assert g.size == concurrency.LEAST


def test_the_users_bound_is_kept_and_lifted() -> None:
    g = Concurrency()
    g.bound(3)
    drive(g, lambda n: n * 1e6, 20)
    assert g.size == 3
    g.bound(1)
    g.throttled(1e6, 1e6, 1.0)
    assert g.size == 2  # one for packs, one for agreement
    g.bound(None)
    assert g.size == 8
    g.bound(20)
    drive(g, lambda n: n * 1e6, 60, 2e6)
    assert g.size == 20
    g.throttled(3e6, 2.9e6, 1.0)
    assert g.size == 10


# --- the runtime


class Gated:
    """A backend whose calls wait to be let through, and that writes down which began. `fail`: what they raise."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.open: set[str] = set()
        self.changed = threading.Condition()
        self.at_once = self.most = 0
        self.fail: list[BackendError] = []

    def _pass(self, path: str) -> None:
        with self.changed:
            self.began.append(path)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.changed.notify_all()
            self.changed.wait_for(lambda: path in self.open or "*" in self.open)
            self.at_once -= 1
            if self.fail:
                raise self.fail.pop(0)

    def let(self, *paths: str) -> None:
        with self.changed:
            self.open |= set(paths)
            self.changed.notify_all()

    def wait_begun(self, n: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.began) >= n, 10), self.began

    def put(self, path: str, data: bytes) -> None:
        self._pass(path)
        self.objects[path] = data

    def create(self, path: str, data: bytes) -> bool:
        self._pass(path)
        return True

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        self._pass(path)
        return b"12345"

    def stat(self, path: str) -> int:
        self._pass(path)
        return 5

    def list(self, path: str) -> tuple[str, ...]:
        self._pass(path)
        return ()

    def delete(self, path: str) -> None:
        self._pass(path)


def one(op: Op) -> Task:
    return (yield op)


BIG = SMALL_BYTES_MAX + 1


def test_packs_leave_connections_to_agreement_and_to_small_files() -> None:
    store = Gated()
    with Runtime({"m": store}) as runtime:
        for n in range(40):
            runtime.start(one(put(BIG, path=f"pack{n}")))
        store.wait_begun(6)
        small = runtime.start(one(get(1000, path="small")))
        store.wait_begun(7)
        runtime.start(one(get(1000, path="small too")))  # the last one is for what is urgent
        urgent = runtime.start(one(get(1000, NOW, path="urgent")))
        store.wait_begun(8)
        assert sorted(store.began) == sorted([*(f"pack{n}" for n in range(6)), "small", "urgent"])
        store.let("small", "urgent")
        assert small.result(60).value == urgent.result(60).value == b"12345"
        store.let("*")


def test_a_small_pull_passes_a_large_push_that_waits() -> None:
    store = Gated()
    with Runtime({"m": store}, connections_per_backend=1, connections_max=1) as runtime:
        futures = [runtime.start(one(put(BIG, path="first")))]
        store.wait_begun(1)
        for name, op in {
            "later": put(1, LATER, path="later"),
            "large": put(8 << 20, path="large"),
            "middle": put(1 << 20, path="middle"),
            "small": get(10, path="small"),
            "agreed": Op("m", "create", "agreed", b"entry"),
        }.items():
            futures.append(runtime.start(one(op)))
            assert op.path == name
        for _ in range(6000):
            if len(runtime._channels["m"]._queue) == 5:
                break
            time.sleep(0.01)
        store.let("*")
        for future in futures:
            future.result(60)
    assert store.began == ["first", "agreed", "small", "middle", "large", "later"]


def test_calls_of_a_task_that_was_abandoned_are_taken_out() -> None:
    """What was made useless costs nothing; what has begun, and urgent writes, are carried on."""
    store = Gated()

    def stop() -> Task:
        yield Sleep(0.05)

    def task() -> Task:
        branches = {
            "large": one(put(BIG, path="large")),
            "small": one(put(5, path="small")),
            "read": one(get(5, NOW, path="read")),
            "vote": one(put(5, NOW, path="vote")),
            "stop": stop(),
        }
        yield Gather(branches, lambda r: "stop" in r)
        return "over"

    with Runtime({"m": store}, connections_per_backend=1, connections_max=1) as runtime:
        runtime.start(one(put(BIG, path="begun")))
        store.wait_begun(1)
        assert runtime.run(task()) == "over"
        assert len(runtime._channels["m"]._queue) == 1  # the vote: what is dropped does not keep its bytes either
        last = runtime.start(one(put(1, LATER, path="last")))
        store.let("*")
        last.result(60)
    assert store.began == ["begun", "vote", "last"]
    assert set(store.objects) == {"begun", "vote", "last"}


def test_a_call_that_is_late_is_taken_out_too() -> None:
    store = Gated()
    with Runtime({"m": store}, connections_per_backend=1, connections_max=1) as runtime:
        first = runtime.start(one(put(BIG, path="first", timeout_s=30)))
        store.wait_begun(1)
        late: Reply = runtime.run(one(put(BIG, path="late", timeout_s=0.05)))
        assert isinstance(late.error, UnreachableError)
        assert len(runtime._channels["m"]._queue) == 0
        store.let("*")
        first.result(60)
        runtime.run(one(put(1, path="last")))
    assert store.began == ["first", "last"]


def test_waiting_while_others_are_served_costs_no_patience() -> None:
    """A call's time runs while the backend keeps it waiting, not while it serves the calls before it."""

    class Slow(Gated):
        def put(self, path: str, data: bytes) -> None:
            time.sleep(0.1)
            super().put(path, data)

    store = Slow()
    store.let("*")
    with Runtime({"m": store}, connections_per_backend=1, connections_max=1) as runtime:
        futures = [runtime.start(one(put(BIG, path=str(n), timeout_s=2.0))) for n in range(24)]
        assert [f.result(60).error for f in futures] == [None] * 24


def test_a_server_that_throttles_is_given_time_and_fewer_calls() -> None:
    store = Gated()
    store.fail = [BackendError("slow down", retry_after_s=0.05) for _ in range(4)]
    with Runtime({"m": store}) as runtime:
        futures = [runtime.start(one(put(BIG, path=str(n)))) for n in range(12)]
        store.wait_begun(6)
        store.let("*")
        assert [f.result(60).error for f in futures] == [None] * 12
        assert len(store.began) == 16
        assert runtime._channels["m"]._concurrency.size == 4


def test_a_server_that_throttles_for_ever_fails_the_call_and_an_urgent_one_at_once() -> None:
    store = Gated()
    store.let("*")
    store.fail = [BackendError("slow down", retry_after_s=0.01) for _ in range(100)]
    with Runtime({"m": store}) as runtime:
        reply: Reply = runtime.run(one(put(BIG)))
        assert reply.error is not None
        assert reply.error.message == "slow down"
        assert len(store.began) == 4
        assert runtime.run(one(put(5, NOW))).error is not None
        assert len(store.began) == 5
        assert runtime.run(one(Op("m", "create", "x", b"1", urgency=SOON))).error is not None
        assert len(store.began) == 6
        far = [BackendError("come back tomorrow", retry_after_s=86_400.0)]
        store.fail = far * 9
        assert runtime.run(one(put(BIG))).error is far[0]


def test_more_connections_are_opened_where_they_help() -> None:
    """On a clock of its own: a call takes 20 ms, and as many are served at once as are asked for."""

    class Far(Gated):
        now = 0.0

        def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
            with self.changed:
                self.now += 0.02 / runtime._channels["m"]._concurrency.size
            return b"1"

    store = Far()
    with Runtime({"m": store}, clock=lambda: store.now) as runtime:
        futures = [runtime.start(one(get(1000, path=str(n)))) for n in range(1500)]
        for future in futures:
            future.result(60)
        assert 10 <= runtime._channels["m"]._concurrency.size <= 32


def test_transfers_are_told_in_one_thread_and_one_that_raises_ends_nothing() -> None:
    store = Gated()
    store.let("*")
    told: list[Transferred] = []
    threads: set[int] = set()
    raised: list[Transferred] = []

    def listener(event: Any) -> None:
        told.append(event)
        threads.add(threading.get_ident())

    def bad(event: Any) -> None:
        raised.append(event)
        raise ValueError("listener")

    with Runtime({"m": store}) as runtime:
        runtime.listen(listener)
        runtime.run(one(put(7)))
        runtime.run(one(get(10, NOW)))
        runtime.run(one(Op("m", "stat", "x")))
        store.fail = [BackendError("no", retryable=False)]
        runtime.run(one(put(9)))
        runtime.listen(bad)
        runtime.run(one(put(1)))
        runtime.run(one(put(2)))
        runtime.run(one(put(3)))
    assert [(t.backend, t.direction, t.bytes, t.pack) for t in told] == [("m", "up", 7, True), ("m", "down", 5, False)]
    assert all(t.seconds > 0 for t in told)
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert [t.bytes for t in raised] == [1, 2, 3]


def test_the_order_holds_for_random_bursts() -> None:
    """A thousand calls at once through the real threads: each comes back once, whatever it is."""
    rng = random.Random(7)
    store = Gated()
    store.let("*")
    ops = [put(rng.choice((1, 1000, BIG)), rng.choice(list(Urgency)), path=str(n)) for n in range(1000)]
    with Runtime({"m": store}) as runtime:
        futures = [runtime.start(one(op)) for op in ops]
        assert all(f.result(60).error is None for f in futures)
    assert sorted(store.began) == sorted(op.path for op in ops)
