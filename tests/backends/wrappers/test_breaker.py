"""The circuit breaker: what it decides on a clock of the test's own, and what it does about calls that never return."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from metasync.backends.api import Backend
from metasync.backends.memory import MemoryBackend
from metasync.backends.wrappers import breaker as _breaker
from metasync.backends.wrappers.breaker import (
    COOL_FIRST_S,
    COOL_HUNG_S,
    COOL_MAX_S,
    FAILURES_MAX,
    PATIENCE_MAX_S,
    PATIENCE_S,
    PATIENCE_SHORT_S,
    Breaker,
    Circuit,
    lasting,
)
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.wrapper import ATTEMPT, Call, layers
from metasync.errors import BackendError, NotFoundError, UnreachableError
from metasync.runtime.effects import SLOWEST_BYTES_PER_S, TRANSFER_TIMEOUT_S, Op, Task
from metasync.runtime.sizes import CALLS_MAX
from metasync.runtime.tasks import Runtime
from metasync.testing.faults import FaultyBackend

SMALL = Call("get", "px/0", 0, 8192)
PACK = Call("put", "packs/0", 4 << 20)

# --- what is decided


@pytest.mark.parametrize(
    ("message", "lasts"),
    [
        ("the folder /a is not there", "the folder /a is not there"),
        ("cannot get t-0123/ab: no answer for 5.0 s", "no answer for 5.0 s"),
        (
            "cannot get p: the backend is not asked: cannot get x: refused; since 20 s it is left alone, for 6 s more",
            "refused",
        ),
        (
            "cannot stat a: the backend is not asked: it is old; since 1 s it is left alone but for one trial",
            "it is old",
        ),
        (
            "cannot put a: the backend is not asked: 9 calls before it have not come back",
            "9 calls before it have not come back",
        ),
        ("it says; since noon", "it says; since noon"),
    ],
)
def test_what_lasts_of_an_error_names_no_object_and_no_seconds(message: str, lasts: str) -> None:
    assert lasting(message) == lasts


def test_what_a_breaker_says_while_it_asks_nobody_is_understood() -> None:
    circuit = Circuit()
    for _ in range(FAILURES_MAX):
        circuit.unreachable(0.0, "cannot get a/b: refused")
    is_open = circuit.admit(0.0)
    assert circuit.admit(1000.0) is None
    for why in (is_open, circuit.admit(1000.0)):
        assert why is not None
        assert lasting(f"cannot get c/d: the backend is not asked: {why}") == "refused"


def test_failures_in_a_row_open_it() -> None:
    c = Circuit()
    for _ in range(FAILURES_MAX - 1):
        c.unreachable(0.0, "connection refused")
    assert c.admit(0.0) is None
    c.answered(0.0, 0.1, late=False)
    for _ in range(FAILURES_MAX - 1):
        c.unreachable(0.0, "connection refused")
    assert c.admit(0.0) is None, "not in a row"
    c.unreachable(5.0, "connection refused")
    why = c.admit(5.25)
    assert why is not None
    assert "connection refused" in why
    assert "since 0 s" in why
    assert c.admit(5.0 + COOL_FIRST_S - 0.01) is not None


def test_calls_that_fail_together_open_it_once() -> None:
    c = Circuit()
    for _ in range(50):
        c.unreachable(0.0, "x")
    assert c.admit(COOL_FIRST_S) is None, "the cool-down is still the first"


def test_one_trial_after_the_cool_down() -> None:
    c = Circuit()
    c.hangs(0.0, "no answer")
    assert c.admit(COOL_HUNG_S - 0.1) is not None
    assert c.admit(COOL_HUNG_S) is None
    assert c.admit(COOL_HUNG_S) is not None, "one at a time"
    assert c.state == "half-open"
    c.answered(COOL_HUNG_S + 1, 0.1, late=False)
    assert c.state == "closed"
    assert c.admit(COOL_HUNG_S + 1) is None


def test_the_cool_down_doubles_up_to_a_bound_and_starts_anew_after_an_answer() -> None:
    c, now, cools = Circuit(), 0.0, []
    for _ in range(FAILURES_MAX):
        c.unreachable(now, "x")
    for _ in range(9):
        began = now
        while c.admit(now) is not None:
            now += 0.25
        cools.append(now - began)
        c.unreachable(now, "x")
    assert cools == [min(COOL_MAX_S, COOL_FIRST_S * 2**n) for n in range(9)]
    assert "since 2" in (c.admit(now) or ""), "since it opened first, not since the last trial"
    now += COOL_MAX_S
    assert c.admit(now) is None
    c.answered(now, 0.1, late=False)
    for _ in range(FAILURES_MAX):
        c.unreachable(now, "x")
    assert c.admit(now + COOL_FIRST_S) is None


def test_a_trial_that_says_nothing_is_followed_by_another() -> None:
    c = Circuit()
    c.hangs(0.0, "x")
    assert c.admit(COOL_HUNG_S) is None
    c.dropped(COOL_HUNG_S)
    assert c.admit(COOL_HUNG_S) is None


def test_patience_grows_with_bytes() -> None:
    c = Circuit()
    assert c.patience_s(SMALL, 0) == PATIENCE_S
    assert c.patience_s(PACK, 0) == TRANSFER_TIMEOUT_S + (4 << 20) / SLOWEST_BYTES_PER_S
    assert c.patience_s(SMALL, 4 << 20) == PATIENCE_S + (4 << 20) / SLOWEST_BYTES_PER_S, "on a line that is busy"


def test_a_suspect_is_given_little_time_until_it_answers() -> None:
    c = Circuit(suspected=True)
    assert c.patience_s(SMALL, 0) == PATIENCE_SHORT_S
    c.answered(1.0, 0.1, late=False)
    assert c.patience_s(SMALL, 0) == PATIENCE_S


def test_an_answer_that_came_late_gives_more_time_from_then_on() -> None:
    c = Circuit()
    c.hangs(5.0, "x")
    c.answered(8.0, 8.0, late=True)
    assert c.state == "closed"
    assert not c.hung
    assert c.patience_s(SMALL, 0) == 16.0
    c.answered(9.0, 1000.0, late=True)
    assert c.patience_s(SMALL, 0) == PATIENCE_MAX_S
    c.answered(10.0, 1.0, late=True)
    assert c.patience_s(SMALL, 0) == PATIENCE_MAX_S


def test_who_begins_anew_asks_again() -> None:
    c = Circuit()
    for _ in range(FAILURES_MAX):
        c.unreachable(0.0, "x")
    c.again()
    assert c.admit(0.0) is None
    assert c.patience_s(SMALL, 0) == PATIENCE_S, "it failed, but it did not hang"
    c.unreachable(0.0, "x")
    assert c.admit(0.0) is None, "counted anew"
    c.hangs(0.0, "x")
    c.again()
    assert c.admit(0.0) is None
    assert c.patience_s(SMALL, 0) == PATIENCE_SHORT_S


# --- what is done


class Time:
    """A clock that waiting moves. A wait gives calls that do return a moment to do so, then says that time is over."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lock = threading.Lock()
        self.moment_s = 0.2

    def __call__(self) -> float:
        return self.now

    def wait(self, outcome: Future[Any], seconds: float) -> None:
        if not wait([outcome], self.moment_s).done:
            with self.lock:
                self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def faulty() -> Iterator[FaultyBackend]:
    backend = FaultyBackend(MemoryBackend())
    backend.put("a", b"content")
    backend.calls.clear()
    yield backend
    backend.release()


