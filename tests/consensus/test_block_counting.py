"""What one acceptor in block form promises and counts (consensus.md, section 7), rule by rule: what all reads show."""

from __future__ import annotations

import pytest
from agreement_kit import ACCEPTOR, ALICE, BOB, INCARNATION, KEYS, MALLORY, RIVAL, RULES, BlockWriter, X, Y

from metasync.consensus.records import block_replay
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.state import State

ONE, TWO = Round(1, INCARNATION), Round(2, RIVAL)
NOBODY = Round(0, bytes(16))


class Writer(BlockWriter):
    """Alice proposes X in round 1, Bob Y in round 2."""

    def prepare(self, rnd: Round) -> Writer:
        self.add(ALICE if rnd == ONE else BOB, Kind.PREPARE, rnd.n, round=rnd)
        return self

    def accept(self, rnd: Round) -> Writer:
        self.add(ALICE if rnd == ONE else BOB, Kind.ACCEPT, rnd.n, round=rnd, value=X if rnd == ONE else Y)
        return self

    def decided(self, value: State = X) -> Writer:
        self.add(ALICE, Kind.DECIDED, 0, round=NOBODY, value=value)
        return self

    def again(self) -> Writer:
        self.then()
        return self


def read(writer: BlockWriter) -> Blocks:
    blocks = Blocks(KEYS, RULES, ACCEPTOR)
    for found in writer.reads:
        before = blocks.known()
        for device_id, data in found:
            blocks.feed(device_id, data)
        blocks.judge(before)
    return blocks


def test_a_round_is_promised_when_a_complete_read_since_it_stood_has_shown_nothing_higher() -> None:
    writer = Writer().prepare(ONE)
    assert not read(writer).grants(ONE)
    assert read(writer.again()).grants(ONE)
    assert not read(writer.again().prepare(TWO).again()).grants(ONE)
    assert read(writer).grants(TWO)


def test_a_round_can_be_promised_until_a_complete_read_has_followed_a_higher_one() -> None:
    assert not read(Writer()).lacks(ONE)
    writer = Writer().prepare(TWO)
    assert not read(writer).lacks(ONE)
    assert read(writer.again()).lacks(ONE)
    assert not read(writer).lacks(TWO)


def test_a_message_stands_when_it_was_read_and_no_other_stands_for_it() -> None:
    blocks = read(Writer().prepare(ONE))
    stand = [blocks.stands(kind, ONE) for kind in (Kind.PREPARE, Kind.ACCEPT, Kind.DECIDED)]
    assert stand == [True, False, False]
    blocks = read(Writer().accept(ONE))
    stand = [blocks.stands(kind, ONE) for kind in (Kind.PREPARE, Kind.ACCEPT, Kind.DECIDED)]
    assert stand == [False, True, False]
    assert read(Writer().accept(ONE).decided()).stands(Kind.DECIDED, NOBODY)


def test_the_last_block_is_that_of_a_device_that_wrote_one() -> None:
    blocks = read(Writer().prepare(ONE))
    assert blocks.last_of(BOB.device_id) is None
    assert blocks.last_of(MALLORY.device_id) is None
    seen = blocks.last_of(ALICE.device_id)
    assert seen is not None
    assert seen.idx == 0


def test_where_it_is_closed_its_value_alone_counts_in_whatever_round() -> None:
    writer = Writer().accept(ONE).again().accept(TWO).decided().again()
    assert read(writer).votes == {ONE: X}


def test_a_closed_one_is_read_once_more_and_no_further() -> None:
    writer = Writer().accept(ONE).accept(TWO).decided()
    assert read(writer).undetermined()
    assert not read(writer.again()).undetermined()


def test_the_newest_accept_is_read_once_more() -> None:
    writer = Writer().accept(ONE)
    assert read(writer).undetermined()
    assert not read(writer.again()).undetermined()
    assert read(writer).votes == {ONE: X}


def test_a_decided_closes_what_accepted_its_value_and_is_contrary_to_what_accepted_another() -> None:
    """Rule 8.1: where nothing was accepted it is neither."""
    alone, right, wrong = (read(w.decided()) for w in (Writer(), Writer().accept(ONE), Writer().accept(TWO)))
    assert [b.closed for b in (alone, right, wrong)] == [None, X, None]
    assert [b.contrary for b in (alone, right, wrong)] == [set(), set(), {ALICE.device_id}]


def test_after_poison_nothing_more_is_taken() -> None:
    blocks = read(Writer().prepare(ONE))
    assert blocks.feed(BOB.device_id, b"rubbish".ljust(512)) is None
    assert blocks.poison
    _, good = Writer().prepare(ONE).accept(ONE).reads[0][1]
    assert blocks.feed(ALICE.device_id, good) is None
    assert (blocks.next_idx, blocks.votes, blocks.silent) == (2, {}, True)


@pytest.mark.parametrize("bound", ["CHAIN_BLOCKS_MAX", "LOG_BYTES_MAX"])
def test_more_blocks_than_any_is_poison(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    writer = Writer().prepare(ONE).accept(ONE)
    first = len(writer.reads[0][0][1])
    monkeypatch.setattr(block_replay, bound, {"CHAIN_BLOCKS_MAX": 1, "LOG_BYTES_MAX": first}[bound])
    blocks = read(writer)
    assert "more than" in blocks.poison
    assert (blocks.prepared, blocks.silent) == ({ONE}, True)


def test_decided_closes_it_for_what_was_accepted_and_when_it_is_closed_for_that_alone() -> None:
    writer = Writer().prepare(ONE).accept(ONE).prepare(TWO)
    blocks = read(writer.again())
    assert (blocks.closes(X), blocks.closes(Y)) == (True, False)
    blocks = read(writer.accept(TWO).again())
    assert (blocks.closes(X), blocks.closes(Y)) == (True, True)
    blocks = read(writer.decided(X).again())
    assert (blocks.closes(X), blocks.closes(Y)) == (True, False)
