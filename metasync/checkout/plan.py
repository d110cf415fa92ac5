"""The plan of a checkout, its bytes in the journal, and what came of it."""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from metasync.codec import Reader, ascending, bytes16, bytes32, i64, text16, u8, u32, u64
from metasync.errors import FormatError, WorkspaceError
from metasync.local.state import State
from metasync.local.state_keys import Conflict
from metasync.merge.copies import UNNAMED, Origin
from metasync.objects.model import Entry, Kind, split
from metasync.worktree.case import Presence
from metasync.worktree.index import Row, children, pack_entry, pack_row, unpack_row
from metasync.worktree.merge_walk import Noted
from metasync.worktree.names import clashes, key, problem, shown
from metasync.worktree.tree import WorkTree, failed


def unfit(work: WorkTree, db: State, changes: tuple[Change, ...]) -> dict[int, str]:
    """The changes that this disk can't take, by number, with the reason; before anything is downloaded.

    Only paths that are not here yet are judged, and links on a disk without links.
    """
    rules = work.rules
    out: dict[int, str] = {}
    fresh: dict[bytes, list[bytes]] = {}
    number: dict[bytes, int] = {}
    for i, (path, new, expected) in enumerate(changes):
        if new is None:
            continue
        if new.kind is Kind.SYMLINK and not rules.symlinks:
            out[i] = "this file system has no symlinks"
        elif new.kind is Kind.SYMLINK and not _holds(work, new.content):
            out[i] = "the target of the symlink is longer than this file system takes"
        elif expected is None:
            if why := problem(path, rules):
                out[i] = why
            elif rules.has_twins:
                number[path] = i
                parent, name = split(path)
                fresh.setdefault(parent, []).append(name)
    if fresh:
        freed = {change.path for change in changes if change.new is None}
        made = {change.path for change in changes if _is_dir(change) and change.expected is None}
        for path, winner in _shadowed(work, db, fresh, freed, made).items():
            out[number[path]] = f"this file system takes its name for {shown(winner)}, which is here"
    return {**_below(work, db, changes, out), **out}


def _holds(work: WorkTree, target: bytes) -> bool:
    """Whether this disk takes a symlink to this target: one of a thousand bytes every one does, others are tried."""
    if len(target) <= TARGET_BYTES_SURE:
        return True
    fd = work.state_dir(b"tmp")
    with suppress(FileNotFoundError):
        work.disk.unlink(LINK_TRIED, fd)
    try:
        work.disk.symlink(target, LINK_TRIED, fd)
    except OSError as e:
        if e.errno not in _NO_NAME:
            raise failed(work, LINK_TRIED, e) from e
        return False
    work.disk.unlink(LINK_TRIED, fd)
    return True


def _shadowed(
    work: WorkTree, db: State, fresh: Mapping[bytes, list[bytes]], freed: set[bytes], made: set[bytes]
) -> dict[bytes, bytes]:
    """The new paths whose place a twin has, with the twin's name.

    `freed`: paths that this checkout empties. `made`: directories it makes, by whose names others may be reached now.
    """
    rules = work.rules
    out: dict[bytes, bytes] = {}
    for parent, names in fresh.items():
        prefix = parent + b"/" if parent else b""
        here: list[bytes] = []
        if parent not in made:
            with suppress(OSError):  # not there: to be made again
                here = work.disk.names(work.dir(parent))
        wanted = {key(name, rules) for name in names}
        near = [name for name in here if key(name, rules) in wanted]
        held = set()
        if near:
            known = {path[len(prefix) :] for path, _ in children(db, parent)}
            rowed = {key(n, rules): n for n in sorted(known, key=lambda n: (prefix + n not in freed, n))}
            for name in near:
                owner = name if name in known else rowed.get(key(name, rules), name)
                # A file of nobody's under exactly a new name is set aside for it: that one has the place of its twins.
                if prefix + owner not in freed:
                    held.add(owner)
        for name, winner in clashes(names, rules, held).items():
            out[prefix + name] = winner
    return out


def _below(work: WorkTree, db: State, changes: tuple[Change, ...], unfit: Mapping[int, str]) -> dict[int, str]:
    """The changes inside directories that are not here: on a disk with twins they would land in another one."""
    missing = {changes[i].path for i in unfit if _is_dir(changes[i])}
    made = {change.path for change in changes if _is_dir(change)}
    presence = Presence(work, db)
    # The name of a directory that an earlier checkout could not bring leads to its twin.
    absent = db.unplaced().keys() - made if work.rules.has_twins else frozenset[bytes]()
    out: dict[int, str] = {}
    for i, change in enumerate(changes):
        parent = split(change.path)[0]
        is_away = parent in missing or parent in absent
        if change.new is not None and (is_away or (parent not in made and presence.is_shadowed(parent))):
            out[i] = "its directory is not here"
            if _is_dir(change):
                missing.add(change.path)
    return out


