"""Whether a process that pushes again and again stays as it is: memory, threads, descriptors, local database.

    python tests/benchmarks/long_lived.py [--pushes 10000] [--rows 10]

Three folders on a file system in memory, two copies; one file of 1 KB changes before each push. Ends with status 1 if
from the first tenth to the last memory grew by more than RSS_MB_MAX, or threads or descriptors by any.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1])]

from metasync.keys.slots import Cost
from metasync.workspace import Workspace

RSS_MB_MAX = 16.0
FILE_BYTES = 1024
FILES = 50


def rss_mb() -> float:
    """The memory of this process that is in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10)
    options = parser.parse_args()
    os.environ["METASYNC_KEYRING"] = "off"
    top = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    rows: list[tuple[float, int, int]] = []
    with tempfile.TemporaryDirectory(dir=top) as work:
        folder = Path(work) / "folder"
        folder.mkdir()
        urls = [f"file://{work}/{name}?name={name}" for name in "abc"]
        cost = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
        with Workspace.init(folder, name="long", backends=urls, passphrase="a long way to go", kdf=cost).workspace as w:
            print("  pushes    RSS MB  threads  descriptors   database MB   ms a push")
            began, every = time.perf_counter(), max(1, options.pushes // options.rows)
            for n in range(1, options.pushes + 1):
                (folder / f"file-{n % FILES}").write_bytes(os.urandom(FILE_BYTES))
                w.push()
                if n % every == 0:
                    rows.append((rss_mb(), threading.active_count(), descriptors()))
                    size = sum(p.stat().st_size for p in (folder / ".metasync").glob("state.db*")) / 1e6
                    ms = (time.perf_counter() - began) / every * 1000
                    print(
                        f"{n:8} {rows[-1][0]:9.1f} {rows[-1][1]:8} {rows[-1][2]:12} {size:13.2f} {ms:11.1f}", flush=True
                    )
                    began = time.perf_counter()
    first, last = rows[0], rows[-1]
    grew = last[0] - first[0] > RSS_MB_MAX or last[1] > first[1] or last[2] > first[2]
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
