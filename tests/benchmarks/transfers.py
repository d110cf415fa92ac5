"""How near a download comes to what its lines could carry together, in virtual time.

    python tests/benchmarks/transfers.py [--megabytes 193] [--seed 1]
    METASYNC_S3_SERVER=... python tests/benchmarks/transfers.py --real 60

Real packs, and the real code that fetches them, on backends whose lines are shared evenly by their calls, with the
latencies and bandwidths of `services.json` or of the far network of `bench.py` (80 ms, 5 MB/s). A figure is the same on
every machine; work on the CPU takes no time. *Best* is what no schedule can undercut: of every set of backends, the
bytes that it alone has over its bandwidth. Ends with status 1 when a bar is missed.

`--real` clones so many megabytes of photos from two S3 servers behind lines of 5.1 and 3.4 MB/s, in earnest, and prints
the rate of the whole command and of its download.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kits"), str(HERE.parent / "servers"), str(HERE.parents[1])]

from content_kit import IDS, blob, pack_all, pack_format
from simulation import runtime as sim
from simulation.world import Boot, World

from metasync.errors import BackendError, NotFoundError
from metasync.runtime.effects import Op, Reply, Sleep, Task, Urgency
from metasync.store import pack_format as packfile
from metasync.store.index import PackRecord
from metasync.store.pack_format import Located
from metasync.store.packs import SealedPack
from metasync.store.placement import (
    Placement,
    Target,
)
from metasync.transfer import download as headstart
from metasync.transfer import schedule
from metasync.transfer.copies import Place, Transfer, pack_path
from metasync.transfer.download import Deliver, Download
from metasync.transfer.estimates import Estimates

MB = 1e6
CHUNK_BYTES = (256 << 10, 1 << 20)
FORM = pack_format(segment_bytes=256 << 10, pack_bytes=4 << 20)
STORAGE = b"s" * 16
NEVER = float("inf")
POLL_S = 0.02
BEFORE_FILES_BYTES = 300_000  # keys, logs and trees come before, heads after


@dataclass(frozen=True)
class Service:
    """A backend's line: seconds for a small request, bytes a second, sigma of the log-normal factor on the latency."""

    name: str
    latency_s: float = 0.08
    rate: float = 5e6
    jitter: float = 0.0
    dies_at_s: float = NEVER


@dataclass
class Line:
    """What is on one backend's line. Calls share it evenly; `version` tells a planned end that is out of date."""

    service: Service
    left: dict[int, tuple[float, Callable[[], None]]] = field(default_factory=dict)
    at: float = 0.0
    version: int = 0
    requests: int = 0
    carried: int = 0
    calls: int = 0
    at_once: int = 0


class Lines:
    """The network, as `simulation.runtime` wants it."""

    def __init__(self, world: World, services: Sequence[Service], stores: dict[str, dict[str, bytes]]) -> None:
        self.world = world
        self.stores = stores
        self.lines = {s.name: Line(s) for s in services}
        self.noise = random.Random(world.rng.random())
        self.serial = 0

    def send(self, _boot: Boot, _client: str, _backend: Any, op: Op, answer: Callable[[Reply], None]) -> None:
        line, sent = self.lines[op.backend], self.world.now
        line.requests += 1
        line.calls += 1
        line.at_once = max(line.at_once, line.calls)
        assert op.kind == "get" and op.urgency is Urgency.SOON
        data = self.stores[op.backend].get(op.path)
        part = None if data is None else data[op.offset :] if op.length is None else data[op.offset :][: op.length]

        def arrived() -> None:
            line.calls -= 1
            error: BackendError | None = NotFoundError("not there") if part is None else None
            answer(Reply(part, error, self.world.now - sent))

        def begin() -> None:
            self._go_on(line)
            self.serial += 1
            line.left[self.serial] = float(len(part or b"")), arrived
            line.carried += len(part or b"")
            self._plan(line)

        self.world.at(line.service.latency_s * self.noise.lognormvariate(0.0, line.service.jitter), begin)

    def _rate(self, line: Line) -> float:
        return line.service.rate if line.at < line.service.dies_at_s else 0.0

    def _go_on(self, line: Line) -> None:
        now = min(self.world.now, max(line.at, line.service.dies_at_s))
        if line.left:
            each = self._rate(line) * (now - line.at) / len(line.left)
            line.left = {n: (left - each, arrived) for n, (left, arrived) in line.left.items()}
        line.at = self.world.now

    def _plan(self, line: Line) -> None:
        line.version += 1
        rate, version = self._rate(line), line.version
        if not line.left or not rate:
            return
        takes = max(0.0, min(left for left, _ in line.left.values())) * len(line.left) / rate

        def end() -> None:
            if line.version != version:
                return
            self._go_on(line)
            over = [n for n, (left, _) in line.left.items() if left <= 1e-3]
            ended = [line.left.pop(n)[1] for n in over]
            self._plan(line)
            for arrived in ended:
                arrived()

        self.world.at(takes, end)


