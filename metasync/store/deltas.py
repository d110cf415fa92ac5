"""Which places of a blob are to be read, where some are deltas (format.md, 5.8). Pure.

The depth of a blob is the least of all its places. A delta is read only if its base has a place of less depth, so a
chain ends, whatever an index says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from metasync.errors import FormatError
from metasync.store.index import Index, PackId, PackRecord
from metasync.store.pack_format import DELTA, DEPTH_MAX, WHOLE, Delta, Located, delta_at, has_deltas

Place: TypeAlias = tuple[PackRecord, Located]
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


def needed_bases(index: Index, packs: Iterable[PackRecord], needed: Callable[[bytes], bool]) -> Iterator[bytes]:
    """The bases of deltas in these packs by which needed blobs are read, each as often as it is one."""
    for record, located in _read_deltas(index, packs, needed):
        yield delta_at(record.tags, located).base


def without_base(
    index: Index, packs: Iterable[PackRecord], needed: Callable[[bytes], bool]
) -> Iterator[tuple[PackId, bytes]]:
    """The needed blobs that are read as deltas of what is not needed, and the packs of these deltas."""
    for record, located in _read_deltas(index, packs, needed):
        if not needed(delta_at(record.tags, located).base):
            yield record.id, located.id


def _read_deltas(index: Index, packs: Iterable[PackRecord], needed: Callable[[bytes], bool]) -> Iterator[Place]:
    for record in packs:
        if has_deltas(record.tags):
            for o in index.inside(record):
                if o.encoding == DELTA and needed(o.id) and is_read(index, record, o):
                    yield record, o


def is_read(index: Index, record: PackRecord, located: Located) -> bool:
    """Whether a place is one of the least depth of its object: what has none of these is not relied on."""
    if located.encoding == WHOLE:
        return True
    depth = depth_at((record, located))
    return depth < UNREADABLE and depth == depth_of(index, located.id)


def dangling(index: Index) -> dict[PackId, PackRecord]:
    """The packs with deltas that cannot be opened, as the index names nothing that they are made of."""
    chains = Chains(index.find)
    return {
        record.id: record
        for record in index.packs().values()
        if has_deltas(record.tags)
        and any(o.encoding == DELTA and chains.of(o.id) is None for o in index.inside(record))
    }
