"""Scrubs of workspaces with many packs, beside their bars: requests, bytes, time, memory, looks until all is well.

The packs have 64 bytes and lie in stores in memory, by the product's own mapping; an index names them by the product's
own agreement. What is counted passes the backend's interface: requests, and the bytes of objects and of inventories as
JSON, with 500 a request for heads. Memory is the peak of Python's own while one scrub runs (tracemalloc).

`without` takes the feed away: stores that only list, as S3 does. Four backends, two copies, two devices.
"""

from __future__ import annotations

import json
import os
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metasync.backends import memory
from metasync.backends.api import Backend, Inventory
from metasync.backends.wrappers import breaker
from metasync.backends.wrappers.wrapper import Call, T, Wrapper, layers
from metasync.consensus import Ref
from metasync.errors import NotFoundError, UnreachableError
from metasync.keys.derive import sha256
from metasync.keys.slots import Cost
from metasync.maintenance import scrub_record
from metasync.maintenance.repair.give_back import name_in_index
from metasync.maintenance.scrub_record import DAY_NS
from metasync.reports.checks import ScrubReport
from metasync.runtime.effects import Op
from metasync.session import agreement, open_backend
from metasync.session.connections import Machine
from metasync.session.session import Session
from metasync.store.index import IndexSegment, PackRecord, make_segment
from metasync.store.pack_format import HEADER_BYTES, Packs
from metasync.transfer.copies import pack_path
from metasync.transfer.inventories import Heard
from metasync.workspace import Workspace

CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
PASSPHRASE = "correct horse battery staple"
NAMES = ("a", "b", "c", "d")
SIZES = (1_000, 10_000, 100_000)  # and on request: ROWS=scrub=1000000, which takes 4 GB and, on a busy machine, an hour
RING_PACKS = 1_000
HEAD_BYTES = 500
SEGMENT_PACKS = 50_000
KB = 1_000
Row = tuple[str, str, str, bool]


class Counted(Wrapper):
    """A store that counts what passes, and can be away or tell no changes."""

    down = False
    feed = True

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()
        self.bytes = 0

    def around(self, call: Call, do: Callable[[], T]) -> T:
        self.requests[call.kind] += 1
        if self.down:
            raise UnreachableError("away", retryable=False)
        value: Any = do()
        if isinstance(value, Inventory):
            value = value if self.feed or value.more else value._replace(cursor="")
            self.bytes += len(json.dumps(value))
        self.bytes += HEAD_BYTES + call.up_bytes + (len(value) if isinstance(value, bytes) else 0)
        return value

    def take(self) -> tuple[int, int]:
        """Requests and bytes since the last time."""
        taken = self.requests.total(), self.bytes
        self.requests, self.bytes = Counter(), 0
        return taken


