"""The local state: what is written is there, all or nothing, for any thread and after any death."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasync.errors import UpgradeError, WorkspaceError
from metasync.local import state
from metasync.local.state import LocalDb, State
from metasync.local.state_keys import (
    CLONE_ANEW,
    CONFLICTS,
    NAME_KEY,
    REPLACED,
    UNPLACED,
    Conflict,
    ReplacedFile,
    Unplaced,
)
from metasync.objects.model import Entry, Kind
from metasync.worktree.index import Row, load_rows, pack_row, store_rows, unpack_row

FILE = Entry(Kind.FILE, 0o644, -5, 7, b"h" * 32, b"", ((7, b"x"),))


def test_values_stay_over_a_reopening(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with LocalDb.open(path) as db:
        state: State = db
        state.set_value("a", b"1")
        state.set_value("b", b"")
        state.set_value("c", b"gone")
        state.set_value("c", None)
        state.put_records(CONFLICTS, [Conflict(b"f", b"f.conflict.1", "edited on both sides", 7)])
        state.put_records(REPLACED, [ReplacedFile(3, b"f", b"h" * 32)])
        state.put_records(UNPLACED, [Unplaced(b"d/f", "permission denied")])
    with LocalDb.open(path) as db:
        assert (db.value("a"), db.value("b"), db.value("c")) == (b"1", b"", None)
        assert db.records(CONFLICTS) == [Conflict(b"f", b"f.conflict.1", "edited on both sides", 7)]
        assert db.records(REPLACED) == [ReplacedFile(3, b"f", b"h" * 32)]
        assert db.unplaced() == {b"d/f": "permission denied"}
        db.delete_records(CONFLICTS, [b"f.conflict.1"])
        db.delete_records(REPLACED, [3])
        db.delete_records(UNPLACED, [b"d/f", b"not there"])
        assert (db.records(CONFLICTS), db.records(REPLACED), db.unplaced()) == ([], [], {})
        assert db._execute("PRAGMA journal_mode")[0][0] == "wal"
        assert db._execute("PRAGMA synchronous")[0][0] == 2


def test_objects(tmp_path: Path) -> None:
    with LocalDb.open(tmp_path / "state.db") as db:
        many = [(b"%032d" % i, 3, b"data %d" % i) for i in range(1200)]
        db.put_objects(many)
        db.put_objects([(many[0][0], 3, b"data 0")])
        assert db.get_object(many[7][0]) == b"data 7"
        assert db.get_object(b"none") is None
        assert db.get_objects([m[0] for m in many] + [b"none"]) == {i: data for i, _, data in many}
        assert db.objects_there([many[5][0], b"none"]) == {many[5][0]}
        db.drop_objects_of(many[5][2])
        assert db.get_object(many[5][0]) is None
        db.stage_object(b"z" * 32, 1, b"blob")
        db.stage_object(b"a" * 32, 2, b"file")
        assert db.staged() == [(b"a" * 32, 2, b"file"), (b"z" * 32, 1, b"blob")]
        db.clear_staged([b"a" * 32, b"other"])
        assert db.staged() == [(b"z" * 32, 1, b"blob")]


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    with LocalDb.open(tmp_path / "state.db") as db:

        def fails() -> None:
            with db.transaction():
                db.set_value("a", b"1")
                db.put_records(UNPLACED, [Unplaced(b"x", "y")])
                raise KeyError("a")

        with pytest.raises(KeyError):
            fails()
        assert db.value("a") is None
        assert db.unplaced() == {}
        with db.transaction():
            db.set_value("a", b"outer")
            with pytest.raises(KeyError):
                fails()
            assert db.value("a") == b"outer"
            with db.transaction():
                db.set_value("b", b"inner")
        assert (db.value("a"), db.value("b")) == (b"outer", b"inner")


def test_threads_share_it(tmp_path: Path) -> None:
    with LocalDb.open(tmp_path / "state.db") as db:
        db.set_value("n", b"0")

        def add() -> None:
            for _ in range(10):
                with db.transaction():
                    db.set_value("n", b"%d" % (int(db.value("n") or b"0") + 1))

        threads = [threading.Thread(target=add) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert db.value("n") == b"50"


def test_what_is_not_ours_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"my diary" * 1000)
    with pytest.raises(WorkspaceError, match="not a database") as told:
        LocalDb.open(path)
    assert told.value.next_step == CLONE_ANEW, "a folder without its local state is no workspace any more"
    assert path.read_bytes() == b"my diary" * 1000

    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(WorkspaceError, match="not MetaSync's") as told:
        LocalDb.open(other)
    assert told.value.next_step == CLONE_ANEW
    with pytest.raises(WorkspaceError, match="unable to open"):
        LocalDb.open(tmp_path / "missing" / "state.db")


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    LocalDb.open(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UpgradeError, match="format 99") as told:
        LocalDb.open(path)
    assert "Upgrade" in told.value.next_step


def test_a_use_after_close_is_our_error(tmp_path: Path) -> None:
    db = LocalDb.open(tmp_path / "state.db")
    db.close()
    with pytest.raises(WorkspaceError):
        db.value("a")


KILLED = """
import sys
from metasync.local.state import LocalDb
from metasync.local.state_keys import UNPLACED, Unplaced
db = LocalDb.open(sys.argv[1])
n = 0
while True:
    n += 1
    with db.transaction():
        db.set_value("a", b"%d" % n)
        db.put_records(UNPLACED, [Unplaced(b"%d" % i, "x") for i in range(200)])
        db.set_value("b", b"%d" % n)
    print(n, flush=True)
