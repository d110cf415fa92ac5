"""A clone that goes in parts: the same tree as by one checkout, also where it dies between parts, or the user acts."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from effort import first
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.checkout import checkout, room
from metasync.checkout.apply import Placer
from metasync.checkout.checkout import Checkout
from metasync.errors import ExcludedError, MetaSyncError, UnreachableError, WorkspaceError
from metasync.events import Notice, Progress
from metasync.local import spill
from metasync.local.state_keys import CONFLICTS, EXACT_KEY, TREE_KEY, UNFINISHED_KEY
from metasync.members import admission
from metasync.objects import walk_large
from metasync.reports.start import CloneReport
from metasync.runtime.sizes import SMALL_FILE_BYTES
from metasync.session.folder import PARTS_KEY
from metasync.sync import first_checkout, pull
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk

MB = 1 << 20


class Stop(BaseException):
    """The process ends here."""


@pytest.fixture(params=["whole", "by the piece"])
def parted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few paths. Directories come whole, or piece by piece as on other disks."""
    small_parts(monkeypatch)
    if request.param != "whole":
        monkeypatch.setattr(checkout, "may_come_whole", lambda _: False)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "HELD_MAX", 8)
    monkeypatch.setattr(first_checkout, "WHOLE_PATHS_MAX", 8)
    monkeypatch.setattr(spill, "PAGE", 3)
    monkeypatch.setattr(walk_large, "BATCH_BYTES", 700)
    monkeypatch.setattr(first_checkout, "PART_PATHS", 10)
    monkeypatch.setattr(first_checkout, "PART_PATHS_LEAST", 7)


def odd_tree(root: Path) -> None:
    """Names that sort oddly, links, hard links, empty things, modes, a file of many chunks, the same bytes in many."""
    rng = random.Random(7)
    write(root, {f"d{i % 5}/e{i % 3}/f{i:02}": rng.randbytes(3_000 + i) for i in range(40)})
    write(root, {"a/x": b"in a", "a-b": b"beside a", "a.txt": b"beside a too", "a/-": b"first in a", "a b": b"space"})
    write(root, {"huge": rng.randbytes(9 * MB), "zz/huge": rng.randbytes(6 * MB), "empty": b"", "zz/empty": b""})
    write(root, {f"{top}/same": b"the same bytes in every one of them" for top in ("a", "d1", "d4/e1", "m", "zz")})
    write(root, {os.fsdecode(b"latin-\xe9/\xff"): b"no utf-8", ".metasyncignore": b"*.tmp\n"})
    (root / "m/deep/er").mkdir(parents=True)
    (root / "d2/link").symlink_to("../a/x")
    (root / "zzz-link").symlink_to("nowhere")
    os.link(root / "a/x", root / "zz/hard")
    (root / "a/x").chmod(0o750)
    (root / "d3").chmod(0o555)
    (root / "d3/e0").chmod(0o700)


def published(lab: Lab) -> Workspace:
    w = lab.init(lab.urls("a", "b", "c"))
    odd_tree(w.directory)
    w.push("first")
    return w


def cloned(lab: Lab, told: list[Any] | None = None, device: str = "desktop") -> CloneReport[Workspace]:
    report = Workspace.clone(
        lab.root / device,
        name="docs",
        backends=lab.urls("a", "b", "c"),
        passphrase=PASSPHRASE,
        device_name=device,
        on_event=told.append if told is not None else lambda _: None,
    )
    lab.keep(report.workspace)
    return report


def settled(w: Workspace) -> None:
    """The folder is at what was agreed, nothing is left of the clone, and rows and tree are one."""
    assert [w._db.get(key) for key in (UNFINISHED_KEY, PARTS_KEY, EXACT_KEY)] == [None] * 3
    assert w._db.records(CONFLICTS) == []
    assert not any((w.directory / ".metasync/tmp").iterdir())
    assert not (w.directory / ".metasync/left").exists()
    assert w.push("nothing").version is None


