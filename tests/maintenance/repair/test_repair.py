"""`check --repair`: copies made whole from other copies, and lost packs from folders and caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from content_kit import noise
from workspace_kit import Lab, forget_bases, tree_of, write

from metasync.maintenance.repair import give_back
from metasync.maintenance.repair.lost_paths import Found
from metasync.reports.checks import Repaired
from metasync.session import agreement
from metasync.testing.quota import Quota
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")


def pushed(lab: Lab, files: int = 12, size: int = 300_000) -> Any:
    w = lab.init(lab.urls(*NAMES))
    write(Path(w.directory), {f"f{i}": noise(size, i) for i in range(files)})
    w.push()
    return w


def pushed_often(lab: Lab) -> Any:
    """Sixteen packs at least, so that each backend has some, and each pair of them too."""
    w = pushed(lab, files=1)
    for i in range(15):
        write(Path(w.directory), {f"g{i}": noise(5_000, 100 + i)})
        w.push()
    w.close()  # nothing is on its way any more
    return lab.reopen(w)


def packs(lab: Lab, name: str = "") -> list[Path]:
    """The copies of packs on a backend, or on all."""
    return sorted(p for p in (lab.root / "stores" / name).rglob("packs/*/*/*") if p.is_file())


def spoil(path: Path, data: bytes) -> None:
    os.chmod(path, 0o600)
    path.write_bytes(data)


def flip(path: Path, at: int = 1000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    spoil(path, bytes(data))


def repaired(w: Any, **more: bool) -> Repaired:
    done = w.check(repair=True, **more).repaired
    assert done is not None
    return done  # type: ignore[no-any-return]


def test_nothing_is_done_where_nothing_is_wrong(lab: Lab) -> None:
    w = pushed(lab)
    before = {p: p.stat().st_mtime_ns for p in packs(lab)}
    report = w.check(repair=True, read_data=True)
    assert report.repaired is None and not report.problems
    assert {p: p.stat().st_mtime_ns for p in packs(lab)} == before


def test_without_being_asked_nothing_is_mended(lab: Lab) -> None:
    w = pushed(lab)
    packs(lab, "a")[0].unlink()
    assert w.check().repaired is None
    assert len(w.check().problems) == 1


def test_a_backend_that_was_emptied_gets_its_copies_back(lab: Lab) -> None:
    w = pushed(lab)
    before = {p: p.read_bytes() for p in packs(lab)}
    for path in packs(lab, "b"):
        path.unlink()
    done = repaired(w)
    assert done.copies == len(done.found) > 0 and done.version is None
    assert {p: p.read_bytes() for p in packs(lab)} == before
    assert not w.check(read_data=True).problems


def test_damaged_copies_are_found_by_reading_and_written_anew(lab: Lab) -> None:
    """Each backend has one that is altered and one that is cut short, of different packs."""
    w = pushed_often(lab)
    before, spoilt = {p: p.read_bytes() for p in packs(lab)}, set()
    for name in NAMES:
        mine = [p for p in packs(lab, name) if p.name not in spoilt][:2]
        flip(mine[0])
        spoil(mine[-1], mine[-1].read_bytes()[:-7])
        spoilt |= {p.name for p in mine}
    done = repaired(w, read_data=True)
    assert done.copies == len(spoilt) == len(done.found)
    assert {p: p.read_bytes() for p in packs(lab)} == before


def test_a_damaged_copy_is_never_taken_for_the_source(lab: Lab) -> None:
    """One copy is gone; the other has the right size and wrong bytes, and its size alone was looked at. None is copied
    from it, and what it held is stored anew from the folder."""
    w = pushed(lab, files=1)
    copies = packs(lab)
    copies[0].unlink()
    flip(copies[1], at=-100)
    done = repaired(w)
    assert not copies[0].exists()
    assert done.stored_bytes > 0 and not done.gone
    assert not lab.reopen(w).check(read_data=True).problems


def test_what_no_backend_has_is_stored_from_the_folder(lab: Lab) -> None:
    w = pushed(lab)
    for path in packs(lab):
        path.unlink()
    report = w.check(repair=True)
    done = report.repaired
    assert not report.problems and not report.lost and done.stored_bytes > 0 and done.version is not None
    assert (done.gone, done.gone_objects) == ((), 0)
    w.close()
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    assert tree_of(Path(phone.directory)) == tree_of(lab.root / "laptop")
    assert not phone.check(read_data=True).problems


@pytest.mark.long
def test_what_one_device_changed_another_gives_back(lab: Lab) -> None:
    """The laptop edited one of the files meanwhile, and has it no more; the phone has all."""
    w = pushed(lab)
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    for path in packs(lab):
        path.unlink()
    write(Path(w.directory), {"f3": b"edited"})
    forget_bases(w)
    done = repaired(w)
    assert [(g.path, g.first) for g in done.gone] == [(b"f3", 1)]
    assert w.check().lost == (), "what is lost is told once"
    done = repaired(phone)
    assert done.gone == ()
    assert not phone.check(read_data=True).problems
    w.push()
    phone.pull()
    assert (Path(phone.directory) / "f3").read_bytes() == b"edited"
    fresh = lab.clone(lab.urls(*NAMES), device="tablet")
    assert tree_of(Path(fresh.directory)) == tree_of(Path(phone.directory))
    fresh.restore("1", ["f3"])
    assert (Path(fresh.directory) / "f3").read_bytes() == noise(300_000, 3)


def test_a_version_that_no_pack_has_is_stored_by_whoever_has_it_cached(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device, which had nothing of it, took the lost packs out of the index."""
    w = pushed(lab, files=2)
    with monkeypatch.context() as patch, w._session("test") as s:
        patch.setattr(give_back, "_store_objects", lambda *_: None)
        patch.setattr(give_back, "_store_tree", lambda *_: Found())
        agreed = agreement.newest(s)
        given = give_back.give_back(s, agreed, [*agreed.index.packs().values()])
        give_back.name_in_index(s, agreed.state, given.root)
    assert b"/" in w.check().nowhere
    done = repaired(w)
    assert done.version is not None and not done.gone
    phone = lab.clone(lab.urls(*NAMES), device="phone")
    assert tree_of(Path(phone.directory)) == tree_of(Path(w.directory))


