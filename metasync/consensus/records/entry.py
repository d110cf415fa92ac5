"""The signed records of devices: log entries, which are the messages of pPaxos, and heads (consensus.md, 1.2 to 1.5).

An entry binds everything that could be confused: workspace, era, acceptor, version and index (in its associated data,
so that it opens nowhere else), the entry before it, and the whole base state. Its name is an HMAC under the epoch's log
key: who may write to the store but holds no key cannot occupy the next slot of a log.

A head says what a device itself last made and last synchronised: one record at `devices/<id>`, overwritten. It is a
hint, and nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from metasync.codec import (
    Reader,
    Tags,
    bytes16,
    bytes32,
    check_format,
    check_kind,
    encode_tags,
    u8,
    u32,
    u64,
)
from metasync.consensus.records.state import STATE_BYTES, ZERO_HASH, ZERO_ID, Ref, State, check_min_fmt, decode_state
from metasync.errors import FormatError
from metasync.keys.derive import (
    FORMAT,
    HEADER_BYTES,
    SIGNATURE_BYTES,
    Header,
    RecordKind,
    seal,
    sign,
    signed_part,
    verify,
)
from metasync.keys.device_set import CERTIFICATE_BYTES_MAX, DeviceIdentity, DeviceSet
from metasync.keys.keyring import WorkspaceKeys

ENTRY_BYTES_MAX: Final = 8192  # an ACCEPT has 1,536; the rest is room for a certificate, a claim and an index root
RIDING_BYTES_MAX: Final = 1536  # of an index root that rides: with a claim and a certificate it fits
OBJECTS_BYTES_MAX: Final = 6 << 20  # of a config and a device set that an entry carries, sealed
CLAIM_BYTES_MAX: Final = 2048  # of an entry that another one carries: one that carries none itself
INDEX_TAG: Final = 1  # of an entry with a value: meta objects that its index names, and the index before did not
REFS_MAX: Final = 4  # in it
ROOT_TAG: Final = 2  # of an entry with a value whose index rides: 32 random bytes, and the root of the index
RANDOM_BYTES: Final = 32  # of the object that such a root is, before its bytes
_REF_BYTES: Final = 8 + 32
VERSIONS_PER_FOLDER: Final = 1024
_SIGNED: Final = {  # what is signed for one purpose never serves another
    RecordKind.ENTRY: "entry 1",
    RecordKind.BLOCK: "block 1",
    RecordKind.HEAD: "head 1",
    RecordKind.HINT: "hint 1",
    RecordKind.FLOOR: "floor 1",
}


class Kind(IntEnum):
    PREPARE = 1
    ACCEPT = 2
    DECIDED = 3


class Round(NamedTuple):
    """Ordered by number, then by incarnation, which makes its proposer unique. n = 0 is the owner's."""

    n: int
    incarnation: bytes


class Claim(NamedTuple):
    """An entry as its reader found it on another acceptor: its place, and its bytes as stored."""

    acceptor_id: bytes
    v: int
    idx: int
    data: bytes


class Seen(NamedTuple):
    """An entry that was seen on an acceptor: version, index, SHA-256 of its bytes."""

    acceptor_id: bytes
    v: int
    idx: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of one acceptor's log of one version. `value`: with ACCEPT and DECIDED.

    `claim`: an entry that its writer read on another acceptor (consensus.md, rule 8.3).
    `config`, `devices`: the const objects that the value names, sealed, where its base names others; else b"".
    `steps`: the states that the value's `skip` rests on (`state.skip_after`), encoded.
    """

    acceptor_id: bytes
    v: int
    idx: int
    prev_entry: bytes
    base: State
    kind: Kind
    round: Round
    value: State | None
    entry_id: bytes
    device_id: bytes
    claim: Claim | None = None
    certificate: bytes = b""
    config: bytes = b""
    devices: bytes = b""
    steps: tuple[bytes, ...] = ()
    tags: Tags = ()


@dataclass(frozen=True, slots=True)
class SignedEntry:
    """An entry that opened; who signed it is still to be judged by the device set of its base."""

    entry: Entry
    header: Header
    body: bytes
    signature: bytes

    def verifies(self, public: bytes) -> bool:
        return verify(public, _SIGNED[RecordKind(self.header.kind)], self.header.encode() + self.body, self.signature)


def entry_path(keys: WorkspaceKeys, epoch: int, era: int, acceptor_id: bytes, v: int, idx: int) -> str:
    """Where entry `idx` of version v lies, relative to the workspace's folder on the backend. `epoch`: of state v-1."""
    place = b"entry" + u32(era) + acceptor_id + u64(v) + u32(idx)
    name = keys.log_name(epoch, place)
    return f"{acceptor_id.hex()}/px/{v // VERSIONS_PER_FOLDER}/{name}"


