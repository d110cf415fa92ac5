"""A stand-in for Google Drive with one linked account, and a folder of it as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("googleapiclient")
from servers.gdrive_standin import GoogleDriveStandin
from servers.standin import linked, opening

from metasync.backends.gdrive import GoogleDriveBackend


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GoogleDriveStandin]:
    with linked(GoogleDriveStandin(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(standin: GoogleDriveStandin) -> Iterator[Callable[..., GoogleDriveBackend]]:
    """`opened()`: the folder /top/ws as a backend; `opened("/other")`."""
    with opening("gdrive", GoogleDriveBackend) as open_one:
        yield open_one


@pytest.fixture
def backend(opened: Callable[..., GoogleDriveBackend], standin: GoogleDriveStandin) -> GoogleDriveBackend:
    out = opened()
    standin.take_log()
    return out
