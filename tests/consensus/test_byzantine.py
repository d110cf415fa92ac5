"""Stores that lie: they omit, cut off, reorder, replay, show different pasts, and say "created" and keep nothing.

With n >= 3f + 1 acceptors, f of them lying, all devices see one history. With fewer they may be led apart, and one that
comes together with the other's past says so and names the culprit.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from effort import first
from paxos_world import Faults, Process, Store, Workspace, World, change, make_workspace, ruled
from test_paxos import History, broken, check, client, patience

from metasync.config import byzantine_f, quorum
from metasync.consensus import Change, Group, State
from metasync.consensus import instance as instance_module
from metasync.consensus.participant import decode_memory
from metasync.errors import ForkError, MetaSyncError, NoQuorumError, NotFoundError, UnreachableError
from metasync.keys.derive import sign_public
from metasync.keys.keyring import rotated_keys
from metasync.runtime.effects import Op, Reply, Sleep

RUNS = int(os.environ.get("METASYNC_PAXOS_RUNS", "320")) // 2
LIES = ("omit", "cut", "deaf", "apart", "replay", "swap", "yes")


class Liar:
    """One lying store. To each who asks it shows another, self-chosen selection of what it was given."""

    def __init__(self, seed: int, lies: tuple[str, ...]) -> None:
        self.rng = random.Random(seed)
        self.lies = lies
        self.views: dict[str, Store] = {}
        self.moods: dict[str, str] = {}
        self.told = 0

    def __call__(self, who: str, op: Op, store: Store) -> Reply:
        if "/px/" not in op.path:
            return store.do(op)
        self.told += 1
        if self.rng.random() < 0.1 or who not in self.moods:
            self.moods[who] = self.rng.choice(self.lies)
        mood = self.moods[who]
        view = self.views.setdefault(who, Store())
        if op.kind == "create":
            if mood == "yes":  # taken, and forgotten
                return Reply(True)
            if mood in ("apart", "cut"):  # each has a log of its own
                if op.path in view:
                    return Reply(False)
                view[op.path] = op.data
                store.setdefault(op.path, op.data)
                return Reply(True)
            return store.do(op)
        gone = Reply(error=NotFoundError(f"{op.path} is not there"))
        if mood == "deaf":
            return gone
        if mood == "omit" and self.rng.random() < 0.5:
            return gone
        if mood in ("apart", "cut"):
            return Reply(view[op.path]) if op.path in view else gone if mood == "cut" else store.do(op)
        entries = [data for path, data in store.items() if "/px/" in path]
        if mood == "replay" and entries and self.rng.random() < 0.3:
            return Reply(self.rng.choice(entries))
        if mood == "swap" and len(entries) > 1 and self.rng.random() < 0.3:
            return Reply(entries[-1])
        return store.do(op)


def schedule(seed: int, *, n: int | None = None, f: int | None = None, lying: int | None = None) -> dict[str, int]:
    """A random schedule with liars; raises AssertionError or ForkError when devices see different histories."""
    rng = random.Random(seed)
    n = n if n is not None else rng.choice((4, 4, 5, 6, 7))
    f = f if f is not None else byzantine_f(n, at_cost=n % 2 == 1)
    lying = lying if lying is not None else f
    world = World(seed, [f"b{i}" for i in range(n)])
    ws = make_workspace(world, devices=3, f=f)
    world.faults = Faults(rng.choice((0, 0, 0.1)), rng.choice((0, 0, 0.1)), rng.choice((0, 0.05)), late_s=3.0)
    kinds = rng.sample(LIES, rng.randint(1, len(LIES)))
    for name in rng.sample(sorted(world.stores), lying):
        world.liars[name] = Liar(rng.randrange(1 << 30), tuple(kinds))
    history = History()
    clients, ops = rng.choice((2, 3)), rng.choice((1, 2, 3))
    disks: list[dict[str, Any]] = [{} for _ in range(clients)]
    processes: list[Process | None] = [None] * clients

    def boot(who: int) -> None:
        task = client(ws, history, disks[who], who, rng.randbytes(16), ops, 0.3)
        processes[who] = world.start(f"client {who}", task, disks[who])

    def crash(who: int) -> None:
        process = processes[who]
        if process is not None and not process.done:
            world.kill(process)
            processes[who] = None
            world.at(rng.choice((0.0, 0.1, 3.0)), lambda: boot(who))

    for who in range(clients):
        world.at(rng.random() * 0.3, lambda who=who: boot(who))
    for _ in range(rng.choice((0, 2, 6))):
        world.at(rng.random() * 4, lambda: crash(rng.randrange(clients)))
    honest = sorted(world.stores.keys() - world.liars.keys())
    if n - quorum(n, f) > lying:  # there is room for one more that is merely down
        away = rng.choice(honest)
        world.at(rng.random() * 3, lambda: world.down.add(away))
        world.at(6.0, lambda: world.down.discard(away))
    world.at(20.0, lambda: setattr(world, "faults", Faults()))
    with patience(0.3 if seed % 2 else None):
        world.run(lambda: all(p is not None and p.done for p in processes), limit_s=2000)
    for who, process in enumerate(processes):
        assert process is not None
        if process.error is not None:
            raise process.error
        assert process.done, f"client {who} never got through"
    judge = ws.group(b"\xee" * 16)
    world.do(judge.get_recent(ws.genesis))
    check(world, ws, history, clients * ops, known_to_last=ws.genesis, judge=judge, logs=False)
    return {
        "lies": sum(liar.told for liar in world.liars.values() if isinstance(liar, Liar)),
        "owned": history.owned,
        "helped": history.helped,
    }


BATCHES = 8


@pytest.mark.parametrize("batch", first(1, range(BATCHES)))
def test_all_see_one_history(batch: int) -> None:
    totals: dict[str, int] = {}
    for seed in range(batch, RUNS, BATCHES):
        try:
            for key, count in schedule(seed).items():
                totals[key] = totals.get(key, 0) + count
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise
    assert totals["lies"]
    assert totals["owned"]


def test_a_crash_quorum_is_too_small_for_a_liar() -> None:
    """Three acceptors, majorities of two, one liar: devices are led apart. It is the quorum that matters."""
    caught = broken(lambda seed: schedule(seed, n=3, f=0, lying=1), range(1000, 1400))
    assert caught is not None


def test_more_liars_than_allowed_for_are_too_many() -> None:
    caught = broken(lambda seed: schedule(seed, n=4, f=1, lying=2), range(2000, 2400))
    assert caught is not None


@pytest.mark.long
def test_mutant_quorum_for_crashes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At five acceptors a majority is no Byzantine quorum."""
    init = instance_module.Instance.__init__

    def small(self: Any, keys: Any, config: Any, devices: Any, base: Any) -> None:
        init(self, keys, config, devices, base)
        self.quorum = quorum(config.n, 0)

    monkeypatch.setattr(instance_module.Instance, "__init__", small)
    assert broken(lambda seed: schedule(seed, n=5, f=1), range(3020, 3820)) is not None