class Scene:
    """A workspace on four stores, with packs."""

    def __init__(self, folder: Path, packs: int, *, feed: bool = True) -> None:
        self.counted: dict[str, list[Counted]] = {name: [] for name in NAMES}
        self.feed = feed
        self.made = 0
        key = f"{folder.name}-{packs}-{feed}".replace("_", "-")
        self.plain = open_backend.opened
        open_backend.opened = self._opened
        urls = [f"memory://{key}-{name}?name={name}" for name in NAMES]
        at = folder / key
        options: dict[str, Any] = {"name": "docs", "backends": urls, "passphrase": PASSPHRASE}
        self.w = Workspace.init(at / "one", kdf=CHEAP, device_name="one", by_space=False, **options).workspace
        (at / "one" / "file").write_bytes(b"x")
        self.w.push()
        self.add(packs)
        self.other = Workspace.clone(at / "two", device_name="two", **options).workspace

    def close(self) -> None:
        self.w.close()
        self.other.close()
        open_backend.opened = self.plain
        memory.forget_stores()

    def _opened(self, name: str, url: Any, *, create: bool) -> Backend:
        backend = Counted(self.plain(name, url, create=create))
        backend.feed = self.feed
        self.counted[next(n for n in NAMES if url.location.endswith(f"-{n}"))].append(backend)
        return backend

    def set_down(self, name: str, down: bool) -> None:
        for backend in self.counted[name]:
            backend.down = down

    def take(self) -> dict[str, tuple[int, int]]:
        """Requests and bytes at each backend since the last time."""
        out = {}
        for name, some in self.counted.items():
            taken = [backend.take() for backend in some]
            out[name] = sum(t[0] for t in taken), sum(t[1] for t in taken)
        return out

    def add(self, count: int) -> None:
        """Stores packs, and has them agreed."""
        with self.w._operation("bench") as s:
            base = agreement.newest(s)
            records, ops = [], []
            for _ in range(count):
                self.made += 1
                data = sha256(self.made.to_bytes(8, "big")) * 2
                records.append(PackRecord(sha256(data), base.state.gen, len(data), data[:HEADER_BYTES], ()))
                ops += [Op(name, "put", path, data) for name, path in places(s, records[-1])]
            carry_out(s, ops)
            records.sort(key=lambda p: p.id)
            parts = (records[n : n + SEGMENT_PACKS] for n in range(0, count, SEGMENT_PACKS))
            self._name(s, [IndexSegment(Packs.of(part), b"") for part in parts])

    def drop(self, count: int) -> None:
        """Has packs dropped from the index, and deletes them."""
        with self.w._operation("bench") as s:
            gone = [p for p in agreement.newest(s).index.packs().values() if not p.segments][:count]
            self._name(s, [make_segment((), (p.id for p in gone))])
            carry_out(s, [Op(name, "delete", path) for record in gone for name, path in places(s, record)])

    def lose(self, name: str, share: float) -> int:
        """One backend loses a share of its packs. -> how many"""
        with self.w._operation("bench") as s:
            packs = [p for p in agreement.newest(s).index.packs().values() if not p.segments]
            mine = [path for p in packs for where, path in places(s, p) if where == name]
            lost = mine[: int(len(mine) * share)]
            carry_out(s, [Op(name, "delete", path) for path in lost])
        return len(lost)

    def missing(self) -> int:
        """How many copies are not where they belong."""
        with self.w._operation("bench") as s:
            stores = stores_of(s)
            packs = [p for p in agreement.newest(s).index.packs().values() if not p.segments]
            return sum(not _is_there(*stores[name], path) for p in packs for name, path in places(s, p))

    @staticmethod
    def _name(s: Session, segments: Sequence[IndexSegment]) -> None:
        base = agreement.newest(s)
        ref = s.indexes.store(base.state, base.root, base.segments, iter(segments))
        assert ref is not None
        name_in_index(s, base.state, Ref(*ref))


def places(s: Session, record: PackRecord) -> list[tuple[str, str]]:
    """Where the copies of a pack belong: backends and paths."""
    found = [s.transfer.places[i] for i in s.transfer.placement.primary(record.name)]
    return [(p.name, pack_path(p.storage_ids[-1], record.generation, record.name)) for p in found]


def _is_there(store: Backend, folder: str, path: str) -> bool:
    try:
        return bool(store.get(f"{folder}/{path}", max_bytes=KB))
    except NotFoundError:
        return False


def stores_of(s: Session) -> dict[str, tuple[Backend, str]]:
    """By the name of a backend: its store, and the workspace's folder there."""
    return {
        way.name: (list(layers(way.store))[-1], way.link.folder) for way in s.connections.ways.values() if way.store
    }


def carry_out(s: Session, ops: Sequence[Op]) -> None:
    """Changes what lies in the stores, past all that counts and waits."""
    stores = stores_of(s)
    for op in ops:
        store, folder = stores[op.backend]
        path = f"{folder}/{op.path}"
        store.put(path, op.data) if op.kind == "put" else store.delete(path)


