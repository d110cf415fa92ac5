"""Walks the folder beside the index: finds what is new, changed or gone by stats alone, and reads no file.

The rows of the index and the names of the folder come in the order of paths as bytes, and meet like the halves of a
merge (git's status does this). A name with the stat of its trusted row is passed by. The walk holds a page of rows and
the names of the directories on its way. In that order "a-b" comes after "a" and before "a/x", for "-" is less than "/".
So a directory is entered when the walk comes to its name with a slash behind it.

If the rows are the agreed tree (`is_index_of`), nothing else is compared. If not, the agreed tree is merged into them:
a row with another entry than the agreed one gets a zero byte in front, and an agreed path without a row has that byte
alone. Neither passes for clean.

A walk by `hints` goes through the directories that they name, and on the way to them. It jumps over the rows of others.

Rule files and spellings are filters on the names of a directory. Rules are asked about directories and about names that
differ from their rows, so a folder with rules costs what one without costs.
"""

from __future__ import annotations

import errno
import os
import stat as stat_
from bisect import bisect_left
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from metasync.local.state import State
from metasync.local.state_keys import TREE_KEY
from metasync.objects.model import DEPTH_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, Entry, Kind, split
from metasync.worktree.case import respelled
from metasync.worktree.hints import ALL, Hints, Route, Way
from metasync.worktree.ignore_files import RuleFiles, load_texts
from metasync.worktree.index import (
    AFTER_ALL,
    Row,
    RowsFrom,
    is_packed_dir,
    is_packed_file,
    mode_now,
    on_device,
    pages,
    row_of,
    unpack_row,
)
from metasync.worktree.names import (
    HAS_RULES,
    IGNORE_NAME,
    IGNORED,
    NESTED,
    ODD_FIRST,
    OWN_PREFIX,
    STATE_NAME,
    why_not_taken,
)
from metasync.worktree.overlay import IndexEntries, Tree
from metasync.worktree.pending_reads import Unread, UnreadHere
from metasync.worktree.tree import WorkTree, holds_workspace

if TYPE_CHECKING:
    from metasync.worktree.ignore import Names

DIR_PATH_BYTES_MAX = PATH_BYTES_MAX - NAME_BYTES_MAX - 1  # what is deeper no tree of the workspace can hold
LOOKED_EVERY = 2000  # names, between two times that somebody is told
MOVING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})  # someone is at work there right now
_REG, _LNK, _DIR = stat_.S_IFREG, stat_.S_IFLNK, stat_.S_IFDIR
_NOT_AGREED = b"\0"  # in front of a row that is not as agreed: no packed row begins so


class Noted(NamedTuple):
    """A path that the user should hear of, and why."""

    path: bytes
    reason: str


