"""Whose the sides of a conflict are: found as it arises, noted in the tag of its copy, and told from there."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from metasync.errors import MetaSyncError
from metasync.keys.device_set import names_of
from metasync.local.state_keys import CONFLICTS, Conflict
from metasync.merge.copies import NOBODY, Origin, Side, Sides, label_of, marked, record_of, sides_in, sides_of
from metasync.merge.trees import Merge
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind, decode_snapshot, split, version_of
from metasync.reports.sync import ConflictReport, ConflictSide
from metasync.session.session import Agreed, Session
from metasync.transfer.contents import Contents
from metasync.worktree.index import rows_at
from metasync.worktree.scan import Scan

FINDS_MAX: Final = 4096  # looked up in trees to learn who wrote the other sides: seconds, if all must be fetched


def origin(s: Session) -> Origin:
    """This device as a maker of conflict copies, now."""
    now_ns = s.wall_ns()
    return Origin(label_of(s.certificate.name, date_of(now_ns)), s.device.device_id, now_ns)


def date_of(time_ns: int) -> str:
    """The local date, for people: `20261122`."""
    try:
        return f"{dt.datetime.fromtimestamp(time_ns / 1e9):%Y%m%d}"
    except (OverflowError, ValueError, OSError):  # a clock that is no date
        return "19700101"


def tag_copies(s: Session, merged: Merge, base: Agreed, target: Agreed, contents: Contents, maker: Origin) -> None:
    """Gives the copies that a merge makes their tags."""
    authors = authors_of({c.path for c in merged.conflicts}, base, target, contents)
    ours = Side(maker.device, base.state.v, maker.time_ns)
    for c in merged.conflicts:
        entry = merged.changes[c.kept]
        assert entry is not None, "a copy is there"
        sides = Sides(split(c.path)[1], str(c.reason), authors.get(c.path, Side()), ours)
        merged.changes[c.kept] = marked(entry, sides)


def authors_of(paths: Collection[bytes], base: Agreed, target: Agreed, contents: Contents) -> dict[bytes, Side]:
    """Who agreed what stands at these paths in `target`, each of which changed since `base`.

    Paths of which that cannot be learned now are left out.
    """
    out: dict[bytes, Side] = {}
    left, finds = set(paths), 0
    later = target.snapshot
    try:
        while later is not None and left:
            side = Side(later.device, version_of(later), later.time_ns)
            before = later.parents[0] if later.parents else None
            if before is None or before == base.state.master:
                return out | dict.fromkeys(left, side)
            earlier = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [before])[before])
            finds += 2 * len(left)
            if finds > FINDS_MAX:
                return out
            for path in sorted(left):
                here, there = (contents.walk(walk.find(x.root, path)).entry for x in (later, earlier))
                if here != there:
                    out[path] = side
            left -= out.keys()
            later = earlier
    except MetaSyncError:  # they are shown without their author
        pass
    return out


# ---- the folder


def mark(s: Session, seen: Scan, *, moved: bool = True) -> None:
    """Gives the copies that a checkout made of late changes their tags in what a scan saw.

    `moved`: also where the user gave a copy another place, under its own name; the record follows it.
    """
    tree, base = seen.tree, seen.base
    records = s.db.records(CONFLICTS)
    for record in records:
        entry = tree.get(record.copy)
        if entry is not None and sides_of(entry) is None and record.copy not in base:
            _tag(s, seen, record.copy, sides_in(record))
    gone = {r.copy: r for r in records if r.copy not in tree and r.copy in base}
    if not gone or not moved:
        return
    wanted = {split(copy)[1] for copy in gone}
    new: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    for path, entry in tree.put.items():
        if entry.kind is Kind.FILE and split(path)[1] in wanted and path not in base:
            new[split(path)[1], entry.content].append(path)
    for copy, record in gone.items():
        found = new[split(copy)[1], base[copy].content]
        if len(found) == 1:
            sides = sides_in(record)
            _tag(s, seen, found[0], sides)
            s.db.put_records(CONFLICTS, [record_of(found[0], sides)])


def _tag(s: Session, seen: Scan, path: bytes, sides: Sides) -> None:
    seen.tree[path] = marked(seen.tree[path], sides)
    row = seen.put_rows.get(path) or rows_at(s.db, [path]).get(path)
    if row is not None:
        seen.put_rows[path] = row._replace(entry=seen.tree[path])


def forget_gone(s: Session, also: Collection[bytes] = ()) -> None:
    """Drops the records of these copies, and of all whose copy is gone."""
    records = s.db.records(CONFLICTS)
    s.db.delete_records(CONFLICTS, [c.copy for c in records if c.copy in also or not is_there(s, c.copy)])


def is_there(s: Session, path: bytes) -> bool:
    """Whether something stands at a path, which the scan need not have taken in: an ignored one, say."""
    parent, name = split(path)
    try:
        return s.tree.disk.look(name, s.tree.dir(parent)) is not None
    except OSError:
        return False


# ---- reports


def in_changes(changes: Mapping[bytes, Entry | None], known: Collection[bytes] = ()) -> list[Conflict]:
    """The conflicts whose copies are among these entries, but for those with copies at the `known` paths."""
    found = ((path, sides_of(e)) for path, e in changes.items() if e is not None and e.tags and path not in known)
    return [record_of(path, sides) for path, sides in found if sides is not None]


def told(s: Session, agreed: Agreed, records: Iterable[Conflict]) -> tuple[ConflictReport, ...]:
    """Conflicts for people, ascending by path. `agreed` knows the names of devices."""
    names = names_of(agreed.devices)
    names[s.device.device_id] = s.certificate.name

    def side(path: bytes, device: bytes, version: int, time_ns: int) -> ConflictSide:
        name = names.get(device) or (device.hex()[:8] if device not in (b"", NOBODY) else None)
        return ConflictSide(path, name, device == s.device.device_id, version or None, time_ns or None)

    return tuple(
        ConflictReport(
            c.path,
            c.copy,
            c.reason,
            (
                side(c.path, c.device, c.version, c.time_ns),
                side(c.copy, c.copy_device, c.copy_version, c.copy_time_ns),
            ),
        )
        for c in sorted(records)
    )
