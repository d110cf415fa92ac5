"""Small files in one push, beside the same files one push each, far away (after HyCloud's bundling: -86 %).

    METASYNC_S3_SERVER=... python tests/benchmarks/bundles.py [--runs 3] [--loads 10x10,10x100,100x10] [--work DIR]

Three S3 servers behind the shaping proxy: 80 ms a round trip, 5 MB/s a backend and direction. Two copies of everything,
encrypted. Files of random bytes; `10x100` are ten of 100 KB. One long-lived `Workspace` in this process, as a program
that watches a folder would have it, whose connections are open: a first push is not measured. In each run all files
come in one push, and then as many others one push each.

Ends with status 1 when the median of the batches takes more than 0.14 x the median of one by one.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import far
from bench import RATE, ROUND_TRIP_S
from peers import BACKENDS

from metasync.keys.slots import Cost
from metasync.workspace import Workspace

BAR = 0.14
LOADS = "10x10,10x100,100x10"
KB = 1000


@dataclass(frozen=True)
class Took:
    """What the pushes of one load took: seconds, and HTTP requests."""

    seconds: float
    requests: int


def files(rng: random.Random, count: int, kilobytes: int) -> list[bytes]:
    return [rng.randbytes(kilobytes * KB) for _ in range(count)]


def pushed(w: Workspace, services: far.Far, folder: str, pushes: Sequence[Sequence[bytes]]) -> Took:
    """Pushes these files below `folder`, some in each push. What is not pushed is not timed."""
    before = sum(c.requests.total() for c in services.proxy.counted())
    seconds, number = 0.0, 0
    place = w.directory / folder
    place.mkdir()
    for contents in pushes:
        for data in contents:
            (place / f"file{number:03}").write_bytes(data)
            number += 1
        began = time.perf_counter()
        report = w.push()
        seconds += time.perf_counter() - began
        assert report.version is not None, "nothing was pushed"
    return Took(seconds, sum(c.requests.total() for c in services.proxy.counted()) - before)


def load_times(w: Workspace, services: far.Far, count: int, kilobytes: int, runs: int) -> tuple[list[Took], list[Took]]:
    """(in one push, one by one), run by run."""
    rng = random.Random(f"{count} {kilobytes}")
    one, each = [], []
    for run in range(runs):
        name = f"{count}x{kilobytes}-{run}"
        one.append(pushed(w, services, f"{name}-one", [files(rng, count, kilobytes)]))
        each.append(pushed(w, services, f"{name}-each", [[data] for data in files(rng, count, kilobytes)]))
    return one, each


def row(load: str, one: Sequence[Took], each: Sequence[Took]) -> tuple[str, float]:
    """A line of the table, and the ratio of the medians."""
    a, b = (statistics.median(t.seconds for t in took) for took in (one, each))
    n, m = (statistics.median(t.requests for t in took) for took in (one, each))
    return f"| {load} KB | {a:.2f} | {b:.2f} | {a / b:.3f} | {BAR} | {n:.0f} | {m:.0f} |", a / b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--loads", default=LOADS, help="files x KB, some of them")
    parser.add_argument("--round-trip-ms", type=float, default=ROUND_TRIP_S * 1000)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    missed = []
    shape = far.Shape(options.round_trip_ms / 1000, RATE, RATE)
    with (
        far.running({f"s{i}": shape for i in range(BACKENDS)}, options.work) as services,
        mock.patch.dict(os.environ, services.keys | {"METASYNC_KEYRING": "off"}),
    ):
        cheap = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
        urls = services.urls("bundles")
        report = Workspace.init(
            services.work / "here", name="bundles", backends=urls, passphrase=far.PASSPHRASE, kdf=cheap
        )
        with report.workspace as w:
            pushed(w, services, "first", [[b"first"], [b"second"]])
            print("| files | one push, s | one by one, s | ratio | bar | requests | requests one by one |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            for load in options.loads.split(","):
                count, kilobytes = map(int, load.split("x"))
                line, ratio = row(f"{count} x {kilobytes}", *load_times(w, services, count, kilobytes, options.runs))
                print(line, flush=True)
                missed += [f"{load}: {ratio:.3f}"] if ratio > BAR else []
    if missed:
        raise SystemExit(f"missed, at most {BAR} wanted: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
