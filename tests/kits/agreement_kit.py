"""A fixed workspace for the tests of agreement's records: keys, devices, a base state, entries good and forged."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from metasync.codec import bytes32, u32, u64
from metasync.config import Acceptor, BackendEntry, Config, Storage
from metasync.consensus.records import entry as entries_module
from metasync.consensus.records.entry import Entry, Kind, Round, seal_block, seal_entry
from metasync.consensus.records.log_replay import ValueRules
from metasync.consensus.records.state import ZERO_HASH, Change, Ref, State, genesis_state, successor
from metasync.keys.derive import SEAL_OVERHEAD_BYTES, Header, RecordKind, derive, seal, sealed_bytes, sign, sign_public
from metasync.keys.device_set import make_device_set, new_device
from metasync.keys.keyring import new_keys
from metasync.keys.policy import AdminChain, make_policy


def drawn(what: str, n: int = 32) -> bytes:
    """n bytes that look random and are the same everywhere: SHAKE-256 of a name."""
    return hashlib.shake_256(what.encode()).digest(n)


ADMIN = drawn("admin")
CHAIN = AdminChain((sign_public(ADMIN),))
NS_ID = CHAIN.ns_id
KEYS = new_keys(NS_ID, drawn("keys", 96))
ALICE = new_device("alice's laptop", drawn("alice", 80))
BOB = new_device("bob's phone", drawn("bob", 80))
CAROL = new_device("carol, not admitted yet", drawn("carol", 80))
MALLORY = new_device("mallory, revoked", drawn("mallory", 80))
ACCEPTOR = drawn("acceptor", 16)


def backend(i: int) -> BackendEntry:
    """A backend that votes and stores."""
    acceptor = Acceptor(ACCEPTOR if i == 1 else drawn(f"acceptor {i}", 16), "log", drawn(f"birth {i}"))
    storage = (Storage(drawn(f"storage {i}", 16), drawn(f"storage birth {i}")),)
    return BackendEntry(bytes([i]) * 16, f"b{i}", "file", 1 << 30, drawn(f"identity {i}"), storage, acceptor)


CONFIG = Config((backend(1), backend(2), backend(3)))
POLICY = make_policy(
    CHAIN,
    CONFIG,
    admin_private=ADMIN,
    keyring=drawn("keyring"),
    slots=[(1, drawn("slot"))],
    revoked_ids=[MALLORY.device_id],
    revoked_keys=[sign_public(MALLORY.sign_private)],
)
DEVICES = make_device_set(POLICY, [d.certified(ADMIN, NS_ID) for d in (ALICE, BOB)])
OTHER_ACCEPTOR = drawn("other acceptor", 16)
INCARNATION = drawn("incarnation", 16)
RIVAL = drawn("rival", 16)
OWNER = drawn("owner", 16)

GENESIS = genesis_state(
    ns_id=NS_ID, config=drawn("config"), devices=drawn("devices"), keyring=drawn("keyring"), epoch=1
)
BASE = successor(
    GENESIS,
    Change(drawn("op 1", 16), master=drawn("master 1"), index=Ref(0, drawn("index 1"))),
    skip=GENESIS.hash,
    writer=OWNER,
)


RULES = ValueRules(KEYS, CONFIG, DEVICES, BASE)


def value(op: str = "op 2", writer: bytes = INCARNATION, **more: Any) -> State:
    """A state that may follow BASE."""
    change = Change(drawn(op, 16), master=drawn(f"master of {op}"))
    return replace(successor(BASE, change, skip=GENESIS.hash, writer=writer), **more)


X = value("op x")
Y = value("op y", RIVAL)


def entry(kind: Kind = Kind.PREPARE, n: int = 1, **more: Any) -> Entry:
    """An entry at index 0 of ACCEPTOR's log of version 2, unless said otherwise."""
    given: dict[str, Any] = {
        "acceptor_id": ACCEPTOR,
        "v": 2,
        "idx": 0,
        "prev_entry": ZERO_HASH,
        "base": BASE,
        "kind": kind,
        "round": Round(n, INCARNATION),
        "value": None if kind is Kind.PREPARE else X,
        "entry_id": drawn("entry", 16),
        "device_id": ALICE.device_id,
        **more,
    }
    return Entry(**given)


