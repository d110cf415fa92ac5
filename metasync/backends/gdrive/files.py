"""Files of one folder in a Google Drive, by the paths of objects: searches, ids that are kept, twins, and the feed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from metasync.backends._shared.by_id import FolderById, on_all_pages
from metasync.backends._shared.native_ids import NativeIds
from metasync.backends.api import Inventory, Item, Space
from metasync.backends.gdrive.client import Client, upload
from metasync.backends.names import is_name, split_folder, split_path
from metasync.errors import BackendError, NotFoundError, RefusedError, UnreachableError

WHOLE_BYTES_MAX: Final = 5 << 20  # in one request with its metadata, as Google's documentation has it
UPLOAD_BYTES_MAX: Final = 5 << 40
PAGE_NAMES: Final = 1000  # as many as Google gives at once
_SITE: Final = "drive.google.com"
_FOLDER: Final = "application/vnd.google-apps.folder"
_GOOGLE_TYPE: Final = "application/vnd.google-apps."  # of folders and of Google's own documents, which have no size
_KINDS: Final = {"files": "drive#fileList", "changes": "drive#changeList"}  # fixed words of Google's for its lists
_FIELDS: Final = "id,name,size,sha256Checksum,createdTime,version,trashed,parents,mimeType"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_TOKEN: Final = re.compile(r"[!-~]{1,4000}")
_MARK_CHARS_MAX: Final = 64
_PROPERTY_CHARS_MAX: Final = 120  # Google takes 124 bytes for a name and its value
_FOLDERS_MAX: Final = 16  # of Google's 30 properties of an app


class File(NamedTuple):
    """A file as Google tells it. `digest`: SHA-256, None where it has none. `made`: when. `mark`: of its last write."""

    id: str
    name: str
    size: int
    digest: bytes | None
    made: str
    mark: str

    @property
    def age(self) -> tuple[str, str]:
        """Twins have an order, the same for all devices: the oldest first."""
        return self.made, self.id


class Files(FolderById[Client]):
    """The files of a folder, for several threads. `attempt` begins the messages of errors."""

    def __init__(self, path: str, client: Client, ids: NativeIds) -> None:
        super().__init__(path, client, ids, _ID)

    @property
    def folder(self) -> Files:
        return self

    # By path.

    def look(self, attempt: str, path: str) -> File | None:
        """The file of an object, the oldest of its twins: by the id that is kept, else by name."""
        kept = self.ids.get(path)
        if kept is not None:
            try:
                told = self.client.ask(attempt, lambda api: api.files().get(fileId=kept, fields=_FIELDS))
                if self._is_ours(attempt, told) and told.get("name") == path:
                    self.seen()
                    return _file_of(attempt, told)
            except NotFoundError:
                pass
            self.ids.forget(path)
        found = min(self._search(attempt, path), key=lambda file: file.age, default=None)
        if found is not None:
            self.keep(path, found)
        return found

    def find(self, attempt: str, path: str) -> File:
        """The same. `NotFoundError` if there is none, `UnreachableError` if there is no folder either."""
        found = self.look(attempt, path)
        if found is None:
            self.check_root(attempt)
            raise NotFoundError(f"{attempt}: it is not there")
        return found

    def first(self, attempt: str, path: str, made: File) -> File:
        """Of the twins of an object, `made` among them, the one that all devices read. It is kept."""
        first = min([made, *self._search(attempt, path)], key=lambda file: file.age)
        self.keep(path, first)
        return first

    def keep(self, path: str, file: File) -> None:
        self.ids.note([(path, file.id)])

    def part(self, attempt: str, path: str, most: int, range_: str | None) -> bytes:
        data = self._content(attempt, path, most, {"range": range_} if range_ else {})
        if not isinstance(data, bytes):
            raise _other(attempt)
        return data

    def listed(self, attempt: str, path: str) -> Iterator[tuple[str, int | None]]:
        return ((file.name, file.size) for file in self.below(attempt, path))

    def _content(self, attempt: str, path: str, most: int, headers: Mapping[str, str]) -> Any:
        """Bytes of an object: `headers` may ask for a part."""

        def asked(file_id: str) -> Any:
            return self.client.ask(
                attempt, lambda api: api.files().get_media(fileId=file_id), body_bytes_max=most, headers=headers
            )

        kept = self.ids.get(path)
        if kept is not None:
            try:
                found = asked(kept)
                self.seen()
                return found
            except NotFoundError:
                self.ids.forget(path)
        return asked(self.find(attempt, path).id)

    def store(self, attempt: str, path: str, data: bytes, file_id: str = "") -> File:
        """Stores an object's bytes in a new file, or in one that is there; checks what Google says of them."""
        if len(data) > UPLOAD_BYTES_MAX:
            raise RefusedError(f"{attempt}: an object of {len(data)} bytes is too large")
        parts, digest = split_path(path), hashlib.sha256(data).digest()
        folders = dict(_property(parts[:n]) for n in range(1, min(len(parts), _FOLDERS_MAX)))
        body = {
            "name": path,
            "parents": [self.root(attempt)],
            "mimeType": "application/octet-stream",
            "appProperties": folders,
        }

        def request(api: Any) -> Any:
            media = upload(bytes(data), WHOLE_BYTES_MAX)
            if file_id:
                return api.files().update(fileId=file_id, media_body=media, fields=_FIELDS)
            return api.files().create(body=body, media_body=media, fields=_FIELDS)

        try:
            file = _file_of(attempt, self.client.ask(attempt, request))
        except NotFoundError:
            self.ids.forget(path)
            self.check_root(attempt)
            raise UnreachableError(f"{attempt}: the file went away meanwhile", next_step="Try again.") from None
        if file.size != len(data) or file.digest not in (None, digest):
            raise BackendError(f"{attempt}: Google Drive says that it has other bytes", next_step="Try again.")
        self.seen()
        return file

    def remove(self, attempt: str, file_id: str) -> None:
        """For good: what goes to the bin keeps its space for a month."""
        try:
            self.client.ask(attempt, lambda api: api.files().delete(fileId=file_id))
        except NotFoundError:
            return

    def delete(self, attempt: str, path: str) -> None:
        """All twins of an object. The id that is kept is looked up first: it may be another object's."""
        known = self.look(attempt, path)
        gone = {file.id for file in (*self._search(attempt, path), known) if file is not None}
        for file_id in gone:
            self.remove(attempt, file_id)
        self.ids.forget(path)

    # Many at once.

    def below(self, attempt: str, path: str) -> Iterator[File]:
        """All files below a folder of ours; "" is the root."""
        return on_all_pages(attempt, _SITE, lambda token: self._page(attempt, path, token))

    def inventory(self, attempt: str, path: str, cursor: str) -> Inventory:
        """A page of a list, or of the feed of changes.

        The feed tells a file that is gone by its id alone. Which one it was stands in the ids that are kept here: a
        cursor holds for one life of these, and else begins anew.
        """
        kind, mark, begun, token = (cursor.split(" ") + [""] * 4)[:4] if cursor else ("list", self.ids.mark, "", "")
        known = kind in ("list", "feed") and mark == self.ids.mark and (not cursor or _TOKEN.fullmatch(begun))
        if not known:
            raise NotFoundError(f"{attempt}: this cursor is too old")
        if kind == "feed":
            return self._changes(attempt, path, begun)
        if not cursor:
            begun = _text(attempt, self.client.ask(attempt, lambda api: api.changes().getStartPageToken()))
        files, token = self._page(attempt, path, token)
        items = tuple(_item(file, path) for file in files)
        if token:
            return Inventory(items, f"list {mark} {begun} {token}", True)
        return Inventory(items, f"feed {mark} {begun}", False)

    def space(self, attempt: str) -> Space:
        told = self.client.ask(attempt, lambda api: api.about().get(fields="storageQuota(limit,usage)"))
        quota = told.get("storageQuota") if isinstance(told, dict) else None
        if not isinstance(quota, dict) or "limit" not in quota:
            return Space(None, None)
        total = _number(attempt, quota["limit"])
        return Space(max(0, total - _number(attempt, quota.get("usage", 0))), total)

    def _changes(self, attempt: str, path: str, token: str) -> Inventory:
        told = self.client.ask(
            attempt,
            lambda api: api.changes().list(
                pageToken=token,
                pageSize=PAGE_NAMES,
                includeRemoved=True,
                fields=f"kind,nextPageToken,newStartPageToken,changes(fileId,removed,file({_FIELDS}))",
            ),
        )
        items: list[Item] = []
        for one in _rows(attempt, told, "changes"):
            file, is_removed = one.get("file"), one.get("removed", False)
            is_told = isinstance(file, dict) or is_removed or "fileId" not in one  # of a drive there is no file
            if not isinstance(is_removed, bool) or not is_told:
                raise _other(attempt)  # it would count as gone
            if is_removed or not self._is_ours(attempt, file):
                name = self.ids.path_of(str(one.get("fileId", "")))
                if name is not None and _is_below(name, path) and self.ids.get(name) in (one["fileId"], None):
                    items.append(Item(name[len(path) + 1 :], None))  # where it had a twin, that one stands for it
            elif file is not None and file.get("mimeType") != _FOLDER and _is_below(str(file.get("name", "")), path):
                changed = _file_of(attempt, file)
                self.keep(changed.name, changed)
                items.append(_item(changed, path))
        following = told.get("nextPageToken")
        mark = _text(attempt, told, "nextPageToken" if following else "newStartPageToken")
        return Inventory(tuple(items), f"feed {self.ids.mark} {mark}", bool(following))

    def _page(self, attempt: str, path: str, token: str) -> tuple[list[File], str]:
        """Files below a folder, and the mark of the next page. Their ids are kept."""
        below = ""
        if parts := split_folder(path):
            key, value = _property(parts)
            below = f" and appProperties has {{ key='{key}' and value='{value}' }}"
        files, token = self._asked(attempt, f"'{self.root(attempt)}' in parents and trashed = false{below}", token)
        ours = [file for file in files if _is_below(file.name, path)]
        self.ids.note((file.name, file.id) for file in sorted(ours, key=lambda file: file.age, reverse=True))
        if ours:
            self.seen()
        else:
            self.check_root(attempt)
        return ours, token

    def _search(self, attempt: str, path: str) -> list[File]:
        """All twins of an object."""
        split_path(path)
        found = self._all(attempt, f"name = '{path}' and '{self.root(attempt)}' in parents and trashed = false")
        return [file for file in found if file.name == path]

    def _all(self, attempt: str, query: str) -> Iterator[File]:
        return on_all_pages(attempt, _SITE, lambda token: self._asked(attempt, query, token))

    def _asked(self, attempt: str, query: str, token: str) -> tuple[list[File], str]:
        told = self.client.ask(
            attempt,
            lambda api: api.files().list(
                q=query, fields=f"kind,nextPageToken,files({_FIELDS})", pageSize=PAGE_NAMES, pageToken=token or None
            ),
        )
        rows = [_file_of(attempt, one) for one in _rows(attempt, told, "files")]
        return rows, _text(attempt, told, "nextPageToken") if told.get("nextPageToken") else ""

    def _is_ours(self, attempt: str, told: Any) -> bool:
        """Whether a file that Google tells of is in the folder, and not in the bin.

        A file without folders is in none that the account sees.
        """
        if not isinstance(told, dict):
            return False
        parents, trashed = told.get("parents", []), told.get("trashed", False)
        if not isinstance(parents, list) or not isinstance(trashed, bool):
            raise _other(attempt)
        return not trashed and self.root(attempt) in parents

    # The folder.

    def _walk(self, attempt: str, *, make: bool) -> str:
        """The folder at the path, from My Drive on. Of twins the oldest: so all devices take the same."""
        at = "root"
        for part in self._path.strip("/").split("/"):
            query = f"name = '{part}' and mimeType = '{_FOLDER}' and '{at}' in parents and trashed = false"
            found = list(self._all(attempt, query))
            if not found and make:
                body = {"name": part, "mimeType": _FOLDER, "parents": [at]}
                found = [self._make_folder(attempt, body), *self._all(attempt, query)]
            if not found:
                raise self._no_root(attempt)
            at = min(found, key=lambda file: file.age).id
        return at

    def _make_folder(self, attempt: str, body: Mapping[str, Any]) -> File:
        return _file_of(attempt, self.client.ask(attempt, lambda api: api.files().create(body=body, fields=_FIELDS)))

    def _is_there(self, attempt: str, root: str) -> bool:
        told = self.client.ask(attempt, lambda api: api.files().get(fileId=root, fields="id,trashed"))
        return isinstance(told, dict) and not told.get("trashed")

    def _no_root(self, attempt: str) -> UnreachableError:
        return UnreachableError(
            f"{attempt}: there is no folder {self._path} in this Google Drive that this app has made",
            next_step="Check the URL's path, and that the account is linked by the app that made the folder."
            " Only init and `backend add` make a folder that is missing.",
        )


