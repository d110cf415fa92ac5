"""Trees with changes on top, and the index below them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulation.db import SimDb, empty_tables

from metasync.local import state
from metasync.local.spill import Large
from metasync.local.state import LocalDb, State
from metasync.objects.model import Entry, Kind
from metasync.worktree import index
from metasync.worktree.index import (
    Row,
    children,
    files_with,
    pack_entry,
    rows_at,
    store_rows,
    unpack_entry,
)
from metasync.worktree.overlay import IndexEntries, Tree, changed

ROW = Row(Entry(Kind.FILE, 0o644, 1, 1, b"\1" * 32), 1, 1, 1, 1, 1, 0o100644, True)
TOP = Row(Entry(Kind.DIR, 0o755, 0, 0, b""), 1, 1, 0, 0, 0, 0o40755, True)


@pytest.fixture(params=["sqlite", "simulated"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    opened = LocalDb.open(tmp_path / "state.db") if request.param == "sqlite" else SimDb(empty_tables())
    with opened:
        yield opened


def test_rows_come_in_the_order_of_paths(db: State) -> None:
    paths = [b"", b"a", b"a-", b"a.b", b"a/b", b"a/b/c", b"a0", b"b", b"\xff\xff"]
    store_rows(db, [(p, ROW) for p in random.Random(1).sample(paths, len(paths))])
    got = db.packed_rows_after(b"", 100)
    assert [p for p, _ in got] == paths[1:]
    assert dict(got)[b"b"] == db.packed_row(b"b") == db.packed_rows()[b"b"]
    assert db.packed_row(b"c") is None
    assert [p for p, _ in db.packed_rows_after(b"a", 2)] == [b"a-", b"a.b"]
    assert [p for p, _ in db.packed_rows_after(b"a/", 100, b"a0")] == [b"a/b", b"a/b/c"]
    assert [p for p, _ in db.packed_rows_after(b"\xff\xff", 5)] == []


@pytest.mark.parametrize("page", [2, 2000])
def test_rows_are_found_by_path_and_by_content(db: State, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "QUERY_IDS_MAX", 2)
    monkeypatch.setattr(index, "PAGE_ROWS", page)
    contents = [bytes([n]) * 32 for n in range(1, 6)]
    files = {b"f%d" % n: ROW._replace(entry=ROW.entry._replace(content=c)) for n, c in enumerate(contents)}
    link = ROW._replace(entry=Entry(Kind.SYMLINK, 0, 1, 32, contents[0]))
    store_rows(db, [(b"", TOP), *files.items(), (b"again", files[b"f1"]), (b"link", link)])
    assert rows_at(db, [b"f0", b"f2", b"none", b"f4", b""]) == {
        b"": TOP,
        **{p: files[p] for p in (b"f0", b"f2", b"f4")},
    }
    assert rows_at(db, []) == {}
    found = sorted(files_with(db, {*contents[:3], b"\0" * 32}))
    assert found == [(contents[0], b"f0"), (contents[1], b"again"), (contents[1], b"f1"), (contents[2], b"f2")]
    assert list(files_with(db, set())) == []


def test_what_is_held_stays_when_rows_are_written(db: State) -> None:
    store_rows(db, [(b"", TOP), *((p, ROW) for p in (b"a", b"b", b"c"))])
    tree = Tree(IndexEntries(db))
    del tree[b"c"]
    tree.hold([b"", b"a", b"c", b"new"])
    other = ROW._replace(entry=ROW.entry._replace(size=99))
    store_rows(db, [(p, other) for p in (b"a", b"b", b"c", b"new")])
    assert [tree.get(p) for p in (b"", b"a", b"b", b"c", b"new")] == [None, ROW.entry, other.entry, None, None]


@pytest.mark.parametrize("page", [1, 2, 2000])
def test_what_is_in_a_directory_itself(db: State, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "PAGE_ROWS", page)
    below = [b"%d" % i for i in range(30)]
    paths = [b"", b"a", b"a-", b"a/b", b"a/b-", b"a/b0", b"a/c", *(b"a/b/" + n for n in below), b"a0", b"\xff\xff/x"]
    store_rows(db, [(p, ROW) for p in paths])
    assert [p for p, _ in children(db, b"")] == [b"a", b"a-", b"a0"]
    assert [p for p, _ in children(db, b"a")] == [b"a/b", b"a/b-", b"a/b0", b"a/c"]
    assert sorted(p for p, _ in children(db, b"a/b")) == sorted(b"a/b/" + n for n in below)
    assert list(children(db, b"none")) == []


def test_a_tree_from_rows_stays_when_they_are_written(db: State) -> None:
    store_rows(db, [(b"", TOP), *((p, ROW) for p in (b"a", b"b", b"c/d", b"c/e"))])
    tree = Tree(IndexEntries(db), count=4)
    tree.hold([b"a", b"b", b"new"])
    wanted = dict.fromkeys((b"a", b"b", b"c/d", b"c/e"), ROW.entry)
    assert dict(tree.items()) == dict(tree) == wanted
    other = ROW._replace(entry=ROW.entry._replace(size=99))
    store_rows(db, [(b"a", other), (b"new", other)])
    db.delete_rows([b"b"])
    assert dict(tree.items()) == wanted
    assert (tree.get(b"a"), tree.get(b"b"), tree.get(b"new"), tree.get(b"")) == (ROW.entry, ROW.entry, None, None)
    assert sorted(tree.inside({b"c"})) == [b"c/d", b"c/e"]
    assert sorted(tree.inside({b""})) == [b"a", b"b"]
    assert (len(tree), bool(tree)) == (4, True)


def test_an_index_of_the_root_alone_is_empty(db: State) -> None:
    store_rows(db, [(b"", TOP)])
    assert not IndexEntries(db)
    assert not Tree(IndexEntries(db))
    assert (len(IndexEntries(db)), dict(IndexEntries(db)), IndexEntries(db).get(b"")) == (0, {}, None)


class Counted(dict[bytes, Entry]):
    """Counts how often all of it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[bytes]:
        self.times += 1
        return super().__iter__()


