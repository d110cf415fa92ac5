"""Eight writers, in two processes, race for names: what each of them does, and what may be concluded afterwards.

Both processes run `run_writers` on the same plan. Before every name its writers meet in memory that the two share (a
mapped file), so that their calls begin within some microseconds of each other; how often two were really under way at
once is counted, because a race in which nobody met proves nothing. `judge` looks at all calls of both processes.

200 names were too few to find out nginx, whose MOVE gave three of the next 1,000 to two writers (providers.md, section
4).
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from metasync.backends.api import Backend
from metasync.errors import BackendError, NotFoundError

WRITERS = 8
_HALF = WRITERS // 2
_BODY_LINES = 16
BODY_BYTES_MAX = 1 << 12  # of what a racer reads: sixteen lines of at most a dozen characters, with room
# Longer than any one call of a backend may take: the slowest of the writers is waited for.
_MEET_TIMEOUT_S = 150.0
# Between two looks for the others: at first only the interpreter is given away, later naps that grow with the waiting,
# so that a slow store does not keep eight threads busy. All are short beside a call that takes so long.
_SPINS = 40
_NAP_S = 20e-6
_NAP_SHARE = 0.01
_NAP_MAX_S = 2e-3
_LOOKS_PER_PULSE = 256  # so often it is asked whether the other process is still there
# Threads of one process switch every 5 ms otherwise: calls that take microseconds would never meet.
_SWITCH_S = 20e-6

TORN, ABSENT = -1, -2  # in `Call.seen`, in place of the writer whose bytes were read


@dataclass(frozen=True, slots=True)
class RacePlan:
    """Names 0 to `names` - 1 in `folder`. Name i is raced for by `turns[i % len(turns)]` of the eight writers.

    Every `read_every`-th name is read by one of its writers as soon as it knows whether it won.
    """

    folder: str
    names: int
    turns: tuple[int, ...]
    read_every: int

    def racers(self, number: int) -> tuple[int, ...]:
        """Who races for a name: one half of them from each process, and by turns all of these."""
        count = self.turns[number % len(self.turns)]
        first = (count + number // len(self.turns) % 2) // 2
        there = [(number + step) % _HALF for step in range(first)]
        return tuple(there + [_HALF + (number // _HALF + step) % _HALF for step in range(count - first)])

    def path(self, number: int) -> str:
        return f"{self.folder}/{number:05d}"


class Call(NamedTuple):
    """One create of the race. `seen`: the writer whose bytes were read right after it, if they were."""

    number: int
    writer: int
    began_ns: int
    ended_ns: int
    outcome: str  # "won", "lost", or "unknown" after an error
    seen: int | None


class Meeting:
    """Where the writers of a name wait for each other: a byte for each, in memory that other processes can map.

    `alive` tells whether the other process is still there; if not, the race is off.
    """

    def __init__(self, path: str | None, names: int, alive: Callable[[], bool] = lambda: True) -> None:
        self._alive = alive
        size = names * WRITERS + 1
        if path is None:
            self._marks = mmap.mmap(-1, size)
        else:
            with open(path, "r+b") as file:
                file.truncate(size)
                self._marks = mmap.mmap(file.fileno(), size)
        self._end = size - 1

    def wait(self, number: int, writer: int, racers: Sequence[int]) -> bool:
        """Waits until all racers of this name are here. False: the race is off."""
        marks, at = self._marks, number * WRITERS
        marks[at + writer] = 1
        began, looks = time.monotonic(), 0
        while not all(marks[at + racer] for racer in racers):
            waited_s, looks = time.monotonic() - began, looks + 1
            gone = looks % _LOOKS_PER_PULSE == 0 and not self._alive()
            if gone or marks[self._end] or waited_s > _MEET_TIMEOUT_S:
                self.cancel()
                return False
            time.sleep(0 if looks < _SPINS else min(_NAP_MAX_S, max(_NAP_S, waited_s * _NAP_SHARE)))
        return not marks[self._end]

    def cancel(self) -> None:
        """Ends the race, in all processes."""
        self._marks[self._end] = 1

    def close(self) -> None:
        self._marks.close()


@contextlib.contextmanager
def meeting_file() -> Iterator[str]:
    """An empty file for a `Meeting` of two processes; gone after the block."""
    with tempfile.NamedTemporaryFile(prefix="metasync-race-") as file:
        yield file.name


def body(writer: int, number: int) -> bytes:
    """What a writer stores under a name."""
    return f"{writer}:{number}\n".encode() * _BODY_LINES


def author(data: bytes, number: int) -> int:
    """The writer whose whole body this is; `TORN` if it is nobody's."""
    writer = data[:1].decode("latin-1")
    return int(writer) if writer in "01234567" and writer and data == body(int(writer), number) else TORN


