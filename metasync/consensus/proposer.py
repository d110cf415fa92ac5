"""The proposer: one instance of Paxos per version, over passive logs (consensus.md, rules 1.5 and 1.6).

Theory of operation. A backend cannot run an acceptor, but it can keep a log: objects at numbered names, each created
only if absent, and only by a client that has read all before it. Replaying the log computes what an acceptor would
have answered (`log_replay`), so an entry that lands *is* its acceptor's reply, and every reader computes the same one.
Delayed, lost and repeated requests are then ordinary network behaviour, and the textbook proof holds:

    PREPARE(r)  on all acceptors; a quorum has it as the highest round: no lower round can be accepted there any more
    value       the one accepted in the highest round seen anywhere; only if there is none, one's own
    ACCEPT(r,x) on all acceptors; a quorum has accepted it: x is decided, for ever, whoever learns it

The owner round (consensus.md, rule 2.1). Round 0 of a version, below all others, belongs to the incarnation that
proposed the value of the version before, which every entry's base names. Nobody else can have a value accepted in it,
and below it there is nothing to find out: so its owner sends ACCEPT at once and commits with one append, a minority
down notwithstanding. Whoever else is at work has prepared a higher round, and replay makes the owner's entry void of
effect after it.

A round is (n, incarnation): an incarnation is drawn at every process start, so no two processes share a round, and a
process proposes one value per round. Rounds and promises are never persisted: a restart is another process. An own
value's (v, op_id) is persisted before its first ACCEPT, because from then on anybody may finish it.

Progress. Two proposers can preempt each other for ever. So a proposer that meets a foreign round which it sees for the
first time lets it finish: it polls for a few round trips, at random length, growing with each defeat, and only then
goes above it. When no one holds a quorum of first promises (three proposers, one acceptor each), everyone sees the same
rounds, and the highest goes on at once while the others wait.

PREPARE ahead, and what a slow minority may still do: rules 2.2 and 1.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Final

from metasync.codec import Reader, check_format, u8
from metasync.consensus.chain import check_admitted, learn_skip
from metasync.consensus.instance import Instance, no_quorum
from metasync.consensus.participant import Participant
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import NEVER, ROUND_MAX
from metasync.consensus.records.state import STATE_BYTES, Change, State, decode_state, successor
from metasync.errors import ForkError, NoQuorumError, WorkspaceError
from metasync.keys.derive import FORMAT
from metasync.local import state_keys
from metasync.runtime.effects import Gather, Now, Persist, Random, Sleep, Task

PATIENCE_RTTS: Final = 3.0  # of quiet before a foreign round may be preempted; its proposer needs two
PATIENCE_LEAST_S: Final = 0.01
PATIENCE_MAX_S: Final = 8.0
LINGER_RTTS: Final = 3  # an early PREPARE waits so long for acceptors beyond the quorum
HURRY_RTTS: Final = 1.25  # and this long when all else is done: who is not much slower than the others is still heard
HURRY_STEP_S: Final = 0.01  # between looks at whether there still is time
PHASE_RTTS: Final = 4  # a phase that met a rival waits so long for the acceptors that have not answered
PHASE_LEAST_S: Final = 0.05
BACKOFF_FIRST_S: Final = 0.1  # between tries while too few acceptors answer
BACKOFF_MAX_S: Final = 2.0
GRACE: Final = 0.25  # of the time that a quorum took
GRACE_STEP_S: Final = 0.005
_TIMER: Final = ""  # the key of a Gather's timer branch; backends' names are not empty
_GRACE: Final = " "

Hurry = Callable[[], bool]
"""Whether all else is done by now."""

MakeValue = Callable[[], "Change | Task"]
"""Called at most once, when it is one's turn to propose: returns the change, or a task that does. All that the change
names must lie on enough backends before it returns."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The value of a version. `mine`: it carries the op_id of the caller's change."""

    state: State
    mine: bool


