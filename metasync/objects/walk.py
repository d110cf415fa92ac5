"""Walks over trees of objects: generators that yield ids and are sent the objects' bytes (architecture.md, D9).

Each `yield` is a set of ids, all of one kind, that may be fetched together, so that a walk costs one round of requests
per level and not one per directory. `docs/design/format.md` section 3.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from metasync.errors import FormatError
from metasync.objects import directory, file
from metasync.objects.chunker import LEVELS_MAX
from metasync.objects.directory import Beside, Bytes, Leaves, Needs, above_leaves, check_leaf, listed, load
from metasync.objects.model import DEPTH_MAX, PATH_BYTES_MAX, Chunk, Entry, Ids, Kind, ObjectKind

Tree: TypeAlias = dict[bytes, Entry]
"""A flat tree: path -> entry; directories carry content b""."""

# Equal directories are one object, so a few nodes can say more paths than any memory holds.
TREE_BYTES_MAX = 8 << 30  # of a flat tree in memory: 20 million files with paths of 130 bytes
TREE_BYTES_SURE = 64 << 20  # that any device has: 150,000 files. Beyond it `Room` asks how much there is
ENTRY_BYTES = 300  # what a path and its entry take, without the path's bytes
CHUNKS_AGAIN_MAX = 1 << 22  # of nodes that one walk meets again: 16 TiB of zeros in chunks of 4 MiB


Most: TypeAlias = Callable[[], int]
"""Tells how many bytes of paths and entries a walk may hold now."""


def _any() -> int:
    return TREE_BYTES_MAX


class Room:
    """What is left for paths in one walk. `most` is asked once, when a tree turns out to be large."""

    def __init__(self, most: Most = _any) -> None:
        self.left = self._sure = min(TREE_BYTES_SURE, TREE_BYTES_MAX)
        self._most: Most | None = most

    def take(self, path: bytes) -> bytes:
        if len(path) > PATH_BYTES_MAX:
            raise FormatError(f"directory object: a path of {len(path)} bytes")
        self.left -= len(path) + ENTRY_BYTES
        if self.left < 0:
            self._ask()
        return path

    def _ask(self) -> None:
        if self._most is not None:
            self.left += min(self._most(), TREE_BYTES_MAX) - self._sure
            self._most = None
        if self.left < 0:
            raise _too_large("a tree of more paths than this device has memory for")


def _too_large(what: str) -> FormatError:
    error = FormatError(f"directory object: {what}")
    error.is_too_large = True
    return error


def check_depth(directories: int) -> None:
    """Raises `FormatError` for more directories, one in the other, than any tree may have."""
    if directories > DEPTH_MAX:
        raise _too_large(f"directories nested deeper than {DEPTH_MAX:,}")


def _opened(ids: list[bytes], nodes: dict[bytes, directory.DirNode]) -> Generator[Needs, Bytes, dict[bytes, Leaves]]:
    """Loads all nodes of directories. -> the leaves of each."""
    yield from above_leaves(ids, nodes)
    leaves = {i: listed(i, nodes) for i in ids}
    yield from load((leaf_id for some in leaves.values() for _, leaf_id in some), nodes)
    return leaves


def _entries(leaves: Leaves, nodes: Mapping[bytes, directory.DirNode]) -> list[tuple[bytes, Entry]]:
    """A directory's entries, its nodes being loaded. Each leaf is looked at once, or refused."""
    for at in reversed(range(len(leaves))):  # where a leaf begins is judged before where the one before it ends
        check_leaf(leaves, at, nodes)
    return [item for _, leaf_id in leaves for item in nodes[leaf_id].entries]


def flatten(root: bytes | None, most: Most = _any) -> Generator[Needs, Bytes, Tree]:
    """The whole tree below a root directory's id; None is the empty tree. `most`: see `Room`."""
    tree: Tree = {}
    room, depth = Room(most), 0
    level = [(b"", root)] if root is not None else []
    while level:
        check_depth(depth)
        depth += 1
        nodes: dict[bytes, directory.DirNode] = {}
        leaves = yield from _opened([i for _, i in level], nodes)
        below: list[tuple[bytes, bytes]] = []
        for prefix, dir_id in level:
            for name, entry in _entries(leaves[dir_id], nodes):
                path = room.take(prefix + name)
                if entry.kind is Kind.DIR:
                    below.append((path + b"/", entry.content))
                    entry = entry._replace(content=b"")
                tree[path] = entry
        level = below
    return tree


