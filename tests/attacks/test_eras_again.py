"""What anybody who may write to a backend puts in the place of an era's record (consensus.md, rule 8.6).

An era record is what the admin key signed. A device can seal that again, and anybody can put there what is no record,
before a `recover` or after it: nobody is led apart, and nobody stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eras_kit import ME, OTHER, THIRD, Room, pushed, recovered, recovering
from paxos_world import change

from metasync.consensus import EraRecord, State, birth_path
from metasync.consensus.eras import newest_record
from metasync.consensus.records.era import (
    RECORD_BYTES_MAX,
    Tombstone,
    encode_tombstone,
    era_path,
    open_record,
    seal_record,
)
from metasync.consensus.records.state import STATE_BYTES
from metasync.errors import ForkError, FormatError, UnreachableError, UpgradeError
from metasync.keys.derive import Header, RecordKind, seal, sign, sign_public, unseal
from metasync.keys.policy import AdminChain
from metasync.runtime.effects import Op, Reply

PATH = era_path(1)


def sealed_again(room: Room, record: EraRecord) -> bytes:
    """The record as any device seals it that holds the log key: the signed content, under other random bytes."""
    key = room.ws.keys.log_key(record.first.epoch)
    header, body = unseal(key, record.data, RecordKind.ERA, binding=room.ws.keys.ns_id, bytes_max=RECORD_BYTES_MAX)
    return seal(key, replace(header, random=bytes(32)), body, binding=room.ws.keys.ns_id)


def sealed(room: Room, body: bytes) -> bytes:
    """Any content in the form of a record, as a device can make it."""
    header = Header(RecordKind.ERA, 1, 1, bytes(range(32)))
    return seal(room.ws.keys.log_key(1), header, body, binding=room.ws.keys.ns_id)


def rubbish(room: Room, kind: str, record: EraRecord) -> bytes:
    """What is no record of era 1, each made without the admin key of today."""
    ws = room.ws
    if kind == "bytes":
        return b"garbage"
    if kind == "large":
        return bytes(RECORD_BYTES_MAX + 1)
    if kind == "newer":
        return sealed(room, b"\2" + bytes(1000))
    if kind == "newer state":  # the first state asks for a newer program
        key = ws.keys.log_key(1)
        _, body = unseal(key, record.data, RecordKind.ERA, binding=ws.keys.ns_id, bytes_max=RECORD_BYTES_MAX)
        at = 1 + 4 + 8 + STATE_BYTES + 1
        return sealed(room, body[:at] + b"\2" + body[at + 1 :])
    if kind == "unsigned":
        return seal_record(ws.keys, record, b"e" * 32, bytes(32))
    assert kind == "foreign"  # of another workspace, in order but for that
    first, ended = record.first, record.ended
    chain = AdminChain((sign_public(b"e" * 32),))
    other = {"ns_id": chain.ns_id}
    ended = replace(ended, **other)
    changes: dict[str, Any] = {"ended": ended, "first": replace(first, **other, prev=ended.hash), "chain": chain}
    return seal_record(ws.keys, replace(record, carried=None, **changes), b"e" * 32, bytes(32))


KINDS = pytest.mark.parametrize("kind", ["bytes", "large", "newer", "newer state", "unsigned", "foreign"])


def one_pushed(seed: int) -> tuple[Room, State]:
    room = Room.made(seed, "abcde")
    return room, pushed(room, room.group(ME), room.ws.genesis, 1)


def everybody_follows(room: Room, one: State, record: EraRecord) -> None:
    """Who pushed, who slept, and who comes new goes on from the record's first state; all agree on its digest."""
    newest = record.first
    for number, known in enumerate((one, room.ws.genesis, one)):
        group = room.group(bytes([70 + number]) * 16, number)
        assert room.world.do(group.get_recent(known)) == newest
        assert [r.digest for r in group.participant.followed.values()] == [record.digest]
        newest = room.world.do(group.propose(newest, lambda number=number: change(bytes([90 + number]) * 16))).state
        room.world.run()


@pytest.mark.parametrize("on", ["a", "b", "ab"])
def test_a_record_sealed_twice_is_one(on: str) -> None:
    """After a `recover` a device seals the admin's record again, and puts it on some of the backends."""
    room, one = one_pushed(1)
    record, first = recovered(room, "cde", one)
    again = sealed_again(room, record)
    assert again != record.data and open_record(room.ws.keys, again, 1).digest == record.digest
    for name in on:
        room.world.stores[name][PATH] = again
    assert room.world.do(recovering(room, room.group(THIRD, 2), one, "cde")).digest == record.digest
    everybody_follows(room, one, record)
    assert first == record.first


