"""One acceptor in log form: what an append finds there already, what is kept of what it shows, and what stops it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from forger_kit import Forger
from paxos_world import Store
from test_audits import Told
from test_counting import Logs

from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import DELTA_S, LAG_S, TRUST_S, Outcome
from metasync.consensus.participant import OP_TIMEOUT_S
from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import (
    CLAIM_BYTES_MAX,
    Claim,
    Kind,
    Round,
    Seen,
    covering,
    entry_path,
    floor_path,
)
from metasync.consensus.records.log_replay import NEVER, Log
from metasync.consensus.records.state import Change, Ref
from metasync.errors import RefusedError, UnreachableError
from metasync.keys.derive import sha256
from metasync.keys.device_set import DEVICE_ENTROPY_BYTES, new_device
from metasync.runtime.effects import Op, Reply


class OneLog:
    """The log on `a`, as device 1 sees it. Device 0 writes into it beforehand."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.world, self.ws, self.base, self.x = self.logs.world, self.logs.ws, self.logs.base, self.logs.x
        self.y = self.logs.proposer.lie(self.base, b"y...")
        self.member = self.ws.group(b"r" * 16, 1).participant
        self.view: LogAcceptor = self.ws.unread(self.member, self.base, "a")
        self.store = self.world.stores["a"]

    def look(self) -> Outcome:
        outcome: Outcome = self.world.do(self.view.look())
        return outcome

    def append(self, kind: Kind, rnd: Round, value: object = None, stale: Round = NEVER) -> str:
        return str(self.world.do(self.view.append(kind, rnd, value, stale)).kind)  # type: ignore[arg-type]

    def mine(self, n: int) -> Round:
        return Round(n, self.member.incarnation)

    def count(self) -> int:
        return sum("/px/" in path for path in self.store)


@pytest.fixture
def one() -> OneLog:
    return OneLog()


# ---- what stands there already