def listing(dir_id: bytes) -> Generator[Needs, Bytes, tuple[tuple[bytes, Entry], ...]]:
    """One directory's names and entries, those of directories with their ids."""
    nodes: dict[bytes, directory.DirNode] = {}
    leaves = yield from _opened([dir_id], nodes)
    return tuple(_entries(leaves[dir_id], nodes))


Trail: TypeAlias = dict[tuple[bytes, bytes], Entry | None]
"""What a search came by: (id of a directory, the rest of the path) -> what it led to."""


class Found(NamedTuple):
    """`entry`: what is at the path (a directory with its id), or None. `reached`: the last directory on the way.

    `trail`: for the next search of the same path, which ends where it meets a directory that this one went through.
    """

    entry: Entry | None
    reached: bytes
    trail: Trail


ROOT_MODE = 0o755  # of a tree's root, whose own mode is stored nowhere


def find(root: bytes | None, path: bytes, trail: Trail | None = None) -> Generator[Needs, Bytes, Found]:
    """What is at `path` (b"": the root) below a root directory's id, opening only what lies on the way to it."""
    here: Entry | None = Entry(Kind.DIR, ROOT_MODE, 0, 0, root) if root is not None else None
    rest, reached, passed = path, b"", []
    while rest and here is not None and here.kind is Kind.DIR:
        step = (here.content, rest)
        if trail is not None and step in trail:
            here = trail[step]
            break
        passed.append(step)
        reached = path[: len(path) - len(rest)].rstrip(b"/")
        name, _, rest = rest.partition(b"/")
        here = yield from _child(here.content, name)
    else:
        here = here if not rest else None  # a path that goes on below a file
    return Found(here, reached, {**dict.fromkeys(passed, here), **_onward(trail, passed)})


def _onward(trail: Trail | None, passed: list[tuple[bytes, bytes]]) -> Trail:
    """The part of an earlier trail that is still of use: deeper than what was opened anew."""
    depth = min((len(rest) for _, rest in passed), default=1 << 62)
    return {step: entry for step, entry in (trail or {}).items() if len(step[1]) < depth}


def _child(dir_id: bytes, name: bytes) -> Generator[Needs, Bytes, Entry | None]:
    """One name in a directory; of a long one only the nodes that lead to it are loaded."""
    node_id, level = dir_id, -1
    while True:
        node = directory.decode_node((yield ObjectKind.DIR, (node_id,))[node_id])
        if level >= 0 and node.level != level:
            raise FormatError("directory object: a node at the wrong level")
        if not node.level:
            return dict(node.entries).get(name)
        at = bisect_right([first for first, _ in node.children], name) - 1
        if at < 0:
            return None
        node_id, level = node.children[at][1], node.level - 1


Change: TypeAlias = tuple[Entry | None, Entry | None]


def diff(a_root: bytes | None, b_root: bytes | None, most: Most = _any) -> Generator[Needs, Bytes, dict[bytes, Change]]:
    """What differs between two trees (None: empty): path -> (entry in a, entry in b). `most`: see `Room`.

    Equal directories stay shut, and so do the parts that two long directories share.
    """
    out: dict[bytes, Change] = {}
    room, depth = Room(most), 0
    level: list[tuple[bytes, bytes | None, bytes | None]] = [(b"", a_root, b_root)]
    while level := [(prefix, a, b) for prefix, a, b in level if a != b]:
        check_depth(depth)
        depth += 1
        nodes: dict[bytes, directory.DirNode] = {}
        yield from above_leaves([i for _, a, b in level for i in (a, b) if i is not None], nodes)
        parted = [(prefix, Beside.of(a, b, nodes), Beside.of(b, a, nodes)) for prefix, a, b in level]
        yield from load((i for _, a, b in parted for i in (*a.wanted(), *b.wanted())), nodes)
        below: list[tuple[bytes, bytes | None, bytes | None]] = []
        for prefix, a_part, b_part in parted:
            left, right = a_part.entries(nodes), b_part.entries(nodes)
            for name in sorted({*left, *right}):
                x, y = left.get(name), right.get(name)
                if x == y:
                    continue
                path = room.take(prefix + name)
                x_dir = x.content if x is not None and x.kind is Kind.DIR else None
                y_dir = y.content if y is not None and y.kind is Kind.DIR else None
                if x_dir is not None or y_dir is not None:
                    below.append((path + b"/", x_dir, y_dir))
                    x, y = bare(x), bare(y)
                if x != y:
                    out[path] = (x, y)
        level = below
    return out


