"""A stand-in for Box with one linked account, and a folder of it as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("box_sdk_gen")
from servers.box_standin import BoxStandin
from servers.standin import linked

from metasync.backends.box import BoxBackend
from metasync.backends.registry import open_backend, parse_url


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BoxStandin]:
    with linked(BoxStandin(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(standin: BoxStandin) -> Iterator[Callable[..., BoxBackend]]:
    """`opened()`: the folder /top/ws as a backend; `opened("/other")`."""
    made: list[BoxBackend] = []

    def open_one(path: str = "/top/ws", *, create_root: bool = True) -> BoxBackend:
        backend = open_backend(parse_url(f"box:{path}"), create_root=create_root)
        assert isinstance(backend, BoxBackend)
        made.append(backend)
        return backend

    yield open_one
    for backend in made:
        backend.close()


@pytest.fixture
def backend(opened: Callable[..., BoxBackend], standin: BoxStandin) -> BoxBackend:
    out = opened()
    standin.take_log()
    return out
