"""One acceptor as one process sees it in one version: what it showed, and what vouches for it.

Three things vouch for an acceptor. Each is read beside the step that it vouches for, so none costs a round trip:

    birth   The root is still the one that the config means (consensus.md, rule 1.9). A root that was wiped has
            forgotten what it promised and accepted. It is forgotten altogether: a store that was emptied and then
            restored from a backup does not hold what it took in between.
    audit   The acceptor still shows the last entry that it was seen to hold (consensus.md, rules 1.10 and 3.3).
            Two witnesses testify: this device's own memory, and the entry that another entry carries, whose writer read
            it there, and which a second device signed (rule 8.3). An acceptor that lacks it, or shows another one, was
            rolled back or shows different pasts to different devices. It is named, and counts no longer.
    floor   The logs of this version were not deleted (`truncation`).

A device's bare word is no proof, and an entry that the same device signed is its word alone. Nor are two signed entries
for one place, because a create that failed handed the store signed bytes: a claim by them says what that store did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from metasync.config import Acceptor, Form
from metasync.consensus.participant import (
    OP_TIMEOUT_S,
    Barred,
    Outcome,
    Participant,
    Remembered,
    Standing,
    StandingKind,
)
from metasync.consensus.records.birth import BIRTH_BYTES, birth_matches, birth_path
from metasync.consensus.records.block_replay import Blocks
from metasync.consensus.records.entry import (
    ENTRY_BYTES_MAX,
    OBJECTS_BYTES_MAX,
    Claim,
    Entry,
    Kind,
    Round,
    Seen,
    covering,
    floor_path,
    open_claim,
    open_floor,
    shown_epoch,
    with_root,
)
from metasync.consensus.records.era import read_tombstone
from metasync.consensus.records.log_replay import Log, ValueRules
from metasync.consensus.records.state import State
from metasync.errors import (
    NO_WAY,
    BackendError,
    ForkError,
    FormatError,
    FullError,
    NotFoundError,
    RefusedError,
    UpgradeError,
)
from metasync.keys.derive import sha256
from metasync.runtime.effects import Now, Op, Reply, Task, patience_s
from metasync.runtime.sizes import SMALL_BYTES_MAX

DELTA_S: Final = 300.0  # with suspend; a removed backend is wiped much later than this after the fence
TRUST_S: Final = 86_400.0  # how long a look at an acceptor's floor counts
AUDIT_TRIES: Final = 2  # one answer may have been damaged on its way
LAG_S: Final = 5.0  # before an entry that another device has just seen must be there for this one, too


class AcceptorView(ABC):
    """One acceptor of the version after `base`. Votes count only if its birth was seen right in this operation.

    `everybody`: the views of all acceptors of the version, this one among them. The flags hold for one operation, from
    `begin` on:

        born      its birth object was seen right; a step that begins takes that back
        heard     its birth object was seen right when it was asked last; counts for no vote
        vouched   its birth object was seen right beside its promise
        ended     its log was read to its end
        beyond    it was seen to hold nothing of the version after this one

    `taken`: the index that a create found taken, and that was not read then; -1 without.
    """

    form: ClassVar[Form]
    log: Log | Blocks
    taken = -1

    def __init__(
        self,
        m: Participant,
        rules: ValueRules,
        name: str,
        acceptor: Acceptor,
        everybody: Mapping[bytes, AcceptorView],
    ) -> None:
        self.m = m
        self.may_lie = rules.config.mode == "bft"
        self.rules = rules
        self.devices = rules.devices
        self.base = rules.base
        self.v = rules.base.v + 1
        self.name = name
        self.acceptor_id = acceptor.acceptor_id
        self.birth = acceptor.birth
        self.everybody = everybody
        self.memory = m.acceptors[acceptor.acceptor_id]
        self.floor: bytes | None = None  # the floor above this version, if there is one: its logs may be deleted
        self.read_at: float | None = None  # when its log was last read onwards, or written
        self.barred: Barred | None = None  # why it took no block of ours at the last try
        self.told: Claim | None = None  # what a message of ours said to it last of another acceptor
        self.forget()

    @abstractmethod
    def _empty(self) -> Log | Blocks:
        """The log of an acceptor that showed nothing."""

    def begin(self) -> None:
        """Starts an operation: a birth and an end of the log that were seen before count no longer."""
        self.born = self.heard = self.vouched = self.ended = self.beyond = False

    def forget(self) -> None:
        """Drops all that it was seen to hold: its root is not the one that the config means.

        It may come back as it was before, and must then not be thought to hold what it took in between.
        """
        self.log = self._empty()
        self.begin()

    # what is asked of it

    @abstractmethod
    def look(self, *, beyond: bool = False) -> Task:
        """Reads all that it holds of this version, with its birth beside every step. -> Outcome.

        `beyond`: where it holds something, whether it holds something of the next version too (`Instance.is_last`).
        """

    @abstractmethod
    def next_places(self) -> tuple[str, ...]:
        """Where entries of others lie that are not read yet, if there are any."""

    @abstractmethod
    def append(self, kind: Kind, rnd: Round, value: State | None, stale: Round, *, reads: bool = True) -> Task:
        """Has it take a message. -> Outcome. PREPARE does not climb over foreign rounds above `stale`.

        Not `reads`: what others wrote there is not read by it, where the form of the acceptor allows for that.
        """

    @abstractmethod
    def first_entry(self, v: int) -> Task:
        """-> the SignedEntry that begins version v there, None when it shows none, or the `BackendError`."""

    @abstractmethod
    def path_of(self, seen: Seen, epoch: int) -> str:
        """Where it must still show what it was seen to hold."""

    @abstractmethod
    def opens(self, seen: Seen, epoch: int, data: bytes) -> bool:
        """Whether bytes are an entry of that place at all, whoever made it."""

    @abstractmethod
    def note_claim(self, seen: Seen, epoch: int, teller: bytes) -> None:
        """Takes note that another device saw this here. `epoch`: whose log key names it."""

    # what it is worth

    @property
    def has_unread(self) -> bool:
        """Whether a create found an entry of another here that was not read yet."""
        return 0 <= self.taken == self.log.next_idx

    def reach(self) -> str | None:
        """The name under which the runtime reaches it; None (and its standing) when it cannot be used."""
        link = self.m.links.get(self.acceptor_id)
        if link is None:
            self.standing = Standing("unlinked", NO_WAY)
            return None
        if self.memory.rolled_back:
            self.standing = Standing("rolled back", self.memory.rolled_back)
            return None
        return link

    @property
    def standing(self) -> Standing | None:
        """How its backend fares as an acceptor, as far as is known."""
        return self.m.standings.get(self.name)

    @standing.setter
    def standing(self, standing: Standing) -> None:
        self.m.standings[self.name] = standing

    def is_out(self, *more: StandingKind) -> bool:
        """Whether it is out for good, as far as it was judged; `more`: other standings that count as out."""
        standing = self.standing
        return standing is not None and standing.kind in ("replaced", "rolled back", "unlinked", *more)

    def get(self, path: str) -> Task:
        """-> the bytes of a small object there, None when there is none, or the `BackendError`."""
        backend = self.reach()
        if backend is None:
            return BackendError("not linked")
        # As a small call, which it is but for an entry with a large device set: a large one may wait for its turn.
        reply: Reply = yield Op(backend, "get", path, max_bytes=SMALL_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
        if isinstance(reply.error, RefusedError):
            self.fault(reply.error)  # until it was read
            most = ENTRY_BYTES_MAX + OBJECTS_BYTES_MAX
            reply = yield Op(backend, "get", path, max_bytes=most, timeout_s=patience_s(most))
        if isinstance(reply.error, NotFoundError):
            return None
        return reply.error if reply.error is not None else reply.value

    def out_of_reach(self) -> Outcome:
        """After `reach` found no way to it."""
        return Outcome("failed", "" if self.standing is None else self.standing.reason)

    def fault(self, error: BackendError) -> Outcome:
        """Writes down the error that a request on it ended with, if it could be asked at all."""
        if self.reach() is None:
            return self.out_of_reach()
        kind: StandingKind = "full" if isinstance(error, FullError) else "down"
        self.standing = Standing(kind, error.message, "" if error.retryable else error.next_step)
        return Outcome("failed", error.message)

    def judge(self) -> None:
        """Writes down how it fares, after it answered, and what counts for nobody there."""
        while self.log.void_values:
            device_id, why = self.log.void_values.pop()
            self.m.void_values[device_id, self.v] = why
        if self.memory.replaced:
            self.standing = Standing("replaced", self.memory.replaced)
        elif self.log.poison:
            self.standing = Standing("poisoned", self.log.poison)
        else:
            self.standing = Standing("ok")

    def poison(self, why: str) -> Outcome:
        """From here on it gives no promise and no vote in this version: what it shows is made up."""
        self.log.poison = why
        self.judge()
        return Outcome("failed", why)

    def accuse(self, why: str) -> None:
        """From here on it is out: it neither promises nor votes, holds no copy, and `status` names it."""
        self.memory.rolled_back = why
        self.m.evidence.append((self.name, why))
        self.forget()
        self.reach()

    def note_read(self, at: float) -> None:
        """Its log was read onwards, or written, by a request that was sent at this time."""
        self.read_at = at
        self.m.now = max(self.m.now, at)

    def is_fresh(self) -> bool:
        """Whether what its log shows may be counted: it was read at most DELTA_S ago."""
        return self.read_at is None or self.m.now - self.read_at <= DELTA_S

    def counts(self) -> bool:
        """Whether its votes count: its birth was seen right in this operation, and its log read lately."""
        return self.born and self.is_fresh()

    def vouch(self, outcome: Outcome) -> Outcome:
        """What an append came to: `done` counts only with the right birth."""
        self.judge()
        if outcome.kind != "done":
            return outcome
        if not self.born:
            return Outcome("failed", "birth")
        self.vouched = True
        return outcome

    # what vouches for it

    def vouching(self) -> Task:
        """-> what is asked beside every step: its birth; what it was seen to hold, and its floor, where that is open.

        {"birth": Task, "audit": Task, "floor": Task}, each of which returns a bool.
        """
        branches = {"birth": self.read_birth()}
        if self.memory.unaudited:
            branches["audit"] = self.audit()
        if not (yield from self.has_no_floor(self.v)):
            branches["floor"] = self.read_floor()
        return branches

    def read_birth(self) -> Task:
        """-> bool: the root is the one the config means. Notes it in `born`, or why not in the standings."""
        self.born = False
        backend = self.reach()
        if backend is None:
            return False
        path = birth_path(self.acceptor_id)
        asked = yield Now()
        reply: Reply = yield Op(backend, "get", path, max_bytes=ENTRY_BYTES_MAX, timeout_s=OP_TIMEOUT_S)
        self.heard, self.memory.born_at = False, None
        if isinstance(reply.error, NotFoundError):
            why = "its birth object is missing: it was emptied"
        elif reply.error is not None:
            self.fault(reply.error)
            return False
        elif birth_matches(reply.value, self.acceptor_id, self.birth):
            self.memory.replaced, self.memory.born_at = "", asked
            self.born = self.heard = True
            return True
        elif (stone := read_tombstone(reply.value, self.acceptor_id, self.birth)) is not None:
            self.memory.tombstone = stone
            if stone.era == self.m.recovering:
                self.born = True
                return True
            why = f"it was retired: the workspace was restarted as era {stone.era}"
        else:
            why = f"its birth object is another ({len(reply.value)} bytes, {BIRTH_BYTES} expected): it was replaced"
        self.memory.replaced, self.memory.stands = why, b""
        self.forget()
        self.judge()
        return False

    def has_no_floor(self, v: int) -> Task:
        """-> bool: it was lately seen to have no floor above v."""
        floor, seen_s = self.memory.no_floor
        return floor == covering(v) and (yield Now()) - seen_s <= TRUST_S

    def read_floor(self) -> Task:
        """Looks whether a floor covers this version. -> bool: none does, and what this acceptor lacks counts."""
        asked = yield Now()
        found = yield from self.get(floor_path(self.acceptor_id, covering(self.v)))
        if found is None:
            self.memory.no_floor = covering(self.v), asked
        elif isinstance(found, BackendError):
            self.fault(found)
        else:
            self.floor = found
        return found is None

    def audit(self) -> Task:
        """Looks whether it still shows the last entry that it was seen to hold. -> bool: it does.

        Once per process, and after every claim that was noted. One that shows nothing there, or another entry, was
        rolled back or lies (or was emptied: its birth object tells which).
        """
        memory, last = self.memory, self.memory.last
        assert last is not None
        epoch, seen = last
        path = self.path_of(seen, epoch)
        for _ in range(AUDIT_TRIES):
            found = yield from self.get(path)
            if not isinstance(found, bytes) or sha256(found) == seen.hash:
                break
        if isinstance(found, BackendError):
            self.fault(found)
            return False
        if found is not None and sha256(found) == seen.hash:
            if memory.last is last:
                memory.unaudited = False
            memory.suspicion = ""
            return True
        if found is not None and not self.opens(seen, epoch, found):  # on its way, again and again: no other entry
            self.fault(BackendError(f"{_entry(seen)} is damaged"))
            return False
        return (yield from self._missed(last, gone=found is None))

    def _missed(self, last: Remembered, *, gone: bool) -> Task:
        """After an entry was not found, or another one. -> bool: a floor explains it; else it may be suspicious."""
        memory, seen = self.memory, last.seen
        # Below a floor it was deleted, and what a machine that slept has sent since may lie in its place.
        deleted = yield from self._is_below_floor(seen.v)
        if deleted is None:
            return False  # a store that is too busy to say has done nothing wrong
        if deleted:
            if memory.last is last:
                memory.last, memory.unaudited = None, False
            return True
        if memory.told_by and (yield Now()) - memory.told_at < LAG_S:
            return False  # the store may show it a little later to this device than to that one
        told = f", which device {memory.told_by.hex()[:8]} saw," if memory.told_by else ""
        memory.suspicion = f"{_entry(seen)}{told} is {'gone' if gone else 'another'}"
        return False

    def _is_below_floor(self, v: int) -> Task:
        """-> bool: it has a floor above v, so that its log of v may have been deleted. None if it does not answer."""
        found = yield from self.get(floor_path(self.acceptor_id, covering(v)))
        if isinstance(found, BackendError):
            self.fault(found)
            return None
        if found is None:
            return False
        if shown_epoch(found) > self.m.keys.epoch:
            return True  # not to be read yet: who looks further finds the keys, or takes the acceptor for broken
        try:
            open_floor(self.m.keys, found, self.acceptor_id, covering(v))
        except (FormatError, UpgradeError):
            return False
        return True

    def unaudited(self) -> Outcome:
        """After an audit that failed, with the birth object read beside it."""
        self.ended = False
        why, self.memory.suspicion = self.memory.suspicion, ""
        if why and self.born:
            self.accuse(why)
        self.born = False
        return Outcome("failed", why or "it was not audited")

    # what it, and others, were seen to hold

    def remember(self, seen: Seen | None) -> None:
        """Keeps the newest of what it showed: an entry, in block form this device's own last block."""
        last = self.memory.last
        if seen is not None and (last is None or (last.seen.v, last.seen.idx) < (seen.v, seen.idx)):
            self.memory.last = Remembered(self.base.epoch, seen)

    def next_claim(self) -> Claim | None:
        """What the next message to it says of the acceptor after it by id, or else of one further on; once.

        So the messages to all of them speak of all of them. It holds what this process read, and asks for nothing.
        """
        order = sorted(self.everybody, key=lambda a: (a <= self.acceptor_id, a))
        shown = (m.shown for a in order[:-1] if not (m := self.m.acceptors[a]).rolled_back and not m.replaced)
        claim = next((c for c in shown if c and self.v - self.may_lie <= c.v <= self.v), None)
        return None if claim == self.told else claim

    def message(self, kind: Kind, rnd: Round, value: State | None, place: tuple[int, bytes], entry_id: bytes) -> Entry:
        """A message of this device's. `place`: its index, and the hash of the one before it."""
        config, devices, steps = self.rules.carried(value, self.m.objects)
        entry = Entry(
            acceptor_id=self.acceptor_id,
            v=self.v,
            idx=place[0],
            prev_entry=place[1],
            base=self.base,
            kind=kind,
            round=rnd,
            value=value,
            entry_id=entry_id,
            device_id=self.m.identity.device_id,
            claim=self.next_claim(),
            config=config,
            devices=devices,
            steps=steps,
        )
        rides = value is not None and value.index_rides
        return with_root(entry, self.rules.riding[value.index.hash]) if value is not None and rides else entry

    def lacks_root(self, value: State | None) -> bool:
        """Whether a message with this value cannot be made: no entry with it was seen, and its index rides in these."""
        return value is not None and value.index_rides and value.index.hash not in self.rules.riding

    def note_claims(self, entry: Entry) -> None:
        """Takes the entry that an admitted writer found elsewhere for what that acceptor must show, to us too.

        It counts if it is one of its place, and an admitted device signed it other than the writer, who could make both
        up. Among acceptors that may lie, one of the version before counts as well, if the devices of then are known.
        """
        claim, m, base = entry.claim, self.m, self.base
        if claim is None or entry.device_id == m.identity.device_id or claim.acceptor_id not in self.everybody:
            return
        if not entry.v - self.may_lie <= claim.v <= entry.v:
            return
        now = claim.v == entry.v
        try:
            signed = open_claim(m.keys, claim, base.ns_id, base.hash if now else base.prev)
        except (FormatError, UpgradeError):
            return
        said = signed.entry
        devices = self.devices if now else m.device_sets.get(said.base.devices)
        public = None if devices is None or said.device_id == entry.device_id else devices.key_of(said.device_id)
        if public is not None and signed.verifies(public):
            seen = Seen(claim.acceptor_id, claim.v, claim.idx, sha256(claim.data))
            self.everybody[claim.acceptor_id].note_claim(seen, said.base.epoch, entry.device_id)


def two_values(v: int, where: str = "") -> ForkError:
    """The error for a round in which two values were proposed, either of which may be decided."""
    return ForkError(
        f"{where}{': ' * bool(where)}two values were proposed in one round of version {v}: two processes run as one",
        next_step="a memory snapshot of this or another device was resumed twice; stop one of the two. If none was, a "
        "device lies: metasync recover goes past it, and --revoke NAME shuts it out",
    )


def _entry(seen: Seen) -> str:
    return f"entry {seen.idx} of version {seen.v}"
