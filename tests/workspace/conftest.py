"""Stores whose create races."""

from __future__ import annotations

import pytest
from racing_kit import race
from workspace_kit import Lab


@pytest.fixture
def racing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The lab, where every backend whose name begins with `dav` has a create that races."""
    return race(lab, monkeypatch, "block")
