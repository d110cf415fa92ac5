"""Commands beside a busy daemon: what each waits for while the daemon pulls very many small files, on the clock.

A real daemon, asked over its socket as `push` and `status` ask it. The next command comes PAUSE_S after the one before
was answered, so that the pull gets on. Beside the clock stands the CPU of the daemon while a command waited: the clock
of a machine that others use tells little. The change of the folder itself, at the end of the pull, is among the waits.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from daemon import real

from metasync.workspace import Workspace

PAUSE_S = 0.3
MOST_S = 1.0
SMALL_BYTES = 200


def rows(folder: Path, count: int = 20_000) -> Iterator[tuple[str, str, str, bool]]:
    urls = [f"file://{folder}/{name}?name={name}" for name in ("one", "two", "three")]
    busy, other = real.made(folder, 2, urls)
    with real.running([busy]):
        version = _filled(other.folder, count)
        waits: list[tuple[float, float]] = []
        statuses: list[float] = []
        with real.client(busy) as line:
            began_s = real.cpu_s(busy)
            line.sync_now(busy.folder)
            while line.status().workspaces[0].version < version:
                time.sleep(PAUSE_S)
                before, at = real.cpu_s(busy), time.monotonic()
                line.push(busy.folder, message="", dry_run=False, force=False, durability=None)
                waits.append((time.monotonic() - at, real.cpu_s(busy) - before))
                at = time.monotonic()
                line.status()
                statuses.append(time.monotonic() - at)
            used_s = real.cpu_s(busy) - began_s
    if not waits:
        yield f"no command came in a pull of {count:,} files: more are needed", "", "", False
        return
    clock, cpu = sorted(wait for wait, _ in waits), sorted(used for _, used in waits)
    what = f"{len(waits)} commands beside a pull of {count:,} files"
    told = f"{clock[0]:.2f}, {statistics.median(clock):.2f}, {clock[-1]:.2f} s ({real.load()})"
    yield f"{what}, on the clock: least, median, most", told, f"{MOST_S} s", clock[-1] <= MOST_S
    told = f"{cpu[0]:.2f}, {statistics.median(cpu):.2f}, {cpu[-1]:.2f} s"
    yield f"{what}, the daemon's CPU meanwhile", told, f"{MOST_S} s", cpu[-1] <= MOST_S
    yield f"{what}, `status`: most", f"{max(statuses):.2f} s", f"{MOST_S} s", max(statuses) <= MOST_S
    yield f"{what}, CPU of the daemon in all", f"{used_s:.1f} s", "", True


def _filled(folder: Path, count: int) -> int:
    """Has the other device push so many small files. -> the version."""
    for at in range(count):
        if at % 1000 == 0:
            (folder / f"d{at // 1000:03}").mkdir()
        (folder / f"d{at // 1000:03}" / f"{at % 1000:03}").write_bytes(b"%d " % at + os.urandom(SMALL_BYTES))
    with Workspace.open(folder) as w:
        pushed = w.push()
    assert pushed.version is not None
    return pushed.version
