"""The settings: what `daemon.delta` costs for files that come one after the other, and `daemon.quiet` for saves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from daemon.led import led


def rows(folder: Path) -> Iterator[tuple[str, str, str, bool]]:
    for kilobytes in (50, 100, 250, 500, 1000, 2000):
        yield _many(folder / f"c{kilobytes}", {"daemon.delta": f"{kilobytes}k"}, f"c = {kilobytes} KB")
    for seconds in (1, 2, 3, 5, 7, 10, 15):
        yield _some(folder / f"t{seconds}", {"daemon.quiet": f"{seconds}s"}, f"t = {seconds} s")


def _many(folder: Path, settings: dict[str, str], what: str) -> tuple[str, str, str, bool]:
    """A photo of 20 KB each half a second, 200 times."""
    rng = random.Random(3)
    with led(folder, settings) as kept:
        before, began = kept.spent(), kept.state.version
        for at in range(200):
            (kept.folder / f"{at}").write_bytes(rng.randbytes(20_000))
            kept.go_on(0.5)
        kept.settle()
        spent = kept.since(before)
        told = f"{spent.bytes / 1e6:.2f} MB, {kept.state.version - began} versions, {spent.requests} requests"
        return f"{what}: 20 KB each 0.5 s, 200 times", told, "", True


def _some(folder: Path, settings: dict[str, str], what: str) -> tuple[str, str, str, bool]:
    """A save of 10 KB at random times, four seconds apart at the mean, 150 times."""
    rng = random.Random(4)
    data = bytearray(rng.randbytes(10_000))
    with led(folder, settings) as kept:
        before, began = kept.spent(), kept.state.version
        for _ in range(150):
            data[rng.randrange(len(data))] ^= 1
            (kept.folder / "file").write_bytes(bytes(data))
            kept.go_on(rng.expovariate(1 / 4))
        kept.settle()
        spent = kept.since(before)
        told = f"{spent.bytes / 1e6:.2f} MB, {kept.state.version - began} versions, {spent.requests} requests"
        return f"{what}: a save each 4 s, 150 times", told, "", True
