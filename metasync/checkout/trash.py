"""What checkouts replaced: kept in `.metasync/replaced/` until a decided version holds it (architecture.md, D8).

An editor that had a file open still writes to the old inode, which lies here now. So a file is looked at only after ten
quiet minutes, and its content is then read, never taken from a record.
"""

from __future__ import annotations

import errno
import os
import stat as stat_
from collections.abc import Callable
from dataclasses import dataclass, field

from metasync.local.state import State
from metasync.local.state_keys import CONFLICTS, CURSOR_KEY, REPLACED, REPLACED_KEY, Conflict, ReplacedFile
from metasync.merge.copies import UNNAMED, Origin, conflict_name
from metasync.objects.model import split
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.index import mtime_of
from metasync.worktree.tree import WorkTree

QUIET_NS = 600 * 10**9  # an editor may write through a descriptor it opened before; ten minutes after the last write
SETTLE_FILES_MAX = 256  # per call: a few milliseconds for small files
SETTLE_BYTES_MAX = 1 << 28  # hashed per call: a fifth of a second; one file may be bigger
COPIES_MAX = 10_000  # names tried for a conflict copy: more copies of one file than anyone can look through


def next_free(tree: WorkTree, db: State) -> int:
    """The next free number among the replaced files.

    A local state that was made anew does not know it. What lies there since before has no record, and stays.
    """
    first = db.get(REPLACED_KEY)
    if first is not None:
        return first
    names = tree.disk.names(tree.state_dir(b"replaced"))
    return max((int(name) for name in names if name.isdigit()), default=-1) + 1


def move_aside(tree: WorkTree, db: State, name: bytes, fd: int, conflict: Conflict) -> bool:
    """Renames the file `name` in `fd` to a conflict's copy, and records it; False: that name is taken.

    The record comes first, because a killed process can't write it later; one without its copy is no conflict.
    """
    parent, copy_name = split(conflict.copy)
    above = tree.dir(parent)
    if tree.disk.look(copy_name, above) is not None:
        return False
    db.put_records(CONFLICTS, [conflict])
    try:
        tree.disk.rename_new(name, fd, copy_name, above)
    except OSError as e:
        db.delete_records(CONFLICTS, [conflict.copy])
        if e.errno != errno.EEXIST:
            raise
        return False
    return True


def late_conflict(path: bytes, copy: bytes, reason: str, version: int, origin: Origin) -> Conflict:
    """A conflict of what was written here with what a checkout brought. `version`: that both stand on."""
    return Conflict(
        path, copy, reason, version,
        copy_device=origin.device, copy_version=version, copy_time_ns=origin.time_ns,
    )  # fmt: skip


def settle(
    tree: WorkTree,
    db: State,
    now_ns: int,
    known: Callable[[bytes, int, bytes], bool],
    hash_file: Callable[[int], bytes],
    version: int = 0,
    origin: Origin = UNNAMED,
    keep_ns: int = 0,
) -> list[Conflict]:
    """Drops, brings back or keeps some of the replaced files, each after ten quiet minutes; -> new conflicts.

    `now_ns`: the file system's own clock (`WorkTree.clock_ns`). `hash_file(fd)` gives the keyed hash of a content;
    `known(content, size, path)` whether a decided version holds it (the content of a symlink is its target). A known
    content is dropped. An unknown one that was written late comes back as a conflict copy, on record. Any other stays.
    `origin`: see `Plan`. `keep_ns`: a known content stays for so long, too. Work per call is bounded; the next call
    goes on where this one ended.
    """
    records = db.records(REPLACED)
    if not records:
        return []
    tree.forget()
    cursor = db.get(CURSOR_KEY) or 0
    ordered = [r for r in records if r.n >= cursor] + [r for r in records if r.n < cursor]
    work = _Settling(tree, db, now_ns, known, hash_file, version, origin, keep_ns)
    for record in ordered[:SETTLE_FILES_MAX]:
        if work.bytes_hashed >= SETTLE_BYTES_MAX:
            break
        cursor = record.n + 1
        work.look(record)
    gone = set(work.gone)
    with db.transaction():
        db.delete_records(REPLACED, gone)
        db.put_records(REPLACED, (record for record in work.hashed if record.n not in gone))
        if len(ordered) > SETTLE_FILES_MAX or work.bytes_hashed >= SETTLE_BYTES_MAX:
            db.set(CURSOR_KEY, cursor)
    return work.conflicts


@dataclass
class _Settling:
    tree: WorkTree
    db: State
    now_ns: int
    known: Callable[[bytes, int, bytes], bool]
    hash_file: Callable[[int], bytes]
    version: int
    origin: Origin
    keep_ns: int
    bytes_hashed: int = 0
    gone: list[int] = field(default_factory=list)
    hashed: list[ReplacedFile] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = self.tree.disk
        self.directory = self.tree.state_dir(b"replaced")

    def look(self, record: ReplacedFile) -> None:
        """Decides on one replaced file; one that can't be read stays, for another time."""
        name = b"%d" % record.n
        try:
            st = self.disk.lstat(name, self.directory)
        except FileNotFoundError:
            self.gone.append(record.n)  # a call that was killed after the file went
            return
        if max(st.st_mtime_ns, st.st_ctime_ns) > self.now_ns - QUIET_NS:
            return
        content = self.content(record, name, st)
        if content is None:
            return
        if self.known(content, st.st_size, record.path):
            if max(st.st_mtime_ns, st.st_ctime_ns) <= self.now_ns - self.keep_ns:
                self.disk.unlink(name, self.directory)
                self.gone.append(record.n)
        elif content != record.content:
            self.bring_back(record, name)

    def content(self, record: ReplacedFile, name: bytes, st: os.stat_result) -> bytes | None:
        """What the file holds now; read only if it was not since its last change. None: it can't be told."""
        if stat_.S_ISLNK(st.st_mode):
            return self.disk.readlink(name, self.directory)
        if record.hashed and (record.hashed_mtime_ns, record.hashed_ctime_ns) == (mtime_of(st), st.st_ctime_ns):
            return record.hashed
        try:
            with self.disk.opened(name, READ_FLAGS, self.directory) as fd:
                content = self.hash_file(fd)
                after = self.disk.fstat(fd)
        except OSError:
            return None  # a bad sector: nothing can be told, so nothing is dropped
        self.bytes_hashed += st.st_size
        if (after.st_mtime_ns, after.st_ctime_ns, after.st_size) != (st.st_mtime_ns, st.st_ctime_ns, st.st_size):
            return None  # someone writes: not quiet after all
        self.hashed.append(
            record._replace(hashed=content, hashed_mtime_ns=mtime_of(st), hashed_ctime_ns=st.st_ctime_ns)
        )
        return content

    def bring_back(self, record: ReplacedFile, name: bytes) -> None:
        """Gives a file that was written to late a name in the tree: beside where it stood, or in the next dir up."""
        parent, last = split(record.path)
        while True:
            try:
                self.tree.dir(parent)
                break
            except OSError as e:
                if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) or not parent:
                    return
                parent = split(parent)[0]
        place = parent + b"/" + last if parent else last
        for n in range(1, COPIES_MAX):
            copy = conflict_name(place, self.origin.label, n)
            conflict = late_conflict(place, copy, "written to after it was replaced", self.version, self.origin)
            try:
                if not move_aside(self.tree, self.db, name, self.directory, conflict):
                    continue
            except OSError:
                return  # it stays here, where it is safe
            self.conflicts.append(conflict)
            self.gone.append(record.n)
            return
