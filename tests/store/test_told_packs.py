"""What a backend told of its packs, beside what is wanted there: entries, digests, and what was found well."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metasync.backends.digests import KINDS
from metasync.errors import FormatError
from metasync.store.index import PackRecord
from metasync.store.inventory import (
    ENTRY_BYTES,
    Listing,
    Told,
    by_partition,
    entry,
    key_of,
    marks_of,
    place_on_circle,
    short_of,
    wanted,
)
from metasync.store.placement import Placement, Target, partition_of

IDS = st.tuples(st.integers(0, 3), st.binary(min_size=32, max_size=32))
CHANGES = st.lists(st.tuples(IDS, st.one_of(st.none(), st.integers(0, 1 << 45)), st.one_of(st.none(), st.binary())))
PARTITIONS = 8


def record(n: int, size: int = 70, md5: bytes | None = None) -> PackRecord:
    tags = () if md5 is None else ((KINDS["md5"].tag, md5),)
    return PackRecord(n.to_bytes(2, "big") * 16, 0, size, bytes(38), (), tags)


PACKS = [record(n, md5=bytes([n]) * 16) for n in range(40)]
PLACEMENT = Placement([Target(bytes([i]) * 16, 1) for i in range(3)], copies=2, partitions=PARTITIONS)
WANTED = wanted(PACKS, PLACEMENT)
MARKS = {key_of(p.id): marks_of(p, ["md5"]) for p in PACKS}
BACKEND = bytes([1]) * 16
MINE = [p for p in PACKS if BACKEND in PLACEMENT.primary(p.name)]


def told_of(packs: list[PackRecord]) -> Told:
    out = Told(PARTITIONS)
    for p in packs:
        out.put(p.id, entry(p.id, p.size))
    return out


@settings(max_examples=examples(100), deadline=None)
@given(CHANGES)
def test_changes_one_by_one_come_to_the_same_as_a_listing(changes: list) -> None:  # type: ignore[type-arg]
    told, model = Told(PARTITIONS), {}
    for pack_id, size, digest in changes:
        one = None if size is None else entry(pack_id, size, digest)
        told.put(pack_id, one)
        model.pop(pack_id, None)
        if one is not None:
            assert len(one) == ENTRY_BYTES
            model[pack_id] = one
        assert told.has(pack_id) == (one is not None)
    listing = Listing(PARTITIONS)
    for pack_id, one in model.items():
        listing.add(pack_id, entry(pack_id, 1))  # a listing may have it twice: what comes later counts
        listing.add(pack_id, one)
    listed = listing.told()
    assert (listed.parts, listed.digest(), len(listed)) == (told.parts, told.digest(), len(model))
    assert Told.decode(told.encode()).parts == told.parts


def test_what_is_as_wanted_is_not_looked_at() -> None:
    assert list(told_of(MINE).differing(WANTED[BACKEND])) == []


@pytest.mark.parametrize("how", ["missing", "size", "digest"])
def test_one_that_is_wrong_is_found_in_its_partition(how: str) -> None:
    told, bad = told_of(MINE), MINE[3]
    one = {"missing": None, "size": entry(bad.id, 71), "digest": entry(bad.id, bad.size, b"another one")}[how]
    told.put(bad.id, one)
    (p,) = told.differing(WANTED[BACKEND])
    assert p == partition_of(bad.name, PARTITIONS)
    assert told.wrong_in(p, WANTED[BACKEND][p], MARKS) == {key_of(bad.id): how == "digest"}


def test_a_right_digest_is_nothing_wrong_and_an_unknown_one_neither() -> None:
    told, one = told_of(MINE), MINE[-1]
    for digest in (one.name, one.digest("md5")):
        told.put(one.id, entry(one.id, one.size, digest))
        (p,) = told.differing(WANTED[BACKEND])
        assert told.wrong_in(p, WANTED[BACKEND][p], MARKS) == {}
    assert marks_of(record(1), ["md5"]) is None
    told.put(one.id, entry(one.id, one.size, b"?" * 16))
    assert told.wrong_in(p, WANTED[BACKEND][p], {**MARKS, key_of(one.id): None}) == {}


def test_what_was_found_well_is_looked_at_again_after_any_change() -> None:
    told, stray = told_of(MINE), record(200)
    told.put(stray.id, entry(stray.id, 1))
    (p,) = told.differing(WANTED[BACKEND])
    told.note_well(p, WANTED[BACKEND][p])
    assert list(told.differing(WANTED[BACKEND])) == []
    again = Told.decode(told.encode())
    assert list(again.differing(WANTED[BACKEND])) == []
    other = {**WANTED[BACKEND], p: WANTED[BACKEND][p][:-ENTRY_BYTES]}
    assert list(again.differing(other)) == [p], "another index"
    again.put(stray.id, entry(stray.id, 2))
    assert list(again.differing(WANTED[BACKEND])) == [p], "another listing"


def test_damaged_bytes_are_refused() -> None:
    good = told_of(MINE).encode()
    for bad in (good[:-1], good + b"\0", good[:4] + good[4:40] * 2, b"", (0).to_bytes(4, "big") + good[4:]):
        with pytest.raises(FormatError):
            Told.decode(bad)


def test_places_on_the_circle_are_all_round_it_and_others_on_each_backend() -> None:
    names = [bytes([n * 6]) * 32 for n in range(40)]
    one = [place_on_circle(name, b"a" * 16, 0) for name in names]
    assert all(0 <= p < 1 << 32 for p in one)
    assert max(one) - min(one) > 1 << 31
    assert [place_on_circle(name, b"a" * 16, 5) for name in names] == [(p - 5) % (1 << 32) for p in one]


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_while_packs_move_enough_copies_anywhere_are_enough(data: st.DataObject) -> None:
    """Each backend has any of the packs, or has them wrong, or is away and may have them all."""
    packs = [p for p in PACKS if partition_of(p.name, PARTITIONS) == 3]
    right = by_partition(packs, PARTITIONS)[3]
    said = st.sampled_from(["has", "not", "size", "digest"])
    holders = data.draw(st.lists(st.one_of(st.none(), st.tuples(*(said for _ in packs))), max_size=4))
    copies = data.draw(st.integers(1, 3))
    told: list[Told | None] = []
    for words in holders:
        one = Told(PARTITIONS) if words is not None else None
        for p, word in zip(packs, words or (), strict=False):
            assert one is not None
            wrong = {"size": entry(p.id, p.size + 1), "digest": entry(p.id, p.size, b"another")}
            one.put(p.id, None if word == "not" else wrong.get(word, entry(p.id, p.size)))
        told.append(one)
    found = short_of(3, right, told, copies, MARKS)
    for n, p in enumerate(packs):
        words = [h[n] if h is not None else "has" for h in holders]
        is_short = words.count("has") < copies
        assert (key_of(p.id) in found) == (is_short or "size" in words or "digest" in words)
        if "size" not in words and "digest" not in words and is_short:
            assert found[key_of(p.id)] is False, "there is nothing to read"


def test_a_digest_was_told_of_one_pack_and_not_of_its_neighbour() -> None:
    """Or its copies are never read: a store that tells a digest is believed."""
    told = Told(1)
    told.put(PACKS[0].id, entry(PACKS[0].id, 70, b"digest"))
    told.put(PACKS[1].id, entry(PACKS[1].id, 70))
    assert [told.has_digest(p.id) for p in PACKS[:3]] == [True, False, False]


def test_what_was_found_well_is_kept_where_a_partition_is_other_than_wanted_or_empty() -> None:
    """It takes no room where all is as wanted, and is not lost where nothing lies."""
    told, (p, right) = told_of(MINE), next(iter(WANTED[BACKEND].items()))
    before = told.encode()
    told.note_well(p, right)
    assert told.encode() == before
    empty = Told(PARTITIONS)
    empty.note_well(p, right)
    assert list(Told.decode(empty.encode()).differing({p: right})) == []


def test_a_pack_with_another_digest_is_read_though_it_has_too_few_copies_besides() -> None:
    """It may be the only copy that is left."""
    bad = MINE[3]
    p = partition_of(bad.name, PARTITIONS)
    told = Told(PARTITIONS)
    told.put(bad.id, entry(bad.id, bad.size, b"another"))
    right = entry(bad.id, bad.size)
    assert short_of(p, right, [told, Told(PARTITIONS)], 2, MARKS) == {key_of(bad.id): True}
