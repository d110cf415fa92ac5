"""What a change of the acceptors is made of, piece by piece: who must hold what, and when too few do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paxos_world import Store
from test_counting import Logs

from metasync.config import Config
from metasync.consensus import NOTHING, State, reconfigure
from metasync.consensus.objects import const_path
from metasync.consensus.participant import Participant
from metasync.consensus.records.birth import genesis_path
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.errors import BackendError, ExcludedError, NoQuorumError, RefusedError, UnreachableError, UsageError
from metasync.keys.derive import sha256
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.runtime.effects import Op, Reply, Task


class Change:
    """Device 1 changes the acceptors of three logs. `data`: an object that `a` alone holds, under its hash."""

    def __init__(self, names: str = "abc") -> None:
        self.logs = Logs(names)
        self.world, self.ws, self.base = self.logs.world, self.logs.ws, self.logs.base
        self.group = self.ws.group(b"p" * 16, 1, links=dict(self.ws.links))
        self.m: Participant = self.group.participant
        self.ids = {name: self.ws.acceptor_of(name) for name in names}
        self.config: Config = self.ws.config
        self.data = b"an object"
        self.digest = sha256(self.data)

    def do(self, task: Task) -> Any:
        return self.world.do(task, {})

    def path(self, name: str) -> str:
        return const_path(self.ids[name], self.digest.hex())

    def copy(self, joining: str = "") -> None:
        members = {a: self.m.links[a] for a in self.ids.values() if a in self.m.links}
        joins = [self.ids[name] for name in joining]
        self.do(
            reconfigure._copy(
                self.m, members, self.config, joins, lambda a: const_path(a, self.digest.hex()), self.digest, 1000
            )
        )

    def failing(self, names: str, kind: str, error: BackendError) -> list[str]:
        """These refuse such requests. -> by whom one was refused, each time."""
        asked: list[str] = []

        def answer(_: str, op: Op, store: Store) -> Reply:
            if op.kind != kind:
                return store.do(op)
            asked.append(op.backend)
            return Reply(error=error)

        self.world.liars |= dict.fromkeys(names, answer)
        return asked


@pytest.fixture
def changing() -> Change:
    one = Change()
    one.world.stores["a"][one.path("a")] = one.data
    return one


AWAY, REFUSED = UnreachableError("busy"), RefusedError("no such bucket")


# ---- which step may be made


def test_among_acceptors_that_may_lie_so_many_stay_that_one_may() -> None:
    def config(n: int, f: int) -> Config:
        return replace(Logs("abcdefg"[:n]).ws.config, mode="bft", f=f)

    four = config(4, 1)
    reconfigure.check_step(four, four)
    three = replace(four, backends=four.backends[:3])
    with pytest.raises(UsageError, match=r"3 backends would vote, .* which takes 4"):
        reconfigure.check_step(four, three)


def test_what_is_no_config_is_no_step(changing: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Config) -> None:
        raise UsageError("two backends of one name")

    monkeypatch.setattr(Config, "check", wrong)
    with pytest.raises(UsageError, match="of one name"):
        reconfigure.check_step(changing.config, changing.config)


# ---- what the new ones must hold


def test_an_object_comes_to_all_that_lack_it_or_hold_nothing_of_it(changing: Change) -> None:
    changing.world.stores["b"][changing.path("b")] = b""
    changing.copy()
    assert [changing.world.stores[name].get(changing.path(name)) for name in "abc"] == [changing.data] * 3


def test_an_object_that_too_few_take_is_not_there(changing: Change) -> None:
    changing.config = replace(changing.config, prev_config=None)
    changing.failing("bc", "put", REFUSED)
    with pytest.raises(NoQuorumError) as e:
        changing.copy()
    assert "1 of 2 backends confirmed it" in e.value.message
    assert "b: no copy" in e.value.message


def test_one_that_joins_must_hold_it_though_enough_others_do(changing: Change) -> None:
    changing.failing("c", "put", REFUSED)
    changing.copy()
    del changing.world.stores["b"][changing.path("b")]
    with pytest.raises(BackendError, match="no such bucket"):
        changing.copy(joining="c")


def test_one_that_joins_must_hold_the_states_on_the_way_back(changing: Change) -> None:
    changing.failing("c", "put", REFUSED)
    members = {a: changing.m.links[a] for a in changing.ids.values()}
    changing.do(reconfigure.give_state(changing.m, members, changing.config, [], changing.base))
    with pytest.raises(BackendError, match="no such bucket"):
        changing.do(reconfigure.give_state(changing.m, members, changing.config, [changing.ids["c"]], changing.base))


def test_what_is_refused_is_not_sent_again_and_who_is_busy_is_asked_again(changing: Change) -> None:
    for error, times in ((REFUSED, 1), (AWAY, reconfigure.JOIN_TRIES)):
        asked = changing.failing("c", "put", error)
        got = changing.do(reconfigure.spread({changing.ids["c"]: "c"}, lambda _: "const/x", b"x"))
        assert got == {changing.ids["c"]: error.message}
        assert len(asked) == times


def test_a_config_comes_to_all_to_whom_there_is_a_way(changing: Change) -> None:
    del changing.m.links[changing.ids["c"]]
    digest = changing.do(reconfigure.put_config(changing.m, changing.base, changing.config, changing.config))
    there = [const_path(changing.ids[name], digest.hex()) in changing.world.stores[name] for name in "abc"]
    assert there == [True, True, False]


def test_too_few_are_named_with_what_each_of_them_said(changing: Change) -> None:
    got = {changing.ids["a"]: "", changing.ids["b"]: "it is full", b"z" * 16: "it is no member"}
    with pytest.raises(NoQuorumError) as e:
        reconfigure._enough(changing.config, got, "the new config")
    assert e.value.message == "the new config: 1 of 2 backends confirmed it (b: it is full)"


def test_the_new_ones_are_made_ready_with_all_that_the_base_names(changing: Change) -> None:
    """With the config before it, and without an index where there is none. One is away, and two are enough."""
    sealed = changing.do(reconfigure.put_config(changing.m, changing.base, changing.config, changing.config))
    before = {name: const_path(changing.ids[name], sealed.hex()) for name in "abc"}
    del changing.world.stores["b"][before["b"]]
    del changing.m.links[changing.ids["c"]]
    instance = changing.do(changing.group.enter(changing.base))
    new = replace(changing.config, prev_config=sealed)
    changing.do(reconfigure.prepare(changing.m, instance, new, {}, [NOTHING]))
    assert before["b"] in changing.world.stores["b"]


def test_the_beginning_that_is_given_may_be_there_already_and_no_other(changing: Change) -> None:
    """From an earlier try, sealed with other random bytes."""
    new, member = b"n" * 16, {b"n" * 16: "b"}
    for _ in range(2):
        assert changing.do(reconfigure.give_genesis(changing.m, {new: b"nonce" * 6}, member)) == changing.base
    changing.world.stores["b"][genesis_path(new)] = changing.world.stores["a"][genesis_path(changing.ids["a"])]
    with pytest.raises(BackendError, match="taken by something else"):
        changing.do(reconfigure.give_genesis(changing.m, {new: b"nonce" * 6}, member))


# ---- the fence


def decided(changing: Change) -> tuple[Any, State]:
    changing.logs.prepare("ab", 1)
    changing.logs.accept("ab", 1, changing.logs.x)
    return changing.do(changing.group.enter(changing.base)), changing.logs.x


def test_a_fence_that_is_known_to_stand_is_not_put_up_again(changing: Change) -> None:
    instance, x = decided(changing)
    changing.m.fenced.add(x.hash)
    changing.world.down = {*"abc"}
    changing.do(reconfigure.fence(changing.m, instance, x, changing.config, 5.0))


def test_who_could_not_decide_a_version_puts_up_no_fence(changing: Change) -> None:
    instance, x = decided(changing)
    stranger = new_device("new", changing.world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    changing.ws.identities.append(stranger)
    member = changing.ws.group(b"s" * 16, len(changing.ws.identities) - 1).participant
    with pytest.raises(ExcludedError):
        changing.do(reconfigure.fence(member, instance, x, changing.config, 5.0))


def test_votes_that_stand_are_closed_as_they_are(changing: Change) -> None:
    """A process that has read nothing yet looks first: no round is needed where a quorum voted in one."""
    instance, x = decided(changing)
    changing.world.down = {"c"}
    changing.do(reconfigure.fence(changing.m, instance, x, changing.config, 5.0))
    changing.world.run()
    logs = {name: [changing.logs.proposer.place(changing.base, name, n) for n in range(5)] for name in "ab"}
    there = {name: sum(path in changing.world.stores[name] for path in paths) for name, paths in logs.items()}
    assert there == {"a": 3, "b": 3}, "PREPARE, ACCEPT and DECIDED"


def test_votes_in_different_rounds_are_no_fence(changing: Change) -> None:
    """Each log is closed, on the same value. A quorum of votes in one round is what binds whoever comes next."""
    for name, n in (("a", 1), ("b", 3)):
        changing.logs.prepare(name, n)
        changing.logs.accept(name, n, changing.logs.x)
        changing.logs.close(name, changing.logs.x)
    instance = changing.do(changing.ws.group(b"r" * 16, 1).enter(changing.base))
    for view in instance.acceptors.values():
        changing.do(view.look())
    stay = frozenset(changing.ids.values())
    assert not reconfigure._is_enough(instance, changing.logs.x, stay, closed=True)


def test_a_log_that_was_poisoned_after_it_closed_holds_no_fence(changing: Change) -> None:
    changing.logs.prepare("abc", 1)
    changing.logs.accept("abc", 1, changing.logs.x)
    changing.logs.close("ab", changing.logs.x)
    stay = frozenset(changing.ids.values())

    def is_fence() -> bool:
        instance = changing.do(changing.ws.group(b"r" * 16, 1).enter(changing.base))
        for view in instance.acceptors.values():
            changing.do(view.look())
        return reconfigure._is_enough(instance, changing.logs.x, stay, closed=True)

    assert is_fence()
    changing.logs.poison("b", 3)
    assert not is_fence()


def test_logs_that_voted_for_another_value_since_can_be_no_fence_for_this_one(changing: Change) -> None:
    """A device appended votes in a higher round to two of three: DECIDED closes nothing there."""
    other = changing.logs.proposer.lie(changing.base, b"y...")
    changing.logs.prepare("abc", 1)
    changing.logs.accept("abc", 1, changing.logs.x)
    stay = frozenset(changing.ids.values())

    def can_be_fence() -> bool:
        instance = changing.do(changing.ws.group(b"r" * 16, 1).enter(changing.base))
        for view in instance.acceptors.values():
            changing.do(view.look())
        return reconfigure._is_enough(instance, changing.logs.x, stay, closed=False)

    assert can_be_fence()
    changing.logs.prepare("ab", 2)
    changing.logs.accept("ab", 2, other)
    assert not can_be_fence()


# ---- when no fence can be had any more (rule 5.5)


def unclosable(changing: Change, leaves: str, value: State | None = None) -> str:
    """The names of the acceptors that are ended, where a change without `leaves` can have no fence."""
    instance = changing.do(changing.ws.group(b"r" * 16, 1).enter(changing.base))
    for view in instance.acceptors.values():
        changing.do(view.look())
    new = replace(changing.config, backends=tuple(b for b in changing.config.backends if b.name != leaves))
    return "".join(sorted(reconfigure.unclosable(instance, new, value)))


def test_a_log_that_is_ended_among_those_that_stay_leaves_too_few(changing: Change) -> None:
    """Of three one leaves, so that both others must be closed; which value is decided is not known yet."""
    assert unclosable(changing, "c") == ""
    changing.logs.poison("a", 0)
    changing.logs.prepare("bc", 1)
    changing.logs.accept("b", 1, changing.logs.x)
    assert unclosable(changing, "c") == "a"
    assert unclosable(changing, "a") == "", "both that stay are able"


def test_a_log_that_is_closed_on_another_value_can_be_none_of_a_fence() -> None:
    changing = Change("abcd")
    x, other = changing.logs.x, changing.logs.proposer.lie(changing.base, b"y...")
    changing.logs.prepare("abcd", 1)
    changing.logs.accept("a", 1, x)
    changing.logs.close("a", x)
    changing.logs.poison("d", 1)
    assert unclosable(changing, "d", other) == "d"
    assert unclosable(changing, "d") == "d"
    assert unclosable(changing, "d", x) == "", "b and c can vote for it in that round"


def test_a_log_that_promised_more_cannot_vote_in_the_round_of_one_that_is_closed(changing: Change) -> None:
    x = changing.logs.x
    changing.logs.prepare("ab", 1)
    changing.logs.accept("a", 1, x)
    changing.logs.close("a", x)
    changing.logs.prepare("b", 2)
    changing.logs.accept("b", 2, x)
    changing.logs.poison("c", 0)
    assert unclosable(changing, "c", x) == "c"


def test_a_log_that_can_only_be_closed_any_more_counts_with_its_vote(changing: Change) -> None:
    """It promised the last round there is: it takes no vote, and DECIDED."""
    x = changing.logs.x
    changing.logs.prepare("ab", 1)
    changing.logs.accept("ab", 1, x)
    changing.logs.prepare("a", ROUND_MAX)
    assert unclosable(changing, "c") == "a"
    assert unclosable(changing, "c", x) == ""
