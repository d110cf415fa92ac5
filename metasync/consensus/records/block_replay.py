"""What is known of one acceptor in block form, in one version: every admitted device's own chain of blocks.

Theory of operation (after Disk Paxos; consensus.md, rules 7.1 and 7.2). Where no create is atomic, two devices must
never write one name. So each writes blocks of its own, numbered per (acceptor, version, device) 0, 1, 2, ...,
immutable, each naming the hash of the one before, the next only once the one before stands. There is no order between
two devices' blocks, so the acceptor's answer is not in the bytes: it is in *when* they were read.

    PREPARE(r)    is promised once it stands and a complete read that began after that shows no round above r
    ACCEPT(r, x)  counts once it stands, or was seen, and a complete read that began after that shows no round above r

    DECIDED(x)    where an ACCEPT of x stands: as good as any promise once it was seen, and a complete read began after

A *complete read* asks for every admitted device's blocks to the first that is absent. Of two messages on one acceptor,
whichever was read for later began its read when the other stood: either the ACCEPT is seen by whoever promises the
higher round, or the PREPARE is seen by whoever would count the ACCEPT. Once counted, a vote stays counted. What was
seen and did not count is undetermined, others may have counted it: it is evidence for the next proposer all the same.

Who may write are the devices of state v-1, never whom a listing shows. This module keeps the books and reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from metasync.consensus.records.entry import Entry, Kind, Round, Seen, open_block
from metasync.consensus.records.log_replay import LOG_BYTES_MAX, NEVER, Replay, ValueRules, VoidError
from metasync.consensus.records.state import ZERO_HASH, State
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import sha256
from metasync.keys.keyring import WorkspaceKeys

CHAIN_BLOCKS_MAX: Final = 10_000  # of one device in one version; more is an attack: every reader reads them all


@dataclass
class Chain:
    """One device's blocks as far as they were read. `ended`: to the first that was absent, once."""

    next_idx: int = 0
    last_hash: bytes = ZERO_HASH
    ended: bool = False


class Known(NamedTuple):
    """The messages that were known to stand when a read began."""

    prepares: frozenset[Round]
    accepts: frozenset[Round]
    promised: Round
    closed: bool


