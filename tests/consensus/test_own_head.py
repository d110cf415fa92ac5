"""How often a process writes its device's head (`consensus.hints`): a hint, for which no push waits twice a minute."""

from __future__ import annotations

from paxos_world import World, make_workspace

from metasync.consensus.hints import HEAD_EVERY_S, OwnHead
from metasync.consensus.records.entry import head_path


def test_a_head_is_written_at_once_then_once_a_minute_and_when_the_clock_went_back() -> None:
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    own, group = OwnHead(), ws.group(b"1" * 16)
    what = ws.genesis, bytes(32), bytes(32)
    assert own.say(*what, now_s=5.0)
    assert own.waiting == what
    assert world.do(own.written(group.participant, ["a", "b", "c"])) > 0
    assert own.waiting is None
    assert own.written_s is not None
    assert not own.say(*what, now_s=own.written_s)
    assert not own.say(*what, now_s=own.written_s + HEAD_EVERY_S - 0.1)
    assert own.say(*what, now_s=own.written_s + HEAD_EVERY_S)
    assert own.say(*what, now_s=own.written_s - 0.1)


def test_where_nothing_waits_nothing_is_written() -> None:
    world = World(3, ["a", "b", "c"])
    ws = make_workspace(world)
    group = ws.group(b"1" * 16)
    assert world.do(OwnHead().written(group.participant, ["a", "b", "c"])) == 0
    path = head_path(ws.identities[0].device_id)
    assert not [op for ops in world.requests.values() for op in ops if op.path == path]
