"""The layout of a pack: a clear header, sealed segments, a sealed footer (format.md, section 5; architecture.md, D3).

    header | segment 0 | ... | segment n-1 | padding | salt | footer | trailer

The header is clear; all else is opaque here (sealed, or plain with `--no-encryption`). The footer lists segments and
objects, so that a pack can be read, and the pack index rebuilt, from packs alone. The trailer has a fixed length and
holds the footer's. The salt is 8 bytes that nobody reads, or none: it gives the writer a choice of names. Padding
brings the whole to a Padmé size (Nikitin et al., "Reducing Metadata Leakage from Encrypted Files and Communication with
PURBs", 2019, section 4), so that a pack's size tells at most 12 % and often 3 % about what is in it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from metasync.codec import Reader, Tags, check_format, encode_tags, u8, u32
from metasync.errors import FormatError
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

    `encoding`: 0 whole. 1 is kept for deltas (the base's id and depth precede the delta in the segment).
    """

    kind: ObjectKind
    id: bytes
    segment: int
    offset: int
    length: int
    encoding: int = 0


class Footer(NamedTuple):
    """All that is needed to read a pack: its segments in order and its objects."""

    segments: tuple[Segment, ...]
    objects: tuple[Located, ...]
    tags: Tags = ()


def encode_header(h: Header) -> bytes:
    return _HEADER.pack(FORMAT, h.chain, h.epoch, h.random)


def decode_header(data: bytes) -> Header:
    """Reads the first bytes of a pack; `FormatError`, or `UpgradeError` if newer."""
    if len(data) < HEADER_BYTES:
        raise FormatError("pack: cut short")
    fmt, chain, epoch, random = _HEADER.unpack_from(data)
    check_format(fmt, "a pack")
    return Header(chain, epoch, random)


def pack_place(kind: ObjectKind, object_id: bytes, offset: int, length: int) -> bytes:
    """Packs the place of a whole object in segment 0 as a footer has it, in a fifth of the memory; see `in_segment`."""
    return _OBJECT.pack(object_id, kind, 0, offset, length)


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
    return out


_KINDS = {int(k): k for k in ObjectKind}


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
