"""One workspace over several linked clouds at once: both forms of voting in one quorum, each cloud lost in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dropbox")
from servers.dropbox_standin import DropboxStandin
from servers.onedrive_standin import OneDriveStandin
from servers.standin import linked
from workspace_kit import Lab, tree_of, write

URLS = ["dropbox:/notes?name=dropbox", "onedrive:/notes?name=onedrive"]


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[DropboxStandin, OneDriveStandin]]:
    home = tmp_path / "home"
    with (
        linked(OneDriveStandin(), monkeypatch, home) as onedrive,
        linked(DropboxStandin(), monkeypatch, home) as dropbox,
    ):
        yield dropbox, onedrive


@pytest.mark.long
def test_two_clouds_and_a_folder(lab: Lab, clouds: tuple[DropboxStandin, OneDriveStandin]) -> None:
    urls = [*URLS, lab.url("disk")]
    laptop = lab.init(urls, replicas=3)
    forms = {b.name: "blocks" in b.roles for b in laptop.backends() if "vote" in b.roles}
    assert forms == {"dropbox": False, "onedrive": True, "disk": False}
    write(laptop.directory, {f"notes/{n}": b"%d" % n for n in range(20)})
    laptop.push("first")
    desktop = lab.clone(urls)
    for number, cloud in enumerate(clouds):
        cloud.is_away = True
        for name, one, other in (("laptop", laptop, desktop), ("desktop", desktop, laptop)):
            write(one.directory, {f"from-{name}-{number}": b"while a cloud was away"})
            assert one.push("late").version is not None
            other.pull()
        cloud.is_away = False
    assert tree_of(laptop.directory) == tree_of(desktop.directory)
    lab.lose("disk")
    laptop, desktop = lab.reopen(laptop), lab.reopen(desktop)
    write(desktop.directory, {"last": b"in two clouds alone"})
    assert desktop.push("last").version is not None
    laptop.pull()
    assert tree_of(laptop.directory) == tree_of(desktop.directory)
    checked = laptop.check(repair=True)
    assert checked.lost == ()
    assert checked.by_digest > 0, "packs note the digests of both clouds"
