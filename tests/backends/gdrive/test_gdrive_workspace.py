"""A workspace over Google Drive, which holds data, and three folders that vote: what Google alone does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from servers.gdrive_standin import GoogleDriveStandin
from workspace_kit import Lab, tree_of, write

from metasync.workspace import Workspace


@pytest.fixture
def urls(lab: Lab, standin: GoogleDriveStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return [*lab.urls("a", "b", "c", kind="memory"), "gdrive:/notes?name=gdrive"]


@pytest.fixture
def w(lab: Lab, urls: list[str]) -> Workspace:
    made = lab.init(urls, replicas=4)  # each has a copy of each pack
    grow(made, 4)
    made.push("first")
    return made


def grow(w: Workspace, seed: int, count: int = 4) -> None:
    """Writes files that share nothing with others."""
    rng = random.Random(seed)
    write(Path(w.directory), {f"{seed}/{n}": rng.randbytes(3000) for n in range(count)})


def packs(standin: GoogleDriveStandin) -> list[str]:
    return [name for name in standin.objects() if "/packs/" in name]


def test_a_search_that_is_late_is_no_loss(lab: Lab, w: Workspace, urls: list[str], standin: GoogleDriveStandin) -> None:
    """Another device, which knows no ids, does not find the newest files by name; others hold them."""
    standin.faults.late = 3
    grow(w, 6)
    w.push("late")
    other = lab.clone(urls)
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    standin.faults.late = 0
    assert w.check().problems == ()
