"""`metasync.store.collection`: which packs go, and what is packed anew, whatever the packs hold."""

from __future__ import annotations

import pytest
from content_kit import digest
from delta_kit import LATER, told
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.local import spill
from metasync.local.spill import IdSet
from metasync.objects.model import ObjectKind
from metasync.store import collection, deltas
from metasync.store import pack_format as packfile
from metasync.store.index import Index, PackRecord, make_segment
from metasync.store.pack_format import DELTA, HEADER_BYTES, Header, Located, Segment

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
    """Beyond three ids they lie in an array, as a large set does."""
    out = IdSet()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "FEW", 3)
        for n in numbers:
            out.add(digest(n))
    return out


@given(packs, st.sets(st.integers(1, 25)), st.booleans(), st.booleans())
@settings(max_examples=examples(100))
def test_what_is_needed_stays_or_is_packed_anew(lists, numbers, repack, purge):
    index, needed = opened(lists), marked(numbers)
    plan = collection.plan(index, needed, repack=repack, purge=purge)
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
    whole = collection.plan(opened(lists), marked(numbers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "SORTED_AT_ONCE", 2)
        parts = collection.plan(opened(lists), marked(numbers))
    assert ({*whole.gone}, [*whole.sparse], whole.unused) == ({*parts.gone}, [*parts.sparse], parts.unused)


def test_of_packs_of_which_as_much_is_needed_the_newest_stays():
    index = opened([[1, 2], [3], [1, 2]])
    plan = collection.plan(index, marked({1, 2, 3}))
    assert {*plan.gone} == {(0, digest(-1))}


# ---- deltas

stored = st.lists(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=5), max_size=7)


def opened_with_deltas(lists: list[list[tuple[int, int]]]) -> Index:
    """An index of a segment a pack. An object with a number is stored as a delta of that blob, if it is there by then
    and not too deep; the others are whole."""
    segments = []
    for n, objects in enumerate(lists):
        before = Index(segments)
        rows, located = {}, []
        for at, (o, base) in enumerate(dict(objects).items()):
            depth = deltas.depth_of(before, digest(base))
            is_delta = base != o and depth is not None and depth < packfile.DEPTH_MAX
            if is_delta:
                rows[0, at * 10] = packfile.Delta(digest(base), depth + 1)
            located.append(Located(ObjectKind.BLOB, digest(o), 0, at * 10, 10, int(is_delta)))
        segment = Segment(10 * len(located), 10 * len(located), digest(n))
        size, tags = HEADER_BYTES + 10 * len(located) + 9, packfile.delta_tags(rows)
        segments.append(make_segment([(PackRecord(digest(-n - 1), 0, size, HEADER, (segment,), tags), located)]))
    return Index(segments)


def collected(index: Index, needed: deltas.Ids, plan: collection.Plan) -> Index:
    """The index that a collection makes: what stays of it, and what is packed anew."""
    packed, rows = [], {}
    for i in dict.fromkeys(i for ids in collection.to_pack(index, plan, needed) for i in ids):
        link = deltas.moved_as(index, i, needed)
        if link is not None:
            rows[0, len(packed) * 10] = link.delta
        packed.append(Located(ObjectKind.BLOB, i, 0, len(packed) * 10, 10, int(link is not None)))
    ids = {o.id for o in packed}
    assert not collection.uncovered(index, lambda p: p not in plan.gone, ids.__contains__, needed)
    left = (collection.rewritten(s, lambda p: p not in plan.gone, needed) for s in index.segments)
    segments = [s for s in left if s is not None]
    if packed:
        segment = Segment(10 * len(packed), 10 * len(packed), digest(99))
        record = PackRecord(digest(-99), 1, 99 + 10 * len(packed), HEADER, (segment,), packfile.delta_tags(rows))
        own = make_segment([(record, packed)])
        assert deltas.are_kept(index, [own], needed)
        segments.append(own)
    return Index(segments)


