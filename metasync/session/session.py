"""What every operation of an open workspace works with: built once by `workspace.py`, used by pull, push, check, log.

Also the one place that knows how agreed states become configs, indexes and trees. Nothing here prints or prompts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Final

from metasync.backends.registry import digest_kind
from metasync.checkout.trash import settle
from metasync.config import NO_LIMIT, Config, decode_config
from metasync.consensus import ZERO_HASH, Ref, State
from metasync.errors import MetaSyncError, NoQuorumError, UnreachableError
from metasync.events import Notice
from metasync.keys.device_set import DeviceSet, decode_device_set
from metasync.local import state_keys
from metasync.local.state_keys import ERA_KEY, PARTS_KEY, PLAN_KEY, REPLACED, UNFINISHED_KEY, Conflict
from metasync.objects import walk
from metasync.objects.chunker import Chunker, SizeClass
from metasync.objects.ids import Ids
from metasync.objects.model import Entry, ObjectKind, Snapshot
from metasync.objects.snapshot import decode_snapshot
from metasync.runtime.effects import Task
from metasync.session import eras
from metasync.session.agreement import AGREED_MARK, LOOK_S, META_KIND, Seat, together
from metasync.store import index as pack_index
from metasync.store.index import Index, IndexRoot, IndexSegment, RootItem
from metasync.store.packs import PackFormat, WorkspacePackKeys
from metasync.transfer.contents import Contents
from metasync.transfer.copies import Transfer, transfer_of
from metasync.transfer.estimates import Estimates
from metasync.worktree.ingest import Ingest, Sink

ESTIMATES_KEY: Final = state_keys.ESTIMATES_KEY.holding(Estimates.encode, Estimates.decode)
SEGMENTS_BYTES: Final = 16 << 20  # of an index that are fetched together: those of 400,000 files, and held twice
AHEAD_OBJECTS_MAX: Final = (
    50_000  # of an index: a clone of more is hardly shorter for a head start, and must save memory
)


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
class Session(Seat):
    """An open workspace, with all that its agreed states name."""

    _segments: dict[bytes, IndexSegment] = field(default_factory=dict)
    _along: dict[bytes, bytes] = field(default_factory=dict)  # of `Contents`
    _known_contents: tuple[bytes, set[bytes]] | None = None
    _loaded: tuple[State, Agreed] | None = None  # what was loaded last, by the state that names it
    _is_ahead: bool = False  # packs were asked for before they were wanted

    @classmethod
    def of(cls, seat: Seat) -> Session:
        """The session of an open workspace; its seat is not to be used beside it."""
        return cls(**{f.name: getattr(seat, f.name) for f in fields(Seat)})

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
            md5=any(digest_kind(b.scheme) == "md5" for b in c.backends if b.storage),
        )

    @cached_property
    def transfer(self) -> Transfer:
        names = {**self.former, **self.names}
        made = transfer_of(self.config, self.previous, names, self.form, self.ids.of, self.estimates)
        made.down.update(self.out)
        return made

    def _outdate(self, *names: str) -> None:
        older = self.__dict__.get("transfer")
        for name in names:
            self.__dict__.pop(name, None)
        if older is not None and "transfer" in names:
            self.transfer.down.update(older.down)

    def _leave_out(self, name: str, why: UnreachableError) -> None:
        super()._leave_out(name, why)
        self.transfer.down.setdefault(name, why)

    @cached_property
    def estimates(self) -> Estimates:
        """What the lines to the backends bear, from earlier runs on."""
        return self.db.get(ESTIMATES_KEY) or Estimates()

    def keep_estimates(self) -> None:
        """Keeps what was learned of the lines for the next run."""
        if "estimates" in self.__dict__:
            self.db.update(ESTIMATES_KEY, self.estimates)

    # --- keys

    # --- agreed states

    def base(self) -> Agreed:
        """What this folder is at, loaded. A clone that brought no tree yet is at the empty one, with an empty index."""
        if not self.db.has(UNFINISHED_KEY):
            return self.load(self.base_state())
        state = self.base_state()
        return Agreed(state, self.config_of(state), self.devices_of(state), IndexRoot(), Index(), None)

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
        """The state to push on, and whether it was asked for: an owner need not ask (consensus.md, rule 2.1)."""
        state = self.newest_state()
        if not self.group.owns(state):
            return self.newest(), True
        self.group.forget_heard()
        return self.load(state), False

    def newest_seen(self) -> Agreed:
        """The newest state that any reachable backend proves decided; there may be newer ones."""
        return self.load(self.runtime.run(self.group.newest_seen(self.newest_state(), deadline_s=LOOK_S)))

    def load(self, state: State) -> Agreed:
        """Loads what a decided state names; from the local cache where it can. `ExcludedError`: it is not for us."""
        self.follow_keys(state)
        named = eras.named_by(self.db.get(ERA_KEY), state)
        if self._loaded is not None and self._loaded[0] == named and self._loaded[1].state == state:
            return self._loaded[1]
        config, devices = self._cached([(d, self.group.get_const(d)) for d in (named.config, named.devices)])
        root = IndexRoot()
        if named.index.hash != ZERO_HASH:
            root = pack_index.decode_root(self._root(named))
        index = self._index(root)
        snapshot = None
        if state.master != ZERO_HASH:
            contents = self._contents(index)
            contents.may_begin = self._wants_all(index)
            snapshot = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [state.master])[state.master])
            if contents.has_begun:
                contents.begin_ahead()
        device_set = decode_device_set(devices, self.keys.ns_id)
        agreed = Agreed(state, decode_config(config), device_set, root, index, snapshot)
        self._loaded = named, agreed
        return agreed

    def _wants_all(self, index: Index) -> bool:
        """Whether a clone that has brought nothing yet is about to want all there is. Once in a session."""
        noted = [self.db.has(key) for key in (UNFINISHED_KEY, PARTS_KEY, PLAN_KEY)]
        wants = not self._is_ahead and noted == [True, False, False] and index.places <= AHEAD_OBJECTS_MAX
        self._is_ahead |= wants
        return wants

    def _root(self, state: State) -> bytes:
        """A state's index root; the segments that it is said to name anew come with it, if they do."""
        known = self.db.get_objects([ref.hash for ref in self.group.added(state)])
        ahead = {ref: _if_there(self.group.get_meta(ref)) for ref in self.group.added(state) if ref.hash not in known}
        tasks = {"root": self.group.get_meta(state.index), **{ref.hash.hex(): task for ref, task in ahead.items()}}
        if (data := self.db.get_object(state.index.hash)) is not None:
            tasks.pop("root").close()
        got: dict[str, bytes | None] = self.runtime.run(together(tasks)) if tasks else {}
        found = {state.index.hash if key == "root" else bytes.fromhex(key): d for key, d in got.items()}
        self.db.put_objects((digest, META_KIND, d) for digest, d in found.items() if d is not None)
        out = data if data is not None else found[state.index.hash]
        assert out is not None
        return out

    def _index(self, root: IndexRoot) -> Index:
        """The index of this root. Segments that were opened before are opened again when one is asked for something.

        One at a time: of a million objects they have forty megabytes before they are opened.
        """
        missing = {i.ref.hash for i in root.items}
        missing -= self.db.objects_there(missing)
        for some in together_up_to(SEGMENTS_BYTES, [i for i in root.items if i.ref.hash in missing]):
            self._cached([(i.ref.hash, self._meta_of(i)) for i in some])
        opened = [self._segment_of(i) for i in root.items] if missing else []
        return Index(opened if missing else lambda: [self._segment_of(i) for i in root.items])

    def _meta_of(self, item: RootItem) -> Task:
        return self.group.get_meta(Ref(*item.ref))

    def _segment_of(self, item: RootItem) -> IndexSegment:
        if item.ref.hash in self._segments:
            return self._segments[item.ref.hash]
        return self._segment(item.ref.hash, self._cached([(item.ref.hash, self._meta_of(item))])[0])

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
        return self._contents(agreed.index)

    def _contents(self, index: Index) -> Contents:
        return Contents(index, self.transfer, self.db, self.runtime, along=self._along)

    def flat(self, agreed: Agreed, contents: Contents | None = None) -> dict[bytes, Entry]:
        """The whole tree of an agreed state."""
        return (contents or self.contents(agreed)).walk(walk.flatten(agreed.tree_root))

    # --- agreeing

    @contextlib.contextmanager
    def putting_index(
        self, base: State, segments: Sequence[Callable[[], bytes]], make_root: Callable[[Sequence[Ref]], bytes]
    ) -> Iterator[Callable[[], list[Ref]]]:
        """Stores segments and the root that names them on enough acceptors, beside what the caller does, who gets what
        waits for it and returns their names, the root's last. Each segment is asked for twice, also in other threads.
        """
        with self.runtime.beside(self.group.put_index(base, segments, make_root, generation=base.gen)) as put:

            def stored() -> list[Ref]:
                refs, root = put()
                parts = chain((segment() for segment in segments), [root])
                self.db.put_objects((ref.hash, META_KIND, data) for ref, data in zip(refs, parts, strict=True))
                return list(refs)

            yield stored

    def note_replaced(self, tree: Mapping[bytes, Entry]) -> None:
        """The same, of what lies among the replaced files, where this tree, which is decided, holds it."""
        if replaced := {r.content for r in self.db.records(REPLACED)}:
            self.note_agreed(replaced & {e.content for e in tree.values()})

    def settle_replaced(self) -> list[Conflict]:
        """Drops or brings back what checkouts replaced, where that is certain now (architecture.md, D8)."""
        if not self.db.records(REPLACED):
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


def together_up_to(size_bytes: int, items: Iterable[RootItem]) -> Iterator[list[RootItem]]:
    """Index segments, as many at a time as have so many bytes, or one."""
    some: list[RootItem] = []
    for item in items:
        if some and sum(i.size for i in some) + item.size > size_bytes:
            yield some
            some = []
        some.append(item)
    if some:
        yield some


def _if_there(task: Task) -> Task:
    """The same, or None where it fails."""
    try:
        return (yield from task)
    except MetaSyncError:
        return None
