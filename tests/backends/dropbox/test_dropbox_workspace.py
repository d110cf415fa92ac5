"""A workspace over Dropbox and two other stores: what Dropbox alone does."""

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


def test_damage_is_seen_without_a_download(w: Workspace, standin: DropboxStandin) -> None:
    """Dropbox tells another hash: the copy is read, and found sound or not."""
    packs = [path for path in standin.objects() if "/packs/" in path]
    standin.faults.lies_hash = set(packs)
    assert w.check().problems == (), "a hash is no verdict"
    standin.take_log()
    standin.faults.lies_hash.clear()
    assert w.check().problems == ()
    read = [e.request.headers for e in standin.take_log() if e.request.path == "/2/files/download"]
    assert read, "metadata is read"
    assert not [headers for headers in read if "/packs/" in str(headers)]


@pytest.mark.long
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


@pytest.mark.long
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