def block_path(
    keys: WorkspaceKeys, epoch: int, era: int, acceptor_id: bytes, v: int, device_id: bytes, idx: int
) -> str:
    """Where block `idx` of a device lies on an acceptor in block form. `epoch`: of state v-1."""
    place = b"block" + u32(era) + acceptor_id + u64(v) + device_id + u32(idx)
    name = keys.log_name(epoch, place)
    return f"{acceptor_id.hex()}/bl/{v // VERSIONS_PER_FOLDER}/{name}"


def with_refs(entry: Entry, refs: Sequence[Ref]) -> Entry:
    """The same entry, saying what its value's index names anew; as it is, where that may not fit beside the rest."""
    if not refs or len(refs) > REFS_MAX or entry.certificate:
        return entry
    return replace(entry, tags=((INDEX_TAG, b"".join(u64(ref.generation) + ref.hash for ref in refs)),))


def refs_in(entry: Entry) -> tuple[Ref, ...]:
    """What an entry says of that: a hint where to look, and proof of nothing. () for what is no list of names."""
    data = dict(entry.tags).get(INDEX_TAG, b"")
    if len(data) % _REF_BYTES or len(data) > REFS_MAX * _REF_BYTES:
        return ()
    r = Reader(data, "names of meta objects")
    return tuple(Ref(r.u64(), r.take(32)) for _ in range(len(data) // _REF_BYTES))


def with_root(entry: Entry, riding: bytes) -> Entry:
    """The same entry, carrying the index root of its value."""
    return replace(entry, tags=((ROOT_TAG, riding),))


def root_in(entry: Entry) -> bytes:
    """The index root that an entry carries, behind the 32 random bytes of the meta object that it is; or b"".

    Proof of nothing, until that object, sealed anew, has the hash that the entry's value names (`ValueRules`).
    """
    return dict(entry.tags).get(ROOT_TAG, b"")


def hint_path(acceptor_id: bytes) -> str:
    return f"{acceptor_id.hex()}/hint"


def floor_path(acceptor_id: bytes, floor: int) -> str:
    return f"{acceptor_id.hex()}/floor/{floor}"


def covering(v: int) -> int:
    """The lowest floor under which the log of version v may be deleted: a multiple of 1024."""
    return VERSIONS_PER_FOLDER * (v // VERSIONS_PER_FOLDER + 1)


def seal_entry(keys: WorkspaceKeys, entry: Entry, sign_private: bytes, random: bytes) -> bytes:
    """The bytes to append. `random`: 32 fresh bytes, the same only for the same entry."""
    binding = entry.base.ns_id + entry.acceptor_id + u64(entry.v) + u32(entry.idx)
    return _seal(keys, RecordKind.ENTRY, entry, sign_private, random, binding)


def open_entry(
    keys: WorkspaceKeys, data: bytes, *, ns_id: bytes, era: int, epoch: int, acceptor_id: bytes, v: int, idx: int
) -> SignedEntry:
    """Opens what lies at a place of a log; its signer is not yet judged.

    `FormatError` when it is not an entry of exactly this place, `UpgradeError` when newer than this program.
    """
    binding = ns_id + acceptor_id + u64(v) + u32(idx)
    signed = _open(keys, data, RecordKind.ENTRY, binding, era, epoch)
    entry = signed.entry
    if (entry.acceptor_id, entry.v, entry.idx) != (acceptor_id, v, idx) or entry.base.ns_id != ns_id:
        raise FormatError("entry: of another place")
    return signed


def open_claim(keys: WorkspaceKeys, claim: Claim, ns_id: bytes, base: bytes) -> SignedEntry:
    """Opens the entry that a claim carries, if it is one of its place; its signer is not yet judged.

    `base`: the hash of the state that it must stand on. `FormatError` or `UpgradeError` as `open_entry`.
    """
    binding = ns_id + claim.acceptor_id + u64(claim.v) + u32(claim.idx)
    signed = _open(keys, claim.data, RecordKind.ENTRY, binding)
    entry = signed.entry
    if (entry.acceptor_id, entry.v, entry.idx, entry.base.hash) != (*claim[:3], base):
        raise FormatError("claim: of another place")
    return signed


def seal_block(keys: WorkspaceKeys, entry: Entry, sign_private: bytes, random: bytes) -> bytes:
    """The bytes of a block: an entry whose `idx` and `prev_entry` count the writing device's own blocks."""
    binding = entry.base.ns_id + entry.acceptor_id + u64(entry.v) + entry.device_id + u32(entry.idx)
    return _seal(keys, RecordKind.BLOCK, entry, sign_private, random, binding)


def open_block(
    keys: WorkspaceKeys, data: bytes, *, base: State, acceptor_id: bytes, v: int, device_id: bytes, idx: int
) -> SignedEntry:
    """Opens what lies at a device's place; era and epoch are those of `base`, the signature is not yet judged.

    `FormatError` when it is not a block of exactly this place, `UpgradeError` when newer than this program.
    """
    binding = base.ns_id + acceptor_id + u64(v) + device_id + u32(idx)
    signed = _open(keys, data, RecordKind.BLOCK, binding, base.era, base.epoch)
    entry = signed.entry
    place = (entry.base.ns_id, entry.acceptor_id, entry.v, entry.device_id, entry.idx)
    if place != (base.ns_id, acceptor_id, v, device_id, idx):
        raise FormatError("block: of another place")
    if entry.certificate:
        raise FormatError("block: with a certificate, which only a device outside the set would need")
    return signed


def base_of_entry(
    keys: WorkspaceKeys, digest: bytes, place: State, acceptor_id: bytes, v: int, data: bytes, *, idx: int = 0
) -> State:
    """The state of this hash, which an entry of version v stands on. `place`: a state of the entry's era and epoch.

    `FormatError` when it stands on another one. Whoever signed it, the hash vouches for the state.
    """
    ns_id, era, epoch = place.ns_id, place.era, place.epoch
    signed = open_entry(keys, data, ns_id=ns_id, era=era, epoch=epoch, acceptor_id=acceptor_id, v=v, idx=idx)
    return _base_named(signed, digest)


def base_of_block(
    keys: WorkspaceKeys, digest: bytes, place: State, acceptor_id: bytes, v: int, device_id: bytes, data: bytes
) -> State:
    """The same of a device's block 0."""
    signed = open_block(keys, data, base=place, acceptor_id=acceptor_id, v=v, device_id=device_id, idx=0)
    return _base_named(signed, digest)


def _base_named(signed: SignedEntry, digest: bytes) -> State:
    if signed.entry.base.hash != digest:
        raise FormatError("it stands on another state")
    return check_min_fmt(signed.entry.base)


def seal_hint(keys: WorkspaceKeys, entry: Entry, sign_private: bytes, random: bytes) -> bytes:
    """A hint: a DECIDED entry outside any log, where a new device starts from. Never proof of the latest version."""
    if entry.kind is not Kind.DECIDED:
        raise ValueError("a hint says what is decided")
    return _seal(keys, RecordKind.HINT, entry, sign_private, random, entry.base.ns_id + entry.acceptor_id)


def open_hint(keys: WorkspaceKeys, data: bytes, acceptor_id: bytes) -> SignedEntry:
    """Opens an acceptor's hint; its signer is not yet judged. `FormatError` or `UpgradeError` as `open_entry`."""
    signed = _open(keys, data, RecordKind.HINT, keys.ns_id + acceptor_id)
    if signed.entry.kind is not Kind.DECIDED or signed.entry.acceptor_id != acceptor_id:
        raise FormatError("hint: not a decided state of this acceptor")
    return signed


def shown_epoch(data: bytes) -> int:
    """The epoch that a record says it is sealed in; 0 for what is none."""
    return int.from_bytes(data[6:10], "big") if len(data) >= HEADER_BYTES else 0


def seal_floor(keys: WorkspaceKeys, entry: Entry, sign_private: bytes, random: bytes) -> bytes:
    """A floor: a DECIDED entry outside any log, of a version above it (`truncation`)."""
    return _seal(keys, RecordKind.FLOOR, entry, sign_private, random, entry.base.ns_id + entry.acceptor_id)


def open_floor(keys: WorkspaceKeys, data: bytes, acceptor_id: bytes, floor: int) -> SignedEntry:
    """Opens an acceptor's floor; its signer is not yet judged. `FormatError` or `UpgradeError` as `open_entry`."""
    signed = _open(keys, data, RecordKind.FLOOR, keys.ns_id + acceptor_id)
    entry = signed.entry
    if (entry.kind, entry.acceptor_id) != (Kind.DECIDED, acceptor_id) or entry.v < floor:
        raise FormatError("floor: not one of this acceptor and version")
    return signed


def _seal(
    keys: WorkspaceKeys, kind: RecordKind, entry: Entry, sign_private: bytes, random: bytes, binding: bytes
) -> bytes:
    header = Header(kind, entry.base.era, entry.base.epoch, random)
    body = _encode(entry)
    signature = sign(sign_private, _SIGNED[kind], header.encode() + body)
    sealed = seal(keys.log_key(header.epoch), header, body + signature, binding=binding)
    if len(sealed) > ENTRY_BYTES_MAX + (OBJECTS_BYTES_MAX if entry.config or entry.devices or entry.steps else 0):
        raise ValueError(f"an entry of {len(sealed)} bytes")
    return sealed


def _open(
    keys: WorkspaceKeys,
    data: bytes,
    kind: RecordKind,
    binding: bytes,
    era: int | None = None,
    epoch: int | None = None,
) -> SignedEntry:
    most = ENTRY_BYTES_MAX + (OBJECTS_BYTES_MAX if kind in (RecordKind.ENTRY, RecordKind.BLOCK) else 0)
    header, plaintext = keys.opened(data, kind, "a log entry", binding=binding, bytes_max=most)
    cut = len(plaintext) - SIGNATURE_BYTES
    if cut < 0:
        raise FormatError("entry: too short for a signature")
    body, signature = plaintext[:cut], plaintext[cut:]
    entry = _decode(body)
    if (header.era, header.epoch) != (entry.base.era, entry.base.epoch) or era not in (None, header.era):
        raise FormatError("entry: era or epoch differ from its base's")
    if epoch not in (None, header.epoch):
        raise FormatError(f"entry: of epoch {header.epoch}")
    if kind in (RecordKind.HINT, RecordKind.FLOOR):  # of what is agreed
        for state in (entry.base, entry.value or entry.base):
            check_min_fmt(state)
    return SignedEntry(entry, header, body, signature)


def _encode(e: Entry) -> bytes:
    base = e.base
    head = u8(FORMAT) + base.ns_id + u32(base.era) + e.acceptor_id + u64(e.v) + u32(e.idx) + e.prev_entry
    head += base.encode() + u8(e.kind) + u32(e.round.n) + e.round.incarnation
    head += u8(0) if e.value is None else u8(1) + e.value.encode()
    if (c := e.claim) is None:
        head += u8(0)
    else:
        head += u8(1) + c.acceptor_id + u64(c.v) + u32(c.idx) + bytes16(c.data)
    head += bytes16(e.certificate) + bytes32(e.config) + bytes32(e.devices)
    head += u8(len(e.steps)) + b"".join(e.steps)
    return head + e.entry_id + e.device_id + encode_tags(e.tags)


def _decode(body: bytes) -> Entry:
    r = Reader(body, "entry")
    check_format(r.u8(), "a log entry")
    ns_id, era, acceptor_id, v, idx, prev_entry = r.take(32), r.u32(), r.take(16), r.u64(), r.u32(), r.take(32)
    base = decode_state(r.take(STATE_BYTES), proposed=True)
    kind = Kind(check_kind(r.u8(), max(Kind), "a log entry"))
    rnd = Round(r.u32(), r.take(16))
    has_value = r.u8()
    if has_value != (kind is not Kind.PREPARE):
        raise r.fail("a value with PREPARE, or none with ACCEPT or DECIDED")
    value = decode_state(r.take(STATE_BYTES), proposed=True) if has_value else None
    has_claim = r.u8()
    if has_claim > 1:
        raise r.fail("more than one claim")
    claim = Claim(r.take(16), r.u64(), r.u32(), r.bytes16(CLAIM_BYTES_MAX)) if has_claim else None
    certificate = r.bytes16(CERTIFICATE_BYTES_MAX)
    config, devices = r.bytes32(OBJECTS_BYTES_MAX), r.bytes32(OBJECTS_BYTES_MAX)
    steps = tuple(r.take(STATE_BYTES) for _ in range(r.count(r.u8(), STATE_BYTES)))
    entry_id, device_id, tags = r.take(16), r.take(16), r.tags()
    r.end()
    if (ns_id, era, v) != (base.ns_id, base.era, base.v + 1):
        raise FormatError("entry: workspace, era or version differ from its base's")
    if (idx == 0) != (prev_entry == ZERO_HASH):
        raise FormatError("entry: the entry before it is missing, or is not")
    if kind is Kind.PREPARE and rnd.n == 0:
        raise FormatError("entry: the owner's round is not prepared")
    if kind is not Kind.DECIDED and rnd.incarnation == ZERO_ID:
        raise FormatError("entry: a round of nobody")
    if (config or devices or steps) and value is None:
        raise FormatError("entry: it carries what no value names")
    place = acceptor_id, v, idx, prev_entry, base, kind, rnd, value, entry_id, device_id
    return Entry(*place, claim, certificate, config, devices, steps, tags)


@dataclass(frozen=True, slots=True)
class Head:
    """A device's newest snapshot `head`, its last synchronised one `prev`, and the state it had then."""

    device_id: bytes
    v: int
    state_hash: bytes
    head: bytes
    prev: bytes
    certificate: bytes = b""
    tags: Tags = ()


def head_path(device_id: bytes) -> str:
    return f"devices/{device_id.hex()}"


def seal_head(
    keys: WorkspaceKeys, head: Head, identity: DeviceIdentity, *, era: int, epoch: int, random: bytes
) -> bytes:
    """The bytes to store at `head_path`."""
    body = u8(FORMAT) + keys.ns_id + head.device_id + u64(head.v) + head.state_hash + head.head + head.prev
    body += bytes16(head.certificate) + encode_tags(head.tags)
    header = Header(RecordKind.HEAD, era, epoch, random)
    body += sign(identity.sign_private, _SIGNED[RecordKind.HEAD], header.encode() + body)
    return seal(keys.log_key(epoch), header, body, binding=keys.ns_id + head.device_id)


def open_head(keys: WorkspaceKeys, devices: DeviceSet, data: bytes, device_id: bytes) -> Head:
    """A device's head, signed by it. `FormatError` otherwise, `UpgradeError` for a newer format."""
    binding = keys.ns_id + device_id
    header, body = keys.opened(data, RecordKind.HEAD, "a head", binding=binding, bytes_max=ENTRY_BYTES_MAX)
    r = Reader(body, "head")
    check_format(r.u8(), "a head")
    ns_id, found = r.take(32), r.take(16)
    head = Head(found, r.u64(), r.take(32), r.take(32), r.take(32), r.bytes16(CERTIFICATE_BYTES_MAX), r.tags())
    signed, signature = signed_part(r)
    public = devices.key_of(device_id, head.certificate)
    if ns_id != keys.ns_id or found != device_id or public is None:
        raise FormatError("head: of another device or workspace")
    if not verify(public, _SIGNED[RecordKind.HEAD], header.encode() + signed, signature):
        raise FormatError("head: the device's signature is wrong")
    return head
