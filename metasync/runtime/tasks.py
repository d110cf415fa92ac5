"""Carries effects out with threads: the thin, real end of the seam in `metasync.runtime.effects`.

One coordinator thread steps every task. Calls run in daemon threads of each backend's own (`channel`), so a stuck
provider holds up neither others nor the end of the process. A pool does CPU-heavy work, and one thread writes in order
what must be durable. A call that has begun cannot be cancelled: when its time is up the task is told so, and the call
ends in the background, perhaps with effect (consensus allows for that). A waiting call is taken back when nobody needs
it.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from metasync.errors import NoQuorumError, UnreachableError
from metasync.events import Listener, Sheltered, Transferred
from metasync.runtime.channel import Call, Calls, Channel, Governor
from metasync.runtime.concurrency import START
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Urgency, Work
from metasync.runtime.sizes import CALLS_MAX
from metasync.runtime.threads import Inbox, Pool, settling

TIMERS_SLACK: Final = 256  # dead timers kept before the heap is swept
WAIT_STEP_S: Final = 0.2  # how long a waiting main thread may sit without looking for signals
LINGER_S: Final = 0.5  # given to writes under way when a runtime closes

_T = TypeVar("_T")


def boottime() -> float:
    """Seconds on a clock that never goes back and, where the system has it, counts while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(eq=False)
class _Run:
    """One generator under way: a task, or a branch of a Gather."""

    task: Task
    parent: _Gathering | None = None
    key: str = ""
    future: Future[Any] | None = None
    waiting: int = 0  # token of the effect it waits for; 0 none
    gathering: _Gathering | None = None
    ended: bool = False


@dataclass(eq=False)
class _Gathering:
    owner: _Run
    effect: Gather
    runs: dict[str, _Run] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    timer: int = 0
    ended: bool = False


