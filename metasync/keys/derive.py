"""Keys from keys, and the sealing of small records.

A *sealed record* is one small secret value in the open: a clear, bound header, then AES-256-GCM. Its key is drawn from
a parent key and 32 random bytes that stand in the header, so each key seals one record, the nonce is always zero, and
no nonce state lives anywhere (format-agreement.md, section 2). The associated data are the header and whatever the
caller binds the record to: a workspace, an acceptor, a place in a log.

Nothing here draws randomness: entropy comes as an argument, so a simulator replays every byte.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.codec import Reader, bytes16, padme, u8, u32
from metasync.errors import FormatError

if TYPE_CHECKING:  # imported late elsewhere: `import metasync` stays light
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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


# Signatures and key agreement. Private keys are the 32 raw bytes.


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


def seal_public(private: bytes) -> bytes:
    """The X25519 public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, label: str, salt: bytes) -> bytes:
    """The 32-byte key that both ends of an X25519 exchange derive. `FormatError` for a public key of small order."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as e:
        raise FormatError("unusable X25519 public key") from e
    return derive(shared, label, salt)


class Recipient(NamedTuple):
    """To whom a secret may be wrapped: a key that stands in the open, and its kind."""

    kind: int
    key: bytes

    def encode(self) -> bytes:
        return u8(self.kind) + bytes16(self.key)


X25519: Final = 1  # a device's public key
SLOT_KEY: Final = 3  # the id of a key slot's key, which is symmetric; 2 is kept for X25519 with ML-KEM-768
RECIPIENT_BYTES_MAX: Final = 2048  # of a key; a hybrid's has 1,216
_RECIPIENT_BYTES: Final = {X25519: 32, SLOT_KEY: 32}
WRAPPED_BYTES: Final = {X25519: 48, SLOT_KEY: 48}


def read_recipient(r: Reader) -> Recipient:
    """Reads what `Recipient.encode` wrote; also one of a kind that this program does not know."""
    out = Recipient(r.u8(), r.bytes16(RECIPIENT_BYTES_MAX))
    if not out.kind or len(out.key) != _RECIPIENT_BYTES.get(out.kind, len(out.key)):
        raise r.fail(f"a recipient of kind {out.kind} with {len(out.key)} bytes")
    return out


def device_recipient(private: bytes) -> Recipient:
    """Of the holder of an X25519 private key."""
    return Recipient(X25519, seal_public(private))


def slot_recipient(key: bytes) -> Recipient:
    """Of who opens a key slot: told from its key, of which it says nothing."""
    return Recipient(SLOT_KEY, derive(key, "slot id"))


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
