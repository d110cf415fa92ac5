"""`python -m simulation.simulator`: many simulations on all cores (`make simulate`, docs/design/simulation.md).

    --seeds 300 --first 1    so many seeds, from this one on
    --replay FILE            the plans of a file instead, one JSON document per line
    --show SEED              one seed, with its trace
    --mutants                for each broken rule: how many seeds until it is caught

Exits with 1 and the seed when something was violated. A failing seed is run once more (another trace would be a defect
of the simulator), made smaller, and added to the file of `--keep`.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulation import Outcome, Plan, Play, make_plan, mutants, mutants_agreed, mutants_stocks, mutants_trust  # noqa: F401  # for theirs
from simulation.shrink import decode_plan, encode_plan, shrunk

SHRINK_RUNS: Final = 400
MUTANT_SEEDS: Final = 2_000
MUTANT_S: Final = 240.0  # and so many seconds of a processor, for one mutant
ALL_SEEN_FROM: Final = 2_000  # from so many seeds on, an interesting event that never came is a failure
TRACE_LINES: Final = 400

INTERESTING: Final = (
    "owner round",
    "decided in a prepared round",
    "value helped by another",
    "rivals in one version",
    "lost reply landed",
    "landed after the time-out",
    "landed after its sender's death",
    "request landed twice",
    "answer damaged",
    "full",
    "ballast given up",
    "wiped",
    "crash",
    "unsynced writes lost",
    "finished a checkout that had been interrupted",
    "found again",
    "edited meanwhile",
    "long sleep",
    "down for days",
    "disk restored",
    "disk copied",
    "conflict",
    "merged by lines",
    "prepared ahead",
    "lie told",
    "liar named",
    "fork named",
    "block vote",
    "decided with block votes",
    "reconfigured",
    "reconfigured under contention",
    "rebalance: ok",
    "repair: ok",
    "garbage deleted",
    "versions dropped",
    "packed anew",
    "tagged",
    "move ended",
    "changes merged",
    "surplus copy deleted",
    "removed backend emptied",
    "linked",
    "fence met",
    "rotated",
    "revoked",
    "revoked told",
    "stolen device strikes",
    "void entry",
    "floor made",
    "log entry deleted",
    "floor jump",
    "pounce: suspend",
    "insider: decided",
    "insider: accept",
    "insider: contrary",
    "insider: prepare",
    "insider: void",
    "insider: version",
    "insider: head",
    "insider: claim",
    "insider: apart",
    "insider: hint",
    "insider: floor",
    "insider: garbage",
    "insider: last",
    "insider: unread",
    "skipped",
    "insider: end",
    "recovered without a device",
    "void value",
    "majority lost",
    "recovered",
    "era begun",
    "era carries a value",
    "era leaves versions behind",
)
"""Events that a batch must have seen, or it has not tried what it is there for."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def simulated(plan: Plan) -> Outcome:
    """One plan, run."""
    return Play(plan).run()


def _one(seed: int) -> Outcome:
    return simulated(make_plan(seed))


@dataclass
class Batch:
    """Many seeds' outcomes together."""

    seeds: int = 0
    pushes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.pushes += outcome.pushes
        self.counts += outcome.counts
        if outcome.failure:
            self.failures.append(outcome)


def batch(seeds: Sequence[int], jobs: int) -> Iterator[Outcome]:
    """The outcomes of seeds, in no certain order."""
    if jobs <= 1:
        yield from map(_one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_one, seeds, chunksize=4)


def kind_of(failure: str) -> str:
    """What makes two failures the same one: their first words, without names and numbers."""
    words = [w for w in failure.split() if not any(c.isdigit() for c in w)]
    return " ".join(words[:5])


def made_smaller(plan: Plan, failure: str) -> Plan:
    """The smallest plan found that fails alike."""
    wanted = kind_of(failure)
    return shrunk(plan, lambda p: kind_of(simulated(p).failure) == wanted, SHRINK_RUNS)


def report_failure(outcome: Outcome, keep: Path | None) -> None:
    """Says all about a failing seed, after running it once more."""
    plan = make_plan(outcome.seed)
    again = simulated(plan)
    say(f"seed {outcome.seed} FAILED: {outcome.failure}")
    if (again.trace, again.failure) != (outcome.trace, outcome.failure):
        say(f"  NOT DETERMINISTIC: trace {outcome.trace}, then {again.trace}: {again.failure}")
        return
    small = made_smaller(plan, outcome.failure)
    steps = sum(len(c.steps) for c in small.clients)
    say(f"  again the same; smallest found: {len(small.clients)} clients, {steps} steps, {len(small.faults)} faults")
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        with keep.open("a", encoding="utf-8") as f:
            f.write(encode_plan(small) + "\n")
        say(f"  kept in {keep}")