@dataclass(frozen=True, slots=True)
class Journal:
    """What is persisted before the first ACCEPT of an own value: it may be decided from then on."""

    op_id: bytes
    base: State

    @property
    def v(self) -> int:
        return self.base.v + 1

    def encode(self) -> bytes:
        return u8(FORMAT) + self.op_id + self.base.encode()


def decode_journal(data: bytes) -> Journal:
    """What `Journal.encode` wrote."""
    r = Reader(data, "journal")
    check_format(r.u8(), "the journal")
    out = Journal(r.take(16), decode_state(r.take(STATE_BYTES)))
    r.end()
    return out


JOURNAL_KEY: Final = state_keys.JOURNAL_KEY.holding(Journal.encode, decode_journal)


class BehindFloorError(Exception):
    """A floor was met above the version that was worked on: it was decided long ago, and its logs may be gone."""


@dataclass(eq=False)
class _Attempt:
    """One proposer's work on one instance, until it is decided."""

    m: Participant
    instance: Instance
    make_value: MakeValue | None
    deadline: float
    op_id: bytes | None = None
    round: Round = NEVER
    value: State | None = None
    own: State | None = None
    skip: bytes | None = None
    stale: Round = NEVER
    defeats: int = 0
    failures: int = 0
    doubted: bool = False
    sent: bool = False
    relayed: set[tuple[Round, State]] = field(default_factory=set)

    def run(self) -> Task:
        """-> State decided, or None: only helping, and nothing was ever accepted."""
        i, m = self.instance, self.m
        self.round = i.take_prepared()
        if self.round == NEVER:
            i.begin()
        m.now = yield Now()  # an upload, or a sleep, may lie between `prepare` and this
        if self.make_value is not None and owns(m, i):
            yield from self._own_round()
        while True:
            decided = (yield from self._known()) or (yield from self._relayed())
            if decided is not None:
                return decided
            self._new_round()
            if self.value is None:
                if self.make_value is not None:
                    yield from self._learn_skip()
                if i.promises(self.round) < i.quorum:  # `prepare` may have seen to it
                    yield from self._phase(Kind.PREPARE)
                if i.promises(self.round) < i.quorum:
                    yield from self._lost(Kind.PREPARE)
                    continue
                self.value = yield from self._evidence()
                if self.value is None and self.make_value is None:
                    return None
                if self.value is None:
                    self.value = yield from self._own_value()
            if self.value == self.own:
                yield from self._journal()
            yield from self._phase(Kind.ACCEPT)
            m.now = yield Now()  # the machine may have slept meanwhile: then what was read before counts no more
            decided = i.decided()
            if decided is not None:
                return decided
            yield from self._lost(Kind.ACCEPT)

    def prepare(self, hurry: Hurry, *, reads: bool = True) -> Task:
        """Phase 1 alone, once. -> bool: a quorum promised, or there is no phase 1 to do."""
        i, m = self.instance, self.m
        prepared = i.take_prepared()
        m.now = yield Now()
        if prepared != NEVER and i.promises(prepared) >= i.quorum:  # instead of a look
            i.prepared = prepared
            return True
        if owns(m, i):
            return True
        i.begin()
        yield from self._learn_skip()  # remembered: the value will need it
        self._new_round()
        yield from self._phase(Kind.PREPARE, linger=hurry, reads=reads)
        if i.promises(self.round) < i.quorum:
            return False
        i.prepared = self.round
        return True

    def _known(self) -> Task:
        """-> the decided value if the logs show one, read again with births if these were not read."""
        i = self.instance
        yield from i.check_fork()
        if i.decided(births=False) is None:
            return None
        self.m.now = yield Now()
        if i.decided() is None:
            yield from self._look()
        self.doubted = i.decided() is None
        return i.decided()

    def _evidence(self) -> Task:
        """-> the value that must be proposed, or None. Who has two values of one round asks those beyond the quorum."""
        try:
            return self.instance.evidence()
        except ForkError:
            yield from self._phase(Kind.PREPARE, linger=lambda: False)
        return self.instance.evidence()

    def _relayed(self) -> Task:
        """Passes on what a closed log voted for, in its round, as that log votes in no other. Whoever proposed it, this
        is its message, sent once more. -> the state that this decides, or None."""
        i = self.instance
        closed = i.closed_vote()
        if closed is None or closed in self.relayed:
            return None
        self.relayed.add(closed)
        kept = self.round, self.value
        self.round, self.value = closed
        yield from self._phase(Kind.ACCEPT)
        self.round, self.value = kept
        return i.decided()

    def _new_round(self) -> None:
        """Keeps the round while it may still win, else takes one above all that were seen or used."""
        i, m = self.instance, self.m
        top = i.top_round()
        if self.round != NEVER and top <= self.round:
            return
        n = max(top.n, m.rounds_used.get(i.v, 0), 0) + 1
        if n > ROUND_MAX:
            raise self._no_quorum()
        m.use_round(i.v, n)
        self.round = Round(n, m.incarnation)
        self.value = None

    def _own_round(self) -> Task:
        """Takes round 0, which is ours alone: no phase 1. Its value is fixed before anything is sent, and for ever."""
        i, m = self.instance, self.m
        yield from self._learn_skip()
        value = yield from self._own_value()
        m.use_round(i.v, 0)
        self.round, self.value = Round(0, m.incarnation), value

    def _learn_skip(self) -> Task:
        """Looks up what a value of one's own will name as its `skip`."""
        if self.skip is None:
            self.skip = yield from learn_skip(self.m, self.instance)

    def _own_value(self) -> Task:
        if self.own is None:
            assert self.make_value is not None
            assert self.skip is not None
            before = yield Now()
            change = self.make_value()
            if isinstance(change, GeneratorType):
                change = yield from change
            assert isinstance(change, Change)
            self.deadline += (yield Now()) - before  # making a value may upload gigabytes
            assert self.op_id in (None, change.op_id)
            self.op_id = change.op_id
            self.m.adding = change.op_id, change.adding
            self.own = successor(self.instance.base, change, skip=self.skip, writer=self.m.incarnation)
            rules = self.instance.rules
            if why := rules.fault(self.own, *rules.carried(self.own, self.m.objects), change.riding):
                raise WorkspaceError(
                    f"this change contradicts the workspace's policy: {why}; nothing was changed",
                    next_step="What weakens the workspace takes its passphrase.",
                )
            self.m.keep_riding(self.own, rules.riding)
        return self.own

    def _journal(self) -> Task:
        if not self.sent:
            assert self.own is not None
            yield Persist(JOURNAL_KEY.name, Journal(self.own.op_id, self.instance.base).encode())
            self.sent = True

    def _phase(self, kind: Kind, *, linger: Hurry | None = None, reads: bool = True) -> Task:
        """Sends one message to all acceptors, until a quorum has it or cannot have it any more.

        `linger`: there is time until it says so. Waits a little for the rest too: the next message is quicker where
        this one is known to stand, and a quorum of five is had sooner than one of the same three. `reads`: see
        `append`.
        """
        i, m = self.instance, self.m
        check_admitted(m, i.devices, i.v)
        value = self.value if kind is Kind.ACCEPT else None
        now = yield Now()
        branches: dict[str, Task] = {}
        for acceptor in i.acceptors.values():
            branches[acceptor.name] = acceptor.append(kind, self.round, value, self.stale, reads=reads)
        branches[_TIMER] = _timer(m, PHASE_RTTS) if linger is None else _timer(m, LINGER_RTTS, linger)
        if not reads:
            branches[_GRACE] = _grace(lambda: i.promises(self.round) >= i.quorum or i.has_unread())

        def until(results: Mapping[str, Any]) -> bool:
            won = i.promises(self.round) >= i.quorum if kind is Kind.PREPARE else i.decided() is not None
            outcomes = [o for key, o in results.items() if key not in (_TIMER, _GRACE)]
            if not reads and (won or i.has_unread()) and _GRACE not in results:
                return len(outcomes) == len(i.acceptors)  # who comes a little late would be asked again at once
            contested = any(o.kind in ("met", "rejected", "closed") for o in outcomes)
            hopeless = sum(o.kind != "done" for o in outcomes) > len(i.acceptors) - i.quorum
            in_time = (won or contested) and _TIMER in results
            return (won and linger is None) or len(outcomes) == len(i.acceptors) or hopeless or in_time

        yield Gather(branches, until, deadline_s=max(self.deadline - now, 0.0))
        yield from i.check_fork()

    def _lost(self, kind: Kind) -> Task:
        """After a phase without a quorum: go on at once, let a rival finish, or wait for acceptors to come back."""
        i, m = self.instance, self.m
        if i.is_behind_floor():
            raise BehindFloorError
        yield from i.check_fork()
        self._check_possible()
        left = self.deadline - (yield Now())
        if left <= 0:
            raise self._no_quorum()
        if i.decided(births=False) is not None and not self.doubted:
            return  # to be looked at
        top = i.top_round()
        promised = [a.log.promised for a in i.acceptors.values() if a.log.usable and not a.log.spent]
        fresh = [r for r in promised if r.incarnation != m.incarnation and r > self.stale]
        if not fresh:
            pause = min(BACKOFF_FIRST_S * (1 << min(self.failures, 8)), BACKOFF_MAX_S, left)
            self.failures += 1
            yield Sleep(pause * (1 + (yield from _fraction())) / 2)
            return
        if kind is Kind.PREPARE and top == self.round and i.promises(top) > 0 and not i.owned(m.incarnation):
            self.stale = max(fresh)  # nobody holds a quorum, and ours is the highest round: the others wait for us
            return
        yield from self._let_finish(left)

    def _let_finish(self, left: float) -> Task:
        """Polls while a rival works; returns when it is decided, or when the rival was quiet for long enough."""
        i, m = self.instance, self.m
        patience = max(PATIENCE_LEAST_S, PATIENCE_RTTS * m.rtt_s) * (1 << min(self.defeats, 5))
        patience = min(patience, PATIENCE_MAX_S) * (1 + (yield from _fraction()))
        self.defeats += 1
        started = last = yield Now()
        seen = i.progress()
        while True:
            now = yield Now()
            if now - started >= left:
                raise self._no_quorum()
            if now - last >= patience:
                self.stale = i.top_round()
                return
            wait = max(PATIENCE_LEAST_S / 2, m.rtt_s) * (0.5 + (yield from _fraction()))
            yield Sleep(min(wait, patience, left))
            yield from self._look()
            if i.decided() is not None:
                return
            yield from i.check_fork()
            if i.progress() != seen:
                seen, last = i.progress(), (yield Now())

    def _look(self) -> Task:
        """Reads births and logs onwards, until a quorum answered or all is clear."""
        left = self.deadline - (yield Now())
        yield from look_around(self.m, self.instance, left)

    def _check_possible(self) -> None:
        """Raises when so many acceptors are out for good that no quorum can come about in this version."""
        i = self.instance
        ended = i.ended()
        out = sum(a.name in ended or a.barred is not None or a.is_out() for a in i.acceptors.values())
        if out <= len(i.acceptors) - i.quorum:
            return
        i.check_upgrade()
        i.check_rollback()
        raise self._no_quorum()

    def _no_quorum(self) -> NoQuorumError:
        return no_quorum(self.m, self.instance, sent=self.sent)


