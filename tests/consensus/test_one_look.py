"""One look for the newest version, step by step: who counts as heard, what is absent, and when a look gives up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forger_kit import Forger
from paxos_world import Store, change
from test_counting import Logs

from metasync.consensus import State, leaps, learner
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Standing
from metasync.consensus.records.birth import birth_path
from metasync.consensus.records.entry import Kind, SignedEntry, hint_path
from metasync.consensus.records.era import Tombstone
from metasync.errors import ExcludedError, ForkError, NoQuorumError, UnreachableError, UpgradeError
from metasync.runtime.effects import Op, Reply, Task


class Look:
    """Device 1 looks for what device 0 had agreed on three logs."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.world, self.ws, self.base = self.logs.world, self.logs.ws, self.logs.base
        self.writer = self.ws.group(b"w" * 16, 0)
        self.group = self.ws.group(b"r" * 16, 1)
        self.m = self.group.participant

    def push(self, base: State, times: int = 1) -> State:
        for _ in range(times):
            base = self.world.do(self.writer.propose(base, lambda: change(b"%16d" % base.v)), {}).state  # noqa: B023
        self.world.run()
        return base

    def instance(self, base: State | None = None) -> Instance:
        instance: Instance = self.world.do(self.group.enter(base or self.base))
        instance.begin()
        return instance

    def recent(self, known: State | None = None, deadline_s: float = 30.0) -> State:
        state: State = self.world.do(self.group.get_recent(known or self.base, deadline_s=deadline_s), {})
        return state

    def creates(self) -> int:
        return sum(op.kind == "create" for ops in self.world.requests.values() for op in ops)

    def failing(self, name: str, times: int, of: Callable[[Op], bool] = lambda _: True) -> None:
        """A backend that fails so many requests of this kind, and then answers."""
        left = [times]

        def answer(_: str, op: Op, store: Store) -> Reply:
            if of(op) and left[0]:
                left[0] -= 1
                return Reply(error=UnreachableError("busy"))
            return store.do(op)

        self.world.liars[name] = answer


@pytest.fixture
def look() -> Look:
    return Look()


def raising(error: Exception) -> Callable[..., Task]:
    def task(*_: object, **__: object) -> Task:
        raise error
        yield

    return task


# ---- who was heard, and what is absent


@pytest.mark.parametrize("births", range(1, 9))
def test_who_was_emptied_on_the_way_was_not_heard(look: Look, births: int) -> None:
    """Its birth was right so many times, on the way over three versions, and then it is missing."""
    newest = look.push(look.base, 3)
    birth, asked = birth_path(look.ws.acceptor_of("a")), []

    def answer(_: str, op: Op, store: Store) -> Reply:
        asked.extend([op.path] * (op.path == birth))
        if len(asked) > births:
            store.clear()
        return store.do(op)

    look.world.liars["a"] = answer
    assert look.recent() == newest
    assert look.group.heard >= {"b", "c"}
    assert ("a" in look.group.heard) is ("a" not in look.m.standings or look.m.standings["a"].kind == "ok")


def test_what_others_say_that_they_saw_is_asked_for_before_nothing_counts_as_following(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}
    look.push(look.base)
    for audited in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(Instance, "is_audited", lambda _, audited=audited: audited)
            for requests in look.world.requests.values():
                requests.clear()
            look.group = look.ws.group(b"r" * 16, 1)
            look.recent()
            asked[audited] = len(look.world.requests["a"])
    assert asked[False] > asked[True]


def test_far_ahead_who_has_to_be_audited_or_was_replaced_answers_for_nothing(look: Look) -> None:
    instance = look.instance()

    def answers() -> int:
        found, count = look.world.do(learner._probe_versions(instance, [5], 5.0, None))
        assert found == {}
        return int(count)

    assert answers() >= 2
    a, b, _ = instance.acceptors.values()
    a.memory.unaudited = True
    b.memory.replaced = "it was emptied"
    assert answers() == 1


