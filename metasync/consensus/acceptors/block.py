"""Acceptors in block form: writing one's own block, and reading everybody's (consensus.md, rules 7.2 and 7.3).

A message costs two round trips where log form has one: the block, then a complete read. A block's bytes are journalled
before they are sent, and whoever is this device next (a process that was started again) sends exactly those bytes
before anything else: a name is never given to two different blocks, whenever what was sent lands. Only who holds the
workspace's lock on the folder that was enrolled writes in the device's name (`Member.guard`).

Asked of the store: who reads after a confirmed write sees it, and so does who reads after anybody has seen it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from metasync.codec import Reader, bytes16, u8, u32, u64
from metasync.consensus import truncation
from metasync.consensus.acceptors.birth_check import read_birth
from metasync.consensus.acceptors.log import AHEAD, CREATE_TRIES, RETRY_FIRST_S, vouched
from metasync.consensus.audit import audit, note_claims, unaudited
from metasync.consensus.instance import Instance
from metasync.consensus.participant import OP_TIMEOUT_S, Barred, Member, Outcome
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import ENTRY_BYTES_MAX, Entry, Kind, Round, block_path, open_block, seal_block
from metasync.consensus.records.state import State
from metasync.errors import BackendError, ForkError, FormatError, NotFoundError, UpgradeError
from metasync.keys.derive import FORMAT, check_format, sha256
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Work

JOURNAL_KEY: Final = "block."  # and the acceptor's id in hex: this device's last block there
READS_MAX: Final = 3  # complete reads of one look: somebody writes faster than is read, or the second counts the vote
PROBED_MAX: Final = 16  # devices whose first blocks are looked for far ahead, which is a search for a hint only


@dataclass(frozen=True, slots=True)
class Journal:
    """This device's last block on one acceptor, as it was sent. `v_max`: the highest version it ever wrote in there."""

    v: int
    idx: int
    era: int
    epoch: int
    v_max: int
    data: bytes

    def encode(self) -> bytes:
        head = u8(FORMAT) + u64(self.v) + u32(self.idx) + u32(self.era) + u32(self.epoch) + u64(self.v_max)
        return head + bytes16(self.data)


def decode_journal(data: bytes) -> Journal:
    """What `Journal.encode` wrote."""
    r = Reader(data, "block journal")
    check_format(r.u8(), "the journal of blocks")
    out = Journal(r.u64(), r.u32(), r.u32(), r.u32(), r.u64(), r.bytes16(ENTRY_BYTES_MAX))
    r.end()
    return out


# Reading.


