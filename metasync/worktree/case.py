"""Which agreed path a name on the disk stands for, where the disk takes several names for one (see `worktree.names`).

Theory of operation. Of a set of twins, this device holds the one that has a row. Mostly it is listed under its own
name. Where it is not, either the user gave it another spelling, which is a rename like any other; or the disk spells it
in its own way; or the new spelling is an agreed twin's name, which is taken: then it still is the file of its row, for
that twin's own file was never here.
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
    """The names listed in a directory, ascending; those that stand for another one's row as that one's.

    To be asked only where `Rules.has_twins`.
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
    """Tells paths that are here from those by whose names others are found. True of one moment: names are kept."""

    def __init__(self, work: WorkTree, db: State) -> None:
        self.work = work
        self.db = db
        self._shadowed: dict[bytes, bool] = {b"": False}
        self._names: dict[bytes, frozenset[bytes]] = {}

    def is_shadowed(self, path: bytes) -> bool:
        """Whether something is found at a path that is not what has this name: it, or a directory on the way, is not
        here, and a twin of it is."""
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
    """The name that is listed in the directory `above` and that the disk takes for `name`; None if there is none."""
    rules = work.rules
    if not rules.has_twins:
        return None
    names = work.disk.names(above)
    if name in names:
        return None
    return next((here for here in names if key(here, rules) == key(name, rules)), None)


def taken(work: WorkTree, *trees: Mapping[bytes, Entry]) -> Callable[[bytes], bool]:
    """Tells whether a new name would be a twin of one in these trees; for the names of conflict copies."""
    rules = work.rules
    known: set[bytes] = set()

    def is_taken(path: bytes) -> bool:
        if not known:
            known.update(key(path, rules) for tree in trees for path in tree)
        return key(path, rules) in known

    return is_taken if rules.has_twins else lambda _: False


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
