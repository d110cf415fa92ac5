"""The checkout where the disk can't do all that is asked: names, rights, space, links, mounts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from checkout_kit import (
    LATER_NS,
    MOUNT_NEW,
    MOUNT_OLD,
    NEW,
    OLD,
    Linking,
    LinkingModes,
    Modes,
    Mounted,
    Plain,
    agreed,
    assert_settled,
    full,
    needs_proc,
    replaced,
)
from workdir import (
    DIR,
    ENOSPC,
    File,
    FoldingDisk,
    Fuse,
    FusedDisk,
    Killed,
    Link,
    QuietDisk,
    Workspace,
    digest,
    entries,
    entry,
    files_under,
    read,
    write,
)

from metasync.checkout.checkout import Change, Checkout
from metasync.checkout.room import LARGE_FILE_BYTES, RESERVE_BYTES, size_waiting
from metasync.errors import WorkspaceError
from metasync.local.state_keys import PLAN_KEY
from metasync.worktree import disk as fsio
from metasync.worktree.index import load_rows


def test_hostile_paths_touch_nothing(work: Workspace, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    hostile = [
        b"../x",
        b"/etc/x",
        os.fsencode(outside / "x"),
        b".metasync/x",
        b"d/.METASYNC/x",
        b"a//x",
        b"a/../x",
        b"",
    ]
    hostile += [b"d/METASY~1", b".", b"..", b"x\0y"]
    before = {name: (work.root / ".metasync" / name).exists() for name in ("x", "state.db")}
    checkout = Checkout(work.db, work.tree)
    changes = [Change(path, entry(b"evil"), None) for path in hostile]
    changes += [Change(b"../dir", entry(DIR), None), Change(b"../link", entry(Link(b"x")), None)]
    changes += [Change(b".metasync/state.db", None, None), Change(b"ok", entry(b"fine"), None)]
    assert checkout.begin(changes) == [b"ok"]
    checkout.stage_whole(b"ok", b"fine")
    applied = checkout.apply()
    assert len(applied.unplaced) == len(hostile) + 2
    assert [n.path for n in applied.kept] == [b".metasync/state.db"]
    assert read(work.root) == {b"ok": File(b"fine")}
    assert {name: (work.root / ".metasync" / name).exists() for name in before} == before
    assert os.listdir(outside) == []
    assert set(work.db.unplaced()) >= {b"../x", b".metasync/x"}
    assert set(load_rows(work.db)) == {b"ok"}


@pytest.mark.few(1)
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("way", ["symlink", "moved"])
def test_a_parent_that_is_swapped_leads_nowhere(tmp_path: Path, way: str, dies: bool) -> None:
    """At every step of a checkout, once: the directory d goes away, or becomes a link to somewhere else."""
    new = {b"d": DIR, b"d/a": b"new a", b"d/e": DIR, b"d/e/b": b"new b", b"d/n": b"new", b"d/l": Link(b"x")}
    for step in range(1, 200):
        case = tmp_path / str(step)
        outside = case / "outside"
        outside.mkdir(parents=True)
        write(outside, {b"a": b"a of theirs", b"e/b": b"b of theirs"})
        fuse = Fuse()
        with Workspace(case / "w", FusedDisk(fuse)) as work:
            agreed(work, {b"d": DIR, b"d/a": b"old a", b"d/e": DIR, b"d/e/b": b"old b", b"d/gone": b"gone"})
            ours = work.scan_past()
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(new))
            work.stage(checkout, changes, checkout.begin(changes), new)

            def swap(work: Workspace = work, outside: Path = outside, fuse: Fuse = fuse) -> BaseException | None:
                fuse.mend()
                work.at(b"d").rename(case / "moved")  # noqa: B023  used before the next round
                if way == "symlink":
                    work.at(b"d").symlink_to(outside)
                return Killed() if dies else None

            fuse.steps, fuse.at, fuse.error = 0, step, swap
            try:
                checkout.apply()
            except Killed:
                Checkout(work.db, work.tree).recover()
            ended = fuse.at is not None  # never reached
            fuse.mend()
            assert read(outside) == full({b"a": b"a of theirs", b"e/b": b"b of theirs", b"e": DIR}), step
            lost = {b"old a", b"old b", b"gone"} - set(files_under(case))
            assert not lost, step
            if not work.db.has(PLAN_KEY):
                assert os.listdir(work.root / ".metasync" / "tmp") == []
        if ended:
            return
    raise AssertionError("the checkout never ended")


def test_a_full_disk_is_noticed_before(work: Workspace) -> None:
    class Full(QuietDisk):
        def free_bytes(self, fd: int) -> int:
            return 100

    work.tree.disk = Full()
    checkout = Checkout(work.db, work.tree)
    checkout.disk = work.tree.disk
    with pytest.raises(WorkspaceError, match=r"need 5,0\d\d bytes .* 100 are free"):
        checkout.begin([Change(b"f", entry(b"x" * 1000), None)], own=True)
    with pytest.raises(WorkspaceError, match=r"need 5,0\d\d bytes .* 100 are free"):
        checkout.begin([Change(b"f", entry(b"x" * 1000), None)], needed=(b"f",))
    assert read(work.root) == {}
    assert checkout.begin([Change(b"f", entry(b"x" * 1000), None)]) == []
    assert checkout.apply().without_room == (1, 1000)
    assert work.db.unplaced() == {b"f": "no room for its 1,000 bytes"}


def test_a_file_that_is_too_large_for_the_disk_is_left_out(work: Workspace) -> None:
    class Small(QuietDisk):
        def free_bytes(self, fd: int) -> int:
            return LARGE_FILE_BYTES

    work.tree.disk = Small()
    checkout = Checkout(work.db, work.tree)
    checkout.disk = work.tree.disk
    sizes = {b"huge": (1 << 64) - 1, b"large": LARGE_FILE_BYTES + 1, b"small": 1}
    wanted = checkout.begin([Change(name, entry(b"x")._replace(size=n), None) for name, n in sizes.items()])
    assert wanted == [b"small"]
    checkout.stage_whole(b"small", b"x")
    assert [noted.path for noted in checkout.apply().unplaced] == [b"huge", b"large"]
    assert read(work.root).keys() == {b"small"} == work.db.packed_rows().keys() - {b""}
    assert work.db.unplaced()[b"large"] == "no room for its 1,073,741,825 bytes"


def test_a_full_disk_while_staging_changes_nothing(tmp_path: Path) -> None:
    fuse = Fuse(error=ENOSPC)
    with Workspace(tmp_path, FusedDisk(fuse)) as work:
        agreed(work, OLD)
        ours = work.scan_past()
        checkout = Checkout(work.db, work.tree)
        changes = work.changes(ours.tree, entries(NEW))
        awaited = checkout.begin(changes)
        fuse.at, fuse.steps = 5, 0
        with pytest.raises(WorkspaceError, match=r"full: the new files need \d+ bytes"):
            work.stage(checkout, changes, awaited, NEW)
        fuse.mend()
        assert read(work.root) == full(OLD)
        checkout.abandon()
        assert_settled(work, OLD)
        work.check_out(NEW)
        assert read(work.root) == full(NEW)


def test_read_only_directories_are_opened_and_closed_again(tmp_path: Path) -> None:
    with Workspace(tmp_path, Modes()) as work:
        agreed(work, OLD)
        for tree in (NEW, OLD, NEW):
            applied = work.check_out(tree)
            assert (applied.unplaced, applied.kept) == ([], [])
            assert read(work.root) == full(tree)
            assert work.db.value("checkout.modes") is None
            assert_settled(work, tree)


class Immovable(QuietDisk):
    """Nothing at some names can be changed: immutable files, directories of another user's."""

    def __init__(self, *names: bytes) -> None:
        self.names_fixed = names

    def check(self, *names: bytes) -> None:
        if set(names) & set(self.names_fixed):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(old, new)
        super().rename_new(old, old_fd, new, new_fd)

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        self.check(one, other)
        return super().exchange(one, one_fd, other, other_fd)

    def chmod(self, name: bytes, dir_fd: int, mode: int) -> None:
        self.check(name)
        super().chmod(name, dir_fd, mode)

    def rmdir(self, name: bytes, dir_fd: int) -> None:
        self.check(name)
        super().rmdir(name, dir_fd)


