"""Emptied backends are never a mass deletion: nothing changes in any folder, they are named, and all goes on later."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import Lab, Node, tree_of, wipe, write

from metasync.errors import MetaSyncError
from metasync.testing.faults import FaultyBackend
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
FILES = {f"d{i % 3}/file-{i:02}": b"content %d\n" % i for i in range(24)} | {"notes": b"one\ntwo\nthree\n"}


class Stores:
    """Empties stores in one of several ways, and gives back what was in them."""

    def __init__(self, lab: Lab, how: str) -> None:
        self.lab, self.how = lab, how
        self.saved: dict[str, Any] = {}

    def empty(self, name: str) -> None:
        if self.how == "memory":
            fault = self.lab.faults[name]
            self.saved[name] = snapshot(fault)
            fault.wipe()
            return
        root, saved = self.lab.store(name), self.lab.root / "saved" / name
        if self.how in ("files", "all inside"):
            shutil.copytree(root, saved, copy_function=shutil.copy2)
        else:
            saved.parent.mkdir(exist_ok=True)
            root.rename(saved)
        self.saved[name] = saved
        if self.how == "files":
            for path in root.rglob("*"):
                if not path.is_dir():
                    path.unlink()
        elif self.how == "all inside":
            wipe(root)
        elif self.how == "root made anew":
            root.mkdir()

    def give_back(self) -> None:
        for name, saved in self.saved.items():
            if self.how == "memory":
                self.lab.faults[name].roll_back(saved)
                continue
            root = self.lab.store(name)
            if self.how in ("files", "all inside"):
                wipe(root)
                shutil.copytree(saved, root, dirs_exist_ok=True)
            else:
                shutil.rmtree(root, ignore_errors=True)
                saved.rename(root)


def snapshot(fault: FaultyBackend) -> dict[str, bytes]:
    """All that a store holds."""
    out: dict[str, bytes] = {}

    def walk(folder: str) -> None:
        for item in fault.list(folder):
            path = f"{folder}/{item.name}" if folder else item.name
            if item.size is None:
                walk(path)
            else:
                out[path] = fault.get(path, max_bytes=1 << 30)

    walk("")
    return out


def devices(lab: Lab, how: str) -> tuple[Workspace, Workspace]:
    """The laptop has something to push; the desktop has something to pull, and something to push."""
    urls = lab.urls(*NAMES, kind="memory" if how == "memory" else "file")
    w = lab.init(urls)
    write(w.directory, FILES)
    w.push()
    c = lab.reopen(lab.clone(urls))
    write(w.directory, {"news": b"news", "notes": b"one\ntwo\nthree!\n"})
    w.push()
    write(w.directory, {"more": b"more"})
    write(c.directory, {"mine": b"mine", "notes": b"one!\ntwo\nthree\n"})
    return w, c


HOWS = ["files", "all inside", "root gone", "root made anew", "memory"]
ACTS: dict[str, Callable[[Workspace], Any]] = {
    "status": Workspace.status,
    "check": Workspace.check,
    "pull": Workspace.pull,
    "push": Workspace.push,
    "sync": Workspace.sync,
    "log": Workspace.log,
}


def said(act: Callable[[], Any]) -> tuple[int, str]:
    """The exit code of an operation that failed (0: it did not), and all that it told."""
    try:
        return 0, repr(act())
    except MetaSyncError as e:
        return e.exit_code, f"{e.message} {e.next_step}"


@pytest.mark.few(3)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("which", "reopened"), [("bc", False), ("abc", True)])
@pytest.mark.long
def test_too_few_stores_are_left(lab: Lab, how: str, which: str, reopened: bool) -> None:
    """Nothing can be known to be newest: 5."""
    w, c = devices(lab, how)
    stores = Stores(lab, how)
    for name in which:
        stores.empty(name)
    lab.hurry(0.3)
    if reopened and how != "memory":
        w, c = lab.reopen(w), lab.reopen(c)
    before = [tree_of(x.directory) for x in (w, c)]
    for name, act in ACTS.items():
        code, text = said(lambda act=act: act(c))  # type: ignore[misc]
        assert code == (0 if name in ("status", "log") else 5), (name, text)
        assert name == "log" or all(f"{n}: " in text or f"name='{n}'" in text for n in which), text
        assert [tree_of(x.directory) for x in (w, c)] == before
    report = c.status()
    assert (report.newest, report.changes.deleted) == (None, ())
    assert {b.name for b in report.backends if b.state != "ok"} >= set(which)
    assert said(w.push)[0] == 5
    try:  # what one store still proves may be brought, if it is said that there may be more
        d = lab.clone(lab.urls(*NAMES, kind="memory" if how == "memory" else "file"), device="third")
    except MetaSyncError as e:
        assert e.exit_code in (1, 5, 7)
        third = lab.root / "third"
        assert not third.exists() or tree_of(third) == {}
    else:
        assert which == "bc"
        assert d.status().newest is None
        assert tree_of(d.directory).keys() >= {b"notes"}
    assert [tree_of(x.directory) for x in (w, c)] == before
    stores.give_back()
    lab.hurry(30.0)  # the stores answer again, however busy the machine is
    if reopened and how != "memory":
        w, c = lab.reopen(w), lab.reopen(c)
    goes_on(w, c)


@pytest.mark.few(3)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("which", "reopened"), [("a", False), ("c", True)])
def test_one_of_three_stores_is_emptied(lab: Lab, how: str, which: str, reopened: bool) -> None:
    """The others are a majority and hold a copy of everything: work goes on, and the emptied one is named."""
    w, c = devices(lab, how)
    stores = Stores(lab, how)
    stores.empty(which)
    if reopened and how != "memory":
        w, c = lab.reopen(w), lab.reopen(c)
    mine = tree_of(c.directory)
    s = c.status()
    assert (s.version, s.newest, s.changes.deleted) == (2, 3, ())
    assert {b.name for b in s.backends if b.state != "ok"} == {which}
    assert tree_of(c.directory) == mine
    report = c.check()
    assert which in {p.backend for p in (*report.problems, *report.meta_problems)}
    assert not report.lost
    p = c.pull()
    assert (p.changes.deleted, p.conflicts) == ((), ())
    assert mine.keys() < tree_of(c.directory).keys()
    assert (c.directory / "notes").read_bytes() == b"one!\ntwo\nthree!\n"
    r = w.push()
    assert r.changes.deleted == ()
    d = lab.clone(lab.urls(*NAMES, kind="memory" if how == "memory" else "file"), device="third")
    assert tree_of(d.directory) == tree_of(w.directory)
    stores.give_back()
    if reopened and how != "memory":
        w, c = lab.reopen(w), lab.reopen(c)
    goes_on(w, c)


def goes_on(w: Workspace, c: Workspace) -> None:
    """What was emptied is back: everything that waited is agreed, on both devices, and nothing was lost."""
    for x in (w, c, w, c):
        x.sync()
    assert tree_of(w.directory) == tree_of(c.directory)
    files = {os.fsdecode(p): n for p, n in tree_of(w.directory).items() if n.kind == "file"}
    assert files.keys() == FILES.keys() | {"news", "more", "mine"}
    assert files["notes"].data == b"one!\ntwo\nthree!\n"
    assert w.status().changes.deleted == ()
    _: Node = files["mine"]


def test_the_commands_say_5_and_name_the_stores(lab: Lab) -> None:
    w, c = devices(lab, "all inside")
    for x in (w, c):
        x.close()
    for name in "bc":
        wipe(lab.store(name))
    lab.hurry()
    before = tree_of(lab.root / "desktop")
    for words in (("push",), ("pull",), ("sync",), ("check",), ("status",)):
        ran = lab.cli(*words, cwd="desktop")
        assert ran.code == 5, (words, ran)
        for name in "bc":
            assert name in ran.out + ran.err
        assert "emptied" in ran.out + ran.err, ran
    assert tree_of(lab.root / "desktop") == before
    # Nothing was put there anew. (A head or a log entry sent before the stores were emptied may land after that.)
    assert not any("/packs/" in str(p) for n in "bc" for p in Path(lab.store(n)).rglob("*"))
