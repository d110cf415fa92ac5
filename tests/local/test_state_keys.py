"""The keys of the local state: each has one type, and what is damaged is told or counts as absent."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from metasync.consensus import JOURNAL_KEY
from metasync.errors import WorkspaceError
from metasync.local import state_keys
from metasync.local.state import FORMAT, LocalDb
from metasync.local.state_keys import BYTES, CLONE_ANEW, TABLES, Failures, Key, KeyCopies, PendingKeys, SpaceNote
from metasync.session.agreement import LEFT_KEY, LINE_KEY
from metasync.session.evidence import EVIDENCE_KEY
from metasync.session.folder import BASE_KEY, JOINING_KEY, LINKS_KEY, MEMORY_KEY, NEWEST_KEY, PARTS_KEY
from metasync.transfer.estimates import ESTIMATES_KEY
from metasync.transfer.late_copies import TRAILING_KEY
from metasync.worktree.fs_probe import NAME_RULES_KEY

KEYS: dict[str, Key[Any]] = {n: k for n, k in vars(state_keys).items() if isinstance(k, Key)}
RECORDS: tuple[Key[Any], ...] = (
    BASE_KEY, NEWEST_KEY, LEFT_KEY, LINE_KEY, MEMORY_KEY, JOURNAL_KEY, EVIDENCE_KEY, LINKS_KEY, JOINING_KEY,
    ESTIMATES_KEY, PARTS_KEY, TRAILING_KEY, NAME_RULES_KEY,
)  # fmt: skip
VALUES: dict[str, Any] = {
    "NAME_KEY": "d\u00f6cs",
    "RETIRED_KEY": 7,
    "RULES_KEY": {b"": b"*.tmp\n", b"d/\xff": b""},
    "RESTORED_KEY": {b"path": b"content"},
    "CLONING_KEY": True,
    "INODES_KEY": (0, 1, (1 << 64) - 1),
    "MODES_KEY": {b"a": 0o755, b"a/b": 0o500},
    "REPLACED_KEY": 1 << 40,
    "SHORT_KEY": 3,
    "GIVEN_UP_KEY": frozenset({"a", "b"}),
    "SPACE_KEY": {"a": SpaceNote(5, 6, None), "b": SpaceNote(7, None, None)},
    "FAILURES_KEY": {"a": Failures(10, 1_700_000_000_000_000_000)},
    "HUNG_KEY": {"a": 1.5},
    "UNLINKED_KEY": frozenset({"usb"}),
    "AWAY_KEY": {"a": 1_700_000_000_000_000_000},
    "KEY_COPIES_KEY": KeyCopies(3, {"00ff": PendingKeys(True, 1.7e9)}),
}


def test_no_two_keys_have_one_name() -> None:
    names = [k.name for k in KEYS.values()] + [table.name for table in TABLES]
    assert len(set(names)) == len(names)


def test_a_record_keeps_the_name_and_the_next_step_of_its_key() -> None:
    declared = {k.name: k.next_step for k in KEYS.values()}
    assert all(declared[k.name] == k.next_step for k in RECORDS)


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_with_their_types(tmp_path: Path, name: str) -> None:
    key, value = KEYS[name], VALUES[name]
    with LocalDb.open(tmp_path / "state.db") as db:
        assert not db.has(key)
        assert db.get(key) is None
        db.set(key, value)
        assert db.has(key)
        assert db.get(key) == db.need(key) == value
        db.update(key, None)
        assert not db.has(key)


@pytest.mark.parametrize("key", [*(KEYS[n] for n in VALUES), *RECORDS], ids=lambda k: str(k.name))
def test_a_damaged_value_is_told_or_counts_as_absent(tmp_path: Path, key: Key[Any]) -> None:
    if key.codec in (state_keys.TEXT, state_keys.FLAG):
        return  # all bytes are a text, and a flag is there
    with LocalDb.open(tmp_path / "state.db") as db:
        db.set_value(key.name, b"\x01\xff damaged")
        if key.next_step is None:
            assert not db.get(key)
        else:
            with pytest.raises(WorkspaceError, match="damaged") as told:
                db.get(key)
            assert told.value.next_step == key.next_step


def test_what_must_be_there_is_asked_for() -> None:
    with LocalDb.open(":memory:") as db, pytest.raises(WorkspaceError, match="'name' is missing") as told:
        db.need(state_keys.NAME_KEY)
    assert told.value.next_step == CLONE_ANEW


def test_an_update_to_the_same_value_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalDb.open(tmp_path / "state.db") as db:
        key = Key("a", BYTES)
        db.update(key, b"1")
        written: list[object] = []
        monkeypatch.setattr(db, "set_value", lambda *values: written.append(values))
        db.update(key, b"1")
        db.update(key, b"2")
    assert written == [("a", b"2")]


def test_an_older_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    LocalDb.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {FORMAT - 1}")
    raw.close()
    with pytest.raises(WorkspaceError, match="older MetaSync") as told:
        LocalDb.open(path)
    assert told.value.next_step == CLONE_ANEW
