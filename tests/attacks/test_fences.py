"""A device that writes between a decision and the fence behind it (consensus.md, rule 4.1).

Version 1 is decided, and as after a change of the backends nobody goes on before it is fenced. The device has valid
keys, and appends ACCEPT of a lie in a far round, which it never prepared, to the logs of that version.
"""

from __future__ import annotations

from typing import Final

import pytest
from forger_kit import Forger
from paxos_world import World, change, make_workspace

from metasync.config import Form
from metasync.consensus.records.entry import Kind

FAR: Final = 1 << 20


@pytest.mark.few
@pytest.mark.parametrize("forms", [None, {"b": "block"}, {"a": "block", "b": "block", "c": "block"}])
@pytest.mark.parametrize("away", ["", "a", "b", "c"])
@pytest.mark.parametrize("on", ["a", "ab", "abc"])
def test_a_late_vote_for_a_lie_stops_no_fence(on: str, away: str, forms: dict[str, Form] | None) -> None:
    """The logs vote for what is decided once more, above that round, and are closed with it. Without that nobody could
    push any more, nor revoke the device."""
    world = World(7, ["a", "b", "c"])
    ws = make_workspace(world, 3, 0, forms)
    base = ws.genesis
    group = ws.group(b"1" * 16, 0)
    decided = world.do(group.propose(base, lambda: change(b"x" * 16))).state
    world.run()
    forger = Forger(world, ws, 2)
    forger.tell(base, on, Kind.ACCEPT, forger.round(FAR), forger.lie(base))

    world.down = {away} - {""}
    fencing = ws.group(b"2" * 16, 1)
    world.do(fencing.fence(base, decided), {})

    instance = world.do(ws.group(b"3" * 16, 1).enter(base))
    for acceptor in instance.acceptors.values():
        world.do(acceptor.look())
    assert instance.decided() == decided
    assert sum(a.log.closed == decided for a in instance.acceptors.values()) >= instance.quorum
