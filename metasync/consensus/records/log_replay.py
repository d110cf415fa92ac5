"""A log replayed: what one passive acceptor has promised and accepted for one version (consensus.md, rule 1.4).

A backend only keeps entries in order; this module is the acceptor. Whether an entry is *effective* depends on the
immutable entries before it alone, so every reader of the same log computes the same promises and votes: "b accepted
(r, x)" is a stable fact. A log is read from index 0, without holes, and never beyond the first absent index.

    PREPARE(r)    effective iff r > promised                                     promised = r
    ACCEPT(r, x)  effective iff r >= promised and not another value in round r   promised = accepted round = r
    DECIDED(x)    closes the log, if x is what it accepted last: nothing later is effective

DECIDED is no vote (rule 8.1). Its signer may lie, so it says nothing of other logs, and what the log accepted before
stays as it was. One that contradicts the log has no effect, and `contrary` names its device.

A signer whom the device set of v-1 does not admit makes an entry VOID: it keeps its index and has no effect. So does
another base than v-1, which is looked into (`forks`), and a value that fails the checks of `ValueRules`. They rest on
the entry and on what its base names, so that all readers reach one verdict: the entry of a value that names another
config or device set than its base carries that. Any other fault is POISON: what was accepted before stays evidence, but
the acceptor gives no promise and no vote in this version. An entry of a newer format has the same consequence, and
`newer` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metasync.codec import UPGRADE
from metasync.config import Config, decode_config
from metasync.consensus.objects import seal_object
from metasync.consensus.records.entry import (
    ENTRY_BYTES_MAX,
    OBJECTS_BYTES_MAX,
    RANDOM_BYTES,
    RIDING_BYTES_MAX,
    Entry,
    Kind,
    Round,
    Seen,
    SignedEntry,
    open_entry,
    root_in,
)
from metasync.consensus.records.state import FORMAT, ZERO_HASH, State, follows, newer, skip_after
from metasync.errors import FormatError, UpgradeError
from metasync.keys.derive import RecordKind, read_header, sha256
from metasync.keys.device_set import DeviceSet, decode_device_set
from metasync.keys.keyring import WorkspaceKeys

LOG_ENTRIES_MAX: Final = 10_000  # a longer log of one version is an attack: every reader reads it all
LOG_BYTES_MAX: Final = 64 << 20  # the same, of entries that carry configs and device sets

NEVER: Final = Round(-1, b"")
ROUND_MAX: Final = (1 << 32) - 1


def accept_effective(promised: Round, votes: dict[Round, State], rnd: Round, value: State, base: State) -> bool:
    """`votes`: what this acceptor has accepted so far, by round."""
    if rnd.n == 0 and rnd.incarnation != base.writer:
        return False  # round 0 is the owner's alone
    return rnd >= promised and votes.get(rnd, value) == value


def check_config(config: Config) -> Config:
    """Refuses a config whose way of agreeing this program does not know."""
    blocks = any(a.form == "block" for _, a in config.acceptors)
    if blocks and config.mode != "crash":  # what a liar shows once it need not show again: no vote would stay counted
        raise UpgradeError("the workspace agrees in a way that this program does not know", next_step=UPGRADE)
    return config


def fault_named(state: State, config: Config, devices: DeviceSet) -> str:
    """How a state contradicts the policy in the device set that it names; "" where it keeps to it."""
    policy = devices.policy
    if (state.epoch, state.keyring, state.min_fmt) != (policy.epoch, policy.keyring, policy.min_fmt):
        return "its keys or its oldest format are not those that the policy names"
    return policy.contradiction(config)


class ValueRules:
    """Which values may follow `base`, by the rules of consensus.md, 8.4; `config` and `devices` are what `base` names.

    `objects`: configs and device sets, sealed, by the hashes that name them, of all values that passed. `steps`: the
    states that their `skip` rests on, the same for every value after this base. `riding`: what their entries carry of
    their indexes (`entry.ROOT_TAG`), by the names of these.
    """

    def __init__(self, keys: WorkspaceKeys, config: Config, devices: DeviceSet, base: State) -> None:
        self.keys = keys
        self.config = config
        self.devices = devices
        self.base = base
        self.objects: dict[bytes, bytes] = {}
        self.steps: tuple[bytes, ...] = ()
        self.configs: dict[bytes, Config] = {}
        self.device_sets: dict[bytes, DeviceSet] = {}
        self.riding: dict[bytes, bytes] = {}
        self._faults: dict[tuple[State, bytes, bytes], str] = {}

    def fault(
        self, value: State, config: bytes = b"", devices: bytes = b"", steps: tuple[bytes, ...] = (), root: bytes = b""
    ) -> str:
        """Why a value is VOID; "" if nothing speaks against it. All but the value: what its entry carries.

        `UpgradeError` for one that the admin allowed, and that only newer programs understand.
        """
        base = self.base
        try:
            if value.skip != skip_after(base, steps):
                return "its skip names another state than the chain has there"
        except FormatError as e:
            return e.message
        self.steps = steps
        if not follows(value, base):
            return "a value that cannot follow its base"
        if value.index_rides and not self._is_root(value.index.hash, root):
            return "its entry does not carry the index that rides in it"
        if (value.config, value.devices) == (base.config, base.devices):
            return ""
        asked = value, config, devices
        if asked not in self._faults:
            try:
                self._faults[asked] = self._fault_of(*asked)
            except FormatError as e:
                self._faults[asked] = e.message
        if not self._faults[asked] and value.min_fmt > FORMAT:
            raise newer(value)
        return self._faults[asked]

    def _is_root(self, digest: bytes, riding: bytes) -> bool:
        """Whether these bytes are the index root of this name; whoever counts a vote for a value then holds it."""
        if digest not in self.riding:
            random, root = riding[:RANDOM_BYTES], riding[RANDOM_BYTES:]
            if not 0 < len(root) <= RIDING_BYTES_MAX:
                return False
            era, epoch = self.base.era, self.base.epoch
            if seal_object(self.keys, RecordKind.META, root, era=era, epoch=epoch, random=random)[0] != digest:
                return False
            self.riding[digest] = riding
        return self.riding[digest] == riding

    def _fault_of(self, value: State, config_data: bytes, devices_data: bytes) -> str:
        config, devices = self.config, self.devices
        if value.config != self.base.config:
            try:
                config = check_config(decode_config(self._opened(value.config, config_data)))
            except UpgradeError as e:  # nothing newer than the oldest format that the policy allows
                return e.message
            if fault := _fault_of_step(self.config, config, value, self.base):
                return fault
        if value.devices != self.base.devices:
            try:
                devices = decode_device_set(self._opened(value.devices, devices_data), self.base.ns_id)
            except UpgradeError as e:
                return e.message
            if fault := _fault_of_devices(self.devices, devices, value):
                return fault
        if fault := fault_named(value, config, devices):
            return fault
        if value.config != self.base.config:
            self.objects[value.config], self.configs[value.config] = config_data, config
        if value.devices != self.base.devices:
            self.objects[value.devices], self.device_sets[value.devices] = devices_data, devices
        return ""

    def _opened(self, digest: bytes, data: bytes) -> bytes:
        """The plaintext of a const object that an entry carries. It is sealed under the epoch of the base, always:
        else it would depend on the reader's keys whether it opens."""
        if sha256(data) != digest:
            raise FormatError("it names a config or a device set that its entry does not carry")
        header = read_header(data)
        if (header.era, header.epoch) != (self.base.era, self.base.epoch):
            raise FormatError("it names an object of another epoch")
        ns_id = self.base.ns_id
        what = "a const object"
        return self.keys.opened(data, RecordKind.CONST, what, binding=ns_id, bytes_max=OBJECTS_BYTES_MAX)[1]

    def carried(self, value: State | None, own: Mapping[bytes, bytes]) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """What an entry with this value carries: config and device set, sealed, and the states that its `skip` rests
        on. `own`: objects of a value of one's own."""
        if value is None:
            return b"", b"", ()
        base = self.base

        def of(new: bytes, old: bytes) -> bytes:
            return b"" if new == old else self.objects.get(new) or own[new]

        return of(value.config, base.config), of(value.devices, base.devices), self.steps


