"""What a cloud costs as one of three backends: requests, bytes and client CPU of a push, on its stand-in.

    python tests/benchmarks/clouds/bench_clouds.py [--only dropbox] [--files 1,70,15000] [--linux auto|generated|PATH]

The other two backends are folders; there are two copies of everything. The stand-in runs in this process, the client is
`python -m metasync`. For each size a first push of so many files, in a workspace of its own; for 1 a push of one more
file of 2 KB to the 70 that are there, then a pull and a status that find nothing new. Requests are those that the
stand-in saw, by their paths; bytes are those of their bodies. Then an hour in which a folder is watched and nothing
changes, and single calls: milliseconds of the client's CPU, beside those of a real S3 server where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

BENCHMARKS = Path(__file__).parents[1]
sys.path[:0] = [str(BENCHMARKS), *(str(BENCHMARKS.parent / name) for name in ("kits", ""))]

import pytest
import workloads
from measure import child_environment, measured
from servers.box_standin import BoxStandin
from servers.standin import Answer, Request, Standin, linked

from metasync.backends.api import Inventories, Watches
from metasync.backends.box import feed
from metasync.backends.registry import open_backend, parse_url

SIZES = {70: "paper", 15_000: "kernel"}
TIMEOUT_S = 1800.0
CALLS = 200
HOUR_S = 3600.0
POLL_S = 480.0  # the longest poll that Dropbox takes
ENDS_S = {"box": 610.0}  # when a quiet poll ends at a provider that takes no wish
LOOK_S = 60.0  # between two looks at a feed of changes, where there is no long poll


class Cloud(NamedTuple):
    """A stand-in that runs, with one linked account. `limits`: what the provider publishes."""

    standin: Standin
    env: dict[str, str]
    limits: str


def _kinds() -> dict[str, tuple[type[Standin], str]]:
    """Stand-ins by the scheme of their URLs, and what the provider publishes."""
    from servers.dropbox_standin import DropboxStandin
    from servers.gdrive_standin import GoogleDriveStandin
    from servers.onedrive_standin import OneDriveStandin

    return {
        "box": (BoxStandin, "1,000 requests and 240 uploads a minute and user"),
        "dropbox": (DropboxStandin, "none in numbers; writes to one account one after the other"),
        "gdrive": (
            GoogleDriveStandin,
            "325,000 units a minute and user, 1,000,000 a project; 750 GB of uploads a day",
        ),
        "onedrive": (
            OneDriveStandin,
            "work or school: 3,000 requests in 5 minutes and user, 1,250 units a minute and app; personal: no number",
        ),
    }


@contextlib.contextmanager
def running_cloud(name: str, root: Path) -> Iterator[Cloud]:
    kind, limits = _kinds()[name]
    with pytest.MonkeyPatch.context() as patch, linked(kind(), patch, root) as standin:
        names = (standin.variable, "XDG_CONFIG_HOME", "XDG_STATE_HOME", "METASYNC_KEYRING")
        yield Cloud(standin, {name: os.environ[name] for name in names}, limits)


CLOUDS = ("box", "dropbox", "gdrive", "onedrive")


@dataclass
class Figures:
    """Of one command: the requests by path, bytes up and down, and the client's CPU."""

    requests: Counter[str]
    up_bytes: int
    down_bytes: int
    cpu_s: float


def commands(name: str, cloud: Cloud, load: Path, work: Path, *, with_one: bool) -> dict[str, Figures]:
    """Makes a workspace, pushes `load`, and what else is wanted."""
    work.mkdir(parents=True)
    env = child_environment(work, {"METASYNC_PASSPHRASE": "seven quiet herons by the mill", **cloud.env})
    source = work / "source"
    subprocess.run(["cp", "-a", str(load), str(source)], check=True)
    urls = [f"{name}:/{work.name}?name={name}", *(f"file://{work}/{disk}?name={disk}" for disk in ("disk-1", "disk-2"))]
    init = ["init", str(source), "--name", work.name, *(word for url in urls for word in ("--backend", url))]
    out = {"init": run(init, cloud, env, work)}
    at = ["-C", str(source)]
    out["push"] = run([*at, "push"], cloud, env, work)
    if with_one:
        (source / "one more").write_bytes(b"one more line of text\n" * 100)
        out["push one more"] = run([*at, "push"], cloud, env, work)
        out["pull nothing"] = run([*at, "pull"], cloud, env, work)
        out["status"] = run([*at, "status"], cloud, env, work)
    return out


