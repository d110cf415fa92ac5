"""What each provider costs: requests, bytes and client CPU of a push, and what loading and opening it takes.

    python tests/benchmarks/providers.py [--only s3,sftp] [--files 1,70,15000] [--linux auto|generated|PATH]
    python tests/benchmarks/providers.py --url s3://bucket/prefix?endpoint=...     a store of yours; what it holds stays

Servers are those of tests/servers, on loopback, started here where what they need has been fetched (`make test-servers`
does that); a provider without one is left out with the reason. A workspace lies on three folders, prefixes or
containers of one server, with two copies of everything. For each size a first push of so many files is measured, in a
workspace of its own; for 1, a push of one more file of 2 KB to the 70 that are there.

Two passes. CPU seconds are those of plain processes. Calls of the contract, and bytes of objects, are counted in
another pass, whose traffic goes through a proxy that counts what is on the wire: requests where that is HTTP, and bytes
with all that is around the objects. A server that names itself by another port in its answers is not seen whole by the
proxy, and SSH and Swift not at all: then the wire's columns are empty.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "servers")]

import shaping
import workloads
from measure import child_environment, measured

PREFIXES = ("a", "b", "c")
RUNS = 7
TIMEOUT_S = 1800.0
SIZES = {70: "paper", 15_000: "kernel"}
IMPORT_MS_MAX = 80.0


class Running(NamedTuple):
    """A server that runs: the URL of a prefix, what a client's environment needs, and its port, if what goes through
    it can be counted: SSH knows a key, and Swift a login, by the port too.
    """

    url: Callable[[str], str]
    env: Mapping[str, str]
    port: int | None = None


Start = Callable[[Any, Path], contextlib.AbstractContextManager[Running]]


@dataclass(frozen=True)
class Provider:
    """`module` is one of tests/servers; `start` is given it, and a folder for what the server holds."""

    name: str
    module: str
    start: Start


def _started(open_servers: Callable[[Any, Path], tuple[Any, Mapping[str, str]]], *, proxied: bool = True) -> Start:
    """`open_servers(module, root)`: the context manager of the module's servers, and the client's environment.

    Where the server has an `env` of its own, that is added. `proxied`: whether it may be reached by another port.
    """

    @contextlib.contextmanager
    def start(module: Any, root: Path) -> Iterator[Running]:
        servers, env = open_servers(module, root)
        with servers as (server, *_):
            own = getattr(server, "env", {})
            yield Running(server.url, {**env, **own}, int(server.port) if proxied else None)

    return start


def _s3(module: Any, root: Path) -> tuple[Any, Mapping[str, str]]:
    keys = module.make_keys()
    return module.running(1, root, keys), keys


def _plain(module: Any, root: Path) -> tuple[Any, Mapping[str, str]]:
    return module.running(1, root), {}


def _webdav(kind: str) -> Start:
    return _started(lambda module, root: (module.running(kind, 1, root, module.make_login()), {}))


def _sftp(module: Any, root: Path) -> tuple[Any, Mapping[str, str]]:
    home = module.Home(root)
    return module.running(1, root, home), home.env


def _swift(module: Any, root: Path) -> tuple[Any, Mapping[str, str]]:
    return module.running(1, root, module.make_keys()), {}


@contextlib.contextmanager
def _folders(_module: Any, root: Path) -> Iterator[Running]:
    yield Running(lambda prefix: f"file://{root}/{prefix}", {})


PROVIDERS = (
    Provider("file", "", _folders),
    Provider("s3", "s3", _started(_s3)),
    Provider("azure", "azurite", _started(_plain)),
    Provider("gcs", "fakegcs", _started(_plain)),
    Provider("webdav (Apache)", "webdav", _webdav("apache")),
    Provider("webdav (wsgidav)", "webdav", _webdav("wsgidav")),
    Provider("sftp", "openssh", _started(_sftp, proxied=False)),
    Provider("swift", "swift_server", _started(_swift, proxied=False)),
)


def at(url: str) -> Provider:
    """A store of the user's own, with the credentials that the environment has."""
    where, _, params = url.partition("?")

    @contextlib.contextmanager
    def start(_module: Any, _root: Path) -> Iterator[Running]:
        place = f"{where.rstrip('/')}/{{}}{'?' if params else ''}{params}"
        yield Running(place.format, {k: v for k, v in os.environ.items() if k not in ("HOME", "PYTHONPATH")})

    return Provider(where, "", start)


