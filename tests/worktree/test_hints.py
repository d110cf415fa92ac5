"""A walk by complete hints gives the tree that a walk of everything gives, and looks at little else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import first
from walk_kit import ROOT, RULES, Settled, both, edit, is_same, some_tree
from workdir import DIR, ingest, write

from metasync.local.state_keys import RULES_KEY, TREE_KEY
from metasync.worktree import index
from metasync.worktree.hints import ALL, Hints, Route, Way
from metasync.worktree.index import load_rows, store_rows
from metasync.worktree.merge_walk import Walk, walk_index
from metasync.worktree.names import MACOS
from metasync.worktree.overlay import changed
from metasync.worktree.scan import scan, store_scan

Seen = dict[bytes, tuple[int, ...]]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Settled]:
    with Settled(tmp_path / "w") as w:
        yield w


def seen(root: Path) -> Seen:
    """What a watcher may tell apart: a directory's own stat, and all of the stat of everything else."""
    out: Seen = {}
    top = os.fsencode(root)
    for folder, dirs, files in os.walk(top):
        if folder == top:
            dirs.remove(b".metasync")
        for name in (*dirs, *files):
            at = os.path.join(folder, name)
            st = os.lstat(at)
            rest = () if os.path.isdir(at) and not os.path.islink(at) else (st.st_size, st.st_mtime_ns, st.st_ctime_ns)
            out[os.path.relpath(at, top)] = (st.st_mode, st.st_ino, *rest)
    return out


def hints_between(before: Seen, after: Seen, *, moved: bool = True) -> Hints:
    """The least that is complete: the parent of what changed, and all of a directory that came there."""
    differing = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    came = {p for p in differing if len(after.get(p, ())) == 2 and before.get(p, (0, 0))[1] != after[p][1]}
    return Hints({os.path.dirname(path) for path in differing}, came if moved else set())


