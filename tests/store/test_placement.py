"""`store.placement`: what the rest of MetaSync asks of a placement."""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import UsageError
from metasync.store import placement
from metasync.store import placement as mapping
from metasync.store.placement import PARTITIONS, WEIGHT_MAX, Placement, Target

THREE = [Target(b"a" * 16, 3 * 10**9), Target(b"b" * 16, 10**9), Target(b"c" * 16, 10**9)]

target_lists = st.dictionaries(
    st.binary(min_size=16, max_size=16), st.integers(1, WEIGHT_MAX), min_size=1, max_size=12
).map(lambda found: [Target(backend_id, weight) for backend_id, weight in found.items()])


def pack_name(i: int) -> bytes:
    return hashlib.sha256(i.to_bytes(8, "big")).digest()


@given(target_lists, st.integers(1, 20), st.binary(min_size=32, max_size=32))
def test_copies_go_to_distinct_backends(targets: list[Target], copies: int, name: bytes) -> None:
    where = Placement(targets, copies=copies)
    primary = where.primary(name)
    assert len(primary) == len(set(primary)) == min(copies, len(targets)) == where.copies
    assert primary == where.order(name)[: len(primary)]
    assert set(where.order(name)) == {t.backend_id for t in targets}


@given(target_lists, st.binary(min_size=32, max_size=32), st.data())
def test_devices_agree_whatever_order_they_read_the_config_in(
    targets: list[Target], name: bytes, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(targets))
    assert Placement(shuffled, copies=2).order(name) == Placement(targets, copies=2).order(name)


def test_order_is_that_of_the_pack_s_partition() -> None:
    where = Placement(THREE, copies=2)
    name = bytes(30) + b"\xbe\xef"
    assert PARTITIONS == 65_536
    assert where.order(name) == mapping.order(THREE, 0xBEEF)
    assert Placement(THREE, copies=2, partitions=1_000).order(name) == mapping.order(THREE, 0xBEEF % 1_000)


def test_packs_follow_expected_shares() -> None:
    where = Placement(THREE, copies=2)
    expected = where.expected_shares()
    packs = 10_000
    kept = Counter(backend_id for i in range(packs) for backend_id in where.primary(pack_name(i)))
    assert sum(kept.values()) == 2 * packs
    for target in THREE:
        share = expected[target.backend_id]
        assert abs(kept[target.backend_id] - packs * share) <= 3.9 * sqrt(packs * share * (1 - share))


def test_expected_shares_of_three_by_hand() -> None:
    """3 : 1 : 1, two copies: a small one is first 1/5, or second after the big 3/5 * 1/2, or the small 1/5 * 1/4."""
    got = Placement(THREE, copies=2).expected_shares()
    small = Fraction(1, 5) + Fraction(3, 5) * Fraction(1, 2) + Fraction(1, 5) * Fraction(1, 4)
    for backend_id, share in ((b"a" * 16, 2 - 2 * small), (b"b" * 16, small), (b"c" * 16, small)):
        assert abs(got[backend_id] - share) < Fraction(1, 2**100)


def test_more_copies_than_backends_are_capped() -> None:
    where = Placement(THREE, copies=9)
    assert where.copies == 3
    assert set(where.primary(pack_name(0))) == {t.backend_id for t in THREE}
    assert set(where.expected_shares().values()) == {Fraction(1)}


def test_an_order_is_computed_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    real = mapping.order

    def counting(targets: tuple[Target, ...], partition: int) -> tuple[bytes, ...]:
        computed.append(partition)
        return real(targets, partition)

    monkeypatch.setattr(mapping, "order", counting)
    monkeypatch.setattr(placement, "ORDERS_KEPT_MAX", 2)
    where = Placement(THREE, copies=2)
    computed.clear()
    names = [i.to_bytes(32, "big") for i in (1, 2, 3)]
    for i in (0, 0, 1, 1, 0):
        where.order(names[i])
    assert computed == [1, 2]
    where.order(names[2])
    where.order(names[1])
    assert computed == [1, 2, 3, 2]


def test_another_config_has_its_own_orders() -> None:
    grown = [Target(THREE[0].backend_id, WEIGHT_MAX), *THREE[1:]]
    before, after = Placement(THREE, copies=1), Placement(grown, copies=1)
    names = [pack_name(i) for i in range(200)]
    moved = [name for name in names if before.primary(name) != after.primary(name)]
    assert moved
    assert {after.primary(name) for name in moved} == {(THREE[0].backend_id,)}


@pytest.mark.parametrize(
    ("targets", "copies", "partitions", "message"),
    [
        ([], 1, 8, "no backend"),
        (THREE, 0, 8, "at least one copy"),
        (THREE, -1, 8, "at least one copy"),
        (THREE, 1, 0, "at least one partition"),
        ([THREE[0], THREE[0]], 1, 8, "twice"),
    ],
)
def test_a_senseless_config_is_refused(targets: list[Target], copies: int, partitions: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Placement(targets, copies=copies, partitions=partitions)
