"""Walks that hold a few megabytes of trees at a time: `walk.flatten` and `walk.diff` for very many files.

Theory of operation. They go level by level, like every walk, but open directories in batches of a bounded size, since
the index tells how long each object is, and a very long directory leaf by leaf. A tree of ten thousand files is one
batch per level, and so costs no more requests. Entries are handed over as they are found, and the caller keeps a long
list of directories still to be opened.

A walk goes past directories that nobody has any more, if it is told whom to tell (`Losses`). It is answered without
them then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from metasync.errors import FormatError
from metasync.objects import directory
from metasync.objects.chunker import LEVELS_MAX
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import ID_BYTES, Entry, Kind, ObjectKind
from metasync.objects.walk import Room, bare, check_depth

BATCH_BYTES = 4 << 20  # of nodes opened together: those of some 60,000 files

Dirs: TypeAlias = MutableMapping[bytes, bytes]
"""Directories to be opened: path with a slash behind it (b"": the root) -> id, or the two ids of a comparison."""
Keep: TypeAlias = Callable[[Dirs], Dirs]
"""May put another mapping in the place of one that has grown long."""
SizeOf: TypeAlias = Callable[[bytes], int]
Entries: TypeAlias = tuple[tuple[bytes, Entry], ...]
Take: TypeAlias = Callable[[list[tuple[bytes, Entry]]], None]
TakeChanges: TypeAlias = Callable[[list[tuple[bytes, Entry | None, Entry | None]]], None]


class Losses(NamedTuple):
    """Whom a walk tells of directories of which a part is lost. It goes on with all else.

    told     gets such a directory's path, with a slash behind it, and the id of the node; maybe several times
    is_lost  whether a node counts as lost, though it may be had. It is read then, if it can be
    """

    told: Callable[[bytes, bytes], None]
    is_lost: Callable[[bytes], bool] = lambda _: False


def _refused(_: bytes, node_id: bytes) -> None:
    raise FormatError(f"directory object: node {node_id.hex()[:16]} is not there")


_NONE = Losses(_refused)
_UNHEARD = Losses(lambda *_: None)


def _same(held: Dirs) -> Dirs:
    return held


def gather(
    root: bytes | None, size_of: SizeOf, take: Take, keep: Keep = _same, losses: Losses = _NONE
) -> Generator[Needs, Bytes, None]:
    """Gives every path below a root directory's id (None: the empty tree) to `take`, as `flatten` would have it.

    A directory comes before what is in it; there is no other order. `size_of`: how long an object is, by its id; 0
    where that is not known. `FormatError`, maybe after some paths were taken.
    """
    gathering = _Gathering(size_of, take, keep, losses)
    level: Dirs = {b"": root} if root is not None else {}
    depth = 0
    while level:
        check_depth(depth)
        depth += 1
        gathering.below = {}
        for batch in _batches(level.items(), size_of):
            yield from gathering.open(batch)
        level = gathering.below


def compare(
    older: bytes | None,
    newer: bytes | None,
    size_of: SizeOf,
    take: TakeChanges,
    keep: Keep = _same,
    losses: Losses = _NONE,
    opened: Callable[[bytes], None] = lambda _: None,
) -> Generator[Needs, Bytes, None]:
    """Gives every path that differs between two trees to `take`, with its entry in each, as `walk.diff` would have it.

    Equal directories stay shut, and so do the parts that two long ones share. What is lost of the older tree is told.
    What is lost of the newer one counts as empty. `opened` is told the path of each directory that differs, before what
    is lost or changed in it. Else as `gather`.
    """
    comparing = _Comparing(size_of, take, keep, losses, opened)
    level: Dirs = {b"": _pair(older, newer)} if older != newer else {}
    depth = 0
    while level:
        check_depth(depth)
        depth += 1
        comparing.below = {}
        for batch in _batches(level.items(), lambda pair: sum(size_of(i) for i in _split(pair) if i is not None)):
            yield from comparing.open(batch)
        level = comparing.below


_ABSENT = bytes(ID_BYTES)  # in a pair of ids: there is no such directory


def _pair(older: bytes | None, newer: bytes | None) -> bytes:
    return (older or _ABSENT) + (newer or _ABSENT)


def _split(pair: bytes) -> tuple[bytes | None, bytes | None]:
    older, newer = (None if i == _ABSENT else i for i in (pair[:ID_BYTES], pair[ID_BYTES:]))
    return older, newer


def _batches(dirs: Iterable[tuple[bytes, bytes]], size_of: SizeOf) -> Iterator[list[tuple[bytes, bytes]]]:
    """Directories, as many together as may be opened together."""
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for prefix, dir_id in dirs:
        batch.append((prefix, dir_id))
        size += size_of(dir_id)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Walk:
    """One walk. `below`: the directories found, to be opened next."""

    def __init__(self, size_of: SizeOf, keep: Keep, losses: Losses) -> None:
        self.size_of = size_of
        self.keep = keep
        self.losses = losses
        self.below: Dirs = {}
        self.room = Room()  # of bytes that lie on the disk, most of them

    def load(self, ids: list[bytes]) -> Generator[Needs, Bytes, dict[bytes, bytes]]:
        """Reads the roots of directories, and what is below those of long ones as long as that is no more than a batch.
        -> what there is of it."""
        got = dict((yield ObjectKind.DIR, tuple(ids)))
        inner = [i for i in ids if i in got and directory.is_inner(got[i])]
        left = BATCH_BYTES
        for _ in range(LEVELS_MAX):
            children = {c for i in inner for _, c in directory.decode_node(got[i]).children if c not in got}
            left -= sum(map(self.size_of, children))
            if not children or left < 0:
                break
            got.update((yield ObjectKind.DIR, tuple(sorted(children))))
            inner = [i for i in children if i in got and directory.is_inner(got[i])]
        return got


class _Dir:
    """A directory that is read leaf by leaf, in the order of names. Each leaf is looked at once, or refused.

    `rest`: nodes that were not opened yet, the next one last: (first name, id, level). `entries`: what nobody has taken
    yet of the leaf that was opened last.
    """

    def __init__(self, prefix: bytes, root: bytes | None, got: Bytes, size_of: SizeOf, losses: Losses) -> None:
        """Opens a directory by its root (None: there is no such directory). `got`: nodes that were read."""
        self._prefix, self._got, self._size_of, self._losses = prefix, got, size_of, losses
        self._last: bytes | None = None
        self.rest: list[tuple[bytes, bytes, int]] = []
        self.entries: Entries = ()
        node = self._node(root) if root is not None else None
        if node is not None:
            if len(node.children) == 1:
                raise FormatError("directory object: a root with one child")
            self.entries = node.entries
            self._put_off(node)

    def until(self, limit: bytes | None) -> Entries:
        """Takes the entries before this name; None: all."""
        at = len(self.entries) if limit is None else bisect_left(self.entries, limit, key=itemgetter(0))
        taken, self.entries = self.entries[:at], self.entries[at:]
        return taken

    def pass_by(self) -> None:
        """Leaves the next node shut: the other directory has it too."""
        first, node_id, _ = self.rest.pop()
        self._check_order(first)
        if self._losses.is_lost(node_id):
            self._losses.told(self._prefix, node_id)

    def open(self) -> Generator[Needs, Bytes, None]:
        """Opens the next node: the entries of a leaf are `entries` then, what is below another one begins `rest`."""
        first, node_id, level = self.rest.pop()
        if node_id not in self._got:
            more, size = {node_id}, self._size_of(node_id)
            for _, other, _ in reversed(self.rest if not level else ()):
                size += self._size_of(other)
                if size > BATCH_BYTES:
                    break
                more.add(other)
            self._got = yield ObjectKind.DIR, tuple(sorted(more))
        node = self._node(node_id)
        if node is None:
            return
        if node.level != level:
            raise FormatError("directory object: a node at the wrong level")
        if next((name for name, _ in (node.children or node.entries)), None) != first:
            raise FormatError("directory object: a node that starts elsewhere than its parent says")
        self._check_order(first)
        self._put_off(node)
        if not level:
            self.entries = node.entries
            self._last = node.entries[-1][0]

    def _node(self, node_id: bytes) -> directory.DirNode | None:
        data = self._got.get(node_id)
        if data is None or self._losses.is_lost(node_id):
            self._losses.told(self._prefix, node_id)
        return None if data is None else directory.decode_node(data)

    def _put_off(self, node: directory.DirNode) -> None:
        self.rest += [(name, child, node.level - 1) for name, child in reversed(node.children)]

    def _check_order(self, first: bytes) -> None:
        if self._last is not None and first <= self._last:
            raise FormatError("directory object: leaves out of order")


class _Gathering(_Walk):
    """Every path of one tree."""

    def __init__(self, size_of: SizeOf, take: Take, keep: Keep, losses: Losses) -> None:
        super().__init__(size_of, keep, losses)
        self.take = take

    def open(self, batch: list[tuple[bytes, bytes]]) -> Generator[Needs, Bytes, None]:
        got = yield from self.load(sorted({dir_id for _, dir_id in batch}))
        for prefix, dir_id in batch:
            opened = _Dir(prefix, dir_id, got, self.size_of, self.losses)
            self.found(prefix, opened.until(None))
            while opened.rest:
                yield from opened.open()
                self.found(prefix, opened.until(None))

    def found(self, prefix: bytes, entries: Entries) -> None:
        out: list[tuple[bytes, Entry]] = []
        take_room = self.room.take
        for name, entry in entries:
            path = take_room(prefix + name)
            if entry.kind is Kind.DIR:
                self.below[path + b"/"] = entry.content
                entry = entry._replace(content=b"")
            out.append((path, entry))
        self.take(out)
        self.below = self.keep(self.below)


class _Comparing(_Walk):
    """What differs between two trees."""

    def __init__(
        self, size_of: SizeOf, take: TakeChanges, keep: Keep, losses: Losses, opened: Callable[[bytes], None]
    ) -> None:
        super().__init__(size_of, keep, losses)
        self.take = take
        self.opened = opened

    def open(self, batch: list[tuple[bytes, bytes]]) -> Generator[Needs, Bytes, None]:
        got = yield from self.load(sorted({i for _, pair in batch for i in _split(pair) if i is not None}))
        for prefix, pair in batch:
            self.opened(prefix)
            older, newer = _split(pair)
            yield from self.merge(
                prefix,
                _Dir(prefix, older, got, self.size_of, self.losses),
                _Dir(prefix, newer, got, self.size_of, _UNHEARD),
            )

    def merge(self, prefix: bytes, older: _Dir, newer: _Dir) -> Generator[Needs, Bytes, None]:
        """Goes through both in the order of names, and opens no node that both have at one place."""
        while True:
            limit = min((d.rest[-1][0] for d in (older, newer) if d.rest), default=None)
            self.found(prefix, older.until(limit), newer.until(limit))
            if limit is None:
                return
            if older.rest and newer.rest and older.rest[-1] == newer.rest[-1]:
                older.pass_by()
                newer.pass_by()
                continue
            shut = (d for d in (older, newer) if d.rest and d.rest[-1][0] == limit)
            yield from max(shut, key=lambda d: d.rest[-1][2]).open()  # the one further from its leaves

    def found(self, prefix: bytes, older: Entries, newer: Entries) -> None:
        left, right, out = dict(older), dict(newer), list[tuple[bytes, Entry | None, Entry | None]]()
        for name in sorted({*left, *right}):
            x, y = left.get(name), right.get(name)
            if x == y:
                continue
            path = self.room.take(prefix + name)
            x_dir, y_dir = (e.content if e is not None and e.kind is Kind.DIR else None for e in (x, y))
            if x_dir != y_dir:
                self.below[path + b"/"] = _pair(x_dir, y_dir)
            x, y = bare(x), bare(y)
            if x != y:
                out.append((path, x, y))
        self.take(out)
        self.below = self.keep(self.below)
