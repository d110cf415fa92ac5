"""What the tests of the checkout share: two trees that differ in every way, and disks poorer than the usual one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from workdir import (
    DIR,
    MTIME_NS,
    Dir,
    File,
    Link,
    QuietDisk,
    Workspace,
    digest,
    entries,
    files_under,
    write,
)

from metasync.checkout.checkout import Applied
from metasync.local.state_keys import PLAN_KEY

LATER_NS = MTIME_NS + 10**9

OLD: dict[bytes, Any] = {
    b"big": b"old big " * 50,
    b"clash": DIR,
    b"clash/inside": b"goes with its directory",
    b"d": DIR,
    b"d/gone": b"deleted there",
    b"dir-to-file": DIR,
    b"dir-to-file/x": b"x of the old directory",
    b"edited": b"old edited",
    b"file-to-dir": b"old file",
    b"file-to-link": b"old target",
    b"keep": b"nothing happens to it",
    b"link": Link(b"keep"),
    b"link-to-file": Link(b"keep"),
    b"mode": File(b"mode only", 0o644),
    b"ro": Dir(0o555),
    b"ro/in": b"old in a read-only directory",
    b"time": File(b"time only", 0o644),
    b"wide": Dir(0o755),
    b"wide/a": b"old wide a",
}
NEW: dict[bytes, Any] = {
    b"big": b"new big " * 60,
    b"clash": b"a file now",
    b"dir-to-file": b"file where a directory was",
    b"edited": File(b"new edited", 0o755, LATER_NS),
    b"file-to-dir": DIR,
    b"file-to-dir/in": b"in the new directory",
    b"file-to-link": Link(b"edited"),
    b"fresh": DIR,
    b"fresh/empty": b"",
    b"fresh/locked": Dir(0o555),
    b"fresh/locked/f": File(b"new in a read-only directory", 0o400),
    b"fresh/n": b"new",
    b"keep": b"nothing happens to it",
    b"link": Link(b"edited", LATER_NS),
    b"link-to-file": b"file where a link was",
    b"mode": File(b"mode only", 0o600),
    b"ro": Dir(0o555),
    b"ro/in": b"new in a read-only directory",
    b"time": File(b"time only", 0o644, LATER_NS),
    b"wide": Dir(0o700),
    b"wide/a": b"new wide a",
}
OLD_CONTENTS = {digest(spec) for spec in OLD.values() if isinstance(spec, bytes)}


def full(tree: dict[bytes, Any]) -> dict[bytes, Any]:
    """A tree in short, as `read` gives it."""
    return {path: File(spec) if isinstance(spec, bytes) else spec for path, spec in tree.items()}


def agreed(work: Workspace, tree: dict[bytes, Any]) -> None:
    write(work.root, tree)
    work.base = dict(work.scan_past().tree)


def replaced(work: Workspace) -> list[bytes]:
    path = work.root / ".metasync" / "replaced"
    return sorted(files_under(path)) if path.exists() else []


def assert_settled(work: Workspace, tree: dict[bytes, Any]) -> None:
    """The state fits the tree: nothing is left over but for a next checkout, and the next scan sees the agreed tree."""
    if not work.db.has(PLAN_KEY):
        assert_nothing_left(work)
    found = work.scan()
    assert found.tree == entries(tree)
    assert (found.deleted, found.busy, found.unreadable) == ([], [], [])


def assert_nothing_left(work: Workspace) -> None:
    assert os.listdir(work.root / ".metasync" / "tmp") == []
    assert not (work.root / ".metasync" / "left").exists()


def late(work: Workspace, edit: Callable[[], Any], new: dict[bytes, Any] = NEW) -> Applied:
    agreed(work, OLD)
    return work.check_out(new, before_apply=edit)


class Modes(QuietDisk):
    """The superuser's disk with the rules for others: no change in a directory that its mode forbids."""

    def check(self, fd: int, code: int = errno.EACCES) -> None:
        if os.fstat(fd).st_mode & 0o300 != 0o300:
            raise OSError(code, os.strerror(code))

    def mkdir(self, name: bytes, dir_fd: int, mode: int = 0o700) -> None:
        self.check(dir_fd)
        super().mkdir(name, dir_fd, mode)

    def rmdir(self, name: bytes, dir_fd: int) -> None:
        self.check(dir_fd)
        super().rmdir(name, dir_fd)

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(old_fd)
        self.check(new_fd)
        super().rename_new(old, old_fd, new, new_fd)

    def rename(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(old_fd)
        self.check(new_fd)
        super().rename(old, old_fd, new, new_fd)

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        self.check(one_fd)
        self.check(other_fd)
        return super().exchange(one, one_fd, other, other_fd)


class Plain(QuietDisk):
    """No exchange of names, and no links: FAT."""

    links = False

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        return False

    def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        if not self.links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        super().link(old, old_fd, new, new_fd)


class Linking(Plain):
    links = True


class LinkingModes(Modes, Linking):
    pass


class Elsewhere:
    """A stat with another device."""

    def __init__(self, st: os.stat_result) -> None:
        self.st, self.st_dev = st, st.st_dev + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.st, name)


class Mounted(QuietDisk):
    """The directory `wide` is a file system of its own."""

    @staticmethod
    def side(fd: int) -> bool:
        return b"/wide" in os.readlink(b"/proc/self/fd/%d" % fd)

    def check(self, one: int, other: int) -> None:
        if self.side(one) != self.side(other):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        st = super().lstat(name, dir_fd)
        return Elsewhere(st) if self.side(dir_fd) else st  # type: ignore[return-value]

    def fstat(self, fd: int) -> os.stat_result:
        st = super().fstat(fd)
        return Elsewhere(st) if self.side(fd) else st  # type: ignore[return-value]

    def rename(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(old_fd, new_fd)
        super().rename(old, old_fd, new, new_fd)

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(old_fd, new_fd)
        super().rename_new(old, old_fd, new, new_fd)

    def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        self.check(old_fd, new_fd)
        super().link(old, old_fd, new, new_fd)

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        self.check(one_fd, other_fd)
        return super().exchange(one, one_fd, other, other_fd)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="tells directories apart by /proc")
MOUNT_OLD = {b"wide": DIR, b"wide/a": b"old a", b"wide/b": b"old b", b"wide/gone": b"gone", b"wide/l": Link(b"a")}
MOUNT_NEW = {
    b"wide": DIR,
    b"wide/a": b"new a",
    b"wide/b": Link(b"a"),
    b"wide/l": b"new l",
    b"wide/n": File(b"n", 0o4755),
}