def test_while_a_backend_is_away_nothing_is_given_up(lab: Lab) -> None:
    """Both copies of some packs are on a, which is emptied, and on b, which is away: b may have them."""
    w = pushed_often(lab)
    names = {p.name for p in packs(lab, "a")} & {p.name for p in packs(lab, "b")}
    assert names
    for path in packs(lab, "a"):
        path.unlink()
    away = lab.lose("b")
    done = repaired(w)
    assert done.version is None and done.waits == len(names)
    os.rename(away, lab.root / "stores" / "b")
    done = repaired(lab.reopen(w))
    assert done.copies and not done.waits
    assert not lab.reopen(w).check(read_data=True).problems


def test_a_file_that_nobody_has_blocks_nothing_else(lab: Lab) -> None:
    w = pushed(lab)
    for path in packs(lab):
        path.unlink()
    write(Path(w.directory), {"f3": b"edited"})
    forget_bases(w)
    assert repaired(w).gone
    assert repaired(w).version is None, "there is nothing more to be named"
    with w._session("test") as s:
        assert give_back.give_back(s, agreement.newest(s)).missing == (b"f3",)
    tablet = lab.clone(lab.urls(*NAMES), device="tablet")
    expected = tree_of(Path(w.directory))
    expected.pop(b"f3")
    assert tree_of(Path(tablet.directory)) == expected
    write(Path(tablet.directory), {"new": b"new"})
    tablet.push()
    w.push()
    tablet.pull()
    assert tree_of(Path(tablet.directory)) == tree_of(Path(w.directory))


def test_where_there_is_no_room_for_a_copy_is_told_with_the_reason(lab: Lab) -> None:
    w = pushed_often(lab)
    lost = packs(lab, "b")
    for path in lost:
        path.unlink()
    w.close()
    lab.quotas["b"] = Quota(sum(p.stat().st_size for p in lab.store("b").rglob("*") if p.is_file()) + 1_000)
    lab.faults.pop("b")
    report = lab.keep(Workspace.open(w.directory)).check(repair=True)
    assert report.repaired is not None and report.repaired.copies == 0
    (unmade,) = report.repaired.unmade
    assert (unmade.backend, unmade.copies, unmade.is_full) == ("b", len(lost), True)
    assert "free" in unmade.why and not unmade.why.startswith("b:")
    lab.quotas["b"].limit_bytes = 1 << 40
    report = lab.reopen(w).check(repair=True)
    assert report.repaired is not None and report.repaired.copies == len(lost) and report.repaired.unmade == ()
