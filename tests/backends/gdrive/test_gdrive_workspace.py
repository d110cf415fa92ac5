"""A workspace over Google Drive, which holds data, and three folders that vote: two devices, and what Google may do."""

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


def state_of(w: Workspace) -> str:
    return {b.name: b.state for b in w.backends()}["gdrive"]


def test_two_devices(lab: Lab, w: Workspace, urls: list[str], standin: GoogleDriveStandin) -> None:
    assert packs(standin)
    assert "vote" not in {b.name: b.roles for b in w.backends()}["gdrive"]
    other = lab.clone(urls)
    grow(other, 5)
    other.push("from the other")
    w.pull()
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    checked = w.check()
    assert checked.problems == ()
    assert checked.by_digest > 0, "the name of a pack is the hash that Google tells of it"


def test_a_search_that_is_late_is_no_loss(lab: Lab, w: Workspace, urls: list[str], standin: GoogleDriveStandin) -> None:
    """Another device, which knows no ids, does not find the newest files by name; others hold them."""
    standin.faults.late = 3
    grow(w, 6)
    w.push("late")
    other = lab.clone(urls)
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    standin.faults.late = 0
    assert w.check().problems == ()


def test_a_scrub_goes_by_the_feed(w: Workspace, standin: GoogleDriveStandin) -> None:
    w.scrub()
    assert {b.backend: b.how for b in w.scrub().backends}["gdrive"] == "changes"
    pack = packs(standin)[0]
    with standin.lock:
        gone = next(file for file in standin.files.values() if file.name == pack)
        del standin.files[gone.id]
        standin.changes.append((99_999, gone.id))
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == 1
    assert pack in standin.objects()


def test_an_outage(lab: Lab, w: Workspace, urls: list[str], standin: GoogleDriveStandin) -> None:
    standin.is_away = True
    w = lab.reopen(w)
    grow(w, 7)
    assert w.push("while it is away").version is not None
    standin.is_away = False
    w = lab.reopen(w)
    grow(w, 8)
    w.push("it is back")
    assert w.check().lost == ()


def test_throttling(lab: Lab, w: Workspace, standin: GoogleDriveStandin) -> None:
    standin.switches.refused = [(429, "600")] * 99
    w = lab.reopen(w)
    standin.take_log()
    grow(w, 9)
    assert w.push("busy").version is not None
    assert len(standin.take_log()) <= 40, "calls that were under way; none after the first refusal came back"
    assert "fewer requests" in state_of(w)


def test_a_token_that_ends_in_the_middle(w: Workspace, standin: GoogleDriveStandin) -> None:
    standin.switches.ended.add(standin.token)
    grow(w, 10)
    w.push("with a new token")
    assert standin.renewals == 1
    assert w.check().problems == ()


def test_lost_answers_leave_twins_that_do_no_harm(w: Workspace, standin: GoogleDriveStandin) -> None:
    for seed in range(20, 22):
        standin.switches.lost = 2
        grow(w, seed, 2)
        assert w.push(f"lost {seed}").version is not None
    assert w.check().problems == ()
