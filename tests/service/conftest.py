"""A workspace of three backends, its keeper on a moved clock or in its own thread, and another device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keeper_kit import FILES, NAMES, Stage
from workspace_kit import Lab, write

from metasync.local.settings import Settings
from metasync.moving import upkeep
from metasync.service.keeper import Keeper
from metasync.workspace import Workspace


@pytest.fixture
def stages() -> Iterator[Callable[[Path], Stage]]:
    made: list[Stage] = []

    def make(directory: Path) -> Stage:
        made.append(Stage(directory))
        return made[-1]

    yield make
    for stage in made:
        stage.keeper._close()


@pytest.fixture
def w(lab: Lab) -> Workspace:
    made = lab.init(lab.urls(*NAMES))
    write(made.directory, FILES)
    made.push()
    return made


@pytest.fixture
def stage(w: Workspace, stages: Callable[[Path], Stage]) -> Stage:
    made = stages(w.directory)
    made.settle()
    return made


@pytest.fixture
def other(lab: Lab, w: Workspace) -> Workspace:
    return lab.clone(lab.urls(*NAMES))


@pytest.fixture
def running(w: Workspace) -> Iterator[Keeper]:
    made = Keeper(w.directory, settings=Settings(), tell=lambda _state: None)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def upkeeping(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "BUDGET_S", 20.0)  # ten minutes at a time, never over in a test
