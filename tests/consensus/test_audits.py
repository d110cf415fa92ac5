"""What one acceptor must go on showing, what is said of one that does not, and what may be told of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forger_kit import Forger
from paxos_world import Store, World, make_workspace
from test_counting import Logs

from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import AUDIT_TRIES, LAG_S, Outcome
from metasync.consensus.participant import Remembered, Standing
from metasync.consensus.records.birth import birth_path
from metasync.consensus.records.entry import Claim, Entry, Kind, Round, Seen, covering, floor_path, seal_entry
from metasync.consensus.records.state import ZERO_HASH, State
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError
from metasync.keys.derive import sha256
from metasync.runtime.effects import Op, Reply


class Audited:
    """A log of two entries on `a`, which this device has read; then they are asked for again."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.logs.prepare("a", 1)
        self.logs.accept("a", 1, self.logs.x)
        self.world, self.ws = self.logs.world, self.logs.ws
        self.member = self.ws.group(b"r" * 16, 1).participant
        self.view: LogAcceptor = self.ws.unread(self.member, self.logs.base, "a")
        self.world.do(self.view.look())
        self.memory = self.view.memory
        assert self.memory.last is not None
        self.memory.unaudited = True
        self.store = self.world.stores["a"]
        self.path = self.logs.proposer.place(self.logs.base, "a", 1)

    def audit(self) -> bool:
        passed: bool = self.world.do(self.view.audit())
        return passed

    def meanwhile(self, path: str, act: Callable[[], Any]) -> None:
        """Something else is seen of this acceptor while an answer is under way."""

        def answer(_: str, op: Op, store: Store) -> Reply:
            if op.path == path:
                act()
            return store.do(op)

        self.world.liars["a"] = answer


@pytest.fixture
def a() -> Audited:
    return Audited()


def another(a: Audited) -> bytes:
    """A good entry of the same place, with the same entry before it."""
    before = sha256(a.store[a.logs.proposer.place(a.logs.base, "a", 0)])
    return a.logs.proposer.sealed(a.logs.base, "a", 1, before, Kind.PREPARE, Round(7, b"r" * 16))


def test_who_still_shows_what_it_showed_is_asked_no_more(a: Audited) -> None:
    asked = len(a.world.requests["a"])
    assert a.audit()
    assert (a.memory.unaudited, a.memory.suspicion) == (False, "")
    assert len(a.world.requests["a"]) == asked + 1


def test_who_shows_another_entry_there_is_suspect(a: Audited) -> None:
    """It was rolled back, or lies: what this device counted there must not be counted as anything else."""
    a.store[a.path] = another(a)
    assert not a.audit()
    assert a.memory.suspicion == "entry 1 of version 1 is another"


def test_who_shows_nothing_there_is_suspect(a: Audited) -> None:
    del a.store[a.path]
    assert not a.audit()
    assert a.memory.suspicion == "entry 1 of version 1 is gone"


def test_what_is_damaged_is_no_other_entry(a: Audited) -> None:
    """It is asked for again; then its store is in trouble, and has not lied."""
    a.store[a.path] = b"rubbish".ljust(512)
    asked = len(a.world.requests["a"])
    assert not a.audit()
    assert (a.memory.suspicion, a.view.standing and a.view.standing.kind) == ("", "down")
    assert len(a.world.requests["a"]) == asked + AUDIT_TRIES


def test_an_answer_that_was_damaged_once_is_asked_for_again(a: Audited) -> None:
    whole, answers = a.store[a.path], iter([b"rubbish".ljust(512)])
    a.world.liars["a"] = lambda _, op, store: Reply(next(answers, whole)) if op.path == a.path else store.do(op)
    assert a.audit()


def test_what_was_seen_since_an_audit_began_is_to_be_audited_yet(a: Audited) -> None:
    later = Remembered(1, Seen(a.view.acceptor_id, 1, 2, b"h" * 32))
    a.meanwhile(a.path, lambda: setattr(a.memory, "last", later))
    assert a.audit()
    assert (a.memory.last, a.memory.unaudited) == (later, True)


def test_who_was_told_of_by_another_device_may_show_it_a_little_later(a: Audited) -> None:
    a.memory.told_by, a.memory.told_at = b"d" * 16, a.world.now
    del a.store[a.path]
    assert not a.audit()
    assert a.memory.suspicion == ""
    a.world.now += LAG_S + 1
    assert not a.audit()
    assert a.memory.suspicion == f"entry 1 of version 1, which device {(b'd' * 4).hex()} saw, is gone"