def test_a_closed_log_has_its_own_value_accepted_and_no_other(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    one.logs.accept("a", 1, one.x)
    one.logs.close("a", one.x)
    one.look()
    before = one.count()
    assert one.append(Kind.PREPARE, one.mine(2)) == "done"
    assert one.append(Kind.ACCEPT, one.mine(2), one.x) == "done"
    assert one.append(Kind.ACCEPT, one.mine(2), one.y) == "closed"
    assert one.count() == before


def test_only_a_log_that_voted_for_it_takes_a_decided(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    nobody = Round(0, bytes(16))
    assert one.append(Kind.DECIDED, nobody, one.x) == "failed"
    one.logs.accept("a", 1, one.x)
    one.look()
    assert one.append(Kind.DECIDED, nobody, one.y) == "failed"
    assert one.append(Kind.DECIDED, nobody, one.x) == "done"
    assert one.view.log.closed == one.x


def test_an_entry_that_was_taken_by_another_is_met_or_rejects(one: OneLog) -> None:
    one.logs.prepare("a", 5)
    assert one.append(Kind.PREPARE, one.mine(3)) == "rejected"
    assert one.append(Kind.PREPARE, one.mine(7)) == "met"
    assert one.append(Kind.PREPARE, one.mine(7), stale=one.logs.proposer.round(5)) == "done"


def test_a_message_goes_behind_what_others_wrote_meanwhile(one: OneLog) -> None:
    """It is sealed anew for each place, since it names the entry before it."""
    one.look()
    one.logs.prepare("a", 1)
    one.logs.prepare("a", 2)
    assert one.append(Kind.PREPARE, one.mine(7), stale=one.logs.proposer.round(2)) == "done"
    assert one.count() == 3
    again = one.ws.unread(one.member, one.base, "a")
    one.world.do(again.look())
    assert (again.log.next_idx, again.log.poison, again.log.promised) == (3, "", one.mine(7))


def test_a_log_without_room_for_an_entry_is_sent_none(one: OneLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader would take it for poison, and all that stands there for nothing."""
    monkeypatch.setattr(Log, "takes", lambda *_: False)
    assert one.append(Kind.PREPARE, one.mine(1)) == "failed"
    assert one.count() == 0


def test_the_next_version_is_asked_for_where_that_is_wanted(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    beyond = entry_path(one.ws.keys, 1, 0, one.view.acceptor_id, 2, 0)
    for wanted in (False, True):
        view = one.ws.unread(one.member, one.base, "a")
        one.world.do(view.look(beyond=wanted))
        assert any(op.path == beyond for op in one.world.requests["a"]) is wanted
        assert view.beyond is wanted


def test_of_two_claims_the_newer_one_is_asked_for(one: OneLog) -> None:
    """Rule 8.3: what another device saw there last."""
    seen = [Seen(one.view.acceptor_id, 1, idx, bytes([idx]) * 32) for idx in range(3)]
    for idx in (1, 2, 0):
        one.view.note_claim(seen[idx], 1, b"teller")
        assert one.view.memory.last is not None
        assert one.view.memory.last.seen == seen[max(1, idx) if idx else 2]
    assert one.view.memory.unaudited


# ---- what is kept of what it shows


def test_the_newest_entry_of_another_member_is_kept_to_be_told(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    one.look()
    shown = one.view.memory.shown
    assert shown is not None
    assert (shown.v, shown.idx) == (1, 0)
    assert one.append(Kind.PREPARE, one.mine(2), stale=one.logs.proposer.round(1)) == "done"
    again = one.ws.unread(one.member, one.base, "a")
    one.world.do(again.look())  # it reads its own entry as well
    assert again.memory.shown == shown
    Forger(one.world, one.ws, 2).tell(one.base, "a", Kind.PREPARE, Round(3, b"t" * 16))
    one.look()
    assert again.memory.shown is not None
    assert again.memory.shown.idx == 2
    older = one.ws.unread(one.member, one.base, "a")
    one.world.do(older.look())
    assert older.memory.shown is not None
    assert older.memory.shown.idx == 2  # the older ones were read after it


def test_what_is_void_or_large_or_of_no_member_is_not_told(one: OneLog) -> None:
    one.logs.proposer.tell(one.base, "a", Kind.PREPARE, one.logs.proposer.round(1))
    one.logs.proposer.tell(one.base, "a", Kind.ACCEPT, one.logs.proposer.round(1), one.x, config=bytes(CLAIM_BYTES_MAX))
    one.look()
    assert one.view.memory.shown is not None
    assert one.view.memory.shown.idx == 0
    assert one.view.log.next_idx == 2


def test_what_it_must_show_is_the_last_good_entry(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    one.look()
    last = one.view.memory.last
    assert last is not None
    one.logs.poison("a", 1)
    one.look()
    assert not one.view.log.usable
    assert one.view.memory.last == last


def test_who_shows_another_entry_than_it_showed_to_another_device_is_accused() -> None:
    """Both were read: it is not late, and lies."""
    told = Told()
    forger = Forger(told.world, told.ws, 0)
    forger.tell(told.base, "b", Kind.PREPARE, Round(9, b"o" * 16))
    b = told.view.everybody[told.ws.acceptor_of("b")]
    told.world.do(b.look())
    real = told.world.stores["b"][forger.place(told.base, "b", 0)]
    told.view.everybody[b.acceptor_id].note_claim(Seen(b.acceptor_id, 1, 0, sha256(real)), 1, b"t" * 16)
    assert b.memory.rolled_back == ""
    b.note_claim(Seen(b.acceptor_id, 0, 0, b"h" * 32), 1, b"t" * 16)  # of another version: that entry was not read
    assert b.memory.rolled_back == ""
    b.note_claim(Seen(b.acceptor_id, 1, 0, b"h" * 32), 1, b"t" * 16)
    assert b.memory.rolled_back == f"entry 0 of version 1 is another than the one that device {(b't' * 4).hex()} saw"


def test_a_poisoned_log_is_asked_again_before_it_is_accused(one: OneLog) -> None:
    """What poisons it may have been damaged on its way."""
    one.logs.poison("a", 0)
    one.look()
    one.view.note_claim(Seen(one.view.acceptor_id, 1, 0, b"h" * 32), 1, b"t" * 16)
    assert one.view.memory.rolled_back == ""
    assert one.view.memory.unaudited


# ---- what stops it


def floored(one: OneLog) -> None:
    one.store[floor_path(one.view.acceptor_id, covering(1))] = b"a floor"


def gone(one: OneLog) -> None:
    """What it was seen to hold is no more."""
    del one.store[one.logs.proposer.place(one.base, "a", 0)]
    one.view.memory.unaudited = True
    one.view.log = one.view._empty()
    one.world.now += LAG_S


@pytest.mark.parametrize("happens", [floored, gone])
@pytest.mark.parametrize("step", ["look", "append"])
def test_below_a_floor_and_after_an_audit_that_failed_nothing_counts(
    one: OneLog, happens: Callable[[OneLog], None], step: str
) -> None:
    """What a log lacks there may have been deleted, or taken back."""
    one.logs.prepare("a", 1)
    one.look()
    one.world.now += TRUST_S + 1  # that it has no floor is to be looked at again
    happens(one)
    if step == "look":
        assert one.look().kind == "failed"
        assert not one.view.ended
    else:
        assert one.append(Kind.PREPARE, one.mine(2), stale=one.logs.proposer.round(1)) == "failed"
        assert not one.view.vouched
        assert one.view.log.promised != one.mine(2)


def test_a_create_that_gets_no_answer_is_tried_again_and_not_for_ever(one: OneLog) -> None:
    tries = []

    def answer(_: str, op: Op, store: Store) -> Reply:
        if op.kind == "create":
            tries.append(op.data)
            return Reply(error=UnreachableError("timed out"))
        return store.do(op)

    one.world.liars["a"] = answer
    assert one.append(Kind.PREPARE, one.mine(1)) == "failed"
    assert len(tries) > 1
    assert len(set(tries)) == 1  # the same bytes, which may have landed


def test_a_create_that_is_refused_is_not_tried_again(one: OneLog) -> None:
    creates = []

    def answer(_: str, op: Op, store: Store) -> Reply:
        if op.kind == "create":
            creates.append(op)
            return Reply(error=RefusedError("no such bucket"))
        return store.do(op)

    one.world.liars["a"] = answer
    assert one.append(Kind.PREPARE, one.mine(1)) == "failed"
    assert len(creates) == 1


def test_a_small_entry_is_waited_for_as_every_small_request_is(one: OneLog) -> None:
    assert one.append(Kind.PREPARE, one.mine(1)) == "done"
    create = next(op for op in reversed(one.world.requests["a"]) if op.kind == "create")
    assert create.timeout_s == OP_TIMEOUT_S


def test_what_a_create_took_is_how_long_a_request_takes(one: OneLog) -> None:
    one.world.takes_s["a"] = 0.5
    assert one.append(Kind.PREPARE, one.mine(1)) == "done"
    assert one.member.rtt_s == pytest.approx(0.5)


# ---- how it fares, and for how long that counts


def test_how_it_fares_is_noted_by_who_looks(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    one.look()
    assert one.member.standings["a"].kind == "ok"
    one.logs.poison("a", 1)
    one.look()
    assert one.member.standings["a"].kind == "poisoned"


def test_nothing_is_said_of_the_next_version_where_another_floor_may_cover_it(
    one: OneLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.logs.prepare("a", 1)
    one.world.do(one.view.look(beyond=True))
    assert one.view.beyond
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 2)
    again = one.ws.unread(one.member, one.base, "a")
    one.world.do(again.look(beyond=True))
    assert not again.beyond


def sleeps_at(one: OneLog, kind: str) -> list[Op]:
    """The machine sleeps for long, once, while such a request for an entry is under way. -> all of them."""
    asked: list[Op] = []

    def answer(_: str, op: Op, store: Store) -> Reply:
        if op.kind == kind and "/px/" in op.path:
            asked.append(op)
            one.world.now += (TRUST_S + 1) * (len(asked) == 1)
        return store.do(op)

    one.world.liars["a"] = answer
    return asked


def test_what_was_read_while_the_machine_slept_counts_for_nothing(one: OneLog) -> None:
    """The log may have been deleted below a floor meanwhile."""
    one.look()
    sleeps_at(one, "get")
    one.look()
    assert not one.view.ended


def test_an_entry_that_was_created_while_the_machine_slept_is_created_again(one: OneLog) -> None:
    """With the same bytes, and beside another look at the floor: only then it counts."""
    one.look()
    creates = sleeps_at(one, "create")
    assert one.append(Kind.PREPARE, one.mine(1)) == "done"
    assert len(creates) > 1
    assert len({op.data for op in creates}) == 1
    assert one.view.log.next_idx == 1


def test_a_taken_slot_that_was_read_while_the_machine_slept_is_not_taken_in(one: OneLog) -> None:
    one.look()
    one.logs.prepare("a", 1)
    sleeps_at(one, "get")
    assert one.append(Kind.PREPARE, one.mine(2)) == "failed"
    assert one.view.log.next_idx == 0


def test_what_an_append_read_is_as_old_as_what_a_look_read(one: OneLog) -> None:
    one.logs.prepare("a", 5)
    assert one.append(Kind.PREPARE, one.mine(7)) == "met"
    assert one.view.is_fresh()
    one.member.now += DELTA_S + 1
    assert not one.view.is_fresh()


def test_what_stands_and_was_read_long_ago_is_read_again_before_it_counts(one: OneLog) -> None:
    assert one.append(Kind.PREPARE, one.mine(1)) == "done"
    one.world.now += DELTA_S + 1
    assert one.append(Kind.PREPARE, one.mine(1)) == "done"
    assert one.view.counts()


def test_a_promise_is_gone_after_a_higher_round_though_the_vote_that_it_led_to_counts(one: OneLog) -> None:
    assert one.append(Kind.PREPARE, one.mine(1)) == "done"
    assert one.append(Kind.ACCEPT, one.mine(1), one.x) == "done"
    one.logs.prepare("a", 2)
    one.look()
    assert one.append(Kind.PREPARE, one.mine(1)) == "rejected"
    assert one.append(Kind.ACCEPT, one.mine(1), one.x) == "done"


# ---- more of what is kept


def test_no_older_entry_takes_the_place_of_the_one_to_be_told(one: OneLog) -> None:
    """Versions are read in any order."""
    one.logs.prepare("a", 1)
    newer = Claim(one.view.acceptor_id, 5, 0, b"of version 5")
    one.view.memory.shown = newer
    one.look()
    assert one.view.memory.shown == newer


def test_an_entry_of_who_is_no_member_yet_is_not_told(one: OneLog) -> None:
    """Nobody who reads it by another acceptor could check its signature."""
    stranger = new_device("new", one.world.rng.randbytes(DEVICE_ENTROPY_BYTES))
    certificate = stranger.certified(one.ws.admin, one.ws.keys.ns_id).encode()
    one.ws.identities.append(stranger)
    forger = Forger(one.world, one.ws, len(one.ws.identities) - 1)
    forger.tell(one.base, "a", Kind.PREPARE, forger.round(1), certificate=certificate)
    one.look()
    assert one.view.log.promised == forger.round(1)
    assert one.view.memory.shown is None


def test_what_a_vote_says_of_the_index_stays_when_the_end_of_the_version_says_nothing_of_it(one: OneLog) -> None:
    refs = (Ref(1, b"r" * 32), Ref(2, b"s" * 32))
    group = one.ws.group(b"p" * 16, 0)
    decided = one.world.do(group.propose(one.base, lambda: Change(b"o" * 16, master=b"m" * 32, adding=refs)), {})
    one.logs.close("a", decided.state)
    one.look()
    assert one.view.log.closed == decided.state
    assert one.member.added == {decided.state.hash: refs}


def test_bytes_that_another_read_are_taken_to_the_first_that_is_missing(one: OneLog) -> None:
    one.logs.prepare("a", 1)
    first = one.store[one.logs.proposer.place(one.base, "a", 0)]
    one.view.take([first, None, first], 0.0)
    assert one.view.log.next_idx == 1
    assert one.view.log.usable
