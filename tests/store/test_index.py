"""`metasync.store.index`: finds what packs hold, forgets what was dropped, and costs a push what the push is worth."""

from __future__ import annotations

import random
import tracemalloc
from statistics import median

import pytest
import zstandard
from content_kit import blob, digest, noise, pack_all, pack_format, refuses
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.codec import u32
from metasync.errors import FormatError, UpgradeError
from metasync.local import spill
from metasync.local.spill import Spool, Spooled
from metasync.objects.model import ObjectKind
from metasync.session.write_index import (
    LARGE_SEGMENTS_MAX,
    MERGED_BYTES_MAX,
    MERGED_TIER_MAX,
    TIER_SEGMENTS_MAX,
    crowded,
    merge,
)
from metasync.store import index, listed_packs
from metasync.store import pack_format as packfile
from metasync.store.index import (
    TIER_BYTES_BASE,
    TIER_FACTOR,
    Index,
    IndexRoot,
    IndexSegment,
    PackRecord,
    Ref,
    RootItem,
    TrueIndex,
    decode_root,
    decode_segment,
    encode_root,
    encode_segment,
    joined,
    make_segment,
    pack_objects,
    segments_of,
)
from metasync.store.pack_format import HEADER_BYTES, Header, Located, Packs, Segment
from metasync.store.packs import read_footer

HEADER = packfile.encode_header(Header(0, 1, digest(0)))


def pack(n: int, objects: int = 3, generation: int = 1) -> tuple[PackRecord, list[Located]]:
    """A pack of `objects` blobs whose ids depend on n."""
    segment = Segment(100 * objects, 200 * objects, digest(n))
    record = PackRecord(digest(-n - 1), generation, HEADER_BYTES + 100 * objects + 50, HEADER, (segment,))
    return record, [Located(ObjectKind.BLOB, digest(n * 10_000 + i), 0, i * 10, 10) for i in range(objects)]


def stone(record: PackRecord) -> tuple[int, bytes]:
    return record.generation, record.name


records = st.integers(0, 30).map(lambda n: pack(n, n % 5))
packs_lists = st.lists(records, max_size=6, unique_by=lambda p: p[0].name)
stones = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9).map(digest)), max_size=4)


@given(packs_lists, stones)
def test_segment_round_trip(packs, tombstones):
    s = make_segment(packs, tombstones)
    back = decode_segment(encode_segment(s))
    assert back.packs == s.packs
    assert list(back) == list(s)
    assert back.tombstones == s.tombstones == tuple(sorted(set(tombstones)))
    assert encode_segment(back) == encode_segment(s)
    for record, located in packs:
        for o in located:
            assert (record, o) in back.find(o.id)
    assert back.find(digest(-77)) == []
    assert len(back) == sum(len(located) for _, located in packs)


def test_what_is_small_is_packed_harder():
    """A push of some files; at the level of large tables it takes 3 % more."""
    by_level = zstandard.ZstdCompressor(level=3)
    for objects, is_small in ((30, True), (600, True), (700, False)):
        s = make_segment([pack(1, objects=objects)])
        assert (len(encode_segment(s)) - 1 < len(by_level.compress(plain(s)))) == is_small, objects


@given(st.lists(st.tuples(packs_lists, st.lists(st.integers(0, 30), max_size=3)), max_size=3))
def test_what_an_index_holds_is_what_it_finds(made):
    """A pack of which a tombstone tells holds nothing, nor does a row that is known to be untrue."""
    segments = [make_segment(packs, [stone(pack(n)[0]) for n in dead]) for packs, dead in made]
    index = Index(segments)
    without = TrueIndex(index, lambda _, object_id: object_id[0] % 2 == 0)
    for n in range(31):
        for i in range(5):
            object_id = digest(n * 10_000 + i)
            assert (object_id in index) == bool(index.find(object_id))
            assert (object_id in without) == bool(without.find(object_id))
            assert any(s.names(object_id) for s in segments) == any(s.find(object_id) for s in segments)


