"""Walks over trees of objects as generators: they yield the ids they need, and are sent the objects' bytes (D9).

Each `yield` is a set of ids, all of one kind, that may be fetched together, so that a walk costs one round of requests
per level and not one per directory. `docs/design/format.md` section 3.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeAlias

from metasync.errors import FormatError
from metasync.objects import directory, file
from metasync.objects.ids import Ids
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind

Needs: TypeAlias = tuple[ObjectKind, tuple[bytes, ...]]
Bytes: TypeAlias = Mapping[bytes, bytes]
Tree: TypeAlias = dict[bytes, Entry]
"""A flat tree: path -> entry; directories carry content b""."""


def _leaves(ids: list[bytes], nodes: dict[bytes, directory.DirNode], depth: int = 0) -> Generator[Needs, Bytes, None]:
    """Loads the nodes of directories, inner ones included, into `nodes`."""
    wanted = sorted({i for i in ids if i not in nodes})
    while wanted:
        got = yield ObjectKind.DIR, tuple(wanted)
        below: set[bytes] = set()
        for i in wanted:
            node = nodes[i] = directory.decode_node(got[i])
            below.update(child for _, child in node.children if child not in nodes)
        wanted = sorted(below)


def _entries(root: bytes, nodes: dict[bytes, directory.DirNode]) -> tuple[tuple[bytes, Entry], ...]:
    """A directory's entries, its nodes being loaded."""

    def leaves(node_id: bytes, level: int | None, first: bytes | None) -> list[directory.DirNode]:
        node = nodes[node_id]
        if level is not None and node.level != level:
            raise FormatError("directory object: a node at the wrong level")
        begins = next((name for name, _ in (node.children or node.entries)), None)
        if first is not None and begins != first:
            raise FormatError("directory object: a node that starts elsewhere than its parent says")
        if first is None and node.level and len(node.children) < 2:
            raise FormatError("directory object: a root with one child")
        if not node.level:
            return [node]
        return [leaf for name, child in node.children for leaf in leaves(child, node.level - 1, name)]

    return directory.joined(leaves(root, None, None))


def flatten(root: bytes | None) -> Generator[Needs, Bytes, Tree]:
    """The whole tree below a root directory's id; None is the empty tree."""
    tree: Tree = {}
    level = [(b"", root)] if root is not None else []
    while level:
        nodes: dict[bytes, directory.DirNode] = {}
        yield from _leaves([i for _, i in level], nodes)
        below: list[tuple[bytes, bytes]] = []
        for prefix, dir_id in level:
            for name, entry in _entries(dir_id, nodes):
                path = prefix + name
                if entry.kind is Kind.DIR:
                    below.append((path + b"/", entry.content))
                    entry = entry._replace(content=b"")
                tree[path] = entry
        level = below
    return tree


Change: TypeAlias = tuple[Entry | None, Entry | None]


def diff(a_root: bytes | None, b_root: bytes | None) -> Generator[Needs, Bytes, dict[bytes, Change]]:
    """What differs between two trees (None: empty): path -> (entry in a, entry in b). Equal directories stay shut."""
    out: dict[bytes, Change] = {}
    level: list[tuple[bytes, bytes | None, bytes | None]] = [(b"", a_root, b_root)]
    while level:
        nodes: dict[bytes, directory.DirNode] = {}
        yield from _leaves([i for _, a, b in level for i in (a, b) if i is not None and a != b], nodes)
        below: list[tuple[bytes, bytes | None, bytes | None]] = []
        for prefix, a, b in level:
            if a == b:
                continue
            left = dict(_entries(a, nodes)) if a is not None else {}
            right = dict(_entries(b, nodes)) if b is not None else {}
            for name in sorted({*left, *right}):
                x, y = left.get(name), right.get(name)
                if x == y:
                    continue
                path = prefix + name
                x_dir = x.content if x is not None and x.kind is Kind.DIR else None
                y_dir = y.content if y is not None and y.kind is Kind.DIR else None
                if x_dir is not None or y_dir is not None:
                    below.append((path + b"/", x_dir, y_dir))
                    x, y = _bare(x), _bare(y)
                if x != y:
                    out[path] = (x, y)
        level = below
    return out


def _bare(e: Entry | None) -> Entry | None:
    return e._replace(content=b"") if e is not None and e.kind is Kind.DIR else e


def chunks(roots: tuple[bytes, ...]) -> Generator[Needs, Bytes, dict[bytes, tuple[Chunk, ...]]]:
    """The chunks of files by the ids of their file objects, in order."""
    nodes: dict[bytes, file.FileNode] = {}
    wanted = sorted(set(roots))
    while wanted:
        got = yield ObjectKind.FILE, tuple(wanted)
        below: set[bytes] = set()
        for i in wanted:
            node = nodes[i] = file.decode_node(got[i])
            if node.level:
                below.update(p.id for p in node.parts if p.id not in nodes)
        wanted = sorted(below)

    def parts(node_id: bytes, size: int | None, level: int | None) -> list[Chunk]:
        node = nodes[node_id]
        if (size is not None and node.size != size) or (level is not None and node.level != level):
            raise FormatError("file object: a node that is not what its parent says")
        if file.is_root(node) != (level is None):
            raise FormatError("file object: a content hash is the root's alone")
        if not node.level:
            return list(node.parts)
        return [c for p in node.parts for c in parts(p.id, p.size, node.level - 1)]

    return {root: tuple(parts(root, None, None)) for root in roots}


def build(tree: Mapping[bytes, Entry], ids_of: Ids) -> tuple[bytes, dict[bytes, bytes]]:
    """The directory objects of a flat tree: (id of the root, {id: bytes} of every node)."""
    children: dict[bytes, list[tuple[bytes, Entry]]] = {b"": []}
    for path in tree:
        entry = tree[path]
        if entry.kind is Kind.DIR:
            children.setdefault(path, [])
    for path in sorted(tree):
        parent, _, name = path.rpartition(b"/")
        children[parent].append((name, tree[path]))
    nodes: dict[bytes, bytes] = {}
    ids: dict[bytes, bytes] = {}
    for path in sorted(children, key=lambda p: -p.count(b"/") if p else 1):
        listed = [
            (
                name,
                entry._replace(content=ids[path + b"/" + name if path else name]) if entry.kind is Kind.DIR else entry,
            )
            for name, entry in children[path]
        ]
        encoded = directory.encode_dir(listed, ids_of)
        nodes.update(encoded)
        ids[path] = encoded[-1][0]
    return ids[b""], nodes
