"""What is newest, asked by the PREPARE of whoever is about to propose: when it answers, and when a look must."""

from __future__ import annotations

from collections import Counter

import pytest
from forger_kit import Forger
from paxos_world import Store, change
from test_blocks import MIXED, Place
from test_one_look import Look

from metasync.consensus import State, learner
from metasync.consensus.acceptors.log import LAG_TRIES
from metasync.consensus.acceptors.view import DELTA_S
from metasync.consensus.proposer import look_around
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import NEVER
from metasync.errors import DamagedError, NoQuorumError, NotFoundError
from metasync.runtime.effects import Op, Reply, Task

ANSWER_S = 0.05


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Every request takes as long, so that all three are heard."""
    made = Look()
    monkeypatch.setattr(made.world, "_delay", lambda *_: ANSWER_S)
    return made


def asked(look: Look, known: State | None = None, deadline_s: float = 30.0) -> State:
    task = look.group.get_recent_preparing(known or look.base, deadline_s=deadline_s)
    state: State = look.world.do(task, {})
    look.world.run()
    return state


def propose(look: Look, base: State) -> State:
    decided = look.world.do(look.group.propose(base, lambda: change(b"n" * 16)), {})
    look.world.run()
    assert decided.mine
    return decided.state  # type: ignore[no-any-return]


def requests(look: Look) -> Counter[str]:
    """What was asked of all backends since the last time: "create px", "get birth", ..."""
    out: Counter[str] = Counter()
    for ops in look.world.requests.values():
        for op in ops:
            what = next((part for part in ("px", "birth", "floor") if part in op.path.split("/")), op.path)
            out[f"{op.kind} {what}"] += 1
        ops.clear()
    return out


def test_with_nothing_newer_a_proposal_takes_two_messages_and_no_look(look: Look) -> None:
    requests(look)
    assert asked(look) == look.base
    assert requests(look) == {"create px": 3, "get birth": 3, "get floor": 3}
    assert look.world.do(look.group.prepare(look.base), {})
    assert not requests(look), "it is prepared"
    assert propose(look, look.base).v == look.base.v + 1
    assert requests(look) == {"create px": 3, "get birth": 3}


def test_a_version_that_others_decided_is_found(look: Look) -> None:
    newest = look.push(look.base, 3)
    assert asked(look) == newest
    instance = look.world.do(look.group.enter(newest))
    assert instance.prepared == NEVER
    assert propose(look, newest).v == newest.v + 1


def test_a_version_that_others_decided_is_known_after_two_answers(look: Look) -> None:
    """A create that finds another's entry is followed by one read: PREPARE, ACCEPT, the end, and nothing beyond."""
    writer = look.ws.group(b"v" * 16, 0)  # a process of its own, so that PREPARE stands there too
    newest = look.world.do(writer.propose(look.base, lambda: change(b"o" * 16)), {}).state
    look.world.run()
    requests(look)
    began = look.world.now
    newest_seen = look.world.do(look.group.get_recent_preparing(look.base), {})
    assert newest_seen == newest
    assert look.world.now - began < 2.5 * ANSWER_S
    read = sorted(sum(op.kind == "get" and "/px/" in op.path for op in ops) for ops in look.world.requests.values())
    assert read == [4, 4, 4], "the third as well, whose answer was not waited for"
    assert requests(look)["create px"] == 3
    assert propose(look, newest).v == newest.v + 1


@pytest.mark.parametrize(("late", "is_heard"), [(0.2, True), (1.0, False)])
@pytest.mark.parametrize("newer", [False, True])
def test_who_comes_a_little_late_is_waited_for(look: Look, late: float, is_heard: bool, newer: bool) -> None:
    """A fourth of what the others took, as in a look; who is later is asked again, at the cost of a round trip."""
    newest = look.push(look.base) if newer else look.base
    requests(look)
    look.world.takes_s = {"a": ANSWER_S * 8, "b": ANSWER_S * 8, "c": ANSWER_S * 8 * (1 + late)}
    assert asked(look) == newest
    floors = Counter(op.backend for ops in look.world.requests.values() for op in ops if "/floor/" in op.path)
    assert (floors["a"], floors["b"]) == (1, 1), "no answer of theirs was lost"
    if newer:
        assert floors["c"] == (1 if is_heard else 2)
    else:
        assert look.group.heard == ({"a", "b", "c"} if is_heard else {"a", "b"})


