"""What end-to-end tests share: workspaces on stores that can be broken on demand, trees that can be compared, the CLI.

A `Lab` keeps everything below one temporary folder. Its backends are folders (`file://`), so that a test can break what
lies there byte by byte, or stores in memory; every way to them goes through a `FaultyBackend` that counts. Passphrases
are stretched as cheaply as the format allows.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metasync.backends.api import Backend, BackendUrl
from metasync.cli import main
from metasync.consensus import Group
from metasync.keys.slots import Cost
from metasync.maintenance import status
from metasync.moving import upkeep
from metasync.session import agreement, open_backend
from metasync.testing.counting import CountingBackend
from metasync.testing.faults import FaultyBackend
from metasync.testing.quota import Quota, QuotaBackend
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk

CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
PASSPHRASE = "correct horse battery staple"
QUICK_S = 0.6  # in place of the 30 s that a command waits for a quorum


class Node(NamedTuple):
    """One path of a tree, for comparison: `data` is a file's bytes or a link's target; directories have no time."""

    kind: str
    mode: int
    mtime_ns: int
    data: bytes


def tree_of(root: Path) -> dict[bytes, Node]:
    """All that is below `root`, without `.metasync`, byte for byte."""
    out: dict[bytes, Node] = {}
    top = os.fsencode(root)
    for folder, dirs, files in os.walk(top):
        if folder == top and b".metasync" in dirs:
            dirs.remove(b".metasync")
        for name in (*dirs, *files):
            path = os.path.join(folder, name)
            st = os.lstat(path)
            key = os.path.relpath(path, top)
            if stat.S_ISLNK(st.st_mode):
                out[key] = Node("link", 0, st.st_mtime_ns, os.readlink(path))
            elif stat.S_ISDIR(st.st_mode):
                out[key] = Node("dir", stat.S_IMODE(st.st_mode), 0, b"")
            else:
                out[key] = Node("file", stat.S_IMODE(st.st_mode), st.st_mtime_ns, Path(os.fsdecode(path)).read_bytes())
    return out


def write(root: Path, files: Mapping[str, bytes]) -> None:
    """Writes files, making folders as needed."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def forget_bases(*workspaces: Workspace) -> None:
    """Drops the old chunks that devices keep for deltas, of which a repair would give back what was lost."""
    for workspace in workspaces:
        shutil.rmtree(Path(workspace.directory) / ".metasync" / "bases", ignore_errors=True)


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one document on stdout."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


