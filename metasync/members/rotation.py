"""New keys: rotation, and the revocation of devices, as one commit (architecture.md, D11).

The passphrase opens the admin key of today. A rotation makes a new admin key certified by it, a new epoch key in a
keyring for the remaining devices and new slots, and new certificates. Ring and slots lie on a quorum of backends before
the state that names them is proposed, so whoever learns of that state can open it. If others are faster, all is made
anew on top of what they agreed, with the devices that joined meanwhile.

After the decision the logs of that version are closed (`reconfigure.fence`), because a revoked device has a vote there
until then. A crash leaves either the old keys in force, or the new ones. The next operation of any device that follows
to the new keys does what is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from metasync.config import Config
from metasync.consensus import JOURNAL_KEY, Change, Decided, State
from metasync.consensus.instance import PAST_IT
from metasync.errors import BackendError, NoQuorumError, PassphraseError, UsageError, WorkspaceError
from metasync.keys.derive import sha256, sign_public
from metasync.keys.device_set import (
    Certificate,
    DeviceSet,
    OpenLogins,
    given_names,
    invitations,
    make_device_set,
    names_of,
    open_logins,
    recertified,
    with_invitations,
    with_logins,
    with_names,
)
from metasync.keys.invitation import invitation_name
from metasync.keys.keyring import RING_ENTROPY_BYTES, WorkspaceKeys, make_ring, ring_path, rotated_keys
from metasync.keys.policy import CHAIN_MAX, AdminChain, make_policy
from metasync.keys.slots import COST, PASSPHRASE, Cost, NewSlots, new_slots
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.members import key_copies, key_store
from metasync.members.devices import chosen, withdrawals
from metasync.members.key_store import Opened, open_admin_key
from metasync.reports.members import RotationReport
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.session.session import Session

FENCE_S: Final = 15.0  # for closing a version's logs: a backend that takes longer is as good as down


@dataclass(frozen=True)
class Made:
    """The next epoch: its keys, ring and device set, its admin key, and the devices that are revoked by it."""

    keys: WorkspaceKeys
    ring: bytes
    devices: DeviceSet
    gone: tuple[Certificate, ...]
    admin_private: bytes = field(repr=False)


def revoke(
    s: Session,
    names: Sequence[str],
    passphrase: str,
    *,
    new_passphrase: str | None,
    dry_run: bool = False,
    cost: Cost = COST,
) -> RotationReport:
    """Revokes devices: see `rotate`."""
    if not names:
        raise UsageError("no device is named", next_step="See `metasync device list`.")
    return rotate(s, passphrase, new_passphrase=new_passphrase, revoke=names, dry_run=dry_run, cost=cost)


def rotate(
    s: Session,
    passphrase: str,
    *,
    new_passphrase: str | None,
    revoke: Sequence[str] = (),
    dry_run: bool = False,
    cost: Cost = COST,
) -> RotationReport:
    """Has new keys agreed, without the devices named in `revoke`. `new_passphrase` None: the passphrase stays.

    `PassphraseError`, `UsageError` for a device that is none, is this one or is meant by two; `NoQuorumError`: says
    whether the keys may have been changed all the same.
    """
    check_new(new_passphrase)
    agreement.settle_journal(s)
    state = agreement.ask_newest(s)
    chosen(s, s.devices_of(state), revoke)  # before the passphrase is stretched
    opened = open_admin_key(s, state, passphrase)
    check_kept(opened, new_passphrase)
    if dry_run:
        return preview(s, state, opened.devices, revoke, new_passphrase)
    slots = slots_for(s, opened, new_passphrase or passphrase, cost)
    op_id = s.entropy(16)
    for _ in range(LOST_ROUNDS_MAX):
        config = s.config_of(opened.state)
        at = opened.state.era, opened.state.v + 1
        made = make(s, opened, slots, chosen(s, opened.devices, revoke), config, at)
        files = {ring_path(made.ring): made.ring, **slots.files}
        missing = key_store.store(s, config, files)
        decided = _propose(s, opened.state, made, op_id)
        if decided.mine:
            return _finish(s, opened, decided.state, made, slots, missing, new_passphrase is not None)
        key_store.remove(s, {ring_path(made.ring).rpartition("/")[2]: s.names.values()})
        state = agreement.ask_newest(s)
        try:
            opened = _reopened(s, opened, state, passphrase)
        except BaseException:
            key_store.remove(s, {path.rpartition("/")[2]: s.names.values() for path in slots.files})
            raise
    raise WorkspaceError(
        f"others were faster {LOST_ROUNDS_MAX} times; the keys were not changed", next_step="Run again."
    )


def _reopened(s: Session, opened: Opened, state: State, passphrase: str) -> Opened:
    """The admin key for a newer base: opened again only if others changed the keys."""
    if state.epoch == opened.state.epoch:
        return replace(opened, state=state, devices=s.devices_of(state))
    try:
        return open_admin_key(s, state, passphrase)
    except PassphraseError as e:
        raise PassphraseError(
            "another device changed the keys and the passphrase meanwhile; nothing was changed by this one",
            next_step="Look with `metasync device list`, then run again with the new passphrase.",
        ) from e


def check_new(new_passphrase: str | None) -> None:
    """`UsageError` for an empty one."""
    if new_passphrase is not None and not new_passphrase.strip():
        raise UsageError("the new passphrase is empty", next_step="Choose one that nobody guesses.")


def check_kept(opened: Opened, new_passphrase: str | None) -> None:
    """`UsageError` where the passphrase is to be kept and is not known; `WorkspaceError` after very many rotations."""
    if new_passphrase is None and opened.secret.kind != PASSPHRASE:
        raise UsageError(
            "with the recovery phrase in place of the passphrase, the passphrase cannot be kept: it is not known",
            next_step="Choose a new one.",
        )
    if opened.devices.chain.epoch >= CHAIN_MAX:
        raise WorkspaceError(f"the keys were changed {CHAIN_MAX} times, which is the most there can be")


def slots_for(s: Session, opened: Opened, passphrase: str, cost: Cost) -> NewSlots:
    """New slots for what was opened: for this passphrase, and for a new recovery phrase."""
    return new_slots(passphrase, ns_id=s.keys.ns_id, name=opened.secret.name, entropy=s.entropy, cost=cost)


def make(
    s: Session, opened: Opened, slots: NewSlots, gone: Sequence[Certificate], config: Config, at: tuple[int, int]
) -> Made:
    """The ring and the device set of the next epoch, on top of what was opened, for a state that names `config`.

    `at`: the era and version as which they will be agreed.
    """
    devices = opened.devices
    admin_private = s.entropy(32)
    chain: AdminChain = devices.chain.extended(opened.admin_private, sign_public(admin_private))
    remaining = [c for c in devices.certificates if c not in gone]
    keys = rotated_keys(s.keys.until(devices.chain.epoch), s.entropy(32))
    ring = make_ring(
        keys,
        chain,
        admin_private=admin_private,
        signer_private=opened.admin_private,
        devices=[c.sealing for c in remaining],
        slots=[secret.key for secret in slots.secrets],
        entropy=s.entropy(RING_ENTROPY_BYTES),
    )
    policy = make_policy(
        chain,
        config,
        admin_private=admin_private,
        keyring=sha256(ring),
        slots=slots.publics,
        revoked_ids=(*devices.revoked_ids, *(c.device_id for c in gone)),
        revoked_keys=(*devices.policy.revoked_keys, *(c.sign_public for c in gone)),
        era=at[0],
        version=at[1],
        min_fmt=devices.policy.min_fmt,
        tags=devices.policy.tags,
    )
    made = make_device_set(policy, [recertified(c, admin_private) for c in remaining], tags=devices.tags)
    logins = _logins(devices, gone, config)
    made = with_logins(made, (*open_logins(devices), *logins))
    with contextlib.suppress(UsageError):  # of very many revoked devices: versions show their ids then
        made = with_names(made, {**given_names(devices), **{item.device_id: item.name for item in logins}})
    return Made(keys, ring, with_invitations(made, ()), tuple(gone), admin_private)


def _logins(devices: DeviceSet, gone: Sequence[Certificate], config: Config) -> list[OpenLogins]:
    """What revoked devices still have at the providers."""
    names, stores = names_of(devices), tuple((b.name, b.scheme) for b in config.backends)
    return [OpenLogins(c.device_id, names[c.device_id], stores) for c in gone]


def _propose(s: Session, base: State, made: Made, op_id: bytes) -> Decided:
    digest = s.put_const(base, made.devices.encode())
    change = Change(op_id, devices=digest, keyring=sha256(made.ring), epoch=made.devices.chain.epoch)
    try:
        return agreement.propose(s, base, change)
    except NoQuorumError as e:
        if e.next_step == PAST_IT:
            raise
        raise NoQuorumError(
            e.message,
            next_step="The keys may have been changed or not; both the old and the new passphrase may be the right "
            "one. Run again when more backends are reachable; `metasync device list` tells which it is.",
        ) from e


def _finish(
    s: Session,
    opened: Opened,
    state: State,
    made: Made,
    slots: NewSlots,
    missing: tuple[tuple[str, str], ...],
    new_passphrase: bool,
) -> RotationReport:
    """Closes the version and writes hints, after the keys are agreed."""
    base = opened.state
    complete = False
    with contextlib.suppress(BackendError, NoQuorumError):
        s.runtime.run(s.group.fence(base, state, deadline_s=FENCE_S))
        complete = True
    with contextlib.suppress(BackendError, NoQuorumError):
        s.runtime.run(s.group.write_hint(base, state, now=True))
    if s.base_state().hash == base.hash and not s.db.has(UNFINISHED_KEY):
        s.db.set(BASE_KEY, state)
    if complete:
        s.db.set(JOURNAL_KEY, None)  # else the next operation closes the version
    return replace(changed(s, opened, state.v, made, slots, missing, new_passphrase), complete=complete)


def changed(
    s: Session,
    opened: Opened,
    version: int,
    made: Made,
    slots: NewSlots,
    missing: tuple[tuple[str, str], ...],
    new_passphrase: bool,
) -> RotationReport:
    """Removes the old slots where the new ones lie, and tells what is in force now."""
    lacking = {name for name, _ in missing}
    holders = {
        name: opened.files.holders(name)
        for name, data in opened.files.slots.items()
        if key_store.key_of(data) in opened.devices.slots
    }
    old = {name: tuple(b for b in there if b not in lacking) for name, there in holders.items()}
    kept = {b for there in holders.values() for b in there if b in lacking}
    ended = [i for i in invitations(opened.devices) if i.is_open(opened.state.v)]
    old |= {invitation_name(i.invitation_id): tuple(s.names.values()) for i in ended}
    left = key_store.remove(s, old)
    old_slots = tuple(sorted({*left, *kept, *opened.files.failed}))
    names = names_of(opened.devices) | names_of(made.devices)
    epoch = made.devices.chain.epoch
    key_copies.note(s, epoch, {*old_slots, *(name for name, _ in missing)})
    return RotationReport(
        version=version,
        epoch=epoch,
        revoked=tuple(names[c.device_id] for c in made.gone),
        devices=tuple(sorted(names[c.device_id] for c in made.devices.certificates)),
        recovery_phrase=slots.phrase,
        new_passphrase=new_passphrase,
        withdraw=withdrawals(made.devices, [c.device_id for c in made.gone]),
        invitations=tuple(i.name for i in ended),
        missing=missing,
        old_slots=old_slots,
    )


def preview(
    s: Session, state: State, devices: DeviceSet, revoke: Sequence[str], new_passphrase: str | None
) -> RotationReport:
    """What a rotation after `state`, which names `devices`, would change."""
    gone = chosen(s, devices, revoke)
    names = names_of(devices)
    logins = _logins(devices, gone, s.config_of(state))
    return RotationReport(
        version=None,
        epoch=state.epoch + 1,
        revoked=tuple(names[c.device_id] for c in gone),
        devices=tuple(sorted(names[c.device_id] for c in devices.certificates if c not in gone)),
        new_passphrase=new_passphrase is not None,
        withdraw=withdrawals(with_logins(devices, logins), [c.device_id for c in gone]),
        invitations=tuple(i.name for i in invitations(devices) if i.is_open(state.v)),
    )
