"""What deciding code yields and what it is sent back: the seam between decisions and the world (architecture.md, D9).

A *task* is a generator that yields effects and receives their results. It does no I/O, reads no clock and draws no
random numbers itself. `metasync.runtime.tasks` carries effects out with threads; a simulator can carry out the same
ones in virtual time.

    reply = yield Op("b1", "get", "px/0/ab12", max_bytes=4096)    # -> Reply
    done  = yield Gather({"b1": task1, "b2": task2}, until=quorum) # -> dict of finished branches' results
    yield Sleep(0.05)
    yield Persist("journal", b"...")                               # durable before it returns
    value = yield Recall("journal")                                # what was persisted last, by whatever process
    now   = yield Now()                                            # seconds, counts suspend
    bits  = yield Random(16)

Ops that were started are never undone: when a `Gather` ends early or a deadline passes, what is under way may still
land on the backend. Consensus allows for exactly that (consensus.md, rule 1.7).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

from metasync.errors import BackendError

if TYPE_CHECKING:
    from concurrent.futures import Future

TRANSFER_TIMEOUT_S: Final = 30.0  # for a request that moves data, besides the time that its bytes take
SLOWEST_BYTES_PER_S: Final = 64_000  # a line slower than this is given up on


def patience_s(size_bytes: int) -> float:
    """How many seconds one request that moves so many bytes may take."""
    return TRANSFER_TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S


_T = TypeVar("_T")
OpKind: TypeAlias = Literal["create", "put", "get", "stat", "list", "delete", "space", "digest", "inventory"]


class Urgency(IntEnum):
    """Which calls on one backend go first; of equal ones the cheaper, and no call waits for ever."""

    NOW = 0  # agreement, and whatever somebody waits for: small
    SOON = 1  # the files of a pull or a clone, the packs of a push
    LATER = 2  # what nobody waits for: further copies, healing, moving


DUE: ContextVar[float | None] = ContextVar("due", default=None)
"""When nobody will wait any more for the `Op` that this thread carries out, on the clock of `Now`; None: for ever."""


class Carried(Protocol):
    """A call under way, as the wrappers of its backend see it. Thread-safe. `is_urgent`: it is not to be put off."""

    @property
    def is_urgent(self) -> bool: ...

    def leave(self, error: BackendError) -> None:
        """Has whoever waits for it told this error, and goes on without the thread that carries it out."""

    def refused(self, after_s: float) -> None:
        """The server sent an attempt away and wants to be left alone for `after_s`; another attempt may follow."""


CARRIED: ContextVar[Carried | None] = ContextVar("carried", default=None)
"""The call that this thread carries out, and that can be left behind with it; None: its caller would wait for ever."""


@dataclass(frozen=True, slots=True)
class Op:
    """One call on one backend. `backend` is the name the workspace gave it; paths are relative to its folder there.

    kind    data  result in `Reply.value`
    create  yes   True: created; False: something is there already (atomic, never overwrites)
    put     yes   None (overwrites)
    get     no    bytes; at most `max_bytes`, else `Reply.error`; `offset`/`length` for a part
    stat    no    size in bytes
    list    no    tuple of `backends.Listed`, one level below `path`
    delete  no    None (also when nothing was there)
    space   no    `backends.Space`; None, and no request, where the backend does not tell. `path` is ""
    digest  no    (size, kind of digest, digest or None); the size alone, by `stat`, where the backend does not tell
    inventory  no  (kind of digest, `backends.Inventory`); None, and no request, where the backend has no such power
    """

    backend: str
    kind: OpKind
    path: str
    data: bytes = b""
    offset: int = 0
    length: int | None = None
    max_bytes: int = 1 << 26
    timeout_s: float = 30.0
    urgency: Urgency = Urgency.NOW
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of an `Op`: a value, or the error it ended with. A timeout is an `UnreachableError`.

    `seconds`: how long the backend took, without the time the call waited for its turn; 0 where nobody measured.
    """

    value: Any = None
    error: BackendError | None = None
    seconds: float = 0.0


Task: TypeAlias = Generator[Any, Any, Any]
"""A generator of effects; its return value is the task's result."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Runs branches side by side until all ended or `until(results)` is true; the rest is abandoned (closed).

    Sent back: `{key: result}` of the branches that had ended. A branch that raises ends the whole task with its error.
    `deadline_s`: at most so many seconds from now.
    """

    branches: Mapping[str, Task]
    until: Callable[[Mapping[str, Any]], bool] | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """Seconds on a clock that never goes back and counts while the machine sleeps (CLOCK_BOOTTIME)."""


@dataclass(frozen=True, slots=True)
class Random:
    """`n` random bytes."""

    n: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Writes `value` under `key` in the local state, durable before the task goes on; None removes it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Recall:
    """Reads what stands under `key` in the local state now, None if nothing. Sees every `Persist` yielded before."""

    key: str


@dataclass(frozen=True, slots=True)
class Work:
    """Runs a pure, CPU-heavy function in a worker (a simulator runs it at once). Sent back: its result."""

    function: Callable[[], Any]


class Runner(Protocol):
    """What starts several tasks needs of a `Runtime`. A simulation has its own, in which waiting takes virtual time."""

    def clock(self) -> float:
        """Seconds, on the clock that `Now` and the runtime's timers have."""

    def start(self, task: Task) -> Future[Any]:
        """Starts a task. The future holds its result or error; cancelling it does nothing once it runs."""

    def submit_work(self, function: Callable[[], _T]) -> Future[_T]:
        """Runs a function on the workers."""

    def wait(
        self, futures: Iterable[Future[_T]], timeout_s: float | None = None, *, for_all: bool = False
    ) -> list[Future[_T]]:
        """Waits until one of these futures of the runner's has ended, or all have, or for `timeout_s`.

        Returns those that have ended, in the order given.
        """


def together(tasks: Mapping[str, Task]) -> Task:
    """All tasks side by side; their results by key."""
    return (yield Gather(tasks))


def each(ops: Mapping[str, Op]) -> Task:
    """One call each, side by side; their replies by key."""
    return together({key: _one(op) for key, op in ops.items()})


def _one(op: Op) -> Task:
    return (yield op)
