"""What is counted of logs that were read, rule by rule: each test fails without the line that it names the rule of."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

import pytest
from agreement_kit import ACCEPTOR, KEYS, RULES, Writer, X
from forger_kit import NOBODY, Forger
from paxos_world import Store, Workspace, World, change, make_workspace

from metasync.config import Form
from metasync.consensus import State
from metasync.consensus.acceptors.view import DELTA_S
from metasync.consensus.instance import Instance
from metasync.consensus.proposer import look_around
from metasync.consensus.records import log_replay
from metasync.consensus.records.birth import birth_path
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.era import Tombstone
from metasync.consensus.records.log_replay import NEVER, Log
from metasync.consensus.records.state import ZERO_HASH
from metasync.errors import NoQuorumError, UnreachableError
from metasync.runtime.effects import Op, Reply


class Logs:
    """A workspace on `names`, into whose logs of version 1 a test writes what it wants by `proposer`."""

    def __init__(self, names: str = "abc", f: int = 0) -> None:
        self.world = World(3, [*names])
        self.ws: Workspace = make_workspace(self.world, f=f)
        self.base = self.ws.genesis
        self.proposer = Forger(self.world, self.ws, 0)
        self.x = self.proposer.lie(self.base, b"x...")

    def prepare(self, names: str, n: int) -> None:
        self.proposer.tell(self.base, names, Kind.PREPARE, self.proposer.round(n))

    def accept(self, names: str, n: int, value: State) -> None:
        self.proposer.tell(self.base, names, Kind.ACCEPT, self.proposer.round(n), value)

    def close(self, names: str, value: State) -> None:
        self.proposer.tell(self.base, names, Kind.DECIDED, NOBODY, value)

    def poison(self, name: str, idx: int) -> None:
        self.world.stores[name][self.proposer.place(self.base, name, idx)] = b"rubbish".ljust(512)

    def read(self) -> Instance:
        """What a device makes of it."""
        group = self.ws.group(b"r" * 16, 1)
        instance = Instance(group.participant, self.ws.config, self.ws.devices, self.base)
        self.world.do(look_around(group.participant, instance, 5.0, everybody=True))
        return instance


def test_what_a_log_accepted_before_it_was_poisoned_is_evidence() -> None:
    """Rule 1.4: whoever proposes takes that value, though the log gives no vote any more."""
    logs = Logs()
    logs.prepare("abc", 1)
    logs.accept("a", 1, logs.x)
    logs.poison("a", 2)
    instance = logs.read()
    assert not instance.acceptors[logs.ws.acceptor_of("a")].log.usable
    assert instance.evidence() == logs.x


def test_a_round_that_may_be_unearned_decides_nothing() -> None:
    """Rule 8.2: a device voted in another's round on all logs while a alone had the promise. Who reads a and b knows
    the value as evidence; who reads c as well knows that it is not even that."""
    logs = Logs()
    logs.prepare("a", 1)
    logs.accept("abc", 1, logs.x)
    logs.world.down = {"c"}
    instance = logs.read()
    assert instance.decided() is None
    assert instance.decided(births=False) == instance.evidence() == logs.x
    assert instance.may_decide(logs.x)
    logs.world.down = set()
    assert logs.read().evidence() is None


def test_a_round_that_a_quorum_shows_to_have_promised_decides() -> None:
    """Rule 8.2: a and c promised it, a and b voted. It is open until c was read."""
    logs = Logs()
    logs.prepare("ac", 1)
    logs.accept("ab", 1, logs.x)
    logs.world.down = {"c"}
    assert logs.read().decided() is None
    logs.world.down = set()
    assert logs.read().decided() == logs.x


@pytest.mark.parametrize("closed", ["ab", "a"])
def test_a_vote_behind_a_fence_decides_in_a_round_that_may_be_unearned(closed: str) -> None:
    """Rule 8.2: with a and b closed nobody can finish the version, nor with a alone where b has a rival's vote as well;
    c was asked, and does not answer."""
    logs = Logs()
    logs.prepare("ac", 1)
    logs.accept("ab", 1, logs.x)
    logs.close(closed, logs.x)
    logs.world.down = {"c"}
    instance = logs.read()
    assert instance.decided() == logs.x
    instance.asked_all = False
    assert instance.decided() is None, "c may be about to answer"
    instance.begin()
    assert not instance.asked_all


def test_a_vote_behind_a_fence_counts_for_none_that_was_read() -> None:
    """Rule 8.2: b is closed, and lacks the promise; c was read, and has not given it yet. It may be asked for."""
    logs = Logs()
    logs.prepare("a", 1)
    logs.accept("ab", 1, logs.x)
    logs.close("b", logs.x)
    instance = logs.read()
    assert instance.decided() is None
    assert instance.evidence() == logs.x


def test_a_log_that_is_closed_on_another_vote_keeps_an_open_round_open() -> None:
    """Rule 8.2: a, b and c voted in round 2, which a and perhaps e promised. d is closed in round 1: nobody has shut
    the votes of round 2 in, and the version can be finished."""
    logs = Logs("abcde")
    other = logs.proposer.lie(logs.base, b"y...")
    logs.prepare("d", 1)
    logs.accept("d", 1, other)
    logs.close("d", other)
    logs.prepare("a", 2)
    logs.accept("abc", 2, logs.x)
    logs.world.down = {"e"}
    assert logs.read().decided() is None


def test_a_promise_of_a_quorum_may_lack_those_that_lie() -> None:
    """Rule 8.2: of five, one of which may lie, four votes and three promises decide. The liar may hide the fourth."""
    logs = Logs("abcde", f=1)
    logs.prepare("ab", 1)
    logs.accept("abcd", 1, logs.x)
    logs.world.down = {"e"}
    assert logs.read().decided() is None
    logs = Logs("abcde", f=1)
    logs.prepare("abc", 1)
    logs.accept("abcd", 1, logs.x)
    logs.world.down = {"e"}
    assert logs.read().decided() == logs.x


def test_a_closed_log_stands_for_its_value_in_later_rounds_alone() -> None:
    """Rule 4.2: b voted in round 3, the closed logs a and d in round 5. No round has three votes: what c and e hold,
    which nobody sees here, may be a value of round 4 that goes on in round 6."""
    logs = Logs("abcde")
    logs.prepare("abd", 3)
    logs.accept("b", 3, logs.x)
    logs.prepare("ad", 5)
    logs.accept("ad", 5, logs.x)
    logs.close("ad", logs.x)
    logs.world.down = {"c", "e"}
    assert logs.read().decided() is None


def test_a_closed_log_stands_for_its_value_in_later_rounds() -> None:
    """Or nobody could decide a version that a fence closed on too few."""
    logs = Logs("abc")
    logs.prepare("ab", 3)
    logs.accept("a", 3, logs.x)
    logs.close("a", logs.x)
    logs.prepare("b", 5)
    logs.accept("b", 5, logs.x)
    logs.world.down = {"c"}
    assert logs.read().decided() == logs.x


def test_a_log_that_was_closed_is_ended_where_nobody_could_propose_its_value() -> None:
    """Rule 8.1: the others, a fence has closed."""
    logs = Logs()
    logs.prepare("abc", 1)
    logs.accept("ab", 1, logs.x)
    logs.close("ab", logs.x)
    assert logs.read().ended() == {}
    logs = Logs()
    logs.accept("ab", 9, logs.x)
    logs.close("a", logs.x)
    assert logs.read().ended().keys() == {"a"}


def test_a_vote_for_another_value_behind_a_fence_is_none() -> None:
    """Rule 1.4: a log that DECIDED closed takes nothing more, whatever its round."""
    logs = Logs()
    y = logs.proposer.lie(logs.base, b"y...")
    logs.prepare("a", 1)
    logs.accept("a", 1, logs.x)
    logs.close("a", logs.x)
    logs.prepare("abc", 2)
    logs.accept("ab", 2, y)
    logs.world.down = {"c"}
    instance = logs.read()
    assert instance.decided() is None
    assert instance.evidence() == y


def without_birth(logs: Logs, name: str, *, after: int = 0) -> None:
    """A backend does not answer when it is asked for its birth, but so many times. It answers all else."""
    births = itertools.count()

    def answer(_: str, op: Op, store: Store) -> Reply:
        if op.path == birth and next(births) >= after:
            return Reply(error=UnreachableError("timed out"))
        return store.do(op)

    birth = birth_path(logs.ws.acceptor_of(name))
    logs.world.liars[name] = answer


def test_a_read_without_the_birth_beside_it_is_not_taken_in() -> None:
    """Rule 1.9: the entry may be of another root than the config means. It counts when it is read again."""
    logs = Logs()
    logs.prepare("a", 1)
    logs.accept("a", 1, logs.x)
    without_birth(logs, "a")
    instance = logs.read()
    a = instance.acceptors[logs.ws.acceptor_of("a")]
    assert (a.log.next_idx, a.memory.last, instance.evidence()) == (0, None, None)
    logs.world.liars.clear()
    assert logs.read().evidence() == logs.x


def test_a_create_without_the_birth_beside_it_is_not_taken_in() -> None:
    """Rule 1.9: it may have landed in another root, whose log is not the one that was read."""
    logs = Logs()
    member = logs.ws.group(b"r" * 16, 1).participant
    a = logs.ws.unread(member, logs.base, "a")
    without_birth(logs, "a")
    outcome = logs.world.do(a.append(Kind.PREPARE, Round(2, member.incarnation), None, NEVER))
    assert outcome.kind == "failed"
    assert (a.log.next_idx, a.memory.last) == (0, None)


class Sleeps(World):
    """A world whose clock jumps: `slept` seconds, in which the machine did nothing."""

    slept = 0.0
    ran = 0.0

    @property
    def now(self) -> float:
        return self.ran + self.slept

    @now.setter
    def now(self, seconds: float) -> None:
        self.ran = seconds

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.ran + seconds, self.count, event))


@pytest.mark.parametrize("form", ["log", "block"])
def test_who_sleeps_while_a_request_is_under_way_counts_its_votes_anew(form: Form) -> None:
    """Rule 4.3: meanwhile a backend that voted before may have been removed from the config and emptied."""
    number, requests = 0, 100
    while number < requests:
        world = Sleeps(3, ["a", "b", "c"])
        ws = make_workspace(world, forms=dict.fromkeys(world.stores, form))
        world.down = {"c"}
        asked = itertools.count()

        def sleeps(op: Op, world: Sleeps = world, asked: Iterator[int] = asked, at: int = number) -> None:
            if next(asked) == at:
                world.slept = 2 * DELTA_S
                world.stores["a"].clear()

        task = ws.group(b"p" * 16).propose(ws.genesis, lambda: change(b"x" * 16), deadline_s=2 * DELTA_S + 5)
        world.fault_hook = sleeps
        process = world.start("sleeper", task)
        world.run(lambda process=process: process.done)
        if not world.slept:
            assert process.error is None
            requests = next(asked)
        else:
            assert isinstance(process.error, NoQuorumError), f"it slept at request {number}"
        number += 1
    assert 10 <= requests < 100


def test_a_taken_slot_is_not_taken_in_without_the_birth_beside_it() -> None:
    """Rule 1.9: the birth that was read beside the create says nothing of the read after it."""
    logs = Logs()
    member = logs.ws.group(b"r" * 16, 1).participant
    a = logs.ws.unread(member, logs.base, "a")
    logs.prepare("a", 1)
    without_birth(logs, "a", after=1)
    outcome = logs.world.do(a.append(Kind.PREPARE, Round(2, member.incarnation), None, NEVER))
    assert outcome.kind == "failed"
    assert (a.log.next_idx, a.memory.last) == (0, None)


def test_votes_of_a_poisoned_log_are_none() -> None:
    """Rule 1.4: they are evidence, and no more: its backend shows what no device wrote."""
    logs = Logs()
    logs.prepare("ab", 1)
    logs.accept("ab", 1, logs.x)
    assert logs.read().decided() == logs.x
    logs.poison("a", 2)
    instance = logs.read()
    assert instance.decided(births=False) is None
    assert instance.evidence() == logs.x


def test_a_contrary_decided_closes_nothing() -> None:
    """Rule 8.1: the log has accepted another value, and goes on. The device is named."""
    logs = Logs()
    y = logs.proposer.lie(logs.base, b"y...")
    logs.prepare("a", 1)
    logs.accept("a", 1, logs.x)
    logs.close("a", y)
    logs.prepare("a", 2)
    logs.accept("a", 2, y)
    log = logs.read().acceptors[logs.ws.acceptor_of("a")].log
    assert (log.closed, [*log.votes.values()]) == (None, [logs.x, y])
    assert log.contrary == {logs.ws.identities[0].device_id}


def test_a_closed_log_promises_what_it_can_still_promise() -> None:
    """Rule 4.2: a is closed, c has promised a higher round than a's, b is away: a and c go on with a's value."""
    logs = Logs()
    logs.prepare("ac", 1)
    logs.accept("a", 1, logs.x)
    logs.close("a", logs.x)
    Forger(logs.world, logs.ws, 2).tell(logs.base, "c", Kind.PREPARE, Round(2, b"r" * 16))
    logs.world.down = {"b"}
    decided = logs.world.do(logs.ws.group(b"p" * 16, 1).propose(logs.base, lambda: change(b"z" * 16)), {})
    assert (decided.state, decided.mine) == (logs.x, False)


@pytest.mark.parametrize(("voted", "away", "may"), [
    ("", "", False), ("a", "", False), ("a", "c", True), ("ab", "c", True), ("ab", "", True), ("", "bc", False),
])  # fmt: skip
def test_what_may_be_decided(voted: str, away: str, may: bool) -> None:
    """Rule 1.8: a version far ahead is believed if its own logs bear it out, as far as they can be read."""
    logs = Logs()
    logs.prepare("abc", 1)
    logs.accept(voted, 1, logs.x)
    logs.world.down = {*away}
    assert logs.read().may_decide(logs.x) is may


def test_what_another_value_was_decided_over_may_not_be_decided() -> None:
    """Rule 8.2: x stands in the lower round; y has as many votes in a higher one."""
    logs = Logs()
    y = logs.proposer.lie(logs.base, b"y...")
    for n, value in ((1, logs.x), (2, y)):
        logs.prepare("ab", n)
        logs.accept("ab", n, value)
    assert logs.read().may_decide(logs.x)
    assert not logs.read().may_decide(y)


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_values_in_one_round_the_one_that_may_have_a_quorum_is_evidence(swapped: bool) -> None:
    """Rule 8.2: two of five voted for x and one for y; d has promised a higher round, and votes for neither."""
    logs = Logs("abcde")
    x, y = logs.x, logs.proposer.lie(logs.base, b"y...")
    if swapped:
        x, y = y, x
    logs.prepare("abcde", 1)
    logs.accept("ab", 1, x)
    logs.accept("c", 1, y)
    logs.prepare("d", 2)
    assert logs.read().evidence() == x


# ---- one log alone


def test_after_poison_nothing_more_is_taken_from_a_log() -> None:
    log = Log(KEYS, RULES, ACCEPTOR)
    first, second = Writer().prepare(1).accept(1, X).entries
    assert log.feed(first) is not None
    assert log.feed(b"rubbish".ljust(512)) is None
    assert log.feed(second) is None
    assert (log.next_idx, log.votes, log.usable) == (2, {}, False)


@pytest.mark.parametrize("bound", ["LOG_ENTRIES_MAX", "LOG_BYTES_MAX"])
def test_a_log_longer_than_any_is_poison(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """What is within the bound stays evidence."""
    writer = Writer().prepare(1).accept(1, X).prepare(2)
    two = {"LOG_ENTRIES_MAX": 2, "LOG_BYTES_MAX": sum(map(len, writer.entries[:2]))}
    monkeypatch.setattr(log_replay, bound, two[bound])
    log = Log(KEYS, RULES, ACCEPTOR)
    fed = [log.feed(data) is not None for data in writer.entries]
    assert fed == [True, True, False]
    assert "more than" in log.poison
    assert [*log.votes.values()] == [X]


# ---- what a promise and a look take


class Promised:
    """A proposer's round that a and b have promised, by its own PREPARE."""

    def __init__(self) -> None:
        self.logs = Logs()
        world, ws = self.logs.world, self.logs.ws
        group = ws.group(b"p" * 16, 1)
        self.member = group.participant
        self.instance: Instance = world.do(group.enter(self.logs.base))
        self.instance.begin()
        self.round = Round(3, self.member.incarnation)
        self.views = [self.instance.acceptors[ws.acceptor_of(name)] for name in "ab"]
        for view in self.views:
            world.do(view.append(Kind.PREPARE, self.round, None, NEVER))

    @property
    def count(self) -> int:
        return self.instance.promises(self.round)


