"""Restores a MetaSync workspace from plain folders, with nothing but the passphrase or the recovery phrase.

    pip install cryptography blake3 zstandard mnemonic
    python reader.py --passphrase-file F FOLDER... --list
    python reader.py --passphrase-file F FOLDER... --history
    python reader.py --passphrase-file F FOLDER... --restore DEST [--version N]

A FOLDER is the root of a backend, or a copy of it on a disk. Give all that you have: the more there are, the more is
proven. Nothing is written to them, and nothing of MetaSync is needed. This file was written from docs/design/format.md
and format-agreement.md: numbers in parentheses are sections of format-agreement.md, those with an F of format.md.

Exit codes: 0 all was read. 1 something could not be read. 2 wrong usage. 3 all was read, but a newer version may exist.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import re
import sys
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any

import blake3
import zstandard
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from mnemonic import Mnemonic

ZERO = bytes(32)
BLOB, FILE, DIR, SNAPSHOT = 1, 2, 3, 4  # kinds of objects (F 1.4)
PREPARE, ACCEPT, DECIDED = 1, 2, 3  # kinds of entries (8)
UNITS = {1: 256, 2: 256, 6: 1024, 7: 1024, 8: 1024, 15: 1024, 17: 1024}  # of sealed records by kind (2); others 512
MOST_WORK = 100_663_296  # KiB times iterations that all key slots together may cost (3)
MOST_CACHED = 160 << 20  # bytes of unpacked segments that are kept
MOST_TREE = 8 << 30  # bytes of paths and entries that a tree may say (F 3.1)
MOST_CHUNKS = 1 << 22  # of one file (F 2.4)
OVERLOOKED = """00ad 034f 061c 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 3164 fe00-fe0f feff ffa0
    fff0-fff8 1bca0-1bca3 1d173-1d17a e0000-e0fff"""  # code points that some file systems drop from names (F 3.2)


class DamageError(Exception):
    """Bytes are missing, or are not what they should be. Another copy may be whole."""


class VoidError(Exception):
    """An entry keeps its place in its log and has no effect (8)."""


class UpgradeError(Exception):
    """Bytes are whole, and of a format that this reader does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was written by a newer version of MetaSync: get that version's reader.py")


class StopError(Exception):
    """Nothing more can be done. The message is for the user."""


class Report:
    """What the user is told on standard error, each thing once, and the exit code that comes of it."""

    def __init__(self) -> None:
        self.code, self.said = 0, set[str]()

    def note(self, text: str, code: int = 0) -> None:
        """Says something. `code`: 1 if it means that something could not be read, 3 if a newer version may exist."""
        self.code = 1 if 1 in (self.code, code) else self.code or code
        if text not in self.said:
            self.said.add(text)
            sys.stderr.write(text + "\n")


def shown(name: bytes) -> str:
    """A name that is safe to print: what is no UTF-8, and control characters, as escapes."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(ns: int) -> str:
    """A time in UTC, from nanoseconds since 1970."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{ns} ns"


# Primitives (F 1) -----------------------------------------------------------------------------------------------------


class Cursor:
    """Reads the fields of a record in order, and refuses what is too short, too long or out of bounds (F 1.1)."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.at, self.what = data, 0, what

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count > len(self.data) - self.at:
            raise DamageError(f"{self.what} is cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def u(self, bits: int, low: int = 0, high: int = (1 << 64) - 1) -> int:
        """An unsigned number of so many bits, within bounds."""
        value = int.from_bytes(self.take(bits // 8), "big")
        if not low <= value <= high:
            raise DamageError(f"{self.what} has a number out of bounds")
        return value

    def known(self, *values: int) -> int:
        """A byte that says what something is. One beyond those that are known is newer, any other is damage."""
        value = self.u(8)
        if value > max(values):
            raise UpgradeError(self.what)
        if value not in values:
            raise DamageError(f"{self.what} is of no kind")
        return value

    def format(self) -> int:
        """The format byte: 1. Those of 2 to 31 are newer, all others no format of MetaSync's (2)."""
        return self.known(1) if self.data[self.at : self.at + 1] < b"\x20" else self.u(8, 1, 1)

    def flag(self) -> bool:
        """0 or 1."""
        return bool(self.u(8, 0, 1))

    def i64(self) -> int:
        """A signed number."""
        return int.from_bytes(self.take(8), "big", signed=True)

    def bytes16(self) -> bytes:
        """Bytes behind their length of 2 bytes."""
        return self.take(self.u(16))

    def bytes32(self) -> bytes:
        """Bytes behind their length of 4 bytes."""
        return self.take(self.u(32))

    def text16(self) -> str:
        """Strict UTF-8 behind its length of 2 bytes."""
        try:
            return self.bytes16().decode()
        except UnicodeDecodeError:
            raise DamageError(f"{self.what} has a text that is not UTF-8") from None

    def tags(self) -> dict[int, bytes]:
        """The tags (F 1.2), values by number."""
        return {tag.n: tag.value for tag in self.rows(8, 64, "n:u16 value:bytes16", "n")}

    def fields(self, spec: str) -> Record:
        """Fields `name:kind` in order. A kind is a number of bytes, `u8` to `u64`, or a method of this class."""
        record = Record()
        for name, kind in (part.split(":") for part in spec.split()):
            if kind.isdigit():
                value: Any = self.take(int(kind))
            else:
                value = self.u(int(kind[1:])) if kind[0] == "u" else getattr(self, kind)()
            setattr(record, name, value)
        return record

    def rows(self, bits: int, most: int, spec: str, *order: str) -> list[Record]:
        """A count of so many bits, and so many rows of the same fields: strictly ascending by the fields in `order`."""
        rows = [self.fields(spec) for _ in range(self.u(bits, 0, most))]
        keys = [[getattr(row, name) for name in order] for row in rows] if order else []
        if any(a >= b for a, b in pairwise(keys)):
            raise DamageError(f"{self.what} is out of order")
        return rows

    def chain(self) -> list[bytes]:
        """The public keys of an admin chain, each certified by the one before (5)."""
        count = self.u(16, 1, 1024)
        keys = [self.take(32)]
        for i in range(2, count + 1):
            key, signature = self.take(32), self.take(64)
            verify(keys[-1], "admin key 1", sha256(keys[0]) + number(4, i) + key, signature)
            keys.append(key)
        return keys

    def recipient(self) -> tuple[int, bytes]:
        """Kind and id of a recipient (4)."""
        return self.public(32)

    def public(self, size: int = 1216) -> tuple[int, bytes]:
        """Kind and public key of a device (6), or an id of 32 bytes."""
        kind, key = self.u(8, 1), self.bytes16()
        if len(key) > 2048 or (kind in (2, 3) and len(key) != size):
            raise DamageError(f"{self.what} has a recipient of no kind")
        return kind, key

    def steps(self) -> list[str]:
        """The steps of one translator chain (7)."""
        return [self.text16() for _ in range(self.u(8, 0, 16))]

    def end(self) -> None:
        """Refuses what stands behind the last field."""
        if self.at != len(self.data):
            raise DamageError(f"{self.what} has more bytes than fields")

    def signature(self, key: bytes, context: str) -> None:
        """The last field: a signature of all above."""
        signed, signature = self.data[: self.at], self.take(64)
        self.end()
        verify(key, context, signed, signature)


def sha256(data: bytes) -> bytes:
    """H(x) of the format pages."""
    return hashlib.sha256(data).digest()


def hkdf(key: bytes, salt: bytes, label: str) -> bytes:
    """HKDF(key, salt, label) of the format pages: 32 bytes."""
    return HKDF(SHA256(), 32, salt, b"metasync " + label.encode()).derive(key)


def mac(key: bytes, *parts: bytes) -> str:
    """A name that a key gives: HMAC-SHA256, in hex."""
    return hmac.digest(key, b"".join(parts), "sha256").hex()


def number(size: int, value: int) -> bytes:
    """An unsigned number in so many bytes."""
    return value.to_bytes(size, "big")


