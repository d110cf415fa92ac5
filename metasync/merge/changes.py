"""What differs between two trees, for people: kinds of change, renames, counts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from metasync.merge.renames import may_be_renamed, renames
from metasync.objects.model import Entry, Kind, split
from metasync.reports.history import ChangeKind, Counts, Facts, NodeKind, PathChange

KINDS: dict[Kind, NodeKind] = {Kind.FILE: "file", Kind.DIR: "dir", Kind.SYMLINK: "link"}


Pair: TypeAlias = tuple[bytes, Entry | None, Entry | None]
"""A path with its entries before and after."""


def facts(entry: Entry) -> Facts:
    target = entry.content if entry.kind is Kind.SYMLINK else None
    return Facts(KINDS[entry.kind], entry.mode, entry.size, entry.mtime_ns, target)


def described(pairs: Iterable[Pair]) -> tuple[PathChange, ...]:
    """The changes by path. A directory is only listed where nothing inside it is, or if more than its being there."""
    listed = [p for p in pairs if not _alike(p[1], p[2])]
    filled = _parents(path for path, _, _ in listed)
    renames = _renames(listed)
    gone = set(renames.values())
    before = {path: entry for path, entry, _ in listed}
    out: list[PathChange] = []
    for path, a, b in sorted(listed, key=lambda p: p[0]):
        if path in gone or (path in filled and _is_dir_alone(a, b)):
            continue
        was = renames.get(path)
        old = before[was] if was is not None else a
        kind = "renamed" if was is not None else kind_of(a, b)
        out.append(PathChange(kind, path, facts(old) if old else None, facts(b) if b else None, was))
    return tuple(out)


def counts(changes: Sequence[PathChange]) -> Counts:
    number: dict[str, int] = defaultdict(int)
    for change in changes:
        number[change.kind if change.kind in ("added", "modified", "deleted", "renamed") else "other"] += 1
    return Counts(**number)


def kind_of(before: Entry | None, after: Entry | None) -> ChangeKind:
    """What happened between two entries that differ."""
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    if before.kind != after.kind:
        return "type"
    if before.content != after.content:
        return "modified"
    return "mode" if before.mode != after.mode else "time"


def same_bytes(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries are of one kind and hold the same bytes (of a symlink: its target)."""
    return a is not None and b is not None and a.kind == b.kind and (a.kind is Kind.DIR or a.content == b.content)


def _alike(a: Entry | None, b: Entry | None) -> bool:
    """Equal, or cut into other chunks and nothing else."""
    return a is not None and b is not None and a._replace(root=b"") == b._replace(root=b"")


def _is_dir_alone(a: Entry | None, b: Entry | None) -> bool:
    """A directory that came or went, of which what is inside it tells."""
    return (a is None or b is None) and (a or b) is not None and all(e is None or e.kind is Kind.DIR for e in (a, b))


def _parents(paths: Iterable[bytes]) -> set[bytes]:
    out: set[bytes] = set()
    for path in paths:
        above = split(path)[0]
        while above and above not in out:
            out.add(above)
            above = split(above)[0]
    return out


def _renames(pairs: Sequence[Pair]) -> dict[bytes, bytes]:
    """New path -> old path, of files whose bytes were at a path that is gone."""
    gone = ((path, a) for path, a, b in pairs if b is None and a is not None and may_be_renamed(a))
    new = ((path, b) for path, a, b in pairs if a is None and b is not None and may_be_renamed(b))
    return renames(gone, new, sure=False)
