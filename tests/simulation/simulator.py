"""`python -m simulation.simulator`: many simulations on all cores (`make simulate`, docs/design/simulation.md).

    --seeds 300 --first 1    so many seeds, from this one on
    --longer                 without it four plans in five are brief
    --changing               the backends are changed twenty times and more; without it this is done beside one in fifty
    --unwiped                the same where no backend is emptied: a seed with fewer than twenty changes is a failure
    --replay FILE            the plans of a file instead, one JSON document per line
    --show SEED              one seed, with its trace (--show SEED --longer, --show SEED --changing)
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
from typing import Final, Literal

from simulation import Outcome, Plan, Play, make_plan, mutants, mutants_agreed, mutants_stocks, mutants_trust  # noqa: F401  # for theirs
from simulation.many_changes import CHANGES_LEAST, make_changing_plan
from simulation.shrink import decode_plan, encode_plan, shrunk

Kind = Literal["mixed", "longer", "changing", "unwiped"]
"""Of plans: brief ones and longer ones, longer ones alone, or those that change the backends again and again, with
backends that are emptied or without."""
LONGER_EVERY: Final = 5  # seeds
CHANGING_EVERY: Final = 50  # seeds of a batch, of which one has a changing plan beside its own
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
    "twenty changes in a row",
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
    "insider: close",
    "insider: spoilt",
    "insider: list",
    "insider: moved",
    "recovered without a device",
    "void value",
    "majority lost",
    "majority lost again",
    "another era begun",
    "recovered",
    "invited",
    "invitation opened",
    "joined by an invitation",
    "invitation taken back",
    "told that an invitation was used or ended",
    "machine gone for good",
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


def plan_of(seed: int, kind: Kind = "mixed") -> Plan:
    """The plan of a seed in a batch: brief, but for one in a few seeds, so that both kinds take about as much time."""
    if kind == "changing":
        return make_changing_plan(seed)
    if kind == "unwiped":
        return make_changing_plan(seed, wipes=False)
    return make_plan(seed, brief=kind == "mixed" and seed % LONGER_EVERY != 0)


def cases_of(seeds: Sequence[int], kind: Kind) -> list[tuple[int, Kind]]:
    """What is run for these seeds: a plan of each, and beside some of them a changing one."""
    beside = [seed for seed in seeds if kind == "mixed" and seed % CHANGING_EVERY == 0]
    return [*((seed, kind) for seed in seeds), *((seed, "changing") for seed in beside)]


def _one(case: tuple[int, Kind]) -> tuple[Kind, Outcome]:
    seed, kind = case
    outcome = simulated(plan_of(seed, kind))
    agreed = outcome.counts["mapping changed after a push"]
    outcome.counts["twenty changes in a row"] += agreed >= CHANGES_LEAST
    return kind, outcome


@dataclass
class Batch:
    """Many seeds' outcomes together."""

    plans: int = 0
    pushes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.plans += 1
        self.pushes += outcome.pushes
        self.counts += outcome.counts
        if outcome.failure:
            self.failures.append(outcome)


def batch(seeds: Sequence[int], jobs: int, kind: Kind) -> Iterator[tuple[Kind, Outcome]]:
    """The outcomes of seeds, in no certain order, each with the kind of its plan."""
    cases = cases_of(seeds, kind)
    if jobs <= 1:
        yield from map(_one, cases)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_one, cases, chunksize=4)


def kind_of(failure: str) -> str:
    """What makes two failures the same one: their first words, without names and numbers."""
    words = [w for w in failure.split() if not any(c.isdigit() for c in w)]
    return " ".join(words[:5])


def made_smaller(plan: Plan, failure: str) -> Plan:
    """The smallest plan found that fails alike."""
    wanted = kind_of(failure)
    return shrunk(plan, lambda p: kind_of(simulated(p).failure) == wanted, SHRINK_RUNS)


def report_failure(outcome: Outcome, keep: Path | None, kind: Kind) -> None:
    """Says all about a failing seed, after running it once more."""
    plan = plan_of(outcome.seed, kind)
    again = simulated(plan)
    how = f" --{kind}" if kind in ("changing", "unwiped") else ""
    say(f"seed {outcome.seed}{how} FAILED: {outcome.failure}")
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


def run_batch(first: int, count: int, jobs: int, keep: Path | None, kind: Kind) -> int:
    """Seeds from `first` on; prints what came of them. 0: all is well."""
    done, few, began = Batch(), list[int](), time.monotonic()
    for of_kind, outcome in batch(range(first, first + count), jobs, kind):
        done.add(outcome)
        if of_kind == "unwiped" and not outcome.counts["twenty changes in a row"]:
            few.append(outcome.seed)
        if outcome.failure:
            report_failure(outcome, keep, of_kind)
    took = time.monotonic() - began
    say(f"{count} seeds from {first}, {done.pushes} versions pushed, {count / took:.1f} seeds per second")
    if done.plans > count:
        say(f"{done.plans - count} changing plans beside them")
    for event, n in sorted(done.counts.items()):
        say(f"  {n:8} {event}")
    missing = [event for event in INTERESTING if not done.counts[event]]
    if missing:
        say(f"never seen: {', '.join(missing)}")
    if done.failures:
        say(f"FAILED: seeds {' '.join(str(o.seed) for o in sorted(done.failures, key=lambda o: o.seed))}")
    if few:
        say(f"FEWER THAN {CHANGES_LEAST} CHANGES: seeds {' '.join(map(str, sorted(few)))}")
    return bool(done.failures or few) or (bool(missing) and count >= ALL_SEEN_FROM)


