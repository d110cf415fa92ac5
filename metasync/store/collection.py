"""What of an index is still needed: which packs go, which are packed anew, and the index without them. Pure.

`marked` is the set of all objects that are needed (`objects.reach`). The index that comes of it names these and no
others: a file or a directory that it names has all its parts in it, so that a push may rely on what it finds there.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeAlias, overload

from metasync.codec import Tags, u32
from metasync.objects.model import ID_BYTES
from metasync.store.deltas import Ids, Part, are_in, is_relied_on
from metasync.store.index import PACK_AT, SORTED_TOGETHER, Index, IndexSegment, between, listed_in, rows_of
from metasync.store.listed_packs import LivePacks
from metasync.store.pack_format import DELTA, WHOLE, PackId, PackRecord, Packs, encode_record, has_deltas, unpack_id

UNUSED_SHARE: Final = 20  # packs are packed anew until no more than a twentieth of what is needed lies unused
MOSTLY_DEAD: Final = 2  # and in any case those of which less than half is needed
SORTED_AT_ONCE: Final = 1 << 16  # packs
_ALL: Final = 1 << 31  # what is needed of a pack, in these parts


Stays: TypeAlias = Callable[[PackId], bool]
"""Whether a pack stays in the index."""


@dataclass(frozen=True, slots=True)
class Use:
    """A pack, with how many bytes of its objects (unpacked) are needed from it, and how many there are."""

    record: PackRecord
    needed: int
    total: int

    @property
    def unused_bytes(self) -> int:
        """About how many bytes of the pack, as it is stored, are not needed."""
        return self.record.size * (self.total - self.needed) // self.total if self.total else 0


class Gone(Collection[PackId]):
    """The packs of an index that go: a byte for each that there is."""

    def __init__(self, uses: _Uses, flags: bytearray) -> None:
        self._uses = uses
        self._flags = flags
        self._count = sum(flags)

    def __contains__(self, pack: object) -> bool:
        return self._count > 0 and (n := self._uses.packs.number(pack)) is not None and bool(self._flags[n])

    def __iter__(self) -> Iterator[PackId]:
        return (record.id for n, record in self._uses.packs.each() if self._flags[n])

    def use_of(self, pack: PackId) -> Use | None:
        """What is needed of one of these; None: nothing."""
        n = self._uses.packs.number(pack)
        return self._uses.of(n) if n is not None and self._uses.needed[n] else None

    def __len__(self) -> int:
        return self._count


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the packs of an index.

    gone     the packs that go: the dead, in which nothing lies that is needed, and sparse ones
    sparse   of these the ones in which little does: that is packed anew
    unused   bytes in packs that stay which nothing needs
    missing  needed objects that no pack of the index has
    use_of   what is needed of a pack that goes, if anything is
    """

    gone: Collection[PackId] = ()
    sparse: Sequence[Use] = ()
    unused: int = 0
    missing: int = 0
    use_of: Callable[[PackId], Use | None] = lambda _: None


def plan(index: Index, marked: Ids, *, repack: bool = True, purge: bool = False, stay: Collection[PackId] = ()) -> Plan:
    """Decides over the packs of an index.

    `purge`: every pack that has anything that is not needed counts as sparse, and every one with deltas of that.
    `stay`: packs that stay in any case, as they are.
    """
    uses = _Uses(index)
    uses.count(marked)
    order, placed = uses.preferred(), marked.part()
    uses.count(marked, placed, order)
    purge = purge and repack
    held = {n for n in order if index.listed.record(n).id in stay} if stay else set[int]()
    freed = [n for n in uses.count_freed(marked, placed, order) if n not in held] if purge else []
    gone = bytearray(len(index.listed))
    for n in order:
        gone[n] = not uses.needed[n] and n not in held
    alive = array("I", (n for n in uses.preferred() if not gone[n]))
    unused = sum(uses.of(n).unused_bytes for n in alive)
    needed = sum(index.listed.record(n).size for n in alive) - unused
    sparse = array("I")
    for n in chain(freed, reversed(alive if repack else array("I"))):  # those of which the least is needed
        if n in held:
            continue
        use = uses.of(n)
        is_little = unused * UNUSED_SHARE <= needed and use.needed * MOSTLY_DEAD >= use.total
        if len(sparse) >= len(freed) and (use.needed == use.total or (is_little and not purge)):
            break
        if gone[n]:
            continue
        sparse.append(n)
        gone[n] = 1
        unused -= use.unused_bytes
    goes = Gone(uses, gone)
    return Plan(goes, Sparse(uses, sparse), unused, len(marked) - len(placed), goes.use_of)


