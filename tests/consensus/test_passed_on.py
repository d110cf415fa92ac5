"""A decided version is brought to every acceptor, so that each knows by itself what it let go (rule 6.5)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from paxos_world import change
from test_counting import Logs

from metasync.consensus import State, reconfigure
from metasync.consensus.records.birth import birth_path
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.runtime.effects import Task


class Passing:
    """Version 1 was decided by votes on `a` and `b`."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.world, self.ws, self.base, self.x = self.logs.world, self.logs.ws, self.logs.base, self.logs.x
        self.logs.prepare("ab", 1)
        self.logs.accept("ab", 1, self.x)

    def passed(self, state: State | None = None, device: int = 1) -> str:
        """-> the acceptors that know the state, after it was passed on."""
        group = self.ws.group(b"p" * 16, device)
        task = reconfigure.pass_on(group.participant, group.enter, state or self.x, 5.0)
        known: set[bytes] = self.world.do(task, {})
        self.world.run()
        return "".join(sorted(self.ws.links[a] for a in known))

    def shows(self, name: str, state: State, base: State) -> bool:
        view = self.ws.unread(self.ws.group(b"s" * 16, 1).participant, base, name)
        self.world.do(view.look())
        return state in view.log.votes.values()

    def entries(self, name: str) -> int:
        return sum("/px/" in path for path in self.world.stores[name])


@pytest.fixture
def passing() -> Passing:
    return Passing()


def test_who_has_no_vote_for_it_gets_the_one_that_decided_it(passing: Passing) -> None:
    assert passing.passed() == "abc"
    assert passing.shows("c", passing.x, passing.base)
    assert (passing.entries("a"), passing.entries("b")) == (2, 2), "nothing more is written where it stands"


def test_where_all_know_it_nothing_is_written(passing: Passing) -> None:
    passing.logs.prepare("c", 1)
    passing.logs.accept("c", 1, passing.x)
    assert passing.passed() == "abc"
    assert [passing.entries(name) for name in "abc"] == [2, 2, 2]


def test_who_promised_a_higher_round_gets_it_in_a_new_one(passing: Passing) -> None:
    passing.logs.prepare("c", 5)
    assert passing.passed() == "abc"
    assert passing.logs.read().decided() == passing.x


def test_who_promised_the_last_round_cannot_be_told(passing: Passing) -> None:
    passing.logs.proposer.tell(passing.base, "c", Kind.PREPARE, Round(ROUND_MAX, b"t" * 16))
    before = passing.entries("a")
    assert passing.passed() == "ab"
    assert passing.entries("a") == before, "no round is begun for it"


@pytest.mark.parametrize("how", ["away", "emptied", "poisoned"])
def test_who_cannot_show_a_vote_does_not_know_it(passing: Passing, how: str) -> None:
    """Of `b` nothing counts, though its vote was one of those that decided it."""
    if how == "away":
        passing.world.down = {"b"}
    elif how == "emptied":
        del passing.world.stores["b"][birth_path(passing.ws.acceptor_of("b"))]
    else:
        passing.logs.poison("b", 2)
    assert passing.passed() == "ac"
    assert passing.entries("a") == 2, "no round is begun for it"


def test_no_round_is_begun_for_a_log_that_takes_nothing(passing: Passing) -> None:
    """It promised a higher round, and is spoilt since."""
    passing.logs.prepare("c", 5)
    passing.logs.poison("c", 1)
    assert passing.passed() == "ab"
    assert passing.entries("a") == 2


def test_who_joined_with_the_version_has_no_log_of_it(passing: Passing) -> None:
    group = passing.ws.group(b"p" * 16, 1)
    group.participant.remember_state(passing.base)
    joined = SimpleNamespace(acceptor_id=b"n" * 16)
    config = SimpleNamespace(acceptors=[*passing.ws.config.acceptors, (None, joined)])

    def enter(state: State, *, ahead: bool) -> Task:
        if state == passing.x:
            return SimpleNamespace(config=config)
        return (yield from group.enter(state, ahead=ahead))

    known = passing.world.do(reconfigure.pass_on(group.participant, enter, passing.x, 5.0), {})
    assert known == {*passing.ws.links}


def test_the_first_state_of_an_era_is_known_to_all_that_are_left(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no log: its record lies on each of them."""

    def before(*_: object) -> Task:
        yield from ()
        return passing.base

    monkeypatch.setattr(reconfigure, "fetch_state", before)
    assert passing.passed(replace(passing.x, era=1)) == "abc"
    assert passing.entries("c") == 0


def test_who_is_no_device_of_that_version_writes_nothing(passing: Passing) -> None:
    passing.ws.identities.append(new_device("new", passing.world.rng.randbytes(DEVICE_ENTROPY_BYTES)))
    assert passing.passed(device=len(passing.ws.identities) - 1) == "ab"
    assert passing.entries("c") == 0


def test_versions_before_it_that_somebody_missed_are_passed_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there are such; two in a row that all know are the end."""
    passing = Passing()
    group, chain = passing.ws.group(b"w" * 16, 0), [passing.base]
    passing.world.run()
    chain.append(passing.passed() and passing.x)

    def push(times: int) -> None:
        for _ in range(times):
            base = chain[-1]
            decided: Any = passing.world.do(group.propose(base, lambda base=base: change(b"%16d" % base.v)), {})
            passing.world.run()
            chain.append(decided.state)

    push(3)
    passing.world.down = {"c"}
    push(3)
    passing.world.down = set()
    assert not passing.shows("c", chain[5], chain[4])
    looked: list[int] = []
    really = reconfigure._passed_on

    def seen(m: Any, at: Any, *others: Any) -> Any:
        looked.append(at.v)
        return really(m, at, *others)

    monkeypatch.setattr(reconfigure, "_passed_on", seen)
    assert passing.passed(chain[-1]) == "abc"
    assert all(passing.shows("c", state, base) for base, state in pairwise(chain))
    assert looked == [7, 6, 5, 4, 3]
