"""Changes of the config in virtual time: every step cut short, emptied acceptors, sleepers; mutants that are caught.

METASYNC_RECONFIG_RUNS sets how many schedules are run (default 48). A failure names its seed.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from effort import first
from paxos_world import Faults, Process, Store, Workspace, World, change, make_workspace

from metasync.config import CHANGED_TAG, Acceptor, BackendEntry, Config
from metasync.consensus import Change, Decided, Group, State, birth_digest
from metasync.consensus import proposer as paxos_module
from metasync.consensus import reconfigure as reconfig_module
from metasync.consensus.acceptors import view as view_module
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.reconfigure import check_step
from metasync.consensus.records.entry import Kind, Round, open_entry
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.consensus.records.state import successor
from metasync.errors import (
    BackendError,
    DamagedError,
    ForkError,
    FormatError,
    NoQuorumError,
    UnreachableError,
    UsageError,
)
from metasync.keys.device_set import DeviceSet
from metasync.keys.policy import allowing
from metasync.runtime.effects import Op, Reply, Sleep, Task

RUNS = int(os.environ.get("METASYNC_RECONFIG_RUNS", "48"))


@dataclass
class Room:
    """A workspace whose config changes: which acceptors there were, and every config by its hash."""

    world: World
    ws: Workspace
    births: dict[bytes, bytes]
    links: dict[bytes, str]
    configs: dict[bytes, Config] = field(default_factory=dict)

    @classmethod
    def made(cls, seed: int, names: str, spare: str = "") -> Room:
        world = World(seed, [*names])
        ws = make_workspace(world)
        for name in spare:
            world.stores[name] = Store()
            world.requests[name], world.in_flight[name] = [], 0
        return cls(world, ws, dict(ws.births), dict(ws.links), {ws.genesis.config: ws.config})

    def group(self, incarnation: bytes, device: int = 0, **more: Any) -> Group:
        return self.ws.group(incarnation, device, **{"links": self.links, **more})

    def newcomer(self, name: str) -> BackendEntry:
        """A new acceptor on a backend; the same name again is another acceptor."""
        acceptor_id, nonce = self.world.rng.randbytes(16), self.world.rng.randbytes(32)
        self.births[acceptor_id], self.links[acceptor_id] = nonce, name
        given = Acceptor(acceptor_id, "log", birth_digest(nonce))
        return BackendEntry(acceptor_id, name, "memory", 1 << 30, bytes(32), (), given)

    def step(self, config: Config, *, add: str = "", remove: str = "") -> Config:
        entries = [b for b in config.backends if b.name != remove]
        return config.with_backends([*entries, *([self.newcomer(add)] if add else [])])


def changing(
    room: Room,
    group: Group,
    base: State,
    make: Callable[[Config], Config],
    told: list[State],
    deadline_s: float = 30.0,
) -> Task:
    """The whole of a change of the config, over as many lost versions as it takes. -> the state after it."""
    op_id = room.world.rng.randbytes(16)
    wanted: Config | None = None
    before: Config | None = None
    while True:
        old = yield from group._config_of(base)
        if wanted is None or old != before:
            before, wanted = old, make(old)
        check_step(old, wanted)
        new = wanted.tagged(CHANGED_TAG, (base.v + 1, base.config))
        group.follow(old, base.config, room.links)
        joined = {a.acceptor_id for _, a in new.acceptors} - {a.acceptor_id for _, a in old.acceptors}
        digest = yield from group.prepare_config(base, new, {a: room.births[a] for a in joined}, ())
        room.configs[digest] = new
        devices = yield from allowed(room, group, base, new)
        decided = yield from group.propose(
            base,
            lambda digest=digest, devices=devices: Change(op_id, config=digest, devices=devices),
            op_id=op_id,
            deadline_s=deadline_s,
        )
        told.append(decided.state)
        if decided.mine:
            yield from group.fence(base, decided.state)
            return (yield from passing_on(room, group, decided.state, told))
        base = yield from group.get_recent(decided.state)


def allowed(room: Room, group: Group, base: State, new: Config) -> Task:
    """-> the name of a device set with a policy that allows the config, as the admin signs it; None where it does."""
    devices: DeviceSet = (yield from group.enter(base)).devices
    if not devices.policy.contradiction(new):
        return None
    policy = allowing(devices.policy, new, room.ws.admin, era=base.era, version=base.v + 1)
    return (yield from group.put_const(base, replace(devices, policy_data=policy.encode()).encode()))


def passing_on(room: Room, group: Group, base: State, told: list[State]) -> Task:
    """The empty version on the new config."""
    decided: Decided = yield from group.propose(base, lambda: Change(room.world.rng.randbytes(16)))
    told.append(decided.state)
    return decided.state


def pushing(group: Group, base: State, op_id: bytes, told: list[State], deadline_s: float = 30.0) -> Task:
    while True:
        decided: Decided = yield from group.propose(base, lambda: change(op_id), op_id=op_id, deadline_s=deadline_s)
        told.append(decided.state)
        base = decided.state
        if decided.mine:
            return base


def one_history(told: Iterable[State]) -> None:
    by_version: dict[int, State] = {}
    for state in told:
        assert by_version.setdefault(state.v, state) == state, f"two values were told for version {state.v}"
    for v, state in by_version.items():
        if v - 1 in by_version:
            assert state.prev == by_version[v - 1].hash


def test_add_then_remove_and_everybody_follows() -> None:
    room = Room.made(1, "abc", "d")
    group, told = room.group(b"1" * 16), []
    state = room.world.do(pushing(group, room.ws.genesis, b"p" * 16, told))
    state = room.world.do(changing(room, group, state, lambda c: room.step(c, add="d"), told))
    assert {b.name for b, _ in group.newest_config.acceptors} == set("abcd")
    state = room.world.do(changing(room, group, state, lambda c: room.step(c, remove="a"), told))
    room.world.run()
    room.world.stores["a"].clear()
    other = room.group(b"2" * 16, 1)
    latest = room.world.do(other.get_recent(state))
    assert latest == state
    latest = room.world.do(pushing(other, latest, b"q" * 16, told))
    assert room.world.do(group.get_recent(state)) == latest
    one_history(told)


def test_a_step_keeps_a_quorum_of_the_old_acceptors() -> None:
    room = Room.made(1, "abc", "de")
    with pytest.raises(UsageError, match="1 of 3 voting backends would stay"):
        check_step(room.ws.config, room.step(room.step(room.ws.config, remove="a"), remove="b"))
    two = room.step(room.ws.config, remove="a")
    with pytest.raises(UsageError, match="1 of 2 voting"):
        check_step(two, room.step(two, remove="b"))
    check_step(room.ws.config, room.step(room.ws.config, remove="a"))


def test_add_while_a_minority_is_down_and_remove_a_dead_one() -> None:
    room = Room.made(3, "abc", "d")
    room.world.down.add("a")
    told: list[State] = []
    group = room.group(b"1" * 16)
    state = room.world.do(changing(room, group, room.ws.genesis, lambda c: room.step(c, add="d"), told))
    state = room.world.do(changing(room, group, state, lambda c: room.step(c, remove="a"), told))
    room.world.down.add("b")  # two of b, c, d are a quorum now
    assert room.world.do(pushing(group, state, b"p" * 16, told)).v == state.v + 1


def test_the_same_backend_again_is_another_acceptor() -> None:
    room = Room.made(4, "abcd")
    group, told = room.group(b"1" * 16), []
    asleep = room.group(b"2" * 16, 1)
    state = room.world.do(changing(room, group, room.ws.genesis, lambda c: room.step(c, remove="d"), told))
    first = room.ws.acceptor_of("d")
    state = room.world.do(changing(room, group, state, lambda c: room.step(c, add="d"), told))
    acceptors = {a.acceptor_id: b.name for b, a in group.newest_config.acceptors}
    assert sorted(acceptors.values()) == ["a", "b", "c", "d"]
    assert first not in acceptors
    asleep.participant.links.update(room.links)
    assert room.world.do(asleep.get_recent(room.ws.genesis)) == state
    room.world.down.add("a")
    assert room.world.do(pushing(asleep, state, b"p" * 16, told)).v == state.v + 1


def test_a_sleeper_finds_its_way_over_three_changes() -> None:
    room = Room.made(5, "abc", "de")
    links = dict(room.links)
    asleep = room.group(b"9" * 16, 2, links=links)
    told: list[State] = []
    group = room.group(b"1" * 16)
    state = room.ws.genesis
    for step in ({"add": "d"}, {"remove": "a"}, {"add": "e"}):
        for _ in range(20):
            state = room.world.do(pushing(group, state, room.world.rng.randbytes(16), told))
        state = room.world.do(changing(room, group, state, lambda c, s=step: room.step(c, **s), told))
    room.world.run()
    with pytest.raises(NoQuorumError) as e:
        room.world.do(asleep.get_recent(room.ws.genesis))
    assert "metasync backend link" in (e.value.next_step or "")
    reached = asleep.reached
    assert reached is not None
    assert reached in told
    assert reached.config == state.config, "it knows the config of today, and whom to link"
    asleep.participant.links.update(room.links)
    assert room.world.do(asleep.get_recent(room.ws.genesis)) == state
    one_history([*told, room.world.do(pushing(asleep, state, b"s" * 16, told))])


def test_a_sleeper_none_of_whose_backends_is_left_is_told_so() -> None:
    room = Room.made(6, "abc", "def")
    asleep = room.group(b"9" * 16, 2, links=dict(room.links))
    group, told, state = room.group(b"1" * 16), [], room.ws.genesis
    for added, removed in ("da", "eb", "fc"):
        state = room.world.do(changing(room, group, state, lambda c, n=added: room.step(c, add=n), told))
        state = room.world.do(changing(room, group, state, lambda c, n=removed: room.step(c, remove=n), told))
    room.world.run()
    with pytest.raises(NoQuorumError) as e:
        room.world.do(asleep.get_recent(room.ws.genesis, deadline_s=5.0))
    assert e.value.next_step is not None
    for name in "abc":
        room.world.stores[name].clear()
    fresh = room.group(b"8" * 16, 2)
    assert room.world.do(fresh.get_recent(state)) == state  # whoever knows the config of today needs none of them
    later = state
    for n in range(40):  # and the skip hashes lead back to versions that only they had decided
        later = room.world.do(pushing(fresh, later, bytes([n]) * 16, told))
    assert room.world.do(fresh.get_recent(state)) == later


def killed_after(n: int) -> bool:
    """The one who adds a backend dies after n requests; the others push on, and change the backends once more.

    -> bool: it struck.
    """
    room, told = Room.made(7, "abc", "d"), []
    world, group = room.world, room.group(b"1" * 16)
    sent = 0

    def count(op: Op) -> Reply | None:
        nonlocal sent
        sent += 1
        if sent >= n:
            world.kill(process)
        return None

    process = world.start("adds", changing(room, group, room.ws.genesis, lambda c: room.step(c, add="d"), told))
    world.fault_hook = count
    world.run(lambda: process.done)
    world.fault_hook = lambda op: None
    world.run()
    if process.error is not None:
        raise process.error
    other = room.group(b"2" * 16, 1)
    state = world.do(other.get_recent(room.ws.genesis))
    state = world.do(pushing(other, state, b"p" * 16, told))
    state = world.do(changing(room, other, state, lambda c: room.step(c, remove="a"), told))
    third = room.group(b"3" * 16, 2)
    assert world.do(third.get_recent(room.ws.genesis)) == state
    one_history(told)
    return not process.done


def test_a_crash_after_any_request_of_a_change() -> None:
    n = 1
    while killed_after(n):
        n += 2
    assert n > 20


# The finding: a removed backend that is emptied while it can still be written to.


class Sleepers(World):
    """A world whose processes may sleep, as a suspended laptop does, and whose requests may be held on their way."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asleep: dict[str, list[tuple[Any, int, Any, Any]]] = {}
        self.is_held: Callable[[str, Op], bool] = lambda who, op: False
        self.held: list[tuple[Any, int, Op]] = []

    def _step(self, run: Any, value: Any, error: Any) -> None:
        waiting = self.asleep.get(run.process.name)
        if waiting is None:
            super()._step(run, value, error)
        else:
            waiting.append((run, run.token, value, error))

    def _op(self, run: Any, op: Op) -> None:
        if self.is_held(run.process.name, op):
            self.held.append((run, run.token, op))
            self._resume_in(run, op.timeout_s, Reply(error=UnreachableError("no answer")))
        else:
            super()._op(run, op)

    def land(self, backend: str, *, lost: bool = False) -> None:
        """Requests that were held take effect, and are answered; or are lost."""
        for run, token, op in [h for h in self.held if h[2].backend == backend]:
            reply = Reply(error=UnreachableError("no answer")) if lost else self.stores[backend].do(op)
            self.at(0.0, lambda run=run, token=token, reply=reply: run.token == token and self._step(run, reply, None))

    def wake(self, name: str) -> None:
        for run, token, value, error in self.asleep.pop(name):
            self.at(0.0, lambda r=run, t=token, v=value, e=error: r.token == t and self._step(r, v, e))


