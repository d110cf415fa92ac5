"""Four devices are kept in step through hours of edits, outages and crashes; `make soak HOURS=24` for longer."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from real_soak_kit import Device, RealSoak
from soak_kit import Soak
from workspace_kit import Lab


@pytest.mark.parametrize(
    ("hours", "devices"),
    [pytest.param(0.1, 2, id="few", marks=pytest.mark.long), pytest.param(0.5, 3, id="many", marks=pytest.mark.long)],
)
def test_all_are_in_step_at_the_end_and_nothing_is_lost(lab: Lab, hours: float, devices: int) -> None:
    soak = Soak(lab, random.Random(int(os.environ.get("SEED", "1"))), devices)
    soak.begin()
    try:
        soak.run(hours)
        soak.check()
        assert soak.edits.count >= 4
    finally:
        soak.end()


@pytest.mark.long
def test_real_daemons_come_to_the_same_after_a_kill_a_suspension_and_an_unmounted_store(tmp_path: Path) -> None:
    soak = RealSoak(tmp_path, random.Random(1), told=lambda _text: None)
    try:
        soak.begin(devices=2)
        soak.settle()
        for name, by in (("one", Device.kill), ("two", Device.suspend)):
            soak.unmount(name, 1.0)
            soak.stop(soak.devices[1], by, 1.0)
            for _ in range(5):
                soak.edits.on(0)
                soak.edits.on(1)
            soak.bring_back(1.0)
        soak.settle()
        assert (soak.kills, soak.suspensions, soak.unmounts) == (1, 1, 2)
    finally:
        soak.end()
    soak.check()
