"""Writes a version, or parts of it, to a directory elsewhere (`metasync restore --to`).

Theory of operation. Nothing that exists is replaced: the whole directory is compared first, and a name that holds
something else stops all before a byte is written. Files are then written to a directory of their own in the target,
`~$metasync.restore.*`, made durable, and renamed to their places by a rename that never replaces, so that no name ever
holds half a file. What a killed run left there goes with the next one. The way down leads from one directory
descriptor to the next and follows no symlink; names that a workspace refuses are refused here too.

What cannot be had does not hold up the rest: it is listed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat as stat_
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from metasync.errors import (
    DamagedError,
    FormatError,
    MetaSyncError,
    UnreachableError,
    UpgradeError,
    UsageError,
    WorkspaceError,
)
from metasync.history.diff import nothing_there, top_paths
from metasync.history.log import History, is_below
from metasync.history.versions import Version, required, resolve
from metasync.local.memory import room_for_tree
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, split
from metasync.reports.history import Cause, NotRestored, RestoreReport
from metasync.runtime.sizes import SMALL_FILE_BYTES
from metasync.session.session import Session
from metasync.sync.fetch import PIECE_BYTES, ChangedMeanwhile, deliver
from metasync.sync.scanned import summary
from metasync.worktree.disk import CREATE_FLAGS, DIR_FLAGS, READ_FLAGS, WRITE_FLAGS, Disk, check_path, dress, write_part
from metasync.worktree.index import load_rows
from metasync.worktree.names import folds_to_state
from metasync.worktree.tree import DirTree

STAGING = b"~$metasync.restore."  # no workspace takes such names in
NAMED_MAX = 5  # paths named in an error

_STOPS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})  # the disk, and not one path


class Failures:
    """What could not be restored, by path."""

    def __init__(self) -> None:
        self.by_path: dict[bytes, NotRestored] = {}

    def __contains__(self, path: bytes) -> bool:
        return path in self.by_path

    def add(self, path: bytes, cause: Cause, reason: str) -> None:
        self.by_path.setdefault(path, NotRestored(path, cause, reason))

    def lost(self, path: bytes, error: MetaSyncError) -> None:
        self.add(path, "unreachable" if isinstance(error, UnreachableError) else "damaged", error.message)

    def listed(self) -> tuple[NotRestored, ...]:
        return tuple(self.by_path[path] for path in sorted(self.by_path))


def extract(
    s: Session, version: str, paths: Sequence[bytes], to: str | os.PathLike[str], *, dry_run: bool
) -> RestoreReport:
    """Writes what a version has at these paths below `to`, under their whole paths.

    `UsageError`: no such version or path, or `to` can't be used. `WorkspaceError`: something else is there already, or
    the disk failed.
    """
    where = _target_directory(to)
    history = History(s)
    found = resolve(history, required(version))
    failures = Failures()
    tree = _tree(history, found, top_paths(paths), failures)
    for path in tree:
        if why := check_path(path):
            failures.add(path, "refused", why)
    tree = {path: entry for path, entry in tree.items() if path not in failures}
    new = _not_there_yet(s, where, tree)
    _check_space(s.tree.disk, where, new)
    if not dry_run:
        new = _write(history, where, new, failures)
    return RestoreReport(
        version=found.number,
        snapshot=found.id,
        to=str(where),
        changes=summary(new, lambda _: None, new.get),
        size_written=sum(e.size for e in new.values() if e.kind is Kind.FILE),
        unchanged=sum(p not in new and p not in failures for p in tree),
        failed=failures.listed(),
        down=dict(s.down),
        bad_copies=s.bad_copies,
    )


def _target_directory(to: str | os.PathLike[str]) -> Path:
    where = Path(os.path.realpath(to))
    if any(folds_to_state(part) for part in where.parts):
        raise UsageError(f"{where} lies in a .metasync, which is no place for files", next_step="Choose another DIR.")
    if where.exists() and not where.is_dir():
        raise UsageError(f"{where} is not a directory", next_step="Choose another DIR; a new one is made.")
    return where


# ---- what is wanted


def _tree(history: History, version: Version, tops: tuple[bytes, ...], failures: Failures) -> dict[bytes, Entry]:
    """What the version has at these paths and below, with the directories above; as far as it can be had."""
    tree: dict[bytes, Entry] = {}
    for top in tops:
        found = history.find(version.root, top)
        if found.entry is None and (top or version.root is not None):
            raise nothing_there(history, version, top, found.reached)
        if found.entry is not None:
            _collect(history, top, found.entry, tree, failures)
        above = split(top)[0]
        while above:
            entry = history.find(version.root, above).entry
            assert entry is not None
            tree[above] = entry._replace(content=b"")
            above = split(above)[0]
    return tree


def _collect(history: History, top: bytes, entry: Entry, tree: dict[bytes, Entry], failures: Failures) -> None:
    """An entry and all below it; of what can't be read, the directories that can."""
    todo = [(top, entry)]
    while todo:  # no recursion: directories may be nested deeply
        path, entry = todo.pop()
        if entry.kind is not Kind.DIR:
            tree[path] = entry
            continue
        if path:
            tree[path] = entry._replace(content=b"")
        prefix = path + b"/" if path else b""
        try:
            below = history.contents.walk(walk.flatten(entry.content, room_for_tree))
        except (DamagedError, UnreachableError, UpgradeError) as e:
            if isinstance(e.__cause__, FormatError) and e.__cause__.is_too_large:
                failures.lost(path, e)
                continue
        else:
            tree.update((prefix + name, e) for name, e in below.items())
            continue
        try:
            listed = history.contents.walk(walk.listing(entry.content))
        except (DamagedError, UnreachableError, UpgradeError) as e:
            tree.pop(path, None)
            failures.lost(path, e)
            continue
        todo += [(prefix + name, inside) for name, inside in reversed(listed)]


