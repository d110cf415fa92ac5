"""OpenStack Swift for tests and benchmarks: a cluster on loopback, with a user made up on the spot.

    python tests/servers/swift_server.py --count 1 --root DIR

starts it, prints a URL and the variables a client needs, and stops it when its standard input closes or it is told to
end. One cluster is memcached (which holds the tokens), an account and a container server, object servers and a proxy of
two workers, which is what makes conditional writes race.
"""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import loopback

COUNT_MAX = 5
NODES_MAX = 5
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 5
CONTAINER = "metasync"
GUEST = "other:guest"  # a user of another account
_PIPELINES = {
    "account-server": "account-server",
    "container-server": "container-server",
    "object-server": "object-server",
    "proxy-server": "catch_errors gatekeeper cache tempauth container-quotas account-quotas slo dlo proxy-server",
}
# On a busy machine memcached answers late. By default a proxy's worker has two connections to it and waits a third of a
# second; then it answers logins with 503, and after ten such all logins of a minute.
_PATIENT = (
    "memcache_max_connections = 64\nconnect_timeout = 30\npool_timeout = 30\nio_timeout = 30\n"
    "error_suppression_interval = 0\n"
)
# Devices are (ring, port, name); written by Swift's own builder, in its own Python.
_BUILD_RINGS = """
import json, sys
from swift.common.ring import RingBuilder
folder, rings = sys.argv[1], json.loads(sys.argv[2])
for name, devices in rings.items():
    builder = RingBuilder(4, len(devices), 0)
    for number, (port, device) in enumerate(devices):
        builder.add_dev({"id": number, "region": 1, "zone": number + 1, "ip": "127.0.0.1", "port": port,
                         "device": device, "weight": 1.0, "meta": ""})
    builder.rebalance(seed=1)
    builder.get_ring().save(f"{folder}/{name}.ring.gz")
"""


def find_binaries() -> Path | None:
    """The folder with Swift's commands and memcached: the one named in the environment, or what the script fetched."""
    fetched = Path(__file__).parents[2] / ".servers/swift/bin"
    found = Path(os.environ.get("METASYNC_SWIFT_SERVER") or fetched)
    return found if (found / "swift-proxy-server").exists() and _memcached(found) else None


def make_keys() -> dict[str, str]:
    """The user of a server. `ST_AUTH` differs from server to server: see `SwiftServer.env`."""
    return {"ST_USER": f"test:user{secrets.token_hex(4)}", "ST_KEY": secrets.token_hex(16)}


