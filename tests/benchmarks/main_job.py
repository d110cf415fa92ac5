"""The main job on real trees, beside restic in the same run: push, clone with each backend taken away, one-file push.

    python tests/benchmarks/main_job.py --tree kernel=PATH --tree photos=PATH [--stores folders,s3] [--runs 3]

Prints a Markdown table: wall and CPU seconds, peak memory, requests and bytes, each the median of the runs, and the
ratio of wall times to restic's in the same run. Clones are compared with the pushed tree in content, names, modes,
symlinks and mtimes. S3 servers are versitygw on loopback (METASYNC_S3_SERVER, or as `make test-servers` fetched it).
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "servers"))
import s3  # noqa: E402

FOLDERS, SERVERS = 4, 3
COUNTED = [sys.executable, str(HERE / "counted.py")]
Row = dict[str, float]


@dataclass
class Bench:
    """One run of everything for one tree on one kind of store."""

    tree: Path
    work: Path
    env: dict[str, str]
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def timed(self, step: str, argv: Sequence[str], *, counted: bool = False) -> None:
        counts = self.work / "counts.json"
        full = [*COUNTED, str(counts), *argv] if counted else list(argv)
        os.sync()
        start = time.monotonic()
        with (self.work / "log").open("wb") as log:
            process = subprocess.Popen(full, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{step}: exit {process.returncode}\n{(self.work / 'log').read_text()[-2000:]}")
        row: Row = {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024}
        if counted:
            per = json.loads(counts.read_text()).values()
            row["requests"] = sum(n for c in per for kind, n in c.items() if kind not in ("up", "down"))
            row["up"] = sum(c["up"] for c in per) / 1e6
            row["down"] = sum(c["down"] for c in per) / 1e6
        self.rows.setdefault(step, []).append(row)

    def metasync(self, step: str, *argv: str) -> None:
        self.timed(step, argv, counted=True)


def same_tree(a: Path, b: Path) -> None:
    """Content, names, modes, symlinks and mtimes; `SystemExit` where they differ."""
    listed = [{str(p.relative_to(t)): p for p in t.rglob("*") if ".metasync" not in p.parts} for t in (a, b)]
    if listed[0].keys() != listed[1].keys():
        raise SystemExit(f"names differ: {sorted(listed[0].keys() ^ listed[1].keys())[:5]}")
    for name, left in listed[0].items():
        right = listed[1][name]
        x, y = left.lstat(), right.lstat()
        if x.st_mode != y.st_mode or (not left.is_dir() and x.st_mtime_ns != y.st_mtime_ns):
            raise SystemExit(f"{name}: mode or mtime differs")
        if left.is_symlink():
            if left.readlink() != right.readlink():
                raise SystemExit(f"{name}: link differs")
        elif left.is_file() and not filecmp.cmp(left, right, shallow=False):
            raise SystemExit(f"{name}: content differs")


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
        bench.metasync("push", "-C", str(source), "push", "-m", "first", "--json")
        packs = json.loads((work / "log").read_text())["packs"]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--stores", default="folders,s3")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where to work: some GB, not cleaned between runs")
    options = parser.parse_args()
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    env |= {"METASYNC_KEYRING": "off", "METASYNC_PASSPHRASE": "bench", "RESTIC_PASSWORD": "bench"}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE
    )
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{machine}, commit {commit.stdout.strip()}")
    with tempfile.TemporaryDirectory(prefix="metasync-bench-", dir=options.scratch) as scratch:
        for spec in options.tree:
            measure(spec, options, Path(scratch), env)


def measure(spec: str, options: argparse.Namespace, scratch: Path, env: dict[str, str]) -> None:
    """All runs for one tree; prints its tables."""
    name, _, path = spec.partition("=")
    for kind in options.stores.split(","):
        rows: dict[str, list[Row]] = {}
        packs = [run_once(kind, Path(path), scratch, env, rows) for _ in range(options.runs)]
        print("\n".join(table(f"{name}, {kind}, {options.runs} runs", rows)))
        n = FOLDERS if kind == "folders" else SERVERS
        most = packs[0] * 2 + 12 * n
        worst = max(r["requests"] for step in ("push", "clone, all there") for r in rows[step])
        print(f"\nPacks: {packs[0]}. Requests of a push or clone: at most {worst:.0f}.")
        print(f"The bound is {most}: packs x 2 + 12 x {n}.")


if __name__ == "__main__":
    main()
