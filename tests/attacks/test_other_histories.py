"""A device says that another history was decided (consensus.md, rule 3.3): the logs tell, and not its word.

It signs entries, hints or floors on states of its own making. Nobody stops and no backend is blamed; the device is
named. What the logs bear out is a fork all the same, whoever tells of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from forger_kit import NOBODY
from paxos_world import Store, change
from test_votes import Place

from metasync.config import Form
from metasync.consensus import Group, State
from metasync.consensus.participant import Word
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Entry, Kind, floor_path, hint_path, seal_floor, seal_hint
from metasync.consensus.records.state import ZERO_HASH
from metasync.errors import DamagedError, ForkError, NoQuorumError
from metasync.keys.device_set import DeviceIdentity

SIZES = pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
ALL_FORMS = pytest.mark.parametrize(
    "forms", [{}, {"a": "block", "b": "block", "c": "block"}, {"c": "block"}], ids=["log", "block", "mixed"]
)


def named(group: Group, liar: DeviceIdentity) -> bool:
    """Whether this device, and no other, is told of as one that stands on another state."""
    told = group.take_void_values()
    assert all(isinstance(why, Word) for why in told.values()), "backends that were set back look the same"
    return {device for device, _ in told} == {liar.device_id} and all("another version" in why for why in told.values())


def liar_of(p: Place) -> DeviceIdentity:
    return p.ws.identities[p.forger.device]


def invented(p: Place, base: State, length: int, before: list[State] | None = None, **changes: Any) -> list[State]:
    """A chain of states after `base` that nobody agreed, with all the votes for each but the first.

    `before`: the states before `base`, by version, where it is not the first. `changes`: of the first made up.
    """
    chain = [*(before if before is not None else [p.ws.genesis] if base.v else []), base]
    assert [state.v for state in chain] == list(range(len(chain)))
    first = len(chain)
    chain.append(p.forger.lie(base, **changes, **({"skip": chain[first & (first - 1)].hash} if first % 4 == 0 else {})))
    for number in range(length - 1):
        v = len(chain)
        value = p.forger.lie(chain[-1], bytes([number, *b"lie"]), skip=chain[v & (v - 1)].hash)
        p.forger.agree(chain[-1], p.names, value, chain)
        chain.append(value)
    p.forger.tell(chain[-1], p.names, Kind.PREPARE, p.forger.round(1))
    return chain[first:]


@pytest.mark.few(1)
@pytest.mark.parametrize(("n", "f", "on"), [(3, 0, 1), (4, 1, 2), (3, 0, 3), (4, 1, 4)])
def test_an_entry_on_a_state_that_never_was_stops_nobody(n: int, f: int, on: int) -> None:
    """A device signs the first entry of the next version on a state of its own making, on one backend or on all."""
    p = Place(n, f)
    p.forger.tell(p.forger.lie(p.ws.genesis), p.names[:on], Kind.PREPARE, p.forger.round(1))
    for store in p.world.stores:  # a look ends with a quorum: with and without each, all are read
        p.world.down = {store}
        reader = p.group(3, 1)
        assert p.world.do(reader.get_recent(p.ws.genesis), {}) == p.x
        assert named(reader, liar_of(p)) or on == 1
    p.world.down = set()
    y = p.push(p.group(2, 1), p.x, b"y")
    p.all_agree([p.x, y])


@pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
def test_a_state_is_found_behind_entries_that_stand_on_others(n: int, f: int) -> None:
    """The same on all backends, several times: the way back through that version can be gone all the same.

    Without it nobody could skip a version that cannot be read, nor make up its mind about a chain.
    """
    p = Place(n, f)
    for number in range(3):
        p.forger.tell(p.forger.lie(p.ws.genesis, bytes([number])), p.names, Kind.PREPARE, p.forger.round(number + 1))
    y = p.push(p.group(2, 1), p.x, b"y")
    who_knows_nothing = p.group(4, 1)
    assert p.world.do(who_knows_nothing.state_at(y, 1), {}) == p.x


def test_a_state_that_no_entry_stands_on_is_lost_and_looked_for_to_the_ends_of_the_logs_alone() -> None:
    """The entries of the version after it are gone, but for lies: who looks for it asks for one more than there is."""
    p = Place()
    y = p.push(p.honest, p.x, b"y")
    for name in p.names:
        for idx in range(9):
            p.world.stores[name].pop(p.forger.place(p.x, name, idx), None)
    for number in range(3):
        p.forger.tell(p.forger.lie(p.ws.genesis, bytes([number])), p.names, Kind.PREPARE, p.forger.round(number + 1))
    for requests in p.world.requests.values():
        requests.clear()
    with pytest.raises(DamagedError, match="state of version 1"):
        p.world.do(p.group(4, 1).state_at(y, 1), {})
    for name in p.names:
        asked = {op.path for op in p.world.requests[name] if "/px/" in op.path}
        assert p.forger.place(p.x, name, 3) in asked
        assert p.forger.place(p.x, name, 4) not in asked


@ALL_FORMS
def test_so_it_is_where_blocks_vote(forms: dict[str, Form]) -> None:
    """The same in the first block of the next version."""
    p = Place(forms=forms)
    p.forger.tell(p.forger.lie(p.ws.genesis), p.names, Kind.PREPARE, p.forger.round(1))
    y = p.push(p.honest, p.x, b"y")
    sleeper = p.group(5, 1)
    assert p.world.do(sleeper.get_recent(p.ws.genesis), {}) == y
    assert sleeper.evidence == ()


def test_it_is_looked_into_once() -> None:
    """The look reads the logs of one version, and a process that has looked asks for nothing more."""
    p = Place()
    p.forger.tell(p.forger.lie(p.ws.genesis), p.names, Kind.PREPARE, p.forger.round(1))
    reader, quiet = p.group(3, 1), p.group(4, 1)
    p.world.do(reader.get_recent(p.x), {})
    counts = []
    for _ in range(2):
        for requests in p.world.requests.values():
            requests.clear()
        p.world.do(reader.get_recent(p.x), {})
        p.world.run()
        counts.append(sum("/px/" in op.path for ops in p.world.requests.values() for op in ops))
    assert counts[0] == counts[1] <= 4 * len(p.names), "the ends of the logs, and what lies ahead"
    assert named(reader, liar_of(p))
    assert quiet.take_void_values() == {}


@pytest.mark.few(2)
@SIZES
@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_chain_that_one_device_made_up_and_voted_for_alone_stops_nobody(n: int, f: int, length: int) -> None:
    """Each of its states but the first has a quorum of votes, on the state before, which was never decided."""
    p = Place(n, f)
    invented(p, p.ws.genesis, length)
    for number, known in enumerate((p.ws.genesis, p.x)):
        assert p.world.do(p.group(5 + number, 1).get_recent(known), {}) == p.x
        assert p.world.do(p.group(7 + number, 1).newest_seen(known), {}) in (p.ws.genesis, p.x)
    y = p.push(p.group(2, 1), p.x, b"y")
    p.all_agree([p.x, y])


def test_a_revoked_device_stops_nobody_who_was_away() -> None:
    """It appends to an agreed version, whose device set admits it, an entry on a state of its own making."""
    p = Place()
    y = p.push(p.honest, p.x, b"y")
    p.forger.tell(p.forger.lie(p.ws.genesis), p.names, Kind.PREPARE, p.forger.round(9))
    assert p.world.do(p.group(5, 1).get_recent(p.x), {}) == y
    p.all_agree([p.x, y])


def test_hints_and_floors_of_a_history_that_never_was_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device puts them on all backends before anybody else does, so that the logs seem to be gone."""
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 8)
    p = Place()
    chain = invented(p, p.ws.genesis, 9)
    told(p, liar_of(p), chain[-2], chain[-1])
    p.push(p.honest, p.x, b"y")
    reader = p.group(3, 1)
    newest = p.world.do(p.honest.get_recent(p.x), p.disk)
    assert p.world.do(reader.get_recent(p.x), {}) == newest
    assert named(reader, liar_of(p))
    p.push(reader, newest, b"z")
    assert reader.evidence == ()


