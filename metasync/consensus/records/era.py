"""The record of a new era, and the tombstone in place of a retired acceptor's birth (consensus.md, rule 5.1).

A record is sealed under the log key of its epoch and signed by the admin key of that epoch, whose chain it carries back
to `ns_id`. It lies at `eras/<number>` in the workspace's folder on each backend. What the admin key signed identifies
it: any device can seal that again, and two seals are one record. What does not open, or is not signed, is no record.

A tombstone stands in the clear, as a birth does. It keeps the birth nonce, so that only who could read the birth can
have made it, and says which era to look for; its digest is zero until the record is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from metasync.codec import Reader, Tags, bytes32, check_format, encode_tags, i64, text16, u8, u32
from metasync.config import CONFIG_BYTES_MAX, NAME_BYTES_MAX, Config, decode_config
from metasync.consensus.records.birth import BIRTH_NONCE_BYTES, birth_matches
from metasync.consensus.records.state import STATE_BYTES, ZERO_HASH, ZERO_ID, State, decode_state, skip_version
from metasync.errors import FormatError
from metasync.keys.derive import (
    FORMAT,
    SIGNATURE_BYTES,
    Header,
    RecordKind,
    read_header,
    seal,
    sha256,
    sign,
    signed_part,
    verify,
)
from metasync.keys.keyring import WorkspaceKeys
from metasync.keys.policy import AdminChain, decode_chain

ERAS: Final = "eras"
RECORD_BYTES_MAX: Final = 1 << 21  # a config of 1 MiB, a chain of 1024 keys, and small things
TOMBSTONE_BYTES: Final = 86
WITHOUT_MAX: Final = 255  # names of lost backends that are kept; a config has 256 backends at most
_SIGNED: Final = "era 1"


class Tombstone(NamedTuple):
    """A retired acceptor's: the era that begins instead, and its record's digest (zero: not known yet)."""

    era: int
    digest: bytes


class Passage(NamedTuple):
    """What a device keeps of the record of the era that it passed to last."""

    first: State
    ended: State
    digest: bytes

    def encode(self) -> bytes:
        return self.first.encode() + self.ended.encode() + self.digest

    def named_by(self, state: State) -> State:
        """The state whose config, devices and index serve to read `state`: itself, unless its era has ended."""
        return state if state.era >= self.first.era else self.first


def decode_passage(data: bytes) -> Passage:
    """What `Passage.encode` made. `FormatError`."""
    ended = decode_state(data[STATE_BYTES : 2 * STATE_BYTES])
    return Passage(decode_state(data[:STATE_BYTES]), ended, data[2 * STATE_BYTES :])


@dataclass(frozen=True, slots=True)
class EraRecord:
    """One era's beginning. `ended`: the last state of the era before; `first`: the state that is decided by this.

    `carried`: the value whose content `first` has, which was proposed after `ended` and maybe never decided.
    `config`: the one that `first` names. `without`: names of the backends that were lost.
    `at_ns`: ns since 1970, for people.
    """

    ended: State
    first: State
    carried: State | None
    config: Config
    without: tuple[str, ...]
    at_ns: int
    chain: AdminChain
    digest: bytes = ZERO_HASH  # SHA-256 of what was signed
    data: bytes = b""  # as it was read, sealed
    tags: Tags = ()

    @property
    def number(self) -> int:
        return self.first.era

    @property
    def passage(self) -> Passage:
        """What a device keeps that passes to this era."""
        return Passage(self.first, self.ended, self.digest)


def era_path(number: int) -> str:
    """Relative to the workspace's folder on a backend."""
    return f"{ERAS}/{number}"


def seal_record(keys: WorkspaceKeys, record: EraRecord, admin_private: bytes, random: bytes) -> bytes:
    """The bytes to store, signed by the admin key that the record's chain ends with."""
    body = u8(FORMAT) + u32(record.number) + i64(record.at_ns) + record.ended.encode() + record.first.encode()
    body += u8(0) if record.carried is None else u8(1) + record.carried.encode()
    names = record.without[:WITHOUT_MAX]
    body += u8(len(names)) + b"".join(text16(name) for name in names)
    body += bytes32(record.config.encode()) + record.chain.encode() + encode_tags(record.tags)
    body += sign(admin_private, _SIGNED, body)
    header = Header(RecordKind.ERA, record.number, record.first.epoch, random)
    return seal(keys.log_key(record.first.epoch), header, body, binding=keys.ns_id)


def epoch_of(data: bytes) -> int:
    """The key epoch that a record says it is sealed in; not yet authenticated. `FormatError`, `UpgradeError`."""
    return read_header(data).epoch


