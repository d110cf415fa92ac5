"""The scan: what stands in the working tree now, as a tree of entries (architecture.md, D8).

Theory of operation. Stage 1 walks directory descriptors and looks at every name once, without opening files. A file
whose stat equals its *trusted* row is clean and keeps the row's entry, whatever the file system made of it. Stage 2
reads the others. A file that changes while it is read is read again, at most `READS_MAX` times; then it is busy and
keeps the entry of the base, while the others go on.

A row is trusted when both its times lie before the scan's stamp, taken from the file system's own clock before the
walk: a write that came later has a later time, so that an equal stat proves equal bytes (git's racy-clean rule).

Stage 3 judges what was not found (`absence`): few of those paths were deleted, the others keep the base's entries.
"""

from __future__ import annotations

import errno
import os
import stat as stat_
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from metasync.local.spill import Large
from metasync.objects.model import NAME_BYTES_MAX, Entry, Kind
from metasync.objects.paths import split
from metasync.objects.walk import PATH_BYTES_MAX
from metasync.worktree.case import Spellings
from metasync.worktree.deletions import Noted, Seen, judge
from metasync.worktree.disk import READ_FLAGS, Disk
from metasync.worktree.ignore_files import RuleFiles
from metasync.worktree.index import Row, is_unchanged, pack_entry, pack_row, row_of, unpack_entry, unpack_row
from metasync.worktree.names import ENCODING, HAS_RULES, IGNORED, NESTED, OWN_PREFIX, is_odd, why_not_taken
from metasync.worktree.pending_reads import HELD_MAX, Unread, UnreadHere
from metasync.worktree.tree import WorkTree

__all__ = ["Content", "Counts", "Ingest", "Noted", "Reading", "Scan", "scan"]

READS_MAX = 3  # a file that is written to all the time is left to the next push after so many readings
DIR_PATH_BYTES_MAX = PATH_BYTES_MAX - NAME_BYTES_MAX - 1  # what is deeper no tree of the workspace can hold


class Content(NamedTuple):
    """What `ingest` read of a file: how many bytes, their keyed hash, and the file object's id (see `Entry.root`)."""

    size: int
    content: bytes
    root: bytes


Ingest: TypeAlias = Callable[[int, os.stat_result], Content]
"""Reads a whole file from an open descriptor; may be called again for the same file; may raise OSError."""


class Reading(Protocol):
    """Who wants to know how the reading of a scan fares."""

    def begins(self, size_bytes: int, files: int) -> None:
        """So much is going to be read, of so many files and symlinks."""

    def broken_off(self, rows: Iterable[tuple[bytes, Row]]) -> None:
        """It ends with an exception. What was read till then is true of the disk: a row for each changed file."""


class Part(Protocol):
    """The names that a scan is to look at, where it is not to look at all of them: `part.Part`, which see."""

    way: dict[bytes, Entry]

    def directories(self) -> list[bytes]: ...
    def names(self, directory: bytes) -> list[bytes] | None: ...
    def take_whole(self, directory: bytes, st: os.stat_result) -> bool: ...
    def add_below(self, tree: Mapping[bytes, Entry]) -> None: ...


@dataclass(slots=True)
class Counts:
    """What a scan saw, and what it had to read."""

    files: int = 0
    dirs: int = 0
    symlinks: int = 0
    files_read: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class Scan:
    """The outcome of `scan`.

    tree         the local tree, without the root: what stands here, and the base's entries where that is not known
    put_rows     rows to store: new, changed, or trusted from now on
    delete_rows  rows to drop: paths neither here nor in the base. A deleted path keeps its row until the base has
                 let go of it, so that a push that failed still knows of the deletion
    forgotten    those of them that are gone
    deleted      paths of the base that were deleted here
    unreadable   files and directories that can't be read: they keep the base's entry (and all below)
    busy         files that changed while they were read
    skipped      what the scan does not take in, and what it keeps though it is not here
    missing      paths of the base that are not here, though nobody deleted them: kept, and to be brought again
    ignored      what is ignored and not in the base; of a directory the directory alone
    held         files and symlinks of the base that are ignored now: they keep the base's entry
    rules        the rule files, by directory: the next scan is to be given them
    warnings     what is wrong with the rule files, as sentences
    """

    tree: MutableMapping[bytes, Entry] = field(default_factory=dict)
    put_rows: MutableMapping[bytes, Row] = field(default_factory=dict)
    delete_rows: list[bytes] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    unreadable: list[Noted] = field(default_factory=list)
    busy: list[bytes] = field(default_factory=list)
    skipped: list[Noted] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    ignored: list[bytes] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)
    rules: dict[bytes, bytes] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


