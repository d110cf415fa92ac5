"""Devices: a device's own identity, the certificate by which it is admitted, and the agreed set of all of them.

Who may write is decided by two things alone: the device set that the agreed state names, and certificates by that
set's admin key. A device set is refused unless every certificate in it verifies (ARCHITECTURE D11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from metasync.codec import Reader, Tags, ascending, bytes16, encode_tags, text16, u8, u16
from metasync.errors import FormatError, UsageError
from metasync.keys.chain import AdminChain, decode_chain
from metasync.keys.derive import (
    FORMAT,
    SIGNATURE_BYTES,
    check_format,
    seal_public,
    sign,
    sign_public,
    verify,
)
from metasync.keys.slots import PASSPHRASE, RECOVERY

DEVICE_ENTROPY_BYTES: Final = 16 + 32 + 32
DEVICE_NAME_BYTES_MAX: Final = 255
CERTIFICATE_BYTES_MAX: Final = 1024
DEVICES_MAX: Final = 4096
SLOTS_MAX: Final = 256
DEVICE_SET_BYTES_MAX: Final = 4 << 20
_SIGNED: Final = "device certificate 1"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The admin's word that a device belongs to the workspace."""

    ns_id: bytes
    device_id: bytes
    name: str
    sign_public: bytes
    seal_public: bytes
    signature: bytes
    tags: Tags = ()

    def _signed(self) -> bytes:
        head = u8(FORMAT) + self.ns_id + self.device_id + text16(self.name)
        return head + self.sign_public + self.seal_public + encode_tags(self.tags)

    def encode(self) -> bytes:
        return self._signed() + self.signature

    def verifies(self, admin: bytes) -> bool:
        return verify(admin, _SIGNED, self._signed(), self.signature)


def decode_certificate(data: bytes) -> Certificate:
    """Decodes; the caller checks `verifies`."""
    if len(data) > CERTIFICATE_BYTES_MAX:
        raise FormatError(f"device certificate of {len(data)} bytes")
    r = Reader(data, "device certificate")
    check_format(r.u8(), "a device certificate")
    out = Certificate(
        ns_id=r.take(32),
        device_id=r.take(16),
        name=r.text16(DEVICE_NAME_BYTES_MAX),
        sign_public=r.take(32),
        seal_public=r.take(32),
        tags=r.tags(),
        signature=r.take(SIGNATURE_BYTES),
    )
    r.end()
    return out


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """What makes this copy of the workspace a device of its own. Never leaves the machine."""

    device_id: bytes
    name: str
    sign_private: bytes = field(repr=False)
    seal_private: bytes = field(repr=False)

    def certified(self, admin_private: bytes, ns_id: bytes) -> Certificate:
        """A certificate for this device by the admin."""
        bare = Certificate(
            ns_id, self.device_id, self.name, sign_public(self.sign_private), seal_public(self.seal_private), b""
        )
        return recertified(bare, admin_private)

    def encode(self) -> bytes:
        """For the device's own key store."""
        return u8(FORMAT) + self.device_id + text16(self.name) + self.sign_private + self.seal_private


def new_device(name: str, entropy: bytes) -> DeviceIdentity:
    """A new device from DEVICE_ENTROPY_BYTES fresh bytes. `UsageError` for a name of more than 255 bytes."""
    if len(entropy) != DEVICE_ENTROPY_BYTES:
        raise ValueError("a device takes 80 random bytes")
    name = name.encode("utf-8", "replace").decode("utf-8")  # a host name may hold bytes that are no text
    if len(name.encode()) > DEVICE_NAME_BYTES_MAX:
        raise UsageError(f"the device's name is longer than {DEVICE_NAME_BYTES_MAX} bytes")
    return DeviceIdentity(entropy[:16], name, entropy[16:48], entropy[48:])


def decode_identity(data: bytes) -> DeviceIdentity:
    """What `DeviceIdentity.encode` wrote."""
    r = Reader(data, "device identity")
    check_format(r.u8(), "the device's identity")
    out = DeviceIdentity(r.take(16), r.text16(DEVICE_NAME_BYTES_MAX), r.take(32), r.take(32))
    r.end()
    return out


def recertified(certificate: Certificate, admin_private: bytes) -> Certificate:
    """The same device, certified by another admin key (a new epoch certifies all devices anew)."""
    return replace(certificate, signature=sign(admin_private, _SIGNED, certificate._signed()))


