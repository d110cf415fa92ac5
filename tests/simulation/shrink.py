"""Plans as text, and made smaller while they still fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from simulation.plan import ClientPlan, Fault, Plan, Pounce, Step, Strike

T = TypeVar("T")


def encode_plan(plan: Plan) -> str:
    """A plan as one line of JSON. A seed's plan may change with the generator; what a line says does not."""
    return json.dumps(asdict(plan), separators=(",", ":"))


def decode_plan(line: str) -> Plan:
    """What `encode_plan` wrote."""
    d: dict[str, Any] = json.loads(line)
    clients = tuple(ClientPlan(**{**c, "steps": tuple(Step(**s) for s in c["steps"])}) for c in d["clients"])
    faults = tuple(Fault(**f) for f in d["faults"])
    pounces = tuple(Pounce(**p) for p in d["pounces"])
    return Plan(
        **{
            **d,
            "clients": clients,
            "faults": faults,
            "pounces": pounces,
            "features": tuple(d["features"]),
            "liars": tuple((n, tuple(kinds)) for n, kinds in d.get("liars", ())),
            "blocks": tuple(d.get("blocks", ())),
            "insider": tuple(Strike(**{**s, "on": tuple(s.get("on", ()))}) for s in d.get("insider", ())),
        }
    )


def shrunk(plan: Plan, fails: Callable[[Plan], bool], runs_max: int) -> Plan:
    """A smaller plan that still fails, found in at most so many runs: fewer faults, steps, crashes, clients."""
    left = runs_max
    while True:
        for candidate in _smaller(plan):
            if left <= 0:
                return plan
            left -= 1
            if fails(candidate):
                plan = candidate
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, the boldest first."""
    for n, client in enumerate(plan.clients):
        copied = any(c.copy_of == client.name for c in plan.clients)
        if len(plan.clients) > 1 and not copied and n > 0:
            yield replace(plan, clients=plan.clients[:n] + plan.clients[n + 1 :])
    for faults in _parts(plan.faults):
        yield replace(plan, faults=faults)
    for pounces in _parts(plan.pounces):
        yield replace(plan, pounces=pounces)
    for strikes in _parts(plan.insider):
        yield replace(plan, insider=strikes)
    for n, client in enumerate(plan.clients):
        for steps in _parts(client.steps):
            yield _with_client(plan, n, replace(client, steps=steps))
    for n, client in enumerate(plan.clients):
        for plainer in _plainer(client):
            yield _with_client(plan, n, plainer)


def _plainer(client: ClientPlan) -> Iterator[ClientPlan]:
    if client.skew_s or client.tick_ns != 1 or client.folds:
        yield replace(client, skew_s=0.0, tick_ns=1, folds=False)
    for k, step in enumerate(client.steps):
        plainer = (
            replace(step, crash_at=0, power=False, down_s=0.0),
            replace(step, power=False),
            replace(step, agitate=0),
            replace(step, edits=min(1, step.edits)),
            replace(step, pause_s=min(1.0, step.pause_s)),
        )
        for changed in plainer:
            if changed != step:
                yield replace(client, steps=(*client.steps[:k], changed, *client.steps[k + 1 :]))


def _with_client(plan: Plan, n: int, client: ClientPlan) -> Plan:
    return replace(plan, clients=(*plan.clients[:n], client, *plan.clients[n + 1 :]))


def _parts(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """The sequence without a half, a quarter, ... of it, down to single items."""
    size = len(items)
    while size > 1:
        size = (size + 1) // 2
        for start in range(0, len(items), size):
            yield (*items[:start], *items[start + size :])
        if size == 1:
            return
    if len(items) == 1:
        yield ()
