"""Acceptors in log form: reading a log onwards, and appending to it (consensus.md, rules 1.2 and 1.6).

For backends whose create-if-absent is atomic. An entry is created only at the first index that was not read, so a
create that succeeds shows that the log before it is what was read, and its acceptor's answer is known without a fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metasync.consensus import truncation
from metasync.consensus.acceptors.birth_check import read_birth
from metasync.consensus.audit import audit, note_claims, unaudited
from metasync.consensus.instance import Instance
from metasync.consensus.participant import OP_TIMEOUT_S, Member, Outcome
from metasync.consensus.records.entry import ENTRY_BYTES_MAX, Kind, Round, entry_path, refs_in
from metasync.consensus.records.log_replay import Log
from metasync.consensus.records.state import State
from metasync.errors import BackendError, NotFoundError
from metasync.runtime.effects import Gather, Now, Op, Random, Reply, Sleep, Task

CREATE_TRIES: Final = 3  # of the same bytes at the same index, when the outcome is unknown
LAG_TRIES: Final = 5  # reads of a slot that a create found taken (a provider's reads may lag)
RETRY_FIRST_S: Final = 0.05
AHEAD: Final = 2  # entries read side by side once a log is known to hold one: ACCEPT after PREPARE, and the end


def read_slot(m: Member, instance: Instance, acceptor_id: bytes, idx: int) -> Task:
    """-> bytes, None when absent, or the `BackendError`."""
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return BackendError("not linked")
    log = instance.log(acceptor_id)
    # Twice the bound: a longer entry than ours is read far enough to be told from one that is not there.
    reply: Reply = yield Op(backend, "get", m.place(log, idx), max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    if isinstance(reply.error, NotFoundError):
        return None
    return reply.error if reply.error is not None else reply.value


def read_beyond(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """-> bool: this acceptor shows no entry 0 of the version after the instance's, by the names of the same epoch."""
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return False  # an entry that was read elsewhere meanwhile tells that it was rolled back
    base = instance.base
    path = entry_path(m.keys, base.epoch, base.era, acceptor_id, instance.v + 1, 0)
    reply: Reply = yield Op(backend, "get", path, max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    return isinstance(reply.error, NotFoundError)


def look(m: Member, instance: Instance, acceptor_id: bytes, *, beyond: bool = False) -> Task:
    """Reads a log from where it was read to, up to its end, and the birth object beside every step. -> Outcome.

    Two requests when nothing is new (a third audits an acceptor met for the first time); entries that follow are read
    AHEAD at a time, and with `beyond` beside the first of them whether there is something of the next version: one
    version more is the common case.
    """
    instance.ended.discard(acceptor_id)
    if m.backend_of(instance, acceptor_id) is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    width = 1
    while (log := instance.log(acceptor_id)).usable:
        before = yield Now()
        branches = {str(i): read_slot(m, instance, acceptor_id, log.next_idx + i) for i in range(width)}
        branches |= yield from _vouching(m, instance, acceptor_id)
        if width > 1 and beyond and (yield from truncation.trusted(m, acceptor_id, instance.v + 1)):
            branches["beyond"] = read_beyond(m, instance, acceptor_id)
            beyond = False
        got: Mapping[str, Any] = yield Gather(branches)
        if not got.get("audit", True):
            return unaudited(m, instance, acceptor_id)
        if not got["birth"]:
            return Outcome("failed", "birth")
        m.waited((yield Now()) - before)
        if not got.get("floor", True) or not (yield from truncation.trusted(m, acceptor_id, instance.v)):
            return Outcome("failed", "its floor is above, or is not known")
        if got.get("beyond", False):
            instance.beyond.add(acceptor_id)
        for i in range(width):
            found = got[str(i)]
            if isinstance(found, BackendError):
                return m.fault(instance, acceptor_id, found)
            if found is None:
                instance.note_read(acceptor_id, before)
                instance.ended.add(acceptor_id)
                break
            take_in(m, instance, log, found)
            if not log.usable:
                break
        if acceptor_id in instance.ended:
            m.judge(instance, acceptor_id)
            return Outcome("done")
        width = AHEAD
    m.judge(instance, acceptor_id)
    return Outcome("failed", log.poison)


def take_in(m: Member, instance: Instance, log: Log, data: bytes) -> None:
    """Replays bytes that were read, and remembers them and what their writer saw elsewhere."""
    void = log.void
    entry = log.feed(data)
    if entry is not None:
        m.remember_log(log)
        if entry.value is not None and (refs := refs_in(entry)):
            m.added = {entry.value.hash: refs}
        if log.void == void:
            note_claims(m, instance, entry)


def append(
    m: Member, instance: Instance, acceptor_id: bytes, kind: Kind, rnd: Round, value: State | None, stale: Round
) -> Task:
    """Appends one message to a log. -> Outcome.

    A create at the first index not read either succeeds, and then the log before it is known (Lemma A), or finds the
    slot taken, and then that entry is read and replayed and the next index tried. A reply that got lost is asked for
    again with the same bytes at the same index. PREPARE does not climb over foreign rounds above `stale`.

    The birth object is read beside every create: a vote counts only where it is right, because a root that was wiped
    accepts what it had promised not to (consensus.md, rule 1.9); and so does a promise, because a root that was wiped
    has forgotten what it accepted, and another value would be chosen over it.
    """
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    entry, data, unknown, checked = None, b"", 0, False
    while True:
        log = instance.log(acceptor_id)
        outcome = _standing(m, log, kind, rnd, value, stale)
        before = yield Now()
        instance.now = max(instance.now, before)
        if outcome is not None:
            if outcome.kind == "done" and not checked and instance.is_fresh(acceptor_id):
                yield from read_birth(m, instance, acceptor_id)
            elif outcome.kind == "done" and not checked:
                yield from look(m, instance, acceptor_id)
            return vouched(m, instance, acceptor_id, outcome)
        if entry is None or entry.idx != log.next_idx:
            entry, data = m.sealed(log, kind, rnd, value, (yield Random(48)))
            unknown = 0
        create = _create(m, Op(backend, "create", m.place(log, entry.idx), data, timeout_s=OP_TIMEOUT_S))
        reply, refused = yield from _beside(m, instance, acceptor_id, create)
        if refused is not None:
            return refused  # what was created stands there, and is not counted
        checked = True
        if reply.error is not None:
            unknown += 1
            if not reply.error.retryable or unknown >= CREATE_TRIES:
                return m.fault(instance, acceptor_id, reply.error)
            yield Sleep(RETRY_FIRST_S * (1 << unknown))
        elif acceptor_id not in instance.born:
            return Outcome("failed", "birth")  # not taken in: it may have landed in a root that is not the one meant
        elif not (yield from truncation.trusted(m, acceptor_id, instance.v)):
            unknown = 0  # the machine slept through the request: the same bytes are asked for again
        elif reply.value:
            log.append_own(entry, data)
            m.remember_log(log)
            instance.note_read(acceptor_id, before)
        else:
            checked = False
            error = yield from _read_taken(m, instance, acceptor_id)
            instance.note_read(acceptor_id, before)
            if error is not None:
                return m.fault(instance, acceptor_id, error)


def _beside(m: Member, instance: Instance, acceptor_id: bytes, create: Task) -> Task:
    """Runs a create with all that vouches for it beside it. -> (Reply, None or the Outcome that refuses it)."""
    got = yield Gather({"create": create, **(yield from _vouching(m, instance, acceptor_id))})
    if not got.get("audit", True):
        return got["create"], unaudited(m, instance, acceptor_id)
    if not got.get("floor", True):
        return got["create"], Outcome("failed", "its floor is above, or is not known")
    return got["create"], None


def _vouching(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """-> what is asked beside every step: its birth; what it was seen to hold, and its floor, where that is open."""
    branches = {"birth": read_birth(m, instance, acceptor_id)}
    if acceptor_id in m.unaudited:
        branches["audit"] = audit(m, instance, acceptor_id)
    if not (yield from truncation.trusted(m, acceptor_id, instance.v)):
        branches["floor"] = truncation.read_floor(m, instance, acceptor_id)
    return branches


def _create(m: Member, op: Op) -> Task:
    """-> Reply; takes the time."""
    before = yield Now()
    reply: Reply = yield op
    if reply.error is None:
        m.timed((yield Now()) - before)
    return reply


def vouched(m: Member, instance: Instance, acceptor_id: bytes, outcome: Outcome) -> Outcome:
    """An outcome `done` counts only with the right birth."""
    m.judge(instance, acceptor_id)
    if outcome.kind != "done":
        return outcome
    if acceptor_id not in instance.born:
        return Outcome("failed", "birth")
    instance.vouched.add(acceptor_id)
    return outcome


def _read_taken(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """Reads the slot that a create found taken. -> None, or the `BackendError`."""
    log = instance.log(acceptor_id)
    for attempt in range(LAG_TRIES):
        slot = read_slot(m, instance, acceptor_id, log.next_idx)
        got = yield Gather({"slot": slot, "birth": read_birth(m, instance, acceptor_id)})
        found = got["slot"]
        if isinstance(found, BackendError):
            return found
        if not got["birth"]:
            return BackendError("its birth object was not seen beside a log entry")
        if not (yield from truncation.trusted(m, acceptor_id, instance.v)):
            return BackendError("its floor was looked at too long ago: the machine slept")
        if found is not None:
            take_in(m, instance, log, found)
            return None
        yield Sleep(RETRY_FIRST_S * (1 << attempt))
    return BackendError("says that a log entry exists, and does not show it")


def _standing(m: Member, log: Log, kind: Kind, rnd: Round, value: State | None, stale: Round) -> Outcome | None:
    """What a log says about our message already; None: it has to be appended."""
    if not log.usable:
        return Outcome("failed", log.poison)
    if kind is Kind.ACCEPT and rnd in log.votes:
        return Outcome("done")
    if log.closed is not None:
        return Outcome("done" if value is None or value == log.closed else "closed")
    if kind is Kind.DECIDED:
        return None
    if log.promised > rnd:
        return Outcome("rejected")
    if kind is Kind.PREPARE:
        if log.promised == rnd:
            return Outcome("done")
        if log.promised > stale and log.promised.incarnation != m.incarnation:
            return Outcome("met")
    return None
