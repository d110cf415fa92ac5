"""The checkout: the merged tree arrives, in any order and from any thread."""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
from typing import Any

import pytest
from checkout_kit import (
    LATER_NS,
    NEW,
    OLD,
    agreed,
    assert_settled,
    full,
    replaced,
)
from workdir import (
    File,
    Workspace,
    entries,
    entry,
    errno_error,
    read,
)

from metasync.checkout.checkout import Change, Checkout
from metasync.errors import WorkspaceError
from metasync.local.state_keys import REPLACED
from metasync.objects.model import Entry
from metasync.worktree.index import load_rows


def test_clones_into_an_empty_directory(work: Workspace) -> None:
    applied = work.check_out(NEW)
    assert read(work.root) == full(NEW)
    assert (applied.conflicts, applied.kept, applied.unplaced) == ([], [], [])
    assert applied.written == len(NEW)
    assert replaced(work) == []
    assert work.db.value("base") == b"new"
    found = work.scan()
    assert (found.tree, found.files_read) == (entries(NEW), 0)  # stats were read back and are trusted


def test_changes_of_every_kind(work: Workspace) -> None:
    agreed(work, OLD)
    kept_inodes = {p: os.lstat(work.at(p)).st_ino for p in (b"mode", b"time", b"keep")}
    applied = work.check_out(NEW)
    assert read(work.root) == full(NEW)
    assert (applied.conflicts, applied.kept, applied.unplaced) == ([], [], [])
    # d/gone, d, clash/inside, dir-to-file/x; the two directories that became files do not count
    assert applied.removed == 4
    touched = {b"mode", b"time", b"keep"}
    assert {p: os.lstat(work.at(p)).st_ino for p in touched} == kept_inodes
    gone = [spec for path, spec in OLD.items() if isinstance(spec, bytes) and path != b"keep"]
    assert replaced(work) == sorted(gone)
    assert {r.path for r in work.db.records(REPLACED)} >= {b"big", b"d/gone", b"file-to-dir", b"link-to-file"}
    assert_settled(work, NEW)


def test_there_and_back(work: Workspace) -> None:
    agreed(work, OLD)
    for tree in (NEW, OLD, {}, NEW):
        work.check_out(tree)
        assert read(work.root) == full(tree)
        assert_settled(work, tree)


def test_parts_from_several_threads(work: Workspace) -> None:
    data = random.Random(1).randbytes(300_000)
    size = 7_001
    offsets = list(range(0, len(data), size))
    random.Random(2).shuffle(offsets)
    checkout = Checkout(work.db, work.tree)
    whole = {b"w%d" % i: b"%d" % i for i in range(40)}
    tree = {b"big": data, **whole}
    awaited = checkout.begin([Change(p, entry(s), None) for p, s in tree.items()])
    assert awaited == sorted(tree)

    def deliver(some: list[int]) -> None:
        for at in some:
            checkout.stage_part(b"big", at, data[at : at + size])
            whole_path = b"w%d" % (at % 40)
            checkout.stage_whole(whole_path, whole[whole_path])

    threads = [threading.Thread(target=deliver, args=(offsets[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path, content in whole.items():
        checkout.stage_whole(path, content)
    with pytest.raises(WorkspaceError, match="were not delivered"):
        checkout.apply()
    checkout.finish(b"big")
    checkout.apply()
    assert read(work.root) == full(tree)


def test_incomplete_contents_are_refused(work: Workspace) -> None:
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", entry(b"12345"), None)])
    for wrong in (lambda: checkout.stage_whole(b"f", b"1234"), lambda: checkout.stage_part(b"f", 4, b"56")):
        with pytest.raises(WorkspaceError, match="was delivered with"):
            wrong()
    checkout.stage_part(b"f", 3, b"45")
    with pytest.raises(WorkspaceError, match="was delivered with"):
        checkout.finish(b"f")  # the right size, but with a hole
    checkout.stage_part(b"f", 3, b"45")
    checkout.stage_part(b"f", 0, b"123")
    checkout.finish(b"f")
    checkout.apply()
    assert read(work.root) == {b"f": File(b"12345")}


def test_the_callers_writes_are_in_the_same_transaction(work: Workspace) -> None:
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", entry(b""), None)], {"a": b"1", "b": None})
    work.db.set_value("b", b"old")
    seen: list[Any] = []

    def commit() -> None:
        seen.append((work.db.value("a"), work.db.value("b"), set(load_rows(work.db))))
        work.db.set_value("c", b"3")

    checkout.apply(commit)
    assert seen == [(b"1", None, {b"f"})]
    assert work.db.value("c") == b"3"
    assert checkout.recover() is None


def test_one_plan_at_a_time(work: Workspace) -> None:
    checkout = Checkout(work.db, work.tree)
    checkout.begin([Change(b"f", entry(b"x"), None)])
    with pytest.raises(WorkspaceError, match="has not ended"):
        checkout.begin([])
    checkout.stage_whole(b"f", b"x")
    checkout.abandon()
    checkout.abandon()
    assert os.listdir(work.root / ".metasync" / "tmp") == []
    assert read(work.root) == {}
    with pytest.raises(WorkspaceError, match="No checkout"):
        checkout.apply()
    assert Checkout(work.db, work.tree).begin([]) == []


def test_a_touched_entry_needs_no_content(work: Workspace) -> None:
    agreed(work, {b"a": b"x"})
    row = load_rows(work.db)[b"a"]
    new: Entry = row.entry._replace(mode=0o600, mtime_ns=LATER_NS)
    checkout = Checkout(work.db, work.tree)
    assert checkout.begin([Change(b"a", new, row)]) == []
    checkout.apply()
    assert read(work.root) == {b"a": File(b"x", 0o600, LATER_NS)}
    assert stat.S_IMODE(os.lstat(work.at(b"a")).st_mode) == 0o600
    assert errno_error(errno.EIO)().errno == errno.EIO
