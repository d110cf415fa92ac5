"""Targets: the formats of agreement (docs/design/format-agreement.md): keys, config, states, entries, logs, heads.

Signatures and seals keep a mutator out. So there are two kinds of targets: bytes as a provider may show them, and the
inside of a record, sealed and signed here as a device of the workspace could. Where records hold many signatures
(device sets, chains), `trusting` takes all but some for right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from agreement_kit import (
    ACCEPTOR,
    ADMIN,
    ALICE,
    BOB,
    CAROL,
    CHAIN,
    CONFIG,
    DEVICES,
    INCARNATION,
    KEYS,
    NS_ID,
    POLICY,
    drawn,
)

from fuzz.content import vectors
from fuzz.target import SOME, Target, certain, joined_parts, parts_of, replaced
from metasync.codec import Reader, bytes16, bytes32, encode_tags, text16, u8, u16, u32
from metasync.config import (
    NO_LIMIT,
    Acceptor,
    BackendEntry,
    ChunkingClass,
    Config,
    RedundancyClass,
    Replicate,
    Storage,
    decode_config,
)
from metasync.consensus.participant import Remembered, decode_memory, encode_memory
from metasync.consensus.proposer import decode_journal
from metasync.consensus.records import birth, entry
from metasync.consensus.records import entry as heads
from metasync.consensus.records.birth import birth_matches
from metasync.consensus.records.log_replay import Log, ValueRules
from metasync.consensus.records.state import VERSION_MAX, Change, State, decode_state, follows, successor
from metasync.errors import FormatError, PassphraseError, UpgradeError
from metasync.keys import device_set as devices_module
from metasync.keys import keyring as ring_module
from metasync.keys import policy as policy_module
from metasync.keys import slots as slots_module
from metasync.keys.derive import (
    HYBRID,
    SLOT_KEY,
    WRAPPED_BYTES,
    Header,
    RecordKind,
    derive,
    seal,
    sealing_key,
    sha256,
    sign,
    slot_recipient,
)
from metasync.keys.device_set import decode_certificate, decode_device_set, decode_identity
from metasync.keys.keyring import decode_keys, make_ring, open_admin, open_ring, read_ring
from metasync.keys.policy import AdminChain, Policy, decode_chain, decode_policy
from metasync.keys.slots import LANES_MAX, MEMORY_KIB_MAX, Cost, make_slot, open_slot, read_slot
from metasync.objects.chunker import Chunker, SizeClass
from metasync.store.placement import Placement
from metasync.store.placement import Target as Place

SIGNED = (policy_module, devices_module, ring_module, birth, heads, entry)
WRONG = 0xFF  # a signature that begins so is wrong while signatures are trusted


@contextmanager
def trusting() -> Iterator[None]:
    def verify(public: bytes, context: str, message: bytes, signature: bytes) -> bool:
        return signature[0] != WRONG

    with replaced([(module, "verify", verify) for module in SIGNED]):
        yield


def seeds_of(what: str) -> list[bytes]:
    """The bytes of all golden vectors of a kind, good and bad."""
    return [bytes.fromhex(c["data"]) for c in vectors("agreement").values() if c["what"] == what]


# --- in the clear


def use_config(data: bytes) -> Config:
    """A config that is accepted can be lived with: it places packs, and cuts files."""
    config = decode_config(data)
    assert 1 <= config.quorum <= config.n
    assert config.meta_copies <= config.n
    assert config.survives.down >= 0
    storing = [b for b in config.backends if b.storage]
    policy = config.policy(0)
    copies = policy.total if hasattr(policy, "total") else policy.copies
    if storing:
        places = [Place(b.backend_id, b.capacity_bytes) for b in storing]
        order = Placement(places, copies=copies, partitions=config.mapping.partitions).order(drawn("pack"))
        assert sorted(order) == [b.backend_id for b in storing]
    classes = [
        SizeClass(None if k.below_bytes == NO_LIMIT else k.below_bytes - 1, k.minimum, k.average, k.maximum, k.kind)
        for k in config.chunking
    ]
    whole = drawn("file", 3_000)
    at = 0

    def read(n: int) -> bytes:
        nonlocal at
        at += n
        return whole[at - n : at]

    assert b"".join(Chunker(config.whole_bytes, classes, bytes(32)).cut(read, len(whole))) == whole
    return config


def use_state(data: bytes) -> State:
    """A state that is accepted can be the base of a next one."""
    state = decode_state(data)
    log = Log(KEYS, ValueRules(KEYS, CONFIG, DEVICES, state), ACCEPTOR)
    assert log.feed(bytes(1024)) is None
    if state.min_gen <= state.gen and state.v < VERSION_MAX:
        after = successor(state, Change(drawn("op", 16)), skip=state.hash, writer=INCARNATION)
        assert decode_state(after.encode()) == after
        assert follows(after, state)
    return state


def decode_one_chain(data: bytes) -> AdminChain:
    r = Reader(data, "chain")
    with trusting():
        out = decode_chain(r)
    r.end()
    assert len(out.ns_id) == 32
    assert out.epoch == len(out.keys)
    assert out.signer in out.keys
    assert not any(s[0] == WRONG for s in out.signatures)
    return out


def trusted_policy(data: bytes) -> Policy:
    """A policy whose signatures the admin made, whatever it says."""
    with trusting():
        out = decode_policy(data)
    assert out.epoch == len(out.chain.keys)
    assert out.signature[0] != WRONG
    assert out.sequence == (out.era, out.version)
    return out


def shown_device_set(data: bytes) -> Any:
    out = decode_device_set(data, NS_ID)
    assert all(c.verifies(out.chain.admin) and c.ns_id == NS_ID for c in out.certificates)
    return out


def trusted_device_set(data: bytes) -> Any:
    with trusting():
        out = decode_device_set(data, NS_ID)
        for certificate in out.certificates:
            assert out.get(certificate.device_id) is certificate
            assert certificate.signature[0] != WRONG
            assert out.key_of(certificate.device_id) == certificate.sign_public
            assert not out.bars(certificate.device_id)
            assert certificate.sign_public not in (*out.policy.revoked_keys, *out.ended_keys)
    return out


def device_set_seeds() -> list[bytes]:
    policy = DEVICES.policy.signed(ADMIN, slots=((1, drawn("slot")), (2, drawn("slot"))), tags=((9, b"later"),))
    tagged = replace(DEVICES, policy_data=policy.encode(), tags=((1, b"later"),), ended_ids=(drawn("ended", 16),))
    return [*seeds_of("devices"), DEVICES.encode(), tagged.encode()]


def certificate_seeds() -> list[bytes]:
    mine = ALICE.certified(ADMIN, NS_ID)
    return [mine.encode(), replace(mine, tags=((1, b"x"), (2, b""))).encode(), BOB.certified(ADMIN, NS_ID).encode()]


def clear_birth(data: bytes) -> None:
    if not birth_matches(data, ACCEPTOR, sha256(drawn("nonce"))):
        raise FormatError("another birth")
    assert data == birth.encode_birth(ACCEPTOR, drawn("nonce"))


def config_seeds() -> list[bytes]:
    """Also a config as small as one can be: a mutation hits what counts."""
    place = Storage(b"\2" * 16, bytes(32))
    one = BackendEntry(b"\1" * 16, "b", "file", 1 << 40, bytes(32), (place,), Acceptor(b"\3" * 16, "log", bytes(32)))
    small = Config((one,), redundancy=(RedundancyClass(NO_LIMIT, Replicate(1)),), chains=(("a",),))
    classes = [ChunkingClass(NO_LIMIT, "cdc", 64, 256, 1024), ChunkingClass(NO_LIMIT, "fixed", 64, 64, 64)]
    more = [replace(small, chunking=(c,), whole_bytes=0, encrypted=False) for c in classes]
    return [*seeds_of("config"), *(c.encode() for c in (small, *more))]


# --- slots and rings


def use_slot(data: bytes) -> None:
    """The clear part; the cost it asks for is bounded."""
    slot = read_slot(data)
    assert slot.cost.memory_kib <= MEMORY_KIB_MAX
    assert slot.cost.lanes <= LANES_MAX
    assert 8 * slot.cost.lanes <= slot.cost.memory_kib
    numbers = u32(slot.cost.memory_kib) + u32(slot.cost.iterations) + u32(slot.cost.lanes)
    clear = u8(1) + u8(slot.kind) + slot.salt + numbers + slot.recipient.encode() + encode_tags(slot.tags)
    assert data == clear + bytes32(slot.sealed)


def slot_inside(data: bytes) -> None:
    """Part 0 is the clear part, part 1 what is sealed under it, by somebody who knows the passphrase."""
    clear, inside = [*parts_of(data), b"", b""][:2]
    key = drawn("stretched")
    sealed = seal(key, Header(RecordKind.SLOT, 0, 0, drawn("record")), inside, binding=clear)
    with replaced([(slots_module, "_stretch", lambda *_: key)]):
        secret = open_slot(clear + bytes32(sealed), "passphrase")
    assert inside == bytes16(secret.key) + secret.ns_id + text16(secret.name) + encode_tags(secret.tags)
    assert slot_recipient(secret.key).key == secret.key_id


CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)


@cache
def _slot() -> tuple[bytes, bytes]:
    made, secret = make_slot(1, "passphrase", ns_id=NS_ID, name="docs", entropy=drawn("slot", 96), cost=CHEAP)
    return made, secret.key


def slot_inside_seeds() -> list[bytes]:
    made, key = _slot()
    clear, key = made[: len(made) - 4 - len(read_slot(made).sealed)], bytes16(key)
    return [
        joined_parts([clear, key + NS_ID + text16("docs") + u8(0)]),
        joined_parts([clear, key + NS_ID + text16("é" * 40) + encode_tags(((7, b"later"),))]),
        joined_parts([clear, key]),
    ]


SLOT_KEY_OF_OURS = drawn("slot private")
SECOND_ADMIN = drawn("second admin")


def _ring(epoch: int = 1, *, encrypted: bool = True) -> bytes:
    chain, keys, admin = CHAIN, replace(KEYS, encrypted=encrypted), ADMIN
    if epoch == 2:
        chain = CHAIN.extended(ADMIN, ring_module.sign_public(SECOND_ADMIN))
        keys = replace(keys, epoch_keys=(*KEYS.epoch_keys, (2, drawn("epoch 2"))))
        admin = SECOND_ADMIN
    filler = (drawn("sealed") * 40)[: WRAPPED_BYTES[HYBRID]]  # else no run is as the one before
    with replaced([(ring_module, "seal_to", lambda *_: filler)]):
        return make_ring(
            keys,
            chain,
            admin_private=admin,
            signer_private=ADMIN,
            devices=[sealing_key(ALICE.seal_private)],
            slots=[SLOT_KEY_OF_OURS],
            entropy=drawn("ring", 96),
        )


def ring_seeds() -> list[bytes]:
    return [*seeds_of("ring"), _ring(), _ring(2), _ring(encrypted=False)]


def use_ring(data: bytes) -> None:
    """A ring whose signature counts as right unless it looks wrong: all behind it is the mutator's."""
    with trusting():
        ring = read_ring(data, NS_ID)
        assert ring.ns_id == NS_ID
        for private, kind in ((SLOT_KEY_OF_OURS, SLOT_KEY), (ALICE.seal_private, HYBRID), (None, HYBRID)):
            try:
                keys = open_ring(data, private, NS_ID, kind=kind)
            except (FormatError, PassphraseError):
                continue
            assert keys.epoch == ring.epoch
            with certain("keys that were opened cannot be kept"):
                assert decode_keys(keys.encode()) == keys
        try:
            open_admin(data, SLOT_KEY_OF_OURS, NS_ID)
        except (FormatError, PassphraseError):
            return


