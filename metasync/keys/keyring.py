"""Keyrings: one key epoch's keys, sealed to every device and slot of that moment (architecture.md, D11).

A ring lies on all backends as `keys/ring-<epoch>-<sha256>`. A *ring secret* is sealed to each device's key, a hybrid
that no quantum computer opens, and wrapped to each slot's key, which is symmetric; under it lie the epoch key, the id
key and the chunk seed, and beneath those the older epoch keys. The admin's private key is wrapped to slots only, so
that no device ever holds it. The admin key of the epoch before signs the ring, the first signs its own.

In a workspace without encryption the keys derive from `ns_id` for everybody; its ring wraps the admin key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final

from metasync.codec import Reader, Tags, bytes16, bytes32, check_format, encode_tags, u8, u16, u32, u64
from metasync.errors import FormatError, PassphraseError, WorkspaceError
from metasync.keys.derive import (
    FORMAT,
    HEADER_BYTES,
    HYBRID,
    SLOT_KEY,
    WRAPPED_BYTES,
    Header,
    Recipient,
    RecordKind,
    derive,
    device_recipient,
    mac,
    open_sealed,
    read_header,
    read_recipient,
    seal,
    seal_to,
    sealing_key,
    sha256,
    sign,
    sign_public,
    signed_part,
    slot_recipient,
    unseal,
    unwrap,
    verify,
    wrap,
)
from metasync.keys.policy import AdminChain, decode_chain

FIRST_EPOCH: Final = 1
RING_ENTROPY_BYTES: Final = 32 + 32 + 32  # salt, ring secret, record
RING_BYTES_MAX: Final = 4 << 20  # RECIPIENTS_MAX take 1.3 MB; later kinds may take more
RECIPIENTS_MAX: Final = 1024 + 256  # DEVICES_MAX devices, and the slots of a policy
_SIGNED: Final = "keyring 1"
_WRAPPED_BYTES_MAX: Final = 2048

Wraps = tuple[tuple[Recipient, bytes], ...]


@dataclass(frozen=True, slots=True)
class WorkspaceKeys:
    """All that a device needs to read and write: keys by epoch (oldest first), the id key and the chunk seed."""

    ns_id: bytes
    encrypted: bool
    epoch_keys: tuple[tuple[int, bytes], ...] = field(repr=False)
    id_key: bytes = field(repr=False)
    chunk_seed: bytes = field(repr=False)

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return self.epoch_keys[-1][0]

    def until(self, epoch: int) -> WorkspaceKeys:
        """The same without the keys of later epochs."""
        kept = tuple((e, key) for e, key in self.epoch_keys if e <= epoch)
        return self if len(kept) == len(self.epoch_keys) else replace(self, epoch_keys=kept)

    def epoch_key(self, epoch: int) -> bytes:
        """`WorkspaceError` for an epoch whose ring this device has not opened."""
        for number, key in reversed(self.epoch_keys):
            if number == epoch:
                return key
        raise WorkspaceError(
            f"the workspace's keys were rotated: this device does not hold those of epoch {epoch}",
            next_step="open the newest keyring with the device's key or the passphrase",
        )

    def log_key(self, epoch: int) -> bytes:
        """The parent key of an epoch's sealed records. Derives keys, and does nothing else."""
        return derive(self.epoch_key(epoch), "log")

    def log_name(self, epoch: int, place: bytes) -> str:
        """The name of an entry or a block at a place in a log of this epoch."""
        return mac(derive(self.epoch_key(epoch), "log names"), place).hex()

    def pack_key(self, epoch: int) -> bytes:
        """The parent key of an epoch's packs."""
        return derive(self.epoch_key(epoch), "pack")

    def opened(
        self, data: bytes, kind: RecordKind, what: str, *, binding: bytes, bytes_max: int
    ) -> tuple[Header, bytes]:
        """(header, plaintext) of a record sealed under the log key of any epoch that this device holds.

        `FormatError` when it is none of this kind and format, or of another epoch.
        """
        if not HEADER_BYTES <= len(data) <= bytes_max:
            raise FormatError(f"{what} of {len(data)} bytes")
        epoch = read_header(data).epoch  # bound to the record, so that a false one does not open
        if epoch not in dict(self.epoch_keys):
            raise FormatError(f"{what} of epoch {epoch}, whose key this device does not hold")
        return unseal(self.log_key(epoch), data, kind, binding=binding, bytes_max=bytes_max)

    def state_name(self, state_hash: bytes) -> str:
        """The name under `const/` of the state with this hash."""
        return mac(self._state_names, b"state" + state_hash).hex()

    def states_name(self, epoch: int, era: int, block: int) -> str:
        """The name under `const/` of all states of the versions whose logs lie in one folder. `epoch`: of the last one.

        The keys of an epoch, so that a device that was revoked before cannot tell where they are going to lie.
        """
        return self.log_name(epoch, b"states" + u32(era) + u64(block))

    @property
    def _state_names(self) -> bytes:
        return derive(self.id_key, "state names")

    def encode(self) -> bytes:
        """For the device's own key store."""
        head = u8(FORMAT) + self.ns_id + u8(self.encrypted) + u16(len(self.epoch_keys))
        return head + b"".join(u32(e) + k for e, k in self.epoch_keys) + self.id_key + self.chunk_seed


