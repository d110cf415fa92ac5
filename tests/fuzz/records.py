"""Targets: sealed records (docs/design/format-agreement.md): entries, hints, logs, heads, genesis, objects.

Bytes as a provider may show them, and the inside of each, sealed and signed here as a device of the workspace could.
"""

from __future__ import annotations

from typing import Any

from agreement_kit import (
    ACCEPTOR,
    ADMIN,
    ALICE,
    BASE,
    BOB,
    CAROL,
    CHAIN,
    DEVICES,
    GENESIS,
    INCARNATION,
    KEYS,
    MALLORY,
    NS_ID,
    RIVAL,
    RULES,
    X,
    Y,
    drawn,
    entry,
    forged,
)

from fuzz.agreement import seeds_of, use_state, vector_seeds
from fuzz.target import SOME, Target, joined_parts, parts_of
from metasync.codec import bytes32, encode_tags, u8
from metasync.consensus.objects import open_object, seal_object
from metasync.consensus.records import entry as entries
from metasync.consensus.records import entry as heads
from metasync.consensus.records.birth import open_genesis
from metasync.consensus.records.entry import Head, Kind, open_entry, open_head, open_hint
from metasync.consensus.records.log_replay import NEVER, Log
from metasync.consensus.records.scrubbed import Scrubbed, open_scrubbed, seal_scrubbed
from metasync.consensus.records.state import follows
from metasync.errors import FormatError
from metasync.keys.derive import Header, RecordKind, _aead, seal, sha256, sign, unseal


def shown_entry(data: bytes) -> None:
    open_entry(KEYS, data, ns_id=NS_ID, era=0, epoch=1, acceptor_id=ACCEPTOR, v=2, idx=0)


def entry_inside(data: bytes) -> bytes:
    """The body of an entry, sealed and signed by a device of the workspace."""
    e = entry()
    if len(data) > 3_500:
        raise FormatError("no entry is so long")
    signed = open_entry(KEYS, forged(e, body=data), ns_id=NS_ID, era=0, epoch=1, acceptor_id=ACCEPTOR, v=2, idx=0)
    assert signed.body == data
    found = signed.entry
    assert found.claim is None or len(found.claim.data) <= entries.CLAIM_BYTES_MAX
    assert (found.value is None) == (found.kind is Kind.PREPARE)
    assert found.round.n or found.kind is not Kind.PREPARE
    assert (found.v, found.idx, found.acceptor_id) == (found.base.v + 1, 0, ACCEPTOR)
    assert found.prev_entry == bytes(32)
    log = Log(KEYS, RULES, ACCEPTOR)
    log.feed(forged(e, body=data))
    assert not log.votes or all(follows(v, BASE) and found.base == BASE for v in log.votes.values())
    return entries._encode(found)


def entry_bodies() -> list[bytes]:
    certified = entry(device_id=CAROL.device_id, certificate=CAROL.certified(ADMIN, NS_ID).encode())
    claim = entries.Claim(drawn("a", 16), 2, 1, drawn("claim", 1024))
    full = entry(Kind.ACCEPT, claim=claim, tags=((1, b"x"), (7, b"")))
    some = [entry(), entry(Kind.ACCEPT), entry(Kind.DECIDED), certified, full]
    return [entries._encode(e) for e in some]


def hint_inside(data: bytes) -> None:
    if len(data) > 3_500:
        raise FormatError("no hint is so long")
    header = Header(RecordKind.HINT, BASE.era, BASE.epoch, drawn("record"))
    signature = sign(ALICE.sign_private, "hint 1", header.encode() + data)
    sealed = seal(KEYS.log_key(1), header, data + signature, binding=NS_ID + ACCEPTOR)
    signed = open_hint(KEYS, sealed, ACCEPTOR)
    assert signed.entry.value is not None
    assert entries._encode(signed.entry) == data
    public = DEVICES.key_of(signed.entry.device_id, signed.entry.certificate)
    if public is not None and signed.verifies(public) and follows(signed.entry.value, signed.entry.base):
        use_state(signed.entry.value.encode())


class _Log:
    """A log by another hand: promises and votes counted the slow way, from the entries alone."""

    def __init__(self) -> None:
        self.seen: list[entries.Entry] = []

    def effective(self) -> tuple[Any, dict[Any, bytes], bytes | None]:
        promised: Any = NEVER
        votes: dict[Any, bytes] = {}
        for e in self.seen:
            if e.kind is Kind.DECIDED:
                assert e.value is not None
                if votes and votes[max(votes)] == e.value.hash:
                    return promised, votes, e.value.hash
                continue
            if e.kind is Kind.PREPARE:
                promised = max(promised, e.round)
                continue
            assert e.value is not None
            first = votes.get(e.round, e.value.hash) == e.value.hash
            owned = e.round.n > 0 or e.round.incarnation == BASE.writer
            if e.round >= promised and first and owned:
                promised, votes[e.round] = e.round, e.value.hash
        return promised, votes, None


