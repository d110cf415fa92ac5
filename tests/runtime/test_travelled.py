"""What travelled: counted below all that repeats calls, those that fail too."""

from __future__ import annotations

import pytest

from metasync.backends.memory import MemoryBackend
from metasync.backends.wrappers.travelled import Counting
from metasync.errors import NotFoundError
from metasync.runtime.travelled import COUNTER, Travelled


def test_calls_and_bytes_of_objects_are_counted() -> None:
    store, before = Counting(MemoryBackend()), COUNTER.total
    store.put("a", b"x" * 10)
    assert store.create("b", b"y" * 5)
    assert store.get("a", max_bytes=100) == b"x" * 10
    with pytest.raises(NotFoundError):
        store.get("none", max_bytes=100)
    assert store.stat("a") == 10
    assert COUNTER.total.since(before) == Travelled(requests=5, up_bytes=15, down_bytes=10)
