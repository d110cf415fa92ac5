"""One byte appended 1,024 times, at intervals of 0.1 to 10 s; and 2 KB every 200 ms for 1,000 s: CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from daemon.led import led

INTERVALS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0)


def rows(folder: Path, times: int = 1024) -> Iterator[tuple[str, str, str, bool]]:
    for interval_s in INTERVALS_S:
        with led(folder / f"w{interval_s}") as kept:
            before, began = kept.spent(), kept.state.version
            with (kept.folder / "file").open("ab", buffering=0) as file:
                for _ in range(times):
                    file.write(b"a")
                    kept.go_on(interval_s)
            kept.settle()
            spent = kept.since(before)
            told = f"{spent.bytes:,} bytes, {kept.state.version - began} versions, {spent.requests:,} requests"
            bar = "1,000,000" if interval_s == 1.0 else ""
            yield f"a byte each {interval_s} s, {times} times", told, bar, not bar or spent.bytes <= 1_000_000
    with led(folder / "cpu") as kept:
        before = kept.spent()
        with (kept.folder / "file").open("ab", buffering=0) as file:
            for at in range(5_000):
                file.write(b"%d" % (at % 10) * 2048)
                kept.go_on(0.2)
        kept.settle()
        share = kept.since(before).cpu_s / 1000.0
        yield "2 KB each 200 ms for 1,000 s: CPU", f"{share:.2%} of a core", "1 %", share <= 0.01
