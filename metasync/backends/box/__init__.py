"""A folder at Box: `box:/path/of/folder?account=NAME`, whose account `metasync auth box` has linked.

`create` is an upload, which Box refuses where the folder has a file of that name (providers.md, section 2). Names at
Box know no case; ours are small letters. A file is addressed by its id: a look whether a name is free tells whose it
is, and ids are kept beyond the process (`_shared.native_ids`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from metasync.backends._shared.by_id import BackendById
from metasync.backends._shared.race_probe import create_by, keeps_creates
from metasync.backends.api import Change, DigestKind, Inventory, LogForm, Rate
from metasync.backends.names import split_path

if TYPE_CHECKING:
    from metasync.backends._shared.native_ids import NativeIds
    from metasync.backends.box.files import Files


class BoxBackend(BackendById["Files"]):
    """A folder of an account. It makes no request before the first call."""

    scheme: ClassVar[str] = "box"
    form: ClassVar[LogForm] = "log"
    digest_kind: ClassVar[DigestKind] = "sha1"
    library: ClassVar[tuple[str, str]] = ("box_sdk_gen", "boxsdk")
    place: ClassVar[str] = "at Box"
    rates: ClassVar[tuple[Rate, ...]] = (
        Rate("requests", 1000, {"create": 1, "put": 2, "get": 2, "stat": 1, "digest": 1, "list": 2, "inventory": 3,
                                "watch": 2, "delete": 3, "sweep": 2, "space": 1, "identity": 1}),
        Rate("uploads", 240, {"create": 1, "put": 1}),
    )  # fmt: skip
    # Of a user, and what calls take once the ids of files are known (providers.md, section 3).

    def __init__(self, path: str, files: Files) -> None:
        from metasync.backends.box.feed import Feed

        super().__init__(path, files)
        self._feed = Feed(files.folder)

    @classmethod
    def files(cls, path: str, login: Any, stand_in: str, ids: NativeIds) -> Files:
        from metasync.backends.box.client import Client
        from metasync.backends.box.files import Files
        from metasync.backends.box.folders import Folders

        return Files(Folders(path, Client(login, stand_in), ids))

    # The calls of the contract.

    def create(self, path: str, data: bytes) -> bool:
        attempt = self._attempt("create", path)
        return create_by(lambda: self._files.create(attempt, path, data), self, path, data)

    def put(self, path: str, data: bytes) -> None:
        self._files.put(self._attempt("put", path), path, data)

    # Optional powers.

    def probe(self) -> LogForm:
        """The form, or "none" if Box broke `create`'s promise in a probe (`race_probe.keeps_creates`)."""
        return self.form if keeps_creates(self) else "none"

    def inventory(self, path: str, cursor: str) -> Inventory:
        """A list of what is below, then the account's feed of events (`Feed.inventory`)."""
        split_path(path)
        return self._feed.inventory(self._attempt("list", path), path, cursor)

    def watch(self, path: str, cursor: str, timeout_s: float) -> Change:
        """By Box's long poll, which tells of all that changes in the account. It takes 610 s, `timeout_s` or not."""
        split_path(path)
        return self._feed.watch(self._attempt("watch", path), cursor)

    def sweep(self, path: str) -> None:
        """Removes folders that hold nothing below `path`."""
        split_path(path)
        self._files.folder.sweep(self._attempt("sweep", path), path)
