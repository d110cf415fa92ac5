"""`metasync.store.balance`: the fullest backend of a push is hardly fuller than the mean, and shares stay true."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.store import balance
from metasync.store.balance import TRIALS_MAX, Balance, pick
from metasync.store.placement import Placement, Target

MB = 1_000_000


def placement(weights: Sequence[int], copies: int) -> Placement:
    return Placement([Target(bytes([i + 1]) * 16, w << 30) for i, w in enumerate(weights)], copies=copies)


class Names:
    """Names as hashes are: without end, without a pattern. Counts how many were looked at."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drawn = 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.drawn += 1
            yield self.rng.randbytes(32)


def fullest(p: Placement, sizes: Sequence[int], names: Names) -> float:
    """The fullest backend's relative load after these packs, as a part of the mean."""
    chosen: list[bytes] = []
    b = Balance(p)
    loads = dict.fromkeys((t.backend_id for t in p.targets), 0)
    for size in sizes:
        seen: list[bytes] = []
        number = b.choose(size, (seen.append(n) or n for n in names))
        chosen.append(seen[number])
        for i in p.primary(chosen[-1]):
            loads[i] += size
    shares = {i: float(s) for i, s in p.expected_shares().items()}
    return max(loads[i] / shares[i] for i in loads) / sum(sizes)


@given(st.integers(0, 1 << 40), st.sampled_from([1, 2]))
def test_a_push_of_photos_fills_three_backends_evenly(seed, copies):
    """50 files of 3.9 MB are about 48 packs of 3.6 to 4.7 MB.

    A pack is 6 % of what a backend gets. The median is 1.01, the worst of 3,000 seeds 1.043; 1.052 was met once.
    """
    rng = random.Random(seed)
    sizes = [rng.randrange(3_600_000, 4_700_000) for _ in range(48)]
    assert fullest(placement([1, 1, 1], copies), sizes, Names(seed)) <= 1.07


def test_without_a_choice_it_would_not():
    """The bound is no matter of course: the first name of each pack leaves the fullest far above the mean."""
    p = placement([1, 1, 1], 1)
    rng = Names(4)
    loads = dict.fromkeys((t.backend_id for t in p.targets), 0)
    for name in itertools.islice(rng, 48):
        loads[p.primary(name)[0]] += 1
    assert max(loads.values()) / 16 > 1.15


@pytest.mark.parametrize(("copies", "most"), [(1, 1.1), (2, 1.05)])
def test_five_backends_are_filled_evenly_too(copies, most):
    for seed in range(20):  # of 50 equal packs 10 go to each, or 20 copies; one more is in the bound
        assert fullest(placement([1] * 5, copies), [4 * MB] * 50, Names(seed)) <= most


@pytest.mark.parametrize(("backends", "copies", "most"), [(3, 1, 4), (3, 2, 4), (5, 1, 6), (5, 2, 9)])
def test_a_pack_costs_a_few_trials(backends, copies, most):
    names = Names(1)
    fullest(placement([1] * backends, copies), [4 * MB] * 500, names)
    assert 500 < names.drawn <= most * 500


@st.composite
def scenes(draw):
    """Loads, shares, a size and every choice there is of some many backends, in any order."""
    n = draw(st.integers(1, 5))
    copies = draw(st.integers(1, n))
    loads = draw(st.lists(st.integers(0, 100), min_size=n, max_size=n))
    shares = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    choices = draw(st.permutations(list(itertools.combinations(range(n), copies))))
    return loads, shares, draw(st.integers(1, 50)), choices


def unevenness(loads: Sequence[float], shares: Sequence[float], size: float, choice: Sequence[int]) -> Fraction:
    return sum((Fraction((load + size * (i in choice)) ** 2, shares[i]) for i, load in enumerate(loads)), Fraction())


@given(scenes())
def test_what_is_picked_is_the_first_of_the_best(scene):
    loads, shares, size, choices = scene
    assert len(choices) <= TRIALS_MAX
    drawn: list[Sequence[int]] = []
    number = pick(loads, shares, size, (drawn.append(c) or c for c in choices))
    after = [unevenness(loads, shares, size, c) for c in choices]
    assert number == after.index(min(after))
    assert len(drawn) == number + 1, "no more is drawn than is needed"


