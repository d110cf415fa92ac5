"""`metasync.transfer.schedule`: who is asked for what, on links in virtual time."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lines_kit import TIMEOUT_S, Link, Run, drive

from metasync.transfer.estimates import Direction, Estimate, Estimates
from metasync.transfer.line_load import Lines
from metasync.transfer.schedule import (
    CONNECTIONS_MAX,
    CUT_BYTES_LEAST,
    HELD_BYTES_MAX,
    LATE_HELD_BYTES_MAX,
    SPARE_BYTES_LEAST,
    SPARE_SHARE,
    TRIAL_FROM_BYTES,
    Failure,
    Piece,
    Schedule,
    Take,
)

MIB = 1 << 20
STEP = 256 << 10
ABC = "abc"


def pack(key: int, homes: Iterable[str], size: int = 4 * MIB, others: Iterable[str] = (), step: int = STEP) -> Piece:
    return Piece(key, 0, size, tuple(homes), tuple(others), tuple(range(step, size, step)))


def known(links: dict[str, Link]) -> Estimates:
    """What an earlier run would have learned."""
    e = Estimates()
    for name, link in links.items():
        for size in (1, 4 * MIB):
            took = link.latency_s + (size / link.rate if size > 1 else 0.0)
            e.end(e.begin(name, Direction.DOWN, size, -99.0), size, took, -99.0 + took)
    return e


def schedule(e: Estimates, away: Iterable[str] = ()) -> Schedule:
    return Schedule(lambda name: e.of(name, Direction.DOWN), away=away)


def fetched(links: dict[str, Link], wanted: list[Piece], e: Estimates | None = None, **options: float) -> Run:
    e = known(links) if e is None else e
    run = drive(schedule(e), links, e, wanted, **options)
    check(run, wanted)
    return run


def check(run: Run, wanted: list[Piece]) -> None:
    """Every byte is had once, or told to be lost; what was asked twice is within its bound."""
    for piece in wanted:
        parts = sorted((p.begin, p.end) for p in (*run.done, *run.lost) if p.key == piece.key)
        assert [b for b, _ in parts] == [piece.begin, *(e for _, e in parts[:-1])], "a gap, or a byte twice"
        assert parts[-1][1] == piece.end
        assert all(b in piece.cuts for b, _ in parts[1:])
    assert all(t.holder in (*t.piece.homes, *t.piece.others) for t in run.takes)
    assert run.held_max <= HELD_BYTES_MAX + LATE_HELD_BYTES_MAX + max(p.size for p in wanted)
    assert run.at_once_max <= CONNECTIONS_MAX


def best_s(links: dict[str, Link], wanted: list[Piece]) -> float:
    """No schedule is quicker: some set of holders must bring all that it alone has."""
    names = list(links)
    sets = [s for n in range(1, len(names) + 1) for s in itertools.combinations(names, n)]
    return max(sum(p.size for p in wanted if set(p.homes) <= set(s)) / sum(links[n].rate for n in s) for s in sets)


def pairs(n: int, names: str, seed: int = 1, size: int = 4 * MIB) -> list[Piece]:
    rng = random.Random(seed)
    return [pack(i, rng.sample(names, 2), size) for i in range(n)]


# --- nothing goes wrong


def test_a_small_pack_is_one_request_to_its_first_home() -> None:
    run = fetched({n: Link() for n in ABC}, [pack(1, "bca", 300_000)])
    assert [(t.holder, t.piece.size) for t in run.takes] == [("b", 300_000)]


def test_where_nothing_is_known_a_pack_is_not_cut() -> None:
    run = fetched({n: Link() for n in ABC}, [pack(1, "ab")], Estimates())
    assert [(t.holder, t.piece.size) for t in run.takes] == [("a", 4 * MIB)]


def test_near_holders_serve_a_pack_whole() -> None:
    links = {n: Link(rate=500e6, latency_s=0.001) for n in ABC}
    assert len(fetched(links, pairs(20, ABC)).takes) == 20


def test_two_holders_serve_one_pack_where_that_is_quicker() -> None:
    links = {"a": Link(rate=6e6), "b": Link(rate=3e6)}
    run = fetched(links, [pack(1, "ab")])
    sizes = {t.holder: t.piece.size for t in run.takes}
    assert len(run.takes) == 2
    assert sizes["a"] == pytest.approx(2 * sizes["b"], rel=0.4)
    assert run.seconds < 4 * MIB / 6e6


def test_no_part_is_smaller_than_the_least() -> None:
    links = {"a": Link(rate=6e6), "b": Link(rate=3e6)}
    for size in (2 * CUT_BYTES_LEAST - 1, 3 * MIB, 5 * MIB, 16 * MIB):
        run = fetched(links, [pack(1, "ab", size)])
        assert all(t.piece.size >= CUT_BYTES_LEAST for t in run.takes)
        assert len(run.takes) <= 3


@pytest.mark.parametrize("learned", [True, False])
def test_three_equal_holders_end_together(learned: bool) -> None:
    links = {n: Link() for n in ABC}
    wanted = pairs(46, ABC)
    run = fetched(links, wanted, None if learned else Estimates())
    assert run.seconds <= 1.08 * best_s(links, wanted)
    assert len(run.takes) <= 46 + 6


@pytest.mark.parametrize("learned", [True, False])
def test_figure_10(learned: bool) -> None:
    """5.1 and 3.4 MB/s, two copies: the paper reached 7.6 of 8.5."""
    links = {"a": Link(rate=5.1e6), "b": Link(rate=3.4e6)}
    wanted = [pack(n, "ab") for n in range(46)]
    run = fetched(links, wanted, None if learned else Estimates())
    assert sum(p.size for p in wanted) / run.seconds >= 8.1e6
    assert len(run.takes) <= 46 + 6


def test_a_holder_that_is_ten_times_slower_gets_little() -> None:
    links = {"a": Link(), "b": Link(), "c": Link(rate=0.5e6)}
    wanted = pairs(46, ABC)
    run = fetched(links, wanted, Estimates())
    by = Counter({n: sum(t.piece.size for t in run.takes if t.holder == n) for n in ABC})
    assert by["c"] < 0.1 * by.total()
    assert run.seconds <= 1.15 * best_s(links, wanted)


def test_an_unknown_holder_is_tried_with_something_small_where_much_is_wanted() -> None:
    links = {n: Link() for n in "ab"}
    wanted = [pack(n, "ab") for n in range(TRIAL_FROM_BYTES // (4 * MIB))]
    run = fetched(links, wanted, Estimates())
    first = {n: next(t for t in run.takes if t.holder == n) for n in "ab"}
    assert all(t.piece.size <= 2 * MIB for t in first.values())


@settings(max_examples=examples(100))
@given(st.data())
def test_all_holders_end_near_the_best_that_could_be(data: st.DataObject) -> None:
    names = "abcd"[: data.draw(st.integers(2, 4))]
    links = {
        n: Link(data.draw(st.floats(0.5e6, 50e6), label="rate"), data.draw(st.floats(0.001, 0.5), label="latency"))
        for n in names
    }
    copies = data.draw(st.integers(1, len(names)))
    sizes = data.draw(st.lists(st.integers(1000, 8 * MIB), min_size=1, max_size=60))
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    wanted = [pack(i, rng.sample(names, copies), size) for i, size in enumerate(sizes)]
    e = known(links) if data.draw(st.booleans(), label="known") else Estimates()
    learned = e.of("a", Direction.DOWN).bytes_per_s is not None
    run = fetched(links, wanted, e, opening_s=0.0)
    assert not run.lost
    slack = 2 * max(link.latency_s for link in links.values()) + 0.3
    per_call = (
        sum(link.latency_s for link in links.values()) * len(wanted) / CONNECTIONS_MAX
    )  # small packs: round trips
    if learned:
        assert run.seconds <= 1.3 * best_s(links, wanted) + slack + per_call + max(
            2 * CUT_BYTES_LEAST / link.rate for link in links.values()
        )
        assert all(t.piece.size >= CUT_BYTES_LEAST for t in run.takes if t.spare), "nothing small is asked twice"
    assert len(run.takes) <= len(wanted) + 6 * len(names)


# --- trouble


@settings(max_examples=examples(150))
@given(st.data())
def test_whatever_goes_wrong_nothing_is_lost_that_somebody_has(data: st.DataObject) -> None:
    names = "abcd"
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    copies = data.draw(st.integers(1, 3))
    count = data.draw(st.integers(1, 30))
    wanted, troubles = [], {}
    for i in range(count):
        homes = rng.sample(names, copies)
        wanted.append(pack(i, homes, rng.randrange(1000, 6 * MIB), [n for n in names if n not in homes]))
        for n in names:
            if rng.random() < 0.3:
                troubles[i, n] = rng.choice(list(Failure))
    well = data.draw(st.sets(st.sampled_from(names)))  # whose line is well
    links = {
        n: Link(
            rng.uniform(0.5e6, 20e6),
            rng.uniform(0.001, 0.3),
            dies_at_s=float("inf") if n in well else rng.uniform(0, 10),
            trouble=lambda take: troubles.get((take.piece.key, take.holder)),
        )
        for n in names
    }
    e = known(links) if rng.random() < 0.5 else Estimates()
    run = drive(schedule(e), links, e, wanted)
    check(run, wanted)
    away = {n for (_, n), t in troubles.items() if t is Failure.AWAY} | (set(names) - well)
    for piece in run.lost:
        assert not [n for n in names if n not in away and (piece.key, n) not in troubles], "somebody has it"
    asked = Counter((t.piece.key, t.piece.begin, t.holder) for t in run.takes)
    assert max(asked.values()) <= 3, "at first, once more when away, and while a bad copy was being opened"


def test_a_holder_that_hangs_costs_no_timeout_where_others_have_copies() -> None:
    links = {"a": Link(), "b": Link(), "c": Link(dies_at_s=0.0)}
    wanted = pairs(46, ABC)
    for e in (Estimates(), known(links)):
        run = fetched(links, wanted, e)
        assert run.seconds < TIMEOUT_S
        alive = sum(p.size for p in wanted) / 10e6
        assert run.seconds <= 1.15 * alive + 2.0
        assert sum(t.piece.size for t in run.takes if t.spare) <= SPARE_BYTES_LEAST
        assert sum(t.holder == "c" for t in run.takes) <= 3


def test_a_holder_that_dies_half_way_costs_no_timeout() -> None:
    links = {"a": Link(), "b": Link(), "c": Link(dies_at_s=6.0)}
    wanted = pairs(46, ABC)
    run = fetched(links, wanted)
    total = sum(p.size for p in wanted)
    assert run.seconds <= 1.15 * (6 + (total - 6 * 15e6) / 10e6) + 0.5
    assert run.carried <= total * (1 + SPARE_SHARE)


def test_a_holder_that_becomes_slow_holds_nothing_up() -> None:
    links = {"a": Link(), "b": Link(slows_at_s=2.0, slower=100.0)}
    wanted = [pack(n, "ab") for n in range(20)]
    run = fetched(links, wanted)
    assert run.seconds <= 1.1 * (2 + (80 * MIB - 20e6 + 8 * MIB) / 5e6), "and two packs that had begun to come"
    assert any(t.spare for t in run.takes)


def test_one_that_cannot_be_reached_is_asked_once_and_once_more_when_nothing_else_helps() -> None:
    def unreachable(take: Take) -> Failure:
        return Failure.AWAY

    links = {"a": Link(trouble=unreachable), "b": Link()}
    run = fetched(links, [pack(n, "ab", MIB) for n in range(50)])
    assert not run.lost
    assert sum(t.holder == "a" for t in run.takes) <= CONNECTIONS_MAX, "those that were under way"
    links["b"].trouble = unreachable
    run = fetched(links, [pack(n, "ab", MIB) for n in range(50)], Estimates())
    assert len(run.lost) == 50
    assert len(run.takes) <= 2 * CONNECTIONS_MAX + 2


def test_one_that_is_back_serves_again() -> None:
    failures = iter([Failure.AWAY] * 2)
    links = {"a": Link(trouble=lambda take: next(failures, None))}
    wanted = [pack(n, "a", MIB) for n in range(10)]
    run = fetched(links, wanted)
    assert not run.lost
    assert len(run.done) == 10


def test_one_known_to_be_away_is_asked_last() -> None:
    links = {n: Link() for n in "ab"}
    e = known(links)
    run = drive(schedule(e, away="a"), links, e, [pack(n, "ab", MIB) for n in range(5)])
    assert {t.holder for t in run.takes} == {"b"}
    run = drive(schedule(e, away="ab"), links, e, [pack(n, "ab", MIB) for n in range(5)])
    assert len(run.done) == 5


def test_a_bad_copy_is_asked_for_nothing_else_of_its_pack_unless_it_is_the_last() -> None:
    links = {n: Link() for n in ABC}
    links["a"].trouble = lambda take: Failure.BAD
    parts = [pack(1, "ab", MIB)._replace(begin=n * MIB, end=(n + 1) * MIB, cuts=()) for n in range(10)]
    e = known(links)
    run = drive(schedule(e), links, e, parts)
    assert sum(t.holder == "a" for t in run.takes) <= 3, "those that were under way"
    assert len(run.done) == 10
    links["b"].trouble = lambda take: Failure.BAD if take.piece.begin else None
    run = drive(schedule(e), links, e, parts)
    assert len(run.lost) == 9


def test_what_is_missing_is_looked_for_elsewhere_in_order() -> None:
    links = {n: Link(trouble=lambda take: Failure.MISSING) for n in "abcd"}
    links["d"].trouble = lambda take: None
    run = fetched(links, [pack(1, "ab", MIB, "cd")])
    assert [t.holder for t in run.takes] == ["a", "b", "c", "d"]


def test_late_bytes_do_not_hold_up_the_rest() -> None:
    """Two of four hang, each with its share of the memory."""
    links = {"a": Link(), "b": Link(), "c": Link(dies_at_s=0.5), "d": Link(dies_at_s=0.5)}
    rng = random.Random(3)
    wanted = [pack(n, rng.choice(["ac", "ad", "bc", "bd"]), 6 * MIB) for n in range(40)]
    run = fetched(links, wanted)
    assert run.seconds < TIMEOUT_S


# --- k of n


def test_k_of_n_takes_the_quickest_k_and_another_for_one_that_fails() -> None:
    links = {"a": Link(), "b": Link(), "c": Link(rate=0.5e6), "d": Link(trouble=lambda take: Failure.BAD)}
    e = known(links)
    shards = [Piece(n, 0, MIB, tuple("abcd"), need=2) for n in range(12)]
    run = drive(schedule(e), links, e, shards)
    assert sorted(p.key for p in run.done) == list(range(12))
    by = Counter(t.holder for t in run.takes)
    assert by["a"] + by["b"] > 2 * by["c"]
    assert not run.lost
    links["b"].trouble = links["c"].trouble = lambda take: Failure.MISSING
    run = drive(schedule(e), links, e, shards)
    assert sorted(p.key for p in run.lost) == list(range(12))


def test_a_late_shard_is_replaced_by_another() -> None:
    links = {"a": Link(dies_at_s=0.0), "b": Link(), "c": Link()}
    e = known(links)
    run = drive(schedule(e), links, e, [Piece(n, 0, MIB, tuple(ABC), need=2) for n in range(6)])
    assert len(run.done) == 6
    assert run.seconds < TIMEOUT_S


def test_nobody_at_all_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nobody"):
        schedule(Estimates()).add(pack(1, ""))


def test_what_is_forgotten_is_not_asked_for() -> None:
    s = Schedule(lambda name: Estimate(0.1, 1e6))
    pieces = [pack(n, "ab", MIB) for n in range(3)]
    for piece in pieces:
        s.add(piece)
    s.forget(pieces[:2])
    s.forget(pieces[:2])
    take = s.next(0.0)
    assert take is not None and take.piece == pieces[2]
    assert s.next(0.0) is None
    s.forget(pieces)
    assert s.is_done
    assert not s.answered(take, 1.0), "nobody needs it any more"


def test_what_waits_on_this_side_is_not_late() -> None:
    """A limit that the user set keeps calls back; no holder can help there, and asking twice would cost twice."""
    estimates = known({"a": Link(), "b": Link()})
    for measured in (0.9, 0.0):
        s = schedule(estimates)
        for n in range(4):
            s.add(pack(n, "ab", step=4 * MIB))
        takes = []
        while (take := s.next(0.0)) is not None:
            takes.append(take)
        assert len(takes) == 4
        assert s.next(20.0) is None, "all are late, so nobody is asked twice"
        first = {take.holder: take for take in takes}
        for take in first.values():
            assert s.answered(take, 40.0, measured)
        again = s.next(40.0)
        if measured:
            assert again is None, "39 s were not the holders'"
            due = s.wake_at()
            assert due is not None and due > 100
        else:
            assert again is None, "both still owe an answer"
        rest = [take for take in takes if take not in first.values()]
        assert s.answered(rest[0], 41.0, measured)
        spare = s.next(41.0)
        assert (spare is None) == bool(measured)


def test_of_two_answers_to_one_piece_one_is_opened_and_the_other_asked_again_if_that_is_bad() -> None:
    s = schedule(known({"a": Link(), "b": Link()}))
    s.add(pack(1, "ab", MIB))
    take = s.next(0.0)
    assert take is not None and s.next(0.0) is None
    due = s.wake_at()
    assert due is not None
    spare = s.next(due)
    assert spare is not None and spare.spare and spare.holder != take.holder
    assert s.next(due) is None
    assert s.answered(spare, due + 1)
    assert not s.answered(take, due + 1), "one is being opened"
    assert s.failed(spare, Failure.BAD, due + 2) == []
    again = s.next(due + 2)
    assert again is not None and again.holder == take.holder
    assert s.answered(again, due + 3)
    assert s.opened(again)
    assert s.is_done


def test_one_that_is_late_is_asked_for_nothing_new_until_it_answers() -> None:
    s = schedule(known({"a": Link(), "b": Link()}))
    s.add(pack(0, "a", MIB))
    take = s.next(0.0)
    due = s.wake_at()
    assert take is not None and take.holder == "a" and due is not None
    for n in range(1, 8):
        s.add(pack(n, "ab", MIB))
    asked = []
    while (other := s.next(due)) is not None:
        asked.append(other.holder)
    assert set(asked) == {"b"}
    assert s.answered(take, due)
    again = s.next(due)
    assert again is not None and again.holder == "a"


def test_what_is_asked_twice_is_bounded() -> None:
    size = SPARE_BYTES_LEAST * 3 // 4
    s = schedule(known({"quick": Link(rate=10e6), "slow": Link(rate=1e6)}))
    for n in range(2):
        s.add(pack(n, ("quick", "slow"), size, step=size))
    takes = [s.next(0.0), s.next(0.0)]
    assert [t.holder for t in takes if t is not None] == ["quick", "quick"]
    assert s.next(0.0) is None
    spare = s.next(1000.0)
    assert spare is not None and (spare.holder, spare.spare) == ("slow", True)
    assert s.next(1000.0) is None, "the second would be beyond the bound"


def test_what_is_under_way_is_not_lost_though_its_holder_is_away() -> None:
    s = schedule(known({"a": Link()}))
    for n in range(2):
        s.add(pack(n, "a", MIB))
    first, second = s.next(0.0), s.next(0.0)
    assert first is not None and second is not None
    assert s.failed(first, Failure.AWAY, 1.0) == []
    again = s.next(1.0)
    assert again is not None and again.piece == first.piece, "it may be back"
    assert s.failed(again, Failure.AWAY, 2.0) == [first.piece]
    assert s.answered(second, 3.0)
    assert s.opened(second)
    assert s.is_done


def test_a_line_that_is_overdue_counts_for_less() -> None:
    lines = Lines(lambda name: Estimate(0.1, 1e6))
    lines.know("a")
    lines.go_to(0.0)
    lines.begin("a", 1, 1_000_000)
    lines.go_to(1.0)
    assert lines.of("a")[1] == 1e6
    assert lines.holders["a"].owed == pytest.approx(50_000)
    lines.go_to(4.1)
    assert lines.of("a")[1] == pytest.approx(0.5e6 / 4.0), "what took so long is half done"
    assert lines.holders["a"].owed == pytest.approx(500_000)
    assert not lines.holders["a"].is_late
    lines.go_to(5.4)
    assert lines.holders["a"].is_late