@given(packs_lists, st.randoms(use_true_random=False))
def test_segments_are_canonical(packs, rng):
    shuffled = [(record, rng.sample(located, len(located))) for record, located in packs]
    rng.shuffle(shuffled)
    assert encode_segment(make_segment(shuffled)) == encode_segment(make_segment(packs))


def test_an_object_listed_twice_is_kept_once():
    record, located = pack(1)
    assert encode_segment(make_segment([(record, located * 2)])) == encode_segment(make_segment([(record, located)]))


def test_a_pack_listed_twice_is_our_own_mistake():
    with pytest.raises(ValueError, match="listed twice"):
        make_segment([pack(1), pack(1)])


def test_all_fields_of_a_pack_survive():
    record, located = pack(1)
    record = record._replace(tags=((1, b"md5"), (9, b"hash")))
    located = [o._replace(kind=ObjectKind.DIR, encoding=2) for o in located]
    back = decode_segment(encode_segment(make_segment([(record, located)])))
    assert back.packs == (record,)
    assert [o for _, o in back] == sorted(located, key=lambda o: o.id)


# --- what decoders refuse


def packed(plain: bytes) -> bytes:
    return b"\1" + zstandard.ZstdCompressor().compress(plain)


def plain(s: IndexSegment) -> bytes:
    return zstandard.ZstdDecompressor().decompress(encode_segment(s)[1:])


def decode_plain(data: bytes) -> IndexSegment:
    return decode_segment(packed(data))


def test_hostile_tables():
    """Damage below the compression, where it hurts."""
    record, located = pack(1)
    full = make_segment([pack(2), (record._replace(tags=((1, b"x"),)), located)], [(1, digest(1)), (2, digest(2))])
    refuses(decode_plain, [plain(full), plain(make_segment([pack(3, 1)])), plain(make_segment([]))], plain, cases=6000)


def test_hostile_segments():
    refuses(decode_segment, [encode_segment(make_segment([pack(i) for i in range(5)]))], checked=False)


def test_newer_formats_ask_for_an_upgrade():
    with pytest.raises(UpgradeError):
        decode_segment(b"\2" + encode_segment(make_segment([]))[1:])
    with pytest.raises(UpgradeError):
        decode_root(b"\2" + encode_root(IndexRoot())[1:])


def raw_segment(s: IndexSegment, records: bytes) -> IndexSegment:
    return IndexSegment(s.packs, records, s.tombstones)


RECORD, LOCATED = pack(1)
TOO_LARGE = Segment(5, (64 << 20) + 1, digest(1))
ONE = make_segment([(RECORD, LOCATED)])
ROWS = [ONE.objects[i : i + 49] for i in range(0, 3 * 49, 49)]


def altered(row: bytes, at: int, value: int) -> bytes:
    return row[:at] + bytes((value,)) + row[at + 1 :]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (IndexSegment(Packs.of([RECORD, RECORD]), b""), "packs out of order"),
        (IndexSegment(Packs.of(sorted([RECORD, pack(2)[0]], reverse=True)), b""), "packs out of order"),
        (raw_segment(ONE, ROWS[1] + ROWS[0]), "objects out of order"),
        (raw_segment(ONE, ROWS[0] * 2), "objects out of order"),
        (raw_segment(ONE, altered(ROWS[0], 32, 0)), "kind 0"),
        (raw_segment(ONE, altered(ROWS[0], 36, 1)), "in no pack"),
        (raw_segment(ONE, altered(ROWS[0], 40, 1)), "outside its segments"),
        (raw_segment(ONE, altered(ROWS[0], 43, 255)), "outside its segment"),
        (raw_segment(ONE, altered(ROWS[0], 47, 255)), "outside its segment"),
        (IndexSegment(Packs.of([]), b"", ((2, digest(1)), (1, digest(2)))), "tombstones out of order"),
        (IndexSegment(Packs.of([]), b"", ((1, digest(1)), (1, digest(1)))), "tombstones out of order"),
        (IndexSegment(Packs.of([RECORD._replace(size=packfile.PACK_BYTES_MAX + 1)]), b""), "impossible numbers"),
        (IndexSegment(Packs.of([RECORD._replace(size=100)]), b""), "beyond their pack"),
        (
            IndexSegment(Packs.of([RECORD._replace(segments=(Segment(5, (64 << 20) + 1, digest(1)),))]), b""),
            "too large",
        ),
    ],
)
def test_impossible_segments_are_refused(bad, why):
    with pytest.raises(FormatError, match=why):
        decode_segment(encode_segment(bad))


