"""How evenly a push loads its backends, and how long it takes at best when they are far away.

    python tests/benchmarks/uploads.py [--load photos,kernel] [--work DIR] [--runs 20]

Each tree is pushed for real, to folders, with one copy and with two, on three backends and on five. Of the
packs that come to lie there it is told how much fuller the fullest backend is than the mean; and, with the same sizes
and other names, what it would be with fewer trials for a name (`--runs` of each; one trial is chance).

*Far* is computed, not waited for: packs leave in the order they were made, as much under way as `uploading_bytes_max`
allows, each to its backends at once, on eight connections of 80 ms, which share the 5 MB/s there evenly. *Bound* is the
fullest backend's bytes on its line alone. What a processor does meanwhile is left out: it makes packs several times as
fast. With `durability` 1 the same for the first copies, each on that of its backends which has the least on its way.

Ends with status 1 when a bar is missed: photos on three backends at most 1.05 x the mean on the fullest, and at most
1.1 x the bound far away, with one copy and with two.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import workloads

from metasync.keys.slots import Cost
from metasync.store import balance
from metasync.store.balance import TRIALS_MAX, Balance
from metasync.store.placement import Placement, Target
from metasync.transfer.copies import Stored, Transfer
from metasync.transfer.upload import uploading_bytes_max
from metasync.workspace import Workspace

BACKENDS = (3, 5)
COPIES = (1, 2)
TRIALS = (1, 4, 8, TRIALS_MAX)
LINE_BYTES_PER_S = 5e6
ROUND_TRIP_S = 0.080
CONNECTIONS = 8
EVEN_BAR, FAR_BAR = 1.05, 1.1
DONE_BYTES = 1e-3  # what rounding may leave of a pack


class Pack(NamedTuple):
    """One pack that a push stored: its bytes and the backends that hold it."""

    size: int
    holders: tuple[str, ...]


def pushed(tree: Path, work: Path, backends: int, copies: int) -> tuple[list[Pack], float]:
    """The packs of a real push of this folder in the order they were made; the processor seconds it took."""
    made: dict[int, Pack] = {}
    numbers = itertools.count()
    real = Transfer.upload

    def upload(self: Transfer, *args: Any, **options: Any) -> Iterator[Any]:
        number = next(numbers)
        stored: Stored = yield from real(self, *args, **options)
        made[number] = Pack(stored.record.size, stored.holders)
        return stored

    with tempfile.TemporaryDirectory(dir=work) as at:
        shutil.copytree(tree, f"{at}/tree", copy_function=os.link, symlinks=True)
        urls = [f"file://{at}/b{i}?name=b{i}" for i in range(backends)]
        cheap = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
        report = Workspace.init(
            f"{at}/tree", name="uploads", backends=urls, passphrase="a passphrase", replicas=copies, kdf=cheap
        )
        with report.workspace as w, mock.patch.object(Transfer, "upload", upload):
            cpu = time.process_time()
            w.push()
            return [made[n] for n in sorted(made)], time.process_time() - cpu


def fullest(packs: Sequence[Pack], backends: int) -> tuple[int, float]:
    """The bytes of the fullest backend, and how often the mean that is."""
    loads = dict.fromkeys((f"b{i}" for i in range(backends)), 0)
    for p in packs:
        for holder in p.holders:
            loads[holder] += p.size
    most = max(loads.values())
    return most, most * backends / sum(loads.values())


def chance(sizes: Sequence[int], backends: int, copies: int, trials: int, runs: int) -> tuple[list[float], float]:
    """The fullest over the mean for packs of these sizes, run by run, and how many names were tried for each pack."""
    placement = Placement([Target(bytes([i + 1]) * 16, 1 << 40) for i in range(backends)], copies=copies)
    out, drawn = [], 0
    with mock.patch.object(balance, "TRIALS_MAX", trials):
        for run in range(runs):
            rng = random.Random(run)
            b, loads = Balance(placement), dict.fromkeys((t.backend_id for t in placement.targets), 0)
            for size in sizes:
                names = [rng.randbytes(32) for _ in range(trials)]
                tried = itertools.count()
                chosen = names[b.choose(size, (n for n in names if next(tried) >= 0))]
                drawn += next(tried)
                for i in placement.primary(chosen):
                    loads[i] += size
            out.append(max(loads.values()) * backends / sum(loads.values()))
    return out, drawn / runs / len(sizes)


def far(packs: Sequence[Pack], *, least: int | None = None) -> float:
    """Seconds until all packs are stored, with `least` copies of each: all, if None."""
    names = sorted({h for p in packs for h in p.holders})
    flying: dict[str, list[tuple[int, list[float]]]] = {n: [] for n in names}  # pack -> [bytes left, latency left]
    queued: dict[str, list[int]] = {n: [] for n in names}
    copies_left: dict[int, int] = {}
    under_way, now, nxt = 0, 0.0, 0
    while nxt < len(packs) or copies_left:
        while nxt < len(packs) and (not under_way or under_way + packs[nxt].size <= uploading_bytes_max(len(names))):
            p = packs[nxt]
            load = {h: sum(left[0] for _, left in flying[h]) + sum(packs[q].size for q in queued[h]) for h in p.holders}
            goes = sorted(p.holders, key=lambda h: load[h])[: least or len(p.holders)]
            for h in goes:
                queued[h].append(nxt)
            copies_left[nxt] = len(goes)
            under_way += p.size
            nxt += 1
        for n in names:
            while queued[n] and len(flying[n]) < CONNECTIONS:
                q = queued[n].pop(0)
                flying[n].append((q, [float(packs[q].size), ROUND_TRIP_S]))
        step = _next_event(flying)
        now += step
        for n in names:
            flowing = [left for _, left in flying[n] if left[1] <= 0]
            for left in flowing:
                left[0] -= step * LINE_BYTES_PER_S / len(flowing)
            for _, left in flying[n]:
                left[1] -= step
            for q, left in list(flying[n]):
                if left[0] <= DONE_BYTES:
                    flying[n].remove((q, left))
                    copies_left[q] -= 1
                    if not copies_left[q]:
                        del copies_left[q]
                        under_way -= packs[q].size
    return now


def _next_event(flying: dict[str, list[tuple[int, list[float]]]]) -> float:
    """Seconds until a pack begins to flow, or has arrived."""
    times = []
    for under_way in flying.values():
        flowing = [left for _, left in under_way if left[1] <= 0]
        times += [left[0] * len(flowing) / LINE_BYTES_PER_S for left in flowing]
        times += [left[1] for _, left in under_way if left[1] > 0]
    return max(min(times), 1e-9)


def report(name: str, tree: Path, work: Path, runs: int, say: Callable[[str], None]) -> list[str]:
    """Prints the tables of one tree; which bars it missed."""
    missed = []
    say(f"\n### {name}\n")
    say(
        "| backends | copies | packs | MB a copy | fullest / mean | far, s | bound, s | ratio"
        " | durability 1, s | CPU s |"
    )
    say("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    sizes: dict[int, list[int]] = {}
    for backends in BACKENDS:
        for copies in COPIES:
            packs, cpu = pushed(tree, work, backends, copies)
            sizes[backends] = [p.size for p in packs]
            most, even = fullest(packs, backends)
            took, bound = far(packs), most / LINE_BYTES_PER_S
            first = far(packs, least=1)
            mb = sum(p.size for p in packs) / 1e6
            say(
                f"| {backends} | {copies} | {len(packs)} | {mb:.1f} | {even:.3f} | {took:.2f} | {bound:.2f}"
                f" | {took / bound:.3f} | {first:.2f} | {cpu:.2f} |"
            )
            if name == "photos" and backends == 3 and (even > EVEN_BAR or took > FAR_BAR * bound):
                missed.append(f"photos, {copies} copies: {even:.3f} x the mean, {took / bound:.3f} x the bound")
    say(f"\nThe same sizes with other names, {runs} times: fullest / mean, median and worst (names tried a pack).\n")
    say("| backends | copies | " + " | ".join(f"at most {t}" if t > 1 else "by chance" for t in TRIALS) + " |")
    say("| --- | --- |" + " --- |" * len(TRIALS))
    for backends in BACKENDS:
        for copies in COPIES:
            cells = []
            for trials in TRIALS:
                ratios, tried = chance(sizes[backends], backends, copies, trials, runs)
                cells.append(f"{statistics.median(ratios):.3f}, {max(ratios):.3f} ({tried:.1f})")
            say(f"| {backends} | {copies} | " + " | ".join(cells) + " |")
    return missed


def trial_cost(say: Callable[[str], None]) -> None:
    """What a trial costs: a footer hashed behind a pack's kept hash, and an order of backends."""
    placement = Placement([Target(bytes([i + 1]) * 16, 1 << 40) for i in range(3)], copies=2)
    digest, footer, rounds = hashlib.sha256(bytes(64)), os.urandom(40_000), 2_000
    began = time.process_time()
    for i in range(rounds):
        full = digest.copy()
        full.update(i.to_bytes(8, "big") + footer)
        placement.primary(full.digest())
    say(f"\nA trial with a footer of 40 KB: {(time.process_time() - began) / rounds * 1e6:.0f} us.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="photos,kernel")
    parser.add_argument("--work", type=Path, default=workloads.default_work())
    parser.add_argument("--linux", default="auto")
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    os.environ["METASYNC_KEYRING"] = "off"
    missed = []
    for load in workloads.ready(args.load.split(","), args.work, args.linux):
        missed += report(load.name, load.path, args.work, args.runs, print)
        print(f"\n{load.name}: {load.origin}")
    trial_cost(print)
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
