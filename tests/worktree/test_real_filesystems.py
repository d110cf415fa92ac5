"""Names on real file systems other than the usual one, where this machine can mount one: else skipped, with the reason.

Each is a small image in the test's own folder, mounted for the test and always unmounted.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from disks_kit import Folder, nfd
from workdir import QuietDisk
from workspace_kit import CHEAP, PASSPHRASE

from metasync.workspace import Workspace
from metasync.worktree.names import Rules, key, problem
from metasync.worktree.tree import WorkTree

TIMEOUT_S = 60
IMAGE_BYTES = 48 << 20
READY_S = 5.0

# name: tool that formats (the image's path is added), and how to mount ({image} or {loop}, {at})
SYSTEMS = {
    "ext4 casefold": (
        ["mkfs.ext4", "-q", "-F", "-O", "casefold", "-E", "encoding=utf8"],
        ["mount", "-o", "loop", "{image}", "{at}"],
    ),
    "vfat": (["mkfs.vfat"], ["mount", "-t", "vfat", "-o", "loop,utf8", "{image}", "{at}"]),
    "ntfs-3g": (["mkfs.ntfs", "-F", "-Q", "-q"], ["ntfs-3g", "{image}", "{at}"]),
    "ntfs as Windows": (
        ["mkfs.ntfs", "-F", "-Q", "-q"],
        ["lowntfs-3g", "-o", "ignore_case,windows_names", "{image}", "{at}"],
    ),
    "exfat by FUSE": (["mkfs.exfat"], ["mount.exfat-fuse", "{loop}", "{at}"]),
}


def run(*words: str) -> str:
    """Runs a tool; what it says first when it fails, else ""."""
    if shutil.which(words[0]) is None:
        return f"{words[0]} is not installed"
    try:
        done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"{words[0]} does not end"
    said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said or [f"exit code {done.returncode}"])[0]


@pytest.fixture(params=SYSTEMS)
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on one of the file systems."""
    name: str = request.param
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount an image")
    make, mount = SYSTEMS[name]
    image, at, loop = tmp_path / "image", tmp_path / "at", ""
    at.mkdir()
    with image.open("wb") as f:
        f.truncate(IMAGE_BYTES)
    if why := run(*make, str(image)):
        pytest.skip(f"{name}: {why}")
    try:
        if "{loop}" in mount:
            found = subprocess.run(
                ["losetup", "-f", "--show", str(image)], capture_output=True, timeout=TIMEOUT_S, check=False
            )
            loop = found.stdout.decode().strip()
            if not loop:
                pytest.skip(f"{name}: {found.stderr.decode(errors='replace').strip()}")
        if why := run(*(word.format(image=image, at=at, loop=loop) for word in mount)):
            pytest.skip(f"{name}: {why}")
        until = time.monotonic() + READY_S
        while not os.path.ismount(at) and time.monotonic() < until:
            time.sleep(0.02)
        if not os.path.ismount(at):
            pytest.skip(f"{name}: is not mounted")
        if name == "ext4 casefold":
            (at / "f").mkdir()
            if why := run("chattr", "+F", str(at / "f")):
                pytest.skip(f"{name}: {why}")
            at = at / "f"
        yield at
    finally:
        if os.path.ismount(tmp_path / "at"):
            run("umount", "-l", str(tmp_path / "at"))
        if loop:
            run("losetup", "-d", loop)


class Devices:
    """One device on the test's own disk, one on the file system."""

    def __init__(self, tmp_path: Path, mounted: Path) -> None:
        self.linux = Folder(tmp_path / "linux", QuietDisk())
        self.other = Folder(mounted / "w", QuietDisk())
        self.urls = [f"memory://{uuid.uuid4().hex}-{i}" for i in range(3)]
        self.at_linux = Workspace.init(
            self.linux.root, name="w", backends=self.urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="linux"
        ).workspace
        self.at_other = self.at_linux

    def clone(self) -> None:
        self.at_linux.push()
        self.at_other = Workspace.clone(
            self.other.root, name="w", backends=self.urls, passphrase=PASSPHRASE, device_name="other"
        ).workspace

    def there(self) -> None:
        self.at_linux.sync()
        self.at_other.pull()
        assert self.at_other.push().version is None

    def back(self) -> None:
        self.at_other.sync()
        self.at_linux.pull()
        assert self.at_linux.push().version is None

    def unplaced(self) -> dict[bytes, str]:
        return {s.path: s.reason for s in self.at_other.status().unplaced}

    def rules(self) -> Rules:
        with self.at_other._session("rules") as s:
            return s.tree.rules

    def close(self) -> None:
        self.at_linux.close()
        self.at_other.close()


class Database(sqlite3.Connection):
    """Without waits for the disk: some of these file systems are slow in that."""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return super().execute("PRAGMA synchronous = OFF" if sql.startswith("PRAGMA synchronous") else sql, *args)