def test_what_is_near_very_many_new_files_costs_one_look_at_each(db: State) -> None:
    """Not one for each directory: a push of 100,000 files in 100 directories looked at ten million."""
    store_rows(db, [(b"", TOP), *((b"d%d/old" % n, ROW) for n in range(20)), (b"e/old", ROW)])
    fresh = [b"d%d/%d" % (n, m) for n in range(20) for m in range(5)]
    put = Counted(dict.fromkeys(fresh, ROW.entry))
    tree = Tree(Tree(IndexEntries(db)), put)
    assert sorted(tree.near(fresh)) == sorted([*fresh, *(b"d%d/old" % n for n in range(20))])
    assert put.times == 1


def over_rows(db: State) -> Tree:
    store_rows(db, [(b"", TOP), *((p, ROW) for p in (b"a", b"b", b"c/d"))])
    return Tree(Tree(IndexEntries(db), count=3))


def over_dict(_: State) -> Tree:
    return Tree(Tree(dict.fromkeys((b"a", b"b", b"c/d"), ROW.entry)))


def of_many(_: State) -> Tree:
    entries = ((path, ROW.entry) for path in (b"a", b"b", b"c/d"))
    return Tree(Tree({}), Large(pack_entry, unpack_entry, entries))


CHANGES: list[Callable[[Any], Any]] = [
    lambda t: t.update({b"new": ROW.entry}),
    lambda t: t.pop(b"a"),
    lambda t: t.update({b"a": TOP.entry}),
    lambda t: (t.pop(b"a"), t.update({b"a": TOP.entry})),
    lambda t: (t.update({b"x": TOP.entry}), t.pop(b"x")),
    lambda t: t.pop(b"none", None),
    lambda t: t.pop(b"none"),
]


@pytest.mark.parametrize("made", [over_rows, over_dict, of_many])
@pytest.mark.parametrize("seed", range(10))
def test_a_tree_with_changes_is_like_a_dict(db: State, made: Callable[[State], Tree], seed: int) -> None:
    tree = made(db)
    plain, before = dict(tree), dict(tree.base)
    for change in random.Random(seed).choices(CHANGES, k=5):
        raised = []
        for into in (tree, plain):
            try:
                change(into)
            except KeyError:
                raised.append(into)
        assert len(raised) in (0, 2)
        assert dict(tree) == plain
        assert (len(tree), sorted(tree), bool(tree)) == (len(plain), sorted(plain), bool(plain))
        assert list(tree.ascending()) == sorted(plain.items())
        asked = (b"", b"a", b"b", b"c/d", b"c", b"new", b"x", b"none")
        assert [tree.get(p) for p in asked] == [plain.get(p) for p in asked]
        assert [tree.get(p, 1) for p in asked] == [plain.get(p, 1) for p in asked]
        assert sorted(tree.inside({b""})) == sorted(p for p in plain if b"/" not in p)
        assert {*plain} >= {*tree.near([b"c/new"])} >= {p for p in plain if p.startswith(b"c/")}
        differ = [p for p in {*plain, *before} if plain.get(p) != before.get(p)]
        assert sorted(changed(tree)) == sorted(differ)
    assert dict(tree.base) == before


def test_a_change_that_is_taken_back_was_none(db: State) -> None:
    tree = over_rows(db)
    tree[b"new"] = tree[b"a"] = TOP.entry
    del tree[b"b"]
    for path in (b"new", b"a", b"b", b"c/d"):
        tree.revert(path)
    assert dict(tree) == dict(tree.base)
    assert changed(tree) == []
