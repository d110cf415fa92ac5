"""A stand-in for Google Drive with one linked account, and a folder of it as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("googleapiclient")
from servers.gdrive_standin import GoogleDriveStandin
from servers.standin import linked

from metasync.backends.gdrive import GoogleDriveBackend
from metasync.backends.registry import open_backend, parse_url


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GoogleDriveStandin]:
    with linked(GoogleDriveStandin(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(standin: GoogleDriveStandin) -> Iterator[Callable[..., GoogleDriveBackend]]:
    """`opened()`: the folder /top/ws as a backend; `opened("/other")`."""
    made: list[GoogleDriveBackend] = []

    def open_one(path: str = "/top/ws", *, create_root: bool = True) -> GoogleDriveBackend:
        backend = open_backend(parse_url(f"gdrive:{path}"), create_root=create_root)
        assert isinstance(backend, GoogleDriveBackend)
        made.append(backend)
        return backend

    yield open_one
    for backend in made:
        backend.close()


@pytest.fixture
def backend(opened: Callable[..., GoogleDriveBackend], standin: GoogleDriveStandin) -> GoogleDriveBackend:
    out = opened()
    standin.take_log()
    return out
