"""A workspace over each cloud and folders beside it: two devices, outages, throttling, logins that end, lost answers.

What one provider alone does stands in its own folder.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds_kit import Cloud, each_cloud
from servers.standin import Standin, linked
from workspace_kit import Lab, tree_of, write

from metasync.workspace import Workspace

pytestmark = [each_cloud, pytest.mark.few(2)]  # what a cloud itself does is in its own folder, for each of them


@pytest.fixture
def standin(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    with linked(cloud.make(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def urls(lab: Lab, cloud: Cloud, standin: Standin) -> list[str]:
    """As many others as vote without the cloud."""
    others = ("a", "b") if "vote" in cloud.roles else ("a", "b", "c")
    return [*lab.urls(*others, kind="memory"), f"{cloud.name}:/notes?name={cloud.name}"]


@pytest.fixture
def w(lab: Lab, urls: list[str]) -> Workspace:
    made = lab.init(urls, replicas=len(urls))  # each has a copy of each pack
    grow(made, 4)
    made.push("first")
    return made


def grow(w: Workspace, seed: int, count: int = 4) -> None:
    """Writes files that share nothing with others."""
    rng = random.Random(seed)
    write(Path(w.directory), {f"{seed}/{n}": rng.randbytes(3000) for n in range(count)})


def state_of(w: Workspace, cloud: Cloud) -> str:
    return {b.name: b.state for b in w.backends()}[cloud.name]


@pytest.mark.few(1)
def test_two_devices(lab: Lab, cloud: Cloud, w: Workspace, urls: list[str], standin: Any) -> None:
    assert cloud.packs(standin)
    told = {b.name: b for b in w.backends()}[cloud.name]
    assert told.roles == cloud.roles
    assert told.free_bytes is not None
    other = lab.clone(urls)
    grow(other, 5)
    other.push("from the other")
    w.pull()
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    checked = w.check()
    assert checked.problems == ()
    assert checked.by_digest > 0, "a pack notes the digest that the provider tells of it"


@pytest.mark.few(1)
def test_a_scrub_goes_by_the_feed(cloud: Cloud, w: Workspace, standin: Any) -> None:
    w.scrub()
    assert {b.backend: b.how for b in w.scrub().backends}[cloud.name] == "changes"
    pack = cloud.packs(standin)[0]
    cloud.remove(standin, pack)
    assert pack not in cloud.files(standin)
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == 1
    assert pack in cloud.files(standin)


@pytest.mark.few(1)
def test_an_outage(lab: Lab, w: Workspace, urls: list[str], standin: Any) -> None:
    standin.is_away = True
    w = lab.reopen(w)
    grow(w, 6)
    assert w.push("while it is away").version is not None
    other = lab.clone(urls)
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    standin.is_away = False
    w = lab.reopen(w)
    grow(w, 7)
    w.push("it is back")
    assert w.check().lost == ()


@pytest.mark.few(1)
def test_throttling(lab: Lab, cloud: Cloud, w: Workspace, standin: Any) -> None:
    """An account that asks for fewer requests is left alone, and the push goes on with the others."""
    standin.switches.refused = [(429, "600")] * 99
    w = lab.reopen(w)
    standin.take_log()
    grow(w, 8)
    assert w.push("busy").version is not None
    assert len(standin.take_log()) <= 40, "calls that were under way; none after the first refusal came back"
    assert "fewer requests" in state_of(w, cloud)


@pytest.mark.few(1)
def test_a_token_that_ends_in_the_middle(cloud: Cloud, w: Workspace, standin: Any) -> None:
    standin.switches.ended.add(standin.token)
    grow(w, 9)
    w.push("with a new token")
    assert standin.renewals == 1
    assert state_of(w, cloud) == "ok"
    assert w.check().problems == ()


@pytest.mark.few(1)
def test_a_login_that_was_revoked_is_one_store_away(lab: Lab, cloud: Cloud, w: Workspace, standin: Any) -> None:
    standin.switches.revoked |= {standin.token, standin.refresh}
    w = lab.reopen(w)
    grow(w, 10)
    assert w.push("without it").version is not None
    assert "login" in state_of(w, cloud)
    assert f"`metasync auth {cloud.name}` links it" in lab.cli("status").out, "which waits for each store"


def full(standin: Any) -> None:
    standin.switches.full = True


def broken(standin: Any) -> None:
    standin.switches.refused = [(503, None)] * 500


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", [full, broken], ids=lambda fault: fault.__name__)
def test_the_others_go_on_without_it(lab: Lab, w: Workspace, standin: Any, fault: Callable[[Any], None]) -> None:
    fault(standin)
    w = lab.reopen(w)
    grow(w, 11)
    assert w.push("without it").version is not None
    standin.switches = type(standin.switches)()
    w = lab.reopen(w)
    grow(w, 12)
    w.push("it is back")
    assert w.check().lost == ()


@pytest.mark.few(1)
def test_lost_answers_are_found_out(w: Workspace, standin: Any) -> None:
    """What was stored although nobody heard of it: packs, heads and log entries too."""
    for seed in range(20, 22):
        standin.switches.lost = 2
        grow(w, seed, 2)
        assert w.push(f"lost {seed}").version is not None
    standin.switches.lost = 0
    assert w.check().problems == ()
