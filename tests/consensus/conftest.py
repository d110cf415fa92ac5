"""A workspace with its keys in the world of a test."""

from __future__ import annotations

import pytest
from paxos_world import Workspace, World, make_workspace


@pytest.fixture
def ws(world: World) -> Workspace:
    return make_workspace(world)
