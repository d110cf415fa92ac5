"""Counts what travels to and from a backend: for the reports of this process, and of one workspace among others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper, layers
from metasync.errors import RefusedError
from metasync.events import Travelled
from metasync.runtime.travelled import COUNTER, Counter

_WRITES: Final = ("create", "put")


def write_refused(backend: Backend) -> str | None:
    """Why the last write to a backend was refused, "" if it was not; None if this process wrote nothing there."""
    return next((layer.write_refused for layer in layers(backend) if isinstance(layer, Counting)), None)


class Counting(Wrapper):
    """The same store; its calls count, those that fail too. `own`: a counter that counts them beside the process's."""

    def __init__(self, inner: Backend, own: Counter | None = None) -> None:
        super().__init__(inner)
        self._counters = (COUNTER,) if own is None else (COUNTER, own)
        self.write_refused: str | None = None  # why the last write was, "" if it was not; None: there was none

    def around(self, call: Call, do: Callable[[], T]) -> T:
        value = None
        try:
            value = do()
            if call.kind in _WRITES:
                self.write_refused = ""
            return value
        except RefusedError as e:
            if call.kind in _WRITES:
                self.write_refused = e.message
            raise
        finally:
            down = len(value) if call.kind == "get" and isinstance(value, bytes) else 0
            for counter in self._counters:
                counter.add(Travelled(1, call.up_bytes, down))
