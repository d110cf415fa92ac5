"""Changes of the config: the steps around the decision that rule out an old quorum (consensus.md, rule 4.1).

Theory of operation. Instance v runs on the config that state v - 1 names, so a new config is an ordinary value: it is
decided by the old acceptors, and version v + 1 is the new ones' business. Four steps:

    prepare  the new root is born, and all that state v - 1 and its config name lies on enough of the new acceptors
    decide   v, by the old ones (`proposer`)
    fence    DECIDED(v) closes the logs of v, on a quorum of the old acceptors and on so many of those that stay that
             every old quorum meets one: a proposer of v who wakes up finds the end of it
    confirm  an empty version v + 1 on the new config: it works, and everybody passes to it

Whoever proposes v + 1 makes sure of the fence first, because the one who decided v may have died before it. A removed
acceptor may be emptied any time after the fence: it then shows no birth, and what was read of it before counts no
longer than `instance.DELTA_S`.

An acceptor that joins knows nothing of older versions, and one day none is left that does. So it is given, beside the
objects of the present, the states on the way back that later versions need for their `skip` hash (`chain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

from metasync.config import Config
from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.chain import check_admitted, fetch_state, learn_skip
from metasync.consensus.instance import PAST_IT, Instance, no_quorum
from metasync.consensus.objects import (
    CONST_BYTES_MAX,
    META_BYTES_MAX,
    Copy,
    const_path,
    created,
    get_anywhere,
    meta_path,
    named,
    sealed,
)
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.proposer import look_around
from metasync.consensus.records.birth import (
    GENESIS_BYTES_MAX,
    birth_path,
    encode_birth,
    genesis_path,
    open_genesis,
    seal_genesis_again,
)
from metasync.consensus.records.entry import Kind, Round
from metasync.consensus.records.log_replay import NEVER, ROUND_MAX
from metasync.consensus.records.state import NOTHING, ZERO_ID, Ref, State, skip_version
from metasync.errors import BackendError, FormatError, NoQuorumError, UsageError
from metasync.keys.derive import RecordKind
from metasync.runtime.effects import Gather, Now, Op, Random, Reply, Sleep, Task, patience_s

JOIN_TRIES: Final = 3  # of each write that a new root needs
PAUSE_S: Final = 0.1  # between tries
FENCE_PAUSE_MAX_S: Final = 2.0
MISSED_MAX: Final = 64  # versions that an acceptor is told of
WHOLE: Final = 2  # versions in a row that no acceptor missed, and older ones are not looked at
REST_S: Final = 2.0  # for the fence on those that are not needed: removed ones, and slow ones


def check_step(old: Config, new: Config) -> None:
    """`UsageError` when no single step leads from one config to the other: too few acceptors would stay."""
    stay = {a.acceptor_id for _, a in old.acceptors} & {a.acceptor_id for _, a in new.acceptors}
    if len(stay) < old.quorum:
        raise UsageError(
            f"{len(stay)} of {old.n} voting backends would stay, and {old.quorum} must in one step",
            next_step="Add or remove one backend after the other; add a new one before you remove one of the last two.",
        )
    if new.n < 3 * new.f + 1:
        raise UsageError(
            f"{new.n} backends would vote, and the workspace allows for {new.f} that lies, which takes {3 * new.f + 1}",
            next_step="Add another backend that votes first.",
        )
    new.check()


def prepare(
    m: Participant, instance: Instance, new: Config, births: Mapping[bytes, bytes], refs: Iterable[Ref]
) -> Task:
    """Makes the acceptors of `new` ready to go on from `instance.base`. `births`: nonces of those that join.

    `refs`: the meta objects that the base names, those inside its index too. Ends when every new acceptor, and
    n - q + 1 + f of all, hold each object. `BackendError` naming a new one that failed, `NoQuorumError`.
    """
    base = instance.base
    members = {a.acceptor_id: m.links[a.acceptor_id] for _, a in new.acceptors if a.acceptor_id in m.links}
    for acceptor_id, nonce in births.items():
        yield from created(members[acceptor_id], birth_path(acceptor_id), encode_birth(acceptor_id, nonce))
    first = yield from give_genesis(m, births, members)
    read_beside = [new.prev_config] if new.prev_config is not None else []
    names = sorted({base.config, base.devices, first.config, first.devices, *read_beside})
    for name in names:
        yield from _copy(m, members, new, births.keys(), partial(const_path, name=name.hex()), name, CONST_BYTES_MAX)
    for ref in sorted({r for r in refs if r != NOTHING}):
        yield from _copy(m, members, new, births.keys(), partial(meta_path, ref=ref), ref.hash, META_BYTES_MAX)
    state = base
    while True:
        yield from give_state(m, members, new, births.keys(), state)
        if not state.v:
            return
        state = yield from fetch_state(m, instance, skip_version(state.v), state.skip, state.epoch)


def put_config(m: Participant, base: State, old: Config, new: Config) -> Task:
    """Stores a new config where the old and the new acceptors find it. -> its hash."""
    digest, data = yield from sealed(m.keys, RecordKind.CONST, new.encode, era=base.era, epoch=base.epoch)
    m.keep_object(digest, data)
    both = sorted({a.acceptor_id for c in (old, new) for _, a in c.acceptors})
    got = yield from spread({a: m.links[a] for a in both if a in m.links}, lambda a: const_path(a, digest.hex()), data)
    for config in (old, new):
        _enough(config, got, "the new config")
    return digest


def foreseen(m: Participant, enter: Callable[..., Task], base: State, new: Config) -> Task:
    """-> `unclosable` for a change to `new` that would be made on `base`, by what can be read now."""
    instance: Instance = yield from enter(base)
    yield from look_around(m, instance, REST_S, everybody=True)
    return unclosable(instance, new)


def fence(m: Participant, instance: Instance, value: State, new: Config, deadline_s: float) -> Task:
    """Closes the logs of a version with DECIDED(`value`), which is known to be decided, on all acceptors it can.

    On a quorum, and on so many of those that stay in `new` that every quorum meets one: from then on nobody whom
    `value` excludes, and nobody who slept, can have another value accepted. DECIDED is no vote, so these first vote for
    `value` in one round. `NoQuorumError` when too few acceptors can be reached, `ExcludedError` when this device was
    not one of those that could decide the version. A fence that can never be had is told so at once.
    """
    if value.hash in m.fenced:
        return
    check_admitted(m, instance.devices, instance.v)
    deadline = (yield Now()) + deadline_s
    acceptors = instance.acceptors
    enough = partial(_is_enough, instance, value, {a.acceptor_id for _, a in new.acceptors} & acceptors.keys())
    instance.begin()
    pause = PAUSE_S

    def everywhere(closed: bool, ask: Callable[[AcceptorView], Task]) -> Task:
        def until(results: Mapping[str, Any]) -> bool:
            return len(results) >= len(acceptors) or (enough(closed=closed) and "" in results)

        branches: dict[str, Task] = {a.name: ask(a) for a in acceptors.values()}
        left = deadline - (yield Now())
        yield Gather({**branches, "": _timer(REST_S)}, until, deadline_s=max(left, 0.0))

    while True:
        if instance.round_of(value) == NEVER:
            yield from look_around(m, instance, REST_S, everybody=True)
        if (rnd := instance.round_of(value)) != NEVER:
            yield from everywhere(False, partial(_send, kind=Kind.ACCEPT, rnd=rnd, value=value))
        if not enough(closed=False):
            rnd = _new_round(m, instance)
            yield from everywhere(False, partial(_send, kind=Kind.PREPARE, rnd=rnd, value=None))
            if instance.promises(rnd) >= instance.quorum:
                yield from everywhere(False, partial(_send, kind=Kind.ACCEPT, rnd=rnd, value=value))
        if enough(closed=False):
            yield from everywhere(True, partial(_close, value=value))
        if enough(closed=True):
            m.fenced.add(value.hash)
            return
        if reasons := unclosable(instance, new, value):
            raise never_closed(instance, reasons)
        left = deadline - (yield Now())
        if left <= 0:
            raise no_quorum(m, instance)
        yield Sleep(min(pause, left))
        pause = min(2 * pause, FENCE_PAUSE_MAX_S)


def pass_on(m: Participant, enter: Callable[..., Task], state: State, deadline_s: float) -> Task:
    """-> ids of the acceptors that know a decided state by themselves: a restart with any of them, whatever becomes of
    the others, goes on from it or from a later one (consensus.md, rule 6.5).

    Their own logs show a vote for it. Those that lack it get the vote that decided it once more, and so for versions
    before it that they missed, `MISSED_MAX` in all: a restart must find its way from an older one. Nobody is waited for
    long.
    """
    deadline = (yield Now()) + deadline_s
    at: Instance = yield from enter(state, ahead=True)
    known = {a.acceptor_id for _, a in at.config.acceptors}
    whole = 0  # versions in a row that nobody missed
    for step in range(MISSED_MAX):
        if not state.v:
            break
        before: State = yield from fetch_state(m, at, state.v - 1, state.prev, state.epoch)
        if before.era != state.era:
            break  # the first state of an era is on all acceptors that are left
        at = yield from enter(before, ahead=True)
        if not step:
            known &= at.acceptors.keys()
        views = [at.acceptors[a] for a in sorted(known & at.acceptors.keys())]
        missed = yield from _passed_on(m, at, state, views, deadline)
        known -= {a.acceptor_id for a in views if not _shows(a, state)}
        whole = 0 if missed else whole + 1
        if whole == WHOLE:
            break
        state = before
    return known


def _shows(acceptor: AcceptorView, state: State) -> bool:
    return acceptor.born and acceptor.log.usable and state in acceptor.log.votes.values()


def _passed_on(
    m: Participant, instance: Instance, state: State, acceptors: Sequence[AcceptorView], deadline: float
) -> Task:
    """Has these vote for the state that is decided for the version: in the round that decided it, or where they have
    promised a higher one, in a new round. -> how many had not.
    """

    def lacking() -> list[AcceptorView]:
        return [a for a in acceptors if not _shows(a, state)]

    def ask(some: Iterable[AcceptorView], kind: Kind, rnd: Round, value: State | None) -> Task:
        left = max(deadline - (yield Now()), 0.0)
        yield Gather({a.name: _send(a, kind, rnd, value) for a in some}, deadline_s=min(REST_S, left))

    instance.begin()
    yield Gather({a.name: a.look() for a in instance.acceptors.values()}, deadline_s=REST_S)
    m.now = yield Now()
    missed = len(lacking())
    if missed and instance.devices.key_of(m.identity.device_id, m.certificate) is not None:
        yield from learn_skip(m, instance)
        if (rnd := instance.round_of(state)) != NEVER:
            yield from ask(lacking(), Kind.ACCEPT, rnd, state)
        if any(a.log.usable and a.log.promised > rnd and not a.log.spent for a in lacking()):
            rnd = _new_round(m, instance)
            yield from ask(acceptors, Kind.PREPARE, rnd, None)
            yield from ask(acceptors, Kind.ACCEPT, rnd, state)
    return missed


def _is_enough(instance: Instance, value: State, stay: Set[bytes], *, closed: bool) -> bool:
    """Whether so many acceptors that were heard in this operation voted in one round, and are closed.

    Before they are closed: can be. A device may have appended a vote for another value meanwhile, in a higher round.
    """
    usable = [a for a in instance.acceptors.values() if a.born and a.log.usable]
    heard = [a for a in usable if a.log.closed == value or (not closed and a.log.closes(value))]
    for rnd in {rnd for a in heard for rnd in a.log.votes}:
        held = {a.acceptor_id for a in heard if a.log.votes.get(rnd) == value}
        if _suffices(instance, stay, held):
            return True
    return False


def unclosable(instance: Instance, new: Config, value: State | None = None) -> dict[str, str]:
    """Why a change to `new` can have no fence in this version any more, by acceptor that is ended in it; {} if it can.

    `value`: what was decided, None before that. A removed backend's log counts for the quorum and not for those that
    stay, so that fewer ended acceptors than end the version may make its fence impossible (consensus.md, rule 5.5).
    """
    views = instance.acceptors
    stay = {a.acceptor_id for _, a in new.acceptors} & views.keys()
    ended = instance.ended()
    able = {a.acceptor_id for a in views.values() if a.name not in ended and a.log.closed is None}

    def closable(rnd: Round) -> set[bytes]:
        there = {
            a.acceptor_id
            for a in views.values()
            if value is not None and a.log.votes.get(rnd) == value and a.log.closes(value)
        }
        return there | {a for a in able if views[a].log.promised <= rnd}

    rounds = {rnd for a in views.values() for rnd in a.log.votes}
    if any(_suffices(instance, stay, some) for some in (able, *map(closable, rounds))):
        return {}
    return ended


def never_closed(instance: Instance, reasons: Mapping[str, str]) -> NoQuorumError:
    """What to tell where a change can have no fence any more, so that nobody can go on from it."""
    told = "; ".join(f"{name}: {why.removeprefix(f'{name}: ')}" for name, why in sorted(reasons.items()))
    return NoQuorumError(
        f"version {instance.v} changed the backends, and cannot be closed any more: what lies in its logs leaves too"
        f" few of those that stay ({told})",
        next_step=PAST_IT,
    )


def _suffices(instance: Instance, stay: Set[bytes], held: Set[bytes]) -> bool:
    """Whether a fence stands that is on these: on a quorum, and on one of those that stay in each quorum."""
    every_quorum = len(instance.acceptors) - instance.quorum + 1 + instance.config.f
    return len(held) >= instance.quorum and len(held & stay) >= min(every_quorum, len(stay))


def _new_round(m: Participant, instance: Instance) -> Round:
    """A round of this process, above all that any acceptor was seen to have promised. `NoQuorumError` without one."""
    n = max(instance.top_round().n, m.rounds_used.get(instance.v, 0), 0) + 1
    if n > ROUND_MAX:
        raise no_quorum(m, instance)
    m.rounds_used[instance.v] = n
    return Round(n, m.incarnation)


def _send(acceptor: AcceptorView, kind: Kind, rnd: Round, value: State | None) -> Task:
    return acceptor.append(kind, rnd, value, rnd)


def _close(acceptor: AcceptorView, value: State) -> Task:
    yield from acceptor.append(Kind.DECIDED, Round(0, ZERO_ID), value, NEVER)
    if not acceptor.born:  # closed as is known already: then that is looked at
        yield from acceptor.look()


def _timer(seconds: float) -> Task:
    yield Sleep(seconds)


def give_genesis(m: Participant, births: Mapping[bytes, bytes], members: Mapping[bytes, str]) -> Task:
    """-> state 0; the new acceptors hold it too."""

    def opener(a: bytes) -> Callable[[bytes], tuple[State, bytes, bytes]]:
        return lambda data: (open_genesis(m.keys, data, a), a, data)

    opened = [Copy(link, genesis_path(a), opener(a)) for a, link in m.links.items() if a not in births]
    first, owner, data = yield from get_anywhere(opened, GENESIS_BYTES_MAX, "the genesis")
    for a in births:
        again = seal_genesis_again(m.keys, data, owner, a, (yield Random(32)))

        def is_it(there: bytes, a: bytes = a) -> bool:
            try:
                return bool(open_genesis(m.keys, there, a) == first)
            except FormatError:
                return False

        yield from created(members[a], genesis_path(a), again, is_it)
    return first


def give_state(
    m: Participant, members: Mapping[bytes, str], new: Config, joining: Iterable[bytes], state: State
) -> Task:
    """A state as an object of its own. Its name tells which it is, so copies may differ in their bytes."""
    name = m.keys.state_name(state.hash)
    _, data = yield from sealed(m.keys, RecordKind.STATE, state.encode, era=state.era, epoch=state.epoch)
    got = yield from spread(members, lambda a: const_path(a, name), data)
    _check_joined(joining, members, got, "a state")
    _enough(new, got, "a state")


def _copy(
    m: Participant,
    members: Mapping[bytes, str],
    new: Config,
    joining: Iterable[bytes],
    path_of: Callable[[bytes], str],
    digest: bytes,
    most: int,
) -> Task:
    """Brings an object to all acceptors that lack it, byte for byte as others hold it: its name is its hash."""
    asked = yield Gather({a.hex(): _has(link, path_of(a)) for a, link in members.items()})
    have = {a: "" for a in members if asked[a.hex()] is True}
    lacking = {a: link for a, link in members.items() if a not in have}
    if lacking:
        copies = [Copy(link, path_of(a), partial(named, digest)) for a, link in m.links.items()]
        data = yield from get_anywhere(copies, most, "an object that the newest version names")
        got = yield from spread(lacking, path_of, data)
        _check_joined(joining, members, {**got, **have}, "an object of the newest version")
        have.update({a: "" for a, why in got.items() if not why})
    _enough(new, {**dict.fromkeys(members, "no copy"), **have}, "an object of the newest version")


def _has(link: str, path: str) -> Task:
    reply: Reply = yield Op(link, "stat", path, timeout_s=OP_TIMEOUT_S)
    return reply.error is None and reply.value > 0


def spread(targets: Mapping[bytes, str], path_of: Callable[[bytes], str], data: bytes) -> Task:
    """Puts one object on all of them. -> {acceptor: "" or why not}."""

    def one(link: str, path: str) -> Task:
        why = ""
        for attempt in range(JOIN_TRIES):
            reply: Reply = yield Op(link, "put", path, data, timeout_s=patience_s(len(data)))
            if reply.error is None:
                return ""
            why = reply.error.message
            if not reply.error.retryable:
                break
            yield Sleep(PAUSE_S * (1 << attempt))
        return why

    got: Mapping[str, str] = yield Gather({a.hex(): one(link, path_of(a)) for a, link in targets.items()})
    return {a: got[a.hex()] for a in targets}


def _enough(config: Config, got: Mapping[bytes, str], what: str) -> None:
    """Raises unless n - q + 1 + f acceptors of a config confirmed; `got` is what `spread` returned."""
    held = sum(got.get(a.acceptor_id, "no way to it") == "" for _, a in config.acceptors)
    if held < config.meta_copies:
        names = {a.acceptor_id: b.name for b, a in config.acceptors}
        reasons = "; ".join(f"{names[a]}: {why}" for a, why in got.items() if why and a in names)
        raise NoQuorumError(
            f"{what}: {held} of {config.meta_copies} backends confirmed it ({reasons or 'too few are linked'})",
            next_step="run again when the backends are reachable",
        )


def _check_joined(joining: Iterable[bytes], members: Mapping[bytes, str], got: Mapping[bytes, str], what: str) -> None:
    for a in joining:
        if got[a]:
            raise BackendError(
                f"{members[a]}: it cannot take {what}: {got[a]}",
                next_step="Nothing was changed. Check the new backend, then run again.",
            )
