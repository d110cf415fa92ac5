"""Keys from keys, and the sealing of small records.

A *sealed record* is one small secret value in the open: a clear, bound header, then AES-256-GCM. Its key is drawn from
a parent key and 32 random bytes that stand in the header, so each key seals one record, the nonce is always zero, and
no nonce state lives anywhere (format-agreement.md, section 2). The associated data are the header and whatever the
caller binds the record to: a workspace, an acceptor, a place in a log.

Nothing here draws randomness but `seal_to`: entropy comes as an argument, so a simulator replays every byte.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.codec import UPGRADE, Reader, bytes16, padme, u8, u32
from metasync.errors import FormatError, UpgradeError, WorkspaceError

if TYPE_CHECKING:  # imported late elsewhere: `import metasync` stays light
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hpke import Suite

FORMAT: Final = 1
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
HEADER_BYTES: Final = 42
SEAL_OVERHEAD_BYTES: Final = HEADER_BYTES + 4 + 16  # header, length, GCM tag
RECORD_BYTES_MAX: Final = 1 << 26  # 64 MiB: the largest index segment; a larger record is refused before it is opened

_NONCE = bytes(12)


class RecordKind(IntEnum):
    """What a record is. Part of its key's derivation: a record of one kind never opens as another."""

    SLOT = 1
    RING = 2
    ENTRY = 3
    HINT = 4
    HEAD = 5
    META = 6
    CONST = 7
    STATE = 8
    GENESIS = 9
    BIRTH = 10
    CERTIFICATE = 11
    DEVICES = 12
    IDENTITY = 13
    FLOOR = 14
    STATES = 15
    BLOCK = 16
    INVITATION = 17
    ERA = 18
    TOMBSTONE = 19
    SCRUBBED = 20


_UNITS: Final[dict[int, int]] = {  # bytes; a record of another kind has 512
    RecordKind.SLOT: 256,  # hides the length of the workspace's name
    RecordKind.RING: 256,
    RecordKind.META: 1024,  # an exact size would tell whether a planted file's content was known before
    RecordKind.CONST: 1024,
    RecordKind.STATE: 1024,
    RecordKind.STATES: 1024,
    RecordKind.INVITATION: 1024,
}


