"""Devices that join or were revoked, and clones that start from hints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from learn_kit import NAMES, group_of, push, push_while
from paxos_world import Workspace, World, change, make_workspace, ruled

from metasync.consensus import Change, Group, proposer
from metasync.consensus.founding import bootstrap
from metasync.consensus.records.birth import genesis_path
from metasync.consensus.records.entry import hint_path
from metasync.errors import DamagedError, ExcludedError, ForkError, NoQuorumError
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device


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