@pytest.mark.parametrize("late", [1, LAG_TRIES - 1, LAG_TRIES])
def test_an_entry_that_is_said_to_be_there_is_no_end_of_the_log(look: Look, late: int) -> None:
    """Stores that show what they took a little later: with two of them nothing would seem newer."""
    newest = look.push(look.base)
    unshown: dict[str, Counter[str]] = {name: Counter() for name in "ab"}

    def answer(_: str, op: Op, store: Store) -> Reply:
        if op.kind == "get" and "/px/" in op.path and op.path in store:
            unshown[op.backend][op.path] += 1
            if unshown[op.backend][op.path] <= late:
                return Reply(error=NotFoundError("not yet"))
        return store.do(op)

    look.world.liars = dict.fromkeys("ab", answer)
    if late < LAG_TRIES:
        assert asked(look) == newest
        return
    instance = look.instance()
    for acceptor in instance.acceptors.values():
        acceptor.taken = 0
    look.world.do(look_around(look.group.participant, instance, 9.0, everybody=True), {})
    assert not instance.quiet()
    assert {look.group.standings[name].kind for name in "ab"} == {"down"}


def test_an_acceptor_that_was_emptied_holds_nothing_that_was_said_to_be_there(look: Look) -> None:
    acceptor = next(iter(look.instance().acceptors.values()))
    acceptor.taken = 0
    acceptor.forget()
    assert look.world.do(acceptor.look(), {}).kind == "done"
    assert acceptor.ended


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"]])
def test_a_vote_that_stood_before_it_is_not_passed_by(look: Look, names: list[str]) -> None:
    """A quorum of them is the newest version, which nobody told of yet."""
    forger = Forger(look.world, look.ws, 2, b"f" * 16)
    value = look.push(look.base)
    for name in "abc":
        for path in [p for p in look.world.stores[name] if "/px/" in p]:
            del look.world.stores[name][path]
    forger.tell(look.base, names, Kind.PREPARE, forger.round(1))
    forger.tell(look.base, names, Kind.ACCEPT, forger.round(1), value)
    assert asked(look) == value


def test_what_others_only_prepared_is_looked_at(look: Look) -> None:
    forger = Forger(look.world, look.ws, 2, b"f" * 16)
    forger.tell(look.base, ["a", "b", "c"], Kind.PREPARE, forger.round(1))
    assert asked(look) == look.base
    assert look.world.do(look.group.enter(look.base)).prepared == NEVER


def test_promises_of_an_earlier_operation_say_nothing_of_now(look: Look) -> None:
    assert asked(look) == look.base
    newest = look.push(look.base)
    assert asked(look) == newest


def test_promises_expire(look: Look) -> None:
    """Whoever slept asks for them again."""
    assert asked(look) == look.base
    requests(look)
    look.world.now += DELTA_S + 1
    assert look.world.do(look.group.prepare(look.base), {})
    assert requests(look)["create px"] == 3


@pytest.mark.parametrize("wiped", [["a"], ["a", "b"]])
def test_who_was_emptied_shows_nothing(look: Look, wiped: list[str]) -> None:
    for name in wiped:
        look.world.wipe(name)
    if len(wiped) > 1:
        with pytest.raises(NoQuorumError):
            asked(look, deadline_s=3.0)
    else:
        assert asked(look) == look.base
        assert look.group.heard == {"b", "c"}


def test_a_minority_without_a_vote_is_no_answer(look: Look) -> None:
    """Two hold the version, and the third promises: it alone says that nothing is newer."""
    look.world.down = {"c"}
    newest = look.push(look.base)
    look.world.down = set()
    assert asked(look) == newest


