"""The scan: what stands in the working tree now, as a tree of entries (architecture.md, D8).

A walk (`merge_walk`) has looked at every name once, without opening files. A file with the stat of its *trusted* row is
clean and keeps the row's entry. Stage 1 reads the others. A file that changes while it is read is read again, at most
`READS_MAX` times; then it is busy and keeps the base's entry. Of one that only grows what stood in it is taken.

A row is trusted if both its times lie before the scan's stamp, taken from the file system's clock before anything is
read. A later write has a later time, so an equal stat proves equal bytes (git's racy-clean rule).

Stage 2 judges what was not found (`deletions`). Stage 3 leaves out new directories that hold nothing of the workspace.
"""

from __future__ import annotations

import os
import stat as stat_
from collections import Counter
from collections.abc import Callable, Container, Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from metasync.local.spill import Large
from metasync.local.state import State
from metasync.local.state_keys import JOURNAL_KEY, MISSING, NO_ROOM, UNPLACED, Unplaced
from metasync.objects.model import Entry, Kind, split
from metasync.worktree.deletions import judge
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.ignore_files import store_texts
from metasync.worktree.index import (
    Row,
    has_grown,
    is_unchanged,
    mode_now,
    mtime_of,
    on_device,
    pack_entry,
    pack_row,
    pages,
    row_of,
    store_rows,
    unpack_entry,
    unpack_row,
)
from metasync.worktree.merge_walk import MOVING, Noted, Walk
from metasync.worktree.overlay import Tree
from metasync.worktree.pending_reads import HELD_MAX

READS_MAX = 3  # a file that is written to all the time is left to the next push after so many readings
WAITS: Final = "your change of it waits: the newer version that is agreed has no room on this disk; free some space"


class Content(NamedTuple):
    """A file that was read: its bytes' number and keyed hash, and the file object's id (see `Entry.root`)."""

    size: int
    content: bytes
    root: bytes


Ingest: TypeAlias = Callable[[int, os.stat_result, Callable[[], Entry | None]], Content]
"""Reads a whole file from an open descriptor; gets a function that gives the base's entry there. May be called again
for the same file; may raise OSError."""


class Reading(Protocol):
    """Hears of the reading of a scan."""

    def begins(self, size_bytes: int, files: int) -> None:
        """Hears how much will be read, of how many files and symlinks."""

    def broken_off(self, rows: Iterable[tuple[bytes, Row]]) -> None:
        """Hears that an exception ends it. The rows of changed files that were read are true of the disk."""


@dataclass(slots=True)
class Scan:
    """The outcome of `scan`.

    tree         the local tree, without the root, on top of the agreed one; unknown paths have the base's entries
    put_rows     rows to store: new, changed, or trusted from now on
    delete_rows  rows to drop: paths neither here nor in the base. A deleted path keeps its row until the base lets go
                 of it, so that a push after a failed one still knows of the deletion
    forgotten    paths of `delete_rows` that are gone
    deleted      paths of the base that were deleted here
    unreadable   files and directories that can't be read: they keep the base's entry (and all below)
    busy         files that changed while they were read
    skipped      paths that are not taken in, or kept though they are not here
    missing      paths of the base that are not here, though nobody deleted them: kept, and to be brought again
    ignored      ignored paths that are not in the base; of a directory the directory alone
    ignores      tells whether a file or symlink is ignored now
    rules        the rule files, by directory, for the next scan
    renumbered   see `Walk`
    warnings     sentences on the rule files
    """

    tree: Tree = field(default_factory=lambda: Tree(Tree({})))
    put_rows: MutableMapping[bytes, Row] = field(default_factory=dict)
    delete_rows: list[bytes] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    unreadable: list[Noted] = field(default_factory=list)
    busy: list[bytes] = field(default_factory=list)
    skipped: list[Noted] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    ignored: list[bytes] = field(default_factory=list)
    ignores: Callable[[bytes], bool] = lambda _: False
    rules: dict[bytes, bytes] = field(default_factory=dict)
    renumbered: tuple[int, int] | None = None
    warnings: list[str] = field(default_factory=list)
    files_read: int = 0

    @property
    def base(self) -> Tree:
        """The agreed tree."""
        assert isinstance(self.tree.base, Tree)
        return self.tree.base

    def held(self) -> list[bytes]:
        """Files and symlinks of the base that are ignored now, ascending: they keep the base's entry."""
        return sorted(p for p, e in self.base.items() if e.kind is not Kind.DIR and self.ignores(p))


