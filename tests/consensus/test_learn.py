"""The learner, bootstrap, meta objects and heads: what is found out, at what price, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from paxos_world import Faults, Workspace, World, change, make_workspace, ruled

from metasync.codec import u64
from metasync.config import decode_config
from metasync.consensus import (
    NOTHING,
    Change,
    Group,
    Journal,
    Ref,
    State,
    birth_path,
    encode_birth,
    learner,
    proposer,
)
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.founding import bootstrap
from metasync.consensus.instance import Instance
from metasync.consensus.objects import meta_path
from metasync.consensus.reconfigure import give_state
from metasync.consensus.records import log_replay
from metasync.consensus.records.birth import genesis_path
from metasync.consensus.records.entry import Entry, Kind, Round, entry_path, hint_path, open_entry
from metasync.consensus.records.state import ZERO_ID, skip_version, successor
from metasync.errors import DamagedError, ExcludedError, ForkError, NoQuorumError, UpgradeError, WorkspaceError
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, decode_device_set, new_device
from metasync.runtime.effects import Task

NAMES = ["a", "b", "c"]


@pytest.fixture
def world() -> World:
    return World(11, NAMES)


def push(world: World, ws: Workspace, group: Group, base: State, times: int = 1) -> State:
    for _ in range(times):
        op_id = u64(base.v + 1) * 2
        decided = world.do(group.propose(base, lambda op_id=op_id: change(op_id)))
        assert decided.mine
        world.do(group.write_hint(base, decided.state))
        base = decided.state
    world.run()  # lets stragglers land
    return base


def stored(world: World, group: Group, base: State, data: bytes, generation: int) -> Ref:
    """Stores one meta object; its name."""
    return world.do(group.put_index(base, [], lambda _: data, generation=generation))[0][-1]  # type: ignore[no-any-return]


def forget_requests(world: World) -> None:
    for requests in world.requests.values():
        requests.clear()


def most_requests(world: World) -> int:
    return max(len(requests) for requests in world.requests.values())


def group_of(ws: Workspace, number: int, device: int = 0, **more: Any) -> Group:
    return ws.group(bytes([number]) * 16, device, **more)


def test_nothing_new_costs_one_round_trip_and_two_requests(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third, once a day, looks for a floor."""
    group = group_of(ws, 1)
    state = push(world, ws, group, ws.genesis)
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)
    looker = group_of(ws, 2, 1)
    for requests in (3, 2, 2):
        forget_requests(world)
        before = world.now
        assert world.do(looker.get_recent(state)) == state
        assert world.now - before <= 0.051
        assert {n: len(r) for n, r in world.requests.items()} == dict.fromkeys(NAMES, requests)


@pytest.mark.parametrize("writer", [1, 3], ids=["owner", "another"])
def test_one_version_more_costs_two_round_trips(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch, writer: int
) -> None:
    """What it holds, and that nothing follows, are read side by side."""
    known = push(world, ws, group_of(ws, 1), ws.genesis)
    newest = push(world, ws, group_of(ws, writer), known)
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)
    before = world.now
    assert world.do(group_of(ws, 2, 1).get_recent(known)) == newest
    assert world.now - before <= 0.101


def test_who_was_heard_on_the_way_to_the_newest_version_need_not_be_asked_again(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend whose second answer the look does not wait for has shown its birth with the first; one that was
    emptied has shown that it was."""
    known = push(world, ws, group_of(ws, 1), ws.genesis)
    push(world, ws, group_of(ws, 1), known)
    now = {"a": ""}
    really = world._op

    def at(run: Any, op: Any) -> None:
        now["a"] = op.backend
        really(run, op)

    monkeypatch.setattr(world, "_op", at)
    monkeypatch.setattr(world, "_delay", lambda: 0.08 if now["a"] == "c" else 0.05)
    looker = group_of(ws, 2, 1)
    world.do(looker.get_recent(known))
    assert looker.heard == {*NAMES}
    world.stores["a"].clear()
    world.do(looker.get_recent(known))
    assert looker.heard == {"b", "c"}


def test_that_nothing_follows_is_not_believed_where_the_backends_changed(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a change of the config stands on other acceptors; of one of the keys, under other names."""
    known = push(world, ws, group_of(ws, 1), ws.genesis)
    push(world, ws, group_of(ws, 1), known)
    seen: list[bool] = []
    really = Instance.is_last

    def is_last(instance: Instance) -> bool:
        decided = instance.decided()
        assert decided is not None
        for other in (replace(decided, config=bytes(32)), replace(decided, epoch=decided.epoch + 1)):
            with monkeypatch.context() as m:
                m.setattr(Instance, "decided", lambda *_, other=other: other)
                seen.append(really(instance))
        seen.append(really(instance))
        return seen[-1]

    monkeypatch.setattr(Instance, "is_last", is_last)
    world.do(group_of(ws, 2, 1).get_recent(known))
    assert seen == [False, False, True]


def test_a_push_stays_within_its_requests(world: World, ws: Workspace) -> None:
    world.faults = Faults(latency_s=0.0)
    group = group_of(ws, 1)
    known = push(world, ws, group, ws.genesis)
    for _ in range(20):
        forget_requests(world)
        known = world.do(group.get_recent(known))
        ref = stored(world, group, known, b"index", 0)
        op_id = u64(known.v + 1) * 2
        decided = world.do(group.propose(known, lambda op_id=op_id, ref=ref: Change(op_id, index=ref)))
        world.do(group.write_head(decided.state, head=bytes(32), prev=bytes(32), backends=NAMES))
        # probe and birth, meta, PREPARE and birth, ACCEPT and birth, head; now and then a state for `skip`
        assert most_requests(world) <= 9
        known = decided.state


@pytest.mark.parametrize("behind", [1, 2, 3, 7, 16, 40])
@pytest.mark.parametrize("devices", [2, 3])
def test_a_sleeper_jumps_to_the_newest(world: World, devices: int, behind: int) -> None:
    """It takes one other device's word if there are no more, and else that of two: here a head is the second."""
    ws = make_workspace(world, devices)
    known = push(world, ws, group_of(ws, 1), ws.genesis, 3)
    latest = push(world, ws, group_of(ws, 1), known, behind) if behind else known
    if devices == 3:
        world.do(group_of(ws, 9, 2).write_head(latest, head=bytes(32), prev=bytes(32), backends=NAMES))
    forget_requests(world)
    before = world.now
    sleeper = group_of(ws, 2, 1)
    assert world.do(sleeper.get_recent(known)) == latest
    heads = devices - 2
    assert most_requests(world) <= 64 + 8 * heads
    assert world.now - before < 0.06 * (40 + 10 * heads)
    assert world.do(sleeper.get_recent(ws.genesis)) == latest


@pytest.mark.few(1)
@pytest.mark.parametrize(("behind", "vouched"), [(16, 0), (40, 0), (40, 30), (100, 0)])
def test_what_one_of_several_devices_agreed_alone_is_read_version_by_version(
    world: World, ws: Workspace, behind: int, vouched: int
) -> None:
    """From the newest version on for which a second one vouches: two entries on each backend of a quorum."""
    known = push(world, ws, group_of(ws, 1), ws.genesis, 3)
    between = push(world, ws, group_of(ws, 1), known, vouched)
    world.do(group_of(ws, 9, 2).write_head(between, head=bytes(32), prev=bytes(32), backends=NAMES))
    latest = push(world, ws, group_of(ws, 1), between, behind - vouched)
    forget_requests(world)
    before = world.now
    assert world.do(group_of(ws, 2, 1).get_recent(known)) == latest
    assert sum(map(len, world.requests.values())) <= 192 + 6 * (behind - vouched)
    assert world.now - before < 0.06 * 100, "side by side"


def test_skips_lead_back_in_few_steps(world: World, ws: Workspace) -> None:
    latest = push(world, ws, group_of(ws, 1), ws.genesis, 33)
    reader = group_of(ws, 2, 1)
    forget_requests(world)
    fifth = world.do(reader.state_at(latest, 5))
    assert fifth.v == 5
    assert sum(len(r) for r in world.requests.values()) <= 16
    assert world.do(reader.state_at(latest, 33)) == latest
    assert world.do(reader.state_at(latest, 0)) == ws.genesis
    assert latest.skip == world.do(reader.state_at(latest, skip_version(33))).hash


@pytest.mark.parametrize("how", ["down", "stuck"])
def test_a_minority_that_is_away_is_not_waited_for(world: World, ws: Workspace, how: str) -> None:
    getattr(world, how).add("b")
    before = world.now
    state = push_while(world, group_of(ws, 1), ws.genesis)
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)) == state
    assert world.now - before < 3


