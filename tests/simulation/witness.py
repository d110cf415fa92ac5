"""The omniscient view: every message of an acceptor as it lands, counted by rules of its own.

It reads what lands on the stores themselves, not what anybody is told. What an acceptor promised and accepted, what a
quorum is, which acceptors and devices count in a version and by which keys its names are made, stands here a second
time, so that a rule that is wrong in the product does not hide itself. A lying store's yes can be had at any time: with
l of them, a value is decided once so many others accepted it that l more make a quorum.

Who signed a message tells whether a lying device wrote it. Values are judged (`judge`); a vote counts in a round that a
quorum promised, and of two rounds with a quorum of votes the lower one decides. From a device that keeps the rules, a
forbidden value, or a second one in a round, is a violation.

Of an acceptor in block form it takes in what lands as whoever read at that instant would: an ACCEPT counts if no higher
round stands there then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from metasync.config import Config, decode_config
from metasync.consensus.objects import meta_path, open_object
from metasync.consensus.records.birth import birth_matches, birth_path
from metasync.consensus.records.entry import Entry, Kind, Round, block_path, entry_path, open_block, open_entry, root_in
from metasync.consensus.records.era import ERAS, EraRecord, epoch_of, open_record
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.consensus.records.state import NOTHING, State
from metasync.errors import FormatError, PassphraseError, UpgradeError
from metasync.keys.derive import RecordKind, sha256
from metasync.keys.device_set import UNUSED, DeviceSet, decode_device_set, invitations
from metasync.keys.keyring import WorkspaceKeys, open_ring, ring_place
from metasync.store.moves import earlier
from metasync.store.placement import is_same_mapping
from simulation import judge
from simulation.network import Store
from simulation.plan import INSIDER
from simulation.stocks import Stocks
from simulation.world import Violation, World

_Round = tuple[int, bytes]


@dataclass
class _Acceptor:
    """One acceptor in one version: promised round, votes, and where each of its logs goes on.

    `next_idx`: by device in block form; in log form there is one, of nobody.
    """

    store: Store
    acceptor_id: bytes
    birth: bytes
    v: int
    blocks: bool
    lies: bool
    next_idx: dict[bytes, int] = field(default_factory=dict)
    promised: _Round = (-1, b"")
    votes: dict[_Round, bytes] = field(default_factory=dict)
    accepted: set[bytes] = field(default_factory=set)  # what a DECIDED may close it on: in log form, one value
    closed: bool = False
    ended: bool = False  # by garbage, behind which nothing counts


@dataclass
class _Instance:
    """One version: what its base says of it, and what was accepted. `least`: so many sound votes decide."""

    base: State
    config: Config
    devices: DeviceSet
    least: int
    rounds: set[_Round] = field(default_factory=set)
    values: dict[_Round, bytes] = field(default_factory=dict)
    moments: set[str] = field(default_factory=set)
    tally: dict[tuple[_Round, bytes], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    promises: dict[_Round, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    states: dict[bytes, State] = field(default_factory=dict)  # what was accepted, by hash
    shared: set[_Round] = field(default_factory=set)  # in which a lying device wrote
    shut: dict[bytes, _Round] = field(default_factory=dict)  # acceptors whose logs are closed, and what they promised
    block_votes: bool = False
    prepared: dict[str, set[_Round]] = field(default_factory=dict)  # by client
    ahead: set[_Round] = field(default_factory=set)  # prepared while packs or the index were still on their way
    decided: bytes | None = None
    round: _Round = (-1, b"")  # in which it was decided


class Witness:
    """`chain`: the decided states, from the genesis on. Raises `Violation` when a version has two values.

    `stores`: by what they say who they are. `openers`: the devices' private keys, to open keyrings with.
    """

    def __init__(
        self,
        world: World,
        keys: WorkspaceKeys,
        genesis: State,
        stores: Mapping[bytes, Store],
        openers: Callable[[], Iterable[bytes]],
    ) -> None:
        self.world = world
        self.keys = keys
        self.stores = stores
        self.stocks = Stocks(stores)
        self.chain = [genesis]
        self.floors: set[int] = set()
        self.forked = False
        self.pushed_since = False  # the mapping was changed last
        self.tolerates_forks = False
        self.stolen: set[bytes] = set()  # changes that nobody proposes who may
        self.liars: set[bytes] = set()  # devices that keep no rule
        self.invited: dict[bytes, bytes] = {}  # device -> its invitation, of all that were ever agreed
        self.used: dict[bytes, bytes] = {}  # invitation -> by whom, as the device set says it
        self.records: dict[int, EraRecord] = {}
        self.ended: list[tuple[list[State], float]] = []  # the chains of the eras before, and when each ended
        self.on_moment: Callable[[int, str, Store], None] = lambda v, moment, store: None
        self._openers = openers
        self._expected: dict[tuple[str, str], tuple[_Acceptor, bytes, int]] = {}
        self._instances: dict[int, _Instance] = {}
        self._configs: dict[bytes, Config] = {}
        self._sets: dict[bytes, DeviceSet] = {}
        self._blocks: dict[tuple[str, str], bytes] = {}
        self._open(1)

    @property
    def newest(self) -> State:
        return self.chain[-1]

    @property
    def config(self) -> Config:
        """The newest agreed one."""
        return self.config_of(self.newest)

    @property
    def devices(self) -> DeviceSet:
        """The newest agreed ones."""
        return self.devices_of(self.newest)

    def config_of(self, state: State) -> Config:
        if state.config not in self._configs:
            self._configs[state.config] = decode_config(self._const(state.config, "the config"))
        return self._configs[state.config]

    def devices_of(self, state: State) -> DeviceSet:
        if state.devices not in self._sets:
            data = self._const(state.devices, "the device set")
            self._sets[state.devices] = decode_device_set(data, self.keys.ns_id)
        return self._sets[state.devices]

    def _const(self, digest: bytes, what: str) -> bytes:
        end = f"/const/{digest.hex()}"
        for store in self.stores.values():
            for path, data in store.objects.items():
                if path.endswith(end) and sha256(data) == digest:
                    return open_object(self.keys, RecordKind.CONST, data)
        raise Violation(f"{what} {digest.hex()[:16]}, which was agreed, is on no backend")

    def _follow_keys(self, state: State) -> None:
        end = ring_place(state.epoch, state.keyring)
        for store in self.stores.values():
            for path, data in store.objects.items():
                if path.endswith(end) and sha256(data) == state.keyring:
                    for private in self._openers():
                        with suppress(PassphraseError):
                            self.keys = open_ring(data, private, state.ns_id)
                            return
        raise Violation(f"the keyring of epoch {state.epoch}, which was agreed, opens for nobody")

    # what lands

    def _open(self, v: int) -> None:
        """Version v may be worked on: the one before it is decided."""
        base = self.chain[v - 1]
        config, devices = self.config_of(base), self.devices_of(base)
        acceptors = []
        for entry, a in config.acceptors:
            store = self.stores[entry.identity]
            lies = store.liar is not None
            acceptors.append(_Acceptor(store, a.acceptor_id, a.birth, v, a.form == "block", lies))
        least = max(1, (config.n + config.f) // 2 + 1 - sum(a.lies for a in acceptors))
        self._instances[v] = _Instance(base, config, devices, least)
        for acceptor in acceptors:
            for writer in [c.device_id for c in devices.certificates] if acceptor.blocks else [b""]:
                acceptor.next_idx[writer] = 0
                self._expect(acceptor, writer, 0)
                if acceptor.blocks:
                    self._expect(acceptor, writer, 1)

    def _expect(self, acceptor: _Acceptor, writer: bytes, idx: int) -> None:
        base, a = self._instances[acceptor.v].base, acceptor.acceptor_id
        if acceptor.blocks:
            path = block_path(self.keys, base.epoch, base.era, a, acceptor.v, writer, idx)
        else:
            path = entry_path(self.keys, base.epoch, base.era, a, acceptor.v, idx)
        self._expected[acceptor.store.name, path] = (acceptor, writer, idx)

    def deleted(self, store: Store, path: str) -> None:
        """An object is about to be deleted."""
        if not self.tolerates_forks:
            self.stocks.deleted(self.keys, store, path, self.newest, self.config)

    def landed(self, store: Store, path: str, data: bytes) -> None:
        """An object was stored."""
        self.stocks.landed(path, data)
        inside = path.partition("/")[2]  # below the workspace's folder
        if inside.startswith(f"{ERAS}/"):
            self._begin_era(self._record(data, int(inside.rpartition("/")[2])))
        if "/floor/" in path:
            self.world.count("floor made")
            self.floors.add(int(path.rpartition("/")[2]))
        if "/bl/" in path and self._blocks.setdefault((store.name, inside), data) != data:
            raise Violation(f"two blocks were written under one name on {store.name}")
        found = self._expected.pop((store.name, inside), None)
        if found is None:
            if "/packs/" in path or "/meta/" in path:
                self._stored(store.writers.get(path))
            return
        acceptor, writer, idx = found
        if idx > acceptor.next_idx[writer]:
            raise Violation(f"block {idx} of version {acceptor.v} was written on {store.name} before the one before it")
        acceptor.next_idx[writer] = idx + 1
        self._expect(acceptor, writer, idx + 1 + acceptor.blocks)
        if not acceptor.lies:
            self._feed(acceptor, writer, idx, path, data)

    def _stored(self, client: str | None) -> None:
        """What a version is to name: the rounds that its client has prepared by now, it prepared ahead."""
        instance = self._instances[self.newest.v + 1]
        instance.ahead |= instance.prepared.get(client or "", set())

    def _born(self, acceptor: _Acceptor) -> bool:
        end, a = birth_path(acceptor.acceptor_id), acceptor.acceptor_id
        objects = acceptor.store.objects
        return any(birth_matches(d, a, acceptor.birth) for p, d in objects.items() if p.endswith(end))

    def _opened(self, acceptor: _Acceptor, writer: bytes, idx: int, data: bytes) -> Entry:
        base, a, v = self._instances[acceptor.v].base, acceptor.acceptor_id, acceptor.v
        try:
            if acceptor.blocks:
                signed = open_block(self.keys, data, base=base, acceptor_id=a, v=v, device_id=writer, idx=idx)
            else:
                signed = open_entry(
                    self.keys, data, ns_id=base.ns_id, era=base.era, epoch=base.epoch, acceptor_id=a, v=v, idx=idx
                )
        except (FormatError, UpgradeError) as e:
            raise Violation(f"a client wrote an entry that does not open: {acceptor.store.name} v{v}: {e}") from e
        return signed.entry

    def _feed(self, acceptor: _Acceptor, writer: bytes, idx: int, path: str, data: bytes) -> None:
        instance, store = self._instances[acceptor.v], acceptor.store
        try:
            entry = self._opened(acceptor, writer, idx, data)
        except Violation:
            if store.writers.get(path) != INSIDER:
                raise
            acceptor.ended = True
            self.world.count("garbage in a log")
            return
        if instance.devices.key_of(entry.device_id, entry.certificate) is None:
            self.world.count("void entry")
            return
        lying = entry.device_id in self.liars
        if entry.base != instance.base:
            if self.forked or lying or self.tolerates_forks:
                self.forked = self.forked or not lying
                return
            raise Violation(f"an entry of version {acceptor.v} is on top of another state than the decided one")
        if entry.value is not None and (root := root_in(entry)):
            self.stocks.rode(self.keys, entry.base, entry.value, root, (store.name, path))
        if acceptor.closed or acceptor.ended or not self._born(acceptor) or self._is_void(instance, entry, lying):
            return
        rnd = (entry.round.n, entry.round.incarnation)
        if lying:
            instance.shared.add(rnd)
        if entry.kind is Kind.DECIDED:
            if entry.value is not None and entry.value.hash in acceptor.accepted:
                acceptor.closed = True
                instance.shut[acceptor.acceptor_id] = acceptor.promised
                store.fences.add(path)
        elif entry.kind is Kind.PREPARE:
            instance.prepared.setdefault(store.writers.get(path, ""), set()).add(rnd)
            if rnd > acceptor.promised:
                acceptor.promised = rnd
                instance.promises[rnd].add(acceptor.acceptor_id)
                self._rival(instance, rnd)
                self._moment(acceptor, "promise")
                self._count_votes(acceptor, rnd)
        elif entry.value is not None:
            self._vote(acceptor, rnd, entry.round, entry.value)

    def _is_void(self, instance: _Instance, entry: Entry, lying: bool) -> bool:
        if entry.value is None:
            return False
        fault = judge.fault_of(self.keys, self.chain, instance.config, instance.devices, entry)
        if fault and not lying:
            raise Violation(f"a device proposed for version {entry.v} what may not be: {fault}")
        left = {c.device_id for chain, _ in self.ended for c in self.devices_of(chain[-1]).certificates}
        if not lying and (misuse := judge.misuse_of(self.keys, instance.devices, entry, self.invited, left)):
            raise Violation(f"a device proposed for version {entry.v} what may not be: {misuse}")
        if fault:
            self.world.count("void value")
        return bool(fault)

    def _rival(self, instance: _Instance, rnd: _Round) -> None:
        if any(r[1] != rnd[1] for r in instance.rounds):
            self.world.count("rivals in one version")
        instance.rounds.add(rnd)

    def _vote(self, acceptor: _Acceptor, rnd: _Round, named: Round, value: State) -> None:
        instance = self._instances[acceptor.v]
        if acceptor.blocks:
            acceptor.accepted.add(value.hash)
        if rnd < acceptor.promised or acceptor.votes.get(rnd, value.hash) != value.hash:
            return
        if named.n == 0 and named.incarnation != instance.base.writer:
            return
        acceptor.promised = rnd
        acceptor.votes[rnd] = value.hash
        acceptor.accepted = {value.hash} | (acceptor.accepted if acceptor.blocks else set())
        instance.states[value.hash] = value
        self._rival(instance, rnd)
        alone = rnd not in instance.shared and not self.tolerates_forks
        if instance.values.setdefault(rnd, value.hash) != value.hash and alone:
            raise Violation(f"two values were proposed in one round of version {acceptor.v}")
        instance.tally[rnd, value.hash].add(acceptor.acceptor_id)
        if acceptor.blocks:
            self.world.count("block vote")
            instance.block_votes = True
        self._moment(acceptor, "vote")
        self._count_votes(acceptor, rnd)

    def _count_votes(self, acceptor: _Acceptor, rnd: _Round) -> None:
        """Whether a round has a quorum of promises, and a value one of its votes.

        A closed log promises all that it can still promise: no round that it took a vote of without.
        """
        instance = self._instances[acceptor.v]
        shut = {key for key, promised in instance.shut.items() if promised < rnd}
        if rnd[0] != 0 and len(instance.promises[rnd] | shut) < instance.least:
            return
        for (other, digest), tally in list(instance.tally.items()):
            if other == rnd and len(tally) >= instance.least:
                self._decide(acceptor.v, rnd, instance.states[digest])
                self._moment(acceptor, "decision")

    def _record(self, data: bytes, number: int) -> EraRecord:
        """An era record, whose keys may be those that begin with it."""
        with suppress(FormatError):
            return open_record(self.keys, data, number)
        found = f"/keys/ring-{epoch_of(data)}-"
        for ring in [d for s in self.stores.values() for p, d in s.objects.items() if found in p]:
            for private in self._openers():
                with suppress(PassphraseError, FormatError):
                    keys = open_ring(ring, private, self.keys.ns_id)
                    record = open_record(keys, data, number)
                    if record.first.keyring == sha256(ring):
                        self.keys = keys
                        return record
        raise Violation(f"the record of era {number} opens for nobody")

    def _is_left(self, value: State) -> bool:
        """Whether a backend that is left has the index of a state: a quorum that is lost may have had it alone."""
        end = f"/{meta_path(bytes(16), value.index).partition('/')[2]}"
        left = [store for store in self.stores.values() if not store.gone]
        rode = self.stocks.riding.get(value.index.hash, set())
        carried = any(store.name == name and path in store.objects for store in left for name, path in rode)
        return value.index == NOTHING or carried or any(path.endswith(end) for store in left for path in store.objects)

    def _check_carried(self, record: EraRecord) -> None:
        """What the acceptors that are left had accepted last goes on as content, if nobody lied in that version."""
        instance = self._instances.get(record.ended.v + 1)
        if instance is None or instance.shared:
            return
        left = {a.acceptor_id for b, a in instance.config.acceptors if not self.stores[b.identity].gone}
        held = [(rnd, digest) for (rnd, digest), voters in instance.tally.items() if voters & left]
        highest = max(held, default=(None, b""))[1]
        if highest and not self._is_left(instance.states[highest]):
            self.world.count("what was accepted last was lost")
            return
        if highest and (record.carried is None or record.carried.hash != highest):
            raise Violation(f"era {record.number} does not carry what was accepted as version {record.ended.v + 1}")

    def _begin_era(self, record: EraRecord) -> None:
        """The workspace goes on from a state that was decided, with the acceptors of the record, and from there alone.

        Whoever shares a backend shares the record. What lands in old logs counts nowhere: their births are tombstones.
        """
        known = self.records.setdefault(record.number, record)
        if known.digest != record.digest:
            raise Violation(f"there are two records of era {record.number}")
        if known is not record:
            return
        last = record.ended.v
        if last >= len(self.chain) or self.chain[last] != record.ended:
            raise Violation(f"era {record.number} goes on from version {last} as nobody decided it")
        self._check_carried(record)
        self.stocks.blind = True
        before = self.chain
        self.ended.append((before, self.world.now))
        self.chain = [*before[: last + 1], *[record.ended] * (record.first.v - last - 1), record.first]
        self._expected.clear()
        self._instances = {v: i for v, i in self._instances.items() if v <= last}
        self.world.trace("era", record.number, record.first.hash.hex()[:16])
        self.world.count("era begun")
        self.world.count("era carries a value", record.carried is not None)
        self.world.count("era leaves versions behind", len(before) - 1 > last)
        self.world.count("another era begun", len(self.ended) > 1)
        self._open(record.first.v + 1)

    # what the insider looks up

    def skip_of(self, base: State) -> bytes:
        """What the state after `base` names as its `skip`."""
        return judge.way_back(self.chain, base.v + 1)[-1].hash

    def steps_of(self, base: State) -> Sequence[State]:
        """What an entry with that state carries."""
        return judge.way_back(self.chain, base.v + 1)[:-1]

    def rounds_of(self, v: int) -> list[tuple[int, bytes]]:
        """The rounds in which something was promised or accepted for a version, up to the one that decided it.

        Above that one a vote of the insider's may lead apart who cannot reach one backend (consensus.md, rule 8.2).
        """
        instance = self._instances[v]
        return sorted(r for r in instance.rounds if instance.decided is None or r <= instance.round)

    def top_of(self, v: int) -> int:
        """The highest number of a round of a version that can be passed; 0 if there is none."""
        return max((n for n, _ in self._instances[v].rounds if n < ROUND_MAX), default=0)

    def is_borne_out_without(self, lost: Collection[Store]) -> bool:
        """Whether each version of this era has a vote for what it decided on an acceptor that is left.

        Where all of those are lost, nothing that is left tells a device of the version before what was decided, and it
        takes no later one at its word (consensus.md, rules 5.2 and 8.1).
        """
        for instance in self._instances.values():
            if instance.decided is None or instance.base.era != self.newest.era:
                continue
            voted = {key for (_, digest), keys in instance.tally.items() if digest == instance.decided for key in keys}
            places = {a.acceptor_id: self.stores[e.identity] for e, a in instance.config.acceptors}
            if not any(not store.gone and store not in lost for key, store in places.items() if key in voted):
                return False
        return True

    def _moment(self, acceptor: _Acceptor, moment: str) -> None:
        """Tells of the first promise, the first vote and the decision of a version."""
        moments = self._instances[acceptor.v].moments
        if moment not in moments:
            moments.add(moment)
            self.on_moment(acceptor.v, moment, acceptor.store)

    def _decide(self, v: int, rnd: _Round, value: State) -> None:
        instance = self._instances[v]
        if instance.decided is None:
            if value.op_id in self.stolen:
                raise Violation(f"version {v} is what a stolen device made up")
            instance.decided, instance.round = value.hash, rnd
            self.chain.append(value)
            self.world.trace("decided", v, value.hash.hex()[:16])
            self._note(instance, rnd, value)
            if value.epoch != instance.base.epoch:
                self._follow_keys(value)
            self._note_invitations(value)
            if not self.tolerates_forks:
                configs = instance.config, self.config_of(value)
                self.stocks.decided(self.keys, instance.base, value, *configs)
            self._open(v + 1)
        elif instance.decided != value.hash and not (rnd in instance.shared and rnd > instance.round):
            self.forked = True
            self.world.count("fork")
            if not self.tolerates_forks:
                raise Violation(f"two values were decided for version {v}")

    def _note_invitations(self, value: State) -> None:
        for item in invitations(self.devices_of(value)):
            self.invited[item.device_id] = item.invitation_id
            if item.used != UNUSED and item.invitation_id not in self.used:
                self.used[item.invitation_id] = item.used
                self.world.count("joined by an invitation")

    def _note(self, instance: _Instance, rnd: _Round, value: State) -> None:
        count = self.world.count
        count("owner round" if rnd[0] == 0 else "decided in a prepared round")
        if rnd in instance.ahead:
            count("prepared ahead")
        if rnd[1] != value.writer:
            count("value helped by another")
        if instance.block_votes:
            count("decided with block votes")
        if value.config != instance.base.config:
            count("reconfigured")
            old, new = instance.config, self.config_of(value)
            count("move ended", old.prev_config is not None and new.prev_config is None)
            count("changes merged", old.prev_config is not None and len(earlier(new)) > len(earlier(old)))
            if len({r[1] for r in instance.rounds}) > 1:
                count("reconfigured under contention")
            if not is_same_mapping(old, new):
                count("mapping changed")
                count("mapping changed after a push", self.pushed_since)
                self.pushed_since = False
        self.pushed_since = self.pushed_since or value.master != instance.base.master
        if value.epoch != instance.base.epoch:
            count("rotated")
