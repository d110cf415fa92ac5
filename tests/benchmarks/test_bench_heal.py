"""`make bench-heal`: that its rows run and keep to their bars with few packs."""

from __future__ import annotations

from pathlib import Path

import pytest
from heal import scrub


@pytest.mark.long
def test_the_rows_of_scrubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASYNC_KEYRING", "off")
    missed = [row for row in scrub.rows(tmp_path, 200) if not row[3]]
    assert missed == []
