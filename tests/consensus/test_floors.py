"""Bounded logs: what is deleted, and that neither a sleeping proposer nor a sleeping learner takes the gap for news."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from paxos_world import Workspace, World, change, make_workspace

from metasync.config import Form
from metasync.consensus import Group, State, chain, truncation
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.records import entry as entries
from metasync.consensus.records.birth import birth_path
from metasync.consensus.records.entry import Entry, Kind, Round, floor_path, seal_floor
from metasync.consensus.records.state import ZERO_HASH, ZERO_ID, Change, successor
from metasync.consensus.truncation import GRACE_S, Progress
from metasync.errors import BackendError, MetaSyncError, NotFoundError, UnreachableError
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.keys.keyring import new_keys
from metasync.runtime.effects import Op, Reply, Sleep, Task

NAMES = ["a", "b", "c"]
BLOCK = 8
DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors at multiples of 8 in place of 1024."""
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", BLOCK)
    monkeypatch.setattr(chain, "VERSIONS_PER_FOLDER", BLOCK)
    monkeypatch.setattr(truncation, "STEP", BLOCK)
    monkeypatch.setattr(truncation, "BEHIND_LEAST", BLOCK)


@pytest.fixture
def world() -> World:
    return World(7, NAMES)


def group_of(ws: Workspace, number: int, device: int = 0, **more: Any) -> Group:
    return ws.group(bytes([number]) * 16, device, **more)


def push(world: World, group: Group, base: State, times: int) -> State:
    for _ in range(times):
        decided = world.do(group.propose(base, lambda base=base: change((base.v + 1).to_bytes(16, "big"))))
        assert decided.mine
        world.do(group.write_hint(base, decided.state))
        base = decided.state
    world.run()
    return base


def collect(world: World, group: Group, state: State, *, keep: int = BLOCK, days: float = 31.0) -> Progress:
    """Runs all steps, with the grace in between."""
    progress = Progress()
    for now_s in (0.0, days * DAY_S):
        while world.do(group.bound_logs(state, progress, now_s, keep=keep)):
            pass
    return progress


def folders(world: World, ws: Workspace, name: str) -> set[str]:
    """The blocks of versions whose logs an acceptor still holds."""
    top = ws.acceptor_of(name).hex()
    return {p.split("/")[2] for p in world.stores[name] if p.startswith(f"{top}/px/")}


