"""Packs of a few blobs whose ids depend on a number, for indexes."""

from __future__ import annotations

import zstandard
from content_kit import digest
from hypothesis import strategies as st

from metasync.objects.model import ObjectKind
from metasync.store import pack_format as packfile
from metasync.store.index import IndexSegment, PackRecord, encode_segment
from metasync.store.pack_format import HEADER_BYTES, Header, Located, Segment

HEADER = packfile.encode_header(Header(0, 1, digest(0)))


def pack(n: int, objects: int = 3, generation: int = 1) -> tuple[PackRecord, list[Located]]:
    """A pack of `objects` blobs whose ids depend on n."""
    segment = Segment(100 * objects, 200 * objects, digest(n))
    record = PackRecord(digest(-n - 1), generation, HEADER_BYTES + 100 * objects + 50, HEADER, (segment,))
    return record, [Located(ObjectKind.BLOB, digest(n * 10_000 + i), 0, i * 10, 10) for i in range(objects)]


def stone(record: PackRecord) -> tuple[int, bytes]:
    return record.generation, record.name


records = st.integers(0, 30).map(lambda n: pack(n, n % 5))
packs_lists = st.lists(records, max_size=6, unique_by=lambda p: p[0].name)
stones = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9).map(digest)), max_size=4)


def plain(s: IndexSegment) -> bytes:
    return zstandard.ZstdDecompressor().decompress(encode_segment(s)[1:])


def packed(plain: bytes) -> bytes:
    return b"\1" + zstandard.ZstdCompressor().compress(plain)
