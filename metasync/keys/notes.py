"""What an agreed device set says beside who is admitted, in its tags: logins still to withdraw, and invitations.

A revoked device still has the logins of the providers. Which of them a user has not withdrawn yet is agreed, so that
every device shows it until somebody confirms it. An invitation is a device whose keys were drawn and certified before
anybody holds them; the set says which are open, so that each is used once, may expire and can be taken back (D11).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from metasync.codec import TAG_BYTES_MAX, Reader, text16, u16, u64
from metasync.errors import ExcludedError, FormatError, UsageError
from metasync.keys.derive import sha256
from metasync.keys.devices import DEVICE_NAME_BYTES_MAX, Certificate, DeviceSet, make_device_set

LOGINS_TAG: Final = 1
INVITATIONS_TAG: Final = 2
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
    ids = (*devices.revoked_ids, *(i.device_id for i in gone))
    keys = (*devices.revoked_keys, *(i.sign_public for i in gone))
    less = make_device_set(devices.chain, devices.slots, devices.certificates, ids, keys, devices.tags)
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


def used_by(devices: DeviceSet, device_id: bytes, secret: bytes) -> bool:
    """True unless somebody else used the invitation of this device."""
    mine = next((i for i in invitations(devices) if i.device_id == device_id), None)
    return mine is None or mine.used == sha256(secret)


def expired(devices: DeviceSet, v: int) -> tuple[Invitation, ...]:
    """Invitations that may not be used on top of version v any more, and are to be taken back."""
    return tuple(i for i in invitations(devices) if i.has_expired(v))


def _tag(devices: DeviceSet, tag: int) -> bytes:
    return dict(devices.tags).get(tag, b"")


def _tagged(devices: DeviceSet, tag: int, data: bytes, next_step: str) -> DeviceSet:
    if len(data) > TAG_BYTES_MAX:
        raise UsageError("the list in the agreed device set is full", next_step=next_step)
    rest = {k: v for k, v in devices.tags if k != tag}
    return replace(devices, tags=tuple(sorted({**rest, **({tag: data} if data else {})}.items())))
