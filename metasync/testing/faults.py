"""A backend that fails the way real ones do: on demand by a switch or a queue, or at random from one seed.

    b = FaultyBackend(MemoryBackend())
    b.down = True                                  # until switched back
    b.fail_next("lost_reply", kind="create")       # the next create takes effect, and its caller sees an error
    b = FaultyBackend(inner, plan=Plan(seed=7, rates={"lost_request": 0.05, "bit_flip": 0.01}))
    b = lossy(inner, seed=7, rate=0.05)            # the plan of a bad network

What a plan does to a call depends on the seed, the kind, the path and how many such calls went before it, and on
nothing else: threads that take turns in another order do not change it.

    fault         effect      caller sees
    unreachable   no          UnreachableError
    lost_request  no          UnreachableError, and cannot know which of these three it was
    lost_reply    yes         UnreachableError
    late          later       UnreachableError; takes effect with a later call, or `land()` (providers.md, section 1.3)
    duplicate     twice       the outcome of the second: a create that won says False
    full          no          FullError (create, put)
    refused       no          RefusedError
    slow          yes         the outcome, after `slow_s`
    garbage       -           as many random bytes (get)
    html          -           a login page (get)
    truncated     -           the beginning (get)
    bit_flip      -           one bit turned over (get)
    swapped       -           the bytes of another object beside it (get)
    absent        -           NotFoundError, an empty list (get, stat, list)
    hang          no          nothing, until `release()`; then UnreachableError
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, get_args

from metasync.backends.api import Backend
from metasync.backends.wrappers.wrapper import WRITES, Call, T, Wrapper
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.effects import OpKind

Fault: TypeAlias = Literal[
    "unreachable",
    "lost_request",
    "lost_reply",
    "late",
    "duplicate",
    "full",
    "refused",
    "slow",
    "garbage",
    "html",
    "truncated",
    "bit_flip",
    "swapped",
    "absent",
    "hang",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

_KINDS: dict[Fault, frozenset[str]] = {
    "lost_reply": WRITES,
    "late": WRITES,
    "duplicate": WRITES,
    "full": frozenset({"create", "put"}),
    "garbage": frozenset({"get"}),
    "html": frozenset({"get"}),
    "truncated": frozenset({"get"}),
    "bit_flip": frozenset({"get"}),
    "swapped": frozenset({"get"}),
    "absent": frozenset({"get", "stat", "list"}),
}
"""The calls a fault can strike; the others it strikes all."""

_COUNTED: frozenset[str] = frozenset(get_args(OpKind))

_PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in to this network.</body></html>"
_SNAPSHOT_OBJECT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each fault strikes (0 to 1 per call), drawn from `seed`. `paths` narrows it to some objects."""

    seed: int = 0
    rates: Mapping[Fault, float] = field(default_factory=dict)
    paths: Callable[[str], bool] | None = None

    def draw(self, kind: str, path: str, turn: int) -> Fault | None:
        """The fault of the `turn`-th call of `kind` on `path`; at most one strikes a call."""
        if self.paths is not None and not self.paths(path):
            return None
        at = random.Random(f"{self.seed}/{kind}/{path}/{turn}").random()
        for fault, rate in self.rates.items():
            if kind not in _KINDS.get(fault, {kind}):
                continue
            if at < rate:
                return fault
            at -= rate
        return None


@dataclass(slots=True)
class _Armed:
    fault: Fault
    kind: OpKind | None
    times: int


