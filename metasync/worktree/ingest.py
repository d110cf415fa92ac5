"""Reads files into chunks: names them, and hands on those that are not stored yet (architecture.md, D1)."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from metasync.objects.chunker import Chunker
from metasync.objects.file import encode_file
from metasync.objects.model import Chunk, Entry, Ids, ObjectKind, split
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.scan import Content
from metasync.worktree.tree import WorkTree

Sink: TypeAlias = Callable[[ObjectKind, bytes, bytes], None]
Was: TypeAlias = Callable[[], Entry | None]
"""Gives the agreed entry at the path of a file that is read."""


class Pieces(Protocol):
    """Takes the chunks of one file in order, those that are known too, and then its nodes, if it has several chunks."""

    def take(self, chunk_id: bytes, data: bytes) -> None: ...
    def end(self, nodes: Sequence[tuple[bytes, bytes]]) -> None: ...


class Changes(Protocol):
    """Follows files whose former chunks may help to store the new ones. `of`: what takes the chunks of a file that has
    so many bytes; None: the sink does."""

    def of(self, was: Was, size: int) -> Pieces | None: ...


class Ingest:
    """Turns an open file into its content hash and chunks.

    `sink` takes every blob and file object that is not `known`; without a sink, files are only hashed. `chunks`: file
    object -> its blobs, and the nodes below it, so that reuse can be checked against a newer base. `read`: reads on
    from a descriptor. `changes`: takes the blobs instead, where the agreed file at that path may help to store them.
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
        self.changes: Changes | None = None

    def __call__(self, fd: int, st: os.stat_result, was: Was = lambda: None) -> Content:
        """Reads as many bytes from `fd` as the stat says, or all there are. The caller compares stats."""
        size = st.st_size
        if size > self._chunker.whole_bytes_max:
            return self.take(_first(partial(self._read, fd), size), size, was)
        pieces = self.changes.of(was, size) if self.changes is not None else None
        return self._one_chunk(self._read(fd, size) if size else b"", pieces)

    def of_bytes(self, data: bytes) -> Content:
        """Takes a file whose bytes are in memory."""
        return self.take(io.BytesIO(data).read, len(data))

    def take(self, read: Callable[[int], bytes], size: int, was: Was = lambda: None) -> Content:
        """Reads to the end of a content that should have `size` bytes."""
        pieces = self.changes.of(was, size) if self.changes is not None else None
        if size <= self._chunker.whole_bytes_max:
            return self._one_chunk(read(size + 1), pieces)
        hasher = self._ids.content()
        chunks: list[Chunk] = []
        for piece in self._chunker.cut(read, size):
            chunk_id = self._ids.blob(piece)
            hasher.update(piece)
            chunks.append(Chunk(chunk_id, len(piece)))
            self._take(chunk_id, piece, pieces)
        total = sum(c.size for c in chunks)
        self.bytes_read += total
        if len(chunks) < 2:
            return Content(total, chunks[0].id if chunks else self._ids.blob(b""), b"")
        content = hasher.digest()
        nodes = encode_file(content, chunks, self._ids)
        for node_id, data in nodes:
            self._store(ObjectKind.FILE, node_id, data)
        if pieces is not None:
            pieces.end(nodes)
        self.chunks[nodes[-1][0]] = (*(c.id for c in chunks), *(node_id for node_id, _ in nodes[:-1]))
        return Content(total, content, nodes[-1][0])

    def _one_chunk(self, data: bytes, pieces: Pieces | None = None) -> Content:
        content = self._ids.blob(data)
        self.bytes_read += len(data)
        if data:
            self._take(content, data, pieces)
        return Content(len(data), content, b"")

    def _take(self, chunk_id: bytes, data: bytes, pieces: Pieces | None) -> None:
        if pieces is None:
            self._store(ObjectKind.BLOB, chunk_id, data)
        else:
            pieces.take(chunk_id, data)

    def _store(self, kind: ObjectKind, object_id: bytes, data: bytes) -> None:
        if self._sink is not None and not (self._known is not None and self._known(object_id)):
            self._sink(kind, object_id, data)


def _first(read: Callable[[int], bytes], size: int) -> Callable[[int], bytes]:
    """Reads on, up to so many bytes in all."""
    left = size

    def some(n: int) -> bytes:
        nonlocal left
        data = read(min(n, left)) if left else b""
        left -= len(data)
        return data

    return some


def reread(tree: WorkTree, path: bytes, entry: Entry, ingest: Ingest, was: Was = lambda: None) -> bool:
    """Reads a file again to store it; False if it changed since the scan, but for what was appended to it."""
    parent, name = split(path)
    try:
        with tree.disk.opened(name, READ_FLAGS, tree.dir(parent)) as fd:
            got = ingest.take(_first(partial(tree.disk.read_next, fd), entry.size), entry.size, was)
            return tuple(got) == (entry.size, entry.content, entry.root)
    except OSError:
        return False
