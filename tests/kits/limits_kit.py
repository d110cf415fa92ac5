"""A clock for limits, and a governor on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from metasync.local import settings as kept
from metasync.local.settings import Governor

# --- the governor


class Times:
    """A clock that is set by hand; noon, on the wall."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return NOON + self.now


NOON = time.mktime((2026, 6, 1, 12, 0, 0, 0, 0, -1))


def governor(tmp_path: Path, times: Times, **more: Any) -> Governor:
    return Governor(tmp_path / "s.json", clock=times, wall=times.wall, **more)


def passed(g: Governor, times: Times, backend: str, sizes: list[int], *, up: bool = True) -> float:
    """How long it takes until all of these have begun."""
    began = times.now
    for size in sizes:
        while (wait := g.ask(backend, up=up, size_bytes=size)) > 0:
            assert wait <= kept.LOOK_S
            times.now += wait
    return times.now - began
