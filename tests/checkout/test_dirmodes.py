"""Modes of directories in a checkout: opened where the owner may not write, and as agreed when it ends."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from workdir import QuietDisk, Workspace

from metasync.checkout.dirmodes import DirModes
from metasync.errors import WorkspaceError
from metasync.local.state_keys import MODES_KEY


def mode(at: Path) -> int:
    return stat.S_IMODE(at.lstat().st_mode)


def made(work: Workspace, **modes: int) -> DirModes:
    """Directories with these modes (`a__b` is b in a), and nothing opened yet."""
    for path in sorted(modes):
        work.at(path.replace("__", "/").encode()).mkdir()
    for path in sorted(modes, reverse=True):
        work.at(path.replace("__", "/").encode()).chmod(modes[path])
    return DirModes(work.db, work.tree)


def test_what_is_open_already_is_left_as_it_is_and_promises_no_second_try(work: Workspace) -> None:
    modes = made(work, a=0o755, a__b=0o700)
    before = work.at(b"a").stat().st_ctime_ns
    assert not modes.unlock(b"a/b")
    assert (modes.wanted, work.db.has(MODES_KEY), work.at(b"a").stat().st_ctime_ns) == ({}, False, before)


def test_all_on_the_way_are_opened_from_the_root_down_and_closed_again(work: Workspace) -> None:
    modes = made(work, a=0o500, a__b=0o555)
    work.root.chmod(0o555)
    assert modes.unlock(b"a/b")
    assert [mode(work.at(path)) for path in (b"", b"a", b"a/b")] == [0o755, 0o700, 0o755]
    assert DirModes(work.db, work.tree).wanted == {b"": 0o555, b"a": 0o500, b"a/b": 0o555}  # for whoever goes on
    assert modes.set_all() == []
    assert [mode(work.at(path)) for path in (b"", b"a", b"a/b")] == [0o555, 0o500, 0o555]
    work.root.chmod(0o755)


@pytest.mark.parametrize("link", [False, True], ids=["file", "symlink"])
def test_what_the_user_put_in_the_place_of_a_directory_keeps_its_mode(work: Workspace, link: bool) -> None:
    elsewhere = work.root / "elsewhere"
    elsewhere.mkdir(mode=0o500)
    if link:
        work.at(b"d").symlink_to(elsewhere)
    else:
        work.at(b"d").write_bytes(b"")
        work.at(b"d").chmod(0o400)
    modes = DirModes(work.db, work.tree)
    assert not modes.unlock(b"d")
    assert modes.wanted == {}
    modes.wanted[b"d"] = 0o700
    assert modes.set_all() == []
    assert (mode(elsewhere), mode(work.at(b"d"))) == (0o500, 0o777 if link else 0o400)


class Failing(QuietDisk):
    code = errno.EPERM

    def chmod(self, name: bytes, dir_fd: int, mode: int) -> None:
        raise OSError(self.code, os.strerror(self.code))


def test_a_directory_of_another_users_is_not_opened_and_ends_nothing(tmp_path: Path) -> None:
    disk = Failing()
    with Workspace(tmp_path, disk) as work:
        modes = made(work, d=0o500)
        assert not modes.unlock(b"d")
        assert [note.path for note in modes.set_all()] == []  # it has its mode still
        modes.wanted[b"d"] = 0o700
        assert [note.path for note in modes.set_all()] == [b"d"]
        disk.code = errno.EIO
        with pytest.raises(WorkspaceError):
            modes.unlock(b"d")
        with pytest.raises(WorkspaceError):
            modes.set_all()


def test_a_directory_that_is_gone_is_no_news(work: Workspace) -> None:
    modes = made(work, d=0o755)
    modes.wanted |= {b"gone": 0o700, b"d": 0o700}
    assert modes.set_all() == []
    assert mode(work.at(b"d")) == 0o700
