"""Simulated providers, and the lines to them with all that goes wrong on the way and at its end.

A `SimStore` is a backend of the real interface, so that the product's own layers (folder, ballast) stand between it and
the runtime. `Lines` decides when a call takes effect and when, and whether, its answer arrives.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from metasync.backends.api import Backend, Listed, LogForm, Space
from metasync.backends.wrappers.wrapper import layers
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.runtime.channel import made
from metasync.runtime.effects import Op, Reply
from simulation.lies import Liar
from simulation.world import Boot, World

LINGER_S: Final = 900.0  # the longest that a request lies around before it lands
RACE_S: Final = 1.0  # so long after a create on a store without atomic creates, another one of that name succeeds too


@dataclass
class Rates:
    """How often a call on a backend goes wrong, and how long things take. All of it may change at any time."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    duplicate: float = 0.0
    busy: float = 0.0  # 429, 5xx
    corrupt: float = 0.0  # bodies of `get`: cut, altered, a login page
    latency_s: float = 0.05
    late_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Requests of a client that lie around before they land: `lag_s`, and not before `lands`; or that are refused.

    `calls`: which, by kind and a part of the path, as "create px".
    """

    client: str
    calls: str
    ends: float
    lands: float = 0.0
    lag_s: float = 0.0
    refuses: bool = False

    def concerns(self, now: float, client: str, op: Op) -> bool:
        kind, _, part = self.calls.partition(" ")
        return client == self.client and now < self.ends and op.kind == kind and f"/{part}/" in f"/{op.path}/"


@dataclass(eq=False)
class Store:
    """What one provider holds, and how it fares. `landed` is told of every object that a create or put stored."""

    name: str
    world: World
    form: LogForm = "log"
    liar: Liar | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)  # path -> the client that stored it last
    fences: set[str] = field(default_factory=set)  # paths of entries that say that their version is decided
    rates: Rates = field(default_factory=Rates)
    failed: dict[str, float] = field(default_factory=dict)  # client -> when a call of its last came to nothing here
    down_until: float = 0.0
    full_until: float = 0.0
    cut_off: dict[str, float] = field(default_factory=dict)  # client -> until when it cannot reach this provider
    holds: list[Hold] = field(default_factory=list)
    appending: int = 0  # creates of log entries that are under way, and that somebody waits for
    keeps_past: bool = False  # notes when objects landed, to be able to lie about it
    born: dict[str, float] = field(default_factory=dict)
    gone: bool = False  # for good
    private: dict[str, dict[str, bytes]] = field(
        default_factory=dict
    )  # client -> what it is shown, and may write, alone
    landed: Callable[[Store, str, bytes], None] = lambda store, path, data: None
    deleting: Callable[[Store, str], None] = lambda store, path: None  # told of every object that is about to go

    @functools.cached_property
    def identity(self) -> bytes:
        return bytes(16) + hashlib.sha256(self.name.encode()).digest()[:16]

    def is_down(self, client: str) -> bool:
        now = self.world.now
        return self.gone or self.down_until > now or self.cut_off.get(client, 0.0) > now

    def is_full(self) -> bool:
        return self.full_until > self.world.now

    def wipe(self) -> None:
        self.objects.clear()

    def appended(self) -> None:
        self.appending -= 1

    def past(self, seconds: float) -> dict[str, bytes]:
        """What had landed so long ago."""
        then = self.world.now - seconds
        return {path: data for path, data in self.objects.items() if self.born.get(path, 0.0) <= then}

    def show_all(self, client: str) -> None:
        """Ends a lie to one client; what it wrote meanwhile is gone."""
        self.private.pop(client, None)

    def shown(self, client: str) -> dict[str, bytes]:
        return self.private.get(client, self.objects)


class SimStore:
    """One client's view of a store: a `Backend`."""

    scheme: ClassVar[str] = "sim"

    def __init__(self, store: Store, client: str) -> None:
        self.store = store
        self.client = client

    @property
    def form(self) -> LogForm:
        return self.store.form

    def create(self, path: str, data: bytes) -> bool:
        store = self.store
        if store.liar is not None and store.liar.lies_about(path):
            known = path in store.objects
            said = store.liar.create(self.client, path, data, store.objects)
            if said is not None:
                if not known and path in store.objects:
                    store.landed(store, path, data)
                return said
        if path in store.shown(self.client) and not self._races(path):
            return False
        self._room(data)
        self._keep(path, data)
        return True

    def _races(self, path: str) -> bool:
        """Whether a create of this name succeeds though another one did: the store looks first, and writes later."""
        store = self.store
        if store.form != "block":
            return False
        now = store.world.now
        return now - store.created.setdefault(path, now) < RACE_S

    def put(self, path: str, data: bytes) -> None:
        self._room(data)
        self._keep(path, data)

    def _keep(self, path: str, data: bytes) -> None:
        objects = self.store.shown(self.client)
        objects[path] = data
        self.store.writers[path] = self.client
        if self.store.keeps_past:
            self.store.born.setdefault(path, self.store.world.now)
        if objects is self.store.objects:
            self.store.landed(self.store, path, data)

    def _room(self, data: bytes) -> None:
        """A full account takes nothing, but for what fits where its ballast was."""
        if self.store.is_full() and any(p.endswith("/ballast") for p in self.store.objects):
            self.store.world.count("full")
            raise FullError(f"{self.store.name}: no space is left")

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        data = self._find(path)
        if path in self.store.fences and self.store.writers.get(path) != self.client:
            self.store.world.count("fence met")
        data = data[offset:] if length is None else data[offset : offset + length]
        if len(data) > max_bytes:
            raise RefusedError(f"{path} has more than {max_bytes} bytes")
        return data

    def stat(self, path: str) -> int:
        return len(self._find(path))

    def _find(self, path: str) -> bytes:
        liar = self.store.liar
        if liar is not None and liar.lies_about(path):
            shown = liar.get(self.client, path, self.store.objects)
            if shown is None:
                raise NotFoundError(f"{path} is not there")
            return shown
        try:
            return self.store.shown(self.client)[path]
        except KeyError:
            raise NotFoundError(f"{path} is not there") from None

    def list(self, path: str) -> tuple[Listed, ...]:
        start = path + "/" if path else ""
        found: dict[str, int | None] = {}
        for name, data in self.store.shown(self.client).items():
            if name.startswith(start):
                first, _, rest = name[len(start) :].partition("/")
                found[first] = None if rest else len(data)
        return tuple(Listed(n, size) for n, size in sorted(found.items()))

    def delete(self, path: str) -> None:
        if path not in self.store.objects:
            return
        self.store.deleting(self.store, path)
        del self.store.objects[path]
        if path.endswith("/ballast"):
            self.store.world.count("ballast given up")
        if "/px/" in path or "/bl/" in path:
            self.store.world.count("log entry deleted")

    def space(self) -> Space:
        return Space(0 if self.store.is_full() else 1 << 40, 1 << 41)

    def identity(self) -> bytes:
        return self.store.identity

    def close(self) -> None:
        """Nothing is open."""


