"""One proposer's work on one version: which round it takes, what it says of its promises, and what it never sends."""

from __future__ import annotations

from typing import Any

import pytest
from paxos_world import change
from test_counting import Logs

from metasync.consensus import State, proposer
from metasync.consensus.participant import OP_TIMEOUT_S, RTT_FIRST_S, Barred
from metasync.consensus.proposer import prepare, propose
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import NEVER, ROUND_MAX, ValueRules
from metasync.errors import ForkError, NoQuorumError, WorkspaceError
from metasync.runtime.effects import Sleep, Task


def test_a_round_that_a_quorum_promised_ahead_is_kept_and_no_other() -> None:
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    instance = logs.world.do(group.enter(logs.base))
    logs.world.down = {"a", "b"}
    assert not logs.world.do(prepare(group.participant, instance, 5.0, lambda: True))
    assert instance.prepared == NEVER
    logs.world.down = set()
    assert logs.world.do(prepare(group.participant, instance, 5.0, lambda: True))
    assert instance.prepared != NEVER


def test_where_the_round_is_the_proposers_own_nothing_is_asked_ahead() -> None:
    """Round 0 of the version after its own needs no promise."""
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    first = logs.world.do(group.propose(logs.base, lambda: change(b"1" * 16)), {}).state
    before = {name: set(store) for name, store in logs.world.stores.items()}
    instance = logs.world.do(group.enter(first))
    assert logs.world.do(prepare(group.participant, instance, 5.0, lambda: True))
    assert {name: set(store) for name, store in logs.world.stores.items()} == before


def test_above_the_last_round_there_is_none() -> None:
    """Its number would fit no entry."""
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    instance = logs.world.do(group.enter(logs.base))
    group.participant.rounds_used[instance.v] = ROUND_MAX
    with pytest.raises(NoQuorumError):
        logs.world.do(propose(group.participant, instance, lambda: change(b"1" * 16), None, 5.0), {})


def test_a_change_against_the_policy_is_refused_before_anybody_is_asked_to_accept_it() -> None:
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ValueRules, "fault", lambda *_: "it keeps too few copies")
        with pytest.raises(WorkspaceError, match="contradicts the workspace's policy: it keeps too few copies"):
            logs.world.do(group.propose(logs.base, lambda: change(b"1" * 16)), {})
    assert not logs.read().has_votes()


# ---- one attempt, step by step


class Attempt:
    """Device 1's attempt on version 1 of three logs. `apart`: entries on another state are looked into."""

    def __init__(self, **options: Any) -> None:
        self.logs = Logs()
        self.world = self.logs.world
        self.group = self.logs.ws.group(b"p" * 16, 1)
        self.m = self.group.participant
        self.instance = self.world.do(self.group.enter(self.logs.base))
        self.instance.begin()
        self.attempt = proposer._Attempt(self.m, self.instance, None, 100.0, **options)

    def do(self, task: Task) -> Any:
        return self.world.do(task, {})

    def look(self) -> None:
        self.do(proposer.look_around(self.m, self.instance, 5.0, everybody=True))

    def decide(self) -> State:
        """Two of three voted, and were read."""
        self.logs.prepare("ab", 1)
        self.logs.accept("ab", 1, self.logs.x)
        self.look()
        return self.logs.x

    def creates(self) -> int:
        return sum(op.kind == "create" for ops in self.world.requests.values() for op in ops)


@pytest.mark.parametrize("step", ["_known", "_phase", "_lost"])
def test_entries_on_another_state_are_looked_into_at_every_step(step: str) -> None:
    one = Attempt()
    next(iter(one.instance.acceptors.values())).log.elsewhere[b"d" * 16, b"h" * 32] = None  # type: ignore[assignment]

    def apart(_: object) -> Task:
        raise ForkError("two histories")
        yield

    one.m.look_apart = apart
    one.attempt.round = Round(1, b"p" * 16)
    steps = {"_known": one.attempt._known, "_phase": lambda: one.attempt._phase(Kind.PREPARE)}
    with pytest.raises(ForkError, match="two histories"):
        one.do(steps.get(step, lambda: one.attempt._lost(Kind.PREPARE))())