def ring_inside(data: bytes) -> None:
    """Part 0: the ring's body, part 1: the older keys beneath; sealed to a slot here, and signed by the admin."""
    body, older = [*parts_of(data), b"", b""][:2]
    secret, salt = drawn("ring secret"), drawn("salt")
    head = u8(1) + u8(1) + CHAIN.encode() + salt
    beneath = seal(derive(body[:32].ljust(32, b"\0"), "older"), Header(RecordKind.RING, 0, 1, drawn("r")), older)
    if len(body) >= 96:
        body = body[:96] + bytes32(beneath) + u8(0) + body[96:]
    sealed = seal(secret, Header(RecordKind.RING, 0, 1, drawn("r2")), body, binding=head)
    wrapped = ring_module.wrap(derive(SLOT_KEY_OF_OURS, "ring", salt), secret)
    to = slot_recipient(SLOT_KEY_OF_OURS).encode()
    ring = head + u16(1) + to + bytes16(wrapped) + u16(0) + bytes32(sealed) + u8(0)
    keys = open_ring(ring + sign(ADMIN, "keyring 1", ring), SLOT_KEY_OF_OURS, NS_ID, kind=SLOT_KEY)
    assert keys.epoch == 1
    with certain("keys that were opened cannot be kept"):
        assert decode_keys(keys.encode()) == keys
    assert [e for e, _ in keys.epoch_keys] == sorted({e for e, _ in keys.epoch_keys})
    assert body == keys.epoch_keys[-1][1] + keys.id_key + keys.chunk_seed + bytes32(beneath) + u8(0)


