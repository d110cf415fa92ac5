"""One acceptor in block form: what a message finds there already, what is sent again, and what is never written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest
from forger_kit import Forger
from paxos_world import Store, change
from test_blocks import Place

from metasync.consensus.acceptors import block
from metasync.consensus.acceptors.block import BlockAcceptor
from metasync.consensus.acceptors.log import NO_ROOT, RETRY_FIRST_S
from metasync.consensus.acceptors.view import TRUST_S
from metasync.consensus.instance import Instance
from metasync.consensus.participant import Outcome, Participant
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import (
    Claim,
    Kind,
    Round,
    SignedEntry,
    covering,
    floor_path,
    open_block,
    seal_block,
)
from metasync.consensus.records.log_replay import NEVER
from metasync.consensus.records.state import Ref, State, successor
from metasync.errors import ForkError, RefusedError, UnreachableError
from metasync.runtime.effects import Op, Reply

LOST = UnreachableError("no answer")
NOBODY = Round(0, bytes(16))


class OneStore:
    """The blocks on `b` as device 0 writes and sees them. `put`: by path, all bytes that were ever sent there."""

    def __init__(self, devices: int = 2) -> None:
        self.p = Place({"b": "block"}, devices)
        self.world, self.ws, self.base = self.p.world, self.p.ws, self.p.ws.genesis
        self.acceptor = self.ws.acceptor_of("b")
        self.store = self.world.stores["b"]
        self.x, self.y = (self._value(name) for name in (b"x", b"y"))
        self.put: defaultdict[str, list[bytes]] = defaultdict(list)
        self.answer: Callable[[Op, Store], Reply | None] = lambda _op, _store: None
        self.world.liars["b"] = self._answer
        self.view = self._view(0)

    def _value(self, name: bytes) -> State:
        return successor(self.base, change(name * 16), skip=self.base.hash, writer=name * 16)

    def _answer(self, _: str, op: Op, store: Store) -> Reply:
        if op.kind == "put" and "/bl/" in op.path:
            self.put[op.path].append(op.data)
        answer = self.answer(op, store)
        return store.do(op) if answer is None else answer

    def _view(self, device: int) -> BlockAcceptor:
        view = self.p.instance(device, self.base).acceptors[self.acceptor]
        assert isinstance(view, BlockAcceptor)
        return view

    def unread(self) -> BlockAcceptor:
        """The same process, which has read nothing of this version any more."""
        made = Instance(self.member, self.ws.config, self.ws.devices, self.base).acceptors[self.acceptor]
        assert isinstance(made, BlockAcceptor)
        return made

    def restart(self, *, memory: bytes = b"") -> None:
        """`memory`: what the process before kept of acceptors."""
        self.p.groups[0] = self.p.fresh(0, memory=memory)
        self.view = self._view(0)

    @property
    def member(self) -> Participant:
        return self.p.groups[0].participant

    def round(self, n: int) -> Round:
        return Round(n, self.member.incarnation)

    def append(
        self, kind: Kind, n: int, value: State | None = None, stale: Round = NEVER, view: BlockAcceptor | None = None
    ) -> Outcome:
        rnd = NOBODY if kind is Kind.DECIDED else self.round(n)
        outcome: Outcome = self.p.do(0, (view or self.view).append(kind, rnd, value, stale))
        return outcome

    def other(self, kind: Kind, n: int, value: State | None = None) -> None:
        """A message of another device."""
        Forger(self.world, self.ws, 1, b"o" * 16).tell(self.base, ["b"], kind, Round(n, b"o" * 16), value)

    def look(self) -> Outcome:
        outcome: Outcome = self.p.do(0, self.view.look())
        return outcome

    def once(self, happens: Callable[[], None], kind: str, after: bool = True) -> None:
        """Has something happen at the next request of this kind for a block."""

        def answer(op: Op, store: Store) -> Reply | None:
            if op.kind != kind or "/bl/" not in op.path:
                return None
            self.answer = lambda _op, _store: None
            done = store.do(op) if after else None
            happens()
            return done

        self.answer = answer


@pytest.fixture
def one() -> OneStore:
    return OneStore()


# ---- reading


def test_a_read_that_fails_is_no_look(one: OneStore) -> None:
    one.world.down = {"b"}
    assert one.look().kind == "failed"
    assert not one.view.ended


def test_what_was_read_after_the_machine_slept_counts_for_nothing(one: OneStore) -> None:
    """The blocks may have been deleted below a floor meanwhile."""
    assert one.look().kind == "done"

    def sleep() -> None:
        one.world.now += TRUST_S + 1

    one.once(sleep, "get")
    assert one.look().reason == "its floor is above, or is not known"
    assert not one.view.ended


@pytest.mark.parametrize("device", [0, 1])
def test_the_first_block_of_a_version_is_found_whoever_wrote_it(one: OneStore, device: int) -> None:
    Forger(one.world, one.ws, device).tell(one.base, ["b"], Kind.PREPARE, one.round(1))
    found = one.p.do(0, one.view.first_entry(1))
    assert isinstance(found, SignedEntry)
    assert found.entry.device_id == one.ws.identities[device].device_id
    assert one.p.do(0, one.view.first_entry(2)) is None
    one.answer = lambda _op, _store: Reply(error=LOST)
    assert one.p.do(0, one.view.first_entry(1)) is LOST


def test_what_the_writer_of_a_block_found_elsewhere_must_be_shown_to_us_too() -> None:
    p = Place({"a": "log", "b": "block"})
    Forger(p.world, p.ws, 2).tell(p.ws.genesis, ["a"], Kind.PREPARE, Round(1, b"f" * 16))
    entry = p.world.stores["a"][Forger(p.world, p.ws, 2).place(p.ws.genesis, "a", 0)]
    claim = Claim(p.ws.acceptor_of("a"), 1, 0, entry)
    Forger(p.world, p.ws, 1).tell(p.ws.genesis, ["b"], Kind.PREPARE, Round(1, b"f" * 16), claim=claim)
    views = p.instance(0, p.ws.genesis).acceptors
    p.do(0, views[p.ws.acceptor_of("b")].look())
    assert views[p.ws.acceptor_of("a")].memory.unaudited


# ---- what stands there already


def test_where_it_is_closed_nothing_more_is_written(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert one.append(Kind.ACCEPT, 1, one.x).kind == "done"
    assert one.append(Kind.DECIDED, 0, one.y).kind == "failed"
    assert one.append(Kind.DECIDED, 0, one.x).kind == "done"
    assert len(one.put) == 3
    assert one.append(Kind.PREPARE, 5).kind == "done"
    assert one.append(Kind.ACCEPT, 5, one.x).kind == "done"
    assert one.append(Kind.ACCEPT, 5, one.y).kind == "closed"
    assert len(one.put) == 3


def test_what_stands_is_not_written_again(one: OneStore) -> None:
    for _ in range(2):
        assert one.append(Kind.PREPARE, 1).kind == "done"
    assert len(one.put) == 1


def test_only_a_foreign_round_is_met_and_only_by_who_asks_for_a_promise(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert one.append(Kind.PREPARE, 2).kind == "done", "its own round is none to be met"
    one.other(Kind.PREPARE, 3)
    one.look()
    assert one.append(Kind.PREPARE, 4).kind == "met"
    assert one.append(Kind.ACCEPT, 4, one.x).kind == "done"


def test_a_promise_and_a_vote_are_lost_to_a_higher_round_that_stands_when_they_are_read(one: OneStore) -> None:
    one.once(lambda: one.other(Kind.PREPARE, 3), "put")
    assert one.append(Kind.PREPARE, 2).kind == "rejected"
    assert one.append(Kind.PREPARE, 5, stale=Round(3, b"o" * 16)).kind == "done"
    one.once(lambda: one.other(Kind.PREPARE, 7), "put")
    assert one.append(Kind.ACCEPT, 5, one.x).kind == "rejected"


def test_a_promise_is_gone_after_a_higher_round_though_the_vote_that_it_led_to_counts(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert one.append(Kind.ACCEPT, 1, one.x).kind == "done"
    one.other(Kind.PREPARE, 2)
    assert one.append(Kind.PREPARE, 1).kind == "rejected"
    assert one.append(Kind.ACCEPT, 1, one.x).kind == "done"


@pytest.mark.parametrize("bound", ["blocks", "bytes"])
def test_a_block_that_every_reader_would_take_for_poison_is_not_written(
    one: OneStore, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    if bound == "blocks":
        monkeypatch.setattr(block, "CHAIN_BLOCKS_MAX", 1)
    else:
        monkeypatch.setattr(Blocks, "takes", lambda *_: False)
    assert one.append(Kind.PREPARE, 2).reason == block.FULL
    assert len(one.put) == 1


# ---- what is sent, and sent again


def test_the_first_message_is_one_block_and_nothing_else(one: OneStore) -> None:
    before = set(one.store)
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert set(one.store) - before == set(one.put)
    assert [len(sent) for sent in one.put.values()] == [1]


def test_a_name_is_never_given_to_two_blocks(one: OneStore) -> None:
    """The block landed and nobody said so; before it can be read, something else is to be written."""

    def answer(op: Op, store: Store) -> Reply | None:
        if op.kind == "put":
            store.do(op)
        return Reply(error=LOST) if "/bl/" in op.path else None

    one.look()
    one.answer = answer
    assert one.append(Kind.PREPARE, 1).kind == "failed"
    assert one.append(Kind.PREPARE, 2).kind == "failed"
    one.answer = lambda _op, _store: None
    assert one.append(Kind.PREPARE, 3).kind == "done"
    assert [len(set(sent)) for sent in one.put.values()] == [1, 1]


def test_what_was_not_sent_in_vain_is_sent_before_anything_else(one: OneStore) -> None:
    one.answer = lambda op, _: Reply(error=LOST) if op.kind == "put" else None
    assert one.append(Kind.PREPARE, 1).kind == "failed"
    one.answer = lambda _op, _store: None
    assert one.append(Kind.PREPARE, 2).kind == "done"
    assert one.view.log.next_idx == 2
    assert [len(set(sent)) for sent in one.put.values()] == [1, 1]


def test_who_has_read_nothing_yet_writes_after_what_it_wrote_before(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert one.append(Kind.PREPARE, 2, view=one.unread()).kind == "done"
    last = one.round(2)
    one.restart()
    assert one.append(Kind.PREPARE, 3, stale=last).kind == "done"
    assert [len(set(sent)) for sent in one.put.values()] == [1, 1, 1]


def test_a_block_that_landed_unnoticed_is_not_sent_again(one: OneStore) -> None:
    one.once(lambda: None, "put")
    landed = one.answer
    one.answer = lambda op, store: Reply(error=LOST) if landed(op, store) is not None else None
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert [len(sent) for sent in one.put.values()] == [1]


def test_a_block_that_did_not_land_is_sent_again_a_little_later(one: OneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.world, "_delay", lambda *_: 0.0)
    at: list[float] = []

    def answer(op: Op, _: Store) -> Reply | None:
        if op.kind == "put":
            at.append(one.world.now)
            return Reply(error=LOST) if len(at) < 2 else None
        return None

    one.answer = answer
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert len(at) == 2
    assert at[1] - at[0] >= RETRY_FIRST_S


def test_what_is_refused_or_lands_elsewhere_is_not_sent_again(one: OneStore) -> None:
    one.answer = lambda op, _: None if op.kind == "get" and "/bl/" in op.path else Reply(error=RefusedError("no such"))
    assert one.append(Kind.PREPARE, 1).reason.endswith("no such"), "and not that its birth was not seen"
    assert [len(sent) for sent in one.put.values()] == [1]


def test_into_a_root_that_was_emptied_nothing_more_is_sent(one: OneStore) -> None:
    one.look()
    one.store.clear()
    one.answer = lambda op, _: Reply(error=LOST) if op.kind == "put" else None
    assert one.append(Kind.PREPARE, 1).reason == "birth"
    assert [len(sent) for sent in one.put.values()] == [1]


def test_what_is_read_back_is_asked_for_where_nobody_else_writes() -> None:
    one = OneStore(devices=1)
    one.answer = lambda op, _: Reply() if op.kind == "put" else None
    assert "does not show" in one.append(Kind.PREPARE, 1).reason


@pytest.mark.parametrize("looks", [True, False])
def test_the_next_process_asks_for_the_last_block_once(looks: bool) -> None:
    """The audit and the journal mean the same block: what the one saw beside the birth the other need not ask for."""
    p = Place({"b": "block"}, devices=1)
    base = p.push(0, p.ws.genesis, b"1")
    last = p.blocks_on("b")[-1]
    p.groups[0] = p.fresh(0, memory=p.groups[0].memory)
    before = len(p.world.requests["b"])
    if looks:
        assert p.newest(0, base) == base
    p.push(0, base, b"2")
    asked = [(op.kind, op.path) for op in p.world.requests["b"][before:]]
    assert asked.count(("get", last)) == 1
    look = 4  # the birth, a floor, the last block that was seen, and the first one of this version
    message = 4  # the block and the birth, and both again
    assert len(asked) == look + 2 * message


def test_a_block_that_was_seen_on_another_root_is_sent_again() -> None:
    """What an audit saw before the birth was wrong says nothing of the root that is back."""
    one = OneStore(devices=1)
    assert one.append(Kind.PREPARE, 1).kind == "done"
    (path,) = one.put
    stale = one.round(1)
    one.restart(memory=one.p.groups[0].memory)
    assert one.look().kind == "done"
    right = {p: data for p, data in one.store.items() if p != path}
    one.store.clear()
    assert one.look().reason == "birth"
    one.store.update(right)
    assert one.append(Kind.PREPARE, 2, stale=stale).kind == "done"
    assert len(one.put[path]) == 2, "before anything else was written"


def test_a_block_that_an_audit_missed_is_sent_again() -> None:
    """The journal knows of a block that no process saw stand: nothing else is written before it."""
    one = OneStore(devices=1)
    assert one.append(Kind.PREPARE, 1).kind == "done"
    (first,) = one.put
    one.answer = lambda op, _: Reply(error=LOST) if op.kind == "put" else None
    assert one.append(Kind.PREPARE, 2).kind == "failed"
    one.answer = lambda _op, _store: None
    stale = one.round(2)
    second = next(path for path in one.put if path != first)
    one.restart(memory=one.p.groups[0].memory)
    assert one.look().kind == "done"
    assert second not in one.store
    assert one.append(Kind.PREPARE, 3, stale=stale).kind == "done"
    assert len(set(one.put[second])) == 1
    assert second in one.store


# ---- what lies in the place of a block of one's own


def test_a_damaged_block_of_ones_own_poisons_and_is_no_copy_of_this_device(one: OneStore) -> None:
    for n in (1, 2):
        assert one.append(Kind.PREPARE, n).kind == "done"
    first = next(iter(one.put))
    one.store[first] = one.store[first][:-1] + bytes([one.store[first][-1] ^ 1])
    one.restart()
    assert one.append(Kind.PREPARE, 3).kind == "failed"
    assert one.view.log.poison


def test_a_copy_that_overwrote_a_block_is_found_out_by_who_reads_it_again(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    (path,) = one.put
    copy = Forger(one.world, one.ws, 0, b"c" * 16)
    one.store[path] = copy.sealed(one.base, "b", 0, bytes(32), Kind.PREPARE, copy.round(5))
    with pytest.raises(ForkError, match="identity"):
        one.append(Kind.PREPARE, 2, view=one.unread())


def test_what_another_member_signed_in_its_place_is_no_copy_of_this_device(one: OneStore) -> None:
    """It knows the names and the keys that seal; with them it cannot have a device take itself for a copy."""
    assert one.append(Kind.PREPARE, 1).kind == "done"
    (path,) = one.put
    me, other = one.ws.identities[:2]
    found = open_block(
        one.ws.keys, one.store[path], base=one.base, acceptor_id=one.acceptor, v=1, device_id=me.device_id, idx=0
    )
    made_up = replace(found.entry, entry_id=b"e" * 16)
    one.store[path] = seal_block(one.ws.keys, made_up, other.sign_private, bytes(32))
    one.restart()
    outcome = one.append(Kind.PREPARE, 2)
    assert outcome.kind == "failed"
    assert "is not what was written" in outcome.reason


# ---- what rides, what is awaited, what an audit says


def test_a_value_whose_index_rides_is_not_sent_without_its_root(one: OneStore) -> None:
    """An ACCEPT of it counts for nobody who does not find the root in it."""
    assert one.append(Kind.PREPARE, 1).kind == "done"
    sent = len(one.put)
    rides = replace(one.x, index=Ref(1, b"i" * 32), index_rides=True)
    assert one.append(Kind.ACCEPT, 1, rides) == Outcome("failed", NO_ROOT)
    assert len(one.put) == sent


def test_what_may_come_next_is_what_others_write(one: OneStore) -> None:
    (other,) = one.view.next_places()
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert one.view.next_places() == (other,)
    one.other(Kind.PREPARE, 2)
    assert one.look().kind == "done"
    (following,) = one.view.next_places()
    assert following != other
    assert (other in one.store, following in one.store) == (True, False)


def test_own_blocks_that_an_earlier_process_wrote_are_remembered_as_they_are_read(one: OneStore) -> None:
    """Before anything of this process stands there: a root that loses them is noticed."""
    for n in (1, 2):
        assert one.append(Kind.PREPARE, n).kind == "done"
    one.restart()
    sent = len(one.put)
    assert one.append(Kind.PREPARE, 3).kind == "met"
    assert len(one.put) == sent
    last = one.member.acceptors[one.acceptor].last
    assert last is not None
    assert (last.seen.v, last.seen.idx) == (1, 1)


def test_a_look_without_an_audit_vouches_for_no_block(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    assert one.look().kind == "done"
    memory = one.member.acceptors[one.acceptor]
    assert memory.last is not None
    assert memory.stands == b""


def test_a_root_that_lost_a_block_does_not_get_it_back(one: OneStore) -> None:
    """The next process remembers it, and asks for it before it sends what the journal has."""
    assert one.append(Kind.PREPARE, 1).kind == "done"
    one.restart(memory=one.p.groups[0].memory)
    (path,) = one.put
    del one.store[path]
    assert one.append(Kind.PREPARE, 2).kind == "failed"
    assert path not in one.store
    assert one.member.acceptors[one.acceptor].rolled_back


def test_below_a_floor_a_block_that_was_deleted_is_not_sent_again(one: OneStore) -> None:
    assert one.append(Kind.PREPARE, 1).kind == "done"
    one.restart(memory=one.p.groups[0].memory)
    (path,) = one.put
    del one.store[path]
    of_keys_to_come = b"\1\5" + bytes(4) + (9).to_bytes(4, "big")
    one.store[floor_path(one.acceptor, covering(1))] = of_keys_to_come.ljust(512)
    assert one.append(Kind.PREPARE, 2).kind == "failed"
    assert path not in one.store
    assert not one.member.acceptors[one.acceptor].rolled_back
