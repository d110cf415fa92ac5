"""Targets: what this device wrote itself and finds damaged, what a user types, and what an S3 server answers."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import time
from dataclasses import asdict
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from agreement_kit import ADMIN, ALICE, BASE, DEVICES, KEYS, NS_ID
from content_kit import digest

from fuzz.agreement import seeds_of
from fuzz.target import SOME, Target
from metasync.backends._shared.listing import Page, read_page
from metasync.backends._shared.object_errors import refusal
from metasync.backends._shared.wire import Answer
from metasync.backends.azure import AzureBackend
from metasync.backends.gcs import GcsBackend
from metasync.backends.registry import parse_bytes, parse_url
from metasync.backends.s3 import S3Backend
from metasync.checkout.plan import Change, Plan, decode_plan, encode_plan
from metasync.codec import ascending, bytes32
from metasync.config import decode_config
from metasync.errors import (
    BackendError,
    FormatError,
    NotFoundError,
    UpgradeError,
    UsageError,
    WorkspaceError,
)
from metasync.local.lock import WorkspaceLock
from metasync.local.state import LocalDb, State
from metasync.local.state_keys import (
    CONFIG_KEY,
    CONFLICTS,
    DEVICE_KEY,
    MODES_KEY,
    NAME_KEY,
    REPLACED,
    SPACE_KEY,
    UNPLACED,
    Conflict,
    ReplacedFile,
    Unplaced,
)
from metasync.objects.model import Entry, Kind
from metasync.session import folder, space
from metasync.session.folder import BASE_KEY, IN_KEYRING, KEYS_FILE, LINKS_KEY, Link, load_secret, stored_devices
from metasync.store.inventory import Told, entry
from metasync.worktree.fs_probe import NAME_RULES_KEY
from metasync.worktree.index import Row, load_rows, pack_row, store_rows, unpack_row
from metasync.worktree.names import ANY

DAMAGED = (WorkspaceError, UpgradeError)
STAT = (40, 1234, 5, 1_700_000_000_000_000_000, 1_700_000_000_000_000_001, 0o100644, True)
FILE = Entry(Kind.FILE, 0o644, 1_700_000_000_123_456_789, 5, digest(1))
ENTRIES = (
    FILE,
    FILE._replace(root=digest(2), tags=((1, b"kept"), (9, b""))),
    Entry(Kind.DIR, 0o755, 0, 0, b""),
    Entry(Kind.SYMLINK, 0, -1, 7, b"../else"),
)
ROWS = tuple(Row(e, *STAT) for e in ENTRIES)
PLAN = Plan(
    (
        Change(b"a", FILE, None),
        Change(b"b", None, ROWS[0]),
        Change(b"d/e", ENTRIES[1], ROWS[1]),
        Change(b"l", ENTRIES[3], ROWS[3]),
    ),
    {"base": BASE.encode(), "kept": None},
    7,
    12,
    (40, 2),
    unfit={1: "too long", 3: "\udcff"},
)
LINKS = {"a": Link("file:///somewhere", "ab" * 16, "cd" * 32), "b": Link("s3://bucket/x", "ef" * 16, "01" * 32)}


# --- the local state


def _secret() -> bytes:
    parts = (KEYS.encode(), ALICE.encode(), ALICE.certified(ADMIN, NS_ID).encode())
    return b"".join(bytes32(p) for p in parts)


class _Scratch:
    """A folder for one process's inputs, and a fresh local state to copy."""

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="metasync-fuzz-")  # removed when the process ends
        self.folder = Path(self._kept.name)
        self.state = self.folder / ".metasync"
        self.state.mkdir()

    def with_key(self, data: bytes) -> Path:
        (self.state / KEYS_FILE).write_bytes(data)
        return self.folder

    def file(self, data: bytes) -> Path:
        for name in ("state.db", "state.db-wal", "state.db-shm", "state.db-journal"):
            with contextlib.suppress(FileNotFoundError):
                (self.state / name).unlink()
        path = self.state / "state.db"
        path.write_bytes(data)
        return path


@cache
def scratch() -> _Scratch:
    return _Scratch()


class _Db(State):
    """As much of a local state as the device's keys ask for."""

    def value(self, name: str) -> bytes | None:
        return ALICE.device_id


def open_secret(data: bytes) -> None:
    before = os.environ.get("METASYNC_KEYRING")
    os.environ["METASYNC_KEYRING"] = "off"
    try:
        folder = scratch().with_key(data)
        keys, device, certificate = load_secret(folder, _Db())  # type: ignore[arg-type]
    finally:
        if before is None:
            del os.environ["METASYNC_KEYRING"]
        else:
            os.environ["METASYNC_KEYRING"] = before
    assert data == b"".join(bytes32(p) for p in (keys.encode(), device.encode(), certificate.encode()))