def told(p: Place, device: DeviceIdentity, base: State, state: State) -> None:
    """A hint and a floor on every backend, by this device."""
    for name, store in p.world.stores.items():
        a = p.ws.acceptor_of(name)
        entry = Entry(
            acceptor_id=a, v=state.v, idx=0, prev_entry=ZERO_HASH, base=base, kind=Kind.DECIDED, round=NOBODY,
            value=state, entry_id=bytes(16), device_id=device.device_id,
        )  # fmt: skip
        store[hint_path(a)] = seal_hint(p.ws.keys, entry, device.sign_private, bytes(32))
        store[floor_path(a, 8)] = seal_floor(p.ws.keys, entry, device.sign_private, bytes(32))


def twice_upon_a_time(length: int) -> tuple[Place, State, list[State]]:
    """All backends were put back to the beginning, and others went on from there: a fork, without anybody who lies.

    -> (the place as it is now; what one device knows, of the first history; the second one).
    """
    p = Place()
    known = p.push(p.honest, p.x, b"y")
    p.world.stores.update({name: Store(store) for name, store in p.emptied.items()})
    other = p.group(9, 1)
    chain = [p.ws.genesis]
    for number in range(length):
        chain.append(p.push(other, chain[-1], bytes([65 + number])))
    return p, known, chain


@pytest.mark.parametrize("length", [3, 6])
def test_what_the_logs_bear_out_is_a_fork(length: int) -> None:
    """Who knows the first history is told, by a look and by a push, and again when it tries again."""
    p, known, _ = twice_upon_a_time(length)
    group = p.group(3)
    for _ in range(2):
        with pytest.raises(ForkError, match="stands on another state"):
            p.world.do(group.get_recent(known), {})
        with pytest.raises(ForkError, match="stands on another state"):
            p.world.do(group.propose(known, lambda: change(b"z" * 16)), {})


def test_a_liar_hides_no_fork_that_the_logs_bear_out() -> None:
    """Its word of a third history stands before all others."""
    p, known, chain = twice_upon_a_time(2)
    p.forger.tell(p.forger.lie(chain[1]), p.names, Kind.PREPARE, p.forger.round(1))
    p.push(p.group(9, 1), chain[-1], b"C")
    with pytest.raises(ForkError, match="stands on another state"):
        p.world.do(p.group(3).get_recent(known), {})


def test_a_word_that_could_not_be_judged_once_is_looked_into_again_when_another_device_says_it() -> None:
    """A device that lies says it first, while backends are away; then an honest one that was led there."""
    p, known, chain = twice_upon_a_time(2)
    p.forger.tell(chain[-1], "a", Kind.PREPARE, p.forger.round(1))
    group = p.group(3)
    p.world.down = {"b", "c"}
    with pytest.raises(NoQuorumError):
        p.world.do(group.get_recent(known, deadline_s=3.0))
    assert named(group, liar_of(p))
    p.world.down = set()
    p.push(p.group(9, 1), chain[-1], b"C")
    with pytest.raises(ForkError, match="stands on another state"):
        p.world.do(group.get_recent(known))


def test_floors_of_a_history_that_the_logs_bear_out_are_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 8)
    p, known, chain = twice_upon_a_time(9)
    told(p, p.ws.identities[0], chain[-2], chain[-1])
    with pytest.raises(ForkError, match="does not descend"):
        p.world.do(p.group(3).get_recent(known), {})
