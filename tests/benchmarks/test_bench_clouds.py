"""`make bench-clouds`: that it runs, and that a push to a cloud takes no more requests than it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent / "clouds" / "bench_clouds.py"


@pytest.mark.long
def test_pushes_and_calls_are_measured(tmp_path: Path) -> None:
    argv = [sys.executable, str(BENCH), "--only", "dropbox", "--files", "1,70", "--linux", "generated", "--calls", "2"]
    argv += ["--work", str(tmp_path), "--out", str(tmp_path / "figures.json")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    requests = {what: sum(f["requests"].values()) for what, f in figures["dropbox 70"].items()}
    assert 0 < requests["pull nothing"] <= 8
    assert requests["push"] <= 30
    assert requests["push one more"] <= 30
    assert figures["dropbox calls"]["stat"] > 0