def replay(data: bytes) -> None:
    """A log: each part is an entry, in shorthand, then bytes that replace some of its body; sealed and signed here.

    byte 0  kind (PREPARE, ACCEPT, DECIDED, raw bytes, a repeated entry); 1 round; 2 whose round; 3 which value;
    4  device (two admitted, one with a certificate, a revoked one, a stranger with a false certificate), and from 192
    on a wrong entry before; 5, 6 where the rest is laid over the body
    """
    parts = parts_of(data)[:12]
    if not parts:
        raise FormatError("no entries in this input")
    log, other, last, written = Log(KEYS, RULES, ACCEPTOR), _Log(), bytes(32), []
    for idx, part in enumerate(parts):
        b = part[:7].ljust(7, b"\0")
        if b[0] % 5 == 3:
            raw = part[1:]
        elif b[0] % 5 == 4 and written:
            raw = written[b[1] % len(written)]
        else:
            raw = _entry_of(b, part[7:], idx, sha256(last) if b[4] >= 192 else last)
        written.append(raw)
        before, last, void = last, sha256(raw), log.void
        found = log.feed(raw)
        assert (found is None) == bool(log.poison)
        if found is not None and log.void == void:
            assert log.devices.key_of(found.device_id, found.certificate) is not None
            assert found.value is None or follows(found.value, BASE)
            assert found.prev_entry == before, "a log that was cut or spliced"
            other.seen.append(found)
        if log.poison:
            break
    promised, votes, closed = other.effective()
    assert log.promised == promised
    assert {r: v.hash for r, v in log.votes.items()} == votes
    assert (log.closed.hash if log.closed else None) == closed
    if log.poison:
        raise FormatError(log.poison)


def _entry_of(b: bytes, patch: bytes, idx: int, last: bytes) -> bytes:
    kind = Kind(b[0] % 5 % 3 + 1)
    device = (ALICE, BOB, CAROL, MALLORY, CAROL)[b[4] % 5]
    certificate = b""
    if device is CAROL:
        certificate = device.certified(ADMIN if b[4] % 5 == 2 else drawn("nobody"), NS_ID).encode()
    e = entry(
        kind,
        idx=idx,
        prev_entry=last,
        round=entries.Round(b[1] % 4, (INCARNATION, RIVAL, BASE.writer, bytes(16))[b[2] % 4]),
        value=None if kind is Kind.PREPARE else (X, Y)[b[3] % 2],
        device_id=device.device_id,
        certificate=certificate,
    )
    body = bytearray(entries._encode(e))
    at = int.from_bytes(b[5:7], "big") % len(body)
    body[at : at + len(patch)] = patch
    body = body[:3_500]
    header = Header(RecordKind.ENTRY, 0, 1, drawn(f"record {idx}"))
    signature = sign(device.sign_private, "entry 1", header.encode() + bytes(body))
    return forged(e, body=bytes(body), signature=signature, header=header)


def log_seeds() -> list[bytes]:
    def step(kind: int, n: int = 1, whose: int = 0, value: int = 0, device: int = 0, patch: bytes = b"") -> bytes:
        return bytes((kind, n, whose, value, device, 0, 0)) + patch

    return [
        joined_parts([step(0), step(1)]),
        joined_parts([step(0), step(0, 2, 1), step(1), step(1, 2, 1, 1), step(2)]),
        joined_parts([step(1, 0, 2), step(0, 1, 0, device=2), step(1, 1, device=1)]),
        joined_parts([step(0, device=3), step(0, device=4), step(0), step(4, 1)]),
        joined_parts([step(0), step(3), step(1)]),
        joined_parts([step(0), step(1, device=195)]),
        joined_parts([step(1), step(1, 1, 0, 1), step(2, 0, 3, 1), step(0, 3)]),
    ]


def head_inside(data: bytes) -> None:
    header = Header(RecordKind.HEAD, 0, 1, drawn("record"))
    body = data + sign(ALICE.sign_private, "head 1", header.encode() + data)
    sealed = seal(KEYS.log_key(1), header, body, binding=NS_ID + ALICE.device_id)
    head = open_head(KEYS, DEVICES, sealed, ALICE.device_id)
    again = heads.seal_head(KEYS, head, ALICE, era=0, epoch=1, random=drawn("record"))
    assert again == sealed


