"""Local state that was lost, copied or restored from a backup: the device goes on or enrols anew, and nothing is lost.

What must hold: no two folders ever use one round of agreement (consensus.md), and no file counts as deleted
that nobody deleted.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.errors import PassphraseError, UpgradeError, WorkspaceError
from metasync.local.lock import WorkspaceLock
from metasync.reports.sync import Changes
from metasync.sync import first_checkout
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


def device_id(w: Workspace) -> bytes:
    with w._session("test") as s:
        return s.device.device_id


def sync(*devices: Workspace) -> None:
    """All of them have what all of them had."""
    for _ in range(2):
        for w in devices:
            w.sync()


def opened(lab: Lab, folder: Path) -> Workspace:
    return lab.keep(Workspace.open(folder))


@pytest.mark.few(1)
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
        assert "metasync clone --merge" in e.value.next_step
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


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 100)


def holed(path: Path) -> None:
    """Pages in the middle are something else: SQLite opens the file, and finds out later."""
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"\xff" * (len(data) - 12288) + data[-4096:])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


LOST = {
    "state gone": ("state.db", Path.unlink), "garbage": ("state.db", garbage), "cut": ("state.db", cut),
    "emptied": ("state.db", emptied), "a hole": ("state.db", holed), "keys gone": ("device.key", Path.unlink),
    "wrong keys": ("device.key", garbage), "no keys": ("device.key", emptied), "all gone": ("", shutil.rmtree),
}  # fmt: skip


def lose(folder: Path, how: str) -> None:
    part, do = LOST[how]
    for beside in ("-wal", "-shm"):
        (folder / STATE / f"state.db{beside}").unlink(missing_ok=True)
    do(folder / STATE / part)


def merged(lab: Lab, folder: Path, **how: Any) -> Workspace:
    return lab.clone(lab.urls(*NAMES), device=folder.name, merge=True, **how)


@pytest.mark.few(2)
@pytest.mark.parametrize("how", LOST)
def test_one_command_makes_the_folder_a_device_again_and_all_its_files_stay(lab: Lab, how: str) -> None:
    """What its message says works, in the folder itself: nothing is deleted, and of two contents both are kept."""
    one, two = pair(lab)
    folder, device = one.directory, device_id(one)
    write(folder, {"d/x": b"edited, never pushed", "mine": b"new, never pushed"})
    one.close()
    write(two.directory, {"theirs": b"pushed meanwhile", "d/z": b"by the phone"})
    two.push()
    write(folder, {f"{STATE}/replaced/3": b"nowhere else"})
    lose(folder, how)
    if how != "all gone":
        with pytest.raises(WorkspaceError) as e, Workspace.open(folder) as w:
            w.push()
        assert "metasync clone --merge" in e.value.next_step
    with pytest.raises(WorkspaceError, match=r"is not empty|local state|is a workspace already"):
        lab.clone(lab.urls(*NAMES), device=folder.name)
    again = merged(lab, folder)
    assert device_id(again) != device, "rounds that the old one used are nobody's any more"
    assert not again.status().changes.deleted
    sync(again, two)
    assert files(again) == files(two)
    had = {"edited, never pushed", "new, never pushed", "pushed meanwhile", "by the phone", "dx", "dy", "dz", "ex"}
    assert {text.encode() for text in had} <= {*files(two).values()}
    assert files(two)["mine"] == b"new, never pushed"
    if how != "all gone":
        assert (folder / STATE / "replaced/3").read_bytes() == b"nowhere else"
        assert (folder / STATE / "before").is_dir()
    assert not again.check(read_data=True).problems


def test_what_equals_the_workspace_is_not_touched_and_not_stored_again(lab: Lab) -> None:
    one, two = pair(lab)
    one.close()
    lose(one.directory, "state gone")
    inode = (one.directory / "d/x").stat().st_ino
    again = merged(lab, one.directory)
    assert (one.directory / "d/x").stat().st_ino == inode
    status = again.status()
    assert status.changes == Changes()
    assert not status.conflicts
    assert again.push().version is None
    assert files(again) == files(two)


def test_a_workspace_that_is_sound_is_not_made_anew(lab: Lab) -> None:
    one, _ = pair(lab)
    one.close()
    key = (one.directory / STATE / "device.key").read_bytes()
    with pytest.raises(WorkspaceError, match="is a workspace already, whose local state is sound"):
        merged(lab, one.directory)
    assert (one.directory / STATE / "device.key").read_bytes() == key
    opened(lab, one.directory).sync()


def test_a_state_that_another_metasync_wrote_or_that_is_in_use_is_not_lost(lab: Lab) -> None:
    one, _ = pair(lab)
    one.close()
    with sqlite3.connect(one.directory / STATE / "state.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UpgradeError):
        merged(lab, one.directory)
    lose(one.directory, "garbage")
    lock = WorkspaceLock(one.directory / STATE).acquire("metasync push")
    waits = WorkspaceLock.acquire
    with lock, pytest.MonkeyPatch.context() as m:
        m.setattr(WorkspaceLock, "acquire", lambda self, command: waits(self, command, wait_s=0.0))
        with pytest.raises(WorkspaceError, match="metasync push"):
            merged(lab, one.directory)
    assert not (one.directory / STATE / "before").exists()
    merged(lab, one.directory).sync()


def test_a_copy_becomes_a_device_of_its_own(lab: Lab) -> None:
    one, two = pair(lab)
    one.close()
    folder = lab.root / "copy"
    shutil.copytree(one.directory, folder, symlinks=True)
    write(folder, {"of-copy": b"only here"})
    copy, one = merged(lab, folder), opened(lab, one.directory)
    assert device_id(copy) != device_id(one)
    sync(copy, one, two)
    assert files(copy) == files(one) == files(two)
    assert files(two)["of-copy"] == b"only here"


def test_files_without_a_local_state_are_merged_on_demand_alone(lab: Lab) -> None:
    _, two = pair(lab)
    write(lab.root / "there", {"d/x": b"dx", "d/y": b"another", "new": b"new"})
    with pytest.raises(WorkspaceError, match="is not empty") as e:
        lab.clone(lab.urls(*NAMES), device="there")
    assert "--merge" in e.value.next_step
    there = merged(lab, lab.root / "there")
    assert {c.path for c in there.status().conflicts} == {b"d/y"}
    sync(there, two)
    assert files(there) == files(two)
    assert {b"another", b"dy", b"new"} <= {*files(two).values()}


def test_an_invitation_does_it_without_the_passphrase(lab: Lab) -> None:
    one, two = pair(lab)
    write(one.directory, {"mine": b"never pushed"})
    one.close()
    lose(one.directory, "state gone")
    invite = two.invite("again", PASSPHRASE)
    report = Workspace.clone(one.directory, invite=invite.code, trust_hosts=True, merge=True)
    again = lab.keep(report.workspace)
    sync(again, two)
    assert files(two)["mine"] == b"never pushed"


class Killed(BaseException):
    pass


@pytest.mark.few(1)
@pytest.mark.parametrize("at", range(4))
def test_a_merge_that_is_killed_over_the_old_state_loses_nothing_of_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """After so many of the renames that put a new local state in the place of the old one."""
    one, two = pair(lab)
    folder = one.directory
    write(folder, {"mine": b"never pushed", f"{STATE}/replaced/3": b"nowhere else"})
    one.close()
    lose(folder, "garbage")
    real, done = Path.rename, []

    def rename(self: Path, to: Path) -> Path:
        if len(done) == at:
            raise Killed
        done.append(to)
        return real(self, to)

    with monkeypatch.context() as m:
        m.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            merged(lab, folder)
    with pytest.raises(WorkspaceError):
        lab.init(lab.urls("x"), device=folder.name, name="other")
    again = merged(lab, folder)
    sync(again, two)
    assert files(again) == files(two)
    assert files(two)["mine"] == b"never pushed"
    kept = [p.read_bytes() for p in (folder / STATE).rglob("3")]
    assert kept == [b"nowhere else"]


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


@pytest.mark.few(1)
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


def test_keys_that_were_changed_meanwhile_open_by_the_passphrase_of_today(lab: Lab) -> None:
    """The old device is revoked, and the passphrase another one: what lay here stays, whoever it was."""
    one, two = pair(lab)
    folder, device = one.directory, device_id(one)
    write(folder, {"mine": b"never pushed"})
    one.close()
    lose(folder, "state gone")
    two.device_revoke([device.hex()], PASSPHRASE, new_passphrase="seven quiet herons by the mill")
    with pytest.raises(PassphraseError):
        merged(lab, folder)
    assert not (folder / STATE / "before").exists()
    assert (folder / "mine").read_bytes() == b"never pushed"
    again = merged(lab, folder, passphrase="seven quiet herons by the mill")
    sync(again, two)
    assert files(again) == files(two)
    assert files(two)["mine"] == b"never pushed"


def test_keys_that_are_changed_between_the_two_halves_of_a_merge(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed before its device was agreed, and found keys that are not in force any more."""
    one, two = pair(lab)
    folder = one.directory
    write(folder, {"mine": b"never pushed", f"{STATE}/replaced/3": b"nowhere else"})
    one.close()
    lose(folder, "state gone")

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as m:
        m.setattr(first_checkout, "finish_clone", killed)
        with pytest.raises(Killed):
            merged(lab, folder)
    two.key_rotate(PASSPHRASE)
    again = merged(lab, folder)
    sync(again, two)
    assert files(again) == files(two)
    assert files(two)["mine"] == b"never pushed"
    assert [p.read_bytes() for p in (folder / STATE).rglob("3")] == [b"nowhere else"]
