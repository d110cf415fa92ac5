"""A mini scheduler: tasks of many processes against in-memory acceptors, in virtual time, all from one seed.

Every request has three instants: it is sent, it takes effect, its reply arrives; faults come between them. What a
process sent lands even after the process is gone. `World` is also the omniscient witness: it replays the true logs.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from metasync.config import Acceptor, BackendEntry, Config, Form
from metasync.consensus import Change, Group, birth_digest
from metasync.consensus.acceptors import block as blockform_module
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.founding import found
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Participant
from metasync.consensus.records.entry import Entry, Kind
from metasync.consensus.records.log_replay import Log, ValueRules
from metasync.consensus.records.state import State
from metasync.errors import NotFoundError, RefusedError, UnreachableError
from metasync.keys.derive import sign_public
from metasync.keys.device_set import (
    DEVICE_ENTROPY_BYTES,
    DeviceIdentity,
    DeviceSet,
    make_device_set,
    new_device,
)
from metasync.keys.keyring import WorkspaceKeys, new_keys
from metasync.keys.policy import AdminChain, make_policy
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Work


@dataclass
class Faults:
    """Probabilities per request, and how long things take."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    latency_s: float = 0.05
    late_s: float = 20.0


class Store(dict[str, bytes]):
    """One backend's objects: path -> bytes. `racing`: every create wins, the last one to land stands."""

    racing = False

    def do(self, op: Op) -> Reply:
        if op.kind == "create":
            if op.path in self and not self.racing:
                return Reply(False)
            self[op.path] = op.data
            return Reply(True)
        if op.kind == "put":
            self[op.path] = op.data
            return Reply()
        if op.kind == "get":
            if op.path not in self:
                return Reply(error=NotFoundError(f"{op.path} is not there"))
            if len(self[op.path]) > op.max_bytes:
                return Reply(error=RefusedError("too large"))
            return Reply(self[op.path])
        if op.kind == "stat":
            there = op.path in self
            return Reply(len(self[op.path])) if there else Reply(error=NotFoundError(f"{op.path} is not there"))
        if op.kind == "list":
            depth = op.path.count("/") + 1 if op.path else 0
            under = [p for p in self if p.startswith(op.path + "/" if op.path else "")]
            names = {p.split("/")[depth]: p.count("/") > depth for p in under}
            return Reply(tuple(_Listed(n, None if folder else 1) for n, folder in sorted(names.items())))
        if op.kind == "delete":
            self.pop(op.path, None)
            return Reply()
        if op.kind == "inventory":
            return Reply(None)  # no such power: it is listed folder by folder
        raise AssertionError(op.kind)


@dataclass(frozen=True)
class _Listed:
    name: str
    size: int | None


@dataclass(eq=False)
class Process:
    """A top task and all its branches; killed as one."""

    name: str
    disk: dict[str, bytes] = field(default_factory=dict)
    alive: bool = True
    result: Any = None
    error: BaseException | None = None
    done: bool = False


@dataclass(eq=False)
class _Run:
    process: Process
    task: Task
    parent: _Gathering | None = None
    key: str = ""
    token: int = 0
    gathering: _Gathering | None = None
    ended: bool = False


