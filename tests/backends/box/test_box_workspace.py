"""A workspace over Box and two other stores: two devices, outages, throttling, a login that ends, lost answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from servers.box_standin import BoxStandin
from workspace_kit import Lab, tree_of, write

from metasync.workspace import Workspace


@pytest.fixture
def urls(lab: Lab, standin: BoxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return [*lab.urls("a", "b", kind="memory"), "box:/notes?name=box"]


@pytest.fixture
def w(lab: Lab, urls: list[str]) -> Workspace:
    made = lab.init(urls, replicas=3)  # each has a copy of each pack
    grow(made, 4)
    made.push("first")
    return made


def grow(w: Workspace, seed: int, count: int = 4) -> None:
    """Writes files that share nothing with others."""
    rng = random.Random(seed)
    write(Path(w.directory), {f"{seed}/{n}": rng.randbytes(3000) for n in range(count)})


def packs(standin: BoxStandin) -> list[str]:
    return [name for name in standin.objects() if ",packs," in name]


def state_of(w: Workspace) -> str:
    return {b.name: b.state for b in w.backends()}["box"]


def test_two_devices(lab: Lab, w: Workspace, urls: list[str], standin: BoxStandin) -> None:
    assert packs(standin)
    assert "vote" in {b.name: b.roles for b in w.backends()}["box"]
    other = lab.clone(urls)
    grow(other, 5)
    other.push("from the other")
    w.pull()
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    checked = w.check()
    assert checked.problems == ()
    assert checked.by_digest > 0, "a pack notes the SHA-1 that Box tells of it"


def test_a_scrub_goes_by_the_feed(w: Workspace, standin: BoxStandin) -> None:
    w.scrub()
    assert {b.backend: b.how for b in w.scrub().backends}["box"] == "changes"
    pack = packs(standin)[0]
    standin.trash(standin.find(pack).id)
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == 1
    assert pack in standin.objects()


def test_an_outage(lab: Lab, w: Workspace, urls: list[str], standin: BoxStandin) -> None:
    standin.is_away = True
    w = lab.reopen(w)
    grow(w, 7)
    assert w.push("while it is away").version is not None
    standin.is_away = False
    w = lab.reopen(w)
    grow(w, 8)
    w.push("it is back")
    assert w.check().lost == ()


def test_throttling(lab: Lab, w: Workspace, standin: BoxStandin) -> None:
    standin.switches.refused = [(429, "600")] * 99
    w = lab.reopen(w)
    standin.take_log()
    grow(w, 9)
    assert w.push("busy").version is not None
    assert len(standin.take_log()) <= 40, "calls that were under way; none after the first refusal came back"
    assert "fewer requests" in state_of(w)


def test_a_token_that_ends_in_the_middle(w: Workspace, standin: BoxStandin) -> None:
    standin.switches.ended.add(standin.token)
    grow(w, 10)
    w.push("with a new token")
    assert standin.renewals == 1
    assert w.check().problems == ()


def test_lost_answers_are_found_out(w: Workspace, standin: BoxStandin) -> None:
    for seed in range(20, 22):
        standin.switches.lost = 2
        grow(w, seed, 2)
        assert w.push(f"lost {seed}").version is not None
    assert w.check().problems == ()