def _fault_of_step(old: Config, new: Config, value: State, base: State) -> str:
    """What speaks against a config after another, other than the policy."""
    stay = {a for _, a in old.acceptors} & {a for _, a in new.acceptors}
    if len(stay) < old.quorum:
        return f"{len(stay)} of {old.n} voting backends would stay, and {old.quorum} must in one step"
    if new.changed != (value.v, base.config):
        return "a config that does not say as which version it was made, and after which"
    if new.prev_config is not None:
        index = base.index.generation, base.index.hash
        if new.prev_config != (old.prev_config or base.config):
            return "a config that says of another one that packs lie by it"
        if new.moving not in (index, old.moving or index):
            return "a config that says of another index which packs are to be moved"
    for before in old.backends:
        after = new.backend(before.backend_id)
        if after is None:
            continue
        same = (after.scheme, after.identity) == (before.scheme, before.identity)
        if not same or after.storage[: len(before.storage)] != before.storage:
            return f"the backend {before.name} would be another store, or what it holds be forgotten"
    return ""


def _fault_of_devices(old: DeviceSet, new: DeviceSet, value: State) -> str:
    """What speaks against a device set after another."""
    before, after = old.policy, new.policy
    if after.chain.keys[: len(before.chain.keys)] != before.chain.keys:
        return "a device set of other admin keys"
    if new.policy_data != old.policy_data and after.sequence != (value.era, value.v):
        return "a policy that was not signed for this version"
    for certificate in old.certificates:
        kept = new.get(certificate.device_id)
        if kept is None and certificate.device_id not in after.revoked_ids:
            return f"a device set without {certificate.device_id.hex()[:8]}, whom the admin key did not revoke"
        keys = certificate.sign_public, certificate.sealing
        if kept is not None and (kept.sign_public, kept.sealing) != keys:
            return f"a device set with other keys of {certificate.device_id.hex()[:8]}"
    if after.epoch == before.epoch and not set(old.ended_ids + old.ended_keys) <= set(new.ended_ids + new.ended_keys):
        return "a device set that opens an ended invitation again"
    return ""