def decode_keys(data: bytes) -> WorkspaceKeys:
    """What `WorkspaceKeys.encode` wrote."""
    r = Reader(data, "workspace keys")
    check_format(r.u8(), "the workspace keys")
    ns_id, encrypted = r.take(32), _flag(r)
    keys = _epoch_keys(r)
    out = WorkspaceKeys(ns_id, encrypted, keys, r.take(32), r.take(32))
    r.end()
    if not keys:
        raise FormatError("workspace keys: none")
    return out


def open_keys(ns_id: bytes, epoch: int) -> WorkspaceKeys:
    """The keys of a workspace without encryption: anybody can derive them."""
    keys = tuple((e, derive(ns_id, f"open epoch {e}")) for e in range(FIRST_EPOCH, epoch + 1))
    return WorkspaceKeys(ns_id, False, keys, derive(ns_id, "open id key"), derive(ns_id, "open chunk seed"))


def new_keys(ns_id: bytes, entropy: bytes) -> WorkspaceKeys:
    """The keys of a new encrypted workspace, from 96 fresh bytes."""
    if len(entropy) != 96:
        raise ValueError("a workspace's keys take 96 random bytes")
    return WorkspaceKeys(ns_id, True, ((FIRST_EPOCH, entropy[:32]),), entropy[32:64], entropy[64:])


def rotated_keys(keys: WorkspaceKeys, entropy: bytes) -> WorkspaceKeys:
    """The same workspace's keys with one more epoch, whose key is 32 fresh bytes; id key and chunk seed stay."""
    if len(entropy) != 32:
        raise ValueError("an epoch key takes 32 random bytes")
    if not keys.encrypted:
        return open_keys(keys.ns_id, keys.epoch + 1)
    return replace(keys, epoch_keys=(*keys.epoch_keys, (keys.epoch + 1, entropy)))


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring as anybody can read it. `wraps`: (recipient by its id, wrapped ring secret), ascending; `admin_wraps` the
    same for the admin's private key. Recipients may be of kinds that this program does not know."""

    encrypted: bool
    chain: AdminChain
    salt: bytes
    wraps: Wraps
    admin_wraps: Wraps
    body: bytes
    tags: Tags = ()

    @property
    def epoch(self) -> int:
        return self.chain.epoch

    @property
    def ns_id(self) -> bytes:
        return self.chain.ns_id


