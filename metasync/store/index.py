"""The pack index: which object lies where in which pack (format.md, section 6; consensus.md, rule 6.2).

The index is a root that lists immutable segments. A push adds one segment for its packs. Segments lie in size tiers of
at most `TIER_SEGMENTS_MAX`; whoever would add one more merges the tier in the same commit. So a push writes as much as
it changes, and a reader loads a number of segments that grows with the logarithm of the index.

The index is a multimap: an object may lie in several packs. A pack leaves it by a tombstone in a newer segment.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import attrgetter, lt
from typing import NamedTuple, TypeAlias

from metasync.backends.digests import KINDS
from metasync.codec import UPGRADE, Reader, Tags, check_format, encode_tags, u8, u32, u64
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import sha256
from metasync.objects.model import ID_BYTES, ObjectKind, check_object_kinds
from metasync.store.pack_format import (
    HEADER_BYTES,
    PACK_BYTES_MAX,
    PLACE_BYTES,
    SEGMENT_RAW_BYTES_MAX,
    SEGMENTS_MAX,
    Located,
    Segment,
)

FORMAT = 1
INLINE_TAG = 1  # of a root's entry: the bytes of the segment, whose SHA-256 is its name then
TIER_BYTES_BASE = 2 << 10  # nine pushes of one file, 400 bytes each, merge into more: what is merged leaves its tier
TIER_FACTOR = 8
MAP_AFTER = 32  # a map of all ids costs as much as bisecting for a thirtieth of them; a one-file push never pays it
MAP_OBJECTS_MAX = 100_000  # of an index: maps of so many ids take 17 MB; of more, tables that take a twentieth
SEGMENT_BYTES_MAX = 256 << 20  # unpacked; a record of 64 MiB cannot say more, for ids do not shrink
SEGMENT_OBJECTS_MAX = 200_000  # what a push puts into one segment: about 8 MiB, and five times as much to make it
ROOT_SEGMENTS_MAX = 1 << 10
OBJECT = struct.Struct(">32sBIIII")  # id, kind and encoding, pack ordinal, segment, offset, length
PACK_AT = ID_BYTES + 1  # where the pack stands in it
_HEAD_BYTES = 8  # of an id, in such a table: ids are hashes, and two that share these are told apart
_SORTED_TOGETHER = 16  # first bytes of ids: a sixteenth of all objects
_PLACE = struct.Struct(f">{ID_BYTES + 1}xIIII")  # the last four of them
_CHECKED_TOGETHER = 10_000  # a megabyte
_KINDS = {int(k): k for k in ObjectKind}
_WHOLE_COPIES = bytes((0, 1, 1))  # class of redundancy, k and n: shards are refused


PackId: TypeAlias = tuple[int, bytes]
"""Generation and name: never used again once a tombstone names it."""


class Ref(NamedTuple):
    """Names a meta object: the generation it was uploaded in, and its hash."""

    generation: int
    hash: bytes


class PackRecord(NamedTuple):
    """One pack: where it lies (generation, name), how to read it, and who can rebuild it.

    header  the pack's clear header, so that a single segment can be read without it
    """

    name: bytes
    generation: int
    size: int
    header: bytes
    segments: tuple[Segment, ...]
    tags: Tags = ()

    @property
    def id(self) -> PackId:
        """What the pack is known by."""
        return self.generation, self.name

    def updated(self, newer: PackRecord) -> PackRecord:
        """The same with the tags of a newer record of it added, which count where both have one."""
        tags = {**dict(self.tags), **dict(newer.tags)}
        return self._replace(tags=tuple(sorted(tags.items())))

    def digest(self, kind: str) -> bytes | None:
        """The digest of the whole pack of a kind (`digests.KINDS`), if whoever stored it noted it: stores tell it."""
        if kind == "sha256" or kind not in KINDS:
            return self.name if kind == "sha256" else None
        told = dict(self.tags).get(KINDS[kind].tag, b"")
        return told if len(told) == KINDS[kind].size else None


@dataclass(slots=True, eq=False)
class IndexSegment:
    """An immutable part of the index. Objects stay packed in bytes and are found by bisection."""

    packs: tuple[PackRecord, ...]
    objects: bytes
    tombstones: tuple[PackId, ...] = ()
    tags: Tags = ()
    is_one_of_many: bool = field(init=False)  # its index is too large for maps
    _offsets: range = field(init=False)
    _asked: int = field(default=0, init=False)
    _map: dict[bytes, int] | None = field(default=None, init=False)
    _heads: array[int] | None = field(default=None, init=False)
    _by_pack: dict[int, array[int]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._offsets = range(0, len(self.objects), OBJECT.size)
        self.is_one_of_many = len(self._offsets) > MAP_OBJECTS_MAX

    def __len__(self) -> int:
        return len(self._offsets)

    def _key(self, at: int) -> bytes:
        return self.objects[at : at + ID_BYTES]

    def _first(self, object_id: bytes) -> int:
        """The number of the first record at or after an id; with a map, past the end if there is none."""
        if self._map is not None:
            return self._map.get(object_id, len(self._offsets))
        if self._heads is not None:
            return self._first_by_head(self._heads, object_id)
        self._asked += 1
        if self._asked * MAP_AFTER < len(self._offsets):
            return bisect_left(self._offsets, object_id, key=self._key)
        if self.is_one_of_many:
            self._heads = _heads(self.objects)
        else:
            data = self.objects
            self._map = {data[at : at + ID_BYTES]: at // OBJECT.size for at in reversed(self._offsets)}
        return self._first(object_id)

    def _first_by_head(self, heads: array[int], object_id: bytes) -> int:
        at = bisect_left(heads, int.from_bytes(object_id[:_HEAD_BYTES], "big"))
        while at < len(heads) and self._key(self._offsets[at]) < object_id:
            at += 1
        return at

    def find(self, object_id: bytes) -> list[tuple[PackRecord, Located]]:
        """Every place this segment knows for an object."""
        out: list[tuple[PackRecord, Located]] = []
        i = self._first(object_id)
        while i < len(self._offsets) and self._key(self._offsets[i]) == object_id:
            out.append(self._at(self._offsets[i]))
            i += 1
        return out

    def inside(self, record: PackRecord, *, blobs: bool = True) -> list[Located]:
        """All objects that this segment lists of a pack, if it does; without `blobs`, the others."""
        ordinal = bisect_left(self.packs, record.id, key=attrgetter("id"))
        if ordinal == len(self.packs) or self.packs[ordinal].id != record.id:
            return []
        if self._by_pack is None:
            self._by_pack = {}
            for at, (_, _, pack, _, _, _) in zip(self._offsets, OBJECT.iter_unpack(self.objects), strict=True):
                self._by_pack.setdefault(pack, array("I")).append(at)
        places = self._by_pack.get(ordinal, ())
        kinds = self.objects if not blobs else b""
        return [self._at(at)[1] for at in places if blobs or kinds[at + ID_BYTES] & 15 != ObjectKind.BLOB]

    def _at(self, at: int) -> tuple[PackRecord, Located]:
        object_id, kind, pack, segment, offset, length = OBJECT.unpack_from(self.objects, at)
        return self.packs[pack], Located(_KINDS[kind & 15], object_id, segment, offset, length, kind >> 4)

    def __iter__(self) -> Iterator[tuple[PackRecord, Located]]:
        return map(self._at, self._offsets)

    def ids(self, kind: ObjectKind) -> list[bytes]:
        """The ids of all objects of a kind."""
        return [object_id for object_id, k, *_ in OBJECT.iter_unpack(self.objects) if k & 15 == kind]


def _heads(objects: bytes) -> array[int]:
    """The heads of the ids of packed objects, as numbers."""
    columns = bytearray(len(objects) // OBJECT.size * _HEAD_BYTES)
    for byte in range(_HEAD_BYTES):
        to = byte if sys.byteorder == "big" else _HEAD_BYTES - 1 - byte
        columns[to::_HEAD_BYTES] = objects[byte :: OBJECT.size]
    heads = array("Q")
    heads.frombytes(columns)
    return heads


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
    for first in range(0, 256, _SORTED_TOGETHER):  # by the first byte of the id: in parts, for there may be many
        some: set[bytes] = set()
        for ordinal, (_, packed) in enumerate(listed):
            number = u32(ordinal)
            for at in _between(packed, first, first + _SORTED_TOGETHER):
                some.add(packed[at : at + PACK_AT] + number + packed[at + PACK_AT + 4 : at + OBJECT.size])
        objects += b"".join(sorted(some))
    records = tuple(p for p, _ in listed)
    del listed[:]  # of a large segment nothing is held three times
    return IndexSegment(records, bytes(objects), tuple(sorted(set(tombstones))), tags)


def _between(packed: bytes, first: int, end: int) -> range:
    """Offsets of the objects whose ids begin with a byte from `first` to below `end`."""
    places = range(0, len(packed), OBJECT.size)
    low = bisect_left(places, first, key=packed.__getitem__)
    return places[low : bisect_left(places, end, lo=low, key=packed.__getitem__)]


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

    objects = s.objects
    parts = [u32(len(s.packs))]
    for p in s.packs:
        parts += [u64(p.generation), p.name, u64(p.size), p.header, _WHOLE_COPIES]
        parts += [u32(len(p.segments)), *(u32(g.stored_bytes) + u32(g.raw_bytes) + g.digest for g in p.segments)]
        parts.append(encode_tags(p.tags))
    before = b"".join((*parts, u32(len(s))))
    after = u32(len(s.tombstones)) + b"".join(u64(g) + name for g, name in s.tombstones) + encode_tags(s.tags)
    size = len(before) + len(objects) + len(after)
    frame = zstandard.ZstdCompressor(level=3).compressobj(size=size)
    return b"".join((u8(FORMAT), *map(frame.compress, (before, objects, after)), frame.flush()))


def decode_segment(data: bytes) -> IndexSegment:
    """Reads a segment; `FormatError` on anything but what `encode_segment` writes, `UpgradeError` if newer."""
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
    packs = _packs(r)
    objects = r.take(OBJECT.size * r.u32())
    _check_objects(r, objects, packs)
    stones = tuple((r.u64(), r.take(ID_BYTES)) for _ in range(r.count(r.u32(), 8 + ID_BYTES)))
    if any(a >= b for a, b in pairwise(stones)):
        raise r.fail("tombstones out of order")
    tags = r.tags()
    r.end()
    return IndexSegment(packs, objects, stones, tags)


def _packs(r: Reader) -> tuple[PackRecord, ...]:
    """Checks their order one by one: a frame of a few bytes can repeat a pack a million times."""
    out: list[PackRecord] = []
    for _ in range(r.count(r.u32(), ID_BYTES + 8 + 8 + HEADER_BYTES + 3 + 4 + 1)):
        pack = _pack(r)
        if out and pack.id <= out[-1].id:
            raise r.fail("packs out of order")
        out.append(pack)
    return tuple(out)


def _pack(r: Reader) -> PackRecord:
    generation, name, size, header = r.u64(), r.take(ID_BYTES), r.u64(), r.take(HEADER_BYTES)
    size_class, k, n = r.take(len(_WHOLE_COPIES))
    count = r.u32()
    if count > SEGMENTS_MAX or not 1 <= k <= n or size > PACK_BYTES_MAX:
        raise r.fail("a pack with impossible numbers")
    if (size_class, k, n) != (0, 1, 1):
        raise UpgradeError(
            f"pack {name.hex()[:16]} is stored as {n} shards (class {size_class}), any {k} of which give it back; "
            "this program knows whole copies",
            next_step=UPGRADE,
        )
    segments = tuple(Segment(r.u32(), r.u32(), r.take(32)) for _ in range(r.count(count, 40)))
    if HEADER_BYTES + sum(s.stored_bytes for s in segments) > size:
        raise r.fail("segments beyond their pack")
    if any(s.raw_bytes > SEGMENT_RAW_BYTES_MAX for s in segments):
        raise r.fail("a segment too large")
    return PackRecord(name, generation, size, header, segments, r.tags())


def _check_objects(r: Reader, objects: bytes, packs: tuple[PackRecord, ...]) -> None:
    """Every object lies in a segment of a listed pack; records ascend. By columns: there may be millions."""
    check_object_kinds({*objects[ID_BYTES :: OBJECT.size]}, "an object in the pack index")
    last = b""
    for start in range(0, len(objects), _CHECKED_TOGETHER * OBJECT.size):
        end = min(start + _CHECKED_TOGETHER * OBJECT.size, len(objects))
        records = [objects[at : at + OBJECT.size] for at in range(start, end, OBJECT.size)]
        if not all(map(lt, [last, *records], records)):
            raise r.fail("objects out of order")
        last = records[-1]
    raw_bytes = [[s.raw_bytes for s in p.segments] for p in packs]
    try:
        for pack, segment, offset, length in _PLACE.iter_unpack(objects):
            if offset + length > raw_bytes[pack][segment]:
                raise r.fail("an object outside its segment")
    except IndexError:
        raise r.fail("an object in no pack, or outside its segments") from None


def check_records(segments: Iterable[IndexSegment]) -> dict[PackId, PackRecord]:
    """What is known of each pack that several segments list, these given oldest first.

    `FormatError` unless its size, header and segments are the same in all: a pack is its bytes. Tags may differ.
    """
    known: dict[PackId, PackRecord] = {}
    again: dict[PackId, PackRecord] = {}
    for s in segments:
        for p in s.packs:
            before = known.setdefault(p.id, p)
            if before is p:
                continue
            if before[2:5] != p[2:5]:
                raise FormatError(f"pack index: pack {p.name.hex()[:16]} is listed in two ways")
            again[p.id] = again.get(p.id, before).updated(p)
    return again


class RootItem(NamedTuple):
    """One segment as the root lists it: how large it is, and what it holds."""

    ref: Ref
    size: int
    objects: int
    packs: int
    tags: Tags = ()

    @property
    def inline(self) -> bytes | None:
        """The segment, where the root carries it and no object has it."""
        return dict(self.tags).get(INLINE_TAG)

    @property
    def tier(self) -> int:
        tier, limit = 0, TIER_BYTES_BASE
        while self.size > limit:
            tier, limit = tier + 1, limit * TIER_FACTOR
        return tier


class IndexRoot(NamedTuple):
    """The segments of an index, oldest first."""

    items: tuple[RootItem, ...] = ()
    tags: Tags = ()

    @property
    def apart(self) -> tuple[RootItem, ...]:
        """Those that are objects of their own."""
        return tuple(i for i in self.items if i.inline is None)


def encode_root(root: IndexRoot) -> bytes:
    body = b"".join(
        u64(i.ref.generation) + i.ref.hash + u64(i.size) + u64(i.objects) + u32(i.packs) + encode_tags(i.tags)
        for i in root.items
    )
    return u8(FORMAT) + u32(len(root.items)) + body + encode_tags(root.tags)


def decode_root(data: bytes) -> IndexRoot:
    r = Reader(data, "index root")
    check_format(r.u8(), "the pack index")
    count = r.u32()
    if count > ROOT_SEGMENTS_MAX:
        raise r.fail(f"{count} segments")
    items = tuple(
        RootItem(Ref(r.u64(), r.take(ID_BYTES)), r.u64(), r.u64(), r.u32(), r.tags()) for _ in range(r.count(count, 61))
    )
    out = IndexRoot(items, r.tags())
    r.end()
    if any((own := i.inline) is not None and (i.size, i.ref.hash) != (len(own), sha256(own)) for i in items):
        raise r.fail("a segment in it that is not the one it names")
    return out


class Index:
    """A loaded index: finds objects in its segments, the newest first. Immutable.

    `FormatError` when two segments describe one pack in two ways. `segments` may be a function that opens them at the
    first use, where the error then occurs.
    """

    _again: dict[PackId, PackRecord]

    def __init__(self, segments: Sequence[IndexSegment] | Callable[[], Sequence[IndexSegment]] = ()) -> None:
        if callable(segments):
            self._open = segments
        else:
            self._open = lambda: segments
            self._again = check_records(segments)

    @cached_property
    def segments(self) -> tuple[IndexSegment, ...]:
        segments = tuple(self._open())
        self._again = check_records(segments)
        if sum(map(len, segments)) > MAP_OBJECTS_MAX:
            for s in segments:
                s.is_one_of_many = True
        return segments

    @cached_property
    def _dead(self) -> set[PackId]:
        return {t for s in self.segments for t in s.tombstones}

    @property
    def places(self) -> int:
        """How many places of objects it names, replaced ones too."""
        return sum(map(len, self.segments))

    def find(self, object_id: bytes) -> list[tuple[PackRecord, Located]]:
        """Every live place of an object; empty when the index does not hold it."""
        out: list[tuple[PackRecord, Located]] = []
        for s in reversed(self.segments):
            out += [p for p in s.find(object_id) if not self._dead or p[0].id not in self._dead]
        return [(self._again.get(p.id, p), o) for p, o in out] if self._again else out

    def __contains__(self, object_id: bytes) -> bool:
        return bool(self.segments and self.find(object_id))

    def inside(self, record: PackRecord, *, blobs: bool = True) -> list[Located]:
        """All objects of a pack, whichever of its records is given; without `blobs`, the others."""
        found: list[Located] = []
        for s in self.segments:
            found += s.inside(record, blobs=blobs)
        return [*dict.fromkeys(found)] if record.id in self._again else found

    def ids(self, kind: ObjectKind) -> list[bytes]:
        """The ids of all objects of a kind that a live pack holds, those of the newest segments first."""
        found = dict.fromkeys(i for s in reversed(self.segments) for i in s.ids(kind))
        return [i for i in found if not self._dead or i in self]

    def packs(self) -> dict[tuple[int, bytes], PackRecord]:
        """Every live pack by (generation, name)."""
        listed = {p.id: p for s in self.segments for p in s.packs if p.id not in self._dead}
        listed.update((pack_id, p) for pack_id, p in self._again.items() if pack_id in listed)
        return listed

    def __len__(self) -> int:
        return sum(map(len, self.segments))
