"""An inventory from Graph's delta: all that lies below a folder, page by page, and then what changed.

Delta tells items by their ids and that of the folder they are in, never by path (docs of driveItem: delta). Ids are
kept beyond the process (`_shared.native_ids`); that of a folder which is missing is asked for. Of a file that was
deleted, accounts of work or school tell the id alone. Where a deletion cannot be told by name, or a whole folder is
gone, the cursor counts as too old: all is listed anew.

A cursor has the id of the folder, whether it is of the first listing, and path and query of Graph's next link.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from metasync.backends._shared.native_ids import NativeIds
from metasync.backends.api import Inventory, Item
from metasync.backends.onedrive.graph import Found, Graph, codes, found_in, is_absent, not_graph, object_of, rows_in
from metasync.backends.onedrive.names import own
from metasync.errors import BackendError, NotFoundError

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Answer

_PAGE_ITEMS: Final = 1000
_TOP: Final = "root"  # the name of a drive's own folder, which is in none
_DEPTH_MAX: Final = 16
_PAGES_MAX: Final = 2000
_ASKED_MAX: Final = 256  # folders asked for by id in one page: as many as packs are spread over
_SELECT: Final = f"$select=id,name,size,file,folder,deleted,parentReference,eTag&$top={_PAGE_ITEMS}"
_CURSOR: Final = re.compile(r"([01]) ([!-~]{1,200}) (/v1\.0/[!-~]*delta[!-~]*)")
_RESYNC: Final = frozenset({"resyncRequired", "resyncChangesApplyDifferences", "resyncChangesUploadDifferences"})


class Feed:
    """Pages of delta as pages of an inventory, for several threads."""

    def __init__(self, graph: Graph, ids: NativeIds) -> None:
        """`ids`: those of the store's folder; a folder in it is noted with a slash before its path."""
        self._graph = graph
        self._ids = ids

    def page(self, folder: str, path: str, cursor: str, attempt: str) -> Inventory | None:
        """A page of what lies below a folder of ours. `folder`: its address. None if it is not there.

        `NotFoundError`: the cursor is too old, or none.
        """
        if cursor:
            match = _CURSOR.fullmatch(cursor)
            if match is None:
                raise _too_old(attempt)
            is_first, top, target = match[1] == "1", match[2], match[3]
        else:
            answer = self._graph.ask("GET", f"{folder}?$select=id,folder,parentReference", attempt)
            if is_absent(answer):
                return None
            found = found_in(object_of(answer, attempt, 200))
            if found is None or not re.fullmatch("[!-~]{1,200}", found.item_id):
                raise not_graph(attempt, "a folder without an id")
            is_first, top, target = True, found.item_id, f"{folder}:/delta?{_SELECT}"
        answer = self._graph.ask("GET", target, attempt)
        if answer.status == 410 or is_absent(answer) or (cursor and _is_refused_cursor(answer)):
            raise _too_old(attempt)
        page = object_of(answer, attempt, 200)
        items = _Page(self._graph, self._ids, page, top, path, attempt).items(is_first=is_first)
        more = "@odata.nextLink" in page
        link = page.get("@odata.nextLink" if more else "@odata.deltaLink")
        following = self._graph.next_target(link, attempt)
        if more and following == target:
            raise not_graph(attempt, "a listing without an end")
        told = f"{int(is_first and more)} {top} {following}"
        if _CURSOR.fullmatch(told) is None:
            raise not_graph(attempt, "a mark of changes of another kind")
        return Inventory(items, told, more)

    def empty_folders(self, folder: str, attempt: str) -> list[str]:
        """Ids of the folders at and below an address that hold no file as far as delta tells, the deepest first."""
        answer = self._graph.ask("GET", f"{folder}?$select=id,folder,parentReference", attempt)
        if is_absent(answer):
            return []
        top = found_in(object_of(answer, attempt, 200))
        if top is None or not top.is_folder or not top.item_id:
            raise not_graph(attempt, "a folder without an id")
        parents, full, target = {top.item_id: ""}, set[str](), f"{folder}:/delta?{_SELECT}"
        for _ in range(_PAGES_MAX):
            page = object_of(self._graph.ask("GET", target, attempt), attempt, 200)
            for one in (found for found in rows_in(page, attempt) if not found.is_gone):
                if not one.is_folder:
                    full.add(one.parent_id)
                elif one.item_id and one.item_id != top.item_id:
                    parents[one.item_id] = one.parent_id
            if "@odata.nextLink" not in page:
                break
            target = self._graph.next_target(page["@odata.nextLink"], attempt)
        else:
            raise BackendError(f"{attempt}: the listing has no end", retryable=False)
        lines = {one: _line(one, parents) for one in parents}
        for item_id in full & {*parents}:
            full.update(lines[item_id])
        return sorted({*parents} - full, key=lambda one: -len(lines[one]))


