"""A folder: on this machine, on a stick or on a mounted share (`file:///absolute/path`).

A path may mean another thing at the next call. So every call opens the root, compares it with the folder seen first (an
unmounted drive leaves an empty folder, with another device and inode), and goes down part by part without following a
link. What happens to the root during a call can then neither hide an object nor make one under the mount.

An object is written to a temporary name beside its place, synced, and then linked (`create`: fails if the name is
taken) or renamed (`put`). O_EXCL alone would make the name atomic, not the content (providers.md, section 2).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from metasync.backends._folder_checks import doubt, place_of
from metasync.backends.api import BackendUrl, Change, Inventory, Listed, LogForm, Space
from metasync.backends.names import TEMP_PREFIX, check_part, count_bytes, is_name, split_folder, split_path
from metasync.errors import BackendError, FullError, NotFoundError, RefusedError, UnreachableError, UsageError
from metasync.runtime.sizes import KNOWN_FOLDERS_MAX

if TYPE_CHECKING:
    from metasync.backends._folder_watch import Watched

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: a pipe with that name must not hang the open that finds out it is one.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IO_BYTES = 1 << 23  # per system call; Linux moves at most 2 GiB in one anyway

_FULL = {errno.ENOSPC, errno.EDQUOT}
_ROOM_BYTES = 1 << 20  # with so much left, a drive that takes no file lacks inodes
_GONE = {errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.EFBIG}
# FAT and exFAT have no links (EPERM), other file systems say so in other ways.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}


class FolderBackend:
    """A folder that exists. It is opened anew by every call; no handle keeps a drive from being unmounted."""

    scheme: ClassVar[str] = "file"
    form: ClassVar[LogForm] = "log"
    url_params: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, root: str) -> None:
        """`UnreachableError` if there is no folder `root`, `RefusedError` if it is closed to us."""
        self._root = root
        self._root_id: tuple[int, int] | None = None
        self._making = threading.Lock()
        self._known: set[tuple[str, ...]] = set()
        self._watched: Watched | None = None
        with _as_backend_errors("open", root):
            root_fd = self._open_root()
            try:
                found = os.fstat(root_fd)
                self._root_id = (found.st_dev, found.st_ino)
            finally:
                os.close(root_fd)

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        parts = url.path.split("/")
        if url.host or not url.path.startswith("/") or ".." in parts:
            raise UsageError(
                "a folder is named by its absolute path",
                next_step="Write three slashes, and no host: file:///media/stick/metasync.",
            )
        if not {*parts} - {"", "."}:
            raise UsageError("the root of the file system cannot be a backend", next_step="Name a folder of its own.")

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> FolderBackend:
        root = os.path.normpath(url.path)
        if create_root:
            _make_root(root)
        with _as_backend_errors("open", root):
            why = doubt(root)
        return StorageOnlyFolderBackend(root, why) if why else FolderBackend(root)

    def create(self, path: str, data: bytes) -> bool:
        *above, name = split_path(path)
        with (
            _as_backend_errors("create", f"{path} in {self._root}", self._root),
            self._folder(tuple(above), make=True) as folder,
        ):
            if _exists(folder, name):
                # Whoever made it may not have synced the folder yet, and the caller will act on what it finds there.
                _sync_folder(folder)
                return False
            temp = _write_temp(folder, data)
            try:
                created = _link(folder, temp, name)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temp, dir_fd=folder)
            _sync_folder(folder)
            return created

    def put(self, path: str, data: bytes) -> None:
        *above, name = split_path(path)
        with (
            _as_backend_errors("put", f"{path} in {self._root}", self._root),
            self._folder(tuple(above), make=True) as folder,
        ):
            temp = _write_temp(folder, data)
            try:
                os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temp, dir_fd=folder)
                raise
            _sync_folder(folder)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        check_part(offset, length, max_bytes)
        with self._file(path, "get") as (file, size_bytes):
            count = count_bytes(size_bytes, offset, length, max_bytes, f"{path} in {self._root}")
            return _read(file, offset, count)

    def stat(self, path: str) -> int:
        with self._file(path, "stat") as (_, size_bytes):
            return size_bytes

    def list(self, path: str) -> tuple[Listed, ...]:
        parts = split_folder(path)
        with _as_backend_errors("list", f"{path or '.'} in {self._root}"):
            try:
                with self._folder(parts) as folder, os.scandir(folder) as entries:
                    return tuple(sorted(_listed(entries)))
            except (FileNotFoundError, NotADirectoryError):
                return ()

    def inventory(self, path: str, cursor: str) -> Inventory:
        from metasync.backends import walk  # not for a push

        return walk.inventory(path, cursor, lambda folders: {folder: self.list(folder) for folder in folders})

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        """By the events of this machine; on Linux, and where all writers are on this machine."""
        from metasync.backends._folder_watch import Watched  # which only a program that runs on needs

        parts = split_path(path)
        with self._making:
            watched = self._watched = self._watched or Watched(self._root)
        with _as_backend_errors("watch", f"{path} in {self._root}"):
            try:
                return watched.wait(path, cursor, timeout_s, lambda: self._descend(tuple(parts), make=False))
            except FileNotFoundError as error:
                raise NotFoundError(f"{path} is not in {self._root}") from error

    if sys.platform != "linux":
        del watch

    def delete(self, path: str) -> None:
        *above, name = split_path(path)
        with (
            _as_backend_errors("delete", f"{path} in {self._root}"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._folder(tuple(above)) as folder,
        ):
            os.unlink(name, dir_fd=folder)

    def identity(self) -> bytes:
        with _as_backend_errors("identify", self._root), self._folder(()) as folder:
            return place_of(folder, self._root)

    def space(self) -> Space:
        with _as_backend_errors("measure", self._root), self._folder(()) as folder:
            room = os.fstatvfs(folder)
        return Space(free_bytes=room.f_bavail * room.f_frsize, total_bytes=room.f_blocks * room.f_frsize)

    def sweep(self, path: str) -> None:
        *above, name = split_path(path)
        with (
            _as_backend_errors("sweep", f"{path} in {self._root}"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._folder(tuple(above)) as folder,
        ):
            for _, below, files, inside in os.fwalk(name, topdown=False, dir_fd=folder):  # follows no links
                for temp in files:
                    if temp.startswith(TEMP_PREFIX):
                        os.unlink(temp, dir_fd=inside)
                for empty in below:
                    with contextlib.suppress(OSError):  # it is not, or is a link
                        os.rmdir(empty, dir_fd=inside)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=folder)

    def close(self) -> None:
        """Ends watches; nothing else is held open between calls."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()

    @contextlib.contextmanager
    def _folder(self, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
        """A handle on the folder below the root. `FileNotFoundError` if it is not there and not to be made."""
        folder = self._descend_to_write(parts) if make else self._descend(parts, make=False)
        try:
            yield folder
        finally:
            os.close(folder)

    def _descend_to_write(self, parts: tuple[str, ...]) -> int:
        # A folder another thread has just made is not durable before that thread has synced the one above it. Whoever
        # comes to a folder for the first time therefore waits for the lock; afterwards nobody does.
        if parts in self._known:
            with contextlib.suppress(FileNotFoundError):
                return self._descend(parts, make=False)
        with self._making:
            folder = self._descend(parts, make=True)
            if len(self._known) >= KNOWN_FOLDERS_MAX:
                self._known.clear()
            self._known.add(parts)
        return folder

    def _descend(self, parts: tuple[str, ...], *, make: bool) -> int:
        folder = self._open_root()
        for part in parts:
            try:
                below = _open_below(folder, part, make=make)
            finally:
                os.close(folder)
            folder = below
        return folder

    def _open_root(self) -> int:
        try:
            root = os.open(self._root, _FOLDER)
        except NotADirectoryError as error:
            raise UnreachableError(
                f"{self._root} is not a folder, or lies below a file", next_step="Name a folder in the URL."
            ) from error
        except FileNotFoundError as error:
            raise UnreachableError(
                f"the folder {self._root} is not there; is the drive mounted?",
                next_step="Mount it and repeat the command. Only init makes a folder that is missing.",
            ) from error
        found = os.fstat(root)
        if self._root_id not in (None, (found.st_dev, found.st_ino)):
            os.close(root)
            raise UnreachableError(
                f"the folder {self._root} is another one than before; was the drive unmounted or exchanged?",
                next_step="Mount the drive again and repeat the command.",
            )
        return root

    @contextlib.contextmanager
    def _file(self, path: str, verb: str) -> Iterator[tuple[int, int]]:
        *above, name = split_path(path)
        with _as_backend_errors(verb, f"{path} in {self._root}"):
            try:
                with self._folder(tuple(above)) as folder:
                    file = os.open(name, _READ, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFoundError(f"{path} is not in {self._root}") from error
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    raise RefusedError(f"{path} in {self._root} is not a file")
                yield file, found.st_size
            finally:
                os.close(file)


class StorageOnlyFolderBackend(FolderBackend):
    """A folder that another program copies elsewhere, or that is mounted in a way that is late: it never votes."""

    form: ClassVar[LogForm] = "none"

    def __init__(self, root: str, form_reason: str) -> None:
        super().__init__(root)
        self.form_reason = form_reason


@contextlib.contextmanager
def _as_backend_errors(verb: str, what: str, root: str = "") -> Iterator[None]:
    """`root`: of what is written, to see what a drive lacks that is full."""
    try:
        yield
    except OSError as error:
        if root and error.errno == errno.ENOSPC and _lacks_inodes(root):
            message = f"cannot {verb} {what}: the drive has no inodes left"
            raise FullError(message, next_step="Delete some files on that drive, or add a backend.") from error
        raise _backend_error(error, verb, what) from error


def _lacks_inodes(root: str) -> bool:
    """Whether a file system has bytes left and no place for another file; False where inodes are made of free space."""
    try:
        st = os.statvfs(root)
    except OSError:
        return False
    return st.f_files > 0 and st.f_favail == 0 and st.f_bavail * st.f_frsize >= _ROOM_BYTES


def _backend_error(error: OSError, verb: str, what: str) -> BackendError:
    reason = os.strerror(error.errno) if error.errno else "unknown error"
    if error.errno == errno.ELOOP:
        reason = "there is a link on the way to it, and links are not followed there"
    message = f"cannot {verb} {what}: {reason}"
    if error.errno in _FULL:
        return FullError(message, next_step="Free some space on that drive, or add a backend.")
    if error.errno in _GONE:
        return UnreachableError(message, next_step="Check that the drive is connected and mounted.")
    if error.errno in _REFUSED or error.errno == errno.ENOTDIR:
        return RefusedError(message, next_step="Check who owns the folder, its rights, and how it is mounted.")
    return BackendError(message, next_step="Look at that folder, and at the drive it lies on.")


def _make_root(root: str) -> None:
    with _as_backend_errors("make", root):
        missing = []
        while not os.path.isdir(root):
            missing.append(root)
            root = os.path.dirname(root)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            above = os.open(os.path.dirname(folder), _FOLDER)
            try:
                _sync_folder(above)
            finally:
                os.close(above)


def _open_below(folder: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    except NotADirectoryError as error:
        # What lies behind a link is not looked at, and so not known to be absent: that would be a log without entries.
        if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
        raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    _sync_folder(folder)
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write_temp(folder: int, data: bytes) -> str:
    temp = TEMP_PREFIX + os.urandom(8).hex()
    file = os.open(temp, _WRITE, 0o666, dir_fd=folder)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest[:_IO_BYTES]) :]
            _sync(file)
        finally:
            os.close(file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp, dir_fd=folder)
        raise
    return temp


def _link(folder: int, temp: str, name: str) -> bool:
    """Gives the temporary file its name, unless that is taken."""
    try:
        os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _rename_if_free(folder, temp, name)
    return True


def _rename_if_free(folder: int, temp: str, name: str) -> bool:
    """The way without links: renameat2(2) with RENAME_NOREPLACE, which FAT and exFAT have on Linux."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    failed = errno.ENOSYS
    if rename is not None:
        no_replace = ctypes.c_uint(1)
        if rename(folder, os.fsencode(temp), folder, os.fsencode(name), no_replace) == 0:
            return True
        failed = ctypes.get_errno()
    if failed == errno.EEXIST:
        return False
    if failed in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
        raise RefusedError(
            f"cannot create {name}: this file system can neither link nor rename without overwriting",
            next_step="It can hold data, but not vote: add ?role=storage to its URL.",
        )
    raise OSError(failed, os.strerror(failed))


def _read(file: int, offset: int, count: int) -> bytes:
    """`count` bytes, or fewer if the file was cut meanwhile. One call and no copy for all but the largest objects."""
    data = os.pread(file, count, offset)
    if len(data) == count:
        return data
    parts = [data]
    while parts[-1]:
        done = sum(map(len, parts))
        parts.append(os.pread(file, count - done, offset + done))
    return b"".join(parts)


def _listed(entries: Iterator[os.DirEntry[str]]) -> Iterator[Listed]:
    for entry in entries:
        if not is_name(entry.name):
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield Listed(entry.name, found.st_size)
        elif stat.S_ISDIR(found.st_mode):
            yield Listed(entry.name, None)


def _sync(file: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # fsync there leaves the data in the drive's own cache
    else:
        os.fsync(file)


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:  # some network and FUSE file systems cannot sync a folder, and need not
            raise
