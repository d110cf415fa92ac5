"""What the absence of a path means: deleted here, or nothing known (architecture.md, D8).

A path of the base counts as deleted only if it has a row, its directory was listed completely on the device that the
row names, and the name is gone even when asked for directly (a file system that folds case or NFC lists it under
another spelling); or if its directory is itself deleted, or has become a file. All else keeps the base's entry:
unreadable or unmounted directories, names that are ignored now, nested workspaces, special files, and everything behind
a symlink that took a directory's place.

A *missing* path is not here and will not come back by itself, though nobody deleted it. It went while it was ignored;
or this folder is a copy that lacks it, and the rows are the original's; or its agreed file has no room here, and what
is gone was an older one. It loses its row, so that its absence never says anything again, and the next checkout brings
it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from metasync.objects.model import Kind, split
from metasync.worktree.merge_walk import Noted, Walk
from metasync.worktree.names import MACOS, is_spelling, key


@dataclass(slots=True)
class Verdict:
    """Paths that were not found, ascending. `deleted`: of the base, deleted here. `kept`: they keep the base's entry,
    whatever becomes of the directories above. `missing`: kept, and to be brought again. `forgotten`: of rows alone."""

    deleted: list[bytes] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    forgotten: list[bytes] = field(default_factory=list)
    notes: list[Noted] = field(default_factory=list)


class _Fate(Enum):
    """What became of a path that was not found, and of what was in it."""

    GONE = 1
    KEPT = 2
    MISSING = 3


class _NotHere(NamedTuple):
    """The fate of an agreed directory that this disk could not take: nothing of it is here, on this device."""

    device: int


def judge(found: Walk, waiting: Container[bytes] = ()) -> Verdict:
    """Judges all paths that rows or base know and the walk has not found, its files having been read.

    `waiting`: those that have no room here.
    """
    judging = _Judging(found, waiting)
    for path in found.gone:  # a directory comes before what is in it
        judging.look(path)
    return judging.verdict


class _Judging:
    def __init__(self, found: Walk, waiting: Container[bytes]) -> None:
        self.found = found
        self.waiting = waiting
        self.work = found.work
        self.base = found.base
        self.rules = found.rules
        self.is_copy = found.is_copy
        self.fates: dict[bytes, _Fate | _NotHere] = {}
        self.verdict = Verdict()
        self._absent: set[bytes] = set()
        self._spellings: dict[bytes, dict[object, bytes]] = {}

    def look(self, path: bytes) -> None:
        verdict = self.verdict
        above = self.fate(split(path)[0])
        fate = self.fate_at(path, above)
        self.fates[path] = self.fate_of_kept(path, above) if fate is _Fate.KEPT else fate
        if fate is _Fate.GONE:
            (verdict.deleted if path in self.base else verdict.forgotten).append(path)
        elif path in self.base:
            verdict.kept.append(path)
            if fate is _Fate.MISSING:
                verdict.missing.append(path)

    def fate_of_kept(self, path: bytes, above: _Fate | _NotHere | int) -> _Fate | _NotHere:
        """Whether a kept path is a directory of which nothing is here."""
        entry = self.base.get(path)
        if entry is None or entry.kind is not Kind.DIR or path in self.found.rows:
            return _Fate.KEPT
        if isinstance(above, _Fate) or self.rules.may_ignore(path, True):
            return _Fate.KEPT
        if isinstance(above, _NotHere):
            return above
        try:
            parent, name = split(path)
            here = self.work.disk.look(name, self.work.dir(parent))
        except OSError:
            return _Fate.KEPT
        return _NotHere(above) if here is None or self.work.rules.has_twins else _Fate.KEPT

    def fate(self, directory: bytes) -> _Fate | _NotHere | int:
        """The device that a directory was listed on, or its fate."""
        device = self.found.listed.get(directory)
        if device is not None:
            return device
        if directory in self.fates:
            return self.fates[directory]
        if directory in self.found.blocked or not directory:
            return _Fate.KEPT
        here = self.found.tree.get(directory)
        if here is not None:
            # A directory that was not walked keeps what is in it; a file in its place ends it.
            return _Fate.KEPT if here.kind is Kind.DIR else _Fate.GONE
        above = self.fate(split(directory)[0])
        return above if isinstance(above, _Fate) else _Fate.GONE

    def fate_at(self, path: bytes, above: _Fate | _NotHere | int) -> _Fate:
        """The fate of a path in a directory whose fate is `above`."""
        row = self.found.row(path) if path in self.found.rows else None
        if row is None or above is _Fate.KEPT:
            return _Fate.KEPT
        is_dir = row.entry.kind is Kind.DIR
        if self.rules.may_ignore(path, is_dir):
            return _Fate.KEPT
        device = above.device if isinstance(above, _NotHere) else above
        if not isinstance(device, _Fate) and row.dev != device and not self.is_copy:
            if path in self.base:
                self.note(path, "not here, but its disk is not the one it was on: kept")
            return _Fate.KEPT
        if isinstance(above, int) and not self.is_absent(path):
            return _Fate.KEPT
        if path not in self.base:
            return _Fate.GONE
        if above is _Fate.MISSING or path in self.waiting:
            return _Fate.MISSING
        if self.is_copy and above is not _Fate.GONE:
            self.note(path, "not here, but this folder is a copy: kept; the pull after the next push brings it")
            return _Fate.MISSING
        if self.rules.ignored_before(path, is_dir):
            self.note(path, "went while it was ignored: kept; the pull after the next push brings it")
            return _Fate.MISSING
        return _Fate.GONE

    def note(self, path: bytes, why: str) -> None:
        self.verdict.notes.append(Noted(path, why))

    def is_absent(self, path: bytes) -> bool:
        """Asks for a name that was not listed. It may be listed under another spelling, or just made."""
        parent, name = split(path)
        try:
            st = self.work.disk.lstat(name, self.work.dir(parent))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        # A new spelling of the user's is a rename, if it is more than what the file system makes of every name (NFC).
        spellings = self.spellings(parent)
        found = spellings.get(self.key(name)) or spellings.get((st.st_dev, st.st_ino))
        return found is not None and not is_spelling(name, found, MACOS)

    def spellings(self, directory: bytes) -> dict[object, bytes]:
        """New names that the user may have given a file, by key (where names have twins) and by inode: some file
        systems (FAT by FUSE) give each spelling an inode of its own.

        An agreed name that was never here is none of them: the file keeps its name, see `case`. Nor is a name with a
        row where names are not known to have twins: both may have been here before the disk came to fold case.
        """
        if directory not in self._spellings:
            out = self._spellings[directory] = {}
            found, has_twins = self.found, self.work.rules.has_twins
            self._absent = self._absent or {*found.gone, *found.blocked}
            for path in found.tree.inside({directory}):
                if path in self._absent:
                    continue
                before = found.row(path)
                row = found.put_rows.get(path) or before
                if row is not None and (path not in self.base or (before is not None and has_twins)):
                    name = split(path)[1]
                    out[row.dev, row.ino] = name
                    if has_twins:
                        out[self.key(name)] = name
        return self._spellings[directory]

    def key(self, name: bytes) -> bytes:
        return key(name, self.work.rules)
