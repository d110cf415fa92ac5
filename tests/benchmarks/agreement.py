"""How long agreement takes, after figures 8 and 9 of the MetaSync paper: five services, one to five proposers.

    python tests/benchmarks/agreement.py [--runs 60] [--seed 1]

The real protocol code runs in virtual time against five services that answer as slowly as `services.json` says (a
stand-in for the paper's services: medians, with a log-normal jitter), so that the figures are the protocol's alone, the
same on every machine, and an hour of waiting takes seconds. A service serves at most `CONNECTIONS` requests at once.

Figure 8: proposers that start at the same moment, each until its own change is agreed. Figure 9: one proposer while the
number of devices grows. *Disk Paxos* is the same code on services that all vote in block form, which is Disk Paxos with
immutable blocks: a message is one's own block and a read of everybody's. A round trip is counted for every request that
had to wait for another one.

What a commit is held against is a bare append to all five that waits for a quorum, with the same jitter: the third (or,
where one may lie, the fourth) fastest of five draws, not of five medians. Ends with status 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "kits"), str(HERE.parents[1])]

from paxos_world import Workspace, World, _Run, change, make_parts

from metasync.config import byzantine_f, quorum
from metasync.consensus import Group, State
from metasync.consensus.founding import bootstrap, found
from metasync.errors import UnreachableError
from metasync.runtime.effects import Gather, Op, Reply, Task

CONNECTIONS = 8  # as `concurrency.START`
VERSIONS = (10, 26, 1_002, 10_000, 10_010)  # two, ten, ten, no and ten versions after a hint
OWNER_MAX = 1.1
OTHERS_MAX = 2.2


@dataclass(frozen=True)
class Service:
    """Seconds for a small request, and the sigma of the log-normal factor on it."""

    name: str
    append_s: float
    get_s: float
    list_s: float
    jitter: float


def services() -> list[Service]:
    data = json.loads((HERE / "services.json").read_text())
    return [Service(s["name"], s["append_s"], s["get_s"], s["list_s"], s["jitter"]) for s in data["services"]]


class ServiceWorld(World):
    """Virtual time with the services' own speeds. `free`: when each connection of a service is free again."""

    def __init__(self, seed: int, of: Sequence[Service]) -> None:
        super().__init__(seed, [s.name for s in of])
        self.speeds = {s.name: s for s in of}
        self.free = {s.name: [0.0] * CONNECTIONS for s in of}
        self.noise = random.Random(seed ^ 0x5EED)

    def _op(self, run: _Run, op: Op) -> None:
        token = run.token
        self.requests[op.backend].append(op)
        s = self.speeds[op.backend]
        base = {"get": s.get_s, "stat": s.get_s, "list": s.list_s}.get(op.kind, s.append_s)
        takes = base * self.noise.lognormvariate(0.0, s.jitter)
        free = self.free[op.backend]
        slot = min(range(len(free)), key=free.__getitem__)
        begins = max(self.now, free[slot])
        free[slot] = ends = begins + takes

        def effect() -> None:
            reply = self._answer(run.process.name, op)
            self.at(ends - self.now, lambda: self._step(run, reply, None) if run.token == token else None)

        self.at((begins + ends) / 2 - self.now, effect)
        if ends - self.now > op.timeout_s:
            late = Reply(error=UnreachableError(f"{op.backend}: no answer"))
            self._resume_in(run, op.timeout_s, late)


def settled(world: ServiceWorld) -> None:
    """Lets what is under way land, and starts the clock with every connection free."""
    world.run()
    for free in world.free.values():
        free[:] = [world.now] * CONNECTIONS


def workspace(world: ServiceWorld, devices: int, *, f: int = 0, block: bool = False) -> Workspace:
    ws = make_parts(world.rng, list(world.stores), devices, f)
    if block:
        backends = [replace(b, acceptor=replace(b.acceptor, form="block")) for b in ws.config.backends if b.acceptor]
        ws.config = replace(ws.config, backends=tuple(backends))
    founding = found(
        ws.keys,
        ws.config,
        ws.devices,
        ws.devices.chain,
        admin_private=ws.admin,
        keyring=bytes(32),
        births=ws.births,
        links=ws.links,
    )
    ws.genesis = world.do(founding)
    settled(world)
    return ws