def replay(file: Path) -> int:
    """Plans that failed once."""
    failed = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("{"):
            outcome = simulated(decode_plan(line))
            failed += bool(outcome.failure)
            say(f"{file.name}:{number}: {outcome.failure or 'well'}")
    return bool(failed)


@dataclass
class _Hunt:
    """How long it took to catch a mutant with one kind of plans. `alike`: what failed without the mutant, too."""

    tried: int = 0
    cpu_s: float = 0.0
    caught: int = 0
    by: str = ""
    alike: str = ""

    @property
    def told(self) -> str:
        if not self.caught:
            return f"{'-':>6} {'-':>7}"
        return f"{self.tried / self.caught:6.0f} {self.cpu_s / self.caught:7.1f}"


def _caught(case: tuple[str, int, bool]) -> tuple[str, str, float, bool]:
    """-> what a mutant violates in a seed, what is wrong in the same plan without it (nothing must be), CPU seconds of
    the run with it, whether the seed's plan can show anything."""
    name, seed, brief = case
    broken = mutants.MUTANTS[name]
    plan = broken.fits(make_plan(seed, brief=brief))
    if plan is None:
        return "", "", 0.0, False
    began = time.process_time()
    with broken.broken():
        failure = simulated(plan).failure
    took = time.process_time() - began
    if broken.beside and broken.beside in failure:
        failure = ""
    return failure, simulated(plan).failure if failure else "", took, True


def has_its_own(name: str) -> bool:
    """Whether a mutant brings a plan of its own, so that the kind of the seed's makes no difference."""
    plans = (mutants.MUTANTS[name].fits(make_plan(seed)) for seed in range(1, 4))
    return any(plan is not None and "scenario" in plan.features for plan in plans)


def hunt(name: str, seeds: Sequence[int], catches: int, jobs: int, *, brief: bool) -> _Hunt:
    """Seeds until they have caught a mutant so many times, or have taken MUTANT_S of a processor for each."""
    out = _Hunt()
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for failure, sound, cpu_s, fits in pool.imap(_caught, [(name, seed, brief) for seed in seeds]):
            out.tried, out.cpu_s = out.tried + fits, out.cpu_s + cpu_s
            if failure and not sound:
                out.caught, out.by = out.caught + 1, out.by or failure
            out.alike = out.alike or sound
            if out.caught >= catches or out.cpu_s > MUTANT_S * catches:
                break
        pool.terminate()
    return out


def run_mutants(names: Sequence[str], first: int, most: int, jobs: int, catches: int = 1) -> int:
    """For each mutant, and each kind of plans: seeds and CPU seconds for a catch. 0: all are caught.

    Seeds are those whose plan can show the mutant at all; the mean, where there is more than one catch.
    """
    missed, total, longer = [], {True: 0.0, False: 0.0}, []
    say(f"{'':22} {'brief plans':>14} {'longer plans':>15}")
    say(f"{'mutant':22} {'seeds':>6} {'CPU s':>7}  {'seeds':>6} {'CPU s':>7}  caught by")
    for name in names:
        own = has_its_own(name)
        found = {brief: hunt(name, range(first, first + most), catches, jobs, brief=brief) for brief in (True, False)
                 if not (own and brief)}  # fmt: skip
        by = next((h.by for h in found.values() if h.by), "")
        alike = next((h.alike for h in found.values() if h.alike), "")
        if not by or alike:
            missed.append(name)
        if not own and not found[True].caught:
            longer.append(name)
        if all(h.caught for h in found.values()) and not own:
            for brief, h in found.items():
                total[brief] += h.cpu_s / h.caught
        first_column = found[True].told if True in found else f"{'a plan of its own':>14}"[:17]
        columns = [first_column, found[False].told]
        say(f"{name:22} {'  '.join(columns)}  {by[:90] or 'NOT CAUGHT'}")
        if alike:
            say(f"{'':22} A PLAN OF IT FAILS WITHOUT IT TOO: {alike[:100]}")
    say(f"{len(names) - len(missed)} of {len(names)} caught" + (f"; not: {', '.join(missed)}" if missed else ""))
    say(f"caught by both kinds: {total[True]:.0f} CPU s with brief plans, {total[False]:.0f} with longer ones")
    say(f"longer plans only: {', '.join(longer) or 'none'}")
    say(f"not built yet, or not reached: {', '.join(mutants.MISSING)}")
    return bool(missed)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulation.simulator", description="Whole clients, simulated.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="file to which failing plans are added")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--longer", action="store_true", help="no brief plans: without it four in five are")
    kinds.add_argument("--changing", action="store_true", help="plans that change the backends again and again")
    kinds.add_argument("--unwiped", action="store_true", help="the same, and no backend is emptied")
    parser.add_argument("--replay", type=Path, help="file of plans to run instead")
    parser.add_argument("--show", type=int, help="one seed, with its trace")
    parser.add_argument("--mutants", nargs="*", help="broken rules to be caught: all, or these")
    parser.add_argument("--catches", type=int, default=1, help="so many times each, for the mean")
    asked = parser.parse_args(words)
    kind: Kind = "longer" if asked.longer else "changing" if asked.changing else "unwiped" if asked.unwiped else "mixed"
    if asked.show is not None:
        return show(plan_of(asked.show, kind))
    if asked.replay is not None:
        return replay(asked.replay)
    if asked.mutants is not None:
        names = asked.mutants or list(mutants.MUTANTS)
        return run_mutants(names, asked.first, min(asked.seeds, MUTANT_SEEDS), asked.jobs, asked.catches)
    return run_batch(asked.first, asked.seeds, asked.jobs, asked.keep, kind)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
