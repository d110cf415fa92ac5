"""What changes of files cost with deltas, beside bars. `make bench-deltas`.

    python tests/benchmarks/deltas.py [--only append,updates,tar,document,sqlite,clone,never-worse] [--scale 1.0]

Three backends in memory, two copies of everything, encrypted; long-lived `Workspace`s in this process. Counted is what
crosses the seam to the backends, both ways: bytes of objects, their names, and what lists return (`stacksync.Counted`).
A protocol's own heads come on top of that: the number of requests tells how much. `--scale` makes documents and the
number of pushes smaller; bars that are no ratios do not count then.

    append       one byte is appended to a file, 1,024 times at one a second, in batches of 30 s
    updates      the 72 updates of StackSync's trace, a push each; other pushes of the trace are not counted
    tar          ten states of this repository's own history as tar files, each in the place of the one before; a device
                 pushes, another one pulls
    document     a text of 1 MB in lines of 80 random characters; two users change a line each and push, 120 times
    sqlite       a database of 200 MB; 100 random rows are updated, 50 times. A changed page is one whose bytes differ
    clone        1,000 files of which each is a delta, cloned; and the same files pushed whole: the CPU's time with that
                 of a line of 100 Mbit/s
    never-worse  each of the workloads below with and without the base cache: bytes; and the CPU's time with that of
                 a line of 100 Mbit/s for these bytes

CPU seconds are those of this process, the median of `--runs`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from stacksync import BACKENDS, COPIES, Counted, Wire, carry_out
from stacksync_trace import trace

from metasync.backends.api import Backend, BackendUrl
from metasync.backends.memory import forget_stores
from metasync.errors import MetaSyncError
from metasync.keys.slots import Cost
from metasync.session import open_backend
from metasync.transfer.upload import Upload
from metasync.workspace import Workspace

PASSPHRASE = "what changes cost"
RELEASES, COMMITS_APART = 10, 20
PAGE_BYTES = 4096
LINE_BYTES_PER_S = 12.5e6  # a line of 100 Mbit/s, which all backends share
SMALL_SECONDS = 1024
BATCH_S = 30


@dataclass
class World:
    """The backends, the devices, and what is counted of both."""

    root: Path
    wire: Wire = field(default_factory=Wire)
    devices: list[Workspace] = field(default_factory=list)
    deltas: int = 0
    delta_bytes: int = 0
    cpu_s: float = 0.0

    @property
    def urls(self) -> list[str]:
        return [f"memory://{self.root.name}-{i}?name=b{i}" for i in range(BACKENDS)]

    def join(self) -> Workspace:
        """One device more; the first one founds the workspace."""
        where, number = self.root / f"device{len(self.devices)}", len(self.devices)
        if number:
            w = Workspace.clone(
                where, name="w", backends=self.urls, passphrase=PASSPHRASE, device_name=f"d{number}"
            ).workspace
        else:
            cheap = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
            w = Workspace.init(
                where, name="w", backends=self.urls, passphrase=PASSPHRASE, replicas=COPIES, kdf=cheap
            ).workspace
        self.devices.append(w)
        return w

    def timed(self, do: Callable[[], Any]) -> None:
        began = time.process_time()
        do()
        self.cpu_s += time.process_time() - began

    def begin(self) -> None:
        """Counts from here on."""
        self.wire.clear()
        self.deltas = self.delta_bytes = 0
        self.cpu_s = 0.0

    @property
    def traffic(self) -> int:
        """All bytes, both ways."""
        return self.wire.control + self.wire.packs

    @property
    def stored(self) -> int:
        """Bytes of packs that one replica got."""
        return self.wire.packs // COPIES


@contextlib.contextmanager
def world(work: Path, *, cache: bool = True) -> Iterator[World]:
    """`cache`: whether old chunks are kept, and deltas made."""
    out = World(Path(tempfile.mkdtemp(dir=work)))
    really_opened, add = open_backend.opened, Upload.add

    def opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
        return Counted(really_opened(name, url, create=create), out.wire)

    def adding(self: Upload, kind: Any, object_id: bytes, data: bytes, delta: Any = None) -> None:
        if delta is not None and object_id not in self:
            out.deltas += 1
            out.delta_bytes += len(data)
        add(self, kind, object_id, data, delta)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(open_backend, "opened", opened))
        stack.enter_context(mock.patch.object(Upload, "add", adding))
        try:
            first = out.join()
            if not cache:
                first.configure("base-cache-mb", "0")
            yield out
        finally:
            for w in out.devices:
                w.close()
            forget_stores()
            shutil.rmtree(out.root)


class Told(NamedTuple):
    """A figure beside its bar."""

    what: str
    value: float
    bar: float
    unit: str
    note: str

    @property
    def missed(self) -> bool:
        return self.value > self.bar

    def row(self) -> str:
        verdict = "**missed**" if self.missed else "met"
        return f"| {self.what} | {self.value:,.3g} {self.unit} | {self.bar:,.3g} | {verdict} | {self.note} |"


def append(work: Path, scale: float) -> Iterator[Told]:
    with world(work) as w:
        (first,) = w.devices
        path = first.directory / "log"
        path.write_bytes(b"")
        first.push()
        w.begin()
        pushes = 0
        for at in range(0, int(SMALL_SECONDS * scale), BATCH_S):
            with path.open("ab") as f:
                f.write(b"x" * min(BATCH_S, SMALL_SECONDS - at))
            w.timed(first.push)
            pushes += 1
        note = f"{pushes} pushes, {w.wire.requests / pushes:.1f} requests each"
        yield Told("one byte 1,024 times, batches of 30 s", w.traffic / 1e6, 1.0, "MB", note)


def updates(work: Path, scale: float) -> Iterator[Told]:
    """Pushes before each update are not counted, but for the first in which its file comes."""
    actions = trace()[: int(1240 * scale)]
    stored = deltas = count = down = 0
    with world(work) as w:
        (first,) = w.devices
        for n, action in enumerate(actions):
            is_update = action.kind == "update"
            if is_update:
                first.push()
                w.begin()
            carry_out(action, first.directory)
            if is_update or n % 40 == 39:
                first.push()
            if is_update:
                stored, deltas, count = stored + w.stored, deltas + w.delta_bytes, count + w.deltas
                down += w.wire.kinds["packs"].down if "packs" in w.wire.kinds else 0
        note = f"{count} deltas; {down / 1e3:.1f} KB of bases fetched"
        yield Told("StackSync's 72 updates, a replica", stored / 1e3, 220, "KB", note)
        yield Told("of which deltas", deltas / 1e3, 30, "KB", "")


def releases(count: int) -> Iterator[bytes]:
    """Tar files of this repository's history, the oldest first."""
    top = HERE.parents[1]
    git = ["git", "-C", str(top)]
    commits = subprocess.run([*git, "rev-list", "--first-parent", "HEAD"], capture_output=True, text=True, check=True)
    some = commits.stdout.split()[: count * COMMITS_APART : COMMITS_APART][::-1]
    for commit in some:
        yield subprocess.run([*git, "archive", "--format=tar", commit], capture_output=True, check=True).stdout