def commit(
    world: ServiceWorld, group: Group, base: State, op: bytes, disk: dict[str, bytes] | None = None
) -> tuple[State, float]:
    """One proposal to its end. -> (state, virtual seconds). `disk`: the device's own."""
    before = world.now
    process = world.start("one", group.propose(base, lambda: change(op)), disk)
    world.run(lambda: process.done)
    if process.error is not None:
        raise process.error
    took = world.now - before
    settled(world)
    assert process.result.mine
    return process.result.state, took


def group_of(world: ServiceWorld, ws: Workspace, device: int) -> Group:
    return ws.group(world.rng.randbytes(16), device)


def warm(world: ServiceWorld, group: Group, base: State) -> None:
    """The first look of a process, which a push makes anyway: floors, and what acceptors must still show."""
    assert world.do(group.get_recent(base)) == base
    settled(world)


def alone(seed: int, runs: int, devices: int, *, f: int = 0, block: bool = False) -> dict[str, list[float]]:
    """Seconds of one proposer: as the owner, as another device, and as one whose PREPARE went ahead."""
    world = ServiceWorld(seed, services())
    ws = workspace(world, devices, f=f, block=block)
    base = ws.genesis
    disks: list[dict[str, bytes]] = [{} for _ in range(devices)]
    out: dict[str, list[float]] = {"owner": [], "another": [], "prepared": []}
    for run in range(runs):
        who = run % devices
        group = group_of(world, ws, who)
        warm(world, group, base)
        for key in ("another", "owner"):
            base, took = commit(world, group, base, world.rng.randbytes(16), disks[who])
            out[key].append(took)
        if block:
            continue
        group = group_of(world, ws, (run + 1) % devices)
        warm(world, group, base)
        if world.do(group.prepare(base)):
            settled(world)
            base, took = commit(world, group, base, world.rng.randbytes(16))
            out["prepared"].append(took)
    return out


def plain(seed: int, runs: int, q: int) -> list[float]:
    """Seconds for one bare append to all services until q have answered: what no agreement can go below."""
    world = ServiceWorld(seed, services())
    out = []
    for run in range(runs):

        def one(name: str, run: int = run) -> Task:
            return (yield Op(name, "create", f"plain/{run}", b"x"))

        def all_of(one: Any = one) -> Task:
            yield Gather({n: one(n) for n in world.stores}, lambda results: len(results) >= q)

        before = world.now
        world.do(all_of())
        out.append(world.now - before)
        settled(world)
    return out


def first_reads(seed: int, counts: Sequence[int]) -> dict[int, tuple[int, int, float]]:
    """By number of versions: requests of a new device's first read, those on one service, and its seconds."""
    world = ServiceWorld(seed, [Service(f"s{n}", 0.8, 0.4, 0.4, 0.25) for n in range(3)])
    ws = workspace(world, 2)
    group, state, out = group_of(world, ws, 0), ws.genesis, {}
    for versions in counts:
        while state.v < versions:
            decided = world.do(group.propose(state, lambda: change(world.rng.randbytes(16)))).state
            world.do(group.write_hint(state, decided))
            state = decided
        settled(world)
        for requests in world.requests.values():
            requests.clear()
        before = world.now
        start = world.do(bootstrap(ws.keys, list(world.stores)))
        newcomer = Group(
            ws.keys,
            ws.identities[1],
            start.config,
            start.state.config,
            start.devices,
            start.state.devices,
            incarnation=world.rng.randbytes(16),
            links=start.links,
        )
        assert world.do(newcomer.get_recent(start.state)) == state
        asked = [len(requests) for requests in world.requests.values()]
        out[versions] = (sum(asked), max(asked), world.now - before)
    return out


@dataclass
class Contest:
    """What happened to proposers that started together."""

    first_s: list[float]
    mean_s: list[float]
    last_s: list[float]
    rounds: Counter[int]
    tries: Counter[int]


