"""One walk: a scan finds what a naive look at everything finds, whatever the index and the rule files say."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import first
from walk_kit import ROOT, RULES, Settled, edit, some_tree, untimed
from workdir import DIR, QuietDisk, digest, entry, ingest, write

from metasync.local.state import State
from metasync.local.state_keys import RULES_KEY, TREE_KEY
from metasync.objects.model import Entry, Kind
from metasync.worktree import index
from metasync.worktree.ignore import Ruling, parse
from metasync.worktree.ignore_files import load_texts
from metasync.worktree.index import Row, load_rows, store_rows
from metasync.worktree.merge_walk import walk_folder, walk_index
from metasync.worktree.overlay import changed
from metasync.worktree.scan import Scan, scan, store_scan


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Settled]:
    with Settled(tmp_path / "w") as w:
        yield w


def same(whole: Scan, found: Scan) -> None:
    assert dict(found.tree) == dict(whole.tree)
    assert len(found.tree) == len(dict(whole.tree))
    assert set(found.tree) == set(whole.tree)
    assert sorted(map(repr, found.tree.values())) == sorted(map(repr, whole.tree.values()))
    assert list(found.tree.ascending()) == sorted(whole.tree.items())
    assert sorted(changed(found.tree)) == sorted(changed(whole.tree))
    # Whether a row is trusted depends on when a scan began.
    assert untimed(found.put_rows) == untimed(whole.put_rows)
    kinds = ("delete_rows", "deleted", "forgotten", "unreadable", "busy", "skipped", "missing", "ignored", "warnings")
    for kind in kinds:
        assert getattr(found, kind) == getattr(whole, kind), kind
    assert found.held() == whole.held()
    assert found.rules == whole.rules
    assert found.files_read == whole.files_read


# ---- the naive reference


class Reference:
    """Lists everything, then judges every path by itself; rules are asked about whole paths."""

    def __init__(
        self, root: Path, base: dict[bytes, Entry], rows: dict[bytes, Row], before: dict[bytes, bytes]
    ) -> None:
        self.root, self.base, self.rows = os.fsencode(root), base, rows
        self.before = Ruling({d: parse(text) for d, text in before.items()})
        self.texts: dict[bytes, bytes] = {}
        self.tree: dict[bytes, Entry] = {}
        self.blocked: set[bytes] = set()
        self.skipped: set[bytes] = set()
        self.ignored: list[bytes] = []
        self.list(b"")
        self.now = Ruling({d: parse(text) for d, text in self.texts.items()})
        for path in [p for p, e in self.tree.items() if e.kind is Kind.SYMLINK]:
            if any(p.startswith(path + b"/") for p in base) and base[path].kind is Kind.DIR:
                del self.tree[path]
                self.leave_out(path)
        fates = {p: self.fate(p) for p in sorted({*base, *rows} - self.tree.keys() - {b""})}
        self.missing = [p for p in fates if p in base and fates[p] == "missing"]
        self.forgotten = [p for p in fates if p not in base and fates[p] == "gone"]
        kept = [p for p in fates if p in base and fates[p] != "gone"]
        for path in kept:
            self.keep(path)
        self.deleted = [p for p in fates if p in base and p not in self.tree]
        self.held = sorted(p for p, e in base.items() if e.kind is not Kind.DIR and self.now.ignores(p, False))
        self.drop_hollow()

    def list(self, path: bytes) -> None:
        names = sorted(os.listdir(os.path.join(self.root, path)))
        if path and os.path.exists(os.path.join(self.root, path, b".metasync", b"state.db")):
            del self.tree[path]
            self.leave_out(path)
            return
        if RULES in names:
            with open(os.path.join(self.root, path, RULES), "rb") as file:
                self.texts[path] = file.read()
        ruling = Ruling({d: parse(text) for d, text in self.texts.items()})
        for name in names:
            child, at = os.path.join(path, name), os.path.join(self.root, path, name)
            if name == b".metasync":
                if path:
                    self.leave_out(child)
                continue
            st = os.lstat(at)
            if ruling.ignores(child, stat.S_ISDIR(st.st_mode)):
                self.blocked.add(child)
                self.ignored += [child] if child not in self.base else []
            elif stat.S_ISDIR(st.st_mode):
                self.tree[child] = Entry(Kind.DIR, stat.S_IMODE(st.st_mode), 0, 0, b"")
                self.list(child)
            elif stat.S_ISLNK(st.st_mode):
                target = os.readlink(at)
                self.tree[child] = Entry(Kind.SYMLINK, 0, st.st_mtime_ns, len(target), target)
            else:
                with open(at, "rb") as file:
                    data = file.read()
                self.tree[child] = Entry(Kind.FILE, stat.S_IMODE(st.st_mode), st.st_mtime_ns, len(data), digest(data))

    def leave_out(self, path: bytes) -> None:
        self.blocked.add(path)
        self.skipped.add(path)

    def fate(self, path: bytes) -> str:
        """What became of a path: here, gone, kept, missing; "never": a directory of which nothing was ever here."""
        here = self.tree.get(path)
        if not path or here is not None:
            return "here" if here is None or here.kind is Kind.DIR else "gone"
        above = self.fate(path.rpartition(b"/")[0])
        if path in self.blocked or above == "kept":
            return "kept"
        row, agreed = self.rows.get(path), self.base.get(path)
        if row is None and agreed is None:
            return above if above == "missing" else "gone"
        if self.now.ignores(path, (row.entry if row is not None else self.base[path]).kind is Kind.DIR):
            return "kept"
        if row is None:
            is_dir = agreed is not None and agreed.kind is Kind.DIR
            return "never" if is_dir and above in ("here", "never") else "kept"
        if agreed is None:
            return "gone"
        return "missing" if above == "missing" or self.before.ignores(path, row.entry.kind is Kind.DIR) else "gone"

    def keep(self, path: bytes) -> None:
        """Has a path of the base, and the directories above it."""
        self.tree[path] = self.base[path]
        while (path := path.rpartition(b"/")[0]) and path in self.base:
            here = self.tree.get(path)
            if here is not None and here.kind is Kind.DIR:
                return
            self.skipped.update([path] if here is not None else [])
            self.tree[path] = self.base[path]

    def drop_hollow(self) -> None:
        """Drops new directories in which there is nothing but what is left out."""
        for path in sorted((p for p in self.tree if p not in self.base), reverse=True):
            names = {p.rpartition(b"/")[0] for p in self.tree}
            left = {p.rpartition(b"/")[0] for p in self.blocked}
            if self.tree[path].kind is Kind.DIR and path in left and path not in names:
                del self.tree[path]
                self.blocked.add(path)


def compare(found: Scan, wanted: Reference) -> None:
    assert dict(found.tree) == wanted.tree
    for kind in ("deleted", "missing", "forgotten"):
        assert getattr(found, kind) == getattr(wanted, kind), kind
    assert found.ignored == sorted(wanted.ignored)
    assert found.held() == wanted.held
    assert {path for path, _ in found.skipped} - set(wanted.missing) == wanted.skipped
    assert (found.unreadable, found.busy) == ([], [])
    assert {d: text for d, text in found.rules.items() if d in wanted.texts} == wanted.texts


@pytest.mark.parametrize("seed", first(25, range(400)))
def test_a_scan_finds_what_a_naive_look_at_everything_finds(
    work: Settled, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random trees, rule files and edits; pushes that succeed, fail, or find that others agreed on something else."""
    rng = random.Random(seed)
    monkeypatch.setattr(index, "PAGE_ROWS", rng.choice([1, 2, 3, 2000]))
    rules = rng.choice([0.0, 0.15, 0.4])
    some_tree(rng, work.root, rules=rules)
    for _ in range(6):
        wanted = Reference(work.root, dict(work.base), load_rows(work.db), load_texts(work.db))
        walked = walk_index(work.tree, work.db, ROOT)
        found = scan(walk_folder(work.tree, work.db, work.base), ingest)
        compare(found, wanted)
        if walked is not None:
            same(found, scan(walked, ingest))
        work.tree.tick_past(work.tree.clock_ns(), 1.0)
        found = work.scan()
        if rng.random() < 0.7:
            work.agree(found)
        if rng.random() < 0.2:  # others agreed on what is not here yet
            elsewhere = rng.choice([b"", *(p for p, e in work.base.items() if e.kind is Kind.DIR)])
            path = elsewhere + b"/far" if elsewhere else b"far"
            work.base.update({path: entry(DIR), path + b"/away": entry(b"far")})
            work.db.set(TREE_KEY, None)
        if (quiet := walk_index(work.tree, work.db, ROOT)) is not None and not found.skipped and not found.warnings:
            assert quiet.is_quiet or quiet.gone or any(path not in work.base for path in quiet.hollow if path)
            assert scan(walk_folder(work.tree, work.db, work.base), ingest).files_read == 0
        for _ in range(rng.randint(1, 4)):
            edit(rng, work.root, rules)


