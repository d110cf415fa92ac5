"""What travelled: counted below all that repeats calls, those that fail too."""

from __future__ import annotations

import pytest

from metasync.backends.memory import MemoryBackend
from metasync.backends.wrappers.travelled import Counting
from metasync.errors import NotFoundError
from metasync.events import Travelled
from metasync.runtime.travelled import COUNTER, Counter


def test_calls_and_bytes_of_objects_are_counted() -> None:
    store, before = Counting(MemoryBackend()), COUNTER.total
    store.put("a", b"x" * 10)
    assert store.create("b", b"y" * 5)
    assert store.get("a", max_bytes=100) == b"x" * 10
    with pytest.raises(NotFoundError):
        store.get("none", max_bytes=100)
    assert store.stat("a") == 10
    assert COUNTER.total.since(before) == Travelled(requests=5, up_bytes=15, down_bytes=10)


def test_a_workspace_counts_its_own_beside_the_process() -> None:
    own, before = Counter(), COUNTER.total
    mine, others = Counting(MemoryBackend(), own), Counting(MemoryBackend(), Counter())
    mine.put("a", b"x" * 10)
    others.put("a", b"x" * 7)
    assert own.total == Travelled(requests=1, up_bytes=10)
    assert COUNTER.total.since(before) == Travelled(requests=2, up_bytes=17)
