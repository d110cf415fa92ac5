"""The library's face: one class with the operations of the command line as methods, typed, without prints or prompts.

Also the composition root: the one place that builds concrete classes from settings and reads entry points.

    import metasync
    with metasync.Workspace.open("Documents") as w:
        print(w.push("notes").version)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from metasync.backends.registry import parse_url
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.consensus import JOURNAL_KEY
from metasync.errors import ExcludedError, UsageError, WorkspaceError
from metasync.events import Notice, ignore
from metasync.keys.slots import COST
from metasync.local.lock import WAIT_S, GiveWay, Turns, WorkspaceLock
from metasync.local.state import LocalDb
from metasync.local.state_keys import CLONING_KEY, NAME_KEY, SHORT_KEY, UNFINISHED_KEY
from metasync.maintenance.add_backend import BackendChanges
from metasync.membership import Membership
from metasync.past import Past
from metasync.preferences import Preferences
from metasync.session import open_backend
from metasync.session.agreement import BASE_KEY, Seat
from metasync.session.connections import Connections, Machine
from metasync.session.folder import DB_FILE, STATE_DIR, Link, forget, new_folder, write_local
from metasync.sync import no_change
from metasync.worktree.fs_probe import rules_of
from metasync.worktree.tree import WorkTree

if TYPE_CHECKING:
    from metasync.backends.api import Backend
    from metasync.consensus import State
    from metasync.events import Listener
    from metasync.keys.slots import Cost
    from metasync.members.found import Lying
    from metasync.reports.backends import BackendState, CheckReport, Moving, Status
    from metasync.reports.sync import ConflictReport, PullReport, PushReport, Skipped, Trailing
    from metasync.session.session import Session
    from metasync.transfer.late_copies import Finishing

SYNC_ROUNDS_MAX: Final = 10
COPYING_ENDS_S: Final = 5.0  # its calls have ended by then; what is left is a note in the local state
JOINS_MAX: Final = 3  # times that a clone begins anew because the keys were changed meanwhile


@dataclass(frozen=True)
class InitReport:
    """A new workspace. The recovery phrase is kept nowhere else. `workspace` is open: close it, or use `with`.

    `voters`: how many backends vote; `lying`: how many of these may lie.
    """

    directory: str
    name: str
    backends: tuple[str, ...]
    survives: str
    recovery_phrase: str
    workspace: Workspace = field(repr=False)
    voters: int = 1
    lying: int = 0


@dataclass(frozen=True)
class CloneReport:
    """A workspace brought to this device. `unlinked`: agreed backends that this device has no way to yet.

    `problem`: why it is not known whether `version` is the newest; "" when it is. `unplaced`: what cannot be held here.
    """

    directory: str
    version: int
    fingerprint: str
    files: int
    bytes: int
    unlinked: tuple[str, ...]
    read_only: bool
    conflicts: tuple[ConflictReport, ...]
    down: dict[str, str]
    workspace: Workspace = field(repr=False)
    problem: str = ""
    unplaced: tuple[Skipped, ...] = ()
    name: str = ""


class Workspace(Past, BackendChanges, Membership, Preferences):
    """One managed folder on this device. Made by `init`, `clone` or `open`; a context manager.

    One operation at a time per folder: a second one, in this process or another, waits for the first. All methods
    raise `metasync.errors.MetaSyncError` and nothing else of MetaSync's.
    """

    def __init__(
        self,
        directory: Path,
        db: LocalDb,
        on_event: Listener,
        machine: Machine | None = None,
        opened: Mapping[str, Backend] = MappingProxyType({}),
    ) -> None:
        self.directory = directory
        self.on_event = on_event
        self._db = db
        self._machine = machine or Machine()
        self._connections = Connections(directory, db, self._machine, opened)
        self._connections.on_event = lambda event: self.on_event(event)  # of whoever listens then
        self._closed = False
        self._copying: Finishing | None = None

    # --- beginnings

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str] = ".", *, on_event: Listener = ignore, now: bool = False
    ) -> Workspace:
        """Opens the workspace that `directory` lies in. `WorkspaceError` if it lies in none.

        `now`: its transfers go on in spite of a pause.
        """
        start = Path(directory).absolute()
        for folder in (start, *start.parents):
            if (folder / STATE_DIR / DB_FILE).is_file():
                workspace = cls._open_at(folder, on_event)
                workspace.now = now
                return workspace
        raise WorkspaceError(
            f"{start} is not in a MetaSync workspace",
            next_step="`metasync init` makes one here; `metasync clone` brings one here.",
        )

    @classmethod
    def _open_at(
        cls, folder: Path, on_event: Listener, opened: Mapping[str, Backend] = MappingProxyType({})
    ) -> Workspace:
        """`opened`: linked backends that are open already, by name. They are the workspace's to close."""
        try:
            db = LocalDb.open(folder / STATE_DIR / DB_FILE)
            try:
                return cls(folder, db, on_event, opened=opened)
            except BaseException:
                db.close()
                raise
        except BaseException:
            for backend in opened.values():
                backend.close()
            raise

    @classmethod
    def init(
        cls,
        directory: str | os.PathLike[str],
        *,
        name: str,
        backends: Sequence[str],
        passphrase: str,
        replicas: int | None = None,
        encryption: bool = True,
        byzantine: Lying = None,
        by_space: bool | Callable[[Mapping[str, int]], bool] = False,
        device_name: str | None = None,
        on_event: Listener = ignore,
        kdf: Cost = COST,
    ) -> InitReport:
        """Makes `directory` a workspace called `name` on the backends at these URLs. Nothing is pushed yet.

        `replicas`: copies of everything, 2 by default (1 with one backend). `kdf`: what opening the passphrase's key
        slot costs; lower it in tests only. `byzantine`: whether voting backends that lie are allowed for; None: where
        it costs nothing (4, 6, 8 of them), True: at the cost of one tolerated outage too (5, 7); or whom to ask, told
        how many vote, where all vote in log form. `by_space`: a backend without a capacity in its URL gets what is free
        there; or whom to ask that, shown these capacities (bytes, by name), where they are unequal. `UsageError`,
        `WorkspaceError` if the folder or the name is taken, `BackendError` if a backend does not take part.
        """
        from metasync.members import search
        from metasync.members.found import DEFAULT_COPIES, NS_BYTES, found, lying_wanted, refuse_shared
        from metasync.session import space
        from metasync.store.placement import survives

        folder = new_folder(directory, name)
        if not passphrase.strip():
            raise UsageError("the passphrase is empty", next_step="Choose one that nobody guesses.")
        urls = open_backend.parsed_urls(backends)
        open_backend.refuse_inside(folder, urls)
        copies = replicas if replicas is not None else min(DEFAULT_COPIES, len(urls))
        if copies > len(urls):
            raise UsageError(
                f"{copies} copies need {copies} backends, and there {'is' if len(urls) == 1 else 'are'} {len(urls)}",
                next_step="Add backends, or lower --replicas.",
            )
        with contextlib.ExitStack() as stack:
            opened = {
                n: stack.enter_context(contextlib.closing(open_backend.opened_first(n, url, create=True)))
                for n, url in urls.items()
            }
            new = open_backend.new_backends(opened, urls, on_event)
            open_backend.refuse_twins(new)
            runtime = stack.enter_context(open_backend.bare_runtime(opened))
            if by_space:
                given = {n: u.capacity_bytes for n, u in urls.items()}
                new = space.offered(new, given, space.ask(runtime.run, opened), by_space)
            if search.search(sorted(opened), name, passphrase, runtime.run).secret is not None:
                raise WorkspaceError(
                    f"a workspace named {name!r} is there already, and this passphrase opens it",
                    next_step="`metasync clone` brings it here; or choose another name.",
                )
            folders = {n: os.urandom(NS_BYTES).hex() for n in opened}
            inner = stack.enter_context(
                open_backend.bare_runtime({n: Prefixed(b, folders[n]) for n, b in opened.items()})
            )
            made = found(
                new,
                name=name,
                passphrase=passphrase,
                copies=copies,
                encrypted=encryption,
                device_name=device_name or open_backend.default_device_name(),
                entropy=os.urandom,
                run=inner.run,
                cost=kdf,
                byzantine=lying_wanted(new, byzantine),
            )
            refuse_shared(runtime.run, inner.run, folders)
            links = {n: Link(urls[n].location, folders[n], b.identity().hex()) for n, b in opened.items()}
            for n, told in sorted(space.ask(inner.run, opened).items()):
                if warning := space.warning(n, None, None, told):
                    on_event(Notice(warning, warning=True))
        write_local(
            folder, name, made.keys, made.device, made.certificate, made.config, made.devices, links, made.state
        )
        workspace = cls._open_at(folder, on_event)
        return InitReport(
            str(folder),
            name,
            tuple(sorted(links)),
            survives(made.config),
            made.recovery_phrase,
            workspace,
            voters=made.config.n,
            lying=made.config.f,
        )

    @classmethod
    def clone(
        cls,
        directory: str | os.PathLike[str],
        *,
        name: str = "",
        backends: Sequence[str] = (),
        passphrase: str = "",
        invite: str | None = None,
        expect: str | None = None,
        device_name: str | None = None,
        on_event: Listener = ignore,
    ) -> CloneReport:
        """Brings the workspace `name` into a new or empty folder, as a new device.

        `invite`: an invitation's code, or a file with it, in place of name and passphrase; `backends` are then ways
        where the inviter's do not lead. `expect`: refuse unless the newest version has this fingerprint (`status` shows
        it). A clone that was interrupted goes on when run again. `PassphraseError`, `NoQuorumError`, `WorkspaceError`.
        """
        folder = Path(directory).absolute()
        for turn in range(JOINS_MAX):
            opened: dict[str, Backend] = {}
            if invite is not None:
                from metasync.members.clone_invitation import accept

                accept(folder, invite, backends, on_event)
            else:
                from metasync.members.clone_passphrase import begin

                again = turn > 0
                opened = begin(folder, name, backends, passphrase, device_name, expect, on_event, again=again)
            workspace = cls._open_at(folder, on_event, opened)
            try:
                return workspace._finish_clone()
            except BaseException as e:
                workspace.close()
                if not (isinstance(e, ExcludedError) and forget(folder) and invite is None and turn < JOINS_MAX - 1):
                    raise  # else the keys were changed since this began: again, with those of today
        raise AssertionError

    # --- operations

    def push(
        self, message: str = "", *, dry_run: bool = False, force: bool = False, durability: int | None = None
    ) -> PushReport:
        """Has what changed here agreed as a new version; merges first when others were faster.

        Not retried: each call is a new version, if anything changed. Raises `NoQuorumError` when the outcome is not
        known; the next push finds out. Unless `force`, `GuardError` before anything is changed: more than half of a
        tree of more than 20 files would be deleted, or every file of a smaller one.

        `durability`: of so many copies of everything it is waited for, 1 to as many as are promised; the others are
        made in the background (`finish_copies` waits for them), or by whatever pushes next from this folder, and until
        then a backend that is lost may take with it what it alone has. None: what this device's settings say, else all.
        """
        turns = Turns()
        first = True
        while True:
            try:
                return self._push(turns, message, dry_run, force, durability, first=first)
            except GiveWay as way:
                self.on_event(Notice("another operation in this folder goes first; this push goes on after it"))
                with self._locked("push", first=False):
                    way.save()
                    self._disconnect()  # what connections know may be old by now
                first = False

    def _push(
        self, turns: Turns, message: str, dry_run: bool, force: bool, durability: int | None, *, first: bool
    ) -> PushReport:
        """One turn of a push, its `first` or a later one. `GiveWay`: another one is needed."""
        with self._seated("push", first=first) as seat, contextlib.ExitStack() as stack:
            begun = None
            if not dry_run and durability is None and no_change.may_be(seat):
                look = stack.enter_context(seat.looking())
                found = no_change.push(seat, look)
                if not isinstance(found, no_change.Begun):
                    return found
                begun = found
            from metasync.members import key_copies, newcomers
            from metasync.session import space
            from metasync.sync import push as pushing

            s = stack.enter_context(self._taken_up("push", seat))
            if dry_run:
                return pushing.preview(s, s.base())
            least = self._least_copies(durability, s.transfer.placement.copies)
            at_hand: dict[bytes, bytes] = {}
            found_again = s.settle_journal()
            newcomers.let_in(s)
            with newcomers.asking(s):
                turn = turns.begin(s.others_wait, s.runtime.clock)
                report = pushing.push(
                    s, s.base(), message, force=force, least=least, at_hand=at_hand, turns=turn, begun=begun
                )
            newcomers.let_in(s, late=True)
            space.note_sent(s)
            space.put_back(s)
            key_copies.bring(s)
            s.db.set(SHORT_KEY, (s.db.get(SHORT_KEY) or 0) + report.under_replicated)
            left = self._copy_on(s, at_hand, wait=least is None)
            found_again = report.found_again or found_again
            return dataclasses.replace(report, found_again=found_again, trailing=report.trailing or left)

    def pull(self, *, dry_run: bool = False, force: bool = False) -> PullReport:
        """Brings the folder up to the newest agreed version, merging with what changed here.

        Unless `force`, `GuardError` before anything is changed: more than half of more than 20 files would go here.
        """
        with self._seated("pull") as seat, contextlib.ExitStack() as stack:
            look = None
            if no_change.may_be(seat):
                look = stack.enter_context(seat.looking(on_news=partial(import_module, "metasync.sync.pull")))
                if (nothing := no_change.pull(seat, look)) is not None:
                    return nothing
            from metasync.sync import pull as pulling

            s = stack.enter_context(self._taken_up("pull", seat))
            newest = s.newest() if look is None else s.load(s.newest_state())
            s.settle_journal(newest.state)  # it may be a push of this device that never learned its end, or lie on one
            return pulling.pull(s, s.base(), newest, dry_run=dry_run, force=force)

    def sync(
        self, message: str = "", *, dry_run: bool = False, force: bool = False, durability: int | None = None
    ) -> tuple[PullReport, PushReport]:
        """Pulls and pushes until both sides agree. `force`, `durability`: see `push` and `pull`."""
        pulled = self.pull(dry_run=dry_run, force=force)
        pushed = self.push(message, dry_run=dry_run, force=force, durability=durability)
        for _ in range(SYNC_ROUNDS_MAX):
            if dry_run or pushed.version is not None or pushed.pulled is None:
                break
            pushed = self.push(message, force=force, durability=durability)
        return pulled, pushed

    def finish_copies(self) -> tuple[Trailing, ...]:
        """Waits until the copies are made that pushes with `durability` left open; returns what cannot be made now.

        May be interrupted: they go on in the background as long as the workspace is open, and are never forgotten.
        """
        with self._session("push") as s:
            return self._copy_on(s, {}, wait=True)

    @property
    def copying(self) -> bool:
        """Whether copies are made in the background whose end nobody has waited for (`finish_copies`)."""
        return self._copying is not None

    def status(self) -> Status:
        """What differs here, what is ahead or behind, how each backend fares. Changes nothing, takes no lock."""
        from metasync.maintenance import status as reporting

        with self._session("status") as s:
            return dataclasses.replace(reporting.status(s, self.backends()), paused=self.settings().paused)

    def check(self, *, read_data: bool = False) -> CheckReport:
        """Is everything there, as often as promised, and unaltered? `read_data` reads every copy."""
        from metasync.maintenance import check as checking

        with self._session("check") as s:
            report = checking.check(s, s.newest(), read_data=read_data)
            s.db.set(SHORT_KEY, report.short)
            return report

    def backends(self) -> list[BackendState]:
        """The agreed backends, and how each fares as seen from this device now."""
        with self._session("backends") as s:
            return self._connections.states(s, sorted(self._connections.agreed_names))

    def moving(self) -> Moving:
        """What lies where it was before the backends changed, and is read there until it is moved."""
        from metasync.maintenance.reconfigure import still_moving

        with self._session("backends") as s:
            return still_moving(s, None)

    def link(self, name: str, url: str) -> BackendState:
        """Tells this device the way to an agreed backend. `UsageError` if it is not that backend."""
        if name not in self._connections.agreed_names:
            names = ", ".join(sorted(self._connections.agreed_names))
            raise UsageError(f"no backend of this workspace is called {name!r}", next_step=f"They are: {names}.")
        parsed = parse_url(url)
        open_backend.refuse_inside(self.directory, {name: parsed})
        with self._locked("backend link"):
            self._connections.link(name, parsed)
        with self._session("backend link") as s:
            return self._connections.states(s, [name])[0]

    # --- inside

    def _copy_on(self, s: Session, at_hand: dict[bytes, bytes], *, wait: bool) -> tuple[Trailing, ...]:
        """Goes on with copies that are noted, in the background; `wait`: to their end, or until none can be made.

        What is open: where it waited, what cannot be made now.
        """
        from metasync.transfer import late_copies

        if late_copies.load(s.db) and not s.db.has(JOURNAL_KEY):
            late_copies.forget_unnamed(s.db, s.base().index)
        begun = late_copies.summary(late_copies.load(s.db).values(), s.names)
        self._copying = late_copies.go_on(self._copying, s.transfer, s.runtime, s.db, self.on_event, at_hand)
        if not wait or self._copying is None:
            return begun
        self._copying.join()
        self._copying = None
        return late_copies.summary(late_copies.load(s.db).values(), s.names)

    def _finish_clone(self) -> CloneReport:
        from metasync.members import admission
        from metasync.sync import first_checkout
        from metasync.sync import pull as pulling

        with self._operation("clone") as s:
            read_only = self._connections.is_read_only
            arrival = admission.arrive(s, read_only=read_only)
            found: list[tuple[State, str]] = []
            brought = first_checkout.bring(s, arrival.newest, lambda: found.append(arrival.finish()))
            pulled = brought.report
            newest, problem = found[-1]
            if newest.master == brought.agreed.state.master:  # what was agreed since is this device itself, as a rule
                s.db.set(BASE_KEY, newest)
            else:
                more = pulling.pull(s, brought.agreed, s.load(newest), force=True)  # nothing here is only here
                pulled = dataclasses.replace(more, conflicts=pulled.conflicts + more.conflicts)
            s.db.set(CLONING_KEY, None)
            return CloneReport(
                directory=str(self.directory),
                version=newest.v,
                fingerprint=newest.fingerprint,
                files=brought.files,
                bytes=brought.size_bytes,
                unlinked=tuple(sorted(self._connections.agreed_names - self._connections.links.keys())),
                read_only=read_only,
                conflicts=pulled.conflicts,
                unplaced=pulled.unplaced,
                down=dict(s.down),
                problem=problem,
                workspace=self,
                name=s.name,
            )

    @contextlib.contextmanager
    def _locked(self, what: str, *, first: bool = True) -> Iterator[WorkspaceLock]:
        """With the workspace's lock. `first` is false where it had it before: then it waits for as long as it takes."""

        def waiting(who: str) -> None:
            if first:
                self.on_event(Notice(f"waiting: the workspace is {who}"))

        wait_s = WAIT_S if first else math.inf
        taken = self._machine.lock(self.directory, f"metasync {what}", waiting, wait_s, presses=what != "push")
        with taken as lock, self._connections.guard.holding():
            yield lock

    @contextlib.contextmanager
    def _seated(self, what: str, *, first: bool = True) -> Iterator[Seat]:
        """A seat of an operation that may change things: under the lock."""
        with self._locked(what, first=first) as lock, self._seat(what) as seat:
            seat.others_wait = lock.wanted
            self._connections.guard.tell(seat.config, self.on_event)
            yield seat

    @contextlib.contextmanager
    def _operation(self, what: str) -> Iterator[Session]:
        """A session that may change things."""
        with self._seated(what) as seat, self._taken_up(what, seat) as s:
            yield s

    @contextlib.contextmanager
    def _taken_up(self, what: str, seat: Seat) -> Iterator[Session]:
        """A session in the place of a seat, after finishing what an earlier process left."""
        from metasync.checkout.checkout import Checkout
        from metasync.session.session import Session

        s = Session.of(seat)
        recovered = Checkout(s.db, s.tree).recover()
        if recovered is not None:
            self.on_event(Notice("finished a checkout that had been interrupted"))
        for conflict in s.settle_replaced():
            self.on_event(Notice(f"a late write came back as {os.fsdecode(conflict.copy)}", warning=True))
        if what != "clone" and s.db.has(UNFINISHED_KEY):
            from metasync.sync import first_checkout

            self.on_event(Notice("finishing a clone that had been interrupted"))
            for made in first_checkout.bring(s, s.newest()).report.conflicts:
                path, kept = os.fsdecode(made.path), os.fsdecode(made.kept)
                self.on_event(Notice(f"{path}: yours is kept as {kept} ({made.reason})", warning=True))
        yield s
        s.keep_estimates()

    @contextlib.contextmanager
    def _session(self, what: str) -> Iterator[Session]:
        from metasync.session.session import Session

        with self._seat(what) as seat:
            yield Session.of(seat)

    @contextlib.contextmanager
    def _seat(self, what: str) -> Iterator[Seat]:
        if self._closed:
            raise WorkspaceError(f"{self.directory}: the workspace was closed before {what}")
        self._refuse_paused(what)
        with WorkTree(os.fsencode(self.directory), self._machine.disk()) as tree:
            tree.rules = rules_of(tree, self._db)
            c = self._connections
            runtime, group = c.open()
            runtime.listen(self.on_event)
            runtime.govern(self._governor())
            seat = Seat(
                name=self._db.need(NAME_KEY),
                tree=tree,
                db=self._db,
                runtime=runtime,
                group=group,
                keys=c.keys,
                device=c.device,
                certificate=c.certificate,
                config=c.config,
                chain_of=open_backend.chain_of,
                names=c.names,
                wall_ns=self._machine.wall_ns,
                entropy=self._machine.entropy,
                listener=self.on_event,
                keep_keys=c.keep_keys,
                down=c.absent,
                given_up=c.given_up,
                previous=c.previous,
                former=c.former,
                follow=c.follow,
                config_hash=c.config_hash,
            )
            try:
                yield seat
            finally:
                c.guard.give_back()
                self._note_given_up()

    def _note_given_up(self) -> None:
        """Tells the user, once per command, which backends were so full that their ballast had to go."""
        names = self._connections.take_given_up()
        if names:
            from metasync.session import space

            space.note_given_up(self._db, names)
        for name in names:
            text = f"{name} is full: its reserve was used, so that versions can still be agreed. Free space there."
            self.on_event(Notice(text, warning=True))

    def _disconnect(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.stop(0)
        self._connections.close()
        if copying is not None:
            copying.stop(COPYING_ENDS_S)

    def close(self) -> None:
        """Gives connections and files back; copies under way (`push` with `durability`) end. May be repeated."""
        self._disconnect()
        if not self._closed:
            try:
                self._note_given_up()  # by writes that landed after their operation had ended
            finally:
                self._closed = True
                self._db.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
