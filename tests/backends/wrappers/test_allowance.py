"""Calls keep to what a provider publishes: no minute has more, a rest saves up a part, urgent calls go at once."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from metasync.backends.api import Rate
from metasync.backends.box import BoxBackend
from metasync.backends.dropbox import DropboxBackend
from metasync.backends.gdrive import GoogleDriveBackend
from metasync.backends.memory import MemoryBackend
from metasync.backends.onedrive import OneDriveBackend
from metasync.backends.wrappers.allowance import BURST, DEBT_S, Allowance
from metasync.backends.wrappers.pace import TURN_S, Account, Paced
from metasync.backends.wrappers.retry import Retrying
from metasync.backends.wrappers.wrapper import Wrapper
from metasync.errors import BackendError, HeldBackError
from metasync.runtime.effects import CARRIED

RATES = (Rate("requests", 600, {"get": 2, "put": 1, "stat": 1}), Rate("uploads", 60, {"put": 1}))


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Store(MemoryBackend):
    """Notes when it is asked for what. It refuses while `refuse` holds answers."""

    rates: ClassVar[tuple[Rate, ...]] = RATES

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.calls: list[tuple[float, str]] = []
        self.refuse: list[float] = []

    def put(self, path: str, data: bytes) -> None:
        self.calls.append((self.clock.now, "put"))
        if self.refuse:
            raise BackendError("429", retry_after_s=self.refuse.pop(0))
        super().put(path, data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        self.calls.append((self.clock.now, "get"))
        return super().get(path, offset=offset, length=length, max_bytes=max_bytes)


class Flight:
    """A call of the channel."""

    def __init__(self, *, is_urgent: bool) -> None:
        self.is_urgent = is_urgent

    def leave(self, error: BackendError) -> None:
        raise AssertionError

    def refused(self, after_s: float) -> None:
        """The channel would make fewer calls at once."""


@contextlib.contextmanager
def carried(*, is_urgent: bool) -> Iterator[None]:
    token = CARRIED.set(Flight(is_urgent=is_urgent))
    try:
        yield
    finally:
        CARRIED.reset(token)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return Store(clock)


@pytest.fixture
def account(clock: Clock, tmp_path: Path) -> Account:
    return Account(str(tmp_path / "a.json"), clock=clock, wall=clock)


def put_at_once(backend: Paced, clock: Clock, count: int) -> None:
    """As the channel does it: what is put off is made when it may be."""
    for number in range(count):
        with carried(is_urgent=False):
            while True:
                try:
                    backend.put(f"p{number}", b"x")
                except HeldBackError as error:
                    assert error.retryable
                    assert error.retry_after_s is not None
                    assert TURN_S <= error.retry_after_s <= 10
                    clock.sleep(error.retry_after_s)
                else:
                    break


def busiest(store: Store, what: Rate) -> float:
    """The most that a minute had, of any that begins with a call."""
    spent = [(at, what.costs.get(kind, 0.0)) for at, kind in store.calls]
    return max(sum(cost for at, cost in spent if begin <= at < begin + 60) for begin, _ in spent)


# --- what is decided


def test_no_minute_has_more_than_is_published(clock: Clock, store: Store, account: Account) -> None:
    began = clock.now
    put_at_once(Paced(store, account), clock, 200)
    assert busiest(store, RATES[1]) <= 60
    assert clock.now - began == pytest.approx((200 - 15) / (45 / 60), rel=0.05), "and not much less"


def test_two_workspaces_of_an_account_share_it(clock: Clock, store: Store, account: Account) -> None:
    one, two = Paced(store, account), Paced(store, account)
    for number in range(60):
        put_at_once(one if number % 2 else two, clock, 1)
    assert busiest(store, RATES[1]) <= 60


def test_a_small_push_does_not_wait(clock: Clock, store: Store, account: Account) -> None:
    put_at_once(Paced(store, account), clock, round(60 * BURST))
    assert clock.now == 1000.0
    clock.sleep(3600)
    put_at_once(Paced(store, account), clock, round(60 * BURST))
    assert clock.now == 4600.0
    with carried(is_urgent=False), pytest.raises(HeldBackError, match="bears 600 requests a minute"):
        Paced(store, account).put("p", b"x")


def test_urgent_calls_go_and_the_others_wait_for_what_they_took(clock: Clock, store: Store, account: Account) -> None:
    backend = Paced(store, account)
    for is_urgent in (True, None):  # None: a caller without a channel, which makes a call once
        with carried(is_urgent=True) if is_urgent else contextlib.nullcontext():
            for number in range(500):
                backend.put(f"u{number}", b"x")
    assert clock.now == 1000.0
    with carried(is_urgent=False), pytest.raises(HeldBackError) as caught:
        backend.put("p", b"x")
    assert caught.value.retry_after_s == pytest.approx(DEBT_S + 1 / (45 / 60)), "no longer, whatever they took"


def test_a_call_that_costs_more_than_is_saved_up_is_made(clock: Clock) -> None:
    allowance = Allowance((Rate("requests", 4, {"get": 100}),))
    assert allowance.wait_s(clock.now, "get") == 0
    allowance.take(clock.now, "get")
    assert 0 < allowance.wait_s(clock.now, "get") < 60
    assert allowance.wait_s(clock.now, "stat") == 0, "what is not named costs nothing"


def test_a_refusal_has_the_last_word(clock: Clock, store: Store, account: Account) -> None:
    """The provider bears less than it publishes, or others use the account: what was saved up is gone."""
    backend = Paced(store, account)
    store.refuse = [5.0]
    with carried(is_urgent=False):
        with pytest.raises(BackendError, match="429"):
            backend.put("p", b"x")
        clock.sleep(5.0)
        for _ in range(3):
            backend.put("p", b"x")
        with pytest.raises(HeldBackError, match="a minute"):
            backend.put("p", b"x")


def test_whatever_is_asked_for_it_goes_on(clock: Clock) -> None:
    rng = random.Random(7)
    allowance = Allowance(RATES)
    for _ in range(2000):
        clock.sleep(rng.choice([0, 0, 0, 0.01, 1, 90]))
        kind = rng.choice(["get", "put", "stat", "space"])
        wait_s = allowance.wait_s(clock.now, kind)
        assert 0 <= wait_s <= DEBT_S + 4
        if rng.random() < 0.5:
            allowance.take(clock.now, kind)
        elif rng.random() < 0.1:
            allowance.empty(clock.now)
        else:
            clock.sleep(wait_s)
            assert allowance.wait_s(clock.now, kind) == pytest.approx(0, abs=1e-6)


# --- who says it


def test_a_store_without_rates_never_waits(clock: Clock, account: Account) -> None:
    backend = Paced(MemoryBackend(), account)
    put_at_once(backend, clock, 2000)
    assert clock.now == 1000.0


def test_the_users_number_counts_in_place_of_the_providers(clock: Clock, store: Store, account: Account) -> None:
    backend = Paced(store, account)
    backend.most = lambda: math.inf
    put_at_once(backend, clock, 2000)
    assert clock.now == 1000.0
    backend.most = lambda: 10.0
    store.calls.clear()
    put_at_once(backend, clock, 30)
    assert busiest(store, Rate("requests", 10, {"put": 1})) <= 10
    plain = Paced(MemoryBackend(), account)
    plain.most = lambda: 8.0
    with carried(is_urgent=False):
        plain.put("p", b"x")
        plain.stat("p")
        with pytest.raises(HeldBackError, match="bears 8 requests"):
            plain.stat("p")


def test_a_call_that_was_put_off_is_not_taken_for_one_that_may_have_landed(clock: Clock, account: Account) -> None:
    """A create that was never sent is made later, and is told that the name is free."""
    store = Store(clock)
    backend = Retrying(Paced(Wrapper(store), account), clock=clock, sleep=clock.sleep)
    for number in range(round(60 * BURST)):
        backend.put(f"p{number}", b"x")
    with carried(is_urgent=False):
        backend.put("late", b"x")
    assert clock.now > 1000.0
    assert len(store.calls) == 60 * BURST + 1


@pytest.mark.parametrize("kind", [BoxBackend, GoogleDriveBackend, OneDriveBackend])
def test_the_rates_that_providers_publish(kind: type[BoxBackend | GoogleDriveBackend | OneDriveBackend]) -> None:
    """A first push of some thousand files, and a small one, go at once. Dropbox names no number (providers.md)."""
    assert not hasattr(DropboxBackend, "rates")
    push = ["create"] * 12 + ["put"] * 20 + ["get"] * 20 + ["stat", "list", "delete", "identity", "space"]
    allowance = Allowance(kind.rates)
    for call in push:
        assert allowance.wait_s(0.0, call) == 0, call
        allowance.take(0.0, call)
