"""The local state in memory: the same promises as `LocalDb`, with snapshots, and a process that may die at any call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from metasync.local.state import CACHE_BYTES_SURE, R, State
from metasync.local.state_keys import TABLES, TREE_KEY, Table
from simulation.world import Boot

_TABLES: Final = ("kv", "rows", "objects", "staged", *(table.name for table in TABLES))
_ABSENT: Final = object()

Tables = dict[str, dict[Any, Any]]


def empty_tables() -> Tables:
    return {name: {} for name in _TABLES}


def copied(tables: Tables) -> Tables:
    return {name: dict(table) for name, table in tables.items()}


class SimDb(State):
    """`local.state.State` over `tables`, which outlive the process. What a call wrote is durable when it returns."""

    is_copy = False

    def __init__(self, tables: Tables, boot: Boot | None = None) -> None:
        self.tables = tables
        self._boot = boot
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._depth = 0

    def close(self) -> None:
        """Nothing is open."""

    def has_moved(self) -> bool:
        """Nothing takes its place."""
        return False

    def __enter__(self) -> SimDb:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self) -> None:
        if self._boot is not None:
            self._boot.step()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        start = len(self._undo)
        self._depth += 1
        try:
            yield
            if self._depth == 1:
                self._step()
        except BaseException:
            while len(self._undo) > start:
                table, key, old = self._undo.pop()
                if old is _ABSENT:
                    table.pop(key, None)
                else:
                    table[key] = old
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._undo.clear()

    def _set(self, name: str, key: Any, value: Any) -> None:
        table = self.tables[name]
        if self._depth:
            self._undo.append((table, key, table.get(key, _ABSENT)))
        if value is _ABSENT:
            table.pop(key, None)
        else:
            table[key] = value

    def _all(self, name: str, items: Iterable[tuple[Any, Any]]) -> None:
        with self.transaction():
            for key, value in items:
                self._set(name, key, value)

    def value(self, name: str) -> bytes | None:
        self._step()
        found: bytes | None = self.tables["kv"].get(name)
        return found

    def set_value(self, name: str, data: bytes | None) -> None:
        self._all("kv", [(name, _ABSENT if data is None else data)])

    def records(self, table: Table[R]) -> list[R]:
        self._step()
        return sorted(self.tables[table.name].values())

    def count_records(self, table: Table[Any]) -> int:
        self._step()
        return len(self.tables[table.name])

    def put_records(self, table: Table[R], records: Iterable[R]) -> None:
        self._all(table.name, ((getattr(record, table.key), record) for record in records))

    def delete_records(self, table: Table[Any], keys: Iterable[bytes | int]) -> None:
        self._all(table.name, ((key, _ABSENT) for key in keys))

    def packed_rows(self) -> dict[bytes, bytes]:
        self._step()
        return dict(self.tables["rows"])

    def packed_row(self, path: bytes) -> bytes | None:
        self._step()
        return self.tables["rows"].get(path)

    def packed_rows_at(self, paths: Collection[bytes]) -> dict[bytes, bytes]:
        self._step()
        rows = self.tables["rows"]
        return {path: rows[path] for path in paths if path in rows}

    def packed_rows_with(self, at: int, pieces: Collection[bytes]) -> dict[bytes, bytes]:
        self._step()
        size = len(next(iter(pieces), b""))
        return {path: data for path, data in self.tables["rows"].items() if data[at : at + size] in pieces}

    def packed_rows_after(self, path: bytes, most: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        self._step()
        behind = sorted(p for p in self.tables["rows"] if p > path and (end is None or p < end))
        return [(p, self.tables["rows"][p]) for p in behind[:most]]

    def count_rows(self) -> int:
        self._step()
        return len(self.tables["rows"])

    def put_packed_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._change_rows(rows)

    def delete_rows(self, paths: Iterable[bytes]) -> None:
        self._change_rows((path, _ABSENT) for path in paths)

    def _change_rows(self, items: Iterable[tuple[bytes, Any]]) -> None:
        if items := list(items):
            with self.transaction():
                self._set("kv", TREE_KEY.name, _ABSENT)
                self._all("rows", items)

    def get_object(self, object_id: bytes) -> bytes | None:
        self._step()
        found = self.tables["objects"].get(object_id)
        return None if found is None else found[1]

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        self._step()
        objects = self.tables["objects"]
        return {i: objects[i][1] for i in ids if i in objects}

    def objects_there(self, ids: Collection[bytes]) -> frozenset[bytes]:
        self._step()
        return frozenset(i for i in ids if i in self.tables["objects"])

    def put_objects(self, objects: Iterable[tuple[bytes, int, bytes]]) -> None:
        there = self.tables["objects"]
        self._all("objects", ((i, (int(kind), data)) for i, kind, data in objects if i not in there))

    def drop_objects_of(self, data: bytes) -> None:
        self._all("objects", ((i, _ABSENT) for i, (_, there) in [*self.tables["objects"].items()] if there == data))

    def may_be_large(self) -> bool:
        return self.objects_bytes() > CACHE_BYTES_SURE

    def objects_bytes(self) -> int:
        return sum(len(data) for _, data in self.tables["objects"].values())

    def objects_by_age(self) -> list[tuple[bytes, int]]:
        return [(i, len(data)) for i, (_, data) in self.tables["objects"].items()]

    def drop_objects(self, ids: Iterable[bytes]) -> None:
        self._all("objects", ((i, _ABSENT) for i in ids))

    def stage_object(self, object_id: bytes, kind: int, data: bytes) -> None:
        if object_id not in self.tables["staged"]:
            self._all("staged", [(object_id, (int(kind), data))])

    def staged(self) -> list[tuple[bytes, int, bytes]]:
        self._step()
        return [(i, kind, data) for i, (kind, data) in sorted(self.tables["staged"].items())]

    def clear_staged(self, ids: Iterable[bytes]) -> None:
        self._all("staged", ((i, _ABSENT) for i in ids))