"""


def test_kill_leaves_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            told = [line for line in process.stdout.read().split(b"\n") if line]
        with LocalDb.open(path) as db:
            assert db.value("a") == db.value("b")
            if told:
                assert int(db.value("a") or b"0") >= int(told[-1])  # what was said to be written is there


kinds = st.sampled_from(list(Kind))
small = st.binary(max_size=64)
times = st.integers(-(2**63), 2**63 - 1)
sizes = st.integers(0, 2**64 - 1)
tags = st.dictionaries(st.integers(0, 65535), small, max_size=3).map(lambda d: tuple(sorted(d.items())))
rows = st.builds(
    Row,
    st.builds(Entry, kinds, st.integers(0, 0o7777), times, sizes, small, small, tags),
    sizes,
    sizes,
    sizes,
    times,
    times,
    st.integers(0, 2**32 - 1),
    st.booleans(),
)


@given(rows)
def test_rows_come_back_as_they_were(row: Row) -> None:
    assert unpack_row(pack_row(row)) == row


@given(rows, st.data())
def test_damaged_rows_are_named(row: Row, data: st.DataObject) -> None:
    packed = pack_row(row)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(WorkspaceError):
        unpack_row(packed[:cut])


COLUMNS = {
    "kv": ("value", lambda db: db.value("k")),
    "rows": ("data", load_rows),
    "rows.path": ("path", lambda db: db.packed_rows()),
    "objects": ("data", lambda db: (db.get_object(b"o"), db.get_objects([b"o"]))),
    "staged": ("data", lambda db: db.staged()),
    "conflicts": ("reason", lambda db: db.records(CONFLICTS)),
    "conflicts.version": ("version", lambda db: db.records(CONFLICTS)),
    "replaced": ("content", lambda db: db.records(REPLACED)),
    "unplaced": ("reason", lambda db: db.unplaced()),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", [5, "text", b"bytes", 1.5])
def test_a_column_of_another_type_is_damage(tmp_path: Path, column: str, value: object) -> None:
    """SQLite keeps any type in any column; a flipped bit in a record's head makes one the other."""
    name, read = COLUMNS[column]
    path = tmp_path / "state.db"
    with LocalDb.open(path) as db:
        db.set_value("k", b"v")
        store_rows(db, [(b"p", Row(FILE, 1, 2, 7, -5, 6, 0o100644, True))])
        db.put_objects([(b"o", 3, b"data")])
        db.stage_object(b"s", 1, b"data")
        db.put_records(CONFLICTS, [Conflict(b"f", b"g", "why", 7)])
        db.put_records(REPLACED, [ReplacedFile(3, b"f", b"h" * 32)])
        db.put_records(UNPLACED, [Unplaced(b"q", "why")])
        good = read(db)
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE {column.partition('.')[0]} SET {name} = ?", (value,))
    raw.close()
    with LocalDb.open(path) as db:
        try:
            found = read(db)
        except WorkspaceError as e:
            assert "damaged" in e.message
            assert e.next_step == CLONE_ANEW
            return
        # an equal type, or one that SQLite turned into the column's
        assert all(type(a) is type(b) for a, b in zip(_flat(good), _flat(found), strict=True))


