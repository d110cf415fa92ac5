"""How the tests run the conformance kit on a backend: in full, or small where the full race adds nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metasync.testing.contract import STANDARD, Check, Scale, Store, try_check

FULL = replace(STANDARD, race_read_every=4, big_again=10)
"""As on an account, with more reading: on this machine that costs nothing."""

SMALL = Scale(
    name="quick",
    race_names=60,
    race_turns=(8,),
    race_read_every=1,
    race_final_reads=60,
    listed_names=100,
    big_bytes=1 << 18,
    big_again=1,
    middle_bytes=1 << 18,
    middle_races=2,
    kills=3,
    versions=8,
    rounds=8,
    patience_s=0.3,
    waits_s=(),
)
"""The same checks, fewer and smaller: for stores in memory."""


def passes(check: Check, store: Store, scale: Scale = STANDARD, folder: str = "scratch") -> None:
    """Carries a check out, and fails or skips the test with what it says."""
    outcome = try_check(check, store, folder, scale=scale)
    if outcome.result == "skipped":
        pytest.skip(outcome.why)
    assert outcome.result != "failed", outcome.why
