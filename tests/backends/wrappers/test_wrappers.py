"""Wrappers around a backend: each keeps the contract, and does what it is there for, on a clock of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from contract_kit import SMALL, passes

from metasync.backends.api import (
    Backend,
    Change,
    Digest,
    DigestKind,
    LogForm,
    Probes,
    Space,
    TellsDigests,
    TellsSpace,
    Watches,
)
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend, MemoryStore
from metasync.backends.wrappers.breaker import Breaker
from metasync.backends.wrappers.pace import Account, Paced
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.trace import Traced
from metasync.backends.wrappers.wrapper import AbsentBackend, Prefixed, Wrapper, layers
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.effects import DUE, Op
from metasync.runtime.tasks import Runtime
from metasync.testing.contract import CHECKS, Check, Store, check_id
from metasync.testing.counting import CountingBackend
from metasync.testing.faults import FaultyBackend, Plan, lossy
from metasync.testing.lagging import LaggingBackend
from metasync.testing.slow import SlowBackend


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        with self._lock:
            self.slept.append(seconds)
            self.now += seconds


def retrying(inner: Backend, clock: Clock, **options: object) -> Retrying:
    more = {"fraction": lambda: 1.0, "attempts_max": 5, "deadline_s": 60.0, "pause_first_s": 0.1}
    return Retrying(inner, clock=clock, sleep=clock.sleep, **{**more, **options})


# --- the contract

WRAPPERS: dict[str, Callable[[Backend], Backend]] = {
    "wrapper": Wrapper,
    "prefixed": lambda b: Prefixed(b, "folder/below"),
    "retrying": Retrying,
    "retrying a lossy one": lambda b: retrying(lossy(b, seed=1, rate=0.1), Clock(), attempts_max=20),
    "traced": lambda b: Traced(b, "m", lambda _line: None),
    "breaker": Breaker,
    "all": lambda b: Retrying(Breaker(Traced(b, "m", lambda _line: None))),
    "faulty": FaultyBackend,
    "counting": CountingBackend,
    "lagging by nothing": lambda b: LaggingBackend(b, lag=(0, 0)),
    "slow": lambda b: SlowBackend(b, latency_s=(0.01, 0.1), bytes_per_s=1e6, sleep=lambda _s: None),
}


EQUAL_BYTES = ("create",)  # checks that create a name twice with the same bytes


@pytest.fixture(params=WRAPPERS)
def wrapper(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
def test_contract(check: Check, wrapper: str) -> None:
    if wrapper == "retrying a lossy one" and check_id(check) in EQUAL_BYTES:
        pytest.skip("creates of equal bytes: see test_equal_bytes_of_another_count_as_ones_own")
    store = MemoryStore()
    passes(check, Store(lambda: WRAPPERS[wrapper](MemoryBackend(store))), SMALL)


class _Full(MemoryBackend):
    """Has the optional powers."""

    digest_kind: ClassVar[DigestKind] = "md5"

    def space(self) -> Space:
        return Space(1, 2)

    def probe(self) -> LogForm:
        return "none"

    def digest(self, path: str) -> Digest:
        return Digest(3, b"d")


def test_optional_powers_are_those_of_the_store(wrapper: str) -> None:
    plain, full = WRAPPERS[wrapper](MemoryBackend()), WRAPPERS[wrapper](_Full())
    assert not isinstance(plain, TellsSpace)
    assert not isinstance(plain, Probes)
    assert isinstance(full, TellsSpace)
    assert isinstance(full, Probes)
    assert full.space() == Space(1, 2)
    assert full.probe() == "none"
    assert not isinstance(plain, TellsDigests)
    assert isinstance(full, TellsDigests)
    assert (full.digest_kind, full.digest("a")) == ("md5", Digest(3, b"d"))
    assert "space" in vars(full), "where isinstance() looks since Python 3.12"
    assert plain.form == full.form == "log"
    assert plain.scheme == "memory"
    assert full.identity() == list(layers(full))[-1].identity()
    plain.close()
    full.close()


def test_layers() -> None:
    store = MemoryBackend()
    inner = Traced(store, "m", lambda _line: None)
    outer = Retrying(inner)
    assert list(layers(outer)) == [outer, inner, store]
    assert list(layers(store)) == [store]


def test_prefixed_keeps_to_its_folder() -> None:
    store = MemoryBackend()
    below = Prefixed(store, "one/two/")
    below.put("a/b", b"1")
    assert store.get("one/two/a/b", max_bytes=1) == b"1"
    assert [e.name for e in below.list("")] == ["a"]
    for path in ("", "a/"):
        with pytest.raises(ValueError, match="not a path"):
            below.put(path, b"2")
    with pytest.raises(ValueError, match="not a path"):
        below.list("a/")


# --- retry

CALLS = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"y"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "delete": lambda b: b.delete("d/a"),
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def faulty() -> FaultyBackend:
    backend = FaultyBackend(MemoryBackend())
    backend.put("d/a", b"content")
    backend.calls.clear()
    return backend


@pytest.mark.parametrize("kind", CALLS)
def test_what_may_pass_is_tried_again(faulty: FaultyBackend, clock: Clock, kind: str) -> None:
    expected = CALLS[kind](FaultyBackend(_copy(faulty)))
    faulty.calls.clear()
    faulty.fail_next("unreachable", times=3)
    assert CALLS[kind](retrying(faulty, clock)) == expected
    assert clock.slept == [0.1, 0.2, 0.4], "twice as long each time"
    assert faulty.calls == {kind: 4}


def _copy(backend: FaultyBackend) -> MemoryBackend:
    out = MemoryBackend()
    for path, data in backend.snapshot().items():
        out.put(path, data)
    return out


def test_pauses_are_drawn_and_bounded(faulty: FaultyBackend, clock: Clock) -> None:
    drawn = iter([0.5, 0.0, 1.0, 1.0, 0.25, 1.0, 1.0, 1.0])
    backend = retrying(faulty, clock, fraction=lambda: next(drawn), attempts_max=9, pause_max_s=1.0)
    faulty.fail_next("unreachable", times=8)
    backend.stat("d/a")
    assert clock.slept == [0.05, 0.0, 0.4, 0.8, 0.25, 1.0, 1.0, 1.0]


def test_attempts_are_bounded(faulty: FaultyBackend, clock: Clock) -> None:
    faulty.down = True
    with pytest.raises(UnreachableError):
        retrying(faulty, clock, attempts_max=4).stat("d/a")
    assert faulty.calls == {"stat": 4}
    assert len(clock.slept) == 3, "no pause after the last"


def test_no_attempt_begins_after_the_deadline(faulty: FaultyBackend, clock: Clock) -> None:
    faulty.down = True
    with pytest.raises(UnreachableError):
        retrying(faulty, clock, attempts_max=99, deadline_s=1.6).stat("d/a")
    assert clock.slept == [0.1, 0.2, 0.4, 0.8], "the next pause would end at 3.1 s"
    assert clock.now <= 1001.6


def test_a_slow_failure_is_not_repeated(clock: Clock) -> None:
    faulty = FaultyBackend(MemoryBackend(), sleep=clock.sleep)
    faulty.down, faulty.slow_s = True, 3.0
    with pytest.raises(UnreachableError):
        retrying(faulty, clock, deadline_s=2.0).stat("d/a")
    assert faulty.calls == {"stat": 1}


def test_no_attempt_begins_when_nobody_waits_any_more(faulty: FaultyBackend, clock: Clock) -> None:
    faulty.down = True
    backend = retrying(faulty, clock, attempts_max=99, due=lambda: 1000.5)
    with pytest.raises(UnreachableError):
        backend.stat("d/a")
    assert clock.slept == [0.1, 0.2]


def test_the_runtime_says_until_when_it_waits() -> None:
    seen: list[float | None] = []

    class Store(MemoryBackend):
        def stat(self, path: str) -> int:
            seen.append(DUE.get())
            return 1

    def task():
        return (yield Op("m", "stat", "a", timeout_s=7.0))

    with Runtime({"m": Store()}, clock=lambda: 100.0) as runtime:
        runtime.run(task())
    assert seen == [107.0]
    assert DUE.get() is None, "nothing outside of the runtime's threads"


@pytest.mark.parametrize("error", [NotFoundError, FullError, RefusedError])
def test_answers_are_not_repeated(clock: Clock, error: type[BackendError]) -> None:
    calls = []

    class Store(MemoryBackend):
        def put(self, path: str, data: bytes) -> None:
            calls.append(path)
            failure = error("no")
            failure.retryable = True  # even then
            raise failure

    with pytest.raises(error):
        retrying(Store(), clock).put("a", b"")
    assert calls == ["a"]


def test_what_cannot_pass_is_not_repeated(clock: Clock) -> None:
    store = CountingBackend(AbsentBackend(UnreachableError("gone for good", retryable=False)))
    with pytest.raises(UnreachableError):
        retrying(store, clock).stat("a")
    assert store.count().requests == {"stat": 1}


class _Busy(MemoryBackend):
    """Says for how long it does not want to be asked."""

    def __init__(self, *after: float) -> None:
        super().__init__()
        self.after = list(after)

    def stat(self, path: str) -> int:
        if self.after:
            raise BackendError("slow down", retry_after_s=self.after.pop(0))
        return 1


def test_retry_after_is_kept(clock: Clock) -> None:
    assert retrying(_Busy(3.0, 0.01), clock).stat("a") == 1
    assert clock.slept == [3.0, 0.2], "the longer of the two"
    busy = _Busy(61.0, 0.0)
    with pytest.raises(BackendError):
        retrying(busy, clock, deadline_s=60.0).stat("a")
    assert clock.slept == [3.0, 0.2], "too long to wait: at once"


def test_an_own_create_that_landed_counts(faulty: FaultyBackend, clock: Clock) -> None:
    faulty.fail_next("lost_reply", kind="create")
    assert retrying(faulty, clock).create("d/new", b"mine") is True
    assert faulty.calls == {"create": 2, "get": 1}


def test_a_create_that_another_won_does_not(faulty: FaultyBackend, clock: Clock) -> None:
    for number, other in enumerate((b"his", b"mine and more", b"min", b"")):
        path = f"d/new{number}"
        faulty.fail_next("lost_request", kind="create")
        rival = _Rival(faulty, path, other)
        assert retrying(rival, clock).create(path, b"mine") is False
        assert faulty.get(path, max_bytes=99) == other


class _Rival(Wrapper):
    """Before the second attempt another client takes the name."""

    def __init__(self, inner: Backend, path: str, data: bytes) -> None:
        super().__init__(inner)
        self.path, self.data, self.turns = path, data, 0

    def create(self, path: str, data: bytes) -> bool:
        self.turns += 1
        if self.turns == 2:
            assert self.inner.create(self.path, self.data)
        return self.inner.create(path, data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        assert length is not None, "bounded by what was to be created"
        assert max_bytes <= 5
        return self.inner.get(path, offset=offset, length=length, max_bytes=max_bytes)


def test_taken_at_the_first_attempt_is_not_read_back(faulty: FaultyBackend, clock: Clock) -> None:
    faulty.create("d/new", b"mine")
    faulty.calls.clear()
    assert retrying(faulty, clock).create("d/new", b"mine") is False, "the same bytes are taken as well"
    assert faulty.calls == {"create": 1}


def test_equal_bytes_of_another_count_as_ones_own(faulty: FaultyBackend, clock: Clock) -> None:
    """What the module's docstring warns of: whoever elects by an object's existence must make its bytes one's own."""
    faulty.create("d/lock", b"")
    faulty.fail_next("lost_request", kind="create")
    assert retrying(faulty, clock).create("d/lock", b"") is True


