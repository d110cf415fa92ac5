"""Rows that are untrue, one step at a time: which deltas are opened together, whose rows they are, what needs them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.errors import DamagedError, UnreachableError
from metasync.maintenance.repair import untrue_rows
from metasync.maintenance.repair.untrue_rows import UntrueRows
from metasync.objects.model import Entry, Kind
from metasync.session.session import Agreed
from metasync.store.index import Index
from metasync.store.pack_format import DELTA, WHOLE

A, B, C = (1, b"a"), (1, b"b"), (1, b"c")  # packs
AGREED: Any = Agreed(SimpleNamespace(v=9, master=b"s"), None, None, None, Index(), None)  # type: ignore[arg-type]


def rows_of(**packs: str) -> UntrueRows:
    """Rows for the packs a, b and c, by objects of one letter."""
    rows = UntrueRows()
    for pack, ids in packs.items():
        rows.add((1, pack.encode()), [i.encode() for i in ids])
    return rows


# ---- what was found


def test_what_is_untrue_is_so_in_its_pack_alone() -> None:
    rows = rows_of(a="xy", b="y")
    assert [rows.has(pack, i) for pack in (A, B, C) for i in (b"x", b"y", b"z")] == [
        True, True, False,
        False, True, False,
        False, False, False,
    ]  # fmt: skip
    assert [i in rows for i in (b"x", b"y", b"z")] == [True, True, False]
    assert (rows.packs(), bool(rows), bool(UntrueRows())) == ([A, B], True, False)


def test_the_first_of_many_are_told_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrue_rows, "NAMED_MAX", 2)
    rows = rows_of(a="xyz", b="u")
    assert (rows.some(A), rows.count(A)) == ((b"x", b"y"), 3)
    assert (rows.some(B), rows.count(B)) == ((b"u",), 1)


def test_packs_that_no_index_names_any_more_are_no_matter() -> None:
    rows = rows_of(a="x", b="y", c="z")
    rows.keep(lambda pack: pack == B)
    assert rows.packs() == [B]
    assert not rows.has(A, b"x")


def test_an_index_of_which_nothing_is_untrue_stays_what_it_is() -> None:
    assert untrue_rows.true_index(AGREED, UntrueRows()) is AGREED
    assert untrue_rows.true_index(AGREED, rows_of(a="x")).index is not AGREED.index


# ---- deltas


class Opened:
    """Deltas in packs, of 10 bytes each: which are opened together, and of which something else comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *deltas: tuple[Any, bytes], refuted: str = "") -> None:
        self.together: list[list[bytes]] = []
        self.refuted = {i.encode() for i in refuted}
        self.rows = UntrueRows()
        s: Any = SimpleNamespace(contents=lambda _: self, listener=lambda _: None)
        found = [(SimpleNamespace(id=pack), object_id) for pack, object_id in deltas]
        monkeypatch.setattr(untrue_rows, "_deltas", lambda _: iter(found))
        untrue_rows.add_deltas(s, AGREED, self.rows)

    def size_of(self, _: bytes) -> int:
        return 10

    def only_in(self, some: dict[bytes, Any]) -> Any:
        self.together.append(list(some))
        is_refuted = lambda pack, i: some[i] == pack and i in self.refuted  # noqa: E731
        return SimpleNamespace(fetch=lambda *_, **__: None, is_refuted=is_refuted)


def test_deltas_of_which_something_else_comes_are_untrue(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, (A, b"x"), (A, b"y"), (B, b"z"), refuted="yz")
    assert [(pack, opened.rows.some(pack)) for pack in opened.rows.packs()] == [(A, (b"y",)), (B, (b"z",))]
    assert opened.together == [[b"x", b"y", b"z"]]
    assert Opened(monkeypatch).together == []


def test_one_object_in_two_packs_is_opened_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, (A, b"x"), (B, b"x"), (C, b"y"), refuted="x")
    assert opened.together == [[b"x"], [b"x", b"y"]]
    assert opened.rows.packs() == [A, B]


