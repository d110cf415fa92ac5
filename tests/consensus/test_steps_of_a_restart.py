"""The steps of a restart by themselves: what each takes into account, and how it ends where a backend does not do its
part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from eras_kit import ME, OTHER, THIRD, Room, pushed, recovered
from forger_kit import Forger
from paxos_world import Store, World, change, make_workspace

from metasync.consensus import ZERO_HASH, EraRecord, State, birth_digest, eras, new_era
from metasync.consensus.new_era import Content, Held, answering, begin, claim, end_era, held, spread_record
from metasync.consensus.records.birth import birth_path
from metasync.consensus.records.entry import Kind
from metasync.consensus.records.era import (
    RECORD_BYTES_MAX,
    Tombstone,
    encode_tombstone,
    era_path,
    open_record,
    read_tombstone,
    seal_record,
)
from metasync.consensus.records.state import NOTHING
from metasync.errors import BackendError, ForkError, FullError, NoQuorumError, UnreachableError
from metasync.keys.derive import sign_public
from metasync.runtime.effects import Op, Reply, Task


class Restarting:
    """Three backends, one agreed version, and a device that restarts the workspace."""

    def __init__(self, lost: str = "", **more: Any) -> None:
        self.room = Room.made(50, "abc")
        self.world, self.ws = self.room.world, self.room.ws
        self.one = pushed(self.room, self.room.group(ME), self.ws.genesis, 1)
        more.setdefault("links", dict(self.ws.links))
        self.group = self.room.group(OTHER, 1, **more)
        self.m, self.enter = self.group.participant, self.group.enter
        self.lost = lost

    def do(self, task: Task) -> Any:
        return self.world.do(task)

    def ids(self, names: str) -> set[bytes]:
        return {b.backend_id for b in self.ws.config.backends if b.name in names}

    def content(self, **more: Any) -> Content:
        config, births, links = self.room.without(self.ws.config, self.lost)
        return Content(
            config=config, births=births, devices=self.ws.devices.encode(), state=self.one, op_id=b"e" * 16,
            without=tuple(self.lost), at_ns=1, links=links, **more,
        )  # fmt: skip

    def begin(self, content: Content) -> EraRecord:
        chain, admin = self.ws.devices.chain, self.ws.admin
        record: EraRecord = self.do(begin(self.m, self.enter, self.one, content, chain, admin))
        return record

    def two(self) -> tuple[EraRecord, EraRecord]:
        """Two records of one era, which no backend holds yet."""
        record, _ = recovered(self.room, "", self.one)
        for store in self.world.stores.values():
            del store[era_path(1)]
        other = seal_record(self.ws.keys, replace(record, at_ns=record.at_ns + 1), self.ws.admin, bytes(32))
        return record, open_record(self.ws.keys, other, 1)

    def answers(self, name: str, answer: Callable[[Op, Store], Reply | None]) -> None:
        """A backend answers otherwise, where `answer` gives something."""
        self.world.liars[name] = lambda _, op, store: answer(op, store) or store.do(op)


# --- the end of the old era


def test_what_cannot_be_read_to_its_end_stops_the_restart() -> None:
    """Rule 6.5: it may alone have the vote for what let go packs that are deleted there by now."""
    r = Restarting("bc")
    r.world.down = set("bc")
    retired = []

    def answer(op: Op, store: Store) -> Reply | None:
        if op.kind == "put" and op.path.endswith("/birth"):
            retired.append(op.path)
        return Reply(error=UnreachableError("busy")) if retired and "/px/" in op.path else None

    r.answers("a", answer)
    with pytest.raises(NoQuorumError, match="what a took of version 2 cannot be read now"):
        r.do(end_era(r.m, r.enter, r.one, r.ids("bc")))
    r.world.liars.clear()
    assert isinstance(r.do(end_era(r.m, r.enter, r.one, r.ids("bc"))), Held)


@pytest.mark.parametrize("why", ["", "read", "not left", "poisoned", "behind a floor", "rolled back"])
def test_who_has_no_say_in_a_version_need_not_be_read_to_its_end(why: str) -> None:
    """Rule 6.5: one that is left may alone have a vote for the version that let go what it has deleted since."""
    log, memory = SimpleNamespace(usable=why != "poisoned"), SimpleNamespace(rolled_back=why == "rolled back")
    floor = b"a floor" if why == "behind a floor" else None
    view = SimpleNamespace(name="a", log=log, memory=memory, floor=floor, ended=why == "read")
    instance: Any = SimpleNamespace(v=5, acceptors={b"a": view})
    left = [b"b"] if why == "not left" else [b"a", b"b"]
    if why:
        new_era._check_read(instance, left)
        return
    with pytest.raises(NoQuorumError, match="what a took of version 5 cannot be read now"):
        new_era._check_read(instance, left)


def test_a_backend_to_which_there_is_no_way_is_named() -> None:
    r = Restarting()
    del r.m.links[r.ws.acceptor_of("c")]
    with pytest.raises(NoQuorumError, match=r"^this device has no way to c\n"):
        r.do(end_era(r.m, r.enter, r.one, ()))
    assert isinstance(r.do(end_era(r.m, r.enter, r.one, r.ids("c"))), Held)


def test_one_voting_backend_must_be_left() -> None:
    r = Restarting()
    with pytest.raises(NoQuorumError, match=r"^this device has no way to any voting backend\n"):
        r.do(end_era(r.m, r.enter, r.one, r.ids("abc")))


def test_an_era_that_a_withdrawn_admin_began_is_not_gone_on_with() -> None:
    """Its record lies on all backends that are left: whoever has an admin key of today begins the era anew."""
    r = Restarting()
    recovered(r.room, "bc", r.one)
    later = r.room.group(THIRD, 2)
    m = later.participant
    assert isinstance(r.do(end_era(m, later.enter, r.one, r.ids("bc"))), EraRecord)
    later = r.room.group(b"n" * 16, 2)
    m = later.participant
    chain = r.ws.devices.chain.extended(r.ws.admin, sign_public(b"2" * 32))
    policy = r.ws.devices.policy.signed(b"2" * 32, chain=chain)
    m.device_sets[r.one.devices] = replace(r.ws.devices, policy_data=policy.encode())
    assert isinstance(r.do(end_era(m, later.enter, r.one, r.ids("bc"))), Held)


def test_a_tombstone_of_another_era_is_replaced() -> None:
    """Anybody who may write there can have put it; left as it is, nobody would read what the acceptor holds."""
    r = Restarting()
    a = r.ws.acceptor_of("a")
    where = r.world.stores["a"]
    birth = where[birth_path(a)]
    where[birth_path(a)] = encode_tombstone(a, birth[18:50], Tombstone(9, b"x" * 32))
    assert isinstance(r.do(end_era(r.m, r.enter, r.one, ())), Held)
    assert read_tombstone(where[birth_path(a)], a, birth_digest(r.ws.births[a])) == Tombstone(1, ZERO_HASH)


def test_an_entry_on_another_state_is_looked_into_before_the_end_of_an_era_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be the sign of a fork, which only a log shows that is read now."""
    r = Restarting()

    def newest(*_: Any) -> Task:
        yield from ()
        return r.one

    def fork(_: Any) -> Task:
        yield from ()
        raise ForkError("two histories")

    monkeypatch.setattr(new_era.learner, "newest_seen", newest)
    monkeypatch.setattr(r.m, "look_apart", fork)
    assert r.do(held(r.m, r.enter, r.one)).ended == r.one
    forger = Forger(r.world, r.ws, 2)
    forger.tell(replace(r.one, op_id=b"?" * 16), "a", Kind.PREPARE, forger.round(1))
    group = r.room.group(THIRD, 1)
    monkeypatch.setattr(group.participant, "look_apart", fork)
    with pytest.raises(ForkError, match="two histories"):
        r.do(held(group.participant, group.enter, r.one))