def test_what_the_logs_show_decided_counts_with_the_births_beside_it() -> None:
    one = Attempt()
    x = one.decide()
    one.instance.begin()
    assert one.instance.decided() is None
    assert one.do(one.attempt._known()) == x
    assert not one.attempt.doubted
    one.instance.begin()
    one.world.down = {"a", "b", "c"}
    assert one.do(one.attempt._known()) is None
    assert one.attempt.doubted


def test_who_doubts_what_is_shown_waits_before_it_asks_again() -> None:
    one = Attempt()
    one.decide()
    before = one.world.now
    one.do(one.attempt._lost(Kind.ACCEPT))
    assert one.world.now == before, "it is to be looked at"
    one.attempt.doubted = True
    one.do(one.attempt._lost(Kind.ACCEPT))
    assert one.world.now > before


def test_what_a_closed_log_voted_for_is_passed_on_once() -> None:
    one = Attempt()
    one.logs.prepare("abc", 1)
    one.logs.accept("a", 1, one.logs.x)
    one.logs.close("a", one.logs.x)
    one.look()
    one.world.down = {"b", "c"}
    assert one.do(one.attempt._relayed()) is None
    asked = one.creates()
    assert asked
    assert one.do(one.attempt._relayed()) is None
    assert one.creates() == asked


def test_no_rival_is_waited_for_beyond_the_deadline() -> None:
    one = Attempt()
    with pytest.raises(NoQuorumError):
        one.do(one.attempt._let_finish(0.0))


def test_too_many_that_show_an_older_past_are_told_as_that() -> None:
    one = Attempt()
    for acceptor in list(one.instance.acceptors.values())[:2]:
        acceptor.memory.rolled_back = "entry 0 of version 1 is gone"
        acceptor.reach()
    with pytest.raises(ForkError, match="older past"):
        one.attempt._check_possible()


def test_who_will_take_nothing_from_this_device_counts_as_out() -> None:
    one = Attempt()
    for acceptor in list(one.instance.acceptors.values())[:2]:
        acceptor.barred = Barred("not a member", "wait")
    with pytest.raises(NoQuorumError, match="not a member"):
        one.attempt._check_possible()


def test_round_0_is_used_once() -> None:
    """Its value is fixed before anything is sent, and for ever."""
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    first = logs.world.do(group.propose(logs.base, lambda: change(b"1" * 16)), {}).state
    instance = logs.world.do(group.enter(first))
    assert proposer.owns(group.participant, instance)
    group.participant.rounds_used[instance.v] = 0
    assert not proposer.owns(group.participant, instance)


def test_round_0_is_left_alone_where_somebody_was_seen_at_work() -> None:
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    first = logs.world.do(group.propose(logs.base, lambda: change(b"1" * 16)), {}).state
    logs.proposer.tell(first, "abc", Kind.PREPARE, logs.proposer.round(1))
    instance = logs.world.do(group.enter(first))
    logs.world.do(proposer.look_around(group.participant, instance, 5.0, everybody=True))
    assert not proposer.owns(group.participant, instance)


def test_who_only_helps_uses_no_round_of_its_own() -> None:
    """Round 0 is for a value, and it brings none."""
    logs = Logs()
    group = logs.ws.group(b"p" * 16, 1)
    first = logs.world.do(group.propose(logs.base, lambda: change(b"1" * 16)), {}).state
    instance = logs.world.do(group.enter(first))
    assert proposer.owns(group.participant, instance)
    assert logs.world.do(proposer.settle(group.participant, instance, 5.0), {}) is None


def test_a_change_may_take_its_time_to_be_made() -> None:
    logs = Logs()

    def slowly() -> Task:
        yield Sleep(1000.0)
        return change(b"1" * 16)

    group = logs.ws.group(b"p" * 16, 1)
    decided = logs.world.do(group.propose(logs.base, slowly, deadline_s=10.0), {})
    assert (decided.mine, decided.state.op_id) == (True, b"1" * 16)


