"""`walk_large.compare`: what `walk.diff` says, some of it at a time; and walks that go past what is lost."""

from __future__ import annotations

import functools
from collections.abc import Generator, Mapping
from typing import Any

import pytest
from content_kit import IDS, digest, file_entry, walk
from effort import examples
from hypothesis import given, settings
from test_walk import DIR, HOSTILE_DIRS, grow, trees

from metasync.errors import FormatError
from metasync.objects import walk_large
from metasync.objects.model import Entry, Kind
from metasync.objects.walk import Change, Tree, build, diff
from metasync.objects.walk_large import Losses, compare, gather


def sizes(store: Mapping[bytes, bytes]) -> Any:
    return lambda i: len(store.get(i, b""))


def compared(a: bytes | None, b: bytes | None, store: Mapping[bytes, bytes]) -> tuple[dict[bytes, Change], Any]:
    out: dict[bytes, Change] = {}

    def take(found: list[tuple[bytes, Entry | None, Entry | None]]) -> None:
        for path, older, newer in found:
            assert path not in out
            out[path] = (older, newer)

    _, rounds = walk(compare(a, b, sizes(store), take), store)
    return out, rounds


@pytest.mark.parametrize("batch", [1, 300, 1 << 20])
@given(a=trees, b=trees)
@settings(max_examples=examples(60))
def test_it_is_the_difference(batch: int, a: Tree, b: Tree) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk_large, "BATCH_BYTES", batch)
        (a_root, nodes), (b_root, more) = build(a, IDS), build(b, IDS)
        store = {**nodes, **more}
        assert compared(a_root, b_root, store)[0] == walk(diff(a_root, b_root), store)[0]
        assert compared(None, b_root, store)[0] == walk(diff(None, b_root), store)[0]
        assert compared(a_root, None, store)[0] == walk(diff(a_root, None), store)[0]


def long_tree(*changed: int, n: int = 12_000) -> Tree:
    """A directory of several levels of nodes, and some of its files with other contents."""
    return grow({b"a/%06d" % i: file_entry(i + (i in changed)) for i in range(n)} | {b"z/x": DIR})


@functools.cache
def long_build(*changed: int, n: int) -> tuple[bytes, dict[bytes, bytes]]:
    """Its root and its nodes, made once for all cases: nobody changes them."""
    return build(long_tree(*changed, n=n), IDS)


