"""A device of the workspace whose program keeps no rule: its keys are in order, and it has its logins at all providers.

It joined as the others did and writes to the stores itself, in no time and past all faults of the lines. It makes what
a device can make: entries and blocks, heads; to delete is a provider's business. The plan says what it does (`Strike`):

    decided    DECIDED of a lie
    accept     ACCEPT of a lie, in a round that nobody prepared
    contrary   ACCEPT of another value, in a round of somebody else's
    prepare    PREPARE of a far round
    void       a value that the rules or the policy forbid, in a round that it prepares
    version    a value that is in order, in a round that it prepares: an empty version of its own
    late       the same in an agreed version: in scenarios only
    alone      a config in which one backend votes alone: in scenarios only
    head       a head of a version far away, or of one that nobody agreed
    claim      a PREPARE that claims entries of other backends which never stood there
    forged     the same of entries in the name of other devices, at all backends: in scenarios only
    apart      entries of a version on a state that was not decided before it
    hint       hints of such a state, on a minority of the backends
    floor      floors of such a state, the same
    garbage    bytes that are no entry in the next place of a version's logs, on a minority of the backends
    last       a PREPARE of the last round there is, the same
    unread     a version of its own whose snapshot, or whose index, is nowhere
    end        one of the two before where it ends a version: on all but a minority of them
    close      the same by an ACCEPT of a lie in a round that nobody prepared, and DECIDED of it behind
    spoilt     a version of its own whose index is there, and is rubbish, or a root with rows that are not true
    list       a version that names a list of what is kept which is rubbish, or drops versions to come
    moved      a config by which packs still lie as a config, or an index, says that nobody has

No seed draws a vote on an agreed version in a round that a quorum promised: what that does to a device which cannot
reach one backend is known (consensus.md, rule 8.2).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Final, TypeAlias

from kits.forger_kit import NOBODY, Forger

from metasync.config import CHANGED_TAG, MOVING_TAG, NO_LIMIT, Config, Form, RedundancyClass, Replicate
from metasync.consensus.hints import AHEAD_MAX
from metasync.consensus.objects import meta_path, seal_object
from metasync.consensus.records.entry import (
    CLAIM_BYTES_MAX,
    Claim,
    Entry,
    Head,
    Kind,
    Round,
    covering,
    floor_path,
    head_path,
    hint_path,
    seal_floor,
    seal_head,
    seal_hint,
)
from metasync.consensus.records.log_replay import ROUND_MAX
from metasync.consensus.records.state import ZERO_HASH, ZERO_ID, Change, Ref, State, successor
from metasync.errors import MetaSyncError
from metasync.keys.derive import RecordKind
from metasync.keys.device_set import DeviceIdentity
from metasync.keys.keyring import WorkspaceKeys, open_keys
from metasync.store.index import IndexRoot, RootItem, encode_root, encode_segment, make_segment
from metasync.store.index import Ref as IndexRef
from metasync.store.retained import Dropped, Retained, encode_retained
from simulation.machine import Secret
from simulation.network import Store
from simulation.plan import INSIDER, MINORITY, Strike
from simulation.witness import Witness
from simulation.world import World

FAR: Final = 1 << 31  # a round above all others


class Shelf:
    """What a store holds below the folder of an acceptor's workspace. What is put there has landed."""

    def __init__(self, store: Store, root: str) -> None:
        self.store = store
        self._root = root + "/"

    def __contains__(self, path: object) -> bool:
        return f"{self._root}{path}" in self.store.objects

    def __getitem__(self, path: str) -> bytes:
        return self.store.objects[self._root + path]

    def __setitem__(self, path: str, data: bytes) -> None:
        self.store.objects[self._root + path] = data
        self.store.writers[self._root + path] = INSIDER
        self.store.landed(self.store, self._root + path, data)


class Grip:
    """The stores of one config, in the hands of a device: what `forger_kit.Forger` writes with."""

    def __init__(
        self, keys: WorkspaceKeys, device: DeviceIdentity, config: Config, stores: Mapping[bytes, Store],
        rng: random.Random,
    ) -> None:  # fmt: skip
        self.keys = keys
        self.rng = rng
        self.identities: Sequence[DeviceIdentity] = [device]
        self.stores: dict[str, Shelf] = {}
        self.forms: dict[str, Form] = {}
        self._ids = {entry.name: acceptor.acceptor_id for entry, acceptor in config.acceptors}
        for entry, acceptor in config.acceptors:
            store, end = stores[entry.identity], f"/{acceptor.acceptor_id.hex()}/birth"
            root = next((p[: -len(end)] for p in store.objects if p.endswith(end)), None)
            if root is not None and store.liar is None:  # not one that was emptied
                self.stores[entry.name] = Shelf(store, root)
                self.forms[entry.name] = acceptor.form

    def acceptor_of(self, name: str) -> bytes:
        return self._ids[name]


