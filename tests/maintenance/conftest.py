"""Workspaces of six versions for the tests of collections."""

from __future__ import annotations

import pytest
from collect_kit import STORES, six_versions
from workspace_kit import Lab

from metasync.workspace import Workspace


@pytest.fixture
def six(lab: Lab) -> Workspace:
    return six_versions(lab.init(lab.urls(*STORES)))


@pytest.fixture
def two(six: Workspace, lab: Lab) -> Workspace:
    """Another device, at version 6."""
    return lab.clone(lab.urls(*STORES))
