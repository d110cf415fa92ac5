"""Plans in which one thing meets another at the worst time: what hardly ever happens in a seed's own plan.

Each takes the place of a seed's plan for a mutant whose rule is there for just that (`mutants`, `mutants_agreed`). All
is said by times: clients begin together, a command takes a few seconds, so what is to meet is written down with enough
room. What the network does is still chance, of the seed. Nothing here judges: the witness and the checks of every
simulation do.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from simulation.plan import DAY_S, ClientPlan, Fault, Plan, Pounce, Step, Strike

NIGHT_DAYS: Final = 35.0  # in which machines sleep, and the grace of a floor ends


def _step(kind: str, at_s: float, edits: int = 0, target: int = 0, *, stays: bool = True) -> Step:
    return Step(kind, int(at_s), edits=edits, target=target, at_s=at_s, stays=stays)


def _collect(at_s: float) -> Step:
    """A `gc` that keeps the last two versions."""
    return replace(_step("gc", at_s), seed=2)


def _scenario(plan: Plan, clients: dict[str, tuple[Step, ...]], faults: tuple[Fault, ...], *pounces: Pounce) -> Plan:
    """Three backends in log form, of which two are a quorum, and these clients. Versions 1 and up are their joining."""
    return replace(
        plan,
        backends=3,
        copies=2,
        clients=tuple(ClientPlan(name, steps) for name, steps in clients.items()),
        faults=faults,
        pounces=pounces,
        features=("scenario",),
        beyond=False,
        spares=0,
        bft=False,
        liars=(),
        blocks=(),
        floors=False,
        insider=(),
    )


def removed_and_emptied(plan: Plan, *, dies: bool = False) -> Plan:
    """A vote from before a backend was removed, and one that lands on it long after it was emptied.

    c0 owns version 4, and sends its value: b0 cannot be reached, b1 accepts it, the request to b2 lies around. c1 does
    not reach the logs of b1, and has another value decided by b0 and b2: that b2 leaves. Long after that b2 is emptied;
    then the request lands there. b1 has a vote for c0's value, and b2 shows one.

    `dies`: c1 does, once it has decided, and c2 pushes the version after.
    """
    c0 = (_step("push", 5, 3), _step("push", 61, 3), _step("sync", 700), _step("sync", 900))
    c1 = (_step("remove", 100, target=2), _step("sync", 800))
    c2 = (_step("push", 140, 3), _step("push", 850, 3)) if dies else (_step("push", 850, 3),)
    faults = (
        Fault(60, "hold", 2, for_s=580, client="c0", calls="create px"),
        Fault(60, "cut off", 0, for_s=35, client="c0"),
        Fault(96, "hold", 1, for_s=19, client="c1", calls="create px"),
        Fault(96, "hold", 1, for_s=19, client="c1", calls="get px"),
        Fault(520, "empty", 2),
        Fault(695, "slow", 0, 3.0, for_s=20),  # what b0 and b1 say of the end of version 4 comes after what b2 shows
        Fault(695, "slow", 1, 3.0, for_s=20),
    )
    pounces = (Pounce(4, "decision", "crash", down_s=30.0),) if dies else ()
    return _scenario(plan, {"c0": c0, "c1": c1, "c2": c2}, faults, *pounces)


def slept_over_a_floor(plan: Plan, *, days: float = NIGHT_DAYS, sent: bool = False) -> Plan:
    """c0, who owns version 5, and c2 sleep while c1 pushes on and deletes the logs of the versions after.

    `days`: after which c1 looks again whether it may delete. `sent`: what c0 wrote of version 5 is under way all along,
    and lands when c1 has deleted that log everywhere: a push that stores an index does so on one backend.
    """
    later = days * DAY_S
    more, woken = (96, later + 3_200) if sent else (48, later + 2_000)
    c0 = (_step("push", 5, 3), _step("push", 30, 3)) + (_step("push", 61, 3),) * sent
    c0 += _step("push", woken + 1_000, 3), _step("sync", woken + 2_000)
    faults: tuple[Fault, ...] = ()
    if sent:
        faults = tuple(Fault(60, "hold", n, for_s=woken - 160, client="c0", calls="create px") for n in range(3))
    c1 = tuple(_step("push", 100 + 20 * n, 3) for n in range(70))
    c1 += tuple(_step("push", later + 1_000 + 20 * n, 3) for n in range(more))
    c2 = (_step("sync", 60), _step("pull", woken), _step("sync", woken + 3_000))
    return replace(_scenario(plan, {"c0": c0, "c1": c1, "c2": c2}, faults), floors=True)


def skipped_by_a_floor(plan: Plan) -> Plan:
    """As `slept_over_a_floor`; the floor that covers version 5 cannot be made on b0 and b1 while c1 pushes first."""
    plan = slept_over_a_floor(plan)
    refused = tuple(Fault(0, "refuse", n, for_s=DAY_S, client="c1", calls="create floor/8") for n in (0, 1))
    return replace(plan, faults=refused)


def closed_by_a_thief(plan: Plan) -> Plan:
    """One device is revoked while b2 is out of its revoker's reach; a thief writes there; others come across it later.

    Which device is drawn; where it is the revoker itself, nothing comes of it.
    """
    c0 = (_step("push", 5, 3), _step("revoke", 60, target=plan.seed), _step("sync", 300, 3))
    late = (_step("sync", 20, 3), _step("sync", 200), _step("push", 250, 3))
    faults = (
        Fault(55, "cut off", 2, for_s=60, client="c0"),
        Fault(195, "slow", 0, 2.0, for_s=30),
        Fault(195, "slow", 1, 2.0, for_s=30),
    )
    return _scenario(plan, {"c0": c0, "c1": late, "c2": late}, faults)


def rewritten_later(plan: Plan) -> Plan:
    """An insider prepares a round above all others, and votes in it for a lie, on the logs of agreed versions.

    c1 and c2 come upon these versions later. All backends are within reach: without one it could deceive them.
    """
    c0 = tuple(_step("push", 5 + 5 * n, 3) for n in range(4))
    late = (_step("sync", 1), _step("sync", 100), _step("push", 120, 3))
    strikes = tuple(Strike("late", plan.seed * 10 + back, 60.0, back=back) for back in (1, 2, 3))
    return replace(_scenario(plan, {"c0": c0, "c1": late, "c2": late}, ()), insider=strikes)


def told_of_a_late_lie(plan: Plan) -> Plan:
    """As `rewritten_later`, in the newest version, which only b0 and b1 accepted.

    Then an entry of the next one stands on that lie. c1, who knows the newest version, does not reach b0, which tells
    that the lie came later.
    """
    c0 = tuple(_step("push", 5 + 5 * n, 3) for n in range(4))
    late = (_step("sync", 30), _step("sync", 100), _step("push", 140, 3))
    strikes = (
        Strike("late", plan.seed, 60.0, back=1),
        Strike("apart", plan.seed, 70.0),
    )
    faults = (Fault(19, "cut off", 2, for_s=30, client="c0"), Fault(95, "cut off", 0, for_s=30, client="c1"))
    return replace(_scenario(plan, {"c0": c0, "c1": late, "c2": late}, faults), insider=strikes)


def voted_alone(plan: Plan) -> Plan:
    """An insider proposes a config in which one backend votes alone, while others push."""
    pushes = tuple(_step("push", 5 + 7 * n, 3) for n in range(6))
    late = (_step("sync", 8, 2), _step("sync", 40, 2), _step("push", 60, 3))
    strike = Strike("alone", plan.seed, 30.0)
    return replace(_scenario(plan, {"c0": pushes, "c1": late, "c2": late}, ()), insider=(strike,))


def _struck(plan: Plan, kind: str) -> Plan:
    """An insider does this while others push; c1 collects garbage later."""
    pushes = tuple(_step("push", 5 + 7 * n, 3) for n in range(6))
    c1 = (_step("sync", 8, 2), _step("sync", 40, 2), _collect(60), _step("push", 70, 3), _collect(80))
    c2 = (_step("sync", 8, 2), _step("sync", 45, 2), _step("push", 75, 3))
    strike = Strike(kind, plan.seed, 30.0)
    return replace(_scenario(plan, {"c0": pushes, "c1": c1, "c2": c2}, ()), insider=(strike,))


def dropped_ahead(plan: Plan) -> Plan:
    """An insider's list of what is kept drops versions to come, and another device would drop versions by it."""
    return _struck(plan, "list")


