"""StackSync's trace (section 5.2) through MetaSync: what goes over the wire besides the contents.

    python tests/benchmarks/stacksync.py [--batch 1,5,10,20,40] [--backends 3] [--operations N] [--seed N] [--check]

`stacksync_trace.py` makes the trace. Backends in memory, two copies of everything, encrypted; one long-lived
`Workspace` in this process pushes after every operation, or after every 5, 10, 20, 40 of them: that is what a process
that watches a folder does. Nobody else pushes meanwhile. Making the workspace is not counted.

Counted is what crosses the seam to the backends, in both directions: the bytes of all objects written and read, their
names, and the names and sizes that lists return; *control* is all of it but the bytes of packs that are stored: what is
read of packs, the bases of deltas say, is in it. What a protocol adds is
its own: a head of HTTP for each request and answer. The number of requests tells how much that is.

*Content* is what the operations bring: whole files, and the bytes that updates put in. Packs hold more: an update sends
the chunks that it touches, and there are trees, seals, tables of contents, and the padding that hides sizes.

Bars: control at most 12 MB one by one, and 4, 2, 1.2 and 0.7 MB in batches; packs at most 1.01 x all copies of the
content. `--check` clones the workspace at the end and compares the trees. Ends with status 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import stacksync_trace
from measure import differences
from peers import ALL
from stacksync_trace import Action, content_of, trace

from metasync.backends.api import Backend, BackendUrl, Listed
from metasync.backends.memory import forget_stores
from metasync.backends.wrappers.wrapper import Call, T, Wrapper
from metasync.codec import padme
from metasync.keys.slots import Cost
from metasync.objects.model import ObjectKind
from metasync.session import open_backend
from metasync.store import packs
from metasync.store.packs import SealedPack
from metasync.workspace import Workspace

BACKENDS, COPIES = 3, 2
PASSPHRASE = "a trace of StackSync"
CONTROL_BARS_MB = {1: 12.0, 5: 4.0, 10: 2.0, 20: 1.2, 40: 0.7}
PACKS_BAR = 1.01
SIZE_BYTES = 8  # of an object that a list tells
# What an object is, by its path below the workspace's folder on a backend.
KINDS = (
    ("packs", r"[0-9a-f]{32}/packs/"),
    ("log", r"[0-9a-f]{32}/(px|bl)/"),
    ("index", r"[0-9a-f]{32}/meta/"),
    ("configs, devices", r"[0-9a-f]{32}/const/"),
    ("hints", r"[0-9a-f]{32}/hint$"),
    ("heads", r"devices/"),
    ("floors", r"[0-9a-f]{32}/floor/"),
    ("births", r"[0-9a-f]{32}/birth$"),
)


@dataclass
class Traffic:
    """What went over the wire of one kind of object."""

    requests: Counter[str] = field(default_factory=Counter)
    names: int = 0
    up: int = 0
    down: int = 0


class Wire:
    """Counts the calls on all backends, by kind of object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kinds: dict[str, Traffic] = {}

    def note(self, call: Call, down: int) -> None:
        path = call.path.partition("/")[2]  # behind the workspace's folder
        kind = next((name for name, pattern in KINDS if re.match(pattern, path)), "other")
        with self._lock:
            traffic = self.kinds.setdefault(kind, Traffic())
            traffic.requests[call.kind] += 1
            traffic.names += len(call.path)
            traffic.up += call.up_bytes
            traffic.down += down

    def clear(self) -> None:
        with self._lock:
            self.kinds = {}

    @property
    def packs(self) -> int:
        """Bytes of packs, up."""
        return self.kinds.get("packs", Traffic()).up

    @property
    def control(self) -> int:
        """All the rest."""
        return sum(t.names + t.up + t.down for t in self.kinds.values()) - self.packs

    @property
    def requests(self) -> int:
        return sum(t.requests.total() for t in self.kinds.values())


