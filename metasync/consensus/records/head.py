"""Heads: what a device itself last made and last synchronised, written by it alone to all backends.

One sealed, signed record at `devices/<id>`, overwritten. A head tells the others what is on its way; it is a hint, and
nothing is decided by it (consensus.md, rule 1.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metasync.codec import Reader, Tags, bytes16, encode_tags, u8, u64
from metasync.consensus.records.entry import ENTRY_BYTES_MAX, ENTRY_PAD
from metasync.errors import FormatError
from metasync.keys.derive import (
    FORMAT,
    SIGNATURE_BYTES,
    Header,
    RecordKind,
    check_format,
    seal,
    sign,
    unseal,
    verify,
)
from metasync.keys.device_set import CERTIFICATE_BYTES_MAX, DeviceIdentity, DeviceSet
from metasync.keys.keyring import WorkspaceKeys

_SIGNED: Final = "head 1"


@dataclass(frozen=True, slots=True)
class Head:
    """A device's newest snapshot `head`, its last synchronised one `prev`, and the state it had then."""

    device_id: bytes
    v: int
    state_hash: bytes
    head: bytes
    prev: bytes
    certificate: bytes = b""
    tags: Tags = ()


def head_path(device_id: bytes) -> str:
    return f"devices/{device_id.hex()}"


def seal_head(
    keys: WorkspaceKeys, head: Head, identity: DeviceIdentity, *, era: int, epoch: int, random: bytes
) -> bytes:
    """The bytes to store at `head_path`."""
    body = u8(FORMAT) + keys.ns_id + head.device_id + u64(head.v) + head.state_hash + head.head + head.prev
    body += bytes16(head.certificate) + encode_tags(head.tags)
    header = Header(RecordKind.HEAD, era, epoch, random)
    body += sign(identity.sign_private, _SIGNED, header.encode() + body)
    return seal(keys.log_key(epoch), header, body, binding=keys.ns_id + head.device_id, pad_to=ENTRY_PAD)


def open_head(keys: WorkspaceKeys, devices: DeviceSet, data: bytes, device_id: bytes) -> Head:
    """A device's head, signed by it. `FormatError` otherwise, `UpgradeError` for a newer format."""
    if len(data) < 10:
        raise FormatError(f"head of {len(data)} bytes")
    check_format(data[0], "a head")
    epoch = int.from_bytes(data[6:10], "big")
    if epoch not in dict(keys.epoch_keys):
        raise FormatError(f"head: of epoch {epoch}")
    binding = keys.ns_id + device_id
    header, body = unseal(keys.log_key(epoch), data, RecordKind.HEAD, binding=binding, bytes_max=ENTRY_BYTES_MAX)
    r = Reader(body, "head")
    check_format(r.u8(), "a head")
    ns_id, found = r.take(32), r.take(16)
    head = Head(found, r.u64(), r.take(32), r.take(32), r.take(32), r.bytes16(CERTIFICATE_BYTES_MAX), r.tags())
    signed = r.pos
    signature = r.take(SIGNATURE_BYTES)
    r.end()
    public = devices.key_of(device_id, head.certificate)
    if ns_id != keys.ns_id or found != device_id or public is None:
        raise FormatError("head: of another device or workspace")
    if not verify(public, _SIGNED, header.encode() + body[:signed], signature):
        raise FormatError("head: the device's signature is wrong")
    return head
