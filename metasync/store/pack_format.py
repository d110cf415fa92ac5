"""The layout of a pack: a clear header, sealed segments, a sealed footer (format.md, section 5; architecture.md, D3).
And what an index says of a pack (section 6.1).

    header | segment 0 | ... | segment n-1 | padding | salt | footer | trailer

The header is clear; all else is opaque here (sealed, or plain with `--no-encryption`). The footer lists segments and
objects, so that a pack can be read, and the pack index rebuilt, from packs alone. The trailer has a fixed length and
holds the footer's. The salt is 8 bytes that nobody reads, or none: it gives the writer a choice of names. Padding
brings the whole to a Padmé size (Nikitin et al., "Reducing Metadata Leakage from Encrypted Files and Communication with
PURBs", 2019, section 4), so that a pack's size tells at most 12 % and often 3 % about what is in it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, TypeAlias, overload

from metasync.backends.digests import KINDS
from metasync.codec import UPGRADE, Reader, Tags, check_format, encode_tags, u8, u32
from metasync.errors import FormatError, UpgradeError
from metasync.objects.model import ID_BYTES, ObjectKind, check_object_kinds

FORMAT = 1
RANDOM_BYTES = 32
TRAILER_PLAIN_BYTES = 4
SEGMENTS_MAX = 1 << 16
OBJECTS_MAX = 1 << 20  # a footer of so many, and of SEGMENTS_MAX, is below SEGMENT_RAW_BYTES_MAX
SEGMENT_RAW_BYTES_MAX = 64 << 20  # a reader never unpacks more than this at once
PACK_BYTES_MAX = 256 << 20
PADDING_NUMBER, FOOTER_NUMBER, TRAILER_NUMBER = 2**32 - 3, 2**32 - 2, 2**32 - 1  # what nonces count, after segments

_HEADER = struct.Struct(">BBI32s")
HEADER_BYTES = _HEADER.size
_SEGMENT = struct.Struct(">II32s")
_OBJECT = struct.Struct(">32sBIII")
PLACE_BYTES = _OBJECT.size
_SEGMENT_AT = 1 + ID_BYTES  # where the segment stands in it
_DELTA = struct.Struct(">II32sB")
_PLACE_IN_DELTA_BYTES = 8  # segment and offset, which its row begins with

WHOLE, DELTA = 0, 1  # encodings of an object
DELTA_TAGS: Final = range(16, 32)
DELTAS_A_TAG: Final = 0xFFFF // _DELTA.size
DELTAS_MAX: Final = DELTAS_A_TAG * len(DELTA_TAGS)
DEPTH_MAX: Final = 8


class Header(NamedTuple):
    """The clear part: which translator chain of the config sealed it, the key epoch, 32 random bytes."""

    chain: int
    epoch: int
    random: bytes


class Segment(NamedTuple):
    """Stored and raw length in bytes, and the SHA-256 of the stored bytes."""

    stored_bytes: int
    raw_bytes: int
    digest: bytes


class Located(NamedTuple):
    """Where an object lies: segment number, offset and length in bytes of the raw segment.

    `encoding`: 0 whole, 1 a delta, whose base and depth are in the tags (`delta_at`).
    """

    kind: ObjectKind
    id: bytes
    segment: int
    offset: int
    length: int
    encoding: int = 0


class Delta(NamedTuple):
    """What a delta is made of: the id of its base, and how many deltas there are down to a whole blob, itself too."""

    base: bytes
    depth: int


class Footer(NamedTuple):
    """All that is needed to read a pack: its segments in order and its objects."""

    segments: tuple[Segment, ...]
    objects: tuple[Located, ...]
    tags: Tags = ()


def encode_header(h: Header) -> bytes:
    return _HEADER.pack(FORMAT, h.chain, h.epoch, h.random)


def decode_header(data: bytes) -> Header:
    """Reads the first bytes of a pack; `FormatError`, or `UpgradeError` if newer."""
    check_format(data[0] if data else 0, "a pack")
    if len(data) < HEADER_BYTES:
        raise FormatError("pack: cut short")
    _, chain, epoch, random = _HEADER.unpack_from(data)
    return Header(chain, epoch, random)


def pack_place(kind: ObjectKind, object_id: bytes, offset: int, length: int, encoding: int = WHOLE) -> bytes:
    """Packs the place of an object in segment 0 as a footer has it, in a fifth of the memory; see `in_segment`."""
    return _OBJECT.pack(object_id, encoding << 4 | kind, 0, offset, length)


def in_segment(places: bytes, number: int) -> bytes:
    """The same places (`pack_place`) in the segment of this number."""
    if number == 0:
        return places
    there = u32(number)
    return b"".join(
        [
            places[at : at + _SEGMENT_AT] + there + places[at + _SEGMENT_AT + 4 : at + PLACE_BYTES]
            for at in range(0, len(places), PLACE_BYTES)
        ]
    )


def kinds_of(places: bytes) -> set[int]:
    """The kinds of objects among these places."""
    return {kind & 15 for kind in {*places[ID_BYTES::PLACE_BYTES]}}


def unpack_places(places: bytes) -> tuple[Located, ...]:
    """The values of packed places, which this process made."""
    return tuple(
        Located(_KINDS[kind & 15], object_id, segment, offset, length, kind >> 4)
        for object_id, kind, segment, offset, length in _OBJECT.iter_unpack(places)
    )


def encode_footer(f: Footer) -> bytes:
    if any(not 0 <= o.encoding < 16 for o in f.objects):
        raise ValueError("an encoding is 0 to 15")
    packed = (_OBJECT.pack(o.id, o.encoding << 4 | o.kind, o.segment, o.offset, o.length) for o in f.objects)
    return encode_packed_footer(f.segments, b"".join(packed), f.tags)


def encode_packed_footer(segments: tuple[Segment, ...], places: bytes, tags: Tags = ()) -> bytes:
    """The bytes of a footer whose objects are packed."""
    return b"".join(
        (
            u8(FORMAT),
            u32(len(segments)),
            b"".join(_SEGMENT.pack(*s) for s in segments),
            u32(len(places) // PLACE_BYTES),
            places,
            encode_tags(tags),
        )
    )


def decode_footer(data: bytes) -> Footer:
    """Reads a footer and checks that every object lies within its segment; `FormatError` otherwise."""
    r = Reader(data, "pack footer")
    check_format(r.u8(), "a pack footer")
    count = r.u32()
    if count > SEGMENTS_MAX:
        raise r.fail(f"{count} segments")
    segments = tuple(Segment(*_SEGMENT.unpack(r.take(_SEGMENT.size))) for _ in range(r.count(count, _SEGMENT.size)))
    if any(s.raw_bytes > SEGMENT_RAW_BYTES_MAX for s in segments):
        raise r.fail("a segment too large")
    count = r.count(r.u32(), _OBJECT.size)
    if count > OBJECTS_MAX:
        raise r.fail(f"{count} objects")
    check_object_kinds(
        {*r.data[r.pos + ID_BYTES : r.pos + count * _OBJECT.size : _OBJECT.size]}, "an object in a pack footer"
    )
    objects: list[Located] = []
    for _ in range(count):
        object_id, kind, segment, offset, length = _OBJECT.unpack(r.take(_OBJECT.size))
        if segment >= len(segments) or offset + length > segments[segment].raw_bytes:
            raise r.fail("an object outside its segment")
        objects.append(Located(_KINDS[kind & 15], object_id, segment, offset, length, kind >> 4))
    out = Footer(segments, tuple(objects), r.tags())
    r.end()
    deltas = {(o.segment, o.offset) for o in objects if o.encoding == DELTA}
    if check_deltas(out.tags, "pack footer") != deltas:
        raise r.fail("deltas that are not those of its rows")
    return out


_KINDS = {int(k): k for k in ObjectKind}


def delta_tags(deltas: Mapping[tuple[int, int], Delta]) -> Tags:
    """The rows of deltas, by segment and offset, for the tags of a footer and a pack record."""
    rows = [_DELTA.pack(*place, *deltas[place]) for place in sorted(deltas)]
    if len(rows) > DELTAS_MAX:
        raise ValueError("more deltas than a pack may have")
    some = (rows[at : at + DELTAS_A_TAG] for at in range(0, len(rows), DELTAS_A_TAG))
    return tuple(zip(DELTA_TAGS, map(b"".join, some), strict=False))


def has_deltas(tags: Tags) -> bool:
    """Whether a pack with these tags has deltas."""
    return any(tag in DELTA_TAGS for tag, _ in tags)


def delta_at(tags: Tags, located: Located) -> Delta:
    """The row of a delta in the tags of its pack; `FormatError` where there is none."""
    wanted = struct.pack(">II", located.segment, located.offset)
    for tag, value in tags:
        if tag in DELTA_TAGS:
            rows = range(0, len(value), _DELTA.size)
            at = bisect_left(rows, wanted, key=partial(_row_place, value))
            if at < len(rows) and value.startswith(wanted, rows[at]):
                return Delta(*_DELTA.unpack_from(value, rows[at])[2:])
    raise FormatError(f"object {located.id.hex()[:16]} is a delta of which nobody says the base")


def deltas_in(tags: Tags) -> Iterator[Delta]:
    """The rows of all deltas of a pack."""
    rows = (value for tag, value in tags if tag in DELTA_TAGS)
    return (Delta(*row[2:]) for value in rows for row in _DELTA.iter_unpack(value))


def _row_place(rows: bytes, at: int) -> bytes:
    return rows[at : at + _PLACE_IN_DELTA_BYTES]


def check_deltas(tags: Tags, what: str) -> set[tuple[int, int]]:
    """Segment and offset of all deltas that tags have rows of; `FormatError` for rows that no writer makes."""
    ours = [(tag, value) for tag, value in tags if tag in DELTA_TAGS]
    if not ours:
        return set()
    full = DELTAS_A_TAG * _DELTA.size
    if [tag for tag, _ in ours] != [*DELTA_TAGS[: len(ours)]] or any(len(value) != full for _, value in ours[:-1]):
        raise FormatError(f"{what}: rows of deltas in a tag before the last one was full")
    if not ours[-1][1] or len(ours[-1][1]) % _DELTA.size or len(ours[-1][1]) > full:
        raise FormatError(f"{what}: rows of deltas cut short")
    rows = [row for _, value in ours for row in _DELTA.iter_unpack(value)]
    if any(a[:2] >= b[:2] for a, b in pairwise(rows)):
        raise FormatError(f"{what}: rows of deltas out of order")
    if any(not 1 <= row[3] <= DEPTH_MAX for row in rows):
        raise FormatError(f"{what}: a delta of an impossible depth")
    return {row[:2] for row in rows}


def encode_trailer(footer_stored_bytes: int) -> bytes:
    return u32(footer_stored_bytes)


def decode_trailer(data: bytes) -> int:
    """The stored length of the footer, which ends where the trailer begins."""
    if len(data) != TRAILER_PLAIN_BYTES:
        raise FormatError("pack trailer: wrong length")
    return int.from_bytes(data, "big")


def offsets(segments: tuple[Segment, ...]) -> list[int]:
    """Where each segment begins in the pack, in bytes, and as a last value where the last one ends."""
    out = [HEADER_BYTES]
    for s in segments:
        out.append(out[-1] + s.stored_bytes)
    return out


# ---- what an index says of a pack

PackId: TypeAlias = tuple[int, bytes]
"""Generation and name: never used again once a tombstone names it."""


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


class Packed(Protocol):
    """Bytes that are read a part at a time: in memory, or in a file."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> bytes: ...