@pytest.mark.parametrize(("n", "free", "asked"), [
    (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 1, 1), (5, 0, 1), (6, 1, 1), (7, 0, 2), (8, 1, 2), (9, 0, 2), (10, 1, 3),
])  # fmt: skip
def test_how_many_may_lie(n: int, free: int, asked: int) -> None:
    assert (byzantine_f(n), byzantine_f(n, at_cost=True)) == (free, asked)
    for f in (free, asked):
        assert n >= 3 * f + 1 or f == 0
        assert quorum(n, f) <= n - f


# Who lies is named.

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def world() -> World:
    return World(5, NAMES)


@pytest.fixture
def ws(world: World) -> Workspace:
    return make_workspace(world, f=1)


def pushed(world: World, group: Group, base: State, op: bytes) -> State:
    decided = world.do(group.propose(base, lambda: change(op * 16)))
    assert decided.mine
    world.run()
    return decided.state


def group_of(ws: Workspace, number: int, device: int = 0, **more: Any) -> Group:
    return ws.group(bytes([number]) * 16, device, **more)


def standing(group: Group, name: str) -> str:
    return f"{group.standings[name].kind}: {group.standings[name].reason}"


def test_created_but_not_kept_is_found_out_by_the_next_process(world: World, ws: Workspace) -> None:
    world.liars["b"] = Liar(1, ("yes",))
    first = group_of(ws, 1)
    state = pushed(world, first, ws.genesis, b"1")
    again = group_of(ws, 2, memory=first.memory)
    assert world.do(again.get_recent(ws.genesis)) == state
    world.do(again.read_births(state))
    assert standing(again, "b").startswith("rolled back: entry")
    assert again.evidence == (("b", "entry 1 of version 1 is gone"),)
    assert all(kind.kind == "ok" for name, kind in again.standings.items() if name != "b")


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_an_answer_that_is_damaged_on_its_way_names_nobody(world: World, ws: Workspace, first: int) -> None:
    state = pushed(world, group_of(ws, 1), ws.genesis, b"1")
    memory = group_of(ws, 2, 1)
    assert world.do(memory.get_recent(ws.genesis)) == state
    state = pushed(world, group_of(ws, 3, 2), state, b"2")
    asked = [0]

    def proxy(who: str, op: Op, store: Store) -> Reply:
        if op.kind != "get" or "/px/" not in op.path or op.path not in store:
            return store.do(op)
        asked[0] += 1
        return Reply(b"<html>Sign in</html>") if asked[0] == first + 1 else store.do(op)

    world.liars["b"] = proxy
    again = group_of(ws, 4, 1, memory=memory.memory)
    assert world.do(again.get_recent(ws.genesis)) == state
    world.run()
    assert world.do(again.propose(state, lambda: change(b"3" * 16))).mine
    world.run()
    assert asked[0] > first
    assert again.evidence == ()


