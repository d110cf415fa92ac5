"""Attacks on log entries, with a whole workspace around: whatever a backend shows, agreement goes on without it.

What each altered record is taken for is pinned case by case in `tests/vectors/agreement`; here is what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from agreement_kit import CAROL, Writer, X, drawn, entry, sealed
from learn_kit import NAMES, accept_on
from paxos_world import Workspace, World, change, make_workspace

from metasync.consensus import Group, Ref
from metasync.consensus.instance import Instance
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import (
    CLAIM_BYTES_MAX,
    ENTRY_BYTES_MAX,
    INDEX_TAG,
    REFS_MAX,
    Claim,
    Kind,
    Round,
    entry_path,
    refs_in,
    with_refs,
)
from metasync.consensus.records.state import successor
from metasync.errors import ForkError, NoQuorumError, UpgradeError
from metasync.keys.derive import sha256
from metasync.keys.device_set import CERTIFICATE_BYTES_MAX


def slot(ws: Workspace, name: str, v: int = 1, idx: int = 0) -> str:
    return entry_path(ws.keys, 1, 0, ws.acceptor_of(name), v, idx)


def honest(world: World, ws: Workspace, name: str, number: int = 9, device: int = 0, n: int = 1) -> bytes:
    """A PREPARE that a member could have written at index 0 of version 1."""
    a = ws.unread(ws.group(bytes([number]) * 16, device).participant, ws.genesis, name)
    return a.sealed(a.log, Kind.PREPARE, Round(n, a.m.incarnation), None, drawn(f"entropy {number}", 48))[1]


def flipped(world: World, ws: Workspace) -> bytes:
    good = honest(world, ws, "a")
    return good[:70] + bytes([good[70] ^ 1]) + good[71:]


def truncated(world: World, ws: Workspace) -> bytes:
    return honest(world, ws, "a")[:512]


def torn(world: World, ws: Workspace) -> bytes:
    return honest(world, ws, "a")[:100]


def of_another_backend(world: World, ws: Workspace) -> bytes:
    return honest(world, ws, "b")


def of_another_workspace(world: World, ws: Workspace) -> bytes:
    other = World(77, NAMES)
    return honest(other, make_workspace(other), "a")


def of_another_version(world: World, ws: Workspace) -> bytes:
    twin = World(11, NAMES)  # the same workspace, one version on
    again = make_workspace(twin)
    state = twin.do(again.group(b"1" * 16).propose(again.genesis, lambda: change(b"1" * 16))).state
    a = again.unread(again.group(b"2" * 16).participant, state, "a")
    return a.sealed(a.log, Kind.PREPARE, Round(1, b"2" * 16), None, drawn("entropy", 48))[1]


def of_another_index(world: World, ws: Workspace) -> bytes:
    a = ws.unread(ws.group(b"9" * 16).participant, ws.genesis, "a")
    for n in (1, 2):
        e, data = a.sealed(a.log, Kind.PREPARE, Round(n, a.m.incarnation), None, drawn(f"entropy {n}", 48))
        a.log.append_own(e, data)
    return data


def badly_signed(world: World, ws: Workspace) -> bytes:
    member = ws.group(b"9" * 16).participant
    member.identity = replace(member.identity, sign_private=drawn("another key"))
    a = ws.unread(member, ws.genesis, "a")
    return a.sealed(a.log, Kind.PREPARE, Round(1, member.incarnation), None, drawn("entropy", 48))[1]


def of_a_newer_program(world: World, ws: Workspace) -> bytes:
    return b"\2" + honest(world, ws, "a")[1:]


def enormous(world: World, ws: Workspace) -> bytes:
    return bytes(1 << 20)


def a_login_page(world: World, ws: Workspace) -> bytes:
    return b"<html>please sign in</html>".ljust(512)


ATTACKS: list[Callable[[World, Workspace], bytes]] = [
    flipped,
    truncated,
    torn,
    of_another_backend,
    of_another_workspace,
    of_another_version,
    of_another_index,
    badly_signed,
    of_a_newer_program,
    enormous,
    a_login_page,
]


def agree(world: World, group: Group, base: Any, op: bytes) -> Any:
    decided = world.do(group.propose(base, lambda: change(op * 16)))
    assert decided.mine
    return decided.state


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.__name__)
def test_one_backend_cannot_stop_or_mislead_the_others(
    world: World, ws: Workspace, attack: Callable[[World, Workspace], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "_delay", lambda *_: 0.05)  # it answers as soon as the others do
    world.stores["a"][slot(ws, "a")] = attack(world, ws)
    group = ws.group(b"1" * 16)
    state = agree(world, group, world.do(group.get_recent(ws.genesis)), b"x")
    world.run()
    assert group.standings["a"].kind in ("poisoned", "down")
    reader = ws.group(b"2" * 16, 1)
    assert world.do(reader.get_recent(ws.genesis)) == state
    assert agree(world, reader, state, b"y").v == 2


@pytest.mark.parametrize("attack", [flipped, of_another_backend, badly_signed], ids=lambda a: a.__name__)
def test_two_of_three_stop_a_version_and_are_named(
    world: World, ws: Workspace, attack: Callable[[World, Workspace], bytes]
) -> None:
    bad = attack(world, ws)
    for name in ("b", "c"):
        world.stores[name][slot(ws, name)] = bad if attack is not of_another_backend else honest(world, ws, "a")
    group = ws.group(b"1" * 16)
    before = world.now
    with pytest.raises(NoQuorumError, match=r"b: entry 0 of version 1.*c: entry 0 of version 1"):
        world.do(group.propose(ws.genesis, lambda: change(b"x" * 16)))
    assert world.now - before < 20  # it is hopeless: no use in waiting for the deadline


def test_newer_entries_on_a_quorum_ask_for_an_upgrade(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that open, so that somebody who holds the keys wrote them."""
    with monkeypatch.context() as newer:
        newer.setattr(entries, "FORMAT", 2)
        for name in ("b", "c"):
            world.stores[name][slot(ws, name)] = honest(world, ws, name)
    group = ws.group(b"1" * 16)
    with pytest.raises(UpgradeError, match="b, c"):
        world.do(group.propose(ws.genesis, lambda: change(b"x" * 16)))
    with pytest.raises(UpgradeError):
        world.do(ws.group(b"2" * 16).get_recent(ws.genesis))