def push_while(world: World, group: Group, base: State) -> State:
    op_id = u64(base.v + 1) * 2
    decided = world.do(group.propose(base, lambda: change(op_id)))
    assert decided.mine
    return decided.state


def test_no_quorum_is_said_with_reasons_and_in_time(world: World, ws: Workspace) -> None:
    world.down |= {"a", "c"}
    group = group_of(ws, 1)
    before = world.now
    with pytest.raises(NoQuorumError, match=r"no quorum of 2 of 3 backends \(a: .*no answer.*c: ") as caught:
        world.do(group.get_recent(ws.genesis, deadline_s=5.0))
    assert "committed" not in caught.value.message
    assert 4 < world.now - before < 12
    with pytest.raises(NoQuorumError):
        world.do(group.propose(ws.genesis, lambda: change(b"x" * 16), deadline_s=5.0))
    assert group.standings["a"].kind == "down"


def test_an_unknown_outcome_is_said_and_found_out(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    disk: dict[str, bytes] = {}

    def cut(op: Any) -> None:
        if op.kind == "create" and len(op.data) > 1100 and op.backend == "a":
            world.down |= {"b", "c"}  # one ACCEPT lands, then the rest is gone

    world.fault_hook = cut
    process = world.start("p", group.propose(ws.genesis, lambda: change(b"x" * 16), deadline_s=8.0), disk)
    world.run(lambda: process.done)
    assert isinstance(process.error, NoQuorumError)
    assert "may be committed" in process.error.message
    world.down.clear()
    world.fault_hook = lambda op: None
    from metasync.consensus import JOURNAL_KEY, decode_journal

    journal = decode_journal(disk[JOURNAL_KEY.name])
    assert journal == Journal(b"x" * 16, ws.genesis)
    after = group_of(ws, 9)
    latest = world.do(after.get_recent(ws.genesis))
    fate = world.do(after.find_op(latest, journal))
    if fate is None:
        decided = world.do(after.propose(latest, lambda: change(b"x" * 16), op_id=b"x" * 16))
        assert (decided.state.v, decided.mine) == (1, True)
    else:
        assert fate is True
        assert latest.v == 1


def test_find_op_tells_mine_from_others(world: World, ws: Workspace) -> None:
    latest = push(world, ws, group_of(ws, 1), ws.genesis, 6)
    reader = group_of(ws, 2, 1)
    third = world.do(reader.state_at(latest, 2))
    assert world.do(reader.find_op(latest, Journal(u64(3) * 2, third))) is True
    assert world.do(reader.find_op(latest, Journal(b"q" * 16, third))) is False
    assert world.do(reader.find_op(latest, Journal(b"q" * 16, latest))) is None


def test_a_lonely_prepare_is_no_news(world: World, ws: Workspace) -> None:
    dying = world.start("p", group_of(ws, 1).propose(ws.genesis, lambda: change(b"x" * 16)))
    world.run(lambda: sum(op.kind == "create" for ops in world.requests.values() for op in ops) > 9)
    world.kill(dying)
    world.run()
    group = group_of(ws, 2, 1)
    latest = world.do(group.get_recent(ws.genesis))
    decided = world.do(group.propose(latest, lambda: change(b"y" * 16)))
    assert decided.state.v == latest.v + 1


def accept_on(world: World, ws: Workspace, base: State, names: list[str], op_id: bytes, number: int) -> State:
    """Puts PREPARE and ACCEPT of one round on these backends only, as a proposer that died would have."""
    member = group_of(ws, number).participant
    value = successor(base, change(op_id), skip=base.hash, writer=member.incarnation)
    for name in names:
        a = ws.unread(member, base, name)
        for kind, carried in ((Kind.PREPARE, None), (Kind.ACCEPT, value)):
            rnd = Round(1, member.incarnation)
            entry, data = a.sealed(a.log, kind, rnd, carried, world.rng.randbytes(48))
            world.stores[name][a.place(entry.idx)] = data
            a.log.append_own(entry, data)
    return value


def test_an_undetermined_value_is_helped(world: World, ws: Workspace) -> None:
    value = accept_on(world, ws, ws.genesis, ["a"], b"x" * 16, 9)
    world.down.add("b")
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)) == value
    world.down.clear()
    world.down.add("a")
    assert world.do(group_of(ws, 3, 1).get_recent(ws.genesis)) == value


