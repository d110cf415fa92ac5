"""A download of 5 MB that is written at 10 KB/s and faster: what is sent of it, from its first byte to the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from daemon.led import COPIES, led

SIZE = 5_000_000
RATES = (10_000, 25_000, 100_000, 500_000)


def rows(folder: Path) -> Iterator[tuple[str, str, str, bool]]:
    for rate in RATES:
        rng = random.Random(rate)
        with led(folder / f"w{rate}") as kept:
            before, began = kept.spent(), kept.state.version
            with (kept.folder / "download").open("ab", buffering=0) as file:
                for _ in range(SIZE // rate):
                    file.write(rng.randbytes(rate))
                    kept.go_on(1.0)
            kept.settle()
            spent, most = kept.since(before), 5_500_000 * COPIES * 1.05
            told = f"{spent.bytes / 1e6:.2f} MB in {kept.state.version - began} versions"
            yield f"5 MB at {rate // 1000} KB/s", told, f"{most / 1e6:.2f} MB", spent.bytes <= most