def test_what_cannot_be_placed_is_told_and_is_no_change(tmp_path: Path) -> None:
    names = (b"edited", b"n", b"mode", b"dir-to-file", b"file-to-dir")
    with Workspace(tmp_path, Immovable(*names)) as work:
        agreed(work, OLD)
        applied = work.check_out(NEW)
        told = {n.path for n in applied.unplaced}
        assert told == {b"edited", b"mode", b"dir-to-file", b"file-to-dir", b"file-to-dir/in"}
        assert set(work.db.unplaced()) == told
        here = read(work.root)
        assert here[b"edited"] == File(b"old edited")
        assert here[b"mode"] == File(b"mode only")
        found = work.scan()
        assert found.tree == entries(NEW)  # nothing that this device would push back
        assert found.deleted == []
        work.at(b"edited").write_bytes(b"edited here")
        assert work.scan().tree[b"edited"].content == digest(b"edited here")  # a change of the user's still is one

        # Another mtime for content that never got here is no mere touch, which would pass the old bytes for new ones.
        row = load_rows(work.db)[b"dir-to-file"]
        checkout = Checkout(work.db, work.tree)
        later = entry(File(NEW[b"dir-to-file"], 0o644, LATER_NS))
        assert checkout.begin([Change(b"dir-to-file", later, row)]) == [b"dir-to-file"]
        checkout.abandon()

        work.tree.disk = QuietDisk()
        work.at(b"edited").unlink()
        work.scan()
        rows = load_rows(work.db)
        checkout = Checkout(work.db, work.tree)
        retry = [Change(path, entries(NEW)[path], rows.get(path)) for path in sorted(told - {b"edited"})]
        awaited = checkout.begin(retry)
        work.stage(checkout, retry, awaited, NEW)
        checkout.apply()
        assert set(work.db.unplaced()) == {b"edited"}


