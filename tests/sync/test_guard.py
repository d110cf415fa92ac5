"""Mass deletions: what counts as one, and that push, pull, sync and status stop or warn before anything is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import workdir
from workdir import DIR, Link
from workspace_kit import Lab, tree_of, write

from metasync.errors import GuardError, WorkspaceError
from metasync.merge.guard import NAMES_MAX, SMALL_FILES, Loss, Verb, guard, loss, most_gone, stop
from metasync.workspace import Workspace

MANY = {f"d{i % 4}/file-{i:02}": b"content %d" % i for i in range(30)}  # more than SMALL_FILES


def entries(**files: Any) -> dict[bytes, Any]:
    return workdir.entries({name.encode(): spec for name, spec in files.items()})


# ---- the decision


@pytest.mark.parametrize(
    ("files", "deleted", "push", "pull"),
    [
        (SMALL_FILES, SMALL_FILES - 1, False, False),  # a small tree
        (SMALL_FILES, SMALL_FILES, True, False),  # all of it
        (SMALL_FILES + 1, SMALL_FILES, True, True),
        (SMALL_FILES + 1, 11, True, True),
        (SMALL_FILES + 1, 10, False, False),
        (SMALL_FILES + 2, 11, False, False),  # half is not more than half
        (SMALL_FILES + 2, 12, True, True),
        (2, 2, True, False),
        (2, 1, False, False),
        (1, 1, False, False),  # the only file there is
        (0, 0, False, False),
        (100_000, 50_001, True, True),
        (100_000, 50_000, False, False),
    ],
)
def test_more_than_half_of_a_tree_or_all_of_it(files: int, deleted: int, push: bool, pull: bool) -> None:
    taken = Loss(tuple(b"%d" % i for i in range(deleted)), 0, files)
    assert (stop("push", taken) is not None) == push
    assert (stop("pull", taken) is not None) == pull
    guard("push", taken, force=True)
    if push:
        with pytest.raises(GuardError):
            guard("push", taken, force=False)
    else:
        guard("push", taken, force=False)


@pytest.mark.parametrize("deleted", [1, 2, 9, 10, 11, 12, 20, 21, 40])
def test_a_count_of_as_many_files_as_matter_decides_alike(deleted: int) -> None:
    for files in range(deleted, 90):
        tree = entries(**{f"f{n:02}": b"%d" % n for n in range(files)}, z=DIR)
        taken = loss(tree, {b"f%02d" % n: None for n in range(deleted)})
        for verb in get_args(Verb):
            one, other = stop(verb, taken), stop(verb, taken._replace(files=files))
            assert (one and (one.message, one.files)) == (other and (other.message, other.files))


def test_few_deletions_need_no_count_of_all() -> None:
    class Counted(dict[bytes, Any]):
        def values(self) -> Any:
            for value in super().values():
                asked.append(value)
                yield value

    asked: list[Any] = []
    loss(Counted(entries(**{f"f{n}": b"%d" % n for n in range(1000)})), {b"f7": None})
    assert len(asked) <= SMALL_FILES + 1


def test_files_and_links_count_and_directories_do_not() -> None:
    tree = entries(a=b"1", b=Link(b"a"), d=DIR, e=DIR)
    taken = loss(tree, {b"a": None, b"b": None, b"d": None, b"e": None})
    assert taken == Loss((b"a", b"b"), 0, 2, -2)
    assert loss(tree, {b"d": None, b"e": None}) == Loss()
    assert loss(tree, {b"a": entries(a=b"2")[b"a"]}) == Loss()
    assert loss(tree, {b"a": entries(a=DIR)[b"a"]}) == Loss((b"a",), 0, 2, -1)
    assert loss(tree, {b"d": entries(d=b"1")[b"d"], b"f": entries(f=b"2")[b"f"]}) == Loss(net=2)


@pytest.mark.parametrize(
    ("before", "files", "net", "push", "pull"),
    [
        (0, SMALL_FILES + 1, -1, False, False),  # nothing went lately
        (9, SMALL_FILES - 8, -1, False, False),  # 10 of 21
        (10, SMALL_FILES - 9, -1, True, True),  # 11 of 21
        (10, SMALL_FILES - 9, 0, False, False),  # it takes nothing: files that come stand for those that go
        (10, SMALL_FILES - 10, -1, False, False),  # of a small tree
        (4, 1, -1, True, False),  # the last of five
        (4, 2, -1, False, False),
        (50_000, 50_000, -1, True, True),
        (49_999, 50_001, -1, False, False),
    ],
)
def test_what_went_lately_counts_as_if_it_went_now(before: int, files: int, net: int, push: bool, pull: bool) -> None:
    taken = Loss((b"a",), 0, files, net, before)
    assert (stop("push", taken) is not None) == push
    assert (stop("pull", taken) is not None) == pull


@pytest.mark.parametrize("before", [1, 9, 10, 11, 20, 40])
def test_with_what_went_lately_a_count_of_as_many_files_as_matter_decides_alike(before: int) -> None:
    for files in range(1, 90):
        tree = entries(**{f"f{n:02}": b"%d" % n for n in range(files)}, z=DIR)
        taken = loss(tree, {b"f00": None}, before)
        for verb in get_args(Verb):
            one, other = stop(verb, taken), stop(verb, taken._replace(files=files))
            assert (one and (one.message, one.files)) == (other and (other.message, other.files))


def test_most_gone_is_counted_from_when_there_were_most() -> None:
    assert most_gone([]) == most_gone([3, 4]) == 0
    assert most_gone([-2, -3]) == 5
    assert most_gone([-2, 7, -3]) == 2
    assert most_gone([2, -7, 3]) == 5
    assert most_gone([2, -7, 3, -4]) == 6


def test_renames_are_no_deletions() -> None:
    tree = entries(a=b"1", b=b"2", c=b"", d=b"", e=b"")
    new = entries(x=b"1", y=b"", z=b"3")
    changes = {b"a": None, b"x": new[b"x"], b"b": None, b"z": new[b"z"]}
    assert loss(tree, changes) == Loss((b"b",), 1, 5, 0)
    # Each copy that comes stands for one that goes: an empty file made somewhere excuses no three that go.
    changes = {b"c": None, b"d": None, b"e": None, b"y": new[b"y"]}
    assert loss(tree, changes) == Loss((b"d", b"e"), 1, 5, -2)
    # Over a file that was there: its own bytes are a change of it, not a deletion.
    assert loss(tree, {b"a": None, b"b": tree[b"a"]}) == Loss((), 1, 5, -1)
    assert stop("push", Loss((), 1, 5, -1, 40)) is None
    # Bytes that were at another path before, and stay there, come nowhere.
    assert loss(entries(a=b"1", b=b"1"), {b"a": None, b"b": entries(b=workdir.File(b"1", 0o600))[b"b"]}).deleted == (
        b"a",
    )


def test_the_message_says_what_would_go_and_what_to_do() -> None:
    paths = tuple(b"p%d\xff" % i for i in range(26))
    error = stop("push", Loss(paths, 7, 40))
    assert error is not None
    assert (error.deleted, error.files, error.exit_code) == (26, 40, 1)
    assert "26 of 40 files for all devices (and 7 renamed, which count as kept): p0\udcff, " in error.message
    assert error.message.count("p") - "push push".count("p") <= NAMES_MAX + 1
    for word in ("--force", "mounted", "metasync status", "metasync restore", "nothing was changed"):
        assert word in error.next_step
    error = stop("pull", Loss(paths, 0, 40))
    assert error is not None
    assert "26 of 40 files here: " in error.message
    assert "metasync log" in error.next_step
    error = stop("push", Loss(paths[:2], 0, 2))
    assert error is not None
    assert error.message.endswith("delete all 2 files for all devices: p0\udcff, p1\udcff")
    error = stop("push", Loss((b"last",), 1, 30, -1, 29))
    assert error is not None
    assert (error.deleted, error.files) == (30, 59)
    assert error.message == (
        "this push would delete 1 file for all devices, after which 30 of 59 are gone within an hour "
        "(and 1 renamed, which count as kept): last"
    )
    error = stop("pull", Loss(paths, 0, 70, -26, 60))
    assert error is not None
    assert "26 files here, after which 86 of 130 are gone within an hour: " in error.message


# ---- push, pull, sync, status


def pair(lab: Lab, files: dict[str, bytes] = MANY) -> tuple[Workspace, Workspace]:
    urls = lab.urls("a", "b", kind="memory")
    w = lab.init(urls)
    write(w.directory, files)
    w.push()
    return w, lab.clone(urls)


def remove(w: Workspace, n: int) -> None:
    for name in sorted(MANY)[:n]:
        (w.directory / name).unlink()


def agreed_version(w: Workspace) -> int:
    newest = w.status().newest
    assert newest is not None
    return newest


def test_a_push_of_a_mass_deletion_stops_and_changes_nothing(lab: Lab) -> None:
    w, c = pair(lab)
    remove(w, 16)
    write(w.directory, {"new": b"n"})
    before, version = tree_of(w.directory), agreed_version(w)
    for _ in range(2):
        with pytest.raises(
            GuardError, match=r"this push would delete 16 of 30 files for all devices: d0/file-00, "
        ) as e:
            w.push()
        assert (e.value.deleted, e.value.files) == (16, 30)
    with pytest.raises(GuardError):
        w.sync()
    assert (tree_of(w.directory), agreed_version(w)) == (before, version)
    assert c.pull().changes.deleted == ()
    s = w.status()
    assert s.warnings == (
        "a push would delete 16 of 30 files for all devices: d0/file-00, d0/file-04, d0/file-08, ...; "
        "it stops unless forced",
    )
    preview = w.push(dry_run=True)
    assert preview.warnings == s.warnings
    assert len(preview.changes.deleted) == 16
    assert len(w.push(force=True).changes.deleted) == 16
    with pytest.raises(GuardError, match=r"this pull would delete 16 of 30 files here"):
        c.pull()
    assert len(tree_of(c.directory)) == 34
    dry = c.pull(dry_run=True)
    assert len(dry.warnings) == 1
    assert dry.warnings[0].startswith("a pull would delete 16 of 30")
    c.pull(force=True)
    assert tree_of(c.directory) == tree_of(w.directory)


def test_less_than_half_goes_through(lab: Lab) -> None:
    w, c = pair(lab)
    remove(w, 15)
    assert w.status().warnings == ()
    assert len(w.push().changes.deleted) == 15
    assert len(c.pull().changes.deleted) == 15


def test_moving_everything_goes_through(lab: Lab) -> None:
    w, c = pair(lab)
    (w.directory / "all").mkdir()
    for i in range(4):
        (w.directory / f"d{i}").rename(w.directory / f"all/d{i}")
    assert w.status().warnings == ()
    w.push()
    c.pull()
    assert tree_of(c.directory) == tree_of(w.directory)


def test_a_push_that_must_merge_first_stops_before_the_merge(lab: Lab) -> None:
    w, c = pair(lab)
    write(c.directory, {"theirs": b"t"})
    c.push()
    remove(w, 20)
    before = tree_of(w.directory)
    with pytest.raises(GuardError, match="this push would delete 20 of 31 files"):
        w.push()
    assert tree_of(w.directory) == before
    assert w.pull().changes.added == (b"theirs",)  # a pull deletes nothing here, and may go on
    _, r = w.sync(force=True)
    assert len(r.changes.deleted) == 20


def test_the_merge_in_a_push_is_guarded_as_a_pull(lab: Lab) -> None:
    w, c = pair(lab)
    remove(c, 20)
    c.push(force=True)
    write(w.directory, {"mine": b"m"})
    before, version = tree_of(w.directory), agreed_version(w)
    for act in (w.push, w.pull, w.sync):
        with pytest.raises(GuardError, match="this pull would delete 20 of 31 files here"):
            act()
    assert (tree_of(w.directory), agreed_version(w)) == (before, version)
    pulled, pushed = w.sync(force=True)
    assert len(pulled.changes.deleted) == 20
    assert pushed.changes.added == (b"mine",)
    c.pull()
    assert tree_of(c.directory) == tree_of(w.directory)


def test_losing_a_race_does_not_lose_the_force(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device commits between the look for news and the proposal: the second try knows what the first did."""
    from metasync.sync.packing import Packing

    w, c = pair(lab)
    remove(w, 20)
    real, raced = Packing.add_trees, []

    def race(*args: Any) -> tuple[bytes, bytes]:
        if not raced:
            raced.append(True)
            write(c.directory, {"faster": b"f"})
            c.push()
        return real(*args)

    monkeypatch.setattr(Packing, "add_trees", race)
    r = w.push(force=True)
    assert raced
    assert r.pulled is not None
    assert len(r.changes.deleted) == 20