def store_of(backend: Backend) -> Store | None:
    """The store at the bottom of a stack of layers; None where there is none to be had."""
    for layer in layers(backend):
        if isinstance(layer, SimStore):
            return layer.store
    return None


def _effect(backend: Backend, op: Op) -> Reply:
    """One call. What a check found when it landed is no fault of the provider, which `made` would make of it."""
    reply = made(backend, op)
    cause = None if reply.error is None else reply.error.__cause__
    if cause is not None and not isinstance(cause, BackendError):
        raise cause
    return reply


class Lines:
    """The network: `runtime.Network`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sender: tuple[Boot, str] | None = None  # of what is taking effect
        self.slow: dict[str, tuple[float, float]] = {}  # client -> until when, and how long its requests may take
        self._stores: dict[Backend, Store | None] = {}

    def _delay(self, rates: Rates) -> float:
        rng = self.world.rng
        if rates.late and rng.random() < rates.late:
            return min(LINGER_S, rng.expovariate(1 / rates.late_s))
        return rates.latency_s * (0.2 + rng.expovariate(1.0))

    def send(self, boot: Boot, client: str, backend: Backend, op: Op, answer: Callable[[Reply], None]) -> float | None:
        world, store = self.world, self._store(backend)
        if store is None:
            world.at(0.0, lambda: answer(made(backend, op)))
            return 0.0
        rng, rates = world.rng, store.rates
        go, back = self._delay(rates) / 2, self._delay(rates) / 2
        until, most = self.slow.get(client, (0.0, 0.0))
        if until > world.now:
            go += rng.uniform(0.0, most)
        holds = [hold for hold in store.holds if hold.concerns(world.now, client, op)]
        go += max((max(hold.lag_s, hold.lands - world.now) for hold in holds), default=0.0)
        if store.is_down(client) or any(hold.refuses for hold in holds):
            store.failed[client] = world.now
            world.count("call on a backend that is down")
            self._refuse(answer, go, op)
            return go
        if rates.lost_request and rng.random() < rates.lost_request:
            store.failed[client] = world.now
            return None
        if rates.busy and rng.random() < rates.busy:
            error = BackendError(f"{op.backend}: 503, busy", retryable=True, retry_after_s=1.0)
            world.at(go, lambda: answer(Reply(error=error)))
            store.failed[client] = world.now
            world.count("busy")
            return go
        lost = rates.lost_reply > 0 and rng.random() < rates.lost_reply
        twice = op.kind in ("create", "put") and rates.duplicate > 0 and rng.random() < rates.duplicate

        def effect() -> None:
            if store.is_down(client):
                store.failed[client] = world.now
                self._refuse(answer, back, op)
                return
            self.sender = boot, client
            reply = _effect(backend, op)
            if lost or isinstance(reply.error, FullError):
                store.failed[client] = world.now
            self._note(boot, store, client, op, reply, lost=lost, late=go > op.timeout_s)
            if twice:
                world.count("request landed twice")
                reply = _effect(backend, op)
            if not lost:
                reply = self._damaged(store, op, reply)
                world.at(back, lambda: answer(reply))

        world.at(go, effect)
        if op.kind == "create" and "/px/" in op.path:
            store.appending += 1
            world.at(min(go, op.timeout_s), store.appended)
        return None if lost else go + back

    def _store(self, backend: Backend) -> Store | None:
        if backend not in self._stores:
            self._stores[backend] = store_of(backend)
        return self._stores[backend]

    def _refuse(self, answer: Callable[[Reply], None], seconds: float, op: Op) -> None:
        error = UnreachableError(f"{op.backend}: no way there")
        self.world.at(seconds, lambda: answer(Reply(error=error)))

    def _note(self, boot: Boot, store: Store, client: str, op: Op, reply: Reply, *, lost: bool, late: bool) -> None:
        world = self.world
        outcome = type(reply.error).__name__ if reply.error else reply.value if isinstance(reply.value, bool) else "ok"
        world.trace(client, op.backend, op.kind, op.path, len(op.data), outcome)
        if op.kind in ("create", "put") and reply.error is None and reply.value is not False:
            if lost:
                world.count("lost reply landed")
            if late:
                world.count("landed after the time-out")
            if boot.dead:
                world.count("landed after its sender's death")

    def _damaged(self, store: Store, op: Op, reply: Reply) -> Reply:
        rate = store.rates.corrupt
        if not rate or op.kind != "get" or reply.error is not None or self.world.rng.random() >= rate:
            return reply
        self.world.count("answer damaged")
        rng, data = self.world.rng, reply.value
        kind = rng.randrange(3)
        if kind == 0 or not data:
            return Reply(data[: rng.randint(0, len(data))])
        if kind == 1:
            at = rng.randrange(len(data))
            return Reply(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        return Reply(b"<!DOCTYPE html><title>Sign in</title>"[: op.max_bytes])