def test_a_promise_of_fewer_than_a_quorum_shows_nothing(look: Look) -> None:
    instance = look.instance()
    look.world.do(look_around(look.group.participant, instance, 5.0, everybody=True))
    assert instance.quiet()
    for acceptor in instance.acceptors.values():
        acceptor.vouched = True
    assert not instance.is_quiet_below(NEVER), "logs that are empty promised nothing"
    assert asked(look) == look.base
    instance = look.world.do(look.group.enter(look.base))
    rnd = instance.prepared
    assert instance.is_quiet_below(rnd)
    first, second, *others = (a for a in instance.acceptors.values() if a.vouched)
    for other in others:
        other.vouched = False
    assert instance.is_quiet_below(rnd), "two of three"
    first.vouched = False
    assert not instance.is_quiet_below(rnd)
    first.vouched = True
    votes = dict.fromkeys([Round(1, b"o" * 16)], look.base)
    second.log.votes.update(votes)
    assert not instance.is_quiet_below(rnd), "a vote that was there may be one of a quorum"


def test_who_was_heard_with_a_proposal_is_heard_in_the_look_that_follows(look: Look) -> None:
    """While others are waited for, it is told who answers."""
    look.world.down = {"b", "c"}
    heard = []
    task = look.group.get_recent_preparing(look.base, deadline_s=9.0)
    process = look.world.start("look", task)

    def note() -> bool:
        heard.append(look.group.heard)
        return process.done

    look.world.run(until=note)
    assert isinstance(process.error, NoQuorumError)
    first = heard.index(frozenset({"a"}))
    assert set(heard[first:]) == {frozenset({"a"})}


@pytest.mark.parametrize("restarts", [False, True])
def test_who_tries_again_and_again_without_a_quorum_leaves_one_entry(look: Look, restarts: bool) -> None:
    look.world.down = {"b", "c"}
    for n in range(5):
        with pytest.raises(NoQuorumError):
            asked(look, deadline_s=3.0)
        if restarts:
            look.group = look.ws.group(bytes([n + 1]) * 16, 1)
    assert sum("/px/" in path for path in look.world.stores["a"]) == 1
    look.world.down = set()
    assert asked(look) == look.base
    assert propose(look, look.base).v == look.base.v + 1


def test_without_a_quorum_it_takes_no_longer_than_a_look(look: Look) -> None:
    look.world.down = {"a", "b"}
    before = look.world.now
    with pytest.raises(NoQuorumError):
        asked(look)
    assert look.world.now - before < 40.0


@pytest.mark.parametrize("error", [DamagedError("a state that is gone"), NoQuorumError("nobody")])
def test_where_a_proposal_cannot_begin_a_look_goes_on(
    look: Look, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Task:
        raise error
        yield

    newest = look.push(look.base)
    monkeypatch.setattr(learner, "prepare", fails)
    assert asked(look) == newest


def test_the_owner_of_the_next_version_looks(look: Look) -> None:
    """It need not prepare, so that nothing it sends would tell what others did."""
    mine = propose(look, look.base)
    newest = look.push(mine)
    assert asked(look, mine) == newest


def test_after_a_change_of_the_backends_it_is_looked_whether_the_fence_stands(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = look.world.do(look.group._config_of(look.base))
    monkeypatch.setattr(type(config), "changed", property(lambda _: (look.base.v, b"")))
    assert asked(look) == look.base
    assert not requests(look)["create px"]


def test_a_store_that_fails_at_first_is_not_waited_for(look: Look) -> None:
    look.failing("c", 1, lambda op: op.kind == "create")
    assert asked(look) == look.base


def test_acceptors_in_block_form_answer_too() -> None:
    p = Place(MIXED, devices=2)
    base = p.push(0, p.ws.genesis, b"1")
    p.groups[0] = p.fresh(0, memory=p.groups[0].memory)
    assert p.do(0, p.groups[0].get_recent_preparing(base)) == base
    assert p.push(0, base, b"2").v == base.v + 1
    p.groups[1] = p.fresh(1)
    newest = p.newest(1)
    assert newest.v == base.v + 1
    theirs = p.push(1, newest, b"3")
    assert p.do(0, p.groups[0].get_recent_preparing(newest)) == theirs
