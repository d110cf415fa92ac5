"""Directory objects: a sorted list of entries, split into nodes when long. `docs/design/format.md` section 3.

Generators that compare directories yield the ids they need, and are sent the objects' bytes, as in `walk`. Only nodes
above leaves are read to list the leaves; a leaf is looked at when what is in it matters.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from metasync.codec import Reader, bytes16, check_format, check_kind, encode_tags
from metasync.errors import FormatError
from metasync.objects.chunker import LEVELS_MAX, cut, cut_full
from metasync.objects.model import ID_BYTES, NAME_BYTES_MAX, TARGET_BYTES_MAX, Entry, Ids, Kind, ObjectKind

FORMAT = 1
_HEAD = struct.Struct(">BHqQH")  # kind, mode, mtime_ns, size, length of the name
_NODE = struct.Struct(">BBI")  # format, level, count
_BIG_FILE = 4  # on the wire: a file with a file object of its own
MODE_MAX = 0o7777


class DirNode(NamedTuple):
    """One node: a leaf's entries (level 0), or the children of an inner node as (first name, id)."""

    level: int
    entries: tuple[tuple[bytes, Entry], ...]
    children: tuple[tuple[bytes, bytes], ...]


def name_is_valid(name: bytes) -> bool:
    """A single path component: not empty, not `.` or `..`, without `/` and NUL."""
    return 0 < len(name) <= NAME_BYTES_MAX and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def _encode_entry(name: bytes, e: Entry) -> bytes:
    kind, body = int(e.kind), e.content
    if e.kind is Kind.FILE:
        if len(body) != ID_BYTES or len(e.root) not in (0, ID_BYTES):
            raise ValueError(f"{name!r}: a file entry without its ids")
        if e.root:
            kind, body = _BIG_FILE, body + e.root
    elif e.root:
        raise ValueError(f"{name!r}: only files have a file object")
    elif e.kind is Kind.SYMLINK:
        if e.mode or e.size != len(body) or not 0 < len(body) <= TARGET_BYTES_MAX or b"\0" in body:
            raise ValueError(f"{name!r}: not a symlink that can be encoded")
        body = bytes16(body)
    elif len(body) != ID_BYTES or e.mtime_ns or e.size:
        raise ValueError(f"{name!r}: a directory entry without its id, or with a time or a size")
    if e.mode > MODE_MAX:
        raise ValueError(f"{name!r}: mode {e.mode:o}")
    try:
        head = _HEAD.pack(kind, e.mode, e.mtime_ns, e.size, len(name))
    except struct.error as error:  # a file system may hold years that 64 bits of nanoseconds do not
        raise ValueError(f"{name!r}: mode, time or size out of range") from error
    return head + name + body + encode_tags(e.tags)


def encode_dir(entries: Sequence[tuple[bytes, Entry]], ids: Ids) -> list[tuple[bytes, bytes]]:
    """The nodes of a directory as (id, bytes), the root last. `entries`: sorted by name, names distinct and valid."""
    items, names = _encode_entries(entries), [name for name, _ in entries]
    ranges = cut(items, names, ids.split_point)
    leaves = [_node(0, items[start:end], ids) for start, end in ranges]
    if len(leaves) == 1:
        return leaves
    return leaves + encode_above([(names[at], i) for (at, _), (i, _) in zip(ranges, leaves, strict=True)], ids)


def encode_leaves(
    entries: Sequence[tuple[bytes, Entry]], ids: Ids, *, last: bool
) -> tuple[list[tuple[bytes, tuple[bytes, bytes]]], int]:
    """The full leaves of these entries in a long directory: (first name, node) each, and how many entries they hold.

    The rest belongs to the next leaf, with what follows; `last`: it is the last leaf.
    """
    items, names = _encode_entries(entries), [name for name, _ in entries]
    ranges = cut_full(items, names, ids.split_point)
    done = ranges[-1][1] if ranges else 0
    if last and done < len(items):
        ranges.append((done, len(items)))
        done = len(items)
    return [(names[start], _node(0, items[start:end], ids)) for start, end in ranges], done


