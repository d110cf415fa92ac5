"""Devices: their identities, the certificates that admit them, and the agreed set, which begins with the policy.

Who may write is decided by two things alone: the device set that the agreed state names, and certificates by that
set's admin key. A device set is refused unless its policy and every certificate in it verify (architecture.md, D11).
Devices add certificates, and end invitations; who was revoked stands in the policy, which the admin key signs.

Its tags say more. A revoked device still has the logins of the providers: those that a user has not withdrawn yet are
agreed, so that every device shows them until somebody confirms. An invitation is a device whose keys were drawn and
certified before anybody holds them: the set says which are open, so that each is used once, may expire and can be taken
back. A device may have another name than its certificate says, which only the admin key could change; and one that was
revoked keeps its name, for the versions that are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from metasync.codec import (
    TAG_BYTES_MAX,
    Reader,
    Tags,
    ascending,
    bytes16,
    bytes32,
    check_format,
    encode_tags,
    text16,
    u8,
    u16,
    u64,
)
from metasync.errors import ExcludedError, FormatError, UsageError
from metasync.keys.derive import (
    FORMAT,
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Recipient,
    read_recipient,
    sealing_key,
    sha256,
    sign,
    sign_public,
    verify,
)
from metasync.keys.policy import POLICY_BYTES_MAX, AdminChain, Policy, decode_policy

DEVICE_ENTROPY_BYTES: Final = 16 + 32 + 32
DEVICE_NAME_BYTES_MAX: Final = 255
CERTIFICATE_BYTES_MAX: Final = 2048
DEVICES_MAX: Final = 1024  # so many certificates, the largest policy and all that has ended have 3.0 MB
ENDED_MAX: Final = 4096
DEVICE_SET_BYTES_MAX: Final = 4 << 20
_SIGNED: Final = "device certificate 1"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The admin's word that a device belongs to the workspace. `sealing`: for which keyrings are sealed to it."""

    ns_id: bytes
    device_id: bytes
    name: str
    sign_public: bytes
    sealing: Recipient
    signature: bytes
    tags: Tags = ()

    def _signed(self) -> bytes:
        head = u8(FORMAT) + self.ns_id + self.device_id + text16(self.name)
        return head + self.sign_public + self.sealing.encode() + encode_tags(self.tags)

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
        sealing=read_recipient(r, PUBLIC_KEY_BYTES),
        tags=r.tags(),
        signature=r.take(SIGNATURE_BYTES),
    )
    r.end()
    return out


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """What makes this copy of the workspace a device of its own. Never leaves the machine. `seal_private`: a seed."""

    device_id: bytes
    name: str
    sign_private: bytes = field(repr=False)
    seal_private: bytes = field(repr=False)

    def certified(self, admin_private: bytes, ns_id: bytes) -> Certificate:
        """A certificate for this device by the admin."""
        bare = Certificate(
            ns_id, self.device_id, self.name, sign_public(self.sign_private), sealing_key(self.seal_private), b""
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
    """The agreed set. `policy_data`: the policy's bytes; `certificates` ascend by device id, all by today's admin key.

    `ended_ids`, `ended_keys` (Ed25519): devices of invitations that were taken back, or ended, and never joined. They
    ascend. Nothing that was revoked or has ended is certified.
    """

    policy_data: bytes
    certificates: tuple[Certificate, ...]
    ended_ids: tuple[bytes, ...] = ()
    ended_keys: tuple[bytes, ...] = ()
    tags: Tags = ()

    @cached_property
    def policy(self) -> Policy:
        return decode_policy(self.policy_data)

    @property
    def chain(self) -> AdminChain:
        """The admin keys."""
        return self.policy.chain

    @property
    def slots(self) -> tuple[tuple[int, bytes], ...]:
        """The slots in force: (kind, id of its key)."""
        return self.policy.slots

    @property
    def revoked_ids(self) -> tuple[bytes, ...]:
        """Devices that the admin key revoked."""
        return self.policy.revoked_ids

    @cached_property
    def _by_id(self) -> dict[bytes, Certificate]:
        return {c.device_id: c for c in self.certificates}

    @cached_property
    def _barred(self) -> frozenset[bytes]:
        """Ids and keys: 16 and 32 bytes, so that none passes for the other."""
        revoked = (*self.policy.revoked_ids, *self.policy.revoked_keys)
        return frozenset((*revoked, *self.ended_ids, *self.ended_keys))

    def bars(self, device_id: bytes) -> bool:
        """True for a device that was revoked, or whose invitation was taken back: it is never admitted again."""
        return device_id in self._barred

    def get(self, device_id: bytes) -> Certificate | None:
        return self._by_id.get(device_id)

    def admits(self, certificate: Certificate) -> bool:
        """True for a valid certificate by today's admin key whose id and key are not revoked or taken."""
        taken = self._by_id.get(certificate.device_id)
        return (
            certificate.ns_id == self.chain.ns_id
            and certificate.device_id not in self._barred
            and certificate.sign_public not in self._barred
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
        """The set with one more device. `ValueError` when it is not admitted, `UsageError` when the set is full."""
        if not self.admits(certificate):
            raise ValueError("the certificate is not valid in this device set")
        rest = [c for c in self.certificates if c.device_id != certificate.device_id]
        if len(rest) >= DEVICES_MAX:
            raise UsageError(
                f"the workspace has {len(rest)} devices, which is the most there can be",
                next_step="`metasync device revoke` those that are not used any more, on another device.",
            )
        return make_device_set(self.policy, (*rest, certificate), self.ended_ids, self.ended_keys, self.tags)

    def encode(self) -> bytes:
        return (
            u8(FORMAT)
            + bytes32(self.policy_data)
            + u16(len(self.certificates))
            + b"".join(bytes16(c.encode()) for c in self.certificates)
            + u16(len(self.ended_ids))
            + b"".join(self.ended_ids)
            + u16(len(self.ended_keys))
            + b"".join(self.ended_keys)
            + encode_tags(self.tags)
        )


def make_device_set(
    policy: Policy,
    certificates: Iterable[Certificate],
    ended_ids: Iterable[bytes] = (),
    ended_keys: Iterable[bytes] = (),
    tags: Tags = (),
) -> DeviceSet:
    """A device set in canonical order."""
    return DeviceSet(
        policy.encode(),
        tuple(sorted(certificates, key=lambda c: c.device_id)),
        tuple(sorted(set(ended_ids))),
        tuple(sorted(set(ended_keys))),
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
    policy = r.bytes32(POLICY_BYTES_MAX)
    raw = [r.bytes16(CERTIFICATE_BYTES_MAX) for _ in range(r.count(r.u16(), 2, DEVICES_MAX))]
    ids = tuple(r.take(16) for _ in range(r.count(r.u16(), 16, ENDED_MAX)))
    keys = tuple(r.take(32) for _ in range(r.count(r.u16(), 32, ENDED_MAX)))
    tags = r.tags()
    r.end()
    out = DeviceSet(policy, tuple(decode_certificate(c) for c in raw), ids, keys, tags)
    if not all(ascending(items) for items in ([c.device_id for c in out.certificates], ids, keys)):
        raise FormatError("device set: out of order")
    if known:
        return out
    if out.chain.ns_id != ns_id:
        raise FormatError("device set: of another workspace")
    for certificate in out.certificates:
        if not out.admits(certificate):
            raise FormatError(f"device set: the certificate of device {certificate.device_id.hex()} is not valid")
    return out


LOGINS_TAG: Final = 1
INVITATIONS_TAG: Final = 2
NAMES_TAG: Final = 3
EXPIRES_AFTER: Final = 1000  # versions, unless the user says otherwise: weeks for people, a day for a busy daemon
BACKEND_NAME_BYTES_MAX: Final = 255
UNUSED: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class OpenLogins:
    """A revoked device, and the backends whose logins nobody has said to be withdrawn: (name, scheme), ascending."""

    device_id: bytes
    name: str
    backends: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation by its id. `expires`: the last version on which it may be used, 0 for none. `used`: SHA-256 of
    what the device that used it keeps to itself, or zeros."""

    invitation_id: bytes
    device_id: bytes
    sign_public: bytes
    name: str
    expires: int = 0
    used: bytes = UNUSED

    def is_open(self, v: int) -> bool:
        """True when it may be used by a commit on top of version v."""
        return self.used == UNUSED and not self.has_expired(v)

    def has_expired(self, v: int) -> bool:
        return self.used == UNUSED and 0 < self.expires < v


def open_logins(devices: DeviceSet) -> tuple[OpenLogins, ...]:
    """What is to be withdrawn still, ascending by device id. What a device wrote there against the rules is nothing."""
    out = []
    with suppress(FormatError):
        r = Reader(_tag(devices, LOGINS_TAG), "open logins")
        while r.pos < len(r.data):
            device_id, name = r.take(16), r.text16(DEVICE_NAME_BYTES_MAX)
            n = r.count(r.u16(), 4)
            pairs = ((r.text16(BACKEND_NAME_BYTES_MAX), r.text16(BACKEND_NAME_BYTES_MAX)) for _ in range(n))
            out.append(OpenLogins(device_id, name, tuple(pairs)))
    return tuple(out)


def with_logins(devices: DeviceSet, logins: Iterable[OpenLogins]) -> DeviceSet:
    """The same set with these open logins; those without a backend left go."""
    data = b"".join(
        item.device_id
        + text16(item.name)
        + u16(len(item.backends))
        + b"".join(text16(name) + text16(scheme) for name, scheme in sorted(item.backends))
        for item in sorted(logins, key=lambda item: item.device_id)
        if item.backends
    )
    return _tagged(devices, LOGINS_TAG, data, "`metasync device confirm` those whose logins you have withdrawn.")


def given_names(devices: DeviceSet) -> dict[bytes, str]:
    """Names by device id that hold in place of those in certificates, and those of revoked devices. Nothing for what
    breaks the rules."""
    out: dict[bytes, str] = {}
    with suppress(FormatError):
        r = Reader(_tag(devices, NAMES_TAG), "names of devices")
        while r.pos < len(r.data):
            device_id = r.take(16)
            out[device_id] = r.text16(DEVICE_NAME_BYTES_MAX)
    return out


def with_names(devices: DeviceSet, names: Mapping[bytes, str]) -> DeviceSet:
    """The same set with these given names."""
    data = b"".join(device_id + text16(names[device_id]) for device_id in sorted(names))
    return _tagged(devices, NAMES_TAG, data, "Rename devices back to what they were called first.")


def names_of(devices: DeviceSet) -> dict[bytes, str]:
    """What devices are called, by id: those in the set, and revoked ones as far as their names are known."""
    revoked = {item.device_id: item.name for item in open_logins(devices)}
    return {**revoked, **{c.device_id: c.name for c in devices.certificates}, **given_names(devices)}


def invitations(devices: DeviceSet) -> tuple[Invitation, ...]:
    """Invitations made in this key epoch, ascending by id; used ones too. Nothing for what breaks the rules."""
    out = []
    with suppress(FormatError):
        r = Reader(_tag(devices, INVITATIONS_TAG), "invitations")
        while r.pos < len(r.data):
            ids = r.take(16), r.take(16), r.take(32)
            out.append(Invitation(*ids, r.text16(DEVICE_NAME_BYTES_MAX), r.u64(), r.take(32)))
    return tuple(out)


def with_invitations(devices: DeviceSet, items: Iterable[Invitation]) -> DeviceSet:
    """The same set with these invitations."""
    data = b"".join(
        i.invitation_id + i.device_id + i.sign_public + text16(i.name) + u64(i.expires) + i.used
        for i in sorted(items, key=lambda i: i.invitation_id)
    )
    return _tagged(devices, INVITATIONS_TAG, data, "`metasync device revoke` invitations that nobody needs.")


def without_invitations(devices: DeviceSet, gone: Iterable[Invitation]) -> DeviceSet:
    """The same set after these open invitations were taken back: their devices are admitted never more."""
    gone = tuple(gone)
    kept = [i for i in invitations(devices) if i not in gone]
    ids = (*devices.ended_ids, *(i.device_id for i in gone))
    keys = (*devices.ended_keys, *(i.sign_public for i in gone))
    less = make_device_set(devices.policy, devices.certificates, ids, keys, devices.tags)
    return with_invitations(less, kept)


def joined(devices: DeviceSet, certificate: Certificate, v: int, secret: bytes) -> DeviceSet:
    """The set on top of version v with the device of an invitation, which is used up by that.

    `secret`: what the device keeps to itself, by which it knows later that it was the one (`used_by`). `ExcludedError`
    when the invitation is not open.
    """
    items = invitations(devices)
    mine = next((i for i in items if i.device_id == certificate.device_id), None)
    if mine is None or not mine.is_open(v) or not devices.admits(certificate):
        raise ExcludedError(
            "this invitation is not open any more: it was used or taken back, it expired, or the workspace's keys were "
            "changed since",
            next_step="Ask for a new one: `metasync invite` on a device of the workspace.",
        )
    used = replace(mine, used=sha256(secret))
    return with_invitations(devices.with_device(certificate), [used if i is mine else i for i in items])


def rejoined(devices: DeviceSet, certificate: Certificate, secret: Callable[[], bytes]) -> DeviceSet:
    """The set with a device that joins by its certificate. An invitation for it that is listed is used up by that.

    Such a device joined before, in versions that a new era left behind. `secret` draws what nobody knows then.
    """
    more, items = devices.with_device(certificate), invitations(devices)
    if all(i.device_id != certificate.device_id or i.used != UNUSED for i in items):
        return more
    used = sha256(secret())
    return with_invitations(more, [replace(i, used=used) if i.device_id == certificate.device_id else i for i in items])


def used_by(devices: DeviceSet, device_id: bytes, secret: bytes) -> bool:
    """True if this device used its invitation itself. Where new keys have ended the list, nothing shows that it did."""
    return any(i.device_id == device_id and i.used == sha256(secret) for i in invitations(devices))


def expired(devices: DeviceSet, v: int) -> tuple[Invitation, ...]:
    """Invitations that may not be used on top of version v any more, and are to be taken back."""
    return tuple(i for i in invitations(devices) if i.has_expired(v))


def _tag(devices: DeviceSet, tag: int) -> bytes:
    return dict(devices.tags).get(tag, b"")


def _tagged(devices: DeviceSet, tag: int, data: bytes, next_step: str) -> DeviceSet:
    if len(data) > TAG_BYTES_MAX:
        raise UsageError("the list of devices is full", next_step=next_step)
    rest = {k: v for k, v in devices.tags if k != tag}
    return replace(devices, tags=tuple(sorted({**rest, **({tag: data} if data else {})}.items())))
