"""A majority lost for good, in virtual time: what the new era carries, who follows it, and every step cut short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eras_kit import ME, OTHER, THIRD, Room, pushed, recovered, recovering, tried
from paxos_world import Process, change

from metasync.consensus import EraRecord, birth_path
from metasync.consensus.eras import newest_record
from metasync.consensus.records.era import era_path, open_record, seal_record
from metasync.errors import BackendError, ForkError, FormatError, NoQuorumError, UnreachableError
from metasync.keys.derive import sign_public
from metasync.runtime.effects import Op, Reply


class TestRecovery:
    def test_goes_on_from_the_newest_state_known_decided(self) -> None:
        room = Room.made(1, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="ab")
        record, newest = recovered(room, "bc", room.ws.genesis)
        # one acceptor of three cannot show that version 1 was decided: it is carried as content
        assert record.ended == room.ws.genesis
        assert (newest.era, newest.v, newest.master, newest.op_id) == (1, 1, one.master, one.op_id)
        assert newest == record.first != one

    def test_knows_what_the_device_itself_remembers(self) -> None:
        room = Room.made(2, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="bc")
        two = pushed(room, group, one, 2, only="bc")
        record, newest = recovered(room, "bc", two)
        assert record.ended == two and record.carried is None
        assert (newest.era, newest.v, newest.master, newest.prev) == (1, 3, two.master, two.hash)

    def test_the_new_era_agrees_without_the_lost(self) -> None:
        room = Room.made(3, "abc")
        pushed(room, room.group(ME), room.ws.genesis, 1)
        _, first = recovered(room, "bc", room.ws.genesis)
        later = room.group(THIRD, 2)
        known = room.world.do(later.get_recent(room.ws.genesis))
        assert known == first
        for n in range(2, 9):  # over versions whose `skip` leads behind the beginning of the era
            known = room.world.do(later.propose(known, lambda n=n: change(bytes([n]) * 16))).state
            assert known.era == 1
        assert room.world.do(room.group(b"x" * 16).get_recent(room.ws.genesis)) == known

    def test_who_knew_another_state_of_the_same_version_goes_on_from_the_new_one(self) -> None:
        """Rule 5.3: what it has open of the version after the old one is not taken for that after the new one."""
        room = Room.made(14, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        two = pushed(room, group, one, 2, only="bc")
        assert room.world.do(group.get_recent(two)) == two
        _, first = recovered(room, "bc", one)
        assert (first.v, first.era, two.era) == (two.v, 1, 0)
        assert room.world.do(group.get_recent(two)) == first
        three = room.world.do(group.propose(first, lambda: change(b"3" * 16))).state
        assert (three.era, three.prev) == (1, first.hash)
        assert room.world.do(room.group(THIRD, 2).get_recent(room.ws.genesis)) == three

    def test_who_knew_more_follows_too(self) -> None:
        room = Room.made(4, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        three = pushed(room, group, pushed(room, group, one, 2, only="bc"), 3, only="bc")
        _, first = recovered(room, "bc", one)
        assert first.v == 2 < three.v
        assert room.world.do(group.get_recent(three)) == first
        assert group.participant.followed[1].ended == one

    def test_a_return_of_the_lost_confuses_nobody(self) -> None:
        room = Room.made(5, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        _, first = recovered(room, "bc", one)
        room.world.down = set()
        room.world.takes_s["a"] = 0.001  # the retired one is heard before a quorum of the others is
        two = room.world.do(room.group(THIRD, 2).get_recent(one))  # b and c are a quorum of the old era
        assert two == first

    def test_the_old_era_goes_on_where_only_the_lost_are_reached(self) -> None:
        room = Room.made(6, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        _, first = recovered(room, "bc", one)
        two = pushed(room, group, one, 2, only="bc")
        assert two.era == 0
        assert room.world.do(group.get_recent(two)) == first

    def test_states_that_nobody_can_show_any_more_are_stepped_over(self) -> None:
        room = Room.made(7, "abc")
        group = room.group(ME)
        known = room.ws.genesis
        for op in range(1, 12):  # a misses versions 6 to 10
            known = pushed(room, group, known, op, only="bc" if 6 <= op <= 10 else "ab")
        record, first = recovered(room, "bc", known)
        assert (record.ended, first.v, first.prev) == (known, 16, known.hash)
        later = room.group(THIRD, 2)
        assert room.world.do(later.get_recent(room.ws.genesis)) == first
        for n in range(20, 40):
            first = room.world.do(later.propose(first, lambda n=n: change(bytes([n]) * 16))).state
        assert room.world.do(room.group(b"x" * 16).get_recent(room.ws.genesis)) == first
        assert first.v == 36

    @pytest.mark.few(2)
    @pytest.mark.parametrize("length", [2, 3, 5, 6, 7])
    def test_versions_after_the_first_one_lead_back_over_its_border(self, length: int) -> None:
        room = Room.made(8, "abc")
        known = room.ws.genesis
        for op in range(1, length + 1):
            known = pushed(room, room.group(bytes([op]) * 16), known, op)
        _, newest = recovered(room, "c", known)
        assert newest.v == length + 1
        for op in range(20, 32):
            group = room.group(bytes([op]) * 16)
            assert room.world.do(group.get_recent(known)) == newest
            newest = room.world.do(group.propose(newest, lambda op=op: change(bytes([op]) * 16))).state
        reader = room.group(b"x" * 16)
        assert room.world.do(reader.get_recent(room.ws.genesis)) == newest
        assert room.world.do(reader.state_at(newest, 0)) == room.ws.genesis
        assert room.world.do(reader.state_at(newest, length)) == known


class TestCarried:
    def test_an_undecided_value_is_content_and_keeps_its_operation(self) -> None:
        room = Room.made(10, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        tried(room, group, one, 2, only="a")
        record, first = recovered(room, "bc", one)
        assert record.carried is not None and record.carried.era == 0
        assert (first.era, first.op_id, first.master) == (1, bytes([2]) * 16, bytes([2]) * 32)
        assert first != record.carried
        room.world.down = set()
        newest = room.world.do(group.get_recent(one))
        assert newest == first  # and its proposer learns that it went through
        decided = room.world.do(group.propose(newest, lambda: change(b"\3" * 16))).state
        assert decided.prev == first.hash

    def test_the_highest_accepted_round_is_the_one(self) -> None:
        room = Room.made(11, "abcde")
        group, other = room.group(ME), room.group(THIRD, 2)
        one = pushed(room, group, room.ws.genesis, 1, only="abc")
        tried(room, group, one, 2, only="a")
        two = pushed(room, other, one, 3, only="bcd")  # decided without a, in a higher round
        record, first = recovered(room, "cde", one)
        assert record.ended == one and record.carried == two and first.op_id == two.op_id

    def test_a_late_vote_on_a_retired_acceptor_decides_nothing_new(self) -> None:
        """A proposer read the birth before it was retired; what it sent lands after the survivors were read."""
        room = Room.made(12, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        held_back: list[Op] = []

        def delayed(op: Op) -> Reply | None:
            if op.backend == "a" and op.kind == "create" and "/px/" in op.path:
                held_back.append(op)
                return Reply(error=UnreachableError("a: no answer"))
            return None

        room.world.fault_hook = delayed
        tried(room, group, one, 2, only="ab")
        room.world.fault_hook = lambda op: None
        record, first = recovered(room, "bc", one)
        assert record.carried is None
        for op in held_back:
            room.world.stores["a"].do(op)
        room.world.down = set()
        assert room.world.do(group.get_recent(one)) == first
        assert room.world.do(room.group(b"y" * 16, 2).get_recent(one)) == first


class TestTwoRecords:
    def test_whoever_sees_both_says_so_and_stops(self) -> None:
        room = Room.made(20, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="abc")
        first_record, _ = recovered(room, "bc", one)
        room.world.down = {"a", "b"}
        other_record = room.world.do(recovering(room, room.group(THIRD, 2), one, "ab"))
        assert first_record.digest != other_record.digest
        room.world.down = set()
        with pytest.raises(ForkError, match="restarted twice as era 1"):
            room.world.do(room.group(b"z" * 16).get_recent(one))
        for name in "ac":  # the two records alone tell it too: the tombstones may not name them yet
            path = birth_path(room.ws.acceptor_of(name))
            room.world.stores[name][path] = room.world.stores[name][path][:54] + bytes(32)
        with pytest.raises(ForkError, match="restarted twice as era 1"):
            room.world.do(room.group(b"y" * 16).get_recent(one))

    def test_a_new_device_that_sees_both_says_so_and_stops(self) -> None:
        """Rule 5.4: it has no state that would tell it which one goes on."""
        room = Room.made(22, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="abc")
        recovered(room, "bc", one)
        room.world.down = {"a", "b"}
        room.world.do(recovering(room, room.group(THIRD, 2), one, "ab"))
        room.world.down = set()
        for backends in ("ac", "ca", "abc"):
            with pytest.raises(ForkError, match="restarted twice as era 1"):
                room.world.do(newest_record(room.ws.keys, backends))
        assert room.world.do(newest_record(room.ws.keys, "ab")).number == 1
        assert room.world.do(newest_record(room.ws.keys, "b")) is None

    def test_one_who_reaches_the_other_s_backend_follows_it(self) -> None:
        room = Room.made(21, "abcde")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="abcde")
        room.world.down = set("cde")
        first_record = room.world.do(recovering(room, room.group(OTHER, 1), one, "cde"))
        room.world.down = set("ade")
        again = recovering(room, room.group(THIRD, 2), one, "cde")
        with pytest.raises(BackendError, match="a: cannot create"):
            room.world.do(again)
        assert room.world.stores["b"][era_path(1)] == first_record.data
        del room.world.stores["a"][era_path(1)]
        room.world.down = set("cde")
        again = recovering(room, room.group(b"u" * 16, 2), one, "cde")
        assert room.world.do(again).digest == first_record.digest
        assert room.world.stores["a"][era_path(1)] == first_record.data

    @pytest.mark.parametrize("seed", range(12))
    def test_two_at_once_on_the_same_backends_make_one(self, seed: int) -> None:
        room = Room.made(100 + seed, "abcde")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="abcde")
        room.world.down = set("cde")
        both = [
            room.world.start("x", recovering(room, room.group(OTHER, 1), one, "cde")),
            room.world.start("y", recovering(room, room.group(THIRD, 2), one, "cde")),
        ]
        room.world.run()
        digests = {p.result.digest for p in both if p.error is None}
        for p in both:  # whoever met tombstones with the other's digest, or was overtaken, runs again
            if p.error is not None:
                assert isinstance(p.error, (ForkError, BackendError, NoQuorumError)), p.error
        record = room.world.do(recovering(room, room.group(b"v" * 16, 1), one, "cde"))
        assert digests <= {record.digest}


class TestCutShort:
    @pytest.mark.few(1)
    @pytest.mark.parametrize("lands", [True, False])
    def test_a_crash_after_every_write_ends_in_one_record(self, lands: bool) -> None:
        """The process dies at its nth write, which lands or not; the next run ends what it began, or begins anew."""
        n, finished = 0, False
        while not finished:
            n += 1
            room = Room.made(1000 + n, "abcde")
            group = room.group(ME)
            one = pushed(room, group, room.ws.genesis, 1, only="abc")
            tried(room, group, one, 2, only="a")
            room.world.down = set("cde")
            writes = 0
            dying: list[Process] = []

            def hook(op: Op, dying: list[Process] = dying, room: Room = room, n: int = n) -> Reply | None:
                nonlocal writes
                if op.kind not in ("create", "put") or not dying[0].alive:
                    return None if dying[0].alive or op.kind not in ("create", "put") else Reply(
                        error=UnreachableError("dead"))  # fmt: skip
                writes += 1
                if writes == n:
                    room.world.kill(dying[0])
                    return None if lands else Reply(error=UnreachableError("dead"))
                return None

            dying.append(room.world.start("dies", recovering(room, room.group(OTHER, 1), one, "cde")))
            room.world.fault_hook = hook
            room.world.run()
            room.world.fault_hook = lambda op: None
            finished = dying[0].alive
            before = {room.world.stores[name].get(era_path(1)) for name in "ab"} - {None}
            record = room.world.do(recovering(room, room.group(THIRD, 2), one, "cde"))
            assert {room.world.stores[name][era_path(1)] for name in "ab"} == {record.data}
            assert before <= {record.data}
            assert record.carried is not None and record.first.op_id == bytes([2]) * 16
            newest = room.world.do(group.get_recent(one))
            assert newest == record.first
            again = room.world.do(group.propose(newest, lambda: change(b"\7" * 16))).state
            assert room.world.do(room.group(b"f" * 16, 2).get_recent(room.ws.genesis)) == again
        assert n > 20


class TestRefused:
    def forged(self, room: Room, record: EraRecord, admin: bytes, **other: Any) -> bytes:
        changed = replace(record, **other)
        return seal_record(room.ws.keys, changed, admin, bytes(32))

    def test_a_record_that_the_admin_did_not_sign_is_none(self) -> None:
        room = Room.made(30, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        record, _ = recovered(room, "bc", one)
        data = self.forged(room, record, b"e" * 32)
        with pytest.raises(FormatError, match="signature"):
            open_record(room.ws.keys, data, 1)
        room.world.stores["a"][era_path(1)] = data
        with pytest.raises(NoQuorumError, match="was begun, and did not end"):
            room.world.do(room.group(b"n" * 16).get_recent(one, deadline_s=3.0))

    def test_states_that_do_not_follow_are_refused(self) -> None:
        room = Room.made(31, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="ab")
        record, first = recovered(room, "bc", one)
        for other in (
            {"first": replace(first, v=first.v + 4)},
            {"first": replace(first, prev=bytes(32))},
            {"first": replace(first, writer=b"w" * 16)},
            {"first": replace(first, era=2)},
            {"carried": replace(first, era=0, master=b"x" * 32)},
        ):
            with pytest.raises(FormatError):
                open_record(room.ws.keys, self.forged(room, record, room.ws.admin, **other), 1)
        assert open_record(room.ws.keys, record.data, 1) == record

    def test_one_that_contradicts_what_the_device_knows_is_not_followed(self) -> None:
        room = Room.made(32, "abc")
        group = room.group(ME)
        one = pushed(room, group, room.ws.genesis, 1, only="ab")
        record, _ = recovered(room, "bc", room.ws.genesis, carry=False)
        ended = replace(one, op_id=b"?" * 16)
        first = replace(record.first, v=2, prev=ended.hash, skip=room.ws.genesis.hash)
        room.world.stores["a"][era_path(1)] = self.forged(
            room, record, room.ws.admin, ended=ended, first=replace(first, skip=room.ws.genesis.hash)
        )
        stone = room.world.stores["a"][birth_path(room.ws.acceptor_of("a"))]
        room.world.stores["a"][birth_path(room.ws.acceptor_of("a"))] = stone[:54] + bytes(32)
        with pytest.raises(ForkError, match="contradicts version 1"):
            room.world.do(room.group(b"n" * 16).get_recent(one, deadline_s=3.0))

    def test_an_emptied_backend_is_none_that_is_left(self) -> None:
        room = Room.made(33, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="ab")
        room.world.wipe("a")
        with pytest.raises((BackendError, NoQuorumError)):
            recovered(room, "bc", one)

    def test_an_admin_key_that_was_withdrawn_begins_no_era(self) -> None:
        room = Room.made(34, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="ab")
        recovered(room, "bc", one)
        group = room.group(b"n" * 16)
        chain = room.ws.devices.chain.extended(room.ws.admin, sign_public(b"2" * 32))
        policy = room.ws.devices.policy.signed(b"2" * 32, chain=chain)
        group.participant.device_sets[one.devices] = replace(room.ws.devices, policy_data=policy.encode())
        with pytest.raises(ForkError, match="an admin key that is not today's"):
            room.world.do(group.get_recent(one, deadline_s=3.0))

    def test_tombstones_that_name_another_record_stop(self) -> None:
        room = Room.made(35, "abc")
        one = pushed(room, room.group(ME), room.ws.genesis, 1, only="ab")
        recovered(room, "bc", one)
        path = birth_path(room.ws.acceptor_of("a"))
        room.world.stores["a"][path] = room.world.stores["a"][path][:54] + b"x" * 32
        with pytest.raises(ForkError, match="restarted twice"):
            room.world.do(room.group(b"n" * 16).get_recent(one, deadline_s=3.0))
