"""Whole workspaces over backends that are lossy, slow, late or silent: devices converge, and nothing is lost."""

from __future__ import annotations

import dataclasses
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import first
from workspace_kit import Lab, tree_of, write

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.wrappers import breaker as _breaker
from metasync.backends.wrappers.breaker import Breaker
from metasync.backends.wrappers.retry import ATTEMPTS_MAX, Retrying
from metasync.backends.wrappers.wrapper import layers
from metasync.errors import DamagedError, MetaSyncError, NoQuorumError, NotFoundError, UnreachableError
from metasync.runtime.tasks import Runtime
from metasync.session import folder
from metasync.session import open_backend as ways
from metasync.testing.faults import FaultyBackend, lossy
from metasync.testing.lagging import LaggingBackend
from metasync.testing.slow import SlowBackend
from metasync.workspace import Workspace

TRIES = 60

Make = Callable[[int, Backend], Any]


class Net:
    """All ways to the lab's backends go through one more wrapper each, which every device shares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
        self.made: dict[str, Any] = {}
        opened = ways.opened

        def through(name: str, url: BackendUrl, *, create: bool) -> Backend:
            if url.location not in self.made:
                self.made[url.location] = make(len(self.made), opened(name, url, create=create))
            return self.made[url.location]

        monkeypatch.setattr(ways, "opened", through)


def until_done(call: Callable[[], Any]) -> Any:
    """Runs an operation again for as long as it says that it could not be done now.

    What does not show yet is `DamagedError` to who looks for it: over backends that keep the contract nothing is.
    """
    for _ in range(TRIES):
        try:
            return call()
        except (NoQuorumError, UnreachableError, DamagedError):
            continue
    return call()


def edit(folder: Path, rng: random.Random, turn: str) -> None:
    for _ in range(rng.randrange(1, 4)):
        name = f"d{rng.randrange(3)}/f{rng.randrange(6)}"
        write(folder, {name: f"{turn} {rng.random()}\n".encode() * rng.randrange(1, 400)})


def converge(lab: Lab, one: Workspace, other: Workspace, *, rounds: int = 4, settle: Callable[[], None]) -> None:
    """Both devices change things and push; in the end both hold the same, and every version is there in full."""
    rng = random.Random(5)
    written: set[bytes] = set()
    for turn in range(rounds):
        for device in (one, other):
            edit(device.directory, rng, f"{device.directory.name} {turn}")
            written |= {node.data for node in tree_of(device.directory).values() if node.kind == "file"}
            until_done(device.push)
    settle()
    for device in (one, other, one):
        until_done(device.sync)
    assert tree_of(one.directory) == tree_of(other.directory)
    third = lab.keep(until_done(lambda: _cloned_anew(lab)))
    until_done(third.sync)
    settle()
    assert tree_of(third.directory) == tree_of(one.directory)
    report = until_done(lambda: third.check(read_data=True))
    assert not report.lost
    last = {node.data for node in tree_of(one.directory).values() if node.kind == "file"}
    assert len(last & written) >= rounds, "what was written last on either side is there"


def _cloned_anew(lab: Lab) -> Workspace:
    return lab.clone(lab.urls("a", "b", "c"), device="third")


def two_devices(lab: Lab) -> tuple[Workspace, Workspace]:
    one = lab.init(lab.urls("a", "b", "c"))
    return one, until_done(lambda: lab.clone(lab.urls("a", "b", "c")))


@pytest.mark.long
@pytest.mark.parametrize("seed", first(1, [1, 2]))
def test_over_lossy_backends(lab: Lab, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    nets: list[Any] = []

    def make(number: int, inner: Backend) -> Backend:
        nets.append(lossy(inner, seed=seed * 10 + number, rate=0.0))
        return nets[-1]

    Net(monkeypatch, make)
    one, other = two_devices(lab)
    for net in nets:
        net.plan = dataclasses.replace(net.plan, rates={"lost_request": 0.06, "lost_reply": 0.06})
    converge(lab, one, other, settle=lambda: None)
    assert sum(net.faults.total() for net in nets) > 10


@pytest.mark.long
def test_over_slow_backends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes 0 to 8 ms, each backend another time: replies come in every order."""
    nets: list[SlowBackend] = []

    def make(number: int, inner: Backend) -> Backend:
        nets.append(SlowBackend(inner, seed=number, latency_s=(0.0, 0.008), bytes_per_s=50e6))
        return nets[-1]

    Net(monkeypatch, make)
    one, other = two_devices(lab)
    converge(lab, one, other, rounds=3, settle=lambda: None)
    assert all(net.waited_s > 0.1 for net in nets)


