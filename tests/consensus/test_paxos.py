"""Property tests of the agreement core: random schedules, faults, crashes; and mutants that must be caught.

METASYNC_PAXOS_RUNS sets how many schedules are run (default 320). A failure names its seed.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from effort import first
from paxos_world import (
    Faults,
    Process,
    Workspace,
    World,
    change,
    make_workspace,
    true_value,
    values_by_round,
    witnessed,
)

from metasync.config import Form
from metasync.consensus import JOURNAL_KEY, Decided, State, decode_journal
from metasync.consensus import instance as instance_module
from metasync.consensus import proposer as paxos_module
from metasync.consensus.acceptors import log as logform_module
from metasync.consensus.acceptors import view
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.records import log_replay as replay_module
from metasync.consensus.records.log_replay import NEVER
from metasync.consensus.records.state import decode_state
from metasync.errors import ForkError, MetaSyncError, NoQuorumError, UnreachableError
from metasync.runtime.effects import Op, Persist, Random, Reply, Sleep, Task

RUNS = int(os.environ.get("METASYNC_PAXOS_RUNS", "320"))


class History:
    """What clients were told, to be held against what is true in the end."""

    def __init__(self) -> None:
        self.decided: list[State] = []
        self.ours: dict[bytes, int] = {}
        self.started: set[bytes] = set()
        self.owned = 0
        self.helped = 0
        self.found_again = 0
        self.unknown = 0


def client(
    ws: Workspace, history: History, disk: dict[str, Any], who: int, incarnation: bytes, ops: int, slow_s: float
) -> Task:
    """Pushes `ops` operations, one after the other, over any number of crashes; the disk outlives the process."""

    def value(op_id: bytes) -> Task:
        yield Sleep(slow_s * (yield Random(1))[0] / 255)
        return change(op_id, (yield Random(32)))

    group = ws.group(incarnation, who % len(ws.identities), memory=disk.get("memory", b""))
    known = decode_state(disk["known"]) if "known" in disk else ws.genesis
    while True:
        try:
            latest = yield from group.get_recent(known)
            assert latest.v >= known.v
            history.decided.append(latest)
            known = latest
            disk["known"], disk["memory"] = known.encode(), group.memory
            done = disk.setdefault("done", 0)
            if done >= ops:
                return known
            op_id = bytes([who + 1, done + 1]) * 8
            if JOURNAL_KEY.name in disk:
                journal = decode_journal(disk[JOURNAL_KEY.name])
                fate = yield from group.find_op(known, journal)
                if fate and journal.op_id == op_id:
                    history.ours[op_id] = journal.v
                    history.found_again += 1
                    disk["done"] = done + 1
                    yield Persist(JOURNAL_KEY.name, None)
                    continue
            history.started.add(op_id)
            owner = group.owns(known)
            outcome: Decided = yield from group.propose(known, lambda op_id=op_id: value(op_id))
            history.decided.append(outcome.state)
            history.owned += owner and outcome.mine
            history.helped += not outcome.mine and outcome.state.writer != incarnation
            known = outcome.state
            disk["known"], disk["memory"] = known.encode(), group.memory
            if outcome.state.op_id == op_id:
                history.ours[op_id] = outcome.state.v
                disk["done"] = done + 1
                yield Persist(JOURNAL_KEY.name, None)
        except NoQuorumError:
            history.unknown += 1
            yield Sleep(1.0)


@contextlib.contextmanager
def patience(rtts: float | None) -> Iterator[None]:
    """Makes proposers impatient, so that they preempt each other."""
    before = paxos_module.PATIENCE_RTTS
    paxos_module.PATIENCE_RTTS = before if rtts is None else rtts
    try:
        yield
    finally:
        paxos_module.PATIENCE_RTTS = before


def schedule(seed: int, forms: Sequence[Form] | None = None) -> dict[str, int]:
    """One random schedule from beginning to end; raises AssertionError or ForkError when agreement breaks.

    Every other one is rough: nobody is polite to a rival, making a value takes long, and much is lost. `forms`: of the
    acceptors, by default all in log form. With blocks, every client is a device of its own.
    """
    rng = random.Random(seed)
    rough = seed % 2 == 1
    n = len(forms) if forms else 3 if rough else rng.choice((3, 3, 3, 4, 5))
    world = World(seed, [f"b{i}" for i in range(n)])
    ws = make_workspace(world, 5 if forms else 3, forms=dict(zip(world.stores, forms or (), strict=False)))
    with witnessed(world):
        return run_schedule(world, ws, rng, rough)


def run_schedule(world: World, ws: Workspace, rng: random.Random, rough: bool) -> dict[str, int]:
    n = len(world.stores)
    world.faults = Faults(
        lost_request=rng.choice((0, 0, 0.05, 0.2)),
        lost_reply=rng.choice((0, 0, 0.05, 0.2)),
        late=rng.choice((0, 0, 0.02, 0.1)),
        late_s=rng.choice((1.0, 5.0, 40.0)),
    )
    if rough:
        world.faults = Faults(rng.choice((0, 0.2, 0.4)), rng.choice((0, 0.2)), rng.choice((0.05, 0.3)), late_s=3.0)
    history = History()
    clients, ops = rng.choice((2, 3, 4)), rng.choice((1, 2, 3))
    disks: list[dict[str, Any]] = [{} for _ in range(clients)]
    processes: list[Process | None] = [None] * clients
    crashes = 0

    def boot(who: int) -> None:
        incarnation = rng.randbytes(16)
        task = client(ws, history, disks[who], who, incarnation, ops, 0.5 if rough else 0.0)
        processes[who] = world.start(f"client {who}", task, disks[who])

    def crash(who: int) -> None:
        process = processes[who]
        if process is not None and not process.done:
            nonlocal crashes
            crashes += 1
            world.kill(process)
            processes[who] = None
            world.at(rng.choice((0.0, 0.1, 3.0)), lambda: boot(who))

    for who in range(clients):
        world.at(rng.random() * 0.3, lambda who=who: boot(who))
    for _ in range(rng.choice((5, 20, 40)) if rough else rng.choice((0, 1, 3, 6))):
        world.at(rng.random() * 4, lambda: crash(rng.randrange(clients)))
    minority = rng.sample(sorted(world.stores), (n - 1) // 2)
    wiped = rng.random() < 0.3

    def wipe(name: str) -> None:
        if world.in_flight[name]:  # between a birth read and the create beside it lies the known residual window
            world.at(0.003, lambda: wipe(name))
        else:
            world.wipe(name)

    if wiped:
        world.at(rng.random() * 3, lambda: wipe(minority[0]))
    else:
        for name in minority:
            if rng.random() < 0.5:
                world.at(rng.random() * 3, lambda name=name: world.down.add(name))
                world.at(3 + rng.random() * 10, lambda name=name: world.down.discard(name))
    world.at(20.0, lambda: setattr(world, "faults", Faults()))
    with patience(0.3 if rough else None):
        world.run(lambda: all(p is not None and p.done for p in processes), limit_s=2000)
    for who, process in enumerate(processes):
        assert process is not None
        if process.error is not None:
            raise process.error
        assert process.done, f"client {who} never got through"
    judge = ws.group(b"\xee" * 16, len(ws.identities) - 1)
    disk: dict[str, bytes] = {}
    world.do(judge.get_recent(ws.genesis), disk)
    check(world, ws, history, clients * ops, known_to_last=ws.genesis, judge=judge, disk=disk)
    return {
        "crashes": crashes,
        "owned": history.owned,
        "helped": history.helped,
        "found_again": history.found_again,
        "unknown": history.unknown,
        "wiped": wiped,
    }


def check(
    world: World,
    ws: Workspace,
    history: History,
    ops: int,
    *,
    known_to_last: State,
    judge: Any,
    logs: bool = True,
    disk: dict[str, bytes] | None = None,
) -> None:
    """`logs`: the stores' own logs are the truth too (of stores that lie they are not)."""
    latest = world.do(judge.get_recent(known_to_last), disk)
    assert not logs or true_value(world, ws, latest) is None
    chain = [ws.genesis]
    for v in range(1, latest.v + 1):
        chain.append(world.do(judge.state_at(latest, v)))
    for before, after in pairwise(chain):
        assert after.prev == before.hash
        assert after.skip == chain[after.v & (after.v - 1)].hash
        assert not logs or true_value(world, ws, before) in (after, None)
    for state in history.decided:
        assert state.v < len(chain), f"version {state.v} was lost"
        assert chain[state.v] == state, f"version {state.v} was told to be something else"
    by_op: dict[bytes, list[int]] = {}
    for state in chain[1:]:
        by_op.setdefault(state.op_id, []).append(state.v)
    assert all(len(vs) == 1 for vs in by_op.values()), "an operation was committed twice"
    assert set(by_op) == history.started
    assert {op: vs[0] for op, vs in by_op.items()} == history.ours
    assert len(by_op) == ops