@dataclass(frozen=True, slots=True)
class Header:
    """The clear front of a sealed record."""

    kind: int
    era: int
    epoch: int
    random: bytes

    def encode(self) -> bytes:
        return u8(FORMAT) + u8(self.kind) + u32(self.era) + u32(self.epoch) + self.random


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def mac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256."""
    return hmac.digest(key, message, "sha256")


def derive(key: bytes, label: str, salt: bytes = b"") -> bytes:
    """A 32-byte key for the purpose `label` from a 32-byte `key`: HKDF-SHA256 (RFC 5869), whose first block is enough.

    The library's would be loaded for this alone by commands that find nothing new: 8 ms.
    """
    extracted = hmac.digest(salt or bytes(KEY_BYTES), key, "sha256")
    return hmac.digest(extracted, b"metasync " + label.encode("ascii") + b"\x01", "sha256")


def read_header(data: bytes) -> Header:
    """The clear header of a sealed record, not yet authenticated.

    `FormatError` for another format as well: nobody vouches for the byte, and a damaged one looks newer just as well. A
    newer program raises the agreed state's `min_fmt` before it writes what this one does not read.
    """
    r = Reader(data, "sealed record")
    fmt = r.u8()
    if fmt != FORMAT:
        raise FormatError(f"sealed record: format {fmt}, of which no agreed state says anything")
    return Header(r.u8(), r.u32(), r.u32(), r.take(32))


def sealed_bytes(kind: int, content_bytes: int) -> int:
    """The length of a whole record: header, length, content and tag, in units of its kind, brought to a Padmé size."""
    unit = _UNITS.get(kind, 512)
    return padme(-(-(SEAL_OVERHEAD_BYTES + content_bytes) // unit) * unit)


def seal(
    parent: bytes,
    header: Header,
    plaintext: bytes,
    *,
    binding: bytes = b"",
) -> bytes:
    """Seals `plaintext` under a key drawn from `parent`, `header.random` and `header.kind`: `sealed_bytes` of it.

    `header.random` must be fresh for every different plaintext.
    """
    if len(header.random) != 32:
        raise ValueError("a record's header takes 32 random bytes")
    padding = bytes(sealed_bytes(header.kind, len(plaintext)) - SEAL_OVERHEAD_BYTES - len(plaintext))
    inner = b"".join((u32(len(plaintext)), plaintext, padding))
    head = header.encode()
    sealed = _aead(parent, header).encrypt(_NONCE, inner, head + binding)
    del inner  # a record may have megabytes
    return head + sealed


def unseal(
    parent: bytes, data: bytes, kind: RecordKind, *, binding: bytes = b"", bytes_max: int = RECORD_BYTES_MAX
) -> tuple[Header, bytes]:
    """Opens what `seal` made: (header, plaintext). `FormatError` when it is not that: see `read_header`."""
    if len(data) > bytes_max:
        raise FormatError(f"sealed record of {len(data)} bytes, at most {bytes_max} expected")
    header = read_header(data)
    if header.kind != kind:
        raise FormatError(f"sealed record of kind {header.kind}, {int(kind)} expected")
    from cryptography.exceptions import InvalidTag

    try:
        inner = _aead(parent, header).decrypt(_NONCE, data[HEADER_BYTES:], data[:HEADER_BYTES] + binding)
    except (InvalidTag, ValueError) as e:
        raise FormatError("sealed record does not open: another key, another place, or altered") from e
    r = Reader(inner, "sealed record")
    plaintext = r.bytes32(len(inner))
    if inner.count(0, r.pos) != len(inner) - r.pos or len(data) != sealed_bytes(kind, len(plaintext)):
        raise FormatError("sealed record: padding is not zero, or of another length than it has to be")
    return header, plaintext


def _aead(parent: bytes, header: Header) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(derive(parent, f"record {header.kind}", header.random))


# Signatures, and what is sealed to devices. Private keys are 32 bytes.


def sign_public(private: bytes) -> bytes:
    """The Ed25519 public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, context: str, message: bytes) -> bytes:
    """An Ed25519 signature of `message`, in `context`: what is signed for one purpose never serves another."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).sign(_in_context(context, message))


def verify(public: bytes, context: str, message: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _in_context(context, message))
    except (InvalidSignature, ValueError):
        return False
    return True


def signed_part(r: Reader) -> tuple[bytes, bytes]:
    """(what was read so far, the signature of it with which the record ends)."""
    signed = r.data[: r.pos]
    signature = r.take(SIGNATURE_BYTES)
    r.end()
    return signed, signature


def _in_context(context: str, message: bytes) -> bytes:
    return b"metasync " + context.encode("ascii") + b"\0" + message


class Recipient(NamedTuple):
    """To whom a secret may be wrapped: a public key, or the id of a key, that stands in the open; and its kind."""

    kind: int
    key: bytes

    def encode(self) -> bytes:
        return u8(self.kind) + bytes16(self.key)


HYBRID: Final = 2  # a device's key for X25519 with ML-KEM-768; 1 was for X25519 alone, and is not used
SLOT_KEY: Final = 3  # of a key slot, which is symmetric
RECIPIENT_BYTES_MAX: Final = 2048  # of a key
PUBLIC_KEY_BYTES: Final = {HYBRID: 1184 + 32}  # ML-KEM-768, X25519
RECIPIENT_ID_BYTES: Final = {HYBRID: 32, SLOT_KEY: 32}
WRAPPED_BYTES: Final = {HYBRID: 1088 + 32 + 48, SLOT_KEY: 48}  # of a secret of 32 bytes


def read_recipient(r: Reader, bytes_of: Mapping[int, int] = RECIPIENT_ID_BYTES) -> Recipient:
    """Reads what `Recipient.encode` wrote; also one of a kind that this program does not know.

    `bytes_of`: PUBLIC_KEY_BYTES where keys stand, else ids are meant.
    """
    out = Recipient(r.u8(), r.bytes16(RECIPIENT_BYTES_MAX))
    if not out.kind or len(out.key) != bytes_of.get(out.kind, len(out.key)):
        raise r.fail(f"a recipient of kind {out.kind} with {len(out.key)} bytes")
    return out


def sealing_key(private: bytes) -> Recipient:
    """The public key of a device's sealing key, a seed of 32 bytes: as X-Wing's (draft-connolly-cfrg-xwing-kem-08)."""
    mlkem, x25519 = _halves(private)
    return Recipient(HYBRID, mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw())


def device_recipient(public: Recipient) -> Recipient:
    """The id, by which a keyring names the holder of a public key."""
    return Recipient(public.kind, sha256(public.key))


def slot_recipient(key: bytes) -> Recipient:
    """The id of a slot's key, derived from the key. It reveals nothing of the key."""
    return Recipient(SLOT_KEY, derive(key, "slot id"))


