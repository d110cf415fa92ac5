"""New files of 1 B to 100 MB, one at a time: what goes over the lines for each.

The first one is the workspace's first version, with which a device tells of itself. Small files after it are measured
as the mean of several: now and then a push writes what others begin from, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from daemon.led import COPIES, Led, led

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
ONE_BYTE = 32


def rows(folder: Path) -> Iterator[tuple[str, str, str, bool]]:
    rng = random.Random(1)
    with led(folder / "w") as kept:
        each = [_spent(kept, f"one{n}", b"%d" % (n % 10)) for n in range(1 + ONE_BYTE)]
        first, later = each[0], sorted(each[1:])
        mean = sum(size for size, _ in later) // ONE_BYTE
        yield "1 B, the first version", f"{first[0]:,} bytes, {first[1]} requests", "", True
        spread = f"{later[0][0]:,}, {later[ONE_BYTE // 2][0]:,}, {later[-1][0]:,}"
        yield f"1 B, {ONE_BYTE} after it: mean", f"{mean:,} bytes", "25,000", mean <= 25_000
        yield f"1 B, {ONE_BYTE} after it: least, median, most", f"{spread} bytes", "", True
        for size in SIZES:
            before = kept.spent()
            (kept.folder / f"file{size}").write_bytes(rng.randbytes(size))
            kept.settle()
            spent = kept.since(before)
            ratio = spent.bytes / size / COPIES
            if size >= 1_000_000:
                yield f"{size:,} B", f"{ratio:.3f} x R", "1.05 x R", ratio <= 1.05
            else:
                yield f"{size:,} B", f"{spent.bytes:,} bytes ({ratio:.2f} x R)", "", True


def _spent(kept: Led, name: str, data: bytes) -> tuple[int, int]:
    """Bytes and requests of one new file."""
    before = kept.spent()
    (kept.folder / name).write_bytes(data)
    kept.settle()
    spent = kept.since(before)
    return spent.bytes, spent.requests
