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
from typing import TYPE_CHECKING, Any, ClassVar, Final

from metasync.backends._shared.by_id import BackendById
from metasync.backends.api import DigestKind, Inventory, LogForm, Rate
from metasync.backends.names import split_path

if TYPE_CHECKING:
    from metasync.backends._shared.native_ids import NativeIds
    from metasync.backends.gdrive.files import Files


UNITS: Final = 100  # a request counts for so many here: what each costs at Google is not known, and few cost more
REQUESTS: Final = {
    "create": 3, "put": 2, "get": 1, "stat": 1, "digest": 1, "list": 1, "inventory": 2, "delete": 3, "space": 1,
    "identity": 1,
}  # fmt: skip


class GoogleDriveBackend(BackendById["Files"]):
    """A folder of an account. It makes no request before the first call."""

    scheme: ClassVar[str] = "gdrive"
    form: ClassVar[LogForm] = "none"
    form_reason: ClassVar[str] = "Google Drive finds new files by name late, and lets two files have one name"
    digest_kind: ClassVar[DigestKind] = "sha256"
    library: ClassVar[tuple[str, str]] = ("googleapiclient", "google-api-python-client")
    place: ClassVar[str] = "in a Google Drive"
    no_chars: ClassVar[str] = "'"  # queries quote by it
    rates: ClassVar[tuple[Rate, ...]] = (
        Rate("units", 325_000, {kind: UNITS * requests for kind, requests in REQUESTS.items()}),
    )  # of a user (providers.md, section 3)

    @classmethod
    def files(cls, path: str, login: Any, stand_in: str, ids: NativeIds) -> Files:
        from metasync.backends.gdrive.client import Client
        from metasync.backends.gdrive.files import Files

        return Files(path, Client(login, stand_in), ids)

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

    # Optional powers.

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A list of what is below, then the account's feed of changes (`Files.inventory`)."""
        split_path(path)
        return self._files.inventory(self._attempt("list", path), path, cursor)
