"""Sizes, and the times that go with them, which several rooms must agree on."""

from __future__ import annotations

from typing import Final

SMALL_BYTES_MAX: Final = 256 << 10
"""A request that moves more than this is a large one: it takes a line's time, where a small one takes a round trip."""

CALLS_MAX: Final = 32
"""On one backend at once; as many that hang are left behind."""

QUEUED_MAX: Final = 10_000
"""Calls that wait for one backend, and pieces of work that wait; beyond, they fail at once."""

LARGE_TIMEOUT_S: Final = 30.0
SLOWEST_BYTES_PER_S: Final = 64_000
"""A line slower than this is given up on."""


def patience_s(size_bytes: int) -> float:
    """How many seconds one request that moves so many bytes may take."""
    return LARGE_TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S
