"""Devices that lie about the chain: values whose `skip` names no state of it (consensus.md, rule 8.4).

From a state agreed so, whoever walks back is led to no state, or onto another history, and calls honest devices liars.
A value shows the states that its `skip` rests on, each proven by the one before, and is VOID if they are not these.
"""

from __future__ import annotations

import pytest
from forger_kit import Forger
from paxos_world import change
from test_votes import Place

from metasync.config import Form
from metasync.consensus import State
from metasync.consensus.records.entry import Kind
from metasync.consensus.records.state import skip_version, step_versions

SIZES = pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
BLOCKS: dict[str, Form] = {"a": "block", "b": "block", "c": "block"}


def grown(p: Place, v: int) -> list[State]:
    """The chain from the genesis to version v, pushed by honest devices in turn."""
    chain = [p.ws.genesis, p.x]
    while len(chain) <= v:
        group = p.group(100 + len(chain), len(chain) % 2)
        assert p.world.do(group.get_recent(chain[-1]), p.disk) == chain[-1]
        chain.append(p.push(group, chain[-1], bytes([len(chain)])))
    return chain


def agree(p: Place, base: State, value: State, steps: list[State]) -> None:
    """The lying device has every backend accept its value."""
    for kind, x in ((Kind.PREPARE, None), (Kind.ACCEPT, value)):
        p.forger.tell(base, p.names, kind, p.forger.round(1), x, steps=steps if x else ())


def passed_over(p: Place, chain: list[State], why: str) -> None:
    """Nobody takes the value that stands in all logs; the next versions are agreed, and everybody learns them."""
    base = chain[-1]
    group = p.group(9, 1)
    assert p.world.do(group.get_recent(base), p.disk) == base
    told = group.take_void_values()
    assert {v for _, v in told} == {base.v + 1} and all(why in reason for reason in told.values())
    for op in range(1, 10):
        chain.append(p.push(group, chain[-1], bytes([200 + op])))
    for away in ("", *p.names):
        p.world.down = {away} - {""}
        sleeper = p.group(60, 1)
        assert p.world.do(sleeper.get_recent(p.ws.genesis), {}) == chain[-1]
        for v in range(len(chain)):
            assert p.world.do(sleeper.state_at(chain[-1], v), {}) == chain[v]
    p.world.down = set()


@pytest.mark.few(1)
@SIZES
def test_a_false_skip_stops_no_later_version(n: int, f: int) -> None:
    """A device proposes version 6, whose `skip` names no state there is. Version 8 needs it to find state 0."""
    p = Place(n, f)
    chain = grown(p, 5)
    agree(p, chain[-1], p.forger.lie(chain[-1], skip=b"\x22" * 32), [])
    passed_over(p, chain, "its skip names another state")


@pytest.mark.few(4)
@pytest.mark.parametrize("forms", [None, BLOCKS])
@pytest.mark.parametrize("v", [2, 3, 4, 6, 8, 12, 16])
def test_a_skip_that_names_no_state_is_void(v: int, forms: dict[str, Form] | None) -> None:
    """The lying device shows the right states, as far as the version asks for any, and names none of them."""
    p = Place(forms=forms)
    chain = grown(p, v - 1)
    agree(p, chain[-1], p.forger.lie(chain[-1], skip=b"\x22" * 32), [chain[u] for u in step_versions(v)])
    passed_over(p, chain, "its skip names another state")


@pytest.mark.few(1)
@pytest.mark.parametrize("v", [4, 8, 16])
def test_a_skip_onto_another_history_is_void(v: int) -> None:
    """The lying device makes up a history of right numbers, from the second version on, and shows its states."""
    p = Place()
    chain = grown(p, v - 1)
    lies = [p.ws.genesis]
    for u in range(1, v):
        steps = step_versions(u)
        skip = lies[skip_version(u)].hash
        lies.append(p.forger.lie(lies[-1], **({"skip": skip} if steps else {})))
    value = p.forger.lie(chain[-1], skip=lies[skip_version(v)].hash)
    for made_up in range(len(step_versions(v))):
        of = [chain if at < made_up else lies for at in range(len(step_versions(v)))]  # all states, or only the last
        agree(p, chain[-1], value, [of[at][u] for at, u in enumerate(step_versions(v))])
    passed_over(p, chain, "that its base does not lead back to")


@pytest.mark.few(1)
@pytest.mark.parametrize("forms", [None, BLOCKS])
@pytest.mark.parametrize("v", [4, 8])
def test_a_value_that_shows_no_way_or_too_much_is_void(v: int, forms: dict[str, Form] | None) -> None:
    """A true `skip` without its states would count for a reader that has them and not for another."""
    p = Place(forms=forms)
    chain = grown(p, v - 1)
    way = [chain[u] for u in step_versions(v)]
    value = p.forger.lie(chain[-1], skip=chain[skip_version(v)].hash)
    for steps in ([], way[1:], [*way, chain[skip_version(v)]]):
        agree(p, chain[-1], value, steps)
    passed_over(p, chain, "does not carry the states")


@pytest.mark.few(2)
@pytest.mark.parametrize("forms", [None, BLOCKS])
@pytest.mark.parametrize("v", [4, 8, 16])
def test_another_device_finishes_a_value_with_its_states(v: int, forms: dict[str, Form] | None) -> None:
    """A proposer dies when one backend has its value. Whoever finishes it shows the states that came with it."""
    p = Place(forms=forms)
    chain = grown(p, v - 1)
    died = Forger(p.world, p.ws, 0, b"d" * 16)
    value = died.lie(chain[-1], skip=chain[skip_version(v)].hash)
    died.tell(chain[-1], p.names, Kind.PREPARE, died.round(1))
    died.tell(chain[-1], "a", Kind.ACCEPT, died.round(1), value, steps=[chain[u] for u in step_versions(v)])
    decided = p.world.do(p.group(51, 1).propose(chain[-1], lambda: change(b"o" * 16)), {})
    p.world.run()
    assert (decided.state, decided.mine) == (value, False)
    for away in p.names:
        p.world.down = {away}
        assert p.world.do(p.group(52, 1).get_recent(p.ws.genesis), {}) == value