def _is_dir(change: Change) -> bool:
    return change.new is not None and change.new.kind is Kind.DIR


TARGET_BYTES_SURE = 1000  # XFS takes 1,024 bytes, most others of Linux 4,095
LINK_TRIED = b"link"
CHANGED_MEANWHILE = "changed here while others' changes came in"

# One path cannot be had on this disk; the others go on. What is not here (ENOSPC, EIO, EROFS) stops the checkout.
_DENIED = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.ETXTBSY}
_NO_NAME = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EOVERFLOW}
_OTHERWISE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY}
LEFT = frozenset(_DENIED | _NO_NAME | _OTHERWISE)

_JOURNAL_FORMAT = 3
_CHANGE = struct.Struct(">I")  # what `bytes32` puts before its bytes
_PATH_BYTES_MAX = 1 << 24  # thousands of names, one in the other
_ROW_BYTES_MAX = 1 << 24
_VALUE_BYTES_MAX = (1 << 32) - 1


class Change(NamedTuple):
    """The `new` entry of a path (None: it goes), and the row `expected` there by the scan (None: nothing)."""

    path: bytes
    new: Entry | None
    expected: Row | None

    @property
    def is_touch(self) -> bool:
        """Whether only mode or mtime change: nothing is delivered, and the inode stays."""
        new, was = self.new, self.expected.entry if self.expected is not None else None
        if new is None or was is None or new.kind is Kind.DIR:
            return False
        return (new.kind, new.size, new.content) == (was.kind, was.size, was.content)

    @property
    def is_staged(self) -> bool:
        """Whether a file or symlink is made for it in `.metasync/tmp/`, if its path may be made."""
        new = self.new
        return new is not None and new.kind is not Kind.DIR and not self.is_touch


def replaceable(row: Row | None, ours: Entry | None, new: Entry | None) -> Row | None:
    """The row of what a checkout may replace at a path: its content is that of the scan's tree, or the one that comes.

    Where the scan kept the base's entry (ignored paths, busy files), the row may be of bytes that no version holds.
    """
    known = [(e.kind, e.size, e.content) for e in (ours, new) if e is not None]
    return row if row is not None and (row.entry.kind, row.entry.size, row.entry.content) in known else None


def not_as_agreed(change: Change) -> Change:
    """The change at a path whose row has an agreed entry that was never placed: something else is there."""
    if change.expected is None:
        return change
    unknown = change.expected.entry._replace(content=b"", root=b"")
    return change._replace(expected=change.expected._replace(entry=unknown))


@dataclass(frozen=True, slots=True)
class Plan:
    """A checkout: `changes` ascending by path, each path once.

    Change i is staged at `.metasync/tmp/<i>`; the file it replaces goes to `.metasync/replaced/<replaced_from + i>`.
    `commit` is set in the local state when all is done. `root`: device and inode of the root when it was made. `own`:
    the changes are this device's (a restore), for the next push; the base still has what goes. `reason`: of conflict
    copies that are made on the way. `unfit`: changes that this disk can't take, with the reason; they are not staged.
    `origin`: whose changes those copies are, and when they were made.
    """

    changes: tuple[Change, ...]
    commit: Mapping[str, bytes | None]
    version: int
    replaced_from: int
    root: tuple[int, int]
    own: bool = False
    reason: str = CHANGED_MEANWHILE
    unfit: Mapping[int, str] = field(default_factory=dict)
    origin: Origin = UNNAMED

    def on_device(self, device: int, inode: int) -> Plan:
        """The same plan after the system has numbered its devices anew (a reboot)."""
        was = self.root[0]
        if was == device or self.root[1] != inode:
            return self
        changes = tuple(
            change._replace(expected=change.expected._replace(dev=device))
            if change.expected is not None and change.expected.dev == was
            else change
            for change in self.changes
        )
        return replace(self, changes=changes, root=(device, inode))