def test_a_backend_in_block_form_that_shows_no_clash_is_no_reason_for_a_restart() -> None:
    world = World(7, [*"abc"])
    ws = make_workspace(world, forms=dict.fromkeys("abc", "block"))
    group = ws.group(ME)
    one: State = world.do(group.propose(ws.genesis, lambda: change(b"1" * 16))).state
    world.run()
    assert world.do(answering(group.participant, group.enter, one)) == ({"a", "b", "c"}, {})


def test_what_is_ended_on_a_backend_that_does_not_answer_is_told_of_nobody() -> None:
    """It showed a spoilt log with its birth, and then no birth any more."""
    r = Restarting()
    forger = Forger(r.world, r.ws, 2)
    for name in "ab":
        r.world.stores[name][forger.place(r.one, name, 0)] = b"garbage".ljust(512)
    births = 0

    def away(op: Op, _: Store) -> Reply | None:
        nonlocal births
        if op.path != birth_path(r.ws.acceptor_of("a")):
            return None
        births += 1
        return Reply(error=UnreachableError("timed out")) if births == 1 else None

    r.answers("a", away)
    well, ended = r.do(answering(r.m, r.enter, r.one))
    assert (well, set(ended)) == ({"b", "c"}, {"b"})


# --- what the new era is given


def test_index_and_retained_versions_are_those_of_the_content() -> None:
    r = Restarting()
    first = r.begin(r.content()).first
    assert first.index == first.retained == NOTHING
    r = Restarting()
    named = []

    def make_root(refs: Any) -> bytes:
        named.extend(refs)
        return b"a root"

    first = r.begin(r.content(segments=[b"one", b"two"], make_root=make_root, retained=b"kept")).first
    assert first.gen == first.index.generation == first.retained.generation and len(named) == 2
    group = r.room.group(THIRD, 2)
    assert r.do(group.get_recent(r.one)) == first
    assert [r.do(group.get_meta(ref)) for ref in (*named, first.index, first.retained)] == [
        b"one", b"two", b"a root", b"kept",
    ]  # fmt: skip