@dataclass(frozen=True)
class DeviceSet:
    """The agreed set: the admin chain, the slots' public keys (kind, key), certificates, and who was revoked.

    `certificates` ascend by device id, all by today's admin key; `slots`, `revoked_ids`, `revoked_keys` (Ed25519)
    ascend. Nothing revoked is certified.
    """

    chain: AdminChain
    slots: tuple[tuple[int, bytes], ...]
    certificates: tuple[Certificate, ...]
    revoked_ids: tuple[bytes, ...] = ()
    revoked_keys: tuple[bytes, ...] = ()
    tags: Tags = ()

    @cached_property
    def _by_id(self) -> dict[bytes, Certificate]:
        return {c.device_id: c for c in self.certificates}

    @cached_property
    def _revoked(self) -> frozenset[bytes]:
        """Ids and keys: 16 and 32 bytes, so that none passes for the other."""
        return frozenset((*self.revoked_ids, *self.revoked_keys))

    def get(self, device_id: bytes) -> Certificate | None:
        return self._by_id.get(device_id)

    def admits(self, certificate: Certificate) -> bool:
        """True for a valid certificate by today's admin key whose id and key are not revoked or taken."""
        taken = self._by_id.get(certificate.device_id)
        return (
            certificate.ns_id == self.chain.ns_id
            and certificate.device_id not in self._revoked
            and certificate.sign_public not in self._revoked
            and (taken is None or taken.sign_public == certificate.sign_public)
            and certificate.verifies(self.chain.admin)
        )

    def key_of(self, device_id: bytes, certificate: bytes = b"") -> bytes | None:
        """The Ed25519 key that speaks for a device: from the set, else from an admitted certificate; else None."""
        known = self._by_id.get(device_id)
        if known is not None:
            return known.sign_public
        if not certificate:
            return None
        try:
            shown = decode_certificate(certificate)
        except FormatError:
            return None
        return shown.sign_public if shown.device_id == device_id and self.admits(shown) else None

    def with_device(self, certificate: Certificate) -> DeviceSet:
        """The set with one more device. `ValueError` when it is not admitted."""
        if not self.admits(certificate):
            raise ValueError("the certificate is not valid in this device set")
        rest = [c for c in self.certificates if c.device_id != certificate.device_id]
        return make_device_set(
            self.chain, self.slots, (*rest, certificate), self.revoked_ids, self.revoked_keys, self.tags
        )

    def encode(self) -> bytes:
        return (
            u8(FORMAT)
            + self.chain.encode()
            + u16(len(self.slots))
            + b"".join(u8(kind) + key for kind, key in self.slots)
            + u16(len(self.certificates))
            + b"".join(bytes16(c.encode()) for c in self.certificates)
            + u16(len(self.revoked_ids))
            + b"".join(self.revoked_ids)
            + u16(len(self.revoked_keys))
            + b"".join(self.revoked_keys)
            + encode_tags(self.tags)
        )


def make_device_set(
    chain: AdminChain,
    slots: Iterable[tuple[int, bytes]],
    certificates: Iterable[Certificate],
    revoked_ids: Iterable[bytes] = (),
    revoked_keys: Iterable[bytes] = (),
    tags: Tags = (),
) -> DeviceSet:
    """A device set in canonical order."""
    return DeviceSet(
        chain,
        tuple(sorted(set(slots))),
        tuple(sorted(certificates, key=lambda c: c.device_id)),
        tuple(sorted(set(revoked_ids))),
        tuple(sorted(set(revoked_keys))),
        tags,
    )


def decode_device_set(data: bytes, ns_id: bytes, *, known: bool = False) -> DeviceSet:
    """Decodes and verifies all of it back to `ns_id`. `FormatError` otherwise, `UpgradeError` for a newer format.

    `known`: that of a state that this device is at, from its own local state. It was verified when that state was taken
    over, and its signatures are not looked at again.
    """
    if len(data) > DEVICE_SET_BYTES_MAX:
        raise FormatError(f"device set of {len(data)} bytes")
    r = Reader(data, "device set")
    check_format(r.u8(), "the device set")
    chain = decode_chain(r)
    if chain.ns_id != ns_id:
        raise FormatError("device set: of another workspace")
    slots = tuple((r.u8(), r.take(32)) for _ in range(_bounded(r, SLOTS_MAX, 33)))
    raw = [r.bytes16(CERTIFICATE_BYTES_MAX) for _ in range(_bounded(r, DEVICES_MAX, 2))]
    ids = tuple(r.take(16) for _ in range(_bounded(r, DEVICES_MAX, 16)))
    keys = tuple(r.take(32) for _ in range(_bounded(r, DEVICES_MAX, 32)))
    tags = r.tags()
    r.end()
    out = DeviceSet(chain, slots, tuple(decode_certificate(c) for c in raw), ids, keys, tags)
    ordered = [[u8(kind) + key for kind, key in slots], [c.device_id for c in out.certificates], ids, keys]
    if not all(ascending(items) for items in ordered):
        raise FormatError("device set: out of order")
    if any(kind not in (PASSPHRASE, RECOVERY) for kind, _ in slots):
        raise FormatError("device set: a slot of unknown kind")
    for certificate in out.certificates if not known else ():
        if not out.admits(certificate):
            raise FormatError(f"device set: the certificate of device {certificate.device_id.hex()} is not valid")
    return out


def _bounded(r: Reader, most: int, least_bytes_each: int) -> int:
    n = r.count(r.u16(), least_bytes_each)
    if n > most:
        raise r.fail(f"{n} items, at most {most}")
    return n
