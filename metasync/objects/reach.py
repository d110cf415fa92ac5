"""All objects that snapshots need: the mark of garbage collection (consensus.md, rule 6.3), as a walk.

Every object is read once, however many snapshots share it, and blobs are not read at all. What is read together and
what waits to be read is bounded by the largest directory, not by the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final, Protocol

from metasync.errors import FormatError
from metasync.objects import directory, file
from metasync.objects.directory import Bytes, Needs
from metasync.objects.model import Entry, Kind, ObjectKind, decode_snapshot, version_of

READ_TOGETHER: Final = 256  # objects: 16 MB of directories of the usual size


class Marked(Protocol):
    """A set of ids."""

    def __contains__(self, object_id: object) -> bool: ...
    def add(self, object_id: bytes) -> None: ...


def mark(
    snapshots: Iterable[bytes],
    marked: Marked,
    known: Callable[[bytes], bool],
    replacing: Callable[[bytes], bytes | None] = lambda _: None,
) -> Generator[Needs, Bytes, None]:
    """Adds to `marked` the ids of these snapshots and of all that they need. What is in it is not looked at again.

    A snapshot needs its tree, and the snapshots of what merges replaced: its further parents, which were agreed as no
    version. Its first parent is the version before, which is kept by itself or not. `known`: whether there is such a
    snapshot at all. `replacing`: the root of the tree that a snapshot has in place of its own, None for its own.
    `FormatError` where an object is not what it must be.

    What is not given is passed over, with what it needs.

    A walk that is broken off leaves ids in `marked` whose own objects were not looked at: it is of no use then.
    """
    todo = [i for i in dict.fromkeys(snapshots) if i not in marked]
    seen = set(todo)
    while todo:
        some, todo = todo[-READ_TOGETHER:], todo[:-READ_TOGETHER]
        got = yield ObjectKind.SNAPSHOT, tuple(some)
        roots: list[bytes] = []
        for snapshot_id in some:
            marked.add(snapshot_id)
            if snapshot_id not in got:
                continue
            snapshot = decode_snapshot(got[snapshot_id])
            beside = [i for i in snapshot.parents[1:] if i not in seen and i not in marked and known(i)]
            kept: Bytes = {}
            if beside:
                kept = yield ObjectKind.SNAPSHOT, tuple(beside)
            todo += [i for i in beside if i in kept and not version_of(decode_snapshot(kept[i]))]
            seen.update(todo)
            roots.append(replacing(snapshot_id) or snapshot.root)
        yield from _trees(roots, marked)


def _trees(roots: Iterable[bytes], marked: Marked) -> Generator[Needs, Bytes, None]:
    """Adds what these directories, and those below them, need."""
    dirs: list[bytes] = []
    files: list[bytes] = []

    def found(object_id: bytes, into: list[bytes] | None) -> None:
        if object_id not in marked:
            marked.add(object_id)
            if into is not None:
                into.append(object_id)

    for root in roots:
        found(root, dirs)
    while dirs or files:
        kind, stack = (ObjectKind.FILE, files) if len(files) >= READ_TOGETHER or not dirs else (ObjectKind.DIR, dirs)
        some = stack[-READ_TOGETHER:]
        del stack[-READ_TOGETHER:]
        got = yield kind, tuple(some)
        for object_id in (i for i in some if i in got):
            if kind is ObjectKind.FILE:
                node = file.decode_node(got[object_id])
                for part in node.parts:
                    found(part.id, files if node.level else None)
                continue
            listed = directory.decode_node(got[object_id])
            for _, child in listed.children:
                found(child, dirs)
            for _, entry in listed.entries:
                _of_entry(entry, found, dirs, files)


def _of_entry(
    entry: Entry, found: Callable[[bytes, list[bytes] | None], None], dirs: list[bytes], files: list[bytes]
) -> None:
    if entry.kind is Kind.DIR:
        found(entry.content, dirs)
    elif entry.kind is Kind.FILE and entry.root:
        found(entry.root, files)
    elif entry.kind is Kind.FILE and entry.size:
        found(entry.content, None)
    elif entry.kind not in (Kind.FILE, Kind.SYMLINK):
        raise FormatError("directory object: an entry of a kind that nobody can keep")
