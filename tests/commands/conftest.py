"""A workspace that a command line finds."""

from __future__ import annotations

import os

import pytest
from workspace_kit import Lab, write


@pytest.fixture
def ready(lab: Lab) -> Lab:
    """A workspace on three folders, with one push."""
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"notes.txt": b"one\ntwo\n", "d/x": os.urandom(3000)})
    w.push("first")
    w.close()
    return lab
