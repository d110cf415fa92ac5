"""One simulated client: a folder with its user, a local state, and the real `Workspace` on a machine of its own."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from metasync.backends.api import Backend, BackendUrl
from metasync.errors import UnreachableError
from metasync.events import Notice
from metasync.keys.device_set import Certificate, DeviceIdentity
from metasync.keys.keyring import WorkspaceKeys
from metasync.keys.slots import Cost
from metasync.local.lock import WorkspaceLock
from metasync.local.state import LocalDb
from metasync.runtime.tasks import Runtime
from metasync.session.connections import Machine
from metasync.session.folder import Link
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk
from simulation.db import SimDb, Tables
from simulation.disk import SimDisk, Volume
from simulation.network import Lines, SimStore, Store
from simulation.runtime import SimRuntime
from simulation.world import Boot, World

Secret = tuple[WorkspaceKeys, DeviceIdentity, Certificate]
PASSPHRASE: Final = "simulated"
CHEAP: Final = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
_URL: Final = "file:///stores/"


def url_of(store: str) -> str:
    """The URL under which clients know a store."""
    return _URL + store


class SimMachine(Machine):
    """What a workspace takes from its machine, out of the world."""

    def __init__(
        self,
        world: World,
        boot: Boot,
        client: str,
        volume: Volume,
        stores: Mapping[str, Store],
        lines: Lines,
        secret: Secret,
        skew_s: float,
        keep: Callable[[Secret], None],
    ) -> None:
        super().__init__()
        self.rests_after_s = None  # threads of their own are none of the world's
        self._world = world
        self._boot = boot
        self._client = client
        self._volume = volume
        self._stores = stores
        self._lines = lines
        self._secret = secret
        self._skew_ns = int(skew_s * 1e9)
        self._keep = keep

    def disk(self) -> Disk:
        return SimDisk(self._volume, self._boot)

    def mark(self) -> tuple[object, ...]:
        return ()

    def wall_ns(self) -> int:
        return self._world.wall_ns() + self._skew_ns

    def entropy(self, n: int) -> bytes:
        return self._world.rng.randbytes(n)

    def runtime(self, backends: Mapping[str, Backend], db: LocalDb) -> Runtime:
        sim = SimRuntime(self._world, self._boot, self._client, self._lines, backends, db.set_value, db.value)
        return cast(Runtime, sim)

    def way(self, name: str, link: Link, *, suspected: bool) -> Backend:
        store = self._stores[link.url.rpartition("/")[2]]
        if store.is_down(self._client) and self._world.rng.random() < 0.5:
            raise UnreachableError(f"{name}: it does not open")
        return cast(Backend, SimStore(store, self._client))

    def opened(self, name: str, url: BackendUrl, *, create: bool) -> Backend:
        return self.reached(name, url)

    def reached(self, name: str, url: BackendUrl, link: Link | None = None) -> Backend:
        self._boot.step()
        store = self._stores[url.path.rpartition("/")[2]]
        if store.is_down(self._client):
            raise UnreachableError(f"{name}: it does not open")
        return cast(Backend, SimStore(store, self._client))

    def secret(self, directory: Path, db: LocalDb) -> Secret:
        return self._secret

    def place(self, directory: Path) -> bytes:
        return place_of(self._client)

    def keep_secret(
        self, directory: Path, keys: WorkspaceKeys, device: DeviceIdentity, certificate: Certificate
    ) -> None:
        self._boot.step()
        self._secret = (keys, device, certificate)
        self._keep(self._secret)

    def lock(
        self,
        directory: Path,
        command: str,
        waiting: Callable[[str], None],
        wait_s: float = 0,
        *,
        presses: bool = True,
        heed: Callable[[], None] = lambda: None,
    ) -> contextlib.AbstractContextManager[WorkspaceLock]:
        return contextlib.nullcontext(WorkspaceLock(directory))  # never taken: no two commands of a client at once


def place_of(client: str) -> bytes:
    """Where a client's `.metasync` lies: on a machine of its own."""
    return hashlib.sha256(client.encode()).digest()


def workspace(world: World, boot: Boot, tables: Tables, machine: SimMachine) -> Workspace:
    """The workspace of one process."""

    def listen(event: Any) -> None:
        if isinstance(event, Notice):
            text = event.text
            if "interrupted" in text or "late write" in text:
                world.count(text.split(" as ")[0])
            boot.told_apart = boot.told_apart or "it stands on another version" in text

    made = Workspace(Path("/simulated"), cast(LocalDb, SimDb(tables, boot)), listen, machine)
    made._work.upkeep = lambda: None  # data move where the plan says so, and settings are a file of the real machine
    return made
