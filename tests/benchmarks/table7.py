"""Table 7 of the MetaSync paper: how long until a folder is on another device, beside `rclone copy` to one service.

    METASYNC_S3_SERVER=... python tests/benchmarks/table7.py [--load paper,photos,kernel] [--kernel-files 1500]

The first four services of `services.json`, each an S3 server behind the shaping proxy: their rates in each direction,
and what a request takes there, a network round trip of 80 ms included. As in the paper, a workload is copied into one
device's folder, and the time runs until its last file is on the other device: MetaSync pushes with two copies of
everything, encrypted, and the other device, which had cloned the empty workspace, pulls. Both had seen the newest
version before, as clients that run do. `rclone copy` with its default four transfers copies to one service and from
there to the other device, plain; the best of the services counts.

*durability 1* is what the paper measures (section 5.3): the version is agreed when everything has one copy, the other
device pulls then, and the second copies are made meanwhile. *All copies* waits for them first, which is the default.

`kernel` takes rclone more than an hour: `--kernel-files` of it are taken, evenly spread; 0 takes all. `--singles`: the
services that rclone tries; by default all of them for `paper`, and for the rest the one that was best there. Trees are
compared at the end. Ends with status 1 when a bar is missed: 10 x (kernel), 1.6 x (paper) and 1.28 x (photos) faster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import far
import s3
import workloads
from measure import differences
from peers import ALL, Rclone
from workloads import Load

SERVICES = 4
COPIES = 2
BARS = {"kernel": 10.0, "paper": 1.6, "photos": 1.28}
AGREED = "agreed"


@dataclass(frozen=True)
class Took:
    """Seconds until a workload was stored, and from then on until it was on the other device."""

    up_s: float
    down_s: float

    @property
    def total_s(self) -> float:
        return self.up_s + self.down_s


def part_of(load: Load, files: int, work: Path) -> Load:
    """Every so-manyth file of a load, evenly spread, so that there are `files`: a load of the same name."""
    if not files or files >= load.files:
        return load
    target = work / f"{load.name}-{files}"
    every = sorted(p for p in load.path.rglob("*") if p.is_file())
    for n in range(files):
        path = every[n * len(every) // files]
        workloads.write(target / path.relative_to(load.path), path.read_bytes())
    return workloads.described(load.name, target, load.origin)


def by_rclone(services: far.Far, number: int, load: Load) -> Took:
    """`rclone copy` to one service, and from there to another folder."""
    name = f"rclone-{services.names[number]}-{load.name}"
    there, config = services.work / name, services.work / f"{name}.conf"
    end = f"endpoint = {services.endpoint(number)}"
    config.write_text("\n".join(["[s3]", "type = s3", "provider = Other", "env_auth = true", end, ""]))
    rclone = ["rclone", "-q", "--config", str(config), "copy"]
    remote = f"s3:{s3.BUCKET}/{name}"
    up = services.run(name, [*rclone, str(load.path), remote])
    down = services.run(name, [*rclone, remote, str(there)])
    same(load, there, Rclone.keeps)
    return Took(up.wall_s, down.wall_s)


def by_metasync(services: far.Far, load: Load, durability: int | None) -> tuple[Took, float]:
    """-> what it took, and the seconds until there were all copies."""
    name = f"{load.name}-{durability or 'all'}"
    one, two = services.work / f"one-{name}", services.work / f"two-{name}"
    backends = far.backend_words(services.urls(name))
    one.mkdir()
    services.metasync("one", "init", str(one), "--name", name, "--replicas", str(COPIES), "--no-byzantine", *backends)
    services.metasync("two", "clone", str(two), "--name", name, *backends)
    services.metasync("one", "-C", str(one), "pull")  # both run already: they know of each other
    services.run("one", ["cp", "-r", "--preserve=all", f"{load.path}/.", str(one)])
    if durability is None:
        up_s = copies_s = services.metasync("one", "-C", str(one), "push").wall_s
        down_s = services.metasync("two", "-C", str(two), "pull").wall_s
    else:
        began = time.monotonic()
        argv = [sys.executable, __file__, "--push", str(one), "--durability", str(durability)]
        with subprocess.Popen(argv, env=services.env("one"), stdout=subprocess.PIPE, text=True) as pushing:
            assert pushing.stdout is not None
            if pushing.stdout.readline().strip() != AGREED:
                raise SystemExit(f"{name}: the push failed, exit {pushing.wait()}")
            up_s = time.monotonic() - began
            down_s = services.metasync("two", "-C", str(two), "pull").wall_s
            if pushing.wait():
                raise SystemExit(f"{name}: the copies were not made, exit {pushing.returncode}")
        copies_s = time.monotonic() - began
    same(load, two, ALL)
    return Took(up_s, down_s), copies_s


def push(directory: Path, durability: int) -> None:
    """What a program that watches a folder would do: a push, and the copies in the background; says when it is agreed.

    A process of its own: `--push`.
    """
    from metasync.workspace import Workspace

    with Workspace.open(directory) as w:
        w.push(durability=durability)
        print(AGREED, flush=True)
        if w.finish_copies():
            raise SystemExit("not all copies could be made")


def same(load: Load, there: Path, keeps: frozenset[str]) -> None:
    if wrong := differences(load.path, there, keeps):
        raise SystemExit(f"{there.name} differs in {len(wrong)} places: {wrong[:5]}")


def row(load: Load, singles: dict[str, Took], first: Took, every: Took, copies_s: float) -> tuple[str, float]:
    """A line of the table, and how many times as fast it was with `durability` 1."""
    best = min(singles, key=lambda name: singles[name].total_s)
    rclone = singles[best]

    def cell(took: Took) -> str:
        return f"{took.total_s:.1f} ({took.up_s:.1f} + {took.down_s:.1f})"

    ratio = rclone.total_s / first.total_s
    size = f"{load.files:,} files, {load.size_bytes / 1e6:.1f} MB"
    return (
        f"| {load.title} | {size} | {cell(rclone)}, {best} | {cell(first)} | {copies_s:.1f} | {cell(every)}"
        f" | {ratio:.2f} | {rclone.total_s / every.total_s:.2f} | {BARS[load.name]} |",
        ratio,
    )


def measured(load: Load, services: far.Far, singles: Sequence[str]) -> tuple[str, float, str]:
    """-> a line of the table, the ratio that counts, and the service that was best for rclone."""
    took = {}
    for name in singles:
        took[name] = by_rclone(services, services.names.index(name), load)
        print(f"{load.name}: rclone, {name}: {took[name].total_s:.1f} s", file=sys.stderr, flush=True)
    first, copies_s = by_metasync(services, load, 1)
    print(f"{load.name}: metasync: {first.total_s:.1f} s", file=sys.stderr, flush=True)
    every, _ = by_metasync(services, load, None)
    line, ratio = row(load, took, first, every, copies_s)
    return line, ratio, min(took, key=lambda name: took[name].total_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="paper,photos,kernel", help="some of them, in this order")
    parser.add_argument("--kernel-files", type=int, default=1500, help="so many of `kernel`; 0: all")
    parser.add_argument("--singles", help="services that rclone tries, for all loads")
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--work", type=Path, default=workloads.default_work())
    parser.add_argument("--push", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--durability", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.push:
        push(options.push, options.durability)
        return
    options.work.mkdir(parents=True, exist_ok=True)
    loads = workloads.ready(options.load.split(","), options.work / "loads", options.linux)
    shapes = dict(list(far.services_of_paper().items())[:SERVICES])
    lines, missed, best = [], [], ""
    with tempfile.TemporaryDirectory(dir=options.work) as part, far.running(shapes, options.work) as services:
        for load in loads:
            if load.name == "kernel":
                load = part_of(load, options.kernel_files, Path(part))
            singles = options.singles.split(",") if options.singles else [best] if best else list(shapes)
            line, ratio, best = measured(load, services, singles)
            lines.append(line)
            if ratio < BARS[load.name]:
                missed.append(f"{load.name}: {ratio:.2f} times as fast, at least {BARS[load.name]} wanted")
    print("Seconds in all (up + down); how many times as fast as rclone.\n")
    print("| load | | rclone to the best single one | durability 1 | until all copies | all copies first", end="")
    print(" | times as fast | with all copies first | bar |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
