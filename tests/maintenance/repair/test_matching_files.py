"""`check --repair` stores again what no pack has, from any file on the device whose bytes are those that are lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from test_lost_paths import entry_at, lose_pack
from workspace_kit import Lab, tree_of, write

from metasync.maintenance.repair import matching_files
from metasync.objects.model import ObjectKind
from metasync.session import agreement
from metasync.workspace import Workspace
from metasync.worktree.bases import BaseCache
from metasync.worktree.ingest import Ingest

NAMES = ("a", "b", "c")
LARGE = noise(3_000_000, 7)


@pytest.fixture(autouse=True)
def no_bases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No old chunks are kept, but where a test is about them."""
    if "bases" not in request.node.name:
        monkeypatch.setattr(BaseCache, "keep", lambda *_, **__: None)


def pushed(lab: Lab, files: dict[str, bytes]) -> Workspace:
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, files)
    w.push()
    return w


def lose_all(lab: Lab) -> None:
    """Takes all copies of all packs from the backends."""
    for path in (p for name in NAMES for p in lab.objects(name, "packs")):
        path.unlink()


def content(w: Workspace, path: str, version: str) -> bytes:
    parts: list[bytes] = []
    w.cat(path, version, parts.append)
    return b"".join(parts)


def mended(w: Workspace, **more: bool) -> Any:
    report = w.check(repair=True, **more)
    assert not report.problems and not report.lost
    return report


def is_sound(w: Workspace) -> bool:
    report = w.check(read_data=True)
    return not (report.problems or report.lost or report.nowhere or report.meta_problems)


@pytest.mark.few(2)
@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("where", ["moved", "below/copied", "ignored.tmp"])
def test_bytes_that_lie_under_another_path(lab: Lab, data: bytes, where: str) -> None:
    """The large one is lost with the list of its chunks."""
    w = pushed(lab, {"file": data, ".metasyncignore": b"*.tmp\n"})
    (w.directory / where).parent.mkdir(exist_ok=True)
    os.rename(w.directory / "file", w.directory / where)
    lose_all(lab)
    report = mended(w)
    assert (report.nowhere, report.repaired.gone) == ((), ())
    fresh = lab.clone(lab.urls(*NAMES), device="fresh")
    assert (fresh.directory / "file").read_bytes() == data and is_sound(fresh)


def test_bytes_in_a_file_that_is_not_pushed_yet(lab: Lab) -> None:
    w = pushed(lab, {"file": b"v1"})
    write(w.directory, {"file": b"edited", "new/draft": b"v1"})
    lose_all(lab)
    assert mended(w).nowhere == ()
    w.push()
    assert content(lab.clone(lab.urls(*NAMES), device="fresh"), "file", "1") == b"v1"


@pytest.mark.few(1)
@pytest.mark.parametrize("data", [b"first", LARGE], ids=["small", "large"])
def test_a_file_that_is_as_an_older_version_had_it(lab: Lab, data: bytes) -> None:
    """The newest version lacks nothing. The one who gave the old content up had no such file."""
    w = pushed(lab, {"file": data})
    write(w.directory, {"file": b"second"})
    w.push()
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    lose_pack(lab, pack_with(w, entry_at(w, 1, b"file").content, data))
    gone = phone.check(repair=True).repaired
    assert gone is not None and [(g.first, g.last) for g in gone.gone] == [(1, 1)]
    w = lab.reopen(w)
    (w.directory / "found again").write_bytes(data)
    report = mended(w)
    assert report.repaired is not None and report.repaired.stored_bytes > 0
    assert content(lab.reopen(phone), "file", "1") == data
    assert mended(w).repaired is None, "it is mended once"


def pack_with(w: Workspace, content: bytes, data: bytes) -> Any:
    """The pack with a file's bytes, or the first of them."""
    with w._session("test") as s:
        index = agreement.newest(s).index
        first = content
        if content not in index:
            ids: list[bytes] = []
            s.ingest(sink=lambda _, i, __: ids.append(i), known=lambda _: False).of_bytes(data)
            first = ids[0]
        ((record, _),) = index.find(first)
        return record


@pytest.mark.long
def test_what_was_given_up_long_ago_is_looked_for_too(lab: Lab) -> None:
    """Nothing in the index shows any more that something was given up."""
    w = pushed(lab, {"file": b"first"})
    write(w.directory, {"file": b"second"})
    w.push()
    lose_pack(lab, pack_with(w, entry_at(w, 1, b"file").content, b""))
    assert mended(w).repaired.gone
    for n in range(20):
        write(w.directory, {"other": b"%d" % n})
        w.push()
    with w._session("test") as s:
        assert not agreement.newest(s).index.dead
    assert mended(w).repaired is None, "it is not here"
    (w.directory / "other").write_bytes(b"first")
    lab.objects("a", "packs")[0].unlink()  # a copy that is missing keeps nothing else from being mended
    repaired = mended(w).repaired
    assert repaired.stored_bytes > 0 and repaired.copies == 1
    assert content(w, "file", "1") == b"first"