@pytest.mark.few(1)
def test_the_tree_is_the_same(lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    w = published(lab)
    told: list[Any] = []
    entered, count = admission._entered, []
    monkeypatch.setattr(admission, "_entered", lambda *a: count.append(1) or entered(*a))
    report = cloned(lab, told)
    assert count == [1], "the device is agreed once"
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    files = [n for n in tree_of(w.directory).values() if n.kind != "dir"]
    assert (report.files, report.bytes) == (len(files), sum(len(n.data) for n in files))
    assert report.workspace._db.get(TREE_KEY) is not None, "a push need not look at the tree again"
    settled(report.workspace)
    done = [e for e in told if isinstance(e, Progress) and e.phase == "download"]
    assert [e.done for e in done] == sorted(e.done for e in done), "of the whole, not of each part"
    assert {e.total for e in done} == {report.bytes}


def test_it_takes_the_parts_that_were_meant(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no test here says anything."""
    small_parts(monkeypatch)
    sizes: list[int] = []
    begin = Checkout.begin

    def counted(self: Checkout, changes: Any, *a: Any, **k: Any) -> Any:
        changes = list(changes)
        sizes.append(len(changes))
        return begin(self, changes, *a, **k)

    monkeypatch.setattr(Checkout, "begin", counted)
    w = published(lab)
    cloned(lab)
    assert len(sizes) > 5
    assert max(sizes) <= 10
    assert sum(sizes) == len(tree_of(w.directory))


def test_what_is_in_several_files_is_fetched_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = lab.init(lab.urls("a"))
    rng = random.Random(3)
    twice = rng.randbytes(3 * MB)
    write(w.directory, {"a": twice, **{f"d{i}": rng.randbytes(100) for i in range(30)}, "z": twice})
    w.push("first")
    small_parts(monkeypatch)
    fetched: list[bytes] = []
    fetch = first_checkout.Contents.fetch

    def counted(self: Any, ids: Any, *a: Any, **k: Any) -> None:
        ids = list(ids)
        fetched.extend(ids)
        fetch(self, ids, *a, **k)

    monkeypatch.setattr(first_checkout.Contents, "fetch", counted)
    report = Workspace.clone(lab.root / "desktop", name="docs", backends=lab.urls("a"), passphrase=PASSPHRASE)
    lab.keep(report.workspace)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    assert len(fetched) == len(set(fetched))


def dying(
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    at: int,
    *,
    before: bool = True,
    error: BaseException | None = None,
) -> Callable[[], None]:
    """Has the process die when something is done for the n-th time; returns what takes that back."""
    real, count = getattr(place, name), 0

    def done(*a: Any, **k: Any) -> Any:
        nonlocal count
        count += 1
        if before and count == at:
            raise error or Stop
        out = real(*a, **k)
        if not before and count == at:
            raise Stop
        return out

    monkeypatch.setattr(place, name, done)
    return lambda: monkeypatch.setattr(place, name, real)


DEATHS: Mapping[str, tuple[Any, str, bool]] = {
    "while files come": (Checkout, "stage_whole", True),
    "when a part is at hand": (Checkout, "apply", True),
    "while a part is placed": (Placer, "attempt", False),
    "when a part is placed": (checkout, "rows_after", True),
    "between parts": (Checkout, "apply", False),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("at", first(1, [2, 1, 4]))
@pytest.mark.parametrize("death", DEATHS)
def test_it_dies_and_goes_on(lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch, death: str, at: int) -> None:
    w = published(lab)
    place, name, before = DEATHS[death]
    undo = dying(monkeypatch, place, name, at * (7 if name in ("stage_whole", "attempt") else 1), before=before)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    told: list[Any] = []
    report = cloned(lab, told)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    settled(report.workspace)
    if death == "between parts":
        assert any(isinstance(e, Notice) and "files are here already" in e.text for e in told)


def test_a_tree_of_few_paths_is_one_part_and_no_merge(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is here that it could be merged with."""
    w = published(lab)
    parts: list[int] = []
    place = first_checkout._Parts._place

    def counted(self: Any, part: Mapping[bytes, Any], *a: Any, **k: Any) -> None:
        parts.append(len(part))
        place(self, part, *a, **k)

    monkeypatch.setattr(first_checkout._Parts, "_place", counted)
    monkeypatch.setattr(pull, "integrate", None)
    report = cloned(lab)
    assert parts == [len(tree_of(w.directory))]
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    assert report.workspace._db.get(TREE_KEY) is not None, "a push need not look at the tree again"
    settled(report.workspace)


def test_a_version_without_a_file_is_brought(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    report = cloned(lab)
    assert (report.files, report.bytes) == (0, 0)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory) == {}
    settled(report.workspace)


def test_it_goes_on_where_the_tree_counts_as_small_by_now(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another version of MetaSync, which plans more paths at once: what is here is not brought again."""
    w = published(lab)
    with monkeypatch.context() as m:
        small_parts(m)
        here = len(tree_of(stopped_between_parts(lab, m)))
    wanted: list[int] = []
    begin = Checkout.begin

    def counted(self: Checkout, changes: Any, *a: Any, **k: Any) -> Any:
        changes = list(changes)
        wanted.append(len(changes))
        return begin(self, changes, *a, **k)

    monkeypatch.setattr(Checkout, "begin", counted)
    report = cloned(lab)
    assert sum(wanted) == len(tree_of(w.directory)) - here
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)
    settled(report.workspace)


def stopped_between_parts(lab: Lab, monkeypatch: pytest.MonkeyPatch, at: int = 2) -> Path:
    undo = dying(monkeypatch, Checkout, "apply", at, before=False)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    folder = lab.root / "desktop"
    assert 5 < len(tree_of(folder)) < len(tree_of(lab.root / "laptop"))
    return folder


@pytest.mark.long
def test_what_the_user_does_in_between_is_kept(lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the way of what comes, of any kind; files beside it; changes of what is here already."""
    w = published(lab)
    folder = stopped_between_parts(lab, monkeypatch)
    agreed = tree_of(w.directory)
    here = sorted(path for path, node in tree_of(folder).items() if node.kind == "file")
    (folder / os.fsdecode(here[0])).write_bytes(b"edited by the user")
    (folder / os.fsdecode(here[1])).unlink()
    write(folder, {"mine": b"my own", "zz/mine": b"my own too", "zz/same": b"in the way", "m": b"a file for a folder"})
    (folder / "zz/huge").mkdir()
    (folder / "zz/huge/inside").write_bytes(b"a folder for a file")
    (folder / "zzz-link").write_bytes(b"a file for a link")
    report = cloned(lab)
    now = tree_of(folder)
    kept = {c.path: c.kept for c in report.conflicts}
    assert set(kept) == {b"zz/same", b"m", b"zz/huge", b"zzz-link"}
    assert now[kept[b"zz/same"]].data == b"in the way"
    assert now[kept[b"m"]].data == b"a file for a folder"
    assert now[kept[b"zz/huge"] + b"/inside"].data == b"a folder for a file"
    assert now[kept[b"zzz-link"]].data == b"a file for a link"
    mine = {b"mine", b"zz/mine", *kept.values(), kept[b"zz/huge"] + b"/inside", here[0], here[1]}
    assert {p: n for p, n in now.items() if p not in mine} == {p: n for p, n in agreed.items() if p not in mine}
    assert now[here[0]].data == b"edited by the user"
    assert here[1] not in now
    pushed = report.workspace.push("mine")
    assert pushed.changes.deleted == (here[1],)
    assert pushed.changes.modified == (here[0],)
    w.pull()
    assert tree_of(w.directory) == tree_of(folder)


@pytest.mark.long
def test_what_the_user_makes_while_a_part_is_placed(lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    w = published(lab)
    folder = lab.root / "desktop"
    run, count = Placer.run, 0

    def meanwhile(self: Placer) -> Any:
        nonlocal count
        for change in self.plan.changes:
            if (
                change.new is not None
                and change.new.size > 0
                and not (parent := folder / os.fsdecode(change.path)).parent.is_symlink()
            ):
                count += 1
                parent.parent.mkdir(parents=True, exist_ok=True)
                parent.write_bytes(b"late %d" % count)
                break
        return run(self)

    monkeypatch.setattr(Placer, "run", meanwhile)
    report = cloned(lab)
    now = tree_of(folder)
    assert count > 4
    assert {now[c.kept].data for c in report.conflicts} == {b"late %d" % n for n in range(1, count + 1)}
    copies = {c.kept for c in report.conflicts}
    assert {p: n for p, n in now.items() if p not in copies} == tree_of(w.directory)
    assert len(report.workspace._db.records(CONFLICTS)) == count


@pytest.mark.long
def test_files_that_are_here_before_are_merged(lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is not empty goes by one checkout."""
    w = published(lab)
    arrive = admission.arrive

    def late(s: Any, **k: Any) -> Any:
        write(lab.root / "desktop", {"a/x": b"in a", "a-b": b"mine", "mine": b"my own"})
        return arrive(s, **k)

    monkeypatch.setattr(admission, "arrive", late)
    report = cloned(lab)
    now = tree_of(lab.root / "desktop")
    assert [c.path for c in report.conflicts] == [b"a-b"]
    assert now[report.conflicts[0].kept].data == b"mine"
    assert now[b"mine"].data == b"my own"
    assert {p: n.data for p, n in now.items() if p not in (report.conflicts[0].kept, b"mine")} == {
        p: n.data for p, n in tree_of(w.directory).items()
    }


@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["clone", "push", "pull"])
@pytest.mark.long
def test_a_newer_version_comes_after_the_one_that_was_begun(
    lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """What the newer one deletes is gone, though it was here."""
    w = published(lab)
    folder = stopped_between_parts(lab, monkeypatch)
    gone = sorted(p for p, n in tree_of(folder).items() if n.kind == "file")[:3]
    for path in gone:
        (w.directory / os.fsdecode(path)).unlink()
    (w.directory / "zz/same").unlink()
    write(w.directory, {"zz/new": b"new", "a.txt": b"changed there", "m/deep/er/new": b"new"})
    w.push("second")
    if by == "clone":
        report = cloned(lab)
        assert report.version == w.status().newest
        d = report.workspace
    else:
        d = lab.keep(Workspace.open(folder))
        (d.push if by == "push" else d.pull)()
        d.sync()
    assert tree_of(folder) == tree_of(w.directory)
    settled(d)


@pytest.mark.long
def test_a_part_is_here_by_a_recovered_checkout_and_the_rows_are_not_said_to_be_the_tree(
    lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody compared what stands there with what was agreed."""
    published(lab)
    undo = dying(monkeypatch, checkout, "rows_after", 2)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    report = cloned(lab)
    assert report.workspace._db.get(TREE_KEY) is None
    settled(report.workspace)


def test_nobody_gets_files_who_is_not_let_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lab)
    small_parts(monkeypatch)
    told: list[str] = []

    def refused(*_: Any) -> Any:
        told.append("asked")
        assert [p.name for p in (lab.root / "desktop").iterdir()] == [".metasync"]
        raise ExcludedError("revoked")

    monkeypatch.setattr(admission, "_entered", refused)
    with pytest.raises(ExcludedError):
        cloned(lab)
    assert told
    assert not (lab.root / "desktop").exists()


def test_no_room_is_told_before_anything_comes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = published(lab)
    small_parts(monkeypatch)
    files = [n for n in tree_of(w.directory).values() if n.kind != "dir"]
    needed = sum(len(n.data) + SMALL_FILE_BYTES for n in files)
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: needed - 1)
    with pytest.raises(WorkspaceError, match=f"need {needed:,} bytes"):
        cloned(lab)
    assert [p.name for p in (lab.root / "desktop").iterdir()] == [".metasync"]
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: needed)
    cloned(lab)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (Checkout, WorkspaceError("the disk is full")),
        (first_checkout, UnreachableError("no backend answers")),
        (first_checkout, WorkspaceError("nothing can be written")),
    ],
)
@pytest.mark.long
def test_what_fails_on_the_way_leaves_what_is_here(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, where: Any, error: MetaSyncError
) -> None:
    w = published(lab)
    small_parts(monkeypatch)
    undo = dying(monkeypatch, where, "_without_room" if where is Checkout else "deliver", 4, error=error)
    with pytest.raises(type(error), match=error.message):
        cloned(lab)
    undo()
    begun = tree_of(lab.root / "desktop")
    assert 10 < len(begun) < len(tree_of(w.directory))
    if isinstance(error, WorkspaceError):
        assert not any((lab.root / "desktop/.metasync/tmp").iterdir()), "the room is given back"
    cloned(lab)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)


