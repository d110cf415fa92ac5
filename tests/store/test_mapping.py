"""`store.placement` against theory, against figure 6 of the paper, and against itself on other machines.

Hashes stand in for chance, so each statistical bound either holds for ever or fails for ever. The bounds are those that
a right mapping would miss once in ten thousand times.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import cache
from math import sqrt

import figure6
import pytest
from effort import examples
from figure6 import CHANGES, FIVE_GB, FOUR_GB, Table, backend_id, targets_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metasync.errors import UsageError
from metasync.store import placement
from metasync.store import placement as mapping
from metasync.store.placement import WEIGHT_MAX, Target

H = 65_536
H_MOVES = 32_768  # a moved fraction has a standard deviation of 0.3 percentage points at most
H_ORACLE = 4_096  # figure 6 asks for more partitions than virtual nodes
Z_MAX = 3.9  # two-sided, 1 in 10,000
SERVICES: dict[str, Mapping[str, int]] = {"four": FOUR_GB, "five": FOUR_GB | {"Baidu": 128}}  # 2,048 takes 10 s

ids = st.binary(min_size=16, max_size=16)
weights = st.one_of(st.integers(1, WEIGHT_MAX), st.integers(1, 5), st.integers(0, 63).map(lambda n: 1 << n))
target_lists = st.dictionaries(ids, weights, min_size=1, max_size=12).map(
    lambda found: [Target(backend_id, weight) for backend_id, weight in found.items()]
)
partitions = st.integers(0, 2**64 - 1)


@cache
def _cached(make: Callable[[Mapping[str, int], int], Table], services: frozenset[tuple[str, int]], h: int) -> Table:
    return make(dict(sorted(services)), h)


def ours(services: Mapping[str, int], h: int = H) -> Table:
    computed = H if services in (FIVE_GB, FOUR_GB) else h  # the whole tables of these two are needed anyway
    return _cached(figure6.ours, frozenset(services.items()), computed)[:h]


def oracle(services: Mapping[str, int], h: int = H_ORACLE) -> Table:
    return _cached(figure6.init, frozenset(services.items()), h)


def chi_square_max(freedom: int) -> float:
    """The value that chi-square exceeds once in 10,000 times (Wilson and Hilferty, 1931; within 1 %)."""
    ninth = 2 / (9 * freedom)
    return freedom * (1 - ninth + 3.719 * sqrt(ninth)) ** 3


def chi_square(observed: Mapping[frozenset[str], int], expected: Mapping[frozenset[str], float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; classes that expect fewer than five are pooled."""
    rows: list[tuple[float, float]] = []
    pooled = [0.0, 0.0]
    for drawn, n in expected.items():
        if n >= 5:
            rows.append((observed.get(drawn, 0), n))
        else:
            pooled = [pooled[0] + observed.get(drawn, 0), pooled[1] + n]
    if pooled[1] > 0.5:
        rows.append((pooled[0], pooled[1]))
    else:
        assert pooled[0] <= 6  # the upper 1 in 10,000 of a Poisson variable with mean 0.5
    assert sum(observed.values()) == pytest.approx(sum(expected.values()))
    return sum((seen - n) ** 2 / n for seen, n in rows), len(rows) - 1


def count_sets(table: Table, copies: int) -> Counter[frozenset[str]]:
    return Counter(frozenset(figure6.get_mapping(table, i, copies)) for i in range(len(table)))


def set_probabilities(services: Mapping[str, int], copies: int) -> dict[frozenset[str], Fraction]:
    """Of each set of `copies` services that it is what sampling without replacement draws: a sum over its orders."""
    result: dict[frozenset[str], Fraction] = {}
    for drawn in itertools.permutations(services, copies):
        left, chance = sum(services.values()), Fraction(1)
        for name in drawn:
            chance *= Fraction(services[name], left)
            left -= services[name]
        result[frozenset(drawn)] = result.get(frozenset(drawn), Fraction(0)) + chance
    return result


# ---- shares