_RECORD = struct.Struct(f">Q{ID_BYTES}sQ{HEADER_BYTES}s3sI")  # generation, name, size, header, copies, segments
_PACK_ID = struct.Struct(f">Q{ID_BYTES}s")
PACK_ID_BYTES = _PACK_ID.size
_WHOLE_COPIES = bytes((0, 1, 1))  # class of redundancy, k and n: shards are refused
RECORDS_HELD = 4096  # as values: 3 MB, of packs of one segment each
HELD_BYTES_MAX = 4096  # of a record, packed: one of a hundred segments
LONG_RECORDS_HELD = 16  # of those with more, as packs of many deltas have: up to a megabyte each
READ_TOGETHER_BYTES = 1 << 20


def encode_record(p: PackRecord) -> bytes:
    fixed = _RECORD.pack(p.generation, p.name, p.size, p.header, _WHOLE_COPIES, len(p.segments))
    return b"".join((fixed, *(_SEGMENT.pack(*g) for g in p.segments), encode_tags(p.tags)))


def _unpack_record(data: bytes) -> PackRecord:
    """The value of a packed record, which was checked."""
    generation, name, size, header, _, count = _RECORD.unpack_from(data)
    end = _RECORD.size + count * _SEGMENT.size
    segments = tuple(map(Segment._make, _SEGMENT.iter_unpack(data[_RECORD.size : end])))
    tags = Reader(data, "index segment", end).tags() if data[end:] != b"\0" else ()
    return PackRecord(name, generation, size, header, segments, tags)


