"""Which agreed path a name on the disk stands for, where the disk takes several names for one (see `worktree.names`).

Of a set of twins, this device holds the one that has a row, mostly listed under its own name. Under another name,
either the user renamed it; or the disk spells it in its own way; or the name is that of an agreed twin, which was never
here, so that the file is still the one of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metasync.local.state import State
from metasync.objects.model import Entry, split
from metasync.worktree.index import children
from metasync.worktree.names import is_spelling, key
from metasync.worktree.tree import WorkTree


def respelled(
    work: WorkTree, db: State, base: Mapping[bytes, Entry], directory: bytes, names: list[bytes], fd: int
) -> list[bytes]:
    """The names listed in a directory, ascending; a name that stands for another's row is replaced by that one's.

    Only for a disk with `Rules.has_twins`.
    """
    rules = work.rules
    here = set(names)
    prefix = directory + b"/" if directory else b""
    known = {path[len(prefix) :] for path, _ in children(db, directory)}
    missing = known - here
    if not missing:
        return names
    new = {key(name, rules): name for name in names if name not in known}
    for meant in sorted(missing):
        found = new.get(key(meant, rules))
        if found is None or work.disk.look(meant, fd) is None:
            continue
        if prefix + found in base or is_spelling(meant, found, rules):
            here.remove(found)
            here.add(meant)
            del new[key(meant, rules)]
    return sorted(here)


class Presence:
    """Tells paths that are here from those by whose names others are found. Names are cached: for one moment."""

    def __init__(self, work: WorkTree, db: State) -> None:
        self.work = work
        self.db = db
        self._shadowed: dict[bytes, bool] = {b"": False}
        self._names: dict[bytes, frozenset[bytes]] = {}

    def is_shadowed(self, path: bytes) -> bool:
        """Whether what is found at a path is a twin: of it, or of a directory on the way."""
        if not self.work.rules.has_twins:
            return False
        todo = []
        while path not in self._shadowed:
            todo.append(path)
            path = split(path)[0]
        shadowed = self._shadowed[path]
        for below in reversed(todo):
            shadowed = shadowed or self._is_twin(below)
            self._shadowed[below] = shadowed
        return shadowed

    def _is_twin(self, path: bytes) -> bool:
        parent, name = split(path)
        try:
            above = self.work.dir(parent)
            if parent not in self._names:
                self._names[parent] = frozenset(self.work.disk.names(above))
            names = self._names[parent]
            if name in names or self.work.disk.look(name, above) is None:
                return False
        except OSError:
            return False
        rules = self.work.rules
        here = next((other for other in names if key(other, rules) == key(name, rules)), None)
        if here is None or is_spelling(name, here, rules):
            return here is None
        # By its row, it is what the twin's name stands for here.
        listed = parent + b"/" + here if parent else here
        return self.db.packed_row(path) is None or self.db.packed_row(listed) is not None


def twin_here(work: WorkTree, name: bytes, above: int) -> bytes | None:
    """The listed name in the directory `above` that the disk takes for `name`; None if there is none."""
    rules = work.rules
    if not rules.has_twins:
        return None
    names = work.disk.names(above)
    if name in names:
        return None
    return next((here for here in names if key(here, rules) == key(name, rules)), None)


def taken(work: WorkTree, *trees: Mapping[bytes, Entry]) -> Callable[[bytes], bool]:
    """A function that tells whether a new name would be a twin of one in these trees; for conflict copies."""
    rules = work.rules
    known: set[bytes] = set()

    def is_taken(path: bytes) -> bool:
        if not known:
            known.update(key(path, rules) for tree in trees for path in tree)
        return key(path, rules) in known

    return is_taken if rules.has_twins else lambda _: False
