"""`make bench` over S3, near and far: what the proxy counts of each program, and that clones come out right there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import s3

pytestmark = pytest.mark.servers

BENCH = Path(__file__).parents[1] / "benchmarks/bench.py"
PEERS = ("metasync", "restic", "rclone-tuned", "git")


def test_the_quick_bench_near_and_far(tmp_path: Path) -> None:
    binary = s3.find_binary()
    if binary is None:
        pytest.skip("no versitygw: tests/servers/versitygw.sh builds it")
    out = tmp_path / "out.json"
    options = ["--quick", "--net", "near,far", "--stores", "s3", "--linux", "generated", "--peers", ",".join(PEERS)]
    result = subprocess.run(
        [sys.executable, str(BENCH), *options, "--work", str(tmp_path / "work"), "--out", str(out)],
        env={**os.environ, "METASYNC_S3_SERVER": binary},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    print(result.stdout)
    rows = json.loads(out.read_text())["rows"]
    here = {p for p in PEERS if p == "metasync" or shutil.which(p.partition("-")[0])}
    assert {r["peer"] for r in rows if r["net"] == "near"} == here
    assert {r["peer"] for r in rows if r["net"] == "far"} == here - {"git"}
    counted = {(r["net"], r["peer"], r["step"]): r for r in rows if "requests" in r}
    assert all(r["run"] == (0 if net == "near" else 1) for (net, _, _), r in counted.items())
    assert len(counted) == 2 * 6 * len(here - {"git"})
    for net in ("near", "far"):
        push = counted[net, "metasync", "push"]
        assert push["up_mb"] > 2 * push["down_mb"], "two copies of 1.6 MB, half of it incompressible"
        assert counted[net, "metasync", "clone"]["down_mb"] > 0.8
        assert 0 < counted[net, "metasync", "no-change push"]["requests"] < push["requests"]
        if "rclone-tuned" in here:
            assert counted[net, "rclone-tuned", "push"]["requests"] >= 70, "a file, a request"
    # Two round trips at the least: to ask, and before that to connect.
    assert all(r["wall_s"] > 0.16 for r in rows if r["net"] == "far")
