"""The checkout that dies: at every path the old or the new bytes, and the next start goes on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import (
    MOUNT_NEW,
    MOUNT_OLD,
    NEW,
    OLD,
    OLD_CONTENTS,
    Linking,
    Mounted,
    Plain,
    agreed,
    assert_nothing_left,
    assert_settled,
    full,
    needs_proc,
)
from effort import few_and_many
from workdir import (
    EIO,
    ENOSPC,
    File,
    Fuse,
    FusedDisk,
    Killed,
    Workspace,
    contents,
    digest,
    entries,
    files_under,
    read,
)

from metasync.checkout import checkout as checkout_module
from metasync.checkout.checkout import Change, Checkout
from metasync.errors import WorkspaceError
from metasync.local.state_keys import CONFLICTS
from metasync.worktree import disk as fsio
from metasync.worktree.disk import Disk
from metasync.worktree.index import load_rows


def killed_at(case: Path, step: int, old: Any, new: Any, disk: type[FusedDisk] = FusedDisk, **kwargs: Any) -> bool:
    """Kills a checkout at one step, checks what is left, recovers, checks again. False: it ended before that step."""
    error = kwargs.get("error", Killed)
    fuse = Fuse(error=error)
    fuse.sticky = error is Killed
    work = Workspace(case, disk(fuse), fuse)
    known = set(contents(old, new))
    olds = {digest(data) for data in files_of(old)}
    ended = True
    try:
        agreed(work, old)
        ours = work.scan_past()
        fuse.steps, fuse.at = 0, step
        checkout = Checkout(work.db, work.tree)
        changes = work.changes(ours.tree, entries(new))
        waiting: set[bytes] = set()
        try:
            work.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}, version=3), new)
            waiting = {noted.path for noted in checkout.apply(answer=kwargs.get("answer")).unplaced}
            ended = not waiting
        except (Killed, WorkspaceError, OSError):
            ended = False
        fuse.mend()
        for path, spec in read(work.root).items():
            # A temporary that is still being copied to another file system has a name no scan takes in.
            assert not isinstance(spec, File) or digest(spec.data) in known or b"~$" in path, (step, path)
        assert olds <= {digest(data) for data in files_under(case)}, step
    finally:
        fuse.mend()
        work.close()
    with Workspace(case) as work:
        work.tree.disk = disk(fuse)
        work.base = entries(old)
        Checkout(work.db, work.tree).recover()
        here = read(work.root)
        now = new if work.db.value("base") == b"new" else old
        assert here == full(with_waiting(old, now, waiting)), step
        assert olds <= {digest(data) for data in files_under(case)}, step
        work.base = entries(now)
        assert_settled(work, now)
        assert work.db.records(CONFLICTS) == []
        assert Checkout(work.db, work.tree).recover() is None
        if waiting:
            bring_waiting(work, new)
        work.check_out(new)
        assert read(work.root) == full(new), step
        assert_nothing_left(work)
    return not ended


def with_waiting(old: Any, new: Any, waiting: set[bytes]) -> Any:
    """The new tree where these paths have no room: there stands what stood there before."""
    here = {path: spec for path, spec in new.items() if path not in waiting}
    return here | {path: old[path] for path in waiting if path in old}


def bring_waiting(work: Workspace, new: Any) -> None:
    """Offers again what had no room, as a pull does."""
    work.scan_past()
    rows, wanted = load_rows(work.db), entries(new)
    again = [Change(path, wanted[path], rows.get(path)) for path in sorted(work.db.unplaced())]
    checkout = Checkout(work.db, work.tree)
    work.stage(checkout, again, checkout.begin(again), new)
    assert checkout.apply().unplaced == []
    assert work.db.unplaced() == {}


def files_of(tree: dict[bytes, Any]) -> list[bytes]:
    return [s if isinstance(s, bytes) else s.data for s in tree.values() if isinstance(s, (bytes, File))]


def every_step(
    tmp_path: Path, old: Any, new: Any, disk: type[FusedDisk] = FusedDisk, stride: int = 1, **kwargs: Any
) -> int:
    """Each step, or with a `stride` some of them; the first step that a checkout does not reach."""
    for step in range(1, 2000, stride):
        if not killed_at(tmp_path / str(step), step, old, new, disk, **kwargs):
            return step
    raise AssertionError("the checkout never ended")


@few_and_many("stride", 3, 1)
def test_killed_at_every_step(tmp_path: Path, stride: int) -> None:
    assert every_step(tmp_path, OLD, NEW, stride=stride) > 150


@few_and_many("stride", 5, 1)
@pytest.mark.parametrize("size", [1, 3])
def test_killed_at_every_step_of_a_checkout_in_slices(
    tmp_path: Path, stride: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is what is left without slices: the next start makes all rows anew."""
    monkeypatch.setattr(checkout_module, "SLICE_CHANGES", size)
    answered: list[None] = []
    assert every_step(tmp_path, OLD, NEW, stride=stride, answer=lambda: answered.append(None)) > 150
    assert len(answered) > 100


