"""Keeps four devices in step for so many simulated hours: `python tests/service/soak.py HOURS SEED` (`make soak`)."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "kits"))


def main() -> int:
    import random

    from soak_kit import Soak
    from workspace_kit import Lab

    hours, seed = float(sys.argv[1]), int(sys.argv[2])
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        soak = Soak(Lab(Path(folder), patch), random.Random(seed), told=lambda text: print(text, flush=True))
        began = time.process_time()
        soak.begin()
        try:
            soak.run(hours)
            soak.check()
        finally:
            soak.end()
        versions = max(keeper.state().version for keeper in soak.keepers)
        print(
            f"seed {seed}: {hours:g} h, {soak.edits} edits, {soak.outages} outages, {soak.crashes} crashes, "
            f"{versions} versions, {time.process_time() - began:.0f} CPU s: all in step, nothing lost, no conflict"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
