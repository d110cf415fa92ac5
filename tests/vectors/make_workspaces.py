"""Writes a whole workspace as a text file: `tests/vectors/workspaces/NAME.json`.

    python tests/vectors/make_workspaces.py NAME

Unlike the other vectors these cannot be made anew: their keys are random. A kept one stays for ever, so that what was
once written can always be read. A new format number, or a form of storing that older ones do not show, gets a new NAME.
"""

from __future__ import annotations

import base64
import json
import os
import random
import stat
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "kits"), str(TESTS.parent)]

from metasync.keys.slots import Cost
from metasync.workspace import Workspace

FOLDER = Path(__file__).resolve().parent / "workspaces"
PASSPHRASE = "correct horse battery staple"
LEFT_OUT = "ballast"  # 256 KiB that mean nothing
COST = Cost(memory_kib=19_456, iterations=2, lanes=1)  # the least that a slot may ask for


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def tree_of(root: Path) -> dict[str, Any]:
    """What is in a folder, by path: kind, mode, time in ns (as text), content (zlib, base64) or target."""
    out: dict[str, Any] = {}
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if n != ".metasync"]
        for name in (*names, *files):
            path = Path(folder, name)
            s = path.lstat()
            entry: dict[str, Any] = {"mode": f"{stat.S_IMODE(s.st_mode):o}", "mtime_ns": str(s.st_mtime_ns)}
            if stat.S_ISLNK(s.st_mode):
                entry = {"kind": "symlink", "target": os.readlink(path)}
            elif stat.S_ISDIR(s.st_mode):
                entry = {"kind": "dir", "mode": entry["mode"]}
            else:
                entry = {"kind": "file", **entry, "data": text_of(zlib.compress(path.read_bytes(), 9))}
            out[str(path.relative_to(root))] = entry
    return dict(sorted(out.items()))


def write(root: Path, files: dict[str, bytes]) -> None:
    for n, (name, data) in enumerate(sorted(files.items())):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(0, 1_700_000_000_000_000_000 + n))


def make(root: Path, *, encrypted: bool, edits: int = 0, small: int = 0) -> dict[str, Any]:
    """Three backends; two devices; a name that is not ASCII, a link, an executable, an empty file; a rotation.

    `edits`: of a document, each a version of its own, stored as deltas. `small`: versions at the end whose indexes ride
    in their log entries, each on the one before.
    """
    urls = [f"file://{root}/{name}?name={name}" for name in ("a", "b", "c")]
    report = Workspace.init(
        root / "laptop", name="docs", backends=urls, passphrase=PASSPHRASE, kdf=COST, device_name="laptop",
        by_space=False, encryption=encrypted,
    )  # fmt: skip
    with report.workspace as one:
        write(one.directory, {"notes.txt": b"first\n", "d/empty": b"", "d/große Datei": bytes(1_100_000)})
        (one.directory / "d" / "link").symlink_to("../notes.txt")
        one.push("first")
        for n in range(edits + 1 if edits else 0):
            write(one.directory, {"doc": random.Random(1).randbytes(9_000) + b"edit %d" % n})
            one.push(f"edit {n}")
        cloned = Workspace.clone(root / "phone", name="docs", backends=urls, passphrase=PASSPHRASE, device_name="phone")
        with cloned.workspace as two:
            write(two.directory, {"run.sh": b"#!/bin/sh\n"})
            (two.directory / "run.sh").chmod(0o755)
            two.push("from the phone")
        one.pull()
        rotated = one.key_rotate(passphrase=PASSPHRASE, kdf=COST)
        (one.directory / "d" / "empty").unlink()
        write(one.directory, {"notes.txt": b"first\nlast\n"})
        newest = one.push("last").version
        for n in range(small):
            write(one.directory, {"more.txt": b"small %d\n" % n})
            newest = one.push(f"small {n}").version
        masters = [
            {"version": i.version, "snapshot": i.snapshot.hex(), "message": i.message, "device": i.device}
            for i in one.log()
        ]
        tree = tree_of(one.directory)
    backends = {}
    for name in ("a", "b", "c"):
        files = sorted(p for p in (root / name).rglob("*") if p.is_file() and p.name != LEFT_OUT)
        objects = {str(p.relative_to(root / name)): text_of(p.read_bytes()) for p in files}
        backends[name] = objects
    return {
        "what": "workspace",
        "about": "three folders, any one of which may be missing; two devices, a rotation; a file of two chunks"
        + (f"; a document that was edited {edits} times, as deltas" if edits else "")
        + (f"; {small} small versions, whose indexes ride in their log entries" if small else ""),
        "format": 1,
        "passphrase": PASSPHRASE,
        "recovery_phrase": rotated.recovery_phrase,
        "name": "docs",
        "encrypted": encrypted,
        "newest_version": newest,
        "log": masters,
        "tree": tree,
        "backends": backends,
    }


def main(name: str) -> None:
    os.environ["METASYNC_KEYRING"] = "off"
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        edits, small = 10 if "deltas" in name else 0, 2 if "riding" in name else 0
        made = make(Path(folder), encrypted="open" not in name, edits=edits, small=small)
    (FOLDER / f"{name}.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{name}: {len(json.dumps(made)) >> 10} KiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