def made_before(seed: int) -> tuple[EraRecord, State]:
    """What the record of this seed would be like, for whoever makes up another."""
    room, one = one_pushed(seed)
    record, _ = recovered(room, "cde", one)
    return record, one


@pytest.mark.few
@KINDS
@pytest.mark.parametrize("on", ["a", "b", "ab"])
def test_what_is_no_record_does_not_hold_up_a_recover(kind: str, on: str) -> None:
    """Somebody puts it in the place of the next era's record, on one backend or all that are left."""
    like, _ = made_before(2)
    room, one = one_pushed(2)
    for name in on:
        room.world.stores[name][PATH] = rubbish(room, kind, like)
    record, _ = recovered(room, "cde", one)
    for name in "ab":
        assert open_record(room.ws.keys, room.world.stores[name][PATH], 1).digest == record.digest
    everybody_follows(room, one, record)


@KINDS
def test_what_is_no_record_does_not_hold_up_those_who_follow(kind: str) -> None:
    """Somebody puts it over the record on one of two backends, after the `recover`."""
    room, one = one_pushed(3)
    record, _ = recovered(room, "cde", one)
    room.world.stores["a"][PATH] = rubbish(room, kind, record)
    everybody_follows(room, one, record)


@pytest.mark.parametrize("kind", ["bytes", "newer", "unsigned"])
def test_rubbish_of_later_eras_hides_no_record_from_a_new_device(kind: str) -> None:
    """Somebody puts up what look like records of many later eras."""
    room, one = one_pushed(4)
    record, _ = recovered(room, "cde", one)
    for number in (2, 3, 7, *range(900, 999)):
        room.world.stores["a"][era_path(number)] = rubbish(room, kind, record)
    found = room.world.do(newest_record(room.ws.keys, ["a", "b"]))
    assert found is not None and found.digest == record.digest


def withdrawn(room: Room, group: Any, one: State) -> None:
    """Another admin key is in force, as this device knows it."""
    chain = room.ws.devices.chain.extended(room.ws.admin, sign_public(b"2" * 32))
    policy = room.ws.devices.policy.signed(b"2" * 32, chain=chain)
    group.participant.device_sets[one.devices] = replace(room.ws.devices, policy_data=policy.encode())


def test_a_record_of_a_withdrawn_admin_stops_nobody_who_has_a_quorum() -> None:
    """Who knew the passphrase of before puts a record on a backend, and a tombstone in the place of its birth."""
    like, _ = made_before(5)
    room, one = one_pushed(5)
    data = seal_record(room.ws.keys, like, room.ws.admin, bytes(32))
    room.world.stores["a"][PATH] = data
    group = room.group(OTHER, 1)
    path, a = birth_path(room.ws.acceptor_of("a")), room.ws.acceptor_of("a")
    room.world.stores["a"][path] = encode_tombstone(a, room.world.stores["a"][path][18:50], Tombstone(1, bytes(32)))
    withdrawn(room, group, one)
    assert room.world.do(group.get_recent(one)) == one


def test_a_newer_record_that_the_admin_signed_is_not_written_over() -> None:
    """An older program must not take for none what a newer one of the admin's wrote."""
    room, one = one_pushed(6)
    body = b"\2" + bytes(1000)
    room.world.stores["a"][PATH] = sealed(room, body + sign(room.ws.admin, "era 1", body))
    with pytest.raises(UpgradeError):
        recovered(room, "cde", one)
    with pytest.raises(FormatError):
        open_record(room.ws.keys, room.world.stores["a"][PATH], 1)


def test_two_records_that_the_admin_signed_are_two() -> None:
    """Two restarts, one on each backend: nobody goes on by himself."""
    room, one = one_pushed(7)
    record, _ = recovered(room, "cde", one)
    other = seal_record(room.ws.keys, replace(record, at_ns=2), room.ws.admin, bytes(32))
    room.world.stores["b"][PATH] = other
    with pytest.raises(ForkError, match="restarted twice"):
        room.world.do(room.group(THIRD, 2).get_recent(one))


@pytest.mark.parametrize("told", [True, False])
def test_a_record_of_keys_that_are_not_here_is_not_written_over(told: bool) -> None:
    """Another restart may have made new keys: only where every backend tells that there are none is this rubbish."""
    room, one = one_pushed(9)
    other = Header(RecordKind.ERA, 1, 2, bytes(32)).encode() + bytes(470)
    room.world.stores["a"][PATH] = other

    def hook(op: Op) -> Reply | None:
        return None if told or (op.kind, op.path) != ("list", "keys") else Reply(error=UnreachableError("away"))

    room.world.fault_hook = hook
    if told:
        record, _ = recovered(room, "cde", one)
        everybody_follows(room, one, record)
        return
    with pytest.raises(UnreachableError):
        recovered(room, "cde", one)
    assert room.world.stores["a"][PATH] == other
