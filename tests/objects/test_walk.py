"""`metasync.objects.walk`: trees from objects and back, one round of requests per level, hostile nodes refused."""

from __future__ import annotations

import random

import pytest
from content_kit import IDS, NoSuchObject, digest, file_entry, mutated, walk
from effort import examples, first
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.errors import FormatError, UpgradeError
from metasync.objects import directory, file
from metasync.objects import walk as walk_module
from metasync.objects.model import Chunk, Entry, Kind, ObjectKind
from metasync.objects.walk import Trail, Tree, build, chunks, diff, find, flatten, rebuild
from metasync.objects.walk import listing as names_in

DIR = Entry(Kind.DIR, 0o755, 0, 0, b"")
LINK = Entry(Kind.SYMLINK, 0, 9, 6, b"target")


def grow(paths: dict[bytes, Entry]) -> Tree:
    """A flat tree with the directories that the paths need."""
    tree: Tree = {}
    for path, entry in paths.items():
        parent, _, _ = path.rpartition(b"/")
        while parent:
            tree[parent] = DIR
            parent = parent.rpartition(b"/")[0]
        tree.setdefault(path, entry)
    return {p: e for p, e in tree.items() if not any(tree.get(q) not in (None, DIR) for q in above(p))}


def above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:i]) for i in range(1, len(parts))]


parts = st.sampled_from([b"a", b"b", b"B", b"a.", b"a-", b"\xff", b"zz"])
paths = st.lists(parts, min_size=1, max_size=4).map(b"/".join)
leaf_entries = st.one_of(st.integers(0, 5).map(file_entry), st.just(LINK), st.just(DIR))
trees = st.dictionaries(paths, leaf_entries, max_size=14).map(grow)


@given(trees)
def test_flatten_undoes_build(tree):
    root, nodes = build(tree, IDS)
    assert walk(flatten(root), nodes)[0] == tree
    assert build(dict(reversed(tree.items())), IDS) == (root, nodes), "the order of insertion does not matter"


@given(trees, trees)
@settings(max_examples=examples(200))
def test_diff_is_the_difference(a, b):
    (a_root, a_nodes), (b_root, b_nodes) = build(a, IDS), build(b, IDS)
    got, _ = walk(diff(a_root, b_root), {**a_nodes, **b_nodes})
    assert got == {p: (a.get(p), b.get(p)) for p in {*a, *b} if a.get(p) != b.get(p)}
    assert (a_root == b_root) == (a == b), "one tree, one hash"


def differing(a: Tree, b: Tree) -> list[bytes]:
    return [p for p in {*a, *b} if a.get(p) != b.get(p)]


@given(trees, trees)
@settings(max_examples=examples(400))
def test_rebuild_is_build(a, b):
    (a_root, a_nodes), (b_root, b_nodes) = build(a, IDS), build(b, IDS)
    (root, nodes), _ = walk(rebuild(a_root, b, differing(a, b), IDS), a_nodes)
    assert root == b_root
    assert nodes.items() <= b_nodes.items()
    assert walk(flatten(root), {**a_nodes, **nodes})[0] == b


def test_rebuild_reads_and_makes_the_way_to_a_change_alone():
    a = grow({b"d%d/e%d/f%d" % (i, j, k): file_entry(k) for i in range(5) for j in range(5) for k in range(3)})
    b = {**a, b"d1/e1/f1": file_entry(99)}
    b.pop(b"d2/e2/f2")
    root, nodes = build(a, IDS)
    way = reached(nodes, root, {b"", b"d1", b"d1/e1", b"d2", b"d2/e2"})
    opened = {i: data for i, data in nodes.items() if i in way}
    (got, made), _ = walk(rebuild(root, b, differing(a, b), IDS), opened)
    assert got == build(b, IDS)[0]
    assert len(made) == 5


def reached(nodes: dict[bytes, bytes], root: bytes, dirs: set[bytes]) -> set[bytes]:
    """The ids of these directories."""
    return {root if not d else walk(find(root, d), nodes)[0].entry.content for d in dirs}


