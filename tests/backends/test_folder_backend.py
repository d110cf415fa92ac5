"""Folders as backends: what may happen to the folder, what is written when, and what it is told apart by."""

from __future__ import annotations

import errno
import inspect
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metasync.backends import _folder_checks, folder
from metasync.backends.api import TellsSpace
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.wrappers.ballast import WithBallast
from metasync.backends.wrappers.wrapper import Prefixed
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError
from metasync.testing.counting import CountingBackend
from metasync.testing.faults import FaultyBackend

CALLS = {
    "create": lambda b: b.create("d/new", b"x"),
    "put": lambda b: b.put("d/a", b"x"),
    "get": lambda b: b.get("d/a", max_bytes=9),
    "stat": lambda b: b.stat("d/a"),
    "list": lambda b: b.list("d"),
    "list_root": lambda b: b.list(""),
    "delete": lambda b: b.delete("d/a"),
    "identity": lambda b: b.identity(),
    "space": lambda b: b.space(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("then", ["gone", "another", "a file"])
def test_a_root_that_vanishes_is_unreachable_and_never_made_anew(tmp_path: Path, call: object, then: str) -> None:
    root = tmp_path / "stick"
    root.mkdir()
    backend = FolderBackend(str(root))
    backend.put("d/a", b"1")
    root.rename(tmp_path / "elsewhere")
    if then == "another":  # what an unmounted drive leaves behind
        root.mkdir()
    elif then == "a file":
        root.write_text("")
    with pytest.raises(UnreachableError) as caught:
        call(backend)
    assert caught.value.retryable
    assert caught.value.next_step
    if then == "gone":
        assert not root.exists()
    if then == "another":
        assert os.listdir(root) == []


def test_a_root_that_vanishes_in_the_middle_of_a_create(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "stick"
    root.mkdir()
    backend = FolderBackend(str(root))
    mkdir = os.mkdir

    def unmount_first(path: str, *args: object, **kwargs: object) -> None:
        monkeypatch.setattr(os, "mkdir", mkdir)
        root.rename(tmp_path / "elsewhere")
        root.mkdir()
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", unmount_first)
    backend.create("d/a", b"1")
    assert os.listdir(root) == [], "the folder under the mount stays empty"
    assert (tmp_path / "elsewhere/d/a").read_bytes() == b"1"


def test_a_missing_root(tmp_path: Path) -> None:
    url = parse_url(f"file://{tmp_path}/a/b")
    with pytest.raises(UnreachableError, match="is the drive mounted"):
        open_backend(url)
    assert not (tmp_path / "a").exists()
    backend = open_backend(url, create_root=True)
    assert (tmp_path / "a/b").is_dir()
    assert backend.list("") == ()
    assert open_backend(url, create_root=True).identity() == backend.identity()


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for create_root in (False, True):
        with pytest.raises(BackendError, match="not a folder"):
            open_backend(parse_url(f"file://{tmp_path}/file"), create_root=create_root)


@pytest.mark.parametrize(
    ("code", "expected"), [(errno.EACCES, RefusedError), (errno.EIO, UnreachableError), (errno.EMFILE, BackendError)]
)
def test_a_root_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[BackendError]
) -> None:
    """Also at the very beginning: one folder that is closed to us stops no command that has others."""
    backend = FolderBackend(str(tmp_path))

    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(code, os.strerror(code), str(tmp_path))

    monkeypatch.setattr(os, "open", fail)
    for call in (lambda: open_backend(parse_url(f"file://{tmp_path}")), lambda: backend.get("a", max_bytes=1)):
        with pytest.raises(BackendError, match=os.strerror(code)) as caught:
            call()
        assert type(caught.value) is expected
        assert caught.value.next_step


@pytest.mark.parametrize("path", ["/.", "//.//", "/./."])
def test_the_root_of_the_file_system_is_refused_in_every_spelling(path: str) -> None:
    with pytest.raises(UsageError, match="root of the file system"):
        parse_url(f"file://{path}")


def test_a_missing_folder_below_the_root_is_made_again(tmp_path: Path) -> None:
    backend = FolderBackend(str(tmp_path))
    backend.put("d/e/a", b"1")
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(NotFoundError):
        backend.get("d/e/a", max_bytes=9)
    assert backend.create("d/e/a", b"2")


@pytest.mark.parametrize(
    ("free_bytes", "files", "is_told"), [(1 << 20, 9, True), (1000, 9, False), (1 << 20, 0, False)]
)
def test_a_drive_without_inodes_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, files: int, is_told: bool
) -> None:
    """Not where it makes inodes of free space, and both are out; nor where it counts none."""
    backend, real = FolderBackend(str(tmp_path)), os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, *args, **kwargs)

    found = SimpleNamespace(f_files=files, f_favail=0, f_bavail=free_bytes, f_frsize=1)
    for call in (backend.create, backend.put):
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse)
            patched.setattr(os, "statvfs", lambda _: found)
            with pytest.raises(FullError) as caught:
                call("a", b"1")
        said = (caught.value.message.endswith("the drive has no inodes left"), caught.value.next_step)
        assert said == (
            is_told,
            f"{'Delete some files' if is_told else 'Free some space'} on that drive, or add a backend.",
        )