def bare(e: Entry | None) -> Entry | None:
    """An entry as flat trees have it: a directory's own id is left out."""
    return e._replace(content=b"") if e is not None and e.kind is Kind.DIR else e


def chunks(roots: tuple[bytes, ...]) -> Generator[Needs, Bytes, dict[bytes, tuple[Chunk, ...]]]:
    """The chunks of files by the ids of their file objects, in order.

    Nodes that stand in several places count against `CHUNKS_AGAIN_MAX`: `FormatError` beyond it.
    """
    nodes: dict[bytes, file.FileNode] = {}
    wanted = sorted(set(roots))
    for _ in range(LEVELS_MAX):
        if not wanted:
            break
        got = yield ObjectKind.FILE, tuple(wanted)
        below: set[bytes] = set()
        for i in wanted:
            node = nodes[i] = file.decode_node(got[i])
            if node.level:
                below.update(p.id for p in node.parts if p.id not in nodes)
        wanted = sorted(below)
    if wanted:
        raise FormatError("file object: more levels than there are")

    left = CHUNKS_AGAIN_MAX
    met: set[bytes] = set()

    def add(node_id: bytes, size: int | None, level: int | None, out: list[Chunk]) -> None:
        nonlocal left
        node = nodes[node_id]
        if (size is not None and node.size != size) or (level is not None and node.level != level):
            raise FormatError("file object: a node that is not what its parent says")
        if file.is_root(node) != (level is None):
            raise FormatError("file object: a content hash is the root's alone")
        left -= len(node.parts) if node_id in met else 0
        met.add(node_id)
        if left < 0:
            raise FormatError("file object: its nodes repeat more often than those of any file")
        if not node.level:
            out.extend(node.parts)
            return
        for p in node.parts:
            add(p.id, p.size, node.level - 1, out)

    found: dict[bytes, tuple[Chunk, ...]] = {}
    for root in dict.fromkeys(roots):
        listed: list[Chunk] = []
        add(root, None, None, listed)
        found[root] = tuple(listed)
    return found


def rebuild(
    base_root: bytes, tree: Mapping[bytes, Entry], differing: Iterable[bytes], ids_of: Ids
) -> Generator[Needs, Bytes, tuple[bytes, dict[bytes, bytes]]]:
    """`build` of a tree that differs from that of `base_root` at these paths alone (directories too).

    -> (id of the root, {id: bytes} of new directory nodes). Reads and encodes only the directories above these paths,
    and of long ones only the nodes around a change. `tree` is asked for these paths and the directories above them.
    """
    room = Room()
    edits: dict[bytes, dict[bytes, Entry | None]] = {b"": {}}
    for path in differing:
        parent, _, name = room.take(path).rpartition(b"/")
        edits.setdefault(parent, {})[name] = entry = tree.get(path)
        if entry is not None and entry.kind is Kind.DIR:
            edits.setdefault(path, {})  # of a directory that is new all it holds is new, and it may hold nothing
        while parent:
            path, parent = parent, parent.rpartition(b"/")[0]
            edits.setdefault(parent, {}).setdefault(path.rpartition(b"/")[2], tree.get(path))
    dirs = {path for path in edits if not path or ((e := tree.get(path)) is not None and e.kind is Kind.DIR)}
    opened: dict[bytes, _Opened] = {path: _Opened() for path in dirs}
    level = [(b"", base_root)]
    while level:
        for path, dir_id in level:
            opened[path] = _Opened(dir_id)
        yield from _open([(opened[path], edits[path]) for path, _ in level])
        was = ((path + b"/" + n if path else n, opened[path].was(n)) for path, _ in level for n in edits[path])
        level = [(full, e.content) for full, e in was if full in dirs and e is not None and e.kind is Kind.DIR]
    out: dict[bytes, bytes] = {}
    ids: dict[bytes, bytes] = {}
    for path in sorted(dirs, key=lambda p: (-p.count(b"/") if p else 1, p)):
        changes = {
            name: e._replace(content=ids[path + b"/" + name if path else name])
            if e is not None and e.kind is Kind.DIR
            else e
            for name, e in edits[path].items()
        }
        ids[path], made = yield from opened[path].edited(changes, ids_of)
        out.update(made)
    return ids[b""], out


LEAVES_SURE = 6  # so many leaves, all but the last of 16 KiB at least, are never one node (`split.NODE_BYTES_WHOLE`)