@few_and_many("stride", 7, 1)
@pytest.mark.long
def test_one_call_of_a_checkout_in_slices_fails_at_every_step(
    tmp_path: Path, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout_module, "SLICE_CHANGES", 1)
    assert every_step(tmp_path, OLD, NEW, error=EIO, stride=stride, answer=lambda: None) > 150


@few_and_many("stride", 4, 1)
@pytest.mark.long
def test_one_call_fails_at_every_step(tmp_path: Path, stride: int) -> None:
    assert every_step(tmp_path, OLD, NEW, error=EIO, stride=stride) > 150


def test_the_disk_is_full_at_every_step(tmp_path: Path) -> None:
    assert every_step(tmp_path, SHORT_OLD, SHORT_NEW, error=ENOSPC) > 30


class QuotaFused(FusedDisk):
    """Tells of much room, and has none for some files until its owner pays for more."""

    full = True

    def write(self, fd: int, data: bytes | memoryview, offset: int = 0) -> None:
        if QuotaFused.full and bytes(data) in QUOTA_REFUSES:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        super().write(fd, data, offset)


QUOTA_REFUSES = (b"new edited", b"new")


@few_and_many("stride", 5, 1)
@pytest.mark.long
def test_killed_at_every_step_where_a_quota_ends(tmp_path: Path, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room stays away, or as it was, whenever the process dies; then there is room, and all comes."""
    monkeypatch.setattr(checkout_module, "RESERVE_BYTES", 1)
    for step in range(1, 2000, stride):
        fuse = Fuse()
        monkeypatch.setattr(QuotaFused, "full", True)
        with Workspace(tmp_path / str(step), QuotaFused(fuse), fuse) as work:
            agreed(work, OLD)
            ours = work.scan_past()
            fuse.steps, fuse.at = 0, step
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(NEW))
            died = False
            try:
                work.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}), NEW)
                checkout.apply()
            except (Killed, WorkspaceError):
                died = True
            fuse.mend()
            Checkout(work.db, work.tree).recover()
            waiting = set(work.db.unplaced())
            is_new = work.db.value("base") == b"new"
            assert bool(waiting) == is_new and (is_new or died), step
            now = NEW if is_new else OLD
            assert read(work.root) == full(with_waiting(OLD, now, waiting)), step
            assert {digest(data) for data in files_under(work.root)} >= OLD_CONTENTS
            work.base = entries(now)
            assert_settled(work, now)
            monkeypatch.setattr(QuotaFused, "full", False)
            if is_new:
                bring_waiting(work, NEW)
            work.check_out(NEW)
            assert read(work.root) == full(NEW), step
            assert {digest(data) for data in files_under(work.root)} >= OLD_CONTENTS
            assert_settled(work, NEW)
        if not died:
            assert waiting >= {b"edited", b"fresh/n"}
            return
    raise AssertionError("the checkout never ended")


class PlainFused(FusedDisk, Plain):
    pass


class LinkingFused(FusedDisk, Linking):
    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        Disk.rename_new(self, old, old_fd, new, new_fd)


class MountedFused(FusedDisk, Mounted):
    pass


SHORT_OLD = {p: s for p, s in OLD.items() if p in (b"edited", b"d", b"d/gone", b"file-to-dir", b"link")}
SHORT_NEW = {p: s for p, s in NEW.items() if p in (b"edited", b"file-to-dir", b"file-to-dir/in", b"link")}


@pytest.mark.few(1)
@few_and_many("stride", 2, 1)
@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize("disk", [PlainFused, LinkingFused])
def test_killed_on_poorer_disks(
    tmp_path: Path, disk: type[FusedDisk], renames: bool, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not renames:
        monkeypatch.setattr(fsio, "_rename_with", lambda *args: False)
    assert every_step(tmp_path, SHORT_OLD, SHORT_NEW, disk, stride) > 30


@needs_proc
@few_and_many("stride", 3, 1)
@pytest.mark.long
def test_killed_with_a_mount_inside(tmp_path: Path, stride: int) -> None:
    assert every_step(tmp_path, MOUNT_OLD, MOUNT_NEW, MountedFused, stride) > 50


@few_and_many("stride", 3, 1)
@pytest.mark.parametrize("answer", [None, lambda: None], ids=["at-once", "slices"])
def test_killed_while_it_recovers(
    tmp_path: Path, stride: int, answer: Callable[[], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies in the middle, and then at every step of the recovery."""
    monkeypatch.setattr(checkout_module, "SLICE_CHANGES", 1)
    for step in range(1, 2000, stride):
        fuse = Fuse()
        work = Workspace(tmp_path / str(step), FusedDisk(fuse), fuse)
        try:
            agreed(work, OLD)
            ours = work.scan_past()
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(NEW))
            work.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}), NEW)
            fuse.steps, fuse.at = 0, 30 + step % 40
            with pytest.raises(Killed):
                checkout.apply(answer=answer)
            fuse.steps, fuse.at = 0, step
            done = False
            try:
                Checkout(work.db, work.tree).recover()
                done = True
            except Killed:
                fuse.mend()
                Checkout(work.db, work.tree).recover()
            fuse.mend()
            assert read(work.root) == full(NEW), step
            work.base = entries(NEW)
            assert_settled(work, NEW)
            assert {digest(data) for data in files_under(work.root)} >= OLD_CONTENTS
        finally:
            fuse.mend()
            work.close()
        if done:
            return
    raise AssertionError("the recovery never ended")


