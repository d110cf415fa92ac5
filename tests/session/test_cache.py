"""The local cache is bounded, and what the folder's version needs stays in it."""

from __future__ import annotations

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.errors import UsageError
from metasync.local import state
from metasync.objects.model import ObjectKind
from metasync.runtime import limits
from metasync.session import agreement, cache
from metasync.workspace import Workspace


@pytest.fixture
def long(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Ten versions, each with directories of its own, all of them cached as pulls would have it."""
    monkeypatch.setattr(cache, "let_go", lambda *_: None)
    w = lab.init(lab.urls("a", kind="memory"))
    for n in range(10):
        write(w.directory, {f"dir{i}/{'name' * 20}{n}-{j}": b"%d" % n for i in range(3) for j in range(20)})
        w.push(f"push {n}")
    return w


def held(w: Workspace) -> dict[bytes, int]:
    return dict(w._db.objects_by_age())


def needed(w: Workspace) -> set[bytes]:
    """What the base names, looked up by other means: its directories, snapshot and index."""
    with w._session("test") as s:
        base = s.base()
        contents, todo, out = s.contents(base), [base.tree_root], {base.state.master}
        while todo:
            out.update(i for i in todo if i is not None)
            todo = [e.content for i in todo if i for e in _entries(contents.load(ObjectKind.DIR, [i])[i]) if e]
        return out | {ref.hash for ref in s.indexes.names_of(base.state.index)} | {base.state.config}


def _entries(data: bytes) -> list[object]:
    from metasync.objects.directory import decode_node
    from metasync.objects.model import Kind

    return [e for _, e in decode_node(data).entries if e.kind is Kind.DIR]


def test_the_oldest_go_until_there_is_room_and_what_is_needed_stays(
    long: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, keep = held(long), needed(long)
    most = sum(before.values()) // 2
    monkeypatch.setattr(cache, "MB_DEFAULT", 1)
    with long._session("test") as s:
        assert cache.bound(s, long._work.settings_path) == 0, "there is less than a megabyte"
        assert cache._drop(s, sum(before.values()) - most) > 0
    after = held(long)
    assert sum(after.values()) <= most
    assert keep & before.keys() <= after.keys()
    gone = list(before.keys() - after.keys() - keep)
    order = list(before)
    assert gone
    assert max(map(order.index, gone)) < len(order) - len(after) + len(keep) + 1, "the oldest"
    with long._session("test") as s:
        cache._drop(s, 1 << 40)
    assert keep & before.keys() <= held(long).keys(), "however little is allowed"
    assert [i.version for i in long.log()] == list(range(10, 0, -1)), "the rest is fetched again"
    assert long.push().version is None


def test_it_is_done_after_commands_that_change_something(long: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "CACHE_BYTES_SURE", 0)
    monkeypatch.setattr(cache, "MB_DEFAULT", 0)
    before = sum(held(long).values())
    with long._session("status"):
        pass
    assert sum(held(long).values()) == before, "not by what only looks"
    write(long.directory, {"new": b"new"})
    long.push()
    assert sum(held(long).values()) < before / 2


def test_a_setting_says_how_much(long: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cache-mb"):
        long.configure("cache-mb", "1")
    long.configure("cache-mb", "64")
    monkeypatch.setattr(state, "CACHE_BYTES_SURE", 0)
    dropped: list[int] = []
    monkeypatch.setattr(cache, "_drop", lambda _s, too_many: dropped.append(too_many) or 0)
    monkeypatch.setattr(type(long._db), "objects_bytes", lambda _: (64 << 20) + 8)
    long.pull()
    assert dropped == [8 + (16 << 20)]
    assert limits.NUMBERS["cache-mb"][0] == limits.CACHE_MB_LEAST
    monkeypatch.setattr(type(long._db), "objects_bytes", lambda _: 64 << 20)
    long.pull()
    assert len(dropped) == 1


def test_settings_that_cannot_be_read_end_no_command(long: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "read", _fails)
    with long._session("test") as s:
        assert cache.bound(s, long._work.settings_path) == 0
        assert agreement.ask_newest(s).v


def _fails(_: object) -> object:
    raise UsageError("damaged")


@pytest.mark.long
def test_what_a_push_replaces_is_let_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows is the index itself, and a snapshot for each version."""
    w = lab.init(lab.urls("a", "b", "c", kind="memory"))
    write(w.directory, {f"d{n}/e/f{i}": b"%d" % n for n in range(5) for i in range(60)})
    w.push()
    sizes = []
    monkeypatch.setattr(cache, "PUSHES_KEPT", 5)
    for n in range(40):
        write(w.directory, {f"d{n % 5}/e/f1": b"again %d" % n})
        w.push()
        sizes.append(w._db.objects_bytes())
    assert max(sizes[20:]) <= max(sizes[:20]) + 20 * 1000, "a directory has 3,000 bytes"
    before = tree_of(w.directory)
    d = lab.clone(lab.urls("a", "b", "c", kind="memory"))
    assert tree_of(d.directory) == before
    write(d.directory, {"d1/e/g": b"of the other"})
    d.push()
    w.pull()
    assert (w.directory / "d1/e/g").read_bytes() == b"of the other"
    assert len(w.log()) == 42


def test_what_both_trees_have_is_kept(lab: Lab) -> None:
    """Though it lies at another depth in the newer one."""
    w = lab.init(lab.urls("a", "b", "c", kind="memory"))
    write(w.directory, {"a/b/f": b"1", "g": b"2"})
    w.push()
    (w.directory / "a" / "b").rename(w.directory / "b")
    w.push()
    w.close()
    w = lab.reopen(w)
    there = held(w).keys()
    assert needed(w) <= there


def test_what_comes_back_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PUSHES_KEPT", 2)
    w = lab.init(lab.urls("a", "b", "c", kind="memory"))
    write(w.directory, {"d/f": b"0", "e/f": b"0"})
    w.push()
    files = {name: (w.directory / name).stat() for name in ("d/f",)}
    (w.directory / "d" / "g").write_bytes(b"1")
    w.push()
    (w.directory / "d" / "g").unlink()
    w.push()  # the directory is as it was at first
    assert (w.directory / "d/f").stat().st_mtime_ns == files["d/f"].st_mtime_ns
    for n in range(5):
        write(w.directory, {"e/f": b"again %d" % n})
        w.push()
    assert needed(w) <= held(w).keys()
