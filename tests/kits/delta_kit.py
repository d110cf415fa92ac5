"""Pushes of documents that are stored as deltas."""

from __future__ import annotations

import random
from typing import Any

import pytest

from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.store.pack_format import Delta
from metasync.transfer.upload import Upload


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