def test_where_nobody_has_voted_yet_nothing_further_is_looked_for(world: World, ws: Workspace) -> None:
    """A proposer has asked for promises. A quorum shows no vote, so that nothing was decided, nor anything after it."""
    proposer = group_of(ws, 9).participant
    for name in NAMES:
        a = ws.unread(proposer, ws.genesis, name)
        rnd = Round(1, proposer.incarnation)
        entry, data = a.sealed(a.log, Kind.PREPARE, rnd, None, world.rng.randbytes(48))
        world.stores[name][a.place(entry.idx)] = data
    forget_requests(world)
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)) == ws.genesis
    asked = {op.path for ops in world.requests.values() for op in ops}
    later = {entry_path(ws.keys, 1, 0, ws.acceptor_of(n), v, 0) for n in NAMES for v in range(3, 10)}
    assert asked & later == set()


def test_a_proposer_completes_what_may_be_decided(world: World, ws: Workspace) -> None:
    value = accept_on(world, ws, ws.genesis, ["a", "b"], b"x" * 16, 9)
    called = []
    decided = world.do(group_of(ws, 2, 1).propose(ws.genesis, lambda: called.append(1) or change(b"y" * 16)))
    assert (decided.state, decided.mine, called) == (value, False, [])


# Amnesia.


def test_an_emptied_or_replaced_backend_is_down_and_named(world: World, ws: Workspace) -> None:
    world.stores["b"].clear()
    group = group_of(ws, 1)
    state = push_while(world, group, ws.genesis)
    assert world.do(group.get_recent(state)) == state
    births = world.do(group.read_births(state))
    assert (births["b"].kind, "emptied" in births["b"].reason) == ("replaced", True)
    assert births["a"].kind == "ok"
    acceptor = ws.acceptor_of("b")
    world.stores["b"][birth_path(acceptor)] = encode_birth(acceptor, b"n" * 32)
    assert "replaced" in world.do(group.read_births(state))["b"].reason
    world.stores["c"].clear()
    with pytest.raises(NoQuorumError, match=r"b: its birth object is another.*c: its birth object is missing"):
        world.do(group.get_recent(state))
    with pytest.raises(NoQuorumError, match="its birth object is missing"):
        world.do(group.propose(state, lambda: change(b"z" * 16)))


def test_votes_of_an_emptied_backend_do_not_count(world: World, ws: Workspace) -> None:
    accept_on(world, ws, ws.genesis, ["a", "b"], b"x" * 16, 9)
    del world.stores["b"][birth_path(ws.acceptor_of("b"))]
    world.down.add("c")
    with pytest.raises(NoQuorumError):
        world.do(group_of(ws, 2, 1).get_recent(ws.genesis, deadline_s=4.0))


@pytest.mark.parametrize("slowest_s", [0.6, 0.8, 1.0])
def test_who_only_reads_waits_for_slow_backends_before_it_takes_a_hand(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch, slowest_s: float
) -> None:
    """A quorum accepted, and one of it is the slowest to show it. To propose would hold up whoever is at work."""
    accept_on(world, ws, ws.genesis, ["a", "c"], b"x" * 16, 9)
    delays, backend, real = {"a": 0.45, "b": 0.45, "c": slowest_s}, "", world._op

    def op_of(run: Any, op: Any) -> None:
        nonlocal backend
        backend = op.backend
        real(run, op)

    monkeypatch.setattr(world, "_op", op_of)
    monkeypatch.setattr(world, "_delay", lambda: delays[backend])
    forget_requests(world)
    before = world.now
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)).op_id == b"x" * 16
    assert not [op for ops in world.requests.values() for op in ops if op.kind != "get"]
    assert world.now - before < 4 * slowest_s + 0.5  # two steps of the slowest, and a look for what comes after


