"""What stores share that address files by ids of the provider's own (Box, Google Drive): the backend, and its folder.

The backend turns calls of the contract into what a provider's `Files` does; the folder is found by its path once, and
its id is kept (`kept_root`).
"""

from __future__ import annotations

import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from metasync.backends._shared.kept_root import KeptRoot
from metasync.backends._shared.native_ids import NativeIds
from metasync.backends._shared.urls import byte_range, check_account
from metasync.backends.api import BackendUrl, Digest, Listed, Space
from metasync.backends.names import check_part, is_name, native_identity, split_folder, split_path
from metasync.errors import BackendError, NotFoundError, UnreachableError, UsageError

_PART: Final = re.compile(r"[^\0-\x1f\x7f/\\]{1,200}")
_NO_PARTS: Final = frozenset({".", ".."})
PAGES_MAX: Final = 1 << 12  # a provider may send pages of few names, or of none


class FileById(Protocol):
    """A file as its provider tells it. `digest`: of the backend's kind; None where it has none."""

    @property
    def size(self) -> int: ...

    @property
    def digest(self) -> bytes | None: ...


class FilesById(Protocol):
    """The files of a folder. `attempt` begins the messages of errors."""

    @property
    def folder(self) -> FolderById[Any]: ...

    def find(self, attempt: str, path: str) -> FileById:
        """What the provider says of an object. `NotFoundError`; `UnreachableError` without its folder."""

    def part(self, attempt: str, path: str, most: int, range_: str | None) -> bytes:
        """Bytes of an object; b"" for a part behind its end."""

    def listed(self, attempt: str, path: str) -> Iterable[tuple[str, int | None]]:
        """Paths and sizes of objects below a folder of ours, "" for all; None as the size of a folder."""

    def delete(self, attempt: str, path: str) -> None: ...

    def space(self, attempt: str) -> Space: ...


F = TypeVar("F", bound=FilesById)
T = TypeVar("T")


def on_all_pages(attempt: str, site: str, page: Callable[[str], tuple[Iterable[T], str]]) -> Iterator[T]:
    """What is on all pages of a list. `page`: from a page's mark to what is on it, and the mark of the next one.

    The first mark and the one behind the last page are "". `BackendError`: the list has no end; `site` is where people
    look what lies there.
    """
    mark = ""
    for _ in range(PAGES_MAX):
        found, mark = page(mark)
        yield from found
        if not mark:
            return
    raise BackendError(
        f"{attempt}: the listing has no end", retryable=False, next_step=f"Look what lies there, on {site}."
    )


