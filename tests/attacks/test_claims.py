"""What a device says that it saw on the backends (consensus.md, rule 8.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from forger_kit import Forger
from paxos_world import World, change, make_workspace
from test_votes import Place
from workspace_kit import Lab

from metasync.consensus import Group, State
from metasync.consensus.acceptors.view import LAG_S
from metasync.consensus.records.entry import Claim, Head, Kind, head_path, seal_head
from metasync.keys.derive import sha256
from metasync.runtime.effects import Sleep
from metasync.session import agreement, health

SIZES = pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
OUT_OF_NOTHING = 5  # an index to which no log here comes


def made_up(p: Place) -> bytes:
    """No entry at all."""
    return bytes(1024)


def its_own(p: Place) -> bytes:
    """An entry of that place that the claimer signed itself, and did not put there."""
    return p.forger.sealed(p.x, "b", OUT_OF_NOTHING, b"\1" * 32, Kind.PREPARE, p.forger.round(3))


def a_strangers(p: Place) -> bytes:
    """An entry of that place by a device that the admin key never admitted."""
    stranger = Forger(p.world, replace(p.ws, identities=make_workspace(World(9, p.names)).identities), 0)
    return stranger.sealed(p.x, "b", OUT_OF_NOTHING, b"\1" * 32, Kind.PREPARE, stranger.round(3))


def of_another_place(p: Place) -> bytes:
    """An entry that an honest device put there, at another index."""
    return p.world.stores["b"][p.forger.place(p.x, "b", 0)]


def of_another_version(p: Place) -> bytes:
    """An entry of the version before, which is there."""
    return p.world.stores["b"][p.forger.place(p.ws.genesis, "b", 0)]


def on_another_state(p: Place) -> bytes:
    """An entry of that place that an honest device was led to sign, on a state that this history does not have."""
    honest = Forger(p.world, p.ws, 0)
    return honest.sealed(honest.lie(p.ws.genesis), "b", OUT_OF_NOTHING, b"\1" * 32, Kind.PREPARE, honest.round(3))


@pytest.mark.few(4)
@SIZES
@pytest.mark.parametrize(
    "proof", [made_up, its_own, a_strangers, of_another_place, of_another_version, on_another_state]
)
def test_a_false_claim_of_what_a_backend_showed_condemns_none(n: int, f: int, proof: Callable[[Place], bytes]) -> None:
    """A device claims in an entry that another one stood on a backend, which never stood there. Nobody is asked for it,
    and the entry is as good as any other."""
    p = Place(n, f)
    Forger(p.world, p.ws, 0).tell(p.x, p.names, Kind.PREPARE, p.forger.round(1))
    claim = Claim(p.ws.acceptor_of("b"), 2, OUT_OF_NOTHING, proof(p))
    p.forger.tell(p.x, ["a", *p.names[2:]], Kind.PREPARE, p.forger.round(2), None, claim)
    reader = p.group(2, 1)
    path = p.forger.place(p.x, "b", OUT_OF_NOTHING)
    y = p.push(reader, p.x, b"y")
    assert reader.evidence == ()
    assert not [op for op in p.world.requests["b"] if op.kind == "get" and op.path == path]
    p.all_agree([p.x, y])


def looks(group: Group, known: State) -> Any:
    """A look ends with a quorum, whether the others had their turn by then or not: several, so that all are asked."""
    for _ in range(12):
        known = yield from group.get_recent(known)
        yield Sleep(LAG_S + 1)
    return known


@pytest.mark.few(1)
@SIZES
def test_a_rollback_that_another_device_carries_the_proof_of_is_found(n: int, f: int) -> None:
    """b was put back to before the newest version was begun. Who reads it for the first time remembers nothing, and
    finds what one device wrote there, and b has lost, in what a second device wrote elsewhere."""
    p = Place(n, f)
    assert p.world.do(p.group(4, 0).prepare(p.x))
    p.world.run()
    assert p.forger.place(p.x, "b", 0) in p.world.stores["b"]
    y = p.push(p.group(2, 1), p.x, b"y")
    p.all_agree([p.x, y])
    for idx in range(9):
        p.world.stores["b"].pop(p.forger.place(p.x, "b", idx), None)
    reader = p.group(3, 2)
    assert p.world.do(looks(reader, p.ws.genesis)) == p.world.do(p.honest.get_recent(p.x), p.disk)
    assert [name for name, _ in reader.evidence] == ["b"]
    assert "which device" in reader.evidence[0][1]


@pytest.mark.parametrize("far", [(1 << 20) + 2, 1 << 62])
def test_a_head_of_a_version_out_of_all_reach_accuses_nobody(far: int) -> None:
    """One device signs a head of a version that nobody can have agreed: no backend hides that one."""
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    group = ws.group(b"1" * 16)
    state = world.do(group.propose(ws.genesis, lambda: change(b"1" * 16))).state
    world.run()
    liar = ws.identities[2]
    made_up = Head(liar.device_id, far, sha256(b"lie"), bytes(32), bytes(32), b"")
    data = seal_head(ws.keys, made_up, liar, era=0, epoch=state.epoch, random=bytes(32))
    for store in world.stores.values():
        store[head_path(liar.device_id)] = data
    assert world.do(group.check_heads(state, list(world.stores))) == ((), ())


def test_heads_of_other_histories_are_told_as_what_a_device_says(lab: Lab) -> None:
    """It may be the device that is wrong: no backend is blamed, and people are told what to compare."""
    urls = lab.urls("a", kind="memory")
    victim = lab.init(urls)
    other = lab.clone(urls, device="mallory")
    with other._session("status") as s:
        liar = s.device.device_id
    with victim._session("status") as s:
        newest = agreement.ask_newest(s)
        ahead, apart = (Head(liar, newest.v + more, bytes(32), bytes(32), bytes(32)) for more in (1, 0))
        told = health.check_heads(s, newest, ((ahead,), (apart,)))
    says = "device mallory says that it has synchronised"
    wrong = "either that device is wrong, or backends"
    assert told == (
        f"{says} version {newest.v + 1}, and no quorum of backends shows it: {wrong} hide it; "
        "compare the fingerprint there",
        f"{says} another version {newest.v} than the one here: {wrong} show different histories; "
        "compare the fingerprint there",
    )
