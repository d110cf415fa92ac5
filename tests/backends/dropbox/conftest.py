"""A stand-in for Dropbox with one linked account, and a folder of it as a backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("dropbox")
sys.path[:0] = [str(Path(__file__).parents[2] / "servers")]

from dropbox_standin import DropboxStandin  # noqa: E402  (found by the line above)
from standin import running  # noqa: E402

from metasync.backends.dropbox import DropboxBackend  # noqa: E402
from metasync.backends.registry import open_backend, parse_url  # noqa: E402


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DropboxStandin]:
    with running(DropboxStandin()) as made:
        assert isinstance(made, DropboxStandin)
        made.link(monkeypatch, tmp_path / "config")
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
