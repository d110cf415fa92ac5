"""Broken rules, by name: each takes one rule out of the product's code while its context is open.

The names are those of `docs/design/tla/README.md`: the same rule broken in a model, and here. A simulation must catch
each (`python -m simulation.simulator --mutants`). They replace functions of the product in this process, so they
are for tests alone.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from unittest import mock

import metasync
from metasync import config, consensus
from metasync.consensus import learner, proposer
from metasync.consensus.acceptors import log
from metasync.consensus.acceptors.log import LogAcceptor
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.instance import Instance
from metasync.consensus.proposer import JOURNAL_KEY, Journal
from metasync.consensus.records import log_replay
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import NEVER
from metasync.consensus.records.state import ZERO_HASH, State
from metasync.keys.derive import sha256
from metasync.runtime.effects import Op, Persist, Reply, Task
from metasync.session import connections
from simulation.network import SimStore
from simulation.plan import Plan, Pounce
from simulation.seeds import PUSHES_BRIEF


@dataclass(frozen=True)
class Mutant:
    """A rule and how it is broken. `broken()` breaks it for as long as the context is open.

    `fits`: the plan as it is run, or None for one that cannot show anything. `beside`: what a failure says that another
    rule explains which had to be broken along with this one.
    """

    rule: str
    broken: Callable[[], AbstractContextManager[object]]
    fits: Callable[[Plan], Plan | None] = lambda plan: plan
    beside: str = ""


MUTANTS: Final[dict[str, Mutant]] = {}

_READ_BY_SOME: Final = "a skipped version that some device could read: the insider's are read by nobody"

MISSING: Final[Mapping[str, str]] = {
    "trim-new-ids": "a device lists only the storage ids that the config it sees names",
    **dict.fromkeys(
        ("skip-own-base", "skip-no-return", "skip-not-repeated", "skip-forgets", "skip-oldest", "skip-omitted"),
        _READ_BY_SOME,
    ),
    "skip-unsigned": "the insider writes no snapshots that open",
    "skip-late": "between the look and the proposal another device would have to get past what none can read",
    "era-no-merge": "not caught in four minutes",
    "era-any-ring": "another ring of that epoch opens the record only where nothing is encrypted",
    "era-two-records": "two restarts that reach no backend in common",
    "era-own-record": "the same, and caught in none of 120 plans",
    "invite-newcomer": "taken in by its certificate: caught in one of some hundred plans with invitations",
    "void-newest": "who works on a version has its base for the newest state: both device sets are one",
    "newest-config": "the same of both configs",
}  # fmt: skip
"""Mutants of the models whose rule is not in the code yet, or not reached by the simulator, and why."""


def _load_all() -> None:
    """Loads what a command would only load when it comes to it: a module that takes a broken rule over keeps it."""
    apart = ("metasync.__main__", "metasync.backends.", "metasync.testing.")
    for found in pkgutil.walk_packages(metasync.__path__, "metasync."):
        if not found.name.startswith(apart):
            importlib.import_module(found.name)


_load_all()


def needs(*features: str) -> Callable[[Plan], Plan | None]:
    """Plans that have one of these kinds of trouble at all."""
    return lambda plan: plan if set(features) & set(plan.features) else None


@contextlib.contextmanager
def rewritten(owner: Any, name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """A function, or a method, with parts of its text in the place of others, wherever it is known by its name."""
    function = inspect.unwrap(getattr(owner, name))
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{name} has changed: {old!r} is not in it")
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + text, f"<{name}>", "exec"), function.__globals__, made)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(owner, name, made[name]))
        for module in [m for n, m in sys.modules.items() if n.startswith("metasync.") and m is not owner]:
            if getattr(module, name, None) is function:
                stack.enter_context(mock.patch.object(module, name, made[name]))
        yield


def mutant(
    name: str, rule: str, fits: Callable[[Plan], Plan | None] = lambda plan: plan, beside: str = ""
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Makes what a generator does before and after its `yield` a mutant."""

    def keep(body: Callable[[], Iterator[None]]) -> None:
        MUTANTS[name] = Mutant(rule, contextlib.contextmanager(body), fits, beside)

    return keep


