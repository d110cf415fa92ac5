"""A clock that is moved, two devices, an operation in a thread, and a gate that holds its packs."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from workspace_kit import Lab, write

from metasync.backends.folder import FolderBackend
from metasync.events import Event
from metasync.workspace import Workspace

SOON_S = 60.0
SMALL = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wait_until(true: Any) -> None:
    ends = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Gate:
    """Holds all but the first `free` copies of large packs until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.open = threading.Event()
        self.full = threading.Event()
        self.left = free
        self.put = 0
        self.lock = threading.Lock()
        real = FolderBackend.put

        def put(backend: FolderBackend, path: str, data: bytes) -> None:
            if "/packs/" in path and len(data) > SMALL:
                with self.lock:
                    self.left -= 1
                    self.put += 1
                    held = self.left < 0
                if held:
                    self.full.set()
                    assert self.open.wait(SOON_S)
            real(backend, path, data)

        monkeypatch.setattr(FolderBackend, "put", put)


class Running(threading.Thread):
    """An operation in a thread, with what came of it."""

    def __init__(self, operation: Any) -> None:
        super().__init__(daemon=True)
        self.operation = operation
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.operation()
        except BaseException as e:  # told by `end`
            self.error = e

    def end(self) -> Any:
        self.join(2 * SOON_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def two_devices(lab: Lab) -> tuple[Workspace, Workspace]:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"first": b"1"})
    w.push()
    return w, lab.clone(lab.urls("a", "b", "c"))


def pulling(lab: Lab, *, push: bool = False) -> tuple[Workspace, Workspace, list[Event]]:
    """A device that has much to fetch, and one that has it."""
    w, other = two_devices(lab)
    write(other.directory, {f"f{i:02}": os.urandom(600_000) for i in range(8)})
    other.push()
    if push:
        write(w.directory, {"mine": b"mine"})
    directory = w.directory
    w.close()
    told: list[Event] = []
    return lab.keep(Workspace.open(directory, on_event=told.append)), other, told