def test_a_backend_that_cannot_take_what_the_new_era_needs_stops_it() -> None:
    """Nothing else holds it; the record is claimed nowhere."""
    r = Restarting()
    r.answers("b", lambda op, _: Reply(error=FullError("full")) if "/meta/" in op.path and op.data else None)
    with pytest.raises(BackendError, match=r"^b: it cannot take what the new era needs: full"):
        r.begin(r.content(make_root=lambda _: b"a root"))
    assert not any(era_path(1) in store for store in r.world.stores.values())


# --- the record


def test_a_record_that_stands_is_spread_and_the_missing_way_told() -> None:
    r = Restarting()
    record = r.begin(r.content())
    known = {a.acceptor_id: r.room.links.get(a.acceptor_id, b.name) for b, a in record.config.acceptors}
    for name in "bc":
        del r.world.stores[name][era_path(1)]
    links = {a: name for a, name in (r.ws.links | known).items() if name != "c"}
    group = r.room.group(THIRD, 2, links=links)
    with pytest.raises(NoQuorumError, match="no way to c"):
        r.do(spread_record(group.participant, group.enter, record))
    assert [era_path(1) in r.world.stores[name] for name in "abc"] == [True, True, False]


def place(r: Restarting, name: str) -> Any:
    return r.world.stores[name].get(era_path(1))


def test_the_record_on_the_first_backend_is_the_one_that_is_spread() -> None:
    r = Restarting()
    mine, other = r.two()
    r.world.stores["a"][era_path(1)] = other.data
    assert r.do(claim(r.m, mine, "abc", r.one)).digest == other.digest
    assert {place(r, name) for name in "abc"} == {other.data}


def test_another_record_behind_ones_own_is_a_second_restart() -> None:
    """One's own stood on a when it was begun again."""
    r = Restarting()
    mine, other = r.two()
    r.world.stores["a"][era_path(1)] = mine.data
    r.world.stores["b"][era_path(1)] = other.data
    with pytest.raises(ForkError, match=r"different backends \(b and a, c\)"):
        r.do(claim(r.m, mine, "abc", r.one))


def test_another_record_where_ones_own_was_just_made_is_a_second_restart() -> None:
    r = Restarting()
    mine, other = r.two()

    def swapped(op: Op, store: Store) -> Reply | None:
        if op.path != era_path(1) or op.kind != "create":
            return None
        reply = store.do(op)
        store[era_path(1)] = other.data
        return reply

    r.answers("a", swapped)
    with pytest.raises(ForkError, match=r"different backends \(a and b, c\)"):
        r.do(claim(r.m, mine, "abc", r.one))


@pytest.mark.parametrize("becomes", ["garbage", "another"])
def test_what_was_overwritten_must_be_the_record_then(becomes: str) -> None:
    """Garbage lies at its place on b, which shows something else after it was overwritten."""
    r = Restarting()
    mine, other = r.two()
    r.world.stores["b"][era_path(1)] = b"garbage"
    assert r.do(claim(r.m, mine, "abc", r.one)).digest == mine.digest
    assert place(r, "b") == mine.data
    r.world.stores["b"][era_path(1)] = b"garbage"

    def keeps(op: Op, store: Store) -> Reply | None:
        if op.path != era_path(1) or op.kind != "put":
            return None
        reply = store.do(op)
        store[era_path(1)] = b"garbage" if becomes == "garbage" else other.data
        return reply

    r.answers("b", keeps)
    if becomes == "garbage":
        with pytest.raises(BackendError, match=r"^b: eras/1 does not hold what was written there"):
            r.do(claim(r.m, mine, "abc", r.one))
    else:
        with pytest.raises(ForkError, match=r"different backends \(b and a, c\)"):
            r.do(claim(r.m, mine, "abc", r.one))


def test_what_is_too_large_for_a_record_is_none_and_is_overwritten() -> None:
    r = Restarting()
    mine, _ = r.two()
    r.world.stores["a"][era_path(1)] = mine.data.ljust(RECORD_BYTES_MAX + 1)
    assert r.do(claim(r.m, mine, "abc", r.one)).digest == mine.digest
    assert {place(r, name) for name in "abc"} == {mine.data}


def test_the_record_of_a_withdrawn_admin_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    r = Restarting()
    mine, other = r.two()
    monkeypatch.setattr(eras, "is_withdrawn", lambda _m, _known, record: record.digest == other.digest)
    r.world.stores["a"][era_path(1)] = other.data
    assert r.do(claim(r.m, mine, "abc", r.one)).digest == mine.digest
    assert {place(r, name) for name in "abc"} == {mine.data}


@pytest.mark.parametrize(("error", "times"), [(UnreachableError("busy"), 3), (FullError("full"), 1)])
def test_only_what_may_pass_is_tried_again(error: BackendError, times: int) -> None:
    r = Restarting()
    mine, _ = r.two()
    assert error.retryable == (times > 1)
    tried: list[str] = []

    def fails(op: Op, _: Store) -> Reply | None:
        if op.path != era_path(1) or op.kind != "create":
            return None
        tried.append(op.kind)
        return Reply(error=error)

    r.answers("a", fails)
    with pytest.raises(BackendError, match=r"^a: cannot create eras/1: "):
        r.do(claim(r.m, mine, "abc", r.one))
    assert len(tried) == times