def make_ring(
    keys: WorkspaceKeys,
    chain: AdminChain,
    *,
    admin_private: bytes,
    signer_private: bytes,
    devices: Sequence[Recipient],
    slots: Sequence[bytes],
    entropy: bytes,
) -> bytes:
    """The ring of `keys.epoch`, to be stored under `ring_path`.

    `chain` ends with the public key of `admin_private`; `signer_private` is the admin key of the epoch before (the
    first ring: the same). `devices`: their public keys; `slots`: the keys of key slots. `entropy`: RING_ENTROPY_BYTES
    fresh bytes. `UpgradeError` when a device has a key of a kind that this program cannot seal to.
    """
    if len(entropy) != RING_ENTROPY_BYTES:
        raise ValueError("a ring takes 96 random bytes")
    if sign_public(signer_private) != chain.signer or sign_public(admin_private) != chain.admin:
        raise ValueError("the admin keys are not those of the chain")
    if chain.epoch != keys.epoch or chain.ns_id != keys.ns_id:
        raise ValueError("the keys are not those of the chain's epoch")
    salt, secret, random = entropy[:32], entropy[32:64], entropy[64:]

    head = _head(keys.encrypted, chain, salt)
    body = b""
    if keys.encrypted:
        header = Header(RecordKind.RING, 0, keys.epoch, random)
        body = seal(secret, header, _body(keys, random), binding=head)
    to_slots = {slot_recipient(key): partial(_to_slot, key, salt) for key in slots}
    to_devices = {device_recipient(d): partial(_to_device, d, salt) for d in devices}
    ring = head + _encode_wraps({**to_devices, **to_slots} if keys.encrypted else {}, "ring", secret)
    ring += _encode_wraps(to_slots, "ring admin", admin_private) + bytes32(body) + encode_tags(())
    return ring + sign(signer_private, _SIGNED, ring)


def _to_slot(key: bytes, salt: bytes, label: str, secret: bytes) -> bytes:
    return wrap(derive(key, label, salt), secret)


def _to_device(public: Recipient, salt: bytes, label: str, secret: bytes) -> bytes:
    return seal_to(public, secret, label, salt)


def ring_path(data: bytes) -> str:
    """Where a ring of these bytes lies on every backend."""
    return ring_place(read_ring(data).epoch, sha256(data))


def ring_place(epoch: int, digest: bytes) -> str:
    """Where the ring of an epoch lies, by the SHA-256 of its bytes, which an agreed state names."""
    return f"keys/ring-{epoch}-{digest.hex()}"


def read_ring(data: bytes, ns_id: bytes | None = None) -> Ring:
    """Decodes and verifies: the admin chain (back to `ns_id` if given) and the signature. `FormatError` otherwise."""
    if len(data) > RING_BYTES_MAX:
        raise FormatError(f"keyring of {len(data)} bytes")
    r = Reader(data, "keyring")
    check_format(r.u8(), "the keyring")
    encrypted = _flag(r)
    chain = decode_chain(r)
    salt, wraps, admin_wraps, body = r.take(32), _decode_wraps(r), _decode_wraps(r), r.bytes32(RING_BYTES_MAX)
    ring = Ring(encrypted, chain, salt, wraps, admin_wraps, body, r.tags())
    signed, signature = signed_part(r)
    if ring.encrypted != bool(ring.body) or (ring.wraps and not encrypted):
        raise FormatError("keyring: sealed keys and the encryption flag contradict each other")
    if not verify(chain.signer, _SIGNED, signed, signature):
        raise FormatError("keyring: the admin's signature is wrong")
    if ns_id is not None and ring.ns_id != ns_id:
        raise FormatError("keyring: of another workspace")
    return ring


def open_ring(data: bytes, private: bytes | None, ns_id: bytes, *, kind: int = HYBRID) -> WorkspaceKeys:
    """The workspace's keys, with a device's private sealing key or, of kind SLOT_KEY, a slot's key.

    None: a workspace without encryption. `PassphraseError` when the ring is not sealed to that key; `FormatError` when
    it is no ring of `ns_id`.
    """
    ring = read_ring(data, ns_id)
    if not ring.encrypted:
        return open_keys(ns_id, ring.epoch)
    secret = _unwrapped(ring, ring.wraps, private, kind, "ring") if private else None
    if secret is None:
        raise PassphraseError(f"the keyring of epoch {ring.epoch} is not sealed to this key")
    body = _opened(secret, ring.body, ring.epoch, _head(True, ring.chain, ring.salt))
    r = Reader(body, "keyring")
    epoch_key, id_key, seed = r.take(32), r.take(32), r.take(32)
    beneath = r.bytes32(RING_BYTES_MAX)
    r.tags()
    r.end()
    r = Reader(_opened(derive(epoch_key, "older"), beneath, ring.epoch, b""), "older epoch keys")
    older = _epoch_keys(r)
    r.end()
    if older and older[-1][0] >= ring.epoch:
        raise FormatError("keyring: an older key of a newer epoch")
    return WorkspaceKeys(ns_id, True, (*older, (ring.epoch, epoch_key)), id_key, seed)