class Blocks(Replay):
    """One acceptor's blocks of the version after `base`.

    `promised`: the highest round seen: nothing below it is promised or counted any more; `accepted`: counted or not.
    `votes`: those counted. `shut`: closed, and a complete read since then shows what was accepted before. `clash`: two
    values in one round, in the chains of two devices. In one chain the first counts, as all readers see it first.
    """

    def __init__(self, keys: WorkspaceKeys, rules: ValueRules, acceptor_id: bytes) -> None:
        super().__init__(keys, rules, acceptor_id)
        self.chains = {c.device_id: Chain() for c in rules.devices.certificates}
        self.size = 0
        self.shut = False
        self.clash = False
        self._told: dict[bytes, State] = {}  # by each device's DECIDED; without an ACCEPT of it here, nothing
        self._accepts: dict[Round, State] = {}
        self._first: dict[tuple[bytes, Round], State] = {}  # by device: the value that it accepted in a round
        self._granted: set[Round] = set()
        self._settled = NEVER  # the highest round that a complete read has followed

    @property
    def silent(self) -> bool:
        """True when nobody can have counted a vote here, as far as was read: an ACCEPT that was seen may have been."""
        return not self._accepts

    @property
    def accepts(self) -> Mapping[Round, State]:
        """Every value that was accepted here, by round, counted or not."""
        return self._accepts

    @property
    def next_idx(self) -> int:
        """How many blocks were read."""
        return sum(chain.next_idx for chain in self.chains.values())

    def lacks(self, rnd: Round) -> bool:
        """True when this round was not promised here, and never can be: a higher one stood before all was read."""
        return rnd not in self.prepared and self._settled >= rnd

    def closes(self, value: State) -> bool:
        return value in ({self.closed} if self.closed is not None else self._accepts.values())

    def takes(self, size: int) -> bool:
        return self.size + size <= LOG_BYTES_MAX

    def grants(self, rnd: Round) -> bool:
        """True when `rnd` was promised, and nothing higher was seen since."""
        return rnd in self._granted and self.promised == rnd

    def stands(self, kind: Kind, rnd: Round) -> bool:
        """True when this message was read, or written and confirmed."""
        if kind is Kind.DECIDED:
            return self.closed is not None
        return rnd in (self.prepared if kind is Kind.PREPARE else self._accepts)

    def last_of(self, device_id: bytes) -> Seen | None:
        """A device's last block that was read."""
        chain = self.chains.get(device_id)
        if chain is None or not chain.next_idx:
            return None
        return Seen(self.acceptor_id, self.v, chain.next_idx - 1, chain.last_hash)

    def known(self) -> Known:
        """To be taken before a complete read begins, and given to `judge` after it."""
        return Known(frozenset(self.prepared), frozenset(self._accepts), self.promised, self.closed is not None)

    def judge(self, before: Known) -> None:
        """After a complete read: what stood before it, in the highest round there is, is promised, and counts."""
        self.shut = self.shut or (before.closed and not self.poison)
        if self.poison:
            return
        self._settled = max(self._settled, before.promised)
        if self.closed is not None:  # nothing else counts here any more, so no round above matters
            self.votes.update({rnd: self.closed for rnd in before.accepts if self._accepts[rnd] == self.closed})
            return
        if self.promised in before.prepares:
            self._granted.add(self.promised)
        if self.promised in before.accepts:
            self.votes[self.promised] = self._accepts[self.promised]

    def undetermined(self) -> bool:
        """True when one more complete read may count the newest ACCEPT, or the end of this version here."""
        if self.closed is not None:
            return self.usable and not self.shut
        return self.usable and self.promised in self._accepts.keys() - self.votes.keys()

    def feed(self, device_id: bytes, data: bytes) -> Entry | None:
        """Takes in the bytes found at a device's next index. Returns the message, None if it poisons.

        Nothing is raised. After POISON nothing more is to be read.
        """
        if self.poison:
            return None
        chain = self.chains[device_id]
        idx, last = chain.next_idx, chain.last_hash
        chain.next_idx += 1
        chain.last_hash = sha256(data)
        self.size += len(data)
        try:
            entry = self._judged(device_id, data, idx, last)
        except VoidError as e:
            return e.entry
        except (FormatError, UpgradeError) as e:
            certificate = self.devices.get(device_id)
            name = certificate.name if certificate is not None else device_id.hex()
            self.refuse(f"block {idx} of device {name!r}, version {self.v}", e)
            return None
        self._apply(entry)
        return entry

    def _judged(self, device_id: bytes, data: bytes, idx: int, last: bytes) -> Entry:
        if idx >= CHAIN_BLOCKS_MAX:
            raise FormatError(f"more than {CHAIN_BLOCKS_MAX} blocks in one version")
        if self.size > LOG_BYTES_MAX:
            raise FormatError(f"more than {LOG_BYTES_MAX} bytes in one version")
        signed = open_block(
            self.keys, data, base=self.base, acceptor_id=self.acceptor_id, v=self.v, device_id=device_id, idx=idx
        )
        entry = self.checked(signed, self.devices.key_of(device_id), last)
        value = entry.value
        if (
            value is not None
            and entry.kind is Kind.ACCEPT
            and self._first.setdefault((device_id, entry.round), value) != value
        ):
            why = "it accepted two values in one round"
            self.void_values.append((device_id, why))
            raise VoidError(entry, why)
        return entry

    def _apply(self, entry: Entry) -> None:
        rnd, value = entry.round, entry.value
        if value is None:
            self.prepared.add(rnd)
            self.promised = max(self.promised, rnd)
        elif entry.kind is Kind.DECIDED:
            self._told.setdefault(entry.device_id, value)
        elif rnd.n == 0 and rnd.incarnation != self.base.writer:
            return  # round 0 is the owner's alone
        elif self._accepts.setdefault(rnd, value) != value:
            self.clash = True
            return
        else:
            if self.accepted is None or self.accepted[0] < rnd:
                self.accepted = (rnd, value)
            self.promised = max(self.promised, rnd)
        held = set(self._accepts.values())
        self.contrary = {device for device, told in self._told.items() if held and told not in held}
        if self.closed is None:
            self.closed = next((told for told in self._told.values() if told in held), None)
