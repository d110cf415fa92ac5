"""What begins a workspace, a root or an era: each of its rules by itself, against somebody who holds the keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agreement_kit import ACCEPTOR, ADMIN, BASE, CHAIN, CONFIG, GENESIS, KEYS, NS_ID, drawn

from metasync.codec import bytes32, encode_tags, i64, u8, u32
from metasync.consensus.records.birth import (
    birth_digest,
    birth_matches,
    encode_birth,
    open_genesis,
    seal_genesis,
)
from metasync.consensus.records.entry import FORMAT
from metasync.consensus.records.era import (
    EraRecord,
    Passage,
    Tombstone,
    encode_tombstone,
    open_record,
    read_tombstone,
    seal_record,
)
from metasync.consensus.records.state import VERSION_MAX, ZERO_HASH, ZERO_ID, State, decode_state, skip_version
from metasync.errors import FormatError
from metasync.keys.derive import Header, RecordKind, seal, sign, sign_public
from metasync.keys.policy import AdminChain

OTHER = drawn("another admin")
OTHERS = AdminChain((sign_public(OTHER),))
NONCE = drawn("nonce")


def begun(ended: State = BASE, **changes: Any) -> State:
    """The first state of the era after `ended`."""
    first = replace(ended, era=ended.era + 1, v=ended.v + 1, prev=ended.hash, writer=ZERO_ID)
    return replace(first, **{"skip": first.prev if skip_version(first.v) == ended.v else first.skip, **changes})


def record(ended: State = BASE, first: State | None = None, **more: Any) -> EraRecord:
    return EraRecord(ended, first or begun(ended), **{
        "carried": None, "config": CONFIG, "without": (), "at_ns": 1, "chain": CHAIN, **more,
    })  # fmt: skip


def opened(what: EraRecord, number: int | None = None, admin: bytes = ADMIN) -> EraRecord:
    data = seal_record(KEYS, what, admin, drawn("record"))
    return open_record(KEYS, data, what.number if number is None else number)


def test_an_era_begins_after_the_last_state_of_the_one_before() -> None:
    assert opened(record()).first == begun()
    carried = replace(begun(), era=BASE.era, writer=drawn("writer", 16))
    assert opened(record(carried=carried)).carried == carried


@pytest.mark.parametrize(("ended", "changes"), [
    ({}, {"ns_id": drawn("elsewhere")}),
    ({"ns_id": drawn("elsewhere")}, {"ns_id": NS_ID}),
    ({}, {"era": BASE.era + 2}),
    ({}, {"prev": GENESIS.hash}),
    ({}, {"writer": drawn("writer", 16)}),
    ({}, {"v": BASE.v + 2}),
    ({"epoch": 2}, {"epoch": 1}),
    ({}, {"min_fmt": BASE.min_fmt - 1}),
        ({"gen": 5}, {"gen": 4}),
    ({"gen": 5, "min_gen": 3}, {"min_gen": 2}),
    ({"gen": 5, "min_gen": 3}, {"min_gen": 6}),
])  # fmt: skip
def test_what_does_not_follow_the_last_state_begins_no_era(ended: dict[str, Any], changes: dict[str, Any]) -> None:
    """Else an old record, or one of another history, would take back what was agreed, or revive what was deleted."""
    last = replace(BASE, **ended)
    with pytest.raises(FormatError, match="does not follow"):
        opened(record(last, begun(last, **changes)))


@pytest.mark.parametrize("changes", [{"era": 7}, {"v": 3}, {"prev": GENESIS.hash}, {"op_id": drawn("op", 16)}])
def test_what_an_era_carries_was_proposed_right_after_the_last_state(changes: dict[str, Any]) -> None:
    carried = replace(begun(), era=BASE.era, writer=drawn("writer", 16))
    with pytest.raises(FormatError, match="says it carries"):
        opened(record(carried=replace(carried, **changes)))


def test_only_the_admin_of_this_workspace_begins_an_era() -> None:
    with pytest.raises(FormatError, match="signature is wrong"):
        opened(record(chain=OTHERS), admin=OTHER)
    with pytest.raises(FormatError, match="signature is wrong"):
        opened(record(), admin=OTHER)


def test_a_record_is_that_of_its_era() -> None:
    with pytest.raises(FormatError, match="another era"):
        opened(record(), number=begun().era + 1)


def test_a_carried_value_is_there_or_is_not() -> None:
    first = begun()
    body = u8(FORMAT) + u32(first.era) + i64(1) + BASE.encode() + first.encode() + u8(2) + first.encode()
    body += u8(0) + bytes32(CONFIG.encode()) + CHAIN.encode() + encode_tags(())
    body += sign(ADMIN, "era 1", body)
    data = seal(KEYS.log_key(1), Header(RecordKind.ERA, first.era, 1, drawn("record")), body, binding=NS_ID)
    with pytest.raises(FormatError, match="carried value"):
        open_record(KEYS, data, first.era)


def test_a_state_of_an_ended_era_is_read_by_what_the_new_one_names() -> None:
    passage = Passage(begun(), BASE, ZERO_HASH)
    assert passage.named_by(BASE) == begun()
    later = replace(begun(), v=9)
    assert passage.named_by(later) == later


def test_a_tombstone_is_that_of_the_root_that_the_config_means() -> None:
    stone = Tombstone(3, drawn("digest"))
    data, birth = encode_tombstone(ACCEPTOR, NONCE, stone), birth_digest(NONCE)
    assert read_tombstone(data, ACCEPTOR, birth) == stone
    assert read_tombstone(data + b"\0", ACCEPTOR, birth) is None
    assert read_tombstone(data[:-1], ACCEPTOR, birth) is None
    assert read_tombstone(b"\xff" + data[1:], ACCEPTOR, birth) is None
    assert read_tombstone(data, drawn("another", 16), birth) is None
    assert read_tombstone(data, ACCEPTOR, birth_digest(drawn("another nonce"))) is None
    for parts in ((ACCEPTOR + b"0", NONCE, stone), (ACCEPTOR, NONCE[:-1], stone), (ACCEPTOR, NONCE, Tombstone(3, b""))):
        with pytest.raises(ValueError, match="a tombstone takes"):
            encode_tombstone(*parts)


def test_a_birth_is_that_of_the_root_that_the_config_means() -> None:
    data = encode_birth(ACCEPTOR, NONCE)
    assert birth_matches(data, ACCEPTOR, birth_digest(NONCE))
    assert not birth_matches(data, drawn("another", 16), birth_digest(NONCE))
    assert not birth_matches(data, ACCEPTOR, birth_digest(drawn("another nonce")))
    assert not birth_matches(b"\xff" + data[1:], ACCEPTOR, birth_digest(NONCE))
    longer = data + b"\0"
    assert not birth_matches(longer, ACCEPTOR, birth_digest(longer[18:]))
    for parts in ((ACCEPTOR + b"0", NONCE), (ACCEPTOR, NONCE[:-1])):
        with pytest.raises(ValueError, match="a birth takes"):
            encode_birth(*parts)


def genesis(state: State = GENESIS, chain: AdminChain = CHAIN, admin: bytes = ADMIN, *, era: int = 0) -> bytes:
    """State 0 as somebody seals it who holds the log key, at the place of one of this workspace."""
    body = u8(FORMAT) + state.encode() + chain.encode() + encode_tags(())
    body += sign(admin, "genesis 1", body)
    return seal(KEYS.log_key(1), Header(RecordKind.GENESIS, era, 1, drawn("r")), body, binding=NS_ID + ACCEPTOR)


def test_state_0_is_that_of_this_workspace_signed_by_its_admin() -> None:
    assert open_genesis(KEYS, genesis(), ACCEPTOR) == GENESIS
    assert open_genesis(KEYS, seal_genesis(KEYS, GENESIS, CHAIN, ADMIN, ACCEPTOR, drawn("r")), ACCEPTOR) == GENESIS
    elsewhere = replace(GENESIS, ns_id=drawn("elsewhere"))
    for data in (genesis(chain=OTHERS, admin=OTHER), genesis(elsewhere)):
        with pytest.raises(FormatError, match="another workspace"):
            open_genesis(KEYS, data, ACCEPTOR)
    with pytest.raises(FormatError, match="signature is wrong"):
        open_genesis(KEYS, genesis(admin=OTHER), ACCEPTOR)
    for data in (genesis(BASE), genesis(era=1)):
        with pytest.raises(FormatError, match="not a first state"):
            open_genesis(KEYS, data, ACCEPTOR)


def test_no_state_has_a_version_that_the_local_state_cannot_hold() -> None:
    assert decode_state(replace(BASE, v=VERSION_MAX).encode()).v == VERSION_MAX
    with pytest.raises(FormatError):
        decode_state(replace(BASE, v=VERSION_MAX + 1).encode())
