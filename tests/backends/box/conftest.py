"""A stand-in for Box with one linked account, and a folder of it as a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("box_sdk_gen")
from servers.box_standin import BoxStandin
from servers.standin import linked, opening

from metasync.backends.box import BoxBackend


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BoxStandin]:
    with linked(BoxStandin(), monkeypatch, tmp_path / "config") as made:
        yield made


@pytest.fixture
def opened(standin: BoxStandin) -> Iterator[Callable[..., BoxBackend]]:
    """`opened()`: the folder /top/ws as a backend; `opened("/other")`."""
    with opening("box", BoxBackend) as open_one:
        yield open_one


@pytest.fixture
def backend(opened: Callable[..., BoxBackend], standin: BoxStandin) -> BoxBackend:
    out = opened()
    standin.take_log()
    return out
