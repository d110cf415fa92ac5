"""`make bench-providers`: that it runs, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import providers
import pytest


@pytest.mark.long
def test_a_push_is_measured(tmp_path: Path) -> None:
    argv = [sys.executable, providers.__file__, "--only", "file", "--files", "1,70", "--linux", "generated"]
    argv += ["--work", str(tmp_path), "--out", str(tmp_path / "figures.json")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    one, many = (figures["providers"]["file"]["push"][size] for size in ("1", "70"))
    assert 0 < one["calls"] < 80
    assert 0 < one["up_bytes"] < 100_000 < many["up_bytes"]
    assert one["cpu_s"] > 0
    assert (one["wire_requests"], one["wire_bytes"]) == (None, None), "no line to a folder"
    assert done.stdout.count("| file |") == 3
    assert figures["import_ms"] > 0


def test_a_server_that_is_not_there_is_left_out_with_the_reason(tmp_path: Path) -> None:
    wanted = providers.Provider("quux", "no_such_server", providers._folders)
    with (
        pytest.raises(RuntimeError, match=r"tests/servers has no no_such_server\.py"),
        providers.running(wanted, tmp_path),
    ):
        pass


def test_a_place_below_a_url_of_ones_own(tmp_path: Path) -> None:
    for url, below in {
        "s3://bucket/x?endpoint=http://h": "s3://bucket/x/a?endpoint=http://h",
        f"file://{tmp_path}/": f"file://{tmp_path}/a",
    }.items():
        with providers.running(providers.at(url), tmp_path) as server:
            assert server.url("a") == below