class Runtime:
    """Runs tasks against `backends`, named as in their `Op`s. Thread-safe; to be closed.

    `persist(key, value)` makes one `Persist` durable before it returns, `recall(key)` reads it. `entropy(n)` gives
    random bytes, `clock()` seconds. The calls at once on a backend adapt, from `connections_per_backend` up to
    `connections_max`.
    """

    def __init__(
        self,
        backends: Mapping[str, Calls],
        *,
        persist: Callable[[str, bytes | None], None] | None = None,
        recall: Callable[[str], bytes | None] | None = None,
        connections_per_backend: int = START,
        connections_max: int = CALLS_MAX,
        workers: int | None = None,
        clock: Callable[[], float] = boottime,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.clock = clock
        self._backends = dict(backends)
        self._persist = persist
        self._recall = recall
        self._entropy = entropy
        self._connections = (min(connections_per_backend, connections_max), connections_max)
        self._listener: Listener | None = None
        self._governor: Governor | None = None
        self.check: Callable[[], None] = lambda: None  # called several times a second by who waits, and may end that
        self.on_wait: Callable[[], None] | None = None  # called several times a second while a task's end is waited for
        self._channels = {name: self._channel(name) for name in self._backends}
        self._calls: dict[int, tuple[Channel, Call]] = {}  # by token
        self._watched: set[str] = set()  # backends that are looked at, by name
        self._workers = Pool("work", workers or os.cpu_count() or 1)
        self._writer = Pool("persist", 1)
        self._inbox = Inbox()
        self._ready: deque[tuple[_Run, Any, BaseException | None]] = deque()
        self._waiting: dict[int, Callable[[Any, BaseException | None], None]] = {}
        self._timers: list[tuple[float, int]] = []
        self._next_token = 1
        self._tops: set[_Run] = set()
        self._closing = False
        self._drained = False
        self._post_lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._coordinate, name="metasync-coordinator", daemon=True)
        self._thread.start()

    # for callers, from any thread

    def start(self, task: Task) -> Future[Any]:
        """Starts a task. The future holds its result or error; cancelling it does nothing once it runs."""
        future = self._started(task).future
        assert future is not None
        return future

    def _started(self, task: Task) -> _Run:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        run = _Run(task, future=future)
        self._post(lambda: self._begin(run))
        return run

    def run(self, task: Task, deadline_s: float | None = None) -> Any:
        """Runs a task to its end and returns its result.

        When interrupted (KeyboardInterrupt), or after `deadline_s`, the task is closed; what it sent may still land.
        """
        with self.beside(task, deadline_s) as result:
            return result()

    @contextlib.contextmanager
    def beside(self, task: Task, deadline_s: float | None = None) -> Iterator[Callable[[], Any]]:
        """Runs a task beside the caller, who gets what waits for its result. One that is left early is closed."""
        run = self._started(task)
        try:
            yield lambda: self._awaited(run, deadline_s)
        finally:
            assert run.future is not None
            if not run.future.done():
                self._post(lambda: self._abandon(run))

    def _awaited(self, run: _Run, deadline_s: float | None) -> Any:
        future = run.future
        assert future is not None
        ends = math.inf if deadline_s is None else time.monotonic() + deadline_s
        while not self.wait([future], min(WAIT_STEP_S, max(ends - time.monotonic(), 0.0))):
            if self.on_wait is not None:
                self.on_wait()
            if time.monotonic() >= ends:
                raise NoQuorumError(
                    f"not finished within {deadline_s:g} s; what was sent may be committed",
                    next_step="run again: it will be found out",
                )
        return future.result()

    def submit_work(self, function: Callable[[], _T]) -> Future[_T]:
        """Runs a function on the workers."""
        future: Future[_T] = Future()
        if not self._workers.submit(function, settling(future)):
            raise RuntimeError("too much work is waiting")
        return future

    def wait(
        self, futures: Iterable[Future[_T]], timeout_s: float | None = None, *, for_all: bool = False
    ) -> list[Future[_T]]:
        """Waits until one of these futures has ended, or all have, or for `timeout_s`; -> those that have, in order."""
        futures = list(futures)
        ends = math.inf if timeout_s is None else time.monotonic() + timeout_s
        enough = len(futures) if for_all else min(1, len(futures))
        while sum(future.done() for future in futures) < enough and (left := ends - time.monotonic()) > 0:
            wait(futures, min(left, WAIT_STEP_S), ALL_COMPLETED if for_all else FIRST_COMPLETED)
            self.check()
        return [future for future in futures if future.done()]

    def add_backend(self, name: str, backend: Calls) -> None:
        """Makes one more backend known, or replaces one; calls under way on the old one end there."""
        if name not in self._channels:
            self._channels[name] = self._channel(name)
        self._backends[name] = backend

    def listen(self, listener: Listener) -> None:
        """Tells this listener every `Transferred`, in the coordinator's thread. It must be quick."""
        self._listener = Sheltered(lambda: listener)

    def govern(self, governor: Governor) -> None:
        """Has all calls obey what the user allows, those that wait too."""
        self._governor = governor
        for channel in list(self._channels.values()):
            channel.govern(governor)

    def _channel(self, name: str) -> Channel:
        channel = Channel(name, *self._connections, self.clock, self._moved)
        channel.govern(self._governor)
        return channel

    def _moved(self, op: Op, reply: Reply) -> None:
        if self._listener is not None and op.kind in ("get", "put", "create"):
            size = len(reply.value) if op.kind == "get" else len(op.data)
            direction: Literal["up", "down"] = "down" if op.kind == "get" else "up"
            event = Transferred(op.backend, direction, size, reply.seconds, op.urgency is not Urgency.NOW)
            self._post(lambda: self._tell(event))

    def _tell(self, event: Transferred) -> None:
        if self._listener is not None:
            self._listener(event)

    def close(self, linger_s: float = LINGER_S) -> None:
        """Ends all tasks with `CancelledError`, gives writes under way `linger_s` to land, and returns.

        Threads that are stuck in a call are left behind; they do not keep the process alive.
        """
        if self._closed.is_set():
            return
        self._post(self._shut)
        self._closed.wait()
        ends = time.monotonic() + linger_s
        pools: list[Channel | Pool] = [*self._channels.values(), self._writer]
        while time.monotonic() < ends and any(pool.busy() for pool in pools):
            time.sleep(0.01)
        for pool in (*pools, self._workers):
            pool.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the coordinator's thread

    def _post(self, message: Callable[[], None]) -> None:
        with self._post_lock:
            if not self._drained:
                self._inbox.put(message)
                return
        message()  # the coordinator is gone: what starts now ends at once

    def _coordinate(self) -> None:
        while not self._closed.is_set():
            while self._ready:
                self._step(*self._ready.popleft())
            timeout = None
            if self._timers:
                timeout = self._timers[0][0] - self.clock()
                if timeout <= 0:
                    _, token = heapq.heappop(self._timers)
                    self._expire(token)
                    continue
            message = self._inbox.get(timeout)
            if message is not None:
                message()
            del message  # and the answer in it
        with self._post_lock:
            self._drained = True
        while (message := self._inbox.get(0)) is not None:
            message()

    def _begin(self, run: _Run) -> None:
        if self._closing:
            run.task.close()
            self._end(run, None, CancelledError("the runtime is closed"))
            return
        if run.parent is None:
            self._tops.add(run)
        self._ready.append((run, None, None))

    def _shut(self) -> None:
        self._closing = True
        for run in list(self._tops):
            self._abandon(run)
        self._closed.set()

    def _step(self, run: _Run, value: Any, error: BaseException | None) -> None:
        """Sends a result into a generator and starts the effect that it yields next."""
        while not run.ended:
            run.waiting = 0
            try:
                effect = run.task.throw(error) if error is not None else run.task.send(value)
            except StopIteration as stop:
                self._end(run, stop.value, None)
                return
            except BaseException as e:  # noqa: BLE001  # a task's error is its caller's, whatever it is
                self._end(run, None, e)
                return
            error = None
            if isinstance(effect, Now):
                value = self.clock()
            elif isinstance(effect, Random):
                value = self._entropy(effect.n)
            elif isinstance(effect, Gather) and not effect.branches:
                value = {}
            else:
                try:
                    self._perform(run, effect)
                except BaseException as e:  # noqa: BLE001  # an effect that cannot be started is the task's error
                    value, error = None, e
                    continue
                return

    def _perform(self, run: _Run, effect: Any) -> None:
        if isinstance(effect, Op):
            self._call(run, effect)
        elif isinstance(effect, Gather):
            self._gather(run, effect)
        elif isinstance(effect, Sleep):
            token = self._wait(run)
            self._timer(token, effect.seconds)
        elif isinstance(effect, Persist):
            self._elsewhere(run, self._writer, lambda: self._write(effect))
        elif isinstance(effect, Recall):  # behind what is still to be written
            self._elsewhere(run, self._writer, lambda: self._read(effect))
        elif isinstance(effect, Work):
            self._elsewhere(run, self._workers, effect.function)
        else:
            raise TypeError(f"not an effect: {effect!r}")

    def _wait(self, run: _Run, otherwise: Any = None) -> int:
        """A token by which the run is woken, once, with a value or with what it gets `otherwise`."""
        token = self._next_token
        self._next_token += 1
        run.waiting = token
        self._waiting[token] = lambda value, error: self._ready.append(
            (run, otherwise if value is None else value, error)
        )
        return token

    def _wake(self, token: int, value: Any, error: BaseException | None) -> None:
        """Late and second wake-ups fall through."""
        self._calls.pop(token, None)
        resume = self._waiting.pop(token, None)
        if resume is not None:
            resume(value, error)

    def _expire(self, token: int) -> None:
        """A timer's time has come: wakes who waits, but for a call whose time was put off meanwhile."""
        channel, one = self._calls.get(token, (None, None))
        if channel is not None and one is not None:
            left_s = channel.due(one) - self.clock()
            if left_s > 0:
                self._timer(token, left_s)
                return
            self._take_back(token)
        self._wake(token, None, None)

    def _take_back(self, token: int) -> None:
        """Nobody waits for this call any more: if it has not begun, and is of no use by itself, it never does."""
        channel, one = self._calls.pop(token, (None, None))
        if channel is not None and one is not None and not one.outlives_its_task:
            channel.cancel(one)

    def _timer(self, token: int, seconds: float) -> None:
        heapq.heappush(self._timers, (self.clock() + max(seconds, 0.0), token))
        if len(self._timers) > 2 * len(self._waiting) + TIMERS_SLACK:
            self._timers = [item for item in self._timers if item[1] in self._waiting]
            heapq.heapify(self._timers)

    def _elsewhere(self, run: _Run, pool: Pool, function: Callable[[], Any]) -> None:
        token = self._wait(run)
        if not pool.submit(function, lambda value, error: self._post(lambda: self._wake(token, value, error))):
            self._wake(token, None, RuntimeError("too much work is waiting"))

    def _write(self, effect: Persist) -> None:
        if self._persist is None:
            raise RuntimeError(f"nothing persists {effect.key}: the runtime was built without `persist`")
        self._persist(effect.key, effect.value)

    def _read(self, effect: Recall) -> bytes | None:
        if self._recall is None:
            raise RuntimeError(f"nothing recalls {effect.key}: the runtime was built without `recall`")
        return self._recall(effect.key)

    # calls on backends

    def _call(self, run: _Run, op: Op) -> None:
        text = f"{op.backend}: {op.kind} {op.path}: no answer within {op.timeout_s:g} s"
        token = self._wait(run, Reply(error=UnreachableError(text)))
        backend, channel = self._backends.get(op.backend), self._channels.get(op.backend)
        if backend is None or channel is None:
            self._wake(token, Reply(error=UnreachableError(f"no backend is linked as {op.backend}")), None)
            return
        one = Call(
            op,
            backend,
            self.clock(),
            deliver=lambda reply: self._post(lambda: self._wake(token, reply, None)),
            is_wanted=lambda: token in self._waiting,
        )
        self._calls[token] = (channel, one)
        self._timer(token, op.timeout_s)
        if op.backend not in self._watched:
            self._watch(op.backend)
        if not channel.submit(one):
            self._wake(token, Reply(error=UnreachableError(f"{op.backend}: too many calls are waiting")), None)

    def _watch(self, name: str, *, again: bool = False) -> None:
        """Asks a backend's `look` now and then, while calls are under way, whether it hangs."""
        look = getattr(self._backends.get(name), "look", None)
        if look is None or (again and not self._channels[name].busy()):
            self._watched.discard(name)
            return
        self._watched.add(name)
        token = self._next_token
        self._next_token += 1
        self._waiting[token] = lambda _value, _error: self._watch(name, again=True)
        self._timer(token, look())

    # branches

    def _gather(self, run: _Run, effect: Gather) -> None:
        gathering = _Gathering(run, effect)
        run.gathering = gathering
        for key, task in effect.branches.items():
            branch = _Run(task, parent=gathering, key=key)
            gathering.runs[key] = branch
            self._ready.append((branch, None, None))
        if effect.deadline_s is not None:
            gathering.timer = self._next_token
            self._next_token += 1
            self._waiting[gathering.timer] = lambda _value, _error: self._gathered(gathering, None)
            self._timer(gathering.timer, effect.deadline_s)

    def _gathered(self, gathering: _Gathering, error: BaseException | None) -> None:
        """Ends a Gather: closes what still runs, and resumes its owner."""
        if gathering.ended:
            return
        gathering.ended = True
        self._waiting.pop(gathering.timer, None)
        self._abandon_branches(gathering)
        owner = gathering.owner
        owner.gathering = None
        if not owner.ended:
            self._ready.append((owner, None if error else dict(gathering.results), error))

    def _end(self, run: _Run, value: Any, error: BaseException | None) -> None:
        run.ended = True
        if run.future is not None:
            self._tops.discard(run)
            if error is not None:
                run.future.set_exception(error)
            else:
                run.future.set_result(value)
            return
        gathering = run.parent
        if gathering is None or gathering.ended:
            return
        if error is not None:
            self._gathered(gathering, error)
            return
        gathering.results[run.key] = value
        try:
            enough = len(gathering.results) == len(gathering.runs) or (
                gathering.effect.until is not None and gathering.effect.until(gathering.results)
            )
        except BaseException as e:  # noqa: BLE001  # the predicate is part of the task
            self._gathered(gathering, e)
            return
        if enough:
            self._gathered(gathering, None)

    def _abandon_branches(self, gathering: _Gathering) -> None:
        """Closes what still runs of a Gather that has ended. No branch is held by it: what they sent goes at once."""
        runs, gathering.runs = gathering.runs, {}
        for branch in runs.values():
            self._abandon(branch)

    def _abandon(self, run: _Run) -> None:
        """Closes a run and all beneath it. What it sent is not undone."""
        if run.ended:
            return
        run.ended = True
        self._waiting.pop(run.waiting, None)
        self._take_back(run.waiting)
        if run.gathering is not None:
            gathering, run.gathering = run.gathering, None
            gathering.ended = True
            self._waiting.pop(gathering.timer, None)
            self._abandon_branches(gathering)
        failure: BaseException = CancelledError("abandoned")
        try:
            run.task.close()
        except BaseException as e:  # noqa: BLE001  # its clean-up failed: reported where somebody waits
            failure = e
        if run.future is not None:
            self._tops.discard(run)
            run.future.set_exception(failure)
