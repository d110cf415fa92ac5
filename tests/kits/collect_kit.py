"""A workspace of six versions, its packs, and what must be so after a collection."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from workspace_kit import Lab, write

from metasync.errors import WorkspaceError
from metasync.local.spill import IdSet
from metasync.maintenance import line
from metasync.objects.model import ObjectKind
from metasync.objects.reach import mark
from metasync.session import agreement
from metasync.store import retention
from metasync.workspace import Workspace

LAST = retention.parse("last=1")
STORES = ("a", "b", "c")


def noise(n: int, size: int = 20_000) -> bytes:
    """Bytes that no other file has and that do not shrink."""
    return hashlib.shake_256(b"%d" % n).digest(size)


def six_versions(w: Workspace) -> Workspace:
    """Versions 1 to 6: in each, a file of its own, and one that changes; those of 1 to 3 are deleted in version 4."""
    for n in range(1, 7):
        write(w.directory, {f"file{n}": noise(n), "f": noise(100 + n), "stays": noise(0)})
        if n == 4:
            for gone in ("file1", "file2", "file3"):
                (w.directory / gone).unlink()
        w.push(f"push {n}")
    return w


def packs(lab: Lab, *names: str) -> dict[str, int]:
    """The packs on backends, with sizes."""
    names = names or STORES
    return {f"{n}/{p.parent.parent.name}/{p.name}": p.stat().st_size for n in names for p in lab.objects(n, "packs")}


def named(w: Workspace) -> set[tuple[int, bytes]]:
    """The packs that the newest index names."""
    with w._session("test") as s:
        return set(agreement.newest(s).index.packs())


def all_is_there(w: Workspace) -> None:
    """Every copy of every pack is whole, every version of the log can be read whole, and the index names no more."""
    report = w.check(read_data=True)
    assert not report.problems, report.problems
    assert not report.lost
    assert not report.meta_problems
    with w._session("test") as s:
        newest = agreement.newest(s)
        retained = s.indexes.retained(newest.state)
        contents = s.contents(newest)
        index = newest.index
        s.db._execute("DELETE FROM objects WHERE kind < 6")
        roots = [i for _, i, _ in line.line(s, newest, retained, contents)]
        assert set(roots) <= set(index.ids(ObjectKind.SNAPSHOT))
        needed = IdSet()
        contents.walk(mark(index.ids(ObjectKind.SNAPSHOT), needed, index.__contains__))
        found = {o.id for segment in index.segments for _, o in segment if o.id in index}
        assert len(found & needed_of(found, needed)) == len(needed), "the index names what needs what no pack has"
        assert all(i in needed for i in found) or newest.state.min_gen == 0, "and nothing that nothing needs"
        got = contents.load(ObjectKind.BLOB, index.ids(ObjectKind.BLOB))
        assert all(s.ids.blob(data) == i for i, data in got.items())


def needed_of(found: set[bytes], needed: IdSet) -> set[bytes]:
    return {i for i in found if i in needed}


def nothing_else_is_there(w: Workspace, lab: Lab) -> None:
    """The backends hold the packs that the index names, and no others."""
    assert {(int(k.split("/")[1]), bytes.fromhex(k.split("/")[2])) for k in packs(lab)} == named(w)


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[[], Any], times: int = 1
) -> list[int]:
    """Has something done once, before a function of the collector or of a push is entered."""
    real, done = getattr(owner, name), []

    def first(*args: Any, **options: Any) -> Any:
        if len(done) < times:
            done.append(1)
            do()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, first)
    return done


def break_off(*_: object) -> Any:
    raise WorkspaceError("broke off")