def owns(m: Participant, instance: Instance) -> bool:
    """True when round 0 of this instance is this process's to use, and nobody was seen at work on it.

    It belongs to the incarnation that proposed the value of v - 1 (`State.writer`), for one value. Neither is ever
    persisted: a process that was started again, from whatever copy of the disk, is another incarnation.
    """
    used = instance.v in m.rounds_used
    return instance.base.writer == m.incarnation and not used and instance.top_round() == NEVER


def propose(m: Participant, instance: Instance, make_value: MakeValue, op_id: bytes | None, deadline_s: float) -> Task:
    """Agrees the value of `instance`: one's own, or what somebody else proposed. -> Decided.

    `op_id`: of the change, where it is known beforehand: a value of an earlier process with it is then `mine` too.

    `NoQuorumError` when no quorum answers within `deadline_s` (not counting the making of the value): it says whether
    the own value may be decided all the same. `ForkError`, `UpgradeError`; `BehindFloorError`.
    """
    attempt = _Attempt(m, instance, make_value, (yield Now()) + deadline_s, op_id)
    state = yield from attempt.run()
    m.remember_state(instance.base)
    m.remember_state(state)
    return Decided(state, attempt.op_id is not None and state.op_id == attempt.op_id)


def prepare(m: Participant, instance: Instance, deadline_s: float, hurry: Hurry, *, reads: bool = True) -> Task:
    """Sends PREPARE ahead of the value, while the last of an upload is under way. -> bool: `propose` need not.

    Whatever comes of it, `propose` on the same instance goes on from there. A promise binds nobody to go on. `hurry`:
    whether the upload has ended. Not `reads`: what others wrote is left to the look that follows.
    """
    return (yield from _Attempt(m, instance, None, (yield Now()) + deadline_s).prepare(hurry, reads=reads))


