"""Disks that treat names as other systems do, over a real directory: macOS, Windows, FAT, a casefolded ext4, HFS+.

Each is a `Disk` which finds names as that system would, refuses what it refuses, and spells what it spells. The rules
here are written for themselves, so that they check those of `metasync.worktree.names`. `Folder` is the user at such a
disk.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from workdir import QuietDisk
from workspace_kit import CHEAP, PASSPHRASE

from metasync.objects.model import Entry
from metasync.reports.start import CloneReport
from metasync.reports.sync import PullReport
from metasync.session import agreement
from metasync.workspace import Workspace
from metasync.worktree.tree import WorkTree

FAT_TICK_NS = 2 * 10**9


def _error(code: int, name: bytes) -> OSError:
    return OSError(code, os.strerror(code), name)


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


class OtherDisk(QuietDisk):
    """A disk with rules. `keeps_old`: what is renamed over a twin gets the twin's spelling (Linux), or keeps its own.

    `idle`: to rename a file to another spelling of its own name does nothing (Linux), or respells it (macOS).
    """

    fold: Callable[[str], str] = staticmethod(lambda text: text)
    stored: Callable[[str], str] = staticmethod(lambda text: text)
    utf8 = True
    forbidden = ""
    trailing = ""
    units_max = 255
    utf16 = True
    modes = links = True
    keeps_old = idle = False

    def key(self, name: bytes) -> str:
        return self.fold(os.fsdecode(name))

    def found(self, name: bytes, fd: int) -> bytes | None:
        """The name under which the disk has what is asked for."""
        names = [os.fsencode(n) for n in os.listdir(fd)]
        if name in names:
            return name
        return next((n for n in names if self.key(n) == self.key(name)), None)

    def real(self, name: bytes, fd: int) -> bytes:
        return self.found(name, fd) or name

    def made(self, name: bytes) -> bytes:
        """How a new name is stored; OSError where it is refused."""
        text = os.fsdecode(name)
        if self.utf8 and not _is_utf8(name):
            raise _error(errno.EILSEQ, name)
        length = len(text.encode("utf-16-le", "surrogatepass")) // 2 if self.utf16 else len(name)
        if length > self.units_max:
            raise _error(errno.ENAMETOOLONG, name)
        if any(c in self.forbidden for c in text) or text[-1] in (self.trailing or "\0"):
            raise _error(errno.EINVAL, name)
        return os.fsencode(self.stored(text))

    # calls

    def open(self, name: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        here = self.found(name, dir_fd)
        if here is None and flags & os.O_CREAT:
            here = self.made(name)
        return super().open(here or name, flags, dir_fd, mode)

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        return super().lstat(self.real(name, dir_fd), dir_fd)

    def mkdir(self, name: bytes, dir_fd: int, mode: int = 0o700) -> None:
        super().mkdir(self.found(name, dir_fd) or self.made(name), dir_fd, mode)

    def rmdir(self, name: bytes, dir_fd: int) -> None:
        super().rmdir(self.real(name, dir_fd), dir_fd)

    def unlink(self, name: bytes, dir_fd: int) -> None:
        super().unlink(self.real(name, dir_fd), dir_fd)

    def symlink(self, target: bytes, name: bytes, dir_fd: int) -> None:
        if not self.links:
            raise _error(errno.EPERM, name)
        super().symlink(target, self.found(name, dir_fd) or self.made(name), dir_fd)

    def readlink(self, name: bytes, dir_fd: int) -> bytes:
        return super().readlink(self.real(name, dir_fd), dir_fd)

    def link(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        if not self.links:
            raise _error(errno.EPERM, new)
        super().link(self.real(old, old_fd), old_fd, self.found(new, new_fd) or self.made(new), new_fd)

    def rename(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        source, target = self.real(old, old_fd), self.found(new, new_fd)
        if target is None:
            super().rename(source, old_fd, self.made(new), new_fd)
            return
        same = (os.fstat(old_fd).st_ino, source) == (os.fstat(new_fd).st_ino, target)
        if same and self.idle:
            return
        super().rename(source, old_fd, target, new_fd)
        if same or not self.keeps_old:
            super().rename(target, new_fd, self.made(new), new_fd)

    def rename_new(self, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        source = self.real(old, old_fd)
        if self.found(new, new_fd) is not None:
            super().lstat(source, old_fd)
            raise _error(errno.EEXIST, new)
        super().rename_new(source, old_fd, self.made(new), new_fd)

    def exchange(self, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        if not self.links:
            return False
        return super().exchange(self.real(one, one_fd), one_fd, self.real(other, other_fd), other_fd)

    def chmod(self, name: bytes, dir_fd: int, mode: int) -> None:
        self._may_chmod(self.lstat(name, dir_fd), mode)
        super().chmod(self.real(name, dir_fd), dir_fd, mode)

    def fchmod(self, fd: int, mode: int) -> None:
        self._may_chmod(os.fstat(fd), mode)
        super().fchmod(fd, mode)

    def _may_chmod(self, st: os.stat_result, mode: int) -> None:
        if not self.modes and stat.S_IMODE(st.st_mode) != mode:
            raise _error(errno.EPERM, b"")

    def utime(self, name: bytes, dir_fd: int, mtime_ns: int) -> None:
        super().utime(self.real(name, dir_fd), dir_fd, self.time(mtime_ns))

    def futime(self, fd: int, mtime_ns: int) -> None:
        super().futime(fd, self.time(mtime_ns))

    def time(self, mtime_ns: int) -> int:
        return mtime_ns if self.modes else mtime_ns // FAT_TICK_NS * FAT_TICK_NS


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


class Mac(OtherDisk):
    """APFS: case and normal form are kept and don't count."""

    fold = staticmethod(lambda text: nfd(nfd(text).casefold()))


