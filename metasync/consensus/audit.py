"""What acceptors were seen to hold, and whether they still show it (consensus.md, rules 1.10 and 3.3).

Two witnesses testify: this device's own memory, and the signed `seen` of every entry it reads, in which its writer says
what it last saw on the other acceptors. An acceptor that lacks such an entry, or shows another in its place, was rolled
back or shows different pasts to different devices. It is named, and counts no longer.

Two signed entries for one place are no proof (a create that failed handed the store signed bytes); an entry that was
read there is, and so is the word of an admitted device that it read one.
"""

from __future__ import annotations

from typing import Final

from metasync.consensus.instance import Instance
from metasync.consensus.participant import OP_TIMEOUT_S, Member, Outcome, Remembered
from metasync.consensus.records.entry import ENTRY_BYTES_MAX, Entry, Seen, covering, floor_path, open_floor, shown_epoch
from metasync.consensus.records.log_replay import Log
from metasync.errors import BackendError, FormatError, NotFoundError, UpgradeError
from metasync.keys.derive import sha256
from metasync.runtime.effects import Now, Op, Reply, Task

AUDIT_TRIES: Final = 2  # one answer may have been damaged on its way
LAG_S: Final = 5.0  # before an entry that another device has just seen must be there for this one, too


def note_claims(m: Member, instance: Instance, entry: Entry) -> None:
    """Takes what an admitted writer saw elsewhere for what those acceptors must show from now on, to this device too.

    Among acceptors that may lie, claims of the version before are followed up as well, at one request for each.
    """
    if entry.device_id == m.identity.device_id:
        return
    oldest = entry.v - (instance.config.mode == "bft")
    for seen in entry.seen:
        acceptor_id = seen.acceptor_id
        if not oldest <= seen.v <= entry.v or acceptor_id not in instance.names:
            continue
        log = instance.logs[acceptor_id]
        if not isinstance(log, Log):
            continue  # its writer's own blocks
        hashes = log.hashes if seen.v == instance.v and log.usable else []  # else it may have been damaged on its way
        if seen.idx < len(hashes):
            if hashes[seen.idx] != seen.hash:
                teller = entry.device_id.hex()[:8]
                accuse(m, instance, acceptor_id, f"{_entry(seen)} is another than the one that device {teller} saw")
            continue
        old = m.memory.get(acceptor_id)
        if old is None or (old.seen.v, old.seen.idx) < (seen.v, seen.idx):
            m.memory[acceptor_id] = Remembered(instance.base.epoch, seen)
            m.told_by[acceptor_id] = entry.device_id
            m.told_at[acceptor_id] = instance.now
            m.unaudited.add(acceptor_id)


def audit(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """An acceptor must still show the last entry that it was seen to hold. -> bool: it does.

    Once per process, and after every claim that was noted. One that shows nothing there, or another entry, was rolled
    back or lies (or was emptied: its birth object tells which).
    """
    remembered = m.memory[acceptor_id]
    seen = remembered.seen
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return False
    teller = m.told_by.get(acceptor_id)
    told = f", which device {teller.hex()[:8]} saw," if teller else ""
    epochs = [remembered.epoch]
    if remembered.epoch - 1 in dict(m.keys.epoch_keys):
        epochs.append(remembered.epoch - 1)  # if another device saw it: it may be of the version before a rotation
    for epoch in epochs:
        path = m.seen_place(instance, epoch, seen)
        for _ in range(AUDIT_TRIES):
            reply: Reply = yield Op(backend, "get", path, max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
            if reply.error is not None or sha256(reply.value) == seen.hash:
                break
        if not isinstance(reply.error, NotFoundError):
            break
    gone = isinstance(reply.error, NotFoundError)
    other = reply.error is None and sha256(reply.value) != seen.hash
    if other and not m.opens(instance, epoch, seen, reply.value):  # on its way, again and again: that is no other entry
        m.fault(instance, acceptor_id, BackendError(f"{_entry(seen)} is damaged"))
        return False
    if gone or other:
        # Below a floor it was deleted, and what a machine that slept has sent since may lie in its place.
        if (yield from _is_below_floor(m, backend, acceptor_id, seen.v)):
            if m.memory.get(acceptor_id) is remembered:
                m.memory.pop(acceptor_id, None)
                m.unaudited.discard(acceptor_id)
            return True
        if teller and (yield Now()) - m.told_at.get(acceptor_id, 0.0) < LAG_S:
            return False  # the store may show it a little later to this device than to that one
        m.suspects[acceptor_id] = f"{_entry(seen)}{told} is {'gone' if gone else 'another'}"
        return False
    if reply.error is not None:
        m.fault(instance, acceptor_id, reply.error)
        return False
    if m.memory.get(acceptor_id) is remembered:
        m.unaudited.discard(acceptor_id)
    m.suspects.pop(acceptor_id, None)
    return True


def _is_below_floor(m: Member, backend: str, acceptor_id: bytes, v: int) -> Task:
    """-> bool: this acceptor has a floor above v, so that its log of v may have been deleted."""
    floor = covering(v)
    path = floor_path(acceptor_id, floor)
    reply: Reply = yield Op(backend, "get", path, max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    if reply.error is None and shown_epoch(reply.value) > m.keys.epoch:
        return True  # not to be read yet: who looks further finds the keys, or takes the acceptor for broken
    try:
        return reply.error is None and open_floor(m.keys, reply.value, acceptor_id, floor) is not None
    except (FormatError, UpgradeError):
        return False


def unaudited(m: Member, instance: Instance, acceptor_id: bytes) -> Outcome:
    """After an audit that failed, with the birth object read beside it."""
    instance.ended.discard(acceptor_id)
    why = m.suspects.pop(acceptor_id, "")
    if why and acceptor_id in instance.born:
        accuse(m, instance, acceptor_id, why)
    instance.born.discard(acceptor_id)
    return Outcome("failed", why or "it was not audited")


def accuse(m: Member, instance: Instance, acceptor_id: bytes, why: str) -> None:
    """From here on this acceptor is out: it neither promises nor votes, holds no copy, and `status` names it."""
    m.rolled_back[acceptor_id] = why
    m.evidence.append((instance.names[acceptor_id], why))
    instance.forget(acceptor_id)
    m.backend_of(instance, acceptor_id)


def _entry(seen: Seen) -> str:
    return f"entry {seen.idx} of version {seen.v}"