def run(words: list[str], cloud: Cloud, env: dict[str, str], work: Path) -> Figures:
    cloud.standin.take_log()
    argv = [sys.executable, "-m", "metasync", *words]
    usage = measured(argv, env, cwd=work, log=work / "log", timeout_s=TIMEOUT_S)
    if usage.exit_code:
        raise RuntimeError(f"{words[0]}: exit {usage.exit_code}\n{usage.output[-1500:]}")
    log = cloud.standin.take_log()
    requests = Counter(exchange.request.path.rpartition("/")[2] for exchange in log)
    return Figures(requests, sum(len(e.request.body) for e in log), sum(e.answer_bytes for e in log), usage.cpu_s)


def idle_requests(name: str, cloud: Cloud) -> tuple[str, int]:
    """How a folder is watched in which nothing changes, and the requests of an hour of that.

    Time is counted, not waited for: the stand-in ends each poll at once, and it counts as long as the provider takes.
    A login's renewal comes on top, once in an hour or less.
    """
    backend = open_backend(parse_url(f"{name}:/idle"), create_root=True)
    poll_s = ENDS_S.get(name, POLL_S)
    try:
        backend.put("d/a", b"1")
        if isinstance(backend, Watches):
            cursor = backend.watch("d", "", POLL_S).cursor
            cloud.standin.take_log()
            with _each_poll_takes(poll_s):
                for _ in range(round(HOUR_S / poll_s)):
                    told = backend.watch("d", cursor, POLL_S)
                    if told.changed:
                        raise RuntimeError("a watch told of a change where there was none")
                    cursor = told.cursor
            how = f"long polls of {poll_s:.0f} s"
        else:
            assert isinstance(backend, Inventories)
            cursor, more = "", True
            while more:
                _, cursor, more = backend.inventory("d", cursor)
            cloud.standin.take_log()
            for _ in range(round(HOUR_S / LOOK_S)):
                _, cursor, more = backend.inventory("d", cursor)
                assert not more
            how = f"a look at the feed each {LOOK_S:.0f} s"
        return how, len(cloud.standin.take_log())
    finally:
        backend.close()


@contextlib.contextmanager
def _each_poll_takes(poll_s: float) -> Iterator[None]:
    """The time as Box's watch sees it, which goes on by that with each of its polls."""
    now, polled = [0.0], BoxStandin._subscribe

    def subscribe(self: BoxStandin, request: Request) -> Answer:
        now[0] += poll_s
        return polled(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoxStandin, "_subscribe", subscribe)
        patch.setattr(feed, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0]))
        yield


_SINGLE = """
import json, os, statistics, sys, time
from metasync.backends.registry import open_backend, parse_url
from metasync.errors import NotFoundError
calls = int(sys.argv[2])
begun = time.process_time()
b = open_backend(parse_url(sys.argv[1]), create_root=True)
opened = time.process_time()
b.put("d/small", b"x" * 1024)
first = time.process_time()
large = os.urandom(4 << 20)
b.put("large", large)
def absent():
    try:
        b.get("d/none", max_bytes=99)
    except NotFoundError:
        pass
names = iter(range(10**9))
rows = {"open": (opened - begun) * 1e3, "first call": (first - opened) * 1e3}
for name, call, count in (
    ("get 1 KiB", lambda: b.get("d/small", max_bytes=4096), calls),
    ("get absent", absent, calls),
    ("stat", lambda: b.stat("d/small"), calls),
    ("create 1 KiB", lambda: b.create(f"c/{next(names)}", b"x" * 1024), calls),
    ("list 1", lambda: b.list("d"), calls),
    ("get 4 MiB", lambda: b.get("large", max_bytes=4 << 20), max(1, calls // 20)),
    ("put 4 MiB", lambda: b.put("large", large), max(1, calls // 20)),
):
    call()
    rounds = []
    for _ in range(5):
        before = time.process_time()
        for _ in range(count):
            call()
        rounds.append((time.process_time() - before) / count * 1e3)
    rows[name] = statistics.median(rounds)
print(json.dumps(rows))
"""


