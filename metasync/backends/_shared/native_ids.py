"""The ids that a provider gave to objects, by path, kept beyond the process: a hint that spares a search by name.

A provider that addresses objects by ids of its own (Google Drive, Box) is asked by path once, and by id from then on.
All four clouds keep the id of the store's own folder (`kept_root`).
The file lies in $XDG_STATE_HOME/metasync/ids, or ~/.local/state/metasync/ids. It holds no secret: paths are random, and
an id opens nothing. Losing it, or finding it damaged, costs searches alone. Whoever takes an id from here to write, to
delete or to tell of an object checks what the provider then says of it, or finds it gone and searches. A `get` does
not, for that would be a request more: bytes by the id of another object are as bytes that a provider made up. Readers
notice them, as what they read is named by its hash or sealed to its place, and the `stat`, `digest` or `put` of whoever
mends it ends the id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metasync.local.user_folders import state_folder

if TYPE_CHECKING:
    from metasync.backends._shared.logins import Login

ROWS_MAX: Final = 1 << 20  # 200 MB; beyond it all is forgotten
_BUSY_S: Final = 5.0
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS ids (id TEXT PRIMARY KEY, path TEXT NOT NULL, live INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS by_path ON ids (path)",
    "CREATE TABLE IF NOT EXISTS life (mark TEXT NOT NULL)",
)


def path_for(*what: str) -> Path:
    """The file for an account and a folder in it, named by a hash."""
    name = hashlib.sha256("\0".join(what).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    top = state_folder("ids")
    return Path(top or os.devnull) / f"{name}.db"  # where nothing can ever be, for a user without a home


def ids_of(login: Login, stand_in: str, path: str) -> NativeIds:
    """Those of a folder in a linked account. An account that is linked anew has none: it may be another one."""
    return NativeIds(path_for(login.provider, login.account, login.mark, stand_in, path))


class NativeIds:
    """Ids by path, of one folder. For several threads and processes. It never raises: what fails is forgotten."""

    def __init__(self, path: Path) -> None:
        """The file is made when something is first noted."""
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._mark = secrets.token_hex(8)
        self._own: dict[str, str] = {}  # where there can be no file

    @property
    def mark(self) -> str:
        """Another one where what was noted before may have been lost."""
        with self._open() as db:
            self._mark = (db is not None and _row(db, "SELECT mark FROM life")) or self._mark
        return self._mark

    def get(self, path: str) -> str | None:
        with self._open() as db:
            return self._own.get(path) if db is None else _row(db, "SELECT id FROM ids WHERE path = ? AND live", path)

    def path_of(self, native_id: str) -> str | None:
        """Which object an id was noted for, also after that was forgotten: feeds tell what is gone by its id."""
        with self._open() as db:
            if db is None:
                return next((path for path, one in self._own.items() if one == native_id), None)
            return _row(db, "SELECT path FROM ids WHERE id = ?", native_id)

    def note(self, found: Iterable[tuple[str, str]]) -> None:
        """Takes in paths with their ids: each path has one from now on, the last of several."""
        rows = list(found)
        kept = dict(rows)
        with self._open() as db:
            if db is None:
                self._own.update(rows)
                return
            with db:
                db.executemany("UPDATE ids SET live = 0 WHERE path = ? AND id != ?", kept.items())
                db.executemany(
                    "INSERT OR REPLACE INTO ids VALUES (?2, ?1, ?3)",
                    ((path, one, kept[path] == one) for path, one in rows),
                )

    def forget(self, path: str) -> None:
        """The path has no id any more."""
        with self._open() as db:
            if db is None:
                self._own.pop(path, None)
                return
            with db:
                db.execute("UPDATE ids SET live = 0 WHERE path = ?", (path,))

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """The database, under the lock; None where there can be none. What fails inside is left undone."""
        with self._lock:
            try:
                db = self._connected()
            except sqlite3.DatabaseError:
                self._begin_anew()
                db = None
            try:
                yield db
            except sqlite3.OperationalError:  # it is busy, or its disk is full
                return
            except sqlite3.DatabaseError:  # damaged
                self._begin_anew()

    def _connected(self) -> sqlite3.Connection | None:
        if self._db is not None:
            return self._db
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            db = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
        except (OSError, sqlite3.OperationalError):
            return None
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            with db:
                for statement in _SCHEMA:
                    db.execute(statement)
                if db.execute("SELECT COUNT(*) FROM ids").fetchone()[0] > ROWS_MAX:
                    db.execute("DELETE FROM ids")
                    db.execute("DELETE FROM life")
                db.execute("INSERT INTO life SELECT ? WHERE NOT EXISTS (SELECT 1 FROM life)", (secrets.token_hex(8),))
        except sqlite3.OperationalError:
            db.close()
            return None
        except sqlite3.DatabaseError:
            db.close()
            raise
        self._db = db
        return db

    def _begin_anew(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}{ending}")


def _row(db: sqlite3.Connection, query: str, *values: str) -> str | None:
    row = db.execute(query, values).fetchone()
    return str(row[0]) if row else None
