"""Keys: derivation and sealing, key slots, keyrings, devices and their certificates (architecture.md, D2 and D11)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metasync.keys.derive import Header, RecordKind, seal, sha256, sign, unseal, verify
    from metasync.keys.device_set import (
        DEVICE_ENTROPY_BYTES,
        AdminChain,
        Certificate,
        DeviceIdentity,
        DeviceSet,
        decode_device_set,
        decode_identity,
        make_device_set,
        new_device,
        recertified,
    )
    from metasync.keys.keyring import (
        FIRST_EPOCH,
        RING_ENTROPY_BYTES,
        Ring,
        WorkspaceKeys,
        decode_keys,
        make_ring,
        new_keys,
        open_admin,
        open_keys,
        open_ring,
        read_ring,
        ring_path,
        ring_place,
        rotated_keys,
    )
    from metasync.keys.slots import (
        COST,
        PASSPHRASE,
        RECOVERY,
        SLOT_ENTROPY_BYTES,
        Cost,
        Slot,
        SlotSecret,
        another_slot,
        make_phrase,
        make_slot,
        normalise_phrase,
        open_slot,
        read_slot,
        slot_path,
    )

__all__ = [
    "COST",
    "DEVICE_ENTROPY_BYTES",
    "FIRST_EPOCH",
    "PASSPHRASE",
    "RECOVERY",
    "RING_ENTROPY_BYTES",
    "SLOT_ENTROPY_BYTES",
    "AdminChain",
    "Certificate",
    "Cost",
    "DeviceIdentity",
    "DeviceSet",
    "Header",
    "RecordKind",
    "Ring",
    "Slot",
    "SlotSecret",
    "WorkspaceKeys",
    "another_slot",
    "decode_device_set",
    "decode_identity",
    "decode_keys",
    "make_device_set",
    "make_phrase",
    "make_ring",
    "make_slot",
    "new_device",
    "new_keys",
    "normalise_phrase",
    "open_admin",
    "open_keys",
    "open_ring",
    "open_slot",
    "read_ring",
    "read_slot",
    "recertified",
    "ring_path",
    "ring_place",
    "rotated_keys",
    "seal",
    "sha256",
    "sign",
    "slot_path",
    "unseal",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Loads the module that has `name` when it is asked for: who opens a folder needs no slots."""
    if name in __all__:
        for module in ("derive", "device_set", "keyring", "slots"):
            found = import_module(f"metasync.keys.{module}")
            if name in vars(found):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
