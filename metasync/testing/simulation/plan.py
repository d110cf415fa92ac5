"""What a seed means: the clients and what each does, the providers, and the faults; all of it can be made smaller.

Swarm: a seed draws which kinds of faults and habits there are at all, so that no kind always hides another.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

PUSHES_LEAST: Final = 30
CLIENTS_LEAST: Final = 3
FAULTS_LEAST: Final = 5
BEYOND_SHARE: Final = 0.06  # of seeds, which check that lies are named instead of all else
DAY_S: Final = 86_400.0

FEATURES: Final = (
    "outages", "lossy", "late", "duplicates", "busy", "corrupt", "full", "cut off", "wipe", "slow",
    "pounce", "crash", "power", "long sleep", "agitation", "restore", "copy", "skewed clocks", "coarse times",
    "folding",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client does, after `pause_s`. `seed`: of all chance in it.

    crash_at   the process dies at so many calls on what lies outside of it; 0: it does not
    power      the machine loses power then, and with it what was not synced
    down_s     how long it stays down after that
    agitate    the user edits at every so many system calls meanwhile; 0: the user waits
    """

    kind: str
    seed: int
    pause_s: float = 0.0
    edits: int = 0
    crash_at: int = 0
    power: bool = False
    down_s: float = 0.0
    agitate: int = 0
    force: bool = True


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client. `copy_of`: it begins as an image of that client's disk, taken at its `snap` step."""

    name: str
    steps: tuple[Step, ...]
    skew_s: float = 0.0
    tick_ns: int = 1
    folds: bool = False
    copy_of: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with a provider, or the line to it, from `at_s` on."""

    at_s: float
    kind: str
    backend: int
    amount: float = 0.0
    for_s: float = 0.0
    client: str = ""


@dataclass(frozen=True, slots=True)
class Pounce:
    """Trouble at the worst moment: when version `v` gets its first promise, its first vote, or is decided.

    crash      the client that brought it about dies
    cut off    it reaches none of the other providers for a while
    hide       the provider where it just landed is out of reach for everybody for a while
    lonely     the others are
    slow       all that this client sends for a while lies around for up to as long before it lands
    wipe       that provider is emptied, if the budget allows it, and another one hidden
    """

    v: int
    moment: str
    kind: str
    for_s: float = 0.0
    down_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that happens in one simulation but for the chance in the network, which `seed` gives."""

    seed: int
    backends: int
    copies: int
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    pounces: tuple[Pounce, ...] = ()
    features: tuple[str, ...] = ()
    beyond: bool = False  # providers lie or are rolled back, which is more than this mode of agreement bears

    @property
    def pushes(self) -> int:
        return sum(s.kind in ("push", "sync") for c in self.clients for s in c.steps)

    @property
    def troubles(self) -> int:
        """Faults of all kinds, crashes and restored disks among them."""
        own = sum(bool(s.crash_at) or s.kind == "restore" or bool(s.agitate) for c in self.clients for s in c.steps)
        return own + len(self.faults) + len(self.pounces) + sum(bool(c.copy_of) for c in self.clients)


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"plan {seed}")
    features = tuple(f for f in FEATURES if rng.random() < 0.4)
    backends = rng.choice((3, 3, 3, 3, 4, 5))
    count = rng.choice((3, 3, 3, 4))
    names = [f"c{n}" for n in range(count)]
    pushes = _shares(rng, max(PUSHES_LEAST, rng.choice((30, 33))), count)
    clients = [_client(rng, name, features, n) for name, n in zip(names, pushes, strict=True)]
    if "copy" in features:
        original = rng.randrange(count)
        clients[original] = _with(rng, clients[original], "snap")
        copied = _client(rng, "copy", features, 3)
        clients.append(replace(copied, copy_of=names[original], tick_ns=clients[original].tick_ns,
                               folds=clients[original].folds))  # fmt: skip
    faults = _faults(rng, features, backends, [c.name for c in clients])
    pounces = _pounces(rng) if "pounce" in features else ()
    beyond = rng.random() < BEYOND_SHARE
    if beyond:
        faults += [_lie(rng, backends, [c.name for c in clients]) for _ in range(rng.randint(1, 2))]
    plan = Plan(seed, backends, min(2, backends), tuple(clients), tuple(faults), pounces, features, beyond)
    while plan.troubles < FAULTS_LEAST:
        more = Fault(rng.uniform(0, 60), "outage", rng.randrange(backends), for_s=rng.uniform(5, 40))
        plan = replace(plan, faults=(*plan.faults, more))
    return plan


def _lie(rng: random.Random, backends: int, clients: list[str]) -> Fault:
    """Shows a past of `amount` seconds ago: to all, or to one client, whom it keeps in it for a while."""
    kind = rng.choice(("rollback", "split"))
    return Fault(
        rng.uniform(10, 120), kind, rng.randrange(backends), rng.uniform(1, 60), rng.uniform(5, 90), rng.choice(clients)
    )