def _flat(value: object) -> list[object]:
    if isinstance(value, dict):
        return [x for k, v in value.items() for x in (*_flat(k), *_flat(v))]
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in _flat(item)]
    return [value]


def test_a_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """Python's sqlite3 raises UnicodeDecodeError where SQLite quotes it."""
    path = tmp_path / "state.db"
    LocalDb.open(path).close()
    data = path.read_bytes()
    assert data.count(b"CREATE TABLE kv (") == 1
    path.write_bytes(data.replace(b"CREATE TABLE kv (", b"CREATE \xff\xfeBLE kv ("))
    with pytest.raises(WorkspaceError, match=r"state\.db"):
        LocalDb.open(path)


def test_rows_load_as_stored(tmp_path: Path) -> None:
    row = Row(FILE, 1, 2, 7, -5, 6, 0o100644, True)
    with LocalDb.open(tmp_path / "state.db") as db:
        many = {os.fsencode(f"d{i % 9}/f{i}"): row._replace(ino=i) for i in range(300)}
        store_rows(db, many.items())
        assert load_rows(db) == many
        assert type(load_rows(db)[b"d0/f0"].entry.kind) is Kind
        db.delete_rows([b"d0/f0", b"none"])
        assert len(load_rows(db)) == 299


def test_on_a_read_only_disk_a_copy_is_read_and_what_is_written_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state ?#%.db"
    with LocalDb.open(path, may_copy=True) as db:
        assert not db.is_copy
        db.set(NAME_KEY, "docs")
    monkeypatch.setattr(state, "is_read_only", lambda _: True)
    before = path.read_bytes()
    with LocalDb.open(path, may_copy=True) as copy:
        assert copy.is_copy
        assert copy.get(NAME_KEY) == "docs"
        copy.set(NAME_KEY, "other")
        copy.check()
    assert path.read_bytes() == before
    with LocalDb.open(path) as db:  # who would go on with it when the disk can be written again
        assert not db.is_copy
        assert db.get(NAME_KEY) == "docs"


def test_what_another_process_has_written_last_is_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    with LocalDb.open(path) as other:
        other.set(NAME_KEY, "in the log beside the file")
        monkeypatch.setattr(state, "is_read_only", lambda _: True)
        with LocalDb.open(path, may_copy=True) as copy:
            assert copy.get(NAME_KEY) == "in the log beside the file"


@pytest.mark.parametrize("data", [b"no database", b"SQLite format 3\0 and then nothing that is right" * 40])
def test_a_copy_of_what_is_damaged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(data)
    monkeypatch.setattr(state, "is_read_only", lambda _: True)
    with pytest.raises(WorkspaceError, match=r"state\.db"):
        LocalDb.open(path, may_copy=True)


def test_a_disk_that_can_be_written_and_a_file_that_is_not_there_are_not_read_only(tmp_path: Path) -> None:
    assert not state.is_read_only(str(tmp_path))
    assert not state.is_read_only(str(tmp_path / "none"))