@dataclass(eq=False)
class _Gathering:
    owner: _Run
    effect: Gather
    runs: dict[str, _Run] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class World:
    """Carries effects out in virtual time. `down`: backends that answer nothing; `stores` may be edited by hand."""

    def __init__(self, seed: int, names: list[str], faults: Faults | None = None) -> None:
        self.rng = random.Random(seed)
        self.stores = {name: Store() for name in names}
        self.faults = faults or Faults()
        self.down: set[str] = set()
        self.stuck: set[str] = set()
        self.takes_s: dict[str, float] = {}  # what each call takes, where that is to be certain
        self.liars: dict[str, Callable[[str, Op, Store], Reply]] = {}  # who asks, what: what a lying store answers
        self.fault_hook: Callable[[Op], Reply | None] = lambda op: None
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.requests: dict[str, list[Op]] = {name: [] for name in names}
        self.in_flight: dict[str, int] = dict.fromkeys(names, 0)
        self.written: dict[bytes, Entry] = {}  # blocks that anybody sealed, by their bytes (`witnessed`)
        self.landed: dict[str, dict[tuple[bytes, int, bytes, int], Entry]] = {name: {} for name in names}
        self.block_votes: dict[tuple[bytes, Any, bytes], tuple[State, set[str]]] = {}

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + seconds, self.count, event))

    def start(self, name: str, task: Task, disk: dict[str, bytes] | None = None) -> Process:
        process = Process(name, {} if disk is None else disk)
        self.at(0.0, lambda: self._step(_Run(process, task), None, None))
        return process

    def kill(self, process: Process) -> None:
        process.alive = False

    def run(self, until: Callable[[], bool] | None = None, limit_s: float = 1e8) -> None:
        while self.events and self.events[0][0] <= limit_s and not (until is not None and until()):
            self.now, _, event = heapq.heappop(self.events)
            event()

    def wipe(self, name: str) -> None:
        self.stores[name].clear()
        self.landed[name].clear()

    def _note(self, op: Op) -> None:
        """A block landed: whoever reads all of them at this instant counts the votes that stand highest now."""
        entry = self.written[op.data]
        blocks = self.landed[op.backend]
        blocks[entry.acceptor_id, entry.v, entry.device_id, entry.idx] = entry
        seen = []
        for device in {key[2] for key in blocks}:
            idx = 0
            while (block := blocks.get((entry.acceptor_id, entry.v, device, idx))) is not None:
                idx += 1
                if block.round.n or block.round.incarnation == block.base.writer:
                    seen.append(block)
        top = max((block.round for block in seen), default=None)
        for block in seen:
            if block.kind is Kind.ACCEPT and block.round == top:
                assert block.value is not None
                key = (block.base.hash, block.round, block.value.hash)
                self.block_votes.setdefault(key, (block.value, set()))[1].add(op.backend)

    def do(self, task: Task, disk: dict[str, bytes] | None = None) -> Any:
        """Runs one task to its end and returns its result or raises its error."""
        process = self.start("do", task, disk)
        self.run(lambda: process.done)
        if process.error is not None:
            raise process.error
        assert process.done
        return process.result

    # effects

    def _step(self, run: _Run, value: Any, error: BaseException | None) -> None:
        while not run.ended and run.process.alive:
            run.token += 1
            try:
                effect = run.task.throw(error) if error is not None else run.task.send(value)
            except StopIteration as stop:
                self._end(run, stop.value, None)
                return
            except Exception as e:  # handed to whoever waits for the process
                self._end(run, None, e)
                return
            value, error = None, None
            if isinstance(effect, Now):
                value = self.now
            elif isinstance(effect, Random):
                value = self.rng.randbytes(effect.n)
            elif isinstance(effect, Work):
                try:
                    value = effect.function()
                except Exception as e:  # thrown into the task that asked for it
                    error = e
            elif isinstance(effect, Persist):
                if effect.value is None:
                    run.process.disk.pop(effect.key, None)
                else:
                    run.process.disk[effect.key] = effect.value
            elif isinstance(effect, Recall):
                value = run.process.disk.get(effect.key)
            elif isinstance(effect, Sleep):
                self._resume_in(run, effect.seconds, None)
                return
            elif isinstance(effect, Op):
                self._op(run, effect)
                return
            elif isinstance(effect, Gather):
                if not effect.branches:
                    value = {}
                    continue
                self._gather(run, effect)
                return
            else:
                raise AssertionError(effect)

    def _resume_in(self, run: _Run, seconds: float, value: Any) -> None:
        token = run.token
        self.at(seconds, lambda: self._step(run, value, None) if run.token == token else None)

    def _delay(self) -> float:
        f = self.faults
        if self.rng.random() < f.late:
            return self.rng.expovariate(1 / f.late_s)
        return f.latency_s * (0.2 + self.rng.expovariate(1.0))

    def _op(self, run: _Run, op: Op) -> None:
        token = run.token
        self.requests[op.backend].append(op)
        f = self.faults
        timeout = Reply(error=UnreachableError(f"{op.backend}: no answer"))
        if op.backend in self.stuck:
            self._resume_in(run, op.timeout_s, timeout)
            return
        if op.backend in self.down:
            self._resume_in(run, self._delay(), timeout)
            return
        if self.rng.random() < f.lost_request:
            self._resume_in(run, min(op.timeout_s, self._delay() * 4), timeout)
            return
        go, back = self._delay() / 2, self._delay() / 2
        if op.backend in self.takes_s:
            go = back = self.takes_s[op.backend] / 2
        lost = self.rng.random() < f.lost_reply
        self.in_flight[op.backend] += 1

        def effect() -> None:
            self.in_flight[op.backend] -= 1
            forced = self.fault_hook(op)
            reply = forced or (timeout if op.backend in self.down else self._answer(run.process.name, op))
            if op.data in self.written and reply.error is None:
                self._note(op)
            if not lost:
                self.at(back, lambda: self._step(run, reply, None) if run.token == token else None)

        self.at(go, effect)
        if lost or go + back > op.timeout_s:
            self._resume_in(run, min(op.timeout_s, 4 * (go + back)), timeout)

    def _answer(self, who: str, op: Op) -> Reply:
        store, liar = self.stores[op.backend], self.liars.get(op.backend)
        return store.do(op) if liar is None else liar(who, op, store)

    def _gather(self, run: _Run, effect: Gather) -> None:
        gathering = _Gathering(run, effect)
        run.gathering = gathering
        for key, task in effect.branches.items():
            branch = _Run(run.process, task, gathering, key)
            gathering.runs[key] = branch
            self.at(0.0, lambda branch=branch: self._step(branch, None, None))
        if effect.deadline_s is not None:
            self.at(effect.deadline_s, lambda: self._gathered(gathering, None))

    def _gathered(self, gathering: _Gathering, error: BaseException | None) -> None:
        if gathering.ended:
            return
        gathering.ended = True
        for branch in gathering.runs.values():
            self._abandon(branch)
        gathering.owner.gathering = None
        results = None if error else dict(gathering.results)
        self.at(0.0, lambda: self._step(gathering.owner, results, error))

    def _abandon(self, run: _Run) -> None:
        if run.ended:
            return
        run.ended = True
        run.token += 1
        if run.gathering is not None:
            run.gathering.ended = True
            for branch in run.gathering.runs.values():
                self._abandon(branch)
        run.task.close()

    def _end(self, run: _Run, value: Any, error: BaseException | None) -> None:
        run.ended = True
        gathering = run.parent
        if gathering is None:
            run.process.done, run.process.result, run.process.error = True, value, error
            return
        if gathering.ended:
            return
        if error is not None:
            self._gathered(gathering, error)
            return
        gathering.results[run.key] = value
        until = gathering.effect.until
        if len(gathering.results) == len(gathering.runs) or (until is not None and until(gathering.results)):
            self._gathered(gathering, None)


