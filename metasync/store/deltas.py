"""Which places of a blob are to be read, where some are deltas (format.md, 5.8). Pure.

The depth of a blob is the least of all its places. A delta is read only if its base has a place of less depth, so a
chain ends, whatever an index says.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from metasync.errors import FormatError
from metasync.objects.model import ID_BYTES
from metasync.store.index import OBJECT, Index, IndexSegment, PackId, PackRecord
from metasync.store.pack_format import DELTA, DEPTH_MAX, WHOLE, Delta, Located, delta_at, has_deltas

Place: TypeAlias = tuple[PackRecord, Located]
KNOWN_MAX: Final = 10_000  # chains that are kept at hand: some 10 MB
UNREADABLE: Final = DEPTH_MAX + 1  # what is encoded in a way of a later version, or has no row


class Link(NamedTuple):
    """A blob of a chain: where it is read. `delta`: what it is made of; None for the whole one at the end."""

    record: PackRecord
    located: Located
    delta: Delta | None = None


def depth_at(place: Place) -> int:
    """The depth that a place says; `UNREADABLE` where it can say none."""
    record, located = place
    if located.encoding == WHOLE:
        return 0
    try:
        return delta_at(record.tags, located).depth if located.encoding == DELTA else UNREADABLE
    except FormatError:
        return UNREADABLE


def depth_of(index: Index, object_id: bytes) -> int | None:
    """The depth of a blob; None where no place of it can be read by this program, or there is none."""
    depth = min(map(depth_at, index.find(object_id)), default=UNREADABLE)
    return None if depth == UNREADABLE else depth


def least(places: Sequence[Place]) -> Sequence[Place]:
    """Those of the least depth."""
    if all(located.encoding == WHOLE for _, located in places):
        return places
    depths = [depth_at(p) for p in places]
    return [p for p, depth in zip(places, depths, strict=True) if depth == min(depths)]


class Chains:
    """Finds what has to be read for a blob. `places`: of a blob, in the order of preference.

    `is_here`: whether the bytes of a base are at hand; a chain ends above it.
    """

    def __init__(
        self, places: Callable[[bytes], Sequence[Place]], is_here: Callable[[bytes], bool] = lambda _: False
    ) -> None:
        self._places = places
        self._is_here = is_here
        self._known: dict[tuple[bytes, int], tuple[Link, ...] | None] = {}

    def of(self, object_id: bytes, below: int = UNREADABLE) -> tuple[Link, ...] | None:
        """The blob's own place, then that of its base and so on; None: it cannot be had. `below`: of less depth."""
        key = object_id, below
        if key not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = self._find(object_id, below)
        return self._known[key]

    def _find(self, object_id: bytes, below: int) -> tuple[Link, ...] | None:
        places = self._places(object_id)
        for depth, record, located in sorted(((depth_at(p), *p) for p in places), key=lambda p: p[0]):
            if depth >= below:
                return None
            if depth == 0:
                return (Link(record, located),)
            delta = delta_at(record.tags, located)
            rest = () if self._is_here(delta.base) else self.of(delta.base, depth)
            if rest is not None:
                return (Link(record, located, delta), *rest)
        return None


def are_in(index: Index) -> bool:
    """Whether an index names any delta: asked of a column of its rows, so that it costs next to nothing."""
    return any(
        kind >> 4 == DELTA for s in index.segments for part in s.parts() for kind in {*part[ID_BYTES :: OBJECT.size]}
    )


class Ids(Protocol):
    """A set of ids, of which the number is known."""

    def __contains__(self, object_id: object) -> bool: ...
    def __len__(self) -> int: ...
    def add(self, object_id: bytes) -> None: ...
    def part(self) -> Part:
        """An empty set for some of these."""


class Part(Protocol):
    """Some of a set of ids: it grows."""

    def __contains__(self, object_id: object) -> bool: ...
    def __len__(self) -> int: ...
    def add(self, object_id: bytes) -> None: ...


class Needed:
    """What versions need, and `bases`: what else that is made of."""

    def __init__(self, marked: Ids, bases: Ids) -> None:
        self._marked = marked
        self._bases = bases

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._marked or object_id in self._bases

    def __len__(self) -> int:
        return len(self._marked) + len(self._bases)

    def add(self, object_id: bytes) -> None:
        self._marked.add(object_id)

    def part(self) -> Part:
        return NeededPart(self._marked, self._marked.part(), self._bases.part())


