"""`tests/benchmarks/scale.py`: what it makes, what counts as missed, and that its parts run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scale

from metasync.backends.folder import FolderBackend


def test_the_files_are_as_many_as_asked_for_and_no_two_alike(tmp_path: Path) -> None:
    scale.make_files(tmp_path / "spread", 2_001, flat=False)
    scale.make_files(tmp_path / "flat", 1_001, flat=True)
    spread = [p for p in (tmp_path / "spread").rglob("*") if p.is_file()]
    assert (len(spread), len({p.read_bytes() for p in spread})) == (2_001, 2_001)
    assert {len(list(p.iterdir())) for p in (tmp_path / "spread").iterdir()} == {1_000, 1}
    assert len(os.listdir(tmp_path / "flat")) == 1_001


def test_data_is_found_between_holes_and_zeros_are_none(tmp_path: Path) -> None:
    scale.make_sparse(tmp_path / "d" / "f", 50 << 20)
    path = tmp_path / "d" / "f"
    places = [at for at, _ in scale.data_of(path)]
    assert places == [0, 25 << 20, 49 << 20]
    before = list(scale.data_of(path))
    with path.open("r+b") as file:
        file.seek(7 << 20)
        file.write(bytes(5000))
    assert list(scale.data_of(path)) == before
    with path.open("r+b") as file:
        file.seek(7 << 20)
        file.write(b"x")
    assert list(scale.data_of(path)) != before


def test_a_discarding_store_keeps_names_and_sizes_of_packs_and_all_else_whole(tmp_path: Path) -> None:
    store = scale._discarding(FolderBackend(str(tmp_path)), tmp_path)
    name = "a/packs/1/9f/" + "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    assert store.create(name, b"test")
    assert not store.create(name, b"test")
    assert (store.stat(name), store.get(name, max_bytes=10)) == (4, bytes(4))
    assert store.create("a/log/1", b"test")
    assert store.get("a/log/1", max_bytes=10) == b"test"
    with pytest.raises(SystemExit, match="not named by what is in it"):
        store.create(name, b"other")


def test_what_is_missed_is_named() -> None:
    good = {"wall_s": 5.9, "peak_mb": 200.0}
    slow = {"wall_s": 6.1, "peak_mb": 1.0}
    fat = {"wall_s": 1e3, "peak_mb": 201.0}
    assert scale.missed("files", {1_000_000: {"no-change push": good, "push": good, "one-file push": slow}}) == []
    assert scale.missed("files", {1_000: {"no-change push": slow}}) == []
    assert scale.missed("flat", {1_000_000: {"no-change push": slow}, 10: {"clone": fat}}) == [
        "flat, 1,000,000, no-change push: 6.1 s, at most 6 wanted",
        "flat, 10, clone: 201 MB, at most 200 wanted",
    ]


@pytest.mark.long
def test_its_parts_run(tmp_path: Path) -> None:
    argv = [sys.executable, scale.__file__, "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out.json")]
    argv += ["--files", "30", "--large-gb", "0.003", "--sparse-gb", "0.02"]
    done = subprocess.run(argv, check=False, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads((tmp_path / "out.json").read_text())
    for part in ("files", "flat"):
        steps = figures[part]["30"]
        assert set(steps) == set(scale.STEPS)
        assert steps["one-file push"]["requests"] > steps["no-change push"]["requests"] > 0
        assert steps["clone"]["down_mb"] > 0
    large, sparse = figures["large"]["3000000"], figures["sparse"]["20000000"]
    assert large["push"]["up_mb"] > 3 > large["one-file push"]["up_mb"]
    assert sparse["push"]["up_mb"] < 1
    assert sparse["clone"]["disk_mb"] > 0
    assert sorted(os.listdir(tmp_path / "work")) == ["files-30", "flat-30"]
    assert not (tmp_path / "work" / "files-30" / ".metasync").exists()