def test_two_copies_on_three_backends_leave_none_behind():
    """Each step as good as any for the fullest alone; one backend got 2 of 22 copies that way."""
    for seed in range(300):
        assert fullest(placement([1, 1, 1], 2), [4_300_000] * 10 + [2 * MB], Names(seed)) < 1.1


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(2, 5), st.randoms(use_true_random=False))
def test_the_fullest_of_equal_backends_has_less_than_a_pack_above_the_mean(sizes, n, rng):
    """Graham's bound: whoever is fullest in the end was the emptiest before its last pack."""
    loads = [0.0] * n
    for size in sizes:
        choices = rng.sample([(i,) for i in range(n)], n)
        loads[choices[pick(loads, [1.0] * n, size, choices)][0]] += size
    assert max(loads) <= sum(sizes) / n + max(sizes) * (1 - 1 / n) + 1e-9


def test_an_endless_supply_ends_after_a_bounded_number_of_trials():
    drawn = itertools.count()
    assert pick([9.0, 0.0], [1.0, 1.0], 1.0, ((0,) for _ in drawn)) == 0
    assert next(drawn) == TRIALS_MAX


@pytest.mark.few(4)
@pytest.mark.parametrize("weights", [(2, 10, 15, 15, 2048), (1, 2, 3), (1, 1, 10)])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("packs", [1, 7])
def test_many_short_pushes_keep_shares_true(weights, copies, packs):
    """Alone, each would pass by the small backends: one pack is more than their part of it."""
    p = placement(weights, copies)
    loads = dict.fromkeys((t.backend_id for t in p.targets), 0)
    names, carried, total = Names(1), b"", 2100
    for _ in range(total // packs):
        b = Balance(p, carried)
        for _ in range(packs):
            seen: list[bytes] = []
            number = b.choose(4 * MB, (seen.append(n) or n for n in names))
            for i in p.primary(seen[number]):
                loads[i] += 1
        carried = b.carry()
    for i, share in p.expected_shares().items():
        assert abs(loads[i] - float(share) * total) <= 3, weights


def test_equal_backends_carry_nothing():
    b = Balance(placement([1, 1, 1], 2))
    b.choose(4 * MB, Names(1))
    assert b.carry() == b""
    assert not any(Balance(placement([1, 1, 1], 2), b"\1" * 72)._loads)


@pytest.mark.parametrize("carried", [b"", b"x", b"\1" * 24, b"\xff" * 72, bytes(71)])
def test_what_was_carried_for_other_backends_is_left_out(carried):
    b = Balance(placement([1, 2, 3], 1), carried)
    assert b.choose(MB, Names(1)) >= 0
    assert not any(load > MB for load in b._loads)


def test_where_every_pack_goes_everywhere_there_is_nothing_to_choose():
    assert not Balance(placement([1, 1], 2)).matters
    assert not Balance(placement([1], 1)).matters
    assert Balance(placement([1, 1, 1], 2)).matters
    names = Names(1)
    assert Balance(placement([1, 5], 2)).choose(MB, names) == 0
    assert names.drawn == 1


@pytest.mark.parametrize(
    ("backends", "copies", "packs"), [(3, 2, 3), (3, 1, 3), (4, 2, 2), (5, 2, 5), (6, 4, 3), (2, 2, 1), (1, 1, 1)]
)
def test_so_many_packs_of_one_size_load_equal_backends_evenly(backends, copies, packs):
    p = placement([10] * backends, copies)
    assert Balance(p).even_packs == packs
    assert fullest(p, [MB] * packs * 20, Names(1)) < 1.06


def test_too_many_backends_for_exact_shares_are_balanced_by_capacity():
    p = placement([1] * 9 + [2] * 30, 20)
    b = Balance(p)
    assert b.choose(MB, Names(1)) < TRIALS_MAX
    assert len(set(balance._shares(p))) == 2
