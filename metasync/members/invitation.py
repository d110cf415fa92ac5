"""Makes invitations: keys of a new device, certified, and sealed for the holder of a code (architecture.md, D11).

The agreed device set lists open invitations. Using one is a commit that admits its device and marks it used, so it is
used once, whoever holds copies; taking it back, or its end after a number of versions, is one that names its device
revoked. So neither needs a clock, nor an honest holder. The object on the backends goes as soon as it was used.

Where only block-form acceptors make a quorum, an admitted device would answer a request file instead (consensus.md,
rule 7.5): that belongs beside `invite`, and is not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metasync.consensus import State
from metasync.errors import UsageError, WorkspaceError
from metasync.keys.device_set import (
    DEVICE_ENTROPY_BYTES,
    EXPIRES_AFTER,
    DeviceSet,
    Invitation,
    invitations,
    new_device,
    with_invitations,
)
from metasync.keys.invitation import SECRET_BYTES, Code, Invite, Way, invitation_name, seal_invite
from metasync.local.state_keys import INVITED_KEY
from metasync.members import key_store
from metasync.members.devices import change_devices
from metasync.members.newcomers import logs_suffice
from metasync.reports.members import InviteReport
from metasync.session.folder import Link
from metasync.session.session import Session

ID_BYTES: Final = 16
EXPIRES_MAX: Final = 1 << 32


def invite(
    s: Session,
    links: Mapping[str, Link],
    passphrase: str,
    name: str,
    *,
    expires_after: int = EXPIRES_AFTER,
    dry_run: bool = False,
) -> InviteReport:
    """Makes an invitation for a new device called `name`. `expires_after`: versions from now; 0: it does not end.

    `PassphraseError`, `UsageError` for a name that is taken, `NoQuorumError`.
    """
    if not name.strip() or not name.isprintable():
        raise UsageError(f"a device's name has printable characters, not {name!r}")
    if not 0 <= expires_after <= EXPIRES_MAX:
        raise UsageError(f"an invitation ends after 1 to {EXPIRES_MAX:,} versions, or never (0)")
    if not logs_suffice(s.config):
        raise UsageError(
            "invitations need a quorum of backends with an atomic create: with the others, an invited device could not "
            "enter by itself",
            next_step="Clone with the passphrase there; the next push on a device that is in takes it in.",
        )
    state = s.ask_newest()
    _check_free(s.devices_of(state), name, state.v)
    opened = key_store.open_admin_key(s, state, passphrase)
    device = new_device(name, s.entropy(DEVICE_ENTROPY_BYTES))
    certificate = device.certified(opened.admin_private, s.keys.ns_id)
    invitation_id, secret = s.entropy(ID_BYTES), s.entropy(SECRET_BYTES)

    def more(base: State, devices: DeviceSet) -> DeviceSet:
        if base.epoch != state.epoch:
            raise WorkspaceError(
                "another device changed the keys meanwhile; nothing was changed by this one", next_step="Run again."
            )
        _check_free(devices, name, base.v)
        expires = base.v + 1 + expires_after if expires_after else 0
        item = Invitation(invitation_id, device.device_id, certificate.sign_public, name, expires)
        return with_invitations(devices, (*invitations(devices), item))

    agreed = change_devices(s, more, dry_run=dry_run)
    ways = tuple(Way(n, link.url, link.folder) for n, link in sorted(links.items()))
    if agreed is None:
        return InviteReport(
            name, invitation_id.hex(), "", state.v, _end(state.v + 1, expires_after), tuple(sorted(links))
        )
    made = Invite(
        ns_id=s.keys.ns_id,
        name=s.name,
        state=agreed.encode(),
        config=s.config_of(agreed).encode(),
        devices=s.devices_of(agreed).encode(),
        identity=device.encode(),
        certificate=certificate.encode(),
        keys=s.keys.encode(),
        memory=s.group.memory,
    )
    data = seal_invite(made, invitation_id, secret, s.entropy(32), epoch=agreed.epoch)
    path = f"{key_store.FOLDER}/{invitation_name(invitation_id)}"
    missing = key_store.store(s, s.config_of(agreed), {path: data})
    return InviteReport(
        name=name,
        invitation_id=invitation_id.hex(),
        code=Code(invitation_id, secret, ways).encode(),
        version=agreed.v,
        expires=_end(agreed.v, expires_after),
        backends=tuple(w.name for w in ways),
        missing=missing,
    )


def _end(v: int, expires_after: int) -> int | None:
    return v + expires_after if expires_after else None


def _check_free(devices: DeviceSet, name: str, v: int) -> None:
    if any(c.name == name for c in devices.certificates):
        raise UsageError(f"a device is called {name} already", next_step="Choose another name for the new one.")
    if any(i.name == name and i.is_open(v) for i in invitations(devices)):
        raise UsageError(
            f"there is an open invitation for {name} already",
            next_step=f"metasync device revoke {name} takes it back; then make a new one.",
        )


def used_up(s: Session) -> None:
    """After the device of an invitation was agreed: removes the invitation's object, as far as backends let it."""
    kept = s.db.get(INVITED_KEY)
    if kept is not None:
        key_store.remove(s, {invitation_name(kept[SECRET_BYTES:]): tuple(s.names.values())})
        s.db.set(INVITED_KEY, None)
