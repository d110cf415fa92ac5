"""The scan: what the absence of files means."""

from __future__ import annotations

import pytest
from scan_kit import TREE, agreed, never
from workdir import DIR, FoldingDisk, Workspace, entries, entry, write

from metasync.objects.model import Kind
from metasync.worktree.index import load_rows, store_rows
from metasync.worktree.merge_walk import Noted
from metasync.worktree.names import IGNORE_NAME as RULES


def test_deleted_files_and_trees(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").unlink()
    work.at(b"d/e/c.txt").unlink()
    work.at(b"d/e").rmdir()
    work.at(b"empty").rmdir()
    work.at(b"link").unlink()
    found = work.scan()
    gone = [b"a.txt", b"d/e", b"d/e/c.txt", b"empty", b"link"]
    assert found.deleted == gone
    assert found.tree == {p: e for p, e in entries(TREE).items() if p not in gone}
    assert work.scan().deleted == gone  # until the base lets go of them
    work.base = dict(found.tree)
    after = work.scan()
    assert (after.deleted, after.delete_rows) == ([], gone)
    assert work.scan().delete_rows == []


def test_what_was_never_here_is_not_deleted(work: Workspace) -> None:
    agreed(work)
    work.base[b"far"] = entry(DIR)
    work.base[b"far/away"] = entry(b"elsewhere")
    found = work.scan()
    assert found.tree == work.base
    assert found.deleted == []


def test_a_rebuilt_state_deletes_nothing(work: Workspace) -> None:
    agreed(work)
    work.db.delete_rows(load_rows(work.db))
    work.at(b"a.txt").unlink()
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])


def test_a_directory_keeps_standing_for_what_was_never_here(work: Workspace) -> None:
    agreed(work)
    work.base[b"d/e/far"] = entry(b"elsewhere")
    for path in (b"d/e/c.txt", b"d/b.txt"):
        work.at(path).unlink()
    work.at(b"d/e").rmdir()
    work.at(b"d").rmdir()
    found = work.scan()
    assert found.deleted == [b"d/b.txt", b"d/e/c.txt"]
    assert {b"d", b"d/e", b"d/e/far"} <= found.tree.keys()
    work.at(b"d").write_bytes(b"a file in its place")
    found = work.scan()
    assert found.tree[b"d"].kind is Kind.DIR
    assert found.skipped == [Noted(b"d", "stands in the place of a directory, some of which is not here")]


def test_an_unmounted_disk_deletes_nothing(work: Workspace) -> None:
    """The rows below d name another device than the one d lies on now: something was mounted there."""
    agreed(work)
    rows = load_rows(work.db)
    store_rows(work.db, ((p, r._replace(dev=r.dev + 1)) for p, r in rows.items() if p.startswith(b"d/") or p == b"d"))
    for path in (b"d/b.txt", b"d/e/c.txt"):
        work.at(path).unlink()
    work.at(b"d/e").rmdir()
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])
    assert {path for path, _ in found.skipped} == {b"d/b.txt", b"d/e"}


def test_a_renumbered_device_is_the_same_disk(work: Workspace) -> None:
    agreed(work)
    store_rows(work.db, [(p, r._replace(dev=r.dev + 7)) for p, r in load_rows(work.db).items()])
    work.at(b"a.txt").unlink()
    found = work.scan(ingest=never)
    assert found.deleted == [b"a.txt"]
    assert all(row.dev == work.tree.root_stat.st_dev for row in load_rows(work.db).values())


def test_a_copied_workspace_deletes_nothing(work: Workspace) -> None:
    """Half a copy on another disk: device and the root's inode differ from the rows'."""
    agreed(work)
    rows = load_rows(work.db)
    store_rows(work.db, [(p, r._replace(dev=r.dev + 7, ino=r.ino + 10**6)) for p, r in rows.items()])
    work.at(b"a.txt").unlink()
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])


@pytest.mark.parametrize("target", ["elsewhere", "empty", "/"])
def test_a_symlink_in_a_directorys_place_keeps_it(work: Workspace, target: str) -> None:
    agreed(work)
    work.at(b"d").rename(work.root.parent / (work.root.name + "-moved"))
    work.at(b"d").symlink_to(target)
    found = work.scan()
    assert (found.tree, found.deleted) == (entries(TREE), [])
    assert [path for path, _ in found.skipped] == [b"d"]


def test_a_symlink_in_an_empty_directorys_place_is_a_change(work: Workspace) -> None:
    agreed(work)
    work.at(b"empty").rmdir()
    work.at(b"empty").symlink_to("d")
    assert work.scan().tree[b"empty"].kind is Kind.SYMLINK


def test_a_directory_of_ignored_files_is_not_new(work: Workspace) -> None:
    """Removed elsewhere, it stays here for the ignored files in it, and must not come back for everyone."""
    agreed(work)
    write(work.root, {b"build/x/cache.o": b"x", b"full/cache.o": b"x", b"full/real": b"y", b"blank": DIR})
    work.at(RULES).write_bytes(b"*.o")
    found = work.scan()
    assert set(found.tree) - set(TREE) == {b"full", b"full/real", b"blank", RULES}
    assert not {b"build", b"build/x"} & found.put_rows.keys()
    assert found.ignored == [b"build/x/cache.o", b"full/cache.o"]


def test_a_name_shadowed_by_case_is_not_deleted(work: Workspace) -> None:
    agreed(work, {b"readme": b"one", b"README": b"two"})
    work.at(b"readme").unlink()
    work.tree.disk = FoldingDisk()
    found = work.scan()
    assert (found.tree, found.deleted) == (work.base, [])


def test_a_respelled_name_is_a_rename(work: Workspace) -> None:
    agreed(work, {b"readme": b"one"})
    work.at(b"readme").rename(work.at(b"README"))
    work.tree.disk = FoldingDisk()
    found = work.scan()
    assert set(found.tree) == {b"README"}
    assert found.deleted == [b"readme"]