def test_a_store_that_shows_another_past_is_named_by_what_others_saw_there(world: World, ws: Workspace) -> None:
    """Nothing that this device remembers itself is missing: what another device read there, and carries, tells."""
    one, two = group_of(ws, 1), group_of(ws, 2, 1)
    first = pushed(world, one, ws.genesis, b"1")
    second = pushed(world, one, first, b"2")
    three = group_of(ws, 3, 2, memory=b"")
    assert world.do(three.get_recent(ws.genesis)) == second
    third = pushed(world, three, second, b"3")
    assert world.do(group_of(ws, 4, 2).get_recent(ws.genesis)) == third
    saved = Store(world.stores["c"])

    def old(who: str, op: Op, store: Store) -> Reply:  # to the second device it shows nothing at all
        gone = op.kind == "get" and "/px/" in op.path
        return Reply(error=NotFoundError("not there")) if gone and who == "two" else store.do(op)

    world.liars["c"] = old
    # A look ends with a quorum, whether the third had its turn by then or not: chance, in one of two.
    process = world.start("two", _looks(two, ws.genesis, 12))
    world.run(lambda: process.done)
    if process.error is not None:
        raise process.error
    assert process.result == third
    assert [name for name, _ in two.evidence] == ["c"], two.evidence
    assert "which device" in two.evidence[0][1]
    assert saved == world.stores["c"]


def test_what_was_seen_before_a_rotation_is_asked_for_under_the_keys_of_then(world: World, ws: Workspace) -> None:
    """Also by a later process: a sound store is not taken for a rolled back one."""
    ws.keys = rotated_keys(ws.keys, b"2" * 32)
    one, two, three = group_of(ws, 1), group_of(ws, 2, 1), group_of(ws, 3, 2)
    longer = ruled(ws, ws.genesis, chain=ws.devices.chain.extended(ws.admin, sign_public(ws.admin)))
    digest = world.do(one.put_const(ws.genesis, longer.encode()))
    rotation = Change(b"1" * 16, master=b"1" * 32, devices=digest, epoch=2)
    rotated = world.do(one.propose(ws.genesis, lambda: rotation)).state
    world.run()
    for name in "ab":  # a look ends with a quorum: with and without each, all are seen
        world.stuck = {name}
        assert world.do(three.get_recent(ws.genesis)) == rotated
    world.stuck = {"c"}
    newest = world.do(three.propose(rotated, lambda: change(b"2" * 16))).state
    world.stuck = set()

    def away(who: str, op: Op, store: Store) -> Reply:  # for the second device, until its process ends
        gone = who == "two" and op.kind == "get" and "/px/" in op.path
        return Reply(error=UnreachableError("no way there")) if gone else store.do(op)

    world.liars["c"] = away
    process = world.start("two", _looks(two, ws.genesis, 4))
    world.run(lambda: process.done)
    claims = [(ws.links[m.seen.acceptor_id], m.epoch) for m in decode_memory(two.memory) if m.seen.v == rotated.v]
    assert claims == [("c", ws.genesis.epoch)]
    del world.liars["c"]
    again = group_of(ws, 4, 1, memory=two.memory)
    world.do(again.read_births(newest))
    for _ in range(12):
        assert world.do(again.get_recent(newest)) == newest
        world.run()
    assert again.evidence == ()
    assert standing(again, "c") == "ok: "