@dataclass(slots=True)
class Walk:
    """What a walk found. All paths ascend.

    tree        the tree by stats, on top of the agreed one: `unread` and `gone` are to be judged
    put_rows    rows of new or changed directories
    rows        packed rows of what differs, by path
    unread      files and symlinks to read
    gone        paths of rows, or of the agreed tree, whose names were not found
    listed      directories in which something is gone, and those that had rule files, each with its device
    blocked     paths that are here, but not taken in: the base's entries there and below stay
    hollow      directories that hold names which were not taken in
    unreadable  directories that can't be listed; `busy`: those that changed while they were listed
    skipped     paths that are not taken in, and why
    ignored     ignored paths that are not in the agreed tree; of a directory the directory alone
    is_copy     the rows are of another folder: this one was copied with its `.metasync`, say
    renumbered  the rows' device, and its new number, if it has one
    ways        how a walk by hints went through each directory that it came to
    """

    work: WorkTree
    db: State
    tree: Tree
    rules: RuleFiles
    is_settled: bool
    is_copy: bool
    renumbered: tuple[int, int] | None
    ways: dict[bytes, Way] = field(default_factory=dict)
    put_rows: MutableMapping[bytes, Row] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    unread: Unread = field(default_factory=Unread)
    gone: list[bytes] = field(default_factory=list)
    listed: dict[bytes, int] = field(default_factory=dict)
    blocked: dict[bytes, None] = field(default_factory=dict)
    hollow: dict[bytes, None] = field(default_factory=dict)
    unreadable: list[Noted] = field(default_factory=list)
    busy: list[bytes] = field(default_factory=list)
    skipped: list[Noted] = field(default_factory=list)
    ignored: list[bytes] = field(default_factory=list)

    @property
    def base(self) -> Tree:
        """The agreed tree."""
        assert isinstance(self.tree.base, Tree)
        return self.tree.base

    @property
    def is_quiet(self) -> bool:
        """Whether the folder is the agreed tree by the index, with nothing to tell or to store."""
        found = (self.tree.put, self.put_rows, self.rows, len(self.unread), self.gone, self.unreadable, self.busy)
        rules = self.rules.warnings or self.rule_texts() != self.rules.remembered
        return self.is_settled and not (any(found) or self.skipped or self.renumbered or rules)

    def rule_texts(self) -> dict[bytes, bytes]:
        """The rule files, with the last known ones of directories that can't be looked into now."""
        out = dict(self.rules.texts)
        for directory, text in self.rules.remembered.items():
            if directory not in self.listed and (
                directory in self.tree or self.is_blocked(directory) or self.is_passed_by(directory)
            ):
                out.setdefault(directory, text)
        return out

    def is_passed_by(self, directory: bytes) -> bool:
        """Whether a walk by hints left a directory out that is as it was."""
        if not self.ways:
            return False
        below, above = directory, split(directory)[0]
        while above not in self.ways:
            below, above = above, split(above)[0]
        if self.ways[above] is not Way.NAMES:
            return self.ways[above] is Way.THROUGH
        was = self.base.get(below)
        return was is not None and was.kind is Kind.DIR and below not in self.rows

    def is_blocked(self, path: bytes) -> bool:
        """Whether a path was not taken in, or lies in a directory that was not."""
        while path and path not in self.blocked:
            path = split(path)[0]
        return bool(path)

    def row(self, path: bytes) -> Row | None:
        """The row at a path."""
        data = self.rows.get(path)
        if data is None and (data := self.db.packed_row(path)) is not None and self.renumbered is not None:
            data = on_device(data, *self.renumbered)
        return unpack_row(data) if data is not None else None

    def growing(self) -> tuple[dict[bytes, object] | list[object], ...]:
        """The collections that a directory adds to; they are cut back if the directory fails half-way."""
        return (
            self.tree.put, self.put_rows, self.rows, *self.unread.growing, self.gone, self.listed, self.blocked,
            self.hollow, self.unreadable, self.busy, self.skipped, self.ignored,
        )  # type: ignore[return-value]  # fmt: skip


def is_index_of(db: State, root: bytes | None) -> bool:
    """Whether the rows are known to be the agreed tree of this root."""
    return root is not None and db.get(TREE_KEY) == root


def walk_index(work: WorkTree, db: State, root: bytes | None, hints: Hints = ALL) -> Walk | None:
    """Walks a folder whose rows are the agreed tree of this root; None: they are not. Stores nothing.

    Complete `hints` give the tree that a walk of everything gives. What is not taken in is told of the directories that
    were listed. Where a folder or its disk is another one, or names have twins, everything is walked nevertheless.
    """
    return walk_rows(work, db, hints) if is_index_of(db, root) else None


def walk_nothing(work: WorkTree, db: State, hints: Hints = ALL) -> Walk | None:
    """The same for the tree before the first version: the rows are that while there are none but the root's."""
    return walk_rows(work, db, hints) if db.count_rows() <= 1 else None


def walk_rows(work: WorkTree, db: State, hints: Hints = ALL) -> Walk:
    """Walks a folder by its rows, whatever tree they are: in the middle of a checkout they are none. Stores nothing."""
    return _Walker(work, db, None, hints).run()


def walk_folder(work: WorkTree, db: State, base: Mapping[bytes, Entry]) -> Walk:
    """Walks a folder with its rows and the agreed tree `base`. Stores nothing. OSError: the root can't be listed."""
    return _Walker(work, db, base).run()


