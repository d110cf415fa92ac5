"""The person at a client: edits files, also while MetaSync is at work, and knows what must still be somewhere."""

from __future__ import annotations

import hashlib
import random
import stat as stat_
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from metasync.worktree.disk import CREATE_FLAGS, DIR_FLAGS, WRITE_FLAGS
from simulation.disk import Node, SimDisk, Volume

FILES_MAX: Final = 12
LINES_LONG: Final = 300  # of a scenario's file
BACK_SHARE: Final = 0.3  # of changes, where a user goes back at all
NAMES: Final = (b"a", b"b", b"c", b"d.txt", b"e.txt", b"f.txt", b"sub", b"B", "\u00fc".encode())
STATE: Final = b".metasync"


class Thing(NamedTuple):
    """One path of a tree, for comparison. Directories have no time."""

    kind: str
    mode: int
    mtime_ns: int
    data: bytes


def tree_of(volume: Volume) -> dict[bytes, Thing]:
    """All that is on a volume, without `.metasync`."""
    out: dict[bytes, Thing] = {}

    def walk(node: Node, prefix: bytes) -> None:
        for name, below in node.entries.values():
            path = prefix + name
            if not prefix and name == STATE:
                continue
            if below.is_dir:
                out[path] = Thing("dir", stat_.S_IMODE(below.mode), 0, b"")
                walk(below, path + b"/")
            elif below.is_link:
                out[path] = Thing("link", 0, below.mtime, below.data)
            else:
                out[path] = Thing("file", stat_.S_IMODE(below.mode), below.mtime, below.data)

    walk(volume.root, b"")
    return out


def replaced_in(volume: Volume) -> set[bytes]:
    """What lies in `.metasync/replaced` and `.metasync/tmp`."""
    state = volume.root.entries.get(volume.key(STATE))
    todo = []
    if state is not None:
        todo = [state[1].entries.get(volume.key(name), (name, None))[1] for name in (b"replaced", b"tmp")]
    out: set[bytes] = set()
    while todo:
        node = todo.pop()
        if node is not None and node.is_dir:
            todo += [below for _, below in node.entries.values()]
        elif node is not None:
            out.add(node.data)
    return out


def lines_of(contents: Iterable[bytes]) -> set[bytes]:
    """The lines of these contents. No two that users write are equal."""
    return {line for data in contents for line in data.split(b"\n") if line}


