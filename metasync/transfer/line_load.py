"""Reckons what each holder still owes a download, when it will be there, and when it is late. Pure.

A line is taken to carry what was asked of its holder at the estimated rate; an unknown line at the rate of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metasync.transfer.estimates import Estimate

LATE_FACTOR: Final = 3.0  # an answer is late that takes so many times as long as it should,
LATE_LEAST_S: Final = 2.0  # and this longer: a disk may spin up, a machine may be busy
LATENCY_S: Final = 0.1  # where nothing is known
BYTES_PER_S: Final = 1_000_000.0  # and nothing of any other backend either
OVERDUE_FACTOR: Final = 1.5  # after so many times what all that was asked should take, a line is slower than thought
LINDY_SHARE: Final = 0.5  # and what took so long will take as long again
ARRIVED_SHARE_MAX: Final = 0.95  # of what a line carries that may count as there before it is


class _Call(NamedTuple):
    size: int
    begun: float
    ahead: float  # bytes that were to come then, its own among them
    before: int  # bytes of calls that had ended then


@dataclass(eq=False)
class Holder:
    """One holder, and the calls under way on it, by number."""

    name: str
    calls: dict[int, _Call] = field(default_factory=dict)
    arrived: float = 0.0  # of all these, as far as can be reckoned
    ended: int = 0  # bytes of calls that have ended
    is_late: bool = False  # one of them is
    is_overdue: bool = False  # its line is slower than was thought

    @property
    def asked(self) -> int:
        return sum(call.size for call in self.calls.values())

    @property
    def owed(self) -> float:
        return self.asked - self.arrived


class Lines:
    """All holders of a download. `estimate` says what is known of the line to one."""

    def __init__(self, estimate: Callable[[str], Estimate]) -> None:
        self.holders: dict[str, Holder] = {}
        self._estimate = estimate
        self._now = 0.0
        self._waited_s = 0.0  # the longest that a call was kept back on this side: by a limit that the user set, say
        self._known: dict[str, tuple[float, float, bool]] = {}
        self._nominal: dict[str, float] = {}

    def know(self, name: str) -> None:
        self.holders.setdefault(name, Holder(name))

    def go_to(self, now: float) -> None:
        """It is later, and estimates may have changed."""
        passed, self._now = max(0.0, now - self._now), max(now, self._now)
        self._known = {}
        for holder in self.holders.values():
            _, rate, _ = self.of(holder.name)
            sure = LINDY_SHARE if holder.is_overdue else ARRIVED_SHARE_MAX
            holder.arrived = min(holder.arrived + rate * passed, sure * holder.asked)
            holder.is_late = any(self._due(holder, call) <= self._now for call in holder.calls.values())

    def begin(self, name: str, number: int, size: int) -> None:
        holder = self.holders[name]
        holder.calls[number] = _Call(size, self._now, max(holder.owed, 0.0) + size, holder.ended)

    def end(self, name: str, number: int, now: float, seconds: float = 0.0) -> None:
        """`seconds`: how much of its time the holder took; the rest it waited for its turn. 0 where nobody measured."""
        self.go_to(now)
        holder = self.holders[name]
        call = holder.calls.pop(number)
        if seconds:
            self._waited_s = max(self._waited_s, now - call.begun - seconds)
        holder.ended += call.size
        holder.arrived = max(0.0, holder.arrived - call.size) if holder.calls else 0.0
        self.go_to(now)

    def busy(self) -> list[Holder]:
        return [holder for holder in self.holders.values() if holder.calls]

    def of(self, name: str) -> tuple[float, float, bool]:
        """Latency, bytes a second, and whether anything is known of these. No more than an overdue answer allows."""
        if name not in self._known:
            latency, rate = self._estimate(name)
            known, holder = rate is not None, self.holders[name]
            if rate is None:
                rates = sorted(r for h in self.holders if (r := self._estimate(h).bytes_per_s) is not None)
                rate = rates[len(rates) // 2] if rates else BYTES_PER_S
            latency = LATENCY_S if latency is None else latency
            self._nominal[name] = rate
            holder.is_overdue = False
            for call in holder.calls.values():
                waited = self._now - call.begun - latency - self._waited_s
                carried = holder.ended - call.before
                if waited * rate > OVERDUE_FACTOR * (carried + holder.asked):
                    holder.is_overdue = True
                    rate = (carried + LINDY_SHARE * holder.asked) / waited
            self._known[name] = (latency, rate, known)
        return self._known[name]

    def through(self, holder: Holder) -> float:
        """In how many seconds it could have answered one more small call."""
        latency, rate, _ = self.of(holder.name)
        return latency + holder.owed / rate

    def is_call_late(self, holder: Holder, number: int) -> bool:
        return self._due(holder, holder.calls[number]) <= self._now

    def next_late(self, numbers: Container[int]) -> float | None:
        """When the next one of these calls will be late that is not yet."""
        due = [self._due(h, call) for h in self.busy() for number, call in h.calls.items() if number in numbers]
        return min((at for at in due if at > self._now), default=None)

    def under_way(self) -> tuple[int, int]:
        """Bytes of calls that are in time, and of those that are late."""
        in_time = late = 0
        for holder in self.busy():
            for call in holder.calls.values():
                if self._due(holder, call) <= self._now:
                    late += call.size
                else:
                    in_time += call.size
        return in_time, late

    def _due(self, holder: Holder, call: _Call) -> float:
        latency, _, _ = self.of(holder.name)
        return (
            call.begun
            + LATE_FACTOR * (latency + call.ahead / self._nominal[holder.name] + self._waited_s)
            + LATE_LEAST_S
        )
