"""How each program is driven: what a user would type to push a folder, clone it on another device, and pull.

Every client has a home of its own, so that caches last as they would on one device and none are shared between two.
Each program is asked to keep all that it can keep; what it does not keep even so, its clones are not compared in
(`keeps`). Options that make a program faster at the price of missing changes are not used.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from measure import child_environment, version_of

PASSPHRASE = "correct horse battery staple"
BACKENDS = 3
ALL = frozenset({"modes", "mtimes", "links"})


@dataclass(frozen=True)
class Command:
    """One timed command line."""

    argv: Sequence[str]
    env: dict[str, str]
    cwd: Path


@dataclass(frozen=True)
class Place:
    """Where one program works in one run: two devices, and what it stores on. `endpoints` are empty without S3."""

    root: Path
    bucket: str
    endpoints: Sequence[str] = ()
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def clone(self) -> Path:
        return self.root / "clone"

    def store(self, number: int = 0) -> Path:
        """A folder to store in, for programs without S3 or runs without servers."""
        return self.root / f"store{number}"

    def env(self, device: Path, **extra: str) -> dict[str, str]:
        home = self.root / f"home-of-{device.name}"
        home.mkdir(exist_ok=True)
        return child_environment(home, {**self.keys, **extra})


class Peer:
    """One program at one place. `prepare` is not timed; the others say what is."""

    name: ClassVar[str]
    program: ClassVar[str]
    what: ClassVar[str]  # for the notes below the tables
    far: ClassVar[bool] = False  # whether it speaks S3, and so is measured over the far network
    pulls: ClassVar[bool] = True  # false: it only knows how to copy everything
    keeps: ClassVar[frozenset[str]] = ALL

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    def version(cls) -> str | None:
        """None if it is not installed, or not in a version that can be driven."""
        return version_of([cls.program, "--version"]) if shutil.which(cls.program) else None

    def prepare(self) -> None:
        """Before the first push: makes the repository, and the clone's folder where the program wants one."""

    def push(self) -> Command:
        raise NotImplementedError

    def clone(self) -> Command:
        raise NotImplementedError

    def pull(self) -> Command:
        raise NotImplementedError

    def run(self, argv: Sequence[str], env: dict[str, str], cwd: Path | None = None) -> str:
        """Runs what is not timed."""
        result = subprocess.run(
            argv, env=env, cwd=cwd or self.place.root, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if result.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(argv)}: exit {result.returncode}\n{result.stderr[-2000:]}")
        return result.stdout


class MetaSync(Peer):
    name = "metasync"
    program = "metasync"
    what = "three backends, two copies of everything, encrypted"
    far = True
    replicas: ClassVar[int] = 2

    @classmethod
    def version(cls) -> str | None:
        return version_of([*cls._command(), "--version"])

    def prepare(self) -> None:
        argv = [*self._command(), "init", str(self.place.source), "--name", "bench", "--replicas", str(self.replicas)]
        self.run([*argv, *self._backends()], self._env(self.place.source))

    def push(self) -> Command:
        return self._in(self.place.source, "push")

    def clone(self) -> Command:
        argv = [*self._command(), "clone", str(self.place.clone), "--name", "bench", *self._backends()]
        return Command(argv, self._env(self.place.clone), self.place.root)

    def pull(self) -> Command:
        return self._in(self.place.clone, "pull")

    def _in(self, device: Path, command: str) -> Command:
        return Command([*self._command(), command], self._env(device), device)

    def _env(self, device: Path) -> dict[str, str]:
        return self.place.env(device, METASYNC_PASSPHRASE=PASSPHRASE, METASYNC_KEYRING="off")

    def _backends(self) -> list[str]:
        place = self.place
        urls = [f"s3://{place.bucket}/ws?endpoint={e}&name=s{i}" for i, e in enumerate(place.endpoints)]
        urls = urls or [f"file://{place.store(i)}?name=s{i}" for i in range(BACKENDS)]
        return [word for url in urls for word in ("--backend", url)]

    @staticmethod
    def _command() -> list[str]:
        """The installed command, which takes the package from this checkout: `child_environment` sets its path."""
        script = Path(sys.executable).with_name("metasync")
        return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "metasync"]


class MetaSyncOneCopy(MetaSync):
    name = "metasync-r1"
    what = "three backends, one copy of everything, encrypted"
    replicas = 1


class Restic(Peer):
    name = "restic"
    program = "restic"
    what = "one backend, encrypted; its restore writes every file again"
    far = True

    @classmethod
    def version(cls) -> str | None:
        return version_of([cls.program, "version"]) if shutil.which(cls.program) else None

    def prepare(self) -> None:
        self.run(self._restic("init"), self._env(self.place.source))

    def push(self) -> Command:
        return Command(self._restic("backup", "--host", "bench", "."), self._env(self.place.source), self.place.source)

    def clone(self) -> Command:
        return self._restore()

    def pull(self) -> Command:
        # From 0.17 on it can leave alone what is there already.
        newer = tuple(map(int, (self.version() or "0.0").split(".")[:2])) >= (0, 17)
        return self._restore(*(["--overwrite", "if-changed"] if newer else []))

    def _restore(self, *options: str) -> Command:
        argv = self._restic("restore", "latest", "--target", str(self.place.clone), *options)
        return Command(argv, self._env(self.place.clone), self.place.root)

    def _restic(self, *argv: str) -> list[str]:
        place = self.place
        repository = f"s3:{place.endpoints[0]}/{place.bucket}/restic" if place.endpoints else str(place.store())
        return ["restic", "-q", "-r", repository, *argv]

    def _env(self, device: Path) -> dict[str, str]:
        return self.place.env(device, RESTIC_PASSWORD=PASSPHRASE)