def verify(key: bytes, context: str, message: bytes, signature: bytes) -> None:
    """Refuses a signature that is not the key's, of this message in this context."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"metasync " + context.encode() + b"\0" + message)
    except (InvalidSignature, ValueError):
        raise DamageError(f"a signature ({context}) is wrong") from None


def decrypt(key: bytes, nonce: int, data: bytes, bound: bytes, what: str) -> bytes:
    """AES-256-GCM, with a number for a nonce."""
    try:
        return AESGCM(key).decrypt(number(12, nonce), data, bound)
    except (InvalidTag, ValueError):
        raise DamageError(f"{what} does not open") from None


def unzstd(frame: bytes, most: int, what: str) -> bytes:
    """The content of exactly one zstd frame that says its size (F 5.3)."""
    try:
        if not 0 < (size := zstandard.get_frame_parameters(frame).content_size) <= most:
            raise DamageError(f"{what} does not say its size, or is too long")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError:
        raise DamageError(f"{what} does not unpack") from None


def record_length(kind: int, content: bytes) -> int:
    """How long a sealed record of this content is (2): a Padmé size (F 5.5)."""
    unit = UNITS.get(kind, 512)
    size = -(-(62 + len(content)) // unit) * unit
    e = size.bit_length() - 1
    step = 1 << max(0, e - e.bit_length())
    return -(-size // step) * step


def unseal(record: bytes, kind: int, parent: bytes, binding: bytes, what: str) -> bytes:
    """The content of a sealed record (2)."""
    if len(record) < 62 or record[:2] != bytes((1, kind)):
        raise DamageError(f"{what} is no sealed record of its kind")
    key = hkdf(parent, record[10:42], f"record {kind}")
    c = Cursor(decrypt(key, 0, record[42:], record[:42] + binding, what), what)
    content = c.bytes32()
    if any(c.data[c.at :]) or len(record) != record_length(kind, content):
        raise DamageError(f"{what} is padded wrongly")
    return content


# Records of agreement: each of these reads one, and refuses it unless its own signatures are right --------------------

STATE = """format:format min_format:u8 ns_id:32 era:u32 v:u64 prev:32 skip:32 master:32 config:32 index_gen:u64 index:32
    retained_gen:u64 retained:32 devices:32 keyring:32 epoch:u32 gen:u64 min_gen:u64 writer:16 op_id:16 extra:32"""
SLOT = "format:format kind:u8 salt:32 memory:u32 iterations:u32 lanes:u32 recipient:recipient tags:tags"
CERTIFICATE = """format:format ns_id:32 device:16 name:text16 signing:32 sealing:public tags:tags"""
BACKEND = "id:16 name:text16 scheme:text16 capacity:u64 identity:32"
ENTRY = "format:format ns_id:32 era:u32 acceptor:16 v:u64 index:u32 prev:32 base:402"
ENTRY_CARRIED, ENTRY_END = "certificate:bytes16 config:bytes32 devices:bytes32", "id:16 device:16 tags:tags"
SNAPSHOT_END = "device:16 time:i64 message:text16 tags:tags"


def read_state(raw: bytes) -> Record:
    """A state (8): its fields, its `raw` bytes and their `hash`."""
    c = Cursor(raw, "a state")
    state = c.fields(STATE)
    c.end()
    state.raw, state.hash = raw, sha256(raw)
    return state


def follows(state: Record, base: Record) -> bool:
    """Whether a state follows another, by the numbers in both (8)."""
    same_keys = (state.epoch, state.keyring, state.min_format) == (base.epoch, base.keyring, base.min_format)
    return (
        (state.v, state.prev, state.ns_id, state.era) == (base.v + 1, base.hash, base.ns_id, base.era)
        and (state.v % 4 == 0 or state.skip == (base.prev, base.hash)[state.v % 2])
        and state.epoch - base.epoch in (0, 1)
        and state.gen - base.gen in (0, 1)
        and base.min_gen <= state.min_gen <= state.gen
        and base.min_format <= state.min_format
        and any(state.writer)
        and (same_keys or state.devices != base.devices)
    )


def read_slot(data: bytes) -> Record:
    """A key slot's clear part (3), its costs within bounds, and what it seals."""
    c = Cursor(data, "a key slot")
    slot = c.fields(SLOT)
    slot.clear, slot.sealed = data[: c.at], c.bytes32()
    c.end()
    if slot.kind > 2 or slot.recipient[0] > 3:
        raise UpgradeError("a key slot")
    costs = 8 * slot.lanes <= slot.memory <= 262_144 and 1 <= slot.iterations <= 4 and 1 <= slot.lanes <= 16
    if not costs or slot.recipient[0] != 3 or len(data) > 4096:
        raise DamageError("a key slot is out of bounds")
    return slot


def open_slot(slot: Record, secret: bytes) -> Record:
    """What a slot seals: its `key`, and `ns_id` and `name` of the workspace."""
    key = Argon2id(
        salt=slot.salt, length=32, iterations=slot.iterations, lanes=slot.lanes, memory_cost=slot.memory
    ).derive(secret)
    c = Cursor(unseal(slot.sealed, 1, key, slot.clear, "a key slot"), "a key slot")
    opened = c.fields("key:bytes16 ns_id:32 name:text16 tags:tags")
    c.end()
    if hkdf(opened.key, b"", "slot id") != slot.recipient[1]:
        raise DamageError("a key slot has another key than it says")
    return opened


def read_ring(data: bytes) -> Record:
    """A keyring (4)."""
    c = Cursor(data, "a keyring")
    ring = c.fields("format:format encrypted:flag chain:chain salt:32")
    ring.head, ring.hash = data[: c.at], sha256(data)
    ring.recipients, _ = (c.rows(16, 1280, "to:recipient wrapped:bytes16", "to") for _ in range(2))
    ring.body = c.bytes32()
    c.tags()
    c.signature(ring.chain[max(0, len(ring.chain) - 2)], "keyring 1")
    return ring


def open_ring(ring: Record, slot_keys: list[bytes]) -> Record | None:
    """A ring's `epochs` (keys by epoch, all older ones too) and `id_key`. None if it is sealed to none of the slots."""
    by_id = {hkdf(key, b"", "slot id"): key for key in slot_keys}
    row = next((row for row in ring.recipients if row.to[0] == 3 and row.to[1] in by_id), None)
    if row is None:
        return None
    secret = decrypt(hkdf(by_id[row.to[1]], ring.salt, "ring"), 0, row.wrapped, b"", "a keyring")
    c = Cursor(unseal(ring.body, 2, secret, ring.head, "a keyring"), "a keyring")
    body = c.fields("epoch_key:32 id_key:32 chunk_seed:32 older:bytes32 tags:tags")
    c.end()
    c = Cursor(unseal(body.older, 2, hkdf(body.epoch_key, b"", "older"), b"", "older keys"), "older keys")
    body.epochs = {row.epoch: row.key for row in c.rows(16, 65_535, "epoch:u32 key:32", "epoch")}
    c.end()
    body.epochs[len(ring.chain)] = body.epoch_key
    return body


def read_certificate(data: bytes, admin: bytes) -> Record:
    """A device's certificate (6) by this admin key."""
    c = Cursor(data, "a certificate")
    certificate = c.fields(CERTIFICATE)
    c.signature(admin, "device certificate 1")
    return certificate


def read_devices(data: bytes, ns_id: bytes) -> Record:
    """A device set (6): its fields, and those of its policy, which begin with `policy_` where both have one."""
    c = Cursor(data, "a device set")
    policy = c.fields("format:format policy:bytes32").policy
    p = Cursor(policy, "a policy")
    devices = p.fields("format:format chain:chain era:u32 v:u64 min_format:u8 keyring:32 encrypted:flag")
    devices.chains = [row.steps for row in p.rows(16, 256, "steps:steps")]
    devices.copies, devices.f = p.u(8, 1), p.u(8)
    devices.acceptors = {(row.id, row.birth) for row in p.rows(8, 32, "id:16 birth:32", "id")}
    p.rows(16, 256, "slot:33", "slot")
    devices.revoked = {row.id for size in (16, 32) for row in p.rows(16, 4096, f"id:{size}", "id")}
    p.tags()
    p.signature(devices.chain[-1], "policy 1")
    devices.policy = policy
    found = [read_certificate(row.bytes, devices.chain[-1]) for row in c.rows(16, 1024, "bytes:bytes16")]
    devices.ended = {row.id for size in (16, 32) for row in c.rows(16, 4096, f"id:{size}", "id")}
    devices.notes = c.tags()
    c.end()
    devices.members = {one.device: one for one in found}
    ids = [one.device for one in found]
    barred = any(one.ns_id != ns_id or bars(devices, one) for one in found)
    if sha256(devices.chain[0]) != ns_id or barred or ids != sorted(set(ids)):
        raise DamageError("a device set is another workspace's, or has a device that it bars")
    return devices


def bars(devices: Record, certificate: Record) -> bool:
    """Whether a device set revokes this device, or took its invitation back."""
    return bool({certificate.device, certificate.signing} & (devices.revoked | devices.ended))


def admit(devices: Record, device: bytes, certificate: bytes) -> bytes:
    """The key that a device signs with: "Admitted" (8)."""
    if device in devices.members:
        return bytes(devices.members[device].signing)
    shows = read_certificate(certificate, devices.chain[-1])
    if shows.ns_id != sha256(devices.chain[0]) or shows.device != device or bars(devices, shows):
        raise DamageError("a device is not admitted")
    return bytes(shows.signing)