class VoidError(Exception):
    """A message of an admitted device that has no effect. `entry`: it; the text says why."""

    def __init__(self, entry: Entry, why: str) -> None:
        super().__init__(why)
        self.entry = entry


@dataclass(eq=False)
class Replay(ABC):
    """What is known of one acceptor in the version after `base`: as a log (`Log`), or as blocks (`block_replay`).

    `void_values`: why values that were proposed here are VOID, with the devices that proposed them. `elsewhere`: the
    other bases on which entries here stand, by (device, hash).
    """

    keys: WorkspaceKeys
    rules: ValueRules
    acceptor_id: bytes
    promised: Round = NEVER
    accepted: tuple[Round, State] | None = None  # in the highest round
    votes: dict[Round, State] = field(default_factory=dict)
    prepared: set[Round] = field(default_factory=set)  # every round that was ever promised
    closed: State | None = None
    contrary: set[bytes] = field(default_factory=set)  # devices whose DECIDED the log contradicts
    poison: str = ""
    newer: bool = False
    elsewhere: dict[tuple[bytes, bytes], State] = field(default_factory=dict)
    void_values: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def base(self) -> State:
        return self.rules.base

    @property
    def devices(self) -> DeviceSet:
        return self.rules.devices

    @property
    def v(self) -> int:
        return self.base.v + 1

    @property
    def usable(self) -> bool:
        """False when this acceptor neither promises nor votes in this version."""
        return not self.poison

    @property
    def ended(self) -> str:
        """Why this acceptor takes no part in this version any more, whatever anybody does; "" while it can."""
        if self.poison:
            return self.poison
        if self.closed is None and not self.takes(ENTRY_BYTES_MAX):
            return f"its log of version {self.v} is full"
        return f"it promised the last round that version {self.v} has" if self.spent else ""

    @property
    def spent(self) -> bool:
        """True when the last round there is was promised here: nobody can go above it."""
        return self.promised.n >= ROUND_MAX

    @abstractmethod
    def takes(self, size: int) -> bool:
        """True while one more message, of so many bytes, poisons nothing by its length."""

    @abstractmethod
    def closes(self, value: State) -> bool:
        """True when DECIDED of this value would close it, or has."""

    def lacks(self, rnd: Round) -> bool:
        """True when this round was not promised here, and never can be."""
        return rnd not in self.prepared and self.promised >= rnd

    def refuse(self, place: str, error: FormatError | UpgradeError) -> None:
        """From here on nothing more is to be read."""
        self.newer = isinstance(error, UpgradeError)
        self.poison = f"{place}: {error.message}"

    def checked(self, signed: SignedEntry, public: bytes | None, last: bytes) -> Entry:
        """The message, if it is signed by this key and names the one before. `FormatError` poisons.

        `VoidError` for one on another base, and for a value that may not follow the base.
        """
        entry = signed.entry
        if public is None or not signed.verifies(public):
            raise FormatError(f"a wrong signature of device {entry.device_id.hex()}")
        if entry.base != self.base:
            self.elsewhere[entry.device_id, entry.base.hash] = entry.base
            raise VoidError(entry, "on top of another state than the one this device knows to be decided")
        if entry.prev_entry != last:
            raise FormatError("it does not name the one before it: one was replaced, or the log cut")
        why = ""
        if entry.value is not None:
            why = self.rules.fault(entry.value, entry.config, entry.devices, entry.steps, root_in(entry))
        if why:
            self.void_values.append((entry.device_id, why))
            raise VoidError(entry, why)
        return entry


