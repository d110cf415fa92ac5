"""A small tree with every kind of entry, and a scan that agrees on it."""

from __future__ import annotations

import os
from typing import Any

from workdir import DIR, Dir, File, Link, Workspace, write

from metasync.worktree.scan import Content, Scan

TREE: dict[bytes, Any] = {
    b"a.txt": b"alpha",
    b"d": DIR,
    b"d/b.txt": b"beta",
    b"d/e": DIR,
    b"d/e/c.txt": File(b"gamma", 0o755),
    b"empty": Dir(0o700),
    b"link": Link(b"d/b.txt"),
    b"nothing": b"",
}


def agreed(work: Workspace, tree: dict[bytes, Any] = TREE) -> Scan:
    """Writes a tree and takes it as agreed, all rows trusted."""
    write(work.root, tree)
    found = work.scan_past()
    work.base = dict(found.tree)
    return found


def never(fd: int, st: os.stat_result, was: object = None) -> Content:
    raise AssertionError("a clean file was read")