def test_a_promise_counts_while_nothing_higher_was_promised() -> None:
    p = Promised()
    assert p.count == 2
    p.logs.prepare("a", 4)
    p.logs.world.do(p.views[0].look())
    assert p.count == 1


def test_a_promise_counts_only_with_the_birth_that_was_read_beside_it() -> None:
    """Rule 1.9: a root that was wiped has forgotten what it accepted."""
    p = Promised()
    p.views[0].begin()
    assert p.count == 1
    again = Instance(p.member, p.logs.ws.config, p.logs.ws.devices, p.logs.base)
    p.logs.world.do(look_around(p.member, again, 5.0, everybody=True))
    assert again.promises(p.round) == 0  # read, and by nobody's own PREPARE


def test_a_promise_of_long_ago_is_none() -> None:
    """Rule 4.3."""
    p = Promised()
    p.member.now += DELTA_S + 1
    assert p.count == 0


def test_a_promise_of_a_poisoned_log_is_none() -> None:
    p = Promised()
    p.logs.poison("a", 1)
    p.logs.world.do(p.views[0].look())
    assert not p.views[0].log.usable
    assert p.count == 1


@pytest.mark.parametrize(("promised", "count"), [(2, 2), (5, 1)])
def test_a_closed_log_promises_no_round_below_what_it_promised(promised: int, count: int) -> None:
    """What it accepted there, nobody can propose below."""
    p = Promised()
    del p.logs.world.stores["a"][p.logs.proposer.place(p.logs.base, "a", 0)]
    p.logs.prepare("a", promised)
    p.logs.accept("a", promised, p.logs.x)
    p.logs.close("a", p.logs.x)
    p.views[0].log = p.views[0]._empty()
    p.logs.world.do(p.views[0].look())
    assert (p.views[0].log.shut, p.count) == (True, count)


