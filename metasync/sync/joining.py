"""How this device comes to stand in the agreed device set: by its certificate, or by an invitation, once (D11)."""

from __future__ import annotations

import contextlib

from metasync.consensus import JOURNAL_KEY, Change, State
from metasync.consensus.following import exclusion
from metasync.errors import BackendError, ExcludedError, NoQuorumError
from metasync.keys.devices import DeviceSet
from metasync.keys.invitation import SECRET_BYTES
from metasync.keys.notes import expired, joined, used_by, without_invitations
from metasync.sync.newcomers import asking, may_enter
from metasync.sync.session import INVITED_KEY, LOOK_S, Agreed, Session


def arrive(s: Session, *, read_only: bool) -> tuple[Agreed, str]:
    """Has a new device agreed, where it can be, and gets the newest version; with the reason if that is not known."""
    try:
        if read_only or not may_enter(s):
            return s.newest(), ""
        with asking(s):
            enrol(s)  # agreeing on anything tells what is newest: no look before it is needed
        from metasync.sync.invitation import used_up

        used_up(s)
        return s.load(s.newest_state()), ""
    except NoQuorumError as e:  # better an older version than none, if that is said
        return s.newest_seen(), e.message


def enrol(s: Session) -> None:
    """Has this device agreed as one of the workspace's devices (D11). `NoQuorumError`, `ExcludedError`.

    Starts from the newest state known: what is agreed on top of it is learned by trying. With an invitation all
    backends within reach are read first: nothing below the version it was made at is believed anyhow.
    """
    op_id = s.entropy(16)
    state = s.newest_state()
    if s.db.get(INVITED_KEY) is not None:
        s.runtime.run(s.group.newest_seen(state, deadline_s=LOOK_S))
        state = s.ask_newest()
    if not s.devices_of(state).admits(s.certificate) or admitted(s, s.devices_of(state)):
        state = s.ask_newest()  # the keys were changed since, or an earlier process had this device agreed
    while not admitted(s, devices := s.devices_of(state)):
        digest = s.put_const(state, _joined(s, state, devices).encode())
        decided = s.propose(state, Change(op_id=op_id, devices=digest))
        if decided.mine:
            with contextlib.suppress(BackendError, NoQuorumError):
                s.runtime.run(s.group.write_hint(state, decided.state, now=True))
        state = decided.state if decided.mine else s.ask_newest()
    s.db.set(JOURNAL_KEY, None)


def admitted(s: Session, devices: DeviceSet) -> bool:
    """True when this device stands in a device set. `ExcludedError`: another one does, by the same invitation."""
    if devices.get(s.device.device_id) is None:
        return False
    kept = s.db.get(INVITED_KEY)
    if kept is not None and not used_by(devices, s.device.device_id, kept[:SECRET_BYTES]):
        raise ExcludedError(
            f"this invitation was used before, on another device that is {s.device.name} now",
            next_step=f"If that was not you, run on a device of yours: metasync device revoke {s.device.name}",
        )
    return True


def _joined(s: Session, state: State, devices: DeviceSet) -> DeviceSet:
    """The device set of a decided state with this device. `ExcludedError` when it is not admitted."""
    kept = s.db.get(INVITED_KEY)
    if kept is not None:
        return joined(devices, s.certificate, state.v, kept[:SECRET_BYTES])
    if not devices.admits(s.certificate):
        raise exclusion(s.group.member, devices, state.v)
    return devices.with_device(s.certificate)


def changed_devices(s: Session, state: State, devices: DeviceSet) -> bytes | None:
    """The device set that a push on top of a decided state has agreed with it, stored; None for the same one.

    With this device, if it is new, and without the invitations that expired.
    """
    new = devices if admitted(s, devices) else _joined(s, state, devices)
    if gone := expired(new, state.v):
        new = without_invitations(new, gone)
    return None if new is devices else s.put_const(state, new.encode())
