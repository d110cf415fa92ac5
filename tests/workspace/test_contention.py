"""Many processes at once: devices that push at the same moment, and two processes in one folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from crash_kit import (
    CHEAP,
    NAME,
    PASSPHRASE,
    Child,
    check_log,
    quiet_environment,
    read_past,
    read_tree,
    run_clone,
    run_push,
    same_trees,
)
from crowd_kit import DEVICES, crowd, pull_all, push_when
from effort import few_and_many

from metasync.errors import WorkspaceError
from metasync.session import session
from metasync.workspace import Workspace

quiet_environment()


@few_and_many("devices", 4, DEVICES)
def test_processes_push_at_once(tmp_path: Path, devices: int) -> None:
    crowd(tmp_path, [f"file://{tmp_path}/b{i}" for i in range(3)], devices=devices)


def test_the_first_pushes_of_a_workspace_race(tmp_path: Path) -> None:
    """Before version 1 there is no tree: everybody's first tree is merged with an empty base."""
    urls = [f"file://{tmp_path}/b{i}" for i in range(3)]
    Workspace.init(tmp_path / "d0", name=NAME, backends=urls, passphrase=PASSPHRASE, kdf=CHEAP).workspace.close()
    for i in (1, 2, 3):
        run_clone(str(tmp_path / f"d{i}"), urls, NAME, f"d{i}")
    for i in range(4):
        (tmp_path / f"d{i}/same").write_bytes(b"the same\n")
        (tmp_path / f"d{i}/mine{i}").write_bytes(b"%d" % i)
        (tmp_path / f"d{i}/clash").write_bytes(b"\0%d" % i)
    at = time.time() + 0.4
    running = [Child(push_when, str(tmp_path / f"d{i}"), f"m{i}", at) for i in range(4)]
    pushed = {f"m{i}": child.wait()[0] for i, child in enumerate(running)}
    for i in range(4):
        pull_all(str(tmp_path / f"d{i}"))
    trees = {f"d{i}": read_tree(tmp_path / f"d{i}") for i in range(4)}
    same_trees(trees)
    got = {path: node.data for path, node in trees["d0"].items()}
    assert {got[b"mine%d" % i] for i in range(4)} == {b"0", b"1", b"2", b"3"}
    clashes = {data for path, data in got.items() if path.startswith(b"clash")}
    assert clashes == {b"\0%d" % i for i in range(4)}
    assert len([p for p in got if p.startswith(b"same")]) == 1, "equal bytes are no conflict"
    with Workspace.open(tmp_path / "d0") as w:
        check_log(read_past(w), pushed)


def hold(directory: str, until: str) -> None:
    """Holds a workspace until there is a file `until`."""
    with Workspace.open(directory) as w, w._locked("push"):
        while not os.path.exists(until):
            time.sleep(0.01)


def holding(place: Path, until: Path) -> Child:
    """A process that holds a workspace by now."""
    child = Child(hold, str(place), str(until))
    ends = time.monotonic() + 60
    while not (place / ".metasync/lock.holder").exists():
        assert time.monotonic() < ends, "the holder hangs"
        time.sleep(0.01)
    return child


def test_two_processes_in_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/b{i}" for i in range(3)]
    place = tmp_path / "d"
    place.mkdir()
    Workspace.init(place, name=NAME, backends=urls, passphrase=PASSPHRASE, kdf=CHEAP).workspace.close()
    for number in range(3):
        for i in range(4):
            (place / f"r{number}-{i}").write_bytes(os.urandom(5000))
        running = [Child(run_push, str(place), f"{number}-{i}") for i in range(2)]
        running.append(Child(pull_all, str(place)))
        versions = [running[0].wait()[0], running[1].wait()[0]]
        running[2].wait()
        # One takes all, the other finds nothing left; none sees a conflict with itself.
        assert len([v for v in versions if v is not None]) == 1, versions
    assert not [p for p in read_tree(place) if b"conflict" in p]
    with Workspace.open(place) as w:
        assert len(w.log()) == 3


def test_the_second_process_waits_until_the_first_ends(tmp_path: Path) -> None:
    place = tmp_path / "d"
    Workspace.init(
        place, name=NAME, backends=[f"file://{tmp_path}/b"], passphrase=PASSPHRASE, kdf=CHEAP
    ).workspace.close()
    may_end = tmp_path / "may end"
    holder = holding(place, may_end)
    heard: list[str] = []

    def hear(event: object) -> None:
        heard.append(str(event))
        if "waiting" in heard[-1]:
            may_end.touch()

    with Workspace.open(place, on_event=hear) as w:
        w.push()
    assert any("waiting" in text and "process" in text for text in heard), heard
    holder.wait()


def test_a_dead_holder_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WAIT_S", 0.0)
    place = tmp_path / "d"
    Workspace.init(
        place, name=NAME, backends=[f"file://{tmp_path}/b"], passphrase=PASSPHRASE, kdf=CHEAP
    ).workspace.close()
    assert holding(place, tmp_path / "never").kill()
    heard: list[str] = []
    with Workspace.open(place, on_event=lambda e: heard.append(str(e))) as w:
        w.push()
    assert not any("waiting" in text for text in heard), heard


def test_a_holder_that_stays_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WAIT_S", 0.2)
    place = tmp_path / "d"
    Workspace.init(
        place, name=NAME, backends=[f"file://{tmp_path}/b"], passphrase=PASSPHRASE, kdf=CHEAP
    ).workspace.close()
    holder = holding(place, tmp_path / "never")
    with Workspace.open(place) as w, pytest.raises(WorkspaceError, match=r"process \d+ \(metasync push\)"):
        w.push()
    assert holder.kill()