@contextlib.contextmanager
def running(provider: Provider, root: Path) -> Iterator[Running]:
    """The provider's server. `RuntimeError` with the reason where there is none to be had."""
    module = None
    if provider.module:
        try:
            module = importlib.import_module(provider.module)
        except ModuleNotFoundError as error:
            raise RuntimeError(f"tests/servers has no {error.name}.py") from error
    root.mkdir(parents=True, exist_ok=True)
    with provider.start(module, root) as server:
        yield server


# --- what is measured ---


@dataclass
class Figures:
    """Of one push. The wire's are None where the proxy did not see it whole."""

    cpu_s: float = 0.0
    calls: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    wire_requests: int | None = None
    wire_bytes: int | None = None


def push(server: Running, sizes: list[int], loads: Mapping[int, Path], work: Path, label: str) -> dict[int, Figures]:
    """Both passes over all sizes."""
    out = {size: Figures() for size in sizes}
    for counted in (False, True):
        for size in sorted(sizes, key=lambda s: (s != 1, s)):  # 1 and 70 share a workspace
            if size == 1 or (size == 70 and 1 in sizes):
                continue
            _one(server, size, loads[size], work / f"{label}-{size}-{counted}", out, counted, with_one=False)
        if 1 in sizes:
            _one(server, 70, loads[70], work / f"{label}-1-{counted}", out, counted, with_one=True)
    return out


def _one(
    server: Running, size: int, load: Path, work: Path, out: dict[int, Figures], counted: bool, *, with_one: bool
) -> None:
    """A workspace with a first push of `load`, and with one more file where that is wanted."""
    work.mkdir(parents=True)
    env = child_environment(
        work, {"METASYNC_KEYRING": "off", "METASYNC_PASSPHRASE": "seven quiet herons by the mill", **server.env}
    )
    with contextlib.ExitStack() as stack:
        proxy = None
        if counted and server.port is not None:
            proxy = stack.enter_context(shaping.running([server.port]))
        urls = [_through(server, proxy, f"{work.name}-{prefix}") for prefix in PREFIXES]
        source = work / "source"
        subprocess.run(["cp", "-a", str(load), str(source)], check=True)
        words = [
            word for url, prefix in zip(urls, PREFIXES, strict=True) for word in ("--backend", _named(url, prefix))
        ]
        _run(["init", str(source), "--name", work.name, *words], env, work)
        _push(source, env, work, proxy, out.get(size, Figures()), counted)
        if with_one:
            (source / "one more").write_bytes(b"one more line of text\n" * 100)
            _push(source, env, work, proxy, out[1], counted)


def _through(server: Running, proxy: shaping.Proxy | None, prefix: str) -> str:
    url = server.url(prefix)
    return url if proxy is None else url.replace(f":{server.port}", f":{proxy.ports[0]}")


def _named(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}name={name}"


def _push(
    source: Path, env: dict[str, str], work: Path, proxy: shaping.Proxy | None, into: Figures, counted: bool
) -> None:
    argv = [sys.executable, "-m", "metasync", "-C", str(source), "push"]
    if not counted:
        usage = measured(argv, env, cwd=work, log=work / "log", timeout_s=TIMEOUT_S)
        if usage.exit_code:
            raise RuntimeError(f"push: exit {usage.exit_code}\n{usage.output[-1500:]}")
        into.cpu_s = usage.cpu_s
        return
    before = proxy.counted()[0] if proxy is not None else None
    counts = work / "counts.json"
    _run(["-C", str(source), "push"], env, work, [str(HERE / "counted.py"), str(counts)])
    for row in json.loads(counts.read_text()).values():
        into.up_bytes += row.pop("up")
        into.down_bytes += row.pop("down")
        into.calls += sum(row.values())
    if proxy is not None and before is not None:
        went = proxy.counted()[0].since(before)
        wire_bytes = went.up_bytes + went.down_bytes
        if wire_bytes >= into.up_bytes + into.down_bytes:
            into.wire_bytes, into.wire_requests = wire_bytes, sum(went.requests.values()) or None


def _run(words: list[str], env: dict[str, str], work: Path, program: list[str] | None = None) -> None:
    argv = [sys.executable, *(program or ["-m", "metasync"]), *words]
    done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: exit {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}")


