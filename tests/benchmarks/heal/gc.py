"""A collection of garbage over a long history, beside devices that push and read.

The history is made by the product's own packer, index and agreement, but for the scan: each version is agreed, and
brings 100 new files in one of 100 directories, in place of those that were there. Files have 64 random bytes: what
counts here is how many there are. The collector is the command, started by a small process (`launch.py`): a process
begins with the peak memory of the one that started it. Its CPU and its most memory are the kernel's. The backends are
folders in memory, so that nothing is waited for.

Devices that push without a pause lose proposals to each other. So pushes are compared with as long a time without a
collector, and the versions that the collector agreed are counted: nothing else of it can make a push try again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from measure import Usage, measured

from metasync.codec import u64
from metasync.consensus import JOURNAL_KEY, ZERO_HASH, Change
from metasync.events import Event, Phase
from metasync.keys.slots import Cost
from metasync.objects import directory
from metasync.objects.model import VERSION_TAG, Entry, Kind, ObjectKind, Snapshot, encode_snapshot
from metasync.session import agreement
from metasync.session.folder import BASE_KEY
from metasync.session.session import Session
from metasync.sync.packing import Packing
from metasync.workspace import Workspace

CHEAP = Cost(memory_kib=8, iterations=1, lanes=1, for_tests=True)
PASSPHRASE = "correct horse battery staple"
DIRS = 100
FILES_EACH = 100
FILE_BYTES = 64
TOGETHER = 50  # versions whose objects one index segment names
KEPT = 100
PUSHERS = 3
ALONE_S = 5.0  # for each thousand versions: about as long as a collection of them takes beside the pushers
ENV = {**os.environ, "METASYNC_PASSPHRASE": PASSPHRASE, "METASYNC_KEYRING": "off"}


def rows(folder: Path, versions: int = 10_000) -> Iterator[tuple[str, str, str, bool]]:
    """Yields what was measured: (what, measured, bar, whether it is within)."""
    urls = [f"file://{folder}/stores/{name}?name={name}" for name in "abc"]
    w = Workspace.init(
        folder / "laptop", name="docs", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="laptop",
        by_space=False,
    ).workspace  # fmt: skip
    began = time.monotonic()
    with w._operation("bench") as s:
        make_history(s, versions)
    built_s = time.monotonic() - began
    w.pull(force=True)
    proposals: Counter[str] = Counter()
    others = [
        Workspace.clone(
            folder / name, name="docs", backends=urls, passphrase=PASSPHRASE, device_name=name,
            on_event=partial(_count, proposals, name),
        ).workspace
        for name in ("asleep", *(f"pusher{n}" for n in range(PUSHERS)))
    ]  # fmt: skip
    asleep, pushers = others[0], others[1:]
    (asleep.directory / "mine").write_bytes(b"mine")
    before = stored(folder)
    alone, reading = Pushing(pushers, proposals), Reading(w.directory, f"latest~{KEPT // 2}")
    with alone, reading:
        time.sleep(ALONE_S * versions / 1000)
    beside, reading = Pushing(pushers, proposals), Reading(w.directory, f"latest~{KEPT // 2}")
    began = time.monotonic()
    with beside, reading:
        told, usage = collected(w.directory, folder / "gc.log")
        collecting_s = time.monotonic() - began
    after = stored(folder)
    versions_of_gc = max(*beside.versions, told["version"]) - max(alone.versions) - len(beside.pushes)
    blobs = versions * FILES_EACH
    yield (
        f"history of {versions:,} versions, {blobs:,} files, {before / 1e6:,.0f} MB: made in",
        f"{built_s:,.0f} s",
        "",
        True,
    )
    yield f"collection, {collecting_s:.0f} s: CPU", f"{usage.cpu_s:,.0f} s", "300 s", usage.cpu_s <= 300
    yield "collection: most memory", f"{usage.peak_mb:,.0f} MB", "300 MB", usage.peak_mb <= 300
    live = ideal(w)
    share = (before - after) / max(before - live, 1)
    yield f"freed, of the ideal ({live / 1e6:,.1f} MB live)", f"{share:.1%}", "95 %", share >= 0.95
    yield "pushes without it", str(alone), "", not alone.failed
    yield "pushes beside it", str(beside), "none fails", not beside.failed and bool(beside.pushes)
    yield "versions that it agreed: what a push can lose to it", f"{versions_of_gc}", "3", versions_of_gc <= 3
    yield f"reads beside it ({reading.runs}): ended with 7", str(reading.codes.count(7)), "0", 7 not in reading.codes
    asleep.sync()
    w.pull()
    there = (w.directory / "mine").read_bytes() == b"mine"
    whole = not w.check(read_data=True).problems
    yield (
        "a device asleep over it: what it had pushed is there, all copies whole",
        str(there and whole),
        "True",
        there and whole,
    )
    assert told["missing"] == 0
    for one in (w, *others):
        one.close()


def make_history(s: Session, versions: int) -> None:
    """Agrees so many versions."""
    newest = agreement.newest(s)
    dirs: dict[int, bytes] = {}
    master, done = ZERO_HASH, 0
    while done < versions:
        base = newest
        upload = Packing(s, None, lambda: None, lambda _: lambda: None, {}).upload_for(base)
        masters: list[bytes] = []
        for n in range(done, min(done + TOGETHER, versions)):
            files = []
            for i in range(FILES_EACH):
                data = os.urandom(FILE_BYTES)
                blob = s.ids.blob(data)
                upload.add(ObjectKind.BLOB, blob, data)
                files.append((b"%07d-%03d" % (n, i), Entry(Kind.FILE, 0o644, 0, FILE_BYTES, blob)))
            dirs[n % DIRS] = _add_dir(s, upload, files)
            entries = [(b"dir%03d" % d, Entry(Kind.DIR, 0o755, 0, 0, i)) for d, i in sorted(dirs.items())]
            root = _add_dir(s, upload, entries)
            tags = ((VERSION_TAG, u64(base.state.v + 1 + n - done)),)
            parents = (master,) if master != ZERO_HASH else ()
            snapshot = encode_snapshot(Snapshot(root, parents, s.device.device_id, s.wall_ns(), "", tags))
            master = s.ids.of(ObjectKind.SNAPSHOT, snapshot)
            upload.add(ObjectKind.SNAPSHOT, master, snapshot)
            masters.append(master)
        upload.seal()
        with s.indexes.storing(base.state, base.root, base.segments, upload.index_segments()) as told:
            upload.finish()
            refs = told()
        state = base.state
        for n, one in enumerate(masters):
            first = {"index": refs[-1], "adding": tuple(refs[:-1])} if not n else {}
            decided = agreement.propose(s, state, Change(s.entropy(16), master=one, **first))
            assert decided.mine
            state = decided.state
        s.db.set(JOURNAL_KEY, None)
        agreement.remember(s, state)
        newest = s.load(state)
        done += len(masters)
    s.db.set(BASE_KEY, s.base_state())


def _add_dir(s: Session, upload: Any, entries: list[tuple[bytes, Entry]]) -> bytes:
    nodes = directory.encode_dir(entries, s.ids)
    for object_id, data in nodes:
        upload.add(ObjectKind.DIR, object_id, data)
    return nodes[-1][0]


def stored(folder: Path) -> int:
    """The bytes of packs on all backends."""
    return sum(p.stat().st_size for p in (folder / "stores").rglob("packs/*/*/*"))


def ideal(w: Workspace) -> int:
    """The bytes that what is kept would take in packs that hold nothing else: by the share that is needed of each."""
    with w._session("bench") as s:
        index = agreement.newest(s).index
        copies = s.config.policy(0).copies
        size = 0
        for record in index.packs().values():
            held = sum(o.length for o in index.inside(record))
            size += record.size * held // max(sum(g.raw_bytes for g in record.segments), 1)
        return size * copies


def collected(directory_: Path, log: Path) -> tuple[dict[str, Any], Usage]:
    """Runs the command. -> its report, and what it used."""
    words = [sys.executable, "-m", "metasync", "-C", str(directory_), "gc", "--keep-last", str(KEPT), "--json"]
    usage = measured(words, ENV, cwd=directory_, log=log, timeout_s=3600)
    assert usage.exit_code == 0, usage.output
    return json.JSONDecoder().raw_decode(usage.output, usage.output.index("{\n"))[0], usage  # events are lines


def _count(proposals: Counter[str], name: str, event: Event) -> None:
    """Notes that a push of this device proposes a version."""
    proposals[name] += event == Phase("agree")


class Pushed(NamedTuple):
    """A push: how long it took, how many proposals, and which version it became."""

    took_s: float
    proposals: int
    version: int


class Pushing:
    """Devices that each push a file of their own again and again. `proposals`: how many each has made."""

    def __init__(self, workspaces: list[Workspace], proposals: Counter[str]) -> None:
        self.pushes: list[Pushed] = []
        self.failed: list[Exception] = []
        self._proposals = proposals
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(w,)) for w in workspaces]

    def __str__(self) -> str:
        if not self.pushes:
            return "none"
        longest, lost = max(self.pushes), sum(p.proposals - 1 for p in self.pushes)
        return (
            f"{len(self.pushes)}, the longest {longest.took_s:.0f} s with {longest.proposals} proposals; "
            f"{lost} proposals lost"
        )

    @property
    def versions(self) -> list[int]:
        return [p.version for p in self.pushes]

    def _run(self, w: Workspace) -> None:
        n, name = 0, w.directory.name
        while not self._stop.is_set():
            (w.directory / f"own-{name}").write_bytes(b"%d %d" % (n, time.monotonic_ns()))
            began, before = time.monotonic(), self._proposals[name]
            try:
                report = w.push()
            except Exception as e:
                self.failed.append(e)
                return
            assert report.version is not None
            took_s = time.monotonic() - began
            self.pushes.append(Pushed(took_s, self._proposals[name] - before, report.version))
            n += 1
            self._stop.wait(0.5)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Reading:
    """A reader of an old version that is kept, as a command, again and again."""

    def __init__(self, directory_: Path, version: str) -> None:
        self.codes: list[int] = []
        self._words = [sys.executable, "-m", "metasync", "-C", str(directory_), "ls", "-r", version, "--quiet"]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def runs(self) -> int:
        return len(self.codes)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.codes.append(subprocess.run(self._words, env=ENV, capture_output=True, check=False).returncode)
            self._stop.wait(0.5)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
