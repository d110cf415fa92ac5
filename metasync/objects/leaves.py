"""The leaves of directories that are cut into nodes: which there are, and which two directories do not share.

Generators as in `walk`: they yield the ids they need, and are sent the objects' bytes. Only nodes above leaves are read
to list them; a leaf is looked at when what is in it matters.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from metasync.errors import FormatError
from metasync.objects import directory
from metasync.objects.model import Entry, ObjectKind
from metasync.objects.split import LEVELS_MAX

Needs: TypeAlias = tuple[ObjectKind, tuple[bytes, ...]]
Bytes: TypeAlias = Mapping[bytes, bytes]
Leaves: TypeAlias = list[tuple[bytes, bytes]]
"""The leaves of a directory: (first name, id), by names."""


class Beside(NamedTuple):
    """A directory beside another one. `own`: which of its leaves the other one does not have."""

    leaves: Leaves
    own: list[int]

    @classmethod
    def of(cls, dir_id: bytes | None, other: bytes | None, nodes: Mapping[bytes, directory.DirNode]) -> Beside:
        leaves = listed(dir_id, nodes) if dir_id is not None else []
        shared = set(listed(other, nodes)) if other is not None else set()
        return cls(leaves, [at for at, leaf in enumerate(leaves) if leaf not in shared])

    def wanted(self) -> Iterator[bytes]:
        """The leaves to be read: its own, and those before them, which end before they begin."""
        return (self.leaves[i][1] for at in self.own for i in (at - 1, at) if i >= 0)

    def entries(self, nodes: Mapping[bytes, directory.DirNode]) -> dict[bytes, Entry]:
        """What is in its own leaves, these being loaded."""
        out: dict[bytes, Entry] = {}
        for at in self.own:
            check_leaf(self.leaves, at, nodes)
            if at:
                check_leaf(self.leaves, at - 1, nodes)
            out.update(nodes[self.leaves[at][1]].entries)
        return out


def check_leaf(leaves: Leaves, at: int, nodes: Mapping[bytes, directory.DirNode]) -> None:
    """`FormatError` unless a leaf, which is loaded, begins where it is said to, and ends before the next one."""
    first, leaf_id = leaves[at]
    node = nodes[leaf_id]
    if node.level:
        raise FormatError("directory object: a node at the wrong level")
    if next((name for name, _ in node.entries), b"") != first:
        raise FormatError("directory object: a node that starts elsewhere than its parent says")
    if at + 1 < len(leaves) and node.entries and node.entries[-1][0] >= leaves[at + 1][0]:
        raise FormatError("directory object: leaves out of order")


def listed(dir_id: bytes, nodes: Mapping[bytes, directory.DirNode]) -> Leaves:
    """The leaves of a directory, all nodes above them being loaded. Each is looked at once, or refused."""
    leaves: Leaves = []

    def add(node_id: bytes, level: int | None, first: bytes | None) -> None:
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
            add(child, node.level - 1, name)

    add(dir_id, None, None)
    return leaves


def above_leaves(dir_ids: Iterable[bytes], nodes: dict[bytes, directory.DirNode]) -> Generator[Needs, Bytes, None]:
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


def load(ids: Iterable[bytes], nodes: dict[bytes, directory.DirNode]) -> Generator[Needs, Bytes, None]:
    """Loads the nodes that are not loaded yet."""
    if wanted := sorted({i for i in ids if i not in nodes}):
        got = yield ObjectKind.DIR, tuple(wanted)
        nodes.update((i, directory.decode_node(got[i])) for i in wanted)