def test_who_only_reads_looks_once_more_before_it_takes_a_hand(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend that has the other vote is back just after all were asked."""
    value = accept_on(world, ws, ws.genesis, ["a", "b"], b"x" * 16, 9)
    world.down.add("b")
    really = learner.look_around

    def look(*args: Any, **how: Any) -> Task:
        yield from really(*args, **how)
        if how.get("everybody"):
            world.down.clear()

    monkeypatch.setattr(learner, "look_around", look)
    forget_requests(world)
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)) == value
    assert {op.kind for ops in world.requests.values() for op in ops} == {"get"}


def test_a_rollback_of_one_is_noticed_and_of_a_majority_refused(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    known = push(world, ws, group, ws.genesis, 3)
    old = {name: copy.copy(store) for name, store in world.stores.items()}
    known = push(world, ws, group, known, 3)
    memory = group.memory
    world.stores["a"] = copy.copy(old["a"])
    later = group_of(ws, 2, memory=memory)
    for _ in range(20):  # a minority that is slower than the rest is not waited for, and audited when it answers
        assert world.do(later.get_recent(known)) == known
        if later.standings["a"].kind == "rolled back":
            break
    assert later.standings["a"].kind == "rolled back"
    assert push_while(world, later, known).v == known.v + 1
    world.stores.update({name: copy.copy(store) for name, store in old.items()})
    again = group_of(ws, 3, memory=memory)
    with pytest.raises(ForkError, match="older past"):
        world.do(again.get_recent(known))


def test_a_contradicting_history_is_a_fork(world: World, ws: Workspace) -> None:
    root = {name: copy.copy(store) for name, store in world.stores.items()}
    known = push(world, ws, group_of(ws, 1), ws.genesis, 2)
    world.stores.update(root)
    other = group_of(ws, 2, 1)
    base = ws.genesis
    for v in range(1, 4):  # another history, from the same beginning
        base = world.do(other.propose(base, lambda v=v: change(u64(v + 100) * 2))).state
    world.run()
    with pytest.raises(ForkError, match="stands on another state"):
        world.do(group_of(ws, 3).get_recent(known))
    with pytest.raises(ForkError, match="stands on another state"):
        world.do(group_of(ws, 4).propose(known, lambda: change(b"z" * 16)))


def test_a_jump_must_descend_from_what_is_known(world: World, ws: Workspace) -> None:
    root = {name: copy.copy(store) for name, store in world.stores.items()}
    known = push(world, ws, group_of(ws, 1), ws.genesis, 4)
    mine = {name: copy.copy(store) for name, store in world.stores.items()}
    world.stores.update(root)
    other = group_of(ws, 2, 1)
    base = ws.genesis
    for v in range(1, 9):
        base = world.do(other.propose(base, lambda v=v: change(u64(v + 100) * 2))).state
    world.run()
    for name, store in world.stores.items():  # version 5 is hidden, so that the fork shows in a jump
        for idx in range(2):
            store.pop(entry_path(ws.keys, 1, 0, ws.acceptor_of(name), 5, idx), None)
        store.update({p: d for p, d in mine[name].items() if p not in store})
    accept_on(world, ws, known, NAMES[1:2], b"x" * 16, 7)  # not decided: no single step to take
    world.down.add("a")  # or two silent logs are a quorum that says that nothing is new
    with pytest.raises(ForkError, match="does not descend"):
        world.do(group_of(ws, 3).get_recent(known))


def test_a_newer_state_asks_for_an_upgrade(world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the admin key says so, in the policy."""
    group = group_of(ws, 1)
    digest = world.do(group.put_const(ws.genesis, ruled(ws, ws.genesis, min_fmt=2).encode()))
    with pytest.raises(UpgradeError):  # this program does not understand itself what it proposes
        world.do(group.propose(ws.genesis, lambda: Change(b"x" * 16, devices=digest, min_fmt=2)))
    with monkeypatch.context() as newer:
        newer.setattr(log_replay, "FORMAT", 2)
        world.do(group.propose(ws.genesis, lambda: Change(b"x" * 16, devices=digest, min_fmt=2)))
    world.run()
    with pytest.raises(UpgradeError):
        world.do(group_of(ws, 2, 1).get_recent(ws.genesis))
    with pytest.raises(UpgradeError):
        world.do(group_of(ws, 3, 1).propose(ws.genesis, lambda: change(b"y" * 16)))


@pytest.mark.parametrize("fmt", [2, 9, 31])
def test_a_damaged_answer_is_not_told_as_newer(world: World, ws: Workspace, fmt: int) -> None:
    """One backend was wiped, of another a byte is wrong, which would be a newer format's: there is no quorum."""
    world.stores["a"].clear()
    path = entry_path(ws.keys, 1, 0, ws.acceptor_of("b"), 1, 0)
    world.stores["b"][path] = bytes([fmt]) + bytes(511)
    for work in (
        group_of(ws, 1).get_recent(ws.genesis, deadline_s=5),
        group_of(ws, 2, 1).propose(ws.genesis, lambda: change(b"y" * 16), deadline_s=5),
    ):
        with pytest.raises(NoQuorumError):
            world.do(work)


def test_one_hostile_newer_entry_stops_nobody(world: World, ws: Workspace) -> None:
    path = entry_path(ws.keys, 1, 0, ws.acceptor_of("a"), 1, 0)
    world.stores["a"][path] = bytes([9]) + bytes(511)
    group = group_of(ws, 1)
    state = push_while(world, group, ws.genesis)
    assert world.do(group.get_recent(ws.genesis)) == state
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)) == state


# Devices.


