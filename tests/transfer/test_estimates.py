"""`metasync.transfer.estimates`: what is learned of lines that many calls share, and the note of it."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from content_kit import refuses
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import BackendError, FormatError
from metasync.runtime.effects import Now, Op, Reply
from metasync.runtime.sizes import PROMPT_BYTES_MAX
from metasync.transfer.estimates import (
    BACKENDS_MAX,
    ESTIMATES_KEY,
    LARGE_BYTES_LEAST,
    RECENT_MAX,
    SAMPLES,
    Direction,
    Estimate,
    Estimates,
    timed,
)

UP, DOWN = Direction.UP, Direction.DOWN
MIB = 1 << 20


def one(e: Estimates, size: int, seconds: float, now: float = 100.0, backend: str = "a") -> None:
    e.end(e.begin(backend, DOWN, size, now - seconds), size, seconds, now)


def shared_line(e: Estimates, sizes: list[int], *, at_once: int, rate: float, latency: float) -> None:
    """Carries calls over one line that is shared evenly, `at_once` at a time, and tells the estimates of each."""
    waiting, now, left, begun, calls = list(enumerate(sizes))[::-1], 0.0, {}, {}, {}
    starts: list[tuple[float, int, int]] = []
    while waiting or starts or left:
        while waiting and len(starts) + len(left) < at_once:
            n, size = waiting.pop()
            calls[n], begun[n] = e.begin("a", DOWN, size, now), now
            heapq.heappush(starts, (now + latency, n, size))
        step = min(left.values()) * len(left) / rate if left else float("inf")
        if starts and starts[0][0] - now <= step:
            at, n, size = heapq.heappop(starts)
            left = {k: v - (at - now) * rate / len(left) for k, v in left.items()}
            now, left[n] = at, float(size)
            continue
        left = {k: v - step * rate / len(left) for k, v in left.items()}
        now += step
        for n in [n for n, v in left.items() if v <= 1e-6]:
            del left[n]
            e.end(calls[n], sizes[n], now - begun[n], now)


def test_how_long_it_takes_until_all_is_answered() -> None:
    e = Estimates()
    assert e.left_s(DOWN, 0.0) == 0.0
    assert e.latency_s(DOWN) == 0.0
    one(e, 0, 0.1)
    call = e.begin("a", DOWN, 10 * MIB, 100.0)
    assert e.left_s(DOWN, 100.0) is None  # nothing is known of the line
    e.drop(call)
    for _ in range(SAMPLES):
        one(e, MIB, 1.1)  # 1 MiB/s
    calls = [e.begin("a", DOWN, 2 * MIB, 200.0), e.begin("a", DOWN, 2 * MIB, 201.0)]
    assert e.left_s(DOWN, 201.0) == pytest.approx(3.1, rel=0.01)
    assert e.left_s(UP, 201.0) == 0.0
    e.end(calls[0], 2 * MIB, 3.1, 203.1)  # both had half of the line from 201.1 on
    assert e.left_s(DOWN, 203.1) == pytest.approx(1.0, abs=0.3)
    e.drop(calls[1])
    assert e.left_s(DOWN, 203.1) == 0.0
    assert e.latency_s(DOWN) == pytest.approx(0.1)
    assert e.latency_s(UP) == 0.0


def test_nothing_is_known_at_first() -> None:
    assert Estimates().of("a", DOWN) == Estimate(None, None)


def test_small_answers_teach_latency_and_large_ones_bandwidth() -> None:
    e = Estimates()
    one(e, 100, 0.5)
    assert e.of("a", DOWN) == Estimate(pytest.approx(0.5), None)
    one(e, 5_000_000, 1.5)
    assert e.of("a", DOWN) == Estimate(pytest.approx(0.5), pytest.approx(5e6)), "latency is taken off"
    assert e.of("a", UP) == Estimate()
    assert e.of("b", DOWN) == Estimate()
    one(e, (PROMPT_BYTES_MAX + LARGE_BYTES_LEAST) // 2, 60.0)
    assert e.of("a", DOWN) == Estimate(pytest.approx(0.5), pytest.approx(5e6)), "what lies between teaches neither"


def test_the_mean_is_harmonic_and_of_the_last_five() -> None:
    e = Estimates()
    for seconds in (100.0, 1.0, 1.0, 1.0, 1.0):
        one(e, 10, seconds)
    assert e.of("a", DOWN).latency_s == pytest.approx(5 / (1 / 100 + 4))
    one(e, 10, 4.0)
    assert e.of("a", DOWN).latency_s == pytest.approx(5 / (4 + 1 / 4)), "the first one is forgotten"


def test_an_answer_that_is_quicker_than_the_latency_is_no_infinite_line() -> None:
    e = Estimates()
    one(e, 10, 1.0)
    one(e, MIB, 0.5)
    assert e.of("a", DOWN).bytes_per_s == pytest.approx(MIB / 0.05)


def test_failures_and_what_nobody_measured_teach_nothing() -> None:
    e = Estimates()
    e.drop(e.begin("a", DOWN, MIB, 0.0))
    e.end(e.begin("a", DOWN, MIB, 0.0), MIB, 0.0, 1.0)
    assert e.of("a", DOWN) == Estimate()


@pytest.mark.parametrize("at_once", [1, 2, 4, 8])
@pytest.mark.parametrize("latency", [0.0, 0.08])
def test_calls_at_once_do_not_make_a_line_look_slow(at_once: int, latency: float) -> None:
    e = Estimates()
    if latency:
        one(e, 10, latency, now=-1.0)
    shared_line(e, [4 * MIB] * 24, at_once=at_once, rate=5e6, latency=latency)
    known = e.of("a", DOWN).bytes_per_s
    assert known is not None
    assert 0.95 * 5e6 <= known <= 1.1 * 5e6


def test_the_first_of_several_to_end_knows_of_the_others() -> None:
    """Or the estimate would be a quarter of the truth until all had ended."""
    e = Estimates()
    calls = [e.begin("a", DOWN, 4 * MIB, 0.0) for _ in range(4)]
    e.end(calls[0], 4 * MIB, 16 * MIB / 5e6, 16 * MIB / 5e6)
    assert e.of("a", DOWN).bytes_per_s == pytest.approx(5e6)


@given(
    st.lists(st.integers(LARGE_BYTES_LEAST, 8 * MIB), min_size=8, max_size=40),
    st.integers(1, 8),
    st.floats(1e5, 1e9),
    st.floats(0.0, 1.0),
)
def test_a_shared_line_is_known_within_bounds(sizes: list[int], at_once: int, rate: float, latency: float) -> None:
    """However the calls overlap: off by what a call that is long, and one that is short, disagree on at most."""
    e = Estimates()
    if latency:
        one(e, 1, latency, now=-1.0)
    shared_line(e, sizes, at_once=at_once, rate=rate, latency=latency)
    known = e.of("a", DOWN).bytes_per_s
    assert known is not None
    idle = max(rate * latency / min(sizes), 1.0)  # where answers are mostly latency, what their bytes took is unsure
    assert rate / idle / 2 <= known <= rate * 2


def test_what_is_remembered_is_bounded() -> None:
    e = Estimates()
    e.begin("a", DOWN, MIB, 0.0)
    for n in range(3 * RECENT_MAX):
        one(e, MIB, 0.1, now=1.0 + n)
    line = e._lines["a", DOWN]
    assert len(line.recent) == RECENT_MAX
    assert len(line.rates) == SAMPLES
    assert len(line.under_way) == 1


# --- as a task


def carried_out(op: Op, reply: Reply, took: float) -> Estimates:
    e = Estimates()
    task = timed(e, op, 10)
    assert isinstance(next(task), Now)
    assert task.send(5.0) is op
    try:
        effect: Any = task.send(reply)
        assert isinstance(effect, Now)
        task.send(5.0 + took)
    except StopIteration as end:
        assert end.value is reply
    assert not any(line.under_way for line in e._lines.values())
    return e


def test_a_call_that_is_timed_teaches_its_direction() -> None:
    got = carried_out(Op("a", "get", "p"), Reply(bytes(MIB), seconds=0.5), 0.5)
    assert got.of("a", DOWN).bytes_per_s == pytest.approx(MIB / 0.5)
    put = carried_out(Op("a", "put", "p", bytes(2 * MIB)), Reply(seconds=1.0), 1.5)
    assert put.of("a", UP).bytes_per_s == pytest.approx(2 * MIB), "the time in a queue is not the line's"
    failed = carried_out(Op("a", "get", "p"), Reply(error=BackendError("no"), seconds=1.0), 1.0)
    assert failed.of("a", DOWN) == Estimate()


def test_a_call_that_is_abandoned_is_dropped() -> None:
    e = Estimates()
    task = timed(e, Op("a", "get", "p"), 10)
    next(task)
    task.send(1.0)
    task.close()
    assert not e._lines["a", DOWN].under_way


# --- the note

SAMPLE = st.tuples(
    st.sampled_from("abc"), st.sampled_from(list(Direction)), st.integers(1, 8 * MIB), st.floats(1e-5, 99)
)


def learned(samples: list[tuple[str, Direction, int, float]]) -> Estimates:
    e = Estimates()
    for name, direction, size, seconds in samples:
        e.end(e.begin(name, direction, size, 0.0), size, seconds, seconds)
    return e


@given(st.lists(SAMPLE, max_size=30))
def test_a_note_is_read_as_it_was_written(samples: list[tuple[str, Direction, int, float]]) -> None:
    e = learned(samples)
    again = Estimates.decode(e.encode())
    assert again.encode() == e.encode()
    for name in "abc":
        for direction in Direction:
            for was, now in zip(e.of(name, direction), again.of(name, direction), strict=True):
                assert now == (pytest.approx(was, rel=1e-2) if was is not None else None)


def test_a_note_is_refused_when_damaged() -> None:
    notes = [
        Estimates().encode(),
        learned([("a", UP, 10, 0.5), ("a", DOWN, MIB, 0.5), ("b", DOWN, 10, 1.0)]).encode(),
    ]
    refuses(Estimates.decode, notes, Estimates.encode, checked=False)
    for damaged in (b"", b"\x02", notes[1][:-1], notes[1] + b"\0"):
        assert ESTIMATES_KEY.load(damaged) is None, "a damaged note is no note"
    with pytest.raises(FormatError):
        Estimates.decode(notes[1] + b"\0")


def test_a_note_is_bounded() -> None:
    e = Estimates()
    for n in range(2 * BACKENDS_MAX):
        one(e, 10, 0.5, backend=f"{n:04}")
    one(e, 10, 0.5, backend="x" * 1000)
    note = e.encode()
    assert len(note) <= BACKENDS_MAX * len('["0000", 0, [500000], []], ')
    Estimates.decode(note)


def line(e: Estimates, backend: str, direction: Direction, bytes_per_s: float, latency_s: float) -> None:
    """Teaches what a line bears."""
    for size, seconds in ((100, latency_s), (10 * MIB, latency_s + 10 * MIB / bytes_per_s)):
        e.end(e.begin(backend, direction, size, 0.0), size, seconds, seconds)


@pytest.mark.parametrize(
    ("up", "down", "latency", "pays"),
    [
        (1e6, 10e6, 0.08, True),  # a home's line: 0.25 s up for 0.11 s down
        (10e6, 10e6, 0.08, False),  # 0.026 s up
        (10e6, 1e9, 0.0, True),
        (1e6, 10e6, 0.25, False),
    ],
)
def test_a_base_is_fetched_where_the_lines_say_that_it_takes_less_time(
    up: float, down: float, latency: float, pays: bool
) -> None:
    e = Estimates()
    for name in "ab":
        line(e, name, UP, up, 0.0001)
        line(e, name, DOWN, down, latency or 0.0001)
    assert e.pays(["a", "b"], fetched=256 << 10, whole=512 << 10, delta=10_000) is pays
    assert not e.pays(["a", "b"], fetched=256 << 10, whole=512 << 10, delta=512 << 10)


def test_a_base_is_not_fetched_over_lines_of_which_nothing_is_known() -> None:
    e = Estimates()
    assert not e.pays([], fetched=1, whole=1 << 30, delta=1)
    assert not e.pays(["a"], fetched=1, whole=1 << 30, delta=1)
    line(e, "a", UP, 1e6, 0.01)
    assert not e.pays(["a"], fetched=1, whole=1 << 30, delta=1)
    line(e, "a", DOWN, 1e6, 0.01)
    assert e.pays(["a"], fetched=1, whole=1 << 30, delta=1)
    assert not e.pays(["a", "b"], fetched=1, whole=1 << 30, delta=1)