@mutant("no-promise", "an acceptor accepts below the round it promised")
def _no_promise() -> Iterator[None]:
    def effective(promised: Round, votes: Mapping[Round, State], rnd: Round, value: State, base: State) -> bool:
        return (rnd.n != 0 or rnd.incarnation == base.writer) and votes.get(rnd, value) == value

    asks = (
        "log.promised > rnd",
        "log.promised > rnd and kind is Kind.PREPARE",
    )  # before an entry is written, it is asked too
    with mock.patch.object(log_replay, "accept_effective", effective), rewritten(LogAcceptor, "_known_outcome", asks):
        yield


def _swapped(plan: Plan, *, dies: bool = False) -> Plan:
    """The first vote of many versions stands on a provider that is alone, and then hidden: its proposer tries again.

    `dies`: it is started anew before that.
    """
    kinds = ("swap", "crash") if dies else ("swap",)
    many = range(4, 30, 5) if plan.pushes > PUSHES_BRIEF[-1] + 1 else range(4, 10, 2)
    pounces = tuple(Pounce(v, "vote", kind, 40.0 + v % 3, 1.0) for v in many for kind in kinds)
    return replace(plan, pounces=(*plan.pounces, *pounces))


@mutant(
    "reuse-incarnation", "a process that was started again uses the incarnation of the one before",
    partial(_swapped, dies=True),
)  # fmt: skip
def _reuse_incarnation() -> Iterator[None]:
    real = consensus.Group

    def group(keys: Any, identity: Any, *rest: Any, incarnation: bytes, **more: Any) -> Any:
        return real(keys, identity, *rest, incarnation=sha256(identity.device_id)[:16], **more)

    with mock.patch.object(connections, "Group", group):
        yield