def show(plan: Plan) -> int:
    """One plan with its trace."""
    outcome = Play(plan, keep_log=True).run()
    for line in outcome.log[-TRACE_LINES:]:
        say(line[:200])
    say(f"features: {', '.join(plan.features)}")
    say(f"trace {outcome.trace}, {outcome.pushes} pushes: {outcome.failure or 'all is well'}")
    return bool(outcome.failure)


def run_batch(first: int, count: int, jobs: int, keep: Path | None) -> int:
    """Seeds from `first` on; prints what came of them. 0: all is well."""
    done, began = Batch(), time.monotonic()
    for outcome in batch(range(first, first + count), jobs):
        done.add(outcome)
        if outcome.failure:
            report_failure(outcome, keep)
    took = time.monotonic() - began
    say(f"{done.seeds} seeds from {first}, {done.pushes} versions pushed, {done.seeds / took:.1f} seeds per second")
    for event, n in sorted(done.counts.items()):
        say(f"  {n:8} {event}")
    missing = [event for event in INTERESTING if not done.counts[event]]
    if missing:
        say(f"never seen: {', '.join(missing)}")
    if done.failures:
        say(f"FAILED: seeds {' '.join(str(o.seed) for o in sorted(done.failures, key=lambda o: o.seed))}")
    return bool(done.failures) or (bool(missing) and count >= ALL_SEEN_FROM)


def replay(file: Path) -> int:
    """Plans that failed once."""
    failed = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("{"):
            outcome = simulated(decode_plan(line))
            failed += bool(outcome.failure)
            say(f"{file.name}:{number}: {outcome.failure or 'well'}")
    return bool(failed)


def _caught(name_and_seed: tuple[str, int]) -> tuple[str, str, float]:
    """-> what a mutant violates in a seed, what is wrong in the same plan without it (nothing must be), CPU seconds."""
    name, seed = name_and_seed
    began = time.process_time()
    broken = mutants.MUTANTS[name]
    plan = broken.fits(make_plan(seed))
    failure = sound = ""
    if plan is not None:
        with broken.broken():
            failure = simulated(plan).failure
        if broken.beside and broken.beside in failure:
            failure = ""
        if failure:
            sound = simulated(plan).failure
    return failure, sound, time.process_time() - began


def run_mutants(names: Sequence[str], first: int, most: int, jobs: int) -> int:
    """For each mutant, seeds until one shows it: at most so many, and for MUTANT_S. 0: all are caught."""
    missed = []
    say(f"{'mutant':20} {'seeds':>5} {'CPU s':>5}  caught by")
    for name in names:
        tried, took, caught, alike = 0, 0.0, "", ""
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            for failure, sound, cpu_s in pool.imap(_caught, [(name, s) for s in range(first, first + most)]):
                tried, took = tried + 1, took + cpu_s
                caught, alike = "" if sound else failure, alike or sound
                if caught or took > MUTANT_S:
                    break
            pool.terminate()
        if not caught or alike:
            missed.append(name)
        say(f"{name:20} {tried:5} {took:5.0f}  {caught[:100] or 'NOT CAUGHT'}")
        if alike:
            say(f"{'':20} A PLAN OF IT FAILS WITHOUT IT TOO: {alike[:100]}")
    say(f"{len(names) - len(missed)} of {len(names)} caught" + (f"; not: {', '.join(missed)}" if missed else ""))
    say(f"not built yet, or not reached: {', '.join(mutants.MISSING)}")
    return bool(missed)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulation.simulator", description="Whole clients, simulated.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="file to which failing plans are added")
    parser.add_argument("--replay", type=Path, help="file of plans to run instead")
    parser.add_argument("--show", type=int, help="one seed, with its trace")
    parser.add_argument("--mutants", nargs="*", help="broken rules to be caught: all, or these")
    asked = parser.parse_args(words)
    if asked.show is not None:
        return show(make_plan(asked.show))
    if asked.replay is not None:
        return replay(asked.replay)
    if asked.mutants is not None:
        names = asked.mutants or list(mutants.MUTANTS)
        return run_mutants(names, asked.first, min(asked.seeds, MUTANT_SEEDS), asked.jobs)
    return run_batch(asked.first, asked.seeds, asked.jobs, asked.keep)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
