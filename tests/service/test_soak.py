"""Four devices are kept in step through hours of edits, outages and crashes; `make soak HOURS=24` for longer."""

from __future__ import annotations

import os
import random

import pytest
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
        assert soak.edits >= 4
    finally:
        soak.end()
