"""An open workspace during one operation: its folder, its ways to the backends, and what its agreed states name.

`agreement` asks for states and proposes new ones; here they become configs, device sets, indexes and trees. Parts that
only some operations need are made when they are asked for, so that a command with nothing to do loads no index.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Final

from metasync import errors
from metasync.config import NO_LIMIT, decode_config
from metasync.consensus import ZERO_HASH, State
from metasync.errors import CANNOT_BE_READ, BackendError, ExcludedError, NoQuorumError, UnreachableError, WorkspaceError
from metasync.events import Notice, Progress, Sheltered
from metasync.keys.device_set import decode_device_set
from metasync.local import settings
from metasync.local.lock import WAIT_S, PutOff
from metasync.local.state_keys import META_KIND, NAME_KEY, PARTS_KEY, PLAN_KEY, UNFINISHED_KEY
from metasync.objects.model import Ids, ObjectKind, decode_snapshot
from metasync.runtime.effects import Task, together
from metasync.runtime.threads import Rest, UnderWay
from metasync.session.around import Around
from metasync.session.folder import BASE_KEY, ERA_KEY, STATE_DIR, stored_newest, told
from metasync.worktree.fs_probe import rules_of
from metasync.worktree.tree import WorkTree

if TYPE_CHECKING:
    from metasync.config import Config
    from metasync.events import Event, Listener
    from metasync.keys.device_set import Certificate, DeviceSet
    from metasync.keys.keyring import WorkspaceKeys
    from metasync.local.lock import WorkspaceLock
    from metasync.objects.chunker import Chunker
    from metasync.objects.model import Entry, Snapshot
    from metasync.reports.sync import BadCopies
    from metasync.session.connections import Connections
    from metasync.session.write_index import AgreedIndexes
    from metasync.store.index import Index, IndexRoot, IndexSegment
    from metasync.store.packs import PackFormat
    from metasync.transfer.contents import Contents, DeltaPlace
    from metasync.transfer.copies import Transfer
    from metasync.transfer.estimates import Estimates
    from metasync.worktree.ingest import Ingest, Sink

LOOK_S: Final = 5.0  # for a look at what nobody waits for
CLOSING_S: Final = 30.0  # that `close` waits for an operation of another thread: a file that is read hangs, say
MADE: Final = ("ids", "chunker", "form", "transfer", "indexes")  # what a session makes when it is asked for
AHEAD_OBJECTS_MAX: Final = 50_000  # a clone of more gains little by a head start, and must save memory


@dataclass(frozen=True)
class Agreed:
    """A decided state with all it names. `tree_root` is None before the first push."""

    state: State
    config: Config
    devices: DeviceSet
    root: IndexRoot
    index: Index
    snapshot: Snapshot | None

    @property
    def segments(self) -> tuple[IndexSegment, ...]:
        """The segments of the index, in the order of `root`."""
        return self.index.segments

    @property
    def tree_root(self) -> bytes | None:
        return self.snapshot.root if self.snapshot is not None else None


class Session:
    """One operation's view of an open workspace, for one thread. `connections`, opened here, outlive it.

    down       backends that this operation does without, by name, with the reason
    out        those of them that are not the stores they were: no pack goes there, none is read there
    opened_in_s  how long it took to open the ways to the backends: one that hangs takes its time
    tried      backends where this operation tried to put the ballast back
    """

    def __init__(self, connections: Connections, tree: WorkTree, listener: Listener, around: Around) -> None:
        self.connections = connections
        self.directory, self.db = connections.directory, connections.db
        self.tree, self.listener = tree, listener
        began_ns = connections.machine.wall_ns()
        self.runtime, self.group = connections.open()
        self.opened_in_s = (connections.machine.wall_ns() - began_ns) / 1e9
        self.name = self.db.need(NAME_KEY)
        self.device = connections.device
        self.entropy = connections.machine.entropy
        self.wall_ns = connections.machine.wall_ns
        self.given_up = connections.given_up
        self.down = connections.absent
        self.out: dict[str, UnreachableError] = {}
        self.tried: set[str] = set()
        self.others_wait: Callable[[], bool] = lambda: False  # whether another operation waits for the folder's lock
        self.held = contextlib.ExitStack()  # that lock, where it is held
        self.check: Callable[[], None] = lambda: None  # to be called while something else is waited for: may end it all
        self.around = around
        self.recalled = False  # whether the agreement has been told of the states that are kept here
        self._along: dict[bytes, bytes] = {}  # of `Contents`
        self._along_deltas: dict[DeltaPlace, bytes] = {}
        self._loaded: tuple[State, Agreed] | None = None  # what was loaded last, by the state that names it
        self._is_ahead = False  # packs were asked for before they were wanted

    # --- config and keys

    @property
    def config(self) -> Config:
        """The newest agreed config that this device knows."""
        return self.connections.config

    @property
    def previous(self) -> Config | None:
        """The config before, while its mapping is still read."""
        return self.connections.previous

    @property
    def names(self) -> Mapping[bytes, str]:
        """The agreed backends that this device has a way to: id -> name."""
        return self.connections.names

    @property
    def former(self) -> Mapping[bytes, str]:
        """Backends of `previous` alone that this device has a way to: id -> name of the way."""
        return self.connections.former

    @property
    def keys(self) -> WorkspaceKeys:
        return self.connections.keys

    @property
    def certificate(self) -> Certificate:
        return self.connections.certificate

    def follow_keys(self, state: State) -> None:
        """Takes over the keys of the epoch that a decided state is in (architecture.md, D11). `ExcludedError`."""
        # Keys are kept before the state is: a crash between leaves keys that no state asks for yet.
        if state.epoch > self.group.participant.keys.epoch:
            self.runtime.run(self.group.open_epoch(state))
        keys = self.group.participant.keys
        if keys != self.keys:
            self.take_keys(keys)
        while self.group.unfenced:  # whoever changed them may have died before it was done
            base, decided = self.group.unfenced.pop()
            with contextlib.suppress(BackendError, errors.DamagedError, NoQuorumError, ExcludedError):
                self.runtime.run(self.group.fence(base, decided, deadline_s=LOOK_S))

    def take_keys(self, keys: WorkspaceKeys) -> None:
        """Works with these keys from now on."""
        self.connections.keep_keys(keys)
        self.group.participant.keys = keys
        self.outdate("form", "transfer")

    def outdate(self, *names: str) -> None:
        """Drops cached properties that were made of a changed config or key; each is made anew when asked for."""
        older = self.__dict__.get("transfer")
        for name in names:
            self.__dict__.pop(name, None)
        if older is not None and "transfer" in names:
            self.transfer.down.update(older.down)
            self.transfer.faults += older.faults

    def leave_out(self, name: str, why: UnreachableError) -> None:
        """Stores no pack on this backend, and reads none from it, from now on."""
        self.out.setdefault(name, why)
        if "transfer" in self.__dict__:
            self.transfer.down.setdefault(name, why)

    @property
    def bad_copies(self) -> tuple[BadCopies, ...]:
        """Copies that this operation has met altered so far."""
        t = self.__dict__.get("transfer")
        if t is None or not t.faults:
            return ()
        from metasync.transfer import wrong_copies

        return wrong_copies.met(t.faults)

    # --- what is made of them when it is asked for

    @cached_property
    def ids(self) -> Ids:
        return Ids(self.keys.id_key)

    @cached_property
    def chunker(self) -> Chunker:
        from metasync.objects.chunker import Chunker, SizeClass

        c = self.config
        classes = [
            SizeClass(None if k.below_bytes == NO_LIMIT else k.below_bytes - 1, k.minimum, k.average, k.maximum, k.kind)
            for k in c.chunking
        ]
        return Chunker(c.whole_bytes, classes, self.keys.chunk_seed)

    def ingest(self, *, sink: Sink | None = None, known: Callable[[bytes], bool] | None = None) -> Ingest:
        """Reads files of this folder into chunks."""
        from metasync.worktree.ingest import Ingest

        return Ingest(self.chunker, self.ids, sink=sink, known=known, read=self.tree.disk.read_next)

    @cached_property
    def form(self) -> PackFormat:
        from metasync.backends.digests import KINDS
        from metasync.backends.registry import digest_kind
        from metasync.session.open_backend import chain_of
        from metasync.store.packs import PackFormat, WorkspacePackKeys

        c = self.config
        told = {digest_kind(b.scheme) for b in c.backends if b.storage}
        return PackFormat(
            keys=WorkspacePackKeys(self.keys),
            chains=tuple(chain_of(names) for names in c.chains),
            epoch=self.keys.epoch,
            level=c.compression_level,
            segment_bytes=c.segment_bytes,
            pack_bytes=c.pack_bytes,
            digests=tuple(kind for kind in sorted(KINDS) if kind in told),
        )

    @cached_property
    def transfer(self) -> Transfer:
        from metasync.transfer.copies import transfer_of

        names = {**self.former, **self.names}
        made = transfer_of(self.config, self.previous, names, self.form, self.ids.of, self.estimates)
        made.down.update(self.out)
        made.held = self.connections.held
        return made

    @cached_property
    def estimates(self) -> Estimates:
        """What the lines to the backends bear, from earlier runs on."""
        from metasync.transfer.estimates import ESTIMATES_KEY, Estimates

        return self.db.get(ESTIMATES_KEY) or Estimates()

    @cached_property
    def indexes(self) -> AgreedIndexes:
        from metasync.session.write_index import AgreedIndexes

        return AgreedIndexes(self.db, self.runtime, self.group, self, self.connections.segments)

    def end(self) -> None:
        """Drops what it loaded and made. An operation's objects hold each other: none of them may hold an index too, or
        a process that pushes for days has tens of them until the garbage collector comes by."""
        if "indexes" in self.__dict__ and self._loaded is not None:
            self.connections.segments = self.indexes.to_keep(self._loaded[1].root)
        self._loaded = None
        self.others_wait = bool
        for name in MADE:
            self.__dict__.pop(name, None)

    # --- agreed states

    def base_state(self) -> State:
        """The state this folder is at."""
        return self.db.need(BASE_KEY)

    def newest_state(self) -> State:
        """The newest state this device has seen decided."""
        return stored_newest(self.db)

    def cached(self, wanted: Sequence[tuple[bytes, Task]]) -> list[bytes]:
        """Reads objects beside the logs, by hash: from the local cache, all others by their tasks at once."""
        have = self.db.get_objects([digest for digest, _ in wanted])
        missing = {digest.hex(): task for digest, task in wanted if digest not in have}
        for digest, task in wanted:
            if digest in have:
                task.close()
        if missing:
            got: dict[str, bytes] = self.runtime.run(together(missing))
            new = {bytes.fromhex(digest): data for digest, data in got.items()}
            self.db.put_objects((digest, META_KIND, data) for digest, data in new.items())
            have.update(new)
        return [have[digest] for digest, _ in wanted]

    def _consts(self, *digests: bytes) -> list[bytes]:
        return self.cached([(digest, self.group.get_const(digest)) for digest in digests])

    def put_const(self, base: State, data: bytes) -> bytes:
        """Stores a config or device set on enough acceptors; returns its hash."""
        digest: bytes = self.runtime.run(self.group.put_const(base, data))
        self.db.put_objects([(digest, META_KIND, data)])
        return digest

    def config_named(self, digest: bytes) -> Config:
        """The config of this hash."""
        return decode_config(self._consts(digest)[0])

    def config_of(self, state: State) -> Config:
        """The config that a decided state names."""
        return self.config_named(state.config)

    def devices_of(self, state: State) -> DeviceSet:
        """The device set that a decided state names."""
        return self._device_set(state.devices, self._consts(state.devices)[0])

    def _device_set(self, digest: bytes, data: bytes) -> DeviceSet:
        """The device set of this hash. One that the agreement works with was verified when it was taken over."""
        return self.group.participant.device_sets.get(digest) or decode_device_set(data, self.keys.ns_id)

    def base(self) -> Agreed:
        """Loads what this folder is at: the empty tree, with an empty index, where a clone brought none yet, or where
        its version is no longer kept and gone.
        """
        from metasync.store.index import Index, IndexRoot

        state = self.base_state()
        if not self.db.has(UNFINISHED_KEY):
            try:
                return self.load(state)
            except errors.UnreadableError as e:
                from metasync.session import unreadable

                unreadable.check_cut(self, state, e)  # else it is as empty (architecture.md, D8)
        return Agreed(state, self.config_of(state), self.devices_of(state), IndexRoot(), Index(), None)

    def load(self, state: State) -> Agreed:
        """Loads what a decided state names, from the local cache if it can. `ExcludedError`: it is not for us.

        A state of an ended era is read through the config, devices and index of the new era's first state: its own may
        have been on the lost backends alone.
        """
        self.follow_keys(state)
        passed = self.db.get(ERA_KEY)
        named = state if passed is None else passed.named_by(state)
        if self._loaded is not None and self._loaded[0] == named and self._loaded[1].state == state:
            return self._loaded[1]
        config, devices = self._consts(named.config, named.devices)
        snapshot = None
        from metasync.session.agreement import ask_newest

        try:
            root, index = self.indexes.of_state_or_newer(named, partial(ask_newest, self))
            if state.master != ZERO_HASH:
                contents = self._reader(named, index)
                contents.may_begin = self._wants_all(index)
                snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [state.master])[state.master])
                if contents.has_begun:
                    contents.begin_ahead()
        except CANNOT_BE_READ as e:
            from metasync.session import unreadable

            raise unreadable.of_state(self, state, e) from e
        device_set = self._device_set(named.devices, devices)
        agreed = Agreed(state, decode_config(config), device_set, root, index, snapshot)
        self._loaded = named, agreed
        return agreed

    def _wants_all(self, index: Index) -> bool:
        """Whether a clone that has brought nothing yet is about to read everything. Once in a session."""
        noted = [self.db.has(key) for key in (UNFINISHED_KEY, PARTS_KEY, PLAN_KEY)]
        wants = not self._is_ahead and noted == [True, False, False] and index.places <= AHEAD_OBJECTS_MAX
        self._is_ahead |= wants
        return wants

    def contents(self, agreed: Agreed) -> Contents:
        """Reads the objects that an agreed index names, or that the newest one does."""
        return self._reader(agreed.state, agreed.index)

    def _reader(self, state: State, index: Index) -> Contents:
        from metasync.session.agreement import newer_index
        from metasync.transfer.contents import Contents

        newer = partial(newer_index, self, state)
        made = Contents(index, self.transfer, self.db, self.runtime, along=self._along, newer=newer)
        made.along_deltas = self._along_deltas
        return made

    def flat(self, agreed: Agreed, contents: Contents | None = None) -> dict[bytes, Entry]:
        """The whole tree of an agreed state."""
        from metasync.local.memory import room_for_tree
        from metasync.objects.walk import flatten

        return (contents or self.contents(agreed)).walk(flatten(agreed.tree_root, room_for_tree))


class Operations:
    """The operations of one open workspace: each gets a session, those that change something the lock.

    `on_event` names the listener that hears what they tell. `now`: transfers go on in spite of a pause. Threads may
    share it. What is open rests after a minute without an operation.
    """

    def __init__(self, connections: Connections, on_event: Callable[[], Listener]) -> None:
        self.connections = connections
        self._on_event = Sheltered(on_event)
        self._under_way = UnderWay()
        self.now = False
        self.settings_path = connections.directory / STATE_DIR / settings.FILE
        self._governor: settings.Governor | None = None
        self._closed = self._is_given_back = False
        self.around = Around()
        self.upkeep: Callable[[], None] = lambda: None  # what a push does at its end, where there is anything to do
        self.upkeep_in_quiet: Callable[[Callable[[], bool]], bool] = lambda _: False  # what the daemon does, until ...
        self._giving_back = threading.RLock()
        self._rest = Rest(connections.machine.rests_after_s, lambda: connections.rest(self._under_way))
        connections.on_event = self.tell

    def tell(self, event: Event) -> None:
        """Tells whoever listens at this moment. An operation that was cancelled ends here, if not before."""
        self._under_way.check()
        self._on_event(event)

    def cancel(self) -> None:
        """Ends what is under way in any thread, soon, with `CancelledError`."""
        self._under_way.cancel("cancelled; what was agreed and stored by then stays")

    @contextlib.contextmanager
    def _entered(self, what: str) -> Iterator[None]:
        """Counts as under way. Who closed meanwhile, and could not wait for the end, is given everything back now."""
        try:
            with self._under_way.entered(), told(what):
                yield
        finally:
            if not self._closed:
                self._rest.touch()
            elif self._under_way.ended(0):
                self._give_back()

    @contextlib.contextmanager
    def locked(self, what: str, *, first: bool = True) -> Iterator[WorkspaceLock]:
        """Holds the workspace's lock. `first` is false for an operation that gave way: it waits as long as it takes.

        `PutOff`: a pull that holds it, and cannot give it back, has let this operation in.
        """
        if self.around.applying:
            raise PutOff

        def waiting(who: str) -> None:
            if first:
                self.tell(Notice(f"waiting: the workspace is {who}"))

        c, wait_s, check = self.connections, WAIT_S if first else math.inf, self._under_way.check
        if c.db.is_copy:  # also where it can be written by now: what has been read is a copy, and would be forgotten
            raise WorkspaceError(
                f"{c.directory} is on a disk that is read-only: {what} cannot change anything there",
                next_step="Mount it so that it can be written, and run again.",
            )
        with (
            self._entered(what),
            c.machine.lock(
                c.directory, f"metasync {what}", waiting, wait_s, presses=first and what != "push", heed=check
            ) as lock,
            c.guard.holding(),
        ):
            yield lock

    @contextlib.contextmanager
    def session(self, what: str) -> Iterator[Session]:
        """Opens a session that changes nothing."""
        c = self.connections
        if self._closed:
            raise WorkspaceError(f"{c.directory}: the workspace was closed before {what}")
        if not self.now:
            settings.refuse_paused(self.settings_path, what)
        with self._entered(what), WorkTree(os.fsencode(c.directory), c.machine.disk()) as tree, c.guard.lending():
            if c.db.has_moved():  # what is there is no folder of this local state: a push would give it to its devices
                raise WorkspaceError(
                    f"{c.directory} is not the folder that was opened: that was moved, or another took its place",
                    next_step="Nothing was changed. Close this workspace, and open the folder anew where it lies now.",
                )
            tree.rules = rules_of(tree, c.db)
            tree.sets_special = cache(lambda: settings.is_on(self.settings_path, "special-modes"))
            tree.looked = lambda names: self.tell(Progress("scan", names, None, "files"))
            try:
                s = Session(c, tree, self.tell, self.around)
                s.check = self._under_way.check
                s.runtime.listen(self._on_event)
                s.runtime.check = s.check
                s.runtime.govern(self._governed())
                with contextlib.ExitStack() as ending:
                    ending.callback(s.end)
                    ending.callback(self._note_bad_copies, s)
                    yield s
            finally:
                self._note_given_up()

    @contextlib.contextmanager
    def begun(self, what: str, *, first: bool = True) -> Iterator[Session]:
        """Opens a session that may change things, under the lock. What earlier operations left is to be finished."""
        with contextlib.ExitStack() as held:
            lock = held.enter_context(self.locked(what, first=first))
            with self.session(what) as s:

                def wanted() -> bool:
                    s.check()
                    return self.around.waits() or lock.wanted()

                s.others_wait, s.held = wanted, held
                self.connections.guard.tell(s.config, self.tell)
                yield s
                if "transfer" in s.__dict__:
                    s.transfer.keep_learned(s.db)
                if self.connections.db.may_be_large():
                    from metasync.session.cache import bound

                    bound(s, self.settings_path)

    def _governed(self) -> settings.Governor:
        """The governor of this workspace's calls, one for all its operations."""

        def say_paused(phrase: str) -> None:
            self.tell(Notice(f"paused {phrase}: what has begun ends, the rest waits; `metasync resume` goes on"))

        if self._governor is None or self._governor.passes_pauses != self.now:
            self._governor = settings.Governor(self.settings_path, now=self.now, on_pause=say_paused)
            self.connections.requests = self._governor.requests
        return self._governor

    def _note_given_up(self) -> None:
        """Tells the user, once per command, which backends were so full that their ballast was deleted."""
        for name in self.connections.take_given_up():
            text = f"{name} is full: its reserve was used, so that pushes still end. Free space there."
            self.tell(Notice(text, warning=True))

    def _note_bad_copies(self, s: Session) -> None:
        """Notes which copies were bad, to be made good, and tells the user of those that are altered."""
        if "transfer" not in s.__dict__ or not s.transfer.faults:
            return
        from metasync.transfer import wrong_copies

        t, ids = s.transfer, {place.name: i for i, place in s.transfer.places.items()}
        with contextlib.suppress(WorkspaceError):  # where the disk takes no note, they are told all the same
            wrong_copies.note(s.db, [f.pack for f in t.faults])
            found = ((f.pack, ids[f.backend]) for f in t.faults if f.altered and f.backend in ids)
            wrong_copies.note_bad(s.db, found, s.wall_ns())
        for text in map(wrong_copies.told, s.bad_copies):
            self.tell(Notice(text, warning=True))

    def close(self) -> None:
        """Gives connections and files back; copies under way end. May be repeated.

        From another thread it ends what is under way first, with `CancelledError`. What does not end in time, and who
        calls this from a listener, gives everything back when it ends.
        """
        if self._under_way.is_forked:
            return  # all that is open belongs to the process that opened it
        self._closed = True
        self._rest.stop()
        self._under_way.cancel("the workspace was closed")
        if self._under_way.ended(CLOSING_S):
            self._give_back()

    def _give_back(self) -> None:
        with self._giving_back:
            if self._is_given_back:
                return
            self._is_given_back = True
            try:
                self.connections.close()
                self._note_given_up()  # by writes that landed after their operation had ended
            finally:
                self.connections.db.close()