def test_a_name_that_this_disk_takes_for_another(tmp_path: Path) -> None:
    class Folding(FoldingDisk):
        def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            if new.lower() in {os.fsencode(name).lower() for name in os.listdir(new_fd)}:
                raise FileExistsError(errno.EEXIST, "exists", new)
            super().rename_new(old, old_fd, new, new_fd)

        def mkdir(self, name: bytes, dir_fd: int, mode: int = 0o700) -> None:
            if name.lower() in {os.fsencode(other).lower() for other in os.listdir(dir_fd)}:
                raise FileExistsError(errno.EEXIST, "exists", name)
            super().mkdir(name, dir_fd, mode)

    tree = {b"Docs": DIR, b"Docs/a": b"1", b"README": b"upper", b"docs": DIR, b"docs/b": b"2", b"readme": b"lower"}
    with Workspace(tmp_path, Folding()) as work:
        applied = work.check_out(tree)
        assert {n.path for n in applied.unplaced} == {b"docs", b"docs/b", b"readme"}
        assert applied.conflicts == []
        assert set(read(work.root)) == {b"Docs", b"Docs/a", b"README"}
        for _ in range(2):
            found = work.scan_past()
            assert (found.tree, found.deleted) == (entries(tree), [])
        work.at(b"README").unlink()
        assert work.scan().deleted == [b"README"]


@pytest.mark.parametrize("code", [errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL])
def test_names_this_disk_cannot_hold(tmp_path: Path, code: int) -> None:
    class Narrow(QuietDisk):
        def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
            if new == b"odd":
                raise OSError(code, os.strerror(code))
            super().rename_new(old, old_fd, new, new_fd)

        def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
            if name == b"odd":
                raise OSError(code, os.strerror(code))
            return super().lstat(name, dir_fd)

    tree = {b"odd": b"x", b"even": b"y", b"long": DIR, b"long/" + b"n" * 300: b"z"}
    with Workspace(tmp_path, Narrow()) as work:
        applied = work.check_out(tree)
        assert {n.path for n in applied.unplaced} == {b"odd", b"long/" + b"n" * 300}
        assert_settled(work, tree)


