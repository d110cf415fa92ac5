"""What a device says that it saw on the backends (consensus.md, rule 8.3)."""

from __future__ import annotations

import pytest
from paxos_world import World, change, make_workspace

from metasync.consensus.records.entry import Head, head_path, seal_head
from metasync.keys.derive import sha256


@pytest.mark.parametrize("far", [(1 << 20) + 2, 1 << 62])
def test_a_head_of_a_version_out_of_all_reach_accuses_nobody(far: int) -> None:
    """One device signs a head of a version that nobody can have agreed: no backend hides that one."""
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    group = ws.group(b"1" * 16)
    state = world.do(group.propose(ws.genesis, lambda: change(b"1" * 16))).state
    world.run()
    liar = ws.identities[2]
    made_up = Head(liar.device_id, far, sha256(b"lie"), bytes(32), bytes(32), b"")
    data = seal_head(ws.keys, made_up, liar, era=0, epoch=state.epoch, random=bytes(32))
    for store in world.stores.values():
        store[head_path(liar.device_id)] = data
    assert world.do(group.check_heads(state, list(world.stores))) == ((), ())
