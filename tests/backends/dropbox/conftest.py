"""A stand-in for Dropbox with one linked account, and a folder of it as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("dropbox")
from servers.dropbox_standin import DropboxStandin
from servers.standin import linked, opening

from metasync.backends.dropbox import DropboxBackend


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DropboxStandin]:
    with linked(DropboxStandin(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(standin: DropboxStandin) -> Iterator[Callable[..., DropboxBackend]]:
    """`opened()`: the folder /top/ws as a backend; `opened("/other")`."""
    with opening("dropbox", DropboxBackend) as open_one:
        yield open_one


@pytest.fixture
def backend(opened: Callable[..., DropboxBackend], standin: DropboxStandin) -> DropboxBackend:
    out = opened()
    standin.take_log()
    return out
