"""The owner round: who decided the last version decides the next with one append. Phase one may run ahead."""

from __future__ import annotations

import pytest
from learn_kit import NAMES, forget_requests, group_of, most_requests, push
from paxos_world import Workspace, World, change

from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.state import successor
from metasync.errors import NoQuorumError


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
