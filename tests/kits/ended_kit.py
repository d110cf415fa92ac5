"""How a device ends a version: the ways, and logs that take few entries."""

from __future__ import annotations

import pytest

from metasync.consensus.records import log_replay

WAYS = pytest.mark.parametrize("how", ["garbage", "last round", "full"])
FEW = 24  # entries that a log takes here, in place of 10,000


def shorten_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a log take `FEW` entries."""
    monkeypatch.setattr(log_replay, "LOG_ENTRIES_MAX", FEW)