class NeededPart:
    """Some of what is needed."""

    def __init__(self, marked: Ids, of_marked: Part, of_bases: Part) -> None:
        self._marked = marked
        self._parts = of_marked, of_bases

    def __contains__(self, object_id: object) -> bool:
        return any(object_id in part for part in self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(self, object_id: bytes) -> None:
        self._parts[object_id not in self._marked].add(object_id)


def with_bases(index: Index, marked: Ids, bases: Ids) -> Ids:
    """`marked`, and all that its deltas of the least depth are made of. `bases`: an empty set, which gets that."""
    for record, located in _marked_deltas(index, marked):
        todo = [*_bases_at([(record, located)])]
        while todo:
            base = todo.pop()
            if base not in marked and base not in bases:
                bases.add(base)
                todo += _bases_at(least(index.find(base)))
    return Needed(marked, bases) if len(bases) else marked


def _marked_deltas(index: Index, marked: Container[bytes]) -> Iterator[Place]:
    """The places of the least depth of marked blobs that are deltas."""
    for record in index.packs().values() if are_in(index) else ():
        if has_deltas(record.tags):
            for o in index.inside(record):
                if o.encoding == DELTA and o.id in marked and depth_at((record, o)) == depth_of(index, o.id):
                    yield record, o


def _bases_at(places: Iterable[Place]) -> list[bytes]:
    return [delta_at(r.tags, o).base for r, o in places if o.encoding == DELTA and depth_at((r, o)) < UNREADABLE]


def is_relied_on(index: Index, record: PackRecord, located: Located, needed: Container[bytes]) -> bool:
    """Whether a place of a needed object may be the only one that is kept: it is whole, or of the least depth and made
    of what is needed. What only a later version can read is relied on as it is."""
    if located.encoding == WHOLE:
        return True
    depth = depth_of(index, located.id)
    if depth is None:
        return True
    return depth_at((record, located)) == depth and delta_at(record.tags, located).base in needed


def moved_as(index: Index, object_id: bytes, needed: Container[bytes]) -> Link | None:
    """The delta that a needed blob is packed anew as, bytes and row; None: it is packed whole."""
    places = index.find(object_id)
    if all(o.encoding != WHOLE for _, o in places):
        for record, o in places:
            if depth_at((record, o)) < UNREADABLE and is_relied_on(index, record, o, needed):
                return Link(record, o, delta_at(record.tags, o))
    return None


def are_kept(index: Index, segments: Iterable[IndexSegment], needed: Container[bytes]) -> bool:
    """Whether the deltas of these segments are made of what is needed, and of less depth in this index."""
    for record, o in (place for s in segments if any(has_deltas(p.tags) for p in s.packs) for place in s):
        if o.encoding == DELTA:
            delta = delta_at(record.tags, o)
            depth = depth_of(index, delta.base)
            if delta.base not in needed or depth is None or depth >= delta.depth:
                return False
    return True


def have_bases(index: Index, rows: Iterable[Delta]) -> bool:
    """Whether all that these deltas are made of is in the index, and of less depth there."""
    return all((depth := depth_of(index, row.base)) is not None and depth < row.depth for row in {*rows})


class Given:
    """The objects that an index gives: what it names and, of deltas, what they are made of. `is_here`: bases that are
    at hand."""

    def __init__(self, index: Index, is_here: Callable[[bytes], bool] = lambda _: False) -> None:
        self._index = index
        self._is_here = is_here

    def __contains__(self, object_id: bytes) -> bool:
        places = self._index.find(object_id)
        if all(o.encoding == DELTA for _, o in places):
            return bool(places) and Chains(self._index.find, self._is_here).of(object_id) is not None
        return True


def dangling(index: Index, is_here: Callable[[bytes], bool] = lambda _: False) -> dict[PackId, PackRecord]:
    """The packs with deltas of blobs that cannot be opened, as the index names nothing that they are made of.

    `is_here`: blobs that are at hand, and need not be opened.
    """
    chains = Chains(index.find, is_here)
    return {
        record.id: record
        for record in (index.packs().values() if are_in(index) else ())
        if has_deltas(record.tags)
        and any(o.encoding == DELTA and not is_here(o.id) and chains.of(o.id) is None for o in index.inside(record))
    }