def most(taken: dict[str, tuple[int, int]]) -> tuple[int, int]:
    return max(t[0] for t in taken.values()), max(t[1] for t in taken.values())


def timed(scene: Scene, w: Workspace, **options: Any) -> tuple[ScrubReport, float, dict[str, tuple[int, int]]]:
    scene.take()
    began = time.monotonic()
    report = w.scrub(**options)
    return report, time.monotonic() - began, scene.take()


def told(taken: dict[str, tuple[int, int]], seconds: float) -> str:
    requests, size = most(taken)
    return f"{requests:,} requests and {size / KB:,.1f} KB a backend at most, {seconds:.2f} s"


def rows(folder: Path, packs: int = 0) -> Iterator[Row]:
    """Yields (what, measured, bar, whether it is within). `packs`: this number alone."""
    os.environ["METASYNC_KEYRING"] = "off"
    breaker.PATIENCE_S = 600.0  # type: ignore[misc]  # a busy machine sorts a million names in more than a moment
    memory.CHANGES_MAX = 1 << 23  # type: ignore[misc]  # all that a size of here changes between two looks
    for size in (packs,) if packs else SIZES:
        yield from _with_feed(folder, size)
        yield from _without(folder, size)
    yield from _rings(folder)


def _with_feed(folder: Path, size: int) -> Iterator[Row]:
    scene = Scene(folder, size)
    at = f"{size:,} packs"
    report, seconds, listing = timed(scene, scene.w)
    full = most(listing)[1]
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = f"{told(listing, seconds)}; with the stores themselves {most_kib >> 10:,} MiB"
    is_whole = not report.asked and all(b.how == "listed" for b in report.backends)
    yield f"{at}, first look", measured, "", is_whole
    tracemalloc.start()
    report, seconds, taken = timed(scene, scene.w)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    within = most(taken)[0] <= 2 and most(taken)[1] <= 20 * KB and peak <= 200 << 20 and not report.compared
    measured = f"{told(taken, seconds)}, {peak / (1 << 20):.1f} MiB"
    yield f"{at}, nothing changed, with a feed", measured, "2 requests, 20 KB, 200 MiB", within
    for what, change in (("10 % added", scene.add), ("10 % deleted", scene.drop)):
        change(size // 10)
        report, seconds, taken = timed(scene, scene.w)
        again, _, _ = timed(scene, scene.w)
        share = most(taken)[1] / full
        measured = f"{told(taken, seconds)}: {share:.0%} of a listing's bytes, {report.asked:,} asked for"
        yield f"{at}, {what}", measured, "in proportion, 2 looks", share <= 0.25 + 20 * KB / full and not again.compared
    scene.set_down("b", True)
    report, seconds, taken = timed(scene, scene.w)
    scene.set_down("b", False)
    lost = scene.lose("b", 0.1)
    others = {name: t for name, t in taken.items() if name != "b"}
    within = {b.backend: b.how for b in report.backends}["b"] == "away" and not report.asked
    yield f"{at}, one down", told(others, seconds), "", within
    report, seconds, taken = timed(scene, scene.w)
    looks, settled = 1, report
    while settled.asked and looks < 9:
        settled, _, _ = timed(scene, scene.w)
        looks += 1
    copies = report.repaired.copies if report.repaired is not None else 0
    requests = sum(t[0] for t in taken.values())
    measured = f"{copies:,} of {lost:,} copies made in {looks} looks, {requests / max(1, lost):.1f} requests each, "
    yield f"{at}, back without 10 %", measured + f"{seconds:.2f} s", "2 looks", copies == lost and looks <= 2
    scene.close()


def _without(folder: Path, size: int) -> Iterator[Row]:
    scene = Scene(folder, size, feed=False)
    _, seconds, first = timed(scene, scene.w)
    _, _, second = timed(scene, scene.other)
    rest = [timed(scene, w)[2] for w in (scene.w, scene.other, scene.w, scene.other)]
    begun = f"{told(first, seconds)}; the other device {most(second)[0]} requests, then {max(most(r)[0] for r in rest)}"
    pages = most(second)[0] <= 8 and all(most(r)[0] == 0 for r in rest)
    yield f"{size:,} packs, no feed, two devices, a day", begun, "one listing a backend and day, then nothing", pages
    scene.close()


def _rings(folder: Path) -> Iterator[Row]:
    """What the records of listings cost by where they lie: requests, bytes and rounds while packs and backends change.

    Each of four backends in turn: a tenth of the packs is added and a tenth deleted; one device scrubs; the backend
    goes down, and the other device scrubs; it is back without a tenth of its packs. In a round, a day, both scrub.
    """
    plain, wall_ns = scrub_record.keepers, Machine.wall_ns
    days = [0]

    def by_order(heard: Sequence[Heard]) -> list[str]:
        return [h.place.name for h in sorted(heard, key=lambda h: h.place.backend_id)]

    def star(heard: Sequence[Heard], _h: Heard) -> list[str]:
        return by_order(heard)[:1]

    def chain(heard: Sequence[Heard], h: Heard) -> list[str]:
        order = by_order(heard)
        return order[order.index(h.place.name) + 1 :][:1]

    worst: dict[str, Turn] = {}
    ways: dict[str, Any] = {"ring": plain, "star": star, "chain": chain}

    def later_ns(self: Machine) -> int:
        return wall_ns(self) + days[0] * DAY_NS

    Machine.wall_ns = later_ns  # type: ignore[method-assign]
    try:
        for name, keepers in ways.items():
            scrub_record.keepers = keepers
            scene = Scene(folder / name, RING_PACKS, feed=False)
            for w in (scene.w, scene.other):
                w.configure("scrub.days", "0")  # what is read in turn costs the same in all
                w.scrub(full=True)
            turns = [_turn(scene, away, days) for away in NAMES]
            scene.close()
            worst[name] = Turn(*map(max, zip(*turns, strict=True)))
            total = Turn(*map(sum, zip(*turns, strict=True)))
            yield (
                f"{RING_PACKS:,} packs, records as a {name}",
                f"{worst[name].listings} listings again at worst, {total.listings} over 4 losses; {total.requests:,}"
                f" requests and {total.bytes / KB:,.0f} KB in all, {worst[name].requests:,} and"
                f" {worst[name].bytes / KB:,.0f} KB at worst; {worst[name].rounds} rounds at most",
                "2 rounds",
                worst[name].rounds <= 2,
            )
    finally:
        scrub_record.keepers = plain
        Machine.wall_ns = wall_ns  # type: ignore[method-assign]
    best = worst["ring"].listings == min(w.listings for w in worst.values())
    measured = ", ".join(f"{name} {w.listings}" for name, w in worst.items())
    yield "ring beside star and chain, listings again at worst", measured, "the ring's is the least", best


class Turn(NamedTuple):
    """What the loss and the return of one backend cost both devices together, on all backends.

    `listings`: made by the second device though the first one had listed that day; `rounds`: until all is there.
    """

    listings: int
    requests: int
    bytes: int
    rounds: int


def _turn(scene: Scene, away: str, days: list[int]) -> Turn:
    scene.add(RING_PACKS // 10)
    scene.drop(RING_PACKS // 10)
    days[0] += 2
    scene.take()
    scene.w.scrub()
    scene.set_down(away, True)
    listings = sum(b.how == "listed" for b in scene.other.scrub().backends)
    scene.set_down(away, False)
    taken = [*scene.take().values()]
    lost, rounds = scene.lose(away, 0.1), 0
    assert lost
    while scene.missing() and rounds < 9:
        days[0] += 2
        scene.take()
        scene.w.scrub()
        scene.other.scrub()
        taken += scene.take().values()
        rounds += 1
    return Turn(listings, sum(t[0] for t in taken), sum(t[1] for t in taken), rounds)