def test_what_lies_below_a_floor_may_be_gone(a: Audited) -> None:
    floor = floor_path(a.view.acceptor_id, covering(1))
    del a.store[a.path]
    a.store[floor] = bytes(512)
    assert not a.audit()
    assert a.memory.suspicion
    a.memory.suspicion = ""
    later = a.store[floor][:6] + (2).to_bytes(4, "big") + a.store[floor][10:]
    a.store[floor] = later  # of keys that this device has not yet
    last = a.memory.last
    a.meanwhile(floor, lambda: setattr(a.memory, "last", Remembered(1, Seen(a.view.acceptor_id, 1, 2, b"h" * 32))))
    assert a.audit()
    assert a.memory.last != last
    assert a.memory.unaudited  # what was seen meanwhile is to be audited yet
    a.world.liars.clear()
    assert a.audit()
    assert (a.memory.last, a.memory.unaudited, a.memory.suspicion) == (None, False, "")


def test_who_is_suspect_is_accused_if_its_root_is_the_right_one(a: Audited) -> None:
    """One that was emptied has lost all, and has not lied."""
    a.memory.suspicion, a.view.born = "why", False
    assert a.view.unaudited().reason == "why"
    assert a.memory.rolled_back == ""
    a.memory.suspicion, a.view.born = "why", True
    a.view.unaudited()
    assert a.memory.rolled_back == "why"
    assert a.member.evidence == [("a", "why")]


def test_the_newest_that_was_seen_is_remembered(a: Audited) -> None:
    last = a.memory.last
    assert last is not None
    for v, idx in ((0, 9), (1, 0), (1, 1)):
        a.view.remember(Seen(a.view.acceptor_id, v, idx, b"h" * 32))
        assert a.memory.last == last
    a.view.remember(None)
    assert a.memory.last == last
    for v, idx in ((1, 2), (2, 0)):
        newer = Seen(a.view.acceptor_id, v, idx, b"h" * 32)
        a.view.remember(newer)
        assert a.memory.last == Remembered(1, newer)


# ---- how it fares


def test_a_message_counts_as_promised_only_if_it_stands_in_the_right_root(a: Audited) -> None:
    """Rule 1.9."""
    a.view.begin()
    a.view.born = True
    assert a.view.vouch(Outcome("failed", "no answer")) == Outcome("failed", "no answer")
    assert not a.view.vouched
    a.view.born = False
    assert a.view.vouch(Outcome("done")) == Outcome("failed", "birth")
    assert not a.view.vouched
    a.view.born = True
    assert a.view.vouch(Outcome("done")) == Outcome("done")
    assert a.view.vouched


def test_after_an_append_it_is_known_how_the_acceptor_fares(a: Audited) -> None:
    a.view.standing = Standing("down", "no answer")
    a.view.vouch(Outcome("done"))
    assert a.view.standing == Standing("ok")


def test_an_acceptor_without_a_way_to_it_answers_nothing(a: Audited) -> None:
    """It is asked nothing, and its standing says why."""
    del a.member.links[a.view.acceptor_id]  # type: ignore[attr-defined]
    asked = len(a.world.requests["a"])
    assert not a.audit()
    assert not a.world.do(a.view.read_floor())
    why = "this device has no way to it"
    assert a.view.fault(UnreachableError("no answer")) == Outcome("failed", why)
    assert a.view.standing == Standing("unlinked", why)
    assert a.view.out_of_reach() == Outcome("failed", why)
    a.member.standings.clear()
    assert a.view.out_of_reach() == Outcome("failed", "")
    assert len(a.world.requests["a"]) == asked


def test_one_that_was_rolled_back_is_asked_no_more(a: Audited) -> None:
    a.memory.rolled_back = "why"
    assert a.view.reach() is None
    assert a.view.standing == Standing("rolled back", "why")


@pytest.mark.parametrize(("error", "standing"), [
    (UnreachableError("e", next_step="wait"), Standing("down", "e")),
    (FullError("e", next_step="free some space"), Standing("full", "e", "free some space")),
    (RefusedError("e", next_step="log in"), Standing("down", "e", "log in")),
])  # fmt: skip
def test_an_error_says_how_the_acceptor_fares(a: Audited, error: BackendError, standing: Standing) -> None:
    """What has to be done first is told where asking again does not help by itself."""
    a.view.fault(error)
    assert a.view.standing is not None
    assert a.view.standing._replace(first="") == standing._replace(first="")
    assert bool(a.view.standing.first) is not error.retryable


def test_a_large_entry_is_asked_for_again_with_room_and_its_store_is_not_down(a: Audited) -> None:
    a.store["large"] = bytes(1 << 20)
    assert a.world.do(a.view.get("large")) == bytes(1 << 20)
    assert a.world.do(a.view.get("none")) is None
    a.world.liars["a"] = lambda _, op, store: Reply(error=NotFoundError("gone"))
    assert a.world.do(a.view.get("large")) is None


def test_an_emptied_root_is_told_as_that(a: Audited) -> None:
    del a.store[birth_path(a.view.acceptor_id)]
    a.world.do(a.view.look())
    assert a.memory.replaced
    assert a.memory.rolled_back == ""