def alone(work: Path, data: bytes) -> int:
    """Bytes of packs a replica of a file in a workspace of its own."""
    with world(work, cache=False) as w:
        (w.devices[0].directory / "source.tar").write_bytes(data)
        w.begin()
        w.devices[0].push()
        return w.stored


def tar(work: Path, scale: float) -> Iterator[Told]:
    some = list(releases(max(2, int(RELEASES * scale))))
    whole = sum(alone(work, data) for data in some[1:])
    up = down = 0
    with world(work) as w:
        first = w.devices[0]
        paths = [first.directory / "source.tar"]
        for n, data in enumerate(some):
            paths[0].write_bytes(data)
            w.begin()
            first.push()
            if not n:
                paths.append(w.join().directory / "source.tar")
                continue
            up += w.stored
            w.begin()
            w.devices[1].pull()
            if paths[1].read_bytes() != data:
                raise SystemExit("a pull brought something else")
            down += w.wire.kinds["packs"].down
    note = f"{len(some)} of {len(some[0]) / 1e6:.1f} MB; whole, packed: {whole / 1e6:.1f} MB"
    yield Told("tar of a source tree, up, to whole", up / whole, 0.33, "", note)
    yield Told("the same, down", down / whole, 0.33, "", "")


def line(draw: random.Random) -> bytes:
    return draw.randbytes(40).hex().encode()[:79] + b"\n"