_IMPORT = "import time; t = time.perf_counter(); import metasync; print((time.perf_counter() - t) * 1e3)"
_OPEN = """
import sys, time
from metasync.backends.registry import open_backend, parse_url
t = time.perf_counter()
url = parse_url(sys.argv[1])
parsed = time.perf_counter()
before = len(sys.modules)
open_backend(url, create_root=True).close()
print((parsed - t) * 1e3, (time.perf_counter() - parsed) * 1e3, len(sys.modules) - before)
"""


def median_of(code: str, *arguments: str, env: Mapping[str, str], runs: int = RUNS) -> list[float]:
    """Medians of the numbers that a new process prints, after one that is not counted."""
    rows = []
    for _ in range(runs + 1):
        argv = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, check=True)
        rows.append([float(word) for word in done.stdout.split()])
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


# --- what is printed ---


def line(name: str, size: int, f: Figures) -> str:
    wire = "" if f.wire_requests is None else f"{f.wire_requests:,}"
    wire_mb = "" if f.wire_bytes is None else f"{f.wire_bytes / 1e6:.3f}"
    return (
        f"| {name} | {size:,} | {f.calls:,} | {wire} | {f.up_bytes / 1e6:.3f} | {f.down_bytes / 1e6:.3f} | {wire_mb}"
        f" | {f.cpu_s:.2f} |"
    )


HEAD = (
    "| provider | files | calls | requests on the wire | up, MB | down, MB | on the wire, MB | client CPU, s |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="providers by name, with commas; webdav stands for both of its servers"
    )
    parser.add_argument("--url", action="append", default=[], help="a store of yours in place of servers started here")
    parser.add_argument("--files", default="1,70,15000", help="sizes of a push, of these")
    parser.add_argument("--linux", default="auto", metavar="auto|fetch|generated|PATH", help="see workloads.py")
    parser.add_argument("--work", type=Path, default=workloads.default_work(), help="trees stay, the rest is deleted")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    options = parser.parse_args()
    sizes = sorted({int(word) for word in options.files.split(",")})
    if unknown := set(sizes) - {1, *SIZES}:
        parser.error(f"sizes are 1, 70 and 15000, not {sorted(unknown)}")
    wanted = options.only.split(",") if options.only else []
    options.work.mkdir(parents=True, exist_ok=True)
    needed = [name for size, name in SIZES.items() if size in sizes or (size == 70 and 1 in sizes)]
    ready = {load.name: load.path for load in workloads.ready(needed, options.work / "loads", options.linux)}
    loads = {size: ready[name] for size, name in SIZES.items() if name in ready}
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(HERE.parents[1] / "metasync")], check=True)
    figures: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="providers-", dir=options.work) as scratch:
        plain = child_environment(Path(scratch))
        (import_ms,) = median_of(_IMPORT, env=plain)
        print(f"import metasync: {import_ms:.1f} ms (median of {RUNS}; at most {IMPORT_MS_MAX:.0f})\n")
        print(HEAD, flush=True)
        for provider in [at(url) for url in options.url] or PROVIDERS:
            if not options.url and wanted and provider.name not in wanted and provider.name.split()[0] not in wanted:
                continue
            root = Path(scratch) / re.sub("[^a-z0-9]+", "-", provider.name.lower())
            with contextlib.ExitStack() as stack:
                try:
                    server = stack.enter_context(running(provider, root / "server"))
                except RuntimeError as error:
                    left_out[provider.name] = str(error).strip().splitlines()[-1]
                    continue
                opening = median_of(_OPEN, server.url("opened"), env={**plain, **server.env})
                pushed = push(server, sizes, loads, root, "push")
            for size in sizes:
                print(line(provider.name, size, pushed[size]), flush=True)
            figures[provider.name] = {"open": opening, "push": {size: vars(f) for size, f in pushed.items()}}
    print("\n| provider | URL taken apart, ms | opened, ms | modules that brings |\n| --- | --- | --- | --- |")
    for name, found in figures.items():
        parsed_ms, opened_ms, modules = found["open"]
        print(f"| {name} | {parsed_ms:.1f} | {opened_ms:.1f} | {modules:.0f} |")
    for name, why in left_out.items():
        print(f"\nleft out: {name}: {why}")
    if options.out:
        options.out.write_text(json.dumps({"import_ms": import_ms, "providers": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
