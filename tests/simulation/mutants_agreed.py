"""Broken rules of what is agreed on beside versions: liars, blocks, backends, keys and floors. See `mutants`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any, Final
from unittest import mock

from metasync import config
from metasync.consensus import learner, reconfigure, truncation
from metasync.consensus.acceptors.block import BlockAcceptor
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.group import Group
from metasync.consensus.instance import Instance
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.log_replay import Log, Replay
from metasync.consensus.records.state import State
from metasync.errors import BackendError
from metasync.runtime.effects import Now, Task
from simulation.mutants import MUTANTS, mutant, needs, rewritten
from simulation.plan import DAY_S
from simulation.runtime import SimRuntime
from simulation.scenarios import (
    NIGHT_DAYS,
    closed_by_a_thief,
    read_between_two_blocks,
    removed_and_emptied,
    rewritten_later,
    shared_a_round,
    skipped_by_a_floor,
    slept_over_a_floor,
    took_part_in_a_round,
)

_OLDER: Final = "an older past"  # what an emptied store is called whose birth nobody looks at
_BIRTHS: Final = "no-birth"  # a rule that alone suffices against the danger of some others


def no_fence(m: Any, instance: Any, value: Any, new: Any, deadline_s: float) -> Task:
    m.fenced.add(value.hash)
    return
    yield


# Liars and stolen devices.


@mutant("liar-small-quorum", "a quorum of crash mode where an acceptor may lie", needs("liars"))
def _liar_small_quorum() -> Iterator[None]:
    with mock.patch.object(config, "quorum", lambda n, f: n // 2 + 1):
        yield


@mutant("void-counts", "entries of a device that the base does not admit take effect", needs("rotation"))
def _void_counts() -> Iterator[None]:
    with rewritten(Log, "_judged", ("return entry, False", "return entry, True")):
        yield


@mutant("void-evidence", "entries of a device that the base does not admit count as evidence", needs("rotation"))
def _void_evidence() -> Iterator[None]:
    more = "self.void += 1\n        if not admitted and entry.kind is Kind.ACCEPT:\n            "
    accepts = property(lambda log: log.votes | dict([log.accepted] if log.accepted else []))
    with (
        rewritten(Log, "feed", ("self.void += 1", more + "self.accepted = (entry.round, entry.value)")),
        mock.patch.object(Log, "accepts", accepts),
    ):
        yield


@mutant("lone-decided", "DECIDED in one log is believed", closed_by_a_thief)
def _lone_decided() -> Iterator[None]:
    real = Instance.decided

    def decided(self: Instance, *, births: bool = True) -> State | None:
        told = [a.log.closed for a in self.acceptors.values() if a.log.usable and (a.born or not births)]
        return next((value for value in told if value is not None), None) or real(self, births=births)

    with (
        rewritten(Log, "_apply", ("self.closes(value)", "value is not None")),
        mock.patch.object(Instance, "decided", decided),
    ):
        yield


@mutant("revoke-unfenced", "a revocation counts as complete before DECIDED stands on a quorum", needs("rotation"))
def _revoke_unfenced() -> Iterator[None]:
    with mock.patch.object(reconfigure, "fence", no_fence):
        yield


# An insider.


@mutant("decided-votes", "DECIDED on a quorum counts as a decision", needs("insider"))
def _decided_votes() -> Iterator[None]:
    real = Instance.decided

    def decided(self: Instance, *, births: bool = True) -> State | None:
        told = Counter(a.log.closed for a in self.acceptors.values() if a.log.usable and (a.born or not births))
        del told[None]
        value = max(told, key=lambda state: told[state], default=None)
        return value if told[value] >= self.quorum else real(self, births=births)

    closes = "self.closes(value)", "value is not None"
    with rewritten(Log, "_apply", closes), mock.patch.object(Instance, "decided", decided):
        yield


@mutant("empty-fence", "DECIDED closes a log that has not accepted its value", needs("insider"))
def _empty_fence() -> Iterator[None]:
    closes = "self.closes(value)", "value is not None"
    with rewritten(Log, "_apply", closes):
        yield


@mutant("any-round", "every value with a quorum of votes is taken for decided", rewritten_later)
def _any_round() -> Iterator[None]:
    with rewritten(
        Instance, "decided", ("[key for rnd, key in won if rnd == min(won)[0]]", "sorted(k for _, k in won)[:1]")
    ):
        yield


@mutant("highest-round", "of values with a quorum of votes, that of the highest round is decided", rewritten_later)
def _highest_round() -> Iterator[None]:
    with rewritten(Instance, "decided", ("min(won)[0]", "max(won)[0]")):
        yield


@mutant("unprepared-counts", "ACCEPTs count in rounds that no quorum can have promised", needs("insider"))
def _unprepared_counts() -> Iterator[None]:
    with mock.patch.object(Instance, "is_earned", return_value=True):
        yield


@mutant("open-round", "what has a quorum is decided while what was not read may show no promises", took_part_in_a_round)
def _open_round() -> Iterator[None]:
    with mock.patch.object(Instance, "is_shown_earned", return_value=True):
        yield


@mutant("either-of-two", "of two values in one round either is proposed, though one may have a quorum", shared_a_round)
def _either_of_two() -> Iterator[None]:
    with rewritten(
        Instance,
        "evidence",
        ("len(may) > 1 and not either", "False"),
        (
            "may[0] if may else max(voters, key=lambda value: value.hash)",
            "min(voters, key=lambda value: value.hash)",
        ),
    ):
        yield


@mutant("void-passes", "a value that the rules or the policy forbid counts as any other", needs("insider"))
def _void_passes() -> Iterator[None]:
    with rewritten(Replay, "checked", ("if why:", "if False:")):
        yield


# Blocks.


def _just_the_birth(self: BlockAcceptor) -> Task:
    """In the place of a complete read."""
    began = yield Now()
    yield from self.read_birth()
    self.note_read(began)


@mutant("block-no-reread", "a block ACCEPT counts for its writer once it stands, without a read after", needs("blocks"))
def _block_no_reread() -> Iterator[None]:
    real = BlockAcceptor._read_all

    def read_all(self: BlockAcceptor, *, own_too: bool = False) -> Task:
        read = _just_the_birth if own_too else real
        return (yield from read(self))

    with mock.patch.object(BlockAcceptor, "_read_all", read_all):
        yield


@mutant("block-read-first", "the others' blocks are read before one's own is written", needs("blocks"))
def _block_read_first() -> Iterator[None]:
    real, write = BlockAcceptor._read_all, BlockAcceptor._write

    def read_all(self: BlockAcceptor, *, own_too: bool = False) -> Task:
        read = _just_the_birth if own_too else real
        return (yield from read(self))

    def read_and_write(self: BlockAcceptor, *message: Any) -> Task:
        failed = yield from real(self)
        return failed or (yield from write(self, *message))

    with (
        mock.patch.object(BlockAcceptor, "_read_all", read_all),
        mock.patch.object(BlockAcceptor, "_write", read_and_write),
    ):
        yield


@mutant("block-owner-no-read", "the owner's round 0 counts on a block acceptor without the read", needs("blocks"))
def _block_owner_no_read() -> Iterator[None]:
    old = "failed = yield from self._read_all(own_too=own_too)"
    born = "failed = yield from self._birth()"
    new = f"if rnd.n == 0:\n            {born}\n        else:\n            {old}"

    with (
        mock.patch.object(BlockAcceptor, "_birth", _just_the_birth, create=True),
        rewritten(BlockAcceptor, "append", (old, new)),
    ):
        yield


@mutant("block-hole", "block k+1 is written before block k is confirmed", needs("blocks"))
def _block_hole() -> Iterator[None]:
    with rewritten(BlockAcceptor, "_send", ("return self.fault(error)", "return self._confirmed(journal)")):
        yield


@mutant("block-no-journal", "a restarted process writes other bytes under a used name", needs("blocks"))
def _block_no_journal() -> Iterator[None]:
    def claim(self: BlockAcceptor) -> Task:
        chain = self.log.chains[self.me]
        while not chain.ended:
            found = yield from self._read_block(self.me, chain.next_idx)
            if isinstance(found, BackendError):
                return self.fault(found)
            self._take_in(self.log, self.me, [found])
        return None

    with mock.patch.object(BlockAcceptor, "_claim", claim):
        yield


@mutant("block-learn-once", "a learner does not read all blocks again after it saw the ACCEPT", read_between_two_blocks)
def _block_learn_once() -> Iterator[None]:
    real = Blocks.judge

    def judge(self: Blocks, before: Any) -> None:
        real(self, self.known())

    with mock.patch.object(Blocks, "judge", judge):
        yield


# Changes of the backends. Births alone would do against an emptied one: these are broken without them, where only what
# was removed is emptied, and that so late that births broken alone do no harm.


@mutant("no-fence", "a removed backend is emptied before DECIDED stands anywhere", removed_and_emptied, _OLDER)
def _no_fence() -> Iterator[None]:
    with MUTANTS[_BIRTHS].broken(), mock.patch.object(reconfigure, "fence", no_fence):
        yield


@mutant("no-expiry", "promises and votes collected long ago are counted", removed_and_emptied, _OLDER)
def _no_expiry() -> Iterator[None]:
    with MUTANTS[_BIRTHS].broken(), mock.patch.object(AcceptorView, "is_fresh", return_value=True):
        yield


@mutant(
    "no-confirm", "version v+1 is proposed before DECIDED(v) stands on a quorum",
    partial(removed_and_emptied, dies=True), _OLDER,
)  # fmt: skip
def _no_confirm() -> Iterator[None]:
    with MUTANTS[_BIRTHS].broken(), mock.patch.object(Group, "_make_sure_of_fence", no_confirm):
        yield


def no_confirm(self: Group, base: Any, deadline_s: float) -> Task:
    return
    yield


@mutant("fence-on-removed", "a removed backend is emptied once DECIDED stands on it too", removed_and_emptied, _OLDER)
def _fence_on_removed() -> Iterator[None]:
    stands = " and len(held & stay) >= min(every_quorum, len(stay))", ""
    with MUTANTS[_BIRTHS].broken(), rewritten(reconfigure, "_suffices", stands):
        yield


@mutant("epoch-name", "an absence counts that was found under the name of another key epoch", needs("rotation"))
def _epoch_name() -> Iterator[None]:
    older = ("decided.epoch != current.epoch", "False")
    jumped = ("(decided.epoch, decided.config) == (current.epoch, current.config)", "decided.config == current.config")
    beside = ("(value.config, value.epoch) == (self.base.config, self.base.epoch)", "value.config == self.base.config")
    with rewritten(learner, "get_recent", older, jumped), rewritten(Instance, "is_last", beside):
        yield


# Floors.

_TRUSTED: Final = "(yield from self.has_no_floor(self.v))"

_VOUCHING: Final = "(yield from self.vouching())"
_VOUCHING_FLOORLESS: Final = f'{{k: v for k, v in {_VOUCHING}.items() if k != "floor"}}'


@mutant("no-floor", "the floor is not looked at before a create is trusted", slept_over_a_floor)
def _no_floor() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in ("append", "_read_taken"):
            stack.enter_context(rewritten(LogAcceptor, name, (_TRUSTED, "True")))
        stack.enter_context(rewritten(LogAcceptor, "_beside", (_VOUCHING, _VOUCHING_FLOORLESS)))
        stack.enter_context(MUTANTS["learn-no-floor"].broken())  # every push looks for news by now, and would see it
        yield


@mutant("learn-no-floor", 'a learner takes the absence of a trimmed log for "nothing newer"', slept_over_a_floor)
def _learn_no_floor() -> Iterator[None]:
    beside = "branches |= yield from self.vouching()", f"branches |= {_VOUCHING_FLOORLESS}"
    with rewritten(LogAcceptor, "look", beside, (_TRUSTED, "True")):
        yield


@mutant("floor-no-elapsed", "the floor is looked at, but not how long ago when the reply came", slept_over_a_floor)
def _floor_no_elapsed() -> Iterator[None]:
    with rewritten(
        AcceptorView, "has_no_floor", (" and (yield Now()) - seen_s <= TRUST_S", " and (yield Now()) >= seen_s")
    ):
        yield


@mutant("floor-no-wait", "logs are deleted without the grace", partial(slept_over_a_floor, days=0.02))
def _floor_no_wait() -> Iterator[None]:
    kept = truncation.bound_logs.__kwdefaults__
    assert kept is not None
    with mock.patch.dict(kept, grace_s=0.0):
        yield


@mutant(
    "read-no-floor", "what is found in a deleted log counts without a look at the floor",
    partial(slept_over_a_floor, sent=True),
)  # fmt: skip
def _read_no_floor() -> Iterator[None]:
    floor = f'if not got.get("floor", True) or not {_TRUSTED}:'
    found = 'if log.next_idx or got["0"] is not None:\n            self.floor = None\n        el'
    with rewritten(LogAcceptor, "look", (floor, found + floor)):
        yield


@mutant(
    "floor-clock-stops", "elapsed time is from a clock that stands still while the machine sleeps", slept_over_a_floor
)
def _floor_clock_stops() -> Iterator[None]:
    real = SimRuntime._at_once

    def at_once(self: SimRuntime, effect: Any) -> Any:
        return self._world.now % (NIGHT_DAYS * DAY_S) if isinstance(effect, Now) else real(self, effect)

    with mock.patch.object(SimRuntime, "_at_once", at_once):
        yield


# A log is deleted after the floor that covers it was read there, and no floor is made before the one below it stands on
# a quorum. So one that is missing on an acceptor does no harm, and what follows is broken without these two.


@contextlib.contextmanager
def floors_without(*, skips: bool = True, quorum: bool = True, covering: str = "") -> Iterator[None]:
    """Floors without some of their rules.

    skips      an acceptor gets no floor without having the one before
    quorum     a floor stands on a quorum before the next one is made
    covering   a log is deleted if the floor that covers it was read there; "above": or another one above it,
               "elsewhere": or on another acceptor
    """
    never = FunctionType(truncation._create.__code__, {**vars(truncation), "STEP": 1 << 62}, "_create")
    missing = (
        "isinstance(reply.error, NotFoundError):",
        "isinstance(reply.error, NotFoundError):\n            continue",
    )
    enough = {"above": "a == name and f > done", "elsewhere": "f == done + STEP"}.get(covering)
    due = (
        "progress.read_s.get((name, done + STEP))",
        f"next((at for (a, f), at in sorted(progress.read_s.items()) if {enough}), None)",
    )
    gone = "del progress.read_s[name, done + STEP]", "pass"
    with contextlib.ExitStack() as stack:
        if not skips:
            stack.enter_context(mock.patch.object(truncation, "_create", never))
        if not quorum:
            few = "sum(made.values()) < instance.quorum", "not any(made.values())"
            stack.enter_context(rewritten(truncation, "_make", few))
        if covering:
            stack.enter_context(rewritten(truncation, "_bound_one", missing, due, gone))
        yield


@mutant("floor-skips", "an acceptor gets a floor without having the one before", skipped_by_a_floor)
def _floor_skips() -> Iterator[None]:
    with (  # a vote in a deleted log lacks its PREPARE, so rule 8.2 helps as well
        floors_without(skips=False, quorum=False, covering="above"),
        mock.patch.object(Instance, "is_earned", return_value=True),
        rewritten(Instance, "decided", ("min(won)[0]", "rnd")),
    ):
        yield


@mutant("floor-everywhere", "logs are deleted on acceptors that did not take the floor", skipped_by_a_floor)
def _floor_everywhere() -> Iterator[None]:
    with floors_without(quorum=False, covering="elsewhere"):
        yield