def _looks(group: Group, known: State, times: int) -> Any:
    for _ in range(times):
        known = yield from group.get_recent(known)
        yield Sleep(6.0)
    return known


def test_two_liars_of_four_are_noticed_when_pasts_meet(world: World, ws: Workspace) -> None:
    """More lie than allowed for: two devices may be led apart. Neither takes the other's past for its own, and who
    meets it is told whose it is: no logs that it is shown bear it out, so that it may be one device's lie."""
    one, two = group_of(ws, 1), group_of(ws, 2, 1)
    base = pushed(world, one, ws.genesis, b"0")
    assert world.do(two.get_recent(ws.genesis)) == base
    views: dict[str, dict[str, Store]] = {n: {w: Store(world.stores[n]) for w in ("one", "two")} for n in ("a", "b")}

    def apart(who: str, op: Op, store: Store) -> Reply:
        return views[op.backend][who].do(op) if who in ("one", "two") else store.do(op)

    world.liars = {"a": apart, "b": apart}

    def run(name: str, task: Any) -> Any:
        process = world.start(name, task)
        world.run(lambda: process.done)
        if process.error is not None:
            raise process.error
        return process.result

    world.stuck = {"d"}  # out of sight for one, c for the other
    first = run("one", one.propose(base, lambda: change(b"1" * 16))).state
    world.stuck = {"c"}
    second = run("two", two.propose(base, lambda: change(b"2" * 16))).state
    world.stuck = set()
    assert first != second, "the liars led them apart"
    pasts = {"one": (one, first), "two": (two, second)}
    noticed = set()
    for turn in range(2):
        for who, (group, known) in pasts.items():
            try:
                state = run(who, group.propose(known, lambda turn=turn: change(bytes([turn + 1]) * 16), deadline_s=5.0))
                pasts[who] = (group, state.state)
            except (ForkError, NoQuorumError) as e:
                assert "another state" in e.message
                noticed.add(who)
            if any("it stands on another version 2" in why for why in group.take_void_values().values()):
                noticed.add(who)
    assert noticed, "both went on as if nothing had happened"


def test_a_new_device_is_not_taken_back_behind_a_hint(world: World, ws: Workspace) -> None:
    from metasync.consensus.founding import bootstrap

    group, state = group_of(ws, 1), ws.genesis
    for n in range(16):
        state = pushed(world, group, state, bytes([65 + n]))
    base = world.do(group.state_at(state, 15))
    assert world.do(group.write_hint(base, state, now=True))
    world.run()
    for name in ("a", "b", "c"):  # all but one hide everything
        for path in [p for p in world.stores[name] if "/px/" in p or p.endswith("/hint")]:
            del world.stores[name][path]
    start = world.do(bootstrap(ws.keys, NAMES))
    assert start.state == state
    newcomer = Group(
        ws.keys, ws.identities[1], start.config, start.state.config, start.devices, start.state.devices,
        incarnation=b"n" * 16, links=start.links,
    )  # fmt: skip
    try:
        newest = world.do(newcomer.get_recent(start.state))
    except MetaSyncError:
        return
    assert newest.v >= state.v
