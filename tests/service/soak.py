"""Keeps devices in step, and fails where they do not end in step, or with anything lost (`make soak`).

python tests/service/soak.py --hours 24 --seed 1    four keepers in this process, on a clock that is moved
python tests/service/soak.py --real 20 --seed 1     three daemons in processes of their own, for 20 real minutes
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "kits"))

say = partial(print, flush=True)


def simulated(folder: Path, hours: float, seed: int) -> None:
    from soak_kit import Soak
    from workspace_kit import Lab

    with pytest.MonkeyPatch.context() as patch:
        soak = Soak(Lab(folder, patch), random.Random(seed), told=say)
        began = time.process_time()
        soak.begin()
        try:
            soak.run(hours)
            soak.check()
        finally:
            soak.end()
    versions = max(keeper.state().version for keeper in soak.keepers)
    say(
        f"seed {seed}: {hours:g} h, {soak.edits.count} edits, {soak.outages} outages, {soak.crashes} crashes, "
        f"{versions} versions, {time.process_time() - began:.0f} CPU s: all in step, nothing lost, no conflict"
    )


def real(folder: Path, minutes: float, seed: int) -> None:
    from real_soak_kit import RealSoak

    soak = RealSoak(folder, random.Random(seed), told=say)
    try:
        soak.begin()
        soak.run(minutes)
        seconds = soak.settle()
        soak.tell_taken("in step")
        versions = max(state.version for device in soak.devices if (state := device.state()))
    finally:
        soak.end()
    soak.check()
    mishaps = f"{soak.kills} kills, {soak.suspensions} suspensions, {soak.unmounts} stores away"
    say(
        f"seed {seed}: {minutes:g} minutes, {soak.edits.count} edits, {mishaps}, {versions} versions: all in step "
        f"{seconds:.0f} s after the last of it, nothing lost, no conflict"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--real", type=float, default=0.0, help="minutes")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        if chosen.real:
            real(folder, chosen.real, chosen.seed)
        else:
            simulated(folder, chosen.hours, chosen.seed)
    except BaseException:
        say(f"what is left of seed {chosen.seed} lies in {folder}")
        raise
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