_held_record = lru_cache(maxsize=RECORDS_HELD)(_unpack_record)
_held_long_record = lru_cache(maxsize=LONG_RECORDS_HELD)(_unpack_record)


class Packs(Sequence[PackRecord]):
    """The packs of a segment of an index, by id, ascending: packed as they are stored, and made values when asked for.

    A pack of one segment takes 140 bytes, a fifth of its value.
    """

    def __init__(self, data: Packed, begins: array[int]) -> None:
        """`begins`: where each record begins, and as a last value where the last one ends."""
        self.data = data
        self._begins = begins
        self._last: tuple[int, PackRecord] | None = None  # neighbours in a tree lie in one pack, mostly

    @classmethod
    def of(cls, records: Iterable[PackRecord]) -> Packs:
        return cls.joined(map(encode_record, records))

    @classmethod
    def joined(cls, packed: Iterable[bytes]) -> Packs:
        """Of records that are packed already."""
        data, begins = bytearray(), array("I", [0])
        for one in packed:
            data += one
            begins.append(len(data))
        return cls(bytes(data), begins)

    def kept(self, keep: Callable[[bytes], Packed]) -> Packs:
        """The same, with its bytes where this function puts them."""
        assert isinstance(self.data, bytes)
        return Packs(keep(self.data), self._begins)

    def __len__(self) -> int:
        return len(self._begins) - 1

    def packed(self, at: int) -> bytes:
        """A record as it is stored."""
        return self.data[self._begins[at] : self._begins[at + 1]]

    @overload
    def __getitem__(self, at: int) -> PackRecord: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[PackRecord, ...]: ...
    def __getitem__(self, at: int | slice) -> PackRecord | tuple[PackRecord, ...]:
        if isinstance(at, slice):
            return tuple(self[n] for n in range(len(self))[at])
        last = self._last
        if last is not None and last[0] == at:
            return last[1]
        data = self.packed(at if at >= 0 else range(len(self))[at])
        record = _held_record(data) if len(data) <= HELD_BYTES_MAX else _held_long_record(data)
        self._last = at, record
        return record

    def __iter__(self) -> Iterator[PackRecord]:
        return map(_unpack_record, self._all())

    def _all(self) -> Iterator[bytes]:
        """All records as they are stored; of a file, many are read at once."""
        first, begins = 0, self._begins
        while first < len(self):
            begin = begins[first]
            end = max(first + 1, bisect_left(begins, begin + READ_TOGETHER_BYTES, lo=first, hi=len(self)))
            data = self.data[begin : begins[end]]
            yield from (data[begins[n] - begin : begins[n + 1] - begin] for n in range(first, end))
            first = end

    def ids(self) -> Iterator[bytes]:
        """The packed ids (`pack_id`) of all."""
        return (one[:PACK_ID_BYTES] for one in self._all())

    def id_at(self, at: int) -> bytes:
        """The packed id of one."""
        begin = self._begins[at]
        return self.data[begin : begin + PACK_ID_BYTES]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Packs):
            return self._begins == other._begins and all(a == b for a, b in zip(self._all(), other._all(), strict=True))
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __repr__(self) -> str:
        return f"<{len(self):,} packs>"