def document(work: Path, scale: float) -> Iterator[Told]:
    draw = random.Random(1)
    lines = [line(draw) for _ in range(int(12_500 * scale))]
    rounds, conflicts = int(120 * scale), 0
    with world(work) as w:
        first = w.devices[0]
        (first.directory / "text.txt").write_bytes(b"".join(lines))
        first.push()
        other = w.join()
        w.begin()
        written = []
        for n in range(rounds):
            for who, device in enumerate((first, other)):
                path = device.directory / "text.txt"
                here = path.read_bytes().splitlines(keepends=True)
                written.append(b"%d by %d " % (n, who) + line(draw))
                here[draw.randrange(len(here))] = written[-1]
                path.write_bytes(b"".join(here))
                with contextlib.suppress(MetaSyncError):
                    device.push()
        traffic = w.traffic
        first.push()
        other.push()
        first.pull()
        texts = [p.read_bytes() for p in first.directory.glob("text*")]
        conflicts = len(texts) - 1
        replaced = sum(not any(one in text for text in texts) for one in written)
        note = f"{w.deltas} deltas, {conflicts} conflict copies; {replaced} lines written over by later edits"
        yield Told("1 MB of text, two users, 120 pushes each", traffic / 1e6, 25, "MB", note)


def database(path: Path, size: int) -> int:
    """Makes a database of about so many bytes. -> its rows."""
    draw = random.Random(2)
    rows = size // 440
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma page_size = 4096")
        db.execute("pragma journal_mode = off")
        db.execute("create table t (id integer primary key, name text, data blob)")
        db.executemany("insert into t values (?, ?, ?)", ((n, f"row {n}", draw.randbytes(400)) for n in range(rows)))
        db.commit()
    return rows


def updated(path: Path, rows: int, draw: random.Random) -> int:
    """Updates 100 rows. -> how many pages differ."""
    before = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma journal_mode = off")
        for _ in range(100):
            db.execute("update t set data = ? where id = ?", (draw.randbytes(400), draw.randrange(rows)))
        db.commit()
    after = path.read_bytes()
    return sum(before[at : at + PAGE_BYTES] != after[at : at + PAGE_BYTES] for at in range(0, len(after), PAGE_BYTES))


def sqlite(work: Path, scale: float) -> Iterator[Told]:
    draw = random.Random(3)
    with world(work) as w:
        (first,) = w.devices
        path = first.directory / "data.db"
        rows = database(path, int(200e6 * scale))
        first.push()
        w.begin()
        pages, pushes = 0, max(2, int(50 * scale))
        for _ in range(pushes):
            pages += updated(path, rows, draw)
            w.timed(first.push)
        note = f"{w.deltas} deltas, {w.stored / 1e6:.1f} MB a replica, {w.cpu_s / pushes:.1f} s of CPU a push"
        yield Told("SQLite, 100 rows a push, to changed pages", w.stored / (pages * PAGE_BYTES), 2.0, "", note)