def single_calls(url: str, variables: dict[str, str], work: Path, calls: int) -> dict[str, float]:
    """Milliseconds of the client's CPU a call; `open` and `first call` once, with what they load."""
    argv = [sys.executable, "-c", _SINGLE, url, str(calls)]
    env = child_environment(work, variables)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def s3_calls(root: Path, calls: int) -> dict[str, float]:
    """The same on a real S3 server of this machine, in the same run; nothing where there is none."""
    sys.path.insert(0, str(BENCHMARKS.parent / "servers"))
    import s3

    if s3.find_binary() is None:
        print(f"without S3 beside them: {s3.missing()}", flush=True)
        return {}
    keys = s3.make_keys()
    with s3.running(1, root / "s3", keys) as (server,):
        return single_calls(server.url("single"), {**keys, "METASYNC_KEYRING": "off"}, root, calls)


def beside(rows: dict[str, float], s3_rows: dict[str, float]) -> str:
    """Milliseconds of each call, and how many times that of S3 it is."""
    return ", ".join(
        f"{what} {ms:.2f}" + (f" ({ms / s3_rows[what]:.1f} x S3)" if s3_rows.get(what) else "")
        for what, ms in rows.items()
    )


def line(name: str, size: int, what: str, f: Figures) -> str:
    kinds = ", ".join(f"{count} {path}" for path, count in f.requests.most_common())
    moved = f"{f.up_bytes / 1e6:.3f} | {f.down_bytes / 1e6:.3f}"
    return f"| {name} | {size:,} | {what} | {f.requests.total()} | {moved} | {f.cpu_s:.2f} | {kinds} |"


HEAD = (
    "| provider | files | command | requests | up, MB | down, MB | client CPU, s | of which |\n"
    "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CLOUDS), help="clouds by the scheme of their URLs, with commas")
    parser.add_argument("--files", default="1,70,15000", help="sizes of a push, of these")
    parser.add_argument("--calls", type=int, default=CALLS, help="of each kind, for their CPU; 0 for none")
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--work", type=Path, default=workloads.default_work(), help="trees stay, the rest is deleted")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    options = parser.parse_args()
    sizes = {int(word) for word in options.files.split(",")}
    if unknown := sizes - {1, *SIZES}:
        parser.error(f"sizes are 1, 70 and 15000, not {sorted(unknown)}")
    options.work.mkdir(parents=True, exist_ok=True)
    needed = {size: name for size, name in SIZES.items() if size in sizes or (size == 70 and 1 in sizes)}
    ready = {
        load.name: load.path for load in workloads.ready([*needed.values()], options.work / "loads", options.linux)
    }
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(BENCHMARKS.parents[1] / "metasync")], check=True)
    figures: dict[str, Any] = {}
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory(prefix="clouds-", dir=options.work) as scratch:
        s3_rows = s3_calls(Path(scratch), options.calls) if options.calls else {}
        if s3_rows:
            figures["s3 calls"] = s3_rows
        for name in options.only.split(","):
            root = Path(scratch) / name
            root.mkdir()
            with running_cloud(name, root / "config") as cloud:
                for size, load in needed.items():
                    found = commands(
                        name, cloud, ready[load], root / f"files-{size}", with_one=size == 70 and 1 in sizes
                    )
                    for what, f in found.items():
                        print(line(name, size, what, f), flush=True)
                    figures[f"{name} {size}"] = {what: vars(f) for what, f in found.items()}
                subprocess.run(["rm", "-rf", *map(str, root.glob("files-*"))], check=True)
                print(f"\n{name}: published limits: {cloud.limits}")
                how, requests = idle_requests(name, cloud)
                figures[f"{name} idle"] = requests
                print(f"{name}: {requests} requests in an idle hour, by {how}")
                if options.calls:
                    cloud.standin.take_log()
                    figures[f"{name} calls"] = rows = single_calls(f"{name}:/single", cloud.env, root, options.calls)
                    print(f"{name}, ms of CPU: {beside(rows, s3_rows)}", flush=True)
        if s3_rows:
            print(f"S3, ms of CPU: {beside(s3_rows, {})}")
    if options.out:
        options.out.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
