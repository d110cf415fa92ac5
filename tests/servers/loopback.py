"""What the servers of this folder share: how a program is run on loopback, and the scripts that run some."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

COUNT_MAX = 9
_START_TIMEOUT_S = 30


class LoopbackServer:
    """One server. `stop` ends it; `start` brings it back at the same address with what it held."""

    name = "a server"
    stop_timeout_s = 5.0

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self._has_run = False  # others know its port
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        """Arguments and environment."""
        raise NotImplementedError

    def run_as(self) -> Mapping[str, Any]:
        """What `Popen` is told of the account to run as, where that is another one."""
        return {}

    def answers(self) -> bool:
        """Whether it takes requests, once its port is open."""
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        for attempt in range(3):
            if self._start():
                self._has_run = True
                return
            if attempt == 0 and not self._has_run:
                self.port = free_port()  # another program took it between our look and the server's start
        said = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.root.glob("*log"))
        raise RuntimeError(f"{self.name} did not start:\n{said}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what it started too: that would hold the port
            self._process.wait()
        self._process = None

    def _start(self) -> bool:
        arguments, variables = self.command()
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.root), **variables}
        with open(self.root / "log", "ab") as log:
            self._process = subprocess.Popen(
                arguments,
                env=env,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.run_as(),
            )
        until = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                if self.answers():
                    return self._process.poll() is None
            time.sleep(0.02)
        self.stop()
        return False


Server = TypeVar("Server", bound=LoopbackServer)


@contextlib.contextmanager
def running(count: int, root: Path, make: Callable[[Path], Server]) -> Iterator[list[Server]]:
    """`count` servers below `root`; they end with the block."""
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(f"between 1 and {COUNT_MAX} servers, not {count}")
    servers: list[Server] = []
    try:
        for number in range(count):
            folder = root / f"server-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            servers.append(make(folder))
            servers[-1].start()
        yield servers
    finally:
        for server in servers:
            server.stop()


def parser(what: str, *, count: int = 3, most: int = COUNT_MAX) -> argparse.ArgumentParser:
    """The command line of a script that runs servers for benchmarks."""
    made = argparse.ArgumentParser(description=f"Runs {what} on loopback until standard input closes.")
    made.add_argument("--count", type=int, default=count, help=f"how many, at most {most}")
    made.add_argument("--root", type=Path, required=True, help="folder for what they hold; it stays")
    return made


def serve(servers: contextlib.AbstractContextManager[Sequence[Any]]) -> int:
    """Prints a URL of each server and the variables that open the first, and runs them until standard input closes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with servers as running:
            for server in running:
                print(server.url())
            for name, value in running[0].env.items():
                print(f"export {name}={value}")
            print("ready", flush=True)
            sys.stdin.read()
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
