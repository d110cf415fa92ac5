"""What a look refuses: stores that were emptied, replaced or rolled back, contradictions, damage and newer formats."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from learn_kit import NAMES, accept_on, forget_requests, group_of, most_requests, push, push_while
from paxos_world import Workspace, World, change, ruled

from metasync.codec import u64
from metasync.consensus import Change, birth_path, encode_birth
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.records import log_replay
from metasync.consensus.records.entry import Kind, Round, entry_path
from metasync.consensus.records.state import skip_version
from metasync.errors import ForkError, NoQuorumError, UpgradeError


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
