"""Targets: invitations, notes of the device set, eras, floors, journals of blocks (docs/design/format-agreement.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agreement_kit import ACCEPTOR, ADMIN, ALICE, BASE, CHAIN, DEVICES, KEYS, NS_ID, drawn, entry

from fuzz.target import SOME, Target
from metasync.config import Acceptor, BackendEntry, Config, Storage
from metasync.consensus import truncation
from metasync.consensus.acceptors.block import Journal, decode_journal
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Kind, open_floor
from metasync.consensus.records.era import (
    EraRecord,
    Tombstone,
    encode_tombstone,
    open_record,
    read_tombstone,
    seal_record,
)
from metasync.errors import FormatError, UpgradeError, UsageError
from metasync.keys import device_set
from metasync.keys.derive import Header, RecordKind, seal, sha256, sign
from metasync.keys.invitation import Code, Way, decode_code


def code(data: bytes) -> None:
    """A code as somebody types it: any text."""
    text = data.decode("utf-8", "replace")
    found = decode_code(text if text.startswith("metasync-") else "metasync-invitation-" + text)
    assert decode_code(found.encode()) == found


def code_seeds() -> list[bytes]:
    made = Code(drawn("i", 16), drawn("s"), (Way("a", "file:///a", "00" * 16), Way("b", "s3://b", "11" * 16)))
    return [made.encode().encode(), made.encode().removeprefix("metasync-invitation-").encode(), "é".encode(), b""]


def noted(data: bytes) -> None:
    """Tags that an admitted device wrote against the rules: they mean something or nothing."""
    for tag in (device_set.LOGINS_TAG, device_set.INVITATIONS_TAG, device_set.NAMES_TAG):
        devices = replace(DEVICES, tags=((tag, data),))
        logins, invitations = device_set.open_logins(devices), device_set.invitations(devices)
        for item in logins:
            assert all(isinstance(name, str) for pair in item.backends for name in pair)
        device_set.expired(devices, 5)
        given = device_set.given_names(devices)
        if tag == device_set.NAMES_TAG:
            assert device_set.given_names(device_set.with_names(devices, given)) == given
        assert all(isinstance(name, str) for name in device_set.names_of(devices).values())
        if tag == device_set.INVITATIONS_TAG:
            again = device_set.invitations(device_set.with_invitations(devices, invitations))
            assert sorted(again) == sorted(invitations) or len(set(invitations)) < len(invitations)


def note_seeds() -> list[bytes]:
    logins = device_set.with_logins(
        DEVICES, [device_set.OpenLogins(drawn("d", 16), "phone", (("a", "file"), ("b", "s3")))]
    )
    invitation = device_set.Invitation(drawn("i", 16), drawn("d", 16), drawn("k"), "phone", 9, device_set.UNUSED)
    invitations = device_set.with_invitations(DEVICES, [invitation])
    names = device_set.with_names(DEVICES, {drawn("d", 16): "phone", drawn("e", 16): "tower"})
    return [data for devices in (logins, invitations, names) for _, data in devices.tags]


def _config() -> Config:
    acceptor = Acceptor(ACCEPTOR, "log", drawn("birth"))
    place = Storage(drawn("storage", 16), drawn("born"))
    return Config((BackendEntry(drawn("b", 16), "a", "memory", 1 << 30, bytes(32), (place,), acceptor),))


def _record() -> EraRecord:
    first = replace(
        BASE, era=BASE.era + 1, v=BASE.v + 1, prev=BASE.hash, skip=BASE.hash, writer=bytes(16), op_id=bytes(16)
    )
    return EraRecord(BASE, first, None, _config(), ("b", "c"), 1_800_000_000, CHAIN)


def era_inside(data: bytes) -> None:
    """The body of a record, signed by the admin and sealed here."""
    record = _record()
    body = data + sign(ADMIN, "era 1", data)
    sealed = seal(KEYS.log_key(1), Header(RecordKind.ERA, record.number, 1, drawn("r")), body, binding=NS_ID)
    found = open_record(KEYS, sealed, record.number)
    assert found.digest == sha256(data)
    assert (found.number, found.first.prev) == (record.number, found.ended.hash)
    assert found.first.v > found.ended.v


def era_seeds() -> list[bytes]:
    from metasync.keys.derive import SIGNATURE_BYTES, unseal

    out = []
    for record in (_record(), replace(_record(), without=())):
        sealed = seal_record(KEYS, record, ADMIN, drawn("r"))
        _, body = unseal(KEYS.log_key(1), sealed, RecordKind.ERA, binding=NS_ID, bytes_max=1 << 20)
        out.append(body[:-SIGNATURE_BYTES])
    return out


def tombstone(data: bytes) -> bytes:
    nonce = drawn("nonce")
    found = read_tombstone(data, ACCEPTOR, sha256(nonce))
    if found is None:
        raise FormatError("no tombstone")
    return encode_tombstone(ACCEPTOR, nonce, found)


def floor_inside(data: bytes) -> bytes:
    """A floor's entry, sealed and signed by a device of the workspace."""
    if len(data) > 3_500:
        raise FormatError("no floor is so long")
    header = Header(RecordKind.FLOOR, BASE.era, BASE.epoch, drawn("record"))
    signature = sign(ALICE.sign_private, "floor 1", header.encode() + data)
    sealed = seal(KEYS.log_key(1), header, data + signature, binding=NS_ID + ACCEPTOR)
    signed = open_floor(KEYS, sealed, ACCEPTOR, 1)
    assert signed.entry.v >= 1
    assert signed.entry.value is not None
    return entries._encode(signed.entry)


def progress(data: bytes) -> None:
    """A device's own note on floors: damaged, it is none."""
    found = truncation.decode_progress(data)
    assert truncation.decode_progress(found.encode()) == found


def journal_seeds() -> list[bytes]:
    return [Journal(3, 1, 0, 1, 7, b"block").encode(), Journal(0, 0, 0, 1, 0, b"").encode()]


def _encode_journal(value: Any) -> bytes:
    assert isinstance(value, Journal)
    return value.encode()


MEMBERS = (
    Target("invitation-code", code, code_seeds, allowed=(UsageError, UpgradeError)),
    Target("device-notes", noted, note_seeds),
    Target("era-inside", era_inside, era_seeds, tries=SOME),
    Target(
        "tombstone",
        tombstone,
        lambda: [encode_tombstone(ACCEPTOR, drawn("nonce"), Tombstone(e, drawn(str(e)))) for e in (1, 2)],
        lambda data: data,
    ),
    Target("floor-inside", floor_inside, lambda: [entries._encode(entry(Kind.DECIDED))], lambda body: body, tries=SOME),
    Target(
        "floors-note", progress, lambda: [truncation.Progress(16, {("ab", 8): 1.5}, {"ab": 8}).encode(), b"{}", b""]
    ),
    Target("block-journal", decode_journal, journal_seeds, _encode_journal),
)