def moved_from_nowhere(plan: Plan) -> Plan:
    """An insider proposes a config that says of one which nobody has that packs lie by it."""
    return _struck(plan, "moved")


def claimed_in_others_names(plan: Plan) -> Plan:
    """An insider claims of all backends that they showed what they never did, in the name of another device."""
    return _struck(plan, "forged")


def shared_a_round(plan: Plan) -> Plan:
    """c0 has version 5 decided on b0 and b1, and dies; b2 got another value in that very round, from an insider.

    c1 reads b0 and b2, hears of both values, and b1 answers it late: it has to stop, and try again.
    """
    c0 = (_step("push", 5, 3), _step("push", 60, 3), _step("sync", 200))
    c1 = (_step("sync", 20), _step("push", 62, 3), _step("sync", 210))
    c2 = (_step("sync", 30), _step("sync", 220, 3))
    lags = [Fault(58, "lag", 1, 2.0, for_s=12, client="c1", calls=calls) for calls in ("get px", "create px")]
    faults = (Fault(58, "lag", 2, 3.0, for_s=4, client="c0", calls="create px"), *lags)
    strike = Strike("contrary", plan.seed, v=5, moment="vote", on=(2,))
    scenario = _scenario(plan, {"c0": c0, "c1": c1, "c2": c2}, faults, Pounce(5, "vote", "crash", down_s=60.0))
    return replace(scenario, insider=(strike,))


