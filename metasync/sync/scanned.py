"""What a scan of the folder comes to: where it differs from an agreed tree, as reports name it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metasync.local.spill import Large, Paths
from metasync.local.state_keys import CONFLICTS
from metasync.merge.renames import may_be_renamed, renames
from metasync.objects.model import Entry, Kind
from metasync.reports.sync import Changes, PushReport, Renamed, Skipped
from metasync.session.session import Agreed, Session
from metasync.worktree.hints import ALL, Hints
from metasync.worktree.ingest import Ingest
from metasync.worktree.merge_walk import Walk, walk_folder, walk_index
from metasync.worktree.names import unportable
from metasync.worktree.overlay import Tree, changed
from metasync.worktree.scan import Reading, Scan, scan

LIVE_ENDS: Final = (b"HEAD", b"PG_VERSION", b"ibdata1", b"CURRENT", b"-wal", b"-journal", b"-shm")
"""How paths end by which `live_data` finds what it looks for: of most pushes nothing more need be known."""


@dataclass(frozen=True)
class Here:
    """What a scan found. `differing`: paths at which the folder is not what is agreed."""

    walked: Walk
    seen: Scan
    differing: Collection[bytes]

    @property
    def before(self) -> Tree:
        """The agreed tree."""
        return self.seen.base

    @property
    def touched(self) -> set[bytes] | None:
        """Paths at which the rows may not be the tree any more; None: they were not the agreed tree."""
        seen = self.seen
        if not self.walked.is_settled:
            return None
        return {*seen.tree.put, *seen.tree.gone, *seen.put_rows, *seen.delete_rows}

    @property
    def found(self) -> Iterable[tuple[bytes, Entry | None]]:
        """What is here at the differing paths."""
        tree = self.seen.tree
        # Where nothing was agreed these are all, and one by one they cost more.
        return ((path, tree.get(path)) for path in self.differing) if self.before else tree.put.items()

    @property
    def changes(self) -> Changes:
        """The differing paths, for people."""
        before, tree = self.before, self.seen.tree
        return summary(self.differing, before.get, tree.get) if before else summary_of_new(tree.put)

    @property
    def unportable(self) -> tuple[Skipped, ...]:
        """New names that other systems cannot hold."""
        before, tree = self.before, self.seen.tree
        if isinstance(tree.put, Large) and not before:
            return noted(unportable(tree.put, tree.put, ascending=True))
        fresh = self._fresh
        return noted(unportable(fresh, tree.near(fresh)))

    @property
    def live(self) -> tuple[Skipped, ...]:
        """New databases and repositories that other programs write to, with what is said of them."""
        if not any(path.endswith(LIVE_ENDS) for path in self._fresh):
            return ()
        from metasync.worktree.live_data import live_data, warning

        return tuple(Skipped(found.path, warning(found)) for found in live_data(self._fresh))

    @property
    def _fresh(self) -> Collection[bytes]:
        """New paths."""
        before, tree = self.before, self.seen.tree
        return [p for p in self.differing if p in tree and p not in before] if before else tree.put.keys()


def walk(s: Session, base: Agreed, hints: Hints = ALL) -> Walk:
    """A walk of the folder, beside the index alone if that is the agreed tree: then by `hints`."""
    return walk_index(s.tree, s.db, base.tree_root, hints) or walk_folder(s.tree, s.db, s.flat(base))


def scan_folder(s: Session, walked: Walk, ingest: Ingest, reading: Reading | None = None) -> Here:
    """Scans what a walk has found to differ, and reads it."""
    seen = scan(walked, ingest, reading, s.around.growing())
    if s.db.count_records(CONFLICTS):
        from metasync.sync import sides

        sides.mark(s, seen)
    return Here(walked, seen, changed(seen.tree))


def summary_of_new(tree: Mapping[bytes, Entry]) -> Changes:
    """The same where nothing was there before."""
    if not isinstance(tree, Large):
        return summary(tree, lambda _: None, tree.get)
    above = {path.rpartition(b"/")[0] for path in tree}  # no parent of these is not among them: it is in the tree
    return Changes(added=Paths(path for path in tree if path not in above))


def summary(
    paths: Iterable[bytes], before: Callable[[bytes], Entry | None], after: Callable[[bytes], Entry | None]
) -> Changes:
    """Changes for people, of what was and is at these paths. Directories only where nothing inside them is named.

    A file that became a directory, or the other way round, counts as modified.
    """
    added: list[bytes] = []
    modified: list[bytes] = []
    deleted: list[bytes] = []
    parents: set[bytes] = set()
    dirs: set[bytes] = set()
    for path in paths:  # no list of all entries: they are large
        a, b = before(path), after(path)
        if a == b:
            continue
        (added if a is None else deleted if b is None else modified).append(path)
        if all(e is None or e.kind is Kind.DIR for e in (a, b)):
            dirs.add(path)
        while b"/" in path:
            path = path.rpartition(b"/")[0]
            if path in parents:
                break
            parents.add(path)
    dirs &= parents
    renamed = _renamed(added, deleted, before, after) if added and deleted else {}
    left_out = {*dirs, *renamed, *renamed.values()}
    return Changes(
        added=tuple(sorted(p for p in added if p not in left_out)),
        modified=tuple(sorted(p for p in modified if p not in left_out)),
        deleted=tuple(sorted(p for p in deleted if p not in left_out)),
        renamed=tuple(Renamed(path, was) for path, was in sorted(renamed.items())),
    )


def _renamed(
    added: Iterable[bytes],
    deleted: Iterable[bytes],
    before: Callable[[bytes], Entry | None],
    after: Callable[[bytes], Entry | None],
) -> dict[bytes, bytes]:
    gone = ((p, e) for p in deleted if (e := before(p)) is not None and may_be_renamed(e))
    new = ((p, e) for p in added if (e := after(p)) is not None and may_be_renamed(e))
    return renames(gone, new, sure=False)


def noted(items: Iterable[tuple[bytes, str]]) -> tuple[Skipped, ...]:
    return tuple(Skipped(path, reason) for path, reason in items)


def push_report(s: Session, seen: Scan, version: int | None, changes: Changes) -> PushReport:
    """A report with what the scan left out."""
    return PushReport(
        version,
        changes,
        busy=noted((p, "changed while it was read") for p in seen.busy),
        unreadable=noted(seen.unreadable),
        skipped=noted(seen.skipped),
        down=dict(s.down),
        warnings=tuple(seen.warnings),
    )
