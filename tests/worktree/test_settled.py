"""A push with nothing to do is told so by stats alone, and whatever changed in the folder is still found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulation.db import SimDb, empty_tables
from workspace_kit import Lab, tree_of, write

from metasync.errors import MetaSyncError
from metasync.local.spill import Large
from metasync.local.state import LocalDb, State
from metasync.local.state_keys import TREE_KEY
from metasync.objects.model import Entry, Kind
from metasync.session.session import Session
from metasync.sync import scanned
from metasync.workspace import Workspace
from metasync.worktree.index import Row, load_rows, pack_entry, store_rows, unpack_entry
from metasync.worktree.merge_walk import walk_index
from metasync.worktree.overlay import Tree, note_index_of
from metasync.worktree.tree import WorkTree

FILES = {"a": b"aaaa", "b/c": b"c", "b/d/e": b"e", ".hidden": b"h", "päth~1": b"p", "Two": b"2"}


def is_settled(tree: WorkTree, db: State, root: bytes | None) -> bool:
    """Whether stats tell that the folder is the tree of this root, and nothing else."""
    found = walk_index(tree, db, root)
    return found is not None and found.is_quiet


def tick() -> None:
    """Lets the file system's clock go on, so that what was written before is trusted by the next scan."""
    time.sleep(0.02)


@pytest.fixture
def pushed(lab: Lab) -> Workspace:
    """A workspace that knows that its folder is the agreed tree."""
    w = lab.init(lab.urls("one", "two", "three"))
    write(w.directory, FILES)
    (w.directory / "link").symlink_to("a")
    (w.directory / "empty").mkdir()
    tick()
    assert w.push().version == 1
    assert w._db.get(TREE_KEY) is not None
    return w


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever scans in earnest fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("scanned")

    with monkeypatch.context() as m:
        m.setattr(scanned, "scan", refuse)
        yield


def test_nothing_changed_is_told_by_stats_alone(pushed: Workspace, no_scan: None) -> None:
    for _ in range(2):
        r = pushed.push()
        assert (r.version, len(r.changes)) == (None, 0)


def rewritten(root: Path) -> None:
    """Other bytes of the same size, with the mtime put back."""
    st = (root / "a").stat()
    (root / "a").write_bytes(b"bbbb")
    os.utime(root / "a", ns=(st.st_atime_ns, st.st_mtime_ns))


def replaced_by_a_copy(root: Path) -> None:
    st = (root / "a").stat()
    (root / "new").write_bytes(b"AAAA")
    os.utime(root / "new", ns=(st.st_atime_ns, st.st_mtime_ns))
    (root / "new").rename(root / "a")


