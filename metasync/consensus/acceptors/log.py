"""Acceptors in log form: reading a log onwards, and appending to it (consensus.md, rules 1.2 and 1.6).

For backends whose create-if-absent is atomic. An entry is created only at the first index that was not read, so a
create that succeeds shows that the log before it is what was read, and its acceptor's answer is known without a fetch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from metasync.consensus.acceptors.view import AcceptorView
from metasync.consensus.participant import OP_TIMEOUT_S, Outcome, Participant, Remembered
from metasync.consensus.records.entry import (
    CLAIM_BYTES_MAX,
    ENTRY_BYTES_MAX,
    Claim,
    Entry,
    Kind,
    Round,
    Seen,
    SignedEntry,
    entry_path,
    open_entry,
    refs_in,
    seal_entry,
    with_refs,
)
from metasync.consensus.records.log_replay import Log
from metasync.consensus.records.state import State
from metasync.errors import BackendError, FormatError, UpgradeError
from metasync.runtime.effects import Gather, Now, Op, Random, Reply, Sleep, Task, patience_s

CREATE_TRIES: Final = 3  # of the same bytes at the same index, when the outcome is unknown
UNSHOWN: Final = "says that a log entry exists, and does not show it"
LAG_TRIES: Final = 5  # reads of a slot that a create found taken (a provider's reads may lag)
RETRY_FIRST_S: Final = 0.05
AHEAD: Final = 2  # entries read side by side once a log is known to hold one: ACCEPT after PREPARE, and the end
AHEAD_OF_TAKEN: Final = 3  # the same where a create found another's entry: a PREPARE, its ACCEPT, and the end
AHEAD_MAX: Final = 16  # the same in a log that turns out to be long: one of 10,000 entries takes some 700 round trips
FULL: Final = "its log takes no more entries of this version"
NO_ROOT: Final = "the index that rides in the entries of this version is not known"


class LogAcceptor(AcceptorView):
    """An acceptor in log form."""

    form = "log"
    log: Log

    def _empty(self) -> Log:
        self.taken = -1
        return Log(self.m.keys, self.rules, self.acceptor_id)

    def place(self, idx: int, v: int | None = None, epoch: int | None = None) -> str:
        """Where an entry of this version lies; or one of another version or epoch."""
        base = self.base
        epoch = base.epoch if epoch is None else epoch
        return entry_path(self.m.keys, epoch, base.era, self.acceptor_id, self.v if v is None else v, idx)

    def next_places(self) -> tuple[str, ...]:
        return (self.place(self.log.next_idx),)

    def path_of(self, seen: Seen, epoch: int) -> str:
        return self.place(seen.idx, seen.v, epoch)

    def opens(self, seen: Seen, epoch: int, data: bytes) -> bool:
        try:
            self._opened(data, seen.v, seen.idx, epoch)
        except FormatError:
            return False
        except UpgradeError:
            pass
        return True

    def _opened(self, data: bytes, v: int, idx: int, epoch: int) -> SignedEntry:
        base, a = self.base, self.acceptor_id
        return open_entry(self.m.keys, data, ns_id=base.ns_id, era=base.era, epoch=epoch, acceptor_id=a, v=v, idx=idx)

    # reading

    def read_beyond(self) -> Task:
        """-> bool: it shows no entry 0 of the version after this one, by the names of the same epoch."""
        return (yield from self.get(self.place(0, self.v + 1))) is None

    def first_entry(self, v: int) -> Task:
        found = yield from self.get(self.place(0, v))
        if not isinstance(found, bytes):
            return found
        try:
            return self._opened(found, v, 0, self.base.epoch)
        except (FormatError, UpgradeError) as e:
            return BackendError(f"entry 0 of version {v}: {e.message}")  # no answer, and not "nothing there"

    def look(self, *, beyond: bool = False) -> Task:
        """Reads the log onwards to its end, and the birth object beside every step. -> Outcome.

        Two requests when nothing is new (a third audits an acceptor met for the first time). Further entries are read
        AHEAD at a time; with `beyond`, entry 0 of the next version beside the first of them.
        """
        self.ended = False
        if self.reach() is None:
            return self.out_of_reach()
        others_wrote = any(a.has_unread for a in self.everybody.values())  # here too, then
        width, lags = AHEAD_OF_TAKEN if others_wrote else 1, 0
        while (log := self.log).usable:
            before = yield Now()
            branches = {str(i): self.get(self.place(log.next_idx + i)) for i in range(width)}
            branches |= yield from self.vouching()
            if width > 1 and beyond and (yield from self.has_no_floor(self.v + 1)):
                branches["beyond"] = self.read_beyond()
                beyond = False
            got: Mapping[str, Any] = yield Gather(branches)
            if not got.get("audit", True):
                return self.unaudited()
            if not got["birth"]:
                return Outcome("failed", "birth")
            self.m.waited((yield Now()) - before)
            if not got.get("floor", True) or not (yield from self.has_no_floor(self.v)):
                return Outcome("failed", "its floor is above, or is not known")
            self.beyond |= got.get("beyond", False)
            for i in range(width):
                found = got[str(i)]
                if isinstance(found, BackendError):
                    return self.fault(found)
                if found is None:
                    self.note_read(before)
                    self.ended = log.next_idx != self.taken
                    break
                self._take_in(log, found)
                if not log.usable:
                    break
            if log.usable and self.has_unread:  # it was said to be there, and is not shown yet
                if (lags := lags + 1) == LAG_TRIES:
                    return self.fault(BackendError(UNSHOWN))
                yield Sleep(RETRY_FIRST_S * (1 << lags))
                continue
            if self.ended:
                self.judge()
                return Outcome("done")
            width = min(max(AHEAD, log.next_idx // AHEAD_MAX), AHEAD_MAX)
        self.judge()
        return Outcome("failed", log.poison)

    def take(self, found: Sequence[Any], asked: float) -> None:
        """Takes in what was read of its next entries, at this time (seconds), beside all that vouches for it."""
        self.born = self.heard = True
        for data in found:
            if not isinstance(data, bytes) or not self.log.usable:
                break
            self._take_in(self.log, data)
        self.note_read(asked)

    def _take_in(self, log: Log, data: bytes) -> None:
        """Replays bytes that were read, and remembers them and what their writer found elsewhere."""
        void = log.void
        entry = log.feed(data)
        if entry is not None:
            self._remember_log(log)
            if entry.value is not None and (refs := refs_in(entry)):
                self.m.added = {entry.value.hash: refs}
            self.m.keep_riding(entry.value, self.rules.riding)
            if log.void == void:
                self._keep_shown(entry, log.next_idx - 1, data)
                self.note_claims(entry)

    def _remember_log(self, log: Log) -> None:
        """Keeps the last good entry of the log: what this acceptor must be able to show from now on."""
        if log.usable:
            self.remember(log.seen)

    def _keep_shown(self, entry: Entry, idx: int, data: bytes) -> None:
        """Keeps a member's entry, for this device's messages to others to carry."""
        last, device = self.memory.shown, entry.device_id
        newer = last is None or (last.v, last.idx) < (entry.v, idx)
        if newer and device != self.m.identity.device_id and self.devices.get(device) and len(data) <= CLAIM_BYTES_MAX:
            self.memory.shown = Claim(self.acceptor_id, entry.v, idx, data)

    def note_claim(self, seen: Seen, epoch: int, teller: bytes) -> None:
        """Another device saw this entry here: from now on this acceptor must show it to us too."""
        # What poisons a log may have been damaged on its way.
        hashes = self.log.hashes if seen.v == self.v and self.log.usable else []
        if seen.idx < len(hashes):
            if hashes[seen.idx] != seen.hash:
                who = teller.hex()[:8]
                self.accuse(f"entry {seen.idx} of version {seen.v} is another than the one that device {who} saw")
            return
        memory = self.memory
        if memory.last is None or (memory.last.seen.v, memory.last.seen.idx) < (seen.v, seen.idx):
            memory.last = Remembered(epoch, seen)
            memory.told_by, memory.told_at = teller, self.m.now
            memory.unaudited = True

    # appending

    def append(self, kind: Kind, rnd: Round, value: State | None, stale: Round, *, reads: bool = True) -> Task:
        """Appends one message to the log. -> Outcome.

        A create at the first index not read either succeeds, and then the log before it is known (Lemma A), or finds
        the slot taken, and then that entry is read and replayed and the next index tried. A reply that got lost is
        asked for again with the same bytes at the same index. PREPARE does not climb over foreign rounds above `stale`.
        Not `reads`: a slot that is taken is `met`, and left to the `look` that follows.

        The birth object is read beside every create: a vote counts only where it is right, because a root that was
        wiped accepts what it had promised not to (consensus.md, rule 1.9); and so does a promise, because a root that
        was wiped has forgotten what it accepted, and another value would be chosen over it.
        """
        m = self.m
        backend = self.reach()
        if backend is None:
            return self.out_of_reach()
        entry, data, unknown, checked = None, b"", 0, False
        while True:
            log = self.log
            outcome = self._known_outcome(log, kind, rnd, value, stale)
            before = yield Now()
            m.now = max(m.now, before)
            if outcome is not None:
                if outcome.kind == "done" and not checked and self.is_fresh():
                    yield from self.read_birth()
                elif outcome.kind == "done" and not checked:
                    yield from self.look()
                return self.vouch(outcome)
            if entry is None or entry.idx != log.next_idx:
                entry, data = self.sealed(log, kind, rnd, value, (yield Random(48)))
                unknown = 0
            reply, refused = yield from self._beside(backend, entry, data)
            if refused is not None:
                return refused  # what was created stands there, and is not counted
            checked = True
            if reply.error is not None:
                unknown += 1
                if not reply.error.retryable or unknown >= CREATE_TRIES:
                    return self.fault(reply.error)
                yield Sleep(RETRY_FIRST_S * (1 << unknown))
            elif not self.born:
                return Outcome("failed", "birth")  # not taken in: it may have landed in another root than is meant
            elif not (yield from self.has_no_floor(self.v)):
                unknown = 0  # the machine slept through the request: the same bytes are asked for again
            elif reply.value:
                log.append_own(entry, data)
                self.told = entry.claim or self.told
                self._remember_log(log)
                self.note_read(before)
            else:
                checked = False
                outcome = yield from self._behind_taken(reads)
                if outcome is not None:
                    return outcome

    def sealed(self, log: Log, kind: Kind, rnd: Round, value: State | None, entropy: bytes) -> tuple[Entry, bytes]:
        """The next entry of the log, and its bytes."""
        m = self.m
        entry = self.message(kind, rnd, value, (log.next_idx, log.last_hash), entropy[32:48])
        if self.devices.get(m.identity.device_id) is None:
            entry = replace(entry, certificate=m.certificate)
        if value is not None and value.op_id == m.adding[0] and not value.index_rides:
            entry = with_refs(entry, m.adding[1])
        return entry, seal_entry(m.keys, entry, m.identity.sign_private, entropy[:32])

    def _beside(self, backend: str, entry: Entry, data: bytes) -> Task:
        """Creates an entry, with all that vouches for it beside it. -> (Reply, None or the Outcome that refuses it)."""
        if not self.log.takes(len(data)):
            return Reply(), Outcome("failed", FULL)  # every reader would take it for poison
        wait_s = OP_TIMEOUT_S if len(data) <= ENTRY_BYTES_MAX else patience_s(len(data))
        create = Op(backend, "create", self.place(entry.idx), data, timeout_s=wait_s)
        got = yield Gather({"create": _create(self.m, create), **(yield from self.vouching())})
        if not got.get("audit", True):
            return got["create"], self.unaudited()
        if not got.get("floor", True):
            return got["create"], Outcome("failed", "its floor is above, or is not known")
        return got["create"], None

    def _behind_taken(self, reads: bool) -> Task:
        """After a create that found its slot taken. -> None where the entry there was read, or the Outcome."""
        if not reads:
            self.taken = self.log.next_idx
            return self.vouch(Outcome("met"))
        error = yield from self._read_taken()
        return None if error is None else self.fault(error)

    def _read_taken(self) -> Task:
        """Reads the slot that a create found taken. -> None, or the `BackendError`."""
        log = self.log
        for attempt in range(LAG_TRIES):
            before = yield Now()
            got = yield Gather({"slot": self.get(self.place(log.next_idx)), "birth": self.read_birth()})
            found = got["slot"]
            if isinstance(found, BackendError):
                return found
            if not got["birth"]:
                return BackendError("its birth object was not seen beside a log entry")
            if not (yield from self.has_no_floor(self.v)):
                return BackendError("its floor was looked at too long ago: the machine slept")
            if found is not None:
                self._take_in(log, found)
                if self.is_fresh():  # one entry more does not make old ones fresh: what lies behind it is unread
                    self.note_read(before)
                return None
            yield Sleep(RETRY_FIRST_S * (1 << attempt))
        return BackendError(UNSHOWN)

    def _known_outcome(self, log: Log, kind: Kind, rnd: Round, value: State | None, stale: Round) -> Outcome | None:
        """What the log says about our message already; None: it has to be appended."""
        if not log.usable:
            return Outcome("failed", log.poison)
        if kind is Kind.ACCEPT and rnd in log.votes:
            return Outcome("done")
        if log.closed is not None:
            return Outcome("done" if value is None or value == log.closed else "closed")
        if self.lacks_root(value):
            return Outcome("failed", NO_ROOT)
        if kind is Kind.DECIDED:
            assert value is not None
            return None if log.closes(value) else Outcome("failed", "it has not voted for what is decided")
        if log.promised > rnd:
            return Outcome("rejected")
        if kind is Kind.PREPARE:
            if log.promised == rnd:
                return Outcome("done")
            if log.promised > stale and log.promised.incarnation != self.m.incarnation:
                return Outcome("met")
        return None


def _create(m: Participant, op: Op) -> Task:
    """-> Reply; takes the time."""
    before = yield Now()
    reply: Reply = yield op
    if reply.error is None:
        m.timed((yield Now()) - before)
    return reply