@pytest.mark.few(1)
@pytest.mark.parametrize("monotonic", [True, False])
@pytest.mark.parametrize("calls", first(1, [12, 25]))
def test_over_lagging_backends(lab: Lab, monkeypatch: pytest.MonkeyPatch, calls: int, monotonic: bool) -> None:
    """Beyond the contract: reads do not see what was written a moment ago.

    A pull may then bring less than was pushed, a push may have to be repeated, and an object that does not show yet
    counts as damaged. What still holds: creates decide who wins a slot, so that no two values are agreed for one
    version; nothing that was pushed is lost; and when the writes show, all devices hold the same.
    """
    nets: list[LaggingBackend] = []

    def make(number: int, inner: Backend) -> Backend:
        nets.append(LaggingBackend(inner, seed=number + 40, lag=(0, 0), monotonic=monotonic))
        return nets[-1]

    Net(monkeypatch, make)
    one, other = two_devices(lab)

    def settle() -> None:
        for net in nets:
            net.settle()

    settle()
    for net in nets:
        net._lag = (0, calls)
    converge(lab, one, other, rounds=8, settle=settle)
    if calls > 12 or not monotonic:  # else hardly a read follows a write so closely
        assert sum(net.stale_reads for net in nets) > 0
    versions = {item.version: item for item in one.log()}
    assert {item.version: item for item in other.log()} == versions, "one history"


# --- lagging by itself


def test_a_write_shows_after_its_lag() -> None:
    b = LaggingBackend(MemoryBackend(), lag=(4, 4))
    assert b.create("d/a", b"1") is True
    assert b.create("d/a", b"2") is False, "who wins is decided at once"
    assert b.list("") == ()
    with pytest.raises(NotFoundError, match="does not show yet"):
        b.stat("d/a")
    assert b.get("d/a", max_bytes=9) == b"1", "the fourth call after it"
    b.put("d/a", b"22")
    assert [b.stat("d/a") for _ in range(6)] == [1, 1, 1, 2, 2, 2]
    b.delete("d/a")
    assert [len(b.list("d")) for _ in range(6)] == [1, 1, 1, 0, 0, 0]
    b.put("d/b", b"")
    b.settle()
    assert b.stat("d/b") == 0


def test_monotonic_or_not() -> None:
    def seen(*, monotonic: bool, seed: int = 3) -> list[int]:
        b = LaggingBackend(MemoryBackend(), seed=seed, lag=(0, 30), monotonic=monotonic)
        b.put("a", b"")
        b.settle()
        for n in range(1, 5):
            b.put("a", b"x" * n)
        return [b.stat("a") for _ in range(40)]

    ordered, other = seen(monotonic=True), seen(monotonic=False)
    assert ordered == sorted(ordered)
    assert other != sorted(other)
    assert ordered[-1] == other[-1] == 4
    assert seen(monotonic=True) == ordered, "by seed"
    assert seen(monotonic=False) == other
    assert seen(monotonic=True, seed=4) != ordered


def test_lag_by_a_clock() -> None:
    now = [0.0]
    b = LaggingBackend(MemoryBackend(), lag=(2.0, 2.0), clock=lambda: now[0])
    b.put("a", b"1")
    for _ in range(20):
        assert b.list("") == ()
    now[0] = 2.0
    assert b.stat("a") == 1


def test_slow_by_seed() -> None:
    def waits(seed: int) -> list[float]:
        slept: list[float] = []
        b = SlowBackend(MemoryBackend(), seed=seed, latency_s=(0.1, 0.2), bytes_per_s=100, sleep=slept.append)
        b.put("a", bytes(50))
        b.get("a", max_bytes=99)
        b.get("a", max_bytes=99)
        return slept

    first = waits(1)
    assert waits(1) == first
    assert waits(2) != first
    assert 0.6 <= first[0] <= 0.7, "its latency and 50 bytes"
    assert first[2] == first[4] == 0.5
    assert first[1] != first[3]


