"""A store that is busy, or away, at the wrong moment is blamed for nothing (consensus.md, rule 1.10)."""

from __future__ import annotations

from paxos_world import World, change, make_workspace

from metasync.errors import UnreachableError
from metasync.runtime.effects import Op, Reply


def test_a_store_that_is_busy_when_its_floor_is_asked_for_has_done_nothing_wrong() -> None:
    """What this device saw at b is below a floor and was deleted. b answers 503 to the second look at that floor."""
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    first = ws.group(b"1" * 16)
    state = world.do(first.propose(ws.genesis, lambda: change(b"1" * 16))).state
    world.run()
    memory = first.memory
    for path in [p for p in world.stores["b"] if "/px/" in p]:
        del world.stores["b"][path]
    asked = [0]

    def busy(op: Op) -> Reply | None:
        if op.backend != "b" or op.kind != "get" or "/floor/" not in op.path:
            return None
        asked[0] += 1
        return Reply(error=UnreachableError("503: try again")) if asked[0] > 1 else None

    world.fault_hook = busy
    again = ws.group(b"2" * 16, memory=memory)
    assert world.do(again.get_recent(ws.genesis)) == state
    world.run()
    assert again.evidence == ()
