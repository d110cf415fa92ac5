"""A OneDrive of this process, with an account that is linked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.onedrive_standin import OneDriveStandin
from servers.standin import linked

from metasync.backends.onedrive import OneDriveBackend
from metasync.backends.registry import open_backend, parse_url


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneDriveStandin]:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with linked(OneDriveStandin(), monkeypatch, tmp_path / "config") as standin:
        yield standin


@pytest.fixture
def backend(standin: OneDriveStandin) -> Iterator[OneDriveBackend]:
    found = open_backend(parse_url("onedrive:/metasync/one"), create_root=True)
    assert isinstance(found, OneDriveBackend)
    standin.take_log()
    yield found
    found.close()
