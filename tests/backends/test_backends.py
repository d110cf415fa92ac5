"""The backends that need no server, all under one contract; what they share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from contract_kit import FULL, SMALL, passes

from metasync.backends import registry
from metasync.backends.api import Backend
from metasync.backends.folder import FolderBackend
from metasync.backends.memory import MemoryBackend, MemoryStore, forget_stores
from metasync.backends.names import native_identity
from metasync.backends.registry import open_backend, parse_url
from metasync.backends.wrappers.ballast import WithBallast
from metasync.errors import NotFoundError, UnreachableError
from metasync.testing.contract import CHECKS, Check, Store, check_id
from metasync.testing.counting import CountingBackend
from metasync.testing.faults import FaultyBackend
from metasync.testing.quota import Quota, QuotaBackend


def _stores(kind: str, root: Path) -> Store:
    if kind == "folder":
        return Store(lambda: FolderBackend(str(root)), f"file://{root}")
    store, quota = MemoryStore(), Quota(1 << 40)
    wrap = {
        "memory": lambda inner: inner,
        "faulty": FaultyBackend,
        "counting": CountingBackend,
        "quota": lambda inner: QuotaBackend(inner, quota),
        "ballast": lambda inner: WithBallast(inner, lambda: None),
    }[kind]
    return Store(lambda: wrap(MemoryBackend(store)))


@pytest.mark.parametrize("check", CHECKS, ids=check_id)
@pytest.mark.parametrize("kind", ["memory", "folder", "faulty", "counting", "quota", "ballast"])
def test_contract(kind: str, check: Check, tmp_path: Path) -> None:
    store = _stores(kind, tmp_path)
    assert isinstance(store.open(), Backend)
    passes(check, store, FULL if kind == "folder" else SMALL)
    assert not [path for path in tmp_path.rglob(".tmp-*") if "interrupted" not in str(path) and "lost" not in str(path)]


def test_memory_stores_by_name() -> None:
    url = parse_url("memory://test-backends")
    with pytest.raises(UnreachableError):
        open_backend(url)
    first, second = open_backend(url, create_root=True), open_backend(url)
    first.put("a", b"1")
    assert second.get("a", max_bytes=1) == b"1"
    assert first.identity() == second.identity() != MemoryBackend().identity()
    forget_stores()
    with pytest.raises(UnreachableError):
        open_backend(url)
    assert open_backend(url, create_root=True).identity() != first.identity()
    forget_stores()


def test_native_identity_has_no_seams() -> None:
    assert native_identity("a", "b/c") != native_identity("a", "b/d")
    assert native_identity("a", "b")[:16] == native_identity("a", "c")[:16]
    assert native_identity("a", "x") != native_identity("b", "x")


def test_counting() -> None:
    backend = CountingBackend(MemoryBackend())
    backend.create("a", b"123")
    backend.create("a", b"45")
    backend.put("b", b"6")
    backend.get("a", max_bytes=9)
    with pytest.raises(NotFoundError):
        backend.get("c", max_bytes=9)
    backend.list("")
    for refused in (lambda: backend.put("../a", b"12345"), lambda: backend.get("a", offset=-1, max_bytes=9)):
        with pytest.raises(ValueError, match="not a pa"):  # no request
            refused()
    count = backend.count()
    assert count.requests == {"create": 2, "put": 1, "get": 2, "list": 1}
    assert count.errors == {"get": 1}
    assert (count.up_bytes, count.down_bytes) == (6, 3)
    assert backend.take() == count
    assert backend.count().requests.total() == 0


def test_counting_from_many_threads() -> None:
    backend = CountingBackend(MemoryBackend())
    threads = [threading.Thread(target=lambda: [backend.put("a", b"1") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.count().requests == {"put": 2000}
    assert backend.count().up_bytes == 2000


@pytest.mark.parametrize("library", ["box_sdk_gen", "dropbox"])
def test_a_library_is_imported_from_its_top(library: str) -> None:
    """Its modules import each other in circles: threads that begin at several of them wait for each other for ever.

    Python notices that, and ends one of the imports with an error of its own.
    """
    found = [
        line.strip()
        for path in Path(registry.__file__).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith((f"from {library}.", f"import {library}."))
    ]
    assert found == []
