"""The chain of states: walking it backwards by hash, and following its keys (consensus.md, rules 1.1, 1.12, 3.3).

State u stands, as the base of every entry of version u+1, in the acceptors' logs. So an ancestor is fetched from entry
0 of the next version, from a later one where that stands on a lie, or from `const/` once that log is deleted
(`truncation`), and its hash proves it. Steps along `skip` make the walk short (`records.state`).

A state of a key epoch that this device does not hold names its keyring by hash, so whichever acceptor's copy matches is
the one that was agreed. It is signed by the admin key of the epoch before, back to `ns_id`, and opened with the
device's own sealing key. A device that the keyring is not sealed to was revoked, or joined while the keys were being
changed; the device set, which is sealed under the epoch before the state's, tells which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final

from metasync.consensus.instance import Instance
from metasync.consensus.objects import (
    CONST_BYTES_MAX,
    Copy,
    const_path,
    get_anywhere,
    named,
    open_state,
    open_state_in_block,
)
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.records.entry import VERSIONS_PER_FOLDER, base_of_block, base_of_entry, block_path, entry_path
from metasync.consensus.records.state import State, skip_after, skip_version, step_versions
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
from metasync.keys.slots import is_intact
from metasync.runtime.effects import Op, Reply, Task, Work

LATER_MAX: Final = 256  # entries of a log that are looked through for a state
ERAS_MAX: Final = 8  # an acceptor that is in none of the last eras is not there to be asked
WRITERS_MAX: Final = 1024  # devices whose first blocks are asked for


def step_back(v: int, least: int) -> int:
    """The version to go to from v on the shortest way down to `least`: along `skip` if it does not overshoot."""
    far = skip_version(v)
    return far if far >= least else v - 1


def ancestor(m: Participant, instance: Instance, state: State, v: int) -> Task:
    """-> the hash of version `v <= state.v` in the chain that ends with `state`.

    `DamagedError` or `NoQuorumError` when a state on the way cannot be had; the latter too for a version after `state`.
    """
    if state.v < v:  # it was thought to lie below a floor, which somebody made up
        raise NoQuorumError(f"version {v} was not agreed yet", next_step="run again")
    while state.v > v:
        below = step_back(state.v, v)
        digest = state.skip if below == skip_version(state.v) else state.prev
        if below == v:
            return digest
        state = yield from fetch_state(m, instance, below, digest, state.epoch)
    return state.hash


def learn_skip(m: Participant, instance: Instance) -> Task:
    """-> the `skip` of the values of `instance`. Keeps the states that it rests on, for the entries that carry them."""
    rules, state = instance.rules, instance.base
    if not rules.steps:
        steps: list[bytes] = []
        for v in step_versions(instance.v):
            digest = state.skip if steps else state.prev
            state = yield from fetch_state(m, instance, v, digest, state.epoch)
            steps.append(state.encode())
        rules.steps = tuple(steps)
    return skip_after(instance.base, rules.steps)


def other_at(m: Participant, instance: Instance, shown: State) -> Task:
    """-> the hash that the chain of `shown` has in the place of the instance's base; None where it has the base or
    does not come so far, and where the way back cannot be read."""
    base = instance.base
    try:
        digest = yield from ancestor(m, instance, shown, base.v)
    except (DamagedError, NoQuorumError):
        return None
    return None if digest == base.hash else digest


def fetch_state(m: Participant, instance: Instance, v: int, digest: bytes, epoch: int) -> Task:
    """-> state `v`, whose hash is `digest`. `epoch`: of a later state.

    It lies in the logs and blocks of the next version, and maybe on its own. Its hash vouches for every copy.
    """
    known = m.states.get(digest)
    if known is not None:
        return known
    keys = m.keys
    after = v + 1
    views = instance.acceptors
    reachable = [(a, link) for a, view in views.items() if (link := view.reach())]
    reachable += [(a, link) for a, link in m.links.items() if a not in views]  # of configs before or after
    in_blocks = [(a, link) for a, link in reachable if a in views and views[a].form == "block"]
    in_logs = [pair for pair in reachable if pair not in in_blocks]
    devices = writers(m, instance) if in_blocks else []
    eras = range(instance.base.era, max(-1, instance.base.era - ERAS_MAX), -1)
    epochs = sorted((e for e, _ in keys.epoch_keys if e <= epoch), reverse=True)  # `skip` may lead over rotations
    places = [replace(instance.base, era=era, epoch=e) for era in eras for e in epochs]
    copies = [
        Copy(link, entry_path(keys, at.epoch, at.era, a, after, 0), partial(base_of_entry, keys, digest, at, a, after))
        for at in places
        for a, link in in_logs
    ]
    for at, (a, link), w in product(places[: len(epochs)], in_blocks, devices):
        path = block_path(keys, at.epoch, at.era, a, after, w, 0)
        copies.append(Copy(link, path, partial(base_of_block, keys, digest, at, a, after, w)))
    name = keys.state_name(digest)
    copies += [Copy(link, const_path(a, name), partial(open_state, keys, digest)) for a, link in reachable]
    held = sorted((e for e, _ in keys.epoch_keys), reverse=True)  # the last state of a block may be of a later epoch
    for name in (keys.states_name(e, era, v // VERSIONS_PER_FOLDER) for era in eras for e in held):
        copies += [Copy(link, const_path(a, name), partial(open_state_in_block, keys, digest)) for a, link in reachable]
    try:
        state: State = yield from get_anywhere(copies, CONST_BYTES_MAX, f"the state of version {v}")
    except DamagedError:
        found = yield from _in_later_entries(keys, digest, after, list(product(in_logs, places)))
        if found is None:
            raise
        state = found
    m.remember_state(state)
    return state


def _in_later_entries(
    keys: WorkspaceKeys, digest: bytes, v: int, logs: Sequence[tuple[tuple[bytes, str], State]]
) -> Task:
    """-> the state of this hash that an entry of version v beyond the first stands on; None if none does.

    A device that lies may write the first entry of each log, on a state of its own making.
    """
    for (acceptor_id, link), at in logs:
        for idx in range(1, LATER_MAX):
            path = entry_path(keys, at.epoch, at.era, acceptor_id, v, idx)
            reply: Reply = yield Op(link, "get", path, max_bytes=CONST_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
            if reply.error is not None:
                break
            try:
                opened = partial(base_of_entry, keys, digest, at, acceptor_id, v, reply.value, idx=idx)
                return (yield Work(opened))
            except (FormatError, UpgradeError):
                continue
    return None


def writers(m: Participant, instance: Instance) -> list[bytes]:
    """Every device there is, or was: each may have written the first block of a version."""
    sets = [instance.devices, *m.device_sets.values()]  # of states ahead, too: who joined later wrote first blocks
    known = (i for devices in sets for i in (*(c.device_id for c in devices.certificates), *devices.revoked_ids))
    return list(dict.fromkeys(known))[:WRITERS_MAX]


RINGS_MAX: Final = 16  # on one backend that are tried: those of later epochs, and rotations that were begun and lost
_RING = re.compile(r"ring-([0-9]{1,9})-[0-9a-f]{64}")
UNSENT: Final = "Your files here are untouched. What was not pushed from here can be copied by hand to another device."
AGAIN: Final = f"Clone the workspace into a new folder with the passphrase of today. {UNSENT}"


def fetch_ring(state: State, links: Sequence[str]) -> Task:
    """-> the bytes of the keyring that `state` names, from any of the backends `links`.

    `DamagedError` when all answered and none holds it intact, `NoQuorumError` when some could not be asked.
    """
    path = ring_place(state.epoch, state.keyring)
    copies = [Copy(link, path, partial(named, state.keyring)) for link in links]
    return get_anywhere(copies, RING_BYTES_MAX, f"the keyring of epoch {state.epoch}")


def rings_on(link: str, wanted: Callable[[int], bool]) -> Task:
    """-> the bytes of the keyrings of epochs that are `wanted`, as they lie on one backend, newest first."""
    listed: Reply = yield Op(link, "list", "keys", timeout_s=OP_TIMEOUT_S)
    names = [item.name for item in listed.value] if listed.error is None else []
    epochs = {name: int(match[1]) for name in names if (match := _RING.fullmatch(name)) and wanted(int(match[1]))}
    out = []
    for name in sorted(epochs, key=epochs.__getitem__, reverse=True)[:RINGS_MAX]:
        reply: Reply = yield Op(link, "get", f"keys/{name}", max_bytes=RING_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
        if reply.error is None and is_intact(name, reply.value):
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


def follow_keys(m: Participant, state: State, devices: DeviceSet, links: Sequence[str]) -> Task:
    """-> the keys that the keyring of a decided state holds for this device, read from any of the backends `links`.

    `ExcludedError` when it holds none, `DamagedError`, `NoQuorumError`.
    """
    ring: bytes = yield from fetch_ring(state, links)
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
    if devices.bars(m.identity.device_id):  # without encryption anybody can derive the keys
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
    if devices.bars(m.identity.device_id):
        return RevokedError(f"this device ({name}) was revoked; version {v} says so", next_step=UNSENT)
    if _newer(m, devices):
        return NoQuorumError(
            f"version {v} is older than this device, which must not decide what was left open there",
            next_step="Run again when more backends are reachable.",
        )
    return ExcludedError(
        f"the workspace's keys were changed before this device ({name}) was taken in as one of its devices",
        next_step=AGAIN,
    )


def shut_out(m: Participant) -> ExcludedError:
    """What to tell a device when it sees keys of a later epoch, none for it, and not the version that changed them."""
    return ExcludedError(
        f"the workspace's keys were changed, and the new ones are not for this device ({m.identity.name}): "
        "it was revoked, or was never taken in as one of its devices",
        next_step=AGAIN,
    )


def _newer(m: Participant, devices: DeviceSet) -> bool:
    """True for a device that an admin key later than this set's certified: it holds keys that the set cannot know."""
    try:
        shown = decode_certificate(m.certificate)
    except FormatError:
        return False
    return m.keys.epoch > devices.chain.epoch and not any(shown.verifies(key) for key in devices.chain.keys)