def sealed(e: Entry, *, device: Any = ALICE, random: str = "record") -> bytes:
    return seal_entry(KEYS, e, device.sign_private, drawn(random))


def forged(
    e: Entry,
    *,
    body: bytes | None = None,
    signature: bytes | None = None,
    binding: bytes | None = None,
    header: Header | None = None,
    log_key: bytes | None = None,
    kind: RecordKind = RecordKind.ENTRY,
    grown: int = 0,
) -> bytes:
    """An entry as somebody seals it who holds the log key and does what he likes.

    `grown`: bytes of padding too many.
    """
    header = header or Header(kind, e.base.era, e.base.epoch, drawn("record"))
    body = entries_module._encode(e) if body is None else body
    if signature is None:
        signature = sign(ALICE.sign_private, "entry 1", header.encode() + body)
    if binding is None:
        binding = e.base.ns_id + e.acceptor_id + u64(e.v) + u32(e.idx)
    plain = body + signature
    if not grown:
        return seal(log_key or KEYS.log_key(1), header, plain, binding=binding)
    room = bytes(sealed_bytes(kind, len(plain)) + grown - SEAL_OVERHEAD_BYTES - len(plain))
    key = AESGCM(derive(log_key or KEYS.log_key(1), f"record {int(kind)}", header.random))
    return header.encode() + key.encrypt(bytes(12), bytes32(plain) + room, header.encode() + binding)


class Writer:
    """Writes a log: entries at ascending indexes, each naming the one before."""

    def __init__(self, acceptor_id: bytes = ACCEPTOR) -> None:
        self.acceptor_id = acceptor_id
        self.entries: list[bytes] = []

    def add(self, kind: Kind, n: int, *, device: Any = ALICE, raw: bytes | None = None, **more: Any) -> Writer:
        before = hashlib.sha256(self.entries[-1]).digest() if self.entries else ZERO_HASH
        e = entry(kind, n, acceptor_id=self.acceptor_id, idx=len(self.entries), prev_entry=before)
        e = replace(e, device_id=device.device_id, **more)
        data = seal_entry(KEYS, e, device.sign_private, drawn(f"record {len(self.entries)}"))
        self.entries.append(raw if raw is not None else data)
        return self

    def prepare(self, n: int, incarnation: bytes = INCARNATION, **more: Any) -> Writer:
        return self.add(Kind.PREPARE, n, round=Round(n, incarnation), **more)

    def accept(self, n: int, state: State, incarnation: bytes = INCARNATION, **more: Any) -> Writer:
        return self.add(Kind.ACCEPT, n, round=Round(n, incarnation), value=state, **more)

    def decided(self, state: State, **more: Any) -> Writer:
        return self.add(Kind.DECIDED, 0, round=Round(0, bytes(16)), value=state, **more)


class BlockWriter:
    """Writes blocks: each device's own, each naming the one before. `reads`: the blocks that each complete read finds
    new, as (device id, bytes)."""

    def __init__(self) -> None:
        self.reads: list[list[tuple[bytes, bytes]]] = [[]]
        self._last: dict[bytes, list[bytes]] = {}

    def add(self, device: Any, kind: Kind, n: int, *, raw: bytes | None = None, **more: Any) -> BlockWriter:
        own = self._last.setdefault(device.device_id, [])
        before = hashlib.sha256(own[-1]).digest() if own else ZERO_HASH
        e = replace(entry(kind, n), idx=len(own), prev_entry=before, device_id=device.device_id)
        e = replace(e, **more)
        data = raw if raw is not None else seal_block(KEYS, e, device.sign_private, drawn(f"block {len(own)}"))
        own.append(data)
        self.reads[-1].append((device.device_id, data))
        return self

    def then(self) -> BlockWriter:
        """The next complete read begins."""
        self.reads.append([])
        return self
