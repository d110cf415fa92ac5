"""A store that can be read and takes no write is told by what looks at backends, until one was taken."""

from __future__ import annotations

import pytest
from workspace_kit import Lab, write

from metasync.backends.memory import MemoryBackend
from metasync.backends.wrappers.last_write import LastWrite, write_refused
from metasync.errors import RefusedError, UnreachableError
from metasync.session import evidence
from metasync.testing.faults import FaultyBackend


def test_the_last_write_decides() -> None:
    faulty = FaultyBackend(MemoryBackend())
    store = LastWrite(faulty)
    assert write_refused(store) is None
    store.put("a", b"1")
    assert write_refused(store) == ""
    faulty.read_only = True
    for write_one in (lambda: store.put("b", b"1"), lambda: store.create("c", b"1")):
        with pytest.raises(RefusedError):
            write_one()
        assert "read-only" in (write_refused(store) or "")
    assert store.get("a", max_bytes=1) == b"1"
    faulty.read_only, faulty.down = False, True
    with pytest.raises(UnreachableError):
        store.put("b", b"1")
    assert "read-only" in (write_refused(store) or ""), "silence says nothing of it"
    faulty.down = False
    assert store.create("c", b"1")
    assert write_refused(store) == ""


def test_a_note_stays_until_a_write_went_well(lab: Lab) -> None:
    db = lab.init(lab.urls("a", "b", "c"))._db
    assert evidence.no_writes(db, "a") == ""
    evidence.note_writes(db, {"a": "no rights", "b": "", "c": None})
    for outcomes in ({}, {"a": None}, {"b": ""}):
        evidence.note_writes(db, outcomes)
        assert evidence.no_writes(db, "a") == "a refused what was last to be written there: no rights"
    assert evidence.no_writes(db, "b") == evidence.no_writes(db, "c") == ""
    evidence.note_writes(db, {"a": ""})
    assert evidence.no_writes(db, "a") == ""


def test_status_and_check_tell_it(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"), replicas=3)  # so that a push waits for what each says
    write(w.directory, {"one": b"1"})
    w.push()
    lab.faults["a"].read_only = True
    write(w.directory, {"two": b"2"})
    w.push()
    w.close()
    for command in ("status", "check"):
        assert "a refused what was last to be written there" in lab.cli(command).out
    lab.faults["a"].read_only = False
    write(w.directory, {"three": b"3"})
    assert lab.cli("push").code in (0, 4)
    assert "refused" not in lab.cli("status").out + lab.cli("check").out