def test_huge_counts_allocate_nothing():
    for data in (
        u32(2**32 - 1) + bytes(500),
        u32(0) + u32(2**32 - 1) + bytes(500),
        u32(0) + u32(0) + u32(2**32 - 1) + bytes(500),
        u32(1) + digest(1) + bytes(16) + HEADER + b"\0\1\1" + u32(2**16) + bytes(500),
        u32(1) + digest(1) + bytes(16) + HEADER + b"\0\1\1" + u32(2**32 - 1) + bytes(500),
    ):
        with pytest.raises(FormatError):
            decode_plain(data)


def test_frames_that_lie_are_refused():
    whole = encode_segment(make_segment([pack(1)]))
    no_size = zstandard.ZstdCompressor().compressobj()
    for bad in (
        b"",
        b"\1",
        b"\0" + whole[1:],
        whole[:-1],
        whole + b"\0",
        packed(b""),
        b"\1" + no_size.compress(plain(make_segment([pack(1)]))) + no_size.flush(),
        b"\1\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + bytes(100),
    ):
        with pytest.raises(FormatError):
            decode_segment(bad)


root_items = st.builds(
    RootItem,
    st.builds(Ref, st.integers(0, 2**64 - 1), st.binary(min_size=32, max_size=32)),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.just(()) | st.just(((5, b"of the entry"), (7, b""))),
)


@given(
    st.lists(root_items, max_size=10, unique_by=lambda i: i.ref.hash).map(tuple), st.just(()) | st.just(((5, b"tag"),))
)
def test_root_round_trip(items, tags):
    root = IndexRoot(items, tags)
    assert decode_root(encode_root(root)) == root
    assert encode_root(decode_root(encode_root(root))) == encode_root(root)


def test_hostile_roots():
    item, other = RootItem(Ref(3, digest(1)), 4096, 7, 2), RootItem(Ref(3, digest(2)), 4096, 7, 2)
    refuses(decode_root, [encode_root(IndexRoot()), encode_root(IndexRoot((item, other), ((2, b"x"),)))], encode_root)
    with pytest.raises(FormatError, match="a segment twice"):
        joined(IndexRoot((item, other, item._replace(size=5))), lambda _: b"")
    with pytest.raises(FormatError, match="segments"):
        decode_root(b"\1" + b"\xff" * 200)


# --- finding


def test_find_over_several_segments():
    (a, a_objects), (b, b_objects) = pack(1), pack(2)
    again = [o._replace(offset=o.offset + 30) for o in a_objects]
    both = Index([make_segment([(a, a_objects)]), make_segment([(b, [*b_objects, *again])])])
    assert both.find(a_objects[0].id) == [(b, again[0]), (a, a_objects[0])], "the newest first"
    assert both.find(b_objects[2].id) == [(b, b_objects[2])]
    assert a_objects[0].id in both
    assert digest(-5) not in both
    assert set(both.packs()) == {stone(a), stone(b)}
    assert Index().find(digest(1)) == []


def test_find_of_several_places_in_one_segment():
    (a, a_objects), (b, b_objects) = pack(1), pack(2)
    again = [o._replace(offset=o.offset + 30) for o in a_objects]
    both = Index([make_segment([(a, a_objects), (b, [*b_objects, *again])])])
    for o, other in zip(a_objects, again, strict=True):
        assert set(both.find(o.id)) == {(a, o), (b, other)}


