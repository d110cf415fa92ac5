"""What a check of the conformance kit is given: the store under test, a measure for everything, and ways to complain.

A check is a function `(bench, base)`. It opens as many connections as it likes (`bench.open`), keeps to names below
`base`, and raises `BrokenPromiseError` with what it saw. It returns a `Note` if there is more to say than "passed", and
raises `NotShownError` if it could not be carried out here. Errors of the backend that it does not expect, it lets pass.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from metasync.backends.api import Backend, Listed, Sweeps
from metasync.backends.wrappers.wrapper import Call, T
from metasync.errors import BackendError, FullError, MetaSyncError, NotFoundError, UnreachableError
from metasync.events import Event, Notice, Progress
from metasync.testing.counting import CountingBackend
from metasync.testing.peer import Peer, PeerError, Store

CLEANERS = 8  # objects are removed so many at a time; a store that takes fewer at once says so by being slow
_WALK_DEPTH_MAX = 12  # the kit makes folders five deep
_POLL_S = 0.25
_TOGETHER_TIMEOUT_S = 150.0


class BrokenPromiseError(AssertionError):
    """A check saw the backend break a promise of its contract; the message says what was seen."""


class NotShownError(Exception):
    """A check could not be carried out here; the message says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a check that passed has to say. `weak`: it saw too little to mean much. `figures` for reports."""

    text: str = ""
    weak: bool = False
    figures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked of a store. The three ways in use are `QUICK`, `STANDARD` and `THOROUGH`."""

    name: Literal["quick", "standard", "thorough"] = "standard"
    race_names: int = 1000
    race_turns: tuple[int, ...] = (8,)  # of eight writers, so many race for a name, by turns
    race_read_every: int = 8
    race_final_reads: int = 40
    listed_names: int = 1200  # S3 tells 1,000 at once, Dropbox 2,000, most others fewer
    big_bytes: int = 16 << 20  # the largest pack that a push makes
    big_again: int = 2  # creates of the big object's taken name
    middle_bytes: int = 1 << 20  # what is being written when a process is killed
    middle_races: int = 3
    kills: int = 4
    versions: int = 18  # of an object that is replaced while others read it
    rounds: int = 10
    patience_s: float = 30.0  # for a list to show what was stored: it is a hint, and may be late
    waits_s: tuple[float, ...] = (1.0, 5.0, 20.0)  # before a check begins anew because the store did not answer


STANDARD = Scale()
QUICK = Scale(
    name="quick",
    race_names=200,
    race_turns=(4,),
    race_final_reads=20,
    listed_names=300,
    big_bytes=4 << 20,
    big_again=1,
    middle_bytes=1 << 19,
    middle_races=1,
    kills=2,
    versions=8,
    rounds=4,
)
THOROUGH = Scale(
    name="thorough",
    race_names=2000,
    race_turns=(8,),
    race_read_every=4,
    race_final_reads=500,
    listed_names=2500,
    big_bytes=64 << 20,
    big_again=4,
    middle_bytes=4 << 20,
    middle_races=10,
    kills=12,
    versions=60,
    rounds=40,
)


class _Measured(CountingBackend):
    """Counts calls, keeps the names of what may lie there now, and holds answers to the promised types."""

    def __init__(self, inner: Backend, names: set[str], lock: threading.Lock, wrote: threading.Event) -> None:
        super().__init__(inner)
        self._names = names
        self._names_lock = lock
        self._wrote = wrote

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind not in _PROMISED:
            return super().around(call, do)
        try:
            value = super().around(call, do)
        except (ValueError, TypeError):  # refused before any request: nothing is there, and nothing was asked
            raise
        except BaseException:
            self._note(call.kind, call.path, failed=True)
            raise
        self._note(call.kind, call.path, failed=False)
        _check_type(call.kind, value)
        return value

    def _note(self, kind: str, path: str, *, failed: bool) -> None:
        with self._names_lock:
            if kind in ("create", "put"):
                self._wrote.set()
                self._names.add(path)
            elif kind == "delete" and not failed:
                self._names.discard(path)


_PROMISED: dict[str, type] = {
    "create": bool, "put": type(None), "get": bytes, "stat": int, "list": tuple, "delete": type(None)
}  # fmt: skip


