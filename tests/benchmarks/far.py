"""S3 servers behind the shaping proxy: distant, narrow services that benchmarks speak to in earnest."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "servers")]

import s3
import shaping
from measure import Usage, child_environment, measured
from shaping import Shape

PASSPHRASE = "far away from the loud mill"
TIMEOUT_S = 1800.0
# The network between here and a service of `services.json`; the rest of a request's time is the service's own.
ROUND_TRIP_S = 0.08
MB = 1e6


def services_of_paper() -> dict[str, Shape]:
    """The services of `services.json`: what a small request takes there is a round trip and the service's own time."""
    out = {}
    for s in json.loads((HERE / "services.json").read_text())["services"]:
        takes = {"PUT": s["append_s"], "POST": s["append_s"], "LIST": s["list_s"]}
        takes |= dict.fromkeys(("GET", "HEAD", "DELETE"), s["get_s"])
        takes = {method: seconds - ROUND_TRIP_S for method, seconds in takes.items()}
        out[s["name"]] = Shape(ROUND_TRIP_S, s["up_mb_s"] * MB, s["down_mb_s"] * MB, takes, s["jitter"])
    return out


@dataclass(frozen=True)
class Far:
    """Running services, and a folder for all else. `proxy` counts what goes to each."""

    names: Sequence[str]
    servers: Sequence[s3.S3Server]
    proxy: shaping.Proxy
    keys: dict[str, str]
    work: Path

    def endpoint(self, number: int, *, near: bool = False) -> str:
        """Of one service, through the proxy; `near`: past it."""
        return f"http://127.0.0.1:{self.servers[number].port if near else self.proxy.ports[number]}"

    def urls(self, folder: str, *, near: bool = False) -> list[str]:
        """A workspace's backends, one on each service."""
        ends = [self.endpoint(n, near=near) for n in range(len(self.names))]
        return [
            f"s3://{s3.BUCKET}/{folder}?endpoint={end}&region={s3.REGION}&name={name}"
            for name, end in zip(self.names, ends, strict=True)
        ]

    def env(self, device: str) -> dict[str, str]:
        """The environment of a client with a home of its own."""
        home = self.work / f"home-of-{device}"
        home.mkdir(exist_ok=True)
        return child_environment(home, self.keys | {"METASYNC_PASSPHRASE": PASSPHRASE, "METASYNC_KEYRING": "off"})

    def run(self, device: str, argv: Sequence[str]) -> Usage:
        """What a command of this device took. `SystemExit` when it fails."""
        log = self.work / f"log-of-{device}"
        usage = measured(argv, self.env(device), cwd=self.work, log=log, timeout_s=TIMEOUT_S)
        if usage.exit_code:
            raise SystemExit(f"{' '.join(argv[:6])}: exit {usage.exit_code}\n{usage.output[-2000:]}")
        return usage

    def metasync(self, device: str, *words: str) -> Usage:
        return self.run(device, [sys.executable, "-P", "-m", "metasync", *words])


def backend_words(urls: Sequence[str]) -> list[str]:
    """The URLs as options of the command line."""
    return [word for url in urls for word in ("--backend", url)]


@contextlib.contextmanager
def running(shapes: dict[str, Shape], work: Path) -> Iterator[Far]:
    """A service for each shape, by name, and a folder below `work`; all is gone with the end of the block."""
    if s3.find_binary() is None:
        raise SystemExit("no versitygw: tests/servers/versitygw.sh builds it, or set METASYNC_S3_SERVER")
    scratch, keys = Path(tempfile.mkdtemp(prefix="far-", dir=work)), s3.make_keys()
    try:
        with (
            s3.running(len(shapes), scratch / "s3", keys) as servers,
            shaping.running([server.port for server in servers], shapes=list(shapes.values())) as proxy,
        ):
            yield Far(list(shapes), servers, proxy, keys, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