def test_a_small_folder_that_lost_everything(lab: Lab) -> None:
    w, c = pair(lab, {"a": b"1", "d/b": b"2", "d/c": b"3"})
    shutil.rmtree(w.directory / "d")
    w.push()  # two of three go through
    write(w.directory, {"b": b"2"})
    w.push()
    for name in ("a", "b"):
        (w.directory / name).unlink()
    with pytest.raises(GuardError, match="this push would delete all 2 files for all devices: a, b"):
        w.push()
    write(w.directory, {"other": b"something else, mounted here"})
    with pytest.raises(GuardError, match="all 2 files"):
        w.push()
    w.push(force=True)
    c.pull()
    assert set(tree_of(c.directory)) == {b"other"}


def test_one_file_may_go(lab: Lab) -> None:
    w, c = pair(lab, {"a": b"1"})
    (w.directory / "a").unlink()
    assert w.push().changes.deleted == (b"a",)
    c.pull()
    assert tree_of(c.directory) == {}


def test_the_commands_stop_with_1_and_go_on_with_force(lab: Lab) -> None:
    w, c = pair(lab)
    remove(w, 20)
    for x in (w, c):
        x.close()
    for words in (("push",), ("sync",)):
        ran = lab.cli(*words)
        assert ran.code == 1
        assert "metasync: this push would delete 20 of 30 files for all devices" in ran.err
        assert "--force" in ran.err
    error = lab.cli("push", "--json").json["error"]
    assert (error["kind"], "--force" in error["next_step"]) == ("GuardError", True)
    ran = lab.cli("push", "--dry-run")
    assert ran.code == 0
    assert "warning: a push would delete 20 of 30 files" in ran.out
    assert "warning: a push would delete 20 of 30 files" in lab.cli("status").out
    assert lab.cli("push", "--force").code == 0
    assert lab.cli("pull", cwd="desktop").code == 1
    assert "warning: a pull would delete" in lab.cli("pull", "--dry-run", cwd="desktop").out
    assert lab.cli("sync", "--force", cwd="desktop").code == 0
    assert lab.cli("status", cwd="desktop").out.count("would delete") == 0


