"""Some devices, random edits, pushes and pulls, outages and crashes: in the end all have one tree, and nothing is lost.

A driver with a seed of its own. A run is a sequence of steps drawn from that seed (races of threads apart), so that
METASYNC_STATEFUL_SEED=... repeats it; METASYNC_STATEFUL_RUNS tries so many new seeds.

What is held against the product, besides that no command fails while a minority is sick:

- all devices converge: contents, names, modes, symlinks, times;
- what a device's user wrote, and did not itself overwrite or delete, is in the history in the end; so is what stood on
  a device's disk before and after each push that reported success;
- every push that reported success is in the log once, as the version it reported, and versions ascend;
- no copy on any backend is altered or lost; none is missing unless its backend was sick.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_kit import (
    CHEAP,
    PASSPHRASE,
    Fate,
    Node,
    check_log,
    content_id,
    mortal_clients,
    quiet_environment,
    read_past,
    read_tree,
    same_trees,
)
from effort import first

from metasync.backends.memory import forget_stores
from metasync.session import open_backend
from metasync.testing.faults import FaultyBackend, Plan
from metasync.workspace import Workspace
from metasync.worktree import disk

quiet_environment()

RUNS = int(os.environ.get("METASYNC_STATEFUL_RUNS", "10"))
FIRST = os.environ.get("METASYNC_STATEFUL_SEED", "")
CAMPAIGN = "METASYNC_STATEFUL_RUNS" in os.environ
STEPS = int(os.environ.get("METASYNC_STATEFUL_STEPS", "45"))
DEVICES_MAX = 4

NAMES = ["a", "b", "c.txt", "d.txt", "e", "sub", "x y", "Ümlaut", "long" * 20]
TEXTS = ["poem.txt", "list.txt", "plan.txt"]
LINKS = ["l", "l.txt"]  # never directories: a symlink in a directory's place is not taken in (architecture.md, D8)
MODES = [0o644, 0o600, 0o755, 0o400]


class Store:
    """One backend as all devices see it, and how it fares."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = f"memory://{name}"
        self.ever_sick = False
        self.mend()

    def mend(self) -> None:
        self.down, self.full, self.plan = False, False, None

    def fall_sick(self, rng: random.Random) -> str:
        self.ever_sick = True
        kind = rng.choice(["down", "full", "lost", "late", "flaky", "lying"])
        seed = rng.randrange(1 << 30)
        if kind == "down":
            self.down = True
        elif kind == "full":
            self.full = True
        elif kind == "lost":
            self.plan = Plan(seed, {"lost_reply": 0.3})
        elif kind == "late":
            self.plan = Plan(seed, {"late": 0.3})
        elif kind == "flaky":
            self.plan = Plan(seed, {"unreachable": 0.2, "lost_request": 0.1, "duplicate": 0.1, "full": 0.1})
        else:
            self.plan = Plan(seed, {"bit_flip": 0.1, "truncated": 0.1, "garbage": 0.1, "html": 0.1, "swapped": 0.1})
        return kind


class Mortal(FaultyBackend):
    """A store through one device's eyes: as sick as the store is, and gone with the device."""

    def __init__(self, inner: Any, store: Store, fate: Fate | None) -> None:
        super().__init__(inner)
        self.store = store
        self.fate = fate

    def _begin(self, kind: Any, path: str) -> Any:
        if self.fate is not None and kind in ("create", "put", "delete"):
            self.fate.step(f"{kind} on {self.store.name}")
        self.down, self.plan = self.store.down, self.store.plan
        self.full_over_bytes = 0 if self.store.full else None
        return super()._begin(kind, path)

    def identity(self) -> bytes:
        self.down = self.store.down
        return super().identity()


