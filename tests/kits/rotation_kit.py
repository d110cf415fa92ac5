"""Three devices of one workspace, changes of its keys, and what of them lies on its backends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, tree_of, write

from metasync.consensus import Change, Group
from metasync.reports.members import RotationReport
from metasync.runtime.effects import Gather
from metasync.session import agreement
from metasync.session.session import Session
from metasync.workspace import Workspace

NEW = "another horse, another battery"
WRONG = "not that one"
FILES = {"notes.txt": b"one\n", "d/photo.bin": b"\x01" * 20_000}


def three(lab: Lab, *names: str, **options: Any) -> tuple[Workspace, Workspace, Workspace]:
    """Three devices at one version: laptop, desktop, phone."""
    urls = lab.urls(*(names or ("a", "b", "c")))
    w = lab.init(urls, **options)
    write(w.directory, FILES)
    w.push("first")
    d, p = lab.clone(urls), lab.clone(urls, device="phone")
    w.pull()
    return w, d, p


def revoke(w: Workspace, *names: str, passphrase: str = PASSPHRASE, **options: Any) -> RotationReport:
    return w.device_revoke(names, passphrase, kdf=CHEAP, **options)


def rotate(w: Workspace, passphrase: str = PASSPHRASE, **options: Any) -> RotationReport:
    return w.key_rotate(passphrase, kdf=CHEAP, **options)


@contextlib.contextmanager
def away(lab: Lab, *names: str) -> Iterator[None]:
    """These backends cannot be reached meanwhile, from no device."""
    for n in names:
        lab.store(n).rename(lab.store(f"{n} is away"))
    try:
        yield
    finally:
        for n in names:
            lab.store(f"{n} is away").rename(lab.store(n))


def pack_epochs(lab: Lab, *names: str) -> dict[str, int]:
    """The key epoch in the clear header of every pack."""
    return {p.name: int.from_bytes(p.read_bytes()[2:6], "big") for n in names for p in lab.objects(n, "packs")}


def keys_in(lab: Lab, backend: str, kind: str) -> list[Path]:
    return [p for p in lab.objects(backend, "keys") if p.name.startswith(f"{kind}-")]


def agree_on_files(*workspaces: Workspace) -> None:
    for w in workspaces:
        w.sync()
    for w in workspaces:
        w.pull()
        assert tree_of(w.directory) == tree_of(workspaces[0].directory)


def looked(group: Group, instance: Any) -> Any:
    """Looks once at every acceptor of an instance."""
    instance.begin()
    yield Gather({a.name: a.look() for a in instance.acceptors.values()})


def closed_logs(w: Workspace, base: Any) -> int:
    """How many logs of the version after `base` are closed, as this device reads them."""
    with w._session("look") as s:
        instance = s.runtime.run(s.group.enter(base))
        s.runtime.run(looked(s.group, instance))
        return sum(a.log.closed is not None for a in instance.acceptors.values())


@contextlib.contextmanager
def meanwhile(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    what: Callable[[], object],
    when: Callable[[Change], bool] = lambda _: True,
) -> Iterator[None]:
    """Does something once, just before this device proposes a change of the kind `when` says."""
    real = agreement.propose
    done: list[int] = []

    def propose(self: Session, base: Any, change: Change) -> Any:
        if self.device.name == device and when(change) and not done:
            done.append(1)
            what()
        return real(self, base, change)

    with monkeypatch.context() as m:
        m.setattr(agreement, "propose", propose)
        yield
    assert done
