"""A workspace on a disk that is mounted to be read only: it is looked at, and nothing changes it."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from workspace_kit import Lab, tree_of, write

from metasync.errors import WorkspaceError
from metasync.local import state
from metasync.workspace import Workspace
from metasync.worktree.disk import Disk


class Mount:
    is_read_only = True


@pytest.fixture
def mount() -> Mount:
    return Mount()


@pytest.fixture
def there(lab: Lab, mount: Mount, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """One whose disk refuses what the system refuses on such a disk."""
    urls = lab.urls("a", "b", kind="memory")
    w = lab.init(urls)
    write(w.directory, {"a": b"1", "d/b": b"2"})
    w.push()
    w.close()
    opens = Disk.open

    def refuse(disk: Disk, name: bytes, flags: int, *words: Any, **more: Any) -> int:
        if mount.is_read_only and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return opens(disk, name, flags, *words, **more)

    monkeypatch.setattr(Disk, "open", refuse)
    monkeypatch.setattr(state, "is_read_only", lambda _: mount.is_read_only)
    return lab.keep(Workspace.open(w.directory))


def test_it_is_looked_at(there: Workspace) -> None:
    (there.directory / "a").write_bytes(b"changed before it was mounted so")
    found = there.status()
    assert found.changes.modified == (b"a",)
    assert (found.version, found.newest, found.problem) == (1, 1, "")
    assert len(there.log()) == 1
    assert there.check().problems == ()


def test_what_would_change_it_is_refused_and_changes_nothing(there: Workspace, mount: Mount) -> None:
    before = tree_of(there.directory)
    (there.directory / "new").write_bytes(b"n")
    for act in (there.push, there.pull, there.sync):
        with pytest.raises(WorkspaceError, match="on a disk that is read-only"):
            act()
    mount.is_read_only = False  # it can be written now: what this one has read is a copy all the same
    with pytest.raises(WorkspaceError, match="on a disk that is read-only"):
        there.push()
    (there.directory / "new").unlink()
    assert tree_of(there.directory) == before
    with Workspace.open(there.directory) as anew:
        write(anew.directory, {"new": b"n"})
        assert anew.push().version == 2
