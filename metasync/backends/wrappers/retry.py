"""Repeats calls that failed in a way that may pass: exponential back-off, full jitter, a bound in time and in number.

Only what is `retryable` is repeated; "not there", "full" and "refused" are answers. No attempt begins after the call's
deadline, or after the time-out of the `Op` that asked for it: nobody would hear of it, and a write would land late.

What repeating does to writes:

- **create.** An error leaves it open whether the object was created, and the answer to the next attempt may be "taken"
  because the first one landed (providers.md, section 1.3). Then the object is read back. If it holds the very bytes of
  this call it counts as created by it, else as taken by another. That is sound where equal bytes can only come from
  this call, or where it does not matter whose they are. A log entry holds 32 random bytes, an id drawn for it and its
  device's signature: nobody else makes the same bytes. A pack, a meta or a const object is named by the hash of its
  bytes: whoever stored them, they are right. It is NOT sound for an object whose mere existence elects its creator and
  whose bytes two clients may share, such as an empty lock file: both would be told that they won. MetaSync has no such
  object. If the reading fails the outcome stays unknown, and that is an `UnreachableError`.
- **delete** twice is delete once, as long as nobody creates the name anew in between. Log entries, packs and births are
  never created anew once they are gone.
- **put** twice is put once, but a first request that the network kept may land after the second, or after a newer put
  of another client, and bring the older bytes back. Packs, meta and const objects, rings and slots are named by their
  content: both puts hold the same bytes. Heads (`devices/`) and hints are overwritten: a reader takes the newest that
  any backend shows, never goes back behind what it has seen, and nothing but convenience depends on them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import ATTEMPT, Call, T, Wrapper
from metasync.errors import BackendError, FullError, HeldBackError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.effects import DUE

ATTEMPTS_MAX: Final = 2  # a lost packet is worth one more; a backend that is down is not worth the wait
DEADLINE_S: Final = 2.0  # what took longer to fail has waited already; below the shortest time-out of an Op (3 s)
PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 10.0  # where more attempts are asked for

_ANSWERS: Final = (NotFoundError, FullError, RefusedError)


class Retrying(Wrapper):
    """The same store; calls that fail in a way that may pass are made again.

    At most `attempts_max` attempts, none of which begins later than `deadline_s` after the first, or at or after
    `due()` on `clock`, where that says anything. The pause before attempt n+1 is drawn evenly from 0 up to
    `pause_first_s * 2**(n-1)`, that bounded by `pause_max_s`; a server's own `retry_after_s` is kept where it is
    longer, and where it is too long the call fails at once. `fraction()` draws from 0 to 1.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        attempts_max: int = ATTEMPTS_MAX,
        deadline_s: float = DEADLINE_S,
        pause_first_s: float = PAUSE_FIRST_S,
        pause_max_s: float = PAUSE_MAX_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        fraction: Callable[[], float] = random.random,
        due: Callable[[], float | None] = DUE.get,
    ) -> None:
        super().__init__(inner)
        self._attempts_max = attempts_max
        self._deadline_s = deadline_s
        self._pause_first_s = pause_first_s
        self._pause_max_s = pause_max_s
        self._clock = clock
        self._sleep = sleep
        self._fraction = fraction
        self._due = due

    def around(self, call: Call, do: Callable[[], T]) -> T:
        ends = self._clock() + self._deadline_s
        due = self._due()
        if due is not None:
            ends = min(ends, due)
        before = ATTEMPT.get()
        attempt = 1
        try:
            while True:
                ATTEMPT.set(attempt)
                try:
                    return do()
                except BackendError as error:
                    pause_s = self._pause_s(error, attempt)
                    if pause_s is None or self._clock() + pause_s >= ends:
                        raise
                self._sleep(pause_s)
                attempt += 1
        finally:
            ATTEMPT.set(before)

    def create(self, path: str, data: bytes) -> bool:
        unknown = False  # whether an attempt before this one has landed, or may still

        def attempt() -> bool:
            nonlocal unknown
            try:
                created = self.inner.create(path, data)
            except HeldBackError:
                raise  # it was never sent
            except BackendError:
                unknown = True
                raise
            return created or (unknown and self._holds(path, data))

        return self.around(Call("create", path, len(data)), attempt)

    def _pause_s(self, error: BackendError, attempt: int) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        if not error.retryable or isinstance(error, _ANSWERS) or attempt >= self._attempts_max:
            return None
        most = min(self._pause_max_s, self._pause_first_s * 2.0 ** (attempt - 1))
        return max(most * self._fraction(), error.retry_after_s or 0.0)

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether what lies there are these bytes. Reads at most one byte more than there are of them.

        Read again by the next attempt if that fails, which asks once more for the create: its name is taken for good.
        """
        most = len(data) + 1
        try:
            return self.inner.get(path, length=most, max_bytes=most) == data
        except BackendError as error:
            raise UnreachableError(
                f"cannot create {path}: an attempt ended without an answer, the next found the name taken, and what is"
                f" there cannot be read: {error.message}",
                next_step="Whether it was created is not known. Run again.",
                retryable=error.retryable or isinstance(error, NotFoundError),  # a read may lag behind a create
                retry_after_s=error.retry_after_s,
            ) from error
