"""`make bench-heal`: that its rows run and keep to their bars with few packs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from heal import faults, index, scrub


@pytest.mark.long
def test_the_rows_of_scrubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    monkeypatch.setattr(scrub, "RING_PACKS", 200)
    missed = [row for row in scrub.rows(tmp_path, 200) if not row[3]]
    assert missed == []


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc, which tells the most memory")
def test_the_rows_of_a_large_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SHAPES", (index.Shape(packs=40, segments=2, objects=5, together=15),))
    found = list(index.rows(tmp_path))
    assert [row for row in found if not row[3]] == []
    assert len(found) == 1 + len(index.STEPS)


@pytest.mark.long
def test_the_rows_of_the_fault_campaign() -> None:
    with tempfile.TemporaryDirectory() as short:  # sockets lie below it, whose paths have 107 bytes at most
        found = list(faults.rows(Path(short), 5))
    assert [row for row in found if not row[3]] == []
    assert [row[0] for row in found] == ["simulated rounds", "rounds on real processes", "all of it"]
