"""`make bench-clouds`: that it runs, and that a push to a cloud takes no more requests than it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent / "clouds" / "bench_clouds.py"


BARS = {"box": 31, "dropbox": 30, "gdrive": 30, "onedrive": 31}  # of a push of 15,000 files; a folder is one more
IDLE = {"box": 9, "dropbox": 8, "gdrive": 60, "onedrive": 60}  # an hour as it is today; the bar of long polls is 10


@pytest.mark.long
@pytest.mark.parametrize("cloud", BARS)
def test_a_push_of_15_000_files_stays_below_its_bar(tmp_path: Path, cloud: str) -> None:
    argv = [sys.executable, str(BENCH), "--only", cloud, "--files", "15000", "--linux", "generated", "--calls", "0"]
    argv += ["--work", str(tmp_path), "--out", str(tmp_path / "figures.json")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    requests = figures[f"{cloud} 15000"]["push"]["requests"]
    assert 0 < sum(requests.values()) <= BARS[cloud], requests


@pytest.mark.parametrize(
    "cloud", ["dropbox", "box", *(pytest.param(name, marks=pytest.mark.long) for name in ("gdrive", "onedrive"))]
)
def test_an_idle_hour_takes_no_more_requests_than_it_did(tmp_path: Path, cloud: str) -> None:
    """Time is counted, not waited for."""
    from clouds import bench_clouds

    with bench_clouds.running_cloud(cloud, tmp_path / "config") as running:
        how, requests = bench_clouds.idle_requests(cloud, running)
    assert 0 < requests <= IDLE[cloud], how


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