def test_what_a_checkout_replaced_and_chunks_that_are_kept_as_bases(lab: Lab) -> None:
    w = pushed(lab, {"one": b"replaced here", "two": noise(20_000, 3)})
    with w._session("test") as s:
        (w.directory / ".metasync" / "replaced").mkdir(exist_ok=True)
        (w.directory / ".metasync" / "replaced" / "7").write_bytes(b"replaced here")
        bases = matching_files.bases_of(s)
        bases.keep(s.ids.of(ObjectKind.BLOB, noise(20_000, 3)), noise(20_000, 3), changes=True)
    for name in ("one", "two"):
        (w.directory / name).unlink()
    lose_all(lab)
    assert mended(w).nowhere == ()
    fresh = lab.clone(lab.urls(*NAMES), device="fresh")
    assert (fresh.directory / "one").read_bytes() == b"replaced here"
    assert (fresh.directory / "two").read_bytes() == noise(20_000, 3)


def test_links_and_pipes_and_the_state_of_other_workspaces_are_not_read(lab: Lab, tmp_path: Path) -> None:
    w = pushed(lab, {"file": b"here"})
    (w.directory / "file").unlink()
    (tmp_path / "outside").write_bytes(b"here")
    os.symlink(tmp_path / "outside", w.directory / "link")
    os.symlink(tmp_path, w.directory / "folder")
    os.mkfifo(w.directory / "pipe")
    (w.directory / "inner" / ".metasync").mkdir(parents=True)
    (w.directory / "inner" / ".metasync" / "device.key").write_bytes(b"here")
    (w.directory / "empty").touch()
    lose_all(lab)
    assert {g.path for g in mended(w).repaired.gone} == {b"file"}


def test_of_files_that_are_as_they_were_pushed_none_is_read_for_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = pushed(lab, {f"d/{i}": b"%d" % i * 50 for i in range(30)} | {"large": LARGE, "file": b"lost"})
    w = lab.reopen(w)
    w.push()  # rows are trusted from the second look on
    lose_pack(lab, pack_with(w, entry_at(w, 1, b"file").content, b""))
    os.rename(w.directory / "file", w.directory / "moved")
    read: list[bytes] = []
    plain = matching_files._Search._read

    def reading(self: Any, tree: Any, path: bytes, *more: Any) -> Any:
        read.append(path)
        return plain(self, tree, path, *more)

    monkeypatch.setattr(matching_files._Search, "_read", reading)
    w = lab.reopen(w)
    assert mended(w).nowhere == ()
    assert set(read) <= {b"moved"}, read


def test_a_file_that_changes_between_readings_leaves_no_list_without_its_chunks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that names the list would have the next push believe that its chunks are there, too.

    Which ones these are nobody knows, for another device gave them up.
    """
    w = pushed(lab, {"large": LARGE})
    root = entry_at(w, 1, b"large").root
    assert root
    os.rename(w.directory / "large", w.directory / "moved")
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    (phone.directory / "large").unlink()
    phone._db.drop_objects([root])
    lose_all(lab)
    phone.check(repair=True)
    w = lab.reopen(w)
    w._db.drop_objects([root])
    times: list[int] = []
    plain = Ingest.__call__

    def reading(self: Ingest, fd: int, st: os.stat_result, *more: Any) -> Any:
        got = plain(self, fd, st, *more)
        if got.root == root:
            times.append(1)
            (w.directory / "moved").write_bytes(noise(3_000_000, 8))
        return got

    monkeypatch.setattr(Ingest, "__call__", reading)
    report = w.check(repair=True)
    assert times == [1] and report.nowhere == (b"large",)
    with w._session("test") as s:
        assert root not in agreement.newest(s).index
    (w.directory / "moved").write_bytes(LARGE)
    monkeypatch.undo()
    assert w.check(repair=True).nowhere == ()
    fresh = lab.clone(lab.urls(*NAMES), device="fresh")
    assert (fresh.directory / "large").read_bytes() == LARGE


def test_nothing_is_stored_of_a_file_that_nobody_misses(lab: Lab) -> None:
    w = pushed(lab, {"file": b"lost"})
    (w.directory / "file").unlink()
    write(w.directory, {"diary": b"nobody's business", "more": LARGE})
    lose_all(lab)
    w.check(repair=True)
    with w._session("test") as s:
        index = agreement.newest(s).index
        assert s.ids.of(ObjectKind.BLOB, b"nobody's business") not in index
        assert len(index.ids(ObjectKind.BLOB)) == 0 == len(index.ids(ObjectKind.FILE))
    assert b"file" in w.check().nowhere


def test_the_tree_of_the_folder_stays_as_it_is(lab: Lab) -> None:
    w = pushed(lab, {"file": b"lost", "d/x": b"x"})
    os.rename(w.directory / "file", w.directory / "moved")
    before = tree_of(w.directory)
    lose_all(lab)
    mended(w)
    assert tree_of(w.directory) == before
