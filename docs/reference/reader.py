"""Restores a MetaSync workspace from plain folders, with nothing but the passphrase or the recovery phrase.

    pip install cryptography blake3 zstandard mnemonic
    python reader.py --passphrase-file F FOLDER... --list
    python reader.py --passphrase-file F FOLDER... --history
    python reader.py --passphrase-file F FOLDER... --restore DEST [--version N]

A FOLDER is the root of a backend, or a copy of it on a disk. Give all that you have: the more there are, the more is
proven. Nothing is written to them, and nothing of MetaSync is needed. This file was written from docs/design/format.md
and format-agreement.md: numbers in parentheses are sections of format-agreement.md, those with an F of format.md.

It is one file, so that a copy of it is all that has to be kept. Its parts, each behind a line of dashes: numbers and
fields of records; what is said, and what is refused; bytes: fields, hashes, signatures, seals; records of agreement;
folders and keys; what is agreed; what an agreed version holds; what the user asks for.

It leaves out what only writers need: keys of devices, heads, floors' contents, invitations, placement, where files are
cut; footers of packs, for the index says the same; and what a hint leads back to (14, 9).

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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any

import blake3
import zstandard
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from mnemonic import Mnemonic

# Numbers and fields of records (F 1 to 6; 2 to 13) --------------------------------------------------------------------

ZERO = bytes(32)
BLOB, FILE, DIR, SNAPSHOT = 1, 2, 3, 4  # kinds of objects (F 1.4)
PREPARE, ACCEPT, DECIDED = 1, 2, 3  # kinds of entries (8)
UNITS = {1: 256, 2: 256, 6: 1024, 7: 1024}  # of sealed records by kind (2); others 512
SPANS = {"format": "1..1..31", "flag": "0..1..1"}  # formats up to 31 are newer, others none of MetaSync's (2)
MOST_WORK = 100_663_296  # KiB times iterations that all key slots together may cost (3)
RIDES = 1 << 63  # in a state's generation of its index: the index root is in the log entries of its version (8)
MOST_SEGMENTS = 16  # that are kept unpacked
MOST_TREE = 8 << 30  # bytes of paths and entries that a tree may say (F 3.1)
MOST_CHUNKS = 1 << 22  # of one file (F 2.4)
OVERLOOKED = """00ad 034f 061c 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 3164 fe00-fe0f feff ffa0
    fff0-fff8 1bca0-1bca3 1d173-1d17a e0000-e0fff"""  # code points that some file systems drop from names (F 3.2)

# The fields of records, in order: see `Cursor.fields`.
STATE = """format:format min_format:u8 ns_id:32 era:u32 v:u64 prev:32 skip:32 master:32 config:32 index_gen:u64 index:32
    retained_gen:u64 retained:32 devices:32 keyring:32 epoch:u32 gen:u64 min_gen:u64 writer:16 op_id:16 extra:32"""
SLOT = """format:format kind:1..2 salt:32 memory:u32 iterations:u32 lanes:u32 recipient:recipient tags:tags clear:here
    sealed:b32"""
SLOT_INSIDE = "key:b16 ns_id:32 name:t16 tags:tags"
RING = """format:format encrypted:flag chain:chain salt:32 head:here recipients:16*1280(to:recipient wrapped:b16)!
    others:16*1280(to:recipient wrapped:b16)! body:b32 tags:tags"""
RING_INSIDE = "epoch_key:32 id_key:32 chunk_seed:32 older:b32 tags:tags"
CERTIFICATE = "format:format ns_id:32 device:16 name:t16 signing:32 sealing:recipient tags:tags"
CHAINS = "chains:16*256(steps:8*16(t16))"
POLICY = f"""format:format chain:chain era:u32 v:u64 min_format:u8 keyring:32 encrypted:flag {CHAINS} copies:u8 f:u8
    acceptors:8*32(id:16 birth:32)! slots:16*256(33)! revoked:16*4096(16)! revoked_keys:16*4096(32)! tags:tags"""
DEVICES = """format:format policy:b32 certificates:16*1024(b16) ended:16*4096(16)! ended_keys:16*4096(32)! tags:tags"""
CONFIG = f"""format:format mode:0..1 f:u8 encrypted:flag backends:16*256(id:16 name:t16 scheme:t16 capacity:u64
    identity:32 storage:16*1024(id:16 birth:32) form:0..2 vote:?form(acceptor:16 birth:32) tags:tags)! mapping:1..1
    slots:u32 classes:1..1 until:u64 class_kind:1..1 redundancy:1..1 copies:u8 steps:8*16(end:u64 kind:1..2 rest:12)
    sizes:13 {CHAINS} spare:?(32) tags:tags"""
ENTRY = """format:format ns_id:32 era:u32 acceptor:16 v:u64 index:u32 prev:32 base:402 kind:1..3 n:u32 by:16
    value:?(402) claim:?(acceptor:16 v:u64 index:u32 bytes:b16) certificate:b16 config:b32 devices:b32 steps:8*(402)
    id:16 device:16 tags:tags signed:here signature:64"""
GENESIS = "format:format state:402 chain:chain tags:tags"
ERA = """format:format number:u32 time:i64 ended:402 first:402 carried:?(402) without:8*(t16) config:b32 chain:chain
    tags:tags signed:here"""
INDEX_ROOT = "format:format rows:32*1024(generation:u64 hash:32 size:u64 objects:u64 packs:u32 tags:tags) tags:tags"
INDEX_SEGMENT = """packs:32*(generation:u64 name:32 size:u64 header:38 size_class:u8 k:u8 n:u8
    segments:32*65536(stored:u32 raw:u32 digest:32) tags:tags)
    objects:32*(id:32 kind:u8 pack:u32 segment:u32 offset:u32 length:u32) gone:32*(generation:u64 name:32) tags:tags"""
PACK_HEADER = "format:format chain:u8 epoch:u32 random:32"
RETAINED = """format:format dropped:32*65536(first:u64 last:u64 below:32)! names:16*4096(name:t16 version:u64)!
    policy:t16 trees:32*65536(snapshot:32 root:32)! purge:flag tags:tags"""
SNAPSHOT_FIELDS = "format:format root:32 parents:8*16(32) device:16 time:i64 message:t16 tags:tags"
FILE_NODE = "format:format level:u8 size:u64 content:32 children:32*(id:32 size:u64)"


# What is said, and what is refused ------------------------------------------------------------------------------------


class DamageError(Exception):
    """Bytes are missing, or are not what they should be. Another copy may be whole."""


class UpgradeError(Exception):
    """Bytes are whole, and of a format that this reader does not know."""

    def __str__(self) -> str:
        return f"{self.args[0]} was written by a newer version of MetaSync: get that version's reader.py"


class StopError(Exception):
    """Nothing more can be done. The message is for the user."""


UNREADABLE = DamageError, UpgradeError


def require(good: object, problem: str) -> None:
    """Refuses bytes that are not what they should be."""
    if not good:
        raise DamageError(problem)


@contextmanager
def refusing(problem: str) -> Iterator[None]:
    """What a library refuses is damage."""
    try:
        yield
    except (InvalidSignature, InvalidTag, ValueError, zstandard.ZstdError):
        raise DamageError(problem) from None


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

    @contextmanager
    def passing(self, what: object, code: int = 0, errors: Any = (OSError, DamageError)) -> Iterator[None]:
        """Goes on past what cannot be read, and says so."""
        try:
            yield
        except errors as problem:
            self.note(f"{what}: {getattr(problem, 'strerror', None) or problem}", code)


def shown(name: bytes | str) -> str:
    """A name that is safe to print: what is no UTF-8, and control characters, as escapes."""
    text = name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(ns: int) -> str:
    """A time in UTC, from nanoseconds since 1970."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)).strftime("%Y-%m-%d %H:%M:%S")


