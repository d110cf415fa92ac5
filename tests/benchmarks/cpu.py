"""What MetaSync's own processes cost: CPU, system calls, requests and round trips, step by step, on three folders.

    python tests/benchmarks/cpu.py [--load kernel] [--tree PATH] [--runs 3] [--syscalls] [--out FILE]
    python tests/benchmarks/cpu.py --commit REVISION     beside that commit; exits 1 where a figure grew by a fifth
    python tests/benchmarks/cpu.py --against FILE        the same, beside figures that were written down
    python tests/benchmarks/cpu.py --cores               each step on one core and on all, by the clock

CPU seconds are the median of the runs, of plain processes; beside a commit, runs of one and the other take turns.
Requests and round trips come from a pass of its own, in which every call on a store takes `DELAY_S` longer: calls that
do not wait for each other then overlap, so the longest chain of calls of which each began after the one before it had
ended is the number of round trips that follow each other. System calls are counted by strace where it is there
(`--syscalls`), in one more pass.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import workloads
from measure import child_environment, differences, measured
from peers import ALL

T = TypeVar("T")
STORES = 3
DELAY_S = 0.08  # far more than a folder needs itself, even when other programs are at work
TIMEOUT_S = 600.0
GROWTH_MAX = 0.20
# Below these a figure is too small for a fifth of it to mean anything: the scatter of one process, one more retry.
NOISE = {"cpu_s": 0.04, "requests": 2.0, "round_trips": 1.0, "syscalls": 200.0, "peak_mb": 15.0}
STEPS = ("start", "push", "no-change push", "clone", "no-change pull", "one-file push", "one-file pull")
Figures = dict[str, dict[str, float]]


# --- one pass over all steps ---


def one_pass(tree: Path, work: Path, run: Callable[[str, list[str]], dict[str, float]]) -> Figures:
    """All steps in a new workspace; `run` is given a step's name and arguments, and says what it took."""
    source, clone = work / "source", work / "clone"
    shutil.copytree(tree, source, symlinks=True)
    backends = [word for i in range(STORES) for word in ("--backend", f"file://{work}/store{i}")]
    out: Figures = {"start": run("start", ["--version"])}
    run("init", ["init", str(source), "--name", "cpu", *backends])
    out["push"] = run("push", ["-C", str(source), "push"])
    time.sleep(0.02)  # rows of files that changed in the scan's own clock tick are not trusted yet
    out["no-change push"] = run("no-change push", ["-C", str(source), "push"])
    out["clone"] = run("clone", ["clone", str(clone), "--name", "cpu", *backends])
    out["no-change pull"] = run("no-change pull", ["-C", str(clone), "pull"])
    edited = min(p for p in source.rglob("*") if p.is_file() and ".metasync" not in p.parts)
    edited.write_bytes(edited.read_bytes() + b"one line\n")
    out["one-file push"] = run("one-file push", ["-C", str(source), "push"])
    out["one-file pull"] = run("one-file pull", ["-C", str(clone), "pull"])
    if wrong := differences(source, clone, ALL):
        raise SystemExit(f"the clone differs in {len(wrong)} places: {wrong[:5]}")
    return out


def cpu_pass(tree: Path, work: Path, env: dict[str, str]) -> Figures:
    def run(step: str, words: list[str]) -> dict[str, float]:
        argv = [sys.executable, "-m", "metasync", *words]
        usage = measured(argv, env, cwd=work, log=work / "log", timeout_s=TIMEOUT_S)
        _check(step, usage.exit_code, usage.output)
        return {"wall_s": usage.wall_s, "cpu_s": usage.cpu_s, "peak_mb": usage.peak_mb}

    return one_pass(tree, work, run)


def delayed_pass(tree: Path, work: Path, env: dict[str, str]) -> Figures:
    def run(step: str, words: list[str]) -> dict[str, float]:
        calls = work / "calls.json"
        argv = [sys.executable, __file__, "--delayed", str(calls), *words]
        done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
        _check(step, done.returncode, done.stdout + done.stderr)
        spans = [(begin, end) for _, _, _, begin, end in json.loads(calls.read_text())]
        if "METASYNC_SHOW_CALLS" in os.environ:
            _show(step, json.loads(calls.read_text()))
        return {"requests": len(spans), "round_trips": chain(spans)}

    return one_pass(tree, work, run)


