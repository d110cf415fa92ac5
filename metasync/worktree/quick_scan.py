"""A scan of the few names that differ, in a folder whose rows are the agreed tree (`settled`).

Theory of operation. `settled.differences` has compared every name with its row. What it has not named is, as far as
stats tell, what the agreed tree says; so a scan needs to look at the other names alone, and needs to know what rows and
tree hold at these, on the way to them, and below what is not there any more. `Part` loads that. What comes of it is the
agreed tree with changes on top (`Edited`), and neither is ever held as a whole: what a push of one file takes does not
grow with the number of files.

Where the folder is not the agreed tree any more, told from stats alone: nowhere, as most pushes find.

The rows of a folder that was pushed are the entries of the agreed tree, one by one. `note_settled` says so once, with
the tree's root, and whoever changes a row takes that back (`localdb.TREE_KEY`). While it stands, neither the agreed
tree nor any row needs to be decoded to know that nothing has changed: every name that the walk meets must have a row
with its very stat, and every row must be met. Names that are not so are left to `scan`, those alone (`known`); where
something is out of the ordinary (ignore rules, a workspace inside, an error), all is left to it.

Theory of operation. Rows are read in the order of their paths as bytes, a page at a time, and the disk is walked in
that same order, so that the two meet like the halves of a merge and neither is ever held as a whole: a folder of a
million files takes no more memory than the names of its largest directory. In that order "a-b" comes after "a" and
before "a/x", for "-" is less than "/": a directory is entered when the walk comes to its name with a slash behind it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass, field
from itertools import zip_longest

from metasync.local.spill import Large
from metasync.local.state import State
from metasync.local.state_keys import RULES_KEY, TREE_KEY
from metasync.objects.model import Entry, Kind
from metasync.worktree.index import Row, is_packed_dir, is_packed_file, is_packed_inode, rows_at, unpack_row
from metasync.worktree.names import IGNORED, ODD_FIRST, STATE_NAME, why_not_taken
from metasync.worktree.tree import WorkTree

PAGE_ROWS = 2000  # read at a time: half a megabyte
_END = b"\xff" * 5000  # behind every path: no name has so many bytes


def note_settled(
    db: State,
    root: bytes,
    tree: Mapping[bytes, Entry],
    rows: Mapping[bytes, Row],
    put: Mapping[bytes, Row],
    gone: Collection[bytes],
    differing: Iterable[bytes] | None = None,
) -> None:
    """Notes that the stored rows are `tree`, which is the one of this root, if they are.

    They are `rows`, then `put` over them, and without `gone`. `differing`: paths at which the tree may differ from the
    one that `rows` are; None: at any, or they are none.
    """
    if db.count_rows() != len(tree) + 1:
        return
    gone = set(gone)
    if differing is None and not rows and not gone and isinstance(put, Large) and isinstance(tree, Large):
        seen = ((path, row.entry) for path, row in put.items() if path)
        if b"" in put and all(a == b for a, b in zip_longest(seen, tree.items())):
            db.set(TREE_KEY, root)
        return

    def holds(path: bytes) -> bool:
        row = None if path in gone else put.get(path) or rows.get(path)
        return (row.entry if row is not None else None) == tree.get(path)

    paths = {*tree, *rows, *put} if differing is None else {*differing, *put, *gone}
    paths.discard(b"")
    if (b"" in put or b"" in rows) and b"" not in gone and all(map(holds, paths)):
        db.set(TREE_KEY, root)


def base_from_rows(db: State, root: bytes | None, rows: Mapping[bytes, Row]) -> dict[bytes, Entry] | None:
    """The tree of this root, if the stored rows are known to be it: at no cost beside theirs."""
    if root is None or db.get(TREE_KEY) != root:
        return None
    tree = {path: row.entry for path, row in rows.items()}
    del tree[b""]
    return tree


@dataclass(slots=True)
class Differing:
    """What stats alone do not answer for, in a folder whose rows are the agreed tree.

    names    by directory: names in it that are new, or gone, or have another stat than their row, or one that does not
             count (`Row.trusted`). Of what is new, or another directory than it was, nothing below is listed
    entered  those of the names that are the directories of their rows, but for the mode: what is in them was compared
    rows     how many rows there are
    """

    names: dict[bytes, list[bytes]] = field(default_factory=dict)
    entered: set[bytes] = field(default_factory=set)
    rows: int = 0

    def __bool__(self) -> bool:
        return bool(self.names)

    def add(self, path: bytes) -> None:
        parent, _, name = path.rpartition(b"/")
        self.names.setdefault(parent, []).append(name)


def differences(work: WorkTree, db: State, root: bytes | None) -> Differing | None:
    """Where the folder may differ from the tree of this root; None: that can't be told by stats. Stores nothing."""
    if root is None or db.get(TREE_KEY) != root or work.rules.has_twins:
        return None
    if db.has(RULES_KEY):  # the walk would meet a rule file, and end there
        return None
    work.forget()
    top = db.packed_row(b"")
    if top is None or not is_packed_dir(top, work.root_stat):
        return None
    try:
        return _Merge(work, db).run()
    except (OSError, _NotByStats):
        return None