# --- one backend hangs


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The breaker is the only one that ends a wait: the time-outs of single requests are out of the way."""
    monkeypatch.setattr(_breaker, "PATIENCE_S", 0.4)
    monkeypatch.setattr(_breaker, "PATIENCE_SHORT_S", 0.2)
    monkeypatch.setattr(ways, "PATIENCE_S", 0.4)
    real = Runtime._call
    monkeypatch.setattr(
        Runtime, "_call", lambda self, run, op: real(self, run, dataclasses.replace(op, timeout_s=3600.0))
    )


@pytest.fixture
def hanging(lab: Lab, impatient: None) -> Iterator[tuple[Lab, Workspace, Workspace]]:
    one = lab.init(lab.urls("a", "b", "c"))
    write(one.directory, {f"f{n}": random.Random(n).randbytes(100_000) for n in range(12)})
    one.push()
    other = lab.clone(lab.urls("a", "b", "c"))
    write(one.directory, {"new": random.Random(99).randbytes(3_000_000)})
    one.push()
    for n in range(60):
        if lab.objects("c", "packs"):
            break
        write(one.directory, {f"more{n}": random.Random(n).randbytes(1000)})
        one.push()
    assert lab.objects("c", "packs"), "some of it lies there"
    lab.reopen(one).close()
    yield lab, one, other
    for faults in lab.faults.values():
        faults.release()


def ended(call: Callable[[], Any]) -> Any:
    """What `call` returns; an assertion if it does not end. Nothing is measured: it would wait for an hour."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as e:
            outcome.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    assert outcome, "it still waits"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def command(lab: Lab, w: Workspace, call: Callable[[Workspace], Any]) -> Any:
    """What one command does: opens, acts, closes; `c` hangs in it, from the opening on."""
    w.close()

    def run() -> Any:
        with Workspace.open(w.directory) as again:
            return call(again)

    return ended(run)