class _Walker:
    """One walk. `path` and `data`: the next row, packed, or the next path of the agreed tree."""

    def __init__(self, work: WorkTree, db: State, base: Mapping[bytes, Entry] | None, hints: Hints = ALL) -> None:
        work.forget()
        self.work = work
        top, st = db.packed_row(b""), work.root_stat
        was = unpack_row(top) if top is not None else None
        # The same inode under another device number is the same file system, numbered anew (a reboot, a replugged
        # disk); a copy of the folder has another inode.
        is_copy = was is not None and was.ino != st.st_ino
        renumbered = (was.dev, st.st_dev) if was is not None and not is_copy and was.dev != st.st_dev else None
        tree = Tree(Tree(IndexEntries(db) if base is None else base))
        rules = RuleFiles(work, load_texts(db))
        self.found = Walk(work, db, tree, rules, base is None, is_copy, renumbered)
        self.count = 0
        self.seen, self.tell_at = 0, LOOKED_EVERY
        is_other = top is None or is_copy or renumbered is not None
        self.route = None if hints.is_all or is_other or work.rules.has_twins else Route.of(hints)
        self.sought = RowsFrom(db)  # the rows of a walk by hints
        self.rows = self.known(db, base) if self.route is None else self.sought
        self.path, self.data = next(self.rows)
        if top is not None and renumbered is not None:
            top = on_device(top, *renumbered)
        self.take_dir(b"", st, top or b"")

    def known(self, db: State, base: Mapping[bytes, Entry] | None) -> Iterator[tuple[bytes, bytes]]:
        """Yields all rows but the root's, merged with `base` if it is given, and then `AFTER_ALL` for ever."""
        renumbered = self.found.renumbered
        agreed = iter(sorted(base)) if base is not None else iter(())
        path = next(agreed, AFTER_ALL)
        for page in pages(db):
            self.count += len(page)
            if renumbered is not None:
                page = [(p, on_device(data, *renumbered)) for p, data in page]
            if base is None:
                yield from page
                continue
            for row_path, data in page:
                while path < row_path:
                    yield path, _NOT_AGREED
                    path = next(agreed, AFTER_ALL)
                if path == row_path and unpack_row(data).entry == base[path]:
                    yield path, data
                else:
                    yield row_path, _NOT_AGREED + data
                if path == row_path:
                    path = next(agreed, AFTER_ALL)
        while path != AFTER_ALL:
            yield path, _NOT_AGREED
            path = next(agreed, AFTER_ALL)
        while True:
            yield AFTER_ALL, b""

    def run(self) -> Walk:
        found = self.found
        stack = [self.opened(b"", self.way(None, b""))]
        while stack:
            here = stack[-1]
            try:
                path = self.go_on(here)
            except OSError as e:
                if not here.path:
                    raise
                here.undo(found)
                self.fail(here.path, e)
                stack.pop()
                continue
            if path is None:
                self.skip(here, here.path + b"0" if here.path else AFTER_ALL)  # "0" comes after "/"
                found.unread.add(here.prefix, here.unread)
                stack.pop()
                continue
            way = self.way(here, path)
            if way is Way.PAST:
                self.jump(path + b"0")
                continue
            try:
                stack.append(self.opened(path, way))
            except OSError as e:
                self.fail(path, e)
            except _Nested:
                self.block(path)
                found.skipped.append(Noted(path, "a workspace of its own"))
        found.ignored.sort()
        if found.is_settled and self.route is None:
            found.base.count = self.count
        return found

    def way(self, above: _Listed | None, path: bytes) -> Way:
        """How to go through a directory: one that is new, or another than its row says, is walked whole."""
        if self.route is None or (above is not None and above.way is Way.WHOLE):
            return Way.WHOLE
        is_other = path in self.found.put_rows or path in self.found.rows
        return Way.WHOLE if is_other else self.route.way(path)

    def names(self, path: bytes, fd: int, way: Way) -> tuple[Way, list[bytes]]:
        """The names to look at in a directory: all, if one to go on with is no directory any more."""
        if way is Way.THROUGH and self.route is not None:
            names = self.route.names(path)
            stats = (self.work.disk.look(name, fd) for name in names)
            if all(st is not None and stat_.S_ISDIR(st.st_mode) for st in stats):
                return way, names
            way = Way.NAMES
        names = self.work.disk.names(fd)
        names.sort()
        return way, names

    def opened(self, path: bytes, way: Way) -> _Listed:
        """Lists a directory, and reads its rule file."""
        work, found = self.work, self.found
        fd, device = work.dir_device(path)
        way, names = self.names(path, fd, way)
        self.seen += len(names)
        if self.seen >= self.tell_at:
            self.tell_at = self.seen + LOOKED_EVERY
            work.looked(self.seen)
        if path and (way is Way.THROUGH or _has(names, STATE_NAME)) and holds_workspace(work.disk, fd):
            raise _Nested
        has_rules = _has(names, IGNORE_NAME) if way is not Way.THROUGH else path in found.rules.remembered
        rules = found.rules.names(path, has_file=has_rules)
        if way is not Way.WHOLE and found.rules.has_changed(path):
            way, names = self.names(path, fd, Way.WHOLE)
        if work.rules.has_twins:
            names = respelled(work, found.db, found.base, path, names, fd)
        if path in found.rules.remembered:
            found.listed[path] = device
        if self.route is not None:
            found.ways[path] = way
        return _Listed(path, device, names, rules, found, way)

    def go_on(self, here: _Listed) -> bytes | None:
        """Compares names until a directory is to be entered, which is returned; None at the end.

        This runs once per file.
        """
        names, prefix, dirs = here.names, here.prefix, here.dirs
        fd, lstat, rows = self.work.dir(here.path), self.work.disk.lstat, self.rows
        for at in range(here.at, len(names)):
            name = names[at]
            child = prefix + name
            if dirs and dirs[-1] < child:
                here.at = at
                break
            if self.path < child:
                self.skip(here, child)
            if (name[0] in ODD_FIRST or b"~" in name or not name.isascii()) and self.is_left_out(here, child, name):
                continue
            try:
                st = lstat(name, fd)
            except FileNotFoundError:
                continue  # gone since: its row, if there is one, is not met
            data = b""
            if self.path == child:
                data = self.data
                self.path, self.data = next(rows)
                if is_packed_file(data, st):
                    continue
            if self.take(here, child, name, st, data):
                dirs.append(child + b"/")
        else:
            here.at = len(names)
        if not dirs:
            return None
        entered = dirs.pop()
        self.skip(here, entered)
        return entered[:-1]

    def skip(self, here: _Listed, end: bytes) -> None:
        """Passes by rows before `end` that no name met."""
        if here.way is Way.THROUGH:
            self.jump(end)
            return
        at, found = len(here.prefix), self.found
        while self.path < end:
            path, data = self.path, self.data
            self.path, self.data = next(self.rows)
            slash = path.find(b"/", at)
            if (path if slash < 0 else path[:slash]) not in found.blocked:
                found.gone.append(path)
                found.listed[here.path] = here.device
                self.keep_row(path, data)

    def jump(self, end: bytes) -> None:
        """Passes by all rows before `end`, and reads none of them."""
        if self.path < end:
            self.sought.seek(end)
            self.path, self.data = next(self.sought)

    def keep_row(self, path: bytes, data: bytes) -> bytes:
        """Takes the row out of a path's data, if there is one, and notes it as one that differs."""
        row = data.removeprefix(_NOT_AGREED)
        if row:
            self.found.rows[path] = row
        return row

    def is_left_out(self, here: _Listed, child: bytes, name: bytes) -> bool:
        """Whether an odd name is left out of the tree."""
        why = why_not_taken(os.fsdecode(name), here.rules is None)
        if why and why is not HAS_RULES and (why is not NESTED or here.path):
            self.leave(here, child, why, self.data if self.path == child else b"")
        return bool(why) and why is not HAS_RULES

    def leave(self, here: _Listed, path: bytes, why: str, data: bytes) -> None:
        """Leaves out what stands at `path`: with a word, unless it is ignored."""
        found = self.found
        found.blocked[path] = found.hollow[here.path] = None
        if why is not IGNORED:
            found.skipped.append(Noted(path, why))
        elif not (data if found.is_settled else path in found.base) and not split(path)[1].startswith(OWN_PREFIX):
            found.ignored.append(path)

    def take(self, here: _Listed, path: bytes, name: bytes, st: os.stat_result, data: bytes) -> bool:
        """Takes in a name that is not the clean file of an agreed row. True: a directory, which is to be entered."""
        kind = st.st_mode & 0o170000
        if here.way is Way.THROUGH and kind != _DIR:
            return False  # it took the directory's place just now, of which another hint will tell
        if here.rules is not None and here.rules.ignores(name, kind == _DIR):
            self.leave(here, path, IGNORED, data)
        elif kind in (_REG, _LNK):
            row = self.keep_row(path, data)
            if row and is_packed_file(row, st):
                self.found.tree.put[path] = unpack_row(row).entry
            else:
                here.unread.add(name, st)
        elif kind != _DIR:
            self.leave(here, path, "neither a file nor a directory nor a symlink", data)
        elif len(path) > DIR_PATH_BYTES_MAX:
            self.leave(here, path, "its path is too long", data)
        elif path.count(b"/") >= DEPTH_MAX:
            self.leave(here, path, f"directories nested deeper than {DEPTH_MAX:,} are not taken in", data)
        else:
            return self.take_dir(path, st, data)
        return False

    def take_dir(self, path: bytes, st: os.stat_result, data: bytes) -> bool:
        """Takes in a directory itself; False: it is not to be walked."""
        if data and is_packed_dir(data, st):
            return True
        found = self.found
        packed = self.keep_row(path, data)
        row = unpack_row(packed) if packed else None
        was_dir = row is not None and row.entry.kind is Kind.DIR
        # On another disk than before it shows the mode of a mount point, or of what was mounted there: no change.
        if row is not None and (row.mode == st.st_mode or (was_dir and row.dev != st.st_dev)):
            entry = row.entry
            if not was_dir:  # checkout could not put the agreed file here: it counts as being here
                found.tree.put[path] = entry
                return False
        else:
            tags = row.entry.tags if row is not None and was_dir else ()
            mode = mode_now(row, st) if row is not None and was_dir else stat_.S_IMODE(st.st_mode)
            entry = Entry(Kind.DIR, mode, 0, 0, b"", b"", tags)
        if row is None or row.entry is not entry or row.ino != st.st_ino or row.dev != st.st_dev:
            found.put_rows[path] = row_of(entry, st, trusted=True)
        if path:
            found.tree.put[path] = entry
        return True

    def fail(self, path: bytes, e: OSError) -> None:
        """Notes a directory that can't be walked."""
        self.block(path)
        if e.errno in MOVING:
            self.found.busy.append(path)
        else:
            self.found.unreadable.append(Noted(path, e.strerror or str(e)))

    def block(self, path: bytes) -> None:
        """Takes a directory out again, so that the base speaks for it and all below."""
        self.found.blocked[path] = self.found.hollow[split(path)[0]] = None
        self.found.tree.revert(path)
        self.found.put_rows.pop(path, None)


class _Nested(Exception):  # noqa: N818  a signal, not an error
    """A directory is a workspace of its own."""


class _Listed:
    """A directory on the way: its names, and the directories to enter next (with a slash, the first one last)."""

    __slots__ = ("at", "device", "dirs", "lengths", "names", "path", "prefix", "rules", "unread", "way")

    def __init__(
        self, path: bytes, device: int, names: list[bytes], rules: Names | None, found: Walk, way: Way
    ) -> None:
        self.path = path
        self.prefix = path + b"/" if path else b""
        self.device = device
        self.names = names
        self.rules = rules
        self.way = way
        self.at = 0
        self.dirs: list[bytes] = []
        self.unread = UnreadHere()
        self.lengths = [len(grown) for grown in found.growing()]

    def undo(self, found: Walk) -> None:
        """Takes back all that was found in it and below."""
        for grown, length in zip(found.growing(), self.lengths, strict=True):
            while len(grown) > length:
                grown.popitem() if isinstance(grown, dict) else grown.pop()


def _has(names: Sequence[bytes], name: bytes) -> bool:
    at = bisect_left(names, name)
    return at < len(names) and names[at] == name