@pytest.mark.parametrize("seed", first(8, range(60)))
def test_a_scan_by_the_index_finds_what_one_by_the_agreed_tree_finds(
    work: Settled, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(index, "PAGE_ROWS", rng.choice([1, 2, 3, 2000]))
    some_tree(rng, work.root)
    (work.root / "one").write_bytes(b"1")
    work.settle()
    same(*work.both())
    for _ in range(3):
        for _ in range(rng.randint(1, 3)):
            edit(rng, work.root)
        same(*work.both())
        work.settle()


def test_a_name_is_not_taken_for_clean_that_no_row_vouches_for(work: Settled) -> None:
    write(work.root, {b"d/f": b"x", b"d/g": b"y"})
    work.settle()
    rows = load_rows(work.db)
    store_rows(work.db, [(b"d/g", rows[b"d/g"]._replace(trusted=False))])
    work.db.set(TREE_KEY, ROOT)
    assert [path for path, _, _ in work.walk().unread] == [b"d/g"]
    (work.root / "d/g").write_bytes(b"z")
    _, found = work.both()
    assert list(found.tree.put) == [b"d/g"]


@pytest.mark.parametrize("seed", range(6))
def test_what_changes_between_the_walk_and_the_reading_is_never_a_broken_tree(work: Settled, seed: int) -> None:
    """Directories that go, come or are replaced after the walk: all paths keep a directory above them."""
    rng = random.Random(1000 + seed)
    some_tree(rng, work.root)
    write(work.root, {b"p/q/r/s": b"s", b"p/q/t": b"t", b"p/u": b"u"})
    work.settle()
    for _ in range(12):
        for _ in range(2):
            edit(rng, work.root)
        walked = work.walk()
        for _ in range(2):
            edit(rng, work.root)
        found = scan(walked, ingest)
        tree = dict(found.tree)
        assert dict(found.base) == work.base
        for path in tree:
            parent = path.rpartition(b"/")[0]
            assert not parent or tree[parent].kind is Kind.DIR, path
        store_scan(work.db, found)
        after = work.scan_past()  # and the next scan sees what is there
        wanted = Reference(work.root, dict(work.base), load_rows(work.db), {})
        assert dict(after.tree) == wanted.tree
        work.agree(after)


def test_a_directory_that_goes_after_the_walk_is_gone_for_the_next_one(work: Settled) -> None:
    write(work.root, {b"d/e/f": b"x", b"d/e/g/h": b"y", b"d/i": b"z"})
    work.settle()
    (work.root / "d/new").write_bytes(b"new")
    (work.root / "d/e/f").write_bytes(b"changed")
    walked = work.walk()
    shutil.rmtree(work.root / "d/e")
    found = scan(walked, ingest)
    assert (found.deleted, found.busy) == ([], [b"d/e/f"])
    assert dict(found.tree) == {**work.base, b"d/new": found.tree[b"d/new"]}
    assert sorted(work.scan().deleted) == [b"d/e", b"d/e/f", b"d/e/g", b"d/e/g/h"]


def test_a_directory_replaced_after_the_walk_is_read_as_it_is_then(work: Settled) -> None:
    write(work.root, {b"d/e/f": b"x", b"d/e/g": b"y"})
    work.settle()
    (work.root / "d/e/f").write_bytes(b"changed")
    walked = work.walk()
    (work.root / "d/e").rename(work.root / "d/away")
    write(work.root, {b"d/e/f": b"other", b"d/e/new": b"new"})
    found = scan(walked, ingest)
    assert found.tree[b"d/e/f"].content == digest(b"other")
    assert found.deleted == []
    store_scan(work.db, found)
    found = work.scan()
    assert found.deleted == [b"d/e/g"]
    assert {b"d/e/new", b"d/away/f", b"d/away/g"} <= found.tree.keys()


# ---- what is quiet, and what is not


@pytest.mark.parametrize("name", ["d/.metasync", "d/.MetaSync"])
def test_what_is_told_of_is_not_quiet(work: Settled, name: str) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    assert work.walk().is_quiet
    (work.root / name).write_bytes(b"")
    walked = work.walk()
    assert not walked.is_quiet
    assert len(walked.skipped) == 1
    same(*work.both())


@pytest.mark.parametrize("where", [b"", b"d/"])
def test_a_folder_with_rules_is_quiet_too(work: Settled, where: bytes) -> None:
    write(work.root, {where + RULES: b"*.o\nbuild/\n", b"d/f": b"x", b"d/x.o": b"y", b"d/build/z": b"z"})
    work.settle()
    walked = work.walk()
    assert walked.is_quiet
    assert walked.ignored == [b"d/build", b"d/x.o"]
    (work.root / "d/more.o").write_bytes(b"")
    assert work.walk().is_quiet


def test_rules_that_no_scan_has_stored_are_not_quiet(work: Settled) -> None:
    """As after a pull that brought a rule file: what is ignored by it from now on must be known by the next scan."""
    write(work.root, {RULES: b"*.o", b"f": b"x"})
    work.settle()
    work.db.set(RULES_KEY, None)
    assert not work.walk().is_quiet
    work.scan()
    assert load_texts(work.db) == {b"": b"*.o"}


def test_rules_that_are_gone_are_forgotten_and_those_that_cannot_be_read_are_not(
    work: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules tell what was ignored when it went, which is no deletion; a directory that is gone is judged by them."""
    rules = dict.fromkeys((b"d", b"gone", b"new"), b"*.o")
    write(work.root, {path + b"/" + RULES: text for path, text in rules.items() if path != b"new"})
    work.settle()
    write(work.root, {b"new/" + RULES: b"*.o", b"new/f": b"x"})
    work.scan()
    assert load_texts(work.db) == rules
    (work.root / "d" / RULES.decode()).unlink()
    shutil.rmtree(work.root / "gone")
    names = QuietDisk.names

    def refuse(self: QuietDisk, fd: int) -> list[bytes]:
        if b"f" in (found := names(self, fd)):
            raise PermissionError(13, "Permission denied")
        return found

    monkeypatch.setattr(QuietDisk, "names", refuse)
    walked = walk_folder(work.tree, work.db, work.base)
    assert walked.is_blocked(b"new/below/it")
    assert not walked.is_blocked(b"d")
    assert walked.rule_texts() == {b"gone": b"*.o", b"new": b"*.o"}


def test_what_has_no_row_has_none_on_a_disk_with_another_number(work: Settled) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    for path, row in load_rows(work.db).items():
        store_rows(work.db, [(path, row._replace(dev=row.dev + 1))])
    walked = walk_folder(work.tree, work.db, work.base)
    assert walked.renumbered is not None
    assert walked.row(b"d/none") is None
    row = walked.row(b"d/f")
    assert row is not None
    assert row.dev == work.tree.root_stat.st_dev


def test_rows_of_no_tree_are_not_the_rows_of_one_that_nobody_named(work: Settled) -> None:
    assert work.db.get(TREE_KEY) is None
    assert walk_index(work.tree, work.db, None) is None


def test_bad_rules_are_told_each_time(work: Settled) -> None:
    write(work.root, {RULES: b"[", b"f": b"x"})
    work.settle()
    walked = work.walk()
    assert not walked.is_quiet
    assert len(walked.rules.warnings) == 1


def test_what_is_always_ignored_changes_nothing_unless_it_was_agreed(work: Settled) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    (work.root / "d/.DS_Store").write_bytes(b"")
    assert work.walk().is_quiet
    row = load_rows(work.db)[b"d/f"]
    store_rows(work.db, [(b"d/.DS_Store", row)])
    work.base[b"d/.DS_Store"] = row.entry
    work.db.set(TREE_KEY, ROOT)
    whole, found = work.both()
    same(whole, found)
    assert found.held() == [b"d/.DS_Store"]


def test_other_rows_than_the_trees_are_not_believed(work: Settled) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    assert walk_index(work.tree, work.db, None) is None
    assert walk_index(work.tree, work.db, b"\1" * 32) is None


def test_a_copy_of_the_folder_is_not_quiet(work: Settled) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    top = load_rows(work.db)[b""]
    store_rows(work.db, [(b"", top._replace(ino=top.ino + 1))])
    work.db.set(TREE_KEY, ROOT)
    walked = work.walk()
    assert walked.is_copy
    assert not walked.is_quiet


def test_a_directory_that_cannot_be_listed_is_not_quiet(work: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work.root, {b"d/f": b"x"})
    work.settle()
    names = QuietDisk.names

    def refuse(self: QuietDisk, fd: int) -> list[bytes]:
        if b"f" in (found := names(self, fd)):
            raise PermissionError(13, "Permission denied")
        return found

    monkeypatch.setattr(QuietDisk, "names", refuse)
    assert not work.walk().is_quiet
    whole, found = work.both()
    same(whole, found)
    assert [path for path, _ in found.unreadable] == [b"d"]


class Asked:
    """A local state that counts the rows it gives out."""

    def __init__(self, db: State) -> None:
        self.db = db
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.db, name)
        if name == "packed_rows":
            raise AssertionError("all rows at once")
        if name not in ("packed_row", "packed_rows_after", "packed_rows_at"):
            return found

        def call(*args: Any) -> Any:
            rows = found(*args)
            self.given += len(rows) if isinstance(rows, (list, dict)) else rows is not None
            return rows

        return call


def test_a_change_of_one_file_needs_the_rows_of_that_file_alone(work: Settled) -> None:
    write(work.root, {b"d%d/f%d" % (i, j): b"x" for i in range(20) for j in range(20)})
    work.settle()
    (work.root / "d7/f7").write_bytes(b"changed")
    (work.root / "d8/new").write_bytes(b"new")
    shutil.rmtree(work.root / "d9")
    db = Asked(work.db)
    walked = walk_index(work.tree, db, ROOT)  # type: ignore[arg-type]
    assert walked is not None
    assert db.given <= work.db.count_rows() + 3, "each once"
    db.given = 0
    seen = scan(walked, ingest)
    assert len(changed(seen.tree)) == 23
    assert sorted(seen.tree.near([b"d8/new"])) == sorted([b"d8/new", *(b"d8/f%d" % i for i in range(20))])
    assert db.given <= 21 + 3, "what is in d8"