def head_seeds() -> list[bytes]:
    out = []
    for head in (
        Head(ALICE.device_id, 3, drawn("state"), drawn("head"), drawn("prev")),
        Head(
            ALICE.device_id,
            2**64 - 1,
            drawn("s"),
            drawn("h"),
            bytes(32),
            ALICE.certified(ADMIN, NS_ID).encode(),
            ((1, b"t"),),
        ),
    ):
        sealed = heads.seal_head(KEYS, head, ALICE, era=0, epoch=1, random=drawn("r"))
        _, body = unseal(KEYS.log_key(1), sealed, RecordKind.HEAD, binding=NS_ID + ALICE.device_id)
        out.append(body[:-64])
    return out


_TAG = encode_tags(((9, b"later"),))


def genesis_inside(data: bytes) -> None:
    """State and chain, signed by the first admin key, whatever key the chain ends with."""
    body = data + sign(ADMIN, "genesis 1", data)
    header = Header(RecordKind.GENESIS, 0, 1, drawn("record"))
    sealed = seal(KEYS.log_key(1), header, body, binding=NS_ID + ACCEPTOR)
    state = open_genesis(KEYS, sealed, ACCEPTOR)
    assert (state.v, state.ns_id) == (0, NS_ID)
    assert data[1:403] == state.encode()


def genesis_seeds() -> list[bytes]:
    return [u8(1) + state.encode() + CHAIN.encode() + tags for state in (GENESIS, BASE) for tags in (b"\0", _TAG)]


def shown_record(data: bytes) -> None:
    """A sealed record as a provider shows it."""
    for kind in (RecordKind.META, RecordKind.CONST, RecordKind.STATE):
        try:
            open_object(KEYS, kind, data)
        except FormatError:
            continue
        return
    raise FormatError("no record of any kind")


def record_inside(data: bytes) -> None:
    """What stands in a record where length, content and padding belong, sealed by somebody who holds the key."""
    header = Header(RecordKind.META, 0, 1, drawn("record"))
    cipher = _aead(KEYS.log_key(1), header)
    head = header.encode()
    plaintext = open_object(KEYS, RecordKind.META, head + cipher.encrypt(bytes(12), data, head + NS_ID))
    assert data == bytes32(plaintext) + bytes(len(data) - 4 - len(plaintext))


def object_seeds() -> list[bytes]:
    made = [
        seal_object(KEYS, k, b"x" * 50, era=0, epoch=1, random=drawn("o"))[1]
        for k in (RecordKind.META, RecordKind.CONST)
    ]
    return [*made, *seeds_of("object")]


def scrubbed_inside(data: bytes) -> None:
    header = Header(RecordKind.SCRUBBED, 0, 1, drawn("record"))
    body = data + sign(ALICE.sign_private, "scrubbed 1", header.encode() + data)
    backend = drawn("backend")[:16]
    sealed = seal(KEYS.log_key(1), header, body, binding=NS_ID + backend)
    seen = open_scrubbed(KEYS, DEVICES, sealed, backend)
    assert seal_scrubbed(KEYS, seen, ALICE, era=0, epoch=1, random=drawn("record")) == sealed


def scrubbed_seeds() -> list[bytes]:
    out = []
    for tags in ((), ((1, b"t"),)):
        seen = Scrubbed(ALICE.device_id, drawn("backend")[:16], drawn("stores"), 1 << 60, 3, 7, 9, b"", tags)
        sealed = seal_scrubbed(KEYS, seen, ALICE, era=0, epoch=1, random=drawn("r"))
        _, body = unseal(KEYS.log_key(1), sealed, RecordKind.SCRUBBED, binding=NS_ID + seen.backend_id)
        out.append(body[:-64])
    return out


def shown_head(data: bytes) -> None:
    open_head(KEYS, DEVICES, data, ALICE.device_id)


RECORDS = (
    Target("entry", shown_entry, vector_seeds("entry")),
    Target("entry-inside", entry_inside, entry_bodies, lambda body: body, tries=SOME),
    Target("hint-inside", hint_inside, lambda: [entries._encode(entry(Kind.DECIDED)), *entry_bodies()], tries=SOME),
    Target("log", replay, log_seeds, tries=SOME),
    Target("head", shown_head, vector_seeds("head")),
    Target("head-inside", head_inside, head_seeds, tries=SOME),
    Target("scrubbed-inside", scrubbed_inside, scrubbed_seeds, tries=SOME),
    Target("genesis-inside", genesis_inside, genesis_seeds, tries=SOME),
    Target("record", shown_record, object_seeds),
    Target("record-inside", record_inside, lambda: [bytes32(b"x" * n) + bytes(966 - 4 - n) for n in (0, 9)]),
)
