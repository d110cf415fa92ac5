"""The local state of one workspace: an SQLite file in `.metasync/`, behind a protocol the simulator can replace.

The backends and the working tree hold another copy of everything agreed, so the state can be rebuilt. A rebuilt one
lacks what only this device knew (what it wrote where, what it had not pushed), which makes MetaSync more careful.

WAL with synchronous=FULL: a call, or an outermost `transaction`, is on the disk when it returns. A process killed at
any moment leaves all of it or nothing. One connection and one lock serve all threads.

Rows of the working tree are opaque here; `worktree.index` gives them meaning.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from metasync.errors import UpgradeError, WorkspaceError
from metasync.local.state_keys import CLONE_ANEW, TABLES, TREE_KEY, UNPLACED, Key, Table

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])

FORMAT = 4
APPLICATION_ID = 0x4D53594E  # "MSYN": tells this file from any other SQLite database
CACHE_KIB = 16 << 10  # pages of one transaction beyond it are written twice: rows and plan of 20,000 files fit
BUSY_WAIT_S = 30.0  # a reader in another process (status) may hold a checkpoint up for so long
_FAILURES = (sqlite3.Error, UnicodeDecodeError)  # the latter: a message that quotes a damaged schema
MEMORY: Final = ":memory:"  # SQLite's name of a database that is no file
QUERY_IDS_MAX = 500  # placeholders in one statement; SQLite's own limit was 999 for most of its life

_SCHEMA = """
CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (path BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (id BLOB PRIMARY KEY, kind INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE staged (id BLOB PRIMARY KEY, kind INTEGER NOT NULL, data BLOB NOT NULL);
"""
CACHE_BYTES_SURE: Final = 64 << 20  # the least bound of the cached objects that can be set
_ALL, _COUNT = "SELECT * FROM {0.name}", "SELECT COUNT(*) FROM {0.name}"
_PUT, _DELETE = "INSERT OR REPLACE INTO {0.name} VALUES ({1})", "DELETE FROM {0.name} WHERE {0.key} = ?"


class State(Protocol):
    """The local state, as the rest of MetaSync uses it. Outside a transaction, a call is durable when it returns."""

    def transaction(self) -> AbstractContextManager[None]:
        """All writes inside take effect together when the outermost one ends, or none after an exception.

        May be nested: an inner one that raises undoes its own writes alone. Other threads wait meanwhile.
        """

    def value(self, name: str) -> bytes | None:
        """The bytes under a key's name, None if there are none."""

    def set_value(self, name: str, data: bytes | None) -> None:
        """Writes bytes under a key's name; None removes the key."""

    def get(self, key: Key[T]) -> T | None:
        """The value under `key`, None if there is none. `WorkspaceError` where it is damaged (`Key.load`)."""
        data = self.value(key.name)
        return None if data is None else key.load(data)

    def need(self, key: Key[T]) -> T:
        """A value without which the local state is no use. `WorkspaceError` when it is missing or damaged."""
        value = self.get(key)
        if value is None:
            raise WorkspaceError(
                f"the local state in .metasync is incomplete: {key.name!r} is missing", next_step=CLONE_ANEW
            )
        return value

    def has(self, key: Key[Any]) -> bool:
        """Whether there is a value under `key`."""
        return self.value(key.name) is not None

    def set(self, key: Key[T], value: T | None) -> None:
        """Writes `value` under `key`; None removes it."""
        self.set_value(*key.entry(value))

    def update(self, key: Key[T], value: T | None) -> None:
        """Writes `value` under `key`, as `set` does, where something else stands there."""
        name, data = key.entry(value)
        if data != self.value(name):
            self.set_value(name, data)

    def records(self, table: Table[R]) -> list[R]:
        """All records of a table, ascending. `WorkspaceError` where one is damaged."""

    def count_records(self, table: Table[Any]) -> int:
        """How many records a table has."""

    def put_records(self, table: Table[R], records: Iterable[R]) -> None:
        """Writes records, each over the one with the same key."""

    def delete_records(self, table: Table[Any], keys: Iterable[bytes | int]) -> None:
        """Removes the records with these keys; one that does not exist is fine."""

    def unplaced(self) -> dict[bytes, str]:
        """Agreed paths that the last checkouts could not bring to this disk, with the reason."""
        return {u.path: u.reason for u in self.records(UNPLACED)}

    def packed_rows(self) -> dict[bytes, bytes]:
        """All rows of the working tree by path, packed (`worktree.index.load_rows` unpacks)."""

    def packed_row(self, path: bytes) -> bytes | None:
        """The row at a path; None if there is none."""

    def packed_rows_at(self, paths: Collection[bytes]) -> dict[bytes, bytes]:
        """The rows that exist at these paths."""

    def packed_rows_with(self, at: int, pieces: Collection[bytes]) -> dict[bytes, bytes]:
        """The rows with one of these pieces, all of one length, at byte `at`. Looks at every row."""

    def packed_rows_after(self, path: bytes, most: int, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """The next rows behind a path, in the order of their paths as bytes; `end`: only those before it."""

    def count_rows(self) -> int:
        """How many rows there are."""

    def put_packed_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Writes rows, each over the one at the same path. `TREE_KEY` is removed: it may be untrue then."""

    def delete_rows(self, paths: Iterable[bytes]) -> None:
        """Removes the rows at these paths; one that does not exist is fine. `TREE_KEY` goes with them."""

    def get_object(self, object_id: bytes) -> bytes | None:
        """The cached bytes of a content object, None if it is not cached."""

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        """The objects that are cached, of these ids."""

    def objects_there(self, ids: Collection[bytes]) -> frozenset[bytes]:
        """The ids of which an object is cached. Reads none."""

    def put_objects(self, objects: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Caches `(id, kind, data)`; objects are immutable, so one that is there stays."""

    def drop_objects_of(self, data: bytes) -> None:
        """Drops cached objects that have these bytes."""

    def stage_object(self, object_id: bytes, kind: int, data: bytes) -> None:
        """Keeps an object that the next push must include."""

    def staged(self) -> list[tuple[bytes, int, bytes]]:
        """All staged objects as `(id, kind, data)`, by id."""

    def clear_staged(self, ids: Iterable[bytes]) -> None:
        """Forgets staged objects, after a decided version holds them."""


class LocalDb(State):
    """`State` in an SQLite file. The file's owner closes it, once, when no thread uses it any more.

    is_copy  it is a copy that goes when it is closed, for the file is on a disk that is read-only
    """

    def __init__(self, connection: sqlite3.Connection, path: str, *, is_copy: bool = False) -> None:
        self._db = connection
        self._path = path
        self.is_copy = is_copy
        self._place = None if is_copy or path == MEMORY else _place_of(path)
        self._lock = threading.RLock()
        self._depth = 0
        self._has_grown = False  # objects were cached by this process

    @classmethod
    def open(cls, path: str | Path, *, may_copy: bool = False) -> LocalDb:
        """Opens the state at `path`, or makes it where there is no file.

        `may_copy`: on a read-only disk a copy is opened. What is written to it is forgotten.

        `UpgradeError`: a newer MetaSync wrote it. `WorkspaceError`: it is something else, damaged, or can't be opened.
        """
        name = str(path)
        with contextlib.suppress(OSError):  # whatever the umask: SQLite gives its other files the mode of this one
            if name != MEMORY:
                os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        is_copy = may_copy and is_read_only(name)
        try:
            db = (
                _copy_of(name)
                if is_copy
                else sqlite3.connect(name, timeout=BUSY_WAIT_S, isolation_level=None, check_same_thread=False)
            )
        except sqlite3.Error as e:
            raise _unusable(name, e) from e
        try:
            _prepare(db, name)
        except BaseException as e:
            db.close()
            if isinstance(e, _FAILURES):
                raise _unusable(name, e) from e
            raise
        return cls(db, name, is_copy=is_copy)

    def has_moved(self) -> bool:
        """Whether its path leads to another file by now, or to none: its folder was moved, or replaced."""
        return self._place is not None and self._place != _place_of(self._path)

    def check(self) -> None:
        """Looks at every page and index of the file. `WorkspaceError` where one is damaged."""
        told = self._typed("PRAGMA quick_check(1)", (), str)[0][0]
        if told != "ok":
            raise WorkspaceError(f"The local state {self._path} is damaged: {told}.", next_step=CLONE_ANEW)

    def mark(self) -> tuple[int, int]:
        """Another pair after each write, by this process or another."""
        with self._lock:
            (others,) = self._execute("PRAGMA data_version")[0]
            return int(others), self._db.total_changes

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
        """The rows found, whose columns have these types: a damaged file may hold anything."""
        found = self._execute(sql, values)
        for column, wanted in enumerate(types):
            if not {*map(type, map(itemgetter(column), found))} <= {wanted}:
                raise WorkspaceError(
                    f"The local state {self._path} is damaged: {wanted.__name__} expected where something else stands.",
                    next_step=CLONE_ANEW,
                )
        return found

    def _one(self, sql: str, key: str | bytes) -> bytes | None:
        found = self._typed(sql, (key,), bytes)
        return found[0][0] if found else None

    def _among(self, sql: str, values: Collection[bytes], *others: int) -> dict[bytes, bytes]:
        """The rows that a statement finds: these values stand in the place of {}, `others` before them."""
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

    def value(self, name: str) -> bytes | None:
        return self._one("SELECT value FROM kv WHERE key = ?", name)

    def set_value(self, name: str, data: bytes | None) -> None:
        if data is None:
            self._execute("DELETE FROM kv WHERE key = ?", (name,))
        else:
            self._execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (name, data))

    def records(self, table: Table[R]) -> list[R]:
        return sorted(table.record(*row) for row in self._typed(_ALL.format(table), (), *table.types))

    def count_records(self, table: Table[Any]) -> int:
        return int(self._execute(_COUNT.format(table))[0][0])

    def put_records(self, table: Table[R], records: Iterable[R]) -> None:
        self._many(_PUT.format(table, ", ".join("?" * len(table.types))), records)

    def delete_records(self, table: Table[Any], keys: Iterable[bytes | int]) -> None:
        self._many(_DELETE.format(table), ((key,) for key in keys))

    def packed_rows(self) -> dict[bytes, bytes]:
        return dict(self._typed("SELECT path, data FROM rows", (), bytes, bytes))

    def packed_row(self, path: bytes) -> bytes | None:
        return self._one("SELECT data FROM rows WHERE path = ?", path)

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
        return self._one("SELECT data FROM objects WHERE id = ?", object_id)

    def get_objects(self, ids: Collection[bytes]) -> dict[bytes, bytes]:
        return self._among("SELECT id, data FROM objects WHERE id IN ({})", ids)

    def objects_there(self, ids: Collection[bytes]) -> frozenset[bytes]:
        return frozenset(i for i in ids if self._execute("SELECT 1 FROM objects WHERE id = ?", (i,)))

    def put_objects(self, objects: Iterable[tuple[bytes, int, bytes]]) -> None:
        rows = ((object_id, int(kind), data) for object_id, kind, data in objects)
        self._has_grown = True
        self._many("INSERT OR IGNORE INTO objects VALUES (?, ?, ?)", rows)

    def drop_objects_of(self, data: bytes) -> None:
        self._execute("DELETE FROM objects WHERE data = ?", (data,))

    def may_be_large(self) -> bool:
        """Whether objects were cached, and all tables have more bytes than the least bound of them. A quick look."""
        if not self._has_grown:
            return False
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (int(self._execute(f"PRAGMA {name}")[0][0]) for name in names)
        return (pages - free) * size > CACHE_BYTES_SURE

    def objects_bytes(self) -> int:
        """The bytes of all cached objects."""
        return int(self._execute("SELECT COALESCE(SUM(LENGTH(data)), 0) FROM objects")[0][0])

    def objects_by_age(self) -> list[tuple[bytes, int]]:
        """The ids of the cached objects with their sizes, those that came first first."""
        return self._execute("SELECT id, LENGTH(data) FROM objects ORDER BY rowid")

    def drop_objects(self, ids: Iterable[bytes]) -> None:
        """Forgets cached objects."""
        self._many("DELETE FROM objects WHERE id = ?", ((i,) for i in ids))

    def stage_object(self, object_id: bytes, kind: int, data: bytes) -> None:
        self._execute("INSERT OR IGNORE INTO staged VALUES (?, ?, ?)", (object_id, int(kind), data))

    def staged(self) -> list[tuple[bytes, int, bytes]]:
        return self._typed("SELECT id, kind, data FROM staged ORDER BY id", (), bytes, int, bytes)

    def clear_staged(self, ids: Iterable[bytes]) -> None:
        self._many("DELETE FROM staged WHERE id = ?", ((i,) for i in ids))


def is_read_only(path: str) -> bool:
    """Whether a file is there, on a disk that is mounted to be read only."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _copy_of(name: str) -> sqlite3.Connection:
    """A copy of the state, in a file of SQLite's own that nobody else sees."""
    copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    uri = Path(os.path.abspath(name)).as_uri() + "?mode=ro"
    try:
        try:
            _back_up(uri, copy)
        except sqlite3.OperationalError:  # closed in order, it has no file beside it, and none can be made
            _back_up(f"{uri}&immutable=1", copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _back_up(uri: str, copy: sqlite3.Connection) -> None:
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as source:
        source.backup(copy)


def _prepare(db: sqlite3.Connection, name: str) -> None:
    """Checks what the file is before anything is written to it; makes the tables in an empty one."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    empty = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION_ID and not (empty and application == 0 and version == 0):
        raise WorkspaceError(
            f"{name} is a database, but not MetaSync's local state.",
            next_step=CLONE_ANEW,
        )
    if 0 < version < FORMAT:
        raise WorkspaceError(f"{name} was written by an older MetaSync, in format {version}.", next_step=CLONE_ANEW)
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
            for statement in (*_SCHEMA.split(";"), *(table.schema for table in TABLES)):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")


def _place_of(path: str) -> tuple[int, int]:
    """The device and the inode of a file; zeros where it is not there."""
    try:
        st = os.stat(path)
    except OSError:
        return 0, 0
    return st.st_dev, st.st_ino


def is_of_full_disk(cause: BaseException) -> bool:
    """Whether SQLite failed since the disk has no room: for its pages, or for the memory that its processes share."""
    return getattr(cause, "sqlite_errorname", "") in ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")


def _unusable(name: str, cause: Exception) -> WorkspaceError:
    """The error for a database call that failed, with a next step."""
    code = getattr(cause, "sqlite_errorname", "") or ""
    if is_of_full_disk(cause):
        step = "The disk is full: free some space and run again; nothing was lost."
    elif code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or isinstance(cause, UnicodeDecodeError):
        step = CLONE_ANEW
    elif code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        step = "Another process uses it: run again when that has ended."
    else:
        step = "Check that the folder is there, writable, and on a working disk; then run again."
    return WorkspaceError(f"The local state {name} failed: {cause}.", next_step=step)


SAFE_VARIABLE: Final = "METASYNC_SAFE_DIRECTORY"


def refuse_strangers(folder: Path, state_dir: Path, names: Sequence[str]) -> None:
    """Raises `WorkspaceError` for a workspace that somebody else may have put there, to be handed this user's files.

    `folder`, its `state_dir`, and the files `names` in that belong to this user or root, and nobody else may write
    there (in a sticky folder nobody puts another one in its place). What is not there passes. It is the rule of git's
    safe.directory, and of what writable parents allow. METASYNC_SAFE_DIRECTORY names exceptions, with `:` between
    them; `*` is all.
    """
    ours = {os.geteuid(), 0}
    if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdecimal():
        ours.add(int(sudo))  # `sudo metasync` in a folder of the user who says it
    why = _stranger_in(folder, ours)
    for place in (state_dir, *(state_dir / name for name in names)):
        why = why or _stranger_in(place, ours, below=True)
    exceptions = os.environ.get(SAFE_VARIABLE, "").split(":") if why else []
    if why and "*" not in exceptions and str(folder) not in {os.path.normpath(e) for e in exceptions if e}:
        raise WorkspaceError(
            f"the workspace {folder} is not used: {why}, and so may have your files sent somewhere else",
            next_step=f"Change its owner or mode if it is yours; or set {SAFE_VARIABLE}={folder} if you trust it.",
        )


def _stranger_in(place: Path, ours: Collection[int], *, below: bool = False) -> str:
    """Why others may have put there what lies at `place`; "" if they may not. `below`: it is in `.metasync`."""
    try:
        st = place.lstat() if below else place.stat()
    except FileNotFoundError:
        return ""
    if st.st_uid not in ours:
        return f"{place} belongs to another user ({st.st_uid})"
    if stat.S_ISLNK(st.st_mode):
        return f"{place} is a link, which other users can make"
    if (below or not st.st_mode & stat.S_ISVTX) and _others_write(st):
        return f"other users may write in {place}" if stat.S_ISDIR(st.st_mode) else f"other users may write {place}"
    return ""


def _others_write(st: os.stat_result) -> bool:
    """Whether the mode lets users write besides the owner: all, or a group that is not the owner's alone."""
    if st.st_mode & stat.S_IWOTH:
        return True
    if not st.st_mode & stat.S_IWGRP or st.st_gid == 0:
        return False
    import grp
    import pwd

    try:  # Linux gives users a group of their own, which may write what they make
        owner, group = pwd.getpwuid(st.st_uid), grp.getgrgid(st.st_gid)
    except KeyError:
        return True
    return (group.gr_name, group.gr_gid) != (owner.pw_name, owner.pw_gid) or not {*group.gr_mem} <= {owner.pw_name}
