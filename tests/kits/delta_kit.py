"""Pushes of documents that are stored as deltas, and indexes that say anything of them."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from content_kit import digest

from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import HEADER_BYTES, Delta, Header, Located, Segment, delta_tags, encode_header
from metasync.transfer.upload import Upload

LATER: Final = 2  # an encoding of objects that this version does not know


def edited(n: int, seed: int = 1) -> bytes:
    """A document that cannot be compressed, after so many edits."""
    data = bytearray(random.Random(seed).randbytes(60_000))
    for i in range(n):
        data[i * 5000 : i * 5000] = b"edit %d" % i
    return bytes(data)


def write_deltas(monkeypatch: pytest.MonkeyPatch, *, depth_max: int = 8) -> list[bytes]:
    """Stores each new document as a delta of the one before, on whatever device, and makes no other deltas. -> the ids
    of blobs that were stored so."""
    monkeypatch.setattr("metasync.sync.replaced_chunks.known_chunks", lambda *_: ())
    last: list[tuple[bytes, bytes, int]] = []
    made: list[bytes] = []
    add = Upload.add

    def adding(self: Upload, kind: ObjectKind, object_id: bytes, data: bytes, row: Delta | None = None) -> Any:
        is_new = row is None and object_id not in self and object_id not in {one[0] for one in last}
        if kind is not ObjectKind.BLOB or len(data) < 50_000 or not is_new:
            return add(self, kind, object_id, data, row)
        depth = last[-1][2] + 1 if last and last[-1][2] < depth_max else 0
        last.append((object_id, data, depth))
        if not depth:
            return add(self, kind, object_id, data)
        base, old, _ = last[-2]
        made.append(object_id)
        return add(self, kind, object_id, delta.make(old, data), Delta(base, depth))

    monkeypatch.setattr(Upload, "add", adding)
    return made


def told(*packs: list[tuple[int, int, int, int]]) -> Index:
    """An index of packs, a segment each: of each object its number, its encoding, its base and its depth.

    Base 0: it has no row. Ids are the digests of these numbers, a pack's name that of its own, counted down from -1.
    """
    segments = []
    for n, objects in enumerate(packs):
        rows, located = {}, []
        for at, (o, encoding, base, depth) in enumerate(objects):
            located.append(Located(ObjectKind.BLOB, digest(o), 0, at * 10, 10, encoding))
            if base:
                rows[0, at * 10] = Delta(digest(base), depth)
        segment = Segment(10 * len(located), 10 * len(located), digest(n))
        header, size = encode_header(Header(0, 1, digest(0))), HEADER_BYTES + 10 * len(located) + 9
        record = PackRecord(digest(-n - 1), 0, size, header, (segment,), delta_tags(rows))
        segments.append(make_segment([(record, located)]))
    return Index(segments)