BATCHES = 16


@pytest.mark.parametrize("batch", first(1, range(BATCHES)))
def test_random_schedules_agree(batch: int) -> None:
    totals: dict[str, int] = {}
    for seed in range(batch, RUNS, BATCHES):
        try:
            for key, count in schedule(seed).items():
                totals[key] = totals.get(key, 0) + count
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise
    if RUNS >= 320:
        # The faults must have happened, or nothing was tested.
        assert totals["crashes"]
        assert totals["owned"]
        assert totals["helped"]
        assert totals["wiped"]


def broken(run: Callable[[int], Any], seeds: Iterator[int] | range) -> int | None:
    """The first seed at which a mutant is caught, or None."""
    for seed in seeds:
        try:
            run(seed)
        except (AssertionError, ForkError, MetaSyncError):
            return seed
    return None


MUTANT_SEEDS = range(5001, 5800, 2)


def test_mutant_accept_ignores_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        replay_module, "accept_effective", lambda promised, votes, rnd, value, base: votes.get(rnd, value) == value
    )
    monkeypatch.setattr(LogAcceptor, "_known_outcome", _outcome_without_promises)
    assert broken(schedule, MUTANT_SEEDS) is not None


def _outcome_without_promises(self: LogAcceptor, log: Any, kind: Any, rnd: Any, value: Any, stale: Any) -> Any:
    if kind is logform_module.Kind.ACCEPT:
        return logform_module.Outcome("done") if rnd in log.votes else None
    return KNOWN_OUTCOME(self, log, kind, rnd, value, stale)


