"""Watches of folders: nothing between two of them is missed, and no folder is watched that would tell of nothing."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from metasync.backends import _folder_watch
from metasync.backends._folder_checks import Mount
from metasync.backends.api import Change
from metasync.backends.folder import FolderBackend
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify")
HUNG_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> FolderBackend:
    made = FolderBackend(str(tmp_path))
    made.put("d/a", b"1")
    return made


def test_what_happens_between_two_watches_is_told(store: FolderBackend) -> None:
    begun = store.watch("d", "", HUNG_S)
    assert begun.changed
    store.create("d/b", b"1")
    told = store.watch("d", begun.cursor, HUNG_S)
    assert told.changed
    assert store.watch("d", told.cursor, 0.0) == Change(told.cursor, False)
    assert store.watch("d", begun.cursor, HUNG_S).changed, "the same place again"


def test_what_is_made_in_new_folders_is_told_and_what_is_beside_is_not(store: FolderBackend) -> None:
    cursor = store.watch("d", "", HUNG_S).cursor
    store.put("beside/a", b"1")
    assert not store.watch("d", cursor, 0.0).changed
    store.put("d/x/y/a", b"1")
    cursor = store.watch("d", cursor, HUNG_S).cursor
    store.put("d/x/y/b", b"1")
    assert store.watch("d", cursor, HUNG_S).changed


def test_half_written_objects_are_no_change(store: FolderBackend, tmp_path: Path) -> None:
    cursor = store.watch("d", "", HUNG_S).cursor
    temp = tmp_path / "d" / (_folder_watch.TEMP_PREFIX + "0")
    temp.write_bytes(b"half")
    temp.unlink()
    assert not store.watch("d", cursor, 0.0).changed


def test_an_overflow_is_a_change(store: FolderBackend) -> None:
    cursor = store.watch("d", "", HUNG_S).cursor
    assert store._watched is not None
    watch = store._watched._watches["d"]
    assert watch._take(_folder_watch._HEADER.pack(-1, watch._flags.IN_Q_OVERFLOW, 0, 0))
    assert not store.watch("d", cursor, 0.0).changed


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_folder_that_goes_ends_its_watch(store: FolderBackend, tmp_path: Path, how: str) -> None:
    cursor = store.watch("d", "", HUNG_S).cursor
    if how == "moved":
        (tmp_path / "d").rename(tmp_path / "e")
    else:
        shutil.rmtree(tmp_path / "d")
    with pytest.raises(UnreachableError, match="gone"):
        store.watch("d", cursor, HUNG_S)


def test_a_folder_that_is_not_there_or_is_another_is_not_watched(store: FolderBackend, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        store.watch("none", "", HUNG_S)
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with pytest.raises(BackendError):
        store.watch("link", "", HUNG_S)
    tmp_path.rename(tmp_path.with_name("away"))
    tmp_path.mkdir()
    (tmp_path / "d").mkdir()
    with pytest.raises(UnreachableError, match="another one"):
        store.watch("d", "", HUNG_S)


@pytest.mark.parametrize(
    ("kind", "is_deaf"), [("nfs4", True), ("fuse.rclone", True), ("9p", True), ("cifs", True), ("btrfs", False)]
)
def test_a_share_that_tells_nothing_of_others_is_not_watched(
    store: FolderBackend, monkeypatch: pytest.MonkeyPatch, kind: str, is_deaf: bool
) -> None:
    monkeypatch.setattr(os, "major", lambda _: 0)
    monkeypatch.setattr(_folder_watch, "mount_of", lambda *_: Mount("/", kind, "server:/export"))
    if is_deaf:
        with pytest.raises(RefusedError, match=kind):
            store.watch("d", "", HUNG_S)
    else:
        assert store.watch("d", "", HUNG_S).changed


def test_a_close_ends_a_watch_at_once_and_leaves_no_descriptor(store: FolderBackend) -> None:
    before = len(os.listdir("/proc/self/fd"))
    cursor = store.watch("d", "", HUNG_S).cursor
    ended: list[BackendError] = []

    def wait() -> None:
        try:
            store.watch("d", cursor, HUNG_S)
        except BackendError as e:
            ended.append(e)

    waits = threading.Thread(target=wait)
    waits.start()
    store.close()
    waits.join(HUNG_S / 2)
    assert len(ended) == 1
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(NotFoundError):
        store.watch("d", cursor, HUNG_S)
    assert store.watch("d", "", HUNG_S).changed, "a store that was closed may be used again"
    store.close()


def test_too_many_watches_are_refused(store: FolderBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(_folder_watch, "_WATCHES_MAX", 1)
    store.put("e/a", b"1")
    store.watch("d", "", HUNG_S)
    with pytest.raises(UnreachableError):
        store.watch("e", "", HUNG_S)
    monkeypatch.setattr(_folder_watch, "_FOLDERS_MAX", 2)
    store.close()
    for n in range(5):
        store.put(f"d/{n}/a", b"1")
    with pytest.raises(BackendError, match="watch d"):
        store.watch("d", "", HUNG_S)
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