def test_a_tombstone_drops_a_pack_wherever_it_lies():
    (a, a_objects), (b, b_objects) = pack(1), pack(2)
    again = [o._replace(offset=o.offset + 30) for o in a_objects]
    first, second = make_segment([(a, a_objects)]), make_segment([(b, [*b_objects, *again])], [stone(a)])
    for one in (Index([first, second]), Index([merge([first, second], final=True)])):
        assert one.find(a_objects[0].id) == [(b, again[0])]
        assert set(one.packs()) == {stone(b)}
    other_generation = make_segment([], [(a.generation + 1, a.name)])
    assert Index([first, other_generation]).find(a_objects[0].id), "generation and name together"


@given(st.lists(packs_lists, max_size=4), st.lists(st.integers(0, 30), max_size=5))
@settings(max_examples=examples(60))
def test_merging_changes_no_answer(lists, dropped):
    segments = [make_segment(packs) for packs in lists]
    segments.append(make_segment([], [(1, digest(-n - 1)) for n in dropped]))
    before = Index(segments)
    for after in (
        Index([merge(segments, final=True)]),
        Index([merge(segments, final=False)]),
        Index([merge(segments[:2], final=False), *segments[2:]]),
        Index([*segments[:1], merge(segments[1:], final=False)]),
    ):
        assert after.packs() == before.packs()
        for _, located in (p for packs in lists for p in packs):
            for o in located:
                assert set(after.find(o.id)) == set(before.find(o.id))
    assert not merge(segments, final=True).tombstones
    assert len(merge(segments, final=True)) <= len(before)


def test_a_pack_listed_in_two_segments_keeps_all_its_objects():
    record, located = pack(1)
    again = record._replace(tags=((1, b"newer"),))
    merged = merge([make_segment([(record, located[:2])]), make_segment([(again, located[1:])])], final=True)
    assert merged.packs == (again,), "the newer record"
    assert [o for _, o in merged] == sorted(located, key=lambda o: o.id)


def test_a_very_large_push_makes_several_segments(monkeypatch):
    monkeypatch.setattr(index, "SEGMENT_OBJECTS_MAX", 10)
    packs = [pack(n, objects=4) for n in range(7)] + [pack(9, objects=15)]
    segments = list(segments_of((record, pack_objects(located)) for record, located in packs))
    assert [len(s) for s in segments] == [8, 8, 8, 4, 15]
    assert Index(segments).packs() == Index([make_segment(packs)]).packs()
    assert list(segments_of([])) == []
    assert MERGED_BYTES_MAX > 500_000 * 50


def test_a_tombstone_that_is_merged_too_early_would_raise_the_dead():
    """Why `final` is for merges that leave no other segment with such a pack: the caller must know."""
    (a, a_objects), (b, b_objects) = pack(1), pack(2)
    old, new = make_segment([(a, a_objects)]), make_segment([(b, b_objects)], [stone(a)])
    assert Index([old, merge([new], final=False)]).find(a_objects[0].id) == []
    assert Index([old, merge([new], final=True)]).find(a_objects[0].id) != []


def test_an_index_is_rebuilt_from_packs_alone():
    form = pack_format()
    sealed = pack_all([blob(noise(900, i) + b"text" * 50) for i in range(300)], form)

    def entry(name: bytes, data: bytes, header: Header, footer: packfile.Footer) -> tuple[PackRecord, list[Located]]:
        return PackRecord(name, 1, len(data), packfile.encode_header(header), footer.segments), list(footer.objects)

    original = make_segment(entry(p.name, p.data, p.header, p.footer) for p in sealed)
    stored = {p.name: p.data for p in reversed(sealed)}
    rebuilt = make_segment(
        entry(n, stored[n], *held) for n, held in ((n, read_footer(d, n, form)) for n, d in stored.items())
    )
    assert encode_segment(rebuilt) == encode_segment(original)
    assert decode_segment(encode_segment(original)).packs == rebuilt.packs


# --- tiers


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