KNOWN_OUTCOME = LogAcceptor._known_outcome


@pytest.mark.long
def test_mutant_round_0_is_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at the base's writer, two processes have different values accepted in one round."""
    monkeypatch.setattr(
        replay_module,
        "accept_effective",
        lambda promised, votes, rnd, value, base: rnd >= promised and votes.get(rnd, value) == value,
    )
    monkeypatch.setattr(paxos_module, "owns", lambda m, i: i.v not in m.rounds_used and i.top_round() == NEVER)
    monkeypatch.setattr(paxos_module, "Round", lambda n, who: replay_module.Round(n, b"0" * 16 if n == 0 else who))
    assert broken(schedule, MUTANT_SEEDS[70:]) is not None


def test_mutant_round_0_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gave up and proposes something else in the round it has used."""
    monkeypatch.setattr(paxos_module, "owns", lambda m, i: i.base.writer == m.incarnation)
    assert broken(give_up_and_change_ones_mind, range(400)) is not None


def test_a_process_that_gives_up_uses_round_0_no_more() -> None:
    for seed in range(120):
        give_up_and_change_ones_mind(seed)


def give_up_and_change_ones_mind(seed: int) -> None:
    """The owner's ACCEPT lands on some acceptors, late or never; it gives up, and proposes another change."""
    rng = random.Random(seed)
    world = World(seed, ["a", "b", "c"])
    ws = make_workspace(world, devices=2)
    group, other = ws.group(b"1" * 16), ws.group(b"2" * 16, 1)
    first = world.do(group.propose(ws.genesis, lambda: change(b"1" * 16))).state
    world.faults = Faults(rng.choice((0.3, 0.6)), rng.choice((0.3, 0.6)), 0.2, late_s=rng.choice((0.5, 3.0)))
    told: list[State] = [first]
    for number in (2, 3):
        with contextlib.suppress(NoQuorumError):
            told.append(world.do(group.propose(first, lambda n=number: change(bytes([n]) * 16), deadline_s=0.3)).state)
    world.faults = Faults()
    told.append(world.do(other.propose(first, lambda: change(b"9" * 16))).state)
    told.append(world.do(group.propose(first, lambda: change(b"4" * 16))).state)
    world.run()
    assert len({s.hash for s in told if s.v == 2}) == 1
    assert true_value(world, ws, first) in told
    assert max(len(values) for values in values_by_round(world, ws, first).values()) == 1, "two values in one round"


