"""The threads of a runtime besides those of its channels. All are daemons: one that is stuck keeps no process alive."""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

from metasync.runtime.effects import CARRIED
from metasync.runtime.sizes import QUEUED_MAX

Ended: TypeAlias = Callable[[Any, BaseException | None], None]
"""Gets what a function returned, or what it raised and None."""


class Pool:
    """Up to `size` threads, started as needed, that run functions from one queue."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Ended] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._pending = 0  # waiting or running

    def submit(self, function: Callable[[], Any], ended: Ended) -> bool:
        """Has a function run, and `ended` called in that thread. False when too many wait already."""
        with self._lock:
            if self._pending >= QUEUED_MAX:
                return False
            self._pending += 1
            start = self._pending > self._threads < self._size
            self._threads += start
        self._jobs.put((function, ended))
        if start:
            threading.Thread(target=self._work, name=f"metasync-{self._name}", daemon=True).start()
        return True

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _run(*job)
            job = None  # a thread that waits holds nothing of what it did last: a pack of megabytes, say
            with self._lock:
                self._pending -= 1

    def busy(self) -> bool:
        return self._pending > 0

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)


class Alone:
    """A function that may never return, in a thread of its own that can be left behind (`effects.Carried`)."""

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        context = contextvars.copy_context()
        context.run(CARRIED.set, self)
        self._thread = threading.Thread(
            target=context.run, args=(_run, function, settling(self.outcome)), name=f"metasync-{name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def is_stuck(self) -> bool:
        """Whether the function has not returned."""
        return self._thread.is_alive()

    def leave(self, error: BaseException) -> None:
        settling(self.outcome)(None, error)

    def refused(self, after_s: float) -> None:
        """Nothing: no other call is made beside it."""


def settling(future: Future[Any]) -> Ended:
    """What gives a future its result or its error; the first one stays."""

    def ended(value: Any, error: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    return ended


def _run(function: Callable[[], Any], ended: Ended) -> None:
    try:
        value = function()
    except BaseException as error:  # noqa: BLE001  # whatever it is belongs to whoever waits for the result
        ended(None, error)
    else:
        ended(value, None)