def encode_above(leaves: Sequence[tuple[bytes, bytes]], ids: Ids) -> list[tuple[bytes, bytes]]:
    """The nodes above the leaves of a directory, two or more: (first name, id) each. The root is the last one."""
    nodes: list[tuple[bytes, bytes]] = []
    below = leaves
    for level in range(1, LEVELS_MAX):
        names = [name for name, _ in below]
        items = [bytes16(name) + node_id for name, node_id in below]
        upper = []
        for start, end in cut(items, names, ids.split_point):
            nodes.append(_node(level, items[start:end], ids))
            upper.append((names[start], nodes[-1][0]))
        if len(upper) == 1:
            return nodes
        below = upper
    raise ValueError("a directory too large to encode")


def _encode_entries(entries: Sequence[tuple[bytes, Entry]]) -> list[bytes]:
    items: list[bytes] = []
    last = b""
    for name, entry in entries:
        if name <= last or not name_is_valid(name):
            raise ValueError(f"{name!r}: not a valid next name after {last!r}")
        last = name
        items.append(_encode_entry(name, entry))
    return items


def _node(level: int, items: Sequence[bytes], ids: Ids) -> tuple[bytes, bytes]:
    data = _NODE.pack(FORMAT, level, len(items)) + b"".join(items)
    return ids.of(ObjectKind.DIR, data), data


def is_inner(data: bytes) -> bool:
    """Whether the bytes of a node say that there are nodes below it."""
    return data[1:2] not in (b"", b"\0")


def decode_node(data: bytes) -> DirNode:
    """Reads one node; raises `FormatError` on anything that `encode_dir` would not write, `UpgradeError` if newer."""
    r = Reader(data, "directory object")
    check_format(r.u8(), "a directory")
    level, count = r.u8(), r.u32()
    if level >= LEVELS_MAX:
        raise r.fail(f"level {level}")
    if level:
        children: list[tuple[bytes, bytes]] = []
        for _ in range(r.count(count, 2 + ID_BYTES)):
            name = r.bytes16(NAME_BYTES_MAX)
            if not name_is_valid(name) or (children and name <= children[-1][0]):
                raise r.fail("names out of order")
            children.append((name, r.take(ID_BYTES)))
        r.end()
        if not children:
            raise r.fail("an inner node without children")
        return DirNode(level, (), tuple(children))
    entries = _decode_entries(r, r.count(count, _HEAD.size + 2))
    r.end()
    return DirNode(0, entries, ())


def _decode_entries(r: Reader, count: int) -> tuple[tuple[bytes, Entry], ...]:
    out: list[tuple[bytes, Entry]] = []
    data, pos, last = r.data, r.pos, b""
    head, size_of_head, end = _HEAD.unpack_from, _HEAD.size, len(r.data)
    for _ in range(count):
        if pos + size_of_head > end:
            raise r.fail("entry cut short")
        kind, mode, mtime_ns, size, name_bytes = head(data, pos)
        pos += size_of_head
        name = data[pos : pos + name_bytes]
        pos += name_bytes
        if kind not in _KINDS or name <= last or not name_is_valid(name) or mode > MODE_MAX:
            check_kind(kind, _BIG_FILE, "a directory entry")
            raise r.fail("bad name, order or mode")
        last = name
        root = b""
        if kind == 1:
            content = data[pos : pos + ID_BYTES]
            pos += ID_BYTES
        elif kind == _BIG_FILE:
            content, root = data[pos : pos + ID_BYTES], data[pos + ID_BYTES : pos + 2 * ID_BYTES]
            pos += 2 * ID_BYTES
        else:
            r.pos = pos
            content = _decode_body(r, kind, mode, mtime_ns, size)
            pos = r.pos
        if pos >= end:  # a tag count must follow
            raise r.fail("entry cut short")
        if data[pos]:
            r.pos = pos
            tags = r.tags()
            pos = r.pos
        else:
            tags = ()
            pos += 1
        out.append((name, _new(Entry, (_KINDS[kind], mode, mtime_ns, size, content, root, tags))))
    r.pos = pos
    return tuple(out)


def _decode_body(r: Reader, kind: int, mode: int, mtime_ns: int, size: int) -> bytes:
    if kind == Kind.DIR:
        if mtime_ns or size:
            raise r.fail("a directory entry with a time or a size")
        return r.take(ID_BYTES)
    target = r.bytes16(TARGET_BYTES_MAX)  # a symlink: all other kinds are told before
    if mode or size != len(target) or not target or b"\0" in target:
        raise r.fail("bad symlink")
    return target


_new = tuple.__new__  # a NamedTuple's own constructor costs three times as much, and there is one per name
_KINDS = {1: Kind.FILE, 2: Kind.DIR, 3: Kind.SYMLINK, _BIG_FILE: Kind.FILE}