def test_a_clone_that_was_cut_short_takes_nothing_of_the_users(lab: Lab) -> None:
    from metasync.local.state_keys import UNFINISHED_KEY

    w, c = pair(lab)
    for path in c.directory.iterdir():
        if path.name != ".metasync":
            shutil.rmtree(path)
    c._db.set(UNFINISHED_KEY, b"1")
    c._db.delete_rows(c._db.packed_rows())
    write(c.directory, {f"own-{i}": b"%d" % i for i in range(40)})
    c.push()
    assert len(tree_of(c.directory)) == 30 + 4 + 40
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)


# ---- folders that are not what they were


def test_a_folder_without_its_state_is_an_error(lab: Lab) -> None:
    w, c = pair(lab)
    w.directory.rename(lab.root / "away")
    for act in (w.push, w.pull, w.status, w.sync):
        with pytest.raises(WorkspaceError):
            act()
    w.directory.mkdir()  # where a disk was mounted
    for act in (w.push, w.pull, w.status, w.sync):
        with pytest.raises(WorkspaceError):
            act()
    assert list(w.directory.iterdir()) == []
    w.directory.rmdir()
    (lab.root / "away").rename(w.directory)
    assert w.push().version is None
    assert c.pull().changes.deleted == ()


COPIES = {
    "cp": ["cp", "-a"],
    "rsync": ["rsync", "-a"],
    "tar": [],
}


