"""An inventory from Graph's delta: all that lies below a folder, page by page, and then what changed.

Delta tells items by their ids and that of the folder they are in, never by path (docs of driveItem: delta). The ids of
folders are kept as they come by, and one that is missing is asked for. Of a file that was deleted, accounts of work or
school tell the id alone, so the ids of files are kept, too, some of them. Where a deletion cannot be told by name, or a
whole folder is gone, the cursor counts as too old: all is listed anew. Nothing of this is stored, so after a restart
deletions in such accounts cost a whole listing.

A cursor has the id of the folder, whether it is of the first listing, and path and query of Graph's next link.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from metasync.backends.api import Inventory, Item
from metasync.backends.onedrive.graph import Found, Graph, codes, found_in, is_absent, not_graph, object_of
from metasync.backends.onedrive.names import own
from metasync.errors import BackendError, NotFoundError
from metasync.runtime.sizes import KNOWN_FOLDERS_MAX

if TYPE_CHECKING:
    from metasync.backends._shared.wire import Answer

_PAGE_ITEMS: Final = 1000
_DEPTH_MAX: Final = 16
_ASKED_MAX: Final = 256  # folders asked for by id in one page: as many as packs are spread over
_FILES_MAX: Final = 1 << 15  # ids of files that are kept: 8 MB; beyond this they start anew
_SELECT: Final = f"$select=id,name,size,file,folder,deleted,parentReference,eTag&$top={_PAGE_ITEMS}"
_CURSOR: Final = re.compile(r"([01]) ([!-~]{1,200}) (/v1\.0/[!-~]*delta[!-~]*)")
_RESYNC: Final = frozenset({"resyncRequired", "resyncChangesApplyDifferences", "resyncChangesUploadDifferences"})


class Feed:
    """Pages of delta as pages of an inventory. Thread-safe."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._folders: dict[str, tuple[str, str]] = {}  # by id: that of the folder above, and the name
        self._files: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def page(self, folder: str, cursor: str, attempt: str) -> Inventory | None:
        """A page of what lies below a folder. `folder`: its address. None if it is not there.

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
        items = self._items(page, top, is_first, attempt)
        more = "@odata.nextLink" in page
        link = page.get("@odata.nextLink" if more else "@odata.deltaLink")
        following = self._graph.next_target(link, attempt)
        if more and following == target:
            raise not_graph(attempt, "a listing without an end")
        told = f"{int(is_first and more)} {top} {following}"
        if _CURSOR.fullmatch(told) is None:
            raise not_graph(attempt, "a mark of changes of another kind")
        return Inventory(items, told, more)

    def _items(self, page: dict[str, Any], top: str, is_first: bool, attempt: str) -> tuple[Item, ...]:
        rows = page.get("value")
        if not isinstance(rows, list):
            raise not_graph(attempt, "a page without items")
        told = [found for row in rows if (found := found_in(row)) is not None and found.item_id not in ("", top)]
        with self._lock:
            for one in told:
                if one.is_folder and not one.is_gone and one.parent_id:
                    self._know(self._folders, KNOWN_FOLDERS_MAX, one)
        asked = [0]
        items: dict[str, Item] = {}
        for one in told:
            if one.is_gone:
                path = self._path_of_gone(one, top, is_first, asked, attempt)
                if path:
                    items[path] = Item(path, None)
        for one in told:
            if not one.is_gone and one.size is not None and (name := own(one.name)):
                above = self._path(one.parent_id, top, asked, attempt)
                if above is not None:
                    with self._lock:
                        self._know(self._files, _FILES_MAX, one)
                    path = f"{above}{name}"
                    items[path] = Item(path, one.size, one.digest, one.changed)
        return tuple(items.values())

    def _path_of_gone(self, one: Found, top: str, is_first: bool, asked: list[int], attempt: str) -> str:
        """The path of a file that was deleted; "" where it does not matter. `NotFoundError` where it cannot be told."""
        with self._lock:
            parent, name = self._files.pop(one.item_id, ("", "")) if not one.is_folder else ("", "")
            was_folder = one.is_folder or self._folders.pop(one.item_id, None) is not None
        if is_first:  # of what was deleted while all is listed nothing was told before, or the feed tells it
            return ""
        if was_folder:
            raise _too_old(attempt)
        parent, name = (parent, name) if name else (one.parent_id, one.name)
        if not name:
            raise _too_old(attempt)
        if not own(name):
            return ""
        above = self._path(parent, top, asked, attempt)
        if above is None:
            raise _too_old(attempt)
        return f"{above}{own(name)}"

    def _path(self, item_id: str, top: str, asked: list[int], attempt: str) -> str | None:
        """The path of a folder below the top one, with a slash at its end; "" for the top. None if it is elsewhere."""
        names: list[str] = []
        while item_id != top:
            if not item_id or len(names) == _DEPTH_MAX:
                return None
            with self._lock:
                known = self._folders.get(item_id)
            if known is None:
                if asked[0] == _ASKED_MAX:
                    raise BackendError(f"{attempt}: it tells files of too many folders that it does not tell")
                asked[0] += 1
                target = f"/v1.0/me/drive/items/{quote(item_id, safe='!')}?$select=id,name,folder,parentReference"
                answer = self._graph.ask("GET", target, attempt)
                if is_absent(answer):
                    return None
                found = found_in(object_of(answer, attempt, 200))
                if found is None or found.item_id != item_id:
                    return None
                known = found.parent_id, found.name
                with self._lock:
                    self._know(self._folders, KNOWN_FOLDERS_MAX, found)
            item_id, name = known[0], own(known[1])
            if not name:
                return None
            names.append(name)
        return "".join(f"{name}/" for name in reversed(names))

    @staticmethod
    def _know(known: dict[str, tuple[str, str]], most: int, one: Found) -> None:
        if len(known) >= most:
            known.clear()
        known[one.item_id] = (one.parent_id, one.name)


def _is_refused_cursor(answer: Answer) -> bool:
    return answer.status == 400 or bool(codes(answer) & _RESYNC)


def _too_old(attempt: str) -> NotFoundError:
    return NotFoundError(f"{attempt}: what changed since then is not known", next_step="List it anew.")