class _NotByStats(Exception):  # noqa: N818  a signal, not an error
    """Something that only a scan can judge."""


class _Merge:
    """The walk beside the rows. `path` and `data`: the next row."""

    def __init__(self, work: WorkTree, db: State) -> None:
        self.work = work
        self.rows = _paged(db)
        self.path, self.data = next(self.rows)
        self.met = 1
        self.out = Differing()

    def run(self) -> Differing:
        stack = [_Listed(b"", self.names(b""))]
        while stack:
            here = stack[-1]
            entered = self.go_on(here)
            if entered is not None:
                stack.append(_Listed(entered + b"/", self.names(entered)))
            else:
                self.skip(here, here.prefix[:-1] + b"0" if here.prefix else _END)  # "0" comes after "/"
                stack.pop()
        self.out.rows = self.met
        return self.out

    def names(self, path: bytes) -> list[bytes]:
        return sorted(self.work.disk.names(self.work.dir(path)))

    def skip(self, here: _Listed, end: bytes) -> None:
        """Passes by rows before `end` that were not met: of `here`, or below what is not entered there."""
        at = len(here.prefix)
        while self.path < end:
            if b"/" not in self.path[at:]:
                self.out.add(self.path)
            self.path, self.data = next(self.rows)
            self.met += 1

    def go_on(self, here: _Listed) -> bytes | None:
        """Compares names until a directory is to be entered, which is returned; None at the end.

        Once for every file: what is called from here costs a million times as much.
        """
        names, prefix, dirs = here.names, here.prefix, here.dirs
        fd, lstat, rows, out = self.work.dir(prefix[:-1]), self.work.disk.lstat, self.rows, self.out
        for at in range(here.at, len(names)):
            name = names[at]
            child = prefix + name
            if dirs and dirs[-1] < child:
                here.at = at
                break
            if self.path < child:
                self.skip(here, child)
            if (name[0] in ODD_FIRST or b"~" in name or not name.isascii()) and self.is_left_out(child, name):
                continue
            try:
                st = lstat(name, fd)
            except FileNotFoundError:
                continue  # gone since: its row, if there is one, is not met
            if self.path != child:
                out.add(child)
                continue
            data = self.data
            self.path, self.data = next(rows)
            self.met += 1
            if is_packed_file(data, st):
                continue
            if not is_packed_dir(data, st):
                out.add(child)
                if not is_packed_inode(data, st):
                    continue
                out.entered.add(child)
            dirs.append(child + b"/")
        else:
            here.at = len(names)
        if not dirs:
            return None
        entered = dirs.pop()
        self.skip(here, entered)
        return entered[:-1]

    def is_left_out(self, child: bytes, name: bytes) -> bool:
        """Whether an odd name is none of the tree's. `_NotByStats`: that, or what it means, is for a scan to say."""
        why = why_not_taken(os.fsdecode(name), plain=True)
        if why and child != STATE_NAME and (why != IGNORED or self.path == child):
            raise _NotByStats
        return bool(why)


class _Listed:
    """A directory on the way: its names, which of them come next, and those of its directories that are to be entered,
    each with a slash behind it; the last one comes first."""

    __slots__ = ("at", "dirs", "names", "prefix")

    def __init__(self, prefix: bytes, names: list[bytes]) -> None:
        self.prefix = prefix
        self.names = names
        self.at = 0
        self.dirs: list[bytes] = []


