"""What an account still bears of the rates that its provider publishes: a bucket for each rate.

A quarter of a minute's worth may go at once after a rest, and three quarters come back in a minute, evenly. So no
minute has more than is published, and a small push never waits. Urgent calls do not wait either: they are counted, and
the others wait for what they took, though no more than DEBT_S of it.

Calls cost what `Rate.costs` says by their kind, which is about what they take: a provider counts what it wants to, and
its refusals have the last word (`pace`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metasync.backends.api import Rate

BURST: Final = 0.25  # of what is borne in a minute
DEBT_S: Final = 2.0
MINUTE_S: Final = 60.0


class Allowance:
    """Not for two threads at once. `now`: seconds that never go back."""

    def __init__(self, rates: Sequence[Rate]) -> None:
        self._rates = tuple(rates)
        self._left = [BURST * rate.a_minute for rate in self._rates]  # below 0: debts
        self._at: float | None = None

    def wait_s(self, now: float, kind: str) -> float:
        """In how many seconds there is room for a call; 0: there is."""
        self._pass(now)
        waits = [0.0]
        for rate, left in zip(self._rates, self._left, strict=True):
            needed = min(rate.costs.get(kind, 0.0), BURST * rate.a_minute)
            if needed > left and needed:
                waits.append((needed - left) / _a_second(rate))
        return max(waits)

    def take(self, now: float, kind: str) -> None:
        """A call is made."""
        self._pass(now)
        for number, rate in enumerate(self._rates):
            left = self._left[number] - rate.costs.get(kind, 0.0)
            self._left[number] = max(left, -DEBT_S * _a_second(rate))

    def empty(self, now: float) -> None:
        """The provider bore less: nothing is left of what was saved up."""
        self._pass(now)
        self._left = [min(left, 0.0) for left in self._left]

    def _pass(self, now: float) -> None:
        passed_s, self._at = now - (now if self._at is None else self._at), now
        self._left = [
            min(left + passed_s * _a_second(rate), BURST * rate.a_minute)
            for rate, left in zip(self._rates, self._left, strict=True)
        ]


def _a_second(rate: Rate) -> float:
    return (1 - BURST) * rate.a_minute / MINUTE_S
