"""A backend at the end of a slow line: every call takes a time drawn by seed, and its bytes take theirs.

b = SlowBackend(inner, seed=7, latency_s=(0.05, 0.4), bytes_per_s=250_000)
b = SlowBackend(inner, seed=7, latency_s=(0.05, 0.4), sleep=clock.sleep)      # on a clock of the test's own
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper


class SlowBackend(Wrapper):
    """The same store. A call waits for its latency and its bytes up, is made, and waits for its bytes down.

    The latency depends on the seed, the kind, the path and how many such calls went before it, and on nothing else.
    `waited_s`: the sum of all waits.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        seed: int = 0,
        latency_s: tuple[float, float] = (0.02, 0.2),
        bytes_per_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.waited_s = 0.0
        self._seed = seed
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._sleep = sleep
        self._turns: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def around(self, call: Call, do: Callable[[], T]) -> T:
        with self._lock:
            turn = self._turns[call.kind, call.path]
            self._turns[call.kind, call.path] += 1
        low, high = self._latency_s
        latency_s = low + (high - low) * random.Random(f"{self._seed}/{call.kind}/{call.path}/{turn}").random()
        self._wait(latency_s, call.up_bytes)
        value = do()
        if isinstance(value, bytes):
            self._wait(0.0, len(value))
        return value

    def _wait(self, seconds: float, size_bytes: int) -> None:
        if self._bytes_per_s is not None:
            seconds += size_bytes / self._bytes_per_s
        if seconds > 0:
            with self._lock:
                self.waited_s += seconds
            self._sleep(seconds)
