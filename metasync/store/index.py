"""The pack index: which object lies where in which pack (format.md, section 6; consensus.md, rule 6.2).

The index is a root that lists immutable segments. A push adds one segment for its packs. Segments lie in size tiers;
whoever would add one more than there may be merges a tier in the same commit (`session.write_index.crowded`). So a push
writes about as much as it changes, and a reader loads a bounded number of segments.

The index is a multimap: an object may lie in several packs. A pack leaves it by a tombstone in a newer segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import lt
from typing import TYPE_CHECKING

from metasync.codec import Reader, Tags, check_format, encode_tags, u8, u32
from metasync.errors import FormatError
from metasync.objects.model import ID_BYTES, ObjectKind, check_object_kinds
from metasync.store.index_root import (
    AFTER_TAG,
    INLINE_TAG,
    ROOT_SEGMENTS_MAX,
    ROOTS_MAX,
    TIER_BYTES_BASE,
    TIER_FACTOR,
    IndexRoot,
    Ref,
    RootItem,
    decode_root,
    encode_root,
    joined,
    root_after,
)
from metasync.store.pack_format import (
    PLACE_BYTES,
    Located,
    Packed,
    PackId,
    PackRecord,
    Packs,
    Sizes,
    pack_id,
    read_packs,
)

if TYPE_CHECKING:
    from metasync.store.listed_packs import Listed, LivePacks

__all__ = [
    "AFTER_TAG",
    "INLINE_TAG",
    "ROOTS_MAX",
    "ROOT_SEGMENTS_MAX",
    "TIER_BYTES_BASE",
    "TIER_FACTOR",
    "IndexRoot",
    "PackId",
    "PackRecord",
    "Ref",
    "RootItem",
    "decode_root",
    "encode_root",
    "joined",
    "root_after",
]

FORMAT = 1
SMALL_TABLES_BYTES = 32 << 10  # of a push of 600 objects: at this level they take 1.5 ms, and 3 % less room than at 3
LEVEL_OF_SMALL = 16
MAP_AFTER = 32  # a map of all ids costs as much as bisecting for a thirtieth of them; a one-file push never pays it
MAP_OBJECTS_MAX = 100_000  # of an index: maps of so many ids take 17 MB; of more, tables that take a twentieth
SEGMENT_BYTES_MAX = 256 << 20  # unpacked; a record of 64 MiB cannot say more, for ids do not shrink
SEGMENT_OBJECTS_MAX = 200_000  # what a push puts into one segment: about 8 MiB, and five times as much to make it
OBJECT = struct.Struct(">32sBIIII")  # id, kind and encoding, pack ordinal, segment, offset, length
PACK_AT = ID_BYTES + 1  # where the pack stands in it
_HEAD_BYTES = 8  # of an id, in such a table: ids are hashes, and two that share these are told apart
SORTED_TOGETHER = 16  # first bytes of ids: a sixteenth of all objects
_PLACE = struct.Struct(f">{ID_BYTES + 1}xIIII")  # the last four of them
_READ_TOGETHER = 10_000 * OBJECT.size  # bytes
_SIZE, _unpack_object = OBJECT.size, OBJECT.unpack
_new = tuple.__new__  # a NamedTuple's own constructor costs three times as much, and a clone makes one per object
_KINDS = {int(k): k for k in ObjectKind}


@dataclass(slots=True, eq=False)
class IndexSegment:
    """An immutable part of the index. Its packs and objects stay packed, in memory or in a file.

    Objects are found by bisection.
    """

    packs: Packs
    objects: Packed
    tombstones: tuple[PackId, ...] = ()
    tags: Tags = ()
    is_one_of_many: bool = field(init=False)  # its index is too large for maps
    _count: int = field(init=False)
    _asked: int = field(default=0, init=False)
    _map: dict[bytes, int] | None = field(default=None, init=False)
    _heads: array[int] | None = field(default=None, init=False)
    _by_pack: tuple[array[int], array[int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._count = len(self.objects) // OBJECT.size
        self.is_one_of_many = self._count > MAP_OBJECTS_MAX

    def __len__(self) -> int:
        return self._count

    @property
    def held_bytes(self) -> int:
        """The bytes of its tables, wherever they lie."""
        return len(self.packs.data) + len(self.objects)

    def _row(self, n: int) -> bytes:
        return self.objects[n * OBJECT.size : (n + 1) * OBJECT.size]

    def _key(self, n: int) -> bytes:
        return self.objects[n * OBJECT.size : n * OBJECT.size + ID_BYTES]

    def parts(self) -> Iterator[bytes]:
        """All objects, packed, many at a time."""
        return _parts(self.objects, 0, len(self.objects))

    def _first(self, object_id: bytes) -> int:
        """The number of the first object at or after an id; with a map, or heads, past the end if there is none."""
        if self._map is not None:
            return self._map.get(object_id, self._count)
        if self._heads is not None:
            return self._first_by_head(self._heads, object_id)
        self._asked += 1
        in_memory = isinstance(self.objects, bytes)
        if in_memory and self._asked * MAP_AFTER < self._count:
            return bisect_left(range(self._count), object_id, key=self._key)
        if self.is_one_of_many or not in_memory:
            self._heads = _heads(self.parts())
        else:
            ids = [row[:ID_BYTES] for part in self.parts() for row in rows_of(part)]
            self._map = dict(zip(reversed(ids), range(self._count - 1, -1, -1), strict=True))  # of one id, the first
        return self._first(object_id)

    def _first_by_head(self, heads: array[int], object_id: bytes) -> int:
        head = int.from_bytes(object_id[:_HEAD_BYTES], "big")
        at = bisect_left(heads, head)
        if at == self._count or heads[at] != head:
            return self._count
        while at + 1 < self._count and heads[at + 1] == head and self._key(at) < object_id:
            at += 1
        return at

    def find(self, object_id: bytes) -> list[tuple[PackRecord, Located]]:
        """Every place this segment knows for an object."""
        out: list[tuple[PackRecord, Located]] = []
        n, objects, packs = self._first(object_id), self.objects, self.packs
        while n < self._count:
            found, kind, pack, segment, offset, length = _unpack_object(objects[n * _SIZE : (n + 1) * _SIZE])
            if found != object_id:
                break
            out.append((packs[pack], _new(Located, (_KINDS[kind & 15], found, segment, offset, length, kind >> 4))))
            n += 1
        return out

    def names(self, object_id: bytes) -> bool:
        """Whether this segment knows a place for an object."""
        n = self._first(object_id)
        return n < self._count and self._key(n) == object_id

    def inside(self, record: PackRecord, *, blobs: bool = True) -> list[Located]:
        """All objects that this segment lists of a pack, if it does; without `blobs`, the others."""
        packed = pack_id(record.id)
        ordinal = bisect_left(range(len(self.packs)), packed, key=self.packs.id_at)
        there = ordinal < len(self.packs) and self.packs.id_at(ordinal) == packed
        return self.inside_at(ordinal, blobs=blobs) if there else []

    def inside_at(self, ordinal: int, *, blobs: bool = True) -> list[Located]:
        """The same of the pack with this number."""
        if self._by_pack is None:
            self._by_pack = _by_pack(self)
        begins, numbers = self._by_pack
        rows = map(self._row, numbers[begins[ordinal] : begins[ordinal + 1]])
        return [_located(row) for row in rows if blobs or row[ID_BYTES] & 15 != ObjectKind.BLOB]

    def _of(self, row: bytes) -> tuple[PackRecord, Located]:
        object_id, kind, pack, segment, offset, length = OBJECT.unpack(row)
        return self.packs[pack], Located(_KINDS[kind & 15], object_id, segment, offset, length, kind >> 4)

    def __iter__(self) -> Iterator[tuple[PackRecord, Located]]:
        return (self._of(row) for part in self.parts() for row in rows_of(part))

    def ids(self, kind: ObjectKind) -> list[bytes]:
        """The ids of all objects of a kind."""
        return [row[0] for part in self.parts() for row in OBJECT.iter_unpack(part) if row[1] & 15 == kind]


def rows_of(part: bytes) -> list[bytes]:
    """Packed objects, one by one."""
    return [part[at : at + OBJECT.size] for at in range(0, len(part), OBJECT.size)]


def between(objects: Packed, first: int, end: int) -> Iterator[bytes]:
    """The packed objects, one by one, whose ids begin with a byte from `first` to below `end`."""
    places = range(0, len(objects), OBJECT.size)
    low = bisect_left(places, first, key=lambda at: objects[at : at + 1][0])
    high = bisect_left(places, end, lo=low, key=lambda at: objects[at : at + 1][0])
    return (row for part in _parts(objects, low * OBJECT.size, high * OBJECT.size) for row in rows_of(part))


def _parts(data: Packed, begin: int, end: int) -> Iterator[bytes]:
    return (data[at : min(at + _READ_TOGETHER, end)] for at in range(begin, end, _READ_TOGETHER))


def _located(row: bytes) -> Located:
    object_id, kind, _, segment, offset, length = OBJECT.unpack(row)
    return Located(_KINDS[kind & 15], object_id, segment, offset, length, kind >> 4)


def _heads(parts: Iterable[bytes]) -> array[int]:
    """The heads of the ids of packed objects, as numbers."""
    heads = array("Q")
    for part in parts:
        heads.frombytes(_columns(part, 0, _HEAD_BYTES))
    return heads


def _columns(part: bytes, begin: int, size: int) -> bytearray:
    """A number of this size in each of these packed objects, in the machine's own order of bytes."""
    out = bytearray(len(part) // OBJECT.size * size)
    for byte in range(size):
        out[byte if sys.byteorder == "big" else size - 1 - byte :: size] = part[begin + byte :: OBJECT.size]
    return out


def _by_pack(s: IndexSegment) -> tuple[array[int], array[int]]:
    """The numbers of the objects of a segment in the order of their packs; where those of each pack begin, and end."""
    packs = array("I")
    for part in s.parts():
        packs.frombytes(_columns(part, PACK_AT, 4))
    begins = array("I", bytes(4 * (len(s.packs) + 2)))
    for pack in packs:
        begins[pack + 2] += 1
    begins = array("I", accumulate(begins))
    numbers = array("I", bytes(4 * len(packs)))
    for n, pack in enumerate(packs):
        numbers[begins[pack + 1]] = n
        begins[pack + 1] += 1
    return begins, numbers


def pack_objects(objects: Iterable[Located]) -> bytes:
    """Packs the objects of one pack for `segments_of`, in a fifth of the memory."""
    return b"".join(
        sorted({OBJECT.pack(o.id, o.encoding << 4 | o.kind, 0, o.segment, o.offset, o.length) for o in objects})
    )


def objects_at(places: bytes) -> bytes:
    """The same of a pack that was just made, whose places are packed (`pack_format.pack_place`)."""
    none = bytes(4)
    starts = range(0, len(places), PLACE_BYTES)
    objects = {places[a : a + PACK_AT] + none + places[a + PACK_AT : a + PLACE_BYTES] for a in starts}
    return b"".join(sorted(objects))


def packed_ids(packed: bytes) -> Iterator[bytes]:
    """The ids of packed objects."""
    return (packed[at : at + ID_BYTES] for at in range(0, len(packed), OBJECT.size))


def make_segment(
    packs: Iterable[tuple[PackRecord, Sequence[Located]]], tombstones: Iterable[tuple[int, bytes]] = ()
) -> IndexSegment:
    """A segment for packs and what lies in them. Canonical: the order given does not matter."""
    return segment_sorted([(record, pack_objects(located)) for record, located in packs], tombstones)


def segment_sorted(
    packs: Iterable[tuple[PackRecord, bytes]], tombstones: Iterable[tuple[int, bytes]] = (), tags: Tags = ()
) -> IndexSegment:
    listed = sorted(packs, key=lambda p: p[0].id)
    if any(a.id == b.id for (a, _), (b, _) in pairwise(listed)):
        raise ValueError("a pack is listed twice")
    objects = bytearray()
    for first in range(0, 256, SORTED_TOGETHER):  # by the first byte of the id: in parts, for there may be many
        some: set[bytes] = set()
        for ordinal, (_, packed) in enumerate(listed):
            number = u32(ordinal)
            for row in between(packed, first, first + SORTED_TOGETHER):
                some.add(row[:PACK_AT] + number + row[PACK_AT + 4 :])
        objects += b"".join(sorted(some))
    records = Packs.of(p for p, _ in listed)
    del listed[:]  # of a large segment nothing is held three times
    return IndexSegment(records, bytes(objects), tuple(sorted(set(tombstones))), tags)


def segments_of(packs: Iterable[tuple[PackRecord, bytes]]) -> Iterator[IndexSegment]:
    """The segments of a push, of packs and what lies in them (`pack_objects`): several after a very large one."""
    some: list[tuple[PackRecord, bytes]] = []
    size = 0
    for pack in packs:
        if some and size + len(pack[1]) > SEGMENT_OBJECTS_MAX * OBJECT.size:
            yield segment_sorted(_taken(some))
            size = 0
        some.append(pack)
        size += len(pack[1])
    if some:
        yield segment_sorted(_taken(some))


def _taken(some: list[tuple[PackRecord, bytes]]) -> Iterator[tuple[PackRecord, bytes]]:
    """All of a list, which is empty afterwards."""
    while some:
        yield some.pop()


def encode_segment(s: IndexSegment) -> bytes:
    """Bytes of a segment: format, then a zstd frame of its tables."""
    import zstandard

    packs, objects = s.packs.data, s.objects
    before, middle = u32(len(s.packs)), u32(len(s))
    after = u32(len(s.tombstones)) + b"".join(map(pack_id, s.tombstones)) + encode_tags(s.tags)
    size = len(before) + len(packs) + len(middle) + len(objects) + len(after)
    level = LEVEL_OF_SMALL if size <= SMALL_TABLES_BYTES else 3
    out = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    plain = chain([before], _parts(packs, 0, len(packs)), [middle], _parts(objects, 0, len(objects)), [after])
    return b"".join((u8(FORMAT), *map(out.compress, plain), out.flush()))


def decode_segment(data: bytes, keep: Callable[[bytes], Packed] = bytes) -> IndexSegment:
    """Reads a segment; `FormatError` on anything but what `encode_segment` writes, `UpgradeError` if newer.

    `keep` is given what is large in it, and decides where that lies.
    """
    check_format(Reader(data, "index segment").u8(), "the pack index")
    import zstandard

    try:
        size = zstandard.frame_content_size(data[1:32])
        if not 0 < size <= SEGMENT_BYTES_MAX:
            raise FormatError("index segment: too large, or empty")
        r = Reader(
            zstandard.ZstdDecompressor().decompress(memoryview(data)[1:], allow_extra_data=False), "index segment"
        )
    except zstandard.ZstdError as e:
        raise FormatError(f"index segment: does not unpack: {e}") from e
    packs, sizes = read_packs(r)
    objects = r.take(OBJECT.size * r.u32())
    _check_objects(r, objects, sizes)
    stones = tuple((r.u64(), r.take(ID_BYTES)) for _ in range(r.count(r.u32(), 8 + ID_BYTES)))
    if any(a >= b for a, b in pairwise(stones)):
        raise r.fail("tombstones out of order")
    tags = r.tags()
    r.end()
    return IndexSegment(packs.kept(keep), keep(objects), stones, tags)


def _check_objects(r: Reader, objects: bytes, sizes: Sizes) -> None:
    """Every object lies in a segment of a listed pack; records ascend. By columns: there may be millions."""
    check_object_kinds({*objects[ID_BYTES :: OBJECT.size]}, "an object in the pack index")
    last = b""
    for start in range(0, len(objects), _READ_TOGETHER):
        records = rows_of(objects[start : start + _READ_TOGETHER])
        if not all(map(lt, [last, *records], records)):
            raise r.fail("objects out of order")
        last = records[-1]
    begins, raw_bytes = sizes.begins, sizes.raw_bytes
    try:
        for pack, segment, offset, length in _PLACE.iter_unpack(objects):
            at = begins[pack] + segment
            if at >= begins[pack + 1]:
                raise IndexError
            if offset + length > raw_bytes[at]:
                raise r.fail("an object outside its segment")
    except IndexError:
        raise r.fail("an object in no pack, or outside its segments") from None


def listed_in(segments: Sequence[IndexSegment]) -> Listed:
    """Where these segments, the oldest first, list each pack."""
    from metasync.store.listed_packs import Listed  # a push that finds one segment or none needs it not

    return Listed(segments)


class Index:
    """A loaded index: finds objects in its segments, the newest first. Immutable.

    `FormatError` when two segments describe one pack in two ways. `segments` may be a function that opens them at the
    first use, where the error then occurs.
    """

    _again: Mapping[PackId, PackRecord]

    def __init__(self, segments: Sequence[IndexSegment] | Callable[[], Sequence[IndexSegment]] = ()) -> None:
        self._listed: Listed | None = None
        if callable(segments):
            self._open = segments
        else:
            self._open = lambda: segments
            self.segments = self._opened()

    @cached_property
    def segments(self) -> tuple[IndexSegment, ...]:
        return self._opened()

    def _opened(self) -> tuple[IndexSegment, ...]:
        segments = tuple(self._open())
        if sum(map(len, segments)) > MAP_OBJECTS_MAX:
            for s in segments:
                s.is_one_of_many = True
        self._listed = listed_in(segments) if len(segments) > 1 else None
        self._again = self._listed.again if self._listed is not None else {}
        return segments

    def of_segments(self, segments: Sequence[IndexSegment]) -> Index:
        """The index of these segments instead."""
        return Index(segments)

    @property
    def listed(self) -> Listed:
        """Where its segments list each pack."""
        if self._listed is None:
            self._listed = listed_in(self.segments)
        return self._listed

    @cached_property
    def dead(self) -> set[PackId]:
        """The packs that have a tombstone."""
        return {t for s in self.segments for t in s.tombstones}

    @property
    def places(self) -> int:
        """How many places of objects it names, replaced ones too."""
        return sum(map(len, self.segments))

    def find(self, object_id: bytes) -> list[tuple[PackRecord, Located]]:
        """Every live place of an object; empty when the index does not hold it."""
        out: list[tuple[PackRecord, Located]] = []
        for s in reversed(self.segments):
            if found := s.find(object_id):
                out += [p for p in found if p[0].id not in self.dead] if self.dead else found
        return [(self._again.get(p.id, p), o) for p, o in out] if out and self._again else out

    def __contains__(self, object_id: bytes) -> bool:
        if self.dead:
            return bool(self.find(object_id))
        return any(s.names(object_id) for s in self.segments)

    def inside(self, record: PackRecord, *, blobs: bool = True) -> list[Located]:
        """All objects of a pack, whichever of its records is given; without `blobs`, the others."""
        found: list[Located] = []
        for n in self.listed.numbers(record.id):
            s, ordinal = self.listed.place(n)
            found += s.inside_at(ordinal, blobs=blobs)
        return [*dict.fromkeys(found)] if record.id in self._again else found

    def inside_number(self, number: int) -> list[Located]:
        """All objects of the pack with this number (`listed`)."""
        s, ordinal = self.listed.place(number)
        return self.inside(s.packs[ordinal]) if self._again else s.inside_at(ordinal)

    def ids(self, kind: ObjectKind) -> list[bytes]:
        """The ids of all objects of a kind that a live pack holds, those of the newest segments first."""
        found = dict.fromkeys(i for s in reversed(self.segments) for i in s.ids(kind))
        return [i for i in found if not self.dead or i in self]

    def packs(self) -> Mapping[PackId, PackRecord]:
        """Every live pack by (generation, name): a view, whose values are made when they are asked for."""
        return self._live

    @cached_property
    def _live(self) -> LivePacks:
        from metasync.store.listed_packs import LivePacks

        return LivePacks(self.listed, self.dead)

    def __len__(self) -> int:
        return sum(map(len, self.segments))


class TrueIndex(Index):
    """An index without rows that are known to be untrue. `is_untrue`: of a pack and an object that is listed in it."""

    def __init__(self, index: Index, is_untrue: Callable[[PackId, bytes], bool]) -> None:
        super().__init__(index.segments)
        self._is_untrue = is_untrue

    def find(self, object_id: bytes) -> list[tuple[PackRecord, Located]]:
        return [(p, o) for p, o in super().find(object_id) if not self._is_untrue(p.id, object_id)]

    def __contains__(self, object_id: bytes) -> bool:
        return bool(self.find(object_id))

    def inside(self, record: PackRecord, *, blobs: bool = True) -> list[Located]:
        return [o for o in super().inside(record, blobs=blobs) if not self._is_untrue(record.id, o.id)]

    def of_segments(self, segments: Sequence[IndexSegment]) -> Index:
        return TrueIndex(Index(segments), self._is_untrue)
