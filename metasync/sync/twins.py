"""Which agreed path a name on the disk stands for, where the disk takes several names for one (see `sync.names`).

Theory of operation. Of a set of twins, this device holds the one that has a row. Mostly it is listed under its own
name. Where it is not, either the user gave it another spelling, which is a rename like any other; or the disk spells it
in its own way; or the new spelling is an agreed twin's name, which is taken: then it still is the file of its row, for
that twin's own file was never here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from metasync.local.state import State
from metasync.objects.model import Entry, Kind
from metasync.sync.fsio import WorkTree, split
from metasync.sync.names import clashes, is_spelling, key, problem
from metasync.sync.part import children
from metasync.sync.plan import Change
from metasync.sync.rows import Row


def by_directory(paths: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """Names by the directory they are in."""
    out: dict[bytes, list[bytes]] = {}
    for path in paths:
        parent, _, name = path.rpartition(b"/")
        out.setdefault(parent, []).append(name)
    return out


class Spellings:
    """For a scan: the paths that listed names stand for. To be asked only where `Rules.has_twins`."""

    def __init__(self, work: WorkTree, rows: Mapping[bytes, Row], base: Mapping[bytes, Entry]) -> None:
        self.work = work
        self.rows = rows
        self.base = base
        self._known: dict[bytes, list[bytes]] | None = None

    def of(self, directory: bytes, names: list[bytes], fd: int) -> dict[bytes, bytes]:
        """Of the names listed in a directory those that stand for another one: `{listed: meant}`."""
        rules = self.work.rules
        if not rules.has_twins:
            return {}
        if self._known is None:
            self._known = by_directory(self.rows)
        here = set(names)
        missing = [name for name in self._known.get(directory, ()) if name and name not in here]
        if not missing:
            return {}
        prefix = directory + b"/" if directory else b""
        new = {key(name, rules): name for name in names if prefix + name not in self.rows}
        out: dict[bytes, bytes] = {}
        for meant in sorted(missing):
            found = new.get(key(meant, rules))
            if found is None or self.work.disk.look(meant, fd) is None:
                continue
            if prefix + found in self.base or is_spelling(meant, found, rules):
                out[found] = meant
                del new[key(meant, rules)]
        return out


def unfit(work: WorkTree, db: State, changes: tuple[Change, ...]) -> dict[int, str]:
    """Which changes this disk can't take, by number, with the reason: known before anything is downloaded.

    Only what is not here yet is judged, and links where there are none. What stands here anyway can be held.
    """
    rules = work.rules
    out: dict[int, str] = {}
    fresh: dict[bytes, list[bytes]] = {}
    number: dict[bytes, int] = {}
    for i, (path, new, expected) in enumerate(changes):
        if new is None:
            continue
        if new.kind is Kind.SYMLINK and not rules.symlinks:
            out[i] = "this file system has no symlinks"
        elif expected is None:
            if why := problem(path, rules):
                out[i] = why
            elif rules.has_twins:
                number[path] = i
                parent, name = split(path)
                fresh.setdefault(parent, []).append(name)
    if fresh:
        freed = {change.path for change in changes if change.new is None}
        made = {change.path for change in changes if _is_dir(change) and change.expected is None}
        for path, winner in _shadowed(work, db, fresh, freed, made).items():
            out[number[path]] = f"this file system takes its name for {_shown(winner)}, which is here"
    return {**_below(work, db, changes, out), **out}


def _shadowed(
    work: WorkTree, db: State, fresh: Mapping[bytes, list[bytes]], freed: set[bytes], made: set[bytes]
) -> dict[bytes, bytes]:
    """Which of the new names have no place for a twin's sake: path -> the twin's name.

    `freed`: paths that this checkout empties. `made`: directories it makes: by their names, others may be reached now.
    """
    rules = work.rules
    out: dict[bytes, bytes] = {}
    for parent, names in fresh.items():
        prefix = parent + b"/" if parent else b""
        here: list[bytes] = []
        if parent not in made:
            with suppress(OSError):  # not there: to be made again
                here = work.disk.names(work.dir(parent))
        wanted = {key(name, rules) for name in names}
        near = [name for name in here if key(name, rules) in wanted]
        held = set()
        if near:
            known = {path[len(prefix) :] for path, _ in children(db, parent)}
            rowed = {key(n, rules): n for n in sorted(known, key=lambda n: (prefix + n not in freed, n))}
            for name in near:
                owner = name if name in known else rowed.get(key(name, rules), name)
                # A file of nobody's under exactly a new name is in its way, and is set aside: no twin.
                if prefix + owner not in freed and owner not in names:
                    held.add(owner)
        for name, winner in clashes(names, rules, held).items():
            out[prefix + name] = winner
    return out


def _below(work: WorkTree, db: State, changes: tuple[Change, ...], unfit: Mapping[int, str]) -> dict[int, str]:
    """What is inside directories that are not here: on a disk with twins it would land in another one."""
    missing = {changes[i].path for i in unfit if _is_dir(changes[i])}
    made = {change.path for change in changes if _is_dir(change)}
    presence = Presence(work, db)
    # By the name of a directory that an earlier checkout could not bring, its twin is found, under whatever spelling.
    absent = db.unplaced().keys() - made if work.rules.has_twins else frozenset[bytes]()
    out: dict[int, str] = {}
    for i, change in enumerate(changes):
        parent = split(change.path)[0]
        is_away = parent in missing or parent in absent
        if change.new is not None and (is_away or (parent not in made and presence.is_shadowed(parent))):
            out[i] = "its directory is not here"
            if _is_dir(change):
                missing.add(change.path)
    return out


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


def _is_dir(change: Change) -> bool:
    return change.new is not None and change.new.kind is Kind.DIR


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
