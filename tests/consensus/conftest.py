"""The world of a test, with three backends, and a workspace with its keys in it."""

from __future__ import annotations

import pytest
from paxos_world import Workspace, World, make_workspace


@pytest.fixture
def world() -> World:
    return World(11, [*"abc"])


@pytest.fixture
def ws(world: World) -> Workspace:
    return make_workspace(world)
