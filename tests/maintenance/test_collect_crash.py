"""`gc` killed at any step: nothing that is kept is lost, and whoever runs it next, on any device, comes to the end."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import crash_kit
from crash_kit import Child, die_at_call, quiet_environment, read_tree, run_clone, run_init, run_push
from effort import few_and_many

from metasync.backends.folder import FolderBackend
from metasync.maintenance.sweep import may_go
from metasync.session import agreement
from metasync.store import retention
from metasync.workspace import Workspace

quiet_environment()


def noise(*seed: int) -> bytes:
    return hashlib.shake_256(repr(seed).encode()).digest(20_000)


def run_gc(directory: str) -> int:
    """-> how many packs went."""
    with Workspace.open(directory) as w:
        return sum(f.packs for f in w.gc(retention.parse("last=2")).freed)


def die_in_gc(k: int, directory: str) -> Any:
    """Exits at the k-th call of `gc` on a backend or the local state, a deletion too."""
    crash_kit._SEAMS[FolderBackend] = ("create", "put", "delete")
    return die_at_call(k, run_gc, directory)


def some_versions(folder: Path, at: int) -> None:
    """Three versions with a file each that the next one lacks, and one file of many that stays."""
    for n in range(3):
        (folder / "comes-and-goes").write_bytes(noise(at, n))
        for many in range(4):
            (folder / f"of{many}").write_bytes(noise(at, n, many) if many else b"small")
        run_push(str(folder), f"{at} {n}")


@few_and_many("kills", 2, 40)
def test_kill_at_any_call_of_gc(tmp_path: Path, kills: int) -> None:
    rng = random.Random(20261123)
    urls, a, b = [f"file://{tmp_path}/{n}?name={n}" for n in ("x", "y", "z")], tmp_path / "a", tmp_path / "b"
    a.mkdir()
    run_init(str(a), urls)
    (a / "stays").write_bytes(noise(1))
    run_push(str(a), "first")
    run_clone(str(b), urls, crash_kit.NAME, "b")
    some_versions(a, 0)
    total, freed = Child(die_in_gc, 0, str(a)).wait()
    assert freed
    for number in range(kills):
        some_versions(a, number + 1)
        k = rng.randint(1, total) if number else total  # the last one is among the deletions
        Child(die_in_gc, k, str(a)).outcome()
        with Workspace.open(b) as w:
            w.pull()
            assert read_tree(a) == read_tree(b)
            assert not (found := w.check(read_data=True)).problems, f"killed at {k}: {found.problems}"
            w.restore("latest~1", to=tmp_path / f"out{number}")
        if number % 2:
            Child(die_in_gc, max(1, k // 2), str(b)).outcome()  # the other goes on, and dies as well
        run_gc(str(b)), run_gc(str(b))  # what was stored for it goes with the time after the next
        with Workspace.open(b) as w, w._session("test") as s:
            newest = agreement.newest(s)
            named = newest.index.packs()
            packs = {
                p for n in ("x", "y", "z") for p in (tmp_path / n).rglob("*") if p.is_file() and "/packs/" in str(p)
            }
            ids = {(int(p.parts[-3]), bytes.fromhex(p.name)) for p in packs if len(p.name) == 64}
            assert not [i for i in ids if may_go(i, named, newest.state.min_gen)], f"killed at {k}: garbage stays"
            assert ids >= set(named)
    with Workspace.open(a) as w:
        w.pull()
        assert (a / "stays").read_bytes() == noise(1)
        assert not w.check(read_data=True).problems
