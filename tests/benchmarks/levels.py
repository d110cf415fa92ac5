"""What compressing by the speed of the lines is worth in a whole push: a source tree, with it and without.

    METASYNC_S3_SERVER=.servers/bin/versitygw python tests/benchmarks/levels.py [--tree FOLDER] [--rate 1e6] [--runs 3]

Three S3 servers behind the shaping proxy, 80 ms away, each with a line of `--rate` bytes a second; two copies. Each
push goes to a workspace of its own, whose lines a push of bytes that do not shrink has measured before. The two take
turns; figures are medians. *Fullest line*: what the line that had most to carry carried; by that the time goes, and it
depends on which backends the packs fall to.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from far import PASSPHRASE, ROUND_TRIP_S, Far, running
from shaping import Shape

from metasync.keys.slots import Cost
from metasync.transfer.levels import Levels
from metasync.workspace import Workspace

MEASURED_BYTES = 6 << 20  # pushed first: several packs for each line
KINDS = {"by line speed": Levels.level, "agreed level": lambda levels: levels._base}


class Row(NamedTuple):
    """One push: MB of content, seconds, CPU seconds, MB sent, and those of the fullest line."""

    content: float
    seconds: float
    cpu: float
    sent: float
    fullest: float

    def __str__(self) -> str:
        took = f"{self.content:.1f} MB, {self.seconds:.2f} s, {self.cpu:.2f} s of CPU"
        return f"{took}, {self.sent:.2f} MB sent, fullest line {self.fullest:.2f}"


def copy_sources(tree: Path, to: Path) -> int:
    """Copies the Python sources of a tree, but for what was installed into it. -> bytes."""
    size = 0
    for path in tree.rglob("*.py"):
        inside = path.relative_to(tree)
        if "site-packages" not in inside.parts and path.is_file():
            (to / inside).parent.mkdir(parents=True, exist_ok=True)
            size += (to / inside).write_bytes(path.read_bytes())
    return size


def push(far: Far, name: str, tree: Path) -> Row:
    """Pushes the tree to a workspace of this name."""
    folder = far.work / name
    folder.mkdir()
    cost = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
    made = Workspace.init(folder, name=name, backends=far.urls(name), passphrase=PASSPHRASE, kdf=cost)
    with made.workspace as w:
        (folder / "measured").write_bytes(os.urandom(MEASURED_BYTES))
        w.push()
        size = copy_sources(tree, folder)
        before, began, cpu = far.proxy.counted(), time.perf_counter(), time.process_time()
        w.push()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        sent = [now.since(then).up_bytes for now, then in zip(far.proxy.counted(), before, strict=True)]
    return Row(size / 1e6, seconds, cpu, sum(sent) / 1e6, max(sent) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--rate", type=float, default=1e6)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    os.environ["METASYNC_KEYRING"] = "off"
    shapes = {name: Shape(ROUND_TRIP_S, options.rate, options.rate) for name in "abc"}
    rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as work, running(shapes, Path(work)) as far:
        os.environ.update(far.keys)
        for n in range(options.runs):
            for number, (kind, level) in enumerate(KINDS.items()):
                Levels.level = level  # type: ignore[method-assign]
                rows[kind].append(push(far, f"run-{n}-{number}", options.tree))
                print(f"{kind:15} {rows[kind][-1]}", flush=True)
    for kind, some in rows.items():
        print(f"{kind:15} medians: {Row(*map(statistics.median, zip(*some, strict=True)))}")


if __name__ == "__main__":
    main()