# A workspace to play with.


@dataclass
class Workspace:
    """Keys, config, devices and genesis of a workspace whose acceptors are the backends named."""

    keys: WorkspaceKeys
    admin: bytes
    config: Config
    devices: DeviceSet
    identities: list[DeviceIdentity]
    births: dict[bytes, bytes]
    links: dict[bytes, str]
    genesis: State

    @property
    def forms(self) -> dict[str, Form]:
        return {self.links[a.acceptor_id]: a.form for _, a in self.config.acceptors}

    def unread(self, m: Participant, base: State, name: str) -> LogAcceptor:
        """An acceptor of the version after `base`, as a process sees it that has read nothing of it."""
        view = Instance(m, self.config, self.devices, base).acceptors[self.acceptor_of(name)]
        assert isinstance(view, LogAcceptor)
        return view

    def acceptor_of(self, name: str) -> bytes:
        return next(a for a, n in self.links.items() if n == name)

    def group(self, incarnation: bytes, device: int = 0, **more: Any) -> Group:
        more.setdefault("links", self.links)
        return Group(
            self.keys,
            self.identities[device],
            self.config,
            self.genesis.config,
            self.devices,
            self.genesis.devices,
            incarnation=incarnation,
            **more,
        )


def make_config(
    names: list[str],
    births: Mapping[bytes, bytes],
    ids: Mapping[str, bytes],
    f: int = 0,
    forms: Mapping[str, Form] | None = None,
) -> Config:
    form = forms or {}
    return Config(
        mode="bft" if f else "crash",
        f=f,
        backends=tuple(
            BackendEntry(
                ids[n],
                n,
                "memory",
                1 << 30,
                bytes(32),
                (),
                Acceptor(ids[n], form.get(n, "log"), birth_digest(births[ids[n]])),
            )
            for n in sorted(names, key=lambda n: ids[n])
        ),
    )


def make_parts(
    rng: random.Random, names: list[str], devices: int, f: int = 0, forms: Mapping[str, Form] | None = None
) -> Workspace:
    """All of a workspace but its genesis, which is filled in by `make_workspace`."""
    admin = rng.randbytes(32)
    chain = AdminChain((sign_public(admin),))
    keys = new_keys(chain.ns_id, rng.randbytes(96))
    identities = [new_device(f"device {i}", rng.randbytes(DEVICE_ENTROPY_BYTES)) for i in range(devices)]
    ids = {name: rng.randbytes(16) for name in names}
    births = {ids[name]: rng.randbytes(32) for name in names}
    config = make_config(names, births, ids, f, forms)
    policy = make_policy(chain, config, admin_private=admin, keyring=bytes(32), slots=[])
    device_set = make_device_set(policy, [i.certified(admin, keys.ns_id) for i in identities])
    links = {ids[name]: name for name in names}
    return Workspace(keys, admin, config, device_set, identities, births, links, None)  # type: ignore[arg-type]


