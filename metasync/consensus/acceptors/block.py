"""Acceptors in block form: writing one's own block, and reading everybody's (consensus.md, rules 7.2 and 7.3).

A message costs two round trips where log form has one: the block, then a complete read. A block's bytes are journalled
before they are sent, and whoever is this device next (a process that was started again) sends exactly those bytes
before anything else: a name is never given to two different blocks, whenever what was sent lands. Only who holds the
workspace's lock on the folder that was enrolled writes in the device's name (`Participant.guard`).

Asked of the store: who reads after a confirmed write sees it, and so does who reads after anybody has seen it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from metasync.codec import Reader, bytes32, check_format, u8, u32, u64
from metasync.consensus.acceptors.log import AHEAD, CREATE_TRIES, FULL, NO_ROOT, RETRY_FIRST_S
from metasync.consensus.acceptors.view import AcceptorView, two_values
from metasync.consensus.participant import OP_TIMEOUT_S, Barred, Outcome
from metasync.consensus.records.block_replay import CHAIN_BLOCKS_MAX, Blocks
from metasync.consensus.records.entry import (
    ENTRY_BYTES_MAX,
    OBJECTS_BYTES_MAX,
    Kind,
    Round,
    Seen,
    SignedEntry,
    block_path,
    open_block,
    seal_block,
)
from metasync.consensus.records.state import State
from metasync.errors import BackendError, ForkError, FormatError, UpgradeError
from metasync.keys.derive import FORMAT, sha256
from metasync.local.state_keys import block_key
from metasync.runtime.effects import Gather, Now, Op, Persist, Random, Recall, Reply, Sleep, Task, Work

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
        return head + bytes32(self.data)


def decode_journal(data: bytes) -> Journal:
    """What `Journal.encode` wrote."""
    r = Reader(data, "block journal")
    check_format(r.u8(), "the journal of blocks")
    out = Journal(r.u64(), r.u32(), r.u32(), r.u32(), r.u64(), r.bytes32(ENTRY_BYTES_MAX + OBJECTS_BYTES_MAX))
    r.end()
    return out


class BlockAcceptor(AcceptorView):
    """An acceptor in block form. `me`: this device's id, under which its own blocks lie."""

    form = "block"
    log: Blocks

    @property
    def me(self) -> bytes:
        return self.m.identity.device_id

    def _empty(self) -> Blocks:
        return Blocks(self.m.keys, self.rules, self.acceptor_id)

    def next_places(self) -> tuple[str, ...]:
        chains = self.log.chains
        return tuple(self._place(d, self.v, chains[d].next_idx) for d in sorted(chains) if d != self.me)

    def path_of(self, seen: Seen, epoch: int) -> str:
        return block_path(self.m.keys, epoch, self.base.era, self.acceptor_id, seen.v, self.me, seen.idx)

    def opens(self, seen: Seen, epoch: int, data: bytes) -> bool:
        base = replace(self.base, epoch=epoch)
        try:
            self._opened(data, base, seen.v, self.me, seen.idx)
        except FormatError:
            return False
        except UpgradeError:
            pass
        return True

    def _opened(self, data: bytes, base: State, v: int, device_id: bytes, idx: int) -> SignedEntry:
        return open_block(self.m.keys, data, base=base, acceptor_id=self.acceptor_id, v=v, device_id=device_id, idx=idx)

    def note_claim(self, seen: Seen, epoch: int, teller: bytes) -> None:
        """Nothing: no claim is made of blocks."""

    # reading

    def look(self, *, beyond: bool = False) -> Task:
        """Reads all blocks that are new, and once more when that may tell whether a vote counts. -> Outcome."""
        blocks = self.log
        for _ in range(READS_MAX):
            self.ended = False
            before = blocks.known()
            began = yield Now()
            failed = yield from self._read_all()
            if failed is not None:
                return failed
            blocks.judge(before)
            self.note_read(began)
            self.ended = True
            if not blocks.undetermined():
                break
        return Outcome("done")

    def _read_all(self, *, own_too: bool = False) -> Task:
        """One complete read: every device's blocks to the first that is absent, with the birth beside every step.

        -> None, or the Outcome of a read that was not complete. `own_too`: reads this device's last block back instead
        of looking for further ones of its own, which nobody else writes.
        """
        blocks, me = self.log, self.me
        if self.reach() is None:
            return self.out_of_reach()
        began = yield Now()
        left = [d for d in blocks.chains if not (own_too and d == me)]
        width = 1
        while blocks.usable and (left or own_too):
            branches: dict[str, Task] = {}
            for device in left:
                first = blocks.chains[device].next_idx
                for i in range(width):
                    branches[f"{device.hex()} {i}"] = self._read_block(device, first + i)
            if own_too:
                branches["own"] = self._read_block(me, blocks.chains[me].next_idx - 1)
            got, refused = yield from self._step(branches)
            if refused is not None:
                return refused
            if own_too:
                own_too = False
                chain = blocks.chains[me]
                if got["own"] is None:
                    return self.fault(BackendError("does not show a block whose write it confirmed"))
                if sha256(got["own"]) != chain.last_hash:
                    sent = Journal(self.v, chain.next_idx - 1, self.base.era, self.base.epoch, self.v, b"")
                    return self._other_bytes(sent, got["own"])
            left = [d for d in left if self._take_in(blocks, d, [got[f"{d.hex()} {i}"] for i in range(width)])]
            width = AHEAD
        self.judge()
        self.note_read(began)
        return None if blocks.usable else Outcome("failed", blocks.poison)

    def _step(self, branches: dict[str, Task]) -> Task:
        """Runs reads of blocks, and beside them what vouches for them. -> (results, None or the Outcome of failure)."""
        got = yield Gather(branches | (yield from self.vouching()))
        refused: Outcome | None = None
        broken = next((x for x in got.values() if isinstance(x, BackendError)), None)
        if not got.get("audit", True):
            refused = self.unaudited()
        elif not got.get("floor", True) or not (yield from self.has_no_floor(self.v)):
            refused = Outcome("failed", "its floor is above, or is not known")
        elif broken is not None:
            refused = self.fault(broken)
        elif not got["birth"]:
            refused = Outcome("failed", "birth")
        elif "audit" in got and self.memory.last is not None:
            self.memory.stands = self.memory.last.seen.hash
        return got, refused

    def _read_block(self, device_id: bytes, idx: int) -> Task:
        """-> bytes, None when absent, or the `BackendError`."""
        return self.get(self._place(device_id, self.v, idx))

    def _place(self, device_id: bytes, v: int, idx: int) -> str:
        return block_path(self.m.keys, self.base.epoch, self.base.era, self.acceptor_id, v, device_id, idx)

    def _take_in(self, blocks: Blocks, device_id: bytes, found: Sequence[bytes | None]) -> bool:
        """Takes in a device's next blocks, to the first that is absent. -> bool: there may be more."""
        for data in found:
            if data is None:
                blocks.chains[device_id].ended = True
                return False
            entry = blocks.feed(device_id, data)
            if entry is not None:
                self.m.keep_riding(entry.value, self.rules.riding)
                self.note_claims(entry)
            if blocks.clash and not self.m.recovering:
                raise two_values(self.v, self.name)
            if not blocks.usable:
                return False
        if device_id == self.me:
            self.remember(blocks.last_of(device_id))
        return True

    def first_entry(self, v: int) -> Task:
        """A block 0 of version v by any device that is known here. -> SignedEntry, None, or the `BackendError`.

        None proves nothing: the devices of version v may be others.
        """
        devices = list(self.log.chains)[:PROBED_MAX]
        got: dict[str, Any] = yield Gather({d.hex(): self.get(self._place(d, v, 0)) for d in devices})
        failed = next((x for x in got.values() if isinstance(x, BackendError)), None)
        if failed is not None:
            return failed
        for device in devices:
            data = got[device.hex()]
            if data is not None:
                try:
                    return self._opened(data, self.base, v, device, 0)
                except (FormatError, UpgradeError) as e:
                    failed = BackendError(f"block 0 of version {v}: {e.message}")  # no answer, and not "nothing there"
        return failed

    # writing

    def append(self, kind: Kind, rnd: Round, value: State | None, stale: Round, *, reads: bool = True) -> Task:
        """Writes one message as this device's next block, then reads all the others. -> Outcome.

        A message that stands already, from a try that was given up, is not written again, only read for; and where
        DECIDED stands nothing more is written.
        """
        m, blocks = self.m, self.log
        if self.reach() is None:
            return self.out_of_reach()
        barred = self.barred = yield from self._barred()
        if barred is not None:
            return Outcome("failed", barred.reason)
        began = yield Now()
        failed = yield from self._claim()
        if failed is not None:
            return failed
        if kind is Kind.DECIDED and value not in blocks.accepts.values():
            failed = yield from self._read_all()
            if failed is not None:
                return failed
            if value not in blocks.accepts.values():
                return Outcome("failed", "it has not voted for what is decided")
        if blocks.closed is None and not blocks.stands(kind, rnd):
            failed = self._refused(kind, rnd, stale) or (yield from self._write(kind, rnd, value))
            if failed is not None:
                return failed
        for _ in range(READS_MAX):
            before = blocks.known()
            own_too = blocks.chains[self.me].next_idx > 0
            failed = yield from self._read_all(own_too=own_too)
            if failed is not None:
                return failed
            blocks.judge(before)
            if blocks.closed is None or blocks.shut:
                break
        self.note_read(began)
        m.timed((yield Now()) - began)
        return self.vouch(_outcome(blocks, kind, rnd, value))

    def _barred(self) -> Task:
        """-> Barred, when this process must not write blocks; else None."""
        if self.me not in self.log.chains:
            return Barred(
                "only devices that belong to the workspace can write there, and this one does not yet",
                "run `metasync push` on a device that belongs to it, which takes this one in; then run again",
            )
        return (yield Work(self.m.guard))

    def _refused(self, kind: Kind, rnd: Round, stale: Round) -> Outcome | None:
        """What is known to speak against a message before it is written."""
        blocks = self.log
        if not blocks.usable:
            return Outcome("failed", blocks.poison)
        if kind is not Kind.DECIDED and blocks.promised > rnd:
            return Outcome("rejected")
        if kind is Kind.PREPARE and blocks.promised > stale and blocks.promised.incarnation != self.m.incarnation:
            return Outcome("met")
        return None

    def _write(self, kind: Kind, rnd: Round, value: State | None) -> Task:
        """Writes this device's next block, journalled first. -> None once it stands, or the Outcome."""
        m, base, chain = self.m, self.base, self.log.chains[self.me]
        if self.lacks_root(value):
            return Outcome("failed", NO_ROOT)
        entropy = yield Random(48)
        entry = self.message(kind, rnd, value, (chain.next_idx, chain.last_hash), entropy[32:48])
        data = seal_block(m.keys, entry, m.identity.sign_private, entropy[:32])
        if chain.next_idx >= CHAIN_BLOCKS_MAX or not self.log.takes(len(data)):
            return Outcome("failed", FULL)  # every reader would take it for poison
        old = self.memory.journal
        v_max = max(self.v, decode_journal(old).v_max) if old else self.v
        journal = Journal(entry.v, entry.idx, base.era, base.epoch, v_max, data)
        self.memory.unconfirmed = True
        self.told = entry.claim or self.told
        yield Persist(self._journal_key, journal.encode())
        self.memory.journal = journal.encode()
        return (yield from self._send(journal, fresh=True))

    def _send(self, journal: Journal, *, fresh: bool) -> Task:
        """Sends a journalled block until it stands on the right root. -> None, or the Outcome.

        Not `fresh`: it may have been sent before, so it is sent only if it is absent. What another root took (an empty
        folder, where a share is not mounted) is sent again and not remembered, or the right root would be blamed.
        """
        path = block_path(self.m.keys, journal.epoch, journal.era, self.acceptor_id, journal.v, self.me, journal.idx)
        backend = self.reach()
        if backend is None:
            return self.out_of_reach()
        error: BackendError | None = None
        for attempt in range(CREATE_TRIES):
            if attempt:
                yield Sleep(RETRY_FIRST_S * (1 << attempt))
            if not fresh or attempt:
                found = yield from self._beside_birth(self.get(path))
                if isinstance(found, BackendError):
                    error = found
                elif found is not None:
                    if found != journal.data:
                        return self._other_bytes(journal, found)
                    return self._confirmed(journal)
            if error is None or attempt:
                error = yield from self._beside_birth(_put(backend, path, journal.data))
                if error is None:
                    return self._confirmed(journal)
            if not error.retryable or self.memory.replaced:
                break
        assert error is not None
        if self.memory.replaced:
            return Outcome("failed", "birth")
        return self.fault(error)

    def _beside_birth(self, task: Task) -> Task:
        """-> what the task returns, or a `BackendError` where the birth object beside it was not seen to be right."""
        got = yield Gather({"task": task, "birth": self.read_birth()})
        if got["birth"] or isinstance(got["task"], BackendError):
            return got["task"]
        return BackendError("its birth object was not seen beside a block")

    def _confirmed(self, journal: Journal) -> Outcome | None:
        """A journalled block stands: the next one may be written."""
        blocks = self.log
        self.memory.unconfirmed = False
        if (journal.v, journal.idx) == (blocks.v, blocks.chains[self.me].next_idx):
            blocks.feed(self.me, journal.data)
            self.remember(blocks.last_of(self.me))
        return None if blocks.usable else Outcome("failed", blocks.poison)

    def _claim(self) -> Task:
        """Finds the end of this device's blocks by the journal, after an earlier process or try. -> None or Outcome.

        Every block is journalled before it is sent. One that an audit of this process saw beside the right birth is not
        asked for again. Blocks that the journal does not know were written by another copy of this identity:
        `ForkError`.
        """
        memory, blocks, me = self.memory, self.log, self.me
        chain = blocks.chains[me]
        stored = yield Recall(self._journal_key)
        journal = Journal(0, 0, 0, 0, 0, b"") if stored is None else decode_journal(stored)
        wrote_last = stored is not None and stored == memory.journal
        if stored is not None and (not wrote_last or memory.unconfirmed):
            memory.unconfirmed = True
            memory.journal = stored
            if memory.unaudited:  # what that asks for is as a rule this block
                failed = yield from self._read_all()
                if failed is not None:
                    return failed
            if sha256(journal.data) == memory.stands:
                failed = self._confirmed(journal)
            else:
                failed = yield from self._send(journal, fresh=False)
            if failed is not None:
                return failed
        ends = journal.idx + 1 if journal.v == blocks.v else 0
        overtaken = journal.v != blocks.v <= journal.v_max  # the journal told of blocks in this version once
        chain.ended = chain.ended and not overtaken
        while chain.next_idx < ends or not (chain.ended or (wrote_last and not overtaken)):
            found = yield from self._read_block(me, chain.next_idx)
            if isinstance(found, BackendError):
                return self.fault(found)
            if found is None and chain.next_idx < ends:
                return self.fault(BackendError("does not show a block whose write it confirmed"))
            self._take_in(blocks, me, [found])
            if not blocks.usable:
                return Outcome("failed", blocks.poison)
        if not blocks.usable:  # what was read of the own blocks before may have been damaged on its way
            return Outcome("failed", blocks.poison)
        another = ends and chain.next_idx == ends and chain.last_hash != sha256(journal.data)
        if another or (chain.next_idx > ends and not overtaken):
            raise self._twice()
        return None

    def _other_bytes(self, sent: Journal, found: bytes) -> Outcome:
        """Other bytes lie in the place of this device's block. `ForkError` when this device signed them too."""
        base = replace(self.base, era=sent.era, epoch=sent.epoch)
        public = self.devices.key_of(self.me)
        with contextlib.suppress(FormatError, UpgradeError):
            signed = self._opened(found, base, sent.v, self.me, sent.idx)
            if public is not None and signed.verifies(public):
                raise self._twice()
        return self.poison(f"block {sent.idx} of this device, version {sent.v}, is not what was written")

    def _twice(self) -> ForkError:
        return ForkError(
            f"{self.name}: this device's identity wrote something in version {self.v} that this folder knows nothing "
            "of: a copy of the folder is in use, or its .metasync was put back from an older copy",
            next_step="this copy needs an identity of its own: `metasync clone` into a new folder, move your files "
            "there",
        )

    @property
    def _journal_key(self) -> str:
        return block_key(self.acceptor_id).name


def _outcome(blocks: Blocks, kind: Kind, rnd: Round, value: State | None) -> Outcome:
    """What came of a message that stands, after a complete read."""
    if kind is Kind.ACCEPT and rnd in blocks.votes:
        return Outcome("done")
    if blocks.closed is not None:
        return Outcome("done" if value in (None, blocks.closed) else "closed")
    return Outcome("done") if kind is Kind.PREPARE and blocks.grants(rnd) else Outcome("rejected")


def _put(backend: str, path: str, data: bytes) -> Task:
    """-> None, or the `BackendError`."""
    reply: Reply = yield Op(backend, "put", path, data, timeout_s=OP_TIMEOUT_S)
    return reply.error