class User:
    """`own`: contents that this user wrote and did not itself overwrite or delete. `stood`: the
    path and content of all it ever wrote. `goes_back`: it brings back now and then what stood in a file before.
    `writes_much`: its files are long, and it edits them."""

    def __init__(self, name: str, volume: Volume) -> None:
        self.name = name
        self.volume = volume
        self.own: set[bytes] = set()
        self.stood: set[tuple[bytes, bytes]] = set()
        self.goes_back = False
        self.writes_much = False
        self.lines: set[bytes] = set()  # that this user wrote
        self.removed: set[bytes] = set()  # lines, whosesoever, that this user saw and took away
        self.moved: set[bytes] = set()  # contents that this user gave another name or other permissions
        self._serial = 0

    def has(self, volume: Volume) -> None:
        """Another disk stands in the place of the old one: what is on it is what the user has."""
        self.volume = volume
        here = {t.data for t in tree_of(volume).values() if t.kind == "file"}
        self.own &= here
        self.lines &= lines_of(here)

    def edit(self, rng: random.Random) -> None:
        """One random change. It is durable at once: what a program loses that did not sync is not MetaSync's."""
        disk = SimDisk(self.volume)
        tree = tree_of(self.volume)
        files = sorted(p for p, t in tree.items() if t.kind == "file")
        what = rng.random()
        try:
            if what < 0.45 or not files:
                self._write(disk, self._new_path(rng, tree), self._fresh(rng))
            elif what < 0.75:
                path = rng.choice(files)
                self._write(disk, path, self._changed(rng, path, tree[path].data))
            elif what < 0.87 or len(files) > FILES_MAX:
                path = rng.choice(files)
                self._take_away(tree[path].data)
                above, name = self._above(disk, path)
                disk.unlink(name, above)
            elif what < 0.95:
                self._rename(disk, rng.choice(files), self._new_path(rng, tree))
            else:
                path = rng.choice(files)
                above, name = self._above(disk, path)
                self.moved.add(tree[path].data)
                disk.chmod(name, above, rng.choice((0o644, 0o600, 0o755)))
        except OSError:
            pass  # a name this disk does not take, a directory in the way: the user tries something else
        self.volume.sync()

    def _fresh(self, rng: random.Random) -> bytes:
        self._serial += 1
        lines = [b"%s %d line %d" % (self.name.encode(), self._serial, n) for n in range(self._lines(rng))]
        return b"\n".join(lines) + b"\n"

    def _lines(self, rng: random.Random) -> int:
        return rng.choice((5, 20, 40) if self.writes_much else (1, 1, 5))

    def _changed(self, rng: random.Random, path: bytes, old: bytes) -> bytes:
        if self.goes_back and rng.random() < BACK_SHARE:
            return rng.choice(sorted(data for at, data in self.stood if at == path) or [old])
        if not (self.writes_much or path.endswith(b".txt")) or rng.random() < 0.3:
            return self._fresh(rng)
        lines = old.split(b"\n")
        self._serial += 1
        lines.insert(rng.randrange(len(lines)), b"%s %d" % (self.name.encode(), self._serial))
        return b"\n".join(lines[-40:])

    def _new_path(self, rng: random.Random, tree: dict[bytes, Thing]) -> bytes:
        name = rng.choice(NAMES)
        if rng.random() < 0.3:
            return rng.choice((b"dir/", b"dir/deep/", b"sub/")) + name
        return name

    def _above(self, disk: SimDisk, path: bytes, *, make: bool = False) -> tuple[int, bytes]:
        fd = disk.open_top(b"/")
        *folders, name = path.split(b"/")
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    disk.mkdir(folder, fd, 0o755)
            fd = disk.open(folder, DIR_FLAGS, fd)
        return fd, name

    def _write(self, disk: SimDisk, path: bytes, data: bytes) -> None:
        above, name = self._above(disk, path, make=True)
        found = disk.look(name, above)
        old = b""
        if found is None:
            fd = disk.open(name, CREATE_FLAGS, above, 0o644)
        elif stat_.S_ISREG(found.st_mode):
            fd = disk.open(name, WRITE_FLAGS, above)
            old = disk.read(fd, found.st_size, 0)
            self._take_away(old, data)
        else:
            return
        self.volume.write(disk.node(fd), data)
        self.own.add(data)
        self.lines |= lines_of([data]) - lines_of([old])
        self.stood.add((path, data))

    def _take_away(self, data: bytes, left: bytes = b"") -> None:
        """A content goes by this user's hand, and its lines, but for those that are left."""
        self.own.discard(data)
        self.removed |= lines_of([data]) - lines_of([left])

    def _rename(self, disk: SimDisk, old: bytes, new: bytes) -> None:
        above, name = self._above(disk, old)
        there, target = self._above(disk, new, make=True)
        found = disk.look(target, there)
        self.moved.add(self.volume.find(disk.node(above), name).data)
        if found is not None and stat_.S_ISREG(found.st_mode) and (above, name) != (there, target):
            node, moved = self.volume.find(disk.node(there), target), self.volume.find(disk.node(above), name)
            if node is not moved:
                self._take_away(node.data)
        disk.rename(name, above, target, there)

    def write(self, path: bytes, number: int) -> None:
        """What a scenario has in a file: another text each hundred, of which the others are that with one line more."""
        story, line = divmod(number, 100)
        lines = [hashlib.sha256(b"%d %d" % (story, n)).hexdigest().encode() for n in range(LINES_LONG)]
        lines[line:line] = [b"a line more"] * bool(line)
        self._write(SimDisk(self.volume), path, b"\n".join(lines))
        self.volume.sync()
