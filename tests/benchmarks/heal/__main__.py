"""Moving, repair, scrub and collection beside their bars: `make bench-heal`, or `ROWS="gc" make bench-heal` for some.

Each module of this folder has a function `rows(folder)` that yields (what, measured, bar, whether it is within).
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
MODULES = ("index", "moving", "scrub", "check", "gc", "faults")


def main() -> int:
    wanted = sys.argv[1:] or [name for name in MODULES if find_spec(f"heal.{name}") is not None]
    missed = 0
    for name in wanted:
        what, _, number = name.partition("=")
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
            options = (int(number),) if number else ()
            for row, measured, bar, within in import_module(f"heal.{what}").rows(Path(folder), *options):
                print(f"{what:8} {row}: {measured}{f' (bar: {bar})' if bar else ''}{'' if within else '  MISSED'}")
                sys.stdout.flush()
                missed += not within
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
