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

from typing import Final

from metasync.consensus.records.entry import Entry, Kind, Round, Seen, open_entry
from metasync.consensus.records.state import ZERO_HASH, State, follows
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import sha256
from metasync.keys.device_set import DeviceSet
from metasync.keys.keyring import WorkspaceKeys

LOG_ENTRIES_MAX: Final = 10_000  # a longer log of one version is an attack: every reader reads it all

NEVER: Final = Round(-1, b"")


def prepare_effective(promised: Round, rnd: Round) -> bool:
    return rnd > promised


def accept_effective(promised: Round, votes: dict[Round, State], rnd: Round, value: State, base: State) -> bool:
    """`votes`: what this acceptor has accepted so far, by round."""
    if rnd.n == 0 and rnd.incarnation != base.writer:
        return False  # round 0 is the owner's alone
    return rnd >= promised and votes.get(rnd, value) == value


class Log:
    """One acceptor's log of the version after `base`, as far as it was read."""

    def __init__(self, keys: WorkspaceKeys, devices: DeviceSet, base: State, acceptor_id: bytes) -> None:
        self.keys = keys
        self.devices = devices
        self.base = base
        self.v = base.v + 1
        self.acceptor_id = acceptor_id
        self.hashes: list[bytes] = []  # of every entry read
        self.promised = NEVER
        self.accepted: tuple[Round, State] | None = None
        self.votes: dict[Round, State] = {}
        self.closed: State | None = None
        self.rounds: set[Round] = set()  # of effective entries
        self.poison = ""
        self.newer = False
        self.fork = False
        self.void = 0

    @property
    def next_idx(self) -> int:
        """The first index that was not read."""
        return len(self.hashes)

    @property
    def last_hash(self) -> bytes:
        return self.hashes[-1] if self.hashes else ZERO_HASH

    @property
    def usable(self) -> bool:
        """False when this acceptor neither promises nor votes in this version."""
        return not self.poison

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
        except UpgradeError as e:
            self.newer = True
            self.poison = f"entry {idx} of version {self.v}: {e.message}"
            return None
        except FormatError as e:
            self.poison = f"entry {idx} of version {self.v}: {e.message}"
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
        signed = open_entry(
            self.keys,
            data,
            ns_id=base.ns_id,
            era=base.era,
            epoch=base.epoch,
            acceptor_id=self.acceptor_id,
            v=self.v,
            idx=idx,
        )
        entry = signed.entry
        public = self.devices.key_of(entry.device_id, entry.certificate)
        if public is None:  # judged before anything else, or a revoked device could poison
            return entry, False
        if not signed.verifies(public):
            raise FormatError(f"a wrong signature of device {entry.device_id.hex()}")
        if entry.base != base:
            self.fork = True
            raise FormatError("signed on top of another state than the one this device knows to be decided")
        if entry.prev_entry != last:
            raise FormatError("it does not name the entry before it: the log was cut or spliced")
        if entry.value is not None and not follows(entry.value, base):
            raise FormatError("a value that cannot follow its base")
        return entry, True

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
            if prepare_effective(self.promised, rnd):
                self.promised = rnd
                self.rounds.add(rnd)
        elif entry.kind is Kind.DECIDED:
            self.closed = value
        elif accept_effective(self.promised, self.votes, rnd, value, self.base):
            self.promised = rnd
            self.accepted = (rnd, value)
            self.votes[rnd] = value
            self.rounds.add(rnd)
