"""The record of who last listed a backend, and how far its copies were read: a hint, as a head is, and overwritten.

One lies for each backend, on another one. Whoever finds it need not list the backend again that day. Nothing is decided
by it: a device that lies in it has others look later, which each device bounds for itself (`maintenance.scrub`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metasync.codec import Reader, Tags, bytes16, check_format, encode_tags, u8, u32, u64
from metasync.errors import FormatError
from metasync.keys.derive import FORMAT, Header, RecordKind, seal, sign, signed_part, verify
from metasync.keys.device_set import CERTIFICATE_BYTES_MAX, DeviceIdentity, DeviceSet
from metasync.keys.keyring import WorkspaceKeys

SCRUBBED_BYTES_MAX: Final = 8192
_SIGNED: Final = "scrubbed 1"


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What a device says of a backend.

    stores    a hash of the storage ids that were listed, and of how packs are mapped
    at_ns     when all of it was listed, ns since 1970 by that device's clock; 0: never
    wrong     packs that are still missing or other than agreed after that
    read_to   up to where copies were read on the circle of 2^32 places (docs/design/scrub.md)
    read_ns   when it was due to be read up to there
    """

    device_id: bytes
    backend_id: bytes
    stores: bytes
    at_ns: int
    wrong: int
    read_to: int
    read_ns: int
    certificate: bytes = b""
    tags: Tags = ()


def scrubbed_path(backend_id: bytes) -> str:
    return f"scrubbed/{backend_id.hex()}"


def seal_scrubbed(
    keys: WorkspaceKeys, seen: Scrubbed, identity: DeviceIdentity, *, era: int, epoch: int, random: bytes
) -> bytes:
    """The bytes to store at `scrubbed_path`."""
    body = u8(FORMAT) + keys.ns_id + seen.device_id + seen.backend_id + seen.stores
    body += u64(seen.at_ns) + u32(seen.wrong) + u32(seen.read_to) + u64(seen.read_ns)
    body += bytes16(seen.certificate) + encode_tags(seen.tags)
    header = Header(RecordKind.SCRUBBED, era, epoch, random)
    body += sign(identity.sign_private, _SIGNED, header.encode() + body)
    return seal(keys.log_key(epoch), header, body, binding=keys.ns_id + seen.backend_id)


def open_scrubbed(keys: WorkspaceKeys, devices: DeviceSet, data: bytes, backend_id: bytes) -> Scrubbed:
    """What a device of `devices` says of a backend. `FormatError` otherwise, `UpgradeError` for a newer format."""
    binding = keys.ns_id + backend_id
    header, body = keys.opened(
        data, RecordKind.SCRUBBED, "a scrub's record", binding=binding, bytes_max=SCRUBBED_BYTES_MAX
    )
    r = Reader(body, "a scrub's record")
    check_format(r.u8(), "a scrub's record")
    ns_id, device_id, found, stores = r.take(32), r.take(16), r.take(16), r.take(32)
    seen = Scrubbed(
        device_id, found, stores, r.u64(), r.u32(), r.u32(), r.u64(), r.bytes16(CERTIFICATE_BYTES_MAX), r.tags()
    )
    signed, signature = signed_part(r)
    public = devices.key_of(device_id, seen.certificate)
    if ns_id != keys.ns_id or found != backend_id or public is None:
        raise FormatError("a scrub's record: of another device, backend or workspace")
    if not verify(public, _SIGNED, header.encode() + signed, signature):
        raise FormatError("a scrub's record: the device's signature is wrong")
    return seen
