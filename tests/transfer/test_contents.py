"""Objects by id: which packs are read, what a lost one costs, what is at hand and in no pack."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any

import pytest
from content_kit import digest

from metasync.errors import DamagedError, MetaSyncError
from metasync.objects.model import ObjectKind
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import HEADER_BYTES, Located, Segment
from metasync.transfer import contents as contents_module
from metasync.transfer.contents import Contents
from metasync.transfer.download import Lost

BLOB, DIR = ObjectKind.BLOB, ObjectKind.DIR
A, B, C = (digest(n) for n in range(3))  # packs
X, Y, Z, NOWHERE = (digest(n) for n in range(10, 14))  # objects


def record(name: bytes) -> PackRecord:
    return PackRecord(name, 0, 1000, bytes(HEADER_BYTES), (Segment(100, 100, digest(99)),))


def inside(kind: ObjectKind, *ids: bytes) -> list[Located]:
    return [Located(kind, i, 0, n, 1) for n, i in enumerate(ids)]


class Packs:
    """A transfer whose packs are `lost` or not; every object's bytes are its own id's."""

    def __init__(self, *lost: bytes) -> None:
        self.lost = set(lost)
        self.asked: list[bytes] = []


class Fetching:
    """A download of such packs."""

    def __init__(self, packs: Packs, _runner: object, deliver: Callable[..., None], *_more: object):
        self.packs, self.deliver = packs, deliver
        self.todo: list[tuple[PackRecord, list[Located]]] = []

    def want(self, pack: PackRecord, located: Iterable[Located]) -> None:
        self.todo.append((pack, list(located)))

    def run(self) -> Generator[Lost, None, None]:
        while self.todo:
            pack, located = self.todo.pop()
            self.packs.asked.append(pack.name)
            if pack.name in self.packs.lost:
                yield Lost(pack, located, DamagedError(f"pack {pack.name.hex()[:8]} is lost"))
            else:
                self.deliver([(o, memoryview(o.id)) for o in located])


@pytest.fixture(autouse=True)
def fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "Download", Fetching)


class Cache:
    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        return {i: self.kept[i] for i in ids if i in self.kept}

    def put_objects(self, items: Iterable[tuple[bytes, int, bytes]]) -> None:
        self.kept.update((i, data) for i, _, data in items)


def contents(packs: Packs, *held: tuple[bytes, list[Located]], **options: Any) -> Contents:
    index = Index([make_segment([(record(name), located)]) for name, located in held])
    return Contents(index, packs, Cache(), None, **options)  # type: ignore[arg-type]


def test_an_object_of_a_lost_pack_comes_from_another_though_its_neighbours_do_not() -> None:
    """A tree that was sent twice: the neighbours in the lost pack were not asked for."""
    packs = Packs(B)
    c = contents(packs, (A, inside(DIR, X)), (B, inside(DIR, X, Y)))
    assert c.load(DIR, [X]) == {X: X}
    assert packs.asked == [B, A]
    with pytest.raises(DamagedError):
        c.load(DIR, [Y])


def test_what_is_lost_is_told_and_the_rest_fetched() -> None:
    packs = Packs(A, C)
    c = contents(packs, (A, inside(BLOB, X, Y)), (B, inside(BLOB, Y, Z)), (C, inside(BLOB, Z, digest(20))))
    got: list[bytes] = []
    lost: dict[bytes, str] = {}

    def told(ids: Sequence[bytes], error: MetaSyncError) -> None:
        lost.update((i, error.message) for i in ids)

    c.fetch([X, Y, Z, NOWHERE], lambda objects: got.extend(o.id for o, _ in objects), on_lost=told)
    assert sorted(got) == sorted([Y, Z])
    assert lost.keys() == {X, NOWHERE}
    assert "is lost" in lost[X]
    assert "in no pack" in lost[NOWHERE]
    for wanted in ([X], [NOWHERE]):
        with pytest.raises(DamagedError):
            c.fetch(wanted, lambda objects: None)


def test_what_is_at_hand_is_in_no_pack() -> None:
    packs = Packs()
    c = contents(packs, (A, inside(BLOB, X)), at_hand={Y: (BLOB, b"yy"), Z: (DIR, b"zzz")})
    assert c.load(BLOB, [X, Y]) == {X: X, Y: b"yy"}
    assert c.load(DIR, [Z]) == {Z: b"zzz"}
    assert packs.asked == [A]
    assert [i in c for i in (X, Y, Z, NOWHERE)] == [True, True, True, False]


def test_ids_of_a_kind() -> None:
    held = [(A, [*inside(BLOB, X), Located(DIR, Y, 0, 1, 1)]), (B, inside(DIR, Z, Y))]
    index = Index([make_segment([(record(name), located)]) for name, located in held])
    assert index.ids(BLOB) == [X]
    assert sorted(index.ids(DIR)) == sorted([Y, Z])
    gone = Index([*index.segments, make_segment([], [(0, B)])])
    assert gone.ids(DIR) == [Y]