def other_link(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("b")


def file_for_directory(root: Path) -> None:
    (root / "empty").rmdir()
    (root / "empty").write_bytes(b"now a file")


def directory_for_file(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").mkdir()


CHANGES: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "content": (rewritten, b"a"),
    "another inode": (replaced_by_a_copy, b"a"),
    "longer": (lambda r: (r / "b/d/e").write_bytes(b"longer"), b"b/d/e"),
    "mode": (lambda r: (r / "b/c").chmod(0o755), b"b/c"),
    "mode of a directory": (lambda r: (r / "empty").chmod(0o700), b"empty"),
    "link": (other_link, b"link"),
    "new file": (lambda r: (r / "b/new").write_bytes(b""), b"b/new"),
    "new directory": (lambda r: (r / "b/new").mkdir(), b"b/new"),
    "new hidden file": (lambda r: (r / ".new").write_bytes(b""), b".new"),
    "deleted file": (lambda r: (r / "b/d/e").unlink(), b"b/d/e"),
    "deleted link": (lambda r: (r / "link").unlink(), b"link"),
    "deleted directory": (lambda r: (r / "empty").rmdir(), b"empty"),
    "renamed": (lambda r: (r / "b").rename(r / "z"), b"z/c"),
    "file for directory": (file_for_directory, b"empty"),
    "directory for file": (directory_for_file, b"a"),
    "ignore rules": (lambda r: (r / ".metasyncignore").write_bytes(b"x\n"), b".metasyncignore"),
    "name beside its twin": (lambda r: (r / "two").write_bytes(b"3"), b"two"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_changed_is_found(pushed: Workspace, kind: str) -> None:
    change, path = CHANGES[kind]
    change(pushed.directory)
    r = pushed.push()
    assert r.version == 2
    renamed = (name.path for name in r.changes.renamed)
    assert path in {*r.changes.added, *r.changes.modified, *r.changes.deleted, *renamed}
    tick()
    assert pushed.push().version is None


def test_what_is_ignored_is_nobodys_change(pushed: Workspace) -> None:
    (pushed.directory / ".DS_Store").write_bytes(b"")
    assert pushed.push().version is None


def test_in_a_folder_with_ignore_rules_it_is_told_as_well(pushed: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (pushed.directory / ".metasyncignore").write_bytes(b"nothing\n")
    (pushed.directory / "nothing").write_bytes(b"")
    tick()
    assert pushed.push().version == 2
    with monkeypatch.context() as m:
        m.setattr(scanned, "scan", None)
        assert pushed.push().version is None
    (pushed.directory / ".metasyncignore").write_bytes(b"nothing\n*.o\n")
    (pushed.directory / "x.o").write_bytes(b"")
    r = pushed.push()
    assert r.changes.added == ()
    assert r.changes.modified == (b".metasyncignore",)


def test_a_clone_and_a_pull_note_it_too(pushed: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    other = lab.clone(lab.urls("one", "two", "three"))
    assert other._db.get(TREE_KEY) is not None
    for n in range(3):
        (pushed.directory / f"b/{n}").write_bytes(b"new")
        (pushed.directory / "a").write_bytes(b"changed %d" % n)
        if n:
            (pushed.directory / f"b/{n - 1}").unlink()
        tick()
        pushed.push()
        with monkeypatch.context() as m:
            m.setattr(Session, "flat", None)  # the tree is known by its rows
            other.pull()
        with other._session("test") as s:
            assert s.db.get(TREE_KEY) == s.base().tree_root
        assert tree_of(other.directory) == tree_of(pushed.directory)
    tick()
    assert other.push().version is None


def test_what_a_pull_finds_changed_here_is_not_noted_as_agreed(pushed: Workspace, lab: Lab) -> None:
    other = lab.clone(lab.urls("one", "two", "three"))
    (other.directory / "mine").write_bytes(b"mine")
    (other.directory / "b/c").unlink()
    (other.directory / "a").write_bytes(b"mine")
    tick()
    write(pushed.directory, {"a": b"theirs", "b/d/e": b"longer"})
    pushed.push()
    other.pull()
    r = other.push()
    assert b"mine" in r.changes.added
    assert b"b/c" in r.changes.deleted
    pushed.pull()
    assert tree_of(other.directory) == tree_of(pushed.directory)


def test_rows_are_believed_by_their_root_alone(pushed: Workspace) -> None:
    with pushed._session("test") as s:
        root = s.base().tree_root
        assert is_settled(s.tree, s.db, root)
        assert not is_settled(s.tree, s.db, b"\1" * 32)
        assert not is_settled(s.tree, s.db, None)
        rows = s.db.packed_rows()
        s.db.put_packed_rows([(b"", rows[b""])])  # the same again: it may not be, for all that is known
        assert not is_settled(s.tree, s.db, root)


def test_a_push_that_failed_notes_nothing(pushed: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (pushed.directory / "b/new").write_bytes(b"new")

    def lost(*_: object) -> None:
        raise MetaSyncError("gone")

    with monkeypatch.context() as m:
        m.setattr("metasync.session.agreement.propose", lost)
        with pytest.raises(MetaSyncError, match="gone"):
            pushed.push()
    assert pushed._db.get(TREE_KEY) is None
    assert pushed.push().changes.added == (b"b/new",)


@pytest.mark.parametrize("kind", ["sqlite", "simulated"])
def test_a_row_that_changes_takes_the_note_back(kind: str, tmp_path: Path) -> None:
    db = LocalDb.open(tmp_path / "state.db") if kind == "sqlite" else SimDb(empty_tables())
    with db:
        for change in (lambda: db.put_packed_rows([(b"a", b"1")]), lambda: db.delete_rows([b"a"])):
            db.set(TREE_KEY, b"root")
            db.put_packed_rows([])
            db.delete_rows([])
            assert db.get(TREE_KEY) == b"root"
            with pytest.raises(ZeroDivisionError), db.transaction():  # noqa: PT012
                change()
                raise ZeroDivisionError
            assert db.get(TREE_KEY) == b"root"
            before = db.count_rows()
            change()
            assert db.get(TREE_KEY) is None
            assert db.count_rows() == 1 - before


def test_what_is_not_trusted_is_read_again(pushed: Workspace) -> None:
    with pushed._session("test") as s:
        root, row = s.base().tree_root, load_rows(s.db)[b"a"]
        store_rows(s.db, [(b"a", row._replace(trusted=False))])
        s.db.set(TREE_KEY, root)
        assert not is_settled(s.tree, s.db, root)
        store_rows(s.db, [(b"a", row)])
        s.db.set(TREE_KEY, root)
        assert is_settled(s.tree, s.db, root)


ENTRY = Entry(Kind.FILE, 0o644, 1, 1, b"\1" * 32)
ROW = Row(ENTRY, 1, 1, 1, 1, 1, 0o100644, True)
OTHER = ROW._replace(entry=ENTRY._replace(mode=0o600))
TOP = Row(Entry(Kind.DIR, 0o755, 0, 0, b""), 1, 1, 0, 0, 0, 0o40755, True)


@pytest.mark.parametrize("differing", [None, [b"b"]])
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize(
    ("before", "put", "gone", "noted"),
    [
        ({b"": TOP, b"a": ROW}, {b"b": ROW}, [], True),
        ({b"": TOP, b"a": ROW, b"c": ROW}, {b"b": ROW}, [b"c"], True),
        ({b"": TOP, b"a": ROW, b"b": OTHER}, {b"b": ROW}, [], True),
        ({b"": TOP, b"a": ROW}, {b"b": OTHER}, [], False),
        ({b"": TOP, b"a": ROW, b"b": ROW}, {}, [b"b"], False),
        ({b"": TOP, b"a": ROW, b"b": ROW}, {b"c": ROW}, [], False),
        ({b"": TOP, b"a": ROW, b"b": ROW}, {b"a": OTHER}, [], False),
        ({b"a": ROW, b"b": ROW}, {b"c": ROW}, [], False),
    ],
)
def test_rows_are_noted_as_the_tree_only_when_they_are(
    before: dict[bytes, Row],
    put: dict[bytes, Row],
    gone: list[bytes],
    noted: bool,
    differing: list[bytes] | None,
    below: bool,
) -> None:
    db = SimDb(empty_tables())
    for rows in (before, put):
        store_rows(db, rows.items())
    db.delete_rows(gone)
    tree = Tree(Tree({b"a": ENTRY}), {b"b": ENTRY}) if below else Tree({}, {b"a": ENTRY, b"b": ENTRY})
    note_index_of(db, b"root", tree, [*differing, *put, *gone] if differing is not None else None)
    assert db.get(TREE_KEY) == (b"root" if noted else None)


def test_a_row_that_stays_behind_is_counted() -> None:
    """One that a push of unknown end still needs: it is in nobody's list."""
    db = SimDb(empty_tables())
    rows = {b"": TOP, b"a": ROW}
    store_rows(db, {**rows, b"stays": ROW}.items())
    note_index_of(db, b"root", Tree({b"a": ENTRY}), [b"stays"])
    assert db.get(TREE_KEY) is None


@pytest.mark.parametrize(
    ("put", "noted"),
    [
        ({b"": TOP, b"a": ROW, b"b": ROW}, True),
        ({b"": TOP, b"a": ROW, b"b": OTHER}, False),
        ({b"": TOP, b"a": ROW, b"c": ROW}, False),
        ({b"x": TOP, b"a": ROW, b"b": ROW}, False),
        ({b"": TOP, b"a": ROW}, False),
    ],
)
def test_very_many_rows_are_noted_as_the_tree_only_when_they_are(put: dict[bytes, Row], noted: bool) -> None:
    db = SimDb(empty_tables())
    store_rows(db, put.items())
    tree = Tree(Tree({}), Large(pack_entry, unpack_entry, [(b"a", ENTRY), (b"b", ENTRY)]))
    note_index_of(db, b"root", tree, None)
    assert db.get(TREE_KEY) == (b"root" if noted else None)
