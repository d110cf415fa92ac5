"""Chooses the next of the calls that wait for one backend: the smallest virtual completion time. Pure.

Theory of operation. A call's virtual completion time is when it arrived, plus how long it would take alone, plus what
its urgency adds (HyCloud's operation priority, eq. 6: FOP = t_A + t_T). It never changes, and the smallest goes first.
So small calls pass large ones, of equal ones the cheaper goes first, and none waits for ever: once the clock has passed
a call's virtual completion time, nothing that arrives can go before it. Only what arrived within t_T and its urgency's
share after it may, and that is a bound that no later burst moves.

Calls stand in lanes, so that one which must wait for something of its own (a limit on what goes up, a connection that
large calls may have) does not hold up those that need not. Of a backend's connections two are closed to large calls,
and one to all but the most urgent: agreement never waits behind packs.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Any, Final

from metasync.runtime.effects import Op, Urgency
from metasync.runtime.sizes import SMALL_BYTES_MAX

LARGE_SPARED: Final = 2  # connections that no large call may have
SOON_SPARED: Final = 1  # connections for nothing but NOW
SPARED_FROM: Final = 4  # with fewer connections than that, only one is kept back
ADDED_S: Final = (0.0, 1.0, 30.0)  # to the virtual completion time, by urgency


class Lane(IntEnum):
    """What calls wait for besides their turn."""

    NOW = 0  # nothing: neither limits nor a pause hold them
    UP_SMALL = 1
    UP_LARGE = 2
    DOWN_SMALL = 3
    DOWN_LARGE = 4


LARGE: Final = (Lane.UP_LARGE, Lane.DOWN_LARGE)
UP: Final = (Lane.UP_SMALL, Lane.UP_LARGE)
DOWN: Final = (Lane.DOWN_SMALL, Lane.DOWN_LARGE)
URGENT: Final = (Lane.NOW,)
SMALL: Final = (Lane.NOW, Lane.UP_SMALL, Lane.DOWN_SMALL)
ALL: Final = tuple(Lane)


def bytes_of(op: Op) -> int:
    """What a call moves, at most."""
    if op.kind == "get":
        return op.max_bytes if op.length is None else min(op.length, op.max_bytes)
    return len(op.data)


def lane_of(op: Op) -> Lane:
    if op.urgency is Urgency.NOW:
        return Lane.NOW
    large = bytes_of(op) > SMALL_BYTES_MAX
    if op.kind in ("put", "create"):
        return Lane.UP_LARGE if large else Lane.UP_SMALL
    return Lane.DOWN_LARGE if large else Lane.DOWN_SMALL


def virtual_end(now: float, urgency: Urgency, size_bytes: int, bytes_per_s: float) -> float:
    """HyCloud's eq. 6: when a call that arrives now would end if it had the backend to itself; less urgent ones later.

    An urgent call's size is not what it waits for: `bytes_of` of a log entry is a bound far above it.
    """
    return now + ADDED_S[urgency] + (0.0 if urgency is Urgency.NOW else size_bytes / bytes_per_s)


def open_lanes(size: int, running: int, running_soon: int, running_large: int) -> tuple[Lane, ...]:
    """From which lanes a call may be taken, while so many of `size` connections are taken; and by which calls."""
    if running >= size:
        return ()
    spared = 0 if size == 1 else SOON_SPARED
    if running_soon >= size - spared:
        return URGENT
    return ALL if running_large < size - (LARGE_SPARED if size >= SPARED_FROM else spared) else SMALL


class Queue:
    """Calls that wait, of any type; each is known by the ticket that `push` gives. Not for two threads at once."""

    def __init__(self) -> None:
        self._heaps: list[list[list[Any]]] = [[] for _ in Lane]
        self._count = 0
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def push(self, lane: Lane, virtual_end: float, item: object) -> list[Any]:
        """A ticket: [virtual end, number, item]; the item is None once it was taken or dropped."""
        self._next += 1
        self._count += 1
        ticket = [virtual_end, self._next, item]
        heapq.heappush(self._heaps[lane], ticket)
        return ticket

    def drop(self, ticket: list[Any]) -> bool:
        """Takes a call out that nobody needs any more. False: it was taken already."""
        if ticket[2] is None:
            return False
        ticket[2] = None
        self._count -= 1
        return True

    def first(self, lane: Lane) -> list[Any] | None:
        """The ticket of the call that is next in a lane."""
        heap = self._heaps[lane]
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def heads(self, lanes: tuple[Lane, ...]) -> list[tuple[list[Any], Lane]]:
        """The next call of each of these lanes, in the order in which they should go."""
        found = [(ticket, lane) for lane in lanes if self._heaps[lane] and (ticket := self.first(lane)) is not None]
        if len(found) > 1:
            found.sort()  # tickets have numbers: it never comes to comparing what waits
        return found

    def has(self, lanes: tuple[Lane, ...]) -> bool:
        """Whether anything waits in one of these lanes."""
        return any(self._heaps[lane] and self.first(lane) is not None for lane in lanes) if self._count else False

    def take(self, lane: Lane) -> Any:
        """The next call of a lane, out of it. There must be one."""
        ticket = self.first(lane)
        assert ticket is not None
        item = ticket[2]
        self.drop(ticket)
        return item
