"""A log of 5.5 MB that is written over four hours, a line each 2.6 s."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from daemon.led import COPIES, led

SIZE, LINES = 5_500_000, 5_538


def rows(folder: Path, lines: int = LINES) -> Iterator[tuple[str, str, str, bool]]:
    rng, each = random.Random(2), SIZE // LINES
    with led(folder / "w") as kept:
        before, began = kept.spent(), kept.state.version
        with (kept.folder / "log").open("ab", buffering=0) as file:
            for at in range(lines):
                text = b"%08d host program[%d]: " % (at, rng.randrange(9999)) + rng.randbytes(each // 2).hex().encode()
                file.write(text[: each - 1] + b"\n")
                kept.go_on(2.6)
        kept.settle()
        spent, size = kept.since(before), lines * each
        ratio = spent.bytes / size / COPIES
        told = f"{ratio:.2f} x the data x R, {kept.state.version - began} versions, {spent.cpu_s:.1f} CPU s"
        yield f"a log of {size / 1e6:.1f} MB in {lines} lines", told, "2.2", ratio <= 2.2
