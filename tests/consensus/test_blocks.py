"""Block form, step by step: what counts, who may write, what a restart sends first, what is found out about copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from paxos_world import Workspace as Agreed
from paxos_world import World, change, make_workspace

from metasync.config import Form
from metasync.consensus import Group, truncation
from metasync.consensus import chain as ancestry
from metasync.consensus.acceptors import block as blockform_module
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import DELTA_S
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Barred, check_config
from metasync.consensus.records import entry as entries
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import Claim, Kind, Round, seal_entry
from metasync.consensus.records.log_replay import NEVER
from metasync.consensus.records.state import ZERO_ID, Change, State, successor
from metasync.errors import ForkError, NoQuorumError, UnreachableError, UpgradeError
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Work

MIXED: dict[str, Form] = {"a": "log", "b": "block", "c": "block"}
ALL: dict[str, Form] = dict.fromkeys("abc", "block")


class Place:
    """A world with devices, each of which keeps its disk."""

    def __init__(self, forms: dict[str, Form], devices: int = 3, seed: int = 1) -> None:
        self.world = World(seed, list(forms))
        self.ws: Agreed = make_workspace(self.world, devices, forms=forms)
        self.disks: list[dict[str, bytes]] = [{} for _ in range(devices)]
        self.groups = [self.fresh(i) for i in range(devices)]

    def fresh(self, device: int, **more: Any) -> Group:
        """The device's next process."""
        self.lives = getattr(self, "lives", 0) + 1
        return self.ws.group(bytes([device + 1, self.lives]) * 8, device, **more)

    def do(self, device: int, task: Task) -> Any:
        return self.world.do(task, self.disks[device])

    def push(self, device: int, base: State, op: bytes) -> State:
        decided = self.do(device, self.groups[device].propose(base, lambda: change(op * 16)))
        assert decided.mine
        return decided.state  # type: ignore[no-any-return]

    def newest(self, device: int, known: State | None = None) -> State:
        state = self.do(device, self.groups[device].get_recent(known or self.ws.genesis))
        assert isinstance(state, State)
        return state

    def instance(self, device: int, base: State) -> Instance:
        instance = self.do(device, self.groups[device].enter(base))
        instance.begin()
        assert isinstance(instance, Instance)
        return instance

    def blocks_on(self, name: str) -> list[str]:
        return [path for path in self.world.stores[name] if "/bl/" in path]


def chain_order(p: Place) -> list[int]:
    """The devices' numbers in the order in which their blocks are read."""
    ids = [i.device_id for i in p.ws.identities]
    return [ids.index(c.device_id) for c in p.ws.devices.certificates]


def slowly(p: Place, device: int, task: Task, before: Callable[[Op], None]) -> Any:
    """Runs a task with one request at a time; `before(op)` may do whatever else happens just then."""
    value: Any = None
    while True:
        try:
            effect = task.send(value)
        except StopIteration as stop:
            return stop.value
        if isinstance(effect, Op):
            before(effect)
            value = p.world.stores[effect.backend].do(effect)
        elif isinstance(effect, Gather):
            value = {key: slowly(p, device, branch, before) for key, branch in effect.branches.items()}
        elif isinstance(effect, Random):
            value = p.world.rng.randbytes(effect.n)
        elif isinstance(effect, Persist):
            assert effect.value is not None
            p.disks[device][effect.key] = effect.value
            value = None
        elif isinstance(effect, Recall):
            value = p.disks[device].get(effect.key)
        elif isinstance(effect, Work):
            value = effect.function()
        else:
            assert isinstance(effect, Now | Sleep)
            value = 0.0


