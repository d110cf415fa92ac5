"""A walk over a whole tree that holds a few megabytes of it at a time: `walk.flatten` for very many files.

Theory of operation. It goes level by level, like every walk, but opens directories in batches of a bounded size, since
the index tells how long each object is, and a very long directory leaf by leaf. A tree of ten thousand files is one
batch per level, and so costs no more requests. Entries are handed over as they are found, and the caller keeps a long
list of directories still to be opened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping
from typing import TypeAlias

from metasync.errors import FormatError
from metasync.objects import directory
from metasync.objects.chunker import LEVELS_MAX
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import Entry, Kind, ObjectKind
from metasync.objects.walk import Room, check_depth

BATCH_BYTES = 4 << 20  # of nodes opened together: those of some 60,000 files

Dirs: TypeAlias = MutableMapping[bytes, bytes]
"""Directories to be opened: path with a slash behind it (b"": the root) -> id."""
SizeOf: TypeAlias = Callable[[bytes], int]
Take: TypeAlias = Callable[[list[tuple[bytes, Entry]]], None]


def gather(
    root: bytes | None, size_of: SizeOf, take: Take, keep: Callable[[Dirs], Dirs] = lambda held: held
) -> Generator[Needs, Bytes, None]:
    """Gives every path below a root directory's id (None: the empty tree) to `take`, as `flatten` would have it.

    A directory comes before what is in it; there is no other order. `size_of`: how long an object is, by its id; 0
    where that is not known. `keep` may put another mapping in the place of one that has grown long. `FormatError`,
    maybe after some paths were taken.
    """
    gathering = _Gathering(size_of, take, keep)
    level: Dirs = {b"": root} if root is not None else {}
    depth = 0
    while level:
        check_depth(depth)
        depth += 1
        gathering.below = {}
        for batch in _batches(level.items(), size_of):
            yield from gathering.open(batch)
        level = gathering.below


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


class _Gathering:
    """One walk. `below`: the directories found, to be opened next."""

    def __init__(self, size_of: SizeOf, take: Take, keep: Callable[[Dirs], Dirs]) -> None:
        self.size_of = size_of
        self.take = take
        self.keep = keep
        self.below: Dirs = {}
        self.room = Room()  # of bytes that lie on the disk, most of them

    def open(self, batch: list[tuple[bytes, bytes]]) -> Generator[Needs, Bytes, None]:
        ids = sorted({dir_id for _, dir_id in batch})
        got = dict((yield ObjectKind.DIR, tuple(ids)))
        yield from self.open_ahead([i for i in ids if directory.is_inner(got[i])], got)
        for prefix, dir_id in batch:
            node = directory.decode_node(got[dir_id])
            if not node.level:
                self.found(prefix, node.entries)
            else:
                yield from self.open_long(prefix, node, got)

    def open_ahead(self, inner: list[bytes], got: dict[bytes, bytes]) -> Generator[Needs, Bytes, None]:
        """Opens what is below the roots of long directories, as long as that is no more than a batch in all."""
        left = BATCH_BYTES
        for _ in range(LEVELS_MAX):
            children = {c for i in inner for _, c in directory.decode_node(got[i]).children if c not in got}
            left -= sum(map(self.size_of, children))
            if not children or left < 0:
                return
            got.update((yield ObjectKind.DIR, tuple(sorted(children))))
            inner = [i for i in children if directory.is_inner(got[i])]

    def open_long(
        self, prefix: bytes, root: directory.DirNode, got: dict[bytes, bytes]
    ) -> Generator[Needs, Bytes, None]:
        """The entries of a directory of several nodes, in order: each leaf is looked at once, or refused."""
        if len(root.children) < 2:
            raise FormatError("directory object: a root with one child")
        todo = [(name, child, root.level - 1) for name, child in reversed(root.children)]
        last: bytes | None = None
        while todo:
            first, node_id, level = todo.pop()
            if node_id not in got:
                more, size = {node_id}, self.size_of(node_id)
                for _, other, _ in reversed(todo if not level else ()):
                    size += self.size_of(other)
                    if size > BATCH_BYTES:
                        break
                    more.add(other)
                got = dict((yield ObjectKind.DIR, tuple(sorted(more))))
            node = directory.decode_node(got[node_id])
            begins = next((name for name, _ in (node.children or node.entries)), None)
            if node.level != level:
                raise FormatError("directory object: a node at the wrong level")
            if begins != first:
                raise FormatError("directory object: a node that starts elsewhere than its parent says")
            if last is not None and first <= last:
                raise FormatError("directory object: leaves out of order")
            if level:
                todo += [(name, child, level - 1) for name, child in reversed(node.children)]
                continue
            self.found(prefix, node.entries)
            last = node.entries[-1][0]

    def found(self, prefix: bytes, entries: Iterable[tuple[bytes, Entry]]) -> None:
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
