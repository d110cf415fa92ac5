"""A scan of the names that differ finds what a scan of everything finds, and reads no more rows than it needs."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulation.db import SimDb, empty_tables
from workdir import QuietDisk, Workspace, ingest, write

from metasync.local import state
from metasync.local.state import LocalDb, State
from metasync.local.state_keys import TREE_KEY
from metasync.objects.model import Entry, Kind
from metasync.sync.pull import changed
from metasync.worktree import quick_scan
from metasync.worktree import quick_scan as parts
from metasync.worktree.index import Row, files_with, load_rows, rows_at, store_rows
from metasync.worktree.quick_scan import Edited, FromRows, Part, children, differences, near, note_settled
from metasync.worktree.scan import Scan, scan
from metasync.worktree.survey import survey, survey_part

ROOT = b"\7" * 32
# "-" and "." come before "/" and "0" behind it: directories lie between their own name and what is in them.
NAMES = ["a", "a-", "a.b", "a0", "b", "B", ".hidden", "Two", "~x", "ä", "z"]


class Settled(Workspace):
    """A workspace whose rows are noted as the agreed tree."""

    def settle(self) -> None:
        found = self.scan_past()
        self.base = dict(found.tree)
        self.db.delete_rows([p for p in found.deleted if p not in found.tree])
        rows = load_rows(self.db)
        note_settled(self.db, ROOT, self.base, rows, {}, [])
        assert self.db.get(TREE_KEY) == ROOT

    def both(self, ingest: Any = ingest) -> tuple[Scan, Scan]:
        """What a scan of everything finds, and one of what differs."""
        whole = survey(self.tree, self.db, self.base, ingest)
        differing = differences(self.tree, self.db, ROOT)
        assert differing is not None
        assert differing.rows == self.db.count_rows()
        found, before, part = survey_part(self.tree, self.db, differing, ingest)
        assert dict(before) == self.base
        assert len(before) == len(self.base)
        stored = load_rows(self.db)
        assert [(stored.get(p), r) for p, r in part.rows.items() if stored.get(p) != r] == []
        return whole, found


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Settled]:
    with Settled(tmp_path / "w") as w:
        yield w


def same(whole: Scan, found: Scan) -> None:
    assert dict(found.tree) == whole.tree
    assert len(found.tree) == len(whole.tree)
    assert set(found.tree) == set(whole.tree)
    assert sorted(map(repr, found.tree.values())) == sorted(map(repr, whole.tree.values()))
    # Whether a row is trusted depends on when a scan began.
    assert untimed(found.put_rows) == untimed(whole.put_rows)
    assert sorted(found.delete_rows) == sorted(whole.delete_rows)
    assert sorted(found.deleted) == sorted(whole.deleted)
    for kind in ("forgotten", "unreadable", "busy", "skipped", "missing", "held", "warnings"):
        assert sorted(getattr(found, kind)) == sorted(getattr(whole, kind)), kind
    assert found.rules == whole.rules
    assert found.counts.files_read == whole.counts.files_read


def untimed(rows: dict[bytes, Row]) -> dict[bytes, Row]:
    return {path: row._replace(trusted=True) for path, row in rows.items()}


def some_tree(rng: random.Random, root: Path, depth: int = 3) -> None:
    for name in rng.sample(NAMES, rng.randint(0, 7)):
        at = root / name
        if depth and rng.random() < 0.45:
            at.mkdir()
            some_tree(rng, at, depth - 1)
        elif rng.random() < 0.15:
            at.symlink_to("target")
        else:
            at.write_bytes(rng.randbytes(3))


def edit(rng: random.Random, root: Path) -> None:
    """One change somewhere."""
    places = [Path(d) for d, _, _ in os.walk(root) if ".metasync" not in Path(d).parts]
    inside = rng.choice(places)
    here = [p for p in sorted(inside.iterdir()) if p.name != ".metasync"]
    kind = rng.randrange(9)
    at = rng.choice(here) if here else None
    if kind == 0 or at is None:
        new = inside / rng.choice([*NAMES, "new", "c"])
        if not os.path.lexists(new):
            if rng.random() < 0.5:
                new.mkdir()
                some_tree(rng, new, 1)
            else:
                new.write_bytes(b"new")
    elif kind == 1:
        shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()
    elif kind == 2 and at.is_file() and not at.is_symlink():  # as many bytes, and the mtime put back
        st = at.stat()
        at.write_bytes(rng.randbytes(st.st_size))
        os.utime(at, ns=(st.st_atime_ns, st.st_mtime_ns))
    elif kind == 3 and not at.is_symlink():
        at.chmod(0o700 if at.is_dir() else 0o600)
    elif kind == 4:
        at.rename(inside / "moved") if not os.path.lexists(inside / "moved") else None
    elif kind == 5:
        shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()
        at.mkdir()
        some_tree(rng, at, 1)
    elif kind == 6:
        shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()
        at.write_bytes(b"a file now")
    elif kind == 7:
        shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()
        at.symlink_to("elsewhere")
    elif kind == 8 and at.is_dir() and not at.is_symlink():  # the same names in another directory
        shutil.copytree(at, inside / "copy", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(at)
        (inside / "copy").rename(at)


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_a_scan_of_everything_finds(work: Settled, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(quick_scan, "PAGE_ROWS", rng.choice([1, 2, 3, 2000]))
    monkeypatch.setattr(parts, "PAGE_ROWS", rng.choice([1, 2, 3, 2000]))
    some_tree(rng, work.root)
    (work.root / "one").write_bytes(b"1")
    work.settle()
    differing = differences(work.tree, work.db, ROOT)
    assert differing is not None
    assert not differing
    for _ in range(3):
        for _ in range(rng.randint(1, 3)):
            edit(rng, work.root)
        whole, found = work.both()
        same(whole, found)
        before = found.tree.base  # type: ignore[attr-defined]
        assert sorted(changed(before, found.tree)) == sorted(changed(work.base, whole.tree))
        work.settle()


def test_a_name_is_not_taken_for_clean_that_no_row_vouches_for(work: Settled) -> None:
    write(work.root, {b"d/f": b"x", b"d/g": b"y"})
    work.settle()
    rows = load_rows(work.db)
    store_rows(work.db, [(b"d/g", rows[b"d/g"]._replace(trusted=False))])
    work.db.set(TREE_KEY, ROOT)
    differing = differences(work.tree, work.db, ROOT)
    assert differing is not None
    assert differing.names == {b"d": [b"g"]}
    (work.root / "d/g").write_bytes(b"z")
    _, found = work.both()
    assert [p for p, _ in found.tree.changes.items()] == [b"d/g"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_what_changes_between_the_two_looks_is_never_a_broken_tree(work: Settled, seed: int) -> None:
    """Directories that go, come or are replaced after they were compared: all paths keep a directory above them."""
    rng = random.Random(1000 + seed)
    some_tree(rng, work.root)
    write(work.root, {b"p/q/r/s": b"s", b"p/q/t": b"t", b"p/u": b"u"})
    work.settle()
    for _ in range(12):
        for _ in range(2):
            edit(rng, work.root)
        differing = differences(work.tree, work.db, ROOT)
        assert differing is not None
        for _ in range(2):
            edit(rng, work.root)
        found, before, _ = survey_part(work.tree, work.db, differing, ingest)
        tree = dict(found.tree)
        assert dict(before) == work.base
        for path in tree:
            parent = path.rpartition(b"/")[0]
            assert not parent or tree[parent].kind is Kind.DIR, path
        work.settle()


def test_a_directory_that_went_after_it_was_compared_takes_what_was_in_it_along(work: Settled) -> None:
    write(work.root, {b"d/e/f": b"x", b"d/e/g/h": b"y", b"d/i": b"z"})
    work.settle()
    (work.root / "d/new").write_bytes(b"new")
    (work.root / "d/e").chmod(0o700)
    differing = differences(work.tree, work.db, ROOT)
    assert differing is not None
    shutil.rmtree(work.root / "d/e")
    found, _, _ = survey_part(work.tree, work.db, differing, ingest)
    assert sorted(found.deleted) == [b"d/e", b"d/e/f", b"d/e/g", b"d/e/g/h"]
    assert sorted(found.tree) == [b"d", b"d/i", b"d/new"]


def test_a_directory_replaced_after_it_was_compared_is_read_anew(work: Settled) -> None:
    write(work.root, {b"d/e/f": b"x", b"d/e/g": b"y"})
    work.settle()
    (work.root / "d/e").chmod(0o700)
    differing = differences(work.tree, work.db, ROOT)
    assert differing is not None
    (work.root / "d/e").rename(work.root / "d/away")
    write(work.root, {b"d/e/f": b"other", b"d/e/new": b"new"})
    found, _, _ = survey_part(work.tree, work.db, differing, ingest)
    assert found.deleted == [b"d/e/g"]
    assert b"d/e/new" in found.tree
    assert found.tree[b"d/e/f"].size == 5


@pytest.mark.parametrize("name", [".metasyncignore", "d/.metasyncignore", "d/.metasync", "d/.MetaSync"])
def test_what_only_a_scan_can_judge_is_left_to_it(work: Settled, name: str) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    assert differences(work.tree, work.db, ROOT) is not None
    (work.root / name).write_bytes(b"")
    assert differences(work.tree, work.db, ROOT) is None


def test_what_is_always_ignored_changes_nothing_unless_it_was_agreed(work: Settled) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    (work.root / "d/.DS_Store").write_bytes(b"")
    differing = differences(work.tree, work.db, ROOT)
    assert differing is not None
    assert not differing
    row = load_rows(work.db)[b"d/f"]
    store_rows(work.db, [(b"d/.DS_Store", row)])
    work.db.set(TREE_KEY, ROOT)
    assert differences(work.tree, work.db, ROOT) is None


def test_other_rows_than_the_trees_are_not_believed(work: Settled) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    assert differences(work.tree, work.db, None) is None
    assert differences(work.tree, work.db, b"\1" * 32) is None
    top = load_rows(work.db)[b""]
    store_rows(work.db, [(b"", top._replace(ino=top.ino + 1))])
    work.db.set(TREE_KEY, ROOT)
    assert differences(work.tree, work.db, ROOT) is None, "a copy of the folder"


def test_a_directory_that_cannot_be_listed_is_left_to_a_scan(work: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()

    def refuse(self: object, fd: int) -> list[bytes]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(QuietDisk, "names", refuse)
    assert differences(work.tree, work.db, ROOT) is None


class Asked:
    """A local state that counts the rows it gives out."""

    def __init__(self, db: State) -> None:
        self.db = db
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.db, name)
        if name == "packed_rows":
            raise AssertionError("all rows at once")
        if name not in ("packed_row", "packed_rows_after"):
            return found

        def call(*args: Any) -> Any:
            rows = found(*args)
            self.given += len(rows) if isinstance(rows, list) else rows is not None
            return rows

        return call


def test_a_change_of_one_file_needs_the_rows_of_that_file_alone(work: Settled) -> None:
    write(work.root, {b"d%d/f%d" % (i, j): b"x" for i in range(20) for j in range(20)})
    work.settle()
    (work.root / "d7/f7").write_bytes(b"changed")
    (work.root / "d8/new").write_bytes(b"new")
    shutil.rmtree(work.root / "d9")
    differing = differences(work.tree, work.db, ROOT)
    assert differing is not None
    db = Asked(work.db)
    part = Part(db, differing)  # type: ignore[arg-type]
    seen = scan(work.tree, part.rows, part.base, ingest, {}, part)
    before, tree = part.trees(seen.tree)
    differ = changed(before, tree)
    assert len(differ) == 23
    assert sorted(near(tree, [b"d8/new"])) == sorted([b"d8/new", *(b"d8/f%d" % i for i in range(20))])
    assert db.given <= 23 + 2 * 21 + 5, "the names, the way to them, what was in d9, and what is in d8"


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


def test_rows_are_found_by_path_and_by_content(db: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "QUERY_IDS_MAX", 2)
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
    tree = FromRows(db, {b"c": None}, 2)
    tree.hold([b"", b"a", b"c", b"new"])
    other = ROW._replace(entry=ROW.entry._replace(size=99))
    store_rows(db, [(p, other) for p in (b"a", b"b", b"c", b"new")])
    assert [tree.get(p) for p in (b"", b"a", b"b", b"c", b"new")] == [None, ROW.entry, other.entry, None, None]


@pytest.mark.parametrize("page", [1, 2, 2000])
def test_what_is_in_a_directory_itself(db: State, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PAGE_ROWS", page)
    below = [b"%d" % i for i in range(30)]
    paths = [b"", b"a", b"a-", b"a/b", b"a/b-", b"a/b0", b"a/c", *(b"a/b/" + n for n in below), b"a0", b"\xff\xff/x"]
    store_rows(db, [(p, ROW) for p in paths])
    assert [p for p, _ in children(db, b"")] == [b"a", b"a-", b"a0"]
    assert [p for p, _ in children(db, b"a")] == [b"a/b", b"a/b-", b"a/b0", b"a/c"]
    assert sorted(p for p, _ in children(db, b"a/b")) == sorted(b"a/b/" + n for n in below)
    assert list(children(db, b"none")) == []


def test_a_tree_from_rows_stays_when_they_are_written(db: State) -> None:
    store_rows(db, [(b"", TOP), *((p, ROW) for p in (b"a", b"b", b"c/d", b"c/e"))])
    known = {b"a": ROW.entry, b"b": ROW.entry, b"new": None}
    tree = FromRows(db, known, 4)
    wanted = dict.fromkeys((b"a", b"b", b"c/d", b"c/e"), ROW.entry)
    assert dict(tree.items()) == dict(tree) == wanted
    other = ROW._replace(entry=ROW.entry._replace(size=99))
    store_rows(db, [(b"a", other), (b"new", other)])
    db.delete_rows([b"b"])
    assert dict(tree.items()) == wanted
    assert (tree.get(b"a"), tree.get(b"b"), tree.get(b"new"), tree.get(b"")) == (ROW.entry, ROW.entry, None, None)
    assert sorted(tree.inside(b"c")) == [b"c/d", b"c/e"]
    assert sorted(tree.inside(b"")) == [b"a", b"b"]


def edited(db: State) -> Edited:
    store_rows(db, [(b"", TOP), *((p, ROW) for p in (b"a", b"b", b"c/d"))])
    return Edited(FromRows(db, {}, 3), {})


CHANGES: list[Callable[[Any], None]] = [
    lambda t: t.update({b"new": ROW.entry}),
    lambda t: t.pop(b"a"),
    lambda t: t.update({b"a": TOP.entry}),
    lambda t: (t.pop(b"a"), t.update({b"a": TOP.entry})),
    lambda t: (t.update({b"x": TOP.entry}), t.pop(b"x")),
    lambda t: t.pop(b"none", None),
]


@pytest.mark.parametrize("seed", range(10))
def test_a_tree_with_changes_is_like_a_dict(db: State, seed: int) -> None:
    tree = edited(db)
    plain = dict(tree)
    for change in random.Random(seed).choices(CHANGES, k=4):
        raised = []
        for into in (tree, plain):
            try:
                change(into)
            except KeyError:
                raised.append(into)
        assert len(raised) in (0, 2)
        assert dict(tree) == plain
        assert (len(tree), sorted(tree)) == (len(plain), sorted(plain))
        assert sorted(tree.inside(b"")) == sorted(p for p in plain if b"/" not in p)
    assert dict(tree.base) == dict.fromkeys((b"a", b"b", b"c/d"), ROW.entry)
