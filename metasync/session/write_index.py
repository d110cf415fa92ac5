"""The pack indexes of agreed versions: read from the local cache or the backends, and written (architecture.md, D4).

An index is a root that lists segments. Segments never change, so versions share most of theirs. They are merged tier by
tier, so that a root lists few (`docs/design/format.md`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.consensus import NOTHING, ZERO_HASH, Ref, State
from metasync.consensus.records.entry import RIDING_BYTES_MAX
from metasync.consensus.records.state import hint_is_due
from metasync.consensus.riding import find as find_in_logs
from metasync.errors import CANNOT_BE_READ, DamagedError, FormatError, MetaSyncError, NoQuorumError, WorkspaceError
from metasync.local.spill import Spool, Spooled
from metasync.local.state_keys import META_KIND
from metasync.runtime.effects import Task, together
from metasync.store import index as pack_index
from metasync.store.index import Index, IndexRoot, IndexSegment, RootItem
from metasync.store.pack_format import Packed

if TYPE_CHECKING:
    from metasync.consensus import Group
    from metasync.local.state import LocalDb
    from metasync.runtime.tasks import Runtime
    from metasync.session.session import Session
    from metasync.store.retained import Retained

HELD_BYTES_MAX: Final = 64 << 20  # of open segments in memory: those of 1,000,000 files; more lie in temporary files
HELD_BYTES_LEAST: Final = 1 << 20  # what is smaller is worth no file: a tier has few such segments
KEPT_BYTES_MAX: Final = 8 << 20  # of open segments from one operation to the next: those of 20,000 small pushes
INLINE_BYTES_MAX: Final = 1024  # a segment of a small push: it stands in the root, and needs no object of its own
NONE: Final[Mapping[bytes, Ref]] = {}
EMPTY: Final[Mapping[bytes, Decoded]] = {}
SEGMENTS_BYTES: Final = 16 << 20  # of an index that are fetched together: those of 400,000 files, and held twice


class Decoded(NamedTuple):
    """A segment of an index that was read, with the size of what it was read from, in bytes."""

    segment: IndexSegment
    size: int


class AgreedIndexes:
    """Reads and writes pack indexes for one session. A segment is decoded once. `kept`: what `to_keep` of the session
    before gave."""

    def __init__(
        self, db: LocalDb, runtime: Runtime, group: Group, session: Session, kept: Mapping[bytes, Decoded] = EMPTY
    ) -> None:
        self._db = db
        self._runtime = runtime
        self._group = group
        self._session = session
        self._segments = dict(kept)  # by digest
        self._held_bytes = 0

    # --- reading

    def of_state(self, state: State) -> tuple[IndexRoot, Index]:
        """The index that a decided state names."""
        return self._named(state.index, state)

    def of_state_or_newer(self, state: State, newest: Callable[[], State]) -> tuple[IndexRoot, Index]:
        """The same, and the newest index where that one is gone: a collector deletes what nothing names any more.

        `newest` asks for the newest state. What `of_state` raised, where that does not help.
        """
        try:
            return self.of_state(state)
        except (*CANNOT_BE_READ, NoQuorumError) as e:
            try:
                newer = newest()
                if newer.index != state.index:
                    return self.of_state(newer)
            except MetaSyncError:
                pass
            raise e

    def opened(self, ref: Ref) -> tuple[IndexRoot, Index]:
        """The index of this name, with its root."""
        return self._named(ref)

    def names_of(self, ref: Ref) -> set[Ref]:
        """The records that an index consists of: its roots, and the segments that have records of their own.

        Of a decided version whose index rides, once that was settled: before, it is in logs alone.
        """
        if ref.hash == ZERO_HASH:
            return set()
        root = self._whole(self._db.get_object(ref.hash) or self._brought({ref.hash: ref})[ref.hash], {})
        return {ref, *(Ref(*one) for one in root.before), *(Ref(*item.ref) for item in root.apart)}

    def of(self, ref: Ref) -> Index:
        """The index of this name."""
        return self._named(ref)[1]

    def at_hand(self, ref: Ref) -> Index | None:
        """The index of this name, if the local cache holds all of it. Asks nobody."""
        if ref.hash == ZERO_HASH:
            return Index()
        root = root_at_hand(self._db, ref.hash)
        if root is None or self._missing(root):
            return None
        return Index(tuple(self._segment(i) for i in root.items))

    def retained(self, state: State) -> Retained:
        """Which versions are dropped, as a decided state says. One of `CANNOT_BE_READ`, with the version that brought
        the list and who wrote it."""
        try:
            return self.list_of(state)
        except CANNOT_BE_READ as e:
            from metasync.session import unreadable

            raise unreadable.of_list(self._session, state, e) from e

    def list_of(self, state: State) -> Retained:
        """The same. `FormatError` also for a list that drops versions which came after it: what others push later would
        be no part of history."""
        from metasync.store.retained import Retained, decode_retained

        if state.retained.hash == ZERO_HASH:
            return Retained()
        found = decode_retained(self._fetched([state.retained])[0])
        if found.dropped and self._is_ahead(state, found.dropped[-1].last):
            raise FormatError(f"retained list: it drops version {found.dropped[-1].last}, which was not there yet")
        return found

    def _is_ahead(self, state: State, v: int) -> bool:
        """Whether the list that a state names was there at version `v`, as far as the chain of states can be read."""
        if v >= state.v:
            return True
        try:
            earlier: State = self._runtime.run(self._group.state_at(state, v))
        except MetaSyncError:
            return False
        return earlier.retained == state.retained

    def _named(self, ref: Ref, of: State | None = None) -> tuple[IndexRoot, Index]:
        """Reads an index by its name. One that comes from the backends is opened whole before its root is cached: so no
        folder comes to be at a version whose index cannot be read.

        `of`: a state that names it, and may say which segments it added.
        """
        if ref.hash == ZERO_HASH:
            return IndexRoot(), Index()
        rides = of is not None and of.index_rides and root_at_hand(self._db, ref.hash) is None
        data = None if rides else self._db.get_object(ref.hash)
        added = self._group.added(of) if of is not None else ()
        known = self._db.get_objects([r.hash for r in added])
        wanted = {r.hash: r for r in added if r.hash not in known}
        if data is not None:
            self._got({digest: _if_there(self._group.get_meta(r)) for digest, r in wanted.items()})
            root = self._whole(data, {}, of)
            return root, self._of_root(root)
        if of is not None and rides:
            known_here = lambda name: root_at_hand(self._db, name) is not None  # noqa: E731
            roots: dict[bytes, bytes] = self._runtime.run(self._group.get_roots(of, known_here))
        else:
            roots = {ref.hash: self._root(ref, of, (), wanted)}
        root = self._whole(roots[ref.hash], roots, of)
        index = self._of_root(root, whole=True)
        self._db.put_objects((digest, META_KIND, data) for digest, data in roots.items())
        return root, index

    def _whole(self, data: bytes, roots: dict[bytes, bytes], of: State | None = None) -> IndexRoot:
        """The index root in these bytes, with what those hold that it goes on from. `roots`: such, by name; those that
        had to be brought are added. `of`: the state that names it."""

        def load(ref: pack_index.Ref) -> bytes:
            if ref.hash not in roots:
                cached = self._db.get_object(ref.hash)
                roots[ref.hash] = cached if cached is not None else self._root(Ref(*ref), of, roots)
            return roots[ref.hash]

        return pack_index.joined(pack_index.decode_root(data), load)

    def _root(self, ref: Ref, of: State | None, way: Collection[bytes], beside: Mapping[bytes, Ref] = NONE) -> bytes:
        """Reads a root from the backends, for the index of the state `of`, from which these roots lead to it.

        Where it is no object, logs may have it: who kept the index of a version may have left it there (rule 1.14).
        """
        try:
            return self._brought({ref.hash: ref}, beside)[ref.hash]
        except DamagedError:
            if of is None:
                raise
            m, way = self._group.participant, {*way, of.index.hash}
            there = self._runtime.run(m.alone(find_in_logs(m, self._group.enter, of, ref.hash, way)))
            if there is None:
                raise
            found: bytes = there
            return found

    def _of_root(self, root: IndexRoot, *, whole: bool = False) -> Index:
        """Makes the index of this root. Segments that are cached are opened when the index is first asked, or at once.

        One at a time: of a million objects they have forty megabytes before they are opened.
        """
        missing = self._missing(root)
        for some in _in_parts(i for i in root.items if i.ref.hash in missing):
            self._fetched([Ref(*i.ref) for i in some])
        if not (missing or whole):
            return Index(lambda: [self._segment(i) for i in root.items])
        return Index([self._segment(i) for i in root.items])

    def _missing(self, root: IndexRoot) -> Collection[bytes]:
        """The segments of an index that the local cache lacks, by hash."""
        named = {i.ref.hash for i in root.apart}
        return named - self._db.objects_there(named)

    def _segment(self, item: RootItem) -> IndexSegment:
        """The segment of a root's row. `FormatError` where the row says more or less of it than there is: what decides
        which segments are merged must be true, or a root grows until nobody can read the next one."""
        digest = item.ref.hash
        if digest not in self._segments:
            data = item.inline or self._fetched([Ref(*item.ref)])[0]
            segment = pack_index.decode_segment(data, partial(self._kept, Spool()))
            self._segments[digest] = Decoded(segment, len(data))
        segment, size = self._segments[digest]
        if (item.size, item.objects, item.packs) != (size, len(segment), len(segment.packs)):
            raise FormatError("index root: a segment that is not what its row says")
        return segment

    def to_keep(self, root: IndexRoot) -> dict[bytes, Decoded]:
        """The segments of an index that were decoded, by digest, for the next session: the small ones, up to
        `KEPT_BYTES_MAX` unpacked. To decode one takes thrice that for a moment, which stays in the process."""
        decoded = {i.ref.hash: self._segments[i.ref.hash] for i in root.items if i.ref.hash in self._segments}
        kept, left = dict[bytes, Decoded](), KEPT_BYTES_MAX
        for digest, one in sorted(decoded.items(), key=lambda item: item[1].segment.held_bytes):
            left -= one.segment.held_bytes
            if left < 0:
                break
            kept[digest] = one._replace(segment=replace(one.segment))  # without the maps of what was asked of it
        return kept

    def _kept(self, spool: Spool, data: bytes) -> Packed:
        """The tables of a segment where they are to lie: in memory, as long as there is room, else in its spool."""
        if len(data) < HELD_BYTES_LEAST or self._held_bytes + len(data) <= HELD_BYTES_MAX:
            self._held_bytes += len(data)
            return data
        return Spooled(spool, spool.put(data))

    def _fetched(self, refs: Sequence[Ref]) -> list[bytes]:
        """Reads roots and segments from the local cache, and all others from the backends at once."""
        have = self._db.get_objects([ref.hash for ref in refs])
        have.update(self._got({ref.hash: self._group.get_meta(ref) for ref in refs if ref.hash not in have}))
        return [have[ref.hash] for ref in refs]

    def _got(self, tasks: dict[bytes, Task]) -> dict[bytes, bytes]:
        """Runs these tasks, caches what they bring, and returns it by hash. Tasks that bring nothing are left out."""
        found = self._run(tasks)
        self._db.put_objects((digest, META_KIND, data) for digest, data in found.items())
        return found

    def _brought(self, roots: dict[bytes, Ref], beside: Mapping[bytes, Ref] = NONE) -> dict[bytes, bytes]:
        """Reads roots from the backends, which are not cached; and what may be had beside them, which is."""
        found = self._run(
            {digest: self._group.get_meta(ref) for digest, ref in roots.items()}
            | {digest: _if_there(self._group.get_meta(ref)) for digest, ref in beside.items()}
        )
        self._db.put_objects((digest, META_KIND, data) for digest, data in found.items() if digest not in roots)
        return found

    def _run(self, tasks: dict[bytes, Task]) -> dict[bytes, bytes]:
        if not tasks:
            return {}
        got = self._runtime.run(together({digest.hex(): task for digest, task in tasks.items()}))
        return {bytes.fromhex(digest): data for digest, data in got.items() if data is not None}

    # --- writing

    def store_retained(self, base: State, retained: Retained) -> Ref:
        """Stores a retained list for a state after `base` on enough acceptors. -> its name, `NOTHING` if empty."""
        if not retained:
            return NOTHING
        from metasync.store.retained import encode_retained

        data = encode_retained(retained)
        refs, _ = self._runtime.run(self._group.put_index(base, (), lambda _: data, generation=base.gen))
        self._db.put_objects([(refs[-1].hash, META_KIND, data)])
        return Ref(*refs[-1])

    def store(
        self, base: State, root: IndexRoot, segments: Sequence[IndexSegment], new: Iterable[IndexSegment]
    ) -> Ref | None:
        """Does what `storing` does, and waits. -> the new root's name; None if there is nothing new."""
        with self.storing(base, root, segments, new) as stored:
            return next(reversed(stored()), None)

    def replace(
        self, base: State, root: IndexRoot, segments: Sequence[IndexSegment], stays: Collection[int],
        new: Iterable[IndexSegment],
    ) -> list[Ref]:  # fmt: skip
        """Stores an index of some segments of that of `base`, by their numbers, and of new ones. -> the names of what
        is new, the root's last; of an index of nothing, `NOTHING`.
        """
        numbers = sorted(stays)
        added = iter(new)
        first = next(added, None)
        if first is None and numbers:  # a root is only written beside a segment: one is written again
            first = segments[numbers.pop()]
        if first is None:
            return [NOTHING]
        kept = root._replace(items=tuple(root.items[n] for n in numbers))
        all_new = chain([first], added)
        del first  # a large one is not held while it is stored
        with self.storing(base, kept, [segments[n] for n in numbers], all_new) as stored:
            return stored()

    @contextlib.contextmanager
    def storing(
        self, base: State, root: IndexRoot, segments: Sequence[IndexSegment], new: Iterable[IndexSegment], *,
        may_ride: bool = False,
    ) -> Iterator[Callable[[], Stored]]:  # fmt: skip
        """Stores an index with new segments on enough acceptors, beside what the caller does.

        `root` and `segments` are the index of `base`; full tiers are merged, and small ones stand in the root. Yields
        a function that waits and returns the new names, the root's last. Segments wait in a spool, so that no two are
        in memory. `may_ride`: what is small need not be stored, for the version's log entries carry it.
        """
        spool = Spool()
        fresh = dict(_unstored(spool, segment) for segment in new)
        if not fresh:
            yield Stored
            return
        may_ride = may_ride and len(root.before) < pack_index.ROOTS_MAX  # a version that a hint names may keep an index
        may_ride = may_ride and _may_ride(base, fresh)
        items = [*root.items, *fresh]
        while crowd := crowded(IndexRoot(tuple(items)), stores=not may_ride):
            merged = [
                pack_index.decode_segment(spool.get(fresh[i])) if i in fresh else segments[root.items.index(i)]
                for i in crowd
            ]
            item, place = _unstored(spool, merge(merged, final=len(crowd) == len(items)))
            items = [*(i for i in items if i not in crowd), item]
            fresh = {**{i: p for i, p in fresh.items() if i not in crowd}, item: place}

        if len(items) > pack_index.ROOT_SEGMENTS_MAX:
            raise WorkspaceError(
                f"the pack index would have {len(items):,} parts, more than a program reads; nothing was changed",
                next_step="`metasync gc` merges them.",
            )
        inside = {item: _inside(item, base, spool.get(p)) for item, p in fresh.items() if item.size <= INLINE_BYTES_MAX}
        apart = {item: place for item, place in fresh.items() if item not in inside}

        if may_ride and [*root.items, *inside] == items:  # nothing was merged
            data = pack_index.encode_root(pack_index.root_after(pack_index.Ref(*base.index), [*inside.values()]))
            if len(data) <= RIDING_BYTES_MAX:
                ref, riding = self._runtime.run(self._group.name_root(base, data, generation=base.gen))
                self._db.put_objects([(ref.hash, META_KIND, data)])
                yield lambda: Stored([ref], riding)
                return

        def make_root(refs: Sequence[Ref]) -> bytes:
            stored = {item: item._replace(ref=pack_index.Ref(*ref)) for item, ref in zip(apart, refs, strict=True)}
            named = (stored.get(item) or inside.get(item, item) for item in items)
            return pack_index.encode_root(IndexRoot(tuple(named), root.tags))

        parts = [partial(spool.get, place) for place in apart.values()]
        with self._runtime.beside(self._group.put_index(base, parts, make_root, generation=base.gen)) as put:

            def stored() -> Stored:
                refs, data = put()
                all_data = chain((part() for part in parts), [data])
                self._db.put_objects((ref.hash, META_KIND, d) for ref, d in zip(refs, all_data, strict=True))
                return Stored(refs)

            yield stored


