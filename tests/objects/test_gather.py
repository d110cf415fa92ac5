"""`metasync.objects.walk_large`: what `flatten` and `diff` say, some of it at a time; losses; hostile nodes refused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from content_kit import IDS, NoSuchObject, digest, file_entry, mutated, walk
from effort import examples
from hypothesis import given, settings
from test_walk import DIR, HOSTILE_DIRS, CountedNode, grow, inner, listing, trees

from metasync.errors import FormatError, UpgradeError
from metasync.objects import directory, walk_large
from metasync.objects import walk as walk_module
from metasync.objects.walk import Tree, build, flatten


def gathered(root: bytes | None, store: Mapping[bytes, bytes]) -> tuple[Tree, list[tuple[Any, int]]]:
    """The tree, and what each round of requests asked for."""
    tree: Tree = {}

    def take(found: Any) -> None:
        for path, entry in found:
            parent = path.rpartition(b"/")[0]
            assert path not in tree
            assert not parent or tree[parent] == DIR, "a directory comes before what is in it"
            tree[path] = entry

    _, rounds = walk(walk_large.gather(root, lambda i: len(store.get(i, b"")), take), store)
    return tree, rounds


@pytest.mark.parametrize("batch", [1, 300, 1 << 20])
@given(tree=trees)
@settings(max_examples=examples(100))
def test_it_is_the_tree(batch: int, tree: Tree) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk_large, "BATCH_BYTES", batch)
        root, nodes = build(tree, IDS)
        assert gathered(root, nodes)[0] == tree


def test_no_tree() -> None:
    assert gathered(None, {}) == ({}, [])


def long_tree() -> Tree:
    return grow({b"%s/%04d" % (d, i): file_entry(i) for d in (b"a", b"b/c") for i in range(6000)} | {b"z/x": DIR})


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [1, 60_000, 100_000, 1 << 30])
def test_directories_of_many_nodes(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", batch)
    tree = long_tree()
    root, nodes = build(tree, IDS)
    assert len(nodes) >= 10
    got, rounds = gathered(root, nodes)
    assert got == tree
    if batch == 1 << 30:
        assert rounds == walk(flatten(root), nodes)[1], "a tree that is a batch costs as many rounds as ever"


def sent(task: Any, answer: Mapping[bytes, bytes]) -> Any:
    """What a walk needs next; None at its end."""
    try:
        return task.send(answer)
    except StopIteration:
        return None


def test_no_round_asks_for_much_more_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", 60_000)
    tree = long_tree() | grow({b"d%03d/%02d" % (i, j): file_entry(j) for i in range(200) for j in range(20)})
    root, nodes = build(tree, IDS)
    sizes = []

    task = walk_large.gather(root, lambda i: len(nodes[i]), lambda _: None)
    needs = next(task, None)
    while needs is not None:
        sizes.append(sum(len(nodes[i]) for i in needs[1]))
        needs = sent(task, {i: nodes[i] for i in needs[1]})
    assert sum(sizes) > 4 * max(sizes)
    assert max(sizes) < 60_000 + max(map(len, nodes.values()))


def test_the_directories_that_wait_may_lie_elsewhere() -> None:
    tree = grow({b"d%03d/%02d/f" % (i, j): file_entry(j) for i in range(20) for j in range(3)})
    root, nodes = build(tree, IDS)
    lengths = []

    def keep(held: walk_large.Dirs) -> walk_large.Dirs:
        lengths.append(len(held))
        return dict(held)

    got: Tree = {}
    walk(walk_large.gather(root, lambda _: 1, got.update, keep), nodes)
    assert got == tree
    assert max(lengths) == 60


@pytest.mark.parametrize("batch", [1, 1 << 20])
@pytest.mark.parametrize("case", HOSTILE_DIRS)
def test_hostile_nodes(case: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", batch)
    nodes, root, why = HOSTILE_DIRS[case]
    with pytest.raises(FormatError, match=why):
        gathered(digest(0), {digest(i): data for i, data in nodes.items()} | {digest(0): root})


def test_damaged_nodes_raise_nothing_but_format_errors() -> None:
    root, nodes = build(grow({b"d%d/%s%d" % (i % 3, b"n" * 200, i): file_entry(i) for i in range(400)}), IDS)
    rng = random.Random(5)
    refused = 0
    for _ in range(300):
        victim = rng.choice(list(nodes))
        try:
            walk(walk_large.gather(root, lambda _: 1, lambda _: None), {**nodes, victim: mutated(rng, nodes[victim])})
        except (FormatError, UpgradeError):
            refused += 1
        except NoSuchObject:  # an id was damaged
            pass
    assert refused > 100


@pytest.mark.parametrize("leaves", [2, 6, 14])
def test_leaves_that_many_nodes_share_are_not_visited_often(leaves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"%03d" % i for i in range(leaves)]
    store = {digest(1000 + i): listing(name) for i, name in enumerate(names)}
    below = 1000
    for level in range(1, 7):
        for i in range(leaves):
            store[digest(below + 1000 + i)] = inner(level, *[(names[j], digest(below + j)) for j in range(i, leaves)])
        below += 1000
    store[digest(0)] = inner(7, *[(names[j], digest(below + j)) for j in range(leaves)])
    decode = directory.decode_node
    monkeypatch.setattr(directory, "decode_node", lambda data: CountedNode(*decode(data)))
    CountedNode.looks = 0
    with pytest.raises(FormatError, match="out of order"):
        gathered(digest(0), store)
    assert CountedNode.looks < 20 * len(store)


def test_a_tree_that_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "TREE_BYTES_SURE", 1)
    monkeypatch.setattr(walk_module, "TREE_BYTES_MAX", 100 * walk_module.ENTRY_BYTES)
    store = {digest(0): directory.encode_dir([(b"f", file_entry(1))], IDS)[0][1]}
    for n in range(1, 30):  # each has the one below twice
        twice = [(name, DIR._replace(content=digest(n - 1))) for name in (b"a", b"b")]
        store[digest(n)] = directory.encode_dir(twice, IDS)[0][1]
    with pytest.raises(FormatError, match="more paths than this device has memory for"):
        walk(walk_large.gather(digest(29), lambda _: 1, lambda _: None), store)
