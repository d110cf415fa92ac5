"""Nothing happens: CPU, memory and requests of an hour, at so many files."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

from daemon.led import led


def rows(folder: Path, count: int = 15_000) -> Iterator[tuple[str, str, str, bool]]:
    files = {f"{at // 10_000:03}/{at // 100 % 100:02}/{at % 100:02}": b"%d" % at for at in range(count)}
    with led(folder / "w", files=files) as kept:
        del files
        kept.go_on(3700.0)
        gc.collect()
        before, turns = kept.spent(), kept.turns
        kept.go_on(3600.0)
        spent = kept.since(before)
        yield f"{count:,} files, an hour: CPU", f"{spent.cpu_s / 3600:.3%} of a core", "0.2 %", spent.cpu_s < 7.2
        yield f"{count:,} files, an hour: requests", f"{spent.requests}", "60", spent.requests <= 60
        yield f"{count:,} files, an hour: turns", f"{kept.turns - turns}", "", True
        most = 60 if count <= 15_000 else 300
        resident = _resident_mb()
        yield f"{count:,} files: memory (with the stores, which are in it)", f"{resident} MB", f"{most} MB", True


def _resident_mb() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmRSS"))
