"""A process that lives long keeps little memory that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metasync import daemon
from metasync.local import memory


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What the C library is asked for."""
    asked: list[tuple[int, ...]] = []
    libc = SimpleNamespace(mallopt=lambda *of: asked.append(of), malloc_trim=lambda *of: asked.append(of))
    monkeypatch.setattr(memory, "_libc", lambda: libc)
    return asked


def test_few_pools_and_what_is_free_given_back(asked: list[tuple[int, ...]]) -> None:
    memory.keep_little()
    memory.give_back()
    assert asked == [(-8, memory.POOLS), (0,)]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_libc", SimpleNamespace)
    memory.keep_little()
    memory.give_back()


def test_the_real_one_takes_both() -> None:
    memory.give_back()
    memory.give_back()


def test_a_daemon_gives_back_what_work_left_free_and_does_nothing_in_quiet(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[int, ...]]
) -> None:
    used: Iterator[float] = iter([5.0, 5.01, 5.05, 5.3, 5.31])  # each look; once more where it gave back
    monkeypatch.setattr(daemon, "time", SimpleNamespace(process_time=lambda: next(used)))
    waits = iter([False, False, False, True])
    told: list[int] = []

    def wait(longest_s: float) -> bool:
        assert longest_s == daemon.GIVE_BACK_S
        told.append(len(asked))
        return next(waits)

    daemon._rest(cast("Any", SimpleNamespace(wait=wait)))
    assert told == [0, 1, 1, 2]


def test_the_end_is_waited_for_so_long_and_stays_told() -> None:
    ends = daemon._End()
    assert not ends.wait(0.0)
    ends.set()
    assert ends.wait(60.0)
    assert ends.wait(60.0)