class Stored(list[Ref]):
    """Names of what is new in an index, its root's last; empty if nothing is.

    `riding`: what the entries of the version carry, where that root is no object; else b"".
    """

    def __init__(self, refs: Iterable[Ref] = (), riding: bytes = b"") -> None:
        super().__init__(refs)
        self.riding = riding


def _may_ride(base: State, new: Iterable[RootItem]) -> bool:
    """Whether the index of the version after `base` may be in its log alone (consensus.md, rule 1.14), if nothing is
    merged. `new`: what it adds."""
    small = all(item.size <= INLINE_BYTES_MAX for item in new)
    return small and base.index != NOTHING and not hint_is_due(base.v + 1)


def root_at_hand(db: LocalDb, digest: bytes) -> IndexRoot | None:
    """The index root of this name with those that it goes on from, if the local cache holds all of them."""

    def load(ref: pack_index.Ref) -> bytes:
        if (data := db.get_object(ref.hash)) is None:
            raise LookupError
        return data

    try:
        return pack_index.joined(pack_index.decode_root(load(pack_index.Ref(0, digest))), load)
    except LookupError:
        return None


def _unstored(spool: Spool, segment: IndexSegment) -> tuple[RootItem, slice]:
    """Spools a segment; -> its item in the root, with a digest in the place of its name, and its place."""
    data = pack_index.encode_segment(segment)
    stand_in = pack_index.Ref(0, hashlib.sha256(data).digest())
    return RootItem(stand_in, len(data), len(segment), len(segment.packs)), spool.put(data)