class SwiftServer:
    """One cluster with one container. `stop` ends it; `start` brings it back at the same address with what it held.

    `nodes` object servers hold a replica each; there is one replica of accounts and containers.
    """

    def __init__(self, binaries: Path, root: Path, keys: dict[str, str], *, nodes: int = 1) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise ValueError(f"between 1 and {NODES_MAX} object servers, not {nodes}")
        self.root = root
        self.keys = keys
        self.nodes = nodes
        self._binaries = binaries
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.guest_key = secrets.token_hex(16)
        self._admin_key = secrets.token_hex(16)
        self._ports = dict(zip(self._names(), _free_ports(len(self._names())), strict=True))
        self._admin: dict[str, str] = {}
        (root / "etc").mkdir(parents=True)
        self._configure()

    @property
    def port(self) -> int:
        return self._ports["proxy-server"]

    @property
    def env(self) -> dict[str, str]:
        """The variables a client of this server needs."""
        return {**self.keys, "ST_AUTH": f"http://127.0.0.1:{self.port}/auth/v1.0"}

    def url(self, prefix: str = "", *, container: str = CONTAINER) -> str:
        return f"swift://{container}/{prefix}?auth=http://127.0.0.1:{self.port}/auth/v1.0"

    def start(self) -> None:
        for name in self._names():
            if name not in self._running:
                self.start_one(name)
        self.make_container(CONTAINER)

    def stop(self) -> None:
        """Ends all of it. Tokens that were given out before are worth nothing afterwards."""
        for name in reversed(self._names()):
            self.stop_one(name)
        self._admin = {}

    def start_one(self, name: str) -> None:
        """`memcached`, `proxy-server`, `account-server`, `container-server`, or `object-server-0` and so on."""
        port = self._ports[name]
        if name == "memcached":
            arguments = [str(_memcached(self._binaries)), "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "16"]
            arguments += ["-u", getpass.getuser()]
        else:
            program = name if name in _PIPELINES else name.rpartition("-")[0]
            script = self._binaries / f"swift-{program}"  # its first line names where it was installed, not where it is
            arguments = [str(self._binaries / "python"), str(script), str(self.root / "etc" / f"{name}.conf"), "-v"]
        with open(self.root / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                arguments,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.root), "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # its workers are ended with it
            )
        until = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            if self._running[name].poll() is not None or time.monotonic() > until:
                said = (self.root / f"{name}.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{name} did not start:\n{said}")
            time.sleep(0.03)

    def stop_one(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        for end in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, end)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
                break
        with contextlib.suppress(ProcessLookupError):  # a worker that outlived its parent
            os.killpg(process.pid, signal.SIGKILL)

    def make_container(self, name: str, **headers: str) -> None:
        self._as_admin("PUT", f"/{name}", headers)

    def remove_container(self, name: str) -> None:
        """Removes it with all it holds."""
        for found in json.loads(self._as_admin("GET", f"/{name}?format=json")):
            self._as_admin("DELETE", f"/{name}/{found['name']}")
        self._as_admin("DELETE", f"/{name}")

    def wipe(self) -> None:
        """Empties the container behind everybody's back."""
        self.remove_container(CONTAINER)
        self.make_container(CONTAINER)

    def post(self, path: str, **headers: str) -> None:
        """Sets what only the cluster's own people may: `path` "" is the account, "/name" a container."""
        self._as_admin("POST", path, headers)

    def _names(self) -> list[str]:
        objects = [f"object-server-{number}" for number in range(self.nodes)]
        return ["memcached", "account-server", "container-server", *objects, "proxy-server"]

    def _configure(self) -> None:
        etc = self.root / "etc"
        ports = self._ports
        (etc / "swift.conf").write_text(
            f"[swift-hash]\nswift_hash_path_prefix = {secrets.token_hex(8)}\n"
            f"[storage-policy:0]\nname = replicated\ndefault = yes\n"
        )
        for name in self._names():
            if name == "memcached":
                continue
            program = name if name in _PIPELINES else name.rpartition("-")[0]
            (etc / f"{name}.conf").write_text(self._config(name, program))
        devices = [(ports[f"object-server-{number}"], f"o{number}") for number in range(self.nodes)]
        rings = {
            "account": [(ports["account-server"], "a")],
            "container": [(ports["container-server"], "c")],
            "object": devices,
        }
        for device in ("a", "c", *(device for _, device in devices)):
            (self.root / "srv" / device).mkdir(parents=True)
        done = subprocess.run(
            [self._binaries / "python", "-c", _BUILD_RINGS, str(etc), json.dumps(rings)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the rings could not be made:\n{done.stderr[-2000:]}")

    def _config(self, name: str, program: str) -> str:
        workers = {"proxy-server": 2, "object-server": 2}.get(program, 0)
        text = (
            f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {self._ports[name]}\nworkers = {workers}\n"
            f"user = {getpass.getuser()}\nswift_dir = {self.root / 'etc'}\ndevices = {self.root / 'srv'}\n"
            f"mount_check = false\nlog_level = WARNING\n[pipeline:main]\npipeline = {_PIPELINES[program]}\n"
            f"[app:{program}]\nuse = egg:swift#{program.partition('-')[0]}\n"
        )
        if program != "proxy-server":
            return text
        text += "account_autocreate = true\nallow_account_management = true\n"
        text += "error_suppression_interval = 1\n"  # an object server that comes back is asked soon, not after a minute
        for filter_name in _PIPELINES[program].split()[:-1]:
            egg = {"cache": "memcache", "container-quotas": "container_quotas", "account-quotas": "account_quotas"}
            text += f"[filter:{filter_name}]\nuse = egg:swift#{egg.get(filter_name, filter_name)}\n"
            if filter_name == "cache":
                text += f"memcache_servers = 127.0.0.1:{self._ports['memcached']}\n{_PATIENT}"
            if filter_name == "tempauth":
                account, _, user = self.keys["ST_USER"].partition(":")
                text += f"user_{account}_{user} = {self.keys['ST_KEY']} .admin\n"
                text += f"user_{GUEST.replace(':', '_')} = {self.guest_key}\n"
                text += f"user_{account}_boss = {self._admin_key} .admin .reseller_admin\n"
        return text

    def _as_admin(self, method: str, path: str, headers: dict[str, str] | None = None) -> bytes:
        if not self._admin:
            account = self.keys["ST_USER"].partition(":")[0]
            login = {"X-Auth-User": f"{account}:boss", "X-Auth-Key": self._admin_key}
            _, found = _request(self.port, "GET", "/auth/v1.0", login)
            self._admin = {"X-Auth-Token": found["X-Auth-Token"], "path": urlsplit(found["X-Storage-Url"]).path}
        own = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        token = {"X-Auth-Token": self._admin["X-Auth-Token"], "X-Newest": "true"}
        return _request(self.port, method, self._admin["path"] + path, {**token, **own})[0]


@contextlib.contextmanager
def running(
    count: int, root: Path, keys: dict[str, str], binaries: Path | None = None, *, nodes: int = 1
) -> Iterator[list[SwiftServer]]:
    """`count` clusters below `root`, all with the same user and key; they end with the block."""
    binaries = binaries or find_binaries()
    if binaries is None:
        raise RuntimeError("no Swift: tests/servers/swift_server.sh fetches it, or set METASYNC_SWIFT_SERVER")
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(f"between 1 and {COUNT_MAX} servers, not {count}")
    servers: list[SwiftServer] = []
    try:
        for number in range(count):
            servers.append(SwiftServer(binaries, root / f"swift-{number}", keys, nodes=nodes))
            servers[-1].start()
        yield servers
    finally:
        for server in servers:
            server.stop()


def _request(port: int, method: str, path: str, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers={"Content-Length": "0", **headers})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {body[:200]!r}")
        return body, dict(answer.getheaders())
    finally:
        connection.close()


def _memcached(binaries: Path) -> str | None:
    return shutil.which(binaries / "memcached") or shutil.which("memcached")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def main() -> int:
    parser = loopback.parser("OpenStack Swift", count=1, most=COUNT_MAX)
    parser.add_argument("--nodes", type=int, default=1, help=f"object servers of each, at most {NODES_MAX}")
    arguments = parser.parse_args()
    servers = running(arguments.count, arguments.root.resolve(), make_keys(), nodes=arguments.nodes)
    return loopback.serve(servers)


if __name__ == "__main__":
    sys.exit(main())
