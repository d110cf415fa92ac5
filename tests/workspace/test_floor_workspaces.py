"""Floors in whole workspaces: devices that slept while thousands of versions (here: dozens) were agreed and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace_kit import CHEAP, PASSPHRASE, Lab, tree_of, write

from metasync.consensus import chain, truncation
from metasync.consensus.records import entry
from metasync.errors import ExcludedError
from metasync.local.state_keys import FLOORLESS_KEY
from metasync.session import agreement
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors at multiples of 8, the newest 16 versions kept, and no wait."""
    monkeypatch.setattr(entry, "VERSIONS_PER_FOLDER", 8)
    monkeypatch.setattr(chain, "VERSIONS_PER_FOLDER", 8)
    monkeypatch.setattr(truncation, "STEP", 8)
    monkeypatch.setattr(truncation, "BEHIND_LEAST", 8)
    for task in (truncation.bound_logs,):
        monkeypatch.setattr(task, "__kwdefaults__", {"keep": 16, "grace_s": 0.0})
    monkeypatch.setattr(agreement, "LOGS_KEPT", 16)


def many(w: Workspace, count: int) -> None:
    for n in range(count):
        write(w.directory, {"file": b"%d" % n})
        w.push()


def logs(lab: Lab, name: str) -> set[str]:
    """The folders of log entries that a store still holds."""
    return {p.parent.name for p in lab.store(name).rglob("px/*/*")}


def slept(lab: Lab, w: Workspace) -> Workspace:
    """A device that sleeps for longer than a day: floors that it did not see before count for nothing after that."""
    c = lab.clone(lab.urls(*NAMES))
    write(c.directory, {"mine": b"mine"})
    c._db.set(FLOORLESS_KEY, None)
    c.close()
    return lab.keep(Workspace.open(c.directory))


@pytest.mark.long
def test_a_device_that_slept_over_floors_goes_on(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    many(w, 4)
    c = slept(lab, w)
    many(w, 60)
    assert all("0" not in logs(lab, name) for name in NAMES), "nothing was deleted"
    report = c.sync()
    assert report[0].conflicts == ()
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    assert (w.directory / "mine").read_bytes() == b"mine"
    assert c.status().evidence == ()
    assert {b.state for b in c.status().backends} == {"ok"}


@pytest.mark.long
def test_a_device_that_slept_over_floors_and_new_keys(lab: Lab) -> None:
    """The floor is sealed with keys that it does not hold; its own keyring is found without the versions between."""
    w = lab.init(lab.urls(*NAMES))
    many(w, 4)
    c = slept(lab, w)
    for _ in range(2):
        w.key_rotate(PASSPHRASE, kdf=CHEAP)
        many(w, 30)
    assert all("0" not in logs(lab, name) for name in NAMES)
    c.sync()
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    c = lab.reopen(c)
    write(c.directory, {"more": b"more"})
    assert c.push().version is not None


@pytest.mark.long
def test_a_device_that_was_revoked_while_it_slept(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    many(w, 4)
    c = slept(lab, w)
    before = tree_of(c.directory)
    w.device_revoke(["desktop"], PASSPHRASE, kdf=CHEAP)
    many(w, 60)
    lab.hurry(2.0)
    with pytest.raises(ExcludedError):
        c.pull()
    assert tree_of(c.directory) == before


@pytest.mark.long
def test_a_clone_after_floors(lab: Lab) -> None:
    w = lab.init(lab.urls(*NAMES))
    many(w, 70)
    d = lab.clone(lab.urls("a", "b"), device="late")
    assert tree_of(d.directory) == tree_of(w.directory)
    assert [item.version for item in d.log()][-1] == 1, "history is in packs, not in logs"
    many(d, 3)
    assert w.pull().version == d.status().version
    _: Path = d.directory
