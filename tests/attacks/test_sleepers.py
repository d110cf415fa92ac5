"""Devices that were away for several versions, and one that makes up a history for them (consensus.md, rule 1.8).

It goes on from an agreed version that nobody has passed yet, and gives every state of its own all the votes but the
first. Those who know the agreed version stay there. Whoever jumps over that place would go on where nobody else is.
"""

from __future__ import annotations

import pytest
from forger_kit import Forger
from paxos_world import change
from test_other_histories import SIZES, invented, liar_of
from test_votes import Place

from metasync.config import Form
from metasync.consensus import Group, State
from metasync.consensus.objects import seal_object
from metasync.consensus.participant import Word
from metasync.consensus.records.entry import Kind
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.errors import NoQuorumError
from metasync.keys.derive import RecordKind
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device


def made_up(p: Place, base: State, length: int) -> list[State]:
    """`invented`, on top of a chain that is longer than one version."""
    chain = [p.ws.genesis, p.x] if base.v == 2 else []
    return invented(p, base, length, chain)


def tell_head(p: Place, device: int, state: State) -> None:
    """The head of a device, which says that it has synchronised this."""
    group = p.group(90 + device, device)
    p.world.do(group.write_head(state, head=bytes(32), prev=bytes(32), backends=p.names))
    p.world.run()


def wakes(p: Place, known: State, newest: State) -> Group:
    """A device that knows an older state looks for the newest one, with each of the backends away."""
    for number, away in enumerate((*p.names, "")):
        p.world.down = {away} - {""}
        sleeper = p.group(20 + number, 1)
        assert p.world.do(sleeper.get_recent(known), {}) == newest, f"from version {known.v}, {away} away"
        assert sleeper.evidence == ()
    return sleeper


@pytest.mark.few(4)
@SIZES
@pytest.mark.parametrize("on", ["", "a", "abc"])
@pytest.mark.parametrize("length", [2, 9])
def test_a_history_that_one_device_voted_for_alone_leads_nobody_astray(n: int, f: int, length: int, on: str) -> None:
    """A device makes up versions on top of the newest one, with all votes but for the first of them. Who knows the
    newest stays there; who comes from further back does so, too. `on`: where it shows the newest one's state, so that
    the way back to it can be walked; then it is named."""
    p = Place(n, f)
    y = p.push(p.honest, p.x, b"y")
    made_up(p, y, length)
    p.forger.tell(y, on, Kind.PREPARE, p.forger.round(1))
    for known in (y, p.x, p.ws.genesis):
        sleeper = wakes(p, known, y)
    named = sleeper.take_void_values()
    assert {device for device, _ in named} == ({liar_of(p).device_id} if on else set())
    assert all("the backends do not bear out" in why and isinstance(why, Word) for why in named.values())
    z = p.push(p.group(2, 1), y, b"z")
    assert p.world.do(p.group(3, 1).get_recent(p.ws.genesis), {}) == z


@SIZES
def test_heads_vouch_for_what_they_name_and_for_nothing_after_it(n: int, f: int) -> None:
    """The others' heads lie on the chain that the device made up, which begins at what they know."""
    p = Place(n, f)
    y = p.push(p.honest, p.x, b"y")
    lies = made_up(p, y, 9)
    tell_head(p, 0, y)
    tell_head(p, 2, lies[-1])
    wakes(p, p.ws.genesis, y)


def test_a_vote_that_one_backend_has_is_finished_and_not_jumped_over() -> None:
    """One backend has a vote where the histories part. With another one away nobody can tell that it came to nothing:
    then it is brought to an end, for all, before anybody goes on."""
    p = Place()
    y = p.push(p.honest, p.x, b"y")
    lies = made_up(p, y, 9)
    p.forger.tell(y, "a", Kind.PREPARE, p.forger.round(1))
    p.forger.tell(y, "ab", Kind.PREPARE, p.forger.round(1))
    p.forger.tell(y, "a", Kind.ACCEPT, p.forger.round(1), lies[0])
    p.world.down = {"b"}
    found = p.world.do(p.group(5, 1).get_recent(p.ws.genesis), {})
    for away in ("", *p.names):
        p.world.down = {away} - {""}
        assert p.world.do(p.group(6, 0).get_recent(y), {}) == found, f"{away} was away"


