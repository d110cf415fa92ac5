"""What every backend must do (`metasync.backends._base`), as checks to run on any of them.

A check takes a way to open the store anew (each call another backend object on the same store) and a folder of its own
in it, and raises AssertionError with what was seen. None leaves more than a few MiB behind, or needs the store empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from metasync.backends._base import Backend, Listed
from metasync.errors import NotFoundError, RefusedError

Open: TypeAlias = Callable[[], Backend]
Check: TypeAlias = Callable[[Open, str], None]

WRITERS = 8
RACE_NAMES = 1000  # 200 are too few: nginx's MOVE stood them (PROVIDERS 4)
BIG_BYTES = 16 << 20
MANY = 1 << 26


def check_create(open_store: Open, base: str) -> None:
    b = open_store()
    assert b.create(f"{base}/a", b"one") is True
    assert b.create(f"{base}/a", b"two") is False
    assert b.create(f"{base}/a", b"one") is False, "the same bytes are taken as well"
    assert open_store().get(f"{base}/a", max_bytes=3) == b"one", "another view reads what was created"


def check_create_in_new_folders(open_store: Open, base: str) -> None:
    b = open_store()
    assert b.create(f"{base}/new/er/est/a", b"x") is True
    b.put(f"{base}/other/new/b", b"y")
    assert b.get(f"{base}/new/er/est/a", max_bytes=1) == b"x"
    assert b.get(f"{base}/other/new/b", max_bytes=1) == b"y"


def check_put(open_store: Open, base: str) -> None:
    b = open_store()
    for data in (b"short", b"a longer one", b"", b"end"):
        b.put(f"{base}/a", data)
        assert open_store().get(f"{base}/a", max_bytes=100) == data
        assert b.stat(f"{base}/a") == len(data)
    assert b.create(f"{base}/a", b"new") is False, "what put stored is taken"


def check_absent(open_store: Open, base: str) -> None:
    b = open_store()
    for path in (f"{base}/nothing", f"{base}/no/folder/either"):
        for call in (
            lambda path=path: b.get(path, max_bytes=9),
            lambda path=path: b.get(path, offset=1, length=2, max_bytes=9),
            lambda path=path: b.get(path, offset=1, length=0, max_bytes=9),
            lambda path=path: b.stat(path),
        ):
            try:
                call()
            except NotFoundError:
                continue
            raise AssertionError(f"{path} was never stored")
        assert b.list(path) == ()
        b.delete(path)


def check_delete(open_store: Open, base: str) -> None:
    b = open_store()
    b.put(f"{base}/a/x", b"1")
    b.put(f"{base}/a/y", b"2")
    b.delete(f"{base}/a/x")
    b.delete(f"{base}/a/x")
    assert [name for name, _ in b.list(f"{base}/a")] == ["y"]
    assert b.create(f"{base}/a/x", b"3") is True, "a deleted name is free"
    assert b.get(f"{base}/a/x", max_bytes=1) == b"3"


def check_parts(open_store: Open, base: str) -> None:
    b, path, data = open_store(), f"{base}/a", bytes(range(100))
    b.put(path, data)
    for offset, length in ((0, None), (0, 10), (10, 10), (90, 10), (90, 11), (99, 50), (100, 1), (5000, 7), (40, None)):
        got = b.get(path, offset=offset, length=length, max_bytes=100)
        assert got == data[offset:][:length], f"offset {offset}, length {length}: {got!r}"
    assert b.get(path, offset=100, max_bytes=0) == b""
    assert b.get(path, offset=5, length=0, max_bytes=0) == b""
    b.put(path, b"")
    assert b.get(path, max_bytes=0) == b""
    assert b.get(path, offset=0, length=5, max_bytes=5) == b""


def check_bound(open_store: Open, base: str) -> None:
    b, path = open_store(), f"{base}/a"
    b.put(path, bytes(1000))
    assert len(b.get(path, max_bytes=1000)) == 1000
    assert len(b.get(path, offset=900, length=5000, max_bytes=100)) == 100
    for part in ({"max_bytes": 999}, {"max_bytes": 0}, {"offset": 10, "max_bytes": 989}, {"length": 9, "max_bytes": 8}):
        try:
            b.get(path, **part)
        except RefusedError:
            continue
        raise AssertionError(f"{part} gave more than max_bytes")


def check_list(open_store: Open, base: str) -> None:
    b = open_store()
    for name in ("b", "a", "dir/x", "dir/deeper/y", "b2", "-", "_.z"):
        b.put(f"{base}/l/{name}", name.encode())
    found = b.list(f"{base}/l")
    assert found == tuple(sorted(found, key=lambda entry: entry.name)), "sorted"
    assert found == (
        Listed("-", 1),
        Listed("_.z", 3),
        Listed("a", 1),
        Listed("b", 1),
        Listed("b2", 2),
        Listed("dir", None),
    )
    assert b.list(f"{base}/l/dir") == (Listed("deeper", None), Listed("x", 5))
    assert b.list(f"{base}/l/a") == (), "below an object there is nothing"
    assert base.split("/")[0] in [name for name, _ in b.list("")]


def check_long_list(open_store: Open, base: str) -> None:
    b = open_store()
    names = [f"{number:05d}" for number in range(1200)]  # S3 answers at most 1000 at once
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: b.put(f"{base}/long/{name}", b""), names))
    assert [name for name, _ in b.list(f"{base}/long")] == names


def check_big(open_store: Open, base: str) -> None:
    b, path = open_store(), f"{base}/big"
    data = bytes(range(251)) * (BIG_BYTES // 251 + 1)
    data = data[:BIG_BYTES]
    assert b.create(path, data) is True
    for _ in range(10):  # a server that refuses before it has read all must not look like one that is gone
        assert b.create(path, data[::-1]) is False
    assert b.stat(path) == BIG_BYTES
    assert b.get(path, max_bytes=BIG_BYTES) == data
    assert b.get(path, offset=BIG_BYTES - 7, length=100, max_bytes=100) == data[-7:]
    assert b.get(path, offset=1 << 20, length=1 << 20, max_bytes=1 << 20) == data[1 << 20 : 2 << 20]
    try:
        b.get(path, max_bytes=BIG_BYTES - 1)
    except RefusedError:
        pass
    else:
        raise AssertionError("more than max_bytes")
    b.delete(path)


def check_hostile_paths(open_store: Open, base: str) -> None:
    b = open_store()
    hostile = (
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/../b",
        "a/..",
        ".",
        "a/./b",
        "a\\b",
        "a\0",
        "a\n",
        "A",
        "é",
        "a b",
    )
    for path in (*hostile, ".tmp-1", "a/.tmp-1", "x" * 201):
        for call in (
            lambda path=path: b.create(path, b""),
            lambda path=path: b.put(path, b""),
            lambda path=path: b.get(path, max_bytes=1),
            lambda path=path: b.stat(path),
            lambda path=path: b.delete(path),
            lambda path=path: b.list(path) if path else b.stat(path),
        ):
            try:
                call()
            except ValueError:
                continue
            raise AssertionError(f"{path!r} is not a path")
    for part in ({"offset": -1}, {"length": -1}):
        try:
            b.get(f"{base}/a", max_bytes=1, **part)
        except ValueError:
            continue
        raise AssertionError(f"{part} is no part")


def check_create_race(open_store: Open, base: str) -> None:
    """Of eight racing writers exactly one wins each of a thousand names, and all read what that one wrote."""
    stores = [open_store() for _ in range(WRITERS)]
    wins: list[list[int]] = [[] for _ in range(WRITERS)]
    together = threading.Barrier(WRITERS)

    def race(writer: int) -> None:
        for number in range(RACE_NAMES):
            if number % 50 == 0:
                together.wait(60)
            path = f"{base}/race/{number}"
            mine = f"{writer}:{number}".encode() * 20
            if stores[writer].create(path, mine):
                wins[writer].append(number)
                assert stores[writer].get(path, max_bytes=MANY) == mine
            else:
                seen = stores[writer].get(path, max_bytes=MANY)
                assert seen == f"{seen[:1].decode()}:{number}".encode() * 20, "a part was seen"

    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(race, writer) for writer in range(WRITERS)]:
            done.result()
    assert sorted(number for won in wins for number in won) == list(range(RACE_NAMES))
    b = open_store()
    for writer, won in enumerate(wins):
        for number in won[:20]:
            assert b.get(f"{base}/race/{number}", max_bytes=MANY) == f"{writer}:{number}".encode() * 20


def check_no_torn_reads(open_store: Open, base: str) -> None:
    """While one writer replaces an object, readers see one whole version or another, never older than their last."""
    path, versions, size = f"{base}/torn", 60, 1 << 17
    stores = [open_store() for _ in range(4)]
    stores[0].put(path, b"\0" * size)
    done = threading.Event()

    def read(reader: int) -> int:
        reads, last = 0, 0
        while not done.is_set():
            data = stores[reader].get(path, max_bytes=size)
            assert len(data) == size
            assert data == data[:1] * size, "two versions in one answer"
            assert data[0] >= last, "an older version after a newer one"
            last, reads = data[0], reads + 1
        return reads

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, number) for number in (1, 2, 3)]
        try:
            for version in range(1, versions):
                stores[0].put(path, bytes([version]) * size)
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)


def check_identity(open_store: Open, base: str) -> None:
    first, second = open_store().identity(), open_store().identity()
    assert first == second
    assert 16 <= len(first) <= 64


def check_delete_beside_create(open_store: Open, base: str) -> None:
    """Deleting the last object of a folder does not disturb who is just creating the next one in it."""
    a, b = open_store(), open_store()
    for number in range(100):
        a.put(f"{base}/busy/{number}/x", b"")
        with ThreadPoolExecutor(2) as pool:
            deleting = pool.submit(a.delete, f"{base}/busy/{number}/x")
            assert pool.submit(b.create, f"{base}/busy/{number}/y", b"y").result() is True
            deleting.result()
        assert a.get(f"{base}/busy/{number}/y", max_bytes=1) == b"y"


CHECKS: tuple[Check, ...] = (
    check_create,
    check_create_in_new_folders,
    check_put,
    check_absent,
    check_delete,
    check_parts,
    check_bound,
    check_list,
    check_long_list,
    check_big,
    check_hostile_paths,
    check_create_race,
    check_no_torn_reads,
    check_identity,
    check_delete_beside_create,
)
