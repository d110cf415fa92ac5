"""Makes invitations: keys of a new device, certified, and sealed for the holder of a code (architecture.md, D11).

The agreed device set lists open invitations. A commit admits the device and marks the invitation used, so it is used
once, whoever holds copies. Another commit takes it back, or ends it after a number of versions, by revoking its device.
Neither needs a clock or an honest holder. The object on the backends is deleted after use.

Where only block-form acceptors make a quorum, an admitted device would answer a request file instead (consensus.md,
rule 7.5): that belongs beside `invite`, and is not there yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from metasync.consensus import State
from metasync.consensus.participant import decode_memory, encode_memory
from metasync.errors import UsageError, WorkspaceError
from metasync.keys.device_set import (
    DEVICE_ENTROPY_BYTES,
    EXPIRES_AFTER,
    Certificate,
    DeviceIdentity,
    DeviceSet,
    Invitation,
    invitations,
    new_device,
    with_invitations,
)
from metasync.keys.invitation import SECRET_BYTES, Code, Invite, Way, invitation_name, seal_invite
from metasync.local.state_keys import INVITED_KEY
from metasync.members import key_store
from metasync.members.devices import change_devices, check_free
from metasync.reports.members import InviteReport
from metasync.session import agreement
from metasync.session.session import Session

ID_BYTES: Final = 16
EXPIRES_MAX: Final = 1 << 32


@dataclass(frozen=True)
class _Drawn:
    """A new device and its invitation. `secret` opens it, and stands in the code alone."""

    invitation_id: bytes
    secret: bytes = field(repr=False)
    device: DeviceIdentity


def invite(
    s: Session, passphrase: str, name: str, *, expires_after: int | None = None, dry_run: bool = False
) -> InviteReport:
    """Makes an invitation for a new device called `name`.

    `expires_after`: versions from now; 0: it does not end; None: `EXPIRES_AFTER`. `PassphraseError`, `UsageError` for a
    name that is taken, `NoQuorumError`.
    """
    after = EXPIRES_AFTER if expires_after is None else expires_after
    _check_allowed(s, name, after)
    state = agreement.ask_newest(s)
    check_free(s.devices_of(state), name, state.v)
    opened = key_store.open_admin_key(s, state, passphrase)
    device = new_device(name, s.entropy(DEVICE_ENTROPY_BYTES))
    drawn = _Drawn(s.entropy(ID_BYTES), s.entropy(SECRET_BYTES), device)
    certificate = device.certified(opened.admin_private, s.keys.ns_id)
    agreed = _agree(s, drawn, certificate, state.epoch, after, dry_run=dry_run)
    ways = tuple(Way(n, link.url, link.folder) for n, link in sorted(s.connections.links.items()))
    v = state.v + 1 if agreed is None else agreed.v
    report = InviteReport(
        name=name,
        invitation_id=drawn.invitation_id.hex(),
        code="",
        version=state.v,
        expires=v + after if after else None,
        backends=tuple(w.name for w in ways),
    )
    if agreed is None:
        return report
    missing = _publish(s, drawn, certificate, agreed)
    code = Code(drawn.invitation_id, drawn.secret, ways).encode()
    return replace(report, code=code, version=v, missing=missing)


def _agree(
    s: Session, drawn: _Drawn, certificate: Certificate, epoch: int, after: int, *, dry_run: bool
) -> State | None:
    """Has the open invitation agreed, with the certificate's key. -> the state that lists it; None in a dry run."""
    name = certificate.name

    def more(base: State, devices: DeviceSet) -> DeviceSet:
        if base.epoch != epoch:
            raise WorkspaceError(
                "another device changed the keys meanwhile; nothing was changed by this one", next_step="Run again."
            )
        check_free(devices, name, base.v)
        expires = base.v + 1 + after if after else 0
        item = Invitation(drawn.invitation_id, drawn.device.device_id, certificate.sign_public, name, expires)
        return with_invitations(devices, (*invitations(devices), item))

    return change_devices(s, more, dry_run=dry_run)


def _publish(s: Session, drawn: _Drawn, certificate: Certificate, agreed: State) -> tuple[tuple[str, str], ...]:
    """Stores the sealed invitation on the backends. -> those that did not take it, and why."""
    config = s.config_of(agreed)
    logs = {a.acceptor_id for _, a in config.acceptors if a.form == "log"}  # of blocks one remembers one's own
    made = Invite(
        ns_id=s.keys.ns_id,
        name=s.name,
        state=agreed.encode(),
        config=config.encode(),
        devices=s.devices_of(agreed).encode(),
        identity=drawn.device.encode(),
        certificate=certificate.encode(),
        keys=s.keys.encode(),
        memory=encode_memory(m for m in decode_memory(s.group.memory) if m.seen.acceptor_id in logs),
    )
    data = seal_invite(made, drawn.invitation_id, drawn.secret, s.entropy(32), epoch=agreed.epoch)
    return key_store.store(s, config, {f"{key_store.FOLDER}/{invitation_name(drawn.invitation_id)}": data})


def _check_allowed(s: Session, name: str, after: int) -> None:
    if not name.strip() or not name.isprintable():
        raise UsageError(f"a device's name has printable characters, not {name!r}")
    if not 0 <= after <= EXPIRES_MAX:
        raise UsageError(f"an invitation ends after 1 to {EXPIRES_MAX:,} versions, or never (0)")
    if not s.config.logs_suffice:
        raise UsageError(
            "invitations need a quorum of backends with an atomic create: with the others, an invited device could not "
            "enter by itself",
            next_step="Clone with the passphrase there; the next push on a device that is in takes it in.",
        )


def used_up(s: Session) -> None:
    """After the device of an invitation was agreed: removes the invitation's object, as far as backends let it."""
    kept = s.db.get(INVITED_KEY)
    if kept is not None:
        key_store.remove(s, {invitation_name(kept[SECRET_BYTES:]): tuple(s.names.values())})
        s.db.set(INVITED_KEY, None)
