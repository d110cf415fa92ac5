"""Beginning a new era: what `metasync recover` writes when a majority of acceptors is lost, or a version was ended
(consensus.md, rules 5.2 and 5.5).

Theory of operation. Nobody can tell any more what the lost acceptors decided last. So nothing of the old era is decided
here: the new one goes on from the newest state *known decided*, by what the reachable acceptors show or this device
knows itself; the highest value they accepted after it is carried as *content* of the first state. The steps:

    look     at the backends that are left, for a record of an earlier try; if there is one, that is the record
    retire   the old acceptors within reach: a tombstone replaces their birth, and whoever reads it votes there no more
    read     what they hold. What lands there from now on is counted by nobody who reads the birth after it; a proposer
             that read it before may decide a value in the old era, and then merges it as a change of its own
    furnish  new acceptors, under new ids, with all that the first state names; nothing refers to them yet
    claim    the record, created at one backend after the other in the order of their ids: whoever finds another one
             there follows that. From the first one on the era stands. What is no record is overwritten then
    tell     the tombstones, now with the record's digest

A crash before the claim leaves acceptors that nothing names, and tombstones that the next run reads past; one after it,
a record that the next run finds, and spreads. So no crash makes a second record. Two admins that reach no backend in
common do, and that is told (`eras`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from metasync.config import Config
from metasync.consensus import eras, learner
from metasync.consensus.chain import ancestor, fetch_state
from metasync.consensus.instance import Instance
from metasync.consensus.objects import Copy, const_path, created, get_anywhere, meta_path, sealed
from metasync.consensus.participant import OP_TIMEOUT_S, Participant
from metasync.consensus.proposer import look_around
from metasync.consensus.reconfigure import give_genesis, give_state, spread, unclosable
from metasync.consensus.records.birth import (
    GENESIS_BYTES_MAX,
    birth_matches,
    birth_path,
    encode_birth,
    genesis_path,
    open_genesis,
)
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import ENTRY_BYTES_MAX
from metasync.consensus.records.era import (
    RECORD_BYTES_MAX,
    EraRecord,
    Tombstone,
    encode_tombstone,
    era_path,
    open_record,
    read_tombstone,
    seal_record,
)
from metasync.consensus.records.state import NOTHING, ZERO_HASH, ZERO_ID, Ref, State, skip_version
from metasync.errors import BackendError, DamagedError, ForkError, NoQuorumError
from metasync.keys.derive import RecordKind
from metasync.keys.policy import AdminChain
from metasync.runtime.effects import Gather, Op, Random, Reply, Task, patience_s

READ_S: Final = 15.0  # for what the acceptors hold
TRIES: Final = 3  # of each request that must succeed
STEPS_MAX: Final = 1000  # versions that one acceptor may show to be decided beyond its base; 1 as a rule

Enter = Callable[[State], Task]


@dataclass(frozen=True)
class Held:
    """The end of an era: its newest decided state, and the value accepted after it, if any."""

    ended: State
    carried: State | None


@dataclass(frozen=True)
class Content:
    """The content of a new era's first state, as plaintext to be stored on the new acceptors.

    `state`: `Held.carried`, or else `Held.ended`; its master, generations and keys are taken over. `births`: nonces of
    the new acceptors. `make_root`: makes the index root from its segments' names; None: an empty index. `op_id`: for a
    first state that carries nothing.
    """

    config: Config
    births: Mapping[bytes, bytes]
    devices: bytes
    state: State
    op_id: bytes
    segments: Sequence[bytes] = ()
    make_root: Callable[[Sequence[Ref]], bytes] | None = None
    retained: bytes = b""
    carried: State | None = None
    without: tuple[str, ...] = ()
    at_ns: int = 0
    links: Mapping[bytes, str] = field(default_factory=dict)  # ways to the new acceptors


def end_era(m: Participant, enter: Enter, known: State, lost: Collection[bytes]) -> Task:
    """Ends the era of `known`, a decided state, without the backends `lost` (ids). -> Held, for `begin`; or EraRecord.

    The latter if it was ended before: then its record lies on all that are left. `BackendError`, `ForkError`.
    """
    number = known.era + 1
    while True:
        newest = known
        if not m.tombstones:  # else they are read below, with what they say of the era that ended
            m.recovering = number
            try:
                newest = yield from learner.newest_seen(m, enter, known, READ_S)
            finally:
                m.recovering = 0
        instance: Instance = yield from enter(newest)
        left = _left(m, instance.config, lost)
        record: EraRecord | None = yield from eras.find_record(m, number, m.links.values(), known)
        if record is not None and not eras.is_withdrawn(m, known, record):
            ids = {b.backend_id for b, _ in record.config.acceptors}
            order = [left[a.acceptor_id] for b, a in instance.config.acceptors if b.backend_id in ids]
            record = yield from claim(m, record, order, newest)
            yield from retire(m, number, instance.config, left, record.digest)
            return record
        yield from retire(m, number, instance.config, left)
        what: Held = yield from held(m, enter, newest)
        _check_read((yield from enter(what.ended)), left)
        if what.ended.config == newest.config:
            return what
        known = what.ended  # decided meanwhile, with other acceptors


def _check_read(instance: Instance, left: Collection[bytes]) -> None:
    """Raises where an acceptor that is left could not be read to its end just now.

    It may alone have a vote for the version whose FENCE let go what it has deleted since (consensus.md, rule 6.5).
    """
    views = [instance.acceptors[a] for a in left if a in instance.acceptors]
    usable = [a for a in views if a.log.usable and a.floor is None and not a.memory.rolled_back]
    unread = sorted(a.name for a in usable if not a.ended)
    if unread:
        raise NoQuorumError(
            f"what {', '.join(unread)} took of version {instance.v} cannot be read now",
            next_step="Run again when it answers.",
        )


def _left(m: Participant, config: Config, lost: Collection[bytes]) -> dict[bytes, str]:
    """The links of the acceptors that are not lost. `NoQuorumError` if one has none."""
    left = [(b.name, a.acceptor_id) for b, a in config.acceptors if b.backend_id not in lost]
    unlinked = sorted(name for name, a in left if a not in m.links)
    if unlinked or not left:
        raise NoQuorumError(
            f"this device has no way to {', '.join(unlinked) or 'any voting backend'}",
            next_step="Link it (`metasync backend link`), or name it as lost too.",
        )
    return {a: m.links[a] for _, a in left}


def answering(m: Participant, enter: Enter, known: State) -> Task:
    """-> (names of the voting backends after `known` with the right birth, or retired for the next era; of these,
    those that can take no part in the version after `known` any more, and why).
    """
    instance: Instance = yield from enter(known)
    for acceptor in instance.acceptors.values():
        if acceptor.log.poison:
            acceptor.forget()  # and is read once more: it may have been shown wrongly
    m.recovering = known.era + 1
    try:
        births = {a.name: a.read_birth() for a in instance.acceptors.values()}
        got = yield Gather(births, deadline_s=READ_S)
        yield from _read_through(m, instance)
    finally:
        m.recovering = 0
    well = {name for name, right in got.items() if right}
    if why := _clash(instance):
        return well, dict.fromkeys(well, why)
    return well, {name: why for name, why in instance.ended().items() if name in well}


def unfenced(m: Participant, enter: Enter, known: State) -> Task:
    """-> why nobody can go on from `known`, by acceptor: it changed the backends, and the logs that decided it can
    never be closed any more (`reconfigure.unclosable`). {} where they can or need not be.
    """
    instance: Instance = yield from enter(known)
    config = instance.config
    if config.changed is None or config.changed[0] != known.v or known.hash in m.fenced:
        return {}
    before: State = yield from fetch_state(m, instance, known.v - 1, known.prev, known.epoch)
    m.recovering = known.era + 1
    try:
        instance = yield from enter(before)
        yield from _read_through(m, instance)
    finally:
        m.recovering = 0
    return unclosable(instance, config, known)


def _clash(instance: Instance) -> str:
    """Why everybody stops at a version, where two values were proposed in one round; "" if not."""
    clashed = any(isinstance(a.log, Blocks) and a.log.clash for a in instance.acceptors.values())
    try:
        instance.evidence()
    except ForkError:
        clashed = True
    return f"two values were proposed in one round of version {instance.v}" if clashed else ""


def seen_before(m: Participant, enter: Enter, known: State) -> Task:
    """-> the newest state that is seen decided, in this era or a later one; a clash of values does not stop it."""
    m.recovering = known.era + 1
    try:
        return (yield from eras.over_eras(learner.newest_seen, m, enter, known, READ_S))
    finally:
        m.recovering = 0


def _read_through(m: Participant, instance: Instance) -> Task:
    """Reads the logs of a version to their ends, also those that somebody filled."""
    yield from look_around(m, instance, READ_S, everybody=True)
    before = -1
    while instance.progress() > before:
        before = instance.progress()
        begun = [a for a in instance.acceptors.values() if a.log.next_idx and a.log.usable and not a.ended]
        yield Gather({a.name: a.look() for a in begun}, deadline_s=READ_S)


def retire(m: Participant, number: int, old: Config, links: Mapping[bytes, str], digest: bytes = ZERO_HASH) -> Task:
    """Puts tombstones in the place of the births of these acceptors of `old`, all confirmed. `BackendError`."""
    births = {a.acceptor_id: a.birth for _, a in old.acceptors}
    yield Gather({a.hex(): _retire_one(m, a, births[a], link, Tombstone(number, digest)) for a, link in links.items()})


def _retire_one(m: Participant, acceptor_id: bytes, birth: bytes, link: str, stone: Tombstone) -> Task:
    path = birth_path(acceptor_id)
    data = yield from _certain(Op(link, "get", path, max_bytes=ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S))
    there = read_tombstone(data, acceptor_id, birth)
    if there is None and not birth_matches(data, acceptor_id, birth):
        raise BackendError(f"{link}: it was emptied or replaced: it is not the backend that voted", retryable=False)
    if there is not None and there.era == stone.era and there.digest not in (ZERO_HASH, stone.digest):
        if stone.digest == ZERO_HASH:
            m.acceptors[acceptor_id].tombstone = there
            return
        raise eras.two_records(stone.era, [[link]])
    if there != stone:
        yield from _certain(Op(link, "put", path, encode_tombstone(acceptor_id, data[18:50], stone)))
    m.acceptors[acceptor_id].tombstone = stone


def held(m: Participant, enter: Enter, known: State) -> Task:
    """-> Held: the newest state that this device or an acceptor within reach knows to be decided, and what came after.

    After `retire`, with its era: acceptors with other tombstones are not read.
    """
    m.recovering = known.era + 1
    try:
        ended: State = yield from learner.newest_seen(m, enter, known, READ_S)
        for _ in range(STEPS_MAX):
            instance: Instance = yield from enter(ended)
            instance.begin()
            yield from _read_through(m, instance)
            yield from instance.check_fork()
            decided = instance.decided()
            if decided is None:
                return Held(ended, instance.evidence(either=True))
            ended = decided
    finally:
        m.recovering = 0
    raise DamagedError(f"version {ended.v}: acceptors show ever more versions", next_step="Run metasync check.")


def begin(
    m: Participant, enter: Enter, ended: State, content: Content, chain: AdminChain, admin_private: bytes
) -> Task:
    """Writes all that the new era needs, and claims its record on all backends of `content.links`. -> EraRecord.

    The record may be another process's, which was faster. `BackendError` naming a backend that failed: run again.
    `ForkError` when there are two records.
    """
    first, objects = yield from _first(m, enter, ended, content)
    instance = yield from enter(ended)
    yield from _furnish(m, instance, first, content, objects)
    record = EraRecord(ended, first, content.carried, content.config, content.without, content.at_ns, chain)
    data = seal_record(m.keys, record, admin_private, (yield Random(32)))
    order = [content.links[a.acceptor_id] for _, a in content.config.acceptors]
    record = yield from claim(m, open_record(m.keys, data, first.era), order, ended)
    kept = {b.backend_id for b, _ in content.config.acceptors}
    lost = {b.backend_id for b in instance.config.backends} - kept
    yield from retire(m, record.number, instance.config, _left(m, instance.config, lost), record.digest)
    return record


def spread_record(m: Participant, enter: Enter, record: EraRecord) -> Task:
    """Ends what somebody began, who died after the record stood on a first backend. `BackendError`, `ForkError`."""
    order = [m.links[a.acceptor_id] for _, a in record.config.acceptors if a.acceptor_id in m.links]
    yield from claim(m, record, order, record.ended)
    old: Config = (yield from enter(record.ended)).config
    kept = {b.backend_id for b, _ in record.config.acceptors}
    lost = {b.backend_id for b in old.backends} - kept
    yield from retire(m, record.number, old, _left(m, old, lost), record.digest)


def _first(m: Participant, enter: Enter, ended: State, content: Content) -> Task:
    """-> the first state, and what is to lie beside the logs: {path in an acceptor's folder, from its id: bytes}."""
    state, number = content.state, ended.era + 1
    objects: list[tuple[Callable[[bytes], str], bytes]] = []

    def stored(kind: RecordKind, plaintext: bytes) -> Task:
        digest, data = yield from sealed(m.keys, kind, lambda: plaintext, era=number, epoch=state.epoch)
        if kind is RecordKind.META:
            objects.append((lambda a: meta_path(a, Ref(state.gen, digest)), data))
        else:
            objects.append((lambda a: const_path(a, digest.hex()), data))
        return digest

    refs = []
    for plaintext in content.segments:
        refs.append(Ref(state.gen, (yield from stored(RecordKind.META, plaintext))))
    index = retained = NOTHING
    if content.make_root is not None:
        index = Ref(state.gen, (yield from stored(RecordKind.META, content.make_root(refs))))
    if content.retained:
        retained = Ref(state.gen, (yield from stored(RecordKind.META, content.retained)))
    v, skip = yield from _number(m, (yield from enter(ended)), ended)
    first = replace(
        state,
        era=number,
        v=v,
        prev=ended.hash,
        skip=skip,
        config=(yield from stored(RecordKind.CONST, content.config.encode())),
        devices=(yield from stored(RecordKind.CONST, content.devices)),
        index=index,
        index_rides=False,
        retained=retained,
        writer=ZERO_ID,
        op_id=content.op_id if content.carried is None else content.carried.op_id,
    )
    return first, objects


def _number(m: Participant, instance: Instance, ended: State) -> Task:
    """-> (version of the first state after `ended`, its `skip` hash).

    The next one, if all states that later versions need for their `skip` can be had. Else the next power of two: the
    way back from there and from all after it leads to version 0 without them.
    """
    v, skip = ended.v + 1, ended.hash
    m.remember_state(ended)
    copies = [Copy(link, genesis_path(a), partial(open_genesis, m.keys, acceptor_id=a)) for a, link in m.links.items()]
    genesis: State = yield from get_anywhere(copies, GENESIS_BYTES_MAX, "the genesis")
    m.remember_state(genesis)
    try:
        if skip_version(v) != ended.v:
            skip = yield from ancestor(m, instance, ended, skip_version(v))
        below, digest = skip_version(v), skip
        while below:
            state: State = yield from fetch_state(m, instance, below, digest, ended.epoch)
            below, digest = skip_version(below), state.skip
    except (DamagedError, NoQuorumError):
        v, skip = 1 << ended.v.bit_length(), genesis.hash
    return v, skip


def _furnish(
    m: Participant,
    instance: Instance,
    first: State,
    content: Content,
    objects: Sequence[tuple[Callable[[bytes], str], bytes]],
) -> Task:
    """Gives the new acceptors all that they must hold; every one of them, for nothing else holds it."""
    members = {a.acceptor_id: content.links[a.acceptor_id] for _, a in content.config.acceptors}
    for a, nonce in content.births.items():
        yield from created(members[a], birth_path(a), encode_birth(a, nonce))
    yield from give_genesis(m, {a: content.births[a] for a in members}, members)
    for path_of, data in objects:
        got: Mapping[bytes, str] = yield from spread(members, path_of, data)
        failed = {members[a]: why for a, why in got.items() if why}
        if failed:
            link, why = min(failed.items())
            raise BackendError(f"{link}: it cannot take what the new era needs: {why}", next_step="Run again.")
    yield from give_state(m, members, content.config, members, instance.base)
    state = first
    while True:
        yield from give_state(m, members, content.config, members, state)
        if not state.v:
            return
        state = yield from fetch_state(m, instance, skip_version(state.v), state.skip, state.epoch)


def claim(m: Participant, record: EraRecord, links: Sequence[str], known: State) -> Task:
    """Creates the record on these backends, one after the other. -> the EraRecord that stands.

    Where another one is found on the first of them, that one is spread. `ForkError` when there are two by then;
    `ExcludedError` when that one's keys are not for this device. What is no record, or none of an admin whom the device
    set of `known` still has, is overwritten in the end: the first place that is free, or has a record, decides.
    """
    path = era_path(record.number)
    standing = False
    taken = []

    def stands(link: str) -> Task:
        if (yield from _certain(Op(link, "stat", path, timeout_s=OP_TIMEOUT_S))) > RECORD_BYTES_MAX:
            return None
        data = yield from _certain(Op(link, "get", path, max_bytes=RECORD_BYTES_MAX, timeout_s=OP_TIMEOUT_S))
        found: EraRecord | None = yield from eras.at_place(m, data, record.number, links)
        if found is None:
            return None
        return None if eras.is_withdrawn(m, known, found) else found

    for link in links:
        made = yield from _certain(Op(link, "create", path, record.data, timeout_s=patience_s(len(record.data))))
        found = yield from stands(link)
        if found is None:
            taken.append(link)
        elif found.digest != record.digest:
            if standing or made:
                raise eras.two_records(record.number, [[link], [x for x in links if x != link]])
            record, standing = found, True
        else:
            standing = True
    for link in taken:
        yield from _certain(Op(link, "put", path, record.data, timeout_s=patience_s(len(record.data))))
        found = yield from stands(link)
        if found is None:
            raise BackendError(f"{link}: {path} does not hold what was written there", next_step="Run again.")
        if found.digest != record.digest:
            raise eras.two_records(record.number, [[link], [x for x in links if x != link]])
    return record


def _certain(op: Op) -> Task:
    """-> the value of a request that must succeed. A create that is repeated may find its own object."""
    for attempt in range(TRIES):
        reply: Reply = yield op
        if reply.error is None:
            return reply.value
        if not reply.error.retryable or attempt == TRIES - 1:
            raise BackendError(
                f"{op.backend}: cannot {op.kind} {op.path}: {reply.error.message}", next_step="Run again."
            )
    raise AssertionError
