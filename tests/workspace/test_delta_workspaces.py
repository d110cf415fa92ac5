"""Workspaces with chunks that are stored as deltas, each document as one of the version before."""

from __future__ import annotations

import random
from typing import Any

import pytest
from workspace_kit import Lab, flip, write

from metasync.errors import MetaSyncError
from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.store.pack_format import Delta
from metasync.store.packs import Packer
from metasync.testing.counting import CountingBackend
from metasync.transfer.contents import Contents

NAMES = ("a", "b", "c")


def edited(n: int) -> bytes:
    """A document that cannot be compressed, after so many edits."""
    data = bytearray(random.Random(1).randbytes(60_000))
    for i in range(n):
        data[i * 5000 : i * 5000] = b"edit %d" % i
    return bytes(data)


@pytest.fixture
def deltas(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stores each document as a delta of the one before. -> the bytes of each delta."""
    last: list[tuple[bytes, bytes, int]] = []
    add = Packer.add

    def adding(self: Packer, kind: ObjectKind, object_id: bytes, data: bytes, row: Delta | None = None) -> Any:
        depth = 0
        if kind is ObjectKind.BLOB and len(data) > 50_000:
            if last:
                base, old, depth = last[-1][0], last[-1][1], last[-1][2] + 1
                add(self, kind, object_id, delta.make(old, data), Delta(base, depth))
            last.append((object_id, data, depth))
        if not depth:
            add(self, kind, object_id, data, row)

    monkeypatch.setattr(Packer, "add", adding)
    made: list[int] = []
    monkeypatch.setattr(delta, "make", _noting(delta.make, made))
    return made


def _noting(make: Any, made: list[int]) -> Any:
    def noting(old: bytes, new: bytes) -> bytes:
        out: bytes = make(old, new)
        made.append(len(out))
        return out

    return noting


def pushed(lab: Lab, versions: int) -> Any:
    w = lab.init(lab.urls(*NAMES))
    for n in range(versions):
        write(w.directory, {"doc": edited(n), "other": b"%d" % n})
        w.push()
    return w


def test_documents_in_deltas_come_to_other_devices(lab: Lab, deltas: list[int]) -> None:
    w = pushed(lab, 4)
    assert len(deltas) == 3
    assert max(deltas) < 200
    other = lab.clone(lab.urls(*NAMES))
    assert (other.directory / "doc").read_bytes() == edited(3)
    write(w.directory, {"doc": edited(4)})
    w.push()
    other.pull()
    assert (other.directory / "doc").read_bytes() == edited(4)
    assert len(deltas) == 4
    report = other.check(read_data=True)
    assert not (report.problems or report.lost or report.nowhere)


def test_a_delta_in_a_small_pack_comes_with_its_trees(
    lab: Lab, deltas: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changed in a document is there with one request: its pack is not asked for twice."""
    w = pushed(lab, 2)
    other = lab.clone(lab.urls(*NAMES))
    write(w.directory, {"doc": edited(2)})
    w.push()
    assert len(deltas) == 2
    read: list[str] = []
    get = CountingBackend.get

    def getting(self: CountingBackend, path: str, **part: Any) -> bytes:
        read.extend([path] * ("/packs/" in path))
        return get(self, path, **part)

    monkeypatch.setattr(CountingBackend, "get", getting)
    other.pull()
    assert (other.directory / "doc").read_bytes() == edited(2)
    assert read
    assert len(set(read)) == len(read), "no pack was asked for twice"


@pytest.mark.parametrize("wrong", [b"", b"no delta"])
def test_a_delta_that_came_along_and_is_wrong_is_told(
    lab: Lab, deltas: list[int], wrong: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is checked as one that was fetched by itself."""
    w = pushed(lab, 2)
    other = lab.clone(lab.urls(*NAMES))
    write(w.directory, {"doc": edited(2)})
    w.push()
    take = Contents.take_along

    def taking(self: Contents, place: Any, _: memoryview) -> None:
        take(self, place, memoryview(wrong))

    monkeypatch.setattr(Contents, "take_along", taking)
    with pytest.raises(MetaSyncError, match="cannot be read"):
        other.pull()
    assert (other.directory / "doc").read_bytes() == edited(1)


@pytest.mark.parametrize("how", ["lost", "rotten"])
def test_a_base_that_one_backend_lost_comes_from_another(lab: Lab, deltas: list[int], how: str) -> None:
    pushed(lab, 3)
    for path in lab.objects("a", "packs"):
        if how == "rotten":
            flip(path)
        else:
            path.unlink()
    other = lab.clone(lab.urls(*NAMES))
    assert (other.directory / "doc").read_bytes() == edited(2)
    assert deltas


def test_a_base_that_nobody_has_is_told(lab: Lab, deltas: list[int]) -> None:
    pushed(lab, 3)
    for path in (p for name in NAMES for p in lab.objects(name, "packs")):
        if path.stat().st_size > 50_000:
            path.unlink()
    with pytest.raises(MetaSyncError, match="intact on no backend"):
        lab.clone(lab.urls(*NAMES))
    assert deltas
