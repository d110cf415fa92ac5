"""`check` and `check --repair` of a workspace of very many files: the most memory that they take.

The newest version is made by the product's own packer, index and agreement, but for the scan; the folder is empty.
Files have 64 random bytes, a thousand in each directory: what counts here is how many there are. Then a pack of
contents and one of directories are deleted on every backend, and so is what the device keeps of directories: a repair
looks for whom they belonged to, in the whole tree, and finds nobody who has them. A second repair has nothing to do
but to name what is lost.

The commands are started by a small process (`launch.py`): a process begins with the peak memory of the one that started
it. Their CPU and their most memory are the kernel's. The backends are folders in memory, so that nothing is waited for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heal.gc import CHEAP, ENV, PASSPHRASE, _add_dir
from measure import Usage, measured

from metasync.codec import u64
from metasync.consensus import JOURNAL_KEY, Change
from metasync.objects.model import VERSION_TAG, Entry, Kind, ObjectKind, Snapshot, encode_snapshot
from metasync.session import agreement
from metasync.session.session import Session
from metasync.sync.packing import Packing
from metasync.workspace import Workspace

FILES_EACH = 1000
FILE_BYTES = 64
PEAK_MB = 300


def rows(folder: Path, files: int = 1_000_000) -> Iterator[tuple[str, str, str, bool]]:
    """Yields what was measured: (what, measured, bar, whether it is within)."""
    urls = [f"file://{folder}/stores/{name}?name={name}" for name in "abc"]
    w = Workspace.init(
        folder / "laptop", name="docs", backends=urls, passphrase=PASSPHRASE, kdf=CHEAP, device_name="laptop",
        by_space=False,
    ).workspace  # fmt: skip
    began = time.monotonic()
    with w._operation("bench") as s:
        lost = make_version(s, files)
    w.close()
    told, usage = checked(w.directory, folder)
    yield f"{files:,} files, {told['packs']:,} packs, made in {time.monotonic() - began:,.0f} s: check", *_row(usage)
    assert not told["lost"] and not told["problems"], told
    told, usage = checked(w.directory, folder, "--read-data")
    yield f"check --read-data, {told['bytes_read'] / 1e6:,.0f} MB", *_row(usage)
    w = Workspace.open(w.directory)
    with w._session("bench") as s:
        index = agreement.newest(s).index
        w._db.drop_objects([i for i, _ in w._db.objects_by_age() if i in index])
    w.close()
    for name in lost:
        for path in (folder / "stores").rglob(f"*{name}*"):
            path.unlink()
    told, usage = checked(w.directory, folder, "--repair")
    done = told["repaired"]
    what = f"{len(done['gone']):,} paths named, {done['gone_objects']:,} objects"
    yield f"check --repair of two lost packs: {what}", *_row(usage)
    told, usage = checked(w.directory, folder, "--repair")
    yield f"the same again: {len(told['nowhere']):,} paths named", *_row(usage)


def _row(usage: Usage) -> tuple[str, str, bool]:
    return f"{usage.peak_mb:,.0f} MB, {usage.cpu_s:,.0f} s CPU", f"{PEAK_MB} MB", usage.peak_mb <= PEAK_MB


def make_version(s: Session, files: int) -> list[str]:
    """Agrees a version of so many files. -> the names of two packs: one of contents alone, one of directories."""
    base = agreement.newest(s)
    upload = Packing(s, None, lambda: None, lambda _: lambda: None, {}).upload_for(base)
    dirs = []
    for n in range(files // FILES_EACH):
        listed = []
        for i in range(FILES_EACH):
            data = os.urandom(FILE_BYTES)
            blob = s.ids.blob(data)
            upload.add(ObjectKind.BLOB, blob, data)
            listed.append((b"%04d" % i, Entry(Kind.FILE, 0o644, 0, FILE_BYTES, blob)))
        dirs.append((b"dir%06d" % n, Entry(Kind.DIR, 0o755, 0, 0, _add_dir(s, upload, listed))))
    root = _add_dir(s, upload, dirs)
    snapshot = encode_snapshot(
        Snapshot(root, (), s.device.device_id, s.wall_ns(), "", ((VERSION_TAG, u64(base.state.v + 1)),))
    )
    master = s.ids.of(ObjectKind.SNAPSHOT, snapshot)
    upload.add(ObjectKind.SNAPSHOT, master, snapshot)
    upload.seal()
    with s.indexes.storing(base.state, base.root, base.segments, upload.index_segments()) as stored:
        upload.finish()
        refs = stored()
    change = Change(s.entropy(16), master=master, index=refs[-1], adding=tuple(refs[:-1]))
    decided = agreement.propose(s, base.state, change)
    assert decided.mine
    s.db.set(JOURNAL_KEY, None)
    agreement.remember(s, decided.state)
    index = s.load(decided.state).index
    inside = {p.name.hex(): {o.id for o in index.inside(p, blobs=False)} for p in index.packs().values()}
    contents = next(name for name, trees in inside.items() if not trees)
    directories = next(name for name, trees in inside.items() if trees and not {root, master} & trees)
    return [contents, directories]


def checked(directory: Path, folder: Path, *options: str) -> tuple[dict[str, Any], Usage]:
    """Runs the command. -> its report, and what it used."""
    words = [sys.executable, "-m", "metasync", "-C", str(directory), "check", *options, "--json"]
    usage = measured(words, ENV, cwd=directory, log=folder / "check.log", timeout_s=3600)
    assert usage.exit_code in (0, 7), usage.output
    return json.JSONDecoder().raw_decode(usage.output, usage.output.index("{\n"))[0], usage
