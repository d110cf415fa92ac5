"""Records are of their place alone: whoever holds the keys cannot have one taken for that of another place or kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agreement_kit import (
    ACCEPTOR,
    ALICE,
    BASE,
    DEVICES,
    GENESIS,
    KEYS,
    NS_ID,
    OTHER_ACCEPTOR,
    X,
    drawn,
    entry,
    forged,
    sealed,
)

from metasync.codec import bytes16, encode_tags, u8, u64
from metasync.consensus.records.entry import (
    ENTRY_BYTES_MAX,
    FORMAT,
    Entry,
    Head,
    Kind,
    Round,
    base_of_block,
    base_of_entry,
    open_entry,
    open_floor,
    open_head,
    open_hint,
    seal_block,
    seal_entry,
    seal_hint,
    shown_epoch,
)
from metasync.consensus.records.state import ZERO_ID
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import HEADER_BYTES, Header, RecordKind, seal, sign

OF_ACCEPTOR = NS_ID + ACCEPTOR


def decided(**more: Any) -> Entry:
    return replace(entry(Kind.DECIDED), round=Round(0, ZERO_ID), **more)


def opened(data: bytes, **more: Any) -> Entry:
    place = {"ns_id": NS_ID, "era": BASE.era, "epoch": 1, "acceptor_id": ACCEPTOR, "v": 2, "idx": 0, **more}
    return open_entry(KEYS, data, **place).entry


def test_the_base_of_an_entry_is_the_state_that_is_asked_for_and_no_other() -> None:
    block = seal_block(KEYS, entry(), ALICE.sign_private, drawn("block"))
    assert base_of_entry(KEYS, BASE.hash, BASE, ACCEPTOR, 2, sealed(entry())) == BASE
    assert base_of_block(KEYS, BASE.hash, BASE, ACCEPTOR, 2, ALICE.device_id, block) == BASE
    with pytest.raises(FormatError, match="another state"):
        base_of_entry(KEYS, GENESIS.hash, BASE, ACCEPTOR, 2, sealed(entry()))
    with pytest.raises(FormatError, match="another state"):
        base_of_block(KEYS, GENESIS.hash, BASE, ACCEPTOR, 2, ALICE.device_id, block)


@pytest.mark.parametrize("asked", [{"era": BASE.era + 1}, {"epoch": 2}, {"v": 3}, {"idx": 1}])
def test_an_entry_of_another_era_or_epoch_is_none(asked: dict[str, int]) -> None:
    assert opened(sealed(entry())) == entry()
    with pytest.raises(FormatError):
        opened(sealed(entry()), **asked)


def test_the_header_of_a_record_says_the_era_of_its_base() -> None:
    """A hint is asked for in no certain era."""
    header = Header(RecordKind.HINT, BASE.era + 1, 1, drawn("record"))
    with pytest.raises(FormatError, match="era or epoch differ"):
        open_hint(KEYS, forged(decided(), header=header, kind=RecordKind.HINT, binding=OF_ACCEPTOR), ACCEPTOR)


def hint(e: Entry, kind: RecordKind = RecordKind.HINT) -> bytes:
    return forged(e, header=Header(kind, BASE.era, 1, drawn("record")), kind=kind, binding=OF_ACCEPTOR)


def test_a_hint_and_a_floor_say_what_is_decided_for_their_acceptor() -> None:
    assert open_hint(KEYS, hint(decided()), ACCEPTOR).entry == decided()
    assert open_floor(KEYS, hint(decided(), RecordKind.FLOOR), ACCEPTOR, 2).entry == decided()
    for other in (entry(Kind.ACCEPT), decided(acceptor_id=OTHER_ACCEPTOR)):
        with pytest.raises(FormatError, match="hint"):
            open_hint(KEYS, hint(other), ACCEPTOR)
        with pytest.raises(FormatError, match="floor"):
            open_floor(KEYS, hint(other, RecordKind.FLOOR), ACCEPTOR, 2)
    with pytest.raises(FormatError, match="floor"):
        open_floor(KEYS, hint(decided(), RecordKind.FLOOR), ACCEPTOR, 3)
    with pytest.raises(ValueError, match="what is decided"):
        seal_hint(KEYS, entry(Kind.ACCEPT), ALICE.sign_private, drawn("hint"))


def test_a_state_that_only_newer_programs_understand_is_told_in_what_is_agreed_alone() -> None:
    """In an entry it is a proposal, which the rules judge."""
    newer = decided(value=replace(X, min_fmt=FORMAT + 90))
    assert opened(sealed(newer)) == newer
    with pytest.raises(UpgradeError):
        open_hint(KEYS, hint(newer), ACCEPTOR)
    with pytest.raises(UpgradeError):
        open_floor(KEYS, hint(newer, RecordKind.FLOOR), ACCEPTOR, 2)


def test_a_record_too_short_for_a_signature_is_none() -> None:
    with pytest.raises(FormatError, match="too short"):
        opened(forged(entry(), body=b"", signature=b"short"))


def test_an_entry_stands_on_the_version_before_it() -> None:
    with pytest.raises(FormatError, match="version differ"):
        opened(forged(entry(v=3)), v=3)


@pytest.mark.parametrize("carried", [{"config": b"c"}, {"devices": b"d"}, {"steps": (X.encode(),)}])
def test_what_an_entry_carries_is_what_its_value_names(carried: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="no value names"):
        opened(forged(entry(**carried)))
    assert opened(sealed(entry(Kind.ACCEPT, **carried))) == entry(Kind.ACCEPT, **carried)


@pytest.mark.parametrize("what", ["config", "devices", "steps"])
def test_only_what_a_value_names_anew_makes_an_entry_large(what: str) -> None:
    large: Any = (X.encode(),) * 200 if what == "steps" else bytes(ENTRY_BYTES_MAX)
    big = entry(Kind.ACCEPT, **{what: large})
    assert opened(seal_entry(KEYS, big, ALICE.sign_private, drawn("record"))) == big
    with pytest.raises(ValueError, match="an entry of"):
        seal_entry(KEYS, entry(tags=((9, bytes(ENTRY_BYTES_MAX)),)), ALICE.sign_private, drawn("record"))


def test_the_epoch_that_a_record_shows_is_read_where_there_is_one() -> None:
    assert shown_epoch(sealed(entry())) == 1
    assert shown_epoch(sealed(entry())[: HEADER_BYTES - 1]) == 0
    assert shown_epoch(b"") == 0


def head(ns_id: bytes = NS_ID, device_id: bytes = ALICE.device_id) -> bytes:
    """A head that says this of itself, at the place of Alice's."""
    said = Head(device_id, 2, X.hash, drawn("head"), drawn("prev"))
    body = u8(FORMAT) + ns_id + said.device_id + u64(said.v) + said.state_hash + said.head + said.prev
    body += bytes16(b"") + encode_tags(())
    header = Header(RecordKind.HEAD, BASE.era, 1, drawn("record"))
    body += sign(ALICE.sign_private, "head 1", header.encode() + body)
    return seal(KEYS.log_key(1), header, body, binding=NS_ID + ALICE.device_id)


def test_a_head_is_that_of_its_device_in_its_workspace() -> None:
    assert open_head(KEYS, DEVICES, head(), ALICE.device_id).v == 2
    for other in (head(ns_id=drawn("elsewhere")), head(device_id=drawn("bob", 16))):
        with pytest.raises(FormatError, match="another device or workspace"):
            open_head(KEYS, DEVICES, other, ALICE.device_id)