Needs: TypeAlias = tuple[ObjectKind, tuple[bytes, ...]]
Bytes: TypeAlias = Mapping[bytes, bytes]
Leaves: TypeAlias = list[tuple[bytes, bytes]]
"""The leaves of a directory: (first name, id), by names."""


class Beside(NamedTuple):
    """A directory beside another one. `own`: which of its leaves the other one does not have."""

    leaves: Leaves
    own: list[int]

    @classmethod
    def of(cls, dir_id: bytes | None, other: bytes | None, nodes: Mapping[bytes, DirNode]) -> Beside:
        leaves = listed(dir_id, nodes) if dir_id is not None else []
        shared = set(listed(other, nodes)) if other is not None else set()
        return cls(leaves, [at for at, leaf in enumerate(leaves) if leaf not in shared])

    def wanted(self) -> Iterator[bytes]:
        """The leaves to be read: its own, and those before them, which end before they begin."""
        return (self.leaves[i][1] for at in self.own for i in (at - 1, at) if i >= 0)

    def entries(self, nodes: Mapping[bytes, DirNode]) -> dict[bytes, Entry]:
        """What is in its own leaves, these being loaded."""
        out: dict[bytes, Entry] = {}
        for at in self.own:
            check_leaf(self.leaves, at, nodes)
            if at:
                check_leaf(self.leaves, at - 1, nodes)
            out.update(nodes[self.leaves[at][1]].entries)
        return out


def check_leaf(leaves: Leaves, at: int, nodes: Mapping[bytes, DirNode]) -> None:
    """`FormatError` unless a leaf, which is loaded, begins where it is said to, and ends before the next one."""
    first, leaf_id = leaves[at]
    node = nodes[leaf_id]
    if node.level:
        raise FormatError("directory object: a node at the wrong level")
    if next((name for name, _ in node.entries), b"") != first:
        raise FormatError("directory object: a node that starts elsewhere than its parent says")
    if at + 1 < len(leaves) and node.entries and node.entries[-1][0] >= leaves[at + 1][0]:
        raise FormatError("directory object: leaves out of order")


def listed(dir_id: bytes, nodes: Mapping[bytes, DirNode]) -> Leaves:
    """The leaves of a directory, all nodes above them being loaded. Each is looked at once, or refused."""
    leaves: Leaves = []
    _add_leaves(leaves, nodes, dir_id, None, None)
    return leaves


def _add_leaves(
    leaves: Leaves, nodes: Mapping[bytes, DirNode], node_id: bytes, level: int | None, first: bytes | None
) -> None:
    if level == 0:
        begins = first or b""
        # Here and not at the end: nodes that share their children would first spread to millions of millions.
        if leaves and begins <= leaves[-1][0]:
            raise FormatError("directory object: leaves out of order")
        leaves.append((begins, node_id))
        return
    node = nodes[node_id]
    if level is not None and node.level != level:
        raise FormatError("directory object: a node at the wrong level")
    begins = next((name for name, _ in (node.children or node.entries)), b"")
    if first is not None and begins != first:
        raise FormatError("directory object: a node that starts elsewhere than its parent says")
    if first is None and node.level and len(node.children) < 2:
        raise FormatError("directory object: a root with one child")
    if not node.level:
        leaves.append((begins, node_id))
    for name, child in node.children:
        _add_leaves(leaves, nodes, child, node.level - 1, name)


def above_leaves(dir_ids: Iterable[bytes], nodes: dict[bytes, DirNode]) -> Generator[Needs, Bytes, None]:
    """Loads all nodes above the leaves of directories, and the directories that are no more than a leaf."""
    ids = sorted(set(dir_ids))
    for _ in range(LEVELS_MAX):
        if not ids:
            return
        yield from load(ids, nodes)
        inner = [nodes[i] for i in ids if nodes[i].level > 1]
        ids = sorted({child for node in inner for _, child in node.children if child not in nodes})
    if ids:
        raise FormatError("directory object: more levels than there are")


def load(ids: Iterable[bytes], nodes: dict[bytes, DirNode]) -> Generator[Needs, Bytes, None]:
    """Loads the nodes that are not loaded yet."""
    if wanted := sorted({i for i in ids if i not in nodes}):
        got = yield ObjectKind.DIR, tuple(wanted)
        nodes.update((i, decode_node(got[i])) for i in wanted)
