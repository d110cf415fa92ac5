"""What the library tells while it works, for progress bars and logs. Values only; nothing here prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of work begins: `scan`, `upload`, `download`, `checkout`, `agree`, `check`."""

    name: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is. `done` and `total` count bytes where `unit` is "B"; `total` None when unknown."""

    phase: str
    done: int
    total: int | None
    unit: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know, as a sentence. `warning`: not all is as it should be."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Transferred:
    """So many bytes went `up` to a backend or came `down` from it, in one call that took so long there.

    Told for every call that moved data, from a thread of MetaSync's own, one at a time: be quick. `pack`: it was a pack
    or a part of one, and not what devices agree by.
    """

    backend: str
    direction: Literal["up", "down"]
    bytes: int
    seconds: float
    pack: bool = False


@dataclass(frozen=True, slots=True)
class Travelled:
    """Calls on backends, and the bytes of the objects that they wrote and read.

    A call may take several HTTP requests. Heads of requests, and names, are not counted.
    """

    requests: int = 0
    up_bytes: int = 0
    down_bytes: int = 0

    def since(self, before: Travelled) -> Travelled:
        return Travelled(
            self.requests - before.requests, self.up_bytes - before.up_bytes, self.down_bytes - before.down_bytes
        )

    def __add__(self, other: Travelled) -> Travelled:
        return Travelled(
            self.requests + other.requests, self.up_bytes + other.up_bytes, self.down_bytes + other.down_bytes
        )


Event: TypeAlias = Phase | Progress | Notice | Transferred
Listener: TypeAlias = Callable[[Event], None]
"""Hears events. What it raises is logged, by the logger `metasync`, and ignored."""


def ignore(_event: Event) -> None:
    """A listener that listens to nothing."""


class Sheltered:
    """Calls whichever listener `current` names, and ends nothing by what that raises.

    The first exception of each listener is logged with its traceback: a listener of progress may raise thousands.
    """

    def __init__(self, current: Callable[[], Listener]) -> None:
        self._current = current
        self._noted: Listener | None = None

    def __call__(self, event: Event) -> None:
        listener = self._current()
        try:
            listener(event)
        except Exception:  # whatever it is, it is no fault of the operation that tells
            if listener != self._noted:
                import logging

                self._noted = listener
                logging.getLogger("metasync").warning("a listener raised on %r; it is told on", event, exc_info=True)