def test_rebuild_of_a_directory_in_many_nodes():
    a = {b"%05d" % i: file_entry(i) for i in range(5000)}
    root, nodes = build(a, IDS)
    assert len(nodes) > 3
    b = {**a, b"02500x": file_entry(1), b"new": DIR}
    b.pop(b"00007")
    (got, _), _ = walk(rebuild(root, b, differing(a, b), IDS), nodes)
    assert got == build(b, IDS)[0]


@given(trees, st.lists(paths, min_size=1, max_size=6))
@settings(max_examples=examples(200))
def test_find_is_what_flatten_has(tree, wanted):
    root, nodes = build(tree, IDS)
    for path in {*wanted, *tree, b""}:
        found, _ = walk(find(root, path), nodes)
        bare = found.entry._replace(content=b"") if found.entry and found.entry.kind is Kind.DIR else found.entry
        assert bare == (tree.get(path) if path else DIR)
        assert found.reached == b"" or tree[found.reached].kind is Kind.DIR
        assert path.startswith(found.reached)
        if found.entry is not None and found.entry.kind is Kind.DIR:
            below = {
                p[len(path) + 1 :] if path else p: e for p, e in tree.items() if p.startswith(path + b"/") or not path
            }
            assert walk(flatten(found.entry.content), nodes)[0] == below
            names = dict(walk(names_in(found.entry.content), nodes)[0])
            assert set(names) == {p for p in below if b"/" not in p}
    assert walk(find(None, b"a"), nodes)[0].entry is None


@given(st.lists(trees, min_size=2, max_size=4), paths)
@settings(max_examples=examples(200))
def test_a_trail_changes_nothing_and_saves_opening(series, path):
    trail: Trail = {}
    for tree in [*series, series[0], series[0]]:
        root, nodes = build(tree, IDS)
        plain, _ = walk(find(root, path), nodes)
        found, rounds = walk(find(root, path, trail), nodes)
        assert found.entry == plain.entry
        assert len(found.trail) <= path.count(b"/") + 1
        trail = found.trail
    assert rounds == [], "the same tree again: nothing is opened"


def test_find_opens_only_the_nodes_on_the_way():
    tree = {b"wide": DIR, **{b"wide/%05d" % i: file_entry(i) for i in range(5000)}}
    root, nodes = build(tree, IDS)
    assert len(nodes) > 6, "a directory of several nodes"
    for name in (b"00000", b"02500", b"04999", b"zz", b"!"):
        found, rounds = walk(find(root, b"wide/" + name), nodes)
        assert found.entry == tree.get(b"wide/" + name)
        assert len(rounds) <= 3
        assert all(asked == 1 for _, asked in rounds)


def test_a_walk_costs_one_round_per_level():
    tree = grow({b"d%d/e%d/f%d" % (i % 10, i % 7, i): file_entry(i) for i in range(500)})
    root, nodes = build(tree, IDS)
    _, rounds = walk(flatten(root), nodes)
    assert rounds == [(ObjectKind.DIR, 1), (ObjectKind.DIR, 10), (ObjectKind.DIR, 70)]


def test_diff_opens_only_what_differs():
    tree = grow({b"d%d/e%d/f%d" % (i % 10, i % 7, i): file_entry(i) for i in range(500)})
    root, nodes = build(tree, IDS)
    root2, nodes2 = build({**tree, b"d3/e3/new": file_entry(9)}, IDS)
    got, rounds = walk(diff(root, root2), {**nodes, **nodes2})
    assert set(got) == {b"d3/e3/new"}
    assert rounds == [(ObjectKind.DIR, 2)] * 3
    assert walk(diff(root, root), {}) == ({}, [])


def test_a_large_directory_is_walked_through_its_inner_nodes():
    tree = {b"d": DIR} | {b"d/file-%06d" % i: file_entry(i) for i in range(5_000)}
    root, nodes = build(tree, IDS)
    got, rounds = walk(flatten(root), nodes)
    assert got == tree
    assert len(rounds) == 3
    new_root, new_nodes = build({**tree, b"d/file-002500": file_entry(1)}, IDS)
    got_diff, _ = walk(diff(root, new_root), {**nodes, **new_nodes})
    assert set(got_diff) == {b"d/file-002500"}