@pytest.mark.few
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, FullError),
        (errno.EDQUOT, FullError),
        (errno.EACCES, RefusedError),
        (errno.EROFS, RefusedError),
        (errno.ENAMETOOLONG, RefusedError),
        (errno.EIO, UnreachableError),
        (errno.ESTALE, UnreachableError),
        (errno.ENODEV, UnreachableError),
        (errno.EMFILE, BackendError),
        (errno.ENOENT, BackendError),
    ],
)
@pytest.mark.parametrize("during", ["write", "fsync", "close", "mkdir", "link", "rename"])
def test_system_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[BackendError], during: str
) -> None:
    backend = FolderBackend(str(tmp_path))

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    call = backend.put if during == "rename" else backend.create
    with monkeypatch.context() as patched:  # only so long: what takes the folder away afterwards closes files, too
        patched.setattr(os, during, fail)
        with pytest.raises(BackendError) as caught:
            call("d/a", b"1")
    assert type(caught.value) is expected
    assert str(tmp_path) in caught.value.message
    assert not [name for _, _, names in os.walk(tmp_path) for name in names], "nothing half-written stays"


def test_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT: no links, but a rename that does not overwrite."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", fail)
    backend = FolderBackend(str(tmp_path))
    assert backend.create("d/a", b"1") is True
    assert backend.create("d/a", b"2") is False
    monkeypatch.setattr(folder, "_exists", lambda *_: False)  # the other one wins between look and link
    assert backend.create("d/a", b"2") is False
    assert backend.get("d/a", max_bytes=9) == b"1"
    assert os.listdir(tmp_path / "d") == ["a"]
    monkeypatch.setattr(folder.sys, "platform", "other")
    with pytest.raises(RefusedError, match="role=storage"):
        backend.create("d/b", b"1")
    assert os.listdir(tmp_path / "d") == ["a"]


def test_links_and_pipes_in_the_root_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "a")
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    backend = FolderBackend(str(root))
    for path in ("file", "pipe", "folder"):
        with pytest.raises(RefusedError):
            backend.get(path, max_bytes=99)
    for call in (
        lambda: backend.get("dir/a", max_bytes=99),
        lambda: backend.stat("dir/a"),
        lambda: backend.list("dir"),
        lambda: backend.create("dir/b", b""),
        lambda: backend.put("dir/b", b""),
        lambda: backend.delete("dir/a"),
    ):
        with pytest.raises(RefusedError, match="there is a link on the way"):  # never "absent": it was not looked at
            call()
    assert sorted(os.listdir(outside)) == ["a"]
    assert [name for name, _ in backend.list("")] == ["folder"]


def test_rights(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    backend = FolderBackend(str(tmp_path))
    backend.put("d/a", b"1")
    (tmp_path / "d").chmod(0o500)
    with pytest.raises(RefusedError, match="denied"):
        backend.create("d/b", b"")
    (tmp_path / "d").chmod(0o700)


def test_half_written_objects_are_not_listed(tmp_path: Path) -> None:
    backend = FolderBackend(str(tmp_path))
    backend.put("d/a", b"1")
    (tmp_path / "d/.tmp-0123").write_text("half")
    (tmp_path / "d/Thumbs.db").write_text("foreign")
    assert [name for name, _ in backend.list("d")] == ["a"]


def test_sweep_removes_what_no_list_shows_and_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "empty").mkdir(parents=True)
    (outside / ".tmp-1").touch()
    root = tmp_path / "root"
    root.mkdir()
    backend = FolderBackend(str(root))
    for path in ("a/gone/deep/x", "a/gone/y", "a/kept/x", "b/x"):
        backend.put(path, b"1")
    for path in ("a/gone/deep/x", "a/gone/y", "b/x"):
        backend.delete(path)
    for half in ("a/gone/deep/.tmp-1", "a/kept/.tmp-2", "b/.tmp-3", ".tmp-4"):
        (root / half).touch()
    (root / "a/gone/link").symlink_to(outside)
    (root / "a/gone/Foreign").touch()
    backend.sweep("a")
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert found == {"a", "a/gone", "a/gone/link", "a/gone/Foreign", "a/kept", "a/kept/x", "b", "b/.tmp-3", ".tmp-4"}
    assert {path.name for path in outside.iterdir()} == {"empty", ".tmp-1"}
    backend.sweep("b")
    backend.sweep("nothing/here")
    assert not (root / "b").exists()
    assert backend.create("b/x", b"2"), "a folder that was swept away is made again"
    (root / "c").symlink_to(outside)
    backend.sweep("c")
    with pytest.raises(RefusedError, match="a link on the way"):
        backend.sweep("c/empty")
    assert (outside / "empty").exists()
    for path in ("", "..", "../outside", "/"):
        with pytest.raises(ValueError, match="not a path"):
            backend.sweep(path)