@pytest.mark.parametrize("way", COPIES)
def test_a_folder_replaced_by_a_copy_of_itself(lab: Lab, way: str) -> None:
    w, c = pair(lab)
    w.close()
    away = lab.root / "away"
    w.directory.rename(away)
    if way == "tar":
        shutil.copytree(away, w.directory, symlinks=True)
    elif shutil.which(COPIES[way][0]) is None:
        pytest.skip(f"{way} is not installed")
    else:
        subprocess.run([*COPIES[way], f"{away}/", f"{w.directory}/"], check=True)
    w = lab.keep(Workspace.open(w.directory))
    s = w.status()
    assert (len(s.changes), s.warnings, s.skipped) == (0, (), ())
    assert w.push().version is None
    remove(w, 1)  # and from then on it is the folder
    assert len(w.push().changes.deleted) == 1
    assert len(c.pull().changes.deleted) == 1


def test_half_a_copy_deletes_nothing_and_is_made_whole(lab: Lab) -> None:
    w, c = pair(lab)
    w.close()
    away = lab.root / "away"
    w.directory.rename(away)
    shutil.copytree(away, w.directory)
    remove(w, 5)
    shutil.rmtree(w.directory / "d3")
    w = lab.keep(Workspace.open(w.directory))
    r = w.push()
    assert (r.version, r.changes.deleted) == (None, ())
    assert {s.path for s in r.skipped} >= {b"d3"}
    assert all("this folder is a copy" in s.reason for s in r.skipped)
    w.pull()
    assert tree_of(w.directory) == tree_of(c.directory)
    remove(w, 1)
    assert len(w.push().changes.deleted) == 1