@dataclass(slots=True)
class Applied:
    """What a checkout did. Rows, conflicts and unplaced paths are in the local state already.

    written    files, symlinks and directories made, replaced or touched; removed: those deleted
    conflicts  files of the user's that were in the way, or came after the scan: now at the copies' names
    kept       deletions that were not carried out: the file was changed since, the directory is not empty
    unplaced   agreed entries that this disk could not take; `State.unplaced` keeps them for another try
    without_room  number and bytes of those of them that wait for room
    """

    written: int = 0
    removed: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    kept: list[Noted] = field(default_factory=list)
    unplaced: list[Noted] = field(default_factory=list)
    without_room: tuple[int, int] = (0, 0)


def encode_plan(plan: Plan) -> bytes:
    """The journal's bytes; `decode_plan` is the inverse."""
    out = [u8(_JOURNAL_FORMAT), u64(plan.version), u64(plan.replaced_from), u64(plan.root[0]), u64(plan.root[1])]
    out.append(u32(len(plan.commit)))
    for name, value in plan.commit.items():
        out += [text16(name), u8(value is not None), bytes32(value or b"")]
    out.append(u32(len(plan.changes)))
    for path, new, expected in plan.changes:
        row = pack_entry(new) if new is not None else b""
        seen = pack_row(expected) if expected is not None else b""
        out.append(_CHANGE.pack(len(path)) + path + _CHANGE.pack(len(row)) + row + _CHANGE.pack(len(seen)) + seen)
    out += [u8(plan.own), text16(plan.reason), u32(len(plan.unfit))]
    out += [bytes16(plan.origin.label), bytes16(plan.origin.device), i64(plan.origin.time_ns)]
    for i, reason in plan.unfit.items():
        out += [u32(i), bytes32(reason.encode("utf-8", "surrogatepass"))]
    return b"".join(out)


def decode_plan(data: bytes) -> Plan:
    """The plan in the journal. `WorkspaceError`: the journal is damaged, or a newer MetaSync's."""
    try:
        r = Reader(data, "checkout journal")
        if r.u8() != _JOURNAL_FORMAT:
            raise r.fail("unknown format")
        version, replaced_from, root = r.u64(), r.u64(), (r.u64(), r.u64())
        commit: dict[str, bytes | None] = {}
        for _ in range(r.count(r.u32(), 7)):
            key, there, value = r.text16(), r.u8(), r.bytes32(_VALUE_BYTES_MAX)
            if key in commit or there > 1 or (value and not there):
                raise r.fail("a value twice, or one that is not there")
            commit[key] = value if there else None
        changes = []
        for _ in range(r.count(r.u32(), 12)):
            path, new, expected = (r.bytes32(most) for most in (_PATH_BYTES_MAX, _ROW_BYTES_MAX, _ROW_BYTES_MAX))
            row = unpack_row(new) if new else None
            if row is not None and row != _bare(row.entry):
                raise r.fail("a stat of what is not there yet")
            changes.append(Change(path, row.entry if row else None, unpack_row(expected) if expected else None))
        own, reason = r.u8(), r.text16()
        if own > 1:
            raise r.fail(f"flag {own}")
        unfit_count = r.u32()
        origin = Origin(r.bytes16(), r.bytes16(), r.i64())
        unfit: dict[int, str] = {}
        for _ in range(r.count(unfit_count, 8)):
            i, why = r.u32(), r.bytes32(_PATH_BYTES_MAX)
            if i in unfit or i >= len(changes):
                raise r.fail("a reason twice, or for no change")
            try:
                unfit[i] = why.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as e:
                raise r.fail("a reason is not text") from e
        r.end()
        if not ascending([change.path for change in changes]):
            raise r.fail("paths out of order")
    except FormatError as e:
        raise WorkspaceError(
            f"The journal of an unfinished checkout can't be read: {e.message}.",
            next_step="Use the version of metasync that wrote it. Or save what .metasync/tmp holds, it may be yours; "
            "move .metasync/state.db away, which is rebuilt; run again.",
        ) from e
    return Plan(tuple(changes), commit, version, replaced_from, root, own == 1, reason, unfit, origin)


def is_of_others(journal: bytes) -> bool:
    """Whether an interrupted checkout was to bring others' changes, which the next one brings too."""
    name = hashlib.sha256(journal).digest()
    found = _judged.get(name)
    if found is None:
        try:
            found = not decode_plan(journal).own
        except WorkspaceError:  # another version's, say: then nobody can tell what it staged
            found = False
        _judged.clear()
        _judged[name] = found
    return found


_judged: Final[
    dict[bytes, bool]
] = {}  # the last journal, by its hash: each turn of a pull that gives way asks about it


def _bare(entry: Entry) -> Row:
    return Row(entry, 0, 0, 0, 0, 0, 0, False)