@pytest.mark.parametrize(("name", "most"), [("OPENED_TOGETHER", 2), ("OPENED_TOGETHER_BYTES", 20)])
def test_so_many_deltas_are_opened_together(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(untrue_rows, name, most)
    opened = Opened(monkeypatch, *((A, b"%d" % n) for n in range(5)))
    assert [len(some) for some in opened.together] == [2, 2, 1]


def test_deltas_alone_are_looked_for_and_in_packs_that_have_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrue_rows, "has_deltas", bool)
    packs = {pack: SimpleNamespace(id=pack, tags=tags) for pack, tags in ((A, "deltas"), (B, ""))}
    objects = [SimpleNamespace(id=b"w", encoding=WHOLE), SimpleNamespace(id=b"d", encoding=DELTA)]
    asked: list[Any] = []
    index: Any = SimpleNamespace(packs=lambda: packs, inside=lambda record: asked.append(record.id) or objects)
    assert [(record.id, i) for record, i in untrue_rows._deltas(index)] == [(A, b"d")]
    assert asked == [A], "an index has very many packs without any"


# ---- who listed them


class Listed:
    """Versions 1 to 9, of which the index lists something from `since` on. `lost`: versions whose index went."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, since: int, *, lost: tuple[int, ...] = ()) -> None:
        self.since, self.lost = since, lost
        monkeypatch.setattr(untrue_rows, "Chain", lambda *_: self)
        self.s: Any = SimpleNamespace(indexes=SimpleNamespace(of_state=self._of))

    def at(self, _: Any, v: int) -> Any:
        return SimpleNamespace(v=v)

    def _of(self, state: Any) -> Any:
        if state.v in self.lost:
            raise UnreachableError("away")
        return None, state.v

    def first(self) -> int | None:
        found = untrue_rows._first_with(self.s, AGREED.state, lambda v: v >= self.since)  # type: ignore[arg-type,operator]
        return found.v if found is not None else None


def test_the_first_version_that_lists_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for since in range(1, 10):
        assert Listed(monkeypatch, since).first() == since
    assert Listed(monkeypatch, 7, lost=(6,)).first() is None


def test_what_lies_in_a_pack_is_what_the_index_lists_in_that_one() -> None:
    index: Any = SimpleNamespace(find=lambda i: [(SimpleNamespace(id=A), None)] if i == b"x" else [])
    assert untrue_rows._lists(A, b"x", index)
    assert not untrue_rows._lists(B, b"x", index)
    assert not untrue_rows._lists(A, b"y", index)


def test_of_each_pack_it_is_told_what_and_of_the_first_ones_who(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrue_rows, "NAMED_MAX", 2)
    states = {A: SimpleNamespace(v=4), B: None, C: SimpleNamespace(v=5)}
    monkeypatch.setattr(untrue_rows, "_paths", lambda *_: {A: [b"f", b"g"]})
    monkeypatch.setattr(untrue_rows, "_first_with", lambda _s, _newest, is_in: states[is_in.args[0]])
    monkeypatch.setattr(untrue_rows.unreadable, "author", lambda _s, state: f"device {state.v}")
    s: Any = SimpleNamespace(listener=lambda _: None)
    told = untrue_rows.told(s, AGREED, rows_of(a="xyz", b="y", c="u"))
    assert [(t.pack, t.objects, t.ids, t.paths, t.version, t.device) for t in told] == [
        (b"a", 3, (b"x", b"y"), (b"f", b"g"), 4, "device 4"),
        (b"b", 1, (b"y",), (), None, ""),
        (b"c", 1, (b"u",), (), None, ""),
    ]
    assert untrue_rows.told(None, AGREED, UntrueRows()) == ()  # type: ignore[arg-type]


# ---- what needs them


def file(content: bytes, *, root: bytes = b"", size: int = 1) -> Entry:
    return Entry(Kind.FILE, 0o644, 0, size, content, root=root)


class Tree:
    """The newest version: these entries, with `lists` of the chunks of files, and untrue rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, entries: dict[bytes, Entry], **lists: str) -> None:
        self.entries, self.lists = entries, lists
        self.dirs: list[tuple[bytes, bytes]] = []  # lost ones, as a walk tells them
        self.error: Exception | None = None
        monkeypatch.setattr(untrue_rows, "gather", lambda _root, _size, take, _held, losses: ("gather", take, losses))
        monkeypatch.setattr(untrue_rows.walk, "chunks", lambda ids: ("chunks", ids))

    def walk(self, what: Any, on_lost: Any = None) -> Any:
        if what[0] == "chunks":
            (root,) = what[1]
            if root.decode() not in self.lists:
                raise DamagedError("a list of chunks is gone")
            return {root: [SimpleNamespace(id=i.encode()) for i in self.lists[root.decode()]]}
        _, take, losses = what
        for path, node_id in self.dirs:
            losses.told(path, node_id)
        take([*self.entries.items()])
        if self.error is not None:
            raise self.error
        return None

    def paths(self, rows: UntrueRows, **packs: str) -> dict[bytes, list[bytes]]:
        """-> the paths that need what is untrue, by pack. `packs`: what the index lists in each."""
        listed = {pack: [i.encode() for i in ids] for pack, ids in packs.items()}

        def find(object_id: bytes) -> list[Any]:
            return [(SimpleNamespace(id=(1, p.encode())), None) for p, ids in listed.items() if object_id in ids]

        s: Any = SimpleNamespace(contents=lambda _: SimpleNamespace(walk=self.walk, size_of=None))
        index: Any = SimpleNamespace(find=find, segments=())
        snapshot: Any = SimpleNamespace(root=b"root")
        agreed = replace(AGREED, index=index, snapshot=snapshot)
        return {pack[1]: paths for pack, paths in untrue_rows._paths(s, agreed, rows).items()}


