"""The agreed state: its bytes, what may follow what, and the skip list of versions."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from agreement_kit import BASE, GENESIS, OWNER, drawn
from hypothesis import given
from hypothesis import strategies as st

from metasync.consensus.chain import step_back
from metasync.consensus.records.state import (
    STATE_BYTES,
    VERSION_MAX,
    ZERO_HASH,
    ZERO_ID,
    Change,
    Ref,
    State,
    decode_state,
    follows,
    skip_after,
    skip_version,
    step_versions,
    successor,
)
from metasync.errors import FormatError, UpgradeError

h32, h16 = st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16)
n32, n64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
versions = st.integers(0, VERSION_MAX)
refs = st.builds(Ref, n64, h32)
indexes = st.builds(Ref, st.integers(0, (1 << 63) - 1), h32)  # the highest bit says whether it rides
states = st.builds(
    State,
    h32,
    n32,
    versions,
    h32,
    h32,
    h32,
    h32,
    indexes,
    refs,
    h32,
    h32,
    n32,
    n64,
    n64,
    h16,
    h16,
    h32,
    min_fmt=st.just(1),
)


@given(states)
def test_a_state_has_one_byte_string_of_fixed_length(state: State) -> None:
    data = state.encode()
    assert len(data) == STATE_BYTES
    assert decode_state(data) == state
    assert decode_state(data).hash == state.hash


@given(states, st.integers(2, STATE_BYTES - 1), st.integers(1, 255))
def test_every_byte_counts(state: State, at: int, flip: int) -> None:
    bad = bytearray(state.encode())
    bad[at] ^= flip
    if int.from_bytes(bad[38:46], "big") > VERSION_MAX:
        with pytest.raises(FormatError):
            decode_state(bytes(bad))
        return
    other = decode_state(bytes(bad))
    assert other != state
    assert other.hash != state.hash


@given(st.binary(max_size=500))
def test_rubbish_is_refused(data: bytes) -> None:
    if len(data) == STATE_BYTES and data[0] == 1:
        return
    with pytest.raises((FormatError, UpgradeError)):
        decode_state(data)


def test_genesis_is_nobodys() -> None:
    assert (GENESIS.v, GENESIS.writer, GENESIS.prev, GENESIS.skip) == (0, ZERO_ID, ZERO_HASH, ZERO_HASH)
    assert GENESIS.index == GENESIS.retained == Ref(0, ZERO_HASH)


def test_a_successor_keeps_what_is_not_changed() -> None:
    nxt = successor(BASE, Change(drawn("op", 16), gen=1), skip=GENESIS.hash, writer=OWNER)
    changed = {f.name for f in fields(State) if getattr(nxt, f.name) != getattr(BASE, f.name)}
    assert changed == {"v", "prev", "gen", "op_id"}  # `skip` leads to state 0 in both
    assert nxt.prev == BASE.hash
    assert follows(nxt, BASE)


GOOD = successor(BASE, Change(drawn("op", 16), gen=1, min_gen=1), skip=GENESIS.hash, writer=OWNER)


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 3},
        {"prev": drawn("x")},
        {"ns_id": drawn("x")},
        {"era": 1},
        {"epoch": 0},
        {"min_gen": 5},
        {"writer": ZERO_ID},
        {"min_fmt": 0},
        {"skip": drawn("x")},
    ],
    ids=lambda w: next(iter(w)),
)
def test_what_cannot_follow(wrong: dict[str, Any]) -> None:
    assert follows(GOOD, BASE)
    assert not follows(replace(GOOD, **wrong), BASE)


def test_generations_and_fences_never_go_back() -> None:
    later = replace(GOOD, v=3, prev=GOOD.hash, skip=GOOD.hash)
    assert follows(later, GOOD)
    assert not follows(replace(later, gen=0), GOOD)
    assert not follows(replace(later, min_gen=0), GOOD)
    assert not follows(replace(later, skip=drawn("x")), GOOD)  # an odd version's skip is its prev
    with pytest.raises(ValueError, match="fall behind"):
        successor(GOOD, Change(drawn("op", 16), gen=0), skip=GOOD.hash, writer=OWNER)


@given(st.lists(st.integers(1, 40), max_size=8), st.data())
def test_the_skip_of_an_honest_chain_is_borne_out_over_eras(lengths: list[int], data: st.DataObject) -> None:
    """The first state of an era has the next version, or the next power of two and a skip to state 0."""
    chain = {0: GENESIS}
    last = GENESIS
    for length in lengths:
        for v in range(last.v + 1, last.v + length + 1):
            steps = [chain[u].encode() for u in step_versions(v)]
            skip = skip_after(last, steps)
            assert skip == chain[skip_version(v)].hash
            last = chain[v] = successor(last, Change(drawn(f"{v} {last.era}", 16)), skip=skip, writer=OWNER)
            if steps:
                other = data.draw(st.integers(0, len(steps) - 1))
                bad = [*steps[:other], replace(chain[step_versions(v)[other]], writer=drawn("x", 16)).encode()]
                for wrong in ([*bad, *steps[other + 1 :]], steps[1:], [*steps, steps[-1]], []):
                    with pytest.raises(FormatError):
                        skip_after(chain[v - 1], wrong)
        v, skip = last.v + 1, chain[skip_version(last.v + 1)].hash
        if data.draw(st.booleans()):
            v, skip = 1 << last.v.bit_length(), GENESIS.hash
        last = chain[v] = replace(last, era=last.era + 1, v=v, prev=last.hash, skip=skip, writer=ZERO_ID)


@given(st.integers(1, 1 << 40), st.data())
def test_any_version_is_few_steps_away(v: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(0, v))
    steps, at = 0, v
    while at > least:
        before, at = at, step_back(at, least)
        assert least <= at < before
        assert at in (before - 1, skip_version(before))
        steps += 1
    bits = v.bit_length()
    assert steps <= bits * (bits + 1) // 2


def test_a_fingerprint_is_short() -> None:
    assert BASE.fingerprint == f"1-{BASE.hash.hex()[:10]}"