def test_votes_before_poison_stay_evidence(world: World, ws: Workspace) -> None:
    """b's log is poisoned after its vote: it votes no more, but the value it accepted may be decided, and is kept."""
    first = ws.group(b"1" * 16)
    state = agree(world, first, ws.genesis, b"x")
    world.run()
    voted = [n for n in NAMES if slot(ws, n, 1, 1) in world.stores[n]]
    world.stores[voted[0]][slot(ws, voted[0], 1, 2)] = b"rubbish".ljust(512)
    for name in voted[1:]:  # the other votes are out of reach, one by one
        world.down = {name}
        reader = ws.group(name.encode() * 16, 1)
        if len(voted) == 3:
            assert world.do(reader.get_recent(ws.genesis, deadline_s=5)) in (state, ws.genesis)
    world.down = set()
    assert world.do(ws.group(b"3" * 16).propose(ws.genesis, lambda: change(b"y" * 16))).state == state


def test_a_log_that_says_taken_and_shows_nothing_is_down(world: World, ws: Workspace) -> None:
    from metasync.runtime.effects import Reply

    world.fault_hook = lambda op: Reply(False) if op.backend == "a" and op.kind == "create" else None
    group = ws.group(b"1" * 16)
    state = agree(world, group, ws.genesis, b"x")
    world.down.add("b")
    with pytest.raises(NoQuorumError, match="does not show it"):
        world.do(group.propose(state, lambda: change(b"y" * 16), deadline_s=5))


def test_a_cut_log_is_poison_for_who_reads_on(world: World, ws: Workspace) -> None:
    """A backend drops the tail that a client has read, and takes another entry in its place."""
    group = ws.group(b"1" * 16)
    state = agree(world, group, ws.genesis, b"x")
    world.run()
    a = ws.unread(ws.group(b"5" * 16).participant, ws.genesis, "a")
    a.log.feed(world.stores["a"][slot(ws, "a", 1, 0)])
    other = honest(world, ws, "a", 5, n=9)
    e, spliced = a.sealed(a.log, Kind.PREPARE, Round(9, b"5" * 16), None, drawn("entropy", 48))
    assert e.prev_entry == a.log.last_hash
    world.stores["a"][slot(ws, "a", 1, 0)] = other
    assert world.do(ws.group(b"2" * 16).get_recent(ws.genesis)) == state
    assert spliced != other


def test_of_two_values_with_a_quorum_the_one_of_the_lower_round_stands(world: World, ws: Workspace) -> None:
    """Honest devices propose nothing else above a decided round, and below one nothing can come later."""
    accept_on(world, ws, ws.genesis, ["a", "b"], b"x" * 16, 8)
    liar = ws.group(bytes([9]) * 16, 1).participant
    for name in ("b", "c"):
        at = ws.unread(liar, ws.genesis, name)
        feed(at, ws, name, world.stores[name])
        lie = successor(ws.genesis, change(b"y" * 16), skip=ws.genesis.hash, writer=liar.incarnation)
        for kind, value in ((Kind.PREPARE, None), (Kind.ACCEPT, lie)):
            entry, data = at.sealed(at.log, kind, Round(9, liar.incarnation), value, world.rng.randbytes(48))
            world.stores[name][at.place(entry.idx)] = data
            at.log.append_own(entry, data)
    reader = ws.group(b"1" * 16)
    instance = Instance(reader.participant, ws.config, ws.devices, ws.genesis)
    for name in NAMES:
        acceptor = instance.acceptors[ws.acceptor_of(name)]
        feed(acceptor, ws, name, world.stores[name])
    decided = instance.decided()
    assert decided is not None
    assert decided.op_id == b"x" * 16
    assert {value.op_id for value in instance.acceptors[ws.acceptor_of("b")].log.votes.values()} == {
        b"x" * 16,
        b"y" * 16,
    }