def look(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """Reads all blocks that are new, and once more when that may tell whether a vote counts. -> Outcome."""
    blocks = instance.blocks(acceptor_id)
    for _ in range(READS_MAX):
        instance.ended.discard(acceptor_id)
        before = blocks.known()
        began = yield Now()
        failed = yield from _read_all(m, instance, acceptor_id)
        if failed is not None:
            return failed
        blocks.judge(before)
        instance.note_read(acceptor_id, began)
        instance.ended.add(acceptor_id)
        if not blocks.undetermined():
            break
    return Outcome("done")


def _read_all(m: Member, instance: Instance, acceptor_id: bytes, *, own_too: bool = False) -> Task:
    """One complete read: every device's blocks to the first that is absent, with the birth beside every step.

    -> None, or the Outcome of a read that was not complete. `own_too`: reads this device's last block back instead of
    looking for further ones of its own, which nobody else writes.
    """
    blocks = instance.blocks(acceptor_id)
    if m.backend_of(instance, acceptor_id) is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    began = yield Now()
    me = m.identity.device_id
    left = [d for d in blocks.chains if not (own_too and d == me)]
    width = 1
    while blocks.usable and (left or own_too):
        branches: dict[str, Task] = {}
        for device in left:
            first = blocks.chains[device].next_idx
            for i in range(width):
                branches[f"{device.hex()} {i}"] = _read_block(m, instance, acceptor_id, device, first + i)
        if own_too:
            branches["own"] = _read_block(m, instance, acceptor_id, me, blocks.chains[me].next_idx - 1)
        got, refused = yield from _step(m, instance, acceptor_id, branches)
        if refused is not None:
            return refused
        if own_too:
            own_too = False
            chain = blocks.chains[me]
            if got["own"] is None:
                return m.fault(instance, acceptor_id, BackendError("does not show a block whose write it confirmed"))
            if sha256(got["own"]) != chain.last_hash:
                base = instance.base
                sent = Journal(instance.v, chain.next_idx - 1, base.era, base.epoch, instance.v, b"")
                return _other_bytes(m, instance, acceptor_id, sent, got["own"])
        left = [d for d in left if _take_in(m, instance, acceptor_id, d, [got[f"{d.hex()} {i}"] for i in range(width)])]
        width = AHEAD
    m.judge(instance, acceptor_id)
    instance.note_read(acceptor_id, began)
    return None if blocks.usable else Outcome("failed", blocks.poison)


def _step(m: Member, instance: Instance, acceptor_id: bytes, branches: dict[str, Task]) -> Task:
    """Runs reads of blocks, and beside them what vouches for them. -> (results, None or the Outcome of a failure)."""
    branches["birth"] = read_birth(m, instance, acceptor_id)
    if acceptor_id in m.unaudited:
        branches["audit"] = audit(m, instance, acceptor_id)
    if not (yield from truncation.trusted(m, acceptor_id, instance.v)):
        branches["floor"] = truncation.read_floor(m, instance, acceptor_id)
    got = yield Gather(branches)
    refused: Outcome | None = None
    broken = next((x for x in got.values() if isinstance(x, BackendError)), None)
    if not got.get("audit", True):
        refused = unaudited(m, instance, acceptor_id)
    elif not got.get("floor", True) or not (yield from truncation.trusted(m, acceptor_id, instance.v)):
        refused = Outcome("failed", "its floor is above, or is not known")
    elif broken is not None:
        refused = m.fault(instance, acceptor_id, broken)
    elif not got["birth"]:
        refused = Outcome("failed", "birth")
    return got, refused


def _read_block(m: Member, instance: Instance, acceptor_id: bytes, device_id: bytes, idx: int) -> Task:
    """-> bytes, None when absent, or the `BackendError`."""
    base = instance.base
    path = block_path(m.keys, base.epoch, base.era, acceptor_id, instance.v, device_id, idx)
    return (yield from _get(m.backend_of(instance, acceptor_id), path))


def _get(backend: str | None, path: str) -> Task:
    if backend is None:
        return BackendError("not linked")
    # Twice the bound: a longer block than ours is read far enough to be told from one that is not there.
    reply: Reply = yield Op(backend, "get", path, max_bytes=2 * ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
    if isinstance(reply.error, NotFoundError):
        return None
    return reply.error if reply.error is not None else reply.value


def _take_in(
    m: Member, instance: Instance, acceptor_id: bytes, device_id: bytes, found: Sequence[bytes | None]
) -> bool:
    """Takes in a device's next blocks, to the first that is absent. -> bool: there may be more."""
    blocks = instance.blocks(acceptor_id)
    for data in found:
        if data is None:
            blocks.chains[device_id].ended = True
            return False
        entry = blocks.feed(device_id, data)
        if entry is not None:
            note_claims(m, instance, entry)
        if blocks.clash:
            raise ForkError(
                f"{instance.names[acceptor_id]}: two values were proposed in one round of version {instance.v}: "
                "two processes run as one",
                next_step="a memory snapshot of this or another device was resumed twice; stop one of the two",
            )
        if not blocks.usable:
            return False
    if device_id == m.identity.device_id:
        m.remember(acceptor_id, instance.base.epoch, blocks.last_of(device_id))
    return True


# Writing.


def append(
    m: Member, instance: Instance, acceptor_id: bytes, kind: Kind, rnd: Round, value: State | None, stale: Round
) -> Task:
    """Writes one message as this device's next block, then reads all the others. -> Outcome.

    A message that stands already, from a try that was given up, is not written again, only read for; and where DECIDED
    stands nothing more is written.
    """
    blocks = instance.blocks(acceptor_id)
    if m.backend_of(instance, acceptor_id) is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    barred = yield from _barred(m, blocks)
    if barred is not None:
        m.barred[acceptor_id] = barred
        return Outcome("failed", barred.reason)
    m.barred.pop(acceptor_id, None)
    began = yield Now()
    failed = yield from _claim(m, instance, acceptor_id)
    if failed is not None:
        return failed
    if blocks.closed is None and not blocks.stands(kind, rnd):
        refused = _refused(m, blocks, kind, rnd, stale)
        failed = refused or (yield from _write(m, instance, acceptor_id, kind, rnd, value))
        if failed is not None:
            return failed
    for _ in range(READS_MAX):
        before = blocks.known()
        own_too = blocks.chains[m.identity.device_id].next_idx > 0
        failed = yield from _read_all(m, instance, acceptor_id, own_too=own_too)
        if failed is not None:
            return failed
        blocks.judge(before)
        if blocks.closed is None or blocks.shut:
            break
    instance.note_read(acceptor_id, began)
    m.timed((yield Now()) - began)
    return vouched(m, instance, acceptor_id, _outcome(blocks, kind, rnd, value))


def _barred(m: Member, blocks: Blocks) -> Task:
    """-> Barred, when this process must not write blocks; else None."""
    if m.identity.device_id not in blocks.chains:
        return Barred(
            "only devices that belong to the workspace can write there, and this one does not yet",
            "run `metasync push` on a device that belongs to it, which takes this one in; then run again",
        )
    return (yield Work(m.guard))


def _refused(m: Member, blocks: Blocks, kind: Kind, rnd: Round, stale: Round) -> Outcome | None:
    """What is known to speak against a message before it is written."""
    if not blocks.usable:
        return Outcome("failed", blocks.poison)
    if kind is not Kind.DECIDED and blocks.promised > rnd:
        return Outcome("rejected")
    if kind is Kind.PREPARE and blocks.promised > stale and blocks.promised.incarnation != m.incarnation:
        return Outcome("met")
    return None


def _outcome(blocks: Blocks, kind: Kind, rnd: Round, value: State | None) -> Outcome:
    """What came of a message that stands, after a complete read."""
    if kind is Kind.ACCEPT and rnd in blocks.votes:
        return Outcome("done")
    if blocks.closed is not None:
        return Outcome("done" if value in (None, blocks.closed) else "closed")
    return Outcome("done") if kind is Kind.PREPARE and blocks.grants(rnd) else Outcome("rejected")


def _write(m: Member, instance: Instance, acceptor_id: bytes, kind: Kind, rnd: Round, value: State | None) -> Task:
    """Writes this device's next block, journalled first. -> None once it stands, or the Outcome."""
    blocks, me = instance.blocks(acceptor_id), m.identity.device_id
    base, chain = instance.base, blocks.chains[me]
    entropy = yield Random(48)
    entry = Entry(
        acceptor_id=acceptor_id,
        v=instance.v,
        idx=chain.next_idx,
        prev_entry=chain.last_hash,
        base=base,
        kind=kind,
        round=rnd,
        value=value,
        entry_id=entropy[32:48],
        device_id=me,
        seen=m.seen_elsewhere(acceptor_id),
    )
    data = seal_block(m.keys, entry, m.identity.sign_private, entropy[:32])
    old = m.journals.get(acceptor_id)
    v_max = instance.v if old is None else max(instance.v, decode_journal(old).v_max)
    journal = Journal(entry.v, entry.idx, base.era, base.epoch, v_max, data)
    m.unconfirmed.add(acceptor_id)
    yield Persist(_journal_key(acceptor_id), journal.encode())
    m.journals[acceptor_id] = journal.encode()
    return (yield from _send(m, instance, acceptor_id, journal, fresh=True))


def _send(m: Member, instance: Instance, acceptor_id: bytes, journal: Journal, *, fresh: bool) -> Task:
    """Has a journalled block stand, on the root that is meant. -> None, or the Outcome.

    Not `fresh`: it may have been sent before, so it is sent only if it is not there, and is to be these very bytes.
    What another root took (an empty folder, where a share is not mounted) is sent again, and never remembered: the
    right one would be blamed for not having it.
    """
    me = m.identity.device_id
    path = block_path(m.keys, journal.epoch, journal.era, acceptor_id, journal.v, me, journal.idx)
    backend = m.backend_of(instance, acceptor_id)
    if backend is None:
        return Outcome("failed", m.standings[instance.names[acceptor_id]].reason)
    error: BackendError | None = None
    for attempt in range(CREATE_TRIES):
        if attempt:
            yield Sleep(RETRY_FIRST_S * (1 << attempt))
        if not fresh or attempt:
            found = yield from _beside_birth(m, instance, acceptor_id, _get(backend, path))
            if isinstance(found, BackendError):
                error = found
            elif found is not None:
                if found != journal.data:
                    return _other_bytes(m, instance, acceptor_id, journal, found)
                return _confirmed(m, instance, acceptor_id, journal)
        if error is None or attempt:
            error = yield from _beside_birth(m, instance, acceptor_id, _put(backend, path, journal.data))
            if error is None:
                return _confirmed(m, instance, acceptor_id, journal)
        if not error.retryable or acceptor_id in m.replaced:
            break
    assert error is not None
    if acceptor_id in m.replaced:
        return Outcome("failed", "birth")
    return m.fault(instance, acceptor_id, error)


def _beside_birth(m: Member, instance: Instance, acceptor_id: bytes, task: Task) -> Task:
    """-> what the task returns, or a `BackendError` where the birth object beside it was not seen to be right."""
    got = yield Gather({"task": task, "birth": read_birth(m, instance, acceptor_id)})
    if got["birth"] or isinstance(got["task"], BackendError):
        return got["task"]
    return BackendError("its birth object was not seen beside a block")


def _put(backend: str, path: str, data: bytes) -> Task:
    """-> None, or the `BackendError`."""
    reply: Reply = yield Op(backend, "put", path, data, timeout_s=OP_TIMEOUT_S)
    return reply.error


def _confirmed(m: Member, instance: Instance, acceptor_id: bytes, journal: Journal) -> Outcome | None:
    """A journalled block stands: the next one may be written."""
    blocks, me = instance.blocks(acceptor_id), m.identity.device_id
    m.unconfirmed.discard(acceptor_id)
    chain = blocks.chains[me]
    if (journal.v, journal.idx) == (blocks.v, chain.next_idx):
        blocks.feed(me, journal.data)
        m.remember(acceptor_id, instance.base.epoch, blocks.last_of(me))
    return None if blocks.usable else Outcome("failed", blocks.poison)


def _claim(m: Member, instance: Instance, acceptor_id: bytes) -> Task:
    """Finds where this device's blocks end, after what an earlier process, or an earlier try, sent. -> None or Outcome.

    The journal tells: every block of this device was journalled before it was sent, whichever process sent it. Blocks
    that it does not know of are another copy's of this identity: `ForkError`.
    """
    blocks, me = instance.blocks(acceptor_id), m.identity.device_id
    chain = blocks.chains[me]
    stored = yield Recall(_journal_key(acceptor_id))
    journal = Journal(0, 0, 0, 0, 0, b"") if stored is None else decode_journal(stored)
    wrote_last = stored is not None and stored == m.journals.get(acceptor_id)
    if stored is not None and (not wrote_last or acceptor_id in m.unconfirmed):
        m.unconfirmed.add(acceptor_id)
        m.journals[acceptor_id] = stored
        failed = yield from _send(m, instance, acceptor_id, journal, fresh=False)
        if failed is not None:
            return failed
    ends = journal.idx + 1 if journal.v == blocks.v else 0
    overtaken = journal.v != blocks.v <= journal.v_max  # the journal told of blocks in this version once
    chain.ended = chain.ended and not overtaken
    while chain.next_idx < ends or not (chain.ended or (wrote_last and not overtaken)):
        found = yield from _read_block(m, instance, acceptor_id, me, chain.next_idx)
        if isinstance(found, BackendError):
            return m.fault(instance, acceptor_id, found)
        if found is None and chain.next_idx < ends:
            return m.fault(instance, acceptor_id, BackendError("does not show a block whose write it confirmed"))
        _take_in(m, instance, acceptor_id, me, [found])
        if not blocks.usable:
            return Outcome("failed", blocks.poison)
    if not blocks.usable:  # what was read of the own blocks before may have been damaged on its way
        return Outcome("failed", blocks.poison)
    another = ends and chain.next_idx == ends and chain.last_hash != sha256(journal.data)
    if another or (chain.next_idx > ends and not overtaken):
        raise _twice(instance, acceptor_id)
    return None


def _other_bytes(m: Member, instance: Instance, acceptor_id: bytes, sent: Journal, found: bytes) -> Outcome:
    """Something else lies where this device's block should. `ForkError` when the device itself signed that, too."""
    me = m.identity.device_id
    base = replace(instance.base, era=sent.era, epoch=sent.epoch)
    public = instance.devices.key_of(me)
    with contextlib.suppress(FormatError, UpgradeError):
        signed = open_block(m.keys, found, base=base, acceptor_id=acceptor_id, v=sent.v, device_id=me, idx=sent.idx)
        if public is not None and signed.verifies(public):
            raise _twice(instance, acceptor_id)
    why = f"block {sent.idx} of this device, version {sent.v}, is not what was written"
    instance.blocks(acceptor_id).poison = why
    m.judge(instance, acceptor_id)
    return Outcome("failed", why)


def _twice(instance: Instance, acceptor_id: bytes) -> ForkError:
    return ForkError(
        f"{instance.names[acceptor_id]}: this device's identity wrote something in version {instance.v} that this "
        "folder knows nothing of: a copy of the folder is in use, or its .metasync was put back from an older copy",
        next_step="this copy needs an identity of its own: `metasync clone` into a new folder, move your files there",
    )


def _journal_key(acceptor_id: bytes) -> str:
    return JOURNAL_KEY + acceptor_id.hex()


# Far ahead.


def first_blocks(m: Member, instance: Instance, acceptor_id: bytes, backend: str, v: int) -> Task:
    """A block 0 of version v by any device that is known here. -> SignedEntry, None, False when there was no answer.

    None proves nothing: the devices of version v may be others.
    """
    base = instance.base
    devices = list(instance.blocks(acceptor_id).chains)[:PROBED_MAX]
    paths = {d: block_path(m.keys, base.epoch, base.era, acceptor_id, v, d, 0) for d in devices}
    got: dict[str, Any] = yield Gather({d.hex(): _get(backend, path) for d, path in paths.items()})
    if any(isinstance(x, BackendError) for x in got.values()):
        return False
    for device in devices:
        data = got[device.hex()]
        if data is not None:
            try:
                return open_block(m.keys, data, base=base, acceptor_id=acceptor_id, v=v, device_id=device, idx=0)
            except (FormatError, UpgradeError):
                continue  # whoever reads these blocks in earnest will say what is wrong with them
    return None
