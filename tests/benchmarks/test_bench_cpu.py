"""`make bench-cpu`: what is counted, what counts as slower, and that it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cpu
import pytest


@pytest.mark.parametrize(
    ("spans", "wanted"),
    [
        ([], 0),
        ([(0.0, 1.0)], 1),
        ([(0.0, 1.0), (0.1, 1.1), (0.2, 0.9)], 1),
        ([(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)], 2),
        ([(0.0, 9.0), (1.0, 2.0), (3.0, 4.0), (5.0, 6.0)], 3),  # one that nobody waited for
    ],
)
def test_round_trips_are_the_longest_chain_of_calls(spans: list[tuple[float, float]], wanted: int) -> None:
    assert cpu.chain(spans) == wanted


def test_what_grew_by_a_fifth_and_by_more_than_its_scatter_is_named() -> None:
    before = {"push": {"cpu_s": 1.0, "requests": 50.0, "round_trips": 9.0, "wall_s": 1.0}, "start": {"cpu_s": 0.1}}
    assert cpu.grown(before, before) == []
    better = {"push": {"cpu_s": 0.1, "requests": 1.0, "round_trips": 1.0, "wall_s": 9.0}, "start": {"cpu_s": 0.13}}
    assert cpu.grown(better, before) == []
    worse = {"push": {"cpu_s": 1.21, "requests": 61.0, "round_trips": 11.0, "wall_s": 1.0}, "start": {"cpu_s": 0.15}}
    assert [line.split(" is ")[0] for line in cpu.grown(worse, before)] == [
        "push: cpu_s",
        "push: requests",
        "push: round_trips",
        "start: cpu_s",
    ]


def beside(tmp_path: Path, commit: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_bytes(b"a" * 5000)
    argv = [
        sys.executable,
        cpu.__file__,
        "--tree",
        str(tmp_path / "tree"),
        "--runs",
        "0",
        "--work",
        str(tmp_path / "w"),
    ]
    return subprocess.run([*argv, "--commit", commit], check=False, timeout=300, capture_output=True, text=True)


def test_a_commit_that_is_none_is_said(tmp_path: Path) -> None:
    wrong = beside(tmp_path, "no-such")
    assert (wrong.returncode, "--commit no-such: fatal" in wrong.stderr) == (1, True)


@pytest.mark.long
def test_it_measures_a_commit_beside_this_tree(tmp_path: Path) -> None:
    same = beside(tmp_path, "HEAD")
    assert same.stdout.count("| one-file push |") == 2
    assert "HEAD:" in same.stdout


@pytest.mark.long
def test_it_runs_and_compares_with_a_run_before(tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "figures.json"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "a").write_bytes(b"a" * 5000)
    argv = [sys.executable, cpu.__file__, "--tree", str(tree), "--runs", "0", "--work", str(tmp_path / "work")]
    subprocess.run([*argv, "--out", str(out)], check=True, timeout=120, capture_output=True)
    figures = json.loads(out.read_text())
    assert set(figures) == set(cpu.STEPS)
    assert figures["no-change push"]["round_trips"] == figures["no-change pull"]["round_trips"] == 1
    assert figures["one-file push"]["requests"] > figures["no-change push"]["requests"] > 0
    figures["push"]["requests"] = 1.0
    out.write_text(json.dumps(figures))
    worse = subprocess.run([*argv, "--against", str(out)], check=False, timeout=120, capture_output=True, text=True)
    assert worse.returncode == 1
    assert "push: requests is" in worse.stderr


def test_cores_are_compared_run_by_run_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = os.sched_getaffinity(0)
    held: list[int] = []

    def a_pass(*_: object) -> cpu.Figures:
        held.append(len(os.sched_getaffinity(0)))
        wall_s = 3.0 + len(held) if held[-1] == 1 else 2.0
        return {step: {"wall_s": wall_s} for step in cpu.STEPS}

    monkeypatch.setattr(cpu, "cpu_pass", a_pass)
    rows = cpu.on_cores(tmp_path, tmp_path, {}, 3)
    assert os.sched_getaffinity(0) == every
    if len(every) > 1:
        assert held == [1, len(every), len(every), 1, 1, len(every)]
        assert rows["push"] == (7.0, 2.0, 3.5)
        assert "| push | 7.00 | 2.00 | 3.50 |" in cpu.cores_table(rows)