def test_two_round_trips_for_a_message_and_no_create(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Place(MIXED)
    monkeypatch.setattr(p.world, "_delay", lambda *_: 0.05)
    base = p.push(0, p.ws.genesis, b"1")
    before = {name: len(p.world.requests[name]) for name in MIXED}
    state = p.push(0, base, b"2")  # its own round: one message
    p.world.run()
    asked = {name: [op.kind for op in p.world.requests[name][n:]] for name, n in before.items()}
    assert state.v == 2
    assert sorted(asked["a"]) == ["create", "get"]
    for name in "bc":  # the block, and the birth; then two other devices, the block itself, and the birth
        assert asked[name][0] == "put"
        assert asked[name][1:] == ["get"] * 5


def test_the_journal_stands_before_anything_is_sent() -> None:
    p = Place(ALL, devices=1)
    journalled: list[bool] = []

    def hook(op: Op) -> None:
        if op.kind == "put":
            kept = [blockform_module.decode_journal(v).data for k, v in p.disks[0].items() if k.startswith("block.")]
            journalled.append(op.data in kept)

    p.world.fault_hook = hook  # type: ignore[assignment]
    p.push(0, p.ws.genesis, b"1")
    assert journalled
    assert all(journalled)


@pytest.mark.parametrize("one_read_is_enough", [False, True])
def test_closed_is_a_promise_only_when_all_was_read_after_it(
    monkeypatch: pytest.MonkeyPatch, one_read_is_enough: bool
) -> None:
    """A device is read, then it votes a second time, and only then another one closes the acceptor."""
    if one_read_is_enough:
        judge = Blocks.judge
        monkeypatch.setattr(Blocks, "judge", lambda self, before: judge(self, self.known()))
        monkeypatch.setattr(Blocks, "undetermined", lambda self: False)
    p = Place({"b": "block"})
    voter, closer, learner = chain_order(p)
    acceptor = p.ws.acceptor_of("b")
    base = p.ws.genesis
    at = {i: p.instance(i, base) for i in range(3)}
    first, rnd = Round(1, b"v" * 16), Round(2, b"w" * 16)
    value = successor(base, change(b"x" * 16), skip=base.hash, writer=b"w" * 16)
    assert p.do(closer, at[closer].acceptors[acceptor].append(Kind.ACCEPT, first, value, first)).kind == "done"
    steps = iter(range(99))

    def between(op: Op) -> None:
        if "/bl/" in op.path and next(steps) == 1:
            for device, kind in ((voter, Kind.ACCEPT), (closer, Kind.DECIDED)):
                sent = at[device].acceptors[acceptor].append(kind, rnd, value, rnd)
                assert p.do(device, sent).kind == "done"

    slowly(p, learner, at[learner].acceptors[acceptor].look(), between)
    seen = at[learner].acceptors[acceptor].log
    assert seen.closed == value
    assert seen.shut
    assert seen.accepted == ((first, value) if one_read_is_enough else (rnd, value))


def test_decided_closes_nothing_where_its_value_was_not_accepted() -> None:
    """One device alone puts DECIDED into a store in block form: it is no vote, and ends nothing."""
    p = Place(ALL)
    lie = successor(p.ws.genesis, change(b"l" * 16), skip=p.ws.genesis.hash, writer=b"l" * 16)
    at = p.instance(1, p.ws.genesis)
    for name in ALL:
        fence = at.acceptors[p.ws.acceptor_of(name)].append(Kind.DECIDED, Round(0, ZERO_ID), lie, NEVER)
        assert p.do(1, fence).kind == "failed"


# Copies of an identity.


def test_two_copies_of_one_device_are_found_out() -> None:
    p = Place(ALL)
    copy, disk = p.ws.group(b"\x77" * 16, 0), dict(p.disks[0])
    p.push(0, p.ws.genesis, b"1")
    with pytest.raises(ForkError, match="identity") as e:
        p.world.do(copy.propose(p.ws.genesis, lambda: change(b"2" * 16)), disk)
    assert "clone" in e.value.next_step


def test_a_copy_that_overwrote_a_block_is_found_out() -> None:
    """Both wrote the same name at once; the one whose block was replaced notices when it reads it back."""
    p = Place(ALL, devices=2)
    acceptor = p.ws.acceptor_of("a")
    at, m = p.instance(0, p.ws.genesis), p.groups[0].participant
    other = p.ws.group(b"\x77" * 16, 0)
    its = p.world.do(other.enter(p.ws.genesis), {})
    its.begin()
    replaced: list[bool] = []

    def between(op: Op) -> None:
        if op.kind == "get" and "/bl/" in op.path and p.blocks_on("a") and not replaced:
            path, replaced[:] = p.blocks_on("a")[0], [True]
            kept = p.world.stores["a"].pop(path)
            p.world.do(its.acceptors[acceptor].append(Kind.PREPARE, Round(5, b"o" * 16), None, NEVER), {})
            assert p.world.stores["a"][path] != kept

    with pytest.raises(ForkError, match="identity"):
        slowly(p, 0, at.acceptors[acceptor].append(Kind.PREPARE, Round(1, m.incarnation), None, NEVER), between)


def test_a_restart_that_finds_other_bytes_in_its_place_stops_and_leaves_them() -> None:
    p = Place({"b": "block"}, devices=1)
    acceptor = p.ws.acceptor_of("b")
    at, m = p.instance(0, p.ws.genesis), p.groups[0].participant
    p.world.fault_hook = lambda op: blockform_module.Reply(error=UnreachableError("lost")) if op.kind == "put" else None
    assert p.do(0, at.acceptors[acceptor].append(Kind.PREPARE, Round(1, m.incarnation), None, NEVER)).kind == "failed"
    p.world.fault_hook = lambda op: None
    copy = p.ws.group(b"\x77" * 16, 0)
    p.world.do(copy.propose(p.ws.genesis, lambda: change(b"2" * 16)), {})
    stood = dict(p.world.stores["b"])
    with pytest.raises(ForkError, match="identity"):
        p.do(0, p.fresh(0).propose(p.ws.genesis, lambda: change(b"3" * 16)))
    assert dict(p.world.stores["b"]) == stood


def test_an_older_local_state_is_found_out() -> None:
    p = Place(ALL)
    first = p.push(0, p.ws.genesis, b"1")
    older = dict(p.disks[0])
    p.push(0, first, b"2")
    back = p.fresh(0)
    with pytest.raises(ForkError, match="older copy"):
        p.world.do(back.propose(first, lambda: change(b"3" * 16)), older)


@pytest.mark.parametrize("same_process", [False, True])
def test_a_device_that_goes_back_a_version_and_returns_raises_no_alarm(same_process: bool) -> None:
    """It forgot which version was the newest: its journal then tells of the older one, and its blocks are there."""
    p = Place(ALL)
    first = p.push(1, p.ws.genesis, b"1")
    acceptor = p.ws.acceptor_of("a")
    m = p.groups[0].participant

    def prepare(base: State, n: int) -> str:
        rnd = Round(n, m.incarnation)
        at = p.instance(0, base)
        return str(p.do(0, at.acceptors[acceptor].append(Kind.PREPARE, rnd, None, rnd)).kind)

    assert prepare(first, 3) == "done"
    if not same_process:
        p.groups[0] = p.fresh(0)
        m = p.groups[0].participant
    assert prepare(p.ws.genesis, 9) == "done"
    if not same_process:
        p.groups[0] = p.fresh(0)
        m = p.groups[0].participant
    assert prepare(first, 5) == "done"
    at = p.instance(2, first)
    p.do(2, at.acceptors[acceptor].look())
    assert at.acceptors[acceptor].log.next_idx == 2
    assert at.acceptors[acceptor].log.usable


# Who may write.


def test_a_newcomer_writes_no_blocks_and_is_told_what_to_do() -> None:
    p = Place(MIXED)
    stranger = _newcomer(p)
    with pytest.raises(NoQuorumError, match="belong to the workspace") as e:
        p.world.do(stranger.propose(p.ws.genesis, lambda: change(b"1" * 16)), {})
    assert "metasync push" in e.value.next_step
    assert p.world.now < 5, "that it cannot be needs no waiting"
    assert not p.blocks_on("b")
    assert p.world.do(stranger.get_recent(p.ws.genesis), {}) == p.ws.genesis


def test_a_newcomer_agrees_where_logs_alone_make_a_quorum() -> None:
    p = Place({"a": "log", "b": "log", "c": "block"})
    assert p.world.do(_newcomer(p).propose(p.ws.genesis, lambda: change(b"1" * 16)), {}).mine
    assert p.newest(0).v == 1


def test_a_newcomer_that_was_agreed_is_not_told_that_it_does_not_belong() -> None:
    p = Place({"a": "log", "b": "log", "c": "block"})
    newcomer = _newcomer(p)
    state = p.world.do(newcomer.propose(p.ws.genesis, lambda: change(b"1" * 16)), {}).state
    assert newcomer._instance is not None
    assert newcomer._instance.acceptors[p.ws.acceptor_of("c")].barred
    p.world.down = {"a", "b"}
    with pytest.raises(NoQuorumError) as e:
        p.world.do(newcomer.get_recent(state), {})
    assert "belong" not in e.value.message + e.value.next_step


def _newcomer(p: Place) -> Group:
    from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device

    device = new_device("new", p.world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    certificate = device.certified(p.ws.admin, p.ws.keys.ns_id).encode()
    p.ws.identities.append(device)
    return p.ws.group(b"\x55" * 16, len(p.ws.identities) - 1, certificate=certificate)


def test_who_is_barred_counts_block_acceptors_as_down() -> None:
    p = Place(MIXED)
    asked: list[int] = []

    def guard() -> Barred | None:
        asked.append(1)
        return Barred("this folder was copied", "clone it")

    with pytest.raises(NoQuorumError, match="this folder was copied") as e:
        p.do(0, p.fresh(0, guard=guard).propose(p.ws.genesis, lambda: change(b"1" * 16)))
    assert e.value.next_step == "clone it"
    assert asked
    assert not p.blocks_on("b")


def test_blocks_and_liars_do_not_go_together() -> None:
    """What a liar shows once it need not show again: no vote of it would stay counted."""
    p = Place(dict.fromkeys("abcd", "block"))
    with pytest.raises(UpgradeError):
        check_config(replace(p.ws.config, mode="bft", f=1))
    assert check_config(p.ws.config) is p.ws.config


# What is wrong on a backend.


def test_an_altered_block_poisons_its_acceptor() -> None:
    p = Place(MIXED)
    decided = p.push(0, p.ws.genesis, b"1")
    p.world.run()
    path = p.blocks_on("b")[-1]
    data = p.world.stores["b"][path]
    p.world.stores["b"][path] = data[:-1] + bytes([data[-1] ^ 1])
    assert p.newest(1) == decided
    at = p.instance(2, p.ws.genesis)
    p.do(2, at.acceptors[p.ws.acceptor_of("b")].look())
    assert "device 'device 0'" in at.acceptors[p.ws.acceptor_of("b")].log.poison
    assert p.push(1, decided, b"2").v == 2, "it is out for that version alone"


def test_a_block_of_another_place_poisons() -> None:
    p = Place(ALL)
    p.push(0, p.ws.genesis, b"1")
    p.world.run()
    stores = p.world.stores
    one, other = p.blocks_on("a")[0], p.blocks_on("b")[0]
    stores["a"][one], stores["b"][other] = stores["b"][other], stores["a"][one]
    at = p.instance(1, p.ws.genesis)
    for name in "ab":
        p.do(1, at.acceptors[p.ws.acceptor_of(name)].look())
    assert {a.name for a in at.acceptors.values() if a.log.poison} == {"a", "b"}


def test_a_store_that_does_not_show_what_it_confirmed_gives_no_promise() -> None:
    p = Place(ALL)
    at, m = p.instance(0, p.ws.genesis), p.groups[0].participant
    p.world.fault_hook = lambda op: blockform_module.Reply() if op.kind == "put" else None
    outcome = p.do(0, at.acceptors[p.ws.acceptor_of("a")].append(Kind.PREPARE, Round(1, m.incarnation), None, NEVER))
    assert outcome.kind == "failed"
    assert "does not show" in outcome.reason
    assert at.promises(Round(1, m.incarnation)) == 0


def test_a_store_rolled_back_is_left_out() -> None:
    p = Place(ALL)
    first = p.push(0, p.ws.genesis, b"1")
    p.world.run()
    old = dict(p.world.stores["a"])
    second = p.push(0, first, b"2")
    p.world.run()
    p.world.stores["a"].clear()
    p.world.stores["a"].update(old)
    back = p.fresh(0, memory=p.groups[0].memory)
    assert p.do(0, back.get_recent(second)) == second
    assert back.standings["a"].kind == "rolled back"
    assert back.standings["b"].kind == "ok"


@pytest.mark.parametrize("each", [False, True], ids=["one process", "a process each"])
@pytest.mark.parametrize("pushes", [1, 2, 3])
def test_what_was_written_into_another_root_is_not_held_against_the_store(each: bool, pushes: int) -> None:
    """A share that is not mounted is an empty folder, which takes blocks. Mounted again it lacks them, and votes."""
    p = Place(ALL)
    state = p.push(0, p.ws.genesis, b"1")
    p.world.run()
    saved = dict(p.world.stores["a"])
    p.world.stores["a"].clear()
    for number in range(pushes):
        if each:
            p.groups[0] = p.fresh(0, memory=p.groups[0].memory)
        state = p.push(0, state, bytes([50 + number]))
        p.world.run()
        assert p.groups[0].standings["a"].kind == "replaced"
    p.world.stores["a"].clear()
    p.world.stores["a"].update(saved)
    p.groups[0] = p.fresh(0, memory=p.groups[0].memory)
    p.do(0, p.instance(0, state).acceptors[p.ws.acceptor_of("a")].look())
    assert p.groups[0].standings["a"].kind == "ok"
    away = UnreachableError("away")
    p.world.fault_hook = lambda op: Reply(error=away) if op.backend == "b" else None
    state = p.push(0, state, b"9")
    p.world.run()
    assert p.groups[0].standings["a"].kind == "ok"
    assert p.newest(1) == state


# The way back and the way ahead.


@pytest.mark.few(1)
@pytest.mark.parametrize("forms", [MIXED, ALL], ids=["mixed", "blocks"])
def test_a_device_that_was_away_comes_back(forms: dict[str, Form]) -> None:
    p = Place(forms)
    states = [p.ws.genesis]
    for number in range(40):
        states.append(p.push(number % 2, p.newest(number % 2, states[-1]), bytes([number + 1])))
    for number in (0, 1):  # as every push of theirs did
        state = states[39 + number]
        p.do(number, p.groups[number].write_head(state, head=bytes(32), prev=bytes(32), backends=[*p.world.stores]))
    p.world.run()
    before = p.world.now
    assert p.newest(2) == states[-1]
    assert p.world.now - before < 4, "not version by version"
    for v in (0, 1, 17, 39, 40):
        assert p.do(2, p.groups[2].state_at(states[-1], v)) == states[v]


def test_a_device_that_was_away_finds_what_devices_wrote_that_it_does_not_know() -> None:
    """That the devices it knows wrote nothing shows nothing: a version counts as absent by a complete read alone."""
    p = Place(ALL)
    base = p.push(0, p.ws.genesis, b"1")
    newcomer = _newcomer(p)
    devices = p.ws.devices.with_device(p.ws.identities[-1].certified(p.ws.admin, p.ws.keys.ns_id))
    digest = p.do(0, p.groups[0].put_const(base, devices.encode()))
    joined = p.do(0, p.groups[0].propose(base, lambda: Change(b"joins" + bytes(11), devices=digest))).state
    disk: dict[str, bytes] = {}
    state = p.world.do(newcomer.get_recent(joined), disk)
    for number in range(20):
        state = p.world.do(newcomer.propose(state, lambda n=number: change(bytes([n + 50]) * 16)), disk).state
    p.world.run()
    assert state.v == 22
    assert p.newest(2) == state
    assert p.newest(1, base) == state


def test_claims_about_blocks_are_not_followed_up() -> None:
    """They lie at places of their writers, one of which no other entry could hold."""
    p = Place(MIXED)
    writer, m = p.instance(0, p.ws.genesis).acceptors[p.ws.acceptor_of("a")], p.groups[0].participant
    b, another = p.ws.acceptor_of("b"), p.ws.identities[2]
    assert isinstance(writer, LogAcceptor)
    entry, _ = writer.sealed(writer.log, Kind.PREPARE, Round(1, m.incarnation), None, bytes(48))
    there = replace(entry, acceptor_id=b, device_id=another.device_id)
    claim = Claim(b, 1, 0, seal_entry(p.ws.keys, there, another.sign_private, bytes(32)))
    reader = p.instance(1, p.ws.genesis).acceptors
    reader[p.ws.acceptor_of("a")].note_claims(replace(entry, claim=claim))
    assert not any(a.memory.unaudited or a.memory.last for a in reader.values())


def test_votes_that_were_read_long_ago_are_read_again() -> None:
    p = Place({"b": "block"})
    decided = p.push(0, p.ws.genesis, b"1")
    at, m, acceptor = p.instance(1, p.ws.genesis), p.groups[1].participant, p.ws.acceptor_of("b")
    p.do(1, at.acceptors[acceptor].look())
    assert at.decided() == decided
    m.now += 2 * DELTA_S
    assert at.decided() is None
    p.world.now = m.now
    p.do(1, at.acceptors[acceptor].look())
    assert at.decided() == decided


def test_blocks_below_a_floor_go_and_nobody_takes_the_gap_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 8)
    monkeypatch.setattr(ancestry, "VERSIONS_PER_FOLDER", 8)
    monkeypatch.setattr(truncation, "STEP", 8)
    monkeypatch.setattr(truncation, "BEHIND_LEAST", 8)
    p = Place(ALL)
    sleeper = p.push(1, p.ws.genesis, b"1")
    state, remembered = sleeper, p.groups[1].memory
    for number in range(29):
        before, state = state, p.push(0, state, bytes([number + 2]))
        p.do(0, p.groups[0].write_hint(before, state))
    p.world.run()
    progress = truncation.Progress()
    for now_s in (0.0, 31 * 86_400.0):
        while p.do(0, p.groups[0].bound_logs(state, progress, now_s, keep=8)):
            pass
    for name in ALL:
        assert {path.split("/")[2] for path in p.blocks_on(name)} == {"2", "3"}
    for memory in p.groups[1].participant.acceptors.values():  # it slept through the grace
        memory.no_floor = (-1, 0.0)
    late = p.do(1, p.groups[1].propose(sleeper, lambda: change(b"late" * 4)))
    assert not late.mine
    assert p.newest(1, sleeper) == state
    assert p.newest(2) == state
    assert p.push(1, state, b"n").v == state.v + 1
    p.groups[1] = p.fresh(1, memory=remembered)  # what it asks for was deleted, and nothing is to be shown any more
    assert p.newest(1, state).v == state.v + 1
