"""Where a step's processor time goes, by what the program was at: the profile behind a bar that was missed.

    METASYNC_S3_SERVER=... python tests/benchmarks/where.py [--load kernel] [--net near] [--step push,clone]

Each step runs in a process of its own on three S3 servers (`--stores folders`: on folders). Every `TICK_S` it notes how
much processor time each thread took since the last look, by the threads' own clocks, and charges it to the innermost
function of MetaSync on that thread's stack: what other programs do at the same time changes nothing. Loading modules is
charged to loading. A thread that began and ended between two looks is in the line `not seen`; so is Python's own start.
Looking costs a few per cent, which is in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "servers")]

TICK_S = 0.002
STEPS = ("push", "no-change push", "clone", "no-change pull", "one-file push", "one-file pull")


# --- in the process that is looked at ---


def charged_to(frame: FrameType | None) -> str:
    """What a thread is at: the innermost function of MetaSync on its stack, or loading, or what is below all of it."""
    last = "outside"
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("importlib._bootstrap") or name == "_frozen_importlib":
            return "(loading modules)"
        if name.startswith("metasync"):
            return f"{name.removeprefix('metasync.')}: {frame.f_code.co_qualname}"
        last = name or last
        frame = frame.f_back
    return f"({last})"


class Sampler:
    """Charges each thread's processor time to what it is at, at each tick of the clock."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.before = time.process_time()  # Python's start, and this file
        self.charged: Counter[str] = Counter()
        self._known: dict[int, float] = {}
        self._me = threading.get_ident()
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)

    def _tick(self, _number: int, mine: FrameType | None) -> None:
        frames = sys._current_frames()
        for ident, frame in frames.items():
            with suppress(OSError, ValueError):
                now = time.clock_gettime(time.pthread_getcpuclockid(ident))
                took = now - self._known.get(ident, self.before if ident == self._me else 0.0)
                self._known[ident] = now
                if took > 0:
                    self.charged[charged_to(mine if ident == self._me else frame)] += took
        for ident in self._known.keys() - frames.keys():
            del self._known[ident]  # its number may be another thread's next
        del frame, mine
        frames.clear()  # this frame is among them: what it holds would stay, and what other frames hold

    def ended(self) -> dict[str, object]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        cpu = time.process_time()
        self.charged["(not seen)"] = cpu - sum(self.charged.values())
        return {"wall_s": time.monotonic() - self.began, "cpu_s": cpu, "charged": self.charged}


def sampled(out: Path, words: list[str]) -> None:
    """Runs the command line and writes down where its time went."""
    sampler = Sampler()
    try:
        from metasync import cli

        cli.main(words)
    finally:
        out.write_text(json.dumps(sampler.ended()))


# --- around it ---


def table(step: str, told: dict[str, object], lines: int) -> str:
    charged = told["charged"]
    cpu, wall = told["cpu_s"], told["wall_s"]
    assert isinstance(charged, dict)
    assert isinstance(cpu, float)
    modules: Counter[str] = Counter()
    for key, seconds in charged.items():
        modules[key.partition(":")[0]] += seconds
    out = [
        f"#### {step}: {cpu:.2f} s of CPU in {wall:.2f} s",
        "",
        "| module | CPU s | % | most of it in |",
        "| --- | ---: | ---: | --- |",
    ]
    for module, seconds in modules.most_common(lines):
        inside = Counter({k.partition(": ")[2]: v for k, v in charged.items() if k.partition(":")[0] == module})
        most = ", ".join(f"{name} {value:.2f}" for name, value in inside.most_common(3) if name and value >= 0.01)
        out.append(f"| {module} | {seconds:.2f} | {100 * seconds / cpu:.0f} | {most} |")
    rest = sum(seconds for _, seconds in modules.most_common()[lines:])
    out.append(f"| all others | {rest:.2f} | {100 * rest / cpu:.0f} | |")
    return "\n".join(out)


def main() -> None:
    if sys.argv[1:2] == ["--sampled"]:
        sampled(Path(sys.argv[2]), sys.argv[3:])
        return
    import bench
    import workloads
    from measure import child_environment
    from peers import MetaSync

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="kernel", choices=workloads.NAMES)
    parser.add_argument("--net", default="near", choices=("near", "far"))
    parser.add_argument("--stores", choices=("auto", "s3", "folders"), default="auto")
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--step", default="push,clone", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--lines", type=int, default=12)
    parser.add_argument("--work", type=Path, default=workloads.default_work(), help="trees stay, the rest is deleted")
    options = parser.parse_args()
    wanted = options.step.split(",")
    if unknown := [step for step in wanted if step not in STEPS]:
        raise SystemExit(f"no such step: {unknown[0]}; there are {', '.join(STEPS)}")
    options.work.mkdir(parents=True, exist_ok=True)
    load = workloads.ready([options.load], options.work / "loads", options.linux)[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; {load.name}, {options.net}"
    )
    keys = bench.s3.make_keys()
    with tempfile.TemporaryDirectory(prefix="where-", dir=options.work) as scratch:
        work = Path(scratch)
        with bench.networks([options.net], options.stores, work, keys) as (nets, servers):
            for server in servers:
                server.make_bucket("where")
            net = nets[-1]
            urls = [f"s3://where/ws?endpoint={e}&name=s{i}" for i, e in enumerate(net.endpoints)]
            urls = urls or [f"file://{work}/store{i}?name=s{i}" for i in range(bench.BACKENDS)]
            backends = [word for url in urls for word in ("--backend", url)]
            source, clone = work / "source", work / "clone"
            bench.shutil.copytree(load.path, source, symlinks=True)
            env = child_environment(
                work, {"METASYNC_KEYRING": "off", "METASYNC_PASSPHRASE": "seven quiet herons by the mill", **keys}
            )

            def run(step: str, *words: str) -> None:
                out = work / "told.json"
                argv = [sys.executable, __file__, "--sampled", str(out), *words]
                if step not in wanted:
                    argv = [*MetaSync._command(), *words]
                done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(f"{step}: exit {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
                if step in wanted:
                    print(f"\n{table(step, json.loads(out.read_text()), options.lines)}", flush=True)

            run("init", "init", str(source), "--name", "where", "--replicas", "2", *backends)
            run("push", "-C", str(source), "push")
            time.sleep(0.02)  # rows of files that changed in the scan's own clock tick are not trusted yet
            run("no-change push", "-C", str(source), "push")
            run("clone", "clone", str(clone), "--name", "where", *backends)
            run("no-change pull", "-C", str(clone), "pull")
            bench._edit(source)
            run("one-file push", "-C", str(source), "push")
            run("one-file pull", "-C", str(clone), "pull")


if __name__ == "__main__":
    main()
