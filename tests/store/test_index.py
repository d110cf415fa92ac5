"""`metasync.store.index`: its bytes, what decoders refuse, and what it finds."""

from __future__ import annotations

import pytest
import zstandard
from content_kit import blob, digest, noise, pack_all, pack_format, refuses
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from index_kit import HEADER, pack, packed, packs_lists, plain, stone, stones

from metasync.codec import u32
from metasync.errors import FormatError, UpgradeError
from metasync.objects.model import ObjectKind
from metasync.session.write_index import MERGED_BYTES_MAX, merge
from metasync.store import index
from metasync.store import pack_format as packfile
from metasync.store.index import (
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
from metasync.store.pack_format import Header, Located, Packs, Segment
from metasync.store.packs import read_footer


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
