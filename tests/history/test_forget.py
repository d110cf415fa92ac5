"""`forget`: what versions no longer have, what stays, and what is left on the backends after a collection."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from workspace_kit import Lab, write

from metasync.errors import UsageError
from metasync.history import forget
from metasync.session import agreement
from metasync.store import retention
from metasync.workspace import Workspace

STORES = ("a", "b", "c")


def noise(n: int, size: int = 20_000) -> bytes:
    """Bytes that no other file has and that do not shrink."""
    return hashlib.shake_256(b"forget %d" % n).digest(size)


SECRET = noise(0, 5_000)


def leaked_into(w: Workspace) -> Workspace:
    """Version 1 is clean, 2 and 3 have a secret, 4 has it at a path below and not where it was, 5 is clean."""
    files = {"f": b"one", **{f"dir/n{n}": noise(n, 3_000) for n in range(1, 9)}}
    write(w.directory, files)
    w.push("1")
    write(w.directory, {"dir/secret": SECRET, "f": b"two"})
    w.push("2")
    write(w.directory, {"f": b"three"})
    w.push("3")
    write(w.directory, {"dir/secret": noise(10), "f": b"four"})
    w.push("4")
    (w.directory / "dir" / "secret").unlink()
    w.push("5")
    return w


@pytest.fixture
def leaked(lab: Lab) -> Workspace:
    """Without encryption, so that bytes on the backends can be looked for."""
    return leaked_into(lab.init(lab.urls(*STORES), encryption=False))


def holding(lab: Lab, data: bytes) -> list[str]:
    """The backends that hold these bytes in a pack."""
    return [name for name in STORES if any(data in p.read_bytes() for p in lab.objects(name, "packs"))]


def names(w: Workspace, version: str) -> list[str]:
    return [item.path_str for item in w.ls(version, recursive=True).entries]


# ---- what is refused


def test_what_the_newest_version_has_is_refused(leaked: Workspace) -> None:
    before = leaked.status().version
    with pytest.raises(UsageError, match="is in the newest version; nothing was changed"):
        leaked.forget(["dir/secret", "f"])
    with pytest.raises(UsageError, match="is in the newest version"):
        leaked.forget(["dir"])
    assert leaked.status().version == before


def test_what_no_version_has_is_refused(leaked: Workspace) -> None:
    with pytest.raises(UsageError, match="no version that is kept has nothing/there"):
        leaked.forget(["dir/secret", "nothing/there"])
    with pytest.raises(UsageError, match="whole workspace"):
        leaked.forget([""])
    with pytest.raises(UsageError, match="no version that is kept has f/below"):
        leaked.forget(["f/below"])


def test_more_versions_than_can_be_listed_are_refused(leaked: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forget, "REPLACED_MAX", 2)
    with pytest.raises(UsageError, match="3 versions would have another tree, and at most 2 can"):
        leaked.forget(["dir/secret"])


def test_a_dry_run_changes_nothing(leaked: Workspace) -> None:
    before = leaked.status().version
    r = leaked.forget(["dir/secret"], gc=True, dry_run=True)
    assert (r.version, r.versions, r.first, r.last, r.contents, r.bytes) == (None, 3, 2, 4, 2, 25_000)
    assert leaked.status().version == before
    assert leaked.read("dir/secret", "3") == SECRET


# ---- what is forgotten


def test_no_version_has_it_and_the_rest_is_as_it_was(leaked: Workspace, lab: Lab) -> None:
    r = leaked.forget(["dir/secret"])
    assert (r.versions, r.first, r.last, r.contents, r.bytes, r.freed) == (3, 2, 4, 2, 25_000, None)
    for v in ("1", "2", "3", "4", "5"):
        assert names(leaked, v) == ["dir", *(f"dir/n{n}" for n in range(1, 9)), "f"]
    with pytest.raises(UsageError, match="nothing was ever agreed"):
        leaked.log("dir/secret")
    with pytest.raises(UsageError, match="secret"):
        leaked.read("dir/secret", "3")
    assert [(i.version, i.forgotten) for i in leaked.log()] == [(5, False), (4, True), (3, True), (2, True), (1, False)]
    assert [c.path for c in leaked.diff("1", "2").changes] == [b"f"]
    leaked.restore("3", to=lab.root / "out")
    assert (lab.root / "out" / "f").read_bytes() == b"three"
    assert not (lab.root / "out" / "dir" / "secret").exists()
    with pytest.raises(UsageError, match="no version that is kept has"):
        leaked.forget(["dir/secret"])


def test_the_bytes_are_on_no_backend_after_a_collection(leaked: Workspace, lab: Lab) -> None:
    """They lie in packs of which nearly all is needed: these are packed anew, once."""
    assert len(holding(lab, SECRET)) == 2
    leaked.forget(["dir/secret"])
    assert len(holding(lab, SECRET)) == 2, "nothing is deleted before"
    report = leaked.gc()
    assert holding(lab, SECRET) == []
    assert holding(lab, noise(10)) == []
    assert report.dropped == 0
    version = leaked.status().version
    assert leaked.gc().freed == ()
    assert leaked.status().version == version, "the list says no more that something is to be purged"
    assert not leaked.check(read_data=True).problems
    for v in ("1", "2", "3", "4", "5"):
        assert leaked.read("dir/n1", v) == noise(1, 3_000)


def test_what_a_collection_before_left_in_a_pack_goes_too(leaked: Workspace, lab: Lab) -> None:
    """A version with another secret was dropped; the index no longer names that, and the pack stayed for the rest."""
    w = leaked
    write(w.directory, {"other": SECRET[:500], "large": noise(20, 200_000)})
    w.push("6")
    (w.directory / "other").unlink()
    w.push("7")
    w.forget(["dir/secret"])
    w.gc()
    assert holding(lab, SECRET[:500]), "version 6 has it"
    w.gc(retention.parse("last=1"))
    assert len(holding(lab, SECRET[:500])) == 2, "and little of its pack is not needed"
    (w.directory / "f").unlink()
    w.push("8")
    w.forget(["f"], gc=True)
    assert holding(lab, SECRET[:500]) == []


def test_what_has_the_same_bytes_elsewhere_stays_and_is_told(leaked: Workspace, lab: Lab) -> None:
    write(leaked.directory, {"copy": SECRET})
    leaked.push("6")
    r = leaked.forget(["dir/secret"], gc=True)
    assert (r.contents, r.stay) == (2, 1)
    assert r.freed is not None
    assert leaked.read("copy") == SECRET


def test_a_backend_that_is_away_holds_it_until_it_is_reached(leaked: Workspace, lab: Lab) -> None:
    (held, *_) = holding(lab, SECRET)
    lab.faults[held].down = True
    report = leaked.forget(["dir/secret"], gc=True)
    assert report.freed is not None
    assert list(report.freed.away) == [held]
    assert holding(lab, SECRET) == [held]
    lab.faults[held].down = False
    lab.reopen(leaked).gc()
    assert holding(lab, SECRET) == []


def test_a_directory_is_forgotten_with_all_below(leaked: Workspace, lab: Lab) -> None:
    for path in sorted((leaked.directory / "dir").iterdir()):
        path.unlink()
    (leaked.directory / "dir").rmdir()
    leaked.push("6", force=True)
    assert leaked.forget(["dir", "dir/secret"], gc=True).contents == 10
    assert names(leaked, "1") == names(leaked, "3") == ["f"]
    assert holding(lab, noise(3, 3_000)) == []


def test_what_merges_replaced_is_forgotten_with_its_version(lab: Lab) -> None:
    """A clean merge by lines leaves the bytes of this side beside the version."""
    one = lab.init(lab.urls(*STORES))
    lines = [b"line %d" % n for n in range(9)]
    write(one.directory, {"text": b"\n".join(lines), "f": b"f"})
    one.push()
    other = lab.clone(lab.urls(*STORES))
    write(one.directory, {"text": b"\n".join([b"ONE", *lines[1:]])})
    one.push()
    write(other.directory, {"text": b"\n".join([*lines[:-1], b"OTHER"])})
    other.push()
    (other.directory / "text").unlink()
    other.push()
    assert [i for i in other.log("text") if i.kept]
    other.forget(["text"], gc=True)
    with other._session("test") as s:
        assert len(agreement.newest(s).index.ids(forget.ObjectKind.BLOB)) == 1


# ---- other devices


def test_a_device_that_slept_deletes_it_like_any_file(leaked: Workspace, lab: Lab) -> None:
    """It knows its own tree from its cache, so that what it has there counts as deleted by others."""
    other = lab.clone(lab.urls(*STORES), device="asleep")
    write(leaked.directory, {"dir/secret": SECRET})
    leaked.push("6")
    other.pull()
    (leaked.directory / "dir" / "secret").unlink()
    leaked.push("7")
    leaked.forget(["dir/secret"], gc=True)
    other.pull()
    assert not (other.directory / "dir" / "secret").exists()
    assert other.push().version is None


def test_a_device_that_lost_its_cache_takes_what_it_has_for_new(leaked: Workspace, lab: Lab) -> None:
    """Its base is what is kept of it: nothing is lost, other deletions arrive, and it is told."""
    write(leaked.directory, {"dir/secret": SECRET, "goes": b"goes", "f": b"six"})
    leaked.push("6")
    other = lab.clone(lab.urls(*STORES), device="asleep")
    (leaked.directory / "dir" / "secret").unlink()
    (leaked.directory / "goes").unlink()
    leaked.push("7")
    leaked.forget(["dir/secret"], gc=True)
    with other._session("test") as s:
        s.db._execute("DELETE FROM objects WHERE kind = 3")
    told: list[str] = []
    other.on_event = lambda event: told.append(str(event))
    other.pull()
    assert any("kept without what was forgotten" in text for text in told)
    assert (other.directory / "dir" / "secret").read_bytes() == SECRET
    assert not (other.directory / "goes").exists()


def test_others_are_faster(leaked: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push brings the path back meanwhile: it is looked for again on top of that."""
    other = lab.clone(lab.urls(*STORES), device="other")
    real, done = forget._agree, []

    def agree(*args: Any) -> Any:
        if not done:
            done.append(1)
            write(other.directory, {"dir/secret": b"back"})
            other.push("back")
        return real(*args)

    monkeypatch.setattr(forget, "_agree", agree)
    with pytest.raises(UsageError, match="is in the newest version"):
        leaked.forget(["dir/secret"])
    assert done


