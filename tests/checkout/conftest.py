"""A working tree with its local state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workdir import Workspace


@pytest.fixture
def work(tmp_path: Path) -> Any:
    with Workspace(tmp_path) as found:
        yield found
