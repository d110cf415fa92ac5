"""The threads of a runtime besides those of its channels, and what tells the callers' own threads to end.

A runtime's threads are daemons: one that is stuck keeps no process alive.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as Abandoned
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

from metasync.errors import CancelledError, WorkspaceError
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


class Inbox:
    """Messages from any thread for the one thread that takes them, in order.

    `queue.SimpleQueue` of CPython 3.11 does not serve: it waits for ever if its time-out passes before it begins to
    wait, as happens on a busy machine.
    """

    def __init__(self) -> None:
        self._messages: deque[Callable[[], None]] = deque()
        self._awake = threading.Lock()  # taken while there may be nothing to take
        self._awake.acquire()

    def put(self, message: Callable[[], None]) -> None:
        self._messages.append(message)
        with contextlib.suppress(RuntimeError):  # it has been woken, and has not looked yet
            self._awake.release()

    def get(self, timeout_s: float | None = None) -> Callable[[], None] | None:
        """The next message; None if there was none for so long, or now and then sooner."""
        if not self._messages:
            self._awake.acquire(timeout=-1 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
        return self._messages.popleft() if self._messages else None


class Alone:
    """A function that may never return, in a thread of its own that can be left behind (`effects.Carried`)."""

    is_urgent = True  # as `effects.Carried`: whoever has a thread of its own waits for it

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


_unbroken = threading.Condition()
_unbroken_count = [0]


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Inside, a thread does what must not end halfway: a process that ends of its own accord waits for it."""
    with _unbroken:
        _unbroken_count[0] += 1
    try:
        yield
    finally:
        with _unbroken:
            _unbroken_count[0] -= 1
            _unbroken.notify_all()


def await_unbroken(timeout_s: float) -> bool:
    """Waits until no thread is in `unbroken`, so long at most; -> whether none is."""
    with _unbroken:
        return _unbroken.wait_for(lambda: not _unbroken_count[0], timeout_s)


class Stop(BaseException):
    """Ends an operation from within, as Ctrl-C would: nothing takes it for a failure that can be mended."""


class UnderWay:
    """The operations under way in callers' threads, which other threads may end. Thread-safe.

    An operation enters; whatever it waits in calls `check` every now and then, which raises `Stop` once after `cancel`.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}  # by thread: one operation may be made of several
        self._cancelled: dict[int, str] = {}  # by thread: why

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, an operation of this thread is under way. `CancelledError` where it was ended.

        `WorkspaceError` in a process that was forked: connections and threads are those of the one that forked it.
        """
        if self.is_forked:
            raise WorkspaceError(
                "this workspace was opened by another process, which forked this one",
                next_step="Open it anew here: metasync.Workspace.open.",
            )
        me = threading.get_ident()
        with self._changed:
            self._depths[me] = self._depths.get(me, 0) + 1
        try:
            yield
        except Stop as e:
            if self._depths[me] > 1:
                raise
            raise CancelledError(str(e), next_step="Run again: it goes on where it was.") from None
        except Abandoned:
            raise CancelledError(
                "the connections were closed", next_step="Open the workspace, and run again."
            ) from None
        finally:
            with self._changed:
                self._depths[me] -= 1
                if not self._depths[me]:
                    del self._depths[me]
                    self._cancelled.pop(me, None)
                    self._changed.notify_all()

    @property
    def is_forked(self) -> bool:
        """Whether this process is another than the one that it was made in."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raises `Stop` if the operation of this thread was cancelled."""
        if self._cancelled and (why := self._cancelled.pop(threading.get_ident(), None)) is not None:
            raise Stop(why)

    def cancel(self, why: str) -> None:
        """Ends what is under way, each at its next `check`. `why`: a sentence for who waits for it."""
        with self._changed:
            self._cancelled.update(dict.fromkeys(self._depths, why))

    def ended(self, timeout_s: float) -> bool:
        """Waits until nothing is under way. False: something still is, or the caller is what is."""
        ends = time.monotonic() + timeout_s
        with self._changed:
            while self._depths and threading.get_ident() not in self._depths:
                if not self._changed.wait(ends - time.monotonic()) and time.monotonic() >= ends:
                    break
            return not self._depths


class Rest:
    """Calls `rest` once nothing has happened for so long, in a thread that ends with it; None: never. Thread-safe.

    `touch` after whatever happens; `stop` for good. `rest` says False where it is to be tried again later.
    """

    def __init__(self, after_s: float | None, rest: Callable[[], bool]) -> None:
        self._after_s = after_s
        self._rest = rest
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._touched_s = 0.0

    def touch(self) -> None:
        with self._lock:
            self._touched_s = time.monotonic()
            if self._timer is None and self._after_s is not None:
                self._begin(self._after_s)

    def _begin(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        with self._lock:
            if self._timer is None or self._after_s is None:
                return
            left_s = self._touched_s + self._after_s - time.monotonic()
            if left_s > 0:
                self._begin(left_s)
                return
            self._timer = None
        if not self._rest():
            self.touch()

    def stop(self) -> None:
        with self._lock:
            timer, self._timer, self._after_s = self._timer, None, None
        if timer is not None:
            timer.cancel()


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