class _Uses:
    """How much of each pack of an index is needed, by number: 16 bytes each."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.packs = LivePacks(index.listed, index.dead)
        self.needed = array("Q", bytes(8 * len(index.listed)))
        self.total = array("Q", bytes(8 * len(index.listed)))
        self._live = array("I")
        for n, record in self.packs.each():
            self._live.append(n)
            self.total[n] = sum(s.raw_bytes for s in record.segments)

    def count(self, marked: Container[bytes], placed: Part | None = None, order: Sequence[int] | None = None) -> None:
        """Counts what is needed. With `placed`, an object is needed of the first pack in `order` with it.

        A delta counts where it is relied on.
        """
        for n in self._live if order is None else order:
            needed = 0
            for o in self.index.inside_number(n):
                if (
                    o.id in marked
                    and (placed is None or o.id not in placed)
                    and (o.encoding == WHOLE or is_relied_on(self.index, self._record(n), o, marked))
                ):
                    needed += o.length
                    if placed is not None:
                        placed.add(o.id)
            self.needed[n] = needed

    def count_freed(self, marked: Container[bytes], placed: Part, order: Sequence[int]) -> list[int]:
        """Counts needed blobs that are deltas of what is not needed alone. -> their packs, to be packed anew whole."""
        out: list[int] = []
        for n in order if are_in(self.index) else ():
            record, needed = self._record(n), self.needed[n]
            for o in self.index.inside_number(n) if has_deltas(record.tags) else ():
                if o.encoding == DELTA and o.id in marked and o.id not in placed:
                    self.needed[n] += o.length
                    placed.add(o.id)
            if self.needed[n] != needed:
                out.append(n)
        return out

    def _record(self, n: int) -> PackRecord:
        return self.index.listed.record(n)

    def preferred(self) -> Sequence[int]:
        """The packs of which most is needed first, and of these the newest: the same on every device."""
        needed, total, last = self.needed, self.total, len(self.needed)
        keys = ((_ALL - min(_ALL, _ALL * needed[n] // max(total[n], 1))) << 32 | last - n for n in self._live)
        parts = []
        while some := array("Q", sorted(islice(keys, SORTED_AT_ONCE))):  # as values of Python's all take 44 bytes each
            parts.append(some)
        return array("I", (last - (key & 0xFFFFFFFF) for key in heapq.merge(*parts)))

    def of(self, n: int) -> Use:
        return Use(self._record(n), self.needed[n], self.total[n])


class Sparse(Sequence[Use]):
    """Packs that are packed anew, and what is needed of each: values that are made when they are asked for."""

    def __init__(self, uses: _Uses, numbers: Sequence[int]) -> None:
        self._uses = uses
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Use: ...
    @overload
    def __getitem__(self, at: slice) -> Sparse: ...
    def __getitem__(self, at: int | slice) -> Use | Sparse:
        if isinstance(at, slice):
            return Sparse(self._uses, self._numbers[at])
        return self._uses.of(self._numbers[at])


def to_pack(index: Index, plan: Plan, marked: Container[bytes]) -> Iterator[list[bytes]]:
    """What is packed anew: the needed objects of packs that go and that no pack that stays can be relied on for."""
    for use in plan.sparse:
        ids = dict.fromkeys(o.id for o in index.inside(use.record) if o.id in marked)
        yield [i for i in ids if not _is_kept(index, i, lambda pack: pack not in plan.gone, marked)]


def _is_kept(index: Index, object_id: bytes, stays: Stays, marked: Container[bytes]) -> bool:
    return any(stays(record.id) and is_relied_on(index, record, o, marked) for record, o in index.find(object_id))


def uncovered(index: Index, stays: Stays, packed: Callable[[bytes], bool], marked: Container[bytes]) -> int:
    """How many needed objects of an index neither a pack that stays has nor one that was packed anew."""
    out = 0
    for s in index.segments:
        flags = _flags(s, stays)
        for part in s.parts():
            for row in rows_of(part):
                object_id, is_delta = row[:ID_BYTES], row[ID_BYTES] >> 4 == DELTA
                if object_id in marked and (is_delta or not flags[_ordinal(row)]) and not packed(object_id):
                    places = index.find(object_id)  # none, where the pack has a tombstone
                    out += bool(places) and not _is_kept(index, object_id, stays, marked)
    return out


def is_whole(segment: IndexSegment, stays: Stays, marked: Container[bytes]) -> bool:
    """Whether a segment may stay as it is: all its packs stay, and all objects that it names are needed."""
    return (
        not segment.tombstones
        and all(map(stays, map(unpack_id, segment.packs.ids())))
        and all(row[:ID_BYTES] in marked for part in segment.parts() for row in rows_of(part))
    )


def rewritten(segment: IndexSegment, stays: Stays, marked: Container[bytes]) -> IndexSegment | None:
    """The segment without packs that go, without objects that are not needed, without tombstones; None if it is empty.

    Tombstones are needed no more once no segment lists a pack that went.
    """
    out = combined([segment], stays, marked, (), segment.tags)
    return out if len(out.packs) else None


def combined(
    segments: Sequence[IndexSegment],
    stays: Stays,
    needed: Container[bytes] | None,
    tombstones: Iterable[PackId],
    tags: Tags,
) -> IndexSegment:
    """One segment of several, the oldest first: of the packs that stay, and of the objects that are `needed` (None:
    all). Nothing is unpacked, and what is made of it is held once.
    """
    again = listed_in(segments).again if len(segments) > 1 else {}
    flags = [_flags(s, stays) for s in segments]
    to = [array("I", bytes(4 * len(s.packs))) for s in segments]
    packs = Packs.joined(_joined(segments, again, flags, to))
    objects = bytearray()
    for first in range(0, 256, SORTED_TOGETHER):  # by the first byte of the id: in parts, for there may be many
        some: set[bytes] = set()
        for s, flag, numbers in zip(segments, flags, to, strict=True):
            for row in between(s.objects, first, first + SORTED_TOGETHER):
                n = _ordinal(row)
                if flag[n] and (needed is None or row[:ID_BYTES] in needed):
                    some.add(row[:PACK_AT] + u32(numbers[n]) + row[PACK_AT + 4 :])
        objects += b"".join(sorted(some))
    return IndexSegment(packs, bytes(objects), tuple(sorted(set(tombstones))), tags)


def _joined(
    segments: Sequence[IndexSegment],
    again: Mapping[PackId, PackRecord],
    flags: Sequence[bytearray],
    to: Sequence[array[int]],
) -> Iterator[bytes]:
    """The packs that stay, packed, ascending, each once; which one each is, goes into `to`."""
    last, number = b"", -1
    for packed, n, ordinal in heapq.merge(*(_numbered(s, n) for n, s in enumerate(segments))):
        if not flags[n][ordinal]:
            continue
        if packed != last:
            last, number = packed, number + 1
            newer = again.get(unpack_id(packed))
            yield segments[n].packs.packed(ordinal) if newer is None else encode_record(newer)
        to[n][ordinal] = number


def _numbered(segment: IndexSegment, n: int) -> Iterator[tuple[bytes, int, int]]:
    return ((packed, n, ordinal) for ordinal, packed in enumerate(segment.packs.ids()))


def _flags(segment: IndexSegment, stays: Stays) -> bytearray:
    """Which packs of a segment stay."""
    return bytearray(map(stays, map(unpack_id, segment.packs.ids())))


def _ordinal(row: bytes) -> int:
    """The number of the pack of a packed object."""
    return int.from_bytes(row[PACK_AT : PACK_AT + 4], "big")
