"""Where the folder is not the agreed tree any more, told from stats alone: nowhere, as most pushes find.

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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from metasync.local.spill import Large
from metasync.local.state import TREE_KEY, State
from metasync.local.state_keys import RULES_KEY
from metasync.objects.model import Entry
from metasync.sync.fsio import WorkTree
from metasync.sync.oddnames import IGNORED, ODD_FIRST, STATE_NAME, why_not_taken
from metasync.sync.rows import Row, is_packed_dir, is_packed_file, is_packed_inode

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
    if db.get(RULES_KEY) is not None:  # the walk would meet a rule file, and end there
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