class _Opened:
    """A directory that is edited: its leaves as (first name, id), and the entries of those that were read."""

    def __init__(self, dir_id: bytes | None = None) -> None:
        self.dir_id = dir_id
        self.leaves: list[tuple[bytes, bytes]] = []
        self.read: dict[bytes, tuple[tuple[bytes, Entry], ...]] = {}

    def take(self, nodes: Mapping[bytes, directory.DirNode]) -> None:
        """Lists the leaves, all nodes above them being loaded; of a short directory, and the leaves loaded, too."""
        assert self.dir_id is not None
        self.leaves = listed(self.dir_id, nodes)
        self.read = {}
        for at, (_, leaf_id) in enumerate(self.leaves):
            if leaf_id in nodes:
                check_leaf(self.leaves, at, nodes)
                self.read[leaf_id] = nodes[leaf_id].entries

    def place(self, name: bytes) -> int:
        """Which leaf a name is in, or belongs in."""
        return max(bisect_right(self.leaves, name, key=lambda leaf: leaf[0]) - 1, 0)

    def was(self, name: bytes) -> Entry | None:
        """What was at a name, its leaf having been read."""
        if not self.leaves:
            return None
        entries = self.read[self.leaves[self.place(name)][1]]
        at = bisect_left(entries, name, key=lambda item: item[0])
        return entries[at][1] if at < len(entries) and entries[at][0] == name else None

    def edited(
        self, changes: Mapping[bytes, Entry | None], ids_of: Ids
    ) -> Generator[Needs, Bytes, tuple[bytes, dict[bytes, bytes]]]:
        """With these entries in place of what it holds at their names; None: nothing. -> (id, nodes that were made)."""
        by_leaf: dict[int, dict[bytes, Entry | None]] = {}
        for name, entry in changes.items():
            by_leaf.setdefault(self.place(name), {})[name] = entry
        leaves: list[tuple[bytes, bytes]] = []
        made: dict[bytes, bytes] = {}
        rest: list[tuple[bytes, Entry]] = []  # what the leaves so far have left over
        many = len(self.leaves) >= LEAVES_SURE
        for at, leaf in enumerate(self.leaves) if many else ():
            if not rest and at not in by_leaf:
                leaves.append(leaf)
                continue
            rest += _replaced((yield from self.entries(leaf)), by_leaf.get(at, {}))
            nodes, done = directory.encode_leaves(rest, ids_of, last=at == len(self.leaves) - 1)
            leaves += [(first, node_id) for first, (node_id, _) in nodes]
            made.update(node for _, node in nodes)
            del rest[:done]
        if len(leaves) < LEAVES_SURE:
            everything: list[tuple[bytes, Entry]] = []
            for leaf in self.leaves:
                everything += yield from self.entries(leaf)
            nodes_of_all = directory.encode_dir(_replaced(everything, changes), ids_of)
            return nodes_of_all[-1][0], dict(nodes_of_all)
        above = directory.encode_above(leaves, ids_of)
        return above[-1][0], {**made, **dict(above)}

    def entries(self, leaf: tuple[bytes, bytes]) -> Generator[Needs, Bytes, tuple[tuple[bytes, Entry], ...]]:
        """What is in a leaf."""
        first, leaf_id = leaf
        if leaf_id in self.read:
            return self.read[leaf_id]
        node = directory.decode_node((yield ObjectKind.DIR, (leaf_id,))[leaf_id])
        if node.level or not node.entries or node.entries[0][0] != first:
            raise FormatError("directory object: a node that is not what its parent says")
        return node.entries


def _replaced(
    entries: Iterable[tuple[bytes, Entry]], changes: Mapping[bytes, Entry | None]
) -> list[tuple[bytes, Entry]]:
    """Entries with some of them replaced, added and left out (None); by name."""
    listed: dict[bytes, Entry | None] = {**dict(entries), **changes}
    return [(name, entry) for name, entry in sorted(listed.items()) if entry is not None]


def _open(wanted: list[tuple[_Opened, Iterable[bytes]]]) -> Generator[Needs, Bytes, None]:
    """Opens directories: loads all nodes above their leaves, and the leaves in which the given names belong."""
    nodes: dict[bytes, directory.DirNode] = {}
    yield from above_leaves([opened.dir_id for opened, _ in wanted if opened.dir_id is not None], nodes)
    for opened, _ in wanted:
        opened.take(nodes)
    some = {opened.leaves[opened.place(name)][1] for opened, names in wanted for name in names}
    if some - nodes.keys():
        yield from load(some, nodes)
        for opened, _ in wanted:
            opened.take(nodes)


