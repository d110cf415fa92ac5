"""Repeats calls that failed in a way that may pass: exponential back-off, full jitter, a bound in time and in number.

Only what is `retryable` is repeated; "not there", "full" and "refused" are answers. No attempt begins after the call's
deadline, or after the time-out of the `Op` that asked for it: a write would land late, and nobody would hear of it.

- **create.** After an error the object may exist, and the next attempt may be told "taken" because the first one landed
  (providers.md, section 1.3). Then the object is read back, and the call created it if it has the same bytes. That is
  sound because equal bytes come from this call alone, or it does not matter whose they are: a log entry holds 32 random
  bytes and a signature; a pack, meta or const object is named by its hash. It is NOT sound for an object whose mere
  existence elects its creator, such as an empty lock file; MetaSync has none. If the reading fails too, the outcome is
  unknown, which is an `UnreachableError`.
- **delete** twice is delete once, as long as nobody creates the name anew in between. Names of log entries, packs and
  births are never used again.
- **put** twice is put once, but a delayed first request may land after a newer put and bring older bytes back. Packs,
  meta and const objects, rings and slots are named by their content. Of heads (`devices/`) and hints a reader takes the
  newest that any backend shows, and nothing but convenience depends on them.
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

    There are at most `attempts_max` attempts, none later than `deadline_s` after the first, or than `due()` on `clock`.
    The pause before attempt n+1 is drawn by `fraction()` from 0 to `pause_first_s * 2**(n-1)`, at most `pause_max_s`. A
    longer `retry_after_s` of the server counts instead; the call fails at once if it is too long.
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
        """Whether the object has these bytes. After a failure the next attempt creates again, and reads again."""
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
