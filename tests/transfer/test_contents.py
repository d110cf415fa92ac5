"""Objects by id: which packs are read, what a lost one costs, what is at hand and in no pack."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any

import pytest
from content_kit import IDS, digest

from metasync.errors import DamagedError, MetaSyncError, UpgradeError
from metasync.objects import delta
from metasync.objects.model import ObjectKind
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import HEADER_BYTES, Delta, Located, Segment, delta_tags
from metasync.transfer import contents as contents_module
from metasync.transfer import opening
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


# ---- deltas

EDITED = [b"the first text of many words, " * 20 + b"%d" % n for n in range(10)]
BLOBS_OF = [IDS.blob(data) for data in EDITED]


class Store(Packs):
    """A transfer of packs with these objects, whose bytes are real. `wrong`: deltas that give something else."""

    def __init__(self, *lost: bytes) -> None:
        super().__init__(*lost)
        self.bytes: dict[tuple[bytes, bytes], bytes] = {}
        self.rounds: list[set[bytes]] = []

    check = staticmethod(IDS.of)


class Arriving(Fetching):
    """Brings what is wanted, the last first."""

    packs: Store

    def run(self) -> Generator[Lost, None, None]:
        self.packs.rounds.append({pack.name for pack, _ in self.todo})
        while self.todo:
            pack, located = self.todo.pop()
            if pack.name in self.packs.lost:
                yield Lost(pack, located, DamagedError(f"pack {pack.name.hex()[:8]} is lost"))
            else:
                self.deliver([(o, memoryview(self.packs.bytes[pack.name, o.id])) for o in reversed(located)])


def stored(
    *packs: dict[int, int | None], lost: Sequence[int] = (), wrong: Sequence[int] = (), newer: Sequence[int] = ()
) -> tuple[Contents, Store]:
    """Packs of the edited texts by number, each whole (None) or a delta of another one."""
    store, listed, depth = Store(*(digest(200 + n) for n in lost)), list[Any](), dict[int, int]()
    for number, texts in enumerate(packs):
        name, located, rows = digest(200 + number), list[Located](), dict[tuple[int, int], Delta]()
        for at, (n, base) in enumerate(texts.items()):
            data = EDITED[n] if base is None else delta.make(EDITED[base], EDITED[n if n not in wrong else 0])
            data = b"\2" + data[1:] if n in newer else data  # a later version's codec
            depth[n] = 0 if base is None else depth.get(base, 0) + 1
            if base is not None:
                rows[0, at] = Delta(BLOBS_OF[base], depth[n])
            located.append(Located(BLOB, BLOBS_OF[n], 0, at, len(data), base is not None))
            store.bytes[name, BLOBS_OF[n]] = data
        listed.append((record(name)._replace(tags=delta_tags(rows)), located))
    return Contents(Index([make_segment(listed)]), store, Cache(), None), store  # type: ignore[arg-type]


def read(c: Contents, *numbers: int) -> dict[int, bytes]:
    got: list[tuple[bytes, bytes]] = []
    c.fetch([BLOBS_OF[n] for n in numbers], lambda objects: got.extend((o.id, bytes(d)) for o, d in objects))
    assert len(got) == len(dict(got))
    return {BLOBS_OF.index(i): data for i, data in got}


@pytest.fixture
def arriving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "Download", Arriving)


@pytest.mark.usefixtures("arriving")
def test_a_chain_comes_in_one_round_and_only_what_was_asked_for_is_given() -> None:
    c, store = stored({0: None}, {1: 0, 2: 1}, {3: 2, 9: None}, {4: 3})
    assert read(c, 4) == {4: EDITED[4]}
    assert store.rounds == [{digest(200 + n) for n in range(4)}]
    assert read(c, *range(5), 9) == {n: EDITED[n] for n in (*range(5), 9)}
    assert len(store.rounds) == 2
    assert c.load(BLOB, BLOBS_OF[:5]) == dict(zip(BLOBS_OF[:5], EDITED, strict=False))


@pytest.mark.usefixtures("arriving")
def test_a_blob_that_is_whole_somewhere_is_read_there() -> None:
    c, store = stored({0: None}, {1: 0}, {1: None})
    assert read(c, 1) == {1: EDITED[1]}
    assert store.rounds == [{digest(202)}]


@pytest.mark.usefixtures("arriving")
@pytest.mark.parametrize("lost", [0, 1])
def test_a_chain_of_which_a_pack_is_lost_is_made_of_another(lost: int) -> None:
    c, _ = stored({0: None}, {1: 0}, {2: 1}, {0: None}, {1: 0}, lost=[lost])
    assert read(c, 2) == {2: EDITED[2]}


@pytest.mark.usefixtures("arriving")
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_chain_of_which_all_is_lost_is_told_by_what_was_asked_for(lost: int) -> None:
    c, _ = stored({0: None}, {1: 0}, {2: 1}, {9: None}, lost=[lost])
    told: dict[bytes, MetaSyncError] = {}
    got: list[bytes] = []
    c.fetch(
        [BLOBS_OF[2], BLOBS_OF[9]],
        lambda objects: got.extend(o.id for o, _ in objects),
        on_lost=lambda ids, e: told.update(dict.fromkeys(ids, e)),
    )
    assert got == [BLOBS_OF[9]]
    assert told.keys() == {BLOBS_OF[2]}
    with pytest.raises(DamagedError, match="is lost") as caught:
        read(c, 2)
    assert caught.value.objects == (BLOBS_OF[2],)


@pytest.mark.usefixtures("arriving")
def test_a_delta_that_gives_something_else_is_told_and_another_place_is_read() -> None:
    c, _ = stored({0: None}, {1: 0}, {2: 1}, wrong=[1])
    with pytest.raises(DamagedError, match="stored as a delta"):
        read(c, 2)
    with pytest.raises(DamagedError, match="stored as a delta"):
        read(c, 1)
    c, _ = stored({0: None}, {1: 0}, {2: 1}, {2: 0}, wrong=[1])
    assert read(c, 2) == {2: EDITED[2]}


@pytest.mark.usefixtures("arriving")
def test_a_delta_of_a_later_codec_asks_for_an_upgrade_and_another_place_is_read() -> None:
    """So does what rests on it, and the rest comes. It is damage to nobody."""
    c, _ = stored({0: None}, {1: 0}, {2: 1}, {9: None}, newer=[1])
    for n in (2, 1):
        with pytest.raises(UpgradeError, match="stored in a newer way"):
            read(c, n)
    told: dict[bytes, MetaSyncError] = {}
    got: list[bytes] = []
    c, _ = stored({0: None}, {1: 0}, {2: 1}, {9: None}, newer=[1])
    c.fetch(
        [BLOBS_OF[2], BLOBS_OF[9]],
        lambda objects: got.extend(o.id for o, _ in objects),
        on_lost=lambda ids, e: told.update(dict.fromkeys(ids, e)),
    )
    assert got == [BLOBS_OF[9]]
    assert {i: type(e) for i, e in told.items()} == {BLOBS_OF[2]: UpgradeError}
    c, _ = stored({0: None}, {1: 0}, {2: 1}, {2: 0}, newer=[1])
    assert read(c, 2) == {2: EDITED[2]}


@pytest.mark.usefixtures("arriving")
def test_a_chain_whose_base_is_named_nowhere_or_that_goes_in_a_circle_ends() -> None:
    c, store = stored({1: 0, 2: 1, 3: 4, 4: 3})
    for n in (1, 2, 3, 4):
        with pytest.raises(DamagedError, match="in no pack"):
            read(c, n)
    assert store.rounds == []


@pytest.mark.usefixtures("arriving")
def test_bases_that_do_not_fit_together_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "HELD_BYTES_MAX", 3)  # of wholes of a byte, as the index has it here
    monkeypatch.setattr(Located, "length", 1)
    bases: list[dict[int, int | None]] = [{n: None} for n in range(5)]
    c, store = stored(*bases, {n + 5: n for n in range(5)})
    assert read(c, *range(5, 10)) == {n: EDITED[n] for n in range(5, 10)}
    assert [len(packs) for packs in store.rounds] == [4, 3]


@pytest.mark.usefixtures("arriving")
def test_a_base_that_is_kept_here_is_not_fetched_and_a_rotten_one_is() -> None:
    c, store = stored({0: None}, {1: 0}, {2: 1})
    c.bases = Kept({BLOBS_OF[1]: EDITED[1]})
    assert read(c, 2) == {2: EDITED[2]}
    assert store.rounds == [{digest(202)}]
    c.bases = Kept({BLOBS_OF[1]: b"rotten"})
    assert read(c, 2) == {2: EDITED[2]}
    assert store.rounds[1:] == [{digest(200), digest(201), digest(202)}]


class Kept(dict[bytes, bytes]):
    """Bases on this device."""
