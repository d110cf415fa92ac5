"""How the number of files changed lately, so that a slow deletion meets the guard as one that comes at once.

A keeper pushes every few seconds, and pulls what others push: no single one of these takes much. `merge.guard` says how
much is too much, and of how long a time. Nothing is counted against a push or pull that somebody asks for. What the
user allows is forgotten: the count begins anew after it. While a stop waits for its answer nothing is forgotten, for
that what stopped may not go on by itself an hour later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from metasync.errors import GuardError
from metasync.local import state_keys
from metasync.local.state import State
from metasync.local.state_keys import json_codec
from metasync.merge.guard import SPAN_S, Verb, most_gone
from metasync.session.around import Around

STEP_S: Final = 60  # changes of one minute are one step
STEPS_MAX: Final = 2 * SPAN_S // STEP_S  # kept while a stop waits; older ones are put together


class Counted(NamedTuple):
    """By how much the number of files changed, and when (s since 1970), the oldest first. `waits`: what stopped."""

    steps: tuple[tuple[int, int], ...] = ()
    waits: str = ""


def _read(told: Any) -> Counted:
    steps, waits = told
    return Counted(tuple((int(at), int(net)) for at, net in steps[-STEPS_MAX:]), str(waits))


LAST_HOUR_KEY: Final = state_keys.LAST_HOUR_KEY.holding(*json_codec("files of the last hour", _read))


class LastHour:
    """For the keeper's thread. `wall`: seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._db: State | None = None
        self._is_asked_for = False
        self._counted = Counted()

    def begin(self, db: State, around: Around) -> None:
        """Goes on with what this device has counted, with the operations of a workspace that was opened."""
        self._db = db
        self._counted = db.get(LAST_HOUR_KEY) or Counted()
        around.gone, around.counts = self.gone, self.count

    @contextlib.contextmanager
    def asked_for(self) -> Iterator[None]:
        """Somebody asked for what runs meanwhile, and looks at what comes of it."""
        before, self._is_asked_for = self._is_asked_for, True
        try:
            yield
        finally:
            self._is_asked_for = before

    def gone(self) -> int:
        """How many files fewer there are than at some time of the last hour; 0 for what somebody asked for."""
        return 0 if self._is_asked_for else most_gone(net for _, net in reversed(self._steps()))

    def count(self, net: int, *, forced: bool) -> None:
        """A push or pull made the number of files so much larger. `forced`: whatever went, the user wants it."""
        steps = [] if forced else self._steps()
        if net and not forced:
            now = int(self._wall())
            if steps and now - steps[-1][0] < STEP_S:
                steps[-1] = (steps[-1][0], steps[-1][1] + net)
            else:
                steps.append((now, net))
            while len(steps) > STEPS_MAX:
                (_, first), (at, second) = steps[:2]
                steps[:2] = [(at, first + second)]
        while steps and steps[0][1] >= 0:  # more files are no loss, and come before none
            del steps[0]
        self._note(Counted(tuple(steps), self._counted.waits))

    def failed(self, verb: Verb, error: Exception) -> None:
        """Where a guard stopped it nothing is forgotten until it passes."""
        if isinstance(error, GuardError):
            self._note(Counted(tuple(self._steps()), verb))

    def passed(self, verb: Verb) -> None:
        """A push passed, which pulls too, or a pull did."""
        if self._counted.waits and verb in ("push", self._counted.waits):
            self._note(Counted(self._counted.steps))

    def _steps(self) -> list[tuple[int, int]]:
        """What counts now. A time to come, by a clock that was set back, is now."""
        now = int(self._wall())
        steps = [(min(at, now), net) for at, net in self._counted.steps]
        return steps if self._counted.waits else [(at, net) for at, net in steps if now - at < SPAN_S]

    def _note(self, counted: Counted) -> None:
        if counted != self._counted and self._db is not None:
            self._db.set(LAST_HOUR_KEY, counted if counted != Counted() else None)
        self._counted = counted
