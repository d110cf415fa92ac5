"""Three-way merge of trees: what must hold for any three trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_kit import D, Lazy, Tree, applied, file, folder, join, link, merged_tree, refuse, run

from metasync.merge.trees import Conflict, Merge, diff
from metasync.objects.model import Entry, Kind

tried = settings(max_examples=examples(400))


NAMES = [b"a", b"b.c", b"a.conflict-pad-20261122"]
PATHS = sorted([*NAMES, *(x + b"/" + y for x in NAMES for y in NAMES), b"a/a/a", b"a/a/b.c", b"b.c/a/a", b"a/b.c/a"])

edits = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "write",
                "write",
                "rewrite",
                "rewrite",
                "mkdir",
                "link",
                "delete",
                "delete",
                "chmod",
                "touch",
                "tag",
                "move",
                "move",
            ]
        ),
        st.sampled_from(PATHS),
        st.integers(0, 4),
    ),
    max_size=9,
)


def edit(tree: Tree, changes: list[tuple[str, bytes, int]]) -> Tree:
    """What a user does: writing into what is no directory replaces it; replacing a directory deletes what is in it."""
    tree = dict(tree)

    def put(path: bytes, entry: Entry) -> None:
        parent = path.rpartition(b"/")[0]
        if parent and (parent not in tree or tree[parent].kind != Kind.DIR):
            put(parent, D)
        if entry.kind != Kind.DIR:
            drop(path)
        tree[path] = entry

    def drop(path: bytes) -> None:
        for other in [other for other in tree if other == path or other.startswith(path + b"/")]:
            del tree[other]

    for what, path, n in changes:
        if what == "rewrite":  # some file that is there, whatever its name: so that both sides meet often
            files = sorted(path for path in tree if tree[path].kind != Kind.DIR)
            what, path = "write", files[n % len(files)] if files else path
            n += len(changes)
        if what == "move":  # some file, or directory with what is in it, to this path
            sources = sorted(p for p in tree if p != path and not path.startswith(p + b"/") and not p.startswith(path))
            if sources:
                source = sources[n * 7 % len(sources)]
                moving = {p: e for p, e in tree.items() if p == source or p.startswith(source + b"/")}
                drop(path)
                drop(source)
                for p, e in sorted(moving.items()):
                    put(path + p[len(source) :], e)
            continue
        entry = tree.get(path)
        if what == "write":
            put(path, file(b"content %d" % n, n + 20))
        elif what == "mkdir":
            put(path, folder([0o755, 0o700][n % 2]))
        elif what == "link":
            put(path, link(b"target %d" % (n % 2), n + 20))
        elif what == "delete":
            drop(path)
        elif entry is not None and what == "tag":
            tree[path] = entry._replace(tags=tuple((tag, b"%d" % n) for tag in range(3) if n & 1 << tag))
        elif entry is not None and what == "chmod" and entry.kind != Kind.SYMLINK:
            tree[path] = entry._replace(mode=[0o644, 0o600, 0o755, 0o700, 0o500][n])
        elif entry is not None and what == "touch" and entry.kind != Kind.DIR:
            tree[path] = entry._replace(mtime_ns=n)
    return tree


@st.composite
def three_trees(draw: st.DrawFn) -> tuple[Tree, Tree, Tree]:
    base = edit({}, draw(edits))
    return base, edit(base, draw(edits)), edit(base, draw(edits))


def is_valid(tree: Tree) -> bool:
    parents = {path.rpartition(b"/")[0] for path in tree} - {b""}
    return b"" not in tree and all(parent in tree and tree[parent].kind == Kind.DIR for parent in parents)


def substance(entry: Entry | None) -> tuple[Kind, bytes] | None:
    return entry and (entry.kind, entry.content)


def leaves(tree: Tree) -> Counter[tuple[Kind, bytes]]:
    return Counter((entry.kind, entry.content) for entry in tree.values() if entry.kind != Kind.DIR)


def moved(path: bytes, conflicts: Iterable[Conflict]) -> Iterator[bytes]:
    """Where our entry at `path` may be."""
    yield path
    for old, kept, _ in conflicts:
        if path == old or path.startswith(old + b"/"):
            yield kept + path[len(old) :]


@tried
@given(three_trees(), st.sampled_from([refuse, join]))
def test_no_byte_is_lost(trees: tuple[Tree, Tree, Tree], text: Any) -> None:
    base, ours, theirs = trees
    result = run(base, ours, theirs, text)
    merged = applied(ours, result.changes)
    assert is_valid(merged)
    in_texts = {request.path for request in result.text}
    for path, entry in ours.items():
        if path not in in_texts and entry.kind != Kind.DIR and substance(entry) != substance(base.get(path)):
            places = [*moved(path, result.conflicts), *(m.path for m in result.met if m.was == path)]
            if any(m.path == path and m.here == "renamed" and m.kind == "rename/modify" for m in result.met):
                continue  # bytes of the base, in whose place the other side's edit came
            assert substance(entry) in [substance(merged.get(at)) for at in places]
    followed = {m.path: m for m in result.met if m.kind == "rename/modify"}
    for path, entry in theirs.items():
        if path not in in_texts and path not in followed and substance(entry) != substance(base.get(path)):
            new = next((m.path for m in followed.values() if m.was == path), path)
            assert substance(merged.get(new)) == substance(entry)


@tried
@given(three_trees(), st.sampled_from([refuse, join]))
def test_nothing_is_invented_and_deletions_arrive(trees: tuple[Tree, Tree, Tree], text: Any) -> None:
    base, ours, theirs = trees
    result = run(base, ours, theirs, text)
    merged = applied(ours, result.changes)
    in_texts = {request.path for request in result.text}
    copies = {at for path in ours for at in moved(path, result.conflicts) if at != path}
    for path, entry in merged.items():
        sides = [tree.get(path) for tree in (base, ours, theirs)]
        met = [m for m in result.met if m.path == path and m.kind == "rename/modify"]
        if path in copies:
            assert sides == [None, None, None]
        elif met:
            editor = ours if met[0].here == "modified" else theirs
            assert substance(entry) == substance(editor[met[0].was or b""])
            assert merged.get(met[0].was or b"") is None
        elif path not in in_texts:
            assert substance(entry) in [substance(side) for side in sides[1:]]
            if entry.kind != Kind.DIR:
                # Where one side is as in the base, and no directory is in the way, the other decides.
                assert sides[0] != sides[1] or entry == sides[2]
                assert sides[0] != sides[2] or entry == sides[1]
    for path in ours.keys() & theirs.keys():
        if ours[path].kind == theirs[path].kind == Kind.DIR:
            assert merged[path].kind == Kind.DIR
    for path, kept, _ in result.conflicts:
        assert merged[path] == theirs[path]
        assert merged[kept] == ours[path]


@tried
@given(three_trees(), st.sampled_from([refuse, join]))
def test_all_devices_reach_the_same_tree(trees: tuple[Tree, Tree, Tree], text: Any) -> None:
    base, ours, theirs = trees
    merged = merged_tree(base, ours, theirs, text)
    assert merged_tree(theirs, theirs, merged) == merged
    assert merged_tree(base, base, merged) == merged


@tried
@given(three_trees())
def test_merging_again_changes_nothing(trees: tuple[Tree, Tree, Tree]) -> None:
    base, ours, theirs = trees
    merged = merged_tree(base, ours, theirs)
    followed = any(m.kind == "rename/modify" for m in run(base, ours, theirs).met)
    for again in [(theirs, merged, theirs), (base, merged, theirs), (base, merged, merged), (merged, merged, merged)]:
        if followed and again[0] is base:
            continue  # of the old base there is another file at the new path now
        assert replace(run(*again), met=()) == Merge({}, (), ())


@tried
@given(three_trees(), st.sampled_from([refuse, join]))
def test_one_side_alone(trees: tuple[Tree, Tree, Tree], text: Any) -> None:
    base, ours, _ = trees
    assert run(base, ours, base, text) == Merge({}, (), ())
    assert run(base, ours, ours, text) == Merge({}, (), ())
    pulled = run(base, base, ours, text)
    assert applied(base, pulled.changes) == ours
    assert (pulled.conflicts, pulled.text) == ((), ())


@tried
@given(three_trees(), st.sampled_from([refuse, join]))
def test_who_merges_decides_names_alone(trees: tuple[Tree, Tree, Tree], text: Any) -> None:
    base, ours, theirs = trees
    a, b = run(base, ours, theirs, text), run(base, theirs, ours, text)
    assert leaves(applied(ours, a.changes)) == leaves(applied(theirs, b.changes))
    assert [(path, reason) for path, _, reason in a.conflicts] == [(path, reason) for path, _, reason in b.conflicts]


@tried
@given(three_trees(), st.sets(st.sampled_from(PATHS)), st.sampled_from([refuse, join]))
def test_given_paths_are_enough(trees: tuple[Tree, Tree, Tree], more: set[bytes], text: Any) -> None:
    base, ours, theirs = trees
    paths = [*diff(base, theirs), *more, *diff(base, ours)]
    lazy = Lazy(base), Lazy(ours), Lazy(theirs)
    assert run(lazy[0], lazy[1], lazy[2], text, paths=reversed(paths)) == run(base, ours, theirs, text)
    assert sum(tree.asked for tree in lazy) <= 40 * len(paths)


@settings(tried, max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 2), edits), min_size=2, max_size=6), st.sampled_from([refuse, join]))
def test_three_devices_settle(rounds: list[tuple[int, list[tuple[str, bytes, int]]]], text: Any) -> None:
    agreed: Tree = {}
    bases: list[Tree] = [{}, {}, {}]
    trees: list[Tree] = [{}, {}, {}]

    def sync(device: int) -> None:
        nonlocal agreed
        agreed = bases[device] = trees[device] = merged_tree(bases[device], trees[device], agreed, text)
        assert is_valid(agreed)

    for device, changes in rounds:
        trees[device] = edit(trees[device], changes)
        sync((device + len(changes)) % 3)
    for device in (0, 1, 2):
        sync(device)
    settled = agreed
    for device in (0, 1, 2):
        sync(device)
    assert trees == [settled] * 3