# ---- what is there


@contextmanager
def _below(where: Path, disk: Disk) -> Iterator[DirTree]:
    tree = DirTree(os.fsencode(where), os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), disk)
    try:
        yield tree
    finally:
        tree.close()


def _not_there_yet(s: Session, where: Path, tree: Mapping[bytes, Entry]) -> dict[bytes, Entry]:
    """The part of a tree that is to be written. `WorkspaceError` if something else is at a path."""
    if not where.exists():
        return dict(tree)
    new: dict[bytes, Entry] = {}
    other: list[bytes] = []
    with _below(where, s.tree.disk) as there:
        for path in sorted(tree):
            if split(path)[0] in new:
                new[path] = tree[path]
                continue
            state = _compared(s, there, path, tree[path])
            if state is None:
                new[path] = tree[path]
            elif not state:
                other.append(path)
    clashing = [path for path in other if not any(path != o and is_below(path, o) for o in other)]
    if clashing:
        names = ", ".join(os.fsdecode(path) for path in clashing[:NAMED_MAX])
        raise WorkspaceError(
            f"{where} holds something else at {len(clashing)} of the paths ({names}); nothing was written",
            next_step="Restore to a new directory, or move those away.",
        )
    return new


def _compared(s: Session, there: DirTree, path: bytes, entry: Entry) -> bool | None:
    """Whether what is at a path is what the entry says; None where nothing is."""
    parent, name = split(path)
    try:
        above = there.dir(parent)
        st = there.disk.look(name, above)
        if st is None:
            return None
        if entry.kind is Kind.DIR:
            return stat_.S_ISDIR(st.st_mode)
        if entry.kind is Kind.SYMLINK:
            return stat_.S_ISLNK(st.st_mode) and there.disk.readlink(name, above) == entry.content
        if not stat_.S_ISREG(st.st_mode) or st.st_size != entry.size:
            return False
        fd = there.disk.open(name, READ_FLAGS, above)
        try:
            hasher = s.ids.content()
            while piece := there.disk.read_next(fd, PIECE_BYTES):
                hasher.update(piece)
            return bool(hasher.digest() == entry.content)
        finally:
            there.disk.close(fd)
    except OSError:
        return False  # a link or a file on the way, or what can't be read: not what is wanted


