"""Data that move after the backends changed, beside what the line of the slowest receiving backend takes.

A tree of random bytes lies on folders in memory. Each backend's line is limited by the program's own `limit.up.NAME`,
so that the bound is known: the bytes that a backend receives, by its rate. What a change does before the move (its
agreement) is not counted; the move's own trim is. `MB` of the tree: 470 unless told (`ROWS=moving=120`).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from metasync.config import NO_LIMIT as UNLIMITED
from metasync.config import Acceptor, BackendEntry, Config, RedundancyClass, Replicate, Storage
from metasync.keys.slots import Cost
from metasync.moving import surplus
from metasync.moving.surplus import Freed, free
from metasync.reports.backends import RebalanceReport
from metasync.store.moves import Places
from metasync.store.placement import placement_of
from metasync.workspace import Workspace

CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
PASSPHRASE = "correct horse battery staple"
RATE_BYTES = 20 << 20  # a second, to each backend
FILE_BYTES = 1 << 20
SLACK = 1.15
POINT = 0.01  # of all data, beyond what exact shares would move
EVERY = 16  # so many-th partition is looked at
Row = tuple[str, str, str, bool]


def rows(folder: Path, megabytes: int = 470) -> Iterator[Row]:
    """The rows of the table."""
    yield from _mapping()
    os.environ.update(METASYNC_KEYRING="off", METASYNC_PASSPHRASE=PASSPHRASE)
    for name in "abcde":
        (folder / name).mkdir()
    rng = random.Random(7)
    urls = [f"file://{folder}/{name}?name={name}&capacity=64GiB" for name in "abcde"]
    made = Workspace.init(
        folder / "tree", name="docs", backends=urls[:4], passphrase=PASSPHRASE, replicas=2, by_space=False, kdf=CHEAP
    )
    tree = folder / "tree"
    with made.workspace as w:
        w.configure("upkeep", "off")
        for n in range(megabytes):
            path = tree / f"d{n % 16}" / f"f{n}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(rng.randbytes(FILE_BYTES))
        w.push("all")
    changes: list[tuple[str, Callable[[Workspace], object]]] = [
        ("copies 2 to 3", lambda w: w.set_copies(3, passphrase=PASSPHRASE)),
        ("copies 3 to 2", lambda w: w.set_copies(2, passphrase=PASSPHRASE)),
        ("add a fifth of five", lambda w: w.backend_add(urls[4], passphrase=PASSPHRASE)),
        ("remove one of five", lambda w: w.backend_remove("a", passphrase=PASSPHRASE)),
        ("one of four gets twice its share", lambda w: w.backend_set("b", capacity_bytes=128 << 30)),
        ("a second change, of copies 2 to 3", lambda w: w.set_copies(3, passphrase=PASSPHRASE)),
    ]
    for what, change in changes:
        with Workspace.open(tree) as w:
            change(w)
            for b in w.backends():
                w.configure(f"limit.up.{b.name}", f"{RATE_BYTES}")
        with Workspace.open(tree) as w:  # a limit holds at once for who begins
            yield from _move(w, what)


def _move(w: Workspace, what: str) -> Iterator[Row]:
    """Moves and frees, and tells the time of each."""
    freeing: list[float] = []

    def noted(mover: surplus.Mover) -> Freed:
        freeing.append(time.perf_counter())
        return free(mover)

    surplus.free = noted
    try:
        began = time.perf_counter()
        report = w.rebalance()
        ended = time.perf_counter()
    finally:
        surplus.free = free
    if not report.is_whole:
        raise RuntimeError(f"{what}: {report}")
    moved_s, freed_s = freeing[0] - began, ended - freeing[0]
    bound_s = max((x.bytes for x in report.sent or report.freed), default=0) / RATE_BYTES
    told = f"{_total(report) / 2**20:.0f} MiB moved in {moved_s:.1f} s, surplus gone {freed_s:.1f} s later"
    bar_s = max(SLACK * bound_s, 1.0)  # below a second it is the agreement that is measured
    bar = f"{bar_s:.1f} s, that is {SLACK} times {bound_s:.1f} s at {RATE_BYTES >> 20} MiB/s; the same again"
    yield what, told, bar, moved_s <= bar_s and freed_s <= bar_s


def _total(report: RebalanceReport) -> int:
    return sum(x.bytes for x in report.sent)


def _mapping() -> Iterator[Row]:
    """The part of all data that a change moves, beyond what exact shares would."""
    rng = random.Random(11)
    for n in range(3, 9):
        worst = -1.0
        for change in ("add", "remove"):
            entries = [_entry(rng) for _ in range(n)]
            old = _config(entries)
            new = old.with_backends([*entries, _entry(rng)] if change == "add" else entries[1:])
            before, after = placement_of(old).expected_shares(), placement_of(new).expected_shares()
            ideal = float(sum(max(0, share - before.get(i, 0)) for i, share in after.items()))
            places, looked_at = Places(new, old), range(0, old.mapping.partitions, EVERY)
            moved = sum(len(places.receivers(p.to_bytes(8, "big"))) for p in looked_at) / len(looked_at)
            worst = max(worst, moved - ideal)
        yield f"moves, {n} unequal backends", f"ideal {worst * 100:+.2f} points", "ideal + 1 point", worst <= POINT


def _entry(rng: random.Random) -> BackendEntry:
    store, acceptor = (
        Storage(rng.randbytes(16), rng.randbytes(32)),
        Acceptor(rng.randbytes(16), "log", rng.randbytes(32)),
    )
    name = rng.randbytes(8).hex()
    return BackendEntry(
        rng.randbytes(16), name, "file", rng.randrange(1, 50) << 30, rng.randbytes(32), (store,), acceptor
    )


def _config(entries: list[BackendEntry]) -> Config:
    config = Config((), (RedundancyClass(UNLIMITED, Replicate(2)),))
    return replace(config.with_backends(entries))