def settle(m: Participant, instance: Instance, deadline_s: float) -> Task:
    """Helps an instance to its end without a value of one's own. -> the decided state; None: nothing to decide."""
    return (yield from _Attempt(m, instance, None, (yield Now()) + deadline_s).run())


def look_around(
    m: Participant,
    instance: Instance,
    deadline_s: float,
    *,
    everybody: bool = False,
    beyond: bool = False,
    grace: bool = False,
) -> Task:
    """Reads births and logs onwards. Ends when the value is known or a quorum was read, then waits for no one else.

    `everybody`: waits for the rest too, but for a few round trips at most. So does a look that meets votes which do not
    yet decide: who has the others may be about to answer, and would be asked again only after a pause. `beyond`: see
    `acceptors.look`. `grace`: waits for the rest a fourth longer than the quorum took: who comes a little late would be
    asked again by a push.
    """
    i = instance
    branches: dict[str, Task] = {a.name: a.look(beyond=beyond) for a in i.acceptors.values()}
    branches[_TIMER] = _timer(m, PHASE_RTTS)
    if grace:
        branches[_GRACE] = _grace(lambda: i.read() >= i.quorum)

    def until(results: Mapping[str, Any]) -> bool:
        ended = len(results) - (_TIMER in results) - (_GRACE in results)
        if ended == len(i.acceptors):
            return True
        if i.decided() is not None:  # whether there is more, a quorum tells in the same step
            return not beyond or ended >= i.quorum or _TIMER in results
        if i.read() < i.quorum or (grace and _GRACE not in results):
            return False
        return _TIMER in results or not (everybody or i.has_votes())

    results = yield Gather(branches, until, deadline_s=max(deadline_s, 0.0))
    i.asked_all |= _TIMER in results or results.keys() >= {a.name for a in i.acceptors.values()}
    m.now = yield Now()


def _timer(m: Participant, rtts: float, hurry: Hurry | None = None) -> Task:
    """Ends after so many round trips, as long as they turn out to be meanwhile; fewer where there is a `hurry`."""
    started = yield Now()
    while True:
        wanted = HURRY_RTTS if hurry is not None and hurry() else rtts
        left = started + max(PHASE_LEAST_S, wanted * m.rtt_s) - (yield Now())
        if left <= 0:
            return
        yield Sleep(left if hurry is None else min(left, HURRY_STEP_S))


def _grace(is_enough: Callable[[], bool]) -> Task:
    """Ends when enough have answered, and a little later."""
    started = now = yield Now()
    while not is_enough():
        yield Sleep(max(GRACE_STEP_S, (now - started) * GRACE))
        now = yield Now()
    yield Sleep((now - started) * GRACE)


def _fraction() -> Task:
    """-> a random number from 0 up to 1."""
    return int.from_bytes((yield Random(4)), "big") / (1 << 32)
