"""Three-way merge of trees: what both sides did since their common base, and copies of what can't be both.

A tree is a flat mapping from path to `Entry`: a path is bytes, relative, its components joined by b"/", never empty;
every path's parents are in the same tree and of kind DIR. `theirs` is the *agreed* side: where only one can have a
name, it keeps it, so that every device that merges leaves agreed names alone and all end with the same tree.

Each path is decided by itself first, from three entries. Then the places where decisions don't fit together are mended,
all of one form: something survives below a path that is no directory in the result.

    there is      because                                     mended by
    nothing       one side deleted the directory              taking the other side's directory back
    their file    they replaced a directory we changed inside our directory moves aside, with what survives in it
    our file      we replaced a directory they changed inside their directory takes its place, our file moves aside

The work is proportional to the change. Everything the merge can alter is among the paths that a side changed: what
lives below a directory that one side no longer has was deleted, and so changed, by that side. All else is looked up by
name. Moving is only ever needed at a path that both sides have, so its parents are directories on both sides and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import NamedTuple, TypeAlias

from metasync.codec import TAGS_MAX, Tags
from metasync.merge.copies import conflict_name
from metasync.merge.lines import TEXT_BYTES_MAX
from metasync.objects.model import Entry, Kind

__all__ = [
    "TEXT_BYTES_MAX",
    "Conflict",
    "Merge",
    "MergeTask",
    "Reason",
    "TextMerge",
    "Tree",
    "diff",
    "merge",
]

Tree: TypeAlias = Mapping[bytes, Entry]


class Reason(StrEnum):
    """Why both sides could not be had under one name."""

    EDITED = "edited on both sides"
    ADDED = "added on both sides"
    KINDS = "a file, a directory or a link on one side is something else on the other"


class Conflict(NamedTuple):
    """`path` has the agreed entry; what was ours is at `kept` now (a directory with all that survives in it)."""

    path: bytes
    kept: bytes
    reason: Reason


class TextMerge(NamedTuple):
    """A file whose content both sides changed: to be merged by its lines, if all three are texts."""

    path: bytes
    base: Entry
    ours: Entry
    theirs: Entry


@dataclass(frozen=True, slots=True)
class Merge:
    """The outcome.

    `changes` turns ours into the merged tree: path to its new entry, or to None where a path goes; ascending, so
    parents come before what is in them. `conflicts` ascend by path. `text` lists the requests that were merged cleanly.
    """

    changes: dict[bytes, Entry | None]
    conflicts: tuple[Conflict, ...]
    text: tuple[TextMerge, ...]


MergeTask: TypeAlias = Generator[tuple[TextMerge, ...], Mapping[bytes, Entry | None], Merge]
"""Yields one batch of requests, or none at all, and is sent back `{path: entry or None}`; returns a `Merge`."""


def merge(
    base: Tree,
    ours: Tree,
    theirs: Tree,
    label: bytes,
    paths: Iterable[bytes] | None = None,
    is_taken: Callable[[bytes], bool] = lambda _: False,
) -> MergeTask:
    """Merges what ours and theirs did since base. A task without contents: texts are merged by who drives it.

    If files were edited on both sides, it yields them all as one tuple of `TextMerge` and expects a mapping from path
    to the merged content as a file's `Entry` (`size`, `content`, `root` count; the rest is set here), or None (or
    nothing) where there is no clean merge; that makes a conflict. At most one batch is yielded, never an empty one.

    `label` is for the names of copies: `copies.label_of`.

    `paths` holds at least every path at which ours or theirs differs from base; then the trees are only ever asked by
    `get`, so they may be backed lazily. None: found by comparing the whole trees. `is_taken` tells of names that no
    copy can have though no tree has them: what our disk takes for another name.

    on one side      on the other      result
    nothing          any change        the change
    deleted          changed           the change
    the same bytes   the same bytes    the newer mtime; modes and tags three-way
    new bytes        metadata only     the new bytes with their mtime; modes and tags three-way
    another kind     metadata only     the other kind
    new bytes        other new bytes   file in base and both: text merge, the newer mtime, modes and tags three-way
    otherwise                          conflict: theirs keeps the name, ours is kept at `conflict_name`

    Bytes are a file's content or a link's target; metadata are mode, mtime and tags. Where both sides set a mode or a
    tag differently, theirs wins. For what is inside directories that one side deleted or replaced, see the module's
    head.

    Nothing that a side wrote is dropped: each content that is new on a side is in the merged tree or went into a text
    merge. With the merged tree as agreed, every other device reaches the same tree. Merging its result again, with the
    old base or with theirs as base, changes nothing (with the old base: as far as the text merges are repeatable).
    """
    if paths is None:
        paths = {*diff(base, ours), *diff(base, theirs)}
    joint = _Joint(base, ours, theirs, label, is_taken)
    requests = tuple(filter(None, [joint.decide(path) for path in sorted(set(paths))]))
    answers = (yield requests) if requests else {}
    merged = tuple(request for request in requests if joint.settle(request, answers.get(request.path)))
    joint.mend()
    return Merge(joint.changes(), tuple(sorted(joint.conflicts)), merged)


def diff(a: Tree, b: Tree) -> dict[bytes, tuple[Entry | None, Entry | None]]:
    """The paths at which two trees differ, ascending, with both entries."""
    changed = {path for path, entry in a.items() if b.get(path) != entry}
    changed.update(path for path in b if path not in a)
    return {path: (a.get(path), b.get(path)) for path in sorted(changed)}


def _same_bytes(a: Entry, b: Entry) -> bool:
    return a.kind == b.kind and a.content == b.content


def _decide(base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | Reason | None:
    """What becomes of one path, looked at alone: an entry, None (it goes), or why both can't be had."""
    if ours in (base, theirs):
        return theirs
    if theirs == base or theirs is None:
        return ours
    if ours is None:
        return theirs
    if _same_bytes(ours, theirs):
        return _joined(theirs, base, ours, theirs, _mtime_ns(base, ours, theirs))
    if base is not None:
        if _same_bytes(ours, base):
            return _joined(theirs, base, ours, theirs, theirs.mtime_ns)
        if _same_bytes(theirs, base):
            return _joined(ours, base, ours, theirs, ours.mtime_ns)
    if ours.kind != theirs.kind:
        return Reason.KINDS
    return Reason.EDITED if base is not None and base.kind == ours.kind else Reason.ADDED