def test_files_are_told_that_are_made_of_what_is_untrue(monkeypatch: pytest.MonkeyPatch) -> None:
    """By pack: what lies there is no matter, though it is untrue elsewhere."""
    entries = {
        b"f": file(b"x"),
        b"same": file(b"x"),
        b"true": file(b"t"),
        b"link": Entry(Kind.SYMLINK, 0o777, 0, 1, b"x"),
        b"empty": file(b"x", size=0),
    }
    tree = Tree(monkeypatch, entries)
    assert tree.paths(rows_of(a="x"), a="xt", b="x") == {b"a": [b"f", b"same"]}
    assert tree.paths(rows_of(a="x", b="x"), a="xt", b="x") == {b"a": [b"f", b"same"], b"b": [b"f", b"same"]}


def test_of_a_large_file_its_list_and_its_chunks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {b"large": file(b"h", root=b"l"), b"lost": file(b"h", root=b"m"), b"whole": file(b"h", root=b"n")}
    tree = Tree(monkeypatch, entries, l="xyx", n="tt")
    assert tree.paths(rows_of(a="xy"), a="xy") == {b"a": [b"large"]}, "once"
    assert tree.paths(rows_of(a="lm"), a="lm") == {b"a": [b"large", b"lost"]}
    assert tree.paths(rows_of(a="h"), a="h") == {}, "its hash is no object"


def test_directories_and_the_version_itself_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(monkeypatch, {})
    tree.dirs = [(b"", b"r"), (b"d/", b"x"), (b"e/", b"t")]
    assert tree.paths(rows_of(a="rx"), a="rxt") == {b"a": [b"/", b"d/"]}
    tree.dirs = []
    assert tree.paths(rows_of(a="s"), a="s") == {b"a": [b"/"]}


def test_the_first_paths_are_told_also_where_the_rest_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrue_rows, "NAMED_MAX", 2)
    tree = Tree(monkeypatch, {b"%d" % n: file(b"x") for n in range(4)})
    tree.error = UnreachableError("away")
    assert tree.paths(rows_of(a="x"), a="x") == {b"a": [b"0", b"1"]}
