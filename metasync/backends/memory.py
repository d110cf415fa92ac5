"""Stores in this process's memory, by name (`memory://name`): for tests and for examples of the library."""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_right
from typing import ClassVar, Final

from metasync.backends.api import BackendUrl, Inventory, Item, Listed, LogForm
from metasync.backends.names import check_part, count_bytes, native_identity, split_folder, split_path
from metasync.errors import NotFoundError, UnreachableError, UsageError

PAGE_ITEMS: Final = 1000
CHANGES_MAX: Final = 1 << 14  # paths that a feed goes back at least; a cursor from before is too old


class MemoryStore:
    """The objects, and per folder what stands directly below it. Guarded by `lock`.

    `changes`: the paths that were written or removed last; `forgotten`: how many there were before these.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.folders: dict[str, dict[str, int | None]] = {"": {}}
        self.token = secrets.token_hex(16)
        self.changes: list[str] = []
        self.forgotten = 0
        self._sorted: tuple[int, list[str]] = (-1, [])  # all paths, after how many changes

    def sorted_paths(self) -> list[str]:
        """All paths. A listing without writes beside it sorts them once."""
        count = self.forgotten + len(self.changes)
        if self._sorted[0] != count:
            self._sorted = count, sorted(self.objects)
        return self._sorted[1]

    def keep(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self._note(path)
        folder, _, name = path.rpartition("/")
        self.folders.setdefault(folder, {})[name] = len(data)
        while folder:
            above, _, name = folder.rpartition("/")
            if name in self.folders.setdefault(above, {}):
                return
            self.folders[above][name] = None
            folder = above

    def drop(self, path: str) -> None:
        if self.objects.pop(path, None) is None:
            return
        self._note(path)
        while path:
            folder, _, name = path.rpartition("/")
            below = self.folders[folder]
            del below[name]
            if below or not folder:
                return
            del self.folders[folder]
            path = folder

    def _note(self, path: str) -> None:
        self.changes.append(path)
        if len(self.changes) > 2 * CHANGES_MAX:
            del self.changes[:CHANGES_MAX]
            self.forgotten += CHANGES_MAX


_STORES: dict[str, MemoryStore] = {}
_STORES_LOCK = threading.Lock()


def forget_stores() -> None:
    """Drops every named store: to this process they are missing from then on. Backends that are open keep theirs."""
    with _STORES_LOCK:
        _STORES.clear()


class MemoryBackend:
    """A view of one store. Without a store it has a new one to itself. "Durable" ends with the process."""

    scheme: ClassVar[str] = "memory"
    form: ClassVar[LogForm] = "log"
    url_params: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = MemoryStore() if store is None else store

    @classmethod
    def check_url(cls, url: BackendUrl) -> None:
        if not url.host or url.path.strip("/"):
            raise UsageError("a store in memory has one name and no path", next_step="Write memory://NAME.")

    @classmethod
    def open(cls, url: BackendUrl, *, create_root: bool) -> MemoryBackend:
        with _STORES_LOCK:
            store = _STORES.get(url.host)
            if store is None:
                if not create_root:
                    raise UnreachableError(
                        f"memory://{url.host} is not there: no such store was made in this process",
                        next_step="Stores in memory end with the process that made them.",
                    )
                store = _STORES[url.host] = MemoryStore()
        return cls(store)

    def create(self, path: str, data: bytes) -> bool:
        split_path(path)
        with self._store.lock:
            if path in self._store.objects:
                return False
            self._store.keep(path, bytes(data))
            return True

    def put(self, path: str, data: bytes) -> None:
        split_path(path)
        with self._store.lock:
            self._store.keep(path, bytes(data))

    def get(self, path: str, *, offset: int = 0, length: int | None = None, max_bytes: int) -> bytes:
        check_part(offset, length, max_bytes)
        data = self._find(path)
        return data[offset : offset + count_bytes(len(data), offset, length, max_bytes, path)]

    def stat(self, path: str) -> int:
        return len(self._find(path))

    def list(self, path: str) -> tuple[Listed, ...]:
        split_folder(path)
        with self._store.lock:
            return tuple(sorted(Listed(*entry) for entry in self._store.folders.get(path, {}).items()))

    def inventory(self, path: str, cursor: str) -> Inventory:
        """With a feed. A cursor is the number of changes so far, and behind it in a listing the last name told."""
        split_path(path)
        top = f"{path}/"
        number, _, last = cursor.partition(":")
        with self._store.lock:
            now = self._store.forgotten + len(self._store.changes)
            if cursor and ":" not in cursor:
                if not number.isdecimal() or not self._store.forgotten <= int(number) <= now:
                    raise NotFoundError(f"{cursor[:40]!r} is no cursor of this store")
                since = self._store.changes[int(number) - self._store.forgotten :][:PAGE_ITEMS]
                upto = int(number) + len(since)
                told = (p for p in dict.fromkeys(since) if p.startswith(top))
                return Inventory(tuple(self._item(p, top) for p in told), str(upto), upto < now)
            number = number or str(now)
            paths = self._store.sorted_paths()
            at = bisect_right(paths, top + last)
            names = [p for p in paths[at : at + PAGE_ITEMS] if p.startswith(top)]
            items = tuple(self._item(p, top) for p in names)
        more = len(names) == PAGE_ITEMS
        return Inventory(items, f"{number}:{items[-1].name}" if more else number, more)

    def _item(self, path: str, top: str) -> Item:
        data = self._store.objects.get(path)
        return Item(path.removeprefix(top), None if data is None else len(data))

    def delete(self, path: str) -> None:
        split_path(path)
        with self._store.lock:
            self._store.drop(path)

    def identity(self) -> bytes:
        return native_identity("memory", self._store.token)

    def close(self) -> None:
        """Nothing to give back."""

    def _find(self, path: str) -> bytes:
        split_path(path)
        with self._store.lock:
            data = self._store.objects.get(path)
        if data is None:
            raise NotFoundError(f"{path} is not in this store")
        return data