@pytest.mark.parametrize("fault", ["unreachable", "refused", "absent"])
def test_an_outcome_that_stays_unknown_is_an_error(faulty: FaultyBackend, clock: Clock, fault: str) -> None:
    faulty.fail_next("lost_reply", kind="create")
    faulty.fail_next(fault, kind="get", times=99)
    with pytest.raises(UnreachableError, match="cannot be read"):
        retrying(faulty, clock).create("d/new", b"mine")
    assert faulty.calls["get"] == (1 if fault == "refused" else 4)


def test_reading_back_is_tried_again(faulty: FaultyBackend, clock: Clock) -> None:
    faulty.fail_next("lost_reply", kind="create")
    faulty.fail_next("unreachable", kind="get", times=2)
    assert retrying(faulty, clock).create("d/new", b"mine") is True


def test_racing_creates_over_a_lossy_network_have_one_winner_each() -> None:
    store = MemoryStore()
    wins: list[tuple[int, int]] = []
    writers = 4

    def race(writer: int) -> None:
        lossy_one = lossy(MemoryBackend(store), seed=writer, rate=0.4)
        backend = retrying(lossy_one, Clock(), attempts_max=200, deadline_s=1e9)
        for number in range(100):
            if backend.create(f"px/{number}", b"%d" % writer):
                wins.append((number, writer))

    threads = [threading.Thread(target=race, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(number for number, _ in wins) == list(range(100))
    for number, writer in wins:
        assert store.objects[f"px/{number}"] == b"%d" % writer


# --- faults that hang


def test_hanging_calls_return_when_released(faulty: FaultyBackend, tmp_path: Path) -> None:
    assert isinstance(FaultyBackend(FolderBackend(str(tmp_path))), TellsSpace)
    faulty.hanging = True
    outcomes: list[object] = []

    def call() -> None:
        try:
            outcomes.append(faulty.create("d/new", b""))
        except BackendError as e:
            outcomes.append(e)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(0.05)
    assert caller.is_alive()
    faulty.release()
    caller.join(60)
    assert isinstance(outcomes[0], UnreachableError)
    assert faulty.create("d/new", b"") is True, "it had no effect, and now nothing hangs"


def test_plans_are_as_before() -> None:
    """A seed written down once gives the same faults for ever."""
    plan = Plan(seed=7, rates={"lost_request": 0.1, "lost_reply": 0.1})
    drawn = [plan.draw("create", f"px/{n}", 0) for n in range(40)]
    assert [n for n, fault in enumerate(drawn) if fault == "lost_request"] == EXPECTED_REQUESTS
    assert [n for n, fault in enumerate(drawn) if fault == "lost_reply"] == EXPECTED_REPLIES


EXPECTED_REQUESTS = [9]
EXPECTED_REPLIES = [10]


class Watching(MemoryBackend):
    """A store that can be watched; it notes for what."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, float]] = []
        self.error: BackendError | None = None

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        self.asked.append((path, cursor, timeout_s))
        if self.error is not None:
            raise self.error
        return Change("next", True, 2.0)


def test_a_watch_goes_through_every_wrapper_as_what_it_is() -> None:
    inner = Watching()
    wrapped = Retrying(Breaker(Prefixed(Traced(inner, "m", lambda _line: None), "folder")))
    assert isinstance(wrapped, Watches)
    assert wrapped.watch("a", "here", 30.0) == Change("next", True, 2.0)
    assert inner.asked == [("folder/a", "here", 30.0)]
    assert not isinstance(Retrying(Breaker(MemoryBackend())), Watches)


def test_a_watch_is_no_call_of_the_breaker_and_is_not_repeated() -> None:
    """A long poll that ends without an answer says nothing about the store."""
    inner = Watching()
    breaker = Breaker(inner)
    wrapped = Retrying(breaker)
    inner.error = UnreachableError("no answer")
    for _ in range(9):
        with pytest.raises(UnreachableError):
            wrapped.watch("a", "", 30.0)
    assert (breaker.state, len(inner.asked)) == ("closed", 9)
    assert isinstance(breaker.look(), float)


def test_an_account_that_asked_for_fewer_requests_is_not_watched_either(tmp_path: Path) -> None:
    inner, clock = Watching(), Clock()
    paced = Paced(inner, Account(str(tmp_path / "account"), clock=clock, wall=clock))
    inner.error = BackendError("busy", retry_after_s=9.0)
    for _ in range(2):
        with pytest.raises(BackendError):
            paced.watch("a", "", 30.0)
    assert len(inner.asked) == 1
    clock.sleep(10)
    inner.error = None
    assert paced.watch("a", "", 30.0).cursor == "next"
