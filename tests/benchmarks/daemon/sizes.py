"""New files of 1 B to 100 MB, one at a time: what goes over the lines for each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from daemon.led import COPIES, led

SIZES = (1, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


def rows(folder: Path) -> Iterator[tuple[str, str, str, bool]]:
    rng = random.Random(1)
    with led(folder / "w") as kept:
        for size in SIZES:
            before = kept.spent()
            (kept.folder / f"file{size}").write_bytes(rng.randbytes(size))
            kept.settle()
            spent = kept.since(before)
            ratio = spent.bytes / size / COPIES
            if size == 1:
                yield (
                    f"{size:,} B",
                    f"{spent.bytes:,} bytes, {spent.requests} requests",
                    "25,000",
                    spent.bytes <= 25_000,
                )
            elif size >= 1_000_000:
                yield f"{size:,} B", f"{ratio:.3f} x R", "1.05 x R", ratio <= 1.05
            else:
                yield f"{size:,} B", f"{spent.bytes:,} bytes ({ratio:.2f} x R)", "", True
