"""A removed backend is emptied of what is the workspace's, and of nothing else, once nothing is read there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.errors import MetaSyncError, UnreachableError, UsageError
from metasync.testing.quota import Quota
from metasync.workspace import Workspace


def some(lab: Lab, *names: str, copies: int = 2) -> Workspace:
    w = lab.init(lab.urls(*names), replicas=copies)
    for n in range(6):
        write(w.directory, {f"file{n}": os.urandom(3000)})
        w.push(f"push {n}")
    n = 6
    while not lab.objects(names[-1], "packs"):  # where a pack lies is drawn
        write(w.directory, {f"file{n}": os.urandom(3000)})
        w.push("another")
        n += 1
    return w


def strangers(lab: Lab, name: str) -> dict[Path, bytes]:
    """Files of others on a store: in its top folder, and in folders beside the workspace's."""
    top = lab.store(name)
    files = {top / "photo.jpg": b"a photo", top / "other" / "packs" / "file": b"of another program"}
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return files


def is_whole(lab: Lab, w: Workspace) -> None:
    report = w.check(read_data=True)
    assert (report.problems, report.lost, report.short) == ((), (), 0)
    desktop = lab.clone([lab.url(b.name) for b in w.backends()])
    assert {k: v.data for k, v in tree_of(desktop.directory).items()} == {
        k: v.data for k, v in tree_of(w.directory).items()
    }


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.long
def test_it_is_emptied_after_its_data_have_moved_and_what_is_of_others_stays(lab: Lab, copies: int) -> None:
    w = some(lab, "a", "b", "c", "d", copies=copies)
    others = strangers(lab, "d")
    ours = [p for p in lab.store("d").rglob("*") if p.is_file() and p not in others]
    done = w.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    assert done.wiped is not None
    assert done.wiped.left == 0
    assert done.wiped.objects >= len(ours) * (copies > 1)
    assert {p: p.read_bytes() for p in lab.store("d").rglob("*") if p.is_file()} == others
    assert sorted(p.name for p in lab.store("d").iterdir()) == ["other", "photo.jpg"]
    is_whole(lab, lab.reopen(w))


def test_nothing_goes_before_the_data_have_moved(lab: Lab) -> None:
    lab.quotas.update({name: Quota(64 << 20) for name in "ab"})
    w = some(lab, "a", "b", "c", copies=1)
    before = {p.name for p in lab.objects("c", "packs")}
    for quota in lab.quotas.values():
        quota.fill()
    with pytest.raises(UnreachableError, match="could not be moved"):
        w.backend_remove("c", passphrase=PASSPHRASE, wipe=True)
    assert {p.name for p in lab.objects("c", "packs")} >= before


@pytest.mark.long
def test_it_goes_on_where_it_was_interrupted(lab: Lab) -> None:
    """The store fails while it is emptied: the same command goes on, though the workspace has forgotten the backend."""
    w = some(lab, "a", "b", "c", "d")
    w = lab.reopen(w)
    assert w.backends()
    lab.faults["d"].read_only = True
    done = w.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    assert done.wiped is not None
    assert done.wiped.left
    assert "d" not in {b.name for b in w.backends()}
    w = lab.reopen(w)
    lab.faults["d"].read_only = False
    again = w.backend_remove("d", wipe=True)
    assert again.wiped is not None
    assert (again.wiped.left, again.wiped.objects >= done.wiped.left) == (0, True)
    assert not list(lab.store("d").iterdir())
    with pytest.raises(UsageError, match="no way to"):
        w.backend_remove("d", wipe=True)
    is_whole(lab, w)


@pytest.mark.long
def test_the_same_store_added_again_is_left_alone(lab: Lab) -> None:
    w = some(lab, "a", "b", "c", "d")
    lab.faults["d"].read_only = True
    w.backend_remove("d", passphrase=PASSPHRASE, wipe=True)
    w = lab.reopen(w)
    lab.faults["d"].read_only = False
    w.backend_add(lab.url("d").replace("name=d", "name=d2"), passphrase=PASSPHRASE)
    moved = w.rebalance()
    assert (moved.is_whole, [x.backend for x in moved.emptied]) == (True, ["d"])
    assert lab.objects("d", "packs")
    with pytest.raises(UsageError, match="no way to"):
        w.backend_remove("d", wipe=True)
    report = w.check(read_data=True)
    assert (report.problems, report.lost, report.short, report.meta_problems) == ((), (), 0, ())


def test_what_excludes_each_other(lab: Lab) -> None:
    w = some(lab, "a", "b", "c")
    with pytest.raises(MetaSyncError, match="cannot be emptied"):
        w.backend_remove("c", dead=True, wipe=True)
    plan = w.backend_remove("c", passphrase=PASSPHRASE, wipe=True, dry_run=True)
    assert (plan.version, plan.wiped) == (None, None)
    w.close()
    ran = lab.cli("backend", "remove", "c", "--wipe")
    assert ran.code == 0
    assert "Deleted there: " in ran.out