class BackendById(ABC, Generic[F]):
    """A folder of an account. It makes no request before the first call."""

    scheme: ClassVar[str]
    url_params: ClassVar[frozenset[str]] = frozenset({"account"})
    library: ClassVar[tuple[str, str]]  # the module that the provider's library is imported as, and the package's name
    place: ClassVar[str]  # what its folders are in, for messages: "at Box"
    no_chars: ClassVar[str] = ""  # which no part of a path may have, beyond what none may

    def __init__(self, path: str, files: F) -> None:
        """`path`: the folder, from the account's root on."""
        self._where = f"{self.scheme}:{path}"
        self._files = files

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    @abstractmethod
    def files(cls, path: str, login: Any, stand_in: str, ids: NativeIds) -> F:
        """The files of the folder at this path."""

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        parts = url.path.strip("/").split("/")
        sound = url.path.startswith("/") and all(_PART.fullmatch(p) and p == p.strip() for p in parts)
        if url.host or not sound or _NO_PARTS & {*parts} or set(cls.no_chars) & {*url.path}:
            raise UsageError(
                f"not the path of a folder {cls.place}: {(url.host + url.path)[:80]!r}",
                next_step=f"Write {cls.scheme}:/folder, with a plain name for the folder.",
            )
        check_account(url)

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> Self:
        """With `create_root` the folder is made, and those above it, if it is missing."""
        module, package = cls.library
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"no package {package}", name=package)
        from metasync.backends._shared.logins import open_login
        from metasync.backends._shared.logins.oauth import endpoint_of
        from metasync.backends._shared.native_ids import ids_of

        login, stand_in = open_login(cls.scheme, dict(url.params).get("account")), endpoint_of(cls.scheme)
        path = "/" + url.path.strip("/")
        backend = cls(path, cls.files(path, login, stand_in, ids_of(login, stand_in, path)))
        if create_root:
            backend._files.folder.make_root(backend._attempt("make", "."))
        return backend

    # The calls of the contract that are alike.

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        range_ = byte_range(offset, length) if offset or length is not None else None
        most = max_bytes if length is None else min(length, max_bytes)
        return self._files.part(self._attempt("get", path), path, most, range_)

    def stat(self, path: str) -> int:
        return self._files.find(self._attempt("stat", path), path).size

    def list(self, path: str) -> tuple[Listed, ...]:
        depth = len(split_folder(path))
        found: dict[str, Listed] = {}
        for whole, size in self._files.listed(self._attempt("list", path or "."), path):
            parts = whole.split("/")[depth:]
            if parts and is_name(parts[0]):
                found.setdefault(parts[0], Listed(parts[0], size if len(parts) == 1 else None))
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def delete(self, path: str) -> None:
        self._files.delete(self._attempt("delete", path), path)

    def identity(self) -> bytes:
        """By the folder's own id, which the provider gives once and shows to all who share the folder."""
        return native_identity(self.scheme, self._files.folder.root(self._attempt("look at", "."), pin=True))

    def close(self) -> None:
        self._files.folder.close()

    def digest(self, path: str) -> Digest:
        found = self._files.find(self._attempt("digest", path), path)
        return Digest(found.size, found.digest)

    def space(self) -> Space:
        return self._files.space(self._attempt("measure", "."))

    def _attempt(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in {self._where}"


class Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closes)


class FolderById(ABC, Generic[C]):
    """The store's own folder, for several threads. `attempt` begins the messages of errors."""

    def __init__(self, path: str, client: C, ids: NativeIds, sound: re.Pattern[str]) -> None:
        """`path`: from the account's root on. `ids`: of this account and folder; `sound`: what one looks like."""
        self._path = path
        self.client = client
        self.ids = ids
        self._root = KeptRoot(ids, sound)

    def close(self) -> None:
        self.client.close()
        self.ids.close()

    def root(self, attempt: str, *, pin: bool = False) -> str:
        """The folder's id. `UnreachableError` if there is no such folder. `pin`: whoever asks relies on it."""
        found = self._root.get(attempt, lambda: self._walk(attempt, make=False))
        if pin:
            self._root.pin()
        return found

    def make_root(self, attempt: str) -> None:
        self._root.keep(attempt, self._walk(attempt, make=True))

    def check_root(self, attempt: str, *, now: bool = False) -> None:
        """`UnreachableError` if the folder is gone: what is not found in it then tells nothing."""
        root = self.root(attempt)

        def look() -> str:
            try:
                is_there = self._is_there(attempt, root)
            except NotFoundError:
                is_there = False
            if not is_there:
                self.root_gone(attempt)
            return root

        self._root.check(attempt, look, at=float("inf") if now else None)

    def root_gone(self, attempt: str) -> None:
        """Raises `UnreachableError`: no folder has the id any more."""
        self._root.gone()
        raise self._no_root(attempt)

    def seen(self) -> None:
        """The folder was there a moment ago."""
        self._root.seen()

    # What the provider is asked.

    @abstractmethod
    def _walk(self, attempt: str, *, make: bool) -> str:
        """The id of the folder at the path; with `make` it is made, and those above. Else raises `_no_root`."""

    @abstractmethod
    def _is_there(self, attempt: str, root: str) -> bool:
        """Whether a folder has this id. `NotFoundError`: none has."""

    @abstractmethod
    def _no_root(self, attempt: str) -> UnreachableError: ...
