"""Objects that their hashes name, from whatever backend has them; and which record of an era is followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from agreement_kit import BASE, GENESIS, KEYS, X, drawn
from paxos_world import World, make_workspace

from metasync.consensus.eras import find_record, follow, is_withdrawn
from metasync.consensus.objects import (
    CREATE_TRIES,
    META_TRIES,
    Copy,
    created,
    get_anywhere,
    open_object,
    open_state,
    open_state_in_block,
    put_everywhere,
    seal_object,
)
from metasync.consensus.records.era import EraRecord, Tombstone, era_path, seal_record
from metasync.consensus.records.state import ZERO_ID, State
from metasync.errors import (
    BackendError,
    DamagedError,
    ForkError,
    FormatError,
    FullError,
    NoQuorumError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UpgradeError,
)
from metasync.keys.derive import RecordKind, sign_public
from metasync.keys.policy import AdminChain
from metasync.runtime.effects import Op, Reply

OTHER = drawn("another admin")
OTHERS = AdminChain((sign_public(OTHER),))


def held(kind: RecordKind, plain: bytes) -> bytes:
    return seal_object(KEYS, kind, plain, era=0, epoch=1, random=drawn("object"))[1]


# ---- what an object is


def test_a_state_is_that_of_the_hash_that_is_asked_for() -> None:
    """Whoever may write there could have put an older one, or one of another history."""
    assert open_state(KEYS, BASE.hash, held(RecordKind.STATE, BASE.encode())) == BASE
    with pytest.raises(FormatError, match="another state"):
        open_state(KEYS, BASE.hash, held(RecordKind.STATE, GENESIS.encode()))
    block = held(RecordKind.STATES, GENESIS.encode() + BASE.encode())
    assert open_state_in_block(KEYS, BASE.hash, block) == BASE
    with pytest.raises(FormatError, match="lacks the state"):
        open_state_in_block(KEYS, X.hash, block)


def test_an_object_has_a_bound_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasync.consensus.objects.CONST_BYTES_MAX", 2048)
    monkeypatch.setattr("metasync.consensus.objects.META_BYTES_MAX", 8192)
    with pytest.raises(ValueError, match="a meta object of"):
        held(RecordKind.CONST, bytes(4000))
    assert open_object(KEYS, RecordKind.META, held(RecordKind.META, bytes(4000))) == bytes(4000)
    with pytest.raises(ValueError, match="a meta object of"):
        held(RecordKind.META, bytes(9000))


@pytest.mark.parametrize(
    ("kind", "data", "error"),
    [
        (RecordKind.META, b"\x02" * 512, UpgradeError),  # what was agreed names its hash: it is whole, and newer
        (RecordKind.CONST, b"\x02" * 512, UpgradeError),
        (RecordKind.STATE, b"\x02" * 512, FormatError),  # anybody may have put it there: no reason to stop
        (RecordKind.STATES, b"\x02" * 512, FormatError),
        (RecordKind.META, b"", FormatError),
    ],
)
def test_a_newer_format_is_told_only_of_what_is_agreed(
    kind: RecordKind, data: bytes, error: type[FormatError] | type[UpgradeError]
) -> None:
    with pytest.raises(error):
        open_object(KEYS, kind, data)


# ---- where it is put and found


def world(**answers: Callable[[Op], Reply] | Reply) -> World:
    """Backends that give these answers; the others are what they are."""
    made = World(3, ["a", "b", "c"])
    for name, answer in answers.items():
        made.liars[name] = lambda _, op, store, answer=answer: answer(op) if callable(answer) else answer
    return made


def asked(made: World, name: str) -> int:
    return len(made.requests[name])


def put(made: World, enough: int) -> frozenset[str]:
    confirmed: frozenset[str] = made.do(put_everywhere(dict.fromkeys("abc", "path"), b"data", enough, "what"))
    made.run()
    return confirmed


def test_an_object_is_put_where_enough_confirm_it() -> None:
    assert len(put(world(), 2)) >= 2
    assert put(world(a=Reply(error=UnreachableError("away"))), 2) == {"b", "c"}


def test_who_refuses_is_asked_once_and_who_is_away_again() -> None:
    made = world(a=Reply(error=RefusedError("no")), b=Reply(error=UnreachableError("away")))
    with pytest.raises(NoQuorumError, match="0 of 3 backends confirmed it"):
        put(made, 3)
    assert asked(made, "a") == 1
    made = world(b=Reply(error=UnreachableError("away")))
    with pytest.raises(NoQuorumError):
        made.do(put_everywhere({"b": "path"}, b"data", 1, "what"))
    assert asked(made, "b") == META_TRIES


def test_a_full_backend_is_named() -> None:
    for error, step in ((FullError("full"), "free space on a"), (UnreachableError("away"), "are reachable")):
        with pytest.raises(NoQuorumError) as caught:
            world(a=Reply(error=error)).do(put_everywhere({"a": "path"}, b"data", 1, "what"))
        assert step in caught.value.next_step


def create(made: World, is_it: Callable[[bytes], bool] | None = None) -> None:
    made.do(created("a", "path", b"mine", is_it))


def test_what_is_there_already_must_be_ours() -> None:
    made = world()
    create(made)
    create(made)  # from an earlier try
    assert made.stores["a"] == {"path": b"mine"}
    made.stores["a"]["path"] = b"another's"
    with pytest.raises(BackendError, match="is taken by something else"):
        create(made)
    with pytest.raises(BackendError, match="is taken by something else"):
        create(made, lambda data: data == b"ours")
    made.stores["a"]["path"] = b"ours"
    create(made, lambda data: data == b"ours")
    assert made.stores["a"] == {"path": b"ours"}


def test_a_create_is_tried_again_unless_that_is_in_vain() -> None:
    for error, tries in ((RefusedError("no"), 1), (UnreachableError("away"), CREATE_TRIES)):
        made = world(a=Reply(error=error))
        with pytest.raises(BackendError, match="cannot write path"):
            create(made)
        assert asked(made, "a") == tries


def test_what_stands_there_and_cannot_be_read_is_not_ours_yet() -> None:
    made = world(a=lambda op: Reply(False) if op.kind == "create" else Reply(error=UnreachableError("away")))
    with pytest.raises(BackendError, match="away"):
        create(made)


def whole(data: bytes) -> bytes:
    if data == b"newer":
        raise UpgradeError("upgrade", next_step="")
    if data != b"good":
        raise FormatError("altered")
    return data


def got(a: Reply, b: Reply) -> Any:
    made = world(a=a, b=b)
    return made.do(get_anywhere([Copy(name, "path", whole) for name in "ab"], 100, "it"))


@pytest.mark.parametrize("bad", [
    Reply(b"altered"), Reply(b"newer"), Reply(error=NotFoundError("none")), Reply(error=UnreachableError("away")),
])  # fmt: skip
def test_one_good_copy_is_enough_wherever_it_lies(bad: Reply) -> None:
    assert got(Reply(b"good"), bad) == b"good"
    assert got(bad, Reply(b"good")) == b"good"


def test_it_is_damaged_only_if_all_answered() -> None:
    gone, away, altered = (
        Reply(error=NotFoundError("none")), Reply(error=UnreachableError("away")), Reply(b"altered")
    )  # fmt: skip
    for a, b in ((gone, gone), (altered, gone), (altered, altered)):
        with pytest.raises(DamagedError):
            got(a, b)
    for a, b in ((gone, away), (altered, away), (away, away)):
        with pytest.raises(NoQuorumError):
            got(a, b)
    with pytest.raises(UpgradeError):
        got(Reply(b"newer"), gone)
    with pytest.raises(NoQuorumError, match="no backend is linked"):
        world().do(get_anywhere([], 100, "it"))


# ---- which era is followed


class Eras:
    """A workspace in crash mode whose admin, or somebody who was admin, begins another era."""

    def __init__(self) -> None:
        self.world = World(3, [*"abc"])
        self.ws = make_workspace(self.world)
        self.group = self.ws.group(b"r" * 16, 1)
        self.m = self.group.participant
        self.known = self.ws.genesis

    def record(self, admin: bytes | None = None, **changes: Any) -> EraRecord:
        first = replace(
            self.known, era=self.known.era + 1, v=self.known.v + 1, prev=self.known.hash, skip=self.known.hash,
            writer=ZERO_ID, **changes,
        )  # fmt: skip
        return EraRecord(self.known, first, None, self.ws.config, (), 1, self.ws.devices.chain)

    def put(self, name: str, record: EraRecord, admin: bytes | None = None) -> None:
        data = seal_record(self.ws.keys, record, admin or self.ws.admin, drawn(f"record on {name}"))
        self.world.stores[name][era_path(record.number)] = data

    def found(self) -> EraRecord | None:
        record: EraRecord | None = self.world.do(find_record(self.m, 1, [*"abc"], self.known))
        return record

    def follows(self, record: EraRecord, known: State | None = None) -> State:
        state: State = self.world.do(follow(self.m, self.group.enter, known or self.known, record))
        return state


def test_the_record_that_the_admin_signed_is_followed() -> None:
    eras = Eras()
    record = eras.record()
    for name in "ab":
        eras.put(name, record)
    eras.world.stores["c"][era_path(1)] = b"rubbish".ljust(512)
    found = eras.found()
    assert found is not None
    assert (found.first, found.ended) == (record.first, record.ended)
    assert eras.follows(found) == record.first


def test_two_records_of_one_era_are_a_fork() -> None:
    eras = Eras()
    eras.put("a", eras.record())
    eras.put("b", eras.record(op_id=b"o" * 16))
    with pytest.raises(ForkError):
        eras.found()


def test_a_record_that_no_tombstone_names_is_a_fork() -> None:
    """A backend was retired for another one."""
    eras = Eras()
    eras.put("a", eras.record())
    memory = eras.m.acceptors[eras.ws.acceptor_of("b")]
    memory.tombstone = Tombstone(1, drawn("another record"))
    with pytest.raises(ForkError):
        eras.found()
    for harmless in (Tombstone(1, bytes(32)), Tombstone(2, drawn("another record"))):  # not known yet; a later era
        memory.tombstone = harmless
        assert eras.found() is not None


def test_no_device_goes_back_to_an_era_that_it_is_in_or_past() -> None:
    eras = Eras()
    record = eras.record()
    assert eras.follows(record) == record.first
    with pytest.raises(ForkError, match="this device is in era 1"):
        eras.follows(record, record.first)
    with pytest.raises(ForkError, match="this device is in era 2"):
        eras.follows(record, replace(record.first, era=2))


def test_a_withdrawn_admin_begins_no_era() -> None:
    """Its key opens what it could read before, and decides nothing any more."""
    eras = Eras()
    record = replace(eras.record(), chain=OTHERS)
    assert is_withdrawn(eras.m, eras.known, record)
    assert not is_withdrawn(eras.m, eras.known, eras.record())
    assert not is_withdrawn(eras.m, replace(eras.known, devices=drawn("unknown")), record)  # nobody can tell
    with pytest.raises(ForkError, match="an admin key that is not today's"):
        eras.follows(record)


def test_an_era_that_goes_on_from_another_history_is_not_followed() -> None:
    eras = Eras()
    elsewhere = replace(eras.known, op_id=b"e" * 16)
    first = replace(elsewhere, era=1, v=1, prev=elsewhere.hash, skip=elsewhere.hash, writer=ZERO_ID)
    with pytest.raises(ForkError, match="contradicts version"):
        eras.follows(replace(eras.record(), ended=elsewhere, first=first))


def test_an_era_after_one_that_this_device_did_not_see_cannot_be_compared() -> None:
    """It is the admin's word; what only lost backends held cannot be walked."""
    eras = Eras()
    ended = replace(eras.known, era=1, op_id=b"e" * 16)
    first = replace(ended, era=2, v=1, prev=ended.hash, skip=ended.hash, writer=ZERO_ID)
    assert eras.follows(replace(eras.record(), ended=ended, first=first)) == first