def test_one_pack_has_one_description():
    """An object would be looked for in a segment that its pack does not have."""
    record, located = pack(1)
    other = record._replace(segments=(*record.segments, Segment(10, 20, digest(5))), size=record.size + 10)
    elsewhere = [located[0]._replace(segment=1, offset=0)]
    segments = [make_segment([(record, located)]), make_segment([(other, elsewhere)])]
    for use in (Index, lambda listed: merge(listed, final=True)):
        with pytest.raises(FormatError, match="listed in two ways"):
            use(segments)
        use([segments[0], segments[0]])
        use([segments[0], make_segment([(record._replace(generation=7), located)])])
        use([segments[0], make_segment([(record._replace(tags=((1, b"new"),)), located)])])


def test_a_frame_that_repeats_one_pack_costs_no_memory():
    """A few hundred bytes that unpack to millions: they are refused at the second pack, not after the last."""
    one = plain(make_segment([pack(1, 0)]))[4:-9]
    tables = u32(20_000) + one * 20_000 + bytes(9)
    data = packed(tables)
    assert len(data) < 2_000
    tracemalloc.start()
    with pytest.raises(FormatError, match="packs out of order"):
        index.decode_segment(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(tables)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), unique=True, max_size=80), st.booleans())
@settings(max_examples=examples(60))
def test_a_large_index_finds_by_tables_what_a_small_one_finds_by_maps(numbers, blobs):
    """Ids that share their first bytes are told apart, whether they are there or not."""
    ids = [digest(n)[:8] + bytes([k]) * 24 for n, k in numbers]
    absent = [digest(n)[:8] + bytes([k]) * 24 for n in range(42) for k in range(4)]
    kinds = (ObjectKind.BLOB, ObjectKind.DIR)
    record, _ = pack(1)
    objects = [Located(kinds[i % 2], object_id, 0, 0, 10) for i, object_id in enumerate(ids)]
    small = Index([make_segment([(record, objects)])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "MAP_AFTER", 1 << 30)
        patch.setattr(index, "MAP_OBJECTS_MAX", -1)
        large = Index([make_segment([(record, objects)])])
        for object_id in [*ids, *absent]:
            assert large.find(object_id) == small.find(object_id)
        assert large.segments[0]._map is None
        assert not ids or large.segments[0]._heads is not None
    for one in (small, large):
        wanted = [o for o in objects if blobs or o.kind is not ObjectKind.BLOB]
        assert sorted(one.inside(record, blobs=blobs)) == sorted(wanted)


def test_of_several_records_of_a_pack_the_newest_counts():
    """Who notes a digest later lists the pack again, with another tag, and needs to list no object of it again."""
    (bare, located), (other, elsewhere) = pack(1), pack(2)
    old = bare._replace(tags=((1, b"md5"), (9, b"old")))
    new = bare._replace(tags=((3, b"content hash"), (9, b"new")))
    late = Located(ObjectKind.DIR, digest(-5), 0, 0, 10)
    loaded = Index([make_segment([(old, located), (other, elsewhere)]), make_segment([(new, [late])])])
    new = bare._replace(tags=((1, b"md5"), (3, b"content hash"), (9, b"new")))
    assert loaded.packs()[new.id] == new
    for object_id in (located[0].id, late.id):
        assert [record for record, _ in loaded.find(object_id)] == [new]
    assert [record for record, _ in loaded.find(elsewhere[0].id)] == [other]
    for record in (old, new):
        assert sorted(loaded.inside(record)) == sorted([*located, late])
        assert loaded.inside(record, blobs=False) == [late]
    assert loaded.inside(pack(3)[0]) == []
    twice = Index([make_segment([(old, located)]), make_segment([(new, located)])])
    assert sorted(twice.inside(new)) == sorted(located)
    merged = merge(loaded.segments, final=True)
    assert merged.packs[[p.id for p in merged.packs].index(new.id)] == new


def test_a_merge_keeps_tags_of_segments_the_newest_of_one_number():
    parts = [make_segment([pack(n)]) for n in (1, 2)]
    parts[0].tags, parts[1].tags = ((7, b"old"), (8, b"kept")), ((7, b"new"),)
    assert merge(parts, final=True).tags == ((7, b"new"), (8, b"kept"))


# --- very many packs


def test_a_pack_takes_little_memory_in_an_index_that_is_open():
    many = 4_000
    data = [encode_segment(make_segment(pack(n, objects=0) for n in range(i, many, 2))) for i in range(2)]
    tracemalloc.start()
    opened = Index([decode_segment(one) for one in data])
    named = opened.packs()
    assert sum(p.size for p in named.values()) == many * (HEADER_BYTES + 50)
    assert len(named) == many
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 200 * many, "140 bytes are what is stored; as a value it is 700"


def test_what_several_segments_list_is_one_pack_of_the_index():
    """Each pack once, with its newest tags and all its objects; what has a tombstone, not at all."""
    (a, a_objects), (b, b_objects), (c, _) = pack(1), pack(2), pack(3)
    again = a._replace(tags=((1, b"newer"),))
    whole = Index(
        [
            make_segment([(a, a_objects[:2]), (b, b_objects), (c, [])]),
            make_segment([(again, a_objects[1:]), (b, b_objects)], [stone(c)]),
        ]
    )
    named = whole.packs()
    assert len(named) == 2
    assert sorted(named) == sorted([stone(a), stone(b)])
    assert sorted(named.values()) == sorted([again, b])
    assert dict(named) == {stone(a): again, stone(b): b} == named
    assert named.get(stone(c)) is None
    assert stone(c) not in named
    assert (9, a.name) not in named
    assert "a word" not in named
    assert sorted(whole.inside(a)) == sorted(a_objects)
    assert sorted(whole.inside(b)) == sorted(b_objects), "each once"
    assert whole.inside(pack(9)[0]) == []


@pytest.mark.parametrize("other", [{"size": 999}, {"header": b"\1\0" + bytes(36)}, {"segments": ()}])
def test_a_pack_that_is_listed_in_two_ways_is_refused(other):
    record, located = pack(1)
    segments = [make_segment([(record, located)]), make_segment([(record._replace(**other), [])])]
    with pytest.raises(FormatError, match="in two ways"):
        Index(segments)
    later = Index(lambda: segments)
    with pytest.raises(FormatError, match="in two ways"):
        later.find(located[0].id)
    with pytest.raises(FormatError, match="in two ways"):
        merge(segments, final=True)


@given(packs_lists)
def test_packs_are_asked_for_by_place_and_in_parts(packs):
    ordered = sorted((record for record, _ in packs), key=lambda p: p.id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packfile, "READ_TOGETHER_BYTES", 300)
        patch.setattr(packfile, "HELD_BYTES_MAX", 0)
        some = make_segment(packs).packs
        assert [*some] == [some[n] for n in range(len(some))] == ordered
        assert some == tuple(ordered) == some[:]
        assert some[-1:] == tuple(ordered[-1:])


@given(st.lists(packs_lists, max_size=3), st.lists(st.integers(0, 30), max_size=3))
@settings(max_examples=examples(30))
def test_an_index_in_files_gives_the_answers_of_one_in_memory(lists, dropped):
    segments = [make_segment(packs) for packs in lists]
    segments.append(make_segment([], [(1, digest(-n - 1)) for n in dropped]))
    spool = Spool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "SPOOL_BYTES_HELD", 0)
        there = [decode_segment(encode_segment(s), lambda data: Spooled(spool, spool.put(data))) for s in segments]
        patch.setattr(index, "_READ_TOGETHER", 2 * 49)
        patch.setattr(listed_packs, "SORTED_TOGETHER", 2)
        inside, whole = Index(there), Index(segments)
        assert dict(inside.packs()) == dict(whole.packs())
        for record, located in (p for packs in lists for p in packs):
            assert inside.inside(record) == whole.inside(record)
            for o in located:
                assert inside.find(o.id) == whole.find(o.id)
        assert inside.find(digest(-9)) == []
        assert inside.ids(ObjectKind.BLOB) == whole.ids(ObjectKind.BLOB)
        assert [encode_segment(s) for s in there] == [encode_segment(s) for s in segments]
        assert encode_segment(merge(there, final=False)) == encode_segment(merge(segments, final=False))
