"""What every operation of an open workspace works with: built once by `workspace.py`, used by pull, push, check, log.

Also the one place that knows how agreed states become configs, indexes and trees. Nothing here prints or prompts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

from metasync.config import NO_LIMIT, Config, decode_config
from metasync.consensus import (
    DEADLINE_S,
    JOURNAL_KEY,
    ZERO_HASH,
    Change,
    Decided,
    Group,
    Journal,
    Ref,
    State,
    decode_journal,
    decode_state,
)
from metasync.consensus.floors import KEEP as LOGS_KEPT
from metasync.consensus.floors import decode_progress
from metasync.effects import Gather, Task
from metasync.errors import (
    BackendError,
    DamagedError,
    ExcludedError,
    FormatError,
    MetaSyncError,
    NoQuorumError,
    UnreachableError,
    WorkspaceError,
)
from metasync.events import Listener, Notice
from metasync.keys.devices import Certificate, DeviceIdentity, DeviceSet, decode_device_set
from metasync.keys.ring import WorkspaceKeys
from metasync.localdb import Conflict, LocalDb
from metasync.objects import walk
from metasync.objects.chunker import Chunker, SizeClass
from metasync.objects.ids import Ids
from metasync.objects.model import Entry, ObjectKind, Snapshot
from metasync.objects.snapshot import decode_snapshot
from metasync.runtime import Runtime
from metasync.store import index as pack_index
from metasync.store.contents import Contents
from metasync.store.estimates import Estimates
from metasync.store.index import Index, IndexRoot, IndexSegment
from metasync.store.packs import PackFormat, WorkspacePackKeys
from metasync.store.transfer import Transfer
from metasync.sync import eras, evidence
from metasync.sync.fsio import WorkTree
from metasync.sync.ingest import Ingest, Sink
from metasync.sync.places import transfer_of
from metasync.sync.replaced import settle
from metasync.translators._base import Chain

BASE_KEY: Final = "base"  # the state this folder is at
NEWEST_KEY: Final = "newest"  # the newest state this device saw decided: never gone back behind
ERA_KEY: Final = "era"  # the beginning of the newest era that this device passed to (`sync.eras`)
KEPT_KEY: Final = "kept"  # id of a staged snapshot (with others behind it) that the next push names as a parent
MEMORY_KEY: Final = "memory"  # what each acceptor last showed, with the newest state
UNFINISHED_KEY: Final = "unfinished"  # set while a clone has not brought its first tree
CLONING_KEY: Final = "cloning"  # set until `clone` has ended: running it again goes on
FLOORS_KEY: Final = "floors"  # how far this device is with deleting old logs
INVITED_KEY: Final = "invited"  # until a device is agreed that came by an invitation: a secret of its own, and whose
ESTIMATES_KEY: Final = "estimates"  # what the lines to the backends bear (`store.estimates`)
SHORT_KEY: Final = "short"  # how many packs this device stored with fewer copies than promised
LOOK_S: Final = 5.0  # for a look at what nobody waits for
AGREED_MARK: Final = b"agreed"  # cached under the hash of a content that the tree of a decided version holds
META_KIND: Final = 100  # kinds of the local cache beyond `ObjectKind`: meta objects by hash

T = TypeVar("T")

Follow = Callable[[bytes, Config, Config | None], tuple[dict[bytes, str], dict[bytes, str]]]
"""Is told the hash, the newest agreed config and the one whose mapping is still read. -> `names`, `former`."""


@dataclass(frozen=True)
class Agreed:
    """A decided state with all it names, loaded. `tree_root` is None before the first push."""

    state: State
    config: Config
    devices: DeviceSet
    root: IndexRoot
    index: Index
    snapshot: Snapshot | None

    @property
    def segments(self) -> tuple[IndexSegment, ...]:
        """Those of the index, as `root` lists them."""
        return self.index.segments

    @property
    def tree_root(self) -> bytes | None:
        return self.snapshot.root if self.snapshot is not None else None


@dataclass
class Session:
    """An open workspace. `places`: this device's ways to the backends, by backend id. `keep_keys` saves new keys."""

    name: str
    tree: WorkTree
    db: LocalDb
    runtime: Runtime
    group: Group
    keys: WorkspaceKeys
    device: DeviceIdentity
    certificate: Certificate
    config: Config
    chain_of: Callable[[tuple[str, ...]], Chain]
    names: dict[bytes, str]
    wall_ns: Callable[[], int]
    entropy: Callable[[int], bytes]
    listener: Listener
    keep_keys: Callable[[WorkspaceKeys], None] = field(repr=False)
    down: dict[str, str] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)  # backends whose ballast went in this command
    tried: set[str] = field(default_factory=set)  # and those where it was tried to put it back
    previous: Config | None = None  # whose mapping is still read
    former: dict[bytes, str] = field(default_factory=dict)  # ways to backends that are in `previous` alone
    follow: Follow | None = None  # takes another config over into the local state
    config_hash: bytes = b""  # of `config`
    others_wait: Callable[[], bool] = lambda: False  # whether another operation of this folder waits for its lock
    _segments: dict[bytes, IndexSegment] = field(default_factory=dict)
    _known_contents: tuple[bytes, set[bytes]] | None = None
    _loaded: tuple[State, Agreed] | None = None  # what was loaded last, by the state that names it

    @cached_property
    def ids(self) -> Ids:
        return Ids(self.keys.id_key)

    @cached_property
    def chunker(self) -> Chunker:
        c = self.config
        classes = [
            SizeClass(None if k.below_bytes == NO_LIMIT else k.below_bytes - 1, k.minimum, k.average, k.maximum, k.kind)
            for k in c.chunking
        ]
        return Chunker(c.whole_bytes, classes, int.from_bytes(self.keys.chunk_seed[:8], "big"))

    def ingest(self, *, sink: Sink | None = None, known: Callable[[bytes], bool] | None = None) -> Ingest:
        """Reads files of this folder into chunks."""
        return Ingest(self.chunker, self.ids, sink=sink, known=known, read=self.tree.disk.read_next)

    @cached_property
    def form(self) -> PackFormat:
        c = self.config
        return PackFormat(
            keys=WorkspacePackKeys(self.keys),
            chains=tuple(self.chain_of(names) for names in c.chains),
            epoch=self.keys.epoch,
            level=c.compression_level,
            segment_bytes=c.segment_bytes,
            pack_bytes=c.pack_bytes,
        )

    @cached_property
    def transfer(self) -> Transfer:
        names = {**self.former, **self.names}
        return transfer_of(self.config, self.previous, names, self.form, self.ids.of, self.estimates)

    @cached_property
    def estimates(self) -> Estimates:
        """What the lines to the backends bear, from earlier runs on."""
        return Estimates.kept(self.db.get(ESTIMATES_KEY))

    def keep_estimates(self) -> None:
        """Keeps what was learned of the lines for the next run."""
        if "estimates" in self.__dict__ and (note := self.estimates.encode()) != self.db.get(ESTIMATES_KEY):
            self.db.set(ESTIMATES_KEY, note)

    # --- keys

    def follow_keys(self, state: State) -> None:
        """Takes over the keys of the epoch that a decided state is in, once and for all (D11).

        Kept before the state is: a crash between leaves keys that no state asks for yet. `ExcludedError`.
        """
        if state.epoch > self.group.member.keys.epoch:
            self.runtime.run(self.group.open_epoch(state))
        keys = self.group.member.keys
        if keys != self.keys:
            self.take_keys(keys)
        while self.group.unfenced:  # whoever changed them may have died before it was done
            base, decided = self.group.unfenced.pop()
            with contextlib.suppress(BackendError, NoQuorumError, ExcludedError):
                self.runtime.run(self.group.fence(base, decided, deadline_s=LOOK_S))

    def take_keys(self, keys: WorkspaceKeys) -> None:
        """From now on works with these keys."""
        self.keep_keys(keys)
        self.keys = self.group.member.keys = keys
        down = self.__dict__["transfer"].down if "transfer" in self.__dict__ else {}
        for name in ("form", "transfer"):
            self.__dict__.pop(name, None)
        if down:
            self.transfer.down.update(down)

    # --- agreed states

    @staticmethod
    def stored_state(db: LocalDb) -> State:
        """The state that a folder is at, from its local state."""
        data = db.get(BASE_KEY)
        if data is None:
            raise _damaged("it does not say which version this folder is at")
        return local_value(decode_state, data)

    @staticmethod
    def stored_devices(db: LocalDb, state: State, ns_id: bytes) -> DeviceSet:
        """The device set that a stored state names."""
        data = db.get_object(state.devices)
        if data is None:
            raise _damaged("it does not hold the device set of the version this folder is at")
        return local_value(lambda d: decode_device_set(d, ns_id), data)

    def base_state(self) -> State:
        """The state this folder is at."""
        return self.stored_state(self.db)

    @staticmethod
    def stored_newest(db: LocalDb) -> State:
        """The newest state that a folder's device has seen decided; its config is the one in the local state."""
        data = db.get(NEWEST_KEY)
        return local_value(decode_state, data) if data is not None else Session.stored_state(db)

    def newest_state(self) -> State:
        """The newest state this device has seen decided."""
        return self.stored_newest(self.db)

    def base(self) -> Agreed:
        """What this folder is at, loaded. A clone that brought no tree yet is at the empty one, with an empty index."""
        if self.db.get(UNFINISHED_KEY) is None:
            return self.load(self.base_state())
        state = self.base_state()
        return Agreed(state, self.config_of(state), self.devices_of(state), IndexRoot(), Index(), None)

    def ask_newest(self, *, deadline_s: float = DEADLINE_S) -> State:
        """The newest decided state, by a quorum; remembered. `NoQuorumError`, `ForkError`."""
        known = self.newest_state()
        try:
            state: State = self.runtime.run(self.group.get_recent(known, deadline_s=deadline_s))
        except NoQuorumError:
            reached = self.group.reached  # maybe under a config with backends that this device has no way to yet
            if reached is not None and (reached.era, reached.v) > (known.era, known.v):
                with contextlib.suppress(MetaSyncError):
                    self.remember(reached)
            raise
        finally:
            self.note_standings()
        self.remember(state)
        return state

    def newest(self, *, offline_ok: bool = False) -> Agreed:
        """The newest decided state, loaded. `offline_ok`: without a quorum, the newest that can be seen at all."""
        try:
            return self.load(self.ask_newest())
        except NoQuorumError as e:
            if not offline_ok:
                raise
            self.listener(Notice(f"{e.message}; showing the newest version that can be seen", warning=True))
            return self.newest_seen()

    def newest_or_own(self) -> tuple[Agreed, bool]:
        """What to push on, and whether it was asked for: who decided the newest state itself need not ask (D5)."""
        state = self.newest_state()
        if not self.group.owns(state):
            return self.newest(), True
        self.group.forget_heard()
        return self.load(state), False

    def newest_seen(self) -> Agreed:
        """The newest state that any reachable backend proves decided; there may be newer ones."""
        return self.load(self.runtime.run(self.group.newest_seen(self.newest_state(), deadline_s=LOOK_S)))

    def remember(self, state: State) -> None:
        """Keeps a decided state, and what each acceptor showed: no provider takes this device back behind it (D10)."""
        self.follow_keys(state)
        known = self.newest_state()
        mine = self.config_hash or known.config
        newer = (state.era, state.v) >= (known.era, known.v)
        configs = self._configs_of(state) if newer and state.config != mine else None
        with self.db.transaction():
            if newer:
                self.db.set(NEWEST_KEY, state.encode())
            told = eras.cross(self, known, state)
            self.db.set(MEMORY_KEY, self.group.memory)
            if configs is not None and self.follow is not None:
                self.names, self.former = self.follow(state.config, *configs)
        if configs is not None:
            self.config, self.previous = configs
            self.config_hash = state.config
            older = self.__dict__.pop("transfer", None)
            if older is not None:
                self.transfer.down.update(older.down)
        for text in told:
            self.listener(Notice(text, warning=True))

    def _configs_of(self, state: State) -> tuple[Config, Config | None]:
        """The config that a decided state names, and the one whose mapping it lets be read."""
        config = decode_config(self._cached([(state.config, self.group.get_const(state.config))])[0])
        previous = None
        if (name := config.prev_config) is not None:
            with contextlib.suppress(MetaSyncError):  # then what was not moved cannot be found now, and all else can
                previous = decode_config(self._cached([(name, self.group.get_const(name))])[0])
        return config, previous

    def note_standings(self) -> None:
        """Backends that are not what they were hold nothing back: no pack goes to them, none is read from them."""
        evidence.note(self.db, self.group.evidence, self.wall_ns())
        eras.note_retired(self)
        for name, standing in self.group.standings.items():
            if standing.kind in ("ok", "unknown"):
                continue
            self.down.setdefault(name, standing.reason or standing.kind)
            if standing.kind in ("replaced", "rolled back"):
                why = UnreachableError(f"{standing.kind}: {standing.reason}")
                self.transfer.down.setdefault(name, why)

    def load(self, state: State) -> Agreed:
        """Loads what a decided state names; from the local cache where it can. `ExcludedError`: it is not for us."""
        self.follow_keys(state)
        named = eras.named_by(self.db.get(ERA_KEY), state)
        if self._loaded is not None and self._loaded[0] == named and self._loaded[1].state == state:
            return self._loaded[1]
        config, devices = self._cached([(d, self.group.get_const(d)) for d in (named.config, named.devices)])
        root = IndexRoot()
        if named.index.hash != ZERO_HASH:
            root = pack_index.decode_root(self._cached([(named.index.hash, self.group.get_meta(named.index))])[0])
        index = self._index(root)
        snapshot = None
        if state.master != ZERO_HASH:
            contents = Contents(index, self.transfer, self.db, self.runtime.start, clock=self.runtime.clock)
            snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [state.master])[state.master])
        device_set = decode_device_set(devices, self.keys.ns_id)
        agreed = Agreed(state, decode_config(config), device_set, root, index, snapshot)
        self._loaded = named, agreed
        return agreed

    def _index(self, root: IndexRoot) -> Index:
        """The index of this root. Segments that were opened before are opened again when one is asked for something."""
        at_hand = self.db.get_objects([i.ref.hash for i in root.items])
        if len(at_hand) == len({i.ref.hash for i in root.items}):
            return Index(lambda: [self._segment(i.ref.hash, at_hand[i.ref.hash]) for i in root.items])
        data = self._cached([(i.ref.hash, self.group.get_meta(Ref(*i.ref))) for i in root.items])
        return Index([self._segment(i.ref.hash, d) for i, d in zip(root.items, data, strict=True)])

    def _cached(self, wanted: Sequence[tuple[bytes, Task]]) -> list[bytes]:
        """Objects beside the logs, by hash: from the local cache, else by their tasks, all at once."""
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

    def index_at_hand(self) -> Index | None:
        """The pack index of the version this folder is at, if the local cache holds all of it. Asks nobody."""
        ref = self.base_state().index
        if ref.hash == ZERO_HASH:
            return Index()
        root = self.db.get_object(ref.hash)
        items = pack_index.decode_root(root).items if root is not None else ()
        have = self.db.get_objects([i.ref.hash for i in items])
        if root is None or any(i.ref.hash not in have for i in items):
            return None
        return Index(tuple(self._segment(i.ref.hash, have[i.ref.hash]) for i in items))

    def index_of(self, ref: Ref) -> Index:
        """The pack index of this name, from the local cache or from the backends."""
        if ref.hash == ZERO_HASH:
            return Index()
        return self._index(pack_index.decode_root(self._cached([(ref.hash, self.group.get_meta(ref))])[0]))

    def _segment(self, digest: bytes, data: bytes) -> IndexSegment:
        if digest not in self._segments:
            self._segments[digest] = pack_index.decode_segment(data)
        return self._segments[digest]

    def contents(self, agreed: Agreed) -> Contents:
        return Contents(agreed.index, self.transfer, self.db, self.runtime.start, clock=self.runtime.clock)

    def flat(self, agreed: Agreed, contents: Contents | None = None) -> dict[bytes, Entry]:
        """The whole tree of an agreed state."""
        return (contents or self.contents(agreed)).walk(walk.flatten(agreed.tree_root))

    # --- agreeing

    def put_const(self, base: State, data: bytes) -> bytes:
        """Stores a config or device set on enough acceptors; returns its hash."""
        digest: bytes = self.runtime.run(self.group.put_const(base, data))
        self.db.put_objects([(digest, META_KIND, data)])
        return digest

    def put_index(self, base: State, segments: Sequence[bytes], make_root: Callable[[Sequence[Ref]], bytes]) -> Ref:
        """Stores segments and the root that names them on enough acceptors, side by side; returns the root's name."""
        stored: dict[Ref, bytes] = self.runtime.run(
            self.group.put_index(base, segments, make_root, generation=base.gen)
        )
        self.db.put_objects((ref.hash, META_KIND, data) for ref, data in stored.items())
        return list(stored)[-1]

    @contextlib.contextmanager
    def preparing(self, base: State) -> Iterator[None]:
        """Begins to agree on the version after `base` while the last of a push is stored. `propose` goes on."""
        prepared = self.runtime.start(self.group.prepare(base))
        try:
            yield
        finally:
            prepared.exception()  # waits: one task at a time looks at logs. What failed, `propose` meets again

    def proposing(self, base: State, change: Change) -> Task:
        """The task of `propose`, for who waits for it elsewhere, and then remembers what was decided."""
        return self.group.propose(base, lambda: change, op_id=change.op_id)

    def propose(self, base: State, change: Change) -> Decided:
        """Has the version after `base` agreed. The journal stays until the caller has recorded the outcome."""
        try:
            decided: Decided = self.runtime.run(self.proposing(base, change))
        finally:
            self.note_standings()
        self.remember(decided.state)
        return decided

    def settle_journal(self, latest: State | None = None) -> int | None:
        """The version that an interrupted push was agreed as, if it was; the folder is then at that version.

        `latest`: the newest state, where it was asked for already.
        """
        data = self.db.get(JOURNAL_KEY)
        if data is None:
            return None
        journal = local_value(decode_journal, data)
        latest = latest or self.ask_newest()
        if latest.v < journal.v and latest.era == journal.base.era:
            return None  # still open: whoever proposes that version next, this push for one, finishes it
        state = self.agreed_as(journal, latest)
        if state is not None and state.epoch != journal.base.epoch:
            self.group.unfenced.append((journal.base, state))
            self.follow_keys(latest)
        if state is not None and journal.base.hash == self.base_state().hash:
            self.adopt(state)
        else:
            self.db.set(JOURNAL_KEY, None)
        return journal.v if state is not None and state.master != journal.base.master else None

    def agreed_as(self, journal: Journal, latest: State) -> State | None:
        """The state that a journalled proposal was decided as; None if it was not, or `latest` is not so far yet."""
        try:
            agreed: bool | None = self.runtime.run(self.group.find_op(latest, journal))
        except DamagedError:  # so long ago that no backend of that time is left: what differs here is merged as any is
            return None
        return self.runtime.run(self.group.state_at(latest, journal.v)) if agreed else None

    def adopt(self, state: State) -> None:
        """Takes an own push that had been agreed unnoticed as what the folder is at.

        The agreed tree is what stood here then: what changed since is a change on top of it, not a conflict with it.
        """
        with self.db.transaction():
            if state.master != self.base_state().master:  # else it was a change of keys or devices, and holds no files
                self.drop_kept()
            self.db.set(BASE_KEY, state.encode())
            self.db.set(JOURNAL_KEY, None)

    def drop_kept(self) -> None:
        """Forgets what merges had staged: an agreed version holds it now."""
        staged = [i for i, _, _ in self.db.staged()]
        self.note_agreed(staged)  # small texts: their contents are their blobs
        self.db.set(KEPT_KEY, None)
        self.db.clear_staged(staged)

    def note_agreed(self, contents: Iterable[bytes]) -> None:
        """Notes that the tree of a decided version holds these contents: what was replaced of them may go (D8)."""
        self.db.put_objects((content, META_KIND, AGREED_MARK) for content in contents)

    def note_replaced(self, tree: Mapping[bytes, Entry]) -> None:
        """The same, of what lies among the replaced files, where this tree, which is decided, holds it."""
        if replaced := {r.content for r in self.db.replaced()}:
            self.note_agreed(replaced & {e.content for e in tree.values()})

    def config_of(self, state: State) -> Config:
        """The config that a decided state names."""
        return decode_config(self._cached([(state.config, self.group.get_const(state.config))])[0])

    def devices_of(self, state: State) -> DeviceSet:
        """The device set that a decided state names."""
        return decode_device_set(
            self._cached([(state.devices, self.group.get_const(state.devices))])[0], self.keys.ns_id
        )

    def after_commit(self, base: State, state: State) -> None:
        """Tells the others, as far as backends take it: this device's head, and every now and then a hint."""
        backends = sorted(self.names.values())
        head = self.group.write_head(state, head=state.master, prev=base.master, backends=backends)
        with contextlib.suppress(BackendError, NoQuorumError):
            self.runtime.run(together({"head": head, "hint": self.group.write_hint(base, state)}))
        if state.v > LOGS_KEPT:
            self._bound_logs(state)

    def _bound_logs(self, state: State) -> None:
        """This push's share in deleting logs that are long past (CONSENSUS 1.11)."""
        progress = decode_progress(self.db.get(FLOORS_KEY))
        with contextlib.suppress(BackendError, DamagedError, NoQuorumError):
            self.runtime.run(self.group.bound_logs(state, progress, self.wall_ns() / 1e9))
        self.db.set(FLOORS_KEY, progress.encode())

    def settle_replaced(self) -> list[Conflict]:
        """Drops or brings back what checkouts replaced, where that is certain now (D8)."""
        if not self.db.replaced():
            return []
        agreed = self.base()
        contents = self.contents(agreed)

        def known(content: bytes, size: int, path: bytes) -> bool:
            # The index is not asked: it may name what a push read, packed, and found gone before it was agreed.
            if size == 0 or self.db.get_object(content) == AGREED_MARK:
                return True
            return content in self._agreed_contents(agreed, contents)

        def hash_file(fd: int) -> bytes:
            hasher = self.ids.content()
            while piece := self.tree.disk.read_next(fd, 1 << 20):
                hasher.update(piece)
            return hasher.digest()

        return settle(self.tree, self.db, self.tree.clock_ns(), known, hash_file, agreed.state.v)

    def _agreed_contents(self, agreed: Agreed, contents: Contents) -> set[bytes]:
        """Content hashes of the agreed tree."""
        if self._known_contents is None or self._known_contents[0] != agreed.state.hash:
            tree = self.flat(agreed, contents)
            self._known_contents = (agreed.state.hash, {e.content for e in tree.values()})
        return self._known_contents[1]


def local_value(decode: Callable[[bytes], T], data: bytes) -> T:
    """What this device wrote itself. `WorkspaceError` when it does not decode."""
    try:
        return decode(data)
    except FormatError as e:
        raise _damaged(e.message) from e


def _damaged(why: str) -> WorkspaceError:
    return WorkspaceError(
        f"the local state in .metasync is damaged: {why}",
        next_step="Clone the workspace into a new folder, and bring over what you had not pushed.",
    )


def together(tasks: Mapping[str, Task]) -> Task:
    """All tasks side by side; their results by key."""
    return (yield Gather(tasks))