class OldMac(Mac):
    """HFS+: names are stored in NFD."""

    stored = staticmethod(nfd)


class Casefold(Mac):
    """ext4 with casefold: the same, as Linux does it, lengths in bytes."""

    utf16 = False
    keeps_old = idle = True


class Windows(OtherDisk):
    fold = staticmethod(str.lower)
    forbidden = '<>:"|?*\\' + "".join(map(chr, range(1, 32)))
    trailing = ". "


class Lowering(Windows):
    """ntfs-3g with ignore_case: lists what it has in small letters."""

    stored = staticmethod(str.lower)
    trailing = ""
    forbidden = ""


class Fat(Windows):
    """FAT on Linux: no links, no modes, times of two seconds."""

    links = modes = False
    keeps_old = idle = True


class Folder:
    """The user's hands on a disk: paths are relative, with the names the user would type."""

    def __init__(self, root: Path, disk: QuietDisk) -> None:
        self.root = root
        self.disk = disk

    def _inside(self, path: bytes) -> tuple[int, bytes]:
        """A descriptor of the directory a path is in, made where missing, and the name there."""
        *above, name = path.split(b"/")
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        for part in above:
            if self.disk.look(part, fd) is None:
                self.disk.mkdir(part, fd, 0o755)
            below = self.disk.open(part, os.O_RDONLY | os.O_DIRECTORY, fd)
            os.close(fd)
            fd = below
        return fd, name

    def write(self, path: bytes, data: bytes) -> None:
        fd, name = self._inside(path)
        try:
            file = self.disk.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, fd, 0o644)
            os.write(file, data)
            os.close(file)
        finally:
            os.close(fd)

    def mkdir(self, path: bytes) -> None:
        fd, name = self._inside(path)
        try:
            self.disk.mkdir(name, fd, 0o755)
        finally:
            os.close(fd)

    def link(self, path: bytes, target: bytes) -> None:
        fd, name = self._inside(path)
        try:
            self.disk.symlink(target, name, fd)
        finally:
            os.close(fd)

    def rename(self, old: bytes, new: bytes) -> None:
        """As a file manager renames: also to another spelling of the same name, on whatever disk."""
        old_fd, old_name = self._inside(old)
        new_fd, new_name = self._inside(new)
        try:
            st, there = self.disk.lstat(old_name, old_fd), self.disk.look(new_name, new_fd)
            if there is not None and there.st_ino == st.st_ino:
                self.disk.rename(old_name, old_fd, b"between", old_fd)
                old_name = b"between"
            self.disk.rename(old_name, old_fd, new_name, new_fd)
        finally:
            os.close(old_fd)
            os.close(new_fd)

    def remove(self, path: bytes) -> None:
        fd, name = self._inside(path)
        try:
            if stat.S_ISDIR(self.disk.lstat(name, fd).st_mode):
                below = self.disk.open(name, os.O_RDONLY | os.O_DIRECTORY, fd)
                inside = self.disk.names(below)
                os.close(below)
                for other in inside:
                    self.remove(path + b"/" + other)
                self.disk.rmdir(name, fd)
            else:
                self.disk.unlink(name, fd)
        finally:
            os.close(fd)

    def tree(self) -> dict[bytes, bytes | None]:
        """What is listed: contents of files, None for directories, a link's target with an arrow."""
        out: dict[bytes, bytes | None] = {}
        top = os.fsencode(self.root)
        for here, dirs, files in os.walk(top):
            if here == top and b".metasync" in dirs:
                dirs.remove(b".metasync")
            for name in dirs + files:
                at = os.path.join(here, name)
                path = os.path.relpath(at, top)
                if os.path.islink(at):
                    out[path] = b"-> " + os.readlink(at)
                elif os.path.isdir(at):
                    out[path] = None
                else:
                    with open(at, "rb") as f:
                        out[path] = f.read()
        return out


