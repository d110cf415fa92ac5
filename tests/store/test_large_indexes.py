"""Indexes of very many packs: how much memory they take, and the same answers as small ones."""

from __future__ import annotations

import tracemalloc

import pytest
from content_kit import digest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from index_kit import pack, packed, packs_lists, plain, stone

from metasync.codec import u32
from metasync.errors import FormatError
from metasync.local import spill
from metasync.local.spill import Spool, Spooled
from metasync.objects.model import ObjectKind
from metasync.session.write_index import merge
from metasync.store import index, listed_packs
from metasync.store import pack_format as packfile
from metasync.store.index import Index, decode_segment, encode_segment, make_segment
from metasync.store.pack_format import HEADER_BYTES, Located


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
