"""The library's face: one class with the operations of the command line as methods, typed, without prints or prompts.

Modules of the operations are loaded when one is used: a push does not pay for the others.

    with metasync.Workspace.open("Documents") as w:
        print(w.push("notes").version)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

from metasync.events import Listener, Sheltered, ignore
from metasync.keys.slots import COST, Cost
from metasync.local import settings as preferences
from metasync.local.state import LocalDb
from metasync.session import agreement
from metasync.session.connections import Connections, Machine, Opened
from metasync.session.folder import DB_FILE, STATE_DIR, absolute, folder_above, take_back
from metasync.session.lost_state import leaving_nothing
from metasync.session.session import Operations
from metasync.sync import operations
from metasync.worktree.paths import TreePath, tree_path

if TYPE_CHECKING:
    from metasync import reports
    from metasync.events import Travelled
    from metasync.history import conflicts, diff, export, forget, log, read, restore, tags
    from metasync.maintenance import backend_states, check, collect, recover, status
    from metasync.maintenance import drill as drills
    from metasync.maintenance import scrub as scrubbing
    from metasync.maintenance.repair import left_out_packs
    from metasync.members import clone as cloning
    from metasync.members import clone_invitation, clone_passphrase, devices, found, invitation, rotation
    from metasync.members import passphrase as secrets
    from metasync.moving import add_backend, removal, upkeep
    from metasync.store.retention import Keep
    from metasync.sync import first_checkout, push
    from metasync.sync import skip as skipping
else:
    conflicts, diff, export, log = operations.lazy("history", "conflicts", "diff", "export", "log")
    forget, read, restore, tags = operations.lazy("history", "forget", "read", "restore", "tags")
    check, collect, recover, scrubbing = operations.lazy("maintenance", "check", "collect", "recover", "scrub")
    backend_states, drills, status = operations.lazy("maintenance", "backend_states", "drill", "status")
    (left_out_packs,) = operations.lazy("maintenance.repair", "left_out_packs")
    add_backend, removal, upkeep = operations.lazy("moving", "add_backend", "removal", "upkeep")
    cloning, clone_invitation, clone_passphrase = operations.lazy(
        "members", "clone", "clone_invitation", "clone_passphrase"
    )
    devices, found, invitation = operations.lazy("members", "devices", "found", "invitation")
    rotation, secrets = operations.lazy("members", "rotation", "passphrase")
    first_checkout, push, skipping = operations.lazy("sync", "first_checkout", "push", "skip")

Folder: TypeAlias = str | os.PathLike[str]


class Workspace:
    """One managed folder on this device. Made by `init`, `clone` or `open`; a context manager.

    One operation at a time per folder: a second one, in this process or another, waits for the first. All that methods
    raise is a `MetaSyncError`. A passphrase or the recovery phrase is an argument; `PassphraseError`: it opens nothing.
    """

    def __init__(
        self,
        directory: Path,
        db: LocalDb,
        on_event: Listener,
        machine: Machine | None = None,
        opened: Opened | None = None,
    ) -> None:
        self.directory, self.on_event = directory, on_event
        self._db, self._machine = db, machine or Machine()
        self._connections = Connections(directory, db, self._machine, opened)
        self._work = Operations(self._connections, lambda: self.on_event)
        self._work.upkeep = lambda: upkeep.after_push(self._work)
        self._work.upkeep_in_quiet = lambda is_wanted: upkeep.in_quiet(self._work, is_wanted)
        self._locked, self._session = self._work.locked, self._work.session
        self._operation = partial(operations.changing, self._work)
        self._changing = partial(operations.changing, self._work, reopen=True)  # backends may have other names after it

    @classmethod
    def open(cls, directory: Folder = ".", *, on_event: Listener = ignore, now: bool = False) -> Workspace:
        """Opens the workspace that `directory` lies in, or `WorkspaceError`. `now`: transfers heed no pause.

        On a disk that is read-only it can be looked at, and what would change it is a `WorkspaceError`.
        """
        workspace = cls._open_at(folder_above(directory), on_event, may_copy=True)
        workspace._work.now = now
        return workspace

    @classmethod
    def _open_at(
        cls, folder: Path, on_event: Listener, opened: Opened | None = None, *, may_copy: bool = False
    ) -> Workspace:
        """`opened`: linked backends that are open already. They are the workspace's to close."""
        with ExitStack() as stack:
            opened = opened or Opened()
            for close in (*(backend.close for backend in opened.backends.values()), opened.end):
                stack.callback(close)
            db = stack.enter_context(closing(LocalDb.open(folder / STATE_DIR / DB_FILE, may_copy=may_copy)))
            workspace = cls(folder, db, on_event, opened=opened)
            stack.pop_all()
            return workspace

    @classmethod
    def init(
        cls, directory: Folder, *, name: str, backends: Sequence[str], passphrase: str, replicas: int | None = None,
        encryption: bool = True, byzantine: found.Lying = None, by_space: bool | None = None,
        device_name: str | None = None, on_event: Listener = ignore, kdf: Cost = COST,
    ) -> reports.InitReport[Workspace]:  # fmt: skip
        """Makes `directory` a workspace called `name` on the backends at these URLs. Nothing is pushed yet.

        `replicas`: copies of everything, 2 by default (1 with one backend). `kdf`: what opening the passphrase's slot
        costs; lower it in tests only. `byzantine`: whether voting backends that lie are allowed for; None: where it
        costs nothing (4, 6, 8 of them), True: at the cost of one tolerated outage too (5, 7); or whom to ask, told how
        many vote, where all vote in log form. `by_space`: whether shares follow the free space where not all have a
        capacity; None: where all tell it, and it differs. `UsageError`, `WorkspaceError`, `BackendError`.
        """
        wanted = found.NewWorkspace(
            name, backends, passphrase, replicas, encryption, byzantine, by_space, device_name, kdf
        )
        heard = Sheltered(lambda: on_event)
        return found.begin(directory, wanted, heard, lambda folder: cls._open_at(folder, on_event))

    @classmethod
    def clone(
        cls, directory: Folder, *, name: str = "", backends: Sequence[str] = (), passphrase: str = "",
        invite: str | None = None, expect: str | None = None, device_name: str | None = None,
        settings: Mapping[str, str] = MappingProxyType({}), trust_hosts: clone_invitation.Trust = False,
        merge: bool = False, on_event: Listener = ignore,
    ) -> reports.CloneReport[Workspace]:  # fmt: skip
        """Brings the workspace `name` into a new or empty folder, as a new device; with `merge` into one with files.

        These stay: what only the folder has counts as new, of two contents of a path both are kept. A local state there
        must be of no use any more (`session.lost_state`), and is kept as `.metasync/before`.

        `invite`: an invitation's code, or a file with it, in place of name and passphrase; `backends` are then ways
        where the inviter's do not lead. `trust_hosts`: may logins go to servers that the invitation alone names? True,
        or a function that is told them; else `UsageError`, and nothing was sent. `expect`: refuse unless the newest
        version has this fingerprint (of `status`), in digits or in words. A clone that was interrupted goes on when run
        again. `PassphraseError`, `NoQuorumError`, `WorkspaceError`.
        """
        preferences.check(settings)
        folder, heard = absolute(directory), Sheltered(lambda: on_event)

        def begin(again: bool) -> Workspace:
            if invite is not None:
                clone_invitation.accept(folder, invite, backends, heard, trust_hosts, merge=merge)
                return cls._open_at(folder, on_event)
            words = (name, backends, passphrase, device_name, expect, heard)
            return cls._open_at(folder, on_event, clone_passphrase.begin(folder, *words, again=again, merge=merge))

        with leaving_nothing(folder):
            report = cloning.clone(
                begin, cls._finish_clone, settings, lambda: (take_back(folder) or merge) and invite is None
            )
        return dataclasses.replace(report, vouched=invite is not None or expect is not None)

    def _finish_clone(self) -> reports.CloneReport[Workspace]:
        with self._operation("clone") as s:
            return first_checkout.finish_clone(s, self)

    def push(
        self, message: str = "", *, dry_run: bool = False, force: bool = False, durability: int | None = None
    ) -> reports.PushReport:
        """Has what changed here agreed as a new version; merges first when others were faster.

        Not retried: each call is a new version, if anything changed. `NoQuorumError` when the outcome is not known; the
        next push finds out. Unless `force`, `GuardError` before anything is changed: more than half of a tree of more
        than 20 files would be deleted, or every file of a smaller one.

        `durability`: of so many copies of everything it is waited for, 1 to as many as are promised; the others are
        made in the background (`finish_copies` waits for them), or by whatever pushes next from this folder, and until
        then a backend that is lost may take with it what it alone has. None: what this device's settings say, else all.
        """
        return operations.push(self._work, message, dry_run=dry_run, force=force, durability=durability)

    def pull(self, *, dry_run: bool = False, force: bool = False) -> reports.PullReport:
        """Brings the folder up to the newest agreed version, merging with what changed here. `force`: as of `push`."""
        return operations.pull(self._work, dry_run=dry_run, force=force)

    def sync(
        self, message: str = "", *, dry_run: bool = False, force: bool = False, durability: int | None = None
    ) -> tuple[reports.PullReport, reports.PushReport]:
        """Pulls and pushes until both sides agree. `force`, `durability`: see `push` and `pull`."""
        return operations.sync(self._work, message, dry_run=dry_run, force=force, durability=durability)

    def finish_copies(self) -> tuple[reports.Trailing, ...]:
        """Waits for the copies that pushes with `durability` left open; returns what cannot be made now."""
        with self._session("push") as s:
            return push.copy_on(s, {}, wait=True)

    @property
    def copying(self) -> bool:
        """Whether copies are made in the background whose end nobody has waited for (`finish_copies`)."""
        return self._connections.copying is not None

    @property
    def travelled(self) -> Travelled:
        """What went to and from the linked backends since this workspace was opened here."""
        return self._machine.travelled.total

    def status(self) -> reports.Status:
        """What differs here, what is ahead or behind, how each backend fares. Changes nothing, takes no lock."""
        with self._session("status") as s:
            return dataclasses.replace(status.status(s), paused=self.settings().paused)

    def check(self, *, read_data: bool = False, repair: bool = False) -> reports.CheckReport:
        """Is everything there, as often as promised, and unaltered? `read_data` reads every copy; `repair` mends."""
        with self._operation("check --repair") if repair else self._session("check") as s:
            base = left_out_packs.newest(s) if repair else agreement.newest(s)
            return check.check(s, base, read_data=read_data, repair=repair)

    def scrub(self, *, full: bool = False, read_bytes_max: int | None = None) -> reports.ScrubReport:
        """Looks at what the backends list, and mends; `full`: also at those that are not due: `maintenance.scrub`."""
        return scrubbing.scrub(self._work, full=full, read_bytes_max=read_bytes_max)

    def backends(self) -> list[reports.BackendState]:
        """The workspace's backends, and how each fares as seen from this device now."""
        return list(self.backend_list().backends)

    def backend_list(self) -> reports.BackendList:
        """The same, with what the set of them survives, and what lies where it was before they changed."""
        with self._session("backends") as s:
            return backend_states.listing(s)

    def link(self, name: str, url: str | None) -> reports.BackendState:
        """Tells this device the way to a backend; None: has it forget it. `UsageError` if it is not that backend."""
        with self._locked("backend link"):
            self._connections.unlink(name) if url is None else self._connections.link(name, url)
        with self._session("backend link") as s:
            return backend_states.linked(s, name)

    # versions: named as on the command line (`history.versions`); paths are relative to `directory`
    def log(
        self, path: TreePath | None = None, limit: int | None = None, **options: Unpack[log.Options]
    ) -> list[reports.LogItem]:
        """The agreed history, newest first; `options`: see `history.log.Options`.

        With a path (a deleted one too): what changed there in which versions, and what merges by lines replaced.
        """
        with self._session("log") as s:
            return log.log(s, None if path is None else tree_path(path), limit, **options)

    def show(self, version: str, paths: Sequence[TreePath] = (), *, text: bool = False) -> reports.ShowReport:
        """One version, and what it changed. `paths`, `text`, errors: as for `diff`."""
        with self._session("show") as s:
            return diff.show(s, version, [tree_path(p) for p in paths], text=text)

    def diff(
        self, a: str | None = None, b: str | None = None, paths: Sequence[TreePath] = (), *, text: bool = False
    ) -> reports.DiffReport:
        """What differs between version `a` (this folder's base) and version `b` (the folder as it stands).

        `paths`: only there and below. `text`: also the lines of texts. `UsageError`: no such version or path.
        """
        with self._session("diff") as s:
            return diff.diff(s, a, b, [tree_path(p) for p in paths], text=text)

    def ls(self, version: str | None = None, path: TreePath = "", *, recursive: bool = False) -> reports.Listing:
        """What a version (the newest) holds at a path: a directory's names, or all below it; or the file itself."""
        with self._session("ls") as s:
            return diff.listing(s, version, tree_path(path), recursive=recursive)

    def read(self, path: TreePath, version: str = "latest") -> bytes:
        """The bytes of a file in a version, all in memory: `cat` gives them piece by piece."""
        pieces: list[bytes] = []
        self.cat(path, version, pieces.append)
        return b"".join(pieces)

    def cat(self, path: TreePath, version: str, write: Callable[[bytes], object]) -> reports.CatReport:
        """Gives the bytes of a file in a version to `write`, in order, each piece checked: see `history.read`."""
        with self._session("cat") as s:
            return read.read(s, version, tree_path(path), write)

    def restore(
        self, version: str, paths: Sequence[TreePath] = (), to: Folder | None = None, *, delete: bool = True,
        dry_run: bool = False,
    ) -> reports.RestoreReport:  # fmt: skip
        """Brings the folder, or these paths in it, to what a version had; the next push takes that.

        What stands there and is in no agreed version is kept: under its name where it can be, else as a conflict copy.
        `delete`: what the version lacks goes, if it is agreed and unchanged. `to`: writes to that directory instead,
        where nothing that exists is replaced; what cannot be had is listed, and the rest is written.
        `UsageError`: no such version or path. `DamagedError`, `NoQuorumError`: what is needed cannot be had, nothing
        was changed. `WorkspaceError`: the disk is full; something else is in `to`.
        """
        wanted = [tree_path(p) for p in paths]
        with self._operation("restore") if to is None else self._session("restore") as s:
            if to is not None:
                return export.extract(s, version, wanted, to, dry_run=dry_run)
            return restore.restore(s, version, wanted, delete=delete, dry_run=dry_run)

    def undelete(self, path: TreePath, *, dry_run: bool = False) -> reports.RestoreReport:
        """Restores what the newest version that has anything at `path` has there. `UsageError`: something is there."""
        with self._operation("restore") as s:
            return restore.undelete(s, tree_path(path), dry_run=dry_run)

    def skip(self, version: int, passphrase: str, *, dry_run: bool = False) -> reports.SkipReport:
        """Passes over versions that cannot be read, `version` and all newer ones: see `sync.skip`. A pull follows."""
        with self._work.begun("skip") as s:
            return skipping.skip(s, version, passphrase, dry_run=dry_run)

    def tag(self, version: str, name: str, *, dry_run: bool = False) -> reports.TagReport:
        """Gives a version a name, by which `gc` keeps it. `UsageError`: no such version, or the name is taken."""
        with self._operation("tag") as s:
            return tags.tag(s, version, name, dry_run=dry_run)

    def untag(self, names: Sequence[str], *, dry_run: bool = False) -> reports.TagReport:
        """Gives up names. `UsageError`: no version has one of them; nothing was changed."""
        with self._operation("tag") as s:
            return tags.untag(s, names, dry_run=dry_run)

    def tags(self) -> reports.TagReport:
        """The names of versions."""
        with self._session("tag") as s:
            return tags.listing(s)

    def keep(self, policy: str | None = None, *, change: bool = False, ask: bool = True) -> reports.KeepReport:
        """Which versions are kept, as agreed; without `ask` as is known here. `change`: agrees on `policy`, or none."""
        if not ask:
            return tags.known(self._db)
        with self._operation("config set") if change else self._session("config get") as s:
            return tags.keep(s, policy) if change else tags.kept(s)

    def gc(self, keep: Keep | None = None, *, dry_run: bool = False) -> reports.GcReport:
        """Drops versions by a policy, the agreed one if None; deletes what nothing needs: `maintenance.collect`."""
        with self._operation("gc") as s:
            return collect.collect(s, keep, dry_run=dry_run)

    def forget(self, paths: Sequence[TreePath], *, gc: bool = False, dry_run: bool = False) -> reports.ForgetReport:
        """Takes paths out of all versions that are kept: `history.forget`. `gc`: then deletes what nothing needs."""
        with self._operation("forget") as s:
            return forget.forget(s, [tree_path(p) for p in paths], collect.collect if gc else None, dry_run=dry_run)

    def conflicts(self) -> tuple[reports.ConflictReport, ...]:
        """The conflicts that wait: those that this device found, and those that came from other devices."""
        with self._session("conflicts") as s:
            return conflicts.conflicts(s)

    def resolve(self, path: TreePath, keep: reports.Keep) -> reports.ResolveReport:
        """Ends the conflict at `path`, the original or a copy, for all devices with the next push.

        `keep`: "ours", "theirs", "both"; the side that stands at a path, as bytes; or `reports.Merged`. What loses is
        kept until an agreed version holds it. `UsageError`: there is no conflict, or the word does not say which side.
        """
        return self.resolve_all([path], keep)[0]

    def resolve_all(self, paths: Sequence[TreePath], keep: reports.Keep) -> tuple[reports.ResolveReport, ...]:
        """Ends several conflicts at once: all of them, or none where one cannot be."""
        with self._operation("resolve") as s:
            return conflicts.resolve(s, [tree_path(path) for path in paths], keep)

    def backend_add(
        self, url: str, *, replaces: str | None = None, passphrase: str | None = None, dry_run: bool = False
    ) -> reports.BackendChange:
        """Adds a store to the agreed backends; this device is linked to it, others with `link`.

        `replaces`: takes this one out in the same step. New packs go there as it is due; what is stored stays until
        `rebalance`. `UsageError`: it is one already, or lies inside the workspace. `BackendError`, `NoQuorumError`,
        `WeakeningError`.
        """
        with self._changing("backend add") as s:
            return add_backend.add(s, url, replaces=replaces, passphrase=passphrase, dry_run=dry_run)

    def backend_remove(
        self, name: str, *, passphrase: str | None = None, dry_run: bool = False, **how: Unpack[removal.How]
    ) -> reports.BackendChange:
        """Takes a backend out of the agreed ones; what it alone holds is moved first. `how`: see `removal.How`.

        `UsageError`: there is none of that name, data would be lost or too few backends be left. `UnreachableError`:
        they could not be moved. `WeakeningError`: it takes the passphrase.
        """
        return removal.remove(self._work, name, passphrase=passphrase, dry_run=dry_run, **how)

    def backend_set(
        self, name: str, *, capacity_bytes: int | None = None, new_name: str | None = None,
        role: Literal["both", "storage"] | None = None, passphrase: str | None = None, dry_run: bool = False,
    ) -> reports.BackendChange:  # fmt: skip
        """Changes what is agreed of a backend: its capacity, its name, whether it votes (`both`) or not (`storage`).

        A name changes nothing else. `UsageError`: as for `backend_remove`, or it may not vote. `NoQuorumError`.
        """
        with self._changing("backend set") as s:
            return add_backend.alter(s, name, capacity_bytes, new_name, role, passphrase=passphrase, dry_run=dry_run)

    def set_copies(self, copies: int, *, passphrase: str | None = None, dry_run: bool = False) -> reports.BackendChange:
        """Changes how many copies of everything are promised, for all devices. Errors: as for `backend_remove`."""
        with self._changing("config set copies") as s:
            return add_backend.set_copies(s, copies, passphrase=passphrase, dry_run=dry_run)

    def drill(self, without: Sequence[str], *, read_data: bool = False) -> reports.DrillReport:
        """Looks whether all could be read and agreed without these backends, and what would be lost: asks them nothing.

        `read_data`: reads every copy on the others. `UsageError`: there is none of that name, or none would be left.
        """
        return drills.drill(self._work, without, read_data=read_data)

    def rebalance(self, *, dry_run: bool = False, read_data: bool = False) -> reports.RebalanceReport:
        """Moves packs to where the backends of today want them, and deletes surplus copies once that is agreed.

        Every copy is verified first, by its store's digest or by reading it; `read_data`: always by reading. Others may
        push meanwhile. Stopped at any point, the next call goes on, on any device. `NoQuorumError`.
        """
        return removal.rebalance_and_wipe(self._work, dry_run=dry_run, read_data=read_data)

    def device_list(self) -> reports.DeviceList:
        """Who may write, which invitations are open, which logins of revoked devices are still to be withdrawn."""
        with self._session("device list") as s:
            return devices.listing(s)

    def device_rename(self, device: str, name: str, *, dry_run: bool = False) -> reports.RenameReport:
        """Has a device, by name or the beginning of its id, called `name`. `UsageError`: none such, or it is taken."""
        with self._operation("device rename") as s:
            return devices.rename(s, device, name, dry_run=dry_run)

    def device_revoke(
        self, names: Sequence[str], passphrase: str, *, new_passphrase: str | None = None, dry_run: bool = False,
        kdf: Cost = COST,
    ) -> reports.RotationReport:  # fmt: skip
        """Revokes devices, by name or by the beginning of their id: new keys, sealed to the others alone.

        `new_passphrase` None keeps the passphrase. What they had read they still have, and their logins at the
        providers: those are listed until `device_confirm`. `UsageError` for this device itself.
        """
        with self._operation("device revoke") as s:
            return rotation.revoke(s, names, passphrase, new_passphrase=new_passphrase, dry_run=dry_run, cost=kdf)

    def device_confirm(self, name: str, backends: Sequence[str] = (), *, dry_run: bool = False) -> reports.NoteReport:
        """Takes the user's word that the logins of a revoked device were withdrawn: at these backends, or at all."""
        with self._operation("device confirm") as s:
            return devices.confirm(s, name, backends, dry_run=dry_run)

    def invite(
        self, name: str, passphrase: str, *, expires_after: int | None = None, dry_run: bool = False
    ) -> reports.InviteReport:
        """Makes an invitation for one new device called `name`; its `code` goes to `Workspace.clone(invite=...)`.

        Whoever has the code before it is used is admitted. It ends after so many versions (0: never; 1,000 unless
        said otherwise), when the keys are changed, and by `invitation_revoke`.
        """
        with self._operation("invite") as s:
            return invitation.invite(s, passphrase, name, expires_after=expires_after, dry_run=dry_run)

    def invitation_revoke(self, names: Sequence[str], *, dry_run: bool = False) -> reports.NoteReport:
        """Takes open invitations back, by name or id. Who has read one holds the keys of today: then `key_rotate`."""
        with self._operation("device revoke") as s:
            return devices.take_back(s, names, dry_run=dry_run)

    @property
    def copies(self) -> int:
        """How many copies of everything are promised, as this device knows it."""
        return self._connections.config.policy(0).copies

    @property
    def name(self) -> str:
        """What the workspace is called, on all devices."""
        with self._session("recover") as s:
            return s.name

    def recover(
        self, without: Sequence[str], passphrase: str, *, kdf: Cost = COST, **options: Unpack[recover.Options]
    ) -> reports.RecoverReport:
        """Restarts the workspace, as a new era, without backends that are lost, where the others are no quorum; or,
        with none named, past a version that can be agreed no more. `options`: see `maintenance.recover.Options`.

        What only the lost backends held survives on the devices that have it: they merge it when they meet the new era.
        `UsageError` where the others can go on; `NoQuorumError` when a backend that is kept does not answer;
        `ForkError`: it was restarted twice.
        """
        with self._operation("recover") as s:
            return recover.recover(s, without, passphrase, cost=kdf, **options)

    def key_show(self) -> reports.KeyReport:
        """Which keys, slots and keyrings there are; never what they are."""
        with self._session("key show") as s:
            return secrets.show(s, state_dir=self.directory / STATE_DIR)

    def key_change_passphrase(
        self, passphrase: str, new_passphrase: str, *, dry_run: bool = False, kdf: Cost = COST
    ) -> reports.PassphraseReport:
        """Changes the passphrase alone. No key changes: who had the old one and a copy of its slot has the keys."""
        with self._operation("key change-passphrase") as s:
            return secrets.change_passphrase(s, passphrase, new_passphrase, dry_run=dry_run, cost=kdf)

    def key_rotate(
        self, passphrase: str, *, new_passphrase: str | None = None, dry_run: bool = False, kdf: Cost = COST
    ) -> reports.RotationReport:
        """New keys for what is written from now on, and a new recovery phrase. Open invitations end with it."""
        with self._operation("key rotate") as s:
            return rotation.rotate(s, passphrase, new_passphrase=new_passphrase, dry_run=dry_run, cost=kdf)

    def settings(self) -> reports.SettingsReport:
        """What is set. `WorkspaceError` if that cannot be read."""
        return preferences.report(self._work.settings_path)

    def configure(self, key: str, value: str | None) -> reports.SettingsReport:
        """Sets one of the settings of `limits`, or takes it back (None). `UsageError`: no such one, or value."""
        return preferences.configure(self._work.settings_path, key, value, self._connections.agreed_names)

    def pause(self, seconds: float | None = None) -> reports.SettingsReport:
        """Has all transfers of this workspace rest on this device: so long, or until `resume`. What has begun ends."""
        return preferences.pause(self._work.settings_path, seconds)

    def resume(self) -> reports.SettingsReport:
        """Ends a pause. Nothing happens where there is none."""
        return preferences.resume(self._work.settings_path)

    def cancel(self) -> None:
        """Ends what another thread has under way here, soon, with `CancelledError`. As after a kill: run again."""
        self._work.cancel()

    def close(self) -> None:
        """Gives connections and files back, after what another thread has under way was cancelled. May be repeated."""
        self._work.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
