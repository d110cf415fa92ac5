"""A scan of the few names that differ, in a folder whose rows are the agreed tree (`settled`).

Theory of operation. `settled.differences` has compared every name with its row. What it has not named is, as far as
stats tell, what the agreed tree says; so a scan needs to look at the other names alone, and needs to know what rows and
tree hold at these, on the way to them, and below what is not there any more. `Part` loads that. What comes of it is the
agreed tree with changes on top (`Edited`), and neither is ever held as a whole: what a push of one file takes does not
grow with the number of files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView

from metasync.local.state import State
from metasync.objects.model import Entry, Kind
from metasync.sync.rows import Row, rows_at, unpack_row
from metasync.sync.settled import PAGE_ROWS, Differing

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
