"""A `.metasync` that another user of the machine put there: the victim's files are not pushed to his stores.

Who runs this as root gives files away (`chown`); without that right, modes alone are tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_kit import Lab, Ran, write

from metasync.errors import WorkspaceError

STRANGER = 54321
SAFE_VARIABLE = "METASYNC_SAFE_DIRECTORY"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to another user takes root")


def given_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def all_given_away(folder: Path) -> None:
    given_away(folder)
    for path in folder.rglob("*"):
        given_away(path)


def linked(folder: Path) -> None:
    (folder / ".metasync").rename(folder / "elsewhere")
    (folder / ".metasync").symlink_to("elsewhere")
    given_away(folder / ".metasync")


PLANTED: dict[str, Callable[[Path], object]] = {
    "all of it is a stranger's": all_given_away,
    "in a sticky folder, as in /tmp": lambda w: (all_given_away(w / ".metasync"), w.chmod(0o1777)),
    "a sticky folder of his own": lambda w: (given_away(w), w.chmod(0o1777)),
    "the folder is his": given_away,
    ".metasync is his": lambda w: given_away(w / ".metasync"),
    "the database is his": lambda w: given_away(w / ".metasync/state.db"),
    "the keys are his": lambda w: given_away(w / ".metasync/device.key"),
    "a link to it is his": linked,
}
WRITABLE: dict[str, Callable[[Path], object]] = {
    "all may write in the folder": lambda w: w.chmod(0o777),
    "a group may write in the folder": lambda w: (os.chown(w, -1, STRANGER), w.chmod(0o775)),
    "all may write in .metasync": lambda w: (w / ".metasync").chmod(0o777),
    "all may write the database": lambda w: (w / ".metasync/state.db").chmod(0o666),
    "all may write the keys": lambda w: (w / ".metasync/device.key").chmod(0o602),
}


@pytest.fixture
def planted(lab: Lab) -> Path:
    """A workspace above a folder of the victim's, which has a secret in it."""
    w = lab.init(lab.urls("a"))
    w.push("mine")
    w.close()
    write(w.directory, {"home/secret": b"private"})
    (w.directory / "home/secret").chmod(0o600)
    return w.directory


def pushed(lab: Lab, *words: str) -> Ran:
    return lab.cli("push", *words, cwd="laptop/home")


def refused(lab: Lab, planted: Path) -> Ran:
    before = sorted(p.name for p in lab.store("a").rglob("*"))
    ran = pushed(lab)
    assert ran.code == 1
    assert SAFE_VARIABLE in ran.err
    assert str(planted) in ran.err
    assert sorted(p.name for p in lab.store("a").rglob("*")) == before
    assert lab.cli("status", cwd="laptop/home").code == 1
    assert lab.cli("pull", cwd="laptop/home").code == 1
    return ran


@as_root
@pytest.mark.parametrize("how", PLANTED)
def test_a_strangers_workspace_gets_nothing(lab: Lab, planted: Path, how: str) -> None:
    """Another user owns what stands above the victim's folder; the victim pushes; his store gets not one object."""
    PLANTED[how](planted)
    refused(lab, planted)


@as_root
@pytest.mark.parametrize("how", WRITABLE)
def test_a_workspace_that_others_can_replace_gets_nothing(lab: Lab, planted: Path, how: str) -> None:
    """Others can write in the folder, so they could put a `.metasync` there, between any two looks at it."""
    WRITABLE[how](planted)
    refused(lab, planted)


@as_root
@pytest.mark.parametrize("value", ["{}", "/nowhere:{}", "{}/", "*"])
def test_the_user_may_name_a_workspace_that_he_trusts(
    lab: Lab, planted: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_away(planted)
    monkeypatch.setenv(SAFE_VARIABLE, value.format(planted))
    assert pushed(lab).code == 0


@as_root
def test_other_names_do_not_count(lab: Lab, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_away(planted)
    monkeypatch.setenv(SAFE_VARIABLE, f"{planted.parent}:{planted}x::.")
    refused(lab, planted)


@as_root
def test_sudo_works_in_the_users_own_workspace(lab: Lab, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As git has it: under sudo, root trusts what belongs to whoever said sudo, and to no third user."""
    all_given_away(planted)
    monkeypatch.setenv("SUDO_UID", str(STRANGER + 1))
    refused(lab, planted)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert pushed(lab).code == 0


@as_root
def test_a_group_of_the_users_own_may_write(lab: Lab, planted: Path) -> None:
    """With umask 002 and a group for each user, as many systems have it, a folder is 0775 and nobody else's."""
    planted.chmod(0o775)
    assert pushed(lab).code == 0


@as_root
def test_an_interrupted_clone_of_a_strangers_is_not_gone_on_with(lab: Lab, planted: Path) -> None:
    """A folder that looks like the victim's own unfinished clone would decide where his files go from then on."""
    all_given_away(planted)
    with pytest.raises(WorkspaceError, match=SAFE_VARIABLE):
        lab.clone(lab.urls("a"), device="laptop")


def test_a_workspace_is_not_made_where_others_can_replace_it(lab: Lab) -> None:
    """It is said at once, and not by the first command that would use it; nothing is left on the backends."""
    (lab.root / "open").mkdir()
    (lab.root / "open").chmod(0o777)
    with pytest.raises(WorkspaceError, match="other users may write"):
        lab.init(lab.urls("a"), device="open")
    assert not lab.store("a").exists()


def test_what_metasync_makes_is_its_owners_alone_whatever_the_umask(lab: Lab) -> None:
    """A generous umask: the folder that `clone` makes, the database, locks and settings are for nobody else."""
    before = os.umask(0)
    try:
        w = lab.init(lab.urls("a"), device="new/laptop")
        write(w.directory, {"notes": b"one"})
        w.push("first")
        w.configure("limit.down", "2M")
        t = lab.clone(lab.urls("a"), device="new/desktop")
        t.push("second")
    finally:
        os.umask(before)
    for workspace in (w, t):
        assert workspace.directory.stat().st_mode & 0o022 == 0
        inside = [workspace.directory / ".metasync", *(workspace.directory / ".metasync").rglob("*")]
        assert [(p.name, oct(p.stat().st_mode)) for p in inside if p.stat().st_mode & 0o077] == []
        lab.reopen(workspace)


def test_keys_that_others_can_read_are_complained_of(lab: Lab) -> None:
    w = lab.init(lab.urls("a"))
    w.close()
    assert "device's keys" not in lab.cli("status").out + lab.cli("push").err
    (w.directory / ".metasync/device.key").chmod(0o644)
    assert "other users may read this device's keys" in lab.cli("status").out
    assert "other users may read this device's keys" in lab.cli("push").err
