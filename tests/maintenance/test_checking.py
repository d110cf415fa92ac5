"""What `check` finds without a download, in whole workspaces whose stores tell digests, or do not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import PASSPHRASE, Lab, write

from metasync.backends import folder
from metasync.backends.api import Digest
from metasync.backends.folder import FolderBackend
from metasync.maintenance.check import judge
from metasync.transfer.verify import CopyState

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


def test_a_device_without_a_way_to_a_backend_calls_no_copy_missing_elsewhere(lab: Lab) -> None:
    """What belongs on the backend that this device cannot reach is not expected on the next one in line."""
    w = lab.init(lab.urls(*NAMES), replicas=3)
    for n in range(12):  # packs: that none is mapped to a fourth backend has a chance of 1 in 16 million
        write(Path(w.directory), {f"f{n}": noise(1000, n)})
        w.push()
    w.backend_add(lab.url("d"), passphrase=PASSPHRASE)
    w.rebalance()
    assert w.check().problems == ()
    other = lab.clone(lab.urls(*NAMES))
    report = other.check()
    on_d = {path.name for path in packs_of(lab) if lab.store("d") in path.parents}
    assert on_d, "or this shows nothing"
    told = {(p.backend, p.pack.hex(), p.problem) for p in report.problems}
    assert told == {("d", pack, "cannot be reached: this device has no way to it") for pack in on_d}
    assert not report.lost
    assert report.short == len(on_d)
    repaired = other.check(repair=True).repaired
    assert repaired is not None
    assert (repaired.copies, repaired.stored_bytes) == (0, 0)
    before = set(packs_of(lab))
    write(Path(other.directory), {"more": b"more"})
    other.push()  # and what it does beside makes no copy where none belongs
    new = {path.name for path in packs_of(lab)} - {path.name for path in before}
    assert {path for path in packs_of(lab) if path.name not in new} == before


def genesis_of(lab: Lab, name: str) -> Path:
    (path,) = lab.store(name).rglob("genesis")
    return path


def test_a_genesis_that_is_missing_is_brought(lab: Lab) -> None:
    """Without it on any backend nobody could join with the passphrase, though all else were there."""
    w = pushed(lab)
    for name in NAMES:  # one after the other, until none is the first one
        genesis_of(lab, name).unlink()
        report = w.check()
        assert report.notes == (f"{name}: brought what was missing there: genesis",)
        assert report.meta_problems == ()
        assert w.check().notes == ()
    assert lab.clone(lab.urls(*NAMES)).check().meta_problems == ()


@pytest.mark.parametrize("how", ["zeros", "of another acceptor", "one bit"])
def test_an_altered_genesis_is_told_and_stored_anew_by_a_repair(lab: Lab, how: str) -> None:
    w = pushed(lab)
    path, size = genesis_of(lab, "b"), genesis_of(lab, "b").stat().st_size
    if how == "one bit":
        flip(path, 200)
    else:
        path.unlink()
        path.write_bytes(bytes(size) if how == "zeros" else genesis_of(lab, "a").read_bytes())
    for read_data in (False, True):
        told = [(p.backend, p.problem) for p in w.check(read_data=read_data).meta_problems]
        assert told == [("b", "genesis is altered")]
    report = w.check(repair=True)
    assert (report.meta_problems, report.notes) == ((), ("b: stored anew what was altered there: genesis",))
    other = lab.clone(lab.urls("a", "b"))
    assert {b.name for b in other.backend_list().backends if b.linked} == {"a", "b"}, "it is known for an acceptor"


def test_a_genesis_that_nobody_has_or_that_cannot_be_stored_is_told(lab: Lab) -> None:
    w = pushed(lab)
    genesis_of(lab, "b").unlink()
    lab.faults["b"].read_only = True
    report = w.check()
    assert [(p.backend, p.problem) for p in report.meta_problems] == [("b", "genesis is missing")]
    assert [note.partition(":")[0] for note in report.notes] == ["b refused what was last to be written there"]
    for name in "ac":
        genesis_of(lab, name).unlink()
    report = w.check(repair=True)
    assert {(p.backend, p.problem) for p in report.meta_problems} == {(name, "genesis is missing") for name in NAMES}


@pytest.mark.parametrize(
    ("more", "elsewhere", "missed"),
    [
        ({"no_way": True}, {}, False),
        ({"missing": True}, {}, False),
        ({}, {}, True),  # it is altered, or nobody could look
        ({"no_way": True}, {"is_given_up": True}, True),  # what stands in its stead will go
    ],
)
def test_which_copy_is_missed_where_others_are_enough_is_no_matter_of_words(
    more: dict[str, bool], elsewhere: dict[str, bool], missed: bool
) -> None:
    home = [CopyState("a", None), CopyState("b", "in any words", unknown=True, **more)]
    verdict = judge(b"p", home, [CopyState("c", None, **elsewhere)], 2, ())
    assert bool(verdict.problems) == missed
    assert verdict.good == 2