# ---- what is told of others


@pytest.mark.parametrize(("mode", "lag"), [("crash", 0), ("bft", 1)])
def test_a_message_tells_of_another_acceptor_what_counts_there(mode: str, lag: int) -> None:
    """Of this version; where backends may lie, of the one before too. Not of one that is out, and not twice."""
    world = World(3, [*"abcd"])
    ws = make_workspace(world, f=1 if mode == "bft" else 0)
    view = ws.unread(ws.group(b"r" * 16, 1).participant, ws.genesis, "a")
    assert view.may_lie is (mode == "bft")
    other = ws.acceptor_of("b")
    memory = view.m.acceptors[other]

    def told(v: int) -> Claim | None:
        memory.shown = Claim(other, v, 0, b"entry")
        return view.next_claim()

    assert told(1) == memory.shown
    assert (told(0) is not None) is bool(lag)
    assert told(2) is None
    assert told(-1) is None
    assert told(1) is not None
    view.told = memory.shown
    assert view.next_claim() is None
    view.told = None
    memory.replaced = "it was emptied"
    assert view.next_claim() is None
    memory.replaced, memory.rolled_back = "", "it was rolled back"
    assert view.next_claim() is None


class Told:
    """Device 2 tells device 1, in a message on `a`, of an entry that device 0 wrote on `b`."""

    def __init__(self, f: int = 0, *, later: bool = False) -> None:
        self.world = World(3, [*"abcd"])
        self.ws = make_workspace(self.world, f=f)
        self.writer = Forger(self.world, self.ws, 0)
        self.first = self.ws.genesis
        self.base = self.writer.lie(self.first, skip=self.first.hash) if later else self.first
        self.view = self.ws.unread(self.ws.group(b"r" * 16, 1).participant, self.base, "a")

    def claim(self, base: State, *, on: str = "b", by: int = 0, signer: int | None = None) -> Claim:
        a, me = self.ws.acceptor_of(on) if on else b"n" * 16, self.ws.identities[by]
        entry = Entry(
            acceptor_id=a, v=base.v + 1, idx=0, prev_entry=ZERO_HASH, base=base, kind=Kind.PREPARE,
            round=Round(1, b"w" * 16), value=None, entry_id=b"e" * 16, device_id=me.device_id,
        )  # fmt: skip
        private = self.ws.identities[by if signer is None else signer].sign_private
        return Claim(a, entry.v, 0, seal_entry(self.ws.keys, entry, private, b"r" * 32))

    def notes(self, claim: Claim | None, *, teller: int = 2) -> bool:
        """Whether what was told is something that `b` must show now."""
        entry = Entry(
            acceptor_id=self.view.acceptor_id, v=self.base.v + 1, idx=0, prev_entry=ZERO_HASH, base=self.base,
            kind=Kind.PREPARE, round=Round(2, b"t" * 16), value=None, entry_id=b"e" * 16,
            device_id=self.ws.identities[teller].device_id, claim=claim,
        )  # fmt: skip
        self.view.note_claims(entry)
        memory = self.view.m.acceptors[self.ws.acceptor_of("b")]
        return memory.last is not None and memory.unaudited


def test_what_another_device_saw_and_a_third_one_wrote_must_be_shown() -> None:
    """Rule 8.3."""
    told = Told()
    assert told.notes(told.claim(told.base))


@pytest.mark.parametrize("claim", [
    lambda t: None,
    lambda t: t.claim(t.base, by=2),  # the teller could make up both
    lambda t: t.claim(t.base, signer=2),  # in another's name
    lambda t: t.claim(t.writer.lie(t.base)),  # on a state that nobody agreed, of a version that is not this one
    lambda t: t.claim(t.base)._replace(idx=1),
    lambda t: t.claim(t.base)._replace(data=b"rubbish".ljust(512)),
    lambda t: t.claim(t.base, on=""),
    lambda t: t.claim(t.base)._replace(v=0),
], ids=["none", "its own", "forged", "later", "another place", "rubbish", "of nobody", "earlier"])  # fmt: skip
def test_a_bare_word_condemns_nobody(claim: Callable[[Told], Claim | None]) -> None:
    told = Told()
    assert not told.notes(claim(told))


def test_what_this_device_told_itself_is_no_news() -> None:
    told = Told()
    assert not told.notes(told.claim(told.base), teller=1)


@pytest.mark.parametrize(("f", "counts"), [(0, False), (1, True)])
def test_an_entry_of_the_version_before_counts_where_backends_may_lie(f: int, counts: bool) -> None:
    told = Told(f, later=True)
    assert told.notes(told.claim(told.first)) is counts
    assert not Told(f, later=True).notes(told.claim(told.first, by=2))
    told = Told(f, later=True)
    told.view.m.device_sets.clear()  # nobody knows any more who was admitted then
    assert not told.notes(told.claim(told.first))