def test_a_version_is_quiet_when_a_quorum_was_read_to_its_end_and_shows_no_vote() -> None:
    logs = Logs()
    logs.prepare("abc", 1)
    assert logs.read().quiet()
    logs.world.down = {"a"}
    assert logs.read().quiet()
    logs.world.down = {"a", "b"}
    assert not logs.read().quiet()
    logs.world.down = set()
    for name in "ab":  # of two it is not known whether they are what they were
        without_birth(logs, name)
    assert not logs.read().quiet()
    logs.world.liars.clear()
    logs.accept("a", 1, logs.x)
    assert logs.read().quiet()  # b and c hold nothing: when the look began, nothing was decided
    logs.accept("b", 1, logs.x)
    assert not logs.read().quiet()


def test_who_was_read_with_the_right_birth_counts_as_read() -> None:
    logs = Logs()
    logs.prepare("abc", 1)
    assert logs.read().read() == 3
    without_birth(logs, "a")
    assert logs.read().read() == 2
    logs.poison("b", 1)
    assert logs.read().read() == 1


def test_a_log_that_was_not_read_to_its_end_says_nothing_of_what_it_lacks() -> None:
    """Its first entry was read, and the next one not: a vote may stand there."""
    logs = Logs()
    logs.prepare("abc", 1)
    logs.accept("abc", 1, logs.x)

    def cut(_: str, op: Op, store: Store) -> Reply:
        later = op.path in {logs.proposer.place(logs.base, name, idx) for name in "ab" for idx in (1, 2)}
        return Reply(error=UnreachableError("timed out")) if later else store.do(op)

    logs.world.liars = {"a": cut, "b": cut}
    logs.world.down = {"c"}
    instance = logs.read()
    assert [a.log.next_idx for a in instance.acceptors.values()].count(1) == 2
    assert (instance.quiet(), instance.read()) == (False, 0)


