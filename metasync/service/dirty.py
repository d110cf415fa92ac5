"""What a watcher's events make dirty: directories and subtrees that the next walk is to look at. Pure.

Events are hints. A change of a name makes its directory dirty; a directory that came or was moved, with all that is in
it; a lost event, everything. What was taken for a push or pull stays known until that ends well, so that nothing is
forgotten by one that fails. The set is bounded: where too much is dirty, subtrees stand for what is in them.
"""

from __future__ import annotations

from typing import Final

from metasync.objects.model import split
from metasync.worktree.hints import ALL, Hints

DIRS_MAX: Final = 10_000  # held by path: a few megabytes; a walk of as many costs as much as one of all of most folders
FILES_MAX: Final = 5_000  # changed files whose sizes are looked at for the estimate of what a push will send


class Dirty:
    """What changed since the last push or pull that ended well. For one thread at a time.

    changes   counts events, also those that name again what is dirty: by it one knows whether anything came meanwhile
    files     changed files that were not taken, by path; None: too many to be named
    """

    def __init__(self) -> None:
        self._dirs: set[bytes] = set()
        self._trees: set[bytes] = set()
        self._taken = Hints()
        self._taken_files: dict[bytes, None] | None = {}
        self.changes = 0
        self.files: dict[bytes, None] | None = {}

    def name(self, directory: bytes, name: bytes) -> None:
        """A name in a directory came, went or changed."""
        if self.files is not None:
            self.files[directory + b"/" + name if directory else name] = None
            if len(self.files) > FILES_MAX:
                self.files = None
        self.names(directory)

    def names(self, directory: bytes) -> None:
        """A directory's own names are to be looked at again."""
        self.changes += 1
        if not self._is_covered(directory):
            self._dirs.add(directory)
            self._bound()

    def tree(self, directory: bytes) -> None:
        """All that is in a directory is to be looked at again."""
        self.changes += 1
        if not self._is_covered(directory):
            self._trees.add(directory)
            self._bound()

    def everything(self) -> None:
        """Anything may have changed."""
        self.changes += 1
        self.files = None
        self._dirs, self._trees = set(), {b""}

    def take(self) -> Hints:
        """What is dirty, with what was taken before and did not end yet. Asked before each walk."""
        self._taken |= Hints(frozenset(self._dirs), frozenset(self._trees))
        self._taken_files = _both(self._taken_files, self.files)
        self._dirs, self._trees, self.files = set(), set(), {}
        if self._taken.is_all:
            self._taken = ALL
        return self._taken

    def ended(self, *, well: bool) -> None:
        """What was taken is clean now; or, where it did not end well, as dirty as before."""
        if not well:
            self._dirs |= self._taken.dirs
            self._trees |= self._taken.trees
            self.files = _both(self.files, self._taken_files)
            self._bound()
        self._taken, self._taken_files = Hints(), {}

    def __bool__(self) -> bool:
        """Whether anything is dirty that was not taken."""
        return bool(self._dirs or self._trees)

    def __len__(self) -> int:
        """How many directories are dirty that were not taken."""
        return len(self._dirs) + len(self._trees)

    @property
    def is_all(self) -> bool:
        """Whether anything may have changed."""
        return b"" in self._trees

    def _is_covered(self, directory: bytes) -> bool:
        while self._trees and directory not in self._trees:
            if not directory:
                return False
            directory = split(directory)[0]
        return bool(self._trees)

    def _bound(self) -> None:
        """Has subtrees stand for what is deepest, and for all that is in them, until few enough are left."""
        while len(self) > DIRS_MAX and not self.is_all:
            deepest = max(path.count(b"/") + bool(path) for path in (*self._dirs, *self._trees))
            at = {path for path in (*self._dirs, *self._trees) if path.count(b"/") + bool(path) == deepest}
            self._dirs -= at
            self._trees = (self._trees - at) | {split(path)[0] for path in at}
        if self.is_all:
            self._dirs, self._trees = set(), {b""}


def _both(some: dict[bytes, None] | None, more: dict[bytes, None] | None) -> dict[bytes, None] | None:
    if some is None or more is None or len(some) + len(more) > FILES_MAX:
        return None
    return {**some, **more}