# Bytes: fields, hashes, signatures, seals (F 1, F 5; 2) ---------------------------------------------------------------


class Cursor:
    """Reads the fields of a record in order, and refuses what is too short, too long or out of order (F 1.1)."""

    ROW = r"\(((?:[^()]|\([^()]*\))*)\)"  # fields in parentheses, and one more level of them in these
    FIELD = re.compile(rf"(\w+):(?:(\d+)\*(\d*){ROW}(!?)|\?(\w*){ROW}|([\w.]+))")

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.at, self.what = data, 0, what

    def fields(self, spec: str) -> Any:
        """Fields in order: `name:kind` (see `one`); `name:16*99(fields)`, at most 99 rows behind a count of 16 bits,
        ascending by their first field where `!` follows; `name:?(fields)`, a flag and, if it is 1, fields;
        `name:?other(fields)`, which are there unless the field `other` is 0. A kind alone is a value, and no record."""
        if ":" not in spec:
            return self.one(spec)
        record = Record()
        for name, bits, most, row, ascending, other, optional, kind in self.FIELD.findall(spec):
            if bits:
                value: Any = [self.fields(row) for _ in range(self.one("u" + bits))]
                firsts = [next(iter(vars(one).values())) if ":" in row else one for one in value if ascending]
                good = all(a < b for a, b in pairwise(firsts)) and len(value) <= int(most or len(value))
                require(good, f"{self.what} has rows out of order, or too many")
            elif optional:
                value = self.fields(optional) if (getattr(record, other) if other else self.one("flag")) else None
            else:
                value = self.one(kind)
            setattr(record, name, value)
        return record

    def one(self, kind: str) -> Any:
        """A field: `32` are so many bytes, `u16` and `i64` numbers, `b16` bytes and `t16` UTF-8 behind a length of so
        many bits, `0..2` a byte that says what something is, `here` all bytes before; others are methods."""
        if kind.isdigit():
            return self.take(int(kind))
        if ".." in (span := SPANS.get(kind, kind)):
            return self.known(*map(int, span.split("..")))
        if kind in ("chain", "recipient", "tags"):
            return getattr(self, kind)()
        if kind == "here":
            return self.data[: self.at]
        value = int.from_bytes(self.take(int(kind[1:]) // 8), "big", signed=kind[0] == "i")
        with refusing(f"{self.what} has a text that is not UTF-8"):
            return value if kind[0] in "ui" else self.take(value).decode() if kind[0] == "t" else self.take(value)

    def take(self, count: int) -> bytes:
        """So many bytes."""
        self.at += count
        require(self.at <= len(self.data), f"{self.what} is cut short")
        return self.data[self.at - count : self.at]

    def known(self, low: int, high: int, most: int = 255) -> int:
        """A byte that says what something is. One beyond those that are known is newer, any other is damage."""
        value = self.take(1)[0]
        require(low <= value <= most, f"{self.what} is of no kind or format")
        if value > high:
            raise UpgradeError(self.what)
        return value

    def tags(self) -> dict[int, bytes]:
        """The tags (F 1.2), values by number."""
        return {tag.n: tag.value for tag in self.fields("all:8*64(n:u16 value:b16)!").all}

    def chain(self) -> list[bytes]:
        """The public keys of an admin chain, each certified by the one before (5)."""
        count, keys = self.one("u16"), [self.take(32)]
        require(1 <= count <= 1024, f"{self.what} has a chain of no keys, or of too many")
        for i in range(2, count + 1):
            key, signature = self.take(32), self.take(64)
            verify(keys[-1], "admin key 1", sha256(keys[0]) + number(4, i) + key, signature)
            keys.append(key)
        return keys

    def recipient(self) -> tuple[int, bytes]:
        """Kind and id of a recipient (4), or kind and public key of a device (6)."""
        kind, key = self.one("u8"), self.one("b16")
        require(kind and len(key) <= 2048, f"{self.what} has a recipient of no kind")
        return kind, key


def read(spec: str, data: bytes, what: str, context: str = "", signer: Any = lambda record: record.chain[-1]) -> Record:
    """The fields of a whole record, its `raw` bytes and their `hash`. `context`: of the signature that ends it, if one
    does. `signer`: gives its key."""
    c = Cursor(data, what)
    record: Record = c.fields(spec)
    record.raw, record.hash = data, sha256(data)
    if context:
        verify(signer(record), context, c.one("here"), c.take(64))
    require(c.at == len(data), f"{what} has more bytes than fields")
    return record


def sha256(data: bytes) -> bytes:
    """H(x) of the format pages."""
    return hashlib.sha256(data).digest()


def hkdf(key: bytes, salt: bytes, label: str) -> bytes:
    """HKDF(key, salt, label) of the format pages: 32 bytes, so one block of RFC 5869."""
    return hmac.digest(hmac.digest(salt, key, "sha256"), b"metasync " + label.encode() + b"\x01", "sha256")


def number(size: int, value: int) -> bytes:
    """An unsigned number in so many bytes."""
    return value.to_bytes(size, "big")


def verify(key: bytes, context: str, message: bytes, signature: bytes) -> None:
    """Refuses a signature that is not the key's, of this message in this context."""
    with refusing(f"a signature ({context}) is wrong"):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"metasync " + context.encode() + b"\0" + message)


def decrypt(key: bytes, nonce: int, data: bytes, bound: bytes, what: str) -> bytes:
    """AES-256-GCM, with a number for a nonce."""
    with refusing(f"{what} does not open"):
        return AESGCM(key).decrypt(number(12, nonce), data, bound)


def first_whole(tries: Iterable[Any], attempt: Callable[[Any], bytes], missing: str) -> bytes:
    """What the first of these gives that is not damaged: a key of those that an epoch may have, or a copy."""
    problem = DamageError(missing)
    for one in tries:
        try:
            return attempt(one)
        except DamageError as damage:
            problem = damage
    raise problem


def unzstd(frame: bytes, most: int, what: str, prefix: bytes = b"") -> bytes:
    """The content of exactly one zstd frame that says its size (F 5.3)."""
    before = zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if prefix else None
    with refusing(f"{what} does not unpack"):
        size = zstandard.get_frame_parameters(frame).content_size
        require(0 < size <= most, f"{what} does not say its size, or is too long")
        return zstandard.ZstdDecompressor(before).decompress(frame, max_output_size=size, allow_extra_data=False)


def undelta(base: bytes, delta: bytes) -> bytes:
    """The blob that a delta makes of its base (F 5.8)."""
    (c := Cursor(delta, "a delta")).known(1, 1)
    data = unzstd(delta[5:], min(size := c.one("u32"), 1 << 24), "a delta", base)
    require(len(data) == size, "a delta is not as long as it says")
    return data


def record_length(kind: int, content: bytes) -> int:
    """How long a sealed record of this content is (2): a Padmé size (F 5.5)."""
    unit = UNITS.get(kind, 512)
    size = -(-(62 + len(content)) // unit) * unit
    e = size.bit_length() - 1
    step = 1 << max(0, e - e.bit_length())
    return -(-size // step) * step


def unseal(record: bytes, kind: int, parent: bytes, binding: bytes, what: str) -> bytes:
    """The content of a sealed record (2)."""
    require(len(record) >= 62 and record[:2] == bytes((1, kind)), f"{what} is no sealed record of its kind")
    key = hkdf(parent, record[10:42], f"record {kind}")
    c = Cursor(decrypt(key, 0, record[42:], record[:42] + binding, what), what)
    content: bytes = c.one("b32")
    require(not any(c.data[c.at :]) and len(record) == record_length(kind, content), f"{what} is padded wrongly")
    return content


# Records of agreement: each of these refuses a record whose own signatures are wrong ----------------------------------


read_state = partial(read, STATE, what="a state")  # (8)
read_ring = partial(read, RING, what="a keyring", context="keyring 1", signer=lambda ring: ring.chain[-2:][0])  # (4)


def read_slot(data: bytes) -> Record:
    """A key slot (3), its costs within bounds."""
    slot = read(SLOT, data, "a key slot")
    if slot.recipient[0] > 3:
        raise UpgradeError("a key slot")
    good = slot.recipient[0] == 3 and 8 * slot.lanes <= slot.memory <= 262_144 and len(data) <= 4096
    require(good and 1 <= slot.iterations <= 4 and 1 <= slot.lanes <= 16, "a key slot is out of bounds")
    return slot


def open_slot(slot: Record, secret: bytes) -> Record:
    """What a slot seals: its `key`, and `ns_id` and `name` of the workspace."""
    costs = {"iterations": slot.iterations, "lanes": slot.lanes, "memory_cost": slot.memory}
    key = Argon2id(salt=slot.salt, length=32, **costs).derive(secret)
    opened = read(SLOT_INSIDE, unseal(slot.sealed, 1, key, slot.clear, "a key slot"), "a key slot")
    opened.id = 3, hkdf(opened.key, b"", "slot id")
    require(opened.id == slot.recipient, "a key slot has another key than it says")
    return opened


def open_ring(ring: Record, slots: list[Record]) -> Record | None:
    """A ring's `epochs` (keys by epoch, all older ones too) and `id_key`. None if it is sealed to none of the slots."""
    for key, wrapped in ((slot.key, row.wrapped) for slot in slots for row in ring.recipients if row.to == slot.id):
        secret = decrypt(hkdf(key, ring.salt, "ring"), 0, wrapped, b"", "a keyring")
        body = read(RING_INSIDE, unseal(ring.body, 2, secret, ring.head, "a keyring"), "a keyring")
        older = unseal(body.older, 2, hkdf(body.epoch_key, b"", "older"), b"", "older keys")
        rows = read("keys:16*(epoch:u32 key:32)!", older, "older keys").keys
        body.epochs = {row.epoch: row.key for row in rows} | {len(ring.chain): body.epoch_key}
        return body
    return None


def read_certificate(data: bytes, devices: Record) -> Record:
    """A device's certificate (6) that a device set does not bar: by a revocation, or an invitation taken back."""
    own = read(CERTIFICATE, data, "a certificate", "device certificate 1", lambda _: devices.chain[-1])
    is_barred = {own.device, own.signing} & (devices.revoked | devices.ended)
    require(own.ns_id == sha256(devices.chain[0]) and not is_barred, "a device is not admitted")
    require(own.sealing[0] != 2 or len(own.sealing[1]) == 1216, "a device has no key to be sealed to")
    return own


def read_devices(data: bytes, ns_id: bytes) -> Record:
    """A device set (6): the fields of its policy, and its `members` by id."""
    own = read(DEVICES, data, "a device set")
    devices = read(POLICY, own.policy, "a policy", "policy 1")
    devices.policy, devices.acceptors = own.policy, {(row.id, row.birth) for row in devices.acceptors}
    devices.revoked, devices.ended = {*devices.revoked, *devices.revoked_keys}, {*own.ended, *own.ended_keys}
    found = [read_certificate(certificate, devices) for certificate in own.certificates]
    devices.members = {one.device: one for one in found}
    read("skips:8*64(at:u64 good:u64 tree:32 master:32)!", devices.tags.get(1, b"\0"), "skips")
    good = sha256(devices.chain[0]) == ns_id and devices.copies and all(a.device < b.device for a, b in pairwise(found))
    require(good, "a device set is another workspace's, or has devices out of order")
    return devices


def admit(devices: Record, device: bytes, certificate: bytes) -> bytes:
    """The key that a device signs with: "Admitted" (8)."""
    shows = devices.members.get(device) or read_certificate(certificate, devices)
    require(shows.device == device, "a device shows the certificate of another")
    return bytes(shows.signing)


def read_config(data: bytes) -> Record:
    """What a reader needs of a config (7): `backends` by id, the `voters` among them, and their `quorum`."""
    config = read(CONFIG, data, "a config")
    rows = [Record(**vars(row) | vars(row.vote or Record())) for row in config.backends]
    config.backends, config.voters = {row.id: row for row in rows}, [row for row in rows if row.form]
    config.quorum = (len(config.voters) + config.f) // 2 + 1
    if config.mode == 1 and any(voter.form == 2 for voter in config.voters):  # 1: log form, 2: block form
        raise UpgradeError("a config")
    good = 1 <= len(config.voters) <= 32 and len({row.name for row in rows}) == len(rows)
    good = good and config.chains and config.slots and config.copies and config.steps and config.until == (1 << 64) - 1
    good = good and (len(config.voters) > 3 * config.f > 0 if config.mode else config.f == 0)
    require(good, "a config contradicts itself")
    return config


def read_entry(content: bytes) -> Record:
    """A log entry, block, hint or floor (8). Its signature is checked where its device is known."""
    entry = read(ENTRY, content, "a log entry")
    entry.round, entry.value = (entry.n, entry.by), entry.value and read_state(entry.value)
    prepares = entry.kind == PREPARE
    good = any(entry.prev) == (entry.index > 0) and (entry.kind == DECIDED or any(entry.by))
    good = good and not (prepares and (entry.n == 0 or entry.config or entry.devices or entry.steps))
    good = good and (entry.claim is None or len(entry.claim.bytes) <= 2048)
    require(good and entry.index <= 9_999 and (entry.value is None) == prepares, "a log entry breaks a rule")
    return entry


def read_era(content: bytes) -> Record:
    """An era record (9.1)."""
    record = read(ERA, content, "an era record", "era 1")
    first, ended = record.first, record.ended = read_state(record.first), read_state(record.ended)
    good = (record.number, first.prev, first.writer) == (first.era, ended.hash, bytes(16))
    good = good and all(getattr(first, n) >= getattr(ended, n) for n in ("epoch", "gen", "min_gen", "min_format"))
    good = good and first.v in (ended.v + 1, 1 << ended.v.bit_length()) and len(record.chain) == first.epoch
    if record.carried:
        value = read_state(record.carried)
        good = good and (value.era, value.v, value.prev) == (ended.era, ended.v + 1, ended.hash)
        good = good and (value.master, value.op_id) == (first.master, first.op_id)
    require(good and first.era == ended.era + 1, "an era record contradicts itself")
    return record


def check_policy(state: Record, config: Record, devices: Record) -> None:
    """Refuses a state whose keys are not its policy's, or whose config the policy forbids (8.1: 3 and 6)."""
    good = (state.epoch, state.keyring, state.min_format) == (len(devices.chain), devices.keyring, devices.min_format)
    good = good and (config.encrypted, config.chains) == (devices.encrypted, devices.chains)
    named = sum((voter.acceptor, voter.birth) in devices.acceptors for voter in config.voters)
    enough = config.copies >= devices.copies and config.f >= devices.f and named >= config.quorum
    require(good and enough, "a state contradicts its policy")


def check_step(value: Record, base: Record, new: tuple[Record, Record], old: tuple[Record, Record]) -> None:
    """Refuses a value that does not follow its base (8, "State"), or breaks a rule of 8.1, by config and device set of
    itself (`new`) and of its base (`old`)."""
    (config, devices), (old_config, old_devices) = new, old
    same_keys = (value.epoch, value.keyring, value.min_format) == (base.epoch, base.keyring, base.min_format)
    same_rest = (value.config, value.devices) == (base.config, base.devices)
    keys, was = ({i: (one.signing, one.sealing) for i, one in s.members.items()} for s in (devices, old_devices))
    rules = [
        (value.v, value.prev, value.ns_id, value.era) == (base.v + 1, base.hash, base.ns_id, base.era),
        value.v % 4 == 0 or value.skip == (base.prev, base.hash)[value.v % 2],
        0 <= value.epoch - base.epoch <= 1 and 0 <= value.gen - base.gen <= 1 and any(value.writer),
        base.min_gen <= value.min_gen <= value.gen and base.min_format <= value.min_format,
        same_keys or value.devices != base.devices,
        value.index_gen < RIDES or (same_rest and any(base.index) and value.index != base.index),
        value.index_gen < RIDES or (value.v % 16 and value.v & (value.v - 1)),
        all(i in devices.revoked or keys.get(i) == pair for i, pair in was.items()),
        devices.chain[: len(old_devices.chain)] == old_devices.chain,
        devices.policy == old_devices.policy or (devices.era, devices.v) == (value.era, value.v),
        value.epoch != base.epoch or old_devices.ended <= devices.ended,
    ]
    if value.config != base.config:
        both = [(one, config.backends[i]) for i, one in old_config.backends.items() if i in config.backends]
        stay = [a for a, b in both if a.form and (a.form, a.acceptor, a.birth) == (b.form, b.acceptor, b.birth)]
        spare, index = old_config.spare, number(8, base.index_gen % RIDES) + base.index
        moved = config.tags.get(2) in (index, old_config.tags.get(2, index) if spare else index)
        rules += [
            len(stay) >= old_config.quorum,
            config.tags.get(1) == number(8, value.v) + base.config,
            not config.spare or (moved and config.spare == (spare or base.config)),
            all((a.scheme, a.identity) == (b.scheme, b.identity) for a, b in both),
            all(b.storage[: len(a.storage)] == a.storage for a, b in both),
        ]
    require(all(rules), "a value may not follow its base")
    check_policy(value, config, devices)


# Folders and keys (1, 3, 4) -------------------------------------------------------------------------------------------


def read_file(path: Path, most: int = 80 << 20, start: int = 0, count: int = -1) -> bytes | None:
    """A file's bytes, or `count` of them from `start` on; None if there is no such file. What cannot be read raises
    OSError: that is no absence."""
    with suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as file:
        file.seek(start)
        data = file.read(most + 1 if count < 0 else count)
        require(len(data) <= most, f"{path} is too long")
        return data
    return None


def ids_in(folder: Path, report: Report) -> list[Path]:
    """The directories in a folder whose names are 32 hex digits."""
    with report.passing(folder, 1):
        return [path for path in sorted(folder.iterdir()) if re.fullmatch("[0-9a-f]{32}", path.name)]
    return []


def key_files(spaces: list[Path], what: str, decode: Any, report: Report) -> list[tuple[Record, set[Path]]]:
    """Slots or rings whose bytes have the hash in their name, and where they lie."""
    places, found = defaultdict[bytes, set[Path]](set), []
    for path in (path for space in spaces for path in sorted((space / "keys").iterdir())):
        if match := re.fullmatch(what + "-[1-9][0-9]*-([0-9a-f]{64})", path.name):
            with report.passing(path):
                data = read_file(path, 4 << 20) or b""
                require(sha256(data).hex() == match[1], "damaged; looking for another copy")
                places[data].add(path.parent.parent)
    for data, where in places.items():
        with report.passing("passed over", 0, UNREADABLE):
            found.append((decode(data), where))
    return found


def open_slots(slots: list[tuple[Record, set[Path]]], kind: int, secret: bytes, report: Report) -> list[Record]:
    """What the secret opens. Slots that most backends hold are tried first, and of these the cheap ones (3)."""
    opened, work = [], 0
    tried = [(-len(places), slot.memory * slot.iterations, slot) for slot, places in slots if slot.kind == kind]
    for _, cost, slot in sorted(tried, key=lambda row: row[:2]):
        if (work := work + cost) > MOST_WORK:
            report.note("some key slots were not tried: all together they ask for too much work")
            break
        with suppress(DamageError):
            opened.append(open_slot(slot, secret))
    return opened


def find_workspaces(folders: list[Path], secret: tuple[int, bytes] | None, report: Report) -> Iterator[Workspace]:
    """The workspaces that the secret opens, and those without encryption (14, 1 and 2)."""
    spaces = [path for folder in folders for path in [folder, *ids_in(folder, report)] if (path / "keys").is_dir()]
    if not spaces:
        raise StopError("no workspace is in these folders: name the backends' roots")
    rings = defaultdict[bytes, list[tuple[Record, set[Path]]]](list)
    for ring, where in key_files(spaces, "ring", read_ring, report):
        rings[sha256(ring.chain[0])].append((ring, where))
    opened = open_slots(key_files(spaces, "slot", read_slot, report), *secret, report) if secret else []
    for ns_id, mine in rings.items():
        slots = [one for one in opened if one.ns_id == ns_id]
        if slots or not any(ring.encrypted for ring, _ in mine):
            places = sorted(set().union(*(places for _, places in mine)))
            keys = Keys(ns_id, [ring for ring, _ in mine], slots, report)
            yield Workspace(slots[0].name if slots else ns_id.hex()[:12], places, keys, report)


class Keys:
    """The keys of one workspace. An epoch has several only where a rotation was tried and never agreed."""

    def __init__(self, ns_id: bytes, rings: list[Record], slots: list[Record], report: Report) -> None:
        self.ns_id, self.encrypted = ns_id, any(ring.encrypted for ring in rings)
        self.rings: dict[bytes, Record] = {}
        for ring in sorted(rings, key=lambda ring: -len(ring.chain)) if self.encrypted else ():
            with report.passing("passed over"):
                if opened := open_ring(ring, slots):
                    self.rings[ring.hash] = opened
        if self.encrypted and not self.rings:
            raise StopError("no keyring opens with this passphrase or phrase: is it an old one, that was changed?")
        id_key = next(iter(self.rings.values())).id_key if self.encrypted else hkdf(ns_id, b"", "open id key")
        root = hkdf(id_key, b"", "object ids")
        self.of_kind = {kind: blake3.blake3(b"metasync object %d" % kind, key=root).digest() for kind in range(1, 5)}

    def of(self, epoch: int, keyring: bytes = b"") -> list[bytes]:
        """The keys that an epoch may have; the one of its ring, if that is named and opens."""
        if not self.encrypted:
            return [hkdf(self.ns_id, b"", f"open epoch {epoch}")]
        rings = [self.rings[keyring]] if keyring in self.rings else self.rings.values()
        keys = list(dict.fromkeys(ring.epochs[epoch] for ring in rings if epoch in ring.epochs))
        require(keys, f"the keys of epoch {epoch} do not open: was the passphrase or phrase changed since?")
        return keys


# What is agreed (8, 14) -----------------------------------------------------------------------------------------------


class Workspace:
    """One workspace: its folders, its keys, and what is agreed in it (8, 14)."""

    def __init__(self, name: str, folders: list[Path], keys: Keys, report: Report) -> None:
        self.name, self.folders, self.keys, self.report, self.ns_id = name, folders, keys, report, keys.ns_id
        self.places = [place for folder in folders for place in ids_in(folder, report)]  # of acceptors and storage ids
        self.carried: dict[bytes, bytes] = {}  # objects that entries carry, by the hash that names them
        self.read: dict[bytes, Record] = {}  # configs and device sets by name
        self.looks: dict[bytes, Record] = {}  # by the state that they stand on
        self.states: dict[int, Record] = {}  # those that were found decided

    def copies(self, where: str, below: list[Path] | None = None, code: int = 0, **part: int) -> Iterator[Any]:
        """Path and bytes of every copy of a file, or of this part: below the folders of acceptors and storage ids, or
        below these."""
        for path in (folder / where for folder in (self.places if below is None else below)):
            with self.report.passing(path, code):
                if (data := read_file(path, **part)) is not None:
                    yield path, data

    def whole(self, where: str, digest: bytes, what: str, **part: int) -> bytes:
        """The first copy of a file, or of this part, that has this hash."""
        for path, data in self.copies(where, **part):
            if sha256(data) == digest:
                return bytes(data)
            self.report.note(f"{path}: damaged; looking for another copy")
        raise DamageError(f"{what} is whole in none of the folders")

    def open(self, record: bytes, kind: int, binding: bytes, what: str, keyring: bytes = b"") -> bytes:
        """The content of a record that is sealed under the log key of the epoch in its header."""
        keys = self.keys.of(int.from_bytes(record[6:10], "big"), keyring)
        return first_whole(keys, lambda key: unseal(record, kind, hkdf(key, b"", "log"), binding, what), what)

    def named(self, where: str, digest: bytes, kind: int, what: str) -> bytes:
        """The content of a meta or const object by its hash, from any acceptor (11), or as an entry carried it."""
        if digest in self.carried:
            return self.carried[digest]
        return self.open(self.whole(f"{where}/{digest.hex()}", digest, what), kind, self.ns_id, what)

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
        require((len(devices.chain), devices.keyring) == (state.epoch, state.keyring), "a state has other keys")
        return devices

    def acceptor(self, voter: Record) -> Path | None:
        """The folder of an acceptor, by its birth (9); None if none of the folders has it."""
        for path, birth in self.copies(f"{voter.acceptor.hex()}/birth", self.folders):
            if birth[:18] == b"\x01\x0a" + voter.acceptor and sha256(birth[18:]) == voter.birth:
                return path.parent
        return None

    def log_path(self, place: Path, base: Record, device: bytes, index: int) -> Path:
        """Where an acceptor has an entry of the version after `base`, or a block of a device."""
        key = hkdf(self.keys.of(base.epoch, base.keyring)[0], b"", "log names")
        v, what = base.v + 1, b"block" if device else b"entry"
        where = bytes.fromhex(place.name) + number(8, v) + device + number(4, index)
        name = hmac.digest(key, what + number(4, base.era) + where, "sha256").hex()
        return place / ("bl" if device else "px") / str(v // 1024) / name

    def messages(self, log: Record, place: Path, base: Record, device: bytes) -> Iterator[Record]:
        """Entries of a log, or a device's blocks, to the first that is absent, without those that are VOID (8)."""
        before, total = ZERO, 0
        for index in range(10_001):
            if (record := read_file(self.log_path(place, base, device, index))) is None:
                return
            try:
                require(index < 10_000 and (total := total + len(record)) <= 64 << 20, "a log is too long")
                if entry := self.message(record, before, base, place, device, index):
                    yield entry
            except UNREADABLE as problem:
                log.poison = str(problem)
                return
            log.hashes.append(before := sha256(record))

    def message(self, record: bytes, before: bytes, base: Record, place: Path, device: bytes, index: int) -> Any:
        """An entry at its place, judged in the order of 8, "Replay"; None if it is VOID."""
        acceptor, v, header = bytes.fromhex(place.name), base.v + 1, record[:42]
        require(header[2:10] == number(4, base.era) + number(4, base.epoch), "an entry is of another era or epoch")
        binding = self.ns_id + acceptor + number(8, v) + device + number(4, index)
        entry = read_entry(self.open(record, 16 if device else 3, binding, "a log entry", base.keyring))
        says = entry.ns_id, entry.era, entry.acceptor, entry.v, entry.index, device and entry.device
        is_here = says == (self.ns_id, base.era, acceptor, v, index, device) and not (device and entry.certificate)
        require(is_here, "an entry lies at another place than it says")
        try:
            key = admit(self.devices(base), entry.device, entry.certificate)
        except UNREADABLE:
            return None
        verify(key, "block 1" if device else "entry 1", header + entry.signed, entry.signature)
        if entry.base != base.raw:
            return None
        require(entry.prev == before, "an entry does not stand on the one before it")
        try:
            if entry.value is not None:
                self.check_value(entry, base)
        except UNREADABLE:
            return None
        if entry.value is not None and entry.value.min_format > 1:
            raise UpgradeError(f"version {v}")
        return entry

    def check_value(self, entry: Record, base: Record) -> None:
        """Refuses a value that 8.1 forbids. Keeps what the entry carries of it."""
        value, old, carried = entry.value, (self.config(base), self.devices(base)), {}
        v, skip, now = base.v + 1, base.prev if base.v % 2 else base.hash, number(4, base.era) + number(4, base.epoch)
        for step in entry.steps:  # states v - 2, v - 4, v - 8, ...
            skip = step[78:110] if sha256(step) == skip else b""
        require(skip == value.skip and len(entry.steps) == max(0, (v & -v).bit_length() - 2), "a value's skip is wrong")
        for name, sealed in ((value.config, entry.config), (value.devices, entry.devices)):
            if name not in (base.config, base.devices):
                require(sha256(sealed) == name and sealed[2:10] == now, "an entry does not carry what its value names")
                carried[name] = self.open(sealed, 7, self.ns_id, "a carried object", base.keyring)
        config = read_config(carried[value.config]) if value.config in carried else old[0]
        devices = read_devices(carried[value.devices], self.ns_id) if value.devices in carried else old[1]
        check_step(value, base, (config, devices), old)
        tag = entry.tags.get(2, b"") if value.index_gen >= RIDES else b""
        for key in self.keys.of(base.epoch, base.keyring) if 32 < len(tag) <= 32 + 1536 else ():
            header = b"\x01\x06" + now + tag[:32]
            plain = (number(4, len(tag) - 32) + tag[32:]).ljust(record_length(6, tag[32:]) - 58, b"\0")
            box = AESGCM(hkdf(hkdf(key, b"", "log"), tag[:32], "record 6"))
            carried[sha256(header + box.encrypt(bytes(12), plain, header + self.ns_id))] = tag[32:]
        require(value.index_gen < RIDES or value.index in carried, "an entry does not carry the index of its value")
        self.carried |= carried

    def replay(self, place: Path, voter: Record, base: Record) -> Record:
        """What an acceptor accepted of the version after `base` (consensus.md 1.4, and 7.2 for blocks)."""
        log = Record(hashes=[], poison="", claiming=[], accepted={}, prepared=set(), closed=False, promised=(0, b""))
        log.signers = defaultdict(set)  # devices by value
        for device in [b""] if voter.form == 1 else [*self.devices(base).members] * 2:  # blocks are read twice
            for entry in self.messages(log, place, base, device):
                log.claiming += [entry] if entry.claim else []
                r, value = entry.round, entry.value and entry.value.raw
                log.signers[value].add(entry.device)
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
        with suppress(*UNREADABLE, KeyError):
            found = read_entry(self.open(claim.bytes, 3, binding, "a claim", base.keyring))
            key = self.devices(base).members[found.device].signing
            verify(key, "entry 1", claim.bytes[:42] + found.signed, found.signature)
            says = found.acceptor, found.v, found.index, found.base
            return says == (claim.acceptor, claim.v, claim.index, base.raw) and found.device != entry.device
        return False

    def look(self, base: Record) -> Record:
        """What the acceptors say of the version after `base` (14, 4 to 8)."""
        if base.hash in self.looks:
            return self.looks[base.hash]
        config, v, logs = self.config(base), base.v + 1, {}
        check_policy(base, config, self.devices(base))
        for voter in config.voters:
            with self.report.passing(f"backend {voter.name}"):
                place = self.acceptor(voter)
                # With a floor, logs below it may be gone (11.1): what is absent there was perhaps deleted.
                if place is not None and read_file(place / "floor" / str(1024 * (v // 1024 + 1))) is None:
                    logs[voter.acceptor] = self.replay(place, voter, base)
        for entry in (entry for log in logs.values() for entry in log.claiming if self.proves(entry, base)):
            log, at = logs.get(entry.claim.acceptor), entry.claim.index
            if log and log.hashes[at : at + 1] != [sha256(entry.claim.bytes)]:
                log.poison = log.poison or "it lacks an entry that was seen there"
        for voter in config.voters:
            if voter.acceptor in logs and (why := logs[voter.acceptor].poison):
                self.report.note(f"backend {voter.name} does not count for version {v}: {why}")
        good = [log for log in logs.values() if not log.poison]
        most = len(config.voters) - config.quorum + config.f  # logs that may lack a round that a quorum promised
        rounds = {r for log in logs.values() for r in log.accepted}
        lack = {r: sum(r not in log.prepared and log.promised >= r for log in good) for r in rounds}
        cast = [(r, raw) for log in logs.values() for r, raw in log.accepted.items() if r[0] == 0 or lack[r] <= most]
        if len({raw for log in good for _, raw in log.votes}) == 1:  # a closed log stands for it in later rounds, too
            for log in (log for log in good if log.closed):
                log.votes |= {vote for vote in cast if vote[0] > max(log.accepted)}
        count = {vote: sum(vote in log.votes for log in good) for vote in product(rounds, {raw for _, raw in cast})}
        won = sorted(vote for vote in set(cast) if count[vote] >= config.quorum)
        if len(won) > 1 and won[0][0] == won[1][0]:
            raise StopError(f"two values are decided for version {v}: more backends or devices lie than is allowed for")
        ranked = list(dict.fromkeys(raw for _, raw in sorted(cast, reverse=True)))
        look = Record(quorum=config.quorum, answers=len(good), silent=len(config.voters) - len(good))
        look.decided, look.candidates = read_state(won[0][1]) if won else None, [read_state(raw) for raw in ranked]
        look.newest = sum(not log.hashes for log in good) >= config.quorum
        look.support = {raw: max(count[r, raw] for r in rounds) for raw in ranked}
        look.signers = {raw: set().union(*(log.signers[raw] for log in logs.values())) for raw in ranked}
        return self.looks.setdefault(base.hash, look)

    def leads_on(self, candidate: Record) -> bool:
        """Whether a later version that is decided stands on this candidate (14, 6)."""
        stack = [candidate]
        while stack:
            with suppress(DamageError):
                look = self.look(stack.pop())
                if look.decided is not None:
                    return True
                stack += look.candidates[::-1]
        return False

    def genesis(self) -> Record:
        """State 0 (14, 3)."""
        for path, record in self.copies("genesis"):
            with self.report.passing(path):
                content = self.open(record, 9, self.ns_id + bytes.fromhex(path.parent.name), "a genesis")
                genesis = read(GENESIS, content, "a genesis", "genesis 1")
                state = read_state(genesis.state)
                if sha256(genesis.chain[0]) == state.ns_id == self.ns_id and state.v == 0:
                    return state
        raise StopError("no genesis of this workspace is whole in these folders")

    def next_era(self, state: Record) -> Record | None:
        """The first state of the era after this one, if an admin's record began it (9.1)."""
        found = {}
        for path, record in self.copies(f"eras/{state.era + 1}", self.folders, 3):
            with self.report.passing(path, 3, UNREADABLE):
                era = read_era(self.open(record, 18, self.ns_id, "an era record"))
                known, at = self.devices(state).chain, self.states.get(era.ended.v)
                other = at and at.era == era.ended.era and at.hash != era.ended.hash
                goes_on = era.number == state.era + 1 and era.chain[: len(known)] == known and not other
                require(goes_on, "it does not go on from what is known")
                found[era.signed] = era  # any device can seal that again
        if len(found) > 1:
            raise StopError("two records begin the next era: leave out the folders of the one that does not go on")
        for era in found.values():
            if era.ended.v < state.v and era.ended.era == state.era:
                self.report.note(f"versions {era.ended.v + 1} to {state.v} were given up by a restart")
            return era.first
        return None

    def newest(self, unproven: bool) -> Record:
        """The newest state that can be shown to be agreed (14)."""
        state = following = self.genesis()
        while following is not None:
            state = following
            if state.min_format > 1:
                raise UpgradeError(f"version {state.v}")
            self.states[state.v] = state
            following = self.after(state, unproven)
        return state

    def after(self, state: Record, unproven: bool) -> Record | None:
        """The next state that is known decided. Where there is none, it is told why a newer one may exist."""
        look, v = Record(decided=None, newest=False, candidates=[], answers=0, quorum=1, signers={}), state.v
        with self.report.passing(f"what version {v} names cannot be read", 3, DamageError):
            look = self.look(state)
        if look.decided is not None:
            return look.decided
        lines = [one for one in look.candidates if self.leads_on(one)]
        if len(lines) > 1:
            by = ", ".join(shown(self.device_name(state, i)) for one in lines for i in look.signers[one.raw])
            raise StopError(f"two histories begin at version {v + 1}, by {by}: none is followed")
        if lines or (first := self.next_era(state)) is not None:
            return lines[0] if lines else first
        answers, hint = look.answers >= look.quorum, self.best_hint(state)
        if hint is not None and answers:
            self.report.note(f"these are old copies, or lie: a device signed version {hint.v}, and they show {v}", 3)
        if hint is not None or look.newest:
            return hint if unproven or not answers else None
        if look.candidates and unproven:
            self.report.note(f"version {v + 1} is not proven: a vote of these folders is all there is", 3)
            return look.candidates[0]
        few = f"only {look.answers} of the {look.quorum} backends needed answer for version {v + 1}"
        more = ": --unproven shows what these folders have of it" if look.candidates else ""
        why = f"version {v} is the newest that is proven" if answers else few
        self.report.note(f"{why}; another version may be agreed{more}", 3)
        return None

    def best_hint(self, state: Record) -> Record | None:
        """The newest state beyond this one of a hint (8) whose device its base admits, and that the logs of its version
        bear out. Where it leads back to is not looked at: who can write its logs could make that up, too."""
        found = None
        for path, record in self.copies("hint"):
            with self.report.passing(path, 0, (OSError, *UNREADABLE)):
                acceptor = bytes.fromhex(path.parent.name)
                entry = read_entry(self.open(record, 4, self.ns_id + acceptor, "a hint"))
                base, value = read_state(entry.base), entry.value
                says = entry.ns_id, entry.acceptor, entry.era, entry.v, entry.kind, entry.index
                require(says == (self.ns_id, acceptor, base.era, base.v + 1, DECIDED, 0), "a hint contradicts itself")
                (config, devices), old = ((self.config(one), self.devices(one)) for one in (value, base))
                key = admit(old[1], entry.device, entry.certificate)
                verify(key, "hint 1", record[:42] + entry.signed, entry.signature)
                check_step(value, base, (config, devices), old)
                look, known = self.look(base), self.devices(state)
                held = look.support.get(value.raw, 0) + look.silent >= look.quorum
                later = (devices.era, devices.v) > (known.era, known.v) or devices.policy == known.policy
                is_it = held and later and value.era == state.era and (look.decided or value).raw == value.raw
                found = value if is_it and value.v > (found or state).v else found
        return found

    def device_name(self, state: Record, device: bytes) -> str:
        """A device's name, from the device set that a state names."""
        return str(getattr(self.devices(state).members.get(device), "name", device.hex()))


# What an agreed version holds (F 2 to 6) ------------------------------------------------------------------------------


class Contents:
    """What the packs of a workspace hold, by the index of its newest state (F 2 to 6)."""

    def __init__(self, space: Workspace, state: Record) -> None:
        self.space, self.state = space, state
        self.chains = [chain.steps for chain in space.config(state).chains]
        self.packs, self.where = dict[tuple[int, bytes], Record](), dict[bytes, list[Record]]()
        self.unpacked = lru_cache(MOST_SEGMENTS)(self.segment)
        gone, rows, left = set[tuple[int, bytes]](), list[Record](), 17  # roots that go on from one another (F 6.1)
        generation, name = state.index_gen % RIDES, state.index
        while left and any(name):
            root = read(INDEX_ROOT, space.named(f"meta/{generation}", name, 6, "the index root"), "the index root")
            rows, before, left = root.rows + rows, root.tags.get(1, bytes(40)), left - 1
            require(len(before) == 40 and (left or not any(before)), "an index root goes on from no root, or too many")
            generation, name = int.from_bytes(before[:8], "big"), before[8:]
        for row in reversed(rows):
            with space.report.passing("a part of the index is passed over: what it lists is missed", 1, DamageError):
                data = row.tags.get(1) or space.named(f"meta/{row.generation}", row.hash, 6, "an index segment")
                whole = len(data) == row.size and (1 not in row.tags or sha256(data) == row.hash)
                require(whole, "an index segment is not what the root says")
                gone |= self.add(data)
        self.packs = {key: pack for key, pack in self.packs.items() if key not in gone}

    def add(self, data: bytes) -> set[tuple[int, bytes]]:
        """Takes in an index segment (F 6.2), older ones later; -> its tombstones."""
        what = "an index segment"
        Cursor(data, what).one("format")
        said = read(INDEX_SEGMENT, unzstd(data[1:], 256 << 20, what), what)
        for pack in said.packs:
            require(1 <= pack.k <= pack.n, f"{what} has a pack of no parts")
            if (pack.size_class, pack.k, pack.n) != (0, 1, 1):
                raise UpgradeError("a pack")
            newest = self.packs.setdefault((pack.generation, pack.name), pack)
            newest.tags = pack.tags | newest.tags
        for row in said.objects:
            pack = said.packs[row.pack] if row.pack < len(said.packs) else Record(segments=())
            require(row.segment < len(pack.segments), f"{what} lists no such segment")
            row.pack = pack.generation, pack.name
            self.where.setdefault(row.id, []).append(row)
        return {(row.generation, row.name) for row in said.gone}

    def object(self, kind: int, object_id: bytes, below: int = 9) -> bytes:
        """An object, from any pack and any copy that has it, whole or as a delta of a base of less depth (F 5.8)."""

        def at(row: Record) -> bytes:
            if row.kind >> 4 > 1 or row.kind & 15 > SNAPSHOT:
                raise UpgradeError("an object")
            data, delta = self.unpacked(row.pack, row.segment)[row.offset : row.offset + row.length], self.delta(row)
            require(delta[40] < below, "it is a delta of nothing that can be read")
            if delta[40]:
                data = undelta(self.object(kind, delta[8:40], delta[40]), data)
            same = blake3.blake3(data, key=self.space.keys.of_kind[kind]).digest() == object_id
            require(same and row.kind & 15 == kind, "a pack has something else in its place")
            return data

        rows = sorted(self.where.get(object_id, ()), key=lambda row: self.delta(row)[40])
        return first_whole(rows, at, "the index does not list it")

    def delta(self, row: Record) -> bytes:
        """Place, base and depth of a delta, as the tags of its pack have it; depth 0: it is whole, 9: nobody says."""
        if not row.kind >> 4:
            return bytes(41)
        tags = self.packs[row.pack].tags if row.pack in self.packs else {}
        lines = b"".join(tags.get(tag, b"") for tag in range(16, 32))
        place = number(4, row.segment) + number(4, row.offset)
        found = (lines[at : at + 41] for at in range(0, len(lines), 41) if lines.startswith(place, at))
        return next(found, b"").ljust(41, b"\x09")

    def segment(self, key: tuple[int, bytes], index: int) -> bytes:
        """A segment of a pack, unpacked (F 5): the steps of its chain in reverse, on what has the agreed hash."""
        pack, name, what, keys = self.packs.get(key), key[1].hex(), "a segment", self.space.keys
        require(pack, "the index says that its pack was deleted")
        segment, at = pack.segments[index], 38 + sum(one.stored for one in pack.segments[:index])
        header = read(PACK_HEADER, pack.header, "a pack")
        steps = self.chains[header.chain] if header.chain < len(self.chains) else ["unknown"]
        if not {"compress", "encrypt", "integrity"}.issuperset(steps):
            raise UpgradeError("a pack")
        where, part = f"packs/{key[0]}/{name[:2]}/{name}", {"start": at, "count": segment.stored}
        data = self.space.whole(where, segment.digest, f"pack {name}", **part)
        bound = keys.ns_id + number(4, header.epoch) + b"pack" + pack.header
        for step in reversed(steps):
            if step == "encrypt" and keys.encrypted:
                tries = [hkdf(hkdf(key, b"", "pack"), header.random, "one pack") for key in keys.of(header.epoch)]
                data = first_whole(tries, lambda key, data=data: decrypt(key, index, data, bound, what), what)
            elif step == "compress":
                data = unzstd(data[1:], segment.raw, what) if Cursor(data, what).one("flag") else data[1:]
        require(len(data) == segment.raw <= 64 << 20, "a segment has another length than the index says")
        return data

    def kept(self) -> Record:
        """Which versions were dropped, and the trees that snapshots have in place of their own, by id (F 6.4)."""
        state, what = self.state, "the list of what is kept"
        if not any(state.retained):
            return Record(dropped=[], trees={})
        kept = read(RETAINED, self.space.named(f"meta/{state.retained_gen}", state.retained, 6, what), what)
        kept.trees = {row.snapshot: row.root for row in kept.trees}
        ends = kept.dropped[-1].last if kept.dropped else 0  # a list that was there before what it drops is a lie
        if ends >= state.v or self.space.states.get(ends, Record(retained=b"")).retained == state.retained:
            kept.dropped = []
        return kept

    def history(self) -> Iterator[Record]:
        """The snapshots (F 4) from the newest on, each followed by its first parent; `version` is what it says."""
        at, kept = self.state.master, self.kept()
        while any(at):
            snapshot = self.snapshot(at, kept)
            yield snapshot
            version, at = snapshot.version, snapshot.parents[0] if snapshot.parents else ZERO
            if gap := next((row for row in kept.dropped if row.first < version <= row.last + 1), None):
                self.space.report.note(f"versions {gap.first} to {gap.last} were dropped on purpose")
                at = gap.below

    def snapshot(self, snapshot_id: bytes, kept: Record) -> Record:
        """A snapshot, with the tree that it has in place of its own."""
        snapshot = read(SNAPSHOT_FIELDS, self.object(SNAPSHOT, snapshot_id), "a snapshot")
        snapshot.version = int.from_bytes(snapshot.tags.get(1, b""), "big")
        snapshot.root = kept.trees.get(snapshot_id, snapshot.root)
        return snapshot

    def root_of(self, v: int | None) -> bytes | None:
        """The root of the tree that version v has, the newest where that is None; None if that was nothing yet."""
        state = self.state if v is None else self.space.states.get(v)
        if v is not None and v > self.state.v:
            raise StopError(f"there is no version {v}: the newest is {self.state.v}")
        if state is None:
            return next((one.root for one in self.history() if one.version <= v), None)
        kept = Record(trees={}) if v is None else self.kept()
        return self.snapshot(state.master, kept).root if any(state.master) else None

    def tree(self, root: bytes) -> Iterator[tuple[bytes, Record]]:
        """Path and entry of all in a tree (F 3.1): a directory before what is in it. What cannot be read is said."""
        stack, said = [(b"", root, 8)], 0  # nodes of directories, by path, and the level of the node above
        while stack:
            path, node_id, above = stack.pop()
            node, start = Record(level=0, rows=[]), len(stack)
            with self.space.report.passing(f"{shown(path) or '.'}: the directory cannot be read", 1, DamageError):
                node = read_directory(self.object(DIR, node_id), above)
            stack += [(path, row.id, node.level) for row in reversed(node.rows) if node.level]
            for row in () if node.level else node.rows:
                below = path + b"/" + row.name if path else row.name
                if (said := said + len(below) + 100) > MOST_TREE or len(below) > 1 << 20 or below.count(b"/") >= 1024:
                    raise StopError(f"{shown(path)[:100]}: the tree is too deep or too large for any disk")
                yield below, row
                if row.kind == 2:
                    stack.insert(start, (below, row.body, 8))

    def chunks(self, entry: Record) -> Iterator[bytes]:
        """The bytes of a file, chunk by chunk: whole only if this ends without an error (F 2)."""
        check, size, count = blake3.blake3(key=self.space.keys.of_kind[BLOB]), 0, 0
        stack = [(entry.body[-32:], 8 if entry.kind == 4 else 0)] if entry.size else []  # 0: a chunk, no node
        while stack:
            object_id, above = stack.pop()
            require(size <= entry.size and count <= MOST_CHUNKS, "the file is longer than its directory says")
            if above:
                node = read(FILE_NODE, self.object(FILE, object_id), "a file")
                require(node.level < above and node.children, "a file contradicts itself")
                stack += [(child.id, node.level) for child in reversed(node.children)]
            else:
                data = self.object(BLOB, object_id)
                check.update(data)
                size, count = size + len(data), count + 1
                yield data
        require(size == entry.size and check.digest() == entry.body[:32], "the file is not what its directory says")


def read_directory(data: bytes, above: int) -> Record:
    """A node of a directory (F 3): its `level`, and as `rows` its children, or entries: of kind 1 and 4 files, of 2
    directories, of 3 symlinks."""
    c = Cursor(data, "a directory")
    node = c.fields("format:format level:u8 inner:?level(rows:32*(name:b16 id:32)!)")
    node.rows = node.inner.rows if node.level else []
    for _ in range(0 if node.level else c.one("u32")):
        entry = c.fields("kind:1..4 mode:u16 mtime:i64 size:u64 name:b16")
        entry.body = c.one({1: "32", 2: "32", 3: "b16", 4: "64"}[entry.kind])
        c.one("tags")
        good = 0 < len(entry.name) <= 4096 and entry.name not in (b".", b"..") and not {0, 47} & {*entry.name}
        good = good and (entry.kind != 3 or (entry.body and 0 not in entry.body and len(entry.body) == entry.size))
        good = good and not (entry.kind == 2 and (entry.size or entry.mtime)) and not (entry.kind == 3 and entry.mode)
        require(good and entry.mode <= 0o7777, "a directory has an impossible entry")
        node.rows.append(entry)
    require(c.at == len(c.data) and node.level < above and (above == 8 or node.rows), "a directory contradicts itself")
    return node


# What the user asks for -----------------------------------------------------------------------------------------------


def is_local_state(name: bytes) -> bool:
    """Whether some file system takes this name for `.metasync` (F 3.2)."""
    with suppress(UnicodeDecodeError):
        spans = [[int(end, 16) for end in span.split("-")] for span in OVERLOOKED.split()]
        text = "".join(c for c in name.decode() if not any(span[0] <= ord(c) <= span[-1] for span in spans))
        text = unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())
        return re.fullmatch(r"\.metasync|metasy~[0-9]+", text.split(":")[0].rstrip(". ")) is not None
    return False


def restore(contents: Contents, root: bytes, dest: Path) -> None:
    """Writes a tree into a new folder. It never follows or overwrites anything: what is in the way is said."""
    directories, refused = [], set[bytes]()
    dest.mkdir(parents=True, exist_ok=True)
    if any(dest.iterdir()):
        raise StopError(f"{dest} is not empty: name a folder that is new")
    for path, entry in contents.tree(root):
        target = os.path.join(os.fsencode(dest), path)
        refused.add(path)
        if path.rpartition(b"/")[0] in refused:
            continue
        with contents.space.report.passing(f"{shown(path)}: not restored", 1, (OSError, DamageError, OverflowError)):
            is_taken = is_local_state(entry.name) or (os.name == "nt" and {*entry.name} & {*b"\\:"})
            require(not is_taken, "refused: this name is kept for the local state of MetaSync, or leads elsewhere")
            if entry.kind == 2:
                os.mkdir(target, 0o700)
                directories.append((target, entry.mode & 0o777))
            elif entry.kind == 3:
                os.symlink(entry.body, target)
            else:
                write_file(contents, entry, target)
            if entry.kind != 2 and (entry.kind != 3 or os.utime in os.supports_follow_symlinks):
                os.utime(target, ns=(entry.mtime, entry.mtime), follow_symlinks=entry.kind != 3)
            refused.remove(path)
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


def secret_of(args: argparse.Namespace) -> tuple[int, bytes] | None:
    """Kind of slot and what opens it, from the file that the user named (3)."""
    if (path := args.passphrase_file or args.phrase_file) is None:
        return None
    if not (text := path.read_text(encoding="utf-8").rstrip("\r\n")).strip():
        raise StopError(f"{path} is empty")
    if args.passphrase_file:
        return 1, unicodedata.normalize("NFC", text).encode()
    if not Mnemonic("english").check(words := " ".join(unicodedata.normalize("NFKD", text).lower().split())):
        raise StopError("these words are no recovery phrase: one of them is misspelled, or missing")
    return 2, words.encode()


def run(args: argparse.Namespace, report: Report) -> None:
    """Finds the workspace, what is agreed in it, and does what was asked."""
    found = [one for one in find_workspaces(args.folder, secret_of(args), report) if args.workspace in (None, one.name)]
    if len(found) != 1:
        several = f"name one of these with --workspace: {', '.join(shown(one.name) for one in found)}"
        raise StopError(several if found else "nothing here opens with this: was it changed?")
    state = (space := found[0]).newest(args.unproven)
    report.note(f"workspace {shown(space.name)}, version {state.v}, fingerprint {state.v}-{state.hash.hex()[:10]}")
    contents = Contents(space, state)
    for one in contents.history() if args.history else ():
        who, what = shown(space.device_name(state, one.device)), shown(one.message)
        sys.stdout.write(f"{one.version}\t{moment(one.time)}\t{who}\t{what}\n")
    root = None if args.history else contents.root_of(args.version)
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
        args = parser.parse_args()
        if args.version is not None and args.version < 1:
            parser.error("versions begin with 1")
        run(args, report)
    except (StopError, *UNREADABLE, OSError) as problem:
        report.note(f"reader: {problem}", 1)
    return report.code


if __name__ == "__main__":
    sys.exit(main())