@pytest.fixture
def mounts() -> Any:
    """Mounts a tmpfs at a path; skips where that is not allowed."""
    mounted: list[Path] = []

    def mount(path: Path) -> None:
        words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("only root mounts")
        done = subprocess.run(words, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no mount here: {done.stderr.decode('utf-8', 'replace').strip()}")
        mounted.append(path)

    def unmount(path: Path) -> None:
        subprocess.run(["umount", str(path)], check=True)
        mounted.remove(path)

    mount.unmount = unmount  # type: ignore[attr-defined]
    yield mount
    for path in reversed(mounted):
        subprocess.run(["umount", str(path)], check=False)


def test_an_empty_disk_mounted_over_part_of_the_folder(lab: Lab, mounts: Any) -> None:
    w, c = pair(lab)
    mounts(w.directory / "d0")
    r = w.push()
    assert (r.version, r.changes.deleted) == (None, ())
    assert all("its disk is not the one it was on" in s.reason for s in r.skipped)
    assert len(r.skipped) == 8
    mounts.unmount(w.directory / "d0")
    assert (len(w.status().changes), w.status().skipped) == (0, ())
    assert c.pull().changes.deleted == ()


def test_a_disk_in_the_folder_that_is_not_mounted(lab: Lab, mounts: Any) -> None:
    urls = lab.urls("a", "b", kind="memory")
    w = lab.init(urls)
    (w.directory / "disk").mkdir()
    mounts(w.directory / "disk")
    write(w.directory, {f"disk/d/{i}": b"%d" % i for i in range(30)} | {"x": b"x"})
    w.push()
    c = lab.clone(urls)
    mounts.unmount(w.directory / "disk")
    r = w.push()
    assert (r.version, r.changes.deleted) == (None, ())
    assert w.status().warnings == ()
    assert c.pull().changes.deleted == ()
    assert len(tree_of(c.directory)) == 30 + 2 + 1


def test_an_empty_disk_mounted_over_the_whole_folder(lab: Lab, mounts: Any) -> None:
    w, c = pair(lab)
    mounts(w.directory)
    for act in (w.push, w.pull, w.status, w.sync):
        with pytest.raises(WorkspaceError, match=r"holds \.metasync|taken|mounted|\.metasync is there"):
            act()
    assert list(w.directory.iterdir()) == []
    mounts.unmount(w.directory)
    assert w.push().version is None
    assert c.pull().changes.deleted == ()
