"""`python -m simulation.campaigns`: the fault campaign, simulated and on real processes (`make campaign`).

    --rounds 1000   so many simulated rounds (`campaign`), on all cores
    --real 50       so many rounds on real processes and folders (`real_campaign`), after these
    --first 1       from this workspace on

Exits with 1 when something was lost, or a backend that was hit not named.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from simulation.campaign import ROUNDS, Campaign, make_campaign
from simulation.play import Outcome
from simulation.real_campaign import REAL_ROUNDS, RealCampaign
from simulation.simulator import say


def simulated(first: int, rounds: int, number: int) -> Outcome:
    """The workspace of that number, with its share of the rounds."""
    return Campaign(make_campaign(first + number), min(ROUNDS, rounds - number * ROUNDS)).run()


def run_simulated(first: int, rounds: int, jobs: int) -> bool:
    """-> whether all was well."""
    counts, failed, began, cpu_s = Counter[str](), 0, time.monotonic(), os.times()
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=20) as pool:
        for outcome in pool.imap_unordered(partial(simulated, first, rounds), range(-(-rounds // ROUNDS))):
            counts += outcome.counts
            if outcome.failure:
                failed += 1
                say(f"campaign {outcome.seed} FAILED: {outcome.failure}")
    took, now = time.monotonic() - began, os.times()
    cpu = now.children_user + now.children_system - cpu_s.children_user - cpu_s.children_system
    say(f"{counts['campaign: round']} simulated rounds, {took:.0f} s, {cpu:.0f} s of CPU; {failed} campaigns failed")
    _tell(counts)
    return not failed and counts["campaign: round"] >= rounds


def run_real(first: int, rounds: int) -> bool:
    """-> whether all was well."""
    counts, failed, began = Counter[str](), 0, time.monotonic()
    for number in range(-(-rounds // REAL_ROUNDS)):
        with tempfile.TemporaryDirectory(prefix="metasync-campaign-") as directory:
            campaign = RealCampaign(Path(directory), first + number, min(REAL_ROUNDS, rounds - number * REAL_ROUNDS))
            try:
                campaign.run()
            except AssertionError as e:
                failed += 1
                say(f"real campaign {first + number} FAILED: {e}")
            counts += campaign.counts
            say(f"{counts['campaign: round']} rounds on real processes so far")
    say(f"{counts['campaign: round']} rounds on real processes, {time.monotonic() - began:.0f} s; {failed} failed")
    _tell(counts)
    return not failed and counts["campaign: round"] >= rounds


def _tell(counts: Counter[str]) -> None:
    for event, n in sorted(counts.items()):
        if event.startswith(("campaign: ", "push: ", "repair: ", "replace: ")):
            say(f"  {n:8} {event}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulation.campaigns", description="Backends are harmed and made whole.")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--real", type=int, default=50)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(words)
    well = run_simulated(asked.first, asked.rounds, asked.jobs) if asked.rounds else True
    return not ((run_real(asked.first, asked.real) if asked.real else True) and well)


if __name__ == "__main__":
    sys.exit(main())