@mutant("small-quorum", "a quorum is so small that two of them need not share an acceptor")
def _small_quorum() -> Iterator[None]:
    with mock.patch.object(config, "quorum", lambda n, f: max(1, n // 2)):
        yield


@mutant("no-evidence", "the proposer sends its own value in spite of accepted ones that it saw")
def _no_evidence() -> Iterator[None]:
    def evidence(self: Instance, *, either: bool = False) -> State | None:
        return None

    with mock.patch.object(Instance, "evidence", evidence):
        yield


@mutant("low-evidence", "the proposer takes the value of the lowest accepted round, not of the highest")
def _low_evidence() -> Iterator[None]:
    def evidence(self: Instance, *, either: bool = False) -> State | None:
        votes = [(rnd, value) for a in self.acceptors.values() for rnd, value in a.log.votes.items()]
        return min(votes, key=lambda vote: vote[0])[1] if votes else None

    with mock.patch.object(Instance, "evidence", evidence):
        yield


@mutant("any-owner", "round 0 may be used by whoever knows the base")
def _any_owner() -> Iterator[None]:
    def owns(m: Any, instance: Instance) -> bool:
        return instance.v not in m.rounds_used and instance.top_round() == NEVER

    def effective(promised: Round, votes: Mapping[Round, State], rnd: Round, value: State, base: State) -> bool:
        return rnd >= promised and votes.get(rnd, value) == value

    # Two owners' rounds 0 are ordered by their incarnations; what is missing is that there is one at most.
    with mock.patch.object(proposer, "owns", owns), mock.patch.object(log_replay, "accept_effective", effective):
        yield


@mutant("owner-again", "the owner uses round 0 of one version for two values", _swapped)
def _owner_again() -> Iterator[None]:
    def owns(m: Any, instance: Instance) -> bool:
        return bool(instance.base.writer == m.incarnation)

    with mock.patch.object(proposer, "owns", owns):
        yield


@mutant("one-vote", "a learner takes one vote for a decision")
def _one_vote() -> Iterator[None]:
    def decided(self: Instance, *, births: bool = True) -> State | None:
        for acceptor in self.acceptors.values():
            if acceptor.log.usable and acceptor.log.accepted and (not births or acceptor.born):
                return acceptor.log.accepted[1]
        return None

    with mock.patch.object(Instance, "decided", decided):
        yield


@mutant("open-base", "version v+1 is entered on a value of v that was accepted somewhere, not decided")
def _open_base() -> Iterator[None]:
    real = learner._resolve

    def resolve(m: Any, instance: Instance, deadline: float) -> Task:
        seen = instance.evidence()
        return seen if seen is not None else (yield from real(m, instance, deadline))

    with mock.patch.object(learner, "_resolve", resolve):
        yield


@mutant("climb-blind", "a create that found its index taken is sent to the next index without reading what it met")
def _climb_blind() -> Iterator[None]:
    def read_taken(self: LogAcceptor) -> Task:
        self.log.hashes.append(ZERO_HASH)
        return None
        yield

    with mock.patch.object(LogAcceptor, "_read_taken", read_taken):
        yield


@mutant("overwrite", "the backend's create overwrites")
def _overwrite() -> Iterator[None]:
    def create(self: SimStore, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    with mock.patch.object(SimStore, "create", create):
        yield


@mutant("exists-is-mine", '"taken" is read as "mine, and effective"')
def _exists_is_mine() -> Iterator[None]:
    def create(m: Any, op: Op) -> Task:
        reply: Reply = yield op
        return Reply(True) if reply.error is None else reply

    with mock.patch.object(log, "_create", create):
        yield


@mutant("jump-index", "an entry is created beyond the first unread index")
def _jump_index() -> Iterator[None]:
    real = LogAcceptor.append

    def append(self: LogAcceptor, kind: Kind, rnd: Round, value: Any, stale: Round, **options: Any) -> Task:
        if self.log.next_idx == 0:
            self.log.hashes.append(ZERO_HASH)
        return (yield from real(self, kind, rnd, value, stale, **options))

    with mock.patch.object(LogAcceptor, "append", append):
        yield


@mutant("no-birth", "births are not checked: a wiped root promises and votes")
def _no_birth() -> Iterator[None]:
    def read_birth(self: LogAcceptor) -> Task:
        self.born = True
        return True
        yield

    with mock.patch.object(LogAcceptor, "read_birth", read_birth):
        yield


@mutant("no-birth-promise", "births are checked beside ACCEPT only, not beside PREPARE")
def _no_birth_promise() -> Iterator[None]:
    def promised(self: Instance, a: AcceptorView, rnd: Round) -> bool:
        return a.log.usable and a.log.closed is None and a.log.promised == rnd

    with mock.patch.object(Instance, "_promised", promised):
        yield


@mutant("no-journal", "nothing is noted down before the first ACCEPT")
def _no_journal() -> Iterator[None]:
    def journal(self: Any) -> Task:
        self.sent = True
        yield Persist(JOURNAL_KEY.name + " nobody reads", Journal(self.own.op_id, self.instance.base).encode())

    with mock.patch.object(proposer._Attempt, "_journal", journal):
        yield


@mutant("no-settle", "a value that may be decided is not helped to its end before a read says what is newest")
def _no_settle() -> Iterator[None]:
    def resolve(m: Any, instance: Instance, deadline: float) -> Task:
        return instance.decided()
        yield

    with mock.patch.object(learner, "_resolve", resolve):
        yield


@mutant("half-quorum-read", "a read says what is newest by fewer acceptors than a quorum")
def _half_quorum_read() -> Iterator[None]:
    def quiet(self: Instance) -> bool:
        return any(a.log.usable and a.born and a.ended and not a.log.votes for a in self.acceptors.values())

    with mock.patch.object(Instance, "quiet", quiet):
        yield


__all__ = ["MISSING", "MUTANTS", "Mutant", "mutant", "needs", "rewritten"]
