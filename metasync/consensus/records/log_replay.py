"""A log replayed: what one passive acceptor has promised and accepted for one version (consensus.md, rule 1.4).

A backend only keeps entries in order; this module is the acceptor. Whether an entry is *effective* depends on the
immutable entries before it alone, so every reader of the same log computes the same promises and votes: "b accepted
(r, x)" is a stable fact. A log is read from index 0, without holes, and never beyond the first absent index.

    PREPARE(r)    effective iff r > promised                                     promised = r
    ACCEPT(r, x)  effective iff r >= promised and not another value in round r   promised = accepted round = r
    DECIDED(x)    closes the log: nothing later is effective

A signer whom the device set of v-1 does not admit makes an entry VOID: it keeps its index and has no effect. Any other
fault is POISON: what was accepted before stays evidence, but the acceptor gives no promise and no vote in this version.
An entry of a newer format has the same consequence, and `newer` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from metasync.consensus.records.entry import Entry, Kind, Round, Seen, SignedEntry, open_entry
from metasync.consensus.records.state import ZERO_HASH, State, follows
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import sha256
from metasync.keys.device_set import DeviceSet
from metasync.keys.keyring import WorkspaceKeys

LOG_ENTRIES_MAX: Final = 10_000  # a longer log of one version is an attack: every reader reads it all

NEVER: Final = Round(-1, b"")


def accept_effective(promised: Round, votes: dict[Round, State], rnd: Round, value: State, base: State) -> bool:
    """`votes`: what this acceptor has accepted so far, by round."""
    if rnd.n == 0 and rnd.incarnation != base.writer:
        return False  # round 0 is the owner's alone
    return rnd >= promised and votes.get(rnd, value) == value


@dataclass(eq=False)
class Replay:
    """What is known of one acceptor in the version after `base`: as a log (`Log`), or as blocks (`block_replay`)."""

    keys: WorkspaceKeys
    devices: DeviceSet
    base: State
    acceptor_id: bytes
    promised: Round = NEVER
    accepted: tuple[Round, State] | None = None  # in the highest round
    votes: dict[Round, State] = field(default_factory=dict)
    closed: State | None = None
    poison: str = ""
    newer: bool = False
    fork: bool = False

    @property
    def v(self) -> int:
        return self.base.v + 1

    @property
    def usable(self) -> bool:
        """False when this acceptor neither promises nor votes in this version."""
        return not self.poison

    def refuse(self, place: str, error: FormatError | UpgradeError) -> None:
        """From here on nothing more is to be read."""
        self.newer = isinstance(error, UpgradeError)
        self.poison = f"{place}: {error.message}"

    def checked(self, signed: SignedEntry, public: bytes | None, last: bytes) -> Entry:
        """The message, if it is signed by this key, on this base, and names the one before. `FormatError` poisons."""
        entry = signed.entry
        if public is None or not signed.verifies(public):
            raise FormatError(f"a wrong signature of device {entry.device_id.hex()}")
        if entry.base != self.base:
            self.fork = True
            raise FormatError("signed on top of another state than the one this device knows to be decided")
        if entry.prev_entry != last:
            raise FormatError("it does not name the one before it: one was replaced, or the log cut")
        if entry.value is not None and not follows(entry.value, self.base):
            raise FormatError("a value that cannot follow its base")
        return entry


@dataclass(eq=False)
class Log(Replay):
    """One acceptor's log of the version after `base`, as far as it was read. `hashes`: of every entry read."""

    hashes: list[bytes] = field(default_factory=list)
    void: int = 0

    @property
    def next_idx(self) -> int:
        """The first index that was not read."""
        return len(self.hashes)

    @property
    def last_hash(self) -> bytes:
        return self.hashes[-1] if self.hashes else ZERO_HASH

    @property
    def silent(self) -> bool:
        """True when nobody can have counted a vote here, as far as the log was read."""
        return not self.votes and self.closed is None

    @property
    def shut(self) -> bool:
        """True when nothing is accepted here any more, and all that was is known."""
        return self.closed is not None

    def grants(self, rnd: Round) -> bool:
        """True when `rnd` was promised, and nothing higher since."""
        return self.promised == rnd

    @property
    def seen(self) -> Seen | None:
        """The last entry read, or None while the log is empty."""
        if not self.next_idx:
            return None
        return Seen(self.acceptor_id, self.v, self.next_idx - 1, self.last_hash)

    def feed(self, data: bytes) -> Entry | None:
        """Replays the bytes found at `next_idx`. Returns the entry if it is valid or VOID, None if it poisons.

        Nothing is raised. After POISON the log is read no further.
        """
        if self.poison:
            return None
        idx, last = self.next_idx, self.last_hash
        self.hashes.append(sha256(data))
        try:
            entry, admitted = self._judged(data, idx, last)
        except (FormatError, UpgradeError) as e:
            self.refuse(f"entry {idx} of version {self.v}", e)
            return None
        if admitted:
            self._apply(entry)
        else:
            self.void += 1
        return entry

    def _judged(self, data: bytes, idx: int, last: bytes) -> tuple[Entry, bool]:
        """The entry, and whether its signer is admitted. `FormatError` poisons."""
        base = self.base
        if idx >= LOG_ENTRIES_MAX:
            raise FormatError(f"more than {LOG_ENTRIES_MAX} entries in one version")
        ns_id, era, epoch, a = base.ns_id, base.era, base.epoch, self.acceptor_id
        signed = open_entry(self.keys, data, ns_id=ns_id, era=era, epoch=epoch, acceptor_id=a, v=self.v, idx=idx)
        entry = signed.entry
        public = self.devices.key_of(entry.device_id, entry.certificate)
        if public is None:  # judged before anything else, or a revoked device could poison
            return entry, False
        return self.checked(signed, public, last), True

    def append_own(self, entry: Entry, data: bytes) -> None:
        """Takes in an entry that this process sealed and that was created at `next_idx` (Lemma A: no fetch needed)."""
        assert (entry.idx, entry.prev_entry, self.poison) == (self.next_idx, self.last_hash, "")
        self.hashes.append(sha256(data))
        self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        if self.closed is not None:
            return
        rnd, value = entry.round, entry.value
        if value is None:
            if rnd > self.promised:
                self.promised = rnd
        elif entry.kind is Kind.DECIDED:
            self.closed = value
        elif accept_effective(self.promised, self.votes, rnd, value, self.base):
            self.promised = rnd
            self.accepted = (rnd, value)
            self.votes[rnd] = value