def is_accept(ws: Workspace, op: Op) -> bool:
    """An ACCEPT of version 1."""
    if op.kind != "create" or "/px/" not in op.path:
        return False
    place = {"ns_id": ws.keys.ns_id, "era": 0, "epoch": 1, "acceptor_id": bytes.fromhex(op.path.split("/")[0]), "v": 1}
    for idx in range(9):
        with contextlib.suppress(FormatError):
            return open_entry(ws.keys, op.data, idx=idx, **place).entry.kind is Kind.ACCEPT
    return False


def the_findings_schedule(seed: int = 1) -> None:
    """b accepts (r1, x1) from one who then sleeps; the removal of c is decided on a and b in r2, c having promised r2.
    c is emptied; the ACCEPT(r1, x1) that was sent to it long ago lands there; the sleeper wakes and counts."""
    world = Sleepers(seed, ["a", "b", "c"])
    ws = make_workspace(world)
    room = Room(world, ws, dict(ws.births), dict(ws.links), {ws.genesis.config: ws.config})
    told: list[State] = []
    world.is_held = lambda who, op: who == "sleeper" and op.backend != "b" and is_accept(ws, op)
    group = room.group(b"1" * 16)
    sleeper = world.start("sleeper", pushing(group, ws.genesis, b"x" * 16, told, 1e6))
    world.run(lambda: len(world.held) == 2 and group._instance.has_votes())
    world.asleep["sleeper"] = []
    world.stuck.add("b")

    def from_other(who: str, op: Op) -> bool:
        if who == "other" and is_accept(ws, op):
            world.stuck.discard("b")  # it has its promises, without b's, and has chosen its value
        return who == "other" and op.backend == "c" and is_accept(ws, op)

    world.is_held = from_other
    other = room.group(b"2" * 16, 1)
    remover = world.start("other", changing(room, other, ws.genesis, lambda c: room.step(c, remove="c"), told, 300.0))
    world.run(lambda: remover.done)
    if remover.error is not None:
        raise remover.error
    removed = next(s for s in told if s.v == 1)
    assert removed.config != ws.genesis.config, "the schedule is not the one it is meant to be"
    world.held = [h for h in world.held if h[0].process is sleeper]
    world.do(_sleep(view_module.DELTA_S + 60 if view_module.DELTA_S < 1e6 else 400.0))
    world.stores["c"].clear()
    world.stuck.add("a")  # for a while only b and c answer the sleeper
    world.at(60.0, lambda: world.stuck.discard("a"))
    world.land("c")
    world.land("a", lost=True)
    world.wake("sleeper")
    world.run(lambda: sleeper.done)
    if sleeper.error is not None and not isinstance(sleeper.error, NoQuorumError):
        raise sleeper.error
    assert sleeper.done
    one_history(told)


