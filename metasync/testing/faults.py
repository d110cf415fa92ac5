"""A backend that fails the way real ones do: on demand by a switch or a queue, or at random from one seed.

    b = FaultyBackend(MemoryBackend())
    b.down = True                                  # until switched back
    b.fail_next("lost_reply", kind="create")       # the next create takes effect, and its caller sees an error
    b = FaultyBackend(inner, plan=Plan(seed=7, rates={"lost_request": 0.05, "bit_flip": 0.01}))

What a plan does to a call depends on the seed, the kind, the path and how many such calls went before it, and on
nothing else: threads that take turns in another order do not change it.

    fault         effect      caller sees
    unreachable   no          UnreachableError
    lost_request  no          UnreachableError, and cannot know which of these three it was
    lost_reply    yes         UnreachableError
    late          later       UnreachableError; takes effect with a later call, or `land()` (PROVIDERS 1.3)
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
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, get_args

from metasync.backends._base import POWERS, Backend, Listed, LogForm
from metasync.effects import OpKind
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError

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
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

_WRITES: frozenset[str] = frozenset({"create", "put", "delete"})
_KINDS: dict[Fault, frozenset[str]] = {
    "lost_reply": _WRITES,
    "late": _WRITES,
    "duplicate": _WRITES,
    "full": frozenset({"create", "put"}),
    "garbage": frozenset({"get"}),
    "html": frozenset({"get"}),
    "truncated": frozenset({"get"}),
    "bit_flip": frozenset({"get"}),
    "swapped": frozenset({"get"}),
    "absent": frozenset({"get", "stat", "list"}),
}
"""The calls a fault can strike; the others it strikes all."""

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


class FaultyBackend:
    """The same calls as `inner`, with faults. Without a switch, a queue or a plan it changes nothing.

    Switches, each until it is switched back:
      down            every call fails
      read_only       every create, put and delete is refused
      full_over_bytes create and put of more than so many bytes fail (0: of anything but nothing); None: no limit
      slow_s          how long each call waits before it begins
      plan            the random faults
    """

    scheme: ClassVar[str] = "memory"
    form: ClassVar[LogForm] = "log"

    def __init__(
        self, inner: Backend, plan: Plan | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.plan = plan
        self.down = False
        self.read_only = False
        self.full_over_bytes: int | None = None
        self.slow_s = 0.0
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._inner = inner
        self._sleep = sleep
        self._lock = threading.Lock()
        self._turns: Counter[tuple[str, str]] = Counter()
        self._armed: deque[_Armed] = deque()
        self._late: deque[tuple[int, Callable[[], object]]] = deque()
        vars(self).update(scheme=inner.scheme, form=inner.form)  # a wrapper is of its inner's kind
        vars(self).update({power: getattr(inner, power) for power in POWERS if hasattr(inner, power)})

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
        return {path: self._inner.get(path, max_bytes=_SNAPSHOT_OBJECT_BYTES) for path in _walk(self._inner, "")}

    def roll_back(self, snapshot: Mapping[str, bytes]) -> None:
        """Makes the store what it was when `snapshot` was taken: a restored backup, an acceptor that forgets."""
        for path in list(_walk(self._inner, "")):
            if path not in snapshot:
                self._inner.delete(path)
        for path, data in snapshot.items():
            self._inner.put(path, data)

    def wipe(self) -> None:
        """Removes every object, as after an account was closed and opened again."""
        self.roll_back({})

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._write("create", path, lambda: self._inner.create(path, data), len(data)))

    def put(self, path: str, data: bytes) -> None:
        self._write("put", path, lambda: self._inner.put(path, data), len(data))

    def delete(self, path: str) -> None:
        self._write("delete", path, lambda: self._inner.delete(path), 0)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        fault, rng = self._begin("get", path)
        if fault == "absent":
            raise NotFoundError(f"{path} is not there (injected)")
        if fault == "html":
            return _PAGE[:max_bytes]
        other = self._beside(path, rng) if fault == "swapped" else path
        data = self._inner.get(other, offset=offset, length=length, max_bytes=max_bytes)
        if fault == "truncated":
            return data[: rng.randrange(len(data))] if data else data
        if fault == "garbage" or (fault == "swapped" and other == path):
            return rng.randbytes(len(data))
        if fault == "bit_flip" and data:
            flipped = bytearray(data)
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        return data

    def stat(self, path: str) -> int:
        fault, _ = self._begin("stat", path)
        if fault == "absent":
            raise NotFoundError(f"{path} is not there (injected)")
        return self._inner.stat(path)

    def list(self, path: str) -> tuple[Listed, ...]:
        fault, _ = self._begin("list", path)
        return () if fault == "absent" else self._inner.list(path)

    def identity(self) -> bytes:
        if self.down:
            raise _unreachable("identify", "")
        return self._inner.identity()

    def close(self) -> None:
        self._inner.close()

    def _write(self, kind: OpKind, path: str, effect: Callable[[], object], size_bytes: int) -> object:
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
        if self.down or fault in {"unreachable", "lost_request"}:
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
        others = [e.name for e in self._inner.list(folder) if e.size is not None and e.name != name]
        return f"{folder}{slash}{rng.choice(others)}" if others else path


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