OPERATIONS: dict[str, Callable[[Workspace], Any]] = {
    "status": lambda w: w.status(),
    "push": lambda w: (write(w.directory, {"x": random.Random(3).randbytes(500_000)}), w.push())[1],
    "pull": lambda w: w.pull(),
    "check": lambda w: w.check(),
    "check --read-data": lambda w: w.check(read_data=True),
    "log": lambda w: w.log(),
    "backend list": lambda w: w.backends(),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_that_hangs_holds_up_nobody(
    hanging: tuple[Lab, Workspace, Workspace], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    lab, _, other = hanging
    _hang_from_the_start(lab, monkeypatch, "c")
    report = command(lab, other, OPERATIONS[operation])
    if operation == "check":
        assert {p.backend for p in (*report.problems, *report.meta_problems)} == {"c"}
        assert not report.lost
    if operation == "push":
        assert report.version is not None
    if operation == "pull":
        assert (other.directory / "new").stat().st_size == 3_000_000
    if operation in {"status", "backend list"}:
        states = {b.name: b.state for b in (report.backends if operation == "status" else report)}
        assert states["a"] == states["b"] == "ok"
        assert "no answer" in states["c"]


def _hang_from_the_start(lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    opened = ways.opened

    def hang(place: str, url: BackendUrl, *, create: bool) -> Backend:
        backend = opened(place, url, create=create)
        lab.faults[name].hanging = True
        return backend

    monkeypatch.setattr(ways, "opened", hang)


def test_a_new_device_is_not_held_up_either(
    hanging: tuple[Lab, Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, one, _ = hanging
    _hang_from_the_start(lab, monkeypatch, "c")
    third = ended(lambda: lab.clone(lab.urls("a", "b", "c"), device="third"))
    assert tree_of(third.directory) == tree_of(one.directory)


def test_the_next_command_remembers_what_hung(
    hanging: tuple[Lab, Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, _, other = hanging
    suspected: list[dict[str, bool]] = [{}]
    reached = ways.reached

    def noting(name: str, url: BackendUrl, link: Any = None, *, suspected_: bool = False, **options: Any) -> Backend:
        suspected[-1][name] = options.get("suspected", False)
        return reached(name, url, link, **options)

    monkeypatch.setattr(ways, "reached", noting)
    _hang_from_the_start(lab, monkeypatch, "c")
    command(lab, other, lambda w: w.status())
    assert suspected.pop() == {"a": False, "b": False, "c": False}
    suspected.append({})
    command(lab, other, lambda w: w.status())
    assert suspected.pop() == {"a": False, "b": False, "c": True}
    suspected.append({})
    now = ways.time.time_ns()
    with monkeypatch.context() as m:
        m.setattr(ways.time, "time_ns", lambda: now + int((folder.HUNG_LATELY_S + 60) * 1e9))
        other = Workspace.open(other.directory)
        other.close()
        assert other._connections._hung == {}, "not for ever"


def test_what_answers_again_is_used_again(hanging: tuple[Lab, Workspace, Workspace]) -> None:
    """In one process: the operation after it came back has it, and forgets that it hung."""
    lab, _, other = hanging
    other = lab.reopen(other)
    other.status()
    lab.faults["c"].hanging = True
    assert "no answer" in {b.name: b.state for b in ended(other.backends)}["c"]
    lab.faults["c"].release()
    assert {b.name: b.state for b in ended(other.backends)}["c"] == "ok"
    lab.faults["c"].hanging = True
    ended(other.backends)
    other = lab.reopen(other)
    assert other._connections._hung.keys() == {"c"}
    lab.faults["c"].release()
    assert {b.name: b.state for b in ended(other.backends)}["c"] == "ok"
    assert lab.reopen(other)._connections._hung == {}


def test_one_that_does_not_even_open(
    hanging: tuple[Lab, Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount whose server is gone: the first look at the folder never returns."""
    lab, _, other = hanging
    opened, gate = ways.opened, threading.Event()

    def stuck(name: str, url: BackendUrl, *, create: bool) -> Backend:
        if name == "c":
            gate.wait()
        return opened(name, url, create=create)

    monkeypatch.setattr(ways, "opened", stuck)
    report = command(lab, other, lambda w: (w.status(), w.pull())[1])
    assert report.changes.added
    states = {b.name: b.state for b in command(lab, other, lambda w: w.backends())}
    assert "has not come back" in states["c"]
    assert sum(thread.name == "metasync-open-c" for thread in threading.enumerate()) == 1, "not one for every operation"
    other = lab.reopen(other)
    assert other._connections._hung.keys() == {"c"}
    gate.set()
    while any(thread.name == "metasync-open-c" for thread in threading.enumerate()):
        pass
    assert {b.name: b.state for b in other.backends()}["c"] == "ok"


def test_a_quorum_that_hangs_is_said(
    hanging: tuple[Lab, Workspace, Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, _, other = hanging
    lab.hurry(2.0)
    _hang_from_the_start(lab, monkeypatch, "b")
    _hang_from_the_start(lab, monkeypatch, "c")
    with pytest.raises(NoQuorumError, match=r"b: .*no answer|b: .*not asked"):
        command(lab, other, lambda w: w.pull())


def test_a_server_that_accepts_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setattr(_breaker, "PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        backend = ways.wrapped(open_backend(parse_url(f"s3://bucket/x?endpoint=http://127.0.0.1:{port}")))
        for _ in range(3):
            with pytest.raises(UnreachableError, match="no answer"):
                ended(lambda: backend.get("a", max_bytes=9))
        (breaker,) = [layer for layer in layers(backend) if isinstance(layer, Breaker)]
        assert breaker.state == "open"
        assert ways.is_silent(backend)
        ways.ask_anew(backend)
        assert breaker.state == "closed"
        backend.close()


def test_production_keeps_the_contract_of_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more attempt at what failed at once, and none at what a caller has given up on."""
    backend = ways.wrapped(lossy(MemoryBackend(), seed=1, rate=0.0))
    (faulty,) = [layer for layer in layers(backend) if isinstance(layer, FaultyBackend)]
    (retrying,) = [layer for layer in layers(backend) if isinstance(layer, Retrying)]
    retrying._sleep = lambda _s: None
    faulty.down = True
    with pytest.raises(MetaSyncError):
        backend.stat("a")
    assert faulty.calls["stat"] == ATTEMPTS_MAX
    retrying._due = lambda: retrying._clock() - 1.0
    with pytest.raises(MetaSyncError):
        backend.list("")
    assert faulty.calls["list"] == 1
    backend.close()
