"""Watches backends for entries of others, by threads of its own: a long poll at a service, inotify on a folder here.

A `Line` is one thread. It watches its backends in turn, one at a time: an entry that is decided is on a quorum of them,
and a poll that ended knows its place in each when its turn comes again. Services share one line, for each poll there
is a request; a folder costs none, and has a line of its own. A line opens its backends itself: the workspace's own
connections rest while nothing happens, and a wait of minutes shall not hold a place among the calls, nor look like a
store that hangs.

What a watch says is a hint. One that fails is tried again after pauses that grow, and for half the time, in case the
network forgets lines that are silent for long; each poll that ends well makes the next one longer again. While none of
its watches works, a line covers nothing. How often polls end is bounded, whatever a server answers.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from metasync.backends.api import Watches
from metasync.errors import BackendError, MetaSyncError, NotFoundError
from metasync.service.batch import Pauses
from metasync.service.brokers.hints import Bucket

if TYPE_CHECKING:
    from metasync.backends.api import Backend
    from metasync.session.peek import Watchable

log = logging.getLogger(__name__)

POLL_S: Final = 480.0  # for one poll: the longest that Dropbox takes
POLL_LEAST_S: Final = 60.0
POLL_LONGER_S: Final = 60.0  # than the one before, if that one ended well: a line that is forgotten fails now and then
PAUSE_S: Final = (5.0, 3600.0)  # after one that failed, and the longest
LOCAL: Final = frozenset({"file", "memory"})  # their watches send no requests

Open = Callable[["Watchable"], "Backend"]


class LongPolls:
    """All lines of one workspace. Thread-safe.

    open_   opens a backend: `BackendError`
    told    is told the name of a backend that changed
    covers  is told whether a watch works now
    """

    def __init__(
        self,
        open_: Open,
        told: Callable[[str], None],
        covers: Callable[[bool], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._open, self._told, self._covers, self._clock, self._draw = open_, told, covers, clock, draw
        self._lock = threading.RLock()
        self._lines: tuple[Line, ...] = ()
        self._backends: tuple[Watchable, ...] = ()
        self._is_covered = False

    @property
    def watched(self) -> frozenset[str]:
        """The backends that are watched now."""
        return frozenset(name for line in self._lines if line.works for name in line.names)

    def follow(self, backends: Sequence[Watchable]) -> None:
        """Watches these, and no others. Nothing changes where they are the same."""
        if tuple(backends) != self._backends:
            self.end()
            with self._lock:
                self._backends = tuple(backends)
                self._lines = tuple(self._line(one) for one in _lines(backends))
                for line in self._lines:
                    line.start()

    def end(self) -> None:
        """Ends all watches. Nobody is told of anything that they say later. May be repeated."""
        with self._lock:
            lines, self._lines, self._backends = self._lines, (), ()
        for line in lines:
            line.end()
        self._count()

    def _line(self, backends: Sequence[Watchable]) -> Line:
        return Line(backends, self._open, self._told, self._count, clock=self._clock, draw=self._draw)

    def _count(self) -> None:
        with self._lock:
            is_covered = any(line.works for line in self._lines)
            if is_covered == self._is_covered:
                return
            self._is_covered = is_covered
            self._covers(is_covered)


def _lines(backends: Sequence[Watchable]) -> list[list[Watchable]]:
    services = [one for one in backends if one.scheme not in LOCAL]
    return [[one] for one in backends if one.scheme in LOCAL] + ([services] if services else [])


class Line:
    """One thread that watches some backends in turn. `turn` is all that it does, again and again."""

    def __init__(
        self,
        backends: Sequence[Watchable],
        open_: Open,
        told: Callable[[str], None],
        changed: Callable[[], None],
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        """`changed`: is called when `works` has."""
        self._open, self._told, self._changed, self._clock = open_, told, changed, clock
        self._watches = [_Watch(one, Pauses(draw, *PAUSE_S)) for one in backends]
        self._bucket = Bucket(clock())
        self._lock = threading.Lock()  # held while backends are opened or closed
        self._next = 0
        self._ends = threading.Event()
        self.works = False
        name = f"watches {', '.join(one.name for one in backends)}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(watch.of.name for watch in self._watches)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ends it, without waiting. A poll that a service holds open ends when it ends, and nobody hears of it."""
        self._ends.set()
        self.works = False
        for watch in self._watches:
            self._close(watch)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                wait_s = self.turn()
            except Exception:
                log.exception("an error of MetaSync's own in a watch")
                wait_s = PAUSE_S[1]
                self._tell(works=False)
            self._ends.wait(wait_s)

    def turn(self) -> float:
        """Makes one poll, if one may be made now. -> seconds until the next turn."""
        now = self._clock()
        ready = [watch for watch in self._watches if watch.pauses.until <= now]
        if not ready:
            self._tell(works=False)
            return min((watch.pauses.until for watch in self._watches), default=math.inf) - now
        wait_s = self._bucket.wait_s(now)
        if wait_s > 0:
            return wait_s
        watch = ready[self._next % len(ready)]
        self._next += bool(watch.cursor)  # a cursor is asked for first
        try:
            self._poll(watch)
        except MetaSyncError as e:
            self._failed(watch, e)
        except Exception as e:  # this watch's alone: the others go on
            log.exception("watching %s: an error of MetaSync's own", watch.of.name)
            self._failed(watch, e)
        return 0.0

    def _poll(self, watch: _Watch) -> None:
        ended = self._opened(watch).watch(watch.of.path, watch.cursor, watch.timeout_s)
        if self._ends.is_set():
            return
        if watch.cursor:  # that it begins says little: its cursor may count as too old at once, again and again
            watch.pauses.passed()
            watch.timeout_s = min(POLL_S, watch.timeout_s + POLL_LONGER_S)
        watch.cursor = ended.cursor
        if ended.after_s > 0:
            watch.pauses.until = self._clock() + ended.after_s
        if ended.changed:
            self._told(watch.of.name)
        self._tell(works=True)

    def _failed(self, watch: _Watch, error: Exception) -> None:
        if self._ends.is_set():
            return
        if isinstance(error, MetaSyncError):
            log.info("watching %s: %s", watch.of.name, error.message)
        self._close(watch)
        watch.cursor = ""
        if not isinstance(error, NotFoundError):  # else its cursor was too old: what came meanwhile is not known
            watch.timeout_s = max(POLL_LEAST_S, watch.timeout_s / 2)
        watch.pauses.failed(self._clock())
        self._tell(works=False)

    def _tell(self, *, works: bool) -> None:
        if works != self.works and not self._ends.is_set():
            self.works = works
            self._changed()

    def _opened(self, watch: _Watch) -> Watches:
        backend = watch.backend
        if backend is None:
            backend = self._open(watch.of)
            with self._lock:
                watch.backend = backend
            if self._ends.is_set():
                self._close(watch)
        if isinstance(backend, Watches):
            return backend
        raise BackendError(f"{watch.of.name} cannot be watched")

    def _close(self, watch: _Watch) -> None:
        with self._lock:
            backend, watch.backend = watch.backend, None
        if backend is not None:
            with suppress(BackendError, OSError):
                backend.close()


class _Watch:
    """One backend of a line. `cursor`: where its watch goes on; "": it begins."""

    def __init__(self, of: Watchable, pauses: Pauses) -> None:
        self.of, self.pauses = of, pauses
        self.backend: Backend | None = None
        self.cursor = ""
        self.timeout_s = POLL_S
