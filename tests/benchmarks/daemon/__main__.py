"""What keeping a folder in step costs: `make bench-daemon`, or `ROWS="appends idle=15000"` for some.

Each module of this folder has a function `rows(folder)` that yields (what, measured, bar, whether it is within). Time
is moved, not waited for: a keeper is led turn by turn on a clock of the bench, so that four hours take seconds, and its
CPU seconds are those of its turns. Bytes are those of objects both ways, at three stores in memory with two copies, and
HTTP_BYTES for each request: an estimate of what a request and its answer are beside the object. `commands`, `delay` and
`six` are real daemons on the clock of the wall, the last two on servers (`tests/servers/versitygw.sh`, `mosquitto.sh`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / name) for name in ("benchmarks", "kits", "servers")]
MODULES = ("sizes", "appends", "download", "log", "curves", "walk", "idle", "commands", "delay", "six")


def main() -> int:
    missed = 0
    for name in sys.argv[1:] or MODULES:
        what, _, number = name.partition("=")
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            options = (int(number),) if number else ()
            for row, measured, bar, within in import_module(f"daemon.{what}").rows(Path(folder), *options):
                print(f"{what:8} {row}: {measured}{f' (bar: {bar})' if bar else ''}{'' if within else '  MISSED'}")
                sys.stdout.flush()
                missed += not within
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