def open_record(keys: WorkspaceKeys, data: bytes, number: int, admins: Iterable[bytes] = ()) -> EraRecord:
    """The record of an era, verified back to `keys.ns_id`. `FormatError` otherwise.

    `UpgradeError` for what the admin signed and a newer program wrote; `admins`: the admin keys that are known, for a
    record in which a newer format hides the chain.
    """
    header, body = keys.opened(data, RecordKind.ERA, "an era record", binding=keys.ns_id, bytes_max=RECORD_BYTES_MAX)
    r = Reader(body, "era record")
    if r.u8() != FORMAT:
        signed, signature = body[:-SIGNATURE_BYTES], body[-SIGNATURE_BYTES:]
        if any(verify(admin, _SIGNED, signed, signature) for admin in admins):
            check_format(body[0], "an era record")
        raise FormatError("era record: of a newer format, and no admin signed it")
    shown, at_ns = r.u32(), r.i64()
    ended, first = r.take(STATE_BYTES), r.take(STATE_BYTES)
    has_carried = r.u8()
    if has_carried > 1:
        raise r.fail("neither with nor without a carried value")
    carried = r.take(STATE_BYTES) if has_carried else None
    without = tuple(r.text16(NAME_BYTES_MAX) for _ in range(r.count(r.u8(), 2)))
    config = r.bytes32(CONFIG_BYTES_MAX)
    chain, tags = decode_chain(r), r.tags()
    signed, signature = signed_part(r)
    # Before anything is called newer: any device could have sealed it.
    if chain.ns_id != keys.ns_id or not verify(chain.admin, _SIGNED, signed, signature):
        raise FormatError("era record: the admin's signature is wrong")
    record = EraRecord(
        decode_state(ended),
        decode_state(first),
        None if carried is None else decode_state(carried),
        decode_config(config),
        without,
        at_ns,
        chain,
        sha256(signed),
        data,
        tags,
    )
    epoch = record.first.epoch
    if (shown, header.era, header.epoch, chain.epoch) != (number, number, epoch, epoch):
        raise FormatError("era record: of another era or epoch")
    _check(record, keys.ns_id)
    return record


def _check(record: EraRecord, ns_id: bytes) -> None:
    """`FormatError` unless its states can be the end of one era and the beginning of the next."""
    ended, first, carried = record.ended, record.first, record.carried
    if (
        (ended.ns_id, first.ns_id) != (ns_id, ns_id)
        or (first.era, first.prev, first.writer) != (ended.era + 1, ended.hash, ZERO_ID)
        # Or the next power of two, where states between cannot be had (`new_era`).
        or first.v not in (ended.v + 1, 1 << ended.v.bit_length())
        or (skip_version(first.v) == ended.v and first.skip != first.prev)
        or first.epoch < ended.epoch
        or first.gen < ended.gen
        or not ended.min_gen <= first.min_gen <= first.gen
        or first.min_fmt < ended.min_fmt
    ):
        raise FormatError("era record: its first state does not follow the last one of the era before")
    if carried is not None and (
        (carried.era, carried.v, carried.prev) != (ended.era, ended.v + 1, ended.hash)
        or (carried.master, carried.op_id) != (first.master, first.op_id)
    ):
        raise FormatError("era record: its first state does not have the content it says it carries")


def encode_tombstone(acceptor_id: bytes, nonce: bytes, stone: Tombstone) -> bytes:
    """What replaces the birth object of a retired acceptor: 86 bytes, in the clear."""
    if len(acceptor_id) != 16 or len(nonce) != BIRTH_NONCE_BYTES or len(stone.digest) != 32:
        raise ValueError("a tombstone takes an id of 16, a nonce of 32 and a digest of 32 bytes")
    return u8(FORMAT) + u8(RecordKind.TOMBSTONE) + acceptor_id + nonce + u32(stone.era) + stone.digest


def read_tombstone(data: bytes, acceptor_id: bytes, birth: bytes) -> Tombstone | None:
    """The tombstone of the acceptor whose birth the config means; None for anything else."""
    if len(data) != TOMBSTONE_BYTES or data[:2] != u8(FORMAT) + u8(RecordKind.TOMBSTONE):
        return None
    if data[2:18] != acceptor_id or sha256(data[18:50]) != birth:
        return None
    return Tombstone(int.from_bytes(data[50:54], "big"), data[54:])


def is_root(data: bytes, place_id: bytes, birth: bytes) -> bool:
    """Whether this is the birth object that a config means, or the tombstone that replaced it."""
    return birth_matches(data, place_id, birth) or read_tombstone(data, place_id, birth) is not None
