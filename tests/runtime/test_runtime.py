"""The runtime: effects over threads, stuck and faulty backends, and eight clients at once on one consensus."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import pytest
from paxos_world import Workspace, make_parts

from metasync.consensus import Change, State
from metasync.consensus.founding import found
from metasync.errors import BackendError, NoQuorumError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Work
from metasync.runtime.tasks import Runtime, boottime


class Memory:
    """A backend in a dict. `gate`: calls wait for it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0

    def _enter(self) -> None:
        with self.lock:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.gate.wait()
        with self.lock:
            self.at_once -= 1

    def create(self, path: str, data: bytes) -> bool:
        self._enter()
        with self.lock:
            if path in self.objects:
                return False
            self.objects[path] = data
            return True

    def put(self, path: str, data: bytes) -> None:
        self._enter()
        self.objects[path] = data

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        self._enter()
        if path not in self.objects:
            raise NotFoundError(f"{path} is not there")
        return self.objects[path][offset : None if length is None else offset + length]

    def stat(self, path: str) -> int:
        return len(self.objects[path])

    def list(self, path: str) -> tuple[Any, ...]:
        return tuple(sorted(self.objects))

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def runtime(memory: Memory) -> Iterator[Runtime]:
    with Runtime({"m": memory}, persist=lambda key, value: None) as out:
        yield out


def test_every_effect(memory: Memory) -> None:
    kept: dict[str, bytes | None] = {}

    def task() -> Task:
        created = yield Op("m", "create", "a", b"xyz")
        again = yield Op("m", "create", "a", b"other")
        put = yield Op("m", "put", "b", b"12345")
        part = yield Op("m", "get", "b", offset=1, length=2)
        size = yield Op("m", "stat", "b")
        names = yield Op("m", "list", "")
        gone = yield Op("m", "delete", "a")
        missing = yield Op("m", "get", "a")
        before = yield Now()
        yield Sleep(0.02)
        slept = (yield Now()) - before
        yield Persist("k", b"v")
        assert kept == {"k": b"v"}
        recalled = [(yield Recall("k")), (yield Recall("other"))]
        assert recalled == [b"v", None]
        bits = yield Random(16)
        worked = yield Work(lambda: sum(range(10)))
        nothing = yield Gather({})
        assert isinstance(missing.error, NotFoundError)
        values = [r.value for r in (created, again, put, part, size, names, gone)]
        return values, slept, len(bits), worked, nothing

    with Runtime({"m": memory}, persist=kept.__setitem__, recall=kept.get) as runtime:
        values, slept, bits, worked, nothing = runtime.run(task())
    assert values == [True, False, None, b"23", 5, ("a", "b"), None]
    assert 0.02 <= slept < 2
    assert (bits, worked, nothing) == (16, 45, {})