@pytest.mark.few
@pytest.mark.parametrize("batch", [1, 60_000, 1 << 30])
@pytest.mark.parametrize("changed", [(), (0,), (5000,), (11_999,), (3, 4, 7000)])
def test_long_directories(batch: int, changed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", batch)
    (a_root, nodes), (b_root, more) = long_build(n=12_000), long_build(*changed, n=11_000)
    store = {**nodes, **more}
    for one, other in ((a_root, b_root), (b_root, a_root)):
        assert compared(one, other, store)[0] == walk(diff(one, other), store)[0]


def test_what_two_long_directories_share_stays_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", 1)
    (a_root, nodes), (b_root, more) = build(long_tree(n=24_000), IDS), build(long_tree(6000, n=24_000), IDS)
    found, rounds = compared(a_root, b_root, {**nodes, **more})
    assert [*found] == [b"a/006000"]
    asked = sum(n for _, n in rounds)
    assert asked == 2 * 3 < len(nodes) / 2, "of each tree its root, the node above the leaves, and a leaf"


@pytest.mark.parametrize("batch", [1, 1 << 20])
@pytest.mark.parametrize("case", HOSTILE_DIRS)
@pytest.mark.parametrize("is_newer", [False, True])
def test_hostile_nodes_are_refused(case: str, batch: int, is_newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", batch)
    nodes, root, why = HOSTILE_DIRS[case]
    store = {digest(i): data for i, data in nodes.items()} | {digest(0): root}
    older, newer = (None, digest(0)) if is_newer else (digest(0), None)
    with pytest.raises(FormatError, match=why):
        compared(older, newer, store)


# ---- losses


def answered(task: Generator[Any, Any, None], store: Mapping[bytes, bytes]) -> None:
    """Runs a walk that is answered with what there is."""
    answer: dict[bytes, bytes] | None = None
    while True:
        try:
            _, ids = task.send(answer)
        except StopIteration:
            return
        answer = {i: store[i] for i in ids if i in store}


def small_tree() -> Tree:
    return grow({b"%s/%s" % (d, f): file_entry(n) for n, d in enumerate((b"a", b"b/c", b"d")) for f in (b"x", b"y")})


def node_of(tree: Tree, path: bytes) -> bytes:
    """The id of the directory at a path."""
    below = {p.removeprefix(path + b"/"): e for p, e in tree.items() if p.startswith(path + b"/")}
    return build(below, IDS)[0]


def test_a_walk_goes_past_a_directory_that_is_lost() -> None:
    tree = small_tree()
    root, nodes = build(tree, IDS)
    del nodes[node_of(tree, b"b/c")]
    got: dict[bytes, Entry] = {}
    lost: list[bytes] = []
    answered(gather(root, sizes(nodes), got.update, losses=Losses(lambda path, _: lost.append(path))), nodes)
    assert lost == [b"b/c/"]
    assert got == {p: e for p, e in tree.items() if not p.startswith(b"b/c/")}


def test_without_somebody_to_tell_a_loss_ends_the_walk() -> None:
    root, nodes = build(small_tree(), IDS)
    with pytest.raises(FormatError, match="is not there"):
        answered(gather(root, sizes(nodes), lambda _: None), {})


@pytest.mark.parametrize("batch", [1, 1 << 30])
def test_a_leaf_that_is_lost_takes_its_own_entries_alone(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_large, "BATCH_BYTES", batch)
    tree = long_tree()
    root, nodes = build(tree, IDS)
    leaf = max((i for i, data in nodes.items() if data[1] == 0), key=lambda i: len(nodes[i]))
    del nodes[leaf]
    got: dict[bytes, Entry] = {}
    lost: list[tuple[bytes, bytes]] = []
    answered(gather(root, sizes(nodes), got.update, losses=Losses(lambda *told: lost.append(told))), nodes)
    assert lost == [(b"a/", leaf)]
    assert got.items() <= tree.items() and len(tree) - 3000 < len(got) < len(tree)


def test_what_counts_as_lost_is_told_and_read() -> None:
    tree = small_tree()
    root, nodes = build(tree, IDS)
    gone = node_of(tree, b"a")
    got: dict[bytes, Entry] = {}
    lost: list[bytes] = []
    losses = Losses(lambda path, _: lost.append(path), {gone}.__contains__)
    answered(gather(root, sizes(nodes), got.update, losses=losses), nodes)
    assert lost == [b"a/"] and got == tree


def test_a_comparison_tells_the_losses_of_the_older_tree_alone() -> None:
    older = small_tree()
    newer = {**older, b"d/z": file_entry(9), b"b/c/x": file_entry(8)}
    (a_root, nodes), (b_root, more) = build(older, IDS), build(newer, IDS)
    store = {**nodes, **more}
    del store[node_of(older, b"b/c")], store[node_of(newer, b"d")]
    found: list[tuple[bytes, Entry | None, Entry | None]] = []
    lost: list[bytes] = []
    opened: list[bytes] = []
    losses = Losses(lambda path, _: lost.append(path))
    answered(compare(a_root, b_root, sizes(store), found.extend, losses=losses, opened=opened.append), store)
    assert lost == [b"b/c/"]
    assert sorted(opened) == [b"", b"b/", b"b/c/", b"d/"]
    assert sorted(found) == [
        (b"b/c/x", None, newer[b"b/c/x"]), (b"b/c/y", None, newer[b"b/c/y"]),
        (b"d/x", older[b"d/x"], None), (b"d/y", older[b"d/y"], None),
    ]  # fmt: skip
    assert all(e is None or e.kind is Kind.FILE for _, *sides in found for e in sides)


def test_a_lost_leaf_that_both_trees_have_is_told_of_the_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a directory of an older version would seem whole."""
    (a_root, nodes), (b_root, more) = build(long_tree(), IDS), build(long_tree(11_999), IDS)
    store = {**nodes, **more}
    shared = min(i for i, data in nodes.items() if data[1] == 0 and i in more and len(data) > 1000)
    lost: list[bytes] = []
    losses = Losses(lambda path, _: lost.append(path), {shared}.__contains__)
    del store[shared]
    answered(compare(a_root, b_root, sizes(store), lambda _: None, losses=losses), store)
    assert lost == [b"a/"]
