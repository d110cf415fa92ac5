"""What the tests of scan and checkout share: a workspace on a real disk, disks with faults, and trees written in short.

A tree in short is `{path: spec}` with spec `bytes` (a file), `DIR`, `Link(target)` or `File(data, mode, mtime_ns)`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from metasync.checkout.checkout import Applied, Change, Checkout
from metasync.local.state import LocalDb
from metasync.objects.model import Entry, Kind
from metasync.worktree.disk import Disk
from metasync.worktree.index import Row, load_rows
from metasync.worktree.merge_walk import walk_folder
from metasync.worktree.scan import Content, Scan, scan, store_scan
from metasync.worktree.tree import WorkTree

MTIME_NS = 1_600_000_000_123_456_789


class File(NamedTuple):
    data: bytes
    mode: int = 0o644
    mtime_ns: int = MTIME_NS


class Link(NamedTuple):
    target: bytes
    mtime_ns: int = MTIME_NS


class Dir(NamedTuple):
    mode: int = 0o755


DIR = Dir()


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def entry(spec: bytes | File | Link | Dir) -> Entry:
    if isinstance(spec, bytes):
        spec = File(spec)
    if isinstance(spec, Dir):
        return Entry(Kind.DIR, spec.mode, 0, 0, b"")
    if isinstance(spec, Link):
        return Entry(Kind.SYMLINK, 0, spec.mtime_ns, len(spec.target), spec.target)
    return Entry(Kind.FILE, spec.mode, spec.mtime_ns, len(spec.data), digest(spec.data))


def entries(tree: dict[bytes, Any]) -> dict[bytes, Entry]:
    return {path: entry(spec) for path, spec in tree.items()}


def contents(*trees: dict[bytes, Any]) -> dict[bytes, bytes]:
    """Content by its hash, of all files in these trees."""
    out = {}
    for tree in trees:
        for spec in tree.values():
            data = spec if isinstance(spec, bytes) else spec.data if isinstance(spec, File) else b""
            out[digest(data)] = data
    return out


def ingest(fd: int, st: os.stat_result, was: object = None) -> Content:
    data = b""
    while piece := os.read(fd, min(1 << 20, st.st_size - len(data))):
        data += piece
    return Content(len(data), digest(data), b"")


class QuietDisk(Disk):
    """A real disk without the waits: nothing is synced, and the clock's tick takes no time that matters."""

    def syncfs(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass


class Killed(BaseException):
    """The process died here: not an Exception, so that nothing is cleaned up after it."""


class Fuse:
    """Counts steps; at step `at` it blows, and everything after fails as well until it is mended.

    `error` gives what is raised; None: nothing, but it may have done something else.
    """

    def __init__(self, at: int | None = None, error: Callable[[], BaseException | None] = Killed) -> None:
        self.steps = 0
        self.at = at
        self.error = error
        self.sticky = True

    def __call__(self) -> None:
        self.steps += 1
        if self.at is not None and (self.steps == self.at or (self.sticky and self.steps > self.at)):
            error = self.error()
            if error is not None:
                raise error

    def mend(self) -> None:
        self.at = None


UNFUSED = {"close", "read", "fstat", "look", "free_bytes", "sleep"}  # change nothing, or call others
FUSED = frozenset(name for name in vars(Disk) if not name.startswith("_")) - UNFUSED


class FusedDisk(QuietDisk):
    """Each call is one step of the fuse, before it takes effect."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in FUSED:
            return found
        fuse = super().__getattribute__("fuse")

        def call(*args: Any, **kwargs: Any) -> Any:
            fuse()
            return found(*args, **kwargs)

        return call


class FusedDb(LocalDb):
    """Each transaction and each write is a step before it takes effect and one after."""

    fuse: Fuse

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with super().transaction():
            self.fuse()
            yield
            self.fuse()
        self.fuse()

    def set_value(self, name: str, data: bytes | None) -> None:
        self.fuse()
        super().set_value(name, data)
        self.fuse()


def errno_error(code: int) -> Callable[[], OSError]:
    return lambda: OSError(code, os.strerror(code))


class Workspace:
    """A workspace as the engine would use it: what was agreed, scans, and checkouts to other trees."""

    def __init__(self, root: Path, disk: Disk | None = None, fuse: Fuse | None = None) -> None:
        self.root = root
        (root / ".metasync").mkdir(parents=True, exist_ok=True)
        path = root / ".metasync" / "state.db"
        if fuse is None:
            self.db = LocalDb.open(path)
        else:
            FusedDb.fuse = fuse
            self.db = FusedDb.open(path)
        # What a killed process leaves does not depend on it, and hundreds of workspaces wait for the disk otherwise.
        self.db._execute("PRAGMA synchronous = OFF")
        self.tree = WorkTree(os.fsencode(root), disk or QuietDisk())
        self.tree.sets_special = lambda: True  # as with `special-modes on`
        self.base: dict[bytes, Entry] = {}

    def close(self) -> None:
        self.tree.close()
        self.db.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, path: bytes) -> Path:
        return self.root / os.fsdecode(path)

    def scan(self, *, store: bool = True, **kwargs: Any) -> Scan:
        found = scan(walk_folder(self.tree, self.db, self.base), kwargs.pop("ingest", ingest), **kwargs)
        if store:
            store_scan(self.db, found)
        return found

    def scan_past(self) -> Scan:
        """A scan in a later tick of the clock than the last write, so that rows are trusted."""
        self.tree.tick_past(self.tree.clock_ns(), 1.0)
        return self.scan()

    def changes(self, ours: dict[bytes, Entry], new: dict[bytes, Entry]) -> list[Change]:
        rows: dict[bytes, Row] = load_rows(self.db)
        paths = sorted(path for path in ours.keys() | new.keys() if ours.get(path) != new.get(path))
        return [Change(p, new.get(p), rows.get(p) if p in ours else None) for p in paths]

    def stage(self, checkout: Checkout, changes: Iterable[Change], awaited: Iterable[bytes], *trees: Any) -> None:
        by_hash = contents(*trees)
        new = {change.path: change.new for change in changes}
        for path in awaited:
            wanted = new[path]
            assert wanted is not None
            checkout.stage_whole(path, by_hash[wanted.content])

    def check_out(self, tree: dict[bytes, Any], *, before_apply: Callable[[], None] | None = None) -> Applied:
        """Scans, checks `tree` out and takes it as agreed."""
        ours = self.scan_past()
        new = entries(tree)
        checkout = Checkout(self.db, self.tree)
        changes = self.changes(ours.tree, new)
        self.stage(checkout, changes, checkout.begin(changes, {"base": b"new"}), tree)
        if before_apply is not None:
            before_apply()
        applied = checkout.apply()
        self.base = new
        return applied


def write(root: Path, tree: dict[bytes, Any]) -> None:
    """Makes a tree with plain calls, as a user would."""
    for path in sorted(tree):
        spec, at = tree[path], os.path.join(os.fsencode(root), path)
        if isinstance(spec, bytes):
            spec = File(spec)
        if isinstance(spec, Dir):
            os.makedirs(at, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if isinstance(spec, Link):
            os.symlink(spec.target, at)
            os.utime(at, ns=(0, spec.mtime_ns), follow_symlinks=False)
        else:
            with open(at, "wb") as f:
                f.write(spec.data)
            os.chmod(at, spec.mode)
            os.utime(at, ns=(0, spec.mtime_ns))
    for path in sorted(tree, reverse=True):
        if isinstance(tree[path], Dir):
            os.chmod(os.path.join(os.fsencode(root), path), tree[path].mode)


def read(root: Path, *, skip: tuple[bytes, ...] = (b".metasync",)) -> dict[bytes, Any]:
    """What is on the disk, in short, with plain calls."""
    out: dict[bytes, Any] = {}
    top = os.fsencode(root)
    for here, dirs, files in os.walk(top):
        if here == top:
            dirs[:] = [d for d in dirs if d not in skip]
        for name in dirs + files:
            at = os.path.join(here, name)
            st = os.lstat(at)
            path = os.path.relpath(at, top)
            if stat.S_ISLNK(st.st_mode):
                out[path] = Link(os.readlink(at), st.st_mtime_ns)
            elif stat.S_ISDIR(st.st_mode):
                out[path] = Dir(stat.S_IMODE(st.st_mode))
            elif stat.S_ISREG(st.st_mode):
                with open(at, "rb") as f:
                    out[path] = File(f.read(), stat.S_IMODE(st.st_mode), st.st_mtime_ns)
    return out


def files_under(path: Path) -> list[bytes]:
    """The contents of all regular files below a directory."""
    return [spec.data for spec in read(path, skip=()).values() if isinstance(spec, File)]


ENOSPC = errno_error(errno.ENOSPC)
EIO = errno_error(errno.EIO)
EACCES = errno_error(errno.EACCES)


class FoldingDisk(QuietDisk):
    """Finds names whatever their case, as macOS and Windows do."""

    def lstat(self, name: bytes, dir_fd: int) -> os.stat_result:
        for other in os.listdir(dir_fd):
            if os.fsencode(other).lower() == name.lower():
                return super().lstat(os.fsencode(other), dir_fd)
        return super().lstat(name, dir_fd)


# ---- any small tree

names = st.sampled_from([b"a", b"b", b"c"])
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
specs = st.one_of(st.sampled_from([b"", b"1", b"22"]), st.just(DIR), st.just(Link(b"a")))


def shaped(raw: dict[bytes, Any]) -> dict[bytes, Any]:
    """A tree: what has something below it is a directory."""
    out: dict[bytes, Any] = {}
    for path in sorted(raw):
        parts = path.split(b"/")
        above = [b"/".join(parts[:i]) for i in range(1, len(parts))]
        if any(not isinstance(out.get(p, DIR), Dir) for p in above):
            continue
        out.update((p, DIR) for p in above if p not in out)
        out[path] = raw[path]
    return out


trees = st.dictionaries(paths, specs, max_size=8).map(shaped)