def _paged(db: State) -> Iterator[tuple[bytes, bytes]]:
    """All rows but the root's in the order of their paths, and then `_END` for ever."""
    last = b""
    while page := db.packed_rows_after(last, PAGE_ROWS):
        yield from page
        last = page[-1][0]
    while True:
        yield _END, b""


_LAST = b"\xff" * 5000  # behind every name


class Part:
    """What is known of the differing names: rows by path, and the entries of the agreed tree, which are the rows'."""

    def __init__(self, db: State, differing: Differing) -> None:
        self._db = db
        self._names = {directory: sorted(names) for directory, names in differing.names.items()}
        self._entered = differing.entered
        self.count = differing.rows - 1  # of the agreed tree
        self.rows: dict[bytes, Row] = {}
        self.base: dict[bytes, Entry] = {}
        self.way: dict[bytes, Entry] = {}  # the directories on the way to the names
        self._add_one(b"")
        for directory, names in self._names.items():
            above = directory
            while above and above not in self.rows:
                self._add_one(above)
                above = above.rpartition(b"/")[0]
            prefix = directory + b"/" if directory else b""
            for name in names:
                self._add_one(prefix + name)
        for directory in self._names:
            while directory and directory not in self.way:
                self.way[directory] = self.base[directory]
                directory = directory.rpartition(b"/")[0]

    def _add_one(self, path: bytes) -> None:
        data = self._db.packed_row(path)
        if data is not None:
            self._add(path, data)

    def _add(self, path: bytes, data: bytes) -> None:
        self.rows[path] = row = unpack_row(data)
        if path:
            self.base[path] = row.entry

    def directories(self) -> list[bytes]:
        """Those in which there are names to look at."""
        return list(self._names)

    def names(self, directory: bytes) -> list[bytes] | None:
        """The names to look at in a directory; None: all that are there, and then their rows are known."""
        names = self._names.get(directory)
        if names is None:
            for path, data in children(self._db, directory):
                self._add(path, data)
        return names

    def take_whole(self, directory: bytes, st: os.stat_result) -> bool:
        """Whether a directory that is here is to be listed with all that is in it."""
        row = self.rows.get(directory)
        if row is not None and directory in self._entered and (row.dev, row.ino) == (st.st_dev, st.st_ino):
            return False
        self._names.pop(directory, None)
        return True

    def add_below(self, tree: Mapping[bytes, Entry]) -> None:
        """Adds what rows say of all below directories that are none in `tree`: of what went with them."""
        for path, row in list(self.rows.items()):
            if path and row.entry.kind is Kind.DIR and ((here := tree.get(path)) is None or here.kind is not Kind.DIR):
                last = path + b"/"
                while page := self._db.packed_rows_after(last, PAGE_ROWS, path + b"0"):  # "0" comes after "/"
                    for below, data in page:
                        self._add(below, data)
                    last = page[-1][0]

    def trees(self, seen: Mapping[bytes, Entry]) -> tuple[FromRows, Edited]:
        """The agreed tree, and the one that a scan of this part has found."""
        base = self.base
        paths = {*base, *seen}
        changes = {p: seen.get(p) for p in paths if base.get(p) is not seen.get(p) and base.get(p) != seen.get(p)}
        before = FromRows(self._db, {**dict.fromkeys(paths), **base}, self.count)
        return before, Edited(before, changes)