def test_mutant_own_value_in_spite_of_an_accepted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module.Instance, "evidence", lambda self: None)
    assert broken(schedule, MUTANT_SEEDS) is not None


def test_mutant_quorum_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    init = instance_module.Instance.__init__

    def smaller(self: Any, *args: Any) -> None:
        init(self, *args)
        self.quorum = max(1, self.quorum - 1)

    monkeypatch.setattr(instance_module.Instance, "__init__", smaller)
    assert broken(schedule, MUTANT_SEEDS) is not None


@pytest.mark.parametrize("reused", [False, True])
def test_mutant_incarnation_reused(reused: bool) -> None:
    """The ACCEPTs of a first life land after a second life proposed. With a fresh incarnation that is harmless; with
    the same one there are two values in one round, which is noticed and never followed."""
    world = World(1, ["a", "b", "c"])
    ws = make_workspace(world)
    held: list[Op] = []

    def hold(op: Op) -> Reply | None:
        if op.kind != "create" or len(op.data) < 1500:  # a PREPARE has 1024 bytes, an ACCEPT 1536
            return None
        held.append(op)
        return Reply(error=UnreachableError("lost"))

    world.fault_hook = hold
    first = world.start("first life", ws.group(b"1" * 16).propose(ws.genesis, lambda: change(b"1" * 16)))
    world.run(lambda: len(held) >= 3)
    world.kill(first)
    late = {op.backend: op for op in held}
    world.fault_hook = lambda op: hold(op) if op.backend == "c" else None
    second = ws.group(b"1" * 16 if reused else b"2" * 16, 0)
    decided = world.do(second.propose(ws.genesis, lambda: change(b"2" * 16)))
    assert decided.mine
    world.fault_hook = lambda op: None
    for op in late.values():
        world.stores[op.backend].do(op)
    world.stuck.add("a")
    third = ws.group(b"3" * 16, 1).propose(ws.genesis, lambda: change(b"3" * 16))
    if reused:
        with pytest.raises(ForkError, match="two values"):
            world.do(third)
    else:
        assert world.do(third).state == decided.state


@pytest.mark.long
def test_mutant_births_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "birth_matches", lambda data, place, digest: True)

    def blind(self: LogAcceptor) -> Task:
        self.born = True
        return True
        yield

    monkeypatch.setattr(LogAcceptor, "read_birth", blind)
    caught = broken(schedule, range(5171, 5971, 2))  # about one schedule in a hundred has such a wipe
    assert caught is not None