def test_a_copy_that_changes_while_it_serves_as_a_source(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file of the same bytes is taken from where it is; if somebody writes there, it is fetched after all."""
    w = lab.init(lab.urls("a"))
    twice = random.Random(3).randbytes(3 * MB)
    write(w.directory, {"a": twice, **{f"d{i:02}": b"%d" % i for i in range(30)}, "z": twice})
    w.push("first")
    small_parts(monkeypatch)
    place, done = first_checkout._Parts._place, []

    def meanwhile(self: Any, part: Any, *a: Any, **k: Any) -> None:
        place(self, part, *a, **k)
        if not done:
            done.append(1)
            os.truncate(lab.root / "desktop/a", 0)
            (lab.root / "desktop/a").write_bytes(twice[:-1] + b"!")

    monkeypatch.setattr(first_checkout._Parts, "_place", meanwhile)
    report = Workspace.clone(lab.root / "desktop", name="docs", backends=lab.urls("a"), passphrase=PASSPHRASE)
    lab.keep(report.workspace)
    assert (lab.root / "desktop/z").read_bytes() == twice
    assert (lab.root / "desktop/a").read_bytes() == twice[:-1] + b"!"
    assert report.conflicts == ()


@pytest.mark.long
def test_what_was_begun_before_a_restart_of_the_workspace_is_this_devices_own(
    lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version begun may be lost with the old era: the newest one comes by one checkout, over what is here."""
    w = published(lab)
    folder = stopped_between_parts(lab, monkeypatch)
    begun = first_checkout._begun
    asked = []

    def in_another_era(s: Any, target: Any) -> Any:
        asked.append(begun(s, dataclasses.replace(target, state=dataclasses.replace(target.state, era=7))))
        assert s.db.get(PARTS_KEY) is None
        return asked[-1]

    monkeypatch.setattr(first_checkout, "_begun", in_another_era)
    report = cloned(lab)
    assert asked == [None]
    assert report.conflicts == ()
    assert tree_of(folder) == tree_of(w.directory)
    settled(report.workspace)


def test_the_files_of_a_small_clone_are_counted_without_their_directories(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    write(w.directory, {"d/e/f": b"1", "g": b"2"})
    w.push()
    report = cloned(lab)
    assert (report.files, report.bytes) == (2, 2)


def test_a_part_below_its_full_size_ends_where_the_top_of_the_folder_has_its_next_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    parts: list[list[bytes]] = []
    begin = Checkout.begin

    def noted(self: Checkout, changes: Any, *a: Any, **k: Any) -> Any:
        changes = list(changes)
        parts.append([change.path for change in changes])
        return begin(self, changes, *a, **k)

    monkeypatch.setattr(Checkout, "begin", noted)
    published(lab)
    cloned(lab)
    short = [(one, two) for one, two in pairwise(parts) if len(one) < first_checkout.PART_PATHS]
    assert short
    assert all(b"/" not in two[0] for _, two in short)


@pytest.mark.long
def test_a_clone_that_goes_on_counts_what_is_here_and_knows_that_all_is_as_agreed(
    lab: Lab, parted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = published(lab)
    folder = stopped_between_parts(lab, monkeypatch)
    here = sum(node.kind != "dir" for node in tree_of(folder).values())
    told: list[Any] = []
    needed = sum(len(n.data) + SMALL_FILE_BYTES for n in tree_of(w.directory).values() if n.kind != "dir")
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: needed - 1)
    monkeypatch.setattr(first_checkout, "FAR_BEYOND", 1)
    report = cloned(lab, told)
    assert f"going on with a clone: {here} files are here already" in [e.text for e in told if isinstance(e, Notice)]
    assert report.workspace._db.get(TREE_KEY) is not None, "a push need not look at the tree again"
    settled(report.workspace)


def test_what_is_staged_already_needs_no_room_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    w = published(lab)
    small_parts(monkeypatch)
    undo = dying(monkeypatch, Checkout, "apply", 1)
    with pytest.raises(Stop):
        cloned(lab)
    undo()
    needed = sum(len(n.data) + SMALL_FILE_BYTES for n in tree_of(w.directory).values() if n.kind != "dir")
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: needed - 1)
    cloned(lab)
    assert tree_of(lab.root / "desktop") == tree_of(w.directory)


def test_a_file_that_the_disk_will_never_hold_is_left_out_of_its_part(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = published(lab)
    small_parts(monkeypatch)
    monkeypatch.setattr(room, "LARGE_FILE_BYTES", 7 * MB)
    monkeypatch.setattr(Disk, "free_bytes", lambda *_: 8 * MB)
    report = cloned(lab)
    assert [left.path for left in report.unplaced] == [b"huge"]
    assert report.workspace._db.get(TREE_KEY) is None
    assert {*tree_of(w.directory)} - {*tree_of(lab.root / "desktop")} == {b"huge"}


def test_rows_are_not_said_to_be_the_tree_where_a_directory_went_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lab)
    small_parts(monkeypatch)
    real, made = checkout.rows_after, lab.root / "desktop/m/deep/er"

    def after(*a: Any) -> Any:
        if made.exists():
            made.rmdir()
        return real(*a)

    monkeypatch.setattr(checkout, "rows_after", after)
    assert cloned(lab).workspace._db.get(TREE_KEY) is None