@pytest.mark.long
def test_one_copy_follows_capacity() -> None:
    total = sum(FIVE_GB.values())
    statistic, freedom = chi_square(
        count_sets(ours(FIVE_GB), 1), {frozenset([name]): H * gb / total for name, gb in FIVE_GB.items()}
    )
    assert freedom == 4
    assert statistic < chi_square_max(freedom)


def test_chi_square_sees_a_wrong_share() -> None:
    """The test above is not blind: 15 GB taken for 20, or 2 for 4, is found."""
    for wrong in (FIVE_GB | {"Google": 20}, FIVE_GB | {"Dropbox": 4}):
        total = sum(wrong.values())
        expected = {frozenset([name]): H * gb / total for name, gb in wrong.items()}
        statistic, freedom = chi_square(count_sets(ours(FIVE_GB), 1), expected)
        assert statistic > chi_square_max(freedom)


@pytest.mark.few
@pytest.mark.parametrize("services", [FIVE_GB, FOUR_GB], ids=["five", "four"])
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_more_copies_are_samples_without_replacement(services: Mapping[str, int], copies: int) -> None:
    expected = {drawn: H * float(p) for drawn, p in set_probabilities(services, copies).items()}
    statistic, freedom = chi_square(count_sets(ours(services), copies), expected)
    assert statistic < chi_square_max(max(freedom, 1))
    kept = figure6.count_kept(ours(services), copies)
    for name, share in figure6.inclusion(services, copies).items():
        deviation = sqrt(H * share * (1 - share))
        assert abs(kept[name] - H * share) <= Z_MAX * deviation, name


@pytest.mark.few
@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("services", SERVICES.values(), ids=SERVICES)
def test_shares_are_those_of_figure_6(services: Mapping[str, int], copies: int) -> None:
    """Homogeneity of two samples: which sets of services keep a partition, ours and the paper's."""
    we, they = count_sets(ours(services), copies), count_sets(oracle(services), copies)
    both = we + they
    fraction = H / (H + H_ORACLE)
    statistic = 0.0
    classes = 0
    pooled = [0, 0]
    for drawn, n in both.items():
        if n * (1 - fraction) >= 5:
            classes += 1
            statistic += (we[drawn] - n * fraction) ** 2 / (n * fraction * (1 - fraction))
        else:
            pooled = [pooled[0] + we[drawn], pooled[1] + n]
    if pooled[1]:
        classes += 1
        statistic += (pooled[0] - pooled[1] * fraction) ** 2 / (pooled[1] * fraction * (1 - fraction))
    assert classes >= len(services) - 1
    assert statistic < chi_square_max(classes - 1)


def test_oracle_is_figure_6() -> None:
    """All virtual nodes of a partition by md5(i, sId, vId), then each service once."""
    services = {"A": 1, "B": 2, "C": 2, "D": 1}  # as in the paper's figure 7
    keys = [
        (hashlib.md5(f"7,{name},{v}".encode(), usedforsecurity=False).hexdigest(), name)
        for name, capacity in services.items()
        for v in range(capacity)
    ]
    names = [name for _, name in sorted(keys)]
    table = figure6.init(services, 20)
    assert table[7] == tuple(sorted(services, key=names.index))
    assert figure6.get_mapping(table, 27, 2) == table[7][:2]


# ---- moves


@pytest.mark.few
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_moves_only_what_it_must(change: str, copies: int) -> None:
    """At most the expected share and one percentage point.

    Expected share, for one backend that changes: with p its probability of being among a partition's first R before,
    and q after, |q - p| copies per partition (p = 0 for a new one, q = 0 for one that goes). For R = 1 that is the
    share of capacity which it loses or gains; for R = 2 the same by sampling without replacement.
    """
    before, after = CHANGES[change]
    (changed,) = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    p = figure6.inclusion(before, copies).get(changed, Fraction(0))
    q = figure6.inclusion(after, copies).get(changed, Fraction(0))
    moved = figure6.count_moved(ours(before, H_MOVES), ours(after, H_MOVES), copies)
    assert moved <= H_MOVES * (abs(q - p) + Fraction(1, 100))
    assert abs(q - p) == figure6.expected_moved(before, after, copies)  # which no mapping with these shares undercuts

    kept_before = figure6.count_kept(ours(before, H_MOVES), copies)[changed]
    kept_after = figure6.count_kept(ours(after, H_MOVES), copies)[changed]
    assert moved == abs(kept_after - kept_before)  # to the copy: what the changed backend gains or loses, nothing else