def test_the_same_directory_in_two_places_is_fetched_once():
    tree = grow({b"%s/%d" % (d, i): file_entry(i) for d in (b"x", b"y") for i in range(3)})
    root, nodes = build(tree, IDS)
    assert len(nodes) == 2
    got, rounds = walk(flatten(root), nodes)
    assert got == tree
    assert rounds == [(ObjectKind.DIR, 1), (ObjectKind.DIR, 1)]


def file_nodes(n: int) -> tuple[bytes, dict[bytes, bytes], list[Chunk]]:
    listed = [Chunk(digest(i), i + 1) for i in range(n)]
    nodes = file.encode_file(digest(-1), listed, IDS)
    return nodes[-1][0], dict(nodes), listed


@pytest.mark.parametrize("n", [2, 1_500, 20_000])
def test_chunks_of_files(n):
    root, nodes, listed = file_nodes(n)
    got, rounds = walk(chunks((root, root)), nodes)
    assert got == {root: tuple(listed)}
    assert len(rounds) == (1 if n < 1_600 else 2)


# --- nodes that no encoder wrote, each with a right id: only a device of the workspace could have made them


def inner(level: int, *children: tuple[bytes, bytes]) -> bytes:
    items = b"".join(len(name).to_bytes(2, "big") + name + i for name, i in children)
    return bytes((1, level)) + len(children).to_bytes(4, "big") + items


def listing(*names: bytes) -> bytes:
    return directory.encode_dir([(n, file_entry(1)) for n in names], IDS)[0][1]


