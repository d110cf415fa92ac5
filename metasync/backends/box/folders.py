"""Folders of objects below one folder at Box, and what Box says of what lies in them.

An object's folder is made of the first four parts of its path, joined by commas; its name of the rest. So the 256
folders of a workspace's packs are one here, and a folder costs one request in the life of a workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from metasync.backends._shared.by_id import FolderById, on_all_pages
from metasync.backends._shared.native_ids import NativeIds
from metasync.backends.box.client import Client, TakenError
from metasync.backends.names import is_name, split_path
from metasync.errors import NotFoundError, RefusedError, UnreachableError

NAME_CHARS_MAX: Final = 255
DEPTH: Final = 4  # parts of a path that make a folder
PAGE_NAMES: Final = 1000  # as many as Box gives at once
_SITE: Final = "box.com"
FIELDS: Final = ["id", "type", "name", "size", "sha1", "etag", "parent"]
BETWEEN: Final = ","  # in no name of ours
ID: Final = re.compile(r"[0-9]{1,40}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")
_TYPES: Final = frozenset({"file", "folder", "web_link"})
_MARK: Final = re.compile(r"[!-~]{1,2000}")


class File(NamedTuple):
    """A file as Box tells it. `parent`: the id of its folder; `digest`: its SHA-1, None where it has none."""

    id: str
    name: str
    parent: str
    size: int
    digest: bytes | None
    mark: str


class Folders(FolderById[Client]):
    """The folders of objects, for several threads. `attempt` begins the messages of errors."""

    def __init__(self, path: str, client: Client, ids: NativeIds) -> None:
        super().__init__(path, client, ids, ID)

    # Folders.

    def all(self, attempt: str) -> list[tuple[str, str]]:
        """All folders of objects, by name and id."""
        root = self.root(attempt)
        entries = on_all_pages(attempt, _SITE, lambda marker: self.entries(attempt, root, marker))
        ours = (e for e in entries if type_of(e) == "folder" and _is_ours(e.name))
        found = {str(e.name): id_of(attempt, e.id) for e in ours}
        self.ids.note((f"/{name}", one) for name, one in found.items())
        return sorted(found.items())

    def folder(self, attempt: str, path: str, *, make: bool) -> str | None:
        """The id of the folder that an object is in; None if there is none and none is to be made."""
        name = place(attempt, path)[0]
        if not name:
            return self.root(attempt)
        kept = self.ids.get(f"/{name}")
        if kept is not None:
            return kept
        if not make:
            return dict(self.all(attempt)).get(name)
        found = self.make(attempt, name, self.root(attempt))
        self.ids.note([(f"/{name}", found)])
        return found

    def make(self, attempt: str, name: str, parent: str) -> str:
        """A new folder, or the one that is there."""
        from box_sdk_gen import CreateFolderParent

        try:
            made = self.client.ask(
                attempt, lambda box: box.folders.create_folder(name, CreateFolderParent(id=parent), fields=["id"]).id
            )
            return id_of(attempt, made)
        except TakenError as taken:
            if taken.item.get("type") == "folder":
                return id_of(attempt, taken.item.get("id"))
            raise

    def lost(self, attempt: str, path: str, *, last: bool) -> None:
        """A folder that is kept is not there any more: what is known of it is forgotten."""
        self.check_root(attempt, now=True)
        if last:
            raise UnreachableError(f"{attempt}: its folder went away meanwhile", next_step="Try again.")
        self.ids.forget(f"/{place(attempt, path)[0]}")

    def _walk(self, attempt: str, *, make: bool) -> str:
        at = "0"
        for part in self._path.strip("/").split("/"):
            if make:
                at = self.make(attempt, part, at)
                continue
            item = self.taken(attempt, part, at)
            if item is None or item.get("type") != "folder":
                raise self._no_root(attempt)
            at = id_of(attempt, item.get("id"))
        return at

    def _is_there(self, attempt: str, root: str) -> bool:
        self.client.ask(attempt, lambda box: box.folders.get_folder_by_id(root, fields=["id"]))
        return True

    def _no_root(self, attempt: str) -> UnreachableError:
        return UnreachableError(
            f"{attempt}: there is no folder {self._path} in this Box",
            next_step="Check the URL's path. Only init and `backend add` make a folder that is missing.",
        )

    def taken(self, attempt: str, name: str, folder: str) -> Any:
        """What has a name in a folder; None if it is free."""
        from box_sdk_gen import PreflightFileUploadCheckParent

        try:
            self.client.ask(
                attempt,
                lambda box: box.uploads.preflight_file_upload_check(
                    name=name, size=0, parent=PreflightFileUploadCheckParent(id=folder)
                ),
            )
        except TakenError as taken:
            if str(taken.item.get("type")) not in _TYPES:
                raise other(attempt) from None  # it would count as free
            self.seen()
            return taken.item
        self.seen()
        return None

    def path_of(self, file: File) -> str | None:
        """The object that a file is, by its name and its folder; None if it is none, or the folder is not known."""
        parts = file.name.split(BETWEEN)
        if not all(map(is_name, parts)):
            return None
        if file.parent == self._root.known:
            return file.name if len(parts) == 1 else None
        folder = self.ids.path_of(file.parent)
        if folder is None or not folder.startswith("/"):
            return None
        return "/".join([*folder[1:].split(BETWEEN), *parts])

    def _path_of_new(self, attempt: str, file: File) -> str | None:
        """The same of a file in a folder that another device may have made."""
        if file.parent in {one for _, one in self.all(attempt)}:
            return self.path_of(file)
        return None

    def items(self, attempt: str, folder: str) -> Iterator[File]:
        return on_all_pages(attempt, _SITE, lambda marker: self.page(attempt, folder, marker))

    def page(self, attempt: str, folder: str, marker: str) -> tuple[list[File], str]:
        """Files directly in a folder, and the mark of the next page. Ids are kept."""
        entries, following = self.entries(attempt, folder, marker)
        files = [file_of(attempt, entry) for entry in entries if type_of(entry) == "file"]
        files = [file._replace(parent=folder) for file in files]
        self.ids.note((whole, file.id) for file in files if (whole := self.path_of(file)) is not None)
        return files, following

    def entries(self, attempt: str, folder: str, marker: str) -> tuple[list[Any], str]:
        try:
            entries, following = self.client.ask(
                attempt,
                lambda box: _page_of(
                    box.folders.get_folder_items(
                        folder, fields=FIELDS, usemarker=True, marker=marker or None, limit=PAGE_NAMES
                    )
                ),
            )
        except NotFoundError:
            if folder == self._root.known:
                self.root_gone(attempt)
            return [], ""
        self.seen()
        return entries, text_of(attempt, following) if following else ""

    def below(self, attempt: str, path: str) -> Iterator[tuple[str, int | None]]:
        """Paths and sizes of the objects below a folder of ours ("" is the root); a folder without objects as None."""
        wanted = tuple(path.split("/")) if path else ()
        if len(wanted) >= DEPTH:
            folder = self.folder(attempt, f"{path}/x", make=False)
            yield from self._in(attempt, folder, path) if folder is not None else ()
            return
        for name, folder_id in self.all(attempt):
            parts = tuple(name.split(BETWEEN))
            if parts[: len(wanted)] != wanted:
                continue
            if parts == wanted:
                yield from self._in(attempt, folder_id, path)
            else:
                yield "/".join(parts), None
        if not wanted:
            yield from self._in(attempt, self.root(attempt), "")

    def _in(self, attempt: str, folder: str, path: str) -> Iterator[tuple[str, int | None]]:
        for file in self.items(attempt, folder):
            whole = self.path_of(file)
            if whole is not None and (not path or whole.startswith(f"{path}/")):
                yield whole, file.size

    def sweep(self, attempt: str, path: str) -> None:
        """Removes the folders of objects below `path` that hold nothing."""
        for name, folder_id in self.all(attempt):
            below = f"{name.replace(BETWEEN, '/')}/".startswith(f"{path}/")
            if below and not self.entries(attempt, folder_id, "")[0] and self._is_removed(attempt, folder_id):
                self.ids.forget(f"/{name}")

    def _is_removed(self, attempt: str, folder_id: str) -> bool:
        """Removes a folder. False: something came meanwhile, or it is gone."""
        try:
            self.client.ask(attempt, lambda box: box.folders.delete_folder_by_id(folder_id))
        except (NotFoundError, RefusedError):
            return False
        return True

    def path_in_new(self, attempt: str, file: File) -> str | None:
        """As `path_of`, of a file in a folder that another device may have made."""
        known = {folder_id for _, folder_id in self.all(attempt)}
        return self.path_of(file) if file.parent in known else None


def place(attempt: str, path: str) -> tuple[str, str]:
    """Names of an object's folder ("" is the root) and of its file."""
    parts = split_path(path)
    above = min(DEPTH, len(parts) - 1)
    folder, name = BETWEEN.join(parts[:above]), BETWEEN.join(parts[above:])
    if max(len(folder), len(name)) > NAME_CHARS_MAX:
        raise RefusedError(f"{attempt}: its name is longer than Box takes")
    return folder, name


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and all(map(is_name, name.split(BETWEEN)))