@cache
def database() -> bytes:
    """A small local state, whole: a page of 512 bytes makes it 12 KiB."""
    path = scratch().file(b"")
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA page_size = 512")
        raw.execute("VACUUM")
    with contextlib.closing(LocalDb.open(path)) as db, db.transaction():
        db.set(NAME_KEY, "docs")
        db.set(DEVICE_KEY, ALICE.device_id)
        db.set(BASE_KEY, BASE)
        db.set(LINKS_KEY, LINKS)
        db.set_value(CONFIG_KEY.name, good_config())
        db.put_objects([(BASE.devices, 100, DEVICES.encode()), (digest(9), 3, b"dir")])
        db.stage_object(digest(3), 1, b"staged")
        store_rows(db, ((b"path %d" % i, row) for i, row in enumerate(ROWS)))
        db.put_records(CONFLICTS, [Conflict(b"p", b"p (copy)", "both changed", 3)])
        db.put_records(REPLACED, [ReplacedFile(1, b"p", digest(1))])
        db.put_records(UNPLACED, [Unplaced(b"q", "too long")])
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


def good_config() -> bytes:
    for data in seeds_of("config"):
        with contextlib.suppress(FormatError, UpgradeError):
            decode_config(data)
            return data
    raise AssertionError("no good config among the vectors")


def read_database(data: bytes) -> None:
    """Everything that a start reads from a local state, and one write."""
    path = scratch().file(data)
    with contextlib.closing(LocalDb.open(path)) as db:
        db.need(NAME_KEY)
        db.need(LINKS_KEY)
        db.need(CONFIG_KEY)
        state = db.need(BASE_KEY)
        stored_devices(db, state, NS_ID)
        load_rows(db)
        objects = db.get_objects([digest(9), BASE.devices])
        assert all(isinstance(x, bytes) for x in objects.values())
        assert all(isinstance(x, bytes) for _, _, x in db.staged())
        for conflict in db.records(CONFLICTS):
            assert (type(conflict.path), type(conflict.copy)) == (bytes, bytes)
            assert (type(conflict.reason), type(conflict.version)) == (str, int)
        for r in db.records(REPLACED):
            assert all(isinstance(x, bytes) for x in (r.path, r.content, r.hashed))
            assert isinstance(r.hashed_mtime_ns + r.hashed_ctime_ns, int)
        for path_, reason in db.unplaced().items():
            assert (type(path_), type(reason)) == (bytes, str)
        db.set(NAME_KEY, "again")
        db.put_packed_rows([(b"new", pack_row(ROWS[0]))])