def test_a_gap_in_what_is_shown_ends_no_search(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store lost one version; those beyond it are there."""
    shown: dict[int, dict[bytes, SignedEntry]] = {}

    def probed(_: Instance, versions: list[int], *__: object) -> Task:
        yield from ()
        return {v: shown for v in versions if v <= 70 and v != 2}, 3

    monkeypatch.setattr(learner, "_probe_versions", probed)
    monkeypatch.setattr(learner, "_agreeing", lambda *_: {})
    top = look.world.do(learner._gallop(look.instance(), 60.0))
    assert (top.v, top.absent) == (70, 71)


def test_what_too_few_answer_for_is_not_absent(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is decided stands on a quorum: fewer that lack it say nothing of it, far ahead as near by."""
    answers = [1]

    def probed(*_: object) -> Task:
        yield from ()
        return {}, answers[0]

    monkeypatch.setattr(learner, "_probe_versions", probed)
    assert look.world.do(learner._gallop(look.instance(), 60.0)) is None
    assert look.world.do(learner._gallop(look.instance(), 60.0, enough=1)).absent == 2, "who only looks"
    answers[0] = 2
    assert look.world.do(learner._gallop(look.instance(), 60.0)).absent == 2
    assert look.world.do(learner._gallop(look.instance(), 60.0, enough=3)) is None


def test_who_only_looks_says_what_is_sure_where_nothing_leads_further(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of a later version is shown, and its base leads back to nothing that is known."""
    newest = look.push(look.base)
    shown = learner._Top(9, {b"a": None})  # type: ignore[dict-item]

    def found(*_: object, **__: object) -> Task:
        yield from ()
        return shown

    def nowhere(*_: object, **__: object) -> Task:
        yield from ()

    monkeypatch.setattr(learner, "_gallop", found)
    monkeypatch.setattr(leaps, "jump", nowhere)
    assert look.world.do(learner.newest_seen(look.m, look.group.enter, look.base, 5.0)) == newest


# ---- when a look ends


def test_a_look_that_changes_nothing_writes_nothing_where_nothing_was_voted_for(look: Look) -> None:
    """Somebody asked for a promise and went away; two backends are busy at first."""
    Forger(look.world, look.ws, 0).tell(look.base, "abc", Kind.PREPARE, look.logs.proposer.round(1))
    for name in "bc":
        look.failing(name, 1, lambda op: "/px/" in op.path)
    before = look.creates()
    assert look.recent() == look.base
    assert look.creates() == before


def test_who_is_shut_out_is_told_so_where_few_answer_and_show_something(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    look.push(look.base)
    look.world.down = {"b", "c"}
    monkeypatch.setattr(learner, "_check_shut_out", raising(ExcludedError("revoked")))
    with pytest.raises(ExcludedError, match="revoked"):
        look.recent(deadline_s=3.0)


def test_what_was_only_prepared_is_finished_by_nobody_without_a_quorum(look: Look) -> None:
    """A device that is kept offline for weeks would fill the log of the one backend that it reaches."""
    Forger(look.world, look.ws, 0).tell(look.base, "a", Kind.PREPARE, look.logs.proposer.round(1))
    look.world.down = {"b", "c"}
    before = look.creates()
    with pytest.raises(NoQuorumError):
        look.recent(deadline_s=3.0)
    assert look.creates() == before


def test_where_no_quorum_can_come_about_nobody_waits_for_it(look: Look) -> None:
    for name in "ab":
        del look.m.links[look.ws.acceptor_of(name)]
    with pytest.raises(NoQuorumError):
        look.recent(deadline_s=1000.0)
    assert look.world.now < 60


def test_a_retired_acceptor_has_its_record_looked_for_at_once(look: Look) -> None:
    instance = look.instance()
    assert not learner._hopeless(look.m, instance)
    memory = next(iter(instance.acceptors.values())).memory
    memory.tombstone = Tombstone(0, b"s" * 32)
    assert not learner._hopeless(look.m, instance), "of no later era"
    memory.tombstone = Tombstone(1, b"s" * 32)
    assert learner._hopeless(look.m, instance)


def test_who_cannot_read_what_a_quorum_holds_is_told_to_upgrade(look: Look) -> None:
    instance = look.instance()
    for acceptor in instance.acceptors.values():
        acceptor.log.newer, acceptor.log.poison = True, "written by a newer version"
        acceptor.standing = Standing("poisoned")
    with pytest.raises(UpgradeError):
        look.world.do(learner._probe(look.m, instance, 1000.0))


@pytest.mark.parametrize("step", ["_probe", "_resolve", "newest_seen"])
def test_entries_on_another_state_are_looked_into(look: Look, step: str) -> None:
    instance = look.instance()
    acceptor = next(iter(instance.acceptors.values()))
    acceptor.log.elsewhere[b"d" * 16, b"h" * 32] = look.base
    look.m.look_apart = raising(ForkError("two histories"))
    task = {
        "_probe": lambda: learner._probe(look.m, instance, 5.0),
        "_resolve": lambda: learner._resolve(look.m, instance, 5.0),
        "newest_seen": lambda: learner.newest_seen(look.m, look.group.enter, look.base, 5.0),
    }[step]
    with pytest.raises(ForkError, match="two histories"):
        look.world.do(task())


def test_a_look_without_a_quorum_asks_for_no_hint_where_there_is_no_floor(look: Look) -> None:
    newest = look.push(look.base)
    assert look.world.do(learner.newest_seen(look.m, look.group.enter, look.base, 5.0)) == newest
    hints = {hint_path(a) for a in look.ws.links}
    assert not any(op.path in hints and op.kind == "get" for ops in look.world.requests.values() for op in ops)


# ---- shut out


@pytest.mark.parametrize(
    ("hints", "is_shut", "opens", "told"),
    [
        ("ab", True, False, True),
        ("a", True, False, False),  # a quorum has none
        ("ab", False, False, False),  # no keyring was met that shuts it out
        ("ab", True, True, False),  # keys for this device open one
    ],
)
def test_who_is_shut_out_by_every_quorum_and_no_key_of_its_own_is_told(
    look: Look, monkeypatch: pytest.MonkeyPatch, hints: str, is_shut: bool, opens: bool, told: bool
) -> None:
    def keys(*_: object) -> Task:
        yield from ()
        return ["newer"], is_shut

    for name in "abc":
        look.world.stores[name][hint_path(look.ws.acceptor_of(name))] = b"later" if name in hints else b"now"
    monkeypatch.setattr(learner, "find_keys", keys)
    monkeypatch.setattr(learner, "shown_epoch", lambda data: look.m.keys.epoch + (data == b"later"))
    monkeypatch.setattr(learner, "_opens", lambda _keys, data, _acceptor: opens and data == b"later")
    check: Any = learner._check_shut_out(look.m, look.instance())
    if told:
        with pytest.raises(ExcludedError):
            look.world.do(check)
    else:
        assert look.world.do(check) is None
