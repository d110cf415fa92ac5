"""A large pack index in memory: what it takes to open it, to ask it, and to store one that has more.

The index is made by the product's own encoder, and lies in the cache of a device. Each step is a process of its own, in
which the kernel's figure of the most memory that was resident (`VmHWM`) begins anew. So it counts all of a process that
holds an index, the interpreter and its modules too. Names and ids are random, as hashes are. Linux only.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from metasync.codec import u32
from metasync.consensus import Ref
from metasync.local.state import LocalDb
from metasync.local.state_keys import META_KIND
from metasync.session import write_index
from metasync.session.write_index import AgreedIndexes
from metasync.store import index as pack_index
from metasync.store.collection import plan
from metasync.store.index import Index, IndexRoot, PackRecord, RootItem
from metasync.store.pack_format import HEADER_BYTES, Segment
from metasync.transfer.copies import placed_bytes

MB = 1_000_000
BAR_MB = 200
BARS_MB = {"plan": 300, "merge": 0}  # a plan holds sets of objects, too, and a merge what it makes; 0: none
ASKED = 100_000
MERGED_MB = 40
SEGMENT_RAW = 256 << 10
Row = tuple[str, str, str, bool]


class Shape(NamedTuple):
    """An index: packs, segments in each, objects in each, and how many packs one segment of the index lists."""

    packs: int
    segments: int
    objects: int
    together: int

    def __str__(self) -> str:
        return f"{self.packs:,} packs of {self.segments}, {self.packs * self.objects:,} objects"


SHAPES = (Shape(3_000, 16, 333, 600), Shape(100_000, 16, 100, 2_000), Shape(1_000_000, 1, 4, 50_000))


def rows(folder: Path, packs: int = 0) -> Iterator[Row]:
    """Yields (what, measured, bar, whether it is within). `packs`: the shapes with so many alone."""
    for shape in SHAPES:
        if packs not in (0, shape.packs):
            continue
        at = folder / str(shape.packs)
        at.mkdir()
        made = child(at, "make", shape)
        yield f"{shape}", f"{made['segments']} segments, {made['mb']:,.0f} MB stored", "", True
        for step, what in STEPS.items():
            told = child(at, step, shape)
            bar_mb = BARS_MB.get(step, BAR_MB)
            within = not bar_mb or told["peak_mb"] <= bar_mb
            bar = f"{bar_mb} MB" if bar_mb else ""
            yield f"{what[0]}", f"{told['told']}, {told['cpu_s']:.1f} s CPU, {told['peak_mb']:,.0f} MB", bar, within


def child(folder: Path, step: str, shape: Shape) -> dict[str, Any]:
    """Runs a step in a process of its own. -> what it prints"""
    path = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parents[1])])
    argv = [sys.executable, __file__, str(folder), step, *map(str, shape)]
    out = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE)
    told: dict[str, Any] = json.loads(out.stdout)
    return told


# --- in a process of its own


def records(shape: Shape, first: int, count: int) -> Iterator[tuple[PackRecord, bytes]]:
    draw = random.Random(first)
    for _ in range(count):
        segments = tuple(Segment(SEGMENT_RAW // 2, SEGMENT_RAW, draw.randbytes(32)) for _ in range(shape.segments))
        size = HEADER_BYTES + shape.segments * SEGMENT_RAW // 2 + 100
        header = b"\1\0" + u32(1) + draw.randbytes(32)
        objects = sorted(
            pack_index.OBJECT.pack(draw.randbytes(32), 1, 0, n % shape.segments, n * 100, 99)
            for n in range(shape.objects)
        )
        record = PackRecord(draw.randbytes(32), 1, size, header, segments, ((1, draw.randbytes(16)),))
        yield record, b"".join(objects)


def make(folder: Path, shape: Shape) -> dict[str, Any]:
    items = []
    with LocalDb.open(folder / "state.db") as db:
        for first in range(0, shape.packs, shape.together):
            segment = pack_index.segment_sorted(records(shape, first, min(shape.together, shape.packs - first)))
            data = pack_index.encode_segment(segment)
            name = sha256(data).digest()
            items.append(RootItem(pack_index.Ref(1, name), len(data), len(segment), len(segment.packs)))
            db.put_objects([(name, META_KIND, data)])
        root = pack_index.encode_root(IndexRoot(tuple(items)))
        db.put_objects([(sha256(root).digest(), META_KIND, root)])
    (folder / "root").write_bytes(sha256(root).digest())
    return {"segments": len(items), "mb": sum(i.size for i in items) / MB}


class Open:
    """The index in the cache of a device."""

    def __init__(self, folder: Path) -> None:
        self.db = LocalDb.open(folder / "state.db")
        nobody: Any = Nobody()
        self.indexes = AgreedIndexes(self.db, nobody, nobody, nobody)
        name = (folder / "root").read_bytes()
        self.root = pack_index.decode_root(self.db.get_object(name) or b"")
        self.index: Index = self.indexes.of(Ref(1, name))
        assert self.index.segments


class Nobody:
    """Stands for the acceptors: what is stored there goes nowhere."""

    def put_index(self, _base: Any, parts: Sequence[Callable[[], bytes]], make_root: Any, *, generation: int) -> Any:
        refs = [Ref(generation, sha256(part()).digest()) for part in parts]
        root = make_root(refs)
        return [*refs, Ref(generation, sha256(root).digest())], root

    @contextmanager
    def beside(self, put: Any) -> Iterator[Callable[[], Any]]:
        yield lambda: put


def opened(at: Open, _: Shape) -> str:
    return f"{len(at.index.segments)} segments"


def found(at: Open, _: Shape) -> str:
    draw, index = random.Random(5), at.index
    ids = []
    for _ in range(ASKED):
        s = draw.choice(index.segments)
        ids.append(bytes(s.objects[(o := draw.randrange(len(s)) * pack_index.OBJECT.size) : o + 32]))
    began = time.process_time()
    assert all(map(index.find, ids))
    known = time.process_time()
    assert not any(map(index.find, (draw.randbytes(32) for _ in range(ASKED))))
    unknown = time.process_time()
    return f"{(known - began) / ASKED * 1e6:.1f} us an object that is there, {(unknown - known) / ASKED * 1e6:.1f} not"


def inside(at: Open, shape: Shape) -> str:
    began = time.process_time()
    objects = sum(len(at.index.inside(record)) for record in at.index.packs().values())
    assert objects == shape.packs * shape.objects
    return f"{(time.process_time() - began) / shape.packs * 1e6:.0f} us a pack"


def summed(at: Open, shape: Shape) -> str:
    from metasync.store.placement import PARTITIONS, Placement, Target

    placement = Placement([Target(bytes([n]) * 16, 1 << 40) for n in range(3)], copies=2, partitions=PARTITIONS)
    began = time.process_time()
    assert sum(placed_bytes(at.index.packs().values(), placement).values())
    took = time.process_time() - began
    named = at.index.packs()
    assert (1, bytes(32)) not in named
    assert len(named) == shape.packs
    return f"{took / shape.packs * 1e6:.1f} us a pack"


def planned(at: Open, shape: Shape) -> str:
    from metasync.local.spill import IdSet

    marked = IdSet()
    for s in at.index.segments:
        for object_id in s.ids(pack_index.ObjectKind.BLOB):
            if object_id[0] >= 128:
                marked.add(object_id)
    found = plan(at.index, marked)
    return f"{len(found.sparse):,} packs to be packed anew"


def committed(at: Open, shape: Shape) -> str:
    new = pack_index.segment_sorted(records(shape, shape.packs, 1))
    began = time.process_time()
    state: Any = Committed(1)
    assert at.indexes.store(state, at.root, at.index.segments, [new]) is not None
    return f"{(time.process_time() - began) * 1e3:.1f} ms"


class Committed(NamedTuple):
    gen: int


def merged(at: Open, _: Shape) -> str:
    some, size = [], 0
    for item, segment in zip(at.root.items, at.index.segments, strict=True):
        if size + item.size > MERGED_MB * MB:
            break
        some.append(segment)
        size += item.size
    began = time.process_time()
    one = write_index.merge(some, final=False)
    data = pack_index.encode_segment(one)
    return f"{len(some)} segments into one of {len(data) / MB:.0f} MB in {time.process_time() - began:.1f} s"


Step = Callable[[Open, Shape], str]
STEPS: dict[str, tuple[str, Step]] = {
    "open": ("opened", opened),
    "find": (f"asked for {2 * ASKED:,} objects", found),
    "inside": ("asked what is in each pack", inside),
    "sum": ("all packs summed by backend", summed),
    "plan": ("a collection planned, half of all objects dead", planned),
    "commit": ("a push of one pack", committed),
    "merge": ("consolidated", merged),
}


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / MB


def main(folder: str, step: str, *numbers: str) -> None:
    shape = Shape(*map(int, numbers))
    if step == "make":
        print(json.dumps(make(Path(folder), shape)))
        return
    told = STEPS[step][1](Open(Path(folder)), shape)
    print(json.dumps({"told": told, "cpu_s": time.process_time(), "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