def pack_id(pack: PackId) -> bytes:
    """An id in bytes, which sort as ids do."""
    return _PACK_ID.pack(*pack)


def unpack_id(packed: bytes) -> PackId:
    generation, name = _PACK_ID.unpack(packed)
    return generation, name


class Sizes:
    """The unpacked bytes of the segments of many packs."""

    def __init__(self) -> None:
        self.begins = array("I", [0])
        self.raw_bytes = array("I")


def read_packs(r: Reader) -> tuple[Packs, Sizes]:
    """Reads the packs of an index segment, checked.

    Their order is checked one by one: a frame of a few bytes can repeat a pack a million times.
    """
    count = r.count(r.u32(), _RECORD.size + 1)
    begin, begins, sizes, last = r.pos, array("I", [0]), Sizes(), b""
    for _ in range(count):
        packed_id = r.data[r.pos : r.pos + PACK_ID_BYTES]
        sizes.raw_bytes.extend(_checked_pack(r))
        sizes.begins.append(len(sizes.raw_bytes))
        if packed_id <= last:
            raise r.fail("packs out of order")
        last = packed_id
        begins.append(r.pos - begin)
    return Packs(r.data[begin : r.pos], begins), sizes


def _checked_pack(r: Reader) -> list[int]:
    """Reads one; -> the unpacked bytes of its segments."""
    _, name, size, _, redundancy, count = _RECORD.unpack(r.take(_RECORD.size))
    size_class, k, n = redundancy
    if count > SEGMENTS_MAX or not 1 <= k <= n or size > PACK_BYTES_MAX:
        raise r.fail("a pack with impossible numbers")
    if redundancy != _WHOLE_COPIES:
        raise UpgradeError(
            f"pack {name.hex()[:16]} is stored as {n} shards (class {size_class}), any {k} of which give it back; "
            "this program knows whole copies",
            next_step=UPGRADE,
        )
    segments = list(_SEGMENT.iter_unpack(r.take(r.count(count, _SEGMENT.size) * _SEGMENT.size)))
    if HEADER_BYTES + sum(stored for stored, _, _ in segments) > size:
        raise r.fail("segments beyond their pack")
    raw_bytes = [raw for _, raw, _ in segments]
    if raw_bytes and max(raw_bytes) > SEGMENT_RAW_BYTES_MAX:
        raise r.fail("a segment too large")
    check_deltas(r.tags(), "pack index")
    return raw_bytes