def ring_inside_seeds() -> list[bytes]:
    keys = drawn("keys", 96)
    return [
        joined_parts([keys, u16(0)]),
        joined_parts([keys, u16(1) + u32(0) + drawn("old")]),
        joined_parts([keys, u16(2) + u32(1) + drawn("old") + u32(2) + drawn("old")]),
        joined_parts([keys + b"\0", b""]),
    ]


def certificate(data: bytes) -> Any:
    with trusting():
        out = decode_certificate(data)
        DEVICES.admits(out)
        DEVICES.key_of(CAROL.device_id, data)
    return out


def memory_seeds() -> list[bytes]:
    some = [Remembered(1, entry.Seen(drawn(f"{i}", 16), i, i, drawn(f"{i}"))) for i in range(3)]
    return [*seeds_of("memory"), encode_memory(some)]


def decode_some_memory(data: bytes) -> tuple[Remembered, ...]:
    if not data:
        raise FormatError("nothing remembered: the one value that is written in two ways")
    return decode_memory(data)


def encoded(value: Any) -> bytes:
    out: bytes = value.encode()
    return out


def vector_seeds(*kinds: str) -> Any:
    return lambda: [data for kind in kinds for data in seeds_of(kind)]


AGREEMENT = (
    Target("state", use_state, vector_seeds("state"), encoded),
    Target("config", use_config, config_seeds, encoded, tries=SOME),
    Target("journal", decode_journal, vector_seeds("journal"), encoded),
    Target("acceptor-memory", decode_some_memory, memory_seeds, encode_memory),
    Target("identity", decode_identity, lambda: [ALICE.encode(), BOB.encode()], encoded),
    Target("certificate", certificate, certificate_seeds, encoded),
    Target("workspace-keys", decode_keys, lambda: [KEYS.encode(), replace(KEYS, encrypted=False).encode()], encoded),
    Target("chain", decode_one_chain, lambda: [CHAIN.encode(), CHAIN.extended(ADMIN, drawn("k")).encode()], encoded),
    Target("policy", decode_policy, lambda: [POLICY.encode(), *seeds_of("policy")], encoded, tries=SOME),
    Target("policy-inside", trusted_policy, lambda: [POLICY.encode(), *seeds_of("policy")], encoded),
    Target("device-set", shown_device_set, device_set_seeds, encoded, tries=SOME),
    Target("device-set-inside", trusted_device_set, device_set_seeds, encoded),
    Target("birth", clear_birth, lambda: [birth.encode_birth(ACCEPTOR, drawn("nonce")), *seeds_of("birth")]),
    Target("slot", use_slot, lambda: [*seeds_of("slot"), _slot()[0]]),
    Target(
        "slot-inside", slot_inside, slot_inside_seeds, allowed=(FormatError, UpgradeError, PassphraseError), tries=SOME
    ),
    Target("ring", use_ring, ring_seeds, tries=SOME),
    Target("ring-inside", ring_inside, ring_inside_seeds, tries=SOME),
)