def _inside(item: RootItem, base: State, data: bytes) -> RootItem:
    """The same item with the segment in it: its name is the digest that stood in for it."""
    return item._replace(ref=item.ref._replace(generation=base.gen), tags=((pack_index.INLINE_TAG, data),))


def _in_parts(items: Iterable[RootItem]) -> Iterator[list[RootItem]]:
    """Yields groups of segments of at most `SEGMENTS_BYTES`, or of one."""
    some: list[RootItem] = []
    for item in items:
        if some and sum(i.size for i in some) + item.size > SEGMENTS_BYTES:
            yield some
            some = []
        some.append(item)
    if some:
        yield some


def _if_there(task: Task) -> Task:
    """Runs a task; None if it fails."""
    try:
        return (yield from task)
    except MetaSyncError:
        return None


TIER_SEGMENTS_MAX = 8
MERGED_TIER_MAX = 4  # segments up to 8 MiB, of which six fit a merger; above, they stay as they are
LARGE_SEGMENTS_MAX = MERGED_TIER_MAX * TIER_SEGMENTS_MAX  # so beyond it one tier has more than its share
MERGED_BYTES_MAX = 48 << 20  # a merge makes no segment too large for a sealed record (64 MiB), with room for growth


def merge(segments: Sequence[IndexSegment], *, final: bool) -> IndexSegment:
    """Merges segments, the oldest first, into one. `final`: nothing older remains, so tombstones are dropped."""
    from metasync.store.collection import combined  # as a rule one push in eight merges

    dead = {t for s in segments for t in s.tombstones}
    tags = {tag: data for s in segments for tag, data in s.tags}
    return combined(segments, lambda pack: pack not in dead, None, () if final else dead, tuple(sorted(tags.items())))