def read_config(data: bytes) -> Record:
    """What a reader needs of a config (7), and its `voters` and `quorum`."""
    c = Cursor(data, "a config")
    c.format()
    config = Record(mode=c.known(0, 1), f=c.u(8), encrypted=c.flag(), backends={})
    count = c.u(16, 1, 256)
    for _ in range(count):
        backend = c.fields(BACKEND)
        backend.storage = [(row.id, row.birth) for row in c.rows(16, 1024, "id:16 birth:32")]
        backend.form = c.known(0, 1, 2)  # no vote, log, block
        backend.acceptor, backend.birth = (c.take(16), c.take(32)) if backend.form else (b"", b"")
        c.tags()
        config.backends[backend.id] = backend
    c.known(1)
    c.u(32, 1)
    if c.known(1) and (c.u(64), c.known(1), c.known(1))[0] != (1 << 64) - 1:
        raise DamageError("a config has an open end")
    config.copies = c.u(8, 1)
    for _ in range(c.u(8, 1, 16)):
        c.u(64)
        c.known(1, 2)
        c.take(12)
    c.take(13)  # whole, pack, segment, level: for who writes
    config.chains = [row.steps for row in c.rows(16, 256, "steps:steps")]
    c.take(32 if c.flag() else 0)
    config.made = c.tags().get(1)
    c.end()
    config.voters = [backend for backend in config.backends.values() if backend.form]
    config.quorum = (len(config.voters) + config.f) // 2 + 1
    if config.mode == 1 and any(voter.form == 2 for voter in config.voters):
        raise UpgradeError("a config")
    enough = len(config.voters) > 3 * config.f > 0 if config.mode else config.f == 0
    ids, names = [*config.backends], {backend.name for backend in config.backends.values()}
    if (
        not enough
        or not 1 <= len(config.voters) <= 32
        or ids != sorted(ids)
        or len(names) != count
        or not config.chains
    ):
        raise DamageError("a config contradicts itself")
    return config


def read_entry(content: bytes) -> Record:
    """A log entry, block, hint or floor (8). Its signature is checked where its device is known."""
    c = Cursor(content, "a log entry")
    entry = c.fields(ENTRY)
    entry.kind, entry.round = c.known(PREPARE, ACCEPT, DECIDED), (c.u(32), c.take(16))
    entry.value = read_state(c.take(402)) if c.flag() else None
    entry.claim = c.fields("acceptor:16 v:u64 index:u32 bytes:bytes16") if c.flag() else None
    vars(entry).update(vars(c.fields(ENTRY_CARRIED)))
    entry.steps = [row.raw for row in c.rows(8, 255, "raw:402")]
    vars(entry).update(vars(c.fields(ENTRY_END)))
    entry.signed, entry.signature = content[: c.at], c.take(64)
    c.end()
    prepares = entry.kind == PREPARE
    good = any(entry.prev) == (entry.index > 0) and (entry.kind == DECIDED or any(entry.round[1]))
    good = good and not (prepares and (entry.round[0] == 0 or entry.config or entry.devices or entry.steps))
    good = good and (entry.claim is None or len(entry.claim.bytes) <= 2048)
    if not good or entry.index > 9_999 or (entry.value is None) != prepares:
        raise DamageError("a log entry breaks a rule")
    return entry


def read_era(content: bytes) -> Record:
    """An era record (9.1)."""
    c = Cursor(content, "an era record")
    record = c.fields("format:format number:u32 time:i64 ended:402 first:402")
    record.ended, record.first = read_state(record.ended), read_state(record.first)
    carried = read_state(c.take(402)) if c.flag() else None
    c.rows(8, 255, "without:text16")
    vars(record).update(vars(c.fields("config:bytes32 chain:chain tags:tags")))
    c.signature(record.chain[-1], "era 1")
    first, ended = record.first, record.ended
    good = (first.era, first.prev, first.writer) == (ended.era + 1, ended.hash, bytes(16))
    good = good and all(getattr(first, n) >= getattr(ended, n) for n in ("epoch", "gen", "min_gen", "min_format"))
    good = good and first.v in (ended.v + 1, 1 << ended.v.bit_length()) and len(record.chain) == first.epoch
    if carried is not None:
        good = good and (carried.era, carried.v, carried.prev) == (ended.era, ended.v + 1, ended.hash)
        good = good and (carried.master, carried.op_id) == (first.master, first.op_id)
    if not good or record.number != first.era:
        raise DamageError("an era record contradicts itself")
    return record


def check_step(value: Record, base: Record, new: tuple[Record, Record], old: tuple[Record, Record]) -> None:
    """Refuses a value that breaks a rule of 8.1, by config and device set of itself and of its base."""
    (config, devices), (old_config, old_devices) = new, old
    fields = "signing", "sealing"
    kept = all(
        id_ in devices.revoked
        or (id_ in devices.members and all(getattr(devices.members[id_], n) == getattr(one, n) for n in fields))
        for id_, one in old_devices.members.items()
    )
    good = kept and follows(value, base) and devices.chain[: len(old_devices.chain)] == old_devices.chain
    good = good and (devices.policy == old_devices.policy or (devices.era, devices.v) == (value.era, value.v))
    good = good and (value.epoch != base.epoch or old_devices.ended <= devices.ended)
    if value.config != base.config:
        both = [(one, config.backends[one.id]) for one in old_config.backends.values() if one.id in config.backends]
        stay = [a for a, b in both if a.form and (a.form, a.acceptor, a.birth) == (b.form, b.acceptor, b.birth)]
        good = good and len(stay) >= old_config.quorum and (config.made or b"")[:8] == number(8, value.v)
        good = good and all((a.scheme, a.identity) == (b.scheme, b.identity) for a, b in both)
        good = good and all(b.storage[: len(a.storage)] == a.storage for a, b in both)
    if not good:
        raise DamageError("a value may not follow its base")
    check_policy(value, config, devices)


def check_policy(state: Record, config: Record, devices: Record) -> None:
    """Refuses a state whose keys are not its policy's, or whose config the policy forbids (8.1: 3 and 5)."""
    keys = (state.epoch, state.keyring, state.min_format) == (len(devices.chain), devices.keyring, devices.min_format)
    same = (config.encrypted, config.chains) == (devices.encrypted, devices.chains)
    named = sum((voter.acceptor, voter.birth) in devices.acceptors for voter in config.voters)
    enough = config.copies >= devices.copies and config.f >= devices.f and named >= config.quorum
    if not keys or not same or not enough:
        raise DamageError("a state contradicts its policy")


# Folders and keys (1, 3, 4) -------------------------------------------------------------------------------------------


