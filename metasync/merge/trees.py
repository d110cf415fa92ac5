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

An edit follows a rename: where one side moved a file's bytes to another path, and the other changed the file at the old
one, the change is made at the new one. A file counts as moved if its content is exactly what it was and says clearly
where it came from (`renames`); so whoever merges finds the same. All else is a deletion and a new file.

The work is proportional to the change. Everything the merge can alter is among the paths that a side changed: what
lives below a directory that one side no longer has was deleted, and so changed, by that side. All else is looked up by
name. Moving is only ever needed at a path that both sides have, so its parents are directories on both sides and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from metasync.codec import TAGS_MAX, Tags
from metasync.merge.copies import conflict_name
from metasync.merge.lines import TEXT_BYTES_MAX
from metasync.merge.renames import may_be_renamed, renames
from metasync.objects.model import Entry, Kind
from metasync.reports.sync import Met

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

RENAME_MODIFY: Final = "rename/modify"


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
    `met`: changes that were put together, ascending by kind and path.
    """

    changes: dict[bytes, Entry | None]
    conflicts: tuple[Conflict, ...]
    text: tuple[TextMerge, ...]
    met: tuple[Met, ...] = ()

    def followed(self) -> set[bytes]:
        """The new paths at which our edits of renamed files are."""
        return {m.path for m in self.met if m.kind == RENAME_MODIFY and m.here == "modified"}


MergeTask: TypeAlias = Generator[tuple[TextMerge, ...], Mapping[bytes, Entry | None], Merge]
"""Yields one batch of requests, or none at all, and is sent back `{path: entry or None}`; returns a `Merge`."""


def merge(
    base: Tree,
    ours: Tree,
    theirs: Tree,
    label: bytes,
    paths: Iterable[bytes] | None = None,
    is_taken: Callable[[bytes], bool] = lambda _: False,
    stay: Collection[bytes] = (),
) -> MergeTask:
    """Merges what ours and theirs did since base. A task without contents: texts are merged by who drives it.

    If files were edited on both sides, it yields them all as one tuple of `TextMerge` and expects a mapping from path
    to the merged content as a file's `Entry` (`size`, `content`, `root` count; the rest is set here), or None (or
    nothing) where there is no clean merge; that makes a conflict. At most one batch is yielded, never an empty one.

    `label` is for the names of copies: `copies.label_of`.

    `paths` holds at least every path at which ours or theirs differs from base; then the trees are only ever asked by
    `get`, so they may be backed lazily. None: found by comparing the whole trees. `is_taken` tells of names that no
    copy can have though no tree has them: what our disk takes for another name. `stay`: new paths of files that the
    other side renamed, to which no edit of ours follows: our disk cannot hold them.

    on one side      on the other      result
    nothing          any change        the change
    deleted          changed           the change
    renamed          changed           the change, at the new path
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
    old base or with theirs as base, changes nothing (with the old base: as far as the text merges are repeatable, and
    where no edit followed a rename).
    """
    if paths is None:
        paths = {*diff(base, ours), *diff(base, theirs)}
    joint = _Joint(base, ours, theirs, label, is_taken)
    ordered = sorted(set(paths))
    joint.follow(ordered, stay)
    requests = tuple(filter(None, [joint.decide(path) for path in ordered]))
    answers = (yield requests) if requests else {}
    merged = tuple(request for request in requests if joint.settle(request, answers.get(request.path)))
    joint.mend()
    return Merge(
        joint.changes(),
        tuple(sorted(joint.conflicts)),
        merged,
        tuple(sorted(joint.met, key=lambda m: (m.kind, m.path))),
    )


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


def _renamed(base: Tree, side: Tree, paths: Sequence[bytes]) -> dict[bytes, bytes]:
    """New path -> old path, of the files that a side renamed for sure."""
    gone = [(p, e) for p in paths if (e := base.get(p)) is not None and may_be_renamed(e) and side.get(p) is None]
    if not gone:
        return {}
    new = ((p, e) for p in paths if base.get(p) is None and (e := side.get(p)) is not None and may_be_renamed(e))
    return renames(gone, new, sure=True)


class _Changed(Mapping[bytes, Entry]):
    """A tree with other entries at some paths. Only ever asked by name."""

    def __init__(self, tree: Tree, changes: Mapping[bytes, Entry | None]) -> None:
        self.tree, self.changes = tree, changes

    def __getitem__(self, path: bytes) -> Entry:
        entry = self.changes[path] if path in self.changes else self.tree.get(path)
        if entry is None:
            raise KeyError(path)
        return entry

    def __iter__(self) -> Iterator[bytes]:
        return (path for path in {*self.tree, *self.changes} if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Joint:
    """The merged tree in the making: what is decided where either side changed something; elsewhere all are equal."""

    def __init__(
        self, base: Tree, ours: Tree, theirs: Tree, label: bytes, taken_elsewise: Callable[[bytes], bool]
    ) -> None:
        self.base, self.ours, self.theirs = base, ours, theirs
        self.before = self.base, self.ours, self.theirs  # as they are, where an edit is followed to a new path
        self.met: list[Met] = []
        self.label = label
        self.taken_elsewise = taken_elsewise
        self.decided: dict[bytes, Entry | None] = {}
        self.kept: dict[bytes, Entry] = {}  # what moved aside, at its new path
        self.conflicts: list[Conflict] = []
        self.homes: dict[bytes, bytes] = {b"": b""}  # directories that stand, by their path in the sides' trees

    def follow(self, paths: Sequence[bytes], stay: Collection[bytes]) -> None:
        """Has the changes of files that the other side renamed stand at the new paths, as if they were made there."""
        base, ours, theirs = self.before
        by_us, by_them = _renamed(base, ours, paths), _renamed(base, theirs, paths)
        moved: dict[bytes, Entry | None] = {}
        here: dict[bytes, Entry | None] = {}
        there: dict[bytes, Entry | None] = {}
        for new, old in by_them.items():
            if new not in stay and self.is_followed(ours, old, new):
                moved |= {old: None, new: base[old]}
                here |= {old: None, new: ours[old]}
                self.met.append(Met(RENAME_MODIFY, new, "modified", old))
        for new, old in by_us.items():
            if self.is_followed(theirs, old, new):
                moved |= {old: None, new: base[old]}
                there |= {old: None, new: theirs[old]}
                self.met.append(Met(RENAME_MODIFY, new, "renamed", old))
        if moved:
            self.base, self.ours, self.theirs = _Changed(base, moved), _Changed(ours, here), _Changed(theirs, there)
        self.tell_renames(by_us, by_them)

    def is_followed(self, editor: Tree, old: bytes, new: bytes) -> bool:
        """Whether a side that did not rename a file changed it, and has room for that at the new path."""
        entry = editor.get(old)
        if entry is None or entry.kind is not Kind.FILE or entry == self.before[0].get(old) or editor.get(new):
            return False
        above = new.rpartition(b"/")[0]
        while above:
            if (parent := editor.get(above)) is not None:
                return parent.kind is Kind.DIR
            above = above.rpartition(b"/")[0]
        return True

    def tell_renames(self, by_us: Mapping[bytes, bytes], by_them: Mapping[bytes, bytes]) -> None:
        """Notes renames that met a deletion or another rename."""
        _, ours, theirs = self.before
        to_ours, to_theirs = ({old: new for new, old in side.items()} for side in (by_us, by_them))
        for new, old in by_us.items():
            other = to_theirs.get(old)
            if other is not None and other != new:
                self.met.append(Met("rename/rename", new, "renamed", old, other))
            elif theirs.get(old) is None and theirs.get(new) is None:
                self.met.append(Met("rename/delete", new, "renamed", old))
        for new, old in by_them.items():
            if old not in to_ours and ours.get(old) is None and ours.get(new) is None:
                self.met.append(Met("rename/delete", new, "deleted", old))

    def decide(self, path: bytes) -> TextMerge | None:
        """Decides one path, or returns the text merge that will (`settle`)."""
        base, ours, theirs = self.base.get(path), self.ours.get(path), self.theirs.get(path)
        choice = _decide(base, ours, theirs)
        if not isinstance(choice, Reason):
            self.decided[path] = choice
            is_file = base is not None and choice is not None and Kind.DIR not in (base.kind, choice.kind)
            if is_file and None in (ours, theirs):  # changed on one side, deleted on the other
                self.met.append(Met("modify/delete", path, "deleted" if ours is None else "modified"))
            return None
        self.decided[path] = theirs
        if base is not None and ours is not None and theirs is not None:
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
        if any(name in self.kept or tree.get(name) is not None for tree in self.before):
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
            path: entry for path, entry in self.decided.items() if entry != self.before[1].get(path)
        }
        return dict(sorted([*changes.items(), *self.kept.items()]))
