"""Following the keys: what a device does when the agreed state is in a key epoch that it does not hold (D11).

The state names its keyring by hash, so whichever acceptor's copy matches is the one that was agreed; it is signed by
the admin key of the epoch before, back to `ns_id`. It is opened with the device's own sealing key. A device that the
keyring is not sealed to was revoked, or joined while the keys were being changed; the device set, which is sealed under
the epoch before the state's, tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from metasync.consensus.member import Member
from metasync.consensus.meta import Copy, get_anywhere
from metasync.consensus.states import State
from metasync.effects import Task
from metasync.errors import DamagedError, ExcludedError, FormatError, NoQuorumError, PassphraseError, RevokedError
from metasync.keys.derive import sha256
from metasync.keys.devices import DeviceSet, decode_certificate
from metasync.keys.ring import RING_BYTES_MAX, WorkspaceKeys, open_ring, read_ring, ring_place

UNSENT: Final = "Your files here are untouched. What was not pushed from here can be copied by hand to another device."
AGAIN: Final = f"Clone the workspace into a new folder with the passphrase of today. {UNSENT}"


def fetch_ring(state: State, links: Sequence[str]) -> Task:
    """-> the bytes of the keyring that `state` names, from any of the backends `links`.

    `DamagedError` when all answered and none holds it intact, `NoQuorumError` when some could not be asked.
    """
    path = ring_place(state.epoch, state.keyring)
    copies = [Copy(link, path, named(state.keyring)) for link in links]
    return get_anywhere(copies, RING_BYTES_MAX, f"the keyring of epoch {state.epoch}")


def named(digest: bytes) -> Callable[[bytes], bytes]:
    """Takes bytes only if they hash to `digest`."""

    def opened(data: bytes) -> bytes:
        if sha256(data) != digest:
            raise FormatError("its copy is altered")
        return data

    return opened


def opened_keys(m: Member, state: State, devices: DeviceSet, ring: bytes) -> WorkspaceKeys:
    """The keys that `state`'s keyring holds for this device. `ExcludedError` when it holds none, `DamagedError`."""
    try:
        if read_ring(ring, state.ns_id).chain != devices.chain or devices.chain.epoch != state.epoch:
            raise FormatError("its admin keys are not those of the device set")
        keys = open_ring(ring, m.identity.seal_private, state.ns_id)
    except FormatError as e:
        raise DamagedError(
            f"version {state.v} names a keyring that cannot be right: {e.message}", next_step="Run metasync check."
        ) from e
    except PassphraseError as e:
        raise exclusion(m, devices, state.v) from e
    if m.identity.device_id in devices.revoked_ids:  # without encryption anybody can derive the keys
        raise exclusion(m, devices, state.v)
    return keys


def check_admitted(m: Member, devices: DeviceSet, v: int) -> None:
    """Raises unless this device may sign entries on top of a state with this device set.

    Its own view would count what everybody else takes for VOID, and so call a version decided that is not.
    """
    if devices.key_of(m.identity.device_id, m.certificate) is None:
        raise exclusion(m, devices, v)


def exclusion(m: Member, devices: DeviceSet, v: int) -> ExcludedError | NoQuorumError:
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


def _newer(m: Member, devices: DeviceSet) -> bool:
    """True for a device that an admin key later than this set's certified: it holds keys that the set cannot know."""
    try:
        shown = decode_certificate(m.certificate)
    except FormatError:
        return False
    return m.keys.epoch > devices.chain.epoch and not any(shown.verifies(key) for key in devices.chain.keys)