def _hurried(workspace: Workspace) -> Workspace:
    """Nothing here is about what a power failure leaves, and many tests wait for the disk otherwise."""
    workspace._db._execute("PRAGMA synchronous = OFF")
    return workspace


class Pair:
    """Two devices of one workspace: `linux` on a plain disk, `other` on a disk with other rules."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, disk: OtherDisk, *, clone: bool = True) -> None:
        self.urls = [f"memory://{uuid.uuid4().hex}-{i}" for i in range(3)]
        self.linux = Folder(root / "linux", QuietDisk())
        self.other = Folder(root / "other", disk)
        disks = {os.fsencode(f.root): f.disk for f in (self.linux, self.other)}
        monkeypatch.setattr("metasync.session.session.WorkTree", lambda path, *_: WorkTree(path, disks[path]))
        monkeypatch.setenv("METASYNC_KEYRING", "off")
        made = Workspace.init(
            self.linux.root, name="w", backends=self.urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="linux"
        )
        self.at_linux = _hurried(made.workspace)
        self.at_other: Workspace = made.workspace
        if clone:
            self.clone()

    def clone(self) -> CloneReport[Workspace]:
        report = Workspace.clone(
            self.other.root, name="w", backends=self.urls, passphrase=PASSPHRASE, device_name="other"
        )
        self.at_other = _hurried(report.workspace)
        return report

    def close(self) -> None:
        self.at_linux.close()
        self.at_other.close()

    def there(self) -> PullReport:
        """What Linux has goes to the other side; it must not come back as a change."""
        self.at_linux.sync(force=True)  # however much a test removes, it means to
        pulled = self.at_other.pull()
        assert self.at_other.push().version is None
        return pulled

    def back(self) -> PullReport:
        self.at_other.sync(force=True)
        pulled = self.at_linux.pull()
        assert self.at_linux.push().version is None
        return pulled

    def rest(self) -> None:
        """Both sync until neither has news: soon, and then for good."""
        for _ in range(4):
            news = [w.sync(force=True)[1].version for w in (self.at_linux, self.at_other)]
            if news == [None, None]:
                return
        raise AssertionError("the devices never come to rest")

    def agreed(self) -> dict[bytes, Entry]:
        with self.at_linux._session("agreed") as s:
            return s.flat(agreement.newest(s))

    def unplaced(self) -> dict[bytes, str]:
        return {s.path: s.reason for s in self.at_other.status().unplaced}
