"""What a group keeps and passes on between its operations, and where it asks and stores first."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from forger_kit import Forger
from paxos_world import change
from test_counting import Logs

from metasync.consensus import Ref, State, group, leaps, new_era, participant
from metasync.consensus.group import CONSTS_KEPT
from metasync.consensus.instance import Instance
from metasync.consensus.objects import Copy, const_path, created, get_anywhere
from metasync.consensus.participant import (
    OBJECTS_KEPT,
    OP_TIMEOUT_S,
    RIDING_KEPT,
    ROUNDS_KEPT,
    STATES_CACHED,
    Remembered,
    Standing,
    decode_memory,
    encode_memory,
)
from metasync.consensus.records.entry import Kind, Seen, entry_path, open_entry, seal_entry
from metasync.consensus.truncation import Progress
from metasync.errors import BackendError, FormatError, UnreachableError
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.runtime.effects import Now, Reply, Sleep, Task


class One:
    """Device 1 of a workspace on three logs."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.world, self.ws, self.base = self.logs.world, self.logs.ws, self.logs.base
        self.group = self.ws.group(b"p" * 16, 1, links=dict(self.ws.links))
        self.m = self.group.participant
        self.ids = [self.ws.acceptor_of(name) for name in "abc"]

    def do(self, task: Task) -> Any:
        return self.world.do(task, {})

    def push(self, base: State) -> State:
        state: State = self.do(self.group.propose(base, lambda: change(b"%16d" % base.v))).state
        self.world.run()
        return state

    def requests(self) -> int:
        return sum(len(requests) for requests in self.world.requests.values())


@pytest.fixture
def one() -> One:
    return One()


def test_before_its_first_look_it_has_heard_nobody(one: One) -> None:
    one.group.forget_heard()
    assert one.group.heard == frozenset()
    assert not one.group.hears_news
    one.do(one.group.get_recent(one.base))
    assert not one.group.hears_news
    one.logs.prepare("abc", 1)
    one.do(one.group.get_recent(one.base))
    assert one.group.hears_news
    assert one.group.heard == {*"abc"}
    one.group.forget_heard()
    assert one.group.heard == frozenset()


def test_roots_that_ride_are_bounded(one: One) -> None:
    """The newest stay; one that is met again counts as new. What no entry carried is not kept."""
    names = [bytes([n]) * 32 for n in range(RIDING_KEPT + 1)]

    def keep(name: bytes, carried: dict[bytes, bytes]) -> None:
        value: Any = SimpleNamespace(index=Ref(1, name))
        one.m.keep_riding(value, carried)

    keep(names[0], {})
    one.m.keep_riding(None, {names[0]: b"r"})
    assert one.m.riding == {}
    for name in names[:-1]:
        keep(name, {name: b"r" + name})
    keep(names[0], {names[0]: b"r"})
    keep(names[-1], {names[-1]: b"r"})
    assert set(one.m.riding) == {*names} - {names[1]}
    for name in names:
        one.m.note_settled(name)
    assert set(one.m.settled) == {*names[1:]}


def test_a_memory_that_is_out_of_order_is_none() -> None:
    memory = [Remembered(1, Seen(bytes([n]) * 16, 1, 0, b"h" * 32)) for n in range(2)]
    data = encode_memory(memory)
    head, one, two = data[:3], data[3 : 3 + 64], data[3 + 64 :]
    assert decode_memory(head + one + two) == tuple(memory)
    for wrong in (two + one, one + one):
        with pytest.raises(FormatError, match="out of order"):
            decode_memory(head + wrong)


def test_an_incarnation_has_its_length(one: One) -> None:
    with pytest.raises(ValueError, match="incarnation"):
        one.ws.group(b"short")