A, B = listing(b"a", b"b"), listing(b"c", b"d")
HOSTILE_DIRS = {
    "a root with one child": ({1: A}, inner(1, (b"a", digest(1))), "one child"),
    "a leaf at level 2": ({1: A, 2: B}, inner(2, (b"a", digest(1)), (b"c", digest(2))), "wrong level"),
    "leaves that overlap": (
        {1: listing(b"a", b"c"), 2: B},
        inner(1, (b"a", digest(1)), (b"c", digest(2))),
        "leaves out of order",
    ),
    "a leaf that starts elsewhere": ({1: A, 2: B}, inner(1, (b"a", digest(1)), (b"b", digest(2))), "starts elsewhere"),
    "an empty leaf": ({1: A, 2: listing()}, inner(1, (b"a", digest(1)), (b"c", digest(2))), "starts elsewhere"),
    "an inner node that starts elsewhere": (
        {1: A, 2: B, 3: inner(1, (b"a", digest(1))), 4: inner(1, (b"c", digest(2)))},
        inner(2, (b"a", digest(3)), (b"b", digest(4))),
        "starts elsewhere",
    ),
    "children at two levels": (
        {1: A, 2: B, 3: inner(1, (b"a", digest(1)))},
        inner(2, (b"a", digest(3)), (b"c", digest(2))),
        "wrong level",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_DIRS)
def test_hostile_directory_nodes(case):
    nodes, root, why = HOSTILE_DIRS[case]
    store = {digest(i): data for i, data in nodes.items()} | {digest(0): root}
    with pytest.raises(FormatError, match=why):
        walk(flatten(digest(0)), store)
    with pytest.raises(FormatError, match=why):
        walk(diff(digest(0), digest(1)), store)


def test_a_leaf_that_two_directories_share_ends_before_the_next_one() -> None:
    store = {digest(1): listing(b"a", b"c"), digest(2): listing(b"d", b"e"), digest(3): listing(b"b", b"e")}
    store[digest(4)] = inner(1, (b"a", digest(1)), (b"d", digest(2)))
    store[digest(5)] = inner(1, (b"a", digest(1)), (b"b", digest(3)))
    store[digest(6)] = inner(1, (b"a", digest(1)), (b"cc", digest(2)))
    for roots, why in (((4, 5), "order"), ((5, 4), "order"), ((4, 6), "elsewhere"), ((6, 4), "elsewhere")):
        with pytest.raises(FormatError, match=why):
            walk(diff(*map(digest, roots)), store)


def part(level: int, content: bytes, *children: tuple[bytes, int]) -> bytes:
    size = sum(n for _, n in children)
    head = bytes((1, level)) + size.to_bytes(8, "big") + content + len(children).to_bytes(4, "big")
    return head + b"".join(i + n.to_bytes(8, "big") for i, n in children)


NONE = bytes(32)
HOSTILE_FILES = {
    "a child of another size": (
        part(0, NONE, (digest(7), 4)),
        part(1, digest(9), (digest(1), 5), (digest(1), 5)),
        "what its parent says",
    ),
    "a child at the wrong level": (
        part(0, NONE, (digest(7), 5)),
        part(2, digest(9), (digest(1), 5), (digest(1), 5)),
        "what its parent says",
    ),
    "a child with a content hash": (
        part(0, digest(8), (digest(7), 2), (digest(7), 3)),
        part(1, digest(9), (digest(1), 5), (digest(1), 5)),
        "root's alone",
    ),
    "a root without a content hash": (
        part(0, NONE, (digest(7), 5)),
        part(1, NONE, (digest(1), 5), (digest(1), 5)),
        "root's alone",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_FILES)
def test_hostile_file_nodes(case):
    child, root, why = HOSTILE_FILES[case]
    with pytest.raises(FormatError, match=why):
        walk(chunks((digest(0),)), {digest(0): root, digest(1): child})


@pytest.mark.long
def test_damaged_nodes_raise_nothing_but_format_errors():
    tree = grow({b"d%d/%s%d" % (i % 3, b"n" * 200, i): file_entry(i) for i in range(400)})
    root, nodes = build(tree, IDS)
    file_root, file_store, _ = file_nodes(2_000)
    rng = random.Random(5)
    refused = 0
    for turn in range(600):
        store = {**nodes, **file_store}
        victim = rng.choice(list(store))
        store[victim] = mutated(rng, store[victim])
        task = chunks((file_root,)) if turn % 2 else flatten(root)
        try:
            walk(task, store)
        except (FormatError, UpgradeError):
            refused += 1
        except NoSuchObject:  # an id was damaged
            pass
    assert refused > 100


# --- few nodes that say much: work stays in proportion to the nodes, or ends in an error


class CountedNode(directory.DirNode):
    """A node that counts how often it is looked at."""

    looks = 0

    @property
    def level(self) -> int:
        CountedNode.looks += 1
        return self[0]


@pytest.mark.parametrize("leaves", [2, 6, 14])
def test_leaves_that_many_nodes_share_are_not_visited_often(leaves, monkeypatch):
    """Node i of a level lists the nodes i, i + 1, ... below: seven levels of 14 would come to 77,000 visits."""
    names = [b"%03d" % i for i in range(leaves)]
    store = {digest(1000 + i): listing(name) for i, name in enumerate(names)}
    below = 1000
    for level in range(1, 7):
        for i in range(leaves):
            rest = [(names[j], digest(below + j)) for j in range(i, leaves)]
            store[digest(below + 1000 + i)] = inner(level, *rest)
        below += 1000
    store[digest(0)] = inner(7, *[(names[j], digest(below + j)) for j in range(leaves)])
    decode = directory.decode_node
    monkeypatch.setattr(directory, "decode_node", lambda data: CountedNode(*decode(data)))
    CountedNode.looks = 0
    with pytest.raises(FormatError, match="out of order"):
        walk(flatten(digest(0)), store)
    assert CountedNode.looks < 20 * len(store)


def test_inner_nodes_end(monkeypatch):
    store = {digest(i): inner(7, (b"a", digest(i + 1))) for i in range(1, 30)}
    store[digest(0)] = inner(7, (b"a", digest(1)), (b"b", digest(2)))
    with pytest.raises(FormatError, match="more levels"):
        walk(flatten(digest(0)), store)
    top = part(7, digest(9), (digest(1), 4), (digest(1), 4))
    files = {digest(i): part(7, NONE, (digest(i + 1), 4)) for i in range(1, 30)} | {digest(0): top}
    with pytest.raises(FormatError, match="more levels"):
        walk(chunks((digest(0),)), files)


def bomb(levels: int) -> tuple[bytes, dict[bytes, bytes]]:
    """Directories that each hold the next twice."""
    ((node, data),) = directory.encode_dir([(b"f", file_entry(1))], IDS)
    store = {node: data}
    for _ in range(levels):
        sub = DIR._replace(content=node)
        ((node, data),) = directory.encode_dir([(b"a", sub), (b"b", sub)], IDS)
        store[node] = data
    return node, store


def test_a_tree_of_more_paths_than_memory_holds_is_refused(monkeypatch):
    monkeypatch.setattr(walk_module, "TREE_BYTES_SURE", 1 << 10)
    monkeypatch.setattr(walk_module, "TREE_BYTES_MAX", 1 << 20)
    root, store = bomb(6)
    tree, _ = walk(flatten(root), store)
    assert len(tree) == 2**6 + 2 * (2**6 - 1), "equal directories are nothing wrong"
    root, store = bomb(60)
    for task in (flatten(root), diff(root, None), diff(None, root)):
        with pytest.raises(FormatError, match="more paths than this device has memory for"):
            walk(task, store)


def test_what_is_too_large_to_read_is_not_written(monkeypatch):
    monkeypatch.setattr(walk_module, "PATH_BYTES_MAX", 20)
    good = grow({b"/".join([b"a"] * 10): file_entry(1)})
    root, nodes = build(good, IDS)
    assert walk(flatten(root), nodes)[0] == good
    long = grow({b"/".join([b"a"] * 11): file_entry(1)})
    with pytest.raises(FormatError, match="a path of 21 bytes"):
        build(long, IDS)
    monkeypatch.setattr(walk_module, "PATH_BYTES_MAX", 21)
    root, nodes = build(long, IDS)
    monkeypatch.setattr(walk_module, "PATH_BYTES_MAX", 20)
    with pytest.raises(FormatError, match="a path of 21 bytes"):
        walk(flatten(root), nodes)


def test_chunks_from_few_nodes_are_bounded(monkeypatch):
    node = part(0, NONE, (digest(7), 1), (digest(8), 1))
    store, size = {digest(100): node}, 2
    for level in range(1, 7):
        store[digest(100 + level)] = part(level, NONE, *[(digest(99 + level), size)] * 10)
        size *= 10
    store[digest(0)] = part(7, digest(9), *[(digest(106), size)] * 10)
    monkeypatch.setattr(walk_module, "CHUNKS_AGAIN_MAX", 1_000)
    with pytest.raises(FormatError, match="repeat more often"):
        walk(chunks((digest(0),)), store)
    small = {digest(100): node, digest(0): part(1, digest(9), *[(digest(100), 2)] * 500)}
    got, _ = walk(chunks((digest(0),)), small)
    assert len(got[digest(0)]) == 1_000, "a file of zeros repeats its nodes"


def test_chunks_of_nodes_that_stand_once_are_not_bounded(monkeypatch):
    monkeypatch.setattr(walk_module, "CHUNKS_AGAIN_MAX", 0)
    root, nodes, listed = file_nodes(20_000)
    assert walk(chunks((root,)), nodes)[0] == {root: tuple(listed)}


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", first(6, range(25)))
def test_rebuild_of_long_directories(seed: int) -> None:
    """Nodes are cut as if the directory was built at once, wherever it was edited and however much."""
    rng = random.Random(seed)
    a = {b"d/%05d" % i: file_entry(i) for i in rng.sample(range(20000), rng.choice([700, 1500, 4000, 9000]))}
    a[b"d"] = DIR
    a[b"e/f"], a[b"e"] = file_entry(1), DIR
    b = dict(a)
    names = sorted(p for p in a if p.startswith(b"d/"))
    for _ in range(rng.choice([1, 3, 40])):
        kind, at = rng.randrange(4), rng.choice([0, len(names) - 1, rng.randrange(len(names))])
        if kind == 0:
            b[b"d/%05d" % rng.randrange(20000)] = file_entry(rng.randrange(9))
        elif kind == 1:
            b[names[at] + b"x" * rng.randrange(200)] = LINK
        elif kind == 2:
            b.pop(names[at], None)
        else:
            first = rng.randrange(len(names))
            for path in names[first : first + rng.choice([5, 200, 3000])]:
                b.pop(path, None)
    if rng.random() < 0.3:
        b[b"d/00000"], b[b"d/zzz"] = DIR, DIR
    root, nodes = build(a, IDS)
    wanted, all_nodes = build(b, IDS)
    (got, made), _ = walk(rebuild(root, b, differing(a, b), IDS), nodes)
    assert got == wanted
    assert made.items() <= all_nodes.items()
    assert walk(flatten(got), {**nodes, **made})[0] == b
    wanted_diff = {p: (a.get(p), b.get(p)) for p in differing(a, b)}
    assert walk(diff(root, wanted), {**nodes, **all_nodes})[0] == wanted_diff
    assert walk(diff(wanted, root), {**nodes, **all_nodes})[0] == {p: (y, x) for p, (x, y) in wanted_diff.items()}
    assert walk(diff(None, root), nodes)[0] == {p: (None, entry) for p, entry in a.items()}


@pytest.mark.long
def test_rebuild_of_a_long_directory_reads_and_makes_a_few_nodes() -> None:
    a = {b"%06d" % i: file_entry(i) for i in range(60000)}
    root, nodes = build(a, IDS)
    b = {**a, b"030000": file_entry(7)}

    class Asked(dict):
        got = 0

        def __getitem__(self, key: bytes) -> bytes:
            Asked.got += 1
            return super().__getitem__(key)

    (got, made), _ = walk(rebuild(root, b, [b"030000"], IDS), Asked(nodes))
    assert got == build(b, IDS)[0]
    assert len(nodes) > 70
    assert len(made) <= 5
    assert Asked.got <= 8
    Asked.got = 0
    assert set(walk(diff(root, got), Asked({**nodes, **made}))[0]) == {b"030000"}
    assert Asked.got <= 10, "both tops, the leaves that differ, and those before them"


def test_rebuild_asks_a_tree_for_changed_paths_and_what_is_above_them() -> None:
    a = grow({b"d%d/f%d" % (i, j): file_entry(j) for i in range(5) for j in range(5)})
    root, nodes = build(a, IDS)
    asked = set()

    class Tree(dict):
        def get(self, key: bytes, default: object = None) -> object:
            asked.add(key)
            return super().get(key, default)

        def __iter__(self):
            raise AssertionError("all of it")

        items = keys = values = __iter__

    b = Tree({**a, b"d1/f1": file_entry(99)})
    (got, _), _ = walk(rebuild(root, b, [b"d1/f1"], IDS), nodes)
    assert got == build({**a, b"d1/f1": file_entry(99)}, IDS)[0]
    assert asked == {b"d1/f1", b"d1"}


@pytest.mark.parametrize("what", ["level", "first name", "order"])
def test_rebuild_refuses_nodes_that_are_not_what_is_said_of_them(what: str) -> None:
    a = {b"%05d" % i: file_entry(i) for i in range(9000)}
    root, nodes = build(a, IDS)
    top = directory.decode_node(nodes[root])
    assert top.level == 1
    children = list(top.children)
    if what == "level":
        children[3] = (children[3][0], root)
    elif what == "first name":
        children[3] = (children[3][0] + b"0", children[3][1])
    else:
        children[3] = (children[3][0], children[4][1])
    forged = bytes(nodes[root][:6]) + b"".join(len(n).to_bytes(2, "big") + n + i for n, i in children)
    with pytest.raises(FormatError):
        walk(rebuild(b"f" * 32, a, [children[3][0] + b"x"], IDS), {**nodes, b"f" * 32: forged})