def clone_s(work: Path, files: int, cache: bool, runs: int) -> tuple[float, float]:
    """Seconds of a clone with the line, and CPU seconds alone."""
    with world(work, cache=cache) as w:
        (first,) = w.devices
        for turn in range(2):
            for n in range(files):
                data = random.Random(n).randbytes(100_000)
                (first.directory / f"file{n}").write_bytes(data + b"more" * 8 * turn)
            if turn or cache:
                first.push()
        if cache and w.deltas < files // 2:
            raise SystemExit("too few files could be stored as deltas")
        took = []
        for _ in range(runs):
            w.begin()
            w.timed(w.join)
            took.append((w.cpu_s + w.traffic / LINE_BYTES_PER_S, w.cpu_s))
        return statistics.median(t for t, _ in took), statistics.median(cpu for _, cpu in took)


def clone(work: Path, scale: float, runs: int = 3) -> Iterator[Told]:
    files = int(1000 * scale)
    with mock.patch("metasync.sync.replaced_chunks.NEW_SMALL_MAX", files):
        (deltas, cpu_s), (whole, whole_cpu_s) = (clone_s(work, files, cache, runs) for cache in (True, False))
    note = f"CPU alone: {cpu_s:.2f} to {whole_cpu_s:.2f} s"
    yield Told(f"clone of {files:,} deltas, to whole", deltas / whole, 1.15, "", note)


def photos(draw: random.Random, size: int) -> Iterator[bytes]:
    while True:
        yield draw.randbytes(size)


def grown(draw: random.Random, size: int) -> Iterator[bytes]:
    data = b""
    while True:
        data += b"".join(line(draw) for _ in range(size // 800))
        yield data


def scattered(draw: random.Random, size: int) -> Iterator[bytes]:
    """A byte in every KB changes: deltas save little, and cost."""
    data = bytearray(draw.randbytes(size))
    while True:
        yield bytes(data)
        for at in range(0, size, 1024):
            data[at + draw.randrange(1024) if at + 1024 < size else at] = draw.randrange(256)


def edited(draw: random.Random, size: int) -> Iterator[bytes]:
    data = bytearray(draw.randbytes(size))
    while True:
        yield bytes(data)
        at = draw.randrange(size)
        data[at:at] = b"fourteen bytes"


LOADS = (photos, grown, scattered, edited)


def played(work: Path, kind: Any, size: int, pushes: int, cache: bool) -> tuple[int, float]:
    with world(work, cache=cache) as w:
        (first,) = w.devices
        versions = kind(random.Random(1), size)
        w.begin()
        for _ in range(pushes):
            (first.directory / "file").write_bytes(next(versions))
            w.timed(first.push)
        return w.traffic, w.cpu_s


def never_worse(work: Path, scale: float, runs: int = 3) -> Iterator[Told]:
    size, pushes = int(20e6 * scale), 6
    for kind in LOADS:
        whole, deltas = [], []
        for _ in range(runs):  # in turn, so that both meet the same machine
            whole.append(played(work, kind, size, pushes, False))
            deltas.append(played(work, kind, size, pushes, True))
        (up, with_s), (up_whole, whole_s) = (
            (statistics.median(t for t, _ in some), statistics.median(s for _, s in some)) for some in (deltas, whole)
        )
        yield Told(f"{kind.__name__}: bytes, to whole", up / up_whole, 1.02, "", f"{up / 1e6:.2f} MB")
        lines = (with_s + up / LINE_BYTES_PER_S) / (whole_s + up_whole / LINE_BYTES_PER_S)
        note = f"CPU alone: {with_s:.2f} to {whole_s:.2f} s"
        yield Told(f"{kind.__name__}: time, to whole", lines, 1.02, "", note)


PARTS: dict[str, Callable[[Path, float], Iterator[Told]]] = {
    "append": append,
    "updates": updates,
    "tar": tar,
    "document": document,
    "sqlite": sqlite,
    "clone": clone,
    "never-worse": never_worse,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(words)
    os.environ["METASYNC_KEYRING"] = "off"
    print("| what | value | bar | | |\n| --- | ---: | ---: | --- | --- |")
    missed = []
    for name in options.only.split(","):
        for told in PARTS[name](options.work, options.scale):
            print(told.row(), flush=True)
            missed += [told.what] if told.missed else []
    if missed and options.scale == 1.0:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
