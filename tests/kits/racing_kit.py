"""Whole workspaces over stores whose create races: a lab of them, threads that begin together, a crowd of devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from workspace_kit import Lab, write

from metasync.backends.api import Backend, BackendUrl, LogForm
from metasync.session import open_backend
from metasync.testing.racy import RacingBackend
from metasync.workspace import Workspace

URLS = ("dav1", "dav2", "folder")


def race(lab: Lab, monkeypatch: pytest.MonkeyPatch, form: LogForm) -> Lab:
    opened = open_backend.opened

    def racing_opened(name: str, url: BackendUrl, *, create: bool) -> Backend:
        backend = opened(name, url, create=create)
        return RacingBackend(backend, form=form) if "/dav" in url.location else backend

    monkeypatch.setattr(open_backend, "opened", racing_opened)
    return lab


def at_once(*jobs: Callable[[], Any]) -> list[BaseException | None]:
    """Runs all in threads that begin together; -> how each ended."""
    together = threading.Barrier(len(jobs))
    ends: list[BaseException | None] = [None] * len(jobs)

    def run(i: int) -> None:
        together.wait()
        try:
            jobs[i]()
        except BaseException as e:  # told to the caller
            ends[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def crowd(lab: Lab, devices: int) -> list[Workspace]:
    """Devices of one workspace over two racing stores and a folder, all of them in."""
    urls = lab.urls(*URLS)
    first = lab.init(urls, device="d0")
    write(first.directory, {f"f{i}": b"%d\n" % i for i in range(devices)})
    first.push("first")
    others = [lab.clone(urls, device=f"d{i}") for i in range(1, devices)]
    first.push()
    for w in others:
        w.pull()
    return [first, *others]