def scan(found: Walk, ingest: Ingest, reading: Reading | None = None, growing: Container[bytes] = frozenset()) -> Scan:
    """Reads what a walk found new or changed, and judges what it did not find. `WorkspaceError`: the root is gone.

    Nothing is written to the tree, and no row: the caller stores the scan (`store_scan`), in the transaction that
    stages what was ingested, or not at all. `ingest` keeps contents or only hashes them (`status`). `growing`: files
    that count as busy and are not read.
    """
    found.work.forget()
    if found.is_settled:  # rows of what differs may be written before the base is asked for the last time
        found.base.put.update((path, unpack_row(row).entry) for path, row in found.rows.items() if path)
    work = _Scanner(found, ingest, found.work.clock_ns(), growing)
    unread = found.unread
    if reading is not None:
        reading.begins(unread.size_bytes, len(unread))
    if len(unread) > HELD_MAX:
        found.tree.put = Large(pack_entry, unpack_entry, found.tree.put.items())
        found.put_rows = work.out.put_rows = Large(pack_row, unpack_row, found.put_rows.items())
    try:
        work.read()
    except BaseException:
        if reading is not None:
            reading.broken_off((p, row) for p, row in found.put_rows.items() if row.entry.kind is not Kind.DIR)
        raise
    work.miss()
    work.empty()
    if found.is_settled:
        found.base.gone.update(found.tree.put)  # but for what was put there
    return work.out


class _Vanished(Exception):  # noqa: N818  a signal, not an error
    """What was listed is something else now."""


class _Scanner:
    """The state of one scan. Its stages run in order: read, miss, empty."""

    def __init__(self, found: Walk, ingest: Ingest, stamp_ns: int, growing: Container[bytes]) -> None:
        self.found = found
        self.work = found.work
        self.disk = found.work.disk
        self.base = found.base
        self.tree = found.tree
        self.ingest = ingest
        self.stamp_ns = stamp_ns
        self.growing = growing
        self.waiting = {path for path, why in found.db.unplaced().items() if why.startswith(NO_ROOM)}
        self.out = Scan(
            found.tree,
            found.put_rows,
            unreadable=found.unreadable,
            busy=found.busy,
            skipped=found.skipped,
            ignored=found.ignored,
            ignores=lambda path: found.rules.ignores(path, False),
            renumbered=found.renumbered,
            warnings=found.rules.warnings,
        )

    # ---- stage 1: what the stats do not answer for

    def read(self) -> None:
        out = self.out
        for path, is_link, seen in self.found.unread:
            if path in self.waiting and path in self.base:
                out.skipped.append(Noted(path, WAITS))
                self.block(path)
                continue
            if path in self.growing:
                out.busy.append(path)
                self.block(path)
                continue
            row = self.found.row(path) if path in self.found.rows else None
            try:
                if is_link and self.covers_directory(path):
                    continue
                entry, st = self.read_link(path, row) if is_link else self.read_file(path, row, seen)
            except _Vanished:
                out.busy.append(path)
                self.block(path)
            except OSError as e:
                out.unreadable.append(Noted(path, e.strerror or str(e)))
                self.block(path)
            else:
                self.tree.put[path] = entry
                trusted = st.st_mtime_ns < self.stamp_ns and st.st_ctime_ns < self.stamp_ns
                now = row_of(entry, st, trusted=trusted)
                if now != row:
                    out.put_rows[path] = now

    def block(self, path: bytes) -> None:
        self.found.blocked[path] = self.found.hollow[split(path)[0]] = None

    def covers_directory(self, path: bytes) -> bool:
        """Whether a symlink stands where the base has a directory that is not empty: often data on another disk.

        Taking it in would delete the directory's files on every device, though nobody saw that they are absent.
        """
        was, inside = self.base.get(path), path + b"/"
        if was is None or was.kind is not Kind.DIR:
            return False
        if not any(other.startswith(inside) and other in self.base for other in self.found.gone):
            return False
        self.found.blocked[path] = None
        self.out.skipped.append(
            Noted(path, "a symlink in the place of a directory, whose files are kept (to drop them, push without it)")
        )
        return True

    def read_file(self, path: bytes, row: Row | None, seen: os.stat_result | None) -> tuple[Entry, os.stat_result]:
        """Reads a file that the walk has `seen`: an equal stat after the reading proves that nobody wrote to it.

        Without that stat, or after a change, it is looked at before the reading as well.
        """
        parent, name = split(path)
        grown: tuple[os.stat_result, Content] | None = None
        for turn in range(READS_MAX):
            with _moving:
                above = self.work.dir(parent)
                fd = self.disk.open(name, READ_FLAGS, above)
            try:
                st = self.disk.fstat(fd) if turn or seen is None else seen
                if not stat_.S_ISREG(st.st_mode):
                    raise _Vanished
                got = self.ingest(fd, st, partial(self.base.get, path))
                after = self.disk.fstat(fd)
            except OSError:
                if turn or seen is None:
                    raise
                continue  # it may be a directory by now
            finally:
                self.disk.close(fd)
            self.out.files_read += 1
            with _moving:
                here = self.disk.lstat(name, above)
            if got.size == st.st_size and is_unchanged(st, after, ctime=True) and is_unchanged(st, here, ctime=True):
                return _entry_of(row, st, got), st
            is_longer = got.size == st.st_size > 0 and has_grown(st, after) and has_grown(st, here)
            grown = (st, got) if is_longer else None
        if grown is not None and self.is_still(path, *grown):
            return _entry_of(row, *grown), grown[0]
        raise _Vanished

    def is_still(self, path: bytes, st: os.stat_result, took: Content) -> bool:
        """Whether a file that grew while it was read begins with what was taken: then it was that in between."""
        parent, name = split(path)
        with _moving:
            above = self.work.dir(parent)
            with self.disk.opened(name, READ_FLAGS, above) as fd:
                self.out.files_read += 1
                now = self.disk.fstat(fd)
                return has_grown(st, now) and self.ingest(fd, st, partial(self.base.get, path)) == took

    def read_link(self, path: bytes, row: Row | None) -> tuple[Entry, os.stat_result]:
        parent, name = split(path)
        for _ in range(READS_MAX):
            with _moving:
                above = self.work.dir(parent)
                st = self.disk.lstat(name, above)
                if not stat_.S_ISLNK(st.st_mode):
                    raise _Vanished
                target = self.disk.readlink(name, above)
                after = self.disk.lstat(name, above)
            if is_unchanged(st, after, ctime=True):
                if row is not None and row.entry.kind is Kind.SYMLINK and row.entry.content == target:
                    mtime_ns = row.entry.mtime_ns if row.mtime_ns == mtime_of(st) else mtime_of(st)
                    return row.entry._replace(mtime_ns=mtime_ns), st
                return Entry(Kind.SYMLINK, 0, mtime_of(st), len(target), target), st
        raise _Vanished

    # ---- stage 2: what is not here

    def miss(self) -> None:
        """Decides on all paths that rows or base know and the walk has not found."""
        out, tree, found = self.out, self.tree, self.found
        verdict = judge(found, self.waiting)
        out.skipped += verdict.notes
        out.missing = verdict.missing
        out.delete_rows += verdict.forgotten + verdict.missing
        out.forgotten = verdict.forgotten
        tree.gone.update(verdict.deleted)
        for path in verdict.kept:
            self.keep(path)
        out.deleted = [path for path in verdict.deleted if path in tree.gone]
        out.rules = found.rule_texts()

    def keep(self, path: bytes) -> None:
        """Leaves the directories above a kept path in the tree, as the base has them."""
        tree, base = self.tree, self.base
        above = split(path)[0]
        while above and above in base:
            here = tree.get(above)
            if here is not None and here.kind is Kind.DIR:
                return
            if here is not None:
                self.out.skipped.append(Noted(above, "stands in the place of a directory, some of which is not here"))
                self.out.put_rows.pop(above, None)
            tree.revert(above)
            above = split(above)[0]

    # ---- stage 3: directories that hold nothing of the workspace

    def empty(self) -> None:
        """Leaves out new directories that hold nothing of the workspace.

        Else a directory that was removed elsewhere, and stays here for its ignored files, would come back.
        """
        todo = sorted((path for path in self.found.hollow if path and path not in self.base), reverse=True)
        if not todo:
            return
        tree = self.tree
        filled = Counter(split(path)[0] for path in tree.put)  # nothing of the base is in a new directory
        while todo:
            path = todo.pop()
            if not path or path in self.base or filled[path] or path not in tree:
                continue
            del tree[path]
            self.out.put_rows.pop(path, None)
            if path in self.found.rows:
                self.out.delete_rows.append(path)
            parent = split(path)[0]
            filled[parent] -= 1
            todo.append(parent)