def test_who_joined_on_a_made_up_history_does_not_vouch_for_it() -> None:
    """A new device was led there by hints, and knows no better; its entries and its head name what it was shown."""
    p = Place()
    y = p.push(p.honest, p.x, b"y")
    ws, rng = p.ws, p.world.rng
    late = new_device("late", rng.randbytes(DEVICE_ENTROPY_BYTES))
    more = ws.devices.with_device(late.certified(ws.admin, ws.keys.ns_id))
    digest, data = seal_object(
        ws.keys, RecordKind.CONST, more.encode(), era=0, epoch=y.epoch, random=rng.randbytes(32)
    )  # fmt: skip
    p.world.do(p.honest.put_const(y, more.encode()), p.disk)
    for store, name in zip(p.world.stores.values(), p.names, strict=True):
        store[f"{ws.acceptor_of(name).hex()}/const/{digest.hex()}"] = data
    lies = invented(p, y, 2, [ws.genesis, p.x], devices=digest)
    ws.identities.append(late)
    misled = Forger(p.world, ws, len(ws.identities) - 1, b"n" * 16)
    chain = [ws.genesis, p.x, y, *lies]
    while len(chain) < 12:
        v = len(chain)
        state = misled.lie(chain[-1], bytes([v, *b"new"]), skip=chain[v & (v - 1)].hash)
        misled.agree(chain[-1], p.names, state, chain)
        chain.append(state)
    misled.tell(chain[-1], p.names, Kind.PREPARE, misled.round(1))
    tell_head(p, len(ws.identities) - 1, chain[-1])
    tell_head(p, 2, chain[-1])
    wakes(p, ws.genesis, y)


def test_a_device_that_was_away_finds_what_one_device_agreed_alone() -> None:
    """No other device vouches for it, and the logs do, version by version: with any one backend away."""
    p = Place()
    state = p.x
    for op in range(20):
        state = p.push(p.honest, state, bytes([100 + op]))
    for known in (p.ws.genesis, p.x):
        assert wakes(p, known, state).take_void_values() == {}


def test_where_one_backend_lacks_many_versions_and_another_is_away() -> None:
    """The votes of these versions cannot be counted then: each is brought to its end, as it was agreed."""
    p = Place()
    p.world.down = {"c"}
    state = p.x
    for op in range(5):
        state = p.push(p.honest, state, bytes([100 + op]))
    p.world.down = {"a"}
    found = p.world.do(p.group(5, 1).get_recent(p.x), {})
    assert found == state
    p.world.down = {"b"}
    after = p.world.do(p.group(6, 1).propose(found, lambda: change(b"z" * 16)), {}).state
    p.world.down = set()
    assert p.world.do(p.honest.get_recent(state), p.disk) == after


BLOCKS: dict[str, Form] = {"a": "block", "b": "block", "d": "block"}


def newcomer(p: Place, number: int) -> Group:
    """A device that no version admits yet: where blocks vote, it cannot finish what is open."""
    if len(p.ws.identities) == 3:
        p.ws.identities.append(new_device("late", p.world.rng.randbytes(DEVICE_ENTROPY_BYTES)))
    late = p.ws.identities[3].certified(p.ws.admin, p.ws.keys.ns_id)
    return p.ws.group(bytes([number]) * 16, 3, certificate=late.encode())


def half_lost(*, emptied: str = "", down: str = "") -> tuple[Place, State]:
    """b was away while three versions were agreed, and is there for one more; then d is emptied, or away. -> what is
    newest."""
    p = Place(4, forms=BLOCKS)
    p.world.down = {"b"}
    state = p.x
    for op in range(3):
        state = p.push(p.honest, state, bytes([100 + op]))
    p.world.down = set()
    for name in emptied:
        p.world.stores[name].clear()
    state = p.push(p.honest, state, b"n")
    p.world.down = set(down)
    return p, state