class _Page:
    """What a page of delta tells, with paths."""

    def __init__(self, graph: Graph, ids: NativeIds, page: dict[str, Any], top: str, path: str, attempt: str) -> None:
        """`top`: the id of the folder that was asked for; `path`: its path below the store's."""
        self._graph, self._ids, self._attempt = graph, ids, attempt
        self._path = path
        self._told = [found for found in rows_in(page, attempt) if found.item_id != top]
        if not all(map(_is_whole, self._told)):
            raise not_graph(attempt, "an item without its id, folder or size")
        self._folders: dict[str, str | None] = {top: path}  # paths by id; None of what is not ours
        self._told_folders = {one.item_id: one for one in self._told if one.is_folder and not one.is_gone}
        self._asked = 0

    def items(self, *, is_first: bool) -> tuple[Item, ...]:
        """`is_first`: all is listed. Of what was deleted meanwhile nothing was told before, or the feed tells it."""
        items: dict[str, Item] = {}
        gone = [one for one in self._told if one.is_gone]
        for one in gone if not is_first else ():
            path = self._path_of_gone(one)
            if path and self._ids.get(path) in (one.item_id, None):  # not where a new file has the name
                items[path] = Item(self._below(path), None)
        found = []
        for one in self._told:
            if not one.is_gone and one.size is not None and (path := self._path_of(one)):
                found.append((path, one.item_id))
                items[path] = Item(self._below(path), one.size, one.digest, one.changed)
        for one in self._told_folders.values():
            self._folder(one.item_id, ask=False)
        folders = [(f"/{path}", item_id) for item_id, path in self._folders.items() if path is not None]
        self._ids.note([*folders, *found])
        for one in gone:
            if (kept := self._ids.path_of(one.item_id)) and self._ids.get(kept) == one.item_id:
                self._ids.forget(kept)
        return tuple(items.values())

    def _below(self, path: str) -> str:
        return path[len(self._path) + 1 :]

    def _path_of(self, one: Found) -> str:
        above = self._folder(one.parent_id)
        return f"{above}/{own(one.name)}" if above is not None and own(one.name) else ""

    def _path_of_gone(self, one: Found) -> str:
        """The path of a file that was deleted; "" where it does not matter. `NotFoundError` where it cannot be told."""
        kept = self._ids.path_of(one.item_id) or ""
        if one.is_folder or kept.startswith("/"):
            raise _too_old(self._attempt)
        if kept:
            return kept if kept.startswith(f"{self._path}/") else ""
        if not one.name:
            raise _too_old(self._attempt)
        if not own(one.name):
            return ""
        found = self._path_of(one)
        if not found:
            raise _too_old(self._attempt)
        return found

    def _folder(self, item_id: str, *, ask: bool = True) -> str | None:
        """The path of a folder below the top one; None if it is elsewhere, or not known and nobody is to be asked."""
        names: list[str] = []
        ids: list[str] = []
        while item_id not in self._folders:
            if not item_id or len(names) == _DEPTH_MAX:
                return None
            kept = self._ids.path_of(item_id) or ""
            if item_id not in self._told_folders and kept.startswith(f"/{self._path}/"):
                self._folders[item_id] = kept[1:]
                break
            if item_id not in self._told_folders and not ask:
                return None
            one = self._told_folders.get(item_id) or self._asked_for(item_id)
            ids.append(item_id)
            names.append(own(one.name) if one is not None else "")
            if one is None or not names[-1]:
                self._folders.update(dict.fromkeys(ids))
                return None
            item_id = one.parent_id
        path = self._folders[item_id]
        for one_id, name in zip(reversed(ids), reversed(names), strict=True):
            path = None if path is None else f"{path}/{name}"
            self._folders[one_id] = path
        return path

    def _asked_for(self, item_id: str) -> Found | None:
        if self._asked == _ASKED_MAX:
            raise BackendError(f"{self._attempt}: it tells files of too many folders that it does not tell")
        self._asked += 1
        target = f"/v1.0/me/drive/items/{quote(item_id, safe='!')}?$select=id,name,folder,parentReference"
        answer = self._graph.ask("GET", target, self._attempt)
        if is_absent(answer):
            return None
        found = found_in(object_of(answer, self._attempt, 200))
        return found if found is not None and found.item_id == item_id else None


def _is_whole(one: Found) -> bool:
    """Whether an item tells what it takes to name it: one that does not would count as missing."""
    if one.is_gone:
        return bool(one.item_id)
    if one.is_folder:
        return bool(one.item_id and (one.parent_id or one.name == _TOP))
    return bool(one.item_id and one.parent_id) and (one.size is not None or not own(one.name))


def _line(item_id: str, parents: dict[str, str]) -> list[str]:
    """A folder and those above it."""
    line = [item_id]
    while (above := parents[line[-1]]) in parents and len(line) < _DEPTH_MAX:
        line.append(above)
    return line


def _is_refused_cursor(answer: Answer) -> bool:
    return answer.status == 400 or bool(codes(answer) & _RESYNC)


def _too_old(attempt: str) -> NotFoundError:
    return NotFoundError(f"{attempt}: what changed since then is not known", next_step="List it anew.")