def scan(
    tree: WorkTree,
    rows: Mapping[bytes, Row],
    base: Mapping[bytes, Entry],
    ingest: Ingest,
    rules: Mapping[bytes, bytes] | None = None,
    part: Part | None = None,
    reading: Reading | None = None,
) -> Scan:
    """Compares the working tree with what was seen last and with the base; reads what is new or changed.

    `base` is the flat tree of the last agreed snapshot this device has brought here. Nothing is written to the tree.
    `rules`: what the last scan that was stored found as `Scan.rules`. `reading`: who wants to know of that.
    `part`: looks at its names alone. `rows` and `base` are then its own, which grow on the way, and so is the tree:
    what it does not hold is as in the base.
    Whether content is kept or only hashed (`status`) is up to `ingest`. Storing what was found (`survey`) is up to the
    caller: in the transaction that stages what was ingested, or not at all.
    `WorkspaceError`: the root is gone. OSError: the root itself can't be listed.
    """
    stamp_ns = tree.clock_ns()
    tree.forget()
    work = _Scanner(tree, _on_this_device(tree, rows), base, ingest, RuleFiles(tree, rules or {}), stamp_ns, part)
    if work.rows is not rows:
        work.out.put_rows.update(work.rows)
    work.walk()
    if reading is not None:
        reading.begins(work.unread.size_bytes, len(work.unread))
    if len(work.unread) > HELD_MAX:
        work.out.tree = Large(pack_entry, unpack_entry, work.out.tree.items())
        work.out.put_rows = Large(pack_row, unpack_row, work.out.put_rows.items())
    try:
        work.read()
    except BaseException:
        if reading is not None:
            reading.broken_off(work.read_rows())
        raise
    work.miss()
    work.empty()
    return work.out


def _on_this_device(tree: WorkTree, rows: Mapping[bytes, Row]) -> Mapping[bytes, Row]:
    """The rows, with the device's new number where the system has numbered it anew (a reboot, a replugged disk).

    The state that the rows come from lies in the root, so the root's own inode under another device number is the
    same file system; in a copy of the folder elsewhere the root has another inode, and the rows' devices are strange.
    """
    st, seen = tree.root_stat, rows.get(b"")
    if seen is None or seen.ino != st.st_ino or seen.dev == st.st_dev:
        return rows
    return {path: row._replace(dev=st.st_dev) if row.dev == seen.dev else row for path, row in rows.items()}


class _Asked:
    """A name that is asked for, in the form of one that was listed; it may not be there."""

    __slots__ = ("_disk", "_fd", "_name", "name")

    def __init__(self, disk: Disk, name: bytes, fd: int) -> None:
        self.name = os.fsdecode(name)
        self._disk, self._name, self._fd = disk, name, fd

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        return self._disk.lstat(self._name, self._fd)


class _Vanished(Exception):  # noqa: N818  a signal, not an error
    """What was listed is something else now."""


_REG, _LNK, _DIR = stat_.S_IFREG, stat_.S_IFLNK, stat_.S_IFDIR
_MOVING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})  # someone is at work there right now


