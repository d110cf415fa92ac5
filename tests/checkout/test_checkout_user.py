"""The checkout while the user is at work: what came after the scan is never lost, nor taken for what was agreed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkout_kit import (
    LATER_NS,
    NEW,
    OLD,
    agreed,
    assert_settled,
    full,
    late,
    replaced,
)
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from workdir import (
    DIR,
    MTIME_NS,
    File,
    Fuse,
    FusedDisk,
    Link,
    Workspace,
    digest,
    entries,
    files_under,
    read,
    trees,
)

from metasync.checkout.checkout import Checkout
from metasync.local.state_keys import CONFLICTS


def test_a_late_edit_becomes_a_conflict_copy(work: Workspace) -> None:
    applied = late(work, lambda: work.at(b"edited").write_bytes(b"my late words"))
    assert [(c.path, c.copy) for c in applied.conflicts] == [(b"edited", b"edited.conflict-here-20000101")]
    assert work.db.records(CONFLICTS) == applied.conflicts
    assert work.at(b"edited.conflict-here-20000101").read_bytes() == b"my late words"
    assert work.at(b"edited").read_bytes() == b"new edited"
    found = work.scan()
    assert set(found.tree) - set(NEW) == {b"edited.conflict-here-20000101"}


def test_a_late_edit_that_hides_its_time_becomes_one_too(work: Workspace) -> None:
    def edit() -> None:
        work.at(b"edited").write_bytes(b"OLD EDITED")
        os.utime(work.at(b"edited"), ns=(0, MTIME_NS))

    late(work, edit)
    assert work.at(b"edited.conflict-here-20000101").read_bytes() == b"OLD EDITED"


def test_a_late_save_by_rename(work: Workspace) -> None:
    def save() -> None:
        work.at(b"save~").write_bytes(b"saved by an editor")
        work.at(b"save~").rename(work.at(b"edited"))

    late(work, save)
    assert work.at(b"edited.conflict-here-20000101").read_bytes() == b"saved by an editor"
    assert work.at(b"edited").read_bytes() == b"new edited"


def test_conflict_copies_never_replace(work: Workspace) -> None:
    new = {**NEW, b"edited.conflict-here-20000101-2": b"agreed copy"}

    def edit() -> None:
        work.at(b"edited").write_bytes(b"my late words")
        work.at(b"edited.conflict-here-20000101").write_bytes(b"an older one")

    late(work, edit, new)
    assert work.at(b"edited.conflict-here-20000101").read_bytes() == b"an older one"
    assert work.at(b"edited.conflict-here-20000101-2").read_bytes() == b"agreed copy"
    assert work.at(b"edited.conflict-here-20000101-3").read_bytes() == b"my late words"


def test_deleted_there_changed_here_stays(work: Workspace) -> None:
    applied = late(work, lambda: work.at(b"d/gone").write_bytes(b"still needed"))
    assert {n.path for n in applied.kept} == {b"d/gone", b"d"}
    assert work.at(b"d/gone").read_bytes() == b"still needed"
    assert {b"d", b"d/gone"} <= work.scan().tree.keys()


def test_changed_there_deleted_here_comes_back(work: Workspace) -> None:
    def delete() -> None:
        work.at(b"edited").unlink()
        work.at(b"wide/a").unlink()
        work.at(b"wide").rmdir()

    late(work, delete)
    assert read(work.root) == full(NEW)
    assert_settled(work, NEW)


def test_a_late_deletion_of_a_touched_file_stands(work: Workspace) -> None:
    late(work, lambda: work.at(b"mode").unlink())
    found = work.scan()
    assert found.deleted == [b"mode"]


def test_a_late_edit_of_a_touched_file_stands(work: Workspace) -> None:
    applied = late(work, lambda: work.at(b"time").write_bytes(b"edited!!!"))
    assert applied.conflicts == []
    assert work.scan().tree[b"time"].content == digest(b"edited!!!")


@pytest.mark.parametrize("what", ["file", "symlink", "fifo", "directory", "full directory"])
@pytest.mark.parametrize("path", [b"fresh/n", b"fresh", b"file-to-link", b"dir-to-file"])
def test_what_is_in_the_way_is_set_aside(work: Workspace, what: str, path: bytes) -> None:
    def block() -> None:
        at = work.at(path)
        if at.is_dir():
            work.at(b"dir-to-file/x").unlink()
            at.rmdir()
        elif at.exists():
            at.unlink()
        at.parent.mkdir(exist_ok=True)
        if what == "file":
            at.write_bytes(b"untracked")
        elif what == "symlink":
            at.symlink_to("nowhere")
        elif what == "fifo":
            os.mkfifo(at)
        else:
            at.mkdir()
            if what == "full directory":
                (at / "u").write_bytes(b"untracked")

    applied = late(work, block)
    copy = path + b".conflict-here-20000101"
    here = read(work.root)
    assert {p: s for p, s in here.items() if p in NEW} == full(NEW)
    if path == b"fresh" and "directory" in what:  # a directory is no obstacle to a directory
        assert applied.conflicts == []
        assert work.at(b"fresh/u").exists() == (what == "full directory")
        return
    if path == b"dir-to-file" and what == "directory":
        assert applied.conflicts == []  # empty and expected to be a directory: rmdir
        return
    assert [c.copy for c in applied.conflicts] == [copy]
    if what == "file":
        assert here[copy].data == b"untracked"
    elif what == "full directory":
        assert here[copy + b"/u"].data == b"untracked"
    else:
        assert os.path.lexists(work.at(copy))


def test_ignored_files_hold_a_directory(work: Workspace) -> None:
    applied = late(work, lambda: work.at(b"d/.DS_Store").write_bytes(b"x"))
    assert [n.path for n in applied.kept] == [b"d"]
    assert work.at(b"d/.DS_Store").exists()
    found = work.scan()
    assert found.tree == entries(NEW)  # d does not come back for the others
    assert found.deleted == []


def test_a_new_file_in_a_directory_that_goes(work: Workspace) -> None:
    late(work, lambda: work.at(b"clash/untracked").write_bytes(b"mine"))
    assert work.at(b"clash").read_bytes() == b"a file now"
    assert work.at(b"clash.conflict-here-20000101/untracked").read_bytes() == b"mine"


def test_writes_through_an_open_descriptor_are_kept(work: Workspace) -> None:
    agreed(work, OLD)
    with work.at(b"edited").open("r+b") as f:
        work.check_out(NEW)
        f.write(b"written late")
    assert b"written late" in replaced(work)
    assert work.at(b"edited").read_bytes() == b"new edited"


def test_a_file_in_the_place_of_a_directory_is_set_aside(work: Workspace) -> None:
    def replace() -> None:
        work.at(b"wide/a").unlink()
        work.at(b"wide").rmdir()
        work.at(b"wide").write_bytes(b"not a directory any more")

    late(work, replace)
    assert work.at(b"wide.conflict-here-20000101").read_bytes() == b"not a directory any more"
    here = read(work.root)
    del here[b"wide.conflict-here-20000101"]
    assert here == full(NEW)


BUSY_OLD: dict[bytes, Any] = {b"d": DIR, b"d/gone": b"deleted there", b"edited": b"old edited", b"mode": b"mode only"}
BUSY_NEW: dict[bytes, Any] = {
    b"edited": File(b"new edited", 0o644, LATER_NS),
    b"mode": File(b"mode only", 0o600),
    b"n": File(b"new", 0o644, LATER_NS),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("what", ["save", "write", "same size and time", "delete"])
@pytest.mark.parametrize("path", [b"edited", b"n", b"d/gone", b"mode"])
def test_the_user_is_at_work_at_every_step(tmp_path: Path, what: str, path: bytes) -> None:
    for step in range(1, 300):
        fuse = Fuse()
        with Workspace(tmp_path / str(step), FusedDisk(fuse)) as work:
            agreed(work, BUSY_OLD)
            ours = work.scan_past()
            checkout = Checkout(work.db, work.tree)
            changes = work.changes(ours.tree, entries(BUSY_NEW))
            work.stage(checkout, changes, checkout.begin(changes), BUSY_NEW)
            mine = b"words of mine"
            if what == "same size and time":
                mine = mine[: len(BUSY_OLD.get(path, b"new"))]
            acted: list[bool] = []

            def act(work: Workspace = work, fuse: Fuse = fuse, mine: bytes = mine, acted: list[bool] = acted) -> None:
                fuse.mend()
                at, beside = work.at(path), work.root.parent / "beside"
                with suppress(FileNotFoundError):
                    if what == "delete":
                        at.unlink()
                    elif what == "save":
                        beside.write_bytes(mine)
                        beside.rename(at)
                    else:
                        at.write_bytes(mine)
                        if what == "same size and time":
                            os.utime(at, ns=(0, MTIME_NS))
                    acted.append(True)

            fuse.steps, fuse.at, fuse.error = 0, step, act
            checkout.apply()
            ended = fuse.at is not None
            fuse.mend()
            if acted and what != "delete":
                assert mine in files_under(work.root), step
            work.base = entries(BUSY_NEW)
            found = work.scan()
            here = read(work.root)
            for name, seen in found.tree.items():
                spec = here.get(name)
                assert not isinstance(spec, File) or seen.content == digest(spec.data), (step, name)
                assert spec is not None, (step, name)
        if ended:
            return
    raise AssertionError("the checkout never ended")


edits = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"a/a", b"b/c", b"c"]), st.sampled_from("wrxds")), max_size=4)


def edit(root: Path, path: bytes, what: str, data: bytes) -> None:
    """Something a user does; where it can't be done, nothing."""
    at = root / os.fsdecode(path)
    try:
        if what == "w":
            at.write_bytes(data)
        elif what == "r":
            at.rename(at.with_name("moved-" + at.name))
        elif what == "x":
            at.unlink()
        elif what == "d":
            at.mkdir()
        else:
            at.symlink_to("a")
    except OSError:
        pass


