"""What a small change costs: requests, HTTP bytes both ways and seconds of one file of 1 KB that is pushed.

    METASYNC_S3_SERVER=.servers/bin/versitygw python tests/benchmarks/small.py [--pushes 20] [--ignore] [--no-check]

Three S3 servers behind the shaping proxy, two copies of everything: near, without delay, and far, 80 ms and 5 MB/s.
*Warm* is a `Workspace` of this process that pushes again and again, *cold* a process for each push. A push is counted
to its end and SETTLE_S longer, for calls that nobody waits for. All figures are medians; what the
requests are about is told as means, for some come with one push of many.

`--ignore`: the folder has a `.metasyncignore`. Ends with status 1 where a bar is missed: warm 8 requests, 22 KB, 30 ms
near and .26 s far; cold 14 requests, .25 and .62 s.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from far import ROUND_TRIP_S, Far, backend_words, running
from measure import Usage
from shaping import Shape

from metasync.workspace import Workspace

FILE_BYTES = 1024
FILES = 70  # that are there before
SETTLE_S = 0.3
FAR_RATE = 5e6
BARS = {  # requests, bytes, seconds near, seconds far
    "warm": (8.0, 22_000.0, 0.030, 0.26),
    "cold": (14.0, float("inf"), 0.25, 0.62),
}
# What a request is about, by its path below the workspace's folder.
KINDS = (
    ("pack", r"/packs/"),
    ("entry of the log", r"/(px|bl)/"),
    ("index", r"/meta/"),
    ("config, device set", r"/const/"),
    ("hint", r"/hint$"),
    ("head", r"/devices/"),
    ("floor", r"/floor/"),
    ("birth", r"/birth$"),
    ("keys", r"/keys"),
)


@dataclass(frozen=True)
class Row:
    """One push: seconds, HTTP bytes both ways, and how many requests of which kind."""

    seconds: float
    wire_bytes: int
    kinds: Counter[str]

    @property
    def requests(self) -> int:
        return self.kinds.total()


MEASURES: tuple[Callable[[Row], float], ...] = (lambda r: r.requests, lambda r: r.wire_bytes, lambda r: r.seconds)


def kind_of(target: str) -> str:
    """ "PUT pack" of a counted target."""
    method, _, path = target.partition(" ")
    return f"{method} {next((name for name, pattern in KINDS if re.search(pattern, path)), path)}"


def counted(far: Far, push: Callable[[], object]) -> Row:
    """What one push took; a process's time is its own."""
    before = far.proxy.counted()
    began = time.perf_counter()
    done = push()
    seconds = done.wall_s if isinstance(done, Usage) else time.perf_counter() - began
    time.sleep(SETTLE_S)
    went = [now.since(then) for now, then in zip(far.proxy.counted(), before, strict=True)]
    kinds: Counter[str] = Counter()
    for one in went:
        for target, number in one.targets.items():
            kinds[kind_of(target)] += number
    return Row(seconds, sum(w.up_bytes + w.down_bytes for w in went), kinds)


def files_of(folder: Path) -> Iterator[Callable[[], None]]:
    """Functions that each change one file of 1 KB."""
    number = 0
    while True:
        number += 1
        yield lambda n=number: (folder / f"small-{n % 7}").write_bytes(os.urandom(FILE_BYTES))  # type: ignore[misc]


def measure(far: Far, pushes: int, *, ignore: bool) -> dict[str, list[Row]]:
    """Rows of warm pushes and of cold ones, on one workspace."""
    folder = far.work / "folder"
    folder.mkdir()
    for n in range(FILES):
        (folder / f"file-{n}").write_bytes(os.urandom(2 * FILE_BYTES))
    if ignore:
        (folder / ".metasyncignore").write_text("*.o\nbuild/\n")
    far.metasync("a", "init", str(folder), "--name", "small", *backend_words(far.urls("small")))
    far.metasync("a", "-C", str(folder), "push")
    change = files_of(folder)
    rows: dict[str, list[Row]] = {"warm": [], "cold": []}
    os.environ.update(far.env("a"))
    with Workspace.open(folder) as w:
        for n in range(pushes + 2):
            next(change)()
            row = counted(far, w.push)
            if n >= 2:  # the first ones open and learn
                rows["warm"].append(row)
    for n in range(max(3, pushes // 4) + 1):
        next(change)()
        row = counted(far, lambda: far.metasync("a", "-C", str(folder), "push"))
        if n:
            rows["cold"].append(row)
    return rows


def tell(label: str, rows: list[Row]) -> None:
    requests, size, seconds = (median(rows, of) for of in MEASURES)
    slowest, mean = max(r.seconds for r in rows), sum(r.requests for r in rows) / len(rows)
    print(f"{label:10} {requests:4.0f} requests (mean {mean:.1f}), {size / 1000:.1f} KB, {seconds * 1000:.0f} ms"
          f" (slowest {slowest * 1000:.0f} ms)")  # fmt: skip
    kinds: Counter[str] = Counter()
    for row in rows:
        kinds += row.kinds
    for kind, number in kinds.most_common():
        print(f"           {number / len(rows):6.2f} {kind}")


def median(rows: list[Row], of: Callable[[Row], float]) -> float:
    return statistics.median(map(of, rows))


def missed(name: str, rows: list[Row], *, is_far: bool) -> list[str]:
    """Bars that these rows miss, in words."""
    requests, size, near_s, far_s = BARS[name]
    got = [median(rows, of) for of in MEASURES]
    bars = (requests, size, far_s if is_far else near_s)
    return [
        f"{name}: {what} {g:.3g}, bar {bar:.3g}"
        for what, g, bar in zip(("requests", "bytes", "seconds"), got, bars, strict=True)
        if g > bar
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pushes", type=int, default=20)
    parser.add_argument("--ignore", action="store_true")
    parser.add_argument("--net", choices=("near", "far", "both"), default="both")
    parser.add_argument("--no-check", action="store_true")
    options = parser.parse_args()
    wrong = []
    for net in ("near", "far") if options.net == "both" else (options.net,):
        shape = Shape(ROUND_TRIP_S, FAR_RATE, FAR_RATE) if net == "far" else Shape()
        with tempfile.TemporaryDirectory() as work, running(dict.fromkeys("abc", shape), Path(work)) as far:
            rows = measure(far, options.pushes, ignore=options.ignore)
        for name, of in rows.items():
            tell(f"{net} {name}", of)
            wrong += [f"{net} {text}" for text in missed(name, of, is_far=net == "far")]
    for text in wrong:
        print(f"missed: {text}")
    return 0 if options.no_check or not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
