"""A folder in a Google Drive: `gdrive:/path/of/folder?account=NAME`, whose account `metasync auth gdrive` has linked.

It holds data and does not vote: Google Drive finds a new file by its name late, and lets several have one name
(providers.md, section 2). Objects are files of one folder, each with its whole path for a name, so that no folder
below it can be there twice. Which folders an object would be in stands in its properties, by which lists ask.

Twins of an object (two devices stored it at once) are all its content. The oldest is read, a write goes to it, and a
delete takes all. Ids of files are kept beyond the process (`_shared.native_ids`): what this device stored or found
once it reads by id, at once and in one request.

The login sees what the same app made, and nothing else: all devices of a workspace are linked by one app.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from typing import TYPE_CHECKING, ClassVar, Final

from metasync.backends._shared.urls import byte_range, check_account
from metasync.backends.api import BackendUrl, Digest, DigestKind, Inventory, Listed, LogForm, Space
from metasync.backends.names import check_part, is_name, native_identity, split_folder, split_path
from metasync.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from metasync.backends.gdrive.files import Files

_PART: Final = re.compile(r"[^\0-\x1f\x7f/\\']{1,200}")


class GoogleDriveBackend:
    """A folder of an account. It makes no request before the first call."""

    scheme: ClassVar[str] = "gdrive"
    form: ClassVar[LogForm] = "none"
    form_reason: ClassVar[str] = "Google Drive finds new files by name late, and lets two files have one name"
    digest_kind: ClassVar[DigestKind] = "sha256"
    url_params: ClassVar[frozenset[str]] = frozenset({"account"})

    def __init__(self, path: str, files: Files) -> None:
        """`path`: the folder, from My Drive on."""
        self._where = f"gdrive:{path}"
        self._files = files

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where})"

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        parts = url.path.strip("/").split("/")
        sound = url.path.startswith("/") and all(_PART.fullmatch(p) and p == p.strip() for p in parts)
        if url.host or not sound:
            raise UsageError(
                f"not the path of a folder in a Google Drive: {(url.host + url.path)[:80]!r}",
                next_step="Write gdrive:/folder, with a plain name for the folder.",
            )
        check_account(url)

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> GoogleDriveBackend:
        """With `create_root` the folder is made, and those above it, if it is missing."""
        if importlib.util.find_spec("googleapiclient") is None:
            raise ModuleNotFoundError("no package google-api-python-client", name="google-api-python-client")
        from metasync.backends._shared.logins import open_login
        from metasync.backends._shared.logins.oauth import endpoint_of
        from metasync.backends._shared.native_ids import ids_of
        from metasync.backends.gdrive.client import Client
        from metasync.backends.gdrive.files import Files

        login, stand_in = open_login("gdrive", dict(url.params).get("account")), endpoint_of("gdrive")
        path = "/" + url.path.strip("/")
        backend = cls(path, Files(path, Client(login, stand_in), ids_of(login, stand_in, path)))
        if create_root:
            backend._files.make_root(backend._attempt("make", "."))
        return backend

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        """Looks, then makes. Of two that do so at once, who has the older file is told True: no vote rests on it."""
        attempt = self._attempt("create", path)
        if self._files.look(attempt, path) is not None:
            return False
        made = self._files.store(attempt, path, data)
        first = self._files.first(attempt, path, made)
        if first.id != made.id:
            self._files.remove(attempt, made.id)
        return first.id == made.id

    def put(self, path: str, data: bytes) -> None:
        """Bytes that are there already, by Google's own digest, are not sent."""
        attempt = self._attempt("put", path)
        there = self._files.look(attempt, path)
        if there is None or there.digest != hashlib.sha256(data).digest():
            self._files.keep(path, self._files.store(attempt, path, data, there.id if there else ""))

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        split_path(path)
        check_part(offset, length, max_bytes)
        if length == 0:
            self.stat(path)
            return b""
        is_part = bool(offset) or length is not None
        headers = {"range": byte_range(offset, length)} if is_part else {}
        most = max_bytes if length is None else min(length, max_bytes)
        attempt = self._attempt("get", path)
        data = self._files.content(attempt, path, most, headers)
        if not isinstance(data, bytes):
            raise UnreachableError(f"{attempt}: what answered is not Google Drive", next_step="Check the network.")
        return data

    def stat(self, path: str) -> int:
        return self._files.find(self._attempt("stat", path), path).size

    def list(self, path: str) -> tuple[Listed, ...]:
        depth = len(split_folder(path))
        found: dict[str, Listed] = {}
        for file in self._files.below(self._attempt("list", path or "."), path):
            parts = file.name.split("/")[depth:]
            if parts and is_name(parts[0]):
                found.setdefault(parts[0], Listed(parts[0], file.size if len(parts) == 1 else None))
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def delete(self, path: str) -> None:
        self._files.remove_all(self._attempt("delete", path), path)

    def identity(self) -> bytes:
        """By the folder's own id, which Google gives once."""
        return native_identity("gdrive", self._files.root(self._attempt("look at", "."), pin=True))

    def close(self) -> None:
        self._files.close()

    # Optional powers.

    def digest(self, path: str) -> Digest:
        found = self._files.find(self._attempt("digest", path), path)
        return Digest(found.size, found.digest)

    def space(self) -> Space:
        return self._files.space(self._attempt("measure", "."))

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A list of what is below, then the account's feed of changes (`Files.inventory`)."""
        split_path(path)
        return self._files.inventory(self._attempt("list", path), path, cursor)

    def _attempt(self, verb: str, path: str) -> str:
        return f"cannot {verb} {path} in {self._where}"