def syscalls_pass(tree: Path, work: Path, env: dict[str, str]) -> Figures:
    def run(step: str, words: list[str]) -> dict[str, float]:
        table = work / "strace"
        argv = ["strace", "-f", "-c", "-o", str(table), sys.executable, "-m", "metasync", *words]
        done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
        _check(step, done.returncode, done.stdout + done.stderr)
        rows = [line.split() for line in table.read_text().splitlines()]
        return {"syscalls": next(float(r[3] if len(r) > 5 else r[2]) for r in rows if r and r[-1] == "total")}

    return one_pass(tree, work, run)


def _check(step: str, code: int, output: str) -> None:
    if code:
        raise SystemExit(f"{step}: exit {code}\n{output[-2000:]}")


def chain(spans: Sequence[tuple[float, float]]) -> int:
    """How many of these spans of time follow each other at most, none beginning before the one before it has ended."""
    count, free = 0, float("-inf")
    for begin, end in sorted(spans, key=lambda span: span[1]):
        if begin >= free:
            count, free = count + 1, end
    return count


def _show(step: str, calls: list[tuple[str, str, str, float, float]]) -> None:
    first = min((c[3] for c in calls), default=0.0)
    print(f"--- {step}", file=sys.stderr)
    for name, kind, path, begin, end in sorted(calls, key=lambda c: c[3]):
        print(f"{(begin - first) * 1e3:7.0f} {(end - first) * 1e3:7.0f} {name} {kind} {path}", file=sys.stderr)


# --- inside a delayed process ---


def delayed(out: Path, words: list[str]) -> None:
    """Runs the command line with every call on a store delayed, and writes down when each began and ended."""
    from metasync import cli
    from metasync.backends.api import Backend

    wrapper = _first_of("metasync.backends.wrappers.wrapper", "metasync.backends._wrap")
    open_backend = _first_of("metasync.session.open_backend", "metasync.ways")

    calls: list[tuple[str, str, str, float, float]] = []
    lock = threading.Lock()

    class Delayed(wrapper.Wrapper):
        def __init__(self, inner: Backend, name: str) -> None:
            super().__init__(inner)
            self.name = name

        def around(self, call: Any, do: Callable[[], T]) -> T:
            if call.kind == "identity":  # no request where one counts
                return do()
            begin = time.monotonic()
            time.sleep(DELAY_S)
            try:
                return do()
            finally:
                with lock:
                    calls.append((self.name, call.kind, call.path, begin, time.monotonic()))

    really_opened = open_backend.opened

    def opened(name: str, url: Any, *, create: bool) -> Backend:
        return Delayed(really_opened(name, url, create=create), name)

    open_backend.opened = opened
    try:
        cli.main(words)
    finally:
        with lock:
            out.write_text(json.dumps(calls))