@pytest.mark.parametrize("answer", [None, lambda: None], ids=["at-once", "slices"])
def test_a_recovered_checkout_respects_what_came_after(
    tmp_path: Path, answer: Callable[[], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between death and recovery the user works on: nothing of that is lost or taken for the agreed."""
    monkeypatch.setattr(checkout_module, "SLICE_CHANGES", 1)
    for at in range(30, 90, 3):
        fuse = Fuse()
        work = Workspace(tmp_path / str(at), FusedDisk(fuse), fuse)
        try:
            agreed(work, OLD)
            ours = work.scan_past()
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(NEW))
            work.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}), NEW)
            fuse.steps, fuse.at = 0, at
            with suppress(Killed):
                checkout.apply(answer=answer)
            fuse.mend()
            edits = {b"edited": b"my words after the crash", b"big": b"big words", b"wide/a": b"wide words"}
            for path, data in edits.items():
                if work.at(path).exists():
                    work.at(path).write_bytes(data)
            work.at(b"fresh").mkdir(exist_ok=True)
            work.at(b"fresh/n").write_bytes(b"in the way")
            Checkout(work.db, work.tree).recover()
            work.base = entries(NEW)
            found = work.scan()
            seen = {e.content for e in found.tree.values()}
            for data in (*edits.values(), b"in the way"):
                assert digest(data) in seen, (at, data)
        finally:
            fuse.mend()
            work.close()


def test_a_plan_from_before_a_renumbering_of_devices(tmp_path: Path) -> None:
    fuse = Fuse()
    work = Workspace(tmp_path, FusedDisk(fuse), fuse)
    try:
        agreed(work, OLD)
        ours = work.scan_past()
        checkout = Checkout(work.db, work.tree)
        device = work.tree.root_stat.st_dev
        changes = [
            c._replace(expected=c.expected._replace(dev=device + 5)) if c.expected is not None else c
            for c in work.changes(ours.tree, entries(NEW))
        ]

        class Before:
            st_dev, st_ino = device + 5, work.tree.root_stat.st_ino

        real, work.tree.root_stat = work.tree.root_stat, Before()  # type: ignore[assignment]
        work.stage(checkout, changes, checkout.begin(changes), NEW)
        fuse.steps, fuse.at = 0, 9
        with pytest.raises(Killed):
            checkout.apply()
        fuse.mend()
        work.tree.root_stat = real
        applied = Checkout(work.db, work.tree).recover()
        assert applied is not None
        assert (applied.conflicts, applied.kept) == ([], [])
        assert read(work.root) == full(NEW)
    finally:
        fuse.mend()
        work.close()


VICTIM = """
import sys, os, time
sys.path.insert(0, {kits!r})
from pathlib import Path
from checkout_kit import NEW, OLD
from workdir import QuietDisk, Workspace, entries
from metasync.checkout import checkout as checkout_module
from metasync.checkout.checkout import Change, Checkout
class Slow(QuietDisk):
    def rename_new(self, *args):
        super().rename_new(*args); time.sleep(0.002)
    def exchange(self, *args):
        done = super().exchange(*args); time.sleep(0.002); return done
work = Workspace(Path(sys.argv[1]), Slow())
work.base = entries(OLD)
ours = work.scan()
checkout = Checkout(work.db, work.tree)
changes = work.changes(ours.tree, entries(NEW))
print("go", flush=True)
work.stage(checkout, changes, checkout.begin(changes, {{"base": b"new"}}), NEW)
checkout.apply()
"""


def test_sigkill(tmp_path: Path) -> None:
    program = VICTIM.format(kits=str(Path(__file__).parents[1] / "kits"))
    outcomes = set()
    for case, delay in enumerate((0.0, 0.01, 0.02, 0.035, 0.05, 0.08)):
        root = tmp_path / str(case)
        with Workspace(root) as work:
            agreed(work, OLD)
        with subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"go\n"
            time.sleep(delay)
            victim.send_signal(signal.SIGKILL)
        known = set(contents(OLD, NEW))
        for spec in read(root).values():
            assert not isinstance(spec, File) or digest(spec.data) in known
        with Workspace(root) as work:
            outcomes.add(Checkout(work.db, work.tree).recover() is None)
            now = NEW if work.db.value("base") else OLD
            assert read(root) == full(now)
            work.base = entries(now)
            assert_settled(work, now)
            assert {digest(data) for data in files_under(root)} >= OLD_CONTENTS
    assert outcomes
