"""Workspaces over a OneDrive and two folders: it votes and holds copies, and what goes wrong with it stops nobody."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from servers.onedrive_standin import OneDriveStandin
from workspace_kit import Lab, tree_of, write

from metasync.workspace import Workspace

ONEDRIVE = "onedrive:/metasync/one?name=onedrive"


@pytest.fixture
def urls(lab: Lab, standin: OneDriveStandin) -> list[str]:
    return [ONEDRIVE, *lab.urls("disk", "stick")]


@pytest.fixture
def laptop(lab: Lab, urls: list[str]) -> Iterator[Workspace]:
    w = lab.init(urls, replicas=3)
    rng = random.Random(19)
    write(w.directory, {f"dir{n % 3}/file{n}": rng.randbytes(100 * n) for n in range(30)})
    w.push("first")
    yield w


def test_without_the_others(lab: Lab, standin: OneDriveStandin, laptop: Workspace) -> None:
    """It and one folder are a quorum, and have everything."""
    lab.lose("disk")
    w = lab.reopen(laptop)
    write(w.directory, {"late": b"while a disk was away"})
    assert w.push("late").version is not None
    desktop = lab.clone([ONEDRIVE, lab.url("stick")])
    assert tree_of(desktop.directory) == tree_of(w.directory)


def away(standin: OneDriveStandin) -> None:
    standin.is_away = True


def throttled(standin: OneDriveStandin) -> None:
    standin.switches.refused = [(429, "60")] * 500


def revoked(standin: OneDriveStandin) -> None:
    standin.switches.revoked |= {standin.token, standin.refresh}


def full(standin: OneDriveStandin) -> None:
    standin.switches.full = True


def broken(standin: OneDriveStandin) -> None:
    standin.switches.refused = [(503, None)] * 500


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", [away, throttled, revoked, full, broken], ids=lambda fault: fault.__name__)
def test_the_others_go_on_without_it(
    lab: Lab, standin: OneDriveStandin, urls: list[str], laptop: Workspace, fault: Callable[[OneDriveStandin], None]
) -> None:
    fault(standin)
    w = lab.reopen(laptop)
    lab.hurry()
    write(w.directory, {"late": b"while it was away"})
    assert w.push("late").version is not None
    standin.is_away, standin.switches = False, type(standin.switches)()
    lab.lose("stick")
    desktop = lab.clone([ONEDRIVE, lab.url("disk")])
    assert tree_of(desktop.directory) == tree_of(w.directory)


@pytest.mark.long
def test_lost_and_torn_answers(lab: Lab, standin: OneDriveStandin, urls: list[str], laptop: Workspace) -> None:
    for number, fault in enumerate(("lost", "dropped", "truncated", "torn")):
        setattr(standin.switches, fault, 3)
        write(laptop.directory, {f"late{number}": b"%d" % number})
        assert laptop.push("late").version is not None
        desktop = lab.clone(urls, device=f"clone{number}")
        assert tree_of(desktop.directory) == tree_of(laptop.directory)
        desktop.close()
    standin.switches = type(standin.switches)()
    assert lab.reopen(laptop).check(read_data=True, repair=True).lost == ()


def test_what_was_damaged_there_is_found_without_a_download(
    lab: Lab, standin: OneDriveStandin, laptop: Workspace
) -> None:
    packs = sorted(path for path in standin.files() if "/packs/" in path)
    data = standin.files()[packs[0]]
    standin.damage(packs[0], data[:-1] + bytes([data[-1] ^ 1]))
    standin.take_log()
    found = {(p.backend, p.problem) for p in laptop.check().problems}
    assert found == {("onedrive", "altered")}
    assert not [e for e in standin.take_log() if e.request.host != "graph.microsoft.com" and e.answer_bytes > len(data)]
    repaired = laptop.check(repair=True)
    assert repaired.lost == ()
    assert laptop.check(read_data=True).problems == ()
