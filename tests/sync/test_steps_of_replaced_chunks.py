"""What is decided of chunks that take the place of others, one by one: which bases are tried, fetched and kept."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from content_kit import digest
from delta_kit import told

from metasync.objects import delta
from metasync.objects.model import Chunk, ObjectKind
from metasync.store.index import Index
from metasync.store.pack_format import DELTA, DEPTH_MAX, WHOLE, Delta
from metasync.sync import replaced_chunks
from metasync.sync.old_chunks import SMALL_BYTES_LEAST
from metasync.sync.replaced_chunks import MISSED_SHARE, MISSES_MAX, FileChunks, ReplacedChunks

WHOLE_BYTES = SMALL_BYTES_LEAST * 4


class Bases:
    """What is kept on this device."""

    def __init__(self, **kept: bytes) -> None:
        self.kept: dict[bytes, bytes] = {name.encode(): data for name, data in kept.items()}
        self.passed: list[bytes] = []

    def __contains__(self, object_id: object) -> bool:
        return object_id in self.kept

    def get(self, object_id: bytes) -> bytes | None:
        return self.kept.get(object_id)

    def keep(self, object_id: bytes, data: bytes, *, changes: bool) -> None:
        self.kept[object_id] = data

    def pass_over(self, object_id: bytes) -> None:
        self.passed.append(object_id)

    def note(self) -> None:
        pass


class Push:
    """A push whose lines say whether fetching pays, and whose backends have these bytes of each base."""

    def __init__(self, index: Index | None = None, fetched: bytes | None = None, pays: bool = True) -> None:
        self.bases, self.stored, self.asked = Bases(), list[Any](), list[dict[str, int]]()
        estimates = SimpleNamespace(pays=lambda _, **sizes: (self.asked.append(sizes), pays)[1])
        transfer = SimpleNamespace(placement=SimpleNamespace(copies=2), places={}, estimates=estimates)
        upload: Any = SimpleNamespace(transfer=transfer)
        db: Any = SimpleNamespace(put_objects=lambda rows: self.stored.append([*rows]))
        known, bases = (lambda _: False), self.bases
        self.chunks = ReplacedChunks(
            index or told(), upload, known, bases, db, level=3, whole_bytes=WHOLE_BYTES, fetch=lambda _: fetched  # type: ignore[arg-type]
        )  # fmt: skip


# ---- which files, and what is noted of them


def test_of_new_files_of_one_chunk_few_are_taken_and_tiny_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    former: list[Chunk] = []
    monkeypatch.setattr(replaced_chunks, "known_chunks", lambda *_: former)
    monkeypatch.setattr(replaced_chunks, "NEW_SMALL_MAX", 2)
    chunks = Push().chunks

    def taken(size: int) -> bool:
        return chunks.of(lambda: None, size) is not None  # type: ignore[arg-type,return-value]

    assert [taken(SMALL_BYTES_LEAST - 1), taken(SMALL_BYTES_LEAST)] == [False, True]
    assert [taken(WHOLE_BYTES + 1) for _ in range(3)] == [True] * 3
    assert [taken(WHOLE_BYTES) for _ in range(2)] == [True, False]
    former.append(Chunk(digest(1), WHOLE_BYTES))
    assert taken(WHOLE_BYTES)
    assert not taken(SMALL_BYTES_LEAST - 1)


def test_nodes_are_stored_together_but_not_all_of_a_push_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_chunks, "NODES_TOGETHER", 10)
    push = Push()
    rows = [(b"%d" % n, int(ObjectKind.FILE), b"node") for n in range(4)]
    for node_id, _, data in rows:
        push.chunks.keep([(node_id, data)])
    assert push.stored == [rows[:3]]
    push.chunks.end()
    push.chunks.end()
    assert push.stored == [rows[:3], rows[3:]]


# ---- the bytes of a base


@pytest.mark.parametrize(
    ("fetched", "pays", "share", "is_asked", "found"),
    [
        (b"old", True, 0.25, True, b"old"),
        (b"old", False, 0.25, True, None),
        (b"old", True, None, False, None),
        (None, True, 0.25, True, None),
    ],
)
def test_a_base_is_fetched_once_and_where_that_pays(
    fetched: bytes | None, pays: bool, share: float | None, is_asked: bool, found: bytes | None
) -> None:
    push = Push(told([(1, WHOLE, 0, 0)]), fetched, pays)
    data = bytes(range(200)) * 10
    assert push.chunks.base(digest(1), data, share) == found
    size = delta.alone_bytes(data, 3)
    assert push.asked == ([{"fetched": 10, "whole": 2 * size, "delta": 2 * (size // 4)}] if is_asked else [])
    assert push.bases.kept == ({digest(1): b"old"} if found else {})
    assert push.chunks.base(digest(1), data, None) == found


def test_only_what_is_a_delta_itself_is_passed_over() -> None:
    """Of the whole one at the end of the chain one more is made once the largest depth is reached."""
    push = Push(told([(1, WHOLE, 0, 0), (2, DELTA, 1, 1)]))
    for n in (1, 2):
        push.chunks.pass_over(digest(n))
    assert push.bases.passed == [digest(2)]


# ---- of which link of a chain of the largest depth

CHAIN = [(n, WHOLE if n == 0 else DELTA, n - 1, n) for n in range(DEPTH_MAX + 1)]  # 0 is the whole one


def deep(sizes: dict[int, int]) -> Index:
    """An index of a chain of the largest depth. `sizes`: what deltas take that take more than 10 bytes, by depth."""
    packs = [[(100 + n, encoding, 100 + base, depth)] for n, encoding, base, depth in CHAIN]
    packs[0] = [(100, WHOLE, 0, 0)]
    index = told(*packs)
    find = index.find
    longer = {digest(100 + depth): size for depth, size in sizes.items()}
    found: Any = SimpleNamespace(
        find=lambda i: [(record, o._replace(length=longer.get(i, o.length))) for record, o in find(i)]
    )
    return found


@pytest.mark.parametrize(
    ("sizes", "absent", "made_of"),
    [
        ({}, (), 0),  # all has come since, but all eight can come again
        ({1: 90}, (), 1),  # its eight are not stored once more
        ({1: 90, 2: 80}, (), 2),
        ({1: 90, 2: 80, 3: 70, 4: 60, 5: 50, 6: 40, 7: 30}, (), 7),
        ({8: 500}, (), 0),  # the last one is in whatever comes next: the more can follow, the better
        ({1: 90, 2: 80}, (2,), 3),
        ({1: 90, 2: 80}, (1, 2, 3), 4),
        ({1: 90}, range(1, DEPTH_MAX + 1), 0),  # the whole one is asked for, and may be fetched
    ],
)
def test_at_the_largest_depth_a_chain_branches_off_where_least_is_stored_once_more(
    sizes: dict[int, int], absent: Sequence[int], made_of: int
) -> None:
    push = Push(deep(sizes))
    push.bases.kept = {digest(100 + n): b"" for n in range(1, DEPTH_MAX + 1) if n not in absent}
    assert push.chunks.row(digest(100 + DEPTH_MAX)) == Delta(digest(100 + made_of), made_of + 1)


def test_below_the_largest_depth_the_chunk_itself_is_the_base() -> None:
    push = Push(deep({1: 90}))
    for n in range(DEPTH_MAX):
        assert push.chunks.row(digest(100 + n)) == Delta(digest(100 + n), n + 1)


# ---- which base


class Trying:
    """Stands in for a push of one file, by what a delta of each old chunk would take: a number of bytes, or none."""

    level = 3

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gains: dict[bytes, int | None]) -> None:
        self.tried: list[bytes] = []
        self.shares: list[float | None] = []
        self.made: list[bytes | None] = []
        self.passed: list[bytes] = []
        self.gains = gains
        self.bases: Any = SimpleNamespace(keep=lambda *_, **__: None)
        self.upload: Any = SimpleNamespace(add=self._add)
        self.rows: dict[bytes, Delta | None] = {}
        monkeypatch.setattr(delta, "gain", self._gain)

    def _gain(self, base: bytes, new: bytes, level: int) -> bytes | None:
        self.tried.append(base)
        size = self.gains.get(base)
        return bytes(size) if size is not None else None

    def _add(self, kind: ObjectKind, object_id: bytes, data: bytes, row: Delta | None = None) -> None:
        self.made.append(row.base if row is not None else None)

    def known(self, _: bytes) -> bool:
        return False

    def row(self, base: bytes) -> Delta | None:
        return self.rows.get(base, Delta(base, 1))

    def base(self, base: bytes, data: bytes, share: float | None) -> bytes | None:
        self.shares.append(share)
        return base

    def pass_over(self, former: bytes) -> None:
        self.passed.append(former)

    def file(self, former: Sequence[tuple[bytes, int]]) -> FileChunks:
        push: Any = self
        return FileChunks(push, [Chunk(*one) for one in former])


@pytest.mark.parametrize(
    ("gains", "tried", "made", "share"),
    [
        ({b"a": 50, b"b": 40}, [b"a", b"b"], b"b", 0.4),
        ({b"a": 40, b"b": 50}, [b"a", b"b"], b"a", 0.4),
        ({b"a": 40, b"b": 40}, [b"a", b"b"], b"a", 0.4),
        ({b"a": 25, b"b": 5}, [b"a"], b"a", 0.25),
        ({b"a": None, b"b": 90}, [b"a", b"b"], b"b", 0.9),
        ({}, [b"a", b"b"], None, None),
    ],
)
def test_the_smallest_delta_of_two_old_chunks_is_made_unless_the_first_is_good_enough(
    monkeypatch: pytest.MonkeyPatch, gains: Any, tried: list[bytes], made: bytes | None, share: float | None
) -> None:
    """The new chunk lies over 60 bytes of a and 40 of b. The part of it that its delta takes is what the next may."""
    push = Trying(monkeypatch, gains)
    file = push.file([(b"a", 60), (b"b", 100)])
    file.take(b"new", bytes(100))
    assert (push.tried, push.made) == (tried, [made])
    assert set(push.shares) == {replaced_chunks.SHARE_AT_FIRST}
    file.take(b"newer", bytes(10))
    assert push.shares[-1] == share


def test_of_what_can_be_no_base_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Trying(monkeypatch, {b"a": 10, b"b": 20})
    push.rows[b"a"] = None
    push.file([(b"a", 60), (b"b", 100)]).take(b"new", bytes(100))
    assert (push.tried, push.made) == ([b"b"], [b"b"])


def test_after_some_chunks_that_gained_nothing_few_are_tried_until_one_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Trying(monkeypatch, {})
    file = push.file([(b"%d" % n, 100) for n in range(40)])
    counts = []
    for n in range(24):
        before = len(push.tried)
        file.take(b"new %d" % n, bytes(100))
        counts.append(len(push.tried) > before)
    assert counts == [n <= MISSES_MAX + 1 or n % MISSED_SHARE == 0 for n in range(1, 25)]
    push.gains = {b"%d" % n: 10 for n in range(40)}
    for n in range(24, 34):
        file.take(b"new %d" % n, bytes(100))
    assert push.made[24:] == [None] * 7 + [b"31", b"32", b"33"]