@dataclass(eq=False)
class Log(Replay):
    """One acceptor's log of the version after `base`, as far as it was read. `hashes`: of every entry read."""

    hashes: list[bytes] = field(default_factory=list)
    void: int = 0
    size: int = 0

    @property
    def next_idx(self) -> int:
        """The first index that was not read."""
        return len(self.hashes)

    @property
    def last_hash(self) -> bytes:
        return self.hashes[-1] if self.hashes else ZERO_HASH

    @property
    def accepts(self) -> Mapping[Round, State]:
        """Every value that was accepted here, by round."""
        return self.votes

    @property
    def silent(self) -> bool:
        """True when nobody can have counted a vote here, as far as the log was read."""
        return not self.votes

    @property
    def shut(self) -> bool:
        """True when nothing is accepted here any more, and all that was is known."""
        return self.closed is not None

    def closes(self, value: State) -> bool:
        return self.accepted is not None and self.accepted[1] == value

    def takes(self, size: int) -> bool:
        return self.next_idx < LOG_ENTRIES_MAX and self.size + size <= LOG_BYTES_MAX

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
        self.size += len(data)
        try:
            entry, admitted = self._judged(data, idx, last)
        except VoidError as e:
            self.void += 1
            return e.entry
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
        if self.size > LOG_BYTES_MAX:
            raise FormatError(f"more than {LOG_BYTES_MAX} bytes in one version")
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
        assert self.takes(len(data))
        self.hashes.append(sha256(data))
        self.size += len(data)
        self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        if self.closed is not None:
            return
        rnd, value = entry.round, entry.value
        if value is None:
            if rnd > self.promised:
                self.promised = rnd
                self.prepared.add(rnd)
        elif entry.kind is Kind.DECIDED:
            if self.closes(value):
                self.closed = value
            else:
                self.contrary.add(entry.device_id)
                self.void_values.append((entry.device_id, "it says that another value was decided"))
        elif accept_effective(self.promised, self.votes, rnd, value, self.base):
            self.promised = rnd
            self.accepted = (rnd, value)
            self.votes[rnd] = value