def test_a_birth_that_could_not_be_read_again_takes_back_what_was_read_before() -> None:
    """Rule 1.9: between two steps of one operation a root may have been wiped."""
    p = Promised()
    for view in p.views:
        p.logs.world.do(view.look())
    assert (p.instance.read(), p.instance.quiet()) == (2, True)
    without_birth(p.logs, "a")
    p.logs.world.do(p.views[0].append(Kind.PREPARE, p.logs.proposer.round(9), None, NEVER))
    assert (p.instance.read(), p.instance.quiet()) == (1, False)


@pytest.mark.parametrize(
    ("prepared", "votes", "is_certain"),
    [
        ((2, 3, 5), {2: "a", 3: "bd"}, False),  # one vote for it in a lower round is no decision there
        ((3, 5), {2: "abd", 3: "bd"}, False),  # nor are votes of a round that nobody can have promised
        ((5,), {3: "bd"}, True),  # and such a round decided no other value either
    ],
)
def test_a_value_is_certain_where_no_other_can_have_been_decided_below_it(
    prepared: tuple[int, ...], votes: dict[int, str], is_certain: bool
) -> None:
    """x is decided in round 5. In round 3 two voted for y, and what c has is unknown, so that y may have had three."""
    logs = Logs("abcde")
    y = logs.proposer.lie(logs.base, b"y...")
    for n in (2, 3, 5):
        if n in prepared:
            logs.prepare("abde", n)
        logs.accept({**votes, 5: "abd"}.get(n, ""), n, y if n == 3 else logs.x)
    logs.world.down = {"c"}
    instance = logs.read()
    assert instance.decided() == logs.x
    assert instance.is_certain(logs.x) is is_certain


