"""Devices with daemons of their own, in processes of their own, on the clock of the wall."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from daemon.led import CHEAP, COPIES
from real_soak_kit import PASSPHRASE, Device

from metasync.reports.service import WorkspaceState
from metasync.service.client import Client
from metasync.service.wire import sockets
from metasync.workspace import Workspace

STEP_S = 0.01  # between looks
HUNG_S = 600.0


def made(folder: Path, count: int, urls: Sequence[str], settings: Mapping[str, str] | None = None) -> list[Device]:
    """So many devices of one workspace, whose daemons are not started."""
    os.environ |= {"METASYNC_KEYRING": "off", "METASYNC_DAEMON": "off"}
    found = []
    for at in range(count):
        device = Device(folder / f"device{at}", folder / f"h{at}")
        device.home.mkdir(mode=0o700)
        device.folder.mkdir()
        words = {"name": "bench", "backends": list(urls), "passphrase": PASSPHRASE, "device_name": f"device{at}"}
        if at == 0:
            w = Workspace.init(device.folder, replicas=COPIES, kdf=CHEAP, **words).workspace  # type: ignore[arg-type]
        else:
            w = Workspace.clone(device.folder, **words).workspace  # type: ignore[arg-type]
        for key, value in {"notify.desktop": "off", **(settings or {})}.items():
            w.configure(key, value)
        (device.folder / f"of-{at}").write_bytes(b"1")
        w.push()  # each is known to the others, as after its first change
        w.close()
        found.append(device)
    return found


@contextmanager
def running(devices: Sequence[Device]) -> Iterator[None]:
    """Their daemons, each in step at the beginning."""
    try:
        for device in devices:
            device.start()
        for device in devices:
            until(lambda device=device: is_settled(device.state()), "all in step")  # type: ignore[misc]
        yield
    finally:
        for device in devices:
            if device.process is not None:
                device.process.terminate()
        for device in devices:
            if device.process is not None:
                device.process.wait()


def is_settled(state: WorkspaceState | None) -> bool:
    return state is not None and state.doing == "in step"


def until(is_so: Callable[[], bool], what: str) -> float:
    """Waits until something is so. -> when it was, in seconds since 1970."""
    ends = time.monotonic() + HUNG_S
    while not is_so():
        if time.monotonic() > ends:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(STEP_S)
    return time.time()


def client(device: Device) -> Client:
    """A line to its daemon."""
    line = sockets.connect(device.home / "metasync" / sockets.FILE, 5.0)
    assert line is not None, "the daemon does not answer"
    return Client(line)


def cpu_s(device: Device) -> float:
    """What its daemon has used so far."""
    assert device.process is not None
    used = Path(f"/proc/{device.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def load() -> str:
    """How busy the machine is, beside which every second on the clock stands."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
