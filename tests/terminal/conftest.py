"""A laboratory for what is shown on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace_kit import Lab


@pytest.fixture
def folder(lab: Lab) -> Iterator[Path]:
    """A workspace `docs` on a, b and c, of this device `laptop` and another one, `phone`."""
    w = lab.init(lab.urls("a", "b", "c"))
    lab.clone(lab.urls("a", "b", "c"), device="phone").close()
    w.close()
    yield w.directory
