"""What was replaced: dropped when a decided version holds it, brought back when it was written to late, else kept."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout_kit import MOUNT_NEW, MOUNT_OLD, Linking, Mounted, Plain, agreed, needs_proc
from workdir import (
    DIR,
    File,
    Link,
    QuietDisk,
    Workspace,
    digest,
    entries,
    entry,
    errno_error,
    files_under,
    read,
    write,
)

from metasync.checkout import trash
from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.trash import QUIET_NS, settle
from metasync.errors import WorkspaceError
from metasync.local.state_keys import CONFLICTS, REPLACED, ReplacedFile
from metasync.worktree.index import load_rows

OLD: dict[bytes, Any] = {
    b"a.txt": b"old a",
    b"d": DIR,
    b"d/b": b"old b",
    b"d/e": DIR,
    b"d/e/c": b"old c",
    b"l": Link(b"x"),
}


class Settling:
    """Settles with a set of known contents, and counts what was read."""

    def __init__(self, work: Workspace, *known: bytes) -> None:
        self.work = work
        self.known = {digest(data) for data in known}
        self.asked: list[tuple[bytes, int, bytes]] = []
        self.hashed = 0

    def __call__(self, later_ns: int = 2 * QUIET_NS) -> list[Any]:
        def known(content: bytes, size: int, path: bytes) -> bool:
            self.asked.append((content, size, path))
            return content in self.known

        def hash_file(fd: int) -> bytes:
            self.hashed += 1
            return digest(os.read(fd, 1 << 20))

        return settle(self.work.tree, self.work.db, self.work.tree.clock_ns() + later_ns, known, hash_file, 5)


@pytest.fixture
def work(tmp_path: Path) -> Any:
    with Workspace(tmp_path) as found:
        write(found.root, OLD)
        found.base = dict(found.scan_past().tree)
        yield found


def kept(work: Workspace) -> list[bytes]:
    return sorted(files_under(work.root / ".metasync" / "replaced"))


def replace_all(work: Workspace) -> None:
    work.check_out({b"a.txt": b"new a"})


def test_nothing_to_do(work: Workspace) -> None:
    assert settle(None, work.db, 0, None, None) == []  # type: ignore[arg-type]  # the disk is not touched at all


def test_known_contents_are_dropped_after_ten_quiet_minutes(work: Workspace) -> None:
    replace_all(work)
    settling = Settling(work, b"old a", b"old b", b"old c")
    settling.known.add(b"x")  # the link's target
    assert settling(QUIET_NS // 2) == []
    assert (kept(work), settling.asked) == ([b"old a", b"old b", b"old c"], [])
    assert settling() == []
    assert (kept(work), work.db.records(REPLACED)) == ([], [])
    assert os.listdir(work.root / ".metasync" / "replaced") == []
    assert set(settling.asked) == {
        (digest(b"old a"), 5, b"a.txt"),
        (digest(b"old b"), 5, b"d/b"),
        (digest(b"old c"), 5, b"d/e/c"),
        (b"x", 1, b"l"),
    }


def test_unknown_and_unchanged_stays_and_is_read_once(work: Workspace) -> None:
    replace_all(work)
    settling = Settling(work, b"old b")
    for _ in range(3):
        assert settling() == []
        assert kept(work) == [b"old a", b"old c"]
    assert settling.hashed == 3
    settling.known.add(digest(b"old a"))
    settling()
    assert kept(work) == [b"old c"]


def test_a_late_write_comes_back(work: Workspace) -> None:
    with work.at(b"a.txt").open("r+b") as a, work.at(b"d/e/c").open("r+b") as c:
        replace_all(work)
        a.write(b"late words in a")
        c.write(b"late words in c")
    settling = Settling(work, b"old a", b"old b", b"old c")
    found = settling()
    assert [(f.path, f.copy, f.version) for f in found] == [
        (b"a.txt", b"a.conflict-here-20000101.txt", 5),
        (b"c", b"c.conflict-here-20000101", 5),  # its directory is gone: in the next one up
    ]
    assert work.db.records(CONFLICTS) == found
    assert work.at(b"a.conflict-here-20000101.txt").read_bytes() == b"late words in a"
    assert work.at(b"c.conflict-here-20000101").read_bytes() == b"late words in c"
    assert [r.path for r in work.db.records(REPLACED)] == [b"l"]
    assert {b"a.conflict-here-20000101.txt", b"c.conflict-here-20000101"} < work.scan().tree.keys()


def test_a_late_write_of_something_known_is_dropped(work: Workspace) -> None:
    with work.at(b"a.txt").open("r+b") as a:
        replace_all(work)
        a.write(b"new a")
    settling = Settling(work, b"new a")
    assert settling() == []
    assert b"new a" not in kept(work)


def test_a_write_after_the_first_look_is_seen(work: Workspace) -> None:
    with work.at(b"a.txt").open("r+b") as a:
        replace_all(work)
        settling = Settling(work)
        assert settling() == []
        a.write(b"later still")
    assert [c.copy for c in settling()] == [b"a.conflict-here-20000101.txt"]


def test_a_write_while_it_is_read_is_not_quiet(work: Workspace) -> None:
    with work.at(b"a.txt").open("r+b", buffering=0) as a:
        replace_all(work)
        now = work.tree.clock_ns() + 2 * QUIET_NS

        def hash_file(fd: int) -> bytes:
            content = digest(os.read(fd, 100))
            a.write(b"typed on")
            return content

        settle(work.tree, work.db, now, lambda *args: True, hash_file)
    assert any(data.startswith(b"typed on") for data in kept(work))


def test_copies_never_replace(work: Workspace) -> None:
    with work.at(b"a.txt").open("r+b") as a:
        replace_all(work)
        a.write(b"late words")
    work.at(b"a.conflict-here-20000101.txt").write_bytes(b"there already")
    assert [c.copy for c in Settling(work)()] == [b"a.conflict-here-20000101-2.txt"]
    assert work.at(b"a.conflict-here-20000101.txt").read_bytes() == b"there already"


def test_a_directory_swapped_for_a_link_leads_nowhere(
    work: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    with work.at(b"d/b").open("r+b") as b:
        replace_all(work)
        b.write(b"late words")
    work.at(b"d").symlink_to(outside)
    assert [c.copy for c in Settling(work)()] == [b"b.conflict-here-20000101"]
    assert os.listdir(outside) == []


def test_unreadable_ones_stay(work: Workspace) -> None:
    replace_all(work)

    def fails(fd: int) -> bytes:
        raise errno_error(5)()

    now = work.tree.clock_ns() + 2 * QUIET_NS
    assert settle(work.tree, work.db, now, lambda *args: True, fails) == []
    assert kept(work) == [b"old a", b"old b", b"old c"]
    assert len(work.db.records(REPLACED)) == 3  # the link needs no reading


def test_records_without_files_go(work: Workspace) -> None:
    work.db.put_records(REPLACED, [ReplacedFile(77, b"x", b"")])
    assert Settling(work)() == []
    assert work.db.records(REPLACED) == []


@pytest.mark.parametrize("bound", ["files", "bytes"])
def test_bounded_work_goes_round(work: Workspace, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    many = {b"m%02d" % i: b"%05d" % i for i in range(20)}
    write(work.root, many)
    rows_before = work.scan_past()
    work.base = dict(rows_before.tree)
    work.check_out(dict(OLD))
    if bound == "files":
        monkeypatch.setattr(trash, "SETTLE_FILES_MAX", 6)
    else:
        monkeypatch.setattr(trash, "SETTLE_BYTES_MAX", 30)
    settling = Settling(work, *[many[b"m%02d" % i] for i in range(10, 20)])
    for call in range(1, 5):
        settling()
        assert settling.hashed <= 6 * call
    assert kept(work) == [b"%05d" % i for i in range(10)]  # the unknown ones did not hold up the others


def test_nothing_a_crash_leaves_is_without_a_record(work: Workspace) -> None:
    rows = load_rows(work.db)
    checkout = Checkout(work.db, work.tree)
    new = entries({**OLD, b"a.txt": b"new a"})
    checkout.begin([Change(b"a.txt", new[b"a.txt"], rows[b"a.txt"]), Change(b"n", entry(b""), None)])
    checkout.stage_whole(b"a.txt", b"new a")

    def dies() -> None:
        raise KeyError("dies in the closing transaction")

    with pytest.raises(KeyError):
        checkout.apply(dies)
    assert work.db.records(REPLACED) == []
    Checkout(work.db, work.tree).recover()
    assert [r.path for r in work.db.records(REPLACED)] == [b"a.txt"]
    assert read(work.root)[b"a.txt"].data == b"new a"


@pytest.mark.parametrize("disk", [QuietDisk, Linking, Plain, pytest.param(Mounted, marks=needs_proc)])
def test_a_local_state_that_was_made_anew_takes_no_place_of_what_lies_there(
    tmp_path: Path, disk: type[QuietDisk]
) -> None:
    """state.db was moved away, and made anew: what was replaced before has no record."""
    with Workspace(tmp_path, disk()) as work:
        agreed(work, MOUNT_OLD)
        there = work.root / ".metasync" / "replaced"
        there.mkdir(exist_ok=True)
        for n in (0, 1, 2, 3, 4, 11):
            (there / str(n)).write_bytes(b"late words %d" % n)
        work.check_out(MOUNT_NEW)
        assert {b"late words %d" % n for n in (0, 1, 2, 3, 4, 11)} <= set(files_under(there))
        assert read(work.root)[b"wide/a"] == File(b"new a")
        assert min(record.n for record in work.db.records(REPLACED)) > 11


@pytest.mark.parametrize("disk", [QuietDisk, Plain])
def test_a_place_that_is_taken_all_the_same_is_not_taken_over(tmp_path: Path, disk: type[QuietDisk]) -> None:
    with Workspace(tmp_path, disk()) as work:
        agreed(work, {b"a": b"old a"})

        def taken() -> None:
            (work.root / ".metasync" / "replaced" / "0").write_bytes(b"somebody's")

        with suppress(WorkspaceError):
            work.check_out({b"a": b"new a"}, before_apply=taken)
        assert {b"somebody's", b"old a", b"new a"} <= {*files_under(work.root)}


def test_a_number_is_never_given_twice(work: Workspace) -> None:
    """Not even where all that lay under the numbers before is gone: a record or a temporary name may still have one."""
    replace_all(work)
    last = max(record.n for record in work.db.records(REPLACED))
    for at in (work.root / ".metasync" / "replaced").iterdir():
        at.unlink()
    assert trash.next_free(work.tree, work.db) > last


def test_what_somebody_put_among_the_replaced_files_is_passed_by(tmp_path: Path) -> None:
    with Workspace(tmp_path) as work:
        there = work.root / ".metasync" / "replaced"
        there.mkdir(exist_ok=True)
        (there / "notes of mine").write_bytes(b"mine")
        (there / "7").write_bytes(b"replaced before")
        assert trash.next_free(work.tree, work.db) == 8


def test_a_file_that_never_comes_to_rest_does_not_hold_up_the_others(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in vain at every call, and its bytes are all that a call may read."""
    monkeypatch.setattr(trash, "SETTLE_BYTES_MAX", 1)
    with work.at(b"a.txt").open("r+b", buffering=0) as a:
        replace_all(work)
        now = work.tree.clock_ns() + 2 * QUIET_NS
        busy = os.fstat(a.fileno()).st_ino

        def hash_file(fd: int) -> bytes:
            if os.fstat(fd).st_ino == busy:
                a.write(b"typed on")
            return digest(os.read(fd, 100))

        for _ in range(4):
            settle(work.tree, work.db, now, lambda content, size, path: path != b"a.txt", hash_file)
    assert [record.path for record in work.db.records(REPLACED)] == [b"a.txt"]