def took_part_in_a_round(plan: Plan) -> Plan:
    """b0 alone has c0's PREPARE of version 5 when an insider writes a value in that round on all three backends.

    c1 reads b0 and b1, by which a quorum may have promised that round, and b2 answers it late. c0, whom all answer,
    sees that none has, and proposes its own value in another round.
    """
    c0 = (_step("push", 5, 3), _step("reopen", 50), _step("push", 60, 3), _step("sync", 200))
    c1 = (_step("sync", 20), _step("push", 61, 3), _step("sync", 210))
    c2 = (_step("sync", 30), _step("sync", 220, 3))
    lags = [Fault(58, "lag", n, 4.0, for_s=4, client="c0", calls="create px") for n in (1, 2)]
    late = [Fault(60, "lag", 2, 3.0, for_s=4, client="c1", calls=calls) for calls in ("get px", "create px")]
    strike = Strike("contrary", plan.seed, v=5, moment="promise", on=(0, 1, 2))
    return replace(_scenario(plan, {"c0": c0, "c1": c1, "c2": c2}, (*lags, *late)), insider=(strike,))


def lost_with_two_values(plan: Plan) -> Plan:
    """Of five backends b0 has a vote for a value of c0. c1, who reaches neither b0 nor b2, has another one decided by
    the other three, of which two are lost for good with b2. c2 begins an era on b0 and b1."""
    c0 = (_step("push", 5, 3), _step("push", 61, 3), _step("sync", 300), _step("sync", 400, 3))
    c1 = (_step("sync", 40), _step("push", 100, 3), _step("sync", 310))
    c2 = (_step("sync", 45), _step("recover", 200), _step("push", 250, 3), _step("sync", 320))
    refused = [Fault(58, "refuse", n, for_s=70, client="c0", calls="create px") for n in range(1, 5)]
    away = [Fault(60, "cut off", n, for_s=75, client="c1") for n in (0, 2)]
    gone = [Fault(150, "gone", n, 1.0) for n in range(2, 5)]
    scenario = _scenario(plan, {"c0": c0, "c1": c1, "c2": c2}, (*refused, *away, *gone))
    return replace(scenario, backends=5, copies=4)


