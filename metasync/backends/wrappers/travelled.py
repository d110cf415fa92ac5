"""Counts what travels to and from a backend: for the reports of this process, and of one workspace among others."""

from __future__ import annotations

from collections.abc import Callable

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.events import Travelled
from metasync.runtime.travelled import COUNTER, Counter


class Counting(Wrapper):
    """The same store; its calls count, those that fail too. `own`: a counter that counts them beside the process's."""

    def __init__(self, inner: Backend, own: Counter | None = None) -> None:
        super().__init__(inner)
        self._counters = (COUNTER,) if own is None else (COUNTER, own)

    def around(self, call: Call, do: Callable[[], T]) -> T:
        value = None
        try:
            value = do()
            return value
        finally:
            down = len(value) if call.kind == "get" and isinstance(value, bytes) else 0
            for counter in self._counters:
                counter.add(Travelled(1, call.up_bytes, down))