def _opened(parent: bytes, data: bytes, epoch: int, binding: bytes) -> bytes:
    """A record of the ring of an epoch."""
    header, plain = unseal(parent, data, RecordKind.RING, binding=binding, bytes_max=RING_BYTES_MAX)
    if (header.era, header.epoch) != (0, epoch):
        raise FormatError("keyring: a part of another epoch")
    return plain


def open_admin(data: bytes, slot_key: bytes, ns_id: bytes) -> bytes:
    """The admin's private Ed25519 key, with a slot's key. `PassphraseError` when not sealed to it."""
    ring = read_ring(data, ns_id)
    admin = _unwrapped(ring, ring.admin_wraps, slot_key, SLOT_KEY, "ring admin")
    if admin is None:
        raise PassphraseError("the admin key is sealed to key slots only, and not to this one")
    if sign_public(admin) != ring.chain.admin:
        raise FormatError("keyring: the sealed admin key is another")
    return admin


def _body(keys: WorkspaceKeys, random: bytes) -> bytes:
    older = u16(len(keys.epoch_keys) - 1) + b"".join(u32(e) + k for e, k in keys.epoch_keys[:-1])
    epoch_key = keys.epoch_keys[-1][1]
    beneath = seal(derive(epoch_key, "older"), Header(RecordKind.RING, 0, keys.epoch, random), older)
    return epoch_key + keys.id_key + keys.chunk_seed + bytes32(beneath) + encode_tags(())


def _head(encrypted: bool, chain: AdminChain, salt: bytes) -> bytes:
    return u8(FORMAT) + u8(encrypted) + chain.encode() + salt


def _unwrapped(ring: Ring, wraps: Wraps, private: bytes, kind: int, label: str) -> bytes | None:
    mine = slot_recipient(private) if kind == SLOT_KEY else device_recipient(sealing_key(private))
    wrapped = dict(wraps).get(mine)
    if wrapped is None:
        return None
    if kind == SLOT_KEY:
        return unwrap(derive(private, label, ring.salt), wrapped)
    return open_sealed(private, wrapped, label, ring.salt)


def _encode_wraps(to: Mapping[Recipient, Callable[[str, bytes], bytes]], label: str, secret: bytes) -> bytes:
    """`to`: recipients, and what wraps a secret to each for a label."""
    if len(to) > RECIPIENTS_MAX:
        raise ValueError("too many recipients")
    return u16(len(to)) + b"".join(r.encode() + bytes16(to[r](label, secret)) for r in sorted(to))


def _decode_wraps(r: Reader) -> Wraps:
    n = r.count(r.u16(), 1 + 2 + 2)
    if n > RECIPIENTS_MAX:
        raise r.fail(f"{n} recipients")
    out = []
    for _ in range(n):
        recipient, wrapped = read_recipient(r), r.bytes16(_WRAPPED_BYTES_MAX)
        if len(wrapped) != WRAPPED_BYTES.get(recipient.kind, len(wrapped)):
            raise r.fail(f"{len(wrapped)} wrapped bytes")
        out.append((recipient, wrapped))
    if any(a[0] >= b[0] for a, b in pairwise(out)):
        raise r.fail("recipients out of order")
    return tuple(out)


def _epoch_keys(r: Reader) -> tuple[tuple[int, bytes], ...]:
    n = r.count(r.u16(), 36)
    keys = tuple((r.u32(), r.take(32)) for _ in range(n))
    if any(a[0] >= b[0] for a, b in pairwise(keys)):
        raise r.fail("epochs out of order")
    return keys


def _flag(r: Reader) -> bool:
    n = r.u8()
    if n > 1:
        raise r.fail(f"flag {n}")
    return bool(n)
