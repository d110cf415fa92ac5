"""What is damaged is no answer, and never "nothing there" (consensus.md, rule 1.8)."""

from __future__ import annotations

import pytest
from paxos_world import World, change, make_workspace

from metasync.consensus.records.entry import entry_path
from metasync.errors import NoQuorumError


def test_a_rotten_first_entry_hides_no_newer_version() -> None:
    """Versions 1 and 2 stand on a and b. At a entry 0 of version 2 rots, and b is away: c alone cannot say what is
    newest."""
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    group, state = ws.group(b"1" * 16), ws.genesis
    world.down = {"c"}
    for op in (b"1", b"2"):
        state = world.do(group.propose(state, lambda op=op: change(op * 16))).state
        world.run()
    rotten = entry_path(ws.keys, 1, 0, ws.acceptor_of("a"), 2, 0)
    world.stores["a"][rotten] = world.stores["a"][rotten][:-1] + b"?"
    world.down = {"b"}
    reader = ws.group(b"2" * 16, 1)
    with pytest.raises(NoQuorumError):
        world.do(reader.get_recent(ws.genesis))
    world.down = set()
    assert world.do(ws.group(b"3" * 16, 1).get_recent(ws.genesis)) == state