class Counted(Wrapper):
    """A backend whose calls `wire` counts."""

    def __init__(self, inner: Backend, wire: Wire) -> None:
        super().__init__(inner)
        self._wire = wire

    def around(self, call: Call, do: Callable[[], T]) -> T:
        value, down = None, 0
        try:
            value = do()
            return value
        finally:
            if isinstance(value, bytes):
                down = len(value)
            elif isinstance(value, tuple):
                down = sum(len(e.name) + SIZE_BYTES for e in value if isinstance(e, Listed))
            self._wire.note(call, down)


class Packed:
    """What packs are made of, one copy: bytes of blobs, of trees and histories, of padding, and of all of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.packs = self.blobs = self.trees = self.padding = self.size = 0

    def seal(self, segments: Iterable[Any], *args: Any, **options: Any) -> SealedPack:
        """`seal_pack`, watched."""
        pack = _really_sealed(segments, *args, **options)
        kinds = {o.segment: o.kind for o in pack.footer.objects}
        stored = [(kinds[n] is ObjectKind.BLOB, s.stored_bytes) for n, s in enumerate(pack.footer.segments)]
        with self._lock:
            self.packs += 1
            self.blobs += sum(size for is_blob, size in stored if is_blob)
            self.trees += sum(size for is_blob, size in stored if not is_blob)
            self.size += len(pack.data)
        return pack

    def padme(self, size: int) -> int:
        padded = padme(size)
        with self._lock:
            self.padding += padded - size
        return padded

    @property
    def rest(self) -> int:
        """Heads, tables of contents and the seals around them."""
        return self.size - self.blobs - self.trees - self.padding


_really_sealed = packs.seal_pack


@dataclass(frozen=True)
class Result:
    """One session. `content`: bytes that the operations brought, as far as they were there at a push."""

    batch: int
    pushes: int
    content: int
    wire: Wire
    packed: Packed
    wall_s: float
    cpu_s: float

    @property
    def packs_ratio(self) -> float:
        return self.wire.packs / (COPIES * self.content)


def carry_out(action: Action, root: Path) -> None:
    path = root / action.path
    if action.kind == "remove":
        path.unlink()
    elif action.kind == "add":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(action.number, action.size))
    else:
        content = path.read_bytes()
        for edit in action.edits:
            content = edit.of(content)
        path.write_bytes(content)


def batches(actions: Sequence[Action], size: int) -> Iterator[Sequence[Action]]:
    return (actions[i : i + size] for i in range(0, len(actions), size))


def new_content(actions: Sequence[Action]) -> int:
    """Bytes of content that a push after these actions has to store: what is added and stays, and what edits put in."""
    removed = {a.number for a in actions if a.kind == "remove"}
    return sum(a.size + sum(len(e.data) for e in a.edits) for a in actions if a.number not in removed)


def session(actions: Sequence[Action], batch: int, work: Path, backends: int, check: bool) -> Result:
    """Plays the trace, a push after every `batch` actions."""
    wire, packed, really_opened = Wire(), Packed(), open_backend.opened

    def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
        return Counted(really_opened(name, url, create=create), wire)

    root = Path(tempfile.mkdtemp(dir=work))
    urls = [f"memory://{root.name}-{i}?name=b{i}" for i in range(backends)]
    cheap = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
    watched = (
        mock.patch.object(open_backend, "opened", opened),
        mock.patch.object(packs, "seal_pack", packed.seal),
        mock.patch.object(packs, "padme", packed.padme),
    )
    with contextlib.ExitStack() as stack:
        for patch in watched:
            stack.enter_context(patch)
        report = Workspace.init(
            root / "here", name="trace", backends=urls, passphrase=PASSPHRASE, replicas=COPIES, kdf=cheap
        )
        with report.workspace as w:
            wire.clear()
            pushes, wall_s, cpu_s = 0, 0.0, 0.0
            for some in batches(actions, batch):
                for action in some:
                    carry_out(action, root / "here")
                wall, cpu = time.perf_counter(), time.process_time()
                w.push()
                wall_s, cpu_s = wall_s + time.perf_counter() - wall, cpu_s + time.process_time() - cpu
                pushes += 1
    content = sum(map(new_content, batches(actions, batch)))
    if check:
        Workspace.clone(root / "there", name="trace", backends=urls, passphrase=PASSPHRASE).workspace.close()
        if wrong := differences(root / "here", root / "there", ALL):
            raise SystemExit(f"the clone differs in {len(wrong)} places: {wrong[:5]}")
    forget_stores()
    shutil.rmtree(root)
    return Result(batch, pushes, content, wire, packed, wall_s, cpu_s)


def by_kind(wire: Wire, pushes: int) -> str:
    """The table of what goes over the wire, by kind of object."""
    lines = [
        "| what | requests | a push | MB of names | MB up | MB down | control, MB | control a push, bytes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    control = {kind: t.names + t.down + (t.up if kind != "packs" else 0) for kind, t in wire.kinds.items()}
    for kind, t in sorted(wire.kinds.items(), key=lambda item: -control[item[0]]):
        requests = ", ".join(f"{n:,} {call}" for call, n in sorted(t.requests.items()))
        lines.append(
            f"| {kind} | {requests} | {t.requests.total() / pushes:.1f} | {t.names / 1e6:.2f} | {t.up / 1e6:.2f}"
            f" | {t.down / 1e6:.2f} | {control[kind] / 1e6:.2f} | {control[kind] / pushes:,.0f} |"
        )
    return "\n".join(lines)


def by_batch(results: Sequence[Result], barred: bool) -> tuple[str, list[str]]:
    """The table of all sessions, and which bars they missed."""
    missed = []
    lines = [
        "| a push | pushes | control, MB | bar | a push, KB | requests a push | push, ms (CPU) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        bar, control = CONTROL_BARS_MB.get(r.batch) if barred else None, r.wire.control / 1e6
        if bar is not None and control > bar:
            missed.append(f"batches of {r.batch}: control of {control:.2f} MB, at most {bar} wanted")
        lines.append(
            f"| {r.batch} | {r.pushes} | {control:.2f} | {bar or '-'} | {control * 1e3 / r.pushes:.1f}"
            f" | {r.wire.requests / r.pushes:.1f} | {r.wall_s / r.pushes * 1e3:.0f} ({r.cpu_s / r.pushes * 1e3:.0f}) |"
        )
    lines += [
        "",
        "Packs, of one copy: what they hold above the content, in per cent of it.",
        "",
        "| a push | content, MB | packs | whole chunks | trees | tables, seals | padding | packs / content |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        p = r.packed
        if barred and r.packs_ratio > PACKS_BAR:
            missed.append(f"batches of {r.batch}: packs are {r.packs_ratio:.4f} of the content, wanted {PACKS_BAR}")
        shares = (f"{100 * part / r.content:.2f}" for part in (p.blobs - r.content, p.trees, p.rest, p.padding))
        lines.append(f"| {r.batch} | {r.content / 1e6:.2f} | {p.packs} | {' | '.join(shares)} | {r.packs_ratio:.4f} |")
    return "\n".join(lines), missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default=",".join(map(str, CONTROL_BARS_MB)), help="operations a push")
    parser.add_argument("--backends", type=int, default=BACKENDS)
    parser.add_argument("--operations", type=int, help="only so many of the trace; bars do not count then")
    parser.add_argument("--seed", type=int, default=stacksync_trace.SEED)
    parser.add_argument("--check", action="store_true", help="clone at the end, and compare")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()), help="where the folders lie meanwhile"
    )
    options = parser.parse_args()
    os.environ["METASYNC_KEYRING"] = "off"
    actions = trace(options.seed)[: options.operations]
    kinds, added = Counter(a.kind for a in actions), sum(a.size for a in actions)
    print(
        f"{kinds['add']} adds of {added / 1e6:.2f} MB, {kinds['update']} updates of"
        f" {sum(len(e.data) for a in actions for e in a.edits) / 1e3:.1f} KB, {kinds['remove']} removes;"
        f" seed {options.seed}, {options.backends} backends, {COPIES} copies\n"
    )
    results = []
    for batch in map(int, options.batch.split(",")):
        results.append(session(actions, batch, options.work, options.backends, options.check))
        print(f"{batch} a push:\n\n{by_kind(results[-1].wire, results[-1].pushes)}\n", flush=True)
    table, missed = by_batch(results, barred=options.operations is None)
    print(table)
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
