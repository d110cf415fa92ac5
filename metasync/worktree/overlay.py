"""Flat trees as an operation holds them: a few changes on top of the index, or of another mapping.

The agreed tree is read from the index path by path, as far as it is asked for. So the cost of pushing one file does not
grow with the number of files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from itertools import zip_longest
from types import MappingProxyType
from typing import TypeVar, overload

from metasync.local.spill import Large, Streamed
from metasync.local.state import State
from metasync.local.state_keys import TREE_KEY
from metasync.objects.model import Entry
from metasync.worktree.index import Row, children, pages, rows_at, unpack_row

T = TypeVar("T")


class IndexEntries(Streamed[Entry]):
    """The entries of all rows but the root's, as they are stored now."""

    def __init__(self, db: State) -> None:
        self.db = db

    def __getitem__(self, path: bytes) -> Entry:
        data = self.db.packed_row(path) if path else None
        if data is None:
            raise KeyError(path)
        return unpack_row(data).entry

    @overload
    def get(self, path: bytes, default: None = None, /) -> Entry | None: ...
    @overload
    def get(self, path: bytes, default: Entry | T, /) -> Entry | T: ...
    def get(self, path: bytes, default: object = None, /) -> object:
        data = self.db.packed_row(path) if path else None
        return default if data is None else unpack_row(data).entry

    def __len__(self) -> int:
        return self.db.count_rows() - 1

    def __bool__(self) -> bool:
        return bool(self.db.packed_rows_after(b"", 1))

    def pairs(self) -> Iterator[tuple[bytes, Entry]]:
        return ((path, unpack_row(data).entry) for page in pages(self.db) for path, data in page)


class Tree(Streamed[Entry], MutableMapping[bytes, Entry]):
    """A tree with changes on top, entries `put` and paths `gone`; the base below stays as it is.

    `count`: the number of entries, of a tree that only `hold` changes from now on.
    """

    def __init__(
        self, base: Mapping[bytes, Entry], put: MutableMapping[bytes, Entry] | None = None, count: int | None = None
    ) -> None:
        self.base = base
        self.put: MutableMapping[bytes, Entry] = {} if put is None else put
        self.gone: set[bytes] = set()
        self.count = count

    def __getitem__(self, path: bytes) -> Entry:
        found = self.put.get(path)
        if found is not None:
            return found
        if path in self.gone:
            raise KeyError(path)
        return self.base[path]

    @overload
    def get(self, path: bytes, default: None = None, /) -> Entry | None: ...
    @overload
    def get(self, path: bytes, default: Entry | T, /) -> Entry | T: ...
    def get(self, path: bytes, default: object = None, /) -> object:
        """The same as of every mapping, without an error for each path of a new tree that is asked for in vain."""
        found = self.put.get(path)
        if found is not None:
            return found
        return default if path in self.gone else self.base.get(path, default)

    def __contains__(self, path: object) -> bool:
        return path in self.put or (path not in self.gone and path in self.base)

    def __setitem__(self, path: bytes, entry: Entry) -> None:
        self.gone.discard(path)
        self.put[path] = entry

    def __delitem__(self, path: bytes) -> None:
        was_put = self.put.pop(path, None) is not None
        if path not in self.gone and path in self.base:
            self.gone.add(path)
        elif not was_put:
            raise KeyError(path)

    def revert(self, path: bytes) -> None:
        """Takes back the change at a path."""
        self.put.pop(path, None)
        self.gone.discard(path)

    @property
    def is_counted(self) -> bool:
        """Whether its length is known without a look at every row."""
        if self.count is not None or not isinstance(self.base, Tree | IndexEntries):
            return True
        return isinstance(self.base, Tree) and self.base.is_counted

    def hold(self, paths: Iterable[bytes]) -> None:
        """Keeps what the index says of these paths now: their rows may be written from now on."""
        if isinstance(self.base, IndexEntries):
            wanted = [path for path in paths if path and path not in self.put and path not in self.gone]
            rows = rows_at(self.base.db, wanted)
            self.put.update((path, row.entry) for path, row in rows.items())
            self.gone.update(path for path in wanted if path not in rows)

    def __bool__(self) -> bool:
        if self.count is not None:
            return self.count > 0
        return bool(self.put) or (super().__bool__() if self.gone else bool(self.base))

    def pairs(self) -> Iterator[tuple[bytes, Entry]]:
        put, gone = self.put, self.gone
        yield from ((path, entry) for path, entry in self.base.items() if path not in put and path not in gone)
        yield from put.items()

    def ascending(self) -> Iterable[tuple[bytes, Entry]]:
        """All paths with their entries, by path as bytes."""
        return self.put.items() if isinstance(self.put, Large) and not self.base else sorted(self.pairs())

    def __len__(self) -> int:
        if self.count is not None:
            return self.count
        base = self.base
        return len(base) + sum(path not in base for path in self.put) - len(self.gone) if base else len(self.put)

    def inside(self, directories: Collection[bytes]) -> Iterator[bytes]:
        """Yields the paths of the own entries of these directories. Goes through the changes once for all of them."""
        base = self.base
        if isinstance(base, Tree):
            below = base.inside(directories)
        elif isinstance(base, IndexEntries):
            below = (path for directory in directories for path, _ in children(base.db, directory))
        else:
            below = (path for path in base if path.rpartition(b"/")[0] in directories)
        yield from (path for path in below if path not in self.put and path not in self.gone)
        yield from (path for path in self.put if path.rpartition(b"/")[0] in directories)

    def near(self, paths: Iterable[bytes]) -> Collection[bytes]:
        """The paths in the same directories as these, and others where that costs less."""
        if isinstance(self.base, Tree) and isinstance(self.base.base, IndexEntries):
            return list(self.inside({path.rpartition(b"/")[0] for path in paths}))
        return self.keys()


def changed(tree: Tree) -> Collection[bytes]:
    """Paths at which a tree differs from the one below it."""
    base = tree.base
    if not base:
        return tree.put.keys()
    return [*(path for path, entry in tree.put.items() if base.get(path) != entry), *tree.gone]


def note_index_of(
    db: State,
    root: bytes,
    tree: Tree,
    differing: Iterable[bytes] | None,
    written: Mapping[bytes, Row] = MappingProxyType({}),
) -> None:
    """Notes that the stored rows are `tree`, which has this root, if they are.

    `differing`: the only paths at which they may differ; None: any path. `written`: rows that are stored as they stand
    here, which need not be read again.
    """
    if db.packed_row(b"") is None:
        return
    if (differing is None or tree.is_counted) and db.count_rows() != len(tree) + 1:
        return
    if differing is None:
        rows = ((path, unpack_row(data).entry) for page in pages(db) for path, data in page)
        is_same = all(a == b for a, b in zip_longest(rows, tree.ascending()))
    else:
        paths = {path for path in differing if path}
        found = {**rows_at(db, paths - written.keys()), **written}
        is_same = all((found[path].entry if path in found else None) == tree.get(path) for path in paths)
    if is_same:
        db.set(TREE_KEY, root)


class Some(Mapping[bytes, Entry | None]):
    """The entries of a tree at some paths, no path twice; None: no entry."""

    def __init__(self, paths: Collection[bytes], tree: Mapping[bytes, Entry]) -> None:
        self._paths = paths
        self._tree = tree

    def __getitem__(self, path: bytes) -> Entry | None:
        return self._tree.get(path)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
