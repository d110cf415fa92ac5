"""The part of `Workspace` about devices, keys and invitations (architecture.md, D11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from metasync.errors import UsageError
from metasync.keys.slots import COST
from metasync.session.folder import STATE_DIR

if TYPE_CHECKING:
    from metasync.keys.slots import Cost
    from metasync.reports.backends import RecoverReport
    from metasync.reports.members import (
        DeviceList,
        InviteReport,
        KeyReport,
        NoteReport,
        PassphraseReport,
        RotationReport,
    )
    from metasync.session.connections import Connections
    from metasync.session.session import Session


class Membership:
    """Mixed into `Workspace`. Passphrases are arguments; nothing here asks for one.

    Where a passphrase is wanted, the recovery phrase serves as well. `PassphraseError` when neither opens anything.
    What only these operations need is imported by them.
    """

    directory: Path
    _connections: Connections

    _operation: Callable[[str], AbstractContextManager[Session]]
    _session: Callable[[str], AbstractContextManager[Session]]

    def device_list(self) -> DeviceList:
        """Who may write, which invitations are open, which logins of revoked devices are still to be withdrawn."""
        from metasync.members import devices

        with self._session("device list") as s:
            return devices.listing(s)

    def device_revoke(
        self,
        names: Sequence[str],
        passphrase: str,
        *,
        new_passphrase: str | None = None,
        dry_run: bool = False,
        kdf: Cost = COST,
    ) -> RotationReport:
        """Revokes devices, by name or by the beginning of their id: new keys, sealed to the others alone.

        `new_passphrase` None keeps the passphrase. What the revoked devices had read they still have, and their logins
        at the providers too: those are listed, here and by `status`, until `device_confirm`. `UsageError` for this
        device itself.
        """
        from metasync.members import rotation

        if not names:
            raise UsageError("no device is named", next_step="See `metasync device list`.")
        with self._operation("device revoke") as s:
            return rotation.rotate(
                s, passphrase, new_passphrase=new_passphrase, revoke=names, dry_run=dry_run, cost=kdf
            )

    def device_confirm(self, name: str, backends: Sequence[str] = (), *, dry_run: bool = False) -> NoteReport:
        """Takes the user's word that the logins of a revoked device were withdrawn: at these backends, or at all."""
        from metasync.members import devices

        with self._operation("device confirm") as s:
            return devices.confirm(s, name, backends, dry_run=dry_run)

    def invite(
        self,
        name: str,
        passphrase: str,
        *,
        expires_after: int | None = None,
        dry_run: bool = False,
    ) -> InviteReport:
        """Makes an invitation for one new device called `name`; its `code` goes to `Workspace.clone(invite=...)`.

        Whoever has the code before it is used is admitted. It ends after so many versions (0: never; 1,000 unless
        said otherwise), when the keys are changed, and by `invitation_revoke`.
        """
        from metasync.keys.device_set import EXPIRES_AFTER
        from metasync.members import invitation

        ends = EXPIRES_AFTER if expires_after is None else expires_after
        with self._operation("invite") as s:
            return invitation.invite(s, self._connections.links, passphrase, name, expires_after=ends, dry_run=dry_run)

    def invitation_revoke(self, names: Sequence[str], *, dry_run: bool = False) -> NoteReport:
        """Takes open invitations back, by device name or by the beginning of their id. Needs no passphrase.

        Who has read one already holds the keys of today: `key_rotate` is against that.
        """
        from metasync.members import devices

        with self._operation("device revoke") as s:
            return devices.take_back(s, names, dry_run=dry_run)

    @property
    def name(self) -> str:
        """What the workspace is called, on all devices."""
        with self._session("recover") as s:
            return s.name

    def recover(
        self, without: Sequence[str], passphrase: str, *, confirm: str = "", dry_run: bool = False
    ) -> RecoverReport:
        """Restarts the workspace, as a new era, without backends that are lost, where the others are no quorum.

        `confirm`: the workspace's name, as a sign that this is meant. What only the lost backends held survives on the
        devices that have it: they merge it when they meet the new era. `UsageError` where `backend_remove` is enough;
        `NoQuorumError` when a backend that is kept does not answer; `ForkError`: it was restarted twice. Run again
        after a failure.
        """
        from metasync.maintenance import recover

        if not without:
            raise UsageError("no backend is named", next_step="Name those that are lost: --without NAME.")
        with self._operation("recover") as s:
            if not dry_run and confirm != s.name:
                raise UsageError(
                    f"to restart the workspace, its name {s.name!r} is to be given, not {confirm!r}",
                    next_step="Type it where it is asked for, or give it with --confirm.",
                )
            return recover.recover(s, without, passphrase, dry_run=dry_run)

    def key_show(self) -> KeyReport:
        """Which keys, slots and keyrings there are; never what they are."""
        from metasync.members import passphrase as secrets

        with self._session("key show") as s:
            return secrets.show(s, state_dir=self.directory / STATE_DIR)

    def key_change_passphrase(
        self, passphrase: str, new_passphrase: str, *, dry_run: bool = False, kdf: Cost = COST
    ) -> PassphraseReport:
        """Changes the passphrase alone. No key changes: who had the old one and a copy of its slot has the keys."""
        from metasync.members import passphrase as secrets

        with self._operation("key change-passphrase") as s:
            return secrets.change_passphrase(s, passphrase, new_passphrase, dry_run=dry_run, cost=kdf)

    def key_rotate(
        self, passphrase: str, *, new_passphrase: str | None = None, dry_run: bool = False, kdf: Cost = COST
    ) -> RotationReport:
        """New keys for what is written from now on, and a new recovery phrase. Open invitations end with it."""
        from metasync.members import rotation

        with self._operation("key rotate") as s:
            return rotation.rotate(s, passphrase, new_passphrase=new_passphrase, dry_run=dry_run, cost=kdf)