def test_errors_reach_the_task_and_the_caller(runtime: Runtime) -> None:
    def task() -> Task:
        with pytest.raises(ZeroDivisionError):
            yield Work(lambda: 1 // 0)
        with pytest.raises(TypeError, match="not an effect"):
            yield "nonsense"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        runtime.run(task())


def test_a_failing_persist_is_thrown_in(memory: Memory) -> None:
    def fail(key: str, value: bytes | None) -> None:
        raise OSError("disk full")

    def task() -> Task:
        yield Persist("k", b"v")

    with Runtime({"m": memory}, persist=fail) as runtime, pytest.raises(OSError, match="disk full"):
        runtime.run(task())
    with Runtime({"m": memory}) as runtime, pytest.raises(RuntimeError, match="nothing persists"):
        runtime.run(task())


def test_a_recall_sees_a_persist_that_nobody_waits_for(memory: Memory) -> None:
    kept: dict[str, bytes | None] = {}

    def slowly(key: str, value: bytes | None) -> None:
        time.sleep(0.1)
        kept[key] = value

    def write() -> Task:
        yield Persist("k", b"v")

    def task() -> Task:
        yield Gather({"write": write()}, deadline_s=0.01)
        assert not kept
        return (yield Recall("k"))

    with Runtime({"m": memory}, persist=slowly, recall=kept.get) as runtime:
        assert runtime.run(task()) == b"v"
    with Runtime({"m": memory}) as runtime, pytest.raises(RuntimeError, match="nothing recalls"):
        runtime.run(task_of(Recall("k")))


def task_of(effect: Recall) -> Task:
    return (yield effect)


@pytest.mark.parametrize(
    ("answer", "kind", "error"),
    [
        (ValueError("boom"), "get", BackendError),
        (SystemExit("no"), "get", BackendError),
        (None, "create", BackendError),
        ("text", "get", BackendError),
        (b"12345678901", "get", RefusedError),
        (UnreachableError("off"), "put", UnreachableError),
        (b"", "put", BackendError),
    ],
)
def test_a_faulty_provider_fails_one_call(answer: Any, kind: Any, error: type[BackendError]) -> None:
    class Faulty(Memory):
        def _answer(self, *args: Any, **more: Any) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        create = put = get = _answer  # type: ignore[assignment]

    def task() -> Task:
        return (yield Op("m", kind, "a", max_bytes=10))

    with Runtime({"m": Faulty()}) as runtime:
        reply: Reply = runtime.run(task())
    assert type(reply.error) is error


def test_an_unknown_backend_is_unreachable(runtime: Runtime) -> None:
    def task() -> Task:
        return (yield Op("nobody", "get", "a"))

    assert isinstance(runtime.run(task()).error, UnreachableError)


def test_a_timeout_is_unreachable_and_lands_late(memory: Memory, runtime: Runtime) -> None:
    memory.gate.clear()

    def task() -> Task:
        return (yield Op("m", "create", "a", b"late", timeout_s=0.05))

    assert isinstance(runtime.run(task()).error, UnreachableError)
    assert "a" not in memory.objects
    memory.gate.set()
    for _ in range(6000):
        if "a" in memory.objects:
            break
        time.sleep(0.01)
    assert memory.objects["a"] == b"late"


def test_gather_ends_with_a_quorum_and_leaves_the_stuck_behind(memory: Memory) -> None:
    stuck = Memory()
    stuck.gate.clear()
    closed = []

    def one(name: str) -> Task:
        try:
            reply = yield Op(name, "put", "x", b"1")
            return reply.error is None
        finally:
            closed.append(name)

    def task() -> Task:
        got = yield Gather({n: one(n) for n in ("m", "n", "s")}, lambda r: len(r) >= 2)
        return got

    with Runtime({"m": memory, "n": Memory(), "s": stuck}) as runtime:
        assert runtime.run(task()) == {"m": True, "n": True}
        assert stuck.objects == {}, "it ended before the stuck one did"
        assert sorted(closed) == ["m", "n", "s"]
        stuck.gate.set()
    assert stuck.objects == {"x": b"1"}


def test_gather_nests_ends_by_deadline_and_by_error(runtime: Runtime) -> None:
    def sleeper(seconds: float, value: Any = None) -> Task:
        yield Sleep(seconds)
        if isinstance(value, Exception):
            raise value
        return value

    def nested() -> Task:
        inner = yield Gather({"x": sleeper(0.01, 1), "y": sleeper(3600)}, deadline_s=0.1)
        return inner

    def task() -> Task:
        first = yield Gather({"a": nested(), "b": sleeper(0.02, 2)})
        try:
            yield Gather({"a": nested(), "b": sleeper(0.01, LookupError("branch"))})
        except LookupError as e:
            return first, str(e)

    assert runtime.run(task()) == ({"a": {"x": 1}, "b": 2}, "branch")


def test_connections_are_bounded_and_calls_queue(memory: Memory) -> None:
    memory.gate.clear()

    def one() -> Task:
        return (yield Op("m", "put", "x", b"1"))

    def task() -> Task:
        got = yield Gather({str(i): one() for i in range(20)})
        return len(got)

    with Runtime({"m": memory}, connections_per_backend=3) as runtime:
        future = runtime.start(task())
        for _ in range(6000):
            if memory.most_at_once == 3:
                break
            time.sleep(0.01)
        assert memory.most_at_once == 3
        memory.gate.set()
        assert future.result(timeout=60) == 20
    assert memory.most_at_once == 3


def test_reads_nobody_waits_for_are_dropped_but_writes_are_sent(memory: Memory) -> None:
    memory.gate.clear()

    def get() -> Task:
        yield Op("m", "get", "x")

    def put(path: str) -> Task:
        yield Op("m", "put", path, b"1")

    def quick() -> Task:
        yield Sleep(0.05)
        return "enough"

    def task() -> Task:
        branches = {
            "first": put("first"),
            "quick": quick(),
            "write": put("second"),
            **{str(i): get() for i in range(5)},
        }
        yield Gather(branches, lambda r: "quick" in r)

    with Runtime({"m": memory}, connections_per_backend=1) as runtime:
        runtime.run(task())
        memory.gate.set()
    assert set(memory.objects) == {"first", "second"}
    assert memory.calls == 2


def test_run_gives_up_at_its_deadline(runtime: Runtime) -> None:
    ended = threading.Event()

    def task() -> Task:
        try:
            yield Sleep(60)
        finally:
            ended.set()

    with pytest.raises(NoQuorumError, match="not finished"):
        runtime.run(task(), deadline_s=0.05)
    assert ended.wait(60)


def test_closing_ends_tasks_and_later_ones(memory: Memory) -> None:
    runtime = Runtime({"m": memory})

    def task() -> Task:
        yield Sleep(60)

    future = runtime.start(task())
    time.sleep(0.02)
    runtime.close()
    with pytest.raises(CancelledError):
        future.result(timeout=60)
    with pytest.raises(CancelledError):
        runtime.start(task()).result(timeout=60)
    runtime.close()


def test_work_is_submitted(runtime: Runtime) -> None:
    assert runtime.submit_work(lambda: 6 * 7).result(timeout=60) == 42
    with pytest.raises(ZeroDivisionError):
        runtime.submit_work(lambda: 1 // 0).result(timeout=60)


def test_a_stuck_provider_does_not_keep_the_process_alive() -> None:
    script = """
import time
from metasync.runtime.effects import Op
from metasync.runtime.tasks import Runtime

class Stuck:
    def get(self, path, **_):
        time.sleep(3600)

def task():
    return (yield Op("s", "get", "x", timeout_s=0.05))

runtime = Runtime({"s": Stuck()})
print(type(runtime.run(task()).error).__name__)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert (done.stdout, done.returncode) == ("UnreachableError\n", 0), done.stderr


def test_an_interrupt_closes_the_task() -> None:
    script = """
import _thread, threading, time
from metasync.runtime.effects import Sleep
from metasync.runtime.tasks import Runtime

ended = threading.Event()

def task():
    try:
        yield Sleep(3600)
    finally:
        ended.set()

runtime = Runtime({})
threading.Timer(0.2, _thread.interrupt_main).start()
try:
    runtime.run(task())
except KeyboardInterrupt:
    print("interrupted", ended.wait(60))
runtime.close()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.stdout == "interrupted True\n", done.stderr


def test_the_clock_counts() -> None:
    a = boottime()
    time.sleep(0.01)
    assert boottime() - a >= 0.009


# Everything together: eight clients in threads, one runtime each, three backends.


def push_all(ws: Workspace, runtime: Runtime, who: int, ops: int, errors: list[BaseException]) -> None:
    try:
        group = ws.group(os.urandom(16), who % len(ws.identities))
        known: State = ws.genesis
        for k in range(ops):
            op_id = bytes([who + 1, k + 1]) * 8
            while True:
                known = runtime.run(group.get_recent(known))
                decided = runtime.run(group.propose(known, lambda op_id=op_id: Change(op_id, master=op_id * 2)))
                known = decided.state
                if decided.mine:
                    break
    except BaseException as e:  # shown by the main thread
        errors.append(e)


@pytest.mark.few(1)
@pytest.mark.parametrize("stuck", [False, True], ids=["all up", "one stuck"])
def test_eight_threads_get_every_op_into_the_chain_once(stuck: bool) -> None:
    backends = {name: Memory() for name in ("a", "b", "c")}
    ws = make_parts(random.Random(7), list(backends), 8)
    runtimes = [Runtime(backends, persist=lambda key, value: None) for _ in range(8)]
    founding = found(
        ws.keys,
        ws.config,
        ws.devices,
        ws.devices.chain,
        admin_private=ws.admin,
        keyring=bytes(32),
        births=ws.births,
        links=ws.links,
    )
    ws.genesis = runtimes[0].run(founding)
    if stuck:
        backends["b"].gate.clear()
    errors: list[BaseException] = []
    ops = 1 if stuck else 3  # each waits until the stuck one is given up
    threads = [
        threading.Thread(target=push_all, args=(ws, runtime, who, ops, errors)) for who, runtime in enumerate(runtimes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not errors, errors[0]
    assert not any(thread.is_alive() for thread in threads)
    judge = ws.group(os.urandom(16))
    latest = runtimes[0].run(judge.get_recent(ws.genesis))
    chain = [runtimes[0].run(judge.state_at(latest, v)) for v in range(1, latest.v + 1)]
    assert sorted(s.op_id for s in chain) == sorted(bytes([w + 1, k + 1]) * 8 for w in range(8) for k in range(ops))
    backends["b"].gate.set()
    for runtime in runtimes:
        runtime.close()


class Seen(bytes):
    """Bytes that tell when nobody holds them any more."""

    let_go: threading.Event

    def __del__(self) -> None:
        self.let_go.set()


@pytest.mark.parametrize("how", ["put", "work", "work of a task"])
def test_an_idle_thread_holds_nothing_of_what_it_did_last(how: str) -> None:
    """Eight connections that each held the pack they sent last are 32 MiB."""
    let_go = threading.Event()

    def made() -> Seen:
        data = Seen(b"a pack")
        data.let_go = let_go
        return data

    def put(data: bytes) -> Task:
        yield Op("a", "put", "x", data)

    def work(data: bytes) -> Task:
        yield Work(lambda: len(data))

    memory = Memory()
    with Runtime({"a": memory}) as runtime:
        if how == "work":
            runtime.submit_work(partial(len, made())).result()
        else:
            runtime.run(put(made()) if how == "put" else work(made()))
        memory.objects.clear()
        assert let_go.wait(60)
