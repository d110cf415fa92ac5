"""What the operations on devices, keys and invitations report."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """One login to withdraw at a provider: of which device, for which backend, and what it is there."""

    device: str
    backend: str
    scheme: str
    what: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, by its id in hex. `state`: `admitted`, `revoked`, or `joining` (this one, not yet agreed).

    version  that it pushed last, by its own signed word; None where it has not, or no backend tells. Of this device:
             that its folder is at
    seen_ns  when that was, by the clock of who pushed. Of this device: now
    """

    device_id: str
    name: str
    this: bool
    state: str
    version: int | None = None
    seen_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RenameReport:
    """A device, by its id in hex, that was called `before` and is called `name`. `version`: None in a dry run."""

    version: int | None
    device_id: str
    before: str
    name: str


@dataclass(frozen=True, slots=True)
class InvitationInfo:
    """An invitation that nobody used yet. `expires`: the last version on which it may be used; None: never."""

    invitation_id: str
    name: str
    expires: int | None


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Who may write as of `version`; what is open. `epoch`: of the keys; `problem`: why there may be news."""

    version: int
    epoch: int
    devices: tuple[DeviceInfo, ...]
    invitations: tuple[InvitationInfo, ...] = ()
    withdraw: tuple[Withdrawal, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RotationReport:
    """New keys. `version` is None in a dry run: nothing was changed then.

    epoch            of the new keys
    revoked          names of the devices that were revoked with it, `devices` of those that go on
    recovery_phrase  the new one; it is kept nowhere
    new_passphrase   the passphrase is another one now
    withdraw         logins that the revoked devices still have
    invitations      names of open invitations that ended with the old keys
    missing          backends that do not hold the new keyring and key slots yet, and why
    old_slots        backends where old key slots could not be deleted
    complete         the version before is closed on a quorum: nothing of the revoked devices can count any more
    """

    version: int | None
    epoch: int
    revoked: tuple[str, ...]
    devices: tuple[str, ...]
    recovery_phrase: str = field(default="", repr=False)
    new_passphrase: bool = False
    withdraw: tuple[Withdrawal, ...] = ()
    invitations: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    old_slots: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class NoteReport:
    """A change of what the device set says beside who is admitted: taken-back invitations, confirmed logins.

    `version` is None when nothing was changed.
    """

    version: int | None
    names: tuple[str, ...]
    withdraw: tuple[Withdrawal, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One key slot: `passphrase` or `recovery phrase`, and the backends that hold a copy."""

    kind: str
    backends: tuple[str, ...]
    agreed: bool


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What keys there are: never what they are.

    id, admin: fingerprints of the workspace's id (its first admin key) and of today's, 40 bits each. `unasked`:
    backends that did not answer. `stored`: where this device keeps its own keys. `version`, `words`:
    the newest version that this device knows, and its fingerprint as words.
    """

    encrypted: bool
    epoch: int
    id: str
    admin: str
    devices: int
    slots: tuple[SlotInfo, ...]
    rings: tuple[str, ...]
    unasked: tuple[str, ...]
    stored: str
    version: int = 0
    words: str = ""


@dataclass(frozen=True, slots=True)
class PassphraseReport:
    """A new passphrase. `missing`: backends without the new slot, and why; `old_slots`: where the old one still opens.

    Nothing was changed in a dry run.
    """

    kind: str
    backends: tuple[str, ...]
    missing: tuple[tuple[str, str], ...] = ()
    old_slots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InviteReport:
    """An invitation. `code` is a secret: whoever has it before it is used is admitted."""

    name: str
    invitation_id: str
    code: str = field(repr=False)
    version: int
    expires: int | None
    backends: tuple[str, ...]
    missing: tuple[tuple[str, str], ...] = ()