def _joined(entry: Entry, base: Entry | None, ours: Entry, theirs: Entry, mtime_ns: int) -> Entry:
    """`entry` with the mode and tags of a three-way merge; as it is where the sides are of different kinds."""
    if ours.kind != theirs.kind:
        return entry
    if base is not None and base.kind != ours.kind:
        base = None  # the mode of a directory says nothing about the file in its place
    mode = theirs.mode if base is None or theirs.mode != base.mode else ours.mode
    tags = _joined_tags(() if base is None else base.tags, ours.tags, theirs.tags)
    return entry._replace(mode=mode, mtime_ns=mtime_ns, tags=tags)


def _mtime_ns(base: Entry | None, ours: Entry, theirs: Entry) -> int:
    """Of two entries with the same bytes: the newer, but a side that did not touch the file has no say."""
    if base is not None and _same_bytes(base, ours) and base.mtime_ns in (ours.mtime_ns, theirs.mtime_ns):
        return ours.mtime_ns if theirs.mtime_ns == base.mtime_ns else theirs.mtime_ns
    return max(ours.mtime_ns, theirs.mtime_ns)


def _joined_tags(base: Tags, ours: Tags, theirs: Tags) -> Tags:
    was, mine, agreed = dict(base), dict(ours), dict(theirs)
    tags: list[tuple[int, bytes]] = []
    for tag in sorted(was.keys() | mine.keys() | agreed.keys()):
        value = mine.get(tag) if agreed.get(tag) == was.get(tag) else agreed.get(tag)
        if value is not None:
            tags.append((tag, value))
    return tuple(tags) if len(tags) <= TAGS_MAX else theirs  # more could not be encoded