def read_file(path: Path, most: int = 80 << 20) -> bytes | None:
    """A file's bytes; None if there is no such file. What cannot be read raises OSError: that is no absence."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) > most:
        raise DamageError(f"{path} is too long")
    return data


def ids_in(folder: Path, report: Report) -> list[Path]:
    """The directories in a folder whose names are 32 hex digits."""
    try:
        return [path for path in sorted(folder.iterdir()) if re.fullmatch("[0-9a-f]{32}", path.name)]
    except OSError as problem:
        report.note(f"{folder}: {problem.strerror}", 1)
        return []


def key_files(folders: list[Path], report: Report) -> dict[str, dict[bytes, set[Path]]]:
    """Slots and rings whose bytes have the hash in their name: by what they are, then bytes, then where they lie."""
    found: dict[str, dict[bytes, set[Path]]] = {"slot": {}, "ring": {}}
    for path in (path for folder in folders for path in sorted((folder / "keys").iterdir())):
        if match := re.fullmatch("(slot|ring)-[1-9][0-9]*-([0-9a-f]{64})", path.name):
            try:
                data = read_file(path, 4 << 20) or b""
            except (OSError, DamageError):
                data = b""
            if sha256(data).hex() == match[2]:
                found[match[1]].setdefault(data, set()).add(path.parent.parent)
            else:
                report.note(f"{path}: damaged; looking for another copy")
    return found


def readable(read: Any, files: dict[bytes, set[Path]], report: Report) -> list[tuple[Record, set[Path]]]:
    """What of these files can be read, and where it lies. Newer ones stop only if there are no others (2)."""
    found, newer = [], None
    for data, places in files.items():
        try:
            found.append((read(data), places))
        except UpgradeError as problem:
            newer = problem
        except DamageError as problem:
            report.note(f"passed over: {problem}")
    if newer and not found:
        raise newer
    return found


def open_slots(slots: list[tuple[Record, set[Path]]], kind: int, secret: bytes, report: Report) -> list[Record]:
    """What the secret opens. Slots that most backends hold are tried first, and of these the cheap ones (3)."""
    opened, work = [], 0
    tried = [(-len(places), slot.memory * slot.iterations, slot) for slot, places in slots if slot.kind == kind]
    for _, cost, slot in sorted(tried, key=lambda row: row[:2]):
        work += cost
        if work > MOST_WORK:
            report.note("some key slots were not tried: all together they ask for too much work")
            break
        try:
            opened.append(open_slot(slot, secret))
        except DamageError:
            continue
    return opened


def find_workspaces(folders: list[Path], secret: tuple[int, bytes] | None, report: Report) -> list[Workspace]:
    """The workspaces that the secret opens, and those without encryption (14, 1 and 2)."""
    spaces = [path for folder in folders for path in [folder, *ids_in(folder, report)] if (path / "keys").is_dir()]
    if not spaces:
        raise StopError("no workspace is in these folders: name the backends' roots")
    files = key_files(spaces, report)
    rings = readable(read_ring, files["ring"], report)
    opened = open_slots(readable(read_slot, files["slot"], report), *secret, report) if secret else []
    found = []
    for ns_id in OrderedDict.fromkeys(sha256(ring.chain[0]) for ring, _ in rings):
        slots = [one for one in opened if one.ns_id == ns_id]
        mine = [(ring, places) for ring, places in rings if sha256(ring.chain[0]) == ns_id]
        if slots or not any(ring.encrypted for ring, _ in mine):
            places = sorted(set().union(*(places for _, places in mine)))
            keys = Keys(ns_id, [ring for ring, _ in mine], [one.key for one in slots], report)
            found.append(Workspace(slots[0].name if slots else ns_id.hex()[:12], places, keys, report))
    return found


class Keys:
    """The keys of one workspace. An epoch has several only where a rotation was tried and never agreed."""

    def __init__(self, ns_id: bytes, rings: list[Record], slot_keys: list[bytes], report: Report) -> None:
        self.ns_id, self.encrypted = ns_id, any(ring.encrypted for ring in rings)
        self.rings: dict[bytes, Record] = {}
        for ring in sorted(rings, key=lambda ring: -len(ring.chain)) if self.encrypted else ():
            try:
                if opened := open_ring(ring, slot_keys):
                    self.rings[ring.hash] = opened
            except DamageError as problem:
                report.note(f"passed over: {problem}")
        if self.encrypted and not self.rings:
            raise StopError("no keyring opens with this passphrase or phrase: is it an old one, that was changed?")
        id_key = next(iter(self.rings.values())).id_key if self.encrypted else hkdf(ns_id, b"", "open id key")
        self.state_names, root = hkdf(id_key, b"", "state names"), hkdf(id_key, b"", "object ids")
        self.of_kind = {kind: blake3.blake3(b"metasync object %d" % kind, key=root).digest() for kind in range(1, 5)}

    def of(self, epoch: int, keyring: bytes = b"") -> list[bytes]:
        """The keys that an epoch may have; the one of its ring, if that is named and opens."""
        if not self.encrypted:
            return [hkdf(self.ns_id, b"", f"open epoch {epoch}")]
        rings = [self.rings[keyring]] if keyring in self.rings else self.rings.values()
        if keys := list(OrderedDict.fromkeys(ring.epochs[epoch] for ring in rings if epoch in ring.epochs)):
            return keys
        raise DamageError(f"the keys of epoch {epoch} do not open: was the passphrase or phrase changed since?")

    def object_id(self, kind: int, data: bytes) -> bytes:
        """The id of an object (F 1.4)."""
        return bytes(blake3.blake3(data, key=self.of_kind[kind]).digest())


# Agreement (8, 14) ----------------------------------------------------------------------------------------------------


class Workspace:
    """One workspace: its folders, its keys, and what is agreed in it."""

    def __init__(self, name: str, folders: list[Path], keys: Keys, report: Report) -> None:
        self.name, self.folders, self.keys, self.report, self.ns_id = name, folders, keys, report, keys.ns_id
        self.carried: dict[bytes, bytes] = {}  # objects that entries carry, sealed or not, by the hash that names them
        self.read: dict[bytes, Record] = {}  # configs and device sets by name
        self.looks: dict[bytes, Record] = {}  # by the state that they stand on
        self.states: dict[int, Record] = {}  # those that were found decided

    @cached_property
    def places(self) -> list[Path]:
        """Every folder of an acceptor or of a storage id."""
        return [place for folder in self.folders for place in ids_in(folder, self.report)]

    def copies(self, where: str) -> Iterator[tuple[Path, bytes]]:
        """Every copy of a file: below the folders of acceptors and storage ids."""
        for path in (place / where for place in self.places):
            try:
                if (data := read_file(path)) is not None:
                    yield path, data
            except (OSError, DamageError) as problem:
                self.report.note(f"{path}: {problem}; looking for another copy")

    def open(self, record: bytes, kind: int, binding: bytes, what: str, keyring: bytes = b"") -> bytes:
        """The content of a record that is sealed under the log key of the epoch in its header."""
        problem = DamageError(what)
        for key in self.keys.of(int.from_bytes(record[6:10], "big"), keyring):
            try:
                return unseal(record, kind, hkdf(key, b"", "log"), binding, what)
            except DamageError as damage:
                problem = damage
        raise problem

    def named(self, where: str, digest: bytes, kind: int, what: str) -> bytes:
        """The content of a meta or const object by its hash, from any acceptor (11), or as an entry carried it."""
        if digest in self.carried:
            return self.carried[digest]
        for path, sealed in self.copies(f"{where}/{digest.hex()}"):
            if sha256(sealed) == digest:
                return self.open(sealed, kind, self.ns_id, what)
            self.report.note(f"{path}: damaged; looking for another copy")
        raise DamageError(f"{what} is whole in none of the folders")

    def config(self, state: Record) -> Record:
        """The config that a state names."""
        if state.config not in self.read:
            self.read[state.config] = read_config(self.named("const", state.config, 7, "a config"))
        return self.read[state.config]

    def devices(self, state: Record) -> Record:
        """The device set that a state names, which has its epoch and keyring."""
        if state.devices not in self.read:
            self.read[state.devices] = read_devices(self.named("const", state.devices, 7, "a device set"), self.ns_id)
        devices = self.read[state.devices]
        if (len(devices.chain), devices.keyring) != (state.epoch, state.keyring):
            raise DamageError("a state has other keys than its device set")
        return devices

    def acceptor(self, voter: Record) -> Path | None:
        """The folder of an acceptor, by its birth (9); None if none of the folders has it."""
        for folder in self.folders:
            birth = read_file(folder / voter.acceptor.hex() / "birth") or b""
            if len(birth) == 50 and birth[:18] == b"\x01\x0a" + voter.acceptor and sha256(birth[18:]) == voter.birth:
                return folder / voter.acceptor.hex()
        return None

    def log_path(self, place: Path, base: Record, device: bytes, index: int) -> Path:
        """Where an acceptor has an entry of the version after `base`, or a block of a device."""
        key = hkdf(self.keys.of(base.epoch, base.keyring)[0], b"", "log names")
        v, tail = base.v + 1, device + number(4, index)
        what = b"block" if device else b"entry"
        name = mac(key, what, number(4, base.era), bytes.fromhex(place.name), number(8, v), tail)
        return place / ("bl" if device else "px") / str(v // 1024) / name

    def messages(self, log: Record, place: Path, base: Record, device: bytes = b"") -> Iterator[Record]:
        """Entries of a log, or a device's blocks, to the first that is absent, without those that are VOID (8)."""
        before, total = ZERO, 0
        for index in range(10_001):
            if (record := read_file(self.log_path(place, base, device, index))) is None:
                return
            total += len(record)
            try:
                if index == 10_000 or total > 64 << 20:
                    raise DamageError("a log is too long")
                yield self.message(record, before, base, place, device, index)
            except VoidError:
                pass
            except (DamageError, UpgradeError) as problem:
                log.poison = str(problem)
                return
            before = sha256(record)
            log.hashes.append(before)

    def message(self, record: bytes, before: bytes, base: Record, place: Path, device: bytes, index: int) -> Record:
        """An entry at its place, judged in the order of 8, "Replay"."""
        acceptor, v, header = bytes.fromhex(place.name), base.v + 1, record[:42]
        if header[2:10] != number(4, base.era) + number(4, base.epoch):
            raise DamageError("an entry is of another era or epoch")
        binding = self.ns_id + acceptor + number(8, v) + device + number(4, index)
        entry = read_entry(self.open(record, 16 if device else 3, binding, "a log entry", base.keyring))
        says = entry.ns_id, entry.era, entry.acceptor, entry.v, entry.index, device and entry.device
        if says != (self.ns_id, base.era, acceptor, v, index, device) or (device and entry.certificate):
            raise DamageError("an entry lies at another place than it says")
        try:
            key = admit(self.devices(base), entry.device, entry.certificate)
        except (DamageError, UpgradeError):
            raise VoidError from None
        verify(key, "block 1" if device else "entry 1", header + entry.signed, entry.signature)
        if entry.base != base.raw or entry.prev != before:
            raise DamageError("an entry stands on another state, or on another entry than the one before it")
        if entry.value is not None:
            try:
                self.check_value(entry, base)
            except (DamageError, UpgradeError):
                raise VoidError from None
            if entry.value.min_format > 1:
                raise UpgradeError(f"version {v}")
        return entry

    def check_value(self, entry: Record, base: Record) -> None:
        """Refuses a value that 8.1 forbids. Keeps what the entry carries of it."""
        value, old, carried = entry.value, (self.config(base), self.devices(base)), {}
        v, skip = base.v + 1, base.prev if base.v % 2 else base.hash
        for step in entry.steps:  # states v - 2, v - 4, v - 8, ...
            skip = step[78:110] if sha256(step) == skip else b""
        if skip != value.skip or len(entry.steps) != max(0, (v & -v).bit_length() - 2):
            raise DamageError("an entry does not bear out its value's skip")
        for name, sealed in ((value.config, entry.config), (value.devices, entry.devices)):
            if name not in (base.config, base.devices):
                if sha256(sealed) != name or sealed[2:10] != number(4, base.era) + number(4, base.epoch):
                    raise DamageError("an entry does not carry what its value names")
                carried[name] = self.open(sealed, 7, self.ns_id, "a carried object", base.keyring)
        config = read_config(carried[value.config]) if value.config in carried else old[0]
        devices = read_devices(carried[value.devices], self.ns_id) if value.devices in carried else old[1]
        check_step(value, base, (config, devices), old)
        tag = entry.tags.get(2, b"")  # the index root itself, perhaps: sealed anew it has the hash that is named
        for key in self.keys.of(base.epoch, base.keyring) if len(tag) > 32 else ():
            header = b"\x01\x06" + number(4, base.era) + number(4, base.epoch) + tag[:32]
            plain = (number(4, len(tag) - 32) + tag[32:]).ljust(record_length(6, tag[32:]) - 58, b"\0")
            box = AESGCM(hkdf(hkdf(key, b"", "log"), tag[:32], "record 6"))
            carried[sha256(header + box.encrypt(bytes(12), plain, header + self.ns_id))] = tag[32:]
        self.carried |= carried

    def replay(self, place: Path, voter: Record, base: Record) -> Record:
        """What an acceptor accepted of the version after `base` (consensus.md 1.4, and 7.2 for blocks)."""
        start = (0, b"")
        log = Record(
            hashes=[], poison="", claiming=[], signers={}, promised=start, accepted={}, prepared=set(), closed=False
        )
        for device in [b""] if voter.form == 1 else [*self.devices(base).members] * 2:  # blocks are read twice
            for entry in self.messages(log, place, base, device):
                log.claiming += [entry] if entry.claim else []
                r, value = entry.round, entry.value and entry.value.raw
                if value:
                    log.signers.setdefault(value, set()).add(entry.device)
                if entry.kind == DECIDED:
                    log.closed = log.closed or (bool(log.accepted) and log.accepted[max(log.accepted)] == value)
                elif entry.kind == PREPARE and (device or (r > log.promised and not log.closed)):
                    log.prepared.add(r)
                    log.promised = max(log.promised, r)
                elif entry.kind == ACCEPT and (device or (r >= log.promised and not log.closed)):
                    owner = r[0] > 0 or r[1] == base.writer
                    if owner and log.accepted.setdefault(r, value) == value:
                        log.promised = max(log.promised, r)
        log.votes = {vote for vote in log.accepted.items() if voter.form == 1 or vote[0] >= log.promised}
        return log

    def proves(self, entry: Record, base: Record) -> bool:
        """Whether what an entry claims is one of the version after `base`, by a member other than its writer (8)."""
        claim = entry.claim
        binding = self.ns_id + claim.acceptor + number(8, base.v + 1) + number(4, claim.index)
        try:
            found = read_entry(self.open(claim.bytes, 3, binding, "a claim", base.keyring))
            member = self.devices(base).members[found.device]
            verify(member.signing, "entry 1", claim.bytes[:42] + found.signed, found.signature)
        except (DamageError, UpgradeError, KeyError):
            return False
        says = found.acceptor, found.v, found.index, found.base
        return says == (claim.acceptor, claim.v, claim.index, base.raw) and found.device != entry.device

    def look(self, base: Record) -> Record:
        """What the acceptors say of the version after `base` (14, 4 to 8)."""
        if base.hash in self.looks:
            return self.looks[base.hash]
        config, v, logs = self.config(base), base.v + 1, {}
        check_policy(base, config, self.devices(base))
        for voter in config.voters:
            try:
                place = self.acceptor(voter)
                if place is not None and not self.floor(place, 1024 * (v // 1024 + 1)):
                    logs[voter.acceptor] = self.replay(place, voter, base)
            except (OSError, DamageError) as problem:
                self.report.note(f"backend {voter.name}: {problem}")
        for entry in (entry for log in logs.values() for entry in log.claiming if self.proves(entry, base)):
            log, at = logs.get(entry.claim.acceptor), entry.claim.index
            if log and log.hashes[at : at + 1] != [sha256(entry.claim.bytes)]:
                log.poison = log.poison or "it lacks an entry that was seen there"
        good = [log for log in logs.values() if not log.poison]
        for voter in config.voters:
            if voter.acceptor in logs and (why := logs[voter.acceptor].poison):
                self.report.note(f"backend {voter.name} does not count for version {v}: {why}")
        most = len(config.voters) - config.quorum + config.f  # logs that may lack a round that a quorum promised
        rounds = {r for log in logs.values() for r in log.accepted}
        lack = {r: sum(r not in log.prepared and log.promised >= r for log in good) for r in rounds}
        cast = [(r, raw) for log in logs.values() for r, raw in log.accepted.items() if r[0] == 0 or lack[r] <= most]
        if len({raw for log in good for _, raw in log.votes}) == 1:  # a closed log stands for it in later rounds, too
            for log in (log for log in good if log.closed):
                log.votes |= {vote for vote in cast if vote[0] > max(log.accepted)}
        won = sorted(vote for vote in set(cast) if sum(vote in log.votes for log in good) >= config.quorum)
        if len(won) > 1 and won[0][0] == won[1][0]:
            raise StopError(f"two values are decided for version {v}: more backends or devices lie than is allowed for")
        ranked = list(OrderedDict.fromkeys(raw for _, raw in sorted(cast, reverse=True)))
        signers = {raw: set().union(*(log.signers.get(raw, ()) for log in logs.values())) for raw in ranked}
        self.looks[base.hash] = look = Record(quorum=config.quorum, answers=len(good), signers=signers)
        look.silent = len(config.voters) - len(good)
        look.support = {raw: max(sum((r, raw) in log.votes for log in good) for r in rounds) for raw in ranked}
        look.newest = sum(not log.hashes for log in good) >= config.quorum
        look.decided, look.candidates = (read_state(won[0][1]) if won else None), [read_state(raw) for raw in ranked]
        return look

    def pointer(self, path: Path, kind: int, context: str) -> tuple[Record, Record] | None:
        """Base and state that a hint or a floor names, if the base admits who signed it and 8.1 lets it pass."""
        if (record := read_file(path)) is None:
            return None
        acceptor = next(bytes.fromhex(part) for part in reversed(path.parts) if len(part) == 32)
        entry = read_entry(self.open(record, kind, self.ns_id + acceptor, "a hint or floor"))
        base, value = read_state(entry.base), entry.value
        says = entry.ns_id, entry.acceptor, entry.era, entry.v, entry.kind, entry.index
        if says != (self.ns_id, acceptor, base.era, base.v + 1, DECIDED, 0) or not follows(value, base):
            raise DamageError("a hint or floor contradicts itself")
        key = admit(self.devices(base), entry.device, entry.certificate)
        verify(key, context, record[:42] + entry.signed, entry.signature)
        check_policy(value, self.config(value), self.devices(value))
        return base, value

    def floor(self, place: Path, at: int) -> bool:
        """Whether an acceptor has this floor, so that logs below it may be gone (11.1)."""
        try:
            found = self.pointer(place / "floor" / str(at), 14, "floor 1")
        except (DamageError, UpgradeError):
            return False
        return found is not None and found[1].v >= at

    def confirmed(self, candidates: list[Record]) -> list[list[Record]]:
        """Of each candidate that a decided version stands on: the states from it to that version (14, 6)."""
        found = []
        for first in candidates:
            stack, below = [first], {first.hash: None}
            while stack:
                tip = stack.pop()
                try:
                    look = self.look(tip)
                except DamageError:
                    continue
                if look.decided is not None:
                    line = [look.decided]
                    while tip is not None:
                        line.append(tip)
                        tip = below[tip.hash]
                    found.append(line[::-1])
                    break
                stack += look.candidates[::-1]
                below.update((one.hash, tip) for one in look.candidates)
        return found

    def older(self, digest: bytes, v: int, above: Record) -> Record | None:
        """State v by its hash: an object of its own, in a block of states, or the base of an entry of v + 1 (14, 9)."""
        own = self.copies("const/" + mac(self.keys.state_names, b"state", digest))
        found = [(record, 8, self.ns_id) for _, record in own]
        for era in {above.era, max(0, above.era - 1)}:
            name = mac(self.keys.state_names, b"states", number(4, era), number(8, v // 1024))
            found += [(record, 15, self.ns_id) for _, record in self.copies("const/" + name)]
        for place in self.places:
            for epoch in {above.epoch, max(1, above.epoch - 1)}:
                path = self.log_path(place, Record(v=v, era=above.era, epoch=epoch, keyring=b""), b"", 0)
                if (record := read_file(path)) is not None:
                    binding = self.ns_id + bytes.fromhex(place.name) + number(8, v + 1) + number(4, 0)
                    found.append((record, 3, binding))
        for record, kind, binding in found:
            try:
                content = self.open(record, kind, binding, "an older state")
                raw = (
                    read_entry(content).base
                    if kind == 3
                    else content[402 * (v % 1024) :][:402]
                    if kind == 15
                    else content
                )
                if sha256(raw) == digest:
                    return read_state(raw)
            except (DamageError, UpgradeError):
                continue
        return None

    def leads_back(self, state: Record) -> bool:
        """Whether the hashes in a state lead back to one that was found decided."""
        known, stack, tried = {one.hash for one in self.states.values()}, [state], set()
        while stack:
            tip = stack.pop()
            for digest, v in ((tip.prev, tip.v - 1), (tip.skip, tip.v & (tip.v - 1))):
                if digest in known:
                    return True
                if digest not in tried and v > 0:
                    tried.add(digest)
                    stack += [one for one in [self.older(digest, v, tip)] if one is not None]
        return False

    def genesis(self) -> Record:
        """State 0 (14, 3)."""
        for path, record in self.copies("genesis"):
            try:
                c = Cursor(self.open(record, 9, self.ns_id + bytes.fromhex(path.parent.name), str(path)), str(path))
                genesis = c.fields("format:format state:402 chain:chain tags:tags")
                c.signature(genesis.chain[-1], "genesis 1")
                state = read_state(genesis.state)
                if sha256(genesis.chain[0]) == state.ns_id == self.ns_id and state.v == 0:
                    return state
            except DamageError as problem:
                self.report.note(f"passed over: {problem}")
        raise StopError("no genesis of this workspace is whole in these folders")

    def next_era(self, state: Record) -> Record | None:
        """The first state of the era after this one, if an admin's record began it (9.1)."""
        found = {}
        for path in (folder / "eras" / str(state.era + 1) for folder in self.folders):
            try:
                if (record := read_file(path)) is not None:
                    era = read_era(self.open(record, 18, self.ns_id, str(path)))
                    known, chain = self.devices(state).chain, era.chain
                    at = self.states.get(era.ended.v)
                    if era.number != state.era + 1:
                        raise DamageError(f"{path} is the record of another era")
                    if chain[: len(known)] != known or (at and at.era == era.ended.era and at.hash != era.ended.hash):
                        raise DamageError(f"{path} does not go on from what is known")
                    found[sha256(record)] = era
            except (OSError, DamageError, UpgradeError) as problem:
                self.report.note(f"passed over: {problem}", 3)
        if len(found) > 1:
            raise StopError("two records begin the next era: leave out the folders of the one that does not go on")
        for era in found.values():
            if era.ended.v < state.v and era.ended.era == state.era:
                self.report.note(
                    f"versions {era.ended.v + 1} to {state.v} were given up when the workspace was restarted"
                )
            return era.first
        return None

    def newest(self, unproven: bool) -> Record:
        """The newest state that can be shown to be agreed (14)."""
        state = self.genesis()
        while True:
            if state.min_format > 1:
                raise UpgradeError(f"version {state.v}")
            self.states[state.v] = state
            following, why = self.after(state, unproven)
            if following is None:
                if why:
                    self.report.note(why, 3)
                return state
            state = following

    def after(self, state: Record, unproven: bool) -> tuple[Record | None, str]:
        """The next state that is known decided. Where there is none: why a newer one may exist all the same."""
        try:
            look = self.look(state)
        except DamageError as problem:
            self.report.note(f"what version {state.v} names cannot be read: {problem}", 3)
            look = Record(decided=None, newest=False, candidates=[], answers=0, quorum=1, signers={})
        if look.decided is not None:
            return look.decided, ""
        lines = self.confirmed(look.candidates)
        if len(lines) > 1:
            names = [self.device_name(state, by).encode() for line in lines for by in look.signers[line[0].raw]]
            raise StopError(
                f"two histories begin at version {state.v + 1}, by {', '.join(map(shown, names))}: none is followed"
            )
        if lines:
            return lines[0][0], ""
        if (first := self.next_era(state)) is not None:
            return first, ""
        hint, v, more = self.best_hint(state), state.v, "another version may be agreed"
        if hint is not None and look.answers < look.quorum:
            return hint, ""
        if hint is not None:
            self.report.note(f"these are old copies, or lie: a device signed version {hint.v}, and they show {v}", 3)
            return (hint, "") if unproven else (None, "")
        if look.newest:
            return None, ""
        if look.candidates and unproven:
            self.report.note(f"version {v + 1} is not proven: a vote of these folders is all there is", 3)
            return look.candidates[0], ""
        more += ": --unproven shows what these folders have of it" if look.candidates else ""
        if look.answers >= look.quorum:
            return None, f"version {v} is the newest that is proven; {more}"
        return None, f"only {look.answers} of the {look.quorum} backends needed answer for version {v + 1}: {more}"

    def best_hint(self, state: Record) -> Record | None:
        """The newest state beyond this one of a hint that leads back, and that the logs of its version bear out."""
        found = None
        for path in (place / "hint" for place in self.places):
            try:
                base, hint = self.pointer(path, 4, "hint 1") or (state, state)
                if hint.v > (found or state).v and hint.era == state.era and self.leads_back(hint):
                    look = self.look(base)
                    held = look.support.get(hint.raw, 0) + look.silent >= look.quorum
                    new, old = self.devices(hint), self.devices(state)
                    later = (new.era, new.v) > (old.era, old.v) or new.policy == old.policy
                    found = hint if held and later and (look.decided or hint).raw == hint.raw else found
            except (OSError, DamageError, UpgradeError) as problem:
                self.report.note(f"{path}: {problem}")
        return found

    def device_name(self, state: Record, device: bytes) -> str:
        """A device's name, from the device set that a state names."""
        try:
            member = self.devices(state).members.get(device)
        except DamageError:
            member = None
        return member.name if member else device.hex()


# Contents (F 2 to 6) --------------------------------------------------------------------------------------------------


class Contents:
    """What the packs of a workspace hold, by the index of its newest state."""

    def __init__(self, space: Workspace, state: Record) -> None:
        self.space, self.state, self.chains = space, state, space.config(state).chains
        self.packs: dict[tuple[int, bytes], Record] = {}
        self.where: dict[bytes, list[Record]] = {}
        self.cache: OrderedDict[tuple[int, bytes, int], bytes] = OrderedDict()
        if not any(state.index):
            return
        c = Cursor(space.named(f"meta/{state.index_gen}", state.index, 6, "the index root"), "the index root")
        c.format()
        rows = c.rows(32, 1024, "generation:u64 hash:32 size:u64 objects:u64 packs:u32 tags:tags")
        c.tags()
        c.end()
        gone: set[tuple[int, bytes]] = set()
        for row in reversed(rows):
            try:
                inside = row.tags.get(1)
                data = inside or space.named(f"meta/{row.generation}", row.hash, 6, "an index segment")
                if len(data) != row.size or (inside is not None and sha256(inside) != row.hash):
                    raise DamageError("an index segment is not what the root says")
                gone |= self.add(data)
            except DamageError as problem:
                space.report.note(f"a part of the index cannot be read, and what it lists is missed: {problem}", 1)
        self.packs = {key: pack for key, pack in self.packs.items() if key not in gone}

    def add(self, data: bytes) -> set[tuple[int, bytes]]:
        """Takes in an index segment (F 6.2), older ones later; -> its tombstones."""
        Cursor(data, "an index segment").format()
        c = Cursor(unzstd(data[1:], 256 << 20, "an index segment"), "an index segment")
        packs = []
        for _ in range(c.u(32)):
            pack = c.fields("generation:u64 name:32 size:u64 header:38 size_class:u8 k:u8 n:u8")
            if not 1 <= pack.k <= pack.n:
                raise DamageError("an index segment has a pack of no parts")
            if (pack.size_class, pack.k, pack.n) != (0, 1, 1):
                raise UpgradeError("a pack")
            pack.segments = c.rows(32, 65_536, "stored:u32 raw:u32 digest:32")
            c.tags()
            at = 38
            for segment in pack.segments:
                segment.at, at = at, at + segment.stored
            if at > pack.size or pack.size > 256 << 20:
                raise DamageError("an index segment has a pack that is too short")
            packs.append(self.packs.setdefault((pack.generation, pack.name), pack))
        for row in c.rows(32, 1 << 32, "id:32 kind:u8 pack:u32 segment:u32 offset:u32 length:u32"):
            if row.pack >= len(packs) or row.segment >= len(packs[row.pack].segments):
                raise DamageError("an index segment names a pack that it does not list")
            row.pack = packs[row.pack].generation, packs[row.pack].name
            self.where.setdefault(row.id, []).append(row)
        gone = {(row.generation, row.name) for row in c.rows(32, 1 << 32, "generation:u64 name:32")}
        c.tags()
        c.end()
        return gone

    def object(self, kind: int, object_id: bytes) -> bytes:
        """An object, from any pack and any copy that has it whole."""
        problem = DamageError("the index does not list it")
        for row in self.where.get(object_id, ()):
            if row.kind >> 4 or row.kind > SNAPSHOT:
                raise UpgradeError("an object")
            try:
                raw = self.segment(row.pack, row.segment)
                data = raw[row.offset : row.offset + row.length]
                if row.kind == kind and self.space.keys.object_id(kind, data) == object_id:
                    return data
                problem = DamageError("a pack has something else in its place")
            except DamageError as damage:
                problem = damage
        raise problem

    def segment(self, key: tuple[int, bytes], index: int) -> bytes:
        """A segment of a pack, unpacked (F 5)."""
        if (*key, index) in self.cache:
            self.cache.move_to_end((*key, index))
            return self.cache[*key, index]
        if (pack := self.packs.get(key)) is None:
            raise DamageError("the index says that its pack was deleted")
        segment, problem = pack.segments[index], DamageError(f"pack {pack.name.hex()} is in none of the folders")
        for place in self.space.places:
            path = place / "packs" / str(pack.generation) / pack.name.hex()[:2] / pack.name.hex()
            try:
                with path.open("rb") as file:
                    file.seek(segment.at)
                    stored = file.read(segment.stored)
                if sha256(stored) == segment.digest:
                    raw = self.unpack(pack, index, stored)
                    break
                problem = DamageError(f"{path} is damaged")
                self.space.report.note(f"{problem}; looking for another copy")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as trouble:
                problem = DamageError(f"{path}: {trouble.strerror}")
        else:
            raise problem
        self.cache[*key, index] = raw
        while len(self.cache) > 1 and sum(map(len, self.cache.values())) > MOST_CACHED:
            self.cache.popitem(last=False)
        return raw

    def unpack(self, pack: Record, index: int, data: bytes) -> bytes:
        """The raw bytes of a stored segment: the steps of its chain, in reverse (F 5.2, 5.3)."""
        c, keys = Cursor(pack.header, "a pack"), self.space.keys
        header = c.fields("format:format chain:u8 epoch:u32 random:32")
        if header.chain >= len(self.chains) or not {"compress", "encrypt", "integrity"}.issuperset(
            self.chains[header.chain]
        ):
            raise UpgradeError("a pack")
        segment, bound = pack.segments[index], keys.ns_id + number(4, header.epoch) + b"pack" + pack.header
        for step in reversed(self.chains[header.chain]):
            if step == "encrypt" and keys.encrypted:
                tries = [hkdf(hkdf(key, b"", "pack"), header.random, "one pack") for key in keys.of(header.epoch)]
                data = first_that_opens(tries, index, data, bound)
            elif step == "compress":
                kind, rest = Cursor(data, "a segment").u(8, 0, 1), data[1:]
                data = unzstd(rest, segment.raw, "a segment") if kind else rest
        if len(data) != segment.raw or segment.raw > 64 << 20:
            raise DamageError("a segment has another length than the index says")
        return data

    def snapshot(self, object_id: bytes) -> Record:
        """A snapshot (F 4), with the `version` that it says it is."""
        c = Cursor(self.object(SNAPSHOT, object_id), "a snapshot")
        snapshot = c.fields("format:format root:32")
        snapshot.parents = [row.id for row in c.rows(8, 16, "id:32")]
        vars(snapshot).update(vars(c.fields(SNAPSHOT_END)))
        c.end()
        snapshot.version = int.from_bytes(snapshot.tags.get(1, b""), "big")
        return snapshot

    def history(self) -> Iterator[Record]:
        """The snapshots from the newest on, each followed by its first parent."""
        at = self.state.master
        above = self.state.v + 1
        while any(at):
            try:
                snapshot = self.snapshot(at)
            except DamageError as problem:
                if not any(first <= above - 1 <= last for first, last in self.dropped()):
                    raise
                self.space.report.note(f"what came before version {above} was dropped on purpose ({problem})")
                return
            yield snapshot
            at, above = (snapshot.parents or [ZERO])[0], snapshot.version

    def dropped(self) -> list[tuple[int, int]]:
        """The intervals of versions that are no longer kept, on purpose (F 6.4)."""
        if not any(self.state.retained):
            return []
        data = self.space.named(f"meta/{self.state.retained_gen}", self.state.retained, 6, "the list of kept versions")
        c = Cursor(data, "the list of kept versions")
        c.format()
        return [(row.first, row.last) for row in c.rows(32, 65_536, "first:u64 last:u64", "first")]

    def entries(self, root: bytes) -> Iterator[Record]:
        """The entries of a directory, leaf by leaf (F 3.1)."""
        last, stack = b"", [(root, -1, b"")]
        while stack:
            node_id, level, first = stack.pop()
            c = Cursor(self.object(DIR, node_id), "a directory")
            c.format()
            depth = c.u(8, 0, 7)
            if depth:
                children = c.rows(32, 1 << 32, "name:bytes16 id:32", "name")
                names = [child.name for child in children]
                stack += [(child.id, depth - 1, child.name) for child in reversed(children)]
            else:
                rows = [read_dir_entry(c) for _ in range(c.u(32))]
                names = [row.name for row in rows]
            c.end()
            inner = level >= 0 and (depth != level or names[:1] != [first])
            if inner or (depth and len(names) < (2 if level < 0 else 1)) or (not depth and names != sorted({*names})):
                raise DamageError("a directory contradicts itself")
            if not depth:
                if last and names and names[0] <= last:
                    raise DamageError("a directory is out of order")
                last = names[-1] if names else last
                yield from rows

    def tree(self, root: bytes) -> Iterator[tuple[bytes, Record]]:
        """Path and entry of everything in a tree: a directory before what is in it. What cannot be read is said."""
        said, stack = 0, [(b"", self.entries(root))]
        while stack:
            path, entries = stack[-1]
            try:
                entry = next(entries, None)
            except DamageError as problem:
                self.space.report.note(f"{shown(path) or '.'}: the directory cannot be read: {problem}", 1)
                entry = None
            if entry is None:
                stack.pop()
                continue
            below = path + b"/" + entry.name if path else entry.name
            said += len(below) + 100
            if said > MOST_TREE or len(below) > 1 << 20 or len(stack) > 1024:
                raise StopError(f"{shown(path)[:100]}: the tree is too deep or too large for any disk")
            yield below, entry
            if entry.kind == 2:
                stack.append((below, self.entries(entry.body)))

    def chunks(self, entry: Record) -> Iterator[bytes]:
        """The bytes of a file, chunk by chunk: whole only if this ends without an error (F 2)."""
        check = blake3.blake3(key=self.space.keys.of_kind[BLOB])
        size = count = 0
        for blob in [entry.body[:32]] * (entry.size > 0) if entry.kind == 1 else self.parts(entry):
            data = self.object(BLOB, blob)
            check.update(data)
            size, count = size + len(data), count + 1
            if size > entry.size or count > MOST_CHUNKS:
                raise DamageError("the file is longer than its directory says")
            yield data
        if size != entry.size or check.digest() != entry.body[:32]:
            raise DamageError("the file is not what its directory says")

    def parts(self, entry: Record) -> Iterator[bytes]:
        """The ids of the chunks of a file that has two or more (F 2.4)."""
        stack = [(entry.body[32:], -1, entry.size)]
        while stack:
            node_id, level, size = stack.pop()
            c = Cursor(self.object(FILE, node_id), "a file")
            node = c.fields("format:format level:u8 size:u64 content:32")
            rows = c.rows(32, 1 << 32, "id:32 size:u64")
            c.end()
            content = entry.body[:32] if level < 0 else ZERO
            good = (node.size, node.content) == (size, content) and node.level == (node.level if level < 0 else level)
            if not good or node.level > 7 or len(rows) < 1 + (level < 0) or sum(row.size for row in rows) != size:
                raise DamageError("a file contradicts itself")
            if node.level:
                stack += [(row.id, node.level - 1, row.size) for row in reversed(rows)]
            else:
                yield from (row.id for row in rows)


def first_that_opens(keys: list[bytes], nonce: int, data: bytes, bound: bytes) -> bytes:
    """What one of these keys opens: all but one are of rotations that were never agreed."""
    for key in keys[:-1]:
        try:
            return decrypt(key, nonce, data, bound, "a segment")
        except DamageError:
            continue
    return decrypt(keys[-1], nonce, data, bound, "a segment")


def read_dir_entry(c: Cursor) -> Record:
    """An entry of a directory (F 3.2): kind 1 and 4 files, 2 a directory, 3 a symlink."""
    c.known(1, 2, 3, 4)
    c.at -= 1
    entry = c.fields("kind:u8 mode:u16 mtime:i64 size:u64 name:bytes16")
    entry.body = c.bytes16() if entry.kind == 3 else c.take(64 if entry.kind == 4 else 32)
    c.tags()
    bad_name = not 0 < len(entry.name) <= 4096 or entry.name in (b".", b"..") or {0, 47} & {*entry.name}
    bad_target = entry.kind == 3 and (not entry.body or 0 in entry.body or len(entry.body) != entry.size)
    bad_other = (entry.kind == 2 and (entry.size or entry.mtime)) or (entry.kind == 3 and entry.mode)
    if bad_name or bad_target or bad_other or entry.mode > 0o7777:
        raise DamageError("a directory has an entry that no writer makes")
    return entry


# What the user asks for -----------------------------------------------------------------------------------------------


def is_local_state(name: bytes) -> bool:
    """Whether some file system takes this name for `.metasync` (F 3.2)."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    spans = [[int(end, 16) for end in span.split("-")] for span in OVERLOOKED.split()]
    text = "".join(char for char in text if not any(span[0] <= ord(char) <= span[-1] for span in spans))
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())
    return re.fullmatch(r"\.metasync|metasy~[0-9]+", text.split(":")[0].rstrip(". ")) is not None


def restore(contents: Contents, root: bytes, dest: Path) -> None:
    """Writes a tree into a new folder. It never follows or overwrites anything: what is in the way is said."""
    report, directories, refused = contents.space.report, [], [b"\0"]
    dest.mkdir(parents=True, exist_ok=True)
    if any(dest.iterdir()):
        raise StopError(f"{dest} is not empty: name a folder that is new")
    for path, entry in contents.tree(root):
        if path.startswith(refused[-1] + b"/"):
            continue
        target = os.path.join(os.fsencode(dest), path)
        try:
            if is_local_state(entry.name):
                raise DamageError("refused: this name is kept for the local state of MetaSync")
            if os.name == "nt" and {*entry.name} & {*b"\\:"}:
                raise DamageError("refused: Windows would write this name to another place")
            if entry.kind == 2:
                os.mkdir(target, 0o700)
                directories.append((target, entry.mode & 0o777))
            elif entry.kind == 3:
                os.symlink(entry.body, target)
            else:
                write_file(contents, entry, target)
            if entry.kind == 3 and os.utime in os.supports_follow_symlinks:
                os.utime(target, ns=(entry.mtime, entry.mtime), follow_symlinks=False)
            elif entry.kind != 2 and entry.kind != 3:
                os.utime(target, ns=(entry.mtime, entry.mtime))
        except (OSError, DamageError, OverflowError) as problem:
            refused.append(path)
            report.note(f"{shown(path)}: not restored: {getattr(problem, 'strerror', None) or problem}", 1)
    for target, mode in reversed(directories):
        os.chmod(target, mode)


def write_file(contents: Contents, entry: Record, target: bytes) -> None:
    """Writes one file, or leaves nothing of it."""
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600), "wb") as file:
        try:
            file.writelines(contents.chunks(entry))
        except BaseException:
            os.unlink(target)
            raise
    os.chmod(target, entry.mode & 0o777)


def of_version(contents: Contents, v: int | None) -> bytes | None:
    """The root of the tree that version v had; None if that was nothing yet."""
    state = contents.space.states.get(contents.state.v if v is None else v)
    if state is not None:
        return contents.snapshot(state.master).root if any(state.master) else None
    if v > contents.state.v:
        raise StopError(f"there is no version {v}: the newest is {contents.state.v}")
    return next((one.root for one in contents.history() if one.version <= v), None)


def secret_of(args: argparse.Namespace) -> tuple[int, bytes] | None:
    """Kind of slot and what opens it, from the file that the user named (3)."""
    path = args.passphrase_file or args.phrase_file
    if path is None:
        return None
    text = path.read_text(encoding="utf-8").rstrip("\r\n")
    if not text.strip():
        raise StopError(f"{path} is empty")
    if args.passphrase_file:
        return 1, unicodedata.normalize("NFC", text).encode()
    words = " ".join(unicodedata.normalize("NFKD", text).lower().split())
    if not Mnemonic("english").check(words):
        raise StopError("these words are no recovery phrase: one of them is misspelled, or missing")
    return 2, words.encode()


def run(args: argparse.Namespace, report: Report) -> None:
    """Finds the workspace, what is agreed in it, and does what was asked."""
    found = [one for one in find_workspaces(args.folder, secret_of(args), report) if args.workspace in (None, one.name)]
    if len(found) != 1:
        names = ", ".join(shown(one.name.encode()) for one in found)
        raise StopError(
            f"name one of these with --workspace: {names}" if found else "nothing here opens with this: was it changed?"
        )
    space = found[0]
    state = space.newest(args.unproven)
    fingerprint = f"{state.v}-{state.hash.hex()[:10]}"
    report.note(f"workspace {shown(space.name.encode())}, version {state.v}, fingerprint {fingerprint}")
    contents = Contents(space, state)
    if args.history:
        for one in contents.history():
            who, what = (shown(text.encode()) for text in (space.device_name(state, one.device), one.message))
            sys.stdout.write(f"{one.version}\t{moment(one.time)}\t{who}\t{what}\n")
        return
    root = of_version(contents, args.version)
    for path, entry in contents.tree(root) if args.list and root else ():
        kind, target = "ffdlf"[entry.kind], " -> " + shown(entry.body) if entry.kind == 3 else ""
        sys.stdout.write(f"{kind} {entry.mode:04o} {entry.size:12} {moment(entry.mtime)} {shown(path)}{target}\n")
    if args.restore and root:
        restore(contents, root, args.restore)


def main() -> int:
    """Reads the command line; -> the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="+", type=Path, help="a backend's root, or a copy of it")
    parser.add_argument("--passphrase-file", type=Path, metavar="F", help="a file with the passphrase")
    parser.add_argument("--phrase-file", type=Path, metavar="F", help="a file with the recovery phrase")
    parser.add_argument("--workspace", metavar="NAME", help="which one, where the folders hold several")
    parser.add_argument("--version", type=int, metavar="N", help="this version in place of the newest")
    parser.add_argument("--unproven", action="store_true", help="go on where too few backends answer")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="the files of a version")
    what.add_argument("--history", action="store_true", help="the versions, the newest first")
    what.add_argument("--restore", type=Path, metavar="DEST", help="write the files into a new folder")
    report = Report()
    try:
        run(parser.parse_args(), report)
    except (StopError, DamageError, UpgradeError, OSError) as problem:
        report.note(f"reader: {problem}", 1)
    return report.code


if __name__ == "__main__":
    sys.exit(main())