def crowded(root: IndexRoot, *, stores: bool = False) -> tuple[RootItem, ...]:
    """Returns the segments of a root that are to be merged next; empty if none are.

    Small ones, once there are more than `TIER_SEGMENTS_MAX`: each root that is an object has them in it. `stores`: the
    next root is one, so that they are merged sooner, as soon as that makes a large one. Large ones, once there are more
    than `LARGE_SEGMENTS_MAX`, of the lowest tier that has more than its share, the oldest first: what is merged late is
    written seldom. Together they are small enough for a meta object.
    """
    tiers: dict[int, list[RootItem]] = {}
    for item in root.items:
        tiers.setdefault(item.tier, []).append(item)
    small = tiers.pop(0, [])
    if len(small) > TIER_SEGMENTS_MAX or (stores and sum(i.size for i in small) > pack_index.TIER_BYTES_BASE):
        return tuple(small)
    large = [tiers[tier] for tier in sorted(tiers) if tier <= MERGED_TIER_MAX]
    if sum(map(len, large)) <= LARGE_SEGMENTS_MAX:
        return ()
    full = next(items for items in large if len(items) > TIER_SEGMENTS_MAX)
    sizes = accumulate(i.size for i in full)
    return tuple(item for item, size in zip(full, sizes, strict=True) if size <= MERGED_BYTES_MAX)
