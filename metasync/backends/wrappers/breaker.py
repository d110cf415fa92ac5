"""Stops asking a backend that does not answer, and lets nobody wait for it longer than for one time-out.

`Circuit` decides, from times that it is told; `Breaker` makes the calls and waits.

    closed      calls go through. FAILURES_MAX outcomes `unreachable` in a row open it, and so does a call that hangs
    open        calls are refused at once, until a cool-down has passed
    half-open   one call goes through as a probe, the others are refused. An answer closes the circuit; no answer opens
                it again for twice as long, up to COOL_MAX_S

A backend hangs when a call takes longer than it may and *nothing at all* was answered meanwhile: one lost connection
among calls that are answered is no sign. The time that a call may take grows with its bytes and those under way, so
that a busy slow line does not look dead. When the circuit opens, all calls under way fail together. They may still take
effect, as any request whose answer got lost (providers.md, section 1.3).

"Not there", "refused", "full" and a server's own error are answers. A late answer closes the circuit at once, and from
then on the backend is given twice the time that this answer took.

A blocked call cannot be ended. Whoever carries it out (`effects.Carried`) leaves it behind, with its thread: a channel,
whose runtime asks by `look` whether the backend hangs; or the caller itself. At most CALLS_MAX are left behind.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.errors import BackendError, UnreachableError
from metasync.runtime.effects import CARRIED, SLOWEST_BYTES_PER_S, TRANSFER_TIMEOUT_S, Carried
from metasync.runtime.sizes import CALLS_MAX, SMALL_BYTES_MAX
from metasync.runtime.threads import Alone

FAILURES_MAX: Final = 5
COOL_FIRST_S: Final = 1.0  # after failures that came at once
COOL_HUNG_S: Final = 15.0  # after a hang: the probe that follows costs somebody a wait
COOL_MAX_S: Final = 60.0

PATIENCE_S: Final = 5.0  # for a small call. A disk that spins up takes up to 8 s: it is then late, and given 16 s
PATIENCE_SHORT_S: Final = 1.5  # for a backend that hung a moment ago, until it answers
PATIENCE_MAX_S: Final = 60.0  # however late an answer came
UNDER_WAY_BYTES_MAX: Final = 4 << 20  # of one get, as far as others wait for it: its bound may be far above its size

_LEFT_ALONE: Final = "; since "  # what follows says for how long it was left alone when it was asked
_NOT_ASKED: Final = "the backend is not asked: "
_ASKED: Final = re.compile(r"cannot [a-z]+ \S+: ")  # what the call was about: a name made of a hash

State = Literal["closed", "open", "half-open"]


def lasting(message: str) -> str:
    """What an error's text says of the backend that holds later as well: not the call, nor the seconds of a wait."""
    message = _ASKED.sub("", message)
    if _NOT_ASKED in message:
        message = message.replace(_NOT_ASKED, "")
        message = message.rpartition(_LEFT_ALONE)[0] or message
    return message


class Circuit:
    """When to let a call through. Knows no clock: every method is told what time it is. Not for two threads at once."""

    def __init__(self, *, suspected: bool = False) -> None:
        """`suspected`: it hung a moment ago; until it answers it is given PATIENCE_SHORT_S."""
        self.state: State = "closed"
        self.why = ""
        self.heard_at: float | None = None
        self.hung = False  # whether the last thing known of it is that it hangs
        self._suspected = suspected
        self._since = 0.0
        self._until = 0.0
        self._cool_s = 0.0
        self._failures = 0
        self._patience_s = PATIENCE_S

    def admit(self, now: float) -> str | None:
        """None: the call may be made. Else why not; then it must not."""
        if self.state == "open" and now >= self._until:
            self.state = "half-open"
            return None
        if self.state == "closed":
            return None
        text = f"{self.why}{_LEFT_ALONE}{now - self._since:.0f} s it is left alone"
        return f"{text}, for {self._until - now:.0f} s more" if self.state == "open" else f"{text} but for one trial"

    def patience_s(self, call: Call, under_way_bytes: int) -> float:
        """How long a call may take that begins now, beside others of so many bytes."""
        own = max(call.up_bytes, call.down_bytes_max)
        if own > SMALL_BYTES_MAX:
            return max(TRANSFER_TIMEOUT_S, self._patience_s) + (own + under_way_bytes) / SLOWEST_BYTES_PER_S
        least = PATIENCE_SHORT_S if self._suspected or self.state == "half-open" else self._patience_s
        return least + under_way_bytes / SLOWEST_BYTES_PER_S

    def answered(self, now: float, took_s: float, *, late: bool) -> None:
        """A call ended with an answer, of whatever kind. `late`: nobody waited for it any more."""
        self.heard_at = now
        self._suspected = self.hung = False
        self._failures = 0
        self._cool_s = 0.0
        self.state = "closed"
        if late:
            self._patience_s = min(PATIENCE_MAX_S, max(self._patience_s, 2 * took_s))

    def unreachable(self, now: float, why: str) -> None:
        """A call ended without an answer."""
        self._failures += 1
        if self.state == "half-open" or (self.state == "closed" and self._failures >= FAILURES_MAX):
            self._open(now, why, COOL_FIRST_S)

    def hangs(self, now: float, why: str) -> None:
        """No call is answered."""
        self.hung = True
        self._open(now, why, COOL_HUNG_S)

    def dropped(self, now: float) -> None:
        """A call ended in a way that says nothing about the backend. If it was the trial, the next call is."""
        if self.state == "half-open":
            self.state, self._until = "open", now

    def again(self) -> None:
        """Somebody begins anew: all calls are let through; one that hung is given little time until it answers."""
        self._suspected = self._suspected or self.hung
        self._failures = 0
        self.state = "closed"

    def _open(self, now: float, why: str, cool_s: float) -> None:
        if self.state == "closed":
            self._since, self._cool_s = now, 0.0
        self.state, self.why = "open", why
        self._cool_s = min(COOL_MAX_S, max(cool_s, 2 * self._cool_s))
        self._until = now + self._cool_s


