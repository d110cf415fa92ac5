"""The fuzz targets in small: what fuzzing found stays mended, and some hundred seeded mutations of every seed.

`make fuzz` is the campaign; `tests/fuzz/` has the targets. A kept case is one file in `tests/vectors/fuzz`.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from fuzz import table
from fuzz.mutate import minimised, mutated
from fuzz.run import Child
from fuzz.target import (
    ACCEPTED,
    INPUT_BYTES_MAX,
    HungryError,
    NotCanonicalError,
    Target,
    joined_parts,
    judge,
    judge_memory,
    parts_of,
)
from metasync.errors import FormatError, WorkspaceError

HERE = Path(__file__).resolve().parents[1]
CASES = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted((HERE / "vectors" / "fuzz").glob("*.json"))}
MEASURED_EVERY = 10


def data_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex("".join(case["hex"]))


@pytest.mark.parametrize("name", CASES)
def test_what_was_found_stays_mended(name: str) -> None:
    case = CASES[name]
    assert judge_memory(table.TARGETS[case["target"]], data_of(case)) == case["expect"]


@pytest.mark.parametrize("name", table.TARGETS)
def test_damaged_seeds_are_refused_or_mean_themselves(name: str) -> None:
    target = table.TARGETS[name]
    seeds = list(target.seeds())
    measured = judge_memory if target.tries > MEASURED_EVERY else judge
    verdicts = [measured(target, data) for data in seeds]
    assert ACCEPTED in verdicts or name == "s3-answer", "no seed is accepted: the target looks at nothing"
    rng = random.Random(zlib.crc32(name.encode()))
    found = []
    for n in range(target.tries):
        data = mutated(rng, seeds, INPUT_BYTES_MAX)
        found.append((judge if n % MEASURED_EVERY else measured)(target, data))
    assert set(found) - {ACCEPTED} or name in ("network", "notes", "device-notes", "floors-note"), (
        "nothing is refused: the target judges nothing"
    )


# --- the judge, the minimiser and the runner, on decoders that are wrong on purpose


def toy(decode: Any, encode: Any = None) -> Target:
    return Target("toy", decode, lambda: [b"seed"], encode)


def test_another_exception_is_a_finding() -> None:
    with pytest.raises(IndexError):
        judge(toy(lambda data: data[100]), b"x")
    with pytest.raises(WorkspaceError):  # of ours, but not this decoder's to raise
        judge(toy(refuse(WorkspaceError)), b"x")
    assert judge(toy(refuse(FormatError)), b"x") == "FormatError"


def refuse(error: type[Exception]) -> Any:
    def decode(data: bytes) -> None:
        raise error("no")

    return decode


def test_two_byte_strings_for_one_value_are_a_finding() -> None:
    lenient = toy(lambda data: int.from_bytes(data, "big"), lambda n: n.to_bytes(2, "big"))
    assert judge(lenient, b"\1\2") == ACCEPTED
    with pytest.raises(NotCanonicalError):
        judge(lenient, b"\0\1\2")


def test_a_length_that_allocates_is_a_finding() -> None:
    greedy = toy(lambda data: bytes(int.from_bytes(data[:4], "big")))
    assert judge_memory(greedy, b"\0\0\0\7") == ACCEPTED
    with pytest.raises(HungryError):
        judge_memory(greedy, b"\1\0\0\0")


def test_a_finding_is_minimised() -> None:
    assert minimised(b"some text with ! in the middle of it", lambda data: b"!" in data) == b"!"
    assert minimised(bytes(range(1, 100)), lambda data: len(data) >= 10) == bytes(10)


def test_any_bytes_are_parts() -> None:
    parts = [b"", b"one", bytes(300)]
    assert parts_of(joined_parts(parts)) == parts
    rng = random.Random(5)
    for _ in range(200):
        data = rng.randbytes(rng.randrange(40))
        assert sum(2 + len(p) for p in parts_of(data)) <= len(data) + 0xFFFF


def test_the_runner_keeps_one_small_file_per_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(data: bytes) -> None:
        if data[:1] == b"s":
            raise KeyError("planted")
        if len(data) > 6:
            raise OverflowError("planted too")

    monkeypatch.setitem(table.TARGETS, "toy", toy(decode))
    child = Child("toy", tmp_path)
    for data in (b"seed", b"stone", b"long enough", b"longer and longer", b"fine"):
        child.take(data)
    found = {json.loads(p.read_text())["signature"]: json.loads(p.read_text())["hex"] for p in child.findings.iterdir()}
    assert {key.split(" at ")[0]: data for key, data in found.items()} == {
        "KeyError": b"s".hex(),
        "OverflowError": "00" * 7,
    }
    assert Child("toy", tmp_path).seen == set(found), "the next run does not write them again"


def test_the_runner_runs_and_says_how_it_went(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "fuzz" / "run.py"), "--engine", "random", "--seconds", "1", "--seed", "7"]
    done = subprocess.run(
        [*command, "--targets", "tags", "--folder", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7" in done.stdout
    line = next(x.split() for x in done.stdout.splitlines() if x.startswith("tags"))
    assert int(line[1]) > 100
    assert line[-1] == "0"
    assert list((tmp_path / "tags" / "corpus").iterdir())
    unknown = subprocess.run([*command, "--targets", "no-such"], capture_output=True, text=True, timeout=60)
    assert unknown.returncode == 2
    assert re.search(r"there are .*\btags\b", unknown.stderr)
