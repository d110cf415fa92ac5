"""Who was away while the keys were changed: what was absent by the names of one epoch is looked for by those of the
next."""

from __future__ import annotations

from typing import Any

import pytest
from forger_kit import Forger
from paxos_world import Workspace, World, change, make_workspace, ruled

from metasync.consensus import Change, Group, State, leaps
from metasync.consensus.records.entry import Kind
from metasync.keys.derive import sign_public
from metasync.keys.keyring import rotated_keys
from metasync.runtime.effects import Task


class Rotating:
    """A workspace whose devices hold the keys of two epochs, the second of which begins when a version says so."""

    def __init__(self, devices: int = 3) -> None:
        self.world = World(13, [*"abc"])
        self.ws: Workspace = make_workspace(self.world, devices)
        self.ws.keys = rotated_keys(self.ws.keys, b"2" * 32)
        self.one = self.group(1)

    def group(self, number: int, device: int = 0) -> Group:
        return self.ws.group(bytes([number]) * 16, device)

    def push(self, base: State, times: int) -> State:
        for _ in range(times):
            op_id = b"%16d" % base.v
            base = self.world.do(self.one.propose(base, lambda op_id=op_id: change(op_id))).state
        self.world.run()
        return base

    def rotation(self, base: State) -> dict[str, Any]:
        """What the version after `base` changes, with the keys. The device set is stored."""
        longer = ruled(self.ws, base, chain=self.ws.devices.chain.extended(self.ws.admin, sign_public(self.ws.admin)))
        return {"devices": self.world.do(self.one.put_const(base, longer.encode())), "epoch": 2}


@pytest.mark.parametrize("before", [1, 2, 5, 6])
def test_a_sleeper_finds_what_was_agreed_after_a_change_of_keys(before: int) -> None:
    r = Rotating()
    base = r.push(r.ws.genesis, before)
    rotation = Change(b"r" * 16, master=b"r" * 32, **r.rotation(base))
    rotated = r.world.do(r.one.propose(base, lambda: rotation)).state
    assert (rotated.epoch, base.epoch) == (2, 1)
    assert r.world.do(r.group(2, 1).get_recent(r.ws.genesis)) == rotated
    newest = r.push(rotated, 2)
    assert newest.v == before + 3
    assert r.world.do(r.group(3, 2).get_recent(r.ws.genesis)) == newest


def test_a_sleeper_that_goes_far_at_once_looks_behind_the_change_of_keys_too() -> None:
    """Version 1 stands on a and b, and a is away now: no log but one tells of it, so the first step is the far one."""
    r = Rotating(devices=2)
    r.world.down = {"c"}
    first = r.push(r.ws.genesis, 1)
    r.world.down = set()
    base = r.push(first, 5)
    rotation = Change(b"r" * 16, master=b"r" * 32, **r.rotation(base))
    newest = r.push(r.world.do(r.one.propose(base, lambda: rotation)).state, 2)
    r.world.down = {"a"}
    assert r.world.do(r.group(3, 1).get_recent(r.ws.genesis)) == newest


def test_a_look_that_gets_no_further_tells_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 was begun; where the way there ends at the version that is known, it is not looked for again."""
    r = Rotating()
    first = r.push(r.ws.genesis, 1)
    liar = Forger(r.world, r.ws, 2)
    liar.tell(first, "abc", Kind.PREPARE, liar.round(1))
    jumps: list[State] = []

    def nowhere(*args: Any, **_: Any) -> Task:
        yield from ()
        jumps.append(args[3])
        return args[3]

    monkeypatch.setattr(leaps, "jump", nowhere)
    assert r.world.do(r.group(3, 1).newest_seen(r.ws.genesis)) == first
    assert jumps == [r.ws.genesis]
