"""The states kept for the way back to the next version's `skip`."""

from __future__ import annotations

from dataclasses import replace

from agreement_kit import GENESIS
from hypothesis import given
from hypothesis import strategies as st

from metasync.consensus.chain import step_back
from metasync.consensus.records.state import Change, State, line_after, skip_version, successor
from metasync.session import agreement

LAST = 300


def _chain() -> list[State]:
    chain = [GENESIS]
    for v in range(1, LAST):
        change = Change(op_id=v.to_bytes(16, "big"), master=v.to_bytes(32, "big"))
        chain.append(successor(chain[-1], change, skip=chain[skip_version(v)].hash, writer=bytes(15) + b"w"))
    return chain


CHAIN = _chain()


def _is_found(newest: State, line: list[State]) -> bool:
    """Whether the hash of the next version's `skip` can be had from the newest state and a line alone."""
    held = {state.hash: state for state in line}
    state, target = newest, skip_version(newest.v + 1)
    while state.v > target:
        below = step_back(state.v, target)
        digest = state.skip if below == skip_version(state.v) else state.prev
        if below == target:
            return digest == CHAIN[target].hash
        if digest not in held:
            return False
        state = held[digest]
    return state == CHAIN[target]


def test_who_saw_all_versions_needs_nobody() -> None:
    line: list[State] = []
    for state in CHAIN[1:]:
        line = line_after(line, [state])
        assert _is_found(state, line)
        assert len(line) == state.v.bit_count()


@given(st.lists(st.integers(1, LAST - 1), unique=True, min_size=1).map(sorted))
def test_who_saw_some_versions_keeps_those_on_the_way(seen: list[int]) -> None:
    line: list[State] = []
    for v in seen:
        line = line_after(line, [CHAIN[v]])
    newest, way = seen[-1], []
    v = newest
    while v:
        way.append(v)
        v = skip_version(v)
    held = [state.v for state in line]
    assert held == sorted(held)
    assert held[-1] == newest
    assert set(held) <= set(way) & set(seen)


def test_a_state_of_another_chain_is_never_taken_for_one_of_this() -> None:
    other = replace(CHAIN[6], master=b"o" * 32)
    line = line_after(line_after([], CHAIN[1:6]), [other])
    line = line_after(line, [CHAIN[7]])
    assert not _is_found(CHAIN[7], line)


def test_a_restart_from_an_earlier_version_begins_its_own_line() -> None:
    line = line_after([], CHAIN[1:200])
    again = replace(CHAIN[101], era=1, master=b"a" * 32)
    line = line_after(line, [again])
    assert line[-1] == again
    assert max(state.v for state in line) == 101


def test_a_damaged_line_is_none() -> None:
    line = line_after([], CHAIN[1:8])
    assert [state.v for state in line] == [4, 6, 7]
    note = agreement.LINE_KEY.codec.encode(line)
    assert agreement.LINE_KEY.load(note) == line
    assert agreement.LINE_KEY.load(note[:-1]) is None