@given(stored, st.sets(st.integers(1, 12)), st.booleans(), st.booleans())
@settings(max_examples=examples(300))
def test_what_is_kept_as_a_delta_can_be_read(lists, numbers, repack, purge):
    index, by_versions = opened_with_deltas(lists), marked(numbers)
    purge = purge and repack
    needed = by_versions if purge else deltas.with_bases(index, by_versions, IdSet())
    plan = collection.plan(index, needed, repack=repack, purge=purge)
    after = collected(index, needed, plan)
    there = {digest(n) for n in numbers if digest(n) in index}
    assert plan.missing == len(numbers) - len(there)
    for i in there:
        chain = deltas.Chains(after.find).of(i)
        assert chain is not None and len(chain) <= packfile.DEPTH_MAX + 1
        assert deltas.depth_of(after, i) <= deltas.depth_of(index, i)
        assert not purge or all(link.located.id in by_versions for link in chain)
    if purge:
        assert {i for s in after.segments for i in s.ids(ObjectKind.BLOB)} <= there


@given(stored, st.integers(0, 6))
@settings(max_examples=examples(100))
def test_deltas_of_what_is_lost_are_found(lists, lost):
    index = opened_with_deltas(lists)
    gone = [r for r in index.packs().values() if r.name == digest(-lost - 1)]
    left = Index((*index.segments, make_segment((), (r.id for r in gone))))
    given, dangling = deltas.Given(left), deltas.dangling(left)
    for record in left.packs().values():
        inside = [o.id for o in left.inside(record)]
        assert (record.id in dangling) == any(i not in given for i in inside)
        assert all(i in deltas.Given(left, lambda _: True) for i in inside)
    assert gone or not dangling


# ---- each rule of a plan by itself


