"""What a seed means: its plan, of the brief kind or of the longer one.

Swarm: a seed draws which kinds of faults and habits there are at all, so that no kind always hides another.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from simulation.lies import LIES
from simulation.plan import DAY_S, GUEST, MINORITY, ClientPlan, Fault, Plan, Pounce, Step, Strike

PUSHES_LONG: Final = 30  # at least, in a long plan
PUSHES_SHORT: Final = 10  # in a short one, whose faults come as many times faster
PUSHES_BRIEF: Final = (4, 5, 6)  # in a brief one, of two or three clients
SHORT_SHARE: Final = 0.8  # of seeds; floors take long ones
SPAN_S: Final = 120.0  # in which faults begin, in a long plan
CLIENTS_LEAST: Final = 3
FAULTS_LEAST: Final = 5
CHANGES_MANY: Final = 20  # of the backends, in one of ten plans that change them
BEYOND_SHARE: Final = 0.06  # of seeds, which check that lies are named instead of all else
STRIKES: Final = (  # of an insider
    "decided", "accept", "contrary", "prepare", "void", "version", "head", "claim",
    "apart", "hint", "floor", "garbage", "last", "unread",
)  # fmt: skip
SHARES: Final = {
    "liars": 0.25,
    "blocks": 0.25,
    "reconfig": 0.35,
    "rotation": 0.35,
    "floors": 0.25,
    "suspend": 0.3,
    "insider": 0.3,
    "eras": 0.12,
    "ended": 0.06,
}
APART: Final = (
    "liars",
    "blocks",
    "reconfig",
    "rotation",
    "floors",
    "insider",
    "eras",
    "ended",
)  # not beyond the budget

BESIDE_ERAS: Final = (  # what a seed may have whose majority of backends is lost: so every pack has all its copies
    "lossy", "late", "duplicates", "busy", "slow", "pounce", "crash", "power", "long sleep", "agitation",
    "skewed clocks", "coarse times", "folding", "suspend", "eras",
)  # fmt: skip

FEATURES: Final = (
    "outages", "lossy", "late", "duplicates", "busy", "corrupt", "full", "cut off", "wipe", "slow",
    "pounce", "crash", "power", "long sleep", "agitation", "restore", "copy", "skewed clocks", "coarse times",
    "folding", "liars", "blocks", "reconfig", "rotation", "floors", "suspend",
    "insider", "eras", "ended",
)  # fmt: skip
DELTAS_EVERY: Final = 4  # seeds: one in so many has long files, which are stored as deltas
OBJECTS_EVERY: Final = 3  # seeds: in one of so many that have an insider, it makes up objects too, or closes logs
GUEST_SHARE: Final = 0.25  # of seeds have devices that come by invitation; not those beyond the budget
THEMES: Final = {  # of brief plans, with their weights
    "": 2.0, "liars": 2.0, "blocks": 2.0, "reconfig": 2.0, "rotation": 2.0, "floors": 0.5, "insider": 3.0, "eras": 1.0,
    "ended": 1.0, "wipe": 1.5, "copy": 0.7, "restore": 0.7, "beyond": 1.0,
}  # fmt: skip
COMMON: Final = (
    "outages", "lossy", "late", "slow", "cut off", "pounce", "pounce", "crash", "suspend", "busy", "duplicates",
    "corrupt", "full", "power", "agitation", "long sleep",
)  # fmt: skip


def make_plan(seed: int, *, brief: bool = False) -> Plan:
    """The plan of a seed. `brief`: that of its brief kind, which is another one."""
    rng = random.Random(f"{'brief' if brief else 'plan'} {seed}")
    drawn = _themes(rng) if brief else {f for f in FEATURES if rng.random() < SHARES.get(f, 0.4)}
    beyond = "beyond" in drawn if brief else rng.random() < BEYOND_SHARE
    backends = 3 if brief else rng.choice((3, 3, 3, 3, 4, 5, 6))
    if "liars" in drawn:
        backends = 4 if brief else rng.choice((4, 5, 5, 6))
    drawn -= {"beyond", *(APART if beyond else ())}
    drawn -= {"blocks"} if "liars" in drawn else set()
    if "eras" in drawn:
        backends = rng.choice((3, 3, 4, 5))
        drawn &= set(BESIDE_ERAS)
    elif "ended" in drawn:
        drawn = drawn & set(BESIDE_ERAS) | {"insider", "ended"}
    whole = "insider" in drawn and rng.random() < 0.5  # then the insider may take backends away
    drawn -= {"wipe", "rotation", "liars"} if whole else set()
    blocks = tuple(sorted(rng.sample(range(backends), rng.randint(1, backends)))) if "blocks" in drawn else ()
    if blocks:
        drawn -= {"restore"}
        if backends - len(blocks) <= backends // 2 or drawn & {"wipe", "pounce", "suspend", "reconfig"}:
            drawn -= {"copy"}  # it votes on those alone that are in log form, and these must always be a quorum
    features = (*(f for f in FEATURES if f in drawn), *(["deltas"] if seed % DELTAS_EVERY == 0 else []))
    count = rng.choice((2, 3)) if brief else rng.choice((3, 3, 3, 4))
    names = [f"c{n}" for n in range(count)]
    length = 1.0
    if brief:
        length = rng.choice(PUSHES_BRIEF) / PUSHES_LONG
    elif rng.random() < SHORT_SHARE and "floors" not in drawn:
        length = PUSHES_SHORT / PUSHES_LONG
    pushes = _shares(rng, round(length * rng.choice((PUSHES_LONG, PUSHES_LONG + 3))), count)
    if "floors" in drawn:
        pushes = [3] * (count - 1) + [14] if brief else [6] * (count - 1) + [max(18, 34 - 6 * count)]
    clients = [_client(rng, name, features, n) for name, n in zip(names, pushes, strict=True)]
    if "copy" in features:
        original = rng.randrange(count)
        clients[original] = _with(rng, clients[original], Step("snap", rng.getrandbits(32)))
        copied = _client(rng, "copy", features, 2 if brief else 3)
        clients.append(replace(copied, copy_of=names[original], tick_ns=clients[original].tick_ns,
                               folds=clients[original].folds))  # fmt: skip
    clients = _with_changes(rng, drawn, clients, length)
    if "floors" in drawn:
        clients[0] = _with_sleeps(rng, clients[0], (0.3,), (150, 400))
        clients[count - 1] = _with_sleeps(rng, clients[count - 1], (0.6, 0.75, 0.9), (31, 40))
    faults = drawn_faults(rng, features, backends, [c.name for c in clients], length)
    pounces = drawn_pounces(rng, length, suspend="suspend" in drawn) if drawn & {"pounce", "suspend"} else ()
    pounces = tuple(p for p in pounces if p.kind != "wipe" or not whole)
    if beyond:
        faults += [_lie(rng, backends, [c.name for c in clients], length) for _ in range(rng.randint(1, 2))]
    liars: tuple[tuple[int, tuple[str, ...]], ...] = ()
    if "liars" in drawn:
        kinds = tuple(rng.sample(LIES, rng.randint(1, len(LIES))))
        liars = ((rng.randrange(backends), kinds),)
    plan = Plan(seed, backends, min(2, backends), tuple(clients), tuple(faults), pounces, features, beyond,
                spares=rng.randint(1, 2) if "reconfig" in drawn else 0,
                bft="liars" in drawn or (not blocks and backends in (4, 6) and rng.random() < 0.5),
                liars=liars, blocks=blocks, floors="floors" in drawn, encrypted=rng.random() < 0.8)  # fmt: skip
    if "eras" in drawn:
        plan = _with_a_disaster(rng, plan, length)
    if "insider" in drawn:
        plan = replace(plan, insider=_strikes(rng, plan, length))
    if "ended" in drawn:
        plan = _with_an_end(rng, plan, length)
    while not brief and plan.troubles < FAULTS_LEAST:
        more = Fault(rng.uniform(0, SPAN_S / 2 * length), "outage", rng.randrange(backends), for_s=rng.uniform(5, 40))
        plan = replace(plan, faults=(*plan.faults, more))
    if plan.insider and seed % OBJECTS_EVERY == 1:
        plan = _with_objects(random.Random(f"objects {brief} {seed}"), plan, length)
    if "eras" in drawn:
        plan = _with_another_disaster(random.Random(f"again {brief} {seed}"), plan)
    return _with_guests(random.Random(f"guests {brief} {seed}"), plan, length)


def _with_objects(rng: random.Random, plan: Plan, length: float) -> Plan:
    """The insider names objects that it made up, too; where it ends a version, it does so by closing logs on a lie."""
    if "ended" in plan.features:
        return replace(plan, insider=tuple(replace(s, kind="close") if s.kind == "end" else s for s in plan.insider))
    kinds = [rng.choice(("spoilt", "list", "moved")) for _ in range(rng.randint(1, 3))]
    more = (Strike(kind, rng.getrandbits(32), rng.uniform(0, SPAN_S) * length) for kind in kinds)
    return replace(plan, insider=(*plan.insider, *more))


def _with_another_disaster(rng: random.Random, plan: Plan) -> Plan:
    """As a rule a majority of what the new era has is lost, too, where that is more than one; some sleep over both."""
    if rng.random() < 0.2 or plan.backends < 4:
        return plan
    first = next(f.at_s for f in plan.faults if f.kind == "gone")
    at_s = first + rng.uniform(20, 90)
    again = Fault(at_s, "gone again", 0)
    clients = list(plan.clients)
    both = rng.random() < 0.5  # recover at the same moment
    when = at_s + rng.uniform(1, 30)
    for who in rng.sample(range(len(clients)), 1 + both):
        crash = int(rng.choice((60, 200, 400)) * rng.random()) + 1 if rng.random() < 0.4 else 0
        step = Step("recover", rng.getrandbits(32), crash_at=crash, down_s=rng.uniform(0, 20), at_s=when)
        clients[who] = replace(
            clients[who], steps=(*clients[who].steps, step, _step(rng, "push", set(), True, edits=1))
        )
    if rng.random() < 0.6:
        who = rng.randrange(len(clients))
        steps = list(clients[who].steps)
        at = rng.randrange(len(steps) // 2, len(steps))
        steps[at] = replace(steps[at], at_s=max(steps[at].at_s, when + rng.uniform(20, 90)))
        clients[who] = replace(clients[who], steps=tuple(steps))
    return replace(plan, copies=plan.backends, clients=tuple(clients), faults=(*plan.faults, again))


def _with_guests(rng: random.Random, plan: Plan, length: float) -> Plan:
    """Devices that come by invitation; or the plan as it is.

    A code may be used twice. Its invitation may end soon, or be taken back; who made it may be gone for good when it is
    used, or a device be revoked between.
    """
    if plan.beyond or rng.random() >= GUEST_SHARE or (plan.floors and plan.blocks):
        return plan
    clients, guests = list(plan.clients), []
    alone = sum(not c.copy_of for c in clients) < 3 or bool({"eras", "ended", "blocks"} & set(plan.features))
    for number in range(rng.choice((1, 1, 2))):
        who = rng.choice([n for n, c in enumerate(clients) if not c.copy_of])
        make = Step("invite", rng.getrandbits(32), rng.expovariate(1.0), target=number)
        name, late = f"{GUEST}{number}", rng.random()
        if late < 0.25 and not alone:  # the last thing that this machine does
            clients[who] = _until_left(rng, clients[who], make)
            alone = True
        else:
            clients[who] = _with(rng, clients[who], make)
        if late > 0.6:  # between the two somebody changes the keys, or takes the invitation back
            kind = rng.choice(("revoke", "revoke", "rotate", "uninvite"))
            other = rng.choice([n for n, c in enumerate(clients) if not c.copy_of])
            step = Step(
                kind,
                rng.getrandbits(32),
                rng.expovariate(0.5),
                target=rng.randrange(60) if kind == "revoke" else number,
            )
            if kind == "uninvite" or not ({"liars", "insider", "eras", "ended"} & set(plan.features)):
                clients[other] = _with(rng, clients[other], step, late=True)
        for twin in range(1 + (rng.random() < 0.4)):
            pause = rng.choice((0.0, rng.uniform(0, 20), rng.uniform(0, 90) * length, rng.uniform(0, 3) * DAY_S))
            steps = [Step("join", rng.getrandbits(32), pause, crash_at=int(300 * rng.random()) * (rng.random() < 0.3))]
            own = _client(rng, f"{name}{'b' * twin}", plan.features, 2)
            guests.append(
                replace(own, steps=(*steps, *(s for s in own.steps if s.kind not in ("snap", "restore"))), invited=name)
            )
    return replace(plan, clients=(*clients, *guests), features=(*plan.features, "guests"))


def _until_left(rng: random.Random, client: ClientPlan, last: Step) -> ClientPlan:
    """The client, whose machine is gone for good after this step, which it does in the middle of its plan."""
    at = rng.randrange(1, max(2, len(client.steps)))
    return replace(client, steps=(*client.steps[:at], last, Step("leave", rng.getrandbits(32))))


def _themes(rng: random.Random) -> set[str]:
    """The kinds of trouble of a brief plan: one that is rare, as a rule, and one or two that are common."""
    rare = rng.choices(list(THEMES), list(THEMES.values()))[0]
    return {rare, *rng.sample(COMMON, rng.randint(3, 8))} - {""}


def _with_sleeps(
    rng: random.Random, client: ClientPlan, where: Iterable[float], days: tuple[float, float]
) -> ClientPlan:
    """The client with long pauses after these parts of its plan: who deletes logs, or who finds them deleted."""
    steps = list(client.steps)
    for part in where:
        at = int(part * len(steps))
        steps[at] = replace(steps[at], pause_s=rng.uniform(*days) * DAY_S)
    return replace(client, steps=tuple(steps))


def _with_changes(rng: random.Random, drawn: set[str], clients: list[ClientPlan], length: float) -> list[ClientPlan]:
    """Steps that change backends, keys and devices, among those of some clients."""
    kinds: list[str] = []
    if "reconfig" in drawn:
        common = ["add", "remove", "demote", "promote", "rename", "copies", "rebalance"]
        common = ["add", "add", "rename", "rebalance"] if "liars" in drawn else common
        most = CHANGES_MANY if length >= PUSHES_SHORT / PUSHES_LONG else 4
        kinds += rng.choices(common, k=rng.randint(2, 6 if most > 6 else 3) if rng.random() < 0.9 else most)
    if "rotation" in drawn:
        kinds += ["rotate"] * rng.randint(1, 2)
        kinds += ["revoke"] * (rng.random() < 0.6)
    out = list(clients)
    for kind in kinds:
        who = rng.randrange(len(out))
        step = Step(kind, rng.getrandbits(32), rng.expovariate(1.0), target=rng.randrange(60))
        if "crash" in drawn and rng.random() < 0.3:
            step = replace(step, crash_at=int(rng.choice((40, 200, 700)) * rng.random()) + 1, down_s=rng.uniform(0, 20))
        out[who] = _with(rng, out[who], step, late=kind == "revoke")
    return out


def _lie(rng: random.Random, backends: int, clients: list[str], length: float) -> Fault:
    """Shows a past of `amount` seconds ago: to all, or to one client, whom it keeps in it for a while."""
    kind, at_s = rng.choice(("rollback", "split")), rng.uniform(10, SPAN_S) * length
    who = rng.choice(clients)
    return Fault(at_s, kind, rng.randrange(backends), rng.uniform(1, 60) * length, rng.uniform(5, 90), who)


def drawn_pounces(rng: random.Random, length: float, *, suspend: bool) -> tuple[Pounce, ...]:
    kinds = rng.sample(("crash", "cut off", "hide", "lonely", "swap", "slow", "wipe"), rng.randint(1, 4))
    kinds += ["suspend"] * 2 * suspend
    last = _last_version(length)

    def one() -> Pounce:
        kind = rng.choice(kinds)
        for_s = rng.choice((0.5, 5.0, 45.0, 90.0)) * rng.uniform(0.5, 1.5)
        if kind == "suspend":
            for_s = rng.choice((20.0, 400.0, 40 * DAY_S)) * rng.uniform(0.5, 1.5)
        moment = rng.choice(("promise", "vote", "vote", "decision"))
        return Pounce(rng.randint(2, last), moment, kind, for_s, rng.choice((0.0, 1.0, 30.0)))

    return tuple(one() for _ in range(rng.randint(2, 10 if length >= PUSHES_SHORT / PUSHES_LONG else 4)))


def _last_version(length: float) -> int:
    """Of those at which something is to happen, in a plan of this length."""
    return round(4 + 26 * length)


def _with_a_disaster(rng: random.Random, plan: Plan, length: float) -> Plan:
    """So many backends are lost for good that no quorum is left, and one copy of everything; devices recover."""
    n = plan.backends
    lost = n - ((n + plan.bft) // 2 + 1) + 1
    at_s = rng.uniform(10, 90) * length
    at_once = float(rng.random() < 0.3)
    gone = tuple(Fault(at_s, "gone", b, at_once) for b in sorted(rng.sample(range(n), lost)))
    pounces = tuple(p for p in plan.pounces if p.kind in ("crash", "slow", "suspend"))
    clients = _with_recoveries(rng, plan, at_s)
    return replace(plan, copies=lost + 1, clients=clients, faults=(*plan.faults, *gone), pounces=pounces)


def _with_an_end(rng: random.Random, plan: Plan, length: float) -> Plan:
    """The insider ends a version; devices `recover --revoke`. What else it does stops nobody then."""
    at_s = rng.uniform(5, 60) * length
    quiet = tuple(s for s in plan.insider if s.kind in ("head", "claim", "prepare", "apart"))
    ends = [Strike("end", rng.getrandbits(32), at_s)]
    if rng.random() < 0.5:  # or at the worst moment
        moment = rng.choice(("promise", "vote", "decision"))
        ends = [Strike("end", rng.getrandbits(32), v=rng.randint(4, 12), moment=moment)]
    if rng.random() < 0.7:  # and once more, in the new era
        ends.append(Strike("end", rng.getrandbits(32), at_s + rng.uniform(20, 60)))
    pounces = tuple(p for p in plan.pounces if p.kind in ("crash", "slow", "suspend"))
    clients = _with_recoveries(rng, plan, at_s)
    # Without encryption it knows the names of the new era's logs as well, and ends that, too.
    return replace(plan, clients=clients, insider=(*quiet, *ends), pounces=pounces, encrypted=True)


def _with_recoveries(rng: random.Random, plan: Plan, at_s: float) -> tuple[ClientPlan, ...]:
    """The clients, of whom some recover after that time."""
    clients = list(plan.clients)
    for _ in range(rng.choice((1, 1, 2, 3))):
        who = rng.randrange(len(clients))
        crash = int(rng.choice((60, 200, 400)) * rng.random()) + 1 if rng.random() < 0.6 else 0
        step = Step("recover", rng.getrandbits(32), crash_at=crash, down_s=rng.uniform(0, 20),
                    at_s=at_s + rng.uniform(1, 40))  # fmt: skip
        steps = list(clients[who].steps)
        steps.insert(rng.randrange(len(steps) // 2, len(steps) + 1), step)
        clients[who] = replace(clients[who], steps=tuple(steps))
    return tuple(clients)


def _strikes(rng: random.Random, plan: Plan, length: float) -> tuple[Strike, ...]:
    """What the insider does: some of the kinds, a few of them where proposers are at work.

    Two values in one round of a proposer's can stop a version as long as a backend is away, and for good where one may
    lie or lacks what it took (consensus.md, rule 1.5): there it leaves that alone, and where it puts garbage into
    logs. So it does with what takes a minority of the backends away, where another fault does the same for good.
    """
    robbed = "wipe" in plan.features or any(p.kind == "wipe" for p in plan.pounces)
    barred: tuple[str, ...] = ("contrary",) if plan.bft or plan.blocks or robbed else ()
    barred += MINORITY if plan.liars or robbed or "rotation" in plan.features else ()
    barred += ("hint", "floor") if "reconfig" in plan.features else ()
    kinds = rng.sample([k for k in STRIKES if k not in barred], rng.randint(2, 6))
    kinds = [k for k in kinds if k != "contrary" or "garbage" not in kinds]

    def one() -> Strike:
        kind, seed, back = rng.choice(kinds), rng.getrandbits(32), rng.choice((0, 0, 0, 1, 1, 2, 5))
        if rng.random() < 0.5:
            return Strike(kind, seed, rng.uniform(0, SPAN_S) * length, back=back)
        v, moment = rng.randint(2, _last_version(length)), rng.choice(("promise", "vote", "vote", "decision"))
        return Strike(kind, seed, v=v, moment=moment, back=back)

    least, most = (4, 16) if length >= PUSHES_SHORT / PUSHES_LONG else (2, 6)
    return tuple(one() for _ in range(rng.randint(least, most)))


BESIDE: Final = (  # what a user does beside pushing
    "pull", "pull", "pull", "pull", "status", "status", "check", "reopen", "reopen",
    "rebalance", "rebalance", "repair", "gc", "gc", "tag",
)  # fmt: skip


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
            steps.append(_step(rng, rng.choice(BESIDE), has, hurried))
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
    if "floors" in has and rng.random() < 0.03:
        pause = rng.uniform(20, 60) * DAY_S
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


def _with(rng: random.Random, client: ClientPlan, step: Step, *, late: bool = False) -> ClientPlan:
    """The client with one step more, in the first half of its plan, or `late`."""
    steps = list(client.steps)
    at = rng.randrange(len(steps) // 2 + 1)
    steps.insert(len(steps) - at if late else at, step)
    return replace(client, steps=tuple(steps))


def drawn_faults(
    rng: random.Random, features: Iterable[str], backends: int, clients: list[str], length: float
) -> list[Fault]:
    out = []
    span = SPAN_S * length
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
    for feature, (kind, most, amount, lasts) in kinds.items():
        if feature in features:
            for _ in range(rng.randint(1, most)):
                out.append(
                    Fault(
                        rng.uniform(0, span),
                        kind,
                        rng.randrange(backends),
                        rng.uniform(*amount),
                        rng.uniform(*lasts),
                        rng.choice(clients) if kind == "cut off" else "",
                    )
                )
    if "wipe" in features:
        out.append(Fault(rng.uniform(0, span), "wipe", rng.randrange(backends)))
    return sorted(out, key=lambda f: f.at_s)