class Lab:
    """A laboratory of one test: named backends, devices, faults."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.faults: dict[str, FaultyBackend] = {}
        self.counts: dict[str, CountingBackend] = {}
        self._all_counts: list[tuple[str, CountingBackend]] = []  # of all who opened it, by place
        self.quotas: dict[str, Quota] = {}
        self.silent: set[str] = set()
        self.open_workspaces: list[Workspace] = []
        self._by_location: dict[str, str] = {}
        self._id = uuid.uuid4().hex[:8]
        self._open = open_backend.opened
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(open_backend, "opened", self._opened)
        monkeypatch.setattr(open_backend, "SLOW_S", 60.0)  # what is slow only because the machine is busy is not told
        monkeypatch.setattr(upkeep, "BUDGET_S", 0.0)  # data move when a test says so
        monkeypatch.setenv("METASYNC_KEYRING", "off")
        monkeypatch.setenv("METASYNC_PASSPHRASE", PASSPHRASE)
        for method in (Workspace.init, Workspace.device_revoke, Workspace.key_change_passphrase, Workspace.key_rotate,
                       Workspace.recover):  # fmt: skip
            monkeypatch.setitem(method.__kwdefaults__, "kdf", CHEAP)

    def _opened(self, name: str, url: BackendUrl, *, create: bool) -> Backend:
        """Like `open_backend.opened`, with the faults and the counter of that place in between."""
        place = self._by_location.get(url.location)
        if place is None:
            return self._open(name, url, create=create)
        faults = self.faults.get(place)
        if faults is None or url.scheme == "file":
            inner = CountingBackend(self._limited(place, self._open(name, url, create=create)))
            faults_before, faults = faults, FaultyBackend(inner)
            if faults_before is not None:
                for switch in ("plan", "down", "read_only", "full_over_bytes", "slow_s"):
                    setattr(faults, switch, getattr(faults_before, switch))
            self.faults[place] = faults
            self.counts[place] = inner
            self._all_counts.append((place, inner))
        return faults

    def _limited(self, place: str, backend: Backend) -> Backend:
        """With the quota of that place, if the test set one; those in `silent` do not tell it."""
        quota = self.quotas.get(place)
        return backend if quota is None else QuotaBackend(backend, quota, tells=place not in self.silent)

    def url(self, name: str, kind: str = "file", **params: str) -> str:
        """The URL of the backend `name`, which is under observation from then on."""
        location = f"file://{self.root}/stores/{name}" if kind == "file" else f"memory://{self._id}-{name}"
        self._by_location[location] = name
        query = "&".join(f"{k}={v}" for k, v in {"name": name, **params}.items())
        return f"{location}?{query}"

    def urls(self, *names: str, kind: str = "file") -> list[str]:
        return [self.url(n, kind) for n in names]

    def words(self, *names: str) -> list[str]:
        """The same for a command line."""
        return [word for url in self.urls(*names) for word in ("--backend", url)]

    def store(self, name: str) -> Path:
        return self.root / "stores" / name

    def requests(self, *names: str) -> int:
        """How many calls all devices have made, on these backends or on all."""
        return sum(count.count().requests.total() for name, count in self._all_counts if not names or name in names)

    def lose(self, name: str) -> Path:
        """Takes a store's folder away at once, however much is being written into it. Returns where it lies now."""
        gone = Path(tempfile.mkdtemp(prefix=f"lost-{name}-", dir=self.root)) / name
        return self.store(name).rename(gone)

    def objects(self, name: str, part: str) -> list[Path]:
        """The objects in a folder backend whose path holds `/part/`, in a fixed order."""
        return sorted(p for p in self.store(name).rglob("*") if p.is_file() and f"/{part}/" in f"{p}/")

    def init(self, urls: list[str], *, device: str = "laptop", name: str = "docs", **options: Any) -> Workspace:
        options.setdefault("passphrase", PASSPHRASE)
        options.setdefault("by_space", False)  # free space of stores in a test is for other things
        report = Workspace.init(self.root / device, name=name, backends=urls, kdf=CHEAP, device_name=device, **options)
        return self.keep(report.workspace)

    def clone(self, urls: list[str], *, device: str = "desktop", name: str = "docs", **options: Any) -> Workspace:
        options.setdefault("passphrase", PASSPHRASE)
        report = Workspace.clone(self.root / device, name=name, backends=urls, device_name=device, **options)
        return self.keep(report.workspace)

    def reopen(self, workspace: Workspace) -> Workspace:
        """The workspace as the next command sees it."""
        workspace.close()
        return self.keep(Workspace.open(workspace.directory))

    def keep(self, workspace: Workspace) -> Workspace:
        self.open_workspaces.append(workspace)
        return workspace

    def hurry(self, deadline_s: float = QUICK_S, *, proposing: bool = False) -> None:
        """Gives up on a quorum after so many seconds, where news are looked for or also where something is proposed.

        Later on a machine with more to do than the tests themselves give it: what answers must be heard.
        """
        deadline_s *= max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))
        for task in (agreement.ask_newest, agreement.looking.__wrapped__):  # type: ignore[attr-defined]
            self._monkeypatch.setitem(task.__kwdefaults__, "deadline_s", deadline_s)
        if proposing:
            self._monkeypatch.setitem(Group.propose.__kwdefaults__, "deadline_s", deadline_s)
        self._monkeypatch.setattr(status, "DEADLINE_S", deadline_s)

    def cli(self, *words: str, cwd: str = "laptop") -> Ran:
        """Runs a command in this process: as quick as a call."""
        return run_cli("-C", str(self.root / cwd), *words)

    def close(self) -> None:
        for workspace in self.open_workspaces:
            workspace.close()
        for folder, names, _ in os.walk(self.root):
            for path in (os.path.join(folder, name) for name in names):
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                    os.chmod(path, 0o755)  # so that pytest can remove it


_CAPTURE: list[pytest.CaptureFixture[str]] = []


def run_cli(*words: str) -> Ran:
    """`metasync words...` in this process."""
    capture = _CAPTURE[-1]
    capture.readouterr()
    with pytest.raises(SystemExit) as e:
        main(words)
    out = capture.readouterr()
    code = e.value.code
    assert isinstance(code, int)
    return Ran(code, out.out, out.err)


def run_process(*words: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Ran:
    """`metasync words...` as users run it."""
    done = subprocess.run(
        [sys.executable, "-m", "metasync", *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


@contextlib.contextmanager
def laboratory(
    root: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str] | None = None
) -> Iterator[Lab]:
    """A laboratory; everything it opened is closed afterwards. Without `capture` it runs no commands."""
    if capture is not None:
        _CAPTURE.append(capture)
    made = Lab(root, monkeypatch)
    try:
        yield made
    finally:
        made.close()
        if capture is not None:
            _CAPTURE.remove(capture)


def flip(path: Path, at: int = -40) -> None:
    """Turns one bit over."""
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(bytes(data))


def swap(one: Path, other: Path) -> None:
    """Each gets the bytes of the other."""
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)


def wipe(folder: Path) -> None:
    """Removes all that is in a folder; the folder stays the same one."""
    while left := list(folder.iterdir()):  # what a push left under way may come meanwhile
        for path in left:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def unreadable(monkeypatch: pytest.MonkeyPatch, name: bytes, code: int = errno.EACCES) -> None:
    """Makes opening every file of this name fail (tests may run as root, who may read all)."""
    real = Disk.open

    def refuse(self: Disk, path: bytes, flags: int, dir_fd: int, mode: int = 0o600) -> int:
        if os.fsencode(path) == name:
            raise OSError(code, os.strerror(code), path)
        return real(self, path, flags, dir_fd, mode)

    monkeypatch.setattr(Disk, "open", refuse)
