"""Makes the calls on one backend: in which order, how many at once, and when.

Threads carry the calls out. `priority` decides the order, `concurrency` the number at once, and a `Governor` what the
user allows (limits, a pause).

A server may send a call away and ask for patience. The call then waits and is made again, unless it is urgent or not
repeatable. So does a call that was not made because the account is to be left alone (`HeldBackError`); if the backend
was never heard, it fails soon, so that others stand in.

A call that hangs is left behind with its thread (`Channel.leave`), and another thread takes its place. Whether a
backend hangs is for its wrappers to say (`backends.wrappers.breaker`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from metasync.errors import BackendError, HeldBackError, RefusedError
from metasync.runtime.concurrency import Concurrency
from metasync.runtime.effects import CARRIED, DUE, Op, Reply
from metasync.runtime.priority import DOWN, LARGE, UP, URGENT, Lane, Queue, bytes_of, lane_of, open_lanes, virtual_end
from metasync.runtime.sizes import QUEUED_MAX

THROTTLED_TRIES: Final = 4  # of one call that the server sends away: seven seconds, if it asks for one
HOLD_MAX_S: Final = 30.0  # a server that asks for more is as good as down: its calls fail. The promise of exit code 5
LEFT_OUT_S: Final = 5.0  # for so long a command waits for a backend that was held back before the command began
WRITES: Final = frozenset({"create", "put", "delete"})
# `backends.wrappers.retry` says why.
_REPEATABLE: Final = {"put", "delete", "get", "stat", "list", "space", "digest", "inventory"}


class Calls(Protocol):
    """What the runtime calls on a backend (`metasync.backends.Backend` has it)."""

    def create(self, path: str, data: bytes) -> bool: ...
    def put(self, path: str, data: bytes) -> None: ...
    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes: ...
    def stat(self, path: str) -> int: ...
    def list(self, path: str) -> Any: ...
    def delete(self, path: str) -> None: ...


class Governor(Protocol):
    """What the user allows. Thread-safe."""

    def connections(self, backend: str) -> int | None:
        """So many calls at once at most, on this backend."""

    def ask(self, backend: str, *, up: bool, size_bytes: int) -> float:
        """How long the next call in this direction must still wait before it moves so much; 0: it may go, and counts.

        Ask again after that time, for this call or another one in its place: it keeps its place.
        """

    def count(self, backend: str, *, up: bool, size_bytes: int) -> None:
        """So much was moved without asking; less than was asked for where negative."""

    def forget(self, backend: str, *, up: bool) -> None:
        """There is no next call in this direction any more."""


@dataclass(slots=True, eq=False)
class Call:
    """One `Op` on its way. `deliver` gets the reply, in another thread, once or never; `is_wanted` asks who waits."""

    op: Op
    backend: Calls
    at: float
    deliver: Callable[[Reply], None]
    is_wanted: Callable[[], bool]
    lane: Lane = field(init=False)
    is_urgent: bool = field(init=False)
    is_large: bool = field(init=False)
    began: float | None = None
    channel: Channel | None = None
    is_left: bool = False
    tries: int = 0
    held_since: float | None = None  # when it was first kept off without being made
    ticket: list[Any] | None = None

    def __post_init__(self) -> None:
        self.lane = lane_of(self.op)
        self.is_urgent, self.is_large = self.lane is Lane.NOW, self.lane in LARGE

    @property
    def outlives_its_task(self) -> bool:
        """An urgent write is made even if nobody waits: it may complete a quorum's copies."""
        return self.is_urgent and self.op.kind in WRITES

    # as `effects.Carried`

    def leave(self, error: BackendError) -> None:
        if self.channel is not None:
            self.channel.leave(self, error)

    def refused(self, after_s: float) -> None:
        if self.channel is not None:
            self.channel.refused(self, after_s)


