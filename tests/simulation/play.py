"""One simulation from beginning to end: founds a workspace, lets clients and faults go on, heals all, and judges."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from simulation import checks
from simulation.agreed import AgreedIn
from simulation.calm import Calm
from simulation.client import Client, Operation
from simulation.founding import begin, first_secret, local_state, make_state_dir, next_secret
from simulation.insider import Insider
from simulation.lies import Liar
from simulation.machine import place_of
from simulation.network import Hold, Lines, Rates, Store
from simulation.plan import INSIDER, ClientPlan, Fault, Plan, Pounce, Step, Strike
from simulation.sealing import repeatable_sealing
from simulation.short_logs import short_logs
from simulation.small_deltas import small_deltas
from simulation.witness import Witness
from simulation.world import Actor, Boot, Violation, World

APPEND_S: Final = 0.05  # until it is looked again whether a store may be emptied
CLONE_TRIES: Final = 60
LOSS_S: Final = 1.0  # until it is looked again whether stores may be lost
LOSS_TRIES: Final = 40


@dataclass
class Outcome:
    """What became of one seed. `failure`: "" when all is as it must be."""

    seed: int
    failure: str = ""
    trace: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    pushes: int = 0


def make_stores(plan: Plan, world: World) -> dict[str, Store]:
    """Those that the workspace is founded on, b0, b1, ..., and others, s0, s1, ..."""
    out = {f"b{n}": Store(f"b{n}", world, "block" if n in plan.blocks else "log") for n in range(plan.backends)}
    return out | {f"s{n}": Store(f"s{n}", world) for n in range(plan.spares)}


class Play:
    """A world with its stores, clients and witness."""

    def __init__(self, plan: Plan, *, keep_log: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        if keep_log:
            self.world.log = []
        self.stores = make_stores(plan, self.world)
        self.lines = Lines(self.world)
        self.history: list[Operation] = []
        plans = (*plan.clients, *[ClientPlan(INSIDER, ())] * bool(plan.insider))
        self.clients = [Client(self.world, c, self.stores, self.lines, self.history) for c in plans]
        self.insider: Insider | None = None
        images = any(s.kind == "restore" for c in plan.clients for s in c.steps) or any(c.copy_of for c in plan.clients)
        for client in self.clients:
            client.never_restored = not images
            client.user.goes_back = "back" in plan.features
            client.user.writes_much = "deltas" in plan.features
            client.moved = lambda: set().union(*(c.user.moved for c in self.clients))
            client.agreed = AgreedIn(self)
        self.witness: Witness | None = None
        self._wiped: set[str] = set()
        self._changing = 0  # changes of the backends that are under way
        self.healed = False
        self.unclosed = 0  # the version that somebody was told can have no fence any more
        self.recovered_era = 0  # the newest era whose beginning came to its end

    def run(self) -> Outcome:
        """The whole simulation, in this thread and the clients'."""
        world = self.world
        out = Outcome(self.plan.seed)
        try:
            with contextlib.ExitStack() as exchanged:
                exchanged.enter_context(repeatable_sealing())
                if self.plan.floors:
                    exchanged.enter_context(short_logs())
                if "deltas" in self.plan.features:
                    exchanged.enter_context(small_deltas())
                self._run()
        except Violation as e:
            out.failure = str(e)
        except Exception as e:  # a defect of the product or of the simulation: both are to be seen
            cause = e.__traceback__
            while cause is not None and cause.tb_next is not None:
                cause = cause.tb_next
            where = f"{cause.tb_frame.f_code.co_filename.rpartition('/')[2]}:{cause.tb_lineno}" if cause else ""
            out.failure = f"{type(e).__name__} at {where}: {e}"
        out.trace, out.counts, out.log = world.trace_hash(), world.counts, world.log or []
        out.pushes = sum(op.pushed for op in self.history)
        return out

    def _run(self) -> None:
        world = self.world
        director = world.director
        self._found(director)
        self._start(director)
        for fault in self.plan.faults:
            world.at(fault.at_s, partial(self._strike, fault))
        for strike in self.plan.insider:
            if not strike.moment:
                world.at(strike.at_s, partial(self._betray, strike))
        actors = self._lives()
        self._until(lambda: all(a.ended for a in actors))
        self._heal()
        end = Calm(self)
        calm = world.spawn("calm", end.name_lies if self.plan.beyond else end.settle)
        self._until(lambda: calm.ended)
        assert self.witness is not None
        if self.plan.beyond:
            checks.never_back(self.history, {c.name for c in self.clients if c.never_restored})
            return
        checks.history(self.history, self.witness)
        if self.plan.insider and not self._wiped:
            checks.nobody_blamed(self.clients, self.stores)
        checks.nothing_lost(self.clients, {n: s for n, s in self.stores.items() if not s.gone}, self.witness)
        world.count("surplus copy deleted", self.witness.stocks.surplus)
        for store in self.stores.values():
            world.count("lie told", store.liar.told if store.liar is not None else 0)

    def _lives(self) -> list[Actor]:
        """What the clients do until the faults end."""

        def body(client: Client) -> Callable[[Actor], None]:
            if client.plan.copy_of:
                return partial(self._live_as_copy, client)
            return partial(self._live_as_guest, client) if client.plan.invited else client.live

        later = sorted(self.clients, key=lambda c: bool(c.plan.copy_of) + bool(c.plan.invited))
        return [self.world.spawn(c.name, body(c)) for c in later]

    def _until(self, done: Callable[[], bool]) -> None:
        world = self.world
        world.director.wait(lambda: world.failure is not None or done())
        if world.failure is not None:
            for client in self.clients:
                if client.boot is not None:
                    client.boot.die()
            raise world.failure

    # the beginning

    def _found(self, director: Actor) -> None:
        plan = self.plan
        first = {n: s for n, s in self.stores.items() if n.startswith("b")}
        b = begin(
            self.world, director, first, self.lines, plan.copies, byzantine=plan.bft, encrypted=plan.encrypted
        )  # fmt: skip
        by_identity = {s.identity: s for s in self.stores.values()}
        for number, kinds in plan.liars:
            self.stores[f"b{number}"].liar = Liar(plan.seed, kinds)
        self.witness = Witness(self.world, b.founded.keys, b.founded.state, by_identity, self._openers)
        for store in self.stores.values():
            store.landed, store.deleting = self.witness.landed, self.witness.deleted
            store.keeps_past = plan.beyond
        self.witness.tolerates_forks = plan.beyond
        self.witness.on_moment = self._pounce
        self.witness.stocks.lacks_way = lambda backend_id: any(c.lacks_way_to(backend_id) for c in self.clients)
        for n, client in enumerate(c for c in self.clients if not c.plan.copy_of and not c.plan.invited):
            client.secret = first_secret(b) if n == 0 else next_secret(self.world, b, client.name)
            client.tables = local_state(b, list(first.values()), client.secret, place_of(client.name), unfinished=n > 0)
            make_state_dir(client.volume)

    def _openers(self) -> Iterator[bytes]:
        return (c.secret[1].seal_private for c in self.clients if c.secret is not None)

    def _start(self, director: Actor) -> None:
        """The other devices clone, before any fault."""

        def clone(client: Client, actor: Actor) -> None:
            client.operate(actor, Step("clone", 0), client.rng())

        for client in self.clients[1:]:
            if not client.plan.copy_of and not client.plan.invited:
                actor = self.world.spawn(client.name, partial(clone, client))
                self._until(lambda actor=actor: actor.ended)  # type: ignore[misc]
            if client.name == INSIDER:
                assert self.witness is not None
                assert client.secret is not None
                client.close()
                client.gone = True  # from now on it writes to the stores itself
                self.insider = Insider(self.world, self.witness, client.secret)

    def _live_as_copy(self, client: Client, actor: Actor) -> None:
        original = next(c for c in self.clients if c.name == client.plan.copy_of)
        for _ in range(CLONE_TRIES):
            if original.image is not None:
                client.start_from(original.image)
                client.live(actor)
                return
            actor.sleep(5.0)
        client.gone = True

    def _live_as_guest(self, client: Client, actor: Actor) -> None:
        for _ in range(CLONE_TRIES):
            if client.code:
                client.live(actor)
                return
            actor.sleep(5.0)
        client.gone = True  # nobody invited it

    # faults

    def _strike(self, fault: Fault) -> None:
        store, world = self.stores[f"b{fault.backend}"], self.world
        if self.healed:
            return  # the clients were done before it came
        until = world.now + fault.for_s
        world.trace("fault", fault.kind, store.name)
        rates = {
            "lossy": {"lost_request": fault.amount / 2, "lost_reply": fault.amount / 2},
            "late": {"late": fault.amount},
            "duplicate": {"duplicate": fault.amount},
            "busy": {"busy": fault.amount},
            "corrupt": {"corrupt": fault.amount},
            "slow": {"latency_s": fault.amount},
        }.get(fault.kind)
        if rates is not None:
            store.rates = replace(store.rates, **rates)
            world.at(fault.for_s, lambda: self._mend(store, rates.keys()))
        elif fault.kind == "outage":
            store.down_until = max(store.down_until, until)
        elif fault.kind == "full":
            store.full_until = max(store.full_until, until)
        elif fault.kind == "cut off":
            store.cut_off[fault.client] = until
        elif fault.kind == "wipe":
            self._wipe(store)
        elif fault.kind in ("hold", "lag", "refuse"):
            lands, refuses = until if fault.kind == "hold" else 0.0, fault.kind == "refuse"
            store.holds.append(Hold(fault.client, fault.calls, until, lands, fault.amount, refuses))
        elif fault.kind == "gone":
            self._lose([self.stores[f"b{f.backend}"] for f in self.plan.faults if f.kind == "gone"], fault)
        elif fault.kind == "gone again":
            self._lose_again(fault)
        elif fault.kind == "empty":
            self.empty_removed(store)
        elif fault.kind == "rollback":
            store.objects = store.past(fault.amount)
        elif fault.kind == "split":
            store.private[fault.client] = store.past(fault.amount)
            world.at(fault.for_s, lambda: store.show_all(fault.client))
        else:
            raise AssertionError(fault.kind)
        world.count(f"fault: {fault.kind}")

    def _betray(self, strike: Strike) -> None:
        if self.insider is not None and not self.healed:
            self.insider.strike(strike)

    def _pounce(self, v: int, moment: str, store: Store) -> None:
        for strike in self.plan.insider:
            if (strike.v, strike.moment) == (v, moment):
                self.world.at(0.0, partial(self._betray, strike))
        for pounce in self.plan.pounces:
            if (pounce.v, pounce.moment) == (v, moment) and not self.healed:
                self.world.count(f"pounce: {pounce.kind}")
                self.world.trace("pounce", v, moment, pounce.kind, store.name)
                # Not within the call that brought it about, but before anything else.
                self.world.at(0.0, partial(self._leap, pounce, store, self.lines.sender))

    def _leap(self, pounce: Pounce, store: Store, sender: tuple[Boot, str] | None) -> None:
        boot, client = sender or (None, "")
        until = self.world.now + pounce.for_s
        others = [s for s in self.stores.values() if s is not store]
        if pounce.kind == "crash" and boot is not None:
            boot.down_s = pounce.down_s
            boot.die()
        elif pounce.kind == "cut off":
            for other in others:
                other.cut_off[client] = until
        elif pounce.kind == "hide":
            store.down_until = max(store.down_until, until)
        elif pounce.kind == "lonely":
            for other in others:
                other.down_until = max(other.down_until, until)
        elif pounce.kind == "swap":
            for other in others:
                other.down_until = max(other.down_until, until)
            self.world.at(pounce.for_s, lambda: self._hide(store, pounce.for_s))
        elif pounce.kind == "suspend" and boot is not None:
            boot.suspend(pounce.for_s)
        elif pounce.kind == "slow":
            self.lines.slow[client] = (until, pounce.for_s)
        elif pounce.kind == "hold":
            writes = ("create px", "put bl")
            store.holds += [Hold(client, calls, until, until) for calls in writes]
        elif pounce.kind == "wipe":
            self._wipe(store)
            others[0].down_until = max(others[0].down_until, until)

    def _lose(self, lost: Sequence[Store], fault: Fault, tries: int = LOSS_TRIES) -> None:
        """A majority is lost for good, when the others have a copy of everything, and a vote for every version."""
        left = {checks.meaning(p) for s in self.stores.values() if s not in lost and not s.gone for p in s.objects}
        missing = any(checks.is_content(p) and checks.meaning(p) not in left for s in lost for p in s.objects)
        missing = missing or (self.witness is not None and not self.witness.is_borne_out_without(lost))
        if missing and not fault.amount:
            if tries:
                self.world.at(LOSS_S, lambda: None if self.healed else self._lose(lost, fault, tries - 1))
            self.world.count("loss put off")
            return
        self.world.count("majority lost", not lost[0].gone)
        self.world.count("majority lost again", fault.kind == "gone again")
        for store in lost:
            store.gone = True

    def _lose_again(self, fault: Fault, tries: int = LOSS_TRIES) -> None:
        """After a recovery a majority of what that left is lost, too."""
        assert self.witness is not None
        config = self.witness.config
        if self.recovered_era and config.quorum > 1:
            acceptors = [self.stores_by[e.identity] for e, _ in config.acceptors]
            drawn = random.Random(fault.at_s).sample(acceptors, config.n - config.quorum + 1)
            self._lose(drawn, fault, tries)
        elif tries:
            self.world.at(LOSS_S, lambda: None if self.healed else self._lose_again(fault, tries - 1))

    def is_lost_again(self) -> bool:
        """Whether a second loss is in the plan, and did not come yet."""
        return any(f.kind == "gone again" for f in self.plan.faults) and not self.world.counts["majority lost again"]

    def lose_again(self) -> None:
        """Has it come now, if the others have a copy of everything."""
        self._lose_again(next(f for f in self.plan.faults if f.kind == "gone again"), tries=0)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing can be agreed until somebody recovers, or a recovery was begun and has not ended."""
        assert self.witness is not None
        config, newest = self.witness.config, self.witness.newest
        lost = sum(self.stores_by[e.identity].gone for e, _ in config.acceptors)
        too_few = config.n - lost < config.quorum
        return too_few or AgreedIn(self).is_ended() or newest.era > self.recovered_era

    def _hide(self, store: Store, seconds: float) -> None:
        if not self.healed:
            store.down_until = max(store.down_until, self.world.now + seconds)

    def _mend(self, store: Store, what: Iterable[str]) -> None:
        fresh = Rates()
        store.rates = replace(store.rates, **{name: getattr(fresh, name) for name in what})

    def _wipe(self, store: Store) -> None:
        """Empties a store, if the budget allows it: a minority, and nothing that lies there alone."""
        assert self.witness is not None
        if store.appending:
            # A birth that was read just before, beside a create that lands just after: a window that is known to be
            # open (consensus.md, rule 1.10), and no finding.
            self.world.at(APPEND_S, lambda: None if self.healed else self._wipe(store))
            return
        if self._wiped or self._changing or not self._may_lose(store) or self._holds_alone(store):
            self.world.count("wipe beyond the budget left out")
            return
        self._wiped.add(store.name)
        self.witness.stocks.robbed.add(store.identity)
        self.world.count("wiped")
        store.wipe()

    def _may_lose(self, store: Store) -> bool:
        """Whether agreement and the copies of everything bear the loss of what an agreed backend holds."""
        assert self.witness is not None
        config = self.witness.config
        lying = sum(self.stores_by[e.identity].liar is not None for e, _ in config.acceptors)
        agreed = any(e.identity == store.identity for e in config.backends)
        return agreed and lying == 0 and min(config.n - config.quorum, self.plan.copies - 1) >= 1

    @functools.cached_property
    def stores_by(self) -> dict[bytes, Store]:
        """The stores by what they say who they are."""
        return {s.identity: s for s in self.stores.values()}

    def _holds_alone(self, store: Store) -> bool:
        """Whether something would be lost with it. A pack under a storage id that was given up is in nobody's reach."""
        assert self.witness is not None
        read = {(b.identity, i.storage_id.hex()) for b in self.witness.config.backends for i in b.storage}
        others = {
            checks.meaning(p) for s in self.stores.values() if s is not store for p in s.objects
            if "/packs/" not in p or (s.identity, p.split("/", 2)[1]) in read
        }  # fmt: skip
        return any(checks.is_content(p) and checks.meaning(p) not in others for p in store.objects)

    def empty_removed(self, store: Store) -> None:
        """A backend that was taken out is used for something else."""
        assert self.witness is not None
        agreed = any(e.identity == store.identity for e in self.witness.config.backends)
        if agreed or self._changing or self.healed or self._holds_alone(store):
            return
        self.world.trace("emptied", store.name)
        self.witness.stocks.robbed.add(store.identity)
        self.world.count("removed backend emptied")
        store.wipe()

    # the end

    def _heal(self) -> None:
        self.healed = True
        for store in self.stores.values():
            store.rates = Rates()
            store.down_until = store.full_until = 0.0
            store.cut_off.clear()
            store.holds.clear()
            store.private.clear()
        self.lines.slow.clear()
        self.world.trace("healed")