def test_two_decided_values_in_one_round_are_an_alarm(world: World, ws: Workspace) -> None:
    """More backends lie than the quorum allows for: a log that both quorums share shows each another value."""
    accept_on(world, ws, ws.genesis, ["a", "b"], b"x" * 16, 8)
    kept = dict(world.stores["b"])
    for idx in (0, 1):
        del world.stores["b"][slot(ws, "b", 1, idx)]
    accept_on(world, ws, ws.genesis, ["b", "c"], b"y" * 16, 8)
    reader = ws.group(b"1" * 16)
    instance = Instance(reader.participant, ws.config, ws.devices, ws.genesis)
    for name in NAMES:
        acceptor = instance.acceptors[ws.acceptor_of(name)]
        feed(acceptor, ws, name, world.stores[name])
    assert instance.decided() is not None  # b and c outvote a: with one liar too many nobody can tell
    twin = ws.unread(reader.participant, ws.genesis, "b")
    feed(twin, ws, "b", kept)
    instance.acceptors[drawn("b as it was", 16)] = twin
    with pytest.raises(ForkError, match="two values are decided"):
        instance.decided()
    assert reader.standings["a"].kind == "unknown"


def feed(acceptor: Any, ws: Workspace, name: str, store: Mapping[str, bytes]) -> None:
    """Has an acceptor read its entries, with its birth beside them."""
    while (path := slot(ws, name, 1, acceptor.log.next_idx)) in store:
        acceptor.log.feed(store[path])
    acceptor.born = True


def test_the_fullest_entry_fits(ws: Workspace) -> None:
    claim = Claim(drawn("a", 16), 1 << 60, 1 << 30, bytes(CLAIM_BYTES_MAX))
    full = replace(entry(Kind.ACCEPT), claim=claim, certificate=bytes(CERTIFICATE_BYTES_MAX))
    assert len(sealed(full)) <= ENTRY_BYTES_MAX
    assert len(sealed(entry())) == 1024
    assert len(sealed(entry(Kind.ACCEPT))) == 1536
    with pytest.raises(ValueError, match="bytes"):
        sealed(replace(full, tags=((1, bytes(5000)),)))


def test_an_entry_says_what_its_index_names_anew() -> None:
    refs = tuple(Ref(i, drawn(f"segment {i}")) for i in range(REFS_MAX))
    said = with_refs(entry(Kind.ACCEPT), refs)
    assert refs_in(entries._decode(entries._encode(said))) == refs
    assert len(sealed(said)) <= 1536
    assert with_refs(entry(Kind.ACCEPT), ()).tags == ()
    full = entry(Kind.ACCEPT, certificate=bytes(1000))
    assert with_refs(full, refs) is full, "it might not fit"
    assert with_refs(entry(Kind.ACCEPT), (*refs, refs[0])).tags == ()


def test_an_entry_says_so_of_its_writers_own_change_alone(ws: Workspace) -> None:
    """Who finishes another's value while its own waits does not name its own objects beside it."""
    m = ws.group(b"9" * 16).participant
    a = ws.unread(m, ws.genesis, "a")
    m.adding = b"m" * 16, (Ref(1, drawn("segment")),)
    for op, names in ((b"m" * 16, m.adding[1]), (b"o" * 16, ())):
        value = successor(ws.genesis, change(op), skip=ws.genesis.hash, writer=m.incarnation)
        said, _ = a.sealed(a.log, Kind.ACCEPT, Round(1, m.incarnation), value, drawn("entropy", 48))
        assert refs_in(said) == names


@pytest.mark.parametrize("data", [b"x", bytes(39), bytes(41), bytes(40 * (REFS_MAX + 1))], ids=len)
def test_what_is_no_list_of_names_says_nothing(data: bytes) -> None:
    assert refs_in(entry(Kind.ACCEPT, tags=((INDEX_TAG, data),))) == ()
    assert refs_in(entry(Kind.ACCEPT, tags=((2, bytes(40)),))) == ()


def test_names_tell_nothing_and_differ_by_place(ws: Workspace) -> None:
    paths = {
        entry_path(ws.keys, 1, era, ws.acceptor_of(name), v, idx)
        for era in (0, 1)
        for name in NAMES
        for v in (1, 2)
        for idx in (0, 1)
    }
    assert len(paths) == 24
    assert len({sha256(p.encode()) for p in paths}) == 24
    assert all(len(p.rsplit("/", 1)[1]) == 64 for p in paths)


def test_an_unadmitted_writer_is_void_to_all() -> None:
    log_of = Writer().prepare(1, device=CAROL).accept(1, X, device=CAROL)
    from agreement_kit import ACCEPTOR, KEYS, RULES

    from metasync.consensus.records.log_replay import NEVER, Log

    log = Log(KEYS, RULES, ACCEPTOR)
    for data in log_of.entries:
        log.feed(data)
    assert (log.void, log.promised, log.accepted, log.poison, log.next_idx) == (2, NEVER, None, "", 2)
