"""A soak: keepers on several devices, on one clock that is moved, with edits, outages and crashes by chance.

The end is known (`edits_kit`): every device has what each path's owner wrote last, and there is no conflict.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edits_kit import Edits
from workspace_kit import Lab

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
    keepers: list[Keeper] = field(default_factory=list)
    outages: int = 0
    crashes: int = 0
    back_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.edits = Edits(self.rng)

    def begin(self) -> None:
        urls = self.lab.urls(*NAMES, kind="memory")
        first = self.lab.init(urls)
        first.push()
        folders = self.edits.folders = [first.directory]
        for at in range(1, self.devices):
            folders.append(self.lab.clone(urls, device=f"device{at}").directory)
        for workspace in self.lab.open_workspaces:
            workspace.close()
        self.lab.hurry(0.3, proposing=True)
        self.keepers = [self._keeper(folder) for folder in folders]

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
                    self.edits.on(at)
                    next_edit[at] = self.now + self.rng.expovariate(1 / EDIT_EVERY_S)
                    self.keepers[at]._changes.catch_up()
                    wakes[at] = self.now
            if next_outage <= self.now:
                self._outage()
                next_outage = self.now + self.rng.expovariate(1 / OUTAGE_EVERY_S)
            if next_crash <= self.now:
                at = self.rng.randrange(self.devices)
                self.keepers[at]._close()
                self.keepers[at], wakes[at] = self._keeper(self.edits.folders[at]), self.now
                self.crashes += 1
                next_crash = self.now + self.rng.expovariate(1 / CRASH_EVERY_S)
            for at, keeper in enumerate(self.keepers):
                if wakes[at] <= self.now:
                    wakes[at] = keeper.turn()
            if self.now - told_at >= 3600.0:
                told_at = self.now
                self.told(f"{(self.now - 1000.0) / 3600:.0f} h: {self.edits.count} edits, {self.outages} outages")
            soonest = min([*wakes.values(), *next_edit, next_outage, next_crash, *self.back_at.values(), end + REST_S])
            self.now = max(self.now + 0.01, soonest)

    def _outage(self) -> None:
        for name in self.rng.sample(NAMES, self.rng.choice([1, 1, 1, 2])):
            self.lab.faults[name].down = True
            self.back_at[name] = self.now + self.rng.uniform(*OUTAGE_S)
            self.outages += 1

    def check(self) -> None:
        """All are in step, each file is as its owner left it, and nobody met a conflict."""
        states = [keeper.state() for keeper in self.keepers]
        assert [state.doing for state in states] == ["in step"] * self.devices, states
        for keeper, folder in zip(self.keepers, self.edits.folders, strict=True):
            differing = self.edits.differing(folder)
            assert not differing, (differing[:5], states)
            assert keeper._workspace is not None
            assert not keeper._workspace._db.records(CONFLICTS)

    def end(self) -> None:
        for keeper in self.keepers:
            keeper._close()