@dataclass(frozen=True)
class Result:
    seconds: float
    best_s: float
    wanted: int
    requests: int
    carried: int
    by_backend: dict[str, int]


def photos(size: int, seed: int) -> list[SealedPack]:
    rng = random.Random(seed)
    chunks = []
    while size > 0:
        n = min(size, rng.randint(*CHUNK_BYTES))
        chunks.append(blob(rng.randbytes(n)))
        size -= n
    return pack_all(chunks, FORM)


class Far:
    """Packs on backends of these services, and a device that has none of them. `stores` may be edited by hand."""

    def __init__(
        self, packs: Sequence[SealedPack], services: Sequence[Service], copies: int, estimates: Estimates | None = None
    ) -> None:
        self.packs, self.services = packs, services
        self.ids = {s.name.encode().ljust(16, b"."): s.name for s in services}
        self.placement = Placement([Target(i, 1 << 40) for i in self.ids], copies=copies)
        places = {i: Place(name, i, (STORAGE,)) for i, name in self.ids.items()}
        self.transfer = Transfer(self.placement, places, FORM, IDS.of, estimates=estimates or Estimates())
        self.stores: dict[str, dict[str, bytes]] = {s.name: {} for s in services}
        for pack in packs:
            for name in self.homes(pack):
                self.stores[name][pack_path(STORAGE, 0, pack.name)] = pack.data
        self.got: Counter[bytes] = Counter()
        self.seconds = 0.0
        self.now = 0.0

    def homes(self, pack: SealedPack) -> list[str]:
        return [self.ids[i] for i in self.placement.primary(pack.name)]

    def fetch(
        self,
        packs: Sequence[SealedPack] | None = None,
        deliver: Deliver | None = None,
        *,
        ahead: Sequence[SealedPack] = (),
        ahead_s: float = 0.0,
        only: Callable[[Located], bool] = lambda _: True,
    ) -> Lines:
        """Fetches packs, all of them by default, and notes how often each object came. Raises what is lost.

        `ahead`: of these some are begun so long before. `only`: the objects that are wanted.
        """
        world = World(1)
        world.now = self.now
        lines = Lines(world, self.services, self.stores)

        def take(objects: Sequence[tuple[Located, memoryview]]) -> None:
            self.got.update(located.id for located, _ in objects)

        def body(actor: Any) -> None:
            runtime = sim.SimRuntime(world, Boot(actor, 0), "clone", lines, dict.fromkeys(self.stores, object()))
            headstart.begin(self.transfer, map(record_of, ahead), runtime.start, runtime.clock)
            runtime.run(_passing(ahead_s))
            download = Download(self.transfer, runtime, deliver or take, Urgency.SOON)
            for p in self.packs if packs is None else packs:
                download.want(record_of(p), filter(only, p.footer.objects))
            for lost in download.run():
                raise lost.error
            self.seconds = world.now - self.now

        actor = world.spawn("clone", body)
        world.director.wait(lambda: actor.ended or world.failure is not None)
        world.join()
        self.now = world.now
        if world.failure is not None:
            raise world.failure
        assert all(line.at_once <= schedule.CONNECTIONS_MAX for line in lines.lines.values())
        return lines


def record_of(pack: SealedPack) -> PackRecord:
    return PackRecord(pack.name, 0, len(pack.data), pack.data[: packfile.HEADER_BYTES], pack.footer.segments)


def _passing(seconds: float) -> Task:
    yield Sleep(seconds)


def clone(packs: Sequence[SealedPack], services: Sequence[Service], copies: int, estimates: Estimates) -> Result:
    """Fetches all packs; checks that every object came once."""
    far = Far(packs, services, copies, estimates)
    lines = far.fetch().lines
    assert far.got == Counter(o.id for p in packs for o in p.footer.objects), "an object is missing, or came twice"
    return Result(
        far.seconds,
        best_s([(set(far.homes(p)), len(p.data)) for p in packs], services),
        sum(len(p.data) for p in packs),
        sum(line.requests for line in lines.values()),
        sum(line.carried for line in lines.values()),
        {name: line.carried for name, line in lines.items()},
    )


def best_s(homes: Sequence[tuple[set[str], int]], services: Sequence[Service]) -> float:
    """The least time in which lines can bring what lies where, given what the dying ones brought before."""
    rates = {s.name: s.rate for s in services if s.dies_at_s == NEVER}
    before = sum(s.rate * s.dies_at_s for s in services if s.dies_at_s < NEVER)
    if before:  # all brought what they could until then, and the living ones the rest
        return (sum(size for _, size in homes) - before) / sum(rates.values())
    some_of = [some for n in range(1, len(rates) + 1) for some in itertools.combinations(rates, n)]
    return max(
        sum(size for who, size in homes if who & set(rates) <= set(some)) / sum(rates[n] for n in some)
        for some in some_of
    )


