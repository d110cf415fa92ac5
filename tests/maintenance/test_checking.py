"""What `check` finds without a download, in whole workspaces whose stores tell digests, or do not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import Lab, write

from metasync.backends import folder
from metasync.backends.api import Digest
from metasync.backends.folder import FolderBackend

NAMES = ("a", "b", "c")


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders tell the MD5 of what they hold."""

    def digest(self: FolderBackend, path: str) -> Digest:
        data = self.get(path, max_bytes=1 << 30)
        return Digest(len(data), hashlib.md5(data, usedforsecurity=False).digest())

    monkeypatch.setattr(folder.FolderBackend, "digest_kind", "md5", raising=False)
    monkeypatch.setattr(folder.FolderBackend, "digest", digest, raising=False)


def pushed(lab: Lab) -> Any:
    w = lab.init(lab.urls(*NAMES))
    write(Path(w.directory), {f"f{i}": noise(500_000, i) for i in range(20)})
    w.push()
    return w


def packs_of(lab: Lab) -> list[Path]:
    return sorted(p for p in lab.root.rglob("packs/*/*/*") if p.is_file())


def flip(path: Path, at: int = 1000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    os.chmod(path, 0o600)
    path.write_bytes(data)


def test_every_copy_is_compared_by_its_digest_and_none_is_read(telling: None, lab: Lab) -> None:
    w = pushed(lab)
    report = w.check()
    assert report.problems == ()
    assert (report.by_digest, report.pieces_read, report.bytes_read) == (report.copies_checked, 0, 0)
    assert report.by_digest == 2 * report.packs
    one_copy_each = {path.name: path for path in packs_of(lab)}
    for path in one_copy_each.values():
        flip(path)
    report = w.check()
    assert [p.problem for p in report.problems] == ["altered"] * report.packs
    assert report.by_digest == report.packs
    assert not report.lost


def test_another_device_finds_the_digests_in_the_index(telling: None, lab: Lab) -> None:
    pushed(lab).close()
    report = lab.clone(lab.urls(*NAMES)).check()
    assert report.by_digest == report.copies_checked


def test_packs_of_before_the_stores_told_digests(lab: Lab, request: pytest.FixtureRequest) -> None:
    w = pushed(lab)
    assert w.check().by_digest == 0
    request.getfixturevalue("telling")
    w = lab.reopen(w)
    write(Path(w.directory), {"more": noise(3_000_000, 99)})
    w.push()
    report = w.check()
    assert 0 < report.by_digest < report.copies_checked
    assert report.pieces_read > 0, "where nobody noted a digest, pieces are read"
    assert report.problems == ()


def test_pieces_are_read_where_no_digests_are_told(lab: Lab) -> None:
    w = pushed(lab)
    report = w.check()
    assert report.by_digest == 0
    assert 1 <= report.pieces_read <= 4 * len(NAMES)
    assert report.bytes_read > 0
    assert report.problems == ()
    for path in packs_of(lab):
        data = path.read_bytes()
        path.write_bytes(noise(len(data), 5))
    report = w.check()
    assert {p.backend for p in report.problems} == set(NAMES), "any piece of what is all damaged shows it"
