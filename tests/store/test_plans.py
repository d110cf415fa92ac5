"""`metasync.store.collection`: which packs go, and what is packed anew, whatever the packs hold."""

from __future__ import annotations

import pytest
from content_kit import digest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.local.spill import IdSet
from metasync.objects.model import ObjectKind
from metasync.store import collection
from metasync.store import pack_format as packfile
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import HEADER_BYTES, Header, Located, Segment

HEADER = packfile.encode_header(Header(0, 1, digest(0)))
packs = st.lists(st.lists(st.integers(1, 25), max_size=8, unique=True), max_size=8)  # objects of each, many in several


def opened(lists: list[list[int]]) -> Index:
    """An index of one segment for each two packs."""
    made = []
    for n, objects in enumerate(lists):
        segment = Segment(10 * len(objects), 10 * len(objects), digest(n))
        record = PackRecord(digest(-n - 1), n % 3, HEADER_BYTES + 10 * len(objects) + 9, HEADER, (segment,))
        made.append((record, [Located(ObjectKind.BLOB, digest(o), 0, i * 10, 10) for i, o in enumerate(objects)]))
    return Index([make_segment(made[n : n + 2]) for n in range(0, len(made), 2)])


def marked(numbers: set[int]) -> IdSet:
    out = IdSet()
    for n in numbers:
        out.add(digest(n))
    return out


@given(packs, st.sets(st.integers(1, 25)), st.booleans(), st.booleans())
@settings(max_examples=examples(100))
def test_what_is_needed_stays_or_is_packed_anew(lists, numbers, repack, purge):
    index, needed = opened(lists), marked(numbers)
    plan = collection.plan(index, needed, IdSet(), repack=repack, purge=purge)
    anew = [i for ids in collection.to_pack(index, plan, needed) for i in ids]
    there = {digest(o) for objects in lists for o in objects}
    for n in numbers:
        stays = any(record.id not in plan.gone for record, _ in index.find(digest(n)))
        assert stays or digest(n) in anew or digest(n) not in there
    assert plan.missing == sum(digest(n) not in there for n in numbers)
    gone = {record.id for record in index.packs().values() if record.id in plan.gone}
    assert {*plan.gone} == gone
    assert len(plan.gone) == len(gone)
    spared = {use.record.id for use in plan.sparse}
    assert spared <= gone
    assert repack or not spared
    for pack in gone:
        use = plan.use_of(pack)
        assert (use is not None) == (pack in spared)
        assert use is None or 0 < use.needed <= use.total
    if purge and repack:
        assert all(o.id in needed for r in index.packs().values() if r.id not in gone for o in index.inside(r))


@given(packs, st.sets(st.integers(1, 25)))
@settings(max_examples=examples(40))
def test_a_plan_does_not_depend_on_how_many_packs_are_sorted_at_once(lists, numbers):
    whole = collection.plan(opened(lists), marked(numbers), IdSet())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "SORTED_AT_ONCE", 2)
        parts = collection.plan(opened(lists), marked(numbers), IdSet())
    assert ({*whole.gone}, [*whole.sparse], whole.unused) == ({*parts.gone}, [*parts.sparse], parts.unused)


def test_of_packs_of_which_as_much_is_needed_the_newest_stays():
    index = opened([[1, 2], [3], [1, 2]])
    plan = collection.plan(index, marked({1, 2, 3}), IdSet())
    assert {*plan.gone} == {(0, digest(-1))}