def test_logs_below_the_floor_go_after_the_grace(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    state = push(world, group, ws.genesis, 30)
    progress = Progress()
    while world.do(group.bound_logs(state, progress, 0.0, keep=BLOCK)):
        pass
    assert progress.made == 16, "30 - 8 = 22, rounded down"
    for name in NAMES:
        top = ws.acceptor_of(name)
        assert {floor_path(top, f) in world.stores[name] for f in (8, 16)} == {True}
        assert floor_path(top, 24) not in world.stores[name]
        assert folders(world, ws, name) == {"0", "1", "2", "3"}
    while world.do(group.bound_logs(state, progress, GRACE_S - 1, keep=BLOCK)):
        pass
    assert folders(world, ws, "a") == {"0", "1", "2", "3"}, "a second too early"
    while world.do(group.bound_logs(state, progress, GRACE_S + 1, keep=BLOCK)):
        pass
    assert {name: folders(world, ws, name) for name in NAMES} == {name: {"2", "3"} for name in NAMES}
    assert world.do(group_of(ws, 2, 1).get_recent(state)) == state
    assert world.do(group.state_at(state, 3)).v == 3
    assert push(world, group, state, 3).v == 33


@pytest.mark.few(1)
@pytest.mark.parametrize("block_form", [False, True], ids=["log", "block"])
def test_the_first_two_versions_of_a_block_go_first(world: World, block_form: bool) -> None:
    """A deleter is killed after any number of deletions: whoever slept gets past, though one device alone pushed."""
    forms: dict[str, Form] = dict.fromkeys(NAMES, "block") if block_form else {}
    ws = make_workspace(world, forms=forms)
    group = group_of(ws, 1)
    known = push(world, group, ws.genesis, 3)
    state = push(world, group, known, 15)
    collect(world, group, state, days=0.0)
    first = {
        path: v
        for v in (1, 2)
        for name in NAMES
        for path in world.stores[name]
        if path in beginnings(ws, world.do(group.state_at(state, v - 1)), name)
    }
    progress, left, seen = Progress(), [0], list[str]()
    stored = {path for store in world.stores.values() for path in store}

    def killed(op: Op) -> Reply | None:
        if op.kind != "delete":
            return None
        left[0] -= 1
        if left[0] < 0:
            return Reply(error=UnreachableError("killed"))
        seen.append(op.path)
        return None

    world.fault_hook = killed
    for now_s in (0.0, 31 * DAY_S):
        while left[0] >= 0 and world.do(group.bound_logs(state, progress, now_s, keep=BLOCK)):
            pass
    for number in range(8):
        left[0] = number + 1
        world.do(group.bound_logs(state, progress, 31 * DAY_S, keep=BLOCK))
        assert world.do(group_of(ws, 10 + number, 1).get_recent(known)) == state, f"after {seen}"
    gone = [path for path in dict.fromkeys(seen) if path in stored]
    assert [first.get(path) for path in gone[:2]] == [1, 2]
    assert len(gone) > 4
    left[0] = len(stored)
    while world.do(group.bound_logs(state, progress, 31 * DAY_S, keep=BLOCK)):
        pass
    folder = "/bl/0/" if block_form else "/px/0/"
    assert [path for path in stored if folder in path]
    assert not [path for store in world.stores.values() for path in store if folder in path]


def beginnings(ws: Workspace, base: State, name: str) -> set[str]:
    """Where the log of the version after `base` begins on a backend, or where devices' blocks do."""
    a, at = ws.acceptor_of(name), (base.epoch, base.era)
    devices = [i.device_id for i in ws.identities]
    logs = {entries.entry_path(ws.keys, *at, a, base.v + 1, 0)}
    return logs | {entries.block_path(ws.keys, *at, a, base.v + 1, d, 0) for d in devices}


class Deleting:
    """Floors have stood for 31 days, and steps of deletion are tried, which come to an error in some places."""

    def __init__(self, world: World, ws: Workspace) -> None:
        self.world, self.group = world, group_of(ws, 1)
        self.state = push(world, self.group, ws.genesis, 18)
        self.progress = Progress()
        while world.do(self.group.bound_logs(self.state, self.progress, 0.0, keep=BLOCK)):
            pass
        bases = [world.do(self.group.state_at(self.state, v - 1)) for v in (1, 2)]
        self.first = {path for base in bases for name in NAMES for path in beginnings(ws, base, name)}

    def tried(self, error: BackendError, when: Callable[[Op], bool]) -> None:
        self.world.fault_hook = lambda op: Reply(error=error) if when(op) else None
        for _ in range(4):
            self.world.do(self.group.bound_logs(self.state, self.progress, 31 * DAY_S, keep=BLOCK))
        self.world.fault_hook = lambda _: None


@pytest.mark.parametrize("which", [0, 1])
def test_no_log_of_a_block_goes_before_its_first_two(world: World, ws: Workspace, which: int) -> None:
    """One of the two cannot be deleted now. Of one that is gone already the same is said as ever."""
    deleting = Deleting(world, ws)
    some = {sorted(deleting.first & set(store))[which] for store in world.stores.values()}
    others = {p for store in world.stores.values() for p in store if "/px/0/" in p} - deleting.first

    def there() -> set[str]:
        return {path for store in world.stores.values() for path in store}

    deleting.tried(UnreachableError("busy"), lambda op: op.kind == "delete" and op.path in some)
    assert deleting.progress.deleted == {}
    assert others | some <= there()
    deleting.tried(NotFoundError("gone"), lambda op: op.kind == "delete" and op.path in some)
    assert len(deleting.progress.deleted) == len(NAMES)
    assert others & there() == set()


def test_what_cannot_be_listed_is_not_taken_for_deleted(world: World, ws: Workspace) -> None:
    deleting = Deleting(world, ws)
    deleting.tried(UnreachableError("busy"), lambda op: op.kind == "list")
    assert deleting.progress.deleted == {}
    assert len(deleting.progress.read_s) == len(NAMES), "no wait begins anew"


def test_nothing_is_collected_before_there_is_much(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    state = push(world, group, ws.genesis, 20)
    assert not world.do(group.bound_logs(state, Progress(), 1e9))


@pytest.mark.few(2)
@pytest.mark.parametrize("behind", [0, 1, 3, 7, 8, 15, 20])
def test_a_sleeper_gets_past_the_floor(world: World, ws: Workspace, behind: int) -> None:
    group = group_of(ws, 1)
    sleeper = group_of(ws, 2, 1)
    known = push(world, group, ws.genesis, behind) if behind else ws.genesis
    assert world.do(sleeper.get_recent(ws.genesis)) == known
    memory = sleeper.memory
    state = push(world, group, known, 60 - behind)
    collect(world, group, state)
    assert world.do(group_of(ws, 3, 1, memory=memory).get_recent(known)) == state
    world.now += 40 * DAY_S
    assert world.do(sleeper.get_recent(known)) == state, "the same process, after 40 days"
    assert not sleeper.evidence


def test_what_a_sleeper_left_in_a_deleted_log_is_no_rollback(world: World, ws: Workspace) -> None:
    """The create of a machine that slept takes the free index 0, and is not counted. Who remembers what lay there
    before must not hold the backends to it."""
    sleeper, group = group_of(ws, 2, 1), group_of(ws, 1)
    known = push(world, sleeper, ws.genesis, 3)
    state = push(world, group, known, 1)
    other = group_of(ws, 4, 2)
    assert world.do(other.get_recent(ws.genesis)) == state
    state = push(world, group, state, 60)
    collect(world, group, state)
    world.now += 40 * DAY_S
    assert not world.do(sleeper.propose(known, lambda: change(b"x" * 16))).mine
    world.run()
    assert any(f"{ws.acceptor_of('a').hex()}/px/0/" in p for p in world.stores["a"]), "its entry lies there"
    again = group_of(ws, 5, 2, memory=other.memory)
    assert world.do(again.get_recent(ws.genesis)) == state
    assert not again.evidence


def test_a_sleeping_owner_does_not_commit_in_the_past(world: World, ws: Workspace) -> None:
    sleeper, group = group_of(ws, 2, 1), group_of(ws, 1)
    known = push(world, sleeper, ws.genesis, 3)
    assert sleeper.owns(known)
    state = push(world, group, known, 60)
    collect(world, group, state)
    world.now += 40 * DAY_S
    decided = world.do(sleeper.propose(known, lambda: change(b"x" * 16)))
    assert (decided.mine, decided.state) == (False, world.do(group.state_at(state, 4)))
    assert world.do(sleeper.get_recent(decided.state)) == state


def test_a_proposer_that_sleeps_before_its_accept(world: World, ws: Workspace) -> None:
    """PREPARE was promised, then the machine slept for 40 days, while others went on and the logs were deleted."""
    group = group_of(ws, 1)
    known = push(world, group, ws.genesis, 3)
    sleeper = group_of(ws, 2, 1)

    def slow() -> Task:
        yield Sleep(40 * DAY_S)
        return change(b"s" * 16)

    process = world.start("sleeper", sleeper.propose(known, slow, op_id=b"s" * 16))
    world.run(limit_s=world.now + 5)
    assert not process.done
    state = known
    for _ in range(60):
        started = world.start("other", group.propose(state, lambda v=state.v: change(bytes([v + 1]) * 16)))
        world.run(lambda started=started: started.done, limit_s=world.now + 1000)
        state = started.result.state
        hint = world.start("hint", group.write_hint(started.result.state, state, now=False))
        world.run(lambda hint=hint: hint.done, limit_s=world.now + 1000)
    progress = Progress()
    for now_s in (0.0, 31 * DAY_S):
        more = True
        while more:
            step = world.start("collector", group.bound_logs(state, progress, now_s, keep=BLOCK))
            world.run(lambda step=step: step.done, limit_s=world.now + 1000)
            more = step.result
    assert folders(world, ws, "a") == {str(n) for n in range(progress.made // BLOCK, state.v // BLOCK + 1)}
    world.run(lambda: process.done, limit_s=50 * DAY_S)
    assert process.error is None, process.error
    assert not process.result.mine
    assert world.do(group_of(ws, 5, 2).get_recent(state)) == state


def test_a_floor_that_no_device_made_stops_nobody(world: World, ws: Workspace) -> None:
    """Sealed with the log key, as a revoked device could: it is told, and counts for nothing."""
    state = push(world, group_of(ws, 1), ws.genesis, 3)
    stranger = new_device("stranger", world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    acceptor = ws.acceptor_of("b")
    base = replace(state, v=BLOCK, prev=b"\7" * 32)
    value = successor(base, change(b"f" * 16), skip=base.hash, writer=b"w" * 16)
    entry = Entry(
        acceptor, value.v, 0, ZERO_HASH, base, Kind.DECIDED, Round(0, ZERO_ID), value, b"e" * 16, stranger.device_id
    )
    forged = seal_floor(ws.keys, entry, stranger.sign_private, b"r" * 32)
    for made_up in (forged, b"\0" * 512, b""):
        world.stores["b"][floor_path(acceptor, BLOCK)] = made_up
        for away in ("a", "c"):  # it is asked in any case
            world.stuck = {away}
            group = group_of(ws, 2, 1)
            assert world.do(group.newest_seen(state)) == state
            assert group.standings["b"].kind == "poisoned"
        world.stuck = set()
        state = push(world, group_of(ws, 3, 1), state, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["log", "block"])
def test_a_floor_by_a_device_that_joined_late(world: World, form: Form) -> None:
    """It is no device of the versions below the floor; its word is on the newest, which admits it. In block form the
    way back leads over its blocks, whose names hold the writer, of whom a sleeper has not heard yet."""
    ws = make_workspace(world, forms=dict.fromkeys(NAMES, form))
    group, disk = group_of(ws, 1), dict[str, bytes]()
    state = pushed(world, group, ws.genesis, 40, disk)
    newcomer = new_device("late", world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    certificate = newcomer.certified(ws.admin, ws.keys.ns_id)
    more = ws.devices.with_device(certificate)
    digest = world.do(group.put_const(state, more.encode()))
    state = run(world, group.propose(state, lambda: Change(b"j" * 16, devices=digest)), disk).state
    joined = Group(
        ws.keys, newcomer, ws.config, ws.genesis.config, ws.devices, ws.genesis.devices,
        incarnation=b"late" * 4, links=ws.links, certificate=certificate.encode(),
    )  # fmt: skip
    state = pushed(world, joined, state, 9, {})
    progress = collect(world, joined, state)
    assert progress.made == 40
    if form == "log":
        assert folders(world, ws, "a") == {"5", "6"}
    sleeper = group_of(ws, 5, 1)
    assert world.do(sleeper.get_recent(ws.genesis)) == state
    assert all(s.kind != "poisoned" for s in sleeper.standings.values())


def run(world: World, task: Task, disk: dict[str, bytes]) -> Any:
    process = world.start("one", task, disk)
    world.run(lambda: process.done)
    if process.error is not None:
        raise process.error
    return process.result


def pushed(world: World, group: Group, base: State, times: int, disk: dict[str, bytes]) -> State:
    """As `push`, by a device with a disk, which block form asks for."""
    for _ in range(times):
        op = (base.v + 1).to_bytes(16, "big")
        decided = run(world, group.propose(base, lambda op=op: change(op)), disk)
        assert decided.mine
        world.do(group.write_hint(base, decided.state))
        base = decided.state
    world.run()
    return base


def test_states_that_are_proven_include_the_newest_which_no_log_shows_yet(world: World, ws: Workspace) -> None:
    """It is the base of nothing: whoever asks brings it."""
    state = push(world, group_of(ws, 1), ws.genesis, 5)
    reader = group_of(ws, 2, 1)
    instance = world.do(reader.enter(state))
    reader.participant.states.clear()
    states = world.do(truncation.states_between(reader.participant, instance, state, 3, 5))
    assert [s.v for s in states] == [3, 4, 5] and states[-1] == state
    assert all(after.prev == before.hash for before, after in pairwise(states))


def test_no_floor_is_skipped_on_any_acceptor(world: World, ws: Workspace) -> None:
    """Who slept asks for the one floor above its version alone: an acceptor that lacks it must not have a later one."""
    group = group_of(ws, 1)
    state = push(world, group, ws.genesis, 30)
    progress = Progress()
    top = ws.acceptor_of("c")

    def made() -> list[int]:
        return [f for f in (8, 16, 24) if floor_path(top, f) in world.stores["c"]]

    world.down = {"c"}
    while progress.made < 8:
        world.do(group.bound_logs(state, progress, 0.0, keep=BLOCK))
    world.down = set()
    seen = [made()]
    while world.do(group.bound_logs(state, progress, 0.0, keep=BLOCK)):
        seen.append(made())
    assert progress.made == 16
    assert seen[0] == []
    assert seen[-1] == [8, 16]
    assert [16] not in seen
    for now_s in (31 * DAY_S, 62 * DAY_S):
        while world.do(group.bound_logs(state, progress, now_s, keep=BLOCK)):
            pass
    assert folders(world, ws, "c") == {"2", "3"}
    world.down = {"a"}
    assert world.do(group_of(ws, 2, 1).get_recent(ws.genesis)) == state


def test_first_reads_do_not_grow_with_the_versions(world: World, ws: Workspace) -> None:
    """What a new device reads to know the newest version, after 26 versions and after 202."""
    from metasync.consensus.founding import bootstrap

    group, state, counts = group_of(ws, 1), ws.genesis, []
    for versions in (26, 202):  # as far from the last hint
        state = push(world, group, state, versions - state.v)
        for requests in world.requests.values():
            requests.clear()
        start = world.do(bootstrap(ws.keys, NAMES))
        newcomer = Group(
            ws.keys, ws.identities[1], start.config, start.state.config, start.devices, start.state.devices,
            incarnation=bytes([versions]) * 16, links=start.links,
        )  # fmt: skip
        assert world.do(newcomer.get_recent(start.state)) == state
        counts.append(sum(map(len, world.requests.values())))
    assert counts[1] <= counts[0] * 1.2, counts


# Rules taken away.


def _blind(self: LogAcceptor, v: int) -> Task:
    return True
    yield


def test_mutant_a_learner_that_does_not_look_for_floors(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(ws, 1)
    known = push(world, group, ws.genesis, 3)
    state = push(world, group, known, 60)
    collect(world, group, state)
    monkeypatch.setattr(LogAcceptor, "has_no_floor", _blind)
    try:
        assert world.do(group_of(ws, 3, 1).get_recent(known)) == known, "it takes the gap for the end"
    except MetaSyncError:
        pytest.fail("caught in another way than thought")


def test_mutant_an_owner_that_does_not_look_for_floors(
    world: World, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper, group = group_of(ws, 2, 1), group_of(ws, 1)
    known = push(world, sleeper, ws.genesis, 3)
    state = push(world, group, known, 60)
    collect(world, group, state)
    monkeypatch.setattr(LogAcceptor, "has_no_floor", _blind)
    assert world.do(sleeper.propose(known, lambda: change(b"x" * 16))).mine, "two values for one version"
    assert world.do(group.state_at(state, 4)).op_id != b"x" * 16


def test_births_stay(world: World, ws: Workspace) -> None:
    group = group_of(ws, 1)
    state = push(world, group, ws.genesis, 30)
    collect(world, group, state)
    assert all(birth_path(ws.acceptor_of(n)) in world.stores[n] for n in NAMES)


def test_what_a_device_remembers_of_the_work_survives(world: World, ws: Workspace) -> None:
    progress = Progress(16, {("ab", 8): 12.5, ("cd", 16): 1e9}, {"ab": 8})
    assert truncation.decode_progress(progress.encode()) == progress
    for damaged in (None, b"", b"{", b"[]", b'{"made": "x"}', b'{"read": [[1]]}', b'{"deleted": 3}', b"\xff"):
        assert truncation.decode_progress(damaged) == Progress()


def test_names_of_coming_blocks_of_states_come_from_the_keys_of_their_epoch() -> None:
    """A revoked device keeps the id key, which never changes, and the keys of all epochs before."""
    before = new_keys(bytes(32), bytes(range(96)))
    after = replace(before, epoch_keys=(*before.epoch_keys, (2, b"2" * 32)))
    other = replace(before, epoch_keys=(*before.epoch_keys, (2, b"3" * 32)))
    assert after.states_name(1, 0, 7) == before.states_name(1, 0, 7)
    assert after.states_name(2, 0, 7) not in (before.states_name(1, 0, 7), other.states_name(2, 0, 7))
