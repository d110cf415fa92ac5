# ruff: noqa: F811 - pytest finds fixtures by the names of parameters
"""A clone that goes in parts: the same tree as by one checkout, also where it dies between parts, or the user acts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import PASSPHRASE, Lab, lab, tree_of, write  # noqa: F401

import metasync.large
from metasync.errors import ExcludedError, MetaSyncError, WorkspaceError
from metasync.events import Notice, Progress
from metasync.localdb import TREE_KEY
from metasync.objects import gather
from metasync.sync import checkout, firstcheckout, joining
from metasync.sync.checkout import Checkout
from metasync.sync.fsio import Disk
from metasync.sync.noted import EXACT_KEY, PARTS_KEY, UNFINISHED_KEY
from metasync.sync.place import Placer
from metasync.workspace import CloneReport, Workspace

MB = 1 << 20


class Stop(BaseException):
    """The process ends here."""


@pytest.fixture(params=["whole", "by the piece"])
def parted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few paths. Directories come whole, or piece by piece as on other disks."""
    small_parts(monkeypatch)
    if request.param != "whole":
        monkeypatch.setattr(checkout, "may_come_whole", lambda _: False)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metasync.large, "HELD_MAX", 8)
    monkeypatch.setattr(metasync.large, "PAGE", 3)
    monkeypatch.setattr(gather, "BATCH_BYTES", 700)
    monkeypatch.setattr(firstcheckout, "PART_PATHS", 10)
    monkeypatch.setattr(firstcheckout, "PART_PATHS_LEAST", 7)


def odd_tree(root: Path) -> None:
    """Names that sort oddly, links, hard links, empty things, modes, a file of many chunks, the same bytes in many."""
    rng = random.Random(7)
    write(root, {f"d{i % 5}/e{i % 3}/f{i:02}": rng.randbytes(3_000 + i) for i in range(40)})
    write(root, {"a/x": b"in a", "a-b": b"beside a", "a.txt": b"beside a too", "a/-": b"first in a", "a b": b"space"})
    write(root, {"huge": rng.randbytes(9 * MB), "zz/huge": rng.randbytes(6 * MB), "empty": b"", "zz/empty": b""})
    write(root, {f"{top}/same": b"the same bytes in every one of them" for top in ("a", "d1", "d4/e1", "m", "zz")})
    write(root, {os.fsdecode(b"latin-\xe9/\xff"): b"no utf-8", ".metasyncignore": b"*.tmp\n"})
    (root / "m/deep/er").mkdir(parents=True)
    (root / "d2/link").symlink_to("../a/x")
    (root / "zzz-link").symlink_to("nowhere")
    os.link(root / "a/x", root / "zz/hard")
    (root / "a/x").chmod(0o750)
    (root / "d3").chmod(0o555)
    (root / "d3/e0").chmod(0o700)


def published(lab: Lab) -> Workspace:
    w = lab.init(lab.urls("a", "b", "c"))
    odd_tree(w.directory)
    w.push("first")
    return w


def cloned(lab: Lab, told: list[Any] | None = None, device: str = "desktop") -> CloneReport:
    report = Workspace.clone(
        lab.root / device,
        name="docs",
        backends=lab.urls("a", "b", "c"),
        passphrase=PASSPHRASE,
        device_name=device,
        on_event=told.append if told is not None else lambda _: None,
    )
    lab.keep(report.workspace)
    return report


def settled(w: Workspace) -> None:
    """The folder is at what was agreed, nothing is left of the clone, and rows and tree are one."""
    assert [w._db.get(key) for key in (UNFINISHED_KEY, PARTS_KEY, EXACT_KEY)] == [None] * 3
    assert w._db.conflicts() == []
    assert not any((w.directory / ".metasync/tmp").iterdir())
    assert not (w.directory / ".metasync/left").exists()
    assert w.push("nothing").version is None


def test_the_tree_is_the_same(lab: Lab, parted: None) -> None:
    w = published(lab)
    told: list[Any] = []
    report = cloned(lab, told)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    files = [n for n in tree_of(w.directory).values() if n.kind != "dir"]
    assert (report.files, report.bytes) == (len(files), sum(len(n.data) for n in files))
    assert report.workspace._db.get(TREE_KEY) is not None, "a push need not look at the tree again"
    settled(report.workspace)
    done = [e for e in told if isinstance(e, Progress) and e.phase == "download"]
    assert [e.done for e in done] == sorted(e.done for e in done), "of the whole, not of each part"
    assert {e.total for e in done} == {report.bytes}


def test_it_takes_the_parts_that_were_meant(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no test here says anything."""
    small_parts(monkeypatch)
    sizes: list[int] = []
    begin = Checkout.begin

    def counted(self: Checkout, changes: Any, *a: Any, **k: Any) -> Any:
        changes = list(changes)
        sizes.append(len(changes))
        return begin(self, changes, *a, **k)

    monkeypatch.setattr(Checkout, "begin", counted)
    w = published(lab)
    cloned(lab)
    assert len(sizes) > 5
    assert max(sizes) <= 10
    assert sum(sizes) == len(tree_of(w.directory))


def test_what_is_in_several_files_is_fetched_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a"))
    rng = random.Random(3)
    twice = rng.randbytes(3 * MB)
    write(w.directory, {"a": twice, **{f"d{i}": rng.randbytes(100) for i in range(30)}, "z": twice})
    w.push("first")
    small_parts(monkeypatch)
    fetched: list[bytes] = []
    fetch = firstcheckout.Contents.fetch

    def counted(self: Any, ids: Any, *a: Any, **k: Any) -> None:
        ids = list(ids)
        fetched.extend(ids)
        fetch(self, ids, *a, **k)

    monkeypatch.setattr(firstcheckout.Contents, "fetch", counted)
    report = Workspace.clone(lab.root / "desktop", name="docs", backends=lab.urls("a"), passphrase=PASSPHRASE)
    lab.keep(report.workspace)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    assert len(fetched) == len(set(fetched))


def dying(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, at: int, *, before: bool = True) -> Callable[[], None]:
    """Has the process die when something is done for the n-th time; returns what takes that back."""
    real, count = getattr(place, name), 0

    def done(*a: Any, **k: Any) -> Any:
        nonlocal count
        count += 1
        if before and count == at:
            raise Stop
        out = real(*a, **k)
        if not before and count == at:
            raise Stop
        return out

    monkeypatch.setattr(place, name, done)
    return lambda: monkeypatch.setattr(place, name, real)


DEATHS: Mapping[str, tuple[Any, str, bool]] = {
    "while files come": (Checkout, "stage_whole", True),
    "when a part is at hand": (Checkout, "apply", True),
    "while a part is placed": (Placer, "attempt", False),
    "when a part is placed": (checkout, "rows_after", True),
    "between parts": (Checkout, "apply", False),
}


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("death", DEATHS)
def test_it_dies_and_goes_on(
    lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch, death: str, at: int
) -> None:
    w = published(lab)
    place, name, before = DEATHS[death]
    undo = dying(monkeypatch, place, name, at * (7 if name in ("stage_whole", "attempt") else 1), before=before)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    told: list[Any] = []
    report = cloned(lab, told)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    settled(report.workspace)
    if death == "between parts":
        assert any(isinstance(e, Notice) and "files are here already" in e.text for e in told)
