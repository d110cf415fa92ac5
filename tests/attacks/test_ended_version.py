"""A device ends agreement at one version: the agreement alone names it, and has a way past it.

It puts what is no entry in the next place of the logs of a quorum, prepares the last round there is, or fills the logs.
No command can tell a store that lost a vote from a device that spoilt one, so no rule of agreement passes over it: an
admin does, by `recover`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from ended_kit import FEW, WAYS, shorten_logs
from forger_kit import NOBODY, Forger
from paxos_world import change
from test_votes import Place

from metasync.config import Acceptor, Form
from metasync.consensus import EraRecord, State, birth_digest
from metasync.consensus.new_era import Content, Held, answering, begin, end_era, seen_before
from metasync.consensus.records import block_replay
from metasync.consensus.records.entry import Kind
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.errors import ForkError, NoQuorumError

SIZES = pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_logs(monkeypatch)


def end(p: Place, base: State, how: str, names: list[str]) -> None:
    """The liar ends the version after `base` on these backends."""
    if how == "garbage":
        for name in names:
            p.world.stores[name][p.forger.place(base, name, 0)] = b"garbage"
    elif how == "last round":
        p.forger.tell(base, names, Kind.PREPARE, p.forger.round(ROUND_MAX))
    else:
        for n in range(FEW):
            p.forger.tell(base, names, Kind.PREPARE, p.forger.round(n + 1))


@SIZES
@WAYS
def test_an_ended_version_is_named_with_its_cause_and_the_way_past(n: int, f: int, how: str) -> None:
    """Where too few backends are left to agree the next version, whoever pushes is told which and why."""
    p = Place(n, f)
    end(p, p.x, how, p.names[:2])
    cause = {"garbage": "entry 0 of version 2", "last round": "the last round that version 2 has", "full": "is full"}
    with pytest.raises(NoQuorumError, match=r"version 2 cannot be agreed any more.*a: .*; b: ") as e:
        p.push(p.group(2, 1), p.x, b"y")
    assert cause[how] in e.value.message
    assert "c: " not in e.value.message
    assert "metasync recover" in e.value.next_step and "--revoke" in e.value.next_step


CLOSED = pytest.mark.parametrize(
    ("n", "f", "forms", "on"),
    [
        (3, 0, {}, "ab"), (3, 0, {"a": "block"}, "ab"), (4, 0, {}, "cd"), (4, 1, {}, "bcd"),
        (4, 0, {"a": "block", "d": "block"}, "cd"),
    ],
)  # fmt: skip


def close(p: Place, base: State, names: str) -> None:
    """The liar has these logs accept a value of its own in a round that nobody prepared, and closes them on it."""
    lie = p.forger.lie(base)
    p.forger.tell(base, names, Kind.ACCEPT, p.forger.round(9), lie)
    p.forger.tell(base, names, Kind.DECIDED, NOBODY, lie)


@CLOSED
def test_logs_that_were_closed_on_a_lie_are_named_and_have_a_way_past(
    n: int, f: int, forms: dict[str, Form], on: str
) -> None:
    """An ACCEPT that nobody prepared is no vote, but DECIDED of its value closes the log behind it."""
    p = Place(n, f, forms)
    close(p, p.x, on)
    with pytest.raises(NoQuorumError, match="version 2 cannot be agreed any more") as e:
        p.push(p.group(2, 1), p.x, b"y")
    for name in p.names:
        assert (f"{name}: its log of version 2 was closed" in e.value.message) == (name in on)
    assert "--revoke" in e.value.next_step
    record = recovered(p, p.x)
    assert (record.ended, record.first.v) == (p.x, 2)
    assert p.world.do(p.group(9, 1).get_recent(p.ws.genesis), {}) == record.first


@CLOSED
def test_logs_of_an_agreed_version_that_are_closed_on_a_lie_change_nothing(
    n: int, f: int, forms: dict[str, Form], on: str
) -> None:
    """Votes that stand before a DECIDED stay votes. (In block form no order of two devices' blocks is known.)"""
    p = Place(n, f, forms)
    close(p, p.ws.genesis, on)
    if not forms:
        assert p.world.do(p.group(5, 1).get_recent(p.ws.genesis), {}) == p.x
    y = p.push(p.honest, p.x, b"y")
    for number, known in enumerate((p.ws.genesis, p.x)):
        reader = p.group(6 + number, 1)
        assert p.world.do(reader.get_recent(known), {}) == y
        assert reader.evidence == ()


def test_fewer_logs_that_are_closed_on_a_lie_stop_nobody() -> None:
    p = Place()
    close(p, p.x, "a")
    y = p.push(p.group(2, 1), p.x, b"y")
    assert p.world.do(p.group(5, 1).get_recent(p.ws.genesis), {}) == y


@SIZES
@WAYS
def test_one_backend_that_is_ended_stops_nobody(n: int, f: int, how: str) -> None:
    """What is ended on a minority is as good as down for that version: the others agree, and go on in the next."""
    p = Place(n, f)
    end(p, p.x, how, ["a"])
    y = p.push(p.group(2, 1), p.x, b"y")
    z = p.push(p.group(3), y, b"z")
    assert p.world.do(p.group(5, 1).get_recent(p.ws.genesis), {}) == z


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_a_log_takes_no_entry_that_others_would_not_read(spare: int) -> None:
    """A liar leaves room for less than a proposal. Whoever pushes must not count a vote that poisons the log for
    everybody else: two devices would know different versions."""
    p = Place()
    for n in range(FEW - spare):
        p.forger.tell(p.x, p.names, Kind.PREPARE, p.forger.round(n + 1))
    try:
        y = p.push(p.group(2, 1), p.x, b"y")
    except NoQuorumError:
        y = p.x
    p.world.run()
    assert p.world.do(p.group(5, 1).newest_seen(p.x), {}) == y
    assert (y == p.x) == (spare < 2)


def recovered(p: Place, known: State) -> EraRecord:
    """An admin begins a new era on all backends, as `recover` does without names."""
    group = p.group(30)
    m = group.participant
    held = p.world.do(end_era(m, group.enter, known, ()))
    assert isinstance(held, Held)
    births, links, entries = {}, {}, []
    for b in p.ws.config.backends:
        acceptor_id, nonce = p.world.rng.randbytes(16), p.world.rng.randbytes(32)
        births[acceptor_id], links[acceptor_id] = nonce, b.name
        form = p.ws.forms.get(b.name, "log")
        entries.append(replace(b, acceptor=Acceptor(acceptor_id, form, birth_digest(nonce))))
    content = Content(
        config=p.ws.config.with_backends(entries), births=births, devices=p.ws.devices.encode(),
        state=held.carried or held.ended, op_id=b"e" * 16, carried=held.carried, at_ns=1, links=links,
    )  # fmt: skip
    task = begin(m, group.enter, held.ended, content, p.ws.devices.chain, p.ws.admin)
    record: EraRecord = p.world.do(task)
    return record


@WAYS
def test_recover_judges_by_the_version_after_the_newest(how: str) -> None:
    """What is ended on a quorum is a reason for a new era, on the same backends; on one backend it is none."""
    p = Place()
    group = p.group(20)
    assert p.world.do(answering(group.participant, group.enter, p.x)) == ({"a", "b", "c"}, {})
    end(p, p.x, how, ["a", "b"])
    well, ended = p.world.do(answering(group.participant, group.enter, p.x))
    assert (well, set(ended)) == ({"a", "b", "c"}, {"a", "b"})
    record = recovered(p, p.x)
    assert (record.ended, record.without, record.first.v) == (p.x, (), 2)
    for number in (2, 3):  # one that was there, and one that only knows the genesis
        assert p.world.do(p.group(number, 1).get_recent(p.x if number == 2 else p.ws.genesis), {}) == record.first


def test_what_was_shown_wrongly_once_is_no_reason_for_a_restart() -> None:
    """A store answered with garbage, and shows the log as it is when it is asked again."""
    p = Place()
    group = p.group(20)
    end(p, p.x, "garbage", ["a", "b"])
    assert p.world.do(group.newest_seen(p.x), {}) == p.x
    for name in "ab":
        del p.world.stores[name][p.forger.place(p.x, name, 0)]
    assert p.world.do(answering(group.participant, group.enter, p.x)) == ({"a", "b", "c"}, {})


@WAYS
@pytest.mark.parametrize("forms", [{"a": "block", "b": "block", "c": "block"}, {"a": "log", "b": "block", "c": "log"}])
def test_so_it_is_in_block_form(how: str, forms: dict[str, Form], monkeypatch: pytest.MonkeyPatch) -> None:
    """There the liar spoils its own chain of blocks, and so the acceptor for everybody."""
    monkeypatch.setattr(block_replay, "CHAIN_BLOCKS_MAX", FEW - 1)
    p = Place(forms=forms)
    end(p, p.x, how, ["a", "b"])
    with pytest.raises(NoQuorumError, match=r"version 2 cannot be agreed any more.*a: .*; b: ") as e:
        p.push(p.group(2, 1), p.x, b"y")
    assert "metasync recover" in e.value.next_step
    record = recovered(p, p.x)
    assert (record.ended, record.first.v) == (p.x, 2)
    assert p.world.do(p.group(3, 1).get_recent(p.x), {}) == record.first


@pytest.mark.parametrize("on", ["b", "abc"])
@pytest.mark.parametrize(
    "forms", [{"a": "block", "b": "block", "c": "block"}, {"a": "log", "b": "block", "c": "block"}]
)
def test_two_values_of_one_device_in_one_round_stop_nobody(forms: dict[str, Form], on: str) -> None:
    """In block form the liar writes two values into one of its rounds, one after the other in its own blocks. The first
    counts, for everybody: the others go on, and are told who it was. It had stopped them all with `ForkError`."""
    p = Place(forms=forms)
    p.forger.tell(p.x, p.names, Kind.PREPARE, p.forger.round(1))
    lies = [p.forger.lie(p.x, op) for op in (b"one-", b"two-")]
    for lie in lies:
        p.forger.tell(p.x, on, Kind.ACCEPT, p.forger.round(1), lie)
    group = p.group(2, 1)
    decided = p.world.do(group.propose(p.x, lambda: change(b"y" * 16)), {})
    assert decided.state == lies[0], "it was accepted first, and is finished"
    newest = p.world.do(group.get_recent(p.x), {})
    again = p.world.do(group.propose(newest, lambda: change(b"z" * 16)), {})
    assert again.mine
    assert p.world.do(p.group(3, 0).get_recent(p.x), {}) == again.state
    me = p.ws.identities[p.forger.device].device_id
    assert "two values" in group.take_void_values()[me, p.x.v + 1]


def test_two_values_in_one_round_have_a_way_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """In block form two devices lie together: they write two values into one round, on one backend, at which everybody
    stops. Where one backend may lie, one device does so by logs, each value on two of four."""
    for p, places in (
        (Place(forms={"a": "block", "b": "block", "c": "block"}), ("a", "a")),
        (Place(4, 1), ("ab", "cd")),
    ):
        p.forger.tell(p.x, p.names, Kind.PREPARE, p.forger.round(1))
        lies = [p.forger.lie(p.x, op) for op in (b"one-", b"two-")]
        for n, (names, lie) in enumerate(zip(places, lies, strict=True)):
            liar = Forger(p.world, p.ws, 0, p.forger.incarnation) if n and places == ("a", "a") else p.forger
            liar.tell(p.x, names, Kind.ACCEPT, p.forger.round(1), lie)
        with pytest.raises(ForkError, match="two values were proposed in one round") as e:
            p.push(p.group(2, 1), p.x, b"y")
        assert "metasync recover" in e.value.next_step
        group = p.group(20)
        m = group.participant
        assert p.world.do(seen_before(m, group.enter, p.x)) == p.x
        well, ended = p.world.do(answering(m, group.enter, p.x))
        assert well == set(ended) == set(p.names)
        record = recovered(p, p.x)
        assert record.ended == p.x and record.carried in lies
        assert p.world.do(p.group(3, 1).get_recent(p.x), {}) == record.first


def test_what_the_readable_logs_accepted_is_carried() -> None:
    """A push had prepared everywhere and been accepted on one backend when the others were ended: its content is the
    new era's, and it is told that it went through."""
    p = Place()
    died = Forger(p.world, p.ws, 0, b"d" * 16)
    value, rnd = died.lie(p.x, b"push"), died.round(1)
    died.tell(p.x, "abc", Kind.PREPARE, rnd)
    died.tell(p.x, "c", Kind.ACCEPT, rnd, value)
    for name in "ab":
        p.world.stores[name][p.forger.place(p.x, name, 1)] = b"garbage"
    record = recovered(p, p.x)
    assert (record.carried, record.first.op_id, record.first.master) == (value, value.op_id, value.master)
