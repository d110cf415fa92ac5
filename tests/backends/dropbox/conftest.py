"""A stand-in for Dropbox with one linked account, and a folder of it as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("dropbox")
from servers.dropbox_standin import DropboxStandin
from servers.standin import linked

from metasync.backends.dropbox import DropboxBackend
from metasync.backends.registry import open_backend, parse_url


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DropboxStandin]:
    with linked(DropboxStandin(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(standin: DropboxStandin) -> Iterator[Callable[..., DropboxBackend]]:
    """`opened()`: the folder /top/ws as a backend; `opened("/other")`."""
    made: list[DropboxBackend] = []

    def open_one(path: str = "/top/ws", *, create_root: bool = True) -> DropboxBackend:
        backend = open_backend(parse_url(f"dropbox:{path}"), create_root=create_root)
        assert isinstance(backend, DropboxBackend)
        made.append(backend)
        return backend

    yield open_one
    for backend in made:
        backend.close()


@pytest.fixture
def backend(opened: Callable[..., DropboxBackend], standin: DropboxStandin) -> DropboxBackend:
    out = opened()
    standin.take_log()
    return out
