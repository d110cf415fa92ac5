"""`make bench-deltas` on small documents: what it tells is of what it says."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import deltas
import pytest


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")


@pytest.mark.few(1)
@pytest.mark.parametrize("part", ["append", "document", "sqlite"])
def test_a_part_tells_a_figure_below_its_bar(tmp_path: Path, part: str) -> None:
    scale = {"append": 0.05, "document": 0.02, "sqlite": 0.005}[part]
    (told,) = deltas.PARTS[part](tmp_path, scale)
    assert 0 < told.value < told.bar
    assert told.what in told.row() and "met" in told.row()
    assert not list(tmp_path.iterdir())


def test_a_clone_of_deltas_reads_deltas(tmp_path: Path) -> None:
    (told,) = deltas.clone(tmp_path, 0.005, runs=1)
    assert told.value > 0


def test_the_loads_are_edited_versions_of_a_file() -> None:
    for kind in deltas.LOADS:
        versions = list(islice(kind(random.Random(1), 50_000), 3))
        assert len(set(versions)) == 3


def test_without_the_cache_no_deltas_are_made(tmp_path: Path) -> None:
    traffic, _ = deltas.played(tmp_path, deltas.edited, 100_000, 3, True)
    whole, _ = deltas.played(tmp_path, deltas.edited, 100_000, 3, False)
    assert traffic < 0.6 * whole


def test_missed_bars_end_with_a_list_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(deltas.PARTS, "append", lambda *_: iter([deltas.Told("it", 2.0, 1.0, "MB", "")]))
    with pytest.raises(SystemExit, match="missed: it"):
        deltas.main(["--only", "append", "--work", str(tmp_path)])