def test_a_new_device_where_blocks_vote_passes_versions_that_an_emptied_backend_had_decided() -> None:
    """The votes that are left bind whoever could still propose there."""
    p, newest = half_lost(emptied="d")
    assert p.world.do(newcomer(p, 20).get_recent(p.ws.genesis), {}) == newest
    assert p.world.do(p.group(21, 1).get_recent(p.ws.genesis), {}) == newest


def test_a_backend_that_is_away_excuses_nothing() -> None:
    """It may hold what tells, so a new device waits for it. Who belongs to the workspace finishes the versions."""
    p, newest = half_lost(down="d")
    with pytest.raises(NoQuorumError, match="d: ") as told:
        p.world.do(newcomer(p, 20).get_recent(p.ws.genesis, deadline_s=5.0), {})
    assert "run again when d answers" in told.value.next_step
    assert p.world.do(p.group(21, 1).get_recent(p.ws.genesis), {}) == newest


@pytest.mark.parametrize("voted", ["", "a"])
def test_a_new_device_is_led_past_no_version_by_a_liar_though_a_backend_was_emptied(voted: str) -> None:
    """A device makes up versions after the newest. For the first of them it has no votes, or too few even with d."""
    p = Place(4, forms=BLOCKS)
    y = p.push(p.honest, p.x, b"y")
    lies = made_up(p, y, 9)
    p.forger.tell(y, "abc", Kind.PREPARE, p.forger.round(1))
    p.forger.tell(y, voted, Kind.ACCEPT, p.forger.round(1), lies[0])
    p.world.stores["d"].clear()
    try:
        found = p.world.do(newcomer(p, 20).get_recent(p.ws.genesis, deadline_s=5.0), {})
    except NoQuorumError:
        assert voted
    else:
        assert not voted and found == y


def ended_here(f: int, *, away: str = "") -> tuple[Place, State]:
    """A device ends the version after x on a; the others agree it, and three more; then d is emptied. -> what is
    newest."""
    p = Place(4, f)
    p.forger.tell(p.x, "a", Kind.PREPARE, p.forger.round(ROUND_MAX))
    state = p.x
    for op in range(4):
        state = p.push(p.honest, state, bytes([100 + op]))
    p.world.stores["d"].clear()
    p.world.down = set(away)
    return p, state


@pytest.mark.parametrize("f", [0, 1])
def test_a_version_that_nobody_can_finish_any_more_is_passed_where_its_votes_bind(f: int) -> None:
    """One device alone vouches for what follows."""
    p, newest = ended_here(f)
    for known in (p.ws.genesis, p.x):
        sleeper = p.group(20 + known.v, 1)
        assert p.world.do(sleeper.get_recent(known), {}) == newest
        assert sleeper.take_void_values() == {}


@pytest.mark.parametrize("away", ["a", "b", "c"])
def test_a_version_that_somebody_may_still_finish_is_not_passed(away: str) -> None:
    """What is away may have votes for another value."""
    p, _ = ended_here(0, away=away)
    with pytest.raises(NoQuorumError, match="d: "):
        p.world.do(p.group(20, 1).get_recent(p.x, deadline_s=5.0), {})


@pytest.mark.parametrize(("voted", "other"), [("b", ""), ("bc", "a")])
def test_a_version_that_nobody_can_finish_any_more_is_not_passed_on_a_liars_votes(voted: str, other: str) -> None:
    """Its device ended the version on a, and votes there for what it goes on from: too few, or beside another value."""
    p = Place(4)
    lies = invented(p, p.x, 9)
    died = Forger(p.world, p.ws, 0, b"d" * 16)
    died.tell(p.x, "abc", Kind.PREPARE, died.round(1))
    died.tell(p.x, other, Kind.ACCEPT, died.round(1), died.lie(p.x, b"died"))
    p.forger.tell(p.x, "abc", Kind.PREPARE, p.forger.round(2))
    p.forger.tell(p.x, voted, Kind.ACCEPT, p.forger.round(2), lies[0])
    p.forger.tell(p.x, "a", Kind.PREPARE, p.forger.round(ROUND_MAX))
    p.world.stores["d"].clear()
    with pytest.raises(NoQuorumError, match="d: "):
        p.world.do(p.group(20, 1).get_recent(p.x, deadline_s=5.0), {})
