"""A workspace over Dropbox and two other stores: pushed, pulled, cloned; an outage, throttling, a login that ends."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from servers.dropbox_standin import DropboxStandin
from workspace_kit import Lab, tree_of, write

from metasync.workspace import Workspace


@pytest.fixture
def urls(lab: Lab, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return [*lab.urls("a", "b", kind="memory"), "dropbox:/notes?name=dropbox"]


@pytest.fixture
def w(lab: Lab, urls: list[str]) -> Workspace:
    made = lab.init(urls, replicas=3)  # each has a copy of each pack
    grow(made, 4)
    made.push("first")
    return made


def grow(w: Workspace, seed: int, count: int = 6) -> None:
    """Writes files that share nothing with others."""
    rng = random.Random(seed)
    write(Path(w.directory), {f"{seed}/{n}": rng.randbytes(3000) for n in range(count)})


def state_of(w: Workspace) -> str:
    return {b.name: b.state for b in w.backends()}["dropbox"]


def test_two_devices(lab: Lab, w: Workspace, urls: list[str], standin: DropboxStandin) -> None:
    assert any("/packs/" in path for path in standin.objects())
    other = lab.clone(urls)
    grow(other, 5)
    other.push("from the other")
    w.pull()
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    checked = w.check()
    assert checked.problems == ()
    assert checked.by_digest > 0, "a pack notes the hash that Dropbox tells of it"
    assert "vote" in {b.name: b.roles for b in w.backends()}["dropbox"]


def test_damage_is_seen_without_a_download(w: Workspace, standin: DropboxStandin) -> None:
    """Dropbox tells another hash: the copy is read, and found sound or not."""
    packs = [path for path in standin.objects() if "/packs/" in path]
    standin.faults.lies_hash = set(packs)
    assert w.check().problems == (), "a hash is no verdict"
    standin.take_log()
    standin.faults.lies_hash.clear()
    assert w.check().problems == ()
    assert not [e for e in standin.take_log() if e.request.path == "/2/files/download" and e.answer_bytes > 1000]


def test_a_scrub_goes_by_the_feed(w: Workspace, standin: DropboxStandin) -> None:
    w.scrub()
    assert {b.backend: b.how for b in w.scrub().backends}["dropbox"] == "changes"
    pack = next(path for path in standin.objects() if "/packs/" in path)
    with standin.lock:
        del standin.tree[pack]
        standin.changes.append(pack)
    report = w.scrub()
    assert report.repaired is not None
    assert report.repaired.copies == 1
    assert pack in standin.objects()


def test_an_outage(lab: Lab, w: Workspace, urls: list[str], standin: DropboxStandin) -> None:
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


def test_throttling(lab: Lab, w: Workspace, urls: list[str], standin: DropboxStandin) -> None:
    """An account that asks for fewer requests is left alone, and the push goes on with the others."""
    standin.switches.refused = [(429, "600")] * 99
    w = lab.reopen(w)
    standin.take_log()
    grow(w, 8)
    assert w.push("busy").version is not None
    assert len(standin.take_log()) <= 40, "calls that were under way; none after the first refusal came back"
    assert "fewer requests" in state_of(w)


def test_a_token_that_ends_in_the_middle(lab: Lab, w: Workspace, standin: DropboxStandin) -> None:
    standin.switches.ended.add(standin.token)
    grow(w, 9)
    w.push("with a new token")
    assert standin.renewals == 1
    assert w.check().problems == ()


def test_a_login_that_was_revoked_is_one_store_away(lab: Lab, w: Workspace, standin: DropboxStandin) -> None:
    standin.switches.revoked |= {standin.token, standin.refresh}
    w = lab.reopen(w)
    grow(w, 10)
    assert w.push("without it").version is not None
    assert "login" in state_of(w)
    assert "`metasync auth dropbox` links it" in lab.cli("status").out, "which waits for each store"


def test_a_full_account(lab: Lab, w: Workspace, standin: DropboxStandin) -> None:
    standin.switches.full = True
    grow(w, 11)
    assert w.push("full").version is not None
    standin.switches.full = False
    w = lab.reopen(w)
    grow(w, 12)
    w.push("room again")
    assert w.check().lost == ()


def test_lost_answers(w: Workspace, standin: DropboxStandin) -> None:
    """What was stored although nobody heard of it is found out, log entries too."""
    for seed in range(20, 23):
        standin.switches.lost = 2
        grow(w, seed, 2)
        assert w.push(f"lost {seed}").version is not None
    assert w.check().problems == ()


def test_nothing_rests_on_lists(
    lab: Lab, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three folders of Dropbox, whose lists show what there was before the second push, twice and in no order."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    urls = [f"dropbox:/notes-{name}?name={name}" for name in "abc"]
    w = lab.init(urls)
    grow(w, 30)
    w.push("first")
    other = lab.clone(urls)
    standin.freeze()
    standin.switches.reordered = standin.switches.doubled = True
    grow(other, 31)
    assert other.push("lists do not show it").version is not None
    w.pull()
    assert tree_of(Path(w.directory)) == tree_of(Path(other.directory))
    third = lab.clone(urls, device="third")
    assert tree_of(Path(w.directory)) == tree_of(Path(third.directory))
    assert w.check().problems == ()


def test_two_devices_push_at_once(
    lab: Lab, standin: DropboxStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One entry of a log has one winner: both pushes are there in the end, one after the other."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    urls = [f"dropbox:/notes-{name}?name={name}" for name in "abc"]
    w = lab.init(urls)
    grow(w, 40)
    w.push("first")
    other = lab.clone(urls)
    devices = (w, other)
    for n, one in enumerate(devices):
        grow(one, 41 + n)
    together = threading.Barrier(2)

    def push(one: Workspace) -> None:
        together.wait(60)
        one.sync()

    threads = [threading.Thread(target=push, args=(one,)) for one in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for one in devices:
        one.pull()
    trees = [tree_of(Path(one.directory)) for one in devices]
    assert trees[0] == trees[1]
    assert {b"41/0", b"42/0"} <= trees[0].keys()