def _pounces(rng: random.Random) -> tuple[Pounce, ...]:
    kinds = rng.sample(("crash", "cut off", "hide", "lonely", "slow", "wipe"), rng.randint(1, 4))
    return tuple(
        Pounce(
            rng.randint(2, 30),
            rng.choice(("promise", "vote", "vote", "decision")),
            rng.choice(kinds),
            rng.choice((0.5, 5.0, 45.0, 90.0)) * rng.uniform(0.5, 1.5),
            rng.choice((0.0, 1.0, 30.0)),
        )
        for _ in range(rng.randint(2, 10))
    )


def _shares(rng: random.Random, total: int, among: int) -> list[int]:
    out = [total // among + (n < total % among) for n in range(among)]
    rng.shuffle(out)
    return out


def _client(rng: random.Random, name: str, features: Iterable[str], pushes: int) -> ClientPlan:
    has = set(features)
    hurried = rng.random() < 0.5
    steps = []
    for _ in range(pushes):
        kind = "push" if rng.random() < 0.8 else "sync"
        steps.append(_step(rng, kind, has, hurried, edits=rng.choice((1, 1, 2, 3))))
        if rng.random() < 0.25:
            steps.append(_step(rng, rng.choice(("pull", "pull", "status", "check", "reopen")), has, hurried))
    if "restore" in has and rng.random() < 0.6:
        at = rng.randrange(len(steps))
        steps.insert(at, Step("snap", rng.getrandbits(32)))
        steps.insert(rng.randrange(at + 1, len(steps) + 1), Step("restore", rng.getrandbits(32)))
    return ClientPlan(
        name,
        tuple(steps),
        skew_s=rng.uniform(-400, 400) * DAY_S if "skewed clocks" in has and rng.random() < 0.5 else 0.0,
        tick_ns=rng.choice((10**6, 10**7, 2 * 10**9)) if "coarse times" in has and rng.random() < 0.5 else 1,
        folds="folding" in has and rng.random() < 0.5,
    )


def _step(rng: random.Random, kind: str, has: set[str], hurried: bool, edits: int = 0) -> Step:
    pause = rng.expovariate(1 / (0.4 if hurried else 8.0))
    if "long sleep" in has and rng.random() < 0.05:
        pause = rng.uniform(1, 400) * DAY_S
    crash, down = 0, 0.0
    if "crash" in has and rng.random() < 0.2:
        crash = int(rng.choice((40, 200, 700)) * rng.random()) + 1
        down = rng.choice((0.0, rng.uniform(0, 20), rng.uniform(0, 20), rng.uniform(0, 400) * DAY_S))
    return Step(
        kind,
        rng.getrandbits(32),
        pause,
        edits,
        crash,
        power=bool(crash) and "power" in has and rng.random() < 0.6,
        down_s=down,
        agitate=rng.choice((3, 10, 25)) if "agitation" in has and rng.random() < 0.15 else 0,
        force=rng.random() < 0.9,
    )


def _with(rng: random.Random, client: ClientPlan, kind: str) -> ClientPlan:
    steps = list(client.steps)
    steps.insert(rng.randrange(len(steps) // 2 + 1), Step(kind, rng.getrandbits(32)))
    return replace(client, steps=tuple(steps))


def _faults(rng: random.Random, features: Iterable[str], backends: int, clients: list[str]) -> list[Fault]:
    out = []
    span = 120.0
    kinds = {
        "outages": ("outage", 4, (0.0, 0.0), (5, 60)),
        "lossy": ("lossy", 3, (0.05, 0.4), (10, 60)),
        "late": ("late", 2, (0.05, 0.4), (10, 60)),
        "duplicates": ("duplicate", 2, (0.1, 0.5), (10, 60)),
        "busy": ("busy", 2, (0.05, 0.4), (10, 60)),
        "corrupt": ("corrupt", 1, (0.02, 0.2), (5, 30)),
        "full": ("full", 2, (0.0, 0.0), (10, 60)),
        "slow": ("slow", 2, (0.5, 4.0), (10, 60)),
        "cut off": ("cut off", 4, (0.0, 0.0), (5, 60)),
    }
    for feature, (kind, most, amount, length) in kinds.items():
        if feature in features:
            for _ in range(rng.randint(1, most)):
                out.append(
                    Fault(
                        rng.uniform(0, span),
                        kind,
                        rng.randrange(backends),
                        rng.uniform(*amount),
                        rng.uniform(*length),
                        rng.choice(clients) if kind == "cut off" else "",
                    )
                )
    if "wipe" in features:
        out.append(Fault(rng.uniform(0, span), "wipe", rng.randrange(backends)))
    return sorted(out, key=lambda f: f.at_s)
