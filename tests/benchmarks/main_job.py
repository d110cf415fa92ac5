"""The main job with each store taken away in turn, the requests it costs, and a file larger than memory should be.

    python tests/benchmarks/main_job.py [--load kernel,photos] [--tree NAME=PATH] [--stores folders,s3] [--runs 3]
    python tests/benchmarks/main_job.py --large 5368709120

The first pushes a tree, clones it with each one of the stores away, and holds the requests of a push and of a clone
against the bound packs x 2 + 12 x stores; restic does the same with one copy on one store in the same run. Requests
and bytes are those of our backends' calls, so that folders are counted too; `bench.py` counts on the wire, and compares
with more programs. The second pushes and clones one file of random bytes with one copy, and looks at the peak memory.
Clones are compared with what was pushed: content, names, modes, symlinks and mtimes. Prints Markdown: medians, and
ratios taken run by run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "servers")]

import s3
import workloads
from measure import child_environment, differences, measured
from peers import ALL

FOLDERS, SERVERS = 4, 3
LARGE_PIECE_BYTES = 1 << 24
TIMEOUT_S = 1800
COUNTED = [sys.executable, str(HERE / "counted.py")]
Row = dict[str, float]


@dataclass
class Bench:
    """One run of everything for one tree on one kind of store."""

    tree: Path
    work: Path
    env: dict[str, str]
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def timed(self, step: str, argv: Sequence[str], *, counted: bool = False) -> str:
        """What it printed."""
        counts = self.work / "counts.json"
        full = [*COUNTED, str(counts), *argv] if counted else list(argv)
        usage = measured(full, self.env, cwd=self.work, log=self.work / "log", timeout_s=TIMEOUT_S)
        if usage.exit_code:
            raise SystemExit(f"{step}: exit {usage.exit_code}\n{usage.output[-2000:]}")
        row: Row = {"wall": usage.wall_s, "cpu": usage.cpu_s, "rss": usage.peak_mb}
        if counted:
            per = json.loads(counts.read_text()).values()
            row["requests"] = sum(n for c in per for kind, n in c.items() if kind not in ("up", "down"))
            row["up"] = sum(c["up"] for c in per) / 1e6
            row["down"] = sum(c["down"] for c in per) / 1e6
        self.rows.setdefault(step, []).append(row)
        return usage.output

    def metasync(self, step: str, *argv: str) -> str:
        return self.timed(step, argv, counted=True)


def same_tree(a: Path, b: Path) -> None:
    """`SystemExit` where they differ."""
    wrong = differences(a, b, ALL)
    if wrong:
        raise SystemExit(f"{a.name} and {b.name} differ in {len(wrong)} places: {wrong[:5]}")


@contextlib.contextmanager
def stores(kind: str, work: Path, env: dict[str, str]) -> Iterator[tuple[list[str], list[object], str]]:
    """URLs for metasync, handles to take stores away, and a repository for restic."""
    if kind == "folders":
        roots = [work / f"store{i}" for i in range(FOLDERS)]
        yield [f"file://{r}" for r in roots], list(roots), str(work / "restic")
        return
    keys = s3.make_keys()
    env.update(keys)
    with s3.running(SERVERS, work / "s3", keys) as servers:
        yield [s.url("metasync") for s in servers], list(servers), f"s3:{servers[0].endpoint}/{s3.BUCKET}/restic"


@contextlib.contextmanager
def away(store: object) -> Iterator[None]:
    """Takes one store away for a while."""
    if isinstance(store, Path):
        store.rename(store.with_suffix(".away"))
        yield
        store.with_suffix(".away").rename(store)
    else:
        assert isinstance(store, s3.S3Server)
        store.stop()
        yield
        store.start()


def run_once(kind: str, tree: Path, parent: Path, env: dict[str, str], rows: dict[str, list[Row]]) -> int:
    """One run; returns the number of packs of the first push.

    Nothing is deleted before all runs are over: ext4 makes files much slower for minutes after many were deleted.
    """
    work = Path(tempfile.mkdtemp(dir=parent))
    env = dict(env)
    bench = Bench(tree, work, env, rows)
    source = work / "source"
    shutil.copytree(tree, source, symlinks=True)
    with stores(kind, work, env) as (urls, handles, repository):
        backends = [word for url in urls for word in ("--backend", url)]
        bench.metasync("init", "init", str(source), "--name", "bench", *backends)
        packs = json.loads(bench.metasync("push", "-C", str(source), "push", "-m", "first", "--json"))["packs"]
        bench.metasync("push, nothing changed", "-C", str(source), "push")
        for i, handle in enumerate(handles):
            target = work / f"clone{i}"
            with away(handle):
                left = [w for j, url in enumerate(urls) if j != i for w in ("--backend", url)]
                bench.metasync(f"clone without store {i + 1}", "clone", str(target), "--name", "bench", *left)
            same_tree(source, target)
        bench.metasync("clone, all there", "clone", str(work / "all"), "--name", "bench", *backends)
        same_tree(source, work / "all")
        edited = min(p for p in source.rglob("*") if p.is_file() and ".metasync" not in p.parts)
        edited.write_bytes(edited.read_bytes() + b"one line\n")
        bench.metasync("push, one file", "-C", str(source), "push")
        bench.metasync("pull, one file", "-C", str(work / "all"), "pull")
        same_tree(source, work / "all")
        bench.metasync("check --read-data", "-C", str(source), "check", "--read-data")
        if shutil.which("restic"):
            beside_restic(bench, source, repository)
    return int(packs)


def beside_restic(bench: Bench, source: Path, repository: str) -> None:
    """The same with restic: one copy, on one store."""
    restic = ["restic", "-q", "--no-cache", "-r", repository]
    bench.timed("restic init", [*restic, "init"])
    bench.timed("restic backup", [*restic, "backup", str(source), "--exclude", ".metasync"])
    bench.timed("restic backup, nothing changed", [*restic, "backup", str(source), "--exclude", ".metasync"])
    bench.timed("restic restore", [*restic, "restore", "latest", "--target", str(bench.work / "restored")])


PAIRS = {
    "push": "restic backup",
    "push, nothing changed": "restic backup, nothing changed",
    "clone, all there": "restic restore",
    **{f"clone without store {i}": "restic restore" for i in range(1, FOLDERS + 1)},
}


def table(title: str, rows: dict[str, list[Row]]) -> list[str]:
    """Medians, and ratios taken run by run."""
    lines = [
        f"\n### {title}\n",
        "| step | wall s | CPU s | peak MB | requests | MB up | MB down | wall ÷ restic |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for step, runs in rows.items():
        cells = [step]
        for key, form in (
            ("wall", ".2f"),
            ("cpu", ".2f"),
            ("rss", ".0f"),
            ("requests", ".0f"),
            ("up", ".1f"),
            ("down", ".1f"),
        ):
            values = [r[key] for r in runs if key in r]
            cells.append(format(statistics.median(values), form) if values else "")
        other = rows.get(PAIRS.get(step, ""), [])
        ratios = [a["wall"] / b["wall"] for a, b in zip(runs, other, strict=False)]
        cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def large(size: int, parent: Path, env: dict[str, str]) -> dict[str, list[Row]]:
    """One file of random bytes: pushed to two folders with one copy, and cloned."""
    work = Path(tempfile.mkdtemp(dir=parent))
    bench = Bench(work / "source", work, dict(env))
    bench.tree.mkdir()
    with (bench.tree / "large.bin").open("wb") as file:
        for start in range(0, size, LARGE_PIECE_BYTES):
            file.write(os.urandom(min(LARGE_PIECE_BYTES, size - start)))
    backends = [word for i in range(2) for word in ("--backend", f"file://{work}/store{i}")]
    bench.metasync("init", "init", str(bench.tree), "--name", "large", "--replicas", "1", *backends)
    bench.metasync("push", "-C", str(bench.tree), "push")
    bench.metasync("clone", "clone", str(work / "clone"), "--name", "large", *backends)
    same_tree(bench.tree, work / "clone")
    return bench.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", help=f"of {', '.join(workloads.NAMES)}; default kernel,photos if no --tree is given")
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=PATH", help="a tree of your own")
    parser.add_argument("--stores", default="folders,s3")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--large", type=int, metavar="BYTES", help="one file of so many bytes instead")
    parser.add_argument("--work", type=Path, default=workloads.default_work(), help="trees stay, the rest is deleted")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.load or ("" if options.tree or options.large else "kernel,photos")
    trees = [spec.partition("=") for spec in options.tree]
    specs = [(name, Path(path)) for name, _, path in trees]
    if names:
        loads = workloads.ready(names.split(","), options.work / "loads", options.linux)
        specs += [(load.title, load.path) for load in loads]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE
    )
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{machine}, commit {commit.stdout.strip()}")
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.work) as scratch:
        env = child_environment(Path(scratch))
        env |= {
            "METASYNC_KEYRING": "off",
            "METASYNC_PASSPHRASE": "seven quiet herons by the mill",
            "RESTIC_PASSWORD": "bench",
        }
        if options.large:
            print("\n".join(table(f"one file of {options.large:,} bytes", large(options.large, Path(scratch), env))))
        for name, path in specs:
            measure(name, path, options, Path(scratch), env)


def measure(name: str, path: Path, options: argparse.Namespace, scratch: Path, env: dict[str, str]) -> None:
    """All runs for one tree; prints its tables."""
    for kind in options.stores.split(","):
        rows: dict[str, list[Row]] = {}
        packs = [run_once(kind, path, scratch, env, rows) for _ in range(options.runs)]
        print("\n".join(table(f"{name}, {kind}, {options.runs} runs", rows)))
        n = FOLDERS if kind == "folders" else SERVERS
        most = packs[0] * 2 + 12 * n
        worst = max(r["requests"] for step in ("push", "clone, all there") for r in rows[step])
        print(f"\nPacks: {packs[0]}. Requests of a push or clone: at most {worst:.0f}.")
        print(f"The bound is {most}: packs x 2 + 12 x {n}.")


if __name__ == "__main__":
    main()
