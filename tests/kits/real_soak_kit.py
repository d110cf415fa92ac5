"""A soak on real daemons: a process for each device, folders as stores, edits and mishaps by chance, in real time.

Daemons are killed and started again, suspended and resumed; folders of stores are moved away as a drive is unmounted:
the path is gone, or an empty folder stands in its place. The first device's daemon is never killed, so that it shows
what a long life takes. The end is known (`edits_kit`): every folder has what each path's owner wrote last, there is no
conflict, and all that was agreed can be read.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from edits_kit import Edits

from metasync.keys.slots import Cost
from metasync.reports.service import WorkspaceState
from metasync.service.client import Client
from metasync.service.wire import sockets
from metasync.session.folder import DB_FILE, STATE_DIR
from metasync.workspace import Workspace

STORES: Final = ("one", "two", "three")
EDIT_EVERY_S: Final = 4.0  # on each device, at the mean
KILL_EVERY_S: Final = 60.0
KILLED_S: Final = (0.0, 10.0)
SUSPEND_EVERY_S: Final = 60.0
SUSPENDED_S: Final = (2.0, 40.0)
UNMOUNT_EVERY_S: Final = 60.0
UNMOUNTED_S: Final = (5.0, 60.0)
HUNG_S: Final = 900.0  # for all to be in step at the end
STEP_S: Final = 0.05
CHEAP: Final = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
PASSPHRASE: Final = "a soak of real daemons"


class Taken(NamedTuple):
    """What the daemon of a device takes at a moment."""

    resident_mb: int
    threads: int
    descriptors: int
    database_kb: int
    cpu_s: float

    def __str__(self) -> str:
        return (
            f"{self.resident_mb} MB, {self.threads} threads, {self.descriptors} descriptors, "
            f"database {self.database_kb:,} KB, {self.cpu_s:.0f} CPU s"
        )


@dataclass
class Device:
    """A folder, and the daemon that keeps it. `back_at`: when it is started or resumed again; infinity: it runs."""

    folder: Path
    home: Path
    process: subprocess.Popen[bytes] | None = None
    back_at: float = math.inf

    @property
    def environment(self) -> dict[str, str]:
        homes = {name: str(self.home) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        return {**os.environ, **homes, "METASYNC_KEYRING": "off", "METASYNC_DAEMON": "on"}

    def start(self) -> None:
        """Starts its daemon; what an earlier one left behind is its business."""
        with (self.home / "output").open("ab") as output:
            words = [sys.executable, "-m", "metasync", "daemon", "run", "--quiet", str(self.folder)]
            self.process = subprocess.Popen(words, env=self.environment, stdout=output, stderr=output)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"a daemon ended by itself: {(self.home / 'output').read_text()[-2000:]}")
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None

    def suspend(self) -> None:
        self.send(signal.SIGSTOP)

    def state(self) -> WorkspaceState | None:
        """What its daemon says; None while it does not answer."""
        line = sockets.connect(self.home / "metasync" / sockets.FILE, 5.0)
        if line is None:
            return None
        with Client(line) as client:
            found = client.status().workspaces
        return found[0] if found else None

    def taken(self) -> Taken | None:
        """What its daemon takes; None while none runs."""
        if self.process is None:
            return None
        proc = Path(f"/proc/{self.process.pid}")
        told = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        used = (proc / "stat").read_text().rpartition(")")[2].split()[11:13]
        state = self.folder / STATE_DIR
        sizes = [path.stat().st_size for path in state.glob(f"{DB_FILE}*")]
        return Taken(
            resident_mb=int(told["VmRSS"].split()[0]) // 1024,
            threads=int(told["Threads"]),
            descriptors=len(os.listdir(proc / "fd")),
            database_kb=sum(sizes) // 1024,
            cpu_s=sum(map(int, used)) / os.sysconf("SC_CLK_TCK"),
        )


@dataclass
class RealSoak:
    """One run, in a folder of its own. `told` hears what happens and what the daemons take."""

    root: Path
    rng: random.Random
    told: Callable[[str], None]
    devices: list[Device] = field(default_factory=list)
    away: dict[str, float] = field(default_factory=dict)  # stores that are away -> when they come back
    kills: int = 0
    suspensions: int = 0
    unmounts: int = 0

    def __post_init__(self) -> None:
        self.edits = Edits(self.rng)

    def begin(self, devices: int = 3) -> None:
        """Makes the workspace on so many devices and starts their daemons."""
        os.environ["METASYNC_KEYRING"] = "off"
        urls = [f"file://{self.root / name}?name={name}" for name in STORES]
        for at in range(devices):
            home = self.root / f"h{at}"
            home.mkdir(mode=0o700)
            device = Device(self.root / f"device{at}", home)
            device.folder.mkdir()
            words = {"name": "soak", "backends": urls, "passphrase": PASSPHRASE, "device_name": f"device{at}"}
            if at == 0:
                workspace = Workspace.init(device.folder, replicas=2, kdf=CHEAP, **words).workspace  # type: ignore[arg-type]
                workspace.push()
            else:
                workspace = Workspace.clone(device.folder, **words).workspace  # type: ignore[arg-type]
            workspace.configure("notify.desktop", "off")
            workspace.close()
            self.devices.append(device)
            self.edits.folders.append(device.folder)
        for device in self.devices:
            device.start()

    def run(self, minutes: float) -> None:
        """Lets so many minutes pass with edits and mishaps, and says at each third what the daemons take."""
        rng, began = self.rng, time.monotonic()
        end, third = began + minutes * 60.0, minutes * 20.0
        thirds = [began + third, began + 2 * third, end]
        edit_at = [began + rng.expovariate(1 / EDIT_EVERY_S) for _ in self.devices]
        kill_at, suspend_at, unmount_at = (
            began + rng.expovariate(1 / every_s) for every_s in (KILL_EVERY_S, SUSPEND_EVERY_S, UNMOUNT_EVERY_S)
        )
        while thirds:
            now = time.monotonic()
            self.bring_back(now)
            for at, when in enumerate(edit_at):
                if when <= now:
                    self.edits.on(at)
                    edit_at[at] = now + rng.expovariate(1 / EDIT_EVERY_S)
            if kill_at <= now:
                self.stop(rng.choice(self.devices[1:]), Device.kill, now + rng.uniform(*KILLED_S))
                kill_at = now + rng.expovariate(1 / KILL_EVERY_S)
            if suspend_at <= now:
                self.stop(rng.choice(self.devices), Device.suspend, now + rng.uniform(*SUSPENDED_S))
                suspend_at = now + rng.expovariate(1 / SUSPEND_EVERY_S)
            if unmount_at <= now:
                for name in rng.sample(STORES, rng.choice([1, 1, 1, 2])):
                    self.unmount(name, now + rng.uniform(*UNMOUNTED_S))
                unmount_at = now + rng.expovariate(1 / UNMOUNT_EVERY_S)
            if thirds[0] <= now:
                thirds.pop(0)
                self.tell_taken(f"{(now - began) / 60:.1f} minutes, {self.edits.count} edits")
            time.sleep(STEP_S)
        self.bring_back(math.inf)

    def stop(self, device: Device, by: Callable[[Device], None], until: float) -> None:
        """Kills or suspends a daemon, unless that was done already and it has not come back."""
        if device.back_at < math.inf:
            return
        by(device)
        device.back_at = until
        self.kills += device.process is None
        self.suspensions += device.process is not None

    def unmount(self, name: str, until: float) -> None:
        """Moves a store away, unless it is."""
        if name in self.away:
            return
        store = self.root / name
        store.rename(self.root / f"{name}.away")
        if self.rng.random() < 0.5:
            store.mkdir()  # as the place where a drive was mounted
        self.away[name] = until
        self.unmounts += 1

    def bring_back(self, now: float) -> None:
        """Brings back what was stopped or moved away until now."""
        for name in [name for name, until in self.away.items() if until <= now]:
            del self.away[name]
            store = self.root / name
            if store.exists():
                store.rmdir()  # fails where somebody wrote to what stood there
            (self.root / f"{name}.away").rename(store)
        for device in self.devices:
            if device.back_at <= now and device.back_at < math.inf:
                device.back_at = math.inf
                if device.process is None:
                    device.start()
                else:
                    device.send(signal.SIGCONT)

    def settle(self) -> float:
        """Waits until all daemons say that they are in step and every folder is as it should be. -> seconds."""
        began = time.monotonic()
        while True:
            states = [device.state() for device in self.devices]
            differing = [self.edits.differing(device.folder) for device in self.devices]
            if not any(differing) and all(state is not None and state.doing == "in step" for state in states):
                return time.monotonic() - began
            if time.monotonic() - began > HUNG_S:
                raise AssertionError(([paths[:5] for paths in differing], states))
            time.sleep(1.0)

    def check(self) -> None:
        """Nobody met a conflict, and all that was agreed is there and sound.

        What was stored while two of three stores were away has one copy until it is mended: here at the latest.
        """
        for device in self.devices:
            with Workspace.open(device.folder) as workspace:
                assert not workspace.conflicts(), workspace.conflicts()
        with Workspace.open(self.devices[0].folder) as workspace:
            before = workspace.check(read_data=True)
            self.told(f"{before.packs} packs, {before.short} with one copy yet")
            assert not before.lost, before
            workspace.scrub(full=True)
            after = workspace.check(read_data=True)
        assert not (after.problems or after.lost or after.short or after.meta_problems or after.nowhere), after

    def tell_taken(self, when: str) -> None:
        for device in self.devices:
            self.told(f"{when}: {device.folder.name}: {device.taken() or 'is being started'}")

    def end(self) -> None:
        """Ends the daemons that still run."""
        for device in self.devices:
            if device.process is not None:
                device.process.kill()
                device.process.wait()