def run_writers(
    plan: RacePlan, meeting: Meeting, stores: dict[int, Backend], tell: Callable[[int], None] = lambda _done: None
) -> list[Call]:
    """Lets the writers of this process race, a thread and a backend object for each. Raises what is no `BackendError`.

    `tell` is called now and then, from one of the threads, with the number of names that are done.
    """
    calls: list[Call] = []
    together = threading.Barrier(len(stores) + 1)

    def write(writer: int, backend: Backend) -> None:
        together.wait(_MEET_TIMEOUT_S)
        try:
            for number in range(plan.names):
                racers = plan.racers(number)
                if writer not in racers:
                    continue
                if not meeting.wait(number, writer, racers):
                    return
                calls.append(_race(plan, backend, number, writer))
                if writer == min(stores) and len(calls) % 16 == 0:
                    tell(number)
        except BaseException:
            meeting.cancel()
            raise

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(len(stores)) as pool:
            racing = [pool.submit(write, writer, backend) for writer, backend in stores.items()]
            try:
                together.wait(_MEET_TIMEOUT_S)
                for done in racing:
                    done.result()
            except BaseException:
                together.abort()
                meeting.cancel()
                raise
    finally:
        sys.setswitchinterval(switch_s)
    return calls


def _race(plan: RacePlan, backend: Backend, number: int, writer: int) -> Call:
    path, mine = plan.path(number), body(writer, number)
    began = time.monotonic_ns()
    try:
        outcome = "won" if backend.create(path, mine) else "lost"
    except BackendError:  # it may have taken effect or not, and both are right
        outcome = "unknown"
    ended = time.monotonic_ns()
    racers = plan.racers(number)
    if outcome == "unknown" or number % plan.read_every or racers[number // plan.read_every % len(racers)] != writer:
        return Call(number, writer, began, ended, outcome, None)
    return Call(number, writer, began, ended, outcome, look(backend, path, number))


def look(backend: Backend, path: str, number: int) -> int | None:
    """Whose body lies under a name of the race. None if it cannot be read now."""
    try:
        return author(backend.get(path, max_bytes=BODY_BYTES_MAX), number)
    except NotFoundError:
        return ABSENT
    except BackendError:
        return None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a race has shown. `met`: names for which two calls were under way at once; `met_across`: from both."""

    names: int
    calls: int
    met: int
    met_across: int
    unknown: int
    problems: tuple[str, ...]
    winners: dict[int, int]


def judge(calls: Sequence[Call], names: int) -> Judgement:
    """Whether every name had exactly one winner, and everybody read that one's bytes."""
    by_name: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_name[call.number].append(call)
    several, nobody, others, torn, absent = [], [], [], [], []
    winners: dict[int, int] = {}
    for number in range(names):
        here = by_name.get(number, [])
        won = [call.writer for call in here if call.outcome == "won"]
        if len(won) > 1:
            several.append(number)
        elif won:
            winners[number] = won[0]
        elif all(call.outcome == "lost" for call in here):
            nobody.append(number)
        seen = {call.seen for call in here if call.seen is not None}
        torn += [number] * (TORN in seen)
        absent += [number] * (ABSENT in seen)
        others += [number] * bool(len(won) == 1 and seen - {won[0], TORN, ABSENT})
    told = (
        (several, "were given to two or more writers"),
        (nobody, "were given to nobody, though they were free"),
        (others, "held the bytes of a writer who was told that it had lost"),
        (torn, "were read in part, or mixed"),
        (absent, "were not found right after their create had returned"),
    )
    return Judgement(
        names=names,
        calls=len(calls),
        met=sum(_met(here) for here in by_name.values()),
        met_across=sum(_met(here, across=True) for here in by_name.values()),
        unknown=sum(call.outcome == "unknown" for call in calls),
        problems=tuple(f"{len(found):,} of {names:,} names {what}" for found, what in told if found),
        winners=winners,
    )


def _met(calls: Sequence[Call], *, across: bool = False) -> bool:
    return any(
        one.began_ns < other.ended_ns and other.began_ns < one.ended_ns
        for place, one in enumerate(calls)
        for other in calls[place + 1 :]
        if not across or (one.writer < _HALF) != (other.writer < _HALF)
    )