def together(seed: int, runs: int, proposers: int) -> Contest:
    """Proposers start at once on one base; each goes on until its own change is agreed, in sequence."""
    out = Contest([], [], [], Counter(), Counter())
    for run in range(runs):
        world = ServiceWorld(seed * 1000 + run, services())
        ws = workspace(world, proposers)
        ends: list[float] = []

        def push(device: int, world: ServiceWorld = world, ws: Workspace = ws, ends: list[float] = ends) -> Task:
            group, base, op = group_of(world, ws, device), ws.genesis, bytes([device + 1]) * 16
            tries = 0
            while True:
                tries += 1
                decided = yield from group.propose(base, lambda: change(op), op_id=op)
                if decided.mine:
                    break
                base = decided.state
            out.rounds[group.participant.rounds_used.get(decided.state.v, 0)] += 1
            out.tries[tries] += 1
            ends.append(world.now)

        start = world.now
        processes = [world.start(f"p{d}", push(d)) for d in range(proposers)]
        world.run(lambda processes=processes: all(p.done for p in processes))  # type: ignore[misc]
        for process in processes:
            if process.error is not None:
                raise process.error
        times = [t - start for t in ends]
        out.first_s.append(min(times))
        out.mean_s.append(statistics.fmean(times))
        out.last_s.append(max(times))
    return out


def median_of(of: Sequence[float]) -> str:
    return f"{statistics.median(of):.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    n = len(services())
    missed: list[str] = []

    def row(what: str, seconds: list[float], of: float, most: float | None) -> None:
        ratio = statistics.median(seconds) / of
        verdict = "" if most is None else f"<= {most:g}" if ratio <= most else f"MISSED: {most:g}"
        if most is not None and ratio > most:
            missed.append(what)
        print(f"| {what} | {median_of(seconds)} | {statistics.fmean(seconds):.2f} | {ratio:.2f} | {verdict} |")

    print(f"{n} services; virtual seconds, {args.runs} runs, seed {args.seed}.\n")
    print("| one proposer | median s | mean s | of one append | bar |\n| --- | ---: | ---: | ---: | --- |")
    runs = 4 * args.runs  # medians of medians differ by a tenth with 60
    for f in (0, byzantine_f(n, at_cost=True)):
        q = quorum(n, f)
        appended = plain(args.seed, runs, q)
        least = statistics.median(appended)
        what = f", {f} may lie" if f else ""
        row(f"a bare append, {q} of {n}{what}", appended, least, None)
        times: dict[str, list[float]] = alone(args.seed, runs, 3, f=f)
        row(f"owner{what}", times["owner"], least, OWNER_MAX)
        row(f"another device{what}", times["another"], least, OTHERS_MAX)
        row(f"another device, PREPARE went ahead{what}", times["prepared"], least, None)

    print("\nFigure 8: proposers that start together\n")
    print("| proposers | first s | mean s | last s | rounds of the deciding proposals | tries |")
    print("| ---: | ---: | ---: | ---: | --- | --- |")
    for proposers in range(1, 6):
        c = together(args.seed, args.runs, proposers)
        rounds = ", ".join(f"{k}: {v}" for k, v in sorted(c.rounds.items()))
        tries = ", ".join(f"{k}: {v}" for k, v in sorted(c.tries.items()))
        first, mean, last = median_of(c.first_s), median_of(c.mean_s), median_of(c.last_s)
        print(f"| {proposers} | {first} | {mean} | {last} | {rounds} | {tries} |")

    print("\nA new device's first read: from nothing to the newest version\n")
    print("| versions | requests | of them in the slowest store | s |\n| ---: | ---: | ---: | ---: |")
    firsts = first_reads(args.seed, VERSIONS)
    for versions, (requests, most, seconds) in firsts.items():
        print(f"| {versions:,} | {requests} | {most} | {seconds:.2f} |")
    if max(requests for requests, _, _ in firsts.values()) > 1.2 * firsts[VERSIONS[1]][0]:
        missed.append("a first read grows with the versions")

    print("\nFigure 9: one proposer, the number of devices grows\n")
    print("| devices | owner s | another s | Disk Paxos owner s | Disk Paxos another s |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    flat: dict[str, list[float]] = {"owner": [], "another": []}
    for devices in (1, 2, 4, 6, 8, 10):
        ours, disk = alone(args.seed, runs, devices), alone(args.seed, args.runs, devices, block=True)
        for key, values in flat.items():
            values.append(statistics.median(ours[key]))
        cells = " | ".join(median_of(x[key]) for x in (ours, disk) for key in ("owner", "another"))
        print(f"| {devices} | {cells} |")
    for key, values in flat.items():
        if max(values) > 1.1 * min(values):
            missed.append(f"{key}: not flat in the number of devices")
    print()
    for what in missed:
        print(f"missed: {what}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