@settings(max_examples=examples(120))
@given(trees, trees, edits)
def test_any_tree_to_any_tree(tmp_path_factory: pytest.TempPathFactory, old: Any, new: Any, meanwhile: Any) -> None:
    with Workspace(tmp_path_factory.mktemp("w")) as work:
        agreed(work, old)
        written = {b"user %d" % i: i for i in range(len(meanwhile))}

        def user() -> None:
            for data, (path, what) in zip(written, meanwhile, strict=True):
                edit(work.root, path, what, data)

        before: set[bytes] = set()

        def act() -> None:
            user()
            before.update(files_under_tree(work.root))

        applied = work.check_out(new, before_apply=act)
        here = read(work.root)
        everywhere = set(files_under(work.root))
        assert before <= everywhere  # whatever stood there a moment before is somewhere
        assert {d for d in before if d.startswith(b"user")} <= {s.data for s in here.values() if isinstance(s, File)}
        if not meanwhile:
            assert here == full(new)
            assert (applied.conflicts, applied.kept, applied.unplaced) == ([], [], [])
            assert_settled(work, new)
        found = work.scan()
        # What was agreed is here under its name, unless the user made something of it since the checkout began.
        for path, spec in full(new).items():
            if isinstance(spec, (File, Link)) and path not in {n.path for n in applied.unplaced}:
                unchanged = path in old and full(old)[path] == spec
                assert unchanged or here.get(path) == spec
        assert found.busy == []


def files_under_tree(root: Path) -> list[bytes]:
    return [spec.data for spec in read(root).values() if isinstance(spec, File)]