class Rclone(Peer):
    name = "rclone"
    program = "rclone"
    what = "crypt over one backend, its defaults (4 transfers)"
    far = True
    keeps = frozenset({"mtimes"})
    options: ClassVar[tuple[str, ...]] = ()

    def prepare(self) -> None:
        place = self.place
        hidden = self.run(["rclone", "obscure", PASSPHRASE], place.env(place.source)).strip()
        inner = str(place.store())
        lines: list[str] = []
        if place.endpoints:
            lines = ["[s3]", "type = s3", "provider = Other", "env_auth = true", f"endpoint = {place.endpoints[0]}"]
            inner = f"s3:{place.bucket}/rclone"
        lines += ["", "[crypt]", "type = crypt", f"remote = {inner}", f"password = {hidden}", ""]
        (place.root / "rclone.conf").write_text("\n".join(lines))

    def push(self) -> Command:
        return self._sync(self.place.source, str(self.place.source), "crypt:")

    def clone(self) -> Command:
        return self._sync(self.place.clone, "crypt:", str(self.place.clone))

    def pull(self) -> Command:
        return self.clone()

    def _sync(self, device: Path, *ways: str) -> Command:
        env = self.place.env(device, RCLONE_CONFIG=str(self.place.root / "rclone.conf"))
        return Command(["rclone", "-q", "sync", *ways, *self.options], env, self.place.root)


class RcloneTuned(Rclone):
    name = "rclone-tuned"
    what = "crypt over one backend, --transfers 32 --checkers 32 --fast-list"
    options = ("--transfers", "32", "--checkers", "32", "--fast-list")


class Borg(Peer):
    name = "borg"
    program = "borg"
    what = "a repository on the same disk, encrypted; its extract writes every file again"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._archives = 0

    @classmethod
    def version(cls) -> str | None:
        found = super().version()
        return found if found and found.startswith("1.") else None  # 2.x has other commands

    def prepare(self) -> None:
        self.place.clone.mkdir()
        self.run(["borg", "init", "-e", "repokey-blake2", str(self.place.store())], self._env(self.place.source))

    def push(self) -> Command:
        self._archives += 1
        return self._in(self.place.source, "create", ".")

    def clone(self) -> Command:
        return self._in(self.place.clone, "extract")

    def pull(self) -> Command:
        return self.clone()

    def _in(self, device: Path, command: str, *paths: str) -> Command:
        archive = f"{self.place.store()}::archive{self._archives}"
        return Command(["borg", command, archive, *paths], self._env(device), device)

    def _env(self, device: Path) -> dict[str, str]:
        return self.place.env(device, BORG_PASSPHRASE=PASSPHRASE)


class Git(Peer):
    name = "git"
    program = "git"
    what = "add, commit and push to a bare repository on the same disk; not encrypted, no automatic gc"
    keeps = frozenset({"modes", "links"})

    def prepare(self) -> None:
        place = self.place
        self._git("init", "-q", "--bare", "-b", "main", str(place.store()))
        self._git("init", "-q", "-b", "main", str(place.source))
        self._git("-C", str(place.source), "remote", "add", "origin", str(place.store()))

    def push(self) -> Command:
        script = "git add -A . && (git diff --cached --quiet || git commit -q -m bench) && git push -q origin main"
        return Command(["sh", "-c", script], self._env(self.place.source), self.place.source)

    def clone(self) -> Command:
        argv = ["git", "clone", "-q", str(self.place.store()), str(self.place.clone)]
        return Command(argv, self._env(self.place.clone), self.place.root)

    def pull(self) -> Command:
        return Command(["git", "pull", "-q"], self._env(self.place.clone), self.place.clone)

    def _git(self, *argv: str) -> None:
        self.run(["git", *argv], self._env(self.place.source))

    def _env(self, device: Path) -> dict[str, str]:
        """It would tidy up in the background, beyond what is measured."""
        who = {
            f"GIT_{role}_{what}": "bench@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        gc = {"GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "gc.auto", "GIT_CONFIG_VALUE_0": "0"}
        gc |= {"GIT_CONFIG_KEY_1": "receive.autogc", "GIT_CONFIG_VALUE_1": "false"}
        return self.place.env(device, GIT_CONFIG_NOSYSTEM="1", **who, **gc)


class Unison(Peer):
    name = "unison"
    program = "unison"
    what = "two folders in step with a third on the same disk; not encrypted"
    keeps = frozenset({"modes", "links", "seconds"})

    @classmethod
    def version(cls) -> str | None:
        return version_of([cls.program, "-version"]) if shutil.which(cls.program) else None

    def prepare(self) -> None:
        self.place.clone.mkdir()
        self.place.store().mkdir()

    def push(self) -> Command:
        return self._with(self.place.source)

    def clone(self) -> Command:
        return self._with(self.place.clone)

    def pull(self) -> Command:
        return self._with(self.place.clone)

    def _with(self, device: Path) -> Command:
        argv = ["unison", str(device), str(self.place.store()), "-batch", "-silent", "-times", "-confirmbigdel=false"]
        return Command(argv, self.place.env(device), self.place.root)


class Cp(Peer):
    name = "cp"
    program = "cp"
    what = "cp -r to the same disk and back: no versions, no encryption, what writing the files costs"
    pulls = False
    keeps = frozenset({"links"})

    def push(self) -> Command:
        return self._copy(self.place.source, self.place.store())

    def clone(self) -> Command:
        return self._copy(self.place.store(), self.place.clone)

    def _copy(self, source: Path, target: Path) -> Command:
        return Command(["cp", "-r", str(source), str(target)], self.place.env(source), self.place.root)


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (MetaSync, MetaSyncOneCopy, Restic, Rclone, RcloneTuned, Borg, Git, Unison, Cp)
}
OURS = MetaSync.name
