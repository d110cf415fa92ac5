"""A backend that is consistent only in the end: what was written shows in reads, stats and lists after a while.

    b = LaggingBackend(inner, seed=7, lag=(0, 20))                       # 0 to 20 further calls on this backend
    b = LaggingBackend(inner, seed=7, lag=(0.0, 3.0), clock=clock)       # 0 to 3 seconds of that clock
    b = LaggingBackend(inner, seed=7, lag=(0, 20), monotonic=False)      # a reader may even see the older state again

`create` stays atomic: who wins is decided at once, by the store. `delete` and `put` take effect there at once, too;
what lags is what anybody gets to see, their writer included. This is less than the contract of a backend promises (a
read after a write sees it), and what a service with several replicas may do all the same.

The lag of a write (and, without `monotonic`, of every read) depends on the seed, the path and the number of draws for
it before, and on nothing else. Clients that share one LaggingBackend see one store.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from metasync.backends.api import Backend, Listed
from metasync.backends.names import check_part, count_bytes, split_folder, split_path
from metasync.backends.wrappers.wrapper import WRITES, Call, T, Wrapper
from metasync.errors import NotFoundError

_OBJECT_BYTES_MAX = 1 << 30


class _Former(NamedTuple):
    """What an object was before a write at `replaced_at` (None: absent); it shows until `until`."""

    data: bytes | None
    replaced_at: float
    until: float


class LaggingBackend(Wrapper):
    """The same store, seen late. `settle()` lets everything show at once."""

    def __init__(
        self,
        inner: Backend,
        *,
        seed: int = 0,
        lag: tuple[float, float] = (0, 10),
        monotonic: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(inner)
        self.stale_reads = 0
        self._seed = seed
        self._lag = lag
        self._monotonic = monotonic
        self._clock = clock
        self._calls = 0
        self._draws: Counter[str] = Counter()
        self._former: dict[str, list[_Former]] = {}
        self._lock = threading.RLock()

    def settle(self) -> None:
        """All that was written shows from now on."""
        with self._lock:
            self._former.clear()

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind not in WRITES:
            return do()
        split_path(call.path)
        with self._lock:
            now = self._begin()
            before = self._stored(call.path)
            try:
                return do()
            finally:  # after an error it may have taken effect as well
                if self._stored(call.path) != before:
                    former = _Former(before, now, now + self._draw(call.path))
                    self._former.setdefault(call.path, []).append(former)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        check_part(offset, length, max_bytes)
        split_path(path)
        with self._lock:
            former = self._shown(path, self._begin())
            if former is None:
                return self.inner.get(path, offset=offset, length=length, max_bytes=max_bytes)
        data = self._present(former, path)
        return data[offset : offset + count_bytes(len(data), offset, length, max_bytes, path)]

    def stat(self, path: str) -> int:
        split_path(path)
        with self._lock:
            former = self._shown(path, self._begin())
            if former is None:
                return self.inner.stat(path)
        return len(self._present(former, path))

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        with self._lock:
            now = self._begin()
            found = {entry.name: entry for entry in self.inner.list(path)}
            prefix = f"{path}/" if path else ""
            for lagging in [p for p in self._former if p.startswith(prefix)]:
                name, deeper, _ = lagging[len(prefix) :].partition("/")
                former = self._shown(lagging, now)
                if former is None:
                    continue
                if former.data is not None:
                    found[name] = Listed(name, None if deeper else len(former.data))
                elif not deeper:
                    found.pop(name, None)
            shown = (e for e in found.values() if e.size is not None or self._shows_any(f"{prefix}{e.name}", now))
            return tuple(sorted(shown))

    def _begin(self) -> float:
        self._calls += 1
        return self._calls if self._clock is None else self._clock()

    def _draw(self, path: str) -> float:
        self._draws[path] += 1
        low, high = self._lag
        return low + (high - low) * random.Random(f"{self._seed}/{path}/{self._draws[path]}").random()

    def _stored(self, path: str) -> bytes | None:
        try:
            return self.inner.get(path, max_bytes=_OBJECT_BYTES_MAX)
        except NotFoundError:
            return None

    def _shown(self, path: str, now: float) -> _Former | None:
        """The former state that a read sees now; None: the present one."""
        formers = self._former.get(path)
        if not formers:
            return None
        longest = max(self._lag)
        formers[:] = [f for f in formers if (f.until if self._monotonic else f.replaced_at + longest) > now]
        if not formers:
            del self._former[path]
            return None
        if self._monotonic:
            seen: _Former | None = formers[0]  # the oldest that is left: what a reader saw go does not come back
        else:
            as_of = now - self._draw(path)
            seen = next((f for f in formers if f.replaced_at > as_of), None)
        self.stale_reads += seen is not None
        return seen

    @staticmethod
    def _present(former: _Former, path: str) -> bytes:
        if former.data is None:
            raise NotFoundError(f"{path} does not show yet (injected)")
        return former.data

    def _shows_any(self, folder: str, now: float) -> bool:
        """Whether anything below a folder shows."""
        below = [p for p in self._former if p.startswith(f"{folder}/")]
        if not below:
            return True
        hidden = {p for p in below if (former := self._shown(p, now)) is not None and former.data is None}
        if any(p not in hidden for p in below):
            return True
        return any(path not in hidden for path in self._walk(folder))

    def _walk(self, folder: str) -> Iterator[str]:
        for name, size in self.inner.list(folder):
            path = f"{folder}/{name}"
            if size is None:
                yield from self._walk(path)
            else:
                yield path