def run_of(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def sparse_of(plan: collection.Plan) -> list[bytes]:
    return [use.record.name for use in plan.sparse]


def name(pack: int) -> bytes:
    return digest(-pack - 1)


def test_what_is_dead_does_not_count_as_unused_in_what_stays():
    plan = collection.plan(opened([run_of(1, 40), run_of(100, 40)]), marked({*run_of(1, 39)}))
    assert ({pack[1] for pack in plan.gone}, sparse_of(plan)) == ({name(1)}, [])


def test_a_pack_of_which_most_is_dead_is_packed_anew_however_little_that_is():
    plan = collection.plan(opened([run_of(1, 200), run_of(300, 3)]), marked({*run_of(1, 200), 300}))
    assert sparse_of(plan) == [name(1)]
    assert [*plan.sparse[:1]] == [plan.sparse[0]]


def test_a_purge_packs_anew_what_has_anything_unneeded_and_nothing_else():
    index, needed = opened([run_of(1, 40), run_of(50, 40)]), marked({*run_of(1, 39), *run_of(50, 40)})
    assert sparse_of(collection.plan(index, needed, purge=True)) == [name(0)]
    assert sparse_of(collection.plan(index, needed)) == []


def whole(*numbers: int) -> list[tuple[int, int]]:
    return [(n, n) for n in numbers]


def test_a_purge_packs_a_delta_of_what_goes_anew_once():
    index = opened_with_deltas([whole(1), [(2, 1), *whole(3)]])
    plan = collection.plan(index, marked({2}), purge=True)
    assert ({pack[1] for pack in plan.gone}, sparse_of(plan), plan.missing) == ({name(0), name(1)}, [name(1)], 0)
    assert [*collection.to_pack(index, plan, marked({2}))] == [[digest(2)]]


def test_a_purge_packs_no_delta_anew_of_what_is_there_whole():
    index = opened_with_deltas([whole(1), whole(2), [(2, 1)]])
    plan = collection.plan(index, marked({2}), purge=True)
    assert ({pack[1] for pack in plan.gone}, sparse_of(plan)) == ({name(0), name(2)}, [])


def test_what_a_pack_that_stays_has_is_not_packed_anew():
    index, needed = opened([run_of(1, 200), [1, *run_of(300, 4)]]), marked({*run_of(1, 200), 300})
    plan = collection.plan(index, needed)
    assert sparse_of(plan) == [name(1)]
    assert [*collection.to_pack(index, plan, needed)] == [[digest(300)]]


def test_what_a_pack_that_stays_has_as_a_delta_of_what_goes_alone_is_packed_anew():
    """The whole copy is the one that counts: nothing marked the base of the delta."""
    index = opened_with_deltas([whole(1), whole(2, 90, 91), [(2, 1), *whole(*run_of(100, 80))]])
    needed = deltas.with_bases(index, marked({2, *run_of(100, 80)}), IdSet())
    plan = collection.plan(index, needed)
    assert sparse_of(plan) == [name(1)]
    assert [*collection.to_pack(index, plan, needed)] == [[digest(2)]]
    assert deltas.Chains(collected(index, needed, plan).find).of(digest(2)) is not None


def nothing(_: bytes) -> bool:
    return False


def test_what_would_be_lost_is_counted():
    """Needed objects of packs that go, and deltas that stay, of what goes."""
    index = opened([[1, 2], [3]])
    assert collection.uncovered(index, lambda pack: pack[1] != name(0), nothing, marked({1, 3})) == 1
    assert collection.uncovered(index, lambda pack: pack[1] != name(0), {digest(1)}.__contains__, marked({1, 3})) == 0
    index = opened_with_deltas([whole(1), [(2, 1)]])
    assert collection.uncovered(index, lambda _: True, nothing, marked({2})) == 1
    assert collection.uncovered(index, lambda _: True, nothing, marked({1, 2})) == 0


def test_a_segment_stays_as_it_is_only_if_all_of_it_does():
    (segment,) = opened([[1, 2], [3]]).segments
    assert collection.is_whole(segment, lambda _: True, marked({1, 2, 3}))
    assert not collection.is_whole(segment, lambda _: True, marked({1, 2}))
    assert not collection.is_whole(segment, lambda pack: pack[1] != name(1), marked({1, 2, 3}))
    assert not collection.is_whole(make_segment((), [(0, name(0))]), lambda _: True, marked({1, 2, 3}))


# ---- each rule of deltas by itself


def in_both(needed: deltas.Ids, last: int = 9) -> list[int]:
    return [n for n in range(1, last) if digest(n) in needed]


def test_what_needed_deltas_are_made_of_is_needed():
    """By the places that are read: those of the least depth; down to the whole blob."""
    index = opened_with_deltas([whole(1), [(2, 1)], [(3, 2)], whole(4), [(5, 3)], [(5, 4)], [(6, 1)]])
    for numbers, needed in (({3}, [1, 2, 3]), ({5}, [4, 5]), ({3, 5}, [1, 2, 3, 4, 5]), ({4}, [4])):
        found = deltas.with_bases(index, marked(numbers), IdSet())
        assert (in_both(found), len(found)) == (needed, len(needed))
    assert deltas.with_bases(index, only := marked({1, 4}), IdSet()) is only


def test_a_delta_counts_on_a_base_that_is_there_and_of_less_depth():
    index = opened_with_deltas([whole(1), [(2, 1)]])
    of = packfile.Delta
    assert deltas.have_bases(index, [of(digest(1), 1), of(digest(2), 2)])
    for row in (of(digest(2), 1), of(digest(3), 1)):
        assert not deltas.have_bases(index, [of(digest(1), 1), row])
    own = [index.segments[1]]
    assert deltas.are_kept(index, own, marked({1, 2}))
    assert not deltas.are_kept(index, own, marked({2})), "what it is made of goes"
    assert not deltas.are_kept(opened_with_deltas([whole(3)]), own, marked({1, 2})), "... is not there"
    again = opened_with_deltas([whole(7), [(1, 7)]])
    assert not deltas.are_kept(again, own, marked({1, 2})), "... is of no less depth"
    assert deltas.are_kept(again, opened([[1]]).segments, marked(set())), "no delta is made of anything"


def test_a_blob_moves_as_a_delta_only_where_all_its_places_are_deltas_and_one_counts():
    index = opened_with_deltas([whole(1), [(2, 1)]])
    link = deltas.moved_as(index, digest(2), marked({1, 2}))
    assert link is not None
    assert link.delta == packfile.Delta(digest(1), 1)
    assert deltas.moved_as(index, digest(2), marked({2})) is None
    assert deltas.moved_as(opened_with_deltas([whole(1), [(2, 1)], whole(2)]), digest(2), marked({1, 2})) is None


def test_what_only_a_later_version_can_read_is_relied_on_as_it_is():
    (record,) = opened([[1]]).packs().values()
    located = Located(ObjectKind.BLOB, digest(1), 0, 0, 10, 2)
    index = Index([make_segment([(record, [located])])])
    assert deltas.depth_of(index, digest(1)) is None
    assert deltas.is_relied_on(index, record, located, marked(set()))
    assert deltas.moved_as(index, digest(1), marked({1})) is None
    assert deltas.with_bases(index, only := marked({1}), IdSet()) is only
    assert deltas.are_kept(index, index.segments, marked(set()))


def each(*rows: tuple[int, int, int, int]) -> Index:
    """`told`, where each object has a pack with a delta of 99 beside it."""
    return told(*([row, (1000 + n, DELTA, 99, 1)] for n, row in enumerate(rows)), [(99, 0, 0, 0)])


@pytest.mark.parametrize(
    ("rows", "numbers", "needed"),
    [
        ([(1, 0, 0, 0), (2, 1, 1, 1), (3, 1, 2, 2)], {2, 3}, [1, 2, 3]),
        ([(1, 0, 0, 0), (2, 1, 1, 1), (4, 0, 0, 0), (5, 1, 4, 1), (2, 1, 5, 2), (3, 1, 2, 2)], {3}, [1, 2, 3]),
        ([(1, 1, 2, 1), (2, 1, 1, 1), (3, 1, 1, 2)], {3}, [1, 2, 3]),
        ([(1, 1, 0, 0), (2, 1, 1, 1)], {2}, [1, 2]),
        ([(1, LATER, 0, 0), (2, 1, 1, 1)], {2}, [1, 2]),
    ],
    ids=["of-what-is-marked", "by-the-least-depth", "in-a-circle", "a-base-without-a-row", "a-base-of-a-later-version"],
)
def test_of_any_index_the_bases_are_found_once_each(rows, numbers, needed):
    found = deltas.with_bases(each(*rows), marked(numbers), IdSet())
    assert (in_both(found), len(found)) == (needed, len(needed))
    some = found.part()
    assert digest(needed[0]) not in some
    for n in needed:
        some.add(digest(n))
    assert (in_both(some), len(some)) == (needed, len(needed))


def test_a_place_of_more_depth_is_not_relied_on_though_its_base_is_needed():
    index = each((1, 0, 0, 0), (2, 1, 1, 1), (3, 1, 1, 1), (2, 1, 3, 2))
    shallow, deep = sorted(index.find(digest(2)), key=deltas.depth_at)
    needed = marked({1, 2, 3})
    assert [deltas.is_relied_on(index, *place, needed) for place in (shallow, deep)] == [True, False]
    link = deltas.moved_as(index, digest(2), needed)
    assert link is not None
    assert link.delta == packfile.Delta(digest(1), 1)


def test_what_cannot_be_opened_is_dangling_unless_it_is_at_hand_or_of_a_later_version():
    lost, later = each((2, 1, 1, 1)), each((3, LATER, 0, 0))
    assert [r.name for r in deltas.dangling(lost).values()] == [name(0)]
    assert not deltas.dangling(lost, {digest(2)}.__contains__)
    assert not deltas.dangling(later)


def test_no_more_chains_are_kept_at_hand_than_there_is_room_for(monkeypatch):
    index, asked = opened([run_of(1, 6)]), []
    chains = deltas.Chains(lambda i: (asked.append(i), index.find(i))[1])
    monkeypatch.setattr(deltas, "KNOWN_MAX", 3)
    for n in (1, 2, 3, 1, 4, 1):
        assert chains.of(digest(n)) is not None
    assert asked == [digest(n) for n in (1, 2, 3, 4, 1)]