def new_member(ws: Workspace, world: World, number: int, **more: Any) -> tuple[Group, Any]:
    device = new_device("newcomer", world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    certificate = device.certified(ws.admin, ws.keys.ns_id)
    member = Group(
        ws.keys,
        device,
        ws.config,
        ws.genesis.config,
        ws.devices,
        ws.genesis.devices,
        incarnation=bytes([number]) * 16,
        links=ws.links,
        certificate=certificate.encode(),
        **more,
    )
    return member, certificate


def test_a_certified_newcomer_writes_and_joins_the_device_set(world: World, ws: Workspace) -> None:
    newcomer, certificate = new_member(ws, world, 5)
    bigger = ws.devices.with_device(certificate)
    digest = world.do(newcomer.put_const(ws.genesis, bigger.encode()))
    decided = world.do(newcomer.propose(ws.genesis, lambda: Change(b"j" * 16, devices=digest)))
    assert decided.mine
    world.run()
    other = group_of(ws, 6, 1)
    state = world.do(other.get_recent(ws.genesis))
    assert state == decided.state
    after = push_while(world, other, state)
    assert other.participant.device_sets[digest].get(certificate.device_id) == certificate
    assert push_while(world, newcomer, after).v == 3


def test_a_stranger_is_void_and_a_revoked_device_too(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, _ = new_member(ws, world, 5)
    stranger.participant.certificate = b""
    with pytest.raises(ExcludedError):
        world.do(stranger.propose(ws.genesis, lambda: change(b"s" * 16)))
    monkeypatch.setattr(proposer, "check_admitted", lambda *_: None)  # a program that does not stop itself
    with pytest.raises(NoQuorumError):
        # Its own view counts its own entries; everybody else's does not.
        world.do(outvoted(world, ws, stranger))
    member = group_of(ws, 6, 1)
    state = push_while(world, member, ws.genesis)
    assert world.do(group_of(ws, 7, 2).get_recent(ws.genesis)) == state
    assert any(a.log.void for a in member._instance.acceptors.values())


def outvoted(world: World, ws: Workspace, group: Group) -> Any:
    yield from group.propose(ws.genesis, lambda: change(b"s" * 16))
    raise NoQuorumError("it believes itself; the others do not")


def test_revoked_devices_neither_vote_nor_poison(world: World, ws: Workspace) -> None:
    gone = ws.identities[2].device_id
    smaller = ruled(ws, ws.genesis, revoked_ids=(gone,))
    group = group_of(ws, 1)
    digest = world.do(group.put_const(ws.genesis, smaller.encode()))
    state = world.do(group.propose(ws.genesis, lambda: Change(b"r" * 16, devices=digest))).state
    revoked = group_of(ws, 3, 2)
    revoked.participant.device_sets[digest] = ws.devices  # it pretends not to know
    world.do(revoked.propose(state, lambda: change(b"e" * 16)))
    after = push_while(world, group_of(ws, 4, 1), state)
    assert after.op_id != b"e" * 16
    assert world.do(group_of(ws, 5).get_recent(ws.genesis)) == after
    with pytest.raises(ValueError, match="not valid"):
        smaller.with_device(next(c for c in ws.devices.certificates if c.device_id == gone))


# Bootstrap.


def test_a_clone_starts_from_a_hint_and_gets_to_the_newest(world: World, ws: Workspace) -> None:
    latest = push(world, ws, group_of(ws, 1), ws.genesis, 19)
    found = world.do(bootstrap(ws.keys, NAMES))
    assert found.state.v == 16
    assert found.links == ws.links
    assert found.config == ws.config
    assert (found.devices, found.problems) == (ws.devices, {})
    clone, _ = new_member(ws, world, 8)
    assert world.do(clone.get_recent(found.state)) == latest


def test_a_clone_reads_without_a_quorum(world: World, ws: Workspace) -> None:
    latest = push(world, ws, group_of(ws, 1), ws.genesis, 5)
    world.down |= {"a", "b"}
    found = world.do(bootstrap(ws.keys, NAMES))
    assert sorted(found.problems) == ["a", "b"]
    clone, _ = new_member(ws, world, 8)
    seen = world.do(clone.newest_seen(found.state, deadline_s=20))
    assert seen.v in (latest.v - 1, latest.v)


@pytest.mark.parametrize("behind", [1, 2, 3, 40])
def test_a_look_without_a_quorum_sees_the_last_version_too(world: World, ws: Workspace, behind: int) -> None:
    state = push(world, ws, group_of(ws, 1), ws.genesis, 1)
    newest = push(world, ws, group_of(ws, 1), state, behind)
    assert world.do(group_of(ws, 2).newest_seen(state)) == newest


def test_bad_hints_are_ignored(world: World, ws: Workspace) -> None:
    push(world, ws, group_of(ws, 1), ws.genesis, 17)
    hints = {name: hint_path(ws.acceptor_of(name)) for name in NAMES}
    world.stores["a"][hints["a"]] = b"rubbish"
    world.stores["b"][hints["b"]] = world.stores["c"][hints["c"]]  # another acceptor's
    assert world.do(bootstrap(ws.keys, NAMES)).state.v == 16
    world.stores["c"][hints["c"]] = world.stores["c"][hints["c"]][:-1] + b"\0"
    assert world.do(bootstrap(ws.keys, NAMES)).state == ws.genesis


def test_a_clone_refuses_nothing_foreign_and_contradictions(world: World, ws: Workspace) -> None:
    world.down |= set(NAMES)
    with pytest.raises(NoQuorumError):
        world.do(bootstrap(ws.keys, NAMES))
    world.down.clear()
    other_world = World(99, ["b"])
    make_workspace(other_world)
    world.stores["b"] = other_world.stores["b"]
    found = world.do(bootstrap(ws.keys, NAMES))
    assert (sorted(found.links.values()), list(found.problems)) == (["a", "c"], ["b"])
    for name in ("a", "c"):
        del world.stores[name][genesis_path(ws.acceptor_of(name))]
    with pytest.raises(DamagedError):
        world.do(bootstrap(ws.keys, NAMES))


def test_two_beginnings_are_a_fork(world: World, ws: Workspace) -> None:
    from metasync.consensus.records.birth import seal_genesis

    acceptor = ws.acceptor_of("b")
    twin = replace(ws.genesis, devices=b"x" * 32)
    sealed = seal_genesis(ws.keys, twin, ws.devices.chain, ws.admin, acceptor, bytes(32))
    world.stores["b"][genesis_path(acceptor)] = sealed
    with pytest.raises(ForkError, match="different beginnings"):
        world.do(bootstrap(ws.keys, NAMES))


# Meta objects and heads.


def test_meta_objects_are_put_and_got(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    ref = stored(world, group, ws.genesis, b"index" * 1000, 7)
    assert ref.generation == 7
    world.run()
    assert all(meta_path(ws.acceptor_of(n), ref) in world.stores[n] for n in NAMES)
    assert world.do(group.get_meta(ref)) == b"index" * 1000
    assert world.do(group.get_meta(NOTHING)) == b""
    for name in ("a", "b"):
        world.stores[name][meta_path(ws.acceptor_of(name), ref)] = b"altered"
    assert world.do(group_of(ws, 2, 1).get_meta(ref)) == b"index" * 1000
    del world.stores["c"][meta_path(ws.acceptor_of("c"), ref)]
    with pytest.raises(DamagedError, match="altered"):
        world.do(group.get_meta(ref))
    world.down.add("c")
    with pytest.raises(NoQuorumError):
        world.do(group.get_meta(Ref(7, b"z" * 32)))


def test_meta_objects_wait_for_enough_and_not_for_the_stuck(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    world.stuck.add("a")
    before = world.now
    ref = stored(world, group, ws.genesis, b"x", 0)
    assert world.now - before < 2
    before = world.now
    assert world.do(group.get_meta(ref)) == b"x"
    assert world.now - before < 4
    world.down |= {"b", "c"}
    with pytest.raises(NoQuorumError, match=r"1 of 2|0 of 2"):
        stored(world, group, ws.genesis, b"y", 0)


def test_states_get_objects_of_their_own(world: World, ws: Workspace) -> None:
    latest = push(world, ws, group_of(ws, 1), ws.genesis, 4)
    group = group_of(ws, 1)
    second = world.do(group.state_at(latest, 2))
    config = group.participant.configs[ws.genesis.config]
    world.do(give_state(group.participant, group.participant.links, config, [], second))
    for name in NAMES:
        for v in (3, 4):
            world.stores[name].pop(entry_path(ws.keys, 1, 0, ws.acceptor_of(name), v, 0), None)
    third = world.do(group.state_at(latest, 3))
    assert world.do(group_of(ws, 2, 1).state_at(third, 2)) == second


def test_heads_are_written_everywhere_and_the_newest_is_read(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    state = push_while(world, group, ws.genesis)
    assert world.do(group.write_head(ws.genesis, head=b"1" * 32, prev=b"0" * 32, backends=NAMES)) >= 2
    world.run()
    world.down.add("a")
    assert world.do(group.write_head(state, head=b"2" * 32, prev=b"1" * 32, backends=NAMES)) >= 2
    world.down.clear()
    mine = ws.identities[0].device_id
    reader = group_of(ws, 2, 1)
    head = world.do(reader.read_head(state, mine, NAMES))
    assert (head.v, head.head, head.prev, head.state_hash) == (1, b"2" * 32, b"1" * 32, state.hash)
    assert world.do(reader.read_head(state, ws.identities[1].device_id, NAMES)) is None
    other = f"devices/{ws.identities[1].device_id.hex()}"
    world.stores["a"][other] = world.stores["b"][f"devices/{mine.hex()}"]
    assert world.do(reader.read_head(state, ws.identities[1].device_id, NAMES)) is None


def test_configs_of_other_ways_are_refused(ws: Workspace) -> None:
    four = [replace(b, backend_id=bytes([i]) * 16, name=str(i)) for i, b in enumerate([*ws.config.backends] * 2)]
    four = [
        replace(b, acceptor=replace(b.acceptor, acceptor_id=bytes([i + 9]) * 16))
        for i, b in enumerate(four[:4])
        if b.acceptor
    ]
    bft = replace(ws.config.with_backends(four), mode="bft", f=1)
    assert decode_config(bft.encode()) == bft
    assert Group(
        ws.keys, ws.identities[0], bft, bytes(32), ws.devices, bytes(32), incarnation=b"1" * 16, links=ws.links
    ).newest_config.meta_copies == 3, "of four, so that any three show an honest one"  # fmt: skip
    with pytest.raises(ValueError, match="incarnation"):
        ws.group(ZERO_ID)
    assert decode_device_set(ws.devices.encode(), ws.keys.ns_id) == ws.devices


def test_entries_say_what_their_writer_saw_elsewhere(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)
    """One carries an entry of the acceptor after its own, which another device wrote: so all are spoken of, once."""
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)
    one, two = group_of(ws, 1), group_of(ws, 2, 1)
    assert world.do(one.prepare(ws.genesis))
    world.run()
    push(world, ws, two, ws.genesis, 1)
    logs = [log for name in NAMES if len(log := entries_of(world, ws, name, 1)) > 1]
    assert len(logs) >= 2, "a quorum"
    spoken = []
    for _, prepare, *rest in logs:
        claim = prepare.claim
        assert claim is not None
        spoken.append(claim.acceptor_id)
        name = ws.links[claim.acceptor_id]
        assert (claim.v, claim.idx) == (1, 0)
        assert claim.data == world.stores[name][entry_path(ws.keys, 1, 0, claim.acceptor_id, 1, 0)]
        assert claim.acceptor_id != prepare.acceptor_id
        assert not any(e.claim for e in rest), "said once"
    assert len(set(spoken)) == len(spoken)


def entries_of(world: World, ws: Workspace, name: str, v: int) -> list[Entry]:
    """What stands in the log of a version."""
    found: list[Entry] = []
    acceptor, store = ws.acceptor_of(name), world.stores[name]
    while (path := entry_path(ws.keys, 1, 0, acceptor, v, len(found))) in store:
        place = {"ns_id": ws.keys.ns_id, "era": 0, "epoch": 1, "acceptor_id": acceptor, "v": v, "idx": len(found)}
        found.append(open_entry(ws.keys, store[path], **place).entry)
    return found


# The owner round.


def creates(world: World) -> dict[str, int]:
    return {name: sum(op.kind == "create" and "/px/" in op.path for op in ops) for name, ops in world.requests.items()}


@pytest.mark.parametrize("away", [(), ("a",), ("b",), ("c",)])
def test_who_decided_the_last_version_decides_the_next_with_one_append(
    world: World, ws: Workspace, away: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(ws, 1)
    known = push(world, ws, group, ws.genesis, 3)
    assert group.owns(known)
    world.stuck.update(away)  # they hang: nobody waits for them
    forget_requests(world)
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)
    before = world.now
    decided = world.do(group.propose(known, lambda: change(b"x" * 16)))
    assert decided.mine
    assert decided.state.v == 4
    assert world.now - before <= 0.101, "one round trip: there and back"
    assert creates(world) == dict.fromkeys(NAMES, 1)
    assert world.do(group_of(ws, 2, 1).get_recent(known)) == decided.state


def test_a_new_process_owns_nothing(world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)
    known = push(world, ws, group_of(ws, 1), ws.genesis, 2)
    again = group_of(ws, 3)  # the same device, started again
    assert not again.owns(known)
    forget_requests(world)
    assert world.do(again.propose(known, lambda: change(b"x" * 16))).mine
    world.run()
    assert creates(world) == dict.fromkeys(NAMES, 2), "PREPARE and ACCEPT"


def test_an_owner_who_was_overtaken_learns_it(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    known = push(world, ws, group, ws.genesis, 2)
    theirs = push(world, ws, group_of(ws, 2, 1), known)
    assert group.owns(known), "it has not heard yet"
    decided = world.do(group.propose(known, lambda: change(b"x" * 16)))
    assert (decided.mine, decided.state) == (False, theirs)
    assert not group.owns(theirs)
    assert not group.owns(known), "its round is used up"
    assert world.do(group.propose(theirs, lambda: change(b"y" * 16))).mine


@pytest.mark.parametrize("accepted", [[], ["a"], ["a", "b"]])
def test_an_owner_yields_to_a_round_that_a_quorum_promised(world: World, ws: Workspace, accepted: list[str]) -> None:
    """Its ACCEPT has no effect there; it goes through both phases, and takes over what the rival may have decided."""
    group = group_of(ws, 1)
    known = push(world, ws, group, ws.genesis, 2)
    rival = group_of(ws, 9, 1).participant
    value = successor(known, change(b"r" * 16), skip=known.hash, writer=rival.incarnation)
    for name in ("a", "b"):
        a = ws.unread(rival, known, name)
        for kind in (Kind.PREPARE, Kind.ACCEPT) if name in accepted else (Kind.PREPARE,):
            carried = value if kind is Kind.ACCEPT else None
            entry, data = a.sealed(a.log, kind, Round(1, rival.incarnation), carried, world.rng.randbytes(48))
            world.stores[name][a.place(entry.idx)] = data
            a.log.append_own(entry, data)
    assert group.owns(known)
    decided = world.do(group.propose(known, lambda: change(b"x" * 16)))
    if len(accepted) != 1:  # what one of three accepted may be found, or not
        assert decided.mine == (not accepted)
    assert decided.state.op_id == (b"x" if decided.mine else b"r") * 16
    assert world.do(group_of(ws, 4, 1).get_recent(known)) == decided.state


def test_a_vote_of_an_emptied_store_does_not_count_when_the_store_is_restored(world: World, ws: Workspace) -> None:
    """The owner's ACCEPT lands in two emptied roots; then both come back as they were before it."""
    owner = group_of(ws, 1)
    first = world.do(owner.propose(ws.genesis, lambda: change(b"1" * 16))).state
    world.run()
    saved = {n: copy.deepcopy(world.stores[n]) for n in ("b", "c")}
    for n in saved:
        world.stores[n].clear()
    with pytest.raises(NoQuorumError, match="may be committed"):
        world.do(owner.propose(first, lambda: change(b"2" * 16), deadline_s=3.0))
    world.run()
    assert all(world.stores[n] for n in saved), "its entries landed in the emptied roots"
    world.stores.update(saved)
    world.down = {"a"}
    other = world.do(group_of(ws, 2, 1).propose(first, lambda: change(b"3" * 16))).state
    world.down = set()
    assert world.do(owner.get_recent(first)) == other


def test_phase_one_may_run_ahead_of_the_value(world: World, ws: Workspace) -> None:
    """What is left is one append: its create and the birth beside it, on each acceptor of the quorum that promised."""
    first = push(world, ws, group_of(ws, 1), ws.genesis)
    group = group_of(ws, 2, 1)
    assert world.do(group.prepare(first))
    forget_requests(world)
    decided = world.do(group.propose(first, lambda: change(b"2" * 16)))
    assert decided.mine
    assert sorted(len(requests) for requests in world.requests.values())[:2] == [2, 2]
    assert world.do(group.prepare(decided.state)), "an owner has nothing to do ahead"
    world.run()
    forget_requests(world)
    assert world.do(group.propose(decided.state, lambda: change(b"3" * 16))).mine
    assert most_requests(world) == 2


@pytest.mark.parametrize(("late_s", "heard"), [(1.2, {"a", "b", "c"}), (1.7, {"a", "b"})])
def test_a_look_waits_a_little_for_who_is_late(world: World, ws: Workspace, late_s: float, heard: set[str]) -> None:
    first = push(world, ws, group_of(ws, 1), ws.genesis)
    group = group_of(ws, 2, 1)
    world.takes_s = {"a": 1.0, "b": 1.0, "c": late_s}
    began = world.now
    assert world.do(group.get_recent(first)) == first
    assert group.heard == heard
    assert world.now - began < 1.6


def test_phase_one_ahead_waits_for_the_rest_only_while_there_is_time(world: World, ws: Workspace) -> None:
    took = {}
    base = ws.genesis
    for n, hurry in enumerate((False, True)):
        base = push(world, ws, group_of(ws, 1), base)
        group = group_of(ws, 2, n)
        assert world.do(group.get_recent(base)) == base
        world.stuck = {"c"}
        began = world.now
        assert world.do(group.prepare(base, hurry=lambda hurry=hurry: hurry))
        took[hurry] = world.now - began
        world.stuck = set()
    assert took[True] < took[False] * 0.75


def test_a_round_prepared_ahead_is_given_up_for_a_higher_one(world: World, ws: Workspace) -> None:
    """Whoever prepared and took its time finds what others decided meanwhile."""
    slow, quick = group_of(ws, 1), group_of(ws, 2, 1)
    assert world.do(slow.prepare(ws.genesis))
    theirs = world.do(quick.propose(ws.genesis, lambda: change(b"q" * 16)))
    assert theirs.mine
    decided = world.do(slow.propose(ws.genesis, lambda: change(b"s" * 16)))
    assert (decided.mine, decided.state) == (False, theirs.state)
    again = world.do(slow.propose(decided.state, lambda: change(b"s" * 16)))
    assert again.mine


def test_a_round_prepared_ahead_completes_what_may_be_decided(world: World, ws: Workspace) -> None:
    """Evidence that the early PREPARE met is the value; one's own comes after it."""
    world.stuck = {"b", "c"}
    with pytest.raises(NoQuorumError):
        world.do(group_of(ws, 1).propose(ws.genesis, lambda: change(b"1" * 16), deadline_s=2.0))
    world.stuck = set()
    first = push(world, ws, group_of(ws, 3), ws.genesis)
    world.stuck = {"a"}
    owner = group_of(ws, 4)
    second = world.do(owner.propose(first, lambda: change(b"2" * 16))).state
    world.stuck = {"b", "c"}
    with pytest.raises(NoQuorumError, match="may be committed"):
        world.do(owner.propose(second, lambda: change(b"3" * 16), deadline_s=2.0))
    world.stuck = {"b"}  # so that the quorum holds the one that accepted
    late = group_of(ws, 5, 1)
    world.do(late.prepare(second))  # it meets a value, or a round that it lets finish
    decided = world.do(late.propose(second, lambda: change(b"5" * 16)))
    assert (decided.mine, decided.state.op_id) == (False, b"3" * 16)


def test_one_store_and_one_device_cannot_make_up_what_is_far_ahead(world: World, ws: Workspace) -> None:
    """A device that was revoked meanwhile was admitted in the states that a sleeper knows: its lone word is a hint."""
    group = group_of(ws, 1)
    known = push(world, ws, group, ws.genesis, 7)
    eighth = push(world, ws, group, known)
    state = push(world, ws, group, eighth, 2)
    thief = group_of(ws, 9, 2).participant
    made_up = replace(  # its `skip` leads straight back to what the sleeper will know
        state, v=12, prev=b"\7" * 32, skip=eighth.hash, writer=b"t" * 16, op_id=b"t" * 16, master=b"t" * 32
    )
    assert skip_version(12) == 8
    a = ws.unread(thief, made_up, "a")
    entry, data = a.sealed(a.log, Kind.PREPARE, Round(1, thief.incarnation), None, world.rng.randbytes(48))
    world.stores["a"][a.place(entry.idx)] = data
    world.stuck = {"c"}  # so that the store that lies is asked
    assert world.do(group_of(ws, 2, 1).get_recent(known)) == state


def test_an_acceptor_that_is_named_while_it_is_read_is_asked_no_more(world: World, ws: Workspace) -> None:
    """Another log told between two requests that this one was rolled back."""
    group = group_of(ws, 1)
    push(world, ws, group, ws.genesis)
    assert group._instance is not None
    a = group._instance.acceptors[ws.acceptor_of("a")]
    assert isinstance(a, LogAcceptor)
    assert world.do(a.read_beyond())
    forget_requests(world)
    a.memory.rolled_back = "entry 1 of version 1 is gone"
    assert not world.do(a.read_beyond())
    assert most_requests(world) == 0


# --- index segments and the root that names them


class Leaves:
    """Plaintexts; notes what lay on the backends when each was asked for."""

    def __init__(self, world: World, texts: list[bytes]) -> None:
        self.world = world
        self.texts = texts
        self.seen: list[list[int]] = []

    def here(self) -> list[int]:
        return [sum("/meta/" in path for path in store) for store in self.world.stores.values()]

    def __iter__(self) -> Iterator[Callable[[], bytes]]:
        return (partial(self.get, n) for n in range(len(self.texts)))

    def get(self, n: int) -> bytes:
        self.seen.append(self.here())
        return self.texts[n]


def put_leaves(ws: Workspace, leaves: Leaves) -> tuple[list[Ref], bytes]:
    made = b"".join
    group = ws.group(b"w" * 16)
    put = group.put_index(ws.genesis, leaves, lambda refs: made(ref.hash for ref in refs), generation=0)
    return leaves.world.do(put)  # type: ignore[no-any-return]


def test_small_segments_and_their_root_are_stored_side_by_side(world: World, ws: Workspace) -> None:
    leaves = Leaves(world, [b"a" * 5000, b"b" * 5000, b"c"])
    forget_requests(world)
    before = leaves.here()
    refs, root = put_leaves(ws, leaves)
    assert leaves.seen == [before] * 3, "all are made before anything is stored"
    assert root == b"".join(ref.hash for ref in refs[:-1])
    world.run()
    assert {name: len(requests) for name, requests in world.requests.items()} == dict.fromkeys(NAMES, 4)


def test_large_segments_are_stored_before_the_next_is_made(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.consensus.group.META_BYTES_TOGETHER", 8000)
    texts = [b"a" * 9000, b"b" * 5000, b"c" * 5000, b"d" * 100]
    leaves = Leaves(world, texts)
    before = leaves.here()
    refs, root = put_leaves(ws, leaves)
    copies = [sum(seen) - sum(before) for seen in leaves.seen]
    enough = ws.config.meta_copies
    assert copies[0] == 0
    assert copies[1] >= enough, "the first is large: it is stored before the second is made"
    assert copies[2] - copies[1] <= len(NAMES) - enough, (
        "the second is not, and goes with the third; the first may land"
    )
    assert copies[3] >= 3 * enough
    world.run()
    assert leaves.here() == [n + 5 for n in before]
    stored = [world.do(ws.group(b"r" * 16).get_meta(ref)) for ref in refs]
    assert stored == [*texts, root]


def test_what_cannot_be_stored_ends_it_before_a_root_is_made(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasync.consensus.group.META_BYTES_TOGETHER", 8000)
    leaves = Leaves(world, [b"a" * 9000, b"b" * 9000, b"c" * 9000])
    rooted: list[int] = []
    world.down.update(NAMES[1:])
    put = ws.group(b"w" * 16).put_index(ws.genesis, leaves, lambda refs: b"%d" % rooted.append(1), generation=0)
    with pytest.raises(NoQuorumError, match="a meta object"):
        world.do(put)
    assert (len(leaves.seen), rooted) == (1, [])


def test_a_segment_that_cannot_be_read_ends_it(world: World, ws: Workspace) -> None:
    def broken() -> bytes:
        raise WorkspaceError("gone", next_step="-")

    put = ws.group(b"w" * 16).put_index(ws.genesis, [broken], lambda refs: b"root", generation=0)
    with pytest.raises(WorkspaceError, match="gone"):
        world.do(put)