def children(db: State, directory: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The packed rows of what is in a directory itself, in the order of paths."""
    prefix = directory + b"/" if directory else b""
    end = directory + b"0" if directory else _LAST
    last, most = prefix, 2
    while page := db.packed_rows_after(last, most, end):
        most = min(2 * most, PAGE_ROWS)
        for path, data in page:
            at = path.find(b"/", len(prefix))
            if at >= 0:
                last, most = path[: at + 1] + _LAST, 2  # past all that is in that directory
                break
            yield path, data
            last = path


class FromRows(Mapping[bytes, Entry]):
    """The agreed tree as the rows tell it, without the root. `known`: what they told of the paths whose rows may be
    written meanwhile; None: nothing was there. `count`: how many entries there were."""

    def __init__(self, db: State, known: dict[bytes, Entry | None], count: int) -> None:
        self._db = db
        self._known = known
        self._count = count

    def __getitem__(self, path: bytes) -> Entry:
        if path in self._known:
            entry = self._known[path]
        else:
            data = self._db.packed_row(path) if path else None
            entry = unpack_row(data).entry if data is not None else None
        if entry is None:
            raise KeyError(path)
        return entry

    def hold(self, paths: Iterable[bytes]) -> None:
        """Remembers what is at these paths: their rows may be written from now on."""
        wanted = [path for path in paths if path and path not in self._known]
        rows = rows_at(self._db, wanted)
        self._known.update((path, rows[path].entry if path in rows else None) for path in wanted)

    def pairs(self) -> Iterator[tuple[bytes, Entry]]:
        """All paths with their entries, a page at a time."""
        known = self._known
        last = b""
        while page := self._db.packed_rows_after(last, PAGE_ROWS):
            yield from ((path, unpack_row(data).entry) for path, data in page if path not in known)
            last = page[-1][0]
        yield from ((path, entry) for path, entry in known.items() if entry is not None)

    def __iter__(self) -> Iterator[bytes]:
        return (path for path, _ in self.pairs())

    def __len__(self) -> int:
        return self._count

    def items(self) -> ItemsView[bytes, Entry]:
        return _Items(self)

    def values(self) -> ValuesView[Entry]:
        return _Values(self)

    def inside(self, directory: bytes) -> Iterator[bytes]:
        """The paths in a directory itself."""
        yield from (path for path, _ in children(self._db, directory) if path not in self._known)
        yield from (p for p, e in self._known.items() if e is not None and p.rpartition(b"/")[0] == directory)


class Edited(MutableMapping[bytes, Entry]):
    """A tree with changes on top of it (None: nothing is there). It stays as it is below."""

    def __init__(self, base: FromRows, changes: dict[bytes, Entry | None]) -> None:
        self.base = base
        self.changes = changes

    def __getitem__(self, path: bytes) -> Entry:
        if path not in self.changes:
            return self.base[path]
        entry = self.changes[path]
        if entry is None:
            raise KeyError(path)
        return entry

    def __setitem__(self, path: bytes, entry: Entry) -> None:
        self.changes[path] = entry

    def __delitem__(self, path: bytes) -> None:
        self[path]
        self.changes[path] = None

    def pairs(self) -> Iterator[tuple[bytes, Entry]]:
        """All paths with their entries."""
        changes = self.changes
        yield from ((path, entry) for path, entry in self.base.pairs() if path not in changes)
        yield from ((path, entry) for path, entry in changes.items() if entry is not None)

    def __iter__(self) -> Iterator[bytes]:
        return (path for path, _ in self.pairs())

    def __len__(self) -> int:
        return len(self.base) + sum((e is not None) - (p in self.base) for p, e in self.changes.items())

    def items(self) -> ItemsView[bytes, Entry]:
        return _Items(self)

    def values(self) -> ValuesView[Entry]:
        return _Values(self)

    def inside(self, directory: bytes) -> Iterator[bytes]:
        """The paths in a directory itself."""
        yield from (path for path in self.base.inside(directory) if path not in self.changes)
        yield from (p for p, e in self.changes.items() if e is not None and p.rpartition(b"/")[0] == directory)


class _Items(ItemsView[bytes, Entry]):
    def __init__(self, tree: FromRows | Edited) -> None:
        super().__init__(tree)
        self._pairs = tree.pairs

    def __iter__(self) -> Iterator[tuple[bytes, Entry]]:
        return self._pairs()


class _Values(ValuesView[Entry]):
    def __init__(self, tree: FromRows | Edited) -> None:
        super().__init__(tree)
        self._pairs = tree.pairs

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, entry in self._pairs())


class Some(Mapping[bytes, Entry | None]):
    """What a tree has at some paths; None: nothing. No path twice."""

    def __init__(self, paths: Collection[bytes], tree: Mapping[bytes, Entry]) -> None:
        self._paths = paths
        self._tree = tree

    def __getitem__(self, path: bytes) -> Entry | None:
        return self._tree.get(path)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def near(tree: Mapping[bytes, Entry], paths: Iterable[bytes]) -> Mapping[bytes, Entry] | list[bytes]:
    """The paths of a tree that lie in the same directories as these, where that is known at less than the whole."""
    if not isinstance(tree, Edited):
        return tree
    return [path for directory in {p.rpartition(b"/")[0] for p in paths} for path in tree.inside(directory)]