class Device:
    """One folder, its user, and the process that serves it."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.place = place
        self.fate = Fate()
        self.own: set[tuple[str, bytes]] = set()
        self.open: Workspace | None = None
        self.unlinked: tuple[str, ...] = ()

    # the user

    def paths(self, *kinds: str) -> list[Path]:
        tree = read_tree(self.place)
        return [self.place / os.fsdecode(p) for p, n in sorted(tree.items()) if not kinds or n.kind in kinds]

    def gives_up(self, path: Path) -> None:
        """The user is about to destroy what is at `path`."""
        if path.is_symlink():
            self.own.discard(("link", os.fsencode(os.readlink(path))))
        elif path.is_file():
            self.own.discard(("file", path.read_bytes()))
        elif path.is_dir():
            for below in path.iterdir():
                self.gives_up(below)

    def writes(self, path: Path, data: bytes) -> None:
        if path.is_symlink():
            self.removes(path)
        self.gives_up(path)
        if path.exists() and not os.access(path, os.W_OK):
            path.chmod(0o644)
        path.write_bytes(data)
        self.own.add(("file", data))

    def removes(self, path: Path) -> None:
        self.gives_up(path)
        if path.is_dir() and not path.is_symlink():
            for below in path.iterdir():
                self.removes(below)
            path.rmdir()
        else:
            path.unlink()

    def shut(self) -> None:
        if self.open is not None:
            self.open.close()
            self.open = None


class World:
    def __init__(self, seed: int, root: Path, here: threading.local, patch: pytest.MonkeyPatch) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.root = root
        self.here = here
        self.written = 0
        self.story: list[str] = []
        self.did: Counter[str] = Counter()
        self.pushed: dict[str, int] = {}
        self.kept: set[tuple[str, bytes]] = set()
        self.stores = {n: Store(n) for n in (f"s{i}" for i in range(self.rng.choice([3, 3, 4])))}
        opened = open_backend.opened

        def wrapped(name: str, url: Any, *, create: bool) -> Any:
            inner = opened(name, url, create=create)
            return Mortal(inner, self.stores[url.host], getattr(here, "fate", None))

        patch.setattr(open_backend, "opened", wrapped)
        self.urls = [store.url for store in self.stores.values()]
        self.devices: list[Device] = []
        first = Device("d0", root / "d0")
        first.place.mkdir()
        made = Workspace.init(
            first.place, name="w", backends=self.urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="d0", replicas=2
        )
        made.workspace.close()
        self.devices.append(first)
        for name in TEXTS:
            first.writes(first.place / name, self.text())
        if self.rng.random() < 0.8:
            self.run(first, "push", "texts")

    def tell(self, text: str) -> None:
        self.story.append(text)

    # ---- steps

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.edit, 10),
            (self.command, 6),
            (self.crash, 4),
            (self.race, 2),
            (self.weather, 3),
            (self.clone, 2 if len(self.devices) < DEVICES_MAX else 0),
        ]
        self.rng.choices([s for s, _ in steps], [weight for _, weight in steps])[0]()

    def edit(self, device: Device | None = None) -> None:
        d = device or self.rng.choice(self.devices)
        for _ in range(self.rng.randrange(1, 5)):
            kind = self.rng.choice(
                ["create", "overwrite", "line"] * 2
                + ["create", "append", "line", "delete", "rename", "mkdir", "rmdir", "symlink", "chmod", "touch"]
                + ["kind", "copy"]
            )
            getattr(self, f"edit_{kind}")(d)
            self.did[kind] += 1

    def new(self, big: bool = True) -> bytes:
        self.written += 1
        size = self.rng.choice([0, 10, 300, 20_000] + [900_000] * (big and self.rng.random() < 0.1))
        return b"%d of %d\0" % (self.written, self.seed) + random.Random(self.written).randbytes(size)

    def text(self) -> bytes:
        self.written += 1
        return b"".join(b"line %d\n" % n for n in range(12)) + b"made as %d of %d\n" % (self.written, self.seed)

    def folder(self, d: Device) -> Path:
        return self.rng.choice([d.place, d.place, *d.paths("dir")])

    def edit_create(self, d: Device) -> None:
        path = self.folder(d) / self.rng.choice(NAMES + LINKS)
        if path.is_dir() and not path.is_symlink():
            path = path / self.rng.choice(NAMES)
        if not path.is_dir() or path.is_symlink():
            d.writes(path, self.text() if path.name.endswith(".txt") else self.new())

    def some(self, d: Device, *kinds: str) -> Path | None:
        paths = d.paths(*kinds)
        return self.rng.choice(paths) if paths else None

    def edit_overwrite(self, d: Device) -> None:
        if path := self.some(d, "file"):
            d.writes(path, self.new())

    def edit_append(self, d: Device) -> None:
        if path := self.some(d, "file"):
            d.writes(path, path.read_bytes() + self.new(big=False))

    def edit_line(self, d: Device) -> None:
        texts = [p for p in d.paths("file") if p.suffix == ".txt" and b"\0" not in p.read_bytes()]
        if texts:
            path = self.rng.choice(texts)
            lines = path.read_bytes().splitlines(keepends=True)
            self.written += 1
            lines[self.rng.randrange(len(lines))] = b"line by %s, %d of %d\n" % (
                d.name.encode(), self.written, self.seed,
            )  # fmt: skip
            d.writes(path, b"".join(lines))

    def edit_delete(self, d: Device) -> None:
        if path := self.some(d, "file", "link"):
            d.removes(path)

    def edit_rename(self, d: Device) -> None:
        path = self.some(d)
        target = self.folder(d) / self.rng.choice(LINKS if path is not None and path.is_symlink() else NAMES)
        if path is None or target == path or path in target.parents or (target.is_dir() and not target.is_symlink()):
            return
        if (target.exists() or target.is_symlink()) and path.is_dir() and not path.is_symlink():
            return
        d.gives_up(target)
        path.rename(target)

    def edit_mkdir(self, d: Device) -> None:
        path = self.folder(d) / self.rng.choice(NAMES)
        if not path.exists() and not path.is_symlink():
            path.mkdir()

    def edit_rmdir(self, d: Device) -> None:
        if path := self.some(d, "dir"):
            d.removes(path)

    def edit_symlink(self, d: Device) -> None:
        path = self.folder(d) / self.rng.choice(LINKS)
        d.gives_up(path)
        path.unlink(missing_ok=True)
        self.written += 1
        target = f"target {self.written} of {self.seed}"
        path.symlink_to(target)
        d.own.add(("link", target.encode()))

    def edit_chmod(self, d: Device) -> None:
        if path := self.some(d, "file", "dir"):
            path.chmod(self.rng.choice([0o755, 0o700, 0o750] if path.is_dir() else MODES))

    def edit_touch(self, d: Device) -> None:
        if path := self.some(d, "file", "link"):
            at = self.rng.randrange(10**9, 2 * 10**18)
            os.utime(path, ns=(at, at), follow_symlinks=False)

    def edit_kind(self, d: Device) -> None:
        """A file becomes a directory, or the other way round. (A directory with files becomes no link: D8.)"""
        path = self.some(d)
        if path is None:
            return
        was_dir = path.is_dir() and not path.is_symlink()
        d.removes(path)
        if was_dir or path.name in LINKS:
            d.writes(path, self.new())
        else:
            path.mkdir()
            d.writes(path / self.rng.choice(NAMES), self.new())

    def edit_copy(self, d: Device) -> None:
        path, target = self.some(d, "file"), self.folder(d) / self.rng.choice(NAMES)
        if path is not None and not (target.exists() or target.is_symlink()):
            target.write_bytes(path.read_bytes())

    def weather(self) -> None:
        """One backend falls sick, or all are well again: never more than a minority at once."""
        sick = [s for s in self.stores.values() if s.down or s.full or s.plan]
        for store in sick:
            store.mend()
        for d in self.devices:
            d.shut()
            self.link(d)
        if not sick or self.rng.random() < 0.5:
            store = self.rng.choice(list(self.stores.values()))
            self.tell(f"{store.name} is {store.fall_sick(self.rng)}")
            self.did["sick"] += 1
        else:
            self.tell("all are well")
        for d in self.devices:
            d.shut()  # a process that saw a backend away at its start goes on without it

    def link(self, d: Device) -> None:
        """A device that was cloned while a backend was away is told the way to it."""
        for name in d.unlinked:
            assert self.alive(d).link(name, self.stores[name].url).state == "ok"
            self.did["link"] += 1
        d.unlinked = ()
        d.shut()

    # ---- commands

    def alive(self, d: Device) -> Workspace:
        if d.open is None:
            d.open = Workspace.open(d.place)
        return d.open

    def run(self, d: Device, what: str, message: str) -> None:
        """One command that has to succeed."""
        before = {(n.kind, n.data) for n in read_tree(d.place).values() if n.kind != "dir"}
        self.here.fate = d.fate
        d.fate.live()
        try:
            w = self.alive(d)
            if what == "pull":
                w.pull()
                return
            report = w.push(message) if what == "push" else w.sync(message)[1]
            assert not (report.busy or report.unreadable or report.skipped), report
            if report.version is not None:
                self.pushed[message] = report.version
                after = {(n.kind, n.data) for n in read_tree(d.place).values() if n.kind != "dir"}
                self.kept |= before | after
        finally:
            self.here.fate = None

    def command(self) -> None:
        d = self.rng.choice(self.devices)
        what = self.rng.choice(["push", "push", "pull", "sync"])
        message = f"{what} {len(self.story)} by {d.name}"
        self.tell(message)
        if self.rng.random() < 0.5:
            d.shut()
        self.run(d, what, message)
        self.did[what] += 1

    def crash(self, d: Device | None = None) -> None:
        """The process dies at one of its next calls; sometimes the user works on before the next command."""
        d = d or self.rng.choice(self.devices)
        what = self.rng.choice(["push", "push", "pull", "sync"])
        if self.rng.random() < 0.5:
            d.shut()
        self.here.fate = d.fate
        d.fate.live()
        k = d.fate.dies_at = self.rng.choice([self.rng.randrange(1, 40), self.rng.randrange(40, 250)])
        where = "survived"
        message = f"{what} {len(self.story)} by {d.name}"
        try:
            w = self.alive(d)
            report = w.pull() if what == "pull" else w.push(message) if what == "push" else w.sync(message)[1]
            if not d.fate.dead and getattr(report, "version", None) is not None and what != "pull":
                self.pushed[message] = report.version
        except BaseException as e:
            if not d.fate.dead:
                raise
            where = f"died at {d.fate.at} ({type(e).__name__})"
        finally:
            self.here.fate = None
        self.did["crash" if d.fate.dead else "survived"] += 1
        self.tell(f"{message}, dies at call {k}: {where}")
        died = d.fate.dead
        d.shut()
        d.fate.live()
        if died and self.rng.random() < 0.5:
            self.edit(d)

    def race(self) -> None:
        """Some devices run a command at the same moment."""
        chosen = self.rng.sample(self.devices, min(len(self.devices), 3))
        for d in chosen:
            self.edit(d)
        failures: list[BaseException] = []
        whats = {d: self.rng.choice(["push", "sync", "sync", "pull"]) for d in chosen}
        number = len(self.story)
        self.tell("race: " + ", ".join(f"{d.name} {what}" for d, what in whats.items()))

        def go(d: Device) -> None:
            try:
                self.run(d, whats[d], f"race {number} by {d.name}")
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=go, args=(d,)) for d in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.did["race"] += 1
        if failures:
            raise failures[0]

    def clone(self) -> None:
        d = Device(f"d{len(self.devices)}", self.root / f"d{len(self.devices)}")
        self.tell(f"clone {d.name}")
        self.here.fate = d.fate
        d.fate.live()
        if self.rng.random() < 0.5:
            d.fate.dies_at = self.rng.randrange(1, 150)
        for _ in range(2):
            try:
                made = Workspace.clone(d.place, name="w", backends=self.urls, passphrase=PASSPHRASE, device_name=d.name)
                d.open, d.unlinked = made.workspace, made.unlinked
                break
            except BaseException:
                if not d.fate.dead:
                    raise
                self.did["clone crash"] += 1
            finally:
                if d.fate.dead:
                    d.shut()
                    d.fate.live()
        if not d.place.is_dir():
            raise AssertionError("the clone made no folder")
        self.here.fate = None
        self.devices.append(d)
        self.did["clone"] += 1

    # ---- the end

    def settle(self) -> None:
        """All is well; all devices sync until nobody has news."""
        for store in self.stores.values():
            store.mend()
        for d in self.devices:
            d.shut()
            self.link(d)
        self.tell("the end")
        for number in range(3 * len(self.devices) + 3):
            news = False
            for d in self.devices:
                before = read_tree(d.place)
                message = f"end {number} by {d.name}"
                self.run(d, "sync", message)
                news |= message in self.pushed or read_tree(d.place) != before
            if not news:
                return
        raise AssertionError("the devices never come to rest")

    def judge(self) -> None:
        same_trees({d.name: read_tree(d.place) for d in self.devices})
        w = self.alive(self.devices[0])
        past = read_past(w, read_blobs=True)
        check_log(past, self.pushed)
        wanted = set.union(self.kept, *(d.own for d in self.devices))
        for kind, data in sorted(wanted):
            found = content_id(w, Node(kind, 0, 0, data)) in past.contents
            assert found, f"a {kind} is lost: {len(data)} bytes, {data[:60]!r}, of {self.owner(kind, data)}"
        for d in self.devices:
            status = self.alive(d).status()
            assert not status.problem
            assert not len(status.changes), f"{d.name} says it differs: {status.changes}"
        sick = {s.name for s in self.stores.values() if s.ever_sick}
        report = w.check(read_data=True)
        assert not report.lost
        for problem in (*report.problems, *report.meta_problems):
            assert problem.backend in sick, problem
            assert "missing" in problem.problem, problem
        if not sick:
            assert not report.short
        self.did["versions"] = len(past.main)
        self.did["conflicts"] = sum(b".conflict-" in p for p in read_tree(self.devices[0].place))
        self.did["second parents"] = len(past.snapshots) - len(past.main)

    def owner(self, kind: str, data: bytes) -> str:
        return ", ".join(
            [d.name for d in self.devices if (kind, data) in d.own] + ["a push"] * ((kind, data) in self.kept)
        )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.local]:
    with mortal_clients(monkeypatch) as thread_state:
        yield thread_state
    forget_stores()


@pytest.mark.long
@pytest.mark.parametrize("run", first(1, range(1 if FIRST else RUNS)))
def test_devices_converge_and_nothing_is_lost(
    run: int, here: threading.local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same seeds in every plain run; new ones in a campaign.
    seed = int(FIRST) if FIRST else random.SystemRandom().randrange(1 << 32) if CAMPAIGN else 1000 + run
    world = World(seed, tmp_path, here, monkeypatch)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.judge()
    except BaseException:
        print(f"METASYNC_STATEFUL_SEED={seed}", *world.story, sep="\n  ")
        raise
    finally:
        for d in world.devices:
            d.shut()
    print(f"METASYNC_STATEFUL_SEED={seed}:", ", ".join(f"{n} {k}" for k, n in sorted(world.did.items())))


@pytest.mark.long
def test_what_many_merges_replaced_is_all_kept(tmp_path: Path) -> None:
    """A device that pulls for days without pushing: each clean merge replaces what its user wrote."""
    urls = [f"memory://kept{i}" for i in range(3)]
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    lines = [b"line %d\n" % n for n in range(40)]
    (one / "text").write_bytes(b"".join(lines))
    made = Workspace.init(one, name="w", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one")
    wrote: list[bytes] = []
    with made.workspace as w:
        w.push()
        clone = Workspace.clone(two, name="w", backends=urls, passphrase=PASSPHRASE, device_name="two")
        with clone.workspace as v:
            for number in range(20):
                theirs = (one / "text").read_bytes().replace(b"line %d\n" % number, b"line %d, by one\n" % number)
                (one / "text").write_bytes(theirs)
                w.push()
                ours = (two / "text").read_bytes().replace(b"line 39", b"line 39.")
                (two / "text").write_bytes(ours)
                wrote.append(ours)
                assert v.pull().merged == (b"text",)
            v.push("all of it")
            past = read_past(v, read_blobs=True)
            lost = [
                number
                for number, data in enumerate(wrote)
                if content_id(v, Node("file", 0, 0, data)) not in past.contents
            ]
            assert not lost, f"what was written before merges {lost} is in no version"
    forget_stores()


def test_what_a_disk_cannot_take_is_deleted_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The absence of a file that this device never had says nothing (architecture.md, D8)."""
    urls = [f"memory://unspeakable{i}" for i in range(3)]
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    (one / "unspeakable").write_bytes(b"1")
    (one / "plain").write_bytes(b"1")
    place = disk.Disk.rename_new

    def picky(self: disk.Disk, old: bytes, old_fd: int, new: bytes, new_fd: int) -> None:
        if new == b"unspeakable":
            raise OSError(errno.EILSEQ, "no such names here")
        place(self, old, old_fd, new, new_fd)

    made = Workspace.init(one, name="w", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="one")
    with made.workspace as w:
        w.push()
        monkeypatch.setattr(disk.Disk, "rename_new", picky)
        with Workspace.clone(two, name="w", backends=urls, passphrase=PASSPHRASE, device_name="two").workspace as v:
            assert not (two / "unspeakable").exists()
            for number in range(3):
                (two / "plain").write_bytes(b"2, %d" % number)
                changes = v.push().changes
                assert (changes.modified, changes.deleted) == ((b"plain",), ())
                w.pull()
                assert (one / "unspeakable").read_bytes() == b"1" * (number + 1)
                (one / "unspeakable").write_bytes(b"1" * (number + 2))
                w.push()
                v.pull()
        assert w.check(read_data=True).problems == ()
    forget_stores()