def seal_to(public: Recipient, secret: bytes, label: str, salt: bytes) -> bytes:
    """Seals `secret` to a device for the purpose `label`: by HPKE (RFC 9180), base mode, one message.

    KEM 0x647a (X-Wing: ML-KEM-768 and X25519), HKDF-SHA256, AES-256-GCM. The library draws what is random in it.
    `UpgradeError` for a key of another kind; `FormatError` for one that is none, as an X25519 key of small order.
    """
    if public.kind != HYBRID:
        raise UpgradeError(f"a device has a key of kind {public.kind}", next_step=UPGRADE)
    from cryptography.hazmat.primitives import hpke
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    with _needing_mlkem():
        try:
            mlkem = MLKEM768PublicKey.from_public_bytes(public.key[:-32])
            x25519 = X25519PublicKey.from_public_bytes(public.key[-32:])
            key = hpke.MLKEM768X25519PublicKey(mlkem, x25519)
            return _hpke().encrypt(secret, key, info=_in_context(label, salt))
        except ValueError as e:
            raise FormatError("a device's sealing key is unusable") from e


def open_sealed(private: bytes, sealed: bytes, label: str, salt: bytes) -> bytes | None:
    """What `seal_to` sealed; None when it was to another key, for another purpose, or altered."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hpke

    key = hpke.MLKEM768X25519PrivateKey(*_halves(private))
    try:
        return _hpke().decrypt(sealed, key, info=_in_context(label, salt))
    except InvalidTag:
        return None


def _hpke() -> Suite:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def _halves(seed: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    """Both private keys that X-Wing draws from a seed of 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    drawn = hashlib.shake_256(seed).digest(64 + 32)
    with _needing_mlkem():
        return MLKEM768PrivateKey.from_seed_bytes(drawn[:64]), X25519PrivateKey.from_private_bytes(drawn[64:])


@contextmanager
def _needing_mlkem() -> Iterator[None]:
    """`WorkspaceError` where the library's OpenSSL is too old."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        yield
    except UnsupportedAlgorithm as e:
        raise WorkspaceError(
            "the `cryptography` package on this machine has no ML-KEM-768, which a device's key needs",
            next_step="Install its newest wheel: `pip install -U --force-reinstall --only-binary :all: cryptography`. "
            "One that is built here needs OpenSSL 3.5 or newer.",
        ) from e


def wrap(key: bytes, secret: bytes) -> bytes:
    """Seals a 32-byte `secret` under a `key` that seals nothing else: 48 bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(_NONCE, secret, b"")


def unwrap(key: bytes, wrapped: bytes) -> bytes | None:
    """What `wrap` sealed; None when the key is another."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(_NONCE, wrapped, b"")
    except InvalidTag:
        return None
