"""A clock for limits."""

from __future__ import annotations

import pytest
from limits_kit import Times


@pytest.fixture
def times() -> Times:
    return Times()
