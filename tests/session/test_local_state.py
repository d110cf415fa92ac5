"""Local state that was lost, copied or restored from a backup: the device goes on or enrols anew, and nothing is lost.

What must hold: no two folders ever use one round of agreement (consensus.md), and no file counts as deleted
that nobody deleted.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.errors import WorkspaceError
from metasync.workspace import Workspace

NAMES = ("a", "b", "c")
STATE = ".metasync"


def files(w: Workspace | Path) -> dict[str, bytes]:
    root = w.directory if isinstance(w, Workspace) else w
    return {path.decode(): node.data for path, node in tree_of(root).items() if node.kind == "file"}


def pair(lab: Lab) -> tuple[Workspace, Workspace]:
    """Two devices at one version, with some files."""
    one = lab.init(lab.urls(*NAMES))
    write(one.directory, {f"{d}/{f}": f"{d}{f}".encode() for d in "de" for f in "xyz"})
    one.push()
    return one, lab.clone(lab.urls(*NAMES), device="phone")


def incarnation(w: Workspace) -> bytes:
    with w._session("test") as s:
        return s.group.participant.incarnation


def sync(*devices: Workspace) -> None:
    """All of them have what all of them had."""
    for _ in range(2):
        for w in devices:
            w.sync()


def opened(lab: Lab, folder: Path) -> Workspace:
    return lab.keep(Workspace.open(folder))


@pytest.mark.parametrize("part", ["state.db", "device.key", ""])
def test_whoever_lost_the_local_state_enrols_anew_and_loses_nothing(lab: Lab, part: str) -> None:
    """State, keys, or all of it. What it is told to do works: clone anew, and bring the folder's files over."""
    one, two = pair(lab)
    write(one.directory, {"d/x": b"edited, never pushed", "mine": b"new, never pushed"})
    one.close()
    write(two.directory, {"theirs": b"pushed meanwhile"})
    (two.directory / "d/y").unlink()
    two.push()
    state = one.directory / STATE
    if part:
        (state / part).unlink()
        with pytest.raises(WorkspaceError) as e, Workspace.open(one.directory) as w:
            w.push()
        assert f"{STATE}/{part}" in e.value.message
        assert "lone the workspace into a new folder" in e.value.next_step
        assert files(one.directory)["d/x"] == b"edited, never pushed"
    shutil.rmtree(state, ignore_errors=True)
    again = lab.clone(lab.urls(*NAMES), device="anew")
    shutil.copytree(one.directory, again.directory, dirs_exist_ok=True)
    sync(again, two)
    assert files(again) == files(two)
    assert files(two) == {
        "d/x": b"edited, never pushed", "mine": b"new, never pushed", "theirs": b"pushed meanwhile",
        "d/y": b"dy", "d/z": b"dz", "e/x": b"ex", "e/y": b"ey", "e/z": b"ez",
    }  # fmt: skip


def test_two_copies_of_a_folder_go_on_side_by_side(lab: Lab) -> None:
    one, two = pair(lab)
    one.close()
    folder = lab.root / "copy"
    shutil.copytree(one.directory, folder, symlinks=True)
    one, copy = opened(lab, one.directory), opened(lab, folder)
    assert incarnation(one) != incarnation(copy), "what they propose is told apart"
    (copy.directory / "d/z").unlink()
    copy.sync()  # what a copy lacks at first was not deleted in it
    write(one.directory, {"of-one": b"1", "d/x": b"one"})
    (one.directory / "e/x").unlink()
    write(copy.directory, {"of-copy": b"2", "d/y": b"copy"})
    (copy.directory / "e/y").unlink()
    for n in range(3):
        for w in (one, copy):
            write(w.directory, {f"{w.directory.name}-{n}": b"%d" % n})
            w.sync()
    sync(one, copy, two)
    assert files(one) == files(copy) == files(two)
    gone = {"e/x", "e/y"}
    kept = {f"{d}/{f}" for d in "de" for f in "xyz"} - gone
    own = {f"{d}-{n}" for d in ("laptop", "copy") for n in range(3)}
    assert files(two).keys() == kept | own | {"of-one", "of-copy"}
    assert (files(two)["d/x"], files(two)["d/y"]) == (b"one", b"copy")


def backed_up(lab: Lab, w: Workspace, *, whole: bool) -> Path:
    """A copy of a folder, or of its local state."""
    w.close()
    to = lab.root / "backup"
    shutil.copytree(w.directory if whole else w.directory / STATE, to, symlinks=True)
    return to


def restored(lab: Lab, folder: Path, backup: Path, *, whole: bool) -> Workspace:
    target = folder if whole else folder / STATE
    shutil.rmtree(target)
    shutil.copytree(backup, target, symlinks=True)
    return opened(lab, folder)


@pytest.mark.parametrize("whole", [True, False], ids=["with its folder", "alone"])
def test_state_from_an_old_backup_invents_nothing(lab: Lab, whole: bool) -> None:
    """The device had pushed and pulled since: its own pushes, another's edits and deletions. All stay what they are."""
    one, two = pair(lab)
    folder = one.directory
    backup = backed_up(lab, one, whole=whole)
    one = opened(lab, folder)
    write(one.directory, {"d/x": b"second", "later": b"later"})
    (one.directory / "d/z").unlink()
    one.push()
    write(two.directory, {"d/y": b"by the phone", "phone": b"phone"})
    sync(two, one)
    (two.directory / "e/y").unlink()
    sync(two, one)
    expected = files(two)
    assert files(one) == expected
    one.close()
    one = restored(lab, folder, backup, whole=whole)
    sync(one, two)
    assert files(one) == files(two) == expected
    write(one.directory, {"more": b"more"})
    sync(one, two)
    assert files(two) == {**expected, "more": b"more"}


def test_state_from_an_old_backup_and_what_was_not_pushed(lab: Lab) -> None:
    one, two = pair(lab)
    folder = one.directory
    backup = backed_up(lab, one, whole=False)
    one = opened(lab, folder)
    write(one.directory, {"d/x": b"pushed"})
    one.push()
    write(one.directory, {"d/x": b"edited after the push", "new": b"never pushed"})
    one.close()
    one = restored(lab, folder, backup, whole=False)
    write(two.directory, {"d/x": b"the phone too"})
    two.sync()
    sync(one, two)
    assert files(one) == files(two)
    assert {b"never pushed", b"edited after the push"} <= {*files(two).values()}


def test_a_file_that_came_back_is_not_deleted_again_by_old_state(lab: Lab) -> None:
    """Deleted, pulled here, brought back as it was: the backup's base has it and the folder has not. Nobody deleted it
    since."""
    one, two = pair(lab)
    folder = one.directory
    backup = backed_up(lab, one, whole=False)
    one = opened(lab, folder)
    kept = (two.directory / "d/x").read_bytes()
    (two.directory / "d/x").unlink()
    sync(two, one)
    assert "d/x" not in files(one)
    one.close()
    one = restored(lab, folder, backup, whole=False)
    write(two.directory, {"d/x": kept})
    two.push()
    sync(one, two)
    assert files(one)["d/x"] == files(two)["d/x"] == kept
