"""The fault campaign beside its bar: rounds in which as many backends are emptied or damaged as is borne.

1,000 rounds on virtual time, four devices pushing, and a twentieth as many on real processes and folders: what `make
campaign` runs (`simulation.campaigns`). Another number by ROWS="faults=100".
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 1_000
REAL_SHARE = 20  # one round on real processes for so many
Row = tuple[str, str, str, bool]
_ROUNDS = re.compile(r"(\d+) (simulated rounds|rounds on real processes), .*; (\d+) (?:campaigns )?failed")


def rows(folder: Path, rounds: int = ROUNDS) -> Iterator[Row]:
    """Yields (what, measured, bar, whether it is within)."""
    tests, real = Path(__file__).parents[2], max(1, rounds // REAL_SHARE)
    argv = [sys.executable, "-m", "simulation.campaigns", "--rounds", str(rounds), "--real", str(real)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)]), "TMPDIR": str(folder)}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=False)
    wanted = {"simulated rounds": rounds, "rounds on real processes": real}
    for number, what, failed in _ROUNDS.findall(done.stdout):
        within = failed == "0" and int(number) >= wanted[what]
        yield what, f"{number}, {failed} campaigns failed", f"{wanted[what]}, nothing lost, all named", within
    yield "all of it", "as wanted" if done.returncode == 0 else done.stdout[-2000:], "", done.returncode == 0
