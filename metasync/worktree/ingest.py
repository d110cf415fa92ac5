"""Reads files into chunks: names them, and hands on those that are not stored yet (architecture.md, D1)."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TypeAlias

from metasync.objects.chunker import Chunker
from metasync.objects.file import encode_file
from metasync.objects.model import Chunk, Entry, Ids, ObjectKind, split
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.scan import Content
from metasync.worktree.tree import WorkTree

Sink: TypeAlias = Callable[[ObjectKind, bytes, bytes], None]


class Ingest:
    """Turns an open file into its content hash and chunks.

    `sink` takes every blob and file object that is not `known`; without a sink, files are only hashed. `chunks`: file
    object -> its blobs, so that reuse can be checked against a newer base. `read`: reads on from a descriptor.
    """

    def __init__(
        self,
        chunker: Chunker,
        ids: Ids,
        *,
        sink: Sink | None = None,
        known: Callable[[bytes], bool] | None = None,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._chunker = chunker
        self._ids = ids
        self._sink = sink
        self._known = known
        self._read = read
        self.bytes_read = 0
        self.chunks: dict[bytes, tuple[bytes, ...]] = {}

    def __call__(self, fd: int, st: os.stat_result) -> Content:
        """Reads from `fd` to its end. The caller compares stats before and after."""
        return self.take(lambda n: self._read(fd, n), st.st_size)

    def of_bytes(self, data: bytes) -> Content:
        """Takes a file whose bytes are in memory."""
        return self.take(io.BytesIO(data).read, len(data))

    def take(self, read: Callable[[int], bytes], size: int) -> Content:
        """Reads to the end of a content that should have `size` bytes."""
        if size <= self._chunker.whole_bytes_max:
            return self._one_chunk(read(size + 1))  # a byte more shows growth; the caller sees another size
        hasher = self._ids.content()
        chunks: list[Chunk] = []
        for piece in self._chunker.cut(read, size):
            chunk_id = self._ids.blob(piece)
            hasher.update(piece)
            chunks.append(Chunk(chunk_id, len(piece)))
            self._store(ObjectKind.BLOB, chunk_id, piece)
        total = sum(c.size for c in chunks)
        self.bytes_read += total
        if len(chunks) < 2:
            return Content(total, chunks[0].id if chunks else self._ids.blob(b""), b"")
        content = hasher.digest()
        nodes = encode_file(content, chunks, self._ids)
        for node_id, data in nodes:
            self._store(ObjectKind.FILE, node_id, data)
        self.chunks[nodes[-1][0]] = tuple(c.id for c in chunks)
        return Content(total, content, nodes[-1][0])

    def _one_chunk(self, data: bytes) -> Content:
        content = self._ids.blob(data)
        self.bytes_read += len(data)
        if data:
            self._store(ObjectKind.BLOB, content, data)
        return Content(len(data), content, b"")

    def _store(self, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        if self._sink is not None and not (self._known is not None and self._known(object_id)):
            self._sink(kind, object_id, data)


def reread(tree: WorkTree, path: bytes, entry: Entry, ingest: Ingest) -> bool:
    """Reads a file again to store it; False if it changed since the scan."""
    parent, name = split(path)
    try:
        with tree.disk.opened(name, READ_FLAGS, tree.dir(parent)) as fd:
            return tuple(ingest(fd, tree.disk.fstat(fd))) == (entry.size, entry.content, entry.root)
    except OSError:
        return False
