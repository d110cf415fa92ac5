"""One server process on loopback: what the servers of this folder that are a single program share."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

COUNT_MAX = 9
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 5


class LoopbackServer:
    """One server. `stop` ends it; `start` brings it back at the same address with what it held."""

    name = "a server"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        """Arguments and environment."""
        raise NotImplementedError

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
                return
            if attempt == 0:
                self.port = free_port()  # another program took it between our look and the server's start
        raise RuntimeError(f"{self.name} did not start:\n{(self.root / 'log').read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> bool:
        arguments, variables = self.command()
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.root), **variables}
        with open(self.root / "log", "ab") as log:
            self._process = subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
