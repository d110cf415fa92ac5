"""Segments of the index are merged by tiers, so that it costs a push what the push is worth."""

from __future__ import annotations

import random
from statistics import median

import pytest
from content_kit import digest
from index_kit import pack, stone

from metasync.session.write_index import (
    LARGE_SEGMENTS_MAX,
    MERGED_BYTES_MAX,
    MERGED_TIER_MAX,
    TIER_SEGMENTS_MAX,
    crowded,
    merge,
)
from metasync.store.index import (
    TIER_BYTES_BASE,
    TIER_FACTOR,
    Index,
    IndexRoot,
    IndexSegment,
    PackRecord,
    Ref,
    RootItem,
    encode_root,
    encode_segment,
    make_segment,
)


def item(size: int, n: int = 0) -> RootItem:
    return RootItem(Ref(0, digest(n)), size, 0, 0)


def test_tiers_by_size():
    sizes = [0, 1, TIER_BYTES_BASE, TIER_BYTES_BASE + 1, TIER_BYTES_BASE * TIER_FACTOR, TIER_BYTES_BASE * 64 + 1]
    assert [item(s).tier for s in sizes] == [0, 0, 0, 1, 1, 3]


def items(size: int, count: int) -> list[RootItem]:
    return [item(size, size + i) for i in range(count)]


def test_small_segments_are_merged_before_large_ones():
    small, large = items(100, 9), items(10_000, LARGE_SEGMENTS_MAX + 1)
    assert crowded(IndexRoot(tuple(small[1:] + large[1:]))) == ()
    assert crowded(IndexRoot(tuple(large + small))) == tuple(small)
    assert crowded(IndexRoot(tuple(large + small[1:]))) == tuple(large)


def test_where_an_object_is_stored_anyway_small_segments_are_merged_once_that_makes_a_large_one():
    """Else that object has them in it, and the next ones too; what is merged and small still would be merged again."""
    few = [item(TIER_BYTES_BASE // 2, 1), item(TIER_BYTES_BASE // 2, 2)]
    assert crowded(IndexRoot(tuple(few)), stores=True) == ()
    more = (*few, item(1, 3))
    assert crowded(IndexRoot(more), stores=True) == more
    assert crowded(IndexRoot(more)) == (), "their push rides"
    assert crowded(IndexRoot((item(TIER_BYTES_BASE, 1), *items(10_000, 8))), stores=True) == (), (
        "one is nothing to merge"
    )


def test_of_large_segments_the_lowest_tier_with_more_than_its_share_is_merged():
    third, second, first = items(900_000, 12), items(100_000, 9), items(10_000, 8)
    assert crowded(IndexRoot(tuple(third + second + first))) == ()
    fourth = items(5_000_000, 4)
    assert crowded(IndexRoot(tuple(fourth + third + second + first))) == tuple(second)
    assert crowded(IndexRoot(tuple(fourth + third + second[:8] + first))) == ()
    assert crowded(IndexRoot((*fourth, item(5_000_000, 1), *third, *second[:8], *first))) == tuple(third)


def test_as_many_large_segments_as_may_be_always_have_a_tier_to_merge():
    for tier, size in enumerate((10_000, 100_000, 900_000, 8_000_000), 1):
        assert item(size).tier == tier <= MERGED_TIER_MAX
    assert LARGE_SEGMENTS_MAX == MERGED_TIER_MAX * TIER_SEGMENTS_MAX, (
        "beyond it one of the tiers has more than its share"
    )


def test_no_merge_grows_beyond_one_record():
    full = items(8 << 20, LARGE_SEGMENTS_MAX + 1)
    assert crowded(IndexRoot(tuple(full))) == tuple(full[:6]), "the oldest"
    assert sum(i.size for i in full[:6]) == MERGED_BYTES_MAX
    huge = items((8 << 20) + 1, LARGE_SEGMENTS_MAX + 1)
    assert crowded(IndexRoot(tuple(huge))) == (), "they stay as they are"
    small = items(9, 9)
    assert crowded(IndexRoot((*huge, *small))) == tuple(small)
    assert MERGED_BYTES_MAX + (MERGED_BYTES_MAX >> 2) < 1 << 26, "sealed records end at 64 MiB"


class History:
    """An index as pushes leave it: segments by hash, and what each push wrote."""

    def __init__(self) -> None:
        self.root = IndexRoot()
        self.segments: dict[bytes, IndexSegment] = {}
        self.serial = 0

    def store(self, s: IndexSegment) -> RootItem:
        self.serial += 1
        data = encode_segment(s)
        name = digest(-1_000_000 - self.serial)
        self.segments[name] = s
        return RootItem(Ref(0, name), len(data), len(s), len(s.packs))

    def push(self, s: IndexSegment) -> int:
        """Adds a segment and merges what is crowded, in one commit; returns the bytes of segments written."""
        written = self.store(s)
        self.root = IndexRoot((*self.root.items, written))
        total = written.size
        while many := crowded(self.root):
            final = len(many) == len(self.root.items)
            merged = self.store(merge([self.segments[i.ref.hash] for i in many], final=final))
            self.root = IndexRoot((*(i for i in self.root.items if i not in many), merged))
            total += merged.size
        return total

    def index(self) -> Index:
        return Index([self.segments[i.ref.hash] for i in self.root.items])


PUSHES = 2_000


def test_two_thousand_small_pushes():
    history = History()
    written: list[int] = []
    most_segments = 0
    for n in range(PUSHES):
        written.append(history.push(make_segment([pack(n, objects=5)])))
        tiers = [i.tier for i in history.root.items]
        assert tiers.count(0) <= TIER_SEGMENTS_MAX
        assert len(tiers) - tiers.count(0) <= LARGE_SEGMENTS_MAX
        most_segments = max(most_segments, len(tiers))
    size = sum(i.size for i in history.root.items)
    own = [len(encode_segment(make_segment([pack(n, objects=5)]))) for n in range(1, PUSHES, 100)]
    assert median(written) == pytest.approx(median(own), rel=0.02), "the usual push writes its own segment alone"
    assert median(written[-200:]) == pytest.approx(median(written[:200]), rel=0.05), "however large the index is"
    assert sum(written) <= 4 * size
    assert most_segments <= TIER_SEGMENTS_MAX + LARGE_SEGMENTS_MAX
    assert len(encode_root(history.root)) < 4096
    whole = history.index()
    assert len(whole.packs()) == PUSHES
    for n in range(0, PUSHES, 97):
        record, located = pack(n, objects=5)
        assert whole.find(located[3].id) == [(record, located[3])]


def test_pushes_of_all_sizes_with_packs_dropped_on_the_way():
    history, rng = History(), random.Random(4)
    alive: dict[tuple[int, bytes], PackRecord] = {}
    for n in range(400):
        record, located = pack(n, objects=rng.choice((1, 5, 60, 400)))
        dropped = [rng.choice(list(alive)) for _ in range(rng.randrange(3)) if len(alive) > 5]
        history.push(make_segment([(record, located)], dropped))
        alive[stone(record)] = record
        for d in dropped:
            alive.pop(d, None)
        tiers = [i.tier for i in history.root.items]
        assert tiers.count(0) <= TIER_SEGMENTS_MAX
        assert len(tiers) - tiers.count(0) <= LARGE_SEGMENTS_MAX
    assert history.index().packs() == alive