@pytest.mark.long
def test_a_collector_meanwhile_keeps_no_former_tree(
    leaked: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It marked the trees as they were; the fence it then agrees names none of them."""
    from metasync.maintenance import collect

    other = lab.clone(lab.urls(*STORES), device="other")
    (leaked.directory / "f").unlink()
    leaked.push("6")
    real, done = collect._Collection._change, []

    def change(*args: Any) -> Any:
        if not done:
            done.append(1)
            other.forget(["dir/secret"])
        return real(*args)

    monkeypatch.setattr(collect._Collection, "_change", change)
    leaked.gc(retention.parse("last=5"))
    assert done
    assert holding(lab, SECRET) == []
    assert [i.forgotten for i in leaked.log()] == [False, False, True, True, True]


def test_a_purge_that_cannot_pack_anew_is_done_by_the_next(
    leaked: Workspace, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metasync.maintenance import collect

    leaked.forget(["dir/secret"])
    with monkeypatch.context() as m:
        m.setattr(collect._Collection, "_pack", lambda *_: "no room")
        leaked.gc()
    assert holding(lab, SECRET)
    leaked.gc()
    assert holding(lab, SECRET) == []


def test_names_policy_and_trees_outlive_one_another(leaked: Workspace) -> None:
    """Trees of versions that a collection drops leave the list; the others stay through pushes and names."""
    leaked.forget(["dir/secret"])
    leaked.tag("3", "third")
    leaked.gc(retention.parse("last=1"))
    with leaked._session("test") as s:
        retained = s.indexes.retained(agreement.newest(s).state)
    assert len(retained.replaced) == 1
    assert names(leaked, "3") == ["dir", *(f"dir/n{n}" for n in range(1, 9)), "f"]
