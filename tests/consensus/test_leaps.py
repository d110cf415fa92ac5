"""Sleepers that wake behind a floor, when some of the backends that they know are backends no more.

The sleeper knows four voting backends, three of which make a quorum. Two of them were removed, one after the other. The
logs of the two that stay were deleted below the floor; these two show the newest version. So it takes a third witness.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from paxos_world import change
from test_floors import collect, push
from test_reconfig import Room, changing

from metasync.consensus import Change, Group, State, chain, truncation
from metasync.consensus.hints import decided_entry
from metasync.consensus.objects import const_path
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Kind, Round, entry_path, hint_path, seal_hint
from metasync.consensus.records.state import skip_version, successor
from metasync.errors import NoQuorumError

BLOCK = 8
WAY = "the way to the newer versions cannot be read"


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors at multiples of 8 in place of 1024."""
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", BLOCK)
    monkeypatch.setattr(chain, "VERSIONS_PER_FOLDER", BLOCK)
    monkeypatch.setattr(truncation, "STEP", BLOCK)
    monkeypatch.setattr(truncation, "BEHIND_LEAST", BLOCK)


@dataclass
class Past:
    """`known`: what the sleeper knows; `removal`: the version that removed the first backend; `newest`: the state."""

    room: Room
    known: State
    removal: int
    newest: State

    def sleeper(self, device: int = 1) -> Group:
        return self.room.group(b"9" * 16, device)

    def wakes(self) -> State:
        latest: State = self.room.world.do(self.sleeper().get_recent(self.known, deadline_s=20.0))
        return latest

    def first_entries(self, name: str, v: int) -> list[str]:
        """The paths of a version's entries on one of the first backends, in their order."""
        ws, a = self.room.ws, self.room.ws.acceptor_of(name)
        paths = (entry_path(ws.keys, self.known.epoch, self.known.era, a, v, idx) for idx in range(64))
        return [path for path in paths if path in self.room.world.stores[name]]


@pytest.fixture
def past() -> Past:
    return passed()


def passed(*, away: str = "") -> Past:
    """Of a, b, c and d, b is removed, then d, which is emptied. a and c keep short logs.

    `away`: the backend that is away while b is removed.
    """
    room = Room.made(11, "abcd")
    world, group, told = room.world, room.group(b"1" * 16), []
    known = push(world, group, room.ws.genesis, 3)
    state = push(world, group, known, 2)
    world.down |= {away} - {""}
    state = world.do(changing(room, group, state, lambda c: room.step(c, remove="b"), told))
    world.down.clear()
    removal = told[0].v
    state = push(world, group, state, 2)
    state = world.do(changing(room, group, state, lambda c: room.step(c, remove="d"), told))
    world.stores["d"].clear()
    state = push(world, group, state, 40)
    collect(world, group, state)
    world.now += 40 * 86_400.0
    return Past(room, known, removal, state)


def test_the_log_that_the_fence_closed_is_the_third_witness(past: Past) -> None:
    assert past.wakes() == past.newest


def test_a_log_that_the_fence_did_not_reach_is_none(past: Past) -> None:
    """A vote alone says that a value was proposed, and not that it was decided."""
    fence = past.first_entries("b", past.removal)[-1]
    del past.room.world.stores["b"][fence]
    with pytest.raises(NoQuorumError, match=WAY):
        past.wakes()


def test_a_removed_backend_that_was_emptied_is_none(past: Past) -> None:
    """Its entries were restored, and its birth was not: what it took in between is unknown."""
    store = past.room.world.stores["b"]
    for path in [p for p in store if p.endswith("/birth")]:
        del store[path]
    with pytest.raises(NoQuorumError, match=WAY):
        past.wakes()


def test_a_closed_log_bears_out_its_own_history_alone(past: Past) -> None:
    """A device that was admitted then writes hints of a version of its own to both removed backends. The fence of the
    one that stands speaks for what was decided, whatever its hint says now."""
    room, liar = past.room, past.sleeper(device=2)
    skip = room.world.do(liar.state_at(past.known, 0)).hash
    forged = successor(past.known, change(b"f" * 16), skip=skip, writer=b"w" * 16)
    for name in "bd":
        a = room.ws.acceptor_of(name)
        entry = decided_entry(liar.participant, a, past.known, forged, b"e" * 16)
        sealed = seal_hint(room.ws.keys, entry, liar.participant.identity.sign_private, b"r" * 32)
        room.world.stores[name][hint_path(a)] = sealed
    assert past.wakes() == past.newest


def test_a_log_that_a_liar_closed_is_one_witness_of_its_own() -> None:
    """The fence did not reach the removed backend. A device that was admitted then closes its log on a value of its
    own, and writes a hint of that to the other removed one: two of the four, whose logins nobody withdrew."""
    past = passed(away="b")
    room, liar = past.room, past.sleeper(device=2)
    base = room.world.do(liar.state_at(past.newest, past.removal - 1))
    real = room.world.do(liar.state_at(past.newest, past.removal))
    instance = room.world.do(liar.enter(base))
    skip = room.world.do(liar.state_at(base, skip_version(base.v + 1))).hash
    forged = successor(base, Change(b"f" * 16, config=real.config, devices=real.devices), skip=skip, writer=b"w" * 16)
    for digest in (real.config, real.devices):  # entries carry what is new
        sealed = room.world.stores["a"][const_path(room.ws.acceptor_of("a"), digest.hex())]
        liar.participant.keep_object(digest, sealed)
    rnd = Round(1 << 20, b"w" * 16)
    for kind, value in ((Kind.PREPARE, None), (Kind.ACCEPT, forged), (Kind.DECIDED, forged)):
        sent = room.world.do(instance.acceptors[room.ws.acceptor_of("b")].append(kind, rnd, value, rnd))
        assert sent.kind == "done"
    entry = decided_entry(liar.participant, room.ws.acceptor_of("d"), base, forged, b"e" * 16)
    sealed = seal_hint(room.ws.keys, entry, liar.participant.identity.sign_private, b"r" * 32)
    room.world.stores["d"][hint_path(entry.acceptor_id)] = sealed
    shown = room.world.do(past.sleeper().enter(base)).acceptors[room.ws.acceptor_of("b")]
    assert room.world.do(shown.look()).kind == "done"
    assert shown.log.closed == forged
    with pytest.raises(NoQuorumError, match=WAY):
        past.wakes()
