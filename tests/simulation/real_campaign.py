"""The fault campaign (`campaign`) on real processes: backends are folders, each device is a process of its own.

The system decides here what meets what, so the harm may come at any moment of a push. Each user writes in files of its
own: in the end every folder, and a fresh clone, must hold exactly what the four wrote last, and `check --read-data` of
all of history must be content.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from metasync.config import Config
from metasync.errors import MetaSyncError, UsageError
from metasync.keys.slots import Cost
from metasync.reports.checks import CheckReport
from metasync.session import agreement
from metasync.transfer.copies import pack_path
from metasync.workspace import Workspace
from simulation.steps import accused_by_check, accused_by_status, unlinked

REAL_ROUNDS: Final = 10  # in one workspace, as a rule
SHAPES: Final = ((3, 2), (4, 2), (5, 3))  # backends, copies; with four of them one may lie
HARMS: Final = ("wiped", "rotten", "rotten", "late", "rolled back")
TRIES: Final = 20
HUNG_S: Final = 120.0  # without the end of any push
PUSHES_MAX: Final = 200  # of all devices, for what each of them comes to by pushing
PACKS_HIT_MAX: Final = 6
FILES_MAX: Final = 20
PUSH_EVERY_S: Final = 1.0
REST_SHARE: Final = 3.0  # of what a push took, until the next one
PASSPHRASE: Final = "a campaign of real processes"
CHEAP: Final = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["metasync.workspace"])


def edit(root: Path, rng: random.Random, name: str, own: dict[str, bytes]) -> None:
    """One change of a user, among files that are its alone; `own`: what is in them."""
    path = f"{name}/f{rng.randrange(FILES_MAX)}"
    (root / name).mkdir(exist_ok=True)
    if path in own and rng.random() < 0.15:
        (root / path).unlink()
        del own[path]
        return
    own[path] = rng.randbytes(rng.choice((10, 5_000, 5_000, 200_000)))
    (root / path).write_bytes(own[path])


def push_on(directory: str, urls: Mapping[str, str], seed: int, stop: Event, settings: Mapping[str, str]) -> None:
    """A device that edits and pushes until it is told to stop; then it writes down what its user has."""
    os.environ.update(settings)
    root, rng, told = Path(directory), random.Random(f"{Path(directory).name} {seed}"), Counter[str]()
    own: dict[str, bytes] = {}
    while not stop.is_set():
        edit(root, rng, root.name, own)
        began = time.monotonic()
        try:
            with Workspace.open(directory) as w:
                w.push("", force=True)
                link_all(w, urls)
                _write(root, "known", json.dumps(known_ways(w)).encode())
            told["push: ok"] += 1
        except MetaSyncError as e:
            told[f"push: {type(e).__name__}"] += 1
            _write(root, "error", f"{type(e).__name__}: {e.message}".encode())
        # On a machine that is busy pushes without a pause would let no change of the backends through.
        stop.wait(rng.expovariate(1 / PUSH_EVERY_S) + REST_SHARE * (time.monotonic() - began))
    _write(root, "own", json.dumps({"own": {p: d.hex() for p, d in own.items()}, "told": told}).encode())


def _write(root: Path, what: str, data: bytes) -> None:
    """Beside the folder, for the campaign."""
    there = root.with_name(f"{root.name}.{what}")
    there.with_suffix(".new").write_bytes(data)
    there.with_suffix(".new").replace(there)


def link_all(w: Workspace, urls: Mapping[str, str]) -> None:
    """The user tells the ways to backends that others put in."""
    for name in unlinked(w):
        with suppress(UsageError):  # emptied since
            w.link(name, urls[place_of(name)])


def place_of(name: str) -> str:
    """The folder that a backend is in: what takes the place of another one in the same folder is called b0-2."""
    return name.partition("-")[0]


def known_ways(w: Workspace) -> list[str]:
    """The ids of the agreed backends to which this device knows the way."""
    c = w._connections
    return sorted(e.backend_id.hex() for e in c.config.backends if e.name in c.links)


class RealCampaign:
    """So many rounds in one workspace below `directory`. Its failures are `AssertionError`."""

    def __init__(self, directory: Path, seed: int, rounds: int = REAL_ROUNDS) -> None:
        self.directory = directory
        self.rng = random.Random(f"real campaign {seed}")
        self.seed = seed
        self.rounds = rounds
        self.counts: Counter[str] = Counter()
        backends, self.copies = self.rng.choice(SHAPES)
        self.stores = {f"b{n}": directory / f"b{n}" for n in range(backends)}
        self.urls = {name: f"file://{there}" for name, there in self.stores.items()}
        self.folders = [directory / f"c{n}" for n in range(4)]
        self.own: dict[str, bytes] = {}
        self.rotten: dict[str, dict[Path, bytes]] = {}  # by backend: what was damaged last, as it was
        self.pushers: list[Any] = []

    def run(self) -> None:
        settings = {"METASYNC_KEYRING": "off", "METASYNC_PASSPHRASE": PASSPHRASE}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            self._run(settings)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _run(self, settings: Mapping[str, str]) -> None:
        keeper, *others = self.folders
        Workspace.init(
            keeper, name="campaign", backends=[*self.urls.values()], passphrase=PASSPHRASE, kdf=CHEAP,
            replicas=self.copies, device_name="c0",
        ).workspace.close()  # fmt: skip
        for folder in others:
            self._clone(folder)
        stop = _processes.Event()
        args = [(str(f), self.urls, self.seed, stop, settings) for f in others]
        self.pushers = pushers = [_processes.Process(target=push_on, args=a, daemon=True) for a in args]
        for pusher in pushers:
            pusher.start()
        try:
            for _ in range(self.rounds):
                self._round()
                self.counts["campaign: round"] += 1
        finally:
            stop.set()
            for pusher in pushers:
                pusher.join(HUNG_S)
                if pusher.is_alive():
                    pusher.kill()
        assert all(p.exitcode == 0 for p in pushers), f"a device's process ended with {[p.exitcode for p in pushers]}"
        self._judge()

    def _clone(self, folder: Path) -> None:
        urls = [*self.urls.values()]
        made = Workspace.clone(folder, name="campaign", backends=urls, passphrase=PASSPHRASE, device_name=folder.name)
        made.workspace.close()

    # one round

    def _round(self) -> None:
        keeper = self.folders[0]
        self._push()
        with Workspace.open(keeper) as w:
            config = w._connections.config
        most = min(self.copies - 1, config.n - config.quorum)
        hit = self.rng.sample(sorted(e.name for e in config.backends), self.rng.randint(1, most))
        harms = {name: self.rng.choice(HARMS) for name in hit}
        if "rolled back" in harms.values():
            harms = {hit[0]: "rolled back" if config.f else "wiped"}
        harmed = {name for name, harm in harms.items() if self._strike(name, harm)}
        self._named("status", {n for n in harmed if harms[n] != "rotten"})
        self._named("check", {n for n in harmed if harms[n] == "rotten"})
        for name in sorted(harmed):
            if harms[name] == "late":
                self._push()
                self._store(name).with_suffix(".away").rename(self._store(name))
        for name in sorted(harmed):
            if harms[name] in ("wiped", "rolled back"):
                self._replace(name)
        self._make_whole()
        self._wait(self._all_know, "the other devices come to know the backends of today")

    def _push(self) -> None:
        edit(self.folders[0], self.rng, "c0", self.own)
        self._try(lambda w: w.push("", force=True), "push")

    def _try(
        self, what: Callable[[Workspace], Any], kind: str, done: Callable[[Any], bool] = lambda report: True
    ) -> Any:
        """What a command of the keeper reports, in one of a few tries."""
        told = ""
        for _ in range(TRIES):
            try:
                with Workspace.open(self.folders[0]) as w:
                    report = what(w)
                    link_all(w, self.urls)
                self.counts[f"{kind}: ok"] += 1
                if done(report):
                    return report
                told = str(report)
            except MetaSyncError as e:
                told = f"{type(e).__name__}: {e.message}"
                self.counts[f"{kind}: {type(e).__name__}"] += 1
        raise AssertionError(f"{kind} in {TRIES} tries: {told}"[:1000])

    def _store(self, name: str) -> Path:
        return self.stores[place_of(name)]

    def _strike(self, name: str, harm: str) -> bool:
        """-> whether there was anything to harm."""
        store = self._store(name)
        if harm == "late":
            store.rename(store.with_suffix(".away"))
        elif harm == "wiped":
            _empty(store)
        elif harm == "rolled back":
            past = store.with_suffix(".past")
            shutil.copytree(store, past, ignore_dangling_symlinks=True)
            for _ in range(3):
                self._push()
            _empty(store)
            shutil.copytree(past, store, dirs_exist_ok=True)
            shutil.rmtree(past)
        elif not self._rot(name):
            return False
        self.counts[f"campaign: {harm}"] += 1
        return True

    def _rot(self, name: str) -> bool:
        with Workspace.open(self.folders[0]) as w, w._session("check") as s:
            agreed, link = agreement.newest(s), w._connections.links[name]
            places = {p.name: p for p in s.transfer.places.values()}
            me, packs = places[name], agreed.index.packs().values()
            here = [p for p in packs if me.backend_id in s.transfer.placement.primary(p.name)]
            paths = [pack_path(me.storage_ids[-1], p.generation, p.name) for p in here]
        there = sorted(p for path in paths if (p := self._store(name) / link.folder / path).exists())
        self.rotten[name] = {}
        for path in self.rng.sample(there, min(len(there), self.rng.randint(1, PACKS_HIT_MAX))):
            self.rotten[name][path] = path.read_bytes()
            _damage(path, self.rng)
            self.counts["campaign: objects damaged"] += 1
        return bool(there)

    # what the user does about it

    def _named(self, kind: str, names: set[str]) -> None:
        """A command tells of all of them, in one of a few tries."""
        if not names:
            return
        if kind == "status":
            self._try(lambda w: w.status(), kind, lambda told: accused_by_status(told) >= names)
        else:
            self._try(lambda w: w.check(read_data=True), kind, lambda report: not self._unnamed(names, report))
        self.counts["campaign: named"] += len(names)

    def _unnamed(self, names: set[str], report: CheckReport) -> set[str]:
        """Those that were damaged and are not named. A device that reads a pack may make it good before that."""
        left = names - accused_by_check(report)
        mended = {n for n in left if all(p.exists() and p.read_bytes() == data for p, data in self.rotten[n].items())}
        self.counts["campaign: mended before it was named"] += len(mended)
        return left - mended

    def _replace(self, name: str) -> None:
        """Another backend takes the place of one that lost what it had, in the same store, which is emptied first."""
        _empty(self._store(name))

        def config(w: Workspace) -> Config:
            w.status()
            return w._connections.config

        entry = self._try(config, "status").named(name)

        def replace(w: Workspace) -> bool:
            if w._connections.config.backend(entry.backend_id) is not None:
                w.backend_add(self.urls[place_of(name)], replaces=name, passphrase=PASSPHRASE)
            return w._connections.config.backend(entry.backend_id) is None

        self._try(replace, "replace", bool)

    def _make_whole(self) -> None:
        self._try(lambda w: w.rebalance(), "rebalance", lambda report: report.is_whole)

        def is_whole(report: Any) -> bool:
            return not (report.problems or report.lost or report.short or report.nowhere)

        self._try(lambda w: w.check(read_data=True, repair=True), "repair", is_whole)

    def _all_know(self) -> bool:
        with Workspace.open(self.folders[0]) as w:
            today = sorted(e.backend_id.hex() for e in w._connections.config.backends)
        files = [folder.with_name(f"{folder.name}.known") for folder in self.folders[1:]]
        return all(file.exists() and json.loads(file.read_bytes()) == today for file in files)

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        """Until something holds. A device that goes on pushing is slow, not hung, and comes to it in a few tries."""
        ended, pushes, pause = self._pushes(), 0, multiprocessing.Event()
        hung = time.monotonic() + HUNG_S
        while not until():
            assert all(p.is_alive() for p in self.pushers), "a device's process ended"
            assert time.monotonic() < hung, f"no push ended in {HUNG_S:.0f} s, so not: {what}; {self._errors()}"
            if (now := self._pushes()) != ended:
                ended, pushes, hung = now, pushes + 1, time.monotonic() + HUNG_S
            assert pushes < PUSHES_MAX, f"not after {PUSHES_MAX} pushes: {what}; {self._errors()}"
            pause.wait(0.05)

    def _pushes(self) -> list[int]:
        """What changes whenever a device has ended a push, whatever came of it."""
        files = [
            folder.with_name(f"{folder.name}.{what}") for folder in self.folders[1:] for what in ("known", "error")
        ]
        return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]

    def _errors(self) -> dict[str, str]:
        """What the devices were told last when a push failed."""
        files = [folder.with_name(f"{folder.name}.error") for folder in self.folders[1:]]
        return {file.stem: file.read_text("utf-8") for file in files if file.exists()}

    # the end

    def _judge(self) -> None:
        """All devices, and a new one, come to what the four users have."""
        expected = dict(self.own)
        for folder in self.folders[1:]:
            told = json.loads(folder.with_name(f"{folder.name}.own").read_bytes())
            expected |= {path: bytes.fromhex(data) for path, data in told["own"].items()}
            self.counts.update(told["told"])
        for folder in (*self.folders, *self.folders):
            with Workspace.open(folder) as w:
                w.sync("", force=True)
        self._make_whole()  # a push ends with a quorum, and what it left to do then is not done by others
        fresh = self.directory / "fresh"
        self._clone(fresh)
        for folder in (*self.folders, fresh):
            found = {str(p.relative_to(folder)): p.read_bytes() for p in _files(folder)}
            wrong = sorted(p for p in found.keys() | expected.keys() if found.get(p) != expected.get(p))
            assert not wrong, f"{folder.name} differs from what the users wrote: {wrong[:5]}"
        with Workspace.open(fresh) as w:
            report = w.check(read_data=True)
            assert not (report.problems or report.meta_problems or report.lost or report.short or report.nowhere), (
                report
            )


def _files(folder: Path) -> Iterable[Path]:
    return (p for p in folder.rglob("*") if p.is_file() and ".metasync" not in p.relative_to(folder).parts)


def _empty(folder: Path) -> None:
    """Deletes all in a folder into which others may write meanwhile."""
    for there in folder.iterdir():
        shutil.rmtree(there, ignore_errors=True)


def _damage(path: Path, rng: random.Random) -> None:
    """A bit, the end, all of it; or it is gone."""
    data, kind = path.read_bytes(), rng.randrange(4)
    path.chmod(0o600)
    if kind == 0:
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
    elif kind == 1:
        os.truncate(path, rng.randrange(len(data)))
    elif kind == 2:
        path.write_bytes(rng.randbytes(len(data)))
    else:
        path.unlink()
