"""Lists and renames devices, and notes what became of invitations and of revoked devices' logins (architecture.md,
D11)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from metasync.consensus import JOURNAL_KEY, Change, State
from metasync.errors import MetaSyncError, NoQuorumError, UsageError, WorkspaceError
from metasync.keys.device_set import (
    DEVICE_NAME_BYTES_MAX,
    Certificate,
    DeviceSet,
    Invitation,
    OpenLogins,
    given_names,
    invitations,
    names_of,
    open_logins,
    with_logins,
    with_names,
    without_invitations,
)
from metasync.keys.invitation import invitation_name
from metasync.local.state_keys import UNFINISHED_KEY
from metasync.members import key_store
from metasync.objects.model import ObjectKind, decode_snapshot
from metasync.reports.members import DeviceInfo, DeviceList, InvitationInfo, NoteReport, RenameReport, Withdrawal
from metasync.runtime.sizes import LOST_ROUNDS_MAX
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.session.session import Session

ID_DIGITS_LEAST: Final = 4  # of a device id given in place of a name

_LOGINS: Final = {
    "file": "access to the folder or disk, if the device can still reach it",
    "memory": "nothing: it is gone with its process",
    "s3": "its access key (make a new one for your other devices if they share it)",
    "dropbox": "the app's access: Settings, Apps connected",
    "gdrive": "the app's access: Google Account, Security, Third-party apps",
    "box": "the app's access: Account Settings, Apps",
    "onedrive": "the app's access: Microsoft account, Privacy, Apps and services",
    "swift": "its user or application credential",
    "azure": "its key or shared access signature (rotate the account key if they share it)",
    "gcs": "its service account key",
    "webdav": "its password or app password",
    "webdav+http": "its password or app password",
    "sftp": "its SSH key: remove it from authorized_keys; change the password if there is one",
}
_OTHER: Final = "its login, token or key"


def listing(s: Session) -> DeviceList:
    """Devices, open invitations and logins to withdraw, as of the newest version that can be learned of."""
    problem = ""
    try:
        state = agreement.ask_newest(s)
    except NoQuorumError as e:
        state, problem = s.newest_state(), e.message
    devices = s.devices_of(state)
    return DeviceList(
        version=state.v,
        epoch=state.epoch,
        devices=_infos(s, devices, _seen(s, state, devices)),
        invitations=tuple(
            InvitationInfo(i.invitation_id.hex(), i.name, i.expires or None)
            for i in invitations(devices)
            if i.is_open(state.v)
        ),
        withdraw=withdrawals(devices),
        problem=problem,
    )


Seen: TypeAlias = "tuple[int | None, int | None]"


def _seen(s: Session, state: State, devices: DeviceSet) -> dict[bytes, Seen]:
    """Of each device the version that it pushed last, by its own signed word, and when that was made.

    One round trip: a small object for each device on each backend. None where nothing was found.
    """
    mine = s.device.device_id
    others = [c.device_id for c in devices.certificates if c.device_id != mine]
    heads = s.runtime.run(s.group.read_heads(state, others, sorted(s.names.values())))
    times: dict[bytes, int] = {}
    with contextlib.suppress(MetaSyncError):  # for people: a list without times is better than none
        contents = s.contents(s.load(state))
        wanted = {head.head for head in heads.values() if head is not None and head.head in contents}
        times = {i: decode_snapshot(d).time_ns for i, d in contents.load(ObjectKind.SNAPSHOT, wanted).items()}
    seen: dict[bytes, Seen] = {i: (h.v, times.get(h.head)) for i, h in heads.items() if h is not None}
    return seen | {mine: (s.base_state().v, s.wall_ns())}


def _infos(s: Session, devices: DeviceSet, seen: Mapping[bytes, Seen]) -> tuple[DeviceInfo, ...]:
    mine = s.device.device_id
    called = names_of(devices)
    out = [
        DeviceInfo(c.device_id.hex(), called[c.device_id], c.device_id == mine, "admitted", *seen.get(c.device_id, ()))
        for c in devices.certificates
    ]
    if devices.get(mine) is None:
        out.append(DeviceInfo(mine.hex(), s.device.name, True, "revoked" if mine in devices.revoked_ids else "joining"))
    names = {item.device_id: called[item.device_id] for item in open_logins(devices)}
    out += [DeviceInfo(i.hex(), names[i], False, "revoked") for i in devices.revoked_ids if i in names and i != mine]
    return tuple(sorted(out, key=lambda d: (d.state != "admitted", d.name, d.device_id)))


def withdrawals(devices: DeviceSet, only: Iterable[bytes] | None = None) -> tuple[Withdrawal, ...]:
    """The logins that revoked devices (all of them, or these) still have as far as anybody has said."""
    wanted = None if only is None else set(only)
    return tuple(
        Withdrawal(item.name, backend, scheme, _LOGINS.get(scheme, _OTHER))
        for item in open_logins(devices)
        if wanted is None or item.device_id in wanted
        for backend, scheme in item.backends
    )


def chosen(s: Session, devices: DeviceSet, words: Sequence[str]) -> tuple[Certificate, ...]:
    """The admitted devices that these names or ids mean. `UsageError` for none, several, or this one."""
    out: dict[bytes, Certificate] = {}
    for word in words:
        found = _meant(devices, word)
        if found.device_id == s.device.device_id:
            raise UsageError(
                f"{word} is this device, and it can't revoke itself: nobody would be left here to have that agreed",
                next_step="Run this on another device. To stop using this one, delete its folder and its logins.",
            )
        out[found.device_id] = found
    return tuple(out.values())


def _meant(devices: DeviceSet, word: str) -> Certificate:
    """The admitted device that a name or the beginning of an id means. `UsageError` for none, or several."""
    names = names_of(devices)
    found = [c for c in devices.certificates if names[c.device_id] == word] or [
        c for c in devices.certificates if _is_id(word, c.device_id)
    ]
    if not found:
        raise _unknown(devices, word)
    if len(found) > 1:
        ids = ", ".join(c.device_id.hex()[:8] for c in found)
        raise UsageError(f"{len(found)} devices are called {word!r}", next_step=f"Give the id of one: {ids}.")
    return found[0]


def _unknown(devices: DeviceSet, word: str) -> UsageError:
    if any(item.name == word or _is_id(word, item.device_id) for item in open_logins(devices)):
        return UsageError(
            f"{word} was revoked already",
            next_step="`metasync device list` shows what is still to be withdrawn at the providers; "
            "`metasync key rotate` gives a new recovery phrase if you did not see it.",
        )
    called = names_of(devices)
    names = ", ".join(sorted({called[c.device_id] for c in devices.certificates}))
    return UsageError(f"no device of this workspace is called {word!r}", next_step=f"They are: {names}.")


def _is_id(word: str, device_id: bytes) -> bool:
    return len(word) >= ID_DIGITS_LEAST and device_id.hex().startswith(word.lower())


def invited(devices: DeviceSet, word: str, v: int) -> Invitation | None:
    """The open invitation that a name or id means, if it is one."""
    still_open = [i for i in invitations(devices) if i.is_open(v)]
    found = [i for i in still_open if i.name == word] or [i for i in still_open if _is_id(word, i.invitation_id)]
    if len(found) > 1:
        ids = ", ".join(i.invitation_id.hex()[:8] for i in found)
        raise UsageError(f"{len(found)} invitations are for {word!r}", next_step=f"Give the id of one: {ids}.")
    return found[0] if found else None


def take_back(s: Session, words: Sequence[str], *, dry_run: bool = False) -> NoteReport:
    """Takes open invitations back: their devices are admitted never more. Needs no passphrase."""
    named: list[Invitation] = []

    def less(state: State, devices: DeviceSet) -> DeviceSet:
        named[:] = [_require_invited(devices, word, state.v) for word in words]
        return without_invitations(devices, named)

    state = change_devices(s, less, dry_run=dry_run)
    if not dry_run:
        key_store.remove(s, {invitation_name(i.invitation_id): tuple(s.names.values()) for i in named})
    return NoteReport(state.v if state is not None else None, tuple(i.name for i in named))


def _require_invited(devices: DeviceSet, word: str, v: int) -> Invitation:
    found = invited(devices, word, v)
    if found is None:
        raise UsageError(f"{word!r} is no open invitation any more", next_step="See `metasync device list`.")
    return found


def confirm(s: Session, word: str, backends: Sequence[str] = (), *, dry_run: bool = False) -> NoteReport:
    """Takes the user's word that a revoked device's logins were withdrawn: those for `backends`, or all of them."""
    done: list[OpenLogins] = []
    left: list[DeviceSet] = []

    def less(_state: State, devices: DeviceSet) -> DeviceSet:
        items = open_logins(devices)
        found = [i for i in items if i.name == word] or [i for i in items if _is_id(word, i.device_id)]
        if not found:
            raise UsageError(
                f"no login of a revoked device {word!r} is to be withdrawn", next_step="See `metasync device list`."
            )
        if len(found) > 1:
            ids = ", ".join(i.device_id.hex()[:8] for i in found)
            raise UsageError(f"{len(found)} revoked devices are called {word!r}", next_step=f"Give an id: {ids}.")
        item = found[0]
        names = {name for name, _ in item.backends}
        if unknown := sorted(set(backends) - names):
            raise UsageError(
                f"nothing is to be withdrawn for {word} at {', '.join(unknown)}",
                next_step=f"Left are: {', '.join(sorted(names))}.",
            )
        done[:] = [item]
        rest = tuple(b for b in item.backends if backends and b[0] not in backends)
        left[:] = [with_logins(devices, [replace(i, backends=rest) if i is item else i for i in items])]
        return left[0]

    state = change_devices(s, less, dry_run=dry_run)
    return NoteReport(
        state.v if state is not None else None, (done[0].name,), withdrawals(left[0], [done[0].device_id])
    )


def check_free(devices: DeviceSet, name: str, v: int) -> None:
    """`UsageError` where a device, or an open invitation, has this name."""
    names = names_of(devices)
    if any(names[c.device_id] == name for c in devices.certificates):
        raise UsageError(f"a device is called {name} already", next_step="Choose another name.")
    if any(i.name == name and i.is_open(v) for i in invitations(devices)):
        raise UsageError(
            f"there is an open invitation for {name} already",
            next_step=f"metasync device revoke {name} takes it back.",
        )


def rename(s: Session, word: str, name: str, *, dry_run: bool = False) -> RenameReport:
    """Has a device called `name` from now on, in all that is listed of it, its versions of before too.

    The name is agreed as a given one: its certificate, which the admin key signed, stays. `UsageError`: there is no
    such device, or the name is taken, or none.
    """
    if not name.strip() or not name.isprintable() or len(name.encode("utf-8", "replace")) > DEVICE_NAME_BYTES_MAX:
        raise UsageError(
            f"{name!r} is no name for a device",
            next_step=f"A name has 1 to {DEVICE_NAME_BYTES_MAX} bytes, all of them printable.",
        )
    found: list[tuple[bytes, str]] = []

    def renamed(state: State, devices: DeviceSet) -> DeviceSet:
        certificate = _meant(devices, word)
        found[:] = [(certificate.device_id, names_of(devices)[certificate.device_id])]
        check_free(devices, name, state.v)
        given = {**given_names(devices), certificate.device_id: name}
        if name == certificate.name:
            del given[certificate.device_id]
        return with_names(devices, given)

    state = change_devices(s, renamed, dry_run=dry_run)
    (device_id, before), *_ = found
    return RenameReport(state.v if state is not None else None, device_id.hex(), before, name)


def change_devices(s: Session, make: Callable[[State, DeviceSet], DeviceSet], *, dry_run: bool = False) -> State | None:
    """Has the device set changed by what `make` makes of it, on top of whatever is agreed; None in a dry run."""
    agreement.settle_journal(s)
    op_id = s.entropy(16)
    state = agreement.ask_newest(s)
    for _ in range(LOST_ROUNDS_MAX):
        new = make(state, s.devices_of(state))
        if dry_run:
            return None
        digest = s.put_const(state, new.encode())
        decided = agreement.propose(s, state, Change(op_id=op_id, devices=digest))
        if decided.mine:
            if s.base_state().hash == state.hash and not s.db.has(UNFINISHED_KEY):
                s.db.set(BASE_KEY, decided.state)
            s.db.set(JOURNAL_KEY, None)
            return decided.state
        state = agreement.ask_newest(s)
    raise WorkspaceError(f"others were faster {LOST_ROUNDS_MAX} times; nothing was changed", next_step="Run again.")