def ruled(ws: Workspace, base: State, **changes: Any) -> DeviceSet:
    """The devices of the founding under another policy, as the admin signs it for the version after `base`.

    `chain`: a longer one, whose last key is `ws.admin` too.
    """
    policy = ws.devices.policy.signed(ws.admin, era=base.era, version=base.v + 1, **changes)
    return make_device_set(policy, [c for c in ws.devices.certificates if c.device_id not in policy.revoked_ids])


def make_workspace(world: World, devices: int = 3, f: int = 0, forms: Mapping[str, Form] | None = None) -> Workspace:
    """Founds a workspace on all backends of the world, `f` of which may lie. Those in block form race: every create
    there wins."""
    ws = make_parts(world.rng, list(world.stores), devices, f, forms)
    for name, form in (forms or {}).items():
        world.stores[name].racing = form == "block"
    faults, world.faults = world.faults, Faults()
    ws.genesis = world.do(
        found(
            ws.keys,
            ws.config,
            ws.devices,
            ws.devices.chain,
            admin_private=ws.admin,
            keyring=bytes(32),
            births=ws.births,
            links=ws.links,
        )
    )
    world.faults = faults
    return ws


# The omniscient view.


@contextlib.contextmanager
def witnessed(world: World) -> Iterator[None]:
    """Lets the world see what stands in blocks."""
    seal = blockform_module.seal_block

    def sealed(keys: Any, entry: Entry, sign_private: bytes, random: bytes) -> bytes:
        data = seal(keys, entry, sign_private, random)
        world.written[data] = entry
        return data

    blockform_module.seal_block = sealed
    try:
        yield
    finally:
        blockform_module.seal_block = seal


def true_chain(world: World, ws: Workspace) -> list[State]:
    """Every decided state from the genesis on, by the true logs; asserts that none has two values."""
    chain = [ws.genesis]
    while True:
        value = true_value(world, ws, chain[-1])
        if value is None:
            return chain
        chain.append(value)


def true_value(world: World, ws: Workspace, base: State, quorum: int | None = None) -> State | None:
    from metasync.consensus.records.birth import birth_matches, birth_path
    from metasync.consensus.records.entry import entry_path

    votes: dict[tuple[Any, bytes], set[str]] = {}
    values: dict[bytes, State] = {}
    for acceptor_id, name in ws.links.items():
        store = world.stores[name]
        if not birth_matches(
            store.get(birth_path(acceptor_id), b""), acceptor_id, birth_digest(ws.births[acceptor_id])
        ):
            continue
        if ws.forms.get(name) == "block":
            for (base_hash, rnd, key), (value, voters) in world.block_votes.items():
                if base_hash == base.hash and name in voters:
                    values[key] = value
                    votes.setdefault((rnd, key), set()).add(name)
            continue
        log = Log(ws.keys, ValueRules(ws.keys, ws.config, ws.devices, base), acceptor_id)
        while True:
            path = entry_path(ws.keys, base.epoch, base.era, acceptor_id, log.v, log.next_idx)
            if path not in store or not log.usable:
                break
            log.feed(store[path])
        assert not log.poison, log.poison
        for rnd, value in log.votes.items():
            values[value.hash] = value
            votes.setdefault((rnd, value.hash), set()).add(name)
    # The majority is counted here by itself, so that a wrong quorum in the product does not hide.
    least = quorum or len(ws.links) // 2 + 1
    decided = {key for (_, key), names in votes.items() if len(names) >= least}
    assert len(decided) <= 1, f"two values decided for version {base.v + 1}"
    return values[decided.pop()] if decided else None


def values_by_round(world: World, ws: Workspace, base: State) -> dict[Any, set[bytes]]:
    """The values that any log has accepted in the version after `base`, by round: one each, if nobody lies."""
    from metasync.consensus.records.entry import entry_path

    found: dict[Any, set[bytes]] = {}
    for acceptor_id, name in ws.links.items():
        log = Log(ws.keys, ValueRules(ws.keys, ws.config, ws.devices, base), acceptor_id)
        while log.usable:
            path = entry_path(ws.keys, base.epoch, base.era, acceptor_id, log.v, log.next_idx)
            if path not in world.stores[name]:
                break
            log.feed(world.stores[name][path])
        for rnd, value in log.votes.items():
            found.setdefault(rnd, set()).add(value.hash)
    return found


def change(op_id: bytes, master: bytes | None = None) -> Change:
    return Change(op_id, master=master if master is not None else op_id * 2)
