"""A keeper on a clock that the test moves, with long polls that the test answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metasync.local.settings import Settings
from metasync.reports.service import WorkspaceState
from metasync.service.keeper import Keeper
from metasync.session.peek import Watchable
from metasync.workspace import Workspace

NAMES = ("one", "two", "three")
TURNS_MAX = 3000
FILES = {f"{a}/{b}": f"{a}{b}".encode() for a in "xyz" for b in "0123456789"}


class Polls:
    """Long polls that a test answers: they watch what they are told to, and say what the test says."""

    def __init__(self, _way: Any, told: Callable[[str], None], covers: Callable[[bool], None]) -> None:
        self.told, self.covers = told, covers
        self.backends: tuple[str, ...] = ()
        self.watched: frozenset[str] = frozenset()

    def follow(self, backends: Sequence[Watchable]) -> None:
        self.backends = tuple(one.name for one in backends)

    def begin(self, *names: str) -> None:
        """Watches of these backends work, and no others; "": all that is to be watched."""
        self.watched = frozenset(names)
        self.covers(bool(names))

    def end(self) -> None:
        self.backends = ()
        self.begin()


class Stage:
    """A keeper, and the clock it goes by."""

    def __init__(self, directory: Path) -> None:
        self.now = 1000.0
        self.asleep_s = 0.0
        self.states: list[WorkspaceState] = []
        self.published = 0
        self.turns = 0
        self.keeper = Keeper(
            directory, settings=Settings(), tell=self.states.append, clock=lambda: self.now,
            boot=lambda: self.now + self.asleep_s, wall=lambda: self.now + 1e9 + self.asleep_s, draw=lambda: 0.5,
            long_polls=self._make_polls,
        )  # fmt: skip
        self.keeper.published = self._publish

    def _make_polls(self, *words: Any) -> Any:
        self.polls = Polls(*words)
        return self.polls

    def _publish(self) -> None:
        self.published += 1

    def go_on(self, seconds: float) -> None:
        """Hears of what has happened, and lets so much time pass."""
        if self.keeper._changes._watch is not None:
            self.keeper._changes.catch_up()
        end = self.now + seconds
        while True:
            wake_at = self.keeper.turn()
            self.turns += 1
            assert self.turns < TURNS_MAX, "a busy loop"
            if wake_at >= end:
                self.now = end
                return
            self.now = max(self.now, wake_at)

    def settle(self) -> None:
        """Lets time pass until it is in step."""
        self.go_on(1.0)
        self.go_on(40.0)
        k = self.keeper
        assert self.state.doing == "in step", (self.state, k._batch, k._changes._dirty.__dict__)

    @property
    def state(self) -> WorkspaceState:
        return self.keeper.state()

    @property
    def kinds(self) -> list[str]:
        return [p.kind for p in self.state.problems]


def version(w: Workspace) -> int:
    return w.log(limit=1)[0].version
