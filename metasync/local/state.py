"""The local state of one workspace: an SQLite file in `.metasync/`, behind a protocol the simulator can replace.

Nothing in it is the only copy of anything agreed: it can be rebuilt from the backends and the working tree. What is
lost with it is knowledge about this device (what it wrote where, what it had not pushed yet), so that a rebuilt one
makes MetaSync more careful, never less.

WAL with synchronous=FULL: what a call or an outermost `transaction` wrote is on the disk when it returns, and a process
killed at any moment leaves either all of it or nothing. One connection, one lock: usable from any thread.

Rows of the working tree are opaque here (`worktree.index` gives them meaning): this module lies below the content
objects.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from metasync.errors import UpgradeError, WorkspaceError

FORMAT = 1
APPLICATION_ID = 0x4D53594E  # "MSYN": tells this file from any other SQLite database
CACHE_KIB = 16 << 10  # pages of one transaction beyond it are written twice: rows and plan of 20,000 files fit
BUSY_WAIT_S = 30.0  # a reader in another process (status) may hold a checkpoint up for so long
TREE_KEY = (
    "rows are"  # of which tree (its root's id) the rows are all entries, each as agreed: see `worktree.quick_scan`
)
_FAILURES = (sqlite3.Error, UnicodeDecodeError)  # the latter: a message that quotes a damaged schema
QUERY_IDS_MAX = 500  # placeholders in one statement; SQLite's own limit was 999 for most of its life

_SCHEMA = """
CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (path BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (id BLOB PRIMARY KEY, kind INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE staged (id BLOB PRIMARY KEY, kind INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE conflicts (copy BLOB PRIMARY KEY, path BLOB NOT NULL, reason TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE replaced (n INTEGER PRIMARY KEY, path BLOB NOT NULL, content BLOB NOT NULL,
    hashed BLOB NOT NULL, hashed_mtime_ns INTEGER NOT NULL, hashed_ctime_ns INTEGER NOT NULL);
CREATE TABLE unplaced (path BLOB PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
"""


class Conflict(NamedTuple):
    """A conflict that waits for the user: `copy` holds the other side of `path`; found at agreed version `version`."""

    path: bytes
    copy: bytes
    reason: str
    version: int


class ReplacedFile(NamedTuple):
    """What `.metasync/replaced/<n>` is: the file that stood at `path`, whose content this device knew as `content`.

    `hashed` is the content found there when it was last read (b"": never), and the two times it had then.
    """

    n: int
    path: bytes
    content: bytes
    hashed: bytes = b""
    hashed_mtime_ns: int = 0
    hashed_ctime_ns: int = 0


class State(Protocol):
    """The local state, as the rest of MetaSync uses it. Outside a transaction, a call is durable when it returns."""

    def transaction(self) -> AbstractContextManager[None]:
        """All writes inside take effect together when the outermost one ends, or none after an exception.

        May be nested: an inner one that raises undoes its own writes alone. Other threads wait meanwhile.
        """

    def get(self, key: str) -> bytes | None:
        """The value under `key`, None if there is none."""

    def set(self, key: str, value: bytes | None) -> None:
        """Writes `value` under `key`; None removes it."""

    def packed_rows(self) -> dict[bytes, bytes]:
        """All rows of the working tree by path, packed (`worktree.index.load_rows` unpacks)."""

    def packed_row(self, path: bytes) -> bytes | None:
        """One of them; None if there is none at this path."""

    def packed_rows_at(self, paths: Collection[bytes]) -> dict[bytes, bytes]:
        """Those that there are at these paths."""

    def packed_rows_with(self, at: int, pieces: Collection[bytes]) -> dict[bytes, bytes]:
        """Those that have one of these pieces, which are all of one length, at byte `at`. Every row is looked at."""

    def packed_rows_after(self, path: bytes, most: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """The next rows behind a path, in the order of their paths as bytes; `end`: those before it alone."""

    def count_rows(self) -> int:
        """How many rows there are."""

    def put_packed_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Writes rows, each over the one at the same path. What stands under `TREE_KEY` goes, as it may be untrue."""

    def delete_rows(self, paths: Iterable[bytes]) -> None:
        """Removes the rows at these paths; one that does not exist is fine. `TREE_KEY` goes with them."""

    def get_object(self, object_id: bytes) -> bytes | None:
        """The cached bytes of a content object, None if it is not cached."""

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        """Those of the objects that are cached."""

    def objects_there(self, ids: Collection[bytes]) -> frozenset[bytes]:
        """Which of the objects are cached; none of them is read."""

    def put_objects(self, objects: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Caches `(id, kind, data)`; objects are immutable, so one that is there stays."""

    def drop_objects_except(self, ids: Collection[bytes]) -> int:
        """Empties the object cache but for `ids`; returns how many went."""

    def drop_objects_of(self, data: bytes) -> None:
        """Drops cached objects that have these bytes."""

    def objects_bytes(self) -> int:
        """How many bytes the cached objects take."""

    def stage_object(self, object_id: bytes, kind: int, data: bytes) -> None:
        """Keeps an object that the next push must include."""

    def staged(self) -> list[tuple[bytes, int, bytes]]:
        """All staged objects as `(id, kind, data)`, by id."""

    def clear_staged(self, ids: Iterable[bytes]) -> None:
        """Forgets staged objects, after a decided version holds them."""

    def conflicts(self) -> list[Conflict]:
        """The conflicts that wait, by path and copy."""

    def put_conflicts(self, conflicts: Iterable[Conflict]) -> None:
        """Adds conflicts; the copy's path identifies each."""

    def delete_conflicts(self, copies: Iterable[bytes]) -> None:
        """Removes the conflicts with these copies."""

    def replaced(self) -> list[ReplacedFile]:
        """What is kept in `.metasync/replaced/`, by number."""

    def put_replaced(self, files: Iterable[ReplacedFile]) -> None:
        """Writes records of replaced files, each over the one of the same number."""

    def delete_replaced(self, numbers: Iterable[int]) -> None:
        """Removes records of replaced files."""

    def unplaced(self) -> dict[bytes, str]:
        """Agreed paths that the last checkouts could not bring to this disk, with the reason."""

    def put_unplaced(self, paths: Mapping[bytes, str]) -> None:
        """Adds to them."""

    def delete_unplaced(self, paths: Iterable[bytes]) -> None:
        """Removes from them."""


class LocalDb:
    """`State` in an SQLite file. The file's owner closes it, once, when no thread uses it any more."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._db = connection
        self._path = path
        self._lock = threading.RLock()
        self._depth = 0

    @classmethod
    def open(cls, path: str | Path) -> LocalDb:
        """Opens the state at `path`, or makes it where there is no file.

        `UpgradeError`: a newer MetaSync wrote it. `WorkspaceError`: it is something else, damaged, or can't be opened.
        """
        name = str(path)
        try:
            db = sqlite3.connect(name, timeout=BUSY_WAIT_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as e:
            raise _unusable(name, e) from e
        try:
            _prepare(db, name)
        except _FAILURES as e:
            db.close()
            raise _unusable(name, e) from e
        except BaseException:
            db.close()
            raise
        return cls(db, name)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> LocalDb:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock:
            outer = self._depth == 0
            # Savepoints nest, so that an inner failure that is caught outside leaves nothing behind.
            name = f"t{self._depth}"
            self._execute("BEGIN IMMEDIATE" if outer else f"SAVEPOINT {name}")
            self._depth += 1
            try:
                yield
                self._execute("COMMIT" if outer else f"RELEASE {name}")
            except BaseException:
                # SQLite has already rolled back by itself after some errors (disk full): then there is nothing to undo.
                if self._db.in_transaction:
                    self._execute("ROLLBACK" if outer else f"ROLLBACK TO {name}")
                    if not outer:
                        self._execute(f"RELEASE {name}")
                raise
            finally:
                self._depth -= 1

    def _execute(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except _FAILURES as e:
                raise _unusable(self._path, e) from e

    def _typed(self, sql: str, values: tuple[Any, ...], *types: type) -> list[Any]:
        """Rows whose columns have these types: a damaged file holds anything anywhere."""
        found = self._execute(sql, values)
        for column, wanted in enumerate(types):
            if not {*map(type, map(itemgetter(column), found))} <= {wanted}:
                raise WorkspaceError(
                    f"The local state {self._path} is damaged: {wanted.__name__} expected where something else stands.",
                    next_step="Move it away and run again: the local state is rebuilt from the backends.",
                )
        return found

    def _among(self, sql: str, values: Collection[bytes], *others: int) -> dict[bytes, bytes]:
        """What a statement finds for these values, which stand where it has {}, and `others` before them."""
        wanted = list(values)
        out: dict[bytes, bytes] = {}
        with self._lock:
            for start in range(0, len(wanted), QUERY_IDS_MAX):
                some = wanted[start : start + QUERY_IDS_MAX]
                out.update(self._typed(sql.format(",".join("?" * len(some))), (*others, *some), bytes, bytes))
        return out

    def _many(self, sql: str, values: Iterable[tuple[Any, ...]]) -> None:
        with self.transaction():
            try:
                self._db.executemany(sql, values)
            except _FAILURES as e:
                raise _unusable(self._path, e) from e

    def get(self, key: str) -> bytes | None:
        found = self._typed("SELECT value FROM kv WHERE key = ?", (key,), bytes)
        return found[0][0] if found else None

    def set(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._execute("DELETE FROM kv WHERE key = ?", (key,))
        else:
            self._execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (key, value))

    def packed_rows(self) -> dict[bytes, bytes]:
        return dict(self._typed("SELECT path, data FROM rows", (), bytes, bytes))

    def packed_row(self, path: bytes) -> bytes | None:
        found = self._typed("SELECT data FROM rows WHERE path = ?", (path,), bytes)
        return found[0][0] if found else None

    def packed_rows_at(self, paths: Collection[bytes]) -> dict[bytes, bytes]:
        return self._among("SELECT path, data FROM rows WHERE path IN ({})", paths)

    def packed_rows_with(self, at: int, pieces: Collection[bytes]) -> dict[bytes, bytes]:
        size = len(next(iter(pieces), b""))
        return self._among("SELECT path, data FROM rows WHERE substr(data, ?, ?) IN ({})", pieces, at + 1, size)

    def packed_rows_after(self, path: bytes, most: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        if end is None:
            sql = "SELECT path, data FROM rows WHERE path > ? ORDER BY path LIMIT ?"
            return self._typed(sql, (path, most), bytes, bytes)
        sql = "SELECT path, data FROM rows WHERE path > ? AND path < ? ORDER BY path LIMIT ?"
        return self._typed(sql, (path, end, most), bytes, bytes)

    def count_rows(self) -> int:
        return int(self._execute("SELECT COUNT(*) FROM rows")[0][0])

    def put_packed_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._change_rows("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows)

    def delete_rows(self, paths: Iterable[bytes]) -> None:
        self._change_rows("DELETE FROM rows WHERE path = ?", ((path,) for path in paths))

    def _change_rows(self, sql: str, values: Iterable[tuple[Any, ...]]) -> None:
        values = iter(values)
        first = next(values, None)  # no list: there may be millions
        if first is not None:
            with self.transaction():
                self.set(TREE_KEY, None)
                self._many(sql, chain([first], values))

    def get_object(self, object_id: bytes) -> bytes | None:
        found = self._typed("SELECT data FROM objects WHERE id = ?", (object_id,), bytes)
        return found[0][0] if found else None

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        return self._among("SELECT id, data FROM objects WHERE id IN ({})", ids)

    def objects_there(self, ids: Collection[bytes]) -> frozenset[bytes]:
        return frozenset(i for i in ids if self._execute("SELECT 1 FROM objects WHERE id = ?", (i,)))

    def put_objects(self, objects: Iterable[tuple[bytes, int, bytes]]) -> None:
        rows = ((object_id, int(kind), data) for object_id, kind, data in objects)
        self._many("INSERT OR IGNORE INTO objects VALUES (?, ?, ?)", rows)

    def drop_objects_except(self, ids: Collection[bytes]) -> int:
        keep = ids if isinstance(ids, (set, frozenset)) else set(ids)
        with self.transaction():
            gone = [i for (i,) in self._execute("SELECT id FROM objects") if i not in keep]
            self._many("DELETE FROM objects WHERE id = ?", ((i,) for i in gone))
        return len(gone)

    def drop_objects_of(self, data: bytes) -> None:
        self._execute("DELETE FROM objects WHERE data = ?", (data,))

    def objects_bytes(self) -> int:
        return int(self._execute("SELECT COALESCE(SUM(LENGTH(data)), 0) FROM objects")[0][0])

    def stage_object(self, object_id: bytes, kind: int, data: bytes) -> None:
        self._execute("INSERT OR IGNORE INTO staged VALUES (?, ?, ?)", (object_id, int(kind), data))

    def staged(self) -> list[tuple[bytes, int, bytes]]:
        return self._typed("SELECT id, kind, data FROM staged ORDER BY id", (), bytes, int, bytes)

    def clear_staged(self, ids: Iterable[bytes]) -> None:
        self._many("DELETE FROM staged WHERE id = ?", ((i,) for i in ids))

    def conflicts(self) -> list[Conflict]:
        sql = "SELECT path, copy, reason, version FROM conflicts ORDER BY path, copy"
        return [Conflict(*found) for found in self._typed(sql, (), bytes, bytes, str, int)]

    def put_conflicts(self, conflicts: Iterable[Conflict]) -> None:
        self._many(
            "INSERT OR REPLACE INTO conflicts (path, copy, reason, version) VALUES (?, ?, ?, ?)",
            (tuple(c) for c in conflicts),
        )

    def delete_conflicts(self, copies: Iterable[bytes]) -> None:
        self._many("DELETE FROM conflicts WHERE copy = ?", ((copy,) for copy in copies))

    def replaced(self) -> list[ReplacedFile]:
        sql = "SELECT n, path, content, hashed, hashed_mtime_ns, hashed_ctime_ns FROM replaced ORDER BY n"
        return [ReplacedFile(*found) for found in self._typed(sql, (), int, bytes, bytes, bytes, int, int)]

    def put_replaced(self, files: Iterable[ReplacedFile]) -> None:
        self._many("INSERT OR REPLACE INTO replaced VALUES (?, ?, ?, ?, ?, ?)", (tuple(f) for f in files))

    def delete_replaced(self, numbers: Iterable[int]) -> None:
        self._many("DELETE FROM replaced WHERE n = ?", ((n,) for n in numbers))

    def unplaced(self) -> dict[bytes, str]:
        return dict(self._typed("SELECT path, reason FROM unplaced", (), bytes, str))

    def put_unplaced(self, paths: Mapping[bytes, str]) -> None:
        self._many("INSERT OR REPLACE INTO unplaced VALUES (?, ?)", paths.items())

    def delete_unplaced(self, paths: Iterable[bytes]) -> None:
        self._many("DELETE FROM unplaced WHERE path = ?", ((path,) for path in paths))


def _prepare(db: sqlite3.Connection, name: str) -> None:
    """Checks what the file is before anything is written to it; makes the tables in an empty one."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    empty = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION_ID and not (empty and application == 0 and version == 0):
        raise WorkspaceError(
            f"{name} is a database, but not MetaSync's local state.",
            next_step="Move it away and run again: the local state is rebuilt from the backends.",
        )
    if version > FORMAT:
        raise UpgradeError(
            f"{name} was written in format {version}; this MetaSync knows {FORMAT}.", next_step="Upgrade metasync."
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if version == 0:
        # One transaction, so that a process killed here leaves an empty file, which the next one fills.
        db.execute("BEGIN IMMEDIATE")
        if db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")


def _unusable(name: str, cause: Exception) -> WorkspaceError:
    """The error for a database call that failed, with what the user can do about it."""
    code = getattr(cause, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_FULL"):
        step = "The disk is full: free some space and run again; nothing was lost."
    elif code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or isinstance(cause, UnicodeDecodeError):
        step = "Move it away and run again: the local state is rebuilt from the backends."
    elif code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        step = "Another process uses it: run again when that has ended."
    else:
        step = "Check that the folder is there, writable, and on a working disk; then run again."
    return WorkspaceError(f"The local state {name} failed: {cause}.", next_step=step)