def read_between_two_blocks(plan: Plan) -> Plan:
    """A reader sees one device's blocks before another message stands there, and the other device's after that.

    b2 has block form. c0 (without b1) prepares version 4; b0 accepts its value, its block with it for b2 lies around.
    c2 (without b1) reads b2 slowly: nothing of c1 is there. Then c1 (without b0) prepares a higher round on b1 and b2.
    Then c0's block lands, and c2 reads on: b0 and b2 show votes for a value that was not decided.
    """
    c0 = (_step("push", 5, 3), _step("reopen", 50), _step("push", 60, 3), _step("sync", 200))
    c1 = (_step("sync", 20), _step("push", 88.5, 3), _step("sync", 210, 3))
    c2 = (_step("sync", 30), _step("pull", 80), _step("sync", 220, 3))
    faults = (
        Fault(58, "cut off", 1, for_s=60, client="c0"),
        Fault(58, "cut off", 1, for_s=60, client="c2"),
        Fault(58, "cut off", 0, for_s=60, client="c1"),
        Fault(
            58, "lag", 0, 3.0, for_s=15, client="c0", calls="create px"
        ),  # so that b2 is the first to promise c0's round
        Fault(79, "lag", 2, 8.0, for_s=40, client="c2", calls="get bl"),
    )
    scenario = _scenario(plan, {"c0": c0, "c1": c1, "c2": c2}, faults, Pounce(4, "promise", "hold", 34.0))
    return replace(scenario, blocks=(2,))


def _at_once(plan: Plan, kinds: tuple[str, ...], rounds: int) -> tuple[ClientPlan, ...]:
    """Three clients that push, and between their pushes do some of these at the same time as the others."""
    rng = random.Random(f"at once {plan.seed}")
    clients = []
    for name in ("c0", "c1", "c2"):
        steps: list[Step] = []
        for _ in range(rounds):
            crash = int(300 * rng.random()) if rng.random() < 0.15 else 0
            push = Step("push", rng.getrandbits(32), rng.expovariate(1.0), edits=2, crash_at=crash)
            seed = 7 * rng.getrandbits(28) + 2  # of `gc`: the last two versions are kept
            steps += [push, Step(rng.choice(kinds), seed, rng.expovariate(1.0), target=rng.randrange(60))]
        clients.append(ClientPlan(name, tuple(steps)))
    return tuple(clients)


def collected_often(plan: Plan) -> Plan:
    """Three clients push and collect garbage at the same time; of old versions the last two are kept, keys change.

    What stood in a file before comes back now and then.
    """
    clients = _at_once(plan, ("gc", "gc", "gc", "push", "rotate"), 7)
    slow = tuple(Fault(10.0 * n, "slow", n % 3, 0.6, 8.0) for n in range(6))
    return replace(_scenario(plan, {}, slow), clients=clients, features=("scenario", "back"))


def collected_deltas(plan: Plan) -> Plan:
    """The same, and what is edited is stored as a delta."""
    return replace(collected_often(plan), features=("scenario", "back", "deltas"))


_FILE, _OTHER = 3, 4  # of `user.NAMES`


def _write(text: int, at_s: float, path: int = _FILE) -> Step:
    """The user writes a long text (`user.User.write`)."""
    return Step("write", text, at_s=at_s, target=path)


def base_dropped(plan: Plan) -> Plan:
    """c0 stores a delta in generation 1, and sleeps before its version is agreed; what it is made of is dropped then.

    That lies in generation 0, and nothing of generation 1 goes: the fence lets c0's packs count. c1's broken push is
    why a collection begins generation 1.
    """
    return _dropped(plan, (), Pounce(5, "promise", "suspend", 150.0))


def base_returns(plan: Plan) -> Plan:
    """The same; c0's push fails, and when it goes on with its packs, what was dropped is there again, as a delta."""
    again = (_write(0, 140, _OTHER), _step("push", 141), _write(301, 150, 0), _step("push", 151))
    return _dropped(plan, again)


