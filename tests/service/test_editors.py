"""How programs save: what they do to a folder, step by step, ends in one version with the right bytes and nothing else.

The sequences are what these programs are known to do, in the order in which they do it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from effort import first
from keeper_kit import NAMES, Stage
from workspace_kit import Lab, write

from metasync.local.state_keys import CONFLICTS
from metasync.workspace import Workspace


def vim(d: Path, data: bytes) -> None:
    """`:w` with backups: probes the folder, moves the old file away, writes anew, drops the backup."""
    (d / "4913").touch()
    (d / "4913").unlink()
    if (d / "doc").exists():
        (d / "doc").rename(d / "doc~")
    (d / "doc").write_bytes(data)
    (d / "doc~").unlink(missing_ok=True)


def emacs(d: Path, data: bytes) -> None:
    """A lock that is a dangling symlink, an autosave beside it, then the file written in place."""
    (d / ".#doc").symlink_to("user@host.1234:1700000000")
    (d / "#doc#").write_bytes(data[:10])
    (d / "doc").write_bytes(data)
    (d / "#doc#").unlink()
    (d / ".#doc").unlink()


def libreoffice(d: Path, data: bytes) -> None:
    """A lock file while it is open; a temporary file that is renamed over the old one."""
    (d / ".~lock.doc#").write_bytes(b",user,host,22.11.2026 10:00,file:///home/user;")
    (d / "lu1234abcd.tmp").write_bytes(data[:5])
    (d / "lu1234abcd.tmp").write_bytes(data)
    (d / "lu1234abcd.tmp").replace(d / "doc")
    (d / ".~lock.doc#").unlink()


def word(d: Path, data: bytes) -> None:
    """A temporary file, the old one moved aside, the new one moved in, the old one dropped."""
    (d / "~$doc").write_bytes(b"user")
    (d / "~WRD0001.tmp").write_bytes(data)
    if (d / "doc").exists():
        (d / "doc").rename(d / "~WRL0002.tmp")
    (d / "~WRD0001.tmp").rename(d / "doc")
    (d / "~WRL0002.tmp").unlink(missing_ok=True)
    (d / "~$doc").unlink()


def gedit(d: Path, data: bytes) -> None:
    """A temporary file of a random name, renamed over the old one."""
    (d / ".goutputstream-K3B2Z1").write_bytes(data)
    (d / ".goutputstream-K3B2Z1").replace(d / "doc")


def in_place(d: Path, data: bytes) -> None:
    """Cut to nothing, then written piece by piece."""
    with (d / "doc").open("wb", buffering=0) as file:
        for at in range(0, len(data), 100):
            file.write(data[at : at + 100])


def browser(d: Path, data: bytes) -> None:
    """A download under another name, which gets its own at the end."""
    (d / "doc.part").write_bytes(data[:100])
    with (d / "doc.part").open("ab") as file:
        file.write(data[100:])
    (d / "doc.part").replace(d / "doc")


SAVES = [vim, emacs, libreoffice, word, gedit, in_place, browser]


@pytest.fixture
def w(lab: Lab) -> Workspace:
    made = lab.init(lab.urls(*NAMES, kind="memory"))
    write(made.directory, {"d/other": b"another file", "d/doc": b"first"})
    made.push()
    return made


@pytest.mark.parametrize("save", SAVES)
def test_a_save_is_one_version_with_its_bytes_alone(
    w: Workspace, stage: Stage, save: Callable[[Path, bytes], None]
) -> None:
    before, data = stage.state.version, b"what was saved " * 50
    save(w.directory / "d", data)
    stage.settle()
    assert stage.state.version == before + 1
    assert {str(Path(str(p)).name) for p in (w.directory / "d").iterdir()} == {"doc", "other"}
    assert w.read("d/doc") == data
    assert stage.keeper._workspace is not None
    assert not stage.keeper._workspace._db.records(CONFLICTS)


@pytest.mark.parametrize("save", first(2, SAVES))
def test_rapid_saves_are_few_versions_and_the_last_one_counts(
    w: Workspace, stage: Stage, save: Callable[[Path, bytes], None]
) -> None:
    before = stage.state.version
    for at in range(30):
        save(w.directory / "d", b"%d " % at * 200)
        stage.keeper._changes.catch_up()
        stage.go_on(0.5)
    stage.settle()
    assert stage.state.version - before <= 2, "15 s of saves, each after half a second"
    assert w.read("d/doc") == b"29 " * 200


@pytest.mark.long
def test_what_one_device_saves_while_another_saves_elsewhere_meets_no_conflict(
    lab: Lab, w: Workspace, stage: Stage
) -> None:
    other = Stage(lab.clone(lab.urls(*NAMES, kind="memory")).directory)
    try:
        other.settle()
        for at in range(4):
            for save in SAVES[:4]:
                save(w.directory / "d", b"here %d" % at)
                (other.keeper.directory / "e").mkdir(exist_ok=True)
                save(other.keeper.directory / "e", b"there %d" % at)
                for one in (stage, other):
                    one.keeper._changes.catch_up()
                    one.go_on(7.0)
        for one in (stage, other, stage):
            one.keeper.sync_now()
            one.settle()
        for one in (stage, other):
            assert (one.keeper.directory / "d/doc").read_bytes() == b"here 3"
            assert (one.keeper.directory / "e/doc").read_bytes() == b"there 3"
            assert not [p for p in one.keeper.directory.rglob("*conflict*") if ".metasync" not in p.parts]
    finally:
        other.keeper._close()