def _is_below(name: str, path: str) -> bool:
    """Whether a file's name is the path of an object below a folder of ours."""
    return all(map(is_name, name.split("/"))) and (not path or name.startswith(f"{path}/"))


def _item(file: File, path: str) -> Item:
    return Item(file.name[len(path) + 1 :], file.size, file.digest, file.mark)


def _property(folder: tuple[str, ...]) -> tuple[str, str]:
    """What all files below a folder have: its depth, and its path or the hash of that."""
    key, value = str(len(folder)), "/".join(folder)
    if len(key) + len(value) > _PROPERTY_CHARS_MAX:
        value = hashlib.sha256(value.encode()).hexdigest()
    return key, value


def _file_of(attempt: str, told: Any) -> File:
    """A file as Google tells it, checked. `UnreachableError` for one without an id, a name, an age or a size."""
    if not isinstance(told, dict) or _ID.fullmatch(str(told.get("id", ""))) is None:
        raise _other(attempt)
    name, made, kind = (told.get(key) for key in ("name", "createdTime", "mimeType"))
    if not isinstance(name, str) or not isinstance(made, str) or not isinstance(kind, str):
        raise _other(attempt)
    digest = str(told.get("sha256Checksum", ""))
    return File(
        str(told["id"]),
        name,
        _number(attempt, told.get("size", 0 if kind.startswith(_GOOGLE_TYPE) else None)),
        bytes.fromhex(digest) if _DIGEST.fullmatch(digest) else None,
        made[:_MARK_CHARS_MAX],
        str(told.get("version", ""))[:_MARK_CHARS_MAX],
    )


def _rows(attempt: str, told: Any, name: str) -> list[dict[str, Any]]:
    """The rows of a list of Google's, which it may leave out where there are none."""
    if not isinstance(told, dict) or told.get("kind") != _KINDS[name]:
        raise _other(attempt)
    rows = told.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _other(attempt)
    return rows


def _text(attempt: str, told: Any, name: str = "startPageToken") -> str:
    """A mark of a page or of the feed."""
    value = told.get(name) if isinstance(told, dict) else None
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:
        raise _other(attempt)
    return value


def _number(attempt: str, value: Any) -> int:
    if _NUMBER.fullmatch(str(value)) is None:
        raise _other(attempt)
    return int(str(value))


def _other(attempt: str) -> UnreachableError:
    return UnreachableError(f"{attempt}: what answered is not Google Drive", next_step="Check the network.")