@pytest.fixture
def devices(tmp_path: Path, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setattr("metasync.session.session.WorkTree", lambda path, *_: WorkTree(path, QuietDisk()))
    monkeypatch.setattr("metasync.local.state.sqlite3.connect", partial(sqlite3.connect, factory=Database))
    made = Devices(tmp_path, mounted)
    yield made
    made.close()


NFC, NFD = "caf\u00e9".encode(), nfd("caf\u00e9").encode()
FILES = {
    b"README": b"upper",
    b"readme": b"lower",
    b"Docs/a": b"1",
    b"docs/b": b"2",
    b"plain/x": b"x",
    b"Name": b"n",
    NFC: b"composed",
    NFD: b"decomposed",
    "\u00c9t\u00e9".encode(): b"accents",
    "stra\u00dfe".encode(): b"one s",
    b"strasse": b"two s",
    b"what?": b"w",
    b"a:b": b"c",
    b"new\nline": b"nl",
    b"dot.": b"d",
    b"aux": b"device",
    b"\xff\xfe": b"bytes",
    b"n" * 255: b"long",
    "\u00e9".encode() * 127: b"long in bytes",
}


def test_what_a_file_system_cannot_hold_is_told_and_stays_agreed(devices: Devices) -> None:
    d = devices
    for path, data in FILES.items():
        d.linux.write(path, data)
    d.linux.link(b"link", b"plain/x")
    d.clone()
    rules, told, here = d.rules(), d.unplaced(), d.other.tree()
    everything = d.linux.tree()
    print(rules, sorted(told.items()))

    # Each agreed path is here, with its own bytes, or told; of twins, one is here.
    placed = everything.keys() - told.keys()
    assert {key(p, rules) for p in here} == {key(p, rules) for p in placed}
    assert len(here) == len(placed)
    by_key = {key(p, rules): data for p, data in here.items()}
    for path in placed:
        assert by_key[key(path, rules)] == everything[path], path
    for path in everything:
        if problem(path, rules):
            assert path in told, path
    if rules.has_twins:
        assert {b"README", b"readme"} & told.keys() == {b"readme"}
        assert {b"docs", b"docs/b"} <= told.keys()

    # It is no change here, nor does it become one.
    assert not len(d.at_other.status().changes)
    assert d.at_other.push().version is None
    d.linux.write(b"readme", b"lower, changed")
    d.linux.write(b"what?", b"w, changed")
    d.there()
    d.other.write(b"plain/x", b"x, changed here")
    d.other.write(b"plain/new", b"made here")
    d.back()
    everything |= {b"readme": b"lower, changed", b"what?": b"w, changed", b"plain/x": b"x, changed here"}
    assert d.linux.tree() == {**everything, b"plain/new": b"made here"}

    # When the twin that is here goes, the next one comes.
    d.linux.remove(b"README")
    d.linux.remove(b"Docs")
    d.there()
    here = {key(p, rules): data for p, data in d.other.tree().items()}
    assert here[key(b"readme", rules)] == b"lower, changed"
    assert here[key(b"docs/b", rules)] == b"2"
    assert not {b"readme", b"docs", b"docs/b"} & d.unplaced().keys()

    # A deletion here is one for all, and nothing else is.
    before = set(d.linux.tree())
    d.other.remove(b"readme")
    d.other.remove(b"docs")
    pushed = d.at_other.push()
    assert set(pushed.changes.deleted) == {b"readme", b"docs/b"}
    assert (pushed.changes.added, pushed.changes.modified) == ((), ())
    d.at_linux.pull()
    assert set(d.linux.tree()) == before - {b"readme", b"docs", b"docs/b"}
    assert [w.sync()[1].version for w in (d.at_linux, d.at_other)] == [None, None]


def test_changes_of_case_on_both_sides(devices: Devices) -> None:
    d = devices
    for path, data in ({b"name": b"1", b"Folder/x": b"2", b"Folder/sub/y": b"3", b"other": b"4"}).items():
        d.linux.write(path, data)
    d.clone()
    d.linux.rename(b"name", b"NAME")
    d.linux.rename(b"Folder", b"FOLDER")
    d.there()
    rules = d.rules()
    assert d.unplaced() == {}
    keeps = os.listdir(d.other.root / "FOLDER") and "FOLDER" in os.listdir(d.other.root)
    if keeps:
        assert d.other.tree() == d.linux.tree()
    assert sorted(filter(None, d.other.tree().values())) == [b"1", b"2", b"3", b"4"]
    d.other.rename(b"NAME", b"Name")
    d.other.rename(b"FOLDER", b"folder")
    d.back()
    assert sorted(filter(None, d.linux.tree().values())) == [b"1", b"2", b"3", b"4"]
    if keeps:
        assert set(d.linux.tree()) == {b"Name", b"folder", b"folder/x", b"folder/sub", b"folder/sub/y", b"other"}
        assert d.other.tree() == d.linux.tree()
    assert {key(p, rules) for p in d.other.tree()} == {key(p, rules) for p in d.linux.tree()}
    assert [w.sync()[1].version for w in (d.at_linux, d.at_other)] == [None, None]