@pytest.mark.few(2)
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("change", [change for change in CHANGES if "Baidu" not in change])
def test_moves_are_those_of_figure_6(change: str, copies: int) -> None:
    before, after = CHANGES[change]
    we = figure6.count_moved(ours(before, H_MOVES), ours(after, H_MOVES), copies)
    they = figure6.count_moved(oracle(before), oracle(after), copies)
    both = (we + they) / (H_MOVES + H_ORACLE)
    deviation = sqrt(both * (1 - both) * (1 / H_MOVES + 1 / H_ORACLE))
    assert 0 < both < 1
    assert abs(we / H_MOVES - they / H_ORACLE) <= Z_MAX * deviation


@given(target_lists, partitions, st.data())
def test_removing_a_backend_leaves_the_order_of_the_others(
    targets: list[Target], partition: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(targets))
    rest = [t for t in targets if t != gone]
    expected = tuple(b for b in mapping.order(targets, partition) if b != gone.backend_id)
    assert mapping.order(rest, partition) == expected


@given(target_lists, partitions, st.data())
def test_growing_a_backend_moves_it_forward_alone(targets: list[Target], partition: int, data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(targets))
    new = Target(old.backend_id, data.draw(st.integers(old.weight, WEIGHT_MAX)))
    before = mapping.order(targets, partition)
    after = mapping.order([new if t == old else t for t in targets], partition)
    assert after.index(old.backend_id) <= before.index(old.backend_id)
    assert [b for b in after if b != old.backend_id] == [b for b in before if b != old.backend_id]


# ---- every set of targets


@given(target_lists, partitions, st.data())
def test_an_order_has_every_backend_once_whatever_the_input_order(
    targets: list[Target], partition: int, data: st.DataObject
) -> None:
    order = mapping.order(targets, partition)
    assert sorted(order) == sorted(t.backend_id for t in targets)
    assert mapping.order(data.draw(st.permutations(targets)), partition) == order


def test_no_targets_no_order() -> None:
    assert mapping.order((), 0) == ()


def test_the_unit_of_capacity_does_not_matter() -> None:
    in_gb = [Target(t.backend_id, t.weight // 10**9) for t in targets_of(FIVE_GB)]
    in_64th_bytes = [Target(t.backend_id, t.weight * 64) for t in targets_of(FIVE_GB)]
    for partition in range(2_000):
        expected = mapping.order(targets_of(FIVE_GB), partition)
        assert mapping.order(in_gb, partition) == expected
        assert mapping.order(in_64th_bytes, partition) == expected


def test_equal_costs_go_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "cost", lambda target, partition: 1)
    names = [bytes([i]) * 16 for i in (3, 1, 2)]
    assert mapping.order([Target(name, 1) for name in names], 0) == tuple(sorted(names))


def test_partition_is_the_name_modulo_h() -> None:
    assert mapping.partition_of(bytes.fromhex("0102" * 15 + "beef"), 65_536) == 0xBEEF
    assert mapping.partition_of(b"\x01\x00", 1_000) == 256
    assert mapping.partition_of(b"\xff" * 32, 1) == 0


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_MAX + 1])
def test_a_weight_out_of_range_is_refused(weight: int) -> None:
    with pytest.raises(UsageError, match="capacity"):
        Target(bytes(16), weight)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_id_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="16 bytes"):
        Target(bytes(size), 1)


def test_an_id_that_occurs_twice_is_refused() -> None:
    twice = [Target(bytes(16), 1), Target(bytes(16), 2)]
    with pytest.raises(UsageError, match="twice"):
        mapping.order(twice, 0)
    with pytest.raises(UsageError, match="twice"):
        mapping.shares(twice, 2)


# ---- expected shares


@pytest.mark.parametrize("copies", [1, 2, 3, 4, 5, 6])
def test_shares_agree_with_the_recursion(copies: int) -> None:
    got = mapping.shares(targets_of(FIVE_GB), copies)
    for name, share in figure6.inclusion(FIVE_GB, copies).items():
        assert abs(got[backend_id(name)] - share) < Fraction(1, 2**100)


