"""Following the keys: a device meets a state of a key epoch that it does not hold (consensus.md, rule 1.12).

The state names its keyring by hash, so whichever acceptor's copy matches is the one that was agreed; it is signed by
the admin key of the epoch before, back to `ns_id`. It is opened with the device's own sealing key. A device that the
keyring is not sealed to was revoked, or joined while the keys were being changed; the device set, which is sealed under
the epoch before the state's, tells which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from metasync.consensus.objects import Copy, get_anywhere
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.state import State
from metasync.errors import (
    DamagedError,
    ExcludedError,
    FormatError,
    NoQuorumError,
    PassphraseError,
    RevokedError,
    UpgradeError,
)
from metasync.keys.derive import sha256
from metasync.keys.device_set import DeviceSet, decode_certificate
from metasync.keys.keyring import RING_BYTES_MAX, WorkspaceKeys, open_ring, read_ring, ring_place
from metasync.runtime.effects import Op, Reply, Task

RINGS_MAX: Final = 16  # on one backend that are tried: those of later epochs, and rotations that were begun and lost
_RING = re.compile(r"ring-([0-9]{1,9})-[0-9a-f]{64}")
UNSENT: Final = "Your files here are untouched. What was not pushed from here can be copied by hand to another device."
AGAIN: Final = f"Clone the workspace into a new folder with the passphrase of today. {UNSENT}"


def fetch_ring(state: State, links: Sequence[str]) -> Task:
    """-> the bytes of the keyring that `state` names, from any of the backends `links`.

    `DamagedError` when all answered and none holds it intact, `NoQuorumError` when some could not be asked.
    """
    path = ring_place(state.epoch, state.keyring)
    copies = [Copy(link, path, named(state.keyring)) for link in links]
    return get_anywhere(copies, RING_BYTES_MAX, f"the keyring of epoch {state.epoch}")


def rings_on(link: str, wanted: Callable[[int], bool]) -> Task:
    """-> the bytes of the keyrings of epochs that are `wanted`, as they lie on one backend, newest first."""
    listed: Reply = yield Op(link, "list", "keys", timeout_s=OP_TIMEOUT_S)
    names = [item.name for item in listed.value] if listed.error is None else []
    epochs = {name: epoch for name in names if (epoch := _epoch_of(name)) >= 0 and wanted(epoch)}
    out = []
    for name in sorted(epochs, key=epochs.__getitem__, reverse=True)[:RINGS_MAX]:
        reply: Reply = yield Op(link, "get", f"keys/{name}", max_bytes=RING_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
        if reply.error is None and sha256(reply.value).hex() == name.rpartition("-")[2]:
            out.append(reply.value)
    return out


def find_keys(m: Participant, epoch: int, links: Sequence[str]) -> Task:
    """-> (keys, shut): all keys that keyrings of this epoch or later, as they lie on backends, hold for this device,
    newest first; and whether there are such that hold none for it.

    For records of an epoch whose agreed state, which names its ring, can't be reached one version after the other. Each
    is signed by the admin's keys back to `ns_id`, and holds the keys of older epochs; one that was never agreed may be
    among them, so what is newer than the newest state is dropped in the end (`WorkspaceKeys.until`).
    """
    found: dict[bytes, WorkspaceKeys] = {}
    shut = False
    for link in links:
        for ring in (yield from rings_on(link, lambda e: e >= epoch)):
            try:
                found[sha256(ring)] = open_ring(ring, m.identity.seal_private, m.keys.ns_id)
            except PassphraseError:
                shut = True
            except (FormatError, UpgradeError):
                continue
    return sorted(found.values(), key=lambda keys: keys.epoch, reverse=True), shut


def _epoch_of(name: str) -> int:
    """The epoch of a keyring by its name; -1 for what is none."""
    match = _RING.fullmatch(name)
    return -1 if match is None else int(match[1])


def named(digest: bytes) -> Callable[[bytes], bytes]:
    """Takes bytes only if they hash to `digest`."""

    def opened(data: bytes) -> bytes:
        if sha256(data) != digest:
            raise FormatError("its copy is altered")
        return data

    return opened


def follow_keys(m: Participant, state: State, devices: DeviceSet, links: Sequence[str]) -> Task:
    """-> the keys that the keyring of a decided state holds for this device, read from any of the backends `links`.

    `ExcludedError` when it holds none, `DamagedError`, `NoQuorumError`.
    """
    path = ring_place(state.epoch, state.keyring)
    copies = [Copy(link, path, named(state.keyring)) for link in links]
    ring: bytes = yield from get_anywhere(copies, RING_BYTES_MAX, f"the keyring of epoch {state.epoch}")
    try:
        if read_ring(ring, m.keys.ns_id).chain != devices.chain or devices.chain.epoch != state.epoch:
            raise FormatError("its admin keys are not those of the device set")
        keys = open_ring(ring, m.identity.seal_private, m.keys.ns_id)
    except FormatError as e:
        raise DamagedError(
            f"version {state.v} names a keyring that cannot be right: {e.message}", next_step="Run metasync check."
        ) from e
    except PassphraseError as e:
        raise exclusion(m, devices, state.v) from e
    if m.identity.device_id in devices.revoked_ids:  # without encryption anybody can derive the keys
        raise exclusion(m, devices, state.v)
    return keys


def check_admitted(m: Participant, devices: DeviceSet, v: int) -> None:
    """Raises unless this device may sign entries on top of a state with this device set.

    Its own view would count what everybody else takes for VOID, and so call a version decided that is not.
    """
    if devices.key_of(m.identity.device_id, m.certificate) is None:
        raise exclusion(m, devices, v)


def exclusion(m: Participant, devices: DeviceSet, v: int) -> ExcludedError | NoQuorumError:
    """Why this device has no part in a version with this device set."""
    name = m.identity.name
    if m.identity.device_id in devices.revoked_ids:
        return RevokedError(f"this device ({name}) was revoked; version {v} says so", next_step=UNSENT)
    if _newer(m, devices):
        return NoQuorumError(
            f"version {v} is older than this device, which must not decide what was left open there",
            next_step="Run again when more backends are reachable.",
        )
    return ExcludedError(
        f"the workspace's keys were changed before this device ({name}) was agreed as one of its devices",
        next_step=AGAIN,
    )


def _newer(m: Participant, devices: DeviceSet) -> bool:
    """True for a device that an admin key later than this set's certified: it holds keys that the set cannot know."""
    try:
        shown = decode_certificate(m.certificate)
    except FormatError:
        return False
    return m.keys.epoch > devices.chain.epoch and not any(shown.verifies(key) for key in devices.chain.keys)
