"""Plans in which the backends are changed again and again: the mapping of packs, twenty times and more in one seed.

In other plans a change that is refused is let go, so that few of those that are drawn are agreed. Here a user who wants
one goes on until it is (`client.Client.change`). No seed's own plan is one of these: a batch runs them beside those.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from simulation.plan import ClientPlan, Fault, Plan, Pounce, Step
from simulation.seeds import COMMON, SPAN_S, drawn_faults, drawn_pounces

CHANGES_LEAST: Final = 20  # in a row that each seed is to have agreed, with something pushed before each
CHANGES: Final = 26  # that are wanted, with pushes of their own between
CHANGES_MORE: Final = 12  # if less came of these: a process that dies may leave one undone, or others be away for long
ASLEEP_S: Final = 600.0  # at most
TROUBLES: Final = (*(t for t in COMMON if t not in ("agitation", "long sleep")), "wipe")
BESIDE: Final = (
    "gc", "gc", "repair", "repair", "check", "rebalance", "pull", "status", "reopen", "demote", "promote", "rename",
)  # fmt: skip


def make_changing_plan(seed: int, *, wipes: bool = True) -> Plan:
    """Three clients, each of which changes the backends between its pushes, while others push, collect and repair.

    Without `wipes` no backend is emptied. One that is may cut devices off for good, or keep a move from its end, so
    that fewer changes come in a few seeds; without it `CHANGES_LEAST` come in each.
    """
    rng = random.Random(f"changing {seed}")
    troubles = TROUBLES if wipes else tuple(t for t in TROUBLES if t != "wipe")
    drawn = {*rng.sample(troubles, rng.randint(3, 7))}
    features = (*sorted(drawn), "changing")
    backends = rng.choice((3, 3, 4, 5))
    changes = [CHANGES // 3 + (n < CHANGES % 3) for n in range(3)]
    hurried = rng.random() < 0.5
    clients = [_client(rng, f"c{n}", changes[n], drawn, hurried=hurried) for n in range(3)]
    names = [c.name for c in clients]
    early = drawn_faults(rng, features, backends, names, 1.0)
    late = [replace(f, at_s=f.at_s + SPAN_S) for f in drawn_faults(rng, drawn - {"wipe"}, backends, names, 1.0)]
    pounces: tuple[Pounce, ...] = ()
    if drawn & {"pounce", "suspend"}:
        pounces = drawn_pounces(rng, 1.0, suspend="suspend" in drawn)
        # Who sleeps for months while backends come and go may be cut off for good, and then changes none.
        pounces = tuple(
            replace(p, for_s=min(p.for_s, ASLEEP_S))
            for p in pounces
            if p.kind != "wipe" or (wipes and "wipe" not in drawn)
        )
    faults: list[Fault] = sorted((*early, *late), key=lambda f: f.at_s)
    return Plan(seed, backends, 2, tuple(clients), tuple(faults), pounces, features, spares=rng.randint(2, 3),
                bft=backends == 4 and rng.random() < 0.5, encrypted=rng.random() < 0.8)  # fmt: skip


def _client(rng: random.Random, name: str, changes: int, drawn: set[str], *, hurried: bool) -> ClientPlan:
    steps: list[Step] = []

    def add(kind: str, edits: int = 0) -> None:
        pause = rng.expovariate(1 / (0.4 if hurried else 6.0))
        crash = int(rng.choice((40, 200, 700)) * rng.random()) + 1 if "crash" in drawn and rng.random() < 0.15 else 0
        power = bool(crash) and "power" in drawn and rng.random() < 0.6
        down = rng.choice((0.0, rng.uniform(0, 20))) if crash else 0.0
        steps.append(Step(kind, rng.getrandbits(32), pause, edits, crash, power, down, target=rng.randrange(60)))

    for number in range(changes):
        add(rng.choice(("push", "push", "push", "sync")), rng.choice((1, 1, 2)))
        add("change")
        if number % 4 == 1:
            add("gc" if number % 8 == 1 else "repair")
        elif rng.random() < 0.4:
            add(rng.choice(BESIDE))
    for _ in range(CHANGES_MORE // 3):
        add("change")
    add("push", 1)
    return ClientPlan(name, tuple(steps))