def _entry_of(row: Row | None, st: os.stat_result, got: Content) -> Entry:
    """The entry of a file that was read. Values of its row stay unless the disk shows a change."""
    if row is None or row.entry.kind is not Kind.FILE:
        return Entry(Kind.FILE, stat_.S_IMODE(st.st_mode), mtime_of(st), got.size, got.content, got.root)
    was = row.entry
    mode = mode_now(row, st)
    if (was.size, was.content) != (got.size, got.content):
        return Entry(Kind.FILE, mode, mtime_of(st), got.size, got.content, got.root, was.tags)
    mtime_ns = was.mtime_ns if row.mtime_ns == mtime_of(st) else mtime_of(st)
    return was._replace(mode=mode, mtime_ns=mtime_ns)


class _Moving:
    """Raises `_Vanished` for a name that changes at this moment, other errors as they are. A generator costs more."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.errno in MOVING:
            raise _Vanished from error


_moving = _Moving()


def store_scan(db: State, seen: Scan) -> None:
    """Stores what a scan saw of the disk.

    After a push with an unknown end, rows of paths that are gone stay: it may have been agreed with these paths, and
    without a row nobody deleted them.
    """
    stay = set(seen.forgotten) if db.has(JOURNAL_KEY) else set()
    with db.transaction():
        if seen.renumbered is not None:
            was, now = seen.renumbered
            for page in chain([[(b"", db.packed_row(b"") or b"")]], pages(db)):
                db.put_packed_rows((path, on_device(data, was, now)) for path, data in page)
        store_rows(db, seen.put_rows.items())
        db.delete_rows([p for p in seen.delete_rows if p not in stay])
        store_texts(db, seen.rules)
        unplaced = db.unplaced()
        came_back = [p for p, why in unplaced.items() if why == MISSING and p in seen.put_rows]
        db.delete_records(UNPLACED, came_back)  # by the user's hand: it had no row
        db.put_records(UNPLACED, (Unplaced(path, MISSING) for path in seen.missing if path not in unplaced))