class _Notes(State):
    """A local state that holds the same note under every key."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def value(self, name: str) -> bytes:
        return self.data


def notes_of(data: bytes) -> None:
    """Notes that save a question: whatever has become of them, they mean something or nothing."""
    db: Any = _Notes(data)
    for name, at in folder.hung_lately(db, time.time()).items():
        assert (type(name), type(at)) == (str, float)
    for note in (db.get(SPACE_KEY) or {}).values():
        assert all(type(n) in (int, type(None)) for n in note)
        assert note.when_ns + 1
    assert all(type(name) is str for name in space.given_up(db))
    known = db.get(NAME_RULES_KEY)
    rules = known[1] if known is not None else ANY
    assert rules.has_twins in (True, False) and rules.name_max + rules.path_max is not None
    lock = WorkspaceLock(scratch().state)
    lock._holder.write_bytes(data)
    assert lock._held_by().startswith("held by")


def note_seeds() -> list[bytes]:
    rules = {k: str(v) if isinstance(v, Enum) else v for k, v in asdict(ANY).items()}
    return [
        json.dumps(note).encode()
        for note in (
            {},
            ["a", "b"],
            {"a": 1.5, "b": time.time()},
            {"a": [5, 6, None], "b": [7, None, None]},
            {"place": [1, 2, 3], "rules": rules},
            {"place": [1, 2, 3], "rules": {"name_max": "x"}},
            {"pid": os.getpid(), "command": "push", "since": 1.7e9},
            {"pid": os.getpid(), "command": "push", "since": 1e300},
            [[[]]],
        )
    ] + [b"[" * 2_000, b"\xff"]


def plan_of(data: bytes) -> Plan:
    plan = decode_plan(data)
    assert ascending([change.path for change in plan.changes])
    for change in plan.changes:
        assert change.is_touch in (True, False)
        assert change.is_staged in (True, False)
    return plan


# --- what a user types


def url_of(data: bytes) -> None:
    """What is accepted comes to the same store again, and says it in a way that can be kept."""
    text = os.fsdecode(data)
    url = parse_url(text)
    again = parse_url(url.location)
    assert (again.scheme, again.host, again.path, again.params) == (url.scheme, url.host, url.path, url.params)
    assert again.location == url.location
    assert LINKS_KEY.load(LINKS_KEY.codec.encode({"x": Link(url.location, "f", "00" * 32)}))["x"].url == url.location
    assert url.capacity_bytes is None or 1 <= url.capacity_bytes <= 1 << 63


def amount_of(data: bytes) -> None:
    assert 1 <= parse_bytes(os.fsdecode(data)) <= 1 << 63


# --- S3


def answer_of(data: bytes) -> None:
    """Whatever the server says, it is an error of the contract; only its own word means that an object is not there."""
    status, body = 200 + int.from_bytes(data[:2], "big") % 400, data[2:]
    answer = Answer(status, {"retry-after": body[:40].decode("latin-1")}, body)
    for kind, absent in ((AzureBackend, "BlobNotFound"), (GcsBackend, "NoSuchKey"), (S3Backend, "NoSuchKey")):
        error = refusal(answer, "get", "x/y", "s3://bucket", kind.dialect)
        assert isinstance(error, BackendError)
        assert len(error.message) < 400
        assert error.retry_after_s is None or 0 <= error.retry_after_s <= 3600
        if isinstance(error, NotFoundError):
            assert status == 404
            assert f"<Code>{absent}</Code>" in answer.text
    raise error


def answer_seeds() -> list[bytes]:
    out = []
    for status, code in (
        (404, "NoSuchKey"),
        (404, "NoSuchBucket"),
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (503, "SlowDown"),
        (409, "OperationAborted"),
        (507, ""),
        (301, "PermanentRedirect"),
    ):
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
        out.append((status - 200).to_bytes(2, "big") + body.encode())
    return [*out, b"", b"\0\7"]


def listing_of(data: bytes) -> Page:
    page = read_page(data)
    assert all(entry.size is None or entry.size >= 0 for entry in page.entries)
    return page


def listing_seeds() -> list[bytes]:
    amazon = "<ListBucketResult><Contents><Key>x/a</Key><Size>1</Size></Contents><CommonPrefixes><Prefix>x/b/</Prefix>"
    azure = "<EnumerationResults><Blobs><Blob><Name>x/a</Name><Properties><Content-Length>1</Content-Length>"
    return [
        f"{amazon}</CommonPrefixes><NextContinuationToken>t</NextContinuationToken></ListBucketResult>".encode(),
        f"{azure}</Properties></Blob></Blobs><NextMarker>m</NextMarker></EnumerationResults>".encode(),
    ]


def told_seeds() -> list[bytes]:
    told = Told(8)
    for n in range(6):
        told.put((n, bytes([n]) * 32), entry((n, bytes([n]) * 32), n, b"abc" * n))
    told.note_well(3, b"")
    return [told.encode(), Told(1).encode()]


LOCAL = (
    Target("row", unpack_row, lambda: [pack_row(r) for r in ROWS], pack_row, allowed=DAMAGED),
    Target(
        "plan",
        plan_of,
        lambda: [encode_plan(PLAN), encode_plan(Plan((), {}, 0, 0, (0, 0), own=True, reason="why"))],
        encode_plan,
        allowed=DAMAGED,
    ),
    Target(
        "modes",
        MODES_KEY.load,
        lambda: [MODES_KEY.codec.encode({b"a": 0o755, b"a/b": 0o500}), b""],
        MODES_KEY.codec.encode,
        allowed=DAMAGED,
    ),
    Target(
        "links", LINKS_KEY.load, lambda: [LINKS_KEY.codec.encode(LINKS), b"{}", b"[1]", b'{"a": 1}'], allowed=DAMAGED
    ),
    Target("notes", notes_of, note_seeds, allowed=DAMAGED, tries=SOME),
    Target("secret", open_secret, lambda: [_secret(), IN_KEYRING], allowed=DAMAGED, tries=SOME),
    Target("local-state", read_database, lambda: [database()], allowed=DAMAGED, tries=SOME, room=lambda _: 8 << 20),
    Target(
        "url",
        url_of,
        lambda: [
            b"file:///media/stick/metasync",
            b"file:///a%20b/c?name=x&capacity=15GiB&role=storage",
            b"memory:one?name=m",
            b"memory://two/three",
            b"s3://bucket/prefix/x?endpoint=https://s3.example.org&region=eu-central-1&profile=p",
            b"s3://user:pw@bucket/",
            b"file:///\xc3\xa9\xff",
        ],
        allowed=(UsageError,),
        room=lambda _: 4 << 20,
    ),
    Target(
        "amount", amount_of, lambda: [b"15GiB", b"1.5 TB", b"1000000", b"99999999999999999999PB"], allowed=(UsageError,)
    ),
    Target("s3-answer", answer_of, answer_seeds, allowed=(BackendError,)),
    Target("told", Told.decode, told_seeds, Told.encode, allowed=(FormatError,)),
    Target("s3-listing", listing_of, listing_seeds, allowed=(FormatError,)),
)