@given(target_lists, st.integers(1, 4))
def test_shares_add_up_to_the_copies(targets: list[Target], copies: int) -> None:
    got = mapping.shares(targets, copies)
    assert all(0 <= share <= 1 for share in got.values())
    assert abs(sum(got.values()) - min(copies, len(targets))) < Fraction(1, 2**100)


def test_shares_of_too_many_backends_are_refused() -> None:
    assert len(mapping.shares([Target(i.to_bytes(16, "big"), 1) for i in range(100)], 2)) == 100
    with pytest.raises(UsageError, match="too many"):
        mapping.shares([Target(i.to_bytes(16, "big"), 1) for i in range(400)], 4)


# ---- numbers


@given(st.integers(0, 2**64 - 1))
@example(0)
@example(1)
@example(2**63 - 1)
@example(2**63)
@example(2**64 - 1)
@settings(max_examples=examples(300))
def test_neg_ln_is_right_to_the_bits_it_claims(h: int) -> None:
    with localcontext() as context:
        context.prec = 60
        true = -(Decimal(2 * h + 1) / 2**65).ln() * 2**80
        assert abs(mapping.neg_ln(h) - true) < 2**7
    assert mapping.neg_ln(h) > 0


def test_ln_2_to_the_last_bit() -> None:
    with localcontext() as context:
        context.prec = 60
        assert int((Decimal(2).ln() * 2**80).to_integral_value(ROUND_FLOOR)) == mapping._LN2


@given(target_lists, partitions)
def test_orders_follow_the_formula_in_decimals(targets: list[Target], partition: int) -> None:
    """docs/design/placement.md, computed another way."""

    def cost(target: Target) -> Decimal:
        message = partition.to_bytes(8, "big") + target.backend_id
        h = int.from_bytes(hashlib.blake2b(message, digest_size=8, person=b"metasync place 1").digest(), "big")
        return -(Decimal(2 * h + 1) / 2**65).ln() / target.weight

    with localcontext() as context:
        context.prec = 60
        costs = {t.backend_id: cost(t) for t in targets}
    assert mapping.order(targets, partition) == tuple(sorted(costs, key=costs.__getitem__))


GOLDEN = {
    0: "Baidu OneDrive Google Dropbox Box",
    1: "Baidu OneDrive Box Google Dropbox",
    13: "Dropbox Baidu Google Box OneDrive",
    93: "OneDrive Baidu Box Google Dropbox",
    12_345: "Baidu OneDrive Google Box Dropbox",
    65_535: "Baidu Box OneDrive Dropbox Google",
}
GOLDEN_TABLE_SHA256 = "ef6631f1875636f2dd594fdee2b81c0ec4b74f43ba77addfad29f9c930655349"


@pytest.mark.parametrize("partition", GOLDEN)
def test_golden_orders(partition: int) -> None:
    """A machine, or a version, with another answer would look for packs where they are not."""
    assert " ".join(ours(FIVE_GB)[partition]) == GOLDEN[partition]


def test_golden_table() -> None:
    text = "\n".join(" ".join(order) for order in ours(FIVE_GB))
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN_TABLE_SHA256


def test_golden_cost() -> None:
    assert mapping.cost(Target(bytes(range(16)), 2 * 10**9), 12_345) == 3672006703476001973044544956639348
    assert mapping.neg_ln(2**63) == 837963523372001241254373


@pytest.mark.parametrize("module", [mapping, placement])
def test_no_float_and_nothing_from_outside(module: object) -> None:
    """No true division, no float, complex or negative power, no import beyond hashing and plain values."""
    allowed = {"__future__", "collections.abc", "dataclasses", "fractions", "functools", "hashlib", "metasync"}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        assert not isinstance(node, ast.Div | ast.Pow)
        if isinstance(node, ast.Constant):
            assert not isinstance(node.value, float | complex)
        if isinstance(node, ast.Name):
            assert node.id not in {"float", "complex", "round", "__import__", "divmod", "pow"}
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.module in allowed or node.module.startswith("metasync.")
