"""New files of 1 B, 1 MB and 10 MB over lines of 5 MB/s and 80 ms, one at a time: when each is agreed, its bytes.

The delay counts from the batch time on: from QUIET_S after the file was written, or from the beginning of its push if
that is sooner. All that the proxy saw counts, from the write to SETTLE_S after the version, looks for news included.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import s3
from daemon import far_kept, real
from daemon.led import COPIES

SIZES = (1, 1_000_000, 10_000_000)
SETTLE_S = 3.0
MOST_S = 1.0
ONE_BYTE = 16  # now and then a push writes what others begin from, too


def rows(folder: Path, some: int = 5) -> Iterator[tuple[str, str, str, bool]]:
    if s3.find_binary() is None:
        yield "over lines of 5 MB/s", s3.missing(), "", False
        return
    rng = random.Random(5)
    with far_kept.stores(folder) as (far, urls):
        [device] = real.made(folder, 1, urls)
        with real.running([device]), real.client(device) as line:

            def version() -> int:
                return line.status().workspaces[0].version

            for size in SIZES:
                delays, sizes = [], []
                times = ONE_BYTE if size == 1 else some
                for at in range(times + 1):
                    before, began, was = far_kept.wire_bytes(far), 0.0, version()
                    (device.folder / f"f{size}-{at}").write_bytes(rng.randbytes(size))
                    written = time.time()
                    while (state := line.status().workspaces[0]).version == was:
                        if state.doing == "pushing" and not began:
                            began = state.since_s
                        time.sleep(real.STEP_S)
                    assert state.pushed_s is not None
                    delays.append(state.pushed_s - min(began or state.pushed_s, written + far_kept.QUIET_S))
                    time.sleep(SETTLE_S)
                    sizes.append(far_kept.wire_bytes(far) - before)
                del delays[0], sizes[0]  # the first one learns what the others know
                delay, mean = statistics.median(delays), sum(sizes) // times
                told = f"{min(delays):.2f}, {delay:.2f}, {max(delays):.2f} s ({real.load()})"
                bar = f"{MOST_S} s" if size == 1_000_000 else ""
                yield f"{size:,} B, after the batch time: least, median, most", told, bar, not bar or delay <= MOST_S
                if size == 1:
                    yield f"{size:,} B at the proxy, mean of {times}", f"{mean:,} bytes", "25,000", mean <= 25_000
                else:
                    ratio = mean / size / COPIES
                    yield f"{size:,} B at the proxy", f"{ratio:.3f} x R", "1.05 x R", ratio <= 1.05