@pytest.mark.parametrize("disk", [Plain, Linking, LinkingModes])
@pytest.mark.parametrize("renames", [True, False])
def test_poorer_disks(tmp_path: Path, disk: type[Plain], renames: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not renames:
        monkeypatch.setattr(fsio, "_rename_with", lambda *args: False)
    with Workspace(tmp_path, disk()) as work:
        agreed(work, OLD)
        applied = work.check_out(NEW, before_apply=lambda: work.at(b"big").write_bytes(b"late"))
        copy = {b"big.conflict-here-20000101": b"late"}
        here = read(work.root)
        assert here.pop(b"big.conflict-here-20000101").data == b"late"
        assert here == full(NEW)
        assert [c.copy for c in applied.conflicts] == list(copy)
        assert sorted(replaced(work)) == sorted(
            s for p, s in OLD.items() if isinstance(s, bytes) and p not in (b"keep", b"big")
        )
        work.check_out(OLD)
        assert read(work.root) == full(OLD)


@needs_proc
def test_a_mount_inside_the_tree(tmp_path: Path) -> None:
    with Workspace(tmp_path, Mounted()) as work:
        agreed(work, MOUNT_OLD)
        applied = work.check_out(MOUNT_NEW)
        assert (applied.unplaced, applied.kept, applied.conflicts) == ([], [], [])
        assert read(work.root) == full(MOUNT_NEW)
        assert replaced(work) == [b"gone", b"old a", b"old b"]
        assert_settled(work, MOUNT_NEW)


class Quota(QuietDisk):
    """Tells of much room, and has none for more than so many bytes in one call."""

    most = 1000

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        if len(data) > self.most:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        super().write(fd, data, offset)


def test_a_quota_that_ends_in_the_middle_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is whole by then is placed, but for as much as the local state needs. What still comes is dropped."""
    big = b"b" * 5000
    tree = {b"a": b"1" * 900, b"b": b"2" * 800, b"big": big, b"d": DIR, b"d/in": b"3" * 700, b"late": b"4"}
    monkeypatch.setattr("metasync.checkout.checkout.RESERVE_BYTES", 850)
    with Workspace(tmp_path, Quota()) as work:
        checkout = Checkout(work.db, work.tree)
        sized = entry(big)._replace(root=b"r" * 32)
        changes = [Change(p, sized if p == b"big" else entry(spec), None) for p, spec in tree.items()]
        assert set(checkout.begin(changes)) == {b"a", b"b", b"big", b"d/in", b"late"}
        for path in (b"a", b"b", b"d/in"):
            checkout.stage_whole(path, tree[path])
        checkout.stage_part(b"big", 0, big[:500])
        for offset in range(500, 5000, 1500):
            checkout.stage_part(b"big", offset, big[offset : offset + 1500])
        checkout.finish(b"big")
        checkout.stage_whole(b"late", tree[b"late"])
        applied = checkout.apply()
        waiting = {b"a", b"big", b"late"}
        assert ({noted.path for noted in applied.unplaced}, applied.without_room) == (waiting, (3, 5901))
        assert read(work.root) == full({p: spec for p, spec in tree.items() if p not in waiting})
        work.base = {change.path: change.new for change in changes if change.new is not None}
        seen = work.scan()
        assert (seen.tree, seen.deleted) == (work.base, [])


def test_a_quota_does_not_let_wait_what_is_needed(tmp_path: Path) -> None:
    with Workspace(tmp_path, Quota()) as work:
        checkout = Checkout(work.db, work.tree)
        checkout.begin([Change(b"copy", entry(b"x" * 5000), None)], needed=(b"copy",))
        with pytest.raises(WorkspaceError, match="is full: the new files need 5,000 bytes"):
            checkout.stage_whole(b"copy", b"x" * 5000)


class WithChunks(QuietDisk):
    """A disk of so many bytes, of which chunks that are kept for deltas have some. It may not tell that it is full."""

    size = 1_000_000
    tells = True

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def left(self) -> int:
        files = [p for name in ("bases", "tmp") for p in (self.root / ".metasync" / name).rglob("*") if p.is_file()]
        return self.size - sum(p.stat().st_size for p in files)

    def free_bytes(self, fd: int) -> int:
        return self.left if self.tells else 1 << 30

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        if len(data) > self.left:
            super().write(fd, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, offset)


def keep_chunks(root: Path, count: int, size: int) -> Path:
    kept = root / ".metasync/bases"
    kept.mkdir()
    for n in range(count):
        (kept / f"{n:064x}").write_bytes(b"x" * size)
    return kept


@pytest.mark.parametrize("needed", [(), None])
def test_chunks_that_are_kept_give_way_to_files(tmp_path: Path, needed: tuple[bytes, ...] | None) -> None:
    with Workspace(tmp_path, WithChunks(tmp_path)) as work:
        kept = keep_chunks(work.root, 9, 100_000)
        checkout = Checkout(work.db, work.tree)
        changes = [Change(b"f", entry(b"f" * 700_000), None)]
        assert checkout.begin(changes, needed=needed) == [b"f"]
        assert not list(kept.iterdir())
        checkout.stage_whole(b"f", b"f" * 700_000)
        assert checkout.apply().without_room == (0, 0)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("path", [b"f", b"d/f"])
def test_a_quota_that_chunks_have_taken_is_theirs_no_more(tmp_path: Path, whole: bool, path: bytes) -> None:
    """The disk did not say how little room it has: what fails is written again once the chunks went."""
    with Workspace(tmp_path, disk := WithChunks(tmp_path)) as work:
        disk.tells = False
        kept = keep_chunks(work.root, 9, 100_000)
        data = b"f" * 300_000
        checkout = Checkout(work.db, work.tree)
        file = entry(data)._replace(root=b"" if whole else b"r" * 32)
        checkout.begin([Change(b"d", entry(DIR), None), Change(path, file, None)])
        if whole:
            checkout.stage_whole(path, data)
        else:
            for offset in (0, 150_000):
                checkout.stage_part(path, offset, data[:150_000])
            checkout.finish(path)
        assert not list(kept.iterdir())
        assert checkout.apply().unplaced == []
        assert work.at(path).read_bytes() == data


@needs_proc
def test_a_full_disk_that_is_mounted_inside_the_tree(tmp_path: Path) -> None:
    """Its files wait, with nothing left of the attempt; those on the folder's own disk come."""

    class Full(Mounted):
        def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
            if self.side(fd):
                super().write(fd, data[:1], offset)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data, offset)

    new = {b"wide": DIR, b"wide/a": b"new a", b"top": b"new"}
    with Workspace(tmp_path, Full()) as work:
        agreed(work, {b"wide": DIR, b"wide/a": b"old a"})
        applied = work.check_out(new)
        assert applied.unplaced == [(b"wide/a", "no room for its 5 bytes")]
        assert read(work.root) == full({**new, b"wide/a": b"old a"})
        assert_settled(work, new)