@pytest.mark.parametrize(
    ("prepared", "votes", "emptied", "down", "is_bound"),
    [
        ({1: "ab"}, {1: "a"}, "c", "", True),  # each quorum that is left has a, or one that promised a later round
        ({1: "ab"}, {1: "a"}, "", "c", False),  # c may hold a vote for another one
        ({1: "ab"}, {1: "a"}, "b", "c", False),  # and with c out of reach no quorum was read
        ({2: "b"}, {1: "a"}, "c", "", False),  # no quorum can have promised round 1: the vote is none
        ({1: "ab", 2: "ab"}, {1: "a", 2: "b"}, "c", "", False),  # in round 2 b voted for another one
        ({1: "ab"}, {}, "c", "", False),
    ],
)
def test_a_value_is_bound_where_all_that_it_lacks_was_emptied(
    prepared: dict[int, str], votes: dict[int, str], emptied: str, down: str, is_bound: bool
) -> None:
    """Rule 1.8: then no proposer can have another one decided, though a quorum of votes for it is never seen again."""
    logs = Logs()
    y = logs.proposer.lie(logs.base, b"y...")
    for n in (1, 2):
        logs.prepare(prepared.get(n, ""), n)
        logs.accept(votes.get(n, ""), n, y if n == 2 else logs.x)
    for name in emptied:
        logs.world.stores[name].clear()
    logs.world.down = {*down}
    assert logs.read().is_bound(logs.x) is is_bound


@pytest.mark.parametrize("is_retired", [False, True])
def test_a_value_is_not_bound_by_acceptors_that_were_retired(is_retired: bool) -> None:
    """Rule 1.8: the record of the restart tells what goes on from this version. They were not emptied."""
    logs = Logs()
    logs.prepare("ab", 1)
    logs.accept("a", 1, logs.x)
    logs.world.stores["c"].clear()
    instance = logs.read()
    instance.acceptors[logs.ws.acceptor_of("c")].memory.tombstone = Tombstone(1, ZERO_HASH) if is_retired else None
    assert instance.is_bound(logs.x) is not is_retired


def test_a_value_without_a_vote_is_not_bound_whatever_was_emptied_since() -> None:
    """What is known of a backend is shared: another look may find two of them emptied after this one read all logs."""
    logs = Logs()
    instance = logs.read()
    for name in "bc":
        instance.acceptors[logs.ws.acceptor_of(name)].memory.replaced = "its birth object is missing: it was emptied"
    assert not instance.is_bound(logs.x)
