"""Fuzzes the decoders: `python tests/fuzz/run.py --seconds 600 --jobs 2 [--targets dir log] [--engine random]`.

With atheris (`make fuzz` installs it) coverage guides the mutations; without it a seeded mutator of our own damages
seeds. Each target runs in a process of its own, with its address space bounded. Corpora lie in `.fuzz/<target>/corpus`
and serve the next run; a finding is minimised and written to `.fuzz/<target>/findings`: CONTRIBUTING.md says how to
keep it. Exits with 1 when there are findings.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import random
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(ROOT)]

ADDRESS_SPACE_BYTES = 4 << 30  # a decoder that asks for more gets a MemoryError, which is a finding
INPUT_SECONDS_MAX = 5.0  # of CPU, for one input of 16 KiB at most; instrumented code takes five times as long
STUCK_SECONDS = 60  # libFuzzer ends the process then
MEASURED_EVERY = 64  # inputs; counting allocations takes ten times as long
FINDINGS_MAX = 20  # per target and run: then it is time to mend something
GRACE_SECONDS = 180  # for a child to start and to measure its corpus, beyond its time


class SlowError(AssertionError):
    """An input took longer than any of its size should."""


# --- in the child: one target


class Child:
    """Judges inputs of one target, and keeps what it finds."""

    def __init__(self, name: str, folder: Path) -> None:
        from fuzz import target as judging
        from fuzz.mutate import minimised
        from fuzz.table import TARGETS

        self.judging, self.minimised = judging, minimised
        self.target = TARGETS[name]
        self.findings = folder / "findings"
        self.findings.mkdir(parents=True, exist_ok=True)
        self.seen = {json.loads(p.read_text())["signature"] for p in self.findings.glob("*.json")}
        self.inputs = 0

    def problem(self, data: bytes, *, measured: bool = False) -> BaseException | None:
        """What is wrong with how the target takes an input."""
        before = time.process_time()
        try:
            (self.judging.judge_memory if measured else self.judging.judge)(self.target, data)
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # a RecursionError or MemoryError is a finding too
            return e
        taken = time.process_time() - before
        if not measured and taken > INPUT_SECONDS_MAX:
            return SlowError(f"{len(data)} bytes took {taken:.1f} s")
        return None

    def take(self, data: bytes, *, measured: bool | None = None) -> None:
        self.inputs += 1
        count = self.inputs % MEASURED_EVERY == 0 if measured is None else measured
        error = self.problem(data, measured=count)
        if error is None:
            return
        key = self.judging.signature(error)
        if key in self.seen or len(self.seen) >= FINDINGS_MAX:
            return
        self.seen.add(key)

        def still(candidate: bytes) -> bool:
            again = self.problem(candidate, measured=count)
            return again is not None and self.judging.signature(again) == key

        small = data if isinstance(error, SlowError) else self.minimised(data, still)
        text = f"{error}"[:300]
        found = {"target": self.target.name, "signature": key, "says": text, "hex": small.hex()}
        name = hashlib.sha256(key.encode()).hexdigest()[:12]
        (self.findings / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def kept(name: str) -> list[bytes]:
    """What earlier findings left for this target."""
    cases = [json.loads(p.read_text(encoding="utf-8")) for p in sorted((TESTS / "vectors" / "fuzz").glob("*.json"))]
    return [bytes.fromhex("".join(c["hex"])) for c in cases if c["target"] == name]


def run_child(name: str, folder: Path, seconds: float, engine: str, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["metasync"]):
            import metasync.runtime.tasks
            import metasync.workspace  # noqa: F401
            from fuzz import table  # noqa: F401
    child = Child(name, folder)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in (*child.target.seeds(), *kept(name)):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    if engine == "atheris":
        _with_atheris(child, corpus, seconds, seed)
    elif engine == "measure":
        for path in sorted(corpus.iterdir()):
            child.take(path.read_bytes(), measured=True)
        print(f"stat::number_of_executed_units: {child.inputs}")
    else:
        _without(child, corpus, seconds, seed)


def _without(child: Child, corpus: Path, seconds: float, seed: int) -> None:
    from fuzz.mutate import mutated
    from fuzz.target import INPUT_BYTES_MAX

    rng, seeds = random.Random(seed), [p.read_bytes() for p in sorted(corpus.iterdir())]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        child.take(mutated(rng, seeds, INPUT_BYTES_MAX))
    print(f"stat::number_of_executed_units: {child.inputs}")


def _with_atheris(child: Child, corpus: Path, seconds: float, seed: int) -> None:
    import atheris

    from fuzz.mutate import mutated
    from fuzz.target import INPUT_BYTES_MAX

    seeds = child.target.seeds()

    def mutator(data: bytes, max_size: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(bytes(data), max_size))
        return mutated(rng, [bytes(data)] * 4 + seeds if rng.random() < 0.3 else [bytes(data)], max_size)

    options = [
        f"-max_total_time={max(1, int(seconds))}",
        f"-seed={seed}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={STUCK_SECONDS}",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
        "-use_value_profile=1",
        "-len_control=0",
        f"-artifact_prefix={child.findings}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], child.take, custom_mutator=mutator)
    atheris.Fuzz()


# --- in the parent


class Ran(NamedTuple):
    """How a target fared. `features`: edges and values that libFuzzer told apart, 0 without atheris."""

    target: str
    inputs: int
    seconds: float
    edges: int
    features: int
    corpus: int
    died: str


def spawn(name: str, folder: Path, seconds: float, engine: str, seed: int) -> tuple[float, str, int]:
    command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds)]
    command += ["--engine", engine, "--folder", str(folder), "--seed", str(seed)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds + GRACE_SECONDS
        )
        out, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as e:
        out, code = f"{e.stderr!r}: it did not end", 1
    return time.monotonic() - started, out, code


def fuzz(name: str, folder: Path, seconds: float, engine: str, seed: int) -> Ran:
    taken, out, code = spawn(name, folder, seconds, engine, seed)
    died = "" if code == 0 else out[-1_500:]
    if not died:
        _, measured, code = spawn(name, folder, 0, "measure", seed)
        died = "" if code == 0 else f"measuring its corpus: {measured[-1_500:]}"
    inputs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", out)
    shown = re.findall(r"cov: (\d+) ft: (\d+)", out)
    edges, features = map(int, shown[-1]) if shown else (0, 0)
    corpus = sum(1 for _ in (folder / "corpus").iterdir()) if (folder / "corpus").is_dir() else 0
    return Ran(name, int(inputs[-1]) if inputs else 0, taken, edges, features, corpus, died)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600, help="in all: each of N targets gets an Nth of it")
    parser.add_argument("--targets", nargs="*", default=[], help="all of them, unless named")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--engine", choices=("auto", "atheris", "random", "measure"), default="auto")
    parser.add_argument("--seed", type=int, default=0, help="0: another one in every run, and printed")
    parser.add_argument("--folder", type=Path, default=ROOT / ".fuzz")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    a = parser.parse_args()
    seed = a.seed or random.SystemRandom().randrange(1, 1 << 31)
    if a.child:
        run_child(a.child, a.folder, a.seconds, a.engine, seed)
        return 0
    engine = a.engine
    if engine == "auto":
        engine = "atheris" if importlib.util.find_spec("atheris") else "random"
    from fuzz.table import TARGETS

    unknown = sorted(set(a.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    names = a.targets or list(TARGETS)
    each = a.seconds / len(names)
    print(f"{len(names)} targets, {each:.0f} s each, {a.jobs} at a time, by {engine}, seed {seed}", flush=True)
    print(f"{'target':20}{'inputs':>10}{'per s':>8}{'edges':>7}{'features':>9}{'corpus':>8}  findings", flush=True)
    found = 0

    def one(name: str) -> None:
        nonlocal found
        folder = a.folder / name
        ran = fuzz(name, folder, each, engine, seed)
        findings = sorted((folder / "findings").glob("*"))
        found += len(findings) + bool(ran.died)
        rate = ran.inputs / max(each, 0.1)
        print(
            f"{name:20}{ran.inputs:>10}{rate:>8.0f}{ran.edges:>7}{ran.features:>9}{ran.corpus:>8}  {len(findings)}",
            flush=True,
        )
        for path in findings:
            said = json.loads(path.read_text()) if path.suffix == ".json" else {"signature": "libFuzzer", "says": ""}
            print(f"    {path}: {said['signature']}: {said['says'][:120]}", flush=True)
        if ran.died:
            print(f"    ended early: {ran.died}", flush=True)

    with ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(one, names))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