def reused_dropped(plan: Plan) -> Plan:
    """c0 gives a text another name, and sleeps before its version is agreed; the text is dropped then.

    Its packs are of generation 1 and count, as in `base_dropped`; what they reuse lay in generation 0.
    """
    c0 = (_write(0, 4), _step("push", 5), _step("pull", 76), _write(0, 80, _OTHER), _step("push", 81))
    c1 = (
        *(_write(400, 19, 0), _step("push", 20), _step("pull", 100), _write(200, 101), _step("push", 103)),
        *(_write(300, 109, 0), _step("push", 110), _step("sync", 410)),
    )
    c2 = (_step("gc", 70), _collect(125), _step("sync", 420))
    faults = tuple(Fault(18, "refuse", n, for_s=45, client="c1", calls="create px") for n in range(3))
    clients = {"c0": (*c0, _step("push", 300), _step("sync", 400)), "c1": c1, "c2": c2}
    asleep = Pounce(5, "promise", "suspend", 150.0)
    return replace(_scenario(plan, clients, faults, asleep), features=("scenario", "deltas"))


def _dropped(plan: Plan, again: tuple[Step, ...], *pounces: Pounce) -> Plan:
    c0 = (_write(0, 4), _step("push", 5), _step("pull", 76), _write(1, 80), _step("push", 81))
    c1 = (
        *(_write(400, 19, 0), _step("push", 20), _step("pull", 100), _write(200, 101), _write(2, 102, _OTHER)),
        *(_step("push", 103), _write(300, 109, 0), _step("push", 110), *again, _step("sync", 410)),
    )
    c2 = (_step("gc", 70), _collect(125), _step("sync", 420))
    faults = [Fault(18, "refuse", n, for_s=45, client="c1", calls="create px") for n in range(3)]
    if again:
        faults += [Fault(78, "refuse", n, for_s=45, client="c0", calls="create px") for n in range(3)]
    clients = {"c0": (*c0, _step("push", 300), _step("sync", 400)), "c1": c1, "c2": c2}
    return replace(_scenario(plan, clients, tuple(faults), *pounces), features=("scenario", "deltas"))


def delta_returns(plan: Plan) -> Plan:
    """c0 goes back to a text that was stored as a delta of one that was dropped since.

    Beside it lie long texts that are still needed, so that its pack stays.
    """
    others = tuple(_write(100 * (5 + n), 19, n) for n in range(3))
    c0 = (
        *(_write(0, 4), _step("push", 5), _write(1, 18), *others, _step("push", 20)),
        *(_write(200, 30), _step("push", 31), _step("push", 40, 1), _collect(50), _write(1, 60), _step("push", 61)),
    )
    late = (_step("sync", 200), _step("push", 210, 2))
    return replace(_scenario(plan, {"c0": c0, "c1": late, "c2": late}, ()), features=("scenario", "deltas"))


def removed_while_one_slept(plan: Plan) -> Plan:
    """c0 stores packs, of one copy each, and sleeps before its version is agreed. A backend leaves, and is emptied."""
    c0 = (_step("push", 5, 3), _step("push", 61, 3), _step("push", 300, 3), _step("sync", 400))
    c1 = (_step("push", 90, 3), _step("remove", 110, target=2), _step("rebalance", 140), _step("sync", 410))
    c2 = (_step("sync", 420),)
    scenario = _scenario(
        plan, {"c0": c0, "c1": c1, "c2": c2}, (Fault(330, "empty", 2),), Pounce(5, "promise", "suspend", 150.0)
    )
    return replace(scenario, copies=1)


def changed_often(plan: Plan) -> Plan:
    """Three clients push, change the backends, and move data, at the same time."""
    kinds = ("add", "remove", "demote", "promote", "copies", "rebalance", "rebalance", "rebalance")
    slow = tuple(Fault(10.0 * n, "slow", n % 3, 0.6, 8.0) for n in range(6))
    return replace(_scenario(plan, {}, slow), clients=_at_once(plan, kinds, 7), spares=2)
