"""Counts what travels to and from a backend, for the reports of this process."""

from __future__ import annotations

from collections.abc import Callable

from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.runtime.travelled import COUNTER


class Counting(Wrapper):
    """The same store; its calls count, those that fail too."""

    def around(self, call: Call, do: Callable[[], T]) -> T:
        value = None
        try:
            value = do()
            return value
        finally:
            COUNTER.add(call.up_bytes, len(value) if call.kind == "get" and isinstance(value, bytes) else 0)