_Blow: TypeAlias = Callable[["Insider", Forger, State, Sequence[str]], None]


class Insider:
    """`secret`: the device's. It follows changes of the keys, as long as it is not revoked."""

    def __init__(self, world: World, witness: Witness, secret: Secret) -> None:
        self._world = world
        self._witness = witness
        self._keys, self._device, self._certificate = secret
        self._rng = random.Random()
        self.ended: set[int] = set()  # versions
        self.spoilt: set[int] = set()  # versions that it ended on some acceptor
        self.nowhere: set[bytes] = set()  # hashes of snapshots and indexes
        self._few: list[bytes] = []  # acceptors, which it takes away from the others
        self._lies: dict[int, State] = {}  # by version, of what it last made up there
        witness.liars.add(self._device.device_id)

    @property
    def device_id(self) -> bytes:
        return self._device.device_id

    def strike(self, strike: Strike) -> None:
        """Does it, if the workspace has come so far."""
        witness, rng = self._witness, random.Random(f"strike {strike.seed}")
        self._rng = rng
        if witness.devices.get(self.device_id) is not None:
            self._keys = witness.keys
        v = len(witness.chain) - strike.back
        if v < 1:
            return
        base = witness.chain[v - 1]
        keys = self._keys
        if base.epoch not in dict(keys.epoch_keys) and not keys.encrypted:
            keys = open_keys(keys.ns_id, base.epoch)
        grip = Grip(keys, self._device, witness.config_of(base), witness.stores, rng)
        names = sorted(grip.stores)
        if not names:
            return
        self._world.trace("insider", strike.kind, v)
        self._world.count(f"insider: {strike.kind}")
        forger = Forger(grip, grip, 0, rng.randbytes(16))
        if strike.kind in MINORITY:
            names = self._minority(grip, names, witness.config_of(base))
            if not names:
                return
        some = [names[n] for n in strike.on] or rng.sample(names, rng.randint(1, len(names)))
        with suppress(MetaSyncError):  # names that it cannot even compute
            _STRIKES[strike.kind](self, forger, base, some)

    def _minority(self, grip: Grip, names: Sequence[str], config: Config) -> list[str]:
        """So many backends as may be away, always the same ones, also where one of them is out of reach now."""
        spared = config.n - config.quorum  # none, where of three that voted one does no more
        few = [a.acceptor_id for _, a in config.acceptors if a.acceptor_id in self._few][:spared]
        others = [a for a in map(grip.acceptor_of, names) if a not in few]
        more = others[: spared - len(few)]
        self._few += more
        return [name for name in names if grip.acceptor_of(name) in {*few, *more}]

    # what it writes

    def _tell(
        self, forger: Forger, base: State, names: Iterable[str], kind: Kind, rnd: Round, value: State | None = None,
        claim: Claim | None = None, config: bytes = b"", devices: bytes = b"",
    ) -> None:  # fmt: skip
        certificate = self._certificate.encode() if base.v == 0 else b""
        steps = () if value is None else self._witness.steps_of(base)
        if value is not None and self._rng.random() < 0.5 and value.op_id in self._witness.stolen:
            steps = steps[:-1]  # which is void, where there is one
        carried = {"certificate": certificate, "config": config, "devices": devices}
        forger.tell(base, names, kind, rnd, value, claim, steps, **carried)

    def _value(self, forger: Forger, base: State, *, lie: bool) -> State:
        """A value that is in order. `lie`: nobody may take it for decided."""
        change = Change(op_id=self._rng.randbytes(16))
        if lie:
            self._witness.stolen.add(change.op_id)
        return successor(base, change, skip=self._witness.skip_of(base), writer=forger.incarnation)

    def _other(self, forger: Forger, base: State) -> State:
        """A state that was not decided in the place of this one: what it once proposed there, or a new one."""
        if base.v not in self._lies:
            self._lies[base.v] = self._value(forger, self._witness.chain[base.v - 1], lie=True)
        return self._lies[base.v]

    def _number(self) -> int:
        return self._rng.choice((1, 2, 3, 5, 40, 1 << 20, FAR))

    def _decided(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        self._tell(forger, base, some, Kind.DECIDED, NOBODY, self._value(forger, base, lie=True))

    def _accept(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        lie = self._value(forger, base, lie=True)
        self._tell(forger, base, some, Kind.ACCEPT, forger.round(self._number()), lie)

    def _contrary(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        rounds = [r for r in self._witness.rounds_of(base.v + 1) if r[0] < ROUND_MAX]  # a vote in that one is a promise
        if rounds:
            rnd = Round(*self._rng.choice(rounds))
            self._tell(forger, base, some, Kind.ACCEPT, rnd, self._value(forger, base, lie=False))

    def _prepare(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        self._tell(forger, base, some, Kind.PREPARE, forger.round(self._number()))

    def _claim(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        for name in some:
            of = self._rng.choice(sorted(forger.world.stores))
            far = self._rng.choice((0, 1, 5))
            path = forger.place(base, of, 0)
            shelf = forger.world.stores[of]
            proof = self._rng.choice(
                (
                    self._rng.randbytes(1024),
                    forger.sealed(base, of, far, bytes(32), Kind.PREPARE, forger.round(1)),
                    shelf[path][:CLAIM_BYTES_MAX] if path in shelf else bytes(512),
                )
            )
            claim = Claim(forger.ws.acceptor_of(of), base.v + 1, far, proof)
            self._tell(forger, base, [name], Kind.PREPARE, forger.round(self._number()), claim=claim)

    def _forged(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        """It signs them itself: that is all that speaks against them."""
        members = [c.device_id for c in self._witness.devices_of(base).certificates if c.device_id != self.device_id]
        assert isinstance(forger.ws, Grip)
        other = copy(forger.ws)
        other.identities = [replace(self._device, device_id=self._rng.choice(members))]
        as_other, names = Forger(forger.world, other, 0), sorted(forger.world.stores)
        for of in names:
            proof = as_other.sealed(base, of, 0, bytes(32), Kind.PREPARE, forger.round(1))
            claim = Claim(forger.ws.acceptor_of(of), base.v + 1, 0, proof)
            self._tell(forger, base, names, Kind.PREPARE, forger.round(1), claim=claim)

    def _propose(self, forger: Forger, base: State, value: State, *, config: bytes = b"", devices: bytes = b"") -> None:
        everywhere = sorted(forger.world.stores)
        rnd = forger.round(self._witness.top_of(base.v + 1) + 1)
        self._tell(forger, base, everywhere, Kind.PREPARE, rnd)
        self._tell(forger, base, everywhere, Kind.ACCEPT, rnd, value, config=config, devices=devices)

    def _void(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        value = self._value(forger, base, lie=True)
        made_up = self._rng.randbytes(32)
        broken = (
            lambda: replace(value, epoch=base.epoch + 1),
            lambda: replace(value, epoch=base.epoch + 2**31),
            lambda: replace(value, gen=base.gen + 2),
            lambda: replace(value, min_gen=base.gen + 1),
            lambda: replace(value, min_fmt=2),
            lambda: replace(value, config=made_up),
            lambda: replace(value, devices=made_up),
            lambda: replace(value, keyring=made_up),
            lambda: replace(value, prev=made_up),
            lambda: replace(value, skip=made_up),
            lambda: replace(value, skip=base.prev if base.v % 2 == 0 else base.hash),
            lambda: replace(value, ns_id=made_up),
            lambda: replace(value, era=base.era + 1),
            lambda: replace(value, writer=ZERO_ID),
        )
        choice = self._rng.randrange(len(broken) + 6)
        if choice < len(broken):
            self._propose(forger, base, broken[choice]())
        elif choice % 2:
            config, data = self._sealed(forger, base, self._weaker_config(base))
            self._propose(forger, base, replace(value, config=config), config=data)
        else:
            devices, data = self._sealed(forger, base, self._weaker_devices(base))
            self._propose(forger, base, replace(value, devices=devices), devices=data)

    def _sealed(self, forger: Forger, base: State, plain: bytes) -> tuple[bytes, bytes]:
        random = self._rng.randbytes(32)
        return seal_object(
            forger.ws.keys, RecordKind.CONST, plain, era=base.era, epoch=base.epoch, random=random
        )  # fmt: skip

    def _weaker_config(self, base: State) -> bytes:
        """A config that the policy, or the step to it, forbids."""
        config = self._witness.config_of(base).tagged(CHANGED_TAG, (base.v + 1, base.config))
        first, rest = config.backends[0], config.backends[1:]
        return self._rng.choice(
            (
                replace(config, redundancy=(RedundancyClass(NO_LIMIT, Replicate(1)),)),
                replace(config, backends=(replace(first, identity=self._rng.randbytes(32)), *rest)),
                self._lonely_config(base),
                replace(config, encrypted=not config.encrypted),
            )
        ).encode()

    def _lonely_config(self, base: State) -> Config:
        """One backend of those that vote does so alone."""
        config = self._witness.config_of(base).tagged(CHANGED_TAG, (base.v + 1, base.config))
        first, rest = config.backends[0], config.backends[1:]
        return replace(config, backends=(first, *(replace(b, acceptor=None) for b in rest)), f=0, mode="crash")

    def _weaker_devices(self, base: State) -> bytes:
        """A device set without the others, or that the admin key did not sign."""
        devices = self._witness.devices_of(base)
        mine = tuple(c for c in devices.certificates if c.device_id == self.device_id)
        others = tuple(c.device_id for c in devices.certificates if c.device_id != self.device_id)
        return self._rng.choice(
            (
                replace(devices, certificates=mine),
                replace(devices, certificates=mine, ended_ids=others),
                replace(devices, policy_data=replace(devices.policy, revoked_ids=others).encode()),
                replace(devices, policy_data=replace(devices.policy, copies=1).encode()),
            )
        ).encode()

    def _moved(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        config = self._witness.config_of(base)
        made_up = self._rng.randbytes(32)
        prev, index, before = config.prev_config or base.config, base.index, base.config
        if config.moving is not None:
            index = Ref(*config.moving)
        prev, index, before = self._rng.choice(
            ((made_up, index, before), (prev, Ref(index.generation, made_up), before), (prev, index, made_up))
        )
        config = replace(config, prev_config=prev).tagged(MOVING_TAG, index).tagged(CHANGED_TAG, (base.v + 1, before))
        digest, data = self._sealed(forger, base, config.encode())
        self._propose(forger, base, replace(self._value(forger, base, lie=True), config=digest), config=data)

    def _stored(self, forger: Forger, base: State, plain: bytes) -> Ref:
        """Stores an object that a version may name, everywhere."""
        random, keys = self._rng.randbytes(32), forger.ws.keys
        digest, data = seal_object(keys, RecordKind.META, plain, era=base.era, epoch=base.epoch, random=random)
        for name, shelf in forger.world.stores.items():
            shelf[meta_path(forger.ws.acceptor_of(name), Ref(base.gen, digest))] = data
        return Ref(base.gen, digest)

    def _spoilt(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        root = self._witness.stocks.root(forger.ws.keys, base)
        if base is not self._witness.newest or root is None:
            return
        empty = encode_segment(make_segment(()))
        row = RootItem(IndexRef(*self._stored(forger, base, empty)), len(empty), 0, 0)
        false = self._rng.choice((row._replace(size=1 << 60), row._replace(objects=1 << 63), row._replace(packs=9)))
        rows = self._rng.choice(((false,), (row, row)))
        plain = self._rng.choice((b"\1\0\0\0\7", encode_root(IndexRoot((*root.items, *rows)))))
        ref = self._stored(forger, base, plain)
        self.nowhere.add(ref.hash)
        self._propose(forger, base, replace(self._value(forger, base, lie=False), index=ref))

    def _list(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        if base is not self._witness.newest or base.master == ZERO_HASH:
            return
        first, far = base.v + 2, self._rng.choice((0, 1, 4, 1 << 60))
        drops = encode_retained(Retained((Dropped(first, first + far, base.master),)))
        ref = self._stored(forger, base, self._rng.choice((b"\1garbage", drops, drops, drops)))
        self.nowhere.add(ref.hash)
        self._witness.stocks.lies.add(ref.hash)
        self._propose(forger, base, replace(self._value(forger, base, lie=False), retained=ref))

    def _version(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        if base is self._witness.newest:
            self._propose(forger, base, self._value(forger, base, lie=False))

    def _unread(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        if base is not self._witness.newest:
            return
        value, digest = self._value(forger, base, lie=False), self._rng.randbytes(32)
        if self._rng.random() < 0.5:
            value = replace(value, master=digest)
        else:
            value = replace(value, index=value.index._replace(hash=digest))
        self.nowhere.add(digest)
        self._propose(forger, base, value)

    def _late(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        self._lies[base.v + 1] = self._value(forger, base, lie=True)
        self._propose(forger, base, self._lies[base.v + 1])

    def _alone(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        config, data = self._sealed(forger, base, self._lonely_config(base).encode())
        self._propose(forger, base, replace(self._value(forger, base, lie=True), config=config), config=data)

    def _apart(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        if base.v:
            other = self._other(forger, base)
            self._tell(forger, other, some, Kind.PREPARE, forger.round(self._number()))

    def _told(self, forger: Forger, base: State, name: str) -> Entry:
        """Says, outside any log, that such a state was decided after `base`."""
        lie = self._value(forger, base, lie=True)
        return Entry(
            acceptor_id=forger.ws.acceptor_of(name), v=lie.v, idx=0, prev_entry=bytes(32), base=base, kind=Kind.DECIDED,
            round=NOBODY, value=lie, entry_id=self._rng.randbytes(16), device_id=self.device_id,
            certificate=self._certificate.encode() if base.v == 0 else b"",
        )  # fmt: skip

    def _hint(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        for name in some:
            entry, random = self._told(forger, base, name), self._rng.randbytes(32)
            data = seal_hint(forger.ws.keys, entry, self._device.sign_private, random)
            forger.world.stores[name][hint_path(entry.acceptor_id)] = data

    def _floor(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        """A floor that covers this version, or none that is made up can."""
        for name in some:
            entry, random = self._told(forger, base, name), self._rng.randbytes(32)
            floor = floor_path(entry.acceptor_id, covering(max(base.v - self._rng.randint(0, 8), 0)))
            if entry.v >= int(floor.rpartition("/")[2]) and floor not in forger.world.stores[name]:
                data = seal_floor(forger.ws.keys, entry, self._device.sign_private, random)
                forger.world.stores[name][floor] = data

    def _garbage(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        for name in some:
            idx, shelf = 0, forger.world.stores[name]
            while (path := forger.place(base, name, idx)) in shelf:
                idx += 1
            shelf[path] = self._rng.randbytes(self._rng.choice((0, 7, 1024)))
        self.spoilt.add(base.v + 1)

    def _last(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        self._tell(forger, base, some, Kind.PREPARE, forger.round(ROUND_MAX))
        self.spoilt.add(base.v + 1)

    def _closed(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        lie = self._value(forger, base, lie=True)
        self._tell(forger, base, some, Kind.ACCEPT, forger.round(FAR), lie)
        self._tell(forger, base, some, Kind.DECIDED, NOBODY, lie)

    def _close(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        self._end(forger, base, some, (Insider._closed,))

    def _end(self, forger: Forger, base: State, some: Sequence[str], ways: Sequence[_Blow] = (_garbage, _last)) -> None:
        """It ends a version on so many that the others are no quorum."""
        names = sorted(forger.world.stores)
        config = self._witness.config_of(base)
        least = config.n - config.quorum + 1
        if len(names) >= least and base is self._witness.newest:
            hit = self._rng.sample(names, self._rng.randint(least, len(names)))
            way = self._rng.choice(ways)
            way(self, forger, base, hit)
            is_admitted = self._witness.devices_of(base).get(self.device_id) is not None
            if is_admitted or (way is Insider._garbage and "block" not in forger.ws.forms.values()):
                self.ended.add(base.v + 1)  # what a device says that is not admitted yet is void

    def _head(self, forger: Forger, base: State, some: Sequence[str]) -> None:
        far = self._rng.choice((base.v, base.v + 1, base.v + AHEAD_MAX + 2, 1 << 62))
        made_up = self._rng.randbytes
        head = Head(self.device_id, far, made_up(32), made_up(32), made_up(32), self._certificate.encode())
        data = seal_head(forger.ws.keys, head, self._device, era=base.era, epoch=base.epoch, random=made_up(32))
        for name in some:
            forger.world.stores[name][head_path(self.device_id)] = data


_STRIKES: Mapping[str, _Blow] = {
    "decided": Insider._decided,
    "accept": Insider._accept,
    "contrary": Insider._contrary,
    "prepare": Insider._prepare,
    "void": Insider._void,
    "version": Insider._version,
    "unread": Insider._unread,
    "late": Insider._late,
    "alone": Insider._alone,
    "head": Insider._head,
    "claim": Insider._claim,
    "forged": Insider._forged,
    "apart": Insider._apart,
    "hint": Insider._hint,
    "floor": Insider._floor,
    "garbage": Insider._garbage,
    "last": Insider._last,
    "end": Insider._end,
    "close": Insider._close,
    "spoilt": Insider._spoilt,
    "list": Insider._list,
    "moved": Insider._moved,
}
