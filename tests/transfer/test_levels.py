"""`metasync.transfer.levels`: how hard a push compresses, by what its lines carry."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from content_kit import pack_format

from metasync.objects.model import ObjectKind
from metasync.store.packs import Packer, SealedPack
from metasync.transfer.copies import Stored, record_of
from metasync.transfer.estimates import Direction, Estimates
from metasync.transfer.levels import SPEEDS, TIMED_BYTES_LEAST, Levels
from metasync.transfer.upload import Upload

MB = 1_000_000
LINES = ("a", "b", "c")


def measured(rate: float, lines: tuple[str, ...] = LINES) -> Estimates:
    """Lines on which a call of 8 MB was carried at `rate` bytes a second."""
    e, size = Estimates(), 8 * MB
    for name in lines:
        e.end(e.begin(name, Direction.UP, size, 0.0), size, size / rate, size / rate)
    return e


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(base: int, estimates: Estimates, lines: tuple[str, ...], copies: int, clock: Clock | None = None) -> Levels:
    return Levels(base, estimates, lines, copies, clock or Clock())


@pytest.mark.parametrize(
    ("rate", "level"),
    [(0.1 * MB, 9), (5 * MB, 9), (6 * MB, 7), (8.5 * MB, 6), (10 * MB, 3), (120 * MB, 3)],
)
def test_the_slower_the_lines_the_higher_the_level(rate: float, level: int) -> None:
    assert made(3, measured(rate), LINES, 2).level() == level


def test_the_agreed_level_counts_while_a_line_is_unknown() -> None:
    assert made(3, measured(MB, ("a", "b")), LINES, 2).level() == 3
    assert made(3, Estimates(), LINES, 2).level() == 3
    assert made(3, measured(MB), (), 2).level() == 3


def test_the_agreed_level_is_the_least() -> None:
    assert made(19, measured(MB), LINES, 2).level() == 19
    assert made(8, measured(8.5 * MB), LINES, 2).level() == 8


def test_more_copies_on_the_same_lines_leave_more_time() -> None:
    estimates = measured(10 * MB)
    assert made(3, estimates, LINES, 1).level() == 3
    assert made(3, estimates, LINES, 3).level() > 3


def test_a_level_at_which_the_lines_waited_is_not_chosen_again() -> None:
    chosen = made(3, measured(MB), LINES, 2)
    seen = []
    for _ in range(len(SPEEDS) + 2):
        seen.append(chosen.level())
        chosen.fell_behind()
    assert seen == [*(level for level, _ in SPEEDS), 3, 3]


def test_what_is_measured_on_the_way_counts_for_the_next_segment() -> None:
    estimates = Estimates()
    chosen = made(3, estimates, ("a",), 1)
    assert chosen.level() == 3
    estimates.end(estimates.begin("a", Direction.UP, MB, 0.0), MB, 1.0, 1.0)
    assert chosen.level() == 9


def shrunk_in(levels: Levels, clock: Clock, level: int, seconds: float, size: int = 1 << 20) -> None:
    def shrink() -> bytes:
        clock.now += seconds
        return b"small"

    assert levels.timed(level, size, shrink) == b"small"


@pytest.mark.parametrize(("slower", "then"), [(0.5, 9), (1.6, 9), (2.0, 7), (2.8, 6), (4.0, 3), (100.0, 3)])
def test_a_machine_that_is_slower_than_expected_compresses_less(slower: float, then: int) -> None:
    clock = Clock()
    levels = made(3, measured(3 * MB), LINES, 2, clock)
    assert levels.level() == 9
    for _ in range(3):
        shrunk_in(levels, clock, 9, slower * (1 << 20) / dict(SPEEDS)[9])
    assert levels.level() == then


def test_it_compresses_more_again_when_it_has_become_fast() -> None:
    clock = Clock()
    levels = made(3, measured(3 * MB), LINES, 2, clock)
    shrunk_in(levels, clock, 9, 2.6 * (1 << 20) / dict(SPEEDS)[9])
    assert levels.level() == 6
    for _ in range(20):
        shrunk_in(levels, clock, 6, 0.5 * (1 << 20) / dict(SPEEDS)[6])
    assert levels.level() == 9


def test_small_segments_and_those_of_the_agreed_level_tell_nothing() -> None:
    clock = Clock()
    levels = made(3, measured(3 * MB), LINES, 2, clock)
    shrunk_in(levels, clock, 9, 10.0, TIMED_BYTES_LEAST - 1)
    shrunk_in(levels, clock, 3, 10.0)
    assert levels.level() == 9


def test_what_cannot_be_shrunk_raises_as_it_would() -> None:
    def shrink() -> bytes:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        made(3, measured(MB), LINES, 2).timed(9, 1 << 20, shrink)


class _Told:
    """Says one level, and notes what was timed."""

    def __init__(self, level: int) -> None:
        self._level = level
        self.sizes: list[int] = []

    def level(self) -> int:
        return self._level

    def timed(self, level: int, size: int, shrink: Callable[[], bytes]) -> bytes:
        assert level == self._level
        self.sizes.append(size)
        return shrink()


def packed_at(level: int | None) -> int:
    rng = random.Random(7)
    words = [bytes(rng.choices(range(97, 123), k=rng.randint(2, 9))) for _ in range(2000)]
    text = b" ".join(rng.choices(words, k=60_000))
    packs: list[SealedPack] = []

    def at_once(task: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(task())
        return done

    told = None if level is None else _Told(level)
    packer = Packer(pack_format(), at_once, lambda n: bytes(n), packs.append, levels=told)
    packer.add(ObjectKind.BLOB, bytes(32), text)
    packer.finish()
    assert told is None or told.sizes == [len(text)]
    return sum(s.stored_bytes for p in packs for s in p.segments)


def test_a_packer_compresses_at_the_level_that_it_is_told() -> None:
    assert packed_at(9) < packed_at(None) == packed_at(3)


class _Runner:
    """Runs work at once. A pack is stored when `answer` is called, or at once."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once
        self.futures: list[Future[Any]] = []

    def submit_work(self, task: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(task())
        return done

    def start(self, stored: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.append(future)
        if self.at_once:
            future.set_result(stored)
        return future


class _Transfer:
    """What `Upload` asks of a transfer: three lines of 1 MB/s, two copies, packs that are stored as they are."""

    def __init__(self) -> None:
        self.estimates = measured(MB)
        self.placement = SimpleNamespace(targets=[SimpleNamespace(backend_id=n.encode()) for n in LINES], copies=2)
        self.places = {n.encode(): SimpleNamespace(name=n) for n in LINES}

    def upload(self, pack: SealedPack, generation: int, *, least: int | None) -> Stored:
        return Stored(record_of(pack, generation), ("a", "b"), 2, elsewhere=False)


def levels_of(monkeypatch: pytest.MonkeyPatch, *, at_once: bool) -> list[int]:
    """The levels of the segments of an upload of four packs, where packs are stored before the next comes, or after."""
    monkeypatch.setattr("metasync.transfer.upload.Balance", lambda *_: SimpleNamespace(matters=False))
    seen: list[int] = []
    form = replace(pack_format(), segment_bytes=4096, pack_bytes=8192)
    real = Levels.level  # counts what `fell_behind` asks, too: it only goes down
    runner: Any = _Runner(at_once)
    monkeypatch.setattr(Levels, "level", lambda self: seen.append(real(self)) or seen[-1])
    upload = Upload(
        cast(Any, _Transfer()),
        form,
        1,
        runner=runner,
        listener=lambda _: None,
        entropy=bytes,
        clock=Clock(),
        begin=None,
    )
    rng = random.Random(3)
    for _ in range(8):
        upload.add(ObjectKind.BLOB, rng.randbytes(32), rng.randbytes(4096))
    return seen


def test_an_upload_compresses_harder_while_its_lines_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels_of(monkeypatch, at_once=False) == [9] * 8


def test_an_upload_that_keeps_its_lines_waiting_goes_down_to_the_agreed_level(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = levels_of(monkeypatch, at_once=True)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 9
    assert seen[-1] < 9
