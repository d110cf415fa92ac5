"""Any edits on a plain device and on one whose disk has twins: nothing written is lost, nothing agreed goes by itself.

Names are drawn to clash. A run is given by its seed: METASYNC_NAMES_SEED=... repeats one, METASYNC_NAMES_RUNS=N makes
many new ones.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from crash_kit import Node, content_id, read_past
from disks_kit import Casefold, Fat, Folder, Lowering, Mac, OldMac, OtherDisk, Pair, Windows, nfd

from metasync.reports.sync import PushReport
from metasync.workspace import Workspace

RUNS = int(os.environ.get("METASYNC_NAMES_RUNS", "2"))
ONE = os.environ.get("METASYNC_NAMES_SEED", "")
CAMPAIGN = "METASYNC_NAMES_RUNS" in os.environ
STEPS = 14

E = "\u00e9"
PLAIN = [n.encode() for n in ("a", "A", "b", "B", "aa", "Aa", E, E.upper(), nfd(E), "ss", "\u00df")]
ODD = [b"a:", b"b.", b"\xff", b"a.conflict-desktop-20261122", b"A.conflict-desktop-20261122", b"n" * 200, b"N" * 200]


class Device:
    """A user, and what they wrote and did not themselves destroy."""

    def __init__(self, name: str, folder: Folder, workspace: Workspace) -> None:
        self.name = name
        self.folder = folder
        self.workspace = workspace
        self.own: set[bytes] = set()
        self.dropped: set[str] = set()  # keys of paths that the user took away since the last push

    def key(self, path: bytes) -> str:
        disk = self.folder.disk
        return disk.key(path) if isinstance(disk, OtherDisk) else os.fsdecode(path)

    def held(self, path: bytes) -> dict[bytes, bytes | None]:
        """What the disk has at and below a path, whatever its spelling."""
        want = self.key(path)
        return {
            p: d for p, d in self.folder.tree().items() if self.key(p) == want or self.key(p).startswith(want + "/")
        }

    def gives_up(self, path: bytes) -> None:
        for below, data in self.held(path).items():
            self.dropped.add(self.key(below))
            self.own.discard(data or b"")


class World:
    def __init__(self, seed: int, pair: Pair) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.pair = pair
        self.written = 0
        self.story: list[str] = []
        self.linux = Device("linux", pair.linux, pair.at_linux)
        self.other = Device("other", pair.other, pair.at_other)

    def name(self, device: Device) -> bytes:
        return self.rng.choice(PLAIN + ODD if device is self.linux or self.rng.random() < 0.1 else PLAIN)

    def path(self, device: Device) -> bytes:
        dirs = [p for p, d in device.folder.tree().items() if d is None]
        parent = self.rng.choice([b"", *dirs])
        path = parent + b"/" + self.name(device) if parent else self.name(device)
        if self.rng.random() < 0.3 and path.count(b"/") < 2:
            path += b"/" + self.name(device)
        return path

    def data(self) -> bytes:
        self.written += 1
        return b"%d of %d" % (self.written, self.seed)

    def edit(self, device: Device) -> None:
        kind = self.rng.choice(["write", "write", "write", "change", "remove", "rename", "respell"])
        try:
            getattr(self, kind)(device)
        except OSError as e:  # as the user would see it: no such name here, something in the way
            self.story.append(f"  ({e.strerror})")

    def write(self, device: Device) -> None:
        path, data = self.path(device), self.data()
        self.story.append(f"  {device.name} writes {path!r}: {data!r}")
        if None in device.held(path).values():
            return
        before = device.held(path)
        device.folder.write(path, data)
        for old in before.values():
            device.own.discard(old or b"")
        device.own.add(data)

    def change(self, device: Device) -> None:
        files = [p for p, d in device.folder.tree().items() if d is not None]
        if files:
            path, data = self.rng.choice(sorted(files)), self.data()
            self.story.append(f"  {device.name} changes {path!r}: {data!r}")
            device.own -= {d or b"" for d in device.held(path).values()}
            device.folder.write(path, data)
            device.own.add(data)

    def some(self, device: Device) -> bytes | None:
        paths = sorted(device.folder.tree())
        return self.rng.choice(paths) if paths else None

    def remove(self, device: Device) -> None:
        if path := self.some(device):
            self.story.append(f"  {device.name} removes {path!r}")
            device.gives_up(path)
            device.folder.remove(path)

    def rename(self, device: Device, new: bytes | None = None) -> None:
        path, new = self.some(device), new or self.path(device)
        if path is None or device.key(new).startswith(device.key(path) + "/"):
            return
        self.move(device, path, new)

    def move(self, device: Device, path: bytes, new: bytes) -> None:
        self.story.append(f"  {device.name} renames {path!r} to {new!r}")
        if device.key(new) != device.key(path) and device.held(new):
            return  # whether that replaces depends on too much
        tree = device.held(path)
        device.folder.rename(path, new)
        device.dropped |= {device.key(below) for below in tree}

    def respell(self, device: Device) -> None:
        if path := self.some(device):
            parent, slash, name = path.rpartition(b"/")
            self.move(device, path, parent + slash + name.swapcase())

    def sync(self, device: Device) -> PushReport | None:
        what = self.rng.choice(["push", "pull", "sync", "sync"])
        self.story.append(f"{device.name}: {what}")
        if what == "pull":
            device.workspace.pull(force=True)
            return None
        w = device.workspace
        report = w.push(force=True) if what == "push" else w.sync(force=True)[1]
        self.check(device, report)
        return report

    def check(self, device: Device, report: PushReport) -> None:
        """What a push says was deleted, its user took away, or gave another spelling (maybe before it was free)."""
        added = {device.key(p) for p in report.changes.added}
        gone = {p for p in report.changes.deleted if device.key(p) not in device.dropped | added}
        assert not gone, f"{device.name} deletes {gone}"
        if report.version is not None:
            device.dropped.clear()

    def run(self) -> None:
        for _ in range(STEPS):
            device = self.rng.choice([self.linux, self.other])
            for _ in range(self.rng.randrange(1, 4)):
                self.edit(device)
            self.sync(device)
        self.rest()
        self.judge()

    def rest(self) -> None:
        self.story.append("the end")
        for _ in range(6):
            reports = [d.workspace.sync(force=True)[1] for d in (self.linux, self.other)]
            for device, report in zip((self.linux, self.other), reports, strict=True):
                self.check(device, report)
            if all(r.version is None for r in reports):
                break
        else:
            raise AssertionError(f"the devices never come to rest: {reports}")
        self.other.workspace.pull(force=True)  # a twin takes the place of one that its own user removed

    def judge(self) -> None:
        agreed = self.pair.agreed()
        assert set(self.pair.linux.tree()) == set(agreed)
        unplaced = self.pair.unplaced()
        assert unplaced.keys() <= agreed.keys()
        here, contents = self.pair.other.tree(), self.contents(self.pair.linux.tree())
        of_key: dict[str, bytes] = {}
        # A directory that its user removed stays agreed for the sake of what was never here.
        bare = {p for p in agreed if p not in here and any(u.startswith(p + b"/") for u in unplaced)}
        for path in sorted(agreed.keys() - unplaced.keys() - bare):
            assert self.other.key(path) not in of_key, f"{path!r} and {of_key[self.other.key(path)]!r} are both here"
            of_key[self.other.key(path)] = path
        keys = {self.other.key(p) for p in here}
        for path in bare:
            if self.other.key(path) in keys:
                of_key.setdefault(self.other.key(path), path)
        assert keys == set(of_key), "what is neither here nor told"
        for path, data in here.items():
            agreed_path = of_key[self.other.key(path)]
            assert contents[agreed_path] == data, f"{path!r} is not what is agreed as {agreed_path!r}"
        past = read_past(self.pair.at_linux, read_blobs=True)
        for device in (self.linux, self.other):
            for data in sorted(device.own):
                assert content_id(self.pair.at_linux, Node("file", 0, 0, data)) in past.contents, (
                    f"{data!r} of {device.name} is lost"
                )
        for workspace in (self.pair.at_linux, self.pair.at_other):
            assert not len(workspace.status().changes)

    def contents(self, tree: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        return tree


def seeds(disks: Iterable[type[OtherDisk]]) -> list[Any]:
    if ONE:
        return [(disk, int(ONE)) for disk in disks]
    return [
        pytest.param(disk, 100 + run, marks=pytest.mark.long if run else ()) for disk in disks for run in range(RUNS)
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize(("disk", "run"), seeds([Mac, OldMac, Casefold, Windows, Fat, Lowering]))
def test_nothing_is_lost_between_twins(
    disk: type[OtherDisk], run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = run if ONE or not CAMPAIGN else random.SystemRandom().randrange(1 << 32)
    pair = Pair(tmp_path, monkeypatch, disk())
    world = World(seed, pair)
    try:
        world.run()
    except BaseException:
        print(f"METASYNC_NAMES_SEED={seed}", *world.story, sep="\n")
        raise
    finally:
        pair.close()