class FaultyBackend(Wrapper):
    """The same calls as `inner`, with faults. Without a switch, a queue or a plan it changes nothing.

    Switches, each until it is switched back:
      down            every call fails
      read_only       every create, put and delete is refused
      full_over_bytes create and put of more than so many bytes fail (0: of anything but nothing); None: no limit
      slow_s          how long each call waits before it begins
      hanging         calls do not return until `release()`, and then fail without effect
      plan            the random faults
    """

    def __init__(
        self, inner: Backend, plan: Plan | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self.plan = plan
        self.down = False
        self.read_only = False
        self.full_over_bytes: int | None = None
        self.slow_s = 0.0
        self.hanging = False
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._sleep = sleep
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._turns: Counter[tuple[str, str]] = Counter()
        self._armed: deque[_Armed] = deque()
        self._late: deque[tuple[int, Callable[[], object]]] = deque()

    def fail_next(self, fault: Fault, *, kind: OpKind | None = None, times: int = 1) -> None:
        """The next `times` calls (of `kind`) suffer `fault`. `ValueError` for a call it cannot strike."""
        if kind is not None and kind not in _KINDS.get(fault, {kind}):
            raise ValueError(f"{fault} cannot strike a {kind}")
        with self._lock:
            self._armed.append(_Armed(fault, kind, times))

    def land(self) -> None:
        """Lets every `late` call take effect now, in the order they were made."""
        with self._lock:
            landing = list(self._late)
            self._late.clear()
        for _, effect in landing:
            _without_reply(effect)

    def snapshot(self) -> dict[str, bytes]:
        """All objects as they are now."""
        return {path: self.inner.get(path, max_bytes=_SNAPSHOT_OBJECT_BYTES) for path in _walk(self.inner, "")}

    def roll_back(self, snapshot: Mapping[str, bytes]) -> None:
        """Makes the store what it was when `snapshot` was taken: a restored backup, an acceptor that forgets."""
        for path in list(_walk(self.inner, "")):
            if path not in snapshot:
                self.inner.delete(path)
        for path, data in snapshot.items():
            self.inner.put(path, data)

    def wipe(self) -> None:
        """Removes every object, as after an account was closed and opened again."""
        self.roll_back({})

    def release(self) -> None:
        """Ends `hanging`, and lets the calls that hang fail."""
        with self._lock:
            self.hanging = False
            released, self._released = self._released, threading.Event()
        released.set()

    def around(self, call: Call, do: Callable[[], T]) -> T:
        if call.kind in WRITES:
            return self._write(call, do)
        if call.kind not in _COUNTED:
            if self.down:
                raise _unreachable(call.kind, "")
            return do()
        fault, _ = self._begin(cast(OpKind, call.kind), call.path)
        if fault == "absent" and call.kind == "list":
            return cast(T, ())
        if fault == "absent":
            raise _absent(call.path)
        return do()

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        fault, rng = self._begin("get", path)
        if fault == "absent":
            raise _absent(path)
        if fault == "html":
            return _PAGE[:max_bytes]
        other = self._beside(path, rng) if fault == "swapped" else path
        data = self.inner.get(other, offset=offset, length=length, max_bytes=max_bytes)
        if fault == "truncated":
            return data[: rng.randrange(len(data))] if data else data
        if fault == "garbage" or (fault == "swapped" and other == path):
            return rng.randbytes(len(data))
        if fault == "bit_flip" and data:
            flipped = bytearray(data)
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        return data

    def _write(self, call: Call, effect: Callable[[], T]) -> T:
        kind, path, size_bytes = cast(OpKind, call.kind), call.path, call.up_bytes
        if self.read_only:
            with self._lock:
                self.calls[kind] += 1
            raise RefusedError(f"cannot {kind} {path}: read-only (injected)")
        fault, _ = self._begin(kind, path)
        too_large = self.full_over_bytes is not None and size_bytes > self.full_over_bytes
        if fault == "full" or too_large:
            raise FullError(f"cannot {kind} {path}: no space left (injected)")
        if fault == "late":
            with self._lock:
                # So many further calls until it lands: enough for its caller to have looked, and found nothing.
                self._late.append((self.calls.total() + 1 + size_bytes % 5, effect))
            raise _unreachable(kind, path)
        outcome = effect()
        if fault == "duplicate":
            outcome = effect()
        if fault == "lost_reply":
            raise _unreachable(kind, path)
        return outcome

    def _begin(self, kind: OpKind, path: str) -> tuple[Fault | None, random.Random]:
        """Counts the call, waits, raises what strikes every kind alike, and tells the fault left to the caller."""
        with self._lock:
            self.calls[kind] += 1
            turn = self._turns[kind, path]
            self._turns[kind, path] += 1
            fault = self._take_armed(kind) or (self.plan.draw(kind, path, turn) if self.plan else None)
            fault = "hang" if self.hanging else fault
            released = self._released
            if fault is not None:
                self.faults[fault] += 1
            seed = self.plan.seed if self.plan else 0
            now = self.calls.total()
            landing = [effect for due, effect in self._late if due < now]
            self._late = deque(entry for entry in self._late if entry[0] >= now)
        for effect in landing:
            _without_reply(effect)
        if self.slow_s or fault == "slow":
            self._sleep(self.slow_s or 1.0)
        if fault == "hang":
            released.wait()
        if self.down or fault in {"unreachable", "lost_request", "hang"}:
            raise _unreachable(kind, path)
        if fault == "refused":
            raise RefusedError(f"cannot {kind} {path}: refused (injected)")
        return fault, random.Random(f"{seed}/bytes/{kind}/{path}/{turn}")

    def _take_armed(self, kind: OpKind) -> Fault | None:
        for armed in self._armed:
            if (armed.kind or kind) == kind and kind in _KINDS.get(armed.fault, {kind}):
                armed.times -= 1
                if armed.times <= 0:
                    self._armed.remove(armed)
                return armed.fault
        return None

    def _beside(self, path: str, rng: random.Random) -> str:
        folder, slash, name = path.rpartition("/")
        others = [e.name for e in self.inner.list(folder) if e.size is not None and e.name != name]
        return f"{folder}{slash}{rng.choice(others)}" if others else path


def lossy(inner: Backend, *, seed: int, rate: float) -> FaultyBackend:
    """The same store behind a line that loses requests at `rate`, and replies to writes that took effect at `rate`."""
    return FaultyBackend(inner, Plan(seed, {"lost_request": rate, "lost_reply": rate}))


def _walk(backend: Backend, folder: str) -> list[str]:
    found = []
    for name, size in backend.list(folder):
        path = f"{folder}/{name}" if folder else name
        found += _walk(backend, path) if size is None else [path]
    return found


def _without_reply(effect: Callable[[], object]) -> None:
    try:
        effect()
    except BackendError:  # nobody waits for this reply any more
        return


def _unreachable(kind: str, path: str) -> UnreachableError:
    return UnreachableError(f"cannot {kind} {path}: no answer (injected)")


def _absent(path: str) -> NotFoundError:
    return NotFoundError(f"{path} is not there (injected)")
