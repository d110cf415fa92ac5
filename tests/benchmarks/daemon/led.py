"""A keeper that is led turn by turn on a clock of the bench, with its stores in memory and counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from metasync.backends.api import Backend, BackendUrl
from metasync.keys.slots import Cost
from metasync.local.settings import Settings
from metasync.moving import upkeep
from metasync.reports.service import WorkspaceState
from metasync.service.keeper import Keeper
from metasync.session import open_backend
from metasync.testing.counting import CountingBackend
from metasync.workspace import Workspace

COPIES = 2
HTTP_BYTES = 900  # of one request and its answer beside the object, on an open connection: an estimate
CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)


class Spent(NamedTuple):
    """Bytes both ways, requests, and CPU seconds of this process."""

    object_bytes: int
    requests: int
    cpu_s: float

    @property
    def bytes(self) -> int:
        return self.object_bytes + HTTP_BYTES * self.requests


class Led:
    """A keeper of a folder, and the clock it goes by."""

    def __init__(self, folder: Path, settings: Mapping[str, str], counted: list[CountingBackend]) -> None:
        self.folder, self._counted = folder, counted
        self.now = 1000.0
        self.keeper = Keeper(
            folder, settings=Settings(dict(settings)), tell=self._hear, clock=lambda: self.now, boot=lambda: self.now,
            wall=lambda: self.now + 1.7e9, draw=lambda: 0.5,
        )  # fmt: skip
        self.turns = 0

    def _hear(self, _state: WorkspaceState) -> None:
        pass

    @property
    def state(self) -> WorkspaceState:
        return self.keeper.state()

    def go_on(self, seconds: float) -> None:
        """Hears of what has happened, and lets so much time pass."""
        self.keeper._changes.catch_up()
        end = self.now + seconds
        while True:
            wake_at = self.keeper.turn()
            self.turns += 1
            if wake_at >= end:
                self.now = end
                return
            self.now = max(self.now, wake_at)

    def settle(self) -> None:
        """Lets time pass until all is pushed."""
        self.go_on(1.0)
        for _ in range(20):
            if self.state.doing == "in step":
                return
            self.go_on(10.0)
        raise AssertionError(self.state)

    def spent(self) -> Spent:
        counts = [backend.count() for backend in self._counted]
        size = sum(c.up_bytes + c.down_bytes for c in counts)
        return Spent(size, sum(c.requests.total() for c in counts), time.process_time())

    def since(self, before: Spent) -> Spent:
        now = self.spent()
        return Spent(*(a - b for a, b in zip(now, before, strict=True)))


def tiny_files(folder: Path, count: int) -> list[Path]:
    """Makes so many files of a few bytes, a hundred in a directory; -> these directories."""
    made = []
    for at in range(count):
        if at % 100 == 0:
            made.append(folder / f"{at // 10_000:03}/{at // 100 % 100:02}")
            made[-1].mkdir(parents=True)
        with open(f"{made[-1]}/{at % 100:02}", "wb", buffering=0) as file:
            file.write(b"%d" % at)
    return made


@contextmanager
def led(
    folder: Path, settings: Mapping[str, str] | None = None, fill: Callable[[Path], object] = lambda _: None
) -> Iterator[Led]:
    """A workspace on three stores in memory, kept in step; `fill` puts files into its folder before the first push."""
    os.environ["METASYNC_KEYRING"] = "off"
    upkeep.BUDGET_S = 0.0  # type: ignore[misc]
    counted: list[CountingBackend] = []
    opened = open_backend.opened

    def counting(name: str, url: BackendUrl, *, create: bool) -> Backend:
        counted.append(CountingBackend(opened(name, url, create=create)))
        return counted[-1]

    open_backend.opened = counting
    folder.mkdir(parents=True, exist_ok=True)
    urls = [f"memory://{folder.parent.name}-{folder.name}-{name}?name={name}" for name in ("one", "two", "three")]
    try:
        options = {"name": "bench", "backends": urls, "passphrase": "bench", "replicas": COPIES, "kdf": CHEAP}
        Workspace.init(folder, **options).workspace.close()  # type: ignore[arg-type]
        fill(folder)
        made = Led(folder, settings or {}, counted)
        try:
            made.settle()
            yield made
        finally:
            made.keeper._close()
    finally:
        open_backend.opened = opened
