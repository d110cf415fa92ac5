"""Virtual time, and one baton: of all threads of a simulation exactly one runs, and the seed alone says which.

A client's code blocks where real code would block, so each client has a thread. A thread that blocks does not sleep: it
goes on with the world's events itself, until one of them makes some client ready, and hands the baton to that one.
Nothing else ever runs two threads at once, and nothing asks the system's clock.

A *boot* is one life of a client's process. When it dies, every thing it holds (disk, local state, runtime) raises
`Crashed` from then on, so that what its `finally` blocks do while the thread unwinds changes nothing any more; what it
sent still lands.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

START_S: Final = 1_750_000_000.0  # the wall clock's begin, in seconds since 1970
STUCK_EVENTS_MAX: Final = 3_000_000  # a seed that takes more does not end


class Crashed(BaseException):
    """The machine lost power, or the process was killed: nothing that runs on it may go on."""


class Violation(Exception):  # noqa: N818 - what a simulation is there to find, not a mistake in it
    """Something happened that must never happen."""


class Stuck(Exception):  # noqa: N818
    """The simulation does not come to an end."""


class Actor:
    """One thread of the simulation, which runs only while it holds the baton."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.baton = threading.Lock()  # held while somebody else has the baton
        self.baton.acquire()
        self.waiting: Callable[[], bool] | None = None
        self.queued = False
        self.ended = False

    def wait(self, until: Callable[[], bool]) -> None:
        """Lets the others go on until `until()`."""
        while not until():
            self.waiting = until
            self.world.yield_baton(self)
            self.waiting = None

    def look(self) -> None:
        """Something changed that this actor may be waiting for."""
        if self.waiting is not None and not self.queued and self.waiting():
            self.queued = True
            self.world.ready.append(self)

    def sleep(self, seconds: float) -> None:
        due = [False]

        def wake() -> None:
            due[0] = True
            self.look()

        self.world.at(seconds, wake)
        self.wait(lambda: due[0])


class World:
    """The event heap, the actors, the trace and the counts of one simulation."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.ready: deque[Actor] = deque()
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.director = Actor(self, "director")
        self.log: list[str] | None = None
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._serial = 0
        self._done = 0
        self._trace = hashlib.blake2b(digest_size=16)
        self._threads: list[threading.Thread] = []

    # time

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """Does something in `seconds`. What is due at one moment happens in an order of the seed's choice."""
        self._serial += 1
        heapq.heappush(self._events, (self.now + max(seconds, 0.0), self.rng.random(), self._serial, event))

    def wall_ns(self) -> int:
        return int((START_S + self.now) * 1e9)

    # what happened

    def trace(self, *what: object) -> None:
        """Adds to the trace, whose hash shows whether two runs are the same."""
        line = f"{self.now:.6f} {' '.join(map(str, what))}"
        self._trace.update(line.encode("utf-8", "surrogateescape"))
        if self.log is not None:
            self.log.append(line)

    def trace_hash(self) -> str:
        return self._trace.hexdigest()

    def count(self, event: str, n: int = 1) -> None:
        """Counts an interesting event."""
        self.counts[event] += n

    def fail(self, error: BaseException) -> None:
        """Ends the simulation with an error; the first one counts."""
        if self.failure is None:
            self.failure = error
        self.director.look()

    # threads

    def spawn(self, name: str, body: Callable[[Actor], Any]) -> Actor:
        """A new actor, ready at once. What its body raises fails the simulation."""
        actor = Actor(self, name)

        def run() -> None:
            actor.baton.acquire()
            actor.queued = False
            try:
                body(actor)
            except BaseException as e:  # reported by the director
                self.fail(e)
            actor.ended = True
            self.director.look()
            self._pump().baton.release()

        thread = threading.Thread(target=run, name=f"sim-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        actor.queued = True
        self.ready.append(actor)
        return actor

    def yield_baton(self, actor: Actor) -> None:
        """Called by the actor that holds the baton; returns when it has it again."""
        actor.look()
        following = self._pump()
        if following is not actor:
            following.baton.release()
            actor.baton.acquire()
        actor.queued = False

    def _pump(self) -> Actor:
        """Goes on with events until some actor is ready, and returns it."""
        while not self.ready:
            if not self._events or self._done > STUCK_EVENTS_MAX:
                why = "nothing is left to happen" if not self._events else f"{self._done} events"
                self.failure = self.failure or Stuck(f"at {self.now:.1f} s: {why}, and clients still wait")
                return self.director
            self.now, _, _, event = heapq.heappop(self._events)
            self._done += 1
            try:
                event()
            except BaseException as e:  # a fault of the simulation, or what a check found
                self.fail(e)
        return self.ready.popleft()

    def join(self) -> None:
        """Waits for threads that have nothing left to do."""
        for thread in self._threads:
            thread.join(timeout=5)


class Boot:
    """One life of a client's process: alive until `die`."""

    def __init__(self, actor: Actor, serial: int, crash_at: int = 0) -> None:
        self.actor = actor
        self.serial = serial
        self.dead = False
        self.yields = 0
        self.crash_at = crash_at
        self.hooks: list[Callable[[], None]] = []
        self.on_call: Callable[[], None] | None = None
        self.proposed: list[bytes] = []  # ids of the changes that the running command may have had decided
        self.told_apart = False  # it was told that a device stands on another history
        self.down_s = 0.0  # how long the machine stays down if something from outside killed it
        self.asleep_until = 0.0  # the machine is suspended: it sends nothing and takes in nothing before that

    def step(self) -> None:
        """At every call on what lies outside of the process: here it may die."""
        if self.dead:
            raise Crashed
        self.yields += 1
        if self.yields == self.crash_at:
            self.die()
            raise Crashed

    def die(self) -> None:
        """The end of this process, whatever it is doing."""
        if self.dead:
            return
        self.dead = True
        self.actor.world.count("crash")
        for hook in self.hooks:
            hook()
        self.actor.look()

    def suspend(self, seconds: float) -> None:
        """The machine sleeps, in the middle of whatever it is doing."""
        world = self.actor.world
        self.asleep_until = world.now + seconds
        world.at(seconds, self.actor.look)

    def wait(self, until: Callable[[], bool]) -> None:
        world = self.actor.world
        self.actor.wait(lambda: self.dead or (self.asleep_until <= world.now and until()))
        if self.dead:
            raise Crashed