@dataclass(eq=False, slots=True)
class _Flight:
    """One call under way."""

    call: Call
    began: float
    patience_s: float
    carried: Carried | None
    given_up: UnreachableError | None = None  # what was told to whoever waited for it


class Breaker(Wrapper):
    """The same store; its calls fail when it hangs, and are not made while it does not answer.

    Its own errors are `UnreachableError`s that are not `retryable`. `wait(outcome, seconds)` waits for a future by
    `clock`.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        suspected: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[Future[Any], float], object] = lambda outcome, seconds: wait([outcome], seconds),
    ) -> None:
        super().__init__(inner)
        self._circuit = Circuit(suspected=suspected)
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._flights: set[_Flight] = set()
        self._closed = False

    @property
    def state(self) -> State:
        with self._lock:
            return self._circuit.state

    def again(self) -> None:
        """For the begin of an operation: what was refused before is asked for anew."""
        with self._lock:
            self._circuit.again()

    def silent(self) -> bool | None:
        """Whether it hangs as far as can be told; None: it was not asked, or too short a time ago."""
        with self._lock:
            if self._circuit.heard_at is not None or self._circuit.hung:
                return self._circuit.hung
            oldest = min((flight.began for flight in self._flights), default=None)
            return True if oldest is not None and self._clock() - oldest >= PATIENCE_SHORT_S else None

    def close(self) -> None:
        self._closed = True
        self.inner.close()

    def around(self, call: Call, do: Callable[[], T]) -> T:
        assert not self._closed, "the backend was closed"
        flight = self._depart(call)
        if flight.carried is not None:
            return self._carry(flight, do)
        flight.carried = alone = Alone("call", lambda: self._carry(flight, do))
        alone.start()
        while not alone.outcome.done():
            self._wait(alone.outcome, self.look())
        return cast(T, alone.outcome.result())

    def look(self) -> float:
        """Gives up the calls under way if the backend hangs. -> in how many seconds to look again if there are any."""
        with self._lock:
            now, heard_at = self._clock(), self._circuit.heard_at
            look_s = PATIENCE_SHORT_S  # no call that begins meanwhile is given up sooner
            for flight in self._flights:
                if flight.given_up is None:
                    silent_since = flight.began if heard_at is None else max(flight.began, heard_at)
                    left_s = silent_since + flight.patience_s - now
                    if left_s <= 0:
                        self._give_up(now, f"no answer for {now - silent_since:.1f} s")
                        break
                    look_s = min(look_s, left_s)
            return look_s

    def _depart(self, call: Call) -> _Flight:
        with self._lock:
            now = self._clock()
            why = self._circuit.admit(now)
            stuck = sum(flight.given_up is not None for flight in self._flights)
            if why is None and stuck >= CALLS_MAX:
                why = f"{stuck} calls before it have not come back"
                self._circuit.dropped(now)
            if why is not None:
                raise UnreachableError(
                    f"cannot {call.kind} {call.path}: {_NOT_ASKED}{why}",
                    next_step="Check the backend and the network; it is asked again by itself.",
                    retryable=False,
                )
            under_way = sum(f.call.up_bytes + min(f.call.down_bytes_max, UNDER_WAY_BYTES_MAX) for f in self._flights)
            flight = _Flight(call, now, self._circuit.patience_s(call, under_way), CARRIED.get())
            self._flights.add(flight)
            return flight

    def _carry(self, flight: _Flight, do: Callable[[], T]) -> T:
        """Makes the call. One that was given up meanwhile fails, so that nobody above repeats it."""
        try:
            value = do()
        except BaseException as error:
            self._land(flight, error)
            raise
        self._land(flight, None)
        return value

    def _land(self, flight: _Flight, error: BaseException | None) -> None:
        with self._lock:
            now = self._clock()
            self._flights.discard(flight)
            if error is None or (isinstance(error, BackendError) and not isinstance(error, UnreachableError)):
                self._circuit.answered(now, now - flight.began, late=flight.given_up is not None)
            elif flight.given_up is None:  # else it was counted when it was given up
                if isinstance(error, UnreachableError):
                    self._circuit.unreachable(now, error.message)
                else:
                    self._circuit.dropped(now)
        if flight.given_up is not None:
            raise flight.given_up

    def _give_up(self, now: float, why: str) -> None:
        self._circuit.hangs(now, f"it gave {why}")
        for flight in self._flights:
            if flight.given_up is None and flight.carried is not None:
                flight.given_up = UnreachableError(
                    f"cannot {flight.call.kind} {flight.call.path}: {why}",
                    next_step="Check the backend and the network. What was sent may still take effect.",
                    retryable=False,
                )
                flight.carried.leave(flight.given_up)
