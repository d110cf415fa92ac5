"""One proposer's work on one version: which round it takes, what it says of its promises, and what it never sends."""

from __future__ import annotations

import pytest
from paxos_world import change
from test_counting import Logs

from metasync.consensus.proposer import prepare, propose
from metasync.consensus.records.log_replay import NEVER, ROUND_MAX, ValueRules
from metasync.errors import NoQuorumError, WorkspaceError


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
