"""MetaSync beside other programs on the same trees, stores and network, in the same run: `make bench`.

    python bench.py [--net near,far] [--load kernel,paper,photos] [--peers NAMES] [--runs N] [--work DIR] [--out FILE]
    python bench.py --quick                     paper, near, one run
    python bench.py --tables FILE [FILE ...]    the tables of earlier runs again

Each program in turn makes each step before the next step begins, so that what is compared was measured seconds apart;
ratios are taken run by run. Steps: push of the whole tree, a push with nothing changed, a clone on a second device, a
pull with nothing changed, a push and a pull of one changed file. Every clone is compared with its source outside of the
measured time; a wrong one, or a step that fails, makes the exit status 1. Programs that are not installed are named.

`near`: S3 servers (versitygw) on loopback, spoken to directly; requests and bytes are counted in a pass of their own
before the first run, through the proxy without delay or limit, because that costs what makes many small requests slow.
`far`: through the proxy, 80 ms a round trip, 5 MB/s a backend and direction. Without servers: folders, near only.

Nothing large is deleted before all runs are over: after mass deletions ext4 is slower for minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "servers")]

import report
import s3
import shaping
import workloads
from measure import TREE, Usage, busy_s, cpu_s_of, differences, measured
from peers import BACKENDS, PEERS, Command, Peer, Place
from workloads import Load

ROUND_TRIP_S, RATE = 0.08, 5e6
NETS = ("near", "far")
# Trees below this are deleted after each run: a thousand files are no mass.
FEW_FILES = 1000
# A tree twice, two copies in stores (compressed, where it is many files), and what a file system adds.
SPACE_PER_LOAD = 4.5
WARM_UP_FILES = 5
COUNTING_RUN = 0


@dataclass(frozen=True)
class Net:
    """A way to the servers. `proxy` is what counts on it, if anything does."""

    name: str
    endpoints: Sequence[str] = ()
    proxy: shaping.Proxy | None = None


@dataclass
class Bench:
    """Everything that one invocation measures. `rows` holds a dict for each step of each program in each run."""

    work: Path
    timeout_s: float
    servers: list[s3.S3Server]
    keys: dict[str, str]
    own_pids: list[int]  # of what runs for all programs: not "other programs"
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, net: Net, load: Load, number: int, peers: Sequence[type[Peer]]) -> None:
        """All steps of these programs once, those that can use this network. Run 0 only counts."""
        chosen = [p for p in peers if p.far or not net.proxy]
        turn = number % max(1, len(chosen))
        living = [self._placed(net, load, number, peer) for peer in chosen[turn:] + chosen[:turn]]
        roots = [peer.place.root for peer in living]
        for step in report.STEPS:
            living = [peer for peer in living if self._step(net, load, number, peer, step)]
        if load.files < FEW_FILES:
            for root in roots:
                shutil.rmtree(root)
            for server in self.servers:
                for peer in chosen:
                    server.remove_bucket(_bucket(net, load, number, peer))

    def _placed(self, net: Net, load: Load, number: int, kind: type[Peer]) -> Peer:
        bucket = _bucket(net, load, number, kind)
        for server in self.servers:
            server.make_bucket(bucket)
        place = Place(self.work / bucket, bucket, net.endpoints, self.keys)
        place.root.mkdir()
        shutil.copytree(load.path, place.source, symlinks=True)
        peer = kind(place)
        peer.prepare()
        return peer

    def _step(self, net: Net, load: Load, number: int, peer: Peer, step: str) -> bool:
        """Whether the program goes on to the next step."""
        if not peer.pulls and step not in ("push", "clone"):
            return True
        if step == "one-file push":
            _edit(peer.place.source)
        command = {"push": peer.push, "clone": peer.clone, "pull": peer.pull}[step.split()[-1]]()
        row, usage = self._timed(net, peer, command)
        self.rows.append({"net": net.name, "load": load.name, "run": number, "peer": peer.name, "step": step, **row})
        where = f"{net.name} {load.name} run {number} {peer.name} {step}"
        print(f"{where}: {usage.wall_s:.2f} s{', given up' if usage.timed_out else ''}", file=sys.stderr, flush=True)
        if usage.timed_out:
            return False
        wrong: list[str] = []
        if usage.exit_code:
            wrong = [f"exit {usage.exit_code}: {usage.output[-1000:]}"]
        elif step in ("clone", "one-file pull"):
            wrong = differences(peer.place.source, peer.place.clone, peer.keeps)
        if wrong:
            self.failures.append(f"{where}: {len(wrong)} wrong: {'; '.join(wrong[:5])}")
            print(self.failures[-1], file=sys.stderr, flush=True)
        return not wrong

    def _timed(self, net: Net, peer: Peer, command: Command) -> tuple[dict[str, Any], Usage]:
        before = net.proxy.counted() if net.proxy else []
        spent, start = self._spent(), time.monotonic()
        usage = measured(
            command.argv, command.env, cwd=command.cwd, log=peer.place.root / "log", timeout_s=self.timeout_s
        )
        row: dict[str, Any] = {k: v for k, v in asdict(usage).items() if k != "output"}
        if spent is not None and (now := self._spent()) is not None:
            row["others_cores"] = max(0.0, (now - spent - usage.cpu_s) / (time.monotonic() - start))
        if net.proxy and peer.far:
            counts = [b.since(a) for a, b in zip(before, net.proxy.counted(), strict=True)]
            row["requests"] = sum(c.requests.total() for c in counts)
            row["each"] = [{"up_mb": c.up_bytes / 1e6, "down_mb": c.down_bytes / 1e6} for c in counts]
            row["up_mb"] = sum(c["up_mb"] for c in row["each"])
            row["down_mb"] = sum(c["down_mb"] for c in row["each"])
            row["connections"] = sum(c.connections for c in counts)
            if any(c.opaque for c in counts):
                self.failures.append(f"{net.name} {peer.name}: the proxy could not follow its requests")
        return row, usage

    def _spent(self) -> float | None:
        """CPU seconds of all but ourselves, the servers and the proxies; the measured command is among them."""
        busy = busy_s()
        return None if busy is None else busy - cpu_s_of(os.getpid(), *self.own_pids)


def _bucket(net: Net, load: Load, number: int, peer: type[Peer]) -> str:
    return f"{net.name}-{load.name}-{number}-{peer.name}"


def _edit(tree: Path) -> None:
    """Appends a line to one file, always the same."""
    files = sorted(Path(d, f) for d, _, fs in os.walk(tree) for f in fs if not {".metasync", ".git"} & {*Path(d).parts})
    with files[len(files) // 2].open("ab") as file:
        file.write(b"\n/* one line more */\n")


# --- what it runs on ---


@contextlib.contextmanager
def networks(
    names: Sequence[str], stores: str, work: Path, keys: dict[str, str]
) -> Iterator[tuple[list[Net], list[s3.S3Server]]]:
    """The networks to measure on, each `near` after one that only counts; and the servers behind them."""
    binary = None if stores == "folders" else s3.find_binary()
    if binary is None:
        if "far" in names or stores == "s3":
            raise SystemExit("no versitygw: `make bench` builds it; without, there is --net near --stores folders")
        yield [Net("near")], []
        return
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(s3.running(BACKENDS, work, keys, binary))
        ports = [server.port for server in servers]
        nets: list[Net] = []
        for name in names:
            shape = {"round_trip_s": ROUND_TRIP_S, "rate": RATE} if name == "far" else {}
            proxy = stack.enter_context(shaping.running(ports, **shape))
            nets.append(Net(name, [f"http://127.0.0.1:{port}" for port in proxy.ports], proxy))
            if name == "near":
                nets.append(Net(name, [server.endpoint for server in servers]))
        yield nets, servers


def about(peers: Sequence[type[Peer]], missing: Sequence[str], servers: bool) -> dict[str, Any]:
    """What was measured on and with what: the head of the report."""

    def git(*argv: str) -> str:
        return subprocess.run(["git", *argv], capture_output=True, text=True, check=False, cwd=TREE).stdout.strip()

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {"python": platform.python_version(), **{p.name: p.version() for p in peers}}
    out: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "--short", "HEAD") + ("+changes" if git("status", "--porcelain") else ""),
        "cpu": model,
        "cpus": os.cpu_count(),
        "ram_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "missing": list(missing),
        "stores": "s3" if servers else "folders",
    }
    if servers and (binary := s3.find_binary()):
        noted = Path(binary).with_suffix(".version")  # `go install` leaves no version inside
        versions["versitygw"] = noted.read_text().strip() if noted.exists() else "of unknown version"
        out["proxy"] = asdict(shaping.ceiling())
    return out


# --- the command ---


def chosen_peers(names: Sequence[str]) -> tuple[list[type[Peer]], list[str]]:
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise SystemExit(f"no such program: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    here = [PEERS[name] for name in names if PEERS[name].version()]
    if not here:
        raise SystemExit(f"none of {', '.join(names)} is installed")
    return here, [name for name in names if PEERS[name] not in here]


def check_space(work: Path, loads: Sequence[Load], lives: int, peers: int) -> None:
    """`SystemExit` if what is kept until the end will not fit. A life is all steps of one program in one run."""
    needed = sum(ld.size_bytes * SPACE_PER_LOAD * (lives if ld.files >= FEW_FILES else peers) for ld in loads) / 1e9
    free = shutil.disk_usage(work).free / 1e9
    if free < needed:
        raise SystemExit(f"{work} has {free:.0f} GB free, and {needed:.0f} GB may be needed: see --work and --runs")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that the options ask for; what `--out` and `--tables` hold."""
    peers, missing = chosen_peers(options.peers.split(","))
    if "far" in options.net and not any(peer.far for peer in peers):
        raise SystemExit(f"far: none of {', '.join(peer.name for peer in peers)} speaks S3")
    options.work.mkdir(parents=True, exist_ok=True)
    loads = workloads.ready(options.load.split(","), options.work / "loads", options.linux)
    names = options.net.split(",")
    over_s3 = sum(peer.far for peer in peers)
    lives = {"near": over_s3 + options.runs * len(peers), "far": options.runs * over_s3}
    check_space(options.work, loads, sum(lives[name] for name in names), len(peers))
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=options.work))
    keys = s3.make_keys()
    try:
        with networks(names, options.stores, scratch, keys) as (nets, servers):
            out = about(peers, missing, bool(servers))
            pids = [server.pid for server in servers] + [net.proxy.process.pid for net in nets if net.proxy]
            bench = Bench(scratch, options.timeout, servers, keys, pids)
            counting = [net for net in nets if net.name == "near" and net.proxy]
            timed = [net for net in nets if net not in counting]
            if not options.quick:  # the counting pass warms up those that it counts
                warm_up(bench, timed[0], [p for p in peers if not (counting and p.far)])
            passes = [(net, COUNTING_RUN) for net in counting]
            passes += [(net, n + 1) for n in range(options.runs) for net in timed]
            for net, number in passes:
                for load in loads:
                    bench.run(net, load, number, peers)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    described = [{**asdict(load), "path": load.path.name, "title": load.title} for load in loads]
    return {"about": out, "loads": described, "rows": bench.rows, "failures": bench.failures}


