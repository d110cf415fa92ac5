"""File objects: the chunks of a file of more than one, split into nodes when long. `docs/design/format.md` 2."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from metasync.codec import Reader, check_format
from metasync.objects.chunker import LEVELS_MAX, cut
from metasync.objects.model import ID_BYTES, Chunk, Ids, ObjectKind

FORMAT = 1
_NODE = struct.Struct(">BBQ32sI")  # format, level, bytes covered, content hash (root only), count
_AFTER_FORMAT = struct.Struct(">BQ32sI")
_NO_CONTENT = bytes(ID_BYTES)


class FileNode(NamedTuple):
    """One node: `parts` are chunks (level 0) or child nodes, each with the bytes it covers.

    `content` is the keyed hash of the whole file in the root node, 32 zero bytes in the others.
    """

    level: int
    size: int
    content: bytes
    parts: tuple[Chunk, ...]


def encode_file(content: bytes, chunks: Sequence[Chunk], ids: Ids) -> list[tuple[bytes, bytes]]:
    """The nodes of a file of two or more chunks as (id, bytes), the root last."""
    if len(chunks) < 2 or len(content) != ID_BYTES or content == _NO_CONTENT:
        raise ValueError("a file object has two or more chunks and a content hash")
    if any(len(c.id) != ID_BYTES or c.size < 1 for c in chunks):
        raise ValueError("a chunk has an id and at least one byte")
    parts: list[Chunk] = list(chunks)
    nodes: list[tuple[bytes, bytes]] = []
    for level in range(LEVELS_MAX):
        items = [p.id + p.size.to_bytes(8, "big") for p in parts]
        ranges = cut(items, [p.id for p in parts], lambda i: int.from_bytes(i[:8], "big"))  # ids are keyed hashes
        upper: list[Chunk] = []
        for start, end in ranges:
            size = sum(p.size for p in parts[start:end])
            whole = content if len(ranges) == 1 else _NO_CONTENT
            data = _NODE.pack(FORMAT, level, size, whole, end - start) + b"".join(items[start:end])
            node_id = ids.of(ObjectKind.FILE, data)
            nodes.append((node_id, data))
            upper.append(Chunk(node_id, size))
        if len(upper) == 1:
            return nodes
        parts = upper
    raise ValueError("a file too large to encode")


def decode_node(data: bytes) -> FileNode:
    """Reads one node; `FormatError` on anything that `encode_file` would not write, `UpgradeError` if newer."""
    r = Reader(data, "file object")
    check_format(r.u8(), "a file object")
    level, size, content, count = _AFTER_FORMAT.unpack(r.take(_AFTER_FORMAT.size))
    if level >= LEVELS_MAX:
        raise r.fail(f"level {level}")
    parts = tuple(Chunk(r.take(ID_BYTES), r.u64()) for _ in range(r.count(count, ID_BYTES + 8)))
    r.end()
    if not parts or sum(p.size for p in parts) != size or any(p.size == 0 for p in parts):
        raise r.fail("sizes do not add up")
    if content != _NO_CONTENT and len(parts) < 2:
        raise r.fail("a root with one part")
    return FileNode(level, size, content, parts)


def is_root(node: FileNode) -> bool:
    """Only a root carries the hash of the whole content."""
    return node.content != _NO_CONTENT