def _sleep(seconds: float) -> Task:
    yield Sleep(seconds)


def no_births(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: AcceptorView) -> Task:
        self.born = True
        return True
        yield

    monkeypatch.setattr(AcceptorView, "read_birth", blind)


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Task:
        return None
        yield

    monkeypatch.setattr(reconfig_module, "fence", nothing)


def no_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "DELTA_S", 1e9)


def test_the_findings_schedule_is_harmless() -> None:
    the_findings_schedule()


def test_the_births_are_enough_without_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    no_fence(monkeypatch)
    the_findings_schedule()


@pytest.mark.parametrize("broken", [no_expiry, no_births])
def test_without_either_remedy_two_values_are_told(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence alone is not enough, since votes before it stay votes (rule 8.1), nor is what others saw there."""
    broken(monkeypatch)
    with pytest.raises((AssertionError, ForkError), match=r"two values|contradicting"):
        the_findings_schedule()


# Random schedules.


def schedule(seed: int) -> int:
    """Devices push while others change the config; all crash, and what was removed is emptied. -> changes made."""
    rng = random.Random(seed)
    room = Room.made(seed, "abc", "de")
    world, told = room.world, []
    world.faults = Faults(rng.choice((0, 0.05, 0.2)), rng.choice((0, 0.05, 0.2)), rng.choice((0, 0.05)), late_s=5.0)
    done: dict[str, int] = {}
    running: dict[str, Process] = {}
    made = 0

    def client(name: str, device: int, todo: int, changes: bool) -> Task:
        nonlocal made
        group = room.group(world.rng.randbytes(16), device)
        known = room.ws.genesis
        while done.get(name, 0) < todo:
            group.participant.links.update(room.links)
            try:
                known = yield from group.get_recent(known)
                told.append(known)
                if changes:
                    yield from changing(room, group, known, a_change, told)
                    made += 1
                else:
                    yield from pushing(group, known, world.rng.randbytes(16), told)
                done[name] = done.get(name, 0) + 1
            except (NoQuorumError, UsageError, BackendError):
                yield Sleep(1.0)

    def a_change(config: Config) -> Config:
        names = sorted(b.name for b in config.backends)
        spare = sorted({*"abcde"} - {*names})
        if len(names) <= 3 and spare:
            return room.step(config, add=rng.choice(spare))
        gone = rng.choice(names)
        entry = config.named(gone)
        assert entry is not None
        acceptor = entry.acceptor
        assert acceptor is not None
        world.at(rng.random() * 30, lambda: empty(gone, acceptor.acceptor_id))
        return room.step(config, remove=gone)

    def empty(name: str, acceptor_id: bytes) -> None:
        """Empties the root of a backend that is removed by then, if it is."""
        config = room.configs[max((s for s in told), key=lambda s: s.v).config] if told else room.ws.config
        if any(a.acceptor_id == acceptor_id for _, a in config.acceptors) or world.in_flight[name]:
            return
        for path in [p for p in world.stores[name] if p.startswith(acceptor_id.hex())]:
            del world.stores[name][path]

    jobs = {"p0": (0, 4, False), "p1": (1, 4, False), "r0": (2, 2, True), "r1": (0, 2, True)}

    def boot(name: str) -> None:
        running[name] = world.start(name, client(name, *jobs[name]))

    def crash(name: str) -> None:
        if name in running and not running[name].done:
            world.kill(running[name])
            world.at(rng.random() * 2, lambda: boot(name))

    for name in jobs:
        world.at(rng.random(), lambda name=name: boot(name))
    for _ in range(rng.choice((0, 3, 8))):
        world.at(rng.random() * 15, lambda: crash(rng.choice(sorted(jobs))))
    world.at(40.0, lambda: setattr(world, "faults", Faults()))
    world.run(lambda: len(running) == len(jobs) and all(p.done or not p.alive for p in running.values())
              and all(done.get(n, 0) >= jobs[n][1] for n in jobs), limit_s=3000)  # fmt: skip
    for name, process in running.items():
        if process.error is not None:
            raise process.error
        assert done.get(name, 0) >= jobs[name][1], f"{name} never got through"
    world.run(limit_s=world.now + 120.0)  # what crashed processes had sent lands now, or never
    judge = room.group(b"\xee" * 16)
    newest = max(told, key=lambda s: s.v)
    latest = world.do(judge.get_recent(newest))
    told.append(latest)
    one_history(told)
    for state in [*told]:
        with contextlib.suppress(DamagedError):  # versions that only emptied backends had decided
            assert world.do(judge.state_at(latest, state.v)) == state
    return made


BATCHES = 8


@pytest.mark.parametrize("batch", first(1, range(BATCHES)))
@pytest.mark.long
def test_random_schedules_agree(batch: int) -> None:
    made = 0
    for seed in range(batch, RUNS, BATCHES):
        try:
            made += schedule(seed)
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise
    assert made > 0


def close(group: Group, base: State, acceptor_id: bytes, value: State) -> Task:
    """One DECIDED in one log."""
    instance = yield from group.enter(base)
    nobody, never = Round(0, bytes(16)), Round(-1, b"")
    yield from instance.acceptors[acceptor_id].append(Kind.DECIDED, nobody, value, never)


def test_nobody_closes_a_log_with_what_it_has_not_accepted() -> None:
    """DECIDED is a fence behind votes: before them it is not written, and if it were it would have no effect."""
    room = Room.made(8, "abc")
    base = room.ws.genesis
    made_up = successor(base, change(b"m" * 16), skip=base.hash, writer=b"1" * 16)
    room.world.do(close(room.group(b"1" * 16), base, room.ws.acceptor_of("a"), made_up))
    reader = room.group(b"3" * 16, 2)
    instance = room.world.do(reader.enter(base))
    room.world.do(paxos_module.look_around(reader.participant, instance, 5.0, everybody=True))
    assert instance.acceptors[room.ws.acceptor_of("a")].log.next_idx == 0
    assert instance.decided() is None


def test_a_change_that_others_have_built_upon_is_not_fenced_again() -> None:
    """Two of the old backends are gone for good, without which no fence could be put up; the new ones agree."""
    room = Room.made(31, "abc", "d")
    told: list[State] = []
    group = room.group(b"1" * 16)
    make = lambda config: room.step(config, add="d", remove="c")  # noqa: E731
    last = room.world.do(changing(room, group, room.ws.genesis, make, told))
    room.world.run()
    changed = told[0]
    assert last.v == changed.v + 1
    other = room.group(b"2" * 16, 1)
    assert room.world.do(other.get_recent(room.ws.genesis)) == last
    room.world.down |= {"b", "c"}
    decided = room.world.do(other.propose(changed, lambda: change(b"y" * 16), op_id=b"y" * 16))
    assert decided == Decided(last, mine=False)


def test_a_fence_has_its_logs_vote_in_one_round() -> None:
    """b was away when x was decided, and has promised a higher round since: with c gone, a and b tell of x."""
    room = Room.made(11, "abc")
    group, base = room.group(b"1" * 16), room.ws.genesis
    room.world.down.add("b")
    decided = room.world.do(group.propose(base, lambda: change(b"x" * 16))).state
    room.world.run()
    room.world.down.discard("b")
    rival = room.group(b"2" * 16, 1)
    at = room.world.do(rival.enter(base))
    rnd = Round(7, b"2" * 16)
    room.world.do(at.acceptors[room.ws.acceptor_of("b")].append(Kind.PREPARE, rnd, None, rnd))
    room.world.down.add("c")
    room.world.do(group.fence(base, decided))
    sleeper = room.group(b"3" * 16, 2)
    instance = room.world.do(sleeper.enter(base))
    room.world.do(paxos_module.look_around(sleeper.participant, instance, 5.0, everybody=True))
    assert instance.decided() == decided
    assert [a.log.closed for a in instance.acceptors.values() if a.name != "c"] == [decided, decided]


def test_a_fence_above_the_last_round_is_none() -> None:
    """The number of a round above it would fit no entry."""
    room = Room.made(11, "abc")
    group, base = room.group(b"1" * 16), room.ws.genesis
    room.world.down = {"b"}
    decided = room.world.do(group.propose(base, lambda: change(b"x" * 16))).state
    room.world.run()
    at = room.world.do(room.group(b"2" * 16, 1).enter(base))
    room.world.down = {"c"}
    rnd = Round(7, b"2" * 16)
    room.world.do(at.acceptors[room.ws.acceptor_of("b")].append(Kind.PREPARE, rnd, None, rnd))
    group.participant.rounds_used[decided.v] = ROUND_MAX
    with pytest.raises(NoQuorumError, match="version 1"):
        room.world.do(group.fence(base, decided))


@pytest.mark.parametrize(
    ("names", "removed", "away"),
    [("abcd", "d", "cd"), ("abc", "c", "a")],
    ids=["too few for a quorum", "too few of those that stay"],
)
def test_a_fence_that_stands_on_too_few_is_none(names: str, removed: str, away: str) -> None:
    """Rule 4.1: on a quorum, and on so many of those that stay that every quorum meets one. The removed one may be
    emptied, and then forgets that it was closed."""
    room = Room.made(12, names)
    group, base = room.group(b"1" * 16), room.ws.genesis
    decided = room.world.do(group.propose(base, lambda: change(b"x" * 16))).state
    room.world.run()
    new = room.step(room.ws.config, remove=removed)
    instance = room.world.do(group.enter(base))
    room.world.down = {*away}
    with pytest.raises(NoQuorumError):
        room.world.do(reconfig_module.fence(group.participant, instance, decided, new, 5.0))
    assert decided.hash not in group.participant.fenced
    room.world.down = set()
    room.world.do(reconfig_module.fence(group.participant, instance, decided, new, 5.0))
    assert decided.hash in group.participant.fenced


def test_a_fence_on_one_acceptor_does_not_stop_the_others() -> None:
    """The reconfigurer died when one of three had its DECIDED; another of the three is down for good."""
    room, told = Room.made(9, "abc"), []
    group, base = room.group(b"1" * 16), room.ws.genesis
    decided = room.world.do(group.propose(base, lambda: change(b"x" * 16)))
    room.world.run()
    room.world.do(close(group, base, room.ws.acceptor_of("a"), decided.state))
    other = room.group(b"2" * 16, 1)
    room.world.down.add("b")
    later = room.world.do(pushing(other, base, b"y" * 16, told))
    assert told[0] == decided.state
    assert later.v == 2


def test_one_accepted_value_and_a_fence_elsewhere_are_enough() -> None:
    """x stands on b and c; a, which accepted nothing, is closed with it; b is down: a and c go on with x."""
    room, told = Room.made(10, "abc"), []
    group, base = room.group(b"1" * 16), room.ws.genesis
    room.world.fault_hook = lambda op: Reply(error=UnreachableError("lost")) if op.backend == "a" else None
    decided = room.world.do(group.propose(base, lambda: change(b"x" * 16)))
    room.world.run()
    room.world.fault_hook = lambda op: None
    room.world.do(close(room.group(b"4" * 16), base, room.ws.acceptor_of("a"), decided.state))
    room.world.down.add("b")
    other = room.group(b"2" * 16, 1)
    room.world.do(pushing(other, base, b"y" * 16, told))
    assert told[0] == decided.state