class _Joint:
    """The merged tree in the making: what is decided where either side changed something; elsewhere all are equal."""

    def __init__(
        self, base: Tree, ours: Tree, theirs: Tree, label: bytes, taken_elsewise: Callable[[bytes], bool]
    ) -> None:
        self.base, self.ours, self.theirs = base, ours, theirs
        self.label = label
        self.taken_elsewise = taken_elsewise
        self.decided: dict[bytes, Entry | None] = {}
        self.kept: dict[bytes, Entry] = {}  # what moved aside, at its new path
        self.conflicts: list[Conflict] = []
        self.homes: dict[bytes, bytes] = {b"": b""}  # directories that stand, by their path in the sides' trees

    def decide(self, path: bytes) -> TextMerge | None:
        """Decides one path, or returns the text merge that will (`settle`)."""
        base, ours, theirs = self.base.get(path), self.ours.get(path), self.theirs.get(path)
        choice = _decide(base, ours, theirs)
        if not isinstance(choice, Reason):
            self.decided[path] = choice
            return None
        self.decided[path] = theirs
        if choice is Reason.EDITED and base is not None and ours is not None and theirs is not None:
            request = TextMerge(path, base, ours, theirs)
            if all(side.kind == Kind.FILE and side.size <= TEXT_BYTES_MAX for side in request[1:]):
                return request
        self.set_aside(path, choice)
        return None

    def settle(self, request: TextMerge, merged: Entry | None) -> bool:
        """Takes a text merge's answer; true if it was clean."""
        path, base, ours, theirs = request
        if merged is None:
            self.set_aside(path, Reason.EDITED)
            return False
        assert merged.kind == Kind.FILE
        self.decided[path] = _joined(merged, base, ours, theirs, max(ours.mtime_ns, theirs.mtime_ns))
        return True

    def set_aside(self, path: bytes, reason: Reason) -> None:
        """Moves our entry at `path` to the first free conflict name. In our directory, what survives will follow it."""
        entry = self.ours[path]
        names = (conflict_name(path, self.label, n) for n in count(1))  # ends: trees are finite
        name = next(name for name in names if not self.is_taken(name))
        self.kept[name] = entry
        self.conflicts.append(Conflict(path, name, reason))
        if entry.kind == Kind.DIR:
            self.homes[path] = name

    def is_taken(self, name: bytes) -> bool:
        """Whether a name has ever been used: what is decided stems from ours or theirs."""
        if any(name in self.kept or tree.get(name) is not None for tree in (self.ours, self.theirs, self.base)):
            return True
        return self.taken_elsewise(name)

    def mend(self) -> None:
        """Gives everything that survives a directory to be in."""
        for path in sorted(self.decided):  # in an order of its own, for the numbers of the copies depend on it
            entry = self.decided[path]
            if entry is None:
                continue
            parent, slash, name = path.rpartition(b"/")
            home = self.home(parent)
            if home != parent:
                # We are in a directory of ours that moved; theirs has nothing here.
                self.decided[path] = None
                self.kept[home + slash + name] = entry

    def home(self, directory: bytes) -> bytes:
        """Sees to it that something can survive in `directory`; returns where that directory is now."""
        path, below = directory, []
        while path not in self.homes:  # no recursion: a path may have 2,048 components
            below.append(path)
            path = path.rpartition(b"/")[0]
        for path in reversed(below):
            parent, slash, name = path.rpartition(b"/")
            self.homes[path] = self.homes[parent] + slash + name
            if self.homes[parent] != parent:
                self.kept[self.homes[path]] = self.ours[path]
            else:
                self.stand(path)
        return self.homes[directory]

    def stand(self, path: bytes) -> None:
        """Makes `path`, whose parent stands, a directory, there or aside: something survives in it."""
        entry = self.decided.get(path, self.ours.get(path))
        if entry is not None and entry.kind == Kind.DIR:
            return
        theirs = self.theirs.get(path)
        if theirs is not None and theirs.kind == Kind.DIR:
            self.decided[path] = theirs
            if entry is not None:
                self.set_aside(path, Reason.KINDS)
        elif entry is None:
            self.decided[path] = self.ours[path]
        else:
            self.set_aside(path, Reason.KINDS)

    def changes(self) -> dict[bytes, Entry | None]:
        """From ours to the merged tree."""
        changes: dict[bytes, Entry | None] = {
            path: entry for path, entry in self.decided.items() if entry != self.ours.get(path)
        }
        return dict(sorted([*changes.items(), *self.kept.items()]))