def _check_space(disk: Disk, where: Path, new: Mapping[bytes, Entry]) -> None:
    needed = sum(e.size + SMALL_FILE_BYTES for e in new.values())
    nearest = next(folder for folder in (where, *where.parents) if folder.exists())
    fd = os.open(nearest, os.O_RDONLY | os.O_CLOEXEC)
    try:
        free = disk.free_bytes(fd)
    finally:
        os.close(fd)
    if needed > free:
        raise WorkspaceError(
            f"what is to be restored needs {needed:,} bytes, and {nearest} has {free:,} free; nothing was written",
            next_step="Free some space, or name fewer paths.",
        )


# ---- writing


def _write(history: History, where: Path, new: dict[bytes, Entry], failures: Failures) -> dict[bytes, Entry]:
    """Writes what is not there yet; returns what was written."""
    s = history.s
    here = {row.entry.content: path for path, row in load_rows(s.db).items() if row.entry.kind is Kind.FILE}
    try:
        where.mkdir(parents=True, exist_ok=True)
        with _below(where, s.tree.disk) as there:
            _drop_leftovers(there)
            for source in (here, {}):
                with _staging(there) as fd:
                    staged = Staged(there, fd, new, s.tree.mode_of)
                    try:
                        deliver(s, staged, staged.awaited, source, history.contents, failures.lost)
                    except ChangedMeanwhile:
                        continue  # what is here changes while it is copied: everything from packs then
                    return staged.place(failures)
    except OSError as e:
        raise WorkspaceError(
            f"writing to {where} failed: {e.strerror or e}",
            next_step="Mend that and run again: what is there already is not written twice.",
        ) from e
    raise AssertionError("what comes from packs does not change")


@contextmanager
def _staging(there: DirTree) -> Iterator[int]:
    """A directory in the target, ours as long as its lock is held; empty and gone afterwards."""
    name = STAGING + os.urandom(4).hex().encode()
    there.disk.mkdir(name, there.root_fd)
    fd = there.disk.open(name, DIR_FLAGS, there.root_fd)
    try:
        with suppress(OSError):  # a file system without locks: its leftovers stay until someone removes them
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield fd
        finally:
            _remove(there, name, fd)
    finally:
        there.disk.close(fd)


def _remove(there: DirTree, name: bytes, fd: int) -> None:
    with suppress(OSError):
        for inside in there.disk.names(fd):
            there.disk.unlink(inside, fd)
        there.disk.rmdir(name, there.root_fd)