@pytest.fixture
def breaker(faulty: FaultyBackend, time: Time) -> Iterator[Breaker]:
    backend = Breaker(faulty, clock=time, wait=time.wait)
    yield backend
    faulty.release()
    backend.close()


def test_values_and_errors_pass(breaker: Breaker, faulty: FaultyBackend) -> None:
    assert breaker.get("a", max_bytes=9) == b"content"
    with pytest.raises(NotFoundError):
        breaker.stat("b")
    with pytest.raises(ValueError, match="not a path"):
        breaker.put("../x", b"")
    for _ in range(3 * FAILURES_MAX):
        with pytest.raises(NotFoundError):
            breaker.stat("b")
    faulty.read_only = True
    for _ in range(3 * FAILURES_MAX):
        with pytest.raises(BackendError):
            breaker.put("b", b"")
    assert breaker.state == "closed", "answers, all of them"


def test_a_hanging_call_ends_for_its_caller(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    faulty.hanging = True
    with pytest.raises(UnreachableError, match=r"cannot get a: no answer for 5\.0 s") as caught:
        breaker.get("a", max_bytes=9)
    assert not caught.value.retryable
    assert time.now == PATIENCE_S
    with pytest.raises(
        UnreachableError, match=r"is not asked: it gave no answer for 5\.0 s; since 0 s it is left alone"
    ):
        breaker.stat("a")
    assert time.now == PATIENCE_S, "at once"
    assert faulty.calls == {"get": 1}
    assert breaker.silent() is True


def test_all_calls_under_way_end_together(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    faulty.hanging = True
    errors: list[BackendError] = []

    def call(size: int) -> None:
        try:
            breaker.put(f"p{size}", bytes(size))
        except BackendError as e:
            errors.append(e)

    pack = threading.Thread(target=call, args=(4 << 20,))  # alone it would be waited for much longer
    breaker._wait = patiently
    small_one = threading.Thread(target=lambda: errors.append(_error(lambda: breaker.stat("a"))))
    small_one.start()
    while not faulty.calls["stat"]:
        pass
    pack.start()
    while not faulty.calls["put"]:
        pass
    time.now = PATIENCE_S
    breaker.look()
    pack.join(60)
    small_one.join(60)
    assert len(errors) == 2
    assert all("no answer for 5.0 s" in e.message for e in errors)


def patiently(outcome: Future[Any], seconds: float) -> None:
    """Waits until somebody else finds out that the backend hangs."""
    wait([outcome], 60)


def _error(call: object) -> BackendError:
    with pytest.raises(BackendError) as caught:
        call()
    return caught.value


def test_a_call_beside_a_large_one_is_given_its_time(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    """Behind a pack on a slow line a small request waits, and nothing hangs."""
    breaker._wait = patiently
    faulty.hanging = True
    callers = [
        threading.Thread(target=lambda call=call: _error(call), daemon=True)
        for call in (lambda: breaker.put("p", bytes(4 << 20)), lambda: breaker.stat("a"))
    ]
    for caller, kind in zip(callers, ("put", "stat"), strict=True):
        caller.start()
        while not faulty.calls[kind]:
            pass
    time.now = PATIENCE_S + (4 << 20) / SLOWEST_BYTES_PER_S - 1
    assert breaker.look() == 1
    assert breaker.state == "closed"
    faulty.release()
    for caller in callers:
        caller.join(60)


def test_a_backend_that_answers_others_does_not_hang(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    faulty.fail_next("hang", kind="list")
    done: list[object] = []
    stuck = threading.Thread(target=lambda: done.append(_error(lambda: breaker.list(""))), daemon=True)
    breaker._wait = patiently
    stuck.start()
    while not faulty.calls["list"]:
        pass
    time.now = PATIENCE_S - 1
    assert breaker.get("a", max_bytes=9) == b"content"
    time.now = 2 * PATIENCE_S - 1.5
    assert breaker.look() == 0.5, "so long it may still take"
    assert breaker.state == "closed"
    time.now = 2 * PATIENCE_S - 1
    breaker.look()
    assert breaker.state == "open"
    stuck.join(60)
    assert len(done) == 1


def test_a_late_answer_closes_it_at_once(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    gate = threading.Event()
    inner, breaker.inner = breaker.inner, _Gate(breaker.inner, gate)
    with pytest.raises(UnreachableError):
        breaker.get("a", max_bytes=9)
    assert breaker.state == "open"
    gate.set()
    for _ in range(3000):
        if breaker.state == "closed":
            break
        threading.Event().wait(0.01)
    assert breaker.state == "closed"
    assert breaker.silent() is False
    breaker.inner = inner
    assert breaker.get("a", max_bytes=9) == b"content"


class _Gate(MemoryBackend):
    def __init__(self, inner: Backend, gate: threading.Event) -> None:
        super().__init__()
        self.inner, self.gate = inner, gate

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        self.gate.wait(60)
        return self.inner.get(path, offset=offset, length=length, max_bytes=max_bytes)


def test_the_trial_after_a_hang_is_short(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    faulty.hanging = True
    _error(lambda: breaker.stat("a"))
    time.now += COOL_HUNG_S
    before = time.now
    _error(lambda: breaker.stat("a"))
    assert time.now - before == PATIENCE_SHORT_S
    time.now += COOL_HUNG_S
    assert "not asked" in _error(lambda: breaker.stat("a")).message, "twice as long now"
    faulty.release()
    time.now += COOL_HUNG_S
    assert breaker.stat("a") == 7
    assert breaker.state == "closed"


def test_stuck_threads_are_bounded(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    faulty.hanging = True
    time.moment_s = 0.0
    for _ in range(CALLS_MAX):
        breaker.again()
        _error(lambda: breaker.stat("a"))
    while faulty.calls["stat"] < CALLS_MAX:
        pass
    breaker.again()
    assert f"{CALLS_MAX} calls before it have not come back" in _error(lambda: breaker.stat("a")).message
    assert faulty.calls["stat"] == CALLS_MAX
    time.moment_s = 0.2
    faulty.release()
    for _ in range(3000):
        if not breaker._flights:
            break
        threading.Event().wait(0.01)
    assert breaker.stat("a") == 7


def test_a_backend_that_is_down_is_left_alone(breaker: Breaker, faulty: FaultyBackend) -> None:
    faulty.down = True
    errors = [_error(lambda: breaker.stat("a")) for _ in range(20)]
    assert faulty.calls["stat"] == FAILURES_MAX
    assert errors[0].retryable
    assert not errors[-1].retryable
    assert "cannot stat a: no answer (injected)" in errors[-1].message, "it says why"
    assert breaker.silent() is None, "it fails, it does not hang"


def test_a_channel_goes_on_without_the_calls_that_hang(faulty: FaultyBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads are left behind: both connections are free again, while nothing has come back."""
    monkeypatch.setattr(_breaker, "PATIENCE_S", 0.2)
    monkeypatch.setattr(_breaker, "PATIENCE_SHORT_S", 0.1)
    backend = Retrying(Breaker(faulty))

    def one(op: Op) -> Task:
        return (yield op)

    with Runtime({"m": backend}, connections_per_backend=2, connections_max=2) as runtime:
        faulty.fail_next("hang", kind="get", times=2)
        hung = [runtime.start(one(Op("m", "get", "a", max_bytes=9, timeout_s=3600.0))) for _ in range(2)]
        errors = [future.result(60).error for future in hung]
        assert [type(e) for e in errors] == [UnreachableError] * 2
        assert all(e is not None and "no answer for" in e.message and not e.retryable for e in errors)
        assert faulty.calls["get"] == 2, "nobody repeats them"
        assert "not asked" in runtime.run(one(Op("m", "stat", "a"))).error.message
        breaker = next(layer for layer in layers(backend) if isinstance(layer, Breaker))
        breaker.again()
        assert runtime.run(one(Op("m", "stat", "a"))).value == 7
        assert runtime.run(one(Op("m", "get", "a", max_bytes=9))).value == b"content"
        assert len(breaker._flights) == 2, "they have not come back"
        faulty.release()
        while breaker._flights:
            pass
        assert runtime.run(one(Op("m", "stat", "a"))).value == 7
        assert not runtime._channels["m"]._running
    backend.close()


def test_a_retry_above_it_does_not_wait_for_it(faulty: FaultyBackend, time: Time) -> None:
    slept: list[float] = []
    backend = Retrying(Breaker(faulty, clock=time, wait=time.wait), clock=time, sleep=slept.append)
    faulty.hanging = True
    _error(lambda: backend.stat("a"))
    _error(lambda: backend.stat("a"))
    assert slept == []
    assert faulty.calls["stat"] == 1
    faulty.release()
    backend.close()


def test_context_reaches_the_thread_that_makes_the_call(time: Time) -> None:
    seen: list[int] = []

    class Store(MemoryBackend):
        def stat(self, path: str) -> int:
            seen.append(ATTEMPT.get())
            if len(seen) < 3:
                raise UnreachableError("not yet")
            return 1

    backend = Retrying(Breaker(Store()), attempts_max=3, sleep=lambda _s: None)
    assert backend.stat("a") == 1
    assert seen == [1, 2, 3]
    backend.close()


def test_silent_before_the_time_is_up(breaker: Breaker, faulty: FaultyBackend, time: Time) -> None:
    """A command that ended before the time-out tells the next one what it saw."""
    assert breaker.silent() is None
    faulty.hanging = True
    breaker._wait = patiently
    caller = threading.Thread(target=lambda: _error(lambda: breaker.stat("a")), daemon=True)
    caller.start()
    while not faulty.calls["stat"]:
        pass
    assert breaker.silent() is None
    time.now += PATIENCE_SHORT_S
    assert breaker.silent() is True
    faulty.release()
    caller.join(60)


def test_after_closing() -> None:
    backend = Breaker(MemoryBackend())
    backend.list("")
    backend.close()
    with pytest.raises(AssertionError, match="closed"):
        backend.list("")
