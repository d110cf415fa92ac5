"""Stores that tell the right digest of bytes that they do not have get nothing deleted elsewhere, and are mended."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from workspace_kit import PASSPHRASE, Lab, flip, tree_of, write

from metasync.backends.api import Digest
from metasync.backends.folder import FolderBackend
from metasync.session import agreement
from metasync.store.moves import Places
from metasync.transfer import wrong_copies
from metasync.workspace import Workspace

PUSHES = 10


class Telling:
    """Folders tell size and SHA-256 of what was put. Those in `dropping` store other bytes of packs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.put: dict[str, Digest] = {}
        self.dropping: set[str] = set()
        real, telling = FolderBackend.put, self

        def put(backend: FolderBackend, path: str, data: bytes) -> None:
            telling.put[f"{backend._root}/{path}"] = Digest(len(data), hashlib.sha256(data).digest())
            drops = Path(backend._root).name in telling.dropping and "/packs/" in path
            real(backend, path, bytes(len(data)) if drops else data)

        def digest(backend: FolderBackend, path: str) -> Digest:
            backend.stat(path)
            return telling.put[f"{backend._root}/{path}"]

        monkeypatch.setattr(FolderBackend, "put", put)
        monkeypatch.setattr(FolderBackend, "digest_kind", "sha256", raising=False)
        monkeypatch.setattr(FolderBackend, "digest", digest, raising=False)


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Telling:
    return Telling(monkeypatch)


def filled(lab: Lab, *names: str, copies: int = 2) -> Workspace:
    w = lab.init(lab.urls(*names))
    if copies != 2:
        w.set_copies(copies, passphrase=PASSPHRASE)
        assert w.rebalance().is_whole
    for n in range(PUSHES):
        write(w.directory, {f"file{n}": os.urandom(2000)})
        w.push()
    return w


def fullest(lab: Lab) -> str:
    """Which of the stores has most packs, and so has some."""
    return max("abc", key=lambda name: len(lab.objects(name, "packs")))


def altered(lab: Lab, name: str) -> set[str]:
    """Alters all that a store has of packs. -> their names."""
    paths = lab.objects(name, "packs")
    for path in paths:
        flip(path)
    return {path.name for path in paths}


def nothing_is_lost(lab: Lab, w: Workspace) -> None:
    report = w.check(read_data=True)
    assert (report.problems, report.lost, report.short) == ((), (), 0)
    other = lab.clone([b.url for b in w.backends()], device="reader")
    assert {k: n.data for k, n in tree_of(other.directory).items()} == {
        k: n.data for k, n in tree_of(w.directory).items()
    }


@pytest.mark.long
def test_a_digest_alone_is_no_copy_where_it_is_known_to_be_altered(lab: Lab, telling: Telling) -> None:
    w = filled(lab, "a", "b", "c")
    wrong = altered(lab, fullest(lab))
    assert {p.pack.hex() for p in w.check(read_data=True).problems} == wrong
    assert {p.pack.hex() for p in w.check().problems} == wrong, "by the digests all is well, and what is noted is read"
    w.set_copies(1, passphrase=PASSPHRASE)
    report = w.rebalance()
    assert report.is_whole, report
    nothing_is_lost(lab, w)


@pytest.mark.long
def test_while_it_cannot_be_made_good_nothing_is_deleted(lab: Lab, telling: Telling) -> None:
    w = filled(lab, "a", "b", "c", copies=3)
    w.set_copies(2, passphrase=PASSPHRASE)
    with w._session("test") as s:
        names = {b.backend_id: b.name for b in s.config.backends}
        packs = agreement.newest(s).index.packs().values()
        wrong = names[Places(s.config, s.previous).primary(next(iter(packs)).name)[0]]
    others = {n: sorted(lab.objects(n, "packs")) for n in "abc" if n != wrong}
    altered(lab, wrong)
    found = w.check(read_data=True).problems
    assert found
    assert w.check().problems == found, "what was found by reading is not forgotten, and is read again"
    telling.dropping.add(wrong)
    report = w.rebalance()
    assert not report.is_whole
    assert "has not what was stored there" in dict(report.waiting)[wrong]
    assert {n: sorted(lab.objects(n, "packs")) for n in others} == others
    telling.dropping.clear()
    assert w.rebalance().is_whole
    nothing_is_lost(lab, w)


@pytest.mark.long
def test_the_only_copy_is_read_before_others_are_deleted(lab: Lab, telling: Telling) -> None:
    w = filled(lab, "a", "b", "d", copies=1)
    held = {n: sorted(lab.objects(n, "packs")) for n in "abd"}
    telling.dropping.add("c")
    w.backend_add(lab.url("c"), passphrase=PASSPHRASE)
    with w._session("test") as s:
        places = Places(s.config, s.previous)
        (c,) = (b.backend_id for b in s.config.backends if b.name == "c")
        packs = [path.name for some in held.values() for path in some]
        gained = [n for n in packs if c in places.primary(bytes.fromhex(n))]
    report = w.rebalance()
    if gained:  # nearly always: a quarter of the packs belongs there
        assert not report.is_whole
        assert report.version is None
        assert "has not what was stored there" in dict(report.waiting)["c"]
    assert {n: sorted(lab.objects(n, "packs")) for n in "abd"} == held
    telling.dropping.clear()
    assert w.rebalance().is_whole
    nothing_is_lost(lab, w)


def test_a_copy_that_was_found_wrong_by_its_bytes_is_stored_again(lab: Lab, telling: Telling) -> None:
    w = filled(lab, "a", "b", "c")
    wrong = altered(lab, fullest(lab))
    mended = w.check(read_data=True, repair=True)
    assert mended.repaired is not None
    assert mended.repaired.copies == len(wrong)
    assert mended.problems == ()
    nothing_is_lost(lab, w)


@pytest.mark.parametrize(("noted", "doubted"), [(0, False), (2, False), (3, True)])
def test_where_no_more_can_be_noted_every_copy_is_doubted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, noted: int, doubted: bool
) -> None:
    monkeypatch.setattr(wrong_copies, "NOTED_MAX", 3)
    w = lab.init(lab.urls("a", "b", "c"))
    names = [bytes([n]) * 32 for n in range(noted)]
    with w._session("test") as s:
        wrong_copies.note(s.db, names)
        is_doubted = wrong_copies.doubted(s.db)
    assert all(map(is_doubted, names))
    assert is_doubted(b"z" * 32) is doubted
