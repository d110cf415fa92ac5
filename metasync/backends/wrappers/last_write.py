"""Remembers whether the last write to a backend was refused: a store that can be read may take nothing any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import Call, T, Wrapper, layers
from metasync.errors import RefusedError

_WRITES: Final = ("create", "put")


def write_refused(backend: Backend) -> str | None:
    """Why the last write to a backend was refused, "" if it was not; None if this process wrote nothing there."""
    return next((layer.refused for layer in layers(backend) if isinstance(layer, LastWrite)), None)


class LastWrite(Wrapper):
    """The same store. `refused`: why its last write was, "" if it was not; None: there was none.

    A write that ends in another way says nothing of it.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.refused: str | None = None

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind not in _WRITES:
            return do()
        try:
            value = do()
        except RefusedError as e:
            self.refused = e.message
            raise
        self.refused = ""
        return value