class _Scanner:
    """The state of one scan. Its stages run in order: walk, read, miss, empty."""

    def __init__(
        self,
        tree: WorkTree,
        rows: Mapping[bytes, Row],
        base: Mapping[bytes, Entry],
        ingest: Ingest,
        rules: RuleFiles,
        stamp_ns: int,
        part: Part | None = None,
    ) -> None:
        self.work = tree
        self.disk = tree.disk
        self.rows = rows
        self.base = base
        self.ingest = ingest
        self.rules = rules
        self.stamp_ns = stamp_ns
        self.part = part
        self.out = Scan()
        self.listed: dict[bytes, int] = {}  # directories listed completely, with their device
        self.blocked: set[bytes] = set()  # here, but not taken in: what the base has there and below stays
        self.hollow: set[bytes] = set()  # directories that hold names which were not taken in
        self.unread = Unread()
        self.spellings = Spellings(tree, rows, base)

    # ---- stage 1: every name once

    def walk(self) -> None:
        st = self.work.root_stat
        self.take_dir(b"", st)
        todo = [b""]
        if self.part is not None:
            todo = sorted(self.part.directories(), reverse=True)
            self.out.tree.update(self.part.way)
        while todo:
            path = todo.pop()
            if path in self.listed:
                continue  # a part's, which has been taken whole since
            try:
                subdirs = self.list_dir(path)
            except OSError as e:
                if not path:
                    raise
                self.block(path)
                if e.errno in _MOVING:
                    self.out.busy.append(path)
                else:
                    self.out.unreadable.append(Noted(path, e.strerror or str(e)))
                continue
            subdirs.sort(reverse=True)  # the stack turns it round; order is for people and for locality in packs
            todo.extend(subdirs)
        if self.part is not None:
            self.part.add_below(self.out.tree)

    def list_dir(self, path: bytes) -> list[bytes]:
        """Takes in one directory, all of it or nothing; returns the directories in it that are to be walked."""
        subdirs = self.list_under_rules(path, has_rules=False)
        return (subdirs if subdirs is not None else self.list_under_rules(path, has_rules=True)) or []

    def list_under_rules(self, path: bytes, *, has_rules: bool) -> list[bytes] | None:
        """The same. None: there is a rule file in it, which comes first (so those without pay nothing for the look)."""
        fd, device = self.work.dir_device(path)
        prefix = path + b"/" if path else b""
        rules = self.rules.names(path, has_file=has_rules)
        rows_get, ignores = self.rows.get, rules.ignores if rules is not None else None
        encoding, errors = ENCODING
        clean: list[tuple[bytes, Entry]] = []
        unread = UnreadHere()
        dirs: list[tuple[bytes, os.stat_result]] = []
        strange: list[tuple[bytes, str]] = []
        meant = self.spellings.of(path, self.disk.names(fd), fd) if self.work.rules.has_twins else {}
        with self.names(path, fd) as names:
            for found in names:
                name = found.name
                if is_odd(name) and (why := why_not_taken(name, rules is None)):
                    if why is HAS_RULES and not has_rules:
                        return None
                    if why is NESTED and path:
                        self.nested(path)
                        return []
                    if why is not HAS_RULES:
                        strange.append((prefix + name.encode(encoding, errors), "" if why is NESTED else why))
                        continue
                named = name.encode(encoding, errors)
                child = prefix + (meant.get(named, named) if meant else named)
                try:
                    st = found.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                kind = st.st_mode & 0o170000
                if ignores is not None and ignores(child[len(prefix) :], kind == _DIR):
                    strange.append((child, IGNORED))
                elif kind in (_REG, _LNK):
                    row = rows_get(child)
                    if (
                        row is not None
                        and row.trusted
                        and st.st_ctime_ns == row.ctime_ns
                        and st.st_mtime_ns == row.mtime_ns
                        and st.st_size == row.size
                        and st.st_ino == row.ino
                        and st.st_mode == row.mode
                        and st.st_dev == row.dev
                    ):
                        clean.append((child, row.entry))
                    else:
                        unread.add(child, st)
                elif kind == _DIR and len(child) <= DIR_PATH_BYTES_MAX:
                    dirs.append((child, st))
                elif kind == _DIR:
                    strange.append((child, "its path is too long"))
                else:
                    strange.append((child, "neither a file nor a directory nor a symlink"))
        self.listed[path] = device
        self.out.tree.update(clean)
        self.unread.add(prefix, unread)
        for child, why in strange:
            self.leave(path, child, why)
        self.count(clean)
        part = self.part
        return [c for c, st in dirs if self.take_dir(c, st) and (part is None or part.take_whole(c, st))]

    def names(self, path: bytes, fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]] | Iterator[_Asked]]:
        """What is to be looked at in a directory."""
        asked = self.part.names(path) if self.part is not None else None
        if asked is None:
            return self.disk.entries(fd)
        return nullcontext(_Asked(self.disk, name, fd) for name in asked)

    def count(self, clean: list[tuple[bytes, Entry]]) -> None:
        links = sum(1 for _, entry in clean if entry.kind is Kind.SYMLINK)
        self.out.counts.symlinks += links
        self.out.counts.files += len(clean) - links

    def take_dir(self, path: bytes, st: os.stat_result) -> bool:
        """Takes in a directory itself; False: it is not to be walked."""
        row = self.rows.get(path)
        was_dir = row is not None and row.entry.kind is Kind.DIR
        # On another disk than before it shows the mode of a mount point, or of what was mounted there: no change.
        if row is not None and (row.mode == st.st_mode or (was_dir and row.dev != st.st_dev)):
            entry = row.entry
            if not was_dir:  # checkout could not put the agreed file here: it counts as being here
                self.out.tree[path] = entry
                return False
        else:
            tags = row.entry.tags if row is not None and was_dir else ()
            entry = Entry(Kind.DIR, stat_.S_IMODE(st.st_mode), 0, 0, b"", b"", tags)
        if row is None or row.entry is not entry or row.ino != st.st_ino or row.dev != st.st_dev:
            self.out.put_rows[path] = row_of(entry, st, trusted=True)
        if path:
            self.out.tree[path] = entry
            self.out.counts.dirs += 1
        return True

    def leave(self, parent: bytes, path: bytes, why: str) -> None:
        """Leaves out what stands at `path`: silently when ignored, with a word otherwise."""
        if not why:
            return  # the workspace's own .metasync
        self.blocked.add(path)
        self.hollow.add(parent)
        if why is not IGNORED:
            self.out.skipped.append(Noted(path, why))
        elif path not in self.base and not split(path)[1].startswith(OWN_PREFIX):
            self.out.ignored.append(path)

    def nested(self, path: bytes) -> None:
        self.block(path)
        self.out.skipped.append(Noted(path, "a workspace of its own"))

    def block(self, path: bytes) -> None:
        """Takes a directory out again that can't be walked, so that the base speaks for it."""
        self.blocked.add(path)
        self.hollow.add(split(path)[0])
        self.out.tree.pop(path, None)
        self.out.put_rows.pop(path, None)
        self.out.counts.dirs -= 1

    # ---- stage 2: what the stats do not answer for

    def read(self) -> None:
        for path, is_link, seen in self.unread:
            parent = split(path)[0]
            try:
                if is_link:
                    if self.covers_directory(path):
                        continue
                    entry, st = self.read_link(path)
                    self.out.counts.symlinks += 1
                else:
                    entry, st = self.read_file(path, seen)
                    self.out.counts.files += 1
            except _Vanished:
                self.out.busy.append(path)
                self.blocked.add(path)
                self.hollow.add(parent)
            except OSError as e:
                self.out.unreadable.append(Noted(path, e.strerror or str(e)))
                self.blocked.add(path)
                self.hollow.add(parent)
            else:
                self.out.tree[path] = entry
                trusted = st.st_mtime_ns < self.stamp_ns and st.st_ctime_ns < self.stamp_ns
                row = row_of(entry, st, trusted=trusted)
                if row != self.rows.get(path):
                    self.out.put_rows[path] = row

    def read_rows(self) -> Iterator[tuple[bytes, Row]]:
        """Rows of what was read so far and had another one, or none."""
        rows = self.out.put_rows.items()
        return ((path, row) for path, row in rows if row.entry.kind is not Kind.DIR and row is not self.rows.get(path))

    def covers_directory(self, path: bytes) -> bool:
        """A symlink where the base has a directory with something in it: often data moved to another disk.

        Taking it in would delete all of that on every device, though it was neither listed nor seen to be absent.
        """
        was = self.base.get(path)
        if was is None or was.kind is not Kind.DIR or not any(other.startswith(path + b"/") for other in self.base):
            return False
        self.blocked.add(path)
        self.out.skipped.append(
            Noted(path, "a symlink in the place of a directory, whose files are kept (to drop them, push without it)")
        )
        return True

    def read_file(self, path: bytes, seen: os.stat_result | None) -> tuple[Entry, os.stat_result]:
        """Reads a file that the walk has `seen`: what was opened is that file, unchanged, if it has its stat then.

        If not, or if that is not known any more, it is looked at before it is read as well.
        """
        parent, name = split(path)
        for turn in range(READS_MAX):
            with _moving():
                above = self.work.dir(parent)
                fd = self.disk.open(name, READ_FLAGS, above)
            try:
                st = self.disk.fstat(fd) if turn or seen is None else seen
                if not stat_.S_ISREG(st.st_mode):
                    raise _Vanished
                got = self.ingest(fd, st)
                after = self.disk.fstat(fd)
            except OSError:
                if turn or seen is None:
                    raise
                continue  # it may be a directory by now
            finally:
                self.disk.close(fd)
            self.out.counts.files_read += 1
            self.out.counts.bytes_read += got.size
            with _moving():
                here = self.disk.lstat(name, above)
            if got.size == st.st_size and is_unchanged(st, after, ctime=True) and is_unchanged(st, here, ctime=True):
                return self.entry_of(path, st, got), st
        raise _Vanished

    def read_link(self, path: bytes) -> tuple[Entry, os.stat_result]:
        parent, name = split(path)
        for _ in range(READS_MAX):
            with _moving():
                above = self.work.dir(parent)
                st = self.disk.lstat(name, above)
                if not stat_.S_ISLNK(st.st_mode):
                    raise _Vanished
                target = self.disk.readlink(name, above)
                after = self.disk.lstat(name, above)
            if is_unchanged(st, after, ctime=True):
                row = self.rows.get(path)
                if row is not None and row.entry.kind is Kind.SYMLINK and row.entry.content == target:
                    mtime_ns = row.entry.mtime_ns if row.mtime_ns == st.st_mtime_ns else st.st_mtime_ns
                    return row.entry._replace(mtime_ns=mtime_ns), st
                return Entry(Kind.SYMLINK, 0, st.st_mtime_ns, len(target), target), st
        raise _Vanished

    def entry_of(self, path: bytes, st: os.stat_result, got: Content) -> Entry:
        """The entry of a file that was read: of its row's values those that the disk gives no reason to change."""
        row = self.rows.get(path)
        mode = stat_.S_IMODE(st.st_mode)
        if row is None or row.entry.kind is not Kind.FILE:
            return Entry(Kind.FILE, mode, st.st_mtime_ns, got.size, got.content, got.root)
        was = row.entry
        if row.mode == st.st_mode:
            mode = was.mode  # of a disk without modes (FAT) this is all there is
        if (was.size, was.content) != (got.size, got.content):
            return Entry(Kind.FILE, mode, st.st_mtime_ns, got.size, got.content, got.root, was.tags)
        mtime_ns = was.mtime_ns if row.mtime_ns == st.st_mtime_ns else st.st_mtime_ns
        return was._replace(mode=mode, mtime_ns=mtime_ns)

    # ---- stage 3: what is not here

    def miss(self) -> None:
        """Decides on all paths that rows or base know and the walk has not found."""
        out = self.out
        seen = Seen(out.tree, out.put_rows, self.listed, self.blocked)
        verdict = judge(self.work, self.rows, self.base, seen, self.rules, is_copy=self.is_copy())
        out.skipped += verdict.notes
        out.missing = verdict.missing
        out.delete_rows += verdict.forgotten + verdict.missing
        out.forgotten = verdict.forgotten
        for path in out.delete_rows:
            out.put_rows.pop(path, None)
        for path in verdict.kept:
            self.keep(path)
            if self.base[path].kind is not Kind.DIR and self.rules.ignores(path, False):
                out.held.append(path)
        out.deleted = [path for path in verdict.deleted if path not in out.tree]
        out.ignored.sort()
        out.warnings, out.rules = self.rules.warnings, self.rules.texts
        for directory, text in self.rules.remembered.items():  # of directories that can't be looked into now
            if directory not in self.listed and (directory in out.tree or self.is_blocked(directory)):
                out.rules.setdefault(directory, text)

    def is_blocked(self, path: bytes) -> bool:
        while path and path not in self.blocked:
            path = split(path)[0]
        return bool(path)

    def is_copy(self) -> bool:
        """Whether the folder is another one than the rows were made in: one copied with its `.metasync`, say."""
        seen = self.rows.get(b"")
        return seen is not None and seen.ino != self.work.root_stat.st_ino

    def keep(self, path: bytes) -> None:
        """Puts the base's entry into the tree, and the directories of the base above it."""
        tree, base = self.out.tree, self.base
        tree[path] = base[path]
        above = split(path)[0]
        while above and (entry := base.get(above)) is not None:
            here = tree.get(above)
            if here is not None and here.kind is Kind.DIR:
                return
            if here is not None:
                self.out.skipped.append(Noted(above, "stands in the place of a directory, some of which is not here"))
                self.out.put_rows.pop(above, None)
            tree[above] = entry
            above = split(above)[0]

    # ---- stage 4: directories that hold nothing of the workspace

    def empty(self) -> None:
        """Leaves out new directories in which there is nothing but what is not taken in.

        Else a directory that was removed elsewhere, and stays here for the ignored files in it, would come back.
        """
        if not any(path and path not in self.base for path in self.hollow):
            return
        tree = self.out.tree
        filled = Counter(split(path)[0] for path in tree)
        todo = sorted(self.hollow, reverse=True)
        while todo:
            path = todo.pop()
            if not path or path in self.base or filled[path] or path not in tree:
                continue
            del tree[path]
            self.out.put_rows.pop(path, None)
            if path in self.rows:
                self.out.delete_rows.append(path)
            self.out.counts.dirs -= 1
            parent = split(path)[0]
            filled[parent] -= 1
            todo.append(parent)


@contextmanager
def _moving() -> Iterator[None]:
    """Tells a name that changes at this moment from one that can't be read."""
    try:
        yield
    except OSError as e:
        if e.errno in _MOVING:
            raise _Vanished from e
        raise