def build(tree: Mapping[bytes, Entry], ids_of: Ids) -> tuple[bytes, dict[bytes, bytes]]:
    """The directory objects of a flat tree: (id of the root, {id: bytes} of every node).

    `FormatError` for a tree that `flatten` would refuse.
    """
    nodes = list(build_nodes(((path, tree[path]) for path in sorted(tree)), ids_of))
    return nodes[-1][0], dict(nodes)


def build_nodes(items: Iterable[tuple[bytes, Entry]], ids_of: Ids) -> Iterator[tuple[bytes, bytes]]:
    """`build`, node by node, from paths that ascend as bytes; the root is the last. A node may come twice.

    Holds only the directories on the way. In this order all that is below a directory stands together, though not right
    behind the directory itself: "a-b" comes before "a/x".
    """
    room = Room()
    stack = [_Building(b"")]
    for path, entry in items:
        parent, _, name = room.take(path).rpartition(b"/")
        while not stack[-1].holds(parent):
            yield from _closed(stack, ids_of)
        if stack[-1].path != parent:
            stack.append(_Building(parent))
            check_depth(parent.count(b"/") + 1)
            if parent[len(stack[-2].prefix) :] not in stack[-2].waiting:
                raise KeyError(parent)
        yield from stack[-1].add(name, entry, ids_of)
    while stack:
        yield from _closed(stack, ids_of)


BUILDING_ENTRIES_MAX = 20_000  # of a directory that are held: more than `LEAVES_SURE` nodes of them


class _Building:
    """A directory that is being built. `waiting`: where those of its entries stand whose ids are not known yet."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.prefix = path + b"/" if path else b""
        self.entries: list[tuple[bytes, Entry]] = []
        self.leaves: list[tuple[bytes, bytes]] = []
        self.waiting: dict[bytes, int] = {}
        self._try_at = BUILDING_ENTRIES_MAX

    def holds(self, directory: bytes) -> bool:
        return directory == self.path or directory.startswith(self.prefix)

    def add(self, name: bytes, entry: Entry, ids_of: Ids) -> Iterator[tuple[bytes, bytes]]:
        if entry.kind is Kind.DIR:
            self.waiting[name] = len(self.entries)
        self.entries.append((name, entry))
        if len(self.entries) > self._try_at:
            yield from self._flush(ids_of)
            self._try_at = len(self.entries) + BUILDING_ENTRIES_MAX

    def _flush(self, ids_of: Ids) -> Iterator[tuple[bytes, bytes]]:
        """Makes leaves of what stands before the first entry that waits for its id."""
        end = min(self.waiting.values(), default=len(self.entries))
        if end < BUILDING_ENTRIES_MAX:
            return
        leaves, done = directory.encode_leaves(self.entries[:end], ids_of, last=False)
        for first, (node_id, data) in leaves:
            self.leaves.append((first, node_id))
            yield node_id, data
        del self.entries[:done]
        self.waiting = {name: at - done for name, at in self.waiting.items()}

    def take_id(self, name: bytes, dir_id: bytes) -> None:
        at = self.waiting.pop(name)
        self.entries[at] = (name, self.entries[at][1]._replace(content=dir_id))

    def close(self, ids_of: Ids) -> Iterator[tuple[bytes, bytes]]:
        """What is left; the directory's own node is the last."""
        if self.waiting:
            (empty,) = directory.encode_dir([], ids_of)
            yield empty
            for name in list(self.waiting):
                self.take_id(name, empty[0])
        if not self.leaves:
            yield from directory.encode_dir(self.entries, ids_of)
            return
        leaves, _ = directory.encode_leaves(self.entries, ids_of, last=True)
        for first, (node_id, data) in leaves:
            self.leaves.append((first, node_id))
            yield node_id, data
        yield from directory.encode_above(self.leaves, ids_of)


def _closed(stack: list[_Building], ids_of: Ids) -> Iterator[tuple[bytes, bytes]]:
    """Closes the last directory on the way, and tells the one above its id."""
    done = stack.pop()
    node = (b"", b"")
    for node in done.close(ids_of):
        yield node
    if stack:
        stack[-1].take_id(done.path[len(stack[-1].prefix) :], node[0])