def warm_up(bench: Bench, net: Net, peers: Sequence[type[Peer]]) -> None:
    """Every one of these programs once with a few files: no first run pays for compiling or reading programs."""
    path = bench.work / "warm-up"
    for i in range(WARM_UP_FILES):
        workloads.write(path / f"{i}.txt", b"warm\n" * i)
    bench.run(net, workloads.described("warm-up", path, "random"), COUNTING_RUN, peers)
    bench.rows.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", help="near, far or both (default)")
    parser.add_argument("--load", help=f"of {', '.join(workloads.NAMES)}; default all")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}; default all")
    parser.add_argument("--runs", type=int, help="default 3")
    parser.add_argument("--stores", choices=("auto", "s3", "folders"), default="auto", help="auto: s3 if it is there")
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--timeout", type=float, default=420.0, metavar="S", help="a step is given up after it")
    parser.add_argument("--work", type=Path, default=workloads.default_work(), help="trees stay, the rest is deleted")
    parser.add_argument("--out", type=Path, help="all that was measured, as JSON")
    parser.add_argument("--quick", action="store_true", help="paper, near, one run, unless said otherwise")
    parser.add_argument(
        "--tables", type=Path, nargs="+", metavar="FILE", help="print the tables of these and measure nothing"
    )
    options = parser.parse_args()
    if options.tables:
        for path in options.tables:
            print(report.markdown(json.loads(path.read_text())))
        return
    options.net = options.net or ("near" if options.quick else ",".join(NETS))
    options.load = options.load or ("paper" if options.quick else ",".join(workloads.NAMES))
    options.runs = (1 if options.quick else 3) if options.runs is None else options.runs
    if options.runs < 1:
        parser.error("--runs: at least one")
    for given, known in ((options.net, NETS), (options.load, workloads.NAMES)):
        if unknown := set(given.split(",")) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers, clients and trees go with us
    start = time.monotonic()
    result = measure(options)
    result["about"]["took_s"] = round(time.monotonic() - start)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(report.markdown(result))
    if result["failures"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