def test_what_was_read_in_an_operation_before_is_read_again() -> None:
    """Rule 1.9: two voted, and one of them was emptied since. Its vote counts no longer, so the value is passed on."""
    one = Attempt()
    x = one.decide()
    assert one.instance.decided() == x
    one.world.stores["a"].clear()
    assert one.do(propose(one.m, one.instance, lambda: change(b"1" * 16), None, 30.0)).state == x
    assert one.logs.read().decided() == x
    assert one.logs.world.stores["c"][one.logs.proposer.place(one.logs.base, "c", 1)]


def test_a_version_that_its_last_votes_decided_is_decided_though_nothing_more_can_be_sent() -> None:
    """The logs have no room for another entry, so that most acceptors are out for all that is to come."""
    one = Attempt(op_id=b"1" * 16)
    one.attempt.make_value = lambda: change(b"1" * 16)

    def none_left() -> None:
        raise NoQuorumError("nothing can be agreed here any more")

    one.attempt._check_possible = none_left  # type: ignore[method-assign]
    state = one.do(one.attempt.run())
    assert state.op_id == b"1" * 16


def test_who_lost_to_a_higher_round_lets_that_one_finish() -> None:
    """Its own was promised by some, and is not the highest any more."""
    one = Attempt()
    one.attempt.round = Round(1, b"p" * 16)
    one.do(one.attempt._phase(Kind.PREPARE))
    one.logs.prepare("a", 5)
    one.look()
    finished = []

    def finish(_: float) -> Task:
        yield from ()
        finished.append(True)

    one.attempt._let_finish = finish  # type: ignore[method-assign]
    one.do(one.attempt._lost(Kind.PREPARE))
    assert finished == [True]


# ---- how long is waited for whom


@pytest.mark.parametrize("met", [False, True])
def test_a_phase_that_cannot_win_ends_though_one_never_answers(met: bool) -> None:
    one = Attempt()
    if met:  # by one of the two that answer
        one.logs.prepare("a", 5)
        one.look()
    else:
        one.world.down = {"a", "b"}
    one.world.stuck = {"c"}
    one.attempt.round = Round(6 if met else 1, b"p" * 16)
    before = one.world.now
    one.do(one.attempt._phase(Kind.PREPARE))
    assert one.world.now - before < OP_TIMEOUT_S / 2


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("votes", [False, True])
def test_a_look_that_knows_enough_waits_for_nobody(votes: bool, beyond: bool) -> None:
    """Two answer after 50 ms each time, and the third never does."""
    one = Attempt()
    if votes:
        one.logs.prepare("ab", 1)
        one.logs.accept("ab", 1, one.logs.x)
    one.world.takes_s = {"a": 0.05, "b": 0.05}
    one.world.stuck = {"c"}
    before = one.world.now
    one.do(proposer.look_around(one.m, one.instance, 60.0, beyond=beyond))
    assert one.instance.decided() == (one.logs.x if votes else None)
    assert one.world.now - before < proposer.PHASE_RTTS * RTT_FIRST_S


def test_a_look_hears_who_is_little_later_than_the_others_where_it_is_told_to() -> None:
    heard = {}
    for grace in (False, True):
        one = Attempt()
        one.world.takes_s = {"a": 1.0, "b": 1.0, "c": 1.1}
        one.do(proposer.look_around(one.m, one.instance, 60.0, grace=grace))
        heard[grace] = one.instance.read()
    assert heard == {False: 2, True: 3}


def test_a_look_for_everybody_hears_who_is_later_but_for_a_few_round_trips() -> None:
    for late_s, read in ((0.15, 3), (20.0, 2)):
        one = Attempt()
        one.world.takes_s = {"a": 0.1, "b": 0.1, "c": late_s}
        one.do(proposer.look_around(one.m, one.instance, 60.0, everybody=True))
        assert one.instance.read() == read
        assert one.world.now < 10
