"""The scan: what it finds of what stands in the working tree."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from scan_kit import TREE, agreed, never
from workdir import DIR, MTIME_NS, Dir, File, Link, QuietDisk, Workspace, digest, entries, entry, trees, write

from metasync.objects.model import Kind
from metasync.worktree.index import load_rows, store_rows


def test_takes_in_every_kind(work: Workspace) -> None:
    found = agreed(work)
    assert found.tree == entries(TREE)
    assert found.files_read == 4
    assert (found.deleted, found.unreadable, found.busy, found.skipped) == ([], [], [], [])


def test_a_second_scan_reads_nothing(work: Workspace) -> None:
    found = agreed(work)
    again = work.scan(ingest=never)
    assert again.tree == found.tree
    assert (again.put_rows, again.delete_rows, again.files_read) == ({}, [], 0)


def test_names_are_bytes(work: Workspace) -> None:
    tree = {b"\xff\xfe": b"not utf-8", "käse".encode(): b"x", b"new\nline": b"y", b"d": DIR, b"d/\x80": Link(b"\xff")}
    assert agreed(work, tree).tree == entries(tree)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda p: p.write_bytes(b"other"), id="same size"),
        pytest.param(lambda p: p.write_bytes(b"longer than before"), id="longer"),
        pytest.param(lambda p: (p.write_bytes(b"OTHER"), os.utime(p, ns=(0, MTIME_NS))), id="mtime set back"),
        pytest.param(lambda p: (p.unlink(), p.write_bytes(b"OTHER"), os.utime(p, ns=(0, MTIME_NS))), id="new inode"),
    ],
)
def test_finds_every_change(work: Workspace, change: Any) -> None:
    agreed(work)
    at = work.at(b"a.txt")
    change(at)
    found = work.scan()
    got = found.tree[b"a.txt"]
    assert got.content == digest(at.read_bytes())
    assert got.mtime_ns == at.stat().st_mtime_ns
    assert {p for p, e in found.tree.items() if e != work.base[p]} == {b"a.txt"}


def test_finds_modes_links_and_kinds(work: Workspace) -> None:
    agreed(work)
    work.at(b"a.txt").chmod(0o600)
    work.at(b"empty").chmod(0o755)
    work.at(b"link").unlink()
    work.at(b"link").symlink_to("elsewhere")
    work.at(b"nothing").unlink()
    work.at(b"nothing").mkdir()
    work.at(b"d/e/c.txt").unlink()
    work.at(b"d/e").rmdir()
    work.at(b"d/e").write_bytes(b"a file now")
    found = work.scan()
    assert found.tree[b"a.txt"] == entry(File(b"alpha", 0o600))
    assert found.tree[b"empty"] == entry(DIR)
    assert found.tree[b"link"].content == b"elsewhere"
    assert found.tree[b"nothing"].kind is Kind.DIR
    assert found.tree[b"d/e"].content == digest(b"a file now")
    assert found.deleted == [b"d/e/c.txt"]


def test_what_the_disk_cannot_hold_keeps_the_agreed_values(work: Workspace) -> None:
    agreed(work)
    rows = load_rows(work.db)
    for path in (b"a.txt", b"d", b"link"):  # as on FAT: mode and time on the disk are not the agreed ones
        old = rows[path].entry
        odd = old._replace(mode=old.mode and 0o640, mtime_ns=old.mtime_ns and 123, tags=((9, b"t"),))
        rows[path] = rows[path]._replace(entry=odd)
        work.base[path] = odd
    store_rows(work.db, rows.items())
    assert work.scan(ingest=never).tree == work.base

    store_rows(work.db, ((p, r._replace(trusted=False)) for p, r in rows.items()))
    assert work.scan().tree == work.base  # read again, the same content

    os.utime(work.at(b"a.txt"), ns=(0, 10**18))
    got = work.scan().tree[b"a.txt"]
    assert (got.mtime_ns, got.mode, got.tags) == (10**18, 0o640, ((9, b"t"),))
    work.at(b"a.txt").write_bytes(b"new content")
    got = work.scan().tree[b"a.txt"]
    assert (got.content, got.mode, got.tags) == (digest(b"new content"), 0o640, ((9, b"t"),))


def test_a_write_in_the_same_tick_is_found(work: Workspace) -> None:
    """The racy-clean rule: equal stat, other bytes."""

    class StoppedClock(QuietDisk):
        def touch(self, fd: int) -> int:
            return MTIME_NS

    write(work.root, {b"a": b"one"})
    work.tree.disk = StoppedClock()
    now = os.lstat(work.at(b"a"))
    found = work.scan()
    assert not found.put_rows[b"a"].trusted
    with work.at(b"a").open("r+b") as f:
        f.write(b"two")
    os.utime(work.at(b"a"), ns=(0, MTIME_NS))
    rows = load_rows(work.db)
    here = os.lstat(work.at(b"a"))
    rows[b"a"] = rows[b"a"]._replace(ctime_ns=here.st_ctime_ns)  # as if within one tick
    assert here.st_ino == now.st_ino
    store_rows(work.db, rows.items())
    assert work.scan().tree[b"a"].content == digest(b"two")


def test_a_time_in_the_future_is_never_trusted(work: Workspace) -> None:
    write(work.root, {b"a": File(b"one", 0o644, 4 * 10**18)})
    assert not work.scan_past().put_rows[b"a"].trusted
    assert work.scan_past().files_read == 1


def test_a_time_beyond_what_entries_hold_is_the_nearest_that_they_do(work: Workspace) -> None:
    """64 bits of nanoseconds hold the years 1677 to 2262; file systems hold more."""

    class LongYears(QuietDisk):
        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            return self.dated(super().lstat(name, dir_fd))

        def fstat(self, fd: int) -> os.stat_result:
            return self.dated(super().fstat(fd))

        def dated(self, st: os.stat_result) -> os.stat_result:
            ns = -(1 << 65) if stat.S_ISLNK(st.st_mode) else 1 << 65
            return os.stat_result(tuple(st), {"st_mtime_ns": ns, "st_ctime_ns": st.st_ctime_ns})

    work.tree.disk = LongYears()
    found = agreed(work, {b"a": b"one", b"link": Link(b"a")})
    assert [found.tree[p].mtime_ns for p in (b"a", b"link")] == [(1 << 63) - 1, 1 - (1 << 63)]
    rows = load_rows(work.db)
    store_rows(work.db, ((p, r._replace(trusted=True)) for p, r in rows.items()))
    again = work.scan(ingest=never)
    assert (again.tree, again.put_rows) == (found.tree, {})


def test_deep_trees_need_few_descriptors(work: Workspace) -> None:
    deep = b"/".join([b"d"] * 300)
    write(work.root, {deep + b"/f": b"deep", deep[:200] + b"x/f": b"beside"})
    found = work.scan()
    assert found.tree[deep + b"/f"] == entry(b"deep")
    assert sum(e.kind is Kind.DIR for e in found.tree.values()) == 300 + 1
    assert len(work.tree._dirs) <= 64


# ---- a model: any tree, any edits


@settings(max_examples=examples(60))
@given(trees, trees)
def test_scan_sees_what_is_there(tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any) -> None:
    with Workspace(tmp_path_factory.mktemp("w")) as work:
        agreed(work, first)
        for path in sorted(first, reverse=True):
            if isinstance(first[path], Dir):
                work.at(path).rmdir()
            else:
                work.at(path).unlink()
        write(work.root, second)
        found = work.scan()
        kept = {p for p, _ in found.skipped}  # symlinks in the place of full directories
        if not kept:
            assert found.tree == entries(second)
            assert found.deleted == sorted(set(first) - set(second))
        assert set(found.tree) | set(found.deleted) >= set(first)