def test_a_folder_in_use_can_be_unmounted(tmp_path: Path) -> None:
    """Between calls no handle is held: a drive can go. (Seen by the handles of this process.)"""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("only Linux shows them")
    backend = FolderBackend(str(tmp_path))
    backend.put("d/a", b"1")
    backend.get("d/a", max_bytes=1)
    handles = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in handles if path.startswith(str(tmp_path))]


def test_what_is_synced_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it has its name, its folder after, and above a new folder the one it was made in: no more."""
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        path = os.path.relpath(os.path.realpath(f"/proc/self/fd/{fd}"), tmp_path)
        synced.append("temp" if ".tmp-" in path else path)
        fsync(fd)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("only Linux shows them")
    backend = FolderBackend(str(tmp_path))
    monkeypatch.setattr(os, "fsync", note)
    for call, expected in (
        (lambda: backend.create("a/b/x", b"1"), [".", "a", "temp", "a/b"]),
        (lambda: backend.create("a/b/y", b"1"), ["temp", "a/b"]),
        (lambda: backend.create("a/b/y", b"2"), ["a/b"]),
        (lambda: backend.put("a/b/y", b"2"), ["temp", "a/b"]),
        (lambda: backend.put("a/z", b"2"), ["temp", "a"]),
        (lambda: backend.get("a/z", max_bytes=1), []),
    ):
        synced.clear()
        call()
        assert synced == expected


def test_identity_tells_a_copy_from_the_folder(tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    FolderBackend(str(first)).put("a", b"1")
    shutil.copytree(first, copy)
    here, there = FolderBackend(str(first)).identity(), FolderBackend(str(copy)).identity()
    assert here[:16] == there[:16], "one machine"
    assert here[16:] != there[16:]
    first.rename(tmp_path / "moved")
    assert FolderBackend(str(tmp_path / "moved")).identity() == here, "a folder may move within its file system"
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert FolderBackend(str(tmp_path / "link")).identity() == here


MOUNTS = """\
22 1 8:2 / / rw - ext4 /dev/root rw
30 22 8:17 / /media/my\\040stick rw - vfat /dev/sdb1 rw
31 22 0:50 / /net rw - nfs4 server:/export rw
"""


@pytest.mark.parametrize(
    ("path", "device", "kind"), [("/media/my stick/x", (8, 17), "vfat"), ("/net", (0, 50), "nfs4")]
)
def test_mounts(monkeypatch: pytest.MonkeyPatch, path: str, device: tuple[int, int], kind: str) -> None:
    monkeypatch.setattr(_folder_checks, "_lines", lambda _: MOUNTS.splitlines())
    mount = _folder_checks.mount_of(path, os.makedev(*device))
    assert mount is not None
    assert mount.kind == kind
    assert _folder_checks.mount_of(path, os.makedev(9, 9)) is None


def test_space(tmp_path: Path) -> None:
    backend = FolderBackend(str(tmp_path))
    assert isinstance(backend, TellsSpace)
    space = backend.space()
    assert 0 < space.free_bytes <= space.total_bytes
    assert not isinstance(MemoryBackend(), TellsSpace)
    assert isinstance(CountingBackend(backend), TellsSpace)
    for power in ("space", "sweep"):  # as `isinstance` looks from Python 3.12 on
        assert inspect.getattr_static(CountingBackend(FaultyBackend(backend)), power) is not None
    assert not isinstance(FaultyBackend(MemoryBackend()), TellsSpace)
    wrapped = WithBallast(Prefixed(FaultyBackend(CountingBackend(backend)), "x"), lambda: None)
    assert wrapped.space().total_bytes == space.total_bytes
    assert not hasattr(WithBallast(Prefixed(MemoryBackend(), "x"), lambda: None), "space")