@pytest.mark.parametrize("seed", first(25, range(600)))
def test_complete_hints_give_the_tree_of_a_walk_of_everything(
    work: Settled, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(index, "PAGE_ROWS", rng.choice([1, 2, 3, 2000]))
    rules = rng.choice([0.0, 0.15, 0.4])
    some_tree(rng, work.root, rules=rules)
    work.agree(work.scan_past())
    for _ in range(6):
        before = seen(work.root)
        for _ in range(rng.randint(0, 4)):
            edit(rng, work.root, rules)
        hints = hints_between(before, seen(work.root))
        if rng.random() < 0.3:  # more than is needed, of what is not there too
            hints |= Hints({rng.choice([b"a", b"a/b", b"z/a-", b"gone/x"])}, {rng.choice([b"b", b"a/Two", b"no"])})
        if walk_index(work.tree, work.db, ROOT, hints) is None:  # a path that is missing: its push does not settle
            return
        is_same(*both(work, hints))
        walked = walk_index(work.tree, work.db, ROOT, hints)
        assert walked is not None
        work.tree.tick_past(work.tree.clock_ns(), 1.0)
        found = scan(walked, ingest)
        store_scan(work.db, found)
        work.agree(found)


class Counted:
    """Counts what a walk asks of the disk and of the rows."""

    def __init__(self, work: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stats = self.listed = self.rows = 0
        disk, db = work.tree.disk, work.db
        lstat, names, after = disk.lstat, disk.names, db.packed_rows_after

        def counted_lstat(name: bytes, dir_fd: int) -> os.stat_result:
            self.stats += 1
            st: os.stat_result = lstat(name, dir_fd)
            return st

        def counted_names(fd: int) -> list[bytes]:
            self.listed += 1
            found: list[bytes] = names(fd)
            return found

        def counted_rows(path: bytes, most: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
            page: list[tuple[bytes, bytes]] = after(path, most, end)
            self.rows += len(page)
            return page

        def refuse() -> int:
            raise AssertionError("all rows were counted")

        monkeypatch.setattr(disk, "lstat", counted_lstat)
        monkeypatch.setattr(disk, "names", counted_names)
        monkeypatch.setattr(db, "packed_rows_after", counted_rows)
        monkeypatch.setattr(db, "count_rows", refuse)


@pytest.fixture
def broad(work: Settled) -> Settled:
    """Twenty directories with twenty each, in which twenty files are."""
    for a in range(20):
        for b in range(20):
            at = work.root / f"{a:02}" / f"{b:02}"
            at.mkdir(parents=True)
            for c in range(20):
                (at / f"{c:02}").write_bytes(b"%d %d %d" % (a, b, c))
    work.settle()
    return work


def test_one_changed_file_costs_its_own_directory_and_the_way_to_it(
    broad: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broad.root / "07" / "11" / "13").write_bytes(b"changed")
    counted = Counted(broad, monkeypatch)
    walked = walk_index(broad.tree, broad.db, ROOT, Hints({b"07/11"}))
    assert walked is not None
    found = scan(walked, ingest)
    assert list(changed(found.tree)) == [b"07/11/13"]
    assert counted.listed == 1
    assert counted.stats < 40, "some twenty files, and two directories above them"
    assert counted.rows < 60, "of 8,420"


@pytest.mark.long
def test_nothing_hinted_at_costs_nothing(broad: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(broad, monkeypatch)
    walked = walk_index(broad.tree, broad.db, ROOT, Hints())
    assert walked is not None
    assert walked.is_quiet
    assert (counted.listed, counted.stats) == (0, 0)
    assert counted.rows < 8


def by_hints(work: Settled, hints: Hints) -> Walk:
    found = walk_index(work.tree, work.db, ROOT, hints)
    assert found is not None
    return found


def test_what_no_hint_names_is_left_to_the_next_walk(broad: Settled) -> None:
    (broad.root / "03" / "04" / "05").write_bytes(b"changed")
    assert by_hints(broad, Hints({b"03"}, {b"03/05"})).is_quiet
    assert not by_hints(broad, Hints({b"03/04"})).is_quiet
    assert not by_hints(broad, Hints(trees={b"03"})).is_quiet


def a_directory_is_gone(root: Path) -> None:
    for path in sorted((root / "07").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "07").rmdir()


def a_file_took_its_place(root: Path) -> None:
    a_directory_is_gone(root)
    (root / "07").write_bytes(b"a file now")


def a_link_took_its_place(root: Path) -> None:
    a_directory_is_gone(root)
    (root / "07").symlink_to("08")


def another_took_its_place(root: Path) -> None:
    (root / "07").rename(root / "was")
    (root / "08").rename(root / "07")
    (root / "was").rename(root / "08")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "change", [a_directory_is_gone, a_file_took_its_place, a_link_took_its_place, another_took_its_place]
)
def test_a_hint_below_a_directory_that_is_no_more_tells_of_the_directory(
    broad: Settled, change: Callable[[Path], None]
) -> None:
    """Events from inside come before the one that tells of the directory itself."""
    change(broad.root)
    hints = Hints({b"07/11", b"08/11"})
    whole, found = both(broad, hints)
    is_same(whole, found)


@pytest.mark.long
def test_a_changed_rule_file_has_all_below_it_walked(broad: Settled) -> None:
    rules = os.fsdecode(RULES)
    (broad.root / "02" / rules).write_text("05\n")
    broad.settle()
    write(broad.root, {b"02/05/new": b"new", b"02/06/new": b"new"})
    (broad.root / "02" / rules).write_text("06\n")
    whole, found = both(broad, Hints({b"02"}))
    is_same(whole, found)
    assert b"02/05/new" in found.tree
    assert b"02/06/new" not in found.tree
    (broad.root / "02" / rules).unlink()
    is_same(*both(broad, Hints({b"02"})))


@pytest.mark.long
def test_rule_files_on_the_way_count(broad: Settled) -> None:
    (broad.root / os.fsdecode(RULES)).write_text("*.o\n/04/secret/\n")
    (broad.root / "04" / os.fsdecode(RULES)).write_text("*.p\n")
    broad.settle()
    assert set(broad.db.need(RULES_KEY)) == {b"", b"04"}
    write(broad.root, {b"04/03/x.o": b"", b"04/03/x.p": b"", b"04/03/x.q": b"", b"04/secret/x": b""})
    found = scan(by_hints(broad, Hints({b"04/03", b"04/secret"})), ingest)
    assert list(changed(found.tree)) == [b"04/03/x.q"]
    assert set(found.rules) == {b"", b"04"}


@pytest.mark.long
def test_a_workspace_of_its_own_on_the_way_is_left_alone(broad: Settled) -> None:
    write(broad.root, {b"04/.metasync": DIR, b"04/.metasync/state.db": b"", b"04/03/new": b"new"})
    whole, found = both(broad, Hints({b"04/03"}))
    is_same(whole, found)
    assert not changed(found.tree)


@pytest.mark.long
@pytest.mark.parametrize("odd", [b"a file", DIR], ids=["file", "directory"])
def test_a_directory_with_something_called_as_a_state_on_the_way_is_gone_through(broad: Settled, odd: Any) -> None:
    write(broad.root, {b"04/.metasync": odd, b"04/03/new": b"new"})
    found = scan(by_hints(broad, Hints({b"04/03"})), ingest)
    assert list(changed(found.tree)) == [b"04/03/new"]


@pytest.mark.long
def test_a_folder_whose_names_have_twins_is_walked_whole(broad: Settled) -> None:
    (broad.root / "03" / "04" / "05").write_bytes(b"changed")
    broad.tree.rules = MACOS
    assert not by_hints(broad, Hints()).is_quiet


def test_routes() -> None:
    route = Route.of(Hints({b"a/b", b"x"}, {b"a/b/c/d", b"y/z"}))
    assert [route.way(p) for p in (b"", b"a", b"a/b", b"a/b/c", b"a/b/c/d", b"x", b"y", b"y/z", b"q", b"a/c")] == [
        Way.THROUGH, Way.THROUGH, Way.NAMES, Way.THROUGH, Way.WHOLE, Way.NAMES, Way.THROUGH, Way.WHOLE, Way.PAST,
        Way.PAST,
    ]  # fmt: skip
    assert route.names(b"") == [b"a", b"x", b"y"]
    assert route.names(b"a/b") == [b"c"]
    assert ALL.is_all
    assert not Hints()
    assert Route.of(Hints({b""})).way(b"") is Way.NAMES


def test_a_hint_at_names_lists_no_directory_below(broad: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(broad, monkeypatch)
    walked = walk_index(broad.tree, broad.db, ROOT, Hints({b"07"}))
    assert walked is not None
    assert walked.is_quiet
    assert counted.listed == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("known", ["dev", "ino"])
def test_a_folder_with_another_number_is_walked_whole(broad: Settled, known: str) -> None:
    """A disk under another number, or a copy of the folder: nobody watched it since its rows were made."""
    row = load_rows(broad.db)[b""]
    (broad.root / "03" / "04" / "05").write_bytes(b"changed")
    store_rows(broad.db, [(b"", row._replace(**{known: getattr(row, known) + 1}))])
    broad.db.set(TREE_KEY, ROOT)
    assert list(changed(scan(by_hints(broad, Hints()), ingest).tree)) == [b"03/04/05"]


def test_a_directory_in_the_place_of_another_is_known_from_then_on(broad: Settled) -> None:
    another_took_its_place(broad.root)
    found = scan(by_hints(broad, Hints({b""})), ingest)
    assert {b"07", b"08"} <= found.put_rows.keys()


@pytest.mark.long
def test_rule_files_of_directories_that_a_walk_passes_by_are_kept(broad: Settled) -> None:
    """Those in directories that are still there as they were, and not in the tree; of no others."""
    (broad.root / "file").write_bytes(b"")
    broad.settle()
    places = (b"03/new", b"04/new", b"file/new", b"none/new")
    broad.db.update(RULES_KEY, dict.fromkeys(places, b"*.o\n"))
    (broad.root / "04").rename(broad.root / "was")
    (broad.root / "04").write_bytes(b"a file now")
    assert by_hints(broad, Hints({b""})).rule_texts().keys() == {b"03/new"}
