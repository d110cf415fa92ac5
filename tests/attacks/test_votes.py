"""Devices of the workspace that lie about what was decided (consensus.md, rules 8.1 and 8.2).

Each has valid keys, its own or a revoked device's, and may create objects on the backends. Whatever it writes, devices
that have pushed and devices that were away agree on one chain, and no backend is blamed.
"""

from __future__ import annotations

import pytest
from forger_kit import NOBODY, Forger
from paxos_world import Store, Workspace, World, change, make_workspace

from metasync.config import Form
from metasync.consensus import Group, State
from metasync.consensus.records.entry import Kind

LIAR = 2


class Place:
    """A workspace of three devices, the last of which lies; `x` is decided for version 1 while `away` was."""

    def __init__(self, n: int = 3, f: int = 0, forms: dict[str, Form] | None = None, away: str = "") -> None:
        self.world = World(7, ["abcd"[i] for i in range(n)])
        self.names = list(self.world.stores)
        self.ws: Workspace = make_workspace(self.world, 3, f, forms)
        self.emptied = {name: Store(store) for name, store in self.world.stores.items()}  # as they were founded
        self.forger = Forger(self.world, self.ws, LIAR)
        self.honest = self.group(1)
        self.disk: dict[str, bytes] = {}
        self.world.down = set(away)
        self.x = self.push(self.honest, self.ws.genesis, b"x")
        self.world.down = set()

    def group(self, number: int, device: int = 0) -> Group:
        return self.ws.group(bytes([number]) * 16, device)

    def push(self, group: Group, base: State, op: bytes) -> State:
        decided = self.world.do(group.propose(base, lambda: change(op * 16)), self.disk)
        self.world.run()
        assert decided.mine
        return decided.state

    def all_agree(self, chain: list[State]) -> None:
        """Who was away learns the newest version, while any one backend is away; who pushed goes on; no backend is
        blamed."""
        for number, away in enumerate(("", *self.names)):
            self.world.down = {away} - {""}
            sleeper = self.group(40 + number, 1)
            assert self.world.do(sleeper.get_recent(self.ws.genesis), {}) == chain[-1], f"{away} was away"
            assert sleeper.evidence == ()
        self.world.down = set()
        assert self.world.do(self.honest.get_recent(chain[-1]), self.disk) == chain[-1]
        after = self.push(self.honest, chain[-1], b"z")
        sleeper = self.group(60, 1)
        assert self.world.do(sleeper.get_recent(self.ws.genesis), {}) == after
        assert self.honest.evidence == sleeper.evidence == ()


@pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
@pytest.mark.parametrize("on", [1, 2, 3, 4])
def test_a_contrary_decided_leads_nobody_apart(n: int, f: int, on: int) -> None:
    """A device appends DECIDED of a lie to an agreed version, on any number of backends. It is a fence only where the
    lie was accepted, and never a vote."""
    p = Place(n, f)
    p.forger.tell(p.ws.genesis, p.names[:on], Kind.DECIDED, NOBODY, p.forger.lie(p.ws.genesis))
    p.all_agree([p.x])


@pytest.mark.parametrize("on", [2, 3])
def test_a_contrary_decided_in_an_open_version_ends_nothing(on: int) -> None:
    """DECIDED of a lie stands in the logs before anybody has proposed: the version is agreed as any other."""
    p = Place()
    p.forger.tell(p.x, p.names[:on], Kind.DECIDED, NOBODY, p.forger.lie(p.x))
    y = p.push(p.group(2, 1), p.x, b"y")
    p.all_agree([p.x, y])


def test_a_revoked_device_rewrites_no_version_before_its_revocation() -> None:
    """Its certificate still stands in the device set of then: it appends votes and DECIDED of its own."""
    p = Place()
    y = p.push(p.honest, p.x, b"y")
    lie = p.forger.lie(p.ws.genesis)
    for kind, rnd, value in ((Kind.PREPARE, p.forger.round(9), None), (Kind.ACCEPT, p.forger.round(9), lie)):
        p.forger.tell(p.ws.genesis, p.names, kind, rnd, value)
    p.forger.tell(p.ws.genesis, p.names, Kind.DECIDED, NOBODY, lie)
    p.all_agree([p.x, y])


def test_an_accept_that_nobody_prepared_is_no_vote() -> None:
    """x stands on a and b. ACCEPT of a lie is appended to b and c in a high round, without PREPARE."""
    p = Place(away="c")
    p.forger.tell(p.ws.genesis, "bc", Kind.ACCEPT, p.forger.round(9), p.forger.lie(p.ws.genesis))
    p.all_agree([p.x])


def test_a_second_value_in_anothers_round_stops_nobody() -> None:
    """A proposer died when its ACCEPT stood on a alone; c is given a lie in that very round. Neither has a quorum."""
    p = Place()
    died = Forger(p.world, p.ws, 0, b"d" * 16)
    rnd = died.round(1)
    p.forger.tell(p.x, "c", Kind.ACCEPT, rnd, p.forger.lie(p.x))
    died.tell(p.x, "abc", Kind.PREPARE, rnd)
    died.tell(p.x, "a", Kind.ACCEPT, rnd, died.lie(p.x, b"died"))
    decided = p.world.do(p.group(5, 1).propose(p.x, lambda: change(b"y" * 16)), {}).state
    p.world.run()
    p.all_agree([p.x, decided])


def test_first_entries_of_one_device_are_no_way_ahead() -> None:
    """It writes entries of version 3 on a made-up version 2 into every log, before anybody has agreed that one."""
    p = Place()
    lie = p.forger.lie(p.x, skip=p.ws.genesis.hash)
    p.forger.tell(lie, p.names, Kind.PREPARE, p.forger.round(1))
    p.forger.tell(p.x, p.names, Kind.PREPARE, p.forger.round(1))
    for known in (p.ws.genesis, p.x):
        assert p.world.do(p.group(5, 1).newest_seen(known), {}) in (p.ws.genesis, p.x)
        assert p.world.do(p.group(6, 1).get_recent(known), {}) == p.x


@pytest.mark.parametrize("forms", [
    {"a": "block", "b": "block", "c": "block"}, {"a": "log", "b": "block", "c": "block"}, {"c": "block"},
])  # fmt: skip
def test_one_block_in_each_store_tells_nobody_of_a_fork(forms: dict[str, Form]) -> None:
    """In block form, and where both forms vote, a revoked device puts a DECIDED of its own into every store."""
    p = Place(forms=forms)
    y = p.push(p.honest, p.x, b"y")
    p.forger.tell(p.ws.genesis, p.names, Kind.DECIDED, NOBODY, p.forger.lie(p.ws.genesis))
    sleeper = p.group(5, 1)
    assert p.world.do(sleeper.get_recent(p.ws.genesis), {}) == y
    assert sleeper.evidence == ()


def test_two_contrary_decided_in_the_blocks_of_one_device_are_no_votes_either() -> None:
    """Of votes it may cast one in a round; DECIDED is none, and the device is not named for having voted twice."""
    p = Place(forms=dict.fromkeys("abc", "block"))
    for op in (b"one-", b"two-"):
        p.forger.tell(p.ws.genesis, p.names, Kind.DECIDED, NOBODY, p.forger.lie(p.ws.genesis, op))
    sleeper = p.group(5, 1)
    assert p.world.do(sleeper.get_recent(p.ws.genesis), {}) == p.x
    assert not any("two values" in why for why in sleeper.take_void_values().values())
