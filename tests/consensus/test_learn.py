"""The learner: what a look finds out, at what price, and with whom it waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from learn_kit import NAMES, accept_on, entries_of, forget_requests, group_of, most_requests, push, push_while, stored
from paxos_world import Faults, Workspace, World, change, make_workspace

from metasync.codec import u64
from metasync.config import decode_config
from metasync.consensus import Change, Group, Journal, learner
from metasync.consensus.instance import Instance
from metasync.consensus.records.entry import Kind, Round, entry_path
from metasync.consensus.records.state import ZERO_ID, skip_version
from metasync.errors import NoQuorumError
from metasync.keys.device_set import decode_device_set
from metasync.runtime.effects import Task


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


@pytest.mark.parametrize(("late_s", "heard"), [(1.2, {"a", "b", "c"}), (1.7, {"a", "b"})])
def test_a_look_waits_a_little_for_who_is_late(world: World, ws: Workspace, late_s: float, heard: set[str]) -> None:
    first = push(world, ws, group_of(ws, 1), ws.genesis)
    group = group_of(ws, 2, 1)
    world.takes_s = {"a": 1.0, "b": 1.0, "c": late_s}
    began = world.now
    assert world.do(group.get_recent(first)) == first
    assert group.heard == heard
    assert world.now - began < 1.6
