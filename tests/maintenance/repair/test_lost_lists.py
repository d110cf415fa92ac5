"""A large file's list of chunks is lost on all backends: who is stopped, what is said, and the way past it."""

from __future__ import annotations

import pytest
from content_kit import noise
from workspace_kit import Lab, write

from metasync.errors import DamagedError, UnreadableError
from metasync.session import agreement
from metasync.store import retention
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
BIG = noise(1_500_000)


def pushed(lab: Lab, versions: int) -> Workspace:
    """A large file, and another that each version has anew; all but the last two versions are dropped."""
    w = lab.init(lab.urls(*NAMES))
    write(w.directory, {"big": BIG})
    for n in range(versions):
        write(w.directory, {"note": b"%d" % n})
        w.push()
    w.gc(retention.parse("last=2"))
    return w


def lose_list(lab: Lab, w: Workspace) -> bytes:
    """Takes all copies of the packs with the list of chunks from the backends; -> its id."""
    with w._session("test") as s:
        newest = agreement.newest(s)
        list_id = s.flat(newest)[b"big"].root
        names = {record.name.hex() for record, _ in newest.index.find(list_id)}
    assert names
    for path in (p for name in NAMES for p in lab.objects(name, "packs")):
        if path.name in names:
            path.unlink()
    return list_id


def without_big(lab: Lab, w: Workspace, list_id: bytes) -> None:
    """The newest version has the file no more, and this device keeps nothing of it."""
    (w.directory / "big").unlink()
    w.push()
    with w._session("test") as s:
        s.db._execute(f"DELETE FROM objects WHERE id = x'{list_id.hex()}'")


def test_gc_says_of_which_file_and_forget_is_a_way_past_it(lab: Lab) -> None:
    """The file is in older versions only, and no device keeps it."""
    laptop = pushed(lab, 3)
    without_big(lab, laptop, lose_list(lab, laptop))
    for _ in range(2):
        with pytest.raises(DamagedError, match="big of versions 2 to 3, which laptop wrote") as caught:
            laptop.gc()
        assert "`metasync forget big`" in caught.value.next_step
        assert "check --repair" in caught.value.next_step
        laptop.check(repair=True)
    laptop.forget(["big"])
    assert laptop.gc().freed
    assert laptop.check(read_data=True).problems == ()
    assert sorted(p.name for p in lab.clone(lab.urls(*NAMES), device="third").directory.iterdir()) == [
        ".metasync",
        "note",
    ]


def test_a_clone_names_the_file_and_comes_without_it_once_it_is_given_up(lab: Lab) -> None:
    """The file is in the newest version: the device whose clone it stops can give it up by itself."""
    laptop = pushed(lab, 3)
    lose_list(lab, laptop)
    laptop.close()
    with pytest.raises(
        UnreadableError, match=r"which laptop wrote, cannot be read: .*; of big not all is there"
    ) as caught:
        lab.clone(lab.urls(*NAMES), device="desktop")
    assert caught.value.next_step.startswith("`metasync check --repair`")
    desktop = Workspace.open(lab.root / "desktop")
    lab.keep(desktop)
    assert desktop.check(repair=True).repaired
    assert [noted.path for noted in desktop.pull().unplaced] == [b"big"]
    assert (desktop.directory / "note").read_bytes() == b"2"
    write(desktop.directory, {"mine": b"m"})
    assert desktop.push().changes.deleted == ()
