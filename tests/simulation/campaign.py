"""The fault campaign: round after round as many backends as are borne are emptied or damaged, and made whole again.

Three devices push all the time. A fourth pushes, too, and sees to the backends as its user would (docs/howto): `status`
or `check` must name what was hit; what was emptied or shows its past is replaced, the rest is mended by
`check --repair` and `rebalance`. A round is over once every pack of the newest version has all its copies, each intact,
and the other devices know the backends of today. In the end all is judged as after every simulation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from metasync.config import Config
from metasync.keys.derive import sha256
from metasync.local.state_keys import CONFIG_KEY
from metasync.session.folder import LINKS_KEY
from metasync.store.placement import placement_of
from simulation import checks
from simulation.client import Client, Operation
from simulation.db import SimDb
from simulation.network import Store
from simulation.plan import ClientPlan, Plan, Step
from simulation.play import APPEND_S, Play
from simulation.stocks import PackId, counting, pack_id, storage_of
from simulation.world import Actor, Violation

ROUNDS: Final = 10  # in one workspace, as a rule
SHAPES: Final = ((3, 2, False), (4, 2, True), (5, 3, False), (6, 3, True))  # backends, copies, whether one may lie
HARMS: Final = ("wiped", "rotten", "rotten", "beside", "late", "rolled back")
TRIES: Final = 20  # of each step that makes things whole again
OBJECTS_HIT_MAX: Final = 6
UNDER_WAY_S: Final = 60.0  # after which what no version names is left over from a push that came to nothing
LOOKS: Final = 200  # for a moment at which the harm is borne
PUSH_EVERY_S: Final = 20.0  # each of the others, beside what a push takes


def make_campaign(seed: int) -> Plan:
    """A plan of which only the workspace counts: what happens is drawn as it goes."""
    backends, copies, bft = random.Random(f"campaign {seed}").choice(SHAPES)
    clients = tuple(ClientPlan(f"c{n}", ()) for n in range(4))
    return Plan(seed, backends, copies, clients, (), (), ("campaign",), bft=bft)


class Campaign(Play):
    """`make_campaign`'s plan, for so many rounds. The first client is the one that sees to the backends."""

    def __init__(self, plan: Plan, rounds: int = ROUNDS) -> None:
        super().__init__(plan)
        self.rng = random.Random(f"rounds {plan.seed}")
        self.rounds = rounds
        self._over = False
        for store in self.stores.values():
            store.keeps_past = True

    def _lives(self) -> list[Actor]:
        keeper, *others = self.clients
        actors = [self.world.spawn(c.name, partial(self._push_on, c)) for c in others]
        return [*actors, self.world.spawn(keeper.name, partial(self._all_rounds, keeper))]

    def _push_on(self, client: Client, actor: Actor) -> None:
        rng = random.Random(f"{client.name} {self.plan.seed}")
        while not self._over and self.world.failure is None:
            kind = "push" if rng.random() < 0.8 else "sync"
            client.carry_out(actor, Step(kind, rng.getrandbits(32), edits=rng.randint(1, 2)))
            actor.sleep(rng.expovariate(1 / PUSH_EVERY_S))

    def _all_rounds(self, keeper: Client, actor: Actor) -> None:
        try:
            for _ in range(self.rounds):
                actor.sleep(self.rng.uniform(1, 10))
                keeper.carry_out(actor, Step("push", self.rng.getrandbits(32), edits=2))
                self._round(keeper, actor)
                self.world.count("campaign: round")
        finally:
            self._over = True

    @property
    def _config(self) -> Config:
        assert self.witness is not None
        return self.witness.config

    def _name(self, store: Store) -> str:
        return next(e.name for e in self._config.backends if e.identity == store.identity)

    # one round

    def _round(self, keeper: Client, actor: Actor) -> None:
        harms = self._strike_some(actor)
        by_status = {s for s, harm in harms.items() if harm in ("wiped", "rolled back", "late")}
        by_check = {s for s, harm in harms.items() if harm in ("rotten", "beside")}
        self._named(keeper, actor, "status", by_status)
        self._named(keeper, actor, "check", by_check)
        for store in [s for s, harm in harms.items() if harm == "late"]:
            keeper.carry_out(actor, Step("push", self.rng.getrandbits(32), edits=1))
            actor.sleep(self.rng.choice((0.5, 20.0, 100.0)))
            store.down_until = 0.0
        for store in [s for s, harm in harms.items() if harm in ("wiped", "rolled back")]:
            self._replace(keeper, actor, store)
        self._make_whole(keeper, actor)
        self._all_follow(actor)

    def _strike_some(self, actor: Actor) -> dict[Store, str]:
        """Does harm to as many backends as copies and quorum bear, at a moment at which it is borne."""
        most = min(self._config.policy(0).copies - 1, self._config.n - self._config.quorum)
        stores = [self.stores_by[e.identity] for e in self._config.backends]
        for look in range(LOOKS):
            if not look % 20:
                hit = self.rng.sample(stores, self.rng.randint(1, most))
                harms = {s: self.rng.choice(HARMS) for s in hit}
                if "rolled back" in harms.values():  # a liar: the mode bears one, and none beside it
                    harms = dict.fromkeys(hit[:1], "rolled back" if self.plan.bft else "wiped")
            if not any(s.appending for s in hit) and self._is_borne(hit):
                return {s: harm for s, harm in harms.items() if self._strike_one(s, harm)}
            actor.sleep(APPEND_S)
        self.world.count("campaign: put off")
        return {}

    def _is_borne(self, hit: Iterable[Store]) -> bool:
        """Whether what counts on these lies elsewhere too. A push has not stored all of its copies for a moment."""
        left = {checks.meaning(p) for s in self.stores.values() if s not in hit for p in s.objects}
        named, then = self._packs(), self.world.now - UNDER_WAY_S
        for store in hit:
            for path in store.objects:
                counts = pack_id(path) in named or store.born.get(path, 0.0) > then
                if counts and checks.is_content(path) and checks.meaning(path) not in left:
                    return False
        return True

    def _strike_one(self, store: Store, harm: str) -> bool:
        """-> whether there was anything to harm."""
        assert self.witness is not None
        done = True
        if harm == "late":
            store.down_until = float("inf")
        elif harm == "wiped":
            store.wipe()
        elif harm == "rolled back":
            past = store.past(self.rng.uniform(20, 200))
            done = any("/px/" in path for path in store.objects.keys() - past.keys())
            store.objects = past if done else store.objects
        elif harm == "beside":
            done = self._rot(store, self._beside(store))
        else:
            named, me = self._packs(), next(e for e in self._config.backends if e.identity == store.identity)
            here = {k for k in named if me.backend_id in placement_of(self._config).primary(k[1])}
            done = self._rot(store, self._only_copies(store, here))
        if done and harm != "late":
            self.witness.stocks.robbed.add(store.identity)
        if done:
            self.world.trace("campaign", harm, store.name)
            self.world.count(f"campaign: {harm}")
        return done

    def _beside(self, store: Store) -> list[str]:
        """What lies beside the logs there, and stays named: the config and the device set."""
        assert self.witness is not None
        wanted = {self.witness.newest.config.hex(), self.witness.newest.devices.hex()}
        return [p for p in store.objects if "/const/" in p and p.rpartition("/")[2] in wanted]

    def _rot(self, store: Store, paths: Iterable[str]) -> bool:
        """Damages some of these: a bit, the end, or all of it; or they are gone. -> whether there were any."""
        there = sorted(paths)
        for path in self.rng.sample(there, min(len(there), self.rng.randint(1, OBJECTS_HIT_MAX))):
            data, kind = store.objects[path], self.rng.randrange(4)
            if kind == 0:
                at = self.rng.randrange(len(data))
                store.objects[path] = data[:at] + bytes([data[at] ^ (1 << self.rng.randrange(8))]) + data[at + 1 :]
            elif kind == 1:
                store.objects[path] = data[: self.rng.randrange(len(data))]
            elif kind == 2:
                store.objects[path] = self.rng.randbytes(len(data))
            else:
                del store.objects[path]
            self.world.count("campaign: objects damaged")
        return bool(there)

    # what the user does about it

    def _named(self, keeper: Client, actor: Actor, kind: str, stores: Iterable[Store]) -> None:
        """A command tells of all of them, in one of a few tries."""
        names = {self._name(s) for s in stores}
        if not names:
            return
        for _ in range(TRIES):
            op = keeper.operate(actor, Step(kind, 1), self.rng)
            if op.accused >= names:
                self.world.count("campaign: named", len(names))
                return
        raise Violation(f"{kind} accuses {sorted(op.accused)}, and {sorted(names)} were hit: {_told(op)}")

    def _replace(self, keeper: Client, actor: Actor, store: Store) -> None:
        """Another backend takes the place of one that lost what it had, in the same store, which is emptied first."""
        store.wipe()
        old = next(e for e in self._config.backends if e.identity == store.identity).backend_id
        for _ in range(TRIES):
            names = sorted(e.name for e in self._config.backends)
            op = keeper.operate(actor, Step("replace", 1, target=names.index(self._name(store))), self.rng)
            keeper.link(actor, self.rng)
            if self._config.backend(old) is None:
                return
        raise Violation(f"{store.name} is not replaced: {_told(op)}")

    def _make_whole(self, keeper: Client, actor: Actor) -> None:
        """Until all that the newest version names is whole."""
        assert self.witness is not None
        for _ in range(TRIES):
            ended = [keeper.operate(actor, Step(kind, 1), self.rng) for kind in ("rebalance", "repair")]
            if not (short := self._short()) and not self._altered():
                self.witness.stocks.robbed.clear()
                return
            actor.sleep(self.rng.uniform(0.5, 3))
        told = "; ".join(map(_told, ended))
        raise Violation(f"after {TRIES} repairs {short} packs lack copies, {self._altered()} are altered: {told}")

    def _all_follow(self, actor: Actor) -> None:
        """Until every device knows the backends of today: two sets later it would find too few of those it knew."""
        for client in self.clients[1:]:
            for _ in range(TRIES * TRIES):
                if self._knows_all(client):
                    break
                actor.sleep(1.0)
            else:
                raise Violation(f"{client.name} does not come to know the backends of today")

    def _knows_all(self, client: Client) -> bool:
        kept = SimDb(client.tables)
        known, links = kept.get(CONFIG_KEY), kept.get(LINKS_KEY) or {}
        today = self._config.backends
        return known is not None and known.backends == today and {b.name for b in today} <= links.keys()

    def _packs(self) -> Mapping[PackId, object]:
        assert self.witness is not None
        return self.witness.stocks.index(self.witness.keys, self.witness.newest) or {}

    def _only_copies(self, store: Store, packs: Iterable[PackId]) -> list[str]:
        """Where the one copy of each of these packs lies that a backend has.

        An earlier round may have left another one, spoiled or whole, where the pack counts too: nothing is named then.
        """
        there, wanted = dict[PackId, list[str]](), frozenset(packs)
        for path, data in store.objects.items():
            key = pack_id(path)
            if key is not None and key in wanted and self._counts(path, store) and sha256(data) == key[1]:
                there.setdefault(key, []).append(path)
        return [paths[0] for paths in there.values() if len(paths) == 1]

    def _counts(self, path: str, store: Store) -> bool:
        """Whether a copy counts that lies there."""
        found, me = pack_id(path), next(e for e in self._config.backends if e.identity == store.identity)
        return found is not None and storage_of(path) in counting(self._config, me, found[1])

    def _short(self) -> int:
        """How many packs of the newest version have too few intact copies. Any place counts from which it is read."""
        packs, copies = self._packs(), Counter[PackId]()
        for entry in self._config.backends:
            store = self.stores_by[entry.identity]
            there = ((pack_id(p), data) for p, data in store.objects.items() if self._counts(p, store))
            copies.update({key for key, data in there if key is not None and key in packs and sha256(data) == key[1]})
        return sum(copies[key] < self._config.policy(0).copies for key in packs)

    def _altered(self) -> list[str]:
        """The backends on which the config or the device set is not what it is named by."""
        stores = [self.stores_by[e.identity] for e in self._config.backends]
        return [s.name for s in stores for p in self._beside(s) if not p.endswith(f"/{sha256(s.objects[p]).hex()}")]


def _told(op: Operation) -> str:
    return f"{op.kind} ends with {op.outcome}: {op.error}"
