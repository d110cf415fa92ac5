"""Links in virtual time: every holder has one line, which its calls share evenly, and answers late, wrong or never.

`drive` carries out what a `Schedule` decides; what it measured goes into the same estimates as in earnest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from metasync.runtime.effects import SLOWEST_BYTES_PER_S
from metasync.transfer.estimates import Call, Direction, Estimates
from metasync.transfer.schedule import Failure, Piece, Schedule, Take

OPENING_S = 0.01
TIMEOUT_S = 60.0


@dataclass
class Link:
    """A holder's line. `trouble` may say of a take, at its begin: never answered, away, bad or missing."""

    rate: float = 5e6
    latency_s: float = 0.08
    dies_at_s: float = float("inf")  # from then on nothing is answered
    slows_at_s: float = float("inf")
    slower: float = 1.0
    trouble: Callable[[Take], Failure | None] = lambda take: None
    left: dict[Take, float] = field(default_factory=dict)  # bytes still to come, of calls beyond their latency
    at: float = 0.0

    def rate_at(self, now: float) -> float:
        return 0.0 if now >= self.dies_at_s else self.rate / self.slower if now >= self.slows_at_s else self.rate

    def go_to(self, now: float) -> None:
        if self.left:
            share = self.rate_at(self.at) * (now - self.at) / len(self.left)
            self.left = {take: left - share for take, left in self.left.items()}
        self.at = now

    def next_at(self) -> float:
        """When the next call ends, or the line changes."""
        changes = [t for t in (self.dies_at_s, self.slows_at_s) if t > self.at]
        rate = self.rate_at(self.at)
        ends = [self.at + min(self.left.values()) * len(self.left) / rate] if self.left and rate else []
        return min([*changes, *ends], default=float("inf")) if self.left else float("inf")


@dataclass
class Run:
    """What became of it."""

    seconds: float = 0.0
    takes: list[Take] = field(default_factory=list)
    done: list[Piece] = field(default_factory=list)
    lost: list[Piece] = field(default_factory=list)
    carried: int = 0  # bytes of answers, with those that nobody needed
    held_max: int = 0
    at_once_max: int = 0


def drive(
    schedule: Schedule,
    links: dict[str, Link],
    estimates: Estimates,
    wanted: Iterable[Piece],
    *,
    opening_s: float = OPENING_S,
    timeout_s: float = TIMEOUT_S,
) -> Run:
    """Runs a download to its end in virtual time."""
    run, now, serial = Run(), 0.0, 0
    events: list[tuple[float, int, str, Take]] = []
    calls: dict[Take, tuple[float, Call]] = {}
    opening: set[Take] = set()

    def at(when: float, what: str, take: Take) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (when, serial, what, take))

    def ended(take: Take, failure: Failure | None) -> None:
        begun, call = calls.pop(take)
        link = links[take.holder]
        link.left.pop(take, None)
        if failure is None:
            run.carried += take.piece.size
            estimates.end(call, take.piece.size, now - begun, now)
            if schedule.answered(take, now):
                opening.add(take)
                at(now + opening_s, "opened", take)
        else:
            estimates.drop(call)
            run.lost += schedule.failed(take, failure, now)

    for piece in wanted:
        schedule.add(piece)
    while True:
        while (take := schedule.next(now)) is not None:
            assert take not in calls
            run.takes.append(take)
            calls[take] = now, estimates.begin(take.holder, Direction.DOWN, take.piece.size, now)
            at(now + links[take.holder].latency_s, "begins", take)
            at(now + timeout_s + take.piece.size / SLOWEST_BYTES_PER_S, "timeout", take)
        run.held_max = max(run.held_max, sum(t.piece.size for t in (*calls, *opening)))
        for name in links:
            run.at_once_max = max(run.at_once_max, sum(t.holder == name for t in calls))
        if schedule.is_done:
            run.seconds = now
            return run
        assert calls or opening, "nothing is under way, and something is wanted"
        wake = schedule.wake_at()
        line = min(links.values(), key=Link.next_at)
        following = min(events[0][0], line.next_at(), float("inf") if wake is None else wake)
        now = following
        for link in links.values():
            link.go_to(now)
        for take in [t for link in links.values() for t, left in link.left.items() if left <= 1e-3]:
            trouble = links[take.holder].trouble(take)
            if trouble is Failure.BAD:  # is seen when it is opened
                links[take.holder].left.pop(take)
                estimates.drop(calls.pop(take)[1])
                run.carried += take.piece.size
                if schedule.answered(take, now):
                    run.lost += schedule.failed(take, Failure.BAD, now)
                continue
            ended(take, None)
        while events and events[0][0] <= now:
            _, _, what, take = heapq.heappop(events)
            if what == "opened":
                opening.discard(take)
                if schedule.opened(take):
                    run.done.append(take.piece)
            elif take not in calls:
                continue
            elif what == "timeout":
                ended(take, Failure.AWAY)
            elif (trouble := links[take.holder].trouble(take)) in (Failure.MISSING, Failure.AWAY):
                ended(take, trouble)
            else:
                links[take.holder].left[take] = float(take.piece.size)
