"""Carries effects out in virtual time: the interface of `metasync.runtime.tasks.Runtime`, on the world's events.

A call has three instants: it is sent, it takes effect, its answer arrives. The network's faults come between them. What
was sent takes effect though the process that sent it is dead or has given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from metasync.backends.api import Backend
from metasync.consensus import JOURNAL_KEY, decode_journal
from metasync.errors import NoQuorumError, UnreachableError
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Work
from simulation.world import Boot, Crashed, World


class Network(Protocol):
    """What lies between a client and its backends."""

    def send(self, boot: Boot, client: str, backend: Backend, op: Op, answer: Callable[[Reply], None]) -> float | None:
        """Has `op` take effect some time, or never, and `answer` called in so many seconds, or never."""


class SimFuture(Future[Any]):
    """A future whose waiting lets the world go on."""

    def __init__(self, boot: Boot) -> None:
        super().__init__()
        self.boot = boot

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.boot.wait(self.done)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self.boot.wait(self.done)
        return super().exception(0)

    def settle(self, value: Any, error: BaseException | None) -> None:
        if self.done():
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(value)
        self.boot.actor.look()


@dataclass(eq=False)
class _Run:
    task: Task
    parent: _Gathering | None = None
    key: str = ""
    future: SimFuture | None = None
    token: int = 0
    gathering: _Gathering | None = None
    ended: bool = False


@dataclass(eq=False)
class _Gathering:
    owner: _Run
    effect: Gather
    runs: dict[str, _Run] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class SimRuntime:
    """One process's runtime."""

    def __init__(
        self,
        world: World,
        boot: Boot,
        client: str,
        network: Network,
        backends: Mapping[str, Backend],
        persist: Callable[[str, bytes | None], None] | None = None,
        recall: Callable[[str], bytes | None] | None = None,
    ) -> None:
        self._world = world
        self._boot = boot
        self._client = client
        self._network = network
        self._backends = dict(backends)
        self._persist = persist
        self._recall = recall
        self._tops: dict[_Run, None] = {}
        boot.hooks.append(self._drop)

    def clock(self) -> float:
        return self._world.now

    # for the client's thread

    def start(self, task: Task) -> SimFuture:
        return self._started(task)[1]

    def _started(self, task: Task) -> tuple[_Run, SimFuture]:
        self._boot.step()
        future = SimFuture(self._boot)
        run = _Run(task, future=future)
        self._tops[run] = None
        self._world.at(0.0, lambda: self._step(run, None, None))
        return run, future

    def run(self, task: Task, deadline_s: float | None = None) -> Any:
        with self.beside(task, deadline_s) as result:
            return result()

    @contextmanager
    def beside(self, task: Task, deadline_s: float | None = None) -> Iterator[Callable[[], Any]]:
        run, future = self._started(task)

        def result() -> Any:
            self.wait([future], deadline_s)
            if not future.done():
                raise NoQuorumError(f"not finished within {deadline_s} s; what was sent may be committed")
            return future.result()

        try:
            yield result
        finally:
            if not future.done() and not self._boot.dead:
                self._abandon(run)

    def submit_work(self, function: Callable[[], Any]) -> SimFuture:
        future = SimFuture(self._boot)
        try:
            value = function()
        except Exception as e:  # it belongs to whoever waits for the result
            future.settle(None, e)
        else:
            future.settle(value, None)
        return future

    def wait(
        self, futures: Iterable[Future[Any]], timeout_s: float | None = None, *, for_all: bool = False
    ) -> list[Future[Any]]:
        """In virtual time."""
        futures = list(futures)
        if not all(f.done() for f in futures) and (timeout_s is None or timeout_s > 0):
            enough = len(futures) if for_all else 1
            late = [False]
            if timeout_s is not None:

                def ring() -> None:
                    late[0] = True
                    self._boot.actor.look()

                self._world.at(timeout_s, ring)
            self._boot.wait(lambda: late[0] or sum(f.done() for f in futures) >= enough)
        return [f for f in futures if f.done()]

    def add_backend(self, name: str, backend: Backend) -> None:
        self._backends[name] = backend

    def listen(self, listener: object) -> None:
        """Nobody: what is told of transfers is measured, and time is not."""

    def govern(self, governor: object) -> None:
        """By nobody: a user's limits change when things happen, and the network does that already."""

    def close(self, linger_s: float = 0.0) -> None:
        if self._boot.dead:
            return
        for run in list(self._tops):
            self._abandon(run)

    # in the world's events

    def _drop(self) -> None:
        """The process is dead: its tasks go, and may do nothing more on their way."""
        tops, self._tops = list(self._tops), {}
        for run in tops:
            self._bury(run)

    def _bury(self, run: _Run) -> None:
        run.ended = True
        run.token += 1
        if run.gathering is not None:
            run.gathering.ended = True
            for branch in run.gathering.runs.values():
                self._bury(branch)
        with suppress(Crashed, RuntimeError, ValueError):  # it was at work itself when it died, or would have gone on
            run.task.close()

    def _step(self, run: _Run, value: Any, error: BaseException | None) -> None:
        if self._boot.asleep_until > self._world.now:
            token = run.token
            later = self._boot.asleep_until - self._world.now
            self._world.at(later, lambda: self._step(run, value, error) if run.token == token else None)
            return
        while not run.ended:
            run.token += 1
            try:
                self._boot.step()
                effect = run.task.throw(error) if error is not None else run.task.send(value)
            except StopIteration as stop:
                self._end(run, stop.value, None)
                return
            except Crashed:
                self._boot.die()
                return
            except Exception as e:  # handed to whoever waits
                self._end(run, None, e)
                return
            value, error = None, None
            if isinstance(effect, Op):
                self._call(run, effect)
                return
            if isinstance(effect, Gather):
                if not effect.branches:
                    value = {}
                    continue
                self._gather(run, effect)
                return
            if isinstance(effect, Sleep):
                self._resume(run, effect.seconds, None)
                return
            try:
                value = self._at_once(effect)
            except Crashed:
                self._boot.die()
                return
            except Exception as e:  # thrown into the task that asked for it
                error = e

    def _at_once(self, effect: Any) -> Any:
        if isinstance(effect, Now):
            return self._world.now
        if isinstance(effect, Random):
            return self._world.rng.randbytes(effect.n)
        if isinstance(effect, Work):
            return effect.function()
        if isinstance(effect, Recall):
            assert self._recall is not None
            return self._recall(effect.key)
        assert isinstance(effect, Persist), effect
        assert self._persist is not None
        if effect.key == JOURNAL_KEY.name and effect.value is not None:
            self._boot.proposed.append(decode_journal(effect.value).op_id)
        self._persist(effect.key, effect.value)
        return None

    def _resume(self, run: _Run, seconds: float, value: Any) -> None:
        token = run.token
        self._world.at(seconds, lambda: self._step(run, value, None) if run.token == token else None)

    def _call(self, run: _Run, op: Op) -> None:
        backend = self._backends.get(op.backend)
        if backend is None:
            self._resume(run, 0.0, Reply(error=UnreachableError(f"no backend is linked as {op.backend}")))
            return
        token, began = run.token, self._world.now

        def answer(reply: Reply) -> None:
            if run.token == token:
                self._step(run, Reply(reply.value, reply.error, self._world.now - began), None)

        def late() -> None:
            if run.token == token:
                text = f"{op.backend}: {op.kind} {op.path}: no answer within {op.timeout_s:g} s"
                self._step(run, Reply(error=UnreachableError(text)), None)

        due = self._network.send(self._boot, self._client, backend, op, answer)
        if due is None or due >= op.timeout_s:
            self._world.at(op.timeout_s, late)

    def _gather(self, run: _Run, effect: Gather) -> None:
        gathering = _Gathering(run, effect)
        run.gathering = gathering
        for key, task in effect.branches.items():
            gathering.runs[key] = _Run(task, gathering, key)
        for branch in gathering.runs.values():
            self._world.at(0.0, lambda branch=branch: self._step(branch, None, None))  # type: ignore[misc]
        if effect.deadline_s is not None:
            self._world.at(effect.deadline_s, lambda: self._gathered(gathering, None))

    def _gathered(self, gathering: _Gathering, error: BaseException | None) -> None:
        if gathering.ended:
            return
        gathering.ended = True
        for branch in gathering.runs.values():
            self._abandon(branch)
        gathering.owner.gathering = None
        results = None if error else dict(gathering.results)
        self._world.at(0.0, lambda: self._step(gathering.owner, results, error))

    def _abandon(self, run: _Run) -> None:
        if run.ended:
            return
        run.ended = True
        run.token += 1
        if run.gathering is not None:
            run.gathering.ended = True
            for branch in run.gathering.runs.values():
                self._abandon(branch)
        run.task.close()
        if run.future is not None:
            self._tops.pop(run, None)
            run.future.settle(None, CancelledError("abandoned"))

    def _end(self, run: _Run, value: Any, error: BaseException | None) -> None:
        run.ended = True
        if run.future is not None:
            self._tops.pop(run, None)
            run.future.settle(value, error)
            return
        gathering = run.parent
        if gathering is None or gathering.ended:
            return
        if error is not None:
            self._gathered(gathering, error)
            return
        gathering.results[run.key] = value
        try:
            until = gathering.effect.until
            enough = len(gathering.results) == len(gathering.runs) or (until is not None and until(gathering.results))
        except Exception as e:  # the predicate is part of the task
            self._gathered(gathering, e)
            return
        if enough:
            self._gathered(gathering, None)
