"""The consensus as one process sees it: everything that the rest of MetaSync asks of it, as tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from metasync.config import Config
from metasync.consensus import learner, reconfigure, riding
from metasync.consensus.chain import ancestor, fetch_ring, fetch_state, follow_keys, learn_skip
from metasync.consensus.eras import over_eras
from metasync.consensus.hints import WAIT_S, check_heads, read_head, read_heads, write_head, write_hints
from metasync.consensus.instance import Instance
from metasync.consensus.objects import (
    CONST_BYTES_MAX,
    META_BYTES_MAX,
    Copy,
    const_path,
    get_anywhere,
    get_const,
    meta_path,
    named,
    open_named,
    put_everywhere,
    sealed,
)
from metasync.consensus.participant import Barred, Participant, Standing, decode_agreed_config
from metasync.consensus.proposer import BehindFloorError, Decided, Hurry, Journal, MakeValue, prepare, propose
from metasync.consensus.records.entry import RANDOM_BYTES
from metasync.consensus.records.log_replay import ValueRules, check_config, fault_named
from metasync.consensus.records.state import NOTHING, ZERO_ID, Ref, State, check_min_fmt, hint_is_due
from metasync.consensus.truncation import Progress, bound_logs
from metasync.errors import FormatError
from metasync.keys.derive import RecordKind, read_header
from metasync.keys.device_set import DeviceIdentity, DeviceSet, decode_device_set
from metasync.keys.keyring import WorkspaceKeys
from metasync.runtime.effects import Gather, Task

META_BYTES_TOGETHER: Final = 4 << 20  # of index segments under way when the next one waits: few pushes have more
DEADLINE_S: Final = 30.0  # the promise of exit code 5
CONSTS_KEPT: Final = 8  # configs and device sets in memory: the agreement reads one, and so does who works with it


class Group:
    """The consensus of one workspace as one process takes part in it.

    `incarnation`: 16 random bytes, drawn anew for every Group and never persisted. `links`: acceptor id -> the name
    under which the runtime reaches its backend; acceptors without one count as down. `memory`: what `self.memory` was
    when the local state was last saved (b"" at first), to be saved together with the newest known state.
    `certificate`: this device's, needed until the agreed device set holds it. `guard`: why this process must not write
    blocks in its device's name now (`acceptors.block`); None: it may. It is asked before every block.

    Tasks may run side by side; those that look at the newest logs take turns. They raise `NoQuorumError`, `ForkError`,
    `UpgradeError`; a wait without quorum ends after `deadline_s`.
    """

    def __init__(
        self,
        keys: WorkspaceKeys,
        identity: DeviceIdentity,
        config: Config,
        config_hash: bytes,
        devices: DeviceSet,
        devices_hash: bytes,
        *,
        incarnation: bytes,
        links: Mapping[bytes, str],
        certificate: bytes = b"",
        memory: bytes = b"",
        guard: Callable[[], Barred | None] = lambda: None,
    ) -> None:
        if len(incarnation) != 16 or incarnation == ZERO_ID:
            raise ValueError("an incarnation is 16 random bytes")
        self.participant = Participant(
            keys, identity, incarnation, dict(links), certificate=certificate, memory=memory, guard=guard
        )
        self.participant.look_apart = self._look_apart
        self.participant.configs[config_hash] = check_config(config)
        self.participant.device_sets[devices_hash] = devices
        self._config = config
        self._instance: Instance | None = None  # of the state that was worked on last
        self._consts: dict[bytes, bytes] = {}  # the last that were read or stored, by hash
        self.unfenced: list[tuple[State, State]] = []  # changes of epoch that were followed: (base, state)

    # what is known without asking anybody

    @property
    def newest_config(self) -> Config:
        """The config of the state that was worked on last, at first the one this was made with."""
        return self._config if self._instance is None else self._instance.config

    @property
    def memory(self) -> bytes:
        """What each acceptor was last seen to hold: to be persisted with the newest known state."""
        return self.participant.encode_memory()

    @property
    def standings(self) -> dict[str, Standing]:
        """How every backend that votes fared when it was last asked, by its agreed name."""
        names = (backend.name for backend, _ in self.newest_config.acceptors)
        return {name: self.participant.standings.get(name, Standing("unknown")) for name in names}

    @property
    def evidence(self) -> tuple[tuple[str, str], ...]:
        """What backends did that no honest one does, as (agreed name, what): to be kept, and told."""
        return tuple(self.participant.evidence)

    def take_void_values(self) -> dict[tuple[bytes, int], str]:
        """Why values that devices proposed count for nobody, by (device id, version): each is given once."""
        found, self.participant.void_values = self.participant.void_values, {}
        return found

    @property
    def heard(self) -> frozenset[str]:
        """Backends, by agreed name, whose births were seen right in the last look or proposal."""
        instance = self._instance
        return frozenset(() if instance is None else (instance.acceptors[a].name for a in instance.heard))

    @property
    def hears_news(self) -> bool:
        """Whether the look that is under way has read anything of the version it looks for."""
        return self._instance is not None and self._instance.progress() > 0

    def owns(self, base: State) -> bool:
        """True when this process decided `base`: a proposal after it needs no look for news and one round trip."""
        m = self.participant
        return base.writer == m.incarnation and base.v + 1 not in m.rounds_used

    def added(self, state: State) -> tuple[Ref, ...]:
        """Meta objects that the index of a state may name anew, to fetch ahead: a voter's hint."""
        return self.participant.added.get(state.hash, ())

    @property
    def reached(self) -> State | None:
        """The newest state that the last `get_recent` found decided, even if it did not end."""
        return self.participant.reached

    def recall(self, states: Iterable[State]) -> None:
        """Takes over known states of the chain, which then need not be fetched."""
        for state in states:
            self.participant.remember_state(state)

    def follow(self, config: Config, config_hash: bytes, links: Mapping[bytes, str]) -> None:
        """Takes over an agreed config, and links to acceptors, those of older configs too."""
        self.participant.configs[config_hash] = check_config(config)
        self.participant.links.update(links)
        self._config = config

    # agreeing

    def get_recent(self, known: State, *, deadline_s: float = DEADLINE_S) -> Task:
        """-> the newest decided State: at least `known`, at least any commit that ended before this began.

        With nothing new: one round trip, two requests per acceptor (two more, once per process: rules 1.10 and 1.11).
        """
        return self._with_its_keys(over_eras(learner.get_recent, self.participant, self.enter, known, deadline_s))

    def get_recent_preparing(
        self, known: State, *, deadline_s: float = DEADLINE_S, hurry: Hurry = lambda: False
    ) -> Task:
        """-> the same, for who is about to propose the next version: with nothing newer, `prepare` is done."""
        config = yield from self._config_of(known)
        changes = config.changed is not None and config.changed[0] == known.v  # a fence may come first
        preparing = partial(learner.get_recent_preparing, hurry=hurry)
        used = known.v + 1 in self.participant.rounds_used  # else each try without a quorum would add an entry
        look = learner.get_recent if changes or used or self.owns(known) else preparing
        return (yield from self._with_its_keys(over_eras(look, self.participant, self.enter, known, deadline_s)))

    def newest_seen(self, known: State, *, deadline_s: float = DEADLINE_S) -> Task:
        """-> the newest State that any reachable acceptor proves decided, quorum or not: for a read-only look."""
        return self._with_its_keys(over_eras(learner.newest_seen, self.participant, self.enter, known, deadline_s))

    def _with_its_keys(self, look: Task) -> Task:
        """Runs a look, then drops keys of later epochs than its result, which a floor may have asked for."""
        state: State = yield from self.participant.alone(look)
        self.participant.keys = self.participant.keys.until(
            max(state.epoch, min(e for e, _ in self.participant.keys.epoch_keys))
        )
        return state

    def propose(
        self, base: State, make_value: MakeValue, *, op_id: bytes | None = None, deadline_s: float = DEADLINE_S
    ) -> Task:
        """Agrees version base.v + 1. -> Decided(state, mine).

        `make_value` is called at most once, after a quorum promised, and returns a `Change` (or a task that does):
        every pack and meta object it names must be confirmed by then. Not mine: rebase, propose on `state`. `op_id`:
        give that of a journaled change again, so that what an earlier process left behind is known to be mine. Persists
        `JOURNAL_KEY` before the change can be decided; the caller removes it once it recorded the outcome.
        """
        return self.participant.alone(self._propose(base, make_value, op_id, deadline_s))

    def _propose(self, base: State, make_value: MakeValue, op_id: bytes | None, deadline_s: float) -> Task:
        yield from self._make_sure_of_fence(base, deadline_s)
        instance = yield from self.enter(base)
        made = partial(riding.made, make_value, partial(self.settle, base))
        try:
            return (yield from propose(self.participant, instance, made, op_id, deadline_s))
        except BehindFloorError:  # decided long ago: what, the chain of the newest state tells
            latest = yield from over_eras(learner.get_recent, self.participant, self.enter, base, deadline_s)
            state = yield from self.state_at(latest, base.v + 1)
            return Decided(state, op_id is not None and state.op_id == op_id)

    def prepare(self, base: State, *, deadline_s: float = DEADLINE_S, hurry: Hurry = lambda: False) -> Task:
        """Does the first phase of `propose` on `base`, while an upload ends. -> bool: only one round trip is left.

        Others who propose wait for a while. `hurry`: whether the upload has ended; until then it also waits for
        acceptors beyond the quorum, for a few round trips.
        """
        return self.participant.alone(self._prepare(base, deadline_s, hurry))

    def _prepare(self, base: State, deadline_s: float, hurry: Hurry) -> Task:
        yield from self._make_sure_of_fence(base, deadline_s)
        instance = yield from self.enter(base)
        try:
            return (yield from prepare(self.participant, instance, deadline_s, hurry))
        except BehindFloorError:
            return False

    def forget_heard(self) -> None:
        """Forgets what was heard of backends, for an operation that does not look for news first."""
        if self._instance is not None:
            self._instance.begin()

    # changing the config

    def prepare_config(self, base: State, new: Config, births: Mapping[bytes, bytes], refs: Iterable[Ref]) -> Task:
        """Makes all ready for `new` as the config after `base`, whose meta objects are `refs`. -> its hash, to propose.

        `births`: nonces of the acceptors that join; `follow` was told the ways to them. See `reconfigure.prepare`.
        """
        instance = yield from self.enter(base)
        yield from self.settle(base)
        yield from reconfigure.prepare(self.participant, instance, new, births, refs)
        digest = yield from reconfigure.put_config(self.participant, base, instance.config, new)
        self.participant.configs[digest] = check_config(new)
        return digest

    def fence(self, base: State, decided: State, *, deadline_s: float = DEADLINE_S) -> Task:
        """After `decided`, which changed the config, the keys or the devices of `base`: see `reconfigure.fence`."""
        config = yield from self._config_of(decided)
        instance = yield from self.enter(base)
        m, held = self.participant, instance.rules.objects
        for digest in {decided.config, decided.devices} - {base.config, base.devices, *held, *m.objects}:
            copies = [Copy(link, const_path(a, digest.hex()), partial(named, digest)) for a, link in self._linked()]
            m.keep_object(digest, (yield from get_anywhere(copies, CONST_BYTES_MAX, "a const object")))
        yield from learn_skip(m, instance)
        yield from reconfigure.fence(self.participant, instance, decided, config, deadline_s)

    def _make_sure_of_fence(self, base: State, deadline_s: float) -> Task:
        """Fences a change of the config before the next version: its author may have died before that."""
        config = yield from self._config_of(base)
        if config.changed is None or config.changed[0] != base.v or base.hash in self.participant.fenced:
            return
        if (yield from over_eras(learner.get_recent, self.participant, self.enter, base, deadline_s)) != base:
            return  # whoever went on has seen to it; and a device that comes later may have no way to the old backends
        instance = yield from self.enter(base)
        before = yield from fetch_state(self.participant, instance, base.v - 1, base.prev, base.epoch)
        yield from self.fence(before, base, deadline_s=deadline_s)

    def open_epoch(self, state: State) -> Task:
        """Opens the keys of the epoch that a decided state is in. -> the workspace's keys as this device has them.

        `ExcludedError` when they are not for this device any more, `DamagedError`, `NoQuorumError`.
        """
        yield from self.enter(state)
        return self.participant.keys

    def get_ring(self, state: State) -> Task:
        """-> the bytes of the keyring that a decided state names, from any linked backend."""
        return fetch_ring(state, self._links())

    def find_op(self, latest: State, journal: Journal) -> Task:
        """What became of a journaled proposal. -> True: decided; False: another value was; None: v is still open.

        `latest`: what `get_recent` returned. None: propose the same op_id again; it cannot be committed twice.
        """
        if latest.v < journal.v:
            return None if latest.era == journal.base.era else False
        state: State = yield from self.state_at(latest, journal.v)
        return state.op_id == journal.op_id

    def state_at(self, latest: State, v: int, via: State | None = None) -> Task:
        """-> State v of the chain that ends with `latest`, proven by hash. `via`: a state on the way that is known."""
        instance = yield from self.enter(latest)
        self.participant.remember_state(latest)
        digest = yield from ancestor(self.participant, instance, via or latest, v)
        return (yield from fetch_state(self.participant, instance, v, digest, latest.epoch))

    def writer_of(self, before: State, state: State, *, deadline_s: float) -> Task:
        """-> id of the device that proposed `state` on top of `before`, by the first entries of its version.

        None where these tell nothing: another device had begun there, or none can be had.
        """
        instance: Instance = yield from self.enter(before, ahead=True)
        return (yield from instance.writer_of(state, deadline_s))

    # meta objects

    def put_index(
        self,
        base: State,
        leaves: Iterable[Callable[[], bytes]],
        make_root: Callable[[Sequence[Ref]], bytes],
        *,
        generation: int,
    ) -> Task:
        """Stores meta objects and a root that names them. -> (their Refs, the root's last; the root's plaintext).

        `leaves` make the plaintexts, each once, in a worker. All are stored side by side, as far as memory allows, for
        no state names the root yet. Ends once enough acceptors hold each.
        """
        refs: list[Ref] = []
        waiting: dict[str, Task] = {}
        size = 0
        for leaf in leaves:
            if size > META_BYTES_TOGETHER:
                yield Gather(waiting)
                waiting, size = {}, 0
            digest, data = yield from self._sealed(RecordKind.META, leaf, base)
            refs.append(Ref(generation, digest))
            waiting[digest.hex()] = self._put_meta(base, refs[-1], data)
            size += len(data)
            del data  # held by its task, which may end before the next leaf is made
        root = make_root(refs)
        digest, data = yield from self._sealed(RecordKind.META, lambda: root, base)
        refs.append(Ref(generation, digest))
        waiting[digest.hex()] = self._put_meta(base, refs[-1], data)
        yield Gather(waiting)
        return refs, root

    def _put_meta(self, base: State, ref: Ref, data: bytes) -> Task:
        return self._put(base, partial(meta_path, ref=ref), data, "a meta object")

    def get_meta(self, ref: Ref) -> Task:
        """-> the plaintext of a meta object; b"" for `NOTHING`. `DamagedError` when no acceptor holds it intact."""
        if ref == NOTHING:
            return b""
        if ref.hash in self.participant.riding:
            return self.participant.riding[ref.hash][RANDOM_BYTES:]
        return (yield from self._get_meta(ref, partial(open_named, self.participant.keys, RecordKind.META, ref.hash)))

    def _get_meta(self, ref: Ref, opened: Callable[[bytes], bytes]) -> Task:
        copies = [Copy(link, meta_path(a, ref), opened) for a, link in self._linked()]
        return get_anywhere(copies, META_BYTES_MAX, "a meta object")

    def name_root(self, base: State, root: bytes, *, generation: int) -> Task:
        """Names an index root that is to ride in the entries of the version after `base`. -> (Ref, what they carry)."""
        digest, data = yield from self._sealed(RecordKind.META, lambda: root, base)
        return Ref(generation, digest), read_header(data).random + root

    def get_roots(self, state: State, is_known: Callable[[bytes], bool]) -> Task:
        """-> {name: root} of the index of `state` and of those before, where they ride: see `riding.roots`."""
        return self.participant.alone(riding.roots(self.participant, self.enter, state, is_known))

    def settle(self, state: State) -> Task:
        """Makes objects of the index root of a decided state and of those it goes on from, where they are in logs.

        On the acceptors of the newest config that is known: those that the versions had then may be out of use.
        """
        worked_on = state if self._instance is None else self._instance.base
        newest = max(state, worked_on, key=lambda s: (s.era, s.v))
        get = lambda ref: self._get_meta(ref, partial(named, ref.hash))  # noqa: E731
        return riding.settle(self.participant, self.enter, state, get, partial(self._put_meta, newest))

    def put_const(self, base: State, plaintext: bytes) -> Task:
        """Stores a config or device set for a state after `base`. -> its hash, once enough acceptors hold it."""
        digest, data = yield from self._sealed(RecordKind.CONST, lambda: plaintext, base)
        self.participant.keep_object(digest, data)
        yield from self._put(base, lambda a: const_path(a, digest.hex()), data, "a const object")
        self._keep_const(digest, plaintext)
        return digest

    def get_const(self, digest: bytes) -> Task:
        """-> its plaintext."""
        if digest not in self._consts:
            data = yield from get_const(self.participant.keys, digest, self._linked(), "a const object")
            self._keep_const(digest, data)
        return self._consts[digest]

    def _keep_const(self, digest: bytes, data: bytes) -> None:
        while len(self._consts) >= CONSTS_KEPT:
            del self._consts[next(iter(self._consts))]
        self._consts[digest] = data

    def write_hint(self, base: State, state: State, *, now: bool = False, everywhere: bool = False) -> Task:
        """Overwrites every acceptor's hint with `state`, decided after `base`, if it is due or `now`. -> how many did.

        Due: every 16th version, and powers of two. `everywhere`: waits for every acceptor, `hints.WAIT_S` at most. A
        backend that fails raises nothing.
        """
        config = self.participant.configs.get(state.config, self.newest_config)
        members = {a.acceptor_id for _, a in config.acceptors} if now or hint_is_due(state.v) else set()
        links = {a: link for a, link in self._linked() if a in members}
        if links:
            self.participant.remember_state(base)
            yield from self.settle(state)  # a new device starts from a hint
        return (yield from write_hints(self.participant, links, base, state, everywhere=everywhere))

    def bound_logs(self, state: State, progress: Progress, now_s: float, **limits: Any) -> Task:
        """One step towards short logs, after a push; see `truncation.bound_logs`. -> bool: something was done."""
        if state.index_rides:
            return False  # a sleeper starts from a floor; a version whose index does not ride comes soon
        yield from self.settle(state)  # one that keeps an index may have it in an old log alone
        instance = yield from self.enter(state)
        return (yield from bound_logs(self.participant, instance, progress, now_s, **limits))

    def write_head(self, state: State, *, head: bytes, prev: bytes, backends: Sequence[str]) -> Task:
        """Overwrites this device's head on `backends` (names of the runtime, all of them). -> how many confirmed."""
        return write_head(self.participant, state, head, prev, backends)

    def read_head(self, state: State, device_id: bytes, backends: Sequence[str]) -> Task:
        """-> the newest Head of a device on `backends`, or None. `state` names the device set that judges it."""
        instance = yield from self.enter(state)
        return (yield from read_head(self.participant, instance, device_id, backends))

    def read_heads(self, state: State, devices: Sequence[bytes], backends: Sequence[str]) -> Task:
        """-> {device id: its newest Head, or None}, all in one round trip."""
        instance = yield from self.enter(state)
        return (yield from read_heads(self.participant, instance, devices, backends))

    def check_heads(self, state: State, backends: Sequence[str]) -> Task:
        """-> (heads of versions after the newest decided `state`, heads of versions not in its chain), tuples of Head.

        The first may come from a push since; if a new look does not find it, backends hide it.
        """
        instance = yield from self.enter(state)
        return (yield from check_heads(self.participant, instance, backends))

    def read_births(self, state: State) -> Task:
        """Asks every acceptor whether it is still the one the config means. -> {agreed name: Standing}."""
        instance: Instance = yield from self.enter(state)
        return (yield from instance.read_births(WAIT_S))

    # inside

    def _linked(self) -> list[tuple[bytes, str]]:
        """Acceptors within reach, those that were well last first, and those of other configs last."""
        m = self.participant
        names = {acceptor.acceptor_id: backend.name for backend, acceptor in self.newest_config.acceptors}
        out = [(a, m.links[a]) for a in names if a in m.links]

        def ailing(item: tuple[bytes, str]) -> bool:
            standing = m.standings.get(names[item[0]])
            return standing is not None and standing.kind != "ok"

        return sorted(out, key=ailing) + [(a, link) for a, link in m.links.items() if a not in names]

    def _links(self) -> list[str]:
        """Everything within reach, acceptors first."""
        return [*(link for _, link in self._linked()), *self.participant.others]

    def _config_of(self, state: State) -> Task:
        """-> the config that a state names."""
        m = self.participant
        if state.config not in m.configs:
            m.configs[state.config] = decode_agreed_config((yield from self.get_const(state.config)))
        return m.configs[state.config]

    def enter(self, base: State, *, ahead: bool = False) -> Task:
        """-> the Instance after `base`, with the config and device set that `base` names.

        `ahead`: only to look at, because nobody has vouched for `base` yet: it must not say where to read and write.
        """
        m = self.participant
        before = self._instance
        if before is not None and before.base == base:
            return before
        if before is not None:
            self._take_over(before.rules, base)
        config = yield from self._config_of(base)
        devices = m.device_sets.get(base.devices)
        if devices is None:
            devices = decode_device_set((yield from self.get_const(base.devices)), m.keys.ns_id)
            m.device_sets[base.devices] = devices
        if base.epoch not in dict(m.keys.epoch_keys):
            m.keys = yield from follow_keys(m, base, devices, self._links())
            if before is not None and before.v == base.v:
                self.unfenced.append((before.base, base))
        if ahead and (
            fault := fault_named(base, config, devices) or (before is not None and before.fault_after(base, devices))
        ):
            raise FormatError(f"version {base.v}: {fault}")
        instance = Instance(m, config, devices, check_min_fmt(base))
        if not ahead:
            m.find_ways(config)
            self._instance = instance
        return instance

    def _look_apart(self, instance: Instance) -> Task:
        from metasync.consensus.forks import look_into  # where nobody lies it is not needed

        return look_into(self.participant, self.enter, instance)

    def _take_over(self, rules: ValueRules, base: State) -> None:
        """Keeps the config and device set that entries carried and `base` names, so that nobody asks for them."""
        m = self.participant
        for digest in (base.config, base.devices):
            if digest in rules.objects:
                m.keep_object(digest, rules.objects[digest])
        if base.config in rules.configs:
            config = m.configs[base.config] = rules.configs[base.config]
            self._keep_const(base.config, config.encode())
        if base.devices in rules.device_sets:
            devices = m.device_sets[base.devices] = rules.device_sets[base.devices]
            self._keep_const(base.devices, devices.encode())

    def _sealed(self, kind: RecordKind, plaintext: Callable[[], bytes], base: State) -> Task:
        return sealed(self.participant.keys, kind, plaintext, era=base.era, epoch=base.epoch)

    def _put(self, base: State, path_of: Callable[[bytes], str], data: bytes, what: str) -> Task:
        m = self.participant
        config = yield from self._config_of(base)
        paths = {a.acceptor_id: path_of(a.acceptor_id) for _, a in config.acceptors}
        # A root that was emptied or rolled back holds nothing safely: its copy would count, and vanish with the next.
        unsound = {a for a, memory in m.acceptors.items() if memory.replaced or memory.rolled_back}
        reachable = {m.links[a]: path for a, path in paths.items() if a in m.links and a not in unsound}
        return (yield from put_everywhere(reachable, data, config.meta_copies, what))