def _check_type(kind: str, value: object) -> None:
    kept = type(value) is _PROMISED[kind]
    if kind == "list" and isinstance(value, tuple):
        kept = all(
            isinstance(entry, Listed)
            and isinstance(entry.name, str)
            and (entry.size is None or type(entry.size) is int)
            for entry in value
        )
    if not kept:
        raise BrokenPromiseError(f"{kind} answered with {type(value).__name__}, which is not what it promises")


@dataclass(frozen=True, slots=True)
class Cost:
    """Calls of the contract (a provider may need several requests for one), and the bytes of objects they moved."""

    requests: int = 0
    up_bytes: int = 0
    down_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.requests + other.requests, self.up_bytes + other.up_bytes, self.down_bytes + other.down_bytes)


@dataclass(frozen=True, slots=True)
class Left:
    """What cleaning up left behind: how many objects at least, and the reason."""

    objects: int = 0
    why: str = ""


class Bench:
    """One run, or one check, on one store. Close it."""

    def __init__(self, store: Store, scale: Scale, on_event: Callable[[Event], None]) -> None:
        self.store = store
        self.scale = scale
        self.kept: dict[str, Any] = {}
        """What one check leaves for a later one of the same run, so that it need not be stored twice."""
        self._on_event = on_event
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._wrote = threading.Event()
        self._open: list[_Measured] = []
        self._cost = Cost()
        self._peer: Peer | None = None
        self._no_peer: str | None = None
        self._identity: bytes | None = None

    def open(self) -> Backend:
        """Another connection to the store, measured. Closed with the bench."""
        backend = _Measured(self.store.open(), self._names, self._lock, self._wrote)
        with self._lock:
            self._open.append(backend)
        return backend

    def peer(self) -> Peer:
        """The other process, started when it is first asked for. `PeerError` if there can be none, always the same."""
        if self._no_peer is not None:
            raise PeerError(self._no_peer)
        if self._peer is None:
            try:
                self._peer = self.new_peer()
            except PeerError as error:
                self._no_peer = str(error)
                raise
        return self._peer

    def new_peer(self) -> Peer:
        """Another process of the caller's own, to kill or close. `PeerError` if there can be none."""
        if self._no_peer is not None:
            raise PeerError(self._no_peer)
        if self._identity is None:
            self._identity = self.open().identity()
        return Peer(self.store, self._identity)

    def drop_peer(self, gone: PeerError | None = None) -> None:
        """Kills the other process. With the error that it `gone` away with, no further one is started."""
        if gone is not None:
            self._no_peer = str(gone)
        if self._peer is not None:
            self._peer.kill()
            self._peer = None

    def charge(self, requests: int, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """Counts what another process did."""
        with self._lock:
            self._cost += Cost(requests, up_bytes, down_bytes)

    def note_names(self, paths: Iterable[str]) -> None:
        """Names that another process may have stored: to be removed in the end."""
        self._wrote.set()
        with self._lock:
            self._names.update(paths)

    def tell(self, what: str, done: int, total: int) -> None:
        """How far a long check is."""
        self._on_event(Progress(what, done, total, "names"))

    def warn(self, text: str) -> None:
        self._on_event(Notice(text, warning=True))

    def take(self) -> Cost:
        """What was spent since the last time."""
        with self._lock:
            spent, self._cost = self._cost, Cost()
            backends = list(self._open)
        for backend in backends:
            count = backend.take()
            spent += Cost(count.requests.total(), count.up_bytes, count.down_bytes)
        return spent

    def close_connections(self) -> None:
        """Gives back all that `open` gave out."""
        spent = self.take()
        with self._lock:
            self._cost += spent
            closing, self._open = self._open, []
        for backend in closing:
            with contextlib.suppress(Exception):  # what `close` does wrong is a check's to find
                backend.close()

    def close(self) -> None:
        self.close_connections()
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def clean(self, folder: str) -> Left:
        """Removes all that the run stored below `folder`, and what lists show there besides."""
        self.drop_peer()  # or it may store more
        if not self._wrote.is_set():
            return Left()
        with self._lock:
            names = sorted(self._names)
        try:
            backend = self.open()
            _delete_all(backend, names, lambda done: self._on_event(Progress("clean", done, len(names), "names")))
            _delete_all(backend, list(walk(backend, folder)), lambda _done: None)
            if isinstance(backend, Sweeps):
                backend.sweep(folder)
            left = sum(1 for _ in walk(backend, folder))
        except KeyboardInterrupt:
            self.warn(f"{len(self._names):,} objects may be left in the folder {folder} of this store: interrupted")
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its user is told what stays behind, and why
            with self._lock:
                left = len(self._names)
            return Left(left, error.message if isinstance(error, MetaSyncError) else f"{type(error).__name__}: {error}")
        return Left(left, "they are listed, though they were deleted") if left else Left()


def _delete_all(backend: Backend, paths: Sequence[str], tell: Callable[[int], None]) -> None:
    stop = threading.Event()
    numbers = itertools.count(1)

    def delete(path: str) -> None:
        if not stop.is_set():
            backend.delete(path)
            tell(next(numbers))

    with ThreadPoolExecutor(CLEANERS) as pool:
        try:
            for done in [pool.submit(delete, path) for path in paths]:
                done.result()
        except BaseException:
            stop.set()
            raise


def walk(backend: Backend, folder: str, depth: int = 0) -> Iterable[str]:
    """The objects that lists show below a folder."""
    for name, size in backend.list(folder):
        path = f"{folder}/{name}"
        if size is not None:
            yield path
        elif depth < _WALK_DEPTH_MAX:
            yield from walk(backend, path, depth + 1)


# --- what checks say with


def expect(held: bool, seen: str) -> None:
    """`BrokenPromiseError` with what was seen, unless the promise held."""
    if not held:
        raise BrokenPromiseError(seen)


def expect_bytes(got: bytes, wanted: bytes, what: str) -> None:
    """`BrokenPromiseError` that says how `got` differs, unless it is `wanted`."""
    if got == wanted:
        return
    if len(got) != len(wanted):
        raise BrokenPromiseError(f"{what} gave {len(got):,} bytes where {len(wanted):,} were stored")
    at = next(place for place, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
    raise BrokenPromiseError(f"{what} gave other bytes than were stored, from byte {at:,} of {len(wanted):,}")


def expect_error(kind: type[Exception], what: str, call: Callable[[], object]) -> None:
    """`BrokenPromiseError` unless `call` raises `kind`. An error that says the store is away passes through."""
    try:
        value = call()
    except kind:
        return
    except (UnreachableError, FullError):
        raise
    except Exception as error:
        raise BrokenPromiseError(f"{what} raised {named(error)} in place of {kind.__name__}") from error
    told = f"{len(value):,} bytes" if isinstance(value, bytes) else repr(value)
    raise BrokenPromiseError(f"{what} answered {told} in place of a {kind.__name__}")


def named(error: BaseException) -> str:
    """An error for people: its class and what it says."""
    said = error.message if isinstance(error, MetaSyncError) else str(error)
    return f"{type(error).__name__}{f' ({said})' if said else ''}"


def absent(backend: Backend, path: str) -> bool:
    """Whether `get` says that nothing is there."""
    try:
        backend.get(path, max_bytes=1 << 30)
    except NotFoundError:
        return True
    return False


def soon(bench: Bench, look: Callable[[], bool]) -> float | None:
    """Looks until it is so, as long as the bench's patience lasts. The seconds it took; None if it never was."""
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > bench.scale.patience_s:
            return None
        time.sleep(min(_POLL_S, bench.scale.patience_s / 10))
    return time.monotonic() - began


def together(*calls: Callable[[threading.Barrier], Any]) -> list[Any]:
    """Runs calls in threads side by side; each is given a barrier for all of them. Raises the first error."""
    barrier = threading.Barrier(len(calls), timeout=_TOGETHER_TIMEOUT_S)

    def run(call: Callable[[threading.Barrier], Any]) -> Any:
        try:
            return call(barrier)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(run, call) for call in calls]
        try:
            errors = [error for done in running if (error := done.exception()) is not None]
        except BaseException:  # Ctrl-C, most likely
            barrier.abort()
            raise
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    if errors:
        raise BackendError(f"a call took longer than {_TOGETHER_TIMEOUT_S:.0f} s")
    return [done.result() for done in running]


CheckFunction: TypeAlias = Callable[[Bench, str], Note | None]
"""A check: carries itself out below a folder of the bench's store."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract, and how it is put to the test.

    `proves` is the promise, word for word as `metasync.backends.api` (or `names`) has it. A store that fails a check
    needed for `data` is unfit; one that fails one needed for `voting` holds data only. `after` names checks without
    which this one means nothing.
    """

    name: str
    what: str
    proves: str
    needed_for: Literal["data", "voting"]
    carry_out: CheckFunction
    after: tuple[str, ...] = ()
