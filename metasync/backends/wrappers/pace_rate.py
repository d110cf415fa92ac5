"""What an account bears: when it may be asked again, and how often a second. Decides, from times that it is told.

Theory of operation. A server that refuses a call because there were too many says for how long it wants to be left
alone, or its provider's code says so for it (`BackendError.retry_after_s`). For so long nothing is asked of the
account. How many requests a second it bears it does not say. That is learnt: a refusal halves the rate that led to it,
once for all calls that were under way together, and not again before a call was answered: a server that answers none
refuses any rate, and should be asked as before once it is well. Every second of use without a refusal adds a sixteenth
of what was too much (additive increase, multiplicative decrease, as `gauge` has it for calls at once: Chiu and Jain,
1989). So several processes, and other devices, share an account fairly without knowing of each other. A rate that has
grown to several times what was once refused limits nothing any more, and is forgotten; so is one that was not used for
some minutes.

A rate is kept by a line: when the next call may start. Small calls have a second one with a share of the rate, so that
what devices agree by does not wait behind packs.
"""

from __future__ import annotations

import math
from typing import Final

HOLD_MOST_S: Final = 3600.0  # a server that asks for more is asked once an hour
RATE_FIRST: Final = 16.0  # what was too much, at least, as far as a first refusal can tell: others may have asked too
RATE_LEAST: Final = 0.25
STEP_SHARE: Final = 1 / 16  # of the refused rate, added in a second
STEP_LEAST: Final = 0.25
FORGET_TIMES: Final = 4.0  # of the refused rate
FORGET_S: Final = 600.0
BURST_S: Final = 1.0  # what an idle line has saved up at most
SMALL_SHARE: Final = 0.25


class Noted:
    """What others should know: seconds from now until it may be asked, the rate (None: none), and what was too much."""

    __slots__ = ("hold_s", "rate", "refused")  # and no tuple with names: it takes as long to make as all else here

    def __init__(self, hold_s: float, rate: float | None, refused: float) -> None:
        self.hold_s = hold_s
        self.rate = rate
        self.refused = refused


class Allowance:
    """One account's. `now` never goes back. Not for two threads at once."""

    def __init__(self) -> None:
        self.until = -math.inf
        self.rate: float | None = None
        self._refused = 0.0  # the rate that was too much
        self._cut_at = -math.inf
        self._answered = False  # whether any call was since the rate was cut
        self._grown_at = -math.inf
        self._common = self._small = -math.inf  # when each line is free

    def held_s(self, now: float) -> float:
        """For how long nothing may be asked; 0: it may."""
        return max(0.0, self.until - now)

    def turn_s(self, now: float, *, small: bool, most_s: float) -> float:
        """How long a call must wait for its turn. It has it, unless that is more than `most_s`."""
        rate = None if self.rate is None else self._grow(now)
        if rate is None:
            return 0.0
        self._common = max(self._common, now - BURST_S)
        self._small = max(self._small, now - BURST_S)
        passes_by = small and self._small < self._common
        wait_s = max(0.0, (self._small if passes_by else self._common) - now)
        if wait_s <= most_s:
            self._common += 1 / rate
            if passes_by:
                self._small += 1 / (rate * SMALL_SHARE)
        return wait_s

    def refused(self, now: float, began: float, after_s: float, used: float) -> None:
        """A call that began then was refused, and is not to be repeated before `after_s`.

        `used`: how many calls a second there were lately.
        """
        self.until = max(self.until, now + min(max(after_s, 0.0), HOLD_MOST_S))
        if began < self._cut_at or (self.rate is not None and not self._answered):
            return
        self._refused = max(used, RATE_FIRST) if self.rate is None else self.rate
        self._limit(now, max(RATE_LEAST, self._refused / 2))

    def answered(self) -> None:
        """A call was answered, or refused for another reason."""
        self._answered = True

    def learn(self, now: float, noted: Noted) -> None:
        """Takes over what another process found out."""
        self.until = max(self.until, now + min(noted.hold_s, HOLD_MOST_S))
        if noted.rate is None:
            self.rate = None
        else:
            self._refused = noted.refused
            self._limit(now, max(RATE_LEAST, noted.rate))

    def noted(self, now: float) -> Noted:
        return Noted(self.held_s(now), self.rate, self._refused)

    def _limit(self, now: float, rate: float) -> None:
        self.rate = rate
        self._cut_at = self._grown_at = now
        self._answered = False
        self._common = self._small = max(now, self.until)

    def _grow(self, now: float) -> float | None:
        """A second's step for each second in which something was asked; what is still to be kept."""
        assert self.rate is not None
        idle_s = now - max(self._grown_at, self.until)
        self._grown_at = now
        step = max(STEP_LEAST, STEP_SHARE * self._refused)
        self.rate += step * min(1.0, max(0.0, idle_s))
        if idle_s > FORGET_S or self.rate > FORGET_TIMES * max(self._refused, RATE_FIRST):
            self.rate = None
        return self.rate