def _first_of(*names: str) -> Any:
    """The first of these modules that is there: the commit beside this one may be older than its name."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(names[0])


# --- figures ---


def medians(passes: Sequence[Figures]) -> Figures:
    return {s: {k: statistics.median(p[s][k] for p in passes) for k in passes[0][s]} for s in STEPS}


def grown(now: Figures, before: Figures) -> list[str]:
    """What grew by more than a fifth, and by more than its noise; as sentences. Wall time never counts."""
    out = []
    for step, figures in now.items():
        for key, value in figures.items():
            was = before.get(step, {}).get(key)
            if key in NOISE and was is not None and value > was * (1 + GROWTH_MAX) and value - was > NOISE[key]:
                out.append(f"{step}: {key} is {value:g}, was {was:g}")
    return out


def table(figures: Figures) -> str:
    keys = list(dict.fromkeys(k for row in figures.values() for k in row))
    lines = ["| step | " + " | ".join(k.replace("_", " ") for k in keys) + " |", "| --- |" + " ---: |" * len(keys)]
    for step, row in figures.items():
        cells = (format(row[k], ".2f" if k.endswith("_s") else ",.0f") if k in row else "" for k in keys)
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measure(tree: Path, scratch: Path, envs: Sequence[dict[str, str]], runs: int, syscalls: bool) -> list[Figures]:
    """The figures of each of these environments, whose passes take turns."""
    passes: list[tuple[Callable[[Path, Path, dict[str, str]], Figures], int]] = [
        (cpu_pass, runs),
        (delayed_pass, 1),
        (syscalls_pass, int(syscalls and shutil.which("strace") is not None)),
    ]
    out: list[Figures] = [{step: {} for step in STEPS} for _ in envs]
    for what, times in passes:
        done: list[list[Figures]] = [[] for _ in envs]
        for turn in range(times):
            for n in sorted(range(len(envs)), reverse=turn % 2 == 1):
                with tempfile.TemporaryDirectory(dir=scratch) as work:
                    done[n].append(what(tree, Path(work), envs[n]))
        for figures, of_one in zip(out, done, strict=True):
            for step, row in (medians(of_one) if of_one else {}).items():
                figures[step] |= row
    return out


def on_cores(tree: Path, scratch: Path, env: dict[str, str], runs: int) -> dict[str, tuple[float, float, float]]:
    """Wall seconds of each step on one core and on all, and how many times as fast all are; medians, run by run.

    Only this machine's own folders answer: no server takes a part of the second core.
    """
    every = os.sched_getaffinity(0)
    walls: dict[str, list[tuple[float, float]]] = {step: [] for step in STEPS}
    try:
        for turn in range(runs):
            found: dict[int, Figures] = {}
            for count in sorted((1, len(every)), reverse=turn % 2 == 1):
                os.sched_setaffinity(0, sorted(every)[:count])
                with tempfile.TemporaryDirectory(dir=scratch) as work:
                    found[count] = cpu_pass(tree, Path(work), env)
            for step in STEPS:
                walls[step].append((found[1][step]["wall_s"], found[len(every)][step]["wall_s"]))
    finally:
        os.sched_setaffinity(0, every)
    return {
        step: (
            statistics.median(one for one, _ in pairs),
            statistics.median(many for _, many in pairs),
            statistics.median(one / many for one, many in pairs),
        )
        for step, pairs in walls.items()
    }


def cores_table(rows: dict[str, tuple[float, float, float]]) -> str:
    lines = ["| step | one core, s | all cores, s | times as fast |", "| --- | ---: | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {step} | {a:.2f} | {b:.2f} | {r:.2f} |" for step, (a, b, r) in rows.items())])


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """That commit's files, in a folder that goes again."""
    with tempfile.TemporaryDirectory(prefix="metasync-commit-") as place:
        archive = subprocess.run(
            ["git", "archive", "--format=tar", revision], cwd=HERE.parents[1], capture_output=True, check=False
        )
        if archive.returncode:
            raise SystemExit(f"--commit {revision}: {archive.stderr.decode(errors='replace').strip()}")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(place, filter="data")
        yield Path(place)


def main() -> None:
    if sys.argv[1:2] == ["--delayed"]:
        delayed(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="kernel", choices=workloads.NAMES)
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--tree", type=Path, help="a tree of your own in place of --load")
    parser.add_argument("--runs", type=int, default=3, help="for the CPU seconds; 0: requests and system calls only")
    parser.add_argument("--syscalls", action="store_true", help="count system calls too (strace)")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    parser.add_argument("--commit", metavar="REVISION", help="measure that commit beside this tree")
    parser.add_argument("--against", type=Path, help="figures of an earlier run")
    parser.add_argument("--cores", action="store_true", help="one core and all cores, taking turns, and nothing else")
    parser.add_argument("--work", type=Path, default=workloads.default_work(), help="trees stay, the rest is deleted")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    tree = options.tree or workloads.ready([options.load], options.work / "loads", options.linux)[0].path
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpu-", dir=options.work)))
        env = child_environment(
            scratch, {"METASYNC_KEYRING": "off", "METASYNC_PASSPHRASE": "seven quiet herons by the mill"}
        )
        places = [HERE.parents[1], *([stack.enter_context(checked_out(options.commit))] if options.commit else [])]
        for place in places:  # compiled beforehand, both alike: the first run is not to pay for it
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(place / "metasync")], check=True)
        envs = [{**env, "PYTHONPATH": str(place)} for place in places]
        if options.cores:
            print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; {tree.name}\n")
            print(cores_table(on_cores(tree, scratch, envs[0], options.runs)))
            return
        figures, *others = measure(tree, scratch, envs, options.runs, options.syscalls)
    before = dict(zip([options.commit], others, strict=False))
    if options.against:
        before[str(options.against)] = json.loads(options.against.read_text())
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; {tree.name}\n")
    print(table(figures))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    for name, was in before.items():
        print(f"\n{name}:\n\n{table(was)}")
    if worse := [f"{line} ({name})" for name, was in before.items() for line in grown(figures, was)]:
        raise SystemExit("\ngrew by more than a fifth:\n" + "\n".join(worse))
    if before:
        print("\nnothing grew by more than a fifth")


if __name__ == "__main__":
    main()