class Timeless(QuietDisk):
    """Keeps no times, as some network file systems do not."""

    armed = False

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        return self.without_times(super().lstat(name, dir_fd))

    def fstat(self, fd: int) -> os.stat_result:
        return self.without_times(super().fstat(fd))

    def without_times(self, st: os.stat_result) -> Any:
        if not self.armed:
            return st
        return SimpleNamespace(
            st_mode=st.st_mode, st_size=st.st_size, st_ino=st.st_ino, st_dev=st.st_dev, st_mtime_ns=0, st_ctime_ns=0
        )


def test_a_file_that_was_never_read_is_read_though_its_times_are_zero(tmp_path: Path) -> None:
    disk = Timeless()
    with Workspace(tmp_path, disk) as work:
        agreed(work, {b"a": b"old a"})
        work.check_out({b"a": b"new a"})
        now = work.tree.clock_ns() + 2 * QUIET_NS
        disk.armed = True
        assert settle(work.tree, work.db, now, lambda *args: False, lambda fd: digest(os.read(fd, 100))) == []
        assert kept(work) == [b"old a"]


def test_what_is_known_stays_for_the_time_that_the_user_sets(work: Workspace) -> None:
    replace_all(work)
    known = {digest(data) for data in (b"old a", b"old b", b"old c")} | {b"x"}

    def settle_in(later_ns: int) -> None:
        now = work.tree.clock_ns() + later_ns
        settle(work.tree, work.db, now, lambda c, _n, _p: c in known, lambda fd: digest(os.read(fd, 99)), keep_ns=week)

    week = 7 * 86_400 * 10**9
    before = kept(work)
    assert before
    settle_in(week - QUIET_NS)
    assert kept(work) == before
    settle_in(week + QUIET_NS)
    assert kept(work) == []