# --- the cases


@dataclass(frozen=True)
class Case:
    name: str
    services: tuple[Service, ...]
    bar: float  # at most so many times the best
    extra_s: float = 0.0  # and so many seconds: for what has to be found out
    copies: int = 2


FAR = tuple(Service(name) for name in ("one", "two", "three"))
FIGURE_10 = (Service("dropbox", rate=5.1e6), Service("google", rate=3.4e6))
# What a hang costs: that an answer is late shows after LATE_LEAST_S and three times what it should take.
HANG_S = 3.0


def services_of_paper() -> tuple[Service, ...]:
    data = json.loads((HERE / "services.json").read_text())["services"]
    return tuple(Service(s["name"], s["get_s"], s["down_mb_s"] * MB, s["jitter"]) for s in data)


def cases() -> list[Case]:
    return [
        Case("three of 5 MB/s", FAR, 1.1),
        Case("figure 10: 5.1 and 3.4 MB/s", FIGURE_10, 8.5 / 8.1),
        Case("the services, four of them", services_of_paper()[:4], 1.2),
        Case("the services, all five", services_of_paper(), 1.25),
        Case("one ten times slower", (*FAR[:2], replace(FAR[2], rate=0.5e6)), 1.1),
        Case("one hangs from the beginning", (*FAR[:2], replace(FAR[2], dies_at_s=0.0)), 1.1, HANG_S),
        Case("one dies half way", (*FAR[:2], replace(FAR[2], dies_at_s=6.5)), 1.1, HANG_S),
    ]


def virtual(megabytes: float, seed: int) -> int:
    packs = photos(int(megabytes * MB), seed)
    print(f"{sum(len(p.data) for p in packs) / MB:.1f} MB in {len(packs)} packs.\n")
    print("| lines | known | s | best | ratio | MB/s | requests | MB carried | bar |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    missed = 0
    for case in cases():
        estimates = Estimates()
        for known in ("nothing", "from before"):
            r = clone(packs, case.services, case.copies, estimates)
            estimates = Estimates.decode(estimates.encode())
            bar_s = r.best_s * case.bar + case.extra_s
            verdict = f"{bar_s:.1f} s" + ("" if r.seconds <= bar_s else ", MISSED")
            missed += r.seconds > bar_s
            print(
                f"| {case.name} | {known} | {r.seconds:.2f} | {r.best_s:.2f} | {r.seconds / r.best_s:.3f}"
                f" | {r.wanted / r.seconds / MB:.2f} | {r.requests} | {r.carried / MB:.1f} | {verdict} |"
            )
    return missed


# --- in earnest


def real(megabytes: float, round_trip_s: float) -> None:
    """Figure 10 with S3 servers behind the shaping proxy, by the command line."""
    import far

    shapes = {s.name: far.Shape(round_trip_s, s.rate, s.rate) for s in FIGURE_10}
    with far.running(shapes, Path(tempfile.gettempdir())) as services:
        rng = random.Random(10)
        photos, clone = services.work / "photos", services.work / "clone"
        photos.mkdir()
        for n in range(16):
            (photos / f"{n}.jpg").write_bytes(rng.randbytes(int(megabytes * MB / 16)))
        near, away = (far.backend_words(services.urls("figure10", near=near)) for near in (True, False))
        services.metasync("one", "init", str(photos), "--name", "figure10", *near)
        services.metasync("one", "-C", str(photos), "push")
        with ThreadPoolExecutor(1) as pool:
            command = pool.submit(services.metasync, "two", "clone", str(clone), "--name", "figure10", *away)
            seen = [(0.0, 0)]
            while not command.done():
                time.sleep(POLL_S)
                seen.append((time.monotonic(), sum(c.down_bytes for c in services.proxy.counted())))
            wall_s = command.result().wall_s
        carried = [c.down_bytes for c in services.proxy.counted()]
    begin = next(s for s in seen if s[1] > BEFORE_FILES_BYTES)
    end = next(s for s in seen if s[1] >= sum(carried) - BEFORE_FILES_BYTES)
    rate = (end[1] - begin[1]) / (end[0] - begin[0])
    print(
        f"{megabytes:.0f} MB in {wall_s:.2f} s, the whole command: {megabytes / wall_s:.2f} MB/s of 8.5. The files,"
        f" from the first to the last byte: {end[0] - begin[0]:.2f} s, {rate / MB:.2f} MB/s;"
        f" {carried[0] / MB:.1f} and {carried[1] / MB:.1f} MB from the two"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=193)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", type=float, metavar="MEGABYTES", help="figure 10 with servers, in earnest")
    parser.add_argument("--round-trip-ms", type=float, default=80)
    options = parser.parse_args()
    if options.real:
        real(options.real, options.round_trip_ms / 1000)
        return 0
    return 1 if virtual(options.megabytes, options.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
