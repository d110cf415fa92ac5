"""A soak: keepers on several devices, on one clock that is moved, with edits, outages and crashes by chance.

Each path is edited on one device alone, so that the end is known: every device has what each path's owner wrote last,
and there is no conflict.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workspace_kit import Lab, tree_of

from metasync.local.settings import Settings
from metasync.local.state_keys import CONFLICTS
from metasync.service.keeper import Keeper

NAMES = ("one", "two", "three")
EDIT_EVERY_S = 90.0  # on each device, at the mean
OUTAGE_EVERY_S = 3000.0
OUTAGE_S = (60.0, 1800.0)
CRASH_EVERY_S = 7200.0
REST_S = 1500.0  # at the end, until all is in step


@dataclass
class Soak:
    """One run. `told` hears now and then how far it is."""

    lab: Lab
    rng: random.Random
    devices: int = 4
    told: Callable[[str], None] = lambda _text: None
    now: float = 1000.0
    folders: list[Path] = field(default_factory=list)
    keepers: list[Keeper] = field(default_factory=list)
    model: dict[str, bytes] = field(default_factory=dict)
    edits: int = 0
    outages: int = 0
    crashes: int = 0
    back_at: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        urls = self.lab.urls(*NAMES, kind="memory")
        first = self.lab.init(urls)
        first.push()
        self.folders = [first.directory]
        for at in range(1, self.devices):
            self.folders.append(self.lab.clone(urls, device=f"device{at}").directory)
        for workspace in self.lab.open_workspaces:
            workspace.close()
        self.lab.hurry(0.3, proposing=True)
        self.keepers = [self._keeper(folder) for folder in self.folders]

    def _keeper(self, folder: Path) -> Keeper:
        return Keeper(
            folder, settings=Settings(), tell=lambda _state: None, clock=lambda: self.now, boot=lambda: self.now,
            wall=lambda: self.now + 1.7e9, draw=self.rng.random,
        )  # fmt: skip

    def run(self, hours: float) -> None:
        """Lets so many hours pass, then all outages end, and it rests until all is in step."""
        wakes = dict.fromkeys(range(self.devices), self.now)
        end, told_at = self.now + hours * 3600.0, self.now
        next_edit = [self.now + self.rng.expovariate(1 / EDIT_EVERY_S) for _ in self.keepers]
        next_outage = self.now + self.rng.expovariate(1 / OUTAGE_EVERY_S)
        next_crash = self.now + self.rng.expovariate(1 / CRASH_EVERY_S)
        while self.now < end + REST_S:
            if self.now >= end:
                next_edit, next_outage, next_crash = [end + 2 * REST_S] * self.devices, end * 9, end * 9
                for name in [*self.back_at]:
                    self.back_at[name] = min(self.back_at[name], self.now)
            for name, at in [*self.back_at.items()]:
                if at <= self.now:
                    self.lab.faults[name].down = False
                    del self.back_at[name]
            for at, when in enumerate(next_edit):
                if when <= self.now:
                    self._edit(at)
                    next_edit[at] = self.now + self.rng.expovariate(1 / EDIT_EVERY_S)
                    self.keepers[at]._changes.catch_up()
                    wakes[at] = self.now
            if next_outage <= self.now:
                self._outage()
                next_outage = self.now + self.rng.expovariate(1 / OUTAGE_EVERY_S)
            if next_crash <= self.now:
                at = self.rng.randrange(self.devices)
                self.keepers[at]._close()
                self.keepers[at], wakes[at] = self._keeper(self.folders[at]), self.now
                self.crashes += 1
                next_crash = self.now + self.rng.expovariate(1 / CRASH_EVERY_S)
            for at, keeper in enumerate(self.keepers):
                if wakes[at] <= self.now:
                    wakes[at] = keeper.turn()
            if self.now - told_at >= 3600.0:
                told_at = self.now
                self.told(f"{(self.now - 1000.0) / 3600:.0f} h: {self.edits} edits, {self.outages} outages")
            soonest = min([*wakes.values(), *next_edit, next_outage, next_crash, *self.back_at.values(), end + REST_S])
            self.now = max(self.now + 0.01, soonest)

    def _outage(self) -> None:
        for name in self.rng.sample(NAMES, self.rng.choice([1, 1, 1, 2])):
            self.lab.faults[name].down = True
            self.back_at[name] = self.now + self.rng.uniform(*OUTAGE_S)
            self.outages += 1

    def _edit(self, device: int) -> None:
        """One change on a device, of what it owns: files that are written, saved by renaming, moved, removed."""
        rng, root = self.rng, self.folders[device]
        own = sorted(p for p in self.model if p.startswith(f"d{device}/"))
        kind = rng.randrange(7)
        self.edits += 1
        if not own or kind <= 1:
            path = f"d{device}/{rng.choice('abc')}/{rng.randrange(30)}"
            self._write(root, path, rng.randbytes(rng.choice([0, 10, 3000, 70_000])))
        elif kind == 2:
            self._write(root, rng.choice(own), rng.randbytes(500), saved=True)
        elif kind == 3:
            path = rng.choice(own)
            self._write(root, path, self.model[path] + rng.randbytes(100))
        elif kind == 4:
            path = rng.choice(own)
            (root / path).unlink()
            del self.model[path]
        elif kind == 5:
            old, new = rng.choice(own), f"d{device}/{rng.choice('abc')}/moved{rng.randrange(5)}"
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            (root / old).replace(root / new)
            self.model[new] = self.model.pop(old)
        else:
            self._move_directory(root, device)

    def _write(self, root: Path, path: str, data: bytes, *, saved: bool = False) -> None:
        at = root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        if saved:
            at.with_name(".saving~").write_bytes(data)
            at.with_name(".saving~").replace(at)
        else:
            at.write_bytes(data)
        self.model[path] = data

    def _move_directory(self, root: Path, device: int) -> None:
        old, new = f"d{device}/{self.rng.choice('abc')}", f"d{device}/{self.rng.choice('abc')}"
        if old == new or not (root / old).is_dir():
            return
        if (root / new).exists():
            shutil.rmtree(root / new)
        (root / old).rename(root / new)
        kept = {p: d for p, d in self.model.items() if not p.startswith((f"{old}/", f"{new}/"))}
        moved = {f"{new}/{p.removeprefix(f'{old}/')}": d for p, d in self.model.items() if p.startswith(f"{old}/")}
        self.model = {**kept, **moved}

    def check(self) -> None:
        """All are in step, each file is as its owner left it, and nobody met a conflict."""
        states = [keeper.state() for keeper in self.keepers]
        assert [state.doing for state in states] == ["in step"] * self.devices, states
        for keeper, folder in zip(self.keepers, self.folders, strict=True):
            files = {p.decode(): node.data for p, node in tree_of(folder).items() if node.kind == "file"}
            differing = sorted(path for path, _ in files.items() ^ self.model.items())
            assert not differing, (differing[:5], states)
            assert keeper._workspace is not None
            assert not keeper._workspace._db.records(CONFLICTS)

    def end(self) -> None:
        for keeper in self.keepers:
            keeper._close()
