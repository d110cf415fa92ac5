"""A collection of garbage over a long history, beside devices that push and read.

The history is made by the product's own packer, index and agreement, but for the scan: each version is agreed, and
brings 100 new files in one of 100 directories, in place of those that were there. Files have 64 random bytes: what
counts here is how many there are. The collector is the command, in a process of its own; its CPU
and its most memory are the kernel's. The backends are folders in memory, so that nothing is waited for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metasync.codec import u64
from metasync.consensus import JOURNAL_KEY, ZERO_HASH, Change
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
    others = [
        Workspace.clone(folder / name, name="docs", backends=urls, passphrase=PASSPHRASE, device_name=name).workspace
        for name in ("asleep", *(f"pusher{n}" for n in range(PUSHERS)))
    ]
    asleep, pushers = others[0], others[1:]
    (asleep.directory / "mine").write_bytes(b"mine")
    before = stored(folder)
    alone = Pushing(pushers)
    with alone:
        time.sleep(10)
    beside, reading = Pushing(pushers), Reading(w.directory, f"latest~{KEPT // 2}")
    with beside, reading:
        told, usage = collected(w.directory)
    after = stored(folder)
    blobs = versions * FILES_EACH
    yield (
        f"history of {versions:,} versions, {blobs:,} files, {before / 1e6:,.0f} MB: made in",
        f"{built_s:,.0f} s",
        "",
        True,
    )
    yield (
        "collection: CPU",
        f"{usage.ru_utime + usage.ru_stime:,.0f} s",
        "300 s",
        usage.ru_utime + usage.ru_stime <= 300,
    )
    yield "collection: most memory", f"{usage.ru_maxrss / 1024:,.0f} MB", "300 MB", usage.ru_maxrss / 1024 <= 300
    live = ideal(w)
    share = (before - after) / max(before - live, 1)
    yield f"freed, of the ideal ({live / 1e6:,.1f} MB live)", f"{share:.1%}", "95 %", share >= 0.95
    yield (
        f"pushes beside it ({len(beside.took_s)}), longest",
        f"{max(beside.took_s, default=0):.2f} s, alone {max(alone.took_s, default=0):.2f} s ({len(alone.took_s)})",
        "none fails", not beside.failed and bool(beside.took_s),
    )  # fmt: skip
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


def collected(directory_: Path) -> tuple[dict[str, Any], Any]:
    """Runs the command. -> its report, and what the kernel says that it used."""
    words = [sys.executable, "-m", "metasync", "-C", str(directory_), "gc", "--keep-last", str(KEPT), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=ENV) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = code
    assert code == 0, out
    return json.loads(out), usage


class Pushing:
    """Devices that each push a file of their own again and again."""

    def __init__(self, workspaces: list[Workspace]) -> None:
        self.took_s: list[float] = []
        self.failed: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(w,)) for w in workspaces]

    def _run(self, w: Workspace) -> None:
        n = 0
        while not self._stop.is_set():
            (w.directory / f"own-{w.directory.name}").write_bytes(b"%d %d" % (n, time.monotonic_ns()))
            began = time.monotonic()
            try:
                w.push()
            except Exception as e:
                self.failed.append(e)
                return
            self.took_s.append(time.monotonic() - began)
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