class NoInodes(QuietDisk):
    """A disk that takes no file more, whatever its size."""

    is_out = False
    left = RESERVE_BYTES

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if self.is_out and flags & os.O_CREAT and flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(name, flags, dir_fd, mode)

    def has_inodes(self, fd: int) -> bool:
        return not self.is_out

    def free_bytes(self, fd: int) -> int:
        return self.left if self.is_out else 1 << 30


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (RESERVE_BYTES, "no room for its 5 bytes: the disk has no inodes left"),
        (RESERVE_BYTES - 1, "no room for its 5 bytes"),  # where inodes are made of free space
    ],
)
def test_a_disk_without_inodes_is_told_as_that(tmp_path: Path, left: int, why: str) -> None:
    disk = NoInodes()
    with Workspace(tmp_path, disk) as work:
        agreed(work, {})
        checkout = Checkout(work.db, work.tree)
        assert checkout.begin([Change(b"f", entry(b"five!"), None)]) == [b"f"]
        disk.is_out, disk.left = True, left
        checkout.stage_whole(b"f", b"five!")
        assert checkout.apply().unplaced == [(b"f", why)]
        assert size_waiting(why) == 5, "by which the daemon knows what fits"


def test_a_disk_without_inodes_stops_what_may_not_wait_with_the_step(tmp_path: Path) -> None:
    disk = NoInodes()
    with Workspace(tmp_path, disk) as work:
        checkout = Checkout(work.db, work.tree)
        assert checkout.begin([Change(b"f", entry(b"five!"), None)], needed=None) == [b"f"]
        disk.is_out = True
        with pytest.raises(WorkspaceError, match="has no inodes left") as e:
            checkout.stage_whole(b"f", b"five!")
        assert e.value.next_step == "Delete some files there and run again: nothing was changed."


@needs_proc
def test_a_disk_inside_the_tree_without_inodes_is_told_as_that(tmp_path: Path) -> None:
    class Out(Mounted):
        def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
            if name.endswith(b".part") and flags & os.O_CREAT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().open(name, flags, dir_fd, mode)

        def has_inodes(self, fd: int) -> bool:
            return not self.side(fd)

    with Workspace(tmp_path, Out()) as work:
        agreed(work, {b"wide": DIR})
        applied = work.check_out({b"wide": DIR, b"wide/a": b"new a"})
        assert applied.unplaced == [(b"wide/a", "no room for its 5 bytes: the disk has no inodes left")]
