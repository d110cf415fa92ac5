"""Trees of a few entries, merges of them, and texts that are refused or joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from metasync.codec import Tags
from metasync.merge.trees import Merge, TextMerge, merge
from metasync.objects.model import Entry, Kind

Tree = dict[bytes, Entry]

LABEL = b"pad-20261122"


def file(content: bytes, mtime_ns: int = 10, mode: int = 0o644, tags: Tags = (), size: int | None = None) -> Entry:
    return Entry(Kind.FILE, mode, mtime_ns, len(content) if size is None else size, content, b"", tags)


def folder(mode: int = 0o755, tags: Tags = ()) -> Entry:
    return Entry(Kind.DIR, mode, 0, 0, b"", b"", tags)


def link(target: bytes, mtime_ns: int = 10) -> Entry:
    return Entry(Kind.SYMLINK, 0, mtime_ns, len(target), target)


D = folder()


def refuse(request: TextMerge) -> Entry | None:
    return None


def join(request: TextMerge) -> Entry | None:
    """A stand-in for a text merge: clean for some contents, the same whoever merges; with metadata to be ignored."""
    contents = sorted([request.ours.content, request.theirs.content])
    if sum(map(sum, contents)) % 2:
        return None
    content = b"+".join(contents)
    return Entry(Kind.FILE, 0o7777, 99, len(content), content, b"root of it", ((77, b"no"),))


def run(
    base: Mapping[bytes, Entry],
    ours: Mapping[bytes, Entry],
    theirs: Mapping[bytes, Entry],
    text: Any = refuse,
    paths: Iterable[bytes] | None = None,
    stay: Iterable[bytes] = (),
) -> Merge:
    task = merge(base, ours, theirs, LABEL, paths, stay=set(stay))
    try:
        requests = next(task)
        assert requests, "an empty batch was yielded"
        task.send({request.path: text(request) for request in requests})
    except StopIteration as done:
        result = done.value
        assert isinstance(result, Merge)
        assert list(result.changes) == sorted(result.changes)
        assert list(result.conflicts) == sorted(result.conflicts)
        return result
    raise AssertionError("a second batch was yielded")


def applied(ours: Tree, changes: Mapping[bytes, Entry | None]) -> Tree:
    merged = dict(ours)
    for path, entry in changes.items():
        assert entry != ours.get(path), "a change that changes nothing"
        if entry is None:
            del merged[path]
        else:
            merged[path] = entry
    return merged


def merged_tree(base: Tree, ours: Tree, theirs: Tree, text: Any = refuse) -> Tree:
    return applied(ours, run(base, ours, theirs, text).changes)


class Lazy(Mapping[bytes, Entry]):
    """A tree that can't be walked, and counts how often it is asked."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.asked = tree, 0

    def __getitem__(self, path: bytes) -> Entry:
        self.asked += 1
        return self.tree[path]

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("walked")

    def __len__(self) -> int:
        raise AssertionError("counted")