def is_under(folder: str, path: str) -> bool:
    """Whether a folder can hold objects below `path`: it lies there, or `path` is deeper than folders go."""
    parts, wanted = folder.split(BETWEEN), path.split("/")
    common = min(len(parts), len(wanted))
    return parts[:common] == wanted[:common] and (len(parts) >= len(wanted) or len(parts) == DEPTH)


def rows_of(told: Any) -> list[Any]:
    """The rows of a list of Box's. `TypeError` or `LookupError` for what is none: the library reads it as empty."""
    rows: list[Any] = told.entries
    if not isinstance(told.raw_data["entries"], list) or not isinstance(rows, list):
        raise TypeError
    return rows


def _page_of(told: Any) -> tuple[list[Any], Any]:
    """The rows of a page and its mark. `TypeError` for a row without id or kind: the library makes something up."""
    rows = rows_of(told)
    if not all(row["type"] in _TYPES and ID.fullmatch(str(row["id"])) for row in told.raw_data["entries"]):
        raise TypeError
    return rows, told.next_marker


def type_of(entry: Any) -> str:
    kind = getattr(entry, "type", "")
    return str(getattr(kind, "value", kind))


def file_of(attempt: str, told: Any) -> File:
    """A file as Box tells it, checked. `UnreachableError` for one without an id, a name or a size."""
    sha1, parent = str(getattr(told, "sha_1", None) or ""), getattr(told, "parent", None)
    size, name = getattr(told, "size", None), getattr(told, "name", None)
    if type(size) is not int or size < 0 or not isinstance(name, str):
        raise other(attempt)
    return File(
        id_of(attempt, getattr(told, "id", None)),
        name,
        str(getattr(parent, "id", None) or ""),
        size,
        bytes.fromhex(sha1) if _SHA1.fullmatch(sha1) else None,
        str(getattr(told, "etag", None) or "")[:64],
    )


def id_of(attempt: str, value: Any) -> str:
    if ID.fullmatch(str(value)) is None:
        raise other(attempt)
    return str(value)


def text_of(attempt: str, value: Any) -> str:
    """A mark of a page or of the feed."""
    if not isinstance(value, str | int) or _MARK.fullmatch(str(value)) is None:
        raise other(attempt)
    return str(value)


def other(attempt: str) -> UnreachableError:
    return UnreachableError(f"{attempt}: what answered is not Box", next_step="Check the network.")