class Channel:
    """The way to one backend: up to `most` daemon threads, started as needed.

    `moved(op, reply)` is called, in those threads, for every call that ended well.
    """

    def __init__(
        self, name: str, start: int, most: int, clock: Callable[[], float], moved: Callable[[Op, Reply], None]
    ) -> None:
        self._name = name
        self._concurrency = Concurrency(start, most)
        self._clock = clock
        self._moved = moved
        self._queue = Queue()
        self._changed = threading.Condition(threading.Lock())
        self._threads = self._idle = 0
        self._running = self._soon = self._large = 0
        self._hold_until = 0.0
        self._held_until = 0.0  # calls wait for the user's or the server's sake
        self._heard_at = 0.0
        self._heard_well = False  # whether any call has ended well
        self._watched = False  # a thread waits for a time at which a call may go
        self._asked: set[bool] = set()  # directions in which the governor keeps a place
        self._governor: Governor | None = None
        self._closed = False

    def govern(self, governor: Governor | None) -> None:
        with self._changed:
            self._governor = governor
            self._changed.notify_all()

    def submit(self, call: Call) -> bool:
        """False when too many wait already."""
        call.channel = self
        with self._changed:
            if len(self._queue) >= QUEUED_MAX:
                return False
            self._push(call)
            self._staff()
        return True

    def cancel(self, call: Call) -> bool:
        """Takes a call back that has not begun. False: it has."""
        with self._changed:
            return call.ticket is not None and self._queue.drop(call.ticket)

    def due(self, call: Call) -> float:
        """When this call's time is up, as things are now.

        The time of an urgent call runs from its submission. That of another runs while the backend has it or gives no
        sign, but not while others are served before it, nor while the user or the server has it wait.
        """
        if call.is_urgent:
            return call.at + call.op.timeout_s
        began = call.began
        return (max(call.at, self._held_until, self._heard_at) if began is None else began) + call.op.timeout_s

    def busy(self) -> bool:
        return bool(self._running or len(self._queue))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # with the lock held

    def _push(self, call: Call) -> None:
        ends = virtual_end(call.at, call.op.urgency, bytes_of(call.op), self._concurrency.bytes_per_s)
        call.ticket = self._queue.push(call.lane, ends, call)

    def _staff(self) -> None:
        """Sees to it that somebody looks at what waits."""
        if not self._queue.has(open_lanes(self._concurrency.size, self._running, self._soon, self._large)):
            return
        if self._idle:
            self._changed.notify()
        elif self._threads < self._concurrency.size:
            self._threads += 1
            threading.Thread(target=self._work, name=f"metasync-{self._name}", daemon=True).start()

    def _next(self) -> tuple[Call | None, float | None]:
        """The call to make now, or when to look again (None: when something changes)."""
        if self._governor is not None:
            self._concurrency.bound(self._governor.connections(self._name))
        if not len(self._queue):
            self._forget(set())
            return None, None
        now = self._clock()
        wait_s: float | None = None
        lanes = open_lanes(self._concurrency.size, self._running, self._soon, self._large)
        if now < self._hold_until:
            self._held_until, wait_s = self._hold_until, self._hold_until - now
            lanes = lanes[: len(URGENT)]
        refused: set[bool] = set()
        for ticket, lane in self._queue.heads(lanes):
            if lane is Lane.NOW or self._governor is None:
                return self._queue.take(lane), None
            up = lane in UP
            if up not in refused:
                more_s = self._governor.ask(self._name, up=up, size_bytes=bytes_of(ticket[2].op))
                if more_s > 0:
                    self._held_until = max(self._held_until, now + more_s)
                    wait_s = more_s if wait_s is None else min(wait_s, more_s)
                    refused.add(up)
                    self._asked.add(up)
                    continue
                self._asked.discard(up)
                return self._queue.take(lane), None
        self._forget(refused)
        return None, wait_s

    def _forget(self, kept: set[bool]) -> None:
        """Gives places back that nothing waits for any more."""
        for up in self._asked - kept:
            if self._governor is not None and not self._queue.has(UP if up else DOWN):
                self._governor.forget(self._name, up=up)
                self._asked.discard(up)

    def _count(self, call: Call, step: int) -> None:
        self._running += step
        self._soon += 0 if call.is_urgent else step
        self._large += step if call.is_large else 0

    # in the threads

    def _work(self) -> None:
        call: Call | None = None
        moved: int | None = None
        while True:
            with self._changed:
                if call is not None:
                    if call.is_left:
                        return
                    self._count(call, -1)
                    call = None  # and what it sent: the next one may be long in coming
                if moved is not None:
                    self._concurrency.ended(self._heard_at, moved, waiting=len(self._queue) > 0)
                call = self._await()
                if call is None:
                    self._threads -= 1
                    return
                self._count(call, 1)
                self._staff()
            moved = self._carry(call)

    def _await(self) -> Call | None:
        """The next call, with the lock held but while waiting; None: there will be none."""
        while True:
            call, wait_s = self._next()
            if call is not None or (self._closed and not len(self._queue)):
                return call
            self._idle += 1
            watches = wait_s is not None and not self._watched
            self._watched = self._watched or watches
            self._changed.wait(wait_s if watches else None)
            if watches:
                self._watched = False
            self._idle -= 1

    def _carry(self, call: Call) -> int | None:
        """Makes a call and delivers its reply. -> how many bytes it moved; None if it failed."""
        op = call.op
        began = call.began = self._clock()
        if call.is_urgent and began >= call.at + op.timeout_s:
            return None
        if not call.outlives_its_task and not call.is_wanted():
            if self._governor is not None and not call.is_urgent and op.kind in ("get", "put", "create"):
                self._governor.count(self._name, up=op.kind != "get", size_bytes=-bytes_of(op))
            return None
        DUE.set(self.due(call))
        CARRIED.set(call)
        reply = made(call.backend, op)
        CARRIED.set(None)  # nothing of the call is held while the next one is waited for
        if call.is_left:
            return None
        self._heard_at = self._clock()
        moved = len(reply.value) if op.kind == "get" and reply.error is None else len(op.data)
        if self._governor is not None and op.kind in ("get", "put", "create"):
            asked = 0 if call.is_urgent else bytes_of(op)
            if moved != asked:
                self._governor.count(self._name, up=op.kind != "get", size_bytes=moved - asked)
        if reply.error is None:
            self._heard_well = True
            self._moved(op, reply)
        elif reply.error.retry_after_s is not None and self._sent_away(call, began, reply.error):
            return None
        call.deliver(reply)
        return moved if reply.error is None else None

    def leave(self, call: Call, error: BackendError) -> None:
        """Abandons a call that hangs with its thread; another thread takes its place."""
        with self._changed:
            call.is_left = True
            self._count(call, -1)
            self._threads -= 1
            self._staff()
        call.deliver(Reply(error=error))

    def refused(self, call: Call, after_s: float) -> None:
        """The server sent an attempt at a call away, whatever becomes of the call: fewer are made at once."""
        with self._changed:
            self._concurrency.throttled(self._clock(), call.began or 0.0, after_s)

    def _sent_away(self, call: Call, began: float, error: BackendError) -> bool:
        """Notes that the server asks for fewer calls. -> True if this one will be made again."""
        after_s = error.retry_after_s or 0.0
        with self._changed:
            now = self._heard_at
            if isinstance(error, HeldBackError):
                hold_s = self._hold_s(call, now, after_s)
                error.retryable = hold_s is not None  # who hears of it has waited, or is not to
            else:
                self._concurrency.throttled(now, began, after_s)
                call.tries += 1
                hold_s = after_s * 2 ** (call.tries - 1)
                if call.tries >= THROTTLED_TRIES or call.op.kind not in _REPEATABLE or hold_s > HOLD_MAX_S:
                    hold_s = None
            return hold_s is not None and not call.is_urgent and self._put_back(call, now, hold_s)

    def _hold_s(self, call: Call, now: float, after_s: float) -> float | None:
        """How long a call that was held back waits; None: it fails."""
        if call.held_since is None:
            call.held_since = now
        if now + after_s - call.held_since > (HOLD_MAX_S if self._heard_well else LEFT_OUT_S):
            return None
        return after_s

    def _put_back(self, call: Call, now: float, hold_s: float) -> bool:
        if self._closed:
            return False
        self._hold_until = max(self._hold_until, now + hold_s)
        self._held_until = max(self._held_until, self._hold_until)
        call.began = None
        self._push(call)
        return True


