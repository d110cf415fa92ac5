"""A folder at Box: `box:/path/of/folder?account=NAME`, whose account `metasync auth box` has linked.

`create` is an upload, which Box refuses where the folder has a file of that name (providers.md, section 2). Names at
Box know no case; ours are small letters. A file is addressed by its id: a look whether a name is free tells whose it
is, and ids are kept beyond the process (`_shared.native_ids`).
"""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING, ClassVar, Final

from metasync.backends._shared.race_probe import create_by, keeps_creates
from metasync.backends._shared.urls import byte_range, check_account
from metasync.backends.api import BackendUrl, Change, Digest, DigestKind, Inventory, Listed, LogForm, Space
from metasync.backends.names import check_part, native_identity, split_folder, split_path
from metasync.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from metasync.backends.box.folders import Folders

_PART: Final = re.compile(r"[^\0-\x1f\x7f/\\]{1,200}")


class BoxBackend:
    """A folder of an account. It makes no request before the first call."""

    scheme: ClassVar[str] = "box"
    form: ClassVar[LogForm] = "log"
    digest_kind: ClassVar[DigestKind] = "sha1"
    url_params: ClassVar[frozenset[str]] = frozenset({"account"})

    def __init__(self, path: str, at: Folders) -> None:
        """`path`: the folder, from the account's root on."""
        from metasync.backends.box.feed import Feed
        from metasync.backends.box.files import Files

        self._where = f"box:{path}"
        self._at, self._files, self._feed = at, Files(at), Feed(at)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        parts = url.path.strip("/").split("/")
        sound = url.path.startswith("/") and all(_PART.fullmatch(p) and p == p.strip() for p in parts)
        if url.host or not sound or {".", ".."} & {*parts}:
            raise UsageError(
                f"not the path of a folder at Box: {(url.host + url.path)[:80]!r}",
                next_step="Write box:/folder, with a plain name for the folder.",
            )
        check_account(url)

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> BoxBackend:
        """With `create_root` the folder is made, and those above it, if it is missing."""
        if importlib.util.find_spec("box_sdk_gen") is None:
            raise ModuleNotFoundError("no package boxsdk", name="boxsdk")
        from metasync.backends._shared.logins import open_login
        from metasync.backends._shared.logins.oauth import endpoint_of
        from metasync.backends._shared.native_ids import ids_of
        from metasync.backends.box.client import Client
        from metasync.backends.box.folders import Folders

        login, stand_in = open_login("box", dict(url.params).get("account")), endpoint_of("box")
        path = "/" + url.path.strip("/")
        backend = cls(path, Folders(path, Client(login, stand_in), ids_of(login, stand_in, path)))
        if create_root:
            backend._at.make_root(backend._attempt("make", "."))
        return backend

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        attempt = self._attempt("create", path)
        return create_by(lambda: self._files.create(attempt, path, data), self, path, data)

    def put(self, path: str, data: bytes) -> None:
        self._files.put(self._attempt("put", path), path, data)

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        attempt = self._attempt("get", path)
        is_part = bool(offset) or length is not None
        headers = {"Range": byte_range(offset, length)} if is_part else {}
        most = max_bytes if length is None else min(length, max_bytes)
        status, data = self._files.content(attempt, path, most, headers)
        if status == 416:  # it begins at or behind the end
            return b""
        if is_part != (status == 206):
            raise UnreachableError(f"{attempt}: what answered is not Box", next_step="Check the network.")
        return data

    def stat(self, path: str) -> int:
        return self._files.find(self._attempt("stat", path), path).size

    def list(self, path: str) -> tuple[Listed, ...]:
        depth = len(split_folder(path))
        found: dict[str, Listed] = {}
        for whole, size in self._at.below(self._attempt("list", path or "."), path):
            parts = whole.split("/")[depth:]
            if parts:
                found.setdefault(parts[0], Listed(parts[0], size if len(parts) == 1 else None))
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def delete(self, path: str) -> None:
        self._files.remove(self._attempt("delete", path), path)

    def identity(self) -> bytes:
        """By the folder's own id, which Box gives once and shows to all who share the folder."""
        return native_identity("box", self._at.root(self._attempt("look at", "."), pin=True))

    def close(self) -> None:
        self._at.close()

    # Optional powers.

    def digest(self, path: str) -> Digest:
        found = self._files.find(self._attempt("digest", path), path)
        return Digest(found.size, found.sha1)

    def space(self) -> Space:
        return self._files.space(self._attempt("measure", "."))

    def probe(self) -> LogForm:
        """The form, or "none" if Box broke `create`'s promise in a probe (`race_probe.keeps_creates`)."""
        return self.form if keeps_creates(self) else "none"

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A list of what is below, then the account's feed of events (`Feed.inventory`)."""
        split_path(path)
        return self._feed.inventory(self._attempt("list", path), path, cursor)

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        """By Box's long poll, which tells of all that changes in the account."""
        split_path(path)
        return self._feed.watch(self._attempt("watch", path), cursor, timeout_s)

    def sweep(self, path: str) -> None:
        """Removes folders that hold nothing below `path`."""
        split_path(path)
        self._at.sweep(self._attempt("sweep", path), path)

    def _attempt(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in {self._where}"
