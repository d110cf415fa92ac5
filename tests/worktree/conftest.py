"""A working tree with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workdir import Workspace


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path) as found:
        yield found