def made(backend: Calls, op: Op) -> Reply:
    """One call, in this thread. Whatever a backend does wrong becomes a `BackendError`."""
    began = time.perf_counter()
    value: Any = None
    error: BackendError | None = None
    try:
        value = _checked(op, _dispatch(backend, op))
    except BackendError as e:
        error = e
    except BaseException as e:  # noqa: BLE001  # a fault of a third party's provider must not hang a task
        error = BackendError(f"{op.backend}: {op.kind} {op.path} failed inside the provider: {type(e).__name__}: {e}")
        error.__cause__ = e
    return Reply(value, error, time.perf_counter() - began)


def _dispatch(backend: Calls, op: Op) -> Any:
    if op.kind == "create":
        return backend.create(op.path, op.data)
    if op.kind == "put":
        return backend.put(op.path, op.data)
    if op.kind == "get":
        return backend.get(op.path, offset=op.offset, length=op.length, max_bytes=op.max_bytes)
    if op.kind == "stat":
        return backend.stat(op.path)
    if op.kind == "list":
        return tuple(backend.list(op.path))
    if op.kind == "space":
        return tell() if (tell := getattr(backend, "space", None)) is not None else None  # an optional power
    if op.kind == "digest":  # (size, kind of digest, digest or None); who has not this power either tells the size
        if (digest := getattr(backend, "digest", None)) is None:
            return backend.stat(op.path), "", None
        size, value = digest(op.path)
        return size, getattr(backend, "digest_kind", ""), value
    if op.kind == "inventory":
        if (inventory := getattr(backend, "inventory", None)) is None:
            return None
        return getattr(backend, "digest_kind", ""), inventory(op.path, op.cursor)
    return backend.delete(op.path)


def _checked(op: Op, value: Any) -> Any:
    """A provider that answers with another type than promised has not answered."""
    kinds: Any = {"create": bool, "get": bytes, "stat": int, "list": tuple, "space": tuple | None, "digest": tuple}
    kinds["inventory"] = tuple | None
    if op.kind == "get" and isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if not isinstance(value, kinds.get(op.kind, type(None))):
        raise BackendError(f"{op.backend}: {op.kind} {op.path} answered with {type(value).__name__}", retryable=False)
    if op.kind == "get" and len(cast(bytes, value)) > op.max_bytes:
        raise RefusedError(f"{op.backend}: {op.path} has more than {op.max_bytes} bytes")
    return value
