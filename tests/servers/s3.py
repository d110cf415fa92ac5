"""S3 servers for tests and benchmarks: versitygw over a temporary folder, on loopback, with a key made up on the spot.

    METASYNC_S3_SERVER=.servers/bin/versitygw python tests/servers/s3.py --count 3 --root DIR

starts three, prints a URL for each and the variables that hold their key, and stops them when its standard input
closes or it is told to end.
"""

from __future__ import annotations

import argparse
import contextlib
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

COUNT_MAX = 9
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 5
BUCKET = "metasync"
REGION = "us-east-1"


def find_binary() -> str | None:
    """The versitygw to run: the one named in the environment, the one `versitygw.sh` built, or one on the PATH."""
    fetched = Path(__file__).parents[2] / ".servers/bin/versitygw"
    return os.environ.get("METASYNC_S3_SERVER") or shutil.which(fetched) or shutil.which("versitygw")


def make_keys() -> dict[str, str]:
    """The variables with a new key. What else the environment says of AWS does not matter to our backend."""
    return {
        "AWS_ACCESS_KEY_ID": f"test{secrets.token_hex(8)}",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        "AWS_REGION": REGION,
    }


class S3Server:
    """One server with one bucket. `stop` ends it; `start` brings it back at the same address with what it held."""

    def __init__(self, binary: str, root: Path, keys: dict[str, str]) -> None:
        self.root = root
        self.keys = keys
        self.port = _free_port()
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self.make_bucket(BUCKET)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, prefix: str = "", *, bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def make_bucket(self, name: str) -> None:
        (self.root / "buckets" / name).mkdir(parents=True, exist_ok=True)
        (self.root / "meta" / name).mkdir(parents=True, exist_ok=True)

    def remove_bucket(self, name: str) -> None:
        shutil.rmtree(self.root / "buckets" / name)

    def start(self) -> None:
        for attempt in range(3):
            if self._start():
                return
            if attempt == 0 and self._process is not None:
                self.port = _free_port()  # another program took it between our look and the server's start
        raise RuntimeError(f"{self._binary} did not start:\n{self._log()}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> bool:
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.root)}
        env["ROOT_ACCESS_KEY"] = self.keys["AWS_ACCESS_KEY_ID"]  # in the environment: arguments are seen by everybody
        env["ROOT_SECRET_KEY"] = self.keys["AWS_SECRET_ACCESS_KEY"]
        # Without --keep-alive it closes the connection after every request, which doubles the client's CPU.
        arguments = ["--port", f"127.0.0.1:{self.port}", "--region", REGION, "--keep-alive", "--quiet", "posix"]
        if not _has_xattr(self.root):
            arguments += ["--sidecar", str(self.root / "meta")]
        with open(self.root / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *arguments, str(self.root / "buckets")],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                time.sleep(0.02)
                return self._process.poll() is None
            time.sleep(0.02)
        self.stop()
        return False

    def _log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-2000:]


@contextlib.contextmanager
def running(count: int, root: Path, keys: dict[str, str], binary: str | None = None) -> Iterator[list[S3Server]]:
    """`count` servers below `root`, all with the same key; they end with the block."""
    binary = binary or find_binary()
    if binary is None:
        raise RuntimeError("no versitygw: tests/servers/versitygw.sh builds it, or set METASYNC_S3_SERVER")
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(f"between 1 and {COUNT_MAX} servers, not {count}")
    servers: list[S3Server] = []
    try:
        for number in range(count):
            folder = root / f"s3-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            server = S3Server(binary, folder, keys)
            servers.append(server)
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _has_xattr(folder: Path) -> bool:
    """Whether files here can hold what versitygw keeps beside them; tmpfs and some network file systems cannot."""
    if not hasattr(os, "setxattr"):
        return sys.platform == "darwin"
    try:
        os.setxattr(folder, "user.metasync.test", b"1")
        os.removexattr(folder, "user.metasync.test")
    except OSError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs S3 servers on loopback until standard input closes.")
    parser.add_argument("--count", type=int, default=3, help=f"how many, at most {COUNT_MAX}")
    parser.add_argument("--root", type=Path, required=True, help="folder for what they hold; it stays")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keys = make_keys()
    try:
        with running(arguments.count, arguments.root.resolve(), keys) as servers:
            for server in servers:
                print(server.url())
            for name, value in keys.items():
                print(f"export {name}={value}")
            print("ready", flush=True)
            sys.stdin.read()
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
