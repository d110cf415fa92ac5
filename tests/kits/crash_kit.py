"""What the tests of crashes and contention share: processes that are killed, seeded trees, and a walk through history.

Children come from a fork server that has the product imported already: real processes with real `kill -9`, at 20 ms
each instead of 350.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import signal
import stat
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metasync.consensus import proposer
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.history.log import version_of
from metasync.keys.slots import Cost
from metasync.local.state import LocalDb
from metasync.objects import walk
from metasync.objects.model import Entry, Kind, ObjectKind, Snapshot, decode_snapshot
from metasync.runtime import effects
from metasync.session import agreement, connections, open_backend
from metasync.workspace import Workspace
from metasync.worktree import disk

PASSPHRASE = "correct horse battery staple"
NAME = "crashes"
CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
DEAD = 137  # what a child that kills itself exits with
CHILD_MAX_S = 60.0  # longer than any command here may take, deadline without a quorum included

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["metasync.workspace", "crash_kit"])


def quiet_environment() -> None:
    """No keyring of the system, no passphrase asked for; inherited by the fork server."""
    os.environ["METASYNC_KEYRING"] = "off"
    os.environ["METASYNC_PASSPHRASE"] = PASSPHRASE


# ---- trees on disk


class Node(NamedTuple):
    """One path as it stands on the disk. `data`: bytes of a file, target of a symlink."""

    kind: str
    mode: int
    mtime_ns: int
    data: bytes


def read_tree(root: str | os.PathLike[str]) -> dict[bytes, Node]:
    """Everything below `root` but its `.metasync`; of directories the mode alone."""
    top = os.fsencode(root)
    out: dict[bytes, Node] = {}
    todo = [b""]
    while todo:
        at = todo.pop()
        with os.scandir(os.path.join(top, at)) as names:
            for found in names:
                if found.name.startswith(b".metasync"):
                    continue
                path = at + b"/" + found.name if at else found.name
                st = found.stat(follow_symlinks=False)
                if stat.S_ISDIR(st.st_mode):
                    out[path] = Node("dir", stat.S_IMODE(st.st_mode), 0, b"")
                    todo.append(path)
                elif stat.S_ISLNK(st.st_mode):
                    out[path] = Node("link", 0, st.st_mtime_ns, os.readlink(found.path))
                else:
                    with open(found.path, "rb") as f:
                        out[path] = Node("file", stat.S_IMODE(st.st_mode), st.st_mtime_ns, f.read())
    return out


def same_trees(trees: Mapping[str, Mapping[bytes, Node]]) -> None:
    """Asserts that all trees are one, naming the first difference."""
    first, *others = trees
    for other in others:
        a, b = trees[first], trees[other]
        for path in sorted(a.keys() | b.keys()):
            x, y = a.get(path), b.get(path)
            assert x == y, f"{path!r}: {first} has {_short(x)}, {other} has {_short(y)}"


def _short(node: Node | None) -> str:
    return "nothing" if node is None else str(node._replace(data=node.data[:40]))


def make_tree(root: Path, rng: random.Random, files: int = 400, big: int = 5) -> None:
    """A tree of `files` files in some directories, `big` of them of 1 to 3 MB, with symlinks and an empty directory."""
    root.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        folder = root / f"d{i % 17}" / (f"e{i % 5}" if i % 3 else "")
        folder.mkdir(parents=True, exist_ok=True)
        data = rng.randbytes(rng.randrange(1_000_000, 3_000_000)) if i < big else rng.randbytes(rng.randrange(1, 9000))
        (folder / f"f{i}").write_bytes(data)
    (root / "empty").mkdir(exist_ok=True)
    for i in range(3):
        (root / f"link{i}").symlink_to(f"d{i}/f{i}")


def edit_some(root: Path, rng: random.Random, count: int, mark: str) -> None:
    """Rewrites, adds and removes about `count` files, one big one among them."""
    files = sorted(p for p in root.rglob("*") if ".metasync" not in p.parts and p.is_file() and not p.is_symlink())
    for path in rng.sample(files, min(count, len(files))):
        if rng.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(mark.encode() + rng.randbytes(rng.randrange(1, 9000)))
    big = [p for p in files if p.exists() and p.stat().st_size > 500_000]
    if big:
        path = rng.choice(big)
        data = path.read_bytes()
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + mark.encode() + rng.randbytes(200_000) + data[at + 200_000 :])
    new = root / f"new-{mark}"
    new.mkdir()
    for i in range(max(2, count // 5)):
        (new / f"n{i}").write_bytes(rng.randbytes(rng.randrange(1, 5000)))


# ---- children


class Child:
    """A process that calls `function(*arguments)`; it says when it starts, and what came of it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._mine, theirs = _processes.Pipe()
        settings = dict(os.environ)  # what the fork server inherited is what stood there when it started
        self._process = _processes.Process(target=_child, args=(theirs, settings, function, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Waits until the child is about to call."""
        assert self._mine.poll(CHILD_MAX_S), "the child did not start"
        assert self._mine.recv() == "ready"

    def kill(self) -> bool:
        """`kill -9`. True if it struck before the call had ended."""
        if self._process.is_alive():  # asks the fork server's pipe, so that no other process can get the signal
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._process.join(CHILD_MAX_S)
        return self._process.exitcode == -signal.SIGKILL

    def wait(self) -> Any:
        """What the call returned; raises what it raised."""
        good, value = self.outcome()
        if not good:
            raise AssertionError(f"the child failed:\n{value}")
        return value

    def outcome(self) -> tuple[bool, Any]:
        """(True, value), or (False, the traceback)."""
        try:
            while self._mine.poll(CHILD_MAX_S):
                message = self._mine.recv()
                if message != "ready":
                    return message  # type: ignore[no-any-return]
        except EOFError:
            self._process.join(CHILD_MAX_S)
            return False, f"it died with exit code {self._process.exitcode}"
        finally:
            self._process.join(1)
        self.kill()
        raise AssertionError(f"the child did not end within {CHILD_MAX_S} s")

    def told(self) -> bool:
        """True if the call of a child that was killed had ended before."""
        try:
            return self._mine.poll(0) and self._mine.recv() is not None
        except EOFError:
            return False

    @property
    def exit_code(self) -> int | None:
        self._process.join(CHILD_MAX_S)
        return self._process.exitcode


def _child(
    pipe: Connection, settings: Mapping[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(settings)
    pipe.send("ready")
    try:
        outcome: tuple[bool, Any] = True, function(*arguments)
    except BaseException:
        outcome = False, traceback.format_exc()
    with contextlib.suppress(OSError):
        pipe.send(outcome)


def run_init(directory: str, urls: list[str], name: str = NAME, replicas: int = 2) -> None:
    Workspace.init(
        directory, name=name, backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, replicas=replicas, device_name="first"
    ).workspace.close()


def run_push(directory: str, message: str = "") -> tuple[int | None, int | None]:
    """-> (version, found_again) of the report."""
    with Workspace.open(directory) as w:
        report = w.push(message)
        assert not report.busy, report.busy
        assert not report.unreadable, report.unreadable
        return report.version, report.found_again


def run_pull(directory: str) -> int:
    with Workspace.open(directory) as w:
        return w.pull().version


def run_backend_add(directory: str, url: str) -> int | None:
    with Workspace.open(directory) as w:
        return w.backend_add(url, passphrase=PASSPHRASE).version


def run_backend_role(directory: str, name: str, role: Literal["both", "storage"]) -> int | None:
    with Workspace.open(directory) as w:
        return w.backend_set(name, role=role, passphrase=PASSPHRASE).version


def run_rebalance(directory: str) -> bool:
    with Workspace.open(directory) as w:
        return w.rebalance().is_whole


def run_sync(directory: str, message: str = "") -> int | None:
    with Workspace.open(directory) as w:
        return w.sync(message)[1].version


def run_clone(directory: str, urls: list[str], name: str = NAME, device: str = "clone") -> int:
    report = Workspace.clone(directory, name=name, backends=urls, passphrase=PASSPHRASE, device_name=device)
    report.workspace.close()
    return report.version


def run_revoke(directory: str, device: str, old: str, new: str) -> str:
    """-> the new recovery phrase."""
    with Workspace.open(directory) as w:
        return w.device_revoke([device], old, new_passphrase=new, kdf=CHEAP).recovery_phrase


def run_change_passphrase(directory: str, old: str, new: str) -> None:
    with Workspace.open(directory) as w:
        w.key_change_passphrase(old, new, kdf=CHEAP)


def run_invite(directory: str, device: str) -> str:
    with Workspace.open(directory) as w:
        return w.invite(device, PASSPHRASE).code


def run_accept(directory: str, code: str) -> int:
    report = Workspace.clone(directory, invite=code)
    report.workspace.close()
    return report.version


# ---- children that die at a certain point


POINTS: dict[str, Callable[[], None]] = {}
"""What makes this process exit at a named point. For children: what they patch, they patch for good."""


def _point(function: Callable[[], None]) -> Callable[[], None]:
    POINTS[function.__name__] = function
    return function


def _die(*_: Any) -> Any:
    os._exit(DEAD)


@_point
def accept_sent() -> None:
    """The first ACCEPT is on its way and nobody has answered."""
    journal = proposer._Attempt._journal

    def dying(self: Any) -> Any:
        yield from journal(self)
        _die()

    proposer._Attempt._journal = dying  # type: ignore[method-assign]


@_point
def accept_quorum() -> None:
    """A quorum has accepted; nobody was told."""
    phase = proposer._Attempt._phase

    def dying(self: Any, kind: Any, **words: Any) -> Any:
        yield from phase(self, kind, **words)
        if kind is proposer.Kind.ACCEPT and self.instance.decided() is not None:
            _die()

    proposer._Attempt._phase = dying  # type: ignore[method-assign]


@_point
def accept_minority() -> None:
    """One acceptor of three has accepted: whether that counts is for others to find out."""
    append = LogAcceptor.append

    def dying(self: Any, kind: Any, *rest: Any, **options: Any) -> Any:
        if kind is not proposer.Kind.ACCEPT:
            return (yield from append(self, kind, *rest, **options))
        if self.acceptor_id != min(self.everybody):
            yield effects.Sleep(60)
        yield from append(self, kind, *rest, **options)
        return _die()

    LogAcceptor.append = dying  # type: ignore[method-assign]


@_point
def decided_not_remembered() -> None:
    """Decided, and not a word of it in the local state."""

    def dying(self: Any, base: Any, change: Any) -> Any:
        self.runtime.run(self.group.propose(base, lambda: change))
        _die()

    agreement.propose = dying  # type: ignore[method-assign]


@_point
def before_the_report() -> None:
    """Decided and remembered as the newest; the folder is not said to be at it."""
    propose = agreement.propose

    def dying(self: Any, base: Any, change: Any) -> Any:
        propose(self, base, change)
        _die()

    agreement.propose = dying  # type: ignore[method-assign]


@_point
def after_the_report() -> None:
    """The folder is at the new version; others were not told."""

    @contextlib.contextmanager
    def dying(*_: Any) -> Iterator[None]:
        yield
        _die()

    agreement.telling = dying  # type: ignore[assignment]


def die_at_call(k: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Exits at the k-th call on a disk, a backend or the local state; returns the count when it came to its end."""
    calls = itertools.count(1)

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def dying(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == k:
                os._exit(DEAD)
            return call(*args, **kwargs)

        return dying

    for owner, names in _SEAMS.items():
        for name in names:
            setattr(owner, name, counted(name, getattr(owner, name)))
    value = function(*arguments)
    return next(calls) - 1, value


DISK_WRITES = ("write", "mkdir", "rmdir", "unlink", "symlink", "link", "rename", "rename_new", "exchange", "chmod",
               "fchmod", "utime", "futime", "syncfs")  # fmt: skip
_SEAMS: dict[Any, tuple[str, ...]] = {disk.Disk: DISK_WRITES, LocalDb: ("_execute", "_many")}


def _seams() -> None:
    from metasync.backends.folder import FolderBackend

    _SEAMS[FolderBackend] = ("create", "put", "delete")


_seams()


def pull_with_editor(directory: str, dies_after: int) -> int:
    """Pulls while an editor saves every file at the last moment before it is replaced; dies after so many exchanges."""
    exchange, calls = disk.Disk.exchange, itertools.count(1)

    def edited(self: Any, one: bytes, one_fd: int, other: bytes, other_fd: int) -> bool:
        fd = os.open(b"~$saving", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=other_fd)
        os.write(fd, b"late: " + other)
        os.close(fd)
        os.rename(b"~$saving", other, src_dir_fd=other_fd, dst_dir_fd=other_fd)
        done = exchange(self, one, one_fd, other, other_fd)
        if next(calls) == dies_after:
            os._exit(DEAD)
        return done

    disk.Disk.exchange = edited  # type: ignore[method-assign]
    return run_pull(directory)


def die_at(point: str, function: Callable[..., Any], *arguments: Any) -> Any:
    POINTS[point]()
    return function(*arguments)


# ---- history


class Past(NamedTuple):
    """All that the agreed history holds. `contents`: keyed content hashes and symlink targets, anywhere in it."""

    snapshots: dict[bytes, Snapshot]
    main: list[Snapshot]
    contents: set[bytes]
    last: dict[bytes, Entry]


def read_past(w: Workspace, *, read_blobs: bool = False) -> Past:
    """Walks all snapshots, second parents too. `read_blobs`: fetches every small content and checks it."""
    with w._session("test") as s:
        newest = agreement.newest(s)
        contents = s.contents(newest)
        snapshots: dict[bytes, Snapshot] = {}
        todo = [newest.state.master] if newest.snapshot is not None else []
        seen: set[bytes] = set()
        blobs: set[bytes] = set()
        last: dict[bytes, Entry] = {}
        while todo:
            one = todo.pop()
            if one in snapshots:
                continue
            snapshots[one] = decode_snapshot(contents.load(ObjectKind.SNAPSHOT, [one])[one])
            todo += snapshots[one].parents
            tree = contents.walk(walk.flatten(snapshots[one].root))
            last = last or tree
            for path, entry in tree.items():
                if entry.kind is Kind.DIR:
                    continue
                seen.add(entry.content)
                if entry.kind is Kind.FILE and entry.size:
                    assert (entry.root or entry.content) in contents.index, f"{path!r} is in no pack"
                    if not entry.root:
                        blobs.add(entry.content)
        if read_blobs:
            for blob_id, data in contents.load(ObjectKind.BLOB, blobs).items():
                assert s.ids.blob(data) == blob_id
        main: list[Snapshot] = []
        at = newest.state.master if newest.snapshot is not None else None
        while at is not None:
            main.append(snapshots[at])
            at = main[-1].parents[0] if main[-1].parents else None
        return Past(snapshots, main, seen, last)


def content_id(w: Workspace, node: Node) -> bytes:
    """What history calls the content of a file or symlink."""
    if node.kind == "link":
        return node.data
    with w._session("test") as s:
        return bytes(s.ids.blob(node.data))


def check_log(past: Past, pushed: Mapping[str, int]) -> None:
    """Versions ascend strictly; every push that reported success is in the log once, as the version it reported."""
    versions = [version_of(snapshot) for snapshot in reversed(past.main)]
    assert versions == sorted(set(versions)), f"versions do not ascend: {versions}"
    said: dict[str, list[int]] = {}
    for snapshot in past.main:
        if snapshot.message:
            said.setdefault(snapshot.message, []).append(version_of(snapshot))
    for message, found in said.items():
        assert len(found) == 1, f"{message!r} was agreed as {found}"
    for message, version in pushed.items():
        assert said.get(message) == [version], (
            f"{message!r} reported version {version}, the log has {said.get(message)}"
        )


# ---- a client that dies inside this process


class Crashed(BaseException):
    """The process of this client is dead: nothing it still tries has an effect."""


class Fate:
    """Counts what a client does to the world, and ends it at call number `dies_at`: that call and all after it fail.

    What `finally` and `except` clauses try afterwards has no effect either, as if the process were gone.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.dies_at = 0
        self.dead = False
        self.at = ""
        self.runtimes: list[Any] = []
        self._lock = threading.Lock()

    def live(self) -> None:
        self.calls, self.dies_at, self.dead, self.at, self.runtimes = 0, 0, False, "", []

    def step(self, what: str) -> None:
        with self._lock:
            self.calls += 1
            if self.dies_at and self.calls == self.dies_at:
                self.dead, self.at = True, what
                for runtime in self.runtimes:
                    runtime._post(runtime._shut)
            if self.dead:
                raise Crashed(what)


def _mortal(owner: type, name: str, fate_of: Callable[[Any], Fate | None]) -> Callable[..., Any]:
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        fate = fate_of(self)
        if fate is not None:
            fate.step(name if name != "_execute" else f"sql {args[0][:12]}")
        return real(self, *args, **kwargs)

    return call


@contextlib.contextmanager
def mortal_clients(patch: Any) -> Iterator[threading.local]:
    """Disks, local states and runtimes that this thread opens belong to `here.fate`, if that is set."""
    here = threading.local()

    def adopt(thing: Any) -> None:
        fate = getattr(here, "fate", None)
        if fate is not None:
            thing._fate = fate

    for owner, names in ((disk.Disk, DISK_WRITES), (LocalDb, ("_execute", "_many"))):
        begin = owner.__init__

        def born(self: Any, *args: Any, _begin: Any = begin, **kwargs: Any) -> None:
            _begin(self, *args, **kwargs)
            adopt(self)

        patch.setattr(owner, "__init__", born)
        for name in names:
            patch.setattr(owner, name, _mortal(owner, name, lambda self: getattr(self, "_fate", None)))

    class MortalRuntime(connections.Runtime):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            fate = getattr(here, "fate", None)
            if fate is not None:
                fate.runtimes.append(self)

    patch.setattr(connections, "Runtime", MortalRuntime)
    patch.setattr(open_backend, "Runtime", MortalRuntime)
    yield here