def test_who_wrote_a_version_is_told_by_its_own_signature_alone(one: One) -> None:
    state = one.push(one.base)
    me, other = one.ws.identities[1], one.ws.identities[2]

    def writer() -> bytes | None:
        found: bytes | None = one.do(one.group.writer_of(one.base, state, deadline_s=5.0))
        return found

    first = {name: entry_path(one.ws.keys, 1, 0, a, 1, 0) for name, a in zip("abc", one.ids, strict=True)}
    kept = {name: one.world.stores[name][path] for name, path in first.items()}
    del one.world.stores["a"][first["a"]]
    assert writer() == me.device_id
    for name, a in zip("abc", one.ids, strict=True):  # a member in the name of another
        signed = open_entry(one.ws.keys, kept[name], ns_id=one.base.ns_id, era=0, epoch=1, acceptor_id=a, v=1, idx=0)
        one.world.stores[name][first[name]] = seal_entry(one.ws.keys, signed.entry, other.sign_private, bytes(32))
    assert writer() is None
    stranger = new_device("new", one.world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    one.ws.identities.append(stranger)
    for name in "abc":
        del one.world.stores[name][first[name]]
    forger = Forger(one.world, one.ws, len(one.ws.identities) - 1, state.writer)
    forger.tell(one.base, "abc", Kind.PREPARE, forger.round(1))
    assert writer() is None


def test_who_began_a_version_before_its_writer_did_not_write_it(one: One) -> None:
    """The first entry is of another round than the state's: whose it is tells nothing."""
    state = one.push(one.base)
    assert one.do(one.group.writer_of(one.base, state, deadline_s=5.0)) == one.ws.identities[1].device_id
    another = replace(state, writer=b"o" * 16)
    assert one.do(one.group.writer_of(one.base, another, deadline_s=5.0)) is None


def test_an_index_root_that_rode_in_a_vote_is_not_asked_for(one: One) -> None:
    one.m.riding = {b"r" * 32: bytes(32) + b"the root"}
    assert one.do(one.group.get_meta(Ref(1, b"r" * 32))) == b"the root"
    assert not one.requests() or all(op.kind == "create" for ops in one.world.requests.values() for op in ops)


def test_what_is_kept_is_bounded(one: One) -> None:
    for n in range(max(CONSTS_KEPT, OBJECTS_KEPT, STATES_CACHED) + 3):
        one.group._keep_const(b"%32d" % n, b"data")
        one.m.keep_object(b"%32d" % n, b"data")
        one.m.remember_state(replace(one.base, v=n))
    assert (len(one.group._consts), len(one.m.objects), len(one.m.states)) == (CONSTS_KEPT, OBJECTS_KEPT, STATES_CACHED)


def test_a_memory_of_more_acceptors_than_any_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_memory(Remembered(1, Seen(bytes([n]) * 16, 1, 0, b"h" * 32)) for n in range(3))
    assert len(decode_memory(data)) == 3
    monkeypatch.setattr(participant, "MEMORY_MAX", 2)
    with pytest.raises(FormatError, match="too many"):
        decode_memory(data)


def test_a_hint_is_written_at_once_where_that_is_asked(one: One) -> None:
    state = replace(one.logs.x, v=3)
    assert one.do(one.group.write_hint(one.base, state)) == 0
    assert one.do(one.group.write_hint(one.base, state, now=True, everywhere=True)) == 3


def test_who_answers_again_is_well_again(one: One) -> None:
    one.m.standings["a"] = Standing("down", "timed out")
    one.world.down = {"b"}
    births = one.do(one.group.read_births(one.base))
    assert {name: standing.kind for name, standing in births.items()} == {"a": "ok", "b": "down", "c": "ok"}


def test_who_was_well_is_asked_first_and_everybody_once(one: One) -> None:
    linked = one.group._linked()
    assert len(linked) == 3
    one.m.standings = {linked[0][1]: Standing("ok")}
    assert one.group._linked() == linked
    one.m.standings = {linked[0][1]: Standing("down")}
    assert one.group._linked() == [*linked[1:], linked[0]]


def test_what_entries_carried_is_not_asked_for(one: One) -> None:
    state = replace(one.logs.x, config=b"c" * 32, devices=b"d" * 32)
    instance = one.do(one.group.enter(one.base))
    instance.rules.objects.update({state.config: b"sealed config", state.devices: b"sealed devices"})
    instance.rules.configs[state.config] = one.ws.config
    instance.rules.device_sets[state.devices] = one.ws.devices
    before = one.requests()
    assert one.do(one.group.enter(state)).config == one.ws.config
    assert one.requests() == before
    assert one.m.objects == {state.config: b"sealed config", state.devices: b"sealed devices"}
    assert {*one.group._consts} >= {state.config, state.devices}


def test_a_change_of_keys_is_fenced_by_who_passes_over_it(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1.12. Who begins at a later epoch, or comes by it in a leap, has none to fence; keys that are held are not
    looked for."""
    opened = []

    def followed(m: Any, state: State, *_: object) -> Task:
        yield from ()
        opened.append(state.v)
        return m.keys

    monkeypatch.setattr(group, "follow_keys", followed)
    one.do(one.group.enter(one.base))
    assert (opened, one.group.unfenced) == ([], [])
    after = replace(one.logs.x, epoch=2)
    for state, unfenced in ((replace(one.logs.x, v=5, epoch=2), []), (after, [(one.base, after)])):
        another = one.ws.group(b"q" * 16, 1)
        one.do(another.enter(one.base))
        one.do(another.enter(state))
        assert another.unfenced == unfenced
    newcomer = one.ws.group(b"q" * 16, 1)
    one.do(newcomer.enter(replace(one.base, epoch=2)))
    assert newcomer.unfenced == []
    assert opened == [5, 1, 0]


def test_a_copy_goes_to_those_that_there_is_a_way_to(one: One) -> None:
    del one.m.links[one.ids[0]]
    digest = one.do(one.group.put_const(one.base, b"data"))
    one.world.run()
    there = [const_path(a, digest.hex()) in one.world.stores[name] for name, a in zip("abc", one.ids, strict=True)]
    assert there == [False, True, True]


def test_a_root_that_was_emptied_or_rolled_back_holds_no_copy(one: One) -> None:
    for fault in ("replaced", "rolled_back"):
        memory = one.m.acceptors[one.ids[0]]
        setattr(memory, fault, "it shows another past")
        digest = one.do(one.group.put_const(one.base, fault.encode()))
        one.world.run()
        there = [const_path(a, digest.hex()) in one.world.stores[name] for name, a in zip("abc", one.ids, strict=True)]
        assert there == [False, True, True]
        setattr(memory, fault, "")


def test_a_state_far_ahead_has_no_older_policy() -> None:
    def devices(sequence: int, says: str = "") -> Any:
        return SimpleNamespace(policy=SimpleNamespace(sequence=sequence, says=says))

    known = devices(3)
    before: Any = SimpleNamespace(base=SimpleNamespace(v=5), devices=known)
    ahead: Any = SimpleNamespace(v=9)
    fault_after = partial(Instance.fault_after, before)
    assert fault_after(before.base, devices(1)) == ""
    assert fault_after(ahead, known) == ""
    assert fault_after(ahead, devices(4)) == ""
    assert "older" in fault_after(ahead, devices(2))
    assert "older" in fault_after(ahead, devices(3, "another"))


def test_tasks_that_look_at_logs_take_turns(one: One) -> None:
    def look() -> Task:
        yield Now()

    first, second = one.m.alone(look()), one.m.alone(look())
    assert isinstance(next(first), Now)
    assert isinstance(next(second), Sleep)
    assert isinstance(second.send(None), Sleep)
    with pytest.raises(StopIteration):
        first.send(0.0)
    assert isinstance(second.send(None), Now)
    second.close()
    assert not one.m.is_busy


def test_rounds_of_versions_of_long_ago_are_forgotten(one: One) -> None:
    for v in range(ROUNDS_KEPT + 2):
        one.m.use_round(v, 7)
    assert one.m.rounds_used == dict.fromkeys(range(2, ROUNDS_KEPT + 2), 7)


def test_the_way_to_a_backend_is_the_way_to_its_acceptor(one: One) -> None:
    """It may have got a vote since. A way that is known stays as it is."""
    (_, first), (entry, second), (_, third) = sorted(one.ws.config.acceptors, key=lambda pair: pair[0].name)
    del one.m.links[second.acceptor_id], one.m.links[third.acceptor_id]
    one.m.ways = {entry.backend_id: "by another name"} | {
        e.backend_id: "new" for e, a in one.ws.config.acceptors if a is first
    }
    one.m.find_ways(one.ws.config)
    assert one.m.links == {first.acceptor_id: "a", second.acceptor_id: "by another name"}


def test_who_proposes_asks_by_preparing_unless_that_is_in_vain(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner needs no round; one that was begun needs no second one; behind a new config a fence comes first."""
    state = one.push(one.base)
    asked: list[str] = []

    def looking(how: str) -> Any:
        def look(m: object, enter: object, known: State, *_: object, **__: object) -> Task:
            asked.append(how)
            return known
            yield

        return look

    monkeypatch.setattr(group.learner, "get_recent", looking("look"))
    monkeypatch.setattr(group.learner, "get_recent_preparing", looking("prepare"))
    other = one.ws.group(b"q" * 16, 2)
    for who, known in ((other, one.base), (one.group, state), (other, state)):
        one.do(who.get_recent_preparing(known))
    other.participant.use_round(state.v + 1, 1)
    one.do(other.get_recent_preparing(state))
    assert asked == ["prepare", "look", "prepare", "look"]
    asked.clear()
    third = one.ws.group(b"t" * 16, 2)
    for changed in (state.v, state.v - 1):
        monkeypatch.setattr(third, "_config_of", lambda _, v=changed: config_changed(v))
        one.do(third.get_recent_preparing(state))
    assert asked == ["look", "prepare"]


def settling(settled: list[State]) -> Any:
    def settle(state: State) -> Task:
        settled.append(state)
        return
        yield

    return settle


def config_changed(v: int) -> Task:
    return SimpleNamespace(changed=(v, b""))
    yield


def test_logs_are_not_bounded_behind_a_version_whose_index_rides(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleeper starts from a floor. Behind one that keeps an index, which may have ridden, that is settled first."""
    state, settled = one.push(one.base), list[State]()
    monkeypatch.setattr(one.group, "settle", settling(settled))
    before = one.requests()
    assert one.do(one.group.bound_logs(replace(state, index_rides=True), Progress(), 0.0)) is False
    assert (settled, one.requests()) == ([], before)
    one.do(one.group.bound_logs(state, Progress(), 0.0))
    assert settled == [state]


def test_what_a_hint_names_is_settled_before_it_is_written(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is where none is due."""
    states, settled = [one.base], list[State]()
    for _ in range(3):
        states.append(one.push(states[-1]))
    monkeypatch.setattr(one.group, "settle", settling(settled))
    for base, state in pairwise(states):
        one.do(one.group.write_hint(base, state))
    assert settled == states[1:3]
    one.do(one.group.write_hint(states[2], states[3], now=True))
    assert settled == states[1:]


@pytest.mark.parametrize("looks", range(4))
def test_a_read_that_finds_nothing_writes_nothing(one: One, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quorum of empty logs ends it, after so many looks. Where there is none, it asks for promises."""
    quiet, done = iter([False] * looks + [True]), list[str]()

    def noting(what: str) -> Any:
        def task(*_: object, **__: object) -> Task:
            done.append(what)
            return
            yield

        return task

    monkeypatch.setattr(group.learner, "look_around", noting("look"))
    monkeypatch.setattr(group.learner, "settle", noting("settle"))
    instance: Any = SimpleNamespace(decided=lambda: None, quiet=lambda: next(quiet), check_fork=noting("check"))
    assert one.do(group.learner._resolve(one.m, instance, 60.0)) is None
    assert [what for what in done if what != "check"] == (["look"] * looks if looks < 3 else ["look", "look", "settle"])


# ---- objects


def test_what_is_there_and_cannot_be_read_is_not_judged(one: One) -> None:
    one.world.stores["a"]["x/genesis"] = b"other"
    one.world.liars["a"] = lambda _, op, store: (
        Reply(error=UnreachableError("busy")) if op.kind == "get" else store.do(op)
    )
    with pytest.raises(BackendError, match="busy"):
        one.do(created("a", "x/genesis", b"mine", lambda data: data.startswith(b"o")))


def test_a_copy_that_is_slow_holds_up_no_other(one: One) -> None:
    one.world.stores["b"]["x"] = b"data"
    one.world.stuck = {"a"}
    copies = [Copy(name, "x", bytes) for name in "ab"]
    assert one.do(get_anywhere(copies, 100, "an object")) == b"data"
    assert one.world.now < OP_TIMEOUT_S / 2


# ---- behind floors, and behind a change that cannot be closed


@pytest.mark.parametrize(
    ("floor", "leads", "entries", "order"),
    [
        (True, False, 3, ["leap", "resolve"]),
        (True, True, 3, ["leap", "gallop", "resolve"]),
        (False, False, 3, ["gallop", "resolve"]),
        (False, False, 0, ["resolve"]),
    ],
)
def test_behind_a_floor_that_leads_nowhere_a_version_is_finished_by_its_logs(
    one: One, monkeypatch: pytest.MonkeyPatch, floor: bool, leads: bool, entries: int, order: list[str]
) -> None:
    """Before it is looked ahead, which reads the floors of other versions; and where nobody is at work it never is."""
    done, floors = list[str](), iter([floor])

    def noting(what: str, found: Any = None) -> Any:
        def task(*_: object, **__: object) -> Task:
            done.append(what)
            return found
            yield

        return task

    def enter(at: State) -> Task:
        values: dict[str, Any] = {"is_behind_floor": lambda: next(floors, False), "progress": lambda: entries}
        values |= {name: lambda *_: None for name in ("begin", "hear", "decided", "quiet")}
        return SimpleNamespace(v=at.v + 1, heard=set(), quorum=2, **values)
        yield

    ahead = replace(one.base, v=5)
    monkeypatch.setattr(leaps, "leap", noting("leap", ahead if leads else None))
    monkeypatch.setattr(group.learner, "_probe", noting("probe"))
    monkeypatch.setattr(group.learner, "_gallop", noting("gallop"))
    monkeypatch.setattr(group.learner, "_resolve", noting("resolve"))
    newest = one.do(group.learner.get_recent(one.m, enter, one.base, 60.0))
    assert newest == (ahead if leads else one.base)
    assert [what for what in done if what != "probe"] == order


@pytest.mark.parametrize("changed", [None, 6, 7])
@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_version_is_one_to_restart_from_only_where_its_own_change_has_no_fence(
    one: One, monkeypatch: pytest.MonkeyPatch, changed: int | None, is_fenced: bool
) -> None:
    """Of an earlier change, or one whose fence is known to stand, nothing is asked."""
    known, why = replace(one.base, v=7), {"a": "its log is full"}
    one.m.fenced = {known.hash} if is_fenced else set()

    def task(found: Any) -> Task:
        return found
        yield

    config = SimpleNamespace(changed=None if changed is None else (changed, b""))
    monkeypatch.setattr(new_era, "fetch_state", lambda *_: task(one.base))
    monkeypatch.setattr(new_era, "_read_through", lambda *_: task(None))
    monkeypatch.setattr(new_era, "unclosable", lambda *_: why)
    enter: Any = lambda _: task(SimpleNamespace(config=config))  # noqa: E731
    found = one.do(new_era.unfenced(one.m, enter, known))
    assert found == (why if changed == 7 and not is_fenced else {})
    assert one.m.recovering == 0