def _drop_leftovers(there: DirTree) -> None:
    """Removes what killed runs left: staging directories that nobody holds."""
    for name in there.disk.names(there.root_fd):
        if not name.startswith(STAGING):
            continue
        with suppress(OSError):
            fd = there.disk.open(name, DIR_FLAGS, there.root_fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(there, name, fd)
            finally:
                there.disk.close(fd)


class Staged:
    """The files of one restore on their way: written under numbers, then given their names.

    `awaited`: those whose contents are to be delivered. Contents may come from several threads. `mode_of`: the mode
    that one of a version becomes here.
    """

    def __init__(
        self, there: DirTree, fd: int, new: Mapping[bytes, Entry], mode_of: Callable[[int], int] = int
    ) -> None:
        self.there = there
        self.mode_of = mode_of
        self.disk = there.disk
        self.fd = fd
        self.new = new
        self.numbers = {path: b"%d" % i for i, path in enumerate(sorted(new))}
        self.awaited = {p: e for p, e in new.items() if e.kind is Kind.FILE and e.size}
        self.ready: set[bytes] = set()

    def stage_whole(self, path: bytes, data: bytes | memoryview) -> None:
        entry = self.new[path]
        if len(data) != entry.size:
            raise DamagedError(f"{os.fsdecode(path)} has {len(data)} bytes, its entry says {entry.size}")
        with suppress(FileNotFoundError):
            self.disk.unlink(self.numbers[path], self.fd)  # delivered twice, after one backend failed half-way
        fd = self.disk.open(self.numbers[path], CREATE_FLAGS, self.fd)
        try:
            if data:
                self.disk.write(fd, data)
            self._dress(path, fd)
        finally:
            self.disk.close(fd)

    def stage_part(self, path: bytes, offset: int, data: bytes | memoryview) -> None:
        fd = self.disk.open(self.numbers[path], WRITE_FLAGS, self.fd)
        try:
            write_part(self.disk, fd, data, offset)
        finally:
            self.disk.close(fd)

    def forget(self, path: bytes) -> None:
        with suppress(FileNotFoundError):
            self.disk.unlink(self.numbers[path], self.fd)

    def finish(self, path: bytes) -> None:
        """All parts were delivered: each was checked, and together they are as long as the file."""
        fd = self.disk.open(self.numbers[path], WRITE_FLAGS, self.fd)
        try:
            if (size := self.disk.fstat(fd).st_size) != self.new[path].size:
                raise DamagedError(f"{os.fsdecode(path)} has {size} bytes, its entry says {self.new[path].size}")
            self._dress(path, fd)
        finally:
            self.disk.close(fd)

    def _dress(self, path: bytes, fd: int) -> None:
        dress(self.disk, fd, self.mode_of(self.new[path].mode), self.new[path].mtime_ns)
        self.ready.add(path)

    def place(self, failures: Failures) -> dict[bytes, Entry]:
        """Makes what was staged durable, and gives it its names; returns what got one."""
        for path, entry in self.new.items():
            if entry.kind is Kind.SYMLINK:
                try:
                    self.disk.symlink(entry.content, self.numbers[path], self.fd)
                except OSError as e:  # its target may be longer than this disk takes
                    if e.errno in _STOPS:
                        raise
                    failures.add(path, "disk", e.strerror or str(e))
                    continue
                self.disk.utime(self.numbers[path], self.fd, entry.mtime_ns)
                self.ready.add(path)
            elif entry.kind is Kind.FILE and not entry.size:
                self.stage_whole(path, b"")
        self.disk.syncfs(self.fd)
        placed: dict[bytes, Entry] = {}
        for path in sorted(self.new):  # directories before what is in them
            entry = self.new[path]
            if entry.kind is not Kind.DIR and (path in failures or path not in self.ready):
                continue
            try:
                self._place(path, entry)
                placed[path] = entry
            except OSError as e:
                if e.errno in _STOPS:
                    raise
                taken = e.errno == errno.EEXIST
                failures.add(path, "disk", "something else is there now" if taken else e.strerror or str(e))
        for path in sorted(placed, reverse=True):  # last, and those inside first: a mode may close the way
            if placed[path].kind is Kind.DIR:
                self.there.forget(path)
                parent, name = split(path)
                with suppress(OSError):
                    self.disk.chmod(name, self.there.dir(parent), self.mode_of(placed[path].mode))
        self.disk.syncfs(self.fd)
        return placed

    def _place(self, path: bytes, entry: Entry) -> None:
        parent, name = split(path)
        above = self.there.dir(parent)
        if entry.kind is Kind.DIR:
            try:
                self.disk.mkdir(name, above, 0o700)
            except FileExistsError:
                if not stat_.S_ISDIR(self.disk.lstat(name, above).st_mode):
                    raise
            self.disk.chmod(
                name, above, self.mode_of(entry.mode) | 0o700
            )  # whatever the umask; the rest when all is in it
        else:
            self.disk.rename_new(self.numbers[path], self.fd, name, above)
